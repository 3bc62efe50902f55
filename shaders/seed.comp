/* The start of the backward pass of loss `index`. It is the coefficient over the weight of the
 * global batch, from the step block. Or it is over that of this batch, from its pair (sum, weight).
 * No weight, no gradient. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"

DTI_PUSH(DTI_ARGS_SEED)
layout(binding = 0) readonly buffer buffer_term { float term[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

void main()
{
    if (dti_item() != 0u)
        return;
    float weight = dti_step_f32(DTI_STEP_WEIGHT + args.index);
    if (!(weight > 0.0))
        weight = term[args.term_offset + 1u];
    float coefficient = dti_step_f32(DTI_STEP_COEFFICIENT + args.index);
    y[args.y_offset] = weight == 0.0 ? 0.0 : coefficient / weight;
}
