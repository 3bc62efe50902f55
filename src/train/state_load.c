/* Reads the state of a training job. It checks that a file fits this trainer, distributes its
 * values, and restores the position in the data. It chooses the checkpoint of a folder for a
 * resume. */

static const char *dti_state_whose(const dt_trainer *t) {
    return t->first ? " (of a trainer of .replicas_of)" : "";
}

static dt_result dti_state_wrong(dt_trainer *t, const char *path, const char *what,
                                 unsigned long long file, unsigned long long here) {
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "%s: %s is %llu in the checkpoint, but %llu here%s; use the same, or start "
                    "again in another .checkpoint.folder",
                    path, what, file, here, dti_state_whose(t));
}

/* A file may have any number. */
static const char *dti_state_kind_name(uint64_t kind) {
    const dti_optim_row *row = dti_optim_row_of((dt_optim_kind)DTI_MIN(kind, DTI_OPTIM_KINDS));
    return row ? row->name : "unknown";
}

/* The words that must be the trainer's own. */
static dt_result dti_state_check_same(dt_trainer *t, const char *path, uint64_t *w) {
    uint64_t here[DTI_STATE_WORDS];
    static const struct {
        uint8_t word;
        const char *name;
    } same[] = {{DTI_STATE_SEED, ".seed"},
                {DTI_STATE_ROWS, ".data.rows"},
                {DTI_STATE_BATCH, ".batch"},
                {DTI_STATE_PARTS, ".accumulate"},
                {DTI_STATE_TAIL, ".tail"},
                {DTI_STATE_MOMENTS, "the number of moments (256 more with an average)"},
                {DTI_STATE_SHUFFLED, "shuffling (0 or 1; for a stream 2 + .shuffle)"}};
    dti_state_words(t, here);
    w[DTI_STATE_OPTIM] = dti_state_kind(w[DTI_STATE_OPTIM]);
    if (w[DTI_STATE_OPTIM] != here[DTI_STATE_OPTIM])
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "%s: the optimizer is %s in the checkpoint, but %s here%s; use the "
                        "checkpoint's .optim.kind",
                        path, dti_state_kind_name(w[DTI_STATE_OPTIM]),
                        dti_state_kind_name(here[DTI_STATE_OPTIM]), dti_state_whose(t));
    for (size_t i = 0; i < DTI_COUNT(same); i++) {
        if (w[same[i].word] != here[same[i].word])
            return dti_state_wrong(t, path, same[i].name, w[same[i].word], here[same[i].word]);
    }
    return DT_OK;
}

static dt_result dti_state_check_words(dt_trainer *t, const char *path, uint64_t *w) {
    DTI_TRY(dti_state_check_same(t, path, w));
    if (dti_parallel_is_local(&t->par)) /* one batch slice a replica, whatever the file's */
        return DT_OK;
    if (t->desc.parallel.batch_slices &&
        w[DTI_STATE_BATCH_SLICES] != (uint64_t)t->desc.parallel.batch_slices)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "%s: .parallel.batch_slices is %llu in the checkpoint, but %d here; give 0 "
                        "to use the checkpoint's",
                        path, (unsigned long long)w[DTI_STATE_BATCH_SLICES],
                        t->desc.parallel.batch_slices);
    if (w[DTI_STATE_BATCH_SLICES] > t->par.desc.batch)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "%s: .parallel.batch_slices is %llu and .batch is %u; it must be at most %u", path,
            (unsigned long long)w[DTI_STATE_BATCH_SLICES], t->par.desc.batch, t->par.desc.batch);
    if (w[DTI_STATE_BATCH_SLICES] < t->par.mesh.data)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "%s: it has %llu batch slices, but %u replicas need one each; use fewer replicas", path,
            (unsigned long long)w[DTI_STATE_BATCH_SLICES], t->par.mesh.data);
    DTI_TRY(dti_batch_slices_fit(&t->par, (uint32_t)w[DTI_STATE_BATCH_SLICES]));
    return dti_sharing_fits(t, (uint32_t)w[DTI_STATE_BATCH_SLICES]);
}

/* Everything must fit before anything is written. */
static dt_result dti_state_check(dt_trainer *t, const char *path, const dti_checkpoint *c,
                                 dti_state_file *f) {
    const dt_safetensors_tensor *own = dti_checkpoint_find(c, "dtrain.state");
    const uint64_t has = own ? own->bytes / 8 : 0;
    const uint32_t count =
        has == DTI_STATE_WORDS || has == DTI_STATE_REPLICAS ? (uint32_t)has : DTI_STATE_BEST;
    uint64_t *words = f->words;
    DTI_TRY(dti_state_words_read(f, path, c, "dtrain.state", count));
    if (words[DTI_STATE_VERSION] < 1 || words[DTI_STATE_VERSION] > DTI_STATE_NOW ||
        count != dti_state_count(words[DTI_STATE_VERSION]))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "%s: its version is %llu; this dtrain reads versions 1 to %d", path,
                        (unsigned long long)words[DTI_STATE_VERSION], DTI_STATE_NOW);
    *f = dti_trainer_state(t, words, words[DTI_STATE_VERSION]);
    DTI_TRY(dti_trainer_state_open(f));
    DTI_TRY(dti_state_contract(f, path, c, words[DTI_STATE_VERSION] == 1));
    DTI_TRY(dti_sharing_match(t, path, c));
    DTI_TRY(dti_state_check_words(t, path, words));
    DTI_TRY(dti_state_match(f, path, c));
    if (words[DTI_STATE_VERSION] == DTI_STATE_LOCAL)
        DTI_TRY(dti_rounds_match(t, path, c, words));
    return f->store->allow_nonfinite ? DT_OK : dti_state_finite(c, path, "dt_trainer_desc");
}

static void dti_plateau_load(dt_trainer *t, const uint64_t *words) {
    double scale;
    dti_plateau_reset(t);
    memcpy(&scale, &words[DTI_STATE_SCALE], 8);
    if (words[DTI_STATE_VERSION] < DTI_STATE_PLATEAU || !dti_trainer_has_plateau(t) ||
        !(scale >= 0.0 && scale <= 1.0))
        return;
    memcpy(&t->plateau.best, &words[DTI_STATE_BEST], 8);
    t->plateau.scale = scale;
    t->plateau.bad = words[DTI_STATE_BAD];
    t->plateau.cooldown = words[DTI_STATE_COOLDOWN];
}

/* ---- the values of devices that each have a part */

static dt_result dti_state_walk_read(void *user, uint32_t param, uint32_t array, uint64_t at,
                                     uint64_t n, float *values) {
    const dti_state_walk *w = user;
    const char *name = w->f->items[dti_state_item_of(w->f, param, array)].name;
    return dti_weights_floats(w->c, dti_checkpoint_index(w->c, name), at, n, values);
}

typedef struct dti_state_room { /* taken before anything changes, on all ranks */
    char *piece;
    uint32_t *counts;
    dti_rounds_state local;
} dti_state_room;

static void dti_state_room_free(dt_trainer *t, dti_state_room *room) {
    dti_rounds_state_free(t, &room->local);
    DTI_FREE(t->base, room->piece, room->counts);
}

static dt_result dti_state_room_make(dt_trainer *t, dti_state_room *room) {
    const uint32_t params = t->par.replicas[0].store->layout.param_count;
    room->counts = dti_alloc_array(t->base, params + 1u, sizeof *room->counts);
    dt_result result = dti_agree_result(&t->par, room->counts ? DT_OK : DT_ERROR_MEMORY);
    if (!result)
        result = dti_agree_piece(&t->par, &room->piece);
    if (!result && dti_parallel_is_local(&t->par))
        result = dti_agree_result(&t->par, dti_rounds_room(t, &room->local));
    return result;
}

/* A checkpoint in parts is one that all ranks see, and read by themselves: *c of others too. Each
 * checks some of the parts. */
static dt_result dti_state_open_all(dt_trainer *t, dti_checkpoint **c) {
    char path[DTI_CHECKPOINT_PATH] = ""; /* and rank 0's .allow_nonfinite */
    char *any = &path[sizeof path - 1];
    const dti_mesh *mesh = &t->par.mesh;
    const char *parts = dti_checkpoint_parts_path(*c);
    const size_t size = parts ? strlen(parts) : 0;
    dt_result result = DT_OK;
    if (size >= sizeof path - 1)
        result = dti_fail(t->base, DT_ERROR_INVALID,
                          "the path %.100s... has %zu bytes; it must have at most %d", parts, size,
                          DTI_CHECKPOINT_PATH - 2);
    else if (size) {
        memcpy(path, parts, size);
        *any = t->par.replicas[0].store->allow_nonfinite;
    }
    DTI_TRY(dti_ranks_tell(&t->par, path, sizeof path, DT_U8));
    if (path[0] && !*c) {
        t->base->io_how = DTI_CHECKPOINT_SEEN;
        result = dti_checkpoint_open_share(t->base, path, mesh->rank, mesh->world, c);
        t->base->io_how = NULL;
        if (!result && !*any)
            result = dti_state_finite(*c, path, "dt_trainer_desc");
    }
    return dti_agree_result(&t->par, result);
}

/* The items, on ranks that have not checked the file. */
static dt_result dti_state_list(dt_trainer *t, dti_state_file *f) {
    dti_state_close(f);
    *f = dti_trainer_state(t, f->words, f->words[DTI_STATE_VERSION]);
    return dti_trainer_state_open(f);
}

/* A failure in the middle leaves values of two states: the job is over. */
static dt_result dti_state_values_apart(dt_trainer *t, const dti_checkpoint *c, dti_state_file *f,
                                        const dti_state_room *room) {
    dti_parallel *par = &t->par;
    const dt_store *s = par->replicas[0].store;
    const bool all = dti_checkpoint_parts_path(c) != NULL;
    DTI_TRY(dti_agree_result(par, all && par->mesh.rank ? dti_state_list(t, f) : DT_OK));
    dti_state_walk w = {.f = f, .c = c};
    const dti_values_file file = {
        .user = &w, .move = dti_state_walk_read, .rank = all ? dti_values_rank_all : NULL};
    dt_result result =
        dti_agree_result(par, par->mesh.rank == 0 ? dti_state_counts(f, c, room->counts) : DT_OK);
    if (!result)
        result = dti_ranks_tell(par, room->counts, s->layout.param_count, DT_I32);
    if (!result)
        result = dti_agree_result(par, dti_values_load(par, &file, 1 + s->moments, room->piece));
    if (!result)
        result = dti_agree_result(par, dti_values_counted(par, room->counts));
    if (!result && par->kept)
        result = dti_full_gather(par);
    par->lost = par->lost || result;
    return result;
}

static dt_result dti_state_values(dt_trainer *t, const dti_checkpoint *c, dti_state_file *f,
                                  const dti_state_room *room) {
    dti_parallel *par = &t->par;
    par->replicas[0].store->steps = f->words[DTI_STATE_STEP];
    if (dti_values_are_apart(par))
        return dti_state_values_apart(t, c, f, room);
    DTI_TRY(dti_agree_result(par, par->mesh.rank == 0 ? dti_state_put(f, c) : DT_OK));
    return dti_agree_state(par, room->piece);
}

/* Its place has changed, whatever `result` of the values is. */
static dt_result dti_state_place(dt_trainer *t, const dti_checkpoint *c, const dti_state_file *f,
                                 dt_result result) {
    t->epoch = f->words[DTI_STATE_EPOCH];
    t->index = f->words[DTI_STATE_INDEX];
    t->saved = t->tried = f->words[DTI_STATE_STEP];
    dti_plateau_load(t, f->words);
    if (!result)
        result = dti_watched_load(t, c);
    if (!result)
        result = dti_sharing_load(t, c);
    const dt_result own = dti_trainer_seek(t);
    return result ? result : dti_agree_result(&t->par, own);
}

/* Rank 0 has checked; all learn where to go on, make the programs for its batch slices, and get the
 * values. */
static dt_result dti_state_spread(dt_trainer *t, const dti_checkpoint *c, dti_state_file *f) {
    dti_parallel *par = &t->par;
    dti_state_room room = {0};
    const bool is_local = dti_parallel_is_local(par);
    dt_result result = dti_ranks_tell(&t->par, f->words, DTI_STATE_WORDS, DT_I64);
    if (f->words[DTI_STATE_BATCH_SLICES] != par->mesh.data)
        t->bounded = false; /* measured shares are of one batch slice a replica */
    if (!result)
        result = dti_state_room_make(t, &room);
    if (!result && !is_local && f->words[DTI_STATE_BATCH_SLICES] != par->job.batch_slices)
        result = dti_sharing_build(t, (uint32_t)f->words[DTI_STATE_BATCH_SLICES]);
    const bool made = !result;
    if (!result)
        result = dti_state_values(t, c, f, &room);
    if (!result && is_local)
        result = dti_agree_result(par, dti_rounds_spread(t, &room.local, c, f));
    dti_state_room_free(t, &room);
    return made ? dti_state_place(t, c, f, result) : result;
}

static dt_result dti_state_load(dt_trainer *t, const char *path) {
    dti_trainer_drain(t);
    dti_checkpoint *c = NULL;
    uint64_t words[DTI_STATE_WORDS] = {0};
    dti_state_file f = {.base = t->base, .words = words, .model = dti_text_open(t->base)};
    dt_result result = DT_OK;
    if (t->par.mesh.rank == 0) {
        result = path ? dti_checkpoint_open_share(t->base, path, 0, t->par.mesh.world, &c)
                      : dti_fail(t->base, DT_ERROR_INVALID, "the path to load from is NULL");
        if (!result)
            result = dti_state_check(t, path, c, &f);
    }
    result = dti_agree_result(&t->par, result);
    if (!result)
        result = dti_state_open_all(t, &c);
    if (!result)
        result = dti_state_spread(t, c, &f);
    dt_safetensors_close(c);
    dti_state_close(&f);
    return result;
}

DTI_PUBLIC(dt_trainer_load, (dt_trainer * t, const char *path), t,
           DTI_OF(dt_trainer) | DTI_WITH | DTI_UNUSED, (t, path)) {
    DTI_TRY(dti_trainer_goes_on(t));
    DTI_TRY(dti_sharing_is_first(t, "loaded"));
    DTI_TRY(dti_worker_has_no(t, "state to load"));
    DTI_TRY(dti_checkpoint_settle(t));
    return dti_state_load(t, path);
}

static dti_checkpoint_check_fn *dti_state_check_of(const dt_trainer *t) {
    return t->desc.checkpoint.allow_nonfinite ? NULL : dti_state_finite;
}

/* Says which other file is good, where there is one. */
static dt_result dti_resume_offer(dt_trainer *t, dt_result result, const char *bad) {
    char good[DTI_CHECKPOINT_PATH];
    if (result != DT_ERROR_FORMAT || t->par.mesh.rank != 0)
        return result;
    const dti_error_text bads = dti_error_of(&t->par);
    if (dti_checkpoint_folder_good(t->base, t->desc.checkpoint.folder, bad, false,
                                   dti_state_check_of(t), good))
        return dti_fail(t->base, result,
                        "%s; the newest good checkpoint is %s; call dt_trainer_load with it",
                        bads.text, good);
    return dti_fail(t->base, result, "%s; the folder has no good checkpoint", bads.text);
}

/* Success, but from another file than the newest. The text is the log's and dt_ctx_error()'s. */
static void dti_resume_tell(dt_trainer *t, const char *text) {
    snprintf(t->base->error, sizeof t->base->error,
             "%.800s; training continues from the newest good checkpoint before it, of step %llu",
             text, (unsigned long long)t->saved);
    dti_log(t->base, DT_LOG_WARNING, "%s", t->base->error);
}

/* `path` is damaged: the good one before it is taken. All ranks know how the last one went. */
static dt_result dti_resume_back(dt_trainer *t, char path[DTI_CHECKPOINT_PATH]) {
    char good[DTI_CHECKPOINT_PATH] = "";
    const dti_error_text error = dti_error_of(&t->par);
    dt_result result = DT_ERROR_FORMAT;
    while (result == DT_ERROR_FORMAT) {
        int64_t any = t->par.mesh.rank == 0 &&
                      dti_checkpoint_folder_good(t->base, t->desc.checkpoint.folder, path, true,
                                                 dti_state_check_of(t), good);
        result = dti_ranks_tell(&t->par, &any, 1, DT_I64);
        if (t->par.lost || !any)
            return result ? result : DT_ERROR_FORMAT;
        memcpy(path, good, sizeof good);
        result = dti_state_load(t, path);
    }
    if (!result)
        dti_resume_tell(t, error.text);
    return result;
}

DTI_PUBLIC(dt_trainer_resume, (dt_trainer * t, bool *found), t,
           DTI_OF(dt_trainer) | DTI_WITH | DTI_UNUSED, (t, found)) {
    char path[DTI_CHECKPOINT_PATH] = "";
    bool there = false;
    dt_result result = DT_OK;
    if (found)
        *found = false;
    DTI_TRY(dti_trainer_goes_on(t));
    DTI_TRY(dti_sharing_is_first(t, "loaded"));
    if (!t->desc.checkpoint.folder)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".checkpoint.folder is not set; set it to the folder for checkpoints");
    DTI_TRY(dti_checkpoint_settle(t));
    if (t->par.mesh.rank == 0)
        result = dti_checkpoint_folder_newest(t->base, t->desc.checkpoint.folder, path, &there);
    result = dti_agree_result(&t->par, result);
    int64_t any = there;
    if (!result)
        result = dti_ranks_tell(&t->par, &any, 1, DT_I64);
    if (result || !any)
        return result;
    if (found)
        *found = true;
    result = dti_state_load(t, path);
    if (result == DT_ERROR_FORMAT && !t->desc.checkpoint.strict)
        result = dti_resume_back(t, path);
    if (!result && path[0])
        dti_log(t->base, DT_LOG_INFO, "%s: training resumes after step %llu, in epoch %llu", path,
                (unsigned long long)t->par.replicas[0].store->steps, (unsigned long long)t->epoch);
    return result ? dti_resume_offer(t, result, path) : DT_OK;
}
