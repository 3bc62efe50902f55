/* The network half of dtmodel: collectives on a virtual clock. Every rank's schedule comes from the
 * library's own code (dti_algorithm_choose, algo_*.c). It runs here by the rules of
 * src/comm/protocol/flight.c and the engine. These are announcements, permissions chunk by chunk,
 * and the window of slots, which one operation has at a time. Short streams do not ask, and
 * operations take turns on a connection. No byte moves; what a byte costs is the input (LogGP:
 * Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995):
 *
 *   a frame of n bytes   the sender's processor o + n G, its link n beta, then alpha. The
 *                        receiver's link n beta (from the first byte's arrival on, so not twice),
 *                        and its processor o + n G
 *   a fold of k sources  the processor (k - 1) n gamma
 *
 * A rank has one processor, one link out and one in, each serving one thing after the other; a link
 * deals its turns to connections frame by frame. Not modelled: losses, retransmission, congestion
 * control, switches of less than full bandwidth, ranks that are late, several sockets, the limit on
 * bytes that go early.
 *
 * dtmodel_run.h has the rules and the clock; dtmodel_alike.h finds out where one rank's part is
 * enough. */

typedef struct network {                                /* seconds, bytes */
    double alpha, beta, gamma, message_cost, byte_cost; /* the last two: o and G */
    uint64_t chunk_bytes, buffer_bytes; /* the latter: a connection's, in the system */
    uint32_t window, header_bytes;
    bool permitted; /* everything is permitted from the start: closed formulas hold */
    bool full;      /* simulate all ranks, whatever the symmetry */
} network;

typedef enum frame_kind { FRAME_POST, FRAME_CREDIT, FRAME_DATA } frame_kind;

typedef struct frame { /* one in the pool; next: in a list */
    uint32_t next, bytes, op, value;
    uint16_t stream;
    uint8_t kind;
} frame;

typedef struct track { /* dti_track, in as far as it matters here */
    uint32_t total, done, came, granted, told, ready, begun, next, consumer;
    bool wanted;      /* is in its connection's list */
    bool takes_slots; /* a FOLD that empties some */
} track;

typedef struct side { /* one rank's of one operation */
    dti_schedule schedule;
    track *tracks;
    uint32_t *first_of; /* [size] steps with that rank, a chain */
    uint8_t *state;     /* [size] DTI_PEER_... */
    uint32_t *follow_first, *follow;
    uint32_t undone, slot_streams, slot_senders, slot_folds;
    uint32_t early_bytes; /* streams up to here go without a permission */
} side;

typedef struct operation {
    dti_collective what;
    double post_at, done_at;
    side *sides; /* [simulated ranks], while it is under way */
    uint32_t left;
} operation;

typedef struct wish { /* a step that may have something to send, or WISH_POST */
    uint32_t op, step;
} wish;
#define WISH_POST UINT32_MAX

typedef struct conn {
    wish *wishes;
    uint32_t wish_count, wish_room, turn;
    uint32_t first, last; /* frames in the system's buffer */
    uint64_t buffered;
    uint32_t next_asked, next_sending;
    bool asked, sending; /* in those lists */
} conn;

typedef struct list { /* of connections */
    uint32_t first, last;
} list;

typedef struct node {
    conn *conns; /* [size] by the other rank */
    list asked, sending;
    double ingress_free, processor_free;
    uint32_t pool_user; /* the operation that has the slots */
    bool busy;          /* the link out */
} node;

typedef enum event_kind {
    EVENT_POST,
    EVENT_HANDED,
    EVENT_SENT,
    EVENT_ARRIVED,
    EVENT_IN,
    EVENT_TAKEN,
    EVENT_FOLDED
} event_kind;

typedef struct event {
    double at;
    uint64_t number; /* of equal times the first made is the first taken */
    uint32_t node, peer, what, bytes;
    uint8_t kind;
} event;

typedef enum symmetry_kind { SYMMETRY_NONE, SYMMETRY_TURN, SYMMETRY_XOR } symmetry_kind;

/* What the library would measure on it: a short message takes both processors, the link and the
 * way; a further one what a processor does for one that goes out and one that comes in; of bytes
 * the link or the processor is the slower. */
static dti_costs network_costs(const network *net, uint32_t size) {
    double header = net->header_bytes * (net->beta + 2 * net->byte_cost);
    double byte = DTI_MAX(net->beta, 2 * net->byte_cost);
    dti_link_cost cost = {(uint64_t)((net->alpha + 2 * net->message_cost + header) * 1e9),
                          (uint64_t)(2 * net->message_cost * 1e9), (uint64_t)(byte * 1e12)};
    cost.latency_ns = DTI_MAX(cost.latency_ns, 1);
    return (dti_costs){cost, cost, net->chunk_bytes, net->window, dti_early_bytes(size)};
}

typedef struct sim {
    dti_base base;
    dti_costs costs; /* by which the default algorithm is chosen */
    const network *net;
    uint32_t size, simulated; /* ranks; of them simulated: all, or rank 0 */
    symmetry_kind symmetry;
    operation *ops;
    uint32_t op_count;
    node *nodes;
    frame *frames;
    size_t frame_room;
    uint32_t frame_count, free_frame;
    event *events; /* a heap */
    size_t event_room, event_count;
    uint64_t event_number;
    double now;
} sim;

static _Noreturn void sim_fail(const char *what, const char *why) {
    fprintf(stderr, "dtmodel: %s: %s\n", what, why);
    exit(2);
}

static void *sim_alloc(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        sim_fail("memory", "not enough for so many ranks");
    return memory;
}

static void *sim_grow(void *items, size_t count, size_t size) {
    void *grown = realloc(items, count * size);
    if (!grown)
        sim_fail("memory", "not enough for so many ranks");
    return grown;
}

/* ---- events, by time */

static bool event_before(const event *a, const event *b) {
    return a->at < b->at || (a->at <= b->at && a->number < b->number);
}

static void event_add(sim *s, double at, event e) {
    if (s->event_count == s->event_room) {
        s->event_room = s->event_room ? 2 * s->event_room : 1024;
        s->events = sim_grow(s->events, s->event_room, sizeof *s->events);
    }
    e.at = at;
    e.number = s->event_number++;
    size_t i = s->event_count++;
    for (; i && event_before(&e, &s->events[(i - 1) / 2]); i = (i - 1) / 2)
        s->events[i] = s->events[(i - 1) / 2];
    s->events[i] = e;
}

static event event_take(sim *s) {
    event first = s->events[0], last = s->events[--s->event_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->event_count)
            break;
        if (child + 1 < s->event_count && event_before(&s->events[child + 1], &s->events[child]))
            child++;
        if (!event_before(&s->events[child], &last))
            break;
        s->events[i] = s->events[child];
        i = child;
    }
    s->events[i] = last;
    return first;
}

/* ---- frames and lists */

static uint32_t frame_make(sim *s, frame f) {
    uint32_t i = s->free_frame;
    if (i != DTI_NOBODY) {
        s->free_frame = s->frames[i].next;
    } else {
        i = s->frame_count++;
        if (i == s->frame_room) {
            s->frame_room = s->frame_room ? 2 * s->frame_room : 1024;
            s->frames = sim_grow(s->frames, s->frame_room, sizeof *s->frames);
        }
    }
    f.next = DTI_NOBODY;
    s->frames[i] = f;
    return i;
}

static void frame_free(sim *s, uint32_t i) {
    s->frames[i].next = s->free_frame;
    s->free_frame = i;
}

static void asked_add(node *n, uint32_t peer) {
    conn *c = &n->conns[peer];
    if (c->asked)
        return;
    c->asked = true;
    c->next_asked = DTI_NOBODY;
    if (n->asked.first == DTI_NOBODY)
        n->asked.first = peer;
    else
        n->conns[n->asked.last].next_asked = peer;
    n->asked.last = peer;
}

static void sending_add(node *n, uint32_t peer) {
    conn *c = &n->conns[peer];
    if (c->sending)
        return;
    c->sending = true;
    c->next_sending = DTI_NOBODY;
    if (n->sending.first == DTI_NOBODY)
        n->sending.first = peer;
    else
        n->conns[n->sending.last].next_sending = peer;
    n->sending.last = peer;
}

/* When work of `seconds` that the processor gets now is done. */
static double processor_until(const sim *s, node *n, double seconds) {
    n->processor_free = DTI_MAX(n->processor_free, s->now) + seconds;
    return n->processor_free;
}

/* ---- the mapping of ranks */

/* Where rank 0's peer finds rank 0, seen as rank 0. */
static uint32_t sim_inverse(const sim *s, uint32_t peer) {
    return s->symmetry == SYMMETRY_TURN ? (s->size - peer) % s->size : peer;
}

static uint32_t sim_relative(symmetry_kind symmetry, uint32_t rank, uint32_t peer, uint32_t size) {
    return symmetry == SYMMETRY_TURN ? (peer + size - rank) % size : peer ^ rank;
}

/* ---- one rank's side of an operation */

/* Whether a stream may go early. */
static bool step_is_short(const side *d, uint32_t i) {
    const dti_schedule_step *step = &d->schedule.steps[i];
    return d->tracks[i].total == 1 && step->count * dti_flight_step_bytes(step) <= d->early_bytes;
}

static void side_chain(side *d, uint32_t size) {
    memset(d->first_of, 0xFF, size * sizeof *d->first_of);
    for (uint32_t i = (uint32_t)d->schedule.step_count; i-- > 0;) {
        const dti_schedule_step *step = &d->schedule.steps[i];
        track *t = &d->tracks[i];
        t->total = dti_chunks(&d->schedule, step->count);
        t->next = t->consumer = DTI_NOBODY;
        if (!dti_flight_step_moves(step))
            continue;
        t->next = d->first_of[step->peer];
        d->first_of[step->peer] = i;
        d->state[step->peer] |= DTI_PEER_INVOLVED;
        if (!step_is_short(d, i))
            d->state[step->peer] |= DTI_PEER_DUE;
    }
}

static void side_slots(side *d) {
    for (uint32_t i = 0; i < d->schedule.step_count; i++) {
        const dti_schedule_step *step = &d->schedule.steps[i];
        uint32_t slots = 0;
        for (uint32_t k = 0; k < step->source_count; k++) {
            const dti_source *source = &d->schedule.sources[step->first_source + k];
            if (source->step == DTI_NO_STEP || source->place != DTI_REGION_SLOT)
                continue;
            d->tracks[source->step].consumer = i;
            slots++;
        }
        d->slot_streams += slots;
        d->tracks[i].takes_slots = slots > 0;
        d->slot_folds += slots > 0;
    }
    d->slot_senders = d->slot_streams;
}

/* The k-th step that step i comes after; DTI_NO_STEP = no such step. */
static uint32_t side_before(const side *d, uint32_t i, uint32_t k) {
    const dti_schedule_step *step = &d->schedule.steps[i];
    if (k < step->after_count)
        return d->schedule.after[step->first_after + k] & ~DTI_AFTER_WHOLE;
    return d->schedule.sources[step->first_source + k - step->after_count].step;
}

/* follow[follow_first[i] ...]: the steps that come after step i. */
static void side_follow(side *d) {
    uint32_t count = (uint32_t)d->schedule.step_count;
    d->follow_first = sim_alloc(count + 2, sizeof *d->follow_first);
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < count; i++) {
            const dti_schedule_step *step = &d->schedule.steps[i];
            for (uint32_t k = 0; k < step->after_count + step->source_count; k++) {
                uint32_t before = side_before(d, i, k);
                if (before == DTI_NO_STEP)
                    continue;
                if (fill)
                    d->follow[d->follow_first[before + 1]++] = i;
                else
                    d->follow_first[before + 2]++;
            }
        }
        for (uint32_t i = 0; i <= count && !fill; i++)
            d->follow_first[i + 1] += d->follow_first[i];
        if (!fill)
            d->follow = sim_alloc(d->follow_first[count + 1], sizeof *d->follow);
    }
}

static void schedule_build(dti_base *base, const dti_collective *what, dti_schedule *schedule) {
    dti_collective c = *what;
    dti_algorithm_fn *build = dti_algorithm_choose(base, what, &c.op.algorithm);
    if (!build || !dti_schedule_build(base, &c, build, schedule))
        sim_fail("schedule", base->error);
}

static void side_open(sim *s, const operation *o, uint32_t rank, side *d) {
    dti_collective c = o->what;
    c.rank = rank;
    schedule_build(&s->base, &c, &d->schedule);
    d->undone = (uint32_t)d->schedule.step_count;
    d->tracks = sim_alloc(d->undone, sizeof *d->tracks);
    d->first_of = sim_alloc(s->size, sizeof *d->first_of);
    d->state = sim_alloc(s->size, sizeof *d->state);
    d->early_bytes = dti_early_bytes(s->size);
    side_chain(d, s->size);
    side_slots(d);
    side_follow(d);
    for (uint32_t i = 0; i < d->undone && s->net->permitted; i++)
        d->tracks[i].granted = d->tracks[i].told = d->tracks[i].total;
}

static void side_close(sim *s, side *d) {
    dti_schedule_free(&s->base, &d->schedule);
    free(d->tracks);
    free(d->first_of);
    free(d->state);
    free(d->follow_first);
    free(d->follow);
}
