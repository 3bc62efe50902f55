/* Evaluation and prediction of grids, by forward parts of their own chunks. Any tensor of the model
 * has the values of one device, wherever it lies. And what goes wrong on one rank in the middle of
 * a set. Bits of losses on any mesh: test_random_products.c. */
#include "parallel/train_processes.h"

#include "parallel/team_model.h"

#include <math.h>

enum { FORWARD_ROWS = TEAM_ROWS, FORWARD_TENSORS = 6, FORWARD_DRAWN = 6, FORWARD_SET = 400 };

typedef struct forward_shape {
    int stages, tensor_ranks, replicas, chunks, zero_stage;
    dt_pipeline_schedule schedule;
    bool sequence, vulkan;
    int batch; /* of the evaluation */
} forward_shape;

typedef struct forward_model {
    team_model team;
    dt_tensor at[FORWARD_TENSORS + 1]; /* that are predicted; FORWARD_DRAWN is drawn */
    size_t size[FORWARD_TENSORS + 1];  /* of a sample */
} forward_model;

typedef struct forward_run {
    dt_result result[FORWARD_TENSORS];
    uint64_t hash[FORWARD_TENSORS];
    char text[1200];
    dt_train_report report;
} forward_run;

static uint64_t forward_hash(const float *values, size_t count) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < count * sizeof *values; i++)
        hash = (hash ^ ((const unsigned char *)values)[i]) * 1099511628211u;
    return hash;
}

/* A language model whose head is in parts of the classes, with what only a prediction reads. */
static bool forward_make(forward_model *m, bool vulkan) {
    static const dt_linear_desc column = {.tensor = DT_TENSOR_COLUMN};
    if (!team_inputs(&m->team, TEAM_WORDS, vulkan))
        return false;
    dt_graph *g = m->team.graph;
    dt_tensor h = dt_nn_embedding(m->team.x, "tokens", TEAM_WORDS, TEAM_WIDTH);
    const dt_tensor embedded = h;
    for (int layer = 0; layer < 4; layer++)
        h = team_block(h, layer % 2 ? TEAM_MLP : TEAM_BLOCKS, layer);
    const dt_tensor logits = dt_nn_linear_with(h, "head", TEAM_WORDS, &column);
    m->team.loss = dt_cross_entropy(logits, m->team.t, NULL);
    m->team.right = dt_accuracy(logits, m->team.t);
    m->at[0] = logits;
    m->at[1] = embedded;
    m->at[2] = dt_mul(dt_tanh(embedded), h); /* of the first stage and the last */
    m->at[3] = dt_affine(dt_sigmoid(logits), 2.0f, 1.0f);
    m->at[4] = dt_softmax(logits, -1);                                      /* beside the loss */
    m->at[5] = dt_sum(dt_mul(m->at[4], dt_exp(logits)), dt_dims(0), false); /* of parts, too */
    m->at[FORWARD_DRAWN] = dt_add(h, dt_random_normal(h));
    for (int i = 0; i <= FORWARD_DRAWN; i++) {
        m->size[i] = 1;
        for (int k = 0; k < dt_tensor_shape(m->at[i]).rank; k++)
            m->size[i] *= (size_t)dt_tensor_shape(m->at[i]).dim[k];
    }
    return dt_graph_error(g) == NULL;
}

static int forward_least(int n) {
    return n > 1 ? n : 1;
}

static dt_trainer_desc forward_desc(const forward_model *m, const forward_shape *s,
                                    char devices[64]) {
    static const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01};
    dt_trainer_desc d = team_desc(&m->team, &adam);
    const int count =
        forward_least(s->stages) * forward_least(s->tensor_ranks) * forward_least(s->replicas);
    snprintf(devices, 64, s->vulkan ? "vulkan:0" : "cpu:%d", count);
    for (int i = 1; i < count && s->vulkan; i++)
        strcat(devices, ",vulkan:0");
    d.devices = devices;
    d.batch = 12;
    d.accumulate = 2;
    d.parallel.pipeline = s->stages;
    d.parallel.tensor = s->tensor_ranks;
    d.parallel.replicas = s->stages > 1 || s->tensor_ranks > 1 ? s->replicas : 0;
    d.parallel.batch_slices = 3;
    d.parallel.zero_stage = s->zero_stage;
    d.parallel.chunks = s->chunks;
    d.parallel.schedule = s->schedule;
    d.parallel.sequence_parallel = s->sequence;
    return d;
}

static bool forward_predict(const forward_shape *s, forward_run *r) {
    static float out[FORWARD_ROWS * TEAM_POS * 64];
    forward_model m;
    dt_trainer *t = NULL;
    char devices[64];
    *r = (forward_run){0};
    if (!CHECK_TEXT(forward_make(&m, s->vulkan), "made"))
        return false;
    const dt_trainer_desc d = forward_desc(&m, s, devices);
    dt_result result = dt_trainer_create(m.team.graph, &d, &t);
    for (int i = 0; i < 2 && !result; i++)
        result = dt_trainer_step(t, NULL);
    for (int i = 0; i < FORWARD_TENSORS && !result; i++) {
        const size_t count = (size_t)FORWARD_ROWS * m.size[i];
        r->result[i] = dt_trainer_predict(t, &d.data, m.at[i], s->batch, out, count * sizeof *out);
        r->hash[i] = r->result[i] ? 0 : forward_hash(out, count);
        if (r->result[i])
            snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.team.ctx));
    }
    if (!result)
        result = dt_trainer_evaluate(t, &d.data, s->batch, &r->report);
    CHECK_TEXT(!result, "%d x %d x %d: %s", s->stages, s->tensor_ranks, s->replicas,
               dt_ctx_error(m.team.ctx));
    dt_ctx_destroy(m.team.ctx);
    return !result;
}

/* All of them, and losses: as of one device, or of the same number of tensor ranks without
 * stages. */
static void forward_equal(forward_shape s, int batch) {
    const forward_shape one = {
        .tensor_ranks = s.tensor_ranks, .sequence = s.sequence, .vulkan = s.vulkan, .batch = batch};
    forward_run want, got;
    s.batch = batch;
    if (!forward_predict(&one, &want) || !forward_predict(&s, &got))
        return;
    CHECK_TEXT(want.report.loss == got.report.loss && want.report.metric[0] == got.report.metric[0],
               "%d x %d x %d, batch %d: loss %.17g, not %.17g", s.stages, s.tensor_ranks,
               s.replicas, batch, got.report.loss, want.report.loss);
    for (int i = 0; i < FORWARD_TENSORS; i++) {
        CHECK_TEXT(want.hash[i] == got.hash[i] && !got.result[i],
                   "%d x %d x %d, batch %d, tensor %d: %d, %016llx, not %016llx: %s", s.stages,
                   s.tensor_ranks, s.replicas, batch, i, (int)got.result[i],
                   (unsigned long long)got.hash[i], (unsigned long long)want.hash[i], got.text);
    }
}

TEST(any_tensor_of_a_model_in_stages_is_predicted_as_on_one_device) {
    static const int batches[] = {0, 7, 1, 1000};
    for (int i = 0; i < (test_takes(1, 1, 2) ? 2 : 4); i++) {
        forward_equal((forward_shape){.stages = 3}, batches[i]);
        if (batches[i]) /* else a replica has fewer rows than one device */
            forward_equal((forward_shape){.stages = 2, .replicas = 3, .zero_stage = i}, batches[i]);
        forward_equal(
            (forward_shape){.stages = 2, .chunks = 2, .schedule = DT_PIPELINE_INTERLEAVED},
            batches[i]);
    }
}

TEST(tensor_ranks_with_parts_of_a_tensor_predict_all_of_it) {
    forward_run whole, parts;
    if (!forward_predict(&(forward_shape){.batch = 7}, &whole) ||
        !forward_predict(&(forward_shape){.tensor_ranks = 2, .batch = 7}, &parts))
        return;
    CHECK(!parts.result[0] && !parts.result[3] && whole.hash[0]);
    forward_equal((forward_shape){.stages = 2, .tensor_ranks = 2}, 7);
    forward_equal((forward_shape){.stages = 2, .tensor_ranks = 2, .sequence = true}, 16);
    forward_equal((forward_shape){.tensor_ranks = 2, .replicas = 2, .zero_stage = 3}, 5);
}

/* The first tensor rank's part is not all of it. */
TEST(a_predicted_tensor_of_tensor_ranks_is_near_one_devices) {
    static float of[2][FORWARD_ROWS * TEAM_POS * TEAM_WORDS];
    for (int k = 0; k < 2; k++) { /* probabilities */
        const forward_shape s = {.stages = k ? 2 : 1, .tensor_ranks = k ? 2 : 0, .batch = 7};
        forward_model m;
        dt_trainer *t = NULL;
        char devices[64];
        if (!CHECK_TEXT(forward_make(&m, false), "made"))
            return;
        const dt_trainer_desc d = forward_desc(&m, &s, devices);
        CHECK(!dt_trainer_create(m.team.graph, &d, &t));
        CHECK_TEXT(!dt_trainer_predict(t, &d.data, m.at[4], 7, of[k], sizeof of[k]), "%s",
                   dt_ctx_error(m.team.ctx));
        dt_ctx_destroy(m.team.ctx);
    }
    double most = 0;
    for (size_t i = 0; i < sizeof of[0] / sizeof of[0][0]; i++)
        most = fmax(most, fabs((double)of[0][i] - (double)of[1][i]));
    CHECK_TEXT(most < 1e-4 && forward_hash(of[0], FORWARD_ROWS * TEAM_POS) != 0, "%g apart", most);
}

TEST(stages_on_vulkan_predict_as_one_vulkan_device) {
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    forward_equal((forward_shape){.stages = 2, .replicas = 2, .vulkan = true}, 7);
    forward_equal((forward_shape){.stages = 2, .replicas = 2, .zero_stage = 3, .vulkan = true}, 7);
}

static uint64_t forward_drawn(const forward_shape *s) {
    static float out[FORWARD_ROWS * TEAM_POS * TEAM_WIDTH];
    forward_model m;
    dt_trainer *t = NULL;
    char devices[64];
    if (!CHECK_TEXT(forward_make(&m, false), "made"))
        return 0;
    const dt_trainer_desc d = forward_desc(&m, s, devices);
    CHECK(!dt_trainer_create(m.team.graph, &d, &t) && !dt_trainer_step(t, NULL));
    CHECK_TEXT(!dt_trainer_predict(t, &d.data, m.at[FORWARD_DRAWN], s->batch, out, sizeof out),
               "%s", dt_ctx_error(m.team.ctx));
    dt_ctx_destroy(m.team.ctx);
    return forward_hash(out, sizeof out / sizeof *out);
}

TEST(random_numbers_of_a_grids_evaluation_depend_on_the_row_in_the_set) {
    const uint64_t want = forward_drawn(&(forward_shape){.stages = 2, .batch = 7});
    CHECK(forward_drawn(&(forward_shape){.stages = 3, .batch = 16}) == want);
    CHECK(forward_drawn(&(forward_shape){.stages = 2, .replicas = 3, .batch = 4}) == want);
}

/* Of a parameter that the application has set to 0 in its store. */
static double forward_written(const forward_shape *s, double *before) {
    static const float zeros[TEAM_WORDS * TEAM_WIDTH];
    forward_model m;
    dt_trainer *t = NULL;
    dt_train_report report = {0};
    char devices[64];
    if (!CHECK_TEXT(forward_make(&m, false), "made"))
        return 0;
    const dt_trainer_desc d = forward_desc(&m, s, devices);
    CHECK(!dt_trainer_create(m.team.graph, &d, &t) && !dt_trainer_step(t, NULL));
    dt_store *store = dt_trainer_store(t);
    const int at = store ? dt_store_find(store, "tokens.weight") : -1;
    CHECK(!dt_trainer_evaluate(t, &d.data, 7, &report));
    *before = report.loss;
    CHECK_TEXT(store && at >= 0 && !dt_store_write(store, at, DT_VALUE_PARAM, zeros, sizeof zeros),
               "%s", dt_ctx_error(m.team.ctx));
    CHECK(!dt_trainer_evaluate(t, &d.data, 7, &report));
    dt_ctx_destroy(m.team.ctx);
    return report.loss;
}

TEST(values_written_to_a_grids_store_count_in_the_next_evaluation) {
    double before[2];
    const double want = forward_written(&(forward_shape){0}, &before[0]);
    for (int level = 0; level <= DT_SHARD_PARAMETERS; level++) {
        const forward_shape s = {.stages = 2, .replicas = 2, .zero_stage = level};
        CHECK(forward_written(&s, &before[1]) == want && before[0] == before[1] &&
              want != before[0]);
    }
}

/* ---- what is wrong */

TEST(a_tensor_that_stages_cannot_predict_is_an_error_with_the_reason) {
    const forward_shape s = {.stages = 2, .batch = 7};
    static float out[FORWARD_ROWS * TEAM_POS * 64];
    forward_model m;
    dt_trainer *t = NULL;
    char devices[64];
    if (!CHECK_TEXT(forward_make(&m, false), "made"))
        return;
    const dt_tensor w = dt_param(m.team.graph, "unread", dt_dims(3, TEAM_WIDTH), (dt_init){0}),
                    lost = dt_linear(m.at[1], dt_freeze(w), (dt_tensor){0});
    const size_t bytes = sizeof(float) * FORWARD_ROWS * TEAM_POS * 3;
    dt_trainer_desc d = forward_desc(&m, &s, devices);
    CHECK(!dt_trainer_create(m.team.graph, &d, &t));
    CHECK(dt_trainer_predict(t, &d.data, lost, 7, out, bytes) == DT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dt_ctx_error(m.team.ctx), "no loss and no metric reads");
    const dt_tensor late = dt_relu(m.at[0]);
    CHECK(dt_trainer_predict(t, &d.data, late, 7, out, sizeof(float) * FORWARD_ROWS * m.size[0]) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.team.ctx), "was made after the trainer");
    dt_dataset few = d.data; /* only targets */
    few.columns[0] = few.columns[1];
    few.columns[1] = (dt_column){0};
    CHECK(dt_trainer_evaluate(t, &few, 7, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.team.ctx), "input 'x' has no column");
    few = d.data;
    few.columns[1] = (dt_column){0}; /* a prediction needs none */
    CHECK_TEXT(
        !dt_trainer_predict(t, &few, m.at[1], 7, out, sizeof(float) * FORWARD_ROWS * m.size[1]),
        "%s", dt_ctx_error(m.team.ctx));
    CHECK_TEXT(!dt_trainer_step(t, NULL) && !dt_trainer_evaluate(t, &d.data, 7, NULL), "%s",
               dt_ctx_error(m.team.ctx));
    dt_ctx_destroy(m.team.ctx);
}

/* ---- on ranks */

typedef struct forward_job {
    forward_shape shape;
    int bad_row, rank;  /* of which `sample` fails on a rank */
    bool label;         /* in place of that its target is out of range */
    dt_result expected; /* on all */
    const char *said;
    bool backward; /* of a NaN: it comes there */
} forward_job;

typedef struct forward_source {
    const forward_model *m;
    int bad_row;
    bool label;
} forward_source;

static dt_result forward_sample(void *user, const dt_sample *sample, void *const *values) {
    const forward_source *s = user;
    const size_t row = (size_t)sample->row % TEAM_ROWS;
    memcpy(values[0], s->m->team.tokens + row * TEAM_POS, TEAM_POS * sizeof(int32_t));
    memcpy(values[1], s->m->team.targets + row * TEAM_POS, TEAM_POS * sizeof(int32_t));
    if ((int)sample->row == s->bad_row && s->label)
        *(int32_t *)values[1] = 1000;
    return (int)sample->row == s->bad_row && !s->label ? DT_ERROR_IO : DT_OK;
}

static dt_result forward_open(rank *r, forward_model *m, const forward_shape *s, dt_trainer_desc *d,
                              dt_trainer **t) {
    char devices[64];
    if (!forward_make(m, false))
        return DT_ERROR_MEMORY;
    *d = forward_desc(m, s, devices);
    d->comm = r->comm;
    d->devices = rank_devices(r);
    return dt_trainer_create(m->team.graph, d, t);
}

static void forward_broken(rank *r) {
    const forward_job *c = r->job->arg;
    forward_model m;
    forward_source source = {&m, r->index == c->rank ? c->bad_row : -1, c->label};
    dt_trainer *t = NULL;
    dt_trainer_desc d;
    dt_result result = forward_open(r, &m, &c->shape, &d, &t);
    dt_dataset set = d.data;
    set.rows = FORWARD_SET;
    set.columns[0].data = set.columns[1].data = NULL;
    set.sample = forward_sample;
    set.user = &source;
    EXPECT_TEXT(r, !result, "%s", dt_ctx_error(m.team.ctx));
    result = t ? dt_trainer_evaluate(t, &set, 5, NULL) : result;
    EXPECT_TEXT(r, result == c->expected && strstr(dt_ctx_error(m.team.ctx), c->said), "%d: %s",
                (int)result, dt_ctx_error(m.team.ctx));
    source.bad_row = -1; /* the job goes on */
    dt_train_report report = {0};
    EXPECT_TEXT(r, t && !dt_trainer_evaluate(t, &set, 5, &report) && report.samples == FORWARD_SET,
                "%s", dt_ctx_error(m.team.ctx));
    EXPECT_TEXT(r, t && !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.team.ctx));
    memcpy(&r->numbers[0], &report.loss, sizeof report.loss);
    dt_ctx_destroy(m.team.ctx);
}

TEST(a_sample_or_label_that_fails_on_one_rank_ends_its_evaluation_on_all_and_the_job_continues) {
    static const forward_job jobs[] = {
        {{.stages = 2, .replicas = 1}, 250, 0, false, DT_ERROR_IO, "row 250", false},
        {{.stages = 2, .replicas = 1}, 390, 1, true, DT_ERROR_INVALID, "1000", false},
        {{.stages = 2, .replicas = 2, .zero_stage = 3},
         301,
         1,
         false,
         DT_ERROR_IO,
         "row 301",
         false}};
    for (int i = 0; i < 3; i++) {
        job *j = job_new(2, &jobs[i]);
        j->devices[0] = j->devices[1] = i == 2 ? "cpu:2" : "cpu";
        CHECK(j && job_run(j, forward_broken));
        CHECK(j->at[0].numbers[0] && j->at[0].numbers[0] == j->at[1].numbers[0]);
        job_free(j);
    }
}

/* Neither what an older set had in a column, nor the end of a job whose shards would be lost. */
static void forward_forgets(rank *r) {
    const forward_job *c = r->job->arg;
    forward_model m;
    dt_trainer *t = NULL;
    dt_trainer_desc d;
    dt_train_report report;
    EXPECT_TEXT(r, !forward_open(r, &m, &c->shape, &d, &t), "%s", dt_ctx_error(m.team.ctx));
    dt_dataset few = d.data;
    few.columns[1] = (dt_column){0};
    for (int i = 0; i < 2 && t; i++) {
        const dt_result result = dt_trainer_evaluate(t, &few, 7, &report);
        EXPECT_TEXT(r,
                    result == DT_ERROR_INVALID &&
                        strstr(dt_ctx_error(m.team.ctx), "input 't' has no column in the set"),
                    "%d, %d: %s", i, (int)result, dt_ctx_error(m.team.ctx));
        EXPECT_TEXT(r, !dt_trainer_step(t, NULL) && !dt_trainer_evaluate(t, &d.data, 7, &report),
                    "%s", dt_ctx_error(m.team.ctx));
    }
    dt_ctx_destroy(m.team.ctx);
}

TEST(a_data_set_without_a_column_is_an_error_even_after_one_with_it) {
    static const forward_job jobs[] = {{.shape = {.replicas = 1}},
                                       {.shape = {.replicas = 2, .zero_stage = 1}},
                                       {.shape = {.replicas = 2, .zero_stage = 3}},
                                       {.shape = {.stages = 2}}};
    for (int i = 0; i < 4; i++) {
        job *j = job_new(i ? 2 : 1, &jobs[i]);
        if (!CHECK_TEXT(j && job_run(j, forward_forgets), "mesh %d", i) && !j)
            return;
        job_free(j);
    }
}

static void forward_die(rank *r) {
    const forward_job *c = r->job->arg;
    forward_model m;
    dt_trainer *t = NULL;
    dt_trainer_desc d;
    dt_result result = forward_open(r, &m, &c->shape, &d, &t);
    forward_source source = {&m, -1, false};
    dt_dataset set = d.data;
    set.rows = 120;
    set.columns[0].data = set.columns[1].data = NULL;
    set.sample = forward_sample;
    set.user = &source;
    while (!result) {
        result = dt_trainer_evaluate(t, &set, 3, NULL);
        atomic_fetch_add(&r->stage, 1);
    }
    EXPECT_TEXT(r, result == DT_ERROR_PEER_LOST, "%d: %s", (int)result, dt_ctx_error(m.team.ctx));
    if (t)
        EXPECT(r, dt_trainer_evaluate(t, &set, 3, NULL) == DT_ERROR_REVOKED);
    dt_ctx_destroy(m.team.ctx);
}

TEST(a_rank_that_is_killed_in_an_evaluation_is_an_error_on_all_others) {
    static const char *const devices[] = {"cpu", "cpu:2", "cpu"};
    static const forward_job jobs[] = {{.shape = {.stages = 4}},
                                       {.shape = {.stages = 2, .tensor_ranks = 2}},
                                       {.shape = {.stages = 2, .replicas = 2, .zero_stage = 3}}};
    const int all = test_is_long() ? 24 : 6;
    for (int i = 0; i < all && test_now.failures < 3; i++) {
        job *j = job_new(3, &jobs[i % 3]);
        const int victim = i / 3 % 3;
        for (int k = 0; k < 3; k++)
            j->devices[k] = devices[k];
        j->seconds = 30;
        j->at[victim].doomed = true;
        job_start(j, forward_die);
        CHECK(job_await(j, victim, 2));
        job_sleep_us(731 * i);
        job_signal(j, victim, SIGKILL);
        CHECK_TEXT(job_end(j), "rank %d", victim);
        job_free(j);
    }
}

/* ---- a NaN, in a micro-batch that is not the last one */

enum { NAN_ROWS = 40, NAN_BATCH = 20 };

typedef struct nan_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, y, loss;
    float rows[2][NAN_ROWS * 4]; /* the first set has a row whose values sum up to about -200 */
} nan_model;

/* Of that row an op gives a NaN forward, or an infinity backward; each in the second stage. */
static bool nan_make(nan_model *m, bool vulkan, bool backward, int bad) {
    static const dt_linear_desc column = {.tensor = DT_TENSOR_COLUMN},
                                row = {.tensor = DT_TENSOR_ROW};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = !vulkan, .threads = 1}, &m->ctx) ||
        dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(4));
    m->y = dt_input(m->graph, "y", DT_F32, dt_dims(4));
    dt_tensor h = dt_stage(dt_tanh(dt_nn_linear(m->x, "a", 8)), 1);
    const dt_tensor sum = dt_affine(dt_sum(m->x, dt_dims(0), true), 1, 100);
    h = dt_nn_linear_with(dt_tanh(dt_nn_linear_with(h, "up", 8, &column)), "down", 8, &row);
    h = backward ? dt_sqrt(dt_mul(dt_mul(h, h), dt_relu(sum))) : dt_add(h, dt_log(sum));
    m->loss = dt_mse(dt_nn_linear(h, "c", 4), m->y);
    for (int i = 0; i < NAN_ROWS * 4; i++)
        m->rows[0][i] = m->rows[1][i] = (float)(i % 11) * 0.1f;
    m->rows[0][bad * 4 + 1] = -200.0f;
    return dt_graph_error(m->graph) == NULL;
}

static dt_result nan_open(rank *r, nan_model *m, dt_trainer_desc *d, dt_trainer **t, int bad) {
    static const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.01};
    const forward_job *c = r->job->arg;
    if (!EXPECT(r, nan_make(m, c->shape.vulkan, c->backward, bad)))
        return DT_ERROR_INVALID;
    *d = (dt_trainer_desc){
        .losses = {{.term = m->loss}},
        .optim = &sgd,
        .batch = NAN_BATCH,
        .accumulate = 5,
        .no_shuffle = true,
        .comm = r->comm,
        .devices = rank_devices(r),
        .data = {.rows = NAN_ROWS,
                 .columns = {{.input = m->x, .dtype = DT_F32}, {.input = m->y, .dtype = DT_F32}}}};
    d->data.columns[0].data = m->rows[0];
    d->data.columns[1].data = m->rows[1];
    d->parallel.pipeline = c->shape.stages;
    d->parallel.tensor = c->shape.tensor_ranks;
    d->parallel.replicas = c->shape.stages || c->shape.tensor_ranks ? c->shape.replicas : 0;
    d->parallel.batch_slices = c->shape.replicas;
    d->parallel.zero_stage = c->shape.zero_stage;
    d->parallel.bucket_bytes = 256; /* several units */
    const dt_result result = dt_trainer_create(m->graph, d, t);
    EXPECT_TEXT(r, !result, "%s", dt_ctx_error(m->ctx));
    return result;
}

static void forward_nan(rank *r) {
    const forward_job *c = r->job->arg;
    static nan_model m;
    dt_trainer *t = NULL;
    dt_trainer_desc d;
    dt_train_report report = {0};
    uint64_t before = 0, after = 1;
    if (nan_open(r, &m, &d, &t, 1))
        return;
    dt_dataset good = d.data;
    good.columns[0].data = m.rows[1];
    dt_result result = c->backward ? DT_ERROR_NUMERIC : dt_trainer_evaluate(t, &d.data, 2, &report);
    EXPECT_TEXT(r,
                result == DT_ERROR_NUMERIC &&
                    (c->backward || (strstr(dt_ctx_error(m.ctx), c->said) &&
                                     report.samples == NAN_ROWS && isnan(report.loss))),
                "%d, %d samples, loss %g: %s", (int)result, (int)report.samples, report.loss,
                dt_ctx_error(m.ctx));
    result = dt_trainer_evaluate(t, &good, 2, &report);
    EXPECT_TEXT(r, !result && report.loss > 0, "%s", dt_ctx_error(m.ctx));
    EXPECT(r, !dt_store_state_hash(dt_trainer_store(t), &before));
    result = dt_trainer_step(t, NULL);
    EXPECT_TEXT(r, result == DT_ERROR_NUMERIC && strstr(dt_ctx_error(m.ctx), c->said), "%d: %s",
                (int)result, dt_ctx_error(m.ctx));
    EXPECT(r, !dt_store_state_hash(dt_trainer_store(t), &after) && before == after);
    EXPECT_TEXT(r, !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx));
    EXPECT(r, !dt_store_state_hash(dt_trainer_store(t), &r->numbers[0]));
    dt_ctx_destroy(m.ctx);
}

/* On ranks that have its devices in equal parts: what it says, and the same weights on all. */
static uint64_t forward_nan_on(forward_job c, int ranks) {
    static const char *const devices[] = {"cpu", "cpu", "cpu:2", "", "cpu:4", "", "", "", "cpu:8"};
    const forward_shape *s = &c.shape;
    const int count =
        forward_least(s->stages) * forward_least(s->tensor_ranks) * forward_least(s->replicas);
    job *j = job_new(ranks, &c);
    for (int i = 0; j && i < ranks; i++)
        j->devices[i] = s->vulkan ? "vulkan:0,vulkan:0,vulkan:0,vulkan:0" : devices[count / ranks];
    CHECK_TEXT(j && job_run(j, forward_nan), "%d x %d x %d, ZeRO %d, %d ranks: %s", s->stages,
               s->tensor_ranks, s->replicas, s->zero_stage, ranks, c.said);
    const uint64_t hash = j ? j->at[0].numbers[0] : 0;
    for (int i = 1; j && i < ranks; i++)
        CHECK(j->at[i].numbers[0] == hash);
    job_free(j);
    return hash;
}

TEST(a_nan_is_named_by_its_first_op_on_any_mesh) {
    static const struct {
        forward_shape shape;
        const char *forward, *backward;
    } rows[] = {
        {{.replicas = 2}, "', step 1: op log", "', step 1: op unary_grad"},
        {{.stages = 2, .replicas = 1},
         "stage 1', step 1: op log",
         "stage 1', step 1: op unary_grad"},
        {{.stages = 2, .replicas = 2},
         "stage 1', step 1: op log",
         "stage 1', step 1: op unary_grad"},
        {{.tensor_ranks = 2, .replicas = 2}, "', step 1: op log", "', step 1: op unary_grad"},
        {{.stages = 2, .tensor_ranks = 2, .replicas = 2},
         "stage 1', step 1: op log",
         "stage 1', step 1: op unary_grad"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int level = 0; level <= DT_SHARD_PARAMETERS; level++) {
            if (rows[i].shape.replicas < 2 && level)
                continue;
            forward_job c = {.shape = rows[i].shape, .said = rows[i].forward};
            c.shape.zero_stage = level;
            uint64_t one = forward_nan_on(c, 1);
            CHECK(forward_nan_on(c, 2) == one);
            c.said = rows[i].backward;
            c.backward = true;
            one = forward_nan_on(c, 1 + level % 2);
            CHECK(one);
        }
    }
}

TEST(a_nan_on_vulkan_devices_is_named_by_its_first_op) {
    forward_job c = {.shape = {.stages = 2, .replicas = 2, .vulkan = true}};
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    for (int level = 0; level <= DT_SHARD_PARAMETERS; level++) {
        c.shape.zero_stage = level;
        c.backward = level % 2;
        c.said = c.backward ? "stage 1', step 1: op unary_grad" : "stage 1', step 1: op log";
        CHECK(forward_nan_on(c, 1));
    }
}

static void nan_die(rank *r) {
    static nan_model m;
    dt_trainer *t = NULL;
    dt_trainer_desc d;
    if (nan_open(r, &m, &d, &t, NAN_BATCH + 2)) /* of the second step */
        return;
    const long start = harness_actions;
    EXPECT_TEXT(r, !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx));
    const long actions = harness_actions - start;
    if (r->doomed)
        harness_killer = harness_actions + actions + (long)r->numbers[0] * actions / 8;
    const dt_result result = dt_trainer_step(t, NULL);
    EXPECT_TEXT(r, result == DT_ERROR_PEER_LOST, "%d: %s", (int)result, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(a_rank_that_is_killed_while_a_nan_is_searched_is_an_error_on_all_others) {
    static const forward_job jobs[] = {
        {.shape = {.stages = 2, .replicas = 2, .zero_stage = 3}},
        {.shape = {.tensor_ranks = 2, .replicas = 2, .zero_stage = 2}},
        {.shape = {.replicas = 4, .zero_stage = 3}}};
    for (int i = 0; i < (test_is_long() ? 24 : 6); i++) {
        job *j = job_new(2, &jobs[i % 3]);
        const int victim = i / 3 % 2;
        j->devices[0] = j->devices[1] = "cpu:2";
        j->at[victim].doomed = true;
        j->at[victim].numbers[0] = 1 + (uint64_t)i % 7; /* eighths of the search */
        CHECK_TEXT(job_run(j, nan_die), "job %d, rank %d", i % 3, victim);
        job_free(j);
    }
}
