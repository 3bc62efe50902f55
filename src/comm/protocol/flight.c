/* One operation under way: its schedule, and how far each step is. Posting allocates memory (kept
 * for the next operation of the kind). Advancing does not: it does the FOLDs and COPYs that are
 * ready, and finds data that may be sent or received. */

static uint16_t dti_flight_flags(const dt_comm_op *op) {
    uint32_t flags = (uint32_t)op->reduction | (uint32_t)op->algorithm << 3;
    if (op->tree)
        flags |= DTI_FLAG_TREE;
    if (dti_kind_is_p2p(op->kind))
        flags = DTI_FLAG_P2P | (op->kind == DT_COMM_RECV ? DTI_FLAG_FROM_TARGET : 0);
    return (uint16_t)flags;
}

/* ---- memory of a flight */

/* Whether the schedule that it has is the one that is wanted. Leaves may have changed since. */
static bool dti_flight_planned(const dti_flight *f, const dti_rank_group *group,
                               const dti_collective *c) {
    return f->schedule.step_count && f->group == group && !c->op.tree &&
           dti_schedule_same(&f->planned, c);
}

/* A free one, best the one that did the same before. NULL: none and no memory, or too many. */
static dti_flight *dti_flight_take(dti_core *core, const dti_rank_group *group,
                                   const dti_collective *c) {
    dti_flight *found = NULL;
    for (uint32_t i = core->flight_count; i < core->flights_made; i++) {
        dti_flight *f = core->flights[i];
        if (dti_flight_planned(f, group, c))
            return f;
        found = found ? found : f;
    }
    if (found)
        return found;
    if (core->flights_made == DTI_PENDING_MAX) {
        dti_fail(core->base, DT_ERROR_INVALID,
                 "%d operations are in progress, which is the most; wait for one first",
                 DTI_PENDING_MAX);
        return NULL;
    }
    found = dti_alloc(core->base, sizeof *found);
    if (found) {
        found->at = core->flights_made;
        core->flights[core->flights_made++] = found;
    }
    return found;
}

static void dti_flight_free(dti_core *core, dti_flight *f) {
    dti_schedule_free(core->base, &f->schedule);
    DTI_FREE(core->base, f->tracks, f->first_of, f->peer_state, f->bits, f->work, f->operands, f);
}

static size_t dti_flight_step_bytes(const dti_schedule_step *s) {
    return dti_dtype_bytes((dt_dtype)s->dtype);
}

static bool dti_flight_reserve(dti_core *core, dti_flight *f) {
    const dti_schedule *s = &f->schedule;
    size_t sources = 1;
    for (size_t i = 0; i < s->step_count; i++)
        sources = DTI_MAX(sources, s->steps[i].source_count);
    return DTI_RESERVE(core->base, f->tracks, f->track_room, s->step_count) &&
           DTI_RESERVE(core->base, f->first_of, f->first_room, f->group->size) &&
           DTI_RESERVE(core->base, f->peer_state, f->peer_room, f->group->size) &&
           DTI_RESERVE(core->base, f->work, f->work_room, s->work_bytes) &&
           DTI_RESERVE(core->base, f->operands, f->operand_room, sources);
}

/* ---- tracks */

static uint32_t dti_chunks(const dti_schedule *s, uint64_t count) {
    return (uint32_t)((count + s->chunk_elements - 1) / s->chunk_elements);
}

/* Elements of chunk c of a step. */
static uint64_t dti_chunk_count(const dti_flight *f, const dti_schedule_step *s, uint32_t chunk) {
    uint64_t from = chunk * f->schedule.chunk_elements;
    return DTI_MIN(f->schedule.chunk_elements, s->count - from);
}

static bool dti_flight_step_moves(const dti_schedule_step *s) {
    return s->kind == DTI_SCHEDULE_SEND || s->kind == DTI_SCHEDULE_RECV;
}

/* Whether the whole stream may go early. */
static bool dti_flight_step_is_short(const dti_core *core, const dti_schedule_step *s,
                                     const dti_track *t) {
    return t->total == 1 && s->count * dti_flight_step_bytes(s) <= core->early_bytes;
}

/* Links the steps of each rank, and sets their state at the start. */
static void dti_flight_chain(const dti_core *core, dti_flight *f) {
    for (uint32_t r = 0; r < f->group->size; r++) {
        f->first_of[r] = DTI_NOBODY;
        f->peer_state[r] = 0;
    }
    for (uint32_t i = (uint32_t)f->schedule.step_count; i-- > 0;) {
        const dti_schedule_step *s = &f->schedule.steps[i];
        if (!dti_flight_step_moves(s) || !s->count)
            continue;
        f->tracks[i].next = f->first_of[s->peer];
        f->first_of[s->peer] = i;
        f->peer_state[s->peer] |= DTI_PEER_INVOLVED;
        /* Short streams need no announcement: they go early. */
        if (!dti_flight_step_is_short(core, s, &f->tracks[i]))
            f->peer_state[s->peer] |= DTI_PEER_DUE;
    }
}

/* Slots are numbered by stream; each is emptied by the FOLD that reads it. */
static void dti_flight_slots(dti_flight *f) {
    f->slot_streams = 0;
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        const dti_schedule_step *s = &f->schedule.steps[i];
        if (s->kind == DTI_SCHEDULE_RECV && s->place == DTI_REGION_SLOT && s->count)
            f->tracks[i].slot = f->slot_streams++;
        for (uint32_t k = 0; k < s->source_count; k++) {
            uint32_t from = f->schedule.sources[s->first_source + k].step;
            if (from != UINT32_MAX)
                f->tracks[from].reader = i;
            if (from != UINT32_MAX && s->kind == DTI_SCHEDULE_FOLD)
                f->tracks[from].consumer = i;
        }
    }
}

static bool dti_steps_alike(const dti_schedule *s, const dti_schedule_step *a,
                            const dti_schedule_step *b) {
    if (a->kind != b->kind || a->place != b->place || a->offset != b->offset ||
        a->count != b->count || a->dtype != b->dtype || a->after_count != b->after_count)
        return false;
    return !a->after_count || memcmp(s->after + a->first_after, s->after + b->first_after,
                                     a->after_count * sizeof *s->after) == 0;
}

/* Sends of the same bytes, made ready by the same steps, share their checksums. They follow each
 * other in a schedule, so looking at the one before is enough. */
static void dti_flight_alike(dti_flight *f) {
    uint32_t last = DTI_NOBODY;
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        const dti_schedule_step *s = &f->schedule.steps[i];
        dti_track *t = &f->tracks[i];
        t->alike = i;
        memset(t->sum_of, 0xFF, sizeof t->sum_of);
        if (s->kind != DTI_SCHEDULE_SEND)
            continue;
        if (last != DTI_NOBODY && dti_steps_alike(&f->schedule, &f->schedule.steps[last], s))
            t->alike = f->tracks[last].alike;
        last = i;
    }
}

static void dti_flight_tracks(const dti_core *core, dti_flight *f) {
    if (f->schedule.step_count)
        memset(f->tracks, 0, f->schedule.step_count * sizeof *f->tracks);
    f->undone = 0;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        dti_track *t = &f->tracks[i];
        t->total = dti_chunks(&f->schedule, f->schedule.steps[i].count);
        t->consumer = t->reader = t->next = DTI_NOBODY;
        t->first_bit = bits;
        bits += (t->total + 63) / 64 * 64;
        f->undone += t->total > 0;
    }
    dti_flight_chain(core, f);
    dti_flight_slots(f);
    dti_flight_alike(f);
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        const dti_schedule_step *s = &f->schedule.steps[i];
        for (uint32_t k = 0; k < s->after_count; k++)
            f->tracks[f->schedule.after[s->first_after + k] & ~DTI_AFTER_WHOLE].guards = true;
    }
}

/* With several sockets chunks come in any order: a bit for each. */
static bool dti_flight_bits(dti_core *core, dti_flight *f) {
    size_t words = 0;
    if (core->set.sockets > 1 && f->schedule.step_count) {
        const dti_track *last = &f->tracks[f->schedule.step_count - 1];
        words = (last->first_bit + last->total + 63) / 64;
    }
    if (!DTI_RESERVE(core->base, f->bits, f->bit_room, words))
        return false;
    if (words)
        memset(f->bits, 0, words * sizeof *f->bits);
    return true;
}

/* Chunk c of a SEND or RECV is done; with one socket they come in order. */
static void dti_track_done(const dti_core *core, dti_flight *f, uint32_t step, uint32_t chunk) {
    dti_track *t = &f->tracks[step];
    if (core->set.sockets == 1)
        t->done = chunk + 1;
    else {
        f->bits[(t->first_bit + chunk) / 64] |= (uint64_t)1 << (t->first_bit + chunk) % 64;
        while (t->done < t->total &&
               f->bits[(t->first_bit + t->done) / 64] >> (t->first_bit + t->done) % 64 & 1)
            t->done++;
    }
    f->undone -= t->done == t->total;
}

static bool dti_track_has(const dti_core *core, const dti_flight *f, const dti_track *t,
                          uint32_t chunk) {
    if (core->set.sockets == 1 || chunk < t->done)
        return chunk < t->done;
    return f->bits[(t->first_bit + chunk) / 64] >> (t->first_bit + chunk) % 64 & 1;
}

/* ---- slots: assigned to one operation at a time, after all its senders have posted it */

static bool dti_flight_slots_reserve(dti_core *core, const dti_flight *f) {
    if (core->old_pool && (!core->pool_user || core->pool_user->slots != core->old_pool)) {
        dti_free(core->base, core->old_pool);
        core->old_pool = NULL;
    }
    uint64_t need = (uint64_t)f->slot_streams * core->window * core->set.chunk_bytes;
    if (need <= core->pool_bytes)
        return true;
    /* An old one in use and a new one that is too small occur only with leaves. Without leaves the
     * group's largest need is allocated at once. */
    if (core->old_pool)
        return dti_fail(
                   core->base, DT_ERROR_INVALID,
                   "this operation has more leaves than those in progress; wait for them first"),
               false;
    uint64_t whole = (uint64_t)(core->set.size - 1) * core->window * core->set.chunk_bytes;
    uint8_t *pool = dti_alloc(core->base, DTI_MAX(need, whole));
    if (!pool)
        return false;
    if (core->pool_user)
        core->old_pool = core->pool;
    else
        dti_free(core->base, core->pool);
    core->pool = pool;
    core->pool_bytes = DTI_MAX(need, whole);
    return true;
}

static uint8_t *dti_flight_slot_at(const dti_core *core, const dti_flight *f, uint32_t step,
                                   uint32_t chunk) {
    uint64_t slot = (uint64_t)f->tracks[step].slot * core->window + chunk % core->window;
    return f->slots + slot * core->set.chunk_bytes;
}

static bool dti_flight_all_senders_posted(const dti_flight *f) {
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        const dti_schedule_step *s = &f->schedule.steps[i];
        if (s->kind == DTI_SCHEDULE_RECV && s->place == DTI_REGION_SLOT && s->count &&
            !(f->peer_state[s->peer] & DTI_PEER_POSTED))
            return false;
    }
    return true;
}

static void dti_flight_slots_assign(dti_core *core, dti_flight *f) {
    if (core->pool_user || f->slots || !f->slot_streams || !dti_flight_all_senders_posted(f))
        return;
    core->pool_user = f;
    f->slots = core->pool;
}

/* True when the slots are free for another operation. */
static bool dti_flight_slots_return(dti_core *core, dti_flight *f) {
    if (core->pool_user != f)
        return false;
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        const dti_track *t = &f->tracks[i];
        const dti_schedule_step *s = &f->schedule.steps[i];
        if (s->kind == DTI_SCHEDULE_RECV && s->place == DTI_REGION_SLOT &&
            t->consumer != DTI_NOBODY && f->tracks[t->consumer].done < t->total)
            return false;
    }
    core->pool_user = NULL;
    return true;
}

/* ---- advancing */

static uint8_t *dti_flight_place(const dti_flight *f, int place, uint64_t offset) {
    if (place == DTI_REGION_WORK)
        return f->work + offset;
    const void *base = place == DTI_REGION_IN ? f->op.in : f->op.out;
    return (uint8_t *)(uintptr_t)base + offset;
}

static uint8_t *dti_flight_step_at(const dti_core *core, const dti_flight *f, uint32_t step,
                                   uint32_t chunk) {
    const dti_schedule_step *s = &f->schedule.steps[step];
    if (s->place == DTI_REGION_SLOT)
        return dti_flight_slot_at(core, f, step, chunk);
    return dti_flight_place(f, s->place, s->offset) +
           chunk * f->schedule.chunk_elements * dti_flight_step_bytes(s);
}

static const void *dti_flight_source_at(const dti_core *core, const dti_flight *f,
                                        const dti_source *s, uint32_t chunk) {
    if (s->place == DTI_REGION_SLOT)
        return dti_flight_slot_at(core, f, s->step, chunk);
    return dti_flight_place(f, s->place, s->offset) +
           chunk * f->schedule.chunk_elements * dti_dtype_bytes((dt_dtype)s->dtype);
}

static void dti_flight_step_compute(const dti_core *core, dti_flight *f, uint32_t step,
                                    uint32_t chunk) {
    const dti_schedule_step *s = &f->schedule.steps[step];
    const dti_source *from = f->schedule.sources + s->first_source;
    uint64_t count = dti_chunk_count(f, s, chunk);
    uint8_t *to = dti_flight_step_at(core, f, step, chunk);
    if (s->kind == DTI_SCHEDULE_COPY) {
        const void *data = dti_flight_source_at(core, f, from, chunk);
        if (data != to)
            memmove(to, data, count * dti_flight_step_bytes(s));
        return;
    }
    for (uint32_t i = 0; i < s->source_count; i++)
        f->operands[i] = (dti_operand){.data = dti_flight_source_at(core, f, &from[i], chunk),
                                       .dtype = from[i].dtype,
                                       .span = from[i].span};
    uint32_t divisor = f->op.tree ? f->leaf_total : f->group->size;
    dti_fold(to, f->operands, s->source_count, count, f->op.dtype, f->op.reduction, s->finish,
             divisor);
}

/* The number of chunks of a step that its predecessors allow. */
static uint32_t dti_flight_step_limit(const dti_flight *f, const dti_schedule_step *s,
                                      uint32_t total) {
    uint32_t limit = total;
    for (uint32_t i = 0; i < s->after_count; i++) {
        uint32_t after = f->schedule.after[s->first_after + i];
        const dti_track *t = &f->tracks[after & ~DTI_AFTER_WHOLE];
        if (after & DTI_AFTER_WHOLE)
            limit = t->done == t->total ? limit : 0;
        else
            limit = DTI_MIN(limit, t->done);
    }
    for (uint32_t i = 0; i < s->source_count; i++) {
        uint32_t from = f->schedule.sources[s->first_source + i].step;
        if (from != UINT32_MAX)
            limit = DTI_MIN(limit, f->tracks[from].done);
    }
    return limit;
}

/* Permits incoming data: everything, or as much as there is room for. */
static uint32_t dti_flight_recv_limit(const dti_core *core, const dti_flight *f, uint32_t step) {
    const dti_schedule_step *s = &f->schedule.steps[step];
    const dti_track *t = &f->tracks[step];
    uint32_t limit = dti_flight_step_limit(f, s, t->total);
    if (s->place != DTI_REGION_SLOT)
        return limit;
    if (!f->slots || core->pool_user != f)
        return t->granted;
    return DTI_MIN(limit, f->tracks[t->consumer].done + core->window);
}

/* Whether the chunk that a RECV waits for could be used: its reader's other operands are there.
 * With doubling, most messages become useful one after another. */
static bool dti_flight_recv_is_next(const dti_flight *f, const dti_track *t) {
    if (t->reader == DTI_NOBODY)
        return true;
    const dti_schedule_step *s = &f->schedule.steps[t->reader];
    for (uint32_t i = 0; i < s->after_count; i++) {
        const uint32_t after = f->schedule.after[s->first_after + i] & ~DTI_AFTER_WHOLE;
        const dti_track *before = &f->tracks[after];
        if (!dti_flight_step_moves(&f->schedule.steps[after]) && before->done < before->total &&
            before->done <= t->done)
            return false;
    }
    return true;
}

/* Whether a chunk or a permission from the rank at `place` would let the operation continue now. */
static bool dti_flight_expects(const dti_flight *f, uint32_t place) {
    for (uint32_t i = f->first_of[place]; i != DTI_NOBODY; i = f->tracks[i].next) {
        const dti_track *t = &f->tracks[i];
        if (t->done == t->total)
            continue;
        if (f->schedule.steps[i].kind == DTI_SCHEDULE_SEND
                ? t->begun < t->ready || t->done < t->begun
                : (t->done < t->granted || !(f->peer_state[place] & DTI_PEER_POSTED)) &&
                      dti_flight_recv_is_next(f, t))
            return true;
    }
    return false;
}

/* One pass; true when a computation was done, which may allow another step. */
static bool dti_flight_pass(dti_core *core, dti_flight *f) {
    bool changed = false;
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        const dti_schedule_step *s = &f->schedule.steps[i];
        dti_track *t = &f->tracks[i];
        if (t->done == t->total)
            continue;
        if (s->kind == DTI_SCHEDULE_RECV)
            t->granted = dti_flight_recv_limit(core, f, i);
        else if (s->kind == DTI_SCHEDULE_SEND)
            t->ready = dti_flight_step_limit(f, s, t->total);
        else {
            uint32_t limit = dti_flight_step_limit(f, s, t->total);
            while (t->done < limit) {
                dti_flight_step_compute(core, f, i, t->done);
                t->done++;
                changed = true;
            }
            f->undone -= t->done == t->total;
        }
    }
    return changed;
}

/* Whether frame `n` is a payload of the operation, and has its memory. */
static bool dti_flight_has_kept(const dti_flight *f, const dti_backlog *b, uint64_t n) {
    const dti_sent_frame *kept = dti_backlog_kept(b, n);
    return kept && kept->flight == f && !kept->own;
}

/* The copy that was made of these bytes for another peer; NULL: not found. */
static const dti_sent_frame *dti_flight_copied(const dti_core *core, const dti_flight *f,
                                               uint32_t step, uint32_t chunk) {
    const uint32_t alike = f->tracks[step].alike, socket = chunk % core->set.sockets;
    for (uint32_t i = alike; i < f->schedule.step_count; i++) {
        const dti_schedule_step *s = &f->schedule.steps[i];
        if (s->kind != DTI_SCHEDULE_SEND || !s->count || f->tracks[i].alike != alike)
            continue;
        const dti_backlog *b = &core->peers[f->group->ranks[s->peer]].backs[socket];
        for (uint64_t n = b->acknowledged; n < b->sent; n++) {
            const dti_sent_frame *kept = dti_backlog_kept(b, n);
            if (kept && kept->operation == f->id && kept->chunks && kept->step == i &&
                kept->chunk == chunk)
                return kept;
        }
    }
    return NULL;
}

/* Copies a frame's bytes, or shares the copy that there is. False: there is no room now. */
static bool dti_flight_copy(const dti_core *core, const dti_flight *f, dti_backlog *b,
                            dti_link *link, uint64_t n) {
    const dti_sent_frame *kept = dti_backlog_at(b, n);
    const dti_sent_frame *same = dti_flight_copied(core, f, kept->step, kept->chunk);
    if (!same)
        return dti_backlog_copy(b, link, n);
    dti_backlog_keeps(b, link, n, same->keeper, same->chunks);
    return true;
}

/* All peers without a full acknowledgement. A copy of data for several of them lies in the memory
 * of one. */
static void dti_flight_ask(dti_core *core) {
    for (uint32_t r = 0; r < core->set.size; r++)
        for (uint32_t k = 0; k < core->set.sockets; k++)
            if (core->peers[r].backs[k].acknowledged < core->peers[r].backs[k].sent)
                dti_link_ask(core->peers[r].data[k]);
}

/* False: there is no room. */
static bool dti_flight_copy_all(dti_core *core, dti_flight *f) {
    for (uint32_t place = 0; place < f->group->size; place++) {
        dti_peer *p = &core->peers[f->group->ranks[place]];
        if (!(f->peer_state[place] & DTI_PEER_INVOLVED))
            continue;
        for (uint32_t k = 0; k < core->set.sockets; k++) {
            dti_backlog *b = &p->backs[k];
            for (uint64_t n = b->acknowledged; n < b->sent; n++)
                if (dti_flight_has_kept(f, b, n) && !dti_flight_copy(core, f, b, p->data[k], n))
                    return false;
        }
    }
    return true;
}

/* Copies sent data that peers may lack. False: it needs room, which more acknowledgements will
 * free; they are asked for. */
static bool dti_flight_part(dti_core *core, dti_flight *f) {
    if (f->unacknowledged && !dti_flight_copy_all(core, f))
        dti_flight_ask(core);
    if (f->parting != (f->unacknowledged > 0)) {
        f->parting = !f->parting;
        core->parting += f->parting ? 1u : UINT32_MAX;
    }
    return !f->parting;
}

static void dti_flight_finish(dti_core *core, dti_flight *f, dt_result result) {
    if (f->finished)
        return;
    if (f->parting)
        core->parting--;
    f->parting = false;
    f->finished = true;
    core->unfinished--;
    f->result = result;
    core->events++;
    if (core->pool_user == f)
        core->pool_user = NULL;
    if (!f->p2p)
        f->group->history[f->post.sequence % DTI_HISTORY] = f->post;
}

/* Does all work that is ready. */
static void dti_flight_advance(dti_core *core, dti_flight *f) {
    if (f->finished)
        return;
    do
        core->up->take_early(core, f);
    while (dti_flight_pass(core, f));
    bool freed = dti_flight_slots_return(core, f);
    if (!f->undone && dti_flight_part(core, f))
        dti_flight_finish(core, f, DT_OK);
    for (uint32_t i = 0; freed && i < core->flight_count && !core->pool_user; i++)
        if (core->flights[i]->id && core->flights[i] != f && core->flights[i]->slot_streams)
            dti_flight_advance(core, core->flights[i]);
}

static void dti_flight_swap(dti_core *core, dti_flight *f, uint32_t at) {
    dti_flight *other = core->flights[at];
    core->flights[f->at] = other;
    core->flights[at] = f;
    other->at = f->at;
    f->at = at;
}

/* A free one is under way. */
static void dti_flight_begin(dti_core *core, dti_flight *f) {
    dti_flight_swap(core, f, core->flight_count++);
    f->id = ++core->next_id;
}

/* Ends the handle of a finished flight; it is kept for the next operation. */
static void dti_flight_release(dti_core *core, dti_flight *f) {
    dti_flight_swap(core, f, --core->flight_count);
    f->id = 0;
}
