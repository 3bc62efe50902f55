/* g = (first micro-batch of the step ? 0 : g) + x */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/fours.glsl"

DTI_PUSH(DTI_ARGS_ACCUMULATE)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) buffer buffer_y { float y[]; };
layout(binding = 1) buffer buffer_y4 { vec4 y4[]; };

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from = args.x_offset + i, to = args.y_offset + i, last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    vec4 value, before;
    DTI_TAKE(vec4, value, x, x4, from, A_IS_ONE)
    if ((dti_step_u32(DTI_STEP_FLAGS) & DTI_FLAG_FIRST) == 0u) {
        DTI_TAKE(vec4, before, y, y4, to, B_IS_ONE)
        DTI_EACH_OF_FOUR value[k] += before[k];
    }
    DTI_GIVE(y, y4, to, value)
}
