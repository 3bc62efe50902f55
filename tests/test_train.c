/* Training by several replicas: the same bits whatever their number, what checkpoints keep, and what
 * goes wrong. */
#include "train_model.h"

/* ---- the same bits */

typedef struct bits_case {
    bool conv;
    const char *devices;
    int shards, batch, accumulate, steps;
    dt_tail tail;
} bits_case;

static uint64_t bits_hash(const bits_case *c, double *loss) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report r = {0};
    uint64_t hash = 0;
    dt_ctx_desc ctx = {.no_vulkan = !strstr(c->devices, "vulkan")};
    if (!CHECK_TEXT(train_model_make(&m, &ctx, c->conv), "the model"))
        return 0;
    dt_trainer_desc d = train_desc(&m);
    d.devices = c->devices;
    d.shards = c->shards;
    d.batch = c->batch ? c->batch : d.batch;
    d.accumulate = c->accumulate;
    d.tail = c->tail;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < c->steps && !result; i++)
        result = dt_trainer_step(trainer, &r);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(trainer), &hash);
    CHECK_TEXT(result == DT_OK, "%s, shards %d: %s", c->devices, c->shards, dt_ctx_error(m.ctx));
    if (loss)
        *loss = r.loss;
    dt_ctx_destroy(m.ctx);
    return hash;
}

static void bits_equal(bits_case c, const char *const *devices, int count) {
    c.devices = devices[0];
    uint64_t want = bits_hash(&c, NULL);
    for (int i = 1; i < count; i++) {
        c.devices = devices[i];
        uint64_t got = bits_hash(&c, NULL);
        CHECK_TEXT(got == want && want,
                   "%s against %s, %d shards, batch %d, %d parts: %016llx %016llx", devices[i],
                   devices[0], c.shards, c.batch, c.accumulate, (unsigned long long)got,
                   (unsigned long long)want);
    }
}

static const char *const cpus[] = {"cpu", "cpu:2", "cpu:3", "cpu:4", "cpu:8"};

TEST(replicas_one_to_eight_give_the_same_bits) {
    for (int conv = 0; conv < 2; conv++)
        bits_equal((bits_case){.conv = conv, .shards = 8, .batch = 37, .steps = 9}, cpus, 5);
}
