/* The adjoint of avg_pool: x[n, i, j] = sum of y[n, p, q] / count(p, q) over the windows (p, q)
 * that contain (i, j), in order. An invocation per element of x. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/pool.glsl"
#include "lib/avg_pool.glsl"

DTI_PUSH(DTI_ARGS_POOL)
layout(binding = 0) readonly buffer buffer_y { float y[]; };
layout(binding = 1) writeonly buffer buffer_x { float x[]; };

float count_of(uint p, uint q)
{
    uint rows = dti_average_window(p, args.stride_h, args.pad_h, args.kh, args.ih, args.oh,
                                   args.by[2]).z;
    uint cols = dti_average_window(q, args.stride_w, args.pad_w, args.kw, args.iw, args.ow,
                                   args.by[3]).z;
    return float(rows * cols);
}

void main()
{
    uint e = dti_item();
    if (e >= args.n * args.ih * args.iw)
        return;
    uvec3 at = dti_plane_place(e, args.ih, args.iw, args.by[0], args.by[1]);
    uvec2 ps = dti_average_windows_of(at.y, args.stride_h, args.pad_h, args.kh, args.ih, args.oh,
                                      uvec2(args.by[0], args.by[4]));
    uvec2 qs = dti_average_windows_of(at.z, args.stride_w, args.pad_w, args.kw, args.iw, args.ow,
                                      uvec2(args.by[1], args.by[5]));
    uint base = args.y_offset + at.x * args.oh * args.ow;
    float sum = 0.0;
    for (uint p = ps.x; p < ps.y; p++) {
        for (uint q = qs.x; q < qs.y; q++)
            sum += y[base + p * args.ow + q] / count_of(p, q);
    }
    x[args.x_offset + e] = sum;
}
