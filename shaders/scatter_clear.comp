/* Of a block of dtable, a workgroup each. Rows that its word (DTI_ROW_BIT) marks as perhaps not 0,
 * and that have no entries now, become 0; then the word says which have entries. Rows that have are
 * written after it, by scatter_rows. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"

DTI_PUSH(DTI_ARGS_SCATTER)
layout(binding = 0) readonly buffer buffer_inverse { uint inverse[]; };
layout(binding = 1) buffer buffer_table { float dtable[]; };
layout(binding = 2) buffer buffer_words { uint words[]; };

shared uint now;

bool has_entries(uint first, uint last)
{
    return inverse[args.n + first] != inverse[args.n + last + 1u];
}

void clear(uint at, uint end, uint old)
{
    uint first = at / args.cols;
    for (uint i = at + gl_LocalInvocationID.x; i < end; i += gl_WorkGroupSize.x) {
        uint row = i / args.cols, bit = DTI_ROW_BIT(row - first);
        if (has_entries(row, row))
            atomicOr(now, bit);
        else if ((old & bit) != 0u)
            dtable[args.table_offset + i] = 0.0;
    }
}

void main()
{
    uint block = dti_group(), at = block * DTI_BLOCK, elements = args.table_rows * args.cols;
    if (at >= elements)
        return;
    uint end = min(at + DTI_BLOCK, elements);
    bool whole = (dti_step_u32(DTI_STEP_FLAGS) & DTI_FLAG_WHOLE) != 0u;
    uint old = whole ? 0xffffffffu : words[args.y_offset + block];
    if (old == 0u && !has_entries(at / args.cols, (end - 1u) / args.cols))
        return;
    now = 0u;
    barrier();
    clear(at, end, old);
    barrier();
    if (gl_LocalInvocationID.x == 0u)
        words[args.y_offset + block] = now;
}
