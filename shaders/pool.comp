/* Pooling of n planes [ih, iw] to [oh, ow], and its adjoints: an invocation per element of the
 * result.
 *
 * avg_pool: y[n, p, q] = the sum of x over the window (p, q) of the plane n, divided by a count that
 * spec0 (DTI_POOL_*) chooses. avg_pool_grad: x[n, i, j] = sum of y[n, p, q] / count(p, q) over the
 * windows (p, q) that contain (i, j), in order; it reads y from binding 0.
 *
 * max_pool: y[n, p, q] = g where x is largest in the window; g is laid out as x, and the forward
 * pass binds x twice. The first of equals wins; a NaN wins, and the last of several. max_pool_grad:
 * g[n, i, j] = sum of y[n, p, q] over the windows whose largest element (of x) is (i, j), in order;
 * it reads y from binding 1. spec1: RELU_GRAD, where x is the mask. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/divide.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(float)

DTI_PUSH(DTI_ARGS_POOL)
DTI_READS(0u, x)
DTI_READS(1u, g)
DTI_WRITES(1u, writeonly, average)
DTI_WRITES(2u, writeonly, largest)

const bool GRAD = SIDE == DTI_SIDE_AVG_POOL_GRAD || SIDE == DTI_SIDE_MAX_POOL_GRAD;

/* Along one axis: window p covers [p * stride - pad, + k), cut to [0, in). Signed: a window may
 * begin in the padding. */
ivec2 window(uint p, uint stride, uint pad, uint k, uint size)
{
    int begin = int(p * stride) - int(pad);
    return ivec2(max(begin, 0), min(begin + int(k), int(size)));
}

/* The windows [x, y) that contain element i; none where the stride skips it. by: its factor. */
uvec2 windows_of(uint i, uint stride, uint by, uint pad, uint k, uint windows)
{
    uint at = i + pad;
    return uvec2(at < k ? 0u : dti_divided(at - k, stride, by) + 1u,
                 min(dti_divided(at, stride, by) + 1u, windows));
}

/* Element e of n planes [h, w]: plane, row and column. by: factors of h and w. */
uvec3 plane_place(uint e, uint h, uint w, uint by_h, uint by_w)
{
    uint rest = dti_divided(e, w, by_w), plane = dti_divided(rest, h, by_h);
    return uvec3(plane, rest - plane * h, e - rest * w);
}

/* Of averages: [x, y) of the plane, and in z what the axis gives to the number to divide by. by:
 * the factor of windows. */
uvec3 average_window(uint p, uint stride, uint pad, uint k, uint size, uint windows, uint by)
{
    if (spec0 == DTI_POOL_ADAPTIVE) {
        uint begin = dti_divided(p * size, windows, by);
        uint end = dti_divided((p + 1u) * size + windows - 1u, windows, by);
        return uvec3(begin, end, end - begin);
    }
    ivec2 cut = window(p, stride, pad, k, size);
    int begin = int(p * stride) - int(pad);
    int whole = min(begin + int(k), int(size + pad)) - begin;
    return uvec3(cut, spec0 == DTI_POOL_INCLUDE_PAD ? whole : cut.y - cut.x);
}

uvec3 average_rows(uint p)
{
    return average_window(p, args.stride_h, args.pad_h, args.kh, args.ih, args.oh, args.by[2]);
}

uvec3 average_cols(uint q)
{
    return average_window(q, args.stride_w, args.pad_w, args.kw, args.iw, args.ow, args.by[3]);
}

/* The windows [x, y) that contain element i. by: factors of size and stride. */
uvec2 average_windows_of(uint i, uint stride, uint pad, uint k, uint size, uint windows, uvec2 by)
{
    if (spec0 == DTI_POOL_ADAPTIVE)
        return uvec2(dti_divided(i * windows, size, by.x),
                     dti_divided((i + 1u) * windows + size - 1u, size, by.x));
    return windows_of(i, stride, by.y, pad, k, windows);
}

float avg_pool(uvec3 at)
{
    uvec3 rows = average_rows(at.y), cols = average_cols(at.z);
    uint base = args.x_offset + at.x * args.ih * args.iw;
    dti_sum_float sums = DTI_SUM_NONE(float);
    for (uint i = rows.x; i < rows.y; i++) {
        for (uint j = cols.x; j < cols.y; j++)
            dti_add(sums, x_get(base + i * args.iw + j));
    }
    return dti_sum(sums) / float(rows.z * cols.z);
}

float avg_pool_grad(uvec3 at)
{
    uvec2 ps = average_windows_of(at.y, args.stride_h, args.pad_h, args.kh, args.ih, args.oh,
                                  uvec2(args.by[0], args.by[4]));
    uvec2 qs = average_windows_of(at.z, args.stride_w, args.pad_w, args.kw, args.iw, args.ow,
                                  uvec2(args.by[1], args.by[5]));
    uint base = args.y_offset + at.x * args.oh * args.ow;
    float sum = 0.0;
    for (uint p = ps.x; p < ps.y; p++) {
        for (uint q = qs.x; q < qs.y; q++)
            sum += x_get(base + p * args.ow + q) / float(average_rows(p).z * average_cols(q).z);
    }
    return sum;
}

/* Where x is largest in window (p, q) of the plane at `base`, as an index in the plane. By bits: a
 * comparison with a NaN is not to be relied on. */
uint largest_of(uint base, uint p, uint q)
{
    ivec2 rows = window(p, args.stride_h, args.pad_h, args.kh, args.ih);
    ivec2 cols = window(q, args.stride_w, args.pad_w, args.kw, args.iw);
    uint best_at = uint(rows.x) * args.iw + uint(cols.x);
    float best = x_get(base + best_at);
    bool found_nan = false;
    for (int i = rows.x; i < rows.y; i++) {
        for (int j = cols.x; j < cols.y; j++) {
            uint at = uint(i) * args.iw + uint(j);
            float value = x_get(base + at);
            bool is_nan = dti_is_nan(value);
            if (is_nan || (!found_nan && value > best)) {
                best = value;
                best_at = at;
            }
            found_nan = found_nan || is_nan;
        }
    }
    return best_at;
}

float max_pool_grad(uvec3 at)
{
    uvec2 ps = windows_of(at.y, args.stride_h, args.by[4], args.pad_h, args.kh, args.oh);
    uvec2 qs = windows_of(at.z, args.stride_w, args.by[5], args.pad_w, args.kw, args.ow);
    uint base = args.x_offset + at.x * args.ih * args.iw, own = at.y * args.iw + at.z;
    float sum = 0.0;
    for (uint p = ps.x; p < ps.y; p++) {
        for (uint q = qs.x; q < qs.y; q++) {
            if (largest_of(base, p, q) == own)
                sum += g_get(args.y_offset + (at.x * args.oh + p) * args.ow + q);
        }
    }
    return sum;
}

void main()
{
    uint e = dti_item();
    uvec2 size = GRAD ? uvec2(args.ih, args.iw) : uvec2(args.oh, args.ow);
    if (e >= args.n * size.x * size.y)
        return;
    uvec3 at = plane_place(e, size.x, size.y, args.by[GRAD ? 0 : 2], args.by[GRAD ? 1 : 3]);
    if (SIDE == DTI_SIDE_AVG_POOL) {
        average_put(args.y_offset + e, avg_pool(at));
    } else if (SIDE == DTI_SIDE_AVG_POOL_GRAD) {
        average_put(args.x_offset + e, avg_pool_grad(at));
    } else if (SIDE == DTI_SIDE_MAX_POOL) {
        uint base = at.x * args.ih * args.iw;
        uint from = args.g_offset + base + largest_of(args.x_offset + base, at.y, at.z);
        largest_put(args.y_offset + e, g_get(from));
    } else {
        float sum = max_pool_grad(at);
        bool keep = spec1 != DTI_EPILOGUE_RELU_GRAD || x_get(args.x_offset + e) > 0.0;
        largest_put(args.g_offset + e, keep ? sum : 0.0);
    }
}
