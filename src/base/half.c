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
