/* y = softmax(x) or log_softmax(x) (spec0) over rows of contiguous values: a workgroup per row,
 * shifted by the maximum of the row. The first units of each invocation stay in registers: up to
 * HELD for each the row is read once, and exp computed once. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"
#include "lib/row.glsl"

DTI_PUSH(DTI_ARGS_ROWS)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };
layout(binding = 1) writeonly buffer buffer_y4 { vec4 y4[]; };
DTI_ROW_READ(x_at, x, x4)

/* For the driver, which is to unroll: what compiles this does not know spec1. */
const uint HELD = spec1 == 0u ? DTI_LIES_HELD : 0u;
#define DTI_EACH_HELD(u)                                                                           \
    [[unroll]] for (uint k = 0u, u = lane; k < HELD; k++, u += gl_WorkGroupSize.x)
#define DTI_EACH_MORE(u)                                                                           \
    if (!ALL_HELD)                                                                                 \
    DTI_EACH_UNIT(u, HELD * gl_WorkGroupSize.x, units)

void write(uint unit, vec4 value)
{
    if (FOURS)
        y4[unit] = value;
    else
        y[unit] = value.x;
}

void main()
{
    uint row = dti_group(), lane = gl_LocalInvocationID.x;
    if (row >= args.rows)
        return;
    uint from = (args.x_offset + row * args.cols) / WIDTH, units = args.cols / WIDTH;
    uint to = (args.y_offset + row * args.cols) / WIDTH;
    vec4 v[DTI_LIES_HELD];
    dti_row_sums sums = DTI_ROW_SUMS;
    float high = DTI_LOWEST;
    DTI_EACH_HELD(u) if (u < units)
        high = dti_row_max(high, v[k] = x_at(from + u));
    DTI_EACH_MORE(u) high = dti_row_max(high, x_at(from + u));
    high = dti_group_max(high, units, 0u);
    DTI_EACH_HELD(u) if (u < units) {
        vec4 shifted = v[k] - high, power = dti_row_exp(shifted);
        v[k] = spec0 == 1u ? shifted : power;
        sums.run += power;
    }
    DTI_EACH_MORE(u) dti_row_add(sums, dti_row_exp(x_at(from + u) - high));
    float sum = dti_group_sum(dti_row_total(sums), units, 1u);
    float log_sum = spec0 == 1u ? dti_m_log(sum) : 0.0;
    DTI_EACH_HELD(u) if (u < units)
        write(to + u, spec0 == 1u ? v[k] - log_sum : v[k] / sum);
    DTI_EACH_MORE(u) {
        vec4 shifted = x_at(from + u) - high;
        if (spec0 == 1u)
            write(to + u, shifted - log_sum);
        else
            write(to + u, dti_row_exp(shifted) / sum);
    }
}
