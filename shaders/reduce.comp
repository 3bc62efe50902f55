/* y[i] = scale * reduce_j x[i, j]: one invocation per i, serial over j. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/fold.glsl"

DTI_PUSH(DTI_ARGS_REDUCE)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

#include "lib/reduced.glsl"

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    uint base = dti_reduced_base(i);
    float value = dti_fold_identity();
    if (dti_reduced_is_line()) {
        uint stride = dti_reduced_stride();
        for (uint j = 0u; j < args.r; j++)
            value = dti_fold(value, x[base + j * stride]);
    } else {
        for (uint j = 0u; j < args.r; j++)
            value = dti_fold(value, x[base + dti_reduced_offset(j)]);
    }
    y[args.y_offset + i] = value * args.scale;
}
