/* Waiting for the system. It owns the sets of sockets to poll, the polling of a waiting thread, and
 * the library's thread. */

#if DTI_TCP

#define DTI_WAIT_SPIN_NS 1000000 /* without a byte; to be woken can cost more than many looks */
#define DTI_LOOKS_UNTIL_YIELD 64 /* at memory, where each rank has a processor */
#define DTI_LOOKS_UNTIL_CLOCK 8  /* then, too: a look takes no longer than the clock */
#define DTI_SLEEP_MS_MAX 1000    /* though relevant events end a sleep */
#define DTI_GLANCE_ALL_NS 500000 /* this often, sockets without expected data are polled too */

/* ---- the sockets to poll */

typedef enum dti_tcp_who { DTI_TCP_APP, DTI_TCP_THREAD } dti_tcp_who;

static bool dti_conn_is_data(const dti_tcp_conn *c) {
    return c->link->state == DTI_LINK_OPEN && c->link->channel == DTI_CHANNEL_DATA;
}

/* The sockets that `who` polls: the application data, the thread all others, and data if needed. */
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
        if (c->gone) /* the rest of it must still be taken */
            events = 0;
        t->polled[who][count] = c->link;
        polls[count++] = (struct pollfd){.fd = c->fd, .events = (short)events};
    }
    return count;
}

/* Those that listen at addresses, and the one of this host, if there is one. */
static size_t dti_tcp_listeners(const dti_tcp *t) {
    return (size_t)t->rendezvous.own.count + (t->local >= 0);
}

static void dti_tcp_poll_listeners(const dti_tcp *t, struct pollfd *polls) {
    short events = t->core.now >= t->accept_after ? POLLIN : 0;
    for (int i = 0; i < t->rendezvous.own.count; i++)
        polls[i] = (struct pollfd){.fd = t->rendezvous.listeners[i], .events = events};
    if (t->local >= 0)
        polls[t->rendezvous.own.count] = (struct pollfd){.fd = t->local, .events = events};
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
    /* This thread's work changes the events that the application's poll waits for. Also, it may
     * have taken a ring that was for the application, whose poll does not see it any more. */
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

/* With the lock: the thread looks whether it has been made. */
static bool dti_tcp_thread_start(dti_tcp *t) {
    dti_mutex_lock(&t->lock);
    const bool made = dti_thread_start(&t->thread, DTI_WORKER_STACK, dti_tcp_thread, t);
    t->thread_made = made;
    dti_mutex_unlock(&t->lock);
    return made;
}

static void dti_tcp_thread_stop(dti_tcp *t) {
    if (!t->thread_made)
        return;
    atomic_store(&t->stop, true);
    dti_wake_write(t->wake);
    dti_thread_join(&t->thread);
    t->thread_made = false;
}

/* ---- a thread that waits for an operation */

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

/* Whether an operation waits for data on it, or this rank asked for an answer. */
static bool dti_conn_is_awaited(const dti_tcp *t, const dti_tcp_conn *c) {
    const dti_core *core = &t->core;
    const uint32_t peer = c->link->peer;
    if (c->shared || c->blocked || c->link->pinged)
        return true;
    for (uint32_t i = 0; i < core->flight_count; i++) {
        const dti_flight *f = core->flights[i];
        const uint32_t place = f->id && !f->finished ? f->group->place_of[peer] : DTI_NOBODY;
        if (place != DTI_NOBODY &&
            (f->parting ? dti_flight_needs(core, f, peer) : dti_flight_expects(f, place)))
            return true;
    }
    return false;
}

/* Data connections to read from now, at most `most` of them; more are counted. */
static uint32_t dti_tcp_awaited(const dti_tcp *t, bool all, dti_tcp_conn **found, uint32_t most) {
    uint32_t count = 0;
    for (uint32_t i = t->active_count; i-- > 0;) {
        dti_tcp_conn *c = t->active[i];
        if (!dti_conn_is_data(c) || (!all && !dti_conn_is_awaited(t, c)))
            continue;
        if (count < most)
            found[count] = c;
        count++;
    }
    return count;
}

/* The same without sleep. To read at once costs one system call for each connection, to ask first
 * two in all, and memory none. */
static void dti_tcp_glance(dti_tcp *t) {
    dti_tcp_conn *found[DTI_READS_AT_ONCE];
    bool all = t->core.now - t->glanced >= DTI_GLANCE_ALL_NS;
    uint32_t count = dti_tcp_awaited(t, all, found, DTI_READS_AT_ONCE);
    if (!count && !all)
        count = dti_tcp_awaited(t, all = true, found, DTI_READS_AT_ONCE);
    if (all)
        t->glanced = t->core.now;
    if (count > DTI_READS_AT_ONCE) {
        dti_tcp_look(t, 0);
        return;
    }
    const uint64_t moved = t->core.bytes_sent + t->core.bytes_received;
    for (uint32_t i = 0; i < count; i++)
        if (found[i]->fd >= 0 && dti_conn_is_data(found[i]))
            dti_conn_glance(t, found[i]);
    /* Nothing new has arrived, and pending data has been sent or tried. */
    if (moved == t->core.bytes_sent + t->core.bytes_received && !t->to_try &&
        t->core.state == DTI_CORE_OPEN)
        return;
    dti_tcp_try_all(t);
    dti_tcp_flush(t);
}

/* Until it is finished or the time is up. Polls without sleep while bytes move and a little longer,
 * then sleeps. */
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

#endif
