/* Per entry of the block table: the sum of squares of its gradients (0 where it is not trained),
 * and 1.0 if one is not finite. A workgroup per entry. spec0: 1 = the state has words of some rows;
 * where none has a gradient, none is read. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"
#include "lib/step.glsl"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) readonly buffer buffer_grads { vec4 grads[]; };
layout(binding = 1) readonly buffer buffer_table { uint table[]; };
layout(binding = 2) readonly buffer buffer_state { uint state[]; };
layout(binding = 3) writeonly buffer buffer_pairs { float pairs[]; };

#include "lib/rows.glsl"

/* The sum of squares of the first `count` components, and how many of those are not finite. */
vec2 part_of(vec4 g, uint count)
{
    vec2 part = vec2(0.0);
    [[unroll]] for (uint c = 0u; c < 4u; c++) {
        if (c < count)
            part += vec2(g[c] * g[c], dti_is_finite(g[c]) ? 0.0 : 1.0);
    }
    return part;
}

void main()
{
    uint entry = dti_group(), lane = gl_LocalInvocationID.x;
    if (entry >= args.blocks)
        return;
    uint base = table[entry * DTI_TABLE_WORDS + DTI_TABLE_BLOCK] * (DTI_BLOCK / 4);
    uint used = DTI_TABLE_USED_OF(table[entry * DTI_TABLE_WORDS + DTI_TABLE_USED]);
    if (spec0 != 0u && rows_of(entry * DTI_TABLE_WORDS) == 0u)
        used = 0u;
    vec2 pair = vec2(0.0);
    for (uint e = lane; 4u * e < used; e += gl_WorkGroupSize.x)
        pair += part_of(grads[base + e], used - 4u * e);
    pair = dti_group_sum2(pair, (used + 3u) / 4u);
    if (lane == 0u) {
        bool trained =
            (table[entry * DTI_TABLE_WORDS + DTI_TABLE_PARAM] & DTI_TABLE_BUFFER) == 0u;
        pairs[2u * entry] = trained ? pair.x : 0.0;
        pairs[2u * entry + 1u] = pair.y > 0.0 ? 1.0 : 0.0;
    }
}
