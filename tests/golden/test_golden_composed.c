/* Functions made of ops against PyTorch's recorded values and gradients
 * (tools/golden/record_golden_composed.py), and what has no gradient or no PyTorch to ask. */
#include "golden/golden_op.h"

#include <math.h>

#define MADE(name, expression)                                                                     \
    static dt_tensor name(dt_tensor x, dt_tensor w) {                                              \
        (void)w;                                                                                   \
        return expression;                                                                         \
    }
MADE(tril, dt_tril(x, 1))
MADE(triu, dt_triu(x, -1))
MADE(roll, dt_roll(x, -1, -2))
MADE(flip, dt_flip(x, -1))
MADE(flip_front, dt_flip(x, 0))
MADE(pad_reflect, dt_pad_reflect(x, 1, 2, 4))
MADE(pad_replicate, dt_pad_replicate(x, 1, 2, 3))
MADE(var, dt_var(x, dt_dims(), true, false))
MADE(var_biased, dt_var(x, dt_dims(1), false, true))
MADE(std_last, dt_std(x, dt_dims(1), true, false))
MADE(logsumexp, dt_logsumexp(dt_affine(x, 50, 0), dt_dims(0), false))
MADE(norm1, dt_vector_norm(x, 1, dt_dims(1), false))
MADE(norm2, dt_vector_norm(x, 2, dt_dims(0, 1), false))
MADE(norm_inf, dt_vector_norm(x, INFINITY, dt_dims(1), false))
MADE(prod, dt_prod(x, 1, false))
MADE(cumsum, dt_cumsum(x, 1))
MADE(cumsum_front, dt_cumsum(x, 0))
MADE(topk, dt_topk(x, 1, 3, true, NULL))
MADE(sort, dt_sort(x, 0, false, NULL))
MADE(sort_ties, dt_sort(x, 1, true, NULL))
MADE(glu, dt_glu(x, 0))
MADE(celu, dt_celu(x, 0.5f))
MADE(asin_of, dt_asin(dt_tanh(x)))
MADE(acos_of, dt_acos(dt_tanh(x)))
MADE(instance_norm, dt_instance_norm(x, w, w, 0))
MADE(pixel_shuffle, dt_pixel_shuffle(x, 2))
MADE(unfold,
     dt_unfold(x, 2, 3, &(dt_conv_desc){.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 1}}))
MADE(pixel_unshuffle, dt_pixel_unshuffle(x, 2))
MADE(masked_fill, dt_masked_fill(x, dt_gt(x, dt_fill(x.graph, dt_dims(), 0.25f)), -3))
MADE(where, dt_where(dt_gt(x, dt_fill(x.graph, dt_dims(), 0.25f)), dt_square(x), dt_neg(x)))
MADE(topk_smallest, dt_topk(x, 0, 2, false, NULL))
MADE(std_all, dt_std(x, dt_dims(), false, false))
MADE(hardtanh, dt_clamp(dt_affine(x, 3, 0), -1, 2))
MADE(relu6, dt_clamp(dt_affine(x, 5, 0), 0, 6))
MADE(squared_relu, dt_square(dt_relu(x)))
MADE(swish_beta, dt_mul(x, dt_sigmoid(dt_affine(x, 1.5f, 0))))

static const struct {
    const char *name;
    dt_tensor (*make)(dt_tensor x, dt_tensor w);
    bool image;
} made[] = {
    {"tril", tril, false},
    {"triu", triu, false},
    {"roll", roll, false},
    {"flip", flip, false},
    {"flip_front", flip_front, false},
    {"pad_reflect", pad_reflect, false},
    {"pad_replicate", pad_replicate, false},
    {"var", var, false},
    {"var_biased", var_biased, false},
    {"std", std_last, false},
    {"logsumexp", logsumexp, false},
    {"norm1", norm1, false},
    {"norm2", norm2, false},
    {"norm_inf", norm_inf, false},
    {"prod", prod, false},
    {"cumsum", cumsum, false},
    {"cumsum_front", cumsum_front, false},
    {"topk", topk, false},
    {"sort", sort, false},
    {"sort_ties", sort_ties, false},
    {"glu", glu, true},
    {"celu", celu, false},
    {"asin", asin_of, false},
    {"acos", acos_of, false},
    {"instance_norm", instance_norm, true},
    {"pixel_shuffle", pixel_shuffle, true},
    {"pixel_unshuffle", pixel_unshuffle, true},
    {"masked_fill", masked_fill, false},
    {"where", where, false},
    {"topk_smallest", topk_smallest, false},
    {"std_all", std_all, false},
    {"hardtanh", hardtanh, false},
    {"relu6", relu6, false},
    {"squared_relu", squared_relu, false},
    {"swish_beta", swish_beta, false},
    {"unfold", unfold, true},
};

static bool made_of(const golden *g, const char *name, dt_tensor y) {
    return test_check(!!y.id, __FILE__, __LINE__, "%s: %s", name, dt_graph_error(g->graph));
}

GOLDEN(functions_made_of_ops_and_their_gradients_are_pytorchs, "composed") {
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        dt_graph *graph = op_graph(g);
        dt_tensor x =
            dt_input(graph, "x", DT_F32, made[i].image ? dt_dims(4, 4, 6) : dt_dims(3, 5));
        dt_tensor y = made[i].make(x, (dt_tensor){0});
        if (made_of(g, made[i].name, y))
            op_check(g, made[i].name, 2, y, &(leaf){"x", x}, 1);
    }
}

GOLDEN(functions_of_two_tensors_made_of_ops_are_pytorchs, "composed") {
    dt_graph *graph = op_graph(g);
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(3, 5));
    dt_tensor w = dt_input_shared(graph, "w", DT_F32, dt_dims(3));
    op_check(g, "prelu", 2, dt_prelu(x, w), (leaf[]){{"x", x}, {"w", w}}, 2);
    graph = op_graph(g);
    x = dt_input(graph, "x", DT_F32, dt_dims(3)), w = dt_input(graph, "w", DT_F32, dt_dims(3));
    op_check(g, "cross", 4, dt_cross(x, w), (leaf[]){{"x", x}, {"w", w}}, 2);
    static dt_tensor (*const pairs[])(dt_tensor, dt_tensor) = {dt_atan2, dt_fmod, dt_remainder};
    static const char *const names[] = {"atan2", "fmod", "remainder"};
    for (int i = 0; i < 3; i++) {
        graph = op_graph(g);
        x = dt_input(graph, "x", DT_F32, dt_dims(3, 5));
        w = dt_input(graph, "w", DT_F32, dt_dims(3, 5));
        op_check(g, names[i], 2, pairs[i](x, w), (leaf[]){{"x", x}, {"w", w}}, 2);
    }
    graph = op_graph(g);
    x = dt_input(graph, "x", DT_F32, dt_dims(12, 12));
    const dt_conv_desc apart = {.stride = {2, 2}, .padding = {1, 1}};
    op_check(g, "fold", 2, dt_fold(x, 7, 6, 2, 3, &apart), &(leaf){"x", x}, 1);
    graph = op_graph(g);
    x = dt_input_shared(graph, "x", DT_F32, dt_dims(3, 2, 2));
    w = dt_input_shared(graph, "w", DT_F32, dt_dims(3));
    op_check(g, "weight_norm", 1, dt_weight_norm(x, w), (leaf[]){{"x", x}, {"w", w}}, 2);
    graph = op_graph(g);
    x = dt_input(graph, "x", DT_F32, dt_dims(4)), w = dt_input(graph, "w", DT_F32, dt_dims(3));
    op_check(g, "outer", 3, dt_outer(x, w), (leaf[]){{"x", x}, {"w", w}}, 2);
    for (int scatter = 0; scatter < 2; scatter++) {
        graph = op_graph(g);
        x = dt_input(graph, "x", DT_F32, dt_dims(3, scatter ? 4 : 5));
        dt_tensor index = dt_input(graph, "index", DT_I32, dt_dims(3, 4));
        dt_tensor y = scatter ? dt_scatter_add(x, 1, index, 5) : dt_gather(x, 1, index);
        if (made_of(g, "along", y))
            op_check_with(g, scatter ? "scatter_add" : "gather", 2, y, &(leaf){"x", x}, 1,
                          (leaf){"index", index});
    }
}

/* Compared in samples, and looked up in what has none. */
GOLDEN(the_same_places_of_all_rows_are_pytorchs, "composed") {
    for (int i = 0; i < 4; i++) {
        const bool front = i % 2, shared = i / 2;
        dt_graph *graph = op_graph(g);
        dt_tensor x = shared ? dt_input_shared(graph, "x", DT_F32, dt_dims(2, 3, 5))
                             : dt_input(graph, "x", DT_F32, dt_dims(3, 5));
        dt_tensor index = dt_input_shared(graph, "index", DT_I32, dt_dims(4));
        dt_tensor y = dt_index_select(x, front ? -2 : -1, index);
        if (made_of(g, "index_select", y))
            op_check_with(g, front ? "index_select_front" : "index_select", shared ? 1 : 2, y,
                          &(leaf){"x", x}, 1, (leaf){"index", index});
    }
}

GOLDEN(bags_are_pytorchs, "composed") {
    for (int mean = 0; mean < 2; mean++) {
        dt_graph *graph = op_graph(g);
        dt_tensor table = dt_input_shared(graph, "table", DT_F32, dt_dims(6, 3));
        dt_tensor index = dt_input(graph, "index", DT_I32, dt_dims(2, 4));
        op_check_with(g, mean ? "bag_mean" : "bag_sum", 2, dt_embedding_bag(table, index, mean),
                      &(leaf){"table", table}, 1, (leaf){"index", index});
    }
}

/* ---- Attention with what its layer does not have: masks, a scale, heads that share keys */

static void attention_check(golden *g, const char *name, int64_t kv, bool added,
                            dt_attention_desc desc) {
    dt_graph *graph = op_graph(g);
    dt_tensor q = dt_input(graph, "q", DT_F32, dt_dims(4, 5, 3));
    dt_tensor k = dt_input(graph, "k", DT_F32, dt_dims(kv, 6, 3));
    dt_tensor v = dt_input(graph, "v", DT_F32, dt_dims(kv, 6, 2)), keep = {0};
    if (added)
        desc.mask = dt_input_shared(graph, "w", DT_F32, dt_dims(4, 5, 6));
    if (desc.bool_mask)
        desc.mask = keep = dt_input_shared(graph, "keep", DT_F32, dt_dims(5, 6));
    op_check_with(g, name, 2, dt_attention(q, k, v, &desc),
                  (leaf[]){{"x", q}, {"a", k}, {"b", v}, {"w", desc.mask}}, added ? 4 : 3,
                  (leaf){desc.bool_mask ? "index" : NULL, keep});
}

GOLDEN(attention_and_its_gradients_are_pytorchs, "composed") {
    attention_check(g, "attention_mask", 4, true, (dt_attention_desc){0});
    attention_check(g, "attention_keep", 4, false, (dt_attention_desc){.bool_mask = true});
    attention_check(g, "attention_causal", 4, false, (dt_attention_desc){.causal = true});
    attention_check(g, "attention_multi_query", 1, false, (dt_attention_desc){.scale = 0.7f});
    attention_check(g, "attention_grouped", 2, false, (dt_attention_desc){.window = 2});
}

/* Runs a program of one output of one sample, of x. */
static void made_run(golden *g, dt_tensor x, const float *values, size_t count, dt_tensor y,
                     void *out, size_t bytes) {
    bool ok = made_of(g, "run", y) &&
              OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store));
    dt_program *p = ok ? golden_program(g, (dt_program_desc){.batch = 1, .outputs = {y}}) : NULL;
    if (p && OK(g, dt_program_write(p, x, values, count * 4)) &&
        OK(g, dt_program_run(p, NULL, NULL)))
        OK(g, dt_program_read(p, y, out, bytes));
    op_end(g);
}

GOLDEN(angles_of_points_on_the_axes_are_pytorchs, NULL) {
    static const float points[9][2] = {{0, 0}, {0, 2},  {0, -2}, {3, 0},  {-3, 0},
                                       {1, 1}, {-1, 1}, {1, -1}, {-1, -1}}; /* y, x */
    const double quarter = 0.78539816339744831;
    const double wanted[9] = {0, 0, 4, 2, -2, 1, -1, 3, -3};
    for (int i = 0; i < 9; i++) {
        float got = NAN;
        dt_tensor p = dt_input(op_graph(g), "p", DT_F32, dt_dims(2));
        const dt_tensor y = dt_slice(p, 0, 0, 1), x = dt_slice(p, 0, 1, 1);
        made_run(g, p, points[i], 2, dt_atan2(y, x), &got, sizeof got);
        CHECK_NEAR(got, wanted[i] * quarter, 2e-7);
    }
}

GOLDEN(places_of_the_largest_are_the_first_and_a_nan_is_larger_than_all, "composed") {
    static const float rows[15] = {1, 3, 2, 3, 0, -1, NAN, 5, NAN, 2, -2, -2, -7, -7, -3};
    static const int32_t largest[3] = {1, 1, 0}, smallest[3] = {4, 1, 2};
    static const int32_t order[15] = {1, 3, 2, 0, 4, 1, 3, 2, 4, 0, 0, 1, 4, 2, 3};
    int32_t got[15];
    for (int i = 0; i < 3; i++) {
        dt_tensor x = dt_input(op_graph(g), "x", DT_F32, dt_dims(3, 5)), index = {0};
        dt_tensor y = i == 0 ? dt_argmax(x, 1) : i == 1 ? dt_argmin(x, -1) : x;
        if (i == 2)
            dt_sort(x, 1, true, &index);
        made_run(g, x, rows, 15, i == 2 ? index : y, got, i == 2 ? 60 : 12);
        const int32_t *wanted = i == 0 ? largest : i == 1 ? smallest : order;
        for (int k = 0; k < (i == 2 ? 15 : 3); k++)
            test_check(got[k] == wanted[k], __FILE__, __LINE__, "%d [%d]: %d, not %d", i, k, got[k],
                       wanted[k]);
    }
}

GOLDEN(where_lets_no_nan_through_and_a_std_of_equals_has_no_gradient, "composed") {
    static const float rows[4] = {-1, 0, 4, -9};
    float got[4] = {0};
    dt_tensor x = dt_input(op_graph(g), "x", DT_F32, dt_dims(4));
    dt_tensor y = dt_where(dt_heaviside(x), dt_sqrt(x), dt_neg(x));
    made_run(g, x, rows, 4, y, got, sizeof got);
    CHECK(got[0] == 1 && got[1] == 0 && got[2] == 2 && got[3] == 9);
    x = dt_input(op_graph(g), "x", DT_F32, dt_dims(4));
    y = dt_where(dt_heaviside(x), dt_detach(dt_sqrt(x)), dt_square(x));
    made_run(g, x, rows, 4, dt_gradient(y, x), got, sizeof got);
    CHECK(got[0] == -2 && got[1] == 0 && got[2] == 0 && got[3] == -18);
    x = dt_input(op_graph(g), "x", DT_F32, dt_dims(4));
    made_run(g, x, (const float[4]){2, 2, 2, 2}, 4,
             dt_gradient(dt_std(x, dt_dims(), true, false), x), got, sizeof got);
    CHECK(got[0] == 0 && got[3] == 0);
    x = dt_input(op_graph(g), "x", DT_F32, dt_dims(4));
    y = dt_straight_through(dt_round(x), x);
    made_run(g, x, (const float[4]){0.5f, 1.5f, -0.3f, 2.6f}, 4,
             dt_add(y, dt_gradient(dt_square(y), x)), got, sizeof got);
    CHECK(got[0] == 0 && got[1] == 6 && got[2] == 0 && got[3] == 9);
}

GOLDEN(dropped_channels_samples_and_places_are_whole_and_idle_outside_of_training, "composed") {
    float x_of[24], got[24] = {0};
    for (int i = 0; i < 24; i++)
        x_of[i] = (float)i - 11.5f;
    for (int i = 0; i < 3; i++) {
        dt_tensor x = dt_input(op_graph(g), "x", DT_F32, dt_dims(4, 6));
        dt_tensor y = i == 0   ? dt_dropout_channels(x, 0.5f)
                      : i == 1 ? dt_drop_path(x, 0.5f)
                               : dt_alpha_dropout(x, 0.5f);
        made_run(g, x, x_of, 24, y, got, sizeof got);
        CHECK(memcmp(got, x_of, sizeof got) == 0);
    }
}
