/* Losses of each element, written in ops: this file has no kernel. dt_mean_loss and
 * dt_weighted_loss make terms of them. At a kink, the chosen formula gives PyTorch's gradient. */

/* Tensors of one graph and one shape: y, t, ... False: an error is recorded. */
static bool dti_loss_takes(const char *loss, const dt_tensor *x, int count) {
    for (int i = 0; i < count; i++) {
        if (dti_is_nil(x[i])) {
            for (int k = 0; k < count; k++)
                if (x[k].graph && (!dti_is_nil(x[k]) || k + 1 == count))
                    return dti_graph_refuse(x[k].graph, "%s: input %d is nil", loss, i + 1);
            return false;
        }
    }
    for (int i = 1; i < count; i++) {
        if (x[i].graph != x[0].graph)
            return dti_graph_refuse(x[0].graph, "%s: input %d is a tensor of another graph", loss,
                                    i + 1);
        const dti_node *a = dti_node_of(x[0]), *b = dti_node_of(x[i]);
        if (dti_shape_equal(a->shape, b->shape) && a->samples == b->samples)
            continue;
        return dti_graph_refuse(x[0].graph, "%s: input %d %s must have the shape of input 1, %s",
                                loss, i + 1, dti_shape_print(b->shape, b->samples).text,
                                dti_shape_print(a->shape, a->samples).text);
    }
    return true;
}

static bool dti_loss_takes2(const char *loss, dt_tensor y, dt_tensor t) {
    return dti_loss_takes(loss, (dt_tensor[]){y, t}, 2);
}

static bool dti_loss_number(dt_tensor x, const char *loss, const char *what, const char *allowed,
                            float value, bool good) {
    if (good && isfinite(value))
        return true;
    return dti_graph_refuse(x.graph, "%s: %s is %g; it must be %s", loss, what, (double)value,
                            allowed);
}

/* The last dimension: classes, or coordinates. */
static bool dti_loss_last(const char *loss, dt_tensor x, int64_t *last) {
    const dt_shape s = dti_tensor_shape(x);
    *last = s.rank > 0 ? s.dim[s.rank - 1] : 0;
    if (*last > 0)
        return true;
    return dti_graph_refuse(x.graph, "%s: %s has no last dimension of classes or coordinates", loss,
                            dti_shape_of(x).text);
}

static dt_tensor dti_loss_scalar(dt_tensor x, double value) {
    return dt_fill(x.graph, (dt_shape){0}, (float)value);
}

static dt_tensor dti_loss_scale(dt_tensor x, double scale) {
    return dt_affine(x, (float)scale, 0.0f);
}

/* x, in rows of one element */
static dt_tensor dti_loss_column(dt_tensor x) {
    dt_shape s = dti_tensor_shape(x);
    if (s.rank < 0 || s.rank == DT_MAX_DIMS)
        return dti_is_nil(x) ? x : dti_graph_fail(x.graph, "a loss: x has too many dimensions");
    s.dim[s.rank++] = 1;
    return dt_reshape(x, s);
}

/* ---- distances */

DTI_COMPOSED(dt_l1, (dt_tensor y, dt_tensor t), y, (y, t)) {
    return dti_loss_takes2("l1", y, t) ? dt_abs(dt_sub(y, t)) : dti_nil(y.graph);
}

/* m (a - m / 2) with m = min(a, delta): at a = delta both of minimum's sides have one slope. */
static dt_tensor dti_huber_of(dt_tensor y, dt_tensor t, float delta) {
    dt_tensor a = dt_abs(dt_sub(y, t)), m = dt_minimum(a, dti_loss_scalar(y, (double)delta));
    return dt_mul(m, dt_sub(a, dti_loss_scale(m, 0.5)));
}

DTI_COMPOSED(dt_huber, (dt_tensor y, dt_tensor t, float delta), y, (y, t, delta)) {
    if (!dti_loss_takes2("huber", y, t) ||
        !dti_loss_number(y, "huber", "delta", "above 0", delta, delta > 0.0f))
        return dti_nil(y.graph);
    return dti_huber_of(y, t, delta);
}

DTI_COMPOSED(dt_smooth_l1, (dt_tensor y, dt_tensor t, float beta), y, (y, t, beta)) {
    if (!dti_loss_takes2("smooth_l1", y, t) ||
        !dti_loss_number(y, "smooth_l1", "beta", "at least 0", beta, beta >= 0.0f))
        return dti_nil(y.graph);
    return beta == 0.0f ? dt_l1(y, t)
                        : dti_loss_scale(dti_huber_of(y, t, beta), 1.0 / (double)beta);
}

/* ---- two classes */

/* -(a t + b (1 - t)) */
static dt_tensor dti_bce_of(dt_tensor a, dt_tensor b, dt_tensor t) {
    dt_tensor positive = dt_mul(a, t), negative = dti_not(t);
    return dt_neg(dt_add(positive, dt_mul(b, negative)));
}

DTI_COMPOSED(dt_bce, (dt_tensor p, dt_tensor t), p, (p, t)) {
    if (!dti_loss_takes2("bce", p, t))
        return dti_nil(p.graph);
    /* The probability itself is not clamped. Only the slope of one logarithm is, where the other
     * one is at its end. So the slope at p = t = 0 or 1 is 0. */
    dt_tensor positive = dti_log_floor(dt_clamp(p, -1.0f, 1.0f), -100.0f);
    return dti_bce_of(positive, dti_log_floor(dti_not(dt_clamp(p, 0.0f, 2.0f)), -100.0f), t);
}

DTI_COMPOSED(dt_bce_with_logits, (dt_tensor x, dt_tensor t, dt_tensor pos_weight), x,
             (x, t, pos_weight)) {
    if (!dti_loss_takes2("bce_with_logits", x, t))
        return dti_nil(x.graph);
    dt_tensor positive = dt_log_sigmoid(x);
    if (dti_is_set(pos_weight))
        positive = dt_mul(positive, pos_weight);
    return dti_bce_of(positive, dt_log_sigmoid(dt_neg(x)), t);
}

/* 1 - p_t = p (1 - t) + (1 - p) t, and 1 - p = sigmoid(-x). */
DTI_COMPOSED(dt_focal, (dt_tensor x, dt_tensor t, float alpha, float gamma), x,
             (x, t, alpha, gamma)) {
    const bool none = alpha == -1.0f;
    if (!dti_loss_takes2("focal", x, t) ||
        !dti_loss_number(x, "focal", "gamma", "at least 0", gamma, gamma >= 0.0f) ||
        !dti_loss_number(x, "focal", "alpha", "in [0, 1] or -1", alpha,
                         none || (alpha >= 0.0f && alpha <= 1.0f)))
        return dti_nil(x.graph);
    dt_tensor loss = dt_bce_with_logits(x, t, (dt_tensor){0});
    dt_tensor p = dt_sigmoid(x), not_p = dt_sigmoid(dt_neg(x)), not_t = dti_not(t);
    dt_tensor above = dt_mul(p, not_t), below = dt_mul(not_p, t);
    dt_tensor miss = dt_add(above, below);
    if (gamma == 2.0f)
        loss = dt_mul(loss, dt_square(miss));
    else if (gamma != 0.0f)
        loss = dt_mul(loss, dt_pow(miss, dti_loss_scalar(x, (double)gamma)));
    return none ? loss : dt_mul(loss, dt_affine(t, 2.0f * alpha - 1.0f, 1.0f - alpha));
}

DTI_COMPOSED(dt_soft_margin, (dt_tensor y, dt_tensor t), y, (y, t)) {
    return dti_loss_takes2("soft_margin", y, t) ? dt_neg(dt_log_sigmoid(dt_mul(y, t)))
                                                : dti_nil(y.graph);
}

DTI_COMPOSED(dt_multilabel_soft_margin, (dt_tensor y, dt_tensor t), y, (y, t)) {
    int64_t classes;
    if (!dti_loss_takes2("multilabel_soft_margin", y, t) ||
        !dti_loss_last("multilabel_soft_margin", y, &classes))
        return dti_nil(y.graph);
    return dt_mean(dt_bce_with_logits(y, t, (dt_tensor){0}), (dt_shape){1, {-1}}, false);
}

/* ---- distributions */

static dt_tensor dti_loss_log_kl(dt_tensor y, dt_tensor t) {
    dt_tensor p = dt_exp(t);
    return dt_mul(p, dt_sub(t, y));
}

DTI_COMPOSED(dt_kl_div, (dt_tensor y, dt_tensor t, bool log_target), y, (y, t, log_target)) {
    if (!dti_loss_takes2("kl_div", y, t))
        return dti_nil(y.graph);
    if (log_target)
        return dti_loss_log_kl(y, t);
    dt_tensor entropy = dt_mul(t, dti_log_floor(t, -100.0f)); /* 0 log 0 is 0 */
    return dt_sub(entropy, dt_mul(t, y));
}

DTI_COMPOSED(dt_soft_cross_entropy, (dt_tensor y, dt_tensor t), y, (y, t)) {
    int64_t classes;
    if (!dti_loss_takes2("soft_cross_entropy", y, t) ||
        !dti_loss_last("soft_cross_entropy", y, &classes))
        return dti_nil(y.graph);
    return dt_neg(dti_sum_last(dt_mul(t, dt_log_softmax(y, -1))));
}

/* The targets' probability of each class, [..., C]; 0 where one does not count. */
static dt_tensor dti_loss_wanted(dt_tensor t, int64_t classes, const dt_cross_entropy_desc *d) {
    dt_tensor own = dt_one_hot(t, classes);
    const double ignored = dti_or((double)d->ignore_index, -100.0);
    if (ignored >= 0.0) {
        dt_tensor number = dt_cast(t, DT_F32);
        own = dt_mask_inv(own, dti_loss_column(dt_eq(number, dti_loss_scalar(t, ignored))));
    }
    if (d->label_smoothing == 0.0f)
        return own;
    dt_tensor counts = dt_sum(own, (dt_shape){1, {-1}}, true);
    dt_tensor even = dti_loss_scale(counts, (double)d->label_smoothing / (double)classes);
    return dt_add(dti_loss_scale(own, 1.0 - (double)d->label_smoothing), even);
}

/* Where nothing is wanted of a class, its logarithm may be infinite. in: y, t, weights; f:
 * smoothing; i: ignored */
static dt_tensor dti_cross_entropy_each_make(dt_graph *g, const dti_call *c) {
    const dt_tensor y = dti_call_in(g, c, 0), t = dti_call_in(g, c, 1);
    const dt_cross_entropy_desc d = {.ignore_index = c->attr.i[0],
                                     .label_smoothing = c->attr.f[0],
                                     .class_weights = dti_call_in(g, c, 2)};
    int64_t classes;
    if (!dti_loss_last(c->name, y, &classes) ||
        !dti_loss_number(y, c->name, "label_smoothing", "in [0, 1]", d.label_smoothing,
                         d.label_smoothing >= 0.0f && d.label_smoothing <= 1.0f))
        return dti_nil(g);
    dt_tensor wanted = dti_loss_wanted(t, classes, &d);
    if (dti_is_nil(wanted) || !dti_loss_takes2("cross_entropy_each (y, t with classes)", y, wanted))
        return dti_nil(y.graph);
    if (dti_is_set(d.class_weights))
        wanted = dt_mul(wanted, d.class_weights);
    dt_tensor log_p = dt_mask(dt_log_softmax(y, -1), wanted);
    return dt_neg(dti_sum_last(dt_mul(wanted, log_p)));
}

DTI_COMPOSED(dt_cross_entropy_each, (dt_tensor y, dt_tensor t, const dt_cross_entropy_desc *desc),
             y, (y, t, desc)) {
    const dt_cross_entropy_desc d = desc ? *desc : (dt_cross_entropy_desc){0};
    return dti_compose("cross_entropy_each", dti_cross_entropy_each_make, 2,
                       (dti_inputs){{y, t, d.class_weights}},
                       (dti_attr){.i = {d.ignore_index}, .f = {d.label_smoothing}});
}

DTI_COMPOSED(dt_distillation, (dt_tensor y, dt_tensor t, float temperature), y,
             (y, t, temperature)) {
    const double scale = (double)temperature;
    int64_t classes;
    if (!dti_loss_takes2("distillation", y, t) || !dti_loss_last("distillation", y, &classes) ||
        !dti_loss_number(y, "distillation", "temperature", "above 0", temperature,
                         temperature > 0.0f))
        return dti_nil(y.graph);
    dt_tensor student = dt_log_softmax(dti_loss_scale(y, 1.0 / scale), -1);
    dt_tensor teacher = dt_log_softmax(dti_loss_scale(t, 1.0 / scale), -1);
    return dti_loss_scale(dti_sum_last(dt_kl_div(student, teacher, true)), scale * scale);
}

/* x / max(|x|, 1e-12) along the last dimension */
static dt_tensor dti_loss_normalized(dt_tensor x) {
    dt_tensor squares = dt_sum(dt_square(x), (dt_shape){1, {-1}}, true);
    return dt_mul(x, dt_rsqrt(dt_maximum(squares, dti_loss_scalar(x, 1e-24))));
}

static dt_tensor dti_info_nce_make(dt_graph *g, const dti_call *c) {
    const dt_tensor q = dti_call_in(g, c, 0), k = dti_call_in(g, c, 1);
    const float temperature = c->attr.f[0];
    if (!dti_loss_takes2("info_nce", q, k) ||
        !dti_loss_number(q, "info_nce", "temperature", "above 0", temperature, temperature > 0.0f))
        return dti_nil(q.graph);
    const dt_shape s = dti_tensor_shape(q);
    if (s.rank != 2)
        return dti_graph_fail(q.graph, "info_nce: q %s must be [N, D]", dti_shape_of(q).text);
    dt_tensor rows = dti_loss_normalized(q), others = dti_loss_normalized(k);
    dt_tensor logits =
        dti_loss_scale(dt_matmul_transposed(rows, others, false, true), 1.0 / (double)temperature);
    dt_tensor row = dt_iota(q.graph, (dt_shape){2, {s.dim[0], 1}});
    dt_tensor own = dt_eq(row, dt_iota(q.graph, (dt_shape){1, {s.dim[0]}}));
    return dt_neg(dti_sum_last(dt_mul(own, dt_log_softmax(logits, -1))));
}

DTI_COMPOSED(dt_info_nce, (dt_tensor q, dt_tensor k, float temperature), q, (q, k, temperature)) {
    return dti_compose("info_nce", dti_info_nce_make, 2, (dti_inputs){{q, k}},
                       (dti_attr){.f = {temperature}});
}

DTI_COMPOSED(dt_gaussian_nll, (dt_tensor y, dt_tensor t, dt_tensor variance, float eps, bool full),
             y, (y, t, variance, eps, full)) {
    if (!dti_loss_takes("gaussian_nll", (dt_tensor[]){y, t, variance}, 3) ||
        !dti_loss_number(y, "gaussian_nll", "eps", "above 0", eps, eps > 0.0f))
        return dti_nil(y.graph);
    dt_tensor low = dti_loss_scalar(y, (double)eps);
    dt_tensor raised = dt_detach(dt_relu(dt_sub(low, variance)));
    dt_tensor v = dt_add(variance, raised); /* the gradient sees no maximum */
    dt_tensor log_v = dt_log(v), far = dt_div(dt_square(dt_sub(y, t)), v);
    return dt_affine(dt_add(log_v, far), 0.5f, full ? 0.91893853320467267f : 0.0f);
}

DTI_COMPOSED(dt_poisson_nll, (dt_tensor y, dt_tensor t, bool log_input, float eps, bool full), y,
             (y, t, log_input, eps, full)) {
    if (!dti_loss_takes2("poisson_nll", y, t) ||
        !dti_loss_number(y, "poisson_nll", "eps", "at least 0", eps, eps >= 0.0f))
        return dti_nil(y.graph);
    dt_tensor rate = log_input ? dt_exp(y) : y;
    dt_tensor log_rate = log_input ? y : dt_log(dt_affine(y, 1.0f, eps));
    dt_tensor loss = dt_sub(rate, dt_mul(t, log_rate));
    if (!full)
        return loss;
    dt_tensor one = dti_loss_scalar(t, 1.0), above = dt_gt(t, one);
    dt_tensor log_t = dt_log(dt_maximum(t, one)); /* t log t - t + log(2 pi t) / 2 */
    dt_tensor most = dt_mul(dt_affine(t, 1.0f, 0.5f), log_t);
    dt_tensor stirling = dt_sub(most, dt_affine(t, 1.0f, -0.91893853320467267f));
    return dt_add(loss, dt_mul(above, stirling));
}

/* ---- margins; t is 1 or -1 */

/* t > 0 ? yes : no */
static dt_tensor dti_loss_by_sign(dt_tensor t, dt_tensor yes, dt_tensor no) {
    dt_tensor positive = dt_mask(yes, dt_heaviside(t)),
              negative = dt_mask(no, dt_heaviside(dt_neg(t)));
    return dt_add(positive, negative);
}

DTI_COMPOSED(dt_cosine_embedding, (dt_tensor a, dt_tensor b, dt_tensor t, float margin), a,
             (a, b, t, margin)) {
    int64_t width;
    if (!dti_loss_takes2("cosine_embedding", a, b) ||
        !dti_loss_last("cosine_embedding", a, &width) ||
        !dti_loss_number(a, "cosine_embedding", "margin", "finite", margin, true))
        return dti_nil(a.graph);
    dt_tensor aa = dt_affine(dti_sum_last(dt_square(a)), 1.0f, 1e-12f);
    dt_tensor bb = dt_affine(dti_sum_last(dt_square(b)), 1.0f, 1e-12f);
    dt_tensor ab = dti_sum_last(dt_mul(a, b));
    dt_tensor cosine = dt_mul(ab, dt_rsqrt(dt_mul(aa, bb)));
    if (!dti_loss_takes2("cosine_embedding", cosine, t))
        return dti_nil(a.graph);
    dt_tensor alike = dti_not(cosine);
    return dti_loss_by_sign(t, alike, dt_relu(dt_affine(cosine, 1.0f, -margin)));
}

DTI_COMPOSED(dt_margin_ranking, (dt_tensor a, dt_tensor b, dt_tensor t, float margin), a,
             (a, b, t, margin)) {
    if (!dti_loss_takes("margin_ranking", (dt_tensor[]){a, b, t}, 3) ||
        !dti_loss_number(a, "margin_ranking", "margin", "finite", margin, true))
        return dti_nil(a.graph);
    return dt_relu(dt_affine(dt_mul(t, dt_sub(a, b)), -1.0f, margin));
}

DTI_COMPOSED(dt_hinge_embedding, (dt_tensor y, dt_tensor t, float margin), y, (y, t, margin)) {
    if (!dti_loss_takes2("hinge_embedding", y, t) ||
        !dti_loss_number(y, "hinge_embedding", "margin", "finite", margin, true))
        return dti_nil(y.graph);
    return dti_loss_by_sign(t, y, dt_relu(dt_affine(y, -1.0f, margin)));
}

/* |a - b + eps| along the last dimension */
static dt_tensor dti_loss_distance(dt_tensor a, dt_tensor b, float p, float eps) {
    dt_tensor d = dt_affine(dt_sub(a, b), 1.0f, eps);
    if (p == 2.0f)
        return dt_sqrt(dti_sum_last(dt_square(d)));
    if (p == 1.0f)
        return dti_sum_last(dt_abs(d));
    dt_tensor power = dti_loss_scalar(a, (double)p);
    dt_tensor sum = dti_sum_last(dt_pow(dt_abs(d), power));
    return dt_pow(sum, dti_loss_scalar(a, 1.0 / (double)p));
}

DTI_COMPOSED(dt_triplet_margin,
             (dt_tensor a, dt_tensor p, dt_tensor n, const dt_triplet_desc *desc), a,
             (a, p, n, desc)) {
    const dt_triplet_desc d = desc ? *desc : (dt_triplet_desc){0};
    const float margin = (float)dti_or((double)d.margin, 1.0), norm = d.p != 0.0f ? d.p : 2.0f;
    const float eps = d.eps != 0.0f ? d.eps : 1e-6f;
    int64_t width;
    if (!dti_loss_takes("triplet_margin", (dt_tensor[]){a, p, n}, 3) ||
        !dti_loss_last("triplet_margin", a, &width) ||
        !dti_loss_number(a, "triplet_margin", "margin", "finite", margin, true) ||
        !dti_loss_number(a, "triplet_margin", "p", "at least 1", norm, norm >= 1.0f) ||
        !dti_loss_number(a, "triplet_margin", "eps", "above 0", eps, eps > 0.0f))
        return dti_nil(a.graph);
    dt_tensor near = dti_loss_distance(a, p, norm, eps), far = dti_loss_distance(a, n, norm, eps);
    if (d.swap)
        far = dt_minimum(far, dti_loss_distance(p, n, norm, eps));
    return dt_relu(dt_affine(dt_sub(near, far), 1.0f, margin));
}

/* ---- margins between classes */

/* in: y, t, weights; f: margin; i: power */
static dt_tensor dti_multi_margin_make(dt_graph *g, const dti_call *c) {
    const dt_tensor y = dti_call_in(g, c, 0), weights = dti_call_in(g, c, 2);
    const int power = c->attr.i[0];
    const float margin = c->attr.f[0];
    int64_t classes;
    if (!dti_loss_last("multi_margin", y, &classes) ||
        !dti_loss_number(y, "multi_margin", "margin", "finite", margin, true) ||
        !dti_loss_number(y, "multi_margin", "power", "1 or 2", (float)power,
                         power == 1 || power == 2))
        return dti_nil(g);
    dt_tensor own = dt_one_hot(dti_call_in(g, c, 1), classes);
    if (dti_is_nil(own) || !dti_loss_takes2("multi_margin (y, t with classes)", y, own))
        return dti_nil(y.graph);
    dt_tensor of_own = dt_sum(dt_mask(y, own), (dt_shape){1, {-1}}, true);
    dt_tensor z = dt_relu(dt_affine(dt_sub(y, of_own), 1.0f, margin));
    z = power == 2 ? dt_square(z) : z;
    z = dt_mask_inv(z, own); /* a choice: another class may be infinite */
    dt_tensor loss = dti_loss_scale(dti_sum_last(z), 1.0 / (double)classes);
    dt_tensor is_class = dti_sum_last(dti_is_set(weights) ? dt_mul(own, weights) : own);
    return dt_mul(loss, is_class);
}

DTI_COMPOSED(dt_multi_margin,
             (dt_tensor y, dt_tensor t, int power, float margin, dt_tensor class_weights), y,
             (y, t, power, margin, class_weights)) {
    return dti_compose("multi_margin", dti_multi_margin_make, 2,
                       (dti_inputs){{y, t, class_weights}},
                       (dti_attr){.i = {power}, .f = {margin}});
}

static dt_tensor dti_multilabel_margin_make(dt_graph *g, const dti_call *c) {
    const dt_tensor y = dti_call_in(g, c, 0), t = dti_call_in(g, c, 1);
    int64_t classes;
    if (!dti_loss_takes2("multilabel_margin", y, t) ||
        !dti_loss_last("multilabel_margin", y, &classes))
        return dti_nil(g);
    dt_shape row = dti_tensor_shape(y);
    row.rank = row.rank < DT_MAX_DIMS ? row.rank + 1 : row.rank;
    row.dim[row.rank - 1] = row.dim[row.rank - 2], row.dim[row.rank - 2] = 1;
    dt_tensor others = dt_reshape(y, row), absent = dti_not(dt_reshape(t, row));
    dt_tensor gap = dt_relu(dt_affine(dt_sub(others, dti_loss_column(y)), 1.0f, 1.0f));
    dt_tensor counts = dt_mul(dti_loss_column(t), absent);
    gap = dt_mask(gap, counts);
    dt_tensor sum = dt_sum(dt_mul(gap, counts), (dt_shape){2, {-1, -2}}, false);
    return dti_loss_scale(sum, 1.0 / (double)classes);
}

DTI_COMPOSED(dt_multilabel_margin, (dt_tensor y, dt_tensor t), y, (y, t)) {
    return dti_compose("multilabel_margin", dti_multilabel_margin_make, 2, (dti_inputs){{y, t}},
                       (dti_attr){0});
}

/* ---- overlap */

static dt_tensor dti_loss_overlap(const char *loss, dt_tensor p, dt_tensor t, float smooth,
                                  bool dice) {
    if (!dti_loss_takes2(loss, p, t) ||
        !dti_loss_number(p, loss, "smooth", "at least 0", smooth, smooth >= 0.0f))
        return dti_nil(p.graph);
    dt_tensor both = dt_sum(dt_mul(p, t), (dt_shape){0}, false);
    dt_tensor all = dt_sum(dt_add(p, t), (dt_shape){0}, false);
    dt_tensor of = dice ? all : dt_sub(all, both);
    dt_tensor share = dt_affine(both, dice ? 2.0f : 1.0f, smooth);
    return dti_not(dt_div(share, dt_affine(of, 1.0f, smooth)));
}

DTI_COMPOSED(dt_dice, (dt_tensor p, dt_tensor t, float smooth), p, (p, t, smooth)) {
    return dti_loss_overlap("dice", p, t, smooth, true);
}

DTI_COMPOSED(dt_jaccard, (dt_tensor p, dt_tensor t, float smooth), p, (p, t, smooth)) {
    return dti_loss_overlap("jaccard", p, t, smooth, false);
}
