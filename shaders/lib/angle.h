/* Quadrants of floats of any size, once for GLSL and C: by Payne and Hanek ("Radian reduction for
 * trigonometric functions", SIGNUM 1983). Only integers of 32 bits; the only rounding is of the
 * result, so that its bits are the same everywhere. */

#ifdef VULKAN
#define DTI_ANGLE_FN
#define DTI_ANGLE_U uint
#define DTI_ANGLE_TABLE const uint dti_angle_bits[8] = uint[8]
#define DTI_ANGLE_WORDS(a, b, c, d, e, f, g, h) (a, b, c, d, e, f, g, h)
#define DTI_ANGLE_OUT(n) out int n
#define DTI_ANGLE_SET(n) n
#define DTI_ANGLE_BITS(x) floatBitsToUint(x)
#define DTI_ANGLE_FLOAT(u) uintBitsToFloat(u)
#define DTI_ANGLE_ZEROS(u) uint(31 - findMSB(u))
#define DTI_ANGLE_INT(u) int(u)
uint dti_angle_high(uint a, uint b)
{
    uint high, low;
    umulExtended(a, b, high, low);
    return high;
}
#else
#define DTI_ANGLE_FN static
#define DTI_ANGLE_U uint32_t
#define DTI_ANGLE_TABLE static const uint32_t dti_angle_bits[8] =
#define DTI_ANGLE_WORDS(a, b, c, d, e, f, g, h) {a, b, c, d, e, f, g, h}
#define DTI_ANGLE_OUT(n) int32_t *n
#define DTI_ANGLE_SET(n) *(n)
#define DTI_ANGLE_BITS(x) dti_angle_asuint(x)
#define DTI_ANGLE_FLOAT(u) dti_angle_asfloat(u)
#define DTI_ANGLE_ZEROS(u) (uint32_t)__builtin_clz(u)
#define DTI_ANGLE_INT(u) ((int32_t)(u))
static inline uint32_t dti_angle_high(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}
static inline uint32_t dti_angle_asuint(float x)
{
    uint32_t n;
    memcpy(&n, &x, sizeof n);
    return n;
}
static inline float dti_angle_asfloat(uint32_t n)
{
    float x;
    memcpy(&x, &n, sizeof x);
    return x;
}
#endif

/* From here on; below it quadrants are less than 2^16. */
#define DTI_ANGLE_FAR 102400.0f

/* 32 zeros, then the bits of 2 / pi. */
DTI_ANGLE_TABLE DTI_ANGLE_WORDS(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u,
                                0xdb629599u, 0x3c439041u, 0xfe5163abu);

/* r in [-pi/4, pi/4] with x = r + n pi/2, n up to multiples of 4. |x| >= 1; infinity and NaN give
 * any r and n. */
DTI_ANGLE_FN float dti_far_angle(float x, DTI_ANGLE_OUT(n))
{
    DTI_ANGLE_U bits = DTI_ANGLE_BITS(x), m = (bits & 0x7fffffu) | 0x800000u;
    /* 96 bits of 2 / pi from the one on that makes quadrants of x = m 2^k below 4 */
    DTI_ANGLE_U first = (bits >> 23 & 255u) - 120u, at = first >> 5, shift = first & 31u;
    DTI_ANGLE_U a = dti_angle_bits[at], b = dti_angle_bits[at + 1u];
    DTI_ANGLE_U c = dti_angle_bits[at + 2u];
    if (shift != 0u) {
        a = a << shift | b >> (32u - shift);
        b = b << shift | c >> (32u - shift);
        c = c << shift | dti_angle_bits[at + 3u] >> (32u - shift);
    }
    /* their product with m, of which 2 bits are quadrants and the next 62 a part of one */
    DTI_ANGLE_U low = m * b, high = m * a + dti_angle_high(m, b), carry = dti_angle_high(m, c);
    low += carry;
    high += low < carry ? 1u : 0u;
    DTI_ANGLE_U quadrant = (high + 0x20000000u) >> 30;
    high -= quadrant << 30;
    DTI_ANGLE_U sign = high & 0x80000000u;
    if (sign != 0u) {
        low = ~low + 1u;
        high = ~high + (low == 0u ? 1u : 0u);
    }
    /* times pi/2 with the leading bit at the top; no float is nearer to a quadrant than 2^-30 */
    DTI_ANGLE_U zeros = DTI_ANGLE_ZEROS(high | 1u);
    DTI_ANGLE_U top = dti_angle_high(high << zeros | low >> (32u - zeros), 0xc90fdaa2u);
    DTI_ANGLE_SET(n) = (bits >> 31) != 0u ? -DTI_ANGLE_INT(quadrant) : DTI_ANGLE_INT(quadrant);
#ifdef VULKAN
    float r = float(top >> 1);
#else
    float r = (float)(int32_t)(top >> 1);
#endif
    r *= DTI_ANGLE_FLOAT((99u - zeros) << 23);
    return DTI_ANGLE_FLOAT(DTI_ANGLE_BITS(r) ^ sign ^ (bits & 0x80000000u));
}
