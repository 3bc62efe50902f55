/* What workers and servers say to each other, each by a dti_message; docs/protocol.md has the
 * table. Workers ask, servers answer each question once. Numbers in bodies are little-endian. */

enum {
    DTI_SAY_HELLO = 1, /* worker: no body */
    DTI_SAY_WELCOME,   /* dti_welcome */
    DTI_SAY_SETTINGS,  /* worker: no body; the answer's body is the server's settings, as text */
    DTI_SAY_ASK, /* worker: dti_request; part: in so many ms it wants an answer, if only a WAIT */
    DTI_SAY_TICKET, /* dti_told; part: the shard, number: the batch's serial */
    DTI_SAY_ENDED,  /* dti_told; part: a dti_newest */
    DTI_SAY_PULL,   /* worker: dti_resolved; part: a dti_newest, number: the version it knows of */
    DTI_SAY_VALUES, /* part: a dti_newest, number: the version; body: the part's parameters, f32 */
    DTI_SAY_PUSH,   /* worker; part: the shard, number: the serial; body: see dti_push_shape */
    DTI_SAY_FAULT,  /* worker: the same for a gradient that is not finite; body: why */
    DTI_SAY_PUSHED, /* part: a dti_push_answer */
    DTI_SAY_ERROR,  /* part: a dt_result; body: text */
    DTI_SAY_WAIT,   /* there is no ticket yet: ask again */
    DTI_SAY_FULL,   /* number: the workers that it takes, which it has */
    /* Clipping by the norm, of which each of several servers has a part: */
    DTI_SAY_BRING, /* dti_told; the first server, to whoever asks; number: the serial of a batch */
    DTI_SAY_MEASURE, /* worker, to the others: dti_resolved; number: that serial */
    DTI_SAY_SQUARES, /* number: the same; body: of each block of the server's part, f32 */
    DTI_SAY_BROUGHT  /* worker, to the first one: the same body; part: whose, number: the serial */
};

/* Which values: those of now, or those that the newest epoch ended with. */
typedef enum dti_newest { DTI_NEWEST_NOW, DTI_NEWEST_EPOCH } dti_newest;

#define DTI_SAY_TEXT 480 /* of FAULT and ERROR, at most */

typedef struct dti_welcome {
    uint32_t place, servers; /* this one, of so many */
    uint32_t shards, staleness;
    uint64_t elements;   /* of the arenas */
    uint64_t begin, end; /* this server's part of them */
    uint64_t push_bytes, settings_bytes;
    uint64_t version, skipped; /* as in dti_resolved */
    uint64_t epoch, steps;
    float clips[64]; /* as in dti_resolved */
} dti_welcome;

typedef struct dti_request {
    uint64_t epoch;
    uint64_t mark; /* of the coefficients of losses and of shared inputs */
} dti_request;

#define DTI_RESOLVED_MAX 64
#define DTI_CLIP_UNKNOWN (-1.0f) /* of a batch before the checkpoint that a server goes on from */

/* What servers other than the first learn from workers: that the batches up to a version are
 * resolved, and of the newest 64, version - i, whether they were skipped, by bit i, and by what
 * their gradients are multiplied (clipping; else 1). */
typedef struct dti_resolved {
    uint64_t version, skipped;
    float clips[DTI_RESOLVED_MAX];
} dti_resolved;

typedef struct dti_told {
    dti_resolved resolved;
    uint64_t epoch, index; /* of the batch; of ENDED: the epoch that is next, and 0; the version
                              is that of its beginning where part says so */
    uint64_t step;         /* that it is computed for */
    uint64_t steps;        /* committed so far */
} dti_told;

_Static_assert(sizeof(dti_welcome) == 344 && sizeof(dti_request) == 16 && sizeof(dti_told) == 304,
               "no gaps: these are bytes of the wire");

/* The body of a push: a dti_push_head, the statistics of the shard's pieces, and the server's part
 * of the gradient, bucket by bucket. */
typedef struct dti_push_head {
    uint64_t version; /* that it was computed with */
    double terms[DTI_TERMS_WIDTH];
} dti_push_head;

typedef struct dti_push_shape {
    uint64_t begin, end; /* the server's part of the arenas */
    uint64_t statistics; /* floats */
    uint64_t gradient;   /* floats */
    uint64_t bytes;
} dti_push_shape;
