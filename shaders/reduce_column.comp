/* y[i] = scale * reduce_j x[i, j]: a workgroup for 16 results beside each other. 8 invocations go
 * over every 8th j of each, then one joins them as a tree does: the order is that of j alone,
 * whatever the device. One barrier in place of the tree's four, each of which costs a software
 * driver a switch of every vector. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/fold.glsl"

DTI_PUSH(DTI_ARGS_REDUCE)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

#include "lib/reduced.glsl"

const uint COLUMNS = 16u, ROWS = 8u;
shared float parts[COLUMNS * ROWS];

float pair_of(uint column, uint row)
{
    return dti_fold(parts[column + row * COLUMNS], parts[column + (row + ROWS / 2u) * COLUMNS]);
}

void main()
{
    uint first = dti_group() * COLUMNS, lane = gl_LocalInvocationID.x;
    if (first >= args.n)
        return;
    uint row = lane / COLUMNS, i = first + lane % COLUMNS;
    parts[lane] = dti_reduced(min(i, args.n - 1u), row, ROWS);
    barrier();
    if (row != 0u || i >= args.n)
        return;
    float even = dti_fold(pair_of(lane, 0u), pair_of(lane, 2u));
    float odd = dti_fold(pair_of(lane, 1u), pair_of(lane, 3u));
    y[args.y_offset + i] = dti_fold(even, odd) * args.scale;
}
