/* The test program of ./build.sh platforms, in one translation unit that every compiler takes. It
 * tests what a platform may have of its own: threads, files, sockets, random bytes, arithmetic. Ops
 * and trainings against PyTorch's values prove that the rest is right there. */
#include "harness.c"

#define DT_IMPLEMENTATION
#include "dtrain.h"

#include "ops/half.h"

int harness_threads_left = -1;

#include "unit/test_base.c"
#include "data/test_data.c"
#include "golden/test_golden.c"
#include "golden/test_golden_ops.c"

#include "unit/test_platform.c"
