/* The sum of n pairs: one workgroup. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_TERM)
layout(binding = 0) readonly buffer buffer_a { float a[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

void main()
{
    if (dti_group() != 0u)
        return;
    vec2 pair = vec2(0.0);
    for (uint i = gl_LocalInvocationID.x; i < args.n; i += gl_WorkGroupSize.x) {
        uint at = args.a_offset + 2u * i;
        pair += vec2(a[at], a[at + 1u]);
    }
    pair = dti_group_sum2(pair, args.n);
    if (gl_LocalInvocationID.x == 0u) {
        y[args.y_offset] = pair.x;
        y[args.y_offset + 1u] = pair.y;
    }
}
