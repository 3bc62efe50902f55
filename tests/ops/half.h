/* To f16 by integers, beside which the vectors of base/half_body.h are held. Included by main.c and
 * comm/main.c. */

/* bits >> shift, to nearest even; 1 <= shift <= 31. */
static uint32_t shift_round(uint32_t bits, uint32_t shift) {
    uint32_t half = (uint32_t)1 << (shift - 1);
    return (bits + half - 1 + (bits >> shift & 1)) >> shift;
}

static uint16_t f16_from_f32(float value) {
    uint32_t bits = dti_bits_from_f32(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (bits >> 13 & 0x3FF));
    if (bits >= 0x47800000) /* 65536 and above; what rounds up to it comes out right below */
        return (uint16_t)(sign | 0x7C00);
    if (bits >= 0x38800000) /* 2^-14: the smallest normal half */
        return (uint16_t)(sign | shift_round(bits - 0x38000000, 13));
    if (bits < 0x33000000) /* below 2^-25, half the smallest denormal */
        return (uint16_t)sign;
    uint32_t fraction = (bits & 0x7FFFFF) | 0x800000;
    return (uint16_t)(sign | shift_round(fraction, 126 - (bits >> 23)));
}
