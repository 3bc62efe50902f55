/* The gradient of TERM's DTI_TERM_SQUARE: da[i] = 2 * (a[i] - b[i]) * seed. args.chunk: where the
 * seed is. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/fours.glsl"

DTI_PUSH(DTI_ARGS_TERM)
layout(binding = 0) readonly buffer buffer_a { float a[]; };
layout(binding = 0) readonly buffer buffer_a4 { vec4 a4[]; };
layout(binding = 1) readonly buffer buffer_b { float b[]; };
layout(binding = 1) readonly buffer buffer_b4 { vec4 b4[]; };
layout(binding = 2) readonly buffer buffer_seed { float seed[]; };
layout(binding = 3) writeonly buffer buffer_y { float y[]; };
layout(binding = 3) writeonly buffer buffer_y4 { vec4 y4[]; };
DTI_WORDS_IN(float, vec4, a)
DTI_WORDS_IN(float, vec4, b)
DTI_WORDS_OUT(float, vec4, y)

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from_a = args.a_offset + i, from_b = args.b_offset + i, last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    vec4 u, v;
    DTI_TAKE(vec4, u, a, from_a, A_IS_ONE)
    DTI_TAKE(vec4, v, b, from_b, B_IS_ONE)
    DTI_EACH_OF_FOUR v[k] = 2.0 * (u[k] - v[k]) * seed[args.chunk];
    DTI_GIVE(y, args.y_offset + i, v)
}
