/* Trainers that share replicas (.replicas_of): the two sides of a GAN, and an agent whose data are
 * new in each call. They have the same bits on one device, on several replicas and on several
 * ranks. These are the bits of programs that share a store. */
#include "parallel/train_processes.h"

enum { GAN_ROWS = 64, GAN_WIDTH = 6, GAN_NOISE = 4, GAN_STEPS = 14 };

typedef struct gan {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor real, noise, fake, of_real, of_fake, of_kept; /* kept: without a gradient to it */
    float data[GAN_ROWS * GAN_WIDTH];
    dt_optim_desc judge_optim, maker_optim;
    dt_trainer *judge, *maker;
} gan;

/* Which side steps: the host's order, with several of one kind in a row. */
static const char gan_order[GAN_STEPS + 1] = "JJMJMMMJJMJJJM";

static dt_tensor gan_param(gan *m, const char *name, dt_shape shape) {
    return dt_param(m->graph, name, shape,
                    (dt_init){.kind = DT_INIT_UNIFORM, .a = -0.4f, .b = 0.4f});
}

static dt_tensor gan_judge(dt_tensor x, const dt_tensor w[2]) {
    return dt_linear(dt_dropout(dt_relu(dt_linear(x, w[0], (dt_tensor){0})), 0.1f), w[1],
                     (dt_tensor){0});
}

/* norm: the maker has a batch norm, whose statistics both sides move. */
static bool gan_make_in(gan *m, const dt_ctx_desc *ctx, bool norm) {
    uint32_t state = 11;
    *m = (gan){.judge_optim = {.kind = DT_OPTIM_ADAM, .lr = 0.02, .clip_norm = 1.0},
               .maker_optim = {.kind = DT_OPTIM_SGD, .lr = 0.05, .momentum = 0.5}};
    if (dt_ctx_create(ctx, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    for (int i = 0; i < GAN_ROWS * GAN_WIDTH; i++)
        m->data[i] = (float)(train_random(&state) % 1000) / 500.0f + (float)(i % GAN_WIDTH);
    m->real = dt_input(m->graph, "real", DT_F32, dt_dims(GAN_WIDTH));
    m->noise = dt_input(m->graph, "noise", DT_F32, dt_dims(GAN_NOISE));
    dt_tensor h = dt_linear(m->noise, gan_param(m, "m.0", dt_dims(12, GAN_NOISE)), (dt_tensor){0});
    h = dt_relu(norm ? dt_nn_batch_norm(h, "m.norm", NULL) : h);
    m->fake = dt_linear(h, gan_param(m, "m.1", dt_dims(GAN_WIDTH, 12)), (dt_tensor){0});
    const dt_tensor w[2] = {gan_param(m, "j.0", dt_dims(10, GAN_WIDTH)),
                            gan_param(m, "j.1", dt_dims(1, 10))};
    m->of_real = dt_mean_loss(dt_softplus(dt_neg(gan_judge(m->real, w))));
    m->of_kept = dt_mean_loss(dt_softplus(gan_judge(dt_detach(m->fake), w)));
    m->of_fake = dt_mean_loss(dt_softplus(dt_neg(gan_judge(m->fake, w))));
    return dt_graph_error(m->graph) == NULL;
}

static bool gan_make(gan *m, bool norm) {
    return gan_make_in(m, &one_thread, norm);
}

static dt_result gan_noise(void *user, const dt_sample *s, void *const *values) {
    const int column = *(const int *)user;
    uint32_t state = (uint32_t)(s->seed * 7919 + s->step * 104729 + s->position * 31);
    for (int i = 0; i < GAN_NOISE; i++)
        ((float *)values[column])[i] = (float)(train_random(&state) % 2001) / 1000.0f - 1.0f;
    return DT_OK;
}

static const int gan_columns[2] = {1, 0};

static dt_trainer_desc gan_judge_desc(const gan *m, const char *devices, dt_comm *comm) {
    return (dt_trainer_desc){
        .losses = {{m->of_real, 1}, {m->of_kept, 0.5f}},
        .optim = &m->judge_optim,
        .params = "j.*",
        .seed = 3,
        .batch = 24,
        .devices = devices,
        .comm = comm,
        .parallel = {.batch_slices = 6},
        .data = {.rows = GAN_ROWS,
                 .columns = {{.input = m->real, .data = m->data}, {.input = m->noise}},
                 .sample = gan_noise,
                 .user = (void *)&gan_columns[0]}};
}

static dt_trainer_desc gan_maker_desc(const gan *m) {
    return (dt_trainer_desc){.loss = m->of_fake,
                             .optim = &m->maker_optim,
                             .params = "m.*",
                             .seed = 4,
                             .batch = 30,
                             .accumulate = 2,
                             .replicas_of = m->judge,
                             .data = {.rows = 90,
                                      .columns = {{.input = m->noise}},
                                      .sample = gan_noise,
                                      .user = (void *)&gan_columns[1]}};
}

static dt_result gan_open(gan *m, const char *devices, dt_comm *comm) {
    dt_trainer_desc d = gan_judge_desc(m, devices, comm);
    dt_result result = dt_trainer_create(m->graph, &d, &m->judge);
    if (result)
        return result;
    d = gan_maker_desc(m);
    return dt_trainer_create(m->graph, &d, &m->maker);
}

/* Steps [from, to), each with its record. */
static dt_result gan_steps(gan *m, int from, int to, step_record *records) {
    dt_result result = DT_OK;
    dt_train_report report;
    for (int i = from; i < to && !result; i++) {
        dt_trainer *t = gan_order[i] == 'J' ? m->judge : m->maker;
        result = dt_trainer_step(t, &report);
        if (!result)
            records[i] = record_of(t, &report);
    }
    return result;
}

static step_record gan_oracle[GAN_STEPS];

static bool gan_oracle_make(void) {
    gan m;
    if (gan_oracle[0].hash)
        return true;
    CHECK(gan_make(&m, true));
    const bool made = !gan_open(&m, "cpu", NULL) && !gan_steps(&m, 0, GAN_STEPS, gan_oracle);
    CHECK_TEXT(made, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return made;
}

static bool gan_equal(const step_record *got, int from, const char *who) {
    for (int i = from; i < GAN_STEPS; i++) {
        const step_record *want = &gan_oracle[i];
        if (!CHECK_TEXT(record_equal(&got[i], want),
                        "%s, step %d (%c): hash %016llx, not %016llx; loss %.17g, not %.17g", who,
                        i + 1, gan_order[i], (unsigned long long)got[i].hash,
                        (unsigned long long)want->hash, got[i].loss, want->loss))
            return false;
    }
    return true;
}

TEST(sharing_a_gan_has_the_same_bits_on_any_number_of_replicas) {
    static const char *const devices[] = {"cpu:2", "cpu:3", "cpu:6"};
    if (!gan_oracle_make())
        return;
    CHECK(gan_oracle[GAN_STEPS - 1].step == GAN_STEPS); /* counted over both */
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        gan m;
        step_record records[GAN_STEPS] = {{0}};
        CHECK(gan_make(&m, true));
        CHECK_TEXT(!gan_open(&m, devices[i], NULL) && !gan_steps(&m, 0, GAN_STEPS, records), "%s",
                   dt_ctx_error(m.ctx));
        gan_equal(records, 0, devices[i]);
        dt_ctx_destroy(m.ctx);
    }
}

static void gan_rank(rank *r) {
    gan m;
    EXPECT(r, gan_make(&m, true));
    EXPECT_TEXT(r,
                !gan_open(&m, rank_devices(r), r->comm) && !gan_steps(&m, 0, GAN_STEPS, r->records),
                "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(sharing_a_gan_has_the_same_bits_on_two_and_three_ranks) {
    static const char *const devices[2][3] = {{"cpu", "cpu"}, {"cpu", "cpu:2", "cpu"}};
    for (int i = 0; i < 2; i++) {
        job *j = job_new(2 + i, NULL);
        if (!j || !gan_oracle_make())
            return;
        j->tcp = i == 0;
        for (int k = 0; k < 2 + i; k++)
            j->devices[k] = devices[i][k];
        if (job_run(j, gan_rank))
            for (int k = 0; k < j->count; k++)
                gan_equal(j->at[k].records, 0, "a rank");
        job_free(j);
    }
}

/* ---- rates */

enum { GAN_RATED = 8 };

/* The discriminator and the generator in turn; rates: those that the steps had, or NULL: to be set.
 * The generator comes after two of the discriminator's steps. */
static void gan_rated(const dt_schedule *of_judge, const dt_schedule *of_maker, const char *devices,
                      double rates[2][GAN_RATED], uint64_t *hash) {
    gan m;
    dt_train_report report;
    CHECK(gan_make(&m, false));
    const bool given = !of_judge->kind;
    m.judge_optim.schedule[0] = *of_judge;
    m.maker_optim.schedule[0] = *of_maker;
    dt_trainer_desc d = gan_judge_desc(&m, devices, NULL);
    CHECK(!dt_trainer_create(m.graph, &d, &m.judge));
    for (int i = 0; i < GAN_RATED; i++) {
        d = gan_maker_desc(&m);
        CHECK(i != 2 || !dt_trainer_create(m.graph, &d, &m.maker));
        for (int k = 0; k < (i < 2 ? 1 : 2); k++) {
            dt_trainer *t = k ? m.maker : m.judge;
            CHECK(!given || !dt_trainer_set_lr(t, rates[k][i]));
            CHECK_TEXT(!dt_trainer_step(t, &report), "%s", dt_ctx_error(m.ctx));
            CHECK(!given || report.lr == rates[k][i]);
            rates[k][i] = report.lr;
        }
    }
    CHECK(!dt_store_state_hash(dt_trainer_store(m.judge), hash));
    dt_trainer_destroy(m.maker); /* the discriminator's steps are still counted as its own */
    CHECK(!dt_trainer_step(m.judge, &report));
    if (!given)
        CHECK_NEAR(report.lr, 0.02 * 0.6, 1e-12);
    dt_ctx_destroy(m.ctx);
}

TEST(sharing_a_schedule_counts_the_steps_of_its_own_trainer) {
    static const dt_schedule none = {0};
    double rates[2][GAN_RATED];
    uint64_t hash[3];
    /* the discriminator has 3 steps an epoch */
    const dt_schedule falls = {.kind = DT_SCHEDULE_LINEAR, .epochs = 4, .start = 1, .end = 0.4};
    const dt_schedule rises = {.kind = DT_SCHEDULE_LINEAR, .steps = 4, .start = 0.25};
    gan_rated(&falls, &rises, "cpu:2", rates, &hash[0]);
    for (int i = 0; i < GAN_RATED; i++) {
        CHECK_NEAR(rates[0][i], 0.02 * (1 - 0.05 * i), 1e-12);
        if (i >= 2)
            CHECK_NEAR(rates[1][i], 0.05 * (i < 6 ? 0.25 + 0.1875 * (i - 2) : 1), 1e-12);
    }
    gan_rated(&none, &none, "cpu:2", rates, &hash[1]);
    gan_rated(&none, &none, "cpu", rates, &hash[2]);
    CHECK(hash[0] == hash[1] && hash[0] == hash[2]);
}

/* ---- beside programs of one store */

typedef struct gan_end {
    uint64_t hash;
    float mean[12]; /* the running one of the maker's norm; 0 without one */
} gan_end;

static bool gan_end_of(dt_store *s, gan_end *end) {
    const int mean = dt_store_find(s, "m.norm.running_mean");
    return !dt_store_state_hash(s, &end->hash) &&
           (mean < 0 || !dt_store_read(s, mean, DT_VALUE_PARAM, end->mean, sizeof end->mean));
}

/* What a trainer with one batch slice computes, two programs over one store do too. */
static bool gan_programs(gan *m, gan_end *end) {
    dt_store *store;
    dt_program *judge, *maker;
    static float noise[GAN_ROWS * GAN_NOISE];
    const dt_program_desc of_judge = {.losses = {{m->of_real, 1}, {m->of_kept, 0.5f}},
                                      .optim = &m->judge_optim,
                                      .params = "j.*",
                                      .batch = GAN_ROWS},
                          of_maker = {.loss = m->of_fake,
                                      .optim = &m->maker_optim,
                                      .params = "m.*",
                                      .batch = GAN_ROWS};
    if (dt_store_create(m->graph, &(dt_store_desc){.device = "cpu", .seed = 3}, &store) ||
        dt_program_create(store, &of_judge, &judge) || dt_program_create(store, &of_maker, &maker))
        return false;
    for (int i = 0; i < GAN_STEPS; i++) {
        dt_program *p = gan_order[i] == 'J' ? judge : maker;
        for (int k = 0; k < GAN_ROWS * GAN_NOISE; k++)
            noise[k] = (float)((k * 37 + i * 11) % 101) / 50.0f - 1.0f;
        if ((p == judge && dt_program_write(p, m->real, m->data, sizeof m->data)) ||
            dt_program_write(p, m->noise, noise, sizeof noise) ||
            dt_program_run(p, &(dt_step_desc){.seed = p == judge ? 3 : 4}, NULL))
            return false;
    }
    return gan_end_of(store, end);
}

/* The same by trainers, whose data are new in each call. */
static bool gan_calls(gan *m, const char *devices, int slices, gan_end *end) {
    static float noise[GAN_ROWS * GAN_NOISE];
    dt_trainer_desc d = gan_judge_desc(m, devices, NULL);
    const dt_dataset data = {
        .rows = GAN_ROWS,
        .columns = {{.input = m->noise, .data = noise}, {.input = m->real, .data = m->data}}};
    d.data = data;
    d.batch = GAN_ROWS;
    d.no_shuffle = d.no_prefetch = true;
    d.parallel.batch_slices = slices;
    bool fine = !dt_trainer_create(m->graph, &d, &m->judge);
    d = gan_maker_desc(m);
    d.data = data;
    d.data.columns[1] = (dt_column){0};
    d.batch = GAN_ROWS;
    d.accumulate = 1;
    d.no_shuffle = d.no_prefetch = true;
    fine = fine && !dt_trainer_create(m->graph, &d, &m->maker);
    for (int i = 0; i < GAN_STEPS && fine; i++) {
        for (int k = 0; k < GAN_ROWS * GAN_NOISE; k++)
            noise[k] = (float)((k * 37 + i * 11) % 101) / 50.0f - 1.0f;
        fine = !dt_trainer_step(gan_order[i] == 'J' ? m->judge : m->maker, NULL);
    }
    return fine && gan_end_of(dt_trainer_store(m->judge), end);
}

/* By programs, and by trainers with 1 batch slice and with 4. */
static void gan_ends(bool norm, gan_end ends[5]) {
    static const char *const devices[] = {NULL, "cpu", "cpu", "cpu:2", "cpu:4"};
    for (int i = 0; i < 5; i++) {
        gan m;
        ends[i] = (gan_end){0};
        CHECK(gan_make(&m, norm));
        CHECK_TEXT(i ? gan_calls(&m, devices[i], i < 2 ? 1 : 4, &ends[i])
                     : gan_programs(&m, &ends[i]),
                   "%d: %s", i, dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
    CHECK(ends[2].hash && ends[3].hash == ends[2].hash && ends[4].hash == ends[2].hash);
}

TEST(sharing_trainers_with_data_of_each_call_have_the_bits_of_programs_of_one_store) {
    gan_end ends[5];
    gan_ends(false, ends);
    CHECK(ends[0].hash && ends[1].hash == ends[0].hash);
}

/* Trainers make them on the host, in double: near those of a program, whichever side stepped. */
TEST(sharing_trainers_update_the_same_running_statistics) {
    gan_end ends[5];
    gan_ends(true, ends);
    for (int i = 0; i < 12; i++)
        CHECK_NEAR(ends[1].mean[i], ends[0].mean[i], 1e-4);
}

/* ---- ranks that do not call the same */

static void gan_rank_differs(rank *r) {
    gan m;
    dt_train_report report;
    EXPECT(r, gan_make(&m, true));
    dt_result result = gan_open(&m, "cpu", r->comm);
    if (!result)
        result = gan_steps(&m, 0, 5, r->records);
    EXPECT_TEXT(r, !result, "%s", dt_ctx_error(m.ctx));
    dt_trainer *wrong = r->index ? m.maker : m.judge;
    EXPECT(r, dt_trainer_step(wrong, &report) == DT_ERROR_INVALID);
    snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
    EXPECT_TEXT(r,
                strstr(r->text, "step 6: rank 1 steps trainer 1 of those that share replicas, but "
                                "rank 0 steps trainer 0"),
                "%s", r->text);
    EXPECT_TEXT(r, !gan_steps(&m, 5, GAN_STEPS, r->records), "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(sharing_ranks_that_step_different_trainers_get_an_error_and_continue) {
    job *j = job_new(2, NULL);
    if (!j || !gan_oracle_make())
        return;
    if (job_run(j, gan_rank_differs))
        for (int k = 0; k < j->count; k++)
            gan_equal(j->at[k].records, 0, "after a difference");
    job_free(j);
}

/* Rank 1 ends in the second trainer's steps: both trainers of the others know it. */
static void gan_rank_dies(rank *r) {
    gan m;
    EXPECT(r, gan_make(&m, true));
    EXPECT_TEXT(r, !gan_open(&m, "cpu", r->comm) && !gan_steps(&m, 0, 5, r->records), "%s",
                dt_ctx_error(m.ctx));
    atomic_store(&r->stage, 1);
    if (r->index == 1) { /* when rank 0 needs nothing more of step 5 */
        job_await(r->job, 0, 1);
        _exit(0);
    }
    EXPECT(r, dt_trainer_step(m.maker, NULL) == DT_ERROR_PEER_LOST);
    EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "rank 1"), "%s", dt_ctx_error(m.ctx));
    EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "of step 5"), "%s", dt_ctx_error(m.ctx));
    EXPECT(r, dt_trainer_step(m.judge, NULL) == DT_ERROR_REVOKED);
    EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "the job ended at step 5"), "%s",
                dt_ctx_error(m.ctx));
    EXPECT(r, dt_trainer_step(m.maker, NULL) == DT_ERROR_REVOKED);
    char path[64];
    snprintf(path, sizeof path, "%s/state", r->job->folder);
    EXPECT_TEXT(r, !dt_trainer_save(m.judge, path), "%s", dt_ctx_error(m.ctx));
    remove(path);
    dt_ctx_destroy(m.ctx);
}

TEST(sharing_a_rank_that_dies_ends_all_trainers_of_the_replicas) {
    job *j = job_new(2, NULL);
    if (!j)
        return;
    j->at[1].doomed = true;
    job_run(j, gan_rank_dies);
    job_free(j);
}

/* ---- checkpoints, and the end */

TEST(sharing_a_checkpoint_has_all_trainers_and_resumes_on_another_mesh) {
    const char *path = "build/sharing.state";
    const int at = 7;
    gan m;
    step_record records[GAN_STEPS] = {{0}};
    if (!gan_oracle_make())
        return;
    CHECK(gan_make(&m, true));
    CHECK(!gan_open(&m, "cpu:2", NULL) && !gan_steps(&m, 0, at, records));
    CHECK(dt_trainer_save(m.maker, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), ".replicas_of cannot be saved by itself");
    CHECK(!dt_trainer_save(m.judge, path));
    dt_ctx_destroy(m.ctx);
    for (int slices = 0; slices <= 6; slices += 6) { /* 0: the file's, for all trainers */
        CHECK(gan_make(&m, true));
        dt_trainer_desc d = gan_judge_desc(&m, "cpu:3", NULL);
        d.parallel.batch_slices = slices;
        CHECK(!dt_trainer_create(m.graph, &d, &m.judge));
        d = gan_maker_desc(&m);
        CHECK(!dt_trainer_create(m.graph, &d, &m.maker));
        CHECK(!slices || !dt_trainer_step(m.maker, NULL));
        CHECK(dt_trainer_load(m.maker, path) == DT_ERROR_INVALID);
        CHECK_TEXT(!dt_trainer_load(m.judge, path) && !gan_steps(&m, at, GAN_STEPS, records), "%s",
                   dt_ctx_error(m.ctx));
        gan_equal(records, at, "after loading");
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
}

/* A checkpoint after 7 steps. */
static void gan_saved(const char *path) {
    gan m;
    step_record records[GAN_STEPS];
    CHECK(gan_make(&m, true));
    CHECK(!gan_open(&m, "cpu:2", NULL) && !gan_steps(&m, 0, 7, records));
    CHECK(!dt_trainer_save(m.judge, path));
    dt_ctx_destroy(m.ctx);
}

/* Nothing of the state has changed. */
static void gan_load_refused(gan *m, const char *path, const char *part) {
    uint64_t before = 0, after = 1;
    CHECK(!dt_store_state_hash(dt_trainer_store(m->judge), &before));
    CHECK_TEXT(dt_trainer_load(m->judge, path) == DT_ERROR_INVALID, "%s", part);
    CHECK_CONTAINS(dt_ctx_error(m->ctx), part);
    CHECK(!dt_store_state_hash(dt_trainer_store(m->judge), &after));
    CHECK_TEXT(before == after, "%s", part);
}

TEST(sharing_a_checkpoint_of_other_second_trainers_is_refused) {
    const char *path = "build/sharing_other.state";
    static const char *const parts[] = {
        ".batch is 30 in the checkpoint, but 36 here (of a trainer of .replicas_of)",
        ".data.rows is 90 in the checkpoint, but 120 here",
        ".seed is 4 in the checkpoint, but 9 here",
        "shuffling (0 or 1; for a stream 2 + .shuffle) is 1 in the checkpoint, but 0 here",
        ".accumulate is 2 in the checkpoint, but 1 here",
        "the optimizer is SGD in the checkpoint, but RMSprop here",
        "the state of 1 trainers with .replicas_of, but 0 exist",
        "the state of 1 trainers with .replicas_of, but 2 exist"};
    gan_saved(path);
    for (int i = 0; i < 8; i++) {
        gan m;
        CHECK(gan_make(&m, true));
        dt_trainer_desc d = gan_judge_desc(&m, "cpu:2", NULL);
        CHECK(!dt_trainer_create(m.graph, &d, &m.judge));
        d = gan_maker_desc(&m);
        d.batch = i == 0 ? 36 : d.batch;
        d.data.rows = i == 1 ? 120 : 90;
        d.seed = i == 2 ? 9 : d.seed;
        d.no_shuffle = i == 3;
        d.accumulate = i == 4 ? 1 : d.accumulate;
        m.maker_optim.kind = i == 5 ? DT_OPTIM_RMSPROP : DT_OPTIM_SGD;
        CHECK(i == 6 || !dt_trainer_create(m.graph, &d, &m.maker));
        CHECK(i != 7 || !dt_trainer_create(m.graph, &d, &m.maker));
        gan_load_refused(&m, path, parts[i]);
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
}

/* A trainer that could not be made, or that was destroyed, has no place in it. */
TEST(sharing_a_checkpoint_works_after_failed_and_repeated_creations) {
    const char *path = "build/sharing_again.state";
    gan m;
    step_record records[GAN_STEPS] = {{0}};
    gan_saved(path);
    if (!gan_oracle_make())
        return;
    CHECK(gan_make(&m, true) && !gan_open(&m, "cpu:2", NULL));
    dt_trainer_destroy(m.maker);
    dt_trainer_desc d = gan_maker_desc(&m);
    d.batch = 5;
    CHECK(dt_trainer_create(m.graph, &d, &m.maker) == DT_ERROR_INVALID);
    d = gan_maker_desc(&m);
    CHECK(!dt_trainer_create(m.graph, &d, &m.maker));
    CHECK_TEXT(!dt_trainer_load(m.judge, path) && !gan_steps(&m, 7, GAN_STEPS, records), "%s",
               dt_ctx_error(m.ctx));
    gan_equal(records, 7, "after loading");
    dt_ctx_destroy(m.ctx);
    remove(path);
}

TEST(sharing_checkpoints_are_written_while_others_make_steps) {
    gan m;
    uint64_t steps = 0;
    char path[64];
    CHECK(gan_make(&m, true));
    dt_trainer_desc d = gan_judge_desc(&m, "cpu:2", NULL);
    d.checkpoint = (dt_checkpoint_desc){.folder = "build/sharing", .every_steps = 4, .keep = 100};
    CHECK(!dt_trainer_create(m.graph, &d, &m.judge));
    d = gan_maker_desc(&m);
    CHECK(!dt_trainer_create(m.graph, &d, &m.maker));
    for (int i = 0; i < 6; i++) /* the discriminator's steps have odd numbers */
        CHECK(!dt_trainer_step(m.judge, NULL) && !dt_trainer_step(m.maker, NULL));
    dt_ctx_destroy(m.ctx);
    for (int i = 1; i <= 12; i++) {
        snprintf(path, sizeof path, "build/sharing/step-%012d.safetensors", i);
        steps |= (uint64_t)!remove(path) << i;
    }
    CHECK_TEXT(steps == ((1u << 5) | (1u << 9)), "steps %llx", (unsigned long long)steps);
    remove("build/sharing");
}

TEST(sharing_a_second_trainer_asks_the_first_for_a_checkpoint) {
    gan m;
    bool found;
    CHECK(gan_make(&m, true));
    dt_trainer_desc d = gan_judge_desc(&m, "cpu:2", NULL);
    d.checkpoint.folder = "build/sharing_asked";
    CHECK(!dt_trainer_create(m.graph, &d, &m.judge));
    d = gan_maker_desc(&m);
    CHECK(!dt_trainer_create(m.graph, &d, &m.maker));
    CHECK(dt_trainer_checkpoint(m.maker) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), ".replicas_of cannot be saved by itself");
    CHECK(dt_trainer_resume(m.maker, &found) == DT_ERROR_INVALID && !found);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), ".replicas_of cannot be loaded by itself");
    dt_trainer_request_checkpoint(m.maker);
    CHECK(!dt_trainer_step(m.maker, NULL) && !dt_trainer_step(m.judge, NULL));
    CHECK(!remove("build/sharing_asked/step-000000000002.safetensors"));
    dt_ctx_destroy(m.ctx);
    remove("build/sharing_asked");
}

/* The discriminator's steps have odd numbers, so a checkpoint is due at 5 and at 9. */
TEST(sharing_a_checkpoint_that_cannot_be_written_is_tried_once) {
    const char *path = "build/sharing_full";
    gan m;
    dt_train_report report;
    CHECK(gan_make(&m, true));
    dt_trainer_desc d = gan_judge_desc(&m, "cpu:2", NULL);
    d.checkpoint = (dt_checkpoint_desc){.folder = path, .every_steps = 4};
    CHECK(!dt_trainer_create(m.graph, &d, &m.judge));
    d = gan_maker_desc(&m);
    CHECK(!dt_trainer_create(m.graph, &d, &m.maker));
    CHECK(!remove(path));
    FILE *in_its_place = fopen(path, "w");
    CHECK(in_its_place && !fclose(in_its_place));
    for (int i = 1; i <= 12; i++) {
        const bool due = i == 5 || i == 9;
        const dt_result result = dt_trainer_step(i % 2 ? m.judge : m.maker, &report);
        CHECK_TEXT(result == (due ? DT_ERROR_IO : DT_OK), "step %d: %s", i, dt_result_text(result));
        CHECK(report.checkpoints_failed == due);
    }
    dt_ctx_destroy(m.ctx);
    remove(path);
}

TEST(sharing_trainers_end_in_any_order) {
    gan m;
    uint64_t hash = 0;
    CHECK(gan_make(&m, true));
    CHECK(!gan_open(&m, "cpu:2", NULL) && !dt_trainer_step(m.maker, NULL));
    dt_trainer_destroy(m.maker);
    CHECK(!dt_trainer_step(m.judge, NULL));
    dt_trainer_desc d = gan_maker_desc(&m);
    CHECK(!dt_trainer_create(m.graph, &d, &m.maker)); /* in the middle of training */
    CHECK(!dt_trainer_step(m.maker, NULL) && !dt_trainer_step(m.judge, NULL));
    CHECK(!dt_store_hash(dt_trainer_store(m.maker), &hash) && hash);
    CHECK(dt_trainer_store(m.maker) == dt_trainer_store(m.judge));
    dt_trainer_destroy(m.judge); /* and the maker */
    CHECK(gan_open(&m, "cpu", NULL) == DT_OK);
    dt_ctx_destroy(m.ctx);
}

/* ---- what is refused */

/* Replicas lack it, whichever of the trainers is asked. */
TEST(sharing_refuses_to_predict_a_tensor_made_after_the_first_trainer) {
    gan m;
    static float out[90][GAN_WIDTH];
    CHECK(gan_make(&m, false));
    dt_trainer_desc d = gan_judge_desc(&m, "cpu:2", NULL);
    CHECK(!dt_trainer_create(m.graph, &d, &m.judge));
    const dt_tensor late = dt_relu(m.fake);
    d = gan_maker_desc(&m);
    CHECK(!dt_trainer_create(m.graph, &d, &m.maker));
    for (int i = 0; i < 2; i++) {
        dt_trainer *t = i ? m.maker : m.judge;
        CHECK(dt_trainer_predict(t, &d.data, late, 0, out, sizeof out) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), "was made after the trainer");
    }
    dt_ctx_destroy(m.ctx);
}

static void gan_refused(gan *m, const dt_trainer_desc *d, dt_result result, const char *part) {
    dt_trainer *t = NULL;
    CHECK_TEXT(dt_trainer_create(m->graph, d, &t) == result && !t, "%s", part);
    CHECK_CONTAINS(dt_ctx_error(m->ctx), part);
}

TEST(sharing_refuses_settings_of_the_first_trainer) {
    gan m, other;
    CHECK(gan_make(&m, true) && gan_make(&other, true));
    CHECK(!gan_open(&m, "cpu:2", NULL));
    dt_trainer_desc d = gan_maker_desc(&m);
    d.devices = "cpu:2";
    gan_refused(&m, &d, DT_ERROR_INVALID, ".devices is set, but a trainer with .replicas_of");
    d = gan_maker_desc(&m);
    d.parallel.batch_slices = 2;
    gan_refused(&m, &d, DT_ERROR_INVALID,
                ".parallel.batch_slices is set, but a trainer with .replicas_of");
    d = gan_maker_desc(&m);
    d.checkpoint.folder = "build/no";
    gan_refused(&m, &d, DT_ERROR_INVALID,
                ".checkpoint.folder is set, but a trainer with .replicas_of");
    d = gan_maker_desc(&m);
    d.load = "build/no";
    gan_refused(&m, &d, DT_ERROR_INVALID, ".load is set, but a trainer with .replicas_of");
    d = gan_maker_desc(&m);
    d.batch = 5;
    gan_refused(&m, &d, DT_ERROR_INVALID, ".parallel.batch_slices is 6 and .batch is 5");
    d = gan_maker_desc(&m);
    d.losses[0].term = dt_mean_loss(dt_softplus(m.fake)); /* other replicas have no such row */
    d.loss = (dt_tensor){0};
    gan_refused(&m, &d, DT_ERROR_INVALID, "was made after the trainer of .replicas_of");
    d = gan_maker_desc(&other);
    d.replicas_of = m.judge;
    gan_refused(&other, &d, DT_ERROR_INVALID, ".replicas_of is a trainer of another graph");
    dt_ctx_destroy(m.ctx);
    dt_ctx_destroy(other.ctx);
}

TEST(sharing_refuses_first_trainers_whose_replicas_lack_values) {
    static const struct {
        dt_parallel_desc parallel;
        dt_train_mode mode;
        const char *part;
    } cases[] = {
        {{.zero_stage = 1}, DT_TRAIN_SYNCHRONOUS, "with .parallel.zero_stage = 1"},
        {{.zero_stage = 3}, DT_TRAIN_SYNCHRONOUS, "with .parallel.zero_stage = 3"},
        {{.pipeline = 2}, DT_TRAIN_SYNCHRONOUS, "with .parallel.pipeline = 2"},
        {{.balance = DT_BALANCE_MEASURED}, DT_TRAIN_SYNCHRONOUS, "DT_BALANCE_MEASURED"},
        {{0}, DT_TRAIN_LOCAL, "DT_TRAIN_LOCAL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gan m;
        CHECK(gan_make(&m, false));
        dt_trainer_desc d = gan_judge_desc(&m, "cpu:2", NULL);
        d.parallel = cases[i].parallel;
        d.mode = cases[i].mode;
        CHECK_TEXT(!dt_trainer_create(m.graph, &d, &m.judge), "%s", dt_ctx_error(m.ctx));
        d = gan_maker_desc(&m);
        gan_refused(&m, &d, DT_ERROR_UNSUPPORTED, cases[i].part);
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- devices that run on their own */

#ifndef DT_NO_VULKAN
/* One batch slice: gradients stay on the device, and a step may be in flight when another trainer's
 * begins. */
static bool gan_vulkan(const char *devices, int slices, int in_flight, gan_end *end) {
    gan m;
    const bool made = gan_make_in(&m, &(dt_ctx_desc){.threads = 1}, false);
    dt_trainer_desc d = gan_judge_desc(&m, devices, NULL);
    d.parallel.batch_slices = slices;
    d.limits.in_flight = in_flight;
    dt_result result = made ? dt_trainer_create(m.graph, &d, &m.judge) : DT_ERROR_INVALID;
    d = gan_maker_desc(&m);
    d.limits.in_flight = in_flight;
    result = result ? result : dt_trainer_create(m.graph, &d, &m.maker);
    for (int i = 0; i < GAN_STEPS && !result; i++)
        result = dt_trainer_step(gan_order[i] == 'J' ? m.judge : m.maker, NULL);
    CHECK_TEXT(!result && gan_end_of(dt_trainer_store(m.judge), end), "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return !result;
}

/* The newest step is in flight when its trainer, or all of them, end. */
TEST(sharing_on_vulkan_trainers_end_with_steps_in_flight) {
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    for (int i = 0; i < 2; i++) {
        gan m;
        CHECK(gan_make_in(&m, &(dt_ctx_desc){.threads = 1}, false));
        dt_trainer_desc d = gan_judge_desc(&m, "vulkan:0", NULL);
        d.parallel.batch_slices = 1;
        d.limits.in_flight = 2;
        CHECK(!dt_trainer_create(m.graph, &d, &m.judge));
        d = gan_maker_desc(&m);
        d.limits.in_flight = 2;
        CHECK(!dt_trainer_create(m.graph, &d, &m.maker));
        CHECK(!dt_trainer_step(m.judge, NULL) && !dt_trainer_step(m.maker, NULL));
        if (i)
            dt_trainer_destroy(m.maker);
        CHECK_TEXT(!dt_trainer_step(m.judge, NULL), "%s", dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
}

TEST(sharing_on_vulkan_steps_in_flight_and_replicas_change_no_bits) {
    gan_end one[2] = {{0}}, slices[2] = {{0}};
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    for (int i = 0; i < 2; i++) {
        gan_vulkan("vulkan:0", 1, 1 + i, &one[i]);
        gan_vulkan(i ? "vulkan:0,vulkan:0" : "vulkan:0", 2, 0, &slices[i]);
    }
    CHECK(one[0].hash && one[1].hash == one[0].hash);
    CHECK(slices[0].hash && slices[1].hash == slices[0].hash);
}
#endif
