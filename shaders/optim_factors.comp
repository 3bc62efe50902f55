/* Adafactor's factors.
 *
 * optim_factors: the new ones, in place of this step's means: a step's part between those in the
 * state and these. What is after them in their last block becomes 0.
 *
 * optim_divide: the direction, in place of the gradient (binding 0). It is the gradient over the
 * root that its row's and its column's factors (binding 1) estimate. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/functions.glsl"
#define DTI_OPTIM_PART 1
#include "lib/optim_body.h"

DTI_PUSH(DTI_ARGS_FACTORS)
layout(binding = 0) buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_factors { float factors[]; };
layout(binding = 1) readonly buffer buffer_state { uint state[]; };

float mixed(uint i)
{
    if (i >= args.kept)
        return 0.0;
    float w[DTI_GROUP_WORDS] = DTI_GROUP_F32(args.group);
    float c[DTI_OPTIM_CONSTANTS] = float[](0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    dti_m_constants_adafactor(w, float(state[args.t_offset]), c);
    return dti_m_lerp(uintBitsToFloat(state[args.moment_offset + i]), x[i], c[DTI_ADAFACTOR_PART]);
}

float divided(uint i)
{
    uint row = i / args.cols, matrix = row / args.rows, col = matrix * args.cols + i % args.cols;
    float mean = factors[args.mean_offset + matrix];
    float part = factors[args.row_offset + row] / (mean < DTI_ADAFACTOR_EPS ? DTI_ADAFACTOR_EPS : mean);
    float square = factors[args.col_offset + col] * part;
    return x[i] / sqrt(square < DTI_ADAFACTOR_LEAST ? DTI_ADAFACTOR_LEAST : square);
}

void main()
{
    uint i = dti_item();
    if (i < args.n)
        x[i] = SIDE == DTI_SIDE_OPTIM_FACTORS ? mixed(i) : divided(i);
}
