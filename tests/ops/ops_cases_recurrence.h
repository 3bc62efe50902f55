/* Cases of the recurrences' rows for ops_cases.h. */
#ifndef DTRAIN_TESTS_OPS_CASES_RECURRENCE_H
#define DTRAIN_TESTS_OPS_CASES_RECURRENCE_H

typedef struct ops_recurrence {
    uint32_t kind, flags; /* of the gradient too */
    int64_t steps, hidden, size;
    bool samples, state; /* of x; a state of each sample, or one for all */
} ops_recurrence;

/* The first eight are small. Workgroups have 128 units, and chunks of a product 128 and 256. */
static const ops_recurrence ops_recurrences[] = {
    {DTI_RECURRENCE_LSTM, 0, 3, 2, 2, true, false},
    {DTI_RECURRENCE_LSTM, DTI_RECURRENCE_REVERSE | DTI_RECURRENCE_LENGTHS, 3, 2, 2, true, true},
    {DTI_RECURRENCE_LSTM, DTI_RECURRENCE_PROJECTED | DTI_RECURRENCE_LENGTHS, 3, 3, 2, true, true},
    {DTI_RECURRENCE_GRU, 0, 3, 2, 2, true, false},
    {DTI_RECURRENCE_GRU, DTI_RECURRENCE_REVERSE | DTI_RECURRENCE_LENGTHS, 3, 2, 2, true, true},
    {DTI_RECURRENCE_TANH, DTI_RECURRENCE_REVERSE, 4, 3, 3, true, true},
    {DTI_RECURRENCE_RELU, DTI_RECURRENCE_LENGTHS, 3, 2, 2, true, true},
    {DTI_RECURRENCE_LSTM, 0, 1, 1, 1, false, false},
    {DTI_RECURRENCE_LSTM, 0, 7, 40, 40, true, true},
    {DTI_RECURRENCE_LSTM, DTI_RECURRENCE_REVERSE, 2, 130, 130, true, true},
    {DTI_RECURRENCE_LSTM, DTI_RECURRENCE_PROJECTED, 3, 140, 130, true, true},
    {DTI_RECURRENCE_GRU, DTI_RECURRENCE_LENGTHS, 9, 17, 17, true, true},
    {DTI_RECURRENCE_GRU, 0, 2, 131, 131, false, true},
    {DTI_RECURRENCE_TANH, DTI_RECURRENCE_LENGTHS, 20, 6, 6, true, true},
    {DTI_RECURRENCE_RELU, DTI_RECURRENCE_REVERSE, 3, 270, 270, true, true},
};

/* x, W_hh, the state before, and what the kind takes beside them. */
static uint32_t ops_recurrence_inputs(ops_model *m, const ops_recurrence *c, dt_tensor in[4]) {
    static const int gates[] = {4, 3, 1, 1};
    const int64_t all = gates[c->kind] * c->hidden, h = c->hidden;
    const dt_shape state = dt_dims(c->size + (c->kind == DTI_RECURRENCE_LSTM ? h : 0));
    const float less = 0.5f / sqrtf((float)c->hidden); /* states neither grow nor go */
    in[0] = c->samples ? ops_rows(m, dt_dims(c->steps, all), OPS_ANY)
                       : ops_shared(m, dt_dims(c->steps, all), OPS_ANY);
    in[1] = dt_affine(ops_param(m, dt_dims(all, c->size), OPS_ANY), less, 0);
    in[2] = c->state ? ops_rows(m, state, OPS_ANY) : ops_shared(m, state, OPS_ANY);
    if (c->flags & DTI_RECURRENCE_LENGTHS) {
        dt_tensor n = ops_whole(m, true, dt_dims(1), (int)c->steps + 1);
        in[2] = dt_concat((dt_tensor[]){in[2], dt_cast(n, DT_F32)}, 2, 0);
    }
    if (c->kind == DTI_RECURRENCE_GRU)
        in[3] = ops_param(m, dt_dims(h), OPS_ANY);
    else if (c->flags & DTI_RECURRENCE_PROJECTED)
        in[3] = dt_affine(ops_param(m, dt_dims(c->size, h), OPS_ANY), less, 0);
    return in[3].graph ? 4 : 3;
}

/* The gradient's row by itself: it has none. */
static void ops_recurrence_grad(ops_model *m, const ops_recurrence *c, dt_tensor in[4],
                                uint32_t count, dt_tensor packed, const dt_tensor *out, int i) {
    const bool lstm = c->kind == DTI_RECURRENCE_LSTM;
    uint32_t flags = c->flags | (i % 3 ? DTI_RECURRENCE_STATE : 0);
    dt_tensor flow[4] = {ops_like(m, dt_reshape(out[0], dt_dims(-1)), OPS_ANY)};
    int parts = 1;
    if (i % 2) {
        flow[parts++] = ops_like(m, out[1], OPS_ANY);
        flags |= DTI_RECURRENCE_DH;
    }
    if (lstm && i % 4 < 2) {
        flow[parts++] = ops_like(m, out[2], OPS_ANY);
        flags |= DTI_RECURRENCE_DC;
    }
    flow[parts++] = in[2];
    dt_tensor row[4] = {packed, in[1], dt_concat(flow, parts, 0), in[3]};
    for (uint32_t k = 0; k < count; k++)
        row[k] = dt_detach(row[k]);
    const dti_attr attr = {.i = {(int32_t)c->kind, (int32_t)flags}};
    ops_result(m, dti_append(m->graph, DTI_OP_RECURRENCE_GRAD, row, count, &attr));
}

static void ops_case_recurrence(ops_model *m) {
    for (size_t i = 0; i < DTI_COUNT(ops_recurrences) && !(m->small && i > 7); i++) {
        const ops_recurrence *c = &ops_recurrences[i];
        dt_tensor in[4] = {{0}}, packed, out[DTI_OUTPUTS_MAX];
        const uint32_t count = ops_recurrence_inputs(m, c, in);
        const dti_attr attr = {.i = {(int32_t)c->kind, (int32_t)c->flags}};
        if (!dti_append_outputs(m->graph, DTI_OP_RECURRENCE, in, count, &attr, &packed, out))
            return;
        if (m->op == DTI_OP_RECURRENCE_GRAD) {
            ops_recurrence_grad(m, c, in, count, packed, out, (int)i);
            continue;
        }
        dt_tensor y = dt_mean(out[0], dt_dims(0), false);
        ops_result(m, i % 3 ? dt_mul(y, out[1]) : y);
        if (c->kind == DTI_RECURRENCE_LSTM && i % 2)
            ops_result(m, out[2]);
    }
}

#endif
