/* NumPy's files: those that NumPy writes, by what it says of them; and what is wrong. */
#include "temp.h"
#include "train/train_model.h"

#include <math.h>

/* An array of numbers 0 to 5, [2, 3], of a type. Read, it is 0 to 5 in the order of C. */
static void npy_check(dt_ctx *ctx, const dt_array *a, dt_dtype want, const char *what) {
    (void)ctx;
    if (!CHECK_TEXT(a->rank == 2 && a->dim[0] == 2 && a->dim[1] == 3 && a->dtype == want,
                    "%s: rank %d, type %d", what, a->rank, (int)a->dtype))
        return;
    for (int i = 0; i < 6; i++) {
        const double x = want == DT_U8    ? ((uint8_t *)a->data)[i]
                         : want == DT_I32 ? ((int32_t *)a->data)[i]
                                          : (double)((float *)a->data)[i];
        CHECK_TEXT(x == i, "%s[%d] is %g", what, i, x);
    }
}

static const char npy_numpy[] = "import numpy as n, sys; at = '%s'\n"
                                "for o in 'CF':\n"
                                " for t in ('f2', '<f4', '>f4', 'f8', '>f8', 'u1', 'i1', 'u2', "
                                "'i2', '>i4', 'i8', '>u8'):\n"
                                "  n.save(at + '/' + o + t.replace('<', 'l').replace('>', 'b') + "
                                "'.npy', n.arange(6).reshape(2, 3).astype(t, order=o))\n"
                                "n.savez(at + '/C.npz', a=n.arange(6.0).reshape(2, 3), "
                                "b=n.ones(4, bool))\n"
                                "n.savez_compressed(at + '/P.npz', "
                                "a=n.arange(6.0).reshape(2, 3), z=n.zeros(100000))\n"
                                "n.save(at + '/wide.npy', n.array([1, -2147483648, 2147483648]))\n"
                                "n.save(at + '/text.npy', n.array(['a']))\n"
                                "n.save(at + '/pair.npy', n.zeros(2, 'i4, f4'))\n"
                                "n.save(at + '/complex.npy', n.zeros(2, complex))\n"
                                "n.save(at + '/scalar.npy', n.float32(2.5))\n";

static dt_result npy_load(dt_ctx *ctx, const char *folder, const char *name, dt_array *a) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return dt_npy_load(ctx, path, a);
}

static void npy_types(dt_ctx *ctx, const char *folder) {
    static const struct {
        const char *name;
        dt_dtype dtype;
    } types[] = {{"f2", DT_F32},  {"lf4", DT_F32}, {"bf4", DT_F32}, {"f8", DT_F32},
                 {"bf8", DT_F32}, {"u1", DT_U8},   {"i1", DT_I32},  {"u2", DT_I32},
                 {"i2", DT_I32},  {"bi4", DT_I32}, {"i8", DT_I32},  {"bu8", DT_I32}};
    for (size_t i = 0; i < 2 * sizeof types / sizeof *types; i++) {
        char name[32];
        dt_array a;
        snprintf(name, sizeof name, "%c%s.npy", "CF"[i % 2], types[i / 2].name);
        const dt_result result = npy_load(ctx, folder, name, &a);
        if (CHECK_TEXT(result == DT_OK, "%s: %s", name, dt_ctx_error(ctx)))
            npy_check(ctx, &a, types[i / 2].dtype, name);
        dt_array_destroy(&a);
    }
}

static void npy_archives(dt_ctx *ctx, const char *folder) {
    char path[600];
    dt_array a;
    snprintf(path, sizeof path, "%s/C.npz", folder);
    CHECK(dt_npz_load(ctx, path, "a", &a) == DT_OK);
    npy_check(ctx, &a, DT_F32, "a of C.npz");
    dt_array_destroy(&a);
    CHECK(dt_npz_load(ctx, path, "b", &a) == DT_OK && a.dtype == DT_U8 && a.bytes == 4);
    dt_array_destroy(&a);
    CHECK(dt_npz_load(ctx, path, "c", &a) == DT_ERROR_INVALID && !a.data);
    CHECK_CONTAINS(dt_ctx_error(ctx), "'c'; it has: a, b");
    CHECK(dt_npz_load(ctx, path, NULL, &a) == DT_ERROR_INVALID);
    snprintf(path, sizeof path, "%s/P.npz", folder);
#ifdef DT_WITH_ZLIB
    CHECK_TEXT(dt_npz_load(ctx, path, "a", &a) == DT_OK, "it is deflated");
    npy_check(ctx, &a, DT_F32, "a of P.npz");
    dt_array_destroy(&a);
    CHECK(dt_npz_load(ctx, path, "z", &a) == DT_OK && a.bytes == 400000);
    dt_array_destroy(&a);
#else
    CHECK(dt_npz_load(ctx, path, "a", &a) == DT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dt_ctx_error(ctx), "DT_WITH_ZLIB");
#endif
}

static void npy_refused(dt_ctx *ctx, const char *folder, const char *name, const char *what) {
    dt_array a;
    CHECK(npy_load(ctx, folder, name, &a) == DT_ERROR_FORMAT && !a.data);
    CHECK_CONTAINS(dt_ctx_error(ctx), name);
    CHECK_CONTAINS(dt_ctx_error(ctx), what);
}

TEST(npy_files_of_numpy_are_read) {
#ifdef __wasi__
    SKIP("there is no python3");
#else
    dt_ctx *ctx;
    dt_array a;
    char program[3000];
    const char *folder = temp_path("numpy");
    if (!temp_python("import numpy", true))
        SKIP("numpy is missing; ./build.sh test --yes installs it");
    mkdir(folder, 0700);
    snprintf(program, sizeof program, npy_numpy, folder);
    if (!CHECK_TEXT(temp_python(program, false), "numpy writes") ||
        !CHECK_TEXT(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK, "ctx"))
        return;
    npy_types(ctx, folder);
    npy_archives(ctx, folder);
    npy_refused(ctx, folder, "wide.npy", "value 2 does not fit");
    npy_refused(ctx, folder, "text.npy", "type '<U1' are not read");
    npy_refused(ctx, folder, "pair.npy", "structures");
    npy_refused(ctx, folder, "complex.npy", "not numbers of one type");
    CHECK(npy_load(ctx, folder, "scalar.npy", &a) == DT_OK && a.rank == 0 && a.bytes == 4);
    CHECK(a.data && *(float *)a.data == 2.5f);
    dt_array_destroy(&a);
    dt_ctx_destroy(ctx);
    snprintf(program, sizeof program, "import shutil; shutil.rmtree('%s')", folder);
    CHECK(temp_python(program, false));
#endif
}

/* ---- files made here, by their header and elements */

typedef struct npy_file {
    const char *descr, *order, *shape;
    int version; /* 0: 1 */
    const void *data;
    size_t bytes;
    dt_dtype dtype; /* what it is read as */
    int rank;
    int64_t dim[3];
    const char *wrong; /* what is wrong with it */
} npy_file;

static size_t npy_compose(const npy_file *f, char *to) {
    const int version = f->version ? f->version : 1, start = version == 1 ? 10 : 12;
    const int size = sprintf(to + start, "{'descr': %s, 'fortran_order': %s, 'shape': %s}  \n",
                             f->descr, f->order ? f->order : "False", f->shape);
    memcpy(to, "\x93NUMPY", 6);
    memcpy(to + 6, (char[]){(char)version, 0, (char)size, (char)(size >> 8), 0, 0},
           version == 1 ? 4 : 6);
    memcpy(to + start + size, f->data ? f->data : "", f->bytes);
    return (size_t)(start + size) + f->bytes;
}

static void npy_try(dt_ctx *ctx, const npy_file *f) {
    char bytes[1024];
    dt_array a;
    const char *path = temp_write("made.npy", bytes, npy_compose(f, bytes));
    const dt_result result = dt_npy_load(ctx, path, &a);
    CHECK_TEXT(result == (f->wrong ? DT_ERROR_FORMAT : DT_OK), "%s %s: %s", f->descr, f->shape,
               dt_ctx_error(ctx));
    if (f->wrong)
        CHECK_CONTAINS(dt_ctx_error(ctx), f->wrong);
    CHECK_TEXT(f->wrong || (a.rank == f->rank && a.dtype == f->dtype && a.data &&
                            !memcmp(a.dim, f->dim, sizeof f->dim)),
               "%s %s: rank %d", f->descr, f->shape, a.rank);
    dt_array_destroy(&a);
}

/* 1, 2, 3, 4 and 5 in bytes are numbers enough for shapes. */
#define NPY_BYTES .data = "\1\2\3\4\5\6", .dtype = DT_U8

TEST(npy_shapes_and_headers_that_python_writes_are_read) {
    static const npy_file files[] = {
        {"'|u1'", NULL, "(2L,)", NPY_BYTES, .bytes = 2, .rank = 1, .dim = {2}},
        {"'|u1'", NULL, "(2L, 3L)", NPY_BYTES, .bytes = 6, .rank = 2, .dim = {2, 3}},
        {"'|u1'", "True", "(2L, 3L)", NPY_BYTES, .bytes = 6, .rank = 2, .dim = {2, 3}},
        {"'|u1'", NULL, "(2, 3,)", NPY_BYTES, .bytes = 6, .rank = 2, .dim = {2, 3}},
        {"'|u1'", NULL, "(\t6,\r\n)", NPY_BYTES, .bytes = 6, .rank = 1, .dim = {6}},
        {"'|u1'", NULL, "(6,)", 2, NPY_BYTES, .bytes = 6, .rank = 1, .dim = {6}},
        {"'|u1'", NULL, "(6,)", 3, NPY_BYTES, .bytes = 6, .rank = 1, .dim = {6}},
        {"'|b1'", NULL, "(6,)", NPY_BYTES, .bytes = 6, .rank = 1, .dim = {6}},
        {"'|u1'", NULL, "(0,)", .dtype = DT_U8, .rank = 1},
        {"'>i8'", NULL, "(3, 0)", .dtype = DT_I32, .rank = 2, .dim = {3}},
        {"'<f8'", "True", "(0, 3)", .dtype = DT_F32, .rank = 2, .dim = {0, 3}},
        {"'<f4'", NULL, "(1099511627776, 0, 2)", .dtype = DT_F32, .rank = 3,
         .dim = {1099511627776, 0, 2}},
        {"'<f4'", NULL, "(0L,)", .dtype = DT_F32, .rank = 1},
        {"'<f4'", NULL, "(L,)", .wrong = "elements that are not numbers"},
        {"'|u1'", NULL, "(2LL,)", NPY_BYTES, .bytes = 2, .wrong = "does not end"},
        {"'|u1'", NULL, "(0,)", NPY_BYTES, .bytes = 2, .wrong = "0 elements of 1 bytes, but 2"},
        {"'|u1'", NULL, "(7,)", NPY_BYTES, .bytes = 6, .wrong = "more elements than bytes"},
    };
    dt_ctx *ctx;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        npy_try(ctx, &files[i]);
    dt_ctx_destroy(ctx);
}

/* Infinity and NaN are what they are; what is finite stays so, or is refused with its place. */
TEST(npy_numbers_that_no_float_holds_are_errors) {
    static const double large[] = {1.0, -1e300, 0.5, 3.4028235677973366e38};
    static const double fits[] = {INFINITY, -INFINITY, NAN, 3.4028234663852886e38, 1e-300, -0.0};
    static const int64_t ints[] = {INT32_MAX, -2147483649, 1};
    static const npy_file files[] = {
        {"'<f8'", NULL, "(4,)", .data = large, .bytes = 32, .wrong = "value 1, -1e+300, does"},
        {"'<f8'", "True", "(2, 2)", .data = large, .bytes = 32, .wrong = "value 2, -1e+300"},
        {"'<f8'", NULL, "(2,)", .data = large + 2, .bytes = 16, .wrong = "value 1, 3.40282e"},
        {"'<f8'", NULL, "(6,)", .data = fits, .bytes = 48, .dtype = DT_F32, .rank = 1, .dim = {6}},
        {"'<i8'", NULL, "(3,)", .data = ints, .bytes = 24,
         .wrong = "value 1 does not fit into 32 bits: -2147483649"},
        {"'<u8'", NULL, "(3,)", .data = ints, .bytes = 24,
         .wrong = "32 bits: 18446744071562067967"},
        {"'>i8'", NULL, "()", .data = "\200\0\0\0\0\0\0\0", .bytes = 8,
         .wrong = "0 does not fit into 32 bits: -9223372036854775808"},
    };
    dt_ctx *ctx;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        npy_try(ctx, &files[i]);
    dt_ctx_destroy(ctx);
}

static uint32_t npy_crc(const char *data, size_t size) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < 8 * size; i++) {
        crc ^= i % 8 ? 0 : (uint8_t)data[i / 8];
        crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static void npy_put(char **at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        *(*at)++ = (char)(i < 8 ? value >> 8 * i : 0);
}

/* An archive of one stored entry, "a.npy", whose directory is in ZIP64's record. `place` and
 * `count` are there, all ones in the usual record. */
static size_t npy_zip64(char *to, const char *entry, size_t size, uint64_t away, uint64_t count) {
    char *at = to;
    const uint32_t crc = npy_crc(entry, size);
    for (int central = 0; central < 2; central++) {
        memcpy(at, central ? "PK\1\2\55\0" : "PK\3\4", central ? 6 : 4);
        at += central ? 6 : 4;
        npy_put(&at, 45, 10); /* version, flags, stored, time, date */
        npy_put(&at, crc, 4);
        npy_put(&at, size, 4);
        npy_put(&at, size, 4);
        npy_put(&at, 5, central ? 18 : 4); /* its name's length, and zeros */
        memcpy(at, "a.npy", 5);
        at += 5;
        if (!central)
            memcpy(at, entry, size), at += size;
    }
    const uint64_t directory = 35 + size, end = (uint64_t)(at - to);
    memcpy(at, "PK\6\6", 4), at += 4;
    npy_put(&at, 44, 8);
    npy_put(&at, 45, 12);
    npy_put(&at, count, 8);
    npy_put(&at, count, 8);
    npy_put(&at, end - directory, 8);
    npy_put(&at, directory + away, 8);
    memcpy(at, "PK\6\7", 4), at += 4;
    npy_put(&at, 0, 4);
    npy_put(&at, end, 8);
    npy_put(&at, 1, 4);
    memcpy(at, "PK\5\6", 4), at += 4;
    npy_put(&at, 0, 4);
    npy_put(&at, UINT32_MAX, 4);
    npy_put(&at, UINT64_MAX, 8);
    npy_put(&at, 0, 2);
    return (size_t)(at - to);
}

TEST(npz_archives_of_64_bits_are_read_and_errors_name_the_array) {
    static const double values[] = {1.0, 1e300};
    npy_file f = {"'<f8'", NULL, "(1,)", .data = values, .bytes = 8};
    dt_ctx *ctx;
    dt_array a;
    char entry[512], archive[1024];
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    const size_t size = npy_compose(&f, entry);
    const char *path = temp_write("made.npz", archive, npy_zip64(archive, entry, size, 0, 1));
    CHECK_TEXT(dt_npz_load(ctx, path, "a", &a) == DT_OK, "%s", dt_ctx_error(ctx));
    CHECK(a.bytes == 4 && a.data && *(float *)a.data == 1.0f);
    dt_array_destroy(&a);
    path = temp_write("made.npz", archive, npy_zip64(archive, entry, size, 0, UINT64_MAX));
    CHECK(dt_npz_load(ctx, path, "a", &a) == DT_ERROR_FORMAT && !a.data);
    path = temp_write("made.npz", archive, npy_zip64(archive, entry, size, 1 << 30, 1));
    CHECK(dt_npz_load(ctx, path, "a", &a) == DT_ERROR_FORMAT && !a.data);
    CHECK_CONTAINS(dt_ctx_error(ctx), "its directory is not at its offset");
    f.data = values + 1;
    path = temp_write("made.npz", archive, npy_zip64(archive, entry, npy_compose(&f, entry), 0, 1));
    CHECK(dt_npz_load(ctx, path, NULL, &a) == DT_ERROR_FORMAT && !a.data);
    CHECK_CONTAINS(dt_ctx_error(ctx), "made.npz: 'a': value 0, 1e+300, does not fit");
    dt_ctx_destroy(ctx);
}
