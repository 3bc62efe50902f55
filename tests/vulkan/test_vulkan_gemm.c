/* The variants of the matrix product on every driver. Each has the same bits, within the bound of a
 * sum in double, and touches nothing beyond the operands. Included by main.c, after
 * test_vulkan.c. */

#ifndef DT_NO_VULKAN

enum { GEMM_A, GEMM_B, GEMM_C, GEMM_BIAS, GEMM_STEP, GEMM_PARTS, GEMM_PLACES };
#define GEMM_MARGIN 64 /* elements round each operand, a canary */

typedef struct gemm_case {
    uint32_t m, n, k;
    bool turn_a, turn_b; /* whether it lies transposed */
    uint32_t epilogue, batch, shift;
    bool bias;
    uint32_t chunk;
} gemm_case;

typedef struct gemm_run {
    const gemm_case *c;
    dti_launch launch[2]; /* of chunks apart, the second adds them */
    uint32_t launches;
    dti_place places[GEMM_PLACES];
    uint64_t words; /* of the memory that all operands lie in */
    float *before, *after[2];
} gemm_run;

static dti_place gemm_place(gemm_run *r, uint64_t elements) {
    const dti_place p = {0, DTI_WORD_BYTES * r->words,
                         DTI_WORD_BYTES * (elements + 2 * GEMM_MARGIN)};
    r->words += (elements + 2 * GEMM_MARGIN + 63) / 64 * 64;
    return p;
}

static void gemm_lay_out(gemm_run *r) {
    const gemm_case *c = r->c;
    const uint32_t at = GEMM_MARGIN + c->shift, a = c->m * c->k, b = c->k * c->n, y = c->m * c->n;
    dti_args_gemm g = {.m = c->m, .n = c->n, .k = c->k, .c_row = c->n, .batch0 = 1};
    const uint32_t parts = c->chunk ? (c->k + c->chunk - 1) / c->chunk : 0;
    g.chunk = c->chunk;
    g.batch1 = c->batch;
    g.a_row = c->turn_a ? 1 : c->k;
    g.a_col = c->turn_a ? c->m : 1;
    g.b_row = c->turn_b ? 1 : c->n;
    g.b_col = c->turn_b ? c->k : 1;
    g.a_batch1 = a, g.b_batch1 = b, g.c_batch1 = y;
    g.a_offset = g.b_offset = g.c_offset = g.bias_offset = g.operand_offset = at;
    const uint32_t bias = c->epilogue == DTI_EPILOGUE_ADD ? DTI_BIAS_BESIDE : DTI_BIAS;
    r->words = 0;
    r->places[GEMM_A] = gemm_place(r, (uint64_t)a * c->batch + 4);
    r->places[GEMM_B] = gemm_place(r, (uint64_t)b * c->batch + 4);
    r->places[GEMM_C] = gemm_place(r, (uint64_t)y * c->batch + 4);
    r->places[GEMM_BIAS] = gemm_place(r, (uint64_t)y * c->batch + 4); /* or the epilogue's */
    r->places[GEMM_STEP] = (dti_place){1, 0, DTI_WORD_BYTES * DTI_STEP_WORDS};
    r->places[GEMM_PARTS] = gemm_place(r, (uint64_t)y * parts);
    r->launches = 1;
    r->launch[0] = (dti_launch){.kernel = DTI_K_GEMM,
                                .args_bytes = sizeof g,
                                .items = (uint64_t)y * c->batch,
                                .spec = {c->bias ? bias : 0, c->epilogue},
                                .value = {GEMM_A, GEMM_B, GEMM_C, GEMM_BIAS},
                                .args.gemm = g};
}

/* Its chunks by workgroups of their own, and their sum. */
static void gemm_take_apart(gemm_run *r) {
    dti_args_gemm *g = &r->launch[0].args.gemm;
    const uint32_t parts = (g->k + g->chunk - 1) / g->chunk, n = g->m * g->n;
    r->launches = 2;
    r->launch[1] = r->launch[0];
    r->launch[1].kernel = DTI_K_PRODUCT_SUM;
    r->launch[1].args_bytes = sizeof(dti_args_product_sum);
    r->launch[1].value[0] = GEMM_PARTS;
    r->launch[1].args.product_sum = (dti_args_product_sum){.n = n,
                                                           .cols = g->n,
                                                           .parts = parts,
                                                           .part = n,
                                                           .x_offset = g->c_offset,
                                                           .c_offset = g->c_offset,
                                                           .bias_offset = g->bias_offset,
                                                           .operand_offset = g->operand_offset};
    r->launch[0].spec[0] = r->launch[0].spec[1] = 0;
    r->launch[0].value[2] = GEMM_PARTS;
    r->launch[0].items = (uint64_t)n * parts;
    const uint32_t offset = g->c_offset;
    dti_gemm_set_apart(g, g->chunk);
    g->c_offset = offset;
}

/* NaN everywhere but in the operands, which have numbers of either sign. */
static void gemm_fill(gemm_run *r) {
    uint32_t seed = 1;
    for (uint64_t i = 0; i < r->words; i++)
        r->before[i] = NAN;
    for (int v = GEMM_A; v <= GEMM_BIAS; v++) {
        const uint64_t count = r->places[v].bytes / DTI_WORD_BYTES - 2 * GEMM_MARGIN - 4;
        float *to = r->before + r->places[v].offset / DTI_WORD_BYTES + GEMM_MARGIN + r->c->shift;
        for (uint64_t i = 0; i < count && v != GEMM_C; i++) {
            seed = seed * 1664525u + 1013904223u;
            to[i] = (float)(int32_t)seed / 2147483648.0f;
        }
    }
}

/* The whole memory after the launch, by `variant`. */
static bool gemm_try_variant(vulkan_rig *rig, gemm_run *r, uint32_t variant, float *after) {
    static const dti_memory_kind kinds[3] = {DTI_MEMORY_DEVICE, DTI_MEMORY_IN, DTI_MEMORY_OUT};
    const dti_backend *b = rig->device->backend;
    dti_memory *memories[3] = {NULL};
    const dti_segment segment = {.first = 0, .count = r->launches};
    const dti_exec_desc desc = {.label = "gemm",
                                .memories = memories,
                                .memory_count = 3,
                                .places = r->places,
                                .place_count = GEMM_PLACES,
                                .launches = r->launch,
                                .launch_count = r->launches,
                                .segments = &segment,
                                .segment_count = 1,
                                .in = 1,
                                .out = 2};
    dti_exec *exec = NULL;
    const uint64_t bytes = DTI_WORD_BYTES * r->words;
    dt_result result = DT_OK;
    dti_vk_device *device = (dti_vk_device *)rig->device;
    device->forcing = (dti_vk_forcing){true, DTI_K_GEMM, variant};
    for (int i = 0; i < 3 && !result; i++)
        result = b->memory_create(rig->device, i ? 16384 : bytes, kinds[i], &memories[i]);
    if (!result)
        result = b->memory_write(memories[0], 0, r->before, bytes);
    if (!result)
        result = b->exec_create(rig->device, &desc, &exec);
    if (!result)
        result = b->exec_start(exec, 0, 1);
    if (!result)
        result = b->exec_wait(exec);
    if (!result)
        result = b->memory_read(memories[0], 0, after, bytes);
    if (exec)
        b->exec_destroy(exec);
    for (int i = 0; i < 3; i++)
        b->memory_destroy(memories[i]);
    return test_check(!result, __FILE__, __LINE__, "variant %u: %s", variant, rig->base.error);
}

/* Every fifth element and some: sums in double. */
static void gemm_check_sums(const gemm_run *r, const float *after) {
    const dti_args_gemm *g = &r->launch[0].args.gemm;
    const float *a = after + r->places[GEMM_A].offset / DTI_WORD_BYTES + g->a_offset;
    const float *b = after + r->places[GEMM_B].offset / DTI_WORD_BYTES + g->b_offset;
    const float *y = after + r->places[GEMM_C].offset / DTI_WORD_BYTES + g->c_offset;
    const float *extra = after + r->places[GEMM_BIAS].offset / DTI_WORD_BYTES + g->bias_offset;
    const bool add = r->c->epilogue == DTI_EPILOGUE_ADD;
    const float *bias = add ? b : extra; /* beside: any values of B's binding */
    int wrong = 0;
    for (uint32_t e = 0; e < g->batch1 * g->m * g->n; e += 5) {
        const uint32_t i = e / (g->m * g->n), row = e / g->n % g->m, col = e % g->n;
        double sum = r->c->bias ? bias[col] : 0, size = 1;
        for (uint32_t k = 0; k < g->k; k++) {
            const double x = (double)a[i * g->a_batch1 + row * g->a_row + k * g->a_col] *
                             (double)b[i * g->b_batch1 + k * g->b_row + col * g->b_col];
            sum += x;
            size += fabs(x);
        }
        if (add)
            sum += extra[e];
        if (r->c->epilogue == DTI_EPILOGUE_RELU_GRAD && !(extra[e] > 0))
            sum = 0;
        if (r->c->epilogue == DTI_EPILOGUE_RELU && sum < 0)
            sum = 0;
        wrong += !(fabs((double)y[e] - sum) <= (g->k + 3) * ldexp(1, -24) * size);
    }
    test_check(!wrong, __FILE__, __LINE__, "%u x %u x %u: %d elements are wrong", g->m, g->n, g->k,
               wrong);
}

/* With what lies there before, and room for what lies there after two launches; free(r->before). */
static bool gemm_open(gemm_run *r, const gemm_case *c) {
    *r = (gemm_run){.c = c};
    gemm_lay_out(r);
    r->before = malloc(3 * DTI_WORD_BYTES * r->words);
    if (!r->before)
        return false;
    r->after[0] = r->before + r->words;
    r->after[1] = r->after[0] + r->words;
    gemm_fill(r);
    return true;
}

static void gemm_try_case(vulkan_rig *rig, const gemm_case *c, uint32_t variant) {
    const dt_device_info *info = &rig->device->info;
    const dti_grid_device all = {.invocations_max = info->workgroup_invocations,
                                 .shared_bytes = info->shared_bytes};
    if (!dti_gemm_fits(variant, &all))
        return;
    gemm_run r;
    if (!gemm_open(&r, c))
        return;
    if (gemm_try_variant(rig, &r, DTI_GEMM_IN_REGISTERS, r.after[0]) &&
        gemm_try_variant(rig, &r, variant, r.after[1])) {
        gemm_check_sums(&r, r.after[0]);
        test_check(!memcmp(r.after[0], r.after[1], DTI_WORD_BYTES * r.words), __FILE__, __LINE__,
                   "%u x %u x %u, %d%d: variant %u has other bits than 0", c->m, c->n, c->k,
                   c->turn_a, c->turn_b, variant);
    }
    free(r.before);
}

/* The sum that was added to before it was written, and the one that is added to here. */
static void gemm_try_apart_from_add(vulkan_rig *rig, const gemm_case *c, uint32_t variant) {
    gemm_run r;
    if (!gemm_open(&r, c))
        return;
    const uint64_t at = GEMM_MARGIN + c->shift, n = (uint64_t)c->batch * c->m * c->n;
    const uint64_t y = r.places[GEMM_C].offset / DTI_WORD_BYTES + at;
    const uint64_t x = r.places[GEMM_BIAS].offset / DTI_WORD_BYTES + at;
    uint64_t wrong = 0;
    if (gemm_try_variant(rig, &r, variant, r.after[0])) {
        r.launch[0].spec[1] = DTI_EPILOGUE_NONE;
        if (gemm_try_variant(rig, &r, variant, r.after[1]))
            for (uint64_t i = 0; i < n; i++) {
                const float sum = r.after[1][y + i] + r.before[x + i];
                wrong += memcmp(&sum, &r.after[0][y + i], sizeof sum) != 0;
            }
    }
    test_check(!wrong, __FILE__, __LINE__, "%u x %u x %u: %u sums have other bits", c->m, c->n,
               c->k, (unsigned)wrong);
    free(r.before);
}

static void gemm_try_add(vulkan_rig *rig) {
    static const gemm_case cases[] = {
        {20, 36, 24, false, true, DTI_EPILOGUE_ADD, 2, 0, true, 0},
        {19, 35, 23, true, false, DTI_EPILOGUE_ADD, 1, 1, false, 0},
        {9, 10, 64, false, true, DTI_EPILOGUE_ADD, 1, 0, true, 32},
    };
    static const uint32_t variants[] = {DTI_GEMM_IN_REGISTERS, DTI_GEMM_32X32, DTI_GEMM_NARROW};
    for (size_t i = 0; i < DTI_COUNT(cases) && !rig->in->options.no_unified; i++)
        gemm_try_apart_from_add(rig, &cases[i], vulkan_is_quick(rig) ? variants[i] : 0);
}

TEST(vulkan_gemm_with_an_addition_in_its_epilogue_has_the_bits_of_one_after_it) {
    ON_EACH(gemm_try_add);
}

/* ---- Sums that a graph asks for */

typedef struct gemm_sums {
    dt_ctx *ctx;
    dt_tensor x, y, product[4];
    uint32_t added;
} gemm_sums;

/* Products, with a bias and without, on either side of the addend; the last one's comes too
 * late. */
static dt_graph *gemm_sums_graph(gemm_sums *s) {
    dt_graph *g = NULL;
    if (dt_graph_create(s->ctx, &g))
        return NULL;
    s->x = dt_input(g, "x", DT_F32, dt_dims(3, 20));
    dt_tensor h = dt_tanh(s->x);
    s->product[0] = dt_nn_linear(h, "a", 20);
    h = dt_add(h, s->product[0]);
    const dt_init init = {DT_INIT_UNIFORM, -0.3f, 0.3f};
    const dt_tensor w = dt_param(g, "w", dt_dims(20, 20), init);
    s->product[1] = dt_linear(dt_sin(h), w, (dt_tensor){0});
    h = dt_add(s->product[1], h);
    s->product[2] = dt_matmul_transposed(h, dt_cos(h), false, true); /* [3, 3] */
    dt_tensor t = dt_add(dt_matmul_transposed(h, h, false, true), s->product[2]);
    s->product[3] = dt_matmul(t, h);
    s->y = dt_tanh(dt_add(s->product[3], dt_square(h)));
    return g;
}

/* apart: all products are outputs as well, so each addition is a launch. range: the most bytes that
 * the device can bind, and nothing is trained, since an update binds all; 0: its own. */
static bool gemm_sums_run(gemm_sums *s, const char *device, bool apart, uint64_t range, float *y,
                          uint64_t *hash) {
    enum { BATCH = 5 };
    float x[BATCH * 60];
    dt_store *store = NULL;
    dt_program *p = NULL;
    dt_graph *g = gemm_sums_graph(s);
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    dt_program_desc desc = {
        .loss = dt_mean_loss(dt_square(s->y)), .batch = BATCH, .outputs = {s->y}, .optim = &sgd};
    if (apart)
        memcpy(desc.outputs + 1, s->product, sizeof s->product);
    for (int i = 0; i < BATCH * 60; i++)
        x[i] = (float)(i * 7919 % 1009) / 1009.0f - 0.5f;
    bool good = g && !dt_store_create(g, &(dt_store_desc){.device = device, .seed = 3}, &store);
    if (good && range) {
        store->device->info.storage_range_bytes = range;
        desc.optim = NULL;
        desc.loss = (dt_tensor){0};
    }
    good = good && !dt_program_create(store, &desc, &p) &&
           !dt_program_write(p, s->x, x, sizeof x) && !dt_program_run(p, NULL, NULL) &&
           !dt_store_hash(store, hash) && !dt_program_read(p, s->y, y, sizeof x);
    s->added = 0;
    for (uint32_t i = 0; good && i < p->code->list.launch_count; i++) {
        const dti_launch *l = &p->code->list.launches[i];
        s->added += l->kernel == DTI_K_GEMM && l->spec[1] == DTI_EPILOGUE_ADD;
    }
    dt_graph_destroy(g);
    return test_check(good, __FILE__, __LINE__, "%s: %s", device, dt_ctx_error(s->ctx));
}

static void gemm_sums_try(gemm_sums *s, const dt_device_info *info) {
    float y[3][300];
    uint64_t hash[3] = {0, 1};
    uint32_t added[3] = {0};
    for (int i = 0; i < 3; i++) { /* the third: a weight can be bound, not with its bias */
        if (!gemm_sums_run(s, info->id, i == 1, i == 2 ? 2048 : 0, y[i], &hash[i]))
            return;
        added[i] = s->added;
    }
    CHECK(!memcmp(y[0], y[1], sizeof y[0]) && !memcmp(y[0], y[2], sizeof y[0]));
    CHECK(hash[0] == hash[1]);
    CHECK(added[0] == added[1] + 3 && added[2] == 2);
}

TEST(an_addition_to_a_product_costs_no_launch_if_it_is_the_only_reader) {
    gemm_sums s = {.ctx = NULL};
    if (!vulkan_device_count())
        SKIP("no Vulkan driver");
    REQUIRE(!dt_ctx_create(NULL, &s.ctx));
    for (int i = 0; i < dt_ctx_device_count(s.ctx); i++) {
        const dt_device_info *info = dt_ctx_device(s.ctx, i);
        if (info->usable && info->kind != DT_DEVICE_CPU)
            gemm_sums_try(&s, info);
    }
    dt_ctx_destroy(s.ctx);
}

/* One after the other against apart, whose parts alone lie elsewhere. */
static void gemm_try_apart(vulkan_rig *rig, const gemm_case *c, uint32_t variant) {
    gemm_run r;
    if (!gemm_open(&r, c))
        return;
    if (gemm_try_variant(rig, &r, DTI_GEMM_IN_REGISTERS, r.after[0])) {
        gemm_check_sums(&r, r.after[0]);
        gemm_take_apart(&r);
        const uint64_t words = r.places[GEMM_PARTS].offset / DTI_WORD_BYTES;
        if (gemm_try_variant(rig, &r, variant, r.after[1]))
            test_check(!memcmp(r.after[0], r.after[1], DTI_WORD_BYTES * words), __FILE__, __LINE__,
                       "%u x %u x %u: chunks apart, by variant %u, have other bits", c->m, c->n,
                       c->k, variant);
    }
    free(r.before);
}

static void gemm_try_chunks(vulkan_rig *rig) {
    static const gemm_case cases[] = {
        {33, 36, 100, false, true, DTI_EPILOGUE_RELU, 1, 0, true, 48},
        {35, 37, 65, true, false, DTI_EPILOGUE_RELU_GRAD, 1, 1, false, 16},
        {10, 132, 144, false, false, DTI_EPILOGUE_NONE, 1, 0, true, 16},
        {36, 20, 96, false, true, DTI_EPILOGUE_ADD, 1, 0, true, 48},
    };
    const bool first = vulkan_is_quick(rig);
    for (size_t i = 0; i < DTI_COUNT(cases) && !rig->in->options.no_unified; i++) {
        gemm_try_apart(rig, &cases[i], DTI_GEMM_IN_REGISTERS);
        if (first)
            gemm_try_apart(rig, &cases[i], i ? DTI_GEMM_32X64 : DTI_GEMM_32X32);
    }
}

TEST(vulkan_gemm_has_the_same_bits_with_chunks_in_parallel_and_in_sequence) {
    ON_EACH(gemm_try_chunks);
}

static void gemm_try_all(vulkan_rig *rig) {
    /* Whole tiles, ragged ones, and less than one; each layout by fours and one by one. */
    static const gemm_case cases[] = {
        {128, 128, 32, false, false, DTI_EPILOGUE_RELU, 1, 0, true, 0},
        {132, 68, 20, false, true, DTI_EPILOGUE_ADD, 2, 0, true, 0},
        {68, 132, 12, true, false, DTI_EPILOGUE_RELU_GRAD, 1, 0, false, 0},
        {36, 40, 44, true, true, DTI_EPILOGUE_ADD, 1, 0, false, 0},
        {129, 67, 33, false, false, DTI_EPILOGUE_RELU, 1, 0, true, 0},
        {33, 127, 7, false, true, DTI_EPILOGUE_NONE, 1, 1, true, 0},
        {131, 65, 1, true, false, DTI_EPILOGUE_RELU_GRAD, 1, 1, false, 0},
        {63, 129, 17, true, true, DTI_EPILOGUE_NONE, 2, 1, false, 0},
        {65, 68, 84, false, true, DTI_EPILOGUE_RELU, 2, 0, true, 32},
        {66, 35, 49, true, false, DTI_EPILOGUE_RELU_GRAD, 1, 1, false, 16},
        {11, 10, 170, false, true, DTI_EPILOGUE_ADD, 1, 0, true, 16},
        {10, 37, 39, true, false, DTI_EPILOGUE_RELU_GRAD, 2, 1, false, 0},
    };
    /* A pipeline takes lavapipe up to a second, and SwiftShader several. */
    static const uint32_t quick[DTI_COUNT(cases)] = {
        [0] = DTI_GEMM_128X128, [1] = DTI_GEMM_32X64,   [3] = DTI_GEMM_32X64,
        [4] = DTI_GEMM_32X64,   [5] = DTI_GEMM_128X128, [6] = DTI_GEMM_64X64,
        [8] = DTI_GEMM_32X32,   [9] = DTI_GEMM_64X64,   [10] = DTI_GEMM_NARROW_LONG,
        [11] = DTI_GEMM_NARROW};
    const bool all = getenv("DTRAIN_TEST_LONG") != NULL;
    const bool first = vulkan_is_quick(rig);
    if (rig->in->options.no_unified)
        return;
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        for (uint32_t v = 1; v < DTI_GEMM_VARIANTS; v++)
            if (all || (v == quick[i] && (first || i == 3 || i >= 8)))
                gemm_try_case(rig, &cases[i], v);
    }
}

TEST(vulkan_gemm_has_the_same_bits_in_every_variant) {
    ON_EACH(gemm_try_all);
}

/* ---- operands and results of 16 bits */

static uint16_t gemm_half(dt_dtype type, float x) {
    return type == DT_BF16 ? dti_bf16_from_f32(x) : f16_from_f32(x);
}

static uint64_t gemm_elements(const gemm_run *r, int v) {
    return r->places[v].bytes / DTI_WORD_BYTES;
}

/* The bindings of `halves` hold numbers that 16 bits have. */
static void gemm_round(gemm_run *r, uint32_t halves, dt_dtype type) {
    for (int v = GEMM_A; v <= GEMM_BIAS; v++) {
        float *x = r->before + r->places[v].offset / DTI_WORD_BYTES;
        for (uint64_t i = 0; i < gemm_elements(r, v) && halves >> v & 1; i++) {
            const uint16_t half = gemm_half(type, x[i]);
            x[i] = type == DT_BF16 ? dti_f32_from_bf16(half) : dti_f32_from_f16(half);
        }
    }
}

/* `to` is `from`, those bindings in 16 bits from where they lie. */
static void gemm_pack(const gemm_run *r, uint32_t halves, dt_dtype type, const float *from,
                      float *to) {
    memcpy(to, from, DTI_WORD_BYTES * r->words);
    for (int v = GEMM_A; v <= GEMM_BIAS; v++) {
        const uint64_t at = r->places[v].offset / DTI_WORD_BYTES;
        for (uint64_t i = 0; i < gemm_elements(r, v) && halves >> v & 1; i++) {
            const uint16_t half = gemm_half(type, from[at + i]);
            memcpy((char *)(to + at) + i * sizeof half, &half, sizeof half);
        }
        if (halves >> v & 1) /* values after them in the place are not needed */
            memset((char *)(to + at) + 2 * gemm_elements(r, v), 0, 2 * gemm_elements(r, v));
    }
}

/* The variant of 16 bits gives the result of f32 on the same numbers, rounded then. It is equal to
 * the last bit, and no neighbour is touched. */
static void gemm_try_halves(vulkan_rig *rig, const gemm_case *c, uint32_t variant, uint32_t halves,
                            dt_dtype type) {
    gemm_run r;
    if (!gemm_open(&r, c))
        return;
    float *wide = malloc(DTI_WORD_BYTES * r.words), *before = r.before;
    gemm_round(&r, halves, type);
    bool good = wide && gemm_try_variant(rig, &r, DTI_GEMM_IN_REGISTERS, r.after[0]);
    if (good) {
        gemm_pack(&r, halves, type, r.before, wide);
        gemm_pack(&r, halves, type, r.after[0], r.after[1]);
        for (int v = GEMM_A; v <= GEMM_BIAS; v++)
            r.launch[0].dtype[v] = (uint8_t)(halves >> v & 1 ? type : DT_F32);
        r.before = wide;
        good = gemm_try_variant(rig, &r, variant, r.after[0]);
    }
    test_check(good && !memcmp(r.after[0], r.after[1], DTI_WORD_BYTES * r.words), __FILE__,
               __LINE__, "%u x %u x %u, %d%d, bindings %x of %s: variant %u rounds otherwise", c->m,
               c->n, c->k, c->turn_a, c->turn_b, halves, dti_dtype_name(type), variant);
    free(wide);
    free(before);
}

static void gemm_try_all_halves(vulkan_rig *rig) {
    enum { A = 1 << GEMM_A, B = 1 << GEMM_B, C = 1 << GEMM_C, BIAS = 1 << GEMM_BIAS };
    static const struct {
        gemm_case of;
        uint32_t variant, halves;
    } cases[] = {
        {{128, 128, 32, false, false, DTI_EPILOGUE_RELU, 1, 0, true, 0}, DTI_GEMM_128X128, A | B},
        {{132, 68, 20, false, true, DTI_EPILOGUE_NONE, 2, 0, true, 0}, DTI_GEMM_32X64, A | B | C},
        {{68, 132, 12, true, false, DTI_EPILOGUE_RELU_GRAD, 1, 0, false, 0},
         DTI_GEMM_64X64,
         A | B | C | BIAS},
        {{36, 40, 44, true, true, DTI_EPILOGUE_NONE, 1, 0, false, 0}, DTI_GEMM_32X32, B | C},
        {{129, 67, 33, false, false, DTI_EPILOGUE_RELU, 1, 0, true, 0}, DTI_GEMM_32X64, A | B | C},
        {{33, 127, 7, false, true, DTI_EPILOGUE_NONE, 1, 1, true, 0}, DTI_GEMM_64X64, A | C | BIAS},
        {{65, 68, 84, false, true, DTI_EPILOGUE_RELU, 2, 0, true, 32}, DTI_GEMM_32X32, A | B},
        {{10, 37, 39, true, false, DTI_EPILOGUE_RELU_GRAD, 2, 1, false, 0},
         DTI_GEMM_NARROW,
         A | B | C | BIAS},
        {{64, 40, 32, false, false, DTI_EPILOGUE_RELU, 2, 0, true, 0}, 0, A | B | C},
        {{20, 36, 24, false, true, DTI_EPILOGUE_NONE, 1, 0, true, 0}, 0, A | B | C | BIAS},
        {{36, 24, 12, true, false, DTI_EPILOGUE_RELU_GRAD, 1, 0, false, 0}, 0, A | B | C | BIAS},
        {{13, 11, 9, true, true, DTI_EPILOGUE_NONE, 2, 1, true, 0}, 0, B | C},
        {{24, 16, 64, false, true, DTI_EPILOGUE_ADD, 1, 0, false, 16}, 0, A | B | BIAS},
    };
    const bool quick = vulkan_is_quick(rig);
    for (size_t i = 0; i < DTI_COUNT(cases) && !rig->in->options.no_unified; i++)
        if (quick || cases[i].variant == 0)
            gemm_try_halves(rig, &cases[i].of, cases[i].variant, cases[i].halves,
                            i % 3 == 2 ? DT_F16 : DT_BF16);
}

TEST(vulkan_gemm_of_16_bits_has_the_bits_of_f32_rounded_once_in_every_variant) {
    ON_EACH(gemm_try_all_halves);
}

#endif
