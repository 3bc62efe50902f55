/* Runs all ranks' schedules against each other without a network, in one thread. It goes chunk by
 * chunk, in an order drawn from a seed, by the rules of schedule.h. Slots hold a window of chunks,
 * and are assigned once all their senders have posted. A stream without credits is permitted whole
 * when its receiver has posted. Short streams may come before that. It finds streams with different
 * ends, ranks that wait for ever, and steps that miss their condition. It also finds writes over
 * bytes that are still to be sent. And bytes that are read or written by a step that need not come
 *
 * after. */

enum { EXEC_RANKS = 33, EXEC_EARLY = DTI_EARLY_BYTES };

typedef struct exec_step {
    uint32_t total, done; /* chunks */
    uint32_t sent;        /* RECV: chunks that have left the sender */
    uint32_t other;       /* SEND: the RECV at its peer; RECV: the SEND */
    uint32_t consumer;    /* RECV into slots: the FOLD that reads them */
    bool early;           /* SEND: may go before it is permitted */
    uint8_t *wire;        /* RECV: what has left the sender */
    uint8_t *slots;       /* RECV into slots: a window of chunks */
} exec_step;

typedef struct exec_rank {
    dti_collective c;
    dti_schedule s;
    exec_step *steps;
    bool *needs; /* [step * step_count + other]: other comes before, directly or not */
    bool posted;
    uint8_t *in, *out, *work;
    uint8_t *memory[2]; /* that in and out lie in */
    uint8_t *given;     /* what `in` held */
    uint64_t in_bytes, out_bytes;
} exec_rank;

typedef struct exec_world {
    exec_rank ranks[EXEC_RANKS];
    uint32_t size, window;
    uint64_t random;
    uint32_t mode;   /* how events are drawn */
    uint32_t victim; /* mode 1: this rank moves only when no other can */
    char failure[200];
} exec_world;

static uint32_t exec_draw(uint64_t *state, uint32_t below) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)((*state * 0x2545f4914f6cdd1du >> 33) % below);
}

static bool exec_fail(exec_world *w, uint32_t rank, uint32_t step, const char *what) {
    if (!w->failure[0])
        snprintf(w->failure, sizeof w->failure, "rank %u, step %u: %.150s", rank, step, what);
    return false;
}

static uint64_t exec_bytes(uint64_t count, uint8_t dtype) {
    return count * dti_dtype_bytes((dt_dtype)dtype);
}

static uint64_t exec_chunk(const exec_rank *r, const dti_schedule_step *step, uint32_t chunk) {
    uint64_t from = chunk * r->s.chunk_elements;
    return step->count - from < r->s.chunk_elements ? step->count - from : r->s.chunk_elements;
}

static uint8_t *exec_place(exec_rank *r, uint8_t place) {
    return place == DTI_REGION_IN ? r->in : place == DTI_REGION_OUT ? r->out : r->work;
}

static uint8_t *exec_at(exec_rank *r, uint8_t place, uint64_t offset, uint8_t dtype,
                        uint32_t chunk) {
    return exec_place(r, place) + offset + exec_bytes(chunk * r->s.chunk_elements, dtype);
}

static uint8_t *exec_slot(exec_world *w, exec_rank *r, uint32_t recv, uint32_t chunk) {
    return r->steps[recv].slots +
           exec_bytes(chunk % w->window * r->s.chunk_elements, r->s.steps[recv].dtype);
}

/* Marks what step `at` needs, directly or not. */
static bool exec_mark_needs(exec_world *w, uint32_t rank, uint32_t at) {
    exec_rank *r = &w->ranks[rank];
    const dti_schedule_step *step = &r->s.steps[at];
    bool *needs = r->needs + at * r->s.step_count;
    for (uint32_t i = 0; i < step->after_count + step->source_count; i++) {
        uint32_t other = i < step->after_count
                             ? r->s.after[step->first_after + i]
                             : r->s.sources[step->first_source + i - step->after_count].step;
        if (i >= step->after_count && other == DTI_NO_STEP)
            continue;
        bool whole = i < step->after_count && (other & DTI_AFTER_WHOLE);
        other &= ~DTI_AFTER_WHOLE;
        if (other >= at)
            return exec_fail(w, rank, at, "needs a later step");
        if (!whole && r->s.steps[other].count != step->count)
            return exec_fail(w, rank, at, "waits for chunks of a step of another range");
        needs[other] = true;
        for (uint32_t k = 0; k < other; k++)
            needs[k] = needs[k] || r->needs[other * r->s.step_count + k];
    }
    return true;
}

/* Its sources follow each other, and a sum that is final has them all. */
static bool exec_check_fold(exec_world *w, uint32_t rank, uint32_t at) {
    const exec_rank *r = &w->ranks[rank];
    const dti_schedule_step *step = &r->s.steps[at];
    const dti_source *from = &r->s.sources[step->first_source];
    uint32_t total = r->c.op.tree ? r->c.leaf_total : w->size, next = from->span.first;
    if (r->c.op.algorithm == DT_COMM_ALGORITHM_HALVING) /* ranks are its leaves; pairs are one */
        for (total = w->size; total & (total - 1);)
            total &= total - 1;
    bool all = step->finish && r->c.op.algorithm != DT_COMM_ALGORITHM_RING;
    for (uint32_t i = 0; i < step->source_count; i++) {
        if (from[i].span.first != next || from[i].span.count == 0)
            return exec_fail(w, rank, at, "sums what does not follow each other");
        next += from[i].span.count;
    }
    if (all && (from->span.first != 0 || next != total))
        return exec_fail(w, rank, at, "leaves something out of the sum");
    return true;
}

static bool exec_check_step(exec_world *w, uint32_t rank, uint32_t at) {
    exec_rank *r = &w->ranks[rank];
    const dti_schedule_step *step = &r->s.steps[at];
    bool waits = step->after_count > 0 || step->place == DTI_REGION_SLOT;
    bool stream = step->kind == DTI_SCHEDULE_SEND || step->kind == DTI_SCHEDULE_RECV;
    uint64_t end = step->offset + exec_bytes(step->count, step->dtype);
    if (step->count == 0)
        return exec_fail(w, rank, at, "is empty");
    if (step->kind == DTI_SCHEDULE_RECV && waits && !step->credited)
        return exec_fail(w, rank, at, "a RECV that waits is not credited");
    if (step->kind != DTI_SCHEDULE_SEND && step->place == DTI_REGION_IN)
        return exec_fail(w, rank, at, "writes to IN");
    if (step->place == DTI_REGION_SLOT ? step->kind != DTI_SCHEDULE_RECV
                                       : step->place == DTI_REGION_WORK && end > r->s.work_bytes)
        return exec_fail(w, rank, at, "is out of WORK, or has a SLOT that it cannot have");
    if (stream ? step->source_count != 0 : step->source_count == 0)
        return exec_fail(w, rank, at, "has sources that it should not have, or none");
    for (uint32_t i = 0; i < step->source_count; i++) {
        const dti_source *from = &r->s.sources[step->first_source + i];
        if (from->place == DTI_REGION_SLOT)
            r->steps[from->step].consumer = at;
    }
    if (step->kind == DTI_SCHEDULE_FOLD && !exec_check_fold(w, rank, at))
        return false;
    return exec_mark_needs(w, rank, at);
}

/* Finds the RECV of a SEND. */
static bool exec_join(exec_world *w, uint32_t rank, uint32_t at) {
    const dti_schedule_step *send = &w->ranks[rank].s.steps[at];
    if (send->peer >= w->size || send->peer == rank)
        return exec_fail(w, rank, at, "has no such peer");
    exec_rank *r = &w->ranks[send->peer];
    for (uint32_t i = 0; i < r->s.step_count; i++) {
        const dti_schedule_step *recv = &r->s.steps[i];
        if (recv->kind != DTI_SCHEDULE_RECV || recv->peer != rank || recv->stream != send->stream)
            continue;
        if (r->steps[i].other != DTI_NO_STEP)
            return exec_fail(w, rank, at, "sends on a stream that another step sends on");
        if (recv->count != send->count || recv->dtype != send->dtype ||
            recv->credited != send->credited)
            return exec_fail(w, rank, at, "sends what the peer does not expect");
        if (recv->place == DTI_REGION_SLOT && (send->place != DTI_REGION_IN || send->after_count))
            return exec_fail(w, rank, at, "sends into a SLOT what it does not have yet");
        r->steps[i].other = at;
        r->steps[i].wire = malloc(exec_bytes(recv->count, recv->dtype));
        if (recv->place == DTI_REGION_SLOT)
            r->steps[i].slots = malloc(exec_bytes(w->window * r->s.chunk_elements, recv->dtype));
        w->ranks[rank].steps[at].other = i;
        w->ranks[rank].steps[at].early =
            exec_bytes(send->count, send->dtype) <= EXEC_EARLY && exec_draw(&w->random, 2);
        return true;
    }
    return exec_fail(w, rank, at, "sends what nobody receives");
}

static bool exec_prepare(exec_world *w) {
    for (uint32_t rank = 0; rank < w->size; rank++) {
        exec_rank *r = &w->ranks[rank];
        size_t n = r->s.step_count;
        r->steps = calloc(n + 1, sizeof *r->steps);
        r->needs = calloc(n * n + 1, sizeof *r->needs);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t each = r->s.chunk_elements;
            r->steps[i].total = (uint32_t)((r->s.steps[i].count + each - 1) / each);
            r->steps[i].other = DTI_NO_STEP;
        }
        for (uint32_t i = 0; i < n; i++)
            if (!exec_check_step(w, rank, i))
                return false;
    }
    for (uint32_t rank = 0; rank < w->size; rank++)
        for (uint32_t i = 0; i < w->ranks[rank].s.step_count; i++)
            if (w->ranks[rank].s.steps[i].kind == DTI_SCHEDULE_SEND && !exec_join(w, rank, i))
                return false;
    for (uint32_t rank = 0; rank < w->size; rank++)
        for (uint32_t i = 0; i < w->ranks[rank].s.step_count; i++)
            if (w->ranks[rank].s.steps[i].kind == DTI_SCHEDULE_RECV &&
                w->ranks[rank].steps[i].other == DTI_NO_STEP)
                return exec_fail(w, rank, i, "receives what nobody sends");
    return true;
}

/* Slots are assigned when all who send into them have posted. */
static bool exec_has_slots(const exec_world *w, const exec_rank *r) {
    for (uint32_t i = 0; i < r->s.step_count; i++)
        if (r->s.steps[i].place == DTI_REGION_SLOT && !w->ranks[r->s.steps[i].peer].posted)
            return false;
    return true;
}

static bool exec_is_after(const exec_rank *r, uint32_t at, uint32_t chunk) {
    const dti_schedule_step *step = &r->s.steps[at];
    for (uint32_t i = 0; i < step->after_count; i++) {
        uint32_t after = r->s.after[step->first_after + i];
        const exec_step *other = &r->steps[after & ~DTI_AFTER_WHOLE];
        if (after & DTI_AFTER_WHOLE ? other->done < other->total : other->done <= chunk)
            return false;
    }
    for (uint32_t i = 0; i < step->source_count; i++) {
        uint32_t from = r->s.sources[step->first_source + i].step;
        if (from != DTI_NO_STEP && r->steps[from].done <= chunk)
            return false;
    }
    return true;
}

/* Whether the RECV has room for the chunk. */
static bool exec_is_granted(const exec_world *w, const exec_rank *r, uint32_t recv,
                            uint32_t chunk) {
    const exec_step *step = &r->steps[recv];
    if (!r->posted || !exec_is_after(r, recv, chunk))
        return false;
    if (r->s.steps[recv].place != DTI_REGION_SLOT)
        return true;
    return exec_has_slots(w, r) && chunk < r->steps[step->consumer].done + w->window;
}

static bool exec_can_run(const exec_world *w, uint32_t rank, uint32_t at) {
    const exec_rank *r = &w->ranks[rank];
    const exec_step *step = &r->steps[at];
    if (!r->posted || step->done == step->total || !exec_is_after(r, at, step->done))
        return false;
    switch (r->s.steps[at].kind) {
    case DTI_SCHEDULE_SEND:
        return step->early ||
               exec_is_granted(w, &w->ranks[r->s.steps[at].peer], step->other, step->done);
    case DTI_SCHEDULE_RECV: return step->sent > step->done && exec_is_granted(w, r, at, step->done);
    default: return true;
    }
}

/* Bytes [from, to) meet what a step has still to read or write at `place`, from its chunk on. */
static bool exec_meets(exec_rank *r, const dti_schedule_step *step, uint8_t place, uint64_t offset,
                       uint8_t dtype, uint32_t chunk, const uint8_t *from, const uint8_t *to) {
    if (place == DTI_REGION_SLOT || chunk * r->s.chunk_elements >= step->count)
        return false;
    const uint8_t *begin = exec_at(r, place, offset, dtype, chunk);
    const uint8_t *end = exec_at(r, place, offset, dtype, 0) + exec_bytes(step->count, dtype);
    return begin < to && from < end;
}

/* Step `at` writes its next chunk. No step may still have to read there, and no other step may
 * still write there unless it comes after. */
static bool exec_check_write(exec_world *w, uint32_t rank, uint32_t at) {
    exec_rank *r = &w->ranks[rank];
    const dti_schedule_step *step = &r->s.steps[at];
    uint32_t chunk = r->steps[at].done;
    const uint8_t *from = exec_at(r, step->place, step->offset, step->dtype, chunk);
    const uint8_t *to = from + exec_bytes(exec_chunk(r, step, chunk), step->dtype);
    for (uint32_t i = 0; i < r->s.step_count; i++) {
        const dti_schedule_step *other = &r->s.steps[i];
        uint32_t left = r->steps[i].done + (i == at);
        if (r->needs[i * r->s.step_count + at])
            continue;
        if (exec_meets(r, other, other->place, other->offset, other->dtype, left, from, to))
            return exec_fail(w, rank, at,
                             other->kind == DTI_SCHEDULE_SEND
                                 ? "overwrites what is still to be sent"
                                 : "writes where another writes");
        for (uint32_t k = 0; k < other->source_count; k++) {
            const dti_source *source = &r->s.sources[other->first_source + k];
            if (exec_meets(r, other, source->place, source->offset, source->dtype, left, from, to))
                return exec_fail(w, rank, at, "overwrites what is still to be read");
        }
    }
    return true;
}

static void exec_fold(exec_world *w, exec_rank *r, const dti_schedule_step *step, uint8_t *to,
                      uint32_t chunk) {
    dti_operand operands[EXEC_RANKS * 8];
    for (uint32_t i = 0; i < step->source_count; i++) {
        const dti_source *from = &r->s.sources[step->first_source + i];
        operands[i] = (dti_operand){from->place == DTI_REGION_SLOT
                                        ? exec_slot(w, r, from->step, chunk)
                                        : exec_at(r, from->place, from->offset, from->dtype, chunk),
                                    from->dtype, from->span};
    }
    uint64_t count = exec_chunk(r, step, chunk);
    if (step->kind == DTI_SCHEDULE_COPY)
        memmove(to, operands[0].data, exec_bytes(count, step->dtype));
    else
        dti_fold(to, operands, step->source_count, count, r->c.op.dtype, r->c.op.reduction,
                 step->finish, r->c.op.tree ? r->c.leaf_total : w->size);
}

/* A rank that has left a barrier knows that all have come. */
static bool exec_check_barrier(exec_world *w, uint32_t rank) {
    exec_rank *r = &w->ranks[rank];
    for (uint32_t i = 0; i < r->s.step_count; i++)
        if (r->steps[i].done < r->steps[i].total)
            return true;
    for (uint32_t i = 0; i < w->size; i++)
        if (!w->ranks[i].posted)
            return exec_fail(w, rank, 0, "leaves the barrier before all have come");
    return true;
}

static bool exec_run_step(exec_world *w, uint32_t rank, uint32_t at) {
    exec_rank *r = &w->ranks[rank];
    const dti_schedule_step *step = &r->s.steps[at];
    uint32_t chunk = r->steps[at].done;
    uint64_t bytes = exec_bytes(exec_chunk(r, step, chunk), step->dtype);
    uint64_t wire = exec_bytes(chunk * r->s.chunk_elements, step->dtype);
    uint8_t *here = step->place == DTI_REGION_SLOT
                        ? exec_slot(w, r, at, chunk)
                        : exec_at(r, step->place, step->offset, step->dtype, chunk);
    if (step->kind == DTI_SCHEDULE_SEND) {
        exec_step *recv = &w->ranks[step->peer].steps[r->steps[at].other];
        memcpy(recv->wire + wire, here, bytes);
        recv->sent++;
    } else if (step->place != DTI_REGION_SLOT && !exec_check_write(w, rank, at)) {
        return false;
    } else if (step->kind == DTI_SCHEDULE_RECV) {
        memcpy(here, r->steps[at].wire + wire, bytes);
    } else {
        exec_fold(w, r, step, here, chunk);
    }
    r->steps[at].done++;
    return r->c.op.kind != DT_COMM_BARRIER || exec_check_barrier(w, rank);
}

/* Runs one chunk of the rank, if one can run. */
static bool exec_move(exec_world *w, uint32_t rank) {
    uint32_t n = (uint32_t)w->ranks[rank].s.step_count;
    uint32_t first = n && w->mode != 2 ? exec_draw(&w->random, n) : 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = first + i < n ? first + i : first + i - n;
        if (exec_can_run(w, rank, at))
            return exec_run_step(w, rank, at);
    }
    return false;
}

static bool exec_post_one(exec_world *w) {
    uint32_t first = exec_draw(&w->random, w->size);
    for (uint32_t i = 0; i < w->size; i++) {
        exec_rank *r = &w->ranks[(first + i) % w->size];
        if (!r->posted)
            return r->posted = true;
    }
    return false;
}

static bool exec_move_any(exec_world *w) {
    uint32_t first = exec_draw(&w->random, w->size);
    for (uint32_t i = 0; i < w->size; i++) {
        uint32_t rank = (first + i) % w->size;
        if ((w->mode != 1 || rank != w->victim) && exec_move(w, rank))
            return true;
    }
    return w->mode == 1 && exec_move(w, w->victim);
}

/* Runs all to the end; false: w->failure says what went wrong. */
static bool exec_run(exec_world *w) {
    if (!exec_prepare(w))
        return false;
    do {
        if (exec_draw(&w->random, 16) == 0)
            exec_post_one(w);
    } while (!w->failure[0] && (exec_move_any(w) || (!w->failure[0] && exec_post_one(w))));
    for (uint32_t rank = 0; rank < w->size; rank++)
        for (uint32_t i = 0; i < w->ranks[rank].s.step_count; i++)
            if (w->ranks[rank].steps[i].done < w->ranks[rank].steps[i].total)
                exec_fail(w, rank, i, "waits for ever");
    return !w->failure[0];
}

static void exec_free(exec_world *w, dti_base *base) {
    for (uint32_t rank = 0; rank < w->size; rank++) {
        exec_rank *r = &w->ranks[rank];
        for (uint32_t i = 0; r->steps && i < r->s.step_count; i++) {
            free(r->steps[i].wire);
            free(r->steps[i].slots);
        }
        free(r->steps);
        free(r->needs);
        free(r->work);
        free(r->given);
        free(r->memory[0]);
        free(r->memory[1]);
        dti_schedule_free(base, &r->s);
    }
}
