/* dtable[v, :] = the sum of row v's entries: of a long one, of its chunks in ascending order. spec1:
 * 1 = rows without any are 0 already. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_SCATTER)
#include "lib/scatter.glsl"

layout(binding = 2) readonly buffer buffer_parts { float parts[]; };
layout(binding = 2) readonly buffer buffer_parts4 { vec4 parts4[]; };
layout(binding = 3) writeonly buffer buffer_table { float dtable[]; };
layout(binding = 3) writeonly buffer buffer_table4 { vec4 dtable4[]; };

/* Where SCATTER_PARTS has put the chunk that begins with entry `at` of a row from `begin` on. */
uint slot_of(uint at, uint begin)
{
    uint window = at / args.chunk;
    return 2u * window + (at == begin && window * args.chunk != at ? 1u : 0u);
}

#define DTI_SCATTER_JOIN(TYPE, NAME, PARTS, SUM)                                                   \
    TYPE NAME(uint begin, uint end, uint col, uint cols)                                           \
    {                                                                                              \
        if (end - begin <= args.chunk)                                                             \
            return SUM(begin, end, col);                                                           \
        dti_sum_##TYPE sums = DTI_SUM_NONE(TYPE);                                                  \
        for (uint at = begin; at < end; at += args.chunk)                                          \
            dti_add(sums, PARTS[slot_of(at, begin) * cols + col]);                                 \
        return dti_sum(sums);                                                                      \
    }
DTI_SUMS_OF(float)
DTI_SUMS_OF(vec4)
DTI_SCATTER_JOIN(float, row_of, parts, sum_of)
DTI_SCATTER_JOIN(vec4, row_of_four, parts4, sum_of_four)

void main()
{
    uint item = dti_item(), cols = FOURS ? args.cols >> 2 : args.cols;
    uint row = item / cols, col = item - row * cols;
    if (row >= args.table_rows)
        return;
    uint begin = start_of(row), end = start_of(row + 1u);
    if (spec1 != 0u && begin == end)
        return;
    if (FOURS)
        dtable4[(args.table_offset >> 2) + item] = row_of_four(begin, end, col, cols);
    else
        dtable[args.table_offset + item] = row_of(begin, end, col, cols);
}
