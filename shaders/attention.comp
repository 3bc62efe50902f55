/* Rows of results of a head, 32 queries a workgroup, over the keys they see: weights of a block of
 * keys are e^(score - the largest yet), and results are brought to each new largest. d and dv in
 * blocks: spec1, spec2. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/step.glsl"
#include "lib/rng.glsl"

DTI_PUSH(DTI_ARGS_ATTENTION)
#include "lib/attention.glsl"
layout(binding = 3) writeonly buffer buffer_y { float y[]; };

vec4 sums[4u * spec2], lost[4u * spec2];
shared float row_part[BLOCK * FOURS];

ADD_ROWS(add_values, sums, lost, spec2)

/* Of the 8 invocations that share rows: the largest, or the sum, of each of the four rows. */
vec4 rows_largest(vec4 part)
{
    for (uint i = 0u; i < 4u; i++) row_part[(ty * 4u + i) * FOURS + tx] = part[i];
    barrier();
    vec4 all = vec4(HIDDEN);
    for (uint t = 0u; t < FOURS; t++) {
        for (uint i = 0u; i < 4u; i++)
            all[i] = dti_max(all[i], row_part[(ty * 4u + i) * FOURS + t]);
    }
    barrier();
    return all;
}

vec4 rows_sum(vec4 part)
{
    for (uint i = 0u; i < 4u; i++) row_part[(ty * 4u + i) * FOURS + tx] = part[i];
    barrier();
    vec4 all = vec4(0.0);
    for (uint t = 0u; t < FOURS; t++) {
        for (uint i = 0u; i < 4u; i++) all[i] += row_part[(ty * 4u + i) * FOURS + t];
    }
    barrier();
    return all;
}

void main()
{
    uint blocks = (args.tq + BLOCK - 1u) / BLOCK, group = dti_group(), rest = group / blocks;
    uint head = rest % HEADS, batch = rest / HEADS, first = (group - rest * blocks) * BLOCK;
    if (batch >= args.samples)
        return;
    lane = gl_LocalInvocationID.x;
    ty = lane / FOURS;
    tx = lane % FOURS;
    uint kv_head = head / (HEADS / KV_HEADS);
    uint q_at = args.q_offset + batch * args.q_sample + head * args.q_head;
    uint k_at = args.k_offset + batch * args.k_sample + kv_head * args.k_head;
    uint v_at = args.v_offset + batch * args.v_sample + kv_head * args.v_head;
    uint mask = args.mask_offset + batch * args.mask_sample + head * args.mask_head;
    float slope = ALIBI ? alibi_slope(head) : 0.0;
    vec4 largest = vec4(HIDDEN), sum = vec4(0.0), sum_lost = sum;
    for (uint i = 0u; i < 4u * spec2; i++) sums[i] = lost[i] = vec4(0.0);
    rows queries = rows_of(0u, q_at, args.q_row, first, args.tq);
    uvec2 range = blocks_of(first, args.tk, true);
    for (uint b = range.x; b < range.y; b++) {
        multiply(queries, rows_of(1u, k_at, args.k_row, b * BLOCK, args.tk), args.d, spec1);
        vec4 part = vec4(HIDDEN);
        for (uint i = 0u; i < 4u; i++) {
            for (uint j = 0u; j < 4u; j++) {
                acc[i][j] = score_of(acc[i][j], first + ty * 4u + i, b * BLOCK + tx * 4u + j, slope,
                                     mask);
                part[i] = dti_max(part[i], acc[i][j]);
            }
        }
        vec4 before = largest;
        part = rows_largest(part);
        for (uint i = 0u; i < 4u; i++) {
            largest[i] = dti_max(before[i], part[i]);
            float f = is_hidden(before[i]) ? 1.0 : dti_m_exp(before[i] - largest[i]);
            part[i] = 0.0;
            sum[i] *= f;
            if (LONG)
                sum_lost[i] *= f;
            for (uint j = 0u; j < 4u; j++) {
                float s = acc[i][j];
                s = is_hidden(s) ? 0.0 : dti_m_exp(s - largest[i]);
                part[i] += s;
                if (DROPOUT)
                    s *= kept(batch, head, first + ty * 4u + i, b * BLOCK + tx * 4u + j);
                acc[i][j] = s;
            }
            for (uint c = 0u; c < spec2; c++) {
                sums[4u * c + i] *= f;
                if (LONG)
                    lost[4u * c + i] *= f;
            }
        }
        keep_turned();
        add_block(sum, sum_lost, rows_sum(part));
        add_values(rows_of(1u, v_at, args.v_row, b * BLOCK, args.tk), args.dv);
    }
    uint pitch = HEADS * (args.dv + 2u);
    for (uint i = 0u; i < 4u; i++) {
        uint row = first + ty * 4u + i, to = args.y_offset + (batch * args.tq + row) * pitch;
        bool none = sum[i] == 0.0;
        float share = none ? 0.0 : 1.0 / sum[i];
        if (row >= args.tq)
            continue;
        for (uint c = 0u; c < spec2; c++) {
            for (uint j = 0u; j < 4u; j++) {
                uint at = c * BLOCK + tx * 4u + j;
                if (at < args.dv)
                    y[to + head * args.dv + at] = sums[4u * c + i][j] * share;
            }
        }
        if (tx == 0u) {
            uint at = to + HEADS * args.dv + head;
            y[at] = none ? 0.0 : largest[i];
            y[at + HEADS] = none ? DTI_ATTENTION_NONE : dti_m_log(sum[i]);
        }
    }
}
