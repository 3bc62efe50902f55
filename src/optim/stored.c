/* Parameters and moments that a store keeps in fewer bits, by blocks of DTI_BLOCK elements. An
 * update computes in float: it reads a block as floats, and writes it back in its type.
 *
 * bf16 is rounded stochastically there: up with the share of a step that truncation would lose. So
 * the mean stays right where an update is smaller than half a step. Moments need it like weights. 1
 * - beta2 = 0.001 of a second moment is below half a step of bf16 (2^-9). Rounded to the nearest it
 * would never shrink.
 *
 * 8 bits: Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit optimizers via block-wise quantization"
 * (2022). An element is a value of the dynamic map times the block's scale, which is its largest
 * magnitude. */

/* ---- the dynamic map: decade 10^(i - 6) has 2^i means of equal parts of [0.1, 1], and twice that
 * number without a sign. With 0 and 1 these are 256 values; -1 is not among them. Code 0 is 0, so
 * zeros in memory are zeros; then come positive values by size, then negative ones. */

/* Codes [first, first + parts) are the means of decade `size`, on line `line` of the map. */
static void dti_map8_decade(dti_map8 *m, uint32_t line, double size, uint32_t first,
                            uint32_t parts) {
    for (uint32_t j = 0; j < parts; j++)
        m->size[first + j] = (float)(size * (0.1 + 0.9 * (j + 0.5) / parts));
    double slope = parts / (0.9 * size), begin = 0.1 * size;
    if (line == 0) { /* the first code begins half way from 0 */
        begin = 0.5 * (double)m->size[1];
        slope = 1.0 / (0.55 * size - begin);
    }
    m->slope[line] = (float)slope;
    m->offset[line] = (float)(first - begin * slope);
    m->limit[line] = (float)(first + parts - 1);
}

static void dti_map8_make(dti_map8 *m, bool is_signed) {
    static const double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
    const uint32_t last = is_signed ? 128 : 255;
    uint32_t first = 1;
    m->negative = (int)last;
    m->size[0] = 0.0f;
    for (uint32_t i = 0; i < DTI_MAP8_LINES - 1; i++) {
        const uint32_t parts = is_signed ? 1u << i : 2u << i;
        dti_map8_decade(m, i, decades[i], first, parts);
        first += parts;
    }
    m->size[last] = 1.0f;
    m->slope[DTI_MAP8_LINES - 1] = 0.0f;
    m->offset[DTI_MAP8_LINES - 1] = m->limit[DTI_MAP8_LINES - 1] = (float)last;
    for (uint32_t i = 0; i < DTI_MAP8_LINES - 1; i++) {
        const uint32_t end = (uint32_t)m->limit[i];
        m->border[i] = 0.5f * (m->size[end] + m->size[end + 1]);
    }
    for (uint32_t i = 1; i < 128 && is_signed; i++)
        m->size[last + i] = -m->size[i];
}

static void dti_map8_read(float *to, const uint8_t *from, int64_t n, const dti_map8 *m) {
    float scale;
    memcpy(&scale, from + DTI_BLOCK, sizeof scale);
    for (int64_t i = 0; i < n; i++)
        to[i] = m->size[from[i]] * scale;
    for (int64_t i = 0; i < n && !dti_finite_f32(scale); i++)
        to[i] = scale;
}

static void dti_map8_write(const dti_isa_kernels *k, uint8_t *to, const float *from, int64_t n,
                           const dti_map8 *m) {
    const float most = dti_f32_from_bits(k->row_largest(from, n));
    const float scale = most < FLT_MIN ? 0.0f : most; /* so 1 / scale is finite; NaN stays */
    memset(to, 0, DTI_BLOCK);
    memcpy(to + DTI_BLOCK, &scale, sizeof scale);
    if (dti_finite_f32(scale) && scale > 0.0f)
        k->map8_codes(to, from, n, 1.0f / scale, m);
}

/* Element i of a block has half i / 128 of word i % 128. */
static void dti_bf16_write(const dti_isa_kernels *k, uint16_t *to, const float *from, int64_t n,
                           const uint32_t *words) {
    const int64_t low = DTI_MIN(n, (int64_t)DTI_STORED_DRAWS);
    k->bf16_draw(to, from, low, words, 0);
    k->bf16_draw(to + low, from + low, n - low, words, 16);
}

/* ---- a block */

static void dti_stored_read(const dti_isa_kernels *k, float *to, const void *from, int64_t n,
                            dt_state_dtype type, const dti_map8 *map) {
    if (type == DT_STATE_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else if (type == DT_STATE_8BIT)
        dti_map8_read(to, from, n, map);
    else
        k->widen[DT_BF16](to, from, n);
}

static void dti_stored_write(const dti_isa_kernels *k, void *to, const float *from, int64_t n,
                             dt_state_dtype type, const dti_map8 *map, const uint32_t *words) {
    if (type == DT_STATE_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else if (type == DT_STATE_8BIT)
        dti_map8_write(k, to, from, n, map);
    else if (words)
        dti_bf16_write(k, to, from, n, words);
    else
        k->narrow[DT_BF16](to, from, n);
}

static uint64_t dti_stored_bytes(dt_state_dtype type, uint64_t elements) {
    if (type == DT_STATE_8BIT)
        return dti_ceil_div(elements, DTI_BLOCK) * (DTI_WORD_BYTES * dti_stored_words(type));
    return dti_bytes(type == DT_STATE_BF16 ? DT_BF16 : DT_F32, elements);
}

/* Where it is not f32: which moments of which optimizers have been measured so. */
static bool dti_stored_kind_fits(dt_optim_kind kind) {
    return kind == DT_OPTIM_SGD || kind == DT_OPTIM_ADAM || kind == DT_OPTIM_ADAMW ||
           kind == DT_OPTIM_LION;
}
