/* Functions made of ops at other shapes. Each is in a graph of L steps, rebuilt at other numbers of
 * them. It must be the graph that is made at those. Included by main.c, after test_shapes.c, whose
 * comparison of graphs it uses. */

/* x, z: [L, 6]; t: [L] class numbers; w: a parameter [6], without samples. */
#define SHAPES_MADE(X)                                                                             \
    X(where, dt_where(dt_heaviside(x), x, z))                                                      \
    X(masked_fill, dt_masked_fill(x, z, 2))                                                        \
    X(tril, dt_tril(x, -1))                                                                        \
    X(triu, dt_triu(x, 1))                                                                         \
    X(roll, dt_roll(x, 0, 2))                                                                      \
    X(flip, dt_flip(x, 1))                                                                         \
    X(pad_reflect, dt_pad_reflect(x, 1, 2, 1))                                                     \
    X(pad_replicate, dt_pad_replicate(x, 0, 2, 1))                                                 \
    X(pad_circular, dt_pad_circular(x, 0, 2, 1))                                                   \
    X(var, dt_var(x, dt_dims(0), true, false))                                                     \
    X(std, dt_std(x, dt_dims(), false, false))                                                     \
    X(logsumexp, dt_logsumexp(x, dt_dims(0), true))                                                \
    X(vector_norm, dt_vector_norm(x, 2, dt_dims(0), false))                                        \
    X(prod, dt_prod(x, 1, false))                                                                  \
    X(cumsum, dt_cumsum(x, 1))                                                                     \
    X(argmax, dt_argmax(x, 0))                                                                     \
    X(argmin, dt_argmin(x, 1))                                                                     \
    X(gather, dt_gather(x, 0, shapes_places(x)))                                                   \
    X(index_select, dt_index_select(x, 1, dt_cast(w, DT_I32)))                                     \
    X(index_select_samples, dt_index_select(x, 0, t))                                              \
    X(index_select_rows, dt_index_select(dt_reshape(w, dt_dims(2, 3)), 1, t))                      \
    X(scatter_add, dt_scatter_add(x, 0, shapes_places(x), 4))                                      \
    X(topk, dt_topk(x, 1, 2, true, NULL))                                                          \
    X(sort, dt_sort(x, 1, false, NULL))                                                            \
    X(outer, dt_outer(dt_mean(x, dt_dims(1), false), dt_mean(z, dt_dims(0), false)))               \
    X(einsum, dt_einsum("td,sd->ts", (dt_tensor[]){x, z}, 2))                                      \
    X(cross, dt_cross(dt_slice(x, 1, 0, 3), dt_slice(z, 1, 3, 3)))                                 \
    X(glu, dt_glu(x, 1))                                                                           \
    X(celu, dt_celu(x, 2))                                                                         \
    X(prelu, dt_prelu(dt_permute(x, dt_dims(1, 0)), w))                                            \
    X(atan2, dt_atan2(x, z))                                                                       \
    X(fmod, dt_fmod(x, z))                                                                         \
    X(straight_through, dt_straight_through(dt_round(x), x))                                       \
    X(instance_norm, dt_instance_norm(dt_permute(x, dt_dims(1, 0)), w, w, 0))                      \
    X(dropout_channels, dt_dropout_channels(x, 0.5f))                                              \
    X(drop_path, dt_drop_path(x, 0.5f))                                                            \
    X(alpha_dropout, dt_alpha_dropout(x, 0.5f))                                                    \
    X(pixel_shuffle, dt_pixel_shuffle(shapes_picture(x, 4), 2))                                    \
    X(pixel_unshuffle, dt_pixel_unshuffle(dt_resize(shapes_picture(x, 4), 4, 6, 0), 2))            \
    X(unfold, dt_unfold(shapes_picture(x, 3), 2, 2, NULL))                                         \
    X(embedding_bag, dt_embedding_bag(dt_reshape(w, dt_dims(3, 2)), t, true))                      \
    X(embedding_bag_padded, dt_embedding_bag_padded(dt_reshape(w, dt_dims(3, 2)), t, true, 0))     \
    X(one_hot, dt_one_hot(t, 6))                                                                   \
    X(random, dt_random_normal(x))                                                                 \
    X(l1, dt_l1(x, z))                                                                             \
    X(smooth_l1, dt_smooth_l1(x, z, 0.5f))                                                         \
    X(huber, dt_huber(x, z, 2))                                                                    \
    X(bce, dt_bce(dt_sigmoid(x), z))                                                               \
    X(bce_with_logits, dt_bce_with_logits(x, z, w))                                                \
    X(focal, dt_focal(x, z, 0.25f, 1.5f))                                                          \
    X(soft_margin, dt_soft_margin(x, z))                                                           \
    X(kl_div, dt_kl_div(x, z, false))                                                              \
    X(soft_cross_entropy, dt_soft_cross_entropy(x, z))                                             \
    X(cross_entropy_each,                                                                          \
      dt_cross_entropy_each(x, t, &(dt_cross_entropy_desc){DT_ZERO, 0.25f, w}))                    \
    X(distillation, dt_distillation(x, z, 2))                                                      \
    X(info_nce, dt_info_nce(x, z, 0.5f))                                                           \
    X(gaussian_nll, dt_gaussian_nll(x, z, dt_square(z), 0.1f, true))                               \
    X(poisson_nll, dt_poisson_nll(x, z, false, 1e-8f, true))                                       \
    X(cosine_embedding, dt_cosine_embedding(x, z, dt_sign(dt_mean(z, dt_dims(1), false)), 0.1f))   \
    X(margin_ranking, dt_margin_ranking(x, z, dt_sign(z), 1))                                      \
    X(hinge_embedding, dt_hinge_embedding(x, dt_sign(z), 1))                                       \
    X(triplet, dt_triplet_margin(x, z, dt_neg(z), &(dt_triplet_desc){.p = 3, .swap = true}))       \
    X(multi_margin, dt_multi_margin(x, t, 2, 1, w))                                                \
    X(multilabel_margin, dt_multilabel_margin(x, dt_heaviside(z)))                                 \
    X(multilabel_soft_margin, dt_multilabel_soft_margin(x, z))                                     \
    X(dice, dt_dice(dt_sigmoid(x), z, 1))                                                          \
    X(jaccard, dt_jaccard(dt_sigmoid(x), z, 1))

/* Places along the steps for each of x: [L, 6]. */
static dt_tensor shapes_places(dt_tensor x) {
    return dt_cast(x, DT_I32);
}
/* [L, 6] as that number of channels of images of 2 x 3. */
static dt_tensor shapes_picture(dt_tensor x, int64_t channels) {
    dt_tensor all = dt_reshape(x, dt_dims(-1, 2, 3));
    return dt_slice(all, 0, 0, channels);
}

typedef dt_tensor shapes_maker(dt_tensor x, dt_tensor z, dt_tensor t, dt_tensor w);
#define SHAPES_X(name, expression)                                                                 \
    static dt_tensor shapes_made_##name(dt_tensor x, dt_tensor z, dt_tensor t, dt_tensor w) {      \
        (void)x, (void)z, (void)t, (void)w;                                                        \
        return expression;                                                                         \
    }
SHAPES_MADE(SHAPES_X)
#undef SHAPES_X

static const struct {
    const char *name;
    shapes_maker *make;
} shapes_makers[] = {
#define SHAPES_X(name, expression) {#name, shapes_made_##name},
    SHAPES_MADE(SHAPES_X)
#undef SHAPES_X
};

typedef struct shapes_made {
    dt_graph *graph;
    dt_tensor x, z, t, y;
} shapes_made;

static shapes_made shapes_make(dt_ctx *ctx, shapes_maker *make, int64_t length) {
    shapes_made m = {0};
    CHECK(!dt_graph_create(ctx, &m.graph));
    m.x = dt_input(m.graph, "x", DT_F32, dt_dims(length, 6));
    m.z = dt_input(m.graph, "z", DT_F32, dt_dims(length, 6));
    m.t = dt_input(m.graph, "t", DT_I32, dt_dims(length));
    m.y = make(m.x, m.z, m.t, dt_param(m.graph, "w", dt_dims(6), (dt_init){0}));
    return m;
}

/* One element is turned by a copy, more of them by other rows: those of one are not replayed. */
static void shapes_made_of_one(dt_ctx *ctx, const char *name, shapes_maker *make) {
    shapes_made from = shapes_make(ctx, make, 1);
    dt_graph *again = NULL;
    const dt_program_desc d = {
        .outputs = {from.y}, .batch = 2, .shapes = {{from.x, dt_dims(8, 6)}}};
    const dt_result result = dti_graph_replay(from.graph, &d, &again);
    test_check(result == DT_ERROR_UNSUPPORTED && strstr(dt_ctx_error(ctx), name), __FILE__,
               __LINE__, "%s: %d", name, (int)result);
    if (again)
        dt_graph_destroy(again);
    dt_graph_destroy(from.graph);
}

static dt_tensor shapes_flip_steps(dt_tensor x, dt_tensor z, dt_tensor t, dt_tensor w) {
    (void)z, (void)t, (void)w;
    return dt_flip(x, 0);
}

static dt_tensor shapes_cumsum_steps(dt_tensor x, dt_tensor z, dt_tensor t, dt_tensor w) {
    (void)z, (void)t, (void)w;
    return dt_cumsum(x, 0);
}

TEST(a_flip_or_a_cumsum_of_one_element_is_refused_at_more_of_them) {
    dt_ctx *ctx = NULL;
    CHECK(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    shapes_made_of_one(ctx, "flip", shapes_flip_steps);
    shapes_made_of_one(ctx, "cumsum", shapes_cumsum_steps);
    dt_ctx_destroy(ctx);
}

/* From one length to another; what does not fit is an error that says so, and no other graph. */
static void shapes_made_check(dt_ctx *ctx, const char *name, shapes_maker *make) {
    shapes_made from = shapes_make(ctx, make, 5), to = shapes_make(ctx, make, 8);
    const char *wrong = dt_graph_error(from.graph);
    dt_graph *again = NULL;
    if (!test_check(!wrong && !dt_graph_error(to.graph), __FILE__, __LINE__, "%s: %s", name,
                    wrong ? wrong : dt_graph_error(to.graph)))
        return;
    const dt_program_desc d = {
        .outputs = {from.y},
        .batch = 2,
        .shapes = {{from.x, dt_dims(8, 6)}, {from.z, dt_dims(8, 6)}, {from.t, dt_dims(8)}}};
    if (test_check(!dti_graph_replay(from.graph, &d, &again), __FILE__, __LINE__, "%s: %s", name,
                   dt_ctx_error(ctx))) {
        const uint32_t differs = shapes_differ(again, to.graph, 0);
        test_check(!differs, __FILE__, __LINE__, "%s: node %u differs", name, differs);
        dt_graph_destroy(again);
    }
    dt_graph_destroy(from.graph);
    dt_graph_destroy(to.graph);
}

/* Along what changes its size they are walked by doubling: of other sizes by more rows. */
TEST(functions_of_more_rows_at_other_shapes_are_refused) {
    dt_ctx *ctx;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    dt_graph *g, *again = NULL;
    REQUIRE(!dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(5, 6));
    const dt_tensor all[] = {dt_flip(x, 0), dt_cumsum(x, 0), dt_prod(x, 0, true)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dt_program_desc d = {.outputs = {all[i]}, .batch = 2, .shapes = {{x, dt_dims(17, 6)}}};
        CHECK(dti_graph_replay(g, &d, &again) == DT_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(dt_ctx_error(ctx), "needs other ops");
    }
    dt_ctx_destroy(ctx);
}

TEST(functions_rebuilt_at_other_shapes_equal_functions_made_at_them) {
    dt_ctx *ctx;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    for (size_t i = 0; i < sizeof shapes_makers / sizeof *shapes_makers; i++)
        shapes_made_check(ctx, shapes_makers[i].name, shapes_makers[i].make);
    dt_ctx_destroy(ctx);
}
