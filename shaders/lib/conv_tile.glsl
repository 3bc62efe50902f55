/* The core of the convolutions' tiles, which differ in their index arithmetic: `describe` tells it.
 * A product C[m, n] = sum over k of A[m, k] B[k, n] (lib/product.glsl), where B is gathered from an
 * image and exists in the tile alone. k has three digits, the last runs fastest. What k and n add to
 * the place in the image, to its row and to its column is summed; so a column is placed once, and k
 * is placed once a step, by an invocation each, in a table of the workgroup: two steps ahead.
 * Outside of the image, and beyond the last k, B is 0. spec3: DTI_CONV_LIES_*, DTI_CONV_ADJOINT. */
layout(constant_id = 3) const uint spec2 = 0x21084040u;
layout(constant_id = 4) const uint spec3 = 0u;

#include "product.glsl"

const bool A_FOURS = (spec3 & DTI_CONV_LIES_A_FOURS) != 0u;
const bool C_FOURS = (spec3 & DTI_CONV_LIES_C_FOURS) != 0u;
const uint A_LOADS = FOURS_M * BK;   /* vectors of a step: one for an invocation, or none */
const uint B_EACH = BK * BN / LANES; /* of an invocation: k of one column, one behind the other */
const uint B_EACH_MAX = 8u;
const uint BEYOND = 0x80000000u; /* a row that no image has */

struct conv_product {
    uint m, n; /* of C */
    uvec3 k;   /* how many values each digit has */
    uint a_at, a_m; /* A begins there; from m to m */
    uvec3 a_k;      /* from digit to digit */
    uint image, image_h, image_w;   /* something that may be read; of what B is gathered from */
    uvec3 b_k;                      /* its places, from digit to digit */
    uint b_row, b_col;              /* and its rows and columns, of the second and third digit */
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

shared uvec4 k_places[2u * BK]; /* of B, row, column; of A */
uint lane;
uvec3 digit, digit_on; /* of this invocation's row of the table; from step to step */
conv_place place;      /* of this invocation's column */
uint a_from, a_to, a_k;
vec4 a_next;
float b_next[B_EACH_MAX];
bool b_inside[B_EACH_MAX];

void place_k(uint side)
{
    if (lane < BK) {
        uvec4 p = uvec4(0u, BEYOND, 0u, 0u);
        if (digit.x < product.k.x)
            p = uvec4(digit.x * product.b_k.x + digit.y * product.b_k.y + digit.z * product.b_k.z,
                      digit.y * product.b_row, digit.z * product.b_col,
                      digit.x * product.a_k.x + digit.y * product.a_k.y + digit.z * product.a_k.z);
        k_places[side * BK + lane] = p;
    }
    digit += digit_on;
    bool over = digit.z >= product.k.z;
    digit.z -= over ? product.k.z : 0u;
    digit.y += over ? 1u : 0u;
    over = digit.y >= product.k.y;
    digit.y -= over ? product.k.y : 0u;
    digit.x += over ? 1u : 0u;
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
    digit_on = digits_of(BK);
    uint m = lane / FOURS_K;
    a_k = lane % FOURS_K * 4u;
    a_from = product.a_at + min(row + m, product.m - 1u) * product.a_m;
    a_to = a_k * BM + 4u * mixed(m / 4u, a_k) + (m & 3u);
    place = place_of(min(col + lane % BN, product.n - 1u));
}

/* `left` of k are there. */
void load(uint side, uint left)
{
    [[unroll]] for (uint i = 0u; i < B_EACH_MAX; i++) {
        if (i < B_EACH) {
            uvec3 k = k_places[side * BK + lane / BN * B_EACH + i].xyz;
            b_inside[i] = place.row + k.y < product.image_h && place.col + k.z < product.image_w;
            b_next[i] = SOURCE[b_inside[i] ? place.at + k.x : product.image];
        }
    }
    if (has_a()) {
        uint k = side * BK + a_k;
        if (A_FOURS) {
            a_next = A_FOUR((a_from + k_places[k].w) >> 2);
        } else {
            [[unroll]] for (uint j = 0u; j < 4u; j++) a_next[j] = A_ONE(a_from + k_places[k + j].w);
        }
    }
}

/* Here, behind the sums, the loaded values are needed for the first time. */
void keep(uint side, uint left)
{
    uint row = lane / BN * B_EACH, col = lane % BN;
    [[unroll]] for (uint i = 0u; i < B_EACH_MAX; i++) {
        if (i < B_EACH) {
            uint to = (side * BK + row + i) * BN + 4u * mixed(col / 4u, row + i) + (col & 3u);
            b_tile[to] = b_inside[i] ? b_next[i] : 0.0;
        }
    }
    if (has_a()) {
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            a_tile[a_to + (side * BK + j) * BM] = a_k + (A_FOURS ? 0u : j) < left ? a_next[j] : 0.0;
    }
}

void multiply()
{
    uint left = product.k.x * product.k.y * product.k.z, side = 0u;
    place_k(0u);
    place_k(1u);
    barrier();
    load(0u, left);
    keep(0u, left);
    barrier();
    for (uint step = (left + BK - 1u) / BK; step > 0u; step--) {
        left -= min(left, BK);
        load(side ^ 1u, left);
        place_k(side);
        add_step(side);
        side ^= 1u;
        keep(side, left);
        barrier();
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
 * products; describe(number) tells of one. */
void describe(uint number);

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
    start(row, col);
    multiply();
    store(row, col);
}
