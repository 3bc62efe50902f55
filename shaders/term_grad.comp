/* The gradient of TERM's DTI_TERM_SQUARE: da[i] = 2 * (a[i] - b[i]) * seed. args.chunk: where the
 * seed is. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_TERM)
layout(binding = 0) readonly buffer buffer_a { float a[]; };
layout(binding = 1) readonly buffer buffer_b { float b[]; };
layout(binding = 2) readonly buffer buffer_seed { float seed[]; };
layout(binding = 3) writeonly buffer buffer_y { float y[]; };

void main()
{
    uint i = dti_item();
    if (i < args.n)
        y[args.y_offset + i] =
            2.0 * (a[args.a_offset + i] - b[args.b_offset + i]) * seed[args.chunk];
}
