/* Data that the ranks of a job must have in common, and its comparison. It is model and settings,
 * values at the start, and the result of calls that can fail on one rank. */

#define DTI_AGREE_TEXT 500

typedef struct dti_agree_record {
    uint32_t result;
    char text[DTI_AGREE_TEXT];
} dti_agree_record;

static dt_result dti_ranks_reduce(dti_parallel *par, dt_comm *comm, void *data, uint64_t count,
                                  dt_dtype dtype, dt_comm_reduction how) {
    return comm ? dti_parallel_comm_failed(par,
                                           dt_comm_all_reduce(comm, data, data, count, dtype, how))
                : DT_OK;
}

static dt_result dti_ranks_tell(dti_parallel *par, void *data, uint64_t count, dt_dtype dtype) {
    dt_comm *comm = par->desc.comm;
    return comm ? dti_parallel_comm_failed(par, dt_comm_broadcast(comm, data, count, dtype, 0))
                : DT_OK;
}

/* The lowest rank that failed sends all of them its result and text. Allocates nothing, so every
 * rank takes part. */
static dt_result dti_agree_result(dti_parallel *par, dt_result own) {
    if (!par->desc.comm || par->lost)
        return own;
    int32_t most = own ? (int32_t)(par->mesh.world - par->mesh.rank) : 0;
    dt_result result = dti_ranks_reduce(par, par->desc.comm, &most, 1, DT_I32, DT_COMM_MAX);
    if (result || !most)
        return result;
    const uint32_t who = par->mesh.world - (uint32_t)most;
    dti_agree_record record = {.result = (uint32_t)own};
    snprintf(record.text, sizeof record.text, "%.*s", DTI_AGREE_TEXT - 1, par->base->error);
    DTI_TRY(dti_parallel_comm_failed(
        par, dt_comm_broadcast(par->desc.comm, &record, sizeof record, DT_U8, (int)who)));
    record.text[DTI_AGREE_TEXT - 1] = 0;
    if (who == par->mesh.rank)
        return dti_fail(par->base, own, "%s", record.text);
    return dti_fail(par->base, (dt_result)record.result, "rank %u: %s", who, record.text);
}

/* ---- one text */

/* The first line in which they differ. */
static dt_result dti_agree_difference(dti_parallel *par, const char *mine, size_t mine_size,
                                      const char *theirs, size_t theirs_size) {
    size_t line;
    if (!dti_model_texts_differ(mine, mine_size, theirs, theirs_size, &line))
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "the ranks have different settings: rank %u has '%s', but rank 0 '%s'; give "
                    "all ranks the same",
                    par->mesh.rank,
                    dti_show_line(dti_model_line(mine + line, mine_size - line)).text,
                    dti_show_line(dti_model_line(theirs + line, theirs_size - line)).text);
}

static dt_result dti_agree_text(dti_parallel *par, const char *text, size_t size) {
    if (!par->desc.comm)
        return DT_OK;
    uint64_t theirs_size = size;
    DTI_TRY(dti_ranks_tell(par, &theirs_size, 1, DT_I64));
    char *theirs = dti_alloc(par->base, (size_t)theirs_size + 1);
    dt_result result = dti_agree_result(par, theirs ? DT_OK : DT_ERROR_MEMORY);
    if (!result && par->mesh.rank == 0)
        memcpy(theirs, text, size);
    if (!result)
        result = dti_ranks_tell(par, theirs, theirs_size, DT_U8);
    if (!result)
        result = dti_agree_result(
            par, dti_agree_difference(par, text, size, theirs, (size_t)theirs_size));
    dti_free(par->base, theirs);
    return result;
}

/* ---- one class of arithmetic */

/* Notes a device of this rank with its class: the lower a rank, the larger the number. */
static void dti_agree_device(const dti_parallel *par, const dt_store *s,
                             int32_t classes[DTI_CLASSES]) {
    if (s->device->info.kind == DT_DEVICE_CPU)
        classes[s->device->isa_class] = (int32_t)(par->mesh.world - par->mesh.rank);
}

static dt_result dti_agree_class(dti_parallel *par) {
    const uint32_t world = par->mesh.world;
    const dti_pipe *pipe = dti_pipe_of(par);
    static const char *const kernels[DTI_CLASSES] = {"without FMA", "with FMA",
                                                     "with AMX (dt_ctx_desc.amx)"};
    int32_t classes[DTI_CLASSES] = {0};
    for (uint32_t i = 0; i < par->job.local && !pipe; i++)
        dti_agree_device(par, par->replicas[i].store, classes);
    for (const dti_pipe_chunk *c = NULL; pipe && (c = dti_pipe_next(pipe, c)) != NULL;)
        dti_agree_device(par, c->store, classes);
    DTI_TRY(dti_ranks_reduce(par, par->desc.comm, classes, DTI_CLASSES, DT_I32, DT_COMM_MAX));
    int first = DTI_CLASSES - 1, other;
    while (first > 0 && !classes[first])
        first--;
    for (other = first - 1; other >= 0 && !classes[other];)
        other--;
    if (other < 0)
        return DT_OK;
    return dti_fail(
        par->base, DT_ERROR_INVALID,
        "rank %u computes with CPU kernels %s and rank %u %s, which round differently; use CPUs of "
        "one class with the same dt_ctx_desc.amx, or set dt_ctx_desc.no_fast on all ranks",
        world - (uint32_t)classes[first], kernels[first], world - (uint32_t)classes[other],
        kernels[other]);
}

/* ---- one state */

/* Values that memory has already are not written: untouched zero pages take no memory. */
static dt_result dti_agree_write(dt_store *s, dti_arena arena, uint64_t at, const char *piece,
                                 uint64_t bytes) {
    const dti_backend *b = dti_store_backend(s, (int)arena);
    const char *host = b->memory_host(s->memories[arena]);
    if (host && !memcmp(host + at, piece, (size_t)bytes))
        return DT_OK;
    return b->memory_write(s->memories[arena], at, piece, bytes);
}

/* An arena from the first replica of rank 0 to all, a piece at a time. */
static dt_result dti_agree_arena(dti_parallel *par, dti_arena arena, uint64_t from, uint64_t end,
                                 char *piece) {
    for (uint32_t i = 0; i < par->job.local; i++)
        dti_store_unbound(par->replicas[i].store);
    for (uint64_t at = from; at < end; at += DTI_AGREE_PIECE) {
        const uint64_t n = DTI_MIN(end - at, (uint64_t)DTI_AGREE_PIECE);
        const dt_store *first = par->replicas[0].store;
        const dti_backend *b = dti_store_backend(first, (int)arena);
        DTI_TRY(b->memory_read(first->memories[arena], at, piece, n));
        DTI_TRY(dti_ranks_tell(par, piece, n, DT_U8));
        for (uint32_t i = par->mesh.rank == 0; i < par->job.local; i++)
            DTI_TRY(dti_agree_write(par->replicas[i].store, arena, at, piece, n));
    }
    return DT_OK;
}

static dt_result dti_agree_hash(dti_parallel *par) {
    uint64_t hash[2] = {0, 0};
    DTI_TRY(dt_store_state_hash(par->replicas[0].store, &hash[0]));
    hash[1] = hash[0];
    DTI_TRY(dti_ranks_tell(par, &hash[1], 1, DT_I64));
    for (uint32_t i = 0; i < par->job.local; i++) {
        DTI_TRY(dt_store_state_hash(par->replicas[i].store, &hash[0]));
        if (hash[0] != hash[1])
            return dti_fail(par->base, DT_ERROR_CORRUPT,
                            "replica %u of rank %u has other values than rank 0 sent (hash "
                            "%016llx, %016llx)",
                            i, par->mesh.rank, (unsigned long long)hash[0],
                            (unsigned long long)hash[1]);
    }
    return DT_OK;
}

static void dti_agree_averages(dt_store *s) {
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        s->kept[i].averaged = s->steps && s->layout.params[i].average;
        s->kept[i].from = s->kept[i].averaged;
    }
}

static dt_result dti_agree_state(dti_parallel *par, char *piece) {
    const dt_store *s = par->replicas[0].store;
    uint64_t steps = s->steps, state = dti_store_state_bytes(s);
    DTI_TRY(dti_ranks_tell(par, &steps, 1, DT_I64));
    DTI_TRY(dti_agree_arena(par, DTI_ARENA_PARAM, 0,
                            dti_layout_bytes(&s->layout, s->layout.elements), piece));
    const uint64_t scratch = DTI_WORD_BYTES * dti_state_t_offset(&s->layout); /* of a step */
    DTI_TRY(dti_agree_arena(par, DTI_ARENA_STATE, DTI_MIN(scratch, state), state, piece));
    for (uint32_t i = 0; i < par->job.local; i++) {
        par->replicas[i].store->steps = steps;
        dti_agree_averages(par->replicas[i].store);
    }
    DTI_TRY(dti_agree_result(par, dti_agree_hash(par)));
    return dti_agree_result(par, dti_statistics_load(&par->statistics, par->replicas[0].store));
}

static dt_result dti_agree_piece(dti_parallel *par, char **piece) {
    *piece = dti_alloc(par->base, DTI_AGREE_PIECE);
    const dt_result result = dti_agree_result(par, *piece ? DT_OK : DT_ERROR_MEMORY);
    if (result) { /* also where another rank has none */
        dti_free(par->base, *piece);
        *piece = NULL;
    }
    return result;
}

static dt_result dti_agree_with(dti_parallel *par, dti_piece_fn *fn) {
    char *piece;
    dt_result result = dti_agree_piece(par, &piece);
    if (!result)
        result = fn(par, piece);
    dti_free(par->base, piece);
    return result;
}
