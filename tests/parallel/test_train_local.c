/* Local steps: a round of one plain step is the synchronous step, and the outer optimizer is
 * DiLoCo's. Replicas give the same bits as threads and as processes. Also faults between rounds:
 * NaN on one replica, the middle of a round, checkpoints, a rank that dies. */
#include "parallel/train_processes.h"
#include <limits.h>

enum { ROOM = 6000 };

typedef struct local_case {
    const char *devices;
    int kind, steps, rounds, batch, accumulate; /* rounds: to make; steps: of each */
    dt_tail tail;
    dt_optim_kind optim;
    dt_outer_desc outer;
    bool synchronous, valid; /* valid: every target counts */
    dt_comm *comm;
    const char *folder; /* of checkpoints, every second step */
    dt_compress compress;
    double keep;
} local_case;

typedef struct local_run {
    train_model m;
    dt_trainer *t;
    dt_optim_desc optim;
    dt_train_report report;
    dt_result result;
} local_run;

static void local_open(local_run *l, const local_case *c, const dt_ctx_desc *ctx) {
    *l = (local_run){.optim = {.kind = c->optim, .lr = c->optim == DT_OPTIM_SGD ? 0.1 : 0.01}};
    if (!CHECK_TEXT(train_model_make(&l->m, ctx, c->kind), "the model"))
        return;
    for (int i = 0; i < TRAIN_ROWS && c->valid; i++)
        l->m.data.t[i] = i % TRAIN_CLASSES;
    dt_trainer_desc d = train_desc(&l->m);
    d.optim = &l->optim;
    d.devices = c->devices;
    d.batch = c->batch ? c->batch : 40;
    d.accumulate = c->accumulate;
    d.tail = c->tail;
    d.comm = c->comm;
    d.parallel.compress = c->compress;
    d.parallel.compress_ratio = c->keep;
    d.checkpoint.folder = c->folder;
    d.checkpoint.every_steps = c->folder ? 2 : 0;
    if (!c->synchronous) {
        d.mode = DT_TRAIN_LOCAL;
        d.local.steps = c->steps;
        d.local.outer = c->outer;
    }
    l->result = dt_trainer_create(l->m.graph, &d, &l->t);
}

static void local_close(local_run *l) {
    dt_ctx_destroy(l->m.ctx);
}

static bool local_good(const local_run *l) {
    return CHECK_TEXT(!l->result, "%s", dt_ctx_error(l->m.ctx));
}

/* That number of whole rounds. */
static void local_rounds(local_run *l, int rounds) {
    while (rounds > 0 && !l->result) {
        l->result = dt_trainer_step(l->t, &l->report);
        rounds -= l->report.round_ended;
    }
}

static int local_values(const local_run *l, float *to) {
    return train_values(l->t, to, ROOM);
}

static uint64_t local_hash(const local_run *l) {
    return l->result ? 0 : train_values_hash(l->t);
}

static uint64_t local_bits(const local_case *c) {
    local_run l;
    local_open(&l, c, &one_thread);
    local_rounds(&l, c->rounds);
    const uint64_t hash = local_hash(&l);
    local_good(&l);
    local_close(&l);
    return hash;
}

static void local_write(local_run *l, const float *from) {
    dt_store *s = dt_trainer_store(l->t);
    for (int i = 0; i < dt_store_param_count(s); i++) {
        dt_param_info p;
        dt_store_get_param(s, i, &p);
        CHECK(!dt_store_write(s, i, DT_VALUE_PARAM, from, 4 * p.elements));
        from += p.elements;
    }
}

static double local_apart(const float *a, const float *b, int count) {
    double worst = 0.0;
    for (int i = 0; i < count; i++)
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

/* ---- what it computes */

static const dt_outer_desc averaging = {.lr = 1.0, .momentum = DT_ZERO};

TEST(a_round_of_one_local_step_is_the_synchronous_step) {
    static const char *const devices[] = {"cpu", "cpu:2", "cpu:4"};
    static float one[ROOM], other[ROOM];
    for (int i = 0; i < 3; i++) {
        for (int parts = 1; parts < 4; parts++) {
            local_case c = {.devices = devices[i],
                            .steps = 1,
                            .optim = DT_OPTIM_SGD,
                            .valid = true,
                            .outer = averaging,
                            .accumulate = parts,
                            .tail = DT_TAIL_DROP};
            local_run a, b;
            local_open(&a, &c, &one_thread);
            c.synchronous = true;
            local_open(&b, &c, &one_thread);
            local_rounds(&a, 7);
            for (int k = 0; k < 7 && !b.result; k++)
                b.result = dt_trainer_step(b.t, &b.report);
            if (local_good(&a) && local_good(&b)) {
                const int count = local_values(&a, one);
                local_values(&b, other);
                const double apart = local_apart(one, other, count);
                CHECK_TEXT(apart < 1e-6, "%s, %d parts: %g apart", devices[i], parts, apart);
                CHECK_NEAR(a.report.loss, b.report.loss, 1e-5 * b.report.loss);
                CHECK(a.report.round == 7 && a.report.step == 7);
            }
            local_close(&a);
            local_close(&b);
        }
    }
}

static void buffer_values(local_run *l, const char *name, float to[4]) {
    dt_store *s = dt_trainer_store(l->t);
    CHECK(!dt_store_read(s, dt_store_find(s, name), DT_VALUE_PARAM, to, 4 * sizeof *to));
}

/* Batch norm looks at a replica's part in both; the means of parts of equal size have one mean. */
TEST(running_statistics_become_the_mean_of_all_replicas) {
    local_case c = {.devices = "cpu:4",
                    .kind = 1,
                    .steps = 1,
                    .optim = DT_OPTIM_SGD,
                    .valid = true,
                    .outer = averaging,
                    .tail = DT_TAIL_DROP};
    float mean[2][4], variance[2][4];
    for (int i = 0; i < 2; i++) {
        local_run l;
        c.synchronous = i;
        local_open(&l, &c, &one_thread);
        for (int k = 0; k < 3 && !l.result; k++)
            l.result = dt_trainer_step(l.t, &l.report);
        buffer_values(&l, "bn.running_mean", mean[i]);
        buffer_values(&l, "bn.running_var", variance[i]);
        local_good(&l);
        local_close(&l);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(mean[0][i], mean[1][i], 1e-5 * fabs((double)mean[1][i]) + 1e-6);
        CHECK_NEAR(variance[0][i], variance[1][i], 0.05 * (double)variance[1][i]);
    }
}

/* The last of 4 replicas has no samples of a batch of 30. Rows that fill up do not make a step
 * either. */
TEST(a_replica_with_only_padding_makes_no_local_step) {
    local_case c = {.devices = "cpu:4", .steps = 4, .rounds = 2, .optim = DT_OPTIM_ADAM};
    const uint64_t kept = local_bits(&c);
    c.tail = DT_TAIL_PAD;
    CHECK(local_bits(&c) == kept && kept);
}

/* w - lr (d + momentum v), v = momentum v + d, by hand over steps of a trainer without rounds. */
TEST(the_outer_step_is_sgd_with_nesterovs_momentum_over_the_difference) {
    static float start[ROOM], now[ROOM], v[ROOM], got[ROOM];
    for (int plain = 0; plain < 2; plain++) {
        local_case c = {.devices = "cpu",
                        .steps = 3,
                        .optim = DT_OPTIM_SGD,
                        .outer = {.lr = 0.5, .momentum = 0.75, .no_nesterov = plain}};
        local_run a, b;
        local_open(&a, &c, &one_thread);
        c.synchronous = true;
        local_open(&b, &c, &one_thread);
        memset(v, 0, sizeof v);
        const int count = local_values(&b, start);
        for (int round = 0; round < 5; round++) {
            local_rounds(&a, 1);
            for (uint64_t k = 0; k < a.report.steps && !b.result; k++)
                b.result = dt_trainer_step(b.t, NULL);
            if (!local_good(&a) || !local_good(&b))
                break;
            local_values(&b, now);
            for (int i = 0; i < count; i++) {
                const float d = start[i] - now[i];
                v[i] = 0.75f * v[i] + d;
                start[i] -= 0.5f * (plain ? v[i] : d + 0.75f * v[i]);
            }
            local_write(&b, start);
            local_values(&a, got);
            const double apart = local_apart(got, start, count);
            CHECK_TEXT(apart < 2e-6, "round %d: %g apart", round, apart);
            CHECK(a.report.steps == (round % 2 ? 1 : 3)); /* an epoch has 4 batches */
        }
        local_close(&a);
        local_close(&b);
    }
}

/* ---- the same bits */

static const local_case shared_cases[] = {
    {.devices = "cpu:4", .steps = 3, .rounds = 5, .optim = DT_OPTIM_ADAM},
    {.devices = "cpu:4", .kind = 1, .steps = 2, .rounds = 4, .optim = DT_OPTIM_ADAM},
    {.devices = "cpu:4", .kind = TRAIN_SPECTRAL, .steps = 3, .rounds = 3, .accumulate = 3},
    {.devices = "cpu:4", .kind = TRAIN_SUMS, .steps = 5, .rounds = 3, .batch = 37},
    {.devices = "cpu:4", .steps = 9, .rounds = 3, .batch = 37, .tail = DT_TAIL_PAD},
};
enum { SHARED_CASES = sizeof shared_cases / sizeof shared_cases[0] };

static void shared_rank(rank *r) {
    for (int i = 0; i < SHARED_CASES; i++) {
        local_case c = shared_cases[i];
        c.devices = rank_devices(r);
        c.comm = r->comm;
        r->records[i].hash = local_bits(&c);
    }
}

static void shared_job(int ranks, const char *const *devices, const uint64_t *want) {
    job *j = job_new(ranks, NULL);
    if (!j)
        return;
    for (int i = 0; i < ranks; i++)
        j->devices[i] = devices[i];
    if (job_run(j, shared_rank)) {
        for (int i = 0; i < ranks * SHARED_CASES; i++) {
            const uint64_t got = j->at[i / SHARED_CASES].records[i % SHARED_CASES].hash;
            CHECK_TEXT(got == want[i % SHARED_CASES] && got,
                       "%d ranks, rank %d, case %d: %016llx, not %016llx", ranks, i / SHARED_CASES,
                       i % SHARED_CASES, (unsigned long long)got,
                       (unsigned long long)want[i % SHARED_CASES]);
        }
    }
    job_free(j);
}

TEST(four_replicas_with_local_steps_give_the_same_bits_as_threads_and_as_processes) {
    static const char *const two[] = {"cpu:2", "cpu:2"}, *const other[] = {"cpu", "cpu:3"},
                             *const four[] = {"cpu", "cpu", "cpu", "cpu"};
    uint64_t want[SHARED_CASES];
    for (int i = 0; i < SHARED_CASES; i++)
        want[i] = local_bits(&shared_cases[i]);
    shared_job(2, two, want);
    shared_job(2, other, want);
    shared_job(4, four, want);
}

/* ---- reports, and the middle of a round */

TEST(a_round_reports_the_whole_job_at_its_end_and_one_process_before) {
    local_case c = {.devices = "cpu:2", .steps = 3, .valid = true};
    local_run l;
    dt_trainer_info info;
    local_open(&l, &c, &one_thread);
    for (int i = 0; i < 4 && !l.result; i++) { /* 40, 40, 40 | 30 */
        l.result = dt_trainer_step(l.t, &l.report);
        const bool ends = i >= 2;
        CHECK(l.report.round_ended == ends && l.report.epoch_ended == (i == 3));
        CHECK(l.report.samples == (i == 2 ? 120u : i == 3 ? 30u : 40u));
        CHECK(l.report.steps == (i == 2 ? 3u : 1u) &&
              l.report.round == (uint64_t)(i < 2 ? 0 : i - 1));
        CHECK(l.report.loss_weight[0] == (double)l.report.samples);
        CHECK(l.report.loss > 0.0 && l.report.gradient_norm > 0.0 && l.report.skipped == 0);
        dt_trainer_get_info(l.t, &info);
        CHECK(info.round_steps == (ends ? 0 : i + 1) && info.step == (uint64_t)i + 1);
    }
    if (!l.result)
        l.result = dt_trainer_epoch(l.t, &l.report);
    CHECK(l.report.samples == 150 && l.report.steps == 4 && l.report.round == 4);
    local_good(&l);
    local_close(&l);
}

TEST(during_a_round_nothing_is_saved_or_evaluated) {
    local_case c = {.devices = "cpu:2", .steps = 3};
    local_run l;
    local_open(&l, &c, &one_thread);
    const dt_dataset data = train_desc(&l.m).data;
    CHECK(!dt_trainer_step(l.t, NULL));
    CHECK(dt_trainer_evaluate(l.t, &data, 0, NULL) == DT_ERROR_INVALID);
    CHECK(strstr(dt_ctx_error(l.m.ctx), "1 of 3 local steps"));
    CHECK(dt_trainer_save(l.t, "build/local.safetensors") == DT_ERROR_INVALID);
    CHECK(strstr(dt_ctx_error(l.m.ctx), "round_ended"));
    local_rounds(&l, 1);
    CHECK(!dt_trainer_evaluate(l.t, &data, 0, &l.report) && l.report.samples == TRAIN_ROWS);
    CHECK(!dt_trainer_save(l.t, "build/local.safetensors"));
    remove("build/local.safetensors");
    local_good(&l);
    local_close(&l);
}

TEST(a_replica_that_finds_a_nan_skips_its_step_and_the_others_continue) {
    local_case c = {.devices = "cpu:2", .steps = 4, .optim = DT_OPTIM_ADAM};
    static float values[ROOM];
    local_run l;
    local_open(&l, &c, &one_thread);
    float *x = &l.m.data.x[17 * TRAIN_SIDE * TRAIN_SIDE], good = *x;
    *x = NAN;
    uint64_t skipped = 0;
    for (int i = 0; i < 3; i++) {
        CHECK(!dt_trainer_step(l.t, &l.report));
        skipped += l.report.skipped;
    }
    dt_result result = dt_trainer_step(l.t, &l.report);
    CHECK(result == DT_ERROR_NUMERIC && l.report.round_ended && l.report.epoch_ended);
    CHECK(l.report.skipped == 1 && skipped <= 1 && l.report.round == 1);
    CHECK(strstr(dt_ctx_error(l.m.ctx), "skipped 1 steps of replicas"));
    CHECK(strstr(dt_ctx_error(l.m.ctx), "NaN or an infinity"));
    for (int i = local_values(&l, values); i-- > 0;)
        CHECK(isfinite(values[i]));
    *x = good;
    CHECK(!dt_trainer_epoch(l.t, &l.report) && l.report.skipped == 0);
    local_close(&l);
}

TEST(an_outer_step_that_is_not_finite_leaves_the_weights_of_the_rounds_beginning) {
    local_case c = {.devices = "cpu:2", .steps = 2, .outer = {.lr = 3e38, .momentum = DT_ZERO}};
    static float before[ROOM], after[ROOM];
    local_run l;
    local_open(&l, &c, &one_thread);
    l.optim.lr = 1e30;
    const int count = local_values(&l, before);
    CHECK(!dt_trainer_set_lr(l.t, 100.0) && !dt_trainer_step(l.t, NULL));
    CHECK(dt_trainer_step(l.t, &l.report) == DT_ERROR_NUMERIC && l.report.round_ended);
    CHECK(strstr(dt_ctx_error(l.m.ctx), "outer step"));
    local_values(&l, after);
    CHECK(local_apart(before, after, count) == 0.0 && l.report.round == 0);
    local_close(&l);
}

/* ---- checkpoints */

static uint64_t resumed_hash(const local_case *c, const char *load, const char *save) {
    local_run l;
    local_open(&l, c, &one_thread);
    if (load && !l.result)
        l.result = dt_trainer_load(l.t, load);
    local_rounds(&l, save || load ? 3 : 6);
    if (save && !l.result)
        l.result = dt_trainer_save(l.t, save);
    const uint64_t hash = local_hash(&l);
    local_good(&l);
    local_close(&l);
    return hash;
}

TEST(the_same_number_of_replicas_resumes_from_a_checkpoint_with_the_same_bits) {
    const char *path = "build/local.safetensors";
    for (int kind = 0; kind < 3; kind++) {
        local_case c = {.devices = "cpu:3", .kind = kind, .steps = 3, .optim = DT_OPTIM_ADAM};
        const uint64_t whole = resumed_hash(&c, NULL, NULL);
        resumed_hash(&c, NULL, path);
        CHECK(resumed_hash(&c, path, NULL) == whole && whole);
        c.devices = "cpu:2"; /* fewer, and more: other bits, but the same ones each time */
        const uint64_t two = resumed_hash(&c, path, NULL);
        CHECK(two && two != whole && resumed_hash(&c, path, NULL) == two);
        c.devices = "cpu:4";
        CHECK(resumed_hash(&c, path, NULL));
    }
    remove(path);
}

TEST(local_and_synchronous_steps_resume_from_each_others_checkpoints) {
    const char *path = "build/local.safetensors";
    local_case local = {.devices = "cpu:2", .steps = 3, .optim = DT_OPTIM_ADAM}, other = local;
    other.synchronous = true;
    resumed_hash(&local, NULL, path);
    local_run l;
    local_open(&l, &other, &one_thread);
    CHECK(!dt_trainer_load(l.t, path) && !dt_trainer_epoch(l.t, &l.report));
    CHECK(!dt_trainer_save(l.t, path));
    local_close(&l);
    local_open(&l, &local, &one_thread);
    CHECK(!dt_trainer_load(l.t, path) && !dt_trainer_epoch(l.t, &l.report));
    CHECK(l.report.round == 2);
    local_good(&l);
    local_close(&l);
    remove(path);
}

/* Each rank's moments come to rank 0 and back. */
static void saved_rank(rank *r) {
    local_case c = {
        .devices = rank_devices(r), .steps = 3, .optim = DT_OPTIM_ADAM, .comm = r->comm};
    char path[64];
    snprintf(path, sizeof path, "%s/saved", r->job->folder);
    r->numbers[0] = resumed_hash(&c, NULL, NULL);
    resumed_hash(&c, NULL, path);
    r->numbers[1] = resumed_hash(&c, path, NULL);
    if (r->index == 0)
        remove(path);
}

TEST(ranks_resume_from_a_checkpoint_with_the_same_bits) {
    job *j = job_new(3, NULL);
    local_case c = {.devices = "cpu:4", .steps = 3, .optim = DT_OPTIM_ADAM};
    const uint64_t want = resumed_hash(&c, NULL, NULL);
    if (!j)
        return;
    j->devices[1] = "cpu:2";
    if (job_run(j, saved_rank)) {
        for (int i = 0; i < 3; i++)
            CHECK_TEXT(j->at[i].numbers[0] == want && j->at[i].numbers[1] == want, "rank %d", i);
    }
    job_free(j);
}

TEST(checkpoints_that_are_due_in_a_round_are_written_at_its_end) {
    local_run l;
    bool found;
    local_case c = {.devices = "cpu:2", .steps = 3, .folder = "build/local.folder"};
    local_open(&l, &c, &one_thread);
    for (int i = 1; i < 9 && !l.result; i++) { /* rounds end with steps 3, 4, 7, 8 */
        l.result = dt_trainer_step(l.t, &l.report);
        dt_trainer_info info;
        if (i == 6)
            dt_trainer_request_checkpoint(l.t);
        if (i != 2 && i != 3 && i != 6 && i != 7)
            continue;
        local_run other;
        local_open(&other, &c, &one_thread);
        CHECK(!dt_trainer_resume(other.t, &found));
        dt_trainer_get_info(other.t, &info);
        CHECK_TEXT(info.step == (i == 2   ? 0u
                                 : i == 7 ? 7u
                                 : i == 3 ? 3u
                                          : 4u),
                   "%d: %d", i, (int)info.step);
        local_close(&other);
    }
    local_good(&l);
    local_close(&l);
    CHECK(!system("rm -r build/local.folder"));
}

/* ---- compressed differences */

static const struct {
    dt_compress compress;
    double keep;
} compressed[] = {{DT_COMPRESS_NONE, 0},
                  {DT_COMPRESS_BF16, 0},
                  {DT_COMPRESS_INT8, 0},
                  {DT_COMPRESS_TOPK, 0.2},
                  {DT_COMPRESS_TOPK, 1.0}};
enum { COMPRESSED = sizeof compressed / sizeof compressed[0] };

/* After a round that learns, some rounds come at a rate of 0. They send what it left out, and
 * nothing else. So the weights come to be what they are where nothing is compressed. */
static void compressed_rank(rank *r) {
    static float exact[ROOM], now[ROOM];
    for (int i = 0; i < COMPRESSED; i++) {
        local_case c = {.devices = rank_devices(r),
                        .steps = 2,
                        .optim = DT_OPTIM_SGD,
                        .outer = averaging,
                        .comm = r->comm,
                        .compress = compressed[i].compress,
                        .keep = compressed[i].keep};
        local_run l;
        local_open(&l, &c, &one_thread);
        local_rounds(&l, 1);
        const int count = local_values(&l, i ? now : exact);
        const double left = local_apart(exact, now, count);
        EXPECT_TEXT(r, i == 0 || i + 1 == COMPRESSED || left > 1e-5, "%d leaves out %g", i, left);
        dt_trainer_set_lr(l.t, DT_ZERO);
        local_rounds(&l, 10);
        EXPECT_TEXT(r, !l.result, "%s", dt_ctx_error(l.m.ctx));
        local_values(&l, now);
        const double apart = local_apart(exact, now, count);
        EXPECT_TEXT(r, apart < 1e-6, "%d: %g apart", i, apart);
        local_rounds(&l, 1);
        r->numbers[i] = local_hash(&l);
        local_close(&l);
    }
}

TEST(compressed_differences_are_the_same_on_all_ranks_and_the_rest_is_sent_later) {
    job *j = job_new(3, NULL);
    if (!j)
        return;
    j->devices[1] = "cpu:2";
    if (job_run(j, compressed_rank)) {
        for (int i = 0; i < COMPRESSED; i++)
            CHECK(j->at[0].numbers[i] == j->at[1].numbers[i] &&
                  j->at[0].numbers[i] == j->at[2].numbers[i] && j->at[0].numbers[i]);
    }
    job_free(j);
}

/* ---- what goes wrong on one rank */

static void dying_rank(rank *r) {
    local_case c = {.devices = "cpu", .steps = 2, .optim = DT_OPTIM_ADAM, .comm = r->comm};
    local_run l;
    local_open(&l, &c, &one_thread);
    local_rounds(&l, 1);
    const uint64_t hash = local_hash(&l);
    EXPECT_TEXT(r, !l.result, "%s", dt_ctx_error(l.m.ctx));
    if (r->index == 1)
        _exit(0);
    local_rounds(&l, 2);
    EXPECT_TEXT(r, l.result == DT_ERROR_PEER_LOST, "%d: %s", (int)l.result, dt_ctx_error(l.m.ctx));
    EXPECT_TEXT(r,
                strstr(dt_ctx_error(l.m.ctx), "rank 1") && strstr(dt_ctx_error(l.m.ctx), "step 2"),
                "%s", dt_ctx_error(l.m.ctx));
    EXPECT(r, dt_trainer_step(l.t, NULL) == DT_ERROR_REVOKED);
    l.result = DT_OK;
    EXPECT(r, local_hash(&l) == hash); /* the weights that the round began with */
    char path[64];
    snprintf(path, sizeof path, "%s/saved", r->job->folder);
    EXPECT_TEXT(r, !dt_trainer_save(l.t, path), "%s", dt_ctx_error(l.m.ctx));
    local_close(&l);
    c.comm = NULL; /* by itself, from where the round began */
    local_open(&l, &c, &one_thread);
    dt_trainer_info info;
    EXPECT_TEXT(r, !dt_trainer_load(l.t, path), "%s", dt_ctx_error(l.m.ctx));
    dt_trainer_get_info(l.t, &info);
    EXPECT(r, info.step == 2 && info.round == 1 && info.epoch == 0);
    EXPECT(r, !dt_trainer_epoch(l.t, &l.report) && l.report.samples == 70 && l.report.steps == 2);
    remove(path);
    local_close(&l);
}

TEST(a_rank_that_dies_within_a_round_is_named_at_its_end_and_the_round_is_undone) {
    job *j = job_new(2, NULL);
    if (!j)
        return;
    j->at[1].doomed = true;
    job_run(j, dying_rank);
    job_free(j);
}

static void differing_rank(rank *r) {
    static float before[ROOM], after[ROOM];
    local_case c = {.devices = "cpu", .steps = 2, .optim = DT_OPTIM_ADAM, .comm = r->comm};
    local_run l;
    local_open(&l, &c, &one_thread);
    const int count = local_values(&l, before);
    dt_trainer_set_lr(l.t, r->index ? 0.02 : 0.01);
    EXPECT(r, !dt_trainer_step(l.t, NULL));
    EXPECT(r, dt_trainer_step(l.t, NULL) == DT_ERROR_INVALID);
    EXPECT_TEXT(r, strstr(dt_ctx_error(l.m.ctx), "different learning rates"), "%s",
                dt_ctx_error(l.m.ctx));
    local_values(&l, after);
    EXPECT(r, local_apart(before, after, count) == 0.0);
    dt_trainer_set_lr(l.t, 0.01);
    l.result = dt_trainer_epoch(l.t, &l.report);
    EXPECT_TEXT(r, !l.result && l.report.round == 1, "%s", dt_ctx_error(l.m.ctx));
    local_close(&l);
}

TEST(ranks_with_different_rates_in_a_round_get_an_error_and_continue_from_its_beginning) {
    job *j = job_new(2, NULL);
    if (!j)
        return;
    job_run(j, differing_rank);
    job_free(j);
}

/* ---- memory, and what is refused */

TEST(a_round_allocates_nothing) {
    local_case c = {.devices = "cpu:2", .kind = 1, .steps = 3, .accumulate = 2};
    dt_ctx_info before, after;
    local_run l;
    local_open(&l, &c, &one_thread);
    dt_ctx_get_info(l.m.ctx, &before);
    local_rounds(&l, 5);
    dt_ctx_get_info(l.m.ctx, &after);
    CHECK(local_good(&l) && before.host_alloc_calls == after.host_alloc_calls);
    local_close(&l);
}

TEST(local_steps_refuse_settings_that_they_cannot_do) {
    static const struct {
        dt_trainer_desc d;
        dt_result result;
        const char *says;
    } wrong[] = {
        {{.mode = DT_TRAIN_LOCAL, .parallel.batch_slices = 2},
         DT_ERROR_INVALID,
         ".parallel.batch_slices = 2"},
        {{.mode = DT_TRAIN_LOCAL, .parallel.balance = DT_BALANCE_MEASURED},
         DT_ERROR_INVALID,
         ".parallel.balance"},
        {{.mode = DT_TRAIN_LOCAL, .local.steps = -1}, DT_ERROR_INVALID, ".local.steps is -1"},
        {{.mode = DT_TRAIN_LOCAL, .local.gossip = -1}, DT_ERROR_INVALID, ".local.gossip is -1"},
        {{.mode = DT_TRAIN_LOCAL, .local.gossip = INT_MAX, .local.steps = 3},
         DT_ERROR_INVALID,
         "gossip"},
        {{.local.gossip = 2}, DT_ERROR_INVALID, ".local.gossip"},
        {{.mode = DT_TRAIN_LOCAL, .local.outer = {.momentum = 1.0}}, DT_ERROR_INVALID, "momentum"},
        {{.mode = DT_TRAIN_LOCAL, .local.outer = {.lr = -1.0}},
         DT_ERROR_INVALID,
         ".local.outer.lr is -1"},
        {{.mode = DT_TRAIN_LOCAL, .averaged = true}, DT_ERROR_UNSUPPORTED, ".optim->average"},
        {{.local.steps = 3}, DT_ERROR_INVALID, "DT_TRAIN_LOCAL"},
        {{.parallel.compress = DT_COMPRESS_INT8}, DT_ERROR_UNSUPPORTED, ".parallel.compress"},
        {{.mode = DT_TRAIN_LOCAL, .parallel.compress_ratio = 2},
         DT_ERROR_INVALID,
         ".parallel.compress_ratio is 2; it must be above 0 and at most 1"},
        {{.mode = (dt_train_mode)7},
         DT_ERROR_INVALID,
         ".mode is 7; it must be DT_TRAIN_SYNCHRONOUS, DT_TRAIN_LOCAL or "},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        train_model m;
        dt_trainer *t;
        REQUIRE(train_model_make(&m, &one_thread, 0));
        dt_trainer_desc d = train_desc(&m);
        d.devices = "cpu:2";
        d.mode = wrong[i].d.mode;
        d.parallel.batch_slices = wrong[i].d.parallel.batch_slices;
        d.parallel.balance = wrong[i].d.parallel.balance;
        d.local.steps = wrong[i].d.local.steps;
        d.local.gossip = wrong[i].d.local.gossip;
        d.local.outer = wrong[i].d.local.outer;
        d.parallel.compress = wrong[i].d.parallel.compress;
        d.parallel.compress_ratio = wrong[i].d.parallel.compress_ratio;
        if (wrong[i].d.averaged)
            m.adam.average.kind = DT_AVERAGE_EMA;
        const dt_result result = dt_trainer_create(m.graph, &d, &t);
        CHECK_TEXT(result == wrong[i].result && strstr(dt_ctx_error(m.ctx), wrong[i].says),
                   "%zu: %d, %s", i, (int)result, dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
}
