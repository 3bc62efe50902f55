/* The table of CPU kernels: one set of function pointers per instruction set, chosen once. */

typedef struct dti_cpu_kernels {
    int isa;          /* DTI_ISA_... */
    bool fma;         /* false: a sum-order class of its own */
    const char *name; /* for logs */
    dti_gemm_block_fn *gemm_block;
} dti_cpu_kernels;

/* Threads: any. Never NULL. */
static const dti_cpu_kernels *dti_cpu_kernels_select(int isa_max);
