/* The sockets of a desk: it listens, dials, and moves bytes between them and talks (talk.c),
 * without a thread of its own. Who has proved nothing holds a connection for 5 s at most, and when
 * all are taken one of the address that holds most is given up for the next, as between ranks. What
 * such connections come to is counted, and logged now and then. A connection's end is told once. */

#if DTI_TCP

/* ---- ends */

static void dti_desk_forget(dti_desk_conn *c) {
    if (c->fd >= 0)
        dti_socket_close(c->fd);
    if (c->begun)
        dti_tls_close(&c->tls);
    c->fd = -1;
    c->connecting = c->begun = c->secure = c->blocked = false;
    dti_talk_reset(&c->talk);
}

/* Counts a connection that ended before its proof. A mere look at the port is not logged. */
static void dti_desk_stranger(dti_desk *desk, const dti_link *link, const char *why) {
    desk->strangers++;
    if (link->state != DTI_LINK_HELLO || link->rx_to || desk->core.now >= link->deadline)
        dti_core_note_refusal(&desk->core, link->from, "a connection was refused: %s", why);
}

/* Tells the application, unless nobody knew of it. */
static void dti_desk_over(dti_desk *desk, dti_desk_conn *c) {
    const dti_talk *t = &c->talk;
    char why[sizeof t->why];
    const bool open = t->open, refused = t->refused, known = t->open || t->link.dialled;
    memcpy(why, t->why, sizeof why);
    if (!known)
        dti_desk_stranger(desk, &t->link, why);
    dti_desk_forget(c);
    if (known)
        desk->events.closed(desk->events.user, t->who, open, refused, why);
}

static void dti_desk_close(dti_desk *desk, uint32_t who, const char *why) {
    (void)why;
    dti_desk_forget(&desk->conns[who]);
}

static void dti_desk_drop(dti_desk *desk, uint32_t who) {
    dti_talk_drop(&desk->conns[who].talk);
}

/* ---- bytes */

static void dti_desk_write(dti_desk *desk, dti_desk_conn *c) {
    dti_link_span_out out[2];
    int count;
    if (desk->tls) {
        dti_desk_write_tls(desk, c);
        return;
    }
    c->blocked = false;
    while (!c->blocked && (count = dti_talk_output(&desk->core, &c->talk, out)) > 0) {
        dti_socket_part parts[2];
        for (int i = 0; i < count; i++)
            parts[i] = (dti_socket_part){(void *)(uintptr_t)out[i].data, out[i].bytes};
        const int64_t sent = dti_socket_send(c->fd, parts, count, false);
        c->blocked = sent <= 0;
        if (sent <= 0)
            dti_desk_ended(c, sent);
        else
            dti_talk_sent(&c->talk, (size_t)sent);
        c->moved += sent > 0 ? (uint64_t)sent : 0;
    }
}

static void dti_desk_read(dti_desk *desk, dti_desk_conn *c) {
    uint8_t *to;
    size_t room;
    if (desk->tls) {
        dti_desk_read_tls(desk, c);
        return;
    }
    for (size_t total = 0;
         total < DTI_DESK_READ_MAX && (to = dti_talk_input(&c->talk, &room)) != NULL;) {
        const int64_t got = dti_socket_receive(c->fd, &(dti_socket_part){to, room}, 1);
        if (got <= 0) {
            dti_desk_ended(c, got);
            return;
        }
        total += (size_t)got;
        c->moved += (uint64_t)got;
        dti_talk_received(&desk->core, &c->talk, (size_t)got);
    }
}

/* ---- connections */

/* The addresses from `next` on, until one is under way; else the talk is over, and says why. */
static void dti_desk_try(dti_desk_conn *c, const char *before) {
    char where[64], text[160];
    snprintf(text, sizeof text, "%s", before);
    if (c->fd >= 0)
        dti_socket_close(c->fd);
    c->fd = -1;
    c->connecting = false;
    while (c->next < c->list.count && c->fd < 0) {
        const dti_address *a = &c->list.at[c->next++];
        c->fd = dti_socket_new(a->sock.ss_family, SOCK_STREAM);
        dti_address_text(a, where);
        if (c->fd >= 0 && !dti_socket_connect(c->fd, &a->sock, a->bytes) && errno != EINPROGRESS) {
            snprintf(text, sizeof text, "%s: %s", where, dti_socket_text(errno));
            dti_socket_close(c->fd);
            c->fd = -1;
        } else if (c->fd < 0)
            snprintf(text, sizeof text, "%s: %s", where, dti_socket_text(errno));
    }
    c->connecting = c->fd >= 0;
    if (c->fd >= 0)
        dti_socket_watch(c->fd);
    else
        dti_talk_end(&c->talk, false, "%s", text);
}

/* "file:///path": what stands there now, for a server that comes back may be elsewhere. */
static bool dti_desk_is_file(const char *address) {
    return !strncmp(address, "file://", 7);
}

static void dti_desk_dial_file(dti_desk *desk, dti_desk_conn *c, const char *address) {
    dti_rendezvous *r = &desk->meeting;
    snprintf(desk->by.rendezvous, sizeof desk->by.rendezvous, "%s", address);
    r->desc = &desk->by;
    r->rank0.count = 0;
    r->why[0] = 0;
    dti_rendezvous_read(r);
    c->list = r->rank0;
    c->next = 0;
    dti_desk_try(c, r->why);
}

static bool dti_desk_dial(dti_desk *desk, uint32_t who, const char *address, uint32_t place) {
    dti_desk_conn *c = &desk->conns[who];
    dti_endpoint e;
    dti_desk_forget(c);
    desk->core.now = dti_now_ns();
    if (dti_desk_is_file(address)) {
        dti_talk_start(&desk->core, &c->talk, true, place);
        dti_desk_dial_file(desk, c, address);
        return true;
    }
    if (!dti_endpoint_parse(strncmp(address, "tcp://", 6) ? "" : "tcp://", address, &e) ||
        e.port == 0) {
        dti_fail(desk->base, DT_ERROR_INVALID,
                 "'%s' is no address of a server: \"host:port\", \"tcp://host:port\" or "
                 "\"file:///path\"",
                 address);
        return false;
    }
    dti_talk_start(&desk->core, &c->talk, true, place);
    const int error = dti_resolve(e.host, e.port, &c->list);
    c->next = 0;
    if (error)
        dti_talk_end(&c->talk, false, "%s: %s", e.host, gai_strerror(error));
    else
        dti_desk_try(c, "no address");
    return true;
}

static void dti_desk_connected(dti_desk *desk, dti_desk_conn *c) {
    const int error = dti_socket_failed(c->fd);
    char where[64], text[160];
    dti_address_text(&c->list.at[c->next - 1], where);
    snprintf(text, sizeof text, "%s: %s", where, dti_socket_text(error));
    if (error) {
        dti_desk_try(c, text);
        return;
    }
    c->connecting = false;
    if (desk->tls) {
        dti_desk_tls_start(desk, c);
        if (c->begun)
            dti_desk_handshake_tls(desk, c);
    } else
        dti_talk_connected(&desk->core, &c->talk);
}

/* A free place, or that of one that has proved nothing; NULL: all have. */
static dti_desk_conn *dti_desk_place(dti_desk *desk, const uint8_t source[DTI_SOURCE_BYTES]) {
    for (uint32_t i = 0; i < desk->count; i++)
        if (!desk->conns[i].talk.used)
            return &desk->conns[i];
    const dti_link *last = dti_pending_last(&desk->conns[0].talk.link, sizeof *desk->conns,
                                            desk->count, 0, dti_source_group(&desk->core, source));
    if (!last)
        return NULL;
    desk->strangers++;
    dti_core_note_refusal(&desk->core, last->from,
                          "all %u connections are in use: one that had proved nothing was closed",
                          desk->count);
    const dti_talk *t = last->conn;
    dti_desk_forget(&desk->conns[t->who]);
    return &desk->conns[t->who];
}

/* A connection that waits gets the reserve's descriptor and is closed, so that it does not wait for
 * ever. The next look is later. */
static void dti_desk_no_descriptor(dti_desk *desk, int listener, int error) {
    desk->accept_after = desk->core.now + 100000000u;
    dti_descriptor_give_up(&desk->reserve);
    const int fd = dti_socket_accept(listener);
    if (fd >= 0)
        dti_socket_close(fd);
    desk->reserve = dti_descriptor_reserve();
    dti_core_note_no_descriptor(&desk->core, dti_socket_text(error));
}

/* False: none waits. */
static bool dti_desk_accept(dti_desk *desk, int listener) {
    uint8_t source[DTI_SOURCE_BYTES];
    const int fd = dti_socket_accept(listener);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE)
            dti_desk_no_descriptor(desk, listener, errno);
        return false;
    }
    dti_address_source(fd, source);
    dti_desk_conn *c = dti_desk_place(desk, source);
    if (!c) {
        dti_socket_close(fd);
        return true;
    }
    dti_socket_watch(fd);
    c->fd = fd;
    dti_talk_start(&desk->core, &c->talk, false, 0);
    dti_link_came_from(&desk->core, &c->talk.link, source);
    if (desk->tls)
        dti_desk_tls_start(desk, c);
    return true;
}

/* ---- a step */

static bool dti_desk_wants(dti_desk *desk, dti_desk_conn *c) {
    dti_link_span_out out[2];
    if (c->connecting || c->blocked)
        return true;
    return !desk->tls && dti_talk_output(&desk->core, &c->talk, out) > 0;
}

static size_t dti_desk_gather(dti_desk *desk, size_t *listeners) {
    size_t n = 0;
    desk->polls[n++] = (struct pollfd){.fd = desk->wake[0], .events = POLLIN};
    for (int i = 0; i < desk->listener_count && desk->core.now >= desk->accept_after; i++)
        desk->polls[n++] = (struct pollfd){.fd = desk->listeners[i], .events = POLLIN};
    *listeners = n - 1;
    for (uint32_t i = 0; i < desk->count; i++) {
        dti_desk_conn *c = &desk->conns[i];
        size_t room;
        if (c->fd < 0 || c->talk.over)
            continue;
        const bool reads = !c->connecting && (desk->tls || dti_talk_input(&c->talk, &room));
        desk->polled[n - 1 - *listeners] = c;
        desk->polls[n++] = (struct pollfd){
            .fd = c->fd,
            .events = (short)((reads ? POLLIN : 0) | (dti_desk_wants(desk, c) ? POLLOUT : 0))};
    }
    return n;
}

static void dti_desk_move(dti_desk *desk, dti_desk_conn *c, short events) {
    if (c->fd < 0 || c->talk.over || !events)
        return;
    if (c->connecting)
        dti_desk_connected(desk, c);
    else if (events & (POLLIN | POLLERR | POLLHUP))
        dti_desk_read(desk, c);
}

/* Deadlines, what is to go out, and what is over; what is told may make more to go out. */
static void dti_desk_settle(dti_desk *desk) {
    for (uint32_t i = 0; i < desk->count; i++) {
        dti_desk_conn *c = &desk->conns[i];
        if (!c->talk.used)
            continue;
        dti_talk_tick(&desk->core, &c->talk);
        if (c->fd >= 0 && !c->connecting)
            dti_desk_write(desk, c);
        if (c->talk.over)
            dti_desk_over(desk, c);
    }
}

/* The time that there is until a handshake is given up. */
static int dti_desk_timeout(const dti_desk *desk, int timeout_ms) {
    for (uint32_t i = 0; i < desk->count; i++) {
        const dti_talk *t = &desk->conns[i].talk;
        if (!t->used || t->open)
            continue;
        const uint64_t left =
            t->link.deadline > desk->core.now ? (t->link.deadline - desk->core.now) / 1000000u : 0;
        timeout_ms = DTI_MIN(timeout_ms, (int)left + 1);
    }
    return timeout_ms;
}

/* What strangers came to, to the logger. */
static void dti_desk_tell(dti_desk *desk) {
    char text[DTI_NOTE_BYTES];
    dt_log_level level;
    while (dti_core_next_note(&desk->core, &level, text))
        dti_log(desk->base, level, "%s", text);
}

static void dti_desk_step(dti_desk *desk, int timeout_ms) {
    size_t listeners;
    desk->core.now = dti_now_ns();
    dti_desk_settle(desk);
    const size_t n = dti_desk_gather(desk, &listeners);
    if (dti_socket_poll(desk->polls, n, dti_desk_timeout(desk, timeout_ms)) < 0)
        return;
    desk->core.now = dti_now_ns();
    if (desk->polls[0].revents)
        dti_wake_drain(desk->wake);
    for (size_t i = 1 + listeners; i < n; i++)
        dti_desk_move(desk, desk->polled[i - 1 - listeners], desk->polls[i].revents);
    for (size_t i = 1; i <= listeners; i++) {
        for (int k = 0; desk->polls[i].revents && k < DTI_DESK_ACCEPTS; k++)
            if (!dti_desk_accept(desk, desk->listeners[i - 1]))
                break;
    }
    dti_desk_settle(desk);
    dti_tick_refusals(&desk->core);
    dti_desk_tell(desk);
}

static void dti_desk_send(dti_desk *desk, uint32_t who, const dti_message *m) {
    (void)desk;
    dti_talk_send(&desk->conns[who].talk, m);
}

static void dti_desk_wake(dti_desk *desk) {
    dti_wake_write(desk->wake);
}

static uint64_t dti_desk_moved(const dti_desk *desk, uint32_t who) {
    return desk->conns[who].moved;
}

static int dti_desk_port(const dti_desk *desk) {
    return desk->port;
}

static uint64_t dti_desk_strangers(const dti_desk *desk) {
    return desk->strangers;
}

/* ---- its life */

static void dti_desk_destroy(dti_desk *desk) {
    if (!desk)
        return;
    for (uint32_t i = 0; desk->conns && i < desk->count; i++)
        dti_desk_forget(&desk->conns[i]);
    if (desk->core.refusals.held)
        dti_refusals_sum_up(&desk->core);
    dti_desk_tell(desk);
    if (desk->meeting.wrote)
        dti_rendezvous_done(&desk->meeting);
    for (int i = 0; i < desk->listener_count; i++)
        dti_socket_close(desk->listeners[i]);
    dti_descriptor_give_up(&desk->reserve);
    dti_wake_close(desk->wake);
    dti_tls_free(desk->tls);
    if (desk->sockets)
        dti_sockets_end();
    void *all[] = {desk->conns, desk->pieces, desk->polls, desk->polled};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_free(desk->base, all[i]);
    dti_wipe(&desk->core.set, sizeof desk->core.set);
    dti_wipe(&desk->by, sizeof desk->by);
    dti_free(desk->base, desk);
}

static bool dti_desk_random(void *user, void *to, size_t bytes) {
    (void)user;
    return dti_random_bytes(to, bytes);
}

static dt_result dti_desk_settings(dti_base *base, const dti_desk_desc *d, dti_settings *set) {
    const dt_comm_desc none = {0}, *by = d->by ? d->by : &none;
    *set = (dti_settings){.rank = d->listen ? d->place : DTI_TALK_CLIENT,
                          .size = DTI_TALK_WORLD,
                          .attempt = by->attempt,
                          .sockets = 1,
                          .integrity = (uint8_t)by->integrity};
    if (by->error[0])
        return dti_fail(base, DT_ERROR_INVALID, "%.200s", by->error);
    if (!memchr(by->job, 0, sizeof by->job))
        return dti_fail(base, DT_ERROR_INVALID, "the job's name has more than 63 bytes");
    memcpy(set->job, by->job, sizeof set->job);
    memset(set->job + strlen(by->job), 0, sizeof set->job - strlen(by->job));
    dt_result result = dti_key_given(base, by, set->key, &set->keyed);
    if (result || set->keyed || by->insecure)
        return result;
    return dti_fail(base, DT_ERROR_INVALID,
                    "servers and workers need a key that they share: give one as .key or "
                    ".key_file, or take dt_comm_desc_from_env() under dtrun; .insecure does "
                    "without. " DTI_KEY_HOW);
}

/* At any port, which a file tells. */
static dt_result dti_desk_listen_file(dti_desk *desk, const char *address) {
    dti_rendezvous *r = &desk->meeting;
    if (strlen(address) >= sizeof desk->by.rendezvous)
        return dti_fail(desk->base, DT_ERROR_INVALID, "'%.40s...' is too long", address);
    strcpy(desk->by.rendezvous, address);
    r->desc = &desk->by;
    dti_rendezvous_listen_rule(r, desk->by.port_low, desk->by.port_high);
    if (!r->own.count)
        return dti_fail(desk->base, DT_ERROR_IO, "cannot listen at any interface: %s",
                        dti_socket_text(r->error));
    memcpy(desk->listeners, r->listeners, sizeof desk->listeners);
    desk->listener_count = r->own.count;
    desk->port = dti_address_port(&r->own.at[0]);
    return dti_rendezvous_publish(desk->base, r);
}

static dt_result dti_desk_listen(dti_desk *desk, const char *address) {
    dti_endpoint e;
    dti_addresses list;
    if (dti_desk_is_file(address))
        return dti_desk_listen_file(desk, address);
    if (!dti_endpoint_parse(strncmp(address, "tcp://", 6) ? "" : "tcp://", address, &e))
        return dti_fail(desk->base, DT_ERROR_INVALID,
                        "'%s' is no address to listen at: \"host:port\", port 0 = any; or "
                        "\"file:///path\"",
                        address);
    const int error = dti_resolve(e.host, e.port, &list);
    if (error)
        return dti_fail(desk->base, DT_ERROR_IO, "%s: %s", e.host, gai_strerror(error));
    desk->port = e.port;
    for (int i = 0; i < list.count; i++) {
        dti_address_set_port(&list.at[i], desk->port);
        /* a server that comes back to its address finds connections of its former life there, also
         * where the system chose the port */
        const int s = dti_listen_as(&list.at[i], true);
        if (s < 0)
            continue;
        desk->listeners[desk->listener_count++] = s;
        desk->port = dti_address_port(&list.at[i]);
    }
    if (desk->listener_count)
        return DT_OK;
    return dti_fail(desk->base, DT_ERROR_IO, "cannot listen at %s: %s", address,
                    dti_socket_text(errno));
}

static dt_result dti_desk_memory(dti_desk *desk, uint32_t count) {
    desk->count = count;
    desk->conns = dti_alloc_array(desk->base, count, sizeof *desk->conns);
    desk->pieces = dti_alloc_array(desk->base, count, DTI_TALK_PIECE);
    desk->polls = dti_alloc_array(desk->base, 1u + DTI_ADDRESSES_MAX + count, sizeof *desk->polls);
    desk->polled = dti_alloc_array(desk->base, count, sizeof *desk->polled);
    if (!desk->conns || !desk->pieces || !desk->polls || !desk->polled)
        return DT_ERROR_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        desk->conns[i].fd = -1;
        desk->conns[i].talk = (dti_talk){
            .events = &desk->events, .who = i, .piece = desk->pieces + (size_t)i * DTI_TALK_PIECE};
    }
    return DT_OK;
}

/* What protects payloads is OpenSSL's. */
static dt_result dti_desk_protects(dti_base *base, const dti_settings *set) {
    if (set->integrity != DT_COMM_MAC && set->integrity != DT_COMM_TLS)
        return DT_OK;
#ifndef DT_WITH_OPENSSL
    return dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "integrity MAC and TLS need dtrain compiled with DT_WITH_OPENSSL");
#else
    return set->keyed ? DT_OK
                      : dti_fail(base, DT_ERROR_INVALID, "integrity MAC and TLS need a key");
#endif
}

static dt_result dti_desk_open(dti_desk *desk, const dti_desk_desc *d) {
    const dt_comm_desc none = {0};
    const dti_io io = {.random = dti_desk_random};
    dti_settings set;
    dt_result result = dti_desk_settings(desk->base, d, &set);
    if (!result)
        result = dti_desk_protects(desk->base, &set);
    if (result)
        return result;
    dti_talk_core(&desk->core, &set, &io, desk);
    dti_wipe(&set, sizeof set);
    desk->sockets = dti_sockets_begin();
    desk->reserve = dti_descriptor_reserve();
    if (!desk->sockets || !dti_wake_open(desk->wake) ||
        !dti_random_bytes(&desk->core.source_seed, sizeof desk->core.source_seed) ||
        !dti_random_bytes(desk->core.instance, sizeof desk->core.instance))
        return dti_fail(desk->base, DT_ERROR_IO,
                        "the system gives no sockets, descriptors or random bytes: %s",
                        dti_socket_text(errno));
    if (desk->core.set.integrity == DT_COMM_TLS)
        result = dti_tls_new(desk->base, d->by ? d->by : &none, desk->core.set.key, &desk->tls);
    if (!result)
        result = dti_desk_memory(desk, d->connections);
    return result || !d->listen ? result : dti_desk_listen(desk, d->listen);
}

static dt_result dti_desk_create(dti_base *base, const dti_desk_desc *d, dti_desk **out) {
    dti_desk *desk = dti_alloc(base, sizeof *desk);
    *out = NULL;
    if (!desk)
        return DT_ERROR_MEMORY;
    desk->base = base;
    desk->events = d->events;
    desk->by = d->by ? *d->by : (dt_comm_desc){0};
    desk->wake[0] = desk->wake[1] = desk->reserve = -1;
    dt_result result = dti_desk_open(desk, d);
    if (result)
        dti_desk_destroy(desk);
    else
        *out = desk;
    return result;
}

#ifndef DT_COMM_ONLY
static const dti_desk_calls dti_desk_table = {dti_desk_create, dti_desk_destroy,  dti_desk_port,
                                              dti_desk_dial,   dti_desk_send,     dti_desk_close,
                                              dti_desk_drop,   dti_desk_step,     dti_desk_moved,
                                              dti_desk_wake,   dti_desk_strangers};

DTI_SEAM const dti_desk_calls *dti_desk_calls_of(void) {
    return &dti_desk_table;
}
#endif

#elif !defined DT_COMM_ONLY

DTI_SEAM const dti_desk_calls *dti_desk_calls_of(void) {
    return NULL;
}

#endif
