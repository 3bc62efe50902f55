/* Divisions by numbers that are known when a kernel is launched. GPUs cannot divide, and compilers
 * emit fifteen to twenty instructions for each. Dividends are below 2^31, so a product is enough
 * (Granlund and Montgomery, 1994). Let l = ceil(log2 d) and f = floor(2^(31 + l) / d) + 1, which
 * fits in 32 bits. Then f d = 2^(31 + l) + e, with e at most d, so at most 2^l. Then
 *
 *     i f / 2^(31 + l) = i / d + (i e / 2^(31 + l)) / d,
 *
 * where i e < 2^31 2^l: less than 1/d is added, and no whole number is reached. The kernel makes (2
 * i f >> 32) >> l of it. */

static uint32_t dti_vk_divide_factor(uint32_t d) {
    uint32_t l = 0;
    while (l < 32 && ((uint64_t)1 << l) < d)
        l++;
    return (uint32_t)(((uint64_t)1 << (31 + l)) / d + 1);
}

/* The factors of a walk, written to unused dims: that of axis a of `used` lies at a + used - 7
 * (lib/index.glsl). */
static void dti_vk_divide_walk(uint32_t dim[DTI_AXES], uint32_t used) {
    for (uint32_t axis = DTI_AXES - 1; axis > DTI_AXES - used; axis--)
        dim[axis + used - DTI_AXES - 1] = dti_vk_divide_factor(dim[axis]);
}

_Static_assert(offsetof(dti_args_map1, dim) == offsetof(dti_args_map2, dim), "written as one");

/* Of a launch as it is pushed. */
static void dti_vk_divide_args(const dti_launch *l, dti_args *args) {
    const dti_kernel_info *kernel = dti_kernel_info_of(l->kernel);
    const uint32_t used = l->spec[3];
    if (kernel->walks && used >= 2 && used <= DTI_WALK_QUICK)
        dti_vk_divide_walk(args->map2.dim, used); /* of all that walk */
    uint32_t *const words = (uint32_t *)args;
    for (uint32_t i = 0; i < kernel->divides.count; i++) {
        const uint32_t d = words[kernel->divides.word[i]];
        words[kernel->divides.at + i] = d ? dti_vk_divide_factor(d) : 0;
    }
    for (uint32_t axis = 1; kernel->far && used > DTI_WALK_QUICK && axis < DTI_AXES; axis++)
        args->map1.far[axis - 1] = dti_vk_divide_factor(args->map1.dim[axis]);
}
