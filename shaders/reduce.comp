/* y[i] = scale * reduce_j x[i, j], in one of three shares.
 *
 * reduce: an invocation per i, serial over j. reduce_row: a workgroup per i; its invocations stride
 * over j, then a tree. reduce_column: a workgroup for 16 results beside each other. 8 invocations
 * go over every 8th j of each, then one joins them as a tree does. The order is only that of j, on
 * any device. One barrier in place of the tree's four, each of which costs a software driver a
 * switch of every vector. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/fold.glsl"

DTI_PUSH(DTI_ARGS_REDUCE)
DTI_READS(0u, x)
DTI_WRITES(1u, writeonly, y)

#include "lib/reduced.glsl"

const uint COLUMNS = SIDE == DTI_SIDE_REDUCE_COLUMN ? 16u : 1u;
const uint ROWS = SIDE == DTI_SIDE_REDUCE ? 1u : SIDE == DTI_SIDE_REDUCE_ROW ? gl_WorkGroupSize.x : 8u;
const uint PLACES = SIDE == DTI_SIDE_REDUCE_COLUMN ? 128u : 256u;
shared float parts[PLACES];

float joined_row(uint lane)
{
    for (uint s = gl_WorkGroupSize.x >> 1; s > 0u; s >>= 1) {
        if (lane < s)
            parts[lane] = dti_fold(parts[lane], parts[lane + s]);
        barrier();
    }
    return parts[0];
}

float pair_of(uint column, uint row)
{
    return dti_fold(parts[column + row * COLUMNS], parts[column + (row + ROWS / 2u) * COLUMNS]);
}

float joined_column(uint column)
{
    float even = dti_fold(pair_of(column, 0u), pair_of(column, 2u));
    float odd = dti_fold(pair_of(column, 1u), pair_of(column, 3u));
    return dti_fold(even, odd);
}

void main()
{
    uint lane = gl_LocalInvocationID.x, first = dti_group() * COLUMNS, row = lane / COLUMNS;
    if (SIDE == DTI_SIDE_REDUCE) {
        first = dti_item();
        row = 0u;
    }
    if (first >= args.n)
        return;
    uint i = first + (SIDE == DTI_SIDE_REDUCE_COLUMN ? lane % COLUMNS : 0u);
    float value = dti_reduced(min(i, args.n - 1u), row, ROWS);
    if (SIDE != DTI_SIDE_REDUCE) {
        parts[lane] = value;
        barrier();
        if (SIDE == DTI_SIDE_REDUCE_ROW)
            value = joined_row(lane);
        if (row != 0u || i >= args.n)
            return;
        if (SIDE == DTI_SIDE_REDUCE_COLUMN)
            value = joined_column(lane);
    }
    y_put(args.y_offset + i, value * args.scale);
}
