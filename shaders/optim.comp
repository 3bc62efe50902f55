/* The update of one block of parameters per workgroup by the optimizer spec0 of optim_body.h. An
 * invocation has 4 elements at a time. A block that is not trained takes the value that lies as
 * its gradient. Writes nothing when the step is aborted. t is counted afterwards, by optim_tick.
 * The dry pass (DTI_COMMIT_DRY) is the same program, so that its arithmetic is the same too. It
 * looks at the values to be written, and only where clip_finish asked for it. spec1,
 * DTI_OPTIM_ROW_SPARSE: of some parameters rows without a gradient are left alone; of those only
 * weights are looked at. Where a word names touched rows (_SPARSE) and the largest value is not
 * needed, they are not
 * read. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
DTI_PUSH(DTI_ARGS_COMMIT)
#define DTI_OPTIM_PARTS 2
#define DTI_OPTIM_HERE DTI_OPTIM_LIST
#include "lib/optim_block.glsl"

void store(uint at, vec4 v[DTI_OPTIM_VALUES])
{
    params[at] = v[0];
#define DTI_STORE_MOMENT(i)                                                                      \
    if (i <= args.moments)                                                                         \
        moments[args.moment_fours + (i - 1) * args.stride_fours + at] = v[i];
    DTI_EACH_MOMENT(DTI_STORE_MOMENT)
}

/* Padding stays 0. */
void update(inout vec4 v[DTI_OPTIM_VALUES], vec4 g, rates r, bvec4 live)
{
    vec4 was[DTI_OPTIM_VALUES] = v;
    g = clipped(g, live);
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

#include "lib/rows.glsl"

/* Which rows of a block have a gradient, of those that may. All of such a row is looked at, also
 * its part in other blocks. */
void find_rows(uint first, uint cols, uint rows, uint may)
{
    for (uint r = gl_LocalInvocationID.x; r < rows; r += gl_WorkGroupSize.x)
        rows_used[r] = 0u;
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < rows * cols; e += gl_WorkGroupSize.x) {
        uint at = first + e;
        if ((may & DTI_ROW_BIT(e / cols)) != 0u && (floatBitsToUint(grads[at >> 2][at & 3u]) & 0x7fffffffu) != 0u)
            rows_used[e / cols] = 1u; /* for any writer */
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
    uint may = (spec1 & DTI_OPTIM_SPARSE) != 0u ? rows_of(row) : 0xffffffffu;
    bool known = (param & DTI_TABLE_SPARSE) != 0u && !dry &&
                 ((args.flags & DTI_COMMIT_UNTOLD) != 0u || state[DTI_CONTROL_CHECK] == 0u);
    uint t = state[args.t_offset + (param & DTI_TABLE_INDEX)];
    uint place = DTI_TABLE_PLACE_OF(table[row + DTI_TABLE_USED]);
    uint used = DTI_TABLE_USED_OF(table[row + DTI_TABLE_USED]), worst = DTI_BAD_FINE;
    if (is_left(param) || (known && may == 0u))
        return;
    bool trained = (param & DTI_TABLE_BUFFER) == 0u;
    uint most[DTI_OPTIM_VALUES] = uint[](0u, 0u, 0u, 0u);
    rates r = rates_of(DTI_TABLE_GROUP_OF(group), t, given() ? -share_of(param) : share_of(param));
    uint from = given() ? (entry - args.first) * (DTI_BLOCK / 4) : base;
    if (cols != 0u)
        find_rows(4u * base - place, cols, (place + used + cols - 1u) / cols, may);
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
            if (!known)
                most[0] = max(most[0], largest(params[at]));
            continue;
        }
        vec4 v[DTI_OPTIM_VALUES], before[DTI_OPTIM_VALUES];
        load(at, true, v);
        before = v;
        update(v, grads[from + e], r, live);
        if (dry)
            worst = min(worst, bad(before, v));
        else
            store(at, v);
#define DTI_MOST(i) most[i] = max(most[i], largest(v[i]));
        if (!dry) /* weights are reported when they are written, moments before */
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
        block(args.first + dti_group(), dry);
}
