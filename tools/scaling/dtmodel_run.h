/* How operations progress on dtmodel's virtual clock. Sends and receives follow the rules of
 * src/comm/protocol/flight.c and the engine. The rest is what goes out on each connection, what
 * comes in, and the events between. */

/* ---- what may happen: the rules of flight.c */

static uint32_t step_limit(const side *d, uint32_t i) {
    const dti_schedule_step *step = &d->schedule.steps[i];
    uint32_t limit = d->tracks[i].total;
    for (uint32_t k = 0; k < step->after_count && limit; k++) {
        uint32_t after = d->schedule.after[step->first_after + k];
        const track *t = &d->tracks[after & ~DTI_AFTER_WHOLE];
        if (after & DTI_AFTER_WHOLE)
            limit = t->done == t->total ? limit : 0;
        else
            limit = DTI_MIN(limit, t->done);
    }
    for (uint32_t k = 0; k < step->source_count && limit > d->tracks[i].begun; k++) {
        uint32_t from = d->schedule.sources[step->first_source + k].step;
        if (from != DTI_NO_STEP)
            limit = DTI_MIN(limit, d->tracks[from].done);
    }
    return limit;
}

static uint32_t recv_limit(const sim *s, const node *n, uint32_t op, const side *d, uint32_t i) {
    const track *t = &d->tracks[i];
    uint32_t limit = step_limit(d, i);
    if (s->net->permitted || d->schedule.steps[i].place != DTI_REGION_SLOT)
        return limit;
    if (n->pool_user != op)
        return t->granted;
    return DTI_MIN(limit, d->tracks[t->consumer].done + s->net->window);
}

static void wish_add(sim *s, uint32_t rank, uint32_t op, uint32_t peer, uint32_t step) {
    node *n = &s->nodes[rank];
    conn *c = &n->conns[peer];
    asked_add(n, peer);
    if (step != WISH_POST) {
        bool *wanted = &s->ops[op].sides[rank].tracks[step].wanted;
        if (*wanted)
            return;
        *wanted = true;
    }
    if (c->wish_count == c->wish_room) {
        c->wish_room = c->wish_room ? 2 * c->wish_room : 2;
        c->wishes = sim_grow(c->wishes, c->wish_room, sizeof *c->wishes);
    }
    c->wishes[c->wish_count++] = (wish){op, step};
}

static bool send_may_go(const side *d, uint32_t i) {
    const dti_schedule_step *step = &d->schedule.steps[i];
    const track *t = &d->tracks[i];
    if (t->begun >= t->ready)
        return false;
    return t->begun < t->granted ||
           (!(d->state[step->peer] & (DTI_PEER_DUE | DTI_PEER_ASKED)) && step_is_short(d, i));
}

static bool credit_is_due(const side *d, uint32_t i) {
    const dti_schedule_step *step = &d->schedule.steps[i];
    return step->credited && d->state[step->peer] & DTI_PEER_POSTED &&
           d->tracks[i].told < d->tracks[i].granted;
}

static void step_look(sim *s, uint32_t rank, uint32_t op, uint32_t i);

static void side_finished(sim *s, operation *o) {
    if (--o->left)
        return;
    o->done_at = s->now;
    for (uint32_t i = 0; i < s->simulated; i++)
        side_close(s, &o->sides[i]);
    free(o->sides);
    o->sides = NULL;
}

/* Some chunks of a step are done: others may go on. */
static void step_moved(sim *s, uint32_t rank, uint32_t op, uint32_t i) {
    side *d = &s->ops[op].sides[rank];
    bool whole = d->tracks[i].done == d->tracks[i].total;
    for (uint32_t k = d->follow_first[i]; k < d->follow_first[i + 1]; k++)
        step_look(s, rank, op, d->follow[k]);
    if (whole && --d->undone == 0)
        side_finished(s, &s->ops[op]);
}

static void fold_begin(sim *s, uint32_t rank, uint32_t op, side *d, uint32_t i) {
    const dti_schedule_step *step = &d->schedule.steps[i];
    track *t = &d->tracks[i];
    uint64_t from = t->begun * d->schedule.chunk_elements;
    double bytes = (double)(DTI_MIN(d->schedule.chunk_elements, step->count - from) *
                            dti_flight_step_bytes(step));
    uint32_t sums = step->kind == DTI_SCHEDULE_COPY ? 1 : step->source_count - 1;
    t->begun++;
    double until = processor_until(s, &s->nodes[rank], bytes * sums * s->net->gamma);
    event_add(s, until, (event){.kind = EVENT_FOLDED, .node = rank, .peer = op, .what = i});
}

static void step_look(sim *s, uint32_t rank, uint32_t op, uint32_t i) {
    side *d = &s->ops[op].sides[rank];
    const dti_schedule_step *step = &d->schedule.steps[i];
    track *t = &d->tracks[i];
    if (t->done == t->total)
        return;
    if (step->kind == DTI_SCHEDULE_SEND) {
        t->ready = step_limit(d, i);
        if (send_may_go(d, i))
            wish_add(s, rank, op, step->peer, i);
    } else if (step->kind == DTI_SCHEDULE_RECV) {
        uint32_t done = t->done;
        t->granted = recv_limit(s, &s->nodes[rank], op, d, i);
        t->done = DTI_MIN(t->came, t->granted);
        if (credit_is_due(d, i))
            wish_add(s, rank, op, step->peer, i);
        if (t->done > done)
            step_moved(s, rank, op, i);
    } else
        for (uint32_t limit = step_limit(d, i); t->begun < limit;)
            fold_begin(s, rank, op, d, i);
}

/* Looks at the RECVs into slots, those of one FOLD or all, from the next rank on. So the first
 * permission of each goes to another one. (On a real network packets of all connections mix, and no
 * receiver is everybody's first either.) */
static void slots_look(sim *s, uint32_t rank, uint32_t op, uint32_t first, uint32_t count) {
    side *d = &s->ops[op].sides[rank];
    for (int lower = 0; lower < 2; lower++)
        for (uint32_t i = first; i < first + count; i++) {
            const dti_source *source = &d->schedule.sources[i];
            if (source->step == DTI_NO_STEP || source->place != DTI_REGION_SLOT)
                continue;
            if ((d->schedule.steps[source->step].peer < rank) == lower)
                step_look(s, rank, op, source->step);
        }
}

/* Gives the slots to the first operation whose senders have all posted. */
static void pool_lend(sim *s, uint32_t rank) {
    node *n = &s->nodes[rank];
    for (uint32_t op = 0; op < s->op_count && n->pool_user == DTI_NOBODY; op++) {
        side *d = s->ops[op].sides ? &s->ops[op].sides[rank] : NULL;
        if (!d || !d->slot_folds || d->slot_senders)
            continue;
        n->pool_user = op;
        slots_look(s, rank, op, 0, (uint32_t)d->schedule.source_count);
    }
}

static void fold_done(sim *s, uint32_t rank, uint32_t op, uint32_t i) {
    side *d = &s->ops[op].sides[rank];
    const dti_schedule_step *step = &d->schedule.steps[i];
    track *t = &d->tracks[i];
    t->done++;
    slots_look(s, rank, op, step->first_source, step->source_count);
    if (t->takes_slots && t->done == t->total && --d->slot_folds == 0 &&
        s->nodes[rank].pool_user == op) {
        s->nodes[rank].pool_user = DTI_NOBODY;
        pool_lend(s, rank);
    }
    step_moved(s, rank, op, i);
}

/* ---- going out */

static uint32_t make_data(sim *s, uint32_t op, side *d, uint32_t i) {
    const dti_schedule_step *step = &d->schedule.steps[i];
    uint64_t from = d->tracks[i].begun++ * d->schedule.chunk_elements;
    uint64_t count = DTI_MIN(d->schedule.chunk_elements, step->count - from);
    d->state[step->peer] |= DTI_PEER_TOLD; /* if it goes early it is the announcement */
    uint32_t bytes = (uint32_t)(count * dti_flight_step_bytes(step)) + s->net->header_bytes;
    return frame_make(
        s,
        (frame){.kind = FRAME_DATA, .op = op, .bytes = bytes, .value = i, .stream = step->stream});
}

/* The frame that a wish makes; DTI_NOBODY: none (any more). */
static uint32_t wish_make(sim *s, uint32_t rank, uint32_t peer, wish w) {
    side *d = s->ops[w.op].sides ? &s->ops[w.op].sides[rank] : NULL;
    frame f = {.op = w.op, .bytes = s->net->header_bytes};
    if (!d)
        return DTI_NOBODY;
    if (w.step == WISH_POST) {
        if (!(d->state[peer] & DTI_PEER_DUE))
            return DTI_NOBODY;
        d->state[peer] =
            (uint8_t)((d->state[peer] & ~DTI_PEER_DUE) | DTI_PEER_TOLD | DTI_PEER_ASKED);
        f.kind = FRAME_POST;
        return frame_make(s, f);
    }
    if (d->schedule.steps[w.step].kind == DTI_SCHEDULE_SEND)
        return send_may_go(d, w.step) ? make_data(s, w.op, d, w.step) : DTI_NOBODY;
    if (!credit_is_due(d, w.step))
        return DTI_NOBODY;
    f.kind = FRAME_CREDIT;
    f.stream = d->schedule.steps[w.step].stream;
    f.value = d->tracks[w.step].told = d->tracks[w.step].granted;
    return frame_make(s, f);
}

/* Operations take turns; within one, announcements come first, then steps in their order. */
static uint32_t conn_choose(const conn *c) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < c->wish_count; i++) {
        const wish *a = &c->wishes[i], *b = &c->wishes[best];
        uint32_t far_a = a->op - c->turn, far_b = b->op - c->turn; /* modulo 2^32 */
        if (far_a < far_b || (far_a == far_b && a->step + 1 < b->step + 1))
            best = i;
    }
    return best;
}

static uint32_t conn_next(sim *s, uint32_t rank, uint32_t peer) {
    conn *c = &s->nodes[rank].conns[peer];
    while (c->wish_count) {
        uint32_t at = conn_choose(c);
        wish w = c->wishes[at];
        uint32_t f = wish_make(s, rank, peer, w);
        if (f != DTI_NOBODY) {
            if (s->frames[f].kind == FRAME_DATA)
                c->turn = w.op + 1;
            return f;
        }
        if (w.step != WISH_POST && s->ops[w.op].sides)
            s->ops[w.op].sides[rank].tracks[w.step].wanted = false;
        c->wishes[at] = c->wishes[--c->wish_count];
    }
    return DTI_NOBODY;
}

static void link_next(sim *s, uint32_t rank) {
    node *n = &s->nodes[rank];
    if (n->busy || n->sending.first == DTI_NOBODY)
        return;
    uint32_t peer = n->sending.first;
    conn *c = &n->conns[peer];
    uint32_t f = c->first, bytes = s->frames[f].bytes;
    n->sending.first = c->next_sending;
    c->sending = false;
    c->first = s->frames[f].next;
    n->busy = true;
    event arrived = {.kind = EVENT_ARRIVED, .node = peer, .peer = rank, .what = f};
    if (s->simulated == 1) {
        arrived.node = 0;
        arrived.peer = sim_inverse(s, peer);
    }
    event_add(s, s->now + s->net->alpha, arrived);
    event_add(s, s->now + bytes * s->net->beta,
              (event){.kind = EVENT_SENT, .node = rank, .peer = peer, .bytes = bytes});
}

static void rank_ask(sim *s, uint32_t rank);

/* The processor has given a frame to the system. */
static void frame_handed(sim *s, uint32_t rank, uint32_t peer, uint32_t f) {
    node *n = &s->nodes[rank];
    conn *c = &n->conns[peer];
    frame handed = s->frames[f];
    s->frames[f].next = DTI_NOBODY;
    if (c->first == DTI_NOBODY)
        c->first = f;
    else
        s->frames[c->last].next = f;
    c->last = f;
    sending_add(n, peer);
    if (handed.kind == FRAME_DATA) {
        s->ops[handed.op].sides[rank].tracks[handed.value].done++;
        step_moved(s, rank, handed.op, handed.value);
    }
    link_next(s, rank);
}

/* Asks each connection that may have something, in turn, until all are full or have nothing. */
static void rank_ask(sim *s, uint32_t rank) {
    node *n = &s->nodes[rank];
    while (n->asked.first != DTI_NOBODY) {
        uint32_t peer = n->asked.first;
        conn *c = &n->conns[peer];
        n->asked.first = c->next_asked;
        c->asked = false;
        if (c->buffered >= s->net->buffer_bytes)
            continue;
        uint32_t f = conn_next(s, rank, peer);
        if (f == DTI_NOBODY)
            continue;
        double bytes = s->frames[f].bytes;
        c->buffered += s->frames[f].bytes;
        asked_add(n, peer);
        event_add(s, processor_until(s, n, s->net->message_cost + bytes * s->net->byte_cost),
                  (event){.kind = EVENT_HANDED, .node = rank, .peer = peer, .what = f});
    }
}

/* ---- coming in */

static uint32_t side_stream(side *d, uint32_t peer, dti_schedule_step_kind kind, uint32_t stream) {
    uint32_t *first = &d->first_of[peer];
    while (*first != DTI_NOBODY && d->tracks[*first].done == d->tracks[*first].total)
        *first = d->tracks[*first].next; /* a ring's chain is long, and done from its front */
    uint32_t i = *first;
    while (i != DTI_NOBODY &&
           (d->schedule.steps[i].kind != kind || d->schedule.steps[i].stream != stream))
        i = d->tracks[i].next;
    return i;
}

static void peer_posted(sim *s, uint32_t rank, uint32_t op, uint32_t peer) {
    side *d = &s->ops[op].sides[rank];
    if (d->state[peer] & DTI_PEER_POSTED)
        return;
    d->state[peer] |= DTI_PEER_POSTED;
    for (uint32_t i = d->first_of[peer]; i != DTI_NOBODY; i = d->tracks[i].next) {
        const dti_schedule_step *step = &d->schedule.steps[i];
        if (step->kind == DTI_SCHEDULE_SEND && !step->credited) {
            d->tracks[i].granted = d->tracks[i].total;
            step_look(s, rank, op, i);
        } else if (step->kind == DTI_SCHEDULE_RECV) {
            d->slot_senders -= step->place == DTI_REGION_SLOT;
            step_look(s, rank, op, i);
        }
    }
    if (d->slot_streams && !d->slot_senders)
        pool_lend(s, rank);
}

static void data_taken(sim *s, uint32_t rank, uint32_t peer, const frame *f) {
    side *d = &s->ops[f->op].sides[rank];
    peer_posted(s, rank, f->op, peer);
    uint32_t i = side_stream(d, peer, DTI_SCHEDULE_RECV, f->stream);
    if (i == DTI_NOBODY)
        sim_fail("data", "there is no such stream");
    d->tracks[i].came++;
    step_look(s, rank, f->op, i);
}

static void frame_taken(sim *s, uint32_t rank, uint32_t peer, uint32_t number) {
    frame f = s->frames[number];
    frame_free(s, number);
    if (!s->ops[f.op].sides)
        return; /* it is over */
    side *d = &s->ops[f.op].sides[rank];
    if (f.kind == FRAME_POST) {
        if (!(d->state[peer] & (DTI_PEER_DUE | DTI_PEER_TOLD))) {
            d->state[peer] |= DTI_PEER_DUE;
            wish_add(s, rank, f.op, peer, WISH_POST);
        }
        peer_posted(s, rank, f.op, peer);
    } else if (f.kind == FRAME_DATA) {
        data_taken(s, rank, peer, &f);
    } else {
        uint32_t i = side_stream(d, peer, DTI_SCHEDULE_SEND, f.stream);
        if (i == DTI_NOBODY)
            return;
        d->tracks[i].granted = DTI_MAX(d->tracks[i].granted, f.value);
        step_look(s, rank, f.op, i);
    }
}

static void operation_post(sim *s, uint32_t op) {
    operation *o = &s->ops[op];
    o->left = s->simulated;
    o->sides = sim_alloc(s->simulated, sizeof *o->sides);
    for (uint32_t rank = 0; rank < s->simulated; rank++)
        side_open(s, o, rank, &o->sides[rank]);
    for (uint32_t rank = 0; rank < s->simulated; rank++) {
        side *d = &o->sides[rank];
        for (uint32_t i = 0; i < d->schedule.step_count; i++) {
            const dti_schedule_step *step = &d->schedule.steps[i];
            if (!s->net->permitted && dti_flight_step_moves(step) && d->first_of[step->peer] == i &&
                d->state[step->peer] & DTI_PEER_DUE)
                wish_add(s, rank, op, step->peer, WISH_POST);
            step_look(s, rank, op, i);
        }
        rank_ask(s, rank);
    }
}

/* ---- the clock */

static void event_handle(sim *s, const event *e) {
    node *n = &s->nodes[e->node];
    if (e->kind == EVENT_POST) {
        operation_post(s, e->what);
        return;
    }
    if (e->kind == EVENT_HANDED) {
        frame_handed(s, e->node, e->peer, e->what);
    } else if (e->kind == EVENT_FOLDED) {
        fold_done(s, e->node, e->peer, e->what);
    } else if (e->kind == EVENT_TAKEN) {
        frame_taken(s, e->node, e->peer, e->what);
    } else if (e->kind == EVENT_SENT) {
        n->busy = false;
        n->conns[e->peer].buffered -= e->bytes;
        if (n->conns[e->peer].first != DTI_NOBODY)
            sending_add(n, e->peer);
        asked_add(n, e->peer);
        link_next(s, e->node);
    } else {
        double bytes = s->frames[e->what].bytes;
        event next = *e;
        next.kind = e->kind == EVENT_ARRIVED ? EVENT_IN : EVENT_TAKEN;
        if (e->kind == EVENT_ARRIVED)
            n->ingress_free = DTI_MAX(n->ingress_free, s->now) + bytes * s->net->beta;
        else
            processor_until(s, n, s->net->message_cost + bytes * s->net->byte_cost);
        event_add(s, e->kind == EVENT_ARRIVED ? n->ingress_free : n->processor_free, next);
        return;
    }
    rank_ask(s, e->node);
}

/* ---- a run */

static void sim_open(sim *s) {
    s->symmetry = sim_symmetry(s);
    s->simulated = s->symmetry ? 1 : s->size;
    s->nodes = sim_alloc(s->simulated, sizeof *s->nodes);
    s->free_frame = DTI_NOBODY;
    for (uint32_t i = 0; i < s->simulated; i++) {
        node *n = &s->nodes[i];
        n->conns = sim_alloc(s->size, sizeof *n->conns);
        n->asked.first = n->sending.first = n->pool_user = DTI_NOBODY;
        for (uint32_t peer = 0; peer < s->size; peer++)
            n->conns[peer].first = DTI_NOBODY;
    }
}

static void sim_close(sim *s) {
    for (uint32_t i = 0; i < s->simulated; i++) {
        for (uint32_t peer = 0; peer < s->size; peer++)
            free(s->nodes[i].conns[peer].wishes);
        free(s->nodes[i].conns);
    }
    free(s->nodes);
    free(s->frames);
    free(s->events);
}

/* Runs operations that all ranks post at post_at, in order; done_at is when the last rank has its
 * result. */
static symmetry_kind sim_run(const network *net, uint32_t size, operation *ops, uint32_t count) {
    sim s = {.net = net, .size = size, .ops = ops, .op_count = count};
    s.costs = network_costs(net, size);
    dti_base_init(&s.base, NULL, NULL);
    for (uint32_t i = 0; i < count; i++) {
        ops[i].what.size = size;
        ops[i].what.chunk_bytes = net->chunk_bytes;
        ops[i].what.costs = &s.costs;
    }
    sim_open(&s);
    for (uint32_t i = 0; i < count; i++)
        event_add(&s, ops[i].post_at, (event){.kind = EVENT_POST, .what = i});
    while (s.event_count) {
        event e = event_take(&s);
        s.now = e.at;
        event_handle(&s, &e);
    }
    for (uint32_t i = 0; i < count; i++)
        if (ops[i].sides)
            sim_fail("an operation", "stands still: the model is wrong");
    for (uint32_t i = 0; i < count; i++)
        ops[i].what.costs = NULL;
    sim_close(&s);
    return s.symmetry;
}
