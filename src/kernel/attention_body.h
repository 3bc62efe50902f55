/* Attention's rows of scores for one instruction set. */

DTI_ISA_FUNCTION(N, turn, turn);
static void DTI_N(turn)(float *dst, int64_t ld, const float *src, int64_t row, int64_t rows,
                        int64_t cols) {
    for (int64_t i = 0; i < (rows + 15) / 16 * 16; i += DTI_LANES) {
        const int n = (int)DTI_MAX(0, DTI_MIN(rows - i, DTI_LANES));
        if (n)
            DTI_N(pack_turn)(dst + i, ld, src + i * row, row, n, cols);
        for (int64_t c = 0; !n && c < cols; c++)
            DTI_N(store)(dst + c * ld + i, DTI_N(set1)(0));
    }
}

DTI_ISA_FUNCTION(V, attention_row, attention_row);
static float DTI_V(attention_row)(float *s, int64_t n, float *m, double *sum) {
    const float most = DTI_V(row_max)(s, n), before = *m;
    float factor[16];
    *m = before > most ? before : most;
    if (*m == -(float)INFINITY) {
        memset(s, 0, (size_t)n * sizeof *s);
        return 1.0f;
    }
    DTI_V(store)(factor, DTI_V(m_exp)(DTI_V(set1)(before - *m)));
    *sum = *sum * (double)factor[0] + (double)DTI_V(row_exp)(s, s, n, *m, true);
    return factor[0];
}

DTI_ISA_FUNCTION(V, attention_weights, attention_weights);
static void DTI_V(attention_weights)(float *s, int64_t n, float largest, float log_sum) {
    const DTI_VF most = DTI_V(set1)(largest), shift = DTI_V(set1)(log_sum);
    for (int64_t i = 0; i < n; i += 16) {
        DTI_VF u = DTI_V(sub)(DTI_V(get)(s + i, n - i), most);
        DTI_V(put)(s + i, DTI_V(m_exp)(DTI_V(sub)(u, shift)), n - i);
    }
}

DTI_ISA_FUNCTION(V, attention_slope, attention_slope);
static void DTI_V(attention_slope)(float *ds, const float *p, int64_t n, float mean) {
    const DTI_VF shift = DTI_V(set1)(mean);
    for (int64_t i = 0; i < n; i += 16) {
        DTI_VF u = DTI_V(sub)(DTI_V(get)(ds + i, n - i), shift);
        DTI_V(put)(ds + i, DTI_V(mul)(DTI_V(get)(p + i, n - i), u), n - i);
    }
}
