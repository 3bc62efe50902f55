/* CTC: the sums of the kernels in double, with the same NONE. */

static double ref_ctc_own(double x) {
    return x < -DTI_CTC_NONE ? -DTI_CTC_NONE : x;
}

static double ref_ctc_sum(double a, double b, double c) {
    const double most = fmax(fmax(a, b), c);
    return isnan(a + b + c) ? NAN : most + log(exp(a - most) + exp(b - most) + exp(c - most));
}

/* A walk from one end: label and x as it goes; step: from a row of x to the next. */
static void ref_ctc_walk(const dti_ctc *s, int64_t blank, const double *label, const double *x,
                         int64_t step, double *row, int64_t row_step) {
    for (int64_t t = 0; t < s->steps; t++, x += step, row += row_step) {
        for (int64_t i = 0; i < s->cells; i++) {
            double in[3] = {-DTI_CTC_NONE, -DTI_CTC_NONE, -DTI_CTC_NONE};
            const bool skips = i % 2 && (i == 1 || label[i / 2] != label[i / 2 - 1]);
            for (int64_t k = 0; k < 3; k++)
                if (k < 2 || skips)
                    in[k] = t == 0 ? (i - k == -1 ? 0 : -DTI_CTC_NONE)
                                   : (i - k < 0 ? -DTI_CTC_NONE : row[i - k - row_step]);
            const int64_t c = i % 2 ? (int64_t)label[i / 2] : blank;
            row[i] = ref_ctc_sum(in[0], in[1], in[2]) + ref_ctc_own(x[c]);
        }
    }
}

/* What is in use of a sample; false: a label is out of range, or the blank. */
static bool ref_ctc_open(const ref_call *r, int64_t sample, dti_ctc *s) {
    const double *t = ref_sample(&r->in[1], sample);
    *s = (dti_ctc){r->in[0].dim[4], r->in[0].dim[5], r->in[1].dim[5], 0};
    if (r->node->count > 2) {
        const double *n = ref_sample(&r->in[2], sample);
        s->steps = (int64_t)fmax(0, fmin((double)s->steps, n[0]));
        s->labels = (int64_t)fmax(0, fmin((double)s->labels, n[1]));
    }
    bool right = true;
    for (int64_t k = 0; k < s->labels; k++) {
        if (t[k] < 0)
            s->labels = k;
        else if (t[k] >= (double)s->classes || t[k] == r->node->attr.i[DTI_CTC_BLANK])
            right = false;
    }
    s->cells = 2 * s->labels + 1;
    return right;
}

static void ref_ctc_finish(const ref_call *r, const dti_ctc *s, const double *last, bool right,
                           double *y) {
    double all = s->labels ? -DTI_CTC_NONE : 0;
    if (s->steps > 0)
        all = ref_ctc_sum(last[s->cells - 1], s->labels ? last[s->cells - 2] : -DTI_CTC_NONE,
                          -DTI_CTC_NONE);
    all = right ? all : NAN;
    const bool zero = (r->node->attr.i[DTI_CTC_FLAGS] & (int32_t)DTI_CTC_ZERO) != 0;
    y[DTI_CTC_LOSS] = all < -DTI_CTC_IMPOSSIBLE ? (zero ? 0 : INFINITY) : -all;
    y[DTI_CTC_COUNT] = (double)s->labels;
    y[DTI_CTC_ALL] = all;
    y[DTI_CTC_STEPS] = (double)s->steps;
}

static void ref_ctc(const ref_call *r) {
    const int64_t blank = r->node->attr.i[DTI_CTC_BLANK], most = r->in[1].dim[5];
    const int64_t size = r->out.elements / r->out.dim[0], wide = 2 * most + 1;
    for (int64_t sample = 0; sample < r->out.dim[0]; sample++) {
        dti_ctc s;
        const bool right = ref_ctc_open(r, sample, &s);
        const double *x = ref_sample(&r->in[0], sample), *t = ref_sample(&r->in[1], sample);
        double *y = r->out.data + sample * size, *a = y + DTI_CTC_HEAD + most;
        double *b = a + r->in[0].dim[4] * wide;
        double *turned = calloc((size_t)(s.labels + s.cells * (s.steps + 1)), sizeof *turned);
        memset(y, 0, (size_t)size * sizeof *y);
        memcpy(y + DTI_CTC_HEAD, t, (size_t)s.labels * sizeof *t);
        if (right && turned) {
            for (int64_t k = 0; k < s.labels; k++)
                turned[k] = t[s.labels - 1 - k];
            ref_ctc_walk(&s, blank, t, x, s.classes, a, wide);
            ref_ctc_walk(&s, blank, turned, x + (s.steps - 1) * s.classes, -s.classes,
                         turned + s.labels, s.cells);
            for (int64_t i = 0; i < s.steps * s.cells; i++)
                b[(s.steps - 1 - i / s.cells) * wide + s.cells - 1 - i % s.cells] =
                    turned[s.labels + i];
        }
        ref_ctc_finish(r, &s, s.steps ? a + (s.steps - 1) * wide : a, right, y);
        free(turned);
    }
}

static void ref_ctc_grad(const ref_call *r) {
    const int64_t steps = r->in[1].dim[4], classes = r->in[1].dim[5];
    const bool zero = (r->node->attr.i[DTI_CTC_FLAGS] & (int32_t)DTI_CTC_ZERO) != 0;
    memset(r->out.data, 0, (size_t)r->out.elements * sizeof *r->out.data);
    for (int64_t i = 0; i < r->out.dim[0] * steps; i++) {
        const double *y = ref_sample(&r->in[0], i / steps), dy = *ref_sample(&r->in[2], i / steps);
        const double *x = ref_sample(&r->in[1], i / steps) + i % steps * classes;
        const int64_t labels = dti_ctc_labels_of(steps, r->in[0].dim[5]), wide = 2 * labels + 1;
        const double *a = y + DTI_CTC_HEAD + labels + i % steps * wide, *b = a + steps * wide;
        const bool impossible = y[DTI_CTC_ALL] < -DTI_CTC_IMPOSSIBLE;
        if (i % steps >= (int64_t)y[DTI_CTC_STEPS] || (impossible && zero))
            continue;
        for (int64_t s = 0; s < 2 * (int64_t)y[DTI_CTC_COUNT] + 1; s++) {
            const int64_t c = s % 2 ? (int64_t)fmin(y[DTI_CTC_HEAD + s / 2], (double)(classes - 1))
                                    : r->node->attr.i[DTI_CTC_BLANK];
            const double share = exp(a[s] - y[DTI_CTC_ALL] + (b[s] - ref_ctc_own(x[c])));
            r->out.data[i * classes + c] -= impossible ? NAN : dy * share;
        }
    }
}
