/* C = A B (+ bias per column, + ReLU or its mask), batched, any strides of A and B: the variant for
 * GPUs. A workgroup computes 64 x 64 of C in steps of 16 in k, which it stages in shared memory
 * (8.5 KiB); an invocation keeps 4 x 4 (256 invocations) or 8 x 4 in registers. Fewer than 128
 * invocations go over the tile in slices. Global loads go along whichever axis is contiguous. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_GEMM)
layout(binding = 0) readonly buffer buffer_a { DTI_S a[]; };
layout(binding = 1) readonly buffer buffer_b { DTI_S b[]; };
layout(binding = 2) writeonly buffer buffer_c { DTI_S c[]; };
layout(binding = 3) readonly buffer buffer_bias { DTI_S bias[]; };

const uint TILE = 64u, STEP = 16u;
const uint PITCH = TILE / 4u + 1u; /* in vec4: rows of k start 4 banks apart */

shared vec4 a_tile[STEP * PITCH]; /* [k][m] */
shared vec4 b_tile[STEP * PITCH]; /* [k][n] */

vec4 acc[8];
uint row, col, a_base, b_base; /* of this workgroup's tile */
uint rows_each;                /* rows of an invocation: 4 or 8 */

void load_a(uint k0, uint rows)
{
    for (uint e = gl_LocalInvocationID.x; e < rows * STEP; e += gl_WorkGroupSize.x) {
        uint m = args.a_col == 1u ? e / STEP : e % rows;
        uint k = args.a_col == 1u ? e % STEP : e / rows;
        bool inside = row + m < args.m && k0 + k < args.k;
        uint at = inside ? a_base + (row + m) * args.a_row + (k0 + k) * args.a_col : a_base;
        a_tile[k * PITCH + m / 4u][m & 3u] = inside ? DTI_LOAD(a[at]) : 0.0;
    }
}

void load_b(uint k0)
{
    for (uint e = gl_LocalInvocationID.x; e < TILE * STEP; e += gl_WorkGroupSize.x) {
        uint n = args.b_row == 1u ? e / STEP : e % TILE;
        uint k = args.b_row == 1u ? e % STEP : e / TILE;
        bool inside = col + n < args.n && k0 + k < args.k;
        uint at = inside ? b_base + (k0 + k) * args.b_row + (col + n) * args.b_col : b_base;
        b_tile[k * PITCH + n / 4u][n & 3u] = inside ? DTI_LOAD(b[at]) : 0.0;
    }
}

void add_step(uint my_row4, uint my_col4)
{
    for (uint k = 0u; k < STEP; k++) {
        vec4 y = b_tile[k * PITCH + my_col4];
        vec4 x = a_tile[k * PITCH + my_row4];
        [[unroll]] for (uint i = 0u; i < 4u; i++) acc[i] += x[i] * y;
        if (rows_each == 8u) {
            x = a_tile[k * PITCH + my_row4 + 1u];
            [[unroll]] for (uint i = 0u; i < 4u; i++) acc[4u + i] += x[i] * y;
        }
    }
}

/* Of one value of C, at `to`; mask and bias are binding 3. */
DTI_A finished(DTI_A value, uint to, uint j)
{
    if (spec1 == DTI_EPILOGUE_RELU_GRAD)
        return DTI_LOAD(bias[args.bias_offset + to]) > 0.0 ? value : 0.0;
    if (spec0 != 0u)
        value += DTI_LOAD(bias[args.bias_offset + j]);
    return spec1 == DTI_EPILOGUE_RELU ? dti_max(value, 0.0) : value;
}

void store(uint batch_at, uint first_row, uint first_col)
{
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        if (first_col + j < args.n) {
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                if (i < rows_each && first_row + i < args.m) {
                    uint to = batch_at + (first_row + i) * args.c_row + first_col + j;
                    c[args.c_offset + to] = DTI_STORE(finished(acc[i][j], to, first_col + j));
                }
            }
        }
    }
}

void main()
{
    uint tiles_m = (args.m + TILE - 1u) / TILE, tiles_n = (args.n + TILE - 1u) / TILE;
    uint tile = dti_group(), rest = tile / tiles_n, batch = rest / tiles_m;
    if (batch >= args.batch0 * args.batch1)
        return;
    uint batch0 = batch / args.batch1, batch1 = batch - batch0 * args.batch1;
    a_base = args.a_offset + batch0 * args.a_batch0 + batch1 * args.a_batch1;
    b_base = args.b_offset + batch0 * args.b_batch0 + batch1 * args.b_batch1;
    uint batch_at = batch0 * args.c_batch0 + batch1 * args.c_batch1;
    col = (tile - rest * tiles_n) * TILE;
    rows_each = gl_WorkGroupSize.x >= 256u ? 4u : 8u;
    uint slice = gl_WorkGroupSize.x / 16u * rows_each; /* rows at a time */
    uint my_row = gl_LocalInvocationID.x / 16u * rows_each;
    uint my_col = gl_LocalInvocationID.x % 16u * 4u;
    for (uint top = 0u; top < TILE; top += slice) {
        row = (rest - batch * tiles_m) * TILE + top;
        [[unroll]] for (uint i = 0u; i < 8u; i++) acc[i] = vec4(0.0);
        for (uint k0 = 0u; k0 < args.k; k0 += STEP) {
            load_a(k0, slice);
            load_b(k0);
            barrier();
            add_step(my_row / 4u, my_col / 4u);
            barrier();
        }
        store(batch_at, row + my_row, col + my_col);
    }
}
