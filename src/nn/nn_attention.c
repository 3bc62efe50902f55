/* Multi-head attention: one projection to queries, keys and values, heads, one projection back. */

/* The kinds of an attention layer's parameters. */
typedef struct dti_nn_heads {
    int64_t width, heads, kv_heads, size; /* size: of a head */
    int64_t kv_width;
} dti_nn_heads;

static bool dti_nn_heads_of(dt_tensor x, dt_tensor from, const char *name, int64_t heads,
                            const dt_attention_layer_desc *d, dti_nn_heads *out) {
    const dt_shape s = dti_tensor_shape(x), t = dti_tensor_shape(from);
    const int64_t width = s.rank == 2 ? s.dim[1] : 0, kv = d->kv_heads ? d->kv_heads : heads;
    *out = (dti_nn_heads){.width = width, .heads = heads, .kv_heads = kv};
    if (s.rank != 2 || t.rank != 2 || t.dim[1] != width)
        dti_graph_fail(x.graph,
                       "multi_head_attention '%s': x %s and keys %s must be [positions, width], of "
                       "one width",
                       name, dti_shape_of(x).text,
                       dti_shape_print(t, dti_tensor_has_samples(from)).text);
    else if (heads < 1 || width % heads != 0 || kv < 1 || heads % kv != 0)
        dti_graph_fail(x.graph,
                       "multi_head_attention '%s': %lld heads, %lld of keys, for a width of %lld; "
                       "heads must divide the width, and those of keys the heads",
                       name, (long long)heads, (long long)kv, (long long)width);
    else if (!d->use_rope && (d->rope.base != 0.0 || d->rope.interleaved || d->rope.offset.graph))
        dti_graph_fail(x.graph, "multi_head_attention '%s': .rope (base %g) needs .use_rope = true",
                       name, d->rope.base);
    else {
        out->size = width / heads;
        out->kv_width = out->size * kv;
        return true;
    }
    return false;
}

/* [positions, heads * size] -> [heads, positions, size] */
static dt_tensor dti_nn_split(dt_tensor x, int64_t heads) {
    const int64_t width = dti_tensor_shape(x).dim[1];
    x = dt_reshape(x, (dt_shape){3, {-1, heads, width / heads}});
    return dt_permute(x, (dt_shape){3, {1, 0, 2}});
}

/* The packed projection: of x only, or of queries by its first rows and of keys by the others. */
static void dti_nn_project(const dti_nn_heads *h, dt_tensor x, dt_tensor from, dt_tensor w,
                           dt_tensor b, dt_tensor qkv[3]) {
    const int64_t width[3] = {h->width, h->kv_width, h->kv_width};
    const bool self = x.id == from.id;
    int64_t at = 0;
    dt_tensor all = self ? dt_linear(x, w, b) : (dt_tensor){0};
    for (int i = 0; i < 3; at += width[i++]) {
        if (self) {
            qkv[i] = dt_slice(all, 1, at, width[i]);
            continue;
        }
        dt_tensor part = dt_slice(w, 0, at, width[i]);
        qkv[i] = dt_linear(i ? from : x, part, b.graph ? dt_slice(b, 0, at, width[i]) : b);
    }
}

static dt_tensor dti_nn_attend(const dti_nn *nn, const dti_nn_heads *h, dt_tensor x, dt_tensor from,
                               const char *name, const dt_attention_layer_desc *d) {
    const int64_t all = h->width + 2 * h->kv_width;
    const float in_bound = (float)sqrt(6.0 / (double)(h->width + all));
    const dt_init in_init = {DT_INIT_UNIFORM, -in_bound, in_bound}, zeros = {0};
    dt_tensor w = dti_nn_param(nn, name, "in_proj_weight", (dt_shape){2, {all, h->width}}, in_init);
    dt_tensor b = {0}, back_b = {0}, qkv[3];
    if (!d->no_bias)
        b = dti_nn_param(nn, name, "in_proj_bias", (dt_shape){1, {all}}, zeros);
    dt_tensor back = dti_nn_param(nn, name, "out_proj.weight", (dt_shape){2, {h->width, h->width}},
                                  dti_nn_init(zeros, (double)h->width));
    if (!d->no_bias)
        back_b = dti_nn_param(nn, name, "out_proj.bias", (dt_shape){1, {h->width}}, zeros);
    dti_param_part(w, 0, h->size, h->width, h->kv_width); /* a tensor group has heads */
    dti_param_part(b, 0, h->size, h->width, h->kv_width);
    dti_param_part(back, 1, h->size, h->width, 0);
    dti_nn_project(h, x, from, w, b, qkv);
    for (int i = 0; i < 3; i++)
        qkv[i] = dti_nn_split(qkv[i], i ? h->kv_heads : h->heads);
    const bool cached = d->cache.positions != 0;
    dt_rope_desc turn = d->rope;
    if (d->use_rope && cached && !turn.offset.graph)
        turn.offset = dt_cache_position(d->cache.position);
    for (int i = 0; i < 2 && d->use_rope; i++)
        qkv[i] = dt_rope(qkv[i], &turn);
    dt_tensor y = cached ? dt_attention_cached(qkv[0], qkv[1], qkv[2], &d->cache, &d->attention)
                         : dt_attention(qkv[0], qkv[1], qkv[2], &d->attention);
    y = dt_reshape(dt_permute(y, (dt_shape){3, {1, 0, 2}}), (dt_shape){2, {-1, h->width}});
    return dt_linear(y, back, back_b);
}

DT_API dt_tensor dt_nn_multi_head_attention(dt_tensor x, dt_tensor from, const char *name,
                                            int64_t heads, const dt_attention_layer_desc *desc) {
    const dt_attention_layer_desc none = {0}, *d = desc ? desc : &none;
    dti_nn nn;
    dti_nn_heads h;
    if (!from.graph)
        from = x;
    DTI_NEED_TENSOR(from, "multi_head_attention");
    if (!dti_nn_begin(&nn, x, "multi_head_attention", name) ||
        !dti_nn_heads_of(x, from, name, heads, d, &h))
        return dti_nil(x.graph);
    return dti_nn_end(&nn, dti_nn_attend(&nn, &h, x, from, name, d));
}
