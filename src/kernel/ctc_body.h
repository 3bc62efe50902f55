/* Connectionist temporal classification for one instruction set. */

/* The larger of both into *x, the other into *y; a NaN stays. */
DTI_INLINE void DTI_E(ctc_order)(DTI_EF *x, DTI_EF *y) {
    const DTI_EF a = *x, b = *y;
    const DTI_EM less = DTI_E(lt)(a, b);
    *x = DTI_E(select)(less, b, a);
    *y = DTI_E(select)(less, a, b);
}

DTI_ISA_FUNCTION_OF(CTC, V, ctc_step, ctc_step);
static void DTI_V(ctc_step)(float *y, const float *before, const float *skip, const float *x,
                            int64_t n) {
    const DTI_EF one = DTI_E(set1)(1);
    for (int64_t i = 0; i < n; i += DTI_E_LANES) {
        DTI_EF a = DTI_E(get)(before + i, n - i), b = DTI_E(get)(before + i - 1, n - i);
        DTI_EF c = DTI_E(add)(DTI_E(get)(before + i - 2, n - i), DTI_E(get)(skip + i, n - i));
        DTI_E(ctc_order)(&a, &b);
        DTI_E(ctc_order)(&a, &c); /* e^(a - a) is 1 */
        DTI_EF sum = DTI_E(add)(one, DTI_E(m_exp)(DTI_E(sub)(b, a)));
        sum = DTI_E(add)(sum, DTI_E(m_exp)(DTI_E(sub)(c, a)));
        const DTI_EF all = DTI_E(add)(a, DTI_E(m_log)(sum));
        DTI_E(put)(y + i, DTI_E(add)(all, DTI_E(get)(x + i, n - i)), n - i);
    }
}

DTI_ISA_FUNCTION_OF(CTC, V, ctc_share, ctc_share);
static void DTI_V(ctc_share)(float *y, const float *a, const float *b, const float *x, float all,
                             int64_t n) {
    const DTI_EF of = DTI_E(set1)(all);
    for (int64_t i = 0; i < n; i += DTI_E_LANES) {
        const DTI_EF to = DTI_E(sub)(DTI_E(get)(a + i, n - i), of);
        const DTI_EF from = DTI_E(sub)(DTI_E(get)(b + i, n - i), DTI_E(get)(x + i, n - i));
        DTI_E(put)(y + i, DTI_E(m_exp)(DTI_E(add)(to, from)), n - i);
    }
}
