/* Batches: a seeded order of the rows, and rows of bytes turned into a program's types. Nothing
 * here allocates, so a training loop may call it each step. */

/* Philox's stream of epoch e is this plus e: "shuffle" in ASCII. It is far from the streams of
 * initial values and dropout masks under the same seed. */
#define DTI_SHUFFLE_STREAM 0x73687566666C6500u

/* A number below `bound`, which it favours by less than 2^-32. */
static uint32_t dti_shuffle_below(uint32_t bound, uint64_t seed, uint64_t stream, uint64_t i) {
    dti_u32x4 r = dti_philox(seed, i, stream);
    uint64_t low = (uint64_t)r.v[0] * bound >> 32; /* the 64-bit fraction times the bound */
    return (uint32_t)(((uint64_t)r.v[1] * bound + low) >> 32);
}

void dt_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint64_t epoch) {
    for (uint32_t i = 0; order && i < count; i++)
        order[i] = i;
    for (uint32_t i = count; order && i > 1; i--) {
        uint32_t j = dti_shuffle_below(i, seed, DTI_SHUFFLE_STREAM + epoch, i);
        DTI_SWAP(uint32_t, order[i - 1], order[j]);
    }
}

static const uint8_t *dti_row_u8(const uint8_t *src, const uint32_t *order, size_t row,
                                 size_t cols) {
    return src + (order ? order[row] : row) * cols;
}

/* A byte has 256 values. A table is as fast as the arithmetic, and has the same bits whatever the
 * compiler fuses. The product is exact in double, so the sum rounds the same fused or not. */
static void dti_u8_table(float table[256], float scale, float offset) {
    for (int value = 0; value < 256; value++)
        table[value] = (float)((double)value * (double)scale + (double)offset);
}

static void dti_rows_of_table(float *dst, const uint8_t *src, const uint32_t *order, size_t rows,
                              size_t cols, const float table[256]) {
    for (size_t i = 0; i < rows; i++) {
        const uint8_t *row = dti_row_u8(src, order, i, cols);
        float *to = dst + i * cols;
        for (size_t j = 0; j < cols; j++)
            to[j] = table[row[j]];
    }
}

void dt_gather_rows_u8_to_f32(float *dst, const uint8_t *src, const uint32_t *order, size_t rows,
                              size_t cols, float scale, float offset) {
    float table[256];
    dti_u8_table(table, scale, offset);
    if (dst && src)
        dti_rows_of_table(dst, src, order, rows, cols, table);
}

void dt_gather_rows_u8_to_i32(int32_t *dst, const uint8_t *src, const uint32_t *order, size_t rows,
                              size_t cols) {
    for (size_t i = 0; dst && src && i < rows; i++) {
        const uint8_t *row = dti_row_u8(src, order, i, cols);
        for (size_t j = 0; j < cols; j++)
            dst[i * cols + j] = row[j];
    }
}
