/* Gradients of attention, the weights made again from their logarithms: of 32 queries over the keys
 * they see, or of 32 keys, values or both (spec3) over all queries of their heads that see them,
 * whose products are the turned ones. No sum is shared, so all have one order. d and dv in blocks:
 * spec1, spec2. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/step.glsl"
#include "lib/rng.glsl"

DTI_PUSH(DTI_ARGS_ATTENTION)
#include "lib/attention.glsl"
layout(binding = 3) writeonly buffer buffer_y { float y[]; };

const bool KEYS = (spec3 & DTI_ATTENTION_DQ) == 0u, MAKES_V = (spec3 & DTI_ATTENTION_DV) != 0u;
const bool MAKES_D = (spec3 & (DTI_ATTENTION_DQ | DTI_ATTENTION_DK)) != 0u;
vec4 sums_d[4u * spec1], sums_v[4u * spec2], lost_d[4u * spec1], lost_v[4u * spec2];

ADD_ROWS(add_d, sums_d, lost_d, spec1)
ADD_ROWS(add_v, sums_v, lost_v, spec2)

uint batch, head;

/* acc: sums of q k -> weights; acc2: sums of dy v -> the scores' gradients. Rows are queries from
 * `row` on and columns keys from `col` on, or the other way round. */
void weigh(uint row, uint col, float slope)
{
    uint mask = args.mask_offset + batch * args.mask_sample + head * args.mask_head;
    for (uint r = 0u; r < 4u; r++) {
        for (uint c = 0u; c < 4u; c++) {
            uint i = KEYS ? col + c : row + r, j = KEYS ? row + r : col + c;
            float s = score_of(acc[r][c], i, j, slope, mask), p = 0.0, ds = 0.0;
            if (!is_hidden(s)) {
                uint at = (batch * args.tq + i) * 3u * HEADS + head;
                float keep = DROPOUT ? kept(batch, head, i, j) : 1.0;
                p = dti_m_exp((s - x[at]) - x[at + HEADS]);
                ds = p * (acc2[r][c] * keep - x[at + 2u * HEADS]) * args.scale;
                p *= keep;
            }
            acc[r][c] = p;
            acc2[r][c] = ds;
        }
    }
}

/* Rows from `first` on of the side of queries: q, and dy; of keys: k, and v. */
rows side_of(const bool keys, bool second, uint first)
{
    uint unit = keys ? head / (HEADS / KV_HEADS) : head;
    uint pitch = HEADS * args.dv;
    if (keys && second)
        return rows_of(0u, args.v_offset + batch * args.v_sample + unit * args.v_head, args.v_row,
                       first, args.tk);
    if (keys)
        return rows_of(0u, args.k_offset + batch * args.k_sample + unit * args.k_head, args.k_row,
                       first, args.tk);
    if (second)
        return rows_of(1u, args.dy_offset + batch * args.tq * pitch + unit * args.dv, pitch, first,
                       args.tq);
    return rows_of(0u, args.q_offset + batch * args.q_sample + unit * args.q_head, args.q_row, first,
                   args.tq);
}

/* dq or dk, and dv, of this invocation's rows. */
void store(uint unit, uint first, uint all)
{
    uint q_all = HEADS * args.d, k_all = KV_HEADS * args.d, v_all = KV_HEADS * args.dv;
    bool beside = args.tq == args.tk;
    uint to = args.y_offset + batch * (args.tq * q_all + args.tk * (k_all + v_all));
    uint k_to = to + (beside ? q_all : args.tq * q_all);
    uint v_to = k_to + (beside ? k_all : args.tk * k_all);
    uint pitch = beside ? q_all + k_all + v_all : KEYS ? k_all : q_all;
    uint v_pitch = beside ? pitch : v_all, d_to = (KEYS ? k_to : to) + unit * args.d;
    for (uint i = 0u; i < 4u; i++) {
        uint row = first + ty * 4u + i;
        if (row >= all)
            continue;
        for (uint c = 0u; c < spec1; c++) {
            for (uint j = 0u; j < 4u; j++) {
                uint at = c * BLOCK + tx * 4u + j;
                if (MAKES_D && at < args.d)
                    y[d_to + row * pitch + at] = sums_d[4u * c + i][j];
            }
        }
        for (uint c = 0u; c < spec2; c++) {
            for (uint j = 0u; j < 4u; j++) {
                uint at = c * BLOCK + tx * 4u + j;
                if (MAKES_V && at < args.dv)
                    y[v_to + unit * args.dv + row * v_pitch + at] = sums_v[4u * c + i][j];
            }
        }
    }
}

void main()
{
    uint all = KEYS ? args.tk : args.tq, heads = KEYS ? KV_HEADS : HEADS;
    uint blocks = (all + BLOCK - 1u) / BLOCK, group = dti_group(), rest = group / blocks;
    uint unit = rest % heads, first = (group - rest * blocks) * BLOCK;
    uint share = HEADS / KV_HEADS, kv_head = KEYS ? unit : unit / share;
    batch = rest / heads;
    if (batch >= args.samples)
        return;
    lane = gl_LocalInvocationID.x;
    ty = lane / FOURS;
    tx = lane % FOURS;
    for (uint i = 0u; i < 4u * spec1; i++) sums_d[i] = lost_d[i] = vec4(0.0);
    for (uint i = 0u; i < 4u * spec2; i++) sums_v[i] = lost_v[i] = vec4(0.0);
    uvec2 range = blocks_of(first, KEYS ? args.tq : args.tk, !KEYS);
    for (uint h = 0u; h < (KEYS ? share : 1u); h++) {
        head = KEYS ? kv_head * share + h : unit;
        float slope = ALIBI ? alibi_slope(head) : 0.0;
        for (uint b = range.x; b < range.y; b++) {
            rows other = side_of(!KEYS, true, b * BLOCK);
            multiply(side_of(KEYS, true, first), other, args.dv, spec2);
            for (uint i = 0u; i < 4u; i++) acc2[i] = acc[i];
            rows others = side_of(!KEYS, false, b * BLOCK);
            multiply(side_of(KEYS, false, first), others, args.d, spec1);
            weigh(first + ty * 4u, b * BLOCK + tx * 4u, slope);
            barrier(); /* the products are made */
            if (MAKES_V) {
                keep_turned();
                add_v(other, args.dv);
                barrier();
            }
            if (MAKES_D) {
                for (uint i = 0u; i < 4u; i++) acc[i] = acc2[i];
                keep_turned();
                add_d(others, args.d);
            }
        }
    }
    store(unit, first, all);
}
