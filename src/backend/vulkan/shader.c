/* The modules of shader_table.h, which tools/shaders packs: an instruction's first word (its size
 * and opcode) apart from its operands, of both the four bytes apart, and that as one LZ4 block a
 * module. So 412 KB take 112. A module is unpacked when a pipeline is made of it. */

#ifndef DT_NO_VULKAN

#define DTI_VK_SPIRV_HEADER 5 /* words before the first instruction; they count as first words */

static const dti_vk_shader *dti_vk_shader_of(uint32_t kernel, uint32_t variant) {
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++)
        if (dti_vk_shaders[i].kernel == kernel && dti_vk_shaders[i].variant == variant)
            return &dti_vk_shaders[i];
    return NULL;
}

/* Word i of `count`, whose lowest bytes lie together, then the next ones. */
static uint32_t dti_vk_planes_word(const uint8_t *planes, size_t count, size_t i) {
    return (uint32_t)planes[i] | (uint32_t)planes[count + i] << 8 |
           (uint32_t)planes[2 * count + i] << 16 | (uint32_t)planes[3 * count + i] << 24;
}

/* Each first word with as many operands behind it as it says. */
static bool dti_vk_spirv_join(const uint8_t *planes, size_t heads, uint32_t *words, size_t count) {
    const uint8_t *operands = planes + 4 * heads;
    const size_t operand_count = count - heads;
    size_t made = 0, taken = 0;
    for (size_t i = 0; i < heads; i++) {
        const uint32_t head = dti_vk_planes_word(planes, heads, i);
        const size_t size = i < DTI_VK_SPIRV_HEADER ? 1 : head >> 16;
        if (size == 0 || size - 1 > operand_count - taken)
            return false;
        words[made++] = head;
        for (size_t k = 1; k < size; k++)
            words[made++] = dti_vk_planes_word(operands, operand_count, taken++);
    }
    return made == count;
}

/* `words` has room for twice the module: the second half holds it in between. */
static bool dti_vk_shader_unpack(const dti_vk_shader *shader, const uint8_t *packed, size_t bytes,
                                 uint32_t *words) {
    const size_t count = shader->word_count;
    uint8_t *planes = (uint8_t *)(words + count);
    return shader->heads <= count && dti_lz4_decode(planes, 4 * count, packed, bytes) &&
           dti_vk_spirv_join(planes, shader->heads, words, count);
}

/* The module's SPIR-V, with dti_free. */
static dt_result dti_vk_shader_words(dti_base *base, const dti_vk_shader *shader, uint32_t **out) {
    *out = dti_alloc_array(base, shader->word_count, 2 * sizeof **out);
    if (!*out)
        return DT_ERROR_MEMORY;
    if (dti_vk_shader_unpack(shader, (const uint8_t *)shader->packed, shader->packed_bytes, *out))
        return DT_OK;
    dti_free(base, *out);
    return dti_fail(base, DT_ERROR_UNSUPPORTED, "the Vulkan kernel %s is damaged", shader->name);
}

#endif
