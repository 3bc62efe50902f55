/* One operation as the application describes it: its sizes, and its check. A rank refuses here all
 * errors that it can see by itself. They are kinds, roots, counts, buffers that overlap, or an
 * algorithm that does not exist. It clears fields that the kind does not use, so ranks never differ
 * in them. Transports find mismatches, which only two ranks together can see; dti_coll_agrees
 * defines them. */

/* ---- sizes and texts */

/* Bytes of an element of `in`. */
static size_t dti_coll_in_width(const dt_comm_op *op) {
    return dti_dtype_bytes(op->tree ? (dt_dtype)dti_fold_dtype(op->dtype, op->reduction)
                                    : op->dtype);
}

/* Bytes of `in` and `out` at `rank` of `size`; 0 where it has none. In tree mode of one buffer. */
static uint64_t dti_coll_in_bytes(const dt_comm_op *op, uint32_t rank, uint32_t size) {
    return op->count * dti_coll_in_width(op) * dti_kind_blocks(op, true, rank, size);
}

static uint64_t dti_coll_out_bytes(const dt_comm_op *op, uint32_t rank, uint32_t size) {
    return op->count * dti_dtype_bytes(op->dtype) * dti_kind_blocks(op, false, rank, size);
}

#define DTI_COLL_TEXT 96
/* "all-reduce of 5 f32 (sum)", "send of 3 i32 to rank 1": for messages. Returns text. */
static const char *dti_coll_text(const dt_comm_op *op, char text[DTI_COLL_TEXT]) {
    const char *kind = dti_kind_name(op->kind);
    const char *reduction = dti_reduction_name(op->reduction);
    unsigned long long count = op->count;
    const char *dtype = dti_dtype_name(op->dtype);
    char tail[48] = "";
    const bool pair = dti_kind_is_p2p(op->kind);
    int used = 0;
    if (pair)
        used = snprintf(tail, sizeof tail, " %s rank %d", op->kind == DT_COMM_SEND ? "to" : "from",
                        op->root);
    else if (dti_kind_reduces(op->kind))
        used = snprintf(tail, sizeof tail, " (%s%s)", reduction, op->tree ? ", tree" : "");
    if (dti_kind_of(op->kind)->has_root && !pair)
        used += snprintf(tail + used, sizeof tail - (size_t)used, ", root %d", op->root);
    if (op->algorithm)
        snprintf(tail + used, sizeof tail - (size_t)used, ", %s",
                 dti_algorithm_name(op->algorithm));
    if (op->kind == DT_COMM_BARRIER)
        snprintf(text, DTI_COLL_TEXT, "%s", kind);
    else
        snprintf(text, DTI_COLL_TEXT, "%s of %llu %s%s", kind, count, dtype, tail);
    return text;
}

/* Whether two ranks' operations match: in everything except the buffers. send and recv match each
 * other. */
static bool dti_coll_agrees(const dt_comm_op *a, const dt_comm_op *b) {
    if (a->count != b->count || a->dtype != b->dtype || a->algorithm != b->algorithm)
        return false;
    bool pair = (a->kind == DT_COMM_SEND && b->kind == DT_COMM_RECV) ||
                (a->kind == DT_COMM_RECV && b->kind == DT_COMM_SEND);
    return pair || (a->kind == b->kind && a->reduction == b->reduction && a->root == b->root &&
                    a->tree == b->tree);
}

/* ---- the check of an operation */

/* Clears fields that the kind does not use, so ranks never differ in them. */
static dt_comm_op dti_coll_normal(const dt_comm_op *op) {
    dt_comm_op o = *op;
    if (o.kind == DT_COMM_BARRIER)
        return (dt_comm_op){.kind = o.kind, .algorithm = o.algorithm};
    if (!dti_kind_reduces(o.kind))
        o.reduction = DT_COMM_SUM;
    if (!dti_kind_of(o.kind)->has_root)
        o.root = 0;
    return o;
}

static dt_result dti_coll_check_enums(dti_base *base, const dt_comm_op *op) {
    const char *kind = dti_kind_name(op->kind);
    if ((unsigned)op->kind > DT_COMM_BARRIER)
        return dti_fail(base, DT_ERROR_INVALID, ".kind is %d; it must be a dt_comm_kind",
                        (int)op->kind);
    if (!dti_dtype_bytes(op->dtype))
        return dti_fail(base, DT_ERROR_INVALID, "%s: .dtype is %d; it must be a dt_dtype", kind,
                        (int)op->dtype);
    if (!dti_reduction_name(op->reduction))
        return dti_fail(base, DT_ERROR_INVALID,
                        "%s: .reduction is %d; it must be a dt_comm_reduction", kind,
                        (int)op->reduction);
    if (!dti_algorithm_name(op->algorithm))
        return dti_fail(base, DT_ERROR_INVALID,
                        "%s: .algorithm is %d; it must be a dt_comm_algorithm", kind,
                        (int)op->algorithm);
    return DT_OK;
}

static dt_result dti_coll_check_root(const dt_comm *comm, const dt_comm_op *op) {
    if (!dti_kind_of(op->kind)->has_root)
        return DT_OK;
    const char *kind = dti_kind_name(op->kind);
    bool pair = dti_kind_is_p2p(op->kind);
    if (op->root < 0 || op->root >= (int)comm->size)
        return dti_fail(comm->base, DT_ERROR_INVALID, "%s: %s is %d; it must be from 0 to %d", kind,
                        pair ? "rank" : "root", op->root, (int)comm->size - 1);
    if (pair && op->root == (int)comm->rank)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s: rank is %d, this rank itself; copy the data instead", kind, op->root);
    return DT_OK;
}

static dt_result dti_coll_check_tree(const dt_comm *comm, const dt_comm_op *op) {
    if (!op->tree)
        return DT_OK;
    const char *kind = dti_kind_name(op->kind);
    if (op->kind != DT_COMM_REDUCE && op->kind != DT_COMM_ALL_REDUCE)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s: .tree is set, but only reduce and all-reduce support it", kind);
    if (op->dtype == DT_I32 || op->dtype == DT_I64 || op->dtype == DT_U8)
        return dti_fail(
            comm->base, DT_ERROR_INVALID,
            "%s: .tree is set and .dtype is %s; integer sums need no order, so leave .tree out",
            kind, dti_dtype_name(op->dtype));
    if (!comm->leaves)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s: .tree is set; call dt_comm_set_leaves first", kind);
    return DT_OK;
}

/* The number of consecutive buffers in `in` at this rank. */
static uint64_t dti_coll_buffers(const dt_comm *comm, const dt_comm_op *op) {
    dt_comm_span spans[64];
    if (!op->tree)
        return 1;
    dt_comm_span mine = comm->leaves[comm->rank];
    return dti_tree_spans(mine.first, mine.count, comm->leaf_total, spans);
}

static dt_result dti_coll_check_bytes(const dt_comm *comm, const dt_comm_op *op) {
    uint64_t width = dti_coll_in_width(op);
    /* for all ranks alike, and 64 buffers or every rank's share must have an address */
    uint64_t most = PTRDIFF_MAX / width / (op->tree ? DTI_MAX(comm->size, 64) : comm->size);
    if (op->count > most)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s: .count is %llu of %s for %d ranks; it must be at most %llu",
                        dti_kind_name(op->kind), (unsigned long long)op->count,
                        dti_dtype_name(op->dtype), (int)comm->size, (unsigned long long)most);
    return DT_OK;
}

/* dt_comm_op's public comment defines in place. */
static dt_result dti_coll_check_overlap(const dt_comm *comm, const dt_comm_op *op,
                                        uint64_t in_bytes, uint64_t out_bytes) {
    uintptr_t in = (uintptr_t)op->in, out = (uintptr_t)op->out;
    bool same = in == out && dti_coll_in_width(op) == dti_dtype_bytes(op->dtype);
    if (!in_bytes || !out_bytes || same || in + in_bytes <= out || out + out_bytes <= in)
        return DT_OK;
    uint64_t place = op->count * dti_dtype_bytes(op->dtype) * comm->rank;
    bool gathers = op->kind == DT_COMM_GATHER || op->kind == DT_COMM_ALL_GATHER;
    bool scatters = op->kind == DT_COMM_SCATTER || op->kind == DT_COMM_REDUCE_SCATTER;
    if ((gathers && in == out + place) || (scatters && out == in + place))
        return DT_OK;
    char text[DTI_COLL_TEXT];
    return dti_fail(comm->base, DT_ERROR_INVALID,
                    "%s: .in (%llu bytes) and .out (%llu bytes) overlap, as .out is .in + %lld "
                    "bytes; use separate buffers, or .in = .out%s",
                    dti_coll_text(op, text), (unsigned long long)in_bytes,
                    (unsigned long long)out_bytes, (long long)(out - in),
                    gathers || scatters ? " or this rank's own block" : "");
}

/* Also takes away buffers that the operation does not touch here. */
static dt_result dti_coll_check_buffers(const dt_comm *comm, dt_comm_op *op) {
    char text[DTI_COLL_TEXT];
    uint64_t in_bytes = dti_coll_in_bytes(op, comm->rank, comm->size) * dti_coll_buffers(comm, op);
    uint64_t out_bytes = dti_coll_out_bytes(op, comm->rank, comm->size);
    if (!in_bytes)
        op->in = NULL;
    if (!out_bytes)
        op->out = NULL;
    bool no_in = in_bytes && !op->in;
    if (no_in || (out_bytes && !op->out))
        return dti_fail(comm->base, DT_ERROR_INVALID, "%s: .%s is NULL; rank %d needs %llu bytes",
                        dti_coll_text(op, text), no_in ? "in" : "out", (int)comm->rank,
                        (unsigned long long)(no_in ? in_bytes : out_bytes));
    if ((uintptr_t)op->in > UINTPTR_MAX - in_bytes || (uintptr_t)op->out > UINTPTR_MAX - out_bytes)
        return dti_fail(comm->base, DT_ERROR_INVALID,
                        "%s: .in or .out extends past the end of the address space",
                        dti_coll_text(op, text));
    return dti_coll_check_overlap(comm, op, in_bytes, out_bytes);
}

#ifdef DT_NO_COMM
/* With one rank none runs. */
DTI_ABSENT(dt_result, dti_coll_check_algorithm, (const dt_comm *comm, const dt_comm_op *op), DT_OK);
#else
/* A requested algorithm must exist, with any transport. */
static dt_result dti_coll_check_algorithm(const dt_comm *comm, const dt_comm_op *op) {
    dti_collective c = {.op = *op, .rank = comm->rank, .size = comm->size};
    dt_comm_algorithm chosen;
    c.local = comm->local;
    c.leaves = comm->leaves, c.leaf_total = comm->leaf_total;
    if (!op->algorithm || dti_algorithm_choose(comm->base, &c, &chosen))
        return DT_OK;
    return DT_ERROR_INVALID;
}
#endif

static dt_result dti_coll_check(const dt_comm *comm, dt_comm_op *op) {
    DTI_TRY(dti_coll_check_enums(comm->base, op));
    DTI_TRY(dti_coll_check_root(comm, op));
    DTI_TRY(dti_coll_check_tree(comm, op));
    DTI_TRY(dti_coll_check_bytes(comm, op));
    DTI_TRY(dti_coll_check_buffers(comm, op));
    return dti_coll_check_algorithm(comm, op);
}
