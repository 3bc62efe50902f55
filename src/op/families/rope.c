/* Rotary positions (Su et al., "RoFormer", 2021). Pairs of elements are rotated by an angle of
 * their position. So products of queries and keys depend only on distances. It is made of rows:
 * angles are f32 products of position and frequency, as in PyTorch's programs. Owns no row. */

#define DTI_ROPE_WIDEST 1024

/* [T, D / 2]: position times base^(-2 i / D). */
static dt_tensor dti_rope_angles(dt_graph *g, int64_t positions, int64_t size, double base,
                                 dt_tensor offset) {
    float frequency[DTI_ROPE_WIDEST / 2];
    for (int64_t i = 0; i < size / 2; i++)
        frequency[i] = (float)dti_exp(-2.0 * (double)i / (double)size * dti_ln(base));
    dt_tensor turns = dt_constant(g, DT_F32, (dt_shape){2, {1, size / 2}}, frequency);
    dt_tensor at =
        dt_reshape(dt_iota(g, (dt_shape){1, {positions}}), (dt_shape){2, {positions, 1}});
    if (offset.graph)
        at = dt_add(at, dt_cast(offset, DT_F32));
    return dt_mul(at, turns);
}

/* Elements i and i + D / 2, or 2 i and 2 i + 1: one of each pair. */
static dt_tensor dti_rope_part(dt_tensor x, bool interleaved, int which) {
    dt_shape s = dti_tensor_shape(x), half = s;
    const int last = s.rank - 1;
    half.dim[last] /= 2;
    if (!interleaved)
        return dt_slice(x, last, which * half.dim[last], half.dim[last]);
    s.dim[last] /= 2;
    s.dim[s.rank++] = 2;
    return dt_reshape(dt_slice(dt_reshape(x, s), last + 1, which, 1), half);
}

static dt_tensor dti_rope_join(dt_tensor a, dt_tensor b, dt_shape s, bool interleaved) {
    dt_shape one = s;
    one.dim[s.rank - 1] /= 2;
    one.dim[one.rank++] = 1;
    dt_tensor parts[2] = {a, b};
    for (int i = 0; i < 2 && interleaved; i++)
        parts[i] = dt_reshape(parts[i], one);
    return dt_reshape(dt_concat(parts, 2, -1), s);
}

static bool dti_rope_fits(dt_tensor x, const dt_rope_desc *d) {
    const dti_node *n = dti_node_of(x);
    const dt_shape s = n->shape;
    const int64_t size = s.rank ? s.dim[s.rank - 1] : 0;
    dt_graph *g = x.graph;
    if (s.rank < 2 || s.rank == DT_MAX_DIMS || n->dtype != DT_F32 || size < 2 || size % 2 ||
        size > DTI_ROPE_WIDEST)
        dti_graph_fail(g,
                       "rope: x %s must be [..., positions, size] of f32 and up to %d dimensions, "
                       "with an even size of at most %d",
                       dti_shape_print(s, n->samples).text, DT_MAX_DIMS - 1, DTI_ROPE_WIDEST);
    else if (!(d->base > 1.0 && dti_fits_f32(d->base)))
        dti_graph_fail(g, "rope: base %g; it must be above 1", d->base);
    else if (d->offset.graph && dti_is_nil(d->offset))
        dti_nil_of(d->offset, "rope's offset");
    else if (d->offset.graph && d->offset.graph != g)
        dti_graph_fail(g, "rope: the offset is of another graph");
    else if (d->offset.graph &&
             (dti_node_of(d->offset)->dtype != DT_I32 || dti_node_of(d->offset)->shape.rank != 0))
        dti_graph_fail(g, "rope: the offset must be i32 [], one for all or one a sample");
    return g->error[0] == 0;
}

/* in: x, offset; f: base; i: interleaved */
static dt_tensor dti_rope_make(dt_graph *g, const dti_call *call) {
    const dt_tensor x = dti_call_in(g, call, 0);
    const dt_rope_desc d = {.base = (double)call->attr.f[0],
                            .interleaved = call->attr.i[0] != 0,
                            .offset = dti_call_in(g, call, 1)};
    if (!dti_rope_fits(x, &d))
        return dti_nil(g);
    const dt_shape s = dti_tensor_shape(x);
    dt_tensor angle = dti_rope_angles(g, s.dim[s.rank - 2], s.dim[s.rank - 1], d.base, d.offset);
    dt_tensor c = dt_cos(angle), n = dt_sin(angle);
    dt_tensor a = dti_rope_part(x, d.interleaved, 0), b = dti_rope_part(x, d.interleaved, 1);
    dt_tensor ac = dt_mul(a, c), bn = dt_mul(b, n), bc = dt_mul(b, c), an = dt_mul(a, n);
    dt_tensor p = dt_sub(ac, bn), q = dt_add(bc, an);
    return dti_rope_join(p, q, s, d.interleaved);
}

DT_API dt_tensor dt_rope(dt_tensor x, const dt_rope_desc *desc) {
    const dt_rope_desc d = desc ? *desc : (dt_rope_desc){0};
    const dti_attr attr = {.f = {d.base == 0.0 ? 10000.0f : (float)d.base}, .i = {d.interleaved}};
    return dti_compose("rope", dti_rope_make, 1, (dti_inputs){{x, d.offset}}, attr);
}
