/* The update of one block of parameters per workgroup by the optimizer spec0 of optim_body.h. An
 * invocation has 4 elements at a time. A block that is not trained takes the value that lies as
 * its gradient. Writes nothing when the step is aborted. t is counted afterwards, by optim_tick.
 * The dry pass (DTI_COMMIT_DRY) is the same program, so that its arithmetic is the same too: it
 * looks at what would be written, and only where clip_finish asked for it. spec1: 1 = of some
 * parameters rows without a gradient are left alone; of those only weights are looked at. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/functions.glsl"
#define DTI_OPTIM_PART 1
#include "lib/optim_body.h"

/* The words for 4 elements, as far as updates use them. */
#undef DTI_M_F
#undef DTI_M_K
#undef DTI_M_LT
#undef DTI_M_SELECT
#define DTI_M_F vec4
#define DTI_M_K(c) vec4(c)
#define DTI_M_LT(x, y) lessThan(x, y)
#define DTI_M_SELECT(m, x, y) mix(y, x, m)
#undef DTI_OPTIM_PART
#define DTI_OPTIM_PART 2
#include "lib/optim_body.h"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) buffer buffer_params { vec4 params[]; };
layout(binding = 1) readonly buffer buffer_grads { vec4 grads[]; };
layout(binding = 2) buffer buffer_state { uint state[]; };
layout(binding = 2) buffer buffer_moments { vec4 moments[]; }; /* the same words */
layout(binding = 3) readonly buffer buffer_table { uint table[]; };

/* Arrays are indexed by constants alone, so that drivers keep them in registers. */

/* Four weights with their moments; what a parameter does not have is 0. */
void load(uint at, out vec4 v[DTI_OPTIM_VALUES])
{
    v[0] = params[at];
#define DTI_LOAD_MOMENT(i)                                                                        \
    v[i] = vec4(0.0);                                                                              \
    if (i <= args.moments)                                                                         \
        v[i] = moments[(args.moment_offset + (i - 1) * args.moment_stride) / 4u + at];
    DTI_EACH_MOMENT(DTI_LOAD_MOMENT)
}

void store(uint at, vec4 v[DTI_OPTIM_VALUES])
{
    params[at] = v[0];
#define DTI_STORE_MOMENT(i)                                                                      \
    if (i <= args.moments)                                                                         \
        moments[(args.moment_offset + (i - 1) * args.moment_stride) / 4u + at] = v[i];
    DTI_EACH_MOMENT(DTI_STORE_MOMENT)
}

/* What all elements of a block have in common: the group's words, and what follows from them. */
struct rates {
    float w[DTI_GROUP_WORDS], t, c[DTI_OPTIM_CONSTANTS];
};

rates rates_of(uint group, uint t)
{
    rates r;
#define DTI_WORD(i) dti_param_group_f32(group, i)
    r.w = float[](DTI_WORD(0u), DTI_WORD(1u), DTI_WORD(2u), DTI_WORD(3u), DTI_WORD(4u),
                  DTI_WORD(5u), DTI_WORD(6u), DTI_WORD(7u));
    r.t = float(t);
    r.c = float[](0.0, 0.0, 0.0, 0.0, 0.0);
    switch (spec0) {
#define DTI_CASE(number, ID, name, least, most) case number: dti_m_constants_##name(r.w, r.t, r.c); break;
        DTI_OPTIM_LIST(DTI_CASE)
#undef DTI_CASE
    }
    return r;
}

/* Padding stays 0. */
void update(inout vec4 v[DTI_OPTIM_VALUES], vec4 g, rates r, bvec4 live)
{
    vec4 was[DTI_OPTIM_VALUES] = v;
    float clip = uintBitsToFloat(state[DTI_CONTROL_CLIP]);
    float limit = dti_step_f32(DTI_STEP_CLIP_VALUE);
    g = mix(vec4(0.0), g * clip, live);
    if (limit > 0.0)
        g = clamp(g, -limit, limit);
    switch (spec0) {
#define DTI_CASE(number, ID, name, least, most) case number: dti_m_update_##name(v, g, r.w, r.t, r.c); break;
        DTI_OPTIM_LIST(DTI_CASE)
#undef DTI_CASE
    }
#define DTI_MIX(i) v[i] = mix(was[i], v[i], live);
    DTI_EACH_VALUE(DTI_MIX)
}

/* Bits of the largest magnitudes: in the order of the values, infinity and NaN above all. */
uint largest(vec4 x)
{
    uvec4 bits = floatBitsToUint(x) & 0x7fffffffu;
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

/* Which DTI_BAD_* an update is. */
uint bad(vec4 before[DTI_OPTIM_VALUES], vec4 after[DTI_OPTIM_VALUES])
{
    const uint infinity = 0x7f800000u;
    uint worst = largest(after[0]) >= infinity ? DTI_BAD_WEIGHT : DTI_BAD_FINE;
#define DTI_AFTER(i)                                                                               \
    if (largest(after[i]) >= infinity)                                                             \
        worst = min(worst, DTI_BAD_MOMENT + uint(i) - 1u);
    DTI_EACH_MOMENT(DTI_AFTER)
#define DTI_BEFORE(i) || largest(before[i]) >= infinity
    if (false DTI_EACH_VALUE(DTI_BEFORE))
        worst = DTI_BAD_BEFORE;
    return worst;
}

/* The one word that all have in common is looked at first: mostly it is larger already. */
void remember(uint i, uint most)
{
    if (most > state[DTI_CONTROL_LARGEST(i)])
        atomicMax(state[DTI_CONTROL_LARGEST(i)], most);
}

shared uint rows_used[DTI_BLOCK];

/* Which of the rows that lie in a block have a gradient: all of such a row is looked at, also what
 * lies in other blocks. */
void find_rows(uint first, uint cols, uint rows)
{
    for (uint r = gl_LocalInvocationID.x; r < rows; r += gl_WorkGroupSize.x)
        rows_used[r] = 0u;
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < rows * cols; e += gl_WorkGroupSize.x) {
        uint at = first + e;
        if ((floatBitsToUint(grads[at >> 2][at & 3u]) & 0x7fffffffu) != 0u)
            rows_used[e / cols] = 1u; /* whoever writes it */
    }
    barrier();
}

bvec4 live_rows(uint e, uint place, uint cols, bvec4 live)
{
    [[unroll]] for (uint c = 0u; c < 4u; c++)
        live[c] = live[c] && rows_used[(place + 4u * e + c) / cols] != 0u;
    return live;
}

void block(uint entry, bool dry)
{
    uint row = entry * DTI_TABLE_WORDS;
    uint base = table[row + DTI_TABLE_BLOCK] * (DTI_BLOCK / 4);
    uint group = table[row + DTI_TABLE_GROUP], param = table[row + DTI_TABLE_PARAM];
    uint cols = spec1 != 0u ? DTI_TABLE_COLS_OF(group) : 0u;
    uint t = state[args.t_offset + (param & DTI_TABLE_INDEX)];
    uint place = DTI_TABLE_PLACE_OF(table[row + DTI_TABLE_USED]);
    uint used = DTI_TABLE_USED_OF(table[row + DTI_TABLE_USED]), worst = DTI_BAD_FINE;
    bool trained = (param & DTI_TABLE_BUFFER) == 0u;
    uint most[DTI_OPTIM_VALUES] = uint[](0u, 0u, 0u, 0u);
    rates r = rates_of(DTI_TABLE_GROUP_OF(group), t);
    if (cols != 0u)
        find_rows(4u * base - place, cols, (place + used + cols - 1u) / cols);
    for (uint e = gl_LocalInvocationID.x; 4u * e < used; e += gl_WorkGroupSize.x) {
        uint at = base + e;
        bvec4 live = lessThan(4u * e + uvec4(0u, 1u, 2u, 3u), uvec4(used));
        if (!trained) {
            if (!dry)
                params[at] = mix(params[at], grads[at], live);
            continue;
        }
        if (cols != 0u)
            live = live_rows(e, place, cols, live);
        if (cols != 0u && !dry && !any(live)) {
            most[0] = max(most[0], largest(params[at]));
            continue;
        }
        vec4 v[DTI_OPTIM_VALUES], before[DTI_OPTIM_VALUES];
        load(at, v);
        before = v;
        update(v, grads[at], r, live);
        if (dry)
            worst = min(worst, bad(before, v));
        else
            store(at, v);
#define DTI_MOST(i) most[i] = max(most[i], largest(v[i]));
        if (!dry) /* weights are told when they are written, moments before */
            DTI_MOST(0)
        else {
            DTI_EACH_MOMENT(DTI_MOST)
        }
    }
    if (worst < DTI_BAD_FINE)
        atomicMin(state[DTI_CONTROL_BAD], (param & DTI_TABLE_INDEX) << 3 | worst);
#define DTI_REMEMBER(i) remember(i, most[i]);
    DTI_EACH_VALUE(DTI_REMEMBER)
}

void main()
{
    bool dry = (args.flags & DTI_COMMIT_DRY) != 0u;
    bool aborted = state[DTI_CONTROL_ABORT] != 0u || state[DTI_CONTROL_BAD] != DTI_BAD_NONE;
    if (dti_group() < args.blocks && (dry ? state[DTI_CONTROL_CHECK] != 0u : !aborted))
        block(dti_group(), dry);
}
