/* All values of a squad's model, on the host: parts lie in the parameter as their groups say, all
 * else is the first member's. A parameter at a time: weights, count of steps, moments, average. */

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

/* What member m of this process has, or gets: in `part`, or all in `whole`. */
static dt_result dti_squad_touch(const dti_squad *squad, const dti_squad_array *a, uint32_t param,
                                 uint32_t m, bool gather) {
    const dt_store *s = squad->members[m].store;
    const dti_backend *b = s->device->backend;
    const uint64_t at = dti_squad_at(s, a, param);
    const size_t bytes = (size_t)dti_arena_bytes(s->layout.params[param].elements);
    float *data = squad->parts[param].of.axis >= 0 ? squad->part : squad->whole;
    return gather ? b->memory_read(s->memories[a->arena], at, data, bytes)
                  : b->memory_write(s->memories[a->arena], at, data, bytes);
}

/* The line whose members give their values: the first replica's; where the job has ended, one that
 * is here as a whole; NULL: there is none. */
static const dti_squad_line *dti_squad_whole_line(const dti_parallel *par) {
    const dti_squad *squad = par->squad;
    for (uint32_t i = 0; i < squad->line_count; i++) {
        const bool all = squad->lines[i].count == squad->size;
        if (par->desc.comm && !par->lost ? squad->lines[i].replica == 0 : all)
            return &squad->lines[i];
    }
    return NULL;
}

/* From members to `whole`, on all ranks together: those of the first line read, and tell others.
 * What a device of one rank says does not keep the others from going on. */
static dt_result dti_squad_read(dti_parallel *par, const dti_squad_array *a, uint32_t param) {
    dti_squad *squad = par->squad;
    const uint64_t n = squad->members[0].store->layout.params[param].elements;
    const dti_squad_line *line = dti_squad_whole_line(par);
    const bool lost = par->lost;
    dt_result result = DT_OK;
    if (squad->parts[param].of.axis < 0) /* all have the same */
        return dti_squad_touch(squad, a, param, 0, true);
    for (uint32_t m = 0; m < squad->size && par->lost == lost; m++) {
        const dti_squad_member *own = line ? dti_squad_member_of(squad, line, m) : NULL;
        dt_result one = DT_OK;
        if (own)
            one = dti_squad_touch(squad, a, param, (uint32_t)(own - squad->members), true);
        if (par->desc.comm && !lost) {
            const int root = (int)dti_grid_rank_of(par, m);
            const dt_result told = dti_parallel_comm_failed(
                par, dt_comm_broadcast(par->desc.comm, squad->part, n, DT_F32, root));
            one = told ? told : one;
        }
        dti_squad_part_copy(squad, &squad->parts[param], m, true);
        result = result ? result : one;
    }
    return result;
}

static dt_result dti_squad_move_array(dti_parallel *par, const dti_squad_array *a, uint32_t param,
                                      bool gather) {
    dti_squad *squad = par->squad;
    dt_store *all = par->replicas[0].store;
    const dti_backend *host = all->device->backend;
    const uint64_t at = dti_squad_at(all, a, param),
                   bytes = dti_arena_bytes(all->layout.params[param].elements);
    if (gather) {
        const dt_result result = dti_squad_read(par, a, param);
        return result ? result
                      : host->memory_write(all->memories[a->arena], at, squad->whole, bytes);
    }
    dt_result result = host->memory_read(all->memories[a->arena], at, squad->whole, bytes);
    for (uint32_t m = 0; m < squad->local && !result; m++) {
        if (squad->parts[param].of.axis >= 0)
            dti_squad_part_copy(squad, &squad->parts[param], squad->members[m].number, false);
        result = dti_squad_touch(squad, a, param, m, false);
    }
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

/* Of one parameter; what goes between ranks goes in any case. */
static dt_result dti_squad_move_param(dti_parallel *par, uint32_t param, bool gather) {
    const dti_squad *squad = par->squad;
    dt_store *all = par->replicas[0].store;
    dti_squad_array a = {.arena = DTI_ARENA_PARAM};
    dt_result result = dti_squad_move_array(par, &a, param, gather);
    a.arena = DTI_ARENA_STATE;
    const bool lost = par->lost;
    for (a.moment = 0; a.moment < all->moments && par->lost == lost; a.moment++) {
        const dt_result one = dti_squad_move_array(par, &a, param, gather);
        result = result ? result : one;
    }
    for (uint32_t m = 0; m < (gather ? 1 : squad->local) && !result; m++) {
        dt_store *own = squad->members[m].store;
        result = dti_squad_move_count(gather ? own : all, gather ? all : own, param);
    }
    return result;
}

static dt_result dti_squad_move(dti_parallel *par, bool gather) {
    const bool lost = par->lost; /* before: a line that is here has all */
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < par->replicas[0].store->layout.param_count && par->lost == lost; i++) {
        const dt_result one = dti_squad_move_param(par, i, gather);
        result = result ? result : one;
    }
    return result;
}

static dt_result dti_squad_scatter(dti_parallel *par) {
    dti_squad *squad = par->squad;
    dt_result result = dti_squad_move(par, false);
    for (uint32_t m = 0; m < squad->local && !result; m++) {
        dti_squad_member *member = &squad->members[m];
        member->store->steps = par->replicas[0].store->steps;
        dti_store_unbound(member->store);
    }
    if (!result)
        result = dti_statistics_load(&squad->statistics, squad->members[0].store);
    return result;
}

static dt_result dti_squad_gather(dti_parallel *par) {
    if (par->desc.comm && par->lost && !dti_squad_whole_line(par))
        return dti_fail(par->base, DT_ERROR_REVOKED,
                        "the job ended at step %llu, and with it the parts that other ranks had: "
                        "make a new trainer and go on from a checkpoint",
                        (unsigned long long)par->replicas[0].store->steps);
    /* what one member could not give none has */
    return dti_agree_result(par, dti_squad_move(par, true));
}
