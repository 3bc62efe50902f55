/* Cross-entropy of rows of logits with integer targets.
 *
 * xent: pairs (loss, weight); also the pairs only of the weights, of the accuracy and of
 * log-probabilities (spec0). A workgroup per row. spec1: class weights are bound. spec2: the values
 * of each row that the gradient needs are kept after the pairs.
 *   loss = (1 - eps) * w[t] * -logp[t] + eps / classes * sum_c w[c] * -logp[c],  eps = smoothing
 * An ignored target gives (0, 0); any other target outside [0, classes) gives NaN.
 *
 * xent_grad: dL/dlogits. s = seed times class weights (s_stride 0: one value for all classes);
 * p = softmax(row):
 *   dx[c] = (1 - eps) * s[t] * (p[c] - [c == t]) + eps / classes * (p[c] * sum(s) - s[c])
 * Ignored rows give 0, other targets out of range NaN. A workgroup per row. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"
#include "lib/row.glsl"

DTI_PUSH(DTI_ARGS_XENT)
DTI_READS(0u, x)
layout(binding = 1) readonly buffer buffer_t { int t[]; };
layout(binding = 2) readonly buffer buffer_s { float s[]; };
layout(binding = 2) readonly buffer buffer_s4 { vec4 s4[]; };
DTI_WRITES(3u, writeonly, y) /* of xent 32 bits */
layout(binding = 3) writeonly buffer buffer_kept { int kept[]; };
layout(constant_id = 3) const uint spec2 = 0u;

DTI_ROW_READ(x_at, x)

/* As in softmax.comp: the first units of each invocation stay in registers.
 * For the driver to unroll. */
const uint HELD = spec0 == DTI_XENT_LOSS ? DTI_LIES_HELD : 0u;
#define DTI_EACH_HELD(u)                                                                           \
    [[unroll]] for (uint k = 0u, u = lane; k < HELD; k++, u += gl_WorkGroupSize.x)
#define DTI_EACH_MORE(u)                                                                           \
    if (!ALL_HELD)                                                                                 \
    DTI_EACH_UNIT(u, HELD * gl_WorkGroupSize.x, units)

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
    uint lane = gl_LocalInvocationID.x, units = args.classes / WIDTH;
    uint best = WIDTH * min(lane, units - 1u);
    float high = x_at((from + best) / WIDTH).x;
    DTI_EACH_UNIT(u, 0u, units) {
        vec4 v = x_at(from / WIDTH + u);
        [[unroll]] for (uint i = 0u; i < WIDTH; i++) {
            if (beats(v[i], WIDTH * u + i, high, best)) {
                best = WIDTH * u + i;
                high = v[i];
            }
        }
    }
    dti_shared[lane] = high;
    dti_argmax[lane] = best;
    barrier();
    for (uint k = dti_tree_start(units); k > 0u; k >>= 1) {
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

/* Of unit u: weight * -logp, summed. */
float smooth_of(uint u, vec4 value, float high, float log_sum)
{
    vec4 lost = log_sum - (value - high);
    if (spec1 != 0u)
        [[unroll]] for (uint i = 0u; i < WIDTH; i++)
            lost[i] *= class_weight(WIDTH * u + i);
    return dti_row_sum(lost);
}

float loss_of(uint row, uint from, uint target)
{
    uint lane = gl_LocalInvocationID.x, at = from / WIDTH, units = args.classes / WIDTH;
    float high = DTI_LOWEST;
    vec4 v[DTI_LIES_HELD];
    dti_row_sums sums = DTI_ROW_SUMS;
    DTI_EACH_HELD(u) if (u < units)
        high = dti_row_max(high, v[k] = x_at(at + u));
    DTI_EACH_MORE(u) high = dti_row_max(high, x_at(at + u));
    high = dti_group_max(high, units, 0u);
    DTI_EACH_HELD(u) if (u < units)
        sums.run += dti_row_exp(v[k] - high);
    DTI_EACH_MORE(u) dti_row_add(sums, dti_row_exp(x_at(at + u) - high));
    float sum = dti_group_sum(dti_row_total(sums), units, 1u);
    keep(row, high, sum);
    float log_sum = dti_m_log(sum);
    float loss = class_weight(target) * (log_sum - (x_get(from + target) - high));
    if (args.smoothing == 0.0)
        return loss;
    dti_sum_float smooth_sums = DTI_SUM_NONE(float);
    DTI_EACH_UNIT(u, 0u, units) dti_add(smooth_sums, smooth_of(u, x_at(at + u), high, log_sum));
    float smooth_sum = dti_group_sum(dti_sum(smooth_sums), units, 0u);
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
        return vec2(-weight * x_get(from + uint(target)), weight);
    return vec2(loss_of(row, from, uint(target)), weight);
}

/* ---- xent_grad */

float seed(uint c)
{
    return s[args.s_offset + c * args.s_stride];
}

/* Of a unit's classes. */
vec4 seeds_of(uint unit)
{
    if ((spec3 & DTI_ROW_SEED_FOURS) != 0u)
        return s4[args.s_offset / 4u + unit];
    vec4 seeds = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < WIDTH; i++)
        seeds[i] = seed(WIDTH * unit + i);
    return seeds;
}

/* At element `at`, a unit's first. */
void write(uint at, vec4 value)
{
    if (!FOURS)
        y_put(at, value.x);
    else if ((spec3 & DTI_ROW_APART) == 0u)
        y_put4(at / 4u, value);
    else
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            y_put(at + i, value[i]);
}

void fill_row(uint to, float value)
{
    DTI_EACH_UNIT(u, 0u, args.classes / WIDTH) write(to + WIDTH * u, vec4(value));
}

float seed_sum()
{
    if (args.s_stride == 0u)
        return seed(0u) * float(args.classes);
    uint units = args.classes / WIDTH;
    dti_sum_float sums = DTI_SUM_NONE(float);
    DTI_EACH_UNIT(u, 0u, units) dti_add(sums, dti_row_sum(seeds_of(u)));
    return dti_group_sum(dti_sum(sums), units, 0u);
}

void grad_row(uint from, uint to, uint target)
{
    uint at = from / WIDTH, units = args.classes / WIDTH;
    float high = DTI_LOWEST;
    dti_row_sums sums = DTI_ROW_SUMS;
    DTI_EACH_UNIT(u, 0u, units) high = dti_row_max(high, x_at(at + u));
    high = dti_group_max(high, units, 0u);
    DTI_EACH_UNIT(u, 0u, units) dti_row_add(sums, dti_row_exp(x_at(at + u) - high));
    float sum = dti_group_sum(dti_row_total(sums), units, 1u);
    float seeds = args.smoothing == 0.0 ? 0.0 : seed_sum();
    float own = (1.0 - args.smoothing) * seed(target);
    float smooth_scale = args.smoothing / float(args.classes), share = 1.0 / sum;
    DTI_EACH_UNIT(u, 0u, units) {
        vec4 p = dti_row_exp(x_at(at + u) - high) * share;
        precise vec4 value, even; /* the bits of xent_dx */
        [[unroll]] for (uint i = 0u; i < WIDTH; i++)
            value[i] = own * (p[i] - (WIDTH * u + i == target ? 1.0 : 0.0));
        if (args.smoothing != 0.0) {
            even = smooth_scale * (p * seeds - seeds_of(u));
            value += even;
        }
        write(to + WIDTH * u, value);
    }
}

void main()
{
    uint row = dti_group();
    if (row >= args.rows)
        return;
    int target = t[args.t_offset + row];
    if (SIDE == DTI_SIDE_XENT_GRAD) {
        uint from = args.x_offset + row * args.classes, to = args.y_offset + row * args.classes;
        if (target == args.ignore_index)
            fill_row(to, 0.0);
        else if (target < 0 || uint(target) >= args.classes)
            fill_row(to, DTI_NAN);
        else
            grad_row(from, to, uint(target));
        return;
    }
    vec2 pair = pair_of(row, target);
    if (gl_LocalInvocationID.x == 0u) {
        y[args.y_offset + 2u * row] = pair.x;
        y[args.y_offset + 2u * row + 1u] = pair.y;
        if (spec2 != 0u)
            kept[args.y_offset + 2u * args.rows + DTI_XENT_KEPT * row + 2u] = target;
    }
}
