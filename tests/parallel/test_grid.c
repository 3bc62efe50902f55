/* Grids of all kinds: .parallel.pipeline x .tensor x .parallel.replicas x .parallel.zero_stage.
 * Stages split over tensor ranks have the bits of the same number of tensor ranks without stages;
 * so have replicas of them. */
#include "parallel/train_processes.h"

#include "parallel/team_model.h"

enum { GRID_STEPS = 5, GRID_TEXT = 80 };

typedef struct grid_shape {
    int stages, tensor_ranks, replicas, batch_slices, accumulate;
    dt_pipeline_schedule schedule;
    bool rows; /* of the sequence are split */
    int level; /* dt_zero_stage */
    bool vulkan;
} grid_shape;

typedef struct grid_run {
    step_record at[GRID_STEPS + 1];
} grid_run;

static int grid_at_least_one(int n) {
    return n > 1 ? n : 1;
}

static dt_trainer_desc grid_desc(const team_model *m, const grid_shape *s,
                                 char devices[GRID_TEXT]) {
    static const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 0.5};
    dt_trainer_desc d = team_desc(m, &adam);
    const int count = grid_at_least_one(s->stages) * grid_at_least_one(s->tensor_ranks) *
                      grid_at_least_one(s->replicas);
    snprintf(devices, GRID_TEXT, s->vulkan ? "vulkan:0" : "cpu:%d", count);
    for (int i = 1; i < count && s->vulkan; i++)
        strcat(devices, ",vulkan:0");
    d.devices = devices;
    d.parallel.pipeline = s->stages;
    d.parallel.schedule = s->schedule;
    d.parallel.tensor = s->tensor_ranks;
    d.parallel.sequence_parallel = s->rows;
    d.parallel.replicas = s->stages > 1 || s->tensor_ranks > 1 ? s->replicas : 0;
    d.parallel.batch_slices = s->batch_slices;
    d.accumulate = grid_at_least_one(s->accumulate);
    d.parallel.zero_stage = s->level;
    return d;
}

/* Ranks have devices of their own; comm NULL: one process with all of them. Fills a record a step,
 * and at the end one of an evaluation. */
static dt_result grid_steps(team_model *m, int kind, const grid_shape *s, dt_comm *comm,
                            const char *own, step_record *records) {
    dt_trainer *t;
    dt_train_report report;
    char devices[GRID_TEXT];
    if (!team_make(m, kind, s->vulkan))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = grid_desc(m, s, devices);
    d.comm = comm;
    d.devices = comm ? own : devices;
    dt_result result = dt_trainer_create(m->graph, &d, &t);
    for (int i = 0; i < GRID_STEPS && !result; i++) {
        result = dt_trainer_step(t, &report);
        if (!result)
            records[i] = record_of(t, &report);
        CHECK(result || comm || train_times_add_up(&report));
    }
    if (!result)
        result = dt_trainer_evaluate(t, &d.data, 16, &report);
    if (!result)
        records[GRID_STEPS] = record_of(t, &report);
    return result;
}

static bool grid_train(int kind, const grid_shape *s, grid_run *r) {
    team_model m;
    *r = (grid_run){0};
    const dt_result result = grid_steps(&m, kind, s, NULL, NULL, r->at);
    CHECK_TEXT(!result, "kind %d, %d x %d x %d: %s", kind, s->stages, s->tensor_ranks, s->replicas,
               dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return !result;
}

static void grid_equal(int kind, const grid_shape *s, const grid_run *want) {
    grid_run got;
    if (!grid_train(kind, s, &got))
        return;
    for (int i = 0; i <= GRID_STEPS; i++)
        CHECK_TEXT(record_equal(&got.at[i], &want->at[i]),
                   "kind %d, %d stages x %d tensor ranks x %d, schedule %d, ZeRO-%d, step %d: "
                   "%016llx, not %016llx; loss %.17g, not %.17g; norm %.17g, not %.17g",
                   kind, s->stages, s->tensor_ranks, s->replicas, (int)s->schedule, s->level, i,
                   (unsigned long long)got.at[i].hash, (unsigned long long)want->at[i].hash,
                   got.at[i].loss, want->at[i].loss, got.at[i].norm, want->at[i].norm);
}

/* All schedules, 2 and 3 stages: micro-batches are added in one order, for any distribution of the
 * work. */
TEST(stages_of_tensor_ranks_have_the_bits_of_tensor_ranks_without_stages) {
    static const int kinds[] = {TEAM_MLP, TEAM_BLOCKS, TEAM_BATCH_NORM, TEAM_HEAD, TEAM_COLUMNS};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        grid_run want;
        grid_shape s = {.tensor_ranks = 2, .accumulate = 4};
        if (!grid_train(kinds[k], &s, &want))
            return;
        for (int schedule = 0; schedule <= DT_PIPELINE_ZERO_BUBBLE; schedule++) {
            s.stages = 2 + (schedule + (int)k) % 2 * (schedule != DT_PIPELINE_INTERLEAVED);
            s.schedule = (dt_pipeline_schedule)schedule;
            grid_equal(kinds[k], &s, &want);
        }
    }
}

/* A table that the first and the last stage have, in parts; rows of the sequence in parts. */
TEST(stages_of_tensor_ranks_take_a_split_table_and_sequence_parallelism) {
    for (int kind = TEAM_ATTENTION; kind < TEAM_LAST; kind += TEAM_TIED - TEAM_ATTENTION) {
        for (int rows = 0; rows < 2; rows++) {
            grid_run want;
            grid_shape s = {.tensor_ranks = 2, .accumulate = 3, .rows = rows};
            if (!grid_train(kind, &s, &want))
                return;
            s.stages = 2;
            grid_equal(kind, &s, &want);
            s.schedule = DT_PIPELINE_ZERO_BUBBLE;
            grid_equal(kind, &s, &want);
        }
    }
}

TEST(replicas_of_stages_of_tensor_ranks_have_the_bits_of_one_with_the_same_batch_slices) {
    grid_run want;
    grid_shape s = {.tensor_ranks = 2, .accumulate = 3, .batch_slices = 3};
    if (!grid_train(TEAM_BLOCKS, &s, &want))
        return;
    s.stages = 2;
    for (s.replicas = 1; s.replicas <= 3; s.replicas++) {
        s.schedule = s.replicas == 2 ? DT_PIPELINE_ZERO_BUBBLE : DT_PIPELINE_1F1B;
        grid_equal(TEAM_BLOCKS, &s, &want);
    }
}

/* Two stages of two tensor ranks on one device, whose bits are its own. They are those of its two
 * tensor ranks without stages, and the values of the same grid of processors. */
TEST(stages_of_tensor_ranks_on_vulkan_have_the_bits_of_tensor_ranks_only) {
    grid_run want, cpu;
    grid_shape s = {.stages = 2, .tensor_ranks = 2, .accumulate = 2};
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    if (!grid_train(TEAM_HEAD, &s, &cpu))
        return;
    s.vulkan = true, s.stages = 0;
    if (!grid_train(TEAM_HEAD, &s, &want))
        return;
    s.stages = 2;
    grid_equal(TEAM_HEAD, &s, &want);
    for (int i = 0; i <= GRID_STEPS; i++)
        CHECK_NEAR(want.at[i].loss, cpu.at[i].loss, 1e-3 * cpu.at[i].loss);
}

/* ---- ZeRO-1 in grids */

/* The bits of a state that each has, with and without tensor ranks. */
TEST(zero_with_stages_has_the_bits_without_zero) {
    static const grid_shape shapes[] = {{.stages = 2, .replicas = 2},
                                        {.stages = 2, .replicas = 3},
                                        {.stages = 3, .replicas = 2},
                                        {.stages = 2, .tensor_ranks = 2, .replicas = 2},
                                        {.stages = 2, .tensor_ranks = 2, .replicas = 3},
                                        {.tensor_ranks = 2, .replicas = 2},
                                        {.tensor_ranks = 2, .replicas = 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        grid_run want;
        grid_shape s = shapes[i];
        s.batch_slices = 3;
        s.accumulate = 2;
        s.schedule = i % 2 && s.stages ? DT_PIPELINE_ZERO_BUBBLE : DT_PIPELINE_1F1B;
        if (!grid_train(TEAM_BATCH_NORM, &s, &want))
            return;
        for (s.level = DT_SHARD_OPTIMIZER; s.level <= DT_SHARD_PARAMETERS; s.level++)
            grid_equal(TEAM_BATCH_NORM, &s, &want);
    }
}

/* Owners have their part on the host too; others copy it to their devices. */
TEST(zero_with_stages_on_vulkan_has_the_bits_without_zero) {
    grid_run want;
    grid_shape s = {.stages = 2, .replicas = 2, .batch_slices = 3, .accumulate = 2, .vulkan = true};
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    for (s.tensor_ranks = 0; s.tensor_ranks <= 2; s.tensor_ranks += 2, s.stages--) {
        s.level = 0;
        if (!grid_train(TEAM_BATCH_NORM, &s, &want))
            return;
        for (s.level = DT_SHARD_GRADIENTS; s.level <= DT_SHARD_PARAMETERS; s.level++)
            grid_equal(TEAM_BATCH_NORM, &s, &want);
    }
}

static uint64_t grid_state_bytes(int stages, int replicas, int level) {
    const grid_shape s = {.stages = stages, .replicas = replicas, .accumulate = 2, .level = level};
    team_model m;
    dt_trainer *t = NULL;
    dt_trainer_info info = {0};
    char devices[GRID_TEXT];
    if (CHECK_TEXT(team_make(&m, TEAM_BLOCKS, false), "made")) {
        const dt_trainer_desc d = grid_desc(&m, &s, devices);
        CHECK_TEXT(!dt_trainer_create(m.graph, &d, &t), "%s", dt_ctx_error(m.ctx));
        dt_trainer_get_info(t, &info);
    }
    dt_ctx_destroy(m.ctx);
    return info.state_bytes;
}

TEST(replicas_of_stages_have_less_state_each_with_zero) {
    const uint64_t all = grid_state_bytes(2, 4, 0), part = grid_state_bytes(2, 4, 1);
    CHECK_TEXT(part && part * 3 < all, "%llu of %llu bytes", (unsigned long long)part,
               (unsigned long long)all);
}

/* ---- on ranks */

typedef struct grid_case {
    int kind;
    grid_shape shape;
} grid_case;

static void grid_rank(rank *r) {
    const grid_case *c = r->job->arg;
    team_model m;
    r->result = grid_steps(&m, c->kind, &c->shape, r->comm, rank_devices(r), r->records);
    EXPECT_TEXT(r, !r->result, "%d: %s", (int)r->result, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

/* The bits of the same number of tensor ranks in one process that compute all batch slices. */
static void grid_job(int count, const char *const *devices, const grid_case *c) {
    const grid_shape *s = &c->shape, one = {.tensor_ranks = s->tensor_ranks,
                                            .batch_slices = s->batch_slices,
                                            .accumulate = s->accumulate,
                                            .rows = s->rows};
    grid_run want;
    job *j = job_new(count, c);
    for (int i = 0; i < count && j; i++)
        j->devices[i] = devices[i];
    if (j && grid_train(c->kind, &one, &want) && job_run(j, grid_rank)) {
        for (int i = 0; i < count * (GRID_STEPS + 1); i++) {
            const int at = i % (GRID_STEPS + 1);
            const step_record *got = &j->at[i / (GRID_STEPS + 1)].records[at];
            const bool evaluated = at == GRID_STEPS; /* by ranks: added in another order */
            CHECK_TEXT(evaluated ? fabs(got->loss - want.at[at].loss) < 1e-5
                                 : record_equal(got, &want.at[at]),
                       "kind %d, %d x %d x %d on %d ranks, schedule %d, rank %d, step %d: %016llx, "
                       "not %016llx",
                       c->kind, s->stages, s->tensor_ranks, s->replicas, count, (int)s->schedule,
                       i / (GRID_STEPS + 1), at, (unsigned long long)got->hash,
                       (unsigned long long)want.at[at].hash);
        }
    }
    job_free(j);
}

TEST(stages_of_tensor_ranks_on_processes_have_the_bits_of_one_process) {
    static const char *const two[] = {"cpu:2", "cpu:2"}, *const odd[] = {"cpu", "cpu:3"},
                             *const four[] = {"cpu", "cpu", "cpu", "cpu"},
                             *const wide[] = {"cpu:3", "cpu:5"};
    const grid_case
        plain = {TEAM_BLOCKS, {.stages = 2, .tensor_ranks = 2, .replicas = 1, .accumulate = 4}},
        tied = {TEAM_TIED,
                {.stages = 2,
                 .tensor_ranks = 2,
                 .replicas = 1,
                 .accumulate = 3,
                 .schedule = DT_PIPELINE_ZERO_BUBBLE}},
        grid = {
            TEAM_BATCH_NORM,
            {.stages = 2, .tensor_ranks = 2, .replicas = 2, .batch_slices = 3, .accumulate = 2}};
    grid_job(2, two, &plain);
    grid_job(4, four, &plain);
    grid_job(4, four, &tied);
    grid_job(2, odd,
             &tied); /* a stage's tensor ranks are on two ranks, and one has another stage too */
    grid_job(2, wide, &grid);
}

TEST(zero_with_stages_on_ranks_has_the_bits_of_one_process) {
    static const char *const two[] = {"cpu:2", "cpu:2"},
                             *const four[] = {"cpu", "cpu", "cpu", "cpu"},
                             *const odd[] = {"cpu", "cpu:3", "cpu:2"},
                             *const wide[] = {"cpu:3", "cpu:5"};
    grid_case plain = {TEAM_BLOCKS,
                       {.stages = 2, .replicas = 2, .batch_slices = 2, .accumulate = 2}},
              three = {TEAM_BATCH_NORM,
                       {.stages = 2, .replicas = 3, .batch_slices = 4, .accumulate = 2}},
              tensor_ranks = {TEAM_BLOCKS,
                              {.stages = 2,
                               .tensor_ranks = 2,
                               .replicas = 2,
                               .batch_slices = 2,
                               .accumulate = 3}},
              tensor = {TEAM_BLOCKS, {.tensor_ranks = 2, .replicas = 2, .batch_slices = 3}};
    for (int level = DT_SHARD_OPTIMIZER; level <= DT_SHARD_PARAMETERS; level++) {
        plain.shape.level = three.shape.level = tensor_ranks.shape.level = tensor.shape.level =
            level;
        const bool few = level % 2;
        grid_job(few ? 2 : 4, few ? two : four, &plain);
        grid_job(3, odd, &three);
        grid_job(2, wide, &tensor_ranks);
        grid_job(few ? 4 : 2, few ? four : two, &tensor);
    }
}

/* What a machine makes up: who has how many devices, and all else. */
TEST(random_grids_of_stages_and_tensor_ranks_have_the_bits_of_tensor_ranks_only) {
    static const char *const names[] = {"cpu", "cpu:2", "cpu:3", "cpu:4", "cpu:5", "cpu:6"};
    static const int kinds[] = {TEAM_MLP, TEAM_BLOCKS, TEAM_BATCH_NORM, TEAM_HEAD, TEAM_COLUMNS};
    uint32_t state = 5;
    for (int i = 0; i < (getenv("DTRAIN_TEST_LONG") ? 60 : 6) && test_now.failures < 3; i++) {
        grid_case c = {.kind = kinds[train_random(&state) % 5]};
        grid_shape *s = &c.shape;
        const char *devices[RANKS_MAX];
        s->stages = 2 + (int)(train_random(&state) % 2);
        s->tensor_ranks = 2 + 2 * (int)(train_random(&state) % 4 == 0);
        s->replicas = 1 + (int)(train_random(&state) % 2);
        s->batch_slices = s->replicas + (int)(train_random(&state) % 3);
        s->accumulate = 1 + (int)(train_random(&state) % 4);
        s->schedule = (dt_pipeline_schedule)(train_random(&state) % 4);
        s->stages = s->schedule == DT_PIPELINE_INTERLEAVED ? 2 : s->stages;
        int left = s->stages * s->tensor_ranks * s->replicas, ranks = 0;
        while (left > 0 && ranks < 4) {
            int n = ranks == 3 ? left : 1 + (int)(train_random(&state) % 6u);
            n = n > left ? left : n;
            if (n > 6)
                break;
            devices[ranks++] = names[n - 1];
            left -= n;
        }
        if (left == 0 && ranks > 1)
            grid_job(ranks, devices, &c);
    }
}

/* ---- files */

/* Steps of a grid, a file, steps of another. */
static uint64_t grid_go_on(const grid_shape *first, const grid_shape *second) {
    const char *const path = "build/grid_state";
    const grid_shape *shapes[2] = {first, second};
    uint64_t hash = 0;
    for (int k = 0; k < 2; k++) {
        team_model m;
        dt_trainer *t;
        char devices[GRID_TEXT];
        if (!CHECK_TEXT(team_make(&m, TEAM_BLOCKS, false), "made"))
            return 0;
        const dt_trainer_desc d = grid_desc(&m, shapes[k], devices);
        dt_result result = dt_trainer_create(m.graph, &d, &t);
        if (!result && k)
            result = dt_trainer_load(t, path);
        for (int i = 0; i < 3 && !result; i++)
            result = dt_trainer_step(t, NULL);
        if (!result)
            result = k ? dt_store_state_hash(dt_trainer_store(t), &hash) : dt_trainer_save(t, path);
        CHECK_TEXT(!result, "%d x %d: %s", shapes[k]->stages, shapes[k]->tensor_ranks,
                   dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
    return hash;
}

/* A file has whole values for any writer: bits depend only on the tensor ranks that resume. */
TEST(a_checkpoint_of_stages_of_tensor_ranks_resumes_on_any_other_grid) {
    static const grid_shape grid = {.stages = 2, .tensor_ranks = 2, .accumulate = 3},
                            tensor_ranks = {.tensor_ranks = 2, .accumulate = 3},
                            one = {.accumulate = 3}, stages = {.stages = 4, .accumulate = 3};
    const uint64_t want = grid_go_on(&tensor_ranks, &tensor_ranks);
    CHECK(want && grid_go_on(&grid, &grid) == want);
    CHECK(grid_go_on(&grid, &tensor_ranks) == want && grid_go_on(&tensor_ranks, &grid) == want);
    CHECK(grid_go_on(&grid, &one) == grid_go_on(&tensor_ranks, &one));
    CHECK(grid_go_on(&grid, &stages) == grid_go_on(&tensor_ranks, &one));
    CHECK(grid_go_on(&one, &grid) == grid_go_on(&one, &tensor_ranks));
}

TEST(a_checkpoint_of_zero_with_stages_resumes_on_any_other_grid) {
    grid_shape two = {.stages = 2, .replicas = 2, .batch_slices = 2, .accumulate = 2},
               one = {.batch_slices = 2, .accumulate = 2}, shared = two, tensor_ranks = two;
    const uint64_t want = grid_go_on(&one, &one);
    tensor_ranks.tensor_ranks = 2;
    const uint64_t parts = grid_go_on(&tensor_ranks, &tensor_ranks);
    for (int level = DT_SHARD_OPTIMIZER; level <= DT_SHARD_PARAMETERS; level++) {
        grid_shape replicas = {.replicas = 2, .batch_slices = 2, .accumulate = 2, .level = level};
        shared.level = 1 + level % DT_SHARD_PARAMETERS; /* another one */
        CHECK(want && grid_go_on(&shared, &shared) == want);
        CHECK(grid_go_on(&shared, &one) == want && grid_go_on(&one, &shared) == want);
        CHECK(grid_go_on(&shared, &two) == want && grid_go_on(&shared, &replicas) == want);
        replicas = shared;
        replicas.level = level;
        CHECK(grid_go_on(&replicas, &shared) == want);
        shared.tensor_ranks = 2;
        CHECK(parts && grid_go_on(&shared, &shared) == parts);
        CHECK(grid_go_on(&tensor_ranks, &shared) == parts &&
              grid_go_on(&shared, &tensor_ranks) == parts);
        shared.tensor_ranks = 0;
    }
}

/* ---- which grids have the same bits: the table of docs/guarantees.md */

enum { TABLE_COLUMNS = 7 };

typedef struct grid_table {
    uint64_t known[26]; /* hashes: a letter each */
    int count;
    char text[2000];
} grid_table;

/* A letter for its bits, `-` where it is refused. */
static char grid_letter(grid_table *t, const grid_shape *s) {
    step_record at[GRID_STEPS + 1];
    team_model m;
    const dt_result result = grid_steps(&m, TEAM_BLOCKS, s, NULL, NULL, at);
    CHECK_TEXT(!result || result == DT_ERROR_UNSUPPORTED, "%d x %d x %d, %d: %s", s->stages,
               s->tensor_ranks, s->replicas, s->level, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    int i = 0;
    while (!result && i < t->count && t->known[i] != at[GRID_STEPS - 1].hash)
        i++;
    if (result || i == 26)
        return '-';
    t->known[i] = at[GRID_STEPS - 1].hash;
    t->count = i == t->count ? i + 1 : t->count;
    return (char)('A' + i);
}

static void grid_table_row(grid_table *t, int stages, int tensor_ranks) {
    static const struct {
        int replicas, level;
    } columns[TABLE_COLUMNS] = {{1, 0}, {2, 0}, {3, 0}, {2, 1}, {3, 1}, {2, 2}, {2, 3}};
    size_t at = strlen(t->text);
    at += (size_t)snprintf(t->text + at, sizeof t->text - at, "| %d x %d |", stages, tensor_ranks);
    for (int i = 0; i < TABLE_COLUMNS; i++) {
        const grid_shape s = {.stages = stages,
                              .tensor_ranks = tensor_ranks,
                              .replicas = columns[i].replicas,
                              .level = columns[i].level,
                              .batch_slices = 3,
                              .accumulate = 2};
        at += (size_t)snprintf(t->text + at, sizeof t->text - at, " %c |", grid_letter(t, &s));
    }
    snprintf(t->text + at, sizeof t->text - at, "\n");
}

static bool grid_said(const char *text) {
    static char page[200000];
    FILE *f = fopen("docs/guarantees.md", "rb");
    if (!f)
        return true; /* the tests run elsewhere */
    const size_t n = fread(page, 1, sizeof page - 1, f);
    fclose(f);
    page[n] = 0;
    return strstr(page, text) != NULL;
}

TEST(the_documented_table_of_bit_identical_grids_is_true) {
    static grid_table t;
    for (int tensor_ranks = 1; tensor_ranks <= 2; tensor_ranks++)
        for (int stages = 1; stages <= 3; stages++)
            grid_table_row(&t, stages, tensor_ranks);
    CHECK_TEXT(grid_said(t.text), "docs/guarantees.md has another table:\n%s", t.text);
}

/* ---- deaths */

static void grid_die(rank *r) {
    const grid_case *c = r->job->arg;
    team_model m;
    dt_trainer *t = NULL;
    dt_train_report report = {0};
    char devices[GRID_TEXT];
    dt_result result = team_make(&m, c->kind, false) ? DT_OK : DT_ERROR_MEMORY;
    dt_trainer_desc d = grid_desc(&m, &c->shape, devices);
    d.comm = r->comm;
    d.devices = rank_devices(r);
    if (!result)
        result = dt_trainer_create(m.graph, &d, &t);
    while (!result) {
        result = dt_trainer_step(t, &report);
        atomic_fetch_add(&r->stage, 1);
    }
    r->numbers[0] = report.step;
    EXPECT_TEXT(r, result == DT_ERROR_PEER_LOST, "%d: %s", (int)result, dt_ctx_error(m.ctx));
    if (t)
        EXPECT(r, !dt_trainer_store(t) && dt_trainer_step(t, NULL) == DT_ERROR_REVOKED);
    dt_ctx_destroy(m.ctx);
}

TEST(a_killed_rank_of_stages_of_tensor_ranks_is_an_error_on_all_others) {
    static const char *const devices[] = {"cpu", "cpu:2", "cpu"}, *const wide[] = {"cpu:3", "cpu:2",
                                                                                   "cpu:3"};
    const grid_case one = {TEAM_MLP,
                           {.stages = 2, .tensor_ranks = 2, .replicas = 1, .accumulate = 3}},
                    shared = {TEAM_MLP,
                              {.stages = 2,
                               .tensor_ranks = 2,
                               .replicas = 2,
                               .batch_slices = 2,
                               .accumulate = 2,
                               .level = DT_SHARD_OPTIMIZER}};
    const int all = getenv("DTRAIN_TEST_LONG") ? 24 : 6;
    for (int i = 0; i < all && test_now.failures < 3; i++) {
        job *j = job_new(3, i % 2 ? &shared : &one);
        const int victim = i % 3;
        for (int k = 0; k < 3; k++)
            j->devices[k] = i % 2 ? wide[k] : devices[k];
        j->seconds = 30;
        j->at[victim].doomed = true;
        job_start(j, grid_die);
        CHECK(job_await(j, victim, 3));
        job_sleep_us(137 * i);
        job_signal(j, victim, SIGKILL);
        CHECK_TEXT(job_end(j), "rank %d", victim);
        job_free(j);
    }
}
