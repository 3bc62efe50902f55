/* Memory that runs out while a trainer is made, at every single allocation, for each way of sharing
 * a model out: the call says so, nothing is left, and with memory the same bits come. */
#include "train_model.h"

#include <stdatomic.h>

typedef struct purse { /* threads of a trainer allocate too */
    _Atomic int64_t bytes, left;
} purse;

static void *purse_alloc(void *user, size_t bytes, size_t align) {
    purse *p = user;
    if (atomic_fetch_sub(&p->left, 1) <= 0)
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
    int pipeline, shard_state;
    const char *devices; /* NULL: two CPUs */
    dt_pipeline_schedule schedule;
    dt_train_mode mode;
    bool sync;
    int tensor;
} memory_case;

/* With so many allocations for the trainer; whether they were enough. */
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
    d.pipeline = c->pipeline;
    d.schedule = c->schedule;
    d.shard_state = c->shard_state;
    d.mode = c->mode;
    d.tensor = c->tensor;
    const int64_t before = atomic_load(&p.bytes);
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
        CHECK(allocations % 16 || dt_trainer_create(m.graph, &d, &t) == DT_OK);
    }
    if (t)
        CHECK(dt_trainer_step(t, NULL) == DT_OK &&
              dt_store_state_hash(dt_trainer_store(t), hash) == DT_OK);
    dt_ctx_destroy(m.ctx);
    CHECK_TEXT(atomic_load(&p.bytes) == 0, "%s, %d allocations: %d bytes are left", c->what,
               (int)allocations, (int)atomic_load(&p.bytes));
    return enough;
}

TEST(a_trainer_that_runs_out_of_memory_while_it_is_made_says_so_and_leaves_nothing) {
    const memory_case cases[] = {
        {.what = "replicas"},
        {.what = "a pipeline", .pipeline = 2},
        {.what = "a split pipeline", .pipeline = 2, .schedule = DT_PIPELINE_ZERO_BUBBLE},
        {.what = "two pipelines", .pipeline = 2, .devices = "cpu:4"},
        {.what = "a shared state", .shard_state = DT_SHARD_OPTIMIZER},
        {.what = "shared parameters", .shard_state = DT_SHARD_PARAMETERS},
        {.what = "local steps", .mode = DT_TRAIN_LOCAL},
        {.what = "batch norm of all", .sync = true},
        {.what = "members", .tensor = 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t want = 0;
        CHECK(memory_try(&cases[i], INT64_MAX / 2, &want) && want);
        for (int64_t n = 0, enough = 0; !enough && n < 20000; n++) {
            uint64_t hash = want;
            enough = memory_try(&cases[i], n, &hash);
            CHECK(hash == want);
        }
    }
}
