/* Parameter servers, over TCP on this host: with staleness 0 the bits of a synchronous trainer,
 * whatever computes; with more, bounded staleness and a model that learns; workers that come late,
 * die, or find a NaN; servers that die and are resumed; wrong keys and other models. */
#include "parallel/serve_run.h"

static void serve_check(serve_case c, const char *what) {
    serve_run r;
    const uint64_t wanted = serve_wanted(&c);
    for (c.workers = 1; c.workers <= 4; c.workers++) {
        const uint64_t hash = serve_bits(&c, &r);
        CHECK_TEXT(hash && hash == wanted, "%s, %d workers, %d batch slices: %016llx, not %016llx",
                   what, c.workers, c.batch_slices, (unsigned long long)hash,
                   (unsigned long long)wanted);
    }
}

TEST(server_with_staleness_0_gives_the_bits_of_a_synchronous_trainer) {
    serve_check((serve_case){.batch_slices = 1, .epochs = 1, .optim = {DT_OPTIM_SGD, .lr = 0.1}},
                "an MLP, SGD");
    serve_check((serve_case){.batch_slices = 4, .epochs = 2}, "an MLP, Adam and clipping");
    serve_check((serve_case){.kind = 1, .batch_slices = 3, .epochs = 2}, "batch norm");
    serve_check((serve_case){.kind = 1, .batch_slices = 5, .epochs = 1, .accumulate = 2},
                "two parts");
}

TEST(server_updates_by_every_kind_of_optimizer_and_model) {
    static const serve_case cases[] = {
        {.kind = TRAIN_SUMS, .batch_slices = 4, .epochs = 1, .workers = 2},
        {.batch_slices = 4, .epochs = 2, .workers = 2, .shared = true},
        {.kind = TRAIN_SPECTRAL, .batch_slices = 2, .epochs = 1, .workers = 2},
        {.kind = 1, .batch_slices = 8, .epochs = 1, .workers = 3, .tail = DT_TAIL_DROP},
        {.kind = 0, .batch_slices = 3, .epochs = 1, .workers = 2, .tail = DT_TAIL_PAD},
        {.batch_slices = 2, .epochs = 1, .workers = 2, .optim = {DT_OPTIM_ADAMW, .lr = 0.01}},
        {.batch_slices = 2, .epochs = 1, .workers = 2, .optim = {DT_OPTIM_LAMB, .lr = 0.01}},
        {.batch_slices = 2, .epochs = 1, .workers = 2, .optim = {DT_OPTIM_MUON, .lr = 0.01}},
        {.batch_slices = 2,
         .epochs = 1,
         .workers = 2,
         .optim = {DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9,
                   .average = {.kind = DT_AVERAGE_EMA, .decay = 0.9}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        serve_run r;
        const uint64_t wanted = serve_wanted(&cases[i]), hash = serve_bits(&cases[i], &r);
        CHECK_TEXT(hash && hash == wanted, "case %d: %016llx, not %016llx", (int)i,
                   (unsigned long long)hash, (unsigned long long)wanted);
    }
}

/* A worker's one device makes no update by itself. */
TEST(server_has_workers_on_vulkan_that_learn_as_on_the_cpu) {
    serve_case c = {
        .batch_slices = 1, .workers = 1, .epochs = 2, .optim = {DT_OPTIM_SGD, .lr = 0.1}};
    double loss[2];
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    for (int vulkan = 0; vulkan < 2; vulkan++) {
        serve_run r;
        c.vulkan = vulkan;
        CHECK(serve_bits(&c, &r));
        loss[vulkan] = r.workers[0].loss;
        CHECK(r.workers[0].steps == 10);
    }
    CHECK_TEXT(loss[0] > 0 && fabs(loss[1] - loss[0]) < 1e-4 * loss[0], "%.9g, on Vulkan %.9g",
               loss[0], loss[1]);
}

/* Batches of which no target counts are left out by all, and computed by nobody. */
TEST(server_skips_steps_without_targets_as_ranks_do) {
    const serve_case c = {
        .kind = 1, .batch_slices = 2, .epochs = 2, .batch = 8, .workers = 2, .rare = true};
    serve_run r;
    const uint64_t wanted = serve_wanted(&c), hash = serve_bits(&c, &r);
    CHECK_TEXT(hash && hash == wanted, "%016llx, not %016llx", (unsigned long long)hash,
               (unsigned long long)wanted);
    CHECK_TEXT(r.info.skipped > 3 && r.info.step + r.info.skipped == 38, "%d of %d steps",
               (int)r.info.skipped, (int)r.info.step);
}

/* Without it a server says what it needs. */
static bool serve_has_openssl(void) {
    const dt_comm_desc by = serve_key('a', DT_COMM_TLS);
    train_model m;
    dt_server *server;
    if (!CHECK_TEXT(train_model_make(&m, &one_thread, 0), "the model"))
        return false;
    const dt_server_desc d = {.trainer = train_desc(&m), .security = &by};
    const dt_result result = dt_server_create(m.graph, &d, &server);
    CHECK(!result ||
          (result == DT_ERROR_UNSUPPORTED && strstr(dt_ctx_error(m.ctx), "DT_WITH_OPENSSL")));
    dt_ctx_destroy(m.ctx);
    return !result;
}

TEST(server_works_with_mac_and_tls) {
    serve_case c = {.batch_slices = 2, .epochs = 1, .workers = 2};
    const uint64_t wanted = serve_wanted(&c);
    for (int i = DT_COMM_MAC; i <= DT_COMM_UNCHECKED; i++) {
        serve_run r;
        c.integrity = (dt_comm_integrity)i;
        if (i == DT_COMM_UNCHECKED || serve_has_openssl())
            CHECK(serve_bits(&c, &r) == wanted);
    }
}

/* Every push counts once: the number of batch slices with rows. */
static uint64_t serve_batch_slices(const serve_case *c) {
    uint64_t n = 0;
    for (int low = 0; low < TRAIN_ROWS; low += 37) {
        const int rows = TRAIN_ROWS - low < 37 ? TRAIN_ROWS - low : 37;
        for (int i = 0; i < c->batch_slices; i++)
            n += i * 37 / c->batch_slices < rows;
    }
    return n * (uint64_t)c->epochs;
}

TEST(server_bounds_staleness_and_learns_with_a_slow_worker) {
    for (int s = 0; s <= 4; s += 2) {
        const serve_case c = {.batch_slices = 2,
                              .epochs = 12,
                              .workers = 4,
                              .staleness = s,
                              .staleness_lr = s == 4,
                              .slow_us = {3000, 0, 500}};
        serve_run r;
        serve_bits(&c, &r);
        CHECK_TEXT(r.info.max_staleness <= (uint64_t)s, "a staleness of %d, and %d are allowed",
                   (int)r.info.max_staleness, s);
        CHECK(s == 0 || r.info.max_staleness > 0);
        CHECK_TEXT(r.info.pushes == serve_batch_slices(&c), "%d pushes, not %d", (int)r.info.pushes,
                   (int)serve_batch_slices(&c));
        CHECK(r.info.step == 60 && r.info.epoch == 12);
        CHECK_TEXT(r.info.loss < 1.2, "staleness %d: a loss of %g", s, r.info.loss);
    }
}

/* A worker that leaves, in the middle of a step too, costs what it had under way; one that comes
 * late joins where the others are. */
static void serve_visit(serve_run *r, int steps) {
    train_model m;
    dt_trainer *t;
    dt_result result = serve_join(r, &m, &t);
    for (int i = 0; i < steps && !result; i++)
        result = dt_trainer_step(t, NULL);
    CHECK_TEXT(!result, "a guest: %s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

static void *serve_visits(void *arg) {
    for (int i = 0; i < 6; i++)
        serve_visit(arg, i);
    return NULL;
}

TEST(server_takes_workers_that_come_late_and_leave) {
    const serve_case c = {.kind = 1, .batch_slices = 4, .epochs = 8, .workers = 2};
    const uint64_t wanted = serve_wanted(&c);
    pthread_t guests;
    serve_run r;
    if (!serve_open(&r, &c))
        return;
    serve_start(&r);
    CHECK(!pthread_create(&guests, NULL, serve_visits, &r));
    serve_workers(&r);
    pthread_join(guests, NULL);
    serve_stop(&r);
    /* more of them where one was silent for so long that its worker dialed again */
    CHECK_TEXT(r.info.connections >= 8, "%d connections", r.info.connections);
    CHECK_TEXT(r.info.pushes >= serve_batch_slices(&c), "%d pushes of %d", (int)r.info.pushes,
               (int)serve_batch_slices(&c));
    CHECK(r.info.step > 40 || r.hash == wanted); /* guests may have gone on after the others */
    serve_close(&r);
}

/* ---- several servers, each with a part */

enum { SERVERS_MAX = 3 };

static void *serve_join_all(void *arg) {
    serve_worker *w = arg;
    uint64_t hash = 0;
    train_model *m = malloc(sizeof *m);
    dt_trainer *t;
    w->result = m ? serve_join(w->run, m, &t) : DT_ERROR_MEMORY;
    while (!w->result && serve_epoch(t) < (uint64_t)w->run->c->epochs) {
        dt_train_report report;
        w->result = dt_trainer_step(t, &report);
        w->steps += report.steps;
        if (w->result == DT_ERROR_NUMERIC)
            w->result = DT_OK;
    }
    if (!w->result && serve_epoch(t) == (uint64_t)w->run->c->epochs)
        w->result = dt_store_hash(dt_trainer_store(t), &hash);
    w->samples = hash;
    if (m) {
        snprintf(w->text, sizeof w->text, "%s", dt_ctx_error(m->ctx));
        dt_ctx_destroy(m->ctx);
    }
    free(m);
    return NULL;
}

/* Of a trainer. */
static uint64_t serve_weights(const serve_case *c, bool nan) {
    train_model m;
    dt_trainer *t;
    uint64_t wanted = 0;
    if (!CHECK_TEXT(serve_model(&m, c), "the model"))
        return 0;
    dt_trainer_desc d = serve_trainer(c, &m);
    d.parallel.batch_slices = c->batch_slices;
    d.devices = "cpu";
    d.load = NULL;
    if (nan)
        m.data.x[40 * TRAIN_SIDE * TRAIN_SIDE + 3] = infinity;
    CHECK(!dt_trainer_create(m.graph, &d, &t));
    for (int i = 0; i < c->epochs; i++)
        CHECK(dt_trainer_epoch(t, NULL) == (nan ? DT_ERROR_NUMERIC : DT_OK));
    CHECK(!dt_store_hash(dt_trainer_store(t), &wanted));
    dt_ctx_destroy(m.ctx);
    return wanted;
}

/* The weights that each worker has at the end are those of a trainer. */
static void serve_several(const serve_case *c, int servers, bool nan) {
    static serve_run runs[SERVERS_MAX];
    const uint64_t wanted = serve_weights(c, nan);
    serve_start_several(runs, c, servers);
    runs[0].nan = nan;
    for (int i = 0; i < c->workers; i++) {
        serve_worker *w = &runs[0].workers[i];
        *w = (serve_worker){.run = &runs[0], .index = i};
        CHECK(!pthread_create(&w->thread, NULL, serve_join_all, w));
    }
    for (int i = 0; i < c->workers; i++) {
        serve_worker *w = &runs[0].workers[i];
        pthread_join(w->thread, NULL);
        CHECK_TEXT(!w->result && (c->staleness || w->samples == wanted),
                   "%d servers, worker %d: %016llx, not %016llx %s", servers, i,
                   (unsigned long long)w->samples, (unsigned long long)wanted, w->text);
    }
    for (int i = 0; i < servers; i++) {
        serve_stop(&runs[i]);
        CHECK(c->staleness || nan || c->rare || runs[i].info.pushes == serve_batch_slices(c));
        serve_close(&runs[i]);
    }
}

TEST(servers_of_parts_give_the_weights_of_one_trainer) {
    static const serve_case cases[] = {
        {.batch_slices = 2, .epochs = 2, .workers = 2, .optim = {DT_OPTIM_SGD, .lr = 0.1}},
        {.kind = 1,
         .batch_slices = 4,
         .epochs = 3,
         .workers = 3,
         .optim = {DT_OPTIM_ADAMW, .lr = 0.01}},
        {.kind = 1,
         .batch_slices = 3,
         .epochs = 2,
         .workers = 2,
         .optim = {DT_OPTIM_LAMB, .lr = 0.01}},
        {.batch_slices = 2,
         .epochs = 4,
         .workers = 3,
         .staleness = 3,
         .optim = {DT_OPTIM_ADAM, .lr = 0.01}},
        {.batch_slices = 3,
         .epochs = 2,
         .workers = 2,
         .optim = {DT_OPTIM_SGD, .lr = 0.2, .weight_decay = 0.01, .clip_norm = 0.3}},
        {.kind = 1,
         .batch_slices = 4,
         .epochs = 2,
         .workers = 3,
         .optim = {DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 0.5, .clip_value = 0.05}},
        {.kind = TRAIN_SUMS,
         .batch_slices = 2,
         .epochs = 2,
         .workers = 2,
         .optim = {DT_OPTIM_LAMB, .lr = 0.01, .clip_norm = 0.5}},
        {.batch_slices = 2,
         .epochs = 2,
         .batch = 8,
         .workers = 2,
         .optim = {DT_OPTIM_SGD, .lr = 0.2, .weight_decay = 0.01, .clip_norm = 0.3},
         .rare = true},
        {.batch_slices = 2,
         .epochs = 4,
         .workers = 3,
         .staleness = 3,
         .optim = {DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 0.5}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int servers = 1; servers <= SERVERS_MAX; servers++)
            serve_several(&cases[i], servers, false);
    serve_several(&cases[0], 3, true);
    serve_several(&cases[4], 3, true);
}

/* Any caller gets the squares, also where the worker whose push was the last has left. */
TEST(servers_of_parts_still_clip_when_workers_leave_and_name_a_lost_server) {
    static serve_run runs[2];
    const serve_case c = {.batch_slices = 1,
                          .epochs = 3,
                          .workers = 1,
                          .optim = {DT_OPTIM_SGD, .lr = 0.2, .clip_norm = 0.3}};
    serve_start_several(runs, &c, 2);
    for (int i = 0; i < 4; i++)
        serve_visit(&runs[0], 1);
    serve_worker *w = &runs[0].workers[0];
    *w = (serve_worker){.run = &runs[0]};
    serve_join_all(w);
    CHECK_TEXT(!w->result && w->samples == serve_weights(&c, false), "%s", w->text);
    train_model m;
    dt_trainer *t;
    runs[0].wait_ms = 700;
    dt_result result = serve_join(&runs[0], &m, &t);
    CHECK_TEXT(!result, "%s", dt_ctx_error(m.ctx));
    serve_stop(&runs[1]);
    serve_close(&runs[1]);
    for (int i = 0; i < 8 && !result; i++)
        result = dt_trainer_step(t, NULL);
    CHECK_TEXT(result == DT_ERROR_PEER_LOST && strstr(dt_ctx_error(m.ctx), "server 1"), "%d: %s",
               (int)result, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    serve_stop(&runs[0]);
    serve_close(&runs[0]);
}

TEST(servers_of_parts_refuse_a_norm_that_no_trainer_takes) {
    static const double norms[] = {INFINITY, 1e300, -1.0, NAN};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        const serve_case c = {.optim = {DT_OPTIM_SGD, .lr = 0.2, .clip_norm = norms[i]}};
        const dt_comm_desc by = {.insecure = true};
        train_model m;
        dt_server *server;
        REQUIRE(serve_model(&m, &c));
        const dt_server_desc d = {.trainer = serve_trainer(&c, &m), .security = &by, .servers = 2};
        CHECK(dt_server_create(m.graph, &d, &server) == DT_ERROR_INVALID);
        CHECK_TEXT(strstr(dt_ctx_error(m.ctx), "clip_norm"), "%s", dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
}

/* A first server that continues from a checkpoint does not know the factors of the batches before
 * it. A batch that another server has yet to apply is not applied by a guess. */
TEST(servers_of_parts_do_not_guess_the_clips_of_batches_before_a_checkpoint) {
    static serve_run runs[2];
    const char *path = "build/test_server_clips.safetensors";
    const serve_case c = {.batch_slices = 1,
                          .epochs = 3,
                          .workers = 1,
                          .optim = {DT_OPTIM_SGD, .lr = 0.2, .clip_norm = 0.3}};
    train_model m;
    dt_trainer *t;
    REQUIRE(serve_model(&m, &c));
    dt_trainer_desc d = serve_trainer(&c, &m);
    CHECK(!dt_trainer_create(m.graph, &d, &t));
    for (int i = 0; i < 3; i++)
        CHECK(!dt_trainer_step(t, NULL));
    CHECK_TEXT(!dt_trainer_save(t, path), "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    serve_start_several(runs, &c, 2);
    for (int i = 0; i < 3; i++)
        serve_visit(&runs[0], 1);
    serve_stop(&runs[0]);
    CHECK_TEXT(!dt_trainer_load(dt_server_trainer(runs[0].server), path), "%s",
               dt_ctx_error(runs[0].m.ctx));
    serve_start(&runs[0]);
    CHECK(serve_join(&runs[0], &m, &t) == DT_ERROR_INVALID);
    CHECK_TEXT(strstr(dt_ctx_error(m.ctx), "checkpoints of one step"), "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    for (int i = 0; i < 2; i++) { /* and no server goes on as if nothing were */
        serve_ended(&runs[i], DT_ERROR_INVALID, "no step in common");
        serve_close(&runs[i]);
    }
    remove(path);
}

/* Of a model so small that a push is a small message, as parts may be. */
typedef struct serve_tiny {
    dt_ctx *ctx;
    dt_graph *graph;
    float x[40];
    int32_t t[20];
    dt_trainer_desc d;
} serve_tiny;

static bool serve_tiny_make(serve_tiny *m) {
    static const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    if (dt_ctx_create(&one_thread, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    for (int i = 0; i < 20; i++) {
        m->t[i] = i % 2;
        m->x[2 * i] = (float)(i % 7);
        m->x[2 * i + 1] = (float)(i % 2);
    }
    dt_tensor x = dt_input(m->graph, "x", DT_F32, dt_dims(2));
    dt_tensor t = dt_input(m->graph, "t", DT_I32, dt_dims());
    const dt_init init = {.kind = DT_INIT_UNIFORM, .a = -0.1f, .b = 0.1f};
    dt_tensor w = dt_param(m->graph, "w", dt_dims(2, 2), init); /* one block of 256 elements */
    m->d = (dt_trainer_desc){.loss = dt_cross_entropy(dt_linear(x, w, (dt_tensor){0}), t, NULL),
                             .batch = 8,
                             .optim = &sgd,
                             .data = {.rows = 20,
                                      .columns = {{.input = x, .data = m->x, .dtype = DT_F32},
                                                  {.input = t, .data = m->t, .dtype = DT_I32}}},
                             .devices = "cpu"};
    return true;
}

TEST(server_of_a_tiny_model_gives_the_same_bits) {
    static serve_tiny one, server, worker;
    serve_run r = {.by = serve_key('a', DT_COMM_CRC)};
    dt_trainer *t;
    uint64_t wanted = 0, hash = 1;
    REQUIRE(serve_tiny_make(&one) && serve_tiny_make(&server) && serve_tiny_make(&worker));
    one.d.parallel.batch_slices = server.d.parallel.batch_slices = 2;
    CHECK(!dt_trainer_create(one.graph, &one.d, &t) && !dt_trainer_epoch(t, NULL) &&
          !dt_store_hash(dt_trainer_store(t), &wanted));
    const dt_server_desc d = {.trainer = server.d, .security = &r.by};
    REQUIRE(!dt_server_create(server.graph, &d, &r.server));
    r.m.ctx = server.ctx;
    dt_server_get_info(r.server, &r.info);
    snprintf(r.address, sizeof r.address, "127.0.0.1:%d", r.info.port);
    serve_start(&r);
    worker.d.mode = DT_TRAIN_SERVER;
    worker.d.server.addresses = r.address;
    worker.d.server.security = &r.by;
    CHECK_TEXT(!dt_trainer_create(worker.graph, &worker.d, &t) && !dt_trainer_epoch(t, NULL) &&
                   !dt_store_hash(dt_trainer_store(t), &hash),
               "%s", dt_ctx_error(worker.ctx));
    serve_stop(&r);
    CHECK(hash == wanted && r.info.pushes == 5); /* the last batch has 4 rows: one batch slice */
    dt_ctx_destroy(worker.ctx);
    dt_ctx_destroy(server.ctx);
    dt_ctx_destroy(one.ctx);
}

/* ---- processes that are killed */

TEST(server_continues_when_workers_are_killed_and_no_push_counts_twice) {
    const serve_case c = {.kind = 1, .batch_slices = 4, .epochs = 8, .workers = 4};
    const uint64_t wanted = serve_wanted(&c);
    uint32_t state = 5;
    for (int round = 0; round < 4; round++) {
        pid_t pids[WORKERS_MAX];
        serve_run r;
        if (!serve_open(&r, &c))
            return;
        for (int i = 0; i < 4; i++) /* before there are threads */
            pids[i] = serve_fork(&r, i);
        serve_start(&r);
        for (int i = 0; i < 3; i++) {
            serve_sleep_us(1000 + (long)(train_random(&state) % 25000));
            serve_signal(pids[i], SIGKILL);
        }
        for (int i = 0; i < 4; i++)
            serve_reap(pids[i], i < 3);
        serve_stop(&r);
        CHECK_TEXT(r.hash == wanted, "round %d: %016llx, not %016llx", round,
                   (unsigned long long)r.hash, (unsigned long long)wanted);
        CHECK(r.info.pushes == serve_batch_slices(&c) && r.info.step == 40);
        serve_close(&r);
    }
}

/* ---- what is not finite */

TEST(server_skips_a_batch_in_which_a_worker_finds_a_nan) {
    const serve_case c = {
        .batch_slices = 3, .epochs = 2, .workers = 1, .optim = {DT_OPTIM_SGD, .lr = .1}};
    serve_run r;
    train_model m, w;
    dt_trainer *t, *worker;
    dt_train_report report;
    uint64_t hash = 0;
    if (!serve_open(&r, &c) || !CHECK_TEXT(train_model_make(&m, &one_thread, 0), "the model"))
        return;
    dt_trainer_desc d = serve_trainer(&c, &m);
    d.parallel.batch_slices = c.batch_slices;
    d.devices = "cpu";
    m.data.x[40 * TRAIN_SIDE * TRAIN_SIDE + 3] = infinity;
    CHECK(!dt_trainer_create(m.graph, &d, &t));
    for (int i = 0; i < 2; i++)
        CHECK(dt_trainer_epoch(t, NULL) == DT_ERROR_NUMERIC);
    CHECK(!dt_store_state_hash(dt_trainer_store(t), &hash));
    serve_start(&r);
    const dt_result joined = serve_join(&r, &w, &worker);
    CHECK_TEXT(!joined, "%s", dt_ctx_error(w.ctx));
    w.data.x[40 * TRAIN_SIDE * TRAIN_SIDE + 3] = infinity;
    for (int i = 0; i < 2; i++) {
        CHECK(dt_trainer_epoch(worker, &report) == DT_ERROR_NUMERIC);
        CHECK(strstr(dt_ctx_error(w.ctx), "NaN") || strstr(dt_ctx_error(w.ctx), "infinit") ||
              strstr(dt_ctx_error(w.ctx), "finite"));
    }
    serve_stop(&r);
    CHECK(r.info.skipped == 2 && r.info.step == 8 && hash && r.hash == hash);
    dt_ctx_destroy(w.ctx);
    dt_ctx_destroy(m.ctx);
    serve_close(&r);
}

/* ---- the one that is refused */

static void serve_refuses(serve_run *r, dt_result wanted, const char *word) {
    train_model m;
    dt_trainer *t;
    const dt_result result = serve_join(r, &m, &t);
    CHECK_TEXT(result == wanted && !t && strstr(dt_ctx_error(m.ctx), word),
               "result %d, not %d with '%s': %s", (int)result, (int)wanted, word,
               dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

/* All that changed nothing. */
static void serve_workers_again(serve_run *r) {
    snprintf(r->address, sizeof r->address, "127.0.0.1:%d", r->info.port);
    serve_workers(r);
}

TEST(server_refuses_other_keys_jobs_settings_and_models) {
    const serve_case c = {.batch_slices = 3, .epochs = 1, .workers = 1};
    serve_case other = c;
    serve_run r;
    if (!serve_open(&r, &c))
        return;
    serve_start(&r);
    r.by = serve_key('b', DT_COMM_CRC);
    serve_refuses(&r, DT_ERROR_REFUSED, "the keys differ");
    r.by = serve_key('a', DT_COMM_CRC);
    snprintf(r.by.job, sizeof r.by.job, "another");
    serve_refuses(&r, DT_ERROR_REFUSED, "different jobs");
    r.by = serve_key('a', DT_COMM_UNCHECKED);
    serve_refuses(&r, DT_ERROR_REFUSED, "settings differ");
    r.by = (dt_comm_desc){.job = "a test", .insecure = true};
    serve_refuses(&r, DT_ERROR_REFUSED, "insecure");
    r.by = (dt_comm_desc){.job = "a test"};
    serve_refuses(&r, DT_ERROR_INVALID, "need a shared key");
    r.by = serve_key('a', DT_COMM_CRC);
    r.c = &other;
    other.kind = 1;
    serve_refuses(&r, DT_ERROR_INVALID, "has other settings");
    other = c;
    other.batch = 36;
    serve_refuses(&r, DT_ERROR_INVALID, "batch 36");
    other = c;
    other.optim = (dt_optim_desc){DT_OPTIM_SGD, .lr = 0.25};
    serve_refuses(&r, DT_ERROR_INVALID, ".optim->kind DT_OPTIM_SGD");
    r.c = &c;
    snprintf(r.address, sizeof r.address, "127.0.0.1");
    serve_refuses(&r, DT_ERROR_INVALID, "'127.0.0.1' is not a server's address");
    serve_workers_again(&r);
    serve_stop(&r);
    serve_close(&r);
}

/* Batch slices that are computed one by one cannot have sync points. */
TEST(server_refuses_models_with_sync_points) {
    train_model m;
    dt_server *server;
    const dt_comm_desc by = {.insecure = true};
    if (!CHECK_TEXT(train_model_make(&m, &one_thread, TRAIN_SYNC), "the model"))
        return;
    CHECK(dt_server_create(m.graph, &(dt_server_desc){.trainer = train_desc(&m), .security = &by},
                           &server) == DT_ERROR_UNSUPPORTED);
    CHECK(!server && strstr(dt_ctx_error(m.ctx), ".sync"));
    dt_ctx_destroy(m.ctx);
}

/* ---- memory that runs out while a worker is made */

typedef struct serve_purse {
    int64_t bytes, left;
} serve_purse;

static void *serve_take(void *user, size_t bytes, size_t align) {
    serve_purse *p = user;
    if (p->left-- <= 0)
        return NULL;
    p->bytes += (int64_t)bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void serve_give(void *user, void *memory, size_t bytes) {
    ((serve_purse *)user)->bytes -= (int64_t)bytes;
    free(memory);
}

/* With that number of allocations; whether they were enough. */
static bool serve_starve(serve_run *r, int64_t allocations) {
    serve_purse p = {.left = INT64_MAX};
    train_model m;
    dt_trainer *t = NULL;
    const dt_ctx_desc ctx = {
        .no_vulkan = true, .threads = 1, .allocator = {serve_take, serve_give, &p}};
    if (!CHECK_TEXT(train_model_make(&m, &ctx, r->c->kind), "the model"))
        return true;
    dt_trainer_desc d = serve_trainer(r->c, &m);
    d.devices = "cpu";
    d.mode = DT_TRAIN_SERVER;
    d.server.addresses = r->address;
    d.server.security = &r->by;
    p.left = allocations;
    const dt_result result = dt_trainer_create(m.graph, &d, &t);
    const bool enough = p.left >= 0;
    p.left = INT64_MAX;
    CHECK_TEXT(enough ? !result && t : !t && result == DT_ERROR_MEMORY, "%d allocations: %d, %s",
               (int)allocations, (int)result, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    CHECK_TEXT(p.bytes == 0, "%d allocations: %d bytes are left", (int)allocations, (int)p.bytes);
    return enough;
}

TEST(server_workers_without_memory_report_it_and_leak_nothing) {
    const serve_case c = {.kind = 1, .batch_slices = 4, .epochs = 1, .workers = 1};
    const uint64_t wanted = serve_wanted(&c);
    int64_t allocations = 0;
    serve_run r;
    if (!serve_open(&r, &c))
        return;
    serve_start(&r);
    while (!serve_starve(&r, allocations) && !test_now.failures)
        allocations++;
    CHECK(allocations > 20);
    serve_workers(&r);
    serve_stop(&r);
    CHECK(r.hash == wanted);
    serve_close(&r);
}

/* ---- servers that die */

TEST(server_that_is_unreachable_is_named) {
    const serve_case c = {.batch_slices = 2, .epochs = 1, .workers = 1};
    serve_run r;
    train_model m;
    dt_trainer *t;
    if (!serve_open(&r, &c))
        return;
    serve_start(&r);
    const dt_result joined = serve_join(&r, &m, &t);
    CHECK_TEXT(!joined && !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx));
    serve_stop(&r);
    serve_close(&r);
    CHECK(dt_trainer_step(t, NULL) == DT_ERROR_PEER_LOST);
    CHECK_TEXT(strstr(dt_ctx_error(m.ctx), "server 0") && strstr(dt_ctx_error(m.ctx), r.address),
               "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

/* A server is ended in the middle of training and begun again from its checkpoint, at the same
 * address; its workers wait for it and go on. */
static void serve_reopen(serve_run *r, const serve_case *c, const char *folder, int port) {
    char listen[32];
    bool found = false;
    snprintf(listen, sizeof listen, "127.0.0.1:%d", port);
    *r = (serve_run){.c = c, .by = serve_key('a', c->integrity)};
    snprintf(r->address, sizeof r->address, "%s", listen);
    if (!CHECK_TEXT(serve_model(&r->m, c), "the model"))
        return;
    dt_server_desc d = {.trainer = serve_trainer(c, &r->m), .security = &r->by, .listen = listen};
    d.trainer.parallel.batch_slices = c->batch_slices;
    d.trainer.checkpoint.folder = folder;
    d.trainer.checkpoint.every_steps = 3;
    CHECK_TEXT(!dt_server_create(r->m.graph, &d, &r->server) &&
                   !dt_trainer_resume(dt_server_trainer(r->server), &found),
               "%s", dt_ctx_error(r->m.ctx));
    CHECK(found == (port != 0));
    dt_server_get_info(r->server, &r->info);
    snprintf(r->address, sizeof r->address, "127.0.0.1:%d", r->info.port);
}

static void serve_empty(const char *folder) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
}

TEST(server_resumes_from_a_checkpoint_while_its_workers_wait) {
    const serve_case c = {.kind = 1, .batch_slices = 3, .epochs = 6, .workers = 2};
    const uint64_t wanted = serve_wanted(&c);
    char folder[] = "/tmp/dtrain-server-XXXXXX";
    pthread_t threads[2];
    serve_run r, workers;
    int port = 0;
    if (!CHECK_TEXT(mkdtemp(folder) != NULL, "a folder"))
        return;
    serve_reopen(&r, &c, folder, 0);
    workers = r;
    for (int i = 0; i < 2; i++) {
        workers.workers[i] = (serve_worker){.run = &workers, .index = i};
        CHECK(!pthread_create(&threads[i], NULL, serve_work, &workers.workers[i]));
    }
    for (int life = 0; life < 3; life++) {
        int waits = life ? 0 : 200; /* for the first checkpoint */
        do {
            CHECK_TEXT(!dt_server_run(r.server, life < 2 ? 60 : 1), "%s", dt_ctx_error(r.m.ctx));
            dt_server_get_info(r.server, &r.info);
        } while (r.info.step < 3 && waits-- > 0);
        port = r.info.port;
        if (life < 2) {
            serve_close(&r);
            serve_reopen(&r, &c, folder, port);
        }
    }
    serve_start(&r);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        CHECK_TEXT(!workers.workers[i].result, "%s", workers.workers[i].text);
    }
    serve_stop(&r);
    CHECK_TEXT(r.hash == wanted, "%016llx, not %016llx", (unsigned long long)r.hash,
               (unsigned long long)wanted);
    serve_close(&r);
    serve_empty(folder);
}

/* A file of a server is one of a trainer, and the other way round. */
TEST(server_and_trainer_resume_from_each_others_checkpoints) {
    serve_case c = {.kind = 1, .batch_slices = 3, .epochs = 2, .workers = 2};
    const char *path = "/tmp/dtrain-server-test.safetensors";
    serve_run r;
    train_model m;
    dt_trainer *t;
    uint64_t hash = 0;
    if (!serve_open(&r, &c) || !CHECK_TEXT(train_model_make(&m, &one_thread, 1), "the model"))
        return;
    dt_trainer_desc d = serve_trainer(&c, &m);
    d.devices = "cpu:2";
    d.parallel.batch_slices = c.batch_slices;
    CHECK(!dt_trainer_create(m.graph, &d, &t) && !dt_trainer_epoch(t, NULL));
    CHECK(!dt_trainer_save(t, path));
    CHECK(!dt_trainer_load(dt_server_trainer(r.server), path));
    serve_start(&r);
    serve_workers(&r); /* epoch 2 */
    serve_stop(&r);
    CHECK(!dt_trainer_save(dt_server_trainer(r.server), path) && !dt_trainer_load(t, path));
    CHECK(!dt_trainer_epoch(t, NULL) && !dt_store_state_hash(dt_trainer_store(t), &hash));
    c.epochs = 3;
    CHECK(hash && hash == serve_wanted(&c));
    dt_ctx_destroy(m.ctx);
    serve_close(&r);
    remove(path);
}

/* fit and evaluate on a worker are those of any trainer; its weights are the servers'. */
TEST(server_has_workers_that_fit_and_evaluate) {
    const serve_case c = {.batch_slices = 2, .epochs = 3, .workers = 1};
    serve_run r;
    train_model m;
    dt_trainer *t;
    dt_train_report here, there;
    uint64_t own = 0, servers = 1;
    if (!serve_open(&r, &c))
        return;
    serve_start(&r);
    const dt_result joined = serve_join(&r, &m, &t);
    CHECK_TEXT(!joined, "%s", dt_ctx_error(m.ctx));
    const dt_dataset data = train_desc(&m).data, same = train_desc(&r.m).data;
    CHECK_TEXT(!dt_trainer_fit(t, &(dt_fit_desc){.epochs = 3, .validation = &data}, NULL), "%s",
               dt_ctx_error(m.ctx));
    CHECK(!dt_trainer_evaluate(t, &data, 10, &here));
    CHECK(dt_trainer_set_lr(t, 0.1) == DT_ERROR_INVALID);
    CHECK(dt_trainer_save(t, "/tmp/none") == DT_ERROR_INVALID);
    CHECK(dt_trainer_load(t, "/tmp/none") == DT_ERROR_INVALID);
    serve_stop(&r);
    CHECK(!dt_trainer_evaluate(dt_server_trainer(r.server), &same, 10, &there));
    CHECK(dt_trainer_step(dt_server_trainer(r.server), NULL) == DT_ERROR_INVALID);
    CHECK(here.loss == there.loss && here.metric[0] == there.metric[0] && r.info.step == 15);
    CHECK(!dt_store_hash(dt_trainer_store(t), &own) &&
          !dt_store_hash(dt_trainer_store(dt_server_trainer(r.server)), &servers) &&
          own == servers);
    dt_ctx_destroy(m.ctx);
    serve_close(&r);
}
