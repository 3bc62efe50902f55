/* The sum of n pairs: one workgroup. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(vec2)

DTI_PUSH(DTI_ARGS_TERM)
layout(binding = 0) readonly buffer buffer_a { float a[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

void main()
{
    if (dti_group() != 0u)
        return;
    dti_sum_vec2 sums = DTI_SUM_NONE(vec2);
    for (uint i = gl_LocalInvocationID.x; i < args.n; i += gl_WorkGroupSize.x) {
        uint at = args.a_offset + 2u * i;
        dti_add(sums, vec2(a[at], a[at + 1u]));
    }
    vec2 pair = dti_group_sum2(dti_sum(sums), args.n);
    if (gl_LocalInvocationID.x == 0u) {
        y[args.y_offset] = pair.x;
        y[args.y_offset + 1u] = pair.y;
    }
}
