/* The table of CPU kernels: one set of function pointers per instruction set, chosen once. */

typedef struct dti_isa_kernels {
    int isa;                       /* DTI_ISA_... */
    bool fma;                      /* false: a sum-order class of its own */
    const char *name;              /* for logs */
    dti_gemm_block_fn *gemm_block; /* through dti_gemm_run() */
    dti_unary_fn *unary[DTI_U_COUNT];
    dti_unary_grad_fn *unary_grad[DTI_U_COUNT];
    dti_binary_fn *binary[DTI_B_COUNT];
    dti_axpy_fn *axpy;
    dti_fold_fn *row_sum, *row_sum_sq, *row_max, *log_sum_exp;
    dti_largest_fn *row_largest;
    dti_row_fn *softmax, *log_softmax;
    dti_row_grad_fn *softmax_grad, *log_softmax_grad; /* of y = (log_)softmax(x) and dy */
    dti_col_sum_fn *col_sum;
    dti_optim_constants_fn *optim_constants[DTI_OPTIM_KINDS]; /* by dt_optim_kind */
    dti_optim_update_fn *optim_update[DTI_OPTIM_KINDS];
    dti_dropout_fn *dropout;
    dti_philox_fn *philox;
    dti_quantile_fn *normal_quantile;
    const dti_conv_kernels *conv; /* through dti_conv_run() and dti_conv_dw_run() */
    dti_pool_max_fn *pool_max;
    dti_pool_mean_fn *pool_mean;
    dti_pool_pairs_fn *pool_pairs;
    dti_norm_moment_fn *norm_moment;
    dti_norm_moments_fn *norm_moments;
    dti_norm_line_fn *norm_line;
    dti_norm_dots_fn *norm_dots;
    dti_norm_columns_fn *norm_columns;
    dti_norm_slope_fn *norm_slope;
    dti_widen_fn *widen[DT_F16 + 1]; /* by type, of the 16-bit ones */
    dti_narrow_fn *narrow[DT_F16 + 1];
} dti_isa_kernels;

/* Threads: any. Never NULL. */
static const dti_isa_kernels *dti_isa_kernels_select(int isa_max);
