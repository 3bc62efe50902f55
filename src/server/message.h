/* The messages between workers and servers, each a dti_message; docs/protocol.md has the table.
 * Workers ask; servers answer each question once. Numbers in bodies are little-endian.
 *
 * The files of this folder in the order in which to read them:
 *
 *   tickets.h, tickets.c          assigns batch slices to workers, without I/O
 *   compute.h, compute.c          a worker's gradient of a batch slice
 *   client.h, client.c            a worker's connections
 *   worker.c, worker_agree.c      a trainer whose steps are tickets; agreement on a step
 *   serve_batch.c, serve_push.c   a server's batches; what workers push and ask
 *   serve_agree.c                 the server's side of the agreement
 *   serve.c                       a server from creation to end */

enum {
    DTI_SAY_HELLO = 1, /* worker: no body */
    DTI_SAY_WELCOME,   /* dti_welcome */
    DTI_SAY_SETTINGS,  /* worker: no body; the answer's body is the server's settings, as text */
    DTI_SAY_ASK, /* worker: dti_request; part: ms within which it wants an answer, if only a WAIT */
    DTI_SAY_TICKET, /* dti_told; part: the batch slice, number: the batch's serial */
    DTI_SAY_ENDED,  /* dti_told; part: a dti_newest */
    DTI_SAY_PULL,   /* worker: dti_resolved; part: a dti_newest, number: the version it knows of */
    DTI_SAY_VALUES, /* part: a dti_newest, number: the version; body: the part's parameters, f32 */
    DTI_SAY_PUSH,  /* worker; part: the batch slice, number: the serial; body: see dti_push_shape */
    DTI_SAY_FAULT, /* worker: the same for a gradient that is not finite; body: why */
    DTI_SAY_PUSHED, /* part: a dti_push_answer */
    DTI_SAY_ERROR,  /* part: a dt_result; body: text */
    DTI_SAY_WAIT,   /* there is no ticket yet: ask again */
    DTI_SAY_FULL,   /* number: the workers that it takes, which it has */
    /* Clipping by the norm, of which each of several servers has a part: */
    DTI_SAY_BRING,   /* dti_told; the first server, to any worker that asks; number: the serial of a
                      batch */
    DTI_SAY_MEASURE, /* worker, to the others: dti_resolved; number: that serial */
    DTI_SAY_SQUARES, /* number: the same; body: of each block of the server's part, f32 */
    DTI_SAY_BROUGHT, /* worker, to the first one: the same body; part: whose, number: the serial */
    /* Several servers agree on a step to go on from (server/worker_agree.c): */
    DTI_SAY_AGREE, /* worker; part: a dti_agree_part, number: its attempt; body: u64 */
    DTI_SAY_STEPS, /* body: the steps that the server can go on from, u64, the newest first */
    DTI_SAY_APART  /* worker: they have none in common; number: its attempt; body: text */
};

/* Answers: STEPS to HOLD, WELCOME to the others; WAIT: it is not so any more, look again. */
typedef enum dti_agree_part {
    DTI_AGREE_HOLD, /* body: the generation that the worker has seen there */
    DTI_AGREE_BACK, /* body: the step to go back to */
    DTI_AGREE_GO    /* body: the version to go on from, the newest that a server has at that step */
} dti_agree_part;

#define DTI_AGREE_STEPS (DTI_MESSAGE_SMALL / sizeof(uint64_t)) /* of an answer, at most */

/* Which values: those of now, or those that the newest epoch ended with. */
typedef enum dti_newest { DTI_NEWEST_NOW, DTI_NEWEST_EPOCH } dti_newest;

#define DTI_SAY_TEXT 480 /* of FAULT and ERROR, at most */

typedef struct dti_welcome {
    uint32_t place, servers; /* this one, and the number of servers */
    uint32_t batch_slices, staleness;
    uint64_t elements;   /* of the arenas */
    uint64_t begin, end; /* this server's part of them */
    uint64_t push_bytes, settings_bytes;
    uint64_t version, skipped; /* as in dti_resolved */
    uint64_t epoch, steps;
    uint64_t generation; /* that several servers agreed on; 0: they have to */
    float clips[64];     /* as in dti_resolved */
} dti_welcome;

typedef struct dti_request {
    uint64_t epoch;
    uint64_t mark; /* of the coefficients of losses and of shared inputs */
    uint64_t safe; /* the step of a checkpoint that the other servers have all said they have */
} dti_request;

#define DTI_RESOLVED_MAX 64
#define DTI_CLIP_UNKNOWN (-1.0f) /* of a batch before the checkpoint that a server goes on from */

#define DTI_VALUES_KEPT 2u /* in the part of VALUES: the server has the checkpoint of `saved` */

/* The state that workers bring to servers other than the first. Batches up to `version` are
 * resolved. Of the newest 64 batches, bit i reports whether batch version - i was skipped. clip:
 * the factor of their gradients (clipping; else 1). saved: the step of the first server's newest
 * checkpoint. safe: that of the newest one that all servers are known to have. */
typedef struct dti_resolved {
    uint64_t version, skipped;
    uint64_t saved, safe;
    float clips[DTI_RESOLVED_MAX];
} dti_resolved;

typedef struct dti_told {
    dti_resolved resolved;
    uint64_t epoch, index; /* of the batch; of ENDED: the next epoch, and 0; part: the version is
                              that of its beginning */
    uint64_t step;         /* that it is computed for */
    uint64_t steps;        /* steps committed so far */
} dti_told;

_Static_assert(sizeof(dti_welcome) == 352 && sizeof(dti_request) == 24 && sizeof(dti_told) == 320,
               "no gaps: these are bytes of the wire");

/* The body of a push: a dti_push_head, and the running statistics of the batch slice. The server's
 * part of the gradient follows, bucket by bucket. */
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
