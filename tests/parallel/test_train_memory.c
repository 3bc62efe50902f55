/* Memory that runs out while a trainer is made, at every single allocation, for each way to split a
 * model. The call reports it, nothing is left, and with memory the same bits come. */
#include "train/train_model.h"

#include <stdatomic.h>

typedef struct purse { /* threads of a trainer allocate too */
    _Atomic int64_t bytes, left;
    bool once; /* one allocation fails, and not all after it */
} purse;

static void *purse_alloc(void *user, size_t bytes, size_t align) {
    purse *p = user;
    const int64_t left = atomic_fetch_sub(&p->left, 1);
    if (p->once ? left == 0 : left <= 0)
        return NULL;
    atomic_fetch_add(&p->bytes, (int64_t)bytes);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void purse_free(void *user, void *memory, size_t bytes) {
    atomic_fetch_sub(&((purse *)user)->bytes, (int64_t)bytes);
    free(memory);
}

typedef struct memory_case {
    const char *what;
    int pipeline, zero_stage;
    const char *devices; /* NULL: two CPUs */
    dt_pipeline_schedule schedule;
    dt_train_mode mode;
    bool sync;
    int tensor, replicas, shard_degree;
} memory_case;

/* With that number of allocations for the trainer; whether they were enough. */
static bool memory_try(const memory_case *c, int64_t allocations, uint64_t *hash) {
    purse p = {.left = INT64_MAX};
    train_model m;
    dt_trainer *t = NULL;
    const dt_ctx_desc ctx = {.no_vulkan = true, .allocator = {purse_alloc, purse_free, &p}};
    if (!CHECK_TEXT(train_model_make(&m, &ctx,
                                     c->sync     ? TRAIN_SYNC
                                     : c->tensor ? TRAIN_PARTS
                                                 : 1),
                    "the model"))
        return true;
    dt_trainer_desc d = train_desc(&m);
    d.devices = c->devices ? c->devices : "cpu:2";
    d.accumulate = c->sync ? 1 : 3;
    d.parallel.pipeline = c->pipeline;
    d.parallel.schedule = c->schedule;
    d.parallel.zero_stage = c->zero_stage;
    d.parallel.shard_degree = c->shard_degree;
    d.mode = c->mode;
    d.parallel.tensor = c->tensor;
    d.parallel.replicas = c->replicas;
    const int64_t before = atomic_load(&p.bytes);
    p.once = allocations % 2;
    atomic_store(&p.left, allocations);
    const dt_result result = dt_trainer_create(m.graph, &d, &t);
    const bool enough = atomic_load(&p.left) >= 0;
    atomic_store(&p.left, INT64_MAX);
    CHECK_TEXT(enough ? !result && t : !t || !result, "%s, %d allocations: %s", c->what,
               (int)allocations, dt_ctx_error(m.ctx));
    CHECK_TEXT(!result || result == DT_ERROR_MEMORY, "%s, %d allocations: %d, %s", c->what,
               (int)allocations, (int)result, dt_ctx_error(m.ctx));
    if (!t) { /* and then it can be made */
        CHECK_TEXT(atomic_load(&p.bytes) <= before + 65536, "%s, %d allocations: %d bytes stay",
                   c->what, (int)allocations, (int)(atomic_load(&p.bytes) - before));
        CHECK(allocations % 8 || dt_trainer_create(m.graph, &d, &t) == DT_OK);
    }
    if (t)
        CHECK(dt_trainer_step(t, NULL) == DT_OK &&
              dt_store_state_hash(dt_trainer_store(t), hash) == DT_OK);
    dt_ctx_destroy(m.ctx);
    CHECK_TEXT(atomic_load(&p.bytes) == 0, "%s, %d allocations: %d bytes are left", c->what,
               (int)allocations, (int)atomic_load(&p.bytes));
    return enough;
}

TEST(a_trainer_created_without_memory_reports_it_and_leaks_nothing) {
    const memory_case cases[] = {
        {.what = "replicas"},
        {.what = "a pipeline", .pipeline = 2},
        {.what = "a split pipeline", .pipeline = 2, .schedule = DT_PIPELINE_ZERO_BUBBLE},
        {.what = "two pipelines", .pipeline = 2, .devices = "cpu:4"},
        {.what = "a shared state", .zero_stage = DT_SHARD_OPTIMIZER},
        {.what = "shared parameters", .zero_stage = DT_SHARD_PARAMETERS},
        {.what = "local steps", .mode = DT_TRAIN_LOCAL},
        {.what = "batch norm of all", .sync = true},
        {.what = "tensor ranks", .tensor = 2},
        {.what = "tensor groups", .tensor = 2, .replicas = 2, .devices = "cpu:4"},
        {.what = "stages of tensor ranks", .pipeline = 2, .tensor = 2, .devices = "cpu:4"},
        {.what = "pipelines that share the state",
         .pipeline = 2,
         .devices = "cpu:4",
         .zero_stage = DT_SHARD_OPTIMIZER},
        {.what = "tensor groups of stages that share it",
         .pipeline = 2,
         .tensor = 2,
         .replicas = 2,
         .devices = "cpu:8",
         .zero_stage = DT_SHARD_OPTIMIZER},
        {.what = "pipelines that share gradients",
         .pipeline = 2,
         .devices = "cpu:4",
         .zero_stage = DT_SHARD_GRADIENTS},
        {.what = "tensor groups that share parameters",
         .tensor = 2,
         .replicas = 2,
         .devices = "cpu:4",
         .zero_stage = DT_SHARD_PARAMETERS},
        {.what = "two shard groups",
         .devices = "cpu:4",
         .zero_stage = DT_SHARD_PARAMETERS,
         .shard_degree = 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t want = 0;
        CHECK(memory_try(&cases[i], INT64_MAX / 2, &want) && want);
        for (int64_t n = 0, enough = 0; !enough && n < 20000; n++) {
            uint64_t hash = want;
            if (!test_takes(n + (int64_t)i, 3, 17))
                continue;
            enough = memory_try(&cases[i], n, &hash);
            CHECK(hash == want);
        }
    }
}

/* ---- updates on the host: of a device that stays open, so that its kernels are compiled once */

/* A trainer with that number of allocations, and one step of it; whether they were enough. */
static bool offload_try(train_model *m, purse *p, int64_t allocations, uint64_t *hash) {
    dt_trainer *t = NULL;
    dt_trainer_desc d = train_desc(m);
    d.devices = "vulkan:0";
    d.parallel.zero_stage = DT_SHARD_PARAMETERS;
    d.parallel.offload = true;
    p->once = allocations % 2;
    atomic_store(&p->left, allocations);
    const dt_result result = dt_trainer_create(m->graph, &d, &t);
    const bool enough = atomic_load(&p->left) >= 0;
    atomic_store(&p->left, INT64_MAX);
    CHECK_TEXT(enough ? !result && t : !t || !result, "%d allocations: %s", (int)allocations,
               dt_ctx_error(m->ctx));
    CHECK_TEXT(!result || result == DT_ERROR_MEMORY, "%d allocations: %d, %s", (int)allocations,
               (int)result, dt_ctx_error(m->ctx));
    if (t)
        CHECK(dt_trainer_step(t, NULL) == DT_OK &&
              dt_store_state_hash(dt_trainer_store(t), hash) == DT_OK);
    dt_trainer_destroy(t);
    return enough;
}

TEST(a_trainer_with_host_updates_created_without_memory_leaks_nothing) {
    purse p = {.left = INT64_MAX};
    const dt_ctx_desc ctx = {.threads = 1, .allocator = {purse_alloc, purse_free, &p}};
    train_model m;
    dt_store *keep = NULL;
    uint64_t want = 0;
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    REQUIRE(train_model_make(&m, &ctx, 0));
    REQUIRE(!dt_store_create(m.graph, &(dt_store_desc){.device = "vulkan:0"}, &keep));
    CHECK(offload_try(&m, &p, INT64_MAX / 2, &want) && want);
    const int64_t most = atomic_load(&p.bytes);
    for (int64_t n = 0, enough = 0; !enough && n < 20000; n++) {
        uint64_t hash = want;
        if (!test_takes(n, 7, 7))
            continue;
        enough = offload_try(&m, &p, n, &hash);
        CHECK(hash == want);
        CHECK_TEXT(atomic_load(&p.bytes) <= most, "%d allocations: %d bytes stay", (int)n,
                   (int)(atomic_load(&p.bytes) - most));
    }
    dt_ctx_destroy(m.ctx);
    CHECK_TEXT(atomic_load(&p.bytes) == 0, "%d bytes are left", (int)atomic_load(&p.bytes));
}
