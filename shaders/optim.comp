/* The update of one block of parameters per workgroup: SGD, Adam or AdamW (spec0), as torch.optim.
 * Writes nothing when the step is aborted. t is counted afterwards, by optim_tick. 1 - beta and
 * 1 - beta^t come from the logarithm of beta: the difference would lose half of its digits. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/functions.glsl"

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) buffer buffer_params { float params[]; };
layout(binding = 1) readonly buffer buffer_grads { float grads[]; };
layout(binding = 2) buffer buffer_state { uint state[]; };
layout(binding = 3) readonly buffer buffer_table { uint table[]; };

const uint NONE = 0xffffffffu;

float sgd(uint at, float p, float g, uint group, uint t)
{
    float lr = dti_group_f32(group, DTI_GROUP_LR), decay = dti_group_f32(group, DTI_GROUP_DECAY);
    float momentum = dti_group_f32(group, DTI_GROUP_BETA1);
    if (decay != 0.0)
        g += decay * p;
    if (momentum != 0.0 && args.m_offset != NONE) {
        float m = g; /* the first step takes the gradient as it is, even with dampening */
        if (t != 0u)
            m = momentum * uintBitsToFloat(state[args.m_offset + at]) +
                (1.0 - dti_group_f32(group, DTI_GROUP_BETA2)) * g;
        state[args.m_offset + at] = floatBitsToUint(m);
        g = dti_group_f32(group, DTI_GROUP_NESTEROV) != 0.0 ? g + momentum * m : m;
    }
    return p - lr * g;
}

float adam(uint at, float p, float g, uint group, uint t)
{
    float lr = dti_group_f32(group, DTI_GROUP_LR), decay = dti_group_f32(group, DTI_GROUP_DECAY);
    float ln_beta1 = dti_group_f32(group, DTI_GROUP_LN_BETA1);
    float ln_beta2 = dti_group_f32(group, DTI_GROUP_LN_BETA2);
    if (spec0 == DTI_OPTIM_ADAMW)
        p *= 1.0 - lr * decay;
    else if (decay != 0.0)
        g += decay * p;
    float m = dti_group_f32(group, DTI_GROUP_BETA1) * uintBitsToFloat(state[args.m_offset + at]) -
              dti_m_expm1(ln_beta1) * g;
    float v = dti_group_f32(group, DTI_GROUP_BETA2) * uintBitsToFloat(state[args.v_offset + at]) -
              dti_m_expm1(ln_beta2) * g * g;
    state[args.m_offset + at] = floatBitsToUint(m);
    state[args.v_offset + at] = floatBitsToUint(v);
    float steps = float(t + 1u);
    float correction1 = -dti_m_expm1(steps * ln_beta1);
    float correction2 = -dti_m_expm1(steps * ln_beta2);
    float denominator = sqrt(v) / sqrt(correction2) + dti_group_f32(group, DTI_GROUP_EPS);
    return p - lr / correction1 * (m / denominator);
}

void main()
{
    uint entry = dti_group();
    if (entry >= args.blocks || state[DTI_CONTROL_ABORT] != 0u)
        return;
    uint row = entry * DTI_TABLE_WORDS;
    uint base = table[row + DTI_TABLE_BLOCK] * DTI_BLOCK;
    uint group = table[row + DTI_TABLE_GROUP];
    uint t = state[args.t_offset + (table[row + DTI_TABLE_PARAM] & 0x7fffffffu)];
    uint used = table[row + DTI_TABLE_USED];
    float clip = uintBitsToFloat(state[DTI_CONTROL_CLIP]);
    float limit = dti_step_f32(DTI_STEP_CLIP_VALUE);
    for (uint e = gl_LocalInvocationID.x; e < used; e += gl_WorkGroupSize.x) {
        uint at = base + e;
        float g = grads[at] * clip;
        if (limit > 0.0)
            g = clamp(g, -limit, limit);
        params[at] = spec0 == DTI_OPTIM_SGD ? sgd(at, params[at], g, group, t)
                                            : adam(at, params[at], g, group, t);
    }
}
