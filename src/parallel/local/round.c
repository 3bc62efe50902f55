/* The end of a round of local steps (DiLoCo), as a plan of the commit protocol. It costs one
 * all-reduce of the parameters' bytes in the tree over replicas, and one small message of doubles:
 *
 *   RUN       each replica: its values at the round's start minus those of now. Buckets of these
 *             differences are summed like gradients (step/reducer.c), first over replicas of this
 *             process and then over processes
 *   BARRIER   losses, buffers, skipped steps; after it every rank has every bucket
 *   VALIDATE  whether the outer step is finite; all ranks find the same
 *   WRITE     the outer step, by each process, on the host: SGD with momentum over the mean
 *   PUBLISH   its result to all replicas
 *
 * The values of the round's start do not change before the outer step. So a failure before it
 * restores them. Each replica keeps its own optimizer state. Buffers, which are running
 * statistics or follow weights, become the mean over all replicas; frozen parameters stay. Sources:
 * McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017;
 * Douillard et al., DiLoCo, 2023. */

enum { /* of par->terms, after the sums of losses and metrics; per process, except buffers */
       DTI_ROUND_SKIPPED = DTI_TERMS_WIDTH,
       DTI_ROUND_EMPTY,
       DTI_ROUND_ASKED,
       DTI_ROUND_MARK,
       DTI_ROUND_BUFFERS = DTI_ROUND_MARK + 2 * DTI_MARKS
};

/* As the programs have it: the graph may have frozen more since. */
static bool dti_round_trains(const dti_parallel *par, uint32_t param) {
    return dti_parallel_code(par)->trained[param];
}

static bool dti_round_is_buffer(const dt_store *s, uint32_t param) {
    return s->graph->nodes[s->layout.params[param].node].buffer;
}

static float *dti_round_array(const dti_parallel *par, uint32_t replica) {
    return par->round.arrays + replica * par->elements;
}

/* ---- memory */

static uint32_t dti_round_terms(const dti_parallel *par) {
    const dt_store *s = par->replicas[0].store;
    uint32_t width = DTI_ROUND_BUFFERS;
    if (!dti_parallel_is_local(par))
        return DTI_TERMS_WIDTH;
    for (uint32_t i = 0; i < s->layout.param_count; i++)
        width += dti_round_is_buffer(s, i) ? (uint32_t)s->layout.params[i].elements : 0;
    return width;
}

static dt_result dti_round_make(dti_parallel *par) {
    dti_round *round = &par->round;
    const size_t elements = (size_t)DTI_MAX(par->elements, 1u), local = par->job.local;
    round->start = dti_alloc_array(par->base, elements, sizeof *round->start);
    round->velocity = dti_alloc_array(par->base, elements, sizeof *round->velocity);
    round->arrays = dti_alloc_array(par->base, elements * local, sizeof *round->arrays);
    const bool hears = par->desc.round.gossip_steps && par->mesh.world > 1;
    round->heard = hears ? dti_alloc_array(par->base, elements, sizeof *round->heard) : NULL;
    round->terms = dti_alloc_array(par->base, DTI_TERMS_WIDTH * local, sizeof *round->terms);
    par->staging_bytes += dti_arena_bytes(par->elements) * (2 + hears + local);
    if ((hears && !round->heard) || !round->start || !round->velocity || !round->arrays ||
        !round->terms)
        return DT_ERROR_MEMORY;
    for (uint32_t i = 0; i < local; i++)
        par->replicas[i].gradients = dti_round_array(par, i);
    return dti_compress_make(par);
}

static void dti_round_free(dti_parallel *par) {
    dti_round *round = &par->round;
    DTI_FREE(par->base, round->start, round->velocity, round->heard, round->arrays, round->terms);
    round->start = round->velocity = round->heard = round->arrays = NULL;
    round->terms = NULL;
    dti_compress_free(par);
}

/* ---- a replica's values */

static dt_result dti_round_read(dti_parallel *par, uint32_t index) {
    return dti_store_array_read(par->replicas[index].store, 0, 0, par->elements,
                                dti_round_array(par, index));
}

static dt_result dti_round_write(dti_parallel *par, uint32_t index, const float *from) {
    dt_store *s = par->replicas[index].store;
    dti_store_unbound(s);
    return dti_store_array_write(s, 0, 0, par->elements, from);
}

/* Calls `visit` with this replica's share of each parameter that is trained, or also of buffers. */
static void dti_round_each(dti_parallel *par, uint32_t index, bool buffers,
                           void (*visit)(dti_parallel *, uint64_t from, uint64_t end)) {
    const dt_store *s = par->replicas[0].store;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        if (dti_round_trains(par, i) || (buffers && dti_round_is_buffer(s, i)))
            visit(par, p->offset + p->elements * index / par->job.local,
                  p->offset + p->elements * (index + 1) / par->job.local);
    }
}

/* ---- the round's beginning, to which a failure returns */

static dt_result dti_round_open(dti_parallel *par) {
    dti_round *round = &par->round;
    dt_store *s = par->replicas[0].store;
    round->first = s->steps;
    round->mark = DTI_HASH_START;
    round->samples = round->skipped = round->empty = 0;
    round->said[0] = 0;
    memset(round->terms, 0, DTI_TERMS_WIDTH * sizeof *round->terms * par->job.local);
    return dti_store_array_read(s, 0, 0, par->elements, round->start);
}

/* The round's beginning to a replica: the next one's, or the same again. */
static dt_result dti_round_put(dti_parallel *par, uint32_t index) {
    return dti_round_write(par, index, par->round.start);
}

static void dti_round_steps(dti_parallel *par, uint64_t steps) {
    for (uint32_t i = 0; i < par->job.local; i++)
        par->replicas[i].store->steps = steps;
}

/* A store that cannot be written belongs to a lost device. */
static void dti_round_back(dti_parallel *par) {
    const dt_result result = dti_replicas_phase(par, dti_round_put);
    dti_round_forget(par);
    if (result)
        dti_parallel_leave(par);
    par->round.done = 0;
    if (par->lost)
        dti_round_steps(par, par->round.first);
}

static dt_result dti_round_began(dti_parallel *par, dt_result result) {
    return result ? dti_fail(par->base, result,
                             "%.800s; the weights are those of step %llu, where the round began",
                             dti_error_of(par).text, (unsigned long long)par->round.first)
                  : DT_OK;
}

static dt_result dti_round_give_up(dti_parallel *par, dt_result result) {
    if (!par->round.done)
        return dti_protocol_over(par, result, dti_parallel_leave, NULL);
    return dti_protocol_over(par, dti_round_began(par, result), dti_parallel_leave, dti_round_back);
}

/* ---- differences */

/* After the other sums of the replica's leaf. */
static void dti_round_buffers(const dt_store *s, const float *now, double *leaf) {
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        for (uint64_t k = 0; dti_round_is_buffer(s, i) && k < p->elements; k++)
            *leaf++ = (double)now[p->offset + k];
    }
}

/* Frozen parameters have none; values that the application wrote since the round began stay. */
static void dti_round_subtract(dti_parallel *par, const dt_store *s, float *now, bool first) {
    float *start = par->round.start;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        const size_t bytes = (size_t)p->elements * sizeof *now;
        if (dti_round_trains(par, i)) {
            for (uint64_t k = p->offset; k < p->offset + p->elements; k++)
                now[k] = start[k] - now[k];
            continue;
        }
        if (first && !dti_round_is_buffer(s, i))
            memcpy(start + p->offset, now + p->offset, bytes);
        memset(now + p->offset, 0, bytes);
    }
}

static dt_result dti_round_difference(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    double *leaf = dti_scalar_leaf(par, &par->terms, par->first_batch_slice + index);
    float *now = dti_round_array(par, index);
    memcpy(leaf, par->round.terms + (size_t)index * DTI_TERMS_WIDTH,
           DTI_TERMS_WIDTH * sizeof *leaf);
    const dt_result result = dti_round_read(par, index);
    if (!result) {
        dti_round_buffers(r->store, now, leaf + DTI_ROUND_BUFFERS);
        dti_round_subtract(par, r->store, now, index == 0);
        if (!dti_compress_is_on(par))
            dti_exchange_arrive(par, 0, par->bucket_count);
    }
    r->passed = dti_now_ns();
    if (result)
        atomic_store(&r->failed, true);
    while (!dti_compress_is_on(par) && !dti_any_failed(par) && !dti_exchange_help(par, index, true))
        dti_thread_yield();
    return result;
}

/* An error of the exchange says where the round began. */
static void dti_round_prepare(dti_parallel *par) {
    double *leaf = dti_scalar_leaf(par, &par->terms, par->first_batch_slice);
    leaf[DTI_ROUND_SKIPPED] = (double)par->round.skipped;
    leaf[DTI_ROUND_EMPTY] = (double)par->round.empty;
    leaf[DTI_ROUND_ASKED] = par->asked ? 1.0 : 0.0;
    dti_mark_put(par->round.mark, leaf + DTI_ROUND_MARK);
    dti_round_steps(par, par->round.first);
    par->replicas[0].passed = dti_now_ns();
}

static dt_result dti_round_run(dti_parallel *par) {
    DTI_TRY(dti_protocol_phase(par, dti_round_difference));
    return dti_compress_is_on(par) ? dti_compress_exchange(par) : dti_exchange_finish(par);
}

/* ---- the outer step */

typedef struct dti_outer_values {
    float velocity, value;
} dti_outer_values;

/* A product of two f32 is exact in double, whether or not a compiler fuses it with the addition. So
 * all ranks have the same bits. */
static inline dti_outer_values dti_outer_step(const dti_round_desc *d, float sum, float replicas,
                                              float velocity, float start) {
    const float mean = sum / replicas;
    const double lr = (double)d->lr, momentum = (double)d->momentum;
    const float v = (float)(momentum * (double)velocity + (double)mean);
    const float move = d->nesterov ? (float)(momentum * (double)v + (double)mean) : v;
    return (dti_outer_values){v, (float)((double)start - lr * (double)move)};
}

/* VALIDATE checks the values that WRITE will write. */
static void dti_outer_range(dti_parallel *par, uint64_t from, uint64_t end) {
    dti_round *round = &par->round;
    const float *sum = dti_round_array(par, 0), replicas = (float)par->job.replicas;
    const bool writes = par->now->state == DTI_PROTOCOL_WRITE;
    bool fine = true;
    for (uint64_t k = from; k < end; k++) {
        const dti_outer_values x =
            dti_outer_step(&par->desc.round, sum[k], replicas, round->velocity[k], round->start[k]);
        fine = fine && dti_fits_f32((double)x.velocity) && dti_fits_f32((double)x.value);
        round->velocity[k] = writes ? x.velocity : round->velocity[k];
        round->start[k] = writes ? x.value : round->start[k];
    }
    if (!fine)
        atomic_store(&par->now->faulty, true);
}

static void dti_round_move_buffers(dti_parallel *par) {
    const dt_store *s = par->replicas[0].store;
    const double *sum = par->terms.sum + DTI_ROUND_BUFFERS;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        for (uint64_t k = 0; dti_round_is_buffer(s, i) && k < p->elements; k++)
            par->round.start[p->offset + k] = (float)(*sum++ / (double)par->job.replicas);
    }
}

static dt_result dti_round_outer(dti_parallel *par, uint32_t index) {
    dti_round_each(par, index, false, dti_outer_range);
    if (!index && par->now->state == DTI_PROTOCOL_WRITE)
        dti_round_move_buffers(par);
    return DT_OK;
}

/* ---- the end */

/* The norm of the averaged difference; by one thread, in order: the same on all ranks. */
static double dti_round_norm(const dti_parallel *par) {
    const dt_store *s = par->replicas[0].store;
    const float *sum = dti_round_array(par, 0);
    double squares = 0.0;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        for (uint64_t k = p->offset; dti_round_trains(par, i) && k < p->offset + p->elements; k++) {
            const double x = (double)sum[k] * (double)sum[k]; /* exact */
            squares += x;
        }
    }
    return sqrt(squares) / (double)par->job.replicas;
}

/* Checks that all ranks make alike: of the data that they exchanged, and of the outer step. */
static dt_result dti_round_check(dti_parallel *par) {
    const unsigned long long first = (unsigned long long)par->round.first;
    dti_round_steps(par, par->now->desc.step);
    if (!dti_mark_same(par, par->terms.sum + DTI_ROUND_MARK))
        return dti_fail(
            par->base, DT_ERROR_INVALID,
            "the round from step %llu on: the ranks had different learning rates, coefficients of "
            "losses or steps; set the same on all; the weights are those before the round",
            first);
    if (!atomic_load(&par->now->faulty))
        return DT_OK;
    return dti_fail(
        par->base, DT_ERROR_NUMERIC,
        "the round from step %llu on: its outer step would write a NaN or an infinity; the weights "
        "are those before the round; try a lower .local.outer.lr or .local.outer.momentum",
        first);
}

static dt_result dti_round_publish(dti_parallel *par) {
    par->round.count++;
    par->round.done = 0;
    const dt_result result = dti_protocol_phase(par, dti_round_put);
    return result ? dti_protocol_partial_commit(par, result) : DT_OK;
}

static void dti_round_report(dti_parallel *par, dti_parallel_result *out) {
    const double *sum = par->terms.sum;
    *out = (dti_parallel_result){.wait_seconds = out->wait_seconds};
    memcpy(out->terms, sum, sizeof out->terms);
    out->steps = par->now->desc.step - par->round.first;
    out->samples = par->round.samples;
    out->left_out = (uint64_t)sum[DTI_ROUND_SKIPPED];
    out->empty = (uint64_t)sum[DTI_ROUND_EMPTY];
    out->round_ended = true;
    out->norm = dti_round_norm(par);
    par->asked = sum[DTI_ROUND_ASKED] > 0.0;
}

/* The round has ended. All ranks report that replicas skipped steps. */
static dt_result dti_round_done(dti_parallel *par, dti_parallel_result *out) {
    dt_result result = DT_OK;
    if (!out->left_out)
        return DT_OK;
    if (par->round.skipped)
        result = dti_fail(par->base, DT_ERROR_NUMERIC, "%s", par->round.said);
    result = dti_agree_result(par, result);
    out->skipped = result == DT_ERROR_NUMERIC;
    if (!out->skipped)
        return result;
    return dti_fail(par->base, result,
                    "the round from step %llu on skipped %llu steps of replicas; the first: %.700s",
                    (unsigned long long)par->round.first, (unsigned long long)out->left_out,
                    dti_error_of(par).text);
}

static const dti_strategy dti_round_strategy = {DTI_ROUND_PLAN,
                                                .prepare = dti_round_prepare,
                                                .run = dti_round_run,
                                                .waited = dti_replicas_waited,
                                                .validate = dti_round_outer,
                                                .check = dti_round_check,
                                                .write = dti_round_outer,
                                                .publish = dti_round_publish,
                                                .report = dti_round_report,
                                                .done = dti_round_done,
                                                .partial_commit = dti_replicas_partial_commit};
