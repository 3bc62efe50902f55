/* Where a pipeline is cut if the application has no marks. The slowest chunk is as fast as
 * possible; then the others are as even as possible. A node's time is that of its row and of its
 * gradient's rows. A row's time is its multiply-adds or the elements that it moves, whichever are
 * more. All ranks find the same cut: nothing is measured. */

#define DTI_PIPE_MOVE 8.0   /* multiply-adds in the time in which an element is moved */
#define DTI_PIPE_UPDATE 6.0 /* elements moved to update one */
/* The cost of a cut on each of its sides, forward and back. The unit is an element
 * that a device moves: for each 4 bytes over the cut, and for each message. */
#define DTI_PIPE_CROSS 8.0
#define DTI_PIPE_MESSAGE 1024.0
/* Places that are tried, and of each chunk: the search takes their square. */
#define DTI_PIPE_PLACES 2048
#define DTI_PIPE_PLACES_EACH 32

/* ---- time, and the bytes across each place */

typedef struct dti_pipe_places { /* by node: of a cut before it */
    double *before;              /* time before it; first of the node */
    double *cross;               /* time of the bytes across it, on each side; first as
                                    differences */
    int32_t *tensors;            /* likewise */
    uint32_t *trained;           /* parameters to train that are read before it */
    uint8_t *inside;             /* of the nodes of one function */
    uint32_t *first, *last;      /* by node: its readers */
} dti_pipe_places;

static bool dti_pipe_places_open(dti_base *base, const dt_graph *g, dti_pipe_places *p) {
    const size_t n = (size_t)g->count + 2;
    *p = (dti_pipe_places){.before = dti_alloc_array(base, n, sizeof *p->before),
                           .cross = dti_alloc_array(base, n, sizeof *p->cross),
                           .tensors = dti_alloc_array(base, n, sizeof *p->tensors),
                           .trained = dti_alloc_array(base, n, sizeof *p->trained),
                           .inside = dti_alloc_array(base, n, 1),
                           .first = dti_alloc_array(base, n, sizeof *p->first),
                           .last = dti_alloc_array(base, n, sizeof *p->last)};
    return p->before && p->cross && p->tensors && p->trained && p->inside && p->first && p->last;
}

static double dti_pipe_elements(const dti_node *n, uint32_t rows) {
    return (double)dti_shape_elements(n->shape) * (n->samples ? rows : 1.0);
}

/* In multiply-adds. */
static double dti_pipe_row_time(const dt_graph *g, const dti_node *n, uint32_t rows) {
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    const bool picks = family->source || family->picks;
    double moved = dti_pipe_elements(n, rows) * (picks ? 2.0 : 1.0);
    if (!n->count || family->view)
        return 0.0;
    for (uint32_t k = 0; k < n->count && !picks; k++)
        moved += dti_pipe_elements(&g->nodes[dti_input_id(g, n, k)], rows);
    const double macs = family->macs ? family->macs(g, n) * (n->samples ? rows : 1.0) : 0.0;
    return DTI_MAX(macs, DTI_PIPE_MOVE * moved);
}

/* By node: whether it depends on a trained parameter. */
static bool dti_pipe_wants(const dt_graph *g, const char *params, const dt_tensor *wants,
                           const dti_node *n) {
    bool all = n->op == DTI_OP_PARAM && dti_param_is_trained(n, params);
    for (uint32_t k = 0; k < n->count && !all; k++)
        all = wants[dti_input_id(g, n, k)].id != 0;
    return all;
}

/* The reverse pass from all losses to all nodes that want a gradient, whatever the cut. */
static dt_result dti_pipe_differentiate(dt_graph *g, const dt_program_desc *d, dt_tensor *wants) {
    dt_tensor y[DT_MAX_TERMS], dy[DT_MAX_TERMS];
    const uint32_t count = g->count;
    uint32_t roots = 0;
    for (uint32_t id = 1; id < count; id++) {
        if (dti_pipe_wants(g, d->params, wants, &g->nodes[id]))
            wants[id] = (dt_tensor){g, id};
    }
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        if (!d->losses[i].term.id)
            continue;
        y[roots] = (dt_tensor){g, d->losses[i].term.id};
        dy[roots] = dti_seed(y[roots], (uint32_t)i);
        roots++;
    }
    for (uint32_t id = 1; id < count; id++) {
        if (dti_is_whole(g->nodes[id].dtype))
            wants[id] = (dt_tensor){0};
    }
    dti_differentiate_all(g, y, dy, roots, wants, count, wants + count);
    if (g->error[0])
        return dti_fail(g->base, g->result, "a pipeline's gradient: %s", g->error);
    return DT_OK;
}

/* For each node, the nodes that give it a gradient, and the time of its own gradients for a
 * micro-batch. It uses a temporary graph. */
static dt_result dti_pipe_gradients(dti_pipe_cut *cut, const dt_graph *g, const dt_program_desc *d,
                                    uint32_t rows, double *time) {
    dt_graph *own = NULL;
    dt_tensor *wants = dti_alloc_array(g->base, 2 * (size_t)g->count, sizeof *wants);
    dti_grad_pass trace = {dti_alloc_array(g->base, g->count, sizeof(uint32_t)), cut->givers};
    dt_result result = wants && trace.ends ? dti_graph_copy(g, g->ctx, &own) : DT_ERROR_MEMORY;
    if (!result) {
        own->trace = &trace;
        result = dti_pipe_differentiate(own, d, wants);
        uint32_t at = g->count;
        for (uint32_t id = g->count; id-- > 1 && time && !result;) {
            for (; at < trace.ends[id]; at++)
                time[id] += dti_pipe_row_time(own, &own->nodes[at], rows);
        }
        dt_graph_destroy(own);
    }
    DTI_FREE(g->base, wants, trace.ends);
    return result;
}

static void dti_pipe_places_readers(const dti_pipe_cut *cut, const dt_graph *g,
                                    const dti_pipe_places *p) {
    for (uint32_t id = 1; id < g->count; id++) {
        const dti_node *n = &g->nodes[id];
        for (uint32_t k = 0; cut->needed[id] && !cut->anywhere[id] && k < n->count; k++) {
            const uint32_t in = dti_input_id(g, n, k);
            p->first[in] = p->first[in] ? p->first[in] : id;
            p->last[in] = id;
        }
    }
}

/* A buffer's chunk moves it: its readers and its update stay together. */
static void dti_pipe_places_buffers(const dt_graph *g, const dti_pipe_places *p) {
    for (uint32_t i = 0; i < g->param_count; i++) {
        const uint32_t id = g->params[i], first = p->first[id];
        const uint32_t update = g->nodes[id].buffer ? (uint32_t)g->nodes[id].attr.i[2] : 0;
        for (uint32_t at = first + 1; first && at <= update; at++)
            p->inside[at] = 1;
    }
}

/* The nodes of one function stay together, and a row with its outputs, which are its views. */
static void dti_pipe_places_inside(const dt_graph *g, uint8_t *inside) {
    for (uint32_t i = 0; i < g->call_count; i++)
        for (uint32_t id = g->calls[i].first + 1; id < g->calls[i].end; id++)
            inside[id] = 1;
    for (uint32_t id = 1; id < g->count; id++) {
        for (uint32_t k = 0;
             k < DTI_OUTPUTS_MAX && dti_op_info_of(g->nodes[id].op)->family->outputs; k++) {
            if (id + 1 + k < g->count && dti_is_output(g, id, k))
                inside[id + 1 + k] = 1;
        }
    }
}

/* A row once more where it is computed again; an update where its parameter is first read. */
static void dti_pipe_places_time(const dti_pipe_cut *cut, const dt_graph *g, const char *params,
                                 uint32_t rows, uint32_t micros, const dti_pipe_places *p) {
    for (uint32_t id = 1; id < g->count; id++) {
        const dti_node *n = &g->nodes[id];
        if (cut->needed[id] && !cut->anywhere[id])
            p->before[id + 1] += dti_pipe_row_time(g, n, rows) * (n->recompute ? 2.0 : 1.0);
        if (n->op != DTI_OP_PARAM || !p->first[id] || !dti_param_is_trained(n, params))
            continue;
        p->trained[p->first[id] + 1]++;
        p->before[p->first[id] + 1] +=
            DTI_PIPE_UPDATE * DTI_PIPE_MOVE * dti_pipe_elements(n, 1) / micros;
    }
}

/* A tensor goes over each place between its node and its last reader; a parameter from its first
 * reader on. */
static void dti_pipe_places_fill(const dti_pipe_cut *cut, const dt_graph *g, uint32_t rows,
                                 const dti_pipe_places *p) {
    for (uint32_t id = 1; id < g->count; id++) {
        const dti_node *n = &g->nodes[id];
        const uint32_t from = n->op == DTI_OP_PARAM ? p->first[id] : id, last = p->last[id];
        const double words = (double)dti_bytes(n->dtype, 1) / 4 * dti_pipe_elements(n, rows);
        const double time = DTI_PIPE_MOVE * (DTI_PIPE_CROSS * words + DTI_PIPE_MESSAGE);
        if (cut->anywhere[id] || last <= from)
            continue;
        p->cross[from + 1] += time;
        p->tensors[from + 1] += 1;
        p->cross[last + 1] -= time;
        p->tensors[last + 1] -= 1;
    }
    for (uint32_t id = 1; id <= g->count; id++) {
        p->before[id] += p->before[id - 1];
        p->cross[id] += p->cross[id - 1];
        p->tensors[id] += p->tensors[id - 1];
        p->trained[id] += p->trained[id - 1];
    }
    dti_pipe_places_inside(g, p->inside);
    dti_pipe_places_buffers(g, p);
}

/* ---- where to cut */

/* Chunks 1 to k that end before place i: their best quality, and where the last of them begins. */
typedef struct dti_pipe_search {
    const dti_pipe_places *p;
    uint32_t *at, count; /* places: the model's begin and end, and between them those of cuts */
    double *best;        /* [chunks + 1][count]; INFINITY = impossible */
    uint32_t *from;      /* likewise */
    double limit; /* of a chunk's time, for the least squares; INFINITY: for the least time */
} dti_pipe_search;

static void dti_pipe_search_chunk(const dti_pipe_search *s, uint32_t k, uint32_t end) {
    const dti_pipe_places *p = s->p;
    const double *before = s->best + (size_t)(k - 1) * s->count;
    double *best = s->best + (size_t)k * s->count + end;
    *best = INFINITY;
    for (uint32_t i = end; i-- > 0;) {
        const double rows = p->before[s->at[end]] - p->before[s->at[i]];
        const double time = rows + p->cross[s->at[i]] + p->cross[s->at[end]];
        const double all = s->limit < INFINITY ? before[i] + time * time : DTI_MAX(before[i], time);
        if (rows > (s->limit < INFINITY ? s->limit : *best))
            break; /* and so are all that begin before it */
        if (p->trained[s->at[i]] == p->trained[s->at[end]] || time > s->limit || all >= *best)
            continue;
        *best = all;
        s->from[(size_t)k * s->count + end] = i;
    }
}

static void dti_pipe_search_run(const dti_pipe_search *s, uint32_t chunks) {
    for (uint32_t i = 0; i < s->count; i++)
        s->best[i] = i ? INFINITY : 0.0;
    for (uint32_t k = 1; k <= chunks; k++) {
        for (uint32_t end = 0; end < s->count; end++)
            dti_pipe_search_chunk(s, k, end);
    }
}

/* The most chunks that can be made: each ends as early as it can. */
static uint32_t dti_pipe_search_most(const dti_pipe_search *s) {
    uint32_t most = 0, end = 0;
    for (uint32_t i = 1; i < s->count; i++) {
        if (s->p->trained[s->at[i]] == s->p->trained[s->at[end]])
            continue;
        most++;
        end = i;
    }
    return most;
}

/* Thins out very many places: keeps the cheapest to cross in each part of the time. Also keeps the
 * earliest ends of all chunks, so that a cut remains. */
static void dti_pipe_search_thin(dti_pipe_search *s, uint32_t chunks) {
    const dti_pipe_places *p = s->p;
    const uint32_t parts = DTI_MAX(DTI_PIPE_PLACES, DTI_PIPE_PLACES_EACH * chunks), all = s->count;
    const double time = DTI_MAX(p->before[s->at[all - 1]], 1.0);
    uint32_t ends = 1, end = s->at[0], part = UINT32_MAX;
    if (all <= parts)
        return;
    s->count = 1;
    for (uint32_t i = 1; i + 1 < all; i++) {
        const uint32_t at = s->at[i], mine = (uint32_t)(p->before[at] / time * parts);
        const bool ends_chunk = ends < chunks && p->trained[at] > p->trained[end];
        if (mine == part && !ends_chunk) {
            if (p->cross[at] < p->cross[s->at[s->count - 1]])
                s->at[s->count - 1] = at;
            continue;
        }
        s->at[s->count++] = at;
        part = ends_chunk ? UINT32_MAX : mine; /* an end stays */
        ends += ends_chunk;
        end = ends_chunk ? at : end;
    }
    s->at[s->count++] = s->at[all - 1];
}

static void dti_pipe_search_places(const dti_pipe_cut *cut, dti_pipe_search *s) {
    const dti_pipe_places *p = s->p;
    for (uint32_t id = 1; id <= cut->nodes; id++) {
        if (id == 1 || id == cut->nodes || (!p->inside[id] && p->tensors[id] <= DT_MAX_OUTPUTS))
            s->at[s->count++] = id;
    }
}

static dt_result dti_pipe_search_cut(dti_base *base, dti_pipe_cut *cut, dti_pipe_search *s) {
    const size_t all = ((size_t)cut->chunks + 1) * s->count;
    s->best = dti_alloc_array(base, all, sizeof *s->best);
    s->from = dti_alloc_array(base, all, sizeof *s->from);
    if (!s->best || !s->from)
        return DT_ERROR_MEMORY;
    dti_pipe_search_run(s, cut->chunks);
    s->limit = s->best[all - 1];
    dti_pipe_search_run(s, cut->chunks);
    for (uint32_t k = cut->chunks, end = s->count - 1; k > 1; k--) {
        end = s->from[(size_t)k * s->count + end];
        cut->starts[k - 1] = s->at[end];
    }
    return DT_OK;
}

static dt_result dti_pipe_cut_auto(dti_base *base, dti_pipe_cut *cut, const dti_pipe_places *p) {
    dti_pipe_search s = {.p = p, .limit = INFINITY};
    dt_result result = DT_ERROR_MEMORY;
    s.at = dti_alloc_array(base, cut->nodes + 1u, sizeof *s.at);
    if (s.at) {
        dti_pipe_search_places(cut, &s);
        const uint32_t most = dti_pipe_search_most(&s);
        dti_pipe_search_thin(&s, cut->chunks);
        result =
            most >= cut->chunks
                ? dti_pipe_search_cut(base, cut, &s)
                : dti_fail(base, DT_ERROR_INVALID,
                           ".parallel.pipeline is %u; the model can be cut into at most %u stages "
                           "(each needs a trained parameter, and at most %d tensors cross a cut)",
                           cut->chunks, DTI_MAX(most, 1u), DT_MAX_OUTPUTS);
    }
    DTI_FREE(base, s.at, s.best, s.from);
    return result;
}
