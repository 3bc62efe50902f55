/* Whether numbers are finite, by their bits: under -ffast-math isfinite() is constant true. */

static bool dti_finite_f32(float x) {
    return (dti_bits_from_f32(x) & 0x7f800000u) != 0x7f800000u;
}

static bool dti_finite_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits >> 52 & 0x7ffu) != 0x7ffu;
}

/* Of f32, or of a type of 16 bits. */
static bool dti_all_finite(const void *data, dt_dtype dtype, uint64_t count) {
    const char *bytes = data;
    const size_t size = dti_dtype_bytes(dtype);
    const uint32_t exponent = dtype == DT_BF16 ? 0x7f80u : dtype == DT_F16 ? 0x7c00u : 0x7f800000u;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        memcpy(&bits, bytes + size * i, size);
        if ((bits & exponent) == exponent)
            return false;
    }
    return true;
}

/* The first of `count` numbers of a file, of a type of floats, that is NaN or an infinity; `count`:
 * all are finite. */
static uint64_t dti_first_infinite(const void *data, dt_dtype dtype, uint64_t count) {
    const uint8_t *at = data;
    const size_t size = dti_dtype_bytes(dtype);
    const uint64_t exponent = dtype == DT_BF16  ? 0x7f80u
                              : dtype == DT_F16 ? 0x7c00u
                              : dtype == DT_F64 ? 0x7ff0000000000000u
                                                : 0x7f800000u;
    uint64_t i = 0;
    for (; i < count; i++, at += size) {
        const uint64_t bits = size == 2 ? dti_get16(at) : size == 4 ? dti_get32(at) : dti_get64(at);
        if ((bits & exponent) == exponent)
            break;
    }
    return i;
}
