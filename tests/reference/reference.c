/* Running a graph in float64. A run computes every node that is needed again; leaves keep what the
 * caller wrote. Memory is kept from one run to the next, so finite differences cost loops only.
 * Included by main.c after the library, whose nodes and attributes the loops read. */

#include "reference/apart.c"
#include "reference/attention.c"
#include "reference/conv.c"
#include "reference/ctc.c"
#include "reference/elementwise.c"
#include "reference/losses.c"
#include "reference/moves.c"
#include "reference/norm.c"
#include "reference/pool.c"
#include "reference/recurrence.c"
#include "reference/sums.c"

/* Of families whose value on one tensor rank, without a cache, is that of another. */
#define ref_cache ref_copy
#define ref_parted_copy ref_copy
#define ref_parted_labels ref_copy
#define ref_parted_loss ref_weighted_loss
#define ref_parted_most ref_copy
#define ref_parted_own ref_copy
#define ref_parted_sum ref_copy
#define ref_parted_whole ref_copy

/* By row of the op table: a family without a reference does not compile. */
static void (*const ref_table[])(const ref_call *r) = {
#define REF_ROW(ID, name, inputs, samples, precision, family, selector, formula)                   \
    [DTI_OP_##ID] = ref_##family,
    DTI_OP_LIST(REF_ROW)
#undef REF_ROW
};

static void ref_open(ref_run *run, const dt_graph *graph, int64_t batch) {
    *run = (ref_run){.base = graph->base, .graph = graph, .batch = batch, .train = true};
    for (int i = 0; i < DT_MAX_TERMS; i++)
        run->step.coefficient[i] = 1;
}

static void ref_close(ref_run *run) {
    for (size_t i = 0; i < run->capacity; i++)
        dti_free(run->base, run->tensors[i].data);
    dti_free(run->base, run->tensors);
    dti_free(run->base, run->needed);
    *run = (ref_run){0};
}

static ref_tensor *ref_tensor_of(ref_run *run, dt_tensor x) {
    if (dti_is_nil(x) || !dti_array_reserve(run->base, (void **)&run->tensors, &run->capacity,
                                            (size_t)x.id + 1, sizeof *run->tensors))
        return NULL;
    ref_tensor *t = &run->tensors[x.id];
    const dti_node *node = &run->graph->nodes[x.id];
    if (t->data)
        return t;
    t->elements = t->dim[0] = node->samples ? run->batch : 1;
    for (int axis = 1; axis < DTI_AXES; axis++) {
        int i = axis - (DTI_AXES - node->shape.rank);
        t->dim[axis] = i >= 0 ? node->shape.dim[i] : 1;
        t->elements *= t->dim[axis];
    }
    t->data = dti_alloc_array(run->base, (size_t)t->elements + 1, sizeof *t->data);
    return t->data ? t : NULL;
}

/* To what the node's type can hold: the reference computes in double, and stores as a device. */
static void ref_store(dt_dtype dtype, ref_tensor *t) {
    for (int64_t i = 0; dtype == DT_BF16 && i < t->elements; i++)
        t->data[i] = (double)dti_f32_from_bf16(dti_bf16_from_f32((float)t->data[i]));
    for (int64_t i = 0; dtype == DT_F16 && i < t->elements; i++)
        t->data[i] = (double)dti_f32_from_f16(f16_from_f32((float)t->data[i]));
}

static bool ref_node(ref_run *run, uint32_t id) {
    const dti_node *node = &run->graph->nodes[id];
    dt_graph *graph = (dt_graph *)run->graph;
    ref_call r = {.node = node, .step = &run->step, .batch = run->batch, .train = run->train};
    ref_tensor *in = dti_alloc_array(run->base, (size_t)node->count + 1, sizeof *in);
    ref_tensor *out = ref_tensor_of(run, (dt_tensor){graph, id});
    bool ok = in && out;
    if (ok)
        r.out = *out;
    for (uint32_t i = 0; i < node->count && ok; i++) {
        const ref_tensor *x = ref_tensor_of(run, dti_input_of(graph, node, i));
        ok = x != NULL;
        if (ok)
            in[i] = *x;
    }
    r.in = in;
    if (ok)
        ref_table[node->op](&r);
    if (ok)
        ref_store(node->dtype, &r.out);
    dti_free(run->base, in);
    return ok;
}

static bool ref_mark(ref_run *run, const dt_tensor *wanted, uint32_t count) {
    const dt_graph *graph = run->graph;
    if (!dti_array_reserve(run->base, (void **)&run->needed, &run->needed_capacity, graph->count,
                           1))
        return false;
    memset(run->needed, 0, graph->count);
    for (uint32_t i = 0; i < count; i++)
        run->needed[wanted[i].id] = 1;
    for (uint32_t id = graph->count - 1; id > 0; id--) {
        const dti_node *node = &graph->nodes[id];
        for (uint32_t i = 0; i < node->count && run->needed[id]; i++)
            run->needed[dti_input_id(graph, node, i)] = 1;
    }
    return true;
}

static dt_result ref_values(ref_run *run, const dt_tensor *wanted, uint32_t count) {
    DTI_HAVE(ref_mark(run, wanted, count));
    for (uint32_t id = 1; id < run->graph->count; id++)
        if (run->needed[id] && !ref_node(run, id))
            return DT_ERROR_MEMORY;
    return DT_OK;
}
