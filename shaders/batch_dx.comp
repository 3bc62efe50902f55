/* The gradient of batch normalisation by x, an invocation per 4 elements:
 *   dx = w rstd (dy - (db + xhat dw) / cols), xhat = (x - mean) rstd, rstd = 1 / sqrt(var + eps)
 * or, with fixed statistics (spec0 = 0), w rstd dy. Binding 2 holds, from s_offset on, the pairs
 * (mean, var) of the channels, then dw, db and w. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
layout(constant_id = 4) const uint spec3 = 0u;

DTI_PUSH(DTI_ARGS_NORM)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) readonly buffer buffer_dy { float dy[]; };
layout(binding = 1) readonly buffer buffer_dy4 { vec4 dy4[]; };
layout(binding = 2) readonly buffer buffer_c { float c[]; };
layout(binding = 3) writeonly buffer buffer_dx { float dx[]; };
layout(binding = 3) writeonly buffer buffer_dx4 { vec4 dx4[]; };

#include "lib/norm.glsl"

/* dx = f.x * (dy - f.y - f.z * (x - f.w)) */
vec4 factors_of(uint channel)
{
    uint at = args.s_offset + channel, pair = at + channel;
    float rstd = 1.0 / sqrt(c[pair + 1u] + args.eps);
    float factor = c[at + 4u * args.channels] * rstd;
    if (spec0 == 0u)
        return vec4(factor, 0.0, 0.0, 0.0);
    float count = float(args.cols);
    return vec4(factor, c[at + 3u * args.channels] / count,
                c[at + 2u * args.channels] * rstd / count, c[pair]);
}

void main()
{
    uint e = 4u * dti_item();
    if (e >= args.n)
        return;
    dti_norm_place p = dti_norm_place_of(e);
    uint at = args.x_offset + e, from = args.dy_offset + e, to = args.y_offset + e;
    if ((spec3 & DTI_NORM_FOURS) != 0u) { /* in one channel and one group */
        vec4 f = factors_of(p.channel), v = dy4[from / 4u];
        if (spec0 != 0u)
            v -= f.y + f.z * (x4[at / 4u] - f.w);
        dx4[to / 4u] = f.x * v;
        return;
    }
    for (uint i = 0u; i < 4u && e + i < args.n; i++) {
        vec4 f = factors_of(p.channel);
        float v = dy[from + i];
        if (spec0 != 0u)
            v -= f.y + f.z * (x[at + i] - f.w);
        dx[to + i] = f.x * v;
        dti_norm_place_next(p);
    }
}
