/* Cross-entropy of rows of logits with integer targets, as pairs (loss, weight); also the pairs of
 * the weights alone, of the accuracy and of log-probabilities (spec0). A workgroup per row.
 * spec1: class weights are bound. spec2: what the gradient needs of each row is kept behind the
 * pairs.
 *   loss = (1 - eps) * w[t] * -logp[t] + eps / classes * sum_c w[c] * -logp[c],  eps = smoothing
 * An ignored target gives (0, 0); any other target outside [0, classes) gives NaN. */
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
layout(binding = 3) writeonly buffer buffer_kept { int kept[]; };
layout(constant_id = 3) const uint spec2 = 0u;

shared uint dti_argmax[256];

float class_weight(uint c)
{
    return spec1 != 0u ? s[args.s_offset + c * args.s_stride] : 1.0;
}

/* NaN counts as the largest; among equals the first wins. */
bool beats(float a, uint at_a, float b, uint at_b)
{
    bool nan_a = dti_is_nan(a), nan_b = dti_is_nan(b);
    if (nan_a || nan_b)
        return nan_a && (!nan_b || at_a < at_b);
    return a > b || (a == b && at_a < at_b);
}

uint argmax(uint from)
{
    uint lane = gl_LocalInvocationID.x, best = min(lane, args.classes - 1u);
    float high = x[from + best];
    for (uint c = lane + gl_WorkGroupSize.x; c < args.classes; c += gl_WorkGroupSize.x) {
        if (beats(x[from + c], c, high, best)) {
            best = c;
            high = x[from + c];
        }
    }
    dti_shared[lane] = high;
    dti_argmax[lane] = best;
    barrier();
    for (uint k = dti_tree_start(args.classes); k > 0u; k >>= 1) {
        uint other = lane + k;
        if (lane < k &&
            beats(dti_shared[other], dti_argmax[other], dti_shared[lane], dti_argmax[lane])) {
            dti_shared[lane] = dti_shared[other];
            dti_argmax[lane] = dti_argmax[other];
        }
        barrier();
    }
    return dti_argmax[0];
}

void keep(uint row, float high, float sum)
{
    if (spec2 != 0u && gl_LocalInvocationID.x == 0u) {
        uint at = args.y_offset + 2u * args.rows + DTI_XENT_KEPT * row;
        y[at] = high;
        y[at + 1u] = sum;
    }
}

float loss_of(uint row, uint from, uint target)
{
    uint lane = gl_LocalInvocationID.x;
    float high = DTI_LOWEST, sum = 0.0, smooth_sum = 0.0;
    for (uint c = lane; c < args.classes; c += gl_WorkGroupSize.x)
        high = dti_max(high, x[from + c]);
    high = dti_group_max(high, args.classes, 0u);
    for (uint c = lane; c < args.classes; c += gl_WorkGroupSize.x)
        sum += dti_m_exp(x[from + c] - high);
    sum = dti_group_sum(sum, args.classes, 1u);
    keep(row, high, sum);
    float log_sum = dti_m_log(sum);
    float loss = class_weight(target) * (log_sum - (x[from + target] - high));
    if (args.smoothing == 0.0)
        return loss;
    for (uint c = lane; c < args.classes; c += gl_WorkGroupSize.x)
        smooth_sum += class_weight(c) * (log_sum - (x[from + c] - high));
    smooth_sum = dti_group_sum(smooth_sum, args.classes, 0u);
    return (1.0 - args.smoothing) * loss + args.smoothing / float(args.classes) * smooth_sum;
}

vec2 pair_of(uint row, int target)
{
    uint from = args.x_offset + row * args.classes;
    if (target == args.ignore_index)
        return vec2(0.0);
    if (target < 0 || uint(target) >= args.classes)
        return vec2(DTI_NAN);
    float weight = class_weight(uint(target));
    if (spec0 == DTI_XENT_WEIGHT)
        return vec2(0.0, weight);
    if (spec0 == DTI_XENT_ACCURACY)
        return vec2(argmax(from) == uint(target) ? 1.0 : 0.0, 1.0);
    if (spec0 == DTI_XENT_NLL)
        return vec2(-weight * x[from + uint(target)], weight);
    return vec2(loss_of(row, from, uint(target)), weight);
}

void main()
{
    uint row = dti_group();
    if (row >= args.rows)
        return;
    int target = t[args.t_offset + row];
    vec2 pair = pair_of(row, target);
    if (gl_LocalInvocationID.x == 0u) {
        y[args.y_offset + 2u * row] = pair.x;
        y[args.y_offset + 2u * row + 1u] = pair.y;
        if (spec2 != 0u)
            kept[args.y_offset + 2u * args.rows + DTI_XENT_KEPT * row + 2u] = target;
    }
}
