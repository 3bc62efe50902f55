/* Attention to the positions of earlier runs. In a program with .cached the rows of keys and values
 * go to a cache. Queries attend to the whole cache, through a mask that hides rows that are not
 * written yet. In other programs it is causal attention. The rows are the same, so that a tensor of
 * the graph is one in both. Owns no row. */

static bool dti_cached_fits(dt_graph *g, const dt_attention_desc *d, const dt_cache_desc *c) {
    if (!d->causal || d->alibi || d->mask.graph || d->lengths.graph)
        dti_graph_fail(
            g, "attention_cached: .causal must be set, and .alibi, .mask and .lengths must not");
    else if (c->positions < 1 || c->positions > 1 << 24 || c->samples < 0)
        dti_graph_fail(
            g, "attention_cached: .positions is %lld (allowed: 1 to 2^24), .samples %d (0 or more)",
            (long long)c->positions, c->samples);
    else if (c->position.graph && dti_is_nil(c->position))
        dti_nil_of(c->position, "attention_cached's .position");
    else if (c->position.graph != g || dti_node_of(c->position)->dtype != DT_I32 ||
             dti_node_of(c->position)->shape.rank != 0)
        dti_graph_fail(g, "attention_cached: .position must be i32 [] of the same graph, one for "
                          "all or one a sample");
    return g->error[0] == 0;
}

/* 1 if a query's position, at + i, is at or after a key's, by less than a window's width: [1, T,
 * S]. */
static dt_tensor dti_cached_seen(dt_tensor at, int64_t tq, int64_t positions, int64_t window) {
    dt_graph *g = at.graph;
    dt_tensor query = dti_attention_line(g, tq, (dt_shape){3, {1, tq, 1}});
    query = dt_add(query, dt_cast(at, DT_F32));
    dt_tensor key = dti_attention_line(g, positions, (dt_shape){3, {1, 1, positions}});
    dt_tensor seen = dt_le(key, query);
    if (!window)
        return seen;
    dt_tensor last = dt_affine(query, 1.0f, -(float)window);
    return dt_mul(seen, dt_gt(key, last));
}

/* in: q, k, v, at; f: scale, dropout; i: attention's flags, window and stream, samples; dim:
 * positions, place. */
static dt_tensor dti_cached_make(dt_graph *g, const dti_call *c) {
    const dt_tensor at = dti_call_in(g, c, 3);
    const int32_t window = c->attr.i[1];
    const dt_shape q = dti_tensor_shape(dti_call_in(g, c, 0));
    const dt_shape k = dti_tensor_shape(dti_call_in(g, c, 1));
    const dt_shape v = dti_tensor_shape(dti_call_in(g, c, 2));
    const int64_t row = k.dim[0] * (k.dim[2] + v.dim[2]);
    dt_tensor kept[2];
    for (int i = 0; i < 2; i++) {
        const dt_tensor in[2] = {dti_call_in(g, c, 1 + (uint32_t)i), at};
        const dti_attr attr = {.dim = {c->attr.dim[0], c->attr.dim[1], row},
                               .i = {c->attr.i[3], i ? (int32_t)(k.dim[0] * k.dim[2]) : 0}};
        kept[i] = dti_append(g, DTI_OP_CACHE, in, g->cached ? 2 : 1, &attr);
    }
    dt_tensor seen = dti_cached_seen(at, q.dim[1], c->attr.dim[0], window);
    if (dti_is_nil(seen))
        return seen;
    dti_call plain = {
        .name = "attention",
        .in = {c->in[0], kept[0].id, kept[1].id},
        .attr = {.f = {c->attr.f[0], c->attr.f[1]}, .i = {c->attr.i[0], window, c->attr.i[2]}},
        .make = dti_attention_make};
    if (g->cached) {
        plain.in[3] = seen.id;
        const uint32_t flags = (uint32_t)c->attr.i[0] & ~(uint32_t)DTI_ATTENTION_CAUSAL;
        plain.attr.i[0] = (int32_t)(flags | DTI_ATTENTION_KEEP);
        plain.attr.i[1] = 0;
    }
    return dti_call_make(g, &plain);
}

DT_API dt_tensor dt_attention_cached(dt_tensor q, dt_tensor k, dt_tensor v,
                                     const dt_cache_desc *cache, const dt_attention_desc *desc) {
    const dt_attention_desc none = {0}, d = desc ? *desc : none;
    const dt_cache_desc c = cache ? *cache : (dt_cache_desc){0};
    const dt_shape s = dti_tensor_shape(k), t = dti_tensor_shape(v);
    dt_graph *g = q.graph;
    dti_call call;
    if (dti_is_nil(q) || dti_is_nil(k) || dti_is_nil(v) || g != k.graph || g != v.graph ||
        s.rank != 3 || t.rank != 3)
        return dt_attention(q, k, v, &d); /* reports the error */
    if (g->error[0] || !dti_cached_fits(g, &d, &c) || !dti_attention_call(g, &d, &call))
        return dti_nil(g);
    const uint64_t row = (uint64_t)(s.dim[0] * (s.dim[2] + t.dim[2]));
    const uint64_t samples = c.samples ? (uint64_t)c.samples : 1;
    const double all = (double)samples * (double)c.positions * (double)row;
    if (s.dim[0] != t.dim[0] || dti_tensor_shape(q).rank != 3 ||
        dti_tensor_shape(q).dim[1] != s.dim[1] || s.dim[1] > c.positions || all > INT32_MAX) {
        return dti_graph_fail(
            g,
            "attention_cached: q %s, k %s and v %s for %lld positions of %llu samples; q and k "
            "must have the same positions and fit the cache, which has fewer than 2^31 elements",
            dti_tensor_print(q).text, dti_tensor_print(k).text, dti_tensor_print(v).text,
            (long long)c.positions, (unsigned long long)samples);
    }
    call.name = "attention_cached";
    call.make = dti_cached_make;
    call.in[0] = q.id, call.in[1] = k.id, call.in[2] = v.id, call.in[3] = c.position.id;
    call.attr.i[3] = (int32_t)samples;
    call.attr.dim[0] = c.positions;
    call.attr.dim[1] = (int64_t)g->cache_elements;
    g->cache_elements += (samples * (uint64_t)c.positions * row + 63) / 64 * 64; /* 256 bytes */
    return dti_call_make(g, &call);
}

/* ---- positions */

static dt_tensor dti_cache_position_make(dt_graph *g, const dti_call *c) {
    const dt_tensor position = dti_call_in(g, c, 0);
    if (dti_node_of(position)->dtype != DT_I32 || dti_node_of(position)->shape.rank != 0)
        return dti_graph_fail(g, "cache_position: %s must be i32 []",
                              dti_tensor_print(position).text);
    dt_tensor none = dt_cast(dt_fill(g, (dt_shape){0}, 0.0f), DT_I32);
    return dt_detach(g->cached ? position : none);
}

DT_API dt_tensor dt_cache_position(dt_tensor position) {
    return dti_compose("cache_position", dti_cache_position_make, 1, (dti_inputs){{position}},
                       (dti_attr){0});
}

static dt_tensor dti_cache_positions_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0), position = dti_call_in(g, c, 1);
    const dt_shape s = dti_tensor_shape(x);
    if (s.rank < 1 || s.dim[0] > 1 << 24)
        return dti_graph_fail(g, "cache_positions: %s has no positions, or more than 2^24",
                              dti_tensor_print(x).text);
    dt_tensor from = dt_cast(dt_cache_position(position), DT_F32);
    dt_tensor y = dt_add(from, dt_iota(g, (dt_shape){1, {s.dim[0]}}));
    return dt_cast(y, DT_I32);
}

DT_API dt_tensor dt_cache_positions(dt_tensor x, dt_tensor position) {
    return dti_compose("cache_positions", dti_cache_positions_make, 2, (dti_inputs){{x, position}},
                       (dti_attr){0});
}
