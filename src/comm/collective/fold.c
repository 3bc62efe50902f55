/* Sums in the tree over leaves, for all-reduce. It owns the order and the types. fold_body.h has
 * the loops, compiled once per instruction set, all with the same bits. It must not know where
 * operands are, or how they came.
 *
 * Cost: each operand is read once and the result written once. The tree is computed block by block,
 * so that partial sums stay in the first-level cache. The stack has a block for each level of the
 * tree that waits for its right side. Sums of 2, 3, 4 and 8 float arrays take one pass. AVX-512 was
 * tried: floats came no faster, 16-bit floats 1.4 times, and no wire needs that. */

/* Bytes of a block in the type that is summed in. A frame of dti_fold_node has one; 2^24 operands,
 * 24 levels, stay below 64 KiB. */
#define DTI_FOLD_BLOCK 2048
/* Arrays of floats that are summed in one pass. */
#define DTI_FOLD_MANY_MAX 8

typedef void dti_fold_pair_fn(void *out, const void *a, const void *b, size_t bytes);
typedef void dti_fold_widen_fn(void *out, const void *in, size_t count);
typedef void dti_fold_finish_fn(void *out, const void *in, size_t count, uint32_t divisor);
typedef void dti_fold_many_fn(void *out, const void *const *in, size_t count, bool finish,
                              uint32_t divisor);

typedef struct dti_fold_kernels {
    dti_fold_pair_fn *pair[DT_U8 + 1][DT_COMM_PRODUCT + 1]; /* by the type that is summed in */
    dti_fold_widen_fn *widen_bf16, *widen_f16;
    dti_fold_finish_fn *finish[DT_U8 + 1]; /* of floats, by the type that is kept */
    dti_fold_many_fn *many[DTI_FOLD_MANY_MAX + 1];
} dti_fold_kernels;

#define DTI_ISA(name) DTI_CAT(name, _portable)
#define DTI_FOLD_BYTES 16
#include "fold_body.h"
#undef DTI_ISA
#undef DTI_FOLD_BYTES

#if DTI_X86
#define DTI_ISA(name) DTI_CAT(name, _avx2)
#define DTI_FOLD_BYTES 32
DTI_TARGET("avx2")
#include "fold_body.h"
DTI_TARGET_END
#undef DTI_ISA
#undef DTI_FOLD_BYTES
#endif

static const dti_fold_kernels *dti_fold_kernels_select(int isa_max) {
#if DTI_X86
    if (dti_isa_select(isa_max) >= DTI_ISA_AVX2)
        return &dti_fold_kernels_avx2;
#endif
    return &dti_fold_kernels_portable;
}

/* ---- types */

static uint8_t dti_fold_dtype(dt_dtype dtype, dt_comm_reduction reduction) {
    bool picks = reduction == DT_COMM_MIN || reduction == DT_COMM_MAX;
    if (dti_is_half(dtype) && !picks)
        return DT_F32;
    if (dti_is_whole(dtype) && reduction == DT_COMM_MEAN)
        return DT_I64;
    return (uint8_t)dtype;
}

/* ---- the tree, of one block of elements */

typedef struct dti_fold_job {
    const dti_fold_kernels *kernels;
    const dti_operand *operands;
    dt_comm_reduction reduction;
    uint8_t sum;      /* the type that is summed in: f32 also for min and max of 16-bit floats */
    uint8_t out;      /* the dtype to write */
    bool float_sum;   /* the kernels' `many` do the sums */
    bool direct;      /* every operand has the type that is summed in */
    bool even;        /* operands have the same number of leaves each: the number of operands gives
                         the tree */
    bool round;       /* the last step divides or rounds */
    uint32_t divisor; /* of the last step; 1 = none */
    uint64_t at;      /* the block's first element */
    size_t count;     /* elements of the block */
} dti_fold_job;

DTI_INLINE const uint8_t *dti_fold_at(const dti_fold_job *job, const dti_operand *operand) {
    return (const uint8_t *)operand->data + job->at * dti_dtype_bytes(operand->dtype);
}

/* Sums i32 and u8 to i64. Element by element: means of integers are rare. */
static void dti_fold_widen_whole(uint8_t *out, const uint8_t *in, size_t count, uint8_t dtype) {
    for (size_t i = 0; i < count; i++) {
        int64_t wide = in[i];
        if (dtype == DT_I32) {
            int32_t value;
            memcpy(&value, in + 4 * i, sizeof value);
            wide = value;
        }
        memcpy(out + 8 * i, &wide, sizeof wide);
    }
}

/* An operand's block in the type that is summed in: where it is, or in `room`. */
static const void *dti_fold_leaf(const dti_fold_job *job, uint32_t index, void *room) {
    const dti_operand *operand = &job->operands[index];
    const uint8_t *data = dti_fold_at(job, operand);
    if (operand->dtype == job->sum)
        return data;
    if (operand->dtype == DT_BF16)
        job->kernels->widen_bf16(room, data, job->count);
    else if (operand->dtype == DT_F16)
        job->kernels->widen_f16(room, data, job->count);
    else
        dti_fold_widen_whole(room, data, job->count, operand->dtype);
    return room;
}

/* The number of these operands left of the split: at least one, and not all. */
static uint32_t dti_fold_split(const dti_fold_job *job, uint32_t first, uint32_t count) {
    const dti_operand *at = job->operands + first;
    if (count == 2)
        return 1;
    if (job->even)
        return dti_tree_split(count);
    uint64_t begin = at[0].span.first;
    uint64_t leaves = at[count - 1].span.first + (uint64_t)at[count - 1].span.count - begin;
    uint64_t middle = begin + dti_tree_split((uint32_t)leaves);
    uint32_t low = 1, high = count - 1;
    while (low < high) {
        uint32_t i = low + (high - low) / 2;
        if (at[i].span.first >= middle)
            high = i;
        else
            low = i + 1;
    }
    return low;
}

/* Whether these operands' sum is one pass of the kernels. */
static bool dti_fold_is_one_pass(const dti_fold_job *job, uint32_t count) {
    return job->float_sum && job->direct && count <= DTI_FOLD_MANY_MAX &&
           job->kernels->many[count] && (job->even || count == 2);
}

static void dti_fold_one_pass(const dti_fold_job *job, uint32_t first, uint32_t count, void *out,
                              bool finish) {
    const void *in[DTI_FOLD_MANY_MAX];
    for (uint32_t i = 0; i < count; i++)
        in[i] = dti_fold_at(job, &job->operands[first + i]);
    job->kernels->many[count](out, in, job->count, finish, job->divisor);
}

/* left and right to out, which may be either of them. */
static void dti_fold_join(const dti_fold_job *job, void *out, const void *left, const void *right,
                          bool finish) {
    const void *in[2] = {left, right};
    if (job->float_sum)
        job->kernels->many[2](out, in, job->count, finish, job->divisor);
    else
        job->kernels->pair[job->sum][job->reduction](out, left, right,
                                                     job->count * dti_dtype_bytes(job->sum));
}

/* The block of two operands or more. The left side is kept in `room`, and `out` is written last,
 * since it may be an operand's data. finish: also the last step, which float_sum alone can. */
DTI_NOINLINE void dti_fold_node(const dti_fold_job *job, uint32_t first, uint32_t count, void *room,
                                void *out, bool finish) {
    alignas(64) uint8_t other[DTI_FOLD_BLOCK];
    if (dti_fold_is_one_pass(job, count)) {
        dti_fold_one_pass(job, first, count, out, finish);
        return;
    }
    uint32_t left = dti_fold_split(job, first, count), right = count - left;
    const void *a = room, *b = other;
    if (left == 1)
        a = dti_fold_leaf(job, first, room);
    else
        dti_fold_node(job, first, left, room, room, false);
    if (right == 1)
        b = dti_fold_leaf(job, first + left, other);
    else
        dti_fold_node(job, first + left, right, other, other, false);
    dti_fold_join(job, out, a, b, finish);
}

/* ---- the last step, and all blocks */

/* The sums of a mean, divided and cut towards zero. out may be `in`. */
static void dti_fold_finish_whole(uint8_t *out, const uint8_t *in, size_t count, uint8_t dtype,
                                  uint32_t divisor) {
    size_t bytes = dti_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        int64_t value;
        memcpy(&value, in + 8 * i, sizeof value);
        value /= (int64_t)divisor;
        int32_t narrow = (int32_t)(uint32_t)(uint64_t)value;
        uint8_t byte = (uint8_t)value;
        const void *from = dtype == DT_I64   ? (const void *)&value
                           : dtype == DT_I32 ? (const void *)&narrow
                                             : (const void *)&byte;
        memcpy(out + bytes * i, from, bytes);
    }
}

/* Converts from the sum's type to the type to write. */
static void dti_fold_end(const dti_fold_job *job, uint8_t *out, const void *values) {
    bool whole = dti_is_whole(job->out);
    if (whole && job->round)
        dti_fold_finish_whole(out, values, job->count, job->out, job->divisor);
    else if (!whole && (job->round || job->sum != job->out))
        job->kernels->finish[job->out](out, values, job->count, job->divisor);
    else
        memmove(out, values, job->count * dti_dtype_bytes(job->out));
}

static void dti_fold_block(const dti_fold_job *job, uint32_t operand_count, uint8_t *out) {
    alignas(64) uint8_t room[DTI_FOLD_BLOCK];
    const void *values = room;
    if (operand_count == 1) {
        values = dti_fold_leaf(job, 0, room);
    } else if (job->out == job->sum && (job->float_sum || !job->round)) {
        dti_fold_node(job, 0, operand_count, room, out, job->round);
        return;
    } else {
        dti_fold_node(job, 0, operand_count, room, room, false);
    }
    dti_fold_end(job, out, values);
}

static void dti_fold_look(dti_fold_job *job, uint32_t operand_count) {
    const dti_operand *operands = job->operands;
    job->direct = job->even = true;
    for (uint32_t i = 0; i < operand_count; i++) {
        job->direct = job->direct && operands[i].dtype == job->sum;
        job->even = job->even && operands[i].span.count == operands[0].span.count;
    }
}

static void dti_fold_by(const dti_fold_kernels *kernels, void *out, const dti_operand *operands,
                        uint32_t operand_count, uint64_t count, dt_dtype dtype,
                        dt_comm_reduction reduction, bool finish, uint32_t divisor) {
    uint8_t partial = dti_fold_dtype(dtype, reduction);
    bool mean = reduction == DT_COMM_MEAN;
    dti_fold_job job = {.kernels = kernels,
                        .operands = operands,
                        .reduction = reduction,
                        .sum = dti_is_half(partial) ? (uint8_t)DT_F32 : partial,
                        .out = finish ? (uint8_t)dtype : partial,
                        .round = finish && (!dti_is_whole(dtype) || mean),
                        .divisor = 1};
    if (finish && mean && divisor)
        job.divisor = divisor;
    job.float_sum = job.sum == DT_F32 && (reduction == DT_COMM_SUM || mean);
    dti_fold_look(&job, operand_count);
    size_t step = DTI_FOLD_BLOCK / dti_dtype_bytes(job.sum), out_bytes = dti_dtype_bytes(job.out);
    bool whole =
        operand_count > 1 && job.out == job.sum && dti_fold_is_one_pass(&job, operand_count);
    if (whole || (operand_count == 1 && job.direct))
        step = SIZE_MAX; /* nothing lies between: one block */
    for (uint64_t at = 0; at < count; at += job.count) {
        job.at = at;
        job.count = (size_t)DTI_MIN(step, count - at);
        dti_fold_block(&job, operand_count, (uint8_t *)out + at * out_bytes);
    }
}

static void dti_fold(void *out, const dti_operand *operands, uint32_t operand_count, uint64_t count,
                     dt_dtype dtype, dt_comm_reduction reduction, bool finish, uint32_t divisor) {
    dti_fold_by(dti_fold_kernels_select(DTI_ISA_AVX2), out, operands, operand_count, count, dtype,
                reduction, finish, divisor);
}

static void dti_fold_widen(float *out, const uint16_t *in, size_t count) {
    dti_fold_kernels_select(DTI_ISA_AVX2)->widen_bf16(out, in, count);
}
