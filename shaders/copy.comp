/* y[i] = x[i] as 32-bit words, converted, or filled, over strided views. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"

DTI_PUSH(DTI_ARGS_MAP1)
layout(binding = 0) readonly buffer buffer_x { uint x[]; };
layout(binding = 1) writeonly buffer buffer_y { uint y[]; };

/* Truncates toward zero and saturates; NaN gives 0. */
uint to_i32(float v)
{
    if (dti_is_nan(v))
        return 0u;
    if (v >= 2147483648.0)
        return 0x7fffffffu;
    return v < -2147483648.0 ? 0x80000000u : uint(int(v));
}

uint convert(uint word)
{
    switch (spec0) {
    case DTI_COPY_I32_F32: return floatBitsToUint(float(int(word)));
    case DTI_COPY_F32_I32: return to_i32(uintBitsToFloat(word));
    case DTI_COPY_FILL_F32: return floatBitsToUint(args.p0);
    case DTI_COPY_FILL_I32: return to_i32(roundEven(args.p0));
    case DTI_COPY_IOTA_F32: return floatBitsToUint(float(word));
    }
    return word;
}

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    uint word = i; /* iota's value */
    if (spec0 <= DTI_COPY_F32_I32)
        word = x[args.x_offset + dti_walk(i, args.dim, args.x_stride)];
    y[args.y_offset + dti_walk(i, args.dim, args.y_stride)] = convert(word);
}
