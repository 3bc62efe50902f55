/* Compiles the kernel bodies once per instruction set and chooses among them. */

#define DTI_ROW_MAP(number, ID, name, slope) [number] = DTI_V(map_##name),
#define DTI_ROW_GRAD(number, ID, name, slope) [number] = DTI_V(grad_##name),
#define DTI_ROW_PAIR(number, ID, name) [number] = DTI_V(pair_##name),
#define DTI_ROW_CONSTANTS(number, ID, name, least, most) [number] = DTI_V(constants_##name),
#define DTI_ROW_UPDATE(number, ID, name, least, most) [number] = DTI_V(update_##name),
#define DTI_ROW_FUNCTION(kind, type, name) .name = DTI_##kind(name),
#define DTI_KERNEL_TABLE(isa_, fma_, name_)                                                        \
    static const dti_isa_kernels DTI_ISA(dti_isa_kernels) = {                                      \
        .isa = isa_,                                                                               \
        .fma = fma_,                                                                               \
        .name = name_,                                                                             \
        DTI_ISA_LIST(DTI_ROW_FUNCTION).unary = {DTI_UNARY_LIST(DTI_ROW_MAP)},                      \
        .unary_grad = {DTI_UNARY_LIST(DTI_ROW_GRAD)},                                              \
        .binary = {DTI_BINARY_LIST(DTI_ROW_PAIR)},                                                 \
        .optim_constants = {DTI_OPTIM_LIST(DTI_ROW_CONSTANTS)},                                    \
        .optim_update = {DTI_OPTIM_LIST(DTI_ROW_UPDATE)},                                          \
        .conv = &DTI_N(conv_kernels),                                                              \
        .widen = {[DT_BF16] = DTI_H(widen_bf16), [DT_F16] = DTI_H(widen_f16)},                     \
        .narrow = {[DT_BF16] = DTI_H(narrow_bf16), [DT_F16] = DTI_H(narrow_f16)}};

#define DTI_ISA(name) DTI_CAT(name, _portable)
#define DTI_LANES 4
#include "simd_body.h"
#include "gemm_body.h"
#include "conv_body.h"
#if DTI_X86
DTI_OPTIMIZE_SIZE /* for CPUs from before 2013 */
#endif
#include "vmath_body.h"
#include "vec_body.h"
#include "attention_body.h"
#include "recurrence_body.h"
#include "quantile_body.h"
#include "norm_body.h"
#include "pool_body.h"
#include "half_arrays_body.h"
#if DTI_X86
DTI_OPTIMIZE_END
#endif
#ifdef __aarch64__
DTI_KERNEL_TABLE(DTI_ISA_PORTABLE, DTI_PORTABLE_FMA, "neon")
#else
DTI_KERNEL_TABLE(DTI_ISA_PORTABLE, DTI_PORTABLE_FMA, "portable")
#endif
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
#include "vmath_body.h"
#include "vec_body.h"
#include "attention_body.h"
#include "recurrence_body.h"
#include "quantile_body.h"
#include "norm_body.h"
#include "pool_body.h"
#include "conv_body.h"
#include "half_arrays_body.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
DTI_KERNEL_TABLE(DTI_ISA_AVX2, true, "avx2")
#undef DTI_ISA
#undef DTI_LANES
#endif

#if DTI_X86_AVX512
#define DTI_ISA(name) DTI_CAT(name, _avx512)
#define DTI_LANES 16
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))),    \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#endif
#include "simd_body.h"
#include "gemm_body.h"
#include "vmath_body.h"
#include "vec_body.h"
#include "attention_body.h"
#include "recurrence_body.h"
#include "quantile_body.h"
#include "norm_body.h"
#include "pool_body.h"
#include "conv_body.h"
#include "half_arrays_body.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
DTI_KERNEL_TABLE(DTI_ISA_AVX512, true, "avx512")
#undef DTI_ISA
#undef DTI_LANES
#endif

DTI_SEAM const dti_isa_kernels *dti_isa_kernels_select(int isa_max) {
#if DTI_X86
    int isa = dti_isa_select(isa_max);
#if DTI_X86_AVX512
    if (isa == DTI_ISA_AVX512)
        return &dti_isa_kernels_avx512;
#endif
    if (isa == DTI_ISA_AVX2)
        return &dti_isa_kernels_avx2;
#endif
    (void)isa_max;
    return &dti_isa_kernels_portable;
}
