/* Ranks that are threads of one process. Nothing is sent. An operation is a slot where each rank
 * puts its buffers (thread_hub.c). Once all have, any waiting thread does its jobs (thread_job.c).
 * One waiter is enough. This file owns posting, waiting, and ranks that join and leave. It ends the
 * group if a rank has left an operation that needs it, or is late.
 *
 * Cost of an all-reduce of S bytes with N ranks: N S read and N S written. It needs no memory
 * except the slots. */

/* Waking a sleeping thread costs 5 to 50 us. */
#define DTI_THREAD_SPIN_NS 10000
/* The most work of dt_comm_test, so that it does not block. */
#define DTI_TEST_JOBS 4
#define DTI_THREADS_MAX 1024

/* ---- posting */

/* Whom the operation is with, and which one of those it is. Its counter is moved when it is
 * posted. */
static uint64_t *dti_seat_counter(const dt_comm *comm, const dt_comm_op *op, dti_slot *key) {
    dti_seat *seat = comm->state;
    uint32_t peer = (uint32_t)op->root;
    *key = (dti_slot){.op = *op, .first = comm->rank};
    key->from = key->to = key->needed = comm->size;
    uint64_t *counter = &seat->sequence;
    if (dti_kind_is_p2p(op->kind)) {
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
    char place[64], mine[DTI_COLL_TEXT], other[DTI_COLL_TEXT];
    dti_hub_end(hub, DT_ERROR_MISMATCH, "rank %d posted %s, but rank %d posted %s (%s)", (int)rank,
                dti_coll_text(op, mine), (int)slot->first, dti_coll_text(&slot->op, other),
                dti_slot_place(team, slot, place));
}

/* The consequences of this rank's post. */
static void dti_slot_posted(dti_hub *hub, const dti_team *team, dti_slot *slot,
                            const dt_comm_op *op, uint32_t rank) {
    uint32_t missing = dti_team_missing(team, slot);
    if (!dti_coll_agrees(&slot->op, op)) {
        dti_slot_mismatch(hub, team, slot, op, rank);
    } else if (missing < team->size) {
        dti_slot_end_left(hub, team, slot, missing);
    } else if (slot->posted == slot->needed) {
        dti_slot_plan(slot, team->size);
        dti_slot_set(slot, slot->jobs ? DTI_SLOT_READY : DTI_SLOT_DONE);
    }
}

/* REVOKED: the hub's error says by what; MEMORY: its base's does. */
static dt_result dti_inproc_post(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    dti_seat *seat = comm->state;
    dti_hub *hub = seat->hub;
    dti_team *team = seat->team;
    if (hub->result)
        return DT_ERROR_REVOKED;
    dti_slot key;
    uint64_t *counter = dti_seat_counter(comm, op, &key);
    size_t index = 0;
    dti_slot *slot = dti_slot_take(hub, team, &key, &index);
    DTI_HAVE(slot);
    ++*counter;
    uint64_t now = hub->op_ns ? dti_now_ns() : 0;
    slot->posts[comm->rank] = (dti_post){op->in, op->out, DTI_POST_BORROWED, now};
    slot->posted++;
    dti_slot_posted(hub, team, slot, op, comm->rank);
    *id = slot->use << 24 | index;
    return DT_OK;
}

/* The comm's hub, locked. */
static dti_hub *dti_hub_enter(const dt_comm *comm) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    dti_mutex_lock(&hub->lock);
    return hub;
}

/* Unlocks it. The hub's failure and its text become this rank's. */
static dt_result dti_hub_leave(dt_comm *comm, dti_hub *hub, dt_result result) {
    char error[sizeof hub->base.error];
    const dt_result cause = hub->result;
    if (result)
        snprintf(error, sizeof error, "%s", cause ? hub->error : hub->base.error);
    dti_mutex_unlock(&hub->lock);
    if (result == DT_ERROR_REVOKED)
        return dti_comm_revoked(comm, cause, error);
    return result ? dti_fail(comm->base, result, "%s", error) : DT_OK;
}

static dt_result dti_inproc_begin(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    if (op->tree && dti_seat_set_leaves(comm))
        return DT_ERROR_MEMORY;
    dti_hub *hub = dti_hub_enter(comm);
    return dti_hub_leave(comm, hub, dti_inproc_post(comm, op, id));
}

/* ---- waiting */

/* Leaves the lock to do jobs. */
static void dti_inproc_help(dt_comm *comm, dti_slot *slot, uint64_t most, uint64_t deadline) {
    dti_seat *seat = comm->state;
    slot->workers++;
    dti_mutex_unlock(&seat->hub->lock);
    dti_slot_work(comm, slot, most, deadline);
    dti_mutex_lock(&seat->hub->lock);
    if (--slot->workers)
        return;
    if (dti_slot_phase(slot) == DTI_SLOT_READY && atomic_load(&slot->next_job) >= slot->jobs)
        dti_slot_set(slot, DTI_SLOT_DONE);
    else if (slot->sleepers)
        dti_cond_broadcast(&slot->changed);
}

/* Watches the phase for a moment, without the lock; then sleeps. The slot is not freed, as this
 * rank has not ended its post. */
static void dti_inproc_pause(dt_comm *comm, dti_slot *slot, bool *spun, uint64_t deadline) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    int phase = atomic_load(&slot->phase);
    if (*spun) {
        dti_slot_sleep(hub, slot, deadline);
        return;
    }
    *spun = true;
    dti_mutex_unlock(&hub->lock);
    uint64_t end = DTI_MIN(deadline, dti_now_ns() + DTI_THREAD_SPIN_NS);
    while (atomic_load(&slot->phase) == phase && dti_now_ns() < end)
        dti_thread_yield();
    dti_mutex_lock(&hub->lock);
}

/* "barrier (operation 7) has not been posted by rank 1, 3". */
static void dti_slot_missing_text(const dt_comm *comm, const dti_slot *slot, char *text,
                                  size_t size) {
    const dti_seat *seat = comm->state;
    char what[DTI_COLL_TEXT], place[64];
    const char *gap = " ";
    size_t used =
        (size_t)snprintf(text, size, "%s (%s) has not been posted by rank",
                         dti_coll_text(&slot->op, what), dti_slot_place(seat->team, slot, place));
    for (uint32_t r = 0; r < comm->size && used < size; r++)
        if (dti_slot_needs(slot, r) && slot->posts[r].state == DTI_POST_NONE) {
            used += (size_t)snprintf(text + used, size - used, "%s%d", gap, (int)r);
            gap = ", ";
        }
}

/* When the ranks that have not posted are too late, or UINT64_MAX; ends the hub if that is now. */
static uint64_t dti_slot_late(const dt_comm *comm, const dti_slot *slot) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    if (!hub->op_ns || dti_slot_phase(slot) != DTI_SLOT_GATHERING)
        return UINT64_MAX;
    uint64_t late = slot->posts[comm->rank].at + hub->op_ns;
    char text[256];
    if (dti_now_ns() < late)
        return late;
    dti_slot_missing_text(comm, slot, text, sizeof text);
    dti_hub_end(hub, DT_ERROR_LATE, "%s for %llu ms", text,
                (unsigned long long)(hub->op_ns / 1000000u));
    return UINT64_MAX;
}

/* False: not finished in time. The lock is held on entry and on return. */
static bool dti_slot_await(dt_comm *comm, dti_slot *slot, uint64_t timeout_ns) {
    uint64_t now = timeout_ns == UINT64_MAX ? 0 : dti_now_ns();
    uint64_t deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    uint64_t most = timeout_ns ? UINT64_MAX : DTI_TEST_JOBS;
    dti_slot_state seen = DTI_SLOT_FREE;
    bool spun = false, late = false;
    for (;;) {
        uint64_t limit = dti_slot_late(comm, slot);
        dti_slot_state phase = dti_slot_phase(slot);
        if (phase != seen)
            seen = phase, spun = false;
        bool work = phase == DTI_SLOT_READY && atomic_load(&slot->next_job) < slot->jobs;
        if (phase == DTI_SLOT_DONE || (phase == DTI_SLOT_ENDED && !slot->workers))
            return true;
        if (late)
            return false;
        if (work)
            dti_inproc_help(comm, slot, most, timeout_ns ? deadline : UINT64_MAX);
        else if (timeout_ns)
            dti_inproc_pause(comm, slot, &spun, DTI_MIN(deadline, limit));
        late = !timeout_ns || (deadline != UINT64_MAX && dti_now_ns() >= deadline);
    }
}

/* Ends the post of a finished slot. The lock is held only on entry. */
static dt_result dti_slot_finish(dt_comm *comm, dti_slot *slot) {
    dti_hub *hub = ((dti_seat *)comm->state)->hub;
    dt_result result = dti_slot_phase(slot) == DTI_SLOT_DONE ? DT_OK : hub->result;
    dti_slot_end_post(slot, comm->rank);
    return dti_hub_leave(comm, hub, result);
}

static dt_result dti_inproc_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    dti_hub *hub = dti_hub_enter(comm);
    dti_slot *slot = dti_slot_find(comm, id);
    if (slot && dti_slot_await(comm, slot, timeout_ns))
        return dti_slot_finish(comm, slot);
    dti_mutex_unlock(&hub->lock);
    return slot ? DT_ERROR_TIMEOUT : dti_comm_no_handle(comm, id);
}

static dt_result dti_inproc_cancel(dt_comm *comm, uint64_t id) {
    dti_hub *hub = dti_hub_enter(comm);
    dti_slot *slot = dti_slot_find(comm, id);
    char text[DTI_COLL_TEXT], place[64];
    if (!slot) {
        dti_mutex_unlock(&hub->lock);
        return dti_comm_no_handle(comm, id);
    }
    if (dti_slot_phase(slot) != DTI_SLOT_DONE)
        dti_hub_end(hub, DT_ERROR_CANCELLED, "rank %d cancelled %s (%s)", (int)comm->rank,
                    dti_coll_text(&slot->op, text),
                    dti_slot_place(((dti_seat *)comm->state)->team, slot, place));
    while (slot->workers)
        dti_slot_sleep(hub, slot, UINT64_MAX);
    return dti_slot_finish(comm, slot);
}

static void dti_inproc_give_up(dt_comm *comm) {
    dti_hub *hub = dti_hub_enter(comm);
    dti_hub_end(hub, DT_ERROR_CANCELLED, "rank %d cancelled its step", (int)comm->rank);
    dti_mutex_unlock(&hub->lock);
}

static void dti_inproc_waits_for(dt_comm *comm, uint64_t id, char *text, size_t size) {
    dti_hub *hub = dti_hub_enter(comm);
    const dti_slot *slot = dti_slot_find(comm, id);
    if (slot && dti_slot_phase(slot) == DTI_SLOT_GATHERING)
        dti_slot_missing_text(comm, slot, text, size);
    dti_mutex_unlock(&hub->lock);
}

/* ---- coming and going */

static void dti_seat_free(dt_comm *comm) {
    dti_seat *seat = comm->state;
    DTI_FREE(comm->base, seat->sent, seat->operands, seat->leaf_spans, seat->leaf_buffers, seat);
    comm->state = NULL;
}

/* A place in a team that is not yet known. */
static dt_result dti_seat_new(dt_comm *comm, dti_hub *hub) {
    dti_seat *seat = comm->state = dti_alloc(comm->base, sizeof *seat);
    DTI_HAVE(seat);
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
    uint32_t first = comm->ranks ? comm->ranks[0] : 0;
    dti_hub *hub = dti_hub_enter(comm);
    dti_team *team = hub->teams;
    while (team && (team->id != comm->group_id || team->first_rank != first))
        team = team->next;
    if (!team)
        team = dti_team_new(hub, comm->group_id, first, comm->size);
    if (team)
        team->open++;
    dti_mutex_unlock(&hub->lock);
    ((dti_seat *)comm->state)->team = team;
    if (team)
        return DT_OK;
    dti_seat_free(comm);
    return dti_fail(comm->base, DT_ERROR_MEMORY, "out of host memory: the ranks' shared state");
}

static dt_result dti_inproc_group(dt_comm *parent, dt_comm *child) {
    dt_result result = dti_seat_new(child, ((dti_seat *)parent->state)->hub);
    return result ? result : dti_seat_join(child);
}

/* Operations of this rank that are not finished end with it, and so do those that need it. */
static void dti_team_leave(const dt_comm *comm, dti_hub *hub, dti_team *team) {
    char text[DTI_COLL_TEXT], place[64];
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *slot = team->slots[i];
        dti_slot_state phase = dti_slot_phase(slot);
        bool open = phase == DTI_SLOT_GATHERING || phase == DTI_SLOT_READY;
        if (open && slot->posts[comm->rank].state == DTI_POST_BORROWED)
            dti_hub_end(hub, DT_ERROR_PEER_LOST, "rank %d left the group in %s (%s)",
                        (int)comm->rank, dti_coll_text(&slot->op, text),
                        dti_slot_place(team, slot, place));
    }
    team->left[comm->rank] = true;
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *slot = team->slots[i];
        if (dti_slot_phase(slot) == DTI_SLOT_GATHERING && dti_team_missing(team, slot) < team->size)
            dti_slot_end_left(hub, team, slot, comm->rank);
    }
}

static void dti_hub_free(dti_hub *hub) {
    dti_mutex_destroy(&hub->lock);
    dti_base base = hub->base; /* which is part of the freed memory */
    dti_free(&base, hub);
}

static void dti_inproc_close(dt_comm *comm) {
    dti_team *team = ((dti_seat *)comm->state)->team;
    dti_hub *hub = dti_hub_enter(comm);
    dti_team_leave(comm, hub, team);
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *slot = team->slots[i];
        if (dti_slot_phase(slot) == DTI_SLOT_FREE ||
            slot->posts[comm->rank].state != DTI_POST_BORROWED)
            continue;
        while (slot->workers)
            dti_slot_sleep(hub, slot, UINT64_MAX);
        dti_slot_end_post(slot, comm->rank);
    }
    if (--team->open == 0)
        dti_team_free(hub, team);
    bool last = !comm->parent && --hub->open == 0;
    dti_mutex_unlock(&hub->lock);
    dti_seat_free(comm);
    if (last)
        dti_hub_free(hub);
}

static void dti_inproc_info(const dt_comm *comm, dt_comm_info *info) {
    dti_hub *hub = dti_hub_enter(comm);
    info->host_bytes += hub->base.bytes_now;
    info->host_alloc_calls += hub->base.alloc_calls;
    dti_mutex_unlock(&hub->lock);
}

static const dti_transport dti_thread_transport = {
    .name = "thread",
    .begin = dti_inproc_begin,
    .wait = dti_inproc_wait,
    .cancel = dti_inproc_cancel,
    .give_up = dti_inproc_give_up,
    .waits_for = dti_inproc_waits_for,
    .group = dti_inproc_group,
    .info = dti_inproc_info,
    .close = dti_inproc_close,
};

static dti_hub *dti_hub_new(const dti_base *base, const dt_comm_desc *desc) {
    dti_base shared;
    dti_base_init(&shared, &base->allocator, NULL);
    dti_hub *hub = dti_alloc(&shared, sizeof *hub);
    if (!hub)
        return NULL;
    dti_mutex_init(&hub->lock);
    hub->base = shared;
    hub->op_ns = desc ? (uint64_t)desc->op_timeout_ms * 1000000u : 0;
    return hub;
}

/* One rank's comm; NULL after dti_fail(base). */
static dt_comm *dti_inproc_rank(dti_base *base, dti_hub *hub, int rank, int size) {
    dti_base own;
    dti_base_init(&own, &base->allocator, &base->logger);
    dt_comm *comm = dti_comm_new(&own, NULL, (uint32_t)rank, (uint32_t)size);
    if (comm && !dti_seat_new(comm, hub) && !dti_seat_join(comm)) {
        comm->transport = &dti_thread_transport;
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
                        "dt_comm_create_threads: size is %d; it must be from 1 to %d", size,
                        DTI_THREADS_MAX);
    if (desc && !desc->allocator.alloc != !desc->allocator.free)
        return dti_fail(base, DT_ERROR_INVALID,
                        ".allocator has only one of alloc and free; set both");
    if (desc && desc->op_timeout_ms < 0)
        return dti_fail(base, DT_ERROR_INVALID,
                        ".op_timeout_ms is %d; it must be at least 0 (0 = no limit)",
                        desc->op_timeout_ms);
    return DT_OK;
}

static dt_result dti_comm_make_threads(const dt_comm_desc *desc, int size, dt_comm **out) {
    dti_base base;
    dti_base_init(&base, desc ? &desc->allocator : NULL, desc ? &desc->logger : NULL);
    if (!out)
        return dti_fail_null(&base, "out");
    /* a size that is wrong says nothing of the room at out, but for the first */
    bool sized = size >= 1 && size <= DTI_THREADS_MAX;
    for (int r = 0; r < (sized ? size : 1); r++)
        out[r] = NULL;
    dt_result result = dti_threads_check(&base, desc, size);
    dti_hub *hub = result ? NULL : dti_hub_new(&base, desc);
    if (!result && !hub)
        result = dti_fail(&base, DT_ERROR_MEMORY, "out of host memory: the ranks' shared state");
    int made = 0;
    for (; !result && made < size; made++)
        if (!(out[made] = dti_inproc_rank(&base, hub, made, size))) {
            result = DT_ERROR_MEMORY;
            break;
        }
    if (!result)
        return DT_OK;
    for (int r = 0; r < made; r++) {
        dt_comm_destroy(out[r]);
        out[r] = NULL;
    }
    if (hub && !made)
        dti_hub_free(hub);
    out[0] = dti_comm_new(&base, NULL, 0, 1); /* reports the error */
    return result;
}

DT_API dt_result dt_comm_create_threads(const dt_comm_desc *desc, int size, dt_comm **out) {
    dti_visit visit;
    dti_enter(NULL, &visit, 0, __func__);
    return dti_leave(&visit, dti_comm_make_threads(desc, size, out));
}
