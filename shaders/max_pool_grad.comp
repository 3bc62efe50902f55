/* The adjoint of max_pool: g[n, i, j] = sum of y[n, p, q] over the windows (p, q) whose largest
 * element (of x) is (i, j), in order of (p, q). spec1: RELU_GRAD, where x is the mask. An
 * invocation per element of g, which looks at the windows that contain it. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/pool.glsl"

DTI_PUSH(DTI_ARGS_POOL)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_y { float y[]; };
layout(binding = 2) writeonly buffer buffer_g { float g[]; };

#include "lib/max_pool.glsl"

float sum_of(uint plane, uint i, uint j)
{
    uvec2 ps = dti_windows_of(i, args.stride_h, args.by[4], args.pad_h, args.kh, args.oh);
    uvec2 qs = dti_windows_of(j, args.stride_w, args.by[5], args.pad_w, args.kw, args.ow);
    uint base = args.x_offset + plane * args.ih * args.iw, own = i * args.iw + j;
    float sum = 0.0;
    for (uint p = ps.x; p < ps.y; p++) {
        for (uint q = qs.x; q < qs.y; q++) {
            if (largest(base, p, q) == own)
                sum += y[args.y_offset + (plane * args.oh + p) * args.ow + q];
        }
    }
    return sum;
}

void main()
{
    uint e = dti_item();
    if (e >= args.n * args.ih * args.iw)
        return;
    uvec3 at = dti_plane_place(e, args.ih, args.iw, args.by[0], args.by[1]);
    float sum = sum_of(at.x, at.y, at.z);
    bool keep = spec1 != DTI_EPILOGUE_RELU_GRAD || x[args.x_offset + e] > 0.0;
    g[args.g_offset + e] = keep ? sum : 0.0;
}
