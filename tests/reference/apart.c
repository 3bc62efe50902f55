/* Rows taken apart into others that have a gradient by themselves: what they are compared with. */

static dt_tensor ref_apart_unary_grad(dti_grad *g) {
    return dt_mul(g->in[1], dti_unary_prime(g));
}

/* x - max, its exponentials, their sum. */
static dt_tensor ref_apart_softmax(dti_grad *g) {
    dt_shape last = dt_dims_of(1, (const int64_t[]){0, -1});
    dt_tensor shifted = dt_sub(g->in[0], dt_detach(dt_max(g->in[0], last, true)));
    dt_tensor e = dt_exp(shifted), sum = dt_sum(e, last, true);
    return dti_op_info_of(g->node.op)->selector ? dt_sub(shifted, dt_log(sum)) : dt_div(e, sum);
}

static dt_tensor ref_apart_norm(dti_grad *g) {
    dt_tensor factor, y = dti_norm_hat(g, g->in[0], g->in[1], &factor);
    y = dti_norm_channelled(g, y);
    if (g->node.count > 2)
        y = dt_mul(y, dti_norm_by_channel(g, g->in[2]));
    if (g->node.count > 3)
        y = dt_add(y, dti_norm_by_channel(g, g->in[3]));
    return dti_norm_like(y, g->in[0]);
}

static dt_tensor ref_apart_attention(dti_grad *g) {
    const dti_attention a = dti_attention_of(g->graph, &g->node);
    const dt_tensor s = dti_attention_scores(g, &a, g->in, g->in[3]);
    dt_tensor most = dt_detach(dt_max(s, dti_last_axis, true));
    dt_tensor none = dt_eq(most, dt_fill(g->graph, (dt_shape){0}, -INFINITY));
    most = dt_mask_inv(most, none); /* a query that sees nothing: weights of 0 / 1 */
    dt_tensor e = dt_exp(dt_sub(s, most)), sum = dt_sum(e, dti_last_axis, true);
    sum = dt_add(sum, none);
    dt_tensor p = dti_attention_dropped(g, &a, dt_div(e, sum));
    dt_tensor log_sum = dt_log(sum);
    log_sum = dt_add(log_sum, dt_affine(none, (float)DTI_ATTENTION_NONE, 0.0f));
    dt_tensor parts[3] = {dti_attention_rows(dt_matmul(p, dti_attention_shared(g->in[2]))),
                          dti_attention_rows(most), dti_attention_rows(log_sum)};
    return dt_concat(parts, 3, 1);
}

/* The same value from other rows; NULL: there are no such ones. */
static dt_tensor (*ref_apart(uint32_t op))(dti_grad *g) {
    switch (op) {
    case DTI_OP_UNARY_GRAD: return ref_apart_unary_grad;
    case DTI_OP_SOFTMAX:
    case DTI_OP_LOG_SOFTMAX: return ref_apart_softmax;
    case DTI_OP_NORM: return ref_apart_norm;
    case DTI_OP_ATTENTION: return ref_apart_attention;
    default: return dti_op_info_of(op)->family->lower;
    }
}
