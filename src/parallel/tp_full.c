/* All values of a tensor group's model, on the host: parts are placed as their marks say, all else
 * is the first tensor rank's. One parameter at a time: weights, step count, moments, average. */

static void dti_tp_part_copy(const dti_tp *tp, const dti_tp_part *p, uint32_t m, bool gather) {
    float *part = tp->part;
    int64_t axis = 0;
    for (int i = 0; i < DTI_PARTED_GROUPS; i++)
        axis += p->of.group[i];
    for (int64_t o = 0; o < p->outer; o++) {
        float *whole = tp->whole + o * axis * p->inner;
        for (int i = 0; i < DTI_PARTED_GROUPS; i++) {
            const int64_t run = p->of.group[i] / tp->size * p->inner;
            float *at = whole + m * run;
            memcpy(gather ? at : part, gather ? part : at, (size_t)run * sizeof *part);
            part += run;
            whole += p->of.group[i] * p->inner;
        }
    }
}

typedef struct dti_tp_array { /* which values of a parameter */
    dti_arena arena;
    uint32_t moment; /* of the state */
} dti_tp_array;

static uint64_t dti_tp_at(const dt_store *s, const dti_tp_array *a, uint32_t param) {
    const uint64_t at = s->layout.params[param].offset;
    if (a->arena == DTI_ARENA_PARAM)
        return dti_arena_bytes(at);
    return DTI_WORD_BYTES * (dti_state_moment_offset(&s->layout, a->moment) + at);
}

/* What tensor rank m of this process has, or gets: in `part`, or all in `whole`. */
static dt_result dti_tp_touch(const dti_tp *tp, const dti_tp_array *a, uint32_t param, uint32_t m,
                              bool gather) {
    const dt_store *s = tp->ranks[m].store;
    const dti_backend *b = s->device->backend;
    const uint64_t at = dti_tp_at(s, a, param);
    const size_t bytes = (size_t)dti_arena_bytes(s->layout.params[param].elements);
    float *data = tp->parts[param].of.axis >= 0 ? tp->part : tp->whole;
    return gather ? b->memory_read(s->memories[a->arena], at, data, bytes)
                  : b->memory_write(s->memories[a->arena], at, data, bytes);
}

/* The tensor group whose tensor ranks give their values: the first replica's; where the job has
 * ended, one that is here as a whole; NULL: there is none. */
static const dti_tp_group *dti_tp_full_group(const dti_parallel *par) {
    const dti_tp *tp = par->tp;
    for (uint32_t i = 0; i < tp->group_count; i++) {
        const bool all = tp->groups[i].count == tp->size;
        if (par->desc.comm && !par->lost ? tp->groups[i].replica == 0 : all)
            return &tp->groups[i];
    }
    return NULL;
}

/* From tensor ranks to `whole`, on all ranks together: those of the first tensor group read, and
 * tell others. What a device of one rank says does not keep the others from going on. */
static dt_result dti_tp_read(dti_parallel *par, const dti_tp_array *a, uint32_t param) {
    dti_tp *tp = par->tp;
    const uint64_t n = tp->ranks[0].store->layout.params[param].elements;
    const dti_tp_group *tp_group = dti_tp_full_group(par);
    const bool lost = par->lost;
    dt_result result = DT_OK;
    if (tp->parts[param].of.axis < 0) /* all have the same */
        return dti_tp_touch(tp, a, param, 0, true);
    for (uint32_t m = 0; m < tp->size && par->lost == lost; m++) {
        const dti_tp_rank *own = tp_group ? dti_tp_rank_of(tp, tp_group, m) : NULL;
        dt_result one = DT_OK;
        if (own)
            one = dti_tp_touch(tp, a, param, (uint32_t)(own - tp->ranks), true);
        if (par->desc.comm && !lost) {
            const int root = (int)dti_mesh_rank(&par->mesh, m);
            const dt_result told = dti_parallel_comm_failed(
                par, dt_comm_broadcast(par->desc.comm, tp->part, n, DT_F32, root));
            one = told ? told : one;
        }
        dti_tp_part_copy(tp, &tp->parts[param], m, true);
        result = result ? result : one;
    }
    return result;
}

static dt_result dti_tp_move_array(dti_parallel *par, const dti_tp_array *a, uint32_t param,
                                   bool gather) {
    dti_tp *tp = par->tp;
    dt_store *all = par->replicas[0].store;
    const dti_backend *host = all->device->backend;
    const uint64_t at = dti_tp_at(all, a, param),
                   bytes = dti_arena_bytes(all->layout.params[param].elements);
    if (gather) {
        const dt_result result = dti_tp_read(par, a, param);
        return result ? result : host->memory_write(all->memories[a->arena], at, tp->whole, bytes);
    }
    dt_result result = host->memory_read(all->memories[a->arena], at, tp->whole, bytes);
    for (uint32_t m = 0; m < tp->local && !result; m++) {
        if (tp->parts[param].of.axis >= 0)
            dti_tp_part_copy(tp, &tp->parts[param], tp->ranks[m].number, false);
        result = dti_tp_touch(tp, a, param, m, false);
    }
    return result;
}

static uint64_t dti_tp_count_at(const dt_store *s, uint32_t param) {
    return DTI_WORD_BYTES * (dti_state_t_offset(&s->layout) + param);
}

static dt_result dti_tp_move_count(dt_store *from, dt_store *to, uint32_t param) {
    uint32_t count;
    dt_result result = from->device->backend->memory_read(
        from->memories[DTI_ARENA_STATE], dti_tp_count_at(from, param), &count, sizeof count);
    if (!result)
        result = to->device->backend->memory_write(
            to->memories[DTI_ARENA_STATE], dti_tp_count_at(to, param), &count, sizeof count);
    to->kept[param].averaged = from->kept[param].averaged;
    to->kept[param].from = from->kept[param].from;
    return result;
}

/* Of one parameter; what goes between ranks goes in any case. */
static dt_result dti_tp_move_param(dti_parallel *par, uint32_t param, bool gather) {
    const dti_tp *tp = par->tp;
    dt_store *all = par->replicas[0].store;
    dti_tp_array a = {.arena = DTI_ARENA_PARAM};
    dt_result result = dti_tp_move_array(par, &a, param, gather);
    a.arena = DTI_ARENA_STATE;
    const bool lost = par->lost;
    for (a.moment = 0; a.moment < all->moments && par->lost == lost; a.moment++) {
        const dt_result one = dti_tp_move_array(par, &a, param, gather);
        result = result ? result : one;
    }
    for (uint32_t m = 0; m < (gather ? 1 : tp->local) && !result; m++) {
        dt_store *own = tp->ranks[m].store;
        result = dti_tp_move_count(gather ? own : all, gather ? all : own, param);
    }
    return result;
}

static dt_result dti_tp_move(dti_parallel *par, bool gather) {
    const bool lost = par->lost; /* before: a tensor group that is here has all */
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < par->replicas[0].store->layout.param_count && par->lost == lost; i++) {
        const dt_result one = dti_tp_move_param(par, i, gather);
        result = result ? result : one;
    }
    return result;
}

static dt_result dti_tp_scatter(dti_parallel *par) {
    dti_tp *tp = par->tp;
    dt_result result = dti_tp_move(par, false);
    for (uint32_t m = 0; m < tp->local && !result; m++) {
        dti_tp_rank *tp_rank = &tp->ranks[m];
        tp_rank->store->steps = par->replicas[0].store->steps;
        dti_store_unbound(tp_rank->store);
    }
    if (!result)
        result = dti_statistics_load(&tp->statistics, tp->ranks[0].store);
    return result;
}

static dt_result dti_tp_gather(dti_parallel *par) {
    if (par->desc.comm && par->lost && !dti_tp_full_group(par))
        return dti_fail(par->base, DT_ERROR_REVOKED,
                        "the job ended at step %llu, and other tensor ranks' parts are lost: "
                        "create a new trainer and go on from a checkpoint",
                        (unsigned long long)par->replicas[0].store->steps);
    /* what one tensor rank could not give none has */
    return dti_agree_result(par, dti_tp_move(par, true));
}
