/* Gradients in bf16 between ranks (DT_COMPRESS_BF16). Each rank's sum is rounded once, ranks'
 * values are summed in float32, and the sum is rounded once. The oracle makes these sums of the
 * gradients of single batch slices. All transports have the same bits, and so has ZeRO; and what is
 * refused. */
#include "parallel/train_processes.h"
#include "train/train_modes.h"

#include <pthread.h>

enum {
    WIRE_SLICES = 8,
    WIRE_EACH = 4, /* rows of a slice */
    WIRE_WIDTH = TRAIN_SIDE * TRAIN_SIDE,
    WIRE_VALUES = TRAIN_CLASSES * (WIRE_WIDTH + 1)
};

typedef struct wire_case {
    int ranks;
    const char *devices[RANKS_MAX]; /* NULL: "cpu" */
    int replicas[RANKS_MAX];        /* of each rank; 0: 1 */
    size_t bucket_bytes;
} wire_case;

static const wire_case wire_cases[] = {
    {.ranks = 2},
    {.ranks = 2, .bucket_bytes = 1024},
    {.ranks = 2, .devices = {"cpu:3"}, .replicas = {3}}, /* slices 0 to 5: two subtrees */
    {.ranks = 2, .devices = {"cpu:2", "cpu:2"}, .replicas = {2, 2}},
    {.ranks = 3}, /* slices 2 to 4, and 5 to 7: two subtrees each */
    {.ranks = 4},
    {.ranks = 8},
};
enum { WIRE_CASES = sizeof wire_cases / sizeof wire_cases[0] };

/* Weights that begin at 0, and a rate of 1: after a step they are the gradient, negated. */
static bool wire_model(train_model *m, int row) {
    *m = (train_model){.adam = {.kind = DT_OPTIM_SGD, .lr = 1}};
    if (dt_ctx_create(&one_thread, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(WIRE_WIDTH));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    m->logits = dt_linear(
        m->x, dt_param(m->graph, "weight", dt_dims(TRAIN_CLASSES, WIRE_WIDTH), (dt_init){0}),
        dt_param(m->graph, "bias", dt_dims(TRAIN_CLASSES), (dt_init){0}));
    m->loss = dt_cross_entropy(m->logits, m->t, NULL);
    m->accuracy = dt_accuracy(m->logits, m->t);
    train_data_fill(&m->data);
    for (int i = 0; i < TRAIN_ROWS; i++)
        m->data.t[i] = (i * 7 + i / 3) % TRAIN_CLASSES;
    memmove(m->data.x, m->data.x + row * WIRE_WIDTH,
            (size_t)(TRAIN_ROWS - row) * WIRE_WIDTH * sizeof(float));
    memmove(m->data.t, m->data.t + row, (size_t)(TRAIN_ROWS - row) * sizeof m->data.t[0]);
    return dt_graph_error(m->graph) == NULL;
}

/* One step; c NULL: of one slice, whose first row is `row`. */
static dt_result wire_step(const wire_case *c, int index, dt_comm *comm, int row, float *values,
                           dt_trainer_info *info, char *text, size_t size) {
    train_model m;
    dt_trainer *t = NULL;
    if (!wire_model(&m, row))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = train_desc(&m);
    d.no_shuffle = true;
    d.batch = c ? WIRE_SLICES * WIRE_EACH : WIRE_EACH;
    d.comm = comm;
    d.devices = c && c->devices[index] ? c->devices[index] : "cpu";
    d.parallel.batch_slices = c ? WIRE_SLICES : 1;
    d.parallel.bucket_bytes = c ? c->bucket_bytes : 0;
    d.parallel.compress = DT_COMPRESS_BF16;
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    if (!result)
        result = dt_trainer_step(t, NULL);
    if (!result)
        train_values(t, values, WIRE_VALUES);
    dt_trainer_get_info(t, info);
    snprintf(text, size, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return result;
}

/* ---- the oracle */

static float wire_slices[WIRE_SLICES][WIRE_VALUES];

static bool wire_oracle_make(void) {
    for (int k = 0; k < WIRE_SLICES; k++) {
        dt_trainer_info info;
        char text[1000];
        const dt_result result =
            wire_step(NULL, 0, NULL, k * WIRE_EACH, wire_slices[k], &info, text, sizeof text);
        if (!CHECK_TEXT(!result && !info.wire_bytes, "slice %d: %s", k, text))
            return false;
        for (int i = 0; i < WIRE_VALUES; i++)
            wire_slices[k][i] /= WIRE_SLICES; /* a power of two: exact */
    }
    return true;
}

static float wire_round(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float wire_tree(const float *x, int count) {
    int left = 1;
    while (count > 1 && left * 2 < count)
        left *= 2;
    return count == 1 ? *x : wire_tree(x, left) + wire_tree(x + left, count - left);
}

/* Slices [first, end): subtrees of the tree over all, then a tree over these. */
static float wire_rank_sum(int first, int end, int value) {
    float sums[WIRE_SLICES], leaves[WIRE_SLICES];
    int count = 0;
    while (first < end) {
        int n = 1;
        while (first % (2 * n) == 0 && first + 2 * n <= end)
            n *= 2;
        for (int k = 0; k < n; k++)
            leaves[k] = wire_slices[first + k][value];
        sums[count++] = wire_tree(leaves, n);
        first += n;
    }
    return wire_tree(sums, count);
}

static float wire_want(const wire_case *c, int value) {
    float given[RANKS_MAX];
    int replicas = 0, before = 0;
    for (int r = 0; r < c->ranks; r++)
        replicas += c->replicas[r] ? c->replicas[r] : 1;
    for (int r = 0; r < c->ranks; r++) {
        const int after = before + (c->replicas[r] ? c->replicas[r] : 1);
        given[r] = wire_round(
            wire_rank_sum(WIRE_SLICES * before / replicas, WIRE_SLICES * after / replicas, value));
        before = after;
    }
    return wire_round(wire_tree(given, c->ranks));
}

static bool wire_check(const wire_case *c, const float *values, const char *where) {
    int wrong = 0, exact = 0;
    for (int i = 0; i < WIRE_VALUES; i++) {
        wrong += values[i] != wire_want(c, i);
        exact += values[i] == wire_rank_sum(0, WIRE_SLICES, i);
    }
    return CHECK_TEXT(!wrong && exact < WIRE_VALUES / 2,
                      "%d ranks, case %d, %s: %d of %d gradients are wrong, %d not rounded",
                      c->ranks, (int)(c - wire_cases), where, wrong, WIRE_VALUES, exact);
}

/* ---- bytes */

typedef struct wire_grid {
    bool compressed;
    uint64_t wire, gradient; /* gradient: of the model, in blocks of 256 elements */
    char text[1000];
} wire_grid;

static void wire_grid_rank(const train_mode *mode, dt_comm *comm, void *user) {
    wire_grid *g = user;
    static _Thread_local train_model m;
    dt_trainer *t = NULL;
    dt_trainer_info info;
    if (!train_model_make(&m, &one_thread, mode->kind))
        return;
    dt_trainer_desc d = train_desc(&m);
    train_mode_take(mode, comm, &d);
    d.parallel.compress = g->compressed ? DT_COMPRESS_BF16 : DT_COMPRESS_NONE;
    if (dt_trainer_create(m.graph, &d, &t))
        snprintf(g->text, sizeof g->text, "%s", dt_ctx_error(m.ctx));
    dt_trainer_get_info(t, &info);
    g->wire = info.wire_bytes;
    dt_store *s = dt_trainer_store(t);
    for (int i = 0; s && i < dt_store_param_count(s); i++) {
        dt_param_info p;
        dt_store_get_param(s, i, &p);
        g->gradient += 4 * ((p.elements + 255) / 256 * 256);
    }
    dt_ctx_destroy(m.ctx);
}

/* Both stages of two pipelines; one stage each, which no other rank has. */
TEST(a_grid_s_info_has_the_bytes_that_ranks_exchange) {
    static const train_mode modes[] = {
        {.name = "replicas", .devices = "cpu:2", .batch_slices = 2, .pipeline = 2, .ranks = 2},
        {.name = "stages", .devices = "cpu", .pipeline = 2, .ranks = 2}};
    for (int way = 0; way < 4; way++) {
        const train_mode *mode = &modes[way / 2];
        wire_grid all[MODE_RANKS] = {{.compressed = way % 2}, {.compressed = way % 2}};
        for (int i = train_mode_job(mode, wire_grid_rank, all, sizeof *all); i-- > 0;) {
            const uint64_t want = way > 1 ? 0 : all[i].gradient / (way % 2 ? 2 : 1);
            CHECK_TEXT(!all[i].text[0] && all[i].wire == want,
                       "%s: rank %d exchanges %d bytes of %d, not %d: %s", mode->name, i,
                       (int)all[i].wire, (int)all[i].gradient, (int)want, all[i].text);
        }
    }
}

/* ---- transports */

static void wire_rank(rank *r) {
    dt_trainer_info info;
    const dt_result result =
        wire_step(r->job->arg, r->index, r->comm, 0, r->values, &info, r->text, sizeof r->text);
    EXPECT_TEXT(r, !result, "%s", r->text);
    EXPECT_TEXT(r, info.gradient_bytes && info.wire_bytes == info.gradient_bytes / 2,
                "%d bytes of %d", (int)info.wire_bytes, (int)info.gradient_bytes);
}

static void wire_processes(const wire_case *c, bool tcp) {
    job *j = job_new(c->ranks, c);
    if (!j)
        return;
    j->tcp = tcp;
    bool fine = job_run(j, wire_rank);
    for (int r = 0; r < c->ranks && fine; r++)
        fine = wire_check(c, j->at[r].values, tcp ? "TCP" : "shared memory");
    job_free(j);
}

typedef struct wire_thread {
    const wire_case *c;
    int index;
    dt_comm *comm;
    dt_result result;
    float values[WIRE_VALUES];
    char text[1000];
} wire_thread;

static void *wire_thread_main(void *arg) {
    wire_thread *r = arg;
    dt_trainer_info info;
    r->result = wire_step(r->c, r->index, r->comm, 0, r->values, &info, r->text, sizeof r->text);
    return NULL;
}

static void wire_threads(const wire_case *c) {
    static wire_thread ranks[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    dt_comm *comms[RANKS_MAX];
    REQUIRE(!dt_comm_create_threads(NULL, c->ranks, comms));
    for (int i = 0; i < c->ranks; i++) {
        ranks[i] = (wire_thread){.c = c, .index = i, .comm = comms[i]};
        if (pthread_create(&threads[i], NULL, wire_thread_main, &ranks[i]))
            exit(1); /* others would wait for it */
    }
    for (int i = 0; i < c->ranks; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < c->ranks; i++) {
        if (CHECK_TEXT(!ranks[i].result, "%s", ranks[i].text))
            wire_check(c, ranks[i].values, "threads");
        dt_comm_destroy(comms[i]);
    }
}

TEST(gradients_in_bf16_are_rounded_once_for_each_rank_and_once_as_a_sum) {
    REQUIRE(wire_oracle_make());
    for (int i = 0; i < WIRE_CASES; i++) {
        wire_processes(&wire_cases[i], false);
        wire_processes(&wire_cases[i], true);
        wire_threads(&wire_cases[i]);
    }
}

/* ---- what does not change the bits */

typedef struct wire_way {
    const char *devices;
    int threads, zero_stage, shard_degree, pipeline;
    bool no_overlap;
    size_t bucket_bytes;
} wire_way;

/* Each rank has slices 2 r and 2 r + 1, or of three ranks two subtrees. */
static const wire_way wire_ways[] = {
    {.devices = "cpu"},
    {.devices = "cpu", .threads = 2},
    {.devices = "cpu", .no_overlap = true},
    {.devices = "cpu", .bucket_bytes = 1024},
    {.devices = "cpu:2"},
    {.devices = "cpu", .zero_stage = 1},
    {.devices = "cpu", .zero_stage = 2},
    {.devices = "cpu", .zero_stage = 2, .bucket_bytes = 1024},
    {.devices = "cpu", .zero_stage = 3},
    {.devices = "cpu:2", .zero_stage = 3},
    {.devices = "cpu:2", .zero_stage = 3, .shard_degree = 2},
    {.devices = "cpu:2", .pipeline = 2},
    {.devices = "cpu:2", .pipeline = 2, .zero_stage = 1},
    {.devices = "cpu:2", .pipeline = 2, .zero_stage = 2},
};
enum { WIRE_WAYS = sizeof wire_ways / sizeof wire_ways[0], WIRE_STEPS = 4 };

static dt_result wire_train(rank *r, const wire_way *way, dt_compress compress, bool resume,
                            step_record *record) {
    train_model m;
    dt_trainer *t = NULL;
    dt_train_report report;
    char path[96];
    if (!train_model_make(&m, &one_thread, 0))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = train_desc(&m);
    d.comm = r->comm;
    d.devices = way->devices;
    d.threads = way->threads;
    d.batch = 40; /* and a last batch of 30 */
    d.parallel.batch_slices = WIRE_SLICES;
    d.parallel.bucket_bytes = way->bucket_bytes;
    d.parallel.no_overlap = way->no_overlap;
    d.parallel.zero_stage = way->zero_stage;
    d.parallel.shard_degree = way->shard_degree;
    d.parallel.pipeline = way->pipeline;
    d.parallel.compress = compress;
    snprintf(path, sizeof path, "%s.state", r->job->rendezvous + strlen("file://"));
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    if (!result && resume)
        result = dt_trainer_load(t, path);
    for (int i = resume ? 2 : 0; i < WIRE_STEPS && !result; i++) {
        if (i == 2 && !resume)
            result = dt_trainer_save(t, path);
        if (!result)
            result = dt_trainer_step(t, &report);
    }
    if (!result)
        *record = (step_record){.hash = train_values_hash(t),
                                .step = report.step,
                                .loss = report.loss,
                                .norm = report.gradient_norm};
    snprintf(r->text, sizeof r->text, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    if (resume && !r->index)
        remove(path);
    return result;
}

static void wire_ways_rank(rank *r) {
    step_record exact, record;
    EXPECT_TEXT(r, !wire_train(r, &wire_ways[0], DT_COMPRESS_NONE, false, &exact), "%s", r->text);
    for (int i = 0; i < WIRE_WAYS; i++) {
        const bool resumes = i == 0 && r->job->count == 4;
        EXPECT_TEXT(r, !wire_train(r, &wire_ways[i], DT_COMPRESS_BF16, false, &record),
                    "way %d: %s", i, r->text);
        if (i == 0)
            r->records[0] = record;
        /* of three ranks with two replicas each others have other slices */
        if (r->job->count == 4 || !strcmp(wire_ways[i].devices, "cpu"))
            EXPECT_TEXT(r, record_equal(&record, &r->records[0]),
                        "way %d: hash %016llx, not %016llx; norm %.9g, not %.9g", i,
                        (unsigned long long)record.hash, (unsigned long long)r->records[0].hash,
                        record.norm, r->records[0].norm);
        if (resumes) {
            EXPECT_TEXT(r, !wire_train(r, &wire_ways[0], DT_COMPRESS_BF16, true, &record), "%s",
                        r->text);
            EXPECT(r, record_equal(&record, &r->records[0])); /* there is no error feedback */
        }
    }
    EXPECT(r, exact.hash != record.hash && fabs(exact.norm - record.norm) < 0.01 * exact.norm);
}

TEST(gradients_in_bf16_have_the_same_bits_with_zero_stages_pipelines_threads_and_after_a_resume) {
    for (int ranks = 3; ranks <= 4; ranks++) {
        job *j = job_new(ranks, NULL);
        if (!j)
            return;
        bool fine = job_run(j, wire_ways_rank);
        for (int i = 1; i < ranks && fine; i++)
            CHECK(record_equal(&j->at[0].records[0], &j->at[i].records[0]));
        job_free(j);
    }
}

/* ---- what is refused */

TEST(gradients_in_bf16_refuse_settings_that_they_cannot_be_combined_with) {
    static const struct {
        dt_train_mode mode;
        dt_parallel_desc parallel;
        const char *addresses, *says;
    } wrong[] = {
        {.parallel = {.compress = DT_COMPRESS_INT8},
         .says = ".parallel.compress = DT_COMPRESS_INT8 needs .mode = DT_TRAIN_LOCAL"},
        {.parallel = {.compress = DT_COMPRESS_TOPK},
         .says = ".parallel.compress = DT_COMPRESS_TOPK needs .mode = DT_TRAIN_LOCAL"},
        {.parallel = {.compress = DT_COMPRESS_BF16, .tensor = 2},
         .says =
             ".parallel.compress = DT_COMPRESS_BF16 cannot be combined with .parallel.tensor = 2"},
        {.mode = DT_TRAIN_SERVER,
         .parallel = {.compress = DT_COMPRESS_BF16},
         .addresses = "127.0.0.1:1",
         .says = ".parallel.compress = DT_COMPRESS_BF16 cannot be combined with .mode = "
                 "DT_TRAIN_SERVER"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        train_model m;
        dt_trainer *t;
        REQUIRE(train_model_make(&m, &one_thread, TRAIN_PARTS));
        dt_trainer_desc d = train_desc(&m);
        d.devices = wrong[i].mode ? "cpu" : "cpu:2";
        d.mode = wrong[i].mode;
        d.parallel = wrong[i].parallel;
        d.server.addresses = wrong[i].addresses;
        const dt_result result = dt_trainer_create(m.graph, &d, &t);
        CHECK_TEXT(result == DT_ERROR_UNSUPPORTED && strstr(dt_ctx_error(m.ctx), wrong[i].says),
                   "%zu: %d, %s", i, (int)result, dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
}
