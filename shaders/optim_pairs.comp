/* The measures that an optimizer that needs whole parameters (optim_whole_body.h) makes of a block,
 * a workgroup each. They are two sums of squares, written to the block's pair in the state. With
 * DTI_COMMIT_DIRECTION it measures the blocks of one parameter. The second measure goes to the
 * first binding, in place of weights that are not read; with DTI_COMMIT_DIRECTED of those of one
 * whose direction lies as its gradient. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
DTI_PUSH(DTI_ARGS_COMMIT)
#define DTI_OPTIM_PARTS 10
#define DTI_OPTIM_HERE DTI_OPTIM_WHOLE_LIST
#include "lib/optim_block.glsl"
#include "lib/reduce.glsl"

void measure(vec4 v[DTI_OPTIM_VALUES], vec4 g, rates r, out vec4 a, out vec4 b)
{
    a = b = vec4(0.0);
    switch (spec0) {
#define DTI_CASE(number, ID, name, least, most)                                                    \
    case number: dti_m_measure_##name(v, g, r.w, r.t, r.c, a, b); break;
        DTI_OPTIM_HERE(DTI_CASE)
#undef DTI_CASE
    }
}

void main()
{
    uint entry = args.first + dti_group(), row = entry * DTI_TABLE_WORDS;
    if (dti_group() >= args.blocks)
        return;
    uint param = table[row + DTI_TABLE_PARAM], base = table[row + DTI_TABLE_BLOCK] * (DTI_BLOCK / 4);
    if ((param & (DTI_TABLE_BUFFER | DTI_TABLE_PLAIN)) != 0u || is_left(param))
        return;
    bool direction = (args.flags & DTI_COMMIT_DIRECTION) != 0u;
    uint used = DTI_TABLE_USED_OF(table[row + DTI_TABLE_USED]);
    uint t = state[args.t_offset + (param & DTI_TABLE_INDEX)];
    uint from = given() ? dti_group() * (DTI_BLOCK / 4) : base;
    rates r = rates_of(DTI_TABLE_GROUP_OF(table[row + DTI_TABLE_GROUP]), t,
                       given() || direction ? -1.0 : 0.0);
    vec2 sums = vec2(0.0);
    for (uint e = gl_LocalInvocationID.x; 4u * e < used; e += gl_WorkGroupSize.x) {
        bvec4 live = lessThan(4u * e + uvec4(0u, 1u, 2u, 3u), uvec4(used));
        vec4 v[DTI_OPTIM_VALUES], a, b;
        load(base + e, !direction, v);
        measure(v, clipped(grads[from + e], live), r, a, b);
        a = mix(vec4(0.0), a, live);
        b = mix(vec4(0.0), b, live);
        sums += vec2(dot(a, a), dot(b, b));
        if (direction)
            params[dti_group() * (DTI_BLOCK / 4) + e] = b;
    }
    sums = dti_group_sum2(sums, (used + 3u) / 4u);
    if (gl_LocalInvocationID.x == 0u) {
        state[args.pair_offset + 2u * entry] = floatBitsToUint(sums.x);
        state[args.pair_offset + 2u * entry + 1u] = floatBitsToUint(sums.y);
    }
}
