/* Tensor ranks on several processes. They have the bits of the same number in one process; also
 * errors of one rank, and ranks that die. */
#include "parallel/train_processes.h"

#include "parallel/team_model.h"

enum { PARTS_STEPS = 5 };

typedef struct parts_case {
    int accumulate, batch;
    int tensor_ranks, replicas, batch_slices,
        slices;       /* replicas 0: one, and 4 tensor ranks if those are 0 too */
    const char *save; /* after the steps */
    bool wrong;       /* rank 1 has another learning rate in the third step */
    bool whole;       /* each rank has all parts */
} parts_case;

static dt_trainer_desc parts_desc(train_model *m, const parts_case *c, dt_comm *comm,
                                  const char *devices) {
    dt_trainer_desc d = train_desc(m);
    d.comm = comm;
    d.devices = devices;
    d.parallel.tensor = c->tensor_ranks ? c->tensor_ranks : 4;
    d.parallel.tensor_slices = c->slices;
    d.parallel.replicas = c->replicas ? c->replicas : 1;
    d.parallel.batch_slices = c->batch_slices;
    d.accumulate = c->accumulate;
    d.batch = c->batch;
    return d;
}

/* Fills a record a step, and one of an evaluation. */
static dt_result parts_steps(const parts_case *c, train_model *m, dt_comm *comm,
                             const char *devices, int rank, step_record *records) {
    dt_trainer *t = NULL;
    dt_train_report r = {0};
    if (!train_model_make(m, &one_thread, TRAIN_PARTS))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = parts_desc(m, c, comm, devices);
    dt_result result = dt_trainer_create(m->graph, &d, &t);
    for (int i = 0; i < PARTS_STEPS && !result; i++) {
        if (c->wrong && i == 2 && rank == 1)
            dt_trainer_set_lr(t, 0.5);
        result = dt_trainer_step(t, &r);
        if (result)
            break;
        records[i] = record_of(t, &r);
    }
    if (!result)
        result = dt_trainer_evaluate(t, &d.data, 16, &r);
    if (!result)
        records[PARTS_STEPS] = record_of(t, &r);
    if (!result && c->save)
        result = dt_trainer_save(t, c->save);
    return result;
}

static void parts_rank(rank *r) {
    const parts_case *c = r->job->arg;
    train_model m;
    r->result = parts_steps(c, &m, r->comm, rank_devices(r), r->index, r->records);
    snprintf(r->text, sizeof r->text, "%.1000s", dt_ctx_error(m.ctx));
    EXPECT_TEXT(r, c->wrong || !r->result, "%d: %s", (int)r->result, r->text);
    dt_ctx_destroy(m.ctx);
}

/* As one tensor group of one process, which computes all batch slices. */
static void parts_job(int count, const char *const *devices, const parts_case *c) {
    step_record want[PARTS_STEPS + 1];
    train_model m;
    char tensor_ranks[16];
    parts_case alone = *c;
    job *j = job_new(count, c);
    alone.replicas = 1;
    snprintf(tensor_ranks, sizeof tensor_ranks, "cpu:%d", c->tensor_ranks ? c->tensor_ranks : 4);
    const dt_result result = parts_steps(&alone, &m, NULL, tensor_ranks, 0, want);
    CHECK_TEXT(!result, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    for (int i = 0; i < count && j; i++)
        j->devices[i] = devices[i];
    if (j && job_run(j, parts_rank)) {
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < PARTS_STEPS; k++)
                CHECK_TEXT(record_equal(&j->at[i].records[k], &want[k]),
                           "%d ranks, rank %d, step %d: hash %016llx, not %016llx; loss %.17g, not "
                           "%.17g",
                           count, i, k, (unsigned long long)j->at[i].records[k].hash,
                           (unsigned long long)want[k].hash, j->at[i].records[k].loss,
                           want[k].loss);
            CHECK(fabs(j->at[i].records[PARTS_STEPS].loss - want[PARTS_STEPS].loss) < 1e-5);
        }
    }
    job_free(j);
}

TEST(tensor_ranks_on_several_processes_have_the_bits_of_one_process) {
    static const char *const two[] = {"cpu:2", "cpu:2"}, *const odd[] = {"cpu", "cpu:3"},
                             *const three[] = {"cpu", "cpu:2", "cpu"},
                             *const four[] = {"cpu", "cpu", "cpu", "cpu"};
    const parts_case plain = {.accumulate = 1, .batch = 37}, micro = {.accumulate = 3, .batch = 64};
    parts_job(2, two, &plain);
    parts_job(2, odd, &micro);
    parts_job(3, three, &plain);
    parts_job(4, four, &micro);
}

TEST(tensor_groups_on_ranks_have_the_bits_of_one_process) {
    static const char *const two[] = {"cpu:2", "cpu:2"}, *const odd[] = {"cpu", "cpu:3"},
                             *const three[] = {"cpu", "cpu:2", "cpu"},
                             *const wide[] = {"cpu:3", "cpu:3"};
    const parts_case
        plain = {.accumulate = 1, .batch = 37, .tensor_ranks = 2, .replicas = 2, .batch_slices = 2},
        micro = {.accumulate = 2, .batch = 64, .tensor_ranks = 2, .replicas = 2, .batch_slices = 5},
        six = {.accumulate = 1, .batch = 64, .tensor_ranks = 2, .replicas = 3, .batch_slices = 4};
    parts_job(2, two, &plain);
    parts_job(2, odd, &micro);
    parts_job(3, three, &plain); /* the second has a tensor rank of each tensor group */
    parts_job(3, three, &micro);
    parts_job(2, wide, &six);
}

/* Random grids: tensor ranks, tensor groups, batch slices, and devices of each rank. */
TEST(random_grids_of_tensor_groups_have_the_bits_of_one) {
    static const char *const names[] = {"cpu", "cpu:2", "cpu:3", "cpu:4", "cpu:5", "cpu:6"};
    uint32_t state = 7;
    for (int i = 0; i < 6 && test_now.failures < 3; i++) {
        parts_case c = {.accumulate = 1 + (int)(train_random(&state) % 3),
                        .batch = 30 + (int)(train_random(&state) % 30),
                        .tensor_ranks = 2 + (int)(train_random(&state) % 3),
                        .replicas = 1 + (int)(train_random(&state) % 3)};
        const char *devices[RANKS_MAX];
        int left = c.tensor_ranks * c.replicas, ranks = 0;
        c.batch_slices = c.replicas + (int)(train_random(&state) % 4);
        while (left > 0 && ranks < 4) {
            const int most = left < 6 ? left : 6;
            int n = ranks == 3 ? left : 1 + (int)(train_random(&state) % (uint32_t)most);
            n = n > 6 ? 6 : n;
            devices[ranks++] = names[n - 1];
            left -= n;
        }
        if (left == 0 && ranks > 1)
            parts_job(ranks, devices, &c);
    }
}

/* ---- rows of the sequence, and parts of the classes */

typedef struct words_case {
    int kind, tensor_ranks, replicas, slices;
} words_case;

static dt_result words_steps(const words_case *c, team_model *m, dt_comm *comm, const char *devices,
                             step_record *records) {
    static const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 0.5};
    dt_trainer *t = NULL;
    dt_train_report r = {0};
    if (!team_make(m, c->kind, false))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = team_desc(m, &adam);
    d.comm = comm;
    d.devices = devices;
    d.parallel.tensor = c->tensor_ranks;
    d.parallel.replicas = c->replicas;
    d.parallel.batch_slices = 2;
    d.parallel.tensor_slices = c->slices;
    d.parallel.sequence_parallel = true;
    dt_result result = dt_trainer_create(m->graph, &d, &t);
    for (int i = 0; i < PARTS_STEPS && !result; i++) {
        result = dt_trainer_step(t, &r);
        if (!result)
            records[i] = record_of(t, &r);
    }
    return result;
}

static void words_rank(rank *r) {
    team_model m;
    r->result = words_steps(r->job->arg, &m, r->comm, rank_devices(r), r->records);
    EXPECT_TEXT(r, !r->result, "%d: %s", (int)r->result, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

static void words_job(int count, const char *const *devices, const words_case *c) {
    step_record want[PARTS_STEPS];
    team_model m;
    words_case alone = *c;
    job *j = job_new(count, c);
    alone.replicas = 1;
    alone.tensor_ranks = c->slices ? c->slices : c->tensor_ranks;
    const dt_result result =
        words_steps(&alone, &m, NULL, alone.tensor_ranks == 2 ? "cpu:2" : "cpu:4", want);
    CHECK_TEXT(!result, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    for (int i = 0; i < count; i++)
        j->devices[i] = devices[i];
    if (job_run(j, words_rank)) {
        for (int i = 0; i < count * PARTS_STEPS; i++)
            CHECK_TEXT(record_equal(&j->at[i / PARTS_STEPS].records[i % PARTS_STEPS],
                                    &want[i % PARTS_STEPS]),
                       "%d ranks, rank %d, step %d", count, i / PARTS_STEPS, i % PARTS_STEPS);
    }
    job_free(j);
}

TEST(rows_and_classes_in_parts_on_ranks_have_the_bits_of_one_process) {
    static const char *const even[] = {"cpu:2", "cpu:2"}, *const odd[] = {"cpu", "cpu:3"},
                             *const apart[] = {"cpu", "cpu:2", "cpu"};
    const words_case head = {TEAM_HEAD, 4, 1, 0}, tied = {TEAM_TIED, 4, 1, 0},
                     grid = {TEAM_COLUMNS, 2, 2, 0};
    words_job(2, even, &head); /* all_gather */
    words_job(2, odd, &tied);  /* the same number as ranks have, but other ones */
    words_job(3, apart, &grid);
    words_job(2, even, &grid);
}

/* As four tensor ranks of one process have. */
TEST(slices_on_ranks_have_the_bits_of_tensor_ranks_in_one_process) {
    static const char *const two[] = {"cpu", "cpu"}, *const odd[] = {"cpu", "cpu:2", "cpu"};
    words_job(2, two, &(words_case){TEAM_HEAD, 2, 1, 4});
    words_job(2, two, &(words_case){TEAM_TIED, 1, 2, 4});
    words_job(3, odd, &(words_case){TEAM_COLUMNS, 2, 2, 4}); /* the second has two tensor groups' */
    words_job(3, odd, &(words_case){TEAM_BLOCKS, 4, 1, 4});
}

TEST(processes_of_a_tensor_group_refuse_differences_before_anything_changes) {
    const parts_case wrong = {.accumulate = 1, .batch = 37, .wrong = true};
    job *j = job_new(2, &wrong);
    j->devices[0] = j->devices[1] = "cpu:2";
    if (job_run(j, parts_rank)) {
        for (int i = 0; i < 2; i++) {
            CHECK(j->at[i].result == DT_ERROR_INVALID);
            CHECK_CONTAINS(j->at[i].text, "different learning rates");
        }
    }
    job_free(j);
    /* and too few devices are the same error on all */
    j = job_new(2, &(parts_case){.accumulate = 1, .batch = 37, .wrong = true});
    if (job_run(j, parts_rank)) {
        for (int i = 0; i < 2; i++) {
            CHECK(j->at[i].result == DT_ERROR_INVALID);
            CHECK_CONTAINS(j->at[i].text, "needs 4 devices");
        }
    }
    job_free(j);
}

/* ---- deaths */

static void parts_die(rank *r) {
    const parts_case *c = r->job->arg;
    train_model m;
    dt_trainer *t = NULL;
    dt_train_report report = {0};
    dt_result result = train_model_make(&m, &one_thread, TRAIN_PARTS) ? DT_OK : DT_ERROR_MEMORY;
    dt_trainer_desc d = parts_desc(&m, c, r->comm, rank_devices(r));
    if (!result)
        result = dt_trainer_create(m.graph, &d, &t);
    while (!result) {
        result = dt_trainer_step(t, &report);
        atomic_fetch_add(&r->stage, 1);
    }
    r->result = result;
    r->numbers[0] = report.step;
    EXPECT_TEXT(r, result == DT_ERROR_PEER_LOST, "%d: %s", (int)result, dt_ctx_error(m.ctx));
    if (t) { /* parts are gone, which is reported */
        const dt_store *s = dt_trainer_store(t);
        dt_trainer_info info;
        dt_trainer_get_info(t, &info);
        EXPECT(r, (s != NULL) == c->whole && dt_trainer_step(t, NULL) == DT_ERROR_REVOKED);
        EXPECT(r, info.step == report.step);
    }
    dt_ctx_destroy(m.ctx);
}

static void parts_kill(const parts_case *c, const char *const *devices, int count, int i) {
    job *j = job_new(count, c);
    const int victim = i % count;
    uint64_t low = UINT64_MAX, high = 0;
    j->seconds = 30;
    for (int k = 0; k < count; k++)
        j->devices[k] = devices[k];
    j->at[victim].doomed = true;
    job_start(j, parts_die);
    CHECK(job_await(j, victim, 3));
    job_sleep_us(137 * i);
    job_signal(j, victim, SIGKILL);
    CHECK_TEXT(job_end(j), "rank %d", victim);
    for (int k = 0; k < count; k++) {
        low = k != victim && j->at[k].numbers[0] < low ? j->at[k].numbers[0] : low;
        high = k != victim && j->at[k].numbers[0] > high ? j->at[k].numbers[0] : high;
    }
    CHECK_TEXT(high - low <= 1, "steps %d to %d", (int)low, (int)high);
    job_free(j);
}

TEST(a_killed_rank_of_a_tensor_group_is_an_error_on_all_others) {
    static const char *const devices[] = {"cpu", "cpu:2", "cpu"};
    const parts_case one = {.accumulate = 2, .batch = 37},
                     grid = {.accumulate = 2, .batch = 37, .tensor_ranks = 2, .replicas = 2},
                     slices = {.accumulate = 2, .batch = 37, .slices = 8};
    const int all = getenv("DTRAIN_TEST_LONG") ? 24 : 6;
    for (int i = 0; i < all && test_now.failures < 3; i++)
        parts_kill(i % 3 == 0 ? &one : i % 3 == 1 ? &grid : &slices, devices, 3, i);
}

TEST(a_tensor_group_on_one_rank_keeps_its_values_when_other_ranks_die) {
    static const char *const devices[] = {"cpu:2", "cpu:2"};
    const parts_case c = {
        .accumulate = 1, .batch = 37, .tensor_ranks = 2, .replicas = 2, .whole = true};
    for (int i = 0; i < 4 && test_now.failures < 3; i++)
        parts_kill(&c, devices, 2, i);
}
