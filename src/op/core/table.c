/* The tables of rows and of kernels: the expansions of DTI_OP_LIST and DTI_KERNEL_LIST. */

/* Families are in their files, or after the library. */
#define DTI_X(ID, op, inputs, sample, prec, fam, select, text)                                     \
    static const dti_op_family dti_family_##fam;
DTI_OP_LIST(DTI_X)
#undef DTI_X

static const dti_op_info dti_op_table[DTI_OP_COUNT] = {
#define DTI_X(ID, op, inputs, sample, prec, fam, select, text)                                     \
    [DTI_OP_##ID] = {.name = #op,                                                                  \
                     .inputs_min = (uint8_t)((inputs)[0] - '0'),                                   \
                     .inputs_more = sizeof(inputs) > 2,                                            \
                     .samples = DTI_SAMPLES_##sample,                                              \
                     .precision = DTI_PRECISION_##prec,                                            \
                     .selector = (select),                                                         \
                     .family = &dti_family_##fam},
    DTI_OP_LIST(DTI_X)
#undef DTI_X
};

static const dti_op_info *dti_op_info_of(uint32_t op) {
    return &dti_op_table[op < DTI_OP_COUNT ? op : DTI_OP_NIL];
}

static const dti_kernel_info *const dti_kernel_table[DTI_K_COUNT] = {
#define DTI_X(ID) [DTI_K_##ID] = &dti_kernel_##ID,
    DTI_KERNEL_LIST(DTI_X)
#undef DTI_X
};

static const dti_kernel_info *dti_kernel_info_of(uint32_t kernel) {
    return dti_kernel_table[kernel];
}

static dti_effort dti_launch_effort(const dti_launch *launch, uint32_t variant, uint32_t local) {
    const dti_kernel_info *kernel = dti_kernel_info_of(launch->kernel);
    return kernel->effort ? kernel->effort(launch, variant, local) : (dti_effort){1, launch->items};
}

static uint64_t dti_row_length(const dti_launch *l) {
    return ((const uint32_t *)(const void *)&l->args)[dti_kernel_info_of(l->kernel)->each];
}

static dti_effort dti_row_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    return dti_effort_rows(l->items, dti_row_length(l), dti_kernel_info_of(l->kernel)->passes,
                           local);
}

static uint64_t dti_row_rounds(const dti_launch *l, uint32_t local) {
    return dti_rounds_of(dti_row_length(l), dti_kernel_info_of(l->kernel)->passes, local);
}

static uint64_t dti_row_width(const dti_launch *l) {
    uint32_t spec[4];
    dti_kernel_info_of(l->kernel)->tile(l, 0, spec);
    return dti_row_length(l) / (spec[3] & DTI_ROW_FOURS ? 4 : 1);
}

static bool dti_launch_makes_floats(const dti_launch *launch) {
    const dti_kernel_info *kernel = dti_kernel_info_of(launch->kernel);
    return !kernel->moves || !kernel->moves(launch);
}
