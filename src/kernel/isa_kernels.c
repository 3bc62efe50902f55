/* Compiles the kernel bodies once per instruction set and chooses among them. Part KERNELS has the
 * portable set, and SIMD those of x86. The latter take as long to compile as the rest of
 * kernel/. */

/* Functions that AVX-512 has for itself. They are limited by arithmetic, so vectors of twice the
 * width are 1.4 to 1.9 times as fast (docs/speed.md). It takes other functions of elements and
 * optimizers from AVX2, also those that gain less than a tenth. Their bits are the same (simd.h).
 * An optimizing compiler drops functions that no table names. This is the one place that
 * decides. */
#define DTI_OWN_MAPS(X)                                                                            \
    X(NEG, neg)                                                                                    \
    X(ABS, abs)                                                                                    \
    X(EXP, exp)                                                                                    \
    X(LOG, log)                                                                                    \
    X(SQUARE, square)                                                                              \
    X(TANH, tanh)                                                                                  \
    X(SIGMOID, sigmoid)                                                                            \
    X(RELU, relu)                                                                                  \
    X(GELU, gelu)                                                                                  \
    X(GELU_TANH, gelu_tanh)                                                                        \
    X(SILU, silu)                                                                                  \
    X(SOFTPLUS, softplus)                                                                          \
    X(LOG_SIGMOID, log_sigmoid)                                                                    \
    X(LEAKY_RELU, leaky_relu)                                                                      \
    X(AFFINE, affine)                                                                              \
    X(CLAMP, clamp)                                                                                \
    X(COPY, copy)
#define DTI_OWN_PAIRS(X)                                                                           \
    X(ADD, add) X(SUB, sub) X(MUL, mul) X(DIV, div) X(MAXIMUM, maximum) X(MINIMUM, minimum)
#define DTI_OWN_OPTIMIZERS(X) X(1, sgd) X(2, adam) X(DTI_OPTIM_STANDARD, adamw)
#define DTI_TAKEN_FUNCTIONS(X)                                                                     \
    X(RECURRENT, v, rnn_tanh)                                                                      \
    X(RECURRENT, v, rnn_relu)                                                                      \
    X(RECURRENT, v, rnn_tanh_back)                                                                 \
    X(RECURRENT, v, rnn_relu_back)                                                                 \
    X(ALWAYS, n, normal_quantile)                                                                  \
    X(ALWAYS, v, row_sum_sq)                                                                       \
    X(ALWAYS, v, row_largest)                                                                      \
    X(ALWAYS, v, col_sum)

#define DTI_TAKE_MAP(ID, name, slope) [DTI_U_##ID] = dti_v_map_##name##_avx2,
#define DTI_TAKE_GRAD(ID, name, slope) [DTI_U_##ID] = dti_v_grad_##name##_avx2,
#define DTI_TAKE_PAIR(ID, name) [DTI_B_##ID] = dti_v_pair_##name##_avx2,
#define DTI_TAKE_CONSTANTS(number, ID, name, least, most)                                          \
    [number] = DTI_HAS_OPTIM(number) ? dti_v_constants_##name##_avx2 : NULL,
#define DTI_TAKE_UPDATE(number, ID, name, least, most)                                             \
    [number] = DTI_HAS_OPTIM(number) ? dti_v_update_##name##_avx2 : NULL,
#define DTI_TAKE_MEASURE(number, ID, name, least, most)                                            \
    [number] = DTI_HAS_OPTIM(number) ? dti_v_measure_##name##_avx2 : NULL,
#define DTI_TAKE_FUNCTION(feature, kind, name)                                                     \
    .name = DTI_HAS_##feature ? dti_##kind##_##name##_avx2 : NULL,
#define DTI_OWN_MAP(ID, name) .unary[DTI_U_##ID] = dti_v_map_##name##_avx512,
#define DTI_OWN_GRAD(ID, name) .unary_grad[DTI_U_##ID] = dti_v_grad_##name##_avx512,
#define DTI_OWN_PAIR(ID, name) .binary[DTI_B_##ID] = dti_v_pair_##name##_avx512,
#define DTI_OWN_UPDATE(number, name) .optim_update[number] = dti_v_update_##name##_avx512,
#define DTI_AVX512_ROWS                                                                            \
    .unary = {DTI_UNARY_LIST(DTI_TAKE_MAP)}, .unary_grad = {DTI_UNARY_LIST(DTI_TAKE_GRAD)},        \
    .binary = {DTI_BINARY_LIST(DTI_TAKE_PAIR)},                                                    \
    .optim_constants = {DTI_OPTIM_LIST(DTI_TAKE_CONSTANTS)},                                       \
    .optim_update = {DTI_OPTIM_LIST(DTI_TAKE_UPDATE)},                                             \
    .optim_measure = {DTI_OPTIM_WHOLE_LIST(DTI_TAKE_MEASURE)},                                     \
    .narrow = {[DT_BF16] = dti_half_narrow_bf16_avx512, [DT_F16] = dti_half_narrow_f16_avx2},      \
    DTI_TAKEN_FUNCTIONS(DTI_TAKE_FUNCTION) DTI_OWN_MAPS(DTI_OWN_MAP) DTI_OWN_MAPS(DTI_OWN_GRAD)    \
        DTI_OWN_PAIRS(DTI_OWN_PAIR) DTI_OWN_OPTIMIZERS(DTI_OWN_UPDATE)

#define DTI_ROW_MAP(ID, name, slope) [DTI_U_##ID] = DTI_V(map_##name),
#define DTI_ROW_GRAD(ID, name, slope) [DTI_U_##ID] = DTI_V(grad_##name),
#define DTI_ROW_PAIR(ID, name) [DTI_B_##ID] = DTI_V(pair_##name),
#define DTI_ROW_CONSTANTS(number, ID, name, least, most)                                           \
    [number] = DTI_HAS_OPTIM(number) ? DTI_V(constants_##name) : NULL,
#define DTI_ROW_UPDATE(number, ID, name, least, most)                                              \
    [number] = DTI_HAS_OPTIM(number) ? DTI_V(update_##name) : NULL,
#define DTI_ROW_MEASURE(number, ID, name, least, most)                                             \
    [number] = DTI_HAS_OPTIM(number) ? DTI_V(measure_##name) : NULL,
#define DTI_ROW_FUNCTION(feature, kind, type, name)                                                \
    .name = DTI_HAS_##feature ? DTI_##kind(name) : NULL,
/* Last come rows that replace others. */
#define DTI_KERNEL_TABLE(table, isa_, fma_, name_, ...)                                            \
    static const dti_isa_kernels table = {                                                         \
        .isa = isa_,                                                                               \
        .fma = fma_,                                                                               \
        .name = name_,                                                                             \
        DTI_ISA_LIST(DTI_ROW_FUNCTION).unary = {DTI_UNARY_LIST(DTI_ROW_MAP)},                      \
        .unary_grad = {DTI_UNARY_LIST(DTI_ROW_GRAD)},                                              \
        .binary = {DTI_BINARY_LIST(DTI_ROW_PAIR)},                                                 \
        .optim_constants = {DTI_OPTIM_LIST(DTI_ROW_CONSTANTS)},                                    \
        .optim_update = {DTI_OPTIM_LIST(DTI_ROW_UPDATE)},                                          \
        .optim_measure = {DTI_OPTIM_WHOLE_LIST(DTI_ROW_MEASURE)},                                  \
        .conv = &DTI_N(conv_kernels),                                                              \
        .widen = {[DT_BF16] = DTI_H(widen_bf16), [DT_F16] = DTI_H(widen_f16)},                     \
        .narrow = {[DT_BF16] = DTI_H(narrow_bf16), [DT_F16] = DTI_H(narrow_f16)},                  \
        __VA_ARGS__};

#include "../../shaders/lib/angle.h"

#ifdef DTI_COMPILES_KERNELS
#define DTI_ISA(name) DTI_CAT(name, _portable)
#define DTI_LANES 4
#include "isa_set_body.h"
#ifdef __aarch64__
DTI_KERNEL_TABLE(dti_isa_kernels_portable, DTI_ISA_PORTABLE, DTI_PORTABLE_FMA, "neon", )
#else
DTI_KERNEL_TABLE(dti_isa_kernels_portable, DTI_ISA_PORTABLE, DTI_PORTABLE_FMA, "portable", )
#endif
#undef DTI_ISA
#undef DTI_LANES

#endif /* DTI_COMPILES_KERNELS */

#ifdef DTI_COMPILES_SIMD
#if DTI_X86
#define DTI_ISA(name) DTI_CAT(name, _avx2)
#define DTI_LANES 8
DTI_TARGET("avx2,fma")
#include "isa_set_body.h"
DTI_TARGET_END
DTI_KERNEL_TABLE(dti_isa_kernels_avx2, DTI_ISA_AVX2, true, "avx2", )
#undef DTI_ISA
#undef DTI_LANES
#endif

#if DTI_X86_AVX512
#define DTI_ISA(name) DTI_CAT(name, _avx512)
#define DTI_LANES 16
DTI_TARGET("avx512f,avx512bw,avx512dq,avx512vl,fma")
#include "isa_set_body.h"
DTI_TARGET_END
#if DTI_X86_AVX512_BF16
DTI_TARGET("avx512f,avx512bw,avx512dq,avx512vl,fma,avx512bf16")
#define DTI_GEMM_PAIRS 1
#include "gemm_walk_body.h"
#include "conv_tile_body.h"
#undef DTI_GEMM_PAIRS
DTI_TARGET_END
#endif
#if DTI_X86_AMX
DTI_TARGET("avx512f,avx512bw,avx512dq,avx512vl,fma,avx512bf16,amx-tile,amx-bf16")
#include "gemm_amx_body.h"
DTI_TARGET_END
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
DTI_KERNEL_TABLE(dti_isa_kernels_avx512, DTI_ISA_AVX512, true, "avx512", DTI_AVX512_ROWS)
#if DTI_X86_AVX512_BF16 /* all but products as AVX-512 */
DTI_KERNEL_TABLE(dti_isa_kernels_avx512_bf16, DTI_ISA_AVX512_BF16, true, "avx512_bf16",
                 DTI_AVX512_ROWS.gemm_pairs = DTI_N(pairs_block), .conv_pairs = &DTI_N(conv_pairs))
#endif
#if DTI_X86_AMX
DTI_KERNEL_TABLE(dti_isa_kernels_amx, DTI_ISA_AMX, true, "amx",
                 DTI_AVX512_ROWS.gemm_pairs = DTI_N(amx_block), .conv_pairs = &DTI_N(conv_pairs))
#endif
#pragma GCC diagnostic pop
#undef DTI_ISA
#undef DTI_LANES
#endif

static const dti_isa_kernels *dti_isa_kernels_x86(int isa) {
#if DTI_X86_AMX
    if (isa == DTI_ISA_AMX)
        return &dti_isa_kernels_amx;
#endif
#if DTI_X86_AVX512_BF16
    if (isa == DTI_ISA_AVX512_BF16)
        return &dti_isa_kernels_avx512_bf16;
#endif
#if DTI_X86_AVX512
    if (isa == DTI_ISA_AVX512)
        return &dti_isa_kernels_avx512;
#endif
#if DTI_X86
    if (isa == DTI_ISA_AVX2)
        return &dti_isa_kernels_avx2;
#endif
    return NULL;
}
#endif /* DTI_COMPILES_SIMD */

#ifdef DTI_COMPILES_KERNELS
static const dti_isa_kernels *dti_isa_kernels_select(int isa_max) {
    const dti_isa_kernels *x86 = dti_isa_kernels_x86(dti_isa_select(isa_max));
    return x86 ? x86 : &dti_isa_kernels_portable;
}
#endif
