/* Up to three runs of words, or rows of words, one after the other. They are vectors that a kernel
 * with 4 bindings shall find in one of them. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_JOIN)
layout(binding = 0) readonly buffer buffer_a { uint a[]; };
layout(binding = 1) readonly buffer buffer_b { uint b[]; };
layout(binding = 2) readonly buffer buffer_c { uint c[]; };
layout(binding = 3) writeonly buffer buffer_y { uint y[]; };

uint place(uint source, uint i)
{
    uint row = i / args.cols[source];
    return args.offset[source] + row * args.stride[source] + i - row * args.cols[source];
}

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    uint word = 0u;
    if (i < args.a_end)
        word = a[place(0u, i)];
    else if (i < args.b_end)
        word = b[place(1u, i - args.a_end)];
    else
        word = c[place(2u, i - args.b_end)];
    y[args.y_offset + i] = word;
}
