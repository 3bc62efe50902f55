/* The adjoint of resize: x[n, i, j] = the sum over (p, q), in order, of y[n, p, q] times the weight
 * that (i, j) has in it. An invocation per element of x, which tries the few (p, q) that may read
 * it with the same arithmetic as resize. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/divide.glsl"
#include "lib/resize.glsl"

DTI_PUSH(DTI_ARGS_RESIZE)
layout(binding = 0) readonly buffer buffer_y { float y[]; };
layout(binding = 1) writeonly buffer buffer_x { float x[]; };

bool reads(uint i, uint p, float scale, uint size)
{
    dti_source s = dti_resize_source(p, scale, size);
    return s.first == i || s.second == i;
}

/* The sum over q of row `at` of y, for column j. */
float sum_of(uint at, uint j, uvec2 qs)
{
    float sum = 0.0;
    for (uint q = qs.x; q < qs.y; q++) {
        if (reads(j, q, args.scale_w, args.iw))
            sum += dti_resize_weight(j, q, args.scale_w, args.iw) * y[at + q];
    }
    return sum;
}

void main()
{
    uint e = dti_item();
    if (e >= args.n * args.ih * args.iw)
        return;
    uint rest = dti_divided(e, args.iw, args.by[1]), plane = dti_divided(rest, args.ih, args.by[0]);
    uint j = e - rest * args.iw, i = rest - plane * args.ih;
    uvec2 ps = dti_resize_range(i, args.scale_h, args.ih, args.oh);
    uvec2 qs = dti_resize_range(j, args.scale_w, args.iw, args.ow);
    float sum = 0.0;
    for (uint p = ps.x; p < ps.y; p++) {
        if (reads(i, p, args.scale_h, args.ih)) {
            uint at = args.y_offset + (plane * args.oh + p) * args.ow;
            sum += dti_resize_weight(i, p, args.scale_h, args.ih) * sum_of(at, j, qs);
        }
    }
    x[args.x_offset + e] = sum;
}
