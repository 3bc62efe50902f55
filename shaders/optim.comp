/* The update of one block of parameters per workgroup: SGD, Adam or AdamW (spec0), as torch.optim.
 * An invocation has 4 elements at a time. A block that is not trained takes the value that lies as
 * its gradient. Writes nothing when the step is aborted. t is counted afterwards, by optim_tick.
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

vec4 sgd(uint at, vec4 p, vec4 g, uint group, uint t)
{
    float lr = dti_group_f32(group, DTI_GROUP_LR), decay = dti_group_f32(group, DTI_GROUP_DECAY);
    float momentum = dti_group_f32(group, DTI_GROUP_BETA1);
    if (decay != 0.0)
        g += decay * p;
    if (momentum != 0.0 && args.m_offset != NONE) {
        uint m_at = args.m_offset / 4u + at;
        vec4 m = g; /* the first step takes the gradient as it is, even with dampening */
        if (t != 0u)
            m = momentum * moments[m_at] + (1.0 - dti_group_f32(group, DTI_GROUP_BETA2)) * g;
        moments[m_at] = m;
        g = dti_group_f32(group, DTI_GROUP_NESTEROV) != 0.0 ? g + momentum * m : m;
    }
    return p - lr * g;
}

vec4 adam(uint at, vec4 p, vec4 g, uint group, uint t)
{
    float lr = dti_group_f32(group, DTI_GROUP_LR), decay = dti_group_f32(group, DTI_GROUP_DECAY);
    float ln_beta1 = dti_group_f32(group, DTI_GROUP_LN_BETA1);
    float ln_beta2 = dti_group_f32(group, DTI_GROUP_LN_BETA2);
    uint m_at = args.m_offset / 4u + at, v_at = args.v_offset / 4u + at;
    if (spec0 == DTI_OPTIM_ADAMW)
        p *= 1.0 - lr * decay;
    else if (decay != 0.0)
        g += decay * p;
    vec4 m = dti_group_f32(group, DTI_GROUP_BETA1) * moments[m_at] - dti_m_expm1(ln_beta1) * g;
    vec4 v =
        dti_group_f32(group, DTI_GROUP_BETA2) * moments[v_at] - dti_m_expm1(ln_beta2) * (g * g);
    moments[m_at] = m;
    moments[v_at] = v;
    float steps = float(t + 1u);
    float correction1 = -dti_m_expm1(steps * ln_beta1);
    float correction2 = -dti_m_expm1(steps * ln_beta2);
    vec4 denominator = sqrt(v) / sqrt(correction2) + dti_group_f32(group, DTI_GROUP_EPS);
    return p - lr / correction1 * (m / denominator);
}

vec4 updated(uint at, vec4 p, uint group, uint t, bvec4 live)
{
    float clip = uintBitsToFloat(state[DTI_CONTROL_CLIP]);
    float limit = dti_step_f32(DTI_STEP_CLIP_VALUE);
    vec4 g = mix(vec4(0.0), grads[at] * clip, live);
    if (limit > 0.0)
        g = clamp(g, -limit, limit);
    return spec0 == DTI_OPTIM_SGD ? sgd(at, p, g, group, t) : adam(at, p, g, group, t);
}

void main()
{
    uint entry = dti_group();
    if (entry >= args.blocks || state[DTI_CONTROL_ABORT] != 0u)
        return;
    uint row = entry * DTI_TABLE_WORDS;
    uint base = table[row + DTI_TABLE_BLOCK] * (DTI_BLOCK / 4);
    uint group = table[row + DTI_TABLE_GROUP], param = table[row + DTI_TABLE_PARAM];
    uint t = state[args.t_offset + (param & DTI_TABLE_INDEX)];
    uint used = table[row + DTI_TABLE_USED];
    bool trained = (param & DTI_TABLE_BUFFER) == 0u;
    for (uint e = gl_LocalInvocationID.x; 4u * e < used; e += gl_WorkGroupSize.x) {
        uint at = base + e;
        bvec4 live = lessThan(4u * e + uvec4(0u, 1u, 2u, 3u), uvec4(used)); /* padding stays 0 */
        vec4 p = params[at];
        vec4 next = trained ? updated(at, p, group, t, live) : grads[at];
        params[at] = mix(p, next, live);
    }
}
