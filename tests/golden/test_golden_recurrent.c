/* LSTM, GRU and RNN against PyTorch's recorded values and gradients
 * (tools/golden/record_golden_recurrent.py). */
#include "golden/golden.h"

#include <string.h>

enum { RECURRENT_BATCH = 3, RECURRENT_STEPS = 5, RECURRENT_INPUTS = 3, RECURRENT_HIDDEN = 4 };
#define RECURRENT_NEAR 3e-6

typedef dt_recurrent recurrent_fn(dt_tensor x, const char *name, int64_t hidden,
                                  const dt_recurrent_desc *desc);
typedef struct recurrent_case {
    const char *name;
    recurrent_fn *make;
    dt_recurrent_desc desc;
    bool more; /* lengths and states */
} recurrent_case;

static const recurrent_case recurrents[] = {
    {"lstm", dt_nn_lstm, {0}, false},
    {"lstm_deep", dt_nn_lstm, {.layers = 2, .bidirectional = true}, true},
    {"lstm_projected", dt_nn_lstm, {.layers = 2, .bidirectional = true, .projection = 2}, true},
    {"lstm_bare", dt_nn_lstm, {.layers = 2, .no_bias = true, .projection = 3}, false},
    {"gru", dt_nn_gru, {0}, false},
    {"gru_deep", dt_nn_gru, {.layers = 2, .bidirectional = true}, true},
    {"gru_bare", dt_nn_gru, {.layers = 2, .no_bias = true}, false},
    {"rnn", dt_nn_rnn, {.layers = 2, .bidirectional = true}, true},
    {"rnn_relu", dt_nn_rnn, {.layers = 2, .relu = true}, false},
};

/* The layer's inputs and results, by the fixture's names: x, h0, c0; y, h, c; and the weights of
 * the results. */
typedef struct recurrent_net {
    dt_tensor in[3], lengths, out[3], weight[3], slope[3], loss;
    int ins, outs;
} recurrent_net;

static const char *const recurrent_in[] = {"x", "h0", "c0"};
static const char *const recurrent_out[] = {"y", "h", "c"};

static const golden_array *recurrent_array(golden *g, const char *name, const char *before,
                                           const char *what) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s%s", name, before, what);
    return golden_get(g, key);
}

static bool recurrent_build(golden *g, const recurrent_case *c, recurrent_net *n) {
    const int rows = (c->desc.layers ? c->desc.layers : 1) * (c->desc.bidirectional ? 2 : 1);
    const int64_t size = c->desc.projection ? c->desc.projection : RECURRENT_HIDDEN;
    dt_recurrent_desc desc = c->desc;
    *n = (recurrent_net){.ins = 1};
    n->in[0] = dt_input(g->graph, "x", DT_F32, dt_dims(RECURRENT_STEPS, RECURRENT_INPUTS));
    if (c->more) {
        desc.lengths = n->lengths = dt_input(g->graph, "lengths", DT_I32, dt_dims());
        desc.h = n->in[n->ins++] = dt_input(g->graph, "h0", DT_F32, dt_dims(rows, size));
        if (c->make == dt_nn_lstm)
            desc.c = n->in[n->ins++] =
                dt_input(g->graph, "c0", DT_F32, dt_dims(rows, RECURRENT_HIDDEN));
    }
    const dt_recurrent r = c->make(n->in[0], c->name, RECURRENT_HIDDEN, &desc);
    const dt_tensor out[3] = {r.y, r.h, r.c};
    dt_tensor sum = {0};
    for (n->outs = 0; n->outs < (c->make == dt_nn_lstm ? 3 : 2); n->outs++) {
        const int i = n->outs;
        n->out[i] = out[i];
        n->weight[i] =
            dt_input(g->graph, i ? i > 1 ? "wc" : "wh" : "wy", DT_F32, dt_tensor_shape(out[i]));
        dt_tensor part = dt_sum(dt_mul(out[i], n->weight[i]), dt_dims(0, 1), false);
        sum = i ? dt_add(sum, part) : part;
    }
    for (int i = 0; i < n->ins; i++)
        n->slope[i] = dt_gradient(sum, n->in[i]);
    n->loss = dt_mean_loss(sum);
    const char *error = dt_graph_error(g->graph);
    return test_check(!error, __FILE__, __LINE__, "%s: %s", c->name, error ? error : "");
}

static bool recurrent_write(golden *g, dt_program *p, dt_tensor x, const golden_array *a) {
    return a && OK(g, dt_program_write(p, x, a->data, a->count * 4));
}

static void recurrent_same(golden *g, dt_program *p, dt_tensor y, const golden_array *a) {
    float *got = a ? calloc(a->count, sizeof *got) : NULL;
    if (got && OK(g, dt_program_read(p, y, got, a->count * 4)))
        golden_same(a, 0, got, a->count, RECURRENT_NEAR);
    free(got);
}

static void recurrent_gradients(golden *g) {
    for (int i = 0; i < dt_store_param_count(g->store); i++) {
        dt_param_info info;
        char key[160];
        if (!OK(g, dt_store_get_param(g->store, i, &info)))
            return;
        snprintf(key, sizeof key, "grad.%s", info.name);
        const golden_array *a = golden_get(g, key);
        float *got = a ? calloc(a->count, sizeof *got) : NULL;
        if (got && OK(g, dt_store_read(g->store, i, DT_VALUE_GRADIENT, got, a->count * 4)))
            golden_same(a, 0, got, a->count, RECURRENT_NEAR);
        free(got);
    }
}

static void recurrent_check(golden *g, const recurrent_case *c) {
    recurrent_net n;
    if (!recurrent_build(g, c, &n) || !golden_store(g))
        return;
    dt_program_desc desc = {.label = c->name,
                            .loss = n.loss,
                            .batch = RECURRENT_BATCH,
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.05}};
    for (int i = 0; i < n.outs; i++)
        desc.outputs[i] = n.out[i];
    for (int i = 0; i < n.ins; i++)
        desc.outputs[n.outs + i] = n.slope[i];
    dt_program *p = golden_program(g, desc);
    bool good = p != NULL;
    for (int i = 0; i < n.ins && good; i++)
        good = recurrent_write(g, p, n.in[i], recurrent_array(g, c->name, "", recurrent_in[i]));
    for (int i = 0; i < n.outs && good; i++)
        good =
            recurrent_write(g, p, n.weight[i], recurrent_array(g, c->name, "w", recurrent_out[i]));
    if (good && c->more)
        good = recurrent_write(g, p, n.lengths, recurrent_array(g, c->name, "", "lengths"));
    if (!good || !OK(g, dt_program_run(p, NULL, NULL)))
        return;
    for (int i = 0; i < n.outs; i++)
        recurrent_same(g, p, n.out[i], recurrent_array(g, c->name, "", recurrent_out[i]));
    for (int i = 0; i < n.ins; i++)
        recurrent_same(g, p, n.slope[i], recurrent_array(g, c->name, "d", recurrent_in[i]));
    recurrent_gradients(g);
}

/* Each on a graph of its own. */
GOLDEN(recurrent_layers_give_pytorchs_values_and_gradients, "recurrent") {
    for (size_t i = 0; i < sizeof recurrents / sizeof *recurrents; i++) {
        recurrent_check(g, &recurrents[i]);
        while (g->program_count > 0)
            dt_program_destroy(g->programs[--g->program_count]);
        dt_store_destroy(g->store);
        dt_graph_destroy(g->graph);
        g->store = NULL;
        g->graph = NULL;
        if (!OK(g, dt_graph_create(g->ctx, &g->graph)))
            return;
    }
}
