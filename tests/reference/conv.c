/* Convolution: one loop for value and gradients. */

/* The element of x at (sample, channel, row, column); x may have one sample for all. */
static int64_t ref_conv_at(const ref_tensor *x, int64_t n, int64_t c, int64_t i, int64_t j) {
    return ((n * x->dim[3] + c) * x->dim[4] + i) * x->dim[5] + j;
}

/* The value of a product of x, w and y elements, at each place where all three exist. */
typedef struct ref_conv_product {
    double *x, *w, *y; /* two are read and one is added to, or NULL where it is not wanted */
} ref_conv_product;

static void ref_conv_add(const ref_conv_product *at, int into) {
    if (into == 0)
        *at->x += *at->w * *at->y;
    else if (into == 1)
        *at->w += *at->x * *at->y;
    else
        *at->y += *at->x * *at->w;
}

/* One output channel: y[n, o, p, q] = sum x[n, c, i, j] w[o, c, r, s], i = stride p - padding +
 * dilation r; the three rows are one loop that adds into the third of them. */
static void ref_conv_channel(const dti_attr *attr, const ref_tensor *x, const ref_tensor *w,
                             const ref_tensor *y, int64_t n, int64_t o, int into) {
    const int32_t *k = attr->i;
    int64_t first = o / (y->dim[3] / k[6]) * w->dim[3]; /* of its group's channels of x */
    for (int64_t p = 0; p < y->dim[4]; p++)
        for (int64_t q = 0; q < y->dim[5]; q++)
            for (int64_t c = 0; c < w->dim[3]; c++)
                for (int64_t r = 0; r < w->dim[4]; r++)
                    for (int64_t s = 0; s < w->dim[5]; s++) {
                        int64_t i = p * k[0] - k[2] + r * k[4], j = q * k[1] - k[3] + s * k[5];
                        if (i < 0 || j < 0 || i >= x->dim[4] || j >= x->dim[5])
                            continue;
                        ref_conv_product at = {
                            x->data + ref_conv_at(x, n, first + c, i, j),
                            w->data + ((o * w->dim[3] + c) * w->dim[4] + r) * w->dim[5] + s,
                            y->data + ref_conv_at(y, n, o, p, q)};
                        ref_conv_add(&at, into);
                    }
}

/* The result starts as its bias, or 0. */
static void ref_conv(const ref_call *r, const ref_tensor *x, const ref_tensor *w,
                     const ref_tensor *y, int into) {
    const double *bias = r->node->count > 2 ? r->in[2].data : NULL;
    for (int64_t i = 0; i < r->out.elements; i++) {
        int64_t channel = i / r->out.dim[5] / r->out.dim[4] % r->out.dim[3];
        r->out.data[i] = bias ? bias[channel] : 0;
    }
    for (int64_t n = 0; n < y->dim[0]; n++)
        for (int64_t o = 0; o < y->dim[3]; o++)
            ref_conv_channel(&r->node->attr, x, w, y, n, o, into);
}

static void ref_conv2d(const ref_call *r) {
    ref_conv(r, &r->in[0], &r->in[1], &r->out, 2);
}

static void ref_conv2d_dx(const ref_call *r) {
    ref_conv(r, &r->out, &r->in[1], &r->in[0], 0);
}

static void ref_conv2d_dw(const ref_call *r) {
    ref_conv(r, &r->in[1], &r->out, &r->in[0], 1);
}
