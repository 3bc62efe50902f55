/* dL/dlogits of the cross-entropy of xent.comp. s = seed times class weights (s_stride 0: one value
 * for all classes); p = softmax(row):
 *   dx[c] = (1 - eps) * s[t] * (p[c] - [c == t]) + eps / classes * (p[c] * sum(s) - s[c])
 * Ignored rows give 0, other targets out of range NaN. A workgroup per row. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"

DTI_PUSH(DTI_ARGS_XENT)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_t { int t[]; };
layout(binding = 2) readonly buffer buffer_s { float s[]; };
layout(binding = 3) writeonly buffer buffer_y { float y[]; };

float seed(uint c)
{
    return s[args.s_offset + c * args.s_stride];
}

void fill_row(uint to, float value)
{
    for (uint c = gl_LocalInvocationID.x; c < args.classes; c += gl_WorkGroupSize.x)
        y[to + c] = value;
}

float seed_sum()
{
    if (args.s_stride == 0u)
        return seed(0u) * float(args.classes);
    float sum = 0.0;
    for (uint c = gl_LocalInvocationID.x; c < args.classes; c += gl_WorkGroupSize.x)
        sum += seed(c);
    return dti_group_sum(sum, args.classes, 0u);
}

void grad_row(uint from, uint to, uint target)
{
    uint lane = gl_LocalInvocationID.x;
    float high = DTI_LOWEST, sum = 0.0;
    for (uint c = lane; c < args.classes; c += gl_WorkGroupSize.x)
        high = dti_max(high, x[from + c]);
    high = dti_group_max(high, args.classes, 0u);
    for (uint c = lane; c < args.classes; c += gl_WorkGroupSize.x)
        sum += dti_m_exp(x[from + c] - high);
    sum = dti_group_sum(sum, args.classes, 1u);
    float seeds = args.smoothing == 0.0 ? 0.0 : seed_sum();
    float own = (1.0 - args.smoothing) * seed(target);
    float smooth_scale = args.smoothing / float(args.classes);
    for (uint c = lane; c < args.classes; c += gl_WorkGroupSize.x) {
        float p = dti_m_exp(x[from + c] - high) / sum;
        float value = own * (p - (c == target ? 1.0 : 0.0));
        if (args.smoothing != 0.0)
            value += smooth_scale * (p * seeds - seed(c));
        y[to + c] = value;
    }
}

void main()
{
    uint row = dti_group();
    if (row >= args.rows)
        return;
    int target = t[args.t_offset + row];
    uint from = args.x_offset + row * args.classes, to = args.y_offset + row * args.classes;
    if (target == args.ignore_index)
        fill_row(to, 0.0);
    else if (target < 0 || uint(target) >= args.classes)
        fill_row(to, DTI_NAN);
    else
        grad_row(from, to, uint(target));
}
