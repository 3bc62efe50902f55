/* Ranges of values between the stores that have them, other ranks and the host (values.c). Where a
 * model is split over devices, the host's store is that of the one replica: the application sees
 * it, and files are made of it. A strategy only says who has what (maps.c).
 *
 * A parameter has arrays: its values are array 0, and moment m, which may be an average, is array
 * m + 1. Tensor ranks have parts of all its arrays. With ZeRO replicas share the moments: each of a
 * group has those of a run of its arena's elements.
 *
 * The files of this folder in the order in which to read them:
 *
 *   maps.c      who has which values
 *   values.c    gathers and scatters
 *   trained.c   what a step changed, between replicas
 *   host.c      the host's store, as the application sees it */

typedef struct dti_values_place { /* where a tensor rank of a replica has a parameter */
    dt_store *store;              /* NULL: on another rank */
    uint32_t param;               /* in that store */
    uint64_t offset;              /* of its first element; 0 where nobody here knows it */
    dti_bucket moments;           /* the run of elements of which it has what replicas share */
    uint32_t rank;                /* of the job */
    const char *kind;             /* in errors: "stage", of number `number` */
    uint32_t number;
} dti_values_place;

/* false: no device reads the parameter, and only the host has it. */
typedef bool dti_values_find(const dti_parallel *par, uint32_t replica, uint32_t tensor,
                             uint32_t param, dti_values_place *place);
#define DTI_VALUES_ARENA UINT32_MAX /* a parameter's number: all of an arena, for replicas alone */

typedef struct dti_values_map {
    dti_values_find *find;
    const dti_tp *tp; /* which parameters are in parts; NULL: none is */
    bool alike;       /* every rank has all that is not in parts: nobody asks for it */
    uint32_t shards;  /* replicas that share the moments, group by group; 0: each has them */
    bool units;       /* and the values */
    float *room;      /* of DTI_AGREE_PIECE, for what is not in parts; NULL: the move's own */
    const char *lost; /* of other ranks, when the job has ended */
} dti_values_map;

typedef struct dti_values_move { /* a move under way */
    dti_parallel *par;
    dti_values_map map;
    const dti_tp_part *part; /* how tensor ranks have the parameter; NULL: each as a whole */
    uint32_t param, array;
    uint32_t into;            /* which array it becomes on the host */
    uint32_t replica, tensor; /* who is read */
    bool asks;                /* other ranks take part; */
    bool first;               /* and only rank 0 gets the values */
    float *room;              /* for `most` elements */
    uint64_t most;
    dt_result result; /* the first error, or what ended the group */
    float own[DTI_STORE_PIECE / 16];
} dti_values_move;

/* ---- maps.c */
static dti_values_map dti_values_map_of(const dti_parallel *par);
/* After a scatter: each store here is of the host's step, and knows nothing else. */
static dt_result dti_values_given(dti_parallel *par);

/* ---- values.c */
/* dti_store_array_write of all replicas here. */
static dt_result dti_values_put(dti_parallel *par, uint32_t array, uint64_t at, uint64_t n,
                                const float *values);
/* What other ranks had is lost: REVOKED */
static dt_result dti_values_lost(dti_parallel *par, const char *what);
/* On all ranks together. REVOKED: the job has ended, and other ranks had some. */
static dt_result dti_values_open(dti_parallel *par, dti_values_move *m);
/* Elements `range` of an array of a parameter, or of a tensor rank's part of it, from whoever has
 * them. After a device's error other ranks go on, as they wait for each other. */
static void dti_values_collect(dti_values_move *m, uint32_t tensor, dti_bucket range, float *to);
/* All of an array, to all replicas here. */
static void dti_values_gather_array(dti_values_move *m);
/* All values, moments, averages and counts of steps to the host's store, on all ranks together; and
 * from it to the stores here. */
static dt_result dti_values_gather(dti_parallel *par);
static dt_result dti_values_scatter(dti_parallel *par);

/* ---- trained.c: what a step changes, which is little beside all values of a store's arena */
typedef struct dti_values_ranges { /* in the arena's order */
    const dti_bucket *buckets;
    uint32_t bucket_count;
    const dti_code *code; /* in place of buckets: what it trains */
} dti_values_ranges;

/* Of a part of a store's values what is trained, from or to the host: one piece after the other, or
 * at their places in an arena. */
typedef struct dti_values_copy {
    const dti_values_ranges *trained;
    dti_bucket part;
    float *host;
    bool packed, write;
} dti_values_copy;

static uint64_t dti_values_elements(const dti_values_ranges *t, dti_bucket part);
static dt_result dti_values_copy_trained(dt_store *s, dti_values_copy copy);

typedef struct dti_values_update { /* of stores that are alike, each of which made its own part */
    dti_values_ranges trained;
    dti_values_shared shared;
    float *host;   /* an arena in which the parts meet */
    dt_comm *comm; /* of the ranks that have some; NULL: all are here */
} dti_values_update;

/* What a store made to the host; then each rank's to the others; then those of others to a store.
 * The comm's error. */
static dt_result dti_values_give(const dti_values_update *u, dt_store *s);
static dt_result dti_values_share(const dti_parallel *par, const dti_values_update *u);
static dt_result dti_values_take(const dti_values_update *u, dt_store *s);

/* ---- host.c: that store, as the application sees it */
/* To it, on all ranks together; nothing where it has them. REVOKED: other ranks had some. */
static dt_result dti_full_gather(dti_parallel *par);
/* The same for an application that keeps it: from here on each step brings them. */
static dt_result dti_full_show(dti_parallel *par);
/* From it to a grid's stages or tensor ranks here. */
static dt_result dti_full_scatter(dti_parallel *par);
/* The same on all ranks together, which have what counts from then on. */
static dt_result dti_full_given(dti_parallel *par);
/* A step was made: the host's memory goes back to the system, unless the application has it. */
static void dti_full_old(dti_parallel *par);
