/* Part of dtbench.c: training steps and chains of products, through the public API. */

/* ---- Training steps, the same as tools/bench/bench_torch.py's: write the batch, run one step. */

typedef struct net { /* while it is made, and made */
    dt_graph *graph;
    dt_tensor x, t, h, loss;
    int64_t in, out; /* elements of a sample, of the last layer */
    int64_t tokens;  /* a sample is that number of characters, and each has a target; else 0 */
    int layers;
    double macs; /* of a step, a sample: forward, weights' gradients, inputs' except for the
                  * first */
} net;

typedef struct workload {
    const char *name;
    int batch;
    bool mse; /* else cross-entropy */
    dt_optim_kind optim;
    void (*make)(net *n); /* sets x, h */
} workload;

static void count_layer(net *n, double macs) {
    n->macs += (n->layers++ ? 3 : 2) * macs;
}

static void input(net *n, dt_shape shape) {
    n->x = n->h = dt_input(n->graph, "x", DT_F32, shape);
    n->in = dti_shape_elements(shape);
}

static void linear(net *n, const char *name, int64_t out) {
    count_layer(n, (double)dti_shape_elements(dt_tensor_shape(n->h)) * (double)out);
    n->h = dt_nn_linear(n->h, name, n->out = out);
}

static void conv_layer(net *n, const char *name, int64_t out, int64_t kernel) {
    double in = (double)dt_tensor_shape(n->h).dim[0];
    n->h = dt_nn_conv2d(n->h, name, out, kernel, NULL);
    count_layer(n,
                (double)(kernel * kernel) * in * (double)dti_shape_elements(dt_tensor_shape(n->h)));
}

/* widths: of the input and each layer, ended by 0. */
static void mlp(net *n, const int *widths) {
    input(n, dt_dims(widths[0]));
    for (int i = 1; widths[i]; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        n->h = i > 1 ? dt_relu(n->h) : n->h;
        linear(n, name, widths[i]);
    }
}

static void make_xor(net *n) {
    mlp(n, (const int[]){2, 16, 1, 0});
}

static void make_mlp_tiny(net *n) {
    mlp(n, (const int[]){32, 64, 64, 10, 0});
}

static void make_mlp(net *n) {
    mlp(n, (const int[]){784, 128, 10, 0});
}

static void make_mlp_wide(net *n) {
    mlp(n, (const int[]){784, 1024, 1024, 10, 0});
}

/* That of PyTorch's MNIST example, as in examples/fashion_mnist_conv.c. */
static void make_cnn(net *n) {
    input(n, dt_dims(1, 28, 28));
    conv_layer(n, "conv1", 32, 3);
    n->h = dt_relu(n->h);
    conv_layer(n, "conv2", 64, 3);
    n->h = dt_max_pool2d(dt_relu(n->h), &(dt_pool_desc){.kernel = {2, 2}});
    n->h = dt_flatten(dt_dropout(n->h, 0.25f));
    linear(n, "fc1", 128);
    n->h = dt_dropout(dt_relu(n->h), 0.5f);
    linear(n, "fc2", 10);
}

/* Of characters, before each of its blocks a norm: nanoGPT's, but for dropout and tied weights. */
enum { BENCH_CHARACTERS = 65 };

static void attend(net *n, const char *name, int64_t heads) {
    const dt_attention_layer_desc causal = {.attention = {.causal = true}};
    const double t = (double)n->tokens, width = (double)dt_tensor_shape(n->h).dim[1];
    n->h = dt_nn_multi_head_attention(n->h, n->h, name, heads, &causal);
    count_layer(n, 4 * t * width * width + t * t * width); /* half of all pairs, twice */
}

/* Characters as vectors, which are trained: the layer after them has a gradient of its input
 * too. */
static void characters(net *n, int64_t context, int64_t width) {
    n->tokens = n->in = context;
    n->x = dt_input(n->graph, "x", DT_I32, dt_dims(context));
    n->h = dt_nn_embedding(n->x, "characters", BENCH_CHARACTERS, width);
    n->layers++;
}

static void head(net *n) {
    linear(n, "head", BENCH_CHARACTERS);
}

static void block(net *n, int i, int64_t width, int64_t heads) {
    char name[5][32];
    static const char *const parts[] = {"ln1", "attention", "ln2", "up", "down"};
    for (int k = 0; k < 5; k++)
        snprintf(name[k], sizeof name[k], "block%d.%s", i, parts[k]);
    dt_tensor before = n->h;
    n->h = dt_nn_layer_norm(before, name[0], 1);
    attend(n, name[1], heads);
    before = dt_add(before, n->h);
    n->h = dt_nn_layer_norm(before, name[2], 1);
    count_layer(n, 8 * (double)n->tokens * (double)width * (double)width);
    n->h = dt_nn_linear(dt_gelu(dt_nn_linear(n->h, name[3], 4 * width)), name[4], width);
    n->h = dt_add(before, n->h);
}

static void make_gpt(net *n, int64_t context, int64_t width, int layers, int64_t heads) {
    const dt_init init = {DT_INIT_NORMAL, 0.0f, 0.02f};
    characters(n, context, width);
    n->h = dt_add(n->h, dt_param(n->graph, "places", dt_dims(context, width), init));
    for (int i = 0; i < layers; i++)
        block(n, i, width, heads);
    n->h = dt_nn_layer_norm(n->h, "norm", 1);
    head(n);
}

static void make_gpt_small(net *n) {
    make_gpt(n, 64, 128, 4, 4);
}

static void make_gpt_medium(net *n) {
    make_gpt(n, 256, 384, 6, 6);
}

/* One layer of attention over 1,024 places, 6 heads of 64, between an embedding and the classes. */
static void make_attention(net *n) {
    characters(n, 1024, 384);
    attend(n, "attention", 6);
    head(n);
}

/* One layer of 128 over 64 places, between an embedding of 128 and the classes. */
static void make_lstm(net *n) {
    characters(n, 64, 128);
    n->h = dt_nn_lstm(n->h, "lstm", 128, NULL).y;
    count_layer(n, 64.0 * 4 * 128 * (128 + 128));
    head(n);
}

static const workload workloads[] = {
    {"xor", 4, true, DT_OPTIM_ADAMW, make_xor},
    {"mlp_tiny", 32, false, DT_OPTIM_ADAMW, make_mlp_tiny},
    {"mlp", 64, false, DT_OPTIM_ADAM, make_mlp},
    {"mlp_wide", 128, false, DT_OPTIM_ADAM, make_mlp_wide},
    {"cnn", 64, false, DT_OPTIM_ADAM, make_cnn},
    {"gpt_small", 12, false, DT_OPTIM_ADAMW, make_gpt_small},
    {"gpt_medium", 8, false, DT_OPTIM_ADAMW, make_gpt_medium},
    {"attention", 4, false, DT_OPTIM_ADAMW, make_attention},
    {"lstm", 32, false, DT_OPTIM_ADAMW, make_lstm},
};

/* "cnn:bf16" is cnn in mixed precision. */
static dt_precision precision_of(const char *name) {
    const char *end = strchr(name, ':');
    if (end && strcmp(end, ":bf16"))
        fail(name, "no such precision");
    return end ? DT_PRECISION_BF16 : DT_PRECISION_F32;
}

static const workload *find_workload(const char *name) {
    const size_t size = strcspn(name, ":");
    for (size_t i = 0; i < DTI_COUNT(workloads); i++)
        if (strlen(workloads[i].name) == size && !strncmp(workloads[i].name, name, size))
            return &workloads[i];
    fail(name, "no such workload");
}

typedef struct session { /* a context, and the objects in it */
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
} session;

static session session_open(int threads, const char *device) {
    session s = {0};
    dt_ctx_desc desc = {.threads = threads, .no_vulkan = !strcmp(device, "cpu")};
    const dt_vulkan_desc nothing = stub_vulkan();
    if (!strcmp(device, "stub"))
        desc.vulkan = &nothing;
    try(NULL, dt_ctx_create(&desc, &s.ctx), "dt_ctx_create");
    try(s.ctx, dt_graph_create(s.ctx, &s.graph), "dt_graph_create");
    return s;
}

static void session_close(session *s) {
    dt_program_destroy(s->program);
    dt_store_destroy(s->store);
    dt_graph_destroy(s->graph);
    dt_ctx_destroy(s->ctx);
}

static net make_net(dt_graph *graph, const workload *w) {
    net n = {.graph = graph};
    w->make(&n);
    n.t = w->mse ? dt_input(graph, "t", DT_F32, dt_dims(n.out))
                 : dt_input(graph, "t", DT_I32, n.tokens ? dt_dims(n.tokens) : dt_dims());
    n.loss = w->mse ? dt_mse(n.h, n.t) : dt_cross_entropy(n.h, n.t, NULL);
    return n;
}

typedef struct training { /* of a workload, with one batch to train on again and again */
    const workload *load;
    session session;
    net net;
    float *x, *t;
    size_t x_bytes, t_bytes;
} training;

/* `classes` numbers in place of floats. */
static void random_classes(float *x, size_t bytes, int64_t classes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 4; i++)
        ((int32_t *)x)[i] = (int32_t)((double)classes * dti_uniform01(seed, i, 0));
}

/* The data comes first: what a program feeds is not part of what training takes. */
static void training_data(training *r, const net *n, int samples) {
    const size_t rows = (size_t)samples;
    r->x_bytes = rows * (size_t)n->in * 4;
    r->t_bytes = rows * (size_t)(r->load->mse ? n->out : n->tokens ? n->tokens : 1) * 4;
    r->x = random_floats(r->x_bytes / 4, 1), r->t = random_floats(r->t_bytes / 4, 1);
    if (n->tokens)
        random_classes(r->x, r->x_bytes, BENCH_CHARACTERS, 3);
    if (!r->load->mse)
        random_classes(r->t, r->t_bytes, n->out, 2);
}

static training training_open(const char *name, int threads, const char *device) {
    training r = {.load = find_workload(name), .session = session_open(threads, device)};
    session *s = &r.session;
    r.net = make_net(s->graph, r.load);
    training_data(&r, &r.net, r.load->batch);
    const bool nothing = !strcmp(device, "stub");
    const dt_store_desc store = {.device = nothing ? "vulkan" : device};
    try(s->ctx, dt_store_create(s->graph, &store, &s->store), name);
    dt_optim_desc optim = {.kind = r.load->optim, .lr = 1e-3};
    dt_program_desc desc = {.label = name,
                            .loss = r.net.loss,
                            .batch = r.load->batch,
                            .precision = precision_of(name),
                            .in_flight = nothing ? 2 : 1,
                            .optim = &optim};
    try(s->ctx, dt_program_create(s->store, &desc, &s->program), name);
    return r;
}

/* Writes the batch and runs one step; returns its loss. */
static double training_step(training *r) {
    const session *s = &r->session;
    dt_report report = {0};
    try(s->ctx, dt_program_write(s->program, r->net.x, r->x, r->x_bytes), r->load->name);
    try(s->ctx, dt_program_write(s->program, r->net.t, r->t, r->t_bytes), r->load->name);
    try(s->ctx, dt_program_run(s->program, NULL, &report), r->load->name);
    return report.loss;
}

static void training_close(training *r) {
    free(r->x), free(r->t);
    session_close(&r->session);
}

/* kind: "steps" of a program, or "trainer". */
static void print_steps(const training *r, const char *kind, const dt_store *store, samples *times,
                        double loss, int threads) {
    const workload *w = r->load;
    const dt_device_info *d = dt_store_device(store);
    double typical = median(times), flops = 2 * r->net.macs * w->batch;
    printf("{\"kind\": \"%s\", \"peer\": \"dtrain\", \"workload\": \"%s\", \"batch\": %d, "
           "\"threads\": %d, \"device\": \"%s\", \"device_name\": \"%s\", \"steps\": %d, "
           "\"ms_median\": %.5f, \"ms_min\": %.5f, \"samples_per_s\": %.1f, \"loss\": %.4f, "
           "\"gflops_best\": %.2f, \"peak_gflops\": %.2f}\n",
           kind, w->name, w->batch, threads, d->id, d->name, times->count, typical, times->ms[0],
           w->batch / typical * 1e3, loss, flops / times->ms[0] * 1e-6,
           strcmp(d->id, "cpu") ? 0.0 : threads * peak_gflops(dti_isa_select(DTI_ISA_AVX512)));
}

static void steps(const char *name, int threads, const char *device, int count) {
    static samples times;
    double loss = 0;
    training r = training_open(name, threads, device);
    for (int i = 0; i < WARM_STEPS + count; i++) {
        double start = now_ms();
        loss = training_step(&r);
        if (i >= WARM_STEPS)
            add(&times, now_ms() - start);
    }
    print_steps(&r, "steps", r.session.store, &times, loss, threads);
    training_close(&r);
}

/* ---- The same through a trainer on one CPU device. Beside the step above it has the gathering of
 * a shuffled batch, the commit protocol and the report. */

#define TRAINER_BATCHES 16 /* of an epoch */

static dt_trainer *trainer_open(training *r, const char *name, int threads) {
    *r = (training){.load = find_workload(name), .session = session_open(threads, "cpu")};
    dt_trainer *trainer;
    const net n = r->net = make_net(r->session.graph, r->load);
    const int rows = TRAINER_BATCHES * r->load->batch;
    training_data(r, &n, rows);
    const dt_optim_desc optim = {.kind = r->load->optim, .lr = 1e-3};
    const dt_trainer_desc desc = {
        .loss = n.loss,
        .optim = &optim,
        .data = {.rows = (uint64_t)rows,
                 .columns = {{n.x, r->x, n.tokens ? DT_I32 : DT_F32, 0, 0, false},
                             {n.t, r->t, r->load->mse ? DT_F32 : DT_I32, 0, 0, false}}},
        .batch = r->load->batch,
        .precision = precision_of(name),
        .devices = "cpu",
        .threads = threads};
    try(r->session.ctx, dt_trainer_create(r->session.graph, &desc, &trainer), name);
    return trainer;
}

static void trainer_steps(const char *name, int threads, int count) {
    static samples times;
    training r;
    dt_trainer *trainer = trainer_open(&r, name, threads);
    dt_train_report report = {0};
    for (int i = 0; i < WARM_STEPS + count; i++) {
        const double start = now_ms();
        try(r.session.ctx, dt_trainer_step(trainer, &report), name);
        if (i >= WARM_STEPS)
            add(&times, now_ms() - start);
    }
    print_steps(&r, "trainer", dt_trainer_store(trainer), &times, report.loss, threads);
    dt_trainer_destroy(trainer);
    training_close(&r);
}

/* What a step takes of the host, on a Vulkan driver that does nothing at once; `bare`: with inputs
 * that are there already. */
static void host_steps(const char *name, int count) {
    static samples run, started, bare;
    training r = training_open(name, 1, "stub");
    const session *s = &r.session;
    for (int i = 0; i < WARM_STEPS + count; i++) {
        const double start = now_ms();
        training_step(&r);
        add(&run, now_ms() - start);
    }
    const uint64_t calls = stub_calls();
    for (int i = 0; i < WARM_STEPS + count; i++) {
        const double start = now_ms();
        try(s->ctx, dt_program_write(s->program, r.net.x, r.x, r.x_bytes), name);
        try(s->ctx, dt_program_write(s->program, r.net.t, r.t, r.t_bytes), name);
        const double written = now_ms();
        try(s->ctx, dt_program_start(s->program, NULL), name);
        add(&started, now_ms() - start);
        add(&bare, now_ms() - written);
    }
    printf("{\"kind\": \"host\", \"workload\": \"%s\", \"run_us\": %.2f, \"started_us\": %.2f, "
           "\"bare_us\": %.2f, \"calls\": %.1f}\n",
           name, 1e3 * median(&run), 1e3 * median(&started), 1e3 * median(&bare),
           (double)(stub_calls() - calls) / (WARM_STEPS + count));
    training_close(&r);
}

/* A field of Linux's /proc/self/status, in MiB; 0 elsewhere. */
static double status_mib(const char *field) {
    char line[128];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, field, strlen(field)))
            kib = atof(line + strlen(field));
    if (f)
        fclose(f);
    return kib / 1024;
}

/* The most that training adds to the process. It is its peak less what it held before the model was
 * made, and before there was a context. */
static void memory(const char *name, int threads, int count) {
    double before = status_mib("VmRSS:");
    training r = training_open(name, threads, "cpu");
    for (int i = 0; i < count; i++)
        training_step(&r);
    printf("{\"kind\": \"memory\", \"peer\": \"dtrain\", \"workload\": \"%s\", \"threads\": %d, "
           "\"steps\": %d, \"before_mib\": %.2f, \"peak_mib\": %.2f}\n",
           name, threads, count, before, status_mib("VmHWM:"));
    training_close(&r);
}

/* ---- Chains of products and of convolutions on any device. The weights are parameters, inputs are
 * small beside the work, and one number comes back. So only the work is timed. */

#define CHAIN 4
#define CHAIN_RUNS 7
#define PRODUCT_SIZE 512
#define CONV_BATCH 16 /* images of 28 x 28 with 64 channels, to 64, kernel 3 x 3, padding 1 */
#define CONV_SIZE 28
#define CONV_CHANNELS 64

static void run_chain(session *s, const char *kind, const char *device, int batch, dt_tensor x,
                      dt_tensor y, double flops) {
    static samples times;
    times.count = 0;
    try(s->ctx, dt_store_create(s->graph, &(dt_store_desc){.device = device}, &s->store), device);
    dt_program_desc desc = {.label = kind, .outputs = {y}, .batch = batch};
    try(s->ctx, dt_program_create(s->store, &desc, &s->program), device);
    if (batch) {
        size_t count = (size_t)(batch * dti_shape_elements(dt_tensor_shape(x)));
        float *data = random_floats(count, 1);
        try(s->ctx, dt_program_write(s->program, x, data, count * sizeof *data), device);
        free(data);
    }
    for (int i = -1; i < CHAIN_RUNS; i++) {
        double start = now_ms();
        try(s->ctx, dt_program_run(s->program, NULL, NULL), device);
        if (i >= 0)
            add(&times, now_ms() - start);
    }
    double typical = median(&times);
    const dt_device_info *d = dt_store_device(s->store);
    printf("{\"kind\": \"%s\", \"device\": \"%s\", \"device_name\": \"%s\", "
           "\"driver\": \"%s\", \"gflops\": %.2f, \"gflops_best\": %.2f}\n",
           kind, d->id, d->name, d->driver, flops / typical * 1e-6, flops / times.ms[0] * 1e-6);
    session_close(s);
}

static void product(const char *device) {
    const int n = PRODUCT_SIZE;
    session s = session_open(0, device);
    dt_init init = {.kind = DT_INIT_NORMAL,
                    .b = 0.04f}; /* 1/sqrt(512): the chain keeps its scale */
    dt_tensor a = dt_param(s.graph, "a", dt_dims(n, n), init);
    dt_tensor y = dt_param(s.graph, "b", dt_dims(n, n), init);
    for (int i = 0; i < CHAIN; i++)
        y = dt_matmul(a, y);
    y = dt_slice(dt_slice(y, 0, 0, 1), 1, 0, 1);
    run_chain(&s, "product", device, 0, y, y, 2.0 * CHAIN * n * n * n);
}

static void convolution(const char *device) {
    const int c = CONV_CHANNELS, n = CONV_SIZE;
    session s = session_open(0, device);
    dt_init init = {.kind = DT_INIT_NORMAL, .b = 0.04f}; /* 1/sqrt(64 * 9) */
    dt_tensor x = dt_input(s.graph, "x", DT_F32, dt_dims(c, n, n));
    dt_tensor w = dt_param(s.graph, "w", dt_dims(c, c, 3, 3), init), y = x;
    for (int i = 0; i < CHAIN; i++)
        y = dt_conv2d(y, w, (dt_tensor){0}, &(dt_conv_desc){.padding = {1, 1}});
    for (int axis = 0; axis < 3; axis++)
        y = dt_slice(y, axis, 0, 1);
    run_chain(&s, "conv2d", device, CONV_BATCH, x, y,
              2.0 * CHAIN * CONV_BATCH * n * n * (9.0 * c * c));
}
