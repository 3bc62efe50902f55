/* What the implementation needs of the compiler and the system: the system's headers, checks of the
 * compiler, and pragmas. The pragmas make results independent of the host's compiler flags.
 * epilogue.h takes the pragmas back. It refuses C++ and compilers that are neither GCC nor Clang.
 *
 * GCC drops -ffast-math by a pragma, and takes the levels of DTI_OPTIMIZE_ at any -O level of the
 * host; at -O0 it still inlines nothing but DTI_INLINE. Clang keeps the host's -O level. Under
 * -ffast-math its backend fuses a*b+c despite the pragmas. So a product that is added later is
 * written as fma(), or passes through DTI_FENCE. Comparisons with NaN, sums and divisions stay as
 * written in both. */

#ifdef __cplusplus
#error "dtrain.h: compile the implementation as C; C++ files include the declarations only"
#endif
#if !defined __GNUC__ && !defined __clang__
#error "dtrain.h: the implementation needs GCC or Clang (also clang-cl or MinGW)"
#endif
#if !defined __STDC_VERSION__ || __STDC_VERSION__ < 201112L || defined __STDC_NO_ATOMICS__
#error "dtrain.h: the implementation needs C11 with atomics (-std=c11 or newer)"
#endif

#if defined DT_NO_COMM && (defined DT_COMM_ONLY || defined DT_WITH_MPI)
#error "dtrain.h: DT_NO_COMM leaves out what DT_COMM_ONLY and DT_WITH_MPI are for"
#endif

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "system/headers.h"
#if defined __x86_64__ || defined __i386__
#include <immintrin.h>
#elif defined __ARM_NEON
#include <arm_neon.h>
#endif

#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "dtrain.h: floats are computed in a wider type (the x87): add -msse2 -mfpmath=sse"
#endif

/* <complex.h> names the imaginary unit I; a host that included it must not lose it for good. */
#pragma push_macro("I")
#undef I

/* Loops over data are compiled for speed, whatever the host's flags are. The rest is compiled for
 * size, or by the host's flags at -O0. A level resets the other flags, so they are set again. The
 * pragmas surround whole files: see dtrain.c. */
#define DTI_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#ifdef __OPTIMIZE__
#define DTI_OPTIMIZE_SIZE                                                                          \
    DTI_PRAGMA(clang attribute push(__attribute__((minsize)), apply_to = function))
#define DTI_OPTIMIZE_SIZE_END DTI_PRAGMA(clang attribute pop)
#else
#define DTI_OPTIMIZE_SIZE
#define DTI_OPTIMIZE_SIZE_END
#endif
#define DTI_OPTIMIZE_SPEED DTI_OPTIMIZE_SIZE_END
#define DTI_OPTIMIZE_END DTI_OPTIMIZE_SIZE
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wunused-function"
#pragma clang diagnostic ignored "-Wunused-parameter"
#pragma clang diagnostic ignored "-Wignored-pragmas"        /* some CPUs have no float_control */
#pragma clang diagnostic ignored "-Wpragma-clang-attribute" /* a region may have no function */
#pragma clang diagnostic ignored "-Wpass-failed" /* a loop that cannot be unrolled is right too */
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma clang fp contract(off) reassociate(off)
DTI_OPTIMIZE_SIZE
#else
#if __GNUC__ >= 12
#define DTI_SMALL "Oz"
#else
#define DTI_SMALL "Os"
#endif
#define DTI_OPTIMIZE(...)                                                                          \
    DTI_PRAGMA(GCC push_options)                                                                   \
    DTI_PRAGMA(GCC optimize(__VA_ARGS__ "no-fast-math", "fp-contract=off", "no-math-errno",        \
                            "no-trapping-math"))
#define DTI_OPTIMIZE_SPEED DTI_OPTIMIZE("O2", )
#define DTI_OPTIMIZE_SIZE DTI_OPTIMIZE(DTI_SMALL, "no-tree-pre", "no-shrink-wrap", )
#define DTI_OPTIMIZE_END DTI_PRAGMA(GCC pop_options)
#define DTI_OPTIMIZE_SIZE_END DTI_OPTIMIZE_END
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#ifdef __OPTIMIZE__
DTI_OPTIMIZE_SIZE
#else
DTI_OPTIMIZE()
#endif
#endif

/* For leaf helpers whose speed must not depend on the host's -O level. Clang at -O0 gives each
 * inlined local stack of its own (70 KiB for gelu) and is not faster for it. */
#if defined __clang__ && !defined __OPTIMIZE__
#define DTI_INLINE static inline
#else
#define DTI_INLINE static inline __attribute__((always_inline))
#endif
#define DTI_NOINLINE static __attribute__((noinline))

#if defined _WIN32 && !defined __clang__ /* its printf is not that of mingw-w64's vsnprintf */
#define DTI_PRINTF(text, first) __attribute__((__format__(__gnu_printf__, text, first)))
#else
#define DTI_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#endif

/* Keeps Clang's backend from fusing a product into the sum that follows. Costs no instruction. */
#if defined __clang__ && (defined __x86_64__ || defined __SSE2__)
#define DTI_FENCE(x) __asm__("" : "+x"(x))
#elif defined __clang__ && defined __aarch64__
#define DTI_FENCE(x) __asm__("" : "+w"(x))
#else
#define DTI_FENCE(x) ((void)0)
#endif

/* Aborts, so it exists for the developers of dtrain only. */
#ifdef DT_DEBUG
#define DTI_ASSERT(condition)                                                                      \
    ((condition) ? (void)0                                                                         \
                 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), abort()))
#else
#define DTI_ASSERT(condition) ((void)sizeof(condition))
#endif

/* A row for each function that this system, or this build, lacks: it does nothing, and returns the
 * value. */
#define DTI_ABSENT(type, name, params, ...)                                                        \
    static type name params {                                                                      \
        return __VA_ARGS__;                                                                        \
    }                                                                                              \
    _Static_assert(sizeof(type *), "a semicolon follows")

#define DTI_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DTI_MIN(a, b) ((a) < (b) ? (a) : (b))
#define DTI_MAX(a, b) ((a) > (b) ? (a) : (b))
#define DTI_SWAP(type, a, b)                                                                       \
    do {                                                                                           \
        type swapped = a;                                                                          \
        a = b;                                                                                     \
        b = swapped;                                                                               \
    } while (0)
static inline uint64_t dti_ceil_div(uint64_t count, uint64_t size) {
    return (count + size - 1) / size;
}
