/* Floats in buffers. A word has one of 32 bits or two of 16, the first of them lowest. The constant
 * TYPES has the width of each binding (DTI_STORED_*, args.h). No device needs a feature for it. A
 * kernel computes on 32 bits, and rounds once, to nearest even, when it writes. One that names a
 * binding in DTI_READS or DTI_WRITES takes all of these types there. */
layout(constant_id = 6) const uint TYPES = 0u;

/* Conversions of bits are by integers, as in base/half.c. A device's own may round as they like,
 * and flush denormals. */

/* bits >> shift, to nearest even; 1 <= shift <= 31. */
uint dti_shift_round(uint bits, uint shift)
{
    return (bits + (1u << (shift - 1u)) - 1u + (bits >> shift & 1u)) >> shift;
}

uint dti_bf16_of(uint bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : dti_shift_round(bits, 16u);
}

uint dti_f16_of(uint bits)
{
    uint sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    bool small = size < 0x38800000u; /* 2^-14: the smallest normal half */
    uint part = small ? (size & 0x7fffffu) | 0x800000u : size - 0x38000000u;
    uint whole = dti_shift_round(part, small ? min(126u - (size >> 23), 31u) : 13u);
    whole = sign | (size >= 0x47800000u ? 0x7c00u : whole);
    return size > 0x7f800000u ? 0x7e00u : whole;
}

uint dti_bits_of_f16(uint bits)
{
    uint sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    uint normal = (size << 13) + 0x38000000u;
    uint small = floatBitsToUint(float(size) * 5.9604644775390625e-8); /* 2^-24: a denormal half */
    uint large = 0x7f800000u | (size & 0x3ffu) << 13;
    return sign | (size >= 0x7c00u ? large : size >= 0x400u ? normal : small);
}

/* Which of the two in a word element `at` is. */
uint dti_half_in(uint word, uint at)
{
    return word >> (at & 1u) * 16u & 0xffffu;
}

/* All but it. */
uint dti_half_beside(uint at)
{
    return (at & 1u) != 0u ? 0xffffu : 0xffff0000u;
}

#define DTI_STORED(number, name)                                                                   \
    const bool name##_HALF = (TYPES >> 2u * number & 3u) != 0u;                                    \
    const bool name##_BF16 = (TYPES >> 2u * number & 3u) == DTI_STORED_BF16;

/* Binding `number`, readonly. x_get(at): element `at`; x_get4(i): those from 4 i on. */
#define DTI_READS(number, name)                                                                    \
    DTI_STORED(number, name)                                                                       \
    layout(binding = number) readonly buffer buffer_##name { float name[]; };                      \
    layout(binding = number) readonly buffer buffer_##name##4 { vec4 name##4[]; };                 \
    layout(binding = number) readonly buffer buffer_##name##_words { uint name##_words[]; };       \
    layout(binding = number) readonly buffer buffer_##name##_words2 { uvec2 name##_words2[]; };    \
    vec2 name##_pair(uint word)                                                                    \
    {                                                                                              \
        vec2 pair;                                                                                 \
        if (name##_BF16)                                                                           \
            pair = vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));         \
        else                                                                                       \
            pair = unpackHalf2x16(word);                                                           \
        return pair;                                                                               \
    }                                                                                              \
    float name##_get(uint at)                                                                      \
    {                                                                                              \
        float value;                                                                               \
        if (name##_HALF) {                                                                         \
            vec2 pair = name##_pair(name##_words[at >> 1]);                                        \
            value = (at & 1u) != 0u ? pair.y : pair.x;                                             \
        } else {                                                                                   \
            value = name[at];                                                                      \
        }                                                                                          \
        return value;                                                                              \
    }                                                                                              \
    vec4 name##_get4(uint i)                                                                       \
    {                                                                                              \
        vec4 value;                                                                                \
        if (name##_HALF) {                                                                         \
            uvec2 words = name##_words2[i];                                                        \
            value = vec4(name##_pair(words.x), name##_pair(words.y));                              \
        } else {                                                                                   \
            value = name##4[i];                                                                    \
        }                                                                                          \
        return value;                                                                              \
    }

#define DTI_ANY_WAY /* neither readonly nor writeonly */

/* Binding `number`, of which `how` is writeonly or DTI_ANY_WAY. y_put(at, value), y_put4(i, value). The
 * other half of a word may be another invocation's, also in place. A half by itself is written by
 * two atomic operations that leave the other as it is. */
#define DTI_WRITES(number, how, name)                                                              \
    DTI_STORED(number, name)                                                                       \
    layout(binding = number) how buffer buffer_##name { float name[]; };                           \
    layout(binding = number) how buffer buffer_##name##4 { vec4 name##4[]; };                      \
    layout(binding = number) buffer buffer_##name##_words { uint name##_words[]; };                \
    layout(binding = number) how buffer buffer_##name##_words2 { uvec2 name##_words2[]; };         \
    uint name##_rounded(float value)                                                               \
    {                                                                                              \
        uint bits = floatBitsToUint(value);                                                        \
        if (name##_BF16)                                                                           \
            bits = dti_bf16_of(bits);                                                              \
        else                                                                                       \
            bits = dti_f16_of(bits);                                                               \
        return bits;                                                                               \
    }                                                                                              \
    void name##_put(uint at, float value)                                                          \
    {                                                                                              \
        if (name##_HALF) {                                                                         \
            uint bits = name##_rounded(value);                                                     \
            atomicAnd(name##_words[at >> 1], dti_half_beside(at));                                 \
            atomicOr(name##_words[at >> 1], bits << (at & 1u) * 16u);                              \
        } else {                                                                                   \
            name[at] = value;                                                                      \
        }                                                                                          \
    }                                                                                              \
    void name##_put4(uint i, vec4 value)                                                           \
    {                                                                                              \
        if (name##_HALF) {                                                                         \
            uvec4 bits = uvec4(name##_rounded(value.x), name##_rounded(value.y),                   \
                               name##_rounded(value.z), name##_rounded(value.w));                  \
            name##_words2[i] = bits.xz | bits.yw << 16;                                            \
        } else {                                                                                   \
            name##4[i] = value;                                                                    \
        }                                                                                          \
    }
