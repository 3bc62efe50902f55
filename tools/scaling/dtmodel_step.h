/* The training half of dtmodel. It has layers with the times of their passes, the buckets that
 * their gradients travel in, and a step. A step is forward, backward with the all-reduces of
 * finished buckets beside it, the commit barrier, the optimizer. Layers and their times are inputs.
 * Parameters and multiplications of the built-in models are those of their definitions; their times
 * are assumed, and spread over layers by multiplications. */

#define LAYERS_MAX 4096
#define BUCKETS_MAX 4096

typedef struct layer { /* of one replica's share of the batch */
    double parameters, forward_s, backward_s;
    double out_bytes, kept_bytes; /* of its result, and of what its backward pass needs */
} layer;

typedef struct model {
    char name[64];
    layer layers[LAYERS_MAX];
    double work[LAYERS_MAX]; /* multiplications, of built-in ones */
    uint32_t count;
    double forward_s, backward_s, optimizer_s;
} model;

enum { MODEL_BATCH = 64 }; /* samples of a replica, of built-in models but gpt2xl */

static void model_add(model *m, double parameters, double work) {
    if (m->count == LAYERS_MAX)
        sim_fail(m->name, "more than 4096 layers");
    m->work[m->count] = work;
    m->layers[m->count++] = (layer){.parameters = parameters};
}

/* Gives each layer its part, by work, of the whole passes' times. */
static void model_spread(model *m, double forward_s, double backward_s, double optimizer_s) {
    double work = 0;
    for (uint32_t i = 0; i < m->count; i++)
        work += m->work[i];
    for (uint32_t i = 0; i < m->count; i++) {
        m->layers[i].forward_s = forward_s * m->work[i] / work;
        m->layers[i].backward_s = backward_s * m->work[i] / work;
    }
    m->forward_s = forward_s;
    m->backward_s = backward_s;
    m->optimizer_s = optimizer_s;
}

/* Of the layer before: what it gives to the next, and what it keeps. */
static void model_values(model *m, double out, double kept) {
    m->layers[m->count - 1].out_bytes = 4 * out;
    m->layers[m->count - 1].kept_bytes = 4 * kept;
}

static void model_linear(model *m, double in, double out) {
    model_add(m, (in + 1) * out, in * out);
    model_values(m, MODEL_BATCH * out, MODEL_BATCH * out);
}

/* A convolution onto edge x edge; with its batch norm when it has no bias. */
static void model_conv(model *m, double in, double out, double kernel, double edge, bool bias) {
    double weights = in * out * kernel * kernel;
    model_add(m, weights + (bias ? 1 : 2) * out, weights * edge * edge);
    const double cells = MODEL_BATCH * out * edge * edge;
    model_values(m, cells, bias ? cells : 2 * cells); /* before the norm, and after */
}

/* PyTorch's MNIST example, batch 64, one core. */
static void model_cnn(model *m) {
    model_conv(m, 1, 32, 3, 26, true);
    model_conv(m, 32, 64, 3, 24, true);
    model_linear(m, 9216, 128);
    model_linear(m, 128, 10);
    model_spread(m, 17e-3, 34e-3, 1e-3);
}

/* Batch 64, one core. */
static void model_mlp10m(model *m) {
    model_linear(m, 784, 2720);
    model_linear(m, 2720, 2720);
    model_linear(m, 2720, 160);
    model_linear(m, 160, 10);
    model_spread(m, 10e-3, 20e-3, 10e-3);
}

/* He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015, table 1. It has four
 * stages of bottlenecks, the first of each with a projection beside it. 25.6 million parameters. */
static void model_resnet50(model *m) {
    static const int blocks[] = {3, 4, 6, 3};
    double in = 64;
    model_conv(m, 3, 64, 7, 112, false);
    for (int stage = 0; stage < 4; stage++) {
        double width = 64 << stage, edge = 56 >> stage;
        for (int block = 0; block < blocks[stage]; block++) {
            double before = stage && !block ? 2 * edge : edge; /* the 3 x 3 has the stride */
            model_conv(m, in, width, 1, before, false);
            model_conv(m, width, width, 3, edge, false);
            model_conv(m, width, 4 * width, 1, edge, false);
            if (!block)
                model_conv(m, in, 4 * width, 1, edge, false);
            in = 4 * width;
        }
    }
    model_linear(m, 2048, 1000);
    model_spread(m, 50e-3, 100e-3, 5e-3);
}

/* Radford et al., Language models are unsupervised multitask learners, 2019: 48 blocks of 1600 wide
 * over 1024 places, 1.56 billion parameters; 16 sequences a replica, some 50 TFLOP/s. A block keeps
 * what its two norms, qkv, attention, its sum and the feed-forward part's two widths have. */
static void model_gpt2xl(model *m) {
    const double width = 1600, places = 16 * 1024, heads = 25;
    model_add(m, 50257 * width + 1024 * width, 0);
    model_values(m, places * width, places * width);
    for (int i = 0; i < 48; i++) {
        model_add(m, 12 * width * width + 13 * width, 12 * width * width + 1024 * width);
        model_values(m, places * width, places * (16 * width + heads));
    }
    model_add(m, 2 * width, 50257 * width); /* its weight is the table's */
    model_values(m, places * 50257, places * 50257);
    model_spread(m, 1.0, 2.0, 8e-3);
}

/* Lines "NAME PARAMETERS FORWARD_MS BACKWARD_MS [OUT_BYTES [KEPT_BYTES]]", from input to output;
 * "optimizer MS"; # begins a comment. */
static void model_read(model *m, const char *path) {
    char line[256], name[64];
    FILE *f = fopen(path, "r");
    if (!f)
        sim_fail(path,
                 "no built-in model (cnn, mlp10m, resnet50, gpt2xl), and no file that can be read");
    while (fgets(line, sizeof line, f)) {
        double parameters, forward_ms, backward_ms, out = 0, kept = 0;
        line[strcspn(line, "#\n")] = 0;
        int found = sscanf(line, "%63s %lf %lf %lf %lf %lf", name, &parameters, &forward_ms,
                           &backward_ms, &out, &kept);
        if (found <= 0)
            continue;
        if (found == 2 && !strcmp(name, "optimizer")) {
            m->optimizer_s = parameters * 1e-3;
            continue;
        }
        if (found < 4 || !(parameters >= 0 && forward_ms >= 0 && backward_ms >= 0) ||
            !(out >= 0 && kept >= 0))
            sim_fail(line,
                     "is not NAME PARAMETERS FORWARD_MS BACKWARD_MS [OUT_BYTES [KEPT_BYTES]]");
        model_add(m, parameters, 0);
        m->layers[m->count - 1].out_bytes = out;
        m->layers[m->count - 1].kept_bytes = found > 5 ? kept : out;
        m->layers[m->count - 1].forward_s = forward_ms * 1e-3;
        m->layers[m->count - 1].backward_s = backward_ms * 1e-3;
        m->forward_s += forward_ms * 1e-3;
        m->backward_s += backward_ms * 1e-3;
    }
    fclose(f);
    if (!m->count)
        sim_fail(path, "has no layer");
}

static void model_open(model *m, const char *name) {
    *m = (model){0};
    snprintf(m->name, sizeof m->name, "%s", name);
    if (!strcmp(name, "cnn"))
        model_cnn(m);
    else if (!strcmp(name, "mlp10m"))
        model_mlp10m(m);
    else if (!strcmp(name, "resnet50"))
        model_resnet50(m);
    else if (!strcmp(name, "gpt2xl"))
        model_gpt2xl(m);
    else
        model_read(m, name);
}

static double model_parameters(const model *m) {
    double sum = 0;
    for (uint32_t i = 0; i < m->count; i++)
        sum += m->layers[i].parameters;
    return sum;
}

/* ---- a step */

typedef struct bucket {
    double ready_s; /* since the backward pass began */
    uint64_t elements;
} bucket;

/* Layers from the last on; a bucket ends with the layer that fills it. As the trainer: the first
 * one is small, so that the network has something to do early. */
static uint32_t model_buckets(const model *m, uint64_t bucket_bytes, bucket *buckets) {
    uint32_t count = 0;
    uint64_t limit = DTI_MIN(bucket_bytes, 1u << 20), elements = 0;
    double now = 0;
    for (uint32_t i = m->count; i-- > 0;) {
        now += m->layers[i].backward_s;
        elements += (uint64_t)m->layers[i].parameters;
        if (!elements || (elements * 4 < limit && i))
            continue;
        buckets[count++] = (bucket){now, elements};
        elements = 0;
        limit = bucket_bytes;
    }
    return count;
}

static operation operation_of(dt_comm_algorithm algorithm, uint64_t elements, double post_at) {
    return (operation){.post_at = post_at,
                       .what.op = {.kind = DT_COMM_ALL_REDUCE,
                                   .count = elements,
                                   .dtype = DT_F32,
                                   .algorithm = algorithm}};
}

/* Seconds of one all-reduce. */
static double sum_seconds(const network *net, uint32_t size, dt_comm_algorithm algorithm,
                          uint64_t elements) {
    operation o = operation_of(algorithm, elements, 0);
    sim_run(net, size, &o, 1);
    return o.done_at;
}

/* Of the barrier that comes before any weight changes. */
static double barrier_seconds(const network *net, uint32_t size) {
    operation o = {.what.op = {.kind = DT_COMM_BARRIER, .count = 1, .dtype = DT_F32}};
    sim_run(net, size, &o, 1);
    return o.done_at;
}

typedef struct step_times {
    double alone_s;   /* one replica */
    double step_s;    /* with all */
    double network_s; /* the sums and the barrier with nothing beside them */
    double exposed_s; /* what of it the step has to wait for */
    double efficiency;
    symmetry_kind symmetry;
} step_times;

/* Until the last bucket is summed, seconds from the beginning of the backward pass. */
static double buckets_seconds(const network *net, uint32_t size, dt_comm_algorithm algorithm,
                              const bucket *buckets, uint32_t count, bool overlap,
                              symmetry_kind *symmetry) {
    operation *ops = sim_alloc(count, sizeof *ops);
    double last = 0;
    for (uint32_t i = 0; i < count; i++)
        ops[i] = operation_of(algorithm, buckets[i].elements, overlap ? buckets[i].ready_s : 0);
    *symmetry = sim_run(net, size, ops, count);
    for (uint32_t i = 0; i < count; i++)
        last = DTI_MAX(last, ops[i].done_at);
    free(ops);
    return last;
}

static step_times step_of(const network *net, const model *m, uint64_t bucket_bytes, uint32_t size,
                          dt_comm_algorithm algorithm) {
    static bucket buckets[BUCKETS_MAX];
    step_times t = {.alone_s = m->forward_s + m->backward_s + m->optimizer_s};
    t.step_s = t.alone_s;
    t.efficiency = 1;
    if (size < 2)
        return t;
    uint32_t count = model_buckets(m, bucket_bytes, buckets);
    double barrier = barrier_seconds(net, size);
    double last = buckets_seconds(net, size, algorithm, buckets, count, true, &t.symmetry);
    t.network_s =
        buckets_seconds(net, size, algorithm, buckets, count, false, &t.symmetry) + barrier;
    t.step_s = m->forward_s + DTI_MAX(last, m->backward_s) + barrier + m->optimizer_s;
    t.exposed_s = t.step_s - t.alone_s;
    t.efficiency = t.alone_s / t.step_s;
    return t;
}
