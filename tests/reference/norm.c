/* Normalisation: statistics, value, gradients, running statistics. */

/* The group and the channel of element e of x. */
static int64_t ref_norm_channel(const ref_call *r, int64_t e) {
    return e / r->node->attr.i[2] % r->node->attr.i[1];
}
static int64_t ref_norm_group(const ref_call *r, int64_t e) {
    return r->node->attr.i[0] ? ref_norm_channel(r, e) : e / r->node->attr.i[3];
}

/* Mean and biased variance of one group of x; of RMS norm 0 and the mean of squares. */
static void ref_norm_pair(const ref_call *r, int64_t group, double pair[2]) {
    const ref_tensor *x = &r->in[0];
    double sum = 0, squares = 0, count = 0;
    for (int64_t e = 0; e < x->elements; e++)
        if (ref_norm_group(r, e) == group)
            sum += x->data[e], count += 1;
    pair[0] = r->node->attr.i[4] ? 0 : sum / count;
    for (int64_t e = 0; e < x->elements; e++)
        if (ref_norm_group(r, e) == group)
            squares += (x->data[e] - pair[0]) * (x->data[e] - pair[0]);
    pair[1] = squares / count;
}

static void ref_norm_stats(const ref_call *r) {
    for (int64_t group = 0; group < r->out.elements / 2; group++)
        ref_norm_pair(r, group, r->out.data + 2 * group);
}

static void ref_batch_stats(const ref_call *r) {
    for (int64_t c = 0; c < r->out.elements / 2; c++) {
        r->out.data[2 * c] = r->in[1].data[c];
        r->out.data[2 * c + 1] = r->in[2].data[c];
        if (r->train)
            ref_norm_pair(r, c, r->out.data + 2 * c);
    }
}

/* 1 / standard deviation of a group, and (x - mean) times it of element e. */
static double ref_norm_factor(const ref_call *r, const double pair[2]) {
    return 1 / sqrt(pair[1] + (double)r->node->attr.f[0]);
}
static double ref_norm_hat(const ref_call *r, const double pair[2], int64_t e) {
    return (r->in[0].data[e] - pair[0]) * ref_norm_factor(r, pair);
}

static void ref_norm(const ref_call *r) {
    for (int64_t e = 0; e < r->out.elements; e++) {
        int64_t c = ref_norm_channel(r, e);
        double y = ref_norm_hat(r, r->in[1].data + 2 * ref_norm_group(r, e), e);
        y *= r->node->count > 2 ? r->in[2].data[c] : 1;
        r->out.data[e] = y + (r->node->count > 3 ? r->in[3].data[c] : 0);
    }
}

/* dx = (w dy - mean of w dy - hat * mean of w dy hat) / deviation, means over the element's group;
 * RMS norm takes no mean away. */
static void ref_norm_dx_group(const ref_call *r, int64_t group) {
    double pair[2], sum = 0, along = 0, count = 0;
    ref_norm_pair(r, group, pair);
    const double *dy = r->in[1].data, *w = r->node->count > 2 ? r->in[2].data : NULL;
    for (int64_t e = 0; e < r->out.elements; e++) {
        if (ref_norm_group(r, e) != group)
            continue;
        double slope = dy[e] * (w ? w[ref_norm_channel(r, e)] : 1);
        sum += r->node->attr.i[4] ? 0 : slope;
        along += slope * ref_norm_hat(r, pair, e);
        count += 1;
    }
    for (int64_t e = 0; e < r->out.elements; e++) {
        if (ref_norm_group(r, e) != group)
            continue;
        double slope = dy[e] * (w ? w[ref_norm_channel(r, e)] : 1);
        double rest = slope - sum / count - ref_norm_hat(r, pair, e) * along / count;
        r->out.data[e] = rest * ref_norm_factor(r, pair);
    }
}

static void ref_norm_dx(const ref_call *r) {
    for (int64_t group = 0; group < r->out.elements / r->node->attr.i[3]; group++)
        ref_norm_dx_group(r, group);
}

static void ref_norm_dw(const ref_call *r) {
    int64_t channels = r->node->attr.i[1];
    ref_zero(r);
    for (int64_t e = 0; e < r->in[0].elements; e++) {
        int64_t c = ref_norm_channel(r, e);
        const double *pair = r->in[1].data + 2 * ref_norm_group(r, e);
        r->out.data[c] += r->in[2].data[e] * ref_norm_hat(r, pair, e);
        r->out.data[channels + c] += r->in[2].data[e];
    }
}

static void ref_batch_dx(const ref_call *r) {
    int64_t channels = r->node->attr.i[1];
    const double *dy = r->in[1].data, *w = r->in[2].data, *stats = r->in[3].data;
    const double *dw = r->in[4].data, *db = dw + channels;
    double count = r->node->attr.i[DTI_NORM_SYNC] ? 1 : (double)(r->out.elements / channels);
    for (int64_t e = 0; e < r->out.elements; e++) {
        int64_t c = ref_norm_channel(r, e);
        double rest = dy[e];
        if (r->train)
            rest -= (db[c] + ref_norm_hat(r, stats + 2 * c, e) * dw[c]) / count;
        r->out.data[e] = w[c] * ref_norm_factor(r, stats + 2 * c) * rest;
    }
}

/* As on the first micro-batch of a step. */
static void ref_running(const ref_call *r) {
    double momentum = (double)r->node->attr.f[0];
    double n = (double)r->batch * r->node->attr.i[2];
    for (int64_t c = 0; c < r->out.elements; c++) {
        double batch = r->in[1].data[2 * c + r->node->attr.i[5]];
        if (r->node->attr.i[5])
            batch *= n / (n - 1);
        r->out.data[c] = (1 - momentum) * r->in[0].data[c] + momentum * batch;
    }
}
