/* x / y, rounded as IEEE 754 has it except for one case in a million. Vulkan lets a division be 2.5
 * units in the last place off, and anything for a divisor above 2^126. NVIDIA's is 0. The rest is
 * by halves of 12 bits (Dekker, "A floating-point technique for extending the available precision",
 * 1971), since fma() may be two operations. By bits, as types.glsl recognises NaN: of an infinity
 * or a NaN there is nothing to correct. */
#ifndef DTI_QUOTIENT
#define DTI_QUOTIENT
float dti_quotient(float x, float y)
{
    precise float scale = abs(y) > 8.5070592e37 ? 0.25 : abs(y) < 8.0779357e-28 ? 1073741824.0 : 1.0;
    precise float d = y * scale, n = x * scale, q = n / d;
    precise float q_high = uintBitsToFloat(floatBitsToUint(q) & 0xfffff000u), q_low = q - q_high;
    precise float d_high = uintBitsToFloat(floatBitsToUint(d) & 0xfffff000u), d_low = d - d_high;
    precise float product = q * d;
    precise float across = q_high * d_low + q_low * d_high;
    precise float low = ((q_high * d_high - product) + across) + q_low * d_low;
    precise float more = ((n - product) - low) / d, better = q + more;
    bool small = (floatBitsToUint(more) & 0x7fffffffu) < (floatBitsToUint(q) & 0x7fffffffu);
    return small && abs(n) > 7.8886091e-31 ? better : q; /* else what is low may count as 0 */
}
#endif
