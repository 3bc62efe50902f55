/* A connection's bytes through TLS (tls.c), as message_server.c moves them in the clear. */

#if DTI_TCP

typedef struct dti_message_server_conn {
    int fd; /* -1 = none */
    bool connecting, blocked;
    uint64_t moved;     /* bytes, of all that it was */
    dti_addresses list; /* of whom it dials; the next one to try */
    int next;
    dti_tls_conn tls;
    bool begun, secure; /* of TLS: there is one; its handshake is done */
    dti_message_link message_link;
} dti_message_server_conn;

struct dti_message_server {
    dti_base *base;
    dti_core core; /* settings, key and clock; it has no ranks */
    dti_message_server_events events;
    dti_tls *tls; /* NULL: in the clear */
    bool sockets;
    int wake[2], port, reserve;
    uint64_t strangers;    /* connections that ended before they had proved anything */
    uint64_t accept_after; /* there was no descriptor: not before this time, ns */
    int listeners[DTI_ADDRESSES_MAX];
    int listener_count;
    dt_comm_desc by;           /* as it was given, */
    dti_rendezvous rendezvous; /* of the file with the server's address */
    uint32_t count;
    dti_message_server_conn *conns;   /* [count] */
    uint8_t *pieces;                  /* [count][DTI_MESSAGE_LINK_PIECE] */
    struct pollfd *polls;             /* [1 + DTI_ADDRESSES_MAX + count] */
    dti_message_server_conn **polled; /* [count] */
};

#define DTI_MESSAGE_SERVER_ACCEPTS 64 /* in a step */
#define DTI_MESSAGE_SERVER_READ_MAX                                                                \
    (1u << 20) /* from one connection before the others are served */

static void dti_message_server_ended(dti_message_server_conn *c, int64_t got) {
    if (got < 0 && dti_socket_would_block(errno))
        return;
    dti_message_link_end(&c->message_link, false, "%s",
                         got < 0 ? dti_socket_text(errno)
                         : c->message_link.open
                             ? "the other side has ended the connection"
                             : "the other side ended the connection in the handshake");
}

#ifdef DT_WITH_OPENSSL

static void dti_message_server_tls_failed(dti_message_server_conn *c, const char *why) {
    dti_message_link_end(&c->message_link, !c->secure, "TLS: %s", why);
}

static void dti_message_server_tls_start(dti_message_server *server, dti_message_server_conn *c) {
    c->begun = dti_tls_open(server->tls, &c->tls, c->message_link.link.dialled);
    if (!c->begun)
        dti_message_link_end(&c->message_link, false, "OpenSSL has no memory");
}

/* What the connection has to send, as far as the buffer takes it. */
static void dti_message_server_encrypt(dti_message_server *server, dti_message_server_conn *c) {
    dti_link_span_out out[2];
    long taken = 1;
    while (taken > 0 && dti_message_link_output(&server->core, &c->message_link, out) > 0) {
        taken = dti_tls_encrypt(&c->tls, out[0].data, out[0].bytes);
        if (taken > 0)
            dti_message_link_sent(&c->message_link, (size_t)taken);
    }
    if (taken < 0)
        dti_message_server_tls_failed(c, "OpenSSL does not encrypt any more");
}

/* As long as there is something and the system takes it. */
static void dti_message_server_write_tls(dti_message_server *server, dti_message_server_conn *c) {
    const uint8_t *data;
    c->blocked = false;
    while (c->begun && !c->blocked) {
        size_t bytes = dti_tls_output(&c->tls, &data);
        if (!bytes && c->secure) {
            dti_message_server_encrypt(server, c);
            bytes = dti_tls_output(&c->tls, &data);
        }
        if (!bytes)
            return;
        const int64_t sent =
            dti_socket_send(c->fd, &(dti_socket_part){(void *)(uintptr_t)data, bytes}, 1, false);
        c->blocked = sent <= 0;
        if (sent <= 0)
            dti_message_server_ended(c, sent);
        else
            dti_tls_sent(&c->tls, (size_t)sent);
        c->moved += sent > 0 ? (uint64_t)sent : 0;
    }
}

static void dti_message_server_handshake_tls(dti_message_server *server,
                                             dti_message_server_conn *c) {
    char why[160];
    const int done = dti_tls_handshake(&c->tls, c->message_link.link.binding, why, sizeof why);
    if (done < 0)
        dti_message_server_tls_failed(c, why);
    c->secure = done == 1;
    if (c->secure && c->message_link.link.dialled)
        dti_message_link_connected(&server->core, &c->message_link);
    dti_message_server_write_tls(server, c);
}

static void dti_message_server_decrypt(dti_message_server *server, dti_message_server_conn *c) {
    char why[160];
    size_t room;
    uint8_t *to;
    while ((to = dti_message_link_input(&c->message_link, &room)) != NULL) {
        const long got = dti_tls_decrypt(&c->tls, to, room, why, sizeof why);
        if (got < 0)
            dti_message_server_tls_failed(c, why);
        if (got <= 0)
            return;
        dti_message_link_received(&server->core, &c->message_link, (size_t)got);
    }
}

static void dti_message_server_read_tls(dti_message_server *server, dti_message_server_conn *c) {
    uint8_t *to;
    for (size_t total = 0, room; total < DTI_MESSAGE_SERVER_READ_MAX && !c->message_link.over;) {
        room = c->begun ? dti_tls_input(&c->tls, &to) : 0;
        if (!room)
            return;
        const int64_t got = dti_socket_receive(c->fd, &(dti_socket_part){to, room}, 1);
        if (got <= 0) {
            dti_message_server_ended(c, got);
            return;
        }
        dti_tls_received(&c->tls, (size_t)got);
        total += (size_t)got;
        c->moved += (uint64_t)got;
        if (!c->secure)
            dti_message_server_handshake_tls(server, c);
        if (c->secure)
            dti_message_server_decrypt(server, c);
    }
}

#else

static void dti_message_server_tls_start(dti_message_server *server, dti_message_server_conn *c) {
}

static void dti_message_server_handshake_tls(dti_message_server *server,
                                             dti_message_server_conn *c) {
}

static void dti_message_server_write_tls(dti_message_server *server, dti_message_server_conn *c) {
}

static void dti_message_server_read_tls(dti_message_server *server, dti_message_server_conn *c) {
}

#endif
#endif
