/* Products of operands in 16 bits: tiles are widened, the float kernel makes chunks of k of them,
 * and the sums are narrowed when they are complete. So the result is that of gemm.h on the widened
 * operands, bit for bit, rounded once. Strides are gemm.h's. */

#define DTI_GEMM_HALF_ROWS 96 /* a tile: its three operands and the kernel's own fit L2 */
#define DTI_GEMM_HALF_COLS 256

typedef struct dti_gemm_half_room {
    float a[DTI_GEMM_HALF_ROWS * DTI_GEMM_KC], b[DTI_GEMM_KC * DTI_GEMM_HALF_COLS];
    float c[DTI_GEMM_HALF_ROWS * DTI_GEMM_HALF_COLS];
    float operand[DTI_GEMM_HALF_ROWS * DTI_GEMM_HALF_COLS]; /* the epilogue's */
    float bias[DTI_GEMM_HALF_COLS];
    double sums[DTI_GEMM_HALF_ROWS * DTI_GEMM_HALF_COLS]; /* of spans */
} dti_gemm_half_room;

static size_t dti_gemm_half_scratch_bytes(void) {
    const dti_gemm tile = {.m = DTI_GEMM_HALF_ROWS, .n = DTI_GEMM_HALF_COLS, .k = DTI_GEMM_KC};
    return (sizeof(dti_gemm_half_room) + 63) / 64 * 64 + dti_gemm_scratch_bytes(&tile);
}

static const char *dti_gemm_half_at(const void *base, dt_dtype dtype, int64_t offset) {
    return (const char *)base + offset * (int64_t)dti_dtype_bytes(dtype);
}

/* n neighbours as floats. */
static void dti_gemm_half_line(const dti_isa_kernels *k, float *to, const char *from,
                               dt_dtype dtype, int64_t n) {
    if (dti_is_half(dtype))
        k->widen[dtype](to, from, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

/* rows x cols of a matrix, as floats at to[i * *row + j * *col]: in the order that it lies in. */
static void dti_gemm_half_tile(const dti_isa_kernels *k, float *to, const char *from,
                               dt_dtype dtype, int64_t rows, int64_t cols, int64_t from_row,
                               int64_t from_col, int64_t *row, int64_t *col) {
    const bool turned = from_row == 1 && from_col != 1;
    const int64_t lines = turned ? cols : rows, n = turned ? rows : cols;
    const int64_t step = turned ? from_col : from_row, inner = turned ? from_row : from_col;
    *row = turned ? 1 : cols;
    *col = turned ? rows : 1;
    for (int64_t i = 0; i < lines; i++) {
        const char *line = dti_gemm_half_at(from, dtype, i * step);
        for (int64_t j = 0; inner != 1 && j < n; j++)
            dti_gemm_half_line(k, to + i * n + j, dti_gemm_half_at(line, dtype, j * inner), dtype,
                               1);
        if (inner == 1)
            dti_gemm_half_line(k, to + i * n, line, dtype, n);
    }
}

/* The sums of one chunk of k, added to those before it; bias and epilogue with the last. */
static void dti_gemm_half_chunk(const dti_isa_kernels *k, const dti_gemm *g, int64_t i0, int64_t j0,
                                int64_t k0, dti_gemm_block *block, dti_gemm_half_room *room) {
    const dti_gemm_half *h = g->half;
    const bool last = k0 + block->k == g->k;
    block->a = room->a;
    block->b = room->b;
    dti_gemm_half_tile(k, room->a, dti_gemm_half_at(h->a, h->a_type, i0 * g->a_row + k0 * g->a_col),
                       h->a_type, block->m, block->k, g->a_row, g->a_col, &block->a_row,
                       &block->a_col);
    dti_gemm_half_tile(k, room->b, dti_gemm_half_at(h->b, h->b_type, k0 * g->b_row + j0 * g->b_col),
                       h->b_type, block->k, block->n, g->b_row, g->b_col, &block->b_row,
                       &block->b_col);
    block->bias = last && h->bias ? room->bias : NULL;
    block->mask = last && g->epilogue == DTI_GEMM_RELU_GRAD ? room->operand : NULL;
    block->relu = last && g->epilogue == DTI_GEMM_RELU;
    k->gemm_block(block, (float *)(void *)((char *)room + (sizeof *room + 63) / 64 * 64));
}

static void dti_gemm_half_store(const dti_isa_kernels *k, const dti_gemm_half *h, int64_t offset,
                                const float *sums, int64_t n) {
    char *to = (char *)h->c + offset * (int64_t)dti_dtype_bytes(h->c_type);
    if (dti_is_half(h->c_type))
        k->narrow[h->c_type](to, sums, n);
    else
        memcpy(to, sums, (size_t)n * sizeof *sums);
}

static void dti_gemm_half_one(const dti_isa_kernels *k, const dti_gemm *g, int64_t i0, int64_t j0,
                              dti_gemm_block *block, dti_gemm_half_room *room) {
    const dti_gemm_half *h = g->half;
    int64_t row, col;
    block->c = room->c;
    block->c_row = block->n;
    block->c_col = block->bias_col = 1;
    if (h->bias)
        dti_gemm_half_line(k, room->bias, dti_gemm_half_at(h->bias, h->bias_type, j0), h->bias_type,
                           block->n);
    if (h->operand)
        dti_gemm_half_tile(k, room->operand,
                           dti_gemm_half_at(h->operand, h->operand_type, i0 * g->c_row + j0),
                           h->operand_type, block->m, block->n, g->c_row, 1, &row, &col);
    for (int64_t k0 = 0; k0 == 0 || k0 < g->k; k0 += DTI_GEMM_KC) {
        const bool wide = k0 && g->k > DTI_GEMM_SPAN, last = g->k - k0 <= DTI_GEMM_KC;
        const bool span = wide && (last || k0 % DTI_GEMM_SPAN == 0); /* as in gemm.c */
        if (span)
            dti_wide_add(dti_gemm_wide(block, room->sums), k0 <= DTI_GEMM_SPAN);
        if (span && last)
            dti_wide_take(dti_gemm_wide(block, room->sums));
        block->add = k0 > 0 && (!span || last);
        block->k = DTI_MIN(g->k - k0, DTI_GEMM_KC);
        dti_gemm_half_chunk(k, g, i0, j0, k0, block, room);
    }
    if (g->epilogue == DTI_GEMM_ADD)
        k->binary[DTI_B_ADD](room->c, room->c, 1, room->operand, 1, block->m * block->n);
    for (int64_t i = 0; i < block->m; i++)
        dti_gemm_half_store(k, h, (i0 + i) * g->c_row + j0, room->c + i * block->n, block->n);
}

/* Rows [i0, i1) and columns [j0, j1) of C. */
static void dti_gemm_half_block(const dti_isa_kernels *k, const dti_gemm *g, int64_t i0, int64_t i1,
                                int64_t j0, int64_t j1, void *scratch) {
    for (int64_t j = j0; j < j1; j += DTI_GEMM_HALF_COLS)
        for (int64_t i = i0; i < i1; i += DTI_GEMM_HALF_ROWS) {
            dti_gemm_block block = {.m = DTI_MIN(i1 - i, DTI_GEMM_HALF_ROWS),
                                    .n = DTI_MIN(j1 - j, DTI_GEMM_HALF_COLS)};
            dti_gemm_half_one(k, g, i, j, &block, scratch);
        }
}
