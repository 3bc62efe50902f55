/* 16-bit floating point in memory: IEEE binary16 and bfloat16 to and from float. Rounds to nearest
 * even; a NaN stays a NaN; denormals are kept. On integers throughout, so that neither the host's
 * flags nor the machine's instructions can change a bit. */

static inline float dti_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t dti_bits_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float dti_f32_from_bf16(uint16_t bits) {
    return dti_f32_from_bits((uint32_t)bits << 16);
}

static uint16_t dti_bf16_from_f32(float value) {
    uint32_t bits = dti_bits_from_f32(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40); /* quiet: rounding could carry it into infinity */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float dti_f32_from_f16(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31;
    uint32_t fraction = bits & 0x3FF;
    if (exponent == 31)
        return dti_f32_from_bits(sign | 0x7F800000 | fraction << 13);
    if (exponent)
        return dti_f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    if (!fraction)
        return dti_f32_from_bits(sign);
    exponent = 113; /* a denormal half is a normal float: shift its leading one into place */
    while (!(fraction & 0x400)) {
        fraction <<= 1;
        exponent--;
    }
    return dti_f32_from_bits(sign | exponent << 23 | (fraction & 0x3FF) << 13);
}

/* bits >> shift, to nearest even; 1 <= shift <= 31. */
static uint32_t dti_shift_round(uint32_t bits, uint32_t shift) {
    uint32_t half = (uint32_t)1 << (shift - 1);
    return (bits + half - 1 + (bits >> shift & 1)) >> shift;
}

static uint16_t dti_f16_from_f32(float value) {
    uint32_t bits = dti_bits_from_f32(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (bits >> 13 & 0x3FF));
    if (bits >= 0x47800000) /* 65536 and above; what rounds up to it comes out right below */
        return (uint16_t)(sign | 0x7C00);
    if (bits >= 0x38800000) /* 2^-14: the smallest normal half */
        return (uint16_t)(sign | dti_shift_round(bits - 0x38000000, 13));
    if (bits < 0x33000000) /* below 2^-25, half the smallest denormal */
        return (uint16_t)sign;
    uint32_t fraction = (bits & 0x7FFFFF) | 0x800000;
    return (uint16_t)(sign | dti_shift_round(fraction, 126 - (bits >> 23)));
}
