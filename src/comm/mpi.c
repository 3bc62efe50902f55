/* The transport over an MPI library, for sites whose fabric has no better road; compiled under
 * DT_WITH_MPI, with mpicc. It owns the chunks that an operation is cut into and the scratch through
 * which all data goes; how bytes travel is the library's. It refuses tree mode and algorithms by
 * name: the library chooses its own.
 *
 * MPI cannot give up what it has begun, so it never sees a user's buffer: elements are copied to
 * scratch (16-bit floats widened), travel, and are copied back (divided, rounded). An operation
 * that is cancelled leaves its scratch to MPI, and its buffers are free at once. At most
 * DTI_MPI_WINDOW chunks of one are under way; they move on in wait and test, of whichever
 * operation. Chunks of one group go in the order of its operations, those of a pair in the order of
 * its sends: all ranks give MPI the same collectives in the same order.
 *
 * All ranks get the same bits of an all-reduce because the standard says so (MPI 3.1, 5.9.6: "all
 * processes ... receive identical results"). A sum at one rank that is then broadcast, which would
 * need no promise, took 2 to 6 times as long at 2 ranks and 4 MiB or more.
 *
 * What MPI does not tell, ranks tell each other: that one has ended the group, and that one has
 * left (known when the others did not follow within 2 s). What it cannot tell, this transport
 * cannot either: who has not posted an operation, and that two ranks posted different ones, unless
 * MPI sees a message too long. A rank that dies is mpirun's to notice, which ends all. */

#ifndef DT_WITH_MPI

static dt_result dti_mpi_enter(dti_base *base, dt_comm_desc *d, bool ask, bool *owns) {
    (void)d, (void)ask, (void)owns;
    return dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "transport is MPI, which needs dtrain compiled with DT_WITH_MPI, by mpicc; or "
                    "use DT_COMM_TCP, which mpirun starts too");
}

static void dti_mpi_leave(bool owns) {
    (void)owns;
}

static dt_result dti_comm_open_mpi(dt_comm *comm, const dt_comm_desc *desc, bool owns) {
    (void)desc, (void)owns;
    return dti_fail(comm->base, DT_ERROR_UNSUPPORTED, "this build has no MPI transport");
}

#else

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wstrict-prototypes"
#endif
#include <mpi.h>
#ifdef __clang__
#pragma clang diagnostic pop
#endif

/* A chunk has about so many bytes of scratch, so that MPI's counts never come near 2^31, and
 * copying one hides behind the transfer of another. Measured with Open MPI 4.1 on one host: 64 MiB
 * take 1.3 to 1.6 times MPI_Allreduce's time at 2 ranks, 0.9 at 4; four chunks of 1 MiB 1.6, and
 * 1.2 to 1.4. */
#define DTI_MPI_CHUNK ((uint64_t)256 << 10)
#define DTI_MPI_WINDOW 8
#define DTI_MPI_LEAVE_NS 2000000000u /* what dt_comm_destroy takes at most */
/* What the others finished before one ended the group may still need a few looks here. */
#define DTI_MPI_GRACE_NS 100000000u
/* MPI moves on while it is looked at: so often before the first sleep. */
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
    uint64_t use; /* how often it has been taken: the upper part of ids */
    dti_mpi_state state;
    dt_result result;
    dt_comm_reduction folded; /* what dti_fold is asked for at either end */
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

/* What all groups of one root share. */
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
    dt_result result; /* what ended it */
    char error[512];
    dti_mpi_note heard, told[2];   /* told[0]: the end; told[1]: that this rank leaves */
    MPI_Request hearing, *telling; /* [2 * size] */
    uint64_t *left_at;             /* [size] when that rank was known to have left */
    bool any_left;
    uint64_t end_at; /* when the end that was heard of takes place; 0 = none was */
    uint64_t sent, received;
};

/* ---- the end */

/* Ends all groups, here and, to be told to, on the other ranks; the first cause stays. */
static void dti_mpi_end(dti_mpi *m, dt_result result, bool tell, const char *format, ...)
    DTI_PRINTF(4, 5);

static void dti_mpi_tell(dti_mpi *m, int which, dt_result result, const char *text) {
    dti_mpi_note *note = &m->told[which];
    note->result = (int32_t)result, note->rank = (int32_t)m->rank;
    snprintf(note->text, sizeof note->text, "%s", text);
    for (uint32_t r = 0; r < m->size; r++)
        if (r != m->rank)
            MPI_Isend(note, (int)sizeof *note, MPI_BYTE, (int)r, 0, m->control,
                      &m->telling[(uint32_t)which * m->size + r]);
}

static void dti_mpi_end(dti_mpi *m, dt_result result, bool tell, const char *format, ...) {
    if (m->result)
        return;
    m->result = result;
    va_list list;
    va_start(list, format);
    vsnprintf(m->error, sizeof m->error, format, list);
    va_end(list);
    for (dti_mpi_op *o = m->active; o; o = o->next)
        o->state = DTI_MPI_OVER, o->result = result;
    m->active = NULL;
    if (tell)
        dti_mpi_tell(m, 0, result, m->error);
}

/* An error of MPI ends all: the standard does not say what still works after one. */
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

/* min and max: MPI does not say what NaN does, nor which zero wins; dti_fold does. MPI keeps the
 * operands in the order of ranks. */
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

static bool dti_mpi_is_float(uint8_t dtype) {
    return dtype == DT_F32 || dtype == DT_F64;
}

static MPI_Op dti_mpi_reduction(const dti_mpi_op *o) {
    bool is_float = dti_mpi_is_float(o->dtype);
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

/* What travels. 16-bit floats, which MPI has not, do as f32, exactly; so a fold in and out is asked
 * for a sum where min or max is meant. */
static void dti_mpi_choose_types(dti_mpi_op *o) {
    bool half = o->op.dtype == DT_BF16 || o->op.dtype == DT_F16;
    bool ordered = o->op.reduction == DT_COMM_MIN || o->op.reduction == DT_COMM_MAX;
    bool reduces = dti_kind_reduces(o->op.kind);
    o->folded = half && ordered ? DT_COMM_SUM : o->op.reduction;
    o->dtype = reduces ? dti_sum_dtype(o->op.dtype, o->folded) : (uint8_t)o->op.dtype;
    o->width = dti_dtype_bytes((dt_dtype)o->dtype);
}

/* ---- chunks: in, on their way, out */

static bool dti_mpi_has_blocks(dt_comm_kind kind) {
    return kind >= DT_COMM_GATHER && kind != DT_COMM_BARRIER;
}

/* How many blocks of a chunk scratch has here. */
static uint64_t dti_mpi_scratch_blocks(const dti_mpi_op *o) {
    const dt_comm *comm = o->group->comm;
    bool root = o->op.root == (int)comm->rank;
    switch (o->op.kind) {
    case DT_COMM_GATHER:
    case DT_COMM_SCATTER: return root ? comm->size : 1;
    case DT_COMM_ALL_GATHER:
    case DT_COMM_REDUCE_SCATTER: return comm->size;
    case DT_COMM_ALL_TO_ALL: return 2 * (uint64_t)comm->size;
    default: return 1;
    }
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

/* Block `block` of `in` to block `to` of scratch. */
static void dti_mpi_load(const dti_mpi_op *o, const dti_mpi_part *p, uint64_t block, uint64_t to) {
    uint64_t own = dti_dtype_bytes(o->op.dtype);
    const char *in = (const char *)o->op.in + (block * o->op.count + p->from) * own;
    char *out = p->scratch + to * p->block_bytes;
    dti_operand operand = {in, (uint8_t)o->op.dtype, {0, 1}};
    if (dti_kind_reduces(o->op.kind))
        dti_fold(out, &operand, 1, p->count, o->op.dtype, o->folded, false, 1);
    else
        memcpy(out, in, (size_t)p->block_bytes);
    o->group->all->sent += p->block_bytes;
}

/* Block `from` of scratch to block `block` of `out`. */
static void dti_mpi_store(const dti_mpi_op *o, const dti_mpi_part *p, uint64_t block,
                          uint64_t from) {
    uint64_t own = dti_dtype_bytes(o->op.dtype);
    char *out = (char *)o->op.out + (block * o->op.count + p->from) * own;
    const char *in = p->scratch + from * p->block_bytes;
    dti_operand operand = {in, o->dtype, {0, 1}};
    if (dti_kind_reduces(o->op.kind))
        dti_fold(out, &operand, 1, p->count, o->op.dtype, o->folded, true, o->group->comm->size);
    else
        memcpy(out, in, (size_t)p->block_bytes);
    o->group->all->received += p->block_bytes;
}

static void dti_mpi_load_chunk(const dti_mpi_op *o, const dti_mpi_part *p) {
    const dt_comm *comm = o->group->comm;
    bool root = o->op.root == (int)comm->rank;
    uint64_t blocks = 0;
    switch (o->op.kind) {
    case DT_COMM_BROADCAST: blocks = root; break;
    case DT_COMM_SCATTER: blocks = root ? comm->size : 0; break;
    case DT_COMM_REDUCE_SCATTER:
    case DT_COMM_ALL_TO_ALL: blocks = comm->size; break;
    case DT_COMM_GATHER: dti_mpi_load(o, p, 0, root ? comm->rank : 0); return;
    case DT_COMM_ALL_GATHER: dti_mpi_load(o, p, 0, comm->rank); return;
    case DT_COMM_RECV:
    case DT_COMM_BARRIER: return;
    default: blocks = 1;
    }
    for (uint64_t b = 0; b < blocks; b++)
        dti_mpi_load(o, p, b, b);
}

/* What lies of `in` where this writes has been read: it is of this chunk or an earlier one. */
static void dti_mpi_store_chunk(const dti_mpi_op *o, const dti_mpi_part *p) {
    const dt_comm *comm = o->group->comm;
    bool root = o->op.root == (int)comm->rank;
    uint64_t blocks = 0, from = 0;
    switch (o->op.kind) {
    case DT_COMM_SEND:
    case DT_COMM_BARRIER: return;
    case DT_COMM_BROADCAST: blocks = !root; break;
    case DT_COMM_REDUCE: blocks = root; break;
    case DT_COMM_SCATTER: dti_mpi_store(o, p, 0, root ? comm->rank : 0); return;
    case DT_COMM_GATHER: blocks = root ? comm->size : 0; break;
    case DT_COMM_ALL_TO_ALL: from = comm->size; /* fall through */
    case DT_COMM_ALL_GATHER: blocks = comm->size; break;
    default: blocks = 1;
    }
    for (uint64_t b = 0; b < blocks; b++)
        dti_mpi_store(o, p, b, from + b);
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

/* Looks what MPI has finished. */
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
        dti_mpi_store_chunk(o, &p);
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
        dti_mpi_load_chunk(o, &p);
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

/* A rank that has left has done its part; but what does not move on has needed it. */
static void dti_mpi_check_left(dti_mpi *m, const dti_mpi_op *o, uint64_t now) {
    const dt_comm *comm = o->group->comm;
    bool pair = o->op.kind <= DT_COMM_RECV;
    char text[DTI_OP_TEXT];
    for (uint32_t r = 0; r < comm->size; r++) {
        uint64_t at = m->left_at[comm->ranks ? comm->ranks[r] : r];
        if (at && (!pair || r == (uint32_t)o->op.root) &&
            now - DTI_MAX(at, o->moved_at) > m->silence_ns) {
            dti_mpi_end(m, DT_ERROR_PEER_LOST, true, "rank %u has left the group; %s needs it",
                        (unsigned)r, dti_op_text(&o->op, text));
            return;
        }
    }
}

static void dti_mpi_check_time(dti_mpi *m, const dti_mpi_op *o, uint64_t now) {
    char text[DTI_OP_TEXT];
    if (m->any_left)
        dti_mpi_check_left(m, o, now);
    if (m->op_ns && now - o->moved_at >= m->op_ns)
        dti_mpi_end(m, DT_ERROR_TIMEOUT, true,
                    "%s did not move for %llu ms at rank %u: a rank has not posted it (MPI does "
                    "not tell which)",
                    dti_op_text(&o->op, text), (unsigned long long)(m->op_ns / 1000000u),
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

/* Moves everything on. Results before notes: what is finished is not lost to an end. */
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
#if DTI_POSIX
    struct timespec nap = {.tv_nsec = DTI_MPI_SLEEP_NS};
    if (looks < DTI_MPI_LOOKS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
#else
    (void)looks;
    dti_cpu_relax();
#endif
}

/* ---- the transport */

/* A free record with enough scratch, or the last free one, or a new one. */
static dti_mpi_op *dti_mpi_find_free(dti_mpi *m, size_t need, size_t *index) {
    dti_mpi_op *best = NULL;
    for (size_t i = 0; i < m->op_count; i++) {
        dti_mpi_op *o = m->ops[i];
        bool better = !best || (best->room < need ? o->room > best->room
                                                  : o->room >= need && o->room < best->room);
        if (o->state == DTI_MPI_FREE && better)
            best = o, *index = i;
    }
    if (best)
        return best;
    if (m->op_count >> 24 || !dti_array_reserve(m->base, (void **)(void *)&m->ops, &m->op_room,
                                                m->op_count + 1, sizeof(dti_mpi_op *)))
        return NULL;
    best = dti_alloc(m->base, sizeof *best);
    if (best)
        *index = m->op_count, m->ops[m->op_count++] = best;
    return best;
}

/* Cuts `plan`, which has the operation, into chunks. */
static void dti_mpi_plan(dti_mpi_op *plan) {
    const dt_comm_op *op = &plan->op;
    dti_mpi_choose_types(plan);
    uint64_t blocks = dti_mpi_has_blocks(op->kind) ? plan->group->comm->size : 1;
    uint64_t most = DTI_MAX(DTI_MPI_CHUNK / (blocks * plan->width), 1);
    plan->chunk_elements = DTI_MAX(DTI_MIN(most, op->count), 1);
    plan->chunks = op->count / plan->chunk_elements + (op->count % plan->chunk_elements != 0);
    plan->slot_bytes =
        (size_t)(dti_mpi_scratch_blocks(plan) * plan->chunk_elements * plan->width + 63) / 64 * 64;
    if (op->kind == DT_COMM_BARRIER)
        plan->chunks = 1;
}

static dti_mpi_op *dti_mpi_take(dti_mpi *m, dti_mpi_op *plan, uint64_t *id) {
    size_t index = 0, need = (size_t)DTI_MIN(plan->chunks, DTI_MPI_WINDOW) * plan->slot_bytes;
    dti_mpi_op *o = dti_mpi_find_free(m, need, &index);
    if (o && o->room < need) {
        dti_free(m->base, o->scratch);
        o->scratch = dti_alloc(m->base, need);
        o->room = o->scratch ? need : 0;
    }
    if (!o || o->room < need)
        return NULL;
    plan->scratch = o->scratch, plan->room = o->room, plan->use = o->use + 1;
    *o = *plan;
    *id = o->use << 24 | index;
    return o;
}

static dt_result dti_mpi_begin(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    dti_mpi_group *g = comm->state;
    dti_mpi *m = g->all;
    char text[DTI_OP_TEXT];
    if (m->result)
        return dti_fail(comm->base, DT_ERROR_REVOKED, "the group has ended: %s", m->error);
    if (op->tree || op->algorithm)
        return dti_fail(comm->base, DT_ERROR_UNSUPPORTED,
                        "%s: %s; use the transport TCP, or leave it out", dti_op_text(op, text),
                        op->tree ? "MPI sums in an order of its own, so there is no tree mode"
                                 : "MPI chooses its algorithms itself");
    dti_mpi_op plan = {.group = g, .op = *op, .state = DTI_MPI_ACTIVE, .moved_at = dti_now_ns()};
    for (int k = 0; k < DTI_MPI_WINDOW; k++)
        plan.requests[k] = MPI_REQUEST_NULL;
    dti_mpi_plan(&plan);
    dti_mpi_op *o = dti_mpi_take(m, &plan, id), **end = &m->active;
    if (!o)
        return DT_ERROR_MEMORY;
    while (*end)
        end = &(*end)->next;
    *end = o;
    dti_mpi_push(m, o, o->moved_at);
    if (!m->result && o->state == DTI_MPI_OVER)
        *end = NULL; /* count 0 */
    return DT_OK;
}

static dti_mpi_op *dti_mpi_find(dt_comm *comm, uint64_t id) {
    dti_mpi_group *g = comm->state;
    size_t index = (size_t)(id & 0xFFFFFF);
    dti_mpi_op *o = index < g->all->op_count ? g->all->ops[index] : NULL;
    bool open = o && (o->state == DTI_MPI_ACTIVE || o->state == DTI_MPI_OVER);
    if (open && o->group == g && o->use == id >> 24)
        return o;
    dti_fail(comm->base, DT_ERROR_INVALID,
             "the handle %llu is of no pending operation: a handle ends once",
             (unsigned long long)id);
    return NULL;
}

/* Whether MPI has let go of it. A receive is all that it can give up. */
static bool dti_mpi_is_quiet(dti_mpi_op *o) {
    bool quiet = true;
    for (int k = 0; k < DTI_MPI_WINDOW; k++) {
        int finished = 1;
        if (o->requests[k] != MPI_REQUEST_NULL && o->op.kind == DT_COMM_RECV)
            MPI_Cancel(&o->requests[k]);
        if (o->requests[k] != MPI_REQUEST_NULL)
            MPI_Test(&o->requests[k], &finished, MPI_STATUS_IGNORE);
        quiet = quiet && finished;
    }
    return quiet;
}

/* Ends the handle of an operation that is over. */
static dt_result dti_mpi_finish(dt_comm *comm, dti_mpi_op *o) {
    dt_result result = o->result;
    o->state = !result || dti_mpi_is_quiet(o) ? DTI_MPI_FREE : DTI_MPI_LOST;
    comm->late = result == DT_ERROR_TIMEOUT;
    return result ? dti_fail(comm->base, result, "%s", o->group->all->error) : DT_OK;
}

static dt_result dti_mpi_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    dti_mpi_op *o = dti_mpi_find(comm, id);
    if (!o)
        return DT_ERROR_INVALID;
    uint64_t start = timeout_ns == UINT64_MAX ? 0 : dti_now_ns();
    for (int looks = 0;; looks += looks < INT_MAX) {
        if (o->state == DTI_MPI_ACTIVE)
            dti_mpi_pump(o->group->all);
        if (o->state == DTI_MPI_OVER)
            return dti_mpi_finish(comm, o);
        if (timeout_ns != UINT64_MAX && dti_now_ns() - start >= timeout_ns)
            return DT_ERROR_TIMEOUT;
        dti_mpi_pause(looks);
    }
}

static dt_result dti_mpi_cancel(dt_comm *comm, uint64_t id) {
    dti_mpi_op *o = dti_mpi_find(comm, id);
    char text[DTI_OP_TEXT];
    if (!o)
        return DT_ERROR_INVALID;
    if (o->state == DTI_MPI_ACTIVE)
        dti_mpi_pump(o->group->all);
    if (o->state == DTI_MPI_ACTIVE)
        dti_mpi_end(o->group->all, DT_ERROR_CANCELLED, true, "rank %u cancelled %s",
                    (unsigned)comm->rank, dti_op_text(&o->op, text));
    return dti_mpi_finish(comm, o);
}

static void dti_mpi_waits_for(dt_comm *comm, uint64_t id, char *text, size_t size) {
    dti_mpi_op *o = dti_mpi_find(comm, id);
    char what[DTI_OP_TEXT];
    if (o)
        snprintf(text, size, "%s: %llu of %llu parts are done; MPI does not tell whom it waits for",
                 dti_op_text(&o->op, what), (unsigned long long)o->done,
                 (unsigned long long)o->chunks);
}

static void dti_mpi_info(const dt_comm *comm, dt_comm_info *info) {
    const dti_mpi *m = ((const dti_mpi_group *)comm->state)->all;
    info->bytes_sent = info->payload_sent = m->sent; /* what MPI adds it does not tell */
    info->bytes_received = info->payload_received = m->received;
    for (size_t i = 0; i < m->op_count; i++)
        info->scratch_bytes += m->ops[i]->state == DTI_MPI_ACTIVE ? m->ops[i]->room : 0;
}

/* ---- coming and going */

static const dti_transport dti_mpi_transport;

/* Blocks until all of the group are here; they are, for they have just agreed to make it. */
static dt_result dti_mpi_group_open(dt_comm *parent, dt_comm *child) {
    dti_mpi *m = ((dti_mpi_group *)parent->state)->all;
    dti_mpi_group made = {.all = m, .comm = child};
    const int *ranks = (const int *)(const void *)child->ranks;
    MPI_Group world, members;
    MPI_Comm_group(m->world.mpi, &world);
    MPI_Group_incl(world, (int)child->size, ranks, &members);
    int tag = (int)(child->group_id & 0x7FFF);
    bool ok = dti_mpi_ok(m, MPI_Comm_create_group(m->world.mpi, members, tag, &made.mpi),
                         "MPI_Comm_create_group");
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    if (!ok)
        return dti_fail(parent->base, m->result, "%s", m->error);
    dti_mpi_group *g = child->state = dti_alloc(child->base, sizeof *g);
    if (!g) {
        MPI_Comm_free(&made.mpi);
        return DT_ERROR_MEMORY;
    }
    *g = made;
    child->transport = &dti_mpi_transport;
    return DT_OK;
}

/* Operations of this rank in the group that are not finished end all. */
static void dti_mpi_abandon(dt_comm *comm) {
    dti_mpi_group *g = comm->state;
    dti_mpi *m = g->all;
    char text[DTI_OP_TEXT];
    dti_mpi_pump(m);
    for (const dti_mpi_op *o = m->active; o; o = o->next)
        if (o->group == g) {
            dti_mpi_end(m, DT_ERROR_PEER_LOST, true, "rank %u left the group in %s",
                        (unsigned)comm->rank, dti_op_text(&o->op, text));
            break;
        }
    for (size_t i = 0; i < m->op_count; i++)
        if (m->ops[i]->state == DTI_MPI_OVER && m->ops[i]->group == g)
            m->ops[i]->state = dti_mpi_is_quiet(m->ops[i]) ? DTI_MPI_FREE : DTI_MPI_LOST;
}

/* Whether MPI holds no memory of ours but what it hears into; of `g` alone, or NULL: of all. */
static bool dti_mpi_all_quiet(dti_mpi *m, const dti_mpi_group *g) {
    bool quiet = true;
    for (size_t i = 0; i < m->op_count; i++) {
        dti_mpi_op *o = m->ops[i];
        if (o->state == DTI_MPI_LOST && (!g || o->group == g) && dti_mpi_is_quiet(o))
            o->state = DTI_MPI_FREE;
        quiet = quiet && (o->state != DTI_MPI_LOST || (g && o->group != g));
    }
    for (uint32_t i = 0; !g && i < 2 * m->size; i++) {
        int finished = 1;
        if (m->telling[i] != MPI_REQUEST_NULL)
            MPI_Test(&m->telling[i], &finished, MPI_STATUS_IGNORE);
        quiet = quiet && finished;
    }
    return quiet;
}

/* All ranks go together, or those who stay are told; who must finalise MPI stays with them, unless
 * the group has ended. True when MPI holds nothing any more. */
static bool dti_mpi_part_ways(dti_mpi *m) {
    MPI_Request request = MPI_REQUEST_NULL;
    uint64_t start = dti_now_ns();
    int together = 0;
    bool told = false;
    if (MPI_Ibarrier(m->control, &request) != MPI_SUCCESS)
        return false;
    for (int looks = 0;; looks += looks < INT_MAX) {
        if (!together)
            MPI_Test(&request, &together, MPI_STATUS_IGNORE);
        if (dti_mpi_all_quiet(m, NULL) && together)
            return true;
        bool over = dti_now_ns() - start >= DTI_MPI_LEAVE_NS;
        if (over && (m->result || !m->owns) && (told || m->result))
            return false;
        if (over && !told && !m->result)
            dti_mpi_tell(m, 1, DT_OK, "");
        told = told || over;
        if (!m->result)
            dti_mpi_hear(m, dti_now_ns());
        dti_mpi_pause(looks);
    }
}

static void dti_mpi_free_state(dti_mpi *m) {
    dti_base *base = m->base;
    for (size_t i = 0; i < m->op_count; i++) {
        dti_free(base, m->ops[i]->scratch);
        dti_free(base, m->ops[i]);
    }
    dti_free(base, m->ops);
    dti_free(base, m->left_at);
    dti_free(base, m->telling);
    dti_free(base, m);
}

static void dti_mpi_close(dt_comm *comm) {
    dti_mpi_group *g = comm->state;
    dti_mpi *m = g->all;
    dti_mpi_abandon(comm);
    comm->state = NULL;
    if (g != &m->world) {
        if (dti_mpi_all_quiet(m, g) && !m->result)
            MPI_Comm_free(&g->mpi);
        dti_free(m->base, g);
        return;
    }
    bool clean = dti_mpi_part_ways(m);
    if (m->hearing != MPI_REQUEST_NULL) {
        MPI_Cancel(&m->hearing);
        MPI_Wait(&m->hearing, MPI_STATUS_IGNORE);
    }
    if (!clean) {
        dti_log(m->base, DT_LOG_WARNING,
                "MPI still holds operations that other ranks did not follow: their memory is left "
                "to it%s",
                m->owns ? ", and it is not finalised" : "");
        return;
    }
    MPI_Comm_free(&m->world.mpi);
    MPI_Comm_free(&m->control);
    MPI_Op_free(&m->least);
    MPI_Op_free(&m->most);
    bool owns = m->owns;
    dti_mpi_free_state(m);
    dti_mpi_leave(owns);
}

static const dti_transport dti_mpi_transport = {
    .name = "mpi",
    .begin = dti_mpi_begin,
    .wait = dti_mpi_wait,
    .cancel = dti_mpi_cancel,
    .waits_for = dti_mpi_waits_for,
    .group = dti_mpi_group_open,
    .info = dti_mpi_info,
    .close = dti_mpi_close,
};

/* Initialises MPI, unless the application has, and takes rank and world size from it; `ask`: the
 * desc does not say them. *owns: dti_mpi_leave finalises it. */
static dt_result dti_mpi_enter(dti_base *base, dt_comm_desc *d, bool ask, bool *owns) {
    int there = 0, over = 0, level = 0, rank = 0, size = 1, main_thread = 1;
    MPI_Finalized(&over);
    if (over)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "MPI has been finalised and cannot be initialised again in this process; "
                        "where dtrain initialised it, dt_comm_destroy has: call MPI_Init_thread "
                        "before the first dt_comm_create, and MPI_Finalize after the last");
    MPI_Initialized(&there);
    if (!there && MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return dti_fail(base, DT_ERROR_IO, "MPI_Init_thread failed");
    *owns = !there;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&main_thread);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (level < MPI_THREAD_SERIALIZED && !main_thread)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "MPI was initialised for its main thread alone, which this is not: use "
                        "MPI_Init_thread with MPI_THREAD_SERIALIZED or MULTIPLE");
    if (!ask && (d->rank != rank || d->world_size != size))
        return dti_fail(base, DT_ERROR_INVALID,
                        "rank %d of %d in the desc, but MPI says rank %d of %d: was it started by "
                        "the mpirun of this MPI library?",
                        d->rank, d->world_size, rank, size);
    d->rank = rank, d->world_size = size;
    return DT_OK;
}

static void dti_mpi_leave(bool owns) {
    if (owns)
        MPI_Finalize();
}

/* NULL: no memory. */
static dti_mpi *dti_mpi_new(dt_comm *comm, const dt_comm_desc *d) {
    dti_base *base = comm->base;
    dti_mpi *m = dti_alloc(base, sizeof *m);
    if (!m)
        return NULL;
    m->base = base, m->rank = comm->rank, m->size = comm->size;
    m->op_ns = (uint64_t)d->op_timeout_ms * 1000000u;
    m->silence_ns = (uint64_t)d->silence_ms * 1000000u;
    m->world = (dti_mpi_group){.all = m, .comm = comm};
    m->hearing = MPI_REQUEST_NULL;
    m->telling = dti_alloc_array(base, m->size, 2 * sizeof *m->telling);
    m->left_at = dti_alloc_array(base, m->size, sizeof *m->left_at);
    if (!m->telling || !m->left_at) {
        dti_mpi_free_state(m);
        return NULL;
    }
    for (uint32_t i = 0; i < 2 * m->size; i++)
        m->telling[i] = MPI_REQUEST_NULL;
    return m;
}

static dt_result dti_comm_open_mpi(dt_comm *comm, const dt_comm_desc *desc, bool owns) {
    MPI_Comm made[2];
    dti_mpi *m = dti_mpi_new(comm, desc);
    int mine = m != NULL, all = 0;
    for (int i = 0; i < 2; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &made[i]);
        MPI_Comm_set_errhandler(made[i], MPI_ERRORS_RETURN);
    }
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, made[0]); /* what one cannot, none does */
    if (!all) {
        for (int i = 0; i < 2; i++)
            MPI_Comm_free(&made[i]);
        if (m)
            dti_mpi_free_state(m);
        return dti_fail(comm->base, DT_ERROR_MEMORY, "out of host memory on %s rank",
                        mine ? "another" : "this");
    }
    m->owns = owns;
    m->world.mpi = made[0], m->control = made[1];
    MPI_Op_create(dti_mpi_least, 0, &m->least);
    MPI_Op_create(dti_mpi_most, 0, &m->most);
    MPI_Irecv(&m->heard, (int)sizeof m->heard, MPI_BYTE, MPI_ANY_SOURCE, 0, m->control,
              &m->hearing);
    comm->state = &m->world;
    comm->transport = &dti_mpi_transport;
    return DT_OK;
}

#endif
