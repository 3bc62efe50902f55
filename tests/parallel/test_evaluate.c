/* Evaluation and prediction over a mesh. Predictions are the same, bit for bit, for any number of
 * replicas and ranks and any batch. Here are strategies that have all parameters somewhere, and
 * those that gather them unit by unit. */
#include "parallel/train_processes.h"

enum { EVAL_ROWS = 23, EVAL_SIZE = 8, EVAL_WIDE = 48, EVAL_BATCH = 16, EVAL_STEPS = 2 };

/* A mesh, in each of its ranks on `devices`; batch: of dt_trainer_predict. */
typedef struct eval_mesh {
    int ranks;
    const char *devices;
    dt_parallel_desc parallel;
    int batch;
    bool averaged; /* weights are averages of steps; and the norm is of the whole batch */
} eval_mesh;

typedef struct eval_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, y;
    dt_optim_desc optim;
    dt_trainer_desc desc;
    float rows[EVAL_ROWS * EVAL_SIZE], got[EVAL_ROWS * EVAL_SIZE];
    dt_train_report report;
} eval_model;

/* Layers of a unit each, and a norm whose running statistics are in no unit; their result has noise
 * of both kinds. */
static bool eval_make(eval_model *m, const eval_mesh *mesh, dt_comm *comm) {
    uint32_t state = 3;
    *m = (eval_model){.optim = {.kind = DT_OPTIM_ADAM, .lr = 0.01}};
    const dt_ctx_desc ctx = {.threads = 1, .no_vulkan = !strstr(mesh->devices, "vulkan")};
    if (mesh->averaged)
        m->optim.average = (dt_average){.kind = DT_AVERAGE_EMA, .decay = 0.7};
    if (dt_ctx_create(&ctx, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(EVAL_SIZE));
    dt_tensor h = dt_tanh(dt_nn_linear(m->x, "up", EVAL_WIDE));
    h = dt_nn_batch_norm(h, "norm", &(dt_batch_norm_desc){.sync = mesh->averaged});
    h = dt_tanh(dt_nn_linear(h, "middle", EVAL_WIDE));
    h = dt_nn_linear(h, "down", EVAL_SIZE);
    m->y = dt_add(dt_add(h, dt_random_uniform(h)), dt_random_normal(h));
    for (int i = 0; i < EVAL_ROWS * EVAL_SIZE; i++)
        m->rows[i] = (float)(train_random(&state) % 1000) / 1000.0f;
    m->desc = (dt_trainer_desc){.loss = dt_mse(m->y, m->x),
                                .optim = &m->optim,
                                .data = {.rows = EVAL_ROWS, .columns = {{m->x, m->rows}}},
                                .batch = EVAL_BATCH,
                                .seed = 5,
                                .averaged = mesh->averaged,
                                .comm = comm,
                                .devices = mesh->devices,
                                .parallel = mesh->parallel};
    m->desc.parallel.batch_slices = 4;
    m->desc.parallel.bucket_bytes = 1024;
    return dt_graph_error(m->graph) == NULL;
}

/* Predictions and an evaluation after some steps. */
static dt_result eval_run(eval_model *m, int batch) {
    dt_trainer *t = NULL;
    dt_result result = dt_trainer_create(m->graph, &m->desc, &t);
    for (int i = 0; i < EVAL_STEPS && !result; i++)
        result = dt_trainer_step(t, NULL);
    if (!result)
        result = dt_trainer_evaluate(t, &m->desc.data, batch, &m->report);
    if (!result)
        result = dt_trainer_predict(t, &m->desc.data, m->y, batch, m->got, sizeof m->got);
    return result;
}

/* What one device predicts in one batch; and its losses, by samples of a batch. */
static float eval_want[EVAL_ROWS * EVAL_SIZE];
static double eval_losses[EVAL_ROWS + 1];

/* Samples of a replica at a time. */
static int eval_each(const eval_mesh *mesh) {
    int replicas = mesh->ranks ? mesh->ranks : 1;
    if (strstr(mesh->devices, ":") && !strstr(mesh->devices, "vulkan"))
        replicas *= atoi(strstr(mesh->devices, ":") + 1);
    return mesh->batch ? mesh->batch : (EVAL_BATCH + replicas - 1) / replicas;
}

/* most: the largest batch that is asked for, but for all rows. */
static bool eval_oracle(const char *devices, bool averaged, int most) {
    for (int batch = EVAL_ROWS; batch > 0; batch = batch == EVAL_ROWS ? most : batch - 1) {
        const eval_mesh one = {.devices = devices, .batch = batch, .averaged = averaged};
        eval_model m;
        if (!eval_make(&m, &one, NULL) ||
            !CHECK_TEXT(!eval_run(&m, batch), "%s", dt_ctx_error(m.ctx)))
            return false;
        if (batch == EVAL_ROWS)
            memcpy(eval_want, m.got, sizeof m.got);
        eval_losses[batch] = m.report.loss;
        dt_ctx_destroy(m.ctx);
    }
    return true;
}

/* What another processor updated. */
static bool eval_near(const float *got) {
    bool near = true;
    for (int i = 0; i < EVAL_ROWS * EVAL_SIZE; i++)
        near = near && fabsf(got[i] - eval_want[i]) < 1e-4f * (1 + fabsf(eval_want[i]));
    memcpy(eval_want, got, sizeof eval_want);
    return near;
}

/* Text is empty where it is as it must be. With .offload others are compared with the first. */
static void eval_mesh_run(const eval_mesh *mesh, dt_comm *comm, char text[1200]) {
    eval_model m;
    const double want = eval_losses[eval_each(mesh)];
    const bool first = mesh->parallel.offload && !strchr(mesh->devices, ',');
    text[0] = 0;
    if (!eval_make(&m, mesh, comm) || eval_run(&m, mesh->batch))
        snprintf(text, 1200, "%s", dt_ctx_error(m.ctx));
    else if (first ? !eval_near(m.got) : memcmp(m.got, eval_want, sizeof m.got))
        snprintf(text, 1200, "other predictions");
    else if ((m.report.loss != want && !mesh->parallel.offload) || m.report.samples != EVAL_ROWS)
        snprintf(text, 1200, "loss %.17g, not %.17g", m.report.loss, want);
    dt_ctx_destroy(m.ctx);
}

static void eval_rank(rank *r) {
    eval_mesh_run(r->job->arg, r->comm, r->text);
    EXPECT_TEXT(r, !r->text[0], "%s", r->text);
}

static void eval_meshes(const eval_mesh *meshes, size_t count) {
    REQUIRE(eval_oracle("cpu", meshes->averaged, EVAL_BATCH));
    for (size_t i = 0; i < count; i++) {
        const eval_mesh *mesh = &meshes[i];
        job *j = job_new(mesh->ranks ? mesh->ranks : 1, mesh);
        REQUIRE(j);
        for (int k = 0; k < j->count; k++)
            j->devices[k] = mesh->devices;
        if (!job_run(j, eval_rank))
            CHECK_TEXT(false, "mesh %zu: %d x %s, zero_stage %d, batch %d", i, mesh->ranks,
                       mesh->devices, (int)mesh->parallel.zero_stage, mesh->batch);
        job_free(j);
    }
}

TEST(random_numbers_of_an_evaluation_are_those_of_the_row_in_the_set) {
    static const eval_mesh meshes[] = {
        {.devices = "cpu", .batch = 1},   {.devices = "cpu", .batch = 5},   {.devices = "cpu:2"},
        {.devices = "cpu:3", .batch = 2}, {.devices = "cpu:4", .batch = 1}, {2, "cpu", .batch = 3},
        {.ranks = 3, .devices = "cpu"}};
    eval_meshes(meshes, sizeof meshes / sizeof *meshes);
}

#define EVAL_ZERO(stage) .parallel = {.zero_stage = stage}
/* Ragged tails, and more replicas than rows of a tail; without room for all parameters anywhere. */
TEST(evaluations_with_zero_have_the_bits_of_one_device) {
    static const eval_mesh meshes[] = {
        {.devices = "cpu:2", EVAL_ZERO(1)},
        {.devices = "cpu:2", EVAL_ZERO(2)},
        {.devices = "cpu:2", EVAL_ZERO(3)},
        {.devices = "cpu:3", EVAL_ZERO(3), .batch = 2},
        {.devices = "cpu:4", EVAL_ZERO(2), .batch = 5},
        {.devices = "cpu:4", EVAL_ZERO(3), .batch = 5},
        {.devices = "cpu:4", .parallel = {.zero_stage = 3, .shard_degree = 2}, .batch = 1},
        {2, "cpu", EVAL_ZERO(1), .batch = 3},
        {2, "cpu", EVAL_ZERO(2), .batch = 3},
        {2, "cpu", EVAL_ZERO(3), .batch = 11},
        {2, "cpu", EVAL_ZERO(3), .batch = EVAL_ROWS}, /* one rank has no rows */
        {3, "cpu", EVAL_ZERO(3)},
        {2, "cpu:2", EVAL_ZERO(3), .batch = 4},
        {2, "cpu:2", EVAL_ZERO(2), .batch = 5},
        {2, "cpu:2", .parallel = {.zero_stage = 3, .shard_degree = 2}, .batch = 4},
    };
    eval_meshes(meshes, sizeof meshes / sizeof *meshes);
}

TEST(owners_provide_averages_for_evaluations) {
    static const eval_mesh meshes[] = {
        {.devices = "cpu", .batch = 4, .averaged = true},
        {.devices = "cpu:2", .averaged = true},
        {.devices = "cpu:2", EVAL_ZERO(1), .averaged = true},
        {.devices = "cpu:3", EVAL_ZERO(2), .averaged = true},
        {.devices = "cpu:4", EVAL_ZERO(3), .averaged = true},
        {2, "cpu", EVAL_ZERO(1), .averaged = true},
        {2, "cpu:2", EVAL_ZERO(2), .averaged = true},
        {2, "cpu", EVAL_ZERO(3), .averaged = true},
    };
    eval_meshes(meshes, sizeof meshes / sizeof *meshes);
}

/* Parameters come to the device between two segments; with .offload only the host has own parts. */
TEST(evaluations_with_zero_on_vulkan_have_the_bits_of_one_device) {
    char one[100] = "", two[220], text[1200];
    dt_ctx *ctx;
    if (!dt_ctx_create(NULL, &ctx)) {
        const dt_device_info *info = dt_ctx_device(ctx, 1);
        snprintf(one, sizeof one, "%s", info && info->usable ? info->id : "");
        dt_ctx_destroy(ctx);
    }
    if (!one[0])
        SKIP("no Vulkan device");
    snprintf(two, sizeof two, "%s,%s", one, one);
    for (int averaged = 0; averaged < 2; averaged++) {
        REQUIRE(eval_oracle(one, averaged, 3));
        for (int i = !averaged; i < (averaged ? 3 : 5); i++) {
            const eval_mesh mesh = {
                .devices = i == 3 ? one : two,
                .parallel = {.zero_stage = i < 3 ? i + 1 : 3, .offload = i >= 3},
                .batch = 3,
                .averaged = averaged};
            eval_mesh_run(&mesh, NULL, text);
            CHECK_TEXT(!text[0], "averaged %d, mesh %d: %s", averaged, i, text);
        }
    }
}

/* ---- memory */

enum { WIDE_LAYERS = 12, WIDE_SIZE = 192 };

/* Programs and lists are small beside the parameters, which 4 replicas would have 4 times. */
TEST(no_replica_holds_all_parameters_in_an_evaluation_with_zero_3) {
    const uint64_t all = 4ull * WIDE_LAYERS * WIDE_SIZE * WIDE_SIZE;
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 1e-3};
    static float rows[32 * WIDE_SIZE];
    dt_ctx *ctx;
    dt_graph *graph;
    dt_trainer *t;
    dt_ctx_info step, first, again;
    dt_trainer_info info, trained;
    REQUIRE(!dt_ctx_create(&one_thread, &ctx) && !dt_graph_create(ctx, &graph));
    const dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(WIDE_SIZE));
    dt_tensor h = x;
    for (int i = 0; i < WIDE_LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", i);
        h = dt_tanh(dt_nn_linear(h, name, WIDE_SIZE));
    }
    const dt_trainer_desc d = {.loss = dt_mse(h, x),
                               .optim = &sgd,
                               .data = {.rows = 32, .columns = {{x, rows}}},
                               .batch = 16,
                               .devices = "cpu:4",
                               .parallel = {.zero_stage = 3, .bucket_bytes = 4096}};
    REQUIRE(!dt_trainer_create(graph, &d, &t) && !dt_trainer_step(t, NULL));
    dt_ctx_get_info(ctx, &step);
    dt_trainer_get_info(t, &trained);
    CHECK(!dt_trainer_evaluate(t, &d.data, 0, NULL));
    dt_ctx_get_info(ctx, &first);
    dt_trainer_get_info(t, &info);
    CHECK_TEXT(first.host_bytes - step.host_bytes < all / 2, "%llu bytes, of %llu",
               (unsigned long long)(first.host_bytes - step.host_bytes), (unsigned long long)all);
    CHECK(info.replica_param_bytes == trained.replica_param_bytes &&
          info.replica_param_bytes < all / 2 && info.staging_bytes == trained.staging_bytes);
    CHECK(!dt_trainer_step(t, NULL) && !dt_trainer_evaluate(t, &d.data, 0, NULL));
    dt_ctx_get_info(ctx, &again);
    CHECK(again.host_bytes == first.host_bytes);
    dt_ctx_destroy(ctx);
}

/* ---- what goes wrong on one rank */

/* The sample that rank 1 cannot read is in the third batch. */
static dt_result eval_sample(void *user, const dt_sample *sample, void *const *values) {
    const eval_model *m = user;
    memcpy(values[0], m->rows + sample->row * EVAL_SIZE, EVAL_SIZE * sizeof(float));
    return sample->row == 16 ? DT_ERROR_IO : DT_OK;
}

static void eval_rank_fails(rank *r) {
    eval_model m;
    dt_trainer *t = NULL;
    dt_train_report report;
    EXPECT(r, eval_make(&m, r->job->arg, r->comm));
    EXPECT(r, !dt_trainer_create(m.graph, &m.desc, &t) && !dt_trainer_step(t, NULL));
    dt_dataset bad = m.desc.data;
    if (r->index == 1) {
        bad.columns[0].data = NULL;
        bad.sample = eval_sample;
        bad.user = &m;
    }
    EXPECT(r, dt_trainer_evaluate(t, &bad, 3, &report) == DT_ERROR_IO);
    EXPECT(r, !r->index == (strstr(dt_ctx_error(m.ctx), "rank 1: ") != NULL));
    /* the job goes on */
    EXPECT(r, !dt_trainer_evaluate(t, &m.desc.data, 3, &report) && report.samples == EVAL_ROWS);
    EXPECT(r, !dt_trainer_step(t, NULL));
    bad = m.desc.data;
    bad.rows -= (uint64_t)r->index; /* also where no other operation would differ */
    EXPECT(r, dt_trainer_evaluate(t, &bad, 3, NULL) == DT_ERROR_INVALID);
    EXPECT(r, strstr(dt_ctx_error(m.ctx), "sets of different numbers of rows") != NULL);
    const size_t bytes = (size_t)bad.rows * EVAL_SIZE * sizeof m.got[0];
    EXPECT(r, dt_trainer_predict(t, &bad, m.y, 3, m.got, bytes) == DT_ERROR_INVALID);
    EXPECT(r, strstr(dt_ctx_error(m.ctx), "sets of different numbers of rows") != NULL);
    EXPECT(r, dt_trainer_evaluate(t, &m.desc.data, 3 + r->index, NULL) == DT_ERROR_INVALID);
    EXPECT(r, strstr(dt_ctx_error(m.ctx), "batches of different sizes") != NULL);
    EXPECT(r, dt_trainer_evaluate(t, &m.desc.data, -r->index, NULL) == DT_ERROR_INVALID);
    EXPECT(r, strstr(dt_ctx_error(m.ctx), "batches of different sizes") != NULL);
    EXPECT(r, !dt_trainer_evaluate(t, &m.desc.data, 3, &report) && report.samples == EVAL_ROWS);
    dt_ctx_destroy(m.ctx);
}

TEST(what_one_rank_cannot_evaluate_ends_the_evaluation_on_all) {
    static const eval_mesh meshes[] = {{2, "cpu", .batch = 3},
                                       {2, "cpu", EVAL_ZERO(1), .batch = 3, .averaged = true},
                                       {2, "cpu", EVAL_ZERO(3), .batch = 3},
                                       {2, "cpu", .parallel = {.pipeline = 2}, .batch = 3}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        job *j = job_new(2, &meshes[i]);
        REQUIRE(j);
        CHECK_TEXT(job_run(j, eval_rank_fails), "mesh %zu", i);
        job_free(j);
    }
}

/* ---- what is not finite */

/* The middle layer overflows for row 16. Rank 1 has it in the third batch of an evaluation and in
 * the first one of a step. */
static void eval_rank_nan(rank *r) {
    const eval_mesh *mesh = r->job->arg;
    eval_model m;
    dt_trainer *t = NULL;
    dt_train_report report;
    EXPECT(r, eval_make(&m, mesh, r->comm));
    dt_tensor h = dt_nn_linear(m.x, "first", EVAL_SIZE);
    h = dt_nn_linear(dt_exp(h), "second", EVAL_SIZE);
    for (int i = 0; i < EVAL_ROWS * EVAL_SIZE; i++)
        m.rows[i] = i / EVAL_SIZE == 16 ? 1e9f : 1e-4f;
    m.desc.loss = dt_mse(dt_add(h, m.y), m.x);
    m.desc.no_shuffle = true;
    m.desc.batch = EVAL_ROWS;
    EXPECT_TEXT(r, !dt_trainer_create(m.graph, &m.desc, &t), "%s", dt_ctx_error(m.ctx));
    for (int i = 0; i < 2; i++) {
        EXPECT(r, dt_trainer_evaluate(t, &m.desc.data, 3, &report) == DT_ERROR_NUMERIC);
        EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "op exp ") && report.samples == EVAL_ROWS, "%s",
                    dt_ctx_error(m.ctx));
        EXPECT(r, dt_trainer_step(t, NULL) == DT_ERROR_NUMERIC);
        EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "op exp "), "%s", dt_ctx_error(m.ctx));
    }
    dt_ctx_destroy(m.ctx);
}

TEST(the_op_that_made_a_nan_is_named_with_zero) {
    static const eval_mesh meshes[] = {
        {.ranks = 1, .devices = "cpu:2"}, {1, "cpu:2", EVAL_ZERO(2)}, {1, "cpu:3", EVAL_ZERO(3)},
        {2, "cpu", EVAL_ZERO(2)},         {2, "cpu", EVAL_ZERO(3)},   {2, "cpu:2", EVAL_ZERO(3)}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        job *j = job_new(meshes[i].ranks, &meshes[i]);
        REQUIRE(j);
        if (!job_run(j, eval_rank_nan))
            CHECK_TEXT(false, "mesh %zu", i);
        job_free(j);
    }
}
