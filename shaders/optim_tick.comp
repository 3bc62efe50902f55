/* Counts the step of each parameter, at its first block, unless it is aborted or only reported; and
 * reports to the host what the dry pass found and how large values are. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/optim_body.h"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) buffer buffer_state { uint state[]; };
layout(binding = 1) readonly buffer buffer_table { uint table[]; };
layout(binding = 2) buffer buffer_status { uint status[]; };

void tell()
{
    status[DTI_STATUS_BAD] = state[DTI_CONTROL_BAD];
    if (state[DTI_CONTROL_BAD] != DTI_BAD_NONE)
        status[DTI_STATUS_ABORT] = 1u;
    [[unroll]] for (uint i = 0u; i < uint(DTI_OPTIM_VALUES); i++)
        status[DTI_STATUS_LARGEST(i)] = state[DTI_CONTROL_LARGEST(i)];
}

void main()
{
    uint entry = dti_item();
    if (entry == 0u)
        tell();
    bool aborted = state[DTI_CONTROL_ABORT] != 0u || state[DTI_CONTROL_BAD] != DTI_BAD_NONE;
    if (entry >= args.blocks || aborted || (args.flags & DTI_COMMIT_TELL) != 0u)
        return;
    uint param = table[entry * DTI_TABLE_WORDS + DTI_TABLE_PARAM];
    if ((param & DTI_TABLE_FIRST) != 0u)
        state[args.t_offset + (param & DTI_TABLE_INDEX)] += 1u;
}
