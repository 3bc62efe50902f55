/* y[n, p, q] = g where x is largest in the window (p, q) of the plane n (x: [n, ih, iw], g laid out
 * as x; the forward pass binds x twice). The first of equals wins; a NaN wins, and the last of
 * several. An invocation per element of y. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/pool.glsl"

DTI_PUSH(DTI_ARGS_POOL)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_g { float g[]; };
layout(binding = 2) writeonly buffer buffer_y { float y[]; };

#include "lib/max_pool.glsl"

void main()
{
    uint e = dti_item();
    if (e >= args.n * args.oh * args.ow)
        return;
    uvec3 at = dti_plane_place(e, args.oh, args.ow, args.by[2], args.by[3]);
    uint base = at.x * args.ih * args.iw;
    y[args.y_offset + e] = g[args.g_offset + base + largest(args.x_offset + base, at.y, at.z)];
}
