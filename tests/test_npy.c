/* NumPy's files: those that NumPy writes, by what it says of them; and what is wrong. */
#include "temp.h"
#include "train_model.h"

/* An array of numbers 0 to 5, [2, 3], of a type: read, it is 0 to 5 in the order of C. */
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
        dt_array_free(&a);
    }
}

static void npy_archives(dt_ctx *ctx, const char *folder) {
    char path[600];
    dt_array a;
    snprintf(path, sizeof path, "%s/C.npz", folder);
    CHECK(dt_npz_load(ctx, path, "a", &a) == DT_OK);
    npy_check(ctx, &a, DT_F32, "a of C.npz");
    dt_array_free(&a);
    CHECK(dt_npz_load(ctx, path, "b", &a) == DT_OK && a.dtype == DT_U8 && a.bytes == 4);
    dt_array_free(&a);
    CHECK(dt_npz_load(ctx, path, "c", &a) == DT_ERROR_INVALID && !a.data);
    CHECK_CONTAINS(dt_ctx_error(ctx), "'c'; it has: a, b");
    CHECK(dt_npz_load(ctx, path, NULL, &a) == DT_ERROR_INVALID);
    snprintf(path, sizeof path, "%s/P.npz", folder);
#ifdef DT_WITH_ZLIB
    CHECK_TEXT(dt_npz_load(ctx, path, "a", &a) == DT_OK, "it is deflated");
    npy_check(ctx, &a, DT_F32, "a of P.npz");
    dt_array_free(&a);
    CHECK(dt_npz_load(ctx, path, "z", &a) == DT_OK && a.bytes == 400000);
    dt_array_free(&a);
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
        SKIP("numpy is missing; ./build.sh setup installs it");
    mkdir(folder, 0700);
    snprintf(program, sizeof program, npy_numpy, folder);
    if (!CHECK_TEXT(temp_python(program, false), "numpy writes") ||
        !CHECK_TEXT(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK, "ctx"))
        return;
    npy_types(ctx, folder);
    npy_archives(ctx, folder);
    npy_refused(ctx, folder, "wide.npy", "integer number 2 of it does not fit");
    npy_refused(ctx, folder, "text.npy", "type '<U1' are not read");
    npy_refused(ctx, folder, "pair.npy", "structures");
    npy_refused(ctx, folder, "complex.npy", "no numbers of one type");
    CHECK(npy_load(ctx, folder, "scalar.npy", &a) == DT_OK && a.rank == 0 && a.bytes == 4);
    CHECK(a.data && *(float *)a.data == 2.5f);
    dt_array_free(&a);
    dt_ctx_destroy(ctx);
    snprintf(program, sizeof program, "import shutil; shutil.rmtree('%s')", folder);
    CHECK(temp_python(program, false));
#endif
}
