/* One store, inputs of several shapes. Rebuilt graphs against graphs that were made at those
 * shapes, training in turn, wrong shapes, codes that are found again. Included by main.c. */

typedef struct shapes_net {
    dt_tensor x, image, label; /* sequences of 6 features; images of 3 channels; a class a sample */
    dt_tensor loss, y, picture, slope;
} shapes_net;

static dt_tensor shapes_weight(dt_graph *g, const char *name, dt_shape shape) {
    return dt_param(g, name, shape, (dt_init){.kind = DT_INIT_NORMAL, .b = 0.3f});
}

/* [8, L] as a volume of depth 4: [8]. */
static dt_tensor shapes_volume(dt_graph *g, dt_tensor h) {
    const dt_conv3d_desc conv = {.stride = {2, 2, 1}, .padding = {1, 1, 0}};
    const dt_pool3d_desc pool = {.kernel = {2, 2, 1}, .stride = {1, 1, 1}, .padding = {1, 1, 0}};
    dt_tensor v = dt_reshape(h, dt_dims(2, 4, -1, 1));
    v = dt_conv3d(v, shapes_weight(g, "conv3d", dt_dims(2, 2, 2, 3, 1)), (dt_tensor){0}, &conv);
    v = dt_flatten(dt_adaptive_avg_pool3d(dt_avg_pool3d(v, &pool), 4, 1, 1));
    dt_tensor line = dt_avg_pool1d(h, &(dt_pool_desc){.kernel = {2}, .padding = {1}});
    return dt_add(v, dt_flatten(dt_adaptive_avg_pool1d(line, 1)));
}

/* What works attributes out from shapes is all here. */
static dt_tensor shapes_sequence(shapes_net *n, dt_graph *g, int64_t length) {
    n->x = dt_input(g, "x", DT_F32, dt_dims(length, 6));
    dt_tensor h = dt_linear(n->x, shapes_weight(g, "in", dt_dims(8, 6)), (dt_tensor){0});
    dt_tensor one = shapes_weight(g, "one", dt_dims(8));
    h = dt_dropout(dt_layer_norm(dt_reshape(h, dt_dims(-1, 2, 4)), 1,
                                 shapes_weight(g, "four", dt_dims(4)), (dt_tensor){0}, 0),
                   0.2f);
    h = dt_reshape(h, dt_dims(-1, 8));
    dt_tensor heads = dt_permute(dt_reshape(h, dt_dims(-1, 2, 4)), dt_dims(1, 0, 2));
    const dt_attention_desc desc = {.causal = true, .dropout = 0.1f};
    heads = dt_attention(dt_rope(heads, NULL), heads, heads, &desc);
    h = dt_add(h, dt_reshape(dt_permute(heads, dt_dims(1, 0, 2)), dt_dims(-1, 8)));
    dt_tensor scores = dt_matmul_transposed(h, h, false, true);
    h = dt_add(h, dt_matmul(dt_softmax(scores, -1), dt_rms_norm(h, 1, one, 0)));
    const dt_recurrent gru =
        dt_nn_gru(dt_detach(h), "gru", 4, &(dt_recurrent_desc){.bidirectional = true});
    h = dt_add(h, dt_mul(gru.y, dt_reshape(gru.h, dt_dims(8))));
    h = dt_permute(dt_pad(h, 0, 1, 2), dt_dims(1, 0));
    h = dt_conv1d(h, shapes_weight(g, "conv1d", dt_dims(8, 8, 3)), (dt_tensor){0},
                  &(dt_conv_desc){.padding = {1}});
    h = dt_conv_transpose1d(h, shapes_weight(g, "up1d", dt_dims(8, 8, 2)), (dt_tensor){0},
                            &(dt_conv_desc){.stride = {2}});
    n->y = dt_label(dt_mean(h, dt_dims(-1), false), "pooled");
    n->y = dt_add(n->y, shapes_volume(g, h));
    return dt_add(n->y, dt_mul(dt_max(h, dt_dims(1), false), one));
}

static dt_tensor shapes_image(shapes_net *n, dt_graph *g, int64_t height, int64_t width) {
    n->image = dt_input(g, "image", DT_F32, dt_dims(3, height, width));
    dt_tensor h = dt_conv2d(n->image, shapes_weight(g, "conv", dt_dims(8, 3, 3, 3)), (dt_tensor){0},
                            &(dt_conv_desc){.stride = {2, 2}, .padding = {1, 1}});
    dt_tensor mean = dt_buffer(g, "mean", dt_dims(8), (dt_init){0});
    dt_tensor var = dt_buffer(g, "var", dt_dims(8), (dt_init){.kind = DT_INIT_CONSTANT, .a = 1});
    h = dt_batch_norm(h, shapes_weight(g, "gain", dt_dims(8)), (dt_tensor){0}, mean, var, NULL);
    h = dt_tanh(dt_group_norm(h, 2, (dt_tensor){0}, (dt_tensor){0}, 0));
    h = dt_add(h, dt_max_pool2d(
                      h, &(dt_pool_desc){.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}}));
    n->picture = dt_conv_transpose2d(h, shapes_weight(g, "up", dt_dims(8, 2, 2, 2)), (dt_tensor){0},
                                     &(dt_conv_desc){.stride = {2, 2}, .output_padding = {1, 1}});
    return dt_add(dt_mean(h, dt_dims(1, 2), false),
                  dt_flatten(dt_adaptive_avg_pool2d(dt_slice(n->picture, 0, 0, 2), 2, 2)));
}

static shapes_net shapes_build(dt_graph *g, int64_t length, int64_t height, int64_t width) {
    shapes_net n = {.x = {0}};
    n.label = dt_input(g, "label", DT_I32, dt_dims());
    dt_tensor both = dt_add(shapes_sequence(&n, g, length), shapes_image(&n, g, height, width));
    dt_tensor bad = dt_reshape(n.x, dt_dims(length * 6)); /* fits none, but nobody needs it */
    (void)bad;
    /* a penalty on a gradient, whose rows have attributes of shapes too */
    dt_tensor score = dt_sum(dt_square(both), dt_dims(), false);
    n.slope = dt_gradient(score, n.x);
    n.loss = dt_cross_entropy(
        dt_add(both, dt_mean(dt_square(dt_reshape(n.slope, dt_dims(-1))), dt_dims(), true)),
        n.label, NULL);
    return n;
}

static const int64_t shapes_sizes[][3] = {{5, 8, 8}, {2, 6, 12}, {9, 14, 8}};

static dt_program_desc shapes_desc(const shapes_net *n, const int64_t size[3],
                                   const dt_optim_desc *optim) {
    dt_program_desc d = {.loss = n->loss, .outputs = {n->y, n->picture, n->slope}, .batch = 3};
    d.optim = optim;
    if (size) {
        d.shapes[0] = (dt_input_shape){n->x, dt_dims(size[0], 6)};
        d.shapes[1] = (dt_input_shape){n->image, dt_dims(3, size[1], size[2])};
    }
    return d;
}

static uint32_t shapes_differ(const dt_graph *a, const dt_graph *b, uint32_t unused) {
    for (uint32_t id = 1; id < a->count && a->count == b->count; id++) {
        const dti_node *x = &a->nodes[id], *y = &b->nodes[id];
        bool same = x->op == y->op && x->samples == y->samples && x->count == y->count &&
                    x->dtype == y->dtype && x->frozen == y->frozen &&
                    dti_shape_equal(x->shape, y->shape) && !x->label == !y->label &&
                    memcmp(&x->attr, &y->attr, sizeof x->attr) == 0;
        for (uint32_t k = 0; same && k < x->count; k++)
            same = dti_input_id(a, x, k) == dti_input_id(b, y, k);
        if (!same && id != unused)
            return id;
    }
    return a->count == b->count ? 0 : UINT32_MAX;
}

TEST(a_graph_rebuilt_at_other_shapes_equals_a_graph_made_at_them) {
    dt_ctx *ctx;
    dt_graph *graphs[3], *again;
    shapes_net n[3];
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    for (int i = 0; i < 3; i++) {
        REQUIRE(!dt_graph_create(ctx, &graphs[i]));
        n[i] = shapes_build(graphs[i], shapes_sizes[i][0], shapes_sizes[i][1], shapes_sizes[i][2]);
        REQUIRE(dt_graph_error(graphs[i]) == NULL);
    }
    uint32_t unused = 0; /* the reshape that fits no other length */
    for (uint32_t id = 1; id < graphs[0]->count; id++) {
        const dti_node *x = &graphs[0]->nodes[id];
        if (x->op == DTI_OP_RESHAPE && x->shape.rank == 1 &&
            dti_input_id(graphs[0], x, 0) == n[0].x.id)
            unused = id;
    }
    for (int from = 0; from < 3; from++) {
        for (int to = 0; to < 3; to++) {
            dt_program_desc d = shapes_desc(&n[from], shapes_sizes[to], NULL);
            REQUIRE(!dti_graph_replay(graphs[from], &d, &again));
            uint32_t differs = shapes_differ(again, graphs[to], unused);
            CHECK(differs == 0);
            if (differs && differs < again->count)
                printf("  %d to %d: node %u, %s\n", from, to, differs,
                       dti_op_info_of(again->nodes[differs].op)->name);
            dt_graph_destroy(again);
        }
    }
    dt_ctx_destroy(ctx);
}

/* ---- training in turn */

typedef struct shapes_side {
    dt_graph *graph;
    dt_store *store;
    shapes_net net;
    dt_program *program;
} shapes_side;

static bool shapes_feed(dt_program *p, const shapes_net *n, const int64_t size[3], int step) {
    static float x[3 * 9 * 6], image[3 * 3 * 14 * 12];
    const int32_t label[3] = {1, 7, step % 8};
    const size_t xs = (size_t)(3 * size[0] * 6), is = (size_t)(9 * size[1] * size[2]);
    for (size_t i = 0; i < xs; i++)
        x[i] = (float)dti_normal(5, i, (uint64_t)step);
    for (size_t i = 0; i < is; i++)
        image[i] = (float)dti_normal(6, i, (uint64_t)step);
    return !dt_program_write(p, n->x, x, xs * sizeof *x) &&
           !dt_program_write(p, n->image, image, is * sizeof *image) &&
           !dt_program_write(p, n->label, label, sizeof label);
}

static bool shapes_copy(dt_store *from, dt_store *to) {
    static float x[1024];
    bool good = true;
    for (int i = 0; i < dt_store_param_count(from); i++) {
        dt_param_info info;
        good = good && !dt_store_get_param(from, i, &info) &&
               !dt_store_read(from, i, DT_VALUE_PARAM, x, 4 * info.elements) &&
               !dt_store_write(to, i, DT_VALUE_PARAM, x, 4 * info.elements);
    }
    return good;
}

static uint64_t shapes_hash(dt_store *s) {
    uint64_t hash = 0;
    CHECK(!dt_store_hash(s, &hash));
    return hash;
}

static void shapes_train_on(const char *device) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.05};
    dt_ctx *ctx;
    shapes_side fresh[3];
    dt_program *programs[3];
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = !strcmp(device, "cpu")}, &ctx));
    for (int i = 0; i < 3; i++) {
        shapes_side *f = &fresh[i];
        const int64_t *z = shapes_sizes[i];
        REQUIRE(!dt_graph_create(ctx, &f->graph));
        f->net = shapes_build(f->graph, z[0], z[1], z[2]);
        REQUIRE(!dt_store_create(f->graph, &(dt_store_desc){.device = device}, &f->store));
        dt_program_desc d = shapes_desc(&f->net, NULL, &sgd);
        d.params = "one,four,in,gru*,conv*,up*,gain";
        REQUIRE(!dt_program_create(f->store, &d, &f->program));
    }
    dt_graph *graph;
    dt_store *store;
    REQUIRE(!dt_graph_create(ctx, &graph));
    shapes_net n = shapes_build(graph, 4, 10, 10); /* none of the three */
    REQUIRE(!dt_store_create(graph, &(dt_store_desc){.device = device}, &store));
    for (int i = 0; i < 3; i++) {
        dt_program_desc d = shapes_desc(&n, shapes_sizes[i], &sgd);
        d.params = "one,four,in,gru*,conv*,up*,gain";
        REQUIRE(!dt_program_create(store, &d, &programs[i]));
    }
    for (int step = 0; step < 9; step++) {
        const int i = step * 2 % 3;
        const dt_step_desc at = {.seed = 3, .step = (uint64_t)step + 1};
        dt_report a, b;
        REQUIRE(shapes_copy(store, fresh[i].store));
        REQUIRE(shapes_feed(programs[i], &n, shapes_sizes[i], step));
        REQUIRE(shapes_feed(fresh[i].program, &fresh[i].net, shapes_sizes[i], step));
        REQUIRE(!dt_program_run(programs[i], &at, &a));
        REQUIRE(!dt_program_run(fresh[i].program, &at, &b));
        CHECK(a.loss == b.loss && a.gradient_norm == b.gradient_norm);
        CHECK(shapes_hash(store) == shapes_hash(fresh[i].store));
    }
    dt_ctx_destroy(ctx);
}

TEST(one_store_trains_at_three_shapes_in_turn_as_graphs_made_at_them_do) {
    shapes_train_on("cpu");
}

TEST(one_store_trains_at_three_shapes_in_turn_on_vulkan_too) {
    char id[32];
    if (!ops_vulkan(0, id))
        SKIP("no Vulkan device");
    shapes_train_on(id);
}

/* ---- what does not fit */

typedef struct shapes_case {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_tensor x, y, late, fixed, mixed;
} shapes_case;

static shapes_case shapes_open(void) {
    shapes_case c = {0};
    CHECK(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &c.ctx));
    CHECK(!dt_graph_create(c.ctx, &c.graph));
    c.x = dt_input(c.graph, "x", DT_F32, dt_dims(4, 6));
    c.y = dt_linear(c.x, shapes_weight(c.graph, "fc", dt_dims(2, 6)), (dt_tensor){0});
    c.mixed = dt_mean(dt_mul(c.y, shapes_weight(c.graph, "position", dt_dims(4, 1))), dt_dims(), 0);
    c.fixed = dt_reshape(c.y, dt_dims(8));
    c.late = dt_freeze(shapes_weight(c.graph, "frozen", dt_dims(2)));
    CHECK(!dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store));
    return c;
}

static const char *shapes_error(const shapes_case *c, dt_tensor y, dt_tensor input,
                                dt_shape shape) {
    dt_program *p = NULL;
    dt_program_desc d = {.outputs = {y}, .shapes = {{input, shape}}};
    dt_result result = dt_program_create(c->store, &d, &p);
    CHECK((result == DT_OK) == (p != NULL));
    dt_program_destroy(p);
    return result ? dt_ctx_error(c->ctx) : "no error";
}

TEST(a_shape_that_does_not_fit_is_an_error_that_names_the_parameter_or_op) {
    shapes_case c = shapes_open();
    CHECK_STR(shapes_error(&c, c.y, c.x, dt_dims(9, 6)), "no error");
    CHECK_CONTAINS(shapes_error(&c, c.y, c.x, dt_dims(4, 7)), "fc [2, 6]");
    CHECK_CONTAINS(shapes_error(&c, c.mixed, c.x, dt_dims(3, 6)), "position [4, 1]");
    CHECK_CONTAINS(shapes_error(&c, c.fixed, c.x, dt_dims(3, 6)),
                   "6 elements cannot have the shape [B, 8]");
    CHECK_CONTAINS(shapes_error(&c, c.y, c.x, dt_dims(24)), "the same number of dimensions");
    CHECK_CONTAINS(shapes_error(&c, c.y, c.x, dt_dims(-1, 6)), "none negative");
    CHECK_CONTAINS(shapes_error(&c, c.y, c.y, dt_dims(4, 2)), ".shapes[0].input is not an input");
    static const float two[2] = {1, 2};
    dt_tensor fixed = dt_constant(c.graph, DT_F32, dt_dims(2), two);
    CHECK_CONTAINS(shapes_error(&c, dt_add(c.y, fixed), fixed, dt_dims(3)),
                   ".shapes[0].input is not an input");
    CHECK(dt_graph_error(c.graph) == NULL); /* nothing of it reaches the graph */
    dt_program *p;
    dt_program_desc gap = {.outputs = {c.y}};
    gap.shapes[1] = (dt_input_shape){c.x, dt_dims(9, 6)};
    CHECK(dt_program_create(c.store, &gap, &p) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".shapes[1] comes after a nil one");
    dt_program_desc twice = {.outputs = {c.y},
                             .shapes = {{c.x, dt_dims(4, 6)}, {c.x, dt_dims(9, 6)}}};
    CHECK(dt_program_create(c.store, &twice, &p) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".shapes[0] and [1] are both of input 'x'");
    static float x[4 * 6];
    dt_program_desc d = {.outputs = {c.y}, .shapes = {{c.x, dt_dims(9, 6)}}};
    REQUIRE(!dt_program_create(c.store, &d, &p));
    CHECK(dt_program_write(p, c.x, x, sizeof x) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "'x' [B, 9, 6] has 216 bytes");
    dt_ctx_destroy(c.ctx);
}

/* Compilers evaluate arguments in orders of their own, and ranks compare graphs node by node. */
TEST(a_signals_convolution_appends_its_nodes_in_one_order_by_any_compiler) {
    dt_ctx *ctx;
    dt_graph *g;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(2, 8));
    dt_tensor w = shapes_weight(g, "w", dt_dims(4, 2, 3));
    dt_tensor y = dt_conv1d(x, w, (dt_tensor){0}, NULL);
    REQUIRE(y.id > w.id + 2);
    CHECK(dti_input_id(g, &g->nodes[w.id + 1], 0) == x.id);
    CHECK(dti_input_id(g, &g->nodes[w.id + 2], 0) == w.id);
    dt_ctx_destroy(ctx);
}

/* ---- codes */

TEST(a_program_of_a_known_shape_uses_the_existing_code) {
    shapes_case c = shapes_open();
    dt_program_desc d = {.outputs = {c.y}, .shapes = {{c.x, dt_dims(9, 6)}}, .label = "nine"};
    dt_program *a, *b;
    REQUIRE(!dt_program_create(c.store, &d, &a));
    char label[] = "nine"; /* the text counts, not where it lies */
    d.label = label;
    REQUIRE(!dt_program_create(c.store, &d, &b));
    const dti_code *code = dti_program_code(a);
    CHECK(dti_program_code(b) == code);
    dt_program_destroy(a);
    dt_program_destroy(b);
    REQUIRE(!dt_program_create(c.store, &d, &a));
    CHECK(dti_program_code(a) == code);
    d.shapes[0].shape.dim[0] = 8;
    REQUIRE(!dt_program_create(c.store, &d, &b));
    CHECK(dti_program_code(b) != code);
    dt_program_destroy(b);
    d.shapes[0].shape.dim[0] = 9;
    dt_label(c.y, "renamed"); /* the same description of a graph that was changed */
    REQUIRE(!dt_program_create(c.store, &d, &b));
    CHECK(dti_program_code(b) != code);
    for (int length = 1; length <= 50; length++) { /* an end to what is kept */
        dt_program_destroy(b);
        d.shapes[0].shape.dim[0] = length;
        REQUIRE(!dt_program_create(c.store, &d, &b));
    }
    uint32_t kept = 0;
    for (const dti_kept_code *k = c.store->codes; k; k = k->next)
        kept++;
    CHECK(kept == DTI_CODES_KEPT + 2); /* and the two programs' */
    dt_ctx_destroy(c.ctx);
}
