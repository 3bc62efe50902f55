/* Fixed slices (.parallel.tensor_slices): the same bits on any number of tensor ranks that divides
 * them. */
#include "train/train_model.h"

#include "parallel/team_stack.h"

typedef struct slices_run {
    double out[TEAM_STEPS + 1];
    uint64_t hash;
} slices_run;

static bool slices_equal(const slices_run *a, const slices_run *b) {
    return a->hash == b->hash && a->hash && !memcmp(a->out, b->out, sizeof a->out);
}

TEST(random_stacks_in_four_slices_have_the_same_bits_on_one_two_and_four_devices) {
    for (uint32_t seed = 1; seed <= 16; seed++) {
        const stack s = stack_of(seed);
        team_grid grid = {.tensor_ranks = 4, .rows = s.rows, .batch_slices = 1 + (int)(seed % 3)};
        slices_run want, got, two;
        bool fine = stack_run(&s, &grid, want.out, &want.hash);
        grid.slices = 4;
        for (grid.tensor_ranks = 1; grid.tensor_ranks <= 4 && fine; grid.tensor_ranks *= 2) {
            fine = stack_run(&s, &grid, got.out, &got.hash);
            CHECK_TEXT(slices_equal(&got, &want), "stack %u, %d tensor ranks", seed,
                       grid.tensor_ranks);
        }
        grid.tensor_ranks = 2;
        grid.replicas = grid.batch_slices > 1 ? 2 : 1;
        fine = fine && stack_run(&s, &grid, got.out, &got.hash);
        grid.slices = 2;
        fine = fine && stack_run(&s, &grid, two.out, &two.hash);
        CHECK_TEXT(slices_equal(&got, &want), "stack %u, %d tensor groups", seed, grid.replicas);
        CHECK_TEXT(two.hash != want.hash, "stack %u: two slices round like four", seed);
        if (!CHECK_TEXT(fine && test_now.failures < 3, "stack %u", seed))
            return;
    }
}

/* ---- fixed models: steps, a file, steps of another grid */

static bool slices_open(team_model *m, int kind, const team_grid *grid, dt_trainer **t,
                        dt_dataset *data) {
    static const dt_optim_desc adam = {.kind = DT_OPTIM_ADAMW,
                                       .lr = 0.01,
                                       .clip_norm = 0.5,
                                       .average = {.kind = DT_AVERAGE_EMA, .decay = 0.9}};
    char devices[16];
    if (!CHECK_TEXT(team_make(m, kind, false), "made"))
        return false;
    dt_trainer_desc d = team_desc(m, &adam);
    team_grid_to(grid, &d, devices);
    *data = d.data;
    return CHECK_TEXT(!dt_trainer_create(m->graph, &d, t),
                      "kind %d, %d tensor ranks in %d slices: %s", kind, grid->tensor_ranks,
                      grid->slices, dt_ctx_error(m->ctx));
}

static uint64_t slices_go_on(int kind, const team_grid *first, const team_grid *second,
                             double *loss) {
    const char *path = "build/slices_state";
    uint64_t hash = 0;
    for (int k = 0; k < 2; k++) {
        team_model m;
        dt_trainer *t;
        dt_dataset data;
        dt_train_report r = {0};
        if (!slices_open(&m, kind, k ? second : first, &t, &data))
            return 0;
        dt_result result = k ? dt_trainer_load(t, path) : DT_OK;
        for (int i = 0; i < 3 && !result; i++)
            result = dt_trainer_step(t, &r);
        *loss = r.loss;
        if (!result)
            result = k ? dt_store_state_hash(dt_trainer_store(t), &hash) : dt_trainer_save(t, path);
        CHECK_TEXT(!result, "kind %d: %s", kind, dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
    return hash;
}

static void slices_same(int kind, int slices, bool rows, int accumulate) {
    team_grid first = {.tensor_ranks = slices, .rows = rows, .accumulate = accumulate},
              second = first;
    double want_loss, loss;
    const uint64_t want = slices_go_on(kind, &first, &second, &want_loss);
    first.slices = second.slices = slices;
    for (int tensor_ranks = 1; tensor_ranks <= slices && want; tensor_ranks++) {
        if (slices % tensor_ranks)
            continue;
        second.tensor_ranks = tensor_ranks;
        const uint64_t got = slices_go_on(kind, &first, &second, &loss);
        CHECK_TEXT(got == want && !memcmp(&loss, &want_loss, sizeof loss),
                   "kind %d, %d slices, %d tensor ranks: %.17g, not %.17g", kind, slices,
                   tensor_ranks, loss, want_loss);
    }
    CHECK(want != 0);
}

TEST(a_checkpoint_of_slices_resumes_on_any_number_of_devices_with_the_same_bits) {
    for (int kind = 0; kind < TEAM_LAST; kind++) {
        if (kind != TEAM_KINDS)
            slices_same(kind, 4, kind % 2, kind == TEAM_BLOCKS ? 3 : 1);
    }
    slices_same(TEAM_MLP, 6, false, 1);
    slices_same(TEAM_GATED, 3, true, 2);
}

TEST(slices_report_the_number_of_devices_that_have_them) {
    team_model m;
    dt_trainer *t;
    dt_dataset data;
    dt_trainer_info info;
    const team_grid grid = {.tensor_ranks = 2, .slices = 4, .replicas = 2, .batch_slices = 2};
    if (slices_open(&m, TEAM_BLOCKS, &grid, &t, &data)) {
        dt_trainer_get_info(t, &info);
        CHECK(info.tensor_ranks == 2 && info.replicas == 2);
    }
    dt_ctx_destroy(m.ctx);
}

/* ---- what a log says, and what is kept of a model that is refused */

typedef struct slices_seen {
    char text[4096];
    int64_t bytes; /* that the context has */
} slices_seen;

static void slices_log(void *user, dt_log_level level, const char *message) {
    slices_seen *seen = user;
    const size_t at = strlen(seen->text);
    (void)level;
    snprintf(seen->text + at, sizeof seen->text - at, "%s\n", message);
}

static void *slices_alloc(void *user, size_t bytes, size_t align) {
    ((slices_seen *)user)->bytes += (int64_t)bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void slices_free(void *user, void *memory, size_t bytes) {
    ((slices_seen *)user)->bytes -= memory ? (int64_t)bytes : 0;
    free(memory);
}

/* A pair of layers of 8 hidden units, created twice; kept: bytes that the second call left. */
static dt_result slices_pair(dt_trainer_desc d, slices_seen *seen, int64_t *kept) {
    static const dt_linear_desc up = {.tensor = DT_TENSOR_COLUMN}, down = {.tensor = DT_TENSOR_ROW};
    static const float data[8][4];
    const dt_ctx_desc desc = {.no_vulkan = true,
                              .threads = 1,
                              .logger = {slices_log, seen},
                              .allocator = {slices_alloc, slices_free, seen}};
    dt_ctx *ctx;
    dt_graph *g;
    dt_trainer *t;
    if (dt_ctx_create(&desc, &ctx) || dt_graph_create(ctx, &g))
        return DT_ERROR_MEMORY;
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(4));
    dt_tensor y = dt_nn_linear_with(dt_relu(dt_nn_linear_with(x, "up", 8, &up)), "down", 4, &down);
    d.loss = dt_mse(y, x);
    d.batch = 4;
    d.data = (dt_dataset){.rows = 8, .columns = {{.input = x, .data = data, .dtype = DT_F32}}};
    dt_result result = dt_trainer_create(g, &d, &t);
    const int64_t once = seen->bytes;
    if (result)
        result = dt_trainer_create(g, &d, &t);
    *kept = seen->bytes - once;
    dt_ctx_destroy(ctx);
    return result;
}

TEST(log_of_slices_names_the_device_of_each) {
    slices_seen seen = {{0}, 0};
    int64_t kept;
    const dt_trainer_desc d = {
        .devices = "cpu:2", .parallel.tensor = 2, .parallel.tensor_slices = 4};
    CHECK(!slices_pair(d, &seen, &kept));
    CHECK_TEXT(strstr(seen.text, "tensor rank 1 on device 0,") &&
                   strstr(seen.text, "tensor rank 2 on device 1,") &&
                   strstr(seen.text, "tensor rank 3 on device 1,"),
               "%s", seen.text);
}

TEST(refused_tensor_ranks_keep_no_memory_with_stages_and_without) {
    for (int stages = 0; stages <= 2; stages += 2) {
        slices_seen seen = {{0}, 0};
        int64_t kept = 0;
        const dt_trainer_desc d = {.devices = stages ? "cpu:6" : "cpu:3",
                                   .parallel.tensor = 3,
                                   .parallel.pipeline = stages};
        CHECK(slices_pair(d, &seen, &kept) == DT_ERROR_INVALID);
        CHECK_TEXT(kept == 0, "%d stages: %d bytes", stages, (int)kept);
    }
}

TEST(slices_refuse_stages_and_zero) {
    const dt_trainer_desc d[2] = {
        {.devices = "cpu:2", .parallel.tensor_slices = 4, .parallel.pipeline = 2},
        {.devices = "cpu:2", .parallel.tensor_slices = 4, .parallel.zero_stage = 1}};
    for (int i = 0; i < 2; i++) {
        slices_seen seen = {{0}, 0};
        int64_t kept = 0;
        CHECK(slices_pair(d[i], &seen, &kept) == DT_ERROR_UNSUPPORTED && kept == 0);
        CHECK_TEXT(strstr(seen.text, i ? ".parallel.zero_stage" : ".parallel.pipeline"), "%s",
                   seen.text);
    }
}
