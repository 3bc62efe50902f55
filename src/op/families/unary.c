/* Elementwise functions of one tensor, and their gradient as one row: dx = dy * f'(x). They are
 * those of shaders/lib/map_body.h: f and f' are written once for C and GLSL. A second derivative
 * splits f' into rows, so any order is possible. attr.f[0], f[1]: the function's parameters (slope,
 * alpha, scale and offset); in unary_grad attr.i[0] is the function's selector. */

#define DTI_MAP_PART 2
#include "../../../shaders/lib/map_body.h"
#undef DTI_MAP_PART

#define DTI_PRIME_OF_SLOPE(name) dti_prime_##name
#define DTI_PRIME_OF_FLAT(name) NULL
#define DTI_PRIME_OF_LINEAR(name) NULL

enum { DTI_IS_SLOPE, DTI_IS_FLAT, DTI_IS_LINEAR };

typedef struct dti_unary_row {
    bool flat, linear;
    dt_tensor (*prime)(dt_tensor x, const float *p); /* f' of x in rows */
} dti_unary_row;

static const dti_unary_row dti_unary_rows[DTI_U_COUNT] = {
#define DTI_X(ID, name, slope)                                                                     \
    [DTI_U_##ID] = {DTI_IS_##slope == DTI_IS_FLAT, DTI_IS_##slope == DTI_IS_LINEAR,                \
                    DTI_PRIME_OF_##slope(name)},
    DTI_UNARY_PLAIN(DTI_X) DTI_UNARY_WITH(DTI_X)
#undef DTI_X
};

static bool dti_unary_flat(const dti_node *n) {
    return dti_unary_rows[dti_op_info_of(n->op)->selector].flat;
}

static void dti_unary_grad_rule(dti_grad *g) {
    const uint8_t selector = dti_op_info_of(g->node.op)->selector;
    if (dti_unary_rows[selector].linear) {
        g->dx[0] = dti_append1(g->node.op, g->dy, &(dti_attr){.f = {g->node.attr.f[0]}});
        return;
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

#define DTI_X(ID, name, slope)                                                                     \
    DT_API dt_tensor dt_##name(dt_tensor x) {                                                      \
        return dti_append1(DTI_OP_##ID, x, NULL);                                                  \
    }
DTI_UNARY_PLAIN(DTI_X)
#undef DTI_X

DT_API dt_tensor dt_leaky_relu(dt_tensor x, float slope) {
    return dti_append1(DTI_OP_LEAKY_RELU, x, &(dti_attr){.f = {slope}});
}

DT_API dt_tensor dt_elu(dt_tensor x, float alpha) {
    return dti_append1(DTI_OP_ELU, x, &(dti_attr){.f = {alpha}});
}

DT_API dt_tensor dt_clamp(dt_tensor x, float low, float high) {
    if (!dti_is_nil(x) && !(low <= high)) {
        return dti_graph_fail(x.graph, "clamp: low %g is above high %g, or one is NaN", (double)low,
                              (double)high);
    }
    return dti_append1(DTI_OP_CLAMP, x, &(dti_attr){.f = {low, high}});
}

/* max(log x, low), and the gradient stays finite where x is 0. */
static dt_tensor dti_log_floor(dt_tensor x, float low) {
    return dti_append1(DTI_OP_LOG_FLOOR, x, &(dti_attr){.f = {low}});
}

DT_API dt_tensor dt_affine(dt_tensor x, float scale, float offset) {
    return dti_append1(DTI_OP_AFFINE, x, &(dti_attr){.f = {scale, offset}});
}

/* ---- f' in rows */

static dt_tensor dti_unary_prime(const dti_grad *g) {
    const uint32_t selector = (uint32_t)g->node.attr.i[0];
    return dti_unary_rows[selector].prime(g->in[0], g->node.attr.f);
}

static void dti_unary_grad_grad(dti_grad *g) {
    if (g->wanted[1])
        g->dx[1] = dti_append2(DTI_OP_UNARY_GRAD, g->in[0], g->dy, &g->node.attr);
    if (g->wanted[0]) {
        dt_tensor prime = dti_unary_prime(g);
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

/* ---- CPU */

static void dti_map1_flat(const dti_cpu_task *task, const dti_run *r) {
    const dti_args_map1 *args = &task->launch->args.map1;
    task->k->unary[task->launch->spec[0]](r->y, r->a, r->n, args->p0, args->p1);
}

static void dti_cpu_map1(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    dti_map_launch(task, dti_map1_flat, 1, false, false, begin, end);
}

/* a = x, b = dy, y = dx */
static void dti_map1_grad_flat(const dti_cpu_task *task, const dti_run *r) {
    const dti_args_map2 *args = &task->launch->args.map2;
    task->k->unary_grad[task->launch->spec[0]](r->y, r->a, r->b, r->n, args->p0, args->p1);
}

static void dti_cpu_map1_grad(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    dti_map_launch(task, dti_map1_grad_flat, 2, false, false, begin, end);
}

/* ---- Rows of the tables */

/* spec0: DTI_U_* of map_body.h */
DTI_KERNEL(MAP1, map, "rw", ITEM, .walks = true, .far = true, .run = dti_cpu_map1, .halves = true,
           .grid_halves = dti_launch_any_half, .grain = DTI_GRAIN_FUNCTION,
           .in_step = dti_map_in_step, .tile = dti_map_tile, .invocations = dti_fours_invocations);

/* (x, dy, dx); spec0: DTI_U_* */
DTI_KERNEL(MAP1_GRAD, map_grad, "rrw", ITEM, .walks = true, .run = dti_cpu_map1_grad,
           .halves = true, .grid_halves = dti_launch_any_half, .grain = DTI_GRAIN_FUNCTION,
           .in_step = dti_map_in_step, .tile = dti_map_tile, .invocations = dti_fours_invocations);

DTI_FAMILY(unary, .halves = DTI_HALF_ALL, .shape = dti_shape_same, .grad = dti_unary_grad_rule,
           .flat = dti_unary_flat, .steps = true, .part = dti_parted_same);

DTI_FAMILY(unary_grad, .halves = DTI_HALF_ALL, .shape = dti_unary_grad_shape,
           .grad = dti_unary_grad_grad);
