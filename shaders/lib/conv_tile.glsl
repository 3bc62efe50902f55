/* The core of the convolutions' tiles, which differ in their index arithmetic, in `describe`. A
 * product C[m, n] = sum over k of A[m, k] B[k, n] (lib/product.glsl). B is gathered from an image
 * and exists only in the tile. k has three digits, the last runs fastest. What k and n add to the
 * place in the image, to its row and to its column is summed; so a column is placed once. A table
 * of the workgroup has the places of k, each made by one invocation. AHEAD of them are made at
 * once, in one half of it while the other is used. Values that only these few lines need, and
 * values for the store, wait in shared memory. A register for each would be taken from the sums.
 * Outside of the image, and beyond the last k, B is 0. spec3: DTI_CONV_LIES_*, DTI_CONV_ADJOINT. */
layout(constant_id = 3) const uint spec2 = 0x21084040u;
layout(constant_id = 4) const uint spec3 = 0u;

#include "product.glsl"

const bool A_FOURS = (spec3 & DTI_CONV_LIES_A_FOURS) != 0u;
const uint A_WIDTH = A_FOURS ? 4u : 1u;
const bool C_FOURS = (spec3 & DTI_CONV_LIES_C_FOURS) != 0u;
const bool WHOLE = (spec3 & DTI_CONV_WHOLE) != 0u;
const uint A_LOADS = FOURS_M * BK;   /* vectors of a step: one for an invocation, or none */
const uint B_EACH = BK * BN / LANES; /* of an invocation: k of one column, one after the other */
const uint B_EACH_MAX = 8u;
const uint BEYOND = 0x80000000u; /* a row that no image has */

struct conv_product {
    uint m, n; /* of C */
    uvec3 k;   /* how many values each digit has */
    uint a_at, a_m; /* A begins there; from m to m */
    uvec3 a_k;      /* from digit to digit */
    uint image, image_h, image_w;   /* something that may be read; of what B is gathered from */
    uvec3 b_k;                      /* its places, from digit to digit */
    uint b_row, b_col;              /* its rows and columns, of the second and third digit */
    uint c_m;                       /* in C, from m to m */
};
struct conv_place { /* of column n */
    uint at, row, col;
};

conv_product product;

conv_place place_of(uint n);
uint made_at(uint n);
bool is_made(uint at);
float finished(float value, uint m, uint to);
void write(uint to, float value);
void write_four(uint to, vec4 value);

const uint AHEAD = DTI_CONV_AHEAD; /* a power of two, and two steps at least */
shared uvec4 k_places[2u * AHEAD]; /* of B, row, column; of A */
shared uvec4 k_about[4];           /* what place_k makes them of */
shared uvec3 tile_at;              /* the product's number, the tile's row and column */
uint lane;
uvec3 digit;           /* of this invocation's row of the table */
conv_place place;      /* of this invocation's column */
uint b_row, b_to[2];   /* its first k, and where that and the fourth one after it are kept */
uint a_from, a_to, a_k;
vec4 a_next;
float b_next[B_EACH_MAX];
bool b_inside[B_EACH_MAX];

/* This invocation's next k. */
void place_k(uint turn)
{
    if (lane < AHEAD) {
        uvec4 k = k_about[0], on = k_about[1], b = k_about[2], a = k_about[3];
        uvec4 p = uvec4(0u, BEYOND, 0u, 0u);
        if (digit.x < k.x)
            p = uvec4(digit.x * b.x + digit.y * b.y + digit.z * b.z, digit.y * k.w, digit.z * on.w,
                      (digit.x * a.x + digit.y * a.y + digit.z * a.z) / A_WIDTH);
        k_places[turn * AHEAD + lane] = p;
        digit += on.xyz;
        bool over = digit.z >= k.z;
        digit.z -= over ? k.z : 0u;
        digit.y += over ? 1u : 0u;
        over = digit.y >= k.y;
        digit.y -= over ? k.y : 0u;
        digit.x += over ? 1u : 0u;
    }
}

uvec3 digits_of(uint k)
{
    uint rest = k / max(product.k.z, 1u), first = rest / max(product.k.y, 1u);
    return uvec3(first, rest - first * product.k.y, k - rest * product.k.z);
}

bool has_a()
{
    return A_LOADS >= LANES || lane < A_LOADS;
}

/* Beyond the last row and column the last ones are read again; they are not stored. */
void start(uint row, uint col)
{
    product_start(lane);
    digit = digits_of(lane);
    if (lane == 0u) {
        k_about[0] = uvec4(product.k, product.b_row);
        k_about[1] = uvec4(digits_of(AHEAD), product.b_col);
        k_about[2] = uvec4(product.b_k, 0u);
        k_about[3] = uvec4(product.a_k, 0u);
    }
    uint m = lane / FOURS_K;
    a_k = lane % FOURS_K * 4u;
    a_from = (product.a_at + min(row + m, product.m - 1u) * product.a_m) / A_WIDTH;
    a_to = a_k * BM + 4u * mixed(m / 4u, a_k) + (m & 3u);
    uint n = lane % BN;
    place = place_of(min(col + n, product.n - 1u));
    b_row = lane / BN * B_EACH;
    [[unroll]] for (uint i = 0u; i < 2u; i++)
        b_to[i] = (b_row + 4u * i) * BN + 4u * mixed(n / 4u, b_row + 4u * i) + n % 4u;
}

/* Of a step; the mask shows a compiler how far constants may go in addresses. */
void load(uint step)
{
    uint first = step * BK & (2u * AHEAD - 1u);
    [[unroll]] for (uint i = 0u; i < B_EACH_MAX; i++) {
        if (i < B_EACH) {
            uvec3 k = k_places[first + b_row + i].xyz;
            b_inside[i] = place.row + k.y < product.image_h && place.col + k.z < product.image_w;
            b_next[i] = SOURCE(b_inside[i] ? place.at + k.x : product.image);
        }
    }
    if (has_a()) {
        uint k = first + a_k;
        if (A_FOURS) {
            a_next = A_FOUR(a_from + k_places[k].w);
        } else {
            [[unroll]] for (uint j = 0u; j < 4u; j++) a_next[j] = A_ONE(a_from + k_places[k + j].w);
        }
    }
}

/* Here, after the sums, the loaded values are needed for the first time. */
void keep(uint side, uint left)
{
    [[unroll]] for (uint i = 0u; i < B_EACH_MAX; i++) {
        if (i < B_EACH)
            b_tile[b_to[i / 4u] + ((side & 1u) * BK + i % 4u) * BN] = b_inside[i] ? b_next[i] : 0.0;
    }
    if (has_a()) {
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            a_tile[a_to + ((side & 1u) * BK + j) * BM] =
                WHOLE || a_k + (A_FOURS ? 0u : j) < left ? a_next[j] : 0.0;
    }
}

void multiply()
{
    uint left = product.k.x * product.k.y * product.k.z, steps = (left + BK - 1u) / BK;
    barrier();
    place_k(0u);
    barrier();
    load(0u);
    keep(0u, left);
    barrier();
    for (uint step = 0u; step < steps;) {
        place_k((step * BK / AHEAD + 1u) & 1u);
        uint end = min(step + AHEAD / BK, steps);
        do {
            left -= min(left, BK);
            load(step + 1u);
            add_step(step);
            step++;
            keep(step, left);
            barrier();
        } while (step < end);
    }
}

void store_four(vec4 sum, uint m, uint n, uint at[4])
{
    if (C_FOURS) {
        uint to = at[0] + m * product.c_m;
        [[unroll]] for (uint j = 0u; j < 4u; j++) sum[j] = finished(sum[j], m, to + j);
        write_four(to, sum);
        return;
    }
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        uint to = at[j] + m * product.c_m;
        if (n + j < product.n && is_made(at[j]))
            write(to, finished(sum[j], m, to));
    }
}

void store(uint row, uint col)
{
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        uint n = col + 4u * tx + h * (BN / 2u), at[4];
        if (h < BLOCKS_N && n < product.n) {
            [[unroll]] for (uint j = 0u; j < 4u; j++)
                at[j] = C_FOURS && j > 0u ? 0u : made_at(min(n + j, product.n - 1u));
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                uint m = row + 4u * ty + (i & 3u) + (i >> 2) * (BM / 2u);
                if (i < 4u * BLOCKS_M && m < product.m)
                    store_four(acc[i][h], m, n, at);
            }
        }
    }
}

/* Workgroups go over m first: those that read the same part of the image run side by side. `outer`
 * products; describe(number) describes one. */
void describe(uint number);
void describe_made(uint number);

void convolve(uint m, uint n, uint outer)
{
    uint tiles_m = (m + BM - 1u) / BM, tiles_n = (n + BN - 1u) / BN;
    uint tile = dti_group(), rest = tile / tiles_m, number = rest / tiles_n;
    if (number >= outer)
        return;
    lane = gl_LocalInvocationID.x;
    describe(number);
    product.m = m;
    product.n = n;
    uint row = (tile - rest * tiles_m) * BM, col = (rest - number * tiles_n) * BN;
    if (lane == 0u)
        tile_at = uvec3(number, row, col);
    start(row, col);
    multiply();
    describe_made(tile_at.x);
    product.m = m;
    product.n = n;
    store(tile_at.y, tile_at.z);
}
