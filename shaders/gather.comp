/* y[i, :] = table[index[i], :]. An invocation makes each element of y, or four neighbours of a row
 * (spec2). They are words as they are, or floats rounded to 16 bits. An index outside the table
 * gives NaN. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/divide.glsl"
#include "lib/fours.glsl"

DTI_PUSH(DTI_ARGS_GATHER)
layout(binding = 0) readonly buffer buffer_table { uint table[]; };
layout(binding = 0) readonly buffer buffer_table4 { uvec4 table4[]; };
layout(binding = 1) readonly buffer buffer_index { int index[]; };
layout(binding = 2) writeonly buffer buffer_whole { uint whole[]; };
layout(binding = 2) writeonly buffer buffer_whole4 { uvec4 whole4[]; };
DTI_WRITES(2u, writeonly, y)

void write(uint to, uvec4 words)
{
    if (WIDTH == 4u && y_HALF)
        y_put4(to / 4u, uintBitsToFloat(words));
    else if (WIDTH == 4u)
        whole4[to / 4u] = words;
    else if (y_HALF)
        y_put(to, uintBitsToFloat(words.x));
    else
        whole[to] = words.x;
}

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n * args.cols)
        return;
    uint row = dti_divided(i, args.cols, args.by), to = args.y_offset + i;
    uint from = uint(index[args.index_offset + row]); /* a negative one is beyond the table */
    uint at = args.table_offset + from * args.cols + (i - row * args.cols);
    uvec4 words = uvec4(floatBitsToUint(DTI_NAN));
    bool inside = from < args.table_rows;
    if (WIDTH == 4u && inside)
        words = table4[at / 4u];
    else if (inside)
        words.x = table[at];
    write(to, words);
}
