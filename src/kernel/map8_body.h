/* map8.h for one instruction set. Lanes are independent, so all widths give the same bits. */

typedef uint8_t DTI_ISA(dti_map8_codes) __attribute__((vector_size(DTI_LANES)));

/* table[i], 0 <= i < 8 */
DTI_INLINE DTI_NF DTI_N(pick8)(const float table[8], DTI_NI i) {
#if DTI_LANES == 16
    const __m512 t = _mm512_castps256_ps512(_mm256_loadu_ps(table));
    return (DTI_NF)_mm512_permutexvar_ps((__m512i)i, t);
#elif DTI_LANES == 8
    return (DTI_NF)_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)i);
#else
    return (DTI_NF){table[i[0]], table[i[1]], table[i[2]], table[i[3]]};
#endif
}

/* One more in lanes of the mask. */
DTI_INLINE DTI_NI DTI_N(count)(DTI_NI n, DTI_NM m) {
#if DTI_LANES == 16
    return (DTI_NI)_mm512_mask_add_epi32((__m512i)n, m, (__m512i)n, _mm512_set1_epi32(1));
#else
    return DTI_N(isub)(n, m);
#endif
}

DTI_INLINE DTI_NI DTI_N(map8)(DTI_NF x, const dti_map8 *m) {
    const DTI_NI bits = DTI_N(bits)(x), last = DTI_N(iset1)(m->negative);
    const DTI_NF y = DTI_N(float)(DTI_N(iand)(bits, DTI_N(iset1)(0x7FFFFFFF)));
    DTI_NI line = DTI_N(iset1)(0);
    for (int i = 0; i < DTI_MAP8_LINES - 1; i++)
        line = DTI_N(count)(line, DTI_N(lt)(DTI_N(set1)(m->border[i]), y));
    const DTI_NF at = DTI_N(fma)(y, DTI_N(pick8)(m->slope, line), DTI_N(pick8)(m->offset, line));
    const DTI_NI code = DTI_N(to_int)(DTI_N(min)(at, DTI_N(pick8)(m->limit, line)));
    if (m->negative == 255)
        return code;
    const DTI_NI least = DTI_N(isub)(last, DTI_N(iset1)(1)); /* -1 has no code */
    const DTI_NI minus = DTI_N(iadd)(last, DTI_N(iselect)(DTI_N(ilt)(least, code), least, code));
    const DTI_NI zero = DTI_N(iset1)(0);
    return DTI_N(iselect)(DTI_N(both)(DTI_N(ilt)(bits, zero), DTI_N(ilt)(zero, code)), minus, code);
}

DTI_INLINE void DTI_N(map8_some)(uint8_t *codes, DTI_NF x, const dti_map8 *m, size_t used) {
    const DTI_ISA(dti_map8_codes) code =
        __builtin_convertvector(DTI_N(map8)(x, m), DTI_ISA(dti_map8_codes));
    memcpy(codes, &code, used);
}
DTI_ISA_FUNCTION(N, map8, map8_codes);
static void DTI_N(map8_codes)(uint8_t *codes, const float *x, int64_t n, float factor,
                              const dti_map8 *m) {
    const DTI_NF f = DTI_N(set1)(factor);
    int64_t i = 0;
    for (; i + DTI_LANES <= n; i += DTI_LANES)
        DTI_N(map8_some)(codes + i, DTI_N(mul)(DTI_N(load)(x + i), f), m, DTI_LANES);
    const DTI_NF last = DTI_N(load_n)(x + i, (int)(n - i));
    if (i < n)
        DTI_N(map8_some)(codes + i, DTI_N(mul)(last, f), m, (size_t)(n - i));
}
