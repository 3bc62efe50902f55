/* All values of a squad's model, on the host: parts lie in the parameter as their groups say, all
 * else is the first member's. A parameter at a time: weights, count of steps, moments, average. */

/* Between a parameter, [outer, axis, inner], and the part that member m has: gather: from it. */
static void dti_squad_part_copy(const dti_squad *squad, const dti_squad_part *p, uint32_t m,
                                bool gather) {
    float *part = squad->part;
    int64_t axis = 0;
    for (int i = 0; i < DTI_PARTED_GROUPS; i++)
        axis += p->of.group[i];
    for (int64_t o = 0; o < p->outer; o++) {
        float *whole = squad->whole + o * axis * p->inner;
        for (int i = 0; i < DTI_PARTED_GROUPS; i++) {
            const int64_t run = p->of.group[i] / squad->size * p->inner;
            float *at = whole + m * run;
            memcpy(gather ? at : part, gather ? part : at, (size_t)run * sizeof *part);
            part += run;
            whole += p->of.group[i] * p->inner;
        }
    }
}

typedef struct dti_squad_array { /* which values of a parameter */
    dti_arena arena;
    uint32_t moment; /* of the state */
} dti_squad_array;

static uint64_t dti_squad_at(const dt_store *s, const dti_squad_array *a, uint32_t param) {
    const uint64_t at = s->layout.params[param].offset;
    if (a->arena == DTI_ARENA_PARAM)
        return dti_arena_bytes(at);
    return DTI_WORD_BYTES * (dti_state_moment_offset(&s->layout, a->moment) + at);
}

static dt_result dti_squad_move_array(dti_parallel *par, const dti_squad_array *a, uint32_t param,
                                      bool gather) {
    dti_squad *squad = par->squad;
    dt_store *all = par->replicas[0].store;
    const dti_backend *host = all->device->backend;
    const dti_squad_part *p = &squad->parts[param];
    const bool parts = p->of.axis >= 0;
    const uint64_t at = dti_squad_at(all, a, param),
                   bytes = dti_arena_bytes(all->layout.params[param].elements);
    dt_result result =
        gather ? DT_OK : host->memory_read(all->memories[a->arena], at, squad->whole, bytes);
    for (uint32_t m = 0; m < squad->size && !result && (parts || !gather || m == 0); m++) {
        const dt_store *s = squad->members[m].store;
        const dti_backend *b = s->device->backend;
        const uint64_t own = dti_squad_at(s, a, param), size = parts ? bytes / squad->size : bytes;
        float *data = parts ? squad->part : squad->whole;
        if (!gather && parts)
            dti_squad_part_copy(squad, p, m, false);
        result = gather ? b->memory_read(s->memories[a->arena], own, data, size)
                        : b->memory_write(s->memories[a->arena], own, data, size);
        if (gather && parts && !result)
            dti_squad_part_copy(squad, p, m, true);
    }
    if (gather && !result)
        result = host->memory_write(all->memories[a->arena], at, squad->whole, bytes);
    return result;
}

static uint64_t dti_squad_count_at(const dt_store *s, uint32_t param) {
    return DTI_WORD_BYTES * (dti_state_t_offset(&s->layout) + param);
}

static dt_result dti_squad_move_count(dt_store *from, dt_store *to, uint32_t param) {
    uint32_t count;
    dt_result result = from->device->backend->memory_read(
        from->memories[DTI_ARENA_STATE], dti_squad_count_at(from, param), &count, sizeof count);
    if (!result)
        result = to->device->backend->memory_write(
            to->memories[DTI_ARENA_STATE], dti_squad_count_at(to, param), &count, sizeof count);
    to->kept[param].averaged = from->kept[param].averaged;
    to->kept[param].from = from->kept[param].from;
    return result;
}

static dt_result dti_squad_move(dti_parallel *par, bool gather) {
    dti_squad *squad = par->squad;
    dt_store *all = par->replicas[0].store;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < all->layout.param_count && !result; i++) {
        dti_squad_array a = {.arena = DTI_ARENA_PARAM};
        result = dti_squad_move_array(par, &a, i, gather);
        a.arena = DTI_ARENA_STATE;
        for (a.moment = 0; a.moment < all->moments && !result; a.moment++)
            result = dti_squad_move_array(par, &a, i, gather);
        for (uint32_t m = 0; m < (gather ? 1 : squad->size) && !result; m++) {
            dt_store *own = squad->members[m].store;
            result = dti_squad_move_count(gather ? own : all, gather ? all : own, i);
        }
    }
    return result;
}

static dt_result dti_squad_scatter(dti_parallel *par) {
    dti_squad *squad = par->squad;
    dt_result result = dti_squad_move(par, false);
    for (uint32_t m = 0; m < squad->size && !result; m++) {
        dti_squad_member *member = &squad->members[m];
        member->store->steps = par->replicas[0].store->steps;
        dti_store_unbound(member->store);
        result = dti_statistics_load(&member->statistics, member->store);
    }
    squad->ahead = false;
    return result;
}

static dt_result dti_squad_gather(dti_parallel *par) {
    if (!par->squad || !par->squad->ahead)
        return DT_OK;
    dt_result result = dti_squad_move(par, true);
    if (result)
        return result;
    dti_store_unbound(par->replicas[0].store);
    par->squad->ahead = false;
    return DT_OK;
}
