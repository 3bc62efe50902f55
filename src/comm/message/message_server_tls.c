/* A message server and its connections: the callbacks from TLS (tls.c) to one of them. */

#if DTI_TCP

typedef struct dti_message_server_conn {
    int fd; /* -1 = none */
    bool connecting, blocked;
    dti_addresses list; /* of the server that it dials; the next one to try */
    int next;
    dti_tls_conn tls;
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
    dt_comm_desc by;           /* a copy of .security */
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

static void dti_message_server_ended(dti_link *link, int64_t got) {
    dti_message_link *ml = link->conn;
    if (got < 0 && dti_socket_would_block(errno))
        return;
    dti_message_link_end(ml, false, "%s",
                         got < 0    ? dti_socket_text(errno)
                         : ml->open ? "the other side ended the connection"
                                    : "the other side ended the connection in the handshake");
}

static void dti_message_server_tls_failed(dti_link *link, const char *why) {
    const dti_message_server *server = link->core->io_user;
    dti_message_link *ml = link->conn;
    dti_message_link_end(ml, !server->conns[ml->who].tls.secure, "TLS: %s", why);
}

static void dti_message_server_secured(dti_link *link) {
    if (link->dialled)
        dti_message_link_connected(link->core, link->conn);
}

static const dti_tls_calls dti_message_wire = {
    dti_message_link_output,    dti_message_link_sent,
    dti_message_link_input,     dti_message_link_received,
    dti_message_server_secured, dti_message_server_tls_failed,
    dti_message_server_ended,   NULL};

#endif
