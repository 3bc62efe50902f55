/* The main of a test program: `dtest [part of a name]... [-v] [--counts FILE] [--also FILE]...`,
 * and `--without PART`: tests whose names contain it are skipped. `--shared FOLDER`: processes that
 * were started with the same empty folder split the tests. Each takes those of the next file that
 * no process has. Tests of a file may use the same files of their own; they print no sum. --counts
 * writes three numbers, passed, failed and skipped; --also adds such a file, of tests that were run
 * elsewhere, and runs none here. Without --shared and --counts it fails if no name has a filter. */
#include "harness.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#if defined __linux__ && defined __SANITIZE_ADDRESS__
#include <dirent.h>
#endif
#if defined __unix__ && !defined __EMSCRIPTEN__
#include <setjmp.h>
#include <signal.h>
#include <sys/times.h>
#include <unistd.h>
#define TESTS_END /* a test can be ended */
#endif

#define SLOW_SECONDS 1.0
#define FAILURES_SHOWN 8

test_state test_now;
static test *test_first, **test_last = &test_first;

static double now_seconds(void) {
#ifdef TIME_UTC
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
#else /* Windows, whose clock() is not processor time */
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

/* Of all processors, and of the processes that the tests waited for. So it is a test's cost on a
 * busy machine. */
static double processor_seconds(void) {
#if defined __unix__ && !defined __EMSCRIPTEN__
    struct tms used;
    times(&used);
    return (double)(used.tms_utime + used.tms_stime + used.tms_cutime + used.tms_cstime) /
           (double)sysconf(_SC_CLK_TCK);
#else
    return 0.0;
#endif
}

void test_register(test *t) {
    *test_last = t;
    test_last = &t->next;
}

bool test_is_long(void) {
    return getenv("DTRAIN_TEST_LONG") != NULL;
}

long test_draw(void) {
    const char *given = getenv("DTRAIN_DRAW");
    return given ? atol(given) : (long)(time(NULL) / 86400);
}

bool test_takes(long i, int plain, int sanitized) {
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    const bool slow = true;
#else
    const bool slow = false;
#endif
    return i % (slow ? sanitized : plain) == 0 || test_is_long();
}

bool test_check(bool ok, const char *file, int line, const char *format, ...) {
    if (ok)
        return true;
    if (test_now.off && !test_now.failures) {
        test_now.skipped = "it needs a feature that was left out";
        return false;
    }
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

static bool test_is_left_out(const test *t, int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--without") && strstr(t->name, argv[i + 1]))
            return true;
    return false;
}

/* Whether an argument is a part of names, not an option or its value. */
static bool is_filter(char **argv, int i) {
    return argv[i][0] != '-' && strncmp(argv[i - 1], "--", 2) != 0;
}

/* With no filter everything runs; else what contains one of them. */
static bool test_is_wanted(const test *t, int argc, char **argv) {
    int filters = 0;
    for (int i = 1; i < argc; i++) {
        if (!is_filter(argv, i))
            continue;
        filters++;
        if (strstr(t->name, argv[i]))
            return true;
    }
    return filters == 0;
}

static const char *value_of(const char *option, int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], option))
            return argv[i + 1];
    return NULL;
}

/* The process that makes the file of a number first has it. What cannot be asked is run. */
static bool tests_are_anothers(const char *folder, int number) {
    char path[512];
    if (!folder)
        return false;
    snprintf(path, sizeof path, "%s/%d", folder, number);
    FILE *file = fopen(path, "wx");
    if (file)
        fclose(file);
    return !file && errno == EEXIST;
}

/* A process that is forked while threads run has their memory and not them: the sanitizer says that
 * it leaks. */
#if defined __linux__ && defined __SANITIZE_ADDRESS__
static int threads_now(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* One that just ended may be seen for a moment. */
static void check_threads(int before) {
    for (int look = 0; look < 100 && threads_now() > before; look++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    test_check(threads_now() <= before, __FILE__, __LINE__, "%d threads were left running",
               threads_now() - before);
}
#else
static int threads_now(void) {
    return 0;
}

static void check_threads(int before) {
    (void)before;
}
#endif

/* A test goes on with what a feature that was left out did not give it: it ends here. One that
 * asked for none crashes. */
#ifdef TESTS_END
static sigjmp_buf test_end;
static void **test_calls;

static void test_crashed(int number) {
    signal(number, SIG_DFL);
    if (!test_now.off)
        return; /* to the same instruction */
    *test_calls = NULL;
    siglongjmp(test_end, 1);
}

void test_off(void **calls) {
    test_now.off = true;
    test_calls = calls;
    signal(SIGSEGV, test_crashed);
}

static void test_call(const test *t) {
    if (test_calls)
        signal(SIGSEGV, SIG_DFL);
    if (!sigsetjmp(test_end, 1))
        t->run();
    else
        test_now = (test_state){.skipped = "it needs a feature that was left out"};
}
#else
void test_off(void **calls) {
    (void)calls;
    test_now.off = true;
}

static void test_call(const test *t) {
    t->run();
}
#endif

static void test_run(const test *t, bool verbose, bool left_out, int counts[3]) {
    const double start = now_seconds(), used = processor_seconds();
    const int threads = threads_now();
    test_now = (test_state){.skipped = left_out ? "left out by --without" : NULL};
    if (!left_out)
        test_call(t);
    check_threads(threads);
    double seconds = now_seconds() - start;
    if (test_now.failures)
        printf("FAILED  %s: %d checks (DTRAIN_DRAW=%ld)\n", t->name, test_now.failures,
               test_draw());
    else if (test_now.skipped)
        printf("skipped %s: %s\n", t->name, test_now.skipped);
    else if (verbose || seconds >= SLOW_SECONDS)
        printf("passed  %s: %.2f s, of processors %.2f s\n", t->name, seconds,
               processor_seconds() - used);
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

/* Whether there are filters and no test has run, which it reports: a name was misspelt. */
static bool nothing_matched(int argc, char **argv, const int counts[3]) {
    int filters = 0;
    if (counts[0] + counts[1] + counts[2])
        return false;
    for (int i = 1; i < argc; i++)
        if (is_filter(argv, i))
            fprintf(stderr, filters++ ? " or '%s'" : "no test's name contains '%s'", argv[i]);
    if (filters)
        fprintf(stderr, "\n");
    return filters > 0;
}

static bool write_counts(const char *path, const int counts[3]) {
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fprintf(file, "%d %d %d\n", counts[0], counts[1], counts[2]);
    return fclose(file) == 0;
}

/* The first word that is neither a part of a name nor an option, or NULL. */
static const char *unknown_option(int argc, char **argv) {
    static const char *const valued[] = {"--counts", "--also", "--without", "--shared"};
    for (int i = 1; i < argc; i++) {
        bool has_value = false;
        for (int o = 0; o < 4; o++)
            has_value = has_value || !strcmp(argv[i], valued[o]);
        if (argv[i][0] == '-' && !has_value && strcmp(argv[i], "-v") != 0)
            return argv[i];
        i += has_value;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (unknown_option(argc, argv)) {
        fprintf(stderr, "no option %s; usage: %s [-v] [part of a name]...\n",
                unknown_option(argc, argv), argv[0]);
        return 2;
    }
    bool verbose = false, sum = false;
    const char *counts_path = value_of("--counts", argc, argv);
    const char *shared = value_of("--shared", argc, argv);
    int counts[3] = {0}, number = 0; /* passed, failed, skipped */
    for (int i = 1; i < argc; i++)
        verbose = verbose || !strcmp(argv[i], "-v");
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--also")) {
            add_counts(argv[i + 1], counts);
            sum = true;
        }
    const char *file = NULL; /* of the test before */
    bool anothers = false;
    for (const test *t = sum ? NULL : test_first; t; t = t->next) {
        if (!test_is_wanted(t, argc, argv))
            continue;
        if (!file || strcmp(file, t->file))
            anothers = tests_are_anothers(shared, number++);
        file = t->file;
        if (!anothers)
            test_run(t, verbose, test_is_left_out(t, argc, argv), counts);
    }
    if (counts_path && !write_counts(counts_path, counts))
        return 1;
    if (!shared)
        printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
    return counts[1] != 0 || (!shared && !counts_path && nothing_matched(argc, argv, counts));
}
