/* Parameters and moments that a store keeps in fewer bits, by blocks of DTI_BLOCK elements. An
 * update computes in float: it reads a block as floats, and writes it back in its type.
 *
 * bf16 is rounded stochastically there: up with the share of a step that truncation would lose. So
 * the mean stays right where an update is smaller than half a step. Moments need it as weights do:
 * 1 - beta2 = 0.001 of a second moment is below half a step of bf16 (2^-9), and to the nearest it
 * would never shrink.
 *
 * 8 bits: Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit optimizers via block-wise quantization"
 * (2022). An element is a value of the dynamic map times the block's scale, which is its largest
 * magnitude. */

/* ---- the dynamic map: decade 10^(i - 6) has 2^i means of equal parts of [0.1, 1], twice as many
 * without a sign. With 0 and 1 these are 256 values, but -1 is none of them. Code 0 is 0, so zeros
 * in memory are zeros; then come positive values by size, then negative ones. */

#define DTI_MAP8_LEAST (127u - 23u) /* exponent: half of the least value has a larger one */
#define DTI_MAP8_SHIFT 17 /* a bucket of floats has 6 bits of significand, so at most 2 borders */

static void dti_map8_make(dti_map8 *m, bool is_signed) {
    static const double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
    uint32_t k = 1;
    m->negative = is_signed ? 128 : 255;
    m->size[0] = 0.0f;
    for (int i = 0; i < 7; i++) {
        const int parts = is_signed ? 1 << i : 2 << i;
        for (int j = 0; j < parts; j++)
            m->size[k++] = (float)(decades[i] * (0.1 + 0.9 * (j + 0.5) / parts));
    }
    m->size[k] = 1.0f;
    for (uint32_t i = 0; i < 256; i++)
        m->border[i] = i < k ? 0.5f * (m->size[i] + m->size[i + 1]) : 2.0f;
    for (uint32_t i = 1; i < k && is_signed; i++)
        m->size[k + i] = -m->size[i];
    uint32_t code = 0;
    for (uint32_t b = 0; b < DTI_MAP8_BUCKETS; b++) {
        const float x = dti_f32_from_bits((DTI_MAP8_LEAST << 23) + (b << DTI_MAP8_SHIFT));
        while (x > m->border[code])
            code++;
        m->first[b] = (uint8_t)code;
    }
}

/* Of the value that is nearest to x in [-1, 1]. */
static inline uint8_t dti_map8_code(const dti_map8 *m, float x) {
    const uint32_t bits = dti_bits_from_f32(x), size = bits & 0x7FFFFFFFu, last = m->negative;
    const uint32_t least = DTI_MAP8_LEAST << 23, from = DTI_MAX(size, least) - least;
    const float y = dti_f32_from_bits(size);
    uint32_t code = m->first[from >> DTI_MAP8_SHIFT];
    code += y > m->border[code];
    code += y > m->border[code];
    const uint32_t minus = code && last < 255 ? last + DTI_MIN(code, last - 1) : code;
    return (uint8_t)(bits >> 31 ? minus : code);
}

static void dti_map8_read(float *to, const uint8_t *from, int64_t n, const dti_map8 *m) {
    float scale;
    memcpy(&scale, from + DTI_BLOCK, sizeof scale);
    for (int64_t i = 0; i < n; i++)
        to[i] = m->size[from[i]] * scale;
    for (int64_t i = 0; i < n && !dti_finite_f32(scale); i++)
        to[i] = scale;
}

static void dti_map8_write(uint8_t *to, const float *from, int64_t n, const dti_map8 *m) {
    uint32_t largest = 0;
    float part[DTI_BLOCK] = {0};
    for (int64_t i = 0; i < n; i++) {
        const uint32_t size = dti_bits_from_f32(from[i]) & 0x7FFFFFFFu;
        largest = DTI_MAX(largest, size);
    }
    const float scale = dti_f32_from_bits(largest);
    const bool fine = dti_finite_f32(scale) && scale > 0.0f;
    memcpy(to + DTI_BLOCK, &scale, sizeof scale);
    for (int64_t i = 0; i < n && fine; i++)
        part[i] = from[i] / scale;
    for (int64_t i = 0; i < DTI_BLOCK; i++)
        to[i] = dti_map8_code(m, part[i]);
}

/* ---- bf16 */

/* What is not finite stays as it is, and what is finite stays finite. */
static inline uint16_t dti_bf16_stochastic(float x, uint32_t random) {
    const uint32_t all = 0x7F800000u, bits = dti_bits_from_f32(x), up = bits + (random & 0xFFFFu);
    const uint32_t nan = (bits & 0x7FFFFFFFu) > all ? 0x400000u : 0; /* quiet */
    const bool stays = (bits & all) == all || (up & all) == all;
    return (uint16_t)(((stays ? bits : up) | nan) >> 16);
}

/* Element i of a block has half i / 128 of word i % 128. */
static void dti_bf16_write(uint16_t *to, const float *from, int64_t n, const uint32_t *words) {
    const int64_t low = DTI_MIN(n, (int64_t)DTI_STORED_DRAWS);
    for (int64_t i = 0; i < n && !words; i++)
        to[i] = dti_bf16_from_f32(from[i]);
    for (int64_t i = 0; i < low && words; i++)
        to[i] = dti_bf16_stochastic(from[i], words[i]);
    for (int64_t i = low; i < n && words; i++)
        to[i] = dti_bf16_stochastic(from[i], words[i - low] >> 16);
}

/* ---- a block */

static void dti_stored_read(float *to, const void *from, int64_t n, dt_state_dtype type,
                            const dti_map8 *map) {
    if (type == DT_STATE_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else if (type == DT_STATE_8BIT)
        dti_map8_read(to, from, n, map);
    for (int64_t i = 0; i < n && type == DT_STATE_BF16; i++)
        to[i] = dti_f32_from_bf16(((const uint16_t *)from)[i]);
}

static void dti_stored_write(void *to, const float *from, int64_t n, dt_state_dtype type,
                             const dti_map8 *map, const uint32_t *words) {
    if (type == DT_STATE_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else if (type == DT_STATE_8BIT)
        dti_map8_write(to, from, n, map);
    else
        dti_bf16_write(to, from, n, words);
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
