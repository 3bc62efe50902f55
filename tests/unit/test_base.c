/* The base layer, from the inside: included by main.c after the implementation. Known answers come
 * from the papers and standards that base/ names, or from Python where a comment says so. */

#include "temp.h"

/* ---- memory */

typedef struct counting_allocator { /* gives out `left` more blocks, then none */
    int left, live;
} counting_allocator;

static void *counting_alloc(void *user, size_t bytes, size_t align) {
    counting_allocator *counter = user;
    if (counter->left-- <= 0)
        return NULL;
    counter->live++;
    return dti_malloc_aligned(NULL, bytes, align);
}

static void counting_free(void *user, void *memory, size_t bytes) {
    ((counting_allocator *)user)->live--;
    memset(memory, 0xDD, bytes); /* the size must be the one that was asked for */
    dti_malloc_free(NULL, memory, bytes);
}

static void counting_base(dti_base *base, counting_allocator *counter, int blocks) {
    *counter = (counting_allocator){.left = blocks};
    dt_allocator allocator = {counting_alloc, counting_free, counter};
    dti_base_init(base, &allocator, NULL);
}

TEST(memory_is_zeroed_aligned_and_counted) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (size_t bytes = 0; bytes < 300; bytes += 37) {
        unsigned char *block = dti_alloc(&base, bytes);
        REQUIRE(block && (uintptr_t)block % 64 == 0);
        for (size_t i = 0; i < bytes; i++)
            CHECK(block[i] == 0);
        CHECK(base.bytes_now == bytes);
        memset(block, 0xFF, bytes);
        dti_free(&base, block);
    }
    CHECK(base.bytes_now == 0 && base.bytes_peak == 296 && base.alloc_calls == 9);
    dti_free(&base, NULL);
}

TEST(memory_of_several_huge_pages_begins_with_one) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const size_t bytes = 2 * DTI_HUGE_PAGE;
    char *large = dti_alloc(&base, bytes), *small = dti_alloc(&base, DTI_HUGE_PAGE);
    REQUIRE(large && small);
    CHECK((uintptr_t)(large - DTI_MEMORY_ALIGN) % DTI_HUGE_PAGE == 0);
    CHECK((uintptr_t)small % DTI_MEMORY_ALIGN == 0);
    CHECK(large[0] == 0 && large[bytes - 1] == 0);
    memset(large, 1, bytes);
    dti_pages_huge(large, 64); /* none fits */
    dti_free(&base, small);
    dti_free(&base, large);
    CHECK(base.bytes_now == 0);
}

TEST(memory_that_runs_out_or_overflows_is_an_error_with_the_size) {
    dti_base base;
    counting_allocator counter;
    counting_base(&base, &counter, 0);
    CHECK(!dti_alloc(&base, 12345));
    CHECK(base.result == DT_ERROR_MEMORY);
    CHECK_CONTAINS(base.error, "12345");
    counter.left = 1;
    CHECK(!dti_alloc_array(&base, SIZE_MAX / 2, 3));
    CHECK(!dti_alloc(&base, SIZE_MAX - 3));
    CHECK(counter.left == 1 && base.bytes_now == 0);
}

/* ---- error and log */

static void keep_message(void *user, dt_log_level level, const char *message) {
    snprintf(user, 2048, "%d %s", (int)level, message);
}

TEST(a_failure_is_recorded_and_logged_and_may_extend_the_earlier_text) {
    char said[2048] = "";
    dt_logger logger = {keep_message, said};
    dti_base base;
    dti_base_init(&base, NULL, &logger);
    CHECK(dti_fail(&base, DT_ERROR_IO, "file %d", 7) == DT_ERROR_IO);
    CHECK(dti_fail(&base, DT_ERROR_FORMAT, "model: %s", base.error) == DT_ERROR_FORMAT);
    CHECK_STR(base.error, "model: file 7");
    CHECK_STR(said, "0 model: file 7");
    char big[3000];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = 0;
    dti_fail(&base, DT_ERROR_IO, "%s", big);
    CHECK(strlen(base.error) == sizeof base.error - 1);
    dti_log(&base, DT_LOG_INFO, "device %s", "cpu");
    CHECK_STR(said, "2 device cpu");
}

TEST(every_result_has_a_text) {
    CHECK_STR(dt_result_text(DT_OK), "no error");
    CHECK_CONTAINS(dt_result_text(DT_ERROR_NUMERIC), "unchanged");
    CHECK_STR(dt_result_text((dt_result)99), "an unknown result");
    CHECK_STR(dt_result_text((dt_result)-1), "an unknown result");
}

/* ---- text */

TEST(numbers_are_the_shortest_that_read_back_in_any_locale) {
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0, "0"},
                {-0.0, "-0"},
                {0.1, "0.1"},
                {1.0 / 3, "0.3333333333333333"},
                {1e300, "1e+300"},
                {5e-324, "5e-324"},
                {123456789, "123456789"},
                {-2.5, "-2.5"},
                {(double)NAN, "nan"},
                {-(double)NAN, "nan"},
                {(double)INFINITY, "inf"},
                {-(double)INFINITY, "-inf"}};
    const char *locales[] = {"C", "de_DE.UTF-8", "ps_AF.UTF-8"};
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (size_t l = 0; l < DTI_COUNT(locales); l++) {
        setlocale(LC_ALL, locales[l]);
        for (size_t i = 0; i < DTI_COUNT(rows); i++) {
            dti_text text = dti_text_open(&base);
            dti_text_add_number(&text, rows[i].value);
            CHECK(text.ok);
            CHECK_STR(text.data, rows[i].text);
            dti_text_free(&text);
        }
    }
    setlocale(LC_ALL, "C");
    char comma[] = "-1,5e-07", arabic[] = "1\xd9\xab.5"; /* a point of several bytes */
    dti_text_plain_point(comma);
    dti_text_plain_point(arabic);
    CHECK_STR(comma, "-1.5e-07");
    CHECK_STR(arabic, "1.5");
    CHECK(base.bytes_now == 0);
}

TEST(text_grows_and_stays_failed_after_memory_ran_out) {
    dti_base base;
    counting_allocator counter;
    counting_base(&base, &counter, 1000);
    dti_text text = dti_text_open(&base);
    for (int i = 0; i < 1000; i++)
        dti_text_add(&text, "%03d,", i);
    CHECK(text.ok && text.size == 4000 && !strncmp(text.data + 3996, "999,", 5));
    counter.left = 0;
    dti_text_add(&text, "%5000d", 1);
    CHECK(!text.ok);
    counter.left = 1000;
    dti_text_add(&text, "x");
    CHECK(!text.ok && text.size == 0);
    dti_text_free(&text);
    CHECK(base.bytes_now == 0 && counter.live == 0);
}

TEST(globs_match_stars_marks_and_lists) {
    CHECK(dti_glob("*.bias", "fc1.bias") && !dti_glob("*.bias", "fc1.bias2"));
    CHECK(dti_glob("fc?.weight", "fc1.weight") && !dti_glob("fc?.weight", "fc12.weight"));
    CHECK(dti_glob("a,*.bias,b", "x.bias") && dti_glob("a,b", "b") && !dti_glob("a,b", "a,b"));
    CHECK(dti_glob("*", "") && !dti_glob("", "") && !dti_glob("?", "") && !dti_glob(",", ""));
    CHECK(dti_glob("a, *.bias ,\tb", "x.bias") && dti_glob("a, b", "b") && dti_glob(" a", "a"));
    CHECK(dti_glob("a b, c", "a b") && !dti_glob("a b", "ab") && !dti_glob(" , ", ""));
    CHECK(dti_glob("*a*b*c", "xxayybzzc") && !dti_glob("*a*b*c", "xxaybzzcd"));
    char name[400];
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = 0; /* a backtracking matcher would not return */
    CHECK(!dti_glob("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", name));
}

/* ---- threads */

typedef struct region { /* every index of [0, count) must be met once */
    dti_pool *pool;
    _Atomic int *met;
    int64_t grain, count;
    _Atomic int64_t wrong, busy[8];
} region;

static void region_piece(void *arg, int64_t begin, int64_t end, int worker) {
    region *r = arg;
    bool last = end == r->count;
    if (begin >= end || worker < 0 || worker >= dti_pool_threads(r->pool) ||
        (!last && (end - begin) % r->grain) || atomic_fetch_add(&r->busy[worker], 1) != 0)
        atomic_fetch_add(&r->wrong, 1);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add_explicit(&r->met[i], 1, memory_order_relaxed);
    atomic_fetch_sub(&r->busy[worker], 1);
}

static int64_t region_run(dti_pool *pool, int64_t count, int64_t grain) {
    static _Atomic int met[2000];
    memset((void *)met, 0, sizeof met);
    region r = {.pool = pool, .met = met, .grain = grain, .count = count};
    dti_parallel_for(pool, count, grain, region_piece, &r);
    for (int64_t i = 0; i < (int64_t)DTI_COUNT(met); i++)
        r.wrong += met[i] != (i < count);
    return r.wrong;
}

TEST(parallel_for_visits_every_index_once_for_all_sizes_and_thread_counts) {
    static const int64_t counts[] = {0, 1, 2, 7, 64, 65, 127, 1000, 1999};
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (int threads = 0; threads <= 5; threads++) {
        dti_pool *pool;
        REQUIRE(dti_pool_create(&base, threads, NULL, &pool) == DT_OK);
        CHECK(dti_pool_threads(pool) == (DTI_THREADS ? DTI_MAX(threads, 1) : 1));
        uint64_t calls = base.alloc_calls;
        for (size_t i = 0; i < DTI_COUNT(counts); i++)
            for (int64_t grain = 1; grain < 100; grain = grain * 2 + 1)
                CHECK(region_run(pool, counts[i], grain) == 0);
        CHECK(base.alloc_calls == calls);
        dti_pool_destroy(&base, pool);
    }
    CHECK(region_run(NULL, 100, 1) == 0);
    CHECK(base.bytes_now == 0);
}

static void nap(int64_t ns) {
    dti_thread_sleep((uint64_t)ns);
}

TEST(the_pool_survives_many_regions_with_and_without_pauses) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_pool *pool;
    REQUIRE(dti_pool_create(&base, 4, NULL, &pool) == DT_OK);
    int64_t wrong = 0;
    for (int i = 0; i < 2000; i++) {
        wrong += region_run(pool, 64 + i % 7, 1);
        if (i % 50 == 0)
            nap(200000); /* long enough for the workers to fall asleep */
    }
    CHECK(wrong == 0);
    dti_pool_destroy(&base, pool);
}

static void nested_piece(void *arg, int64_t begin, int64_t end, int worker) {
    region *r = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        region inner = {.pool = r->pool, .met = r->met + i * 10, .grain = 1, .count = 10};
        dti_parallel_for(r->pool, 10, 1, region_piece, &inner);
        atomic_fetch_add(&r->wrong, inner.wrong);
    }
}

TEST(a_nested_region_runs_inline_on_its_worker) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_pool *pool;
    REQUIRE(dti_pool_create(&base, 3, NULL, &pool) == DT_OK);
    _Atomic int met[500] = {0};
    region r = {.pool = pool, .met = met, .grain = 1, .count = 50};
    dti_parallel_for(pool, 50, 1, nested_piece, &r);
    for (int i = 0; i < 500; i++)
        CHECK(met[i] == 1);
    CHECK(r.wrong == 0);
    dti_pool_destroy(&base, pool);
}

static void backwards_jobs(void *user, int64_t count, void (*body)(void *, int64_t), void *arg) {
    *(int64_t *)user += count;
    for (int64_t i = count; i-- > 0;)
        body(arg, i);
}

TEST(the_hosts_job_system_does_the_work) {
    int64_t jobs_run = 0;
    dt_job_system jobs = {.parallel_for = backwards_jobs, .user = &jobs_run, .threads = 3};
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_pool *pool;
    REQUIRE(dti_pool_create(&base, 7, &jobs, &pool) == DT_OK);
    CHECK(dti_pool_threads(pool) == 3);
    CHECK(region_run(pool, 100, 1) == 0);
    CHECK(jobs_run == 3);
    dti_pool_destroy(&base, pool);
    CHECK(dti_pool_create(&base, 1 << 20, NULL, &pool) == DT_ERROR_INVALID && !pool);
    CHECK(base.bytes_now == 0);
}

#ifdef __SSE__
/* The smallest float halved: 0 when denormals are flushed. */
static float halve_smallest_normal(void) {
    volatile float x = FLT_MIN;
    x = x * 0.5f;
    return x;
}

static void count_flushes(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        if (halve_smallest_normal() == 0)
            atomic_fetch_add((_Atomic int *)arg, 1);
}
#endif

#ifdef __linux__
#include <sys/resource.h>

static void count_nice(void *arg, int64_t begin, int64_t end, int worker) {
    (void)begin, (void)end;
    if (worker && getpriority(PRIO_PROCESS, (id_t)dti_thread_id()) == 7)
        atomic_fetch_add((_Atomic int *)arg, 1);
    if (!worker)
        dti_thread_sleep(1000000); /* so that others have pieces */
}

static void *pool_of_a_nice_thread(void *arg) {
    dti_base base;
    dti_pool *pool;
    dti_base_init(&base, NULL, NULL);
    setpriority(PRIO_PROCESS, (id_t)dti_thread_id(), 7);
    CHECK(!dti_pool_create(&base, 3, NULL, &pool));
    for (int i = 0; i < 100 && !*(_Atomic int *)arg; i++)
        dti_parallel_for(pool, 12, 1, count_nice, arg);
    dti_pool_destroy(&base, pool);
    return NULL;
}
#endif

/* An application's frames have a priority, and what they wait for must not have less. */
TEST(workers_have_the_priority_of_the_thread_that_makes_their_context) {
#ifdef __linux__
    pthread_t thread;
    _Atomic int seen = 0;
    REQUIRE(!pthread_create(&thread, NULL, pool_of_a_nice_thread, (void *)&seen));
    pthread_join(thread, NULL);
    CHECK(seen > 0);
#else
    SKIP("looks at a thread's nice value as Linux has it");
#endif
}

TEST(workers_keep_denormals_when_the_host_flushes_them) {
#ifdef __SSE__
    unsigned flushing = 0x9FC0; /* flush to zero, denormals are zero, no traps */
    unsigned saved = dti_fp_enter();
    dti_fp_leave(flushing);
    CHECK(halve_smallest_normal() == 0);
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_pool *pool;
    REQUIRE(dti_pool_create(&base, 2, NULL, &pool) == DT_OK);
    _Atomic int flushed = 0;
    unsigned host = dti_fp_enter();
    CHECK((host & 0xFFC0) == flushing);
    for (int i = 0; i < 100; i++)
        dti_parallel_for(pool, 64, 1, count_flushes, (void *)&flushed);
    CHECK(flushed == 0);
    dti_fp_leave(host);
    CHECK(halve_smallest_normal() == 0);
    dti_pool_destroy(&base, pool);
    dti_fp_leave(saved);
#else
    SKIP("sets the control register of x86");
#endif
}

/* ---- random numbers */

TEST(philox_has_the_test_vectors_of_its_paper) {
    static const struct {
        uint64_t key, counter, stream;
        uint32_t out[4];
    } rows[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < DTI_COUNT(rows); i++) {
        dti_u32x4 r = dti_philox(rows[i].key, rows[i].counter, rows[i].stream);
        CHECK(!memcmp(r.v, rows[i].out, sizeof r.v));
    }
}

TEST(the_logarithm_is_within_two_ulps_of_the_c_librarys) {
    double x = 1e-300;
    for (int i = 0; i < 5000; i++, x *= 1.318)
        CHECK_NEAR(dti_ln(x), log(x), 2 * DBL_EPSILON * fmax(fabs(log(x)), 1e-3));
    CHECK(dti_ln(1) == 0);
}

TEST(normal_numbers_are_normal_and_have_the_quantiles_of_as241) {
    /* Python: statistics.NormalDist().inv_cdf(p) */
    CHECK_NEAR(dti_normal_quantile(0.975), 1.9599639845400536, 1e-15);
    CHECK_NEAR(dti_normal_quantile(0.3), -0.5244005127080409, 1e-15);
    CHECK_NEAR(dti_normal_quantile(1e-10), -6.361340902404056, 1e-14);
    CHECK_NEAR(dti_normal_quantile(1e-20), -9.262340089798409, 1e-14);
    CHECK(dti_normal_quantile(0.5) == 0);
    double sum = 0, squares = 0, fourths = 0, mean = 0;
    const int n = 100000;
    for (int i = 0; i < n; i++) {
        double x = dti_normal(7, (uint64_t)i, 3), u = dti_uniform01(7, (uint64_t)i, 3);
        CHECK(u >= 0 && u < 1);
        mean += u, sum += x, squares += x * x, fourths += x * x * x * x;
    }
    CHECK_NEAR(mean / n, 0.5, 0.004);
    CHECK_NEAR(sum / n, 0, 0.013); /* four standard errors each */
    CHECK_NEAR(squares / n, 1, 0.018);
    CHECK_NEAR(fourths / n, 3, 0.13);
}

/* ---- hashes */

TEST(hashes_have_the_values_of_their_standards) {
    uint8_t digest[32], empty[] = {0xe3, 0xb0, 0xc4, 0x42}, abc[] = {0xba, 0x78, 0x16, 0xbf};
    uint8_t million[] = {0xcd, 0xc7, 0x6e, 0x5c};
    dti_sha256 s;
    CHECK(dti_crc32c(0, "123456789", 9) == 0xE3069283);
    CHECK(dti_crc32c(dti_crc32c(0, "1234", 4), "56789", 5) == 0xE3069283);
    CHECK(dti_hash64(14695981039346656037u, "foobar", 6) == 0x85944171f73967e8);
    dti_sha256_init(&s);
    dti_sha256_end(&s, digest);
    CHECK(!memcmp(digest, empty, 4));
    dti_sha256_init(&s);
    dti_sha256_add(&s, "abc", 3);
    dti_sha256_end(&s, digest);
    CHECK(!memcmp(digest, abc, 4));
    char a[1000];
    memset(a, 'a', sizeof a);
    dti_sha256_init(&s);
    for (int i = 0; i < 1000; i++) {
        dti_sha256_add(&s, a, (size_t)i % 64);
        dti_sha256_add(&s, a, 1000 - (size_t)i % 64);
    }
    dti_sha256_end(&s, digest);
    CHECK(!memcmp(digest, million, 4) && digest[31] == 0xd0);
}

/* ---- 16-bit floats */

/* By its bits: -ffast-math, which this file may be compiled with, folds f != f. */
static bool is_nan(float f) {
    return (dti_bits_from_f32(f) & 0x7FFFFFFF) > 0x7F800000;
}

TEST(every_f16_survives_conversion_to_float_and_back) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = dti_f32_from_f16((uint16_t)h), b = dti_f32_from_bf16((uint16_t)h);
        bool nan = (h & 0x7FFF) > 0x7C00, bnan = (h & 0x7FFF) > 0x7F80;
        CHECK(nan ? is_nan(f) : f16_from_f32(f) == h);
        CHECK(bnan ? is_nan(b) : dti_bf16_from_f32(b) == h);
        CHECK(!nan || (f16_from_f32(f) & 0x7FFF) > 0x7C00);
    }
}

TEST(halves_round_to_nearest_even) {
    static const struct {
        float value;
        uint16_t f16, bf16;
    } rows[] = {{1, 0x3C00, 0x3F80},
                {1 + 0x1p-11f, 0x3C00, 0x3F80}, /* a tie, to even */
                {1 + 3 * 0x1p-11f, 0x3C02, 0x3F80},
                {1 + 0x1p-8f, 0x3C04, 0x3F80},
                {1 + 3 * 0x1p-8f, 0x3C0C, 0x3F82},
                {65504, 0x7BFF, 0x4780},
                {65519, 0x7BFF, 0x4780},
                {65520, 0x7C00, 0x4780}, /* halfway to 65536: even is infinity */
                {-1e30f, 0xFC00, 0xF14A},
                {0x1p-24f, 0x0001, 0x3380},
                {0x1p-25f, 0x0000, 0x3300}, /* a tie with zero */
                {0x1.8p-25f, 0x0001, 0x3340},
                {0x1.ffcp-15f, 0x0400, 0x3880}, /* a denormal that rounds up to a normal */
                {3.4e38f, 0x7C00, 0x7F80}};
    for (size_t i = 0; i < DTI_COUNT(rows); i++) {
        CHECK(f16_from_f32(rows[i].value) == rows[i].f16);
        CHECK(dti_bf16_from_f32(rows[i].value) == rows[i].bf16);
    }
}

/* ---- json */

static bool json_is_good(const char *text) {
    dti_json j = dti_json_open(text, strlen(text));
    dti_json_skip(&j);
    return dti_json_done(&j);
}

TEST(json_accepts_exactly_the_standard) {
    static const char *const good[] = {"{}",
                                       "[]",
                                       " [ ] ",
                                       "0",
                                       "-0.5e+10",
                                       "true",
                                       "null",
                                       "\"\\u00e9\\n\\\"\"",
                                       "[1,[2,{}],{}]",
                                       "{\"a\":1,\"b\":[{\"c\":null},false]}",
                                       "1e5",
                                       "\"\"",
                                       "[0,-1,10.25E-2]"};
    static const char *const bad[] = {
        "",        " ",        "{",           "}",       "[1,]",  "[,1]",  "[1 2]",
        "{\"a\"}", "{\"a\":}", "{\"a\":1,}",  "{,}",     "{a:1}", "01",    "1.",
        ".5",      "-",        "+1",          "1e",      "tru",   "truex", "nul",
        "\"",      "\"\\x\"",  "\"\\u12g4\"", "\"\n\"",  "[1]]",  "{}{}",  "[}",
        "{]",      "1 2",      "\"\\",        "\"\\u00", "NaN",   "'a'"};
    for (size_t i = 0; i < DTI_COUNT(good); i++)
        test_check(json_is_good(good[i]), __FILE__, __LINE__, "good: %s", good[i]);
    for (size_t i = 0; i < DTI_COUNT(bad); i++)
        test_check(!json_is_good(bad[i]), __FILE__, __LINE__, "bad: %s", bad[i]);
}

TEST(json_depth_and_numbers_are_bounded) {
    char deep[200];
    for (int depth = 1; depth <= 100; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        deep[2 * depth] = 0;
        CHECK(json_is_good(deep) == (depth <= 32));
        deep[depth] = 0;
        CHECK(!json_is_good(deep));
        if (depth == 99)
            break;
    }
    static const char *const bad[] = {"18446744073709551616", "-1", "1.0", "1e3", "007", "", "x"};
    uint64_t value = 5;
    for (size_t i = 0; i < DTI_COUNT(bad); i++) {
        dti_json j = dti_json_open(bad[i], strlen(bad[i]));
        CHECK(!dti_json_u64(&j, &value) && j.bad && !dti_json_done(&j) && value == 5);
    }
    dti_json j = dti_json_open("18446744073709551615", 20);
    CHECK(dti_json_u64(&j, &value) && value == UINT64_MAX && dti_json_done(&j));
}

TEST(json_walks_a_safetensors_header) {
    const char *text =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2, 3],\"data_offsets\":[0,24]},\"x\":0}";
    dti_json j = dti_json_open(text, strlen(text));
    dti_slice key = {0}, word = {0};
    uint64_t value, sum = 0;
    CHECK(dti_json_object(&j) && dti_json_next_key(&j, &key) && dti_slice_is(key, "w"));
    CHECK(dti_json_object(&j) && dti_json_next_key(&j, &key) && dti_json_string(&j, &word));
    CHECK(dti_slice_is(word, "F32") && !dti_slice_is(word, "F3") && !dti_slice_is(word, "F322"));
    CHECK(dti_json_next_key(&j, &key) && dti_json_array(&j));
    while (dti_json_next_item(&j) && dti_json_u64(&j, &value))
        sum = sum * 10 + value;
    CHECK(sum == 23 && dti_json_next_key(&j, &key) && dti_json_skip(&j));
    CHECK(!dti_json_next_key(&j, &key) && dti_json_next_key(&j, &key) && dti_json_skip(&j));
    CHECK(!dti_json_next_key(&j, &key) && dti_json_done(&j));
    CHECK(!dti_json_next_key(&j, &key) && !dti_json_done(&j));
}

/* Mutated and cut texts in a block of their exact size, so that a sanitizer sees a byte too far. */
TEST(json_never_reads_past_the_end_of_hostile_bytes) {
    const char *seed = "{\"a\\u00e9\":[1,-2.5e+3,true,null],\"b\":{\"c\":\"\\\\\",\"d\":[[],{}]}} ";
    size_t size = strlen(seed);
    for (uint32_t i = 0; i < 20000; i++) {
        dti_u32x4 r = dti_philox(1, i, 2);
        size_t cut = 1 + r.v[0] % size;
        char *text = malloc(cut);
        memcpy(text, seed, cut);
        text[r.v[1] % cut] = (char)r.v[2];
        if (r.v[3] & 1)
            text[r.v[3] / 2 % cut] = "{}[],:\"\\0e-"[r.v[2] % 11];
        dti_json j = dti_json_open(text, cut);
        bool ok = dti_json_skip(&j);
        CHECK(ok == !j.bad && j.at >= text && j.at <= text + cut);
        free(text);
    }
}

/* ---- files */

#define SCRATCH_FILE "build/test_base.bin"

typedef struct base_file { /* in memory */
    char *data;
    size_t size;
} base_file;

/* A whole file; the caller frees its data. */
static dt_result base_read_file(dti_base *base, const char *path, base_file *file) {
    dti_reader r;
    *file = (base_file){0};
    dt_result result = dti_reader_open(base, path, &r);
    if (result)
        return result;
    file->size = (size_t)r.size;
    result = dti_reader_take_new(&r, r.size, &file->data);
    dti_reader_close(&r);
    return result;
}

TEST(a_file_is_replaced_whole_or_not_at_all) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_writer *w;
    base_file file;
    REQUIRE(dti_writer_open(&base, SCRATCH_FILE, 5, &w) == DT_OK);
    CHECK(dti_writer_add(w, "first", 5) == DT_OK && dti_writer_add(w, "", 0) == DT_OK);
    CHECK(dti_writer_close(w, true) == DT_OK);
    REQUIRE(dti_writer_open(&base, SCRATCH_FILE, 0, &w) == DT_OK);
    CHECK(dti_writer_add(w, "second", 6) == DT_OK && temp_unfinished(SCRATCH_FILE) == 1);
    CHECK(dti_writer_close(w, false) == DT_OK && temp_unfinished(SCRATCH_FILE) == 0);
    CHECK(base_read_file(&base, SCRATCH_FILE, &file) == DT_OK);
    CHECK(file.size == 5 && !strcmp(file.data, "first"));
    dti_free(&base, file.data);
    remove(SCRATCH_FILE);
    CHECK(base.bytes_now == 0);
}

TEST(a_written_file_has_the_crc_of_its_parts) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_writer *w;
    REQUIRE(dti_writer_open(&base, SCRATCH_FILE, 0, &w) == DT_OK);
    CHECK(dti_writer_take_crc(w) == 0 && dti_writer_add(w, "12345", 5) == DT_OK);
    CHECK(dti_writer_add(w, "6789", 4) == DT_OK && dti_writer_take_crc(w) == 0xE3069283);
    CHECK(dti_writer_take_crc(w) == 0 && dti_writer_add(w, "123456789", 9) == DT_OK);
    CHECK(dti_writer_take_crc(w) == 0xE3069283);
    CHECK(dti_writer_close(w, false) == DT_OK && base.bytes_now == 0);
}

TEST(files_that_cannot_be_read_or_written_are_errors_that_name_them) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_writer *w;
    base_file file;
    CHECK(base_read_file(&base, "no/such/file", &file) == DT_ERROR_IO);
    CHECK_CONTAINS(base.error, "no/such/file");
    CHECK(base_read_file(&base, "/", &file) == DT_ERROR_IO && !file.data);
    CHECK(dti_writer_open(&base, "no/such/file", 0, &w) == DT_ERROR_IO && !w);
    CHECK_CONTAINS(base.error, "no/such/file");
    CHECK(base.bytes_now == 0);
}

/* A process that may make files in /dev could put one in a device's place. */
TEST(a_path_that_is_not_a_regular_file_is_never_replaced) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    const char *places[] = {"/dev/null", "/dev/zero", ".", "/"};
#if defined _WIN32 || defined __wasi__ /* no devices by such names */
    const size_t first = 2;
#else
    const size_t first = 0;
#endif
    for (size_t i = first; i < DTI_COUNT(places); i++) {
        dti_writer *w;
        CHECK(dti_writer_open(&base, places[i], 0, &w) == DT_ERROR_IO && !w);
        if (w)
            CHECK(dti_writer_close(w, false) == DT_OK);
        CHECK_CONTAINS(base.error, i < 2 ? "cannot be replaced: it is a device"
                                         : "cannot be replaced: it is a folder");
    }
    CHECK(base.bytes_now == 0);
}

TEST(arrays_double_keep_their_items_and_refuse_absurd_sizes) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    void *items = NULL;
    size_t capacity = 0;
    for (size_t i = 0; i < 1000; i++) {
        REQUIRE(dti_array_reserve(&base, &items, &capacity, i + 1, sizeof(size_t)));
        CHECK(((size_t *)items)[i] == 0);
        ((size_t *)items)[i] = i + 1;
    }
    for (size_t i = 0; i < 1000; i++)
        CHECK(((size_t *)items)[i] == i + 1);
    CHECK(capacity == 1024 && base.alloc_calls == 8);
    CHECK(!dti_array_reserve(&base, &items, &capacity, SIZE_MAX / 2, sizeof(size_t)));
    CHECK(((size_t *)items)[999] == 1000 && capacity == 1024);
    dti_free(&base, items);
    CHECK(base.bytes_now == 0);
}

/* ---- sums without rounding */

static double exact_of(const float *x, size_t count, size_t step) {
    dti_exact sum = {0};
    for (size_t i = 0; i < count; i++)
        dti_exact_add(sum, x[i * step % count]);
    return dti_exact_value(sum);
}

TEST(exact_sums_of_floats_are_the_nearest_double_in_any_order) {
    static const struct {
        float x[4];
        double sum;
    } cases[] = {
        {{0}, 0},
        {{1, -1}, 0},
        {{1e30f, 1, -1e30f}, 1},
        {{-1e30f, -0x1p-149f, 1e30f}, -0x1p-149},
        {{FLT_MAX, FLT_MAX, FLT_MAX, FLT_MAX}, 4.0 * (double)FLT_MAX},
        {{-FLT_MAX, -FLT_MAX, 0x1p-149f}, -2.0 * (double)FLT_MAX},
        {{-3, 0.5f, 0.25f}, -2.25},
        {{0x1p53f, 1}, 0x1p53},                /* a tie, to even */
        {{0x1p53f, 1, 0x1p-149f}, 0x1p53 + 2}, /* and above it */
        {{0x1p53f, 2, 1}, 0x1p53 + 4},
        {{-0x1p53f, -1, -0x1p-140f}, -0x1p53 - 2},
        {{0x1p32f, 0x1p31f, 0x1p-32f}, 0x1p32 + 0x1p31 + 0x1p-32},
        {{INFINITY, 1}, (double)INFINITY},
        {{-INFINITY, 1}, -(double)INFINITY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_check(exact_of(cases[i].x, 4, 3) == cases[i].sum, __FILE__, __LINE__,
                   "case %zu: %a, not %a", i, exact_of(cases[i].x, 4, 3), cases[i].sum);
    CHECK(isnan(exact_of((float[]){INFINITY, -INFINITY}, 2, 1)));
    CHECK(isnan(exact_of((float[]){1, NAN}, 2, 1)));
    float many[1009];
    double plain = 0;
    uint32_t state = 1;
    for (int i = 0; i < 1009; i++) {
        state = state * 1664525u + 1013904223u;
        many[i] = ldexpf((float)(state >> 8) - 8e6f, (int)(state >> 4 & 31) - 16);
        plain += (double)many[i];
    }
    const double sum = exact_of(many, 1009, 1);
    CHECK_NEAR(sum, plain, 1e-12 * fabs(plain) + 1e-3);
    for (size_t step = 2; step < 1009; step += 97)
        CHECK(exact_of(many, 1009, step) == sum);
}
