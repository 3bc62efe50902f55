/* Single ops against PyTorch's values, evaluated in float64 at float32 points: formulas, gradients
 * at awkward points and ties, broadcasting. How exact a kernel is, test_ops measures; here a wrong
 * definition is to be caught, so the bounds are wide. */
#include "golden/golden_op.h"
#include "shaders/lib/map_body.h" /* the lists of functions */

/* ---- Elementwise */

static dt_tensor leaky_relu(dt_tensor x) {
    return dt_leaky_relu(x, 0.01f);
}
static dt_tensor elu(dt_tensor x) {
    return dt_elu(x, 1);
}
static dt_tensor elu_half(dt_tensor x) {
    return dt_elu(x, 0.5f);
}
static dt_tensor clamp(dt_tensor x) {
    return dt_clamp(x, -1, 3);
}
static dt_tensor affine(dt_tensor x) {
    return dt_affine(x, 3, -0.5f);
}

static const struct {
    const char *name;
    dt_tensor (*op)(dt_tensor x);
} unaries[] = {
#define X(ID, name, slope) {#name, dt_##name},
    DTI_UNARY_PLAIN(X)
#undef X
        {"leaky_relu", leaky_relu},
    {"elu", elu},
    {"elu_half", elu_half},
    {"clamp", clamp},
    {"affine", affine},
};

GOLDEN(every_unary_function_and_its_gradient_is_pytorchs, "ops") {
    for (size_t i = 0; i < sizeof unaries / sizeof unaries[0]; i++) {
        char key[64];
        snprintf(key, sizeof key, "ops.%s.x", unaries[i].name);
        const golden_array *points = golden_get(g, key);
        if (!points)
            continue;
        dt_tensor x = dt_input(op_graph(g), "x", DT_F32, dt_dims((int64_t)points->count));
        op_check(g, unaries[i].name, 1, unaries[i].op(x), &(leaf){"x", x}, 1);
    }
}

GOLDEN(every_binary_function_broadcasts_and_its_gradient_is_pytorchs, "ops") {
    static const struct {
        const char *name;
        dt_tensor (*op)(dt_tensor a, dt_tensor b);
    } binaries[] = {{"add", dt_add}, {"sub", dt_sub},         {"mul", dt_mul},
                    {"div", dt_div}, {"maximum", dt_maximum}, {"minimum", dt_minimum},
                    {"pow", dt_pow}};
    for (size_t i = 0; i < sizeof binaries / sizeof binaries[0]; i++) {
        dt_graph *graph = op_graph(g);
        dt_tensor a = dt_input(graph, "a", DT_F32, dt_dims(2, 4, 1));
        dt_tensor b = dt_input(graph, "b", DT_F32, dt_dims(4, 3));
        op_check(g, binaries[i].name, 1, binaries[i].op(a, b), (leaf[]){{"a", a}, {"b", b}}, 2);
    }
}

/* ---- Reductions and softmax */

GOLDEN(reductions_share_the_gradient_of_ties_as_pytorch_does, "ops") {
    static const struct {
        const char *name;
        dt_tensor (*op)(dt_tensor x, dt_shape axes, bool keep);
    } reductions[] = {{"max", dt_max}, {"min", dt_min}, {"sum", dt_sum}, {"mean", dt_mean}};
    static const struct {
        const char *name;
        dt_shape axes;
    } over[] = {{"2", {1, {2}}}, {"01", {2, {0, 1}}}, {"012", {0, {0}}}};
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%s", reductions[i / 3].name, over[i % 3].name);
        dt_tensor x = dt_input(op_graph(g), "x", DT_F32, dt_dims(3, 4, 5));
        op_check(g, name, 1, reductions[i / 3].op(x, over[i % 3].axes, false), &(leaf){"x", x}, 1);
    }
}

GOLDEN(softmax_along_either_axis_is_pytorchs, "ops") {
    for (int axis = 0; axis < 2; axis++) {
        dt_tensor x = dt_input(op_graph(g), "x", DT_F32, dt_dims(5, 7));
        op_check(g, axis ? "softmax1" : "softmax0", 1, dt_softmax(x, axis), &(leaf){"x", x}, 1);
        x = dt_input(op_graph(g), "x", DT_F32, dt_dims(5, 7));
        op_check(g, axis ? "log_softmax1" : "log_softmax0", 1, dt_log_softmax(x, axis - 2),
                 &(leaf){"x", x}, 1);
    }
}

/* ---- Products and gather: x has samples, the other operand is shared by them */

GOLDEN(linear_and_its_three_gradients_are_pytorchs, "ops") {
    dt_graph *graph = op_graph(g);
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(4, 5));
    dt_tensor w = dt_input_shared(graph, "w", DT_F32, dt_dims(6, 5));
    dt_tensor b = dt_input_shared(graph, "b", DT_F32, dt_dims(6));
    op_check(g, "linear", 3, dt_linear(x, w, b), (leaf[]){{"x", x}, {"w", w}, {"b", b}}, 3);
}

GOLDEN(matmul_in_all_four_transpositions_is_pytorchs, "ops") {
    static const char *const names[] = {"matmul_nn", "matmul_nt", "matmul_tn", "matmul_tt"};
    for (int i = 0; i < 4; i++) {
        bool ta = i >> 1, tb = i & 1;
        dt_graph *graph = op_graph(g);
        dt_tensor a = dt_input(graph, "a", DT_F32, ta ? dt_dims(5, 3) : dt_dims(3, 5));
        dt_tensor b = dt_input_shared(graph, "b", DT_F32, tb ? dt_dims(4, 5) : dt_dims(5, 4));
        op_check(g, names[i], 2, dt_matmul_transposed(a, b, ta, tb), (leaf[]){{"a", a}, {"b", b}},
                 2);
    }
}

GOLDEN(gather_adds_up_the_gradient_of_repeated_rows, "ops") {
    dt_graph *graph = op_graph(g);
    dt_tensor table = dt_input_shared(graph, "table", DT_F32, dt_dims(7, 3));
    dt_tensor index = dt_input(graph, "index", DT_I32, dt_dims(5));
    op_check_with(g, "embedding", 3, dt_embedding(table, index), &(leaf){"table", table}, 1,
                  (leaf){"index", index});
}

/* ---- Cross-entropy: y is the mean over the targets that count, dx the gradient of the sum */

static void entropy_check(golden *g, const char *variant, bool smoothed, bool weighted) {
    char name[64];
    snprintf(name, sizeof name, "cross_entropy.%s", variant);
    dt_graph *graph = op_graph(g);
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(5));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());
    dt_tensor w = dt_input_shared(graph, "class_weights", DT_F32, dt_dims(5));
    dt_cross_entropy_desc desc = {.label_smoothing = smoothed ? weighted ? 0.2f : 0.1f : 0};
    if (weighted)
        desc.class_weights = w;
    dt_tensor loss = dt_cross_entropy(x, t, &desc), dx = dt_gradient(loss, x);
    if (!OK(g, dt_store_create(graph, &(dt_store_desc){.device = g->device}, &g->store)))
        return;
    dt_program *p = golden_program(
        g, (dt_program_desc){.label = name, .loss = loss, .outputs = {dx}, .batch = 8});
    dt_report r = {0};
    if (p && op_write(g, p, x, name, "x") && op_write(g, p, t, name, "t") &&
        (!weighted || op_write(g, p, w, "cross_entropy", "class_weights")) &&
        OK(g, dt_program_run(p, NULL, &r))) {
        float mean = (float)r.loss;
        op_compare(g, name, "y", &mean, 1);
        op_read(g, p, dx, name, "dx", 8);
    }
    op_end(g);
}

GOLDEN(cross_entropy_in_all_variants_is_pytorchs, "ops") {
    entropy_check(g, "plain", false, false);
    entropy_check(g, "ignored", false, false);
    entropy_check(g, "smoothed", true, false);
    entropy_check(g, "weighted", false, true);
    entropy_check(g, "all", true, true);
}
