/* The test harness: a test is a sentence and its body.
 *
 *     TEST(matmul_rejects_inner_mismatch) {
 *         CHECK(dt_matmul(a, b).id == 0);
 *     }
 *
 * Tests register themselves. A failed CHECK is printed and counted, and the test goes on; REQUIRE
 * ends it, and so does SKIP("why"). main.c holds the counters and runs what the filter lets pass.
 */
#ifndef DTRAIN_TESTS_HARNESS_H
#define DTRAIN_TESTS_HARNESS_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct test {
    const char *name, *file;
    void (*run)(void);
    struct test *next;
} test;

typedef struct test_state { /* of the test that runs now */
    int failures;
    const char *skipped; /* why, or NULL */
    bool off;            /* test_off */
} test_state;

extern test_state test_now;
/* How many threads the system still gives to the library; -1 = all that there are. */
extern int harness_threads_left;
/* How many actions of steps this process has begun, and which of them kills it; -1: none does. */
extern _Atomic long harness_actions, harness_killer;
void test_register(test *t);
/* The test asks for a feature that was left out (base/optional.h): what fails then is skipped.
 * calls: the library's list of those under way, which end with it. */
void test_off(void **calls);

/* DTRAIN_TEST_LONG: no case is left out. */
bool test_is_long(void);
/* Whether this run has case `i`: one in `plain` of them; under a sanitizer one in `sanitized`.
 * There each takes ten times as long, and memory is what counts; in the long form all. */
bool test_takes(long i, int plain, int sanitized);
long test_draw(
    void); /* which ones: another number each day, or DTRAIN_DRAW, which a failure names */

/* Returns ok. Prints the first failures of a test: a broken kernel fails a million times. */
bool test_check(bool ok, const char *file, int line, const char *format, ...)
    __attribute__((__format__(__printf__, 4, 5)));

#define TEST(sentence)                                                                             \
    static void test_##sentence(void);                                                             \
    __attribute__((constructor)) static void test_register_##sentence(void) {                      \
        static test entry = {#sentence, __FILE__, test_##sentence, NULL};                          \
        test_register(&entry);                                                                     \
    }                                                                                              \
    static void test_##sentence(void)

#define CHECK(condition) ((void)test_check((condition), __FILE__, __LINE__, "%s", #condition))

/* For what the rest of the test cannot do without; only directly in a test's body. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!test_check((condition), __FILE__, __LINE__, "%s", #condition))                        \
            return;                                                                                \
    } while (0)

/* |a - b| <= tolerance; a NaN is never near. */
#define CHECK_NEAR(a, b, tolerance)                                                                \
    do {                                                                                           \
        double near_a = (double)(a), near_b = (double)(b), near_t = (double)(tolerance);           \
        test_check(fabs(near_a - near_b) <= near_t, __FILE__, __LINE__,                            \
                   "%s = %.9g is not within %.3g of %s = %.9g", #a, near_a, near_t, #b, near_b);   \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *str_a = (a), *str_b = (b);                                                     \
        test_check(!strcmp(str_a, str_b), __FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #a,      \
                   str_a, str_b);                                                                  \
    } while (0)

/* `part` occurs in `text`: for error messages, of which only the facts are tested. */
#define CHECK_CONTAINS(text, part)                                                                 \
    do {                                                                                           \
        const char *in_text = (text), *in_part = (part);                                           \
        test_check(strstr(in_text, in_part) != NULL, __FILE__, __LINE__,                           \
                   "\"%s\" does not contain \"%s\"", in_text, in_part);                            \
    } while (0)

#define SKIP(why)                                                                                  \
    do {                                                                                           \
        test_now.skipped = (why);                                                                  \
        return;                                                                                    \
    } while (0)

#endif
