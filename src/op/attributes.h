/* Where rows of some families keep their attributes in attr.i, and the sizes that follow from them.
 * For the family, for nn/, and for export/, which writes the same rows for other runtimes. */

/* ---- conv.c, pool.c: windows, height first */
enum { DTI_CONV_STRIDE = 0, DTI_CONV_PADDING = 2, DTI_CONV_DILATION = 4, DTI_CONV_GROUPS = 6 };
enum {
    DTI_POOL_KERNEL = 0,
    DTI_POOL_STRIDE = 2,
    DTI_POOL_PADDING = 4,
    DTI_POOL_MODE = 6,
    DTI_POOL_CEIL = 7
};

/* ---- norm.c */
enum {
    DTI_NORM_BATCH = 0,
    DTI_NORM_CHANNELS = 1,
    DTI_NORM_SPATIAL = 2,
    DTI_NORM_COLS = 3, /* of a run; 0 with BATCH */
    DTI_NORM_RMS = 4,
    DTI_NORM_WHICH = 5, /* RUNNING: 0 = mean, 1 = variance */
    DTI_NORM_SYNC = 6   /* with BATCH: over the job's batch, not its pieces' */
};

/* ---- attention.c, attention_rows.c */
enum { DTI_ATTENTION_FLAGS = 0, DTI_ATTENTION_WINDOW = 1, DTI_ATTENTION_STREAM = 2 };
typedef struct dti_attention { /* shapes of q, k and v */
    int64_t heads, kv_heads, tq, tk, d, dv;
} dti_attention;
static dti_attention dti_attention_of(const dt_graph *g, const dti_node *n);
static uint32_t dti_attention_flags(const dti_node *n);
static double dti_alibi_slope(int64_t heads, int64_t h);

/* ---- recurrence.c */
enum { DTI_RECURRENCE_KIND = 0, DTI_RECURRENCE_FLAGS = 1 };
enum { DTI_RECURRENCE_Y, DTI_RECURRENCE_LAST_H, DTI_RECURRENCE_LAST_C };
static const int8_t dti_recurrence_gates[] = {4, 3, 1, 1}; /* of the weight, by kind */
typedef struct dti_recurrence {                            /* sizes of a sample */
    uint32_t kind, flags;
    int64_t steps, hidden, size, gates; /* size: of h; gates: of the weight, for each unit */
    int64_t cell;                       /* hidden, if the state has a cell, else 0 */
    int64_t units;                      /* kept of each step: gates and cell, for all units */
    int64_t state;                      /* of the input */
    int64_t slopes; /* of the gradient, for each step: of the sums; GRU has 4 a unit */
} dti_recurrence;
static dti_recurrence dti_recurrence_of(const dt_graph *g, const dti_node *n);
/* A row for callers: h of all steps, the last h and c. in: x W^T + b, W_hh, state, b_hn or W_hr.
 * False after an error. */
static bool dti_recurrence_append(const dt_tensor *in, uint32_t count, uint32_t kind,
                                  uint32_t flags, dt_tensor out[3]);
