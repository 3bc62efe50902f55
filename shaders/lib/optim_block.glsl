/* The common parts of the optimizers' kernels. They are bindings, the words of optim_body.h for
 * four elements at a time, and a block's values and rates. Comes after the arguments;
 * DTI_OPTIM_PARTS says which parts of optim_body.h are wanted with those words, DTI_OPTIM_HERE of
 * which optimizers. */
#include "step.glsl"
#include "functions.glsl"
#define DTI_OPTIM_PART 1
#include "optim_body.h"

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
#define DTI_OPTIM_PART DTI_OPTIM_PARTS
#include "optim_body.h"

layout(binding = 0) buffer buffer_params { vec4 params[]; };
layout(binding = 1) readonly buffer buffer_grads { vec4 grads[]; };
layout(binding = 2) buffer buffer_state { uint state[]; };
layout(binding = 2) buffer buffer_moments { vec4 moments[]; }; /* the same words */
layout(binding = 3) readonly buffer buffer_table { uint table[]; };

/* Arrays are indexed only by constants, so that drivers keep them in registers. */

/* Four weights with their moments; what a parameter does not have, and is not wanted, is 0. */
void load(uint at, bool weight, out vec4 v[DTI_OPTIM_VALUES])
{
    v[0] = weight ? params[at] : vec4(0.0);
#define DTI_LOAD_MOMENT(i)                                                                        \
    v[i] = vec4(0.0);                                                                              \
    if (i <= args.moments)                                                                         \
        v[i] = moments[args.moment_fours + (i - 1) * args.stride_fours + at];
    DTI_EACH_MOMENT(DTI_LOAD_MOMENT)
}

/* What all elements of a block have in common: the group's words, and what follows from them. */
struct rates {
    float w[DTI_GROUP_WORDS], t, c[DTI_OPTIM_CONSTANTS];
};

rates rates_of(uint group, uint t, float share)
{
    rates r;
    r.w = DTI_GROUP_F32(group);
    r.t = float(t);
    r.c = float[](0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    switch (spec0) {
#define DTI_CASE(number, ID, name, least, most) case number: dti_m_constants_##name(r.w, r.t, r.c); break;
        DTI_OPTIM_HERE(DTI_CASE)
#undef DTI_CASE
    }
    r.c[DTI_OPTIM_SHARE] = share;
    return r;
}

/* What OPTIM_SUMS made of the whole parameter; 0: nothing, for the kind does not ask, or it is plain. */
float share_of(uint param)
{
    if (args.share_offset == 0u || (param & DTI_TABLE_PLAIN) != 0u)
        return 0.0;
    return uintBitsToFloat(state[args.share_offset + (param & DTI_TABLE_INDEX)]);
}

/* Whether what lies as gradients is one parameter's direction, from its first block on. */
bool given()
{
    return (args.flags & DTI_COMMIT_DIRECTED) != 0u;
}

/* Of parameters with launches of their own only those look at it. */
bool is_left(uint param)
{
    const uint own = DTI_COMMIT_DIRECTION | DTI_COMMIT_DIRECTED;
    return (param & DTI_TABLE_APART) != 0u && (args.flags & own) == 0u;
}

/* Gradients as updates take them; padding is 0. */
vec4 clipped(vec4 g, bvec4 live)
{
    float clip = given() ? 1.0 : uintBitsToFloat(state[DTI_CONTROL_CLIP]);
    float limit = given() ? 0.0 : dti_step_f32(DTI_STEP_CLIP_VALUE);
    g = mix(vec4(0.0), g * clip, live);
    return limit > 0.0 ? clamp(g, -limit, limit) : g;
}
