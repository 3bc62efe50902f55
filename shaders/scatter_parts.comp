/* What chunks of long rows sum to. Slot 2w: the chunk, beginning in window w, of the row that its
 * first entry is of; slot 2w + 1: of the row of its last entry, where that row begins behind the
 * first. 0 where there is none. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_SCATTER)
#include "lib/scatter.glsl"

layout(binding = 2) readonly buffer buffer_entries { uint keys[]; };
layout(binding = 3) writeonly buffer buffer_parts { float parts[]; };
layout(binding = 3) writeonly buffer buffer_parts4 { vec4 parts4[]; };

/* Entries [x, y). */
uvec2 chunk_of(uint slot)
{
    uint window = (slot >> 1) * args.chunk, last = min(window + args.chunk, args.n) - 1u;
    bool second = (slot & 1u) != 0u;
    uint key = keys[second ? last : window];
    if (key >= args.table_rows)
        return uvec2(0u);
    uint begin = start_of(key), end = start_of(key + 1u);
    if (end - begin <= args.chunk || (second && begin <= window))
        return uvec2(0u);
    if (!second)
        begin += (window - begin + args.chunk - 1u) / args.chunk * args.chunk;
    return uvec2(begin, min(begin + args.chunk, end));
}

void main()
{
    uint item = dti_item(), cols = FOURS ? args.cols >> 2 : args.cols;
    uint slot = item / cols, col = item - slot * cols;
    if ((slot >> 1) * args.chunk >= args.n)
        return;
    uvec2 chunk = chunk_of(slot);
    if (FOURS)
        parts4[item] = sum_of_four(chunk.x, chunk.y, col);
    else
        parts[item] = sum_of(chunk.x, chunk.y, col);
}
