/* Adafactor's direction, in place of the gradient: over the root of what its row's and its column's
 * factors say of its square. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#define DTI_OPTIM_PART 0
#include "lib/optim_body.h"

DTI_PUSH(DTI_ARGS_FACTORS)
layout(binding = 0) buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_factors { float factors[]; };

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    uint row = i / args.cols, matrix = row / args.rows, col = matrix * args.cols + i % args.cols;
    float mean = factors[args.mean_offset + matrix];
    float part = factors[args.row_offset + row] / (mean < DTI_ADAFACTOR_EPS ? DTI_ADAFACTOR_EPS : mean);
    float square = factors[args.col_offset + col] * part;
    x[i] /= sqrt(square < DTI_ADAFACTOR_LEAST ? DTI_ADAFACTOR_LEAST : square);
}
