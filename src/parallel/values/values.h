/* Ranges of values between the stores that have them, other ranks, files and the host (values.c).
 * Where a model is split over devices, no rank has all of it. A strategy only describes which rank
 * has which values (maps.c).
 *
 * A parameter has arrays: its values are array 0, and moment m, which may be an average, is array
 * m + 1. Tensor ranks have parts of all its arrays. With ZeRO replicas share the moments: each of a
 * group has those of a run of its arena's elements.
 *
 * A walk moves all of them between these stores and a file (dti_values_file). All ranks go through
 * the arrays in the file's order: array by array, and in each parameter by parameter. An array goes
 * piece by piece. One rank reads or writes it in the file: the file's `rank`, which may differ
 * between arrays. To a file, each run of a piece is sent by a rank that has it. The file's
 * rank sends itself nothing. From a file, one rank reads a piece and sends each rank its values. If
 * several have the same, it sends all the piece. With `all` each rank reads its own values. A rank
 * whose device or file fails goes on with the walk, since others wait for it. Ranks agree on
 * failures after it. If a rank dies the walk ends on all others.
 *
 * Memory of a walk on each rank: DTI_AGREE_PIECE bytes. With tensor ranks also room for the largest
 * parameter, twice (dti_tp.whole and .part), which a grid has in any case.
 *
 * The files of this folder in the order in which to read them:
 *
 *   maps.c       which places have which values
 *   values.c     walks: save, load, gather and scatter
 *   snapshot.c   a copy of the values of the stores here
 *   trained.c    what a step changed, between replicas
 *   host.c       the host's store, as the application sees it */

typedef struct dti_values_place { /* a tensor rank's place of a parameter, by replica */
    dt_store *store;              /* NULL: on another rank */
    uint32_t param;               /* in that store */
    uint64_t offset;              /* of its first element; 0 if no store here knows it */
    dti_bucket moments;           /* its run of the elements that replicas share */
    uint32_t rank;                /* of the job */
    const char *kind;             /* in errors: "stage", of number `number` */
    uint32_t number;
} dti_values_place;

/* false: no device reads the parameter, and only the host has it. */
typedef bool dti_values_find(const dti_parallel *par, uint32_t replica, uint32_t tensor,
                             uint32_t param, dti_values_place *place);
#define DTI_VALUES_ALL UINT32_MAX /* in place of a rank: each */

typedef struct dti_values_map {
    dti_values_find *find;
    const dti_tp *tp; /* which parameters are in parts; NULL: none is */
    bool alike;       /* every rank has all that is not in parts, so no rank asks for it */
    uint32_t shards;  /* replicas that share the moments, group by group; 0: each has them */
    bool units;       /* they shard the values too */
    float *room;      /* of DTI_AGREE_PIECE; NULL: the move's own */
    const char *lost; /* of other ranks, when the job has ended */
} dti_values_map;

/* Values of the stores here, copied to the host. */
typedef struct dti_values_snapshot {
    float *values;
    uint64_t elements;
    /* [parameters][places here]: of a place's run in .values. The same values have one run. */
    uint64_t *starts;
    uint32_t places;
} dti_values_snapshot;

/* Where a walk comes from, or goes to. */
typedef struct dti_values_file {
    void *user;
    /* Writes elements [at, at + n) of an array, or reads them to `values`; in order. */
    dt_result (*move)(void *user, uint32_t param, uint32_t array, uint64_t at, uint64_t n,
                      float *values);
    /* The rank that reads or writes; DTI_VALUES_ALL: each, its own values. NULL: rank 0. */
    uint32_t (*rank)(void *user, uint32_t param, uint32_t array);
    bool averages;                       /* to the file: in place of values, where there are some */
    const dti_values_snapshot *snapshot; /* in place of the stores' values; NULL: those */
} dti_values_file;

typedef struct dti_values_move { /* a move in progress */
    dti_parallel *par;
    dti_values_map map;
    const dti_tp_part *part; /* how tensor ranks have the parameter; NULL: each as a whole */
    uint32_t param, array;
    uint32_t replica, tensor;            /* the place that is read */
    uint32_t rank;                       /* with the file; DTI_VALUES_ALL: all get the values */
    bool asks;                           /* other ranks take part */
    bool averages;                       /* a parameter without an average gives its values */
    const dti_values_snapshot *snapshot; /* in place of values; or NULL */
    float *piece, *room;                 /* of DTI_AGREE_PIECE; what is moved, of `most` elements */
    uint64_t most;
    dt_result result; /* the first error, or the cause of the group's end */
    float own[DTI_STORE_PIECE / 16];
} dti_values_move;

/* ---- maps.c */
static dti_values_map dti_values_map_of(const dti_parallel *par);
/* Whether no replica has all values and all of the state. Known before there are stores. */
static bool dti_values_are_apart(const dti_parallel *par);
/* Whether programs and their values exist: memory may run out in between. */
static bool dti_values_are_made(const dti_parallel *par);
/* After values were written: each store here is of the host's step, and knows nothing else. */
static dt_result dti_values_given(dti_parallel *par);

/* ---- values.c */
/* dti_store_array_write of all replicas here. */
static dt_result dti_values_put(dti_parallel *par, uint32_t array, uint64_t at, uint64_t n,
                                const float *values);
/* The values of other ranks are lost: REVOKED */
static dt_result dti_values_lost(dti_parallel *par, const char *what);
/* Before values are read, on all ranks together. piece: of DTI_AGREE_PIECE bytes, or NULL. REVOKED:
 * the job has ended, and other ranks had some. */
static dt_result dti_values_open(dti_parallel *par, dti_values_move *m, char *piece);
/* Gets elements `range` of a parameter's array (or a tensor rank's part of it) from a rank that
 * has them. After a device's error other ranks go on, as they wait for each other. */
static void dti_values_collect(dti_values_move *m, uint32_t tensor, dti_bucket range, float *to);
/* All of an array of a parameter, to array `into` of all replicas here. */
static void dti_values_gather_array(dti_values_move *m, uint32_t param, uint32_t array,
                                    uint32_t into);
/* All values, moments, averages and counts of steps to the host's store, on all ranks together; and
 * from it to the stores here. */
static dt_result dti_values_gather(dti_parallel *par);
static dt_result dti_values_scatter(dti_parallel *par);
/* Walks through all arrays except counts, on all ranks together; `arrays`: the number for each
 * parameter, values first. The result is this rank's. `piece` is of DTI_AGREE_PIECE bytes. */
static dt_result dti_values_save(dti_parallel *par, const dti_values_file *f, uint32_t arrays,
                                 char *piece);
static dt_result dti_values_load(dti_parallel *par, const dti_values_file *f, uint32_t arrays,
                                 char *piece);
/* A dti_values_file's .rank: each rank reads its own. */
static uint32_t dti_values_rank_all(void *user, uint32_t param, uint32_t array);
/* The steps that trained each of the model's parameters, on all ranks together. */
static dt_result dti_values_counts(dti_parallel *par, uint32_t *counts);
/* The same to the stores here, with the host's number of steps, after the values; NULL: 0. */
static dt_result dti_values_counted(dti_parallel *par, const uint32_t *counts);
/* The rank that has most of an array: writing there needs the fewest messages. Ranks that have the
 * same amount take turns, by `turn`. */
static uint32_t dti_values_most(const dti_parallel *par, uint32_t param, uint32_t array,
                                uint32_t turn);

/* ---- snapshot.c */
/* Room for what the stores here have. It fits until programs are made again. MEMORY */
static dt_result dti_values_snapshot_make(dti_parallel *par, dti_values_snapshot *s);
static void dti_values_snapshot_free(dti_parallel *par, dti_values_snapshot *s);
/* Values from the stores here. No rank waits for another. */
static dt_result dti_values_snapshot_take(dti_parallel *par, const dti_values_snapshot *s);
/* Back to them, on all ranks together. */
static dt_result dti_values_snapshot_restore(dti_parallel *par, const dti_values_snapshot *s);
/* A part of a place's run: elements [at, at + n) of its store's arena. */
static float *dti_values_snapshot_at(const dti_values_move *m, const dti_values_place *p,
                                     uint32_t replica, uint32_t tensor, uint64_t at);
/* Elements [at, at + n) of a place's arena that its run has. */
static dti_bucket dti_values_snapshot_has(const dti_values_move *m, const dti_values_place *p);

/* ---- trained.c: what a step changes, which is little beside all values of a store's arena */
typedef struct dti_values_ranges { /* in the arena's order */
    const dti_bucket *buckets;
    uint32_t bucket_count;
    const dti_code *code; /* in place of buckets: the trained values */
} dti_values_ranges;

/* Moves the trained values of a part of a store from or to the host. They lie one after the other,
 * or at their places in an arena. */
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

/* Moves a store's new values to the host; then each rank's to the others; then those of others to a
 * store. Errors: the comm's. */
static dt_result dti_values_give(const dti_values_update *u, dt_store *s);
static dt_result dti_values_share(const dti_parallel *par, const dti_values_update *u);
static dt_result dti_values_take(const dti_values_update *u, dt_store *s);

/* ---- host.c: the first replica's store, as the application sees it. apart: it lacks other
 * stores' values. */
/* A grid's: once the cut is known. MEMORY */
static dt_result dti_full_open(dti_parallel *par);
/* Gathers all values into it, on all ranks together, if it lacks them. REVOKED: other ranks had
 * some. MEMORY */
static dt_result dti_full_gather(dti_parallel *par);
/* The same for an application that keeps it: from here on each step brings them. */
static dt_result dti_full_show(dti_parallel *par);
/* Sends the values that the application wrote to a grid's store, to the stages or tensor ranks
 * here. */
static dt_result dti_full_given(dti_parallel *par);
/* A step was made, or values came from a file. */
static void dti_full_old(dti_parallel *par);
/* Before one: its memory goes back, which no program of the trainer's may read. */
static bool dti_full_is_there(const dti_parallel *par);
static dt_result dti_full_hide(dti_parallel *par);
