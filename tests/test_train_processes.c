/* Training by several processes over TCP: the same bits as one process, whatever the number of
 * ranks and replicas and whoever is late; what the ranks were told differently; what goes wrong on
 * one of them; and deaths at every frame of a step. The oracle is always one process with one
 * replica. */
#include "train_processes.h"

#include <dirent.h>
#include <sys/socket.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

static const dt_ctx_desc one_thread = {.no_vulkan = true, .threads = 1};

static step_record record_of(dt_trainer *trainer, const dt_train_report *r) {
    step_record s = {.step = r->step,
                     .epoch = r->epoch,
                     .samples = r->samples,
                     .loss = r->loss,
                     .norm = r->gradient_norm,
                     .right = r->metric_sum[0],
                     .epoch_ended = r->epoch_ended};
    if (dt_store_state_hash(dt_trainer_store(trainer), &s.hash))
        s.hash = 0;
    return s;
}

/* By value, but for the bits of what is no number. */
static bool record_equal(const step_record *a, const step_record *b) {
    return a->hash == b->hash && a->hash && a->step == b->step && a->epoch == b->epoch &&
           a->samples == b->samples && !memcmp(&a->loss, &b->loss, sizeof a->loss) &&
           !memcmp(&a->norm, &b->norm, sizeof a->norm) && a->right == b->right &&
           a->epoch_ended == b->epoch_ended;
}

/* An MLP of a width. */
static bool plain_model(train_model *m, int width, float dropout) {
    *m = (train_model){.adam = {.kind = DT_ADAM, .lr = 0.01}};
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
    bool conv;
    int width; /* 0 = train_model.h's models */
    int batch, accumulate, steps;
    dt_tail tail;
    size_t bucket_bytes;
} bits_case;

/* 150 samples: batches of 37 leave 2, of 9 6, of 64 22. Some shards of 9 have a single row, and 3
 * parts of it are empty. All go over the end of an epoch. */
static const bits_case bits_cases[] = {
    {.conv = true, .batch = 37, .accumulate = 1, .steps = 7},
    {.conv = true, .batch = 37, .accumulate = 3, .steps = 6, .tail = DT_TAIL_DROP},
    {.conv = true, .batch = 64, .accumulate = 3, .steps = 5, .bucket_bytes = 1024},
    {.batch = 37, .accumulate = 3, .steps = 7},
    {.batch = 37, .accumulate = 1, .steps = 7, .tail = DT_TAIL_PAD, .bucket_bytes = 1024},
    {.batch = 64, .accumulate = 3, .steps = 5, .tail = DT_TAIL_PAD},
    {.batch = 9, .accumulate = 3, .steps = 19},
    {.batch = 9, .accumulate = 1, .steps = 18, .tail = DT_TAIL_DROP},
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
    d.shards = 8;
    d.batch = c->batch;
    d.accumulate = c->accumulate;
    d.tail = c->tail;
    d.bucket_bytes = c->bucket_bytes;
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
        bits_job(counts[i], NULL);
}

TEST(processes_with_several_replicas_train_the_same_bits) {
    bits_job(2, (const char *[]){"cpu:2", "cpu:2"});
    bits_job(3, (const char *[]){"cpu", "cpu:2", "cpu"});
    bits_job(2, (const char *[]){"cpu:3", "cpu:2,cpu"});
    bits_job(2, (const char *[]){"cpu", "cpu:7"});
}

/* ---- the weight of a batch is the whole job's */

enum { UNEVEN_BATCH = 128, UNEVEN_VALID = 3 };

/* SGD with lr 1: what a step takes away from the parameters is the gradient. Of the first 64
 * samples 3 have a target, of the others all but 3. */
static bool uneven_model(train_model *m) {
    if (!train_model_make(m, &one_thread, false))
        return false;
    m->adam = (dt_optim_desc){.kind = DT_SGD, .lr = 1.0};
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
        if (dt_store_param(store, i, &info) || used + (int)info.elements > room ||
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
    d.shards = 8;
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
    for (int rank = 0; rank < 2 && fine; rank++) {
        const struct rank *r = &j->at[rank];
        CHECK(r->numbers[0] == (uint64_t)count && record_equal(&r->records[0], &want));
        CHECK(!memcmp(r->values, alone, (size_t)count * sizeof *alone));
        for (int i = 0; i < count; i++) {
            const double exact = (double)before[i] - (double)after[i];
            const double off = fabs((double)r->values[i] - (double)after[i]);
            largest = fabs(exact) > largest ? fabs(exact) : largest;
            wrong = off > wrong ? off : wrong;
        }
    }
    CHECK_TEXT(fine && largest > 0.01 && wrong < 4e-6 * largest,
               "the largest gradient is %g, the largest difference %g", largest, wrong);
    job_free(j);
}

/* ---- what the ranks were told differently */

typedef enum difference {
    DIFFER_WIDTH,
    DIFFER_BATCH,
    DIFFER_SEED,
    DIFFER_LR,
    DIFFER_OPTIM,
    DIFFER_TAIL,
    DIFFER_ORDER,
    DIFFER_PARTS,
    DIFFER_SHARDS,
    DIFFER_ROWS,
    DIFFER_PARAMS,
    DIFFER_BUCKETS,
    DIFFER_DROPOUT,
    DIFFER_DEVICES, /* a name that only rank 1 cannot find */
    SAME_SMALL_BATCH,
    SAME_FEW_SHARDS,
    SAME /* it works */
} difference;

/* What must be in the text of all ranks. */
static const struct {
    const char *mine, *theirs; /* rank 1's, the others' */
} differences[SAME] = {
    [DIFFER_WIDTH] = {"17", "16"},
    [DIFFER_BATCH] = {"batch 38", "batch 37"},
    [DIFFER_SEED] = {"seed 4", "seed 3"},
    [DIFFER_LR] = {"lr 0.02", "lr 0.01"},
    [DIFFER_OPTIM] = {"optimizer 1", "optimizer 2"},
    [DIFFER_TAIL] = {"tail 1", "tail 0"},
    [DIFFER_ORDER] = {"their own order", "shuffled order"},
    [DIFFER_PARTS] = {"2 parts", "1 parts"},
    [DIFFER_SHARDS] = {"16 shards", "8 shards"},
    [DIFFER_ROWS] = {"149 samples", "150 samples"},
    [DIFFER_PARAMS] = {"'fc*.weight'", "'*'"},
    [DIFFER_BUCKETS] = {"buckets of 4096", "buckets of 0"},
    [DIFFER_DROPOUT] = {"dropout", "rank 0"},
    [DIFFER_DEVICES] = {"no such device", "rank 1"},
    [SAME_SMALL_BATCH] = {"2 samples", "3 replicas"},
    [SAME_FEW_SHARDS] = {"2 shards", "3 replicas"},
};

static void differ_desc(dt_trainer_desc *d, difference what, bool other) {
    d->devices = other && what == DIFFER_DEVICES ? "no such device" : "cpu";
    d->shards = what == SAME_FEW_SHARDS ? 2 : other && what == DIFFER_SHARDS ? 16 : 8;
    if (what == SAME_SMALL_BATCH)
        d->batch = 2;
    if (!other)
        return;
    d->batch += what == DIFFER_BATCH;
    d->seed += what == DIFFER_SEED;
    d->tail = what == DIFFER_TAIL ? DT_TAIL_DROP : DT_TAIL_KEEP;
    d->no_shuffle = what == DIFFER_ORDER;
    d->accumulate = what == DIFFER_PARTS ? 2 : 0;
    d->data.rows -= what == DIFFER_ROWS;
    d->params = what == DIFFER_PARAMS ? "fc*.weight" : NULL;
    d->bucket_bytes = what == DIFFER_BUCKETS ? 4096 : 0;
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
    dt_trainer_desc d = train_desc(&m);
    m.adam.lr = other && what == DIFFER_LR ? 0.02 : 0.01;
    m.adam.kind = other && what == DIFFER_OPTIM ? DT_SGD : DT_ADAM;
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

TEST(what_ranks_were_told_differently_is_named_on_all_of_them) {
    step_record want = {0};
    CHECK(!differ_create(NULL, NULL, SAME, false, &want));
    job *j = job_new(3, NULL);
    if (job_run(j, differ_rank)) {
        for (int i = 0; i < 3; i++)
            CHECK(record_equal(&j->at[i].records[0], &want));
    }
    job_free(j);
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
    d.shards = 8;
    d.data.sample = fault_sample;
    d.data.user = &f->data;
    return !dt_trainer_create(f->m.graph, &d, &f->trainer);
}

/* What a rank must be told: `at`, the one it happens on. */
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

/* Steps until FAULT_STEPS are over. A batch that was read ahead may fail again after it was mended,
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

/* A callback that fails is no reason to go on with an epoch, whatever it returns. */
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

TEST(a_fault_on_one_rank_fails_the_step_on_all_and_training_goes_on) {
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
    for (int rank = 0; rank < 3 && fine; rank++)
        CHECK(j->at[rank].numbers[1] == alone.numbers[1] && alone.numbers[1]);
    for (int i = 0; i < 3 * FAULTS * FAULT_STEPS && fine; i++) {
        const int rank = i % 3, k = i / 3;
        CHECK_TEXT(fault_equal(&j->at[rank].records[k], &alone.records[k]),
                   "rank %d, fault %d, step %d: another state", rank, k / FAULT_STEPS,
                   k % FAULT_STEPS + 1);
    }
    job_free(j);
}

/* ---- deaths */

/* Calls of the library's one function that sends frames are counted while this is armed; the
 * die_at-th kills the process, before anything is sent or after half of it. */
static struct {
    _Atomic bool armed;
    _Atomic long calls;
    long die_at; /* from 0; -1 = never */
    bool half;
    uint64_t *when; /* it was, ns */
} frames = {.die_at = -1};

#ifdef __linux__
static void frames_die(int socket, const struct msghdr *message, int flags) {
    struct iovec some[64];
    struct msghdr half = *message;
    size_t bytes = 0, count = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        bytes += message->msg_iov[i].iov_len;
    bytes /= 2;
    for (; bytes && count < 64; count++) {
        some[count] = message->msg_iov[count];
        if (some[count].iov_len > bytes)
            some[count].iov_len = bytes;
        bytes -= some[count].iov_len;
    }
    half.msg_iov = some;
    half.msg_iovlen = count;
    if (frames.half && count)
        syscall(SYS_sendmsg, socket, &half, flags);
    *frames.when = job_now_ns();
    for (;;)
        kill(getpid(), SIGKILL);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    if (atomic_load(&frames.armed) && atomic_fetch_add(&frames.calls, 1) == frames.die_at)
        frames_die(socket, message, flags);
    return (ssize_t)syscall(SYS_sendmsg, socket, message, flags);
}
#endif

/* A rank's numbers; WHEN the error came, or its own death. */
enum { DEATH_IN_STEP, DEATH_CALLS, DEATH_CREATE_CALLS, DEATH_US, DEATH_WHEN_NS };
enum { DEATH_RANKS = 3, DEATH_STEP = 3, DEATH_STEPS = 6 }; /* it dies in its DEATH_STEP-th step */

/* Who dies where. */
typedef struct death {
    bool conv;
    int victim;
    long call;           /* that it dies at; -1: the parent kills it, after `delay` */
    bool half, creating; /* creating: at a frame of dt_trainer_create */
    long delay_us;
    const char *folder; /* of checkpoints; NULL = none */
} death;

static dt_trainer_desc death_desc(train_model *m, dt_comm *comm) {
    dt_trainer_desc d = train_desc(m);
    d.comm = comm;
    d.devices = "cpu";
    d.shards = 8;
    d.bucket_bytes = 1024; /* 3 buckets */
    return d;
}

static dt_result death_open(train_model *m, dt_comm *comm, const death *of, dt_trainer **trainer) {
    if (!train_model_make(m, &one_thread, of->conv))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = death_desc(m, comm);
    d.checkpoint = of->folder;
    d.checkpoint_steps = of->folder ? 2 : 0;
    return dt_trainer_create(m->graph, &d, trainer);
}

static void death_arm(rank *r, const death *d) {
    if (r->index != d->victim || d->call < 0)
        return;
    frames.die_at = d->call;
    frames.half = d->half;
    frames.when = &r->numbers[DEATH_WHEN_NS];
    atomic_store(&frames.armed, true);
}

static bool death_is_of_comm(dt_result result) {
    return result == DT_ERROR_PEER_LOST || result == DT_ERROR_REVOKED ||
           result == DT_ERROR_CANCELLED;
}

/* The state, and what is said about it, after a step that failed. */
static void death_survive(rank *r, train_model *m, dt_trainer *trainer, dt_result result,
                          const dt_train_report *report) {
    char step[32];
    r->result = result;
    snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m->ctx));
    r->records[0] = record_of(trainer, report);
    snprintf(step, sizeof step, "step %llu", (unsigned long long)report->step);
    EXPECT_TEXT(r, death_is_of_comm(result), "result %d: %s", result, r->text);
    EXPECT_TEXT(r, strstr(r->text, step) != NULL, "no \"%s\" in \"%s\"", step, r->text);
    /* that is all: it is told again, and the state stays */
    result = dt_trainer_step(trainer, NULL);
    EXPECT_TEXT(r, result == DT_ERROR_REVOKED && strstr(dt_ctx_error(m->ctx), step), "then %d: %s",
                result, dt_ctx_error(m->ctx));
    dt_train_report again = *report;
    const step_record now = record_of(trainer, &again);
    EXPECT(r, now.hash == r->records[0].hash);
}

static void death_rank(rank *r) {
    const death *d = r->job->arg;
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report report = {0};
    if (d->creating)
        death_arm(r, d);
    dt_result result = death_open(&m, r->comm, d, &trainer);
    atomic_store(&frames.armed, false);
    r->numbers[DEATH_CREATE_CALLS] = (uint64_t)atomic_exchange(&frames.calls, 0);
    if (result) { /* before the last rank was through */
        EXPECT_TEXT(r, d->creating && !trainer && death_is_of_comm(result), "%d: %s", result,
                    dt_ctx_error(m.ctx));
        r->result = result;
    }
    for (int i = 1; i <= DEATH_STEPS && !result; i++) {
        r->numbers[DEATH_IN_STEP] = (uint64_t)i;
        if (i == DEATH_STEP && !d->creating)
            death_arm(r, d);
        const uint64_t start = job_now_ns();
        atomic_store(&r->stage, i);
        result = dt_trainer_step(trainer, &report);
        if (i == DEATH_STEP) {
            r->numbers[DEATH_CALLS] = (uint64_t)atomic_load(&frames.calls);
            r->numbers[DEATH_US] = (job_now_ns() - start) / 1000;
        }
    }
    if (!result)
        r->records[0] = record_of(trainer, &report); /* the death came too late for it */
    if (result && trainer) {
        r->numbers[DEATH_WHEN_NS] = job_now_ns();
        death_survive(r, &m, trainer, result, &report);
    }
    dt_ctx_destroy(m.ctx);
}

static uint64_t death_oracle[2][DEATH_STEPS + 1]; /* hashes by model and step; [0]: not used */

static bool death_oracle_make(void) {
    dt_result result = DT_OK;
    for (int conv = 0; conv < 2 && !death_oracle[conv][DEATH_STEPS] && !result; conv++) {
        train_model m;
        dt_trainer *trainer = NULL;
        result = death_open(&m, NULL, &(death){.conv = conv}, &trainer);
        for (int i = 1; i <= DEATH_STEPS && !result; i++) {
            result = dt_trainer_step(trainer, NULL);
            if (!result)
                result = dt_store_state_hash(dt_trainer_store(trainer), &death_oracle[conv][i]);
        }
        dt_ctx_destroy(m.ctx);
    }
    return CHECK_TEXT(!result && death_oracle[1][DEATH_STEPS], "the oracle");
}

/* Two ranks differ by one step at most, the dead one included; and a step is whole. */
static bool death_compare(const job *j, const death *d) {
    const uint64_t last = j->at[d->victim].numbers[DEATH_IN_STEP];
    uint64_t least = last - 1, most = last - 1;
    bool fine = true;
    for (int i = 0; i < DEATH_RANKS; i++) {
        const rank *r = &j->at[i];
        const uint64_t step = r->records[0].step;
        if (i == d->victim)
            continue;
        least = step < least ? step : least;
        most = step > most ? step : most;
        fine &= CHECK_TEXT(
            step && step <= DEATH_STEPS && r->records[0].hash == death_oracle[d->conv][step],
            "rank %d died in step %d (call %ld): rank %d has hash %016llx in step %d: "
            "not the oracle's",
            d->victim, (int)last, d->call, i, (unsigned long long)r->records[0].hash, (int)step);
    }
    return fine & CHECK_TEXT(most <= last && most - least <= 1,
                             "rank %d died in step %d (call %ld): the others are at steps %d to %d",
                             d->victim, (int)last, d->call, (int)least, (int)most);
}

typedef struct death_counts {
    int deaths, apart; /* apart: the survivors are not at one step */
    int ahead[3];      /* survivors by their step: the one before the dead one's, its, and more */
    int results[DT_ERROR_LATE + 1];
    double slowest; /* seconds from the death to an error */
} death_counts;

/* After death_compare has passed. */
static void death_count(const job *j, const death *d, death_counts *n) {
    const uint64_t died = j->at[d->victim].numbers[DEATH_WHEN_NS];
    uint64_t steps[DEATH_RANKS], count = 0;
    n->deaths++;
    for (int i = 0; i < DEATH_RANKS; i++) {
        const rank *r = &j->at[i];
        if (i == d->victim)
            continue;
        steps[count++] = r->records[0].step;
        n->ahead[r->records[0].step + 2 - j->at[d->victim].numbers[DEATH_IN_STEP]]++;
        n->results[r->result]++;
        if (r->numbers[DEATH_WHEN_NS] > died)
            n->slowest = fmax(n->slowest, 1e-9 * (double)(r->numbers[DEATH_WHEN_NS] - died));
    }
    n->apart += steps[0] != steps[1];
}

/* One job with one death. False: the victim lived to the end. */
static bool death_run(const death *d, death_counts *n) {
    job *j = job_new(DEATH_RANKS, d);
    if (!j)
        return false;
    j->seconds = 20;
    j->at[d->victim].doomed = true;
    j->devices[1] = d->conv ? "cpu:2" : "cpu";
    job_start(j, death_rank);
    if (d->call < 0 && CHECK_TEXT(job_await(j, d->victim, DEATH_STEP), "no step %d", DEATH_STEP)) {
        const uint64_t start = job_now_ns();
        while (job_now_ns() - start < (uint64_t)d->delay_us * 1000)
            ;
        job_signal(j, d->victim, SIGKILL);
        j->at[d->victim].numbers[DEATH_WHEN_NS] = job_now_ns();
    }
    bool fine = job_end(j), dead = WIFSIGNALED(j->at[d->victim].status);
    if (fine && dead && d->creating)
        n->deaths++;
    else if (fine && dead && death_compare(j, d))
        death_count(j, d, n);
    job_free(j);
    return dead;
}

static void death_tell(const char *what, const death_counts *n) {
    printf("  %d deaths %s; survivors a step behind the dead rank %d, at its step %d, ahead %d; "
           "not at one step %d times; peer lost %d, cancelled %d, revoked %d; the slowest error "
           "after %.3f s\n",
           n->deaths, what, n->ahead[0], n->ahead[1], n->ahead[2], n->apart,
           n->results[DT_ERROR_PEER_LOST], n->results[DT_ERROR_CANCELLED],
           n->results[DT_ERROR_REVOKED], n->slowest);
}

/* Without a death: the frames of a step, and how long it takes. */
static void death_none(bool conv, long *calls, long *us) {
    const death never = {.conv = conv, .victim = 0, .call = 1000000};
    job *j = job_new(DEATH_RANKS, &never);
    *calls = *us = 0;
    if (j && job_run(j, death_rank)) {
        *calls = (long)j->at[0].numbers[DEATH_CALLS];
        *us = (long)j->at[0].numbers[DEATH_US];
    }
    job_free(j);
}

#ifdef __linux__
/* A sanitizer makes a process slow to start, and has no need of all. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { DEATH_STRIDE = 7 };
#else
enum { DEATH_STRIDE = 1 };
#endif

/* Before each frame, and in the middle of it; and of some frames more: into the next step. */
static void death_sweep(bool conv, death_counts *n) {
    long calls, us;
    death_none(conv, &calls, &us);
    CHECK_TEXT(calls > 5, "%ld frames in a step", calls);
    for (long i = 0; i < DEATH_RANKS * 2 * (calls + 5) && test_now.failures < 5;
         i += DEATH_STRIDE) {
        const death d = {.conv = conv,
                         .victim = (int)(i % DEATH_RANKS),
                         .call = i / DEATH_RANKS / 2,
                         .half = i / DEATH_RANKS % 2};
        CHECK_TEXT(death_run(&d, n), "rank %d did not die at call %ld", d.victim, d.call);
    }
}

TEST(a_rank_that_dies_while_a_trainer_is_made_is_an_error_on_all_others) {
    death_counts n = {0};
    const death never = {.call = 1000000, .creating = true};
    job *j = job_new(DEATH_RANKS, &never);
    const long calls = j && job_run(j, death_rank) ? (long)j->at[0].numbers[DEATH_CREATE_CALLS] : 0;
    job_free(j);
    CHECK_TEXT(calls > 20, "%ld frames", calls);
    for (long i = 0; i < DEATH_RANKS * calls && test_now.failures < 5; i += DEATH_STRIDE)
        death_run(&(death){.creating = true,
                           .victim = (int)(i % DEATH_RANKS),
                           .call = i / DEATH_RANKS,
                           .half = i % 2},
                  &n);
    CHECK_TEXT(n.deaths > DEATH_RANKS * calls / 2 / DEATH_STRIDE, "%d deaths, %ld frames", n.deaths,
               calls);
    printf("  %d deaths while a trainer was made, of %ld frames\n", n.deaths, calls);
}

TEST(a_rank_that_dies_at_any_frame_of_a_step_leaves_whole_steps) {
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    death_sweep(false, &n);
    death_sweep(true, &n);
    death_tell("at a frame", &n);
}
#endif

TEST(a_rank_that_is_killed_at_any_time_leaves_whole_steps) {
    death_counts n = {0};
    long calls, us;
    REQUIRE(death_oracle_make());
    death_none(true, &calls, &us);
    for (int i = 0; i < 60 && test_now.failures < 5; i++)
        death_run(
            &(death){.conv = true, .victim = i % DEATH_RANKS, .call = -1, .delay_us = us * i / 50},
            &n);
    CHECK_TEXT(n.deaths > 40, "%d deaths", n.deaths);
    death_tell("by kill", &n);
}

/* ---- and then */

static void death_go_on(rank *r) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report report = {0};
    bool found = false;
    dt_result result = death_open(&m, r->comm, r->job->arg, &trainer);
    if (!result)
        result = dt_trainer_resume(trainer, &found);
    EXPECT_TEXT(r, !result && found, "%d: %s", result, dt_ctx_error(m.ctx));
    while (!result && found && report.step < DEATH_STEPS)
        result = dt_trainer_step(trainer, &report);
    EXPECT_TEXT(r, !result, "%s", dt_ctx_error(m.ctx));
    if (!result)
        r->records[0] = record_of(trainer, &report);
    dt_ctx_destroy(m.ctx);
}

/* A folder of files. */
static void death_folder_remove(const char *folder) {
    char path[600];
    DIR *all = opendir(folder);
    for (struct dirent *file; all && (file = readdir(all));) {
        snprintf(path, sizeof path, "%s/%s", folder, file->d_name);
        if (file->d_name[0] != '.')
            remove(path);
    }
    if (all)
        closedir(all);
    rmdir(folder);
}

TEST(after_a_death_fewer_or_more_ranks_go_on_from_the_checkpoint) {
    const char *parent = getenv("TMPDIR");
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    for (int count = 1; count <= 5; count += 2) {
        char folder[300];
        snprintf(folder, sizeof folder, "%.200s/dtrain-ranks-XXXXXX", parent ? parent : "/tmp");
        REQUIRE(mkdtemp(folder));
        const death d = {.conv = true, .victim = count / 2, .call = 7, .folder = folder};
        CHECK(death_run(&d, &n));
        job *j = job_new(count, &d);
        bool fine = job_run(j, death_go_on);
        for (int i = 0; i < count && fine; i++)
            CHECK_TEXT(j->at[i].records[0].hash == death_oracle[1][DEATH_STEPS],
                       "%d ranks, rank %d: another state", count, i);
        job_free(j);
        death_folder_remove(folder);
    }
}

/* ---- who is late changes nothing */

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
    dt_trainer_desc d = death_desc(&m, comm);
    d.devices = devices;
    d.bucket_bytes = 256;
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
        const int rank = i % j->count, k = i / j->count;
        CHECK_TEXT(record_equal(&j->at[rank].records[k], &want[k]), "rank %d, step %d", rank,
                   k + 1);
    }
    job_free(j);
}
