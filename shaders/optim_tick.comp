/* Counts the step of each parameter, at its first block, unless the step is aborted. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) buffer buffer_state { uint state[]; };
layout(binding = 1) readonly buffer buffer_table { uint table[]; };

void main()
{
    uint entry = dti_item();
    if (entry >= args.blocks || state[DTI_CONTROL_ABORT] != 0u)
        return;
    uint param = table[entry * DTI_TABLE_WORDS + DTI_TABLE_PARAM];
    if ((param & DTI_TABLE_FIRST) != 0u)
        state[args.t_offset + (param & DTI_TABLE_INDEX)] += 1u;
}
