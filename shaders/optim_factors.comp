/* Adafactor's new factors, in place of this step's means: a step's part between those in the state and
 * these. What is behind them in their last block becomes 0. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/functions.glsl"
#define DTI_OPTIM_PART 1
#include "lib/optim_body.h"

DTI_PUSH(DTI_ARGS_FACTORS)
layout(binding = 0) buffer buffer_factors { float factors[]; };
layout(binding = 1) readonly buffer buffer_state { uint state[]; };

float part()
{
    float w[DTI_GROUP_WORDS] = DTI_GROUP_F32(args.group);
    float c[DTI_OPTIM_CONSTANTS] = float[](0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    dti_m_constants_adafactor(w, float(state[args.t_offset]), c);
    return c[DTI_ADAFACTOR_PART];
}

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    float value = 0.0;
    if (i < args.kept) {
        float old = uintBitsToFloat(state[args.moment_offset + i]);
        value = dti_m_lerp(old, factors[i], part());
    }
    factors[i] = value;
}
