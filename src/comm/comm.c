/* The public face of the collectives. It owns what all transports share: the check of a desc and of
 * every operation, the life of a comm and of the groups made from it, and the agreements of all
 * ranks (groups, leaves), which are all-gathers of three numbers. It refuses whatever one rank can
 * see to be wrong before a transport hears of it; what only two ranks together can see (a mismatch)
 * is the transport's.
 *
 * Ids of groups: each rank keeps a lower bound of the next id in its root comm, and a new group
 * gets the largest bound among the parent's ranks. So two groups that share a rank have different
 * ids, although ranks that were not in the parent never heard of it. */

/* ---- names and sizes */

static size_t dti_dtype_bytes(dt_dtype dtype) {
    static const uint8_t bytes[] = {
#define DTI_X(id, bytes, text) [DT_##id] = bytes,
        DT_DTYPE_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)dtype < DTI_COUNT(bytes) ? bytes[dtype] : 0;
}

static const char *dti_dtype_name(dt_dtype dtype) {
    static const char *const names[] = {
#define DTI_X(id, bytes, text) [DT_##id] = text,
        DT_DTYPE_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)dtype < DTI_COUNT(names) ? names[dtype] : "an unknown type";
}

static const char *dti_kind_name(dt_comm_kind kind) {
    static const char *const names[] = {
#define DTI_X(id, text) [DT_COMM_##id] = text,
        DT_COMM_KIND_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)kind < DTI_COUNT(names) ? names[kind] : "an unknown operation";
}

/* NULL: there is no such reduction. */
static const char *dti_reduction_name(dt_comm_reduction reduction) {
    static const char *const names[] = {
#define DTI_X(id, text) [DT_COMM_##id] = text,
        DT_COMM_REDUCTION_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)reduction < DTI_COUNT(names) ? names[reduction] : NULL;
}

/* NULL: there is no such algorithm. */
static const char *dti_algorithm_name(dt_comm_algorithm algorithm) {
    static const char *const names[] = {
#define DTI_X(id, text) [DT_COMM_ALGORITHM_##id] = text,
        DT_COMM_ALGORITHM_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)algorithm < DTI_COUNT(names) ? names[algorithm] : NULL;
}

static bool dti_kind_reduces(dt_comm_kind kind) {
    return kind == DT_COMM_REDUCE || kind == DT_COMM_ALL_REDUCE || kind == DT_COMM_REDUCE_SCATTER;
}

static bool dti_kind_has_root(dt_comm_kind kind) {
    return kind == DT_COMM_SEND || kind == DT_COMM_RECV || kind == DT_COMM_BROADCAST ||
           kind == DT_COMM_REDUCE || kind == DT_COMM_GATHER || kind == DT_COMM_SCATTER;
}

static size_t dti_op_in_width(const dt_comm_op *op) {
    return dti_dtype_bytes(op->tree ? (dt_dtype)dti_sum_dtype(op->dtype, op->reduction)
                                    : op->dtype);
}

static uint64_t dti_op_in_bytes(const dt_comm_op *op, uint32_t rank, uint32_t size) {
    uint64_t bytes = op->count * dti_op_in_width(op);
    bool root = op->root == (int)rank;
    switch (op->kind) {
    case DT_COMM_SEND:
    case DT_COMM_REDUCE:
    case DT_COMM_ALL_REDUCE:
    case DT_COMM_GATHER:
    case DT_COMM_ALL_GATHER: return bytes;
    case DT_COMM_BROADCAST: return root ? bytes : 0;
    case DT_COMM_SCATTER: return root ? bytes * size : 0;
    case DT_COMM_REDUCE_SCATTER:
    case DT_COMM_ALL_TO_ALL: return bytes * size;
    case DT_COMM_RECV:
    case DT_COMM_BARRIER: break;
    }
    return 0;
}

static uint64_t dti_op_out_bytes(const dt_comm_op *op, uint32_t rank, uint32_t size) {
    uint64_t bytes = op->count * dti_dtype_bytes(op->dtype);
    bool root = op->root == (int)rank;
    switch (op->kind) {
    case DT_COMM_RECV:
    case DT_COMM_ALL_REDUCE:
    case DT_COMM_SCATTER:
    case DT_COMM_REDUCE_SCATTER: return bytes;
    case DT_COMM_BROADCAST: return root ? 0 : bytes;
    case DT_COMM_REDUCE: return root ? bytes : 0;
    case DT_COMM_GATHER: return root ? bytes * size : 0;
    case DT_COMM_ALL_GATHER:
    case DT_COMM_ALL_TO_ALL: return bytes * size;
    case DT_COMM_SEND:
    case DT_COMM_BARRIER: break;
    }
    return 0;
}

static const char *dti_op_text(const dt_comm_op *op, char text[DTI_OP_TEXT]) {
    const char *kind = dti_kind_name(op->kind);
    const char *reduction = dti_reduction_name(op->reduction);
    unsigned long long count = op->count;
    const char *dtype = dti_dtype_name(op->dtype);
    char tail[48] = "";
    if (op->kind == DT_COMM_SEND || op->kind == DT_COMM_RECV)
        snprintf(tail, sizeof tail, " %s rank %d", op->kind == DT_COMM_SEND ? "to" : "from",
                 op->root);
    else if (op->kind == DT_COMM_REDUCE)
        snprintf(tail, sizeof tail, " (%s%s), root %d", reduction, op->tree ? ", tree" : "",
                 op->root);
    else if (dti_kind_reduces(op->kind))
        snprintf(tail, sizeof tail, " (%s%s)", reduction, op->tree ? ", tree" : "");
    else if (dti_kind_has_root(op->kind))
        snprintf(tail, sizeof tail, ", root %d", op->root);
    size_t used = strlen(tail);
    if (op->algorithm && used < sizeof tail)
        snprintf(tail + used, sizeof tail - used, ", %s", dti_algorithm_name(op->algorithm));
    if (op->kind == DT_COMM_BARRIER)
        snprintf(text, DTI_OP_TEXT, "%s", kind);
    else
        snprintf(text, DTI_OP_TEXT, "%s of %llu %s%s", kind, count, dtype, tail);
    return text;
}

static bool dti_op_agrees(const dt_comm_op *a, const dt_comm_op *b) {
    if (a->count != b->count || a->dtype != b->dtype || a->algorithm != b->algorithm)
        return false;
    bool pair = (a->kind == DT_COMM_SEND && b->kind == DT_COMM_RECV) ||
                (a->kind == DT_COMM_RECV && b->kind == DT_COMM_SEND);
    return pair || (a->kind == b->kind && a->reduction == b->reduction && a->root == b->root &&
                    a->tree == b->tree);
}

/* ---- the desc */

#define DTI_RANKS_MAX 65535 /* a step's peer has 16 bits */

static dt_result dti_desc_wrong_int(dti_base *base, const char *name, int value, int low,
                                    int high) {
    return dti_fail(base, DT_ERROR_INVALID, "%s is %d, not in %d .. %d", name, value, low, high);
}

/* Every text must end within its array, or a later read of it would run on. */
static dt_result dti_desc_check_texts(dti_base *base, const dt_comm_desc *d) {
    const struct {
        const char *name, *text;
        size_t size;
    } texts[] = {
        {"rendezvous", d->rendezvous, sizeof d->rendezvous},
        {"job", d->job, sizeof d->job},
        {"key", d->key, sizeof d->key},
        {"key_file", d->key_file, sizeof d->key_file},
        {"interfaces", d->interfaces, sizeof d->interfaces},
        {"launcher", d->launcher, sizeof d->launcher},
        {"note", d->note, sizeof d->note},
        {"error", d->error, sizeof d->error},
    };
    for (size_t i = 0; i < DTI_COUNT(texts); i++)
        if (!memchr(texts[i].text, 0, texts[i].size))
            return dti_fail(base, DT_ERROR_INVALID, "%s has no end within its %d bytes",
                            texts[i].name, (int)texts[i].size);
    if (d->error[0])
        return dti_fail(base, DT_ERROR_INVALID, "%s", d->error);
    if (d->note[0])
        dti_log(base, DT_LOG_WARNING, "%s", d->note);
    return DT_OK;
}

static dt_result dti_desc_check_ranks(dti_base *base, const dt_comm_desc *d) {
    if (d->world_size < 1 || d->world_size > DTI_RANKS_MAX)
        return dti_desc_wrong_int(base, "world_size", d->world_size, 1, DTI_RANKS_MAX);
    if (d->rank < 0 || d->rank >= d->world_size)
        return dti_desc_wrong_int(base, "rank", d->rank, 0, d->world_size - 1);
    if (d->local_size < 0 || d->local_size > d->world_size)
        return dti_desc_wrong_int(base, "local_size", d->local_size, 0, d->world_size);
    int local = d->local_size ? d->local_size : d->world_size;
    if (d->local_rank < 0 || d->local_rank >= local)
        return dti_desc_wrong_int(base, "local_rank", d->local_rank, 0, local - 1);
    return DT_OK;
}

/* Fills in the defaults of the numbers, then checks their ranges: one row each. */
static dt_result dti_desc_check_numbers(dti_base *base, dt_comm_desc *d) {
    const struct {
        const char *name;
        int *value, otherwise, low, high;
    } rows[] = {
        {"port_low", &d->port_low, 0, 0, 65535},
        {"port_high", &d->port_high, 0, 0, 65535},
        {"sockets", &d->sockets, 1, 1, 16},
        {"chunk_bytes", &d->chunk_bytes, 64 << 10, 4 << 10, 8 << 20},
        {"window", &d->window, 4, 1, 64},
        {"join_timeout_ms", &d->join_timeout_ms, 300000, 1, INT_MAX},
        {"silence_ms", &d->silence_ms, 5000, 1, INT_MAX},
        {"op_timeout_ms", &d->op_timeout_ms, 0, 0, INT_MAX},
    };
    for (size_t i = 0; i < DTI_COUNT(rows); i++) {
        if (*rows[i].value == 0)
            *rows[i].value = rows[i].otherwise;
        if (*rows[i].value < rows[i].low || *rows[i].value > rows[i].high)
            return dti_desc_wrong_int(base, rows[i].name, *rows[i].value, rows[i].low,
                                      rows[i].high);
    }
    if (d->port_low > d->port_high)
        return dti_fail(base, DT_ERROR_INVALID, "port_low %d is above port_high %d", d->port_low,
                        d->port_high);
    return DT_OK;
}

/* What is behind the scheme is rendezvous.c's to check, and keys are key.c's. */
static dt_result dti_desc_check_meeting(dti_base *base, const dt_comm_desc *d) {
    static const char *const schemes[] = {"tcp://", "file:///", "pmix:", "pmi:", "tcpstore://"};
    if (d->insecure && (d->integrity == DT_COMM_MAC || d->integrity == DT_COMM_TLS))
        return dti_fail(base, DT_ERROR_INVALID, "insecure is set, but MAC and TLS need a key");
    if (d->transport == DT_COMM_MPI)
        return DT_OK;
    if (!d->rendezvous[0])
        return dti_fail(base, DT_ERROR_INVALID,
                        "rendezvous is empty: %d ranks need a place to meet, \"tcp://host:port\" "
                        "of rank 0 or \"file:///path\" on a shared folder",
                        d->world_size);
    for (size_t i = 0; i < DTI_COUNT(schemes); i++)
        if (!strncmp(d->rendezvous, schemes[i], strlen(schemes[i])))
            return DT_OK;
    return dti_fail(base, DT_ERROR_INVALID,
                    "rendezvous \"%s\" begins neither with tcp:// nor with file:///",
                    d->rendezvous);
}

static dt_result dti_comm_check_desc(dti_base *base, dt_comm_desc *d) {
    dt_result result = dti_desc_check_texts(base, d);
    if (result)
        return result;
    if (!d->allocator.alloc != !d->allocator.free)
        return dti_fail(base, DT_ERROR_INVALID, "allocator has alloc or free but not both");
    if (d->world_size == 0)
        d->world_size = 1;
    if ((result = dti_desc_check_ranks(base, d)) || (result = dti_desc_check_numbers(base, d)))
        return result;
    if ((unsigned)d->transport > DT_COMM_MPI)
        return dti_desc_wrong_int(base, "transport", (int)d->transport, 0, DT_COMM_MPI);
    if ((unsigned)d->integrity > DT_COMM_NONE)
        return dti_desc_wrong_int(base, "integrity", (int)d->integrity, 0, DT_COMM_NONE);
#ifndef DT_WITH_OPENSSL
    if (d->integrity == DT_COMM_MAC || d->integrity == DT_COMM_TLS)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "integrity is %s, which needs dtrain compiled with DT_WITH_OPENSSL",
                        d->integrity == DT_COMM_MAC ? "MAC" : "TLS");
#endif
    return d->world_size > 1 ? dti_desc_check_meeting(base, d) : DT_OK;
}

/* ---- the life of a comm */

static long dti_process(void) {
#ifdef _WIN32
    return 0; /* which has no fork */
#else
    return (long)getpid();
#endif
}

static dt_comm *dti_comm_new(dti_base *base, dt_comm *parent, uint32_t rank, uint32_t size) {
    dt_comm *comm = dti_alloc(base, sizeof *comm);
    /* votes, and behind them the room that `leaves` will point to: an agreement must not be able
     * to fail on one rank alone */
    uint64_t *votes = comm ? dti_alloc_array(base, size, 4 * sizeof *votes) : NULL;
    uint32_t *ranks = votes && parent ? dti_alloc_array(base, size, sizeof *ranks) : NULL;
    if (!votes || (parent && !ranks)) {
        dti_free(base, votes);
        dti_free(base, comm);
        return NULL;
    }
    comm->rank = rank, comm->size = size;
    comm->votes = votes, comm->ranks = ranks;
    comm->next_group = 1;
    comm->process = dti_process();
    comm->parent = parent;
    comm->base = base;
    if (parent) {
        comm->sibling = parent->children;
        parent->children = comm;
    } else {
        comm->own_base = *base;
        comm->base = &comm->own_base;
    }
    return comm;
}

static void dti_comm_free(dt_comm *comm) {
    dti_base *base = comm->base;
    for (dt_comm **at = comm->parent ? &comm->parent->children : NULL; at && *at;
         at = &(*at)->sibling)
        if (*at == comm) {
            *at = comm->sibling;
            break;
        }
    dti_free(base, comm->ranks);
    dti_free(base, comm->votes);
    dti_base last = *base; /* a root's own memory holds its base */
    dti_free(comm->parent ? base : &last, comm);
}

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
    return desc->world_size == 1 ? dti_comm_open_single(comm) : dti_comm_open_tcp(comm, desc);
}

DT_API dt_result dt_comm_create(const dt_comm_desc *desc, dt_comm **out) {
    if (!out)
        return DT_ERROR_INVALID;
    dt_comm_desc d = desc ? *desc : (dt_comm_desc){0};
    dti_base base;
    dti_base_init(&base, &d.allocator, &d.logger);
    bool owns_mpi = false, ask_mpi = d.world_size == 0;
    dt_result result = dti_comm_check_desc(&base, &d);
    if (!result && d.transport == DT_COMM_MPI)
        result = dti_mpi_enter(&base, &d, ask_mpi, &owns_mpi);
    uint32_t rank = result ? 0 : (uint32_t)d.rank, size = result ? 1 : (uint32_t)d.world_size;
    dt_comm *comm = *out = dti_comm_new(&base, NULL, rank, size);
    if (!comm && !result)
        result = DT_ERROR_MEMORY;
    if (!result)
        result = dti_comm_open(comm, &d, owns_mpi);
    if (result)
        dti_mpi_leave(owns_mpi);
    if (result && comm)
        comm->transport = NULL;
    volatile char *key = d.key; /* the copy on the stack goes; the compiler must not skip it */
    for (size_t i = 0; i < sizeof d.key; i++)
        key[i] = 0;
    return result;
}

DT_API void dt_comm_destroy(dt_comm *comm) {
    /* In a child of fork the memory is a copy, but the connections are the parent's. */
    if (!comm || comm->process != dti_process())
        return;
    dti_comm_end(comm);
    comm->destroyed = true;
    while (comm && comm->destroyed && !comm->children) {
        dt_comm *parent = comm->parent;
        dti_comm_free(comm);
        comm = parent;
    }
}

/* What every call begins with. A comm that failed keeps the text of why. */
static dt_result dti_comm_enter(dt_comm *comm) {
    if (!comm || (!comm->transport && !comm->ended))
        return DT_ERROR_INVALID;
    if (comm->process != dti_process())
        return dti_fail(comm->base, DT_ERROR_FORKED,
                        "called in process %ld, a child of fork; process %ld has the group",
                        dti_process(), comm->process);
    if (comm->ended)
        return dti_fail(comm->base, DT_ERROR_REVOKED,
                        "the comm that this group was made from has been destroyed");
    return DT_OK;
}

DT_API const char *dt_comm_error(const dt_comm *comm) {
    return comm ? comm->base->error : "";
}

DT_API int dt_comm_rank(const dt_comm *comm) {
    return comm ? (int)comm->rank : 0;
}

DT_API int dt_comm_size(const dt_comm *comm) {
    return comm ? (int)comm->size : 0;
}

DT_API void dt_comm_get_info(const dt_comm *comm, dt_comm_info *info) {
    if (!info)
        return;
    *info = (dt_comm_info){0};
    if (!comm)
        return;
    info->operations = comm->operations;
    info->host_bytes = comm->base->bytes_now;
    info->host_alloc_calls = comm->base->alloc_calls;
    if (comm->transport && comm->transport->info && comm->process == dti_process())
        comm->transport->info(comm, info);
}

/* ---- the check of an operation */

/* Takes out what the kind does not use, so that ranks never differ in it. */
static dt_comm_op dti_op_normal(const dt_comm_op *op) {
    dt_comm_op o = *op;
    if (o.kind == DT_COMM_BARRIER)
        return (dt_comm_op){.kind = o.kind, .algorithm = o.algorithm};
    if (!dti_kind_reduces(o.kind))
        o.reduction = DT_COMM_SUM;
    if (!dti_kind_has_root(o.kind))
        o.root = 0;
    return o;
}

static dt_result dti_op_check_enums(dti_base *base, const dt_comm_op *op) {
    const char *kind = dti_kind_name(op->kind);
    if ((unsigned)op->kind > DT_COMM_BARRIER)
        return dti_fail(base, DT_ERROR_INVALID, "kind %d: there is no such operation",
                        (int)op->kind);
    if (!dti_dtype_bytes(op->dtype))
        return dti_fail(base, DT_ERROR_INVALID, "%s: dtype %d: there is no such type", kind,
                        (int)op->dtype);
    if (!dti_reduction_name(op->reduction))
        return dti_fail(base, DT_ERROR_INVALID, "%s: reduction %d: there is no such reduction",
                        kind, (int)op->reduction);
    if (!dti_algorithm_name(op->algorithm))
        return dti_fail(base, DT_ERROR_INVALID, "%s: algorithm %d: there is no such algorithm",
                        kind, (int)op->algorithm);
    return DT_OK;
}

static dt_result dti_op_check_root(const dt_comm *comm, const dt_comm_op *op) {
    if (!dti_kind_has_root(op->kind))
        return DT_OK;
    const char *kind = dti_kind_name(op->kind);
    bool pair = op->kind == DT_COMM_SEND || op->kind == DT_COMM_RECV;
    if (op->root < 0 || op->root >= (int)comm->size)
        return dti_fail(comm->base, DT_ERROR_INVALID, "%s: %s %d is not in 0 .. %d", kind,
                        pair ? "rank" : "root", op->root, (int)comm->size - 1);
    if (pair && op->root == (int)comm->rank)
        return dti_fail(comm->base, DT_ERROR_INVALID, "%s: rank %d is this rank itself: copy", kind,
                        op->root);
    return DT_OK;
}

static dt_result dti_op_check_tree(const dt_comm *comm, const dt_comm_op *op) {
    if (!op->tree)
        return DT_OK;
    const char *kind = dti_kind_name(op->kind);
    if (op->kind != DT_COMM_REDUCE && op->kind != DT_COMM_ALL_REDUCE)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s in tree mode: only reduce and all-reduce have it", kind);
    if (op->dtype == DT_I32 || op->dtype == DT_I64 || op->dtype == DT_U8)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s of %s in tree mode: it is for floats; the order of integers is free",
                        kind, dti_dtype_name(op->dtype));
    if (!comm->leaves)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s in tree mode without leaves: call dt_comm_set_leaves first", kind);
    return DT_OK;
}

/* How many buffers one after another `in` has at this rank. */
static uint64_t dti_op_buffers(const dt_comm *comm, const dt_comm_op *op) {
    dt_comm_span spans[64];
    if (!op->tree)
        return 1;
    dt_comm_span mine = comm->leaves[comm->rank];
    return dti_leaf_spans(mine.first, mine.count, comm->leaf_total, spans);
}

static dt_result dti_op_check_bytes(const dt_comm *comm, const dt_comm_op *op) {
    uint64_t width = dti_op_in_width(op);
    /* for all ranks alike, and 64 buffers or every rank's share must have an address */
    uint64_t most = PTRDIFF_MAX / width / (op->tree ? DTI_MAX(comm->size, 64) : comm->size);
    if (op->count > most)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s: count %llu of %s at %d ranks is more than memory has addresses; at "
                        "most %llu",
                        dti_kind_name(op->kind), (unsigned long long)op->count,
                        dti_dtype_name(op->dtype), (int)comm->size, (unsigned long long)most);
    return DT_OK;
}

/* In place is what the public comment of dt_comm_op says. */
static dt_result dti_op_check_overlap(const dt_comm *comm, const dt_comm_op *op, uint64_t in_bytes,
                                      uint64_t out_bytes) {
    uintptr_t in = (uintptr_t)op->in, out = (uintptr_t)op->out;
    bool same = in == out && dti_op_in_width(op) == dti_dtype_bytes(op->dtype);
    if (!in_bytes || !out_bytes || same || in + in_bytes <= out || out + out_bytes <= in)
        return DT_OK;
    uint64_t place = op->count * dti_dtype_bytes(op->dtype) * comm->rank;
    bool gathers = op->kind == DT_COMM_GATHER || op->kind == DT_COMM_ALL_GATHER;
    bool scatters = op->kind == DT_COMM_SCATTER || op->kind == DT_COMM_REDUCE_SCATTER;
    if ((gathers && in == out + place) || (scatters && out == in + place))
        return DT_OK;
    char text[DTI_OP_TEXT];
    return dti_fail(comm->base, DT_ERROR_INVALID,
                    "%s: in (%llu bytes) and out (%llu bytes) overlap, out being %lld bytes behind "
                    "in; in place means in = out%s",
                    dti_op_text(op, text), (unsigned long long)in_bytes,
                    (unsigned long long)out_bytes, (long long)(out - in),
                    gathers || scatters ? ", or at this rank's own place" : "");
}

/* Also takes away buffers that the operation does not touch here. */
static dt_result dti_op_check_buffers(const dt_comm *comm, dt_comm_op *op) {
    char text[DTI_OP_TEXT];
    uint64_t in_bytes = dti_op_in_bytes(op, comm->rank, comm->size) * dti_op_buffers(comm, op);
    uint64_t out_bytes = dti_op_out_bytes(op, comm->rank, comm->size);
    if (!in_bytes)
        op->in = NULL;
    if (!out_bytes)
        op->out = NULL;
    bool no_in = in_bytes && !op->in;
    if (no_in || (out_bytes && !op->out))
        return dti_fail(comm->base, DT_ERROR_INVALID, "%s: %s is NULL; rank %d needs %llu bytes",
                        dti_op_text(op, text), no_in ? "in" : "out", (int)comm->rank,
                        (unsigned long long)(no_in ? in_bytes : out_bytes));
    if ((uintptr_t)op->in > UINTPTR_MAX - in_bytes || (uintptr_t)op->out > UINTPTR_MAX - out_bytes)
        return dti_fail(comm->base, DT_ERROR_INVALID, "%s: a buffer runs past the end of memory",
                        dti_op_text(op, text));
    return dti_op_check_overlap(comm, op, in_bytes, out_bytes);
}

/* One that was asked for must exist, whoever does the operation. */
static dt_result dti_op_check_algorithm(const dt_comm *comm, const dt_comm_op *op) {
    dti_collective c = {.op = *op, .rank = comm->rank, .size = comm->size};
    dt_comm_algorithm chosen;
    c.leaves = comm->leaves, c.leaf_total = comm->leaf_total;
    if (!op->algorithm || dti_algorithm_choose(comm->base, &c, &chosen))
        return DT_OK;
    return DT_ERROR_INVALID;
}

static dt_result dti_op_check(const dt_comm *comm, dt_comm_op *op) {
    dt_result result = dti_op_check_enums(comm->base, op);
    if (!result)
        result = dti_op_check_root(comm, op);
    if (!result)
        result = dti_op_check_tree(comm, op);
    if (!result)
        result = dti_op_check_bytes(comm, op);
    if (!result)
        result = dti_op_check_buffers(comm, op);
    return result ? result : dti_op_check_algorithm(comm, op);
}

/* ---- operations */

DT_API dt_result dt_comm_begin(dt_comm *comm, const dt_comm_op *op, dt_comm_work *out) {
    if (out)
        *out = (dt_comm_work){0};
    dt_result result = dti_comm_enter(comm);
    if (result)
        return result;
    if (!op || !out)
        return dti_fail(comm->base, DT_ERROR_INVALID, "dt_comm_begin: %s is NULL",
                        op ? "out" : "op");
    dt_comm_op normal = dti_op_normal(op);
    result = dti_op_check(comm, &normal);
    if (result)
        return result;
    unsigned saved = dti_fp_enter();
    result = comm->transport->begin(comm, &normal, &out->id);
    dti_fp_leave(saved);
    comm->pending += !result;
    return result;
}

/* Whether a handle has ended by what the transport's wait returned. */
static bool dti_comm_has_ended(const dt_comm *comm, dt_result result) {
    return result == DT_ERROR_TIMEOUT ? comm->late : result != DT_ERROR_INVALID;
}

static dt_result dti_comm_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    comm->late = false;
    unsigned saved = dti_fp_enter();
    dt_result result = comm->transport->wait(comm, id, timeout_ns);
    dti_fp_leave(saved);
    comm->pending -= dti_comm_has_ended(comm, result);
    comm->operations += result == DT_OK;
    return result;
}

DT_API dt_result dt_comm_test(dt_comm *comm, dt_comm_work work, bool *finished) {
    if (finished)
        *finished = false;
    dt_result result = dti_comm_enter(comm);
    if (result)
        return result;
    if (!finished)
        return dti_fail(comm->base, DT_ERROR_INVALID, "dt_comm_test: finished is NULL");
    result = dti_comm_wait(comm, work.id, 0);
    *finished = dti_comm_has_ended(comm, result);
    return result == DT_ERROR_TIMEOUT && !*finished ? DT_OK : result;
}

DT_API dt_result dt_comm_wait(dt_comm *comm, dt_comm_work work, int timeout_ms) {
    dt_result result = dti_comm_enter(comm);
    if (result)
        return result;
    if (timeout_ms < -1)
        return dti_fail(comm->base, DT_ERROR_INVALID, "timeout_ms is %d; -1 is no limit",
                        timeout_ms);
    result =
        dti_comm_wait(comm, work.id, timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000u);
    if (result != DT_ERROR_TIMEOUT || comm->late)
        return result;
    char whom[256] = "it is under way";
    if (comm->transport->waits_for)
        comm->transport->waits_for(comm, work.id, whom, sizeof whom);
    return dti_fail(comm->base, result, "not finished after %d ms: %s", timeout_ms, whom);
}

DT_API dt_result dt_comm_cancel(dt_comm *comm, dt_comm_work work) {
    dt_result result = dti_comm_enter(comm);
    if (result)
        return result;
    result = comm->transport->cancel(comm, work.id);
    comm->pending -= result != DT_ERROR_INVALID;
    comm->operations += result == DT_OK;
    return result;
}

DT_API dt_result dt_comm_run(dt_comm *comm, const dt_comm_op *op) {
    dt_comm_work work;
    if (comm)
        comm->will_wait = true;
    dt_result result = dt_comm_begin(comm, op, &work);
    if (comm)
        comm->will_wait = false;
    return result ? result : dti_comm_wait(comm, work.id, UINT64_MAX);
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

/* ---- agreements: every rank learns all ranks' three numbers, and comes to the same verdict */

#define DTI_VOTE 3

static dt_result dti_comm_vote(dt_comm *comm, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t *mine = comm->votes + DTI_VOTE * comm->rank;
    mine[0] = a, mine[1] = b, mine[2] = c;
    return dt_comm_all_gather(comm, mine, comm->votes, DTI_VOTE, DT_I64);
}

/* Ascending ranks of the parent. */
static dt_result dti_group_check_list(dt_comm *parent, const int *ranks, int count) {
    if (count < 1 || count > (int)parent->size || !ranks)
        return dti_fail(parent->base, DT_ERROR_INVALID,
                        "dt_comm_group_create: %d ranks%s; a group has 1 to %d", count,
                        ranks ? "" : " at NULL", (int)parent->size);
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= (int)parent->size)
            return dti_fail(parent->base, DT_ERROR_INVALID,
                            "dt_comm_group_create: ranks[%d] is %d, not in 0 .. %d", i, ranks[i],
                            (int)parent->size - 1);
        if (i && ranks[i] <= ranks[i - 1])
            return dti_fail(parent->base, DT_ERROR_INVALID,
                            "dt_comm_group_create: ranks[%d] is %d after %d; they must ascend", i,
                            ranks[i], ranks[i - 1]);
    }
    return DT_OK;
}

/* Tells a failure that ranks have voted third. */
static dt_result dti_group_failed(dt_comm *parent) {
    for (uint32_t r = 0; r < parent->size; r++) {
        dt_result failure = (dt_result)parent->votes[DTI_VOTE * r + 2];
        if (failure)
            return dti_fail(parent->base, DT_ERROR_MEMORY,
                            "dt_comm_group_create: rank %d failed: %s", (int)r,
                            dt_result_text(failure));
    }
    return DT_OK;
}

/* All ranks must have given the same list; hash 0: this one's is wrong. Moves the id on anyhow.
 * `failed`: this rank cannot make it. */
static dt_result dti_group_agree(dt_comm *parent, dt_comm *root, uint64_t hash, dt_result failed,
                                 uint32_t *id) {
    dt_result result = dti_comm_vote(parent, hash, root->next_group, (uint64_t)failed);
    if (result)
        return result;
    const uint64_t *votes = parent->votes;
    uint32_t other = parent->size;
    for (uint32_t r = parent->size; r-- > 0;) {
        root->next_group = DTI_MAX(root->next_group, (uint32_t)votes[DTI_VOTE * r + 1]);
        if (hash && votes[DTI_VOTE * r] != hash)
            other = r;
    }
    *id = root->next_group++;
    if (other == parent->size)
        return dti_group_failed(parent);
    return dti_fail(parent->base, DT_ERROR_MISMATCH,
                    "dt_comm_group_create: the list of ranks of rank %d is %s rank %d", (int)other,
                    votes[DTI_VOTE * other] ? "not that of" : "wrong; this is", (int)parent->rank);
}

/* Without a transport; NULL: not in the list, or *result tells why. */
static dt_comm *dti_group_make(dt_comm *parent, const int *ranks, int count, dt_result *result) {
    int at = 0;
    while (at < count && ranks[at] != (int)parent->rank)
        at++;
    if (at == count)
        return NULL;
    dt_comm *child = dti_comm_new(parent->base, parent, (uint32_t)at, (uint32_t)count);
    if (!child) {
        *result = DT_ERROR_MEMORY;
        return NULL;
    }
    for (int i = 0; i < count; i++)
        child->ranks[i] = parent->ranks ? parent->ranks[ranks[i]] : (uint32_t)ranks[i];
    return child;
}

static void dti_group_undo(dt_comm *child) {
    if (!child)
        return;
    dti_comm_end(child);
    dti_comm_free(child);
}

DT_API dt_result dt_comm_group_create(dt_comm *parent, const int *ranks, int count, dt_comm **out) {
    if (out)
        *out = NULL;
    dt_result result = dti_comm_enter(parent);
    if (result)
        return result;
    if (!out)
        return dti_fail(parent->base, DT_ERROR_INVALID, "dt_comm_group_create: out is NULL");
    dt_comm *root = parent;
    while (root->parent)
        root = root->parent;
    /* A rank with a wrong list takes part, or the others would wait for it. */
    dt_result mine = dti_group_check_list(parent, ranks, count);
    uint64_t hash = 0;
    dt_comm *child = NULL;
    if (!mine)
        hash = 1 | dti_hash64(14695981039346656037u, ranks, sizeof *ranks * (size_t)count);
    dt_result failed = DT_OK;
    if (!mine)
        child = dti_group_make(parent, ranks, count, &failed);
    uint32_t id = 0;
    result = dti_group_agree(parent, root, hash, failed, &id);
    if (!result && !mine) {
        /* A group that one of its ranks has no memory for is no group. */
        if (child) {
            child->group_id = id;
            mine = parent->transport->group(parent, child);
        }
        result = dti_comm_vote(parent, 0, 0, (uint64_t)mine);
        if (!result && !mine)
            result = dti_group_failed(parent);
    }
    if (result || mine) {
        dti_group_undo(child);
        return mine ? mine : result;
    }
    *out = child;
    return DT_OK;
}

/* The spans of all ranks from the votes; what is wrong with them is wrong for all. */
static dt_result dti_leaves_check(dt_comm *comm) {
    const uint64_t *votes = comm->votes;
    uint64_t total = votes[1], next = 0;
    for (uint32_t r = 0; r < comm->size; r++) {
        const uint64_t *vote = votes + DTI_VOTE * r;
        uint64_t first = vote[0] >> 32, count = vote[0] & UINT32_MAX;
        if (vote[2])
            return dti_fail(comm->base, DT_ERROR_INVALID,
                            "dt_comm_set_leaves: rank %d has operations under way; wait first",
                            (int)r);
        if (vote[1] != total)
            return dti_fail(comm->base, DT_ERROR_MISMATCH,
                            "dt_comm_set_leaves: %u leaves in all at rank %d, %u at rank 0",
                            (unsigned)vote[1], (int)r, (unsigned)total);
        if (first != next)
            return dti_fail(comm->base, DT_ERROR_INVALID,
                            "dt_comm_set_leaves: rank %d begins at leaf %u, but the ranks before "
                            "it end at %llu",
                            (int)r, (unsigned)first, (unsigned long long)next);
        next += count;
    }
    if (!total || next != total)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "dt_comm_set_leaves: rank %d ends at leaf %llu of %llu%s",
                        (int)comm->size - 1, (unsigned long long)next, (unsigned long long)total,
                        total ? "" : "; there must be one");
    return DT_OK;
}

DT_API dt_result dt_comm_set_leaves(dt_comm *comm, uint32_t first, uint32_t count, uint32_t total,
                                    int *buffers, dt_comm_span spans[64]) {
    if (buffers)
        *buffers = 0;
    dt_result result = dti_comm_enter(comm);
    if (result)
        return result;
    bool busy = comm->pending > 0;
    result = dti_comm_vote(comm, (uint64_t)first << 32 | count, total, busy);
    if (!result)
        result = dti_leaves_check(comm);
    if (result)
        return result;
    comm->leaves = (dt_comm_span *)(void *)(comm->votes + DTI_VOTE * comm->size);
    for (uint32_t r = 0; r < comm->size; r++) {
        uint64_t vote = comm->votes[DTI_VOTE * r];
        comm->leaves[r] = (dt_comm_span){(uint32_t)(vote >> 32), (uint32_t)vote};
    }
    comm->leaf_total = total;
    comm->leaf_changes++;
    dt_comm_span unused[64];
    int made = (int)dti_leaf_spans(first, count, total, spans ? spans : unused);
    if (buffers)
        *buffers = made;
    return DT_OK;
}
