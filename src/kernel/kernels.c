/* Compiles the kernel bodies once per instruction set and chooses among them. */

#define DTI_KERNEL_TABLE(isa_, fma_, name_)                                                        \
    static const dti_cpu_kernels DTI_ISA(dti_cpu_kernels) = {                                      \
        .isa = isa_, .fma = fma_, .name = name_, .gemm_block = DTI_N(gemm_block)};

#define DTI_ISA(name) DTI_CAT(name, _portable)
#define DTI_LANES 4
#include "simd_body.h"
#include "gemm_body.h"
DTI_KERNEL_TABLE(DTI_ISA_PORTABLE, DTI_PORTABLE_FMA, "portable")
#undef DTI_ISA
#undef DTI_LANES

#if DTI_X86
#define DTI_ISA(name) DTI_CAT(name, _avx2)
#define DTI_LANES 8
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#include "simd_body.h"
#include "gemm_body.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
DTI_KERNEL_TABLE(DTI_ISA_AVX2, true, "avx2")
#undef DTI_ISA
#undef DTI_LANES

#define DTI_ISA(name) DTI_CAT(name, _avx512)
#define DTI_LANES 16
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))),   \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#endif
#include "simd_body.h"
#include "gemm_body.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
DTI_KERNEL_TABLE(DTI_ISA_AVX512, true, "avx512")
#undef DTI_ISA
#undef DTI_LANES
#endif

static const dti_cpu_kernels *dti_cpu_kernels_select(int isa_max) {
#if DTI_X86
    int isa = dti_isa_select(isa_max);
    if (isa == DTI_ISA_AVX512)
        return &dti_cpu_kernels_avx512;
    if (isa == DTI_ISA_AVX2)
        return &dti_cpu_kernels_avx2;
#endif
    (void)isa_max;
    return &dti_cpu_kernels_portable;
}
