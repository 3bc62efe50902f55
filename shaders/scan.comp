/* The status word of the first fault becomes min(itself, code) if a value is NaN or infinite. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_SCAN)
layout(binding = 0) readonly buffer buffer_x { uint x[]; };
layout(binding = 1) buffer buffer_status { uint status[]; };

DTI_STORED(0u, x)

/* Of element `at`, as a float of 32. */
uint bits_of(uint at)
{
    uint bits;
    if (x_BF16)
        bits = dti_half_in(x[at >> 1], at) << 16;
    else if (x_HALF)
        bits = dti_bits_of_f16(dti_half_in(x[at >> 1], at));
    else
        bits = x[at];
    return bits;
}

void main()
{
    uint i = dti_item();
    if (i < args.n && !dti_is_finite(uintBitsToFloat(bits_of(args.x_offset + i))))
        atomicMin(status[DTI_STATUS_FAULT], args.code);
}
