/* Messages between chunks on two ranks. Each pair of chunks of a pipeline has a group of its two
 * ranks. In it the forward parts' tensors go one way and gradients the other, each in the order of
 * micro-batches. So the schedule orders messages, and none waits for another pair's. Messages are
 * posted ahead. A tensor for a forward part arrives in one of two slots. A gradient arrives in the
 * waiting micro-batch slot. An idle thread services the network, one at a time.
 *
 * It cannot deadlock. Consider the first part in the schedule's order that is not done: all before
 * it are done, on all ranks. So its inputs have been computed, and the earlier messages of its pair
 * have been taken. A slot is free for it, and its micro-batch slot has sent its former outputs.
 *
 * Cost: the bytes of the links, once forward and once back, for each micro-batch. */

/* ---- which links need the network */

static uint32_t dti_pipe_needs(const dti_pipe *pipe, uint32_t link, uint32_t what) {
    return pipe->plan->needs[link * DTI_PIPE_NEEDS + what];
}

static void dti_pipe_needs_own(const dti_pipe *pipe) {
    for (uint32_t i = 0; i < pipe->plan->cut.link_count; i++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[i];
        const dt_program *to = dti_pipe_any(pipe, l->to), *back = dti_pipe_any(pipe, l->back);
        uint32_t *needs = &pipe->plan->needs[i * DTI_PIPE_NEEDS];
        const dti_binding *in =
            to ? dti_code_binding(dti_program_code(to), l->node, false, false) : NULL;
        needs[DTI_PIPE_NEED_FORWARD] = in != NULL;
        needs[DTI_PIPE_NEED_BACK] =
            back && l->gradient && dti_code_binding(dti_program_code(back), l->node, false, true);
        needs[DTI_PIPE_NEED_WEIGH] = in && dti_program_weighs_by(to, in);
    }
}

/* Parameters that tensor ranks split have no weight: a loss takes weights whole. */
static bool dti_pipe_weighs(const dti_parallel *par, uint32_t link) {
    const dti_pipe *pipe = par->pipe;
    const dti_node *n = &pipe->graph->nodes[pipe->plan->cut.links[link].node];
    return dti_pipe_needs(pipe, link, DTI_PIPE_NEED_WEIGH) && n->op == DTI_OP_PARAM &&
           !dti_pipe_is_part(pipe, (uint32_t)n->attr.i[0]);
}

static size_t dti_pipe_weighs_bytes(const dti_parallel *par, uint32_t link) {
    const dti_node *n = &par->pipe->graph->nodes[par->pipe->plan->cut.links[link].node];
    return (size_t)dti_bytes(n->dtype, (uint64_t)dti_shape_elements(n->shape));
}

/* Room for the largest parameter that weighs targets of another chunk. */
static dt_result dti_pipe_weighs_make(dti_parallel *par) {
    size_t most = 0;
    for (uint32_t i = 0; i < par->pipe->plan->cut.link_count; i++) {
        if (dti_pipe_weighs(par, i))
            most = DTI_MAX(most, dti_pipe_weighs_bytes(par, i));
    }
    par->pipe->weighs = dti_alloc(par->base, most + 1);
    return par->pipe->weighs ? DT_OK : DT_ERROR_MEMORY;
}

/* Ranks that compute a chunk know it, and inform the others. */
static dt_result dti_pipe_needs_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const size_t count = (size_t)pipe->plan->cut.link_count * DTI_PIPE_NEEDS;
    pipe->plan->needs = dti_alloc_array(par->base, count + 1, sizeof *pipe->plan->needs);
    DTI_TRY(dti_agree_result(par, pipe->plan->needs ? DT_OK : DT_ERROR_MEMORY));
    dti_pipe_needs_own(pipe);
    return dti_ranks_reduce(par, par->desc.comm, pipe->plan->needs, count, DT_I32, DT_COMM_MAX);
}

static uint32_t dti_pipe_links_of(const dti_pipe *pipe, uint32_t from, uint32_t to, bool gradient,
                                  uint32_t *links) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < pipe->plan->cut.link_count; i++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[i];
        if ((gradient ? l->to : l->from) != from || (gradient ? l->back : l->to) != to ||
            !dti_pipe_needs(pipe, i, gradient ? DTI_PIPE_NEED_BACK : DTI_PIPE_NEED_FORWARD))
            continue;
        if (links)
            links[count] = i;
        count++;
    }
    return count;
}

/* ---- making them */

static const dti_binding *dti_pipe_binding(const dti_pipe_run *run, const dti_pipe_link *l,
                                           bool sends, bool gradient) {
    return dti_code_binding(dti_program_code(run->program), l->node, sends, gradient);
}

/* Where a forward part's tensors lie in a slot: by the largest micro-batch. */
static void dti_pipe_flow_lay(const dti_pipe *pipe, dti_pipe_flow *f) {
    const dti_pipeline *pipeline = &pipe->pipelines[f->pipeline];
    const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, f->pipeline, f->here);
    for (uint32_t k = 0; k < f->link_count; k++) {
        uint64_t most = 0;
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t shape = dti_pipe_shape(pipe, i);
            for (uint32_t m = 0; m < pipeline->runs[shape].count; m++)
                most = DTI_MAX(most,
                               dti_pipe_binding(&chunk->runs[shape][m],
                                                &pipe->plan->cut.links[f->links[k]], false, false)
                                   ->bytes);
        }
        f->at[k] = f->slot_bytes;
        f->slot_bytes += (most + 63) / 64 * 64;
    }
}

static dt_result dti_pipe_flow_make(dti_parallel *par, dti_pipe_flow *f, bool sends, bool gradient,
                                    uint32_t from, uint32_t to) {
    dti_pipe *pipe = par->pipe;
    f->sends = sends;
    f->gradient = gradient;
    f->here = (uint16_t)(sends ? from : to);
    f->there = (uint16_t)(sends ? to : from);
    f->link_count = dti_pipe_links_of(pipe, from, to, gradient, NULL);
    f->links = dti_alloc_array(par->base, f->link_count + 1u, sizeof *f->links);
    f->at = dti_alloc_array(par->base, f->link_count + 1u, sizeof *f->at);
    dt_comm_work *works = f->works[0].at =
        dti_alloc_array(par->base, (size_t)DTI_PIPE_WINDOW * f->link_count, sizeof *works);
    if (!f->links || !f->at || !works)
        return DT_ERROR_MEMORY;
    for (uint32_t i = 0; i < DTI_PIPE_WINDOW; i++)
        f->works[i] = (dti_works){.at = works + i * f->link_count, .room = f->link_count};
    dti_pipe_links_of(pipe, from, to, gradient, f->links);
    if (!sends && !gradient) {
        dti_pipe_flow_lay(pipe, f);
        f->slots = dti_alloc_array(par->base, DTI_PIPE_WINDOW, (size_t)f->slot_bytes + 1);
    }
    return f->slots || sends || gradient ? DT_OK : DT_ERROR_MEMORY;
}

typedef struct dti_pipe_pair { /* chunks of a pipeline of the job on two ranks */
    uint32_t pipeline, low, high;
    uint32_t ranks[2]; /* of low and high */
} dti_pipe_pair;

/* The next one in an order that all ranks go through. */
static bool dti_pipe_pair_next(const dti_parallel *par, dti_pipe_pair *p) {
    const dti_pipe *pipe = par->pipe;
    for (;;) {
        p->high++;
        if (p->high >= pipe->chunk_count) {
            p->low++;
            p->high = p->low + 1;
        }
        if (p->low + 1 >= pipe->chunk_count) {
            p->pipeline++;
            p->low = 0;
            p->high = 1;
        }
        if (p->pipeline >= pipe->mesh->data * pipe->mesh->tensor)
            return false;
        p->ranks[0] = dti_pipe_rank(par, p->pipeline, p->low);
        p->ranks[1] = dti_pipe_rank(par, p->pipeline, p->high);
        if (p->ranks[0] != p->ranks[1] && (dti_pipe_links_of(pipe, p->low, p->high, false, NULL) ||
                                           dti_pipe_links_of(pipe, p->high, p->low, true, NULL)))
            return true;
    }
}

static bool dti_pipe_pair_is_own(const dti_parallel *par, const dti_pipe_pair *p) {
    return p->ranks[0] == par->mesh.rank || p->ranks[1] == par->mesh.rank;
}

/* Both ways; a way without links has no flow. */
static dt_result dti_pipe_pair_flows(dti_parallel *par, const dti_pipe_pair *p) {
    dti_pipe *pipe = par->pipe;
    for (int gradient = 0; gradient < 2; gradient++) {
        const uint32_t from = gradient ? p->high : p->low, to = gradient ? p->low : p->high;
        const bool sends = (p->ranks[0] == par->mesh.rank) != gradient;
        if (!dti_pipe_links_of(pipe, from, to, gradient, NULL))
            continue;
        dti_pipe_flow *f = &pipe->plan->flows[pipe->plan->flow_count++];
        f->pipeline = dti_pipeline_of(pipe, p->pipeline);
        DTI_TRY(dti_pipe_flow_make(par, f, sends, gradient, from, to));
    }
    return DT_OK;
}

static dt_result dti_pipe_flows_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    uint32_t pairs = 0, works = 0;
    for (dti_pipe_pair p = {0}; dti_pipe_pair_next(par, &p);)
        pairs += dti_pipe_pair_is_own(par, &p);
    pipe->plan->flows =
        dti_alloc_array(par->base, (size_t)2 * pairs + 1, sizeof *pipe->plan->flows);
    dt_result result = pipe->plan->flows ? DT_OK : DT_ERROR_MEMORY;
    for (dti_pipe_pair p = {0}; !result && dti_pipe_pair_next(par, &p);) {
        if (dti_pipe_pair_is_own(par, &p))
            result = dti_pipe_pair_flows(par, &p);
    }
    for (uint32_t i = 0; i < pipe->plan->flow_count; i++)
        works += pipe->plan->flows[i].link_count * DTI_PIPE_WINDOW;
    if (!result && works > DTI_PIPE_WORKS_MAX)
        return dti_fail(par->base, DT_ERROR_UNSUPPORTED,
                        "the pipeline has %u tensors in flight to and from this rank; at most %d "
                        "are possible: cut where fewer cross",
                        works, DTI_PIPE_WORKS_MAX);
    return result;
}

/* The next flow of a pair in a plan, after one or from the first on; NULL: no more. */
static dti_pipe_flow *dti_pipe_pair_flow(const dti_pipe *pipe, const dti_pipe_plan *plan,
                                         const dti_pipe_pair *p, const dti_pipe_flow *last) {
    for (uint32_t i = last ? (uint32_t)(last - plan->flows) + 1 : 0; i < plan->flow_count; i++) {
        dti_pipe_flow *f = &plan->flows[i];
        if (f->pipeline == dti_pipeline_of(pipe, p->pipeline) &&
            DTI_MIN(f->here, f->there) == p->low && DTI_MAX(f->here, f->there) == p->high)
            return f;
    }
    return NULL;
}

/* Whether the plan of steps has a group for the pair. Alike on all ranks. */
static bool dti_pipe_pair_trains(dti_pipe *pipe, const dti_pipe_pair *p) {
    dti_pipe_plan *plan = pipe->plan;
    pipe->plan = &pipe->plans[DTI_PIPE_TRAIN];
    const bool trains =
        plan != pipe->plan && (dti_pipe_links_of(pipe, p->low, p->high, false, NULL) ||
                               dti_pipe_links_of(pipe, p->high, p->low, true, NULL));
    pipe->plan = plan;
    return trains;
}

/* A group for each pair, on all ranks; those that are in it keep it. */
static dt_result dti_pipe_groups_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dti_pipe_plan *steps = &pipe->plans[DTI_PIPE_TRAIN];
    dt_result result = DT_OK;
    for (dti_pipe_pair p = {0}; !result && dti_pipe_pair_next(par, &p);) {
        const uint32_t low = dti_pipe_position(pipe->mesh, p.pipeline, p.low),
                       high = dti_pipe_position(pipe->mesh, p.pipeline, p.high);
        const bool shares = dti_pipe_pair_trains(pipe, &p);
        const dti_pipe_flow *of = shares ? dti_pipe_pair_flow(pipe, steps, &p, NULL) : NULL;
        dt_comm *group = of ? of->comm : NULL;
        if (!shares)
            result = dti_mesh_line_group(par, dti_mesh_pair(low, high), &group);
        for (dti_pipe_flow *f = NULL;
             group && (f = dti_pipe_pair_flow(pipe, pipe->plan, &p, f)) != NULL;) {
            f->comm = group;
            f->shares_comm = shares;
            f->peer = 1 - dt_comm_rank(group);
        }
    }
    return result;
}

static dt_result dti_pipe_wires_make(dti_parallel *par) {
    dt_result result = dti_pipe_needs_make(par);
    if (!result && !par->pipe->plan->forward)
        result = dti_agree_result(par, dti_pipe_weighs_make(par));
    if (result || !par->desc.comm)
        return result;
    result = dti_agree_result(par, dti_pipe_flows_make(par));
    return result ? result : dti_pipe_groups_make(par);
}

static void dti_pipe_wires_free(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    for (uint32_t i = pipe->plan->flow_count; i-- > 0;) {
        dti_pipe_flow *f = &pipe->plan->flows[i];
        if (!f->shares_comm && (!i || f[-1].comm != f->comm)) /* both ways have one */
            dt_comm_destroy(f->comm);
        DTI_FREE(par->base, f->links, f->at, f->slots, f->works[0].at);
    }
    pipe->plan->flow_count = 0;
    DTI_FREE(par->base, pipe->plan->flows, pipe->plan->needs);
}

/* ---- one thread at a time */

static bool dti_pipe_comm_trylock(dti_pipe *pipe) {
    return !atomic_exchange(&pipe->comm_locked, true);
}

static void dti_pipe_comm_lock(dti_pipe *pipe) {
    while (!dti_pipe_comm_trylock(pipe))
        dti_thread_yield();
}

static void dti_pipe_comm_unlock(dti_pipe *pipe) {
    atomic_store(&pipe->comm_locked, false);
}

/* ---- messages */

static uint32_t dti_pipe_messages(const dti_pipe *pipe) {
    uint32_t count = pipe->tp_count;
    for (uint32_t i = 0; i < pipe->plan->flow_count; i++)
        count += pipe->plan->flows[i].link_count * DTI_PIPE_WINDOW;
    return count;
}

static void dti_pipe_wires_begin(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    pipe->said = DT_OK;
    for (uint32_t i = 0; i < pipe->plan->flow_count; i++)
        pipe->plan->flows[i].posted = 0;
}

static uint32_t dti_pipe_flow_micros(const dti_parallel *par, const dti_pipe_flow *f) {
    return par->pipe->pipelines[f->pipeline].runs[par->pipe->shape].count;
}

/* Whether the next micro-batch's message may be posted: an outgoing tensor has been computed, an
 * incoming one has a place. */
static bool dti_pipe_flow_may(const dti_parallel *par, const dti_pipe_flow *f) {
    const dti_pipe_chunk *chunk = dti_pipe_chunk_of(par->pipe, f->pipeline, f->here);
    const uint32_t at = dti_pipe_counter(par->pipe, chunk, false);
    const uint32_t forward = atomic_load(&par->counters[at]),
                   backward = atomic_load(&par->counters[at + 1]);
    if (f->posted >= dti_pipe_flow_micros(par, f) ||
        f->posted >= atomic_load(f->done) + DTI_PIPE_WINDOW)
        return false;
    if (f->sends)
        return f->posted < (f->gradient ? backward : forward);
    return f->posted < (f->gradient ? forward : forward + DTI_PIPE_WINDOW);
}

static char *dti_pipe_flow_slot(const dti_pipe_flow *f, uint32_t micro) {
    return f->slots + (micro % DTI_PIPE_WINDOW) * f->slot_bytes;
}

static dti_works *dti_pipe_flow_works(dti_pipe_flow *f, uint32_t micro) {
    return &f->works[micro % DTI_PIPE_WINDOW];
}

static dt_result dti_pipe_flow_post(dti_parallel *par, dti_pipe_flow *f) {
    const dti_pipe *pipe = par->pipe;
    const uint32_t micro = f->posted;
    dti_works *works = dti_pipe_flow_works(f, micro);
    const dti_pipe_run *run =
        dti_pipe_run_of(par, dti_pipe_chunk_of(pipe, f->pipeline, f->here), micro);
    works->count = works->ended = 0;
    for (uint32_t k = 0; k < f->link_count; k++) {
        const dti_binding *binding =
            dti_pipe_binding(run, &pipe->plan->cut.links[f->links[k]], f->sends, f->gradient);
        char *host = f->slots ? dti_pipe_flow_slot(f, micro) + f->at[k]
                              : dti_micro_slot_host(run->program, run->micro_slot, binding);
        const dt_comm_op op = {.kind = f->sends ? DT_COMM_SEND : DT_COMM_RECV,
                               .in = f->sends ? host : NULL,
                               .out = f->sends ? NULL : host,
                               .count = binding->bytes,
                               .dtype = DT_U8,
                               .root = f->peer};
        DTI_TRY(dti_works_post(f->comm, works, &op));
    }
    f->posted++;
    return DT_OK;
}

/* Those that are over, in their order. */
static dt_result dti_pipe_flow_look(dti_pipe_flow *f) {
    dt_result result = DT_OK;
    bool ended = true;
    for (uint32_t micro = atomic_load(f->done); micro < f->posted && ended; micro++) {
        result = dti_works_end(f->comm, dti_pipe_flow_works(f, micro), false, &ended);
        if (ended)
            atomic_store(f->done, micro + 1);
    }
    return result;
}

/* Sleeps until a message that the action needs was sent or received, or a moment has passed. */
static dt_result dti_pipe_message_await(dti_parallel *par, const dti_list *list,
                                        const dti_action *a) {
    dti_pipe *pipe = par->pipe;
    for (uint32_t i = a->need; i < a->need + a->need_count; i++) {
        const dti_need *need = &list->needs[i];
        const uint32_t number = need->counter - dti_pipe_flow_counter(pipe, pipe->plan->flows);
        if (number >= pipe->plan->flow_count) /* another kind of counter */
            continue;
        dti_pipe_flow *f = &pipe->plan->flows[number];
        const uint32_t micro = atomic_load(f->done);
        dti_works *works = dti_pipe_flow_works(f, micro);
        if (micro >= need->value || micro >= f->posted || works->ended == works->count)
            continue;
        const dt_result result = dt_comm_wait(f->comm, works->at[works->ended], DTI_PIPE_WAIT_MS);
        if (result == DT_ERROR_TIMEOUT)
            return DT_OK;
        works->ended++;
        return result;
    }
    return DT_OK;
}

static void dti_pipe_speak(dti_parallel *par, uint32_t device, const dti_action *wait) {
    dti_pipe *pipe = par->pipe;
    if (!pipe->plan->forward)
        dti_pipe_sums_help(par);
    const bool units = par->desc.comm && dti_pipe_has_units(par);
    if (!(pipe->plan->flow_count || units) || !dti_pipe_comm_trylock(pipe))
        return;
    dt_result result = pipe->said;
    if (units && !result)
        result = dti_pipe_units_speak(par, wait);
    bool moved = false;
    for (uint32_t i = 0; i < pipe->plan->flow_count && !result; i++) {
        dti_pipe_flow *f = &pipe->plan->flows[i];
        const uint32_t done = atomic_load(f->done);
        result = dti_pipe_flow_look(f);
        moved = moved || atomic_load(f->done) != done;
        for (; !result && dti_pipe_flow_may(par, f); moved = true)
            result = dti_pipe_flow_post(par, f);
    }
    if (!result && wait && !moved && pipe->device_count == 1)
        result = dti_pipe_message_await(par, pipe->devices[device].walk.list, wait);
    pipe->said = result;
    if (result)
        atomic_store(&pipe->failed, true);
    dti_pipe_comm_unlock(pipe);
}

static dt_result dti_pipe_wires_end(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    bool all = false;
    while (!all && !atomic_load(&pipe->failed)) {
        all = true;
        dti_pipe_speak(par, 0, NULL);
        for (uint32_t i = 0; i < pipe->plan->flow_count; i++)
            all = all && atomic_load(pipe->plan->flows[i].done) ==
                             dti_pipe_flow_micros(par, &pipe->plan->flows[i]);
        if (!all)
            dti_thread_yield();
    }
    return pipe->said;
}

/* ---- the inputs of a forward part */

static void dti_pipe_unpack(const dti_parallel *par, uint32_t pipeline, uint32_t link,
                            uint32_t micro) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_link *l = &pipe->plan->cut.links[link];
    const dti_pipe_flow *f = dti_pipe_flow_to(pipe, pipeline, l, false);
    const dti_pipe_run *run = dti_pipe_run_of(par, dti_pipe_chunk_of(pipe, pipeline, l->to), micro);
    const dti_binding *in = dti_pipe_binding(run, l, false, false);
    for (uint32_t k = 0; f && in && k < f->link_count; k++) {
        if (f->links[k] == link)
            memcpy(dti_micro_slot_host(run->program, run->micro_slot, in),
                   dti_pipe_flow_slot(f, micro) + f->at[k], (size_t)in->bytes);
    }
}

/* ---- weights that another chunk has */

/* To all micro-batches of a chunk that weigh by it. */
static void dti_pipe_weigh_put(const dti_parallel *par, const dti_pipe_chunk *chunk, uint32_t node,
                               const void *piece, size_t bytes) {
    for (uint32_t m = 0; m < dti_pipe_runs_now(par, chunk)->count; m++) {
        const dti_pipe_run *run = dti_pipe_run_of(par, chunk, m);
        const dti_binding *in =
            dti_code_binding(dti_program_code(run->program), node, false, false);
        memcpy(dti_micro_slot_host(run->program, run->micro_slot, in), piece, bytes);
    }
}

/* From the rank that has the values; between ranks all get them. */
static dt_result dti_pipe_weigh_by(dti_parallel *par, uint32_t link) {
    dti_pipe *pipe = par->pipe;
    const dti_pipe_link *l = &pipe->plan->cut.links[link];
    const size_t bytes = dti_pipe_weighs_bytes(par, link);
    dti_values_move m;
    dt_result result = dti_values_open(par, &m, NULL);
    m.param = (uint32_t)pipe->graph->nodes[l->node].attr.i[0];
    m.array = 0;
    if (!result)
        dti_values_collect(&m, 0, (dti_bucket){0, bytes / sizeof(float)}, pipe->weighs);
    result = result ? result : m.result;
    for (uint32_t i = 0; i < pipe->pipeline_count && !result; i++) {
        const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, i, l->to);
        if (chunk->store)
            dti_pipe_weigh_put(par, chunk, l->node, pipe->weighs, bytes);
    }
    return result;
}

static dt_result dti_pipe_weigh_by_all(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < pipe->plan->cut.link_count && !par->lost; i++) {
        const dt_result one = dti_pipe_weighs(par, i) ? dti_pipe_weigh_by(par, i) : DT_OK;
        result = result ? result : one;
    }
    return result;
}

/* ---- giving up */

static void dti_pipe_leave(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dti_parallel_leave(par);
    dti_pipe_units_leave(pipe);
    for (uint32_t i = 0; i < pipe->plan->flow_count; i++) {
        for (uint32_t k = 0; k < DTI_PIPE_WINDOW; k++)
            dti_works_cancel(pipe->plan->flows[i].comm, &pipe->plan->flows[i].works[k]);
    }
}
