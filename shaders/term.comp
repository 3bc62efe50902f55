/* A loss term in pairs (sum, weight): a workgroup sums one chunk of a, of (a - b)^2 or of a * b
 * (spec0). The weight is the count, or the sum of b. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_TERM)
layout(binding = 0) readonly buffer buffer_a { float a[]; };
layout(binding = 1) readonly buffer buffer_b { float b[]; };
layout(binding = 2) writeonly buffer buffer_y { float y[]; };

float value(uint i)
{
    float v = a[args.a_offset + i];
    if (spec0 == DTI_TERM_SUM)
        return v;
    if (spec0 == DTI_TERM_WEIGHTED)
        return v * b[args.b_offset + i];
    v -= b[args.b_offset + i];
    return v * v;
}

void main()
{
    uint group = dti_group();
    uint begin = group * args.chunk;
    if (begin >= args.n || begin / args.chunk != group)
        return;
    uint count = min(args.chunk, args.n - begin);
    bool weighted = spec0 >= DTI_TERM_WEIGHTED;
    vec2 pair = vec2(0.0), run = pair; /* of the sum and the weight; runs are of 16 */
    for (uint i = gl_LocalInvocationID.x; i < count; i += gl_WorkGroupSize.x) {
        if (spec0 != DTI_TERM_WEIGHT)
            run.x += value(begin + i);
        if (weighted)
            run.y += b[args.b_offset + begin + i];
        if (i / gl_WorkGroupSize.x % 16u == 15u) {
            pair += run;
            run = vec2(0.0);
        }
    }
    float sum = pair.x + run.x, weight = pair.y + run.y;
    if (spec0 != DTI_TERM_WEIGHT)
        sum = dti_group_sum(sum, count, 0u);
    weight = weighted ? dti_group_sum(weight, count, 1u) : float(count);
    if (gl_LocalInvocationID.x == 0u) {
        y[args.y_offset + 2u * group] = sum;
        y[args.y_offset + 2u * group + 1u] = weight;
    }
}
