/* Optimizers: the table of their rows. It lies between the ops, whose launches the commit segment
 * continues, and the backends. It must not know stores or programs. */

#define DTI_PROVEN_MAX 1e37  /* a thirtieth of the largest f32: room for all rounding */
#define DTI_PROVEN_EPS 1e-30 /* a smaller one may be 0 to a device, and 0 proves nothing */

/* A group's rates in a step, as the device has them, and the rest of the description. */
typedef struct dti_optim_rates {
    const dt_optim_desc *optim; /* resolved */
    double lr, decay;
} dti_optim_rates;

/* An update's values in a listing. */
typedef struct dti_optim_site {
    dti_emit *e;
    const dt_optim_desc *optim;
    uint32_t params, grads, state, table; /* values; state: see lower/layout.h */
    bool sparse; /* some gradients have words that say of rows that they are 0 */
    /* Parameters or moments have fewer bits: 1 + dt_state_dtype of the moments; 0: neither has. */
    uint32_t stored;
    uint32_t entries; /* of the whole table */
    dti_args_commit args;
} dti_optim_site;

/* A trained parameter of two axes or more, and its blocks in the table. */
typedef struct dti_optim_matrix {
    uint32_t param, first, blocks;
    uint32_t group, offset;     /* its elements begin there in each arena */
    uint32_t count, rows, cols; /* `count` matrices of rows x cols, one after the other */
    uint32_t direction;         /* value: the result of dti_optim_row.matrix, block by block */
    uint32_t factors;           /* the place of another factor */
} dti_optim_matrix;

/* A row, by dt_optim_kind; shaders/lib/optim_body.h has all of them, with their formulas. */
typedef struct dti_optim_row {
    const char *name;
    double lr, weight_decay;                     /* defaults */
    uint32_t (*moments)(const dt_optim_desc *d); /* how many of each parameter */
    /* Sets the optimizer's own words of a group in the step block; common words are set already. */
    void (*words)(const dt_optim_desc *d, float w[DTI_GROUP_WORDS]);
    /* Whether no update overflows. The gradient is at most g, the weight at most v[0], and the
     * moments are at most v[1], v[2] ... */
    bool (*bound)(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g);
    double beta2, eps, momentum; /* defaults; 0: 0.999, 1e-8 and 0 */
    /* Launches before an update and its dry pass that compute values of whole parameters, or NULL.
     * They write no parameter and no moment. */
    void (*whole)(const dti_optim_site *site);
    /* And makes the direction of each matrix that is not plain. NULL: matrices are like other
     * parameters. apart: matrices have only these launches, also those of more axes; else all other
     * parameters are plain. */
    void (*matrix)(const dti_optim_site *site, dti_optim_matrix *m);
    /* Its update, or the dry one. */
    void (*apply)(const dti_optim_site *site, const dti_optim_matrix *m);
    bool apart;
} dti_optim_row;

/* ---- stored.c: parameters and moments in fewer bits, by blocks of DTI_BLOCK elements */

#define DTI_STORED_DRAWS (DTI_BLOCK / 2) /* random words of a block: 16 bits an element */
#define DTI_STORED_LEAST 4096            /* with fewer elements, moments of 8 bits stay f32 */
/* How much larger rounding to bf16 makes a number at most. */
#define DTI_STORED_SLACK (1.0 + 0x1p-7)
/* A block's words in a launch's table, after all entries. Its number in its parameter, with the
 * flag if its moments are f32. Then its place in an array, in words. */
enum { DTI_STORED_BLOCK, DTI_STORED_STATE, DTI_STORED_WORDS };
#define DTI_STORED_F32 0x80000000u
/* The random stream of a parameter's value (0) or moment; those of ops are below 2^31. */
#define DTI_STORED_STREAM(param, value) (0x80000000u | (value) << 27 | (param))

/* The first moment has a sign, the second does not. */
static void dti_map8_make(dti_map8 *m, bool is_signed);
/* Words of a block of moments: of 8 bits the codes, then the scale. */
static inline uint32_t dti_stored_words(dt_state_dtype type) {
    return type == DT_STATE_8BIT ? DTI_BLOCK / 4u + 1u
                                 : DTI_BLOCK / (type == DT_STATE_F32 ? 1u : 2u);
}
static uint64_t dti_stored_bytes(dt_state_dtype type, uint64_t elements);
/* n elements of a block. words: DTI_STORED_DRAWS, for stochastic rounding to bf16; NULL: to the
 * nearest. */
static void dti_stored_read(const dti_isa_kernels *k, float *to, const void *from, int64_t n,
                            dt_state_dtype type, const dti_map8 *map);
static void dti_stored_write(const dti_isa_kernels *k, void *to, const float *from, int64_t n,
                             dt_state_dtype type, const dti_map8 *map, const uint32_t *words);
static bool dti_stored_kind_fits(dt_optim_kind kind);

static const dti_optim_row *dti_optim_row_of(dt_optim_kind kind); /* NULL: unknown */
/* UNSUPPORTED: its kind was left out (base/optional.h). desc: NULL = none. */
static dt_result dti_optim_here(dti_base *base, const dt_optim_desc *desc);
/* The update of elements, and its dry pass. */
static void dti_optim_emit_blocks(const dti_optim_site *site);
static void dti_optim_emit_shares(const dti_optim_site *site); /* .whole; see whole.c */
/* .matrix and .apply: Muon's, by orthogonal directions, and Adafactor's, by factors. */
static void dti_optim_emit_matrix(const dti_optim_site *site, dti_optim_matrix *m);
static void dti_optim_apply_matrix(const dti_optim_site *site, const dti_optim_matrix *m);
static void dti_optim_emit_factored(const dti_optim_site *site, dti_optim_matrix *m);
static void dti_optim_apply_factored(const dti_optim_site *site, const dti_optim_matrix *m);
/* Whether it looks at whole parameters. */
static inline bool dti_optim_is_whole(const dti_optim_row *row) {
    return row && (row->whole || row->matrix);
}
/* The rest of the commit segment: see the rows of its kernels in optim_cpu.c. */
static void dti_emit_grad_norm(const dti_optim_site *site, uint32_t blocks, uint32_t pairs);
static void dti_emit_clip_finish(dti_emit *e, const dti_args_commit *args, uint32_t pairs,
                                 uint32_t status, uint32_t state);
/* moment_fours: the average's. */
static void dti_emit_average(dti_emit *e, const dti_args_commit *args, uint32_t params,
                             uint32_t state, uint32_t table);
static void dti_emit_optim_tick(dti_emit *e, uint32_t items, const dti_args_commit *args,
                                uint32_t state, uint32_t table, uint32_t status);

/* The defaults in their places. DT_ZERO has become 0, so it is not done twice. */
static dt_optim_desc dti_optim_resolved(const dt_optim_desc *desc);
/* Whether a step may have this rate: not negative, and finite as an f32 in every group. */
static bool dti_optim_lr_fits(const dt_optim_desc *resolved, double lr);
static double dti_optim_lr_max(const dt_optim_desc *resolved);
/* The rate of step `step`, from 1 on: the given one (0 = none, DT_ZERO = 0), or by schedule. */
static double dti_optim_lr_at(const dt_optim_desc *resolved, double given, uint64_t step);
/* The phase of a step, from 1 on, and its number in it; NULL: no schedule. */
static const dt_schedule *dti_rate_phase(const dt_optim_desc *d, uint64_t step, uint64_t *n);
/* base^n by squaring, base >= 0: the same bits on every machine. */
static double dti_rate_power(double base, uint64_t n);
/* Turns phases in epochs into phases in steps, `each` of an epoch. */
static void dti_rate_in_steps(dt_optim_desc *d, uint64_t each);
/* The description with a step's momentum, which is in `room` where the schedule changes it. */
static const dt_optim_desc *dti_optim_at(const dt_optim_desc *resolved, uint64_t step,
                                         dt_optim_desc *room);
static void dti_optim_check(const dt_optim_desc *d, dti_text *problems);
/* For a description as given: members that its kind does not use must be 0 or DT_ZERO. */
static void dti_optim_check_unused(const dt_optim_desc *given, dti_text *problems);
/* The parameter group that takes a parameter of this name; 0: none of .groups. */
static uint32_t dti_optim_group_of(const dt_optim_desc *d, const char *name);
/* How many moments it keeps of each parameter. */
static uint32_t dti_optim_moments(const dt_optim_desc *resolved);
/* The number of arrays of moments in the state. The average, if any, follows the moments. */
static uint32_t dti_optim_arrays(const dt_optim_desc *resolved);
/* How far the average moves to the weights after a step, if it began in step `from`. 0 = not at
 * all, 1 = it becomes equal to them. */
static double dti_average_part(const dt_average *resolved, uint64_t step, uint64_t from);
/* A group's words in the step block. */
static void dti_optim_words(const dti_optim_rates *r, uint32_t words[DTI_GROUP_WORDS]);
