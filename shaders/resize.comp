/* Resizes n planes [ih, iw] to [oh, ow], to the nearest or (spec0 = 1) bilinear, as args.h says. An
 * invocation per element of the result.
 *
 * resize_grad, the adjoint: x[n, i, j] = the sum over (p, q), in order, of y[n, p, q] times the
 * weight that (i, j) has in it. It reads y and writes x, and tries the few (p, q) that may read
 * (i, j) with the same arithmetic. `precise`: a contraction of the product and the sum could change
 * an index. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/divide.glsl"

DTI_PUSH(DTI_ARGS_RESIZE)
layout(binding = 0) readonly buffer buffer_read { float read[]; };
layout(binding = 1) writeonly buffer buffer_made { float made[]; };

struct source {
    uint first, second; /* rows of x */
    float weight;       /* of the second; the first has 1 - weight */
};

source source_of(uint p, float scale, uint size)
{
    if (spec0 == 0u) {
        precise float nearest = float(p) * scale;
        uint at = min(uint(floor(nearest)), size - 1u);
        return source(at, at, 0.0);
    }
    precise float middle = float(p) + 0.5;
    precise float scaled = middle * scale;
    precise float shifted = scaled - 0.5;
    float from = max(shifted, 0.0);
    uint at = min(uint(floor(from)), size - 1u);
    precise float weight = from - float(at);
    return source(at, min(at + 1u, size - 1u), weight);
}

/* Output rows [x, y) that may read row i of x. They are a few more than do, because of rounding.
 * The last row also gets rows that rounding would put after it. */
uvec2 range_of(uint i, float scale, uint size, uint rows)
{
    float reach = spec0 == 0u ? 0.0 : 0.5;
    float begin = (float(i) - reach) / scale - reach - 2.0;
    float end = (float(i) + 1.0 + reach) / scale - reach + 2.0;
    uint last = i + 1u == size ? rows : min(uint(max(end, 0.0)), rows);
    return uvec2(min(uint(max(begin, 0.0)), rows), last);
}

float between(uint row, source cols)
{
    return (1.0 - cols.weight) * read[row + cols.first] + cols.weight * read[row + cols.second];
}

float resized(uint plane, uint p, uint q)
{
    source cols = source_of(q, args.scale_w, args.iw), rows = source_of(p, args.scale_h, args.ih);
    uint first = args.x_offset + (plane * args.ih + rows.first) * args.iw;
    uint second = args.x_offset + (plane * args.ih + rows.second) * args.iw;
    if (spec0 == 0u)
        return read[first + cols.first];
    return (1.0 - rows.weight) * between(first, cols) + rows.weight * between(second, cols);
}

/* The weight of row i in output row p, if that reads it. */
bool weighs(uint i, uint p, float scale, uint size, out float weight)
{
    source s = source_of(p, scale, size);
    weight = (s.first == i ? 1.0 - s.weight : 0.0) + (s.second == i ? s.weight : 0.0);
    return s.first == i || s.second == i;
}

/* The sum over q of row `at` of y, for column j. */
float sum_of(uint at, uint j, uvec2 qs)
{
    float sum = 0.0, weight;
    for (uint q = qs.x; q < qs.y; q++) {
        if (weighs(j, q, args.scale_w, args.iw, weight))
            sum += weight * read[at + q];
    }
    return sum;
}

float gathered(uint plane, uint i, uint j)
{
    uvec2 ps = range_of(i, args.scale_h, args.ih, args.oh);
    uvec2 qs = range_of(j, args.scale_w, args.iw, args.ow);
    float sum = 0.0, weight;
    for (uint p = ps.x; p < ps.y; p++) {
        if (weighs(i, p, args.scale_h, args.ih, weight))
            sum += weight * sum_of(args.y_offset + (plane * args.oh + p) * args.ow, j, qs);
    }
    return sum;
}

void main()
{
    const bool GRAD = SIDE == DTI_SIDE_RESIZE_GRAD;
    uint e = dti_item(), rows = GRAD ? args.ih : args.oh, cols = GRAD ? args.iw : args.ow;
    if (e >= args.n * rows * cols)
        return;
    uint rest = dti_divided(e, cols, args.by[GRAD ? 1 : 3]);
    uint plane = dti_divided(rest, rows, args.by[GRAD ? 0 : 2]);
    uint row = rest - plane * rows, col = e - rest * cols;
    if (GRAD)
        made[args.x_offset + e] = gathered(plane, row, col);
    else
        made[args.y_offset + e] = resized(plane, row, col);
}
