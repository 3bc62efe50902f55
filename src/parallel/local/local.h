/* Local steps: each replica trains by itself, and a round ends with an outer step of all (DiLoCo).
 * The files of this folder in the order in which to read them:
 *
 *   inner.c      how rounds are made; a local step
 *   round.c      the end of a round
 *   compress.c   compressed differences
 *   gossip.c     averages of two ranks within a round */

typedef struct dti_round_desc {
    uint32_t steps; /* of a full round; 0: every step is exchanged, and there are no rounds */
    uint32_t gossip_steps; /* steps of a round between averages of two ranks; 0 = no gossip */
    float lr, momentum;
    bool nesterov;
    uint8_t compress; /* dt_compress */
    double keep;      /* of each bucket, by DT_COMPRESS_TOPK */
} dti_round_desc;

#define DTI_ROUND_TEXT 500

typedef struct dti_compress { /* NULL: nothing is compressed */
    float *residual;          /* values that were not sent, in the layout of the parameter arena */
    char *sent, *said;        /* by this process, by all ranks: bucket by bucket */
} dti_compress;

/* The current round. Arrays have the layout of the parameter arena, on the host. */
typedef struct dti_round {
    float *start;    /* values that it began with */
    float *velocity; /* the outer optimizer's */
    float *heard;    /* gossip between ranks: another one's values; else NULL */
    float *arrays;   /* one for each replica here: its values, its difference, and the sum of all */
    double *terms;   /* of each replica: sums of the round */
    uint32_t partner;                 /* of the newest sync point */
    uint64_t first;                   /* steps committed before it */
    uint64_t count;                   /* rounds that have ended */
    uint32_t done;                    /* steps of this one */
    uint64_t mark;                    /* of values that ranks may set in each step by themselves */
    uint64_t samples, skipped, empty; /* of this process */
    char said[DTI_ROUND_TEXT];        /* of the first that was skipped */
    dti_compress compress;
    dti_runs none; /* of a replica without rows */
} dti_round;

/* The part that all plans of a round share. */
#define DTI_ROUND_PLAN                                                                             \
    .team = dti_replicas_team, .result = dti_replicas_result, .drop = dti_round_back,              \
    .leave = dti_parallel_leave

/* ---- inner.c */
static bool dti_parallel_is_local(const struct dti_parallel *par);
static dt_result dti_round_desc_check(dti_base *base, const dt_local_desc *d); /* INVALID */
static dti_round_desc dti_round_resolve(const dt_local_desc *d, const dt_parallel_desc *parallel);
static void dti_round_log(const struct dti_parallel *par);

/* ---- compress.c */
/* The offset of a bucket in the bytes that this process sends for a round. After the last bucket:
 * the number of bytes. */
static uint64_t dti_compress_at(const struct dti_parallel *par, uint32_t bucket);
static bool dti_compress_is_on(const struct dti_parallel *par);

/* ---- round.c: the end of a round of local steps, by all replicas */
static uint32_t dti_round_terms(const struct dti_parallel *par); /* doubles of par->terms */
static dt_result dti_round_make(struct dti_parallel *par); /* once a build: memory and ranges */
static void dti_round_free(struct dti_parallel *par);
static void dti_round_forget(struct dti_parallel *par);    /* the state is a file's */
static dt_result dti_round_open(struct dti_parallel *par); /* before the first step */
static void dti_round_back(struct dti_parallel *par);      /* back to its beginning */
/* Likewise with an error's text, if there is one. */
static dt_result dti_round_began(struct dti_parallel *par, dt_result result);
/* After an error of this rank that others do not learn of: ends the job. They notice at the end of
 * their round. A round in flight returns to its beginning. */
static dt_result dti_round_give_up(struct dti_parallel *par, dt_result result);
/* How buckets are summed; NULL: as gradients are. */
static const dti_sum_kind *dti_round_sums(const struct dti_parallel *par);
