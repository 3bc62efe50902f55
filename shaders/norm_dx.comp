/* The gradient of layer, group and RMS normalisation by x, a workgroup per group of N = cols
 * elements, with g = dy * w[channel] (spec1; else g = dy):
 *   dx = rstd (g - mean(g) - xhat mean(g xhat)), without mean(g) where spec0 = 1 (RMS).
 * The statistics are made again. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"
#include "lib/runs.glsl"

DTI_PUSH(DTI_ARGS_NORM)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_dy { float dy[]; };
layout(binding = 2) readonly buffer buffer_w { float w[]; };
layout(binding = 3) writeonly buffer buffer_dx { float dx[]; };

float mean_of(uint at)
{
    float sum = 0.0;
    for (uint k = gl_LocalInvocationID.x; k < args.cols; k += gl_WorkGroupSize.x)
        sum += x[at + k];
    float mean = dti_group_sum4(vec4(sum), args.cols).x / float(args.cols);
    barrier(); /* before the next sum */
    return mean;
}

/* g at dy + k; r says how many channels (runs of `spatial`) lie between the group's first and
 * it. */
float weighted(uint at, dti_runs r, uint channel)
{
    float g = dy[at + r.at];
    return spec1 == 0u ? g : g * w[args.w_offset + channel + r.run];
}

void main()
{
    uint group = dti_group(), lane = gl_LocalInvocationID.x, first = group * args.cols;
    if (group >= args.groups)
        return;
    uint x_at = args.x_offset + first, dy_at = args.dy_offset + first;
    uint channel = first / args.spatial % args.channels;
    float mean = spec0 == 1u ? 0.0 : mean_of(x_at), squares = 0.0, lost = 0.0;
    vec2 sums = vec2(0.0); /* of g and of g (x - mean) */
    dti_runs start = dti_runs_start(0u, args.spatial, args.spatial), r = start;
    for (uint k = lane; k < args.cols; k += gl_WorkGroupSize.x) {
        float d = x[x_at + k] - mean, g = weighted(dy_at, r, channel);
        lost += d;
        squares += d * d;
        sums += vec2(g, g * d);
        dti_runs_next(r);
    }
    float count = float(args.cols);
    vec4 all = dti_group_sum4(vec4(squares, lost, sums), args.cols) / count;
    float variance = all.x;
    sums = all.zw;
    if (spec0 == 0u) { /* the mean is corrected by what it was off, as in norm_stats.comp */
        float shift = all.y;
        mean += shift;
        variance -= shift * shift;
        variance = variance < 0.0 ? 0.0 : variance;
        sums.y -= shift * sums.x;
    }
    float rstd = 1.0 / sqrt(variance + args.eps);
    float shift = spec0 == 1u ? 0.0 : sums.x, slope = sums.y * rstd * rstd;
    r = start;
    for (uint k = lane; k < args.cols; k += gl_WorkGroupSize.x) {
        float d = x[x_at + k] - mean, g = weighted(dy_at, r, channel);
        dx[args.y_offset + first + k] = rstd * (g - shift - slope * d);
        dti_runs_next(r);
    }
}
