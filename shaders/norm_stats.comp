/* stats[g] = (mean, biased variance) of group g of x, or (spec0 = 1, RMS) (0, mean of squares). A
 * workgroup per group, which goes over it twice; the deviations from the first mean correct it and
 * the variance, so that equal values have that mean and no variance (Chan, Golub, LeVeque 1983). A
 * group is one run of cols elements, or (batch) a run of `spatial` in each sample. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"
#include "lib/runs.glsl"

DTI_PUSH(DTI_ARGS_NORM)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) writeonly buffer buffer_stats { float stats[]; };

/* This invocation's part of (sum (x - mean), sum of its squares). */
vec2 part_of(uint base, float mean)
{
    uint length = args.batch == 1u ? args.spatial : args.cols;
    uint pitch = args.channels * args.spatial; /* unused where there is one run */
    dti_long_sum s = dti_long_sum(vec4(0.0), vec4(0.0)), t = s;
    if (((base | length | pitch) & 3u) == 0u) {
        dti_runs r = dti_runs_start(length / 4u, pitch / 4u);
        for (uint k = gl_LocalInvocationID.x; k < args.cols / 4u; k += gl_WorkGroupSize.x) {
            vec4 d = x4[base / 4u + r.at] - mean;
            dti_add(s, d);
            dti_add(t, d * d);
            dti_runs_next(r);
        }
        return vec2((s.sum.x + s.sum.y) + (s.sum.z + s.sum.w),
                    (t.sum.x + t.sum.y) + (t.sum.z + t.sum.w));
    }
    dti_runs r = dti_runs_start(length, pitch);
    for (uint k = gl_LocalInvocationID.x; k < args.cols; k += gl_WorkGroupSize.x) {
        float d = x[base + r.at] - mean;
        dti_add(s, vec4(d, d * d, 0.0, 0.0));
        dti_runs_next(r);
    }
    return s.sum.xy;
}

void main()
{
    uint group = dti_group();
    if (group >= args.groups)
        return;
    uint base = args.x_offset + group * (args.batch == 1u ? args.spatial : args.cols);
    float mean = 0.0, count = float(args.cols);
    if (spec0 == 0u)
        mean = dti_group_sum(part_of(base, 0.0).x, args.cols, 0u) / count;
    vec2 sums = dti_group_sum2(part_of(base, mean), args.cols) / count;
    float variance = sums.y;
    if (spec0 == 0u) {
        mean += sums.x;
        variance -= sums.x * sums.x;
        variance = variance < 0.0 ? 0.0 : variance; /* a NaN stays */
    }
    if (gl_LocalInvocationID.x == 0u) {
        stats[args.s_offset + 2u * group] = mean;
        stats[args.s_offset + 2u * group + 1u] = variance;
    }
}
