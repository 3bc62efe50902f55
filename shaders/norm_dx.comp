/* The gradient of layer, group and RMS normalisation by x. A workgroup has a group of N = cols
 * elements, with g = dy * w[channel] (spec1; else g = dy):
 *   dx = rstd (g - mean(g) - xhat mean(g xhat)), without mean(g) where spec0 = 1 (RMS).
 * The statistics are made again. Where all operands permit it an invocation has four elements at a
 * time, and keeps its first ones in registers. Up to HELD fours for each, x and dy are read
 * once. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/reduce.glsl"
#include "lib/runs.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(float)
DTI_SUMS_OF(vec4)
layout(constant_id = 4) const uint spec3 = 0u;

DTI_PUSH(DTI_ARGS_NORM)
DTI_READS(0u, x)
DTI_READS(1u, dy)
layout(binding = 2) readonly buffer buffer_w { float w[]; };
layout(binding = 2) readonly buffer buffer_w4 { vec4 w4[]; };
DTI_WRITES(3u, writeonly, dx)

const uint HELD = DTI_LIES_HELD;
const bool ALL_HELD = DTI_ALL_HELD;
/* This invocation's fours: those that it keeps (i says which), then the others. */
#define DTI_EACH_HELD [[unroll]] for (uint i = 0u; i < HELD; i++)
#define DTI_EACH_MORE(fours)                                                                       \
    if (!ALL_HELD)                                                                                 \
        for (uint k = lane + HELD * gl_WorkGroupSize.x; k < (fours); k += gl_WorkGroupSize.x)

/* Where a group's elements are, and the channel of its first. */
struct group_place {
    uint x_at, dy_at, dx_at, channel;
};

/* What follows from a group's sums: dx = rstd (g - shift - slope (x - mean)). */
struct group_line {
    float mean, rstd, shift, slope;
};

float mean_of(float sum)
{
    float mean = dti_group_sum4(vec4(sum), args.cols).x / float(args.cols);
    barrier(); /* before the next sum */
    return mean;
}

/* sums: of (x - mean) squared, of x - mean, of g, of g (x - mean). The mean is corrected by what it
 * was off, as norm_stats does it. */
group_line line_of(float mean, vec4 sums)
{
    vec4 all = dti_group_sum4(sums, args.cols) / float(args.cols);
    group_line l = group_line(mean, 0.0, all.z, all.w);
    float variance = all.x;
    if (spec0 == 0u) {
        l.mean += all.y;
        variance -= all.y * all.y;
        variance = variance < 0.0 ? 0.0 : variance;
        l.slope -= all.y * all.z;
    }
    l.rstd = dti_is_finite(variance) ? 1.0 / sqrt(variance + args.eps) : DTI_NAN;
    l.slope *= l.rstd * l.rstd;
    l.shift = spec0 == 1u ? 0.0 : l.shift;
    return l;
}

/* ---- by fours */

/* Runs of one channel, counted in fours; with spatial = 1 a channel is an element, and there is one
 * run. */
dti_runs runs_of_fours()
{
    uint length = (args.spatial > 1u ? args.spatial : args.cols) / 4u;
    return dti_runs_start(0u, length, length);
}

vec4 weighted4(group_place p, dti_runs r)
{
    vec4 g = dy_get4(p.dy_at / 4u + r.at);
    if (spec1 == 0u)
        return g;
    uint at = args.w_offset + p.channel;
    return g * (args.spatial > 1u ? vec4(w[at + r.run]) : w4[at / 4u + r.at]);
}

float sum_of(vec4 v)
{
    return (v.x + v.y) + (v.z + v.w);
}

/* Whether this invocation's element k ends a run. */
bool is_run(uint k)
{
    return k / gl_WorkGroupSize.x % DTI_RUN == DTI_RUN - 1u;
}

void by_fours(group_place p)
{
    uint lane = gl_LocalInvocationID.x, fours = args.cols / 4u;
    vec4 xs[HELD], gs[HELD], sum = vec4(0.0), lost = sum, squares = sum, ones = sum, twos = sum;
    dti_sum_float sum_runs = DTI_SUM_NONE(float);
    dti_sum_vec4 runs = DTI_SUM_NONE(vec4); /* of squares, lost, ones and twos */
    dti_runs r = runs_of_fours();
    DTI_EACH_HELD {
        if (lane + i * gl_WorkGroupSize.x < fours) {
            xs[i] = x_get4(p.x_at / 4u + r.at);
            gs[i] = weighted4(p, r);
            sum += xs[i];
        }
        dti_runs_next(r);
    }
    dti_runs more = r;
    if (spec0 == 0u)
        DTI_EACH_MORE(fours) {
            sum += x_get4(p.x_at / 4u + r.at);
            dti_runs_next(r);
            if (is_run(k)) {
                dti_add(sum_runs, sum_of(sum));
                sum = vec4(0.0);
            }
        }
    float mean = spec0 == 1u ? 0.0 : mean_of(dti_sum(sum_runs) + sum_of(sum));
#define DTI_ADD(value, g)                                                                          \
    vec4 d = (value) - mean, own = g;                                                              \
    lost += d;                                                                                     \
    squares += d * d;                                                                              \
    ones += own;                                                                                   \
    twos += own * d;
    DTI_EACH_HELD if (lane + i * gl_WorkGroupSize.x < fours) {
        DTI_ADD(xs[i], gs[i])
    }
    r = more;
    DTI_EACH_MORE(fours) {
        DTI_ADD(x_get4(p.x_at / 4u + r.at), weighted4(p, r))
        dti_runs_next(r);
        if (is_run(k)) {
            dti_add(runs, vec4(sum_of(squares), sum_of(lost), sum_of(ones), sum_of(twos)));
            lost = squares = ones = twos = vec4(0.0);
        }
    }
    vec4 last = vec4(sum_of(squares), sum_of(lost), sum_of(ones), sum_of(twos));
    group_line l = line_of(mean, dti_sum(runs) + last);
    r = runs_of_fours();
    DTI_EACH_HELD {
        if (lane + i * gl_WorkGroupSize.x < fours)
            dx_put4(p.dx_at / 4u + r.at, l.rstd * (gs[i] - l.shift - l.slope * (xs[i] - l.mean)));
        dti_runs_next(r);
    }
    DTI_EACH_MORE(fours) {
        vec4 d = x_get4(p.x_at / 4u + r.at) - l.mean;
        dx_put4(p.dx_at / 4u + r.at, l.rstd * (weighted4(p, r) - l.shift - l.slope * d));
        dti_runs_next(r);
    }
}

/* ---- one by one */

/* g at dy + k; r says how many channels (runs of `spatial`) lie between the group's first and
 * it. */
float weighted(group_place p, dti_runs r)
{
    float g = dy_get(p.dy_at + r.at);
    return spec1 == 0u ? g : g * w[args.w_offset + p.channel + r.run];
}

void one_by_one(group_place p)
{
    uint lane = gl_LocalInvocationID.x;
    float mean = 0.0;
    if (spec0 == 0u) {
        dti_sum_float sum = DTI_SUM_NONE(float);
        for (uint k = lane; k < args.cols; k += gl_WorkGroupSize.x)
            dti_add(sum, x_get(p.x_at + k));
        mean = mean_of(dti_sum(sum));
    }
    dti_sum_vec4 sums = DTI_SUM_NONE(vec4);
    dti_runs start = dti_runs_start(0u, args.spatial, args.spatial), r = start;
    for (uint k = lane; k < args.cols; k += gl_WorkGroupSize.x) {
        float d = x_get(p.x_at + k) - mean, g = weighted(p, r);
        dti_add(sums, vec4(d * d, d, g, g * d));
        dti_runs_next(r);
    }
    group_line l = line_of(mean, dti_sum(sums));
    r = start;
    for (uint k = lane; k < args.cols; k += gl_WorkGroupSize.x) {
        float d = x_get(p.x_at + k) - l.mean;
        dx_put(p.dx_at + k, l.rstd * (weighted(p, r) - l.shift - l.slope * d));
        dti_runs_next(r);
    }
}

void main()
{
    uint group = dti_group(), first = group * args.cols;
    if (group >= args.groups)
        return;
    group_place p = group_place(args.x_offset + first, args.dy_offset + first,
                                args.y_offset + first, first / args.spatial % args.channels);
    if ((spec3 & DTI_NORM_FOURS) != 0u)
        by_fours(p);
    else
        one_by_one(p);
}
