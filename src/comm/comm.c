/* The public functions of the collectives. They check a desc, create and destroy a comm, and begin,
 * wait for and end operations. All transports share them. It passes on only checked operations
 * (coll.c), and counts those in flight. It refuses a comm that failed, ended, or came through a
 * fork. Only the transport executes operations. */

/* ---- the desc */

#define DTI_RANKS_MAX 65535 /* a step's peer has 16 bits */

/* Every text must end within its array, or a later read of it would run on. */
static dt_result dti_comm_desc_check_texts(dti_base *base, const dt_comm_desc *d) {
    const struct {
        const char *name, *text;
        size_t size;
    } texts[] = {
        {"rendezvous", d->rendezvous, sizeof d->rendezvous},
        {"job", d->job, sizeof d->job},
        {"key", d->key, sizeof d->key},
        {"key_file", d->key_file, sizeof d->key_file},
        {"tls_ca", d->tls_ca, sizeof d->tls_ca},
        {"tls_certificate", d->tls_certificate, sizeof d->tls_certificate},
        {"tls_private_key", d->tls_private_key, sizeof d->tls_private_key},
        {"tls_name", d->tls_name, sizeof d->tls_name},
        {"interfaces", d->interfaces, sizeof d->interfaces},
        {"congestion", d->congestion, sizeof d->congestion},
        {"launcher", d->launcher, sizeof d->launcher},
        {"warning", d->warning, sizeof d->warning},
        {"error", d->error, sizeof d->error},
    };
    for (size_t i = 0; i < DTI_COUNT(texts); i++)
        if (!memchr(texts[i].text, 0, texts[i].size))
            return dti_fail(base, DT_ERROR_INVALID,
                            ".%s is not zero-terminated within its %d bytes", texts[i].name,
                            (int)texts[i].size);
    if (d->error[0])
        return dti_fail(base, DT_ERROR_INVALID, "%s", d->error);
    if (d->warning[0])
        dti_log(base, DT_LOG_WARNING, "%s", d->warning);
    return DT_OK;
}

/* Fills in the defaults of the numbers, then checks their ranges: one row each. */
static dt_result dti_comm_desc_check_numbers(dti_base *base, dt_comm_desc *d) {
    const int local = d->local_size ? d->local_size : d->world_size;
    const struct {
        const char *name;
        int *value, otherwise, low, high;
    } rows[] = {
        {"world_size", &d->world_size, 1, 1, DTI_RANKS_MAX},
        {"rank", &d->rank, 0, 0, d->world_size - (d->world_size > 0)},
        {"local_size", &d->local_size, 0, 0, d->world_size},
        {"local_rank", &d->local_rank, 0, 0, local - (local > 0)},
        {"transport", (int *)&d->transport, 0, 0, DT_COMM_MPI},
        {"integrity", (int *)&d->integrity, 0, 0, DT_COMM_UNCHECKED},
        {"shared_memory", (int *)&d->shared_memory, 0, 0, DT_COMM_SHARED_REQUIRED},
        {"port_low", &d->port_low, 0, 0, 65535},
        {"port_high", &d->port_high, 0, 0, 65535},
        {"sockets", &d->sockets, 1, 1, 16},
        {"chunk_bytes", &d->chunk_bytes, 256 << 10, 4 << 10, 8 << 20},
        {"window", &d->window, 0, 0, 64},
        {"join_timeout_ms", &d->join_timeout_ms, 300000, 1, INT_MAX},
        {"silence_ms", &d->silence_ms, 5000, 1, INT_MAX},
        {"op_timeout_ms", &d->op_timeout_ms, 0, 0, INT_MAX},
    };
    for (size_t i = 0; i < DTI_COUNT(rows); i++) {
        if (*rows[i].value == 0)
            *rows[i].value = rows[i].otherwise;
        if (*rows[i].value < rows[i].low || *rows[i].value > rows[i].high)
            return dti_fail(base, DT_ERROR_INVALID, ".%s is %d; it must be from %d to %d",
                            rows[i].name, *rows[i].value, rows[i].low, rows[i].high);
    }
    if (d->port_low > d->port_high)
        return dti_fail(base, DT_ERROR_INVALID, ".port_low (%d) exceeds .port_high (%d)",
                        d->port_low, d->port_high);
    return DT_OK;
}

/* Checks the numbers of a link. */
static dt_result dti_comm_desc_check_link(dti_base *base, const dt_comm_desc *d) {
    const dt_comm_link *link = &d->link;
    const struct {
        const char *name;
        uint64_t value, low, high;
    } rows[] = {
        {"latency_ns", link->latency_ns, 1, DTI_LATENCY_MOST_NS},
        {"message_ns", link->message_ns, 0, DTI_LATENCY_MOST_NS},
        {"bytes_per_s", link->bytes_per_s, DTI_BYTES_PER_S_LEAST, DTI_BYTES_PER_S_MOST},
    };
    if (!(link->latency_ns | link->message_ns | link->bytes_per_s))
        return DT_OK;
    if (d->no_link)
        return dti_fail(base, DT_ERROR_INVALID, ".link and .no_link are both set; set one of them");
    for (size_t i = 0; i < DTI_COUNT(rows); i++)
        if (rows[i].value < rows[i].low || rows[i].value > rows[i].high)
            return dti_fail(base, DT_ERROR_INVALID,
                            ".link.%s is %llu; it must be from %llu to %llu", rows[i].name,
                            (unsigned long long)rows[i].value, (unsigned long long)rows[i].low,
                            (unsigned long long)rows[i].high);
    return DT_OK;
}

/* rendezvous.c checks the part after the scheme, key.c the keys. */
static dt_result dti_comm_desc_check_rendezvous(dti_base *base, const dt_comm_desc *d) {
    if (d->insecure && (d->integrity == DT_COMM_MAC || d->integrity == DT_COMM_TLS))
        return dti_fail(base, DT_ERROR_INVALID,
                        ".insecure cannot be combined with .integrity DT_COMM_MAC or DT_COMM_TLS, "
                        "which need a key");
    if (d->transport == DT_COMM_MPI && (d->integrity == DT_COMM_MAC || d->integrity == DT_COMM_TLS))
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        ".transport DT_COMM_MPI cannot be combined with .integrity DT_COMM_MAC or "
                        "DT_COMM_TLS; use DT_COMM_TCP");
    if (d->transport == DT_COMM_MPI)
        return DT_OK;
    if (!d->rendezvous[0])
        return dti_fail(base, DT_ERROR_INVALID,
                        ".rendezvous is empty: give %d ranks \"tcp://host:port\" of rank 0, or "
                        "\"file:///path\" on a shared folder",
                        d->world_size);
    return dti_rendezvous_is_known(d->rendezvous)
               ? DT_OK
               : dti_fail(base, DT_ERROR_INVALID,
                          ".rendezvous is \"%s\"; it must begin with tcp:// or file:///",
                          d->rendezvous);
}

static dt_result dti_comm_desc_check_integrity(dti_base *base, const dt_comm_desc *d) {
    int papers = (d->tls_ca[0] != 0) + (d->tls_certificate[0] != 0) + (d->tls_private_key[0] != 0) +
                 (d->tls_name[0] != 0);
    if (d->shared_memory == DT_COMM_SHARED_REQUIRED &&
        (d->integrity == DT_COMM_TLS || d->transport == DT_COMM_MPI))
        return dti_fail(base, DT_ERROR_INVALID,
                        ".shared_memory DT_COMM_SHARED_REQUIRED cannot be combined with "
                        "DT_COMM_TLS or DT_COMM_MPI");
#ifndef DT_WITH_OPENSSL
    if (d->integrity == DT_COMM_MAC || d->integrity == DT_COMM_TLS)
        return dti_fail(
            base, DT_ERROR_UNSUPPORTED,
            ".integrity is DT_COMM_%s, which requires dtrain compiled with DT_WITH_OPENSSL",
            d->integrity == DT_COMM_MAC ? "MAC" : "TLS");
#endif
    if (papers && (papers < 4 || d->integrity != DT_COMM_TLS))
        return dti_fail(base, DT_ERROR_INVALID,
                        "certificates require .integrity DT_COMM_TLS and all of .tls_ca, "
                        ".tls_certificate, .tls_private_key and .tls_name");
    return DT_OK;
}

/* Fills in the defaults, and checks all of it. */
static dt_result dti_comm_check_desc(dti_base *base, dt_comm_desc *d) {
    DTI_TRY(dti_comm_desc_check_texts(base, d));
    if (!d->allocator.alloc != !d->allocator.free)
        return dti_fail(base, DT_ERROR_INVALID,
                        ".allocator has only one of alloc and free; set both");
    if (d->world_size == 0)
        d->world_size = 1;
    DTI_TRY(dti_comm_desc_check_numbers(base, d));
    DTI_TRY(dti_comm_desc_check_link(base, d));
    DTI_TRY(dti_comm_desc_check_integrity(base, d));
    return d->world_size > 1 ? dti_comm_desc_check_rendezvous(base, d) : DT_OK;
}

/* ---- the life of a comm */

/* Ends its use and that of all groups made from it, those first. */
static void dti_comm_end(dt_comm *comm) {
    for (dt_comm *child = comm->children; child; child = child->sibling)
        dti_comm_end(child);
    if (comm->transport)
        comm->transport->close(comm);
    comm->transport = NULL;
    comm->ended = true;
}

static dt_result dti_comm_open(dt_comm *comm, const dt_comm_desc *desc, bool owns_mpi) {
    if (desc->transport == DT_COMM_MPI)
        return dti_comm_open_mpi(comm, desc, owns_mpi);
    if (desc->world_size == 1)
        return dti_comm_open_single(comm);
    dt_result result = dti_comm_open_tcp(comm, desc);
    if (!result && (result = dti_comm_measure(comm, desc)))
        comm->transport->close(comm);
    return result;
}

static dt_result dti_comm_make(const dt_comm_desc *desc, dt_comm **out) {
    dt_comm_desc d = desc ? *desc : (dt_comm_desc){0};
    dti_base base;
    dti_base_init(&base, &d.allocator, &d.logger);
    if (!out)
        return dti_fail_null(&base, "out");
    bool owns_mpi = false, ask_mpi = d.world_size == 0;
    dt_result result = dti_comm_check_desc(&base, &d);
    if (!result && d.transport == DT_COMM_MPI)
        result = dti_mpi_enter(&base, &d, ask_mpi, &owns_mpi);
    uint32_t rank = result ? 0 : (uint32_t)d.rank, size = result ? 1 : (uint32_t)d.world_size;
    dt_comm *comm = *out = dti_comm_new(&base, NULL, rank, size);
    if (!comm && !result)
        result = DT_ERROR_MEMORY;
    if (comm)
        memcpy(comm->launcher, d.launcher, sizeof comm->launcher);
    if (!result)
        result = dti_comm_open(comm, &d, owns_mpi);
    if (result)
        dti_mpi_leave(owns_mpi);
    if (result && comm)
        comm->transport = NULL;
    dti_wipe(d.key, sizeof d.key);
    return result;
}

DT_API dt_result dt_comm_create(const dt_comm_desc *desc, dt_comm **out) {
    dti_visit visit;
    dti_enter(NULL, &visit, 0, __func__);
    return dti_leave(&visit, dti_comm_make(desc, out));
}

DTI_PUBLIC_VOID(dt_comm_destroy, (dt_comm * comm), comm, DTI_OF(dt_comm) | DTI_UNUSED, (comm)) {
    /* In a child of fork the memory is a copy, but the connections are the parent's. */
    if (dti_forked(comm->base))
        return;
    dti_comm_end(comm);
    comm->destroyed = true;
    while (comm && comm->destroyed && !comm->children) {
        dt_comm *parent = comm->parent;
        dti_comm_free(comm);
        comm = parent;
    }
}

/* Begins every call. A comm that failed keeps the error's text. */
static dt_result dti_comm_enter(dt_comm *comm) {
    if (!comm || (!comm->transport && !comm->ended))
        return DT_ERROR_INVALID;
    if (dti_forked(comm->base))
        return dti_fail(comm->base, DT_ERROR_FORKED,
                        "called in process %ld, a child of fork; the group belongs to process %ld",
                        dti_process(), comm->base->process);
    if (comm->ended)
        return dti_fail(comm->base, DT_ERROR_REVOKED,
                        "the comm that this group was made from has been destroyed");
    return DT_OK;
}

DTI_PUBLIC_GET(const char *, dt_comm_error, (const dt_comm *comm), comm,
               DTI_OF(dt_comm) | DTI_READS, (comm)) {
    return comm ? comm->base->error : dti_no_object;
}

DT_API int dt_comm_rank(const dt_comm *comm) {
    return comm ? (int)comm->rank : 0;
}

DT_API int dt_comm_size(const dt_comm *comm) {
    return comm ? (int)comm->size : 0;
}

DTI_PUBLIC_INFO(dt_comm_get_info, (const dt_comm *comm, dt_comm_info *info), comm, DTI_OF(dt_comm),
                (comm, info)) {
    info->operations = comm->operations;
    info->host_bytes = comm->base->bytes_now;
    info->host_alloc_calls = comm->base->alloc_calls;
    if (comm->transport && comm->transport->info && !dti_forked(comm->base))
        comm->transport->info(comm, info);
}

/* ---- operations */

DTI_PUBLIC_OUT(dt_comm_begin, (dt_comm * comm, const dt_comm_op *op, dt_comm_work *out), comm,
               DTI_OF(dt_comm), (comm, op, out)) {
    DTI_TRY(dti_comm_enter(comm));
    if (!op)
        return dti_fail(comm->base, DT_ERROR_INVALID, "dt_comm_begin: op is NULL");
    dt_comm_op normal = dti_coll_normal(op);
    DTI_TRY(dti_coll_check(comm, &normal));
    dt_result result = comm->transport->begin(comm, &normal, &out->id);
    comm->pending += !result;
    return result;
}

/* Whether a handle has ended, by the result of the transport's wait. */
static bool dti_comm_has_ended(dt_result result) {
    return result != DT_ERROR_TIMEOUT && result != DT_ERROR_INVALID;
}

static dt_result dti_comm_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    dt_result result = comm->transport->wait(comm, id, timeout_ns);
    comm->pending -= dti_comm_has_ended(result);
    comm->operations += result == DT_OK;
    return result;
}

DTI_PUBLIC(dt_comm_test, (dt_comm * comm, dt_comm_work work, bool *finished), comm,
           DTI_OF(dt_comm) | DTI_LACKING, (comm, work, finished)) {
    if (finished)
        *finished = false;
    DTI_TRY(dti_comm_enter(comm));
    if (!finished)
        return dti_fail(comm->base, DT_ERROR_INVALID, "dt_comm_test: finished is NULL");
    dt_result result = dti_comm_wait(comm, work.id, 0);
    *finished = dti_comm_has_ended(result);
    return result == DT_ERROR_TIMEOUT ? DT_OK : result;
}

DTI_PUBLIC(dt_comm_wait, (dt_comm * comm, dt_comm_work work, int timeout_ms), comm, DTI_OF(dt_comm),
           (comm, work, timeout_ms)) {
    DTI_TRY(dti_comm_enter(comm));
    if (timeout_ms < -1)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "timeout_ms is %d; it must be at least -1 (-1 = no limit)", timeout_ms);
    const dt_result result =
        dti_comm_wait(comm, work.id, timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000u);
    if (result != DT_ERROR_TIMEOUT)
        return result;
    char whom[256] = "it is in progress";
    if (comm->transport->waits_for)
        comm->transport->waits_for(comm, work.id, whom, sizeof whom);
    return dti_fail(comm->base, result, "not finished after %d ms: %s", timeout_ms, whom);
}

DTI_PUBLIC(dt_comm_cancel, (dt_comm * comm, dt_comm_work work), comm, DTI_OF(dt_comm),
           (comm, work)) {
    DTI_TRY(dti_comm_enter(comm));
    dt_result result = comm->transport->cancel(comm, work.id);
    comm->pending -= result != DT_ERROR_INVALID;
    comm->operations += result == DT_OK;
    return result;
}

#ifndef DT_COMM_ONLY
static void dti_comm_give_up(dt_comm *comm) {
    if (comm && !dti_comm_enter(comm) && comm->transport->give_up)
        comm->transport->give_up(comm);
}
#endif

DTI_PUBLIC(dt_comm_run, (dt_comm * comm, const dt_comm_op *op), comm, DTI_OF(dt_comm), (comm, op)) {
    dt_comm_work work;
    comm->will_wait = true;
    dt_result result = dt_comm_begin(comm, op, &work);
    if (!result)
        result = dti_comm_wait(comm, work.id, UINT64_MAX);
    comm->will_wait = false;
    return result;
}

static dt_result dti_comm_do(dt_comm *comm, dt_comm_kind kind, const void *in, void *out,
                             uint64_t count, dt_dtype dtype, dt_comm_reduction reduction,
                             int root) {
    dt_comm_op op = {.kind = kind, .in = in, .out = out, .count = count};
    op.dtype = dtype, op.reduction = reduction, op.root = root;
    return dt_comm_run(comm, &op);
}

DT_API dt_result dt_comm_send(dt_comm *comm, const void *in, uint64_t count, dt_dtype dtype,
                              int to) {
    return dti_comm_do(comm, DT_COMM_SEND, in, NULL, count, dtype, DT_COMM_SUM, to);
}

DT_API dt_result dt_comm_recv(dt_comm *comm, void *out, uint64_t count, dt_dtype dtype, int from) {
    return dti_comm_do(comm, DT_COMM_RECV, NULL, out, count, dtype, DT_COMM_SUM, from);
}

DT_API dt_result dt_comm_broadcast(dt_comm *comm, void *data, uint64_t count, dt_dtype dtype,
                                   int root) {
    return dti_comm_do(comm, DT_COMM_BROADCAST, data, data, count, dtype, DT_COMM_SUM, root);
}

DT_API dt_result dt_comm_reduce(dt_comm *comm, const void *in, void *out, uint64_t count,
                                dt_dtype dtype, dt_comm_reduction reduction, int root) {
    return dti_comm_do(comm, DT_COMM_REDUCE, in, out, count, dtype, reduction, root);
}

DT_API dt_result dt_comm_all_reduce(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype, dt_comm_reduction reduction) {
    return dti_comm_do(comm, DT_COMM_ALL_REDUCE, in, out, count, dtype, reduction, 0);
}

DT_API dt_result dt_comm_gather(dt_comm *comm, const void *in, void *out, uint64_t count,
                                dt_dtype dtype, int root) {
    return dti_comm_do(comm, DT_COMM_GATHER, in, out, count, dtype, DT_COMM_SUM, root);
}

DT_API dt_result dt_comm_all_gather(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype) {
    return dti_comm_do(comm, DT_COMM_ALL_GATHER, in, out, count, dtype, DT_COMM_SUM, 0);
}

DT_API dt_result dt_comm_scatter(dt_comm *comm, const void *in, void *out, uint64_t count,
                                 dt_dtype dtype, int root) {
    return dti_comm_do(comm, DT_COMM_SCATTER, in, out, count, dtype, DT_COMM_SUM, root);
}

DT_API dt_result dt_comm_reduce_scatter(dt_comm *comm, const void *in, void *out, uint64_t count,
                                        dt_dtype dtype, dt_comm_reduction reduction) {
    return dti_comm_do(comm, DT_COMM_REDUCE_SCATTER, in, out, count, dtype, reduction, 0);
}

DT_API dt_result dt_comm_all_to_all(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype) {
    return dti_comm_do(comm, DT_COMM_ALL_TO_ALL, in, out, count, dtype, DT_COMM_SUM, 0);
}

DT_API dt_result dt_comm_barrier(dt_comm *comm) {
    return dti_comm_do(comm, DT_COMM_BARRIER, NULL, NULL, 0, DT_F32, DT_COMM_SUM, 0);
}
