/* Terms of the loss, and their gradients. */

/* ---- loss */

static void ref_weighted_loss(const ref_call *r) {
    r->out.data[0] = r->out.data[1] = 0;
    for (int64_t i = 0; i < r->in[0].elements; i++) {
        r->out.data[0] += r->in[0].data[i] * r->in[1].data[i];
        r->out.data[1] += r->in[1].data[i];
    }
}

static void ref_weight_sum(const ref_call *r) {
    r->out.data[0] = r->out.data[1] = 0;
    for (int64_t i = 0; i < r->in[0].elements; i++)
        r->out.data[1] += r->in[0].data[i];
}

static void ref_mse(const ref_call *r) {
    double sum = 0;
    for (int64_t i = 0; i < r->in[0].elements; i++) {
        double d = r->in[0].data[i] - r->in[1].data[i];
        sum += d * d;
    }
    r->out.data[0] = sum;
    r->out.data[1] = (double)r->in[0].elements;
}

static void ref_mse_grad(const ref_call *r) {
    for (int64_t i = 0; i < r->out.elements; i++) {
        r->out.data[i] = 2 * r->in[2].data[0] * (r->in[0].data[i] - r->in[1].data[i]);
    }
}

static void ref_mean_loss(const ref_call *r) {
    double sum = 0;
    for (int64_t i = 0; i < r->in[0].elements; i++)
        sum += r->in[0].data[i];
    r->out.data[0] = sum;
    r->out.data[1] = (double)r->in[0].elements;
}

/* ---- cross_entropy */

/* One row of a cross-entropy, its target's class weight included. */
typedef struct ref_xent {
    const double *x;
    const double *weights; /* by class, or one for all, or NULL = 1 */
    int64_t weight_count;
    int64_t classes;
    double target, eps;
    bool counts; /* is not ignored */
    double log_sum;
} ref_xent;

static ref_xent ref_xent_row(const ref_call *r, const ref_tensor *weights, int64_t row) {
    ref_xent x = {.classes = ref_cols(&r->in[0]), .eps = (double)r->node->attr.f[0]};
    double high = -INFINITY, sum = 0;
    x.x = r->in[0].data + row * x.classes;
    x.target = r->in[1].data[row];
    x.counts = x.target != (double)r->node->attr.i[0];
    x.weights = weights ? weights->data : NULL;
    x.weight_count = weights ? weights->elements : 0;
    for (int64_t c = 0; c < x.classes; c++)
        high = fmax(high, x.x[c]);
    for (int64_t c = 0; c < x.classes; c++)
        sum += exp(x.x[c] - high);
    x.log_sum = r->node->op == DTI_OP_NLL ? 0 : high + log(sum); /* nll: x has it already */
    return x;
}

static double ref_xent_weight(const ref_xent *x, int64_t c) {
    if (x->target < 0 || x->target >= (double)x->classes)
        return NAN;
    return !x->weights ? 1 : x->weights[x->weight_count == 1 ? 0 : c];
}

/* What -log softmax of class c is weighted by. */
static double ref_xent_q(const ref_xent *x, int64_t c) {
    double hot = (double)c == x->target ? 1 : 0;
    return ((1 - x->eps) * hot + x->eps / (double)x->classes) * ref_xent_weight(x, c);
}

static void ref_cross_entropy(const ref_call *r) {
    double *pair = r->out.data;
    pair[0] = pair[1] = 0;
    for (int64_t row = 0; row < r->in[1].elements; row++) {
        ref_xent x = ref_xent_row(r, r->node->count > 2 ? &r->in[2] : NULL, row);
        if (!x.counts)
            continue;
        for (int64_t c = 0; c < x.classes; c++) {
            double q = ref_xent_q(&x, c);
            if (q != 0)
                pair[0] += q * (x.log_sum - x.x[c]);
        }
        pair[1] += ref_xent_weight(&x, (int64_t)x.target);
    }
}

static void ref_nll(const ref_call *r) {
    ref_cross_entropy(r);
}

static void ref_cross_entropy_weight(const ref_call *r) {
    double *pair = r->out.data;
    pair[0] = pair[1] = 0;
    for (int64_t row = 0; row < r->in[0].elements; row++) {
        double target = r->in[0].data[row];
        if (target == (double)r->node->attr.i[0])
            continue;
        bool inside = target >= 0 && target < (double)r->node->attr.i[1];
        pair[1] += !inside ? NAN : r->node->count > 1 ? r->in[1].data[(int64_t)target] : 1;
    }
}

static void ref_cross_entropy_grad(const ref_call *r) {
    for (int64_t row = 0; row < r->in[1].elements; row++) {
        ref_xent x = ref_xent_row(r, &r->in[2], row);
        double *dx = r->out.data + row * x.classes, sum = 0;
        for (int64_t c = 0; c < x.classes; c++)
            sum += ref_xent_q(&x, c);
        for (int64_t c = 0; c < x.classes; c++) {
            double p = exp(x.x[c] - x.log_sum);
            dx[c] = x.counts ? p * sum - ref_xent_q(&x, c) : 0;
        }
    }
}

static void ref_accuracy(const ref_call *r) {
    int64_t classes = ref_cols(&r->in[0]);
    double *pair = r->out.data;
    pair[0] = pair[1] = 0;
    for (int64_t row = 0; row < r->in[1].elements; row++) {
        const double *x = r->in[0].data + row * classes, target = r->in[1].data[row];
        int64_t best = 0;
        if (target == (double)r->node->attr.i[0])
            continue;
        for (int64_t c = 1; c < classes; c++) {
            if (x[c] > x[best] || (isnan(x[c]) && !isnan(x[best])))
                best = c;
        }
        bool inside = target >= 0 && target < (double)classes;
        pair[0] += !inside ? NAN : (double)best == target;
        pair[1] += inside ? 1 : NAN;
    }
}
