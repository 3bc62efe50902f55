/* Seven networks, and the needs of a step of each. These are its launches, as the lowering makes
 * them for Vulkan's least limits. They are laid out in workgroups for a GPU that has memory for
 * them. It needs no device and no store. tools/check/dtlint.c prints it and finds launches that
 * leave a GPU idle. tests/unit/test_launches.c holds what a step has. Needs dtrain.h with its
 * implementation. */

/* ---- the networks */

typedef struct launches_net {
    const char *name;
    int batch;
    dt_tensor (*make)(dt_graph *g, dt_tensor *target); /* logits */
} launches_net;

static dt_tensor launches_classes(dt_graph *g, dt_tensor *target) {
    *target = dt_input(g, "t", DT_I32, (dt_shape){0});
    return dt_input(g, "x", DT_F32, dt_dims(784));
}

static dt_tensor launches_mlp(dt_graph *g, dt_tensor *target) {
    dt_tensor h = dt_nn_linear(launches_classes(g, target), "fc1", 128);
    return dt_nn_linear(dt_relu(h), "fc2", 10);
}

static dt_tensor launches_mlp_wide(dt_graph *g, dt_tensor *target) {
    dt_tensor h = dt_relu(dt_nn_linear(launches_classes(g, target), "fc1", 1024));
    return dt_nn_linear(dt_relu(dt_nn_linear(h, "fc2", 1024)), "fc3", 10);
}

/* That of PyTorch's MNIST example. */
static dt_tensor launches_cnn(dt_graph *g, dt_tensor *target) {
    dt_tensor h = dt_reshape(launches_classes(g, target), dt_dims(1, 28, 28));
    h = dt_relu(dt_nn_conv2d(h, "conv1", 32, 3, NULL));
    h = dt_relu(dt_nn_conv2d(h, "conv2", 64, 3, NULL));
    h = dt_max_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}});
    h = dt_flatten(dt_dropout(h, 0.25f));
    h = dt_relu(dt_nn_linear(h, "fc1", 128));
    return dt_nn_linear(dt_dropout(h, 0.5f), "fc2", 10);
}

static dt_tensor launches_conv_norm(dt_tensor h, const char *name, int channels, int stride,
                                    int kernel) {
    char norm[64];
    const dt_conv_layer_desc d = {
        .no_bias = true, .conv = {.stride = {stride, stride}, .padding = {kernel / 2, kernel / 2}}};
    snprintf(norm, sizeof norm, "%s.norm", name);
    return dt_nn_batch_norm(dt_nn_conv2d(h, name, channels, kernel, &d), norm, NULL);
}

static dt_tensor launches_resnet_block(dt_tensor h, int i) {
    const int stride = i == 3 || i == 6 ? 2 : 1, channels = 16 << i / 3;
    char name[3][32];
    for (int k = 0; k < 3; k++)
        snprintf(name[k], sizeof name[k], "block%d.%s", i, k < 1 ? "a" : k < 2 ? "b" : "down");
    dt_tensor y = dt_relu(launches_conv_norm(h, name[0], channels, stride, 3));
    y = launches_conv_norm(y, name[1], channels, 1, 3);
    if (stride > 1)
        h = launches_conv_norm(h, name[2], channels, stride, 1);
    return dt_relu(dt_add(y, h));
}

static dt_tensor launches_resnet(dt_graph *g, dt_tensor *target) {
    dt_tensor h = dt_input(g, "x", DT_F32, dt_dims(3, 32, 32));
    *target = dt_input(g, "t", DT_I32, (dt_shape){0});
    h = dt_relu(launches_conv_norm(h, "first", 16, 1, 3));
    for (int i = 0; i < 9; i++)
        h = launches_resnet_block(h, i);
    return dt_nn_linear(dt_flatten(dt_adaptive_avg_pool2d(h, 1, 1)), "fc", 10);
}

/* 6 layers of 6 heads, 384 wide, over 128 characters of 65. */
enum { LAUNCHES_TIME = 128, LAUNCHES_WIDTH = 384, LAUNCHES_HEADS = 6, LAUNCHES_CHARACTERS = 65 };

static dt_tensor launches_gpt_layer(dt_tensor h, int i) {
    static const char *const parts[] = {"ln1", "attention", "ln2", "fc", "fc2"};
    const dt_attention_layer_desc causal = {.attention = {.causal = true}};
    char name[5][32];
    for (int k = 0; k < 5; k++)
        snprintf(name[k], sizeof name[k], "layer%d.%s", i, parts[k]);
    dt_tensor y = dt_nn_layer_norm(h, name[0], 1);
    h = dt_add(h, dt_nn_multi_head_attention(y, y, name[1], LAUNCHES_HEADS, &causal));
    y = dt_gelu(dt_nn_linear(dt_nn_layer_norm(h, name[2], 1), name[3], 4 * LAUNCHES_WIDTH));
    return dt_add(h, dt_nn_linear(y, name[4], LAUNCHES_WIDTH));
}

static dt_tensor launches_gpt(dt_graph *g, dt_tensor *target) {
    const dt_shape time = dt_dims(LAUNCHES_TIME);
    dt_tensor x = dt_input(g, "x", DT_I32, time);
    *target = dt_input(g, "t", DT_I32, time);
    dt_tensor places = dt_param(g, "places", dt_dims(LAUNCHES_TIME, LAUNCHES_WIDTH), (dt_init){0});
    dt_tensor h = dt_nn_embedding(x, "characters", LAUNCHES_CHARACTERS, LAUNCHES_WIDTH);
    h = dt_add(h, places);
    for (int i = 0; i < 6; i++)
        h = launches_gpt_layer(h, i);
    return dt_nn_linear(dt_nn_layer_norm(h, "norm", 1), "head", LAUNCHES_CHARACTERS);
}

/* A cell of 64 values over 8 steps of 16, unrolled; every gate has weights of its own. */
typedef struct launches_gate {
    dt_tensor in, on, bias; /* weights of the step's input, and of the cell's last output */
} launches_gate;

static void launches_gates(dt_graph *g, launches_gate gate[4]) {
    char name[3][16];
    for (int k = 0; k < 4; k++) {
        snprintf(name[0], sizeof name[0], "gate%d.in", k);
        snprintf(name[1], sizeof name[1], "gate%d.on", k);
        snprintf(name[2], sizeof name[2], "gate%d.bias", k);
        gate[k].in = dt_param(g, name[0], dt_dims(64, 16), (dt_init){0});
        gate[k].on = dt_param(g, name[1], dt_dims(64, 64), (dt_init){0});
        gate[k].bias = dt_param(g, name[2], dt_dims(64), (dt_init){0});
    }
}

/* Two layers of 128 units over 64 steps, by rows that walk over them. */
static dt_tensor launches_lstm_layers(dt_graph *g, dt_tensor *target) {
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(64, 32));
    *target = dt_input(g, "y", DT_I32, dt_dims());
    const dt_recurrent r = dt_nn_lstm(x, "lstm", 128, &(dt_recurrent_desc){.layers = 2});
    return dt_nn_linear(dt_reshape(dt_slice(r.h, 0, 1, 1), dt_dims(128)), "out", 10);
}

static dt_tensor launches_lstm(dt_graph *g, dt_tensor *target) {
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(8, 16)), h = {0}, c = {0};
    launches_gate gate[4];
    *target = dt_input(g, "t", DT_I32, (dt_shape){0});
    launches_gates(g, gate);
    for (int64_t i = 0; i < 8; i++) {
        dt_tensor at = dt_reshape(dt_slice(x, 0, i, 1), dt_dims(16)), y[4];
        for (int k = 0; k < 4; k++) {
            y[k] = dt_linear(at, gate[k].in, gate[k].bias);
            if (i)
                y[k] = dt_add(y[k], dt_linear(h, gate[k].on, (dt_tensor){0}));
            y[k] = k == 2 ? dt_tanh(y[k]) : dt_sigmoid(y[k]);
        }
        dt_tensor made = dt_mul(y[0], y[2]);
        c = i ? dt_add(dt_mul(y[1], c), made) : made;
        h = dt_mul(y[3], dt_tanh(c));
    }
    return dt_nn_linear(h, "out", 10);
}

static const launches_net launches_nets[] = {
    {"mlp", 64, launches_mlp},
    {"mlp_wide", 64, launches_mlp_wide},
    {"cnn", 64, launches_cnn},
    {"resnet", 64, launches_resnet},
    {"gpt", 16, launches_gpt},
    {"lstm", 64, launches_lstm},
    {"lstm_layers", 32, launches_lstm_layers},
};

/* ---- their steps */

typedef struct launches_step { /* one training step with AdamW, made for a device by its limits */
    dt_ctx *ctx;
    dti_layout layout;
    const dti_code *code;
} launches_step;

static dt_result launches_open(launches_step *s, const launches_net *net) {
    dt_graph *g;
    dt_tensor target;
    const dt_optim_desc optim = {.kind = DT_OPTIM_ADAMW, .lr = 1e-3};
    *s = (launches_step){0};
    dt_result result = dt_ctx_create(&(dt_ctx_desc){.threads = 1, .no_vulkan = true}, &s->ctx);
    if (!result)
        result = dt_graph_create(s->ctx, &g);
    if (result)
        return result;
    dt_tensor logits = net->make(g, &target);
    const dt_program_desc program = {.label = net->name,
                                     .loss = dt_cross_entropy(logits, target, NULL),
                                     .batch = net->batch,
                                     .optim = &optim};
    dti_code_desc desc = {
        .graph = g,
        .program = &program,
        .layout = &s->layout,
        .limits = {.storage_range_bytes = 128u << 20, .workgroups = true, .apart = true}};
    result = dti_layout_make(g->base, g, DT_F32, &s->layout);
    if (!result)
        result = dti_graph_clone(g, g->ctx, &desc.work);
    return result ? result : dti_code_create(g->base, &desc, &s->code);
}

static void launches_close(launches_step *s) {
    dti_base *base = s->code ? s->code->base : NULL;
    dti_code_free(s->code);
    if (base)
        dti_free(base, s->layout.params);
    dt_ctx_destroy(s->ctx);
}

/* ---- what they ask of a device */

typedef struct launches_fact { /* of a launch */
    const char *kernel;
    bool barrier; /* before it */
    uint32_t local;
    uint64_t groups, bytes; /* bytes: of what it binds */
    dti_effort effort;
} launches_fact;

/* A GPU with memory for its workgroups, and workgroups of 256. */
static const dti_grid_device launches_gpu = {.invocations_max = 256, .shared_bytes = 16384};

static launches_fact launches_fact_of(const dti_code *code, const dti_launch *l,
                                      dti_vk_hazard *hazard) {
    dti_vk_access accesses[DTI_BINDINGS_MAX];
    uint32_t spec[4];
    const uint32_t count = dti_vk_accesses_of(l, code->places, accesses);
    const uint32_t variant = dti_vk_grid_variant(l, &launches_gpu);
    const uint32_t local = dti_vk_grid_local_of(l, variant, &launches_gpu);
    dti_vk_spec_of(l, variant, &launches_gpu, spec);
    launches_fact f = {.kernel = dti_kernel_info_of(l->kernel)->name,
                       .barrier = dti_vk_hazard_add(hazard, accesses, count),
                       .local = local,
                       .groups = dti_vk_groups_of(l, spec, variant, local),
                       .effort = dti_launch_effort(l, variant, local)};
    for (uint32_t i = 0; i < count; i++)
        f.bytes += accesses[i].end - accesses[i].begin;
    return f;
}

/* Calls `each` with every launch of a step, in order; a segment begins without hazards. */
static void launches_walk(const dti_code *code, void (*each)(void *user, const launches_fact *f),
                          void *user) {
    for (uint32_t s = 0; s < code->segment_count && s < code->weigh_segment; s++) {
        const dti_segment *segment = &code->segments[s];
        dti_vk_hazard hazard = {0};
        for (uint32_t i = segment->first; i < segment->first + segment->count; i++) {
            if (!code->list.launches[i].items)
                continue;
            const launches_fact f = launches_fact_of(code, &code->list.launches[i], &hazard);
            each(user, &f);
        }
    }
}
