/* dL/dlogits of the cross-entropy of xent.comp. s = seed times class weights (s_stride 0: one value
 * for all classes); p = softmax(row):
 *   dx[c] = (1 - eps) * s[t] * (p[c] - [c == t]) + eps / classes * (p[c] * sum(s) - s[c])
 * Ignored rows give 0, other targets out of range NaN. A workgroup per row. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"
#include "lib/row.glsl"

DTI_PUSH(DTI_ARGS_XENT)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) readonly buffer buffer_t { int t[]; };
layout(binding = 2) readonly buffer buffer_s { float s[]; };
layout(binding = 2) readonly buffer buffer_s4 { vec4 s4[]; };
layout(binding = 3) writeonly buffer buffer_y { float y[]; };
layout(binding = 3) writeonly buffer buffer_y4 { vec4 y4[]; };
DTI_ROW_READ(x_at, x, x4)

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
        y[at] = value.x;
    else if ((spec3 & DTI_ROW_APART) == 0u)
        y4[at / 4u] = value;
    else
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            y[at + i] = value[i];
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
    uint from = args.x_offset + row * args.classes, to = args.y_offset + row * args.classes;
    if (target == args.ignore_index)
        fill_row(to, 0.0);
    else if (target < 0 || uint(target) >= args.classes)
        fill_row(to, DTI_NAN);
    else
        grad_row(from, to, uint(target));
}
