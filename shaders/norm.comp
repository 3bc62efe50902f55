/* Normalisation by statistics that are there, and its gradient by x for a batch: an invocation has 4
 * elements.
 *
 * norm: y = (x - mean) / sqrt(var + eps), with the stats of each element's group, then * w[channel]
 * and + b[channel] (spec0, DTI_NORM_*), then ReLU (spec1).
 *
 * batch_dx: dx = w rstd (dy - (db + xhat dw) / cols), xhat = (x - mean) rstd, rstd = 1 / sqrt(var +
 * eps) or, with fixed statistics (spec0 = 0), w rstd dy. Binding 1 is dy; binding 2 holds, from
 * s_offset on, the pairs (mean, var) of the channels, then dw, db and w. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
layout(constant_id = 4) const uint spec3 = 0u;

DTI_PUSH(DTI_ARGS_NORM)
DTI_READS(0u, x)
layout(binding = 1) readonly buffer buffer_stats { float stats[]; };
DTI_READS(1u, dy)
layout(binding = 2) readonly buffer buffer_w { float w[]; };
DTI_WRITES(3u, writeonly, y)

#include "lib/norm.glsl"

const bool BATCH_DX = SIDE == DTI_SIDE_BATCH_DX;

/* norm: y = f.x * (x - f.z) + f.y. batch_dx: dx = f.x * (dy - f.y - f.z * (x - f.w)). */
vec4 factors_of(dti_norm_place p)
{
    if (BATCH_DX) {
        uint at = args.s_offset + p.channel, pair = at + p.channel;
        float rstd = 1.0 / sqrt(w[pair + 1u] + args.eps);
        float factor = w[at + 4u * args.channels] * rstd;
        if (spec0 == 0u)
            return vec4(factor, 0.0, 0.0, 0.0);
        float count = float(args.cols);
        return vec4(factor, w[at + 3u * args.channels] / count,
                    w[at + 2u * args.channels] * rstd / count, w[pair]);
    }
    float mean = stats[args.s_offset + 2u * p.group];
    float factor = 1.0 / sqrt(stats[args.s_offset + 2u * p.group + 1u] + args.eps);
    float shift = 0.0;
    if (spec0 != DTI_NORM_PLAIN)
        factor *= w[args.w_offset + p.channel];
    if (spec0 == DTI_NORM_AFFINE)
        shift = w[args.b_offset + p.channel];
    return vec4(factor, shift, mean, 0.0);
}

void main()
{
    uint e = 4u * dti_item();
    if (e >= args.n)
        return;
    dti_norm_place p = dti_norm_place_of(e);
    uint at = args.x_offset + e, from = args.dy_offset + e, to = args.y_offset + e;
    if ((spec3 & DTI_NORM_FOURS) != 0u) { /* in one channel and one group */
        vec4 f = factors_of(p), v;
        if (BATCH_DX) {
            v = dy_get4(from / 4u);
            if (spec0 != 0u)
                v -= f.y + f.z * (x_get4(at / 4u) - f.w);
            v *= f.x;
        } else {
            v = dti_norm_value4(x_get4(at / 4u), vec4(f.x), vec4(f.y), f.z);
        }
        y_put4(to / 4u, v);
        return;
    }
    for (uint i = 0u; i < 4u && e + i < args.n; i++) {
        vec4 f = factors_of(p);
        float v;
        if (BATCH_DX) {
            v = dy_get(from + i);
            if (spec0 != 0u)
                v -= f.y + f.z * (x_get(at + i) - f.w);
            v *= f.x;
        } else {
            v = dti_norm_value(x_get(at + i), f.xyz);
        }
        y_put(to + i, v);
        dti_norm_place_next(p);
    }
}
