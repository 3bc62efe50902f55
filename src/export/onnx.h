/* A graph that becomes an ONNX file (github.com/onnx/onnx: onnx.proto, Operators.md): the nodes so
 * far, and the value of each tensor there. A value is a number: below the graph's count the leaf of
 * that number, else one that an operator made. 0: none. */

#define DTI_ONNX_OPSET 17 /* LayerNormalization's; ONNX 1.12, of June 2022 */

typedef enum dti_onnx_type { DTI_ONNX_F32 = 1, DTI_ONNX_I32 = 6, DTI_ONNX_I64 = 7 } dti_onnx_type;

typedef struct dti_onnx {
    dti_base *base;
    dt_graph *g;
    dti_text nodes, tensors; /* fields of a GraphProto: operators, and constants */
    uint32_t *value;         /* by node */
    uint8_t *needed;         /* by node */
    uint32_t next;           /* the number of the next value */
    uint32_t sampled;        /* an input whose first axis gives the number of samples */
    uint32_t batch;          /* the number of samples: i64 [1]; 0: not needed so far */
    size_t open;             /* the operator that gets attributes */
    bool is_open;
    uint32_t packed; /* the newest row with several outputs */
    uint32_t outputs[DTI_OUTPUTS_MAX];
    dt_result result; /* the first error's */
} dti_onnx;

/* A row of the op table as operators. The result is its value; 0 after an error. */
typedef struct dti_onnx_row dti_onnx_row;
typedef uint32_t dti_onnx_fn(dti_onnx *o, const dti_node *n, const dti_onnx_row *row);
struct dti_onnx_row {
    dti_onnx_fn *make; /* NULL: the op is not supported */
    const char *text;  /* its parameters for `make` */
    float a, b;        /* constants of the text */
};

/* ---- onnx_make.c: operators one after the other */
/* An operator of `count` values; a value of 0 is omitted. Returns its first result. It stays open
 * for attributes, and for more results, until the next one. */
static uint32_t dti_onnx_op(dti_onnx *o, const char *type, uint32_t count, ...);
static uint32_t dti_onnx_more(dti_onnx *o);
static void dti_onnx_int(dti_onnx *o, const char *name, int64_t value);
static void dti_onnx_ints(dti_onnx *o, const char *name, const int64_t *values, int count);
static void dti_onnx_float(dti_onnx *o, const char *name, float value);
static void dti_onnx_word(dti_onnx *o, const char *name, const char *text, bool list);
static void dti_onnx_close(dti_onnx *o);
/* A constant of the file. */
static uint32_t dti_onnx_tensor(dti_onnx *o, dti_onnx_type type, int rank, const int64_t *dim,
                                const void *data, uint64_t bytes);
static uint32_t dti_onnx_list(dti_onnx *o, const int64_t *values, int count);
static uint32_t dti_onnx_one(dti_onnx *o, int64_t value); /* a list of one */
static uint32_t dti_onnx_scalar(dti_onnx *o, float value);
static uint32_t dti_onnx_filled(dti_onnx *o, int64_t elements, float value); /* [elements] */
/* A value in another shape, with a leading sample axis or without. */
static uint32_t dti_onnx_reshape(dti_onnx *o, uint32_t x, bool samples, dt_shape s);
/* Elements [start, end) along an axis. */
static uint32_t dti_onnx_part(dti_onnx *o, uint32_t x, int64_t start, int64_t end, int64_t axis);
/* Axes in another order; the sample axis stays first. */
static uint32_t dti_onnx_permute(dti_onnx *o, uint32_t x, bool samples, int rank,
                                 const int64_t *axes);
/* The last two axes the other way round. */
static uint32_t dti_onnx_turned(dti_onnx *o, uint32_t x, bool samples, int rank);
/* Input k of a node. One with samples gets at least `rank` dimensions, so that its sample axis
 * meets those of others. */
static uint32_t dti_onnx_in(const dti_onnx *o, const dti_node *n, uint32_t k);
static const dti_node *dti_onnx_node(const dti_onnx *o, const dti_node *n, uint32_t k);
static uint32_t dti_onnx_lifted(dti_onnx *o, const dti_node *n, uint32_t k, int rank);
/* The same with samples: repeated for each if it has none. */
static uint32_t dti_onnx_spread(dti_onnx *o, const dti_node *n, uint32_t k);
static uint32_t dti_onnx_batch(dti_onnx *o, const dti_node *n);
/* UNSUPPORTED, naming the op and the node. Returns 0. */
static uint32_t dti_onnx_refuse(dti_onnx *o, const dti_node *n, const char *format, ...)
    DTI_PRINTF(3, 4);
static void dti_onnx_name(dti_text *to, uint32_t field, const dti_onnx *o, uint32_t value);

/* ---- onnx_layers.c */
/* Whether the op that makes n reads, in place of input k, that input's inputs. */
static bool dti_onnx_folds(const dti_onnx *o, const dti_node *n, uint32_t k);
