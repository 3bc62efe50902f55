/* One connection of a message server, without I/O: bytes and time in, bytes and messages out.
 * Handshake and tags are those of ranks; a dti_core stands only for settings and clock. Small
 * bodies are covered by their frame's tag. Others go in pieces of DTI_MESSAGE_LINK_PIECE bytes,
 * DATA frames, each with its checksum or its GMAC. */

#define DTI_MESSAGE_LINK_PIECE 65536u
#define DTI_MESSAGE_LINK_WORLD 65535u  /* the world size that hellos have */
#define DTI_MESSAGE_LINK_CLIENT 65534u /* the rank of every client; a server's is its index */

typedef struct dti_message_link {
    dti_link link; /* its handshake, seals and buffers */
    dti_message_server_events *events;
    uint32_t who;
    uint64_t moved;                 /* bytes, of all connections that it was */
    bool used, open, over, refused; /* over: to be closed after its output has been sent */
    char why[256];
    /* Going out: after link.tx a piece, which is link.data. */
    bool sending;
    dti_message out;
    uint64_t out_at;
    uint8_t *piece; /* [DTI_MESSAGE_LINK_PIECE] */
    /* Incoming: a message is in progress; link.in_body: a piece of its body is. */
    bool coming;
    dti_message in;
    uint64_t in_at;
    uint8_t *to; /* the destination of its body; NULL: it is dropped */
} dti_message_link;
