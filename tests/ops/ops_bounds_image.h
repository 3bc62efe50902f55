/* Bounds of pooling's adjoint, resizing and normalisation. Included by ops_bounds.h. */
#ifndef DTRAIN_TESTS_OPS_BOUNDS_IMAGE_H
#define DTRAIN_TESTS_OPS_BOUNDS_IMAGE_H

/* A sum over the windows that an element is the largest of: of one it is exact. */
static void ops_max_pool_grad_bounds(const ref_call *r, double *bound) {
    ref_call abs_r = *r;
    ref_tensor in[2] = {r->in[0], r->in[1]};
    double *dy = malloc((size_t)(in[1].elements + 1) * sizeof *dy);
    for (int64_t i = 0; i < in[1].elements; i++)
        dy[i] = fabs(r->in[1].data[i]);
    in[1].data = dy;
    abs_r.in = in;
    abs_r.out.data = bound;
    ref_max_pool2d_grad(&abs_r);
    free(dy);
    const int32_t *k = r->node->attr.i;
    bool overlap = k[2] < k[0] || k[3] < k[1];
    for (int64_t i = 0; i < r->out.elements; i++)
        bound[i] *= overlap ? (double)k[0] * k[1] * OPS_U : 0;
}

/* How far along an axis an element of the larger side is from what it is mixed of. */
static double ops_resize_distance(int64_t i, int64_t p, int64_t in, int64_t out) {
    double place = fmax(((double)p + 0.5) * (double)in / (double)out - 0.5, 0);
    return fabs(place - (double)i);
}

/* 'nearest' moves values: exact, and its adjoint adds some up. In bilinear mode a place is off by a
 * few units in its last place. So are the shares of the two elements around it; where it is whole,
 * also of the next one. */
static void ops_resize_bounds(const ref_call *r, double *bound) {
    bool grad = r->node->op == DTI_OP_RESIZE_GRAD, nearest = r->node->attr.i[0] == 0;
    const ref_tensor *x = grad ? &r->out : &r->in[0], *y = grad ? &r->in[0] : &r->out;
    int64_t ih = x->dim[4], iw = x->dim[5], oh = y->dim[4], ow = y->dim[5];
    double terms = grad ? ceil((double)oh / (double)ih + 1) * ceil((double)ow / (double)iw + 1) : 4;
    double unit = (nearest ? terms : 4 * terms + 8 * (double)(ih + iw)) * OPS_U;
    for (int64_t i = 0; i < r->out.elements; i++)
        bound[i] = 0;
    for (int64_t at = 0; at < y->elements && (grad || !nearest); at++) {
        int64_t q = at % ow, p = at / ow % oh, plane = at / ow / oh;
        for (int64_t i = 0; i < ih; i++)
            for (int64_t j = 0; j < iw; j++) {
                int64_t e = (plane * ih + i) * iw + j;
                double reach = nearest ? 1.5 : 1.0001;
                if (ops_resize_distance(i, p, ih, oh) <= reach &&
                    ops_resize_distance(j, q, iw, ow) <= reach)
                    bound[grad ? e : at] += unit * fabs(grad ? y->data[at] : x->data[e]);
            }
    }
}

/* Count, mean of |x| and mean of x^2 of a group. */
static void ops_norm_sizes(const ref_call *r, int64_t group, double sizes[3]) {
    const ref_tensor *x = &r->in[0];
    sizes[0] = sizes[1] = sizes[2] = 0;
    for (int64_t e = 0; e < x->elements; e++) {
        if (ref_norm_group(r, e) != group)
            continue;
        sizes[0] += 1;
        sizes[1] += fabs(x->data[e]);
        sizes[2] += x->data[e] * x->data[e];
    }
    sizes[1] /= sizes[0];
    sizes[2] /= sizes[0];
}

/* The variance from differences to the mean: a mean that is off adds its square. */
static void ops_norm_stats_bounds(const ref_call *r, double scale, double *bound) {
    bool given = r->node->op == DTI_OP_BATCH_STATS && !r->train;
    for (int64_t group = 0; group < r->out.elements / 2; group++) {
        double sizes[3] = {0}, *of = bound + 2 * group;
        of[0] = of[1] = 0;
        if (given)
            continue;
        ops_norm_sizes(r, group, sizes);
        if (!r->node->attr.i[4])
            of[0] = (sizes[0] + 2) * OPS_U * sizes[1];
        of[1] = (sizes[0] + 8) * OPS_U * r->out.data[2 * group + 1] + 2 * of[0] * of[0];
        of[0] *= scale, of[1] *= scale;
    }
}

static double ops_norm_bound(const ref_call *r, int64_t e) {
    int64_t c = ref_norm_channel(r, e);
    const double *pair = r->in[1].data + 2 * ref_norm_group(r, e);
    double y = fabs(ref_norm_hat(r, pair, e)) * (r->node->count > 2 ? fabs(r->in[2].data[c]) : 1);
    return OPS_U * (8 * y + 2 * (r->node->count > 3 ? fabs(r->in[3].data[c]) : 0));
}

/* The sums of a group, with what the group's own statistics lose. */
static void ops_norm_dx_group_bounds(const ref_call *r, int64_t group, double scale,
                                     double *bound) {
    double pair[2], sizes[3], sum = 0, along = 0;
    ref_norm_pair(r, group, pair);
    ops_norm_sizes(r, group, sizes);
    double factor = ref_norm_factor(r, pair), unit = scale * (sizes[0] + 16) * OPS_U;
    double off = r->node->attr.i[4] ? 0 : unit * sizes[1] * factor; /* of (x - mean) * factor */
    for (int pass = 0; pass < 2; pass++)
        for (int64_t e = 0; e < r->out.elements; e++) {
            if (ref_norm_group(r, e) != group)
                continue;
            double w = r->node->count > 2 ? r->in[2].data[ref_norm_channel(r, e)] : 1;
            double slope = fabs(w * r->in[1].data[e]), hat = fabs(ref_norm_hat(r, pair, e));
            if (pass == 0) {
                sum += slope / sizes[0];
                along += slope * hat / sizes[0];
            } else {
                double size = slope + (r->node->attr.i[4] ? 0 : sum) + hat * along;
                bound[e] = factor * (unit * size + off * (along + hat * sum + off * sum));
            }
        }
}

static void ops_norm_dx_bounds(const ref_call *r, double scale, double *bound) {
    for (int64_t group = 0; group < r->out.elements / r->node->attr.i[3]; group++)
        ops_norm_dx_group_bounds(r, group, scale, bound);
}

static void ops_norm_dw_bounds(const ref_call *r, double scale, double *bound) {
    int64_t channels = r->node->attr.i[1];
    double unit = scale * ((double)(r->in[0].elements / channels) + 12) * OPS_U;
    for (int64_t i = 0; i < r->out.elements; i++)
        bound[i] = 0;
    for (int64_t e = 0; e < r->in[0].elements; e++) {
        int64_t c = ref_norm_channel(r, e);
        const double *pair = r->in[1].data + 2 * ref_norm_group(r, e);
        bound[c] += unit * fabs(r->in[2].data[e] * ref_norm_hat(r, pair, e));
        bound[channels + c] += unit * fabs(r->in[2].data[e]);
    }
}

static double ops_batch_dx_bound(const ref_call *r, int64_t e) {
    int64_t channels = r->node->attr.i[1], c = ref_norm_channel(r, e);
    const double *pair = r->in[3].data + 2 * c, *dw = r->in[4].data;
    double size = fabs(r->in[1].data[e]), count = (double)(r->out.elements / channels);
    if (r->train)
        size += (fabs(dw[channels + c]) + fabs(ref_norm_hat(r, pair, e) * dw[c])) / count;
    return 12 * OPS_U * fabs(r->in[2].data[c]) * ref_norm_factor(r, pair) * size;
}

#endif
