/* softmax: y = softmax(x) or log_softmax(x) (spec0) over rows of contiguous values: a workgroup per
 * row, shifted by the maximum of the row. The first units of each invocation stay in registers. Up
 * to HELD for each, the row is read once, and exp computed once.
 *
 * softmax_grad: dx from (y, dy): y * (dy - sum(y * dy)), or with log dy - exp(y) * sum(dy).
 * x_offset is that of y, y_offset that of dx.
 *
 * Both may run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"
#include "lib/row.glsl"

DTI_PUSH(DTI_ARGS_ROWS)
DTI_READS(0u, x)
DTI_READS(1u, dy)
DTI_WRITES(1u, writeonly, y)
DTI_WRITES(2u, writeonly, dx)
DTI_ROW_READ(x_at, x)
DTI_ROW_READ(dy_at, dy)

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
        y_put4(unit, value);
    else
        y_put(unit, value.x);
}

void softmax(uint from, uint to, uint units)
{
    uint lane = gl_LocalInvocationID.x;
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

void softmax_grad(uint at_y, uint at_dy, uint at_dx, uint units)
{
    dti_row_sums sums = DTI_ROW_SUMS;
    DTI_EACH_UNIT(u, 0u, units) {
        if (spec0 == 1u)
            dti_row_add(sums, dy_at(at_dy + u));
        else
            dti_row_add(sums, x_at(at_y + u) * dy_at(at_dy + u));
    }
    float sum = dti_group_sum(dti_row_total(sums), units, 0u);
    DTI_EACH_UNIT(u, 0u, units) {
        vec4 value = x_at(at_y + u), grad = dy_at(at_dy + u);
        if (spec0 == 1u)
            grad -= dti_row_exp(value) * sum;
        else
            grad = value * (grad - sum);
        if (FOURS)
            dx_put4(at_dx + u, grad);
        else
            dx_put(at_dx + u, grad.x);
    }
}

void main()
{
    uint row = dti_group(), first = row * args.cols, units = args.cols / WIDTH;
    if (row >= args.rows)
        return;
    uint from = (args.x_offset + first) / WIDTH, to = (args.y_offset + first) / WIDTH;
    if (SIDE == DTI_SIDE_SOFTMAX)
        softmax(from, to, units);
    else
        softmax_grad(from, (args.dy_offset + first) / WIDTH, to, units);
}
