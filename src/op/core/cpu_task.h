/* How a launch runs on the CPU: a kernel computes a sub-range of its outer index space; only the
 * executor cuts ranges. Bits never depend on how it cuts. */

struct dti_cpu_task {
    const dti_launch *launch;
    void *buf[DTI_BINDINGS_MAX]; /* starts of the bound ranges */
    const uint32_t *step;        /* the step block's words */
    const dti_isa_kernels *k;    /* vector kernels of the chosen instruction set */
    int threads;
    float *room; /* this worker's, DTI_ROOM floats, where operands are in 16 bits; else NULL */
};

/* Floats that a kernel widens operands to at once. */
#define DTI_ROOM_ROWS 32
#define DTI_ROOM (DTI_ROOM_ROWS * 128)
_Static_assert(DTI_ROOM_ROWS == DTI_SUM_CHAIN, "rows of columns that are added up");

static inline const float *dti_cpu_in(const dti_cpu_task *t, int binding, uint32_t offset) {
    return (const float *)t->buf[binding] + offset;
}
static inline float *dti_cpu_out(const dti_cpu_task *t, int binding, uint32_t offset) {
    return (float *)t->buf[binding] + offset;
}
/* Element `offset` of an operand, whatever its type. */
static inline void *dti_cpu_at(const dti_cpu_task *t, int binding, int64_t offset) {
    return (char *)t->buf[binding] + dti_bytes(t->launch->dtype[binding], (uint64_t)offset);
}
static inline int64_t dti_cpu_grain(const dti_cpu_task *t) {
    const dti_kernel_info *k = dti_kernel_info_of(t->launch->kernel);
    const uint32_t *words = (const uint32_t *)(const void *)&t->launch->args;
    if (k->grain_of)
        return k->grain_of(t);
    return k->each ? 1 + k->grain / (1 + (int64_t)words[k->each]) : DTI_MAX(k->grain, 1);
}
/* The next n floats of a worker's memory; NULL where only their number is asked for. */
static inline float *dti_scratch_take(float *memory, size_t *used, int64_t n) {
    float *p = memory ? memory + *used : NULL;
    *used += (size_t)((n + 15) / 16 * 16);
    return p;
}
/* A step word that holds a float. */
static inline float dti_step_f32(const uint32_t *step, uint32_t word) {
    return dti_f32_from_bits(step[word]);
}
/* `rows` rows of n elements, *ld apart, from element `at` of a binding on. They are used in place,
 * or widened to the room from float `to` on, where *ld is n. */
static const float *dti_cpu_rows(const dti_cpu_task *t, int binding, int64_t at, int64_t rows,
                                 int64_t n, int64_t *ld, int64_t to);
/* One such row. */
static inline const float *dti_cpu_row(const dti_cpu_task *t, int binding, int64_t at, int64_t n,
                                       int64_t to) {
    return dti_cpu_rows(t, binding, at, 1, n, &(int64_t){n}, to);
}
/* Elements of a binding that are seen at once: `few` of those in 16 bits, else all n. */
#define DTI_CPU_AT_ONCE(task, binding, few, n)                                                     \
    (dti_is_half((task)->launch->dtype[binding]) ? DTI_MIN((int64_t)(few), (n)) : (n))
/* Bytes of a worker's scratch that a launch needs, and items [begin, end) of it. */
static size_t dti_cpu_scratch(const dti_launch *launch, int threads);
static void dti_cpu_run(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch);
