/* Sums of floats without rounding (Kulisch 1971): the same bits in any order, and over ranks. A sum
 * is a fixed-point number with all bits that a float can have, in digits of 32 bits. Beside it are
 * counts of NaNs and infinities. Digits hold 2^31 floats before they overflow. */

enum { DTI_EXACT_DIGITS = 9, DTI_EXACT_NAN = DTI_EXACT_DIGITS, DTI_EXACT_INFINITY };
enum { DTI_EXACT_WORDS = DTI_EXACT_INFINITY + 2 }; /* infinities of each sign */
typedef int64_t dti_exact[DTI_EXACT_WORDS];

static void dti_exact_add(dti_exact sum, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t exponent = bits >> 23 & 255u, fraction = bits & 0x7fffffu, minus = bits >> 31;
    const uint32_t at = exponent ? exponent - 1 : 0;
    const uint64_t shifted = (uint64_t)(fraction | (exponent ? 0x800000u : 0)) << (at & 31u);
    const int64_t low = (int64_t)(shifted & 0xffffffffu), high = (int64_t)(shifted >> 32);
    if (exponent == 255u) {
        sum[fraction ? DTI_EXACT_NAN : DTI_EXACT_INFINITY + minus]++;
        return;
    }
    sum[at / 32] += minus ? -low : low;
    sum[at / 32 + 1] += minus ? -high : high;
}

/* Digits from 0 to 2^32 - 1; returns the carry above them. */
static int64_t dti_exact_carry(const int64_t *sum, int64_t sign, uint32_t *digits) {
    int64_t carry = 0;
    for (int i = 0; i < DTI_EXACT_DIGITS; i++) {
        const int64_t digit = sign * sum[i] + carry;
        digits[i] = (uint32_t)(digit & 0xffffffff);
        carry = (digit - (int64_t)digits[i]) / 0x100000000;
    }
    return carry;
}

/* The nearest double. */
static double dti_exact_value(const int64_t *sum) {
    uint32_t digits[DTI_EXACT_DIGITS + 1], rest = 0;
    const int64_t carry = dti_exact_carry(sum, 1, digits);
    const double sign = carry < 0 ? -1.0 : 1.0;
    digits[DTI_EXACT_DIGITS] = (uint32_t)(carry < 0 ? dti_exact_carry(sum, -1, digits) : carry);
    int at = DTI_EXACT_DIGITS, lead = 0;
    while (at > 0 && !digits[at])
        at--;
    while (lead < 31 && !(digits[at] << lead >> 31))
        lead++;
    for (int i = 0; i < at - 1; i++)
        rest |= i < at - 2 ? digits[i] : digits[i] << lead;
    uint64_t top = (uint64_t)digits[at] << 32 | (at > 0 ? digits[at - 1] : 0);
    top = top << lead | (at > 1 && lead ? digits[at - 2] >> (32 - lead) : 0);
    const double value = sign * ldexp((double)(top | (rest != 0)), 32 * (at - 1) - lead - 149);
    const bool up = sum[DTI_EXACT_INFINITY] != 0, down = sum[DTI_EXACT_INFINITY + 1] != 0;
    if (sum[DTI_EXACT_NAN] || (up && down))
        return (double)NAN;
    return up ? (double)INFINITY : down ? -(double)INFINITY : value;
}
