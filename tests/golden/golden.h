/* What the tests against PyTorch's recorded values share: a context, a graph and a store on the
 * device under test. And the arrays of one file of tests/golden (tools/golden/record_golden.py
 * writes them; see there for the names). The tests use the public API only. */
#ifndef DTRAIN_TESTS_GOLDEN_H
#define DTRAIN_TESTS_GOLDEN_H

#include "dtrain.h"

#include "harness.h"

#include <stdlib.h>

#define GOLDEN_STEPS 20
#define GOLDEN_ARRAYS 384
#define GOLDEN_PROGRAMS 16
#define GOLDEN_UNUSED __attribute__((__unused__))

typedef struct golden_array {
    char key[128];
    size_t count;
    float *f; /* the one that the file has is not NULL */
    double *d;
    int32_t *i;
    void *data;
} golden_array;

typedef struct golden {
    const char *device;
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_safetensors *file;
    dt_program *programs[GOLDEN_PROGRAMS];
    int program_count;
    golden_array arrays[GOLDEN_ARRAYS];
    int array_count;
} golden;

/* Checks that a call succeeded, and shows the context's text when not. */
#define OK(g, call) golden_ok(g, call, __FILE__, __LINE__, #call)

GOLDEN_UNUSED static bool golden_ok(const golden *g, dt_result result, const char *file, int line,
                                    const char *call) {
    return test_check(result == DT_OK, file, line, "%s: %s: %s", call, dt_result_text(result),
                      g->ctx ? dt_ctx_error(g->ctx) : "");
}

static void golden_close(golden *g) {
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    dt_graph_destroy(g->graph);
    dt_safetensors_close(g->file);
    dt_ctx_destroy(g->ctx);
    for (int i = 0; i < g->array_count; i++)
        free(g->arrays[i].data);
}

/* Any word of the Khronos validation layer fails the test. */
static void golden_log(void *user, dt_log_level level, const char *message) {
    (void)user, (void)level;
    test_check(!strstr(message, "vulkan validation"), __FILE__, __LINE__, "%s", message);
}

/* Runs a test's body on a device with the file of that name (NULL = none). */
GOLDEN_UNUSED static void golden_run(const char *device, const char *name,
                                     void (*body)(golden *g)) {
    golden g = {.device = device};
    bool vulkan = strcmp(device, "cpu") != 0;
    char path[128];
    dt_ctx_desc desc = {.no_vulkan = !vulkan, .validation = vulkan, .logger = {.log = golden_log}};
    if (!OK(&g, dt_ctx_create(&desc, &g.ctx)))
        return;
    snprintf(path, sizeof path, "tests/golden/%s.safetensors", name ? name : "");
    if ((!name || OK(&g, dt_safetensors_open(g.ctx, path, &g.file))) &&
        OK(&g, dt_graph_create(g.ctx, &g.graph)))
        body(&g);
    golden_close(&g);
}

/* The same on every Vulkan device that can be used: hardware and software drivers alike. */
GOLDEN_UNUSED static void golden_run_vulkan(const char *name, void (*body)(golden *g)) {
    dt_ctx *ctx;
    int found = 0;
    if (!test_check(dt_ctx_create(NULL, &ctx) == DT_OK, __FILE__, __LINE__, "no context"))
        return;
    for (int i = 1; i < dt_ctx_device_count(ctx); i++) {
        if (!dt_ctx_device(ctx, i)->usable)
            continue;
        found++;
        golden_run(dt_ctx_device(ctx, i)->id, name, body);
    }
    dt_ctx_destroy(ctx);
    if (!found)
        SKIP("no Vulkan device");
}

/* GOLDEN(sentence, "file") { body with golden *g } is two tests, one for each backend. */
#define GOLDEN(sentence, name)                                                                     \
    static void sentence(golden *g);                                                               \
    TEST(sentence##_on_cpu) {                                                                      \
        golden_run("cpu", name, sentence);                                                         \
    }                                                                                              \
    TEST(sentence##_on_vulkan) {                                                                   \
        golden_run_vulkan(name, sentence);                                                         \
    }                                                                                              \
    static void sentence(golden *g)

/* ---- Arrays of the file */

static golden_array golden_load(const golden *g, const char *key) {
    golden_array a = {0};
    dt_safetensors_tensor info;
    int index = dt_safetensors_find(g->file, key);
    if (!test_check(index >= 0, __FILE__, __LINE__, "the golden file has no \"%s\"", key) ||
        !OK(g, dt_safetensors_get_tensor(g->file, index, &info)))
        return a;
    snprintf(a.key, sizeof a.key, "%s", key);
    a.data = malloc((size_t)info.bytes + 1);
    memcpy(a.data, info.data, (size_t)info.bytes);
    a.count = (size_t)info.bytes / (info.dtype[1] == '6' ? 8 : 4);
    a.f = strcmp(info.dtype, "F32") ? NULL : a.data;
    a.d = strcmp(info.dtype, "F64") ? NULL : a.data;
    a.i = strcmp(info.dtype, "I32") ? NULL : a.data;
    return a;
}

/* An array of the file, read once; it lives as long as the fixture. NULL is a failed check. */
static const golden_array *golden_get(golden *g, const char *key) {
    for (int i = 0; i < g->array_count; i++)
        if (!strcmp(g->arrays[i].key, key))
            return &g->arrays[i];
    if (g->array_count == GOLDEN_ARRAYS)
        return NULL;
    golden_array a = golden_load(g, key);
    if (!a.data)
        return NULL;
    g->arrays[g->array_count] = a;
    return &g->arrays[g->array_count++];
}

/* Element i as a double. */
GOLDEN_UNUSED static double golden_value(const golden_array *a, size_t i) {
    return a->f ? (double)a->f[i] : a->d ? a->d[i] : (double)a->i[i];
}

/* Step `step` of an array whose first axis is the step: its elements of 4 bytes. */
GOLDEN_UNUSED static const void *golden_step(golden *g, const char *key, int step, size_t *count) {
    const golden_array *a = golden_get(g, key);
    *count = a ? a->count / GOLDEN_STEPS : 0;
    return a ? (const char *)a->data + 4 * *count * (size_t)step : NULL;
}

/* ---- Store, programs, steps */

static bool golden_write_init(golden *g, int index) {
    dt_param_info info;
    char key[128];
    if (!OK(g, dt_store_get_param(g->store, index, &info)))
        return false;
    snprintf(key, sizeof key, "init.%s", info.name);
    const golden_array *a = golden_get(g, key);
    return a && OK(g, dt_store_write(g->store, index, DT_VALUE_PARAM, a->f, a->count * 4));
}

/* Makes the store and gives every parameter its recorded initial value. */
GOLDEN_UNUSED static bool golden_store(golden *g) {
    if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)))
        return false;
    for (int i = 0; g->file && i < dt_store_param_count(g->store); i++)
        if (!golden_write_init(g, i))
            return false;
    return true;
}

/* NULL is a failed check. Destroyed with the fixture. */
GOLDEN_UNUSED static dt_program *golden_program(golden *g, dt_program_desc desc) {
    dt_program *program = NULL;
    if (!OK(g, dt_program_create(g->store, &desc, &program)))
        return NULL;
    return g->programs[g->program_count++] = program;
}

/* Writes rows [row, row + rows) of a step's array (rows 0: all of it). */
GOLDEN_UNUSED static bool golden_feed_rows(golden *g, dt_program *program, dt_tensor input,
                                           const char *key, int step, int row, int rows,
                                           int batch) {
    size_t count;
    const char *data = golden_step(g, key, step, &count);
    size_t bytes = 4 * count / (size_t)batch;
    return data && OK(g, dt_program_write(program, input, data + bytes * (size_t)row,
                                          bytes * (size_t)rows));
}

GOLDEN_UNUSED static bool golden_feed(golden *g, dt_program *program, dt_tensor input,
                                      const char *key, int step) {
    return golden_feed_rows(g, program, input, key, step, 0, 1, 1);
}

GOLDEN_UNUSED static bool golden_near(double got, double wanted, double tolerance, const char *what,
                                      int index) {
    return test_check(fabs(got - wanted) <= tolerance, __FILE__, __LINE__,
                      "%s [%d] is %.9g, PyTorch's is %.9g, apart by more than %.2g", what, index,
                      got, wanted, tolerance);
}

/* A step's loss, or what else has one value a step, within 1e-5 relative. */
GOLDEN_UNUSED static bool golden_loss(golden *g, const char *key, int step, double got) {
    const golden_array *a = golden_get(g, key);
    double wanted = a ? golden_value(a, (size_t)step) : NAN;
    return golden_near(got, wanted, 1e-5 * fabs(wanted), key, step);
}

/* All of an array within `tolerance` of its largest element. */
GOLDEN_UNUSED static void golden_same(const golden_array *a, size_t first, const float *got,
                                      size_t count, double tolerance) {
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(golden_value(a, first + i)));
    for (size_t i = 0; i < count; i++)
        golden_near((double)got[i], golden_value(a, first + i), tolerance * largest + 1e-12, a->key,
                    (int)(first + i));
}

/* The parameters against "PREFIXfinal.NAME". `skip_missing`: a fixture may leave some out. */
GOLDEN_UNUSED static void golden_final(golden *g, const char *prefix, double tolerance,
                                       bool skip_missing) {
    for (int i = 0; i < dt_store_param_count(g->store); i++) {
        dt_param_info info;
        char key[160];
        if (!OK(g, dt_store_get_param(g->store, i, &info)))
            return;
        snprintf(key, sizeof key, "%sfinal.%s", prefix, info.name);
        if (skip_missing && dt_safetensors_find(g->file, key) < 0)
            continue;
        const golden_array *a = golden_get(g, key);
        float *got = calloc((size_t)info.elements + 1, sizeof *got);
        if (a && test_check(a->count == info.elements, __FILE__, __LINE__, "%s: size", key) &&
            OK(g, dt_store_read(g->store, i, DT_VALUE_PARAM, got, (size_t)info.elements * 4)))
            golden_same(a, 0, got, a->count, tolerance);
        free(got);
    }
}

#endif
