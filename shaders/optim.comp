/* The update of one block of parameters per workgroup: SGD, Adam or AdamW (spec0), as torch.optim.
 * An invocation has 4 elements at a time. A block that is not trained takes the value that lies as
 * its gradient. Writes nothing when the step is aborted. t is counted afterwards, by optim_tick.
 * The dry pass (DTI_COMMIT_DRY) is the same program, so that its arithmetic is the same too: it
 * looks at what would be written, and only where clip_finish asked for it.
 * 1 - beta and 1 - beta^t come from the logarithm of beta: the difference would lose half of its
 * digits. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/functions.glsl"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) buffer buffer_params { vec4 params[]; };
layout(binding = 1) readonly buffer buffer_grads { vec4 grads[]; };
layout(binding = 2) buffer buffer_state { uint state[]; };
layout(binding = 2) buffer buffer_moments { vec4 moments[]; }; /* the same words */
layout(binding = 3) readonly buffer buffer_table { uint table[]; };

const uint NONE = 0xffffffffu;

/* Four weights with their moments; what a parameter does not have is 0. */
struct values {
    vec4 p, m, v;
};

values load(uint at)
{
    values x = values(params[at], vec4(0.0), vec4(0.0));
    if (args.m_offset != NONE)
        x.m = moments[args.m_offset / 4u + at];
    if (args.v_offset != NONE)
        x.v = moments[args.v_offset / 4u + at];
    return x;
}

void store(uint at, values x)
{
    params[at] = x.p;
    if (args.m_offset != NONE)
        moments[args.m_offset / 4u + at] = x.m;
    if (args.v_offset != NONE)
        moments[args.v_offset / 4u + at] = x.v;
}

values sgd(values x, vec4 g, uint group, uint t)
{
    float lr = dti_param_group_f32(group, DTI_GROUP_LR), decay = dti_param_group_f32(group, DTI_GROUP_DECAY);
    float momentum = dti_param_group_f32(group, DTI_GROUP_BETA1);
    if (decay != 0.0)
        g += decay * x.p;
    if (momentum != 0.0 && args.m_offset != NONE) {
        vec4 m = g; /* the first step takes the gradient as it is, even with dampening */
        if (t != 0u)
            m = momentum * x.m + (1.0 - dti_param_group_f32(group, DTI_GROUP_BETA2)) * g;
        x.m = m;
        g = dti_param_group_f32(group, DTI_GROUP_NESTEROV) != 0.0 ? g + momentum * m : m;
    }
    x.p -= lr * g;
    return x;
}

values adam(values x, vec4 g, uint group, uint t)
{
    float lr = dti_param_group_f32(group, DTI_GROUP_LR), decay = dti_param_group_f32(group, DTI_GROUP_DECAY);
    float ln_beta1 = dti_param_group_f32(group, DTI_GROUP_LN_BETA1);
    float ln_beta2 = dti_param_group_f32(group, DTI_GROUP_LN_BETA2);
    if (spec0 == DTI_OPTIM_ADAMW)
        x.p *= 1.0 - lr * decay;
    else if (decay != 0.0)
        g += decay * x.p;
    x.m = dti_param_group_f32(group, DTI_GROUP_BETA1) * x.m - dti_m_expm1(ln_beta1) * g;
    x.v = dti_param_group_f32(group, DTI_GROUP_BETA2) * x.v - dti_m_expm1(ln_beta2) * (g * g);
    float steps = float(t) + 1.0;
    float correction1 = -dti_m_expm1(steps * ln_beta1);
    float correction2 = -dti_m_expm1(steps * ln_beta2);
    vec4 denominator = sqrt(x.v) / sqrt(correction2) + dti_param_group_f32(group, DTI_GROUP_EPS);
    x.p -= lr / correction1 * (x.m / denominator);
    return x;
}

/* Padding stays 0. */
values updated(values x, vec4 g, uint group, uint t, bvec4 live)
{
    float clip = uintBitsToFloat(state[DTI_CONTROL_CLIP]);
    float limit = dti_step_f32(DTI_STEP_CLIP_VALUE);
    g = mix(vec4(0.0), g * clip, live);
    if (limit > 0.0)
        g = clamp(g, -limit, limit);
    values next = spec0 == DTI_OPTIM_SGD ? sgd(x, g, group, t) : adam(x, g, group, t);
    return values(mix(x.p, next.p, live), mix(x.m, next.m, live), mix(x.v, next.v, live));
}

/* Bits of the largest magnitudes: in the order of the values, infinity and NaN above all. */
uint largest(vec4 x)
{
    uvec4 bits = floatBitsToUint(x) & 0x7fffffffu;
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

uvec3 largest_of(values x)
{
    return uvec3(largest(x.p), largest(x.m), largest(x.v));
}

/* Which DTI_BAD_* an update is, 4 = none. */
uint bad(uvec3 before, uvec3 after)
{
    const uvec3 infinity = uvec3(0x7f800000u);
    if (any(greaterThanEqual(before, infinity)))
        return DTI_BAD_BEFORE;
    bvec3 not = greaterThanEqual(after, infinity);
    return not.y ? DTI_BAD_MOMENT1 : not.z ? DTI_BAD_MOMENT2 : not.x ? DTI_BAD_WEIGHT : 4u;
}

/* The one word that all have in common is looked at first: mostly it is larger already. */
void remember(uvec3 most)
{
    [[unroll]] for (uint i = 0u; i < 3u; i++) {
        if (most[i] > state[DTI_CONTROL_LARGEST(i)])
            atomicMax(state[DTI_CONTROL_LARGEST(i)], most[i]);
    }
}

void block(uint entry, bool dry)
{
    uint row = entry * DTI_TABLE_WORDS;
    uint base = table[row + DTI_TABLE_BLOCK] * (DTI_BLOCK / 4);
    uint group = table[row + DTI_TABLE_GROUP], param = table[row + DTI_TABLE_PARAM];
    uint t = state[args.t_offset + (param & DTI_TABLE_INDEX)];
    uint used = table[row + DTI_TABLE_USED], worst = 4u;
    bool trained = (param & DTI_TABLE_BUFFER) == 0u;
    uvec3 most = uvec3(0u);
    for (uint e = gl_LocalInvocationID.x; 4u * e < used; e += gl_WorkGroupSize.x) {
        uint at = base + e;
        bvec4 live = lessThan(4u * e + uvec4(0u, 1u, 2u, 3u), uvec4(used));
        if (!trained) {
            if (!dry)
                params[at] = mix(params[at], grads[at], live);
            continue;
        }
        values x = load(at), next = updated(x, grads[at], group, t, live);
        uvec3 after = largest_of(next);
        if (dry)
            worst = min(worst, bad(largest_of(x), after));
        else
            store(at, next);
        most = max(most, dry ? uvec3(0u, after.yz) : uvec3(after.x, 0u, 0u));
    }
    if (worst < 4u)
        atomicMin(state[DTI_CONTROL_BAD], (param & DTI_TABLE_INDEX) << 2 | worst);
    remember(most);
}

void main()
{
    bool dry = (args.flags & DTI_COMMIT_DRY) != 0u;
    bool aborted = state[DTI_CONTROL_ABORT] != 0u || state[DTI_CONTROL_BAD] != DTI_BAD_NONE;
    if (dti_group() < args.blocks && (dry ? state[DTI_CONTROL_CHECK] != 0u : !aborted))
        block(dti_group(), dry);
}
