/* Recurrent layers. Each layer and direction has a product of all steps, and a row that walks over
 * them. The two biases are added up first, except GRU's for the candidate, which the reset gate
 * multiplies. */

#define DTI_NN_LAYERS_MAX 64

/* A layer under construction. */
typedef struct dti_nn_recurrent {
    dt_graph *graph;
    const char *op, *name;
    const dt_recurrent_desc *d;
    uint32_t kind;
    int64_t hidden, size, gates;
    int layers, directions;
    dt_tensor length;                                             /* f32 [1], or {0} */
    dt_tensor h[2 * DTI_NN_LAYERS_MAX], c[2 * DTI_NN_LAYERS_MAX]; /* final states */
} dti_nn_recurrent;

static bool dti_nn_recurrent_fail(const dti_nn_recurrent *r, const char *what, double value,
                                  const char *remedy) {
    return dti_graph_refuse(r->graph, "%s '%s': %s is %g; it must be %s", r->op, r->name, what,
                            value, remedy);
}

static bool dti_nn_recurrent_numbers_fit(const dti_nn_recurrent *r) {
    const dt_recurrent_desc *d = r->d;
    if (r->hidden < 1 || r->hidden > INT32_MAX / 8)
        return dti_nn_recurrent_fail(r, "hidden", (double)r->hidden, "from 1 to 2^28 - 1");
    if (d->layers < 0 || d->layers > DTI_NN_LAYERS_MAX)
        return dti_nn_recurrent_fail(r, "layers", d->layers, "from 1 to 64 (0 = 1)");
    if (d->projection && r->kind != DTI_RECURRENCE_LSTM)
        return dti_nn_recurrent_fail(r, "projection", (double)d->projection,
                                     "0, as only LSTM has a projection");
    if (d->projection < 0 || d->projection >= r->hidden)
        return dti_nn_recurrent_fail(r, "projection", (double)d->projection,
                                     "at least 0 (0 = none) and below hidden");
    if (!(d->dropout >= 0.0f && d->dropout <= 1.0f))
        return dti_nn_recurrent_fail(r, "dropout", (double)d->dropout, "in [0, 1]");
    if (d->relu && r->kind != DTI_RECURRENCE_RELU)
        return dti_nn_recurrent_fail(r, "relu", 1, "false, as only dt_nn_rnn has it");
    if (d->c.graph && r->kind != DTI_RECURRENCE_LSTM)
        return dti_nn_recurrent_fail(r, "c", 1, "{0}, as only LSTM has cells");
    return true;
}

/* A tensor of the description: {0}, or of this shape and type. */
static bool dti_nn_recurrent_is(const dti_nn_recurrent *r, dt_tensor x, const char *what,
                                dt_shape shape, dt_dtype dtype) {
    if (!x.graph)
        return true;
    if (dti_is_nil(x)) {
        dti_nil_of(x, r->op);
        return dti_nn_recurrent_fail(r, what, 0, "{0}, or a tensor that is not nil");
    }
    if (x.graph != r->graph)
        return dti_graph_refuse(r->graph, "%s '%s': %s is a tensor of another graph, %s", r->op,
                                r->name, what, dti_tensor_elsewhere(r->graph, x).text);
    const dti_node *n = dti_node_of(x);
    if (dti_shape_equal(n->shape, shape) && n->dtype == dtype && !n->term)
        return true;
    return dti_graph_refuse(r->graph, "%s '%s': %s is %s%s; it must be %s %s of each sample", r->op,
                            r->name, what, dti_shape_print(n->shape, n->samples).text,
                            n->term             ? ", a loss term"
                            : n->dtype == dtype ? ""
                                                : " of another type",
                            dti_dtype_name(dtype), dti_shape_print(shape, false).text);
}

static bool dti_nn_recurrent_tensors_fit(const dti_nn_recurrent *r, dt_tensor x) {
    const int64_t rows = (int64_t)r->layers * r->directions;
    const dti_node *n = dti_node_of(x);
    if (n->shape.rank != 2 || n->dtype != DT_F32 || n->term || n->shape.dim[0] < 1 ||
        n->shape.dim[1] < 1)
        return dti_graph_refuse(r->graph, "%s '%s': x %s must be f32 [steps, in] of each sample",
                                r->op, r->name, dti_shape_print(n->shape, n->samples).text);
    return dti_nn_recurrent_is(r, r->d->lengths, "lengths", (dt_shape){0}, DT_I32) &&
           dti_nn_recurrent_is(r, r->d->h, "h", (dt_shape){2, {rows, r->size}}, DT_F32) &&
           dti_nn_recurrent_is(r, r->d->c, "c", (dt_shape){2, {rows, r->hidden}}, DT_F32);
}

static dt_tensor dti_nn_recurrent_param(const dti_nn_recurrent *r, const char *part, int layer,
                                        bool reverse, dt_shape shape) {
    char text[DTI_NN_NAME_SIZE], name[64];
    snprintf(name, sizeof name, "%s_l%d%s", part, layer, reverse ? "_reverse" : "");
    return dt_param(r->graph, dti_nn_name(r->graph, text, r->name, name), shape,
                    dti_nn_init((dt_init){0}, (double)r->hidden));
}

/* Row k of the states before: the given one, or zeros. */
static dt_tensor dti_nn_recurrent_row(const dti_nn_recurrent *r, dt_tensor all, int k,
                                      int64_t size) {
    const dt_shape line = {1, {size}};
    return all.graph ? dt_reshape(dt_slice(all, 0, k, 1), line) : dt_fill(r->graph, line, 0.0f);
}

/* The state before of layer and direction k, as the row takes it. */
static dt_tensor dti_nn_recurrent_before(const dti_nn_recurrent *r, int k) {
    const bool cell = r->kind == DTI_RECURRENCE_LSTM, zeros = !r->d->h.graph && !r->d->c.graph;
    dt_tensor part[3];
    int count = 0;
    if (zeros)
        part[count++] = dt_fill(r->graph, (dt_shape){1, {r->size + (cell ? r->hidden : 0)}}, 0.0f);
    else
        part[count++] = dti_nn_recurrent_row(r, r->d->h, k, r->size);
    if (cell && !zeros)
        part[count++] = dti_nn_recurrent_row(r, r->d->c, k, r->hidden);
    if (r->length.graph)
        part[count++] = r->length;
    return count == 1 ? part[0] : dt_concat(part, count, 0);
}

/* bias: that of the product; more: GRU's of the state's part of the candidate. */
static void dti_nn_recurrent_biases(const dti_nn_recurrent *r, int layer, bool reverse,
                                    dt_tensor *bias, dt_tensor *more) {
    const int64_t h = r->hidden, all = r->gates * h;
    const dt_shape line = {1, {all}};
    const bool gru = r->kind == DTI_RECURRENCE_GRU;
    *bias = (dt_tensor){0};
    if (r->d->no_bias && gru)
        *more = dt_fill(r->graph, (dt_shape){1, {h}}, 0.0f);
    if (r->d->no_bias)
        return;
    dt_tensor input = dti_nn_recurrent_param(r, "bias_ih", layer, reverse, line);
    dt_tensor state = dti_nn_recurrent_param(r, "bias_hh", layer, reverse, line);
    if (gru) {
        *more = dt_slice(state, 0, 2 * h, h);
        dt_tensor first = dt_slice(input, 0, 0, 2 * h), second = dt_slice(state, 0, 0, 2 * h);
        dt_tensor part[2] = {dt_add(first, second)};
        part[1] = dt_slice(input, 0, 2 * h, h);
        *bias = dt_concat(part, 2, 0);
    } else {
        *bias = dt_add(input, state);
    }
}

/* One direction of a layer. */
static dt_tensor dti_nn_recurrent_walk(dti_nn_recurrent *r, dt_tensor x, int layer, bool reverse) {
    const int64_t all = r->gates * r->hidden, in = dti_tensor_shape(x).dim[1];
    const int k = layer * r->directions + reverse;
    const uint32_t flags = (reverse ? DTI_RECURRENCE_REVERSE : 0) |
                           (r->length.graph ? DTI_RECURRENCE_LENGTHS : 0) |
                           (r->d->projection ? DTI_RECURRENCE_PROJECTED : 0);
    dt_tensor row[4] = {{0}}, out[3] = {{0}}, bias;
    dt_tensor w = dti_nn_recurrent_param(r, "weight_ih", layer, reverse, (dt_shape){2, {all, in}});
    row[1] = dti_nn_recurrent_param(r, "weight_hh", layer, reverse, (dt_shape){2, {all, r->size}});
    dti_nn_recurrent_biases(r, layer, reverse, &bias, &row[3]);
    if (r->d->projection)
        row[3] = dti_nn_recurrent_param(r, "weight_hr", layer, reverse,
                                        (dt_shape){2, {r->size, r->hidden}});
    row[0] = dt_linear(x, w, bias);
    row[2] = dti_nn_recurrent_before(r, k);
    if (r->graph->error[0] ||
        !dti_recurrence_append(row, row[3].graph ? 4 : 3, r->kind, flags, out))
        return dti_nil(r->graph);
    r->h[k] = dt_reshape(out[1], (dt_shape){2, {1, r->size}});
    if (r->kind == DTI_RECURRENCE_LSTM)
        r->c[k] = dt_reshape(out[2], (dt_shape){2, {1, r->hidden}});
    return out[0];
}

static dt_tensor dti_nn_recurrent_layers(dti_nn_recurrent *r, dt_tensor x) {
    if (r->d->lengths.graph)
        r->length = dt_reshape(dt_cast(r->d->lengths, DT_F32), (dt_shape){1, {1}});
    for (int layer = 0; layer < r->layers && !dti_is_nil(x); layer++) {
        dt_tensor way[2];
        if (layer && r->d->dropout > 0.0f)
            x = dt_dropout(x, r->d->dropout);
        for (int k = 0; k < r->directions; k++)
            way[k] = dti_nn_recurrent_walk(r, x, layer, k == 1);
        x = r->graph->error[0]   ? dti_nil(r->graph)
            : r->directions == 1 ? way[0]
                                 : dt_concat(way, 2, 1);
    }
    return x;
}

static dt_tensor dti_nn_recurrent_states(const dti_nn_recurrent *r, const dt_tensor *rows) {
    const int count = r->layers * r->directions;
    return count == 1 ? rows[0] : dt_concat(rows, count, 0);
}

static dt_recurrent dti_nn_recurrent_make(dt_tensor x, const char *op, const char *name,
                                          int64_t hidden, const dt_recurrent_desc *d,
                                          uint32_t kind) {
    const dt_recurrent nil = {dti_nil(x.graph), dti_nil(x.graph), dti_nil(x.graph)};
    dti_nn nn;
    if (!DTI_HERE) {
        if (x.graph)
            dti_graph_fail(x.graph, "dt_nn_%s: %s", op, DTI_HERE_OFF);
        return nil;
    }
    if (!dti_nn_begin(&nn, x, op, name))
        return nil;
    dti_nn_recurrent r = {.graph = x.graph,
                          .op = op,
                          .name = name,
                          .d = d,
                          .kind = kind,
                          .hidden = hidden,
                          .size = d->projection ? d->projection : hidden,
                          .gates = dti_recurrence_gates[kind],
                          .layers = d->layers ? d->layers : 1,
                          .directions = d->bidirectional ? 2 : 1};
    if (x.graph->error[0] || !dti_nn_recurrent_numbers_fit(&r) ||
        !dti_nn_recurrent_tensors_fit(&r, x))
        return nil;
    dt_recurrent out = {.y = dti_nn_recurrent_layers(&r, x)};
    if (!dti_is_nil(out.y)) {
        out.h = dti_nn_recurrent_states(&r, r.h);
        if (kind == DTI_RECURRENCE_LSTM)
            out.c = dti_nn_recurrent_states(&r, r.c);
    }
    return dti_is_nil(dti_nn_end(&nn, x.graph->error[0] ? nil.y : out.y)) ? nil : out;
}

DT_API dt_recurrent dt_nn_lstm(dt_tensor x, const char *name, int64_t hidden,
                               const dt_recurrent_desc *desc) {
    return dti_nn_recurrent_make(x, "lstm", name, hidden, desc ? desc : &(dt_recurrent_desc){0},
                                 DTI_RECURRENCE_LSTM);
}

DT_API dt_recurrent dt_nn_gru(dt_tensor x, const char *name, int64_t hidden,
                              const dt_recurrent_desc *desc) {
    return dti_nn_recurrent_make(x, "gru", name, hidden, desc ? desc : &(dt_recurrent_desc){0},
                                 DTI_RECURRENCE_GRU);
}

DT_API dt_recurrent dt_nn_rnn(dt_tensor x, const char *name, int64_t hidden,
                              const dt_recurrent_desc *desc) {
    return dti_nn_recurrent_make(x, "rnn", name, hidden, desc ? desc : &(dt_recurrent_desc){0},
                                 desc && desc->relu ? DTI_RECURRENCE_RELU : DTI_RECURRENCE_TANH);
}
