/* The step block: see args.h for its words. */
layout(binding = 4, std140) uniform dti_step_block { uvec4 step_words[DTI_STEP_WORDS / 4]; };

uint dti_step_u32(uint word)
{
    return step_words[word >> 2][word & 3u];
}

float dti_step_f32(uint word)
{
    return uintBitsToFloat(dti_step_u32(word));
}

float dti_param_group_f32(uint group, uint word)
{
    return dti_step_f32(uint(DTI_STEP_GROUP(0)) + 8u * group + word);
}

/* All words of a parameter group (lib/optim_body.h). */
#define DTI_GROUP_F32(group)                                                                       \
    float[](dti_param_group_f32(group, 0u), dti_param_group_f32(group, 1u),                        \
            dti_param_group_f32(group, 2u), dti_param_group_f32(group, 3u),                        \
            dti_param_group_f32(group, 4u), dti_param_group_f32(group, 5u),                        \
            dti_param_group_f32(group, 6u), dti_param_group_f32(group, 7u))
