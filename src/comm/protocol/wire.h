/* The protocol's bytes: docs/protocol.md has the same tables for other implementations. All
 * numbers are little-endian. A connection begins with the handshake (handshake.c); then both sides
 * send frames: a header of 64 bytes, and `length` bytes of body.
 *
 *   at  bytes  field
 *    0   4     magic 'DTR1'
 *    4   1     version
 *    5   1     type (dti_frame_type)
 *    6   2     flags (DTI_FLAG_...; of POST and EAGER also reduction, algorithm, tree)
 *    8   2     epoch: of the membership; a frame of another epoch is dropped
 *   10   2     acknowledged: kept frames that its sender has received whole so far, modulo 65536
 *   12   4     group
 *   16   8     sequence: of the operation in its group, or between the two ranks (DTI_FLAG_P2P)
 *   24   2     stream
 *   26   2     returned: units of early data that the sender of this frame has taken so far
 *   28   1     dtype
 *   29   1     kind
 *   30   2     root
 *   32   8     POST, EAGER: count in elements. DATA: offset in the stream in bytes. CREDIT: chunks
 *              that may be sent, from the stream's first on. RESUME: kept frames received so far
 *   40   4     length of the body
 *   44   4     CRC32C of the body; of DATA and EAGER only with integrity CRC, otherwise 0
 *   48  16     tag: with a key the first half of HMAC-SHA256(key of this direction, number of the
 *              frame (8 bytes) || bytes 4 to 47 || SHA-256(body)); the last only if there is a
 *              body and the type is neither DATA nor EAGER. Without a key the CRC32C of bytes 0
 *              to 47, then zeros
 *
 * With integrity MAC, the body's GMAC (gmac.c, 16 bytes) lies before the body of a DATA or EAGER
 * frame. `length` does not count it.
 *
 * Data needs a permission. The receiver's POST of the same operation permits all streams that go
 * straight into its memory. A CREDIT permits a number of chunks of another stream. Without a
 * permission a stream of at most dti_early_bytes() may go in an EAGER frame. Each rank keeps a
 * buffer for these for each peer. A sender may use dti_early_units_all() units of it (64 bytes
 * each, header included), plus the returned ones. EAGER also announces, like POST. After a POST
 * nothing of that operation goes early. So a rank never stops reading because its application has
 * not posted an operation. Of several sockets to a peer, the first carries EAGER, POST and CREDIT;
 * chunk c of a stream goes on socket c modulo their number.
 *
 * A sender keeps frames until they are acknowledged. It sends them again on the connection that
 * replaces a broken one (backlog.c). RESUME, RETURN, PING, PONG and HEARTBEAT are not kept: they
 * report the current state and are made again. RESUME is the first frame of each direction of a
 * connection. */

#define DTI_WIRE_VERSION 3
#define DTI_MAGIC 0x31525444u /* 'DTR1' */
#define DTI_HEADER_BYTES 64
#define DTI_TAG_AT 48
#define DTI_TAG_BYTES 16
#define DTI_MAC_BYTES 16
/* In worlds of up to this number of ranks, streams of DTI_EARLY_BYTES may go early. In larger ones
 * only short streams may. Each rank keeps room for DTI_EARLY_STREAMS of the longest ones for each
 * other rank. */
#define DTI_EARLY_RANKS 64u
#define DTI_EARLY_BYTES 65536u
#define DTI_EARLY_BYTES_LEAST 4096u
#define DTI_EARLY_STREAMS 2u
#define DTI_CONTROL_BYTES_MAX 4096
#define DTI_DATA_BYTES_MAX (8 << 20)

/* X(id, text). DATA and below carry payload and are for data connections; MEMBER and above are for
 * the connection between a rank and the coordinator. */
#define DTI_FRAME_LIST(X)                                                                          \
    X(NONE, "none")                                                                                \
    X(DATA, "DATA")           /* one chunk of a stream */                                          \
    X(EAGER, "EAGER")         /* a POST with the whole of a short stream */                        \
    X(POST, "POST")           /* this rank has posted the operation that is described */           \
    X(CREDIT, "CREDIT")       /* more chunks of a stream may come */                               \
    X(RETURN, "RETURN")       /* only `returned` and `acknowledged` */                             \
    X(PING, "PING")           /* asks for a PONG */                                                \
    X(PONG, "PONG")           /* the answer */                                                     \
    X(BYE, "BYE")             /* the last frame of this direction */                               \
    X(RESUME, "RESUME")       /* the first frame: the frames received on earlier connections */    \
    X(JOIN, "JOIN")           /* member: my settings and addresses */                              \
    X(ROSTER, "ROSTER")       /* coordinator: all addresses, and the run's nonce */                \
    X(HEARTBEAT, "HEARTBEAT") /* both: this rank lives */                                          \
    X(LEFT, "LEFT")           /* coordinator: a member has left */                                 \
    X(LOST, "LOST")           /* member: an error ended the group here */                          \
    X(REVOKE, "REVOKE")       /* coordinator: the epoch has ended, and why */

#define DTI_X(id, text) DTI_FRAME_##id,
typedef enum dti_frame_type { DTI_FRAME_LIST(DTI_X) DTI_FRAME_COUNT } dti_frame_type;
#undef DTI_X

#define DTI_FLAG_REDUCTION 0x0007u /* shifted by 0 */
#define DTI_FLAG_ALGORITHM 0x0038u /* by 3 */
#define DTI_FLAG_TREE 0x0040u
#define DTI_FLAG_P2P 0x0100u         /* send and recv: numbered per pair of ranks and direction */
#define DTI_FLAG_FROM_TARGET 0x0200u /* P2P: from the one that receives */
#define DTI_FLAGS_KNOWN 0x037Fu

typedef struct dti_frame {
    uint8_t type;
    uint16_t flags;
    uint16_t acknowledged;
    uint32_t epoch, group;
    uint64_t sequence;
    uint16_t stream, returned;
    uint8_t dtype, kind;
    uint16_t root;
    uint64_t value; /* count, offset or chunks */
    uint32_t length, crc;
} dti_frame;

/* One direction's secret and frame number. */
typedef struct dti_seal {
    dti_hmac_key key;
    uint64_t frames;
    bool keyed;
    void *gmac; /* of gmac.c, with integrity MAC; otherwise NULL */
} dti_seal;

/* body: covered by the tag unless it is payload; NULL if length is 0. Counts the frame. */
static void dti_frame_seal(dti_seal *seal, const dti_frame *frame, const void *body,
                           uint8_t out[DTI_HEADER_BYTES]);

/* Decodes the fields, and checks magic, version, type, flags and length. NULL, or the error. */
static const char *dti_frame_decode(const uint8_t in[DTI_HEADER_BYTES], dti_frame *frame);
/* Whether the tag is right; counts the frame. body as in dti_frame_seal. */
static bool dti_frame_verify(dti_seal *seal, const uint8_t in[DTI_HEADER_BYTES],
                             const dti_frame *frame, const void *body);
/* DATA and EAGER: the body is the application's data, checked only by its CRC. */
static bool dti_frame_is_payload(int type);
/* Whether its sender keeps it until it is acknowledged. */
static bool dti_frame_is_kept(int type);
