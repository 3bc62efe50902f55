/* The table of CPU kernels: one set of function pointers per instruction set, chosen once. Most are
 * declared where they are defined, by DTI_ISA_FUNCTION(V or N, type, name); ./build.sh header lists
 * them. Products and convolutions are called through gemm.h and conv.h. */

#include "isa_list.h"
#define DTI_ISA_FUNCTION(kind, type, name) static dti_##type##_fn DTI_##kind(name)
/* For a feature that can be left out (base/optional.h). */
#define DTI_ISA_FUNCTION_OF(feature, kind, type, name) DTI_ISA_FUNCTION(kind, type, name)

typedef struct dti_isa_kernels {
    int isa;          /* DTI_ISA_... */
    bool fma;         /* false: a sum-order class of its own */
    const char *name; /* for logs */
#define DTI_X(feature, kind, type, function) dti_##type##_fn *function;
    DTI_ISA_LIST(DTI_X)
#undef DTI_X
    dti_unary_fn *unary[DTI_U_COUNT];
    dti_unary_grad_fn *unary_grad[DTI_U_COUNT];
    dti_binary_fn *binary[DTI_B_COUNT];
    dti_optim_constants_fn *optim_constants[DTI_OPTIM_KINDS]; /* by dt_optim_kind */
    dti_optim_update_fn *optim_update[DTI_OPTIM_KINDS];
    dti_optim_measure_fn *optim_measure[DTI_OPTIM_KINDS]; /* for those that need whole parameters */
    dti_gemm_block_fn *gemm_pairs;      /* of bf16 with bf16; NULL: they are widened */
    const dti_conv_kernels *conv;       /* through dti_conv_run() and dti_conv_dw_run() */
    const dti_conv_kernels *conv_pairs; /* of words of bf16; NULL: they are widened */
    dti_widen_fn *widen[DT_F16 + 1];    /* by type, of the 16-bit ones */
    dti_narrow_fn *narrow[DT_F16 + 1];
} dti_isa_kernels;

/* The set of that number, if it is one of x86's; else NULL. */
static const dti_isa_kernels *dti_isa_kernels_x86(int isa);
/* Threads: any. Never NULL. */
static const dti_isa_kernels *dti_isa_kernels_select(int isa_max);
