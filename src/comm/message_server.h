/* Messages between a server and its clients, which form no group. Each client has a connection of
 * its own, which comes and goes. Connections are authenticated by the job's key as those between
 * ranks are (handshake.c), and frames are sealed like theirs (wire.c); docs/protocol.md has the
 * bytes. A connection carries one message at a time each way, so a client waits for its answer.
 * There are no queues; creating the server allocates all memory. It has no thread: `step` moves
 * bytes and calls back, on the thread that calls it. It does not know what messages mean.
 *
 * message/ has its files, in the order in which to read them:
 *
 *   message_link.h, message_link.c   one connection, without I/O
 *   message_server_tls.c             its bytes through TLS
 *   message_server.c                 the sockets */

/* All of this is covered by the header's tag. The body is bytes of the sender's. */
typedef struct dti_message {
    uint16_t kind; /* 1 .. 65535: the application's */
    uint32_t part;
    uint64_t number;
    uint64_t bytes; /* of the body */
} dti_message;

#define DTI_MESSAGE_SMALL 2048u /* bodies up to this size come whole, in one frame */

typedef struct dti_message_server dti_message_server;

typedef struct dti_message_server_events {
    void *user;
    /* Has proved that it has the key. instance: 16 bytes, the same for all connections of one
     * process's message server; the other side's choice. */
    void (*opened)(void *user, uint32_t who, const uint8_t instance[16]);
    /* The destination of a body of more than DTI_MESSAGE_SMALL bytes, for all of it; NULL: it is
     * dropped. */
    void *(*room)(void *user, uint32_t who, const dti_message *m);
    /* A message has come whole. body: of a small one its bytes, during the call; else NULL. */
    void (*came)(void *user, uint32_t who, const dti_message *m, const void *body);
    /* Bytes [at, at + bytes) of the body that is being sent, to `to`. False: it cannot be read, and
     * the connection ends. */
    bool (*read)(void *user, uint32_t who, const dti_message *m, uint64_t at, void *to,
                 uint32_t bytes);
    /* A connection that was open, or dialled, is over. refused: by a side that found the other's
     * key or settings wrong, so a retry is useless. */
    void (*closed)(void *user, uint32_t who, bool was_open, bool refused, const char *why);
} dti_message_server_events;

typedef struct dti_message_server_desc {
    const dt_comm_desc *by; /* key, job, attempt, integrity; NULL = {0} */
    uint32_t connections;   /* the most connections; their numbers, `who`, are below it */
    uint32_t place;         /* the index of this server; clients expect it */
    const char *listen;     /* "host:port"; port 0 = any; NULL: it only dials */
    dti_message_server_events events;
} dti_message_server_desc;

typedef struct dti_message_server_calls {
    /* INVALID, UNSUPPORTED, IO (the address cannot be listened at), MEMORY */
    dt_result (*create)(dti_base *base, const dti_message_server_desc *desc,
                        dti_message_server **out);
    void (*destroy)(dti_message_server *server); /* NULL is allowed; connections are closed */
    int (*port)(const dti_message_server *server);
    /* Connects connection `who`, which is closed, to that server. `opened` or `closed` reports the
     * result. False: the address is not "host:port", and base has the error. */
    bool (*dial)(dti_message_server *server, uint32_t who, const char *address, uint32_t place);
    void (*send)(dti_message_server *server, uint32_t who,
                 const dti_message *m);                                       /* one at a time */
    void (*close)(dti_message_server *server, uint32_t who, const char *why); /* no callback */
    /* Writes nothing more of the body that is arriving to `room`'s buffer; the rest is dropped. */
    void (*drop)(dti_message_server *server, uint32_t who);
    /* Waits at most this long for an event, and handles it. */
    void (*step)(dti_message_server *server, int timeout_ms);
    /* Bytes that a connection has moved, both ways. They show whether the other side is alive. */
    uint64_t (*moved)(const dti_message_server *server, uint32_t who);
    void (*wake)(
        dti_message_server *server); /* ends a step on another thread; safe in a signal handler */
    uint64_t (*strangers)(
        const dti_message_server *server); /* connections that ended without a proof */
} dti_message_server_calls;

/* NULL: compiled without connections. */
#ifndef DT_COMM_ONLY
static const dti_message_server_calls *dti_message_server_calls_of(void);
#endif
