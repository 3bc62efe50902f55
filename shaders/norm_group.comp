/* Statistics of groups.
 *
 * norm_stats: stats[g] = (mean, biased variance) of group g of x, or (spec0 = 1, RMS) (0, mean of
 * squares), in binding 1; of a group in chunks their pairs, and zeros for its own. A workgroup per
 * chunk.
 *
 * norm_group: norm.comp where a workgroup has one group, or a chunk of it. It makes the group's
 * statistics (spec2, DTI_NORM_GROUP_WHOLE), or joins those of its chunks. Then it writes them and
 * goes on to y. Of a group of at most HELD fours for each invocation x is read once. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/reduce.glsl"
#include "lib/runs.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(float)
layout(constant_id = 3) const uint spec2 = 0u;
layout(constant_id = 4) const uint spec3 = 0u;

DTI_PUSH(DTI_ARGS_NORM)
DTI_READS(0u, x)
layout(binding = 1) readonly buffer buffer_w { float w[]; };
layout(binding = 1) readonly buffer buffer_w4 { vec4 w4[]; };
layout(binding = 1) writeonly buffer buffer_pairs { float pairs[]; };
DTI_WRITES(2u, writeonly, y)
layout(binding = 3) buffer buffer_stats { float stats[]; };

#define DTI_NORM_X
#define DTI_NORM_PAIRS
#include "lib/stats.glsl"
#include "lib/norm.glsl"

/* Elements that follow each other in memory, and in one channel or one in each. */
uint run_length()
{
    return args.spatial > 1u || args.batch == 1u ? args.spatial : args.cols;
}

/* y of one element, which has channel `channel`. */
float one(uint at, uint channel, vec2 norm)
{
    float factor = norm.y, shift = 0.0;
    if (spec0 != DTI_NORM_PLAIN)
        factor *= w[args.w_offset + channel];
    if (spec0 == DTI_NORM_AFFINE)
        shift = w[args.b_offset + channel];
    return dti_norm_value(x_get(args.x_offset + at), vec3(factor, shift, norm.x));
}

/* Of four, which have one channel, or with spatial = 1 one each. */
vec4 four(vec4 value, uint channel, vec2 norm)
{
    vec4 factor = vec4(norm.y), shift = vec4(0.0);
    bool each = args.spatial == 1u;
    if (spec0 != DTI_NORM_PLAIN) {
        uint place = args.w_offset + channel;
        factor *= each ? w4[place / 4u] : vec4(w[place]);
    }
    if (spec0 == DTI_NORM_AFFINE) {
        uint place = args.b_offset + channel;
        shift = each ? w4[place / 4u] : vec4(w[place]);
    }
    return dti_norm_value4(value, factor, shift, norm.x);
}

void write_stats(uint group, vec2 pair)
{
    stats[args.s_offset + 2u * group] = pair.x;
    stats[args.s_offset + 2u * group + 1u] = pair.y;
}

/* Runs of fours of a group, and the channel of its first element. */
struct group_walk {
    uint base, channel, run, pitch;
};

uint own_channel(group_walk g, dti_runs r)
{
    return g.channel + (args.batch == 1u ? 0u : args.spatial == 1u ? 4u * r.at : r.run);
}

const uint HELD = DTI_LIES_HELD;
const bool HELD_WHOLE = (spec2 & DTI_NORM_GROUP_WHOLE) != 0u && (spec3 & DTI_NORM_FOURS) != 0u &&
                        DTI_ALL_HELD;
#define DTI_EACH_HELD [[unroll]] for (uint i = 0u; i < HELD; i++)

/* A group that is kept in registers; sums as in dti_norm_stats. */
void held(group_walk g, uint group)
{
    uint lane = gl_LocalInvocationID.x, fours = args.cols / 4u;
    dti_runs start = dti_runs_start(0u, g.run / 4u, g.pitch / 4u), r = start;
    vec4 v[HELD];
    vec2 sums = vec2(0.0);
    float mean = 0.0;
    bool rms = (spec2 & DTI_NORM_GROUP_RMS) != 0u;
    DTI_EACH_HELD {
        if (lane + i * gl_WorkGroupSize.x < fours)
            v[i] = x_get4((args.x_offset + g.base) / 4u + r.at);
        dti_runs_next(r);
    }
    for (uint pass = rms ? 1u : 0u; pass < 2u; pass++) {
        vec4 s = vec4(0.0), t = vec4(0.0);
        mean = sums.x;
        DTI_EACH_HELD if (lane + i * gl_WorkGroupSize.x < fours) {
            vec4 d = v[i] - mean;
            s += d;
            t += d * d;
        }
        sums = vec2((s.x + s.y) + (s.z + s.w), (t.x + t.y) + (t.z + t.w));
        sums = dti_norm_mean(dti_group_sum2(sums, args.cols), args.cols);
        barrier(); /* before the next sum */
    }
    vec2 pair = dti_norm_pair_of(mean, sums, rms);
    if (lane == 0u)
        write_stats(group, pair);
    vec2 norm = vec2(pair.x, 1.0 / sqrt(pair.y + args.eps));
    r = start;
    DTI_EACH_HELD {
        if (lane + i * gl_WorkGroupSize.x < fours)
            y_put4((args.y_offset + g.base) / 4u + r.at, four(v[i], own_channel(g, r), norm));
        dti_runs_next(r);
    }
}

void write_pair(uint at, vec2 pair)
{
    pairs[at] = pair.x;
    pairs[at + 1u] = pair.y;
}

/* norm_stats */
void chunk_stats(uint base, dti_norm_chunk c)
{
    vec2 pair = dti_norm_stats(args.x_offset + base, c, spec0 == 1u);
    if (gl_LocalInvocationID.x != 0u)
        return;
    uint own = args.s_offset + 2u * c.group;
    write_pair(args.chunks > 1u ? dti_norm_pair(c) : own, pair);
    if (args.chunks > 1u && c.number == 0u)
        write_pair(own, vec2(0.0));
}

void main()
{
    bool whole = (spec2 & DTI_NORM_GROUP_WHOLE) != 0u;
    dti_norm_chunk c = dti_norm_chunk_of(args.groups, args.cols);
    if (c.number >= max(args.chunks, 1u))
        return;
    uint lane = gl_LocalInvocationID.x;
    uint base = c.group * (args.batch == 1u ? args.spatial : args.cols);
    if (SIDE == DTI_SIDE_NORM_STATS) {
        chunk_stats(base, c);
        return;
    }
    /* runs follow each other in channels, or in samples */
    uint length = run_length();
    uint pitch = args.batch == 1u ? args.channels * args.spatial : length;
    group_walk g = group_walk(base, base / args.spatial % args.channels, length, pitch);
    bool fours = (spec3 & DTI_NORM_FOURS) != 0u;
    if (HELD_WHOLE) {
        held(g, c.group);
        return;
    }
    vec2 pair;
    if (whole)
        pair = dti_norm_stats(args.x_offset + base, c, (spec2 & DTI_NORM_GROUP_RMS) != 0u);
    else
        pair = dti_norm_joined(c.group);
    if (lane == 0u && c.number == 0u)
        write_stats(c.group, pair);
    vec2 norm = vec2(pair.x, 1.0 / sqrt(pair.y + args.eps));
    if (fours) {
        dti_runs r = dti_runs_start(c.first / 4u, length / 4u, pitch / 4u);
        for (uint k = lane; k < c.count / 4u; k += gl_WorkGroupSize.x) {
            vec4 value = x_get4((args.x_offset + base) / 4u + r.at);
            y_put4((args.y_offset + base) / 4u + r.at, four(value, own_channel(g, r), norm));
            dti_runs_next(r);
        }
        return;
    }
    dti_runs r = dti_runs_start(c.first, length, pitch);
    for (uint k = lane; k < c.count; k += gl_WorkGroupSize.x) {
        uint own = args.batch == 1u ? 0u : args.spatial == 1u ? r.at : r.run;
        y_put(args.y_offset + base + r.at, one(base + r.at, g.channel + own, norm));
        dti_runs_next(r);
    }
}
