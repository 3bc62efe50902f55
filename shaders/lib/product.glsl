/* The product of two tiles in a workgroup's memory. spec2 is the tile. A workgroup makes BM x BN of
 * C in steps of BK in k. An invocation makes 4 BLOCKS_M rows of 4 BLOCKS_N columns, in blocks of 4
 * x 4. There are two buffers of operands, so that a step has one barrier. The next step's are
 * written while this one's are summed. Sums go over k in order, one chain each: bits do not depend
 * on the
 * tile. */
const uint BM = spec2 & 255u, BN = spec2 >> 8 & 255u, BK = spec2 >> 16 & 255u;
const uint BLOCKS_M = spec2 >> 24 & 15u, BLOCKS_N = spec2 >> 28;
const uint FOURS_M = BM / 4u, FOURS_N = BN / 4u, FOURS_K = BK / 4u; /* vectors of four */
const uint ACROSS = FOURS_N / BLOCKS_N, DOWN = FOURS_M / BLOCKS_M;  /* invocations */
const uint LANES = ACROSS * DOWN;
const uint FOURS_K_MAX = 4u;

shared float a_tile[2u * BK * BM]; /* [side][k][m] */
shared float b_tile[2u * BK * BN]; /* [side][k][n] */
vec4 acc[8][2];
uint x_at[FOURS_K_MAX], y_at[FOURS_K_MAX]; /* what is summed at k = 4 i lies here, likewise */
uint tx, ty; /* of this invocation: its fours of columns and rows in the tile's first blocks */

/* Within a row of k, vectors change places by bits 2 and 3 of k. So a store across rows meets other
 * banks. */
uint mixed(uint four, uint k)
{
    return four ^ (k >> 2 << 1);
}

/* Neighbours in squares of 8 x 8: they read the fewest words of both operands. */
void product_start(uint lane)
{
    const uint high = min(DOWN, 8u);
    tx = lane % 8u + lane / (8u * high) % (ACROSS / 8u) * 8u;
    ty = lane / 8u % high + lane / (8u * high) / (ACROSS / 8u) * high;
    [[unroll]] for (uint i = 0u; i < 8u; i++) acc[i] = vec4[2](vec4(0.0), vec4(0.0));
    [[unroll]] for (uint i = 0u; i < FOURS_K_MAX; i++) {
        x_at[i] = 4u * mixed(ty, 4u * i);
        y_at[i] = 4u * mixed(tx, 4u * i);
    }
}

vec4 a_four(uint at)
{
    return vec4(a_tile[at], a_tile[at + 1u], a_tile[at + 2u], a_tile[at + 3u]);
}

vec4 b_four(uint at)
{
    return vec4(b_tile[at], b_tile[at + 1u], b_tile[at + 2u], b_tile[at + 3u]);
}

/* The bit of `side` shows a compiler how far constants may go in the addresses of loads. Intel's
 * then adds nothing to them. */
void add_step(uint side)
{
    [[unroll]] for (uint k = 0u; k < BK; k++) {
        uint x_from = x_at[k / 4u] + (side & 1u) * BK * BM;
        uint y_from = y_at[k / 4u] + (side & 1u) * BK * BN;
        vec4 y0 = b_four(y_from + k * BN);
        vec4 y1 = BLOCKS_N > 1u ? b_four(y_from + k * BN + BN / 2u) : vec4(0.0);
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            if (h < BLOCKS_M) {
                vec4 x = a_four(x_from + k * BM + h * (BM / 2u));
                [[unroll]] for (uint i = 0u; i < 4u; i++) {
                    acc[4u * h + i][0] += x[i] * y0;
                    if (BLOCKS_N > 1u)
                        acc[4u * h + i][1] += x[i] * y1;
                }
            }
        }
    }
}
