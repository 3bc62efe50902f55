/* Parameters and moments in fewer bits: rounding, the dynamic map, and training with them. It has
 * one result on any number of threads, replicas and ranks, and after a resume. */
#include "train/train_model.h"

/* ---- stochastic rounding */

static uint16_t stored_drawn(float x, uint32_t word, int shift) {
    uint16_t y;
    dti_isa_kernels_select(DTI_ISA_BEST)->bf16_draw(&y, &x, 1, &word, shift);
    return y;
}

/* Mean and neighbours of 2^20 draws of the counter generator. */
static void stored_draws(float x) {
    enum { DRAWS = 1 << 20 };
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_PORTABLE);
    uint32_t words[1024];
    const uint32_t bits = dti_bits_from_f32(x);
    const float low = dti_f32_from_bits(bits & 0xFFFF0000u);
    const float high = dti_f32_from_bits((bits & 0xFFFF0000u) + 0x10000u);
    const double share = (double)(bits & 0xFFFFu) / 65536.0;
    long up = 0, other = 0;
    for (int i = 0; i < DRAWS / 2; i++) {
        if (i % 1024 == 0)
            k->philox(words, 1024, 5, (uint64_t)i, 1, DTI_STORED_STREAM(3u, 0u));
        for (int half = 0; half < 2; half++) {
            const float y = dti_f32_from_bf16(stored_drawn(x, words[i % 1024], 16 * half));
            up += y == high && high != low;
            other += y != high && y != low;
        }
    }
    const double sigma = sqrt(DRAWS * share * (1.0 - share));
    CHECK_TEXT(other == 0, "%a: %ld are no neighbours", (double)x, other);
    CHECK_TEXT(fabs((double)up - share * DRAWS) <= 5.0 * sigma + 1e-9, "%a: %ld of %d up, not %.0f",
               (double)x, up, DRAWS, share * DRAWS);
}

TEST(stochastic_rounding_to_bf16_is_unbiased_between_the_two_neighbours) {
    static const float some[] = {1.00001f, 1.5f,       -3.14159f, 0x1.0081p-20f, -0x1.01p100f,
                                 1e-39f,   -0x1p-149f, 0x1p-134f, 0x1.00fffep3f, 0x1.fdfffep126f};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        stored_draws(some[i]);
}

TEST(stochastic_rounding_keeps_bf16_values_infinities_and_nan_and_makes_none) {
    int wrong = 0;
    for (uint32_t i = 0; i < 65536; i++) {
        const bool nan = (i & 0x7FFF) > 0x7F80;
        for (uint32_t r = 0; r < 65536; r += 4369) {
            const uint16_t y = stored_drawn(dti_f32_from_bf16((uint16_t)i), r, 0);
            wrong += nan ? (y & 0x7FFF) <= 0x7F80 : y != i;
        }
    }
    CHECK(wrong == 0);
    for (uint32_t r = 0; r < 65536; r++) /* above the largest: it stays finite */
        wrong += stored_drawn(FLT_MAX, r, 0) != 0x7F7F || stored_drawn(-FLT_MAX, r, 0) != 0xFF7F;
    CHECK(wrong == 0);
    CHECK(stored_drawn(dti_f32_from_bits(0x7F800001u), 0xFFFF, 0) > 0x7F80); /* NaN */
}

/* ---- the dynamic map, as the paper's own code makes it */

static int stored_order(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* create_dynamic_map(signed, 7, 8): the 256 values in order. */
static void stored_map(bool is_signed, double all[256]) {
    int n = 0;
    for (int i = 0; i < 7; i++) {
        const int parts = is_signed ? 1 << i : 1 << (i + 1);
        for (int j = 0; j < parts; j++) {
            const double a = 0.1 + 0.9 * j / parts, b = 0.1 + 0.9 * (j + 1) / parts;
            all[n++] = pow(10.0, i - 6) * 0.5 * (a + b);
            if (is_signed) {
                all[n] = -all[n - 1];
                n++;
            }
        }
    }
    all[n++] = 0.0;
    all[n++] = 1.0;
    REQUIRE(n == 256);
    qsort(all, 256, sizeof *all, stored_order);
}

static double stored_nearest(const double all[256], double x) {
    int best = 0;
    for (int i = 1; i < 256; i++)
        if (fabs(all[i] - x) < fabs(all[best] - x))
            best = i;
    return all[best];
}

/* As a store would keep it: by blocks, with their largest magnitude. */
static void stored_quantize(const double all[256], double *x, int n) {
    for (int at = 0; at < n; at += 256) {
        double scale = 0.0;
        for (int i = at; i < at + 256 && i < n; i++)
            scale = fmax(scale, fabs(x[i]));
        for (int i = at; i < at + 256 && i < n && scale > 0.0; i++)
            x[i] = scale * stored_nearest(all, x[i] / scale);
    }
}

TEST(moments_of_8_bits_are_the_nearest_values_of_the_dynamic_map) {
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_BEST);
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        double all[256];
        dti_map8 map;
        float x[256], y[256];
        uint32_t state = 9, raw[65];
        int seen[256] = {0};
        stored_map(is_signed, all);
        dti_map8_make(&map, is_signed);
        for (int round = 0; round < 400; round++) {
            for (int i = 0; i < 256; i++) {
                const double size = pow(10.0, -8.0 * (train_random(&state) % 65536) / 65536.0);
                x[i] = (float)size * (is_signed && train_random(&state) % 2 ? -3.0f : 3.0f);
            }
            x[round % 256] = 3.0f;
            dti_stored_write(k, raw, x, 256, DT_STATE_8BIT, &map, NULL);
            dti_stored_read(k, y, raw, 256, DT_STATE_8BIT, &map);
            for (int i = 0; i < 256; i++) {
                const double best = stored_nearest(all, (double)x[i] / 3.0);
                const double error = fabs((double)y[i] / 3.0 - (double)x[i] / 3.0);
                CHECK_TEXT(error <=
                               fabs(best - (double)x[i] / 3.0) + 3e-7 * fabs((double)x[i]) + 1e-9,
                           "%g becomes %g, not %g", (double)x[i], (double)y[i], 3.0 * best);
                seen[((uint8_t *)raw)[i]]++;
            }
        }
        int missing = 0;
        for (int i = 0; i < 256; i++)
            missing += !seen[i];
        CHECK(missing == 0);
    }
}

/* What an update of fewer bits computes, of any number of elements. */
TEST(fewer_bits_are_the_same_with_each_instruction_set) {
    static const int sets[] = {DTI_ISA_PORTABLE, DTI_ISA_AVX2, DTI_ISA_AVX512};
    dti_map8 map;
    uint32_t words[128], state = 3, raw[2][3][65];
    float x[256];
    dti_map8_make(&map, true);
    for (int n = 1; n <= 256; n++) {
        const dti_isa_kernels *first = dti_isa_kernels_select(DTI_ISA_BEST);
        for (int i = 0; i < n; i++)
            x[i] = dti_f32_from_bits(train_random(&state) << 12 & 0xBFFFFFFF);
        for (int s = 0; s < 3; s++) {
            const dti_isa_kernels *k = dti_isa_kernels_select(sets[s]);
            k->philox(words, 128, 5, UINT64_MAX - 255 + 64 * (uint64_t)(n % 5), 1, 7);
            for (int way = 0; way < 2; way++) {
                memset(raw[way][s], 0, sizeof raw[way][s]);
                dti_stored_write(k, raw[way][s], x, n, way ? DT_STATE_8BIT : DT_STATE_BF16, &map,
                                 words);
                CHECK_TEXT(k->fma != first->fma || !memcmp(raw[way][s], raw[way][0], 260) ||
                               !dti_isa_kernels_select(DTI_ISA_PORTABLE)->fma,
                           "%s, %d elements", k->name, n);
                CHECK_TEXT(s < 2 || !memcmp(raw[way][2], raw[way][1], 260), "%s, %d elements",
                           k->name, n);
            }
        }
        CHECK(!memcmp(raw[0][0], raw[0][1], 260)); /* no arithmetic of floats */
    }
}

TEST(blocks_of_8_bits_keep_zeros_and_values_that_are_not_finite) {
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_BEST);
    dti_map8 map;
    float x[256] = {0}, y[256];
    uint32_t raw[65] = {0};
    dti_map8_make(&map, true);
    dti_stored_read(k, y, raw, 256, DT_STATE_8BIT, &map); /* memory that nobody wrote */
    CHECK(!memcmp(x, y, sizeof x));
    dti_stored_write(k, raw, x, 256, DT_STATE_8BIT, &map, NULL);
    dti_stored_read(k, y, raw, 256, DT_STATE_8BIT, &map);
    CHECK(!memcmp(x, y, sizeof x));
    x[7] = NAN;
    dti_stored_write(k, raw, x, 256, DT_STATE_8BIT, &map, NULL);
    dti_stored_read(k, y, raw, 256, DT_STATE_8BIT, &map);
    CHECK(isnan(y[7]));
}

/* ---- training */

typedef struct stored_way {
    const char *name;
    dt_dtype parameter;
    dt_optim_desc optim;
} stored_way;

static const stored_way stored_ways[] = {
    {"bf16", DT_BF16, {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 1.0}},
    {"bf16, moments bf16",
     DT_BF16,
     {.kind = DT_OPTIM_ADAMW, .lr = 0.01, .state_dtype = DT_STATE_BF16}},
    {"bf16, moments of 8 bits",
     DT_BF16,
     {.kind = DT_OPTIM_ADAM, .lr = 0.01, .state_dtype = DT_STATE_8BIT}},
    {"moments bf16",
     DT_F32,
     {.kind = DT_OPTIM_SGD, .lr = 0.05, .momentum = 0.9, .state_dtype = DT_STATE_BF16}},
    {"moments of 8 bits",
     DT_F32,
     {.kind = DT_OPTIM_LION, .lr = 1e-3, .state_dtype = DT_STATE_8BIT}},
    {"bf16 with an average",
     DT_BF16,
     {.kind = DT_OPTIM_ADAM, .lr = 0.01, .average = {.kind = DT_AVERAGE_EMA, .decay = 0.9}}},
    {"bf16 with sparse rows",
     DT_BF16,
     {.kind = DT_OPTIM_ADAM,
      .lr = 0.01,
      .state_dtype = DT_STATE_BF16,
      .groups = {{.params = "fc0.*", .sparse = true}}}}};
enum { STORED_WAYS = sizeof stored_ways / sizeof *stored_ways, STORED_STEPS = 6 };

/* kind 1: with batch norm's buffers. Wide, so that some moments are of 8 bits. */
static bool stored_model(train_model *m, int threads, int kind) {
    const dt_ctx_desc ctx = {.no_vulkan = true, .threads = threads};
    *m = (train_model){0};
    if (dt_ctx_create(&ctx, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    dt_tensor h = kind ? train_conv(m->x) : m->x;
    h = dt_relu(dt_nn_linear(h, "fc0", 160));
    m->logits = dt_nn_linear(dt_dropout(h, 0.2f), "fc2", TRAIN_CLASSES);
    m->loss = dt_cross_entropy(m->logits, m->t, NULL);
    m->accuracy = dt_accuracy(m->logits, m->t);
    train_data_fill(&m->data);
    return dt_graph_error(m->graph) == NULL;
}

static dt_trainer *stored_trainer(train_model *m, const stored_way *way, const char *devices,
                                  dt_comm *comm, dt_zero_stage zero) {
    dt_trainer *t = NULL;
    dt_trainer_desc d = train_desc(m);
    d.optim = &way->optim;
    d.parameter_dtype = way->parameter;
    d.devices = devices;
    d.comm = comm;
    d.parallel.batch_slices = 4;
    d.parallel.zero_stage = zero;
    CHECK_TEXT(!dt_trainer_create(m->graph, &d, &t), "%s, %s: %s", way->name, devices,
               dt_ctx_error(m->ctx));
    return t;
}

static uint64_t stored_steps(dt_trainer *t, int steps) {
    uint64_t hash = 0;
    dt_result result = t ? DT_OK : DT_ERROR_INVALID;
    for (int i = 0; i < steps && !result; i++)
        result = dt_trainer_step(t, NULL);
    CHECK(!result && !dt_store_state_hash(dt_trainer_store(t), &hash));
    return hash;
}

static uint64_t stored_run_zero(const stored_way *way, int threads, const char *devices,
                                dt_zero_stage zero) {
    train_model m;
    if (!CHECK_TEXT(stored_model(&m, threads, 1), "model"))
        return 0;
    const uint64_t hash = stored_steps(stored_trainer(&m, way, devices, NULL, zero), STORED_STEPS);
    dt_ctx_destroy(m.ctx);
    return hash;
}

static uint64_t stored_run(const stored_way *way, int threads, const char *devices) {
    return stored_run_zero(way, threads, devices, DT_SHARD_NONE);
}

static bool stored_shards(const stored_way *way) {
    return way->optim.state_dtype != DT_STATE_8BIT;
}

TEST(fewer_bits_give_the_same_bits_on_any_number_of_threads_and_replicas) {
    for (int i = 0; i < STORED_WAYS; i++) {
        const stored_way *way = &stored_ways[i];
        const uint64_t want = stored_run(way, 1, "cpu");
        CHECK_TEXT(stored_run(way, 2, "cpu") == want, "%s, 2 threads", way->name);
        CHECK_TEXT(stored_run(way, 4, "cpu") == want, "%s, 4 threads", way->name);
        CHECK_TEXT(stored_run(way, 1, "cpu:2") == want, "%s, 2 replicas", way->name);
        CHECK_TEXT(stored_run(way, 1, "cpu:4") == want, "%s, 4 replicas", way->name);
        CHECK_TEXT(!stored_shards(way) ||
                       stored_run_zero(way, 1, "cpu:4", DT_SHARD_OPTIMIZER) == want,
                   "%s, 4 replicas that shard the moments", way->name);
    }
}

typedef struct stored_rank {
    const stored_way *way;
    dt_comm *comm;
    dt_zero_stage zero;
    const char *path; /* saves its state */
    uint64_t hash;
} stored_rank;

static void *stored_rank_main(void *arg) {
    stored_rank *r = arg;
    train_model *m = malloc(sizeof *m);
    if (m && stored_model(m, 1, 1)) {
        dt_trainer *t = stored_trainer(m, r->way, "cpu", r->comm, r->zero);
        for (int i = 0; i < STORED_STEPS && t; i++)
            CHECK(!dt_trainer_step(t, NULL));
        CHECK(r->zero || !dt_store_state_hash(dt_trainer_store(t), &r->hash));
        CHECK(!r->path || !dt_trainer_save(t, r->path));
        CHECK(!r->path || !dt_trainer_load(t, r->path));
    }
    dt_ctx_destroy(m->ctx);
    free(m);
    return NULL;
}

TEST(fewer_bits_give_the_same_bits_on_two_ranks) {
    for (int i = 0; i < STORED_WAYS; i++) {
        dt_comm *comms[2];
        pthread_t thread;
        REQUIRE(!dt_comm_create_threads(NULL, 2, comms));
        stored_rank ranks[2] = {{.way = &stored_ways[i], .comm = comms[0]},
                                {.way = &stored_ways[i], .comm = comms[1]}};
        REQUIRE(!pthread_create(&thread, NULL, stored_rank_main, &ranks[1]));
        stored_rank_main(&ranks[0]);
        pthread_join(thread, NULL);
        CHECK_TEXT(ranks[0].hash && ranks[0].hash == ranks[1].hash &&
                       ranks[0].hash == stored_run(&stored_ways[i], 1, "cpu"),
                   "%s", stored_ways[i].name);
        dt_comm_destroy(comms[0]);
        dt_comm_destroy(comms[1]);
    }
}

/* Ranks that shard the moments write a file that one replica goes on from. */
TEST(fewer_bits_of_ranks_that_shard_the_moments_have_the_same_bits) {
    const char *path = "build/test_stored_ranks.safetensors";
    for (int i = 0; i < STORED_WAYS; i++) {
        dt_comm *comms[2];
        pthread_t thread;
        train_model m;
        const stored_way *way = &stored_ways[i];
        if (!stored_shards(way))
            continue;
        REQUIRE(!dt_comm_create_threads(NULL, 2, comms));
        stored_rank ranks[2] = {{way, comms[0], DT_SHARD_OPTIMIZER, path, 0},
                                {way, comms[1], DT_SHARD_OPTIMIZER, path, 0}};
        REQUIRE(!pthread_create(&thread, NULL, stored_rank_main, &ranks[1]));
        stored_rank_main(&ranks[0]);
        pthread_join(thread, NULL);
        REQUIRE(stored_model(&m, 1, 1));
        dt_trainer *t = stored_trainer(&m, way, "cpu", NULL, DT_SHARD_NONE);
        CHECK_TEXT(!dt_trainer_load(t, path), "%s: %s", way->name, dt_ctx_error(m.ctx));
        CHECK_TEXT(stored_steps(t, 0) == stored_run(way, 1, "cpu"), "%s", way->name);
        dt_ctx_destroy(m.ctx);
        dt_comm_destroy(comms[0]);
        dt_comm_destroy(comms[1]);
    }
    remove(path);
}

TEST(fewer_bits_resume_from_a_checkpoint_with_the_same_bits) {
    const char *path = "build/test_stored.safetensors";
    for (int i = 0; i < STORED_WAYS; i++) {
        train_model a, b;
        REQUIRE(stored_model(&a, 1, 1) && stored_model(&b, 1, 1));
        const dt_zero_stage zero =
            stored_shards(&stored_ways[i]) ? DT_SHARD_OPTIMIZER : DT_SHARD_NONE;
        dt_trainer *t = stored_trainer(&a, &stored_ways[i], "cpu", NULL, DT_SHARD_NONE);
        stored_steps(t, 3);
        CHECK(!dt_trainer_save(t, path));
        const uint64_t want = stored_steps(t, 5);
        t = stored_trainer(&b, &stored_ways[i], "cpu:2", NULL, zero);
        CHECK_TEXT(!dt_trainer_load(t, path), "%s: %s", stored_ways[i].name, dt_ctx_error(b.ctx));
        CHECK_TEXT(!dt_trainer_save(t, path) && !dt_trainer_load(t, path), "%s: %s",
                   stored_ways[i].name, dt_ctx_error(b.ctx)); /* shards go into a file again */
        CHECK_TEXT(stored_steps(t, 5) == want, "%s", stored_ways[i].name);
        dt_ctx_destroy(a.ctx);
        dt_ctx_destroy(b.ctx);
    }
    remove(path);
}

/* ---- a program by itself */

typedef struct stored_case {
    train_model m;
    dt_store *store;
    dt_program *program;
    dt_program_desc desc;
} stored_case;

static dt_result stored_open(stored_case *c, const stored_way *way, uint64_t seed) {
    const dt_store_desc d = {.device = "cpu", .seed = seed, .parameter_dtype = way->parameter};
    if (!stored_model(&c->m, 1, 1))
        return DT_ERROR_MEMORY;
    c->desc = (dt_program_desc){.loss = c->m.loss, .optim = &way->optim, .batch = TRAIN_ROWS};
    dt_result result = dt_store_create(c->m.graph, &d, &c->store);
    if (!result)
        result = dt_program_create(c->store, &c->desc, &c->program);
    return result;
}

static double stored_train(stored_case *c, int steps) {
    dt_report r = {0};
    CHECK(!dt_program_write(c->program, c->m.x, c->m.data.x, sizeof c->m.data.x) &&
          !dt_program_write(c->program, c->m.t, c->m.data.t, sizeof c->m.data.t));
    for (int i = 0; i < steps; i++)
        CHECK_TEXT(!dt_program_run(c->program, &(dt_step_desc){.seed = 11}, &r), "%s",
                   dt_ctx_error(c->m.ctx));
    return r.loss;
}

TEST(the_state_of_a_store_in_fewer_bits_is_the_same_after_a_file) {
    const char *path = "build/test_stored_store.safetensors";
    for (int i = 0; i < STORED_WAYS; i++) {
        stored_case a, b;
        uint64_t want, got, then;
        REQUIRE(!stored_open(&a, &stored_ways[i], 1) && !stored_open(&b, &stored_ways[i], 2));
        stored_train(&a, 3);
        CHECK(!dt_store_save_state(a.store, path) && !dt_store_state_hash(a.store, &then));
        CHECK_TEXT(!dt_store_load_state(b.store, path), "%s", dt_ctx_error(b.m.ctx));
        CHECK(!dt_store_state_hash(b.store, &got) && got == then);
        stored_train(&a, 3);
        stored_train(&b, 3);
        CHECK(!dt_store_state_hash(a.store, &want) && !dt_store_state_hash(b.store, &got));
        CHECK_TEXT(want == got && want != then, "%s", stored_ways[i].name);
        dt_ctx_destroy(a.m.ctx);
        dt_ctx_destroy(b.m.ctx);
    }
    remove(path);
}

/* A file may come before any program has said what moments are. */
TEST(a_store_takes_the_type_of_moments_from_a_file_and_refuses_another) {
    const char *path = "build/test_stored_first.safetensors";
    const stored_way *way = &stored_ways[2];
    stored_case a;
    dt_store *later;
    dt_program *p;
    uint64_t want, got;
    const dt_store_desc d = {.device = "cpu", .parameter_dtype = DT_BF16};
    REQUIRE(!stored_open(&a, way, 1));
    stored_train(&a, 2);
    CHECK(!dt_store_save_state(a.store, path) && !dt_store_create(a.m.graph, &d, &later));
    CHECK(!dt_store_load_state(later, path));
    dt_optim_desc other = way->optim;
    other.state_dtype = DT_STATE_F32;
    a.desc.optim = &other;
    CHECK(dt_program_create(later, &a.desc, &p) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(a.m.ctx), ".state_dtype is DT_STATE_F32, and the store's moments "
                                          "are DT_STATE_8BIT already");
    a.desc.optim = &way->optim;
    CHECK(!dt_program_create(later, &a.desc, &p));
    CHECK(!dt_store_state_hash(a.store, &want) && !dt_store_state_hash(later, &got));
    CHECK(want == got);
    dt_store *wide;
    CHECK(!dt_store_create(a.m.graph, &(dt_store_desc){.device = "cpu"}, &wide));
    CHECK(dt_store_load_state(wide, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(a.m.ctx), "use the file's .parameter_dtype and .state_dtype");
    dt_ctx_destroy(a.m.ctx);
    remove(path);
}

/* What a file says of moments is looked at first, and its values last. */
TEST(a_state_that_is_refused_leaves_the_type_of_moments_as_it_was) {
    const char *path = "build/test_stored_refused.safetensors";
    stored_case a;
    dt_store *later;
    dt_program *p;
    float values[TRAIN_CLASSES];
    REQUIRE(!stored_open(&a, &stored_ways[2], 1));
    stored_train(&a, 2);
    const int bias = dt_store_find(a.store, "fc2.bias");
    CHECK(!dt_store_read(a.store, bias, DT_VALUE_MOMENT2, values, sizeof values));
    values[1] = INFINITY;
    CHECK(!dt_store_write(a.store, bias, DT_VALUE_MOMENT2, values, sizeof values));
    const dt_store_desc d = {.device = "cpu", .parameter_dtype = DT_BF16};
    CHECK(!dt_store_save_state(a.store, path) && !dt_store_create(a.m.graph, &d, &later));
    CHECK(dt_store_load_state(later, path) == DT_ERROR_FORMAT);
    CHECK(later->layout.state == DT_STATE_F32);
    a.desc.optim = &stored_ways[1].optim; /* moments of another type */
    CHECK_TEXT(!dt_program_create(later, &a.desc, &p), "%s", dt_ctx_error(a.m.ctx));
    dt_ctx_destroy(a.m.ctx);
    remove(path);
}

/* The average of bf16 parameters is f32, and a program with averages computes with that. */
TEST(an_average_of_bf16_parameters_is_not_rounded) {
    const char *path = "build/test_stored_average.safetensors";
    static float out[2][TRAIN_ROWS * TRAIN_CLASSES], values[8192];
    const dt_save_desc averages = {.averaged = true};
    stored_case a;
    dt_store *stores[2];
    dt_param_info info;
    REQUIRE(!stored_open(&a, &stored_ways[5], 1));
    stored_train(&a, 3);
    CHECK(!dt_store_save_matching(a.store, path, &averages));
    stores[0] = a.store;
    CHECK(!dt_store_create(a.m.graph, &(dt_store_desc){.device = "cpu"}, &stores[1]) &&
          !dt_store_load(stores[1], path));
    for (int i = 0; i < 2; i++) {
        dt_program *p;
        const dt_program_desc d = {.outputs = {a.m.logits}, .batch = TRAIN_ROWS, .averaged = !i};
        REQUIRE(!dt_program_create(stores[i], &d, &p));
        CHECK(!dt_program_write(p, a.m.x, a.m.data.x, sizeof a.m.data.x) &&
              !dt_program_run(p, NULL, NULL) &&
              !dt_program_read(p, a.m.logits, out[i], sizeof out[i]));
    }
    CHECK(!memcmp(out[0], out[1], sizeof out[0]));
    int fine = 0, weight = dt_store_find(a.store, "fc2.weight");
    CHECK(!dt_store_get_param(a.store, weight, &info) && info.elements <= 8192 &&
          !dt_store_read(a.store, weight, DT_VALUE_AVERAGE, values, 4 * info.elements));
    for (uint64_t k = 0; k < info.elements; k++)
        fine += (dti_bits_from_f32(values[k]) & 0xFFFF) != 0;
    CHECK_TEXT(fine > (int)info.elements / 2, "%d of %d have more bits", fine, (int)info.elements);
    dt_ctx_destroy(a.m.ctx);
    remove(path);
}

/* The scale of a block of 8 bits is NaN as one of its moments is. */
TEST(a_state_with_nan_in_moments_of_each_type_is_refused) {
    const char *path = "build/test_stored_nan.safetensors";
    for (int i = 0; i < STORED_WAYS; i++) {
        stored_case a, b;
        dt_param_info info;
        int param = 0;
        REQUIRE(!stored_open(&a, &stored_ways[i], 1) && !stored_open(&b, &stored_ways[i], 2));
        stored_train(&a, 2);
        while (!dt_store_get_param(a.store, param, &info) && info.elements < 4096)
            param++;
        const size_t bytes = (size_t)info.elements * sizeof(float);
        float *values = malloc(bytes);
        CHECK(!dt_store_read(a.store, param, DT_VALUE_MOMENT1, values, bytes));
        values[300] = NAN;
        CHECK(!dt_store_write(a.store, param, DT_VALUE_MOMENT1, values, bytes));
        free(values);
        CHECK(!dt_store_save_state(a.store, path));
        CHECK_TEXT(dt_store_load_state(b.store, path) == DT_ERROR_FORMAT, "%s",
                   stored_ways[i].name);
        CHECK_CONTAINS(dt_ctx_error(b.m.ctx), "NaN or infinite");
        dt_ctx_destroy(a.m.ctx);
        dt_ctx_destroy(b.m.ctx);
    }
    remove(path);
}

TEST(get_info_has_the_bytes_that_are_allocated_of_each_type) {
    static const double moments[STORED_WAYS] = {8, 4, 2.1, 2, 1.05, 12, 4};
    for (int i = 0; i < STORED_WAYS; i++) {
        stored_case c;
        dt_program_info info;
        const stored_way *way = &stored_ways[i];
        const uint64_t each = way->parameter == DT_BF16 ? 2 : 4;
        uint64_t trained = 0, large = 0;
        REQUIRE(!stored_open(&c, way, 1));
        dt_program_get_info(c.program, &info);
        for (int k = 0; k < dt_store_param_count(c.store); k++) {
            dt_param_info p;
            CHECK(!dt_store_get_param(c.store, k, &p));
            CHECK(p.dtype == (p.buffer ? DT_F32 : way->parameter));
            trained += (p.elements + 255) / 256 * 256;
            large += p.elements >= 4096 ? p.elements : 0;
        }
        CHECK(info.param_bytes >= each * trained && info.param_bytes <= each * (trained + 512));
        CHECK(info.param_bytes ==
              ((dti_cpu_memory *)(void *)c.store->memories[DTI_ARENA_PARAM])->bytes);
        CHECK(info.state_bytes ==
              ((dti_cpu_memory *)(void *)c.store->memories[DTI_ARENA_STATE])->bytes);
        CHECK(large > 0 && (double)info.state_bytes >= 0.9 * moments[i] * (double)large);
        CHECK((double)info.state_bytes <=
              moments[i] * (double)large + fmax(8, moments[i]) * (double)(trained - large) + 16384);
        dt_ctx_destroy(c.m.ctx);
    }
}

/* ---- what is learnt */

static double stored_loss(const stored_way *way, uint64_t seed) {
    stored_case c;
    if (!CHECK_TEXT(!stored_open(&c, way, seed), "store"))
        return INFINITY;
    double sum = 0;
    stored_train(&c, 15);
    for (int i = 0; i < 10; i++)
        sum += stored_train(&c, 1) / 10;
    dt_ctx_destroy(c.m.ctx);
    return sum;
}

TEST(bf16_parameters_learn_as_well_as_f32_does_with_other_seeds) {
    stored_way plain = stored_ways[0];
    double least = INFINITY, most = 0;
    plain.parameter = DT_F32;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const double loss = stored_loss(&plain, seed);
        least = fmin(least, loss);
        most = fmax(most, loss);
    }
    for (int i = 0; i < STORED_WAYS && stored_ways[i].parameter == DT_BF16; i++) {
        const double loss = stored_loss(&stored_ways[i], 1);
        CHECK_TEXT(loss <= most, "%s: loss %g, f32 has %g to %g", stored_ways[i].name, loss, least,
                   most);
    }
}

/* ---- Adam with moments of 8 bits, in float64 */

enum { STORED_N = 5000 };

TEST(adam_with_moments_of_8_bits_follows_the_published_algorithm) {
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *s;
    dt_program *p;
    double maps[2][256], w[STORED_N] = {0}, m[STORED_N] = {0}, v[STORED_N] = {0};
    float c[STORED_N], got[3][STORED_N];
    uint32_t state = 5;
    int far = 0;
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.1, .state_dtype = DT_STATE_8BIT};
    stored_map(false, maps[0]);
    stored_map(true, maps[1]);
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 1}, &ctx) &&
            !dt_graph_create(ctx, &g));
    dt_tensor x = dt_param(g, "w", dt_dims(STORED_N), (dt_init){.kind = DT_INIT_CONSTANT});
    dt_tensor slope = dt_input_shared(g, "c", DT_F32, dt_dims(STORED_N));
    dt_tensor loss = dt_mean_loss(dt_sum(dt_mul(x, slope), dt_dims(0), false));
    REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &s) &&
            !dt_program_create(s, &(dt_program_desc){.loss = loss, .optim = &adam}, &p));
    for (int step = 1; step <= 5; step++) {
        for (int i = 0; i < STORED_N; i++)
            c[i] = ((float)(train_random(&state) % 2001) - 1000.0f) / 1000.0f + 0.3f;
        CHECK(!dt_program_write(p, slope, c, sizeof c) && !dt_program_run(p, NULL, NULL));
        for (int i = 0; i < STORED_N; i++) {
            const double b1 = 1 - pow(0.9, step), b2 = 1 - pow(0.999, step), d = c[i];
            m[i] = 0.9 * m[i] + 0.1 * d;
            v[i] = 0.999 * v[i] + 0.001 * d * d;
            w[i] -= 0.1 / b1 * m[i] / (sqrt(v[i]) / sqrt(b2) + 1e-8);
        }
        stored_quantize(maps[1], m, STORED_N);
        stored_quantize(maps[0], v, STORED_N);
    }
    for (int k = 0; k < 3; k++) {
        const dt_value_kind kind = k ? (dt_value_kind)(DT_VALUE_MOMENT1 + k - 1) : DT_VALUE_PARAM;
        const double *want = k == 0 ? w : k == 1 ? m : v;
        CHECK(!dt_store_read(s, 0, kind, got[k], sizeof got[k]));
        for (int i = 0; i < STORED_N; i++) /* a tie that f32 decides otherwise is another code */
            far += fabs((double)got[k][i] - want[i]) > 1e-5 + 1e-3 * fabs(want[i]);
    }
    CHECK_TEXT(far <= STORED_N / 500, "%d of %d differ", far, 3 * STORED_N);
    dt_ctx_destroy(ctx);
}

/* ---- files and the host */

TEST(a_store_of_bf16_loads_f32_to_the_nearest_and_saves_bf16) {
    const char *wide = "build/test_stored_f32.safetensors", *half = "build/test_stored_bf16.st";
    const stored_way plain = {"f32", DT_F32, stored_ways[0].optim};
    stored_case a, b, c;
    uint64_t hash[2];
    dt_safetensors *file;
    dt_safetensors_tensor x;
    REQUIRE(!stored_open(&a, &plain, 1) && !stored_open(&b, &stored_ways[0], 2) &&
            !stored_open(&c, &stored_ways[0], 3));
    CHECK(!dt_store_save(a.store, wide) && !dt_store_load(b.store, wide));
    for (int i = 0; i < dt_store_param_count(a.store); i++) {
        dt_param_info p;
        float from[8192], to[8192];
        CHECK(!dt_store_get_param(b.store, i, &p));
        REQUIRE(p.elements <= 8192);
        CHECK(!dt_store_read(a.store, i, DT_VALUE_PARAM, from, 4 * p.elements) &&
              !dt_store_read(b.store, i, DT_VALUE_PARAM, to, 4 * p.elements));
        for (uint64_t k = 0; k < p.elements; k++)
            CHECK(to[k] == (p.buffer ? from[k] : dti_f32_from_bf16(dti_bf16_from_f32(from[k]))));
    }
    stored_train(&b, 2);
    CHECK(!dt_store_save(b.store, half) && !dt_store_load(c.store, half));
    CHECK(!dt_store_hash(b.store, &hash[0]) && !dt_store_hash(c.store, &hash[1]) &&
          hash[0] == hash[1]);
    CHECK(!dt_safetensors_open(a.m.ctx, half, &file) &&
          !dt_safetensors_get_tensor(file, dt_safetensors_find(file, "fc0.weight"), &x));
    CHECK(!strcmp(x.dtype, "BF16"));
    dt_safetensors_close(file);
    dt_ctx_destroy(a.m.ctx);
    dt_ctx_destroy(b.m.ctx);
    dt_ctx_destroy(c.m.ctx);
    remove(wide);
    remove(half);
}

/* ---- a step's values */

/* Loss, outputs and gradients are those of f32 parameters that have the same values. */
static void stored_like_wide(int kind, const dt_program_desc *more) {
    const char *path = "build/test_stored_like.safetensors";
    train_model m;
    dt_store *s[2];
    dt_program *p[2];
    dt_report r[2] = {{0}};
    static float out[2][TRAIN_ROWS * TRAIN_CLASSES], w[2][8192];
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, kind));
    for (int i = 0; i < 2; i++) {
        const dt_store_desc d = {.device = "cpu", .parameter_dtype = i ? DT_F32 : DT_BF16};
        dt_program_desc desc = *more;
        desc.loss = m.loss;
        desc.outputs[0] = m.logits;
        desc.batch = TRAIN_ROWS;
        REQUIRE(!dt_store_create(m.graph, &d, &s[i]) && !(i && dt_store_load(s[1], path)));
        CHECK_TEXT(!dt_program_create(s[i], &desc, &p[i]), "%s", dt_ctx_error(m.ctx));
        CHECK(!dt_program_write(p[i], m.x, m.data.x, sizeof m.data.x) &&
              !dt_program_write(p[i], m.t, m.data.t, sizeof m.data.t));
        CHECK(i || !dt_store_save(s[0], path));
        CHECK(!dt_program_run(p[i], NULL, &r[i]) &&
              !dt_program_read(p[i], m.logits, out[i], sizeof out[i]));
    }
    CHECK(r[0].loss == r[1].loss && !memcmp(out[0], out[1], sizeof out[0]));
    for (int k = 0; k < dt_store_param_count(s[0]); k++) {
        dt_param_info info;
        CHECK(!dt_store_get_param(s[0], k, &info));
        if (info.buffer || info.frozen)
            continue;
        for (int i = 0; i < 2; i++)
            CHECK(!dt_store_read(s[i], k, DT_VALUE_GRADIENT, w[i], 4 * info.elements));
        CHECK_TEXT(!memcmp(w[0], w[1], 4 * info.elements), "%s", info.name);
    }
    dt_ctx_destroy(m.ctx);
    remove(path);
}

TEST(a_step_with_bf16_parameters_has_the_bits_of_f32_ones_with_their_values) {
    for (int kind = 0; kind <= TRAIN_PARTS; kind++)
        stored_like_wide(kind, &(dt_program_desc){.gradients = true});
}

/* An output that is a parameter, and nodes that the application has in 16 bits. */
TEST(the_application_reads_and_writes_a_bf16_parameter_as_f32) {
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *s;
    dt_program *p;
    float w[6], y[6], z[6];
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) && !dt_graph_create(ctx, &g));
    dt_tensor x = dt_param(g, "w", dt_dims(6), (dt_init){.kind = DT_INIT_NORMAL, .b = 1.0f});
    dt_tensor half = dt_cast(dt_square(dt_cast(x, DT_BF16)), DT_F32);
    REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = "cpu", .parameter_dtype = DT_BF16}, &s));
    CHECK_TEXT(!dt_program_create(s, &(dt_program_desc){.outputs = {x, half}}, &p), "%s",
               dt_ctx_error(ctx));
    CHECK(!dt_program_run(p, NULL, NULL) && !dt_store_read(s, 0, DT_VALUE_PARAM, w, sizeof w) &&
          !dt_program_read(p, x, y, sizeof y) && !dt_program_read(p, half, z, sizeof z));
    CHECK(!memcmp(w, y, sizeof w));
    for (int i = 0; i < 6; i++)
        CHECK(z[i] == dti_f32_from_bf16(dti_bf16_from_f32(w[i] * w[i])));
    dt_ctx_destroy(ctx);
}

/* ---- other ways through a store */

TEST(a_store_in_fewer_bits_is_restored_reset_and_copied) {
    for (int i = 0; i < STORED_WAYS; i++) {
        const stored_way plain = {"f32", DT_F32, {.kind = DT_OPTIM_ADAM}};
        stored_case c;
        dt_store *copy, *wide;
        uint64_t hash[3], step;
        REQUIRE(!stored_open(&c, &stored_ways[i], 1));
        CHECK(!dt_store_state_hash(c.store, &hash[0]));
        stored_train(&c, 2);
        CHECK(!dt_store_state_hash(c.store, &hash[1]));
        CHECK_TEXT(!dt_store_restore(c.store, "cpu", &step), "%s", dt_ctx_error(c.m.ctx));
        CHECK(!dt_store_state_hash(c.store, &hash[2]) && hash[1] == hash[2] && step == 2);
        const dt_store_desc d = {.device = "cpu", .parameter_dtype = stored_ways[i].parameter};
        CHECK(!dt_store_create(c.m.graph, &d, &copy) && !dt_store_copy(c.store, copy));
        CHECK(!dt_store_hash(c.store, &hash[1]) && !dt_store_hash(copy, &hash[2]));
        CHECK(hash[1] == hash[2]);
        CHECK(!dt_store_create(c.m.graph, &(dt_store_desc){.device = "cpu"}, &wide));
        if (stored_ways[i].parameter != plain.parameter) {
            CHECK(dt_store_copy(c.store, wide) == DT_ERROR_UNSUPPORTED);
            CHECK_CONTAINS(dt_ctx_error(c.m.ctx), "bf16 in one store and f32 in the other");
        }
        CHECK(!dt_store_reset(c.store, DT_RESET_ALL) && !dt_store_state_hash(c.store, &hash[1]));
        CHECK_TEXT(hash[0] == hash[1], "%s", stored_ways[i].name);
        dt_ctx_destroy(c.m.ctx);
    }
}

TEST(the_host_reads_and_writes_values_in_fewer_bits_as_floats) {
    for (int i = 0; i < STORED_WAYS; i++) {
        static float x[8192], y[8192];
        stored_case c;
        dt_param_info p;
        REQUIRE(!stored_open(&c, &stored_ways[i], 1));
        stored_train(&c, 2);
        const int at = dt_store_find(c.store, "fc0.weight");
        REQUIRE(!dt_store_get_param(c.store, at, &p) && p.elements <= 8192);
        for (int kind = 0; kind <= DT_VALUE_MOMENT1; kind += DT_VALUE_MOMENT1) {
            const size_t bytes = 4 * (size_t)p.elements;
            for (uint64_t k = 0; k < p.elements; k++)
                x[k] = sinf((float)k);
            CHECK(!dt_store_write(c.store, at, (dt_value_kind)kind, x, bytes) &&
                  !dt_store_read(c.store, at, (dt_value_kind)kind, y, bytes));
            double worst = 0;
            for (uint64_t k = 0; k < p.elements; k++)
                worst = fmax(worst, fabs((double)y[k] - sin((double)k)));
            CHECK_TEXT(worst <= 0.01, "%s: %g", stored_ways[i].name, worst);
        }
        dt_ctx_destroy(c.m.ctx);
    }
}

/* ---- what is refused */

static void stored_refused(const char *text, dt_dtype parameter, dt_optim_desc optim,
                           const char *devices, int zero) {
    train_model m;
    dt_trainer *t;
    REQUIRE(stored_model(&m, 1, 0));
    dt_trainer_desc d = train_desc(&m);
    d.optim = &optim;
    d.parameter_dtype = parameter;
    d.devices = devices;
    d.parallel.zero_stage = (dt_zero_stage)zero;
    CHECK_TEXT(dt_trainer_create(m.graph, &d, &t) != DT_OK, "%s", text);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), text);
    dt_ctx_destroy(m.ctx);
}

TEST(fewer_bits_refuse_by_name_settings_that_they_cannot_be_combined_with) {
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM};
    dt_optim_desc o = adam;
    stored_refused(".parameter_dtype is 1; it must be DT_F32 or DT_BF16", DT_I32, adam, "cpu", 0);
    stored_refused(".parameter_dtype = DT_BF16 cannot be combined with .parallel.zero_stage = 2",
                   DT_BF16, adam, "cpu:2", 2);
    o.state_dtype = DT_STATE_8BIT;
    stored_refused("DT_STATE_8BIT cannot be combined with .parallel.zero_stage = 1", DT_F32, o,
                   "cpu:2", 1);
    o.state_dtype = (dt_state_dtype)3;
    stored_refused(".state_dtype is 3; it must be DT_STATE_F32, DT_STATE_BF16 or DT_STATE_8BIT",
                   DT_F32, o, "cpu", 0);
    o = (dt_optim_desc){.kind = DT_OPTIM_ADAGRAD, .state_dtype = DT_STATE_BF16};
    stored_refused("Adagrad needs .state_dtype = DT_STATE_F32", DT_F32, o, "cpu", 0);
    o = (dt_optim_desc){.kind = DT_OPTIM_MUON};
    stored_refused("cannot be combined with an optimizer of whole parameters", DT_BF16, o, "cpu",
                   0);
    o = adam;
    o.average.kind = DT_AVERAGE_EMA;
    o.state_dtype = DT_STATE_BF16;
    stored_refused(".optim->state_dtype cannot be combined with .optim->average", DT_BF16, o, "cpu",
                   0);
    o = adam;
    o.groups[0] = (dt_optim_group){.params = "fc0.*", .sparse = true};
    o.state_dtype = DT_STATE_8BIT;
    stored_refused(".groups with .sparse cannot be combined with DT_STATE_8BIT", DT_BF16, o, "cpu",
                   0);
}
