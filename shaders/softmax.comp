/* y = softmax(x) or log_softmax(x) (spec0) over rows of contiguous values: a workgroup per row,
 * shifted by the maximum of the row. The first elements of each invocation stay in registers: up to
 * HELD for each the row is read once, and exp computed once. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_ROWS)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

/* 4 for the driver, which is to unroll: what compiles this does not know spec1. */
const uint HELD = spec1 == 0u ? 4u : 0u;
#define DTI_EACH_HELD(c)                                                                           \
    [[unroll]] for (uint k = 0u, c = lane; k < HELD; k++, c += gl_WorkGroupSize.x)
#define DTI_EACH_MORE(c)                                                                           \
    for (uint c = lane + HELD * gl_WorkGroupSize.x; c < args.cols; c += gl_WorkGroupSize.x)

void main()
{
    uint row = dti_group(), lane = gl_LocalInvocationID.x;
    if (row >= args.rows)
        return;
    uint from = args.x_offset + row * args.cols, to = args.y_offset + row * args.cols;
    float high = DTI_LOWEST, sum = 0.0, v[4];
    DTI_EACH_HELD(c) if (c < args.cols)
        high = dti_max(high, v[k] = x[from + c]);
    DTI_EACH_MORE(c) high = dti_max(high, x[from + c]);
    high = dti_group_max(high, args.cols, 0u);
    DTI_EACH_HELD(c) if (c < args.cols) {
        float shifted = v[k] - high, power = dti_m_exp(shifted);
        v[k] = spec0 == 1u ? shifted : power;
        sum += power;
    }
    DTI_EACH_MORE(c) sum += dti_m_exp(x[from + c] - high);
    sum = dti_group_sum(sum, args.cols, 1u);
    float log_sum = spec0 == 1u ? dti_m_log(sum) : 0.0;
    DTI_EACH_HELD(c) if (c < args.cols)
        y[to + c] = spec0 == 1u ? v[k] - log_sum : v[k] / sum;
    DTI_EACH_MORE(c) {
        float shifted = x[from + c] - high;
        y[to + c] = spec0 == 1u ? shifted - log_sum : dti_m_exp(shifted) / sum;
    }
}
