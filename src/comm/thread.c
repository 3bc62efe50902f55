/* Ranks that are threads of one process. Nothing is sent: an operation is a slot where each rank
 * puts its buffers, and once all have, whoever waits claims jobs of about 128 KiB and does them for
 * all ranks, straight from their buffers to their buffers. One waiter is enough. A job reads all
 * that it touches of its range of elements before it writes there, in an order in which no job
 * touches what another one reads, so every in-place form is safe. Who does a job never changes a
 * bit of the result: reductions are the tree of reduce.h.
 *
 * Cost of an all-reduce of S bytes at N ranks: N S read, N S written, no memory but the slots.
 *
 * A hub has the teams, a team (all ranks, or a group) the slots, all under the hub's one lock; only
 * jobs are claimed without it. A slot goes from GATHERING (posts are missing) to READY (jobs may be
 * claimed) to DONE, or from both of the first to ENDED with the hub: what ends one group ends all,
 * for the ranks are in the middle of it. `workers` counts the threads that are in a slot's buffers
 * without the lock: a rank's handle ends when its slot is DONE, or ENDED with no worker, and so
 * nobody reads a buffer that has been given back. */

#define DTI_JOB_BYTES ((uint64_t)128 << 10)
/* A job folds so much at a time, into one rank's result, and copies it to the others' while it is
 * in the first-level cache. */
#define DTI_FOLD_BYTES ((uint64_t)8 << 10)
/* Waking a sleeping thread costs 5 to 50 us. */
#define DTI_THREAD_SPIN_NS 10000
/* What dt_comm_test does at most, so that it does not block. */
#define DTI_TEST_JOBS 4
#define DTI_THREADS_MAX 1024

typedef enum dti_meet_phase {
    DTI_PHASE_FREE,
    DTI_PHASE_GATHERING,
    DTI_PHASE_READY,
    DTI_PHASE_DONE,
    DTI_PHASE_ENDED
} dti_meet_phase;

typedef enum dti_post_state { DTI_POST_NONE, DTI_POST_BORROWED, DTI_POST_ENDED } dti_post_state;

typedef struct dti_post {
    const void *in;
    void *out;
    dti_post_state state;
    uint64_t at; /* when, if there is a limit */
} dti_post;

typedef struct dti_slot {
    uint64_t use;      /* how often it has been taken: the upper part of ids */
    uint64_t sequence; /* of the team's collectives, or of this pair's sends */
    dt_comm_op op;     /* of the first who posted; its buffers are not looked at */
    uint32_t first;    /* that rank */
    uint32_t from, to; /* send and recv; else both are the size */
    uint32_t needed, posted, ended;
    uint32_t workers;  /* threads doing jobs */
    uint32_t sleepers; /* on `changed` */
    dti_post *posts;   /* [size] */
    uint64_t jobs, job_elements;
    pthread_cond_t changed; /* the phase, or the last worker has left */
    alignas(64) _Atomic uint64_t next_job;
    _Atomic int phase; /* a dti_meet_phase; written under the lock, watched without it */
} dti_slot;

/* The ranks of one group. */
typedef struct dti_team {
    struct dti_team *next;
    uint32_t id, first_rank; /* disjoint groups may have the same id: the lowest world rank */
    uint32_t size;
    uint32_t open;    /* ranks that have it */
    bool *left;       /* [size] */
    dti_slot **slots; /* [slot_count], never fewer */
    size_t slot_count, slot_room;
} dti_team;

typedef struct dti_hub {
    dti_base base; /* of what the ranks share: silent, and used under the lock */
    pthread_mutex_t lock;
    uint32_t open; /* ranks that have it */
    dti_team *teams;
    uint64_t op_ns;   /* a rank that has not posted for so long ends the hub; 0 = no limit */
    dt_result result; /* what ended it */
    char error[512];
} dti_hub;

/* A rank in a team. */
typedef struct dti_seat {
    dti_hub *hub;
    dti_team *team;
    uint64_t sequence;       /* collectives posted */
    uint64_t *sent, *heard;  /* [size] sends to and receives from each */
    dti_operand *operands;   /* scratch of a fold: one for each rank, or for each span */
    dti_operand *leaf_spans; /* their spans in tree mode, all ranks' */
    uint32_t *leaf_buffers;  /* [size] how many each has */
    size_t operand_room, leaf_room;
    uint32_t leaf_count, leaf_changes; /* of leaf_spans; the comm's leaf_changes then */
} dti_seat;

static bool dti_slot_needs(const dti_slot *slot, uint32_t rank) {
    return slot->needed != 2 || slot->from == slot->to || slot->from == rank || slot->to == rank;
}

/* ---- the jobs: a range of elements of all ranks' buffers */

typedef struct dti_job {
    const dt_comm *comm; /* of the thread that does it */
    dti_seat *seat;
    const dti_slot *slot;
    uint64_t from, count; /* elements, in every block */
    uint64_t width;       /* bytes of an element */
    uint32_t size;
} dti_job;

/* The job's range in block `block` of a rank's buffer. */
static const char *dti_job_in(const dti_job *j, uint32_t rank, uint32_t block) {
    return (const char *)j->slot->posts[rank].in + (j->slot->op.count * block + j->from) * j->width;
}

static char *dti_job_out(const dti_job *j, uint32_t rank, uint32_t block) {
    return (char *)j->slot->posts[rank].out + (j->slot->op.count * block + j->from) * j->width;
}

static void dti_job_copy(const dti_job *j, char *to, const char *from) {
    if (to != from)
        memcpy(to, from, (size_t)(j->count * j->width));
}

/* Folds elements at + [0, count) of the job's range of block `block`. */
static void dti_job_fold(const dti_job *j, char *out, uint32_t block, uint64_t at, uint64_t count) {
    const dt_comm_op *op = &j->slot->op;
    dti_operand *operands = j->seat->operands;
    for (uint32_t r = 0; r < j->size; r++)
        operands[r] = (dti_operand){dti_job_in(j, r, block) + at * j->width, (uint8_t)op->dtype,
                                    (dt_comm_span){r, 1}};
    dti_fold(out, operands, j->size, count, op->dtype, op->reduction, true, j->size);
}

static void dti_job_fold_leaves(const dti_job *j, char *out, uint64_t at, uint64_t count) {
    const dt_comm_op *op = &j->slot->op;
    const dti_seat *seat = j->seat;
    uint8_t dtype = dti_sum_dtype(op->dtype, op->reduction);
    uint64_t width = dti_op_in_width(op);
    uint32_t n = 0;
    for (uint32_t r = 0; r < j->size; r++)
        for (uint32_t b = 0; b < seat->leaf_buffers[r]; b++, n++) {
            uint64_t element = op->count * b + j->from + at;
            seat->operands[n].data = (const char *)j->slot->posts[r].in + element * width;
            seat->operands[n].dtype = dtype;
            seat->operands[n].span = seat->leaf_spans[n].span;
        }
    dti_fold(out, seat->operands, n, count, op->dtype, op->reduction, true, j->comm->leaf_total);
}

/* Into rank `owner`'s result, block by block, and from there to all others that want it. */
static void dti_job_reduce(const dti_job *j, uint32_t owner, bool all) {
    uint64_t step = DTI_MAX(DTI_FOLD_BYTES / j->width, 1);
    for (uint64_t at = 0; at < j->count; at += step) {
        uint64_t count = DTI_MIN(step, j->count - at);
        char *out = dti_job_out(j, owner, 0) + at * j->width;
        if (j->slot->op.tree)
            dti_job_fold_leaves(j, out, at, count);
        else
            dti_job_fold(j, out, 0, at, count);
        for (uint32_t r = 0; all && r < j->size; r++)
            if (r != owner)
                memcpy(dti_job_out(j, r, 0) + at * j->width, out, (size_t)(count * j->width));
    }
}

/* Ascending: a result at the start of `in` lies over block 0, which was folded first, and one at
 * its own place over a block that nobody reads after. */
static void dti_job_reduce_scatter(const dti_job *j) {
    for (uint32_t b = 0; b < j->size; b++)
        dti_job_fold(j, dti_job_out(j, b, 0), b, 0, j->count);
}

/* Descending: an `in` at the start of `out` lies over block 0, which is written last. */
static void dti_job_gather(const dti_job *j, uint32_t to) {
    for (uint32_t r = j->size; r-- > 0;)
        dti_job_copy(j, dti_job_out(j, to, r), dti_job_in(j, r, 0));
}

static void dti_job_all_gather(const dti_job *j) {
    for (uint32_t r = j->size; r-- > 0;)
        for (uint32_t to = 0; to < j->size; to++)
            dti_job_copy(j, dti_job_out(j, to, r), dti_job_in(j, r, 0));
}

/* The root last: its result may lie over block 0. */
static void dti_job_scatter(const dti_job *j, uint32_t root) {
    for (uint32_t r = 0; r < j->size; r++)
        if (r != root)
            dti_job_copy(j, dti_job_out(j, r, 0), dti_job_in(j, root, r));
    dti_job_copy(j, dti_job_out(j, root, 0), dti_job_in(j, root, root));
}

/* What a gives b and b gives a, by way of two small copies: either may have in = out. */
static void dti_job_swap(const dti_job *j, uint32_t a, uint32_t b) {
    char from_a[2048], from_b[2048];
    uint64_t bytes = j->count * j->width;
    for (uint64_t at = 0; at < bytes; at += sizeof from_a) {
        size_t n = (size_t)DTI_MIN(bytes - at, sizeof from_a);
        memcpy(from_a, dti_job_in(j, a, b) + at, n);
        memcpy(from_b, dti_job_in(j, b, a) + at, n);
        memcpy(dti_job_out(j, a, b) + at, from_b, n);
        memcpy(dti_job_out(j, b, a) + at, from_a, n);
    }
}

static void dti_job_all_to_all(const dti_job *j) {
    for (uint32_t a = 0; a < j->size; a++) {
        dti_job_copy(j, dti_job_out(j, a, a), dti_job_in(j, a, a));
        for (uint32_t b = a + 1; b < j->size; b++)
            dti_job_swap(j, a, b);
    }
}

static void dti_job_broadcast(const dti_job *j, uint32_t root) {
    for (uint32_t r = 0; r < j->size; r++)
        if (r != root)
            dti_job_copy(j, dti_job_out(j, r, 0), dti_job_in(j, root, 0));
}

static void dti_job_do(const dti_job *j) {
    const dti_slot *slot = j->slot;
    uint32_t root = (uint32_t)slot->op.root;
    switch (slot->op.kind) {
    case DT_COMM_SEND:
    case DT_COMM_RECV:
        dti_job_copy(j, dti_job_out(j, slot->to, 0), dti_job_in(j, slot->from, 0));
        break;
    case DT_COMM_BROADCAST: dti_job_broadcast(j, root); break;
    case DT_COMM_REDUCE: dti_job_reduce(j, root, false); break;
    case DT_COMM_ALL_REDUCE: dti_job_reduce(j, j->comm->rank, true); break;
    case DT_COMM_GATHER: dti_job_gather(j, root); break;
    case DT_COMM_ALL_GATHER: dti_job_all_gather(j); break;
    case DT_COMM_SCATTER: dti_job_scatter(j, root); break;
    case DT_COMM_REDUCE_SCATTER: dti_job_reduce_scatter(j); break;
    case DT_COMM_ALL_TO_ALL: dti_job_all_to_all(j); break;
    case DT_COMM_BARRIER: break;
    }
}

/* Cuts the operation, whose posts are complete, into jobs. */
static void dti_slot_plan(dti_slot *slot, uint32_t size) {
    const dt_comm_op *op = &slot->op;
    bool blocks = op->kind >= DT_COMM_GATHER && op->kind != DT_COMM_BARRIER;
    uint64_t bytes = DTI_JOB_BYTES / (blocks ? size : 1);
    slot->job_elements = DTI_MAX(bytes, 4096) / dti_dtype_bytes(op->dtype);
    slot->jobs = op->count / slot->job_elements + (op->count % slot->job_elements != 0);
    atomic_store(&slot->next_job, 0);
}

/* Claims and does jobs until none is left, `most` are done, or the time is over. No lock is
 * held. */
static void dti_slot_work(dt_comm *comm, dti_slot *slot, uint64_t most, uint64_t deadline) {
    dti_seat *seat = comm->state;
    dti_job j = {.comm = comm, .seat = seat, .slot = slot, .size = seat->team->size};
    j.width = dti_dtype_bytes(slot->op.dtype);
    for (uint64_t done = 0; done < most; done++) {
        uint64_t i = atomic_fetch_add(&slot->next_job, 1);
        if (i >= slot->jobs)
            return;
        j.from = i * slot->job_elements;
        j.count = DTI_MIN(slot->job_elements, slot->op.count - j.from);
        dti_job_do(&j);
        if (deadline != UINT64_MAX && dti_now_ns() >= deadline)
            return;
    }
}

/* ---- slots; from here on the lock is held, if nothing else is said */

static void dti_slot_set(dti_slot *slot, dti_meet_phase phase) {
    atomic_store(&slot->phase, (int)phase);
    if (slot->sleepers)
        pthread_cond_broadcast(&slot->changed);
}

static dti_meet_phase dti_slot_phase(const dti_slot *slot) {
    return (dti_meet_phase)atomic_load(&slot->phase);
}

static void dti_cond_init(pthread_cond_t *cond) {
#if DTI_POSIX && !defined __APPLE__
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
#else
    pthread_cond_init(cond, NULL);
#endif
}

/* Until it is woken or the deadline (of dti_now_ns) is over; may return early. */
static void dti_slot_sleep(dti_hub *hub, dti_slot *slot, uint64_t deadline) {
    slot->sleepers++;
    if (deadline == UINT64_MAX) {
        pthread_cond_wait(&slot->changed, &hub->lock);
    } else {
        uint64_t now = dti_now_ns(), then = DTI_MAX(now, deadline);
#if !DTI_POSIX || defined __APPLE__
        struct timespec real; /* the condition's clock is another one, which may jump */
        timespec_get(&real, TIME_UTC);
        then = then - now + (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
#endif
        struct timespec at = {.tv_sec = (time_t)(then / 1000000000u),
                              .tv_nsec = (long)(then % 1000000000u)};
        pthread_cond_timedwait(&slot->changed, &hub->lock, &at);
    }
    slot->sleepers--;
}

static dti_slot *dti_slot_new(dti_hub *hub, dti_team *team) {
    if (team->slot_count >> 24 ||
        !dti_array_reserve(&hub->base, (void **)(void *)&team->slots, &team->slot_room,
                           team->slot_count + 1, sizeof *team->slots))
        return NULL;
    dti_slot *slot = dti_alloc(&hub->base, sizeof *slot);
    dti_post *posts = slot ? dti_alloc_array(&hub->base, team->size, sizeof *posts) : NULL;
    if (!posts) {
        dti_free(&hub->base, slot);
        return NULL;
    }
    slot->posts = posts;
    dti_cond_init(&slot->changed);
    team->slots[team->slot_count++] = slot;
    return slot;
}

/* The slot that rank `rank`'s next operation belongs to, new if it is the first there. An id is the
 * use and the index. NULL: no memory. */
static dti_slot *dti_slot_take(dti_hub *hub, dti_team *team, const dti_slot *key, size_t *index) {
    dti_slot *slot = NULL;
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *s = team->slots[i];
        bool busy = dti_slot_phase(s) != DTI_PHASE_FREE;
        if (busy && s->sequence == key->sequence && s->from == key->from && s->to == key->to) {
            *index = i;
            return s;
        }
        if (!busy && !slot)
            slot = s, *index = i;
    }
    if (!slot) {
        *index = team->slot_count;
        slot = dti_slot_new(hub, team);
    }
    if (!slot)
        return NULL;
    slot->use++;
    slot->sequence = key->sequence, slot->from = key->from, slot->to = key->to;
    slot->op = key->op, slot->first = key->first, slot->needed = key->needed;
    slot->posted = slot->ended = 0;
    memset(slot->posts, 0, team->size * sizeof *slot->posts);
    dti_slot_set(slot, DTI_PHASE_GATHERING);
    return slot;
}

static dti_slot *dti_slot_find(const dt_comm *comm, uint64_t id) {
    const dti_seat *seat = comm->state;
    size_t index = (size_t)(id & 0xFFFFFF);
    if (index >= seat->team->slot_count)
        return NULL;
    dti_slot *slot = seat->team->slots[index];
    bool mine = slot->use == id >> 24 && slot->posts[comm->rank].state == DTI_POST_BORROWED;
    return mine ? slot : NULL;
}

/* This rank's buffers are its own again. The last one frees the slot. */
static void dti_slot_end_post(dti_slot *slot, uint32_t rank) {
    slot->posts[rank].state = DTI_POST_ENDED;
    if (++slot->ended == slot->posted)
        dti_slot_set(slot, DTI_PHASE_FREE);
}

/* ---- teams */

static void dti_team_end(const dti_team *team) {
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *slot = team->slots[i];
        dti_meet_phase phase = dti_slot_phase(slot);
        if (phase != DTI_PHASE_GATHERING && phase != DTI_PHASE_READY)
            continue;
        atomic_store(&slot->next_job, UINT64_MAX / 2); /* no more is claimed */
        dti_slot_set(slot, DTI_PHASE_ENDED);
    }
}

/* Ends all groups; what they were ended by first stays. */
static void dti_hub_end(dti_hub *hub, dt_result result, const char *format, ...) DTI_PRINTF(3, 4);
static void dti_hub_end(dti_hub *hub, dt_result result, const char *format, ...) {
    if (hub->result)
        return;
    hub->result = result;
    va_list list;
    va_start(list, format);
    vsnprintf(hub->error, sizeof hub->error, format, list);
    va_end(list);
    for (const dti_team *team = hub->teams; team; team = team->next)
        dti_team_end(team);
}

/* " (operation 7 of group 2)": where in the program the ranks are. */
static const char *dti_slot_place(const dti_team *team, const dti_slot *slot, char text[64]) {
    char group[32] = "";
    if (team->id)
        snprintf(group, sizeof group, " of group %u", (unsigned)team->id);
    snprintf(text, 64, "operation %llu%s", (unsigned long long)slot->sequence, group);
    return text;
}

static dti_team *dti_team_new(dti_hub *hub, uint32_t id, uint32_t first_rank, uint32_t size) {
    dti_team *team = dti_alloc(&hub->base, sizeof *team);
    bool *left = team ? dti_alloc_array(&hub->base, size, sizeof *left) : NULL;
    if (!left) {
        dti_free(&hub->base, team);
        return NULL;
    }
    team->id = id, team->first_rank = first_rank, team->size = size, team->left = left;
    team->next = hub->teams;
    hub->teams = team;
    return team;
}

static void dti_team_free(dti_hub *hub, dti_team *team) {
    dti_team **at = &hub->teams;
    while (*at != team)
        at = &(*at)->next;
    *at = team->next;
    for (size_t i = 0; i < team->slot_count; i++) {
        pthread_cond_destroy(&team->slots[i]->changed);
        dti_free(&hub->base, team->slots[i]->posts);
        dti_free(&hub->base, team->slots[i]);
    }
    dti_free(&hub->base, team->slots);
    dti_free(&hub->base, team->left);
    dti_free(&hub->base, team);
}

/* A rank that this one needs and that has left, or the size. */
static uint32_t dti_team_missing(const dti_team *team, const dti_slot *slot) {
    for (uint32_t r = 0; r < team->size; r++)
        if (team->left[r] && dti_slot_needs(slot, r) && slot->posts[r].state == DTI_POST_NONE)
            return r;
    return team->size;
}

/* ---- posting */

/* Whom the operation is with, and which one of those it is. Its counter is moved when it is
 * posted. */
static uint64_t *dti_seat_counter(const dt_comm *comm, const dt_comm_op *op, dti_slot *key) {
    dti_seat *seat = comm->state;
    uint32_t peer = (uint32_t)op->root;
    *key = (dti_slot){.op = *op, .first = comm->rank};
    key->from = key->to = key->needed = comm->size;
    uint64_t *counter = &seat->sequence;
    if (op->kind == DT_COMM_SEND || op->kind == DT_COMM_RECV) {
        bool send = op->kind == DT_COMM_SEND;
        key->from = send ? comm->rank : peer;
        key->to = send ? peer : comm->rank;
        key->needed = 2;
        counter = send ? &seat->sent[peer] : &seat->heard[peer];
    }
    key->sequence = *counter;
    return counter;
}

static void dti_slot_mismatch(dti_hub *hub, const dti_team *team, const dti_slot *slot,
                              const dt_comm_op *op, uint32_t rank) {
    char place[64], mine[DTI_OP_TEXT], other[DTI_OP_TEXT];
    dti_hub_end(hub, DT_ERROR_MISMATCH, "rank %d posted %s, but rank %d posted %s (%s)", (int)rank,
                dti_op_text(op, mine), (int)slot->first, dti_op_text(&slot->op, other),
                dti_slot_place(team, slot, place));
}

/* What follows from this rank's post. */
static void dti_slot_posted(dti_hub *hub, const dti_team *team, dti_slot *slot,
                            const dt_comm_op *op, uint32_t rank) {
    uint32_t missing = dti_team_missing(team, slot);
    char text[DTI_OP_TEXT], place[64];
    if (!dti_op_agrees(&slot->op, op)) {
        dti_slot_mismatch(hub, team, slot, op, rank);
    } else if (missing < team->size) {
        dti_hub_end(hub, DT_ERROR_PEER_LOST, "rank %d has left the group; %s needs it (%s)",
                    (int)missing, dti_op_text(op, text), dti_slot_place(team, slot, place));
    } else if (slot->posted == slot->needed) {
        dti_slot_plan(slot, team->size);
        dti_slot_set(slot, slot->jobs ? DTI_PHASE_READY : DTI_PHASE_DONE);
    }
}

/* REVOKED: the hub's error says by what; MEMORY: its base's does. */
static dt_result dti_thread_post(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    dti_seat *seat = comm->state;
    dti_hub *hub = seat->hub;
    dti_team *team = seat->team;
    if (hub->result)
        return DT_ERROR_REVOKED;
    dti_slot key;
    uint64_t *counter = dti_seat_counter(comm, op, &key);
    size_t index = 0;
    dti_slot *slot = dti_slot_take(hub, team, &key, &index);
    if (!slot)
        return DT_ERROR_MEMORY;
    ++*counter;
    uint64_t now = hub->op_ns ? dti_now_ns() : 0;
    slot->posts[comm->rank] = (dti_post){op->in, op->out, DTI_POST_BORROWED, now};
    slot->posted++;
    dti_slot_posted(hub, team, slot, op, comm->rank);
    *id = slot->use << 24 | index;
    return DT_OK;
}

/* All ranks' spans in one list, which a fold takes as it is. No lock is needed. */
static dt_result dti_seat_set_leaves(dt_comm *comm) {
    dti_seat *seat = comm->state;
    if (seat->leaf_changes == comm->leaf_changes)
        return DT_OK;
    seat->leaf_count = 0;
    for (uint32_t r = 0; r < comm->size; r++) {
        dt_comm_span spans[DTI_LEAF_SPANS];
        uint32_t n =
            dti_leaf_spans(comm->leaves[r].first, comm->leaves[r].count, comm->leaf_total, spans);
        size_t all = (size_t)seat->leaf_count + n;
        if (!dti_array_reserve(comm->base, (void **)(void *)&seat->leaf_spans, &seat->leaf_room,
                               all, sizeof *seat->leaf_spans) ||
            !dti_array_reserve(comm->base, (void **)(void *)&seat->operands, &seat->operand_room,
                               all, sizeof *seat->operands))
            return DT_ERROR_MEMORY;
        for (uint32_t i = 0; i < n; i++)
            seat->leaf_spans[seat->leaf_count++].span = spans[i];
        seat->leaf_buffers[r] = n;
    }
    seat->leaf_changes = comm->leaf_changes;
    return DT_OK;
}

static dt_result dti_thread_begin(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    char error[sizeof hub->base.error];
    if (op->tree && dti_seat_set_leaves(comm))
        return DT_ERROR_MEMORY;
    pthread_mutex_lock(&hub->lock);
    dt_result result = dti_thread_post(comm, op, id);
    if (result == DT_ERROR_MEMORY)
        snprintf(error, sizeof error, "%s", hub->base.error);
    else if (result)
        snprintf(error, sizeof error, "the group has ended: %s", hub->error);
    pthread_mutex_unlock(&hub->lock);
    return result ? dti_fail(comm->base, result, "%s", error) : DT_OK;
}

/* ---- waiting */

/* Leaves the lock to do jobs. */
static void dti_thread_help(dt_comm *comm, dti_slot *slot, uint64_t most, uint64_t deadline) {
    dti_seat *seat = comm->state;
    slot->workers++;
    pthread_mutex_unlock(&seat->hub->lock);
    dti_slot_work(comm, slot, most, deadline);
    pthread_mutex_lock(&seat->hub->lock);
    if (--slot->workers)
        return;
    if (dti_slot_phase(slot) == DTI_PHASE_READY && atomic_load(&slot->next_job) >= slot->jobs)
        dti_slot_set(slot, DTI_PHASE_DONE);
    else if (slot->sleepers)
        pthread_cond_broadcast(&slot->changed);
}

/* Watches the phase for a moment, without the lock; then sleeps. The slot cannot be freed: this
 * rank has not ended its post. */
static void dti_thread_pause(dt_comm *comm, dti_slot *slot, bool *spun, uint64_t deadline) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    int phase = atomic_load(&slot->phase);
    if (*spun) {
        dti_slot_sleep(hub, slot, deadline);
        return;
    }
    *spun = true;
    pthread_mutex_unlock(&hub->lock);
    uint64_t end = DTI_MIN(deadline, dti_now_ns() + DTI_THREAD_SPIN_NS);
    while (atomic_load(&slot->phase) == phase && dti_now_ns() < end) {
#if DTI_POSIX
        sched_yield();
#else
        dti_cpu_relax();
#endif
    }
    pthread_mutex_lock(&hub->lock);
}

/* "barrier (operation 7) has not been posted by rank 1, 3". */
static void dti_slot_missing_text(const dt_comm *comm, const dti_slot *slot, char *text,
                                  size_t size) {
    const dti_seat *seat = comm->state;
    char what[DTI_OP_TEXT], place[64];
    const char *gap = " ";
    size_t used =
        (size_t)snprintf(text, size, "%s (%s) has not been posted by rank",
                         dti_op_text(&slot->op, what), dti_slot_place(seat->team, slot, place));
    for (uint32_t r = 0; r < comm->size && used < size; r++)
        if (dti_slot_needs(slot, r) && slot->posts[r].state == DTI_POST_NONE) {
            used += (size_t)snprintf(text + used, size - used, "%s%d", gap, (int)r);
            gap = ", ";
        }
}

/* When the ranks that have not posted are too late, or UINT64_MAX; ends the hub if that is now. */
static uint64_t dti_slot_late(const dt_comm *comm, const dti_slot *slot) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    if (!hub->op_ns || dti_slot_phase(slot) != DTI_PHASE_GATHERING)
        return UINT64_MAX;
    uint64_t late = slot->posts[comm->rank].at + hub->op_ns;
    char text[256];
    if (dti_now_ns() < late)
        return late;
    dti_slot_missing_text(comm, slot, text, sizeof text);
    dti_hub_end(hub, DT_ERROR_TIMEOUT, "%s for %llu ms", text,
                (unsigned long long)(hub->op_ns / 1000000u));
    return UINT64_MAX;
}

/* False: not finished in time. The lock is held on entry and on return. */
static bool dti_slot_await(dt_comm *comm, dti_slot *slot, uint64_t timeout_ns) {
    uint64_t now = timeout_ns == UINT64_MAX ? 0 : dti_now_ns();
    uint64_t deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    uint64_t most = timeout_ns ? UINT64_MAX : DTI_TEST_JOBS;
    dti_meet_phase seen = DTI_PHASE_FREE;
    bool spun = false, late = false;
    for (;;) {
        uint64_t limit = dti_slot_late(comm, slot);
        dti_meet_phase phase = dti_slot_phase(slot);
        if (phase != seen)
            seen = phase, spun = false;
        bool work = phase == DTI_PHASE_READY && atomic_load(&slot->next_job) < slot->jobs;
        if (phase == DTI_PHASE_DONE || (phase == DTI_PHASE_ENDED && !slot->workers))
            return true;
        if (late)
            return false;
        if (work)
            dti_thread_help(comm, slot, most, timeout_ns ? deadline : UINT64_MAX);
        else if (timeout_ns)
            dti_thread_pause(comm, slot, &spun, DTI_MIN(deadline, limit));
        late = !timeout_ns || (deadline != UINT64_MAX && dti_now_ns() >= deadline);
    }
}

/* Ends the post of a slot that is over. The lock is held on entry alone. */
static dt_result dti_slot_finish(dt_comm *comm, dti_slot *slot) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    char error[sizeof hub->error];
    dt_result result = dti_slot_phase(slot) == DTI_PHASE_DONE ? DT_OK : hub->result;
    if (result)
        snprintf(error, sizeof error, "%s", hub->error);
    dti_slot_end_post(slot, comm->rank);
    pthread_mutex_unlock(&hub->lock);
    comm->late = result == DT_ERROR_TIMEOUT;
    return result ? dti_fail(comm->base, result, "%s", error) : DT_OK;
}

/* The lock is held on entry alone. */
static dt_result dti_thread_no_handle(dt_comm *comm, uint64_t id) {
    pthread_mutex_unlock(&((dti_seat *)comm->state)->hub->lock);
    return dti_fail(comm->base, DT_ERROR_INVALID,
                    "the handle %llu is of no pending operation: a handle ends once",
                    (unsigned long long)id);
}

static dt_result dti_thread_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    pthread_mutex_lock(&hub->lock);
    dti_slot *slot = dti_slot_find(comm, id);
    if (!slot)
        return dti_thread_no_handle(comm, id);
    if (dti_slot_await(comm, slot, timeout_ns))
        return dti_slot_finish(comm, slot);
    pthread_mutex_unlock(&hub->lock);
    return DT_ERROR_TIMEOUT;
}

static dt_result dti_thread_cancel(dt_comm *comm, uint64_t id) {
    dti_seat *seat = comm->state;
    pthread_mutex_lock(&seat->hub->lock);
    dti_slot *slot = dti_slot_find(comm, id);
    if (!slot)
        return dti_thread_no_handle(comm, id);
    char text[DTI_OP_TEXT], place[64];
    if (dti_slot_phase(slot) != DTI_PHASE_DONE)
        dti_hub_end(seat->hub, DT_ERROR_CANCELLED, "rank %d cancelled %s (%s)", (int)comm->rank,
                    dti_op_text(&slot->op, text), dti_slot_place(seat->team, slot, place));
    while (slot->workers)
        dti_slot_sleep(seat->hub, slot, UINT64_MAX);
    return dti_slot_finish(comm, slot);
}

static void dti_thread_waits_for(dt_comm *comm, uint64_t id, char *text, size_t size) {
    dti_seat *seat = comm->state;
    pthread_mutex_lock(&seat->hub->lock);
    dti_slot *slot = dti_slot_find(comm, id);
    if (slot && dti_slot_phase(slot) == DTI_PHASE_GATHERING)
        dti_slot_missing_text(comm, slot, text, size);
    pthread_mutex_unlock(&seat->hub->lock);
}

/* ---- coming and going */

static const dti_transport dti_thread_transport;

static void dti_seat_free(dt_comm *comm) {
    dti_seat *seat = comm->state;
    dti_free(comm->base, seat->sent);
    dti_free(comm->base, seat->operands);
    dti_free(comm->base, seat->leaf_spans);
    dti_free(comm->base, seat->leaf_buffers);
    dti_free(comm->base, seat);
    comm->state = NULL;
}

/* A place in a team that is not yet known. */
static dt_result dti_seat_new(dt_comm *comm, dti_hub *hub) {
    dti_seat *seat = comm->state = dti_alloc(comm->base, sizeof *seat);
    if (!seat)
        return DT_ERROR_MEMORY;
    seat->hub = hub;
    seat->operand_room = comm->size;
    seat->sent = dti_alloc_array(comm->base, comm->size, 2 * sizeof *seat->sent);
    seat->operands = dti_alloc_array(comm->base, comm->size, sizeof *seat->operands);
    seat->leaf_buffers = dti_alloc_array(comm->base, comm->size, sizeof *seat->leaf_buffers);
    if (!seat->sent || !seat->operands || !seat->leaf_buffers) {
        dti_seat_free(comm);
        return DT_ERROR_MEMORY;
    }
    seat->heard = seat->sent + comm->size;
    return DT_OK;
}

/* Joins the team of the comm's group, which the first one makes. Takes the lock. */
static dt_result dti_seat_join(dt_comm *comm) {
    dti_seat *seat = comm->state;
    dti_hub *hub = seat->hub;
    uint32_t first = comm->ranks ? comm->ranks[0] : 0;
    pthread_mutex_lock(&hub->lock);
    dti_team *team = hub->teams;
    while (team && (team->id != comm->group_id || team->first_rank != first))
        team = team->next;
    if (!team)
        team = dti_team_new(hub, comm->group_id, first, comm->size);
    if (team)
        team->open++;
    pthread_mutex_unlock(&hub->lock);
    seat->team = team;
    if (team) {
        comm->transport = &dti_thread_transport;
        return DT_OK;
    }
    dti_seat_free(comm);
    return dti_fail(comm->base, DT_ERROR_MEMORY, "out of host memory: the ranks' shared state");
}

static dt_result dti_thread_group(dt_comm *parent, dt_comm *child) {
    dt_result result = dti_seat_new(child, ((dti_seat *)parent->state)->hub);
    return result ? result : dti_seat_join(child);
}

/* Operations of this rank that are not finished end with it, and so do those that need it. */
static void dti_team_leave(const dt_comm *comm, dti_hub *hub, dti_team *team) {
    char text[DTI_OP_TEXT], place[64];
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *slot = team->slots[i];
        dti_meet_phase phase = dti_slot_phase(slot);
        bool open = phase == DTI_PHASE_GATHERING || phase == DTI_PHASE_READY;
        if (open && slot->posts[comm->rank].state == DTI_POST_BORROWED)
            dti_hub_end(hub, DT_ERROR_PEER_LOST, "rank %d left the group in %s (%s)",
                        (int)comm->rank, dti_op_text(&slot->op, text),
                        dti_slot_place(team, slot, place));
    }
    team->left[comm->rank] = true;
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *slot = team->slots[i];
        if (dti_slot_phase(slot) == DTI_PHASE_GATHERING &&
            dti_team_missing(team, slot) < team->size)
            dti_hub_end(hub, DT_ERROR_PEER_LOST, "rank %d has left the group; %s needs it (%s)",
                        (int)comm->rank, dti_op_text(&slot->op, text),
                        dti_slot_place(team, slot, place));
    }
}

static void dti_thread_close(dt_comm *comm) {
    dti_seat *seat = comm->state;
    dti_hub *hub = seat->hub;
    dti_team *team = seat->team;
    pthread_mutex_lock(&hub->lock);
    dti_team_leave(comm, hub, team);
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *slot = team->slots[i];
        if (dti_slot_phase(slot) == DTI_PHASE_FREE ||
            slot->posts[comm->rank].state != DTI_POST_BORROWED)
            continue;
        while (slot->workers)
            dti_slot_sleep(hub, slot, UINT64_MAX);
        dti_slot_end_post(slot, comm->rank);
    }
    if (--team->open == 0)
        dti_team_free(hub, team);
    bool last = !comm->parent && --hub->open == 0;
    pthread_mutex_unlock(&hub->lock);
    dti_seat_free(comm);
    if (!last)
        return;
    pthread_mutex_destroy(&hub->lock);
    dti_base base = hub->base; /* which is in what is freed */
    dti_free(&base, hub);
}

static void dti_thread_info(const dt_comm *comm, dt_comm_info *info) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    pthread_mutex_lock(&hub->lock);
    info->host_bytes += hub->base.bytes_now;
    info->host_alloc_calls += hub->base.alloc_calls;
    pthread_mutex_unlock(&hub->lock);
}

static const dti_transport dti_thread_transport = {
    .name = "thread",
    .begin = dti_thread_begin,
    .wait = dti_thread_wait,
    .cancel = dti_thread_cancel,
    .waits_for = dti_thread_waits_for,
    .group = dti_thread_group,
    .info = dti_thread_info,
    .close = dti_thread_close,
};

static dti_hub *dti_hub_new(const dti_base *base, const dt_comm_desc *desc) {
    dti_base shared;
    dti_base_init(&shared, &base->allocator, NULL);
    dti_hub *hub = dti_alloc(&shared, sizeof *hub);
    if (!hub)
        return NULL;
    pthread_mutex_init(&hub->lock, NULL);
    hub->base = shared;
    hub->op_ns = desc ? (uint64_t)desc->op_timeout_ms * 1000000u : 0;
    return hub;
}

/* One rank's comm; NULL after dti_fail(base). */
static dt_comm *dti_thread_rank(dti_base *base, dti_hub *hub, int rank, int size) {
    dti_base own;
    dti_base_init(&own, &base->allocator, &base->logger);
    dt_comm *comm = dti_comm_new(&own, NULL, (uint32_t)rank, (uint32_t)size);
    if (comm && !dti_seat_new(comm, hub) && !dti_seat_join(comm)) {
        hub->open++;
        return comm;
    }
    dti_fail(base, DT_ERROR_MEMORY, "rank %d of %d: %s", rank, size,
             comm ? comm->base->error : own.error);
    if (comm)
        dti_comm_free(comm);
    return NULL;
}

static dt_result dti_threads_check(dti_base *base, const dt_comm_desc *desc, int size) {
    if (size < 1 || size > DTI_THREADS_MAX)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_comm_create_threads: size is %d, not in 1 .. %d", size,
                        DTI_THREADS_MAX);
    if (desc && !desc->allocator.alloc != !desc->allocator.free)
        return dti_fail(base, DT_ERROR_INVALID, "allocator has alloc or free but not both");
    if (desc && desc->op_timeout_ms < 0)
        return dti_fail(base, DT_ERROR_INVALID, "op_timeout_ms is %d; 0 is no limit",
                        desc->op_timeout_ms);
    return DT_OK;
}

DT_API dt_result dt_comm_create_threads(const dt_comm_desc *desc, int size, dt_comm **out) {
    if (!out)
        return DT_ERROR_INVALID;
    for (int r = 0; r < DTI_MAX(size, 1); r++)
        out[r] = NULL;
    dti_base base;
    dti_base_init(&base, desc ? &desc->allocator : NULL, desc ? &desc->logger : NULL);
    dt_result result = dti_threads_check(&base, desc, size);
    dti_hub *hub = result ? NULL : dti_hub_new(&base, desc);
    if (!result && !hub)
        result = dti_fail(&base, DT_ERROR_MEMORY, "out of host memory: the ranks' shared state");
    int made = 0;
    for (; !result && made < size; made++)
        if (!(out[made] = dti_thread_rank(&base, hub, made, size))) {
            result = DT_ERROR_MEMORY;
            break;
        }
    if (!result)
        return DT_OK;
    for (int r = 0; r < made; r++) {
        dt_comm_destroy(out[r]);
        out[r] = NULL;
    }
    if (hub && !made) {
        pthread_mutex_destroy(&hub->lock);
        dti_base last = hub->base;
        dti_free(&last, hub);
    }
    out[0] = dti_comm_new(&base, NULL, 0, 1); /* tells the error */
    return result;
}
