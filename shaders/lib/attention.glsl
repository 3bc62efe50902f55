/* Products of attention's blocks of 32 x 32, and which keys a query sees. A workgroup is one or more
 * groups of 64 invocations; each group sums 32 columns, so an invocation has 4 rows and 4 columns,
 * however wide a head is. A workgroup's memory has three regions, a vector of four for each k. At 0
 * and SECOND are the sides of a product; then at 0 the scores, at KEPT the products of dy and v;
 * then at SECOND, and KEPT, what the other side is multiplied by, and at 0 that side. */
#define BLOCK DTI_ATTENTION_BLOCK
#define HEADS (args.heads_kv_heads & 0xffffu)
#define KV_HEADS (args.heads_kv_heads >> 16)
const bool CAUSAL = (spec0 & DTI_ATTENTION_CAUSAL) != 0u, ADD = (spec0 & DTI_ATTENTION_ADD) != 0u;
const bool KEEP = (spec0 & DTI_ATTENTION_KEEP) != 0u, ALIBI = (spec0 & DTI_ATTENTION_ALIBI) != 0u;
const bool DROPOUT = (spec0 & DTI_ATTENTION_DROPOUT) != 0u;
const bool MASKED = ADD || KEEP; /* nothing beyond it is read */
const bool BY_FOURS = (spec0 & DTI_ATTENTION_FOURS) != 0u; /* rows are read by fours */
const bool FORWARD = spec3 == 0u, MAKES_DV = (spec3 & DTI_ATTENTION_DV) != 0u;
const bool MAKES_D = (spec3 & (DTI_ATTENTION_DQ | DTI_ATTENTION_DK)) != 0u;
const bool KEYS = (spec3 & (DTI_ATTENTION_DK | DTI_ATTENTION_DV)) != 0u; /* whose rows are made */
const uint LANES = DTI_ATTENTION_LANES, GROUPS = gl_WorkGroupSize.x / LANES; /* a power of 2 */
/* Columns that are summed, by 32: those of dv, then those of d. A group has PARTS of them. */
const uint V_CHUNKS = FORWARD || MAKES_DV ? spec2 : 0u;
const uint PARTS = (V_CHUNKS + (MAKES_D ? spec1 : 0u) + GROUPS - 1u) / GROUPS;
const uint FOURS = BLOCK / 4u, PITCH = FOURS + 1u;
const uint AT_ONCE = BLOCK / GROUPS; /* rows of all columns that fill a region */
const uint READS = (AT_ONCE + FOURS - 1u) / FOURS; /* fours of them that an invocation loads */
const uint QUERIES = FOURS * GROUPS; /* whose weights are made at once, by 8 invocations each */
const uint SECOND = BLOCK * PITCH, KEPT = 2u * SECOND;

shared vec4 side[3u * SECOND];
uint lane, group, ty, tx, batch, head;
vec4 acc[4]; /* [row][column of four] */

/* Rows of an operand: the binding, where the first lies, how far apart they are, and how many. */
struct rows {
    uint from, at, step, count;
};

/* q or dy, k or v, of a block from position `first` on. */
rows side_of(bool keys, bool second, uint first)
{
    uint all = keys ? args.tk : args.tq, step = HEADS * args.dv;
    uint unit = keys ? head / (HEADS / KV_HEADS) : head;
    uint at = args.dy_offset + batch * args.tq * step + unit * args.dv;
    if (keys && second) {
        at = args.v_offset + batch * args.v_sample + unit * args.v_head;
        step = args.v_row;
    } else if (keys) {
        at = args.k_offset + batch * args.k_sample + unit * args.k_head;
        step = args.k_row;
    } else if (!second) {
        at = args.q_offset + batch * args.q_sample + unit * args.q_head;
        step = args.q_row;
    }
    return rows((FORWARD ? keys : !keys && second) ? 1u : 0u, at + first * step, step,
                first < all ? min(all - first, BLOCK) : 0u);
}

/* v[n] = the four elements from at[n] on in one of the first two bindings, those beyond `left` as 0; 0
 * of NONE. No load waits for a branch, so all are on their way at once. */
#define NONE 0xffffffffu
#define READ_FROM(v, array, at, COUNT, left)                                                       \
    [[unroll]] for (uint n = 0u; n < COUNT; n++)                                                   \
    {                                                                                              \
        uint first = at[n] == NONE ? 0u : at[n];                                                   \
        if (BY_FOURS)                                                                              \
            v[n] = array##_get4(first / 4u);                                                       \
        for (uint e = 0u; e < 4u && !BY_FOURS; e++)                                                \
            v[n][e] = array##_get(first + (e < left ? e : 0u));                                    \
    }
#define READ(v, from, at, COUNT, left)                                                             \
    if (from == 0u)                                                                                \
        READ_FROM(v, q, at, COUNT, left)                                                           \
    else                                                                                           \
        READ_FROM(v, kv, at, COUNT, left)                                                          \
    [[unroll]] for (uint n = 0u; n < COUNT; n++)                                                   \
    {                                                                                              \
        for (uint e = 0u; e < 4u; e++)                                                             \
            v[n][e] = at[n] != NONE && (BY_FOURS || e < left) ? v[n][e] : 0.0;                     \
    }

/* Where a four of a turned side lies: eight invocations that store, or read, beside each other do
 * so in different banks. */
uint turned(uint k, uint four)
{
    return k * PITCH + (four ^ k / 4u);
}

/* Elements [from, from + 32) of `size` of each row, turned: [element][row]; 0 where it is missing.
 * Four elements of four rows; by 64 invocations. */
void load_turned(rows r, uint from, uint size, uint to)
{
    uint k = tx * 4u, left = from + k < size ? size - from - k : 0u, at[4];
    vec4 v[4];
    [[unroll]] for (uint j = 0u; j < 4u; j++)
        at[j] = left > 0u && ty * 4u + j < r.count ? r.at + (ty * 4u + j) * r.step + from + k : NONE;
    READ(v, r.from, at, 4u, left)
    to += turned(k, ty);
    [[unroll]] for (uint j = 0u; j < 4u; j++)
        side[to + j * PITCH] = vec4(v[0][j], v[1][j], v[2][j], v[3][j]);
}

/* Of AT_ONCE rows from `first` on, as they lie: [row][element]. By 64 invocations. */
void load_straight(rows r, uint first, uint from, uint size, uint to)
{
    uint k = from + tx * 4u, left = k < size ? size - k : 0u, at[READS];
    vec4 v[READS];
    [[unroll]] for (uint j = 0u; j < READS; j++) {
        uint row = first + ty + j * FOURS;
        at[j] = left > 0u && row < r.count ? r.at + row * r.step + k : NONE;
    }
    READ(v, r.from, at, READS, left)
    [[unroll]] for (uint j = 0u; j < READS; j++) {
        if (AT_ONCE >= FOURS || ty < AT_ONCE)
            side[to + (ty + j * FOURS) * FOURS + tx] = v[j];
    }
}

/* sum[i] += four elements of one side's rows times those of the other's columns. These lie at a_at
 * and b_at, PITCH and b_step apart. Two are read before they are used. */
#define ADD_FOUR(sum, a_first, b_first, b_step)                                                    \
    {                                                                                              \
        uint a_at = a_first, b_at = b_first;                                                       \
        [[unroll]] for (uint k = 0u; k < 4u; k += 2u) {                                            \
            vec4 u = side[a_at + k * PITCH], u2 = side[a_at + (k + 1u) * PITCH];                   \
            vec4 v = side[b_at + k * (b_step)], v2 = side[b_at + (k + 1u) * (b_step)];             \
            [[unroll]] for (uint i = 0u; i < 4u; i++) sum[i] =                                     \
                fma(vec4(u2[i]), v2, fma(vec4(u[i]), v, sum[i]));                                  \
        }                                                                                          \
    }

/* The same of a side that lies by rows, PITCH apart: four of them from a_at on. */
#define ADD_FOUR_OF_ROWS(sum, a_first, b_first, b_step)                                            \
    {                                                                                              \
        uint a_at = a_first, b_at = b_first;                                                       \
        vec4 u[4];                                                                                 \
        [[unroll]] for (uint i = 0u; i < 4u; i++) u[i] = side[a_at + i * PITCH];                   \
        [[unroll]] for (uint k = 0u; k < 4u; k += 2u) {                                            \
            vec4 v = side[b_at + k * (b_step)], v2 = side[b_at + (k + 1u) * (b_step)];             \
            [[unroll]] for (uint i = 0u; i < 4u; i++) sum[i] =                                     \
                fma(vec4(u[i][k + 1u]), v2, fma(vec4(u[i][k]), v, sum[i]));                        \
        }                                                                                          \
    }

/* The region at `to` = a's rows times b's, over `size` elements: [row of a][row of b]. Groups split
 * the elements of each chunk, and add their sums one after the other. */
void multiply(rows a, rows b, uint size, uint chunks, uint to)
{
    for (uint i = 0u; i < 4u; i++) acc[i] = vec4(0.0);
    [[dont_unroll]] for (uint c = 0u; c < chunks; c++) {
        barrier();
        for (uint s = 0u; s < 2u; s++) {
            rows r = b;
            if (s == 0u)
                r = a;
            if (GROUPS == 1u || group == s)
                load_turned(r, c * BLOCK, size, s * SECOND);
        }
        barrier();
        [[dont_unroll]] for (uint i = 0u; i < AT_ONCE; i += 4u) {
            uint from = group * AT_ONCE + i;
            ADD_FOUR(acc, turned(from, ty), SECOND + turned(from, tx), PITCH)
        }
    }
    barrier();
    for (uint turn = 0u; turn < GROUPS; turn++) {
        for (uint i = 0u; i < 4u; i++) {
            uint at = to + (ty * 4u + i) * PITCH + tx;
            if (group == turn)
                side[at] = turn == 0u ? acc[i] : side[at] + acc[i];
        }
        barrier();
    }
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

/* Whether query i sees key j + e. Rows of results that nobody stores may be any. */
bool is_seen(uint i, uint j, uint e)
{
    int back = int(i - j) - int(e);
    return ((KEYS && !MASKED) || j + e < args.tk) && ((FORWARD && !MASKED) || i < args.tq) &&
           (!CAUSAL || back >= 0) &&
           (args.window == 0u || uint(abs(back)) < args.window);
}

/* A key is hidden where its score is -infinity, and nowhere else. By bits, as dti_is_nan. */
#define HIDDEN uintBitsToFloat(0xff800000u)

bool is_hidden(float score)
{
    return floatBitsToUint(score) == 0xff800000u;
}

/* Of a product's sum. mask: the head's. */
float score_of(float sum, uint i, uint j, uint e, float slope, uint mask)
{
    float s = sum * args.scale;
    if (!is_seen(i, j, e))
        return HIDDEN;
    if (ALIBI)
        s -= slope * float(abs(int(i - j) - int(e)));
    if (ADD)
        s += x[mask + i * args.mask_row + (j + e) * args.mask_col];
    if (KEEP && x[mask + i * args.mask_row + (j + e) * args.mask_col] == 0.0)
        return HIDDEN;
    return s;
}

/* What a weight is multiplied by: 0 where it is dropped. */
float kept(uint i, uint j)
{
    uint row = (spec0 & DTI_ATTENTION_SAMPLES) != 0u
                   ? dti_step_u32(DTI_STEP_FIRST_ROW) + args.first_row + batch
                   : 0u;
    uvec2 key = uvec2(dti_step_u32(DTI_STEP_SEED_LO), dti_step_u32(DTI_STEP_SEED_HI));
    uint word;
    uvec4 counter = dti_random_counter((head * args.tq + i) * args.tk + j, 0u, row,
                                       HEADS * args.tq * args.tk,
                                       dti_step_u32(DTI_STEP_NUMBER), args.stream, word);
    return dti_philox(counter, key)[word] < args.threshold ? args.keep_scale : 0.0;
}

/* Positions of the other side, [first, end), that a block from `at` on may see; from a block's first
 * on. Without any it begins after the last, which nobody sees. */
uvec2 range_of(uint at, uint others, bool queries)
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
    return uvec2(from < to ? from / BLOCK * BLOCK : others, to);
}
