/* The connections of the transport over TCP (tcp.c): opening, accepting, and bytes between a socket
 * and its dti_link. Everything here runs with the lock of its dti_tcp, and nothing blocks. All
 * descriptors are closed on exec and nothing is sent that could raise SIGPIPE. */

#if DTI_TCP

#define DTI_ACCEPT_PAUSE_NS 100000000u
#define DTI_CONNECT_NS 2000000000u /* until the next address is tried */
#define DTI_READS_AT_ONCE 12u

/* ---- connections */

static bool dti_conn_has_tls(const dti_tcp *t, const dti_tcp_conn *c) {
    return t->tls && !c->clear;
}

static dti_tcp_conn *dti_conn_of(dti_tcp *t, const dti_link *link) {
    return &t->conns[link - t->core.links];
}

static void dti_conn_open(dti_tcp *t, dti_link *link, int fd) {
    dti_tcp_conn *c = dti_conn_of(t, link);
    c->fd = fd;
    c->link = link;
    c->blocked = c->clear = c->shut_due = false;
    c->paced = dti_congestion_is_bbr(fd);
    c->at = t->active_count;
    t->active[t->active_count++] = c;
    link->conn = c;
}

static void dti_conn_close(dti_tcp *t, dti_tcp_conn *c) {
    if (c->fd < 0)
        return;
    dti_conn_close_local(t, c);
    dti_socket_close(c->fd);
    c->fd = -1;
    dti_tls_close(&c->tls);
    t->active[c->at] = t->active[--t->active_count];
    t->active[c->at]->at = c->at;
}

static void dti_conn_addresses(dti_tcp *t, const dti_link *link, dti_addresses *out) {
    if (link->channel == DTI_CHANNEL_CONTROL)
        *out = t->rendezvous.rank0;
    else
        dti_addresses_unpack(t->core.peers[link->peer].address,
                             t->core.peers[link->peer].address_bytes, out);
}

/* Tries the addresses from conn->try_next on; ends in a connection under way, or in
 * dti_core_closed. */
static void dti_conn_try(dti_tcp *t, dti_link *link, const char *why) {
    dti_tcp_conn *c = dti_conn_of(t, link);
    dti_addresses list;
    char text[160];
    snprintf(text, sizeof text, "%s", why);
    const int near = c->try_local ? dti_conn_dial_local(t, c, text) : -1;
    if (near >= 0) {
        dti_conn_open(t, link, near);
        c->local = link->lasting = true;
        c->connecting = false;
        dti_core_connected(&t->core, link);
        return;
    }
    dti_conn_addresses(t, link, &list);
    if (dti_conn_needs_shared(t, link, text))
        return;
    while (c->try_next < list.count) {
        const dti_address *a = &list.at[c->try_next++];
        int fd = dti_address_connect(a, t->desc.congestion);
        c->refused += fd < 0 && dti_socket_is_refused(errno);
        if (fd >= 0) {
            dti_conn_open(t, link, fd);
            c->connecting = true;
            c->started = t->core.now;
            link->deadline = t->core.now + DTI_HANDSHAKE_NS;
            return;
        }
        dti_address_why(a, errno, text);
    }
    link->nobody = list.count > 0 && c->refused == list.count;
    dti_core_closed(&t->core, link, text);
}

static void dti_tcp_dial(void *user, dti_link *link) {
    dti_tcp *t = user;
    dti_tcp_conn *c = dti_conn_of(t, link);
    c->try_next = c->refused = 0;
    c->try_local = !link->probe;
    c->link = link;
    link->conn = c;
    /* While it joins, the application's thread is here: names may be looked up. */
    if (link->channel == DTI_CHANNEL_CONTROL && t->core.state == DTI_CORE_JOINING)
        dti_rendezvous_look(&t->rendezvous);
    t->to_try = true;
}

static void dti_tcp_shut(void *user, dti_link *link) {
    dti_tcp_conn *c = link->conn;
    if (c && dti_conn_has_tls(user, c))
        c->shut_due = true;
    else if (c && c->fd >= 0 && c->shared)
        dti_conn_shut_shared(c);
    else if (c && c->fd >= 0)
        dti_socket_shut(c->fd);
}

static void dti_tcp_forget(void *user, dti_link *link) {
    if (link->conn)
        dti_conn_close(user, link->conn);
    link->conn = NULL;
}

static bool dti_tcp_random(void *user, void *to, size_t bytes) {
    return dti_random_bytes(to, bytes);
}

static void dti_tcp_describe(void *user, const uint8_t *address, uint32_t bytes, char text[64]) {
    dti_addresses list;
    dti_addresses_unpack(address, bytes, &list);
    text[0] = 0;
    if (list.count)
        dti_address_text(&list.at[0], text);
}

static const dti_io dti_tcp_io = {dti_tcp_dial,   dti_tcp_shut,     dti_tcp_forget,
                                  dti_tcp_random, dti_tcp_describe, dti_conn_accepts};

/* ---- connecting */

/* Makes the connections that the core asked for, outside of its call. So a failure does not return
 * into that call. */
static void dti_tcp_try_all(dti_tcp *t) {
    if (t->to_try && t->thread_made)
        dti_wake_write(
            t->wake); /* new ones are the thread's to look at, and it does not know them yet */
    while (t->to_try) {
        t->to_try = false;
        for (uint32_t i = 0; i < t->core.link_count; i++) {
            dti_link *link = &t->core.links[i];
            if (link->state == DTI_LINK_DIALING && link->conn && t->conns[i].fd < 0)
                dti_conn_try(t, link,
                             t->rendezvous.why[0] ? t->rendezvous.why : "it has no address");
        }
    }
}

/* An address that does not answer does not keep the next ones waiting. */
static void dti_tcp_try_next(dti_tcp *t) {
    for (uint32_t i = t->active_count; i-- > 0;) {
        dti_tcp_conn *c = i < t->active_count ? t->active[i] : NULL;
        dti_addresses list;
        if (!c || !c->connecting || t->core.now - c->started < DTI_CONNECT_NS)
            continue;
        dti_conn_addresses(t, c->link, &list);
        if (c->try_next >= list.count)
            continue;
        dti_conn_close(t, c);
        dti_conn_try(t, c->link, "no answer");
    }
}

/* ---- accepting */

/* Out of descriptors: ends the connection, so the caller notices instead of waiting. */
static void dti_tcp_refuse_one(dti_tcp *t, int listener, int error) {
    dti_descriptor_give_up(&t->reserve);
    int fd = dti_socket_accept(listener);
    if (fd >= 0)
        dti_socket_close(fd);
    else
        t->accept_after = t->core.now + DTI_ACCEPT_PAUSE_NS;
    t->reserve = dti_descriptor_reserve();
    t->core.starved = true;
    dti_core_note_no_descriptor(&t->core, dti_socket_text(error));
}

static void dti_tcp_accept(dti_tcp *t, int listener) {
    for (int i = 0; i < 64; i++) {
        int fd = dti_socket_accept(listener);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            dti_tcp_refuse_one(t, listener, errno);
            return;
        }
        if (fd < 0 && (errno == ENOMEM || errno == ENOBUFS)) /* it would be ready at once again */
            t->accept_after = t->core.now + DTI_ACCEPT_PAUSE_NS;
        if (fd < 0)
            return;
        if (listener == t->local && dti_local_process(fd) < 0) {
            dti_socket_close(fd);
            continue;
        }
        t->core.starved = false; /* it was for a while: not why somebody is missing later */
        uint8_t source[DTI_SOURCE_BYTES];
        dti_address_source(fd, source);
        dti_link *link = dti_core_accepted(&t->core, source);
        if (!link) {
            dti_socket_close(fd);
            continue;
        }
        dti_tcp_conn *c = dti_conn_of(t, link);
        dti_conn_open(t, link, fd);
        c->connecting = false;
        c->local = link->lasting = listener == t->local;
        if (!c->local) {
            dti_congestion_set(t, fd);
            dti_socket_watch(fd);
        }
    }
}

/* ---- bytes */

static bool dti_conn_write(dti_tcp *t, dti_tcp_conn *c);

/* The other side sends nothing more. It may wait for our BYE: that goes first. */
static void dti_conn_ended(dti_tcp *t, dti_tcp_conn *c) {
    const dti_link *link = c->link;
    if (link->state == DTI_LINK_OPEN && link->back->bye_received && !link->shut && !c->blocked)
        dti_conn_write(t, c);
    if (c->fd >= 0)
        dti_core_closed(&t->core, c->link, NULL);
}

static void dti_conn_failed(dti_tcp *t, dti_tcp_conn *c, int error) {
    if (error)
        dti_core_closed(&t->core, c->link, dti_socket_text(error));
    else
        dti_conn_ended(t, c);
}

/* On one host: the memory is passed along with the PROOF. */
static int64_t dti_conn_send(dti_tcp_conn *c, const dti_socket_part *parts, int count) {
    const bool passes = c->memory >= 0 && c->link->state == DTI_LINK_PROOF;
    if (!passes || !c->link->dialled)
        return dti_socket_send(c->fd, parts, count, c->link->more && !c->paced);
    const int64_t sent = dti_local_send(c->fd, parts, count, c->memory);
    if (sent > 0) {
        dti_socket_close(c->memory);
        c->memory = -1;
    }
    return sent;
}

static bool dti_conn_write_tls(dti_tcp_conn *c) {
    const bool some = dti_tls_write(&c->tls);
    if (c->fd >= 0 && c->shut_due && !c->blocked)
        dti_socket_shut(c->fd);
    return some;
}

/* False: the connection is gone. */
static bool dti_conn_start_tls(dti_tcp *t, dti_tcp_conn *c) {
    if (dti_tls_open(t->tls, &c->tls, c->link, t->wire, c->fd, &c->blocked)) {
        dti_tls_greet(&c->tls);
        return c->fd >= 0;
    }
    dti_core_closed(&t->core, c->link, "OpenSSL has no memory");
    return false;
}

/* True when something went. */
static bool dti_conn_write(dti_tcp *t, dti_tcp_conn *c) {
    if (dti_conn_has_tls(t, c))
        return dti_conn_write_tls(c);
    if (dti_conn_is_shared(t, c))
        return dti_conn_write_shared(t, c);
    dti_socket_part out[DTI_SOCKET_PARTS];
    bool some = false;
    c->blocked = false;
    for (int count; c->fd >= 0 && (count = dti_link_output(&t->core, c->link, out)) > 0;) {
        const size_t whole = dti_parts_bytes(out, count);
        const int64_t sent = dti_conn_send(c, out, count);
        if (sent < 0) {
            c->blocked = dti_socket_would_block(errno);
            if (!c->blocked)
                dti_conn_failed(t, c, errno);
            return some;
        }
        some = true;
        dti_link_sent(&t->core, c->link, (size_t)sent);
        if ((size_t)sent < whole) {
            c->blocked = true;
            break;
        }
        if (c->fd >= 0 && dti_conn_is_shared(t, c))
            return dti_conn_write_shared(t, c) || some;
    }
    return some;
}

static void dti_conn_read(dti_tcp *t, dti_tcp_conn *c) {
    if (dti_conn_has_tls(t, c)) {
        if (c->tls.ssl || dti_conn_start_tls(t, c))
            dti_tls_read(&c->tls);
        return;
    }
    if (dti_conn_is_shared(t, c)) {
        dti_conn_read_shared(t, c);
        return;
    }
    dti_socket_part in[DTI_SOCKET_PARTS];
    size_t total = 0;
    for (int count; c->fd >= 0 && total < DTI_READ_BYTES_MAX &&
                    (count = dti_link_input(&t->core, c->link, in)) > 0;) {
        const size_t whole = dti_parts_bytes(in, count);
        const int64_t got = c->local ? dti_local_receive(c->fd, in, count, &c->memory)
                                     : dti_socket_receive(c->fd, in, count);
        if (got <= 0) {
            if (got == 0 || !dti_socket_would_block(errno))
                dti_conn_failed(t, c, got ? errno : 0);
            return;
        }
        dti_link_received(&t->core, c->link, (size_t)got);
        total += (size_t)got;
        if ((size_t)got < whole || (c->fd >= 0 && dti_conn_is_shared(t, c)))
            return;
    }
}

static void dti_conn_connected(dti_tcp *t, dti_tcp_conn *c) {
    const int error = dti_socket_failed(c->fd);
    c->connecting = false;
    if (!error && c->link->channel == DTI_CHANNEL_CONTROL)
        dti_rendezvous_connected(&t->rendezvous, c->try_next - 1);
    if (!error && t->tls && !c->link->probe)
        dti_conn_start_tls(t, c);
    else if (!error)
        dti_core_connected(&t->core, c->link);
    if (!error)
        return;
    char why[160];
    dti_addresses list;
    dti_conn_addresses(t, c->link, &list);
    dti_address_why(&list.at[c->try_next - 1], error, why);
    c->refused += dti_socket_is_refused(error);
    dti_conn_close(t, c);
    dti_conn_try(t, c->link, why);
}

static void dti_conn_ready(dti_tcp *t, dti_tcp_conn *c, int events) {
    if (c->shared) {
        dti_conn_ready_shared(t, c, events);
        return;
    }
    if (c->connecting && events & (POLLOUT | POLLERR | POLLHUP))
        dti_conn_connected(t, c);
    else if (!c->connecting && events & (POLLIN | POLLERR | POLLHUP))
        dti_conn_read(t, c);
    if (c->fd >= 0 && !c->connecting && events & POLLOUT)
        dti_conn_write(t, c);
}

/* Everything that has something to send and can. From the end: an ended one is replaced by the
 * last. */
static void dti_tcp_flush(dti_tcp *t) {
    /* A finished send may be what another connection waits for: the next chunk is the next
     * socket's. */
    for (bool some = true; some;) {
        some = false;
        for (uint32_t i = t->active_count; i-- > 0;)
            if (i < t->active_count && !t->active[i]->connecting && !t->active[i]->blocked)
                some |= dti_conn_write(t, t->active[i]);
    }
}

static void dti_tcp_tick(dti_tcp *t) {
    dti_core_tick(&t->core, dti_now_ns());
    dti_tcp_try_next(t);
    dti_tcp_try_all(t);
    dti_tcp_flush(t);
}

#endif
