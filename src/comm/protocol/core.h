/* The protocol without I/O. A dti_core is one rank: bytes, time and posted operations go in; bytes,
 * finished operations and the next deadline come out. dti_io provides sockets, clock and
 * randomness. So the same code runs on TCP (tcp.c), and on a simulated network with many ranks in
 * one thread (tests/comm/sim.h). It has no lock: its callers have one.
 *
 * Only dti_core_create and dti_core_post allocate memory, on the application's thread; everything
 * else may run on the library's. Nothing here logs. Messages go into a ring of notes, which the
 * next call of the application passes to its logger.
 *
 * A file uses those before it; its calls of later ones go through dti_core_up:
 *
 *   wire.c              frames to and from bytes, and their tags
 *   gmac.c              tags by AES-GCM, an option
 *   note.c              messages for the application's logger
 *   backlog.c           sent frames that may have to be sent again
 *   link.c              bytes to frames and back
 *   handshake.c         from a new connection to a peer that has proved the key
 *   flight.c            one posted operation: its schedule, and how far it is
 *   failure.c           suspicion, loss, lateness, revocation
 *   engine_announce.c   the operation of a frame, and the ranks that posted it
 *   engine_receive.c    received frames of operations
 *   engine_send.c       the next frame to send
 *   connect.c           connections: made, broken, restored
 *   join.c              the join: the ranks and their addresses
 *   member.c            heartbeats, leaving, time
 *   core.c              making and ending all this, and posting */

/* Each way: a control frame with its body has room. */
#define DTI_LINK_BUFFER (DTI_HEADER_BYTES + DTI_CONTROL_BYTES_MAX + 448)
/* A header, and the MAC that may follow it. */
#define DTI_HEADER_ROOM (DTI_HEADER_BYTES + DTI_MAC_BYTES)
#define DTI_SOCKETS_MAX 16
#define DTI_ADDRESS_BYTES 192 /* a rank's addresses, as its transport writes them */
/* The source of a connection: 0, 0, 0, 0 and an IPv4 address, or the /64 of an IPv6 address. */
#define DTI_SOURCE_BYTES 8
#define DTI_NOBODY UINT32_MAX
#define DTI_HANDSHAKE_NS 5000000000u
#define DTI_NOTES 16
#define DTI_NOTE_BYTES 256
/* Chunks of a window, unless the application gives less. With many peers each fills a part of a
 * link. All their chunks in flight do not fit the caches (docs/speed.md). */
#define DTI_WINDOW_LEAST(size) ((size) > 3 ? 2u : 4u)
#define DTI_HISTORY 128 /* finished collectives that late announcements are compared with */

typedef struct dti_core dti_core;
typedef struct dti_flight dti_flight;

#define DTI_BACKLOG_FRAMES 256u /* that may be kept for one connection */
#define DTI_BACKLOG_UNITS 192u  /* of 64 bytes: its memory for bodies that are copied at once: */
#define DTI_BACKLOG_SMALL 4096u /* those of control frames, and of an EAGER up to here */
#define DTI_INSTANCE_BYTES 16

typedef enum dti_channel { DTI_CHANNEL_CONTROL, DTI_CHANNEL_DATA } dti_channel;

typedef enum dti_link_state {
    DTI_LINK_FREE,
    DTI_LINK_DIALING, /* until the transport says connected */
    DTI_LINK_HELLO,   /* waiting for the other's hello */
    DTI_LINK_PROOF,   /* waiting for the other's proof */
    DTI_LINK_OPEN,
    DTI_LINK_REFUSED, /* our refusal is on its way out; then it is closed */
    DTI_LINK_CLOSED   /* the transport may forget it */
} dti_link_state;

/* A frame that was sent and is not acknowledged. */
typedef struct dti_sent_frame {
    dti_frame frame;
    const uint8_t *data; /* its body */
    dti_flight *flight;  /* the operation of the chunk, for a payload */
    uint32_t step, chunk;
    bool own;        /* `data` is the backlog's memory; else the operation's */
    bool whole;      /* of a payload: it was given to the system to the end, once at least */
    bool held;       /* its step learns of it only when it is acknowledged or copied */
    uint64_t to;     /* the place in `small` for the next one */
    uint64_t chunks; /* the bits of keeper->chunk_used that it has, maybe with others */
    struct dti_backlog *keeper;
    uint64_t operation; /* flight->id */
} dti_sent_frame;

/* The state that survives a broken connection: the frames that may have to be sent again. There is
 * one for each peer and socket, and for each control connection. Kept frames are numbered from 0 in
 * each direction, across connections. */
typedef struct dti_backlog {
    uint64_t sent, acknowledged;   /* by the peer */
    uint64_t received, told;       /* of the peer's frames; as far as it knows */
    uint64_t resend;               /* the next to be sent again; `sent`: none */
    uint64_t bye_at;               /* the number of our BYE, which is not kept but made again */
    uint64_t untold_bytes;         /* of payloads received since the last acknowledgement */
    dti_sent_frame *frames;        /* [DTI_BACKLOG_FRAMES] by number; NULL: nothing was ever sent */
    uint8_t *small;                /* [DTI_BACKLOG_UNITS * 64] a ring: bodies copied when sent */
    uint64_t small_from, small_to; /* units */
    uint8_t *chunks;     /* [window * chunk_bytes], in 64 parts: payloads whose operation is over */
    uint8_t *old_chunks; /* from before the window grew, or NULL */
    uint64_t chunk_used;
    uint16_t
        chunk_users[64]; /* by the first part: frames, of other connections too, that have it */
    uint32_t part_bytes, held;
    bool opened;        /* there was a connection */
    bool over;          /* it has ended for good */
    bool moved;         /* something new has come or was acknowledged since it last broke */
    uint64_t broken;    /* since when it is broken, ns; 0 = connected, or never was */
    uint64_t joined_at; /* the last time, ns */
    uint32_t barren;    /* how often in a row it broke before anything was received */
    char why[96];       /* it broke */
    uint8_t instance[DTI_INSTANCE_BYTES]; /* control: which process the peer is */
    bool bye_due, bye_sent, bye_received;
    bool join_due, lost_due, revoke_due; /* control frames that are to go */
    uint32_t roster_next;                /* coordinator: the first rank whose address it lacks */
    uint32_t left_told;                  /* coordinator: of core->left_list */
} dti_backlog;

#define DTI_LOANS_MAX 8u

/* A payload that the other side reads directly from our memory: it counts as sent after that. */
typedef struct dti_link_loan {
    dti_flight *flight;
    uint32_t step, chunk, bytes;
    uint32_t mark; /* the transport's */
} dti_link_loan;

/* One connection. The transport's part is `conn`. */
typedef struct dti_link {
    dti_core *core;
    void *conn;
    uint8_t state, channel;
    uint16_t socket; /* number of the socket to this peer */
    bool dialled;    /* by us */
    bool probe;      /* dialled only to see whether the peer's process lives */
    bool lasting;    /* the transport's: its end is the end of a process, so nothing is kept; no
                        attacker can be in between, so its tags need no key */
    bool nobody;     /* the transport's: its system reports that no process listens there */
    bool shut;       /* nothing more goes out; the transport knows it */
    bool resume_due, resumed; /* our RESUME is to go; the other's has come */
    uint32_t peer;            /* world rank; DTI_NOBODY until it has said so */
    dti_backlog *back;        /* of a peer that has proved itself, or that was dialled; else NULL */
    uint64_t deadline;        /* of the handshake, ns */
    uint32_t source;          /* accepted: its address's group */
    uint8_t from[DTI_SOURCE_BYTES]; /* accepted: its address */
    uint64_t heard;                 /* when the last byte came, ns */
    uint64_t begun; /* when a part of a frame came, ns; 0 = none waits for the rest */
    uint64_t moved; /* when the last byte went, ns */
    uint64_t spoke; /* when the last heartbeat was made, ns */
    bool ping_due, pong_due, return_due;
    uint64_t pinged; /* when a PING went that has no answer yet; 0 = none */
    dti_seal seal_out, seal_in;
    uint8_t hello_out[160], hello_in[160]; /* until the handshake is over */
    uint8_t binding[32]; /* TLS: of the channel below; the transport's, before the first byte */
    /* Going out: tx[tx_from..tx_to), then data_left bytes at data. */
    uint32_t tx_from, tx_to;
    const uint8_t *data;
    size_t data_left;
    bool more; /* another chunk follows at once, which is known when `data` is attached */
    dti_flight *tx_flight; /* whose chunk `data` is */
    uint32_t tx_step, tx_chunk;
    uint64_t tx_number; /* of its frame */
    dti_link_loan
        loans[DTI_LOANS_MAX]; /* in the order of their frames, [loans_from .. loans_to) modulo */
    uint32_t loans_from, loans_to;
    /* Coming in: a header, then body_left bytes that go to `body`. */
    uint32_t rx_from, rx_to;
    bool in_body;
    dti_frame frame;
    uint8_t *body;
    uint32_t body_left, body_crc;
    uint8_t body_mac[DTI_MAC_BYTES]; /* that the sender gave */
    dti_flight *rx_flight;           /* whose chunk it is; NULL: early data or a control body */
    uint32_t rx_step, rx_chunk;
    uint8_t tx[DTI_LINK_BUFFER], rx[DTI_LINK_BUFFER];
} dti_link;

/* The content of a POST, by which mismatches are found. */
typedef struct dti_announce {
    uint32_t group;
    uint16_t flags, root;
    uint8_t kind, dtype;
    uint64_t sequence, count;
} dti_announce;

typedef struct dti_peer {
    dti_link *control; /* at the coordinator: to each member; at a member: to the coordinator */
    dti_link *data[DTI_SOCKETS_MAX];
    dti_link *probe;
    uint64_t probe_at, probe_wait;           /* the next one, ns; 0 = none */
    dti_backlog *backs;                      /* [sockets + 1], the last one of control */
    bool joined, left, dial;                 /* dial: data connections are wanted */
    uint64_t dial_at, dial_wait, dial_until; /* the next try, if one has failed; ns */
    uint16_t address_bytes;
    uint8_t address[DTI_ADDRESS_BYTES];
    char where[64]; /* the address, for messages */
    /* Units of early data. Used by us at the peer, and returned by it; taken by us, and returned to
     * it. */
    uint16_t early_used, early_back, early_taken, early_told;
    uint32_t early_bytes; /* in `early`: headers with their bodies, one after another */
    bool early_open;      /* the last one is still coming in */
    uint8_t *early;       /* [core->early_units * 64] */
    dti_announce *posts;  /* [DTI_PENDING_MAX] announced, not yet posted here */
    uint32_t post_count;
    uint64_t late_said; /* when its lateness was last noted, ns */
} dti_peer;

typedef struct dti_rank_group {
    uint32_t id, rank, size;
    uint32_t local, each; /* of dti_collective */
    uint32_t *ranks;      /* [size] world ranks */
    uint32_t *place_of;  /* [world size] the rank here of a world rank; DTI_NOBODY = not a member */
    uint64_t next;       /* sequence of the next collective */
    uint64_t *next_send; /* [size] and of the next send to, receive from each rank */
    uint64_t *next_recv;
    dti_announce history[DTI_HISTORY];
    struct dti_rank_group *following;
} dti_rank_group;

#define DTI_SUMS_KEPT 8

/* The progress of a step, in chunks. */
typedef struct dti_track {
    uint32_t total, done; /* chunks; done: all before this one */
    uint32_t granted;     /* SEND: by the receiver. RECV: by us */
    uint32_t told;        /* RECV: of `granted`, the part that the sender knows (credited
                             streams) */
    uint32_t ready;       /* SEND: chunks whose bytes exist */
    uint32_t begun;       /* SEND: chunks given to connections */
    uint32_t next;        /* the next step with the same peer; DTI_NOBODY = none */
    uint32_t slot;        /* RECV into slots: which stream's slots */
    uint32_t consumer;    /* RECV into slots: the FOLD that empties them */
    uint32_t reader;      /* RECV: the last step that reads the received data; DTI_NOBODY = none */
    bool guards;          /* SEND: a step waits for it, and overwrites its source */
    uint32_t alike;       /* SEND: the first step that sends the same bytes to any peer */
    uint32_t sum_of[DTI_SUMS_KEPT]; /* `alike`'s: chunks with a kept checksum */
    uint32_t sums[DTI_SUMS_KEPT];   /* these checksums */
    uint32_t first_bit;             /* several sockets: done chunks past `done`, in flight->bits */
} dti_track;

#define DTI_PEER_INVOLVED 1u /* shares a stream with us */
#define DTI_PEER_POSTED 2u   /* has said that it posted this operation */
#define DTI_PEER_TOLD 4u     /* knows that we have */
#define DTI_PEER_DUE 8u      /* is to be reported as soon as possible */
#define DTI_PEER_ASKED 16u   /* got our POST: nothing goes early any more */

struct dti_flight {
    uint64_t id; /* 0 = free */
    uint32_t at; /* its place in core->flights */
    bool finished, p2p;
    bool parting; /* all is done, but not all that was sent could be copied: see backlog.c */
    uint32_t unacknowledged; /* frames that are kept and whose bodies are its own */
    dt_result result;
    dt_comm_op op;
    dti_rank_group *group;
    dti_announce post;      /* our announcement */
    dti_collective planned; /* the collective that `schedule` was made for */
    dti_schedule schedule;
    dti_track *tracks;
    size_t track_room;
    uint32_t *first_of;  /* [group size] first step with that rank; then steps follow `next` */
    uint8_t *peer_state; /* [group size] DTI_PEER_... */
    size_t peer_room, first_room;
    uint64_t *bits;
    size_t bit_room;
    uint8_t *work;
    size_t work_room;
    dti_operand *operands; /* of one FOLD */
    size_t operand_room;
    uint8_t *slots; /* of the core's pool, while it is assigned to this operation */
    uint32_t slot_streams, leaf_total;
    uint32_t undone;    /* steps */
    uint64_t posted_at; /* ns */
};

typedef struct dti_io {
    /* Starts a connection to link->peer (for control: to the coordinator); the transport answers
     * with dti_core_connected or dti_core_closed. */
    void (*dial)(void *user, dti_link *link);
    void (*shut)(void *user, dti_link *link);  /* nothing more goes out on it */
    void (*close)(void *user, dti_link *link); /* forget it; the link may be reused at once */
    bool (*random)(void *user, void *to, size_t bytes);
    /* An address for people, at most 63 characters. */
    void (*describe)(void *user, const uint8_t *address, uint32_t bytes, char text[64]);
    /* The dialler of `link` has proved the key. NULL, or why it is refused. May be NULL. */
    const char *(*accepts)(void *user, dti_link *link);
} dti_io;

/* The source of the links' costs, for all ranks: rank 0's. */
typedef enum dti_link_source {
    DTI_LINK_MEASURED, /* by ordinary operations, after joining: the transport's */
    DTI_LINK_GIVEN,
    DTI_LINK_OFF /* constants choose algorithms */
} dti_link_source;

typedef struct dti_settings {
    uint32_t rank, size;
    uint32_t local_rank, local_size; /* on this rank's host; 0, 0: not known */
    uint64_t chunk_bytes, attempt;
    uint32_t window, sockets;            /* window: 0 = by the links' costs */
    uint64_t join_ns, silence_ns, op_ns; /* op_ns: 0 = no limit */
    uint8_t integrity;
    uint8_t link_source; /* a member's own until it has joined, then rank 0's; so is the next */
    dt_comm_link link;
    bool keyed;
    bool guessed; /* rank 0's address may be another job's: it is tried on until the join's end */
    uint8_t key[32];
    char job[64];
} dti_settings;

/* Calls of link.c, handshake.c and flight.c to the files after them; core.c fills it in. */
typedef struct dti_core_up {
    /* handshake.c: takes one message of the handshake; false: not whole yet, or it is over */
    bool (*greeted)(dti_core *core, dti_link *link);
    /* member.c: puts frames into tx while it has room and no payload is attached */
    void (*fill)(dti_core *core, dti_link *link);
    /* the engine's calls: the place of a payload's body (link->body; false after `failed`); a
     * verified payload; an attached one was sent; the peer read one; a frame without payload; early
     * data of a new operation */
    bool (*body)(dti_core *core, dti_link *link);
    void (*payload)(dti_core *core, dti_link *link);
    void (*sent)(dti_core *core, dti_link *link);
    void (*returned)(dti_core *core, const dti_link_loan *loan);
    void (*frame)(dti_core *core, dti_link *link);
    /* the peer has all kept frames before this one, whose low 16 bits are given */
    bool (*acknowledged)(dti_core *core, dti_link *link, uint16_t number);
    void (*take_early)(dti_core *core, dti_flight *flight);
    /* member.c: a frame of the control connection; the other side's BYE */
    void (*control)(dti_core *core, dti_link *link, const uint8_t *body);
    void (*bye)(dti_core *core, dti_link *link);
    /* connect.c: the other side's RESUME */
    void (*resume)(dti_core *core, dti_link *link);
    /* failure.c: the group ends because of this connection; false, for the caller to return */
    bool (*failed)(dti_core *core, dti_link *link, dt_result result, const char *format, ...)
        DTI_PRINTF(4, 5);
    /* connect.c: the peer has proved itself; it refuses us; the connection is useless (false);
     * NULL, or why a connection that claims to be from `peer` is refused */
    void (*open)(dti_core *core, dti_link *link);
    void (*refused)(dti_core *core, dti_link *link, const char *text);
    bool (*dropped)(dti_core *core, dti_link *link, const char *why);
    const char *(*taken)(dti_core *core, dti_link *link, uint32_t peer);
} dti_core_up;

typedef enum dti_core_state {
    DTI_CORE_JOINING,
    DTI_CORE_OPEN,
    DTI_CORE_SUSPECT, /* a failure is suspected: data stops until the coordinator decides */
    DTI_CORE_LEAVING,
    DTI_CORE_ENDED /* result and text say why; nothing can be posted any more */
} dti_core_state;

/* Warnings that an unauthenticated peer can cause at will. Each is logged once. Then they are
 * counted, and the number is logged from time to time. */
#define DTI_REFUSALS_SAID 12
#define DTI_REFUSALS_FROM 8
typedef struct dti_refusals {
    uint64_t said[DTI_REFUSALS_SAID]; /* hashes of texts */
    uint32_t said_count, held;        /* held: not said */
    uint64_t since;                   /* of the first that is counted, ns */
    char last[160];
    /* Of the held ones: the addresses that tried most, with the least number of tries (Misra and
     * Gries 1982). */
    struct {
        uint8_t source[DTI_SOURCE_BYTES];
        uint32_t count;
    } from[DTI_REFUSALS_FROM];
} dti_refusals;

struct dti_core {
    dti_base *base; /* application's thread only */
    const dti_core_up *up;
    dti_io io;
    void *io_user;
    dti_settings set;
    uint32_t early_bytes, early_units; /* of this world: the largest early stream, and the room for
                                          early data */
    uint32_t window; /* chunks in flight of a stream into slots, and kept ones of a connection */
    uint64_t now, last_tick;
    dti_core_state state;
    dt_result result;
    char text[512];
    uint32_t culprit;
    bool failed; /* it has ended by an error: data is over */
    uint64_t suspect_deadline, leave_deadline;
    uint64_t stays_until; /* coordinator that leaves last, ns; 0 = it does not leave, or need not */
    uint64_t alone_at;    /* member: when the coordinator left; 0 = it has not */
    uint32_t *left_list;  /* [size] coordinator: ranks that left, in order */
    uint32_t left_count;
    uint64_t join_deadline, dial_at, dial_wait, join_noted;
    char dial_why[160]; /* why the last try to reach the coordinator failed */
    char refused[160];  /* "; " and the last connection that was refused, with the reason; or "" */
    uint32_t damaged;   /* handshakes with the coordinator that were, while it joins */
    bool starved;       /* the system had no descriptor for a connection */
    uint32_t epoch;
    uint64_t source_seed;
    uint8_t nonce[16];                    /* of this run; the coordinator's */
    uint8_t instance[DTI_INSTANCE_BYTES]; /* this process's; the coordinator's is the nonce */
    uint32_t parting;                     /* flights that are */
    dti_hmac_key auth;
    dti_peer *peers; /* [size] */
    dti_link *links; /* [link_count] all there can be */
    uint32_t link_count;
    uint32_t joined; /* coordinator: members that have joined */
    uint32_t local;  /* the number of consecutive ranks on each host: r is on host r / local. 1:
                        unknown */
    dt_comm_link link, local_link; /* all 0: not known */
    dti_costs costs;               /* of them */
    dti_rank_group *groups;
    dti_flight *flights[DTI_PENDING_MAX]; /* first those with an id, then free ones */
    uint32_t flight_count, flights_made;  /* with an id; in all */
    uint32_t unfinished;                  /* of the operations that were posted */
    uint32_t turn;                        /* which flight may send first */
    uint64_t next_id;
    dti_flight *pool_user;    /* the flight that has the slots; NULL = free */
    uint8_t *pool, *old_pool; /* old: still in use when it had to grow; freed by a later post */
    size_t pool_bytes;
    dti_refusals refusals;
    char notes[DTI_NOTES][DTI_NOTE_BYTES];
    uint8_t note_levels[DTI_NOTES];
    uint32_t note_first, note_count;
    uint32_t events; /* counts events for a waiting application: finished, connected, ended */
    uint64_t bytes_sent, bytes_received, payload_bytes_sent, payload_bytes_received;
    uint64_t resets; /* connections that broke and were joined again */
};
