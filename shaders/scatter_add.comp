/* dtable[v, :] = sum over i with index[i] = v of dy[i, :]. The owner of an element of dtable goes
 * over the indices in order, so the sum has one order. Indices outside the table add to nothing. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(float)

DTI_PUSH(DTI_ARGS_GATHER)
layout(binding = 0) readonly buffer buffer_y { float dy[]; };
layout(binding = 1) readonly buffer buffer_index { int index[]; };
layout(binding = 2) writeonly buffer buffer_table { float dtable[]; };

void main()
{
    uint item = dti_item();
    if (item >= args.table_rows * args.cols)
        return;
    uint row = item / args.cols, col = item - row * args.cols;
    dti_sum_float sums = DTI_SUM_NONE(float);
    for (uint i = 0u; i < args.n; i++) {
        if (uint(index[args.index_offset + i]) == row)
            dti_add(sums, dy[args.y_offset + i * args.cols + col]);
    }
    dtable[args.table_offset + item] = dti_sum(sums);
}
