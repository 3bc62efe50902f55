/* Products of two operands in 16 bits with sums in float, as blocks of larger kernels: attention,
 * recurrence, convolution. One function, so that a CPU's own instruction serves all of them. */

typedef struct dti_half_block {
    dti_gemm_block shape; /* sizes, strides in elements, c and add; no bias, no epilogue */
    const void *a, *b;
    dt_dtype type;
} dti_half_block;

/* Floats of scratch for blocks of at most these sizes. */
static int64_t dti_half_block_floats(int64_t m, int64_t n, int64_t k);
static void dti_half_block_run(const struct dti_isa_kernels *k, const dti_half_block *g,
                               float *scratch);

/* Element i of memory of the given type. */
static void *dti_half_at(const void *base, dt_dtype type, int64_t i) {
    return (char *)(uintptr_t)base + dti_bytes(type, (uint64_t)i);
}

/* That element, of a type in 16 bits. */
static float dti_half_value(const void *base, dt_dtype type, int64_t i) {
    const uint16_t bits = ((const uint16_t *)base)[i];
    return type == DT_BF16 ? dti_f32_from_bf16(bits) : dti_f32_from_f16(bits);
}
