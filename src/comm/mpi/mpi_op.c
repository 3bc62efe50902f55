/* An operation as it is passed to an MPI library. MPI cannot cancel an operation, so it never gets
 * a user's buffer. Elements are copied to scratch (16-bit floats widened), sent, and copied back
 * (divided, rounded). A cancelled operation leaves its scratch to MPI, and its buffers are free at
 * once. At most DTI_MPI_WINDOW chunks of one are in flight; wait and test of any operation move
 * them on. A group's chunks are sent in the order of its operations, a pair's in the order of its
 * sends. So all ranks call MPI's collectives in the same order.
 *
 * All ranks get the same bits of an all-reduce because the standard says so (MPI 3.1, 5.9.6: "all
 * processes ... receive identical results"). A sum at one rank and a broadcast would not need that
 * guarantee. It took 2 to 6 times as long with 2 ranks and 4 MiB or more.
 *
 * mpi.c checks operations and owns their handles. */

#ifdef DT_WITH_MPI

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wstrict-prototypes"
#endif
#include <mpi.h>
#ifdef __clang__
#pragma clang diagnostic pop
#endif

/* A chunk has about this number of bytes of scratch. So MPI's counts never come near 2^31, and
 * copying one chunk overlaps the transfer of another. Measured with Open MPI 4.1 on one host, for
 * 64 MiB. It took 1.3 to 1.6 times MPI_Allreduce's time with 2 ranks, 0.9 with 4. Four chunks of
 * 1 MiB took 1.6, and 1.2 to 1.4. */
#define DTI_MPI_CHUNK ((uint64_t)256 << 10)
#define DTI_MPI_WINDOW 8
/* The others may have finished operations before the end of the group; these still need a few polls
 * here. */
#define DTI_MPI_GRACE_NS 100000000u
/* MPI progresses while it is polled: the number of polls before the first sleep. */
#define DTI_MPI_LOOKS 5000
#define DTI_MPI_SLEEP_NS 50000

typedef struct dti_mpi dti_mpi;

/* A rank in a group. */
typedef struct dti_mpi_group {
    dti_mpi *all;
    dt_comm *comm;
    MPI_Comm mpi;
} dti_mpi_group;

typedef enum dti_mpi_state {
    DTI_MPI_FREE,
    DTI_MPI_ACTIVE,
    DTI_MPI_OVER, /* the handle has not ended */
    DTI_MPI_LOST  /* it has, but MPI holds the scratch */
} dti_mpi_state;

typedef struct dti_mpi_op {
    struct dti_mpi_op *next; /* of the active ones, in the order of their posts */
    dti_mpi_group *group;
    dt_comm_op op;
    uint64_t use; /* number of uses: the upper part of ids */
    dti_mpi_state state;
    dt_result result;
    dt_comm_reduction folded; /* the reduction of dti_fold at either end */
    uint8_t dtype;            /* under way */
    uint64_t width;           /* its bytes */
    uint64_t chunks, chunk_elements;
    uint64_t given, done; /* chunks: to MPI, and finished */
    uint64_t moved_at;
    char *scratch; /* chunk c has slot c % window */
    size_t room, slot_bytes;
    MPI_Request requests[DTI_MPI_WINDOW];
    uint64_t chunk[DTI_MPI_WINDOW];
    bool moving[DTI_MPI_WINDOW];
} dti_mpi_op;

typedef struct dti_mpi_note {
    int32_t result; /* DT_OK: the rank has left */
    int32_t rank;
    char text[504];
} dti_mpi_note;

/* The shared part of all groups of one root. */
struct dti_mpi {
    dti_base *base;
    uint32_t rank, size;
    bool owns; /* MPI is ours to finalise */
    uint64_t op_ns, silence_ns;
    dti_mpi_group world;
    MPI_Comm control; /* notes */
    MPI_Op least, most;
    dti_mpi_op **ops; /* [op_count], never fewer */
    size_t op_count, op_room;
    dti_mpi_op *active;
    dt_result result; /* the cause of its end */
    char error[512];
    dti_mpi_note heard, told[2];   /* requests of the messages that the group has ended ([0]) and
                                      that this rank leaves ([1]) */
    MPI_Request hearing, *telling; /* [2 * size] */
    uint64_t *left_at;             /* [size] when that rank was known to have left */
    bool any_left;
    uint64_t end_at; /* when the received end takes place; 0 = not received */
    uint64_t sent, received;
};

/* ---- the end */

static void dti_mpi_tell(dti_mpi *m, int which, dt_result result, const char *text) {
    dti_mpi_note *note = &m->told[which];
    note->result = (int32_t)result, note->rank = (int32_t)m->rank;
    snprintf(note->text, sizeof note->text, "%s", text);
    for (uint32_t r = 0; r < m->size; r++)
        if (r != m->rank)
            MPI_Isend(note, (int)sizeof *note, MPI_BYTE, (int)r, 0, m->control,
                      &m->telling[(uint32_t)which * m->size + r]);
}

/* Ends all groups here, and on the other ranks when they receive it. The first cause stays. */
DTI_PRINTF(4, 5)
static void dti_mpi_end(dti_mpi *m, dt_result result, bool inform, const char *format, ...) {
    if (m->result)
        return;
    m->result = result;
    DTI_FORMAT(m->error, format);
    for (dti_mpi_op *o = m->active; o; o = o->next)
        o->state = DTI_MPI_OVER, o->result = result;
    m->active = NULL;
    if (inform)
        dti_mpi_tell(m, 0, result, m->error);
}

/* An error of MPI ends all: the standard does not define what still works after one. */
static bool dti_mpi_ok(dti_mpi *m, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int size = 0, class = MPI_ERR_OTHER;
    if (code == MPI_SUCCESS)
        return true;
    MPI_Error_class(code, &class);
    MPI_Error_string(code, text, &size);
    dti_mpi_end(m, class == MPI_ERR_TRUNCATE ? DT_ERROR_MISMATCH : DT_ERROR_PEER_LOST, true,
                "rank %u: %s: %s", (unsigned)m->rank, what, text);
    return false;
}

/* ---- types */

/* min and max: MPI does not define the results for NaN and signed zeros; dti_fold does. MPI keeps
 * the operands in the order of ranks. */
static void dti_mpi_fold(void *in, void *inout, const int *count, const MPI_Datatype *type,
                         dt_comm_reduction reduction) {
    uint8_t dtype = *type == MPI_FLOAT ? DT_F32 : DT_F64;
    dti_operand operands[2] = {{in, dtype, {0, 1}}, {inout, dtype, {1, 1}}};
    dti_fold(inout, operands, 2, (uint64_t)*count, (dt_dtype)dtype, reduction, false, 1);
}

static void dti_mpi_least(void *in, void *inout, int *count, MPI_Datatype *type) {
    dti_mpi_fold(in, inout, count, type, DT_COMM_MIN);
}

static void dti_mpi_most(void *in, void *inout, int *count, MPI_Datatype *type) {
    dti_mpi_fold(in, inout, count, type, DT_COMM_MAX);
}

static MPI_Op dti_mpi_reduction(const dti_mpi_op *o) {
    bool is_float = !dti_is_whole((dt_dtype)o->dtype);
    switch (o->op.reduction) {
    case DT_COMM_PRODUCT: return MPI_PROD;
    case DT_COMM_MIN: return is_float ? o->group->all->least : MPI_MIN;
    case DT_COMM_MAX: return is_float ? o->group->all->most : MPI_MAX;
    default: return MPI_SUM;
    }
}

/* Sums and products of integers wrap around: of unsigned ones, in MPI's C. */
static MPI_Datatype dti_mpi_type(const dti_mpi_op *o) {
    bool ordered = o->op.reduction == DT_COMM_MIN || o->op.reduction == DT_COMM_MAX;
    switch (o->dtype) {
    case DT_F32: return MPI_FLOAT;
    case DT_F64: return MPI_DOUBLE;
    case DT_I32: return ordered ? MPI_INT32_T : MPI_UINT32_T;
    case DT_I64: return ordered ? MPI_INT64_T : MPI_UINT64_T;
    default: return MPI_UINT8_T;
    }
}

/* The type that MPI transfers. MPI has no 16-bit floats, so they are sent as f32, exactly. So a
 * fold in and out is asked for a sum for min or max too. */
static void dti_mpi_choose_types(dti_mpi_op *o) {
    bool half = o->op.dtype == DT_BF16 || o->op.dtype == DT_F16;
    bool ordered = o->op.reduction == DT_COMM_MIN || o->op.reduction == DT_COMM_MAX;
    bool reduces = dti_kind_reduces(o->op.kind);
    o->folded = half && ordered ? DT_COMM_SUM : o->op.reduction;
    o->dtype = reduces ? dti_fold_dtype(o->op.dtype, o->folded) : (uint8_t)o->op.dtype;
    o->width = dti_dtype_bytes((dt_dtype)o->dtype);
}

/* ---- chunks: in, on their way, out */

/* Blocks of a chunk of `in`, or `out`, here. */
static uint64_t dti_mpi_blocks(const dti_mpi_op *o, bool in) {
    return dti_kind_blocks(&o->op, in, o->group->comm->rank, o->group->comm->size);
}

/* The number of blocks of a chunk in scratch here. */
static uint64_t dti_mpi_scratch_blocks(const dti_mpi_op *o) {
    uint64_t in = dti_mpi_blocks(o, true), out = dti_mpi_blocks(o, false);
    return o->op.kind == DT_COMM_ALL_TO_ALL ? in + out : DTI_MAX(DTI_MAX(in, out), 1);
}

typedef struct dti_mpi_part {
    uint64_t from, count; /* elements, in every block */
    char *scratch;
    uint64_t block_bytes;
} dti_mpi_part;

static dti_mpi_part dti_mpi_part_of(const dti_mpi_op *o, uint64_t chunk) {
    dti_mpi_part p = {.from = chunk * o->chunk_elements};
    p.count = DTI_MIN(o->chunk_elements, o->op.count - p.from);
    p.scratch = o->scratch + chunk % DTI_MPI_WINDOW * o->slot_bytes;
    p.block_bytes = p.count * o->width;
    return p;
}

/* Block `block` of `in` to block `place` of scratch; or from there to that block of `out`. */
static void dti_mpi_move(const dti_mpi_op *o, const dti_mpi_part *p, bool in, uint64_t block,
                         uint64_t place) {
    uint64_t at = (block * o->op.count + p->from) * dti_dtype_bytes(o->op.dtype);
    char *scratch = p->scratch + place * p->block_bytes;
    const char *from = in ? (const char *)o->op.in + at : scratch;
    char *to = in ? scratch : (char *)o->op.out + at;
    dti_operand operand = {from, in ? (uint8_t)o->op.dtype : o->dtype, {0, 1}};
    if (dti_kind_reduces(o->op.kind))
        dti_fold(to, &operand, 1, p->count, o->op.dtype, o->folded, !in,
                 in ? 1 : o->group->comm->size);
    else
        memcpy(to, from, (size_t)p->block_bytes);
    *(in ? &o->group->all->sent : &o->group->all->received) += p->block_bytes;
}

/* The part of `in` that `out` overwrites has been read: it is of this chunk or an earlier one. */
static void dti_mpi_move_chunk(const dti_mpi_op *o, const dti_mpi_part *p, bool in) {
    const dt_comm *comm = o->group->comm;
    bool root = o->op.root == (int)comm->rank;
    /* Scratch has all ranks' blocks, of which this is one. */
    bool among = in ? o->op.kind == DT_COMM_ALL_GATHER || (root && o->op.kind == DT_COMM_GATHER)
                    : root && o->op.kind == DT_COMM_SCATTER;
    uint64_t first = !in && o->op.kind == DT_COMM_ALL_TO_ALL ? comm->size : 0;
    for (uint64_t b = 0; b < dti_mpi_blocks(o, in); b++)
        dti_mpi_move(o, p, in, b, among ? comm->rank : first + b);
}

static int dti_mpi_post_reduce(const dti_mpi_op *o, const dti_mpi_part *p, MPI_Request *request) {
    MPI_Comm on = o->group->mpi;
    MPI_Datatype type = dti_mpi_type(o);
    MPI_Op op = dti_mpi_reduction(o);
    int n = (int)p->count, root = o->op.root;
    if (o->op.kind == DT_COMM_REDUCE_SCATTER)
        return MPI_Ireduce_scatter_block(MPI_IN_PLACE, p->scratch, n, type, op, on, request);
    if (o->op.kind == DT_COMM_ALL_REDUCE)
        return MPI_Iallreduce(MPI_IN_PLACE, p->scratch, n, type, op, on, request);
    if (root == (int)o->group->comm->rank)
        return MPI_Ireduce(MPI_IN_PLACE, p->scratch, n, type, op, root, on, request);
    return MPI_Ireduce(p->scratch, NULL, n, type, op, root, on, request);
}

static int dti_mpi_post(const dti_mpi_op *o, const dti_mpi_part *p, MPI_Request *request) {
    MPI_Comm on = o->group->mpi;
    int n = (int)p->block_bytes, root = o->op.root;
    bool here = root == (int)o->group->comm->rank;
    char *x = p->scratch;
    MPI_Datatype byte = MPI_BYTE, none = MPI_DATATYPE_NULL;
    switch (o->op.kind) {
    case DT_COMM_SEND: return MPI_Isend(x, n, byte, root, 0, on, request);
    case DT_COMM_RECV: return MPI_Irecv(x, n, byte, root, 0, on, request);
    case DT_COMM_BROADCAST: return MPI_Ibcast(x, n, byte, root, on, request);
    case DT_COMM_GATHER:
        return here ? MPI_Igather(MPI_IN_PLACE, 0, none, x, n, byte, root, on, request)
                    : MPI_Igather(x, n, byte, NULL, 0, none, root, on, request);
    case DT_COMM_ALL_GATHER: return MPI_Iallgather(MPI_IN_PLACE, 0, none, x, n, byte, on, request);
    case DT_COMM_SCATTER:
        return here ? MPI_Iscatter(x, n, byte, MPI_IN_PLACE, 0, none, root, on, request)
                    : MPI_Iscatter(NULL, 0, none, x, n, byte, root, on, request);
    case DT_COMM_ALL_TO_ALL:
        return MPI_Ialltoall(x, n, byte, x + p->block_bytes * o->group->comm->size, n, byte, on,
                             request);
    case DT_COMM_BARRIER: return MPI_Ibarrier(on, request);
    default: return dti_mpi_post_reduce(o, p, request);
    }
}

/* ---- progress */

/* Whether their chunks must go in the order of their posts. */
static bool dti_mpi_same_lane(const dti_mpi_op *a, const dti_mpi_op *b) {
    bool pair_a = a->op.kind <= DT_COMM_RECV, pair_b = b->op.kind <= DT_COMM_RECV;
    if (a->group != b->group || pair_a != pair_b)
        return false;
    return !pair_a || (a->op.kind == b->op.kind && a->op.root == b->op.root);
}

/* Whether one posted earlier has chunks to give to MPI. */
static bool dti_mpi_is_behind(const dti_mpi *m, const dti_mpi_op *o) {
    for (const dti_mpi_op *p = m->active; p && p != o; p = p->next)
        if (p->given < p->chunks && dti_mpi_same_lane(p, o))
            return true;
    return false;
}

/* Polls MPI for finished requests. */
static void dti_mpi_collect(dti_mpi *m, dti_mpi_op *o, uint64_t now) {
    for (int k = 0; k < DTI_MPI_WINDOW; k++) {
        int finished = 0;
        if (!o->moving[k])
            continue;
        if (!dti_mpi_ok(m, MPI_Test(&o->requests[k], &finished, MPI_STATUS_IGNORE), "MPI_Test"))
            return;
        if (!finished)
            continue;
        o->moved_at = now;
        dti_mpi_part p = dti_mpi_part_of(o, o->chunk[k]);
        dti_mpi_move_chunk(o, &p, false);
        o->moving[k] = false;
        o->done++;
    }
}

static void dti_mpi_give(dti_mpi *m, dti_mpi_op *o) {
    while (o->given < o->chunks && !m->result) {
        uint64_t k = o->given % DTI_MPI_WINDOW;
        if (o->moving[k] || dti_mpi_is_behind(m, o))
            return;
        dti_mpi_part p = dti_mpi_part_of(o, o->given);
        dti_mpi_move_chunk(o, &p, true);
        if (!dti_mpi_ok(m, dti_mpi_post(o, &p, &o->requests[k]), dti_kind_name(o->op.kind)))
            return;
        o->moving[k] = true;
        o->chunk[k] = o->given++;
    }
}

static void dti_mpi_push(dti_mpi *m, dti_mpi_op *o, uint64_t now) {
    dti_mpi_collect(m, o, now);
    if (!m->result)
        dti_mpi_give(m, o);
    if (!m->result && o->done == o->chunks)
        o->state = DTI_MPI_OVER;
}

/* A rank that has left has done its part. An operation that does not progress needed it. */
static void dti_mpi_check_left(dti_mpi *m, const dti_mpi_op *o, uint64_t now) {
    const dt_comm *comm = o->group->comm;
    bool pair = o->op.kind <= DT_COMM_RECV;
    char text[DTI_COLL_TEXT];
    for (uint32_t r = 0; r < comm->size; r++) {
        uint64_t at = m->left_at[comm->ranks ? comm->ranks[r] : r];
        if (at && (!pair || r == (uint32_t)o->op.root) &&
            now - DTI_MAX(at, o->moved_at) > m->silence_ns) {
            dti_mpi_end(m, DT_ERROR_PEER_LOST, true, "rank %u has left the group; %s needs it",
                        (unsigned)r, dti_coll_text(&o->op, text));
            return;
        }
    }
}

static void dti_mpi_check_time(dti_mpi *m, const dti_mpi_op *o, uint64_t now) {
    char text[DTI_COLL_TEXT];
    if (m->any_left)
        dti_mpi_check_left(m, o, now);
    if (m->op_ns && now - o->moved_at >= m->op_ns)
        dti_mpi_end(m, DT_ERROR_LATE, true,
                    "%s did not progress for %llu ms on rank %u: another rank has not posted it "
                    "(MPI does not report which)",
                    dti_coll_text(&o->op, text), (unsigned long long)(m->op_ns / 1000000u),
                    (unsigned)m->rank);
}

/* A note of another rank. */
static void dti_mpi_hear(dti_mpi *m, uint64_t now) {
    dti_mpi_note *note = &m->heard;
    int come = 0;
    if (m->end_at && now >= m->end_at)
        dti_mpi_end(m, (dt_result)note->result, false, "%s", note->text);
    if (m->hearing != MPI_REQUEST_NULL &&
        MPI_Test(&m->hearing, &come, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        come = 0;
    if (!come)
        return;
    note->text[sizeof note->text - 1] = 0;
    if (note->result) {
        m->end_at = now + DTI_MPI_GRACE_NS;
        return; /* nothing more is of interest */
    }
    if (note->rank >= 0 && note->rank < (int32_t)m->size)
        m->left_at[note->rank] = now, m->any_left = true;
    MPI_Irecv(note, (int)sizeof *note, MPI_BYTE, MPI_ANY_SOURCE, 0, m->control, &m->hearing);
}

/* Moves everything on. Results come before notes, so an end does not lose finished operations. */
static void dti_mpi_pump(dti_mpi *m) {
    uint64_t now = dti_now_ns();
    for (dti_mpi_op **at = &m->active; *at;) {
        dti_mpi_op *o = *at;
        dti_mpi_push(m, o, now);
        if (!m->result && o->state == DTI_MPI_ACTIVE)
            dti_mpi_check_time(m, o, now);
        if (m->result)
            return;
        if (o->state == DTI_MPI_OVER)
            *at = o->next;
        else
            at = &o->next;
    }
    if (!m->result)
        dti_mpi_hear(m, now);
}

static void dti_mpi_pause(int looks) {
    if (looks < DTI_MPI_LOOKS)
        dti_thread_yield();
    else
        dti_thread_sleep(DTI_MPI_SLEEP_NS);
}

#endif
