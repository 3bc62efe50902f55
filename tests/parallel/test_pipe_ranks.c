/* Grids of pipelines over ranks. They have the bits of one device with the same batch slices and
 * micro-batches, for any grid, schedule and placement; files from one grid to another; and what
 * goes wrong on one rank. Ranks are threads here, but where one of them must die. */
#include "parallel/pipe_model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { GRID_RANKS = 8, GRID_STEPS = 8 };

typedef struct grid_case {
    int kind, accumulate, batch, steps, batch_slices;
    int stages, chunks, replicas;
    dt_pipeline_schedule schedule;
    dt_tail tail;
    int ranks;
    const char *devices[GRID_RANKS]; /* NULL: one CPU */
    const dt_optim_desc *optim;
    bool averaged, vulkan;
    const char *load, *save; /* checkpoints, of rank 0 */
    int tensor_ranks;        /* of each stage, or of each replica */
    int zero_stage, shard_degree;
} grid_case;

typedef struct grid_step {
    double loss, norm, metric;
    uint64_t hash;
} grid_step;

typedef struct grid_end {
    grid_step steps[GRID_STEPS];
    double evaluated;
    float predicted[TRAIN_ROWS * TRAIN_CLASSES];
    dt_result result;
    char text[1200];
} grid_end;

typedef struct grid_rank {
    const grid_case *c;
    int index;
    dt_comm *comm;
    grid_end end;
} grid_rank;

static dt_trainer_desc grid_desc(train_model *m, const grid_case *c, int index, dt_comm *comm) {
    dt_trainer_desc d = train_desc(m);
    d.comm = comm;
    d.devices = c->devices[index] ? c->devices[index] : "cpu";
    d.batch = c->batch;
    d.accumulate = c->accumulate;
    d.parallel.batch_slices = c->batch_slices;
    d.parallel.pipeline = c->stages;
    d.parallel.replicas = c->replicas;
    d.parallel.tensor = c->tensor_ranks;
    d.parallel.zero_stage = c->zero_stage;
    d.parallel.shard_degree = c->shard_degree;
    d.parallel.chunks = c->chunks;
    d.parallel.schedule = c->schedule;
    d.tail = c->tail;
    d.averaged = c->averaged;
    d.optim = c->optim ? c->optim : d.optim;
    pipe_losses(m, c->kind, &d);
    return d;
}

static dt_result grid_train(const grid_case *c, train_model *m, const dt_trainer_desc *d,
                            dt_trainer *t, grid_end *end) {
    dt_train_report report;
    dt_result result = c->load ? dt_trainer_load(t, c->load) : DT_OK;
    for (int i = 0; i < c->steps && !result; i++) {
        grid_step *s = &end->steps[i];
        result = dt_trainer_step(t, &report);
        *s = (grid_step){report.loss, report.gradient_norm, report.metric[0], 0};
        if (!result && (i % 3 == 2 || i + 1 == c->steps)) {
            dt_store *store = dt_trainer_store(t);
            result = store ? dt_store_state_hash(store, &s->hash) : DT_ERROR_INVALID;
        }
    }
    if (!result && c->save)
        result = dt_trainer_save(t, c->save);
    if (!result)
        result = dt_trainer_evaluate(t, &d->data, 20, &report);
    end->evaluated = report.loss;
    if (!result && c->kind != PIPE_CLASSES)
        result =
            dt_trainer_predict(t, &d->data, m->logits, 20, end->predicted, sizeof end->predicted);
    return result;
}

static void *grid_run(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    r->end.result = DT_ERROR_MEMORY;
    if (!pipe_model(&m, &(dt_ctx_desc){.no_vulkan = !r->c->vulkan, .threads = 1}, r->c->kind))
        return NULL;
    const dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    if (!result)
        result = grid_train(r->c, &m, &d, t, &r->end);
    r->end.result = result;
    snprintf(r->end.text, sizeof r->end.text, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return NULL;
}

/* All ranks; of one there is no comm. */
static bool grid_job(const grid_case *c, grid_rank *ranks, void *(*run)(void *)) {
    dt_comm *comms[GRID_RANKS] = {NULL};
    pthread_t threads[GRID_RANKS];
    if (c->ranks > 1 &&
        !CHECK_TEXT(!dt_comm_create_threads(NULL, c->ranks, comms), "no comm of threads"))
        return false;
    for (int i = 0; i < c->ranks; i++) {
        memset(&ranks[i], 0, sizeof ranks[i]);
        ranks[i].c = c;
        ranks[i].index = i;
        ranks[i].comm = comms[i];
        if (!CHECK_TEXT(!pthread_create(&threads[i], NULL, run, &ranks[i]), "no thread"))
            exit(1); /* others would wait for it */
    }
    for (int i = 0; i < c->ranks; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < c->ranks; i++)
        dt_comm_destroy(comms[i]);
    return true;
}

static bool grid_same(const grid_case *c, const grid_end *a, const grid_end *b) {
    bool same = fabs(a->evaluated - b->evaluated) <= 1e-6 * fabs(a->evaluated) &&
                !memcmp(a->predicted, b->predicted, sizeof a->predicted);
    for (int i = 0; i < c->steps; i++) {
        const grid_step *x = &a->steps[i], *y = &b->steps[i];
        same = same && x->loss == y->loss && x->norm == y->norm && x->metric == y->metric &&
               x->hash == y->hash;
    }
    return same && a->steps[c->steps - 1].hash;
}

/* What one device makes of the same batch slices and micro-batches. */
static const grid_end *grid_oracle(const grid_case *c) {
    static grid_rank one[1];
    grid_case alone = *c;
    alone.stages = alone.chunks = alone.replicas = 0;
    alone.schedule = DT_PIPELINE_1F1B;
    alone.ranks = 1;
    alone.devices[0] = alone.vulkan ? "vulkan:0" : NULL;
    alone.save = NULL;
    grid_job(&alone, one, grid_run);
    CHECK_TEXT(!one->end.result, "one device: %s", one->end.text);
    return &one->end;
}

static const char *grid_text(const grid_case *c) {
    static char text[200];
    int at = snprintf(text, sizeof text,
                      "model %d, %d stages, schedule %d, %d batch slices, %d parts of "
                      "%d:",
                      c->kind, c->stages, c->schedule, c->batch_slices, c->accumulate, c->batch);
    for (int i = 0; i < c->ranks && at < (int)sizeof text; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %s",
                       c->devices[i] ? c->devices[i] : "cpu");
    return text;
}

static bool grid_equal_to(const grid_case *c, const grid_end *want) {
    static grid_rank ranks[GRID_RANKS];
    bool all = grid_job(c, ranks, grid_run);
    for (int i = 0; i < c->ranks && all; i++) {
        const grid_end *got = &ranks[i].end;
        all = CHECK_TEXT(!got->result, "%s: rank %d: %s", grid_text(c), i, got->text) &&
              CHECK_TEXT(grid_same(c, got, want),
                         "%s: rank %d: hash %016llx, not %016llx; loss %.17g, not %.17g; norm "
                         "%.17g, not %.17g; evaluated %.17g, not %.17g",
                         grid_text(c), i, (unsigned long long)got->steps[c->steps - 1].hash,
                         (unsigned long long)want->steps[c->steps - 1].hash, got->steps[0].loss,
                         want->steps[0].loss, got->steps[0].norm, want->steps[0].norm,
                         got->evaluated, want->evaluated);
    }
    return all;
}

static bool grid_equal(const grid_case *c) {
    return grid_equal_to(c, grid_oracle(c));
}

/* ---- the same bits */

TEST(pipeline_over_two_ranks_has_the_bits_of_one_device) {
    for (int schedule = 0; schedule <= DT_PIPELINE_ZERO_BUBBLE; schedule++)
        grid_equal(&(grid_case){.kind = PIPE_SKIP,
                                .accumulate = 4,
                                .batch = 40,
                                .steps = 7,
                                .schedule = (dt_pipeline_schedule)schedule,
                                .batch_slices = 1,
                                .stages = 2,
                                .ranks = 2});
}

/* How devices are spread over ranks: 4 of them, and 6. */
static const struct {
    int ranks;
    const char *devices[GRID_RANKS];
} grid_spreads[] = {{1, {"cpu:4"}},        {2, {"cpu:2", "cpu:2"}},
                    {2, {"cpu:3", "cpu"}}, {3, {"cpu", "cpu:2", "cpu"}},
                    {4, {NULL}},           {3, {"cpu", "cpu:3", "cpu:2"}},
                    {6, {NULL}},           {2, {"cpu:2", "cpu:4"}}};
enum { GRID_SPREADS = sizeof grid_spreads / sizeof *grid_spreads, GRID_OF_4 = 5 };

static void grid_spread(grid_case *c, int i) {
    c->ranks = grid_spreads[i].ranks;
    memcpy(c->devices, grid_spreads[i].devices, sizeof c->devices);
}

/* All grids of 4 and of 6 devices that have two stages or more, and all spreads. */
static void grid_equal_all(grid_case c) {
    const grid_end want = *grid_oracle(&c);
    for (int i = 0; i < GRID_SPREADS; i++) {
        const int devices = i < GRID_OF_4 ? 4 : 6;
        grid_spread(&c, i);
        for (c.stages = 2; c.stages <= devices; c.stages++)
            if (devices % c.stages == 0 && devices / c.stages <= c.batch_slices)
                grid_equal_to(&c, &want);
    }
}

TEST(grid_of_pipelines_has_the_bits_of_one_device_for_any_placement_on_ranks) {
    for (int schedule = 0; schedule <= DT_PIPELINE_ZERO_BUBBLE; schedule++) {
        if (!test_takes(schedule, 1, 2))
            continue;
        grid_case c = {
            .kind = PIPE_SKIP, .accumulate = 4, .batch = 37, .steps = 5, .batch_slices = 4};
        c.schedule = (dt_pipeline_schedule)schedule;
        if (c.schedule != DT_PIPELINE_INTERLEAVED) {
            grid_equal_all(c);
            continue;
        }
        const grid_end want = *grid_oracle(&c);
        for (int i = 0; i < GRID_OF_4; i++) { /* 4 chunks */
            grid_spread(&c, i);
            c.stages = 2;
            grid_equal_to(&c, &want);
        }
    }
}

TEST(grid_of_pipelines_has_the_bits_of_one_device_for_any_model) {
    static const int kinds[] = {0,         1,         TRAIN_SUMS,  TRAIN_SPECTRAL,
                                PIPE_TIED, PIPE_NORM, PIPE_CLASSES};
    long at = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int batch_slices = 2; batch_slices <= 5; batch_slices += 3) {
            grid_case c = {.kind = kinds[k], .accumulate = 3, .batch = 37, .steps = 6};
            c.batch_slices = batch_slices;
            c.stages = 2;
            const grid_end want = *grid_oracle(&c);
            for (int i = 0; i < GRID_OF_4; i++) {
                grid_spread(&c, i);
                for (int schedule = 0; schedule <= DT_PIPELINE_ZERO_BUBBLE; schedule += 3) {
                    c.schedule = (dt_pipeline_schedule)schedule;
                    if (test_takes(at++, 1, 7))
                        grid_equal_to(&c, &want);
                }
            }
        }
    }
}

/* Batches in which replicas have no rows, and parts of batch slices none. */
TEST(grid_of_pipelines_takes_short_batches_and_padded_ones) {
    long at = 0;
    for (int tail = 0; tail <= DT_TAIL_PAD; tail++) {
        for (int batch = 9; batch < 70; batch += 28) {
            grid_case c = {.kind = PIPE_SKIP, .accumulate = 3, .batch = batch, .steps = 6};
            c.tail = (dt_tail)tail;
            c.stages = 2;
            for (c.batch_slices = 3; c.batch_slices <= 8; c.batch_slices += 5) {
                const grid_end want = *grid_oracle(&c);
                for (int i = 1; i < GRID_SPREADS; i += 2) {
                    grid_spread(&c, i);
                    if (test_takes(at++, 1, 5))
                        grid_equal_to(&c, &want);
                }
            }
        }
    }
}

TEST(grid_of_pipelines_has_the_bits_of_every_kind_of_update) {
    const dt_optim_desc all[] = {
        {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .clip_norm = 0.05},
        {.kind = DT_OPTIM_LAMB, .lr = 0.01, .clip_norm = 0.5},
        {.kind = DT_OPTIM_ADAMW,
         .lr = 0.01,
         .clip_value = 0.01,
         .groups = {{.params = "*.bias", .weight_decay = DT_ZERO},
                    {.params = "out*", .lr_scale = 0.5}},
         .average = {.kind = DT_AVERAGE_EMA, .decay = 0.9}}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        grid_case c = {
            .kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .steps = 6, .batch_slices = 2};
        c.optim = &all[k];
        c.averaged = k == 2;
        c.stages = 2;
        const grid_end want = *grid_oracle(&c);
        for (int i = 0; i < GRID_OF_4; i++) {
            grid_spread(&c, i);
            grid_equal_to(&c, &want);
        }
    }
}

/* A momentum's first value is the gradient itself: also the sign of a 0. */
TEST(grid_of_pipelines_of_random_layers_has_the_zeros_of_one_device) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.01, .momentum = 0.9};
    long at = 0;
    for (int seed = 0; seed < 12; seed++) {
        grid_case c = {.kind = PIPE_RANDOM + seed, .accumulate = 1 + seed % 3, .steps = 2};
        c.batch = 24 + 13 * (seed % 2);
        c.optim = &sgd;
        c.stages = 2;
        for (c.batch_slices = 2; c.batch_slices <= 5; c.batch_slices += 3) {
            const grid_end want = *grid_oracle(&c);
            for (int i = 0; i < GRID_OF_4; i++) {
                grid_spread(&c, i);
                if (test_takes(at++, 1, 5))
                    grid_equal_to(&c, &want);
            }
        }
    }
}

/* ---- files */

/* Saved on one grid, resumed on others: 0 stages are one device, 1 stage a replica a device. */
TEST(grid_of_pipelines_resumes_from_the_checkpoint_of_any_other) {
    static const char *file = "build/pipe_ranks.checkpoint";
    static const struct {
        int stages, ranks;
        const char *devices[GRID_RANKS];
    } grids[] = {{2, 4, {NULL}}, {0, 1, {NULL}},    {2, 2, {"cpu", "cpu:3"}},
                 {0, 2, {NULL}}, {3, 1, {"cpu:3"}}, {4, 3, {"cpu:2"}},
                 {2, 2, {NULL}}};
    const int count = sizeof grids / sizeof *grids;
    for (int kind = 1; kind <= PIPE_SKIP; kind += PIPE_SKIP - 1) {
        grid_case c = {.kind = kind, .accumulate = 3, .batch = 36, .steps = 8, .batch_slices = 2};
        const grid_end want = *grid_oracle(&c);
        for (int from = 0; from < count; from++) {
            const int to = (from + 1 + kind % 3) % count;
            static grid_rank ranks[GRID_RANKS];
            grid_case half = c;
            for (int k = 0; k < 2; k++) { /* both halves */
                half.steps = 4;
                half.save = k ? NULL : file;
                half.load = k ? file : NULL;
                half.stages = grids[k ? to : from].stages;
                half.ranks = grids[k ? to : from].ranks;
                half.batch_slices = k ? 0 : 2; /* what the file says */
                memcpy(half.devices, grids[k ? to : from].devices, sizeof half.devices);
                if (kind == 1 && half.stages > 2)
                    break; /* a model of two layers */
                grid_job(&half, ranks, grid_run);
                for (int i = 0; i < half.ranks; i++)
                    CHECK_TEXT(!ranks[i].end.result, "from %d to %d, rank %d: %s", from, to, i,
                               ranks[i].end.text);
                if (k)
                    CHECK_TEXT(ranks[0].end.steps[3].hash == want.steps[7].hash,
                               "model %d, from %d to %d: %016llx, not %016llx", kind, from, to,
                               (unsigned long long)ranks[0].end.steps[3].hash,
                               (unsigned long long)want.steps[7].hash);
            }
        }
    }
    remove(file);
}

/* ---- what goes wrong on one rank */

typedef enum grid_fault {
    GRID_CALLBACK, /* an error of the data's callback */
    GRID_LABEL,
    GRID_NAN, /* in the input of one sample */
    GRID_LR,  /* another rate on one rank */
    GRID_FAULTS
} grid_fault;

static _Atomic int grid_now, grid_who; /* which, and on which rank */

static dt_result grid_sample(void *user, const dt_sample *s, void *const *values) {
    const grid_rank *r = user;
    const int now = atomic_load(&grid_now), who = atomic_load(&grid_who);
    const bool here =
        s->epoch == 0 && s->row == (who < 2 ? 72 : 97); /* of its replica, the last part */
    if (now == GRID_NAN && here)
        ((float *)values[0])[3] = NAN;
    if (now == GRID_LABEL && here)
        *(int32_t *)values[1] = 77;
    return now == GRID_CALLBACK && here && r->index == who ? DT_ERROR_IO : DT_OK;
}

/* The third step fails on all ranks and changes nothing; with the fault fixed, it continues. */
static void *grid_spoilt(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    uint64_t before = 0, after = 1;
    r->end.result = DT_ERROR_MEMORY;
    if (!pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, r->c->kind))
        return NULL;
    dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    d.data.sample = grid_sample;
    d.data.user = r;
    d.no_shuffle = true;
    const int fault = atomic_load(&grid_now);
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    if (!result)
        result = dt_trainer_step(t, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(t), &before);
    if (!result && fault == GRID_LR && r->index == atomic_load(&grid_who))
        result = dt_trainer_set_lr(t, 0.5);
    if (!result) {
        r->end.result = dt_trainer_step(t, NULL);
        snprintf(r->end.text, sizeof r->end.text, "%s", dt_ctx_error(m.ctx));
        dt_store *store = dt_trainer_store(t);
        if (store)
            dt_store_state_hash(store, &after);
    }
    r->end.steps[0].hash = before;
    r->end.steps[1].hash = after;
    dt_comm_barrier(r->comm);
    if (r->index == 0)
        atomic_store(&grid_now, GRID_FAULTS); /* fixed */
    dt_comm_barrier(r->comm);
    if (!result && fault == GRID_LR)
        result = dt_trainer_set_lr(t, 0.01);
    for (int i = 0; i < 3 && !result; i++) /* the prefetched sample may fail once more */
        result = dt_trainer_step(t, NULL) && i ? DT_ERROR_INVALID : DT_OK;
    CHECK_TEXT(!result, "fault %d, rank %d afterwards: %s", fault, r->index, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return NULL;
}

TEST(an_error_on_one_rank_of_pipelines_is_one_on_all_and_changes_nothing) {
    static const dt_result wants[GRID_FAULTS] = {DT_ERROR_IO, DT_ERROR_INVALID, DT_ERROR_NUMERIC,
                                                 DT_ERROR_INVALID};
    static const char *texts[GRID_FAULTS] = {"", "77", "input 'x' holds a NaN",
                                             "different learning rates"};
    static grid_rank ranks[GRID_RANKS];
    for (int fault = 0; fault < GRID_FAULTS; fault++) {
        for (int who = 0; who < 4; who++) {
            grid_case c = {.kind = PIPE_SKIP, .accumulate = 5, .batch = 50, .stages = 2};
            c.ranks = 4;
            atomic_store(&grid_now, fault);
            atomic_store(&grid_who, who);
            grid_job(&c, ranks, grid_spoilt);
            int told = 0;
            for (int i = 0; i < c.ranks; i++) {
                const grid_end *e = &ranks[i].end;
                told += e->result == wants[fault] && strstr(e->text, texts[fault]) != NULL;
                CHECK_TEXT(e->result == wants[fault] || e->result == DT_ERROR_CANCELLED,
                           "fault %d of rank %d: rank %d: %d, %s", fault, who, i, (int)e->result,
                           e->text);
                CHECK_TEXT(e->steps[0].hash && e->steps[0].hash == e->steps[1].hash,
                           "fault %d of rank %d: rank %d has changed", fault, who, i);
            }
            CHECK_TEXT(told > 0, "fault %d of rank %d: %s", fault, who, ranks[0].end.text);
        }
    }
}

static void *grid_differs(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    if (!pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, r->c->kind))
        return NULL;
    dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    if (r->index == 1)
        d.parallel.pipeline = r->c->replicas; /* another one */
    d.parallel.replicas = 0;
    r->end.result = dt_trainer_create(m.graph, &d, &t);
    snprintf(r->end.text, sizeof r->end.text, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return NULL;
}

TEST(grids_that_differ_between_ranks_are_named) {
    static grid_rank ranks[GRID_RANKS];
    const grid_case c = {
        .kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .stages = 2, .replicas = 4, .ranks = 4};
    grid_job(&c, ranks, grid_differs);
    for (int i = 0; i < c.ranks; i++)
        CHECK_TEXT(ranks[i].end.result == DT_ERROR_INVALID &&
                       strstr(ranks[i].end.text, ".parallel.pipeline 4") &&
                       strstr(ranks[i].end.text, ".parallel.pipeline 2"),
                   "rank %d: %s", i, ranks[i].end.text);
}

TEST(devices_that_form_no_grid_are_refused_on_all_ranks) {
    static const struct {
        int stages, replicas, ranks;
        const char *text;
    } all[] = {{2, 0, 3, "the .devices of the job's 3 ranks name 3"},
               {2, 3, 4, "3 replicas x 2 stages needs 6 devices"},
               {4, 0, 2, "1 replicas x 4 stages needs 4 devices"},
               {0, 3, 2, "3 replicas x 1 stages needs 3 devices"}};
    static grid_rank ranks[GRID_RANKS];
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const grid_case c = {.kind = PIPE_SKIP,
                             .accumulate = 4,
                             .batch = 40,
                             .stages = all[k].stages,
                             .replicas = all[k].replicas,
                             .ranks = all[k].ranks};
        grid_job(&c, ranks, grid_run);
        for (int i = 0; i < c.ranks; i++)
            CHECK_TEXT(ranks[i].end.result == DT_ERROR_INVALID &&
                           strstr(ranks[i].end.text, all[k].text),
                       "rank %d: %s", i, ranks[i].end.text);
    }
}

/* ---- memory that runs out on one rank */

typedef struct grid_purse {
    _Atomic int64_t bytes, left;
    bool once; /* one allocation fails, and not all after it */
} grid_purse;

static grid_purse grid_money; /* rank 1's */
static int64_t grid_allowed;

static void *grid_alloc(void *user, size_t bytes, size_t align) {
    grid_purse *p = user;
    const int64_t left = atomic_fetch_sub(&p->left, 1);
    if (p->once ? left == 0 : left <= 0)
        return NULL;
    atomic_fetch_add(&p->bytes, (int64_t)bytes);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void grid_free(void *user, void *memory, size_t bytes) {
    atomic_fetch_sub(&((grid_purse *)user)->bytes, (int64_t)bytes);
    free(memory);
}

static void *grid_poor(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    dt_ctx_desc ctx = {.no_vulkan = true, .threads = 1};
    if (r->index == 1)
        ctx.allocator = (dt_allocator){grid_alloc, grid_free, &grid_money};
    r->end.result = DT_ERROR_INVALID;
    if (!pipe_model(&m, &ctx, r->c->kind))
        return NULL;
    const dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    if (r->index == 1)
        atomic_store(&grid_money.left, grid_allowed);
    r->end.result = dt_trainer_create(m.graph, &d, &t);
    snprintf(r->end.text, sizeof r->end.text, "%s", dt_ctx_error(m.ctx));
    if (r->index == 1)
        r->end.steps[0].hash = atomic_exchange(&grid_money.left, INT64_MAX) >= 0;
    if (!r->end.result)
        r->end.result = dt_trainer_step(t, NULL);
    dt_ctx_destroy(m.ctx);
    return NULL;
}

static void grid_poor_make(const grid_case *c) {
    static grid_rank ranks[GRID_RANKS];
    const int each = !test_takes(1, 1, 2) ? 13 : grid_money.once || test_is_long() ? 1 : 3;
    bool enough = false;
    for (int64_t n = 1; n < 20000 && !enough && test_now.failures < 5; n += each) {
        atomic_store(&grid_money.left, INT64_MAX);
        grid_allowed = n;
        grid_job(c, ranks, grid_poor);
        enough = ranks[1].end.steps[0].hash != 0;
        for (int i = 0; i < c->ranks; i++)
            CHECK_TEXT(ranks[i].end.result == (enough ? DT_OK : DT_ERROR_MEMORY),
                       "%d allocations, rank %d: %d, %s", (int)n, i, (int)ranks[i].end.result,
                       ranks[i].end.text);
        CHECK_TEXT(atomic_load(&grid_money.bytes) == 0, "%d allocations: %d bytes are left", (int)n,
                   (int)atomic_load(&grid_money.bytes));
    }
    CHECK(enough);
}

TEST(a_grid_is_created_on_no_rank_when_one_runs_out_of_memory) {
    grid_poor_make(&(grid_case){.kind = 0,
                                .accumulate = 3,
                                .batch = 36,
                                .stages = 2,
                                .ranks = 3,
                                .devices = {"cpu", "cpu:2", "cpu"}});
}

/* Ranks of one tensor group on several processes, of stages and of whole models; memory that is
 * free again after the allocation that failed. */
TEST(tensor_groups_are_made_on_all_ranks_or_none_when_memory_runs_out) {
    grid_money.once = true;
    for (int stages = 0; stages <= 2; stages += 2)
        grid_poor_make(&(grid_case){.kind = TRAIN_PARTS,
                                    .accumulate = 2,
                                    .batch = 36,
                                    .stages = stages,
                                    .tensor_ranks = 2,
                                    .replicas = stages ? 1 : 2,
                                    .ranks = 3,
                                    .devices = {"cpu", "cpu:2", "cpu"}});
    grid_money.once = false;
}

/* Units of ZeRO are a stage's or a shard group's, each of several ranks. */
TEST(sharded_grids_are_made_on_all_ranks_or_none_when_memory_runs_out) {
    grid_money.once = true;
    grid_poor_make(&(grid_case){.kind = 0,
                                .accumulate = 2,
                                .batch = 36,
                                .stages = 2,
                                .ranks = 3,
                                .zero_stage = DT_SHARD_PARAMETERS,
                                .devices = {"cpu", "cpu:2", "cpu"}});
    for (int stage = DT_SHARD_OPTIMIZER; stage <= DT_SHARD_PARAMETERS; stage += 2)
        grid_poor_make(&(grid_case){.kind = 0,
                                    .accumulate = 2,
                                    .batch = 36,
                                    .ranks = 4,
                                    .zero_stage = stage,
                                    .shard_degree = 2});
    grid_money.once = false;
}

static bool grid_loads; /* in place of saving */

/* A rank's memory runs out while a checkpoint in parts is written or read. */
static void *grid_poor_file(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    dt_ctx_desc ctx = {.no_vulkan = true, .threads = 1};
    const int poor = grid_loads ? 0 : 1; /* the reader; any that writes */
    if (r->index == poor)
        ctx.allocator = (dt_allocator){grid_alloc, grid_free, &grid_money};
    r->end.result = DT_ERROR_INVALID;
    if (!pipe_model(&m, &ctx, r->c->kind))
        return NULL;
    dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    d.checkpoint.sharded = true;
    dt_result made = dt_trainer_create(m.graph, &d, &t);
    if (!made)
        made = dt_trainer_step(t, NULL);
    dt_comm_barrier(r->comm);
    if (r->index == poor)
        atomic_store(&grid_money.left, grid_allowed);
    r->end.result = made         ? made
                    : grid_loads ? dt_trainer_load(t, r->c->load)
                                 : dt_trainer_save(t, r->c->load);
    snprintf(r->end.text, sizeof r->end.text, "%s", dt_ctx_error(m.ctx));
    if (r->index == poor)
        r->end.steps[0].hash = atomic_exchange(&grid_money.left, INT64_MAX) >= 0;
    dt_comm_barrier(r->comm);
    if (!made && (dt_trainer_step(t, NULL) || !dt_trainer_store(t) ||
                  dt_store_hash(dt_trainer_store(t), &r->end.steps[1].hash)))
        r->end.steps[1].hash = 0;
    dt_ctx_destroy(m.ctx);
    return NULL;
}

static void grid_poor_files(const grid_case *c) {
    static grid_rank ranks[GRID_RANKS];
    const int each = test_is_long() || grid_loads ? 1 : 3;
    bool enough = false;
    for (int64_t n = 1; n < 2000 && !enough && test_now.failures < 5; n += each) {
        atomic_store(&grid_money.left, INT64_MAX);
        grid_allowed = n;
        grid_job(c, ranks, grid_poor_file);
        enough = ranks[0].end.steps[0].hash || ranks[1].end.steps[0].hash;
        for (int i = 0; i < c->ranks; i++)
            CHECK_TEXT(
                ranks[i].end.result == ranks[0].end.result &&
                    (!ranks[i].end.result || (ranks[i].end.result == DT_ERROR_MEMORY && !enough)) &&
                    ranks[i].end.steps[1].hash == ranks[0].end.steps[1].hash &&
                    ranks[i].end.steps[1].hash,
                "%d allocations, rank %d: %d, %s", (int)n, i, (int)ranks[i].end.result,
                ranks[i].end.text);
        CHECK(atomic_load(&grid_money.bytes) == 0);
    }
    CHECK(enough);
}

TEST(memory_that_runs_out_in_part_writes_or_reads_is_reported_to_all_and_training_continues) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/dtrain-poor-%ld", (long)getpid());
    grid_money.once = true;
    for (int zero = 0; zero < 2; zero++)
        for (int loads = 0; loads < 2; loads++) {
            grid_loads = loads;
            grid_poor_files(&(grid_case){.kind = 0,
                                         .accumulate = 2,
                                         .batch = 36,
                                         .stages = zero ? 0 : 2,
                                         .ranks = 2,
                                         .zero_stage = zero ? DT_SHARD_PARAMETERS : 0,
                                         .load = path});
        }
    grid_money.once = false;
    static const char *const names[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors",
                                        "model.safetensors.index.json"};
    for (int i = 0; i < 3; i++) {
        char file[128];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        CHECK(remove(file) == 0);
    }
    CHECK(remove(path) == 0);
}

/* ---- the loop over epochs */

/* With a validation, the best weights put back, and steps after them; shared inputs too. */
static void *grid_fit(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    r->end.result = DT_ERROR_MEMORY;
    if (!pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, r->c->kind))
        return NULL;
    const dt_tensor scale = dt_input_shared(m.graph, "scale", DT_F32, dt_dims(TRAIN_CLASSES));
    dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    d.loss = (dt_tensor){0};
    d.losses[0].term = dt_cross_entropy(dt_mul(m.logits, scale), m.t, NULL);
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    const float scales[TRAIN_CLASSES] = {1, 0.5f, 2, 1, 0.25f};
    const dt_fit_desc fit = {
        .epochs = 5, .validation = &d.data, .watch = {.maximize = true, .restore_best = true}};
    if (!result)
        result = dt_trainer_set_input(t, scale, scales, sizeof scales);
    if (!result)
        result = dt_trainer_fit(t, &fit, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(t), &r->end.steps[0].hash);
    for (int i = 0; i < 2 && !result; i++)
        result = dt_trainer_step(t, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(t), &r->end.steps[1].hash);
    r->end.result = result;
    snprintf(r->end.text, sizeof r->end.text, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return NULL;
}

TEST(grid_of_pipelines_fits_and_continues_from_the_best_weights) {
    static grid_rank one[1], ranks[GRID_RANKS];
    grid_case c = {.kind = PIPE_SKIP, .accumulate = 3, .batch = 37, .batch_slices = 2, .ranks = 1};
    grid_job(&c, one, grid_fit);
    CHECK_TEXT(!one->end.result && one->end.steps[0].hash != one->end.steps[1].hash, "%s",
               one->end.text);
    c.stages = 2;
    for (int i = 0; i < GRID_OF_4; i++) {
        grid_spread(&c, i);
        grid_job(&c, ranks, grid_fit);
        for (int k = 0; k < c.ranks; k++)
            CHECK_TEXT(!ranks[k].end.result &&
                           ranks[k].end.steps[0].hash == one->end.steps[0].hash &&
                           ranks[k].end.steps[1].hash == one->end.steps[1].hash,
                       "%d ranks, rank %d: %s", c.ranks, k, ranks[k].end.text);
    }
}

/* What is evaluated is computed on the hosts, in their own rounding. */
TEST(grid_of_pipelines_on_a_vulkan_device_has_the_bits_of_that_device) {
    static grid_rank ranks[GRID_RANKS];
    static const char *both = "vulkan:0,vulkan:0";
    if (!pipe_has_vulkan())
        SKIP("no Vulkan device");
    grid_case c = {.kind = PIPE_SKIP, .accumulate = 2, .batch = 40, .steps = 3, .batch_slices = 4};
    c.vulkan = true;
    const grid_end want = *grid_oracle(&c);
    c.stages = 2;
    c.ranks = 2;
    for (int i = 0; i < 3; i++) { /* 1 x 2, 2 x 2 and 2 x 2 again, split */
        c.devices[0] = c.devices[1] = i ? both : "vulkan:0";
        c.schedule = i == 2 ? DT_PIPELINE_ZERO_BUBBLE : DT_PIPELINE_1F1B;
        grid_job(&c, ranks, grid_run);
        for (int k = 0; k < c.ranks; k++)
            CHECK_TEXT(!ranks[k].end.result && ranks[k].end.steps[2].hash == want.steps[2].hash &&
                           want.steps[2].hash,
                       "case %d, rank %d: %016llx, not %016llx: %s", i, k,
                       (unsigned long long)ranks[k].end.steps[2].hash,
                       (unsigned long long)want.steps[2].hash, ranks[k].end.text);
    }
}

/* ---- the rank that reads samples */

static _Atomic int grid_reads[GRID_RANKS];

static dt_result grid_count(void *user, const dt_sample *s, void *const *values) {
    (void)s;
    (void)values;
    atomic_fetch_add(&grid_reads[((const grid_rank *)user)->index], 1);
    return DT_OK;
}

static void *grid_reading(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    if (!pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, r->c->kind))
        return NULL;
    dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    d.data.sample = grid_count;
    d.data.user = r;
    r->end.result = dt_trainer_create(m.graph, &d, &t);
    for (int i = 0; i < 3 && !r->end.result; i++)
        r->end.result = dt_trainer_step(t, NULL);
    snprintf(r->end.text, sizeof r->end.text, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return NULL;
}

TEST(ranks_of_a_pipeline_whose_stages_need_no_samples_read_none) {
    static grid_rank ranks[GRID_RANKS];
    const grid_case c = {.kind = PIPE_SKIP, .accumulate = 3, .batch = 30, .stages = 4, .ranks = 4};
    for (int i = 0; i < GRID_RANKS; i++)
        atomic_store(&grid_reads[i], 0);
    grid_job(&c, ranks, grid_reading);
    for (int i = 0; i < c.ranks; i++) {
        const int reads = atomic_load(&grid_reads[i]);
        CHECK_TEXT(!ranks[i].end.result, "rank %d: %s", i, ranks[i].end.text);
        CHECK_TEXT(i == 0 || i == 3 ? reads >= 90 : reads == 0, "rank %d read %d samples", i,
                   reads);
    }
}

/* ---- a checkpoint whose batch slices are others than before */

/* One device writes a file of many batch slices. */
static void grid_batch_slices_save(const char *file, int batch_slices, int accumulate) {
    static grid_rank one[1];
    const grid_case c = {.kind = PIPE_SKIP,
                         .accumulate = accumulate,
                         .batch = 140,
                         .steps = 1,
                         .batch_slices = batch_slices,
                         .ranks = 1,
                         .save = file};
    grid_job(&c, one, grid_run);
    CHECK_TEXT(!one->end.result, "%s", one->end.text);
}

/* The application's store is one of before the file was loaded. */
static void *grid_reshard(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    dt_store *store = NULL;
    r->end.result = DT_ERROR_MEMORY;
    if (!pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, r->c->kind))
        return NULL;
    const dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    if (!result)
        result = (store = dt_trainer_store(t)) ? dt_trainer_step(t, NULL) : DT_ERROR_INVALID;
    if (!result) {
        r->end.steps[0].loss = (double)dt_trainer_load(t, r->c->load);
        snprintf(r->end.text, sizeof r->end.text, "%s", dt_ctx_error(m.ctx));
        result = dt_trainer_step(t, NULL);
    }
    if (!result)
        result = dt_store_state_hash(store, &r->end.steps[0].hash);
    if (!result && dt_trainer_store(t))
        result = dt_store_state_hash(dt_trainer_store(t), &r->end.steps[1].hash);
    r->end.result = result;
    dt_ctx_destroy(m.ctx);
    return NULL;
}

TEST(store_of_a_grid_is_up_to_date_after_loading_other_batch_slices) {
    static const char *file = "build/pipe_batch_slices.checkpoint";
    static grid_rank ranks[GRID_RANKS];
    grid_case c = {.kind = PIPE_SKIP, .accumulate = 2, .batch = 140, .stages = 2, .load = file};
    grid_batch_slices_save(file, 3, 2);
    for (c.ranks = 1; c.ranks <= 2; c.ranks++) {
        c.devices[0] = c.ranks == 1 ? "cpu:2" : NULL;
        grid_job(&c, ranks, grid_reshard);
        for (int i = 0; i < c.ranks; i++) {
            const grid_end *e = &ranks[i].end;
            CHECK_TEXT(!e->result && e->steps[0].loss == 0.0, "rank %d: %s", i, e->text);
            CHECK_TEXT(e->steps[0].hash && e->steps[0].hash == e->steps[1].hash,
                       "%d ranks, rank %d: the store is one of before", c.ranks, i);
        }
    }
    remove(file);
}

TEST(a_grid_trains_on_after_refusing_a_checkpoint_of_too_many_batch_slices) {
    static const char *file = "build/pipe_many.checkpoint";
    static grid_rank ranks[GRID_RANKS];
    const grid_case c = {
        .kind = PIPE_SKIP, .accumulate = 30, .batch = 140, .stages = 2, .ranks = 2, .load = file};
    grid_batch_slices_save(file, 140, 30); /* 4200 micro-batches */
    grid_job(&c, ranks, grid_reshard);
    for (int i = 0; i < c.ranks; i++) {
        const grid_end *e = &ranks[i].end;
        CHECK_TEXT(e->steps[0].loss == (double)DT_ERROR_INVALID &&
                       strstr(e->text, ".accumulate is 30, with 140 batch slices a replica of a "
                                       "pipeline; their product must be at most 4096"),
                   "rank %d: %d: %s", i, (int)e->steps[0].loss, e->text);
        CHECK_TEXT(!e->result && e->steps[0].hash, "rank %d does not go on", i);
    }
    remove(file);
}

/* Two steps, then a file for which the grid is rebuilt, and memory for some of that. */
static void *grid_poor_load(void *arg) {
    grid_rank *r = arg;
    train_model m = {0};
    dt_trainer *t = NULL;
    dt_trainer_info info;
    const dt_ctx_desc ctx = {
        .no_vulkan = true, .threads = 1, .allocator = {grid_alloc, grid_free, &grid_money}};
    r->end.result = DT_ERROR_INVALID;
    if (!pipe_model(&m, &ctx, r->c->kind))
        return NULL;
    const dt_trainer_desc d = grid_desc(&m, r->c, r->index, r->comm);
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    for (int i = 0; i < 2 && !result; i++)
        result = dt_trainer_step(t, NULL);
    atomic_store(&grid_money.left, grid_allowed);
    r->end.result = !result && grid_allowed ? dt_trainer_load(t, r->c->load) : result;
    atomic_store(&grid_money.left, INT64_MAX);
    dt_trainer_get_info(t, &info);
    CHECK_TEXT(result || info.step == 2 || !r->end.result, "step %d", (int)info.step);
    if (!result)
        dt_trainer_evaluate(t, &d.data, 0, NULL);
    if (!result && dt_trainer_store(t))
        dt_store_state_hash(dt_trainer_store(t), &r->end.steps[0].hash);
    dt_ctx_destroy(m.ctx);
    return NULL;
}

/* Beside a grid, two replicas without stages. */
static void grid_poor_loads(const char *file, int stages, int zero_stage) {
    static grid_rank ranks[1];
    const grid_case c = {.kind = PIPE_SKIP,
                         .accumulate = 2,
                         .batch = 140,
                         .stages = stages,
                         .ranks = 1,
                         .zero_stage = zero_stage,
                         .devices = {zero_stage && stages ? "cpu:4" : "cpu:2"},
                         .load = file};
    uint64_t want = 0;
    bool some = !stages;
    dt_result result = DT_ERROR_MEMORY;
    const int each = test_takes(1, 1, 5) ? 5 : 29;
    for (int64_t n = 0; n < 20000 && (result || n <= each) && test_now.failures < 5; n += each) {
        atomic_store(&grid_money.left, INT64_MAX);
        grid_allowed = n; /* 0: nothing is loaded */
        grid_job(&c, ranks, grid_poor_load);
        result = ranks[0].end.result;
        want = n ? want : ranks[0].end.steps[0].hash;
        CHECK_TEXT(!result || result == DT_ERROR_MEMORY, "%d allocations: %d", (int)n, (int)result);
        const uint64_t hash = ranks[0].end.steps[0].hash;
        const bool lost = stages && !hash; /* only rebuilt devices have them */
        CHECK_TEXT(want && (!n || !result || hash == want || lost),
                   "%d stages, %d allocations: the values are not those of before", stages, (int)n);
        some = some || (lost && n && result);
    }
    CHECK_TEXT(!result && ranks[0].end.steps[0].hash != want, "nothing was loaded");
    CHECK_TEXT(some, "%d stages: no values were lost", stages);
}

TEST(a_grid_rebuilt_for_a_checkpoint_without_memory_reports_that_its_values_are_lost) {
    static const char *file = "build/pipe_poor.checkpoint";
    grid_batch_slices_save(file, 3, 2);
    grid_poor_loads(file, 2, 0);
    grid_poor_loads(file, 0, 0);
    grid_poor_loads(file, 2, DT_SHARD_PARAMETERS);
    remove(file);
}

/* ---- settings that a pipeline cannot be combined with */

TEST(pipeline_with_servers_or_offload_is_unsupported) {
    for (int i = 0; i < 2; i++) {
        train_model m = {0};
        dt_trainer *t = NULL;
        REQUIRE(pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, PIPE_SKIP));
        const grid_case c = {.accumulate = 2, .batch = 40, .stages = 2, .devices = {"cpu:2"}};
        dt_trainer_desc d = grid_desc(&m, &c, 0, NULL);
        d.mode = i ? DT_TRAIN_SYNCHRONOUS : DT_TRAIN_SERVER;
        d.server.addresses = i ? NULL : "127.0.0.1:1";
        d.parallel.zero_stage = i ? DT_SHARD_PARAMETERS : 0;
        d.parallel.offload = i;
        CHECK(dt_trainer_create(m.graph, &d, &t) == DT_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(
            dt_ctx_error(m.ctx),
            i ? ".parallel.offload cannot be combined with .parallel.pipeline = 2"
              : ".parallel.pipeline = 2 cannot be combined with .mode = DT_TRAIN_SERVER");
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- where a model is cut: micro-batches of two ranks have unequal numbers of rows */

typedef struct uneven_rank {
    dt_comm *comm;
    uint64_t hash;
    char text[1200];
    pthread_t thread;
} uneven_rank;

/* Whether a place is cheap to cut depends on rows: some tensors over it have no samples. */
static dt_tensor uneven_model(dt_graph *g, dt_tensor x) {
    const dt_init init = {.kind = DT_INIT_UNIFORM, .a = 0.5f, .b = 1.0f};
    const dt_tensor no = {0};
    dt_tensor weights = dt_fill(g, dt_dims(5), 1.5f), label = dt_fill(g, dt_dims(1, 5), 0.5f);
    dt_tensor h = dt_adaptive_avg_pool2d(x, 3, 1);
    h = dt_flatten(
        dt_max(dt_matmul(h, dt_param(g, "a", dt_dims(1, 1, 2), init)), dt_dims(0, 1, 2), false));
    dt_tensor scale = dt_tanh(dt_param(g, "b", dt_dims(1), init));
    h = dt_reshape(dt_layer_norm(h, 1, scale, no, 0.05f), dt_dims(1, 1, 1, 1));
    h = dt_matmul_transposed(h, label, true, false);
    dt_tensor each = dt_square(dt_gradient(h, label));
    const int32_t class = 2;
    dt_tensor t = dt_constant(g, DT_I32, dt_dims(1), &class);
    const dt_cross_entropy_desc desc = {.label_smoothing = 0.06f, .class_weights = weights};
    dt_tensor penalty = dt_gradient(dt_cross_entropy(each, t, &desc), scale);
    return dt_mse(dt_param(g, "c", dt_dims(1), init), penalty);
}

static void *uneven_run(void *arg) {
    uneven_rank *r = arg;
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    dt_trainer *t = NULL;
    float data[9 * 27];
    for (int i = 0; i < 9 * 27; i++)
        data[i] = (float)(i * 37 % 101) / 101.0f;
    dt_result result = dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 1}, &ctx);
    if (!result)
        result = dt_graph_create(ctx, &g);
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(3, 3, 3));
    dt_trainer_desc d = {.loss = uneven_model(g, x),
                         .batch = 9,
                         .parallel.batch_slices = 5,
                         .devices = r->comm ? "cpu:3" : "cpu",
                         .parallel.pipeline = r->comm ? 3 : 0,
                         .comm = r->comm};
    d.data.rows = 9;
    d.data.columns[0] = (dt_column){.input = x, .data = data, .dtype = DT_F32};
    if (!result)
        result = dt_trainer_create(g, &d, &t);
    for (int i = 0; i < 3 && !result; i++)
        result = dt_trainer_step(t, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(t), &r->hash);
    if (result)
        snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
    return NULL;
}

TEST(ranks_cut_a_model_at_the_same_places_for_any_number_of_rows) {
    uneven_rank all[3] = {{.hash = 0}};
    dt_comm *comms[2];
    if (!CHECK_TEXT(!dt_comm_create_threads(NULL, 2, comms), "comms"))
        return;
    uneven_run(&all[2]);
    for (int i = 0; i < 2; i++) {
        all[i].comm = comms[i];
        CHECK(!pthread_create(&all[i].thread, NULL, uneven_run, &all[i]));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(all[i].thread, NULL);
    for (int i = 0; i < 3; i++)
        CHECK_TEXT(!all[i].text[0] && all[i].hash == all[2].hash, "rank %d: %s", i, all[i].text);
    for (int i = 0; i < 2; i++)
        dt_comm_destroy(comms[i]);
}
