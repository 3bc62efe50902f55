/* Rows with infinities and NaN in them: softmax, log_softmax, cross-entropy, maxima and max
 * pooling. Each gives the same on every device. */
#include "dtrain.h"
#include "harness.h"
#include <math.h>
#include <string.h>

enum { EDGE_ROWS = 9, EDGE_COLS = 40, EDGE_OUTPUTS = 4 };

typedef struct edge_result {
    float y[EDGE_OUTPUTS][EDGE_ROWS * EDGE_COLS];
    float loss[EDGE_ROWS];
} edge_result;

/* All -inf; some of them; one +inf; all +inf; a NaN among numbers, after -inf, after +inf; the
 * lowest number among -inf; numbers. */
static void edge_fill(float *x) {
    for (int r = 0; r < EDGE_ROWS; r++)
        for (int c = 0; c < EDGE_COLS; c++) {
            const bool third = c % 3 == 1;
            const float number = (float)((r * 7 + c * 5) % 11) - 5.0f;
            const float row[EDGE_ROWS] = {-INFINITY,
                                          third ? number : -INFINITY,
                                          c == 17 ? INFINITY : number,
                                          INFINITY,
                                          c == 33 ? NAN : number,
                                          c == 38 ? NAN : -INFINITY,
                                          c == 39 ? NAN : INFINITY,
                                          c == 21 ? -3.4028235e38f : -INFINITY,
                                          number};
            x[r * EDGE_COLS + c] = row[r];
        }
}

static dt_result edge_run(dt_ctx *ctx, const char *device, edge_result *out) {
    float x[EDGE_ROWS * EDGE_COLS];
    int32_t t[EDGE_ROWS];
    dt_graph *g;
    dt_store *store;
    dt_program *p;
    if (dt_graph_create(ctx, &g))
        return DT_ERROR_MEMORY;
    dt_tensor in = dt_input(g, "x", DT_F32, dt_dims(EDGE_COLS));
    dt_tensor target = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor pooled = dt_max_pool2d(dt_reshape(in, dt_dims(1, 5, 8)),
                                     &(dt_pool_desc){.kernel = {2, 3}, .padding = {1, 1}});
    dt_program_desc d = {.batch = EDGE_ROWS, .no_check = true};
    d.outputs[0] = dt_softmax(in, 0);
    d.outputs[1] = dt_log_softmax(in, 0);
    d.outputs[2] = dt_max(in, dt_dims(0), false);
    d.outputs[3] = dt_flatten(pooled);
    edge_fill(x);
    for (int i = 0; i < EDGE_ROWS; i++)
        t[i] = 22;
    memset(out, 0, sizeof *out);
    dt_result result = dt_store_create(g, &(dt_store_desc){.device = device}, &store);
    if (!result)
        result = dt_program_create(store, &d, &p);
    if (!result)
        result = dt_program_write(p, in, x, sizeof x);
    if (!result)
        result = dt_program_run(p, NULL, NULL);
    for (int i = 0; i < EDGE_OUTPUTS && !result; i++) {
        dt_shape s = dt_tensor_shape(d.outputs[i]);
        size_t elements = 1;
        for (int k = 0; k < s.rank; k++)
            elements *= (size_t)s.dim[k];
        result = dt_program_read(p, d.outputs[i], out->y[i], 4 * EDGE_ROWS * elements);
    }
    dt_program_desc one = {
        .batch = 1, .no_check = true, .losses = {{.term = dt_cross_entropy(in, target, NULL)}}};
    if (!result)
        result = dt_program_create(store, &one, &p);
    for (int r = 0; r < EDGE_ROWS && !result; r++) {
        dt_report report;
        result = dt_program_write(p, in, x + r * EDGE_COLS, 4 * EDGE_COLS);
        if (!result)
            result = dt_program_write(p, target, &t[r], 4);
        if (!result)
            result = dt_program_run(p, NULL, &report);
        out->loss[r] = (float)report.loss_sum[0];
    }
    return result;
}

/* The same kind of value, and numbers within rounding. */
static bool edge_alike(float a, float b) {
    if (isnan(a) || isnan(b) || isinf(a) || isinf(b))
        return isnan(a) ? isnan(b) : a == b;
    return fabsf(a - b) <= 1e-5f * (1.0f + fabsf(a));
}

static void edge_expect(const edge_result *r) {
    const float *soft = r->y[0], *most = r->y[2];
    CHECK(isnan(soft[0]) && isnan(soft[3 * EDGE_COLS]) && isnan(soft[4 * EDGE_COLS]));
    CHECK(soft[EDGE_COLS] == 0.0f && soft[EDGE_COLS + 1] > 0.0f); /* where a mask is, and is not */
    CHECK(soft[7 * EDGE_COLS + 21] == 1.0f && soft[7 * EDGE_COLS] == 0.0f);
    CHECK(isinf(most[0]) && most[0] < 0 && isinf(most[2]) && most[2] > 0 && isnan(most[5]));
    CHECK(most[7] == -3.4028235e38f);
    CHECK(isnan(r->loss[0]) && isfinite(r->loss[1]) && isinf(r->loss[7]) && r->loss[8] > 0.0f);
}

TEST(ops_with_infinities_and_nan_give_the_same_on_every_device) {
    static edge_result want, got;
    dt_ctx *ctx;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    REQUIRE(!edge_run(ctx, "cpu", &want));
    edge_expect(&want);
    for (int i = 1; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        if (!info->usable)
            continue;
        REQUIRE(!edge_run(ctx, info->id, &got));
        for (int k = 0; k < EDGE_OUTPUTS; k++)
            for (int e = 0; e < EDGE_ROWS * EDGE_COLS; e++)
                if (!edge_alike(want.y[k][e], got.y[k][e])) {
                    test_check(false, __FILE__, __LINE__, "%s, output %d, element %d: %g, not %g",
                               info->name, k, e, (double)got.y[k][e], (double)want.y[k][e]);
                    break;
                }
        for (int r = 0; r < EDGE_ROWS; r++)
            test_check(edge_alike(want.loss[r], got.loss[r]), __FILE__, __LINE__,
                       "%s, loss of row %d: %g, not %g", info->name, r, (double)got.loss[r],
                       (double)want.loss[r]);
    }
    dt_ctx_destroy(ctx);
}
