/* Part of dtbench.c: what it costs to make a graph, its store and a program, by number of nodes. */

#define HEADS 2
#define MODEL 16
#define TOKENS 4

/* Of this thread, which does all of it except the fill of a store: so nothing else is counted. */
static double since(double *start) {
    double now = work_ms(1), ms = now - *start;
    *start = now;
    return ms;
}

static dt_tensor create_param(dt_graph *g, const char *name, int layer, dt_shape shape) {
    char text[64];
    snprintf(text, sizeof text, "h.%d.%s", layer, name);
    return dt_param(g, text, shape, (dt_init){.kind = DT_INIT_CONSTANT, .a = 0.1f});
}

static dt_tensor create_linear(dt_tensor x, const char *name, int layer, int out, int in) {
    return dt_linear(x, create_param(x.graph, name, layer, dt_dims(out, in)), (dt_tensor){0});
}

/* One of a transformer's, as small as it goes: about 50 nodes with its gradient. */
static dt_tensor create_layer(dt_tensor x, int layer) {
    dt_tensor one = create_param(x.graph, "norm", layer, dt_dims(MODEL));
    dt_tensor h = dt_rms_norm(x, 1, one, 1e-5f), part[3];
    const char *names[3] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++) {
        part[i] = create_linear(h, names[i], layer, MODEL, MODEL);
        part[i] = dt_reshape(part[i], dt_dims(TOKENS, HEADS, MODEL / HEADS));
        part[i] = dt_permute(part[i], dt_dims(1, 0, 2));
    }
    dt_tensor scores =
        dt_affine(dt_matmul(part[0], dt_permute(part[1], dt_dims(0, 2, 1))), 0.5f, 0);
    h = dt_matmul(dt_softmax(scores, -1), part[2]);
    h = dt_reshape(dt_permute(h, dt_dims(1, 0, 2)), dt_dims(TOKENS, MODEL));
    x = dt_add(x, create_linear(h, "o", layer, MODEL, MODEL));
    h = dt_gelu(create_linear(x, "up", layer, 4 * MODEL, MODEL));
    return dt_add(x, create_linear(h, "down", layer, MODEL, 4 * MODEL));
}

static dt_tensor create_graph(dt_graph *g, const char *name, int count) {
    bool layers = !strcmp(name, "layers");
    dt_shape shape = layers ? dt_dims(TOKENS, MODEL) : dt_dims(8);
    dt_tensor x = dt_input(g, "x", DT_F32, shape), first = x;
    if (!strcmp(name, "trained"))
        x = dt_mul(x, create_param(g, "w", 0, dt_dims(8)));
    for (int i = 0; i < count; i++) {
        if (layers)
            x = create_layer(x, i);
        else if (!strcmp(name, "params"))
            x = dt_mul(x, create_param(g, "w", i, dt_dims(8)));
        else if (!strcmp(name, "fan"))
            x = dt_add(x, dt_affine(first, 0.5f, 0));
        else
            x = i % 2 ? dt_tanh(x) : dt_sigmoid(x);
    }
    return x;
}

/* maps: a chain without gradients; trained: one with them; params: one with a parameter a node;
 * fan: one tensor that all read; layers: a transformer's. layers:bf16: in mixed precision. */
static void create(const char *given, int count) {
    session s = session_open(1, "cpu");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(given, ":"), given);
    double start = work_ms(1);
    dt_tensor x = create_graph(s.graph, name, count);
    double graph = since(&start);
    try(s.ctx, dt_store_create(s.graph, &(dt_store_desc){.device = "cpu"}, &s.store), name);
    double store = since(&start);
    const dt_optim_desc adamw = {.kind = DT_OPTIM_ADAMW};
    dt_program_desc desc = {.label = name, .batch = 1, .precision = precision_of(given)};
    if (!strcmp(name, "maps") || !strcmp(name, "fan")) {
        desc.outputs[0] = x;
    } else {
        desc.loss = dt_mean_loss(x);
        desc.optim = &adamw;
    }
    since(&start);
    try(s.ctx, dt_program_create(s.store, &desc, &s.program), name);
    double program = since(&start);
    dt_program_info info;
    dt_program_get_info(s.program, &info);
    session_close(&s);
    printf("{\"kind\": \"create\", \"name\": \"%s\", \"count\": %d, \"graph_ms\": %.2f, "
           "\"store_ms\": %.2f, \"program_ms\": %.2f, \"destroy_ms\": %.2f, \"launches\": %d, "
           "\"transient_bytes\": %llu}\n",
           given, count, graph, store, program, since(&start), info.launches,
           (unsigned long long)info.transient_bytes);
}

/* A store of that number of millions of normal values, filled by that number of threads. */
static void fill(int threads, int millions) {
    session s = session_open(threads, "cpu");
    char name[32];
    for (int i = 0; i < millions; i++) {
        snprintf(name, sizeof name, "w%d", i);
        dt_param(s.graph, name, dt_dims(1000, 1000), (dt_init){.kind = DT_INIT_NORMAL, .b = 1.0f});
    }
    double start = now_ms();
    try(s.ctx, dt_store_create(s.graph, &(dt_store_desc){.device = "cpu"}, &s.store), "fill");
    printf("{\"kind\": \"fill\", \"threads\": %d, \"millions\": %d, \"ms\": %.1f}\n", threads,
           millions, now_ms() - start);
    session_close(&s);
}
