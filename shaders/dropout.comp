/* y[i] = keep(i) ? x[i] * scale : 0, keep(i) = random word of element first + i below the
 * threshold. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/rng.glsl"

DTI_PUSH(DTI_ARGS_DROPOUT)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    uvec2 key = uvec2(dti_step_u32(DTI_STEP_SEED_LO), dti_step_u32(DTI_STEP_SEED_HI));
    uint word = dti_random(i, args.first, dti_step_u32(DTI_STEP_FIRST_ROW), args.row_elements,
                           dti_step_u32(DTI_STEP_NUMBER), args.stream, key);
    y[args.y_offset + i] = word < args.threshold ? x[args.x_offset + i] * args.scale : 0.0;
}
