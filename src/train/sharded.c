/* Sharded checkpoints (.checkpoint.sharded): every rank writes the tensors of which it has most,
 * into its own file of one folder. This file owns which rank writes which tensor, and the order of
 * writing. First rank 0 names the temporary folder, then ranks write their parts, then rank 0
 * writes the index (checkpoint_parts.c). */

#define DTI_SHARDED_SEEN_NS UINT64_C(10000000000) /* a part that is written must be seen by then */

/* Ranks that have the same take turns; where all have all, by bytes. */
static void dti_sharded_assign(const dti_shard_save *s, uint64_t *bytes) {
    const dti_parallel *par = &s->t->par;
    const bool apart = dti_values_are_apart(par);
    const uint32_t params = s->f->store->layout.param_count, ranks = par->mesh.world;
    for (uint32_t i = 0; i < (uint32_t)s->f->tensors; i++) {
        uint32_t least = 0;
        for (uint32_t r = 1; r < ranks; r++)
            least = bytes[r] < bytes[least] ? r : least;
        s->rank_of[i] =
            apart ? dti_values_most(par, i % params, dti_state_array(s->f, i), i) : least;
        bytes[s->rank_of[i]] += s->f->items[i].bytes;
    }
}

static dt_result dti_sharded_list(dti_shard_save *s) {
    dt_trainer *t = s->t;
    const size_t count = (size_t)s->f->count;
    uint64_t *bytes = dti_alloc_array(t->base, t->par.mesh.world, sizeof *bytes);
    s->rank_of = dti_alloc_array(t->base, count + 1, sizeof *s->rank_of);
    s->own = dti_alloc_array(t->base, count + 1, sizeof *s->own);
    s->items = dti_alloc_array(t->base, count + 1, sizeof *s->items);
    t->parts = t->parts ? t->parts : dti_alloc(t->base, sizeof *t->parts);
    const bool room = bytes && s->rank_of && s->own && s->items && t->parts;
    if (room)
        dti_sharded_assign(s, bytes);
    dti_free(t->base, bytes);
    DTI_HAVE(room);
    for (int i = 0; i < (int)count; i++) {
        if (s->rank_of[i] != t->par.mesh.rank)
            continue;
        s->finite += i < dti_state_warned(s->f);
        s->own[s->count] = i;
        s->items[s->count++] = s->f->items[i];
    }
    s->f->rank_of = s->rank_of;
    s->f->own = s->own;
    return DT_OK;
}

static dt_result dti_sharded_open(dti_shard_save *s, const char *path, bool folder,
                                  const uint64_t name[2]) {
    const dti_mesh *mesh = &s->t->par.mesh;
    dti_checkpoint_folder_step step = {.parts = true};
    if (!folder)
        return dti_checkpoint_parts_open(s->t->base, s->t->parts, path, name, mesh->rank,
                                         mesh->world);
    snprintf(step.folder, sizeof step.folder, "%s", path);
    step.step = s->f->words[DTI_STATE_STEP];
    step.keep = dti_state_keep(s->t, path, true);
    return dti_checkpoint_folder_parts(s->t->base, s->t->parts, &step, name, mesh->rank,
                                       mesh->world);
}

/* Rank 0's temporary folder. base: whose memory the list is. */
static dt_result dti_sharded_make(dti_shard_save *s, dti_base *base, const char *folder) {
    if (folder)
        DTI_TRY(dti_checkpoint_folder_start(s->t->base, folder));
    const dt_result result =
        dti_checkpoint_parts_make(base, s->t->parts, s->f->items, s->f->count, s->rank_of);
    s->begun = true;
    return result && base != s->t->base ? dti_fail(s->t->base, result, "%s", base->error) : result;
}

static dt_result dti_sharded_begin(dti_shard_save *s, const char *path, bool folder, dt_result own,
                                   dti_checkpoint_file **out) {
    dt_trainer *t = s->t;
    dti_base *base = t->base;
    uint64_t name[2];
    dti_checkpoint_parts_name(name);
    s->f->copies = folder && t->desc.checkpoint.background;
    dt_result result = own ? own : dti_trainer_state_open(s->f);
    if (!result)
        result = dti_sharded_list(s);
    DTI_TRY(dti_agree_result(&t->par, result));
    DTI_TRY(dti_ranks_tell(&t->par, name, 2, DT_I64));
    result = dti_sharded_open(s, path, folder, name);
    if (!result && s->f->copies) {
        result = dti_checkpoint_copy_begin(t->base, &t->copy, path, 0, 0, s->items, s->count,
                                           s->finite, out);
        base = result ? base : dti_checkpoint_copy_parts(t->copy, t->parts);
    }
    if (!result && t->par.mesh.rank == 0)
        result = dti_sharded_make(s, base, folder ? path : NULL);
    result = dti_agree_result(&t->par, result);
    return result || s->f->copies
               ? result
               : dti_checkpoint_part_begin(t->base, t->parts, s->items, s->count, out);
}

/* The result of the thread, if one was started here, whatever failed elsewhere. */
static dt_result dti_sharded_give_up(dti_shard_save *s, dt_result result) {
    dt_trainer *t = s->t;
    const dti_error_text error = dti_error_of(&t->par);
    atomic_store(&t->parts->until, 1);
    dti_checkpoint_copy_wait(t->base, t->copy);
    dti_error_back(&t->par, &error);
    return result;
}

static dt_result dti_sharded_end(dti_shard_save *s, dt_result own) {
    dt_trainer *t = s->t;
    dt_result result = dti_agree_result(&t->par, own);
    if (result && s->f->copies && t->copy && t->parts)
        result = dti_sharded_give_up(s, result);
    if (s->begun && (result || !s->f->copies)) {
        dti_base *base = s->f->copies ? dti_checkpoint_copy_parts(t->copy, t->parts) : t->base;
        atomic_store(&t->parts->until, dti_now_ns() + DTI_SHARDED_SEEN_NS);
        result = dti_checkpoint_parts_end(base, t->parts, result);
    }
    DTI_FREE(t->base, s->rank_of, s->own, s->items);
    return result;
}
