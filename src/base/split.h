/* The parts of the implementation that this file of the host compiles: all of it
 * (DT_IMPLEMENTATION), or some of seven parts. A program can put each part into a file of its own,
 * so that they compile at the same time. src/dtrain.c shows the files of each part, under
 * DTI_COMPILES_.
 *
 * Each part has its own copy of base/, of which the compiler keeps what is used. The only state of
 * base that the parts share is dti_visits (enter.c). In src/ every internal function is static. A
 * function that another part calls is DTI_SEAM in dtrain.h. That is static if all is compiled at
 * once, else hidden outside the program. ./build.sh header finds and marks those; a header that
 * both parts see must declare each.
 *
 * The linker reports a missing part by dti_missing_. It reports parts compiled with different
 * options by dti_parts_differ_in_. GRAPH defines one symbol for the state of each option, and the
 * others need those symbols. */

#ifdef DT_IMPLEMENTATION
#define DTI_SEAM static
#define DTI_DEFINES(name)
#else
#ifdef DT_STATIC
#error "dtrain.h: DT_STATIC keeps all of the library in one file: define DT_IMPLEMENTATION there"
#endif
#if defined _WIN32 || defined __CYGWIN__ /* these export all symbols of a program */
#define DTI_SEAM extern
#else
#define DTI_SEAM extern __attribute__((visibility("hidden")))
#endif
#define DTI_DEFINES(name)                                                                          \
    DTI_SEAM const char name;                                                                      \
    const char name = 0;
#if defined __has_attribute
#if __has_attribute(retain) /* though the linker collects sections */
#define DTI_RETAIN , retain
#endif
#endif
#ifndef DTI_RETAIN
#define DTI_RETAIN
#endif
#define DTI_NEEDS(name)                                                                            \
    DTI_SEAM const char name;                                                                      \
    __attribute__((used DTI_RETAIN)) static const char *const name##_here = &name;

/* Parts of base that this part does not use. */
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#endif

#if defined DT_IMPLEMENTATION || defined DT_IMPLEMENTATION_GRAPH
#define DTI_OPTION DTI_DEFINES
#else
#define DTI_OPTION DTI_NEEDS
#endif
#include "options.h"
