/* The status word of the first fault becomes min(itself, code) if a value is NaN or infinite. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_SCAN)
layout(binding = 0) readonly buffer buffer_x { uint x[]; };
layout(binding = 1) buffer buffer_status { uint status[]; };

void main()
{
    uint i = dti_item();
    if (i < args.n && !dti_is_finite(uintBitsToFloat(x[args.x_offset + i])))
        atomicMin(status[DTI_STATUS_FAULT], args.code);
}
