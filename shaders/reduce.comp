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
    y[args.y_offset + i] = dti_reduced(i, 0u, 1u) * args.scale;
}
