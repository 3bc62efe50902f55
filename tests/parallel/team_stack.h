/* Random stacks of pairs and attention, split over tensor ranks. */
#include "parallel/team_model.h"

enum { STACK_LAYERS = 4 };

typedef struct stack { /* sizes that all of 2, 3 and 4 tensor ranks divide */
    int layers, kind[STACK_LAYERS], hidden[STACK_LAYERS], act[STACK_LAYERS], heads;
    bool mask, freeze, words, rows, drop;
} stack;

static stack stack_of(uint32_t seed) {
    uint32_t state = seed;
    stack s = {.layers = 1 + (int)(train_random(&state) % STACK_LAYERS), .heads = 12};
    for (int i = 0; i < s.layers; i++) {
        s.kind[i] = (int)(train_random(&state) % 4);
        s.hidden[i] = 12 * (1 + (int)(train_random(&state) % 4));
        s.act[i] = (int)(train_random(&state) % 4);
    }
    s.mask = train_random(&state) % 2;
    s.freeze = train_random(&state) % 3 == 0;
    s.words = train_random(&state) % 2;
    s.rows = train_random(&state) % 2;
    s.drop = train_random(&state) % 2;
    return s;
}

static dt_tensor stack_act(dt_tensor h, int act) {
    switch (act) {
    case 0: return dt_silu(h);
    case 1: return dt_mul(dt_tanh(h), dt_sigmoid(h)); /* read twice */
    case 2: return dt_affine(dt_relu(dt_reshape(h, dt_dims(TEAM_POS, 1, -1))), 0.5f, 0.1f);
    default: return h;
    }
}

static dt_tensor stack_layer(dt_tensor h, const stack *s, int i, dt_tensor mask) {
    const dt_linear_desc up = {.tensor = DT_TENSOR_COLUMN, .no_bias = i % 2},
                         down = {.tensor = DT_TENSOR_ROW, .no_bias = i == 1};
    const dt_attention_layer_desc a = {.attention = {.mask = s->mask ? mask : (dt_tensor){0}},
                                       .no_bias = i % 2};
    char name[3][16];
    for (int k = 0; k < 3; k++)
        snprintf(name[k], sizeof name[k], "l%d.%d", i, k);
    h = dt_nn_rms_norm(h, name[2], 1);
    if (s->kind[i] == 0)
        return dt_nn_multi_head_attention(h, (dt_tensor){0}, name[0], s->heads, &a);
    if (s->kind[i] == 1)
        return dt_nn_geglu(h, name[0], s->hidden[i]);
    dt_tensor y = stack_act(dt_nn_linear_with(h, name[0], s->hidden[i], &up), s->act[i]);
    if (s->kind[i] == 2) /* a scale that all have, of parts */
        y = dt_mul(y, dt_param(h.graph, name[2], dt_dims(1), (dt_init){DT_INIT_CONSTANT, 0.7f, 0}));
    if (dt_tensor_shape(y).rank == 3)
        y = dt_reshape(y, dt_dims(TEAM_POS, s->hidden[i]));
    return dt_nn_linear_with(y, name[1], TEAM_WIDTH, &down);
}

static bool stack_make(team_model *m, const stack *s) {
    if (!team_inputs(m, s->words ? TEAM_WORDS : TEAM_CLASSES, false))
        return false;
    dt_graph *g = m->graph;
    bool masked = false;
    for (int i = 0; i < s->layers; i++)
        masked = masked || (s->mask && s->kind[i] == 0);
    dt_tensor mask = {0};
    if (masked)
        mask = dt_param(g, "mask", dt_dims(TEAM_POS, TEAM_POS),
                        (dt_init){DT_INIT_UNIFORM, -1.0f, 1.0f});
    const dt_embedding_desc table = {.tensor = s->words ? DT_TENSOR_ROW : DT_TENSOR_REPLICATED};
    const dt_linear_desc head = {.tensor = s->words ? DT_TENSOR_COLUMN : DT_TENSOR_REPLICATED};
    const int classes = s->words ? TEAM_WORDS : TEAM_CLASSES;
    dt_tensor h = dt_nn_embedding_with(m->x, "words", classes, TEAM_WIDTH, &table);
    for (int i = 0; i < s->layers; i++)
        h = dt_add(h, dt_dropout(stack_layer(h, s, i, mask), s->drop ? 0.1f : 0.0f));
    dt_tensor logits = dt_nn_linear_with(h, "out", classes, &head);
    m->loss = dt_cross_entropy(logits, m->t, NULL);
    m->right = dt_accuracy(logits, m->t);
    return dt_graph_error(g) == NULL;
}

/* Losses of the steps, the norm of the last gradient, and what the parameters are (hash NULL: not
 * asked). */
static bool stack_run(const stack *s, const team_grid *grid, double out[TEAM_STEPS + 1],
                      uint64_t *hash) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.05, .clip_norm = 1.0};
    team_model m;
    dt_trainer *t;
    char devices[16];
    if (!CHECK_TEXT(stack_make(&m, s), "made"))
        return false;
    dt_trainer_desc d = team_desc(&m, &sgd);
    team_grid_to(grid, &d, devices);
    d.params = s->freeze ? "l*.0*" : NULL; /* and then nothing flows to the layers before */
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    for (int i = 0; i < TEAM_STEPS && !result; i++) {
        dt_train_report r;
        result = dt_trainer_step(t, &r);
        out[i] = r.loss;
        out[TEAM_STEPS] = r.gradient_norm;
    }
    if (!result && hash)
        result = dt_store_state_hash(dt_trainer_store(t), hash);
    CHECK_TEXT(!result, "%d tensor ranks in %d slices: %s", grid->tensor_ranks, grid->slices,
               dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return !result;
}
