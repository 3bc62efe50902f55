/* The modules of shader_table.h, which ./build.sh shaders packs, and the modes that a driver must
 * preserve. A module is unpacked when a pipeline is made of it (unpack.c). */

#define DTI_VK_SPIRV_HEADER 5 /* words before the first instruction */

static const dti_vk_shader *dti_vk_shader_of(uint32_t kernel, uint32_t variant) {
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++)
        if (dti_vk_shaders[i].kernel == kernel && dti_vk_shaders[i].variant == variant)
            return &dti_vk_shaders[i];
    return NULL;
}

/* The module's SPIR-V, with dti_free. */
static dt_result dti_vk_shader_words(dti_base *base, const dti_vk_shader *shader, uint32_t **out) {
    *out = dti_alloc_array(base, shader->word_count, 2 * sizeof **out);
    dti_vk_odds *odds = dti_alloc_array(base, DTI_VK_ODDS, sizeof *odds);
    const bool memory = *out && odds;
    const bool whole = memory && dti_vk_shader_unpack(shader, (const uint8_t *)shader->packed,
                                                      shader->packed_bytes, odds, *out);
    dti_free(base, odds);
    if (whole)
        return DT_OK;
    dti_free(base, *out);
    *out = NULL;
    if (!memory)
        return DT_ERROR_MEMORY;
    return dti_fail(base, DT_ERROR_UNSUPPORTED, "the Vulkan kernel %s is damaged", shader->name);
}

/* ---- Modes that a driver must preserve
 * --------------------------------------------------------- */

enum { /* of SPIR-V */
       DTI_SPIRV_EXTENSION = 10,
       DTI_SPIRV_IMPORT = 11,
       DTI_SPIRV_MEMORY_MODEL = 14,
       DTI_SPIRV_ENTRY_POINT = 15,
       DTI_SPIRV_EXECUTION_MODE = 16,
       DTI_SPIRV_CAPABILITY = 17,
       DTI_SPIRV_TYPE_BOOL = 20,
       DTI_SPIRV_TYPE_INT = 21,
       DTI_SPIRV_TYPE_FLOAT = 22,
       DTI_SPIRV_TRUE = 41,
       DTI_SPIRV_FALSE = 42,
       DTI_SPIRV_CONSTANT = 43,
       DTI_SPIRV_COMPOSITE = 44,
       DTI_SPIRV_SPEC_TRUE = 48,
       DTI_SPIRV_SPEC_FALSE = 49,
       DTI_SPIRV_SPEC_CONSTANT = 50,
       DTI_SPIRV_SPEC_COMPOSITE = 51,
       DTI_SPIRV_SPEC_OP = 52,
       DTI_SPIRV_FUNCTION = 54,
       DTI_SPIRV_DECORATE = 71,
       DTI_SPIRV_EXTRACT = 81,
       DTI_SPIRV_EXECUTION_MODE_ID = 331,
       DTI_SPIRV_SPEC_ID = 1,                /* a decoration */
       DTI_SPIRV_PRESERVE_CAPABILITY = 4466, /* SignedZeroInfNanPreserve: the capability */
       DTI_SPIRV_PRESERVE_MODE = 4461        /* its mode, for floats of the given number of bits */
};

#define DTI_SPIRV_HEAD(words, opcode) ((uint32_t)(words) << 16 | (opcode))

static size_t dti_spirv_insert(uint32_t *words, size_t count, size_t at, const uint32_t *more,
                               size_t size) {
    memmove(words + at + size, words + at, (count - at) * sizeof *words);
    memcpy(words + at, more, size * sizeof *words);
    return count + size;
}

/* The first other instruction. */
static size_t dti_spirv_behind(const uint32_t *words, size_t count, const uint32_t *opcodes) {
    size_t at = DTI_VK_SPIRV_HEADER;
    while (at < count && words[at] >> 16) {
        const uint32_t *of = opcodes;
        while (*of && *of != (words[at] & 0xffffu))
            of++;
        if (!*of)
            break;
        at += words[at] >> 16;
    }
    return DTI_MIN(at, count);
}

/* Asks the driver to preserve infinities, NaN and signed zeros of 32 bits, of all properties that
 * it may ignore. Denormals and the direction of rounding are left to it. Keeping denormals costs
 * time on some devices, results do not need them, and all devices round to nearest. Returns the
 * module's new number of words; there is room for DTI_VK_PRESERVE_WORDS more. */
#define DTI_VK_PRESERVE_WORDS 13
static size_t dti_vk_shader_preserve(uint32_t *words, size_t count) {
    static const uint32_t before_modes[] = {DTI_SPIRV_CAPABILITY,
                                            DTI_SPIRV_EXTENSION,
                                            DTI_SPIRV_IMPORT,
                                            DTI_SPIRV_MEMORY_MODEL,
                                            DTI_SPIRV_ENTRY_POINT,
                                            DTI_SPIRV_EXECUTION_MODE,
                                            DTI_SPIRV_EXECUTION_MODE_ID,
                                            0};
    static const uint32_t before_extensions[] = {DTI_SPIRV_CAPABILITY, 0};
    static const uint32_t before_entry[] = {DTI_SPIRV_CAPABILITY, DTI_SPIRV_EXTENSION,
                                            DTI_SPIRV_IMPORT, DTI_SPIRV_MEMORY_MODEL, 0};
    const size_t entry = dti_spirv_behind(words, count, before_entry);
    const size_t modes = dti_spirv_behind(words, count, before_modes);
    if (entry + 2 >= count || (words[entry] & 0xffffu) != DTI_SPIRV_ENTRY_POINT)
        return count;
    const uint32_t mode[4] = {DTI_SPIRV_HEAD(4, DTI_SPIRV_EXECUTION_MODE), words[entry + 2],
                              DTI_SPIRV_PRESERVE_MODE, 32};
    const uint32_t capability[2] = {DTI_SPIRV_HEAD(2, DTI_SPIRV_CAPABILITY),
                                    DTI_SPIRV_PRESERVE_CAPABILITY};
    const uint32_t extension[7] = {/* "SPV_KHR_float_controls", the first letter lowest */
                                   DTI_SPIRV_HEAD(7, DTI_SPIRV_EXTENSION),
                                   0x5f565053,
                                   0x5f52484b,
                                   0x616f6c66,
                                   0x6f635f74,
                                   0x6f72746e,
                                   0x736c};
    count = dti_spirv_insert(words, count, modes, mode, DTI_COUNT(mode));
    count = dti_spirv_insert(words, count, dti_spirv_behind(words, count, before_extensions),
                             extension, DTI_COUNT(extension));
    return dti_spirv_insert(words, count, DTI_VK_SPIRV_HEADER, capability, DTI_COUNT(capability));
}
