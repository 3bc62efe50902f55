/* Cases of convolution, pooling, resizing and normalisation. Included by ops_cases.h. */
#ifndef DTRAIN_TESTS_OPS_CASES_IMAGE_H
#define DTRAIN_TESTS_OPS_CASES_IMAGE_H

/* An image by number: of each sample, one for all, turned, or inside another one. */
static dt_tensor ops_image(ops_model *m, int number, int64_t c, int64_t h, int64_t w) {
    switch (number % 4) {
    case 1: return ops_shared(m, dt_dims(c, h, w), OPS_ANY);
    case 2: return dt_permute(ops_rows(m, dt_dims(w, c, h), OPS_ANY), dt_dims(1, 2, 0));
    case 3: return dt_slice(ops_rows(m, dt_dims(c + 2, h, w), OPS_ANY), 0, 1, c);
    default: return ops_rows(m, dt_dims(c, h, w), OPS_ANY);
    }
}

static const dti_attr *ops_attr(dt_tensor y) {
    return &y.graph->nodes[y.id].attr;
}

/* ---- convolution */

typedef struct ops_conv {
    int64_t in, h, w, out, kh, kw;
    dt_conv_desc d;
} ops_conv;

static const ops_conv ops_convs[] = {
    {2, 5, 4, 3, 3, 2, {.groups = 1}},
    {1, 1, 1, 1, 1, 1, {.groups = 1}},
    {3, 4, 3, 2, 4, 3, {.groups = 1}}, /* kernel = image */
    {2, 5, 6, 4, 3, 3, {.stride = {2, 2}, .padding = {1, 1}}},
    {2, 5, 5, 2, 2, 3, {.dilation = {2, 1}, .padding = {2, 1}}},
    {4, 4, 3, 6, 3, 3, {.groups = 2, .padding = {1, 1}}},
    {3, 5, 4, 3, 3, 3, {.groups = 3, .padding = {1, 1}}}, /* depthwise */
    {3, 6, 5, 6, 3, 1, {.groups = 3, .stride = {2, 3}}},  /* the same, twice the number out */
    {3, 3, 3, 5, 1, 1, {.groups = 1}},
    {2, 3, 4, 2, 1, 1, {.stride = {3, 2}, .padding = {1, 0}}},
    {1, 2, 2, 1, 3, 3, {.padding = {2, 2}}},
    {2, 3, 4, 2, 2, 2, {.stride = {3, 2}, .padding = {0, 4}}}, /* windows that are only padding */
    {1, 6, 7, 2, 3, 3, {.stride = {2, 3}}},                    /* a row and a column unused */
    {0, 2, 2, 2, 1, 2, {.groups = 1}},
    {2, 2, 2, 0, 2, 1, {.groups = 1}},
    {16, 9, 7, 17, 3, 3, {.padding = {1, 1}}}, /* from here on: not small */
    {3, 28, 28, 8, 5, 5, {.padding = {2, 2}}},
    {33, 8, 8, 31, 1, 1, {.groups = 1}},
    {63, 5, 5, 65, 3, 3, {.stride = {2, 2}, .padding = {1, 1}}},
    {32, 14, 13, 32, 3, 3, {.groups = 32, .padding = {1, 1}}},
    {8, 17, 16, 16, 3, 3, {.groups = 4, .dilation = {2, 2}, .padding = {2, 2}}},
    {2, 1, 65, 3, 1, 7, {.stride = {1, 2}, .padding = {0, 3}}},
    {1, 40, 33, 33, 4, 4, {.stride = {4, 4}}},
    {12, 6, 31, 9, 2, 9, {.groups = 3, .stride = {1, 3}, .dilation = {3, 1}, .padding = {2, 4}}},
};
#define OPS_CONVS_SMALL 15

static int ops_conv_count(const ops_model *m) {
    return m->small ? OPS_CONVS_SMALL : (int)DTI_COUNT(ops_convs);
}

static dt_tensor ops_conv_weight(ops_model *m, const ops_conv *c) {
    int64_t groups = c->d.groups ? c->d.groups : 1;
    return ops_param(m, dt_dims(c->out, c->in / groups, c->kh, c->kw), OPS_ANY);
}

static void ops_case_conv2d(ops_model *m) {
    dt_tensor none = {0};
    for (int i = 0; i < ops_conv_count(m); i++) {
        const ops_conv *c = &ops_convs[i];
        dt_tensor b = i % 2 ? ops_param(m, dt_dims(c->out), OPS_ANY) : none;
        dt_tensor x = ops_image(m, i, c->in, c->h, c->w);
        ops_result(m, dt_conv2d(x, ops_conv_weight(m, c), b, &c->d));
    }
    dt_tensor w = dt_slice(ops_param(m, dt_dims(4, 2, 2, 2), OPS_ANY), 0, 1, 3);
    dt_tensor b = dt_slice(ops_param(m, dt_dims(7), OPS_ANY), 0, 3, 3);
    dt_tensor x = ops_rows(m, dt_dims(2, 3, 3), OPS_ANY);
    ops_result(m, dt_conv2d(x, w, b, NULL));
    ops_result(m, dt_conv2d(x, dt_permute(w, dt_dims(0, 1, 3, 2)), none, NULL)); /* both again */
    ops_result(m,
               dt_conv1d(ops_rows(m, dt_dims(3, 7), OPS_ANY),
                         ops_param(m, dt_dims(2, 3, 3), OPS_ANY), ops_param(m, dt_dims(2), OPS_ANY),
                         &(dt_conv_desc){.stride = {2}, .padding = {1}}));
}

static void ops_case_conv2d_dx(ops_model *m) {
    dt_tensor none = {0};
    for (int i = 0; i < ops_conv_count(m); i++) {
        const ops_conv *c = &ops_convs[i];
        dt_tensor w = ops_conv_weight(m, c), x = ops_shared(m, dt_dims(c->in, c->h, c->w), OPS_ANY);
        dt_tensor y = dt_conv2d(x, w, none, &c->d); /* for its attributes and its shape */
        dt_shape s = dt_tensor_shape(y);
        dti_attr attr = *ops_attr(y);
        attr.dim[0] = c->h;
        attr.dim[1] = c->w;
        dt_tensor in[3] = {ops_image(m, i, s.dim[0], s.dim[1], s.dim[2]), w, none};
        if (i % 2)
            in[2] = ops_param(m, dt_dims(c->in), OPS_ANY);
        ops_result(m, dti_append(m->graph, m->op, in, i % 2 ? 3 : 2, &attr));
    }
    dt_conv_desc more = {.stride = {3, 2}, .padding = {1, 0}, .output_padding = {2, 1}};
    ops_result(m, dt_conv_transpose2d(ops_rows(m, dt_dims(2, 3, 2), OPS_ANY),
                                      ops_param(m, dt_dims(2, 3, 3, 2), OPS_ANY),
                                      ops_param(m, dt_dims(3), OPS_ANY), &more));
    dt_conv_desc grouped = {.groups = 2, .dilation = {2, 1}, .output_padding = {1, 0}};
    ops_result(m, dt_conv_transpose2d(ops_rows(m, dt_dims(4, 2, 3), OPS_ANY),
                                      ops_param(m, dt_dims(4, 1, 2, 2), OPS_ANY), none, &grouped));
    ops_result(m, dt_conv_transpose1d(ops_rows(m, dt_dims(2, 5), OPS_ANY),
                                      ops_param(m, dt_dims(2, 3, 3), OPS_ANY),
                                      ops_param(m, dt_dims(3), OPS_ANY),
                                      &(dt_conv_desc){.stride = {2}, .output_padding = {1}}));
}

static void ops_case_conv2d_dw(ops_model *m) {
    dt_tensor none = {0};
    for (int i = 0; i < ops_conv_count(m); i++) {
        const ops_conv *c = &ops_convs[i];
        dt_tensor x = ops_image(m, i, c->in, c->h, c->w);
        dt_tensor y = dt_conv2d(x, ops_conv_weight(m, c), none, &c->d);
        dti_attr attr = *ops_attr(y);
        attr.dim[0] = c->kh;
        attr.dim[1] = c->kw;
        ops_result(m, dti_append2(m->op, ops_like(m, y, OPS_ANY), x, &attr));
    }
}

/* ---- pooling and resizing */

typedef struct ops_pool {
    int64_t c, h, w;
    dt_pool_desc d;
} ops_pool;

static const ops_pool ops_pools[] = {
    {2, 4, 6, {.kernel = {2, 2}}},
    {1, 5, 5, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
    {2, 5, 4, {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 0}}},
    {1, 6, 7, {.kernel = {2, 3}, .stride = {2, 2}, .ceil_mode = true}},
    {1, 5, 6, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true}},
    {2, 3, 3, {.kernel = {3, 3}}},
    {2, 4, 5, {.kernel = {2, 1}, .stride = {3, 2}}}, /* gaps */
    {1, 1, 1, {.kernel = {1, 1}}},
    {1, 2, 5, {.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}}},
    {1, 3, 9, {.kernel = {1, 4}, .stride = {1, 3}, .padding = {0, 2}, .ceil_mode = true}},
    {0, 4, 4, {.kernel = {2, 2}}},
    {16, 13, 11, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}}, /* not small */
    {33, 24, 24, {.kernel = {2, 2}}},
    {5, 17, 65, {.kernel = {5, 7}, .stride = {3, 2}, .padding = {2, 3}, .ceil_mode = true}},
    {3, 31, 33, {.kernel = {31, 33}}},
};
#define OPS_POOLS_SMALL 11

static int ops_pool_count(const ops_model *m) {
    return m->small ? OPS_POOLS_SMALL : (int)DTI_COUNT(ops_pools);
}

static void ops_case_max_pool2d(ops_model *m) {
    for (int i = 0; i < ops_pool_count(m); i++) {
        const ops_pool *p = &ops_pools[i];
        ops_result(m, dt_max_pool2d(ops_image(m, i, p->c, p->h, p->w), &p->d));
    }
}

/* Also the adjoint: both take x and one tensor more, of x's or of y's shape. */
static void ops_case_max_pool2d_at(ops_model *m) {
    for (int i = 0; i < ops_pool_count(m); i++) {
        const ops_pool *p = &ops_pools[i];
        dt_tensor x = ops_image(m, i, p->c, p->h, p->w), y = dt_max_pool2d(x, &p->d);
        dt_tensor g = ops_like(m, m->op == DTI_OP_MAX_POOL2D_AT ? x : y, OPS_ANY);
        dti_attr attr = *ops_attr(y);
        ops_result(m, dti_append2(m->op, x, g, &attr));
    }
    dt_tensor g = dt_permute(ops_rows(m, dt_dims(4, 2, 5), OPS_ANY), dt_dims(1, 2, 0));
    dt_tensor x = ops_rows(m, dt_dims(2, 5, 4), OPS_ANY);
    dti_attr attr = *ops_attr(dt_max_pool2d(x, &(dt_pool_desc){.kernel = {1, 1}}));
    ops_result(m, dti_append2(m->op, x, g, &attr));
}

static const int64_t ops_sizes[][4] = {
    {5, 7, 3, 2},     {4, 4, 1, 1},     {3, 2, 5, 3},    {4, 3, 4, 3},
    {1, 1, 3, 2},     {3, 4, 6, 8},     {2, 5, 7, 9},    {13, 17, 5, 6}, /* not small */
    {41, 7, 123, 15}, {16, 16, 32, 32}, {29, 31, 13, 7},
};
#define OPS_SIZES_SMALL 7

static int ops_size_count(const ops_model *m) {
    return m->small ? OPS_SIZES_SMALL : (int)DTI_COUNT(ops_sizes);
}

static void ops_case_avg_pool2d(ops_model *m) {
    for (int i = 0; i < ops_pool_count(m); i++) {
        const ops_pool *p = &ops_pools[i];
        dt_pool_desc d = p->d;
        dt_tensor x = ops_image(m, i, p->c, p->h, p->w);
        ops_result(m, dt_avg_pool2d(x, &d));
        d.exclude_pad = true;
        ops_result(m, dt_avg_pool2d(x, &d));
    }
    for (int i = 0; i < ops_size_count(m); i++) {
        const int64_t *s = ops_sizes[i];
        ops_result(m, dt_adaptive_avg_pool2d(ops_image(m, i, 2, s[0], s[1]), s[2], s[3]));
    }
}

/* The adjoint of y = f(x), from a dy of its own. */
static void ops_adjoint_of(ops_model *m, int number, dt_tensor x, dt_tensor y) {
    dt_shape s = dt_tensor_shape(x), t = dt_tensor_shape(y);
    dti_attr attr = *ops_attr(y);
    attr.dim[0] = s.dim[1];
    attr.dim[1] = s.dim[2];
    ops_result(m, dti_append1(m->op, ops_image(m, number, t.dim[0], t.dim[1], t.dim[2]), &attr));
}

static void ops_case_avg_pool2d_grad(ops_model *m) {
    for (int i = 0; i < ops_pool_count(m); i++) {
        const ops_pool *p = &ops_pools[i];
        dt_pool_desc d = p->d;
        dt_tensor x = ops_shared(m, dt_dims(p->c, p->h, p->w), OPS_ANY);
        ops_adjoint_of(m, i, x, dt_avg_pool2d(x, &d));
        d.exclude_pad = true;
        ops_adjoint_of(m, i, x, dt_avg_pool2d(x, &d));
    }
    for (int i = 0; i < ops_size_count(m); i++) {
        const int64_t *s = ops_sizes[i];
        dt_tensor x = ops_shared(m, dt_dims(2, s[0], s[1]), OPS_ANY);
        ops_adjoint_of(m, i, x, dt_adaptive_avg_pool2d(x, s[2], s[3]));
    }
}

static void ops_case_resize(ops_model *m) {
    for (int i = 0; i < 2 * ops_size_count(m); i++) {
        const int64_t *s = ops_sizes[i / 2];
        dt_tensor x = ops_image(m, i / 2, i % 3 ? 2 : 1, s[0], s[1]);
        ops_result(m, dt_resize(x, s[2], s[3], i % 2 ? DT_RESIZE_BILINEAR : DT_RESIZE_NEAREST));
    }
}

static void ops_case_resize_grad(ops_model *m) {
    for (int i = 0; i < 2 * ops_size_count(m); i++) {
        const int64_t *s = ops_sizes[i / 2];
        dt_tensor x = ops_shared(m, dt_dims(i % 3 ? 2 : 1, s[0], s[1]), OPS_ANY);
        dt_tensor y = dt_resize(x, s[2], s[3], i % 2 ? DT_RESIZE_BILINEAR : DT_RESIZE_NEAREST);
        ops_adjoint_of(m, i / 2, x, y);
    }
}

/* ---- normalisation: each case makes the whole norm, then takes the row that it is about */

typedef struct ops_normed { /* a norm's pieces: w is nil without weights */
    dt_tensor x, stats, w, y;
    dti_attr attr;
} ops_normed;

static ops_normed ops_normed_of(dt_tensor y) {
    const dti_node *n = &y.graph->nodes[y.id];
    ops_normed parts = {.y = y, .attr = n->attr};
    parts.x = dti_input_of(y.graph, n, 0);
    parts.stats = dti_input_of(y.graph, n, 1);
    if (n->count > 2)
        parts.w = dti_input_of(y.graph, n, 2);
    return parts;
}

/* Weights by number: none, w, w and b. RMS norm has no b. */
static void ops_norm_weights(ops_model *m, int number, dt_shape s, dt_tensor w[2]) {
    w[0] = w[1] = (dt_tensor){0};
    if (number % 3 > 0)
        w[0] = ops_param(m, s, OPS_ANY);
    if (number % 3 > 1)
        w[1] = ops_param(m, s, OPS_ANY);
}

static const struct ops_layer_norm {
    int64_t dim[3];
    int rank, dims;
} ops_layer_norms[] = {
    {{7}, 1, 1},     {{3, 5}, 2, 1},    {{3, 5}, 2, 2},   {{2, 3, 4}, 3, 2},
    {{2, 1}, 2, 1},  {{1, 6}, 2, 1},    {{257}, 1, 1},    {{5, 255}, 2, 1},
    {{3, 64}, 2, 1}, {{2, 1025}, 2, 1}, {{33, 17}, 2, 1},
};
#define OPS_LAYER_NORMS_SMALL 6

static dt_tensor ops_norm_input(ops_model *m, int number, const int64_t *dim, int rank) {
    dt_shape s = {.rank = rank}, turned = s, order = s;
    memcpy(s.dim, dim, (size_t)rank * sizeof *dim);
    if (number % 4 != 3 || rank < 2)
        return number % 4 == 1 ? ops_shared(m, s, OPS_ANY) : ops_rows(m, s, OPS_ANY);
    for (int i = 0; i < rank; i++) {
        turned.dim[i] = dim[rank - 1 - i];
        order.dim[i] = rank - 1 - i;
    }
    return dt_permute(ops_rows(m, turned, OPS_ANY), order);
}

static void ops_each_layer_norm(ops_model *m, void (*each)(ops_model *m, ops_normed n)) {
    int count = m->small ? OPS_LAYER_NORMS_SMALL : (int)DTI_COUNT(ops_layer_norms);
    for (int i = 0; i < 2 * count; i++) {
        const struct ops_layer_norm *l = &ops_layer_norms[i / 2];
        dt_tensor x = ops_norm_input(m, i, l->dim, l->rank), w[2];
        dt_shape last = {.rank = l->dims};
        memcpy(last.dim, l->dim + l->rank - l->dims, (size_t)l->dims * sizeof *l->dim);
        ops_norm_weights(m, i, last, w);
        each(m, ops_normed_of(dt_layer_norm(x, l->dims, w[0], w[1], i % 5 ? 0 : 0.25f)));
        if (l->dim[l->rank - 1] > 1 || l->dims > 1)
            each(m, ops_normed_of(dt_rms_norm(x, l->dims, w[0], 0)));
    }
}

static const struct ops_group_norm {
    int64_t dim[3];
    int rank, groups;
} ops_group_norms[] = {
    {{4, 3, 2}, 3, 2}, {{6}, 1, 3},        {{4, 5}, 2, 4},   {{3, 2, 2}, 3, 1},
    {{6, 3}, 2, 2},    {{32, 9, 7}, 3, 8}, {{64, 5}, 2, 64}, {{12, 17, 3}, 3, 4},
};
#define OPS_GROUP_NORMS_SMALL 5

static void ops_each_group_norm(ops_model *m, void (*each)(ops_model *m, ops_normed n)) {
    int count = m->small ? OPS_GROUP_NORMS_SMALL : (int)DTI_COUNT(ops_group_norms);
    for (int i = 0; i < count; i++) {
        const struct ops_group_norm *g = &ops_group_norms[i];
        dt_tensor x = ops_norm_input(m, i, g->dim, g->rank), w[2];
        ops_norm_weights(m, i + 2, dt_dims(g->dim[0]), w);
        each(m, ops_normed_of(dt_group_norm(x, g->groups, w[0], w[1], 0)));
    }
}

static const struct ops_batch_norm {
    int64_t dim[3];
    int rank;
} ops_batch_norms[] = {
    {{3}, 1},  {{2, 3, 4}, 3},  {{4, 5}, 2},     {{1}, 1},   {{1, 2, 2}, 3}, {{3, 2}, 2},
    {{33}, 1}, {{17, 9, 5}, 3}, {{64, 8, 8}, 3}, {{257}, 1}, {{5, 1025}, 2},
};
#define OPS_BATCH_NORMS_SMALL 6

static dt_tensor ops_buffer(ops_model *m, dt_shape s, ops_range range) {
    ops_leaf *leaf = ops_leaf_add(m, dt_buffer(m->graph, ops_name(m), s, (dt_init){0}), range);
    leaf->constant = true;
    return leaf->x;
}

static void ops_each_batch_norm(ops_model *m, void (*each)(ops_model *m, ops_normed n)) {
    int count = m->small ? OPS_BATCH_NORMS_SMALL : (int)DTI_COUNT(ops_batch_norms);
    for (int i = 0; i < count; i++) {
        const struct ops_batch_norm *l = &ops_batch_norms[i];
        dt_tensor x = ops_norm_input(m, i % 2 ? 3 : 0, l->dim, l->rank), w[2];
        dt_shape channels = dt_dims(l->dim[0]);
        ops_norm_weights(m, i + 2, channels, w);
        dt_tensor mean = ops_buffer(m, channels, OPS_ANY);
        dt_tensor var = ops_buffer(m, channels, OPS_POSITIVE);
        each(m, ops_normed_of(dt_batch_norm(x, w[0], w[1], mean, var, NULL)));
    }
}

static void ops_norm_stats_of(ops_model *m, ops_normed n) {
    ops_result(m, n.stats);
}

static void ops_case_norm_stats(ops_model *m) {
    ops_each_layer_norm(m, ops_norm_stats_of);
    ops_each_group_norm(m, ops_norm_stats_of);
}

static void ops_case_batch_stats(ops_model *m) {
    ops_each_batch_norm(m, ops_norm_stats_of);
}

static void ops_norm_y_of(ops_model *m, ops_normed n) {
    ops_result(m, n.y);
}

static void ops_case_norm(ops_model *m) {
    ops_each_layer_norm(m, ops_norm_y_of);
    ops_each_group_norm(m, ops_norm_y_of);
    ops_each_batch_norm(m, ops_norm_y_of);
}

static void ops_norm_dx_of(ops_model *m, ops_normed n) {
    dt_tensor in[3] = {n.x, ops_like(m, n.x, OPS_ANY), n.w};
    ops_result(m, dti_append(m->graph, DTI_OP_NORM_DX, in, dti_is_nil(n.w) ? 2 : 3, &n.attr));
}

static void ops_case_norm_dx(ops_model *m) {
    ops_each_layer_norm(m, ops_norm_dx_of);
    ops_each_group_norm(m, ops_norm_dx_of);
}

static dt_tensor ops_norm_dw(dt_tensor dy, const ops_normed *n) {
    dt_tensor in[3] = {n->x, n->stats, dy};
    return dti_append(dy.graph, DTI_OP_NORM_DW, in, 3, &n->attr);
}

static void ops_norm_dw_of(ops_model *m, ops_normed n) {
    ops_result(m, ops_norm_dw(ops_like(m, n.x, OPS_ANY), &n));
}

static void ops_case_norm_dw(ops_model *m) {
    ops_each_layer_norm(m, ops_norm_dw_of);
    ops_each_group_norm(m, ops_norm_dw_of);
    ops_each_batch_norm(m, ops_norm_dw_of);
}

static void ops_all_of(ops_model *m, ops_normed n) {
    ops_result(m, dti_append1(DTI_OP_ALL_STATS, n.stats, &n.attr));
    dt_tensor dw = ops_norm_dw(ops_like(m, n.x, OPS_ANY), &n);
    ops_result(m, dti_append1(DTI_OP_ALL_MEAN, dw, &n.attr));
}

static void ops_case_meet(ops_model *m) {
    ops_each_batch_norm(m, ops_all_of);
}

static void ops_case_tp_sum(ops_model *m) {
    for (int i = 0; i < 4; i++)
        ops_result(m, dti_append1(DTI_OP_TP_SUM, ops_image(m, i, 3, 4, 2), NULL));
}

static void ops_case_tp_copy(ops_model *m) {
    for (int i = 0; i < 4; i++)
        ops_result(m, dti_append1(DTI_OP_TP_COPY, ops_image(m, i, 3, 4, 2), NULL));
}

/* Numbers of which there is no gradient. */
static dt_tensor ops_numbers(ops_model *m, int i) {
    return dt_affine(dt_iota(m->graph, dt_dims(1 + i, 4, 2)), 0.37f, -1.0f);
}

/* Of one tensor rank, outside of a group. */
static void ops_case_tp_along(ops_model *m) {
    for (int i = 0; i < 4; i++) {
        const dti_attr attr = {.i = {i % 3, 1, 0}};
        ops_result(m, dti_append1(m->op, ops_image(m, i, 3, 4, 2), &attr));
    }
}

/* The own part of two tensor ranks; no gradient flows back. */
static void ops_case_tp_own(ops_model *m) {
    ops_case_tp_along(m);
    for (int i = 0; i < 4; i++) {
        const dti_attr attr = {.i = {1, 2, i % 2}};
        ops_result(m, dti_append1(m->op, ops_numbers(m, i), &attr));
    }
}

static void ops_case_tp_most(ops_model *m) {
    for (int i = 0; i < 4; i++)
        ops_result(m, dti_append1(m->op, ops_numbers(m, i), NULL));
}

static void ops_case_tp_loss(ops_model *m) {
    for (int i = 0; i < 2; i++) {
        dt_tensor x = ops_image(m, i, 3, 4, 2), w = dt_affine(dt_detach(x), 0.0f, 0.7f);
        dt_tensor target = dt_cast(dt_fill(m->graph, dt_dims(), 1.0f), DT_I32);
        const dti_attr attr = {.i = {-100, 3}};
        ops_result(m, dti_append(m->graph, m->op, (dt_tensor[]){x, w, target}, 3, &attr));
    }
}

static void ops_batch_dx_of(ops_model *m, ops_normed n) {
    dt_tensor dy = ops_like(m, n.x, OPS_ANY), w = n.w;
    if (dti_is_nil(w))
        w = ops_param(m, dt_dims(n.attr.i[1]), OPS_ANY);
    dt_tensor in[5] = {n.x, dy, w, n.stats, ops_norm_dw(dy, &n)};
    ops_result(m, dti_append(m->graph, DTI_OP_BATCH_DX, in, 5, &n.attr));
}

static void ops_case_batch_dx(ops_model *m) {
    ops_each_batch_norm(m, ops_batch_dx_of);
}

/* The new values of the statistics' two buffers. */
static void ops_running_of(ops_model *m, ops_normed n) {
    for (uint32_t k = 1; k < 3; k++) {
        const dti_node *stats = &m->graph->nodes[n.stats.id];
        const dti_node *buffer = &m->graph->nodes[dti_input_id(m->graph, stats, k)];
        ops_result(m, (dt_tensor){m->graph, (uint32_t)buffer->attr.i[2]});
    }
}

static void ops_case_running(ops_model *m) {
    ops_each_batch_norm(m, ops_running_of);
}

#endif
