/* The work of an operation between ranks that are threads. Jobs of about 128 KiB each cover a range
 * of elements of all ranks' buffers. A waiting thread claims a job and does it for all ranks,
 * directly between their buffers. A job reads all of its range before it writes there, and no job
 * writes what another one reads. So every in-place form is safe. The bits do not depend on the
 * thread that does a job: reductions are the tree of fold.h. No lock is held here, and the slot
 * does not change while a job runs. */

#define DTI_JOB_BYTES ((uint64_t)128 << 10)
/* A job folds this number of bytes at a time, into one rank's result. It copies that to the others'
 * while it is in the first-level cache. */
#define DTI_FOLD_BYTES ((uint64_t)8 << 10)

typedef struct dti_job {
    const dt_comm *comm; /* of the thread that does it */
    dti_seat *seat;
    const dti_slot *slot;
    uint64_t from, count; /* elements, in every block */
    uint64_t width;       /* bytes of an element */
    uint32_t size;
} dti_job;

/* All ranks' spans in one list, which a fold takes as it is. */
static dt_result dti_seat_set_leaves(dt_comm *comm) {
    dti_seat *seat = comm->state;
    if (seat->leaf_changes == comm->leaf_changes)
        return DT_OK;
    seat->leaf_count = 0;
    for (uint32_t r = 0; r < comm->size; r++) {
        dt_comm_span spans[DTI_TREE_SPANS];
        uint32_t n =
            dti_tree_spans(comm->leaves[r].first, comm->leaves[r].count, comm->leaf_total, spans);
        size_t all = (size_t)seat->leaf_count + n;
        DTI_HAVE(DTI_RESERVE(comm->base, seat->leaf_spans, seat->leaf_room, all) &&
                 DTI_RESERVE(comm->base, seat->operands, seat->operand_room, all));
        for (uint32_t i = 0; i < n; i++)
            seat->leaf_spans[seat->leaf_count++].span = spans[i];
        seat->leaf_buffers[r] = n;
    }
    seat->leaf_changes = comm->leaf_changes;
    return DT_OK;
}

/* The job's range in block `block` of a rank's buffer. */
static const char *dti_job_in(const dti_job *j, uint32_t rank, uint32_t block) {
    return (const char *)j->slot->posts[rank].in + (j->slot->op.count * block + j->from) * j->width;
}

static char *dti_job_out(const dti_job *j, uint32_t rank, uint32_t block) {
    return (char *)j->slot->posts[rank].out + (j->slot->op.count * block + j->from) * j->width;
}

static void dti_job_copy(const dti_job *j, char *to, const char *from) {
    if (to != from)
        memcpy(to, from, (size_t)(j->count * j->width));
}

/* Folds elements at + [0, count) of the job's range of block `block`; in tree mode of all
 * buffers. */
static void dti_job_fold(const dti_job *j, char *out, uint32_t block, uint64_t at, uint64_t count) {
    const dt_comm_op *op = &j->slot->op;
    const dti_seat *seat = j->seat;
    uint8_t dtype = op->tree ? dti_fold_dtype(op->dtype, op->reduction) : (uint8_t)op->dtype;
    uint64_t width = dti_coll_in_width(op);
    uint32_t n = 0;
    for (uint32_t r = 0; r < j->size; r++)
        for (uint32_t b = 0; b < (op->tree ? seat->leaf_buffers[r] : 1); b++, n++) {
            uint64_t element = op->count * (block + b) + j->from + at;
            const char *data = (const char *)j->slot->posts[r].in + element * width;
            dt_comm_span span = op->tree ? seat->leaf_spans[n].span : (dt_comm_span){r, 1};
            seat->operands[n] = (dti_operand){data, dtype, span};
        }
    dti_fold(out, seat->operands, n, count, op->dtype, op->reduction, true,
             op->tree ? j->comm->leaf_total : j->size);
}

/* Into rank `owner`'s result, block by block, and from there to all others that want it. */
static void dti_job_reduce(const dti_job *j, uint32_t owner, bool all) {
    uint64_t step = DTI_MAX(DTI_FOLD_BYTES / j->width, 1);
    for (uint64_t at = 0; at < j->count; at += step) {
        uint64_t count = DTI_MIN(step, j->count - at);
        char *out = dti_job_out(j, owner, 0) + at * j->width;
        dti_job_fold(j, out, 0, at, count);
        for (uint32_t r = 0; all && r < j->size; r++)
            if (r != owner)
                memcpy(dti_job_out(j, r, 0) + at * j->width, out, (size_t)(count * j->width));
    }
}

/* Ascending. A result at the start of `in` overlaps block 0, which was folded first. One at its own
 * place overlaps a block that is not read afterwards. */
static void dti_job_reduce_scatter(const dti_job *j) {
    for (uint32_t b = 0; b < j->size; b++)
        dti_job_fold(j, dti_job_out(j, b, 0), b, 0, j->count);
}

/* Copies blocks from all ranks that have some to all that want some. Sources descend: an `in` at
 * the start of `out` overlaps block 0, which is written last. Destinations ascend: a root's own
 * result may overlap block 0, which was copied first. */
static void dti_job_spread(const dti_job *j) {
    const dt_comm_op *op = &j->slot->op;
    bool gathers = op->kind == DT_COMM_GATHER || op->kind == DT_COMM_ALL_GATHER;
    bool scatters = op->kind == DT_COMM_SCATTER, one = op->kind == DT_COMM_GATHER;
    uint32_t first = one ? (uint32_t)op->root : 0, end = one ? first + 1 : j->size;
    for (uint32_t r = j->size; r-- > 0;)
        for (uint32_t to = first; to < end && dti_kind_blocks(op, true, r, j->size); to++)
            if (dti_kind_blocks(op, false, to, j->size))
                dti_job_copy(j, dti_job_out(j, to, gathers ? r : 0),
                             dti_job_in(j, r, scatters ? to : 0));
}

/* Exchanges the blocks of a and b, through two small copies: either may have in = out. */
static void dti_job_swap(const dti_job *j, uint32_t a, uint32_t b) {
    char from_a[2048], from_b[2048];
    uint64_t bytes = j->count * j->width;
    for (uint64_t at = 0; at < bytes; at += sizeof from_a) {
        size_t n = (size_t)DTI_MIN(bytes - at, sizeof from_a);
        memcpy(from_a, dti_job_in(j, a, b) + at, n);
        memcpy(from_b, dti_job_in(j, b, a) + at, n);
        memcpy(dti_job_out(j, a, b) + at, from_b, n);
        memcpy(dti_job_out(j, b, a) + at, from_a, n);
    }
}

static void dti_job_all_to_all(const dti_job *j) {
    for (uint32_t a = 0; a < j->size; a++) {
        dti_job_copy(j, dti_job_out(j, a, a), dti_job_in(j, a, a));
        for (uint32_t b = a + 1; b < j->size; b++)
            dti_job_swap(j, a, b);
    }
}

static void dti_job_do(const dti_job *j) {
    const dti_slot *slot = j->slot;
    uint32_t root = (uint32_t)slot->op.root;
    switch (slot->op.kind) {
    case DT_COMM_SEND:
    case DT_COMM_RECV:
        dti_job_copy(j, dti_job_out(j, slot->to, 0), dti_job_in(j, slot->from, 0));
        break;
    case DT_COMM_BROADCAST:
    case DT_COMM_GATHER:
    case DT_COMM_ALL_GATHER:
    case DT_COMM_SCATTER: dti_job_spread(j); break;
    case DT_COMM_REDUCE: dti_job_reduce(j, root, false); break;
    case DT_COMM_ALL_REDUCE: dti_job_reduce(j, j->comm->rank, true); break;
    case DT_COMM_REDUCE_SCATTER: dti_job_reduce_scatter(j); break;
    case DT_COMM_ALL_TO_ALL: dti_job_all_to_all(j); break;
    case DT_COMM_BARRIER: break;
    }
}

/* Cuts the operation, whose posts are complete, into jobs. */
static void dti_slot_plan(dti_slot *slot, uint32_t size) {
    const dt_comm_op *op = &slot->op;
    uint64_t bytes = DTI_JOB_BYTES / (dti_kind_has_blocks(op->kind) ? size : 1);
    slot->job_elements = DTI_MAX(bytes, 4096) / dti_dtype_bytes(op->dtype);
    slot->jobs = op->count / slot->job_elements + (op->count % slot->job_elements != 0);
    atomic_store(&slot->next_job, 0);
}

/* Claims and does jobs until none is left, `most` are done, or the time is over. No lock is
 * held. */
static void dti_slot_work(dt_comm *comm, dti_slot *slot, uint64_t most, uint64_t deadline) {
    dti_seat *seat = comm->state;
    dti_job j = {.comm = comm, .seat = seat, .slot = slot, .size = seat->team->size};
    j.width = dti_dtype_bytes(slot->op.dtype);
    for (uint64_t done = 0; done < most; done++) {
        uint64_t i = atomic_fetch_add(&slot->next_job, 1);
        if (i >= slot->jobs)
            return;
        j.from = i * slot->job_elements;
        j.count = DTI_MIN(slot->job_elements, slot->op.count - j.from);
        dti_job_do(&j);
        if (deadline != UINT64_MAX && dti_now_ns() >= deadline)
            return;
    }
}
