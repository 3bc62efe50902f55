/* y[i] = x[i] as 32-bit words, converted, or filled, over strided views. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/fours.glsl"

DTI_PUSH(DTI_ARGS_MAP1)
layout(binding = 0) readonly buffer buffer_x { uint x[]; };
layout(binding = 0) readonly buffer buffer_x4 { uvec4 x4[]; };
layout(binding = 1) writeonly buffer buffer_y { uint y[]; };
layout(binding = 1) writeonly buffer buffer_y4 { uvec4 y4[]; };

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
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from = args.x_offset + dti_walk_far(i, args.dim, args.x_stride, args.far);
    uint to = args.y_offset + dti_walk_far(i, args.dim, args.y_stride, args.far), last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    uvec4 word = i + uvec4(0u, 1u, 2u, 3u); /* iota's values */
    if (spec0 <= DTI_COPY_F32_I32) {
        DTI_TAKE(uvec4, word, x, x4, from, A_IS_ONE)
    }
    DTI_EACH_OF_FOUR word[k] = convert(word[k]);
    DTI_GIVE(y, y4, to, word)
}
