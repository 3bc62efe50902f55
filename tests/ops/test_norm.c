/* Normalisation of values that are all the same. Their mean is that value, even if a sum of them is
 * rounded. So the result is 0, and not the rounding error over sqrt(eps). Against the public
 * header, on every device. */
#include "dtrain.h"
#include "harness.h"

#include <stdlib.h>

enum { NORM_BATCH = 5 };

/* Layer norm over all, group norm over halves, batch norm of [2, n/2] and of [n]. */
static int norm_outputs(dt_graph *g, dt_tensor x, int n, dt_program_desc *desc) {
    const dt_init one = {.kind = DT_INIT_CONSTANT, .a = 1};
    dt_tensor none = {0}, halves = dt_reshape(x, dt_dims(2, n / 2));
    dt_tensor all[4] = {dt_layer_norm(x, 1, none, none, 0),
                        dt_group_norm(halves, 2, none, none, 0)};
    for (int k = 0; k < 2; k++) {
        const dt_shape s = dt_dims(k ? n : 2);
        const char *names[2][2] = {{"mean2", "var2"}, {"mean", "var"}};
        all[2 + k] = dt_batch_norm(k ? x : halves, none, none, dt_buffer(g, names[k][0], s, one),
                                   dt_buffer(g, names[k][1], s, one), NULL);
    }
    for (int k = 0; k < 4; k++)
        desc->outputs[k] = all[k];
    return 4;
}

static double norm_largest(dt_ctx *ctx, const char *device, int n, float value) {
    static float x[NORM_BATCH * 1024], y[NORM_BATCH * 1024];
    dt_graph *g = NULL;
    dt_store *store = NULL;
    dt_program *p = NULL;
    dt_program_desc desc = {.batch = NORM_BATCH, .mode = DT_MODE_TRAIN};
    const size_t count = (size_t)(NORM_BATCH * n);
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        x[i] = value;
    dt_graph_create(ctx, &g);
    dt_tensor in = dt_input(g, "x", DT_F32, dt_dims(n));
    const int outputs = norm_outputs(g, in, n, &desc);
    dt_result result = dt_store_create(g, &(dt_store_desc){.device = device}, &store);
    if (!result)
        result = dt_program_create(store, &desc, &p);
    if (!result)
        result = dt_program_write(p, in, x, count * sizeof *x);
    if (!result)
        result = dt_program_run(p, NULL, NULL);
    for (int k = 0; k < outputs && !result; k++) {
        result = dt_program_read(p, desc.outputs[k], y, count * sizeof *y);
        for (size_t i = 0; i < count && !result; i++)
            largest = fabs((double)y[i]) > largest ? fabs((double)y[i]) : largest;
    }
    dt_graph_destroy(g);
    return test_check(!result, __FILE__, __LINE__, "%s: %s", device, dt_ctx_error(ctx)) ? largest
                                                                                        : -1;
}

static void norm_check(dt_ctx *ctx, const char *device, bool software) {
    static const float values[] = {1000.1f, 0.1f, -3.3e6f, 1e-3f, 16777215.0f};
    static const int sizes[] = {2, 6, 14, 34, 62, 100, 254, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s += software ? 3 : 1)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            test_check(norm_largest(ctx, device, sizes[s], values[v]) == 0, __FILE__, __LINE__,
                       "%s: %d times %g gives %g", device, sizes[s], (double)values[v],
                       norm_largest(ctx, device, sizes[s], values[v]));
}

TEST(a_norm_of_equal_values_is_zero_on_every_device) {
    for (int no_fast = 0; no_fast < 2; no_fast++) {
        dt_ctx *ctx = NULL;
        REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_fast = no_fast}, &ctx) == DT_OK);
        norm_check(ctx, "cpu", false);
        for (int i = 0; i < dt_ctx_device_count(ctx) && !no_fast; i++) {
            const dt_device_info *info = dt_ctx_device(ctx, i);
            if (info->usable && strcmp(info->id, "cpu"))
                norm_check(ctx, info->id, info->kind == DT_DEVICE_SOFTWARE);
        }
        dt_ctx_destroy(ctx);
    }
}
