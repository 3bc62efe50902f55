/* The transport over TCP: sockets, time and a thread around a dti_core. One lock guards it all. A
 * thread that waits for an operation moves the bytes itself, which saves a context switch. The
 * library's thread keeps up the heartbeats, takes new connections, and moves bytes while no thread
 * waits. It has all signals blocked, and calls neither the allocator nor the logger of the
 * application. tcp_conn.c has the connections, tcp_wait.c the waiting, tcp_open.c opening and
 * closing. */

#if DTI_TCP

/* ---- the application's calls */

/* Passes the library's notes to the logger, without the lock. */
static void dti_tcp_drain_notes(dti_tcp *t) {
    for (;;) {
        char text[DTI_NOTE_BYTES];
        dt_log_level level;
        dti_mutex_lock(&t->lock);
        const bool some = dti_core_next_note(&t->core, &level, text);
        dti_mutex_unlock(&t->lock);
        if (!some)
            return;
        dti_log(t->base, level, "%s", text);
    }
}

/* The comm's transport, with its lock, at this moment. */
static dti_tcp *dti_tcp_enter(const dt_comm *comm) {
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    dti_mutex_lock(&t->lock);
    t->core.now = dti_now_ns();
    return t;
}

static dti_flight *dti_tcp_flight(dti_tcp *t, uint64_t id) {
    for (uint32_t i = 0; i < t->core.flight_count; i++)
        if (id && t->core.flights[i]->id == id)
            return t->core.flights[i];
    return NULL;
}

/* The thread services operations in flight while nobody waits. */
static void dti_tcp_hand_over(dti_tcp *t) {
    if (t->core.unfinished && !t->thread_reads)
        dti_wake_write(t->wake);
}

static dt_result dti_tcp_begin(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    const dti_tcp_group *g = comm->state;
    dti_tcp *t = dti_tcp_enter(comm);
    dt_result result = DT_OK;
    if (t->core.state != DTI_CORE_OPEN)
        result = dti_comm_revoked(comm, t->core.result, t->core.text);
    dti_flight *f =
        result ? NULL : dti_core_post(&t->core, g->group, op, comm->leaves, comm->leaf_total);
    if (f) {
        *id = f->id;
        dti_tcp_try_all(t);
        dti_tcp_flush(t);
        if (!comm->will_wait)
            dti_tcp_hand_over(t);
    } else if (!result)
        result = t->base->result;
    dti_mutex_unlock(&t->lock);
    return result;
}

static dt_result dti_tcp_finish(dti_tcp *t, dti_flight *f) {
    dt_result result = f->result;
    dti_flight_release(&t->core, f);
    return result ? dti_core_error(&t->core, result) : DT_OK;
}

static dt_result dti_tcp_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    dti_mutex_lock(&t->lock);
    dti_flight *f = dti_tcp_flight(t, id);
    dt_result result;
    if (!f)
        result = dti_comm_no_handle(comm, id);
    else {
        if (!comm->will_wait) /* the clock's last time may be long ago */
            t->core.now = dti_now_ns();
        if (!f->finished)
            dti_tcp_wait_for(t, f, t->core.now, timeout_ns);
        if (f->finished)
            dti_flow_look(t, f);
        result = f->finished ? dti_tcp_finish(t, f) : DT_ERROR_TIMEOUT;
        dti_tcp_hand_over(t);
    }
    bool notes = t->core.note_count > 0;
    dti_mutex_unlock(&t->lock);
    if (notes)
        dti_tcp_drain_notes(t);
    return result;
}

static dt_result dti_tcp_cancel(dt_comm *comm, uint64_t id) {
    dti_tcp *t = dti_tcp_enter(comm);
    dti_flight *f = dti_tcp_flight(t, id);
    dt_result result = f ? dti_core_cancel(&t->core, f) : dti_comm_no_handle(comm, id);
    dti_tcp_flush(t);
    dti_mutex_unlock(&t->lock);
    return result;
}

#endif
