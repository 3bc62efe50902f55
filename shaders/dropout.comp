/* y[i] = keep(i) ? x[i] * scale : 0, keep(i) = random word of element first + i below the
 * threshold. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/fours.glsl"
#include "lib/rng.glsl"

DTI_PUSH(DTI_ARGS_DROPOUT)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };
layout(binding = 1) writeonly buffer buffer_y4 { vec4 y4[]; };

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from = args.x_offset + i, last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    vec4 v;
    DTI_TAKE(vec4, v, x, x4, from, A_IS_ONE)
    uvec2 key = uvec2(dti_step_u32(DTI_STEP_SEED_LO), dti_step_u32(DTI_STEP_SEED_HI));
    uvec4 word = dti_random4(i, args.first, dti_step_u32(DTI_STEP_FIRST_ROW), args.row_elements,
                             dti_step_u32(DTI_STEP_NUMBER), args.stream, key);
    DTI_EACH_OF_FOUR v[k] = word[k] < args.threshold ? v[k] * args.scale : 0.0;
    DTI_GIVE(y, y4, args.y_offset + i, v)
}
