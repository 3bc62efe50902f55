/* C = A B (+ bias per column, + epilogue), batched, any strides of A and B. It is the variant
 * without shared memory. It serves devices that keep "shared" memory in plain memory (software
 * drivers, Mali). An invocation keeps 8 x 8 of C in registers, or 4 x 8, and goes over k in order.
 * Chunks of k are added in C. Software drivers pay for each load, not for its width. So each usual
 * layout whose runs of 4 can be loaded as a vec4 has a loop. A plain loop serves the others. There
 * must be as many invocations as tiles. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_GEMM)
#include "lib/tile.glsl"
layout(constant_id = 3) const uint spec2 = 0u; /* rows of C, as the device has registers */
layout(constant_id = 4) const uint spec3 = 0u;
DTI_READS(0u, a)
DTI_READS(1u, b)
DTI_WRITES(2u, DTI_ANY_WAY, c) /* read too, where it is of 32 bits */
DTI_READS(3u, bias)
#define beside_get b_get
#include "lib/epilogue.glsl"

const bool IN_CHUNKS = (spec3 & DTI_GEMM_IN_CHUNKS) != 0u; /* of one invocation */
const uint ROWS = spec2 == 4u ? 4u : 8u;
const uint ROWS_MAX = 8u;
vec4 acc[ROWS_MAX][2];
uint row, col, a_base, b_base; /* of this tile; bases without the row and the column */
uint from, to;                 /* the chunk of k */

/* Rows and columns beyond the end repeat the last ones; they are not stored. */
uint a_row(uint i, uint last)
{
    return a_base + min(row + i, args.m - last) * args.a_row;
}

uint b_col(uint j, uint last)
{
    return b_base + min(col + j, args.n - last) * args.b_col;
}

void add_outer(float x[ROWS_MAX], vec4 y0, vec4 y1)
{
    [[unroll]] for (uint i = 0u; i < ROWS; i++) {
        acc[i][0] += x[i] * y0;
        acc[i][1] += x[i] * y1;
    }
}

float[8] join(vec4 u, vec4 v)
{
    return float[8](u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w);
}

float[8] column(vec4 x[8], uint k)
{
    return float[8](x[0][k], x[1][k], x[2][k], x[3][k], x[4][k], x[5][k], x[6][k], x[7][k]);
}

/* ROWS rows of A, each 4 long in k. */
#define LOAD_A_ALONG_K(x, at, k)                                                                   \
    vec4 x[ROWS_MAX];                                                                              \
    [[unroll]] for (uint i = 0u; i < ROWS; i++) x[i] = a_get4((at[i] + k) >> 2);

void multiply_nn()
{
    uint at[ROWS_MAX], b0 = b_col(0u, 4u), b1 = b_col(4u, 4u);
    [[unroll]] for (uint i = 0u; i < ROWS; i++) at[i] = a_row(i, 1u);
    for (uint k = from; k < to; k += 4u) {
        LOAD_A_ALONG_K(x, at, k)
        [[unroll]] for (uint q = 0u; q < 4u; q++) {
            uint down = (k + q) * args.b_row;
            add_outer(column(x, q), b_get4((b0 + down) >> 2), b_get4((b1 + down) >> 2));
        }
    }
}

/* A column of B at a time: with all 8 there would be more values than some devices have registers. */
void multiply_nt()
{
    uint at[ROWS_MAX], bt[8];
    [[unroll]] for (uint i = 0u; i < ROWS; i++) at[i] = a_row(i, 1u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) bt[j] = b_col(j, 1u);
    for (uint k = from; k < to; k += 4u) {
        LOAD_A_ALONG_K(x, at, k)
        [[unroll]] for (uint j = 0u; j < 8u; j++) {
            vec4 y = b_get4((bt[j] + k) >> 2);
            [[unroll]] for (uint q = 0u; q < 4u; q++) {
                [[unroll]] for (uint i = 0u; i < ROWS; i++) acc[i][j >> 2][j & 3u] += x[i][q] * y[q];
            }
        }
    }
}

void multiply_tn()
{
    uint a0 = a_row(0u, 4u), a1 = a_row(ROWS - 4u, 4u), b0 = b_col(0u, 4u), b1 = b_col(4u, 4u);
    for (uint k = from; k < to; k++) {
        uint down = k * args.b_row, right = k * args.a_col;
        add_outer(join(a_get4((a0 + right) >> 2), a_get4((a1 + right) >> 2)), b_get4((b0 + down) >> 2),
                  b_get4((b1 + down) >> 2));
    }
}

void multiply_any()
{
    uint at[ROWS_MAX], bt[8];
    [[unroll]] for (uint i = 0u; i < ROWS; i++) at[i] = a_row(i, 1u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) bt[j] = b_col(j, 1u);
    for (uint k = from; k < to; k++) {
        float x[ROWS_MAX], y[8];
        uint down = k * args.b_row, right = k * args.a_col;
        [[unroll]] for (uint i = 0u; i < ROWS; i++) x[i] = a_get(at[i] + right);
        [[unroll]] for (uint j = 0u; j < 8u; j++) y[j] = b_get(bt[j] + down);
        add_outer(x, vec4(y[0], y[1], y[2], y[3]), vec4(y[4], y[5], y[6], y[7]));
    }
}

/* Which operands can be loaded by fours; the same for every invocation. */
void multiply()
{
    bool a_aligned = ((args.a_offset | args.a_batch0 | args.a_batch1) & 3u) == 0u;
    bool b_aligned = ((args.b_offset | args.b_batch0 | args.b_batch1) & 3u) == 0u;
    uint whole = args.k | args.chunk | args.apart;
    bool a_k = a_aligned && args.a_col == 1u && ((args.a_row | whole) & 3u) == 0u;
    bool a_m = a_aligned && args.a_row == 1u && ((args.a_col | args.m) & 3u) == 0u;
    bool b_k = b_aligned && args.b_row == 1u && ((args.b_col | whole) & 3u) == 0u;
    bool b_n = b_aligned && args.b_col == 1u && ((args.b_row | args.n) & 3u) == 0u;
    if (a_k && b_n)
        multiply_nn();
    else if (a_k && b_k)
        multiply_nt();
    else if (a_m && b_n)
        multiply_tn();
    else
        multiply_any();
}

/* Halves, four of a row at a time. There is one chunk. */
void store_halves(uint c_at)
{
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        uint n = col + 4u * h;
        [[unroll]] for (uint i = 0u; i < ROWS; i++) {
            if (n < args.n && row + i < args.m) {
                uint at = c_at + (row + i) * args.c_row + n;
                vec4 four = acc[i][h];
                [[unroll]] for (uint j = 0u; j < 4u; j++) four[j] = finished(four[j], at + j, n + j);
                c_put4((args.c_offset + at) >> 2, four);
            }
        }
    }
}

/* Of one chunk: what C has is added to, and finished with the last one. */
void store(uint c_at, bool first, bool last)
{
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        if (col + j < args.n) {
            [[unroll]] for (uint i = 0u; i < ROWS; i++) {
                if (row + i < args.m) {
                    uint at = c_at + (row + i) * args.c_row + col + j;
                    float value = acc[i][j >> 2][j & 3u];
                    if (!first)
                        value = c[args.c_offset + at] + value;
                    c_put(args.c_offset + at, last ? finished(value, at, col + j) : value);
                }
            }
        }
    }
}

void main()
{
    uint tiles_m = (args.m + ROWS - 1u) / ROWS, tiles_n = (args.n + 7u) / 8u;
    uint tiles = tiles_m * tiles_n * args.batch0 * args.batch1;
    uint tile = dti_tile(tiles, 2u);
    if (tile == DTI_NO_TILE)
        return;
    uint rest = tile / tiles_n, batch = rest / tiles_m;
    uint batch0 = batch / args.batch1, batch1 = batch - batch0 * args.batch1;
    uint c_at = batch0 * args.c_batch0 + batch1 * args.c_batch1;
    col = (tile - rest * tiles_n) * 8u;
    row = (rest - batch * tiles_m) * ROWS;
    a_base = args.a_offset + batch0 * args.a_batch0 + batch1 * args.a_batch1;
    b_base = args.b_offset + batch0 * args.b_batch0 + batch1 * args.b_batch1;
    uint end = args.apart != 0u ? min(args.apart, args.k - batch0 * args.apart) : args.k;
    from = 0u;
    do {
        to = IN_CHUNKS ? min(from + args.chunk, end) : end;
        [[unroll]] for (uint i = 0u; i < ROWS; i++) acc[i] = vec4[2](vec4(0.0), vec4(0.0));
        multiply();
        if (c_HALF && ((args.c_offset | c_at | args.c_row | args.n) & 3u) == 0u)
            store_halves(c_at);
        else
            store(c_at, !IN_CHUNKS || from == 0u, !IN_CHUNKS || to == end);
        from = to;
    } while (IN_CHUNKS && from < end);
}
