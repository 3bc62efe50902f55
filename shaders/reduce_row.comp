/* y[i] = scale * reduce_j x[i, j]: one workgroup per i; its invocations stride over j, then a
 * tree. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/fold.glsl"

DTI_PUSH(DTI_ARGS_REDUCE)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

#include "lib/reduced.glsl"

shared float parts[256];

void main()
{
    uint i = dti_group();
    if (i >= args.n)
        return;
    uint lane = gl_LocalInvocationID.x;
    parts[lane] = dti_reduced(i, lane, gl_WorkGroupSize.x);
    barrier();
    for (uint s = gl_WorkGroupSize.x >> 1; s > 0u; s >>= 1) {
        if (lane < s)
            parts[lane] = dti_fold(parts[lane], parts[lane + s]);
        barrier();
    }
    if (lane == 0u)
        y[args.y_offset + i] = parts[0] * args.scale;
}
