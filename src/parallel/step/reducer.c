/* The driver of sums (reducer.h): it knows neither replicas nor stages, only kinds of sums. */

/* ---- operations that belong together */

static dt_result dti_works_post(dt_comm *comm, dti_works *w, const dt_comm_op *op) {
    const bool full = w->count - w->ended == w->room;
    dt_result result = full ? dt_comm_wait(comm, w->at[w->ended++ % w->room], -1) : DT_OK;
    if (!result)
        result = dt_comm_begin(comm, op, &w->at[w->count % w->room]);
    w->count += !result;
    return result;
}

static dt_result dti_works_end(dt_comm *comm, dti_works *w, bool wait, bool *ended) {
    dt_result result = DT_OK;
    *ended = true;
    while (w->ended < w->count && *ended && !result) {
        result = wait ? dt_comm_wait(comm, w->at[w->ended % w->room], -1)
                      : dt_comm_test(comm, w->at[w->ended % w->room], ended);
        w->ended += *ended || result;
    }
    *ended = *ended && !result;
    return result;
}

static void dti_works_cancel(dt_comm *comm, dti_works *w) {
    for (; w->ended < w->count; w->ended++)
        dt_comm_cancel(comm, w->at[w->ended % w->room]);
}

/* ---- a job's sums */

static _Atomic uint32_t *dti_sums_ended(const dti_parallel *par) {
    return &par->counters[par->sums.ended];
}

static dt_result dti_sums_make(dti_parallel *par, const dti_sum_kind *kind, uint32_t count,
                               uint32_t window, uint32_t most) {
    dti_sums *s = &par->sums;
    *s = (dti_sums){.kind = kind, .window = window};
    s->list = dti_alloc_array(par->base, count + 1u, sizeof *s->list);
    s->works = dti_alloc_array(par->base, (size_t)window * most + 1, sizeof *s->works);
    if (!s->list || !s->works)
        return DT_ERROR_MEMORY;
    for (; s->count < count; s->count++)
        s->list[s->count].works =
            (dti_works){.at = s->works + (size_t)(s->count % window) * most, .room = most};
    return DT_OK;
}

static void dti_sums_free(dti_parallel *par) {
    DTI_FREE(par->base, par->sums.list, par->sums.works);
    par->sums = (dti_sums){0};
}

static void dti_sums_begin(dti_parallel *par) {
    dti_sums *all = &par->sums;
    all->posted = 0;
    all->error = DT_OK;
    atomic_store(dti_sums_ended(par), 0);
    for (uint32_t i = 0; i < all->count; i++) {
        dti_sum *s = &all->list[i];
        atomic_store(&s->arrived, 0);
        atomic_store(&s->next, 0);
        atomic_store(&s->done, 0);
        s->works.count = s->works.ended = 0;
    }
}

static void dti_exchange_arrive(dti_parallel *par, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++)
        atomic_fetch_add(&par->sums.list[i].arrived, 1);
}

static void dti_sums_cancel(dti_parallel *par) {
    for (uint32_t i = 0; i < par->sums.count; i++)
        dti_works_cancel(par->sums.list[i].comm, &par->sums.list[i].works);
}

/* ---- folding */

/* The parts' values of a subtree of this process, `at` elements into the sum. */
static uint32_t dti_sum_operands(const dti_parallel *par, uint32_t number, dt_comm_span span,
                                 uint64_t at, dti_operand *operands) {
    uint32_t count = 0;
    for (uint32_t k = 0; k < par->sums.list[number].parts; k++) {
        const dti_sums_operands a = par->sums.kind->operands(par, number, k);
        for (uint32_t i = 0; i < a.subtrees->count; i++) {
            const dt_comm_span own = a.subtrees->at[i];
            if (own.first >= span.first && own.first < span.first + span.count)
                operands[count++] = (dti_operand){a.data + i * a.stride + at, DT_F32, own};
        }
    }
    return count;
}

/* This rank's operand, rounded once. Several subtrees are summed already, and are leaves. */
static void dti_sum_round(const dti_parallel *par, uint32_t number, uint64_t at, uint64_t n,
                          dti_operand *operands) {
    const dti_sum *s = &par->sums.list[number];
    uint32_t count = s->subtrees.count;
    for (uint32_t k = 0; k < count && count > 1; k++)
        operands[k] = (dti_operand){s->partial + k * s->elements + at, DT_F32, {k, 1}};
    if (count == 1)
        count = dti_sum_operands(par, number, s->subtrees.at[0], at, operands);
    dti_fold(s->rounded + at, operands, count, n, DT_BF16, DT_COMM_SUM, true, 1);
}

static void dti_sum_slice(const dti_parallel *par, uint32_t number, uint64_t at) {
    const dti_sum *s = &par->sums.list[number];
    const uint64_t n = DTI_MIN(s->elements - at, (uint64_t)DTI_SLICE);
    const bool once = s->rounded && s->subtrees.count == 1;
    dti_operand operands[DTI_OPERANDS_MAX];
    for (uint32_t k = 0; k < s->subtrees.count && !once; k++) {
        const uint32_t count = dti_sum_operands(par, number, s->subtrees.at[k], at, operands);
        float *to = (s->partial ? s->partial + k * s->elements : s->total) + at;
        if (count > 1 || operands[0].data != to)
            dti_fold(to, operands, count, n, DT_F32, DT_COMM_SUM, !s->comm, 1);
    }
    if (s->rounded)
        dti_sum_round(par, number, at, n, operands);
    if (!s->comm && par->sums.kind->spread)
        par->sums.kind->spread(par, number, at, n);
}

static bool dti_sum_fold(dti_parallel *par, uint32_t number) {
    dti_sum *s = &par->sums.list[number];
    bool last = false;
    if (atomic_load(&s->arrived) < s->parts)
        return false;
    /* checked before it is raised: a waiting thread comes by very often */
    for (uint32_t i;
         atomic_load(&s->next) < s->slices && (i = atomic_fetch_add(&s->next, 1)) < s->slices;) {
        dti_sum_slice(par, number, (uint64_t)i * DTI_SLICE);
        last = atomic_fetch_add(&s->done, 1) + 1 == s->slices;
    }
    return last;
}

static bool dti_sum_is_folded(const dti_sum *s) {
    return atomic_load(&s->arrived) >= s->parts && atomic_load(&s->done) == s->slices;
}

/* In order, so the network gets the first one first. A sum may take the place of earlier ones. */
static bool dti_sums_fold(dti_parallel *par) {
    dti_sums *all = &par->sums;
    uint32_t ended = atomic_load(dti_sums_ended(par));
    bool folded = true;
    for (uint32_t i = 0; i < all->count; i++) {
        const dti_sum *s = &all->list[i];
        if (atomic_load(&s->arrived) < s->parts ||
            ((s->partial || s->rounded) && i >= ended + all->window))
            return false;
        dti_sum_fold(par, i);
        folded = folded && atomic_load(&s->done) == s->slices;
    }
    return folded;
}

/* Without other ranks a sum has ended when it is folded, and all before it are. */
static void dti_sums_advance(dti_parallel *par) {
    dti_sums *all = &par->sums;
    uint32_t ended = atomic_load(dti_sums_ended(par));
    while (!par->desc.comm && ended < all->count && dti_sum_is_folded(&all->list[ended])) {
        if (atomic_compare_exchange_strong(dti_sums_ended(par), &ended, ended + 1))
            ended++;
    }
}

/* ---- between ranks */

static bool dti_sums_are_rounded(const dti_parallel *par) {
    return par->desc.parallel.compress == DT_COMPRESS_BF16 && par->desc.comm &&
           par->mesh.world > 1 && !dti_parallel_is_local(par);
}

/* The sums of stages that other ranks have too. */
static uint64_t dti_sums_grid_bytes(const dti_parallel *par) {
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < par->sums.count; s++) {
        const dti_sum *sum = &par->sums.list[s];
        bytes += sum->comm ? dti_bytes(sum->rounded ? DT_BF16 : DT_F32, sum->elements) : 0;
    }
    return bytes;
}

/* The sums of gradients, or of a round's differences. */
static uint64_t dti_sums_wire_bytes(const dti_parallel *par, uint64_t gradient_bytes) {
    if (!par->desc.comm || par->mesh.world == 1)
        return 0;
    if (dti_pipe_of(par))
        return dti_sums_grid_bytes(par);
    if (dti_compress_is_on(par) && dti_parallel_is_local(par))
        return dti_compress_at(par, par->bucket_count);
    return dti_sums_are_rounded(par) ? gradient_bytes / 2 : gradient_bytes;
}

static void dti_sums_log(const dti_parallel *par) {
    if (!par->desc.parallel.compress || dti_parallel_is_local(par))
        return;
    dti_log(par->base, DT_LOG_INFO, "%s",
            dti_sums_are_rounded(par)
                ? "compressed gradients: ranks exchange bf16 and sum float32; results also depend "
                  "on how batch slices are spread over ranks"
                : "compressed gradients: this is one rank, so nothing is compressed");
}

static dt_result dti_sum_post_range(dti_sum *s, dti_bucket range, int root) {
    dt_comm_op op = {.kind = root < 0 ? DT_COMM_ALL_REDUCE : DT_COMM_REDUCE,
                     .root = DTI_MAX(root, 0),
                     .in = (s->partial ? s->partial : s->total) + range.begin,
                     .out = s->total + range.begin,
                     .count = dti_bucket_elements(range),
                     .dtype = s->rounded ? DT_BF16 : DT_F32,
                     .tree = !s->rounded};
    if (s->rounded)
        op.in = op.out = s->rounded + range.begin;
    return dti_works_post(s->comm, &s->works, &op);
}

static dt_result dti_sum_post(dti_parallel *par, uint32_t number) {
    dti_sum *s = &par->sums.list[number];
    if (!s->comm || s->works.count) /* it was posted out of turn */
        return DT_OK;
    return par->sums.kind->post ? par->sums.kind->post(par, number)
                                : dti_sum_post_range(s, (dti_bucket){0, s->elements}, -1);
}

static dt_result dti_sums_post(dti_parallel *par) {
    dti_sums *all = &par->sums;
    dt_result result = DT_OK;
    while (par->desc.comm && !result && all->posted < all->count &&
           all->posted < atomic_load(dti_sums_ended(par)) + all->window &&
           dti_sum_is_folded(&all->list[all->posted])) {
        result = dti_sum_post(par, all->posted);
        all->posted += !result;
    }
    return dti_parallel_comm_failed(par, result);
}

static dt_result dti_sums_end(dti_parallel *par, bool wait) {
    dti_sums *all = &par->sums;
    dt_result result = DT_OK;
    bool ended = true;
    while (!result && ended && atomic_load(dti_sums_ended(par)) < all->posted) {
        const uint32_t i = atomic_load(dti_sums_ended(par));
        dti_sum *s = &all->list[i];
        result = dti_works_end(s->comm, &s->works, wait, &ended);
        if (ended && s->rounded)
            dti_fold_widen(s->total, s->rounded, (size_t)s->elements);
        if (ended && all->kind->early && s->comm)
            all->kind->spread(par, i, 0, s->elements);
        atomic_store(dti_sums_ended(par), i + ended);
    }
    return dti_parallel_comm_failed(par, result);
}

static dt_result dti_sums_speak(dti_parallel *par) {
    dt_result result = dti_sums_post(par);
    return result || !par->sums.kind->early ? result : dti_sums_end(par, false);
}

/* A sum that could not be posted because the group had ended is a consequence. The failure of an
 * earlier sum says more. */
static dt_result dti_exchange_finish(dti_parallel *par) {
    dti_sums *all = &par->sums;
    dt_result result = DT_OK;
    do {
        dti_sums_fold(par);
        dti_sums_advance(par);
        if (!all->error)
            all->error = dti_sums_post(par);
        result = dti_sums_end(par, !all->error);
    } while (!result && !all->error && atomic_load(dti_sums_ended(par)) < all->count);
    return result ? result : all->error;
}
