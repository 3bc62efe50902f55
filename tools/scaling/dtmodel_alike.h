/* Whether one rank may stand for all.
 *
 * The ranks' schedules may be the same except for the mapping of ranks (all ranks turned by d, or
 * XORed with d; checked step by step, for all ranks). Then every rank does at each moment what rank
 * 0 does, and only rank 0 is simulated. What it sends to d it then also gets, from the rank that
 * sees it as d. Otherwise, and when `full`, all ranks are simulated. What differs is the order of
 * ranks in a FOLD's sources, and segments by a few elements. */

typedef struct likeness { /* rank 0's steps, and another rank's */
    const side *a, *b;
    uint32_t *same, *cursor, *mark;
    uint32_t size, rank;
    symmetry_kind symmetry;
} likeness;

/* The other rank's step that is rank 0's step i. It is the next one with the same peer, or of those
 * that move nothing. */
static uint32_t like_step(likeness *l, uint32_t i, uint32_t *compute) {
    const dti_schedule_step *step = &l->a->schedule.steps[i];
    if (dti_flight_step_moves(step)) {
        uint32_t at = l->cursor[step->peer];
        if (at != DTI_NOBODY)
            l->cursor[step->peer] = l->b->tracks[at].next;
        return at;
    }
    while (*compute < l->b->schedule.step_count &&
           dti_flight_step_moves(&l->b->schedule.steps[*compute]))
        ++*compute;
    return *compute < l->b->schedule.step_count ? (*compute)++ : DTI_NOBODY;
}

/* Whether two steps wait for the same: as sets, for sources are in the order of ranks. */
static bool like_before(likeness *l, uint32_t i) {
    uint32_t j = l->same[i];
    const dti_schedule_step *a = &l->a->schedule.steps[i], *b = &l->b->schedule.steps[j];
    for (uint32_t k = 0; k < b->after_count + b->source_count; k++) {
        uint32_t before = side_before(l->b, j, k);
        if (before != DTI_NO_STEP)
            l->mark[before] = i + 1;
    }
    for (uint32_t k = 0; k < a->after_count + a->source_count; k++) {
        uint32_t before = side_before(l->a, i, k);
        if (before != DTI_NO_STEP && l->mark[l->same[before]] != i + 1)
            return false;
    }
    for (uint32_t k = 0; k < a->after_count; k++) /* these have one order, and flags */
        if ((l->a->schedule.after[a->first_after + k] & DTI_AFTER_WHOLE) !=
            (l->b->schedule.after[b->first_after + k] & DTI_AFTER_WHOLE))
            return false;
    return true;
}

/* Segments may differ by a few units; as long as their number is the number of chunks. */
#define LIKE_ELEMENTS 256u

static bool like_steps(likeness *l) {
    const dti_schedule *a = &l->a->schedule, *b = &l->b->schedule;
    uint32_t compute = 0;
    for (uint32_t peer = 0; peer < l->size; peer++)
        l->cursor[sim_relative(l->symmetry, l->rank, peer, l->size)] = l->b->first_of[peer];
    for (uint32_t i = 0; i < a->step_count; i++) {
        uint32_t j = l->same[i] = like_step(l, i, &compute);
        if (j == DTI_NOBODY)
            return false;
        const dti_schedule_step *x = &a->steps[i], *y = &b->steps[j];
        uint64_t apart = x->count > y->count ? x->count - y->count : y->count - x->count;
        if (x->kind != y->kind || x->stream != y->stream || x->credited != y->credited ||
            x->place != y->place || x->after_count != y->after_count ||
            x->source_count != y->source_count || apart > LIKE_ELEMENTS ||
            l->a->tracks[i].total != l->b->tracks[j].total)
            return false;
    }
    return true;
}

static bool rank_alike(likeness *l) {
    if (l->a->schedule.step_count != l->b->schedule.step_count)
        return false;
    bool alike = like_steps(l);
    memset(l->mark, 0, l->a->schedule.step_count * sizeof *l->mark);
    for (uint32_t i = 0; alike && i < l->a->schedule.step_count; i++)
        alike = like_before(l, i);
    return alike;
}

/* Whether all ranks of an operation do what rank 0 does, seen so. */
static bool operation_alike(sim *s, const operation *o, symmetry_kind symmetry) {
    side zero = {0};
    bool alike = symmetry == SYMMETRY_TURN || (s->size & (s->size - 1)) == 0;
    side_open(s, o, 0, &zero);
    size_t count = zero.schedule.step_count;
    likeness l = {.a = &zero, .size = s->size, .symmetry = symmetry};
    l.same = sim_alloc(count, sizeof *l.same);
    l.mark = sim_alloc(count, sizeof *l.mark);
    l.cursor = sim_alloc(s->size, sizeof *l.cursor);
    for (l.rank = 1; l.rank < s->size && alike; l.rank++) {
        side other = {0};
        side_open(s, o, l.rank, &other);
        l.b = &other;
        alike = rank_alike(&l);
        side_close(s, &other);
    }
    side_close(s, &zero);
    free(l.same);
    free(l.mark);
    free(l.cursor);
    return alike;
}

static symmetry_kind sim_symmetry(sim *s) {
    for (int kind = SYMMETRY_TURN; kind <= SYMMETRY_XOR && !s->net->full; kind++) {
        bool alike = true;
        for (uint32_t i = 0; i < s->op_count && alike; i++)
            alike = operation_alike(s, &s->ops[i], (symmetry_kind)kind);
        if (alike)
            return (symmetry_kind)kind;
    }
    return SYMMETRY_NONE;
}
