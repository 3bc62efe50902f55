/* Statistics of groups, or parts of dw and db, by chunks: see DTI_ARGS_NORM. */

#include "quotient.glsl"

/* What a workgroup has: elements [first, first + count) of a group. */
struct dti_norm_chunk {
    uint group, number, first, count;
};

/* groups: how many there are; elements: of each. */
dti_norm_chunk dti_norm_chunk_of(uint groups, uint elements)
{
    uint number = dti_group() / groups, first = number * DTI_NORM_CHUNK;
    uint count = args.chunks > 1u ? min(elements - first, DTI_NORM_CHUNK) : elements;
    return dti_norm_chunk(dti_group() - number * groups, number, first, count);
}

uint dti_norm_pair(dti_norm_chunk c)
{
    return args.p_offset + 2u * (c.group * args.chunks + c.number);
}

/* An overflow is NaN: of an infinite variance (x - mean) / sqrt(variance) would be 0. */
float dti_norm_variance(float variance)
{
    return dti_is_finite(variance) ? variance : DTI_NAN;
}

/* Of equal values it is their value. */
vec2 dti_norm_mean(vec2 sums, uint count)
{
    return vec2(dti_quotient(sums.x, float(count)), dti_quotient(sums.y, float(count)));
}

#ifdef DTI_NORM_X
/* This invocation's part of (sum (x - mean), sum of its squares). */
vec2 dti_norm_moments(uint base, dti_norm_chunk c, float mean)
{
    uint length = args.batch == 1u ? args.spatial : args.cols;
    uint pitch = args.channels * args.spatial; /* unused where there is one run */
    vec4 s = vec4(0.0), t = vec4(0.0);
    if ((spec3 & DTI_NORM_FOURS_X) != 0u) {
        dti_runs r = dti_runs_start(c.first / 4u, length / 4u, pitch / 4u);
        for (uint k = gl_LocalInvocationID.x; k < c.count / 4u; k += gl_WorkGroupSize.x) {
            vec4 d = x_get4(base / 4u + r.at) - mean;
            s += d;
            t += d * d;
            dti_runs_next(r);
        }
        return vec2((s.x + s.y) + (s.z + s.w), (t.x + t.y) + (t.z + t.w));
    }
    dti_runs r = dti_runs_start(c.first, length, pitch);
    for (uint k = gl_LocalInvocationID.x; k < c.count; k += gl_WorkGroupSize.x) {
        float d = x_get(base + r.at) - mean;
        s = vec4(s.x + d, s.yzw).yzwx; /* four sums in turn: each is a quarter as long */
        t = vec4(t.x + d * d, t.yzw).yzwx;
        dti_runs_next(r);
    }
    return vec2((s.x + s.y) + (s.z + s.w), (t.x + t.y) + (t.z + t.w));
}

/* From the means of (x - mean) and its square. */
vec2 dti_norm_pair_of(float mean, vec2 sums, bool rms)
{
    if (rms)
        return vec2(0.0, dti_norm_variance(sums.y));
    float variance = dti_norm_variance(sums.y - sums.x * sums.x);
    return vec2(mean + sums.x, variance < 0.0 ? 0.0 : variance); /* a NaN stays */
}

/* (mean, biased variance) of a chunk, which is gone over twice. The deviations from the first mean
 * correct it and the variance. So equal values have that mean and no variance (Chan, Golub, LeVeque
 * 1983). rms: (0, mean of squares). */
vec2 dti_norm_stats(uint base, dti_norm_chunk c, bool rms)
{
    float mean = 0.0;
    vec2 sums = vec2(0.0);
    for (uint pass = rms ? 1u : 0u; pass < 2u; pass++) {
        mean = sums.x;
        sums = dti_norm_mean(dti_group_sum2(dti_norm_moments(base, c, mean), c.count), c.count);
        barrier(); /* before the next sum */
    }
    return dti_norm_pair_of(mean, sums, rms);
}
#endif

#ifdef DTI_NORM_PAIRS /* and lib/sums.glsl's of float */
/* Of a whole group, from those of its chunks (Chan, Golub and LeVeque, 1979). */
vec2 dti_norm_joined(uint group)
{
    uint at = args.p_offset + 2u * group * args.chunks, lane = gl_LocalInvocationID.x;
    float first = stats[at], all = float(args.cols);
    dti_sum_float off = DTI_SUM_NONE(float), squares = off;
    for (uint i = lane; i < args.chunks; i += gl_WorkGroupSize.x) {
        float count = float(min(args.cols - i * DTI_NORM_CHUNK, DTI_NORM_CHUNK));
        dti_add(off, count * (stats[at + 2u * i] - first));
    }
    float mean = first + dti_quotient(dti_group_sum(dti_sum(off), args.chunks, 0u), all);
    for (uint i = lane; i < args.chunks; i += gl_WorkGroupSize.x) {
        float count = float(min(args.cols - i * DTI_NORM_CHUNK, DTI_NORM_CHUNK));
        float d = stats[at + 2u * i] - mean;
        dti_add(squares, count * (stats[at + 2u * i + 1u] + d * d));
    }
    float total = dti_group_sum(dti_sum(squares), args.chunks, 1u);
    return vec2(mean, dti_norm_variance(dti_quotient(total, all)));
}
#endif
