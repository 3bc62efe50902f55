/* The types of launches' operands. A launch whose kernel does not take them on the device is an
 * error. */

static bool dti_types_take(const dti_launch *l, int binding, const dti_limits *limits) {
    const bool hard = limits->no_hard_halves && dti_kernel_info_of(l->kernel)->hard_halves;
    return !dti_is_half(l->dtype[binding]) ||
           (!hard && dti_launch_takes_half(l, binding, limits->workgroups));
}

/* An unused binding repeats binding 0. */
static int dti_types_misfit_of(const dti_launch *l, const dti_limits *limits) {
    for (int b = 0; b < dti_kernel_info_of(l->kernel)->bindings; b++)
        if ((!b || l->value[b] != l->value[0]) && !dti_types_take(l, b, limits))
            return b;
    return -1;
}

static const dti_launch *dti_types_misfit(const dti_listing *list, const dti_limits *limits) {
    for (uint32_t i = 0; i < list->launch_count; i++)
        if (dti_types_misfit_of(&list->launches[i], limits) >= 0)
            return &list->launches[i];
    return NULL;
}

static dt_result dti_types_refuse(const dti_code *code, const dti_launch *l) {
    const dti_node *n = &code->work->nodes[l->node];
    const int half = dti_types_misfit_of(l, &code->limits);
    return dti_code_fail(code, DT_ERROR_UNSUPPORTED,
                         "%s%s%s%s %s of %s: no kernel of this op takes 16 bits on this device; "
                         "dt_cast its inputs to f32, and its result back",
                         dti_op_info_of(n->op)->name, n->label ? " '" : "",
                         n->label ? n->label : "", n->label ? "'" : "",
                         dti_shape_print(n->shape, n->samples).text,
                         dti_dtype_name(l->dtype[half]));
}

static void dti_types_set(dti_listing *list) {
    for (uint32_t i = 0; i < list->launch_count; i++) {
        dti_launch *l = &list->launches[i];
        l->rounds = 0;
        for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
            l->dtype[b] = list->values[l->value[b]].dtype;
            l->rounds |= (uint8_t)(list->values[l->value[b]].rounded << b);
        }
    }
}

static dt_result dti_pass_types(dti_lowering *w) {
    dti_code *code = w->code;
    dti_types_set(&code->list);
    const dti_launch *misfit = dti_types_misfit(&code->list, &code->limits);
    return misfit ? dti_types_refuse(code, misfit) : DT_OK;
}
