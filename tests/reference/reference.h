/* The reference: every value of a graph in float64, node by node, by naive loops. It is not a
 * device: it knows no store and no plan. The loops of a family of src/op are ref_<family>, in the
 * files that reference.c includes. */

typedef struct ref_tensor {
    double *data;
    int64_t dim[DTI_AXES]; /* [0] = samples or 1, the shape right-aligned after it */
    int64_t elements;
} ref_tensor;

typedef struct ref_step {
    uint64_t seed, step;
    uint32_t first_row;
    double coefficient[DT_MAX_TERMS], weight[DT_MAX_TERMS]; /* weight 0 = the term's own */
} ref_step;

typedef struct ref_call {
    const dti_node *node;
    const ref_tensor *in; /* node->count of them */
    ref_tensor out;
    const ref_step *step;
    int64_t batch;
    bool train;
} ref_call;

typedef struct ref_run {
    dti_base *base;
    const dt_graph *graph; /* may get more nodes between two runs */
    int64_t batch;
    bool train; /* dropout drops */
    ref_step step;
    ref_tensor *tensors; /* by node id; data is NULL where there is no value yet */
    size_t capacity;
    uint8_t *needed;
    size_t needed_capacity;
} ref_run;

static void ref_open(ref_run *run, const dt_graph *graph, int64_t batch);
static void ref_close(ref_run *run);
/* The array of a node. Before ref_values an input or a parameter is filled through it, and after it
 * a result is read from it. Zeros at first. NULL when memory ran out. */
static ref_tensor *ref_tensor_of(ref_run *run, dt_tensor x);
/* Marks in run->needed what the values of `wanted` are computed from. Nil ones are skipped. */
static bool ref_mark(ref_run *run, const dt_tensor *wanted, uint32_t count);
/* Computes one node from the values of its inputs. */
static bool ref_node(ref_run *run, uint32_t id);
/* Computes what the values of `wanted` need, in order of id. */
static dt_result ref_values(ref_run *run, const dt_tensor *wanted, uint32_t count);

/* ---- Indices of the loops: dense arrays of six axes, and nothing else. They are apart from the
 * views and walks of the devices on purpose. A mistake there must not be made here as well. */

/* The place on each axis of element `element` of x. */
static inline void ref_place(const ref_tensor *x, int64_t element, int64_t at[DTI_AXES]) {
    for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        at[axis] = element % x->dim[axis];
        element /= x->dim[axis];
    }
}

/* The element of x at a place of a tensor that x is broadcast to. */
static inline int64_t ref_element(const ref_tensor *x, const int64_t at[DTI_AXES]) {
    int64_t element = 0;
    for (int axis = 0; axis < DTI_AXES; axis++) {
        element = element * x->dim[axis] + (x->dim[axis] == 1 ? 0 : at[axis]);
    }
    return element;
}

/* Rows of the last axis: how many, and how long. */
static inline int64_t ref_cols(const ref_tensor *x) {
    return x->dim[DTI_AXES - 1];
}
static inline int64_t ref_rows(const ref_tensor *x) {
    return ref_cols(x) ? x->elements / ref_cols(x) : 0;
}

static inline void ref_zero(const ref_call *r) {
    for (int64_t i = 0; i < r->out.elements; i++)
        r->out.data[i] = 0;
}

/* Of one sample, which all of them share where x has none. */
static inline const double *ref_sample(const ref_tensor *x, int64_t sample) {
    return x->data + (x->dim[0] > 1 ? sample * (x->elements / x->dim[0]) : 0);
}
