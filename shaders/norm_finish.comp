/* From chunks to groups, a workgroup per group or channel (spec0, DTI_NORM_FINISH_*): the pairs of
 * norm_stats to statistics; those of norm_dw to dw and db. Beside these in binding 0, from its
 * start on, it writes the inputs of batch_dx: [stats|dw|db|w], w where spec1 = 1. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(float)
DTI_SUMS_OF(vec2)

DTI_PUSH(DTI_ARGS_NORM)
layout(binding = 0) buffer buffer_pairs { float stats[]; };
layout(binding = 1) readonly buffer buffer_stats { float own[]; };
layout(binding = 2) readonly buffer buffer_w { float w[]; };
layout(binding = 3) writeonly buffer buffer_y { float y[]; };

#define DTI_NORM_PAIRS
#include "lib/stats.glsl"

vec2 summed(uint channel)
{
    uint at = args.p_offset + 2u * channel * args.chunks;
    dti_sum_vec2 sums = DTI_SUM_NONE(vec2);
    for (uint i = gl_LocalInvocationID.x; i < args.chunks; i += gl_WorkGroupSize.x)
        dti_add(sums, vec2(stats[at + 2u * i], stats[at + 2u * i + 1u]));
    return dti_group_sum2(dti_sum(sums), args.chunks);
}

void main()
{
    uint group = dti_group();
    if (group >= (spec0 == DTI_NORM_FINISH_DW ? args.channels : args.groups))
        return;
    vec2 pair;
    if (spec0 == DTI_NORM_FINISH_STATS)
        pair = dti_norm_joined(group);
    else
        pair = summed(group);
    if (gl_LocalInvocationID.x != 0u)
        return;
    if (spec0 == DTI_NORM_FINISH_STATS) {
        y[args.s_offset + 2u * group] = pair.x;
        y[args.s_offset + 2u * group + 1u] = pair.y;
        return;
    }
    y[args.y_offset + group] = pair.x;
    y[args.b_offset + group] = pair.y;
    if (spec1 == 0u)
        return;
    stats[2u * group] = own[args.s_offset + 2u * group];
    stats[2u * group + 1u] = own[args.s_offset + 2u * group + 1u];
    stats[2u * args.channels + group] = pair.x;
    stats[3u * args.channels + group] = pair.y;
    stats[4u * args.channels + group] = w[args.w_offset + group];
}
