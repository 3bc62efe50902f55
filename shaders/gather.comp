/* y[i, :] = table[index[i], :]: one invocation per element of y, words as they are. An index
 * outside the table gives NaN. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_GATHER)
layout(binding = 0) readonly buffer buffer_table { uint table[]; };
layout(binding = 1) readonly buffer buffer_index { int index[]; };
layout(binding = 2) writeonly buffer buffer_y { uint y[]; };

void main()
{
    uint i = dti_item();
    if (i >= args.n * args.cols)
        return;
    uint row = i / args.cols, word = floatBitsToUint(DTI_NAN);
    uint from = uint(index[args.index_offset + row]); /* a negative one is beyond the table */
    if (from < args.table_rows)
        word = table[args.table_offset + from * args.cols + (i - row * args.cols)];
    y[args.y_offset + i] = word;
}
