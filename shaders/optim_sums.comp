/* A parameter's share, by its first block's workgroup. The pairs of all its blocks are added, and
 * the optimizer spec0 makes its share of the roots. Others have nothing to do. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/reduce.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(vec2)
#define DTI_OPTIM_PART 16
#define DTI_M_F float
#include "lib/optim_body.h"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) buffer buffer_state { uint state[]; };
layout(binding = 1) readonly buffer buffer_table { uint table[]; };

float share(vec4 roots, uint group)
{
    float w[DTI_GROUP_WORDS] = DTI_GROUP_F32(group);
    switch (spec0) {
#define DTI_CASE(number, ID, name, least, most) \
    case number: return dti_m_share_##name(roots.x, roots.y, roots.z, roots.w, w);
        DTI_OPTIM_WHOLE_LIST(DTI_CASE)
#undef DTI_CASE
    }
    return 1.0;
}

void main()
{
    uint first = args.first + dti_group(), end = args.first + args.blocks;
    if (first >= end)
        return;
    uint row = first * DTI_TABLE_WORDS, param = table[row + DTI_TABLE_PARAM];
    if ((param & DTI_TABLE_FIRST) == 0u || (param & (DTI_TABLE_BUFFER | DTI_TABLE_PLAIN)) != 0u)
        return;
    if ((param & DTI_TABLE_APART) != 0u && (args.flags & DTI_COMMIT_DIRECTED) == 0u)
        return;
    dti_sum_vec2 both = DTI_SUM_NONE(vec2);
    float elements = 0.0;
    uint index = param & DTI_TABLE_INDEX, from = args.pair_offset;
    for (uint e = first + gl_LocalInvocationID.x; e < end; e += gl_WorkGroupSize.x) {
        if ((table[e * DTI_TABLE_WORDS + DTI_TABLE_PARAM] & DTI_TABLE_INDEX) != index)
            break;
        uint used = DTI_TABLE_USED_OF(table[e * DTI_TABLE_WORDS + DTI_TABLE_USED]);
        dti_add(both, uintBitsToFloat(uvec2(state[from + 2u * e], state[from + 2u * e + 1u])));
        elements += float(used);
    }
    vec4 sums = dti_group_sum4(vec4(dti_sum(both), elements, 0.0), args.blocks);
    if (gl_LocalInvocationID.x == 0u) {
        uint group = DTI_TABLE_GROUP_OF(table[row + DTI_TABLE_GROUP]);
        float t = float(state[args.t_offset + index]) + 1.0;
        vec4 roots = sqrt(vec4(sums.xyz, t));
        float made = max(share(roots, group), DTI_SHARE_LEAST);
        bool fine = dti_is_finite(sums.x) && dti_is_finite(sums.y);
        state[args.share_offset + index] = fine ? floatBitsToUint(made) : 0x7fc00000u;
    }
}
