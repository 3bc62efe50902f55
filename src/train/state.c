/* The state of a training job in a file: parameters, buffers, moments, step counts, and the
 * position in the data. Nothing in it depends on devices or ranks. Rank 0 reads and writes, and
 * sends the result to the others. */

/* X(name): words of the tensor "dtrain.state", u64 each, in this order. */
#define DTI_STATE_LIST(X)                                                                          \
    X(VERSION)                                                                                     \
    X(STEP)                                                                                        \
    X(EPOCH)                                                                                       \
    X(INDEX)                                                                                       \
    X(SEED)                                                                                        \
    X(ROWS)                                                                                        \
    X(BATCH)                                                                                       \
    X(PARTS)                                                                                       \
    X(BATCH_SLICES)                                                                                \
    X(TAIL)                                                                                        \
    X(OPTIM)                                                                                       \
    X(MOMENTS)                                                                                     \
    X(SHUFFLED)                                                                                    \
    X(BEST) /* from here on only with a plateau: version 3 */                                      \
    X(SCALE)                                                                                       \
    X(BAD)                                                                                         \
    X(COOLDOWN)                                                                                    \
    X(REPLICAS) /* from here on only with local steps: version 4 */                                \
    X(ROUND)

enum {
#define DTI_X(id) DTI_STATE_##id,
    DTI_STATE_LIST(DTI_X)
#undef DTI_X
        DTI_STATE_WORDS
};

/* The newest version, and the one that is written where there is no plateau. 1 had numbers of nodes
 * and hashes of attributes in its text. */
#define DTI_STATE_NOW DTI_STATE_LOCAL
#define DTI_STATE_LOCAL 4
#define DTI_STATE_PLATEAU 3
#define DTI_STATE_USUAL 2

#define DTI_STATE_LISTED 256 /* checkpoints in a folder; if more are needed, all stay */

static uint32_t dti_state_count(uint64_t version) {
    return version == DTI_STATE_LOCAL     ? DTI_STATE_WORDS
           : version == DTI_STATE_PLATEAU ? DTI_STATE_REPLICAS
                                          : DTI_STATE_BEST;
}

static uint64_t dti_state_version(const dt_trainer *t) {
    return dti_parallel_is_local(&t->par) ? DTI_STATE_LOCAL
           : dti_trainer_has_plateau(t)   ? DTI_STATE_PLATEAU
                                          : DTI_STATE_USUAL;
}

/* The default is an optimizer too. */
static uint64_t dti_state_kind(uint64_t kind) {
    return kind == DT_OPTIM_DEFAULT ? DTI_OPTIM_STANDARD : kind;
}

static uint64_t dti_state_shuffled(const dt_trainer_desc *d) {
    const uint32_t buffer = d->data.stream && !d->no_shuffle ? d->data.stream->shuffle : 0;
    return d->data.stream ? 2 + (uint64_t)DTI_MAX(buffer, 1u) : !d->no_shuffle;
}

static void dti_state_words(const dt_trainer *t, uint64_t *w) {
    const dti_parallel *par = &t->par;
    w[DTI_STATE_VERSION] = dti_state_version(t);
    w[DTI_STATE_STEP] = par->replicas[0].store->steps;
    w[DTI_STATE_EPOCH] = t->epoch;
    w[DTI_STATE_INDEX] = t->index;
    w[DTI_STATE_SEED] = t->desc.seed;
    w[DTI_STATE_ROWS] = t->desc.data.rows;
    w[DTI_STATE_BATCH] = par->desc.batch;
    w[DTI_STATE_PARTS] = par->desc.parts;
    w[DTI_STATE_BATCH_SLICES] = par->job.batch_slices;
    w[DTI_STATE_TAIL] = (uint64_t)t->desc.tail;
    w[DTI_STATE_OPTIM] = dti_state_kind((uint64_t)par->desc.optim.kind);
    w[DTI_STATE_MOMENTS] =
        dti_state_moments(par->replicas[0].store) + (par->desc.optim.average.kind ? 256u : 0u);
    w[DTI_STATE_SHUFFLED] = dti_state_shuffled(&t->desc);
    memcpy(&w[DTI_STATE_BEST], &t->plateau.best, 8);
    memcpy(&w[DTI_STATE_SCALE], &t->plateau.scale, 8);
    w[DTI_STATE_BAD] = t->plateau.bad;
    w[DTI_STATE_COOLDOWN] = t->plateau.cooldown;
    w[DTI_STATE_REPLICAS] = par->lost ? 1 : par->job.replicas; /* a job that lost a rank has only
                                                                  its own state */
    w[DTI_STATE_ROUND] = par->round.count;
}

typedef struct dti_rounds_state { /* see round_state.c */
    uint64_t bytes;               /* of a replica's packed state */
    uint32_t replicas, extra_count;
    float *outer; /* the momentum, packed */
    char *packed; /* states to be written, of replicas 1, 2, ...; or room for one */
    dti_state_extra *extras;
} dti_rounds_state;

/* ---- sharded.c */
typedef struct dti_shard_save {
    dt_trainer *t;
    dti_state_file *f;
    uint32_t *rank_of;
    int *own;
    dti_safetensors_item *items; /* this rank's, of f */
    int count, finite;
    bool begun; /* rank 0 has made the temporary folder */
} dti_shard_save;
/* Writes this rank's part, on all ranks together. own: the result here so far. f's items are
 * listed. */
static dt_result dti_sharded_begin(dti_shard_save *s, const char *path, bool folder, dt_result own,
                                   dti_checkpoint_file **out);
/* Once the parts are written, or are given to threads. */
static dt_result dti_sharded_end(dti_shard_save *s, dt_result own);

/* ---- round_state.c */
/* Collects what rank 0 needs to write, on all ranks together. Free it, also after an error. */
static dt_result dti_rounds_collect(dt_trainer *t, dti_rounds_state *l);
static void dti_rounds_state_free(dt_trainer *t, dti_rounds_state *l);
static dt_result dti_rounds_match(const dt_trainer *t, const char *path, const dti_checkpoint *c,
                                  const uint64_t *words);
/* Memory for reading; then sends the momentum and moments to their ranks. */
static dt_result dti_rounds_room(dt_trainer *t, dti_rounds_state *l);
static dt_result dti_rounds_spread(dt_trainer *t, const dti_rounds_state *l,
                                   const dti_checkpoint *c, const dti_state_file *f);

/* The tensors and the text of a file of version `version`; `words` has room for them. */
static dti_state_file dti_trainer_state(const dt_trainer *t, uint64_t *words, uint64_t version) {
    dti_state_file f = {.store = t->par.replicas[0].store, .base = t->base, .words = words};
    f.model = dti_text_open(t->base);
    dti_model_text_params(t->graph, &f.model);
    dti_model_text_ops(t->graph, t->nodes, version > 1, &f.model);
    return f;
}

static dt_result dti_trainer_state_open(dti_state_file *f) {
    return dti_state_open(f, dti_state_moments(f->store), "dtrain.state",
                          dti_state_count(f->words[DTI_STATE_VERSION]));
}

/* ---- saving */

/* The number of newest files to keep. A server also keeps those that other servers may need. */
static int dti_state_keep(const dt_trainer *t, const char *path, bool folder) {
    uint64_t steps[DTI_STATE_LISTED];
    const int keep = t->desc.checkpoint.keep;
    int needed = 0;
    if (!folder || !t->keep_from)
        return keep;
    const int count = dti_checkpoint_folder_steps(path, UINT64_MAX, steps, DTI_STATE_LISTED);
    while (needed < count && steps[needed] >= *t->keep_from)
        needed++;
    return needed == DTI_STATE_LISTED ? INT_MAX : DTI_MAX(keep, needed + 1);
}

static dt_result dti_state_begin(dt_trainer *t, dti_state_file *f, const char *path, bool folder,
                                 dti_checkpoint_file **out) {
    const uint64_t step = f->words[DTI_STATE_STEP];
    const int keep = dti_state_keep(t, path, folder);
    f->copies = folder && t->desc.checkpoint.background;
    DTI_TRY(dti_trainer_state_open(f));
    return f->copies ? dti_checkpoint_copy_begin(f->base, &t->copy, path, step, keep, f->items,
                                                 f->count, dti_state_warned(f), out)
           : folder
               ? dti_checkpoint_folder_begin(f->base, path, step, keep, f->items, f->count, out)
               : dti_checkpoint_begin(f->base, path, f->items, f->count, out);
}

static dt_result dti_state_read_own(void *user, int item, uint64_t offset, void *to, size_t bytes) {
    dti_state_file *f = user;
    const int all = f->own ? f->own[item] : item;
    return f->copies ? dti_state_copy(f, all, offset, to, bytes)
                     : dti_state_read(f, all, offset, to, bytes);
}

/* The rest of it. */
static dt_result dti_state_fill(dti_state_file *f, dti_checkpoint_file *file) {
    return dti_checkpoint_fill(file, dti_state_read_own, f);
}

/* A job that lost a rank has only its own state. */
static bool dti_state_is_sharded(const dt_trainer *t) {
    return t->desc.checkpoint.sharded && !t->par.lost;
}

/* ---- devices that each have a part: the walk of values.h, with rank 0's file */

typedef struct dti_state_walk {
    dti_state_file *f;
    uint32_t first;            /* tensor of the first array */
    const dti_checkpoint *c;   /* a walk from it; else NULL */
    dti_checkpoint_file *file; /* a walk to it, on ranks that write; else NULL */
} dti_state_walk;

static uint32_t dti_state_item_of(const dti_state_file *f, uint32_t param, uint32_t array) {
    return array * f->store->layout.param_count + param;
}

static dt_result dti_state_walk_write(void *user, uint32_t param, uint32_t array, uint64_t at,
                                      uint64_t n, float *values) {
    const dti_state_walk *w = user;
    return dti_state_push(w->f, w->file, (int)(w->first + dti_state_item_of(w->f, param, array)),
                          at, n, values);
}

static uint32_t dti_state_walk_rank(void *user, uint32_t param, uint32_t array) {
    const dti_state_walk *w = user;
    const uint32_t item = w->first + dti_state_item_of(w->f, param, array);
    return w->f->rank_of ? w->f->rank_of[item] : 0;
}

/* file: NULL on ranks that do not write. own: the result here. */
static dt_result dti_state_write_apart(dt_trainer *t, dti_state_file *f, dti_checkpoint_file *file,
                                       dt_result own) {
    dti_parallel *par = &t->par;
    dti_state_walk w = {.f = f, .file = file};
    dti_values_file values = {
        .user = &w, .move = dti_state_walk_write, .rank = dti_state_walk_rank};
    const size_t params = f->store->layout.param_count;
    uint32_t *counts = dti_alloc_array(t->base, params + 1, sizeof *counts);
    char *piece = dti_alloc(t->base, DTI_AGREE_PIECE);
    dt_result result = dti_agree_result(par, own ? own : counts && piece ? DT_OK : DT_ERROR_MEMORY);
    if (!result)
        result = dti_values_counts(par, counts);
    if (!result)
        result = dti_values_save(par, &values, 1 + f->store->moments, piece);
    w.first = dti_state_item_of(f, 0, 1 + f->store->moments);
    values.snapshot = t->watched.weights;
    if (!result && f->best)
        result = dti_values_save(par, &values, 1, piece);
    f->counts = counts;
    if (!result && file)
        result = dti_state_fill(f, file);
    f->counts = NULL;
    DTI_FREE(t->base, counts, piece);
    return result;
}

/* `writes`: this rank does. */
static dt_result dti_state_write(dt_trainer *t, const char *path, bool folder,
                                 const dti_rounds_state *local, bool writes) {
    uint64_t words[DTI_STATE_WORDS], watched[DTI_WATCHED_WORDS], *others = NULL;
    dti_checkpoint_file *file = NULL;
    dti_state_extra *extras =
        dti_alloc_array(t->base, (size_t)local->extra_count + 2, sizeof *extras);
    dti_state_file f = dti_trainer_state(t, words, DTI_STATE_USUAL);
    dti_shard_save sharded = {.t = t, .f = &f};
    const bool parts = dti_state_is_sharded(t);
    dt_result result = extras ? DT_OK : DT_ERROR_MEMORY;
    dti_watched_weights(t, &f);
    if (!result && (writes || parts)) {
        for (uint32_t i = 0; i < local->extra_count; i++)
            extras[i] = local->extras[i];
        f.extras = extras;
        f.extra_count =
            local->extra_count + dti_watched_put(t, watched, extras + local->extra_count);
        dti_state_words(t, words);
        result = dti_sharing_put(t, extras + f.extra_count, &others);
        f.extra_count += others != NULL;
    }
    if (parts)
        result = dti_sharded_begin(&sharded, path, folder, result, &file);
    else if (!result && writes)
        result = dti_state_begin(t, &f, path, folder, &file);
    if (dti_values_are_apart(&t->par))
        result = dti_state_write_apart(t, &f, file, result);
    else if (!result)
        result = dti_state_fill(&f, file);
    if (parts)
        result = dti_agree_result(&t->par, result);
    if (file)
        result = dti_checkpoint_end(file, result);
    if (parts)
        result = dti_sharded_end(&sharded, result);
    dti_state_close(&f);
    DTI_FREE(t->base, extras, others);
    return result;
}

/* A job that lost a rank does not inform the others. */
static dt_result dti_trainer_file(dt_trainer *t, const char *path, bool folder) {
    dti_parallel *par = &t->par;
    dti_rounds_state local = {0};
    DTI_TRY(dti_check_forked(t->base));
    DTI_TRY(dti_sharing_is_first(t, "saved"));
    DTI_TRY(dti_trainer_whole(t, "be saved"));
    DTI_TRY(dti_worker_has_no(t, "state to save"));
    dti_trainer_drain(t);
    const bool writes = par->mesh.rank == 0 || par->lost;
    dt_result result = dti_full_given(par);
    if (!result && (writes || dti_state_is_sharded(t)) && !path)
        result = dti_fail(t->base, DT_ERROR_INVALID, "dt_trainer_save: path is NULL");
    result = dti_agree_result(par, result);
    if (!result && dti_parallel_is_local(par))
        result = dti_rounds_collect(t, &local);
    if (!result && (writes || dti_values_are_apart(par) || dti_state_is_sharded(t)))
        result = dti_state_write(t, path, folder, &local, writes);
    dti_rounds_state_free(t, &local);
    return dti_agree_result(par, result);
}

DTI_PUBLIC(dt_trainer_save, (dt_trainer * t, const char *path), t, DTI_OF(dt_trainer) | DTI_WITH,
           (t, path)) {
    DTI_TRY(dti_check_forked(t->base));
    if (t->desc.checkpoint.sharded) /* a thread's parts are t's */
        DTI_TRY(dti_checkpoint_settle(t));
    return dti_trainer_file(t, path, false);
}
