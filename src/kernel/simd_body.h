/* Vectors for one instruction set. DTI_NF and DTI_NI are the native float and int32 vectors of
 * DTI_LANES lanes, with operations DTI_N(name). DTI_VF, DTI_VI and DTI_VM are 16 lanes as 1, 2 or 4
 * natives, with DTI_V(name). Arithmetic uses the compilers' vector operators. Intrinsics of
 * immintrin.h would be inlined with the flags under which that header was parsed. It must not know
 * formulas. A compare gives a mask of all-ones lanes, on AVX-512 a mask register. */

#define DTI_N(name) DTI_ISA(dti_n_##name)
#define DTI_V(name) DTI_ISA(dti_v_##name)
#define DTI_NF DTI_ISA(dti_nf)
#define DTI_NI DTI_ISA(dti_ni)
#define DTI_NU DTI_ISA(dti_nu)
#define DTI_NW DTI_ISA(dti_nw)
#define DTI_NM DTI_ISA(dti_nm)
#define DTI_VF DTI_ISA(dti_vf)
#define DTI_VI DTI_ISA(dti_vi)
#define DTI_VM DTI_ISA(dti_vm)

typedef float DTI_NF __attribute__((vector_size(DTI_LANES * 4)));
typedef int32_t DTI_NI __attribute__((vector_size(DTI_LANES * 4)));
typedef uint32_t DTI_NU __attribute__((vector_size(DTI_LANES * 4)));
typedef uint64_t DTI_NW __attribute__((vector_size(DTI_LANES * 4)));
#define DTI_NA DTI_ISA(dti_na)
typedef float DTI_NA __attribute__((vector_size(DTI_LANES * 4), aligned(4), may_alias));

/* Clang's backend obeys the host's -ffast-math where pragmas do not reach. It folds FMAs, replaces
 * sqrt by an estimate, and inverts compares as if there were no NaN. An empty asm hides a value. */
#undef DTI_HIDE
#undef DTI_HIDE_MASK
#if !defined __clang__ || !(DTI_X86 || defined __aarch64__)
#define DTI_HIDE(x) ((void)0)
#define DTI_HIDE_MASK(x) ((void)0)
#elif DTI_LANES == 16
#define DTI_HIDE(x) __asm__("" : "+v"(x))
#define DTI_HIDE_MASK(x) __asm__("" : "+k"(x))
#elif DTI_X86
#define DTI_HIDE(x) __asm__("" : "+x"(x))
#define DTI_HIDE_MASK(x) DTI_HIDE(x)
#else
#define DTI_HIDE(x) __asm__("" : "+w"(x))
#define DTI_HIDE_MASK(x) DTI_HIDE(x)
#endif

/* A vector that is in a register here, and not made again in each branch that follows. */
#undef DTI_KEEP
#if DTI_LANES == 16
#define DTI_KEEP(x) __asm__("" : "+v"(x))
#elif DTI_X86
#define DTI_KEEP(x) __asm__("" : "+x"(x))
#else
#define DTI_KEEP(x) ((void)0)
#endif

/* ---- native: code that is the same in every set */
DTI_INLINE DTI_NF DTI_N(load)(const float *p) {
    return *(const DTI_NA *)p;
}
DTI_INLINE void DTI_N(store)(float *p, DTI_NF x) {
    *(DTI_NA *)p = x;
}
/* Functions of one and of two vectors, and shifts. */
#undef DTI_N1
#undef DTI_N2
#undef DTI_NSHIFT
#define DTI_N1(R, name, X, value)                                                                  \
    DTI_INLINE R DTI_N(name)(X x) {                                                                \
        return value;                                                                              \
    }
#define DTI_N2(R, name, X, value)                                                                  \
    DTI_INLINE R DTI_N(name)(X x, X y) {                                                           \
        return value;                                                                              \
    }
#define DTI_NSHIFT(name, value)                                                                    \
    DTI_INLINE DTI_NI DTI_N(name)(DTI_NI x, int n) {                                               \
        return (DTI_NI)(value);                                                                    \
    }
DTI_N2(DTI_NF, add, DTI_NF, x + y)
DTI_N2(DTI_NF, sub, DTI_NF, x - y)
DTI_N2(DTI_NF, mul, DTI_NF, (x * y))
DTI_N2(DTI_NF, div, DTI_NF, x / y)
DTI_N1(DTI_NI, bits, DTI_NF, (DTI_NI)x)
DTI_N1(DTI_NF, float, DTI_NI, (DTI_NF)x)
/* Unsigned inside, so that wrapping round is defined. */
DTI_N2(DTI_NI, iadd, DTI_NI, (DTI_NI)((DTI_NU)x + (DTI_NU)y))
DTI_N2(DTI_NI, isub, DTI_NI, (DTI_NI)((DTI_NU)x - (DTI_NU)y))
DTI_N2(DTI_NI, iand, DTI_NI, (x & y))
DTI_N2(DTI_NI, ior, DTI_NI, (x | y))
DTI_N2(DTI_NI, ixor, DTI_NI, (x ^ y))
DTI_NSHIFT(shl, (DTI_NU)x << n)
DTI_NSHIFT(shr, (DTI_NU)x >> n)
DTI_NSHIFT(sar, x >> n)
DTI_N1(DTI_NI, iset1, int32_t, (DTI_NI){0} + x)
DTI_N1(DTI_NF, from_int, DTI_NI, __builtin_convertvector(x, DTI_NF))
/* Toward zero; x must be within int32. */
DTI_N1(DTI_NI, to_int, DTI_NF, __builtin_convertvector(x, DTI_NI))

/* ---- native: code that differs. DTI_MM(name): the intrinsic of AVX2 or AVX-512 for whole
 * vectors. */
#undef DTI_MM
#undef DTI_MMF
#undef DTI_MMD
#undef DTI_MMI
#if DTI_LANES == 16
#define DTI_MM(name) _mm512_##name
#define DTI_MMF __m512
#define DTI_MMD __m512d
#define DTI_MMI __m512i
#elif DTI_LANES == 8
#define DTI_MM(name) _mm256_##name
#define DTI_MMF __m256
#define DTI_MMD __m256d
#define DTI_MMI __m256i
#endif
#if DTI_LANES > 4
DTI_N1(DTI_NF, set1, float, (DTI_NF)DTI_MM(set1_ps)(x))
DTI_INLINE DTI_NF DTI_N(fma)(DTI_NF x, DTI_NF y, DTI_NF z) {
    DTI_NF r = (DTI_NF)DTI_MM(fmadd_ps)((DTI_MMF)x, (DTI_MMF)y, (DTI_MMF)z);
    DTI_HIDE(r);
    return r;
}
#endif
#if DTI_LANES == 16
typedef __mmask16 DTI_NM;
#define DTI_COMPARE(name, predicate)                                                               \
    DTI_INLINE DTI_NM DTI_N(name)(DTI_NF x, DTI_NF y) {                                            \
        DTI_NM m = _mm512_cmp_ps_mask((__m512)x, (__m512)y, predicate);                            \
        DTI_HIDE_MASK(m);                                                                          \
        return m;                                                                                  \
    }
DTI_COMPARE(lt, _CMP_LT_OQ)
DTI_COMPARE(le, _CMP_LE_OQ)
DTI_COMPARE(eq, _CMP_EQ_OQ)
#undef DTI_COMPARE
DTI_N2(DTI_NM, ilt, DTI_NI, _mm512_cmplt_epi32_mask((__m512i)x, (__m512i)y))
DTI_N2(DTI_NM, ult, DTI_NI, _mm512_cmplt_epu32_mask((__m512i)x, (__m512i)y))
DTI_INLINE DTI_NM DTI_N(both)(DTI_NM x, DTI_NM y) {
    return (DTI_NM)(x & y);
}
DTI_N2(DTI_NM, either, DTI_NM, (DTI_NM)(x | y))
DTI_INLINE DTI_NF DTI_N(select)(DTI_NM m, DTI_NF x, DTI_NF y) {
    return (DTI_NF)_mm512_mask_mov_ps((__m512)y, m, (__m512)x);
}
DTI_INLINE DTI_NI DTI_N(iselect)(DTI_NM m, DTI_NI x, DTI_NI y) {
    return (DTI_NI)_mm512_mask_mov_epi32((__m512i)y, m, (__m512i)x);
}
DTI_INLINE DTI_NF DTI_N(load_n)(const float *p, int n) { /* 0 <= n <= 16; other lanes 0 */
    return (DTI_NF)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
DTI_INLINE void DTI_N(store_n)(float *p, DTI_NF x, int n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)x);
}
#else
typedef DTI_NI DTI_NM;
#if DTI_LANES == 8
static const int32_t dti_micro_slot_masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                                 0,  0,  0,  0,  0,  0,  0,  0};
DTI_INLINE DTI_NF DTI_N(load_n)(const float *p, int n) { /* 0 <= n <= 8; other lanes 0 */
    __m256i mask =
        _mm256_loadu_si256((const __m256i *)(const void *)(dti_micro_slot_masks + 8 - n));
    return (DTI_NF)_mm256_maskload_ps(p, mask);
}
DTI_INLINE void DTI_N(store_n)(float *p, DTI_NF x, int n) {
    __m256i mask =
        _mm256_loadu_si256((const __m256i *)(const void *)(dti_micro_slot_masks + 8 - n));
    _mm256_maskstore_ps(p, mask, (__m256)x);
}
#else
DTI_N1(DTI_NF, set1, float, ((DTI_NF){x, x, x, x}))
DTI_INLINE DTI_NF DTI_N(fma)(DTI_NF x, DTI_NF y, DTI_NF z) {
#if DTI_X86 && defined __FMA__
    DTI_NF r = (DTI_NF)_mm_fmadd_ps((__m128)x, (__m128)y, (__m128)z);
#elif defined __aarch64__
    DTI_NF r = (DTI_NF)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
#elif DTI_PORTABLE_FMA
    DTI_NF r = {__builtin_fmaf(x[0], y[0], z[0]), __builtin_fmaf(x[1], y[1], z[1]),
                __builtin_fmaf(x[2], y[2], z[2]), __builtin_fmaf(x[3], y[3], z[3])};
#else
    DTI_NF product = x * y;
    DTI_HIDE(product);
    DTI_NF r = product + z;
#endif
    DTI_HIDE(r);
    return r;
}
DTI_INLINE DTI_NF DTI_N(load_n)(const float *p, int n) { /* 0 <= n <= 4; other lanes 0 */
    float t[4] = {0};
    for (int i = 0; i < n; i++)
        t[i] = p[i];
    return (DTI_NF){t[0], t[1], t[2], t[3]};
}
DTI_INLINE void DTI_N(store_n)(float *p, DTI_NF x, int n) {
    for (int i = 0; i < n; i++)
        p[i] = x[i];
}
#endif
#define DTI_COMPARE(name, operator)                                                                \
    DTI_INLINE DTI_NM DTI_N(name)(DTI_NF x, DTI_NF y) {                                            \
        DTI_NM m = (DTI_NM)(x operator y);                                                         \
        DTI_HIDE_MASK(m);                                                                          \
        return m;                                                                                  \
    }
DTI_COMPARE(lt, <)
DTI_COMPARE(le, <=)
DTI_COMPARE(eq, ==)
#undef DTI_COMPARE
DTI_N2(DTI_NM, ilt, DTI_NI, (DTI_NM)(x < y))
DTI_N2(DTI_NM, ult, DTI_NI, (DTI_NM)((DTI_NU)x < (DTI_NU)y))
DTI_N2(DTI_NM, both, DTI_NM, (x & y))
DTI_N2(DTI_NM, either, DTI_NM, (x | y))
DTI_INLINE DTI_NI DTI_N(iselect)(DTI_NM m, DTI_NI x, DTI_NI y) {
    return (x & m) | (y & ~m);
}
DTI_INLINE DTI_NF DTI_N(select)(DTI_NM m, DTI_NF x, DTI_NF y) {
#if DTI_LANES == 8
    return (DTI_NF)_mm256_blendv_ps((__m256)y, (__m256)x, (__m256)m);
#else
    return (DTI_NF)DTI_N(iselect)(m, (DTI_NI)x, (DTI_NI)y);
#endif
}
#endif

/* Whether any lane of a mask is set. */
DTI_INLINE bool DTI_N(any)(DTI_NM m) {
#if DTI_LANES == 16
    return m != 0;
#elif DTI_LANES == 8
    return _mm256_movemask_ps((__m256)m) != 0;
#elif DTI_X86
    return _mm_movemask_ps((__m128)m) != 0;
#else
    return (m[0] | m[1] | m[2] | m[3]) != 0;
#endif
}

DTI_INLINE DTI_NF DTI_N(sqrt)(DTI_NF x) {
    DTI_NF r;
#if DTI_LANES == 16
    __asm__("vsqrtps %1, %0" : "=v"(r) : "v"(x));
#elif DTI_LANES == 8
    __asm__("vsqrtps %1, %0" : "=x"(r) : "x"(x));
#elif DTI_X86 && defined __AVX__
    __asm__("vsqrtps %1, %0" : "=x"(r) : "x"(x));
#elif DTI_X86
    __asm__("sqrtps %1, %0" : "=x"(r) : "x"(x));
#elif defined __aarch64__
    __asm__("fsqrt %0.4s, %1.4s" : "=w"(r) : "w"(x));
#else
    for (int i = 0; i < 4; i++)
        r[i] = __builtin_sqrtf(x[i]);
#endif
    return r;
}

/* ---- native: rows to columns */

/* Within each 128 bits. */
DTI_INLINE void DTI_N(turn4)(DTI_NI r[4]) {
#if DTI_LANES > 4
    DTI_MMI a = DTI_MM(unpacklo_epi32)((DTI_MMI)r[0], (DTI_MMI)r[1]);
    DTI_MMI b = DTI_MM(unpacklo_epi32)((DTI_MMI)r[2], (DTI_MMI)r[3]);
    DTI_MMI c = DTI_MM(unpackhi_epi32)((DTI_MMI)r[0], (DTI_MMI)r[1]);
    DTI_MMI d = DTI_MM(unpackhi_epi32)((DTI_MMI)r[2], (DTI_MMI)r[3]);
    r[0] = (DTI_NI)DTI_MM(unpacklo_epi64)(a, b);
    r[1] = (DTI_NI)DTI_MM(unpackhi_epi64)(a, b);
    r[2] = (DTI_NI)DTI_MM(unpacklo_epi64)(c, d);
    r[3] = (DTI_NI)DTI_MM(unpackhi_epi64)(c, d);
#else
    DTI_NI x[4] = {r[0], r[1], r[2], r[3]};
    DTI_UNROLL(4)
    for (int i = 0; i < 4; i++)
        r[i] = (DTI_NI){x[0][i], x[1][i], x[2][i], x[3][i]};
#endif
}

/* r[j][i] = src[i * row + j]. Loads bring 128 bits to their place, because shuffles have only one
 * port. Moving pointers keep compilers from setting up one for each row. */
DTI_INLINE void DTI_N(load_turned)(const float *src, int64_t row, DTI_NF r[DTI_LANES]) {
    const float *from[DTI_LANES / 4]; /* row i, 4 + i, 8 + i... */
    DTI_NI t[DTI_LANES];
    DTI_UNROLL(4)
    for (int j = 0; j < DTI_LANES / 4; j++)
        from[j] = src + 4 * j * row;
    DTI_UNROLL(4)
    for (int i = 0; i < 4; i++) {
        DTI_UNROLL(4)
        for (int q = 0; q < DTI_LANES / 4; q++) {
#if DTI_LANES == 16
            __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(from[0] + 4 * q));
            x = _mm512_insertf32x4(x, _mm_loadu_ps(from[1] + 4 * q), 1);
            x = _mm512_insertf32x4(x, _mm_loadu_ps(from[2] + 4 * q), 2);
            t[4 * q + i] = (DTI_NI)_mm512_insertf32x4(x, _mm_loadu_ps(from[3] + 4 * q), 3);
#elif DTI_LANES == 8
            __m256 x = _mm256_castps128_ps256(_mm_loadu_ps(from[0] + 4 * q));
            t[4 * q + i] = (DTI_NI)_mm256_insertf128_ps(x, _mm_loadu_ps(from[1] + 4 * q), 1);
#else
            t[i] = (DTI_NI)DTI_N(load)(from[0]);
#endif
        }
        DTI_UNROLL(4)
        for (int j = 0; j < DTI_LANES / 4; j++) {
            from[j] += row;
            DTI_HIDE_POINTER(from[j]);
        }
    }
    DTI_UNROLL(4)
    for (int q = 0; q < DTI_LANES / 4; q++)
        DTI_N(turn4)(t + 4 * q);
    DTI_UNROLL(16)
    for (int i = 0; i < DTI_LANES; i++)
        r[i] = (DTI_NF)t[i];
}

/* ---- 16 lanes: each operation on every part */
#undef DTI_PARTS
#undef DTI_EACH
#if DTI_LANES == 16
#define DTI_PARTS a
#define DTI_EACH(of, ...)                                                                          \
    { of(a, __VA_ARGS__) }
#elif DTI_LANES == 8
#define DTI_PARTS a, b
#define DTI_EACH(of, ...)                                                                          \
    { of(a, __VA_ARGS__), of(b, __VA_ARGS__) }
#else
#define DTI_PARTS a, b, c, d
#define DTI_EACH(of, ...)                                                                          \
    { of(a, __VA_ARGS__), of(b, __VA_ARGS__), of(c, __VA_ARGS__), of(d, __VA_ARGS__) }
#endif
#define DTI_OF0(part, f) f
#define DTI_OF1(part, f, x) f(x.part)
#define DTI_OF2(part, f, x, y) f(x.part, y.part)
#define DTI_OF3(part, f, x, y, z) f(x.part, y.part, z.part)
#define DTI_OFN(part, f, x, n) f(x.part, n)
typedef struct {
    DTI_NF DTI_PARTS;
} DTI_VF;
typedef struct {
    DTI_NI DTI_PARTS;
} DTI_VI;
typedef struct {
    DTI_NM DTI_PARTS;
} DTI_VM;
#define DTI_V1(R, name, X)                                                                         \
    DTI_INLINE R DTI_V(name)(X x) {                                                                \
        return (R)DTI_EACH(DTI_OF1, DTI_N(name), x);                                               \
    }
#define DTI_V2(R, name, X)                                                                         \
    DTI_INLINE R DTI_V(name)(X x, X y) {                                                           \
        return (R)DTI_EACH(DTI_OF2, DTI_N(name), x, y);                                            \
    }
#define DTI_V3(R, name, M, X)                                                                      \
    DTI_INLINE R DTI_V(name)(M x, X y, X z) {                                                      \
        return (R)DTI_EACH(DTI_OF3, DTI_N(name), x, y, z);                                         \
    }
#define DTI_VSHIFT(name)                                                                           \
    DTI_INLINE DTI_VI DTI_V(name)(DTI_VI x, int n) {                                               \
        return (DTI_VI)DTI_EACH(DTI_OFN, DTI_N(name), x, n);                                       \
    }

DTI_V2(DTI_VF, add, DTI_VF)
DTI_V2(DTI_VF, sub, DTI_VF)
DTI_V2(DTI_VF, mul, DTI_VF)
DTI_V2(DTI_VF, div, DTI_VF)
DTI_V1(DTI_VF, sqrt, DTI_VF)
DTI_V1(DTI_VI, bits, DTI_VF)
DTI_V1(DTI_VF, float, DTI_VI)
DTI_V1(DTI_VF, from_int, DTI_VI)
DTI_V1(DTI_VI, to_int, DTI_VF)
DTI_V2(DTI_VI, iadd, DTI_VI)
DTI_V2(DTI_VI, isub, DTI_VI)
DTI_V2(DTI_VI, iand, DTI_VI)
DTI_V2(DTI_VI, ior, DTI_VI)
DTI_V2(DTI_VI, ixor, DTI_VI)
DTI_V2(DTI_VM, lt, DTI_VF)
DTI_V2(DTI_VM, le, DTI_VF)
DTI_V2(DTI_VM, eq, DTI_VF)
DTI_V2(DTI_VM, ilt, DTI_VI)
DTI_V2(DTI_VM, ult, DTI_VI)
DTI_V2(DTI_VM, both, DTI_VM)
DTI_V2(DTI_VM, either, DTI_VM)
DTI_V3(DTI_VF, fma, DTI_VF, DTI_VF)
DTI_V3(DTI_VF, select, DTI_VM, DTI_VF)
DTI_V3(DTI_VI, iselect, DTI_VM, DTI_VI)
DTI_VSHIFT(shl)
DTI_VSHIFT(shr)
DTI_VSHIFT(sar)
DTI_INLINE bool DTI_V(any)(DTI_VM m) {
#if DTI_LANES == 16
    return DTI_N(any)(m.a);
#elif DTI_LANES == 8
    return DTI_N(any)(m.a) || DTI_N(any)(m.b);
#else
    return DTI_N(any)(DTI_N(either)(DTI_N(either)(m.a, m.b), DTI_N(either)(m.c, m.d)));
#endif
}
DTI_INLINE DTI_VF DTI_V(set1)(float x) {
    return (DTI_VF)DTI_EACH(DTI_OF0, DTI_N(set1)(x));
}
DTI_INLINE DTI_VI DTI_V(iset1)(int32_t x) {
    return (DTI_VI)DTI_EACH(DTI_OF0, DTI_N(iset1)(x));
}

/* max: x < y ? y : x; min: y < x ? y : x. So the result is x, even if it is NaN, where no compare
 * holds. The instruction with x as its second operand does the same. nan: whether x is NaN. */
#if DTI_LANES > 4
#define DTI_MOST(name)                                                                             \
    DTI_INLINE DTI_NF DTI_N(name)(DTI_NF x, DTI_NF y) {                                            \
        DTI_NF r;                                                                                  \
        __asm__("v" #name "ps %1, %2, %0" : "=v"(r) : "v"(x), "v"(y));                             \
        return r;                                                                                  \
    }
DTI_MOST(max)
DTI_MOST(min)
#undef DTI_MOST
DTI_INLINE DTI_NM DTI_N(nan)(DTI_NF x) {
    DTI_NM m;
#if DTI_LANES == 16
    __asm__("vcmpunordps %1, %1, %0" : "=k"(m) : "v"(x));
#else
    __asm__("vcmpunordps %1, %1, %0" : "=x"(m) : "x"(x));
#endif
    return m;
}
#else
DTI_INLINE DTI_NF DTI_N(max)(DTI_NF x, DTI_NF y) {
    return DTI_N(select)(DTI_N(lt)(x, y), y, x);
}
DTI_INLINE DTI_NF DTI_N(min)(DTI_NF x, DTI_NF y) {
    return DTI_N(select)(DTI_N(lt)(y, x), y, x);
}
DTI_INLINE DTI_NM DTI_N(nan)(DTI_NF x) {
    return DTI_N(ilt)(DTI_N(iset1)(0x7f800000), DTI_N(bits)(x) & 0x7fffffff);
}
#endif

/* x 2^n, which may be denormal or infinite, |n| < 250. A float's exponent holds half of n. */
DTI_INLINE DTI_NF DTI_N(scale)(DTI_NF x, DTI_NI n) {
#if DTI_LANES == 16
    return (DTI_NF)_mm512_scalef_ps((__m512)x, (__m512)DTI_N(from_int)(n));
#else
    const DTI_NI half = DTI_N(sar)(n, 1), one = DTI_N(iset1)(127);
    const DTI_NI rest = DTI_N(isub)(n, half);
    x = x * DTI_N(float)(DTI_N(shl)(DTI_N(iadd)(half, one), 23));
    return x * DTI_N(float)(DTI_N(shl)(DTI_N(iadd)(rest, one), 23));
#endif
}
DTI_INLINE DTI_VF DTI_V(scale)(DTI_VF x, DTI_VI n) {
    return (DTI_VF)DTI_EACH(DTI_OF2, DTI_N(scale), x, n);
}
DTI_V1(DTI_VM, nan, DTI_VF)
DTI_V2(DTI_VF, max, DTI_VF)
DTI_V2(DTI_VF, min, DTI_VF)

DTI_INLINE DTI_VF DTI_V(load)(const float *p) {
#if DTI_LANES == 16
    return (DTI_VF){DTI_N(load)(p)};
#elif DTI_LANES == 8
    return (DTI_VF){DTI_N(load)(p), DTI_N(load)(p + 8)};
#else
    return (DTI_VF){DTI_N(load)(p), DTI_N(load)(p + 4), DTI_N(load)(p + 8), DTI_N(load)(p + 12)};
#endif
}
DTI_INLINE void DTI_V(store)(float *p, DTI_VF x) {
    DTI_N(store)(p, x.a);
#if DTI_LANES < 16
    DTI_N(store)(p + DTI_LANES, x.b);
#endif
#if DTI_LANES < 8
    DTI_N(store)(p + 8, x.c);
    DTI_N(store)(p + 12, x.d);
#endif
}
/* The first n lanes, 0 <= n <= 16; the others are 0. */
DTI_INLINE DTI_VF DTI_V(load_n)(const float *p, int n) {
#if DTI_LANES == 16
    return (DTI_VF){DTI_N(load_n)(p, n)};
#elif DTI_LANES == 8
    return n < 8 ? (DTI_VF){DTI_N(load_n)(p, n), DTI_N(set1)(0)}
                 : (DTI_VF){DTI_N(load)(p), DTI_N(load_n)(p + 8, n - 8)};
#else
    float t[16] = {0};
    for (int i = 0; i < n; i++)
        t[i] = p[i];
    return DTI_V(load)(t);
#endif
}
DTI_INLINE void DTI_V(store_n)(float *p, DTI_VF x, int n) {
#if DTI_LANES == 16
    DTI_N(store_n)(p, x.a, n);
#elif DTI_LANES == 8
    if (n < 8) {
        DTI_N(store_n)(p, x.a, n);
        return;
    }
    DTI_N(store)(p, x.a);
    DTI_N(store_n)(p + 8, x.b, n - 8);
#else
    float t[16];
    DTI_V(store)(t, x);
    for (int i = 0; i < n; i++)
        p[i] = t[i];
#endif
}

DTI_INLINE float DTI_V(sum)(DTI_VF x) {
    float t[16];
    DTI_V(store)(t, x);
    return dti_tree_sum(t);
}

/* sums[i] += lane i. */
DTI_INLINE void DTI_V(add_wide)(double *sums, DTI_VF x) {
    float t[16];
    DTI_V(store)(t, x);
    for (int i = 0; i < 16; i++)
        sums[i] += (double)t[i];
}

/* ---- elementwise: lanes are independent, so any width gives the same bits. x86's vectors go one
 * by one. That is half (AVX2) or a quarter (portable) of the code, and as fast: the processor
 * overlaps iterations by itself. Elsewhere only the portable class exists, with 16 lanes. */
#undef DTI_E
#undef DTI_EF
#undef DTI_EI
#undef DTI_EM
#undef DTI_E_LANES
#undef DTI_E_FN
#if DTI_LANES == 4 && DTI_X86 || DTI_LANES == 8
#define DTI_E(name) DTI_N(name)
#define DTI_EF DTI_NF
#define DTI_EI DTI_NI
#define DTI_EM DTI_NM
#define DTI_E_LANES DTI_LANES
#if DTI_LANES == 4
#define DTI_E_FN static
#else
#define DTI_E_FN DTI_INLINE
#endif
#else
#define DTI_E(name) DTI_V(name)
#define DTI_EF DTI_VF
#define DTI_EI DTI_VI
#define DTI_EM DTI_VM
#define DTI_E_LANES 16
#define DTI_E_FN DTI_INLINE
#endif

/* The DTI_E_LANES floats at p, or the first n of them where n is less, and 0. */
DTI_INLINE DTI_EF DTI_E(get)(const float *p, int64_t n) {
    return n >= DTI_E_LANES ? DTI_E(load)(p) : DTI_E(load_n)(p, (int)n);
}
DTI_INLINE void DTI_E(put)(float *p, DTI_EF x, int64_t n) {
    if (n >= DTI_E_LANES)
        DTI_E(store)(p, x);
    else
        DTI_E(store_n)(p, x, (int)n);
}
#if DTI_LANES == 4 && DTI_X86 || DTI_LANES == 8 /* else these are those */
DTI_INLINE DTI_VF DTI_V(get)(const float *p, int64_t n) {
    return n >= 16 ? DTI_V(load)(p) : DTI_V(load_n)(p, (int)n);
}
DTI_INLINE void DTI_V(put)(float *p, DTI_VF x, int64_t n) {
    if (n >= 16)
        DTI_V(store)(p, x);
    else
        DTI_V(store_n)(p, x, (int)n);
}
#endif
