/* Compiles the kernel bodies once per instruction set and chooses among them. */

#define DTI_ROW_MAP(number, ID, name, slope) [number] = DTI_V(map_##name),
#define DTI_ROW_GRAD(number, ID, name, slope) [number] = DTI_V(grad_##name),
#define DTI_ROW_PAIR(number, ID, name) [number] = DTI_V(pair_##name),
#define DTI_ROW_CONSTANTS(number, ID, name, least, most) [number] = DTI_V(constants_##name),
#define DTI_ROW_UPDATE(number, ID, name, least, most) [number] = DTI_V(update_##name),
#define DTI_KERNEL_TABLE(isa_, fma_, name_)                                                        \
    static const dti_isa_kernels DTI_ISA(dti_isa_kernels) = {                                      \
        .isa = isa_,                                                                               \
        .fma = fma_,                                                                               \
        .name = name_,                                                                             \
        .gemm_block = DTI_N(gemm_block),                                                           \
        .unary = {DTI_UNARY_LIST(DTI_ROW_MAP)},                                                    \
        .unary_grad = {DTI_UNARY_LIST(DTI_ROW_GRAD)},                                              \
        .binary = {DTI_BINARY_LIST(DTI_ROW_PAIR)},                                                 \
        .axpy = DTI_V(axpy),                                                                       \
        .row_sum = DTI_V(row_sum),                                                                 \
        .row_sum_sq = DTI_V(row_sum_sq),                                                           \
        .row_max = DTI_V(row_max),                                                                 \
        .row_largest = DTI_V(row_largest),                                                         \
        .log_sum_exp = DTI_V(log_sum_exp),                                                         \
        .softmax = DTI_V(softmax),                                                                 \
        .log_softmax = DTI_V(log_softmax),                                                         \
        .softmax_grad = DTI_V(softmax_grad),                                                       \
        .log_softmax_grad = DTI_V(log_softmax_grad),                                               \
        .col_sum = DTI_V(col_sum),                                                                 \
        .optim_constants = {DTI_OPTIM_LIST(DTI_ROW_CONSTANTS)},                                    \
        .optim_update = {DTI_OPTIM_LIST(DTI_ROW_UPDATE)},                                          \
        .dropout = DTI_V(dropout),                                                                 \
        .philox = DTI_V(philox),                                                                   \
        .normal_quantile = DTI_N(normal_quantile),                                                 \
        .conv = &DTI_N(conv_kernels),                                                              \
        .pool_max = DTI_N(pool_max),                                                               \
        .pool_mean = DTI_N(pool_mean),                                                             \
        .pool_pairs = DTI_N(pool_pairs),                                                           \
        .norm_moment = DTI_V(norm_moment),                                                         \
        .norm_moments = DTI_V(norm_moments),                                                       \
        .norm_line = DTI_V(norm_line),                                                             \
        .norm_dots = DTI_V(norm_dots),                                                             \
        .norm_columns = DTI_V(norm_columns),                                                       \
        .norm_slope = DTI_V(norm_slope),                                                           \
        .widen = {[DT_BF16] = DTI_H(widen_bf16), [DT_F16] = DTI_H(widen_f16)},                     \
        .narrow = {[DT_BF16] = DTI_H(narrow_bf16), [DT_F16] = DTI_H(narrow_f16)}};

#define DTI_ISA(name) DTI_CAT(name, _portable)
#define DTI_LANES 4
#include "simd_body.h"
#include "gemm_body.h"
#include "vmath_body.h"
#include "vec_body.h"
#include "quantile_body.h"
#include "norm_body.h"
#include "pool_body.h"
#include "conv_body.h"
#include "half_arrays_body.h"
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

static const dti_isa_kernels *dti_isa_kernels_select(int isa_max) {
#if DTI_X86
    int isa = dti_isa_select(isa_max);
    if (isa == DTI_ISA_AVX512)
        return &dti_isa_kernels_avx512;
    if (isa == DTI_ISA_AVX2)
        return &dti_isa_kernels_avx2;
#endif
    (void)isa_max;
    return &dti_isa_kernels_portable;
}
