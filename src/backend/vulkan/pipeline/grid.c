/* How a launch is laid out in workgroups, from its kernel's row and the device's known properties.
 * It asks no driver, so the plan of a program shows it too. */

/* Intel has 128 registers an invocation before Xe3, and tiles of 64 sums spill a hundred of them.
 * On Adreno 6xx they spill fifty (tools/check/vendors). Mali and VideoCore have 64 registers. */
static uint32_t dti_vk_grid_sums(uint32_t vendor_id, uint32_t device_id) {
    static const struct {
        uint32_t vendor, first, last;
    } few[] = {{0x8086, 0, 0xb07f}, /* Intel, but for Panther Lake */
               {0x8086, 0xb0c0, UINT32_MAX},
               {0x5143, 0, 0x42ffffff},  /* Qualcomm: the first byte is the generation */
               {0x13b5, 0, UINT32_MAX},  /* ARM */
               {0x14e4, 0, UINT32_MAX}}; /* Broadcom */
    for (size_t i = 0; i < DTI_COUNT(few); i++)
        if (vendor_id == few[i].vendor && device_id >= few[i].first && device_id <= few[i].last)
            return 32;
    return 0;
}

/* The sums that an invocation keeps: the least budget that the variant fits; 0: not counted. */
static uint32_t dti_vk_grid_sums_of(uint32_t kernel, uint32_t variant, const uint32_t spec[4],
                                    const dti_grid_device *device) {
    const dti_kernel_info *info = dti_kernel_info_of(kernel);
    dti_grid_device few = *device;
    if (!variant || !info->fits)
        return info->sums_by ? 8 * spec[info->sums_by] : 0;
    for (few.sums = 1; few.sums < DTI_VK_SUMS_MOST && !info->fits(variant, &few);)
        few.sums *= 2;
    return few.sums;
}

static uint32_t dti_vk_grid_variant(const dti_launch *launch, const dti_grid_device *device) {
    const dti_kernel_info *kernel = dti_kernel_info_of(launch->kernel);
    return kernel->variant && !device->portable ? kernel->variant(launch, device) : 0;
}

/* The launch's selectors and those that the device decides. */
static void dti_vk_spec_of(const dti_launch *launch, uint32_t variant,
                           const dti_grid_device *device, uint32_t spec[4]) {
    const dti_kernel_info *kernel = dti_kernel_info_of(launch->kernel);
    memcpy(spec, launch->spec, sizeof launch->spec);
    if (kernel->tile)
        kernel->tile(launch, variant, spec);
    if (kernel->sums_by && !variant && device->sums)
        spec[kernel->sums_by] = DTI_MIN(spec[kernel->sums_by], device->sums / 8);
}

static uint32_t dti_vk_types_of(const dti_launch *launch) {
    uint32_t types = 0;
    for (int b = 0; b < dti_kernel_info_of(launch->kernel)->bindings; b++)
        types |= (launch->dtype[b] == DT_BF16  ? DTI_STORED_BF16
                  : launch->dtype[b] == DT_F16 ? DTI_STORED_F16
                                               : DTI_STORED_WORD)
                 << 2 * b;
    return types;
}

/* 128 is what every device has. If an invocation does the work of many, workgroups are smaller.
 * That spreads a small product over more of the device. At each barrier a software driver switches
 * between a workgroup's vectors; 8 invocations are one vector (GRAD_NORM on lavapipe: 4.3 ms at
 * 128, 0.45 ms at 8). */
static uint32_t dti_vk_grid_local(uint32_t kernel, uint32_t variant,
                                  const dti_grid_device *device) {
    const dti_kernel_info *info = dti_kernel_info_of(kernel);
    if (info->local[variant])
        return info->local[variant];
    if (device->software && info->span == DTI_SPAN_GROUP)
        return 8;
    return info->lanes ? info->lanes : 128;
}

/* Not smaller than a subgroup: the rest of it would idle too. A kernel with a least size doubles it
 * up to its width. */
static uint32_t dti_vk_grid_local_of(const dti_launch *launch, uint32_t variant,
                                     const dti_grid_device *device) {
    const dti_kernel_info *info = dti_kernel_info_of(launch->kernel);
    uint32_t local = dti_vk_grid_local(launch->kernel, variant, device);
    if (!info->width || device->software)
        return local;
    const uint64_t width = info->width(launch);
    const uint64_t least = DTI_MAX(width, DTI_MIN(DTI_MAX(device->subgroup, 32u), 64u));
    while (info->local[variant] && local < width && 2 * local <= device->invocations_max)
        local *= 2;
    while (!info->local[variant] && local / 2 >= least)
        local /= 2;
    return local;
}

static uint64_t dti_vk_groups_of(const dti_launch *launch, const uint32_t spec[4], uint32_t variant,
                                 uint32_t local) {
    const dti_kernel_info *kernel = dti_kernel_info_of(launch->kernel);
    if (kernel->invocations)
        return dti_ceil_div(kernel->invocations(launch, variant, spec), local);
    return kernel->span == DTI_SPAN_GROUP ? launch->items : dti_ceil_div(launch->items, local);
}
