/* A worker's side of its connections to the servers. It asks one question at a time. After a broken
 * connection it repeats the question, for as long as servers may be away. */

#define DTI_SERVERS_MAX 64

typedef struct dti_client dti_client;

/* One server, as it described itself. */
typedef struct dti_client_server {
    char address[272];
    dti_welcome welcome;
    bool open, greeted, refused;
    bool told;       /* of how dialling came out */
    bool back;       /* it was greeted since its values were taken: they may be others */
    bool silent;     /* given up: it says nothing */
    uint64_t full;   /* it has this many workers and takes no more; 0: it takes more */
    uint64_t broken; /* since when there is no connection, ns */
    char why[256];
} dti_client_server;

struct dti_client {
    dti_base *base;
    const dti_message_server_calls *calls;
    dti_message_server *message_server;
    uint64_t wait_ns; /* for a server that is away, or silent */
    dti_client_server *servers;
    uint32_t count;
    uint64_t generation; /* of several servers: that they agreed on; 0: not known */
    bool apart;          /* a question was not asked: a server has left that generation */
    /* The current question. */
    uint32_t to;
    const char *body; /* of it */
    void *room;       /* for a large answer */
    uint64_t room_bytes;
    bool answered;
    dti_message answer;
    char small[DTI_MESSAGE_SMALL];
};

/* servers: "host:port,host:port", in the order of their places. Connects to none yet. */
static dt_result dti_client_open(dti_base *base, const char *servers, const dt_comm_desc *by,
                                 int wait_ms, dti_client *c);
static void dti_client_close(dti_client *c);
/* Asks server `to` and waits for the answer. c->small has a small body; `room` has a body of any
 * size. A server's DTI_SAY_ERROR is an error here. PEER_LOST: it is gone or silent for too long.
 * REFUSED: by its key or settings, or it has all of its workers. INVALID: it is another server than
 * before. c->apart: it was not asked, because the servers have to agree again. */
static dt_result dti_client_ask(dti_client *c, uint32_t to, const dti_message *m, const void *body,
                                void *room, uint64_t room_bytes);
/* Connects to a server, if it is not connected; c->servers[to].welcome is its answer. */
static dt_result dti_client_greet(dti_client *c, uint32_t to);
/* Waits, then has all servers greeted again, as their answers may have changed. */
static void dti_client_look_again(dti_client *c, int pause_ms);
