/* A graph cut into chunks, for a pipeline: contiguous in the order of creation. It owns the chunk
 * of each node and parameter, and the tensors between chunks. */

#define DTI_PIPE_CHUNKS_MAX 256
#define DTI_PIPE_NOWHERE UINT16_MAX

/* A chunk's input from an earlier one: a tensor that `from` computes, or a parameter that lies
 * there. Its gradient goes back through the chunks that need it too, from the last to the first.
 * Each adds its share, in the order in which one device adds. */
typedef struct dti_pipe_link {
    uint32_t node;
    uint16_t from, to;
    uint16_t back; /* the chunk that gets its gradient */
    bool gradient;
} dti_pipe_link;

typedef struct dti_pipe_cut {
    uint32_t chunks, nodes;
    uint16_t *home;    /* by node: its chunk; NOWHERE: nothing needs it, or it is `anywhere` */
    uint8_t *needed;   /* by node: a loss, a metric or a running statistic is computed from it */
    uint8_t *anywhere; /* by node: computed by each chunk that needs it */
    uint8_t *low;      /* by node: computed in 16 bits, though the model says f32 */
    uint32_t *givers;  /* by node: the newest node that gives it a gradient; NULL: links are made */
    uint32_t starts[DTI_PIPE_CHUNKS_MAX + 1]; /* first node of each chunk */
    double work[DTI_PIPE_CHUNKS_MAX];         /* its share of a step's estimated time */
    dti_pipe_link *links;                     /* by `to`, then by node */
    uint32_t link_count;
} dti_pipe_cut;

/* By the graph's marks, or if it has no marks balanced by work. With another cut: its starts and
 * its work, for a graph that was made of its nodes in their order. Node i then became nodes
 * begin[i] to begin[i + 1]. rows: of a micro-batch; micros: of a replica's step. Errors: INVALID
 * (marks that do not fit; more chunks than the model can be cut into; a chunk with nothing to
 * train), UNSUPPORTED (more than DT_MAX_OUTPUTS tensors go into or out of a chunk), MEMORY. */
static dt_result dti_pipe_cut_make(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   uint32_t chunks, uint32_t rows, uint32_t micros,
                                   dti_pipe_cut *cut);
static dt_result dti_pipe_cut_like(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   const dti_pipe_cut *like, const uint32_t *begin,
                                   dti_pipe_cut *cut);
/* Cuts another cut's graph at the same places, without gradients. It keeps the nodes that losses
 * and metrics depend on, or only those that `output` depends on (0: none). UNSUPPORTED: a parameter
 * that no chunk has; too many tensors. */
static dt_result dti_pipe_cut_forward(dti_base *base, const dt_graph *g, const dti_pipe_cut *steps,
                                      const dt_program_desc *desc, uint32_t output,
                                      dti_pipe_cut *cut);
static void dti_pipe_cut_free(dti_base *base, dti_pipe_cut *cut);

/* Makes the chunk's graph, which ctx owns. It is a copy of g with the same numbers of nodes.
 * Tensors from other chunks become inputs, and only the chunk's parameters remain. */
static dt_result dti_pipe_cut_graph(const dti_pipe_cut *cut, const dt_graph *g, uint32_t chunk,
                                    dt_ctx *ctx, dt_graph **out);
/* The description of its program: its losses and metrics, its inputs and outputs. A chunk's loss
 * (metric) i is number losses[i] (metrics[i]) of all. */
static void dti_pipe_cut_desc(const dti_pipe_cut *cut, uint32_t chunk, dt_graph *g,
                              dt_program_desc *desc, dti_staged *staged, uint8_t *losses,
                              uint8_t *metrics);
