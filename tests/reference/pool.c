/* Pooling and resampling. */

/* Position `p` along one axis of the smaller side. It covers [begin, end) of the other, and its
 * mean is divided by `count`. */
typedef struct ref_pooling_span {
    int64_t begin, end;
    double divisor;
} ref_pooling_span;

static ref_pooling_span ref_pooling_at(const ref_call *r, int axis, int64_t p, int64_t in,
                                       int64_t out) {
    const int32_t *k = r->node->attr.i + axis; /* kernel 0, stride 2, padding 4 */
    int64_t mode = r->node->attr.i[6];
    if (mode == DTI_POOL_ADAPTIVE) {
        int64_t begin = p * in / out, end = (p + 1) * in / out;
        end += (p + 1) * in % out != 0;
        return (ref_pooling_span){begin, end, (double)(end - begin)};
    }
    int64_t start = p * k[2] - k[4], stop = start + k[0];
    int64_t with_pad = stop < in + k[4] ? stop : in + k[4];
    ref_pooling_span span = {start < 0 ? 0 : start, stop < in ? stop : in, 0};
    span.divisor =
        (double)(mode == DTI_POOL_INCLUDE_PAD ? with_pad - start : span.end - span.begin);
    return span;
}

/* The element that the window of y's element `at` takes. It is the first of the largest, or the
 * last NaN, as in PyTorch. */
static int64_t ref_pooling_largest(const ref_call *r, const ref_tensor *y, int64_t at) {
    const ref_tensor *x = &r->in[0];
    int64_t q = at % y->dim[5], p = at / y->dim[5] % y->dim[4], plane = at / y->dim[5] / y->dim[4];
    ref_pooling_span rows = ref_pooling_at(r, 0, p, x->dim[4], y->dim[4]);
    ref_pooling_span cols = ref_pooling_at(r, 1, q, x->dim[5], y->dim[5]);
    int64_t largest = -1;
    for (int64_t i = rows.begin; i < rows.end; i++)
        for (int64_t j = cols.begin; j < cols.end; j++) {
            int64_t e = (plane * x->dim[4] + i) * x->dim[5] + j;
            if (largest < 0 || x->data[e] > x->data[largest] || x->data[e] != x->data[e])
                largest = e;
        }
    return largest;
}

static void ref_max_pool2d(const ref_call *r) {
    for (int64_t at = 0; at < r->out.elements; at++)
        r->out.data[at] = r->in[0].data[ref_pooling_largest(r, &r->out, at)];
}

static void ref_max_pool2d_at(const ref_call *r) {
    for (int64_t at = 0; at < r->out.elements; at++)
        r->out.data[at] = r->in[1].data[ref_pooling_largest(r, &r->out, at)];
}

static void ref_max_pool2d_grad(const ref_call *r) {
    const ref_tensor *dy = &r->in[1];
    ref_zero(r);
    for (int64_t at = 0; at < dy->elements; at++)
        r->out.data[ref_pooling_largest(r, dy, at)] += dy->data[at];
}

/* Means of x in y; or, to the other side, y's elements spread over x. */
static void ref_avg_pool(const ref_call *r, const ref_tensor *x, const ref_tensor *y, bool spread) {
    ref_zero(r);
    for (int64_t at = 0; at < y->elements; at++) {
        int64_t q = at % y->dim[5], p = at / y->dim[5] % y->dim[4];
        int64_t plane = at / y->dim[5] / y->dim[4];
        ref_pooling_span rows = ref_pooling_at(r, 0, p, x->dim[4], y->dim[4]);
        ref_pooling_span cols = ref_pooling_at(r, 1, q, x->dim[5], y->dim[5]);
        for (int64_t i = rows.begin; i < rows.end; i++)
            for (int64_t j = cols.begin; j < cols.end; j++) {
                double *of_x = x->data + (plane * x->dim[4] + i) * x->dim[5] + j;
                if (spread)
                    *of_x += y->data[at] / (rows.divisor * cols.divisor);
                else
                    y->data[at] += *of_x / (rows.divisor * cols.divisor);
            }
    }
}

static void ref_avg_pool2d(const ref_call *r) {
    ref_avg_pool(r, &r->in[0], &r->out, false);
}

static void ref_avg_pool2d_grad(const ref_call *r) {
    ref_avg_pool(r, &r->out, &r->in[0], true);
}

/* The two elements along one axis that position `p` is mixed of, and the share of the second. The
 * place of 'nearest' is PyTorch's, in single precision: another rounding takes another element. */
typedef struct ref_resize_mix {
    int64_t at[2];
    double share;
} ref_resize_mix;

static ref_resize_mix ref_resize_at(const ref_call *r, int64_t p, int64_t in, int64_t out) {
    if (r->node->attr.i[0] == DT_RESIZE_NEAREST) {
        volatile float place = (float)p * ((float)in / (float)out);
        int64_t at = (int64_t)floorf(place);
        at = at < in - 1 ? at : in - 1;
        return (ref_resize_mix){{at, at}, 0};
    }
    double place = ((double)p + 0.5) * (double)in / (double)out - 0.5;
    place = place < 0 ? 0 : place;
    int64_t at = (int64_t)floor(place);
    return (ref_resize_mix){{at, at + 1 < in ? at + 1 : at}, place - (double)at};
}

/* x: the side that is resampled from. */
static void ref_resize_between(const ref_call *r, const ref_tensor *x, const ref_tensor *y,
                               bool spread) {
    ref_zero(r);
    for (int64_t at = 0; at < y->elements; at++) {
        int64_t q = at % y->dim[5], p = at / y->dim[5] % y->dim[4];
        int64_t plane = at / y->dim[5] / y->dim[4];
        ref_resize_mix row = ref_resize_at(r, p, x->dim[4], y->dim[4]);
        ref_resize_mix col = ref_resize_at(r, q, x->dim[5], y->dim[5]);
        for (int corner = 0; corner < 4; corner++) {
            int down = corner / 2, right = corner % 2;
            double share = (down ? row.share : 1 - row.share) * (right ? col.share : 1 - col.share);
            double *of_x = x->data + (plane * x->dim[4] + row.at[down]) * x->dim[5] + col.at[right];
            if (spread)
                *of_x += share * y->data[at];
            else
                y->data[at] += share * *of_x;
        }
    }
}

static void ref_resize(const ref_call *r) {
    ref_resize_between(r, &r->in[0], &r->out, false);
}

static void ref_resize_grad(const ref_call *r) {
    ref_resize_between(r, &r->out, &r->in[0], true);
}
