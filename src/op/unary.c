/* Elementwise functions of one tensor, and their gradient as one row: dx = dy * f'(x). The formulas
 * of f and f' are one text for C and GLSL. A second derivative takes f' apart into rows, so any
 * order can be had. attr.f[0], f[1]: the function's parameters (slope, alpha, scale and offset);
 * in unary_grad attr.i[0] is the function's selector. */

static bool dti_unary_flat(const dti_node *n) {
    const uint32_t selector = dti_op_info_of(n->op)->selector;
    return selector == DTI_U_SIGN || selector == DTI_U_FLOOR || selector == DTI_U_STEP;
}

static void dti_unary_grad_rule(dti_grad *g) {
    uint8_t selector = dti_op_info_of(g->node.op)->selector;
    switch (selector) {
    case DTI_U_NEG: g->dx[0] = dt_neg(g->dy); return;
    case DTI_U_AFFINE: g->dx[0] = dt_affine(g->dy, g->node.attr.f[0], 0.0f); return;
    default: break;
    }
    dti_attr attr = {.f = {g->node.attr.f[0], g->node.attr.f[1]}, .i = {selector}};
    /* relu' is the same of y, and x need not be kept */
    dt_tensor x = selector == DTI_U_RELU ? g->y : g->in[0];
    g->dx[0] = dti_append2(DTI_OP_UNARY_GRAD, x, g->dy, &attr);
}

static void dti_unary_emit(dti_emit *e) {
    dti_view x = dti_emit_in(e, 0);
    if (e->node->op == DTI_OP_RELU && dti_emit_fuse(e, 0, DTI_EPILOGUE_RELU, NULL))
        return;
    dti_emit_map1(e, DTI_K_MAP1, dti_op_info_of(e->node->op)->selector, &x, &e->out,
                  e->node->attr.f);
}

#define DTI_X(name)                                                                                \
    DT_API dt_tensor dt_##name(dt_tensor x) {                                                      \
        return dti_append1((dti_op)DTI_OP_OF_##name, x, NULL);                                     \
    }
DT_UNARY_FUNCTIONS(DTI_X)
#undef DTI_X

DT_API dt_tensor dt_leaky_relu(dt_tensor x, float slope) {
    return dti_append1(DTI_OP_LEAKY_RELU, x, &(dti_attr){.f = {slope}});
}

DT_API dt_tensor dt_elu(dt_tensor x, float alpha) {
    return dti_append1(DTI_OP_ELU, x, &(dti_attr){.f = {alpha}});
}

DT_API dt_tensor dt_affine(dt_tensor x, float scale, float offset) {
    return dti_append1(DTI_OP_AFFINE, x, &(dti_attr){.f = {scale, offset}});
}

/* ---- f' in rows */

static dt_tensor dti_prime_gelu(dt_tensor x) {
    dt_tensor cdf = dt_affine(dt_erf(dt_affine(x, 0.70710678118654752f, 0.0f)), 0.5f, 0.5f);
    dt_tensor pdf =
        dt_affine(dt_exp(dt_affine(dt_square(x), -0.5f, 0.0f)), 0.39894228040143268f, 0.0f);
    return dt_add(cdf, dt_mul(x, pdf));
}

static dt_tensor dti_prime_gelu_tanh(dt_tensor x) {
    const float k = 0.79788456080286536f, c = 0.044715f;
    dt_tensor xx = dt_square(x);
    dt_tensor t = dt_tanh(dt_mul(dt_affine(x, k, 0.0f), dt_affine(xx, c, 1.0f)));
    dt_tensor slope = dt_affine(xx, 3.0f * c * k, k);
    dt_tensor bend = dt_mul(dt_affine(x, 0.5f, 0.0f), dt_affine(dt_square(t), -1.0f, 1.0f));
    return dt_add(dt_affine(t, 0.5f, 0.5f), dt_mul(bend, slope));
}

static dt_tensor dti_prime_silu(dt_tensor x) {
    dt_tensor s = dt_sigmoid(x);
    return dt_mul(s, dt_affine(dt_mul(x, dt_affine(s, -1.0f, 1.0f)), 1.0f, 1.0f));
}

static dt_tensor dti_prime_elu(dt_tensor x, float alpha) {
    dt_tensor above = dt_step(x), zero = dt_fill(x.graph, dt_dims_of(0, NULL), 0.0f);
    dt_tensor below = dt_affine(dt_exp(dt_minimum(x, zero)), alpha, 0.0f);
    return dt_add(above, dt_mul(dt_affine(above, -1.0f, 1.0f), below));
}

static dt_tensor dti_unary_prime(uint32_t selector, dt_tensor x, const float *f) {
    switch (selector) {
    case DTI_U_ABS: return dt_sign(x);
    case DTI_U_EXP:
    case DTI_U_EXPM1: return dt_exp(x);
    case DTI_U_LOG: return dt_reciprocal(x);
    case DTI_U_LOG1P: return dt_reciprocal(dt_affine(x, 1.0f, 1.0f));
    case DTI_U_SQRT: return dt_affine(dt_rsqrt(x), 0.5f, 0.0f);
    case DTI_U_RSQRT: return dt_affine(dt_mul(dt_rsqrt(x), dt_reciprocal(x)), -0.5f, 0.0f);
    case DTI_U_RECIPROCAL: return dt_neg(dt_square(dt_reciprocal(x)));
    case DTI_U_SQUARE: return dt_affine(x, 2.0f, 0.0f);
    case DTI_U_SIN: return dt_cos(x);
    case DTI_U_COS: return dt_neg(dt_sin(x));
    case DTI_U_TANH: return dt_affine(dt_square(dt_tanh(x)), -1.0f, 1.0f);
    case DTI_U_SIGMOID: {
        dt_tensor s = dt_sigmoid(x);
        return dt_mul(s, dt_affine(s, -1.0f, 1.0f));
    }
    case DTI_U_RELU: return dt_step(x);
    case DTI_U_LEAKY_RELU: return dt_affine(dt_step(x), 1.0f - f[0], f[0]);
    case DTI_U_GELU: return dti_prime_gelu(x);
    case DTI_U_GELU_TANH: return dti_prime_gelu_tanh(x);
    case DTI_U_SILU: return dti_prime_silu(x);
    case DTI_U_SOFTPLUS: return dt_sigmoid(x);
    case DTI_U_ELU: return dti_prime_elu(x, f[0]);
    case DTI_U_ERF: return dt_affine(dt_exp(dt_neg(dt_square(x))), 1.1283791670955126f, 0.0f);
    default: return dti_graph_fail(x.graph, "unary_grad: selector %u has no derivative", selector);
    }
}

static dt_tensor dti_unary_grad_lower(dti_grad *g) {
    return dt_mul(g->in[1], dti_unary_prime((uint32_t)g->node.attr.i[0], g->in[0], g->node.attr.f));
}

static void dti_unary_grad_grad(dti_grad *g) {
    if (g->wanted[1])
        g->dx[1] = dti_append2(DTI_OP_UNARY_GRAD, g->in[0], g->dy, &g->node.attr);
    if (g->wanted[0]) {
        dt_tensor prime = dti_unary_prime((uint32_t)g->node.attr.i[0], g->in[0], g->node.attr.f);
        dti_differentiate(g->graph, prime, dt_mul(g->dy, g->in[1]), &g->in[0], 1, &g->dx[0]);
    }
}

static bool dti_unary_grad_shape(dti_build *b) {
    if (!dti_shape_same(b))
        return false;
    if (!dti_shape_equal(b->in[0]->shape, b->in[1]->shape) ||
        b->in[0]->samples != b->in[1]->samples) {
        return dti_build_fail(b, "x and dy must have one shape");
    }
    return true;
}

static void dti_unary_grad_emit(dti_emit *e) {
    dti_view y = dti_emit_in(e, 0);
    bool relu = e->node->attr.i[0] == DTI_U_RELU && memcmp(y.dim, e->out.dim, sizeof y.dim) == 0;
    if (relu && dti_emit_fuse(e, 1, DTI_EPILOGUE_RELU_GRAD, &y))
        return;
    dti_emit_map2(e, DTI_K_MAP1_GRAD, (uint32_t)e->node->attr.i[0]);
}

/* ---- Reference */
#ifdef DT_REFERENCE

#define DTI_REF_SQRT_HALF 0.70710678118654752440
#define DTI_REF_SQRT_2_PI 0.79788456080286535588 /* sqrt(2 / pi) */
#define DTI_REF_2_SQRT_PI 1.12837916709551257390 /* 2 / sqrt(pi) */

static double dti_unary_f64(uint32_t selector, double x, const float *p) {
    switch (selector) {
    case DTI_U_NEG: return -x;
    case DTI_U_ABS: return fabs(x);
    case DTI_U_SIGN: return x > 0 ? 1 : x < 0 ? -1 : 0; /* NaN too, as PyTorch */
    case DTI_U_EXP: return exp(x);
    case DTI_U_LOG: return log(x);
    case DTI_U_LOG1P: return log1p(x);
    case DTI_U_EXPM1: return expm1(x);
    case DTI_U_SQRT: return sqrt(x);
    case DTI_U_RSQRT: return 1 / sqrt(x);
    case DTI_U_RECIPROCAL: return 1 / x;
    case DTI_U_SQUARE: return x * x;
    case DTI_U_SIN: return sin(x);
    case DTI_U_COS: return cos(x);
    case DTI_U_TANH: return tanh(x);
    case DTI_U_SIGMOID: return 1 / (1 + exp(-x));
    case DTI_U_RELU: return x < 0 ? 0 : x;
    case DTI_U_LEAKY_RELU: return x > 0 ? x : (double)p[0] * x;
    case DTI_U_GELU: return 0.5 * x * erfc(-x * DTI_REF_SQRT_HALF);
    case DTI_U_GELU_TANH:
        return 0.5 * x * (1 + tanh(DTI_REF_SQRT_2_PI * (x + 0.044715 * x * x * x)));
    case DTI_U_SILU: return x / (1 + exp(-x));
    case DTI_U_SOFTPLUS: return x > 20 ? x : log1p(exp(x));
    case DTI_U_ELU: return x > 0 ? x : (double)p[0] * expm1(x);
    case DTI_U_ERF: return erf(x);
    case DTI_U_FLOOR: return floor(x);
    case DTI_U_STEP: return x > 0 ? 1 : 0;
    case DTI_U_AFFINE: return (double)p[0] * x + (double)p[1];
    default: return NAN;
    }
}

static double dti_gelu_tanh_slope_f64(double x) {
    double u = DTI_REF_SQRT_2_PI * (x + 0.044715 * x * x * x), t = tanh(u);
    double du = DTI_REF_SQRT_2_PI * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
}

static double dti_unary_slope_f64(uint32_t selector, double x, const float *p) {
    double s = 1 / (1 + exp(-x));
    switch (selector) {
    case DTI_U_NEG: return -1;
    case DTI_U_ABS: return x > 0 ? 1 : x < 0 ? -1 : 0;
    case DTI_U_EXP: return exp(x);
    case DTI_U_LOG: return 1 / x;
    case DTI_U_LOG1P: return 1 / (1 + x);
    case DTI_U_EXPM1: return exp(x);
    case DTI_U_SQRT: return 0.5 / sqrt(x);
    case DTI_U_RSQRT: return -0.5 / (x * sqrt(x));
    case DTI_U_RECIPROCAL: return -1 / (x * x);
    case DTI_U_SQUARE: return 2 * x;
    case DTI_U_SIN: return cos(x);
    case DTI_U_COS: return -sin(x);
    case DTI_U_TANH: return 1 / (cosh(x) * cosh(x));
    case DTI_U_SIGMOID: return s * (1 - s);
    case DTI_U_RELU: return x > 0 ? 1 : 0;
    case DTI_U_LEAKY_RELU: return x > 0 ? 1 : (double)p[0];
    case DTI_U_GELU:
        return 0.5 * erfc(-x * DTI_REF_SQRT_HALF) + 0.5 * x * DTI_REF_SQRT_2_PI * exp(-0.5 * x * x);
    case DTI_U_GELU_TANH: return dti_gelu_tanh_slope_f64(x);
    case DTI_U_SILU: return s + x * s * (1 - s);
    case DTI_U_SOFTPLUS: return x > 20 ? 1 : s;
    case DTI_U_ELU: return x > 0 ? 1 : (double)p[0] * exp(x);
    case DTI_U_ERF: return DTI_REF_2_SQRT_PI * exp(-x * x);
    case DTI_U_AFFINE: return (double)p[0];
    default: return NAN;
    }
}

static void dti_unary_ref(const dti_ref *r) {
    uint32_t selector = dti_op_info_of(r->node->op)->selector;
    for (int64_t i = 0; i < r->out.elements; i++) {
        r->out.data[i] = dti_unary_f64(selector, r->in[0].data[i], r->node->attr.f);
    }
}

static void dti_unary_grad_ref(const dti_ref *r) {
    uint32_t selector = (uint32_t)r->node->attr.i[0];
    for (int64_t i = 0; i < r->out.elements; i++) {
        double slope = dti_unary_slope_f64(selector, r->in[0].data[i], r->node->attr.f);
        r->out.data[i] = r->in[1].data[i] * slope;
    }
}

#endif

/* ---- CPU */

static void dti_map1_flat(const dti_cpu_task *task, const dti_run *r) {
    const dti_args_map1 *args = &task->launch->args.map1;
    task->k->unary[task->launch->spec[0]](r->y, r->a, r->n, args->p0, args->p1);
}

static void dti_cpu_map1(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    dti_map1_run(task, dti_map1_flat, begin, end);
}

/* a = x, b = dy, y = dx */
static void dti_map1_grad_flat(const dti_cpu_task *task, const dti_run *r) {
    const dti_args_map2 *args = &task->launch->args.map2;
    task->k->unary_grad[task->launch->spec[0]](r->y, r->a, r->b, r->n, args->p0, args->p1);
}

static void dti_cpu_map1_grad(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    dti_map2_run(task, dti_map1_grad_flat, false, begin, end);
}

/* ---- Rows of the tables */

static bool dti_map1_in_step(const dti_launch *l, int binding) {
    const dti_args_map1 *a = &l->args.map1;
    (void)binding;
    return a->x_offset == a->y_offset && memcmp(a->x_stride, a->y_stride, sizeof a->x_stride) == 0;
}

/* spec0: DTI_U_* of unary_list.h */
DTI_KERNEL(MAP1, map, "rw", ITEM, .run = dti_cpu_map1, .grain = dti_cpu_grain_function,
           .in_step = dti_map1_in_step);

/* (x, dy, dx); spec0: DTI_U_* */
DTI_KERNEL(MAP1_GRAD, map_grad, "rrw", ITEM, .run = dti_cpu_map1_grad,
           .grain = dti_cpu_grain_function, .in_step = dti_map2_in_step);

DTI_FAMILY(unary, .shape = dti_shape_same, .grad = dti_unary_grad_rule, .flat = dti_unary_flat);

DTI_FAMILY(unary_grad, .shape = dti_unary_grad_shape, .grad = dti_unary_grad_grad,
           .lower = dti_unary_grad_lower);
