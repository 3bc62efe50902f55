/* Models that are split over tensor ranks (.tensor), and data for them. Included after
 * train_model.h. */

enum { TEAM_ROWS = 60, TEAM_POS = 4, TEAM_WIDTH = 24, TEAM_CLASSES = 7, TEAM_WORDS = 12 };

typedef struct team_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t, loss, right;
    int32_t tokens[TEAM_ROWS * TEAM_POS], targets[TEAM_ROWS * TEAM_POS];
} team_model;

enum { TEAM_STEPS = 6 };

typedef struct team_grid {
    int tensor_ranks, accumulate, batch_slices, replicas, slices;
    bool rows; /* of the sequence are split */
} team_grid;

enum {
    TEAM_MLP,
    TEAM_GATED,
    TEAM_ATTENTION,
    TEAM_BLOCKS,
    TEAM_KINDS,
    TEAM_BATCH_NORM,
    /* tensor ranks have parts of the classes */
    TEAM_HEAD,    /* embedding and head of their own, smoothed targets */
    TEAM_TIED,    /* one table, padded */
    TEAM_COLUMNS, /* columns of the table, class weights */
    TEAM_LAST
};

static dt_tensor team_mlp(dt_tensor h, const char *name) {
    const dt_linear_desc up = {.tensor = DT_TENSOR_COLUMN}, down = {.tensor = DT_TENSOR_ROW};
    char part[2][32];
    snprintf(part[0], sizeof part[0], "%s.up", name);
    snprintf(part[1], sizeof part[1], "%s.down", name);
    dt_tensor y = dt_gelu(dt_nn_linear_with(h, part[0], 4 * TEAM_WIDTH, &up));
    return dt_add(h, dt_dropout(dt_nn_linear_with(y, part[1], TEAM_WIDTH, &down), 0.1f));
}

static dt_tensor team_attend(dt_tensor h, const char *name) {
    const dt_attention_layer_desc d = {
        .attention = {.causal = true}, .kv_heads = 4, .use_rope = true};
    return dt_add(h, dt_nn_multi_head_attention(h, (dt_tensor){0}, name, 12, &d));
}

static dt_tensor team_block(dt_tensor h, int kind, int layer) {
    char name[16], norm[2][16];
    snprintf(name, sizeof name, "h%d", layer);
    snprintf(norm[0], sizeof norm[0], "ln%d.1", layer);
    snprintf(norm[1], sizeof norm[1], "ln%d.2", layer);
    if (kind == TEAM_ATTENTION || kind == TEAM_BLOCKS)
        h = team_attend(dt_nn_layer_norm(h, norm[0], 1), name);
    if (kind == TEAM_GATED)
        return dt_add(h, dt_nn_swiglu(dt_nn_rms_norm(h, norm[1], 1), name, 36));
    return kind == TEAM_ATTENTION ? h : team_mlp(dt_nn_layer_norm(h, norm[1], 1), name);
}

static bool team_inputs(team_model *m, int classes, bool vulkan) {
    uint32_t state = 11;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = !vulkan}, &m->ctx) ||
        dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_I32, dt_dims(TEAM_POS));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims(TEAM_POS));
    for (int i = 0; i < TEAM_ROWS * TEAM_POS; i++) {
        m->tokens[i] = (int32_t)(train_random(&state) % (uint32_t)classes);
        m->targets[i] = i % 13 == 5 ? -100 : (m->tokens[i] * 3 + i % TEAM_POS) % classes;
    }
    return true;
}

static dt_tensor team_embedding(team_model *m, int kind, dt_tensor *table) {
    const dt_embedding_desc rows = {.tensor = DT_TENSOR_ROW, .padding_idx = 7},
                            columns = {.tensor = DT_TENSOR_COLUMN};
    const dt_linear_desc down = {.tensor = DT_TENSOR_ROW};
    switch (kind) {
    case TEAM_HEAD: return dt_nn_embedding_with(m->x, "tokens", TEAM_WORDS, TEAM_WIDTH, &rows);
    case TEAM_TIED:
        *table = dt_tensor_parallel(dt_param(m->graph, "table", dt_dims(TEAM_WORDS, TEAM_WIDTH),
                                             (dt_init){DT_INIT_NORMAL, 0.0f, 0.5f}),
                                    0);
        return dt_embedding(*table, m->x);
    case TEAM_COLUMNS:
        return dt_nn_linear_with(
            dt_nn_embedding_with(m->x, "tokens", TEAM_WORDS, TEAM_WIDTH, &columns), "in",
            TEAM_WIDTH, &down);
    default: return dt_nn_embedding(m->x, "tokens", TEAM_CLASSES, TEAM_WIDTH);
    }
}

__attribute__((__unused__)) static bool team_make(team_model *m, int kind, bool vulkan) {
    const bool words = kind > TEAM_BATCH_NORM;
    const dt_linear_desc column = {.tensor = DT_TENSOR_COLUMN}, plain = {0};
    dt_cross_entropy_desc d = {.label_smoothing = kind == TEAM_HEAD ? 0.1f : 0.0f};
    dt_tensor table = {0};
    if (!team_inputs(m, words ? TEAM_WORDS : TEAM_CLASSES, vulkan))
        return false;
    dt_tensor h = team_embedding(m, kind, &table);
    if (kind == TEAM_BATCH_NORM)
        h = dt_nn_batch_norm(h, "bn", NULL);
    for (int layer = 0; layer < 2; layer++)
        h = team_block(h, words && layer ? TEAM_BLOCKS : kind, layer);
    h = dt_dropout(h, 0.1f); /* what all have drops alike */
    if (kind == TEAM_COLUMNS)
        d.class_weights = dt_freeze(dt_param(m->graph, "weights", dt_dims(TEAM_WORDS),
                                             (dt_init){DT_INIT_UNIFORM, 0.5f, 2.0f}));
    dt_tensor logits = kind == TEAM_TIED
                           ? dt_linear(h, table, (dt_tensor){0})
                           : dt_nn_linear_with(h, "head", words ? TEAM_WORDS : TEAM_CLASSES,
                                               words ? &column : &plain);
    m->loss = dt_cross_entropy(logits, m->t, &d);
    m->right = dt_accuracy(logits, m->t);
    return dt_graph_error(m->graph) == NULL;
}

__attribute__((__unused__)) static dt_trainer_desc team_desc(const team_model *m,
                                                             const dt_optim_desc *optim) {
    return (dt_trainer_desc){
        .loss = m->loss,
        .metrics = {m->right},
        .optim = optim,
        .batch = 16,
        .seed = 4,
        .data = {.rows = TEAM_ROWS,
                 .columns = {{.input = m->x, .data = m->tokens, .dtype = DT_I32},
                             {.input = m->t, .data = m->targets, .dtype = DT_I32}}}};
}

/* On that many CPU devices; tensor_ranks 0: replicas of the whole model. */
__attribute__((__unused__)) static void team_grid_to(const team_grid *grid, dt_trainer_desc *d,
                                                     char devices[16]) {
    snprintf(devices, 16, "cpu:%d",
             (grid->tensor_ranks ? grid->tensor_ranks : 1) * (grid->replicas ? grid->replicas : 1));
    d->devices = devices;
    d->parallel.tensor = grid->tensor_ranks;
    d->parallel.tensor_slices = grid->slices;
    d->parallel.replicas = grid->replicas;
    d->parallel.batch_slices = grid->batch_slices;
    d->accumulate = grid->accumulate;
    d->parallel.sequence_parallel = grid->rows;
}
