/* C = A B (+ bias per column, + epilogue), batched, any strides of A and B: of few columns or
 * few rows. spec2 is the workgroup, BM x BN of C (product_grid.c). Each element and each of SIDES
 * chunks of k has an invocation. Chunks are made beside each other and added in ascending order. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_GEMM)
layout(constant_id = 3) const uint spec2 = 0x081001u;
DTI_READS(0u, a)
DTI_READS(1u, b)
DTI_WRITES(2u, writeonly, c)
DTI_READS(3u, bias)
#define beside_get b_get
#include "lib/epilogue.glsl"

const uint BM = spec2 & 255u, BN = spec2 >> 8 & 255u, SIDES = spec2 >> 16 & 255u;
const uint TILE = BM * BN;

shared float sums[SIDES * TILE];

float chain(uint a_at, uint b_at, uint from, uint to)
{
    float sum = 0.0;
    uint k = from;
    for (; k + 4u <= to; k += 4u) { /* four loads are under way at once */
        float x[4], y[4];
        [[unroll]] for (uint q = 0u; q < 4u; q++) {
            x[q] = a_get(a_at + (k + q) * args.a_col);
            y[q] = b_get(b_at + (k + q) * args.b_row);
        }
        [[unroll]] for (uint q = 0u; q < 4u; q++) sum += x[q] * y[q];
    }
    for (; k < to; k++) sum += a_get(a_at + k * args.a_col) * b_get(b_at + k * args.b_row);
    return sum;
}

void main()
{
    uint tiles_m = (args.m + BM - 1u) / BM, tiles_n = (args.n + BN - 1u) / BN;
    uint tile = dti_group(), rest = tile / tiles_n, batch = rest / tiles_m;
    if (batch >= args.batch0 * args.batch1)
        return;
    uint batch0 = batch / args.batch1, batch1 = batch - batch0 * args.batch1;
    uint lane = gl_LocalInvocationID.x, side = lane / TILE, element = lane % TILE;
    uint row = (rest - batch * tiles_m) * BM + element / BN;
    uint col = (tile - rest * tiles_n) * BN + element % BN;
    uint a_at = args.a_offset + batch0 * args.a_batch0 + batch1 * args.a_batch1 +
                min(row, args.m - 1u) * args.a_row;
    uint b_at = args.b_offset + batch0 * args.b_batch0 + batch1 * args.b_batch1 +
                min(col, args.n - 1u) * args.b_col;
    uint end = args.apart != 0u ? min(args.apart, args.k - batch0 * args.apart) : args.k;
    uint chunk = args.chunk > 0u ? args.chunk : end;
    float sum = 0.0;
    uint from = 0u;
    do {
        uint mine = min(from + side * chunk, end);
        sums[lane] = chain(a_at, b_at, mine, min(mine + chunk, end));
        barrier();
        for (uint s = 0u; s < SIDES && from < end; s++) {
            sum = from == 0u ? sums[element] : sum + sums[s * TILE + element];
            from += chunk;
        }
        barrier();
    } while (from < end);
    if (side == 0u && row < args.m && col < args.n) {
        uint to = batch0 * args.c_batch0 + batch1 * args.c_batch1 + row * args.c_row + col;
        c_put(args.c_offset + to, finished(sum, to, col));
    }
}
