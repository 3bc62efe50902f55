/* The reference: every value of a graph in float64, node by node, by the naive loops that stand
 * beside each op. For tests, under DT_REFERENCE. It is no device: it knows no store and no plan. */
#ifdef DT_REFERENCE

typedef struct dti_ref_run {
    dti_base *base;
    const dt_graph *graph; /* may get more nodes between two runs */
    int64_t batch;
    bool train; /* dropout drops */
    dti_ref_step step;
    dti_ref_tensor *tensors; /* by node id; data is NULL where there is no value yet */
    size_t capacity;
    uint8_t *needed;
    size_t needed_capacity;
} dti_ref_run;

static void dti_ref_open(dti_ref_run *run, const dt_graph *graph, int64_t batch);
static void dti_ref_close(dti_ref_run *run);
/* The array of a node: what an input or a parameter is filled in through, before, and what a result
 * is read from, after dti_ref_values. Zeros at first. NULL when memory ran out. */
static dti_ref_tensor *dti_ref_tensor_of(dti_ref_run *run, dt_tensor x);
/* Marks in run->needed what the values of `wanted` are computed from. Nil ones are skipped. */
static bool dti_ref_mark(dti_ref_run *run, const dt_tensor *wanted, uint32_t count);
/* Computes one node from the values of its inputs. */
static bool dti_ref_node(dti_ref_run *run, uint32_t id);
/* Computes what the values of `wanted` need, in order of id. */
static dt_result dti_ref_values(dti_ref_run *run, const dt_tensor *wanted, uint32_t count);

#endif
