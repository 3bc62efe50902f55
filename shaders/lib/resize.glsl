/* The index arithmetic of resizing along one axis, for the kernel and its adjoint alike. `precise`:
 * a contraction of the product and the sum could change an index. */
struct dti_source {
    uint first, second; /* rows of the source */
    float weight;       /* of the second; the first has 1 - weight */
};

dti_source dti_resize_source(uint p, float scale, uint size)
{
    if (spec0 == 0u) {
        precise float nearest = float(p) * scale;
        uint at = min(uint(floor(nearest)), size - 1u);
        return dti_source(at, at, 0.0);
    }
    precise float middle = float(p) + 0.5;
    precise float scaled = middle * scale;
    precise float shifted = scaled - 0.5;
    float from = max(shifted, 0.0);
    uint at = min(uint(floor(from)), size - 1u);
    precise float weight = from - float(at);
    return dti_source(at, min(at + 1u, size - 1u), weight);
}

/* The weight of source row i in output row p. */
float dti_resize_weight(uint i, uint p, float scale, uint size)
{
    dti_source s = dti_resize_source(p, scale, size);
    return (s.first == i ? 1.0 - s.weight : 0.0) + (s.second == i ? s.weight : 0.0);
}

/* Output rows [x, y) that may read source row i: a few more than do, for the sake of rounding. The
 * last row also gets what rounding would put behind it. */
uvec2 dti_resize_range(uint i, float scale, uint size, uint rows)
{
    float reach = spec0 == 0u ? 0.0 : 0.5;
    float begin = (float(i) - reach) / scale - reach - 2.0;
    float end = (float(i) + 1.0 + reach) / scale - reach + 2.0;
    uint last = i + 1u == size ? rows : min(uint(max(end, 0.0)), rows);
    return uvec2(min(uint(max(begin, 0.0)), rows), last);
}
