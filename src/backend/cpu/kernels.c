/* The CPU function of every kernel of DTI_KERNEL_LIST. Each stands beside the op that emits it, in
 * src/op; this table is all that the executor sees. */

static const dti_cpu_kernel dti_cpu_kernel_table[DTI_K_COUNT] = {
    [DTI_K_MAP1] = {dti_cpu_map1, NULL, dti_cpu_grain_function, NULL},
    [DTI_K_COPY] = {dti_cpu_copy, NULL, dti_cpu_grain_copy, NULL},
    [DTI_K_MAP1_GRAD] = {dti_cpu_map1_grad, NULL, dti_cpu_grain_function, NULL},
    [DTI_K_MAP2] = {dti_cpu_map2, NULL, dti_cpu_grain_map2, NULL},
    [DTI_K_REDUCE] = {dti_cpu_reduce, NULL, dti_cpu_grain_reduce, NULL},
    [DTI_K_REDUCE_ROW] = {dti_cpu_reduce_row, NULL, dti_cpu_grain_reduce, NULL},
    [DTI_K_GEMM] = {dti_cpu_gemm, dti_cpu_items_gemm, dti_cpu_grain_gemm, dti_cpu_scratch_gemm},
    [DTI_K_SOFTMAX] = {dti_cpu_softmax, NULL, dti_cpu_grain_rows, NULL},
    [DTI_K_SOFTMAX_GRAD] = {dti_cpu_softmax_grad, NULL, dti_cpu_grain_rows, NULL},
    [DTI_K_XENT] = {dti_cpu_xent, NULL, dti_cpu_grain_xent, NULL},
    [DTI_K_XENT_GRAD] = {dti_cpu_xent_grad, NULL, dti_cpu_grain_xent, NULL},
    [DTI_K_TERM] = {dti_cpu_term, NULL, dti_cpu_grain_term, NULL},
    [DTI_K_TERM_SUM] = {dti_cpu_term_sum, NULL, NULL, NULL},
    [DTI_K_MSE_GRAD] = {dti_cpu_mse_grad, NULL, dti_cpu_grain_flat, NULL},
    [DTI_K_SEED] = {dti_cpu_seed, NULL, NULL, NULL},
    [DTI_K_GATHER] = {dti_cpu_gather, NULL, dti_cpu_grain_copy, NULL},
    [DTI_K_SCATTER_ADD] = {dti_cpu_scatter_add, NULL, dti_cpu_grain_scatter_add, NULL},
    [DTI_K_DROPOUT] = {dti_cpu_dropout, NULL, dti_cpu_grain_function, NULL},
    [DTI_K_ACCUMULATE] = {dti_cpu_accumulate, NULL, dti_cpu_grain_flat, NULL},
    [DTI_K_GRAD_NORM] = {dti_cpu_grad_norm, NULL, dti_cpu_grain_blocks, NULL},
    [DTI_K_NORM_FINISH] = {dti_cpu_norm_finish, NULL, NULL, NULL},
    [DTI_K_OPTIM] = {dti_cpu_optim, NULL, dti_cpu_grain_blocks, NULL},
    [DTI_K_OPTIM_TICK] = {dti_cpu_optim_tick, NULL, dti_cpu_grain_copy, NULL},
    [DTI_K_SCAN] = {dti_cpu_scan, NULL, dti_cpu_grain_copy, NULL},
};
