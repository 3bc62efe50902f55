/* A connection's bytes through TLS (tls.c), as desk.c moves them in the clear. */

#if DTI_TCP

typedef struct dti_desk_conn {
    int fd; /* -1 = none */
    bool connecting, blocked;
    uint64_t moved;     /* bytes, of all that it was */
    dti_addresses list; /* of whom it dials; the next one to try */
    int next;
    dti_tls_conn tls;
    bool begun, secure; /* of TLS: there is one; its handshake is done */
    dti_talk talk;
} dti_desk_conn;

struct dti_desk {
    dti_base *base;
    dti_core core; /* settings, key and clock; it has no ranks */
    dti_desk_events events;
    dti_tls *tls; /* NULL: in the clear */
    bool sockets;
    int wake[2], port, reserve;
    uint64_t strangers;    /* connections that ended before they had proved anything */
    uint64_t accept_after; /* there was no descriptor: not before this time, ns */
    int listeners[DTI_ADDRESSES_MAX];
    int listener_count;
    dt_comm_desc by;        /* as it was given, */
    dti_rendezvous meeting; /* with a file that tells where this is, or where others are */
    uint32_t count;
    dti_desk_conn *conns;   /* [count] */
    uint8_t *pieces;        /* [count][DTI_TALK_PIECE] */
    struct pollfd *polls;   /* [1 + DTI_ADDRESSES_MAX + count] */
    dti_desk_conn **polled; /* [count] */
};

#define DTI_DESK_ACCEPTS 64          /* in a step */
#define DTI_DESK_READ_MAX (1u << 20) /* from one connection before the others have a turn */

static void dti_desk_ended(dti_desk_conn *c, int64_t got) {
    if (got < 0 && dti_socket_would_block(errno))
        return;
    dti_talk_end(&c->talk, false, "%s",
                 got < 0        ? dti_socket_text(errno)
                 : c->talk.open ? "the other side has ended the connection"
                                : "the other side ended the connection in the handshake");
}

#ifdef DT_WITH_OPENSSL

static void dti_desk_tls_failed(dti_desk_conn *c, const char *why) {
    dti_talk_end(&c->talk, !c->secure, "TLS: %s", why);
}

static void dti_desk_tls_start(dti_desk *desk, dti_desk_conn *c) {
    c->begun = dti_tls_open(desk->tls, &c->tls, c->talk.link.dialled);
    if (!c->begun)
        dti_talk_end(&c->talk, false, "OpenSSL has no memory");
}

/* What the talk has to send, as far as the buffer takes it. */
static void dti_desk_encrypt(dti_desk *desk, dti_desk_conn *c) {
    dti_link_span_out out[2];
    long taken = 1;
    while (taken > 0 && dti_talk_output(&desk->core, &c->talk, out) > 0) {
        taken = dti_tls_encrypt(&c->tls, out[0].data, out[0].bytes);
        if (taken > 0)
            dti_talk_sent(&c->talk, (size_t)taken);
    }
    if (taken < 0)
        dti_desk_tls_failed(c, "OpenSSL does not encrypt any more");
}

/* As long as there is something and the system takes it. */
static void dti_desk_write_tls(dti_desk *desk, dti_desk_conn *c) {
    const uint8_t *data;
    c->blocked = false;
    while (c->begun && !c->blocked) {
        size_t bytes = dti_tls_output(&c->tls, &data);
        if (!bytes && c->secure) {
            dti_desk_encrypt(desk, c);
            bytes = dti_tls_output(&c->tls, &data);
        }
        if (!bytes)
            return;
        const int64_t sent =
            dti_socket_send(c->fd, &(dti_socket_part){(void *)(uintptr_t)data, bytes}, 1, false);
        c->blocked = sent <= 0;
        if (sent <= 0)
            dti_desk_ended(c, sent);
        else
            dti_tls_sent(&c->tls, (size_t)sent);
        c->moved += sent > 0 ? (uint64_t)sent : 0;
    }
}

static void dti_desk_handshake_tls(dti_desk *desk, dti_desk_conn *c) {
    char why[160];
    const int done = dti_tls_handshake(&c->tls, c->talk.link.binding, why, sizeof why);
    if (done < 0)
        dti_desk_tls_failed(c, why);
    c->secure = done == 1;
    if (c->secure && c->talk.link.dialled)
        dti_talk_connected(&desk->core, &c->talk);
    dti_desk_write_tls(desk, c);
}

static void dti_desk_decrypt(dti_desk *desk, dti_desk_conn *c) {
    char why[160];
    size_t room;
    uint8_t *to;
    while ((to = dti_talk_input(&c->talk, &room)) != NULL) {
        const long got = dti_tls_decrypt(&c->tls, to, room, why, sizeof why);
        if (got < 0)
            dti_desk_tls_failed(c, why);
        if (got <= 0)
            return;
        dti_talk_received(&desk->core, &c->talk, (size_t)got);
    }
}

static void dti_desk_read_tls(dti_desk *desk, dti_desk_conn *c) {
    uint8_t *to;
    for (size_t total = 0, room; total < DTI_DESK_READ_MAX && !c->talk.over;) {
        room = c->begun ? dti_tls_input(&c->tls, &to) : 0;
        if (!room)
            return;
        const int64_t got = dti_socket_receive(c->fd, &(dti_socket_part){to, room}, 1);
        if (got <= 0) {
            dti_desk_ended(c, got);
            return;
        }
        dti_tls_received(&c->tls, (size_t)got);
        total += (size_t)got;
        c->moved += (uint64_t)got;
        if (!c->secure)
            dti_desk_handshake_tls(desk, c);
        if (c->secure)
            dti_desk_decrypt(desk, c);
    }
}

#else

static void dti_desk_tls_start(dti_desk *desk, dti_desk_conn *c) {
    (void)desk, (void)c;
}

static void dti_desk_handshake_tls(dti_desk *desk, dti_desk_conn *c) {
    (void)desk, (void)c;
}

static void dti_desk_write_tls(dti_desk *desk, dti_desk_conn *c) {
    (void)desk, (void)c;
}

static void dti_desk_read_tls(dti_desk *desk, dti_desk_conn *c) {
    (void)desk, (void)c;
}

#endif
#endif
