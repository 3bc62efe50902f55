/* Per entry of the block table: the sum of squares of its gradients, and 1.0 if one is not finite.
 * A workgroup per entry. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) readonly buffer buffer_grads { float grads[]; };
layout(binding = 1) readonly buffer buffer_table { uint table[]; };
layout(binding = 2) writeonly buffer buffer_pairs { float pairs[]; };

void main()
{
    uint entry = dti_group(), lane = gl_LocalInvocationID.x;
    if (entry >= args.blocks)
        return;
    uint base = table[entry * DTI_TABLE_WORDS + DTI_TABLE_BLOCK] * DTI_BLOCK;
    uint used = table[entry * DTI_TABLE_WORDS + DTI_TABLE_USED];
    float sum = 0.0, flag = 0.0;
    for (uint e = lane; e < used; e += gl_WorkGroupSize.x) {
        float g = grads[base + e];
        sum += g * g;
        if (!dti_is_finite(g))
            flag = 1.0;
    }
    sum = dti_group_sum(sum, used);
    flag = dti_group_max(flag, used);
    if (lane == 0u) {
        pairs[2u * entry] = sum;
        pairs[2u * entry + 1u] = flag;
    }
}
