/* The folds against a slow tree of scalars that walks leaves, bit for bit. Every instruction set of
 * the CPU is tested. */

#define FOLD_OPERANDS 48
#define FOLD_ISAS                                                                                  \
    3 /* portable, AVX2, AVX-512; a set that the CPU lacks is tried as the next less */

static uint64_t fold_seed;

static uint32_t fold_random(uint32_t below) {
    fold_seed = fold_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(fold_seed >> 33) % below;
}

/* ---- the oracle: one element, in the type that is summed in */

typedef struct fold_value {
    float f;
    double d;
    int64_t i;
} fold_value;

static bool fold_is_nan(uint8_t dtype, fold_value x) {
    uint32_t narrow;
    uint64_t wide;
    memcpy(&narrow, &x.f, sizeof narrow);
    memcpy(&wide, &x.d, sizeof wide);
    return dtype == DT_F32   ? (narrow & 0x7FFFFFFF) > 0x7F800000
           : dtype == DT_F64 ? (wide & INT64_MAX) > 0x7FF0000000000000
                             : false;
}

static fold_value fold_get(uint8_t dtype, const void *data, size_t i) {
    const uint8_t *at = (const uint8_t *)data + i * dti_dtype_bytes(dtype);
    fold_value x = {0};
    uint16_t half = 0;
    int32_t narrow;
    memcpy(&half, at, dtype == DT_BF16 || dtype == DT_F16 ? 2 : 0);
    if (dtype == DT_F32)
        memcpy(&x.f, at, 4);
    else if (dtype == DT_F64)
        memcpy(&x.d, at, 8);
    else if (dtype == DT_BF16)
        x.f = dti_f32_from_bf16(half);
    else if (dtype == DT_F16)
        x.f = dti_f32_from_f16(half);
    else if (dtype == DT_I64)
        memcpy(&x.i, at, 8);
    else if (dtype == DT_U8)
        x.i = *at;
    else
        memcpy(&narrow, at, 4), x.i = narrow;
    return x;
}

/* sum: the type that is summed in. Whole numbers wrap around in 64 bits: cut off, they are as if
 * wrapped around in fewer. */
static fold_value fold_join(uint8_t sum, dt_comm_reduction how, fold_value x, fold_value y) {
    bool adds = how == DT_COMM_SUM || how == DT_COMM_MEAN, more = how == DT_COMM_MAX;
    fold_value z = x;
    if (adds || how == DT_COMM_PRODUCT) {
        uint64_t a = (uint64_t)x.i, b = (uint64_t)y.i;
        z.f = adds ? x.f + y.f : x.f * y.f;
        z.d = adds ? x.d + y.d : x.d * y.d;
        z.i = (int64_t)(adds ? a + b : a * b);
        return z;
    }
    if (fold_is_nan(sum, x))
        return x;
    if (fold_is_nan(sum, y))
        return y;
    if (sum == DT_F32)
        return (more ? y.f > x.f : y.f < x.f) ? y : x;
    if (sum == DT_F64)
        return (more ? y.d > x.d : y.d < x.d) ? y : x;
    return (more ? y.i > x.i : y.i < x.i) ? y : x;
}

/* The subtree of leaves [first, first + count): an operand's, or its two sides'. */
static fold_value fold_tree(const dti_operand *operands, uint8_t sum, dt_comm_reduction how,
                            uint32_t first, uint32_t count, size_t i) {
    for (const dti_operand *o = operands; o < operands + FOLD_OPERANDS && o->data; o++)
        if (o->span.first == first && o->span.count == count)
            return fold_get(o->dtype, o->data, i);
    uint32_t left = 1;
    if (count < 2)
        return (fold_value){0};
    while (left * 2 < count)
        left *= 2;
    return fold_join(sum, how, fold_tree(operands, sum, how, first, left, i),
                     fold_tree(operands, sum, how, first + left, count - left, i));
}

/* Writes an element; a NaN as the canonical one. */
static void fold_put(uint8_t dtype, uint8_t sum, void *out, size_t i, fold_value x) {
    uint8_t *at = (uint8_t *)out + i * dti_dtype_bytes(dtype);
    bool nan = fold_is_nan(sum, x);
    uint16_t half = dtype == DT_BF16 ? nan ? 0x7FC0 : dti_bf16_from_f32(x.f)
                                     : (nan ? 0x7E00 : f16_from_f32(x.f));
    uint32_t narrow = dtype == DT_F32 ? 0x7FC00000 : (uint32_t)x.i;
    uint64_t wide = dtype == DT_F64 ? 0x7FF8000000000000 : (uint64_t)x.i;
    if (dtype == DT_F32 && !nan)
        memcpy(&narrow, &x.f, 4);
    if (dtype == DT_F64 && !nan)
        memcpy(&wide, &x.d, 8);
    if (dti_dtype_bytes(dtype) == 8)
        memcpy(at, &wide, 8);
    else if (dti_dtype_bytes(dtype) == 4)
        memcpy(at, &narrow, 4);
    else if (dti_dtype_bytes(dtype) == 2)
        memcpy(at, &half, 2);
    else
        *at = (uint8_t)x.i;
}

/* ---- one case: operands of random contents, at any alignment */

typedef struct fold_case {
    dt_dtype dtype;
    dt_comm_reduction how;
    bool finish;
    uint32_t divisor;
    size_t count;
    uint32_t operand_count;
    dti_operand operands[FOLD_OPERANDS + 1]; /* ended by one without data */
    uint8_t *memory[FOLD_OPERANDS + 1];      /* what `data` lies in */
} fold_case;

/* Values at which order, sign, range and rounding are seen. */
static const double fold_odd[] = {1e8,      1,         -1e8, -0.0,   0,      1e-40,  -1e-45,
                                  65504,    65520,     6e-8, 5.9e-8, 1.5,    -3e38,  3e38,
                                  INFINITY, -INFINITY, NAN,  1e-310, 4e-324, -1e308, 0.1};

static double fold_any_real(void) {
    uint32_t kind = fold_random(64);
    if (kind < DTI_COUNT(fold_odd) && (kind < 14 || kind > 16 || !fold_random(4)))
        return fold_odd[kind];
    double scale = kind < 40 ? 1 : kind < 52 ? 1e-38 : 1e7;
    return ((double)fold_random(1u << 31) / (double)(1u << 30) - 1) * scale;
}

static void fold_fill(uint8_t dtype, uint8_t *data, size_t count) {
    size_t bytes = dti_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        double real = fold_any_real();
        float narrow = (float)real;
        uint64_t bits = (uint64_t)fold_random(1u << 31) << 33 ^ fold_random(1u << 31);
        if (dtype == DT_F32)
            memcpy(data + 4 * i, &narrow, 4);
        else if (dtype == DT_F64)
            memcpy(data + 8 * i, &real, 8);
        else if (dtype == DT_BF16 && fold_random(8))
            memcpy(data + 2 * i, &(uint16_t){dti_bf16_from_f32(narrow)}, 2);
        else if (dtype == DT_F16 && fold_random(8))
            memcpy(data + 2 * i, &(uint16_t){f16_from_f32(narrow)}, 2);
        else
            memcpy(data + bytes * i, &bits, bytes);
    }
}

static size_t fold_any_count(void) {
    static const size_t edges[] = {511, 512, 513, 1027, 2047, 2048, 2049, 4100};
    return fold_random(16) ? fold_random(301) : edges[fold_random(DTI_COUNT(edges))];
}

static fold_case fold_case_of(int dtype, int how, bool finish, uint32_t divisor) {
    fold_case c = {.dtype = (dt_dtype)dtype, .how = (dt_comm_reduction)how, .finish = finish};
    c.divisor = divisor;
    c.count = fold_any_count();
    return c;
}

static fold_case fold_any_case(void) {
    int dtype = (int)fold_random(DT_U8 + 1), how = (int)fold_random(DT_COMM_PRODUCT + 1);
    return fold_case_of(dtype, how, fold_random(2), 1 + fold_random(40));
}

static bool fold_add(fold_case *c, uint32_t first, uint32_t leaves, bool partial) {
    uint8_t sum = dti_fold_dtype(c->dtype, c->how);
    uint8_t dtype = partial ? sum : (uint8_t)c->dtype;
    uint8_t *memory = malloc(c->count * dti_dtype_bytes(dtype) + 16);
    if (!memory)
        return false;
    uint8_t *data = memory + fold_random(16);
    fold_fill(dtype, data, c->count);
    c->memory[c->operand_count] = memory;
    c->operands[c->operand_count++] =
        (dti_operand){.data = data, .dtype = dtype, .span = {first, leaves}};
    return true;
}

/* Leaves [first, first + count), each subtree whole or in parts by chance. */
static void fold_add_tree(fold_case *c, uint32_t first, uint32_t count, uint32_t whole_of_8) {
    uint32_t left = 1;
    if (count == 1 || c->operand_count + count > FOLD_OPERANDS || fold_random(8) < whole_of_8) {
        fold_add(c, first, count, fold_random(2));
        return;
    }
    while (left * 2 < count)
        left *= 2;
    fold_add_tree(c, first, left, whole_of_8);
    fold_add_tree(c, first + left, count - left, whole_of_8);
}

static void fold_free(fold_case *c) {
    for (uint32_t i = 0; i < c->operand_count; i++)
        free(c->memory[i]);
    c->operand_count = 0;
    memset(c->operands, 0, sizeof c->operands);
}

static uint8_t fold_out_dtype(const fold_case *c) {
    return c->finish ? (uint8_t)c->dtype : dti_fold_dtype(c->dtype, c->how);
}

/* The oracle's result, malloc'ed. */
static uint8_t *fold_expect(const fold_case *c) {
    const dti_operand *last = &c->operands[c->operand_count - 1];
    uint8_t out = fold_out_dtype(c), sum = dti_fold_dtype(c->dtype, c->how);
    uint8_t *want = malloc(c->count * dti_dtype_bytes(out) + 1);
    uint32_t first = c->operands[0].span.first;
    if (sum == DT_BF16 || sum == DT_F16)
        sum = DT_F32;
    for (size_t i = 0; want && i < c->count; i++) {
        fold_value x = fold_tree(c->operands, sum, c->how, first,
                                 last->span.first + last->span.count - first, i);
        if (c->finish && c->how == DT_COMM_MEAN) {
            x.f /= (float)c->divisor;
            x.d /= c->divisor;
            x.i /= (int64_t)c->divisor;
        }
        fold_put(out, sum, want, i, x);
    }
    return want;
}

/* Where `want` has a NaN, an unfinished result may have any. */
static bool fold_same(const fold_case *c, const uint8_t *got, const uint8_t *want) {
    uint8_t out = fold_out_dtype(c), real = dti_is_half(out) ? (uint8_t)DT_F32 : out;
    size_t bytes = dti_dtype_bytes(out);
    for (size_t i = 0; i < c->count; i++)
        if (memcmp(got + i * bytes, want + i * bytes, bytes) &&
            (c->finish || !fold_is_nan(real, fold_get(out, got, i)) ||
             !fold_is_nan(real, fold_get(out, want, i))))
            return false;
    return true;
}

static void fold_check(const fold_case *c) {
    size_t bytes = c->count * dti_dtype_bytes(fold_out_dtype(c));
    uint8_t *want = fold_expect(c), *got = malloc(bytes + 32);
    for (int isa = 0; want && got && isa < FOLD_ISAS; isa++) {
        size_t shift = 1 + fold_random(16);
        memset(got, 0xA5, bytes + 32);
        dti_fold_by(dti_fold_kernels_select(isa), got + shift, c->operands, c->operand_count,
                    c->count, c->dtype, c->how, c->finish, c->divisor);
        bool ok =
            fold_same(c, got + shift, want) && got[shift - 1] == 0xA5 && got[shift + bytes] == 0xA5;
        test_check(ok, __FILE__, __LINE__, "dtype %d reduction %d finish %d isa %d: %u x %zu",
                   c->dtype, c->how, c->finish, isa, c->operand_count, c->count);
    }
    CHECK(want && got);
    free(want);
    free(got);
}

/* ---- tests */

TEST(folds_of_1_to_17_operands_are_the_tree_of_leaves_for_all_types) {
    fold_seed = 1;
    for (int dtype = 0; dtype <= DT_U8; dtype++)
        for (int how = 0; how <= DT_COMM_PRODUCT; how++)
            for (uint32_t n = 1; n <= 17; n++)
                for (int finish = 0; finish < 2; finish++) {
                    fold_case c = fold_case_of(dtype, how, finish, n);
                    for (uint32_t i = 0; i < n; i++)
                        CHECK(fold_add(&c, i, 1, false));
                    fold_check(&c);
                    fold_free(&c);
                }
}

TEST(folds_of_any_count_include_the_last_element) {
    fold_seed = 2;
    for (size_t count = 0; count <= 300; count++)
        for (int dtype = 0; dtype <= DT_U8; dtype++) {
            fold_case c = fold_any_case();
            c.dtype = (dt_dtype)dtype;
            uint32_t n = 1 + fold_random(9);
            c.count = count;
            for (uint32_t i = 0; i < n; i++)
                CHECK(fold_add(&c, i, 1, false));
            fold_check(&c);
            fold_free(&c);
        }
    fold_case large = fold_case_of(DT_F32, DT_COMM_SUM, true, 5);
    large.count = 100003;
    for (int how = 0; how <= DT_COMM_PRODUCT; how++) {
        large.dtype = how % 2 ? DT_F32 : DT_F16;
        large.how = (dt_comm_reduction)how;
        for (uint32_t i = 0; i < 5; i++)
            CHECK(fold_add(&large, i, 1, false));
        fold_check(&large);
        fold_free(&large);
    }
}

TEST(folds_of_subtrees_are_the_tree_of_leaves_wherever_it_is_cut) {
    fold_seed = 3;
    for (int i = 0; i < 4000; i++) {
        fold_case c = fold_any_case();
        if (i % 32)
            c.count = fold_random(40);
        fold_add_tree(&c, fold_random(5), 1 + fold_random(40), fold_random(4));
        fold_check(&c);
        fold_free(&c);
    }
}

/* The same leaves, summed by one rank or by several that pass partial sums on. */
TEST(folds_in_steps_have_the_bits_of_one_fold) {
    static float in[13][700], half[2][700], want[700], got[700];
    fold_seed = 4;
    for (int cut = 0; cut < 3; cut++) {
        dti_operand all[13], left[8], right[5], both[2];
        for (uint32_t i = 0; i < 13; i++) {
            fold_fill(DT_F32, (uint8_t *)in[i], 700);
            all[i] = (dti_operand){in[i], DT_F32, {i, 1}};
        }
        memcpy(left, all, sizeof left);
        memcpy(right, all + 8, sizeof right);
        dti_fold(half[0], left, 8, 700, DT_F32, DT_COMM_MEAN, false, 0);
        dti_fold(half[1], right, 5, 700, DT_F32, DT_COMM_MEAN, false, 0);
        both[0] = (dti_operand){half[0], DT_F32, {0, 8}};
        both[1] = (dti_operand){half[1], DT_F32, {8, 5}};
        dti_fold(got, both, 2, 700, DT_F32, DT_COMM_MEAN, true, 13);
        dti_fold(want, all, 13, 700, DT_F32, DT_COMM_MEAN, true, 13);
        CHECK(!memcmp(got, want, sizeof got));
    }
}

TEST(folds_may_write_over_any_operand_that_is_as_wide) {
    fold_seed = 5;
    for (int i = 0; i < 3000; i++) {
        fold_case c = fold_any_case();
        fold_add_tree(&c, 0, 1 + fold_random(20), fold_random(4));
        uint32_t over = fold_random(c.operand_count);
        size_t width = dti_dtype_bytes(fold_out_dtype(&c));
        if (dti_dtype_bytes(c.operands[over].dtype) >= width) {
            uint8_t *want = fold_expect(&c), *out = (uint8_t *)(uintptr_t)c.operands[over].data;
            dti_fold_by(dti_fold_kernels_select(i % FOLD_ISAS), out, c.operands, c.operand_count,
                        c.count, c.dtype, c.how, c.finish, c.divisor);
            test_check(want && fold_same(&c, out, want), __FILE__, __LINE__,
                       "dtype %d reduction %d finish %d over %u of %u x %zu", c.dtype, c.how,
                       c.finish, over, c.operand_count, c.count);
            free(want);
        }
        fold_free(&c);
    }
}

static float fold_of_floats(const float *values, uint32_t n) {
    dti_operand operands[16];
    float out = 0;
    for (uint32_t i = 0; i < n; i++)
        operands[i] = (dti_operand){values + i, DT_F32, {i, 1}};
    dti_fold(&out, operands, n, 1, DT_F32, DT_COMM_SUM, true, 1);
    return out;
}

TEST(folds_of_floats_depend_on_the_order_and_keep_to_it) {
    CHECK(fold_of_floats((float[]){1e8f, 1, -1e8f}, 3) == 0);
    CHECK(fold_of_floats((float[]){1e8f, -1e8f, 1}, 3) == 1);
    CHECK(fold_of_floats((float[]){1, 1e8f, -1e8f}, 3) == 0);
    /* one after another these were 1 and 2 */
    CHECK(fold_of_floats((float[]){1e8f, 1, -1e8f, 1}, 4) == 0);
    CHECK(fold_of_floats((float[]){1e8f, -1e8f, 1e8f, 1, -1e8f, 1, 1, 0}, 8) == 0);
}

TEST(folds_round_16_bit_sums_once) {
    uint16_t values[3], out, once = dti_bf16_from_f32(1.0f + 0.00390625f + 0.00390625f);
    float in[3] = {1.0f, 0.00390625f, 0.00390625f}; /* each half a place of the first */
    dti_operand operands[3];
    for (uint32_t i = 0; i < 3; i++) {
        values[i] = dti_bf16_from_f32(in[i]);
        operands[i] = (dti_operand){values + i, DT_BF16, {i, 1}};
    }
    dti_fold(&out, operands, 3, 1, DT_BF16, DT_COMM_SUM, true, 1);
    CHECK(out == once && out != values[0]);
}

TEST(folds_convert_every_16_bit_float_and_round_to_each) {
    static uint16_t in[65536], out[65536];
    static float wide[65536];
    for (int type = 0; type < 2; type++) {
        uint8_t dtype = type ? DT_F16 : DT_BF16;
        dti_operand own = {in, dtype, {0, 1}}, partial = {wide, DT_F32, {0, 1}};
        for (uint32_t i = 0; i < 65536; i++)
            in[i] = (uint16_t)i;
        for (int isa = 0; isa < FOLD_ISAS; isa++) {
            const dti_fold_kernels *kernels = dti_fold_kernels_select(isa);
            dti_fold_by(kernels, wide, &own, 1, 65536, dtype, DT_COMM_SUM, false, 1);
            for (uint32_t i = 0; i < 65536; i++) {
                float want = type ? dti_f32_from_f16(in[i]) : dti_f32_from_bf16(in[i]);
                CHECK(!memcmp(&wide[i], &want, 4));
            }
            for (uint32_t low = 0; low < 0x10000; low += type ? 0x0FFF : 0x7FFF) {
                for (uint32_t i = 0; i < 65536; i++) {
                    uint32_t bits = i << 16 | low;
                    memcpy(&wide[i], &bits, 4);
                }
                dti_fold_by(kernels, out, &partial, 1, 65536, dtype, DT_COMM_SUM, true, 1);
                for (uint32_t i = 0; i < 65536; i++) {
                    bool nan = ((i << 16 | low) & 0x7FFFFFFF) > 0x7F800000;
                    uint16_t want = type ? f16_from_f32(wide[i]) : dti_bf16_from_f32(wide[i]);
                    CHECK(out[i] == (nan ? type ? 0x7E00 : 0x7FC0 : want));
                }
            }
        }
    }
}

TEST(folds_of_integers_wrap_around_and_means_are_cut_towards_zero) {
    int32_t a[2] = {INT32_MAX, -7}, b[2] = {1, 0}, sum[2], mean[2];
    int64_t wide[2] = {INT64_MAX, -9}, more[2] = {2, 2}, wide_mean[2];
    uint8_t x[2] = {200, 255}, y[2] = {100, 254}, bytes[2];
    dti_operand narrow[2] = {{a, DT_I32, {0, 1}}, {b, DT_I32, {1, 1}}};
    dti_operand large[2] = {{wide, DT_I64, {0, 1}}, {more, DT_I64, {1, 1}}};
    dti_operand small[2] = {{x, DT_U8, {0, 1}}, {y, DT_U8, {1, 1}}};
    dti_fold(sum, narrow, 2, 2, DT_I32, DT_COMM_SUM, true, 1);
    CHECK(sum[0] == INT32_MIN && sum[1] == -7);
    dti_fold(mean, narrow, 2, 2, DT_I32, DT_COMM_MEAN, true, 2);
    CHECK(mean[0] == 1 << 30 && mean[1] == -3);
    dti_fold(wide_mean, large, 2, 2, DT_I64, DT_COMM_MEAN, true, 2);
    CHECK(wide_mean[0] == INT64_MIN / 2 + 1 && wide_mean[1] == -3);
    dti_fold(bytes, small, 2, 2, DT_U8, DT_COMM_SUM, true, 1);
    CHECK(bytes[0] == 44 && bytes[1] == 253);
    dti_fold(bytes, small, 2, 2, DT_U8, DT_COMM_MEAN, true, 2);
    CHECK(bytes[0] == 150 && bytes[1] == 254);
}

TEST(folds_keep_denormals_and_the_sign_of_the_left_operands_zero) {
    float a[4] = {0x1p-140f, -0.0f, 0.0f, 1e-45f}, b[4] = {0x1p-140f, 0.0f, -0.0f, -1e-45f}, out[4];
    unsigned modes = dti_fp_enter(); /* a host may have set flush-to-zero, as -ffast-math does */
    float want[4] = {0x1p-139f, -0.0f, 0.0f, -1e-45f};
    dti_operand operands[2] = {{a, DT_F32, {0, 1}}, {b, DT_F32, {1, 1}}};
    dti_fold(out, operands, 2, 4, DT_F32, DT_COMM_SUM, true, 1);
    CHECK(!memcmp(&out[0], &want[0], 4) && out[3] == 0);
    dti_fold(out, operands, 2, 4, DT_F32, DT_COMM_MIN, true, 1);
    CHECK(!memcmp(out + 1, want + 1, 3 * sizeof *out));
    dti_fold(out, operands, 2, 4, DT_F32, DT_COMM_MAX, true, 1);
    CHECK(!memcmp(out + 1, want + 1, 2 * sizeof *out) && out[3] == 1e-45f);
    dti_fp_leave(modes);
}

TEST(folds_of_thousands_of_operands_are_the_tree_too) {
    enum { N = 5000 };
    static float in[N][3], half[2][3], got[3], want[3];
    static dti_operand operands[N];
    fold_seed = 6;
    for (uint32_t i = 0; i < N; i++) {
        for (int k = 0; k < 3; k++)
            in[i][k] = (float)fold_random(1000) * (k ? 1.0f : 0.1f);
        operands[i] = (dti_operand){in[i], DT_F32, {i, 1}};
    }
    dti_fold(got, operands, N, 3, DT_F32, DT_COMM_SUM, true, 1);
    dti_fold(half[0], operands, 4096, 3, DT_F32, DT_COMM_SUM, false, 1);
    dti_fold(half[1], operands + 4096, N - 4096, 3, DT_F32, DT_COMM_SUM, false, 1);
    for (int k = 0; k < 3; k++) {
        double exact = 0;
        want[k] = half[0][k] + half[1][k];
        for (int i = 0; i < N; i++)
            exact += in[i][k];
        CHECK(k ? got[k] == exact : fabs(got[k] - exact) < exact * 1e-6);
    }
    CHECK(!memcmp(got, want, sizeof got));
}
