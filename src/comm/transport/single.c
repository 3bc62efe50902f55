/* The transport of a comm of one rank. Every operation is a copy or the fold of this rank's own
 * leaves, done when it is posted. It owns the handles, which behave as elsewhere: each ends
 * once. */

typedef struct dti_single {
    uint64_t *ids; /* [count] posted and not waited for */
    size_t count, room;
    uint64_t last; /* the newest id */
} dti_single;

/* A reduction of one rank still has to finish its result. It makes NaN canonical, and sums the
 * buffers in tree mode. */
static void dti_single_fold(const dt_comm *comm, const dt_comm_op *op) {
    dti_operand operands[64] = {{op->in, (uint8_t)op->dtype, {0, 1}}};
    uint32_t operand_count = 1, leaves = 1;
    if (op->tree) {
        dt_comm_span spans[64];
        leaves = comm->leaf_total;
        operand_count = dti_tree_spans(0, leaves, leaves, spans);
        for (uint32_t i = 0; i < operand_count; i++)
            operands[i] =
                (dti_operand){(const char *)op->in + op->count * dti_dtype_bytes(op->dtype) * i,
                              (uint8_t)op->dtype, spans[i]};
    }
    dti_fold(op->out, operands, operand_count, op->count, op->dtype, op->reduction, true, leaves);
}

static void dti_single_do(const dt_comm *comm, const dt_comm_op *op) {
    uint64_t bytes = dti_coll_out_bytes(op, 0, 1);
    if (!bytes) /* of broadcast, only in at the root */
        return;
    if (dti_kind_reduces(op->kind))
        dti_single_fold(comm, op);
    else if (op->in != op->out)
        memcpy(op->out, op->in, (size_t)bytes);
}

static dt_result dti_single_begin(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    dti_single *s = comm->state;
    DTI_HAVE(DTI_RESERVE(comm->base, s->ids, s->room, s->count + 1));
    dti_single_do(comm, op);
    *id = s->ids[s->count++] = ++s->last;
    return DT_OK;
}

/* Waiting and cancelling are one: it has finished. */
static dt_result dti_single_finish(dt_comm *comm, uint64_t id) {
    dti_single *s = comm->state;
    for (size_t i = s->count; i-- > 0;)
        if (s->ids[i] == id) {
            s->ids[i] = s->ids[--s->count];
            return DT_OK;
        }
    return dti_comm_no_handle(comm, id);
}

static dt_result dti_single_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    return dti_single_finish(comm, id);
}

static dt_result dti_single_group(dt_comm *parent, dt_comm *child) {
    return dti_comm_open_single(child);
}

static void dti_single_close(dt_comm *comm) {
    dti_single *s = comm->state;
    DTI_FREE(comm->base, s->ids, s);
    comm->state = NULL;
}

static const dti_transport dti_single_transport = {
    .name = "single",
    .begin = dti_single_begin,
    .wait = dti_single_wait,
    .cancel = dti_single_finish,
    .group = dti_single_group,
    .close = dti_single_close,
};

static dt_result dti_comm_open_single(dt_comm *comm) {
    comm->state = dti_alloc(comm->base, sizeof(dti_single));
    DTI_HAVE(comm->state);
    comm->transport = &dti_single_transport;
    return DT_OK;
}
