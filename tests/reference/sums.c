/* Sums and products: reductions, matrices, softmax. */

/* ---- reduce */

static double ref_reduce_f64(uint32_t selector, double a, double b) {
    if (selector == DTI_R_SUM)
        return a + b;
    if (isnan(a) || isnan(b))
        return NAN;
    return selector == DTI_R_MAX ? fmax(a, b) : fmin(a, b);
}

/* Each element of x is folded into the result that has its place on the axes that are kept. */
static void ref_reduce(const ref_call *r) {
    uint32_t selector = dti_op_info_of(r->node->op)->selector;
    const dti_attr *attr = &r->node->attr;
    const ref_tensor *x = &r->in[0];
    int rank = r->node->shape.rank, axes = 0;
    for (int i = 0; i < DT_MAX_DIMS; i++)
        axes += (attr->i[0] >> i) & 1;
    if (!attr->i[2])
        rank += axes; /* the input's */
    for (int64_t i = 0; i < r->out.elements; i++) {
        r->out.data[i] = selector == DTI_R_SUM ? 0 : selector == DTI_R_MAX ? -INFINITY : INFINITY;
    }
    for (int64_t i = 0; i < x->elements; i++) {
        int64_t at[DTI_AXES], to = 0;
        ref_place(x, i, at);
        for (int axis = 0; axis < DTI_AXES; axis++) {
            int dim = axis - (DTI_AXES - rank);
            bool gone = axis == 0 ? attr->i[1] != 0 : dim >= 0 && ((attr->i[0] >> dim) & 1);
            if (!gone)
                to = to * x->dim[axis] + at[axis];
        }
        r->out.data[to] = ref_reduce_f64(selector, r->out.data[to], x->data[i]);
    }
    for (int64_t i = 0; i < r->out.elements && selector == DTI_R_SUM; i++) {
        r->out.data[i] *= (double)attr->f[0];
    }
}

/* ---- product */

static void ref_matmul(const ref_call *r) {
    const ref_tensor *a = &r->in[0], *b = &r->in[1];
    bool ta = r->node->attr.i[0] != 0, tb = r->node->attr.i[1] != 0;
    int64_t inner = a->dim[ta ? 4 : 5];
    for (int64_t i = 0; i < r->out.elements; i++) {
        int64_t at[DTI_AXES], at_a[DTI_AXES], at_b[DTI_AXES];
        double sum = 0;
        ref_place(&r->out, i, at);
        memcpy(at_a, at, sizeof at);
        memcpy(at_b, at, sizeof at);
        for (int64_t k = 0; k < inner; k++) {
            at_a[ta ? 5 : 4] = at[4];
            at_a[ta ? 4 : 5] = k;
            at_b[tb ? 5 : 4] = k;
            at_b[tb ? 4 : 5] = at[5];
            sum += a->data[ref_element(a, at_a)] * b->data[ref_element(b, at_b)];
        }
        r->out.data[i] = sum;
    }
}

static void ref_linear(const ref_call *r) {
    int64_t in = ref_cols(&r->in[0]), out = ref_cols(&r->out);
    const double *bias = r->node->count > 2 ? r->in[2].data : NULL;
    for (int64_t i = 0; i < r->out.elements; i++) {
        const double *x = r->in[0].data + i / out * in, *w = r->in[1].data + i % out * in;
        double sum = bias ? bias[i % out] : 0;
        for (int64_t k = 0; k < in; k++)
            sum += x[k] * w[k];
        r->out.data[i] = sum;
    }
}

static void ref_linear_dx(const ref_call *r) {
    int64_t in = ref_cols(&r->out), out = ref_cols(&r->in[0]);
    for (int64_t i = 0; i < r->out.elements; i++) {
        const double *dy = r->in[0].data + i / in * out, *w = r->in[1].data + i % in;
        double sum = 0;
        for (int64_t k = 0; k < out; k++)
            sum += dy[k] * w[k * in];
        r->out.data[i] = sum;
    }
}

static void ref_linear_dw(const ref_call *r) {
    int64_t in = ref_cols(&r->in[1]), out = ref_cols(&r->in[0]);
    for (int64_t i = 0; i < r->out.elements; i++) {
        double sum = 0;
        for (int64_t row = 0; row < ref_rows(&r->in[1]); row++) {
            sum += r->in[0].data[row * out + i / in] * r->in[1].data[row * in + i % in];
        }
        r->out.data[i] = sum;
    }
}

/* ---- softmax */

static void ref_softmax(const ref_call *r) {
    int64_t cols = ref_cols(&r->out);
    for (int64_t row = 0; row < ref_rows(&r->out); row++) {
        const double *x = r->in[0].data + row * cols;
        double *y = r->out.data + row * cols, high = -INFINITY, sum = 0;
        for (int64_t c = 0; c < cols; c++)
            high = fmax(high, x[c]);
        for (int64_t c = 0; c < cols; c++)
            sum += exp(x[c] - high);
        for (int64_t c = 0; c < cols; c++) {
            bool is_log = r->node->op == DTI_OP_LOG_SOFTMAX;
            y[c] = is_log ? x[c] - high - log(sum) : exp(x[c] - high) / sum;
        }
    }
}

static void ref_softmax_grad(const ref_call *r) {
    int64_t cols = ref_cols(&r->out);
    bool is_log = r->node->op == DTI_OP_LOG_SOFTMAX_GRAD;
    for (int64_t row = 0; row < ref_rows(&r->out); row++) {
        const double *y = r->in[0].data + row * cols, *dy = r->in[1].data + row * cols;
        double *dx = r->out.data + row * cols, sum = 0;
        for (int64_t c = 0; c < cols; c++)
            sum += is_log ? dy[c] : y[c] * dy[c];
        for (int64_t c = 0; c < cols; c++) {
            dx[c] = is_log ? dy[c] - exp(y[c]) * sum : y[c] * (dy[c] - sum);
        }
    }
}
