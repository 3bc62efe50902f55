/* How far one op of a device may be from the float64 reference of the same inputs, element by
 * element. U is half a unit in the last place of 1. A sum of K products may be off by
 * (K + 2) U sum |a b|, whatever its order; what IEEE 754 rounds correctly is equal to the bit; the
 * elementary functions have the units in the last place that math_body.h states. On Vulkan
 * divisions and roots are not correctly rounded, and fma() may be two operations. So functions get
 * three times the bound there, and what the reduction of their argument loses. Included by
 * test_ops.c. */
#ifndef DTRAIN_TESTS_OPS_BOUNDS_H
#define DTRAIN_TESTS_OPS_BOUNDS_H

#define OPS_U 0x1p-24

/* The op of the inputs' absolute values: sum |a b|. */
static void ops_magnitude(const ref_call *r, double *out) {
    ref_call abs_r = *r;
    ref_tensor in[DTI_INPUTS_MAX] = {{0}};
    double *data[DTI_INPUTS_MAX] = {NULL};
    for (uint32_t i = 0; i < r->node->count && i < DTI_INPUTS_MAX; i++) {
        in[i] = r->in[i];
        in[i].data = data[i] = malloc((size_t)(in[i].elements + 1) * sizeof(double));
        for (int64_t k = 0; k < in[i].elements; k++)
            data[i][k] = fabs(r->in[i].data[k]);
    }
    abs_r.in = in;
    abs_r.out.data = out;
    ref_table[r->node->op](&abs_r);
    for (int i = 0; i < DTI_INPUTS_MAX; i++)
        free(data[i]);
}

/* How many values an element of a sum adds up. */
static double ops_terms(const ref_call *r) {
    switch (r->node->op) {
    case DTI_OP_SUM:
        return r->out.elements ? (double)r->in[0].elements / (double)r->out.elements + 1 : 0;
    case DTI_OP_MATMUL: return (double)r->in[0].dim[r->node->attr.i[0] ? 4 : 5];
    case DTI_OP_LINEAR: return (double)r->in[0].dim[5] + 1;
    case DTI_OP_LINEAR_DX: return (double)r->in[0].dim[5];
    case DTI_OP_LINEAR_DW: return (double)ref_rows(&r->in[0]);
    case DTI_OP_SCATTER_ADD: return (double)r->in[1].elements;
    case DTI_OP_CONV2D: return (double)(r->in[1].dim[3] * r->in[1].dim[4] * r->in[1].dim[5]) + 1;
    case DTI_OP_CONV2D_DX: /* of a group's channels */
        return (double)(r->in[1].dim[2] / r->node->attr.i[6] * r->in[1].dim[4] * r->in[1].dim[5]) +
               1;
    case DTI_OP_CONV2D_DW: return (double)(r->in[0].dim[0] * r->in[0].dim[4] * r->in[0].dim[5]) + 1;
    case DTI_OP_AVG_POOL2D: /* at most all, and the division */
    case DTI_OP_AVG_POOL2D_GRAD: {
        const ref_tensor *in = &r->in[0], *out = &r->out;
        const int32_t *k = r->node->attr.i;
        double all = (double)(in->dim[4] * in->dim[5]), window = (double)k[0] * k[1];
        if (k[6] == DTI_POOL_ADAPTIVE) /* windows overlap by one */
            window = ((double)in->dim[4] / (double)out->dim[4] + 2) *
                     ((double)in->dim[5] / (double)out->dim[5] + 2);
        return fmin(all, window) + 8;
    }
    default: return (double)r->in[0].elements; /* terms */
    }
}

static double ops_unary_bound(const ref_call *r, int64_t i, bool cpu) {
    uint32_t selector = dti_op_info_of(r->node->op)->selector;
    double x = fabs(r->in[0].data[i]), y = fabs(r->out.data[i]), of_y = 0, of_x = 0;
    switch (selector) {
    case DTI_U_EXP:
    case DTI_U_LOG: of_y = 3; break; /* 1 unit is at most 2 U y */
    case DTI_U_LOG1P:
    case DTI_U_EXPM1:
    case DTI_U_TANH:
    case DTI_U_SIGMOID:
    case DTI_U_ERF:
    case DTI_U_ATAN:
    case DTI_U_ERFINV: of_y = 5; break;
    case DTI_U_SIN: /* their argument is reduced exactly, fused or not */
    case DTI_U_COS: return (cpu ? 5 : 8) * OPS_U * y;
    case DTI_U_SQRT:
    case DTI_U_RECIPROCAL: return cpu ? 0 : 6 * OPS_U * y;
    case DTI_U_RSQRT: return (cpu ? 3 : 12) * OPS_U * y;
    case DTI_U_GELU: of_y = 2, of_x = 4; break;
    case DTI_U_GELU_TANH: of_y = 2, of_x = 5; break;
    case DTI_U_SILU: of_y = 7; break;
    case DTI_U_SOFTPLUS: of_y = 9; break;
    case DTI_U_LOG_SIGMOID: of_y = 9; break;
    case DTI_U_LOG_FLOOR: of_y = 3; break;
    case DTI_U_ELU: of_y = r->in[0].data[i] > 0 ? 0 : 7; break;
    case DTI_U_SELU: of_y = r->in[0].data[i] > 0 ? 2 : 8; break;
    case DTI_U_MISH: of_y = 18; break;
    case DTI_U_SOFTSIGN: of_y = 4; break;
    case DTI_U_HARDSIGMOID: of_y = 2, of_x = 1; break;
    case DTI_U_HARDSWISH: return OPS_U * (3 * y + x * x + x) * (cpu ? 1 : 3);
    case DTI_U_AFFINE: return OPS_U * (y + 1.01 * x * fabs((double)r->node->attr.f[0]));
    default: return 0; /* exact */
    }
    if (of_y == 0)
        return 0;
    if (!cpu)
        of_y = 3 * of_y + 4 * x, of_x = 3 * of_x + 4;
    return OPS_U * (of_y * y + of_x * x);
}

static double ops_unary_grad_bound(const ref_call *r, int64_t i, bool cpu) {
    uint32_t selector = (uint32_t)r->node->attr.i[0];
    double x = fabs(r->in[0].data[i]), dx = fabs(r->out.data[i]), dy = fabs(r->in[1].data[i]);
    double of_dx = 8, of_dy = 0;
    switch (selector) {
    case DTI_U_ABS:
    case DTI_U_RELU:
    case DTI_U_CLAMP:
    case DTI_U_LEAKY_RELU: return 0;
    case DTI_U_HARDSWISH:
    case DTI_U_MISH: of_dx = 16, of_dy = 24 * (1 + x); break;
    case DTI_U_RSQRT: of_dx = 14; break;
    case DTI_U_ERF: of_dx = 8 + 4 * x * x; break;
    case DTI_U_ERFINV: of_dx = 64; break; /* e^(y^2), y^2 up to 2 */
    case DTI_U_TANH:                      /* these subtract two numbers near 1 */
    case DTI_U_SIGMOID:
    case DTI_U_GELU:
    case DTI_U_GELU_TANH:
    case DTI_U_SILU: of_dy = 16 * (1 + x); break;
    default: break;
    }
    if (!cpu)
        of_dx = 3 * of_dx + 8 * x, of_dy *= 3;
    return OPS_U * (of_dx * dx + of_dy * dy);
}

static double ops_binary_bound(const ref_call *r, int64_t i, bool cpu) {
    double y = fabs(r->out.data[i]);
    if (r->node->op == DTI_OP_DIV)
        return cpu ? 0 : 6 * OPS_U * y;
    /* a^b through b log a, of which an unfused fma() leaves single precision */
    return r->node->op == DTI_OP_POW ? OPS_U * y * (cpu ? 5 : 16 + 8 * fabs(log(y))) : 0;
}

/* The largest distance of a row's values from its maximum: what exponentials are taken of. */
static double ops_row_spread(const double *x, int64_t cols) {
    double low = INFINITY, high = -INFINITY;
    for (int64_t c = 0; c < cols; c++)
        low = fmin(low, x[c]), high = fmax(high, x[c]);
    return cols ? high - low : 0;
}

static void ops_softmax_bounds(const ref_call *r, double scale, double *bound) {
    int64_t cols = ref_cols(&r->out);
    for (int64_t i = 0; i < r->out.elements; i++) {
        double spread = ops_row_spread(r->in[0].data + i / cols * cols, cols);
        double y = fabs(r->out.data[i]), of = 8 * spread + (double)cols + 12;
        bool is_log = r->node->op == DTI_OP_LOG_SOFTMAX;
        bound[i] = scale * OPS_U * (is_log ? of + 6 * log((double)cols + 1) + 2 * y : of * y);
    }
}

static double ops_largest(const ref_tensor *x) {
    double largest = 0;
    for (int64_t i = 0; i < x->elements; i++)
        if (fabs(x->data[i]) < DTI_ATTENTION_NONE / 2)
            largest = fmax(largest, fabs(x->data[i]));
    return largest;
}

/* From the largest of each operand: a weight is at most 1, and as far off, relatively, as its
 * score; NONE is exact. */
static void ops_attention_bounds(const ref_call *r, double scale, double *bound) {
    const ref_tensor *q = &r->in[0], *k = &r->in[1], *v = &r->in[2];
    const bool grad = r->node->op == DTI_OP_ATTENTION_GRAD;
    const uint32_t count = r->node->count - (grad ? 2 : 0);
    const double d = (double)q->dim[5], dv = (double)v->dim[5], tk = (double)k->dim[4];
    const double tq = (double)q->dim[4] * (double)q->dim[3], keep = 1 - (double)r->node->attr.f[1];
    const double mq = ops_largest(q), mk = ops_largest(k), mv = ops_largest(v);
    double score = (double)r->node->attr.f[0] * d * mq * mk;
    if (count > 3)
        score += ops_largest(&r->in[grad ? 5 : 3]);
    if (r->node->attr.i[0] & (int)DTI_ATTENTION_ALIBI)
        score += fmax(tk, (double)q->dim[4]);
    const double off = scale * OPS_U * ((d + 12) * score + tk + dv + tq + 24);
    const double x = grad ? fmax(ops_largest(&r->in[3]), ops_largest(&r->in[4])) : 0;
    const double ds = (dv * x * mv / keep + x) * (1 + (double)r->node->attr.f[0]);
    for (int64_t i = 0; i < r->out.elements; i++) {
        const double y = fabs(r->out.data[i]);
        bound[i] = grad ? off * (ds * fmax(mk * tk, mq * tq) + x * tq / keep)
                        : off * (mv / keep + 1) + 2 * OPS_U * y;
    }
}

/* As far off as all steps' sums of the largest operands; a state's own weight is about 1. */
static void ops_recurrence_bounds(const ref_call *r, double scale, double *bound) {
    const dti_recurrence a =
        dti_recurrence_sizes(&r->node->attr, (dt_shape){2, {r->in[1].dim[4], r->in[1].dim[5]}});
    const bool grad = r->node->op == DTI_OP_RECURRENCE_GRAD;
    const double steps =
        (double)(grad ? r->in[0].dim[5] / (a.size + dti_recurrence_kept(&a)) + 1 : r->in[0].dim[4]);
    const double n = (double)(a.size + a.hidden), most = ops_largest(&r->out);
    const double with = 1 + most + ops_largest(&r->in[0]) + ops_largest(&r->in[2]);
    for (int64_t i = 0; i < r->out.elements; i++)
        bound[i] = scale * OPS_U * steps * (n + 24) * with * (grad ? with : 1);
}

/* All steps' sums are as far off as the largest of them; a share is at most 1, and as far off,
 * relatively, as its logarithm. */
static void ops_ctc_bounds(const ref_call *r, double scale, double *bound) {
    const bool grad = r->node->op == DTI_OP_CTC_GRAD;
    const ref_tensor *x = &r->in[grad ? 1 : 0];
    const double steps = (double)x->dim[4], most = steps * (ops_largest(x) + 3);
    const double off = scale * OPS_U * steps * (most + 24);
    for (int64_t i = 0; i < r->out.elements; i++)
        bound[i] =
            grad ? off * ops_largest(&r->in[2]) : off + 4 * steps * OPS_U * fabs(r->out.data[i]);
}

static void ops_softmax_grad_bounds(const ref_call *r, double scale, double *bound) {
    int64_t cols = ref_cols(&r->out);
    bool is_log = r->node->op == DTI_OP_LOG_SOFTMAX_GRAD;
    for (int64_t i = 0; i < r->out.elements; i++) {
        const double *y = r->in[0].data, *dy = r->in[1].data;
        double sum = 0;
        for (int64_t c = i / cols * cols; c < i / cols * cols + cols; c++)
            sum += fabs(is_log ? dy[c] : y[c] * dy[c]);
        double factor = is_log ? exp(y[i]) * (1 + fabs(y[i])) : fabs(y[i]);
        bound[i] = scale * OPS_U *
                   (factor * (((double)cols + 12) * sum + 4 * fabs(dy[i])) +
                    4 * fabs(dy[i]) * (is_log ? 1 : 0));
    }
}

static void ops_cross_entropy_bounds(const ref_call *r, double scale, double *bound) {
    int64_t classes = ref_cols(&r->in[0]);
    double rows = (double)r->in[1].elements, k = (double)classes;
    bound[0] = (rows + k + 8) * OPS_U * fabs(r->out.data[0]);
    bound[1] = (rows + 1) * OPS_U * fabs(r->out.data[1]);
    for (int64_t row = 0; row < r->in[1].elements; row++) {
        ref_xent x = ref_xent_row(r, r->node->count > 2 ? &r->in[2] : NULL, row);
        double q = 0, spread = ops_row_spread(x.x, classes);
        for (int64_t c = 0; c < classes && x.counts; c++)
            q += fabs(ref_xent_q(&x, c));
        bound[0] += scale * OPS_U * q * (8 * spread + k + 16 + 6 * log(k + 1));
    }
}

static void ops_nll_bounds(const ref_call *r, double *bound) {
    const double rows = (double)r->in[1].elements;
    bound[0] = 0;
    bound[1] = (rows + 1) * OPS_U * fabs(r->out.data[1]);
    for (int64_t row = 0; row < r->in[1].elements; row++) {
        ref_xent x = ref_xent_row(r, r->node->count > 2 ? &r->in[2] : NULL, row);
        const int64_t t = (int64_t)x.target;
        if (x.counts)
            bound[0] += (rows + 4) * OPS_U * fabs(ref_xent_weight(&x, t) * x.x[t]);
    }
}

static void ops_cross_entropy_grad_bounds(const ref_call *r, double scale, double *bound) {
    int64_t classes = ref_cols(&r->in[0]);
    for (int64_t i = 0; i < r->out.elements; i++) {
        ref_xent x = ref_xent_row(r, &r->in[2], i / classes);
        double q = 0, p = exp(x.x[i % classes] - x.log_sum);
        double spread = ops_row_spread(x.x, classes);
        bound[i] = 0;
        if (!x.counts)
            continue;
        for (int64_t c = 0; c < classes; c++)
            q += fabs(ref_xent_q(&x, c));
        double own = fabs(ref_xent_q(&x, i % classes));
        bound[i] = scale * OPS_U * (p * q * (8 * spread + 2 * (double)classes + 24) + 6 * own);
    }
}

static void ops_sum_bounds(const ref_call *r, double *bound) {
    double terms = ops_terms(r);
    ops_magnitude(r, bound);
    for (int64_t i = 0; i < r->out.elements; i++)
        bound[i] *= (terms + 2) * OPS_U;
}

#include "ops/ops_bounds_image.h"

/* r->out is the reference's result. 0 = equal to the reference, rounded to float. */
static void ops_bounds(const ref_call *r, bool cpu, double *bound) {
    const dti_op_family *family = dti_op_info_of(r->node->op)->family;
    double scale = cpu ? 1 : 2;
    for (int64_t i = 0; i < r->out.elements; i++) {
        bound[i] = family == &dti_family_unary        ? ops_unary_bound(r, i, cpu)
                   : family == &dti_family_unary_grad ? ops_unary_grad_bound(r, i, cpu)
                   : family == &dti_family_binary     ? ops_binary_bound(r, i, cpu)
                   : family == &dti_family_dropout    ? 3 * OPS_U * fabs(r->out.data[i])
                   : family == &dti_family_test_mix   ? 8 * OPS_U * fabs(r->out.data[i])
                   : family == &dti_family_mse_grad   ? 4 * OPS_U * fabs(r->out.data[i])
                   : family == &dti_family_norm       ? scale * ops_norm_bound(r, i)
                   : family == &dti_family_batch_dx   ? scale * ops_batch_dx_bound(r, i)
                                                      : 0;
    }
    switch (r->node->op) {
    case DTI_OP_SUM:
    case DTI_OP_MATMUL:
    case DTI_OP_LINEAR:
    case DTI_OP_LINEAR_DX:
    case DTI_OP_LINEAR_DW:
    case DTI_OP_SCATTER_ADD:
    case DTI_OP_CONV2D:
    case DTI_OP_CONV2D_DX:
    case DTI_OP_CONV2D_DW:
    case DTI_OP_AVG_POOL2D:
    case DTI_OP_AVG_POOL2D_GRAD:
    case DTI_OP_MEAN_LOSS: ops_sum_bounds(r, bound); return;
    case DTI_OP_MAX_POOL2D_GRAD: ops_max_pool_grad_bounds(r, bound); return;
    case DTI_OP_RESIZE:
    case DTI_OP_RESIZE_GRAD: ops_resize_bounds(r, bound); return;
    case DTI_OP_NORM_STATS:
    case DTI_OP_BATCH_STATS: ops_norm_stats_bounds(r, scale, bound); return;
    case DTI_OP_NORM_DX: ops_norm_dx_bounds(r, scale, bound); return;
    case DTI_OP_NORM_DW: ops_norm_dw_bounds(r, scale, bound); return;
    case DTI_OP_NLL: ops_nll_bounds(r, bound); return;
    case DTI_OP_TP_LOSS:
    case DTI_OP_WEIGHTED_LOSS: ops_sum_bounds(r, bound); return;
    case DTI_OP_WEIGHT_SUM:
    case DTI_OP_CROSS_ENTROPY_WEIGHT:
    case DTI_OP_MSE: /* of positive values */
        bound[0] = (ops_terms(r) + 4) * OPS_U * r->out.data[0];
        bound[1] = (ops_terms(r) + 1) * OPS_U * r->out.data[1];
        return;
    case DTI_OP_SOFTMAX:
    case DTI_OP_LOG_SOFTMAX: ops_softmax_bounds(r, scale, bound); return;
    case DTI_OP_SOFTMAX_GRAD:
    case DTI_OP_LOG_SOFTMAX_GRAD: ops_softmax_grad_bounds(r, scale, bound); return;
    case DTI_OP_ATTENTION:
    case DTI_OP_ATTENTION_GRAD: ops_attention_bounds(r, scale, bound); return;
    case DTI_OP_RECURRENCE:
    case DTI_OP_RECURRENCE_GRAD: ops_recurrence_bounds(r, scale, bound); return;
    case DTI_OP_CTC:
    case DTI_OP_CTC_GRAD: ops_ctc_bounds(r, scale, bound); return;
    case DTI_OP_CROSS_ENTROPY: ops_cross_entropy_bounds(r, scale, bound); return;
    case DTI_OP_CROSS_ENTROPY_GRAD: ops_cross_entropy_grad_bounds(r, scale, bound); return;
    default: return;
    }
}

#endif
