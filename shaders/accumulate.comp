/* g = (first micro-batch of the step ? 0 : g) + x */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"

DTI_PUSH(DTI_ARGS_ACCUMULATE)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) buffer buffer_y { float y[]; };

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    float value = x[args.x_offset + i];
    if ((dti_step_u32(DTI_STEP_FLAGS) & DTI_FLAG_FIRST) == 0u)
        value += y[args.y_offset + i];
    y[args.y_offset + i] = value;
}
