/* What the fuzz targets share. `./build.sh fuzz` compiles tests/fuzz/fuzz_*.c with libFuzzer; a
 * target is a function of some bytes that must hold whatever they are. tests/fuzz/test_fuzz.c and
 * tests/comm/test_fuzz_replay.c include the same functions and run them on the kept files, without
 * libFuzzer: there FUZZ_REPLAY is defined. */
#ifndef DTRAIN_TESTS_FUZZ_H
#define DTRAIN_TESTS_FUZZ_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "dtrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Before what runs often and says nothing of the library: the fuzzer does not follow it. */
#ifdef __clang__
#define FUZZ_UNWATCHED __attribute__((no_sanitize("coverage")))
#else
#define FUZZ_UNWATCHED
#endif

#ifdef FUZZ_REPLAY
#include "harness.h"
#define FUZZ_CHECK(condition) CHECK(condition)
#else
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
#endif

/* Blocks that end where their data does: the sanitizer then sees the first byte too many. */
static void *fuzz_alloc(void *user, size_t bytes, size_t align) {
    void *block = NULL;
    (void)user;
    return posix_memalign(&block, align, bytes) == 0 ? block : NULL;
}

static void fuzz_free(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    free(memory);
}

#ifndef DT_COMM_ONLY
/* A file in memory that holds these bytes, and its path: thousands are read in a second. */
typedef struct fuzz_file {
    int descriptor; /* 0: not made yet */
    char path[64];
} fuzz_file;

static bool fuzz_write(fuzz_file *f, const uint8_t *data, size_t size) {
    if (!f->descriptor) {
        f->descriptor = memfd_create("fuzz", 0);
        snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", f->descriptor);
    }
    return f->descriptor > 0 && ftruncate(f->descriptor, 0) == 0 &&
           pwrite(f->descriptor, data, size, 0) == (ssize_t)size;
}

static dt_ctx *fuzz_context(void) {
    dt_ctx *ctx = NULL;
    dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .allocator = {fuzz_alloc, fuzz_free, NULL}},
                  &ctx);
    return ctx;
}

/* Host bytes that the context holds. */
static uint64_t fuzz_bytes(const dt_ctx *ctx) {
    dt_ctx_info info;
    dt_ctx_get_info(ctx, &info);
    return info.host_bytes;
}

/* Its bytes are those of all elements. */
static inline bool fuzz_array_is_whole(const dt_array *a) {
    size_t bytes = (size_t)a->element_bytes;
    for (int i = 0; i < a->rank; i++) {
        if (a->dim[i] < 0 || (a->bytes && a->dim[i] > (int64_t)a->bytes)) /* no wrap */
            return false;
        bytes *= (size_t)a->dim[i];
    }
    return bytes == a->bytes;
}
#endif

/* An error has a text, and a terminal that shows it obeys nothing in it. */
static bool fuzz_text_is_plain(const char *text) {
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7F)
            return false;
    return *text != 0;
}

#endif
