/* Elementwise rows, and those that make their values. */

/* ---- unary */

#include "reference/unary.h"

static void ref_unary(const ref_call *r) {
    const ref_unary_row *row = &ref_unary_rows[dti_op_info_of(r->node->op)->selector];
    const double p0 = (double)r->node->attr.f[0], p1 = (double)r->node->attr.f[1];
    for (int64_t i = 0; i < r->out.elements; i++)
        r->out.data[i] = row->value(r->in[0].data[i], p0, p1);
}

static void ref_unary_grad(const ref_call *r) {
    const ref_unary_row *row = &ref_unary_rows[r->node->attr.i[0]];
    const double p0 = (double)r->node->attr.f[0], p1 = (double)r->node->attr.f[1];
    for (int64_t i = 0; i < r->out.elements; i++)
        r->out.data[i] = r->in[1].data[i] * row->slope(r->in[0].data[i], p0, p1);
}

/* ---- binary */

static double ref_binary_f64(uint32_t selector, double a, double b) {
    switch (selector) {
    case DTI_B_ADD: return a + b;
    case DTI_B_SUB: return a - b;
    case DTI_B_MUL: return a * b;
    case DTI_B_DIV: return a / b;
    case DTI_B_MAXIMUM: return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
    case DTI_B_MINIMUM: return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
    case DTI_B_POW: return pow(a, b);
    case DTI_B_EQ: return a == b;
    case DTI_B_LT: return a < b;
    case DTI_B_LE: return a <= b;
    case DTI_B_GT: return a > b;
    case DTI_B_GE: return a >= b;
    case DTI_B_MASK: return b == 0 ? 0 : a;
    case DTI_B_MASK_INV: return b == 0 ? a : 0;
    default: return NAN;
    }
}

static void ref_binary(const ref_call *r) {
    uint32_t selector = dti_op_info_of(r->node->op)->selector;
    for (int64_t i = 0; i < r->out.elements; i++) {
        int64_t at[DTI_AXES];
        ref_place(&r->out, i, at);
        double a = r->in[0].data[ref_element(&r->in[0], at)];
        double b = r->in[1].data[ref_element(&r->in[1], at)];
        r->out.data[i] = ref_binary_f64(selector, a, b);
    }
}

/* ---- dropout */

/* Integers, so they are the same as those of the other backends. */
static uint32_t ref_dropout_word(const ref_call *r, int64_t element) {
    int64_t per_sample = 1;
    for (int i = 1; i < DTI_AXES; i++)
        per_sample *= r->out.dim[i];
    uint64_t n = (uint64_t)element;
    if (r->node->attr.dim[0]) {
        const int64_t all = r->node->attr.dim[0];
        n = (uint64_t)(element / per_sample * all + r->node->attr.dim[1] + element % per_sample);
        per_sample = all;
    }
    if (r->node->samples)
        n += (uint64_t)r->step->first_row * (uint64_t)per_sample;
    uint64_t stream = (uint64_t)(uint32_t)r->node->attr.i[0] << 32;
    return dti_philox(r->step->seed, n / 4, stream | (uint32_t)r->step->step).v[n % 4];
}

static bool ref_dropout_keeps(const ref_call *r, int64_t element, double keep) {
    return ref_dropout_word(r, element) < fmin(floor(keep * 0x1p32), 0xffffffffp0);
}

static void ref_dropout(const ref_call *r) {
    double keep = 1 - (double)r->node->attr.f[0];
    for (int64_t i = 0; i < r->out.elements; i++) {
        double x = r->in[0].data[i];
        r->out.data[i] = !r->train ? x : ref_dropout_keeps(r, i, keep) ? x / keep : 0;
    }
}

static void ref_random(const ref_call *r) {
    const double scale = (double)r->node->attr.f[0], offset = (double)r->node->attr.f[1];
    for (int64_t i = 0; i < r->out.elements; i++) {
        const double whole = (double)(ref_dropout_word(r, i) >> 9);
        r->out.data[i] = (2 * whole + 1 - 0x1p23) * scale + offset;
    }
}

/* ---- leaf */

/* Inputs and parameters are given; nil has no value. */
static void ref_leaf(const ref_call *r) {
    (void)r;
}

static void ref_fill(const ref_call *r) {
    bool iota = r->node->op == DTI_OP_IOTA, mode = r->node->op == DTI_OP_TRAIN_MODE;
    for (int64_t i = 0; i < r->out.elements; i++) {
        r->out.data[i] = iota ? (double)i : mode ? (double)r->train : (double)r->node->attr.f[0];
    }
}

static void ref_seed(const ref_call *r) {
    int index = r->node->attr.i[0];
    double weight = r->step->weight[index] > 0 ? r->step->weight[index] : r->in[0].data[1];
    r->out.data[0] = weight == 0 ? 0 : r->step->coefficient[index] / weight;
}
