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
