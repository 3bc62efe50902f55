/* Models that are larger than a rank. Parameters, gradients and moments take 3 times what a rank's
 * limit of address space leaves it. Ranks create such a model, train, evaluate, predict, save by
 * parts, and go on, with the bits of one process without a limit. */
#include "parallel/train_processes.h"

#if defined __linux__ && !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
#include <malloc.h>
#include <sys/resource.h>

enum {
    LIMIT_SIZE = 512,
    LIMIT_LAYERS = 32,
    LIMIT_RANKS = 8,
    LIMIT_PARAMS = LIMIT_LAYERS * LIMIT_SIZE * (LIMIT_SIZE + 1),
    LIMIT_STATE = 6 * 4 * LIMIT_PARAMS, /* values, gradients, three moments, averages */
    LIMIT_BYTES = LIMIT_STATE / 3
};

typedef struct limit_case {
    const char *what;
    dt_parallel_desc mesh;
} limit_case;

/* What one process found, and what ranks found. */
enum { LIMIT_LOSS, LIMIT_PREDICTION, LIMIT_FOUND = 4 };

typedef struct limit_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_optim_desc optim;
    dt_trainer_desc desc;
    dt_tensor y;
    float out[2 * LIMIT_RANKS * LIMIT_SIZE];
    float rows[2 * LIMIT_RANKS * LIMIT_SIZE];
} limit_model;

static bool limit_make(limit_model *m) {
    char name[16];
    if (dt_ctx_create(&one_thread, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    const dt_tensor x = dt_input(m->graph, "x", DT_F32, dt_dims(LIMIT_SIZE));
    dt_tensor h = x;
    for (int i = 0; i < LIMIT_LAYERS; i++) {
        snprintf(name, sizeof name, "layer%d", i);
        h = dt_tanh(dt_nn_linear(h, name, LIMIT_SIZE));
    }
    m->y = h;
    for (int i = 0; i < 2 * LIMIT_RANKS * LIMIT_SIZE; i++)
        m->rows[i] = (float)(i * 37 % 101) / 101.0f - 0.5f;
    m->optim =
        (dt_optim_desc){.kind = DT_OPTIM_AMSGRAD, .lr = 1e-3, .average = {.kind = DT_AVERAGE_EMA}};
    m->desc = (dt_trainer_desc){
        .loss = dt_mse(h, x),
        .optim = &m->optim,
        .data = {.rows = 2 * LIMIT_RANKS, .columns = {{.input = x, .data = m->rows}}},
        .batch = LIMIT_RANKS};
    return true;
}

/* What the rank has by now, and LIMIT_BYTES more, of which its heap may have some. One heap: others
 * reserve much that is not used. */
static bool limit_set(void) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    const bool read = f && fscanf(f, "%lu", &pages) == 1;
    if (f)
        fclose(f);
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 16);
    const rlim_t most = pages * (rlim_t)sysconf(_SC_PAGESIZE) - mallinfo2().fordblks + LIMIT_BYTES;
    return read && !setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
}

/* The loss over the set, by its bits, and what the model makes of it. */
static dt_result limit_look(limit_model *m, dt_trainer *t, uint64_t found[2]) {
    dt_train_report report;
    const dt_dataset *data = &m->desc.data;
    dt_result result = dt_trainer_evaluate(t, data, 1, &report);
    if (!result)
        result = dt_trainer_predict(t, data, m->y, 1, m->out, sizeof m->out);
    memcpy(&found[LIMIT_LOSS], &report.loss, sizeof report.loss);
    for (size_t i = 0; i < sizeof m->out / sizeof *m->out; i++) {
        uint32_t bits;
        memcpy(&bits, &m->out[i], sizeof bits);
        found[LIMIT_PREDICTION] = (found[LIMIT_PREDICTION] ^ bits) * 1099511628211u;
    }
    return result;
}

/* Step `which` of a case, from the file `load` or from the beginning. No comm: on one device. */
static dt_result limit_train(const limit_case *c, int which, dt_comm *comm, const char *load,
                             const char *save, rank *r) {
    static limit_model m;
    dt_trainer *t = NULL;
    if (!limit_make(&m))
        return DT_ERROR_MEMORY;
    if (comm)
        m.desc.parallel = c->mesh;
    m.desc.parallel.batch_slices = c->mesh.batch_slices;
    m.desc.parallel.bucket_bytes = 1 << 19;
    m.desc.comm = comm;
    m.desc.devices = "cpu";
    m.desc.checkpoint.sharded = comm && !which;
    dt_result result = dt_trainer_create(m.graph, &m.desc, &t);
    if (!result && load)
        result = dt_trainer_load(t, load);
    if (!result)
        result = dt_trainer_step(t, NULL);
    if (!result)
        result = limit_look(&m, t, &r->numbers[2 * which]);
    if (!result)
        result = dt_trainer_save(t, save);
    snprintf(r->text, sizeof r->text, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return result;
}

static const char limit_alone_1[] = "build/limit_alone_1", limit_alone_2[] = "build/limit_alone_2",
                  limit_parts[] = "build/limit_parts", limit_ranks_2[] = "build/limit_ranks_2";

/* One process without a limit. */
static void limit_alone(rank *r) {
    const limit_case *c = r->job->arg;
    dt_result result = limit_train(c, 0, NULL, NULL, limit_alone_1, r);
    if (!result)
        result = limit_train(c, 1, NULL, limit_alone_1, limit_alone_2, r);
    EXPECT_TEXT(r, !result, "%s", r->text);
}

static void limit_rank(rank *r) {
    const limit_case *c = r->job->arg;
    if (!EXPECT(r, limit_set()))
        return;
    dt_result result = limit_train(c, 0, r->comm, NULL, limit_parts, r);
    if (EXPECT_TEXT(r, !result, "the first step: %s", r->text))
        result = limit_train(c, 1, r->comm, limit_parts, limit_ranks_2, r);
    EXPECT_TEXT(r, !result, "the second step: %s", r->text);
    if (r->index == 0) /* alone it does not fit */
        EXPECT(r, limit_train(c, 0, NULL, NULL, limit_alone_1, r) == DT_ERROR_MEMORY);
}

static bool limit_job(const limit_case *c, int ranks, void (*run)(rank *r),
                      uint64_t found[LIMIT_FOUND]) {
    job *j = job_new(ranks, c);
    if (j)
        j->tcp = true;
    const bool fine = j && job_run(j, run);
    if (fine)
        memcpy(found, j->at[ranks - 1].numbers, LIMIT_FOUND * sizeof *found);
    job_free(j);
    return CHECK_TEXT(fine, "%s", c->what);
}

static bool limit_same(const char *a, const char *b) {
    static char x[1 << 16], y[1 << 16];
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    bool same = f && g;
    for (size_t n = 1; same && n;) {
        n = fread(x, 1, sizeof x, f);
        same = fread(y, 1, sizeof y, g) == n && !memcmp(x, y, n);
    }
    if (f)
        fclose(f);
    if (g)
        fclose(g);
    return same;
}

TEST(a_model_of_3_times_a_ranks_memory_trains_validates_saves_and_resumes) {
    static const limit_case cases[] = {
        {"a pipeline", {.pipeline = LIMIT_RANKS, .batch_slices = 1}},
        {"ZeRO-3", {.zero_stage = DT_SHARD_PARAMETERS, .batch_slices = LIMIT_RANKS}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const limit_case *c = &cases[i];
        uint64_t one[LIMIT_FOUND], all[LIMIT_FOUND];
        if (limit_job(c, 1, limit_alone, one) && limit_job(c, LIMIT_RANKS, limit_rank, all)) {
            CHECK_TEXT(!memcmp(one, all, sizeof one), "%s: another loss or prediction", c->what);
            CHECK_TEXT(limit_same(limit_alone_2, limit_ranks_2), "%s: other bits", c->what);
        }
        remove(limit_alone_1);
        remove(limit_alone_2);
        remove(limit_ranks_2);
        CHECK(!system("rm -rf build/limit_parts"));
    }
}
#endif
