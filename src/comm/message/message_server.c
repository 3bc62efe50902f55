/* The sockets of a message server. It listens, connects, and moves bytes between sockets and
 * connections (message_link.c), without its own thread. A peer that has not proved that it has the
 * key holds a connection for 5 s at most. When all connections are taken, one of the address that
 * holds most is closed for the next, as between ranks. Connections that end without a proof are
 * counted, and logged now and then. A connection's end is reported once. */

#if DTI_TCP

/* ---- ends */

static void dti_message_server_forget(dti_message_server_conn *c) {
    if (c->fd >= 0)
        dti_socket_close(c->fd);
    dti_tls_close(&c->tls);
    c->fd = -1;
    c->connecting = c->blocked = false;
    dti_message_link_reset(&c->message_link);
}

/* Counts a connection that ended before its proof. A mere look at the port is not logged. */
static void dti_message_server_stranger(dti_message_server *server, const dti_link *link,
                                        const char *why) {
    server->strangers++;
    if (link->state != DTI_LINK_HELLO || link->rx_to || server->core.now >= link->deadline)
        dti_core_note_refusal(&server->core, link->from, "a connection was refused: %s", why);
}

/* Reports the end to the application, unless it did not know of the connection. */
static void dti_message_server_over(dti_message_server *server, dti_message_server_conn *c) {
    const dti_message_link *ml = &c->message_link;
    char why[sizeof ml->why];
    const bool open = ml->open, refused = ml->refused, known = ml->open || ml->link.dialled;
    memcpy(why, ml->why, sizeof why);
    if (!known)
        dti_message_server_stranger(server, &ml->link, why);
    dti_message_server_forget(c);
    if (known)
        server->events.closed(server->events.user, ml->who, open, refused, why);
}

static void dti_message_server_close(dti_message_server *server, uint32_t who, const char *why) {
    dti_message_server_forget(&server->conns[who]);
}

static void dti_message_server_drop(dti_message_server *server, uint32_t who) {
    server->conns[who].message_link.to = NULL;
}

/* ---- bytes */

static void dti_message_server_write(dti_message_server *server, dti_message_server_conn *c) {
    dti_link *link = &c->message_link.link;
    dti_socket_part out[2];
    int count;
    if (server->tls) {
        dti_tls_write(&c->tls);
        return;
    }
    c->blocked = false;
    while (!c->blocked && (count = dti_message_link_output(&server->core, link, out)) > 0) {
        const int64_t sent = dti_socket_send(c->fd, out, count, false);
        c->blocked = sent <= 0;
        if (sent <= 0)
            dti_message_server_ended(link, sent);
        else
            dti_message_link_sent(&server->core, link, (size_t)sent);
    }
}

static void dti_message_server_read(dti_message_server *server, dti_message_server_conn *c) {
    dti_link *link = &c->message_link.link;
    dti_socket_part in[2];
    if (server->tls) {
        dti_tls_read(&c->tls);
        return;
    }
    for (size_t total = 0;
         total < DTI_MESSAGE_SERVER_READ_MAX && dti_message_link_input(&server->core, link, in);) {
        const int64_t got = dti_socket_receive(c->fd, in, 1);
        if (got <= 0) {
            dti_message_server_ended(link, got);
            return;
        }
        total += (size_t)got;
        dti_message_link_received(&server->core, link, (size_t)got);
    }
}

static void dti_message_server_tls_start(dti_message_server *server, dti_message_server_conn *c) {
    if (!dti_tls_open(server->tls, &c->tls, &c->message_link.link, &dti_message_wire, c->fd,
                      &c->blocked))
        dti_message_link_end(&c->message_link, false, "OpenSSL has no memory");
}

/* ---- connections */

/* Tries the addresses from `next` on until one is being dialled; else ends the connection with the
 * reason. */
static void dti_message_server_try(dti_message_server_conn *c, const char *before) {
    char text[160];
    snprintf(text, sizeof text, "%s", before);
    if (c->fd >= 0)
        dti_socket_close(c->fd);
    c->fd = -1;
    c->connecting = false;
    while (c->next < c->list.count && c->fd < 0) {
        const dti_address *a = &c->list.at[c->next++];
        c->fd = dti_address_connect(a, "");
        if (c->fd < 0)
            dti_address_why(a, errno, text);
    }
    c->connecting = c->fd >= 0;
    if (c->fd < 0)
        dti_message_link_end(&c->message_link, false, "%s", text);
}

/* Reads "file:///path" again, because a restarted server may have another address. */
static bool dti_message_server_is_file(const char *address) {
    return !strncmp(address, "file://", 7);
}

static void dti_message_server_dial_file(dti_message_server *server, dti_message_server_conn *c,
                                         const char *address) {
    dti_rendezvous *r = &server->rendezvous;
    snprintf(server->by.rendezvous, sizeof server->by.rendezvous, "%s", address);
    r->desc = &server->by;
    r->rank0.count = 0;
    r->why[0] = 0;
    dti_rendezvous_read(r);
    c->list = r->rank0;
    c->next = 0;
    dti_message_server_try(c, r->why);
}

static bool dti_message_server_dial(dti_message_server *server, uint32_t who, const char *address,
                                    uint32_t place) {
    dti_message_server_conn *c = &server->conns[who];
    dti_endpoint e;
    dti_message_server_forget(c);
    server->core.now = dti_now_ns();
    if (dti_message_server_is_file(address)) {
        dti_message_link_start(&server->core, &c->message_link, true, place);
        dti_message_server_dial_file(server, c, address);
        return true;
    }
    if (!dti_endpoint_parse(strncmp(address, "tcp://", 6) ? "" : "tcp://", address, &e) ||
        e.port == 0) {
        dti_fail(server->base, DT_ERROR_INVALID,
                 "'%s' is not a server's address: \"host:port\", \"tcp://host:port\" or "
                 "\"file:///path\"",
                 address);
        return false;
    }
    dti_message_link_start(&server->core, &c->message_link, true, place);
    const int error = dti_resolve(e.host, e.port, &c->list);
    c->next = 0;
    if (error)
        dti_message_link_end(&c->message_link, false, "%s: %s", e.host, gai_strerror(error));
    else
        dti_message_server_try(c, "no address");
    return true;
}

static void dti_message_server_connected(dti_message_server *server, dti_message_server_conn *c) {
    const int error = dti_socket_failed(c->fd);
    if (error) {
        char text[160];
        dti_address_why(&c->list.at[c->next - 1], error, text);
        dti_message_server_try(c, text);
        return;
    }
    c->connecting = false;
    if (server->tls) {
        dti_message_server_tls_start(server, c);
        if (c->tls.ssl)
            dti_tls_greet(&c->tls);
    } else
        dti_message_link_connected(&server->core, &c->message_link);
}

/* A free place, or that of one that has proved nothing; NULL: all have. */
static dti_message_server_conn *dti_message_server_place(dti_message_server *server,
                                                         const uint8_t source[DTI_SOURCE_BYTES]) {
    for (uint32_t i = 0; i < server->count; i++)
        if (!server->conns[i].message_link.used)
            return &server->conns[i];
    const dti_link *last =
        dti_pending_last(&server->conns[0].message_link.link, sizeof *server->conns, server->count,
                         0, dti_source_group(&server->core, source));
    if (!last)
        return NULL;
    server->strangers++;
    dti_core_note_refusal(
        &server->core, last->from,
        "all %u connections are in use: one that was not authenticated was closed", server->count);
    const dti_message_link *ml = last->conn;
    dti_message_server_forget(&server->conns[ml->who]);
    return &server->conns[ml->who];
}

/* A connection that waits gets the reserve's descriptor and is closed, so that it does not wait for
 * ever. The next look is later. */
static void dti_message_server_no_descriptor(dti_message_server *server, int listener, int error) {
    server->accept_after = server->core.now + 100000000u;
    dti_descriptor_give_up(&server->reserve);
    const int fd = dti_socket_accept(listener);
    if (fd >= 0)
        dti_socket_close(fd);
    server->reserve = dti_descriptor_reserve();
    dti_core_note_no_descriptor(&server->core, dti_socket_text(error));
}

/* False: none waits. */
static bool dti_message_server_accept(dti_message_server *server, int listener) {
    uint8_t source[DTI_SOURCE_BYTES];
    const int fd = dti_socket_accept(listener);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE)
            dti_message_server_no_descriptor(server, listener, errno);
        return false;
    }
    dti_address_source(fd, source);
    dti_message_server_conn *c = dti_message_server_place(server, source);
    if (!c) {
        dti_socket_close(fd);
        return true;
    }
    dti_socket_watch(fd);
    c->fd = fd;
    dti_message_link_start(&server->core, &c->message_link, false, 0);
    dti_link_came_from(&server->core, &c->message_link.link, source);
    if (server->tls)
        dti_message_server_tls_start(server, c);
    return true;
}

/* ---- a step */

static bool dti_message_server_wants(dti_message_server *server, dti_message_server_conn *c) {
    dti_socket_part out[2];
    if (c->connecting || c->blocked)
        return true;
    return !server->tls && dti_message_link_output(&server->core, &c->message_link.link, out) > 0;
}

static size_t dti_message_server_gather(dti_message_server *server, size_t *listeners) {
    size_t n = 0;
    server->polls[n++] = (struct pollfd){.fd = server->wake[0], .events = POLLIN};
    for (int i = 0; i < server->listener_count && server->core.now >= server->accept_after; i++)
        server->polls[n++] = (struct pollfd){.fd = server->listeners[i], .events = POLLIN};
    *listeners = n - 1;
    for (uint32_t i = 0; i < server->count; i++) {
        dti_message_server_conn *c = &server->conns[i];
        dti_socket_part in[2];
        if (c->fd < 0 || c->message_link.over)
            continue;
        const bool reads =
            !c->connecting &&
            (server->tls || dti_message_link_input(&server->core, &c->message_link.link, in));
        server->polled[n - 1 - *listeners] = c;
        server->polls[n++] =
            (struct pollfd){.fd = c->fd,
                            .events = (short)((reads ? POLLIN : 0) |
                                              (dti_message_server_wants(server, c) ? POLLOUT : 0))};
    }
    return n;
}

static void dti_message_server_move(dti_message_server *server, dti_message_server_conn *c,
                                    short events) {
    if (c->fd < 0 || c->message_link.over || !events)
        return;
    if (c->connecting)
        dti_message_server_connected(server, c);
    else if (events & (POLLIN | POLLERR | POLLHUP))
        dti_message_server_read(server, c);
}

/* Deadlines, output, and closed connections. Reports of them may cause more output. */
static void dti_message_server_settle(dti_message_server *server) {
    for (uint32_t i = 0; i < server->count; i++) {
        dti_message_server_conn *c = &server->conns[i];
        if (!c->message_link.used)
            continue;
        dti_message_link_tick(&server->core, &c->message_link);
        if (c->fd >= 0 && !c->connecting)
            dti_message_server_write(server, c);
        if (c->message_link.over)
            dti_message_server_over(server, c);
    }
}

/* The time that there is until a handshake is given up. */
static int dti_message_server_timeout(const dti_message_server *server, int timeout_ms) {
    for (uint32_t i = 0; i < server->count; i++) {
        const dti_message_link *ml = &server->conns[i].message_link;
        if (!ml->used || ml->open)
            continue;
        const uint64_t left = ml->link.deadline > server->core.now
                                  ? (ml->link.deadline - server->core.now) / 1000000u
                                  : 0;
        timeout_ms = DTI_MIN(timeout_ms, (int)left + 1);
    }
    return timeout_ms;
}

/* Logs refused connections of strangers. */
static void dti_message_server_tell(dti_message_server *server) {
    char text[DTI_NOTE_BYTES];
    dt_log_level level;
    while (dti_core_next_note(&server->core, &level, text))
        dti_log(server->base, level, "%s", text);
}

static void dti_message_server_step(dti_message_server *server, int timeout_ms) {
    size_t listeners;
    server->core.now = dti_now_ns();
    dti_message_server_settle(server);
    const size_t n = dti_message_server_gather(server, &listeners);
    if (dti_socket_poll(server->polls, n, dti_message_server_timeout(server, timeout_ms)) < 0)
        return;
    server->core.now = dti_now_ns();
    if (server->polls[0].revents)
        dti_wake_drain(server->wake);
    for (size_t i = 1 + listeners; i < n; i++)
        dti_message_server_move(server, server->polled[i - 1 - listeners],
                                server->polls[i].revents);
    for (size_t i = 1; i <= listeners; i++) {
        for (int k = 0; server->polls[i].revents && k < DTI_MESSAGE_SERVER_ACCEPTS; k++)
            if (!dti_message_server_accept(server, server->listeners[i - 1]))
                break;
    }
    dti_message_server_settle(server);
    dti_tick_refusals(&server->core);
    dti_message_server_tell(server);
}

static void dti_message_server_send(dti_message_server *server, uint32_t who,
                                    const dti_message *m) {
    dti_message_link_send(&server->conns[who].message_link, m);
}

static void dti_message_server_wake(dti_message_server *server) {
    dti_wake_write(server->wake);
}

static uint64_t dti_message_server_moved(const dti_message_server *server, uint32_t who) {
    return server->conns[who].message_link.moved;
}

static int dti_message_server_port(const dti_message_server *server) {
    return server->port;
}

static uint64_t dti_message_server_strangers(const dti_message_server *server) {
    return server->strangers;
}

/* ---- its life */

static void dti_message_server_destroy(dti_message_server *server) {
    if (!server)
        return;
    for (uint32_t i = 0; server->conns && i < server->count; i++)
        dti_message_server_forget(&server->conns[i]);
    if (server->core.refusals.held)
        dti_refusals_sum_up(&server->core);
    dti_message_server_tell(server);
    if (server->rendezvous.wrote)
        dti_rendezvous_done(&server->rendezvous);
    for (int i = 0; i < server->listener_count; i++)
        dti_socket_close(server->listeners[i]);
    dti_descriptor_give_up(&server->reserve);
    dti_wake_close(server->wake);
    dti_tls_free(server->tls);
    if (server->sockets)
        dti_sockets_end();
    DTI_FREE(server->base, server->conns, server->pieces, server->polls, server->polled);
    dti_wipe(&server->core.set, sizeof server->core.set);
    dti_wipe(&server->by, sizeof server->by);
    dti_free(server->base, server);
}

static dt_result dti_message_server_settings(dti_base *base, const dti_message_server_desc *d,
                                             dti_settings *set) {
    const dt_comm_desc none = {0}, *by = d->by ? d->by : &none;
    *set = (dti_settings){.rank = d->listen ? d->place : DTI_MESSAGE_LINK_CLIENT,
                          .size = DTI_MESSAGE_LINK_WORLD,
                          .attempt = by->attempt,
                          .sockets = 1,
                          .integrity = (uint8_t)by->integrity};
    if (by->error[0])
        return dti_fail(base, DT_ERROR_INVALID, "%.200s", by->error);
    if (!memchr(by->job, 0, sizeof by->job))
        return dti_fail(base, DT_ERROR_INVALID,
                        ".security->job is too long; it must have at most 63 bytes");
    memcpy(set->job, by->job, sizeof set->job);
    memset(set->job + strlen(by->job), 0, sizeof set->job - strlen(by->job));
    dt_result result = dti_key_given(base, by, set->key, &set->keyed);
    if (result || set->keyed || by->insecure)
        return result;
    return dti_fail(base, DT_ERROR_INVALID,
                    "servers and workers need a shared key: set .security->key or key_file, or use "
                    "dt_comm_desc_from_env() under dtrun, or set .insecure. " DTI_KEY_HOW);
}

/* Listens on any port, and writes it to a file. */
static dt_result dti_message_server_listen_file(dti_message_server *server, const char *address) {
    dti_rendezvous *r = &server->rendezvous;
    if (strlen(address) >= sizeof server->by.rendezvous)
        return dti_fail(server->base, DT_ERROR_INVALID, "the address \"%.40s...\" is too long",
                        address);
    strcpy(server->by.rendezvous, address);
    r->desc = &server->by;
    dti_rendezvous_listen_rule(r, server->by.port_low, server->by.port_high);
    if (!r->own.count)
        return dti_fail(server->base, DT_ERROR_IO, "cannot listen on any interface: %s",
                        dti_socket_text(r->error));
    memcpy(server->listeners, r->listeners, sizeof server->listeners);
    server->listener_count = r->own.count;
    server->port = dti_address_port(&r->own.at[0]);
    return dti_rendezvous_publish(server->base, r);
}

static dt_result dti_message_server_listen(dti_message_server *server, const char *address) {
    dti_endpoint e;
    dti_addresses list;
    if (dti_message_server_is_file(address))
        return dti_message_server_listen_file(server, address);
    if (!dti_endpoint_parse(strncmp(address, "tcp://", 6) ? "" : "tcp://", address, &e))
        return dti_fail(
            server->base, DT_ERROR_INVALID,
            "'%s' is not an address to listen at: \"host:port\", port 0 = any; or \"file:///path\"",
            address);
    const int error = dti_resolve(e.host, e.port, &list);
    if (error)
        return dti_fail(server->base, DT_ERROR_IO, "%s: %s", e.host, gai_strerror(error));
    server->port = e.port;
    for (int i = 0; i < list.count; i++) {
        dti_address_set_port(&list.at[i], server->port);
        /* a restarted server finds connections of its former run at its address, even if the system
         * chose the port */
        const int s = dti_listen_as(&list.at[i], true);
        if (s < 0)
            continue;
        server->listeners[server->listener_count++] = s;
        server->port = dti_address_port(&list.at[i]);
    }
    if (server->listener_count)
        return DT_OK;
    return dti_fail(server->base, DT_ERROR_IO, "cannot listen on %s: %s", address,
                    dti_socket_text(errno));
}

static dt_result dti_message_server_memory(dti_message_server *server, uint32_t count) {
    server->count = count;
    server->conns = dti_alloc_array(server->base, count, sizeof *server->conns);
    server->pieces = dti_alloc_array(server->base, count, DTI_MESSAGE_LINK_PIECE);
    server->polls =
        dti_alloc_array(server->base, 1u + DTI_ADDRESSES_MAX + count, sizeof *server->polls);
    server->polled = dti_alloc_array(server->base, count, sizeof *server->polled);
    DTI_HAVE(server->conns && server->pieces && server->polls && server->polled);
    for (uint32_t i = 0; i < count; i++) {
        server->conns[i].fd = -1;
        server->conns[i].message_link =
            (dti_message_link){.events = &server->events,
                               .who = i,
                               .piece = server->pieces + (size_t)i * DTI_MESSAGE_LINK_PIECE};
    }
    return DT_OK;
}

/* OpenSSL protects payloads. */
static dt_result dti_message_server_protects(dti_base *base, const dti_settings *set) {
    if (set->integrity != DT_COMM_MAC && set->integrity != DT_COMM_TLS)
        return DT_OK;
#ifndef DT_WITH_OPENSSL
    return dti_fail(
        base, DT_ERROR_UNSUPPORTED,
        ".integrity DT_COMM_MAC or DT_COMM_TLS requires dtrain compiled with DT_WITH_OPENSSL");
#else
    return set->keyed ? DT_OK
                      : dti_fail(base, DT_ERROR_INVALID,
                                 ".integrity DT_COMM_MAC or DT_COMM_TLS requires a key");
#endif
}

static dt_result dti_message_server_open(dti_message_server *server,
                                         const dti_message_server_desc *d) {
    const dt_comm_desc none = {0};
    const dti_io io = {.random = dti_tcp_random};
    dti_settings set;
    DTI_TRY(dti_message_server_settings(server->base, d, &set));
    DTI_TRY(dti_message_server_protects(server->base, &set));
    dt_result result = DT_OK;
    dti_message_link_core(&server->core, &set, &io, server);
    dti_wipe(&set, sizeof set);
    server->sockets = dti_sockets_begin();
    server->reserve = dti_descriptor_reserve();
    if (!server->sockets || !dti_wake_open(server->wake) ||
        !dti_random_bytes(&server->core.source_seed, sizeof server->core.source_seed) ||
        !dti_random_bytes(server->core.instance, sizeof server->core.instance))
        return dti_fail(server->base, DT_ERROR_IO,
                        "the system provides no sockets, descriptors or random bytes: %s",
                        dti_socket_text(errno));
    if (server->core.set.integrity == DT_COMM_TLS)
        result =
            dti_tls_new(server->base, d->by ? d->by : &none, server->core.set.key, &server->tls);
    if (!result)
        result = dti_message_server_memory(server, d->connections);
    return result || !d->listen ? result : dti_message_server_listen(server, d->listen);
}

static dt_result dti_message_server_create(dti_base *base, const dti_message_server_desc *d,
                                           dti_message_server **out) {
    dti_message_server *server = dti_alloc(base, sizeof *server);
    *out = NULL;
    DTI_HAVE(server);
    server->base = base;
    server->events = d->events;
    server->by = d->by ? *d->by : (dt_comm_desc){0};
    server->wake[0] = server->wake[1] = server->reserve = -1;
    dt_result result = dti_message_server_open(server, d);
    if (result)
        dti_message_server_destroy(server);
    else
        *out = server;
    return result;
}

#ifndef DT_COMM_ONLY
static const dti_message_server_calls dti_message_server_table = {
    dti_message_server_create, dti_message_server_destroy,  dti_message_server_port,
    dti_message_server_dial,   dti_message_server_send,     dti_message_server_close,
    dti_message_server_drop,   dti_message_server_step,     dti_message_server_moved,
    dti_message_server_wake,   dti_message_server_strangers};

static const dti_message_server_calls *dti_message_server_calls_of(void) {
    return DTI_HAS_SERVER ? &dti_message_server_table : NULL;
}
#endif

#elif !defined DT_COMM_ONLY

static const dti_message_server_calls *dti_message_server_calls_of(void) {
    return NULL;
}

#endif
