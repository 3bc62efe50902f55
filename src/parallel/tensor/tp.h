/* Tensor parallelism (Shoeybi et al., "Megatron-LM", 2019). A replica's model, or a stage of a
 * pipeline, is split over T tensor ranks. Each is on a device of this process or of another rank. A
 * tensor group by itself is a pipeline of one stage (pipe.h). Its ranks meet at a sync point after
 * each sum (tp_sync.c). Fixed slices (.tensor_slices) are tensor ranks too. A device has several in
 * one context, and its thread computes them alternately. So S slices give the same bits on any
 * number of devices.
 *
 * A tensor rank has a graph of all nodes, in which marked parameters are parts (tp_cut.c). Each
 * computes what is not split, with the same bits.
 *
 * The files of this folder in the order in which to read them:
 *
 *   tp_model.c             parts of parameters
 *   tp_cut.c               a tensor rank's graph
 *   tp_sync.h, tp_sync.c   sync points of tensor ranks */

/* A parameter's part: of each group along an axis, runs of `inner` elements. */
typedef struct dti_tp_part {
    dti_parted of;
    int64_t outer, inner;
} dti_tp_part;

typedef struct dti_tp {   /* the tensor ranks' data of the model */
    uint32_t size;        /* tensor ranks of a group */
    const dti_code *code; /* the whole model's: it checks and counts, and never runs */
    uint32_t *stands;     /* by the model's nodes: the node in a tensor rank's graph */
    uint32_t *firsts;     /* likewise: the first node made for it; at the end their number */
    dti_parted *parted;   /* by the model's nodes: how tensor ranks have it */
    uint8_t *refused;   /* likewise: made by an op that cannot compute on parts; no loss reads it */
    dti_tp_part *parts; /* by parameter */
    float *whole, *part; /* room for one parameter */
} dti_tp;

/* ---- tp_cut.c */
/* The graph of the tensor rank of a number, with as many nodes as others', of ctx, which ends it.
 * The first call fills stands and parts. INVALID: a mark that does not divide; UNSUPPORTED: a row
 * that does not take parts. */
static dt_result dti_tp_graph(dti_parallel *par, dti_tp *tp, dt_ctx *ctx, uint32_t number,
                              dt_graph **out);

/* ---- tp_model.c */
/* Makes the data of the model, by size and code: room for stands, firsts and parts, and for one
 * parameter. UNSUPPORTED: the optimizer needs whole parameters; MEMORY */
static dt_result dti_tp_model(dti_parallel *par, dti_tp *tp);
static void dti_tp_model_free(dti_parallel *par, dti_tp *tp);
/* The blocks of parameter i in a tensor rank's table, or in its own half of that; 0: it is in
 * none. */
static uint32_t dti_tp_blocks(const dti_tp *tp, uint32_t i, bool buffers);
/* Of a program of a tensor rank's graph. */
static dt_program_desc dti_tp_desc(const dti_parallel *par, const dti_tp *tp, dt_graph *graph);
/* Whether devices round alike: replicated tensors must be the same on all. INVALID */
static dt_result dti_tp_alike(dti_parallel *par, const dti_device *a, const dti_device *b);
/* The same on all ranks, of one's device. */
static dt_result dti_tp_same(dti_parallel *par, const dti_device *device);
