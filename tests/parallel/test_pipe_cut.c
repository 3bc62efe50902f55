/* Where the library cuts a pipeline's model by itself. Included by main.c. */

enum { CUT_LAYERS = 8, CUT_CHUNKS = 3, CUT_ROWS = 16 };

/* Layers of random widths, some of which are recomputed or not trained, and some are added up. */
static dt_tensor cut_model(dt_tensor x, uint32_t *random) {
    char name[16];
    dt_tensor y = x, before = x;
    int64_t width = 24;
    for (int i = 0; i < CUT_LAYERS; i++) {
        const bool same = train_random(random) % 3 == 0;
        snprintf(name, sizeof name, "%s%d", train_random(random) % 3 ? "on" : "off", i);
        width = same ? width : 8 + (int64_t)(train_random(random) % 120);
        y = dt_relu(dt_nn_linear(y, name, width));
        y = same && i ? dt_add(y, before) : y;
        y = train_random(random) % 4 ? y : dt_recompute(y);
        before = y;
    }
    return dt_nn_linear(y, "on_last", 4);
}

/* The slowest chunk's time of a cut at places a and b, of those that may be; 0: it may not be. */
static double cut_slowest(const dti_pipe_places *p, const uint32_t *starts, uint32_t chunks) {
    double most = 0;
    for (uint32_t c = 0; c < chunks; c++) {
        const uint32_t from = starts[c], to = starts[c + 1];
        if (from >= to || p->trained[from] == p->trained[to])
            return 0;
        if (c && (p->inside[from] || p->tensors[from] > DT_MAX_OUTPUTS))
            return 0;
        most = DTI_MAX(most, p->before[to] - p->before[from] + p->cross[from] + p->cross[to]);
    }
    return most;
}

static double cut_least(const dti_pipe_places *p, uint32_t nodes) {
    uint32_t starts[CUT_CHUNKS + 1] = {1, 0, 0, nodes};
    double least = INFINITY;
    for (starts[1] = 2; starts[1] < nodes; starts[1]++)
        for (starts[2] = starts[1] + 1; starts[2] < nodes; starts[2]++) {
            const double time = cut_slowest(p, starts, CUT_CHUNKS);
            least = time > 0 && time < least ? time : least;
        }
    return least;
}

static void cut_compare(dt_graph *g, const dt_program_desc *d) {
    dti_base *base = g->base;
    dti_pipe_cut cut;
    dti_pipe_places p;
    REQUIRE(!dti_pipe_cut_make(base, g, d, CUT_CHUNKS, CUT_ROWS, 4, &cut));
    REQUIRE(dti_pipe_places_open(base, g, &p));
    cut.givers = dti_alloc_array(base, g->count, sizeof *cut.givers);
    REQUIRE(!dti_pipe_gradients(&cut, g, d, CUT_ROWS, p.before + 1));
    dti_pipe_places_readers(&cut, g, &p);
    dti_pipe_places_time(&cut, g, d->params, CUT_ROWS, 4, &p);
    dti_pipe_places_fill(&cut, g, CUT_ROWS, &p);
    const double found = cut_slowest(&p, cut.starts, CUT_CHUNKS), least = cut_least(&p, g->count);
    CHECK_TEXT(found == least, "the slowest chunk takes %g, and %g at best", found, least);
    DTI_FREE(base, p.before, p.cross, p.tensors, p.trained, p.inside, p.first, p.last);
    dti_pipe_cut_free(base, &cut);
}

TEST(automatic_cut_has_the_least_time_of_all_cuts) {
    for (uint32_t seed = 1; seed <= 20; seed++) {
        dt_ctx *ctx;
        dt_graph *g;
        uint32_t random = seed;
        REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
        REQUIRE(!dt_graph_create(ctx, &g));
        const dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(24));
        const dt_tensor t = dt_input(g, "t", DT_I32, dt_dims());
        dt_program_desc d = {.params = seed % 2 ? "on*" : NULL};
        d.losses[0] = (dt_loss){dt_cross_entropy(cut_model(x, &random), t, NULL), 1};
        cut_compare(g, &d);
        dt_ctx_destroy(ctx);
    }
}

/* Nothing is computed backward in layers that are not trained, below all that are. */
TEST(automatic_cut_gives_a_stage_of_frozen_layers_more_of_them) {
    uint32_t starts[2];
    for (int frozen = 0; frozen < 2; frozen++) {
        dt_ctx *ctx;
        dt_graph *g;
        dti_pipe_cut cut;
        REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
        REQUIRE(!dt_graph_create(ctx, &g));
        dt_tensor y = dt_nn_linear(dt_input(g, "x", DT_F32, dt_dims(64)), "low", 64);
        for (int i = 0; i < 12; i++) {
            char name[16];
            snprintf(name, sizeof name, "%s%d", i < 6 ? "low" : "high", i);
            y = dt_tanh(dt_nn_linear(y, name, 64));
        }
        const dt_tensor t = dt_input(g, "t", DT_I32, dt_dims());
        dt_program_desc d = {0};
        if (frozen)
            d.params = "low4*,high*";
        d.losses[0] = (dt_loss){dt_cross_entropy(y, t, NULL), 1};
        const dt_result result = dti_pipe_cut_make(g->base, g, &d, 2, 64, 4, &cut);
        starts[frozen] = cut.starts[1];
        CHECK_TEXT(!result, "%s", dt_ctx_error(ctx));
        dti_pipe_cut_free(g->base, &cut);
        dt_ctx_destroy(ctx);
    }
    CHECK_TEXT(starts[1] >= starts[0] + 8, "node %u, and %u with frozen layers: two layers are 8",
               starts[0], starts[1]);
}

/* Layers of width 4, of which the first ones are trained. */
static dt_result cut_many(dt_ctx *ctx, int layers, int trained, uint32_t chunks,
                          dti_pipe_cut *cut) {
    dt_graph *g;
    if (dt_graph_create(ctx, &g))
        return DT_ERROR_MEMORY;
    dt_tensor y = dt_input(g, "x", DT_F32, dt_dims(4));
    for (int i = 0; i < layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "%s%d", i < trained ? "on" : "off", i);
        y = dt_tanh(dt_nn_linear(y, name, 4));
    }
    dt_program_desc d = {.params = "on*"};
    d.losses[0] = (dt_loss){dt_mse(y, dt_input(g, "t", DT_F32, dt_dims(4))), 1};
    return dti_pipe_cut_make(g->base, g, &d, chunks, 16, 4, cut);
}

TEST(automatic_cut_of_very_many_rows_is_even) {
    dt_ctx *ctx;
    dti_pipe_cut cut;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    const dt_result result = cut_many(ctx, 6000, 6000, 16, &cut);
    CHECK_TEXT(!result, "%s", dt_ctx_error(ctx));
    for (uint32_t c = 0; c < 16; c++)
        CHECK_TEXT(cut.work[c] > 0.95 / 16 && cut.work[c] < 1.05 / 16, "chunk %u: %g", c,
                   cut.work[c] * 16);
    dti_pipe_cut_free(&ctx->base, &cut);
    dt_ctx_destroy(ctx);
}

/* All that is trained is in a small part of the time. */
TEST(automatic_cut_of_very_many_rows_finds_trained_parameters) {
    dt_ctx *ctx;
    dti_pipe_cut cut;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    CHECK(!cut_many(ctx, 12000, 4, 4, &cut));
    dti_pipe_cut_free(&ctx->base, &cut);
    CHECK(cut_many(ctx, 12000, 4, 5, &cut) == DT_ERROR_INVALID);
    CHECK_TEXT(strstr(dt_ctx_error(ctx), "can be cut into at most 4"), "%s", dt_ctx_error(ctx));
    dti_pipe_cut_free(&ctx->base, &cut);
    dt_ctx_destroy(ctx);
}
