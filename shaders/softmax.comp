/* y = softmax(x) or log_softmax(x) (spec0) over rows of contiguous values: a workgroup per row,
 * shifted by the maximum of the row. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_ROWS)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

void main()
{
    uint row = dti_group(), lane = gl_LocalInvocationID.x;
    if (row >= args.rows)
        return;
    uint from = args.x_offset + row * args.cols, to = args.y_offset + row * args.cols;
    float high = DTI_LOWEST, sum = 0.0;
    for (uint c = lane; c < args.cols; c += gl_WorkGroupSize.x)
        high = dti_max(high, x[from + c]);
    high = dti_group_max(high, args.cols, 0u);
    for (uint c = lane; c < args.cols; c += gl_WorkGroupSize.x)
        sum += dti_m_exp(x[from + c] - high);
    sum = dti_group_sum(sum, args.cols, 1u);
    float log_sum = spec0 == 1u ? dti_m_log(sum) : 0.0;
    for (uint c = lane; c < args.cols; c += gl_WorkGroupSize.x) {
        float shifted = x[from + c] - high;
        y[to + c] = spec0 == 1u ? shifted - log_sum : dti_m_exp(shifted) / sum;
    }
}
