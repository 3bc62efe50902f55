/* Decides over the step. It sums the pairs of grad_norm to the norm of the whole gradient. It
 * aborts when a gradient (or, DTI_COMMIT_LOSSES, a loss) is not finite, and sets the factor of the
 * clipping. It asks for the dry pass where the norm does not prove that the update is finite. After
 * an aborted step, which no one has looked at yet, it aborts too. One workgroup.
 * torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)). */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/optim_body.h"
#include "lib/step.glsl"
#include "lib/reduce.glsl"
#include "lib/sums.glsl"

DTI_SUMS_OF(vec2)

DTI_PUSH(DTI_ARGS_COMMIT)
layout(binding = 0) readonly buffer buffer_pairs { float pairs[]; };
layout(binding = 1) buffer buffer_status { uint status[]; };
layout(binding = 2) buffer buffer_state { uint state[]; };

/* How many of this invocation's losses are not finite. */
float bad_losses(uint lane)
{
    float bad = 0.0;
    if ((args.flags & DTI_COMMIT_LOSSES) == 0u)
        return bad;
    for (uint i = lane; i < args.terms; i += gl_WorkGroupSize.x) {
        vec2 term = uintBitsToFloat(uvec2(status[DTI_STATUS_TERM(i)],
                                          status[DTI_STATUS_TERM(i) + 1u]));
        if (!dti_is_finite(term.x) || !dti_is_finite(term.y))
            bad += 1.0;
    }
    return bad;
}

/* Eight pairs are on their way before the first is added. One workgroup walks over all blocks, and
 * waits only for memory. */
vec2 sum_of(uint lane, vec2 sum)
{
    const uint AHEAD = 8u;
    uint b = lane, step = gl_WorkGroupSize.x;
    dti_sum_vec2 sums = DTI_SUM_NONE(vec2);
    for (; b + (AHEAD - 1u) * step < args.blocks; b += AHEAD * step) {
        vec2 ahead[AHEAD];
        [[unroll]] for (uint k = 0u; k < AHEAD; k++)
            ahead[k] = vec2(pairs[2u * (b + k * step)], pairs[2u * (b + k * step) + 1u]);
        [[unroll]] for (uint k = 1u; k < AHEAD; k++)
            ahead[0] += ahead[k];
        dti_add(sums, ahead[0]);
    }
    for (; b < args.blocks; b += step)
        sum += vec2(pairs[2u * b], pairs[2u * b + 1u]);
    return dti_sum(sums) + sum;
}

void main()
{
    uint lane = gl_LocalInvocationID.x;
    if (dti_group() != 0u)
        return;
    vec2 sum = dti_group_sum2(sum_of(lane, vec2(0.0, bad_losses(lane))),
                              max(args.blocks, args.terms));
    if (lane != 0u)
        return;
    float norm = sqrt(sum.x);
    float limit = dti_step_f32(DTI_STEP_CLIP_NORM);
    bool behind = (dti_step_u32(DTI_STEP_FLAGS) & DTI_FLAG_BEHIND) != 0u;
    bool lost = state[DTI_CONTROL_ABORT] != 0u || state[DTI_CONTROL_BAD] != DTI_BAD_NONE;
    bool looked = behind && state[DTI_CONTROL_CHECK] != 0u; /* how large values are is not known */
    uint abort = behind && lost ? DTI_ABORT_BEHIND : sum.y > 0.0 ? 1u : 0u;
    state[DTI_CONTROL_ABORT] = abort;
    float clip = limit > 0.0 ? min(1.0, limit / (norm + 1e-6)) : 1.0;
    state[DTI_CONTROL_CLIP] =
        floatBitsToUint((args.flags & DTI_COMMIT_MAXIMIZE) != 0u ? -clip : clip);
    status[DTI_STATUS_ABORT] = abort;
    status[DTI_STATUS_NORM] = floatBitsToUint(norm);
    bool proven = dti_is_finite(norm) && norm <= dti_step_f32(DTI_STEP_PROVEN) && !looked;
    state[DTI_CONTROL_CHECK] = abort == 0u && !proven ? 1u : 0u;
    state[DTI_CONTROL_BAD] = status[DTI_STATUS_BAD] = DTI_BAD_NONE;
    [[unroll]] for (uint i = 0u; i < uint(DTI_OPTIM_VALUES); i++)
        state[DTI_CONTROL_LARGEST(i)] = status[DTI_STATUS_LARGEST(i)] = 0u;
}
