/* Predictions between the segments of an open step (dt_program_desc.concurrent), and copies from
 * store to store. Random models, optimizers and orders of calls. Predictions have the bits of a
 * store that holds the last whole step. The step has the bits of one by itself. Included by main.c,
 * after test_frame.c. */

enum { CONC_BATCH = 6, CONC_ROWS = 3, CONC_IN = 8, CONC_OUT = 4 };

typedef struct conc_case {
    dt_ctx *ctx;
    vulkan_log log;
    dt_tensor x, y, loss;
    dt_store *store, *ahead;  /* the second is a whole step further */
    dt_program *train, *next; /* of each */
    dt_program *predict[3], *want;
    int predicts;
    uint64_t seed, hash[2]; /* state before the step, and after it */
    float before[CONC_ROWS * CONC_OUT], after[CONC_ROWS * CONC_OUT];
    int step, seen[2], committed, abandoned;
} conc_case;

static uint32_t conc_draw(conc_case *c, uint32_t count) {
    c->seed = c->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(c->seed >> 33) % count;
}

/* ---- A random model, and an optimizer for it */

static dt_tensor conc_layer(conc_case *c, dt_tensor h, int i, int width) {
    char name[16];
    snprintf(name, sizeof name, "l%d", i);
    h = dt_nn_linear(h, name, width);
    snprintf(name, sizeof name, "n%d", i);
    switch (conc_draw(c, 5)) {
    case 0: h = dt_nn_batch_norm(h, name, NULL); break;
    case 1: h = dt_nn_layer_norm(h, name, 1); break;
    case 2: h = dt_dropout(h, 0.25f); break;
    default: break;
    }
    return conc_draw(c, 2) ? dt_relu(h) : dt_tanh(h);
}

static void conc_net(conc_case *c, dt_graph *g) {
    c->x = dt_input(g, "x", DT_F32, dt_dims(CONC_IN));
    dt_tensor h = dt_nn_batch_norm(c->x, "first", NULL);
    const int layers = 1 + (int)conc_draw(c, 3);
    for (int i = 0; i < layers; i++)
        h = conc_layer(c, h, i, 3 + (int)conc_draw(c, 40));
    c->y = dt_nn_linear(h, "last", CONC_OUT);
    c->loss = dt_mean_loss(dt_mul(c->y, c->y));
}

static dt_optim_desc conc_optim(conc_case *c) {
    static const dt_optim_kind kinds[] = {DT_OPTIM_SGD, DT_OPTIM_ADAM, DT_OPTIM_ADAMW,
                                          DT_OPTIM_LAMB, DT_OPTIM_MUON};
    dt_optim_desc d = {.kind = kinds[conc_draw(c, DTI_COUNT(kinds))], .lr = 0.02};
    d.momentum = d.kind == DT_OPTIM_SGD ? 0.9 : 0;
    d.clip_norm = conc_draw(c, 2) ? 1.0 : 0;
    if (conc_draw(c, 2))
        d.average = (dt_average){DT_AVERAGE_EMA, 0.9, false, 0, 0};
    return d;
}

/* ---- The two stores */

static dt_result conc_train_write(const conc_case *c, dt_program *p) {
    float x[CONC_BATCH * CONC_IN];
    for (int i = 0; i < CONC_BATCH * CONC_IN; i++)
        x[i] = (float)dti_normal(9, (uint64_t)(c->step * 1000 + i), 1);
    return dt_program_write(p, c->x, x, sizeof x);
}

static dt_result conc_rows_write(const conc_case *c, dt_program *p) {
    float x[CONC_ROWS * CONC_IN];
    for (int i = 0; i < CONC_ROWS * CONC_IN; i++)
        x[i] = (float)dti_normal(11, (uint64_t)i, 2);
    return dt_program_write(p, c->x, x, sizeof x);
}

/* The store that is ahead makes one more step. */
static void conc_go_ahead(conc_case *c) {
    memcpy(c->before, c->after, sizeof c->before);
    c->hash[0] = c->hash[1];
    CHECK(!conc_train_write(c, c->next) && !dt_program_run(c->next, NULL, NULL));
    CHECK(!dt_store_state_hash(c->ahead, &c->hash[1]) && c->hash[1] != c->hash[0]);
    CHECK(!dt_program_run(c->want, NULL, NULL));
    CHECK(!dt_program_read(c->want, c->y, c->after, sizeof c->after));
}

static bool conc_programs(conc_case *c) {
    const dt_optim_desc optim = conc_optim(c);
    const dt_precision precision = c->seed / 977 % 3 == 1 ? DT_PRECISION_BF16 : DT_PRECISION_F32;
    const dt_program_desc train = {.label = "train",
                                   .loss = c->loss,
                                   .batch = CONC_BATCH,
                                   .optim = &optim,
                                   .precision = precision};
    const bool averaged = optim.average.kind && conc_draw(c, 2);
    dt_program_desc predict = {.label = "predict",
                               .outputs = {c->y},
                               .batch = CONC_ROWS,
                               .averaged = averaged,
                               .precision = precision,
                               .in_flight = 1 + (int)conc_draw(c, 2)};
    bool good = !dt_program_create(c->store, &train, &c->train) &&
                !dt_program_create(c->ahead, &train, &c->next) &&
                !dt_program_create(c->ahead, &predict, &c->want);
    predict.concurrent = true;
    c->predicts = 1 + (int)conc_draw(c, 3);
    for (int i = 0; i < c->predicts && good; i++)
        good = !dt_program_create(c->store, &predict, &c->predict[i]) &&
               !conc_rows_write(c, c->predict[i]);
    return good && !conc_rows_write(c, c->want);
}

static bool conc_mixes; /* both kinds of devices in one context */

static bool conc_open(conc_case *c, const char *device, uint64_t seed) {
    dt_graph *g;
    const bool cpu = !strcmp(device, "cpu");
    const dt_store_desc store = {.device = device, .seed = seed};
    *c = (conc_case){.seed = seed * 977 + 1};
    const dt_ctx_desc d = {.logger = {vulkan_listen, &c->log},
                           .no_vulkan = cpu && !conc_mixes,
                           .validation = !cpu && seed == 0,
                           .threads = 1 + (int)(seed % 2)};
    if (dt_ctx_create(&d, &c->ctx) || dt_graph_create(c->ctx, &g))
        return false;
    conc_net(c, g);
    if (dt_store_create(g, &store, &c->store) || dt_store_create(g, &store, &c->ahead) ||
        !conc_programs(c))
        return false;
    return !dt_program_run(c->want, NULL, NULL) && !dt_store_state_hash(c->ahead, &c->hash[1]) &&
           !dt_program_read(c->want, c->y, c->after, sizeof c->after);
}

/* ---- A step, and what is asked meanwhile */

static void conc_same(conc_case *c, dt_program *p, bool after) {
    float y[CONC_ROWS * CONC_OUT];
    CHECK(!dt_program_read(p, c->y, y, sizeof y));
    CHECK(!memcmp(y, after ? c->after : c->before, sizeof y));
    c->seen[after]++;
}

static void conc_advance(conc_case *c, dt_step_state *state) {
    static const double ms[] = {1e-6, 1e-6, 0.02, 0.2};
    if (conc_draw(c, 6))
        CHECK(!dt_program_advance_for(c->train, ms[conc_draw(c, 4)], state));
    else
        CHECK(!dt_program_advance(c->train, state));
}

/* Whether what is asked now sees the step. */
static bool conc_sees(const conc_case *c) {
    return dti_drive_is_open(c->train) && dti_step_commits(c->train);
}

static void conc_predict(conc_case *c, dt_step_state *state) {
    dt_program *p = c->predict[conc_draw(c, (uint32_t)c->predicts)];
    const bool after = conc_sees(c), starts = conc_draw(c, 3) == 0;
    if (conc_draw(c, 3) == 0)
        CHECK(!conc_rows_write(c, p));
    CHECK(!(starts ? dt_program_start(p, NULL) : dt_program_run(p, NULL, NULL)));
    CHECK(!after || c->train->now->at == c->train->now->end);
    for (uint32_t i = starts ? conc_draw(c, 4) : 0; i > 0 && *state != DT_STEP_DONE; i--)
        conc_advance(c, state);
    CHECK(!starts || !dt_program_wait(p, NULL));
    conc_same(c, p, after);
}

static void conc_step(conc_case *c) {
    dt_step_state state = DT_STEP_READY;
    dt_report report = {0};
    uint64_t hash = 0;
    const bool cancels = conc_draw(c, 3) == 0;
    CHECK(!conc_train_write(c, c->train) && !dt_program_begin(c->train, NULL));
    while (state != DT_STEP_DONE && !(cancels && conc_draw(c, 20) == 0)) {
        if (conc_draw(c, 3))
            conc_advance(c, &state);
        else
            conc_predict(c, &state);
    }
    if (conc_draw(c, 2))
        conc_predict(c, &state);
    CHECK(!(cancels ? dt_program_cancel(c->train, &report) : dt_program_end(c->train, &report)));
    CHECK(!dt_store_state_hash(c->store, &hash) && hash == c->hash[report.committed]);
    c->committed += report.committed;
    c->abandoned += !report.committed;
    if (!report.committed)
        return;
    CHECK(!dt_program_run(c->predict[0], NULL, NULL));
    conc_same(c, c->predict[0], true);
    c->step++;
    conc_go_ahead(c);
}

typedef struct conc_seen {
    int before, after, committed, abandoned;
} conc_seen;

static bool conc_all(const conc_seen *s) {
    return s->before > 5 && s->after > 5 && s->committed > 1 && s->abandoned > 1;
}

static void conc_seed(const char *device, uint64_t seed, int steps, conc_seen *s) {
    conc_case c;
    const bool open = conc_open(&c, device, seed);
    CHECK(open);
    if (open)
        conc_go_ahead(&c);
    for (int i = 0; i < steps && open; i++)
        conc_step(&c);
    s->before += c.seen[0];
    s->after += c.seen[1];
    s->committed += c.committed;
    s->abandoned += c.abandoned;
    CHECK(!c.log.validation);
    if (!open)
        printf("%s, seed %u: %s\n", device, (unsigned)seed, dt_ctx_error(c.ctx));
    dt_ctx_destroy(c.ctx);
}

/* How far a part of a step gets depends on time: more seeds, until each kind was seen. */
static void conc_machine(const char *device, uint64_t seeds, int steps) {
    conc_seen s = {0};
    for (uint64_t seed = 0; seed < seeds || (!conc_all(&s) && seed < 8 * seeds); seed++)
        conc_seed(device, seed, steps, &s);
    CHECK(conc_all(&s));
    if (!conc_all(&s))
        printf("%s: %d predictions of before, %d of after, %d steps, %d abandoned\n", device,
               s.before, s.after, s.committed, s.abandoned);
}

TEST(predictions_between_parts_of_a_step_have_the_bits_of_whole_steps) {
    conc_machine("cpu", 24, 8);
}

TEST(predictions_between_parts_of_a_step_have_the_bits_of_whole_steps_on_vulkan) {
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    conc_machine("vulkan:0", 4, 5);
}

/* ---- What is refused, and what it takes */

TEST(a_program_that_may_not_run_during_an_open_step_is_refused_with_the_field) {
    conc_case c;
    dt_program *plain, *program;
    REQUIRE(conc_open(&c, "cpu", 3));
    REQUIRE(!dt_program_create(c.store, &(dt_program_desc){.outputs = {c.y}, .batch = CONC_ROWS},
                               &plain));
    CHECK(!conc_rows_write(&c, plain) && !conc_train_write(&c, c.train));
    CHECK(!dt_program_begin(c.train, NULL));
    CHECK(dt_program_run(plain, NULL, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".concurrent");
    CHECK(dt_program_begin(c.predict[0], NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "dt_program_run");
    CHECK(!dt_program_cancel(c.train, NULL) && !dt_program_begin(c.predict[0], NULL));
    CHECK(dt_program_begin(c.train, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "'predict'");
    CHECK(dt_store_reset(c.store, DT_RESET_ALL) == DT_ERROR_INVALID);
    CHECK(!dt_program_cancel(c.predict[0], NULL));
    const dt_program_desc desc = {
        .loss = c.loss, .batch = 2, .optim = &(dt_optim_desc){0}, .concurrent = true};
    CHECK(dt_program_create(c.store, &desc, &program) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".concurrent");
    dt_ctx_destroy(c.ctx);
}

TEST(transients_of_a_concurrent_program_are_separate_and_others_use_no_more) {
    conc_case c;
    dt_program *program;
    dt_program_info shared, own;
    REQUIRE(conc_open(&c, "cpu", 5));
    dt_program_desc desc = {.outputs = {c.y}, .batch = 4096, .concurrent = true, .in_flight = 2};
    const uint64_t bytes = c.store->transient_bytes;
    REQUIRE(!dt_program_create(c.store, &desc, &program));
    dt_program_get_info(program, &own);
    CHECK(c.store->transient_bytes == bytes && own.transient_bytes > bytes);
    const dti_memory *one = program->step_slots[0].memories[DTI_ARENA_TRANSIENT];
    const dti_memory *two = program->step_slots[1].memories[DTI_ARENA_TRANSIENT];
    const dti_backend *b = c.store->device->backend;
    CHECK(one != c.store->memories[DTI_ARENA_TRANSIENT] && one != two);
    CHECK(b->memory_bytes(one) + b->memory_bytes(two) == own.transient_bytes);
    desc.concurrent = false;
    REQUIRE(!dt_program_create(c.store, &desc, &program));
    dt_program_get_info(program, &shared);
    CHECK(2 * shared.transient_bytes == own.transient_bytes);
    CHECK(c.store->transient_bytes == shared.transient_bytes);
    dt_ctx_destroy(c.ctx);
}

/* ---- dt_store_copy */

static void conc_param_hash(dt_store *s, uint64_t *hash) {
    CHECK(!dt_store_hash(s, hash));
}

/* Also while `from` has a step under way: the values of the last whole one. */
static void conc_copies(const char *from, const char *to) {
    conc_case c;
    dt_store *copy;
    dt_program *predict;
    dt_step_state state = DT_STEP_READY;
    float y[CONC_ROWS * CONC_OUT];
    uint64_t before, after, got;
    REQUIRE(conc_open(&c, from, 7));
    REQUIRE(!dt_store_create(c.store->graph, &(dt_store_desc){.device = to, .seed = 4}, &copy));
    const dt_program_desc desc = {
        .outputs = {c.y}, .batch = CONC_ROWS, .precision = c.want->code->desc.precision};
    REQUIRE(!dt_program_create(copy, &desc, &predict) && !conc_rows_write(&c, predict));
    conc_go_ahead(&c);
    conc_param_hash(c.store, &before);
    conc_param_hash(c.ahead, &after);
    conc_param_hash(copy, &got);
    CHECK(got != before && before != after);
    CHECK(!conc_train_write(&c, c.train) && !dt_program_begin(c.train, NULL));
    while (!dti_step_commits(c.train)) {
        CHECK(!dt_program_advance_for(c.train, 1e-6, &state));
        if (dti_step_commits(c.train) || conc_draw(&c, 8))
            continue;
        CHECK(!dt_store_copy(c.store, copy));
        conc_param_hash(copy, &got);
        CHECK(got == before);
    }
    CHECK(!dt_store_copy(c.store, copy) && c.train->now->at == c.train->now->end);
    conc_param_hash(copy, &got);
    CHECK(got == after && !dt_program_end(c.train, NULL));
    CHECK(!dt_program_run(predict, NULL, NULL) && !dt_program_read(predict, c.y, y, sizeof y));
    if (!strcmp(from, to) && !c.want->code->desc.averaged)
        CHECK(!memcmp(y, c.after, sizeof y));
    CHECK(!c.log.validation);
    dt_ctx_destroy(c.ctx);
}

TEST(a_copied_store_has_the_parameters_and_statistics_of_the_last_whole_step) {
    static const char *const devices[] = {"cpu", "vulkan:0"};
    const size_t count = ahead_has_vulkan() ? 2 : 1;
    conc_mixes = count > 1;
    for (size_t i = 0; i < count * count; i++)
        conc_copies(devices[i / count], devices[i % count]);
    conc_mixes = false;
}
