/* The average of weights, a block a workgroup: a = a + part * (w - a), as lerp in optim_body.h has
 * it. Where the part is 1, it is the weight itself. Nothing where it is 0 or the step is aborted;
 * buffers are not averaged. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) readonly buffer buffer_params { vec4 params[]; };
layout(binding = 1) buffer buffer_state { uint state[]; };
layout(binding = 1) buffer buffer_average { vec4 average[]; }; /* the same words */
layout(binding = 2) readonly buffer buffer_table { uint table[]; };

void main()
{
    uint entry = args.first + dti_group();
    float part = dti_step_f32(DTI_STEP_AVERAGE);
    bool aborted = state[DTI_CONTROL_ABORT] != 0u || state[DTI_CONTROL_BAD] != DTI_BAD_NONE;
    if (dti_group() >= args.blocks || aborted || part == 0.0)
        return;
    uint row = entry * DTI_TABLE_WORDS;
    if ((table[row + DTI_TABLE_PARAM] & DTI_TABLE_BUFFER) != 0u)
        return;
    uint from = table[row + DTI_TABLE_BLOCK] * (DTI_BLOCK / 4), to = args.moment_fours + from;
    uint used = DTI_TABLE_USED_OF(table[row + DTI_TABLE_USED]);
    for (uint e = gl_LocalInvocationID.x; 4u * e < used; e += gl_WorkGroupSize.x) {
        vec4 w = params[from + e], a = average[to + e];
        precise vec4 way = (part < 0.5 ? w - a : w) * part;
        precise vec4 moved = (part < 0.5 ? a : a * (1.0 - part)) + way;
        average[to + e] = part == 1.0 ? w : moved; /* padding is 0 in both */
    }
}
