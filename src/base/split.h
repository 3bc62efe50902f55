/* Which parts of the implementation this file of the host compiles: all (DT_IMPLEMENTATION, and
 * the development build), or some of three that a program has in as many files, so that they
 * compile at the same time. The parts are the kernels (kernel/), the collectives (comm/), and the
 * core, which is what stands above those.
 *
 * Each part has its own copy of base/, of which the compiler keeps what is used. The only state of
 * base that the parts share is dti_visits (enter.c). Everything internal is static, but for what
 * one part asks of another: that is DTI_SEAM, which is static too where all is compiled at once,
 * else hidden from whoever loads the program.
 *
 * Parts that were compiled with different options do not link: the linker misses a symbol that
 * names the option. The core defines one for the state of each option, and other parts need them.
 *
 * A part that is missing has a name that the linker misses. With DT_NO_COMM what is left of comm/
 * is the core's; with DT_COMM_ONLY the core is what base has that is public, and there are no
 * kernels. */

#if defined DT_IMPLEMENTATION ||                                                                   \
    !(defined DT_IMPLEMENTATION_CORE || defined DT_IMPLEMENTATION_KERNELS ||                       \
      defined DT_IMPLEMENTATION_COMM)
#define DTI_SEAM static
#define DTI_COMPILES_CORE 1
#define DTI_COMPILES_KERNELS 1
#define DTI_COMPILES_COMM 1
#else
#ifdef DT_STATIC
#error "dtrain.h: DT_STATIC keeps all of the library in one file: define DT_IMPLEMENTATION there"
#endif
#if defined _WIN32 || defined __CYGWIN__ /* what a program shows it names */
#define DTI_SEAM extern
#else
#define DTI_SEAM extern __attribute__((visibility("hidden")))
#endif

/* Of base, what this part has no use for. */
#pragma GCC diagnostic ignored "-Wunused-const-variable"

DTI_SEAM const char dti_missing_DT_IMPLEMENTATION_CORE;
DTI_SEAM const char dti_missing_DT_IMPLEMENTATION_KERNELS;
DTI_SEAM const char dti_missing_DT_IMPLEMENTATION_COMM;
#ifdef DT_IMPLEMENTATION_CORE
#define DTI_COMPILES_CORE 1
const char dti_missing_DT_IMPLEMENTATION_CORE = 0;
#else
#define DTI_COMPILES_CORE 0
#endif
#ifdef DT_IMPLEMENTATION_KERNELS
#define DTI_COMPILES_KERNELS 1
const char dti_missing_DT_IMPLEMENTATION_KERNELS = 0;
#else
#define DTI_COMPILES_KERNELS 0
#endif
#ifdef DT_IMPLEMENTATION_COMM
const char dti_missing_DT_IMPLEMENTATION_COMM = 0;
#endif
#ifdef DT_NO_COMM
#define DTI_COMPILES_COMM DTI_COMPILES_CORE
#elif defined DT_IMPLEMENTATION_COMM
#define DTI_COMPILES_COMM 1
#else
#define DTI_COMPILES_COMM 0
#endif

__attribute__((used)) static const char *const dti_needed_parts[] = {
    &dti_missing_DT_IMPLEMENTATION_CORE,
#ifndef DT_COMM_ONLY
    &dti_missing_DT_IMPLEMENTATION_KERNELS,
#endif
#ifndef DT_NO_COMM
    &dti_missing_DT_IMPLEMENTATION_COMM,
#endif
};

#ifdef DT_IMPLEMENTATION_CORE
#define DTI_OPTION(name, state)                                                                    \
    DTI_SEAM const char dti_parts_differ_in_##name##_##state;                                      \
    const char dti_parts_differ_in_##name##_##state = 0;
#else
#define DTI_OPTION(name, state)                                                                    \
    DTI_SEAM const char dti_parts_differ_in_##name##_##state;                                      \
    __attribute__((used)) static const char *const dti_##name##_##state =                          \
        &dti_parts_differ_in_##name##_##state;
#endif
#include "options.h"
#endif
