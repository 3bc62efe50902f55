/* y[n, p, q] = the sum of x over the window (p, q) of the plane n, divided by a count that spec0
 * (DTI_POOL_*) chooses. An invocation per element of y. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/pool.glsl"
#include "lib/avg_pool.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(float)

DTI_PUSH(DTI_ARGS_POOL)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

void main()
{
    uint e = dti_item();
    if (e >= args.n * args.oh * args.ow)
        return;
    uvec3 at = dti_plane_place(e, args.oh, args.ow, args.by[2], args.by[3]);
    uvec3 rows = dti_average_window(at.y, args.stride_h, args.pad_h, args.kh, args.ih, args.oh,
                                    args.by[2]);
    uvec3 cols = dti_average_window(at.z, args.stride_w, args.pad_w, args.kw, args.iw, args.ow,
                                    args.by[3]);
    uint base = args.x_offset + at.x * args.ih * args.iw;
    dti_sum_float sums = DTI_SUM_NONE(float);
    for (uint i = rows.x; i < rows.y; i++) {
        for (uint j = cols.x; j < cols.y; j++)
            dti_add(sums, x[base + i * args.iw + j]);
    }
    y[args.y_offset + e] = dti_sum(sums) / float(rows.z * cols.z);
}
