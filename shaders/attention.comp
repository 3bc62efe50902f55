/* Attention and its gradients, by blocks of 32 queries and 32 keys (FlashAttention-2, Dao 2023). A
 * workgroup makes rows of queries (results, dq) over the keys they see. Or it makes rows of keys
 * (dk, dv) over all queries of their heads that see them. Weights of results are e^(score - the
 * largest yet), and sums are brought to each new largest; gradients make them again from their
 * logarithms. No sum is shared between workgroups, so all have one order. d and dv in blocks:
 * spec1, spec2; the results: spec3. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/functions.glsl"
#include "lib/step.glsl"
#include "lib/rng.glsl"

DTI_PUSH(DTI_ARGS_ATTENTION)
layout(constant_id = 3) const uint spec2 = 1u;
layout(constant_id = 4) const uint spec3 = 0u;
DTI_READS(0u, q)                                             /* of gradients: q, k and v */
DTI_READS(1u, kv)                                            /* k and v; of gradients: dy */
layout(binding = 2) readonly buffer buffer_x { float x[]; }; /* mask; also logarithms, sums */
DTI_WRITES(3u, DTI_ANY_WAY, y)                               /* read too, where it is of 32 bits */
#include "lib/attention.glsl"

vec4 sums[4u * PARTS];
/* Of each query: the largest score in its order, at two places by turns; its weights' sum in eight
 * parts since sums were stored last; and both as they were then. */
shared uint largest[2u * BLOCK];
shared float weights[BLOCK * FOURS], largest_before[BLOCK], sum_before[BLOCK];
shared float factor[BLOCK], share[BLOCK]; /* of rows of sums */

/* A number whose order is that of scores, so that invocations find the largest by an atomic; NaN is
 * the largest. */
uint order_of(float score)
{
    uint bits = floatBitsToUint(score);
    return dti_is_nan(score) ? 0xffffffffu : bits ^ (bits >> 31 == 0u ? 0x80000000u : 0xffffffffu);
}

float score_at(uint order)
{
    return uintBitsToFloat(order ^ (order >> 31 == 0u ? 0xffffffffu : 0x80000000u));
}

void find_largest(uint q_first, uint k_first, uint turn, float slope, uint mask)
{
    [[dont_unroll]] for (uint m = 0u; m < BLOCK; m += QUERIES) {
        uint n = m + lane / FOURS;
        if (QUERIES > BLOCK && n >= BLOCK)
            continue;
        vec4 v = side[n * PITCH + tx];
        float most = HIDDEN;
        for (uint e = 0u; e < 4u; e++)
            most = dti_max(most, score_of(v[e], q_first + n, k_first + tx * 4u, e, slope, mask));
        atomicMax(largest[(turn ^ 1u) * BLOCK + n], order_of(most));
    }
    barrier();
}

/* Weights, and the scores' gradients, of a block, to where a product takes them: [query][key]. */
void weigh(uint q_first, uint k_first, uint turn, float slope, uint mask)
{
    [[dont_unroll]] for (uint m = 0u; m < BLOCK; m += QUERIES) {
        uint n = m + lane / FOURS;
        if (QUERIES > BLOCK && n >= BLOCK)
            continue;
        uint at = n * PITCH + tx, i = q_first + n, j = k_first + tx * 4u;
        uint log_at = (batch * args.tq + i) * 3u * HEADS + head;
        vec4 v = side[at], p = vec4(0.0), ds = p;
        float before = HIDDEN, most = HIDDEN, all = 0.0;
        if (FORWARD) {
            before = score_at(largest[turn * BLOCK + n]);
            most = score_at(largest[(turn ^ 1u) * BLOCK + n]);
        }
        for (uint e = 0u; e < 4u; e++) {
            float s = score_of(v[e], i, j, e, slope, mask);
            if (is_hidden(s))
                continue;
            float keep = DROPOUT ? kept(i, j + e) : 1.0;
            p[e] = dti_m_exp(FORWARD ? s - most : (s - x[log_at]) - x[log_at + HEADS]);
            if (MAKES_D)
                ds[e] = p[e] * (side[KEPT + at][e] * keep - x[log_at + 2u * HEADS]) * args.scale;
            all += p[e];
            p[e] *= keep;
        }
        if (FORWARD) {
            float f = is_hidden(before) ? 1.0 : dti_m_exp(before - most);
            weights[n * FOURS + tx] = weights[n * FOURS + tx] * f + all;
            if (tx == 0u)
                factor[n] = f;
        }
        if (!KEYS || MAKES_DV)
            side[SECOND + at] = FORWARD || KEYS ? p : ds;
        if (KEYS && MAKES_D)
            side[KEPT + at] = ds;
    }
}

/* sums += the block's weights times the other side's columns. */
void accumulate(uint part, uint other)
{
    uint chunk = part * GROUPS + group, own_side = group * (AT_ONCE * FOURS);
    bool of_v = !MAKES_D || chunk < V_CHUNKS;
    uint from = (of_v ? chunk : chunk - V_CHUNKS) * BLOCK, a = of_v || !KEYS ? SECOND : KEPT;
    vec4 made[4] = vec4[](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
    [[dont_unroll]] for (uint k = 0u; k < BLOCK; k += AT_ONCE) {
        barrier();
        load_straight(side_of(!KEYS, of_v, other), k, from, of_v ? args.dv : args.d, own_side);
        barrier();
        [[dont_unroll]] for (uint i = 0u; i < AT_ONCE; i += 4u) {
            uint b = own_side + i * FOURS + tx;
            if (KEYS)
                ADD_FOUR(made, a + (k + i) * PITCH + ty, b, FOURS)
            else
                ADD_FOUR_OF_ROWS(made, a + ty * 4u * PITCH + (k + i) / 4u, b, FOURS)
        }
    }
    for (uint s = 0u; s < 4u * PARTS; s++) {
        if (s / 4u == part)
            sums[s] = (FORWARD ? sums[s] * factor[ty * 4u + s % 4u] : sums[s]) + made[s % 4u];
    }
}

/* Of rows of results: by what the sums, and those stored before, are multiplied. */
void find_shares(uint first, bool last, uint turn)
{
    if (lane < BLOCK) {
        float before = largest_before[lane], most = score_at(largest[turn * BLOCK + lane]), all = 0.0;
        float f = is_hidden(before) ? 1.0 : dti_m_exp(before - most);
        for (uint t = 0u; t < FOURS; t++) {
            all += weights[lane * FOURS + t];
            weights[lane * FOURS + t] = 0.0;
        }
        all += sum_before[lane] * f;
        float part = !last ? 1.0 : all == 0.0 ? 0.0 : 1.0 / all;
        largest_before[lane] = most;
        sum_before[lane] = all;
        factor[lane] = f * part;
        share[lane] = part;
        uint at = args.y_offset + (batch * args.tq + first + lane) * HEADS * (args.dv + 2u);
        at += HEADS * args.dv + head;
        if (last && first + lane < args.tq) {
            y[at] = all == 0.0 ? 0.0 : most;
            y[at + HEADS] = all == 0.0 ? DTI_ATTENTION_NONE : dti_m_log(all);
        }
    }
    barrier();
}

/* Adds the sums of a span of blocks to those of the spans before. So no sum has many terms. A loop
 * that clears what it reads holds both: of two parts that is more than Intel's registers. Of one
 * part its scheduler does better so. */
void store(uint unit, uint first, uint all, bool again)
{
    uint q_all = HEADS * args.d, k_all = KV_HEADS * args.d, v_all = KV_HEADS * args.dv;
    bool beside = args.tq == args.tk;
    uint q_to = args.y_offset + batch * (args.tq * q_all + args.tk * (k_all + v_all));
    uint k_to = q_to + (beside ? q_all : args.tq * q_all);
    uint v_to = k_to + (beside ? k_all : args.tk * k_all);
    uint d_step = beside ? q_all + k_all + v_all : KEYS ? k_all : q_all;
    uint v_step = beside ? d_step : v_all;
    if (FORWARD) {
        v_step = HEADS * (args.dv + 2u);
        v_to = args.y_offset + batch * args.tq * v_step;
    }
    [[dont_unroll]] for (uint r = 0u; r < 4u * PARTS; r++) {
        vec4 v = vec4(0.0);
        for (uint s = 0u; s < 4u * PARTS; s++) {
            if (s == r) {
                v = sums[s];
                if (PARTS == 1u)
                    sums[s] = vec4(0.0);
            }
        }
        uint chunk = r / 4u * GROUPS + group, row = ty * 4u + r % 4u;
        bool of_v = !MAKES_D || chunk < V_CHUNKS;
        uint size = of_v ? args.dv : args.d, step = of_v ? v_step : d_step;
        uint col = (of_v ? chunk : chunk - V_CHUNKS) * BLOCK + tx * 4u;
        uint to = (of_v ? v_to : KEYS ? k_to : q_to) + unit * size + (first + row) * step + col;
        if (FORWARD)
            v *= share[row];
        if (y_HALF && (to & 3u) == 0u && col + 4u <= size) {
            if (first + row < all)
                y_put4(to / 4u, v);
            continue;
        }
        for (uint e = 0u; e < 4u; e++) {
            if (first + row < all && col + e < size) {
                if (y_HALF)
                    y_put(to + e, v[e]);
                else
                    y[to + e] = again ? y[to + e] * (FORWARD ? factor[row] : 1.0) + v[e] : v[e];
            }
        }
    }
    for (uint s = 0u; s < 4u * PARTS && PARTS > 1u; s++) sums[s] = vec4(0.0);
}

void main()
{
    uint all = KEYS ? args.tk : args.tq, units = KEYS ? KV_HEADS : HEADS;
    uint blocks = (all + BLOCK - 1u) / BLOCK, item = dti_group(), rest = item / blocks;
    uint unit = rest % units, first = (item - rest * blocks) * BLOCK;
    batch = rest / units;
    if (batch >= args.samples)
        return;
    lane = gl_LocalInvocationIndex;
    group = GROUPS > 1u ? lane / LANES : 0u;
    ty = lane % LANES / FOURS;
    tx = lane % FOURS;
    if (FORWARD && lane < BLOCK) {
        largest[lane] = order_of(HIDDEN);
        largest_before[lane] = HIDDEN;
        sum_before[lane] = 0.0;
        for (uint t = 0u; t < FOURS; t++) weights[lane * FOURS + t] = 0.0;
    }
    for (uint i = 0u; i < 4u * PARTS; i++) sums[i] = vec4(0.0);
    uvec2 range = range_of(first, KEYS ? args.tq : args.tk, !KEYS);
    uint count = 0u, heads = KEYS ? HEADS / KV_HEADS : 1u;
    for (uint h = 0u; h < heads; h++) {
        head = unit * heads + h;
        float slope = ALIBI ? alibi_slope(head) : 0.0;
        uint mask = args.mask_offset + batch * args.mask_sample + head * args.mask_head;
        uint b = range.x;
        do {
            uint q_first = KEYS ? b : first, k_first = KEYS ? first : b, turn = count % 2u;
            if (FORWARD && lane < BLOCK)
                largest[(turn ^ 1u) * BLOCK + lane] = largest[turn * BLOCK + lane];
            [[dont_unroll]] for (uint pass = MAKES_D ? 0u : 1u; pass < 2u; pass++) {
                bool of_dy = MAKES_D && pass == 0u;
                multiply(side_of(false, of_dy, q_first), side_of(true, of_dy, k_first),
                         of_dy ? args.dv : args.d, of_dy ? spec2 : spec1, of_dy ? KEPT : 0u);
            }
            if (FORWARD)
                find_largest(q_first, k_first, turn, slope, mask);
            weigh(q_first, k_first, turn, slope, mask);
            [[dont_unroll]] for (uint p = 0u; p < PARTS; p++) accumulate(p, b);
            b += BLOCK;
            bool last = b >= range.y && h + 1u == heads;
            count++;
            if (last || count % DTI_ATTENTION_BLOCKS == 0u) {
                if (FORWARD) {
                    barrier();
                    find_shares(first, last, count % 2u);
                }
                store(unit, first, all, count > DTI_ATTENTION_BLOCKS);
            }
        } while (b < range.y);
    }
}
