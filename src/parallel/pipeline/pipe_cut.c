/* Cuts a graph. A node is computed by the chunk in whose range it was made. Inputs, views of them,
 * and what depends on neither samples nor parameters are computed wherever they are needed. A
 * parameter lies in the first chunk that reads it; a later one that reads it too receives it like a
 * tensor, and sends back its share of the gradient. No cut goes through what one API function made
 * (dti_call): batch norm and its running statistics stay together.
 *
 * Without marks the slowest chunk is as fast as can be, and then the others are as even as they can
 * be. What a node takes is added up from its row and from those of its gradient: each takes its
 * multiply-adds, or the elements that it moves, whichever are more. All ranks find the same cut:
 * nothing is measured. */

#define DTI_PIPE_MOVE 8.0   /* multiply-adds in the time in which an element is moved */
#define DTI_PIPE_UPDATE 6.0 /* elements moved to update one */
/* On each side of a cut, forward and back: elements moved for 4 bytes that go over it, and in the
 * time that a message takes, however short. */
#define DTI_PIPE_CROSS 8.0
#define DTI_PIPE_MESSAGE 1024.0
/* Places that are tried, and of each chunk: the search takes their square. */
#define DTI_PIPE_PLACES 2048
#define DTI_PIPE_PLACES_EACH 32

/* ---- what is needed, and where it may be computed */

static void dti_pipe_need(dti_pipe_cut *cut, const dt_graph *g, const dt_program_desc *d) {
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        cut->needed[d->losses[i].term.id] = 1; /* nil is 0 */
        cut->needed[d->metrics[i].id] = 1;
    }
    cut->needed[0] = 0;
    dti_need_inputs(g, NULL, cut->needed);
    for (uint32_t i = 0; i < g->param_count; i++) {
        const dti_node *n = &g->nodes[g->params[i]];
        const uint32_t update = n->buffer ? (uint32_t)n->attr.i[2] : 0;
        if (update && cut->needed[dti_input_id(g, &g->nodes[update], 1)])
            cut->needed[update] = 1;
    }
    dti_need_inputs(g, NULL, cut->needed);
}

static bool dti_pipe_is_anywhere(const dti_pipe_cut *cut, const dt_graph *g, const dti_node *n) {
    bool all = !n->term && n->op != DTI_OP_PARAM;
    const bool view = n->count && dti_op_info_of(n->op)->family->view;
    for (uint32_t k = 0; k < n->count; k++)
        all = all && cut->anywhere[dti_input_id(g, n, k)];
    return all && (n->op == DTI_OP_INPUT || view || !n->samples);
}

/* ---- time, and what crosses each place */

typedef struct dti_pipe_places { /* by node: of a cut before it */
    double *before;              /* time of what lies before it; first of the node */
    double *cross;               /* time of what goes over, on each side; first as differences */
    int32_t *tensors;            /* likewise */
    uint32_t *trained;           /* parameters to train that are read before it */
    uint8_t *inside;             /* of what one function made */
    uint32_t *first, *last;      /* by node: who reads it */
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

/* By node: whether a parameter to train is in what it is made of. */
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

/* Who gives each node a gradient, and the time of a micro-batch of each node's own gradients, in a
 * graph that is thrown away. */
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

/* What one function made stays together, and a row with its outputs, which are its views. */
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

/* Chunks 1 to k that end before place i: how good they are at best, and where the last one of
 * them begins. */
typedef struct dti_pipe_search {
    const dti_pipe_places *p;
    uint32_t *at, count; /* places: the model's begin and end, and between them those of cuts */
    double *best;        /* [chunks + 1][count]; INFINITY: there are none */
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

/* Of very many places: in each part of the time the one that costs least to cross, and the earliest
 * ends of all chunks, so that a cut remains. */
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
        result = most >= cut->chunks
                     ? dti_pipe_search_cut(base, cut, &s)
                     : dti_fail(base, DT_ERROR_INVALID,
                                ".parallel.pipeline: %u stages, but the model can be cut into %u "
                                "at most, each with a trained parameter and at most %d tensors "
                                "over a cut; use fewer",
                                cut->chunks, DTI_MAX(most, 1u), DT_MAX_OUTPUTS);
    }
    DTI_FREE(base, s.at, s.best, s.from);
    return result;
}

/* Behind the function that made the marked tensor. */
static uint32_t dti_pipe_behind(const dti_pipe_places *p, uint32_t id) {
    do
        id++;
    while (p->inside[id]);
    return id;
}

static dt_result dti_pipe_cut_marked(dti_base *base, const dt_graph *g, dti_pipe_cut *cut,
                                     const dti_pipe_places *p) {
    uint32_t now = 0;
    for (uint32_t id = 1; id < cut->nodes; id++) {
        const uint32_t stage = g->nodes[id].stage;
        if (!stage || stage == now)
            continue;
        if (stage >= cut->chunks)
            return dti_fail(base, DT_ERROR_INVALID,
                            "dt_stage marks stage %u, but the pipeline has %u (0 to %u)", stage,
                            cut->chunks, cut->chunks - 1);
        if (stage != now + 1)
            return dti_fail(base, DT_ERROR_INVALID,
                            "dt_stage marks stage %u after stage %u; mark each once, in order",
                            stage, now);
        cut->starts[++now] = dti_pipe_behind(p, id);
    }
    if (now + 1 == cut->chunks)
        return DT_OK;
    return dti_fail(base, DT_ERROR_INVALID,
                    "dt_stage marks %u stages, with stage 0, but the pipeline has %u", now + 1,
                    cut->chunks);
}

/* ---- homes and links */

static uint16_t dti_pipe_range(const dti_pipe_cut *cut, uint32_t id) {
    uint16_t chunk = 0;
    while (chunk + 1u < cut->chunks && id >= cut->starts[chunk + 1u])
        chunk++;
    return chunk;
}

static void dti_pipe_homes(dti_pipe_cut *cut, const dt_graph *g) {
    for (uint32_t id = 0; id < cut->nodes; id++)
        cut->home[id] = DTI_PIPE_NOWHERE;
    for (uint32_t id = 1; id < cut->nodes; id++) {
        const dti_node *n = &g->nodes[id];
        if (!cut->needed[id] || cut->anywhere[id] || n->op == DTI_OP_PARAM)
            continue;
        cut->home[id] = dti_pipe_range(cut, id);
        for (uint32_t k = 0; k < n->count; k++) {
            const uint32_t in = dti_input_id(g, n, k);
            if (g->nodes[in].op == DTI_OP_PARAM)
                cut->home[in] = DTI_MIN(cut->home[in], cut->home[id]);
        }
    }
}

static bool dti_pipe_has_link(const dti_pipe_cut *cut, uint32_t node, uint16_t to) {
    for (uint32_t i = cut->link_count; i-- > 0 && cut->links[i].to == to;) {
        if (cut->links[i].node == node)
            return true;
    }
    return false;
}

/* The gradient goes to the chunk before that needs the node too, or home. */
static uint16_t dti_pipe_back(const dti_pipe_cut *cut, uint32_t node) {
    for (uint32_t i = cut->link_count; i-- > 0;) {
        if (cut->links[i].node == node)
            return cut->links[i].to;
    }
    return cut->home[node];
}

static dt_result dti_pipe_link_add(dti_base *base, dti_pipe_cut *cut, size_t *capacity,
                                   uint32_t node, uint16_t to) {
    if (dti_pipe_has_link(cut, node, to))
        return DT_OK;
    void *links = cut->links;
    const bool room =
        dti_array_reserve(base, &links, capacity, cut->link_count + 1u, sizeof *cut->links);
    cut->links = links;
    if (!room)
        return DT_ERROR_MEMORY;
    cut->links[cut->link_count] = (dti_pipe_link){.node = node,
                                                  .from = cut->home[node],
                                                  .to = to,
                                                  .back = dti_pipe_back(cut, node),
                                                  .gradient = cut->givers[node] >= cut->starts[to]};
    cut->link_count++;
    return DT_OK;
}

static dt_result dti_pipe_links(dti_base *base, dti_pipe_cut *cut, const dt_graph *g) {
    size_t capacity = 0;
    for (uint32_t id = 1; id < cut->nodes; id++) { /* so `to` ascends */
        const dti_node *n = &g->nodes[id];
        const uint16_t to = cut->home[id];
        for (uint32_t k = 0; k < n->count && n->op != DTI_OP_PARAM; k++) {
            const uint32_t in = dti_input_id(g, n, k);
            if (to != DTI_PIPE_NOWHERE && cut->home[in] != DTI_PIPE_NOWHERE && cut->home[in] != to)
                DTI_TRY(dti_pipe_link_add(base, cut, &capacity, in, to));
        }
    }
    return DT_OK;
}

/* ---- what is wrong with a cut */

static uint32_t dti_pipe_outputs(const dti_pipe_cut *cut, uint32_t chunk, uint32_t *nodes) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < cut->link_count; i++) {
        const dti_pipe_link *l = &cut->links[i];
        uint32_t same = 0;
        while (same < i && (cut->links[same].from != chunk || cut->links[same].node != l->node))
            same++;
        if (l->from == chunk && same == i && count++ < DT_MAX_OUTPUTS && nodes)
            nodes[count - 1] = l->node;
    }
    return count;
}

static dt_result dti_pipe_cut_check(dti_base *base, const dti_pipe_cut *cut, const dt_graph *g,
                                    const char *params) {
    for (uint32_t c = 0; c < cut->chunks; c++) {
        uint32_t in = 0, back = 0, trained = 0;
        for (uint32_t i = 0; i < cut->link_count; i++) {
            in += cut->links[i].to == c;
            back += cut->links[i].back == c;
        }
        for (uint32_t i = 0; i < g->param_count; i++)
            trained += cut->home[g->params[i]] == c &&
                       dti_param_is_trained(&g->nodes[g->params[i]], params);
        if (!trained)
            return dti_fail(base, DT_ERROR_INVALID,
                            "stage %u of the pipeline has no parameter to train; use fewer stages, "
                            "or other cuts (dt_stage)",
                            c);
        if (in > DT_MAX_OUTPUTS || DTI_MAX(back, dti_pipe_outputs(cut, c, NULL)) > DT_MAX_OUTPUTS)
            return dti_fail(base, DT_ERROR_UNSUPPORTED,
                            "stage %u of the pipeline receives %u tensors and sends %u; at most %d "
                            "each: cut where fewer cross",
                            c, in, DTI_MAX(back, dti_pipe_outputs(cut, c, NULL)), DT_MAX_OUTPUTS);
    }
    return DT_OK;
}

static dt_result dti_pipe_cut_places(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                     uint32_t rows, uint32_t micros, dti_pipe_cut *cut) {
    dti_pipe_places p;
    bool marked = false;
    dt_result result = dti_pipe_places_open(base, g, &p) ? DT_OK : DT_ERROR_MEMORY;
    for (uint32_t id = 1; id < g->count; id++)
        marked = marked || (cut->chunks > 1 && g->nodes[id].stage);
    cut->starts[0] = 1;
    cut->starts[cut->chunks] = cut->nodes;
    if (!result)
        result = dti_pipe_gradients(cut, g, desc, rows, p.before + 1);
    if (!result) {
        dti_pipe_places_readers(cut, g, &p);
        dti_pipe_places_time(cut, g, desc->params, rows, micros, &p);
        dti_pipe_places_fill(cut, g, rows, &p);
        result = marked ? dti_pipe_cut_marked(base, g, cut, &p) : dti_pipe_cut_auto(base, cut, &p);
    }
    for (uint32_t c = 0; c < cut->chunks && !result; c++)
        cut->work[c] = (p.before[cut->starts[c + 1]] - p.before[cut->starts[c]]) /
                       DTI_MAX(p.before[cut->nodes], 1.0);
    DTI_FREE(base, p.before, p.cross, p.tensors, p.trained, p.inside, p.first, p.last);
    return result;
}

static dt_result dti_pipe_cut_open(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   uint32_t chunks, dti_pipe_cut *cut) {
    *cut = (dti_pipe_cut){.chunks = chunks, .nodes = g->count};
    cut->home = dti_alloc_array(base, g->count, sizeof *cut->home);
    cut->needed = dti_alloc_array(base, g->count, 1);
    cut->anywhere = dti_alloc_array(base, g->count, 1);
    cut->givers = dti_alloc_array(base, g->count, sizeof *cut->givers);
    cut->low = dti_alloc_array(base, g->count, 1);
    if (!cut->home || !cut->needed || !cut->anywhere || !cut->givers || !cut->low)
        return DT_ERROR_MEMORY;
    if (desc->precision)
        DTI_TRY(dti_cast_find_low(g, cut->low));
    dti_pipe_need(cut, g, desc);
    for (uint32_t id = 1; id < g->count; id++)
        cut->anywhere[id] = dti_pipe_is_anywhere(cut, g, &g->nodes[id]);
    return DT_OK;
}

static dt_result dti_pipe_cut_link(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   dti_pipe_cut *cut) {
    dti_pipe_homes(cut, g);
    const dt_result result = dti_pipe_links(base, cut, g);
    dti_free(base, cut->givers);
    cut->givers = NULL;
    return result ? result : dti_pipe_cut_check(base, cut, g, desc->params);
}

static dt_result dti_pipe_cut_make(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   uint32_t chunks, uint32_t rows, uint32_t micros,
                                   dti_pipe_cut *cut) {
    DTI_TRY(dti_pipe_cut_open(base, g, desc, chunks, cut));
    DTI_TRY(dti_pipe_cut_places(base, g, desc, rows, micros, cut));
    return dti_pipe_cut_link(base, g, desc, cut);
}

static dt_result dti_pipe_cut_like(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   const dti_pipe_cut *like, const uint32_t *begin,
                                   dti_pipe_cut *cut) {
    DTI_TRY(dti_pipe_cut_open(base, g, desc, like->chunks, cut));
    for (uint32_t c = 0; c <= like->chunks; c++)
        cut->starts[c] = begin[like->starts[c]];
    memcpy(cut->work, like->work, sizeof cut->work);
    DTI_TRY(dti_pipe_gradients(cut, g, desc, 1, NULL));
    return dti_pipe_cut_link(base, g, desc, cut);
}

static void dti_pipe_cut_free(dti_base *base, dti_pipe_cut *cut) {
    DTI_FREE(base, cut->home, cut->needed, cut->anywhere, cut->low, cut->givers, cut->links);
    *cut = (dti_pipe_cut){0};
}

/* ---- a chunk by itself */

/* An input that another stage writes: attr.i[2] tells it from the application's. */
static void dti_pipe_as_input(dti_node *n, bool low) {
    n->op = DTI_OP_INPUT;
    n->low = low;
    n->count = 0;
    n->frozen = n->buffer = n->recompute = false;
    n->values = NULL;
    n->attr = (dti_attr){.i = {0, 0, 1}};
}

static dt_result dti_pipe_cut_graph(const dti_pipe_cut *cut, const dt_graph *g, uint32_t chunk,
                                    dt_ctx *ctx, dt_graph **out) {
    DTI_TRY(dti_graph_copy(g, ctx, out));
    dt_graph *own = *out;
    own->call_count = 0; /* other shapes are asked of no stage */
    own->param_count = 0;
    for (uint32_t i = 0; i < g->param_count; i++) {
        if (cut->home[g->params[i]] != chunk)
            continue;
        own->nodes[g->params[i]].attr.i[0] = (int32_t)own->param_count;
        own->params[own->param_count++] = g->params[i];
    }
    for (uint32_t i = 0; i < cut->link_count; i++) {
        if (cut->links[i].to == chunk)
            dti_pipe_as_input(&own->nodes[cut->links[i].node], cut->low[cut->links[i].node]);
    }
    return DT_OK;
}

static void dti_pipe_cut_desc(const dti_pipe_cut *cut, uint32_t chunk, dt_graph *g,
                              dt_program_desc *d, dti_staged *staged, uint8_t *losses,
                              uint8_t *metrics) {
    const dt_program_desc all = *d;
    uint32_t n = 0, outputs[DT_MAX_OUTPUTS];
    d->loss = (dt_tensor){0};
    memset(d->losses, 0, sizeof d->losses);
    memset(d->metrics, 0, sizeof d->metrics);
    for (uint8_t i = 0; i < DT_MAX_TERMS; i++) {
        const dt_loss *l = &all.losses[i];
        if (!l->term.id || cut->home[l->term.id] != chunk)
            continue;
        losses[n] = i;
        d->losses[n++] = (dt_loss){{g, l->term.id}, l->coefficient};
    }
    n = 0;
    for (uint8_t i = 0; i < DT_MAX_TERMS; i++) {
        if (!all.metrics[i].id || cut->home[all.metrics[i].id] != chunk)
            continue;
        metrics[n] = i;
        d->metrics[n++] = (dt_tensor){g, all.metrics[i].id};
    }
    n = dti_pipe_outputs(cut, chunk, outputs);
    for (uint32_t i = 0; i < n; i++)
        d->outputs[i] = (dt_tensor){g, outputs[i]};
    n = 0;
    uint32_t in = 0;
    for (uint32_t i = 0; i < cut->link_count; i++) {
        const dti_pipe_link *l = &cut->links[i];
        if (l->gradient && l->back == chunk)
            d->host_gradients[n++] = (dt_tensor){g, l->node};
        if (l->gradient && l->to == chunk)
            staged->inputs[in++] = (dt_tensor){g, l->node};
    }
}
