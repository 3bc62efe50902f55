/* Products of attention in blocks of 32 x 32: an invocation of 64 has 4 rows and 4 columns. Chunks of
 * 32 of the axis that is summed lie in a workgroup's memory, a vector of four rows or columns for
 * each k, stored whole. Where all lies by fours (spec0), rows are read so. */
#define BLOCK DTI_ATTENTION_BLOCK
#define HEADS (args.heads_kv_heads & 0xffffu)
#define KV_HEADS (args.heads_kv_heads >> 16)
const uint FOURS = BLOCK / 4u, PITCH = FOURS + 1u, LANES = 64u;

layout(constant_id = 3) const uint spec2 = 1u;
layout(constant_id = 4) const uint spec3 = 0u;
layout(binding = 0) readonly buffer buffer_q { float q[]; };    /* of the gradient: q, k, v */
layout(binding = 0) readonly buffer buffer_q4 { vec4 q4[]; };
layout(binding = 1) readonly buffer buffer_kv { float kv[]; };  /* k and v; of the gradient: dy */
layout(binding = 1) readonly buffer buffer_kv4 { vec4 kv4[]; };
layout(binding = 2) readonly buffer buffer_x { float x[]; };    /* mask; also logarithms, sums */

const bool CAUSAL = (spec0 & DTI_ATTENTION_CAUSAL) != 0u, ADD = (spec0 & DTI_ATTENTION_ADD) != 0u;
const bool KEEP = (spec0 & DTI_ATTENTION_KEEP) != 0u, ALIBI = (spec0 & DTI_ATTENTION_ALIBI) != 0u;
const bool DROPOUT = (spec0 & DTI_ATTENTION_DROPOUT) != 0u;
const bool LONG = (spec0 & DTI_ATTENTION_LONG) != 0u;
const bool BY_FOURS = (spec0 & DTI_ATTENTION_FOURS) != 0u;

shared vec4 a_side[BLOCK * PITCH], b_side[BLOCK * PITCH];
uint lane, ty, tx;
vec4 acc[4], acc2[4]; /* [row][column of four] */

/* Rows of an operand: which binding, where the first lies, how far apart they are, and how many there are. */
struct rows {
    uint from, at, step, count;
};

float fetch(uint from, uint at)
{
    return from == 0u ? q[at] : from == 1u ? kv[at] : x[at];
}

/* Four that follow each other, in one of the first two. */
vec4 fetch4(uint from, uint at)
{
    return from == 0u ? q4[at / 4u] : kv4[at / 4u];
}

/* Where a four of a turned side lies: eight invocations that store, or read, beside each other do
 * so in different banks. */
uint turned(uint k, uint four)
{
    return k * PITCH + (four ^ k / 4u);
}

void put(uint k, uint four, vec4 v, bool to_a)
{
    if (to_a)
        a_side[turned(k, four)] = v;
    else
        b_side[turned(k, four)] = v;
}

/* Elements [from, from + 32) of `size` of each row, turned: [element][row]; 0 where there is none. */
void load_turned(rows r, uint from, uint size, bool to_a)
{
    if (BY_FOURS) { /* four elements of four rows */
        uint k = lane % FOURS * 4u, four = lane / FOURS;
        vec4 v[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            v[j] = vec4(0.0);
            if (from + k < size && four * 4u + j < r.count)
                v[j] = fetch4(r.from, r.at + (four * 4u + j) * r.step + from + k);
        }
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            put(k + j, four, vec4(v[0][j], v[1][j], v[2][j], v[3][j]), to_a);
    } else {
        for (uint i = 0u; i < BLOCK * FOURS / LANES; i++) {
            uint e = lane + i * LANES, k = e % BLOCK, four = e / BLOCK;
            vec4 v = vec4(0.0);
            for (uint j = 0u; j < 4u; j++) {
                if (from + k < size && four * 4u + j < r.count)
                    v[j] = fetch(r.from, r.at + (four * 4u + j) * r.step + from + k);
            }
            put(k, four, v, to_a);
        }
    }
}

/* The same as it lies: [row][element]. */
void load_straight(rows r, uint from, uint size)
{
    for (uint i = 0u; i < BLOCK * FOURS / LANES; i++) {
        uint e = lane + i * LANES, four = e % FOURS, row = e / FOURS;
        vec4 v = vec4(0.0);
        if (BY_FOURS) {
            if (row < r.count && from + four * 4u < size)
                v = fetch4(r.from, r.at + row * r.step + from + four * 4u);
        } else {
            for (uint j = 0u; j < 4u; j++) {
                if (row < r.count && from + four * 4u + j < size)
                    v[j] = fetch(r.from, r.at + row * r.step + from + four * 4u + j);
            }
        }
        b_side[row * PITCH + four] = v;
    }
}

/* sum[first + i] += elements [from, from + 4) of a's rows times those of b's columns, which lie at
 * `at` and PITCH apart. Two are read before they are used. */
#define ADD_FOUR(sum, first, a, b, at, from)                                                       \
    {                                                                                              \
        uint a_at = turned(from, ty), b_at = at;                                                   \
        [[unroll]] for (uint k = 0u; k < 4u; k += 2u) {                                            \
            vec4 u = a[a_at + k * PITCH], u2 = a[a_at + (k + 1u) * PITCH];                         \
            vec4 v = b[b_at + k * PITCH], v2 = b[b_at + (k + 1u) * PITCH];                         \
            [[unroll]] for (uint i = 0u; i < 4u; i++) sum[(first) + i] =                           \
                fma(vec4(u2[i]), v2, fma(vec4(u[i]), v, sum[(first) + i]));                        \
        }                                                                                          \
    }

/* acc = a's rows times b's, over `size` elements. */
void multiply(rows a, rows b, uint size, uint chunks)
{
    for (uint i = 0u; i < 4u; i++) acc[i] = vec4(0.0);
    for (uint c = 0u; c < chunks; c++) {
        barrier();
        load_turned(a, c * BLOCK, size, true);
        load_turned(b, c * BLOCK, size, false);
        barrier();
        [[dont_unroll]] for (uint from = 0u; from < BLOCK; from += 4u)
            ADD_FOUR(acc, 0u, a_side, b_side, turned(from, tx), from)
    }
}

/* a_side = acc turned: [column][row]. Nobody may read it any more. */
void keep_turned()
{
    for (uint j = 0u; j < 4u; j++)
        a_side[turned(tx * 4u + j, ty)] = vec4(acc[0][j], acc[1][j], acc[2][j], acc[3][j]);
}

/* sum += value, of a block. Of many blocks `lost` is what sums before have been rounded up by (Kahan
 * 1965), so that their sum is as exact as that of a few; it takes registers. Where a value is not
 * finite nothing is lost. */
void add_block(inout vec4 sum, inout vec4 lost, vec4 value)
{
    if (!LONG) {
        sum += value;
        return;
    }
    precise vec4 own = value - lost;
    precise vec4 all = sum + own;
    precise vec4 off = all - sum;
    off -= own;
    bvec4 finite = notEqual(floatBitsToUint(off) & 0x7f800000u, uvec4(0x7f800000u));
    lost = mix(vec4(0.0), off, finite);
    sum = all;
}

/* sum[4 * c + i] += a_side's rows times what b has in columns [32 c, 32 c + 32). */
#define ADD_ROWS(name, sum, lost, CHUNKS)                                                          \
    void name(rows b, uint size)                                                                   \
    {                                                                                              \
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {                                            \
            vec4 made[4] = vec4[](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));                     \
            barrier();                                                                             \
            load_straight(b, c * BLOCK, size);                                                     \
            barrier();                                                                             \
            [[dont_unroll]] for (uint from = 0u; from < BLOCK; from += 4u)                         \
                ADD_FOUR(made, 0u, a_side, b_side, from * PITCH + tx, from)                        \
            [[unroll]] for (uint i = 0u; i < 4u; i++)                                              \
                add_block(sum[4u * c + i], lost[4u * c + i], made[i]);                             \
        }                                                                                          \
    }

/* ---- places */

float alibi_slope(uint head)
{
    uint n = 1u;
    while (n * 2u <= HEADS)
        n *= 2u;
    return head < n ? exp2(-8.0 * float(head + 1u) / float(n))
                    : exp2(-4.0 * float(2u * (head - n) + 1u) / float(n));
}

bool is_seen(uint i, uint j)
{
    uint apart = i > j ? i - j : j - i;
    return i < args.tq && j < args.tk && (!CAUSAL || j <= i) &&
           (args.window == 0u || apart < args.window);
}

/* A key is hidden where its score is -infinity, and nowhere else. By bits, as dti_is_nan. */
#define HIDDEN uintBitsToFloat(0xff800000u)

bool is_hidden(float score)
{
    return floatBitsToUint(score) == 0xff800000u;
}

/* Of a product's sum. mask: the head's. */
float score_of(float sum, uint i, uint j, float slope, uint mask)
{
    float s = sum * args.scale;
    if (!is_seen(i, j))
        return HIDDEN;
    if (ALIBI)
        s -= slope * float(i > j ? i - j : j - i);
    if (ADD)
        s += fetch(2u, mask + i * args.mask_row + j * args.mask_col);
    if (KEEP && fetch(2u, mask + i * args.mask_row + j * args.mask_col) == 0.0)
        return HIDDEN;
    return s;
}

/* What a weight is multiplied by: 0 where it is dropped. */
float kept(uint s, uint head, uint i, uint j)
{
    uint row = (spec0 & DTI_ATTENTION_SAMPLES) != 0u
                   ? dti_step_u32(DTI_STEP_FIRST_ROW) + args.first_row + s
                   : 0u;
    uvec2 key = uvec2(dti_step_u32(DTI_STEP_SEED_LO), dti_step_u32(DTI_STEP_SEED_HI));
    uint word;
    uvec4 counter = dti_random_counter((head * args.tq + i) * args.tk + j, 0u, row,
                                       HEADS * args.tq * args.tk,
                                       dti_step_u32(DTI_STEP_NUMBER), args.stream, word);
    return dti_philox(counter, key)[word] < args.threshold ? args.keep_scale : 0.0;
}

/* Blocks of the other side, [first, end), that a block from `at` on may see. */
uvec2 blocks_of(uint at, uint others, bool queries)
{
    uint last = at + BLOCK - 1u, from = 0u, to = others;
    if (args.window != 0u) {
        from = at >= args.window ? at - args.window + 1u : 0u;
        to = min(to, last + min(args.window, others));
    }
    if (CAUSAL && queries)
        to = min(to, last + 1u);
    if (CAUSAL && !queries)
        from = max(from, at);
    return uvec2(from / BLOCK, (to + BLOCK - 1u) / BLOCK);
}

rows rows_of(uint from, uint at, uint step, uint first, uint all)
{
    return rows(from, at + first * step, step, first < all ? min(all - first, BLOCK) : 0u);
}
