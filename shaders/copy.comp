/* y[i] = x[i] as words or halves of words, converted, or filled, over strided views. Of floats bits
 * alone are looked at, so that denormals stay what they are. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/fours.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_MAP1)
layout(binding = 0) readonly buffer buffer_x { uint x[]; };
layout(binding = 0) readonly buffer buffer_x2 { uvec2 x2[]; };
layout(binding = 0) readonly buffer buffer_x4 { uvec4 x4[]; };
layout(binding = 1) writeonly buffer buffer_y { uint y[]; };
layout(binding = 1) buffer buffer_y_half { uint y_half[]; };
layout(binding = 1) writeonly buffer buffer_y2 { uvec2 y2[]; };
layout(binding = 1) writeonly buffer buffer_y4 { uvec4 y4[]; };
DTI_STORED(0u, x)
DTI_STORED(1u, y)
/* Not what is moved as it is: DTI_COPY_WORD, which is 0, of one type. */
const bool CHANGES = (spec0 | ((TYPES & 3u) - (TYPES >> 2 & 3u))) != 0u;

/* What is computed with: bits of 32. */
uint widened(uint bits)
{
    if (x_BF16 && CHANGES)
        bits <<= 16;
    else if (x_HALF && CHANGES)
        bits = dti_bits_of_f16(bits);
    return bits;
}

uint narrowed(uint bits)
{
    if (y_BF16 && CHANGES)
        bits = dti_bf16_of(bits);
    else if (y_HALF && CHANGES)
        bits = dti_f16_of(bits);
    return bits;
}

uint x_get(uint at)
{
    uint word;
    if (x_HALF)
        word = widened(dti_half_in(x[at >> 1], at));
    else
        word = x[at];
    return word;
}

uvec4 x_get4(uint i)
{
    uvec4 words;
    if (x_HALF) {
        uvec2 two = x2[i];
        words = uvec4(two.x & 0xffffu, two.x >> 16, two.y & 0xffffu, two.y >> 16);
        DTI_EACH_OF_FOUR words[k] = widened(words[k]);
    } else {
        words = x4[i];
    }
    return words;
}

void y_put(uint at, uint word)
{
    if (y_HALF) {
        uint bits = narrowed(word) << (at & 1u) * 16u;
        atomicAnd(y_half[at >> 1], dti_half_beside(at));
        atomicOr(y_half[at >> 1], bits);
    } else {
        y[at] = word;
    }
}

void y_put4(uint i, uvec4 words)
{
    if (y_HALF) {
        DTI_EACH_OF_FOUR words[k] = narrowed(words[k]);
        y2[i] = words.xz | words.yw << 16;
    } else {
        y4[i] = words;
    }
}

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
        DTI_TAKE(uvec4, word, x, from, A_IS_ONE)
    }
    DTI_EACH_OF_FOUR word[k] = convert(word[k]);
    DTI_GIVE(y, to, word)
}
