/* The transport over TCP: sockets, time and a thread around a dti_core. One lock guards it all. Who
 * waits for an operation moves the bytes himself, which saves a change of threads; the library's
 * thread keeps up the heartbeats, takes new connections, and moves bytes while nobody waits. It has
 * all signals blocked, and calls neither the allocator nor the logger of the application.
 * tcp_conn.c has the connections. */

#if DTI_TCP

#define DTI_WAIT_SPIN_NS 1000000 /* without a byte; to be woken can cost more than many looks */
#define DTI_LOOKS_UNTIL_YIELD 64 /* at memory, where each rank has a processor */
#define DTI_LOOKS_UNTIL_CLOCK 8  /* then, too: a look takes no longer than the clock */
#define DTI_SLEEP_MS_MAX 1000    /* though what matters ends a sleep */

/* ---- waiting for the system */

typedef enum dti_tcp_who { DTI_TCP_APP, DTI_TCP_THREAD } dti_tcp_who;

static bool dti_conn_is_data(const dti_tcp_conn *c) {
    return c->link->state == DTI_LINK_OPEN && c->link->channel == DTI_CHANNEL_DATA;
}

/* What `who` looks at: the application at data, the thread at all else, and at data when it has
 * to. */
static size_t dti_tcp_poll_set(dti_tcp *t, dti_tcp_who who, bool data, bool control) {
    struct pollfd *polls = t->polls[who];
    size_t count = 0;
    for (uint32_t i = 0; i < t->active_count; i++) {
        const dti_tcp_conn *c = t->active[i];
        if (dti_conn_is_data(c) ? !data : !control)
            continue;
        if (dti_core_data_frozen(&t->core, c->link))
            continue;
        /* Bytes that have no place yet stay where they are: they would end every sleep. */
        int events = dti_link_has_room(c->link) || c->shared ? POLLIN : 0;
        if (c->connecting || (c->blocked && !c->shared))
            events |= POLLOUT;
        if (c->gone) /* what it has left is still to be taken */
            events = 0;
        t->polled[who][count] = c->link;
        polls[count++] = (struct pollfd){.fd = c->fd, .events = (short)events};
    }
    return count;
}

/* Those that listen at addresses, and the one of this host, if there is one. */
static size_t dti_tcp_listeners(const dti_tcp *t) {
    return (size_t)t->meeting.own.count + (t->local >= 0);
}

static void dti_tcp_poll_listeners(const dti_tcp *t, struct pollfd *polls) {
    short events = t->core.now >= t->accept_after ? POLLIN : 0;
    for (int i = 0; i < t->meeting.own.count; i++)
        polls[i] = (struct pollfd){.fd = t->meeting.listeners[i], .events = events};
    if (t->local >= 0)
        polls[t->meeting.own.count] = (struct pollfd){.fd = t->local, .events = events};
}

static void dti_tcp_accept_ready(dti_tcp *t, const struct pollfd *polls) {
    for (size_t i = 0; i < dti_tcp_listeners(t); i++)
        if (polls[i].revents)
            dti_tcp_accept(t, (int)polls[i].fd);
}

/* After the poll: the link may have ended meanwhile, and its descriptor be another's. */
static void dti_tcp_poll_done(dti_tcp *t, dti_tcp_who who, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct pollfd *p = &t->polls[who][i];
        dti_tcp_conn *c = dti_conn_of(t, t->polled[who][i]);
        if ((p->revents || c->shared) && c->fd == (int)p->fd)
            dti_conn_ready(t, c, p->revents);
    }
}

static int dti_ms_until(uint64_t deadline_ns) {
    uint64_t now = dti_now_ns();
    return deadline_ns <= now ? 0 : (int)DTI_MIN((deadline_ns - now + 999999) / 1000000, 60000u);
}

/* ---- the thread */

static size_t dti_tcp_thread_set(dti_tcp *t) {
    t->thread_reads = !t->waiting;
    size_t count = dti_tcp_poll_set(t, DTI_TCP_THREAD, t->thread_reads, true);
    t->polls[DTI_TCP_THREAD][count] = (struct pollfd){.fd = t->wake[0], .events = POLLIN};
    dti_tcp_poll_listeners(t, t->polls[DTI_TCP_THREAD] + count + 1);
    return count;
}

static void dti_tcp_round(dti_tcp *t, size_t count) {
    const struct pollfd *extra = t->polls[DTI_TCP_THREAD] + count;
    if (extra[0].revents)
        dti_wake_drain(t->wake);
    t->core.now = dti_now_ns();
    const uint64_t moved = t->core.bytes_sent + t->core.bytes_received;
    dti_tcp_poll_done(t, DTI_TCP_THREAD, count);
    dti_tcp_accept_ready(t, extra + 1);
    dti_tcp_tick(t);
    /* What this thread has moved changes what the application's poll is to wait for; and a bell
     * that it has heard may have been the application's, whose poll does not see it any more. */
    if (t->sleeping && (moved != t->core.bytes_sent + t->core.bytes_received ||
                        t->events_seen != t->core.events || !dti_tcp_shared_sleep(t)))
        dti_wake_write(t->nudge);
    t->events_seen = t->core.events;
}

static void dti_tcp_thread(void *arg) {
    dti_tcp *t = arg;
    dti_fp_enter();
    dti_thread_name("dtrain-comm");
    dti_mutex_lock(&t->lock);
    while (!atomic_load(&t->stop)) {
        size_t count = dti_tcp_thread_set(t);
        int timeout = dti_ms_until(dti_core_deadline(&t->core));
        if (t->thread_reads && !dti_tcp_shared_sleep(t))
            timeout = 0;
        dti_mutex_unlock(&t->lock);
        dti_socket_poll(t->polls[DTI_TCP_THREAD], count + 1 + dti_tcp_listeners(t), timeout);
        dti_mutex_lock(&t->lock);
        if (t->thread_reads) /* else the application has, and sleeps or not */
            dti_tcp_shared_awake(t);
        dti_tcp_round(t, count);
    }
    dti_mutex_unlock(&t->lock);
}

static bool dti_tcp_thread_start(dti_tcp *t) {
    t->thread_made = dti_thread_start(&t->thread, DTI_WORKER_STACK, dti_tcp_thread, t);
    return t->thread_made;
}

static void dti_tcp_thread_stop(dti_tcp *t) {
    if (!t->thread_made)
        return;
    atomic_store(&t->stop, true);
    dti_tcp_wake(t);
    dti_thread_join(&t->thread);
    t->thread_made = false;
}

/* ---- the application's calls */

/* What the library noticed meanwhile, to the logger; without the lock. */
static void dti_tcp_drain_notes(dti_tcp *t) {
    for (;;) {
        char text[sizeof t->core.notes[0]];
        dti_mutex_lock(&t->lock);
        dti_core *c = &t->core;
        bool some = c->note_count > 0;
        dt_log_level level = (dt_log_level)c->note_levels[c->note_first];
        if (some) {
            memcpy(text, c->notes[c->note_first], sizeof text);
            c->note_first = (c->note_first + 1) % DTI_NOTES;
            c->note_count--;
        }
        dti_mutex_unlock(&t->lock);
        if (!some)
            return;
        dti_log(t->base, level, "%s", text);
    }
}

static dti_flight *dti_tcp_flight(dti_tcp *t, uint64_t id) {
    for (uint32_t i = 0; i < t->core.flight_count; i++)
        if (id && t->core.flights[i]->id == id)
            return t->core.flights[i];
    return NULL;
}

/* One look at the data connections; with the lock, which is given back while it sleeps. */
static void dti_tcp_look(dti_tcp *t, int timeout_ms) {
    size_t count = dti_tcp_poll_set(t, DTI_TCP_APP, true, !t->thread_made);
    struct pollfd *nudge = &t->polls[DTI_TCP_APP][count];
    *nudge = (struct pollfd){.fd = t->nudge[0], .events = POLLIN};
    const bool sleeps = timeout_ms && dti_tcp_shared_sleep(t);
    t->sleeping = sleeps;
    if (sleeps)
        dti_mutex_unlock(&t->lock);
    int ready = dti_socket_poll(t->polls[DTI_TCP_APP], count + 1, sleeps ? timeout_ms : 0);
    if (sleeps)
        dti_mutex_lock(&t->lock);
    t->sleeping = false;
    dti_tcp_shared_awake(t);
    if (ready > 0 && nudge->revents)
        dti_wake_drain(t->nudge);
    t->core.now = dti_now_ns();
    if (ready > 0 || t->shared_count)
        dti_tcp_poll_done(t, DTI_TCP_APP, count);
    dti_tcp_try_all(t);
    dti_tcp_flush(t);
}

static void dti_conn_glance(dti_tcp *t, dti_tcp_conn *c) {
    if (dti_conn_is_shared(t, c))
        dti_conn_ready_shared(t, c, 0);
    else
        dti_conn_ready(t, c, POLLIN | (c->blocked ? POLLOUT : 0));
}

/* The same without sleep. To read at once costs one system call for each connection, to ask first
 * two in all, and memory none. */
static void dti_tcp_glance(dti_tcp *t) {
    if (t->active_count - t->shared_count > DTI_READS_AT_ONCE) {
        dti_tcp_look(t, 0);
        return;
    }
    const uint64_t moved = t->core.bytes_sent + t->core.bytes_received;
    for (uint32_t i = t->active_count; i-- > 0;)
        if (i < t->active_count && dti_conn_is_data(t->active[i]))
            dti_conn_glance(t, t->active[i]);
    /* Nothing new has come: what was to go has gone, or has been tried. */
    if (moved == t->core.bytes_sent + t->core.bytes_received && !t->to_try &&
        t->core.state == DTI_CORE_OPEN)
        return;
    dti_tcp_try_all(t);
    dti_tcp_flush(t);
}

/* The thread looks after what is still under way when nobody waits. */
static void dti_tcp_hand_over(dti_tcp *t) {
    if (t->core.unfinished && !t->thread_reads)
        dti_tcp_wake(t);
}

static dt_result dti_tcp_begin(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    dti_tcp_group *g = comm->state;
    dti_tcp *t = g->tcp;
    dti_mutex_lock(&t->lock);
    t->core.now = dti_now_ns();
    dt_result result = DT_OK;
    if (t->core.state != DTI_CORE_OPEN)
        result = dti_fail(t->base, DT_ERROR_REVOKED, "the group has ended: %s", t->core.text);
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
    dti_flight_release(f);
    return result ? dti_core_error(&t->core, result) : DT_OK;
}

/* Until it is finished or the time is up: looks without sleep while bytes come and go and a little
 * longer, then sleeping ones. */
static void dti_tcp_wait_for(dti_tcp *t, const dti_flight *f, uint64_t start, uint64_t timeout_ns) {
    uint64_t until = timeout_ns > UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
    uint64_t moved = 0, moved_at = start;
    uint32_t looks = 0;
    t->waiting = true;
    if (t->shared_count && t->thread_reads && timeout_ns) { /* not to be rung: this thread looks */
        dti_tcp_shared_awake(t);
        t->thread_reads = false;
    }
    while (!f->finished) {
        if (moved != t->core.bytes_sent + t->core.bytes_received) {
            moved = t->core.bytes_sent + t->core.bytes_received;
            moved_at = t->core.now;
        }
        if (t->core.now < moved_at + DTI_WAIT_SPIN_NS) {
            const bool spins = t->shared_count && !t->crowded;
            if (!spins || looks % DTI_LOOKS_UNTIL_CLOCK == 1)
                t->core.now = dti_now_ns();
            dti_tcp_glance(t);
            if (f->finished)
                break;
            if (spins && ++looks % DTI_LOOKS_UNTIL_YIELD)
                continue;
            dti_mutex_unlock(&t->lock);
            dti_thread_yield();
            dti_mutex_lock(&t->lock);
        } else {
            dti_tcp_look(t, DTI_MIN(dti_ms_until(until), DTI_SLEEP_MS_MAX));
        }
        if (until != UINT64_MAX && dti_now_ns() >= until)
            break;
    }
    t->waiting = false;
}

static dt_result dti_tcp_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    dti_mutex_lock(&t->lock);
    dti_flight *f = dti_tcp_flight(t, id);
    dt_result result;
    if (!f)
        result = dti_fail(t->base, DT_ERROR_INVALID, "no operation with this handle is under way");
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
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    dti_mutex_lock(&t->lock);
    t->core.now = dti_now_ns();
    dti_flight *f = dti_tcp_flight(t, id);
    dt_result result =
        f ? dti_core_cancel(&t->core, f)
          : dti_fail(t->base, DT_ERROR_INVALID, "no operation with this handle is under way");
    dti_tcp_flush(t);
    dti_mutex_unlock(&t->lock);
    return result;
}

static const dti_transport dti_tcp_transport;

/* "rank 3 has not posted it, rank 5 has posted it". */
static void dti_tcp_waits_for(dt_comm *comm, uint64_t id, char *text, size_t size) {
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    dti_mutex_lock(&t->lock);
    const dti_flight *f = dti_tcp_flight(t, id);
    size_t used = 0;
    text[0] = 0;
    for (uint32_t place = 0; f && place < f->group->size && used + 40 < size; place++) {
        if (!dti_flight_needs(&t->core, f, f->group->ranks[place]))
            continue;
        bool posted = f->peer_state[place] & DTI_PEER_POSTED;
        used += (size_t)snprintf(text + used, size - used, "%srank %u %s posted it",
                                 used ? ", " : "", place, posted ? "has" : "has not");
    }
    dti_mutex_unlock(&t->lock);
}

/* What choice goes by, for who asks without posting. */
static void dti_tcp_know_hosts(dt_comm *comm, const dti_tcp_group *g) {
    comm->local = g->group->local;
    comm->each = g->group->each;
    comm->costs = g->tcp->core.link.latency_ns ? &g->tcp->core.costs : NULL;
}

static dt_result dti_tcp_make_group(dt_comm *parent, dt_comm *child) {
    dti_tcp *t = ((dti_tcp_group *)parent->state)->tcp;
    dti_tcp_group *g = dti_alloc(t->base, sizeof *g);
    if (!g)
        return DT_ERROR_MEMORY;
    dti_mutex_lock(&t->lock);
    *g = (dti_tcp_group){t, dti_group_new(&t->core, child->group_id, child->ranks, child->size)};
    dti_mutex_unlock(&t->lock);
    if (!g->group) {
        dti_free(t->base, g);
        return DT_ERROR_MEMORY;
    }
    child->transport = &dti_tcp_transport;
    child->state = g;
    dti_tcp_know_hosts(child, g);
    return DT_OK;
}

static void dti_tcp_info(const dt_comm *comm, dt_comm_info *info) {
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    dti_mutex_lock(&t->lock);
    const dti_core *c = &t->core;
    info->bytes_sent = c->bytes_sent;
    info->bytes_received = c->bytes_received;
    info->payload_sent = c->payload_sent;
    info->payload_received = c->payload_received;
    info->link = c->link;
    info->local_link = c->local_link;
    info->link_measured = c->link.latency_ns && c->set.link_source == DTI_LINK_MEASURED;
    info->scratch_bytes = c->pool_bytes;
    info->resets = c->resets;
    for (uint32_t i = 0; i < c->flight_count; i++)
        info->scratch_bytes += c->flights[i]->work_room;
    dti_mutex_unlock(&t->lock);
}

/* ---- links */

static bool dti_tcp_measures(dt_comm *comm) {
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    dti_mutex_lock(&t->lock);
    const dti_core *c = &t->core;
    t->joined[0] = c->bytes_sent, t->joined[1] = c->bytes_received;
    t->joined[2] = c->payload_sent, t->joined[3] = c->payload_received;
    bool measures = c->set.link_source == DTI_LINK_MEASURED;
    dti_mutex_unlock(&t->lock);
    return measures;
}

static void dti_tcp_link(dt_comm *comm, const dt_comm_link *network, const dt_comm_link *local) {
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    dti_mutex_lock(&t->lock);
    dti_core *c = &t->core;
    dti_core_link_costs(c, network, local);
    c->bytes_sent = t->joined[0], c->bytes_received = t->joined[1];
    c->payload_sent = t->joined[2], c->payload_received = t->joined[3];
    comm->costs = &c->costs;
    dti_mutex_unlock(&t->lock);
}

/* ---- joining and leaving */

static void dti_tcp_free(dti_tcp *t) {
    dti_core_destroy(&t->core);
    dti_tls_free(t->tls);
    dti_key_forget(&t->share);
    dti_rendezvous_close(&t->meeting);
    for (int i = 0; i < 2; i++) {
        dti_free(t->base, t->polls[i]);
        dti_free(t->base, t->polled[i]);
    }
    dti_wake_close(t->wake);
    dti_wake_close(t->nudge);
    dti_descriptor_give_up(&t->reserve);
    dti_descriptor_give_up(&t->local);
    if (t->sockets)
        dti_sockets_end();
    if (t->locked_made)
        dti_mutex_destroy(&t->lock);
    dti_free(t->base, t->conns);
    dti_free(t->base, t->active);
    dti_free(t->base, t->local_failed);
    dti_wipe(&t->desc, sizeof t->desc);
    dti_free(t->base, t);
}

/* Where there is no thread: waits for all connections, those that come in, and time. */
static void dti_tcp_attend(dti_tcp *t) {
    size_t count = dti_tcp_poll_set(t, DTI_TCP_APP, true, true);
    dti_tcp_poll_listeners(t, t->polls[DTI_TCP_APP] + count);
    dti_socket_poll(t->polls[DTI_TCP_APP], count + dti_tcp_listeners(t),
                    dti_ms_until(dti_core_deadline(&t->core)));
    t->core.now = dti_now_ns();
    dti_tcp_poll_done(t, DTI_TCP_APP, count);
    dti_tcp_accept_ready(t, t->polls[DTI_TCP_APP] + count);
    dti_tcp_tick(t);
}

static void dti_tcp_close(dt_comm *comm) {
    dti_tcp_group *g = comm->state;
    dti_tcp *t = g->tcp;
    dti_base *base = t->base;
    if (comm->parent) {
        dti_mutex_lock(&t->lock);
        t->core.now = dti_now_ns();
        dti_group_free(&t->core, g->group);
        dti_tcp_flush(t);
        dti_mutex_unlock(&t->lock);
        dti_free(base, g);
        return;
    }
    dti_tcp_thread_stop(t);
    dti_mutex_lock(&t->lock);
    t->core.now = dti_now_ns();
    /* What this rank saw is told before its connections end, which would look like a loss. */
    while (t->core.state == DTI_CORE_SUSPECT) {
        dti_tcp_look(t, dti_ms_until(dti_core_deadline(&t->core)));
        dti_core_tick(&t->core, dti_now_ns());
    }
    dti_core_leave(&t->core);
    dti_tcp_flush(t);
    while (!dti_core_is_gone(&t->core))
        dti_tcp_attend(t);
    dti_mutex_unlock(&t->lock);
    dti_tcp_drain_notes(t);
    dti_tcp_free(t);
    dti_free(base, g);
}

static const dti_transport dti_tcp_transport = {.name = "tcp",
                                                .begin = dti_tcp_begin,
                                                .wait = dti_tcp_wait,
                                                .cancel = dti_tcp_cancel,
                                                .waits_for = dti_tcp_waits_for,
                                                .group = dti_tcp_make_group,
                                                .info = dti_tcp_info,
                                                .measures = dti_tcp_measures,
                                                .link = dti_tcp_link,
                                                .close = dti_tcp_close};

static void dti_tcp_settings(const dt_comm_desc *d, dti_settings *set) {
    set->rank = (uint32_t)d->rank;
    set->size = (uint32_t)d->world_size;
    set->local_rank = (uint32_t)d->local_rank;
    set->local_size = (uint32_t)d->local_size;
    set->chunk_bytes = (uint64_t)d->chunk_bytes;
    set->window = (uint32_t)d->window;
    set->sockets = (uint32_t)d->sockets;
    set->attempt = d->attempt;
    set->join_ns = (uint64_t)d->join_timeout_ms * 1000000;
    set->silence_ns = (uint64_t)d->silence_ms * 1000000;
    set->op_ns = (uint64_t)d->op_timeout_ms * 1000000;
    set->integrity = (uint8_t)d->integrity;
    set->link = d->link;
    set->link_source = (uint8_t)(d->link_off          ? DTI_LINK_OFF
                                 : d->link.latency_ns ? DTI_LINK_GIVEN
                                                      : DTI_LINK_MEASURED);
    memcpy(set->job, d->job, sizeof set->job);
}

static bool dti_tcp_memory(dti_tcp *t) {
    uint32_t links = t->core.link_count;
    t->conns = dti_alloc_array(t->base, links, sizeof *t->conns);
    t->active = dti_alloc_array(t->base, links, sizeof *t->active);
    for (int i = 0; i < 2; i++) {
        t->polls[i] = dti_alloc_array(t->base, links + DTI_ADDRESSES_MAX + 2, sizeof **t->polls);
        t->polled[i] = dti_alloc_array(t->base, links, sizeof **t->polled);
        if (!t->polls[i] || !t->polled[i])
            return false;
    }
    for (uint32_t i = 0; t->conns && i < links; i++)
        t->conns[i].fd = t->conns[i].memory = -1;
    t->local_failed = dti_alloc_array(t->base, t->core.set.size, sizeof *t->local_failed);
    return t->conns && t->active && t->local_failed;
}

static dt_result dti_tcp_pipe(dti_tcp *t) {
    t->sockets = dti_sockets_begin();
    if (!t->sockets || !dti_wake_open(t->wake) || !dti_wake_open(t->nudge))
        return dti_fail(t->base, DT_ERROR_IO, "pipe: %s", dti_socket_text(errno));
    t->reserve = dti_descriptor_reserve();
    t->processors = dti_processors();
    dti_mutex_init(&t->lock);
    t->locked_made = true;
    return DT_OK;
}

/* Drives the core on the application's thread until all ranks are there. */
static dt_result dti_tcp_join(dti_tcp *t) {
    dti_mutex_lock(&t->lock);
    dti_tcp_try_all(t);
    while (t->core.state == DTI_CORE_JOINING) {
        dti_tcp_attend(t);
        dti_mutex_unlock(&t->lock);
        dti_tcp_drain_notes(t);
        dti_mutex_lock(&t->lock);
    }
    bool joined = t->core.state == DTI_CORE_OPEN;
    dt_result result = joined ? DT_OK : dti_core_error(&t->core, t->core.result);
    dti_mutex_unlock(&t->lock);
    return result;
}

static dt_result dti_tcp_start(dti_tcp *t) {
    dti_settings set = {0};
    dt_result result = dti_tcp_pipe(t);
    if (!result)
        result = dti_congestion_try(t->base, t->desc.congestion);
    if (!result)
        result = dti_rendezvous_open(t->base, &t->meeting, set.key, &set.keyed, &t->share);
    dti_congestion_listeners(t);
    if (!result && t->desc.integrity == DT_COMM_TLS)
        result = dti_tls_new(t->base, &t->desc, set.key, &t->tls);
    t->by_tls = &dti_tls_calls;
    if (!result)
        result = dti_tcp_listen_local(t);
    if (result) {
        dti_wipe(&set, sizeof set);
        return result;
    }
    uint8_t address[DTI_ADDRESS_BYTES];
    uint32_t bytes = dti_addresses_pack(&t->meeting.own, address);
    bytes += dti_tcp_pack_local(t, address + bytes);
    dti_tcp_settings(&t->desc, &set);
    set.guessed = dti_rendezvous_is_guessed(&t->meeting);
    set.join_ns = dti_rendezvous_left_ns(&t->meeting);
    /* The core asks for a connection at once: its table must be there. */
    t->core.set = set;
    t->core.link_count = dti_core_link_count(&set);
    if (!dti_tcp_memory(t))
        return DT_ERROR_MEMORY;
    bool made =
        dti_core_create(&t->core, t->base, &set, &dti_tcp_io, t, address, bytes, dti_now_ns());
    dti_wipe(&set, sizeof set);
    if (!made)
        return t->base->result;
    result = dti_tcp_join(t);
    dti_key_forget(&t->share);
    dti_rendezvous_done(&t->meeting);
    if (!result && !dti_tcp_thread_start(t))
        result = dti_fail(t->base, DT_ERROR_MEMORY, "the system gives no thread");
    return result;
}

static dt_result dti_comm_open_tcp(dt_comm *comm, const dt_comm_desc *desc) {
    dti_tcp *t = dti_alloc(comm->base, sizeof *t);
    dti_tcp_group *g = t ? dti_alloc(comm->base, sizeof *g) : NULL;
    if (!g) {
        dti_free(comm->base, t);
        return DT_ERROR_MEMORY;
    }
    t->base = comm->base;
    t->wake[0] = t->wake[1] = t->nudge[0] = t->nudge[1] = t->reserve = t->local = -1;
    t->desc = *desc;
    t->meeting.desc = &t->desc;
    comm->state = g;
    comm->transport = &dti_tcp_transport;
    dt_result result = dti_tcp_start(t);
    if (!result) {
        *g = (dti_tcp_group){t, t->core.groups};
        dti_tcp_know_hosts(comm, g);
        return DT_OK;
    }
    *g = (dti_tcp_group){t, NULL};
    if (t->core.base)
        dti_tcp_close(comm);
    else {
        dti_tcp_free(t);
        dti_free(comm->base, g);
    }
    comm->state = NULL;
    comm->transport = NULL;
    return result;
}

#else

static dt_result dti_comm_open_tcp(dt_comm *comm, const dt_comm_desc *desc) {
    (void)desc;
    return dti_fail(comm->base, DT_ERROR_UNSUPPORTED,
                    "several processes need POSIX sockets: compile the implementation with "
                    "-std=gnu11, on a system that has them");
}

#endif
