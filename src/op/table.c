/* The families by name and the table of rows: the expansion of DTI_OP_LIST. */

#ifdef DT_REFERENCE
#define DTI_REF(function) function
#else
#define DTI_REF(function) NULL
#endif

#define DTI_FAMILY(family, ...)                                                                    \
    static const dti_op_family dti_family_##family = {                                             \
        .ref = DTI_REF(dti_##family##_ref), .emit = dti_##family##_emit, __VA_ARGS__}

DTI_FAMILY(leaf, .shape = dti_leaf_shape);
DTI_FAMILY(fill, .shape = dti_fill_shape);
DTI_FAMILY(seed, .shape = dti_seed_shape, .takes_terms = true, .uniform = true);
DTI_FAMILY(unary, .shape = dti_shape_same, .grad = dti_unary_grad_rule, .flat = dti_unary_flat);
DTI_FAMILY(unary_grad, .shape = dti_unary_grad_shape, .grad = dti_unary_grad_grad,
           .lower = dti_unary_grad_lower);
DTI_FAMILY(binary, .shape = dti_binary_shape, .grad = dti_binary_grad, .flat = dti_binary_flat);
DTI_FAMILY(view, .shape = dti_view_shape, .grad = dti_view_grad, .flat = dti_view_flat,
           .view = true, .packs = dti_view_packs);
DTI_FAMILY(copy, .shape = dti_copy_shape, .grad = dti_copy_grad);
DTI_FAMILY(cast, .shape = dti_cast_shape);
DTI_FAMILY(concat, .shape = dti_concat_shape, .grad = dti_concat_grad);
DTI_FAMILY(pad, .shape = dti_pad_shape, .grad = dti_pad_grad);
DTI_FAMILY(reduce, .shape = dti_reduce_shape, .grad = dti_reduce_grad);
DTI_FAMILY(matmul, .shape = dti_matmul_shape, .grad = dti_matmul_grad, .macs = dti_matmul_macs);
DTI_FAMILY(linear, .shape = dti_linear_shape, .grad = dti_linear_grad, .macs = dti_weighted_macs);
DTI_FAMILY(linear_dx, .shape = dti_linear_dx_shape, .grad = dti_linear_dx_grad);
DTI_FAMILY(linear_dw, .shape = dti_linear_dw_shape, .grad = dti_linear_dw_grad);
DTI_FAMILY(softmax, .shape = dti_softmax_shape, .grad = dti_softmax_grad_rule,
           .lower = dti_softmax_lower);
DTI_FAMILY(softmax_grad, .shape = dti_shape_same, .lower = dti_softmax_grad_lower);
DTI_FAMILY(gather, .shape = dti_gather_shape, .grad = dti_gather_grad, .labels = dti_gather_labels);
DTI_FAMILY(scatter_add, .shape = dti_scatter_add_shape, .grad = dti_scatter_add_grad,
           .labels = dti_scatter_add_labels);
DTI_FAMILY(dropout, .shape = dti_dropout_shape, .grad = dti_dropout_grad, .idle = dti_dropout_idle);
DTI_FAMILY(cross_entropy, .shape = dti_cross_entropy_shape, .grad = dti_cross_entropy_grad_rule,
           .labels = dti_targets_labels, .weight = dti_cross_entropy_weight_of);
DTI_FAMILY(cross_entropy_weight, .shape = dti_cross_entropy_weight_shape);
DTI_FAMILY(cross_entropy_grad, .shape = dti_cross_entropy_grad_shape,
           .lower = dti_cross_entropy_grad_lower, .labels = dti_targets_labels);
DTI_FAMILY(accuracy, .shape = dti_accuracy_shape, .labels = dti_targets_labels);
DTI_FAMILY(mse, .shape = dti_mse_shape, .grad = dti_mse_grad_of_mse);
DTI_FAMILY(mse_grad, .shape = dti_mse_grad_shape, .lower = dti_mse_grad_lower);
DTI_FAMILY(conv2d, .shape = dti_conv2d_shape, .grad = dti_conv2d_grad, .macs = dti_weighted_macs);
DTI_FAMILY(conv2d_dx, .shape = dti_conv2d_dx_shape, .grad = dti_conv2d_dx_grad,
           .macs = dti_conv2d_dx_macs);
DTI_FAMILY(conv2d_dw, .shape = dti_conv2d_dw_shape, .grad = dti_conv2d_dw_grad);
DTI_FAMILY(max_pool2d, .shape = dti_max_pool2d_shape, .grad = dti_max_pool2d_grad_rule);
DTI_FAMILY(max_pool2d_at, .shape = dti_max_pool2d_at_shape, .grad = dti_max_pool2d_at_grad);
DTI_FAMILY(max_pool2d_grad, .shape = dti_max_pool2d_grad_shape, .grad = dti_max_pool2d_grad_grad);
DTI_FAMILY(avg_pool2d, .shape = dti_avg_pool2d_shape, .grad = dti_avg_pool2d_grad_rule);
DTI_FAMILY(avg_pool2d_grad, .shape = dti_avg_pool2d_grad_shape, .grad = dti_avg_pool2d_grad_grad);
DTI_FAMILY(resize, .shape = dti_resize_shape, .grad = dti_resize_grad_rule);
DTI_FAMILY(resize_grad, .shape = dti_resize_shape, .grad = dti_resize_grad_rule);
DTI_FAMILY(norm_stats, .shape = dti_norm_stats_shape, .lower = dti_norm_stats_lower);
DTI_FAMILY(batch_stats, .shape = dti_batch_stats_shape, .lower = dti_batch_stats_lower,
           .join = dti_batch_stats_join, .idle = dti_batch_stats_idle,
           .values = dti_batch_stats_values);
DTI_FAMILY(norm, .shape = dti_shape_same, .grad = dti_norm_grad_rule, .lower = dti_norm_lower);
DTI_FAMILY(norm_dx, .shape = dti_shape_same, .lower = dti_norm_dx_lower);
DTI_FAMILY(norm_dw, .shape = dti_norm_dw_shape, .lower = dti_norm_dw_lower);
DTI_FAMILY(batch_dx, .shape = dti_shape_same, .lower = dti_batch_dx_lower);
DTI_FAMILY(running, .shape = dti_running_shape, .update = dti_running_update);
DTI_FAMILY(mean_loss, .shape = dti_mean_loss_shape, .grad = dti_mean_loss_grad);

static const dti_op_info dti_op_table[DTI_OP_COUNT] = {
#define DTI_X(ID, op, inputs, sample, prec, fam, select, text)                                     \
    [DTI_OP_##ID] = {.name = #op,                                                                  \
                     .inputs_min = (uint8_t)((inputs)[0] - '0'),                                   \
                     .inputs_more = sizeof(inputs) > 2,                                            \
                     .samples = DTI_SAMPLES_##sample,                                              \
                     .precision = DTI_PRECISION_##prec,                                            \
                     .selector = (select),                                                         \
                     .family = &dti_family_##fam,                                                  \
                     .formula = (text)},
    DTI_OP_LIST(DTI_X)
#undef DTI_X
};

static const dti_op_info *dti_op_info_of(uint32_t op) {
    return &dti_op_table[op < DTI_OP_COUNT ? op : DTI_OP_NIL];
}

static const dti_kernel_info dti_kernel_table[DTI_K_COUNT] = {
#define DTI_X(id, file, count, how, over)                                                          \
    [DTI_K_##id] = {.name = #file, .access = (how), .bindings = (count), .span = DTI_SPAN_##over},
    DTI_KERNEL_LIST(DTI_X)
#undef DTI_X
};

static const dti_kernel_info *dti_kernel_info_of(uint32_t kernel) {
    return &dti_kernel_table[kernel];
}

static bool dti_launch_makes_floats(const dti_launch *launch) {
    return launch->kernel != DTI_K_COPY || launch->spec[0] == DTI_COPY_I32_F32 ||
           launch->spec[0] == DTI_COPY_FILL_F32;
}
