/* C = A B (+ bias per column, + epilogue), batched, any strides of A and B: the variants
 * that share operands in a workgroup's memory (lib/product.glsl; spec2 is from product_grid.c). The
 * next step's operands lie in registers while this one's are summed, so that a step waits for no
 * memory. spec3 says how operands lie, DTI_GEMM_LIES_*: a load of four goes along the contiguous
 * axis. Chunks of k are added in C. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_GEMM)
layout(constant_id = 3) const uint spec2 = 0x21084040u;
layout(constant_id = 4) const uint spec3 = 0u;
DTI_READS(0u, a)
DTI_READS(1u, b)
DTI_WRITES(2u, DTI_ANY_WAY, c) /* read too, where it is of 32 bits */
DTI_READS(3u, bias)
#define beside_get b_get
#include "lib/epilogue.glsl"

#include "lib/product.glsl"

const uint A_LOADS = FOURS_M * BK, B_LOADS = FOURS_N * BK; /* vectors of a step */
const uint LOADS_MAX = 2u;                                 /* of an invocation */
const bool A_ALONG_K = (spec3 & DTI_GEMM_LIES_A_K) != 0u;
const bool B_ALONG_K = (spec3 & DTI_GEMM_LIES_B_K) != 0u;
const bool A_FOURS = (spec3 & DTI_GEMM_LIES_A_FOURS) != 0u;
const bool B_FOURS = (spec3 & DTI_GEMM_LIES_B_FOURS) != 0u;
const bool C_FOURS = (spec3 & DTI_GEMM_LIES_C_FOURS) != 0u;
const bool CHUNKS = (spec3 & DTI_GEMM_IN_CHUNKS) != 0u;
const bool WHOLE = (spec3 & DTI_GEMM_WHOLE) != 0u;

vec4 a_next[LOADS_MAX], b_next[LOADS_MAX];
uint a_at[LOADS_MAX], b_at[LOADS_MAX]; /* where the next load is: elements, or vectors */
uint a_to[LOADS_MAX], b_to[LOADS_MAX]; /* and goes in the first side */
uint lane;

/* The row (column of B) and k of load i of this invocation, within the tile. */
uvec2 load_of(uint i, bool along_k, uint fours)
{
    uint e = lane + i * LANES;
    return along_k ? uvec2(e / FOURS_K, e % FOURS_K * 4u) : uvec2(e % fours * 4u, e / fours);
}

bool has_load(uint i, uint loads)
{
    return i * LANES < loads && (loads >= LANES || lane < loads);
}

/* Beyond the end the last ones are read again: rows and columns that are not stored. */
void start(uint a_base, uint b_base, uint row, uint col)
{
    [[unroll]] for (uint i = 0u; i < LOADS_MAX; i++) {
        uvec2 p = load_of(i, A_ALONG_K, FOURS_M);
        uint last = args.m - (A_FOURS && !A_ALONG_K ? 4u : 1u);
        a_at[i] = a_base + min(row + p.x, last) * args.a_row + p.y * args.a_col;
        a_at[i] = A_FOURS ? a_at[i] >> 2 : a_at[i];
        a_to[i] = p.y * BM + 4u * mixed(p.x / 4u, p.y) + (A_ALONG_K ? p.x & 3u : 0u);
        p = load_of(i, B_ALONG_K, FOURS_N);
        last = args.n - (B_FOURS && !B_ALONG_K ? 4u : 1u);
        b_at[i] = b_base + min(col + p.x, last) * args.b_col + p.y * args.b_row;
        b_at[i] = B_FOURS ? b_at[i] >> 2 : b_at[i];
        b_to[i] = p.y * BN + 4u * mixed(p.x / 4u, p.y) + (B_ALONG_K ? p.x & 3u : 0u);
    }
}

/* How many of four that begin at e of `all` are there. */
uint left_of(uint e, uint all)
{
    return e < all ? all - e : 0u;
}

#define A_ONE(j) (j < there ? a_get(j < there ? a_at[i] + j * along : first) : 0.0)
#define B_ONE(j) (j < there ? b_get(j < there ? b_at[i] + j * along : first) : 0.0)

/* `left` of k are there. Where none is, what lies at `first` is loaded and not kept. */
void load_a(uint i, uint first, uint row, uint left)
{
    uvec2 p = load_of(i, A_ALONG_K, FOURS_M);
    bool inside = p.y < left;
    if (A_FOURS) {
        a_next[i] = a_get4(inside ? a_at[i] : first >> 2);
        a_at[i] += BK * args.a_col / 4u;
    } else {
        uint there = A_ALONG_K ? left_of(p.y, left) : left_of(row + p.x, args.m);
        uint along = A_ALONG_K ? args.a_col : args.a_row;
        there = inside ? there : 0u;
        a_next[i] = vec4(A_ONE(0u), A_ONE(1u), A_ONE(2u), A_ONE(3u));
        a_at[i] += BK * args.a_col;
    }
}

void load_b(uint i, uint first, uint col, uint left)
{
    uvec2 p = load_of(i, B_ALONG_K, FOURS_N);
    bool inside = p.y < left;
    if (B_FOURS) {
        b_next[i] = b_get4(inside ? b_at[i] : first >> 2);
        b_at[i] += BK * args.b_row / 4u;
    } else {
        uint there = B_ALONG_K ? left_of(p.y, left) : left_of(col + p.x, args.n);
        uint along = B_ALONG_K ? args.b_row : args.b_col;
        there = inside ? there : 0u;
        b_next[i] = vec4(B_ONE(0u), B_ONE(1u), B_ONE(2u), B_ONE(3u));
        b_at[i] += BK * args.b_row;
    }
}

void load(uint a_base, uint b_base, uint row, uint col, uint left)
{
    [[unroll]] for (uint i = 0u; i < LOADS_MAX; i++) {
        if (has_load(i, A_LOADS))
            load_a(i, a_base, row, left);
        if (has_load(i, B_LOADS))
            load_b(i, b_base, col, left);
    }
}

/* Here, after the sums, the loaded values are needed for the first time. */
void keep(uint side, uint left)
{
    [[unroll]] for (uint i = 0u; i < LOADS_MAX; i++) {
        if (has_load(i, A_LOADS)) {
            bool inside = WHOLE || !A_FOURS || load_of(i, A_ALONG_K, FOURS_M).y < left;
            vec4 v = inside ? a_next[i] : vec4(0.0);
            [[unroll]] for (uint j = 0u; j < 4u; j++)
                a_tile[a_to[i] + (side & 1u) * BK * BM + j * (A_ALONG_K ? BM : 1u)] = v[j];
        }
        if (has_load(i, B_LOADS)) {
            bool inside = WHOLE || !B_FOURS || load_of(i, B_ALONG_K, FOURS_N).y < left;
            vec4 v = inside ? b_next[i] : vec4(0.0);
            [[unroll]] for (uint j = 0u; j < 4u; j++)
                b_tile[b_to[i] + (side & 1u) * BK * BN + j * (B_ALONG_K ? BN : 1u)] = v[j];
        }
    }
}

/* Of one chunk: what C has is added to, and finished with the last one. */
void store_four(vec4 sum, uint to, uint n, bool first, bool last)
{
    if (C_FOURS) {
        if (!first)
            sum = c4[(args.c_offset + to) >> 2] + sum;
        if (last) {
            [[unroll]] for (uint j = 0u; j < 4u; j++) sum[j] = finished(sum[j], to + j, n + j);
        }
        c_put4((args.c_offset + to) >> 2, sum);
        return;
    }
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        if (n + j < args.n) {
            uint at = args.c_offset + to + j;
            float value = sum[j];
            if (!first)
                value = c[at] + value;
            c_put(at, last ? finished(value, to + j, n + j) : value);
        }
    }
}

void store(uint c_at, uint row, uint col, bool first, bool last)
{
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        uint m = row + (i & 3u) + (i >> 2) * (BM / 2u);
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            uint n = col + h * (BN / 2u);
            if (i < 4u * BLOCKS_M && h < BLOCKS_N && m < args.m && n < args.n)
                store_four(acc[i][h], c_at + m * args.c_row + n, n, first, last);
        }
    }
}

/* The tile at (row, col), sums over `left` of k from where the bases are. */
void multiply(uint a_base, uint b_base, uint row, uint col, uint left)
{
    product_start(lane);
    start(a_base, b_base, row, col);
    /* No branch between a load and its use: compilers would move the load after the sums. In the
     * last step it lies beyond the end. */
    uint steps = (left + BK - 1u) / BK, side = 0u;
    load(a_base, b_base, row, col, left);
    keep(0u, left);
    barrier();
    for (; steps > 0u; steps--) {
        left -= min(left, BK);
        load(a_base, b_base, row, col, left);
        add_step(side);
        side ^= 1u;
        keep(side, left);
        barrier();
    }
}

void main()
{
    uint tiles_m = (args.m + BM - 1u) / BM, tiles_n = (args.n + BN - 1u) / BN;
    uint tile = dti_group(), rest = tile / tiles_n, batch = rest / tiles_m;
    if (batch >= args.batch0 * args.batch1)
        return;
    uint batch0 = batch / args.batch1, batch1 = batch - batch0 * args.batch1;
    uint a_base = args.a_offset + batch0 * args.a_batch0 + batch1 * args.a_batch1;
    uint b_base = args.b_offset + batch0 * args.b_batch0 + batch1 * args.b_batch1;
    uint c_at = batch0 * args.c_batch0 + batch1 * args.c_batch1;
    uint col = (tile - rest * tiles_n) * BN, row = (rest - batch * tiles_m) * BM;
    lane = gl_LocalInvocationID.x;
    uint k = args.apart != 0u ? min(args.apart, args.k - batch0 * args.apart) : args.k;
    uint from = 0u;
    do {
        uint left = CHUNKS ? min(k - from, args.chunk) : k;
        multiply(a_base + from * args.a_col, b_base + from * args.b_row, row, col, left);
        store(c_at, row + 4u * ty, col + 4u * tx, !CHUNKS || from == 0u, !CHUNKS || from + left == k);
        from += left;
    } while (CHUNKS && from < k);
}
