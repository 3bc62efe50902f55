/* A running statistic: y[i] = keep * (first micro-batch of the step ? x[i] : y[i]) + take * s[2 i].
 * Later micro-batches go on from what the first one wrote. An invocation per element. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"

DTI_PUSH(DTI_ARGS_RUNNING)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_s { float s[]; };
layout(binding = 2) buffer buffer_y { float y[]; };

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    bool first = (dti_step_u32(DTI_STEP_FLAGS) & DTI_FLAG_FIRST) != 0u;
    float before = first ? x[args.x_offset + i] : y[args.y_offset + i];
    y[args.y_offset + i] = args.keep * before + args.take * s[args.s_offset + 2u * i];
}
