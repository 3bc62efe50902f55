/* How a body file is compiled for each instruction set; base/isa.h has the sets and finds those of
 * the CPU.
 *
 * A body file (simd_body.h, gemm_body.h, vmath_body.h, vec_body.h) is included once per set between
 * the pragmas that raise the compiler's target, with these macros defined:
 *   DTI_ISA(name)   name with the set's suffix
 *   DTI_LANES       floats in the native vector: 4, 8 or 16
 *
 * That gives two vector types: the native one (DTI_N...: GEMM), and one of 16 lanes on every set
 * (DTI_V...: everything else). So sums have one order on every CPU.
 *
 * Bits: AVX2, AVX-512 and a portable build with hardware FMA (AArch64, or x86 with -mfma) agree bit
 * for bit. Portable x86 without FMA multiplies and adds: a sum-order class of its own. */

#if defined __FMA__ || defined __aarch64__ || defined __riscv_f || defined __powerpc64__
#define DTI_PORTABLE_FMA 1
#else
#define DTI_PORTABLE_FMA 0
#endif

#ifdef __clang__
#define DTI_UNROLL(n) DTI_PRAGMA(clang loop unroll(full))
#else
#define DTI_UNROLL(n) DTI_PRAGMA(GCC unroll n)
#endif

/* Keeps a moving pointer in one register. Compilers would compute an address for every step of an
 * unrolled loop, before the loop around it. */
#define DTI_HIDE_POINTER(x) __asm__("" : "+r"(x))

/* The tree: lane i + lane i+8, then +4, +2, +1. */
typedef float dti_quad __attribute__((vector_size(16), aligned(4), may_alias));
DTI_NOINLINE float dti_tree_sum(const float t[16]) {
    const dti_quad *q = (const dti_quad *)t;
    const dti_quad x = (q[0] + q[2]) + (q[1] + q[3]);
    return (x[0] + x[2]) + (x[1] + x[3]);
}
