/* One op, or a few, against recorded values: ops.NAME.y with the gradients of sum(y * dy) of
 * ops.NAME.dy. Tests of golden files of ops share this. */
#ifndef DTRAIN_TESTS_GOLDEN_OP_H
#define DTRAIN_TESTS_GOLDEN_OP_H

#include "golden/golden.h"

typedef struct leaf { /* an input, recorded as "ops.NAME.<key>", its gradient as ".d<key>" */
    const char *key;
    dt_tensor x;
} leaf;

/* |got - y| <= 2e-5 |y| + 2e-6 max|y|, at most max|y| = 1 for functions that span decades. */
GOLDEN_UNUSED static void op_compare(golden *g, const char *name, const char *key, const float *got,
                                     size_t count) {
    char text[64];
    snprintf(text, sizeof text, "ops.%s.%s", name, key);
    const golden_array *a = golden_get(g, text);
    if (!a || !test_check(a->count == count, __FILE__, __LINE__, "%s: %d values, not %d", text,
                          (int)count, (int)a->count))
        return;
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(golden_value(a, i)));
    for (size_t i = 0; i < count; i++)
        golden_near((double)got[i], golden_value(a, i),
                    2e-5 * fabs(golden_value(a, i)) + 2e-6 * fmin(largest, 1), text, (int)i);
}

GOLDEN_UNUSED static void op_read(golden *g, dt_program *p, dt_tensor x, const char *name,
                                  const char *key, int batch) {
    dt_shape shape = dt_tensor_shape(x);
    size_t count = dt_tensor_has_samples(x) ? (size_t)batch : 1;
    for (int i = 0; i < shape.rank; i++)
        count *= (size_t)shape.dim[i];
    float *got = calloc(count + 1, sizeof *got);
    if (OK(g, dt_program_read(p, x, got, count * 4)))
        op_compare(g, name, key, got, count);
    free(got);
}

GOLDEN_UNUSED static bool op_write(golden *g, dt_program *p, dt_tensor x, const char *name,
                                   const char *key) {
    char text[64];
    snprintf(text, sizeof text, "ops.%s.%s", name, key);
    const golden_array *a = golden_get(g, text);
    return a && OK(g, dt_program_write(p, x, a->data, a->count * 4));
}

/* A new graph, in place of the last op's. */
GOLDEN_UNUSED static dt_graph *op_graph(golden *g) {
    dt_graph_destroy(g->graph);
    g->graph = NULL;
    OK(g, dt_graph_create(g->ctx, &g->graph));
    return g->graph;
}

GOLDEN_UNUSED static void op_end(golden *g) {
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    g->store = NULL;
}

/* Runs a program of these outputs; `keys` are their recorded names. `index`: {0}, or the input of
 * row numbers. */
GOLDEN_UNUSED static void op_run(golden *g, const char *name, int batch, const leaf *leaves,
                                 int leaf_count, leaf dy, leaf index, const leaf *outputs,
                                 int output_count) {
    dt_program_desc desc = {.label = name, .batch = batch};
    for (int i = 0; i < output_count; i++)
        desc.outputs[i] = outputs[i].x;
    bool ok = OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store));
    dt_program *p = ok ? golden_program(g, desc) : NULL;
    ok = p != NULL;
    for (int i = 0; i < leaf_count && ok; i++)
        ok = op_write(g, p, leaves[i].x, name, leaves[i].key);
    if (ok && dy.key)
        ok = op_write(g, p, dy.x, name, dy.key);
    if (ok && index.key)
        ok = op_write(g, p, index.x, name, index.key);
    if (ok && OK(g, dt_program_run(p, NULL, NULL)))
        for (int i = 0; i < output_count; i++)
            op_read(g, p, outputs[i].x, name, outputs[i].key, batch);
    op_end(g);
}

/* y and the gradients of sum(y * dy); dy is recorded, or 1 where it is not. */
GOLDEN_UNUSED static void op_check_with(golden *g, const char *name, int batch, dt_tensor y,
                                        const leaf *leaves, int count, leaf index) {
    static const char *const gradient_keys[][2] = {{"x", "dx"}, {"a", "da"},         {"b", "db"},
                                                   {"w", "dw"}, {"table", "dtable"}, {"y", NULL}};
    char text[64];
    leaf outputs[DT_MAX_OUTPUTS] = {{"y", y}}, dy = {0};
    int output_count = 1;
    snprintf(text, sizeof text, "ops.%s.dy", name);
    dt_tensor sum = y;
    if (dt_safetensors_find(g->file, text) >= 0) {
        dy = (leaf){"dy", dt_input(g->graph, "dy", DT_F32, dt_tensor_shape(y))};
        sum = dt_sum(dt_mul(y, dy.x), dt_dims(), false);
    }
    for (int i = 0; i < count; i++) {
        snprintf(text, sizeof text, "ops.%s.d%s", name, leaves[i].key);
        for (int k = 0; dt_safetensors_find(g->file, text) >= 0 && gradient_keys[k][1]; k++)
            if (!strcmp(gradient_keys[k][0], leaves[i].key))
                outputs[output_count++] =
                    (leaf){gradient_keys[k][1], dt_gradient(sum, leaves[i].x)};
    }
    op_run(g, name, batch, leaves, count, dy, index, outputs, output_count);
}

GOLDEN_UNUSED static void op_check(golden *g, const char *name, int batch, dt_tensor y,
                                   const leaf *leaves, int count) {
    op_check_with(g, name, batch, y, leaves, count, (leaf){0});
}

#endif
