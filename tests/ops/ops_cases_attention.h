/* Cases of attention's rows for ops_cases.h. */
#ifndef DTRAIN_TESTS_OPS_CASES_ATTENTION_H
#define DTRAIN_TESTS_OPS_CASES_ATTENTION_H

typedef struct ops_attention {
    int64_t heads, kv_heads, tq, tk, d, dv, window;
    uint32_t flags;
    int mask; /* which of its dimensions are 1: bits of [H, T, S] */
    bool samples;
    float dropout;
} ops_attention;

/* The first six are small. Blocks of queries and keys end at 32, 64 and 256. Few combinations of
 * flags and of sizes in blocks of 32. Each is shaders of its own, and some drivers take seconds. */
#define OPS_ALL_PLACES DTI_ATTENTION_CAUSAL | DTI_ATTENTION_ALIBI
static const ops_attention ops_attentions[] = {
    {2, 1, 3, 3, 2, 3, 0, 0, 0, true, 0},
    {2, 2, 2, 4, 3, 1, 0, OPS_ALL_PLACES, 0, true, 0.25f},
    {3, 3, 4, 3, 1, 2, 2, 0, 0, true, 0},
    {2, 1, 3, 3, 2, 2, 0, DTI_ATTENTION_ADD, 1, true, 0},
    {1, 1, 3, 4, 2, 2, 0, DTI_ATTENTION_KEEP, 0, true, 0},
    {2, 2, 3, 3, 2, 2, 2, DTI_ATTENTION_ADD, 7, false, 0},
    {2, 1, 65, 65, 40, 33, 0, DTI_ATTENTION_CAUSAL, 0, true, 0},
    {1, 1, 33, 270, 31, 5, 0, 0, 0, true, 0},
    {2, 1, 260, 31, 8, 30, 0, OPS_ALL_PLACES, 0, true, 0.5f},
    {3, 1, 70, 70, 7, 7, 9, OPS_ALL_PLACES, 0, true, 0.1f},
    {1, 1, 170, 170, 16, 16, 40, 0, 0, false, 0},
    {2, 2, 64, 40, 32, 32, 0, DTI_ATTENTION_ADD, 3, true, 0},
    {2, 1, 10, 520, 4, 4, 0, DTI_ATTENTION_KEEP, 4, true, 0},
    {1, 1, 5, 3, 64, 72, 0, DTI_ATTENTION_CAUSAL, 0, true, 0},
    {2, 2, 30, 8, 3, 3, 4, 0, 0, true, 0}, /* queries that see no key */
};

static dt_tensor ops_attention_mask(ops_model *m, const ops_attention *c) {
    dt_shape s = {3, {c->heads, c->tq, c->tk}};
    for (int i = 0; i < 3; i++)
        s.dim[i] = c->mask >> (2 - i) & 1 ? 1 : s.dim[i];
    if (c->flags & DTI_ATTENTION_KEEP) { /* of zeros and others, half and half */
        dt_tensor keep = dt_relu(dt_detach(ops_rows(m, s, OPS_AWAY)));
        dt_tensor first =
            dt_eq(dt_iota(m->graph, dt_dims(s.dim[2])), dt_fill(m->graph, dt_dims(), 0));
        return m->small ? dt_add(keep, first) : keep; /* no row of differences has NONE */
    }
    return c->mask & 1 ? ops_shared(m, s, OPS_ANY) : ops_rows(m, s, OPS_ANY);
}

/* Operands that lie in many ways: q in rows of heads, k and v beside each other or apart. */
static uint32_t ops_attention_inputs(ops_model *m, const ops_attention *c, dt_tensor in[6]) {
    dt_tensor q = ops_rows(m, dt_dims(c->tq, c->heads * c->d), OPS_ANY);
    in[0] = dt_permute(dt_reshape(q, dt_dims(c->tq, c->heads, c->d)), dt_dims(1, 0, 2));
    if (!c->samples)
        in[0] = ops_shared(m, dt_dims(c->heads, c->tq, c->d), OPS_ANY);
    if (c->d == c->dv) {
        dt_tensor kv = ops_rows(m, dt_dims(c->tk, 2, c->kv_heads, c->d), OPS_ANY);
        for (int i = 0; i < 2; i++) {
            dt_tensor one = dt_reshape(dt_slice(kv, 1, i, 1), dt_dims(c->tk, c->kv_heads, c->d));
            in[1 + i] = dt_permute(one, dt_dims(1, 0, 2));
        }
    } else {
        in[1] = ops_rows(m, dt_dims(c->kv_heads, c->tk, c->d), OPS_ANY);
        in[2] = ops_shared(m, dt_dims(c->kv_heads, c->dv, c->tk), OPS_ANY);
        in[2] = dt_permute(in[2], dt_dims(0, 2, 1)); /* not side by side */
    }
    if (c->flags & DTI_ATTENTION_MASKED)
        in[3] = ops_attention_mask(m, c);
    return c->flags & DTI_ATTENTION_MASKED ? 4 : 3;
}

/* Of the largest scores and the logarithms only the sum has a slope that differences can find. */
static dt_tensor ops_attention_smooth(dt_tensor y, const ops_attention *c) {
    const int64_t wide = c->heads * c->dv;
    dt_tensor part[2] = {dt_slice(y, 1, 0, wide), dt_slice(y, 1, wide, c->heads)};
    part[1] = dt_add(part[1], dt_slice(y, 1, wide + c->heads, c->heads));
    return dt_concat(part, 2, 1);
}

static void ops_case_attention(ops_model *m) {
    for (size_t i = 0; i < DTI_COUNT(ops_attentions) && !(m->small && i > 5); i++) {
        const ops_attention *c = &ops_attentions[i];
        dt_tensor in[6] = {{0}};
        uint32_t count = ops_attention_inputs(m, c, in);
        /* second derivatives are of plain rows: only of small ones */
        for (uint32_t k = 0; k < count && i > 5 && m->op == DTI_OP_ATTENTION_GRAD; k++)
            in[k] = dt_detach(in[k]);
        const uint32_t drops = c->dropout > 0 ? DTI_ATTENTION_DROPOUT : 0;
        const dti_attr attr = {.f = {0.4f, c->dropout},
                               .i = {(int32_t)(c->flags | drops), (int32_t)c->window, 7}};
        dt_tensor y = dti_append(m->graph, DTI_OP_ATTENTION, in, count, &attr);
        if (m->op == DTI_OP_ATTENTION) {
            ops_result(m, m->small ? ops_attention_smooth(y, c) : y);
            continue;
        }
        const int64_t wide = c->heads * c->dv;
        dt_tensor dy = ops_like(m, dt_slice(y, 1, 0, wide), OPS_ANY);
        dt_tensor sums = ops_like(m, dt_slice(y, 1, wide, c->heads), OPS_ANY);
        dy = i > 5 ? dt_detach(dy) : dy;
        sums = i > 5 ? dt_detach(sums) : sums;
        dt_tensor x[2] = {dt_slice(y, 1, wide, 2 * c->heads), sums};
        in[5] = in[3], in[3] = dy, in[4] = dt_concat(x, 2, 1);
        ops_result(m, dti_append(m->graph, DTI_OP_ATTENTION_GRAD, in, count + 2, &attr));
    }
}

#endif
