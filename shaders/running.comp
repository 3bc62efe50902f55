/* Running statistics: y[i] = keep * (first micro-batch of the step ? x[i] : y[i]) + take * s[2 i],
 * and the same of a second vector. Later micro-batches go on from what the first one wrote. An
 * invocation per element. */
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
    if (i >= args.n + args.n2)
        return;
    bool first = (dti_step_u32(DTI_STEP_FLAGS) & DTI_FLAG_FIRST) != 0u, second = i >= args.n;
    i = second ? i - args.n : i;
    uint from = (second ? args.x2_offset : args.x_offset) + i;
    uint to = (second ? args.y2_offset : args.y_offset) + i;
    float take = second ? args.take2 : args.take;
    float before = first ? x[from] : y[to];
    y[to] = args.keep * before + take * s[args.s_offset + (second ? 1u : 0u) + 2u * i];
}
