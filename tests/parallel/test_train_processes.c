/* Training by several processes over TCP: the same bits as one process. The numbers of ranks and
 * replicas vary, and some ranks are late; settings that differ between ranks; and what goes wrong
 * on one of them. The oracle is always one process with one replica. */
#include "parallel/train_processes.h"

/* An MLP of a width. */
static bool plain_model(train_model *m, int width, float dropout) {
    *m = (train_model){.adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01}};
    if (dt_ctx_create(&one_thread, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    dt_tensor h = dt_dropout(dt_relu(dt_nn_linear(m->x, "fc0", width)), dropout);
    m->logits = dt_nn_linear(h, "fc1", TRAIN_CLASSES);
    m->loss = dt_cross_entropy(m->logits, m->t, NULL);
    m->accuracy = dt_accuracy(m->logits, m->t);
    train_data_fill(&m->data);
    return dt_graph_error(m->graph) == NULL;
}

/* ---- the same bits */

typedef struct bits_case {
    int conv;  /* train_model_make's kind */
    int width; /* 0 = train_model.h's models */
    int batch, accumulate, steps;
    dt_tail tail;
    size_t bucket_bytes;
} bits_case;

/* 150 samples: batches of 37 leave 2, of 9 6, of 64 22. Some batch slices of 9 have a single row,
 * and 3 parts of it are empty. All go over the end of an epoch. */
static const bits_case bits_cases[] = {
    {.conv = true, .batch = 37, .accumulate = 1, .steps = 7},
    {.conv = true, .batch = 37, .accumulate = 3, .steps = 6, .tail = DT_TAIL_DROP},
    {.conv = true, .batch = 64, .accumulate = 3, .steps = 5, .bucket_bytes = 1024},
    {.batch = 37, .accumulate = 3, .steps = 7},
    {.batch = 37, .accumulate = 1, .steps = 7, .tail = DT_TAIL_PAD, .bucket_bytes = 1024},
    {.batch = 64, .accumulate = 3, .steps = 5, .tail = DT_TAIL_PAD},
    {.batch = 9, .accumulate = 3, .steps = 19},
    {.batch = 9, .accumulate = 1, .steps = 18, .tail = DT_TAIL_DROP},
    {.conv = TRAIN_SYNC, .batch = 37, .accumulate = 1, .steps = 7, .bucket_bytes = 1024},
    {.conv = TRAIN_SYNC, .batch = 64, .accumulate = 1, .steps = 5, .tail = DT_TAIL_DROP},
    {.width = 2500, .batch = 40, .accumulate = 1, .steps = 12}, /* buckets in several slices */
};
enum { BITS_CASES = sizeof bits_cases / sizeof bits_cases[0], BITS_STEPS = 20 };

/* Fills `steps` records, and one of an evaluation; what fails is in text. */
static bool bits_run(const bits_case *c, dt_comm *comm, const char *devices, step_record *records,
                     char *text, size_t size) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report report;
    bool made =
        c->width ? plain_model(&m, c->width, 0.2f) : train_model_make(&m, &one_thread, c->conv);
    if (!made)
        return false;
    dt_trainer_desc d = train_desc(&m);
    d.comm = comm;
    d.devices = devices;
    d.parallel.batch_slices = 8;
    d.batch = c->batch;
    d.accumulate = c->accumulate;
    d.tail = c->tail;
    d.parallel.bucket_bytes = c->bucket_bytes;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < c->steps && !result; i++) {
        result = dt_trainer_step(trainer, &report);
        records[i] = record_of(trainer, &report);
    }
    if (!result)
        result = dt_trainer_evaluate(trainer, &d.data, c->conv ? 0 : 7, &report);
    if (!result)
        records[c->steps] = record_of(trainer, &report);
    snprintf(text, size, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return !result;
}

/* One after the other with one comm. */
static void bits_rank(rank *r) {
    for (int i = 0; i < BITS_CASES; i++) {
        bool ran = bits_run(&bits_cases[i], r->comm, rank_devices(r), r->records + i * BITS_STEPS,
                            r->text, sizeof r->text);
        EXPECT_TEXT(r, ran, "case %d: %s", i, r->text);
        if (!ran)
            return;
    }
}

static step_record bits_oracle[BITS_CASES][BITS_STEPS];

static bool bits_oracle_make(void) {
    char text[1200];
    for (int i = 0; i < BITS_CASES && !bits_oracle[i][0].hash; i++) {
        if (!CHECK_TEXT(bits_run(&bits_cases[i], NULL, "cpu", bits_oracle[i], text, sizeof text),
                        "the oracle of case %d: %s", i, text))
            return false;
    }
    return true;
}

static void bits_compare(const rank *r) {
    for (int i = 0; i < BITS_CASES; i++) {
        for (int k = 0; k < bits_cases[i].steps; k++) {
            const step_record *got = &r->records[i * BITS_STEPS + k], *want = &bits_oracle[i][k];
            if (!CHECK_TEXT(record_equal(got, want),
                            "%d ranks, rank %d (%s), case %d, step %d: hash %016llx, not %016llx; "
                            "loss %.17g, not %.17g; gradient norm %.17g, not %.17g",
                            r->job->count, r->index, rank_devices(r), i, k + 1,
                            (unsigned long long)got->hash, (unsigned long long)want->hash,
                            got->loss, want->loss, got->norm, want->norm))
                break;
        }
        /* ranks add up what each has by itself: near, and the same on all */
        const int last = bits_cases[i].steps;
        const step_record *got = &r->records[i * BITS_STEPS + last], *want = &bits_oracle[i][last],
                          *first = &r->job->at[0].records[i * BITS_STEPS + last];
        CHECK_TEXT(got->hash == want->hash && got->right == want->right &&
                       fabs(got->loss - want->loss) <= 1e-6 * want->loss &&
                       record_equal(got, first),
                   "%d ranks, rank %d, case %d, evaluation: loss %.17g, %.17g, %.17g",
                   r->job->count, r->index, i, got->loss, first->loss, want->loss);
    }
}

static void bits_job(int count, const char *const *devices) {
    job *j = job_new(count, NULL);
    if (!j || !bits_oracle_make())
        return;
    for (int i = 0; i < count && devices; i++)
        j->devices[i] = devices[i];
    if (job_run(j, bits_rank)) {
        for (int i = 0; i < count; i++)
            bits_compare(&j->at[i]);
    }
    job_free(j);
}

TEST(processes_one_to_eight_train_the_same_bits) {
    static const int counts[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (test_takes((long)i + 1, 1, 3))
            bits_job(counts[i], NULL);
}

TEST(processes_with_several_replicas_train_the_same_bits) {
    bits_job(3, (const char *[]){"cpu", "cpu:2", "cpu"});
    bits_job(2, (const char *[]){"cpu:3", "cpu:2,cpu"});
    if (!test_takes(1, 1, 2))
        return;
    bits_job(2, (const char *[]){"cpu:2", "cpu:2"});
    bits_job(2, (const char *[]){"cpu", "cpu:7"});
}

/* ---- the weight of a batch is the whole job's */

enum { UNEVEN_BATCH = 128, UNEVEN_VALID = 3 };

/* SGD with lr 1: what a step takes away from the parameters is the gradient. Of the first 64
 * samples 3 have a target, of the others all but 3. */
static bool uneven_model(train_model *m) {
    if (!train_model_make(m, &one_thread, false))
        return false;
    m->adam = (dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 1.0};
    for (int i = 0; i < UNEVEN_BATCH; i++) {
        bool valid = i < UNEVEN_BATCH / 2 ? i % 20 == 3 && i < 50 : i >= UNEVEN_BATCH / 2 + 3;
        m->data.t[i] = valid ? i % TRAIN_CLASSES : -100;
    }
    return true;
}

static int uneven_values(dt_store *store, float *values, int room) {
    int used = 0;
    for (int i = 0; i < dt_store_param_count(store); i++) {
        dt_param_info info;
        if (dt_store_get_param(store, i, &info) || used + (int)info.elements > room ||
            dt_store_read(store, i, DT_VALUE_PARAM, values + used, info.elements * sizeof *values))
            return 0;
        used += (int)info.elements;
    }
    return used;
}

static int uneven_train(dt_comm *comm, float *values, int room, step_record *record, char *text,
                        size_t size) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report report;
    int count = 0;
    if (!uneven_model(&m))
        return 0;
    dt_trainer_desc d = train_desc(&m);
    d.comm = comm;
    d.devices = "cpu";
    d.parallel.batch_slices = 8;
    d.batch = UNEVEN_BATCH;
    d.tail = DT_TAIL_DROP;
    d.no_shuffle = true;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    if (!result)
        result = dt_trainer_step(trainer, &report);
    if (!result) {
        *record = record_of(trainer, &report);
        count = uneven_values(dt_trainer_store(trainer), values, room);
    }
    snprintf(text, size, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return count;
}

static void uneven_rank(rank *r) {
    int count = uneven_train(r->comm, r->values, 4096, r->records, r->text, sizeof r->text);
    r->numbers[0] = (uint64_t)count;
    EXPECT_TEXT(r, count > 0, "%s", r->text);
}

/* The same batch as one program without a trainer: before, and after a step. */
static int uneven_program(float *before, float *after, int room, dt_report *report) {
    train_model m;
    dt_store *store = NULL;
    dt_program *program = NULL;
    int count = 0;
    if (!uneven_model(&m))
        return 0;
    const dt_store_desc s = {.device = "cpu", .seed = 3};
    const dt_program_desc p = {
        .batch = UNEVEN_BATCH, .loss = m.loss, .metrics = {m.accuracy}, .optim = &m.adam};
    dt_result result = dt_store_create(m.graph, &s, &store);
    if (!result)
        result = dt_program_create(store, &p, &program);
    if (!result)
        count = uneven_values(store, before, room);
    if (!result)
        result = dt_program_write(program, m.x, m.data.x,
                                  UNEVEN_BATCH * TRAIN_SIDE * TRAIN_SIDE * sizeof *m.data.x);
    if (!result)
        result = dt_program_write(program, m.t, m.data.t, UNEVEN_BATCH * sizeof *m.data.t);
    if (!result)
        result = dt_program_run(program, &(dt_step_desc){.seed = 3}, report);
    if (!result && uneven_values(store, after, room) != count)
        count = 0;
    CHECK_TEXT(!result, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return result ? 0 : count;
}

TEST(one_rank_with_3_targets_and_another_with_61_give_the_gradient_of_one_batch) {
    static float alone[4096], before[4096], after[4096];
    char text[1200];
    step_record want;
    dt_report report;
    double largest = 0.0, wrong = 0.0;
    const int count = uneven_train(NULL, alone, 4096, &want, text, sizeof text);
    CHECK_TEXT(count > 0, "%s", text);
    REQUIRE(uneven_program(before, after, 4096, &report) == count);
    CHECK(report.loss_weight[0] == 64.0 && want.samples == UNEVEN_BATCH);
    CHECK_NEAR(want.loss, report.loss, 1e-6 * report.loss);
    CHECK_NEAR(want.norm, report.gradient_norm, 1e-6 * report.gradient_norm);
    CHECK(want.right == report.metric_sum[0]);
    job *j = job_new(2, NULL);
    bool fine = job_run(j, uneven_rank);
    for (int i = 0; i < 2 && fine; i++) {
        const rank *r = &j->at[i];
        CHECK(r->numbers[0] == (uint64_t)count && record_equal(&r->records[0], &want));
        CHECK(!memcmp(r->values, alone, (size_t)count * sizeof *alone));
        for (int k = 0; k < count; k++) {
            const double exact = (double)before[k] - (double)after[k];
            const double off = fabs((double)r->values[k] - (double)after[k]);
            largest = fabs(exact) > largest ? fabs(exact) : largest;
            wrong = off > wrong ? off : wrong;
        }
    }
    CHECK_TEXT(fine && largest > 0.01 && wrong < 4e-6 * largest,
               "the largest gradient is %g, the largest difference %g", largest, wrong);
    job_free(j);
}

/* ---- settings that differ between ranks */

typedef enum difference {
    DIFFER_WIDTH,
    DIFFER_BATCH,
    DIFFER_SEED,
    DIFFER_LR,
    DIFFER_OPTIM,
    DIFFER_TRUST,
    DIFFER_PLAIN,
    DIFFER_EPOCHS,
    DIFFER_TAIL,
    DIFFER_ORDER,
    DIFFER_PARTS,
    DIFFER_PRECISION,
    DIFFER_BATCH_SLICES,
    DIFFER_ROWS,
    DIFFER_PARAMS,
    DIFFER_BUCKETS,
    DIFFER_COMPRESS,
    DIFFER_TYPE,
    DIFFER_DROPOUT,
    DIFFER_DEVICES, /* a name that only rank 1 cannot find */
    SAME_SMALL_BATCH,
    SAME_FEW_BATCH_SLICES,
    SAME /* it works */
} difference;

/* What must be in the text of all ranks. */
static const struct {
    const char *mine, *theirs; /* rank 1's, the others' */
} differences[SAME] = {
    [DIFFER_WIDTH] = {"17", "16"},
    [DIFFER_BATCH] = {".batch 38", ".batch 37"},
    [DIFFER_SEED] = {".seed 4", ".seed 3"},
    [DIFFER_LR] = {".optim->lr 0.02", ".optim->lr 0.01"},
    [DIFFER_OPTIM] = {".optim->kind DT_OPTIM_SGD", ".optim->kind DT_OPTIM_ADAM"},
    [DIFFER_TRUST] = {"trust_coefficient 0.5", "trust_coefficient 0.25"},
    [DIFFER_PLAIN] = {".optim->groups[0].elementwise 1", ".optim->groups[0].elementwise 0"},
    [DIFFER_EPOCHS] = {".optim->schedule[0].steps 13",
                       ".optim->schedule[0].steps 10"}, /* of 5 steps */
    [DIFFER_TAIL] = {".tail DT_TAIL_DROP", ".tail DT_TAIL_KEEP"},
    [DIFFER_ORDER] = {".no_shuffle 1", ".no_shuffle 0"},
    [DIFFER_PARTS] = {".accumulate 2", ".accumulate 1"},
    [DIFFER_PRECISION] = {".precision DT_PRECISION_BF16", ".precision DT_PRECISION_F32"},
    [DIFFER_BATCH_SLICES] = {".parallel.batch_slices 16", ".parallel.batch_slices 8"},
    [DIFFER_ROWS] = {".data.rows 149", ".data.rows 150"},
    [DIFFER_PARAMS] = {"'fc*.weight'", "'*'"},
    [DIFFER_BUCKETS] = {".parallel.bucket_bytes 4096", ".parallel.bucket_bytes 0"},
    [DIFFER_COMPRESS] = {".parallel.compress DT_COMPRESS_BF16",
                         ".parallel.compress DT_COMPRESS_NONE"},
    [DIFFER_TYPE] = {"cast  [B, 36] of 1 (i0 4)", "cast  [B, 36] of 1 (i0 3)"},
    [DIFFER_DROPOUT] = {"dropout", "rank 0"},
    [DIFFER_DEVICES] = {"no such device", "rank 1"},
    [SAME_SMALL_BATCH] = {".batch is 2", "3 replicas"},
    [SAME_FEW_BATCH_SLICES] = {".parallel.batch_slices is 2", "3 replicas"},
};

static void differ_desc(dt_trainer_desc *d, difference what, bool other) {
    d->devices = other && what == DIFFER_DEVICES ? "no such device" : "cpu";
    d->parallel.batch_slices = what == SAME_FEW_BATCH_SLICES          ? 2
                               : other && what == DIFFER_BATCH_SLICES ? 16
                                                                      : 8;
    if (what == SAME_SMALL_BATCH)
        d->batch = 2;
    if (!other)
        return;
    d->batch += what == DIFFER_BATCH;
    d->seed += what == DIFFER_SEED;
    d->tail = what == DIFFER_TAIL ? DT_TAIL_DROP : DT_TAIL_KEEP;
    d->no_shuffle = what == DIFFER_ORDER;
    d->accumulate = what == DIFFER_PARTS ? 2 : 0;
    d->precision = what == DIFFER_PRECISION ? DT_PRECISION_BF16 : DT_PRECISION_F32;
    d->data.rows -= what == DIFFER_ROWS;
    d->params = what == DIFFER_PARAMS ? "fc*.weight" : NULL;
    d->parallel.bucket_bytes = what == DIFFER_BUCKETS ? 4096 : 0;
    d->parallel.compress = what == DIFFER_COMPRESS ? DT_COMPRESS_BF16 : DT_COMPRESS_NONE;
}

/* The steps' records are asked for where it must work. */
static dt_result differ_create(rank *r, dt_comm *comm, difference what, bool other,
                               step_record *record) {
    train_model m;
    dt_trainer *trainer = (dt_trainer *)(uintptr_t)1;
    dt_train_report report;
    if (!plain_model(&m, other && what == DIFFER_WIDTH ? 17 : 16,
                     other && what == DIFFER_DROPOUT ? 0.3f : 0.2f))
        return DT_ERROR_MEMORY;
    if (what == DIFFER_TYPE)
        dt_cast(m.x, other ? DT_F16 : DT_BF16);
    dt_trainer_desc d = train_desc(&m);
    m.adam.lr = other && what == DIFFER_LR ? 0.02 : 0.01;
    if (what == DIFFER_EPOCHS)
        m.adam.schedule[0] =
            (dt_schedule){.kind = DT_SCHEDULE_CONSTANT, .epochs = other ? 2.6 : 2.0};
    m.adam.kind = other && what == DIFFER_OPTIM ? DT_OPTIM_SGD : DT_OPTIM_ADAM;
    if (what == DIFFER_TRUST || what == DIFFER_PLAIN) {
        m.adam.kind = DT_OPTIM_LARS;
        m.adam.trust_coefficient = other && what == DIFFER_TRUST ? 0.5 : 0.25;
        m.adam.groups[0] =
            (dt_optim_group){.params = "*", .elementwise = other && what == DIFFER_PLAIN};
    }
    d.comm = comm;
    differ_desc(&d, what, other);
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    if (!result)
        result = dt_trainer_step(trainer, &report);
    if (!result)
        *record = record_of(trainer, &report);
    else if (r)
        EXPECT_TEXT(r, !trainer, "difference %d leaves a trainer", what);
    if (r)
        snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return result;
}

static void differ_rank(rank *r) {
    for (int what = 0; what < SAME; what++) {
        dt_result result =
            differ_create(r, r->comm, (difference)what, r->index == 1, &r->records[0]);
        EXPECT_TEXT(r, result == (what == DIFFER_DEVICES ? DT_ERROR_DEVICE : DT_ERROR_INVALID),
                    "difference %d: result %d, \"%s\"", what, result, r->text);
        EXPECT_TEXT(r, strstr(r->text, differences[what].mine) != NULL,
                    "difference %d: no \"%s\" in \"%s\"", what, differences[what].mine, r->text);
        EXPECT_TEXT(r,
                    strstr(r->text, differences[what].theirs) != NULL ||
                        (what == DIFFER_DEVICES && r->index == 1),
                    "difference %d: no \"%s\" in \"%s\"", what, differences[what].theirs, r->text);
    }
    dt_result result = differ_create(r, r->comm, SAME, false, &r->records[0]);
    EXPECT_TEXT(r, !result, "with one comm, in the end: %s", r->text);
}

/* Rank 1 alone has kernels without FMA. */
static void class_rank(rank *r) {
    static const char *const says =
        "rank 0 computes with CPU kernels with FMA and rank 1 without FMA, which round";
    for (int way = 0; way < 5; way++) { /* plain, ZeRO-3, a pipeline, local steps, both without */
        train_model m;
        dt_trainer *t = NULL;
        const dt_ctx_desc ctx = {
            .no_vulkan = true, .threads = 1, .no_fast = r->index == 1 || way == 4};
        if (!EXPECT(r, train_model_make(&m, &ctx, 0)))
            return;
        dt_trainer_desc d = train_desc(&m);
        d.comm = r->comm;
        d.devices = "cpu";
        d.parallel.zero_stage = way == 1 ? 3 : 0;
        d.parallel.pipeline = way == 2 ? 2 : 0;
        d.mode = way == 3 ? DT_TRAIN_LOCAL : DT_TRAIN_SYNCHRONOUS;
        const dt_result result = dt_trainer_create(m.graph, &d, &t);
        EXPECT_TEXT(r, result == (way < 3 ? DT_ERROR_INVALID : DT_OK), "way %d: %d, %s", way,
                    (int)result, dt_ctx_error(m.ctx));
        EXPECT_TEXT(r, way >= 3 || strstr(dt_ctx_error(m.ctx), says), "way %d: %s", way,
                    dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
}

TEST(ranks_on_processors_with_and_without_fma_are_refused_by_name) {
    dt_ctx *ctx;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    const bool x86 = strstr(dt_ctx_device(ctx, 0)->driver, "avx") != NULL;
    dt_ctx_destroy(ctx);
    if (!x86)
        SKIP("one class of kernels");
    job *j = job_new(2, NULL);
    if (j)
        job_run(j, class_rank);
    job_free(j);
}

TEST(settings_that_differ_between_ranks_are_named_on_all_of_them) {
    step_record want = {0};
    CHECK(!differ_create(NULL, NULL, SAME, false, &want));
    job *j = job_new(3, NULL);
    if (job_run(j, differ_rank)) {
        for (int i = 0; i < 3; i++)
            CHECK(record_equal(&j->at[i].records[0], &want));
    }
    job_free(j);
}

/* ---- what one rank alone may not do */

static void alone_rank(rank *r) {
    const char *path = "build/test_alone.safetensors";
    train_model m;
    dt_trainer *trainer = NULL;
    float values[16] = {0};
    uint64_t before = 0, after = 0;
    if (!EXPECT(r, train_model_make(&m, &one_thread, true)))
        return;
    dt_trainer_desc d = train_desc(&m);
    d.comm = r->comm;
    d.devices = "cpu:2";
    if (!EXPECT_TEXT(r, !dt_trainer_create(m.graph, &d, &trainer), "%s", dt_ctx_error(m.ctx)))
        return;
    dt_store *s = dt_trainer_store(trainer);
    EXPECT(r, !dt_store_state_hash(s, &before));
    EXPECT(r, dt_store_write(s, dt_store_find(s, "fc1.bias"), DT_VALUE_PARAM, values,
                             sizeof values) == DT_ERROR_INVALID);
    EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "does not reach other ranks' replicas"), "%s",
                dt_ctx_error(m.ctx));
    EXPECT(r, r->index || !dt_store_save(s, path));
    EXPECT(r, r->index || dt_store_load(s, path) == DT_ERROR_INVALID);
    EXPECT(r, !dt_store_state_hash(s, &after) && before == after);
    EXPECT_TEXT(r, !dt_trainer_step(trainer, NULL), "%s", dt_ctx_error(m.ctx));
    EXPECT(r, r->index || !remove(path));
    dt_ctx_destroy(m.ctx);
}

TEST(one_rank_cannot_write_to_the_store_of_a_job_by_itself) {
    job *j = job_new(2, NULL);
    job_run(j, alone_rank);
    job_free(j);
}

/* ---- inputs that all samples share */

enum { SCALE_STEPS = 6 };

/* An MLP of x * scale. */
static bool scale_run(rank *r, dt_comm *comm, const char *devices, step_record *records) {
    train_model m = {.adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01}};
    dt_trainer *trainer = NULL;
    dt_train_report report;
    if (dt_ctx_create(&one_thread, &m.ctx) || dt_graph_create(m.ctx, &m.graph))
        return false;
    m.x = dt_input(m.graph, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m.t = dt_input(m.graph, "t", DT_I32, dt_dims());
    dt_tensor scale = dt_input_shared(m.graph, "scale", DT_F32, dt_dims());
    dt_tensor h = dt_relu(dt_nn_linear(dt_mul(m.x, scale), "fc0", 16));
    m.logits = dt_nn_linear(h, "fc1", TRAIN_CLASSES);
    m.loss = dt_cross_entropy(m.logits, m.t, NULL);
    m.accuracy = dt_accuracy(m.logits, m.t);
    train_data_fill(&m.data);
    dt_trainer_desc d = train_desc(&m);
    d.comm = comm;
    d.devices = devices;
    d.parallel.batch_slices = 8;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < SCALE_STEPS && !result; i++) {
        float value = 0.5f + 0.1f * (float)i, other = value + (float)(r && r->index == 1);
        if (r && i == 3) { /* on one rank another one, and then none at all */
            EXPECT(r, dt_trainer_set_input(trainer, scale, &other, 4) == DT_ERROR_INVALID);
            EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "rank 1 writes 'scale'"), "%s",
                        dt_ctx_error(m.ctx));
            EXPECT(r, dt_trainer_set_input(trainer, scale, &value, r->index ? 4 : 8) ==
                          DT_ERROR_INVALID);
            EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "4 bytes, not 8"), "%s",
                        dt_ctx_error(m.ctx));
        }
        if (i == 0 && r) {
            EXPECT(r, dt_trainer_step(trainer, &report) == DT_ERROR_INVALID);
            EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "'scale' is shared"), "%s",
                        dt_ctx_error(m.ctx));
        }
        if (i % 2 == 0 || i == 3)
            result = dt_trainer_set_input(trainer, scale, &value, sizeof value);
        if (!result)
            result = dt_trainer_step(trainer, &report);
        records[i] = record_of(trainer, &report);
    }
    if (r && result)
        snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return !result;
}

static void scale_rank(rank *r) {
    EXPECT_TEXT(r, scale_run(r, r->comm, rank_devices(r), r->records), "%s", r->text);
}

TEST(shared_inputs_are_the_same_on_all_ranks_or_an_error_on_all) {
    static step_record want[SCALE_STEPS];
    CHECK(scale_run(NULL, NULL, "cpu", want));
    job *j = job_new(3, NULL);
    j->devices[2] = "cpu:2";
    const bool fine = job_run(j, scale_rank);
    for (int i = 0; i < 3 * SCALE_STEPS && fine; i++)
        CHECK_TEXT(record_equal(&j->at[i % 3].records[i / 3], &want[i / 3]), "rank %d, step %d",
                   i % 3, i / 3 + 1);
    job_free(j);
}

/* ---- a damaged checkpoint, which rank 0 alone reads */

enum { BACK_STEPS = 6 };

static bool back_damage(const char *path) {
    FILE *file = fopen(path, "r+b");
    return file && fseek(file, -40, SEEK_END) == 0 && fputs("damaged", file) >= 0 && !fclose(file);
}

static void back_rank(rank *r) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_trainer_info info;
    dt_train_report report;
    bool found = false;
    if (!EXPECT(r, train_model_make(&m, &one_thread, true)))
        return;
    dt_trainer_desc d = train_desc(&m);
    d.comm = r->comm;
    d.devices = "cpu";
    d.parallel.batch_slices = 4;
    d.checkpoint.folder = "build/test_back";
    d.checkpoint.every_steps = 2;
    if (!EXPECT_TEXT(r, !dt_trainer_create(m.graph, &d, &trainer), "%s", dt_ctx_error(m.ctx)))
        return;
    for (int i = 0; i < BACK_STEPS; i++) {
        EXPECT_TEXT(r, !dt_trainer_step(trainer, &report), "%s", dt_ctx_error(m.ctx));
        r->records[i] = record_of(trainer, &report);
    }
    EXPECT(r, r->index || (back_damage("build/test_back/step-000000000006.safetensors") &&
                           back_damage("build/test_back/step-000000000004.safetensors")));
    EXPECT_TEXT(r, !dt_trainer_resume(trainer, &found) && found, "%s", dt_ctx_error(m.ctx));
    EXPECT_TEXT(r,
                strstr(dt_ctx_error(m.ctx),
                       "continues from the newest good checkpoint before it, of step 2"),
                "%s", dt_ctx_error(m.ctx));
    dt_trainer_get_info(trainer, &info);
    EXPECT(r, info.step == 2);
    for (int i = 2; i < BACK_STEPS; i++) {
        EXPECT_TEXT(r, !dt_trainer_step(trainer, &report), "%s", dt_ctx_error(m.ctx));
        const step_record now = record_of(trainer, &report);
        EXPECT_TEXT(r, record_equal(&now, &r->records[i]), "step %d", i + 1);
    }
    dt_ctx_destroy(m.ctx);
}

TEST(all_ranks_go_back_to_the_same_good_checkpoint) {
    CHECK(system("rm -rf build/test_back") == 0);
    job *j = job_new(3, NULL);
    job_run(j, back_rank);
    job_free(j);
    CHECK(system("rm -rf build/test_back") == 0);
}

/* ---- what goes wrong on one rank in the middle */

typedef enum fault { FAULT_LABEL, FAULT_IO, FAULT_NUMERIC, FAULT_NAN, FAULTS } fault;
enum { FAULT_STEP = 4, FAULT_POSITION = 15, FAULT_STEPS = 9 }; /* rank 1's of 3, of a batch of 37 */

typedef struct fault_data {
    fault what;
    _Atomic bool mended, always; /* always: in each step */
} fault_data;

/* Each rank has it: the position says whom it strikes. */
static dt_result fault_sample(void *user, const dt_sample *s, void *const *values) {
    fault_data *f = user;
    bool now = atomic_load(&f->always) || (s->step == FAULT_STEP && !atomic_load(&f->mended));
    if (s->position != FAULT_POSITION || !now)
        return DT_OK;
    if (f->what == FAULT_LABEL)
        *(int32_t *)values[1] = 77;
    else if (f->what == FAULT_NAN)
        ((float *)values[0])[3] = NAN;
    return f->what == FAULT_IO ? DT_ERROR_IO : f->what == FAULT_NUMERIC ? DT_ERROR_NUMERIC : DT_OK;
}

typedef struct fault_run {
    dt_trainer *trainer;
    train_model m;
    fault_data data;
} fault_run;

static bool fault_open(fault_run *f, dt_comm *comm, fault what) {
    f->trainer = NULL;
    f->data.what = what;
    atomic_store(&f->data.mended, false);
    atomic_store(&f->data.always, false);
    if (!train_model_make(&f->m, &one_thread, true))
        return false;
    dt_trainer_desc d = train_desc(&f->m);
    d.comm = comm;
    d.devices = "cpu";
    d.parallel.batch_slices = 8;
    d.data.sample = fault_sample;
    d.data.user = &f->data;
    return !dt_trainer_create(f->m.graph, &d, &f->trainer);
}

/* What a rank must report: `at`, the one where it happens. */
static void fault_expect(rank *r, fault what, dt_result result, bool at, const char *text) {
    static const char *const own[] = {"77", "row", "row", "input"};
    static const dt_result results[] = {DT_ERROR_INVALID, DT_ERROR_IO, DT_ERROR_NUMERIC,
                                        DT_ERROR_NUMERIC};
    const bool skipped = what == FAULT_NAN;
    EXPECT_TEXT(r, result == (at || skipped ? results[what] : DT_ERROR_CANCELLED),
                "fault %d: result %d, \"%s\"", what, result, text);
    EXPECT_TEXT(r, strstr(text, at || skipped ? own[what] : "step 4") != NULL,
                "fault %d is not named in \"%s\"", what, text);
    EXPECT_TEXT(r, at || strstr(text, "rank 1") != NULL, "fault %d: no rank in \"%s\"", what, text);
}

/* Steps until FAULT_STEPS are over. A batch that was read ahead may fail again after it was fixed,
 * on all ranks alike. */
static void fault_train(rank *r, fault_run *f, fault what, bool at, step_record *records) {
    dt_train_report report;
    uint64_t before = 0, after = 0;
    int failures = 0;
    dt_store *store = dt_trainer_store(f->trainer);
    for (int i = 0; i < FAULT_STEPS && failures < 4;) {
        EXPECT(r, !dt_store_state_hash(store, &before));
        dt_result result = dt_trainer_step(f->trainer, &report);
        EXPECT(r, !dt_store_state_hash(store, &after));
        if (result) {
            atomic_store(&f->data.mended, true);
            failures++;
            EXPECT_TEXT(r, i == FAULT_STEP - 1, "fault %d in step %d", what, i + 1);
            EXPECT_TEXT(r, before == after, "fault %d changes the state", what);
            fault_expect(r, what, result, at, dt_ctx_error(f->m.ctx));
        }
        if (!result || what == FAULT_NAN) /* the samples are used up */
            records[i++] = record_of(f->trainer, &report);
    }
    EXPECT_TEXT(r, failures == 1 || (failures == 2 && what != FAULT_NAN), "fault %d: %d failures",
                what, failures);
}

static dt_result fault_row(void *user, const dt_sample *s, void *const *values) {
    (void)user;
    (void)values;
    return s->row == 70 ? DT_ERROR_IO : DT_OK;
}

/* The same without training. */
static void fault_evaluate(rank *r, fault_run *f) {
    dt_dataset data = train_desc(&f->m).data;
    dt_train_report report;
    data.sample = fault_row;
    dt_result result = dt_trainer_evaluate(f->trainer, &data, 0, &report);
    const char *text = dt_ctx_error(f->m.ctx);
    EXPECT_TEXT(r, result == DT_ERROR_IO && strstr(text, "row 70"), "%d: %s", result, text);
    data.sample = NULL;
    result = dt_trainer_evaluate(f->trainer, &data, 0, &report);
    EXPECT_TEXT(r, !result && report.samples == TRAIN_ROWS, "%s", dt_ctx_error(f->m.ctx));
}

/* A callback that fails ends the epoch, for any result that it returns. */
static void fault_epoch(rank *r, fault_run *f, bool at) {
    dt_train_report report;
    dt_result result = dt_trainer_epoch(f->trainer, &report); /* the one under way */
    EXPECT_TEXT(r, !result && report.epoch_ended, "%s", dt_ctx_error(f->m.ctx));
    atomic_store(&f->data.always, true);
    result = dt_trainer_epoch(f->trainer, &report);
    EXPECT_TEXT(r, result == (at ? DT_ERROR_IO : DT_ERROR_CANCELLED) && !report.epoch_ended,
                "epoch: %d: %s", result, dt_ctx_error(f->m.ctx));
    atomic_store(&f->data.always, false);
    for (int i = 0; i < 3 && result; i++)
        result = dt_trainer_epoch(f->trainer, &report);
    EXPECT_TEXT(r, !result && report.epoch_ended && report.step == 15, "epoch: %d: step %d: %s",
                result, (int)report.step, dt_ctx_error(f->m.ctx));
    r->numbers[1] = record_of(f->trainer, &report).hash;
}

static void fault_rank(rank *r) {
    for (int what = 0; what < FAULTS; what++) {
        fault_run f;
        bool open = fault_open(&f, r->comm, (fault)what);
        EXPECT_TEXT(r, open, "fault %d: %s", what, dt_ctx_error(f.m.ctx));
        if (open)
            fault_train(r, &f, (fault)what, r->index == 1, r->records + what * FAULT_STEPS);
        if (open && what == FAULT_IO) {
            fault_evaluate(r, &f);
            fault_epoch(r, &f, r->index == 1);
        }
        dt_ctx_destroy(f.m.ctx);
        if (!open)
            return;
    }
}

/* A loss of NaN is as good as another one. */
static bool fault_equal(const step_record *a, const step_record *b) {
    step_record x = *a, y = *b;
    if (x.loss != x.loss && y.loss != y.loss)
        x.loss = y.loss = 0.0;
    return record_equal(&x, &y);
}

TEST(a_fault_on_one_rank_fails_the_step_on_all_and_training_continues) {
    static rank alone; /* the oracle: one process that has all rows */
    alone.failed[0] = 0;
    for (int what = 0; what < FAULTS; what++) {
        fault_run f;
        REQUIRE(fault_open(&f, NULL, (fault)what));
        fault_train(&alone, &f, (fault)what, true, alone.records + what * FAULT_STEPS);
        if (what == FAULT_IO)
            fault_epoch(&alone, &f, true);
        dt_ctx_destroy(f.m.ctx);
    }
    CHECK_TEXT(!alone.failed[0], "one process: %s", alone.failed);
    job *j = job_new(3, NULL);
    bool fine = job_run(j, fault_rank);
    for (int i = 0; i < 3 && fine; i++)
        CHECK(j->at[i].numbers[1] == alone.numbers[1] && alone.numbers[1]);
    for (int i = 0; i < 3 * FAULTS * FAULT_STEPS && fine; i++) {
        const int who = i % 3, k = i / 3;
        CHECK_TEXT(fault_equal(&j->at[who].records[k], &alone.records[k]),
                   "rank %d, fault %d, step %d: another state", who, k / FAULT_STEPS,
                   k % FAULT_STEPS + 1);
    }
    job_free(j);
}

/* ---- late ranks change nothing */

enum { LATE_STEPS = 14 };

static dt_result late_sample(void *user, const dt_sample *s, void *const *values) {
    uint32_t state = (uint32_t)(s->step * 131 + s->position * 7) + *(uint32_t *)user;
    (void)values;
    if (train_random(&state) % 7 == 0)
        job_sleep_us(train_random(&state) % 1500);
    return DT_OK;
}

static bool late_run(dt_comm *comm, const char *devices, bool late, uint32_t who,
                     step_record *records, char *text, size_t size) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report report;
    if (!train_model_make(&m, &one_thread, true))
        return false;
    dt_trainer_desc d = train_desc(&m);
    d.comm = comm;
    d.parallel.batch_slices = 8;
    d.devices = devices;
    d.parallel.bucket_bytes = 256;
    d.data.sample = late ? late_sample : NULL;
    d.data.user = &who;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < LATE_STEPS && !result; i++) {
        result = dt_trainer_step(trainer, &report);
        records[i] = record_of(trainer, &report);
    }
    snprintf(text, size, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return !result;
}

static void late_rank(rank *r) {
    bool ran = late_run(r->comm, rank_devices(r), r->index != 1, (uint32_t)r->index * 1000,
                        r->records, r->text, sizeof r->text);
    EXPECT_TEXT(r, ran, "%s", r->text);
    atomic_store(&r->stage, 1);
}

/* Stops ranks for some milliseconds until all have ended; how often. */
static int late_stop(job *j) {
    uint32_t state = 5;
    int stops = 0;
    const uint64_t start = job_now_ns();
    while (!job_reap(j) && job_now_ns() - start < (uint64_t)j->seconds * 1000000000u) {
        const int who = (int)(train_random(&state) % (uint32_t)j->count);
        job_signal(j, who, SIGSTOP);
        job_sleep_us(200 + train_random(&state) % 6000);
        job_signal(j, who, SIGCONT);
        job_sleep_us(train_random(&state) % 3000);
        stops++;
    }
    return stops;
}

TEST(ranks_that_are_late_or_stopped_for_a_moment_train_the_same_bits) {
    static step_record want[LATE_STEPS];
    char text[1200];
    CHECK_TEXT(late_run(NULL, "cpu", false, 0, want, text, sizeof text), "%s", text);
    job *j = job_new(4, NULL);
    j->devices[2] = "cpu:2";
    job_start(j, late_rank);
    const int stops = late_stop(j);
    bool fine = job_end(j);
    CHECK_TEXT(stops > 10, "stopped %d times", stops);
    for (int i = 0; i < j->count * LATE_STEPS && fine; i++) {
        const int who = i % j->count, k = i / j->count;
        CHECK_TEXT(record_equal(&j->at[who].records[k], &want[k]), "rank %d, step %d", who, k + 1);
    }
    job_free(j);
}
