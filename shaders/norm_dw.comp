/* dw[c] = sum of dy * xhat and db[c] = sum of dy over the elements of channel c: a run of `spatial`
 * in each sample. A workgroup per chunk of a channel, or (spec2 = 1, spatial = 1) of 4 channels. dw
 * lies from y_offset on, db from b_offset; of channels in chunks the pairs are written. So are
 * zeros for the 5 values of each channel from the start on, which norm_finish makes. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"
#include "lib/reduce.glsl"
#include "lib/runs.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(mat2x4)
layout(constant_id = 3) const uint spec2 = 0u;
layout(constant_id = 4) const uint spec3 = 0u;

DTI_PUSH(DTI_ARGS_NORM)
DTI_READS(0u, x)
layout(binding = 1) readonly buffer buffer_stats { float stats[]; };
DTI_READS(2u, dy)
layout(binding = 3) writeonly buffer buffer_dw { float dw[]; };

#include "lib/stats.glsl"

/* (mean, 1 / standard deviation) */
vec2 norm_of(uint group)
{
    uint pair = args.s_offset + 2u * group;
    return vec2(stats[pair], 1.0 / sqrt(stats[pair + 1u] + args.eps));
}

/* Of a run in each sample. */
vec2 runs_of(dti_norm_chunk c)
{
    uint pitch = args.channels * args.spatial, first = c.group * args.spatial;
    /* The group of the run in sample s is group + s * groups_on. */
    uint group = args.batch == 1u ? c.group : first / args.cols;
    uint groups_on = args.batch == 1u ? 0u : pitch / args.cols;
    uint x_at = args.x_offset + first, dy_at = args.dy_offset + first;
    vec4 s = vec4(0.0), t = vec4(0.0);
    if ((spec3 & DTI_NORM_FOURS) != 0u) {
        dti_runs r = dti_runs_start(c.first / 4u, args.spatial / 4u, pitch / 4u);
        for (uint k = gl_LocalInvocationID.x; k < c.count / 4u; k += gl_WorkGroupSize.x) {
            vec2 norm = norm_of(group + r.run * groups_on);
            vec4 g = dy_get4(dy_at / 4u + r.at);
            s += g * ((x_get4(x_at / 4u + r.at) - norm.x) * norm.y);
            t += g;
            dti_runs_next(r);
        }
        return vec2((s.x + s.y) + (s.z + s.w), (t.x + t.y) + (t.z + t.w));
    }
    dti_runs r = dti_runs_start(c.first, args.spatial, pitch);
    for (uint k = gl_LocalInvocationID.x; k < c.count; k += gl_WorkGroupSize.x) {
        vec2 norm = norm_of(group + r.run * groups_on);
        float g = dy_get(dy_at + r.at);
        s = vec4(s.x + g * ((x_get(x_at + r.at) - norm.x) * norm.y), s.yzw).yzwx;
        t = vec4(t.x + g, t.yzw).yzwx;
        dti_runs_next(r);
    }
    return vec2((s.x + s.y) + (s.z + s.w), (t.x + t.y) + (t.z + t.w));
}

/* Of 4 channels beside each other. */
void columns_of(dti_norm_chunk c, out vec4 s, out vec4 t)
{
    uint channel = 4u * c.group;
    bool batch = args.batch == 1u;
    vec4 mean, rstd;
    dti_sum_mat2x4 sums = DTI_SUM_NONE(mat2x4);
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec2 norm = norm_of(batch ? channel + i : 0u);
        mean[i] = norm.x;
        rstd[i] = norm.y;
    }
    for (uint k = gl_LocalInvocationID.x; k < c.count; k += gl_WorkGroupSize.x) {
        uint e = (c.first + k) * args.channels + channel;
        if (!batch) {
            vec2 norm = norm_of(e / args.cols);
            mean = vec4(norm.x);
            rstd = vec4(norm.y);
        }
        vec4 g = dy_get4((args.dy_offset + e) / 4u);
        dti_add(sums, mat2x4(g * ((x_get4((args.x_offset + e) / 4u) - mean) * rstd), g));
    }
    mat2x4 all = dti_sum(sums);
    s = dti_group_sum4(all[0], c.count);
    barrier();
    t = dti_group_sum4(all[1], c.count);
}

void write(dti_norm_chunk c, vec2 sums)
{
    if (args.chunks <= 1u) {
        dw[args.y_offset + c.group] = sums.x;
        dw[args.b_offset + c.group] = sums.y;
        return;
    }
    dw[dti_norm_pair(c)] = sums.x;
    dw[dti_norm_pair(c) + 1u] = sums.y;
    for (uint i = 0u; i < 5u && c.number == 0u; i++)
        dw[i * args.channels + c.group] = 0.0;
}

void main()
{
    uint count = args.n / args.channels;
    dti_norm_chunk c = dti_norm_chunk_of(spec2 == 1u ? args.channels / 4u : args.channels, count);
    if (c.number >= max(args.chunks, 1u))
        return;
    if (spec2 == 1u) {
        vec4 s, t;
        columns_of(c, s, t);
        c.group = 4u * c.group;
        for (uint i = 0u; i < 4u && gl_LocalInvocationID.x == 0u; i++, c.group++)
            write(c, vec2(s[i], t[i]));
        return;
    }
    vec2 sums = dti_group_sum2(runs_of(c), c.count);
    if (gl_LocalInvocationID.x == 0u)
        write(c, sums);
}
