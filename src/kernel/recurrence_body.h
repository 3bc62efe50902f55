/* Cells of recurrent nets for one instruction set. */

DTI_INLINE DTI_EF DTI_E(cell_at)(const float *p, int64_t run, int64_t i, int64_t n) {
    return DTI_E(get)(p + run * n + i, n - i);
}
/* The input's and the state's part, for gate `run`. */
DTI_INLINE DTI_EF DTI_E(cell_sum)(const dti_cell *a, int64_t run, int64_t i) {
    return DTI_E(add)(DTI_E(cell_at)(a->x, run, i, a->n), DTI_E(cell_at)(a->w, run, i, a->n));
}
DTI_INLINE void DTI_E(cell_put)(float *p, int64_t run, int64_t i, int64_t n, DTI_EF x) {
    DTI_E(put)(p + run * n + i, x, n - i);
}
/* The values of units [i, i + lanes) of the next cell. */
DTI_INLINE void DTI_E(cell_fetch)(const dti_cell_run *ahead, int64_t i) {
    for (int r = 0; r < 2; r++)
        for (int64_t at = i * ahead[r].unit; at < (i + DTI_E_LANES) * ahead[r].unit; at += 64)
            __builtin_prefetch(ahead[r].at + at);
}
/* d * y * (1 - y) and d * (1 - y^2): slopes of the logistic function and of tanh at y. */
DTI_INLINE DTI_EF DTI_E(cell_slope)(DTI_EF d, DTI_EF y) {
    return DTI_E(mul)(d, DTI_E(mul)(y, DTI_E(sub)(DTI_E(set1)(1), y)));
}
DTI_INLINE DTI_EF DTI_E(cell_tanh_slope)(DTI_EF d, DTI_EF y) {
    return DTI_E(mul)(d, DTI_E(sub)(DTI_E(set1)(1), DTI_E(mul)(y, y)));
}

DTI_ISA_FUNCTION_OF(RECURRENT, V, cell, lstm);
static void DTI_V(lstm)(const dti_cell *a) {
    const int64_t n = a->n;
    for (int64_t k = 0; k < n; k += DTI_E_LANES) {
        DTI_E(cell_fetch)(a->ahead, k);
        const DTI_EF i = DTI_E(m_sigmoid)(DTI_E(cell_sum)(a, 0, k));
        const DTI_EF f = DTI_E(m_sigmoid)(DTI_E(cell_sum)(a, 1, k));
        const DTI_EF g = DTI_E(m_tanh)(DTI_E(cell_sum)(a, 2, k));
        const DTI_EF o = DTI_E(m_sigmoid)(DTI_E(cell_sum)(a, 3, k));
        const DTI_EF c = DTI_E(fma)(f, DTI_E(cell_at)(a->c, 0, k, n), DTI_E(mul)(i, g));
        DTI_E(cell_put)(a->kept, 0, k, n, i);
        DTI_E(cell_put)(a->kept, 1, k, n, f);
        DTI_E(cell_put)(a->kept, 2, k, n, g);
        DTI_E(cell_put)(a->kept, 3, k, n, o);
        DTI_E(cell_put)(a->kept, 4, k, n, c);
        DTI_E(cell_put)(a->c, 0, k, n, c);
        DTI_E(cell_put)(a->h, 0, k, n, DTI_E(mul)(o, DTI_E(m_tanh)(c)));
    }
}

DTI_ISA_FUNCTION_OF(RECURRENT, V, cell_back, lstm_back);
static void DTI_V(lstm_back)(const dti_cell_back *a) {
    const int64_t n = a->n;
    for (int64_t k = 0; k < n; k += DTI_E_LANES) {
        DTI_E(cell_fetch)(a->ahead, k);
        const DTI_EF i = DTI_E(cell_at)(a->kept, 0, k, n), f = DTI_E(cell_at)(a->kept, 1, k, n);
        const DTI_EF g = DTI_E(cell_at)(a->kept, 2, k, n), o = DTI_E(cell_at)(a->kept, 3, k, n);
        const DTI_EF t = DTI_E(m_tanh)(DTI_E(cell_at)(a->kept, 4, k, n));
        const DTI_EF dh = DTI_E(cell_at)(a->dh, 0, k, n);
        const DTI_EF dc = DTI_E(add)(DTI_E(cell_at)(a->dc, 0, k, n),
                                     DTI_E(cell_tanh_slope)(DTI_E(mul)(dh, o), t));
        const DTI_EF c = DTI_E(cell_at)(a->before, 0, k, n);
        DTI_E(cell_put)(a->d, 0, k, n, DTI_E(cell_slope)(DTI_E(mul)(dc, g), i));
        DTI_E(cell_put)(a->d, 1, k, n, DTI_E(cell_slope)(DTI_E(mul)(dc, c), f));
        DTI_E(cell_put)(a->d, 2, k, n, DTI_E(cell_tanh_slope)(DTI_E(mul)(dc, i), g));
        DTI_E(cell_put)(a->d, 3, k, n, DTI_E(cell_slope)(DTI_E(mul)(dh, t), o));
        DTI_E(cell_put)(a->dc, 0, k, n, DTI_E(mul)(dc, f));
        DTI_E(cell_put)(a->dh, 0, k, n, DTI_E(set1)(0));
    }
}

DTI_ISA_FUNCTION_OF(RECURRENT, V, cell, gru);
static void DTI_V(gru)(const dti_cell *a) {
    const int64_t n = a->n;
    for (int64_t k = 0; k < n; k += DTI_E_LANES) {
        DTI_E(cell_fetch)(a->ahead, k);
        const DTI_EF r = DTI_E(m_sigmoid)(DTI_E(cell_sum)(a, 0, k));
        const DTI_EF z = DTI_E(m_sigmoid)(DTI_E(cell_sum)(a, 1, k));
        const DTI_EF q = DTI_E(add)(DTI_E(cell_at)(a->w, 2, k, n), DTI_E(cell_at)(a->b, 0, k, n));
        const DTI_EF m = DTI_E(m_tanh)(DTI_E(fma)(r, q, DTI_E(cell_at)(a->x, 2, k, n)));
        const DTI_EF h = DTI_E(cell_at)(a->h, 0, k, n);
        DTI_E(cell_put)(a->kept, 0, k, n, r);
        DTI_E(cell_put)(a->kept, 1, k, n, z);
        DTI_E(cell_put)(a->kept, 2, k, n, m);
        DTI_E(cell_put)(a->kept, 3, k, n, q);
        DTI_E(cell_put)(a->h, 0, k, n, DTI_E(fma)(z, DTI_E(sub)(h, m), m));
    }
}

DTI_ISA_FUNCTION_OF(RECURRENT, V, cell_back, gru_back);
static void DTI_V(gru_back)(const dti_cell_back *a) {
    const int64_t n = a->n;
    const DTI_EF one = DTI_E(set1)(1);
    for (int64_t k = 0; k < n; k += DTI_E_LANES) {
        DTI_E(cell_fetch)(a->ahead, k);
        const DTI_EF r = DTI_E(cell_at)(a->kept, 0, k, n), z = DTI_E(cell_at)(a->kept, 1, k, n);
        const DTI_EF m = DTI_E(cell_at)(a->kept, 2, k, n), q = DTI_E(cell_at)(a->kept, 3, k, n);
        const DTI_EF dh = DTI_E(cell_at)(a->dh, 0, k, n);
        const DTI_EF dz = DTI_E(mul)(dh, DTI_E(sub)(DTI_E(cell_at)(a->before, 0, k, n), m));
        const DTI_EF dm = DTI_E(cell_tanh_slope)(DTI_E(mul)(dh, DTI_E(sub)(one, z)), m);
        const DTI_EF dr = DTI_E(cell_slope)(DTI_E(mul)(dm, q), r);
        const DTI_EF du = DTI_E(cell_slope)(dz, z);
        DTI_E(cell_put)(a->dx, 0, k, n, dr);
        DTI_E(cell_put)(a->dx, 1, k, n, du);
        DTI_E(cell_put)(a->dx, 2, k, n, dm);
        DTI_E(cell_put)(a->d, 0, k, n, dr);
        DTI_E(cell_put)(a->d, 1, k, n, du);
        DTI_E(cell_put)(a->d, 2, k, n, DTI_E(mul)(dm, r));
        DTI_E(cell_put)(a->dh, 0, k, n, DTI_E(mul)(dh, z));
    }
}

DTI_ISA_FUNCTION_OF(RECURRENT, V, cell, rnn_tanh);
static void DTI_V(rnn_tanh)(const dti_cell *a) {
    for (int64_t k = 0; k < a->n; k += DTI_E_LANES)
        DTI_E(cell_put)(a->h, 0, k, a->n, DTI_E(m_tanh)(DTI_E(cell_sum)(a, 0, k)));
}

DTI_ISA_FUNCTION_OF(RECURRENT, V, cell, rnn_relu);
static void DTI_V(rnn_relu)(const dti_cell *a) {
    const DTI_EF zero = DTI_E(set1)(0);
    for (int64_t k = 0; k < a->n; k += DTI_E_LANES)
        DTI_E(cell_put)(a->h, 0, k, a->n, DTI_E(m_map_relu)(DTI_E(cell_sum)(a, 0, k), zero, zero));
}

DTI_ISA_FUNCTION_OF(RECURRENT, V, cell_back, rnn_tanh_back);
static void DTI_V(rnn_tanh_back)(const dti_cell_back *a) {
    for (int64_t k = 0; k < a->n; k += DTI_E_LANES) {
        const DTI_EF dh = DTI_E(cell_at)(a->dh, 0, k, a->n);
        const DTI_EF h = DTI_E(cell_at)(a->h_now, 0, k, a->n);
        DTI_E(cell_put)(a->d, 0, k, a->n, DTI_E(cell_tanh_slope)(dh, h));
        DTI_E(cell_put)(a->dh, 0, k, a->n, DTI_E(set1)(0));
    }
}

DTI_ISA_FUNCTION_OF(RECURRENT, V, cell_back, rnn_relu_back);
static void DTI_V(rnn_relu_back)(const dti_cell_back *a) {
    const DTI_EF zero = DTI_E(set1)(0);
    for (int64_t k = 0; k < a->n; k += DTI_E_LANES) {
        const DTI_EF dh = DTI_E(cell_at)(a->dh, 0, k, a->n);
        const DTI_EF h = DTI_E(cell_at)(a->h_now, 0, k, a->n);
        DTI_E(cell_put)(a->d, 0, k, a->n, DTI_E(m_grad_relu)(h, dh, zero, zero));
        DTI_E(cell_put)(a->dh, 0, k, a->n, zero);
    }
}
