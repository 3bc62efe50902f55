/* Batch norm over the whole batch of the job (.sync). The same bits for any distribution of the
 * batch slices, and the values of PyTorch's formula. Also the settings that it cannot be combined
 * with. */
#include "train/train_model.h"

/* ---- the same bits */

typedef struct sync_case {
    const char *devices;
    int batch_slices, batch, steps, bucket_bytes;
    dt_tail tail;
    uint64_t memory_bytes;
    int zero_stage;
} sync_case;

static uint64_t sync_hash(const sync_case *c) {
    train_model m;
    dt_trainer *trainer = NULL;
    uint64_t hash = 0;
    const dt_ctx_desc ctx = {.no_vulkan = !strstr(c->devices, "vulkan")};
    if (!CHECK_TEXT(train_model_make(&m, &ctx, TRAIN_SYNC), "made"))
        return 0;
    dt_trainer_desc d = train_desc(&m);
    d.devices = c->devices;
    d.parallel.batch_slices = c->batch_slices;
    d.batch = c->batch;
    d.parallel.bucket_bytes = (size_t)c->bucket_bytes;
    d.tail = c->tail;
    d.limits.memory_bytes = c->memory_bytes;
    d.parallel.zero_stage = c->zero_stage;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < c->steps && !result; i++)
        result = dt_trainer_step(trainer, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(trainer), &hash);
    CHECK_TEXT(result == DT_OK, "%s, batch slices %d: %s", c->devices, c->batch_slices,
               dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return hash;
}

static void sync_equal(sync_case c, const char *const *devices, int count) {
    c.devices = devices[0];
    const uint64_t want = sync_hash(&c);
    for (int i = 1; i < count; i++) {
        c.devices = devices[i];
        const uint64_t got = sync_hash(&c);
        CHECK_TEXT(got == want && want, "%s against %s, %d batch slices, batch %d: %016llx %016llx",
                   devices[i], devices[0], c.batch_slices, c.batch, (unsigned long long)got,
                   (unsigned long long)want);
    }
}

TEST(sync_batch_norm_gives_the_same_bits_on_any_number_of_replicas) {
    static const char *const cpus[] = {"cpu", "cpu:2", "cpu:3", "cpu:4", "cpu:5", "cpu:8"};
    for (int batch_slices = 2; batch_slices <= 8; batch_slices++)
        sync_equal((sync_case){.batch_slices = batch_slices, .batch = 37, .steps = 6}, cpus,
                   batch_slices < 6   ? batch_slices
                   : batch_slices < 8 ? 5
                                      : 6);
    /* the last batch is of 22, and batch slices after it are empty */
    sync_case c = {.batch_slices = 8, .batch = 64, .steps = 7, .bucket_bytes = 64};
    for (c.tail = DT_TAIL_KEEP; c.tail <= DT_TAIL_DROP; c.tail++)
        sync_equal(c, cpus, 6);
    c.tail = DT_TAIL_KEEP;
    for (c.zero_stage = 1; c.zero_stage < DT_SHARD_PARAMETERS; c.zero_stage++)
        sync_equal(c, cpus, 6);
    c.memory_bytes = 300000;
    sync_equal(c, cpus, 6);
}

/* ---- the values: a linear layer, batch norm, tanh and the mean square, in double */

enum { PLAIN_IN = 4, PLAIN_OUT = 3, PLAIN_ROWS = 10 };
enum { PLAIN_W = 0, PLAIN_B = PLAIN_OUT * PLAIN_IN, PLAIN_SCALE = PLAIN_B + PLAIN_OUT };
enum { PLAIN_SHIFT = PLAIN_SCALE + PLAIN_OUT, PLAIN_PARAMS = PLAIN_SHIFT + PLAIN_OUT };

typedef struct plain {
    float x[PLAIN_ROWS * PLAIN_IN], t[PLAIN_ROWS * PLAIN_OUT];
} plain;

static const struct {
    const char *name;
    int at, count;
} plain_parts[] = {{"fc.weight", PLAIN_W, PLAIN_B},
                   {"fc.bias", PLAIN_B, PLAIN_OUT},
                   {"bn.weight", PLAIN_SCALE, PLAIN_OUT},
                   {"bn.bias", PLAIN_SHIFT, PLAIN_OUT}};

/* PyTorch's formula: F.batch_norm over all rows. pair: mean and unbiased variance. */
static double plain_loss(const plain *d, const double *p, double pair[2][PLAIN_OUT]) {
    double loss = 0;
    for (int c = 0; c < PLAIN_OUT; c++) {
        double h[PLAIN_ROWS], mean = 0, variance = 0;
        for (int i = 0; i < PLAIN_ROWS; i++) {
            h[i] = p[PLAIN_B + c];
            for (int k = 0; k < PLAIN_IN; k++)
                h[i] += (double)d->x[i * PLAIN_IN + k] * p[PLAIN_W + c * PLAIN_IN + k];
            mean += h[i] / PLAIN_ROWS;
        }
        for (int i = 0; i < PLAIN_ROWS; i++)
            variance += (h[i] - mean) * (h[i] - mean) / PLAIN_ROWS;
        for (int i = 0; i < PLAIN_ROWS; i++) {
            const double hat = (h[i] - mean) / sqrt(variance + 1e-5);
            const double y = tanh(hat * p[PLAIN_SCALE + c] + p[PLAIN_SHIFT + c]);
            const double off = y - (double)d->t[i * PLAIN_OUT + c];
            loss += off * off / (PLAIN_ROWS * PLAIN_OUT);
        }
        pair[0][c] = mean;
        pair[1][c] = variance * PLAIN_ROWS / (PLAIN_ROWS - 1);
    }
    return loss;
}

static void plain_read(dt_store *s, double *values) {
    float all[PLAIN_PARAMS];
    for (size_t i = 0; i < sizeof plain_parts / sizeof *plain_parts; i++) {
        const int at = plain_parts[i].at, n = plain_parts[i].count;
        CHECK(!dt_store_read(s, dt_store_find(s, plain_parts[i].name), DT_VALUE_PARAM, all + at,
                             (size_t)n * sizeof *all));
        for (int k = at; k < at + n; k++)
            values[k] = (double)all[k];
    }
}

static void plain_check(const plain *d, dt_store *s, const double *before, double loss,
                        const char *what) {
    double after[PLAIN_PARAMS], pair[2][PLAIN_OUT], ignored[2][PLAIN_OUT];
    const double want = plain_loss(d, before, pair);
    CHECK_TEXT(fabs(loss - want) < 2e-6, "%s: loss %.9g, not %.9g", what, loss, want);
    plain_read(s, after);
    for (int i = 0; i < PLAIN_PARAMS; i++) {
        double p[PLAIN_PARAMS];
        memcpy(p, before, sizeof p);
        p[i] = before[i] + 1e-5;
        double slope = plain_loss(d, p, ignored);
        p[i] = before[i] - 1e-5;
        slope = (slope - plain_loss(d, p, ignored)) / 2e-5;
        CHECK_TEXT(fabs(before[i] - after[i] - slope) < 2e-6, "%s: gradient %d is %.9g, not %.9g",
                   what, i, before[i] - after[i], slope);
    }
    for (int k = 0; k < 2; k++) {
        float running[PLAIN_OUT];
        const int at = dt_store_find(s, k ? "bn.running_var" : "bn.running_mean");
        CHECK(!dt_store_read(s, at, DT_VALUE_PARAM, running, sizeof running));
        for (int c = 0; c < PLAIN_OUT; c++)
            CHECK_TEXT(fabs((double)running[c] - (0.9 * k + 0.1 * pair[k][c])) < 1e-6,
                       "%s: running statistic %d of channel %d", what, k, c);
    }
}

typedef struct plain_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t, loss;
    plain data;
} plain_model;

static bool plain_make(plain_model *m, bool vulkan, bool sync) {
    const dt_batch_norm_desc norm = {.sync = sync};
    uint32_t state = 5;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = !vulkan}, &m->ctx) ||
        dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(PLAIN_IN));
    m->t = dt_input(m->graph, "t", DT_F32, dt_dims(PLAIN_OUT));
    dt_tensor h = dt_nn_batch_norm(dt_nn_linear(m->x, "fc", PLAIN_OUT), "bn", &norm);
    m->loss = dt_mse(dt_tanh(h), m->t);
    for (int i = 0; i < PLAIN_ROWS * PLAIN_IN; i++)
        m->data.x[i] = (float)(train_random(&state) % 1000) / 250.0f - (float)(i % 7);
    for (int i = 0; i < PLAIN_ROWS * PLAIN_OUT; i++)
        m->data.t[i] = (float)(train_random(&state) % 1000) / 500.0f - 1.0f;
    return dt_graph_error(m->graph) == NULL;
}

static dt_trainer_desc plain_desc(const plain_model *m, const dt_optim_desc *sgd) {
    return (dt_trainer_desc){
        .loss = m->loss,
        .optim = sgd,
        .batch = PLAIN_ROWS,
        .no_shuffle = true,
        .devices = "cpu",
        .data = {.rows = PLAIN_ROWS,
                 .columns = {{.input = m->x, .data = m->data.x, .dtype = DT_F32},
                             {.input = m->t, .data = m->data.t, .dtype = DT_F32}}}};
}

static void plain_step(const char *devices, int batch_slices, bool sync) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 1.0};
    plain_model m;
    dt_trainer *t;
    dt_train_report r;
    double before[PLAIN_PARAMS];
    char what[64];
    if (!CHECK_TEXT(plain_make(&m, strstr(devices, "vulkan") != NULL, sync), "made"))
        return;
    dt_trainer_desc d = plain_desc(&m, &sgd);
    d.devices = devices;
    d.parallel.batch_slices = batch_slices;
    snprintf(what, sizeof what, "%s, %d batch slices", devices, batch_slices);
    if (CHECK_TEXT(!dt_trainer_create(m.graph, &d, &t), "%s", dt_ctx_error(m.ctx))) {
        plain_read(dt_trainer_store(t), before);
        CHECK_TEXT(!dt_trainer_step(t, &r), "%s", dt_ctx_error(m.ctx));
        plain_check(&m.data, dt_trainer_store(t), before, r.loss, what);
    }
    dt_ctx_destroy(m.ctx);
}

TEST(sync_batch_norm_has_the_values_and_gradients_of_the_whole_batch_in_double) {
    plain_step("cpu", 1, false); /* what it is compared with, by itself */
    plain_step("cpu", 1, true);
    plain_step("cpu:3", 3, true);
    plain_step("cpu:4", 7, true);
    for (int batch_slices = 2; batch_slices <= PLAIN_ROWS; batch_slices++)
        plain_step("cpu", batch_slices, true);
}

/* ---- outside of a trainer the batch is the whole */

static void alone_run(bool sync, float *out) {
    plain_model m;
    dt_store *s;
    dt_program *p;
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 1.0};
    double values[PLAIN_PARAMS];
    if (!CHECK_TEXT(plain_make(&m, false, sync), "made"))
        return;
    dt_tensor slope = dt_gradient(m.loss, m.x);
    const dt_program_desc train = {
        .loss = m.loss, .batch = PLAIN_ROWS, .optim = &sgd, .outputs = {slope}};
    const dt_program_desc eval = {.outputs = {slope}, .batch = PLAIN_ROWS, .mode = DT_MODE_EVAL};
    CHECK(!dt_store_create(m.graph, &(dt_store_desc){.device = "cpu"}, &s));
    for (int k = 0; k < 2; k++) {
        CHECK_TEXT(!dt_program_create(s, k ? &eval : &train, &p), "%s", dt_ctx_error(m.ctx));
        CHECK(!dt_program_write(p, m.x, m.data.x, sizeof m.data.x));
        CHECK(!dt_program_write(p, m.t, m.data.t, sizeof m.data.t));
        CHECK_TEXT(!dt_program_run(p, NULL, NULL), "%s", dt_ctx_error(m.ctx));
        CHECK(!dt_program_read(p, slope, out + k * PLAIN_ROWS * PLAIN_IN, sizeof m.data.x));
    }
    plain_read(s, values);
    for (int i = 0; i < PLAIN_PARAMS; i++)
        out[2 * PLAIN_ROWS * PLAIN_IN + i] = (float)values[i];
    dt_ctx_destroy(m.ctx);
}

TEST(sync_batch_norm_outside_of_a_trainer_is_batch_norm) {
    enum { ALONE = 2 * PLAIN_ROWS * PLAIN_IN + PLAIN_PARAMS };
    static float with[ALONE], without[ALONE];
    alone_run(true, with);
    alone_run(false, without);
    for (int i = 0; i < ALONE; i++)
        CHECK_TEXT(fabsf(with[i] - without[i]) <= 1e-6f * (1.0f + fabsf(without[i])),
                   "value %d: %.9g, not %.9g", i, (double)with[i], (double)without[i]);
}

/* ---- settings that it cannot be combined with */

typedef struct refusal {
    int accumulate, pipeline, rows;
    dt_train_mode mode;
    const char *devices, *says;
    dt_result result;
} refusal;

TEST(sync_batch_norm_is_refused_where_the_whole_batch_is_not_present) {
    static const refusal refusals[] = {
        {.accumulate = 2,
         .result = DT_ERROR_UNSUPPORTED,
         .says = ".sync cannot be combined with .accumulate"},
        {.pipeline = 2,
         .devices = "cpu:2",
         .result = DT_ERROR_UNSUPPORTED,
         .says = ".sync cannot be combined with .parallel.pipeline"},
        {.mode = DT_TRAIN_LOCAL,
         .devices = "cpu:2",
         .result = DT_ERROR_UNSUPPORTED,
         .says = ".sync cannot be combined with .mode = DT_TRAIN_LOCAL"},
        {.rows = PLAIN_ROWS - 1, .result = DT_ERROR_INVALID, .says = "one value per channel"}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 1.0};
        plain_model m;
        dt_trainer *t = NULL;
        if (!CHECK_TEXT(plain_make(&m, false, true), "made"))
            continue;
        dt_trainer_desc d = plain_desc(&m, &sgd);
        d.accumulate = r->accumulate;
        d.parallel.pipeline = r->pipeline;
        d.mode = r->mode;
        d.devices = r->devices ? r->devices : "cpu:2";
        d.batch = r->rows ? r->rows : d.batch; /* the last batch has one */
        CHECK(dt_trainer_create(m.graph, &d, &t) == r->result && !t);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), r->says);
        dt_ctx_destroy(m.ctx);
    }
}

TEST(sync_batch_norm_in_micro_batches_of_a_program_is_refused) {
    plain_model m;
    dt_store *s;
    dt_program *p;
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 1.0};
    if (!CHECK_TEXT(plain_make(&m, false, true), "made"))
        return;
    const dt_program_desc d = {.loss = m.loss, .batch = 5, .optim = &sgd, .accumulate = true};
    CHECK(!dt_store_create(m.graph, &(dt_store_desc){.device = "cpu"}, &s));
    CHECK(dt_program_create(s, &d, &p) == DT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), ".sync cannot be combined with .accumulate");
    dt_ctx_destroy(m.ctx);
}

TEST(sync_batch_norm_has_no_second_derivative) {
    plain_model m;
    if (!CHECK_TEXT(plain_make(&m, false, true), "made"))
        return;
    dt_tensor once = dt_gradient(m.loss, m.x);
    CHECK(!dt_graph_error(m.graph));
    CHECK(dt_gradient(dt_sum(dt_square(once), dt_dims(-1), false), m.x).id == 0);
    CHECK_CONTAINS(dt_graph_error(m.graph), ".sync cannot be differentiated again");
    dt_ctx_destroy(m.ctx);
}

/* ---- random nets: the bits of any replicas, and near those of one batch slice of the whole
 * batch */

enum { NET_ROWS = 90, NET_SIDE = 4 };

typedef struct net {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t, loss;
    float in[NET_ROWS * 3 * NET_SIDE * NET_SIDE], out[NET_ROWS * 2];
} net;

static dt_tensor net_layer(dt_tensor h, uint32_t *state, int number) {
    const uint32_t dice = train_random(state);
    char name[2][16];
    snprintf(name[0], sizeof name[0], "layer%d", number);
    snprintf(name[1], sizeof name[1], "norm%d", number);
    const dt_batch_norm_desc norm = {.sync = true, .frozen = dice % 5 == 0};
    const dt_conv_layer_desc same = {.conv = {.padding = {1, 1}}};
    const int channels = 1 + (int)(dice / 7 % 5);
    dt_tensor y = dt_tensor_shape(h).rank == 3 ? dt_nn_conv2d(h, name[0], channels, 3, &same)
                                               : dt_nn_linear(h, name[0], channels);
    y = dt_nn_batch_norm(y, name[1], &norm);
    if (dice % 3 == 0)
        y = dt_mul(y, dt_sigmoid(y));
    y = dice % 2 ? dt_tanh(y) : dt_softplus(y);
    return dt_tensor_shape(y).dim[0] == dt_tensor_shape(h).dim[0] ? dt_add(h, y) : y;
}

static bool net_make(net *n, uint32_t seed) {
    uint32_t state = seed;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &n->ctx) ||
        dt_graph_create(n->ctx, &n->graph))
        return false;
    const bool image = train_random(&state) % 2;
    n->x = dt_input(n->graph, "x", DT_F32, dt_dims(3, NET_SIDE, NET_SIDE));
    n->t = dt_input(n->graph, "t", DT_F32, dt_dims(2));
    dt_tensor h = image ? n->x : dt_flatten(n->x);
    const int layers = 1 + (int)(train_random(&state) % 4);
    for (int i = 0; i < layers; i++)
        h = net_layer(h, &state, i);
    n->loss = dt_mse(dt_nn_linear(dt_flatten(h), "head", 2), n->t);
    for (int i = 0; i < NET_ROWS * 3 * NET_SIDE * NET_SIDE; i++)
        n->in[i] = (float)(train_random(&state) % 2000) / 1000.0f - 1.0f;
    for (int i = 0; i < NET_ROWS * 2; i++)
        n->out[i] = n->in[i] * n->in[i + 5] + 0.3f * n->in[i + 11];
    return dt_graph_error(n->graph) == NULL;
}

/* The state's hash, and the losses of the steps. */
static uint64_t net_run(uint32_t seed, const char *devices, int batch_slices, int batch,
                        double *loss) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.02};
    static net n;
    dt_trainer *t;
    dt_train_report r;
    uint64_t hash = 0;
    if (!CHECK_TEXT(net_make(&n, seed), "net %u", seed))
        return 0;
    const dt_trainer_desc d = {
        .loss = n.loss,
        .optim = &sgd,
        .batch = batch,
        .seed = seed,
        .parallel.batch_slices = batch_slices,
        .devices = devices,
        .parallel.bucket_bytes = 256,
        .data = {.rows = NET_ROWS,
                 .columns = {{.input = n.x, .data = n.in, .dtype = DT_F32},
                             {.input = n.t, .data = n.out, .dtype = DT_F32}}}};
    dt_result result = dt_trainer_create(n.graph, &d, &t);
    for (int i = 0; i < 4 && !result; i++) {
        result = dt_trainer_step(t, &r);
        loss[i] = r.loss;
    }
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(t), &hash);
    CHECK_TEXT(!result, "net %u, %s, %d batch slices: %s", seed, devices, batch_slices,
               dt_ctx_error(n.ctx));
    dt_ctx_destroy(n.ctx);
    return hash;
}

TEST(random_nets_with_sync_batch_norm_train_alike_on_any_replicas) {
    for (uint32_t seed = 1; seed <= 40; seed++) {
        uint32_t state = seed * 77;
        const int batch = 12 + (int)(train_random(&state) % 30);
        const int batch_slices = 2 + (int)(train_random(&state) % 7);
        const int replicas = 2 + (int)(train_random(&state) % (uint32_t)(batch_slices - 1));
        char devices[16];
        double one[4] = {0}, some[4] = {0}, whole[4] = {0};
        snprintf(devices, sizeof devices, "cpu:%d", replicas);
        const uint64_t want = net_run(seed, "cpu", batch_slices, batch, one);
        const uint64_t got = net_run(seed, devices, batch_slices, batch, some);
        CHECK_TEXT(got == want && want, "net %u, batch %d, %d batch slices on %d replicas", seed,
                   batch, batch_slices, replicas);
        net_run(seed, "cpu", 1, batch, whole);
        for (int i = 0; i < 4; i++)
            CHECK_TEXT(one[i] == some[i] && fabs(one[i] - whole[i]) <= 2e-4 * (1 + whole[i]),
                       "net %u, step %d: %.9g, %.9g on %d replicas, %.9g of one batch slice", seed,
                       i, one[i], some[i], replicas, whole[i]);
    }
}

/* ---- Vulkan */

TEST(sync_batch_norm_on_vulkan_gives_the_bits_of_one_device_and_the_values_of_the_batch) {
    static const char *const devices[] = {"vulkan:0", "vulkan:0,vulkan:0",
                                          "vulkan:0,vulkan:0,vulkan:0"};
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    sync_equal((sync_case){.batch_slices = 4, .batch = 37, .steps = 5}, devices, 3);
    plain_step("vulkan:0", 1, true); /* gradients stay on the device: nobody meets */
    plain_step("vulkan:0,vulkan:0", 4, true);
    plain_step("vulkan:0,cpu", 3, true);
}
