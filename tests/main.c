/* The test program: `dtest [part of a name]... [-v] [--also FILE]`. FILE has three numbers, passed,
 * failed and skipped, of tests that were run elsewhere; they are added.
 *
 * It holds the implementation, from the generated header. Tests of internals (everything dti_) need
 * its static functions, so their files are included here; every other tests/test_*.c is compiled
 * apart, includes "dtrain.h" as a user's file does, and is linked. build.sh tells the two kinds
 * apart by the includes below. */
#include "harness.h"

#include <errno.h>
#include <pthread.h>

/* So that a test can make the system refuse a thread. */
static int harness_thread(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *arg), void *arg) {
    if (harness_threads_left == 0)
        return EAGAIN;
    if (harness_threads_left > 0)
        harness_threads_left--;
    return pthread_create(thread, attributes, start, arg);
}

#define pthread_create harness_thread
#define DT_IMPLEMENTATION
#include "dtrain.h"
#undef pthread_create

#include "test_base.c"

#include "test_kernel.c"
#include "test_conv_kernel.c"
#include "test_norm_kernel.c"
#include "test_data.c"
#include "test_file.c"
#include "test_program.c"
#include "test_ops.c"
#include "test_image.c"
#include "test_vulkan.c"

#define SLOW_SECONDS 1.0
#define FAILURES_SHOWN 8

test_state test_now;
int harness_threads_left = -1;
static test *test_first, **test_last = &test_first;

void test_register(test *t) {
    *test_last = t;
    test_last = &t->next;
}

bool test_check(bool ok, const char *file, int line, const char *format, ...) {
    if (ok)
        return true;
    if (++test_now.failures > FAILURES_SHOWN)
        return false;
    va_list list;
    printf("  %s:%d: ", file, line);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("%s\n", test_now.failures == FAILURES_SHOWN ? " (more are not shown)" : "");
    fflush(stdout);
    return false;
}

/* With no filter everything runs; else what contains one of them. */
static bool test_is_wanted(const test *t, int argc, char **argv) {
    int filters = 0;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' || !strcmp(argv[i - 1], "--also"))
            continue;
        filters++;
        if (strstr(t->name, argv[i]))
            return true;
    }
    return filters == 0;
}

static void test_run(const test *t, bool verbose, int counts[3]) {
    uint64_t start = dti_now_ns();
    test_now = (test_state){0};
    t->run();
    double seconds = (double)(dti_now_ns() - start) * 1e-9;
    if (test_now.failures)
        printf("FAILED  %s: %d checks\n", t->name, test_now.failures);
    else if (test_now.skipped)
        printf("skipped %s: %s\n", t->name, test_now.skipped);
    else if (verbose || seconds >= SLOW_SECONDS)
        printf("passed  %s: %.2f s\n", t->name, seconds);
    fflush(stdout);
    counts[test_now.failures ? 1 : test_now.skipped ? 2 : 0]++;
}

/* A file that is not there or has no numbers is a failure: those tests did not end. */
static void add_counts(const char *path, int counts[3]) {
    int more[3] = {0, 1, 0};
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file || fscanf(file, "%d %d %d", &more[0], &more[1], &more[2]) != 3)
        printf("FAILED  the tests before did not end\n");
    if (file)
        fclose(file);
    for (int i = 0; i < 3; i++)
        counts[i] += more[i];
}

int main(int argc, char **argv) {
    bool verbose = false;
    int counts[3] = {0}; /* passed, failed, skipped */
    for (int i = 1; i < argc; i++)
        verbose = verbose || !strcmp(argv[i], "-v");
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--also"))
            add_counts(argv[i + 1], counts);
    for (const test *t = test_first; t; t = t->next)
        if (test_is_wanted(t, argc, argv))
            test_run(t, verbose, counts);
    printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
    return counts[1] != 0;
}
