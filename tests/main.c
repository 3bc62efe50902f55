/* The test program; harness.c has its main. It holds the implementation, from the generated header.
 * Tests of internals (everything dti_) need its static functions, so their files are included here;
 * every other tests/FOLDER/test_*.c is compiled apart, includes "dtrain.h" as a user's file does,
 * and is linked. build.sh recognises the two kinds by the includes below. An include in a test is a
 * path from tests/, or from the top. */
#include "harness.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

/* So that a test can make the system refuse a thread. */
static int harness_thread(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *arg), void *arg) {
    if (harness_threads_left == 0)
        return EAGAIN;
    if (harness_threads_left > 0)
        harness_threads_left--;
    return pthread_create(thread, attributes, start, arg);
}

/* So that a test can make the system have no memory for a stream. */
static bool harness_no_streams;

static FILE *harness_stream(int descriptor, const char *mode) {
    errno = ENOMEM;
    return harness_no_streams ? NULL : fdopen(descriptor, mode);
}

/* A test that is refused a feature which was left out is skipped. */
#define DTI_OFF_ASKED(why) (test_off((void **)&dti_visits), why)

#ifndef DT_NO_VULKAN
static bool harness_apart; /* devices' memory has no part that is the host's */
#define DTI_VK_NO_UNIFIED harness_apart
#endif

/* So that a test can make an action of a step fail: which one, of which device of which rank. */
static struct {
    _Atomic int rank, device, action; /* action -1: none fails */
    _Atomic int hits;
} harness_fault = {.action = -1};

_Atomic long harness_actions, harness_killer = -1;

static bool harness_fails(unsigned rank, unsigned device, unsigned action) {
    if (harness_actions++ == harness_killer)
        raise(SIGKILL);
    const bool hit = harness_fault.action == (int)action && harness_fault.device == (int)device &&
                     harness_fault.rank == (int)rank;
    harness_fault.hits += hit;
    return hit;
}

#define DTI_ACTION_FAULT(par, index, at)                                                           \
    (harness_fails((par)->mesh.rank, index, at)                                                    \
         ? dti_fail(dti_ctx_base((par)->pipe ? (par)->pipe->devices[index].ctx                     \
                                             : (par)->replicas[index].ctx),                        \
                    DT_ERROR_DEVICE, "action %u failed", at)                                       \
         : DT_OK)
#define fdopen harness_stream
#define pthread_create harness_thread
#include "ops/own_rows.h"
#define DTI_DRIVER_LIST_TESTS(X) X(own)
#define DT_IMPLEMENTATION
#include "dtrain.h"
#undef pthread_create
#undef fdopen

#include "ops/half.h"
#include "reference/reference.h"

#define OWN_ROWS_FAMILIES
#include "ops/own_rows.h"
#include "reference/reference.c"

#include "unit/test_base.c"
#include "unit/test_platform.c"

#include "ops/test_kernel.c"
#include "ops/test_unary.c"
#include "ops/test_conv_kernel.c"
#include "ops/test_pairs.c"
#include "ops/test_norm_kernel.c"
#include "data/test_data.c"
#include "data/test_loader.c"
#include "data/test_augment.c"
#include "data/test_file.c"
#include "data/test_checkpoint.c"
#include "data/test_outside.c"
#include "data/test_replace.c"
#include "unit/test_lower.c"
#include "unit/test_launches.c"
#include "unit/test_program.c"
#include "ops/test_ops.c"
#include "ops/test_halves.c"
#include "ops/test_rows.c"
#include "ops/test_dtype.c"
#include "ops/test_low_rows.c"
#include "random/test_random.c"
#include "data/test_onnx.c"
#include "data/test_c_save.c"
#include "ops/test_image.c"
#include "unit/test_driver.c"
#include "vulkan/test_vulkan.c"
#include "vulkan/test_vulkan_gemm.c"
#include "vulkan/test_vulkan_sums.c"
#include "ops/test_scatter.c"
#include "ops/test_sparse.c"
#include "vulkan/test_vulkan_maps.c"
#include "vulkan/test_vulkan_halves.c"
#include "vulkan/test_vulkan_exchange.c"
#include "vulkan/test_vulkan_icd.c"
#include "vulkan/test_vulkan_pipelines.c"
#include "vulkan/test_vulkan_qualify.c"
#include "vulkan/test_in_flight.c"
#include "vulkan/test_vulkan_self_test.c"
#include "vulkan/test_vulkan_spills.c"
#include "unit/test_frame.c"
#include "unit/test_concurrent.c"
#include "vulkan/test_host_copy.c"
#include "parallel/test_parallel.c"
#include "parallel/test_compat.c"
#include "train/test_stored.c"
#include "unit/test_dtinfo_plan.c"
#include "parallel/test_protocol.c"
#include "parallel/test_plan.c"
#include "parallel/test_play.c"
#include "parallel/test_play_zero.c"
#include "parallel/test_reducer.c"
#include "parallel/test_values.c"
#include "train/test_train_in_flight.c"
#include "parallel/test_replicas_vulkan.c"
#include "parallel/test_pipe_cut.c"
#include "parallel/test_pipe_schedule.c"
#include "parallel/test_mesh.c"
#include "unit/test_shapes.c"
#include "unit/test_shapes_made.c"
#include "parallel/test_tickets.c"
#include "fuzz/test_fuzz_server.c"
#include "ops/test_attention.c"
#include "ops/test_recurrent.c"
#include "ops/test_lengths.c"
#include "vulkan/test_vulkan_lengths.c"

int harness_threads_left = -1;
