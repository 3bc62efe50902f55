/* dx from (y, dy): y * (dy - sum(y * dy)), or with log (spec0) dy - exp(y) * sum(dy). A workgroup
 * per row. May run in place. Offsets: x_offset is that of y, y_offset that of dx. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_ROWS)
layout(binding = 0) readonly buffer buffer_y { float y[]; };
layout(binding = 1) readonly buffer buffer_dy { float dy[]; };
layout(binding = 2) writeonly buffer buffer_dx { float dx[]; };

void main()
{
    uint row = dti_group(), lane = gl_LocalInvocationID.x;
    if (row >= args.rows)
        return;
    uint at_y = args.x_offset + row * args.cols, at_dy = args.dy_offset + row * args.cols;
    uint at_dx = args.y_offset + row * args.cols;
    float sum = 0.0;
    for (uint c = lane; c < args.cols; c += gl_WorkGroupSize.x)
        sum += spec0 == 1u ? dy[at_dy + c] : y[at_y + c] * dy[at_dy + c];
    sum = dti_group_sum(sum, args.cols, 0u);
    for (uint c = lane; c < args.cols; c += gl_WorkGroupSize.x) {
        float value = y[at_y + c], grad = dy[at_dy + c];
        dx[at_dx + c] = spec0 == 1u ? grad - dti_m_exp(value) * sum : value * (grad - sum);
    }
}
