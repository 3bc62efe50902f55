/* dw[c] = sum of dy * xhat and db[c] = sum of dy over the elements of channel c: a run of `spatial`
 * in each sample. A workgroup per channel. dw lies from y_offset on, db from b_offset. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"
#include "lib/runs.glsl"

DTI_PUSH(DTI_ARGS_NORM)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_stats { float stats[]; };
layout(binding = 2) readonly buffer buffer_dy { float dy[]; };
layout(binding = 3) writeonly buffer buffer_dw { float dw[]; };

void main()
{
    uint channel = dti_group(), pitch = args.channels * args.spatial;
    if (channel >= args.channels)
        return;
    uint first = channel * args.spatial, count = args.n / args.channels;
    /* The group of the run in sample s is group + s * groups_on. */
    uint group = args.batch == 1u ? channel : first / args.cols;
    uint groups_on = args.batch == 1u ? 0u : pitch / args.cols;
    dti_runs r = dti_runs_start(args.spatial, pitch);
    dti_long_sum s = dti_long_sum(vec4(0.0), vec4(0.0));
    for (uint k = gl_LocalInvocationID.x; k < count; k += gl_WorkGroupSize.x) {
        uint pair = args.s_offset + 2u * (group + r.run * groups_on);
        float g = dy[args.dy_offset + first + r.at];
        float rstd = 1.0 / sqrt(stats[pair + 1u] + args.eps);
        float xhat = (x[args.x_offset + first + r.at] - stats[pair]) * rstd;
        dti_add(s, vec4(g * xhat, g, 0.0, 0.0));
        dti_runs_next(r);
    }
    vec2 sums = dti_group_sum2(s.sum.xy, count);
    if (gl_LocalInvocationID.x == 0u) {
        dw[args.y_offset + channel] = sums.x;
        dw[args.b_offset + channel] = sums.y;
    }
}
