/* The types that launches work on: each learns its operands', and one whose kernel or device does
 * not take them is refused. */

static dt_result dti_types_refuse(const dti_code *code, const dti_launch *l) {
    const dti_node *n = &code->work->nodes[l->node];
    int half = 0;
    while (!dti_is_half(l->dtype[half]))
        half++;
    return dti_code_fail(code, DT_ERROR_UNSUPPORTED,
                         "%s%s%s%s %s of %s: %s; dt_cast what it reads to f32, and its result back",
                         dti_op_info_of(n->op)->name, n->label ? " '" : "",
                         n->label ? n->label : "", n->label ? "'" : "",
                         dti_shape_print(n->shape, n->samples).text, dti_dtype_name(l->dtype[half]),
                         code->limits.halves ? "no kernel of this op takes 16 bits"
                                             : "this device computes only on f32 and i32");
}

static dt_result dti_pass_types(dti_lowering *w) {
    const dti_code *code = w->code;
    const dti_listing *list = &code->list;
    for (uint32_t i = 0; i < list->launch_count; i++) {
        dti_launch *l = &list->launches[i];
        for (int b = 0; b < DTI_BINDINGS_MAX; b++)
            l->dtype[b] = list->values[l->value[b]].dtype;
        const bool takes = code->limits.halves && dti_kernel_info_of(l->kernel)->halves;
        if (dti_launch_is_half(l) && !takes)
            return dti_types_refuse(code, l);
    }
    return DT_OK;
}
