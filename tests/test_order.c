/* The leading elements of rows of any length, their places and gradients, against sorting in C,
 * with equal elements, infinities and NaN. */
#include "golden.h"

#include <math.h>

enum { ORDER_LINES = 3, ORDER_MOST = 9000 };

typedef struct order_case {
    int n, k;
    bool largest;
} order_case;

static bool order_descending;

/* NaN is the largest; of equals the first is first. */
static int order_compare(const void *a, const void *b) {
    const float *x = *(const float *const *)a, *y = *(const float *const *)b;
    const int nans = (*x != *x) - (*y != *y), larger = nans ? nans : (*x > *y) - (*x < *y);
    return larger ? order_descending ? -larger : larger : (x > y) - (x < y);
}

static void order_values(float *x, int n) {
    uint32_t state = 5;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        const int kind = (int)(state >> 8) % 97;
        x[i] = kind == 0   ? NAN
               : kind == 1 ? INFINITY
               : kind == 2 ? -INFINITY
                           : (float)((int)(state >> 16) % 2000 - 1000) / 64.0f;
    }
}

static void order_check(const order_case *c, const float *x, const float *y, const int32_t *at,
                        const float *slope) {
    static const float *order[ORDER_MOST];
    static char chosen[ORDER_MOST];
    int wrong = 0;
    for (int l = 0; l < ORDER_LINES; l++) {
        for (int i = 0; i < c->n; i++)
            order[i] = x + l * c->n + i;
        order_descending = c->largest;
        qsort(order, (size_t)c->n, sizeof *order, order_compare);
        memset(chosen, 0, sizeof chosen);
        for (int i = 0; i < c->k; i++) {
            const float *want = order[i], got = y[l * c->k + i];
            wrong += at[l * c->k + i] != (int32_t)(want - x - l * c->n);
            wrong += *want == *want ? got != *want : got == got;
            chosen[want - x - l * c->n] = 1;
        }
        for (int i = 0; i < c->n; i++)
            wrong += slope[l * c->n + i] != (float)chosen[i];
    }
    test_check(!wrong, __FILE__, __LINE__, "%d %s of %d: %d wrong", c->k,
               c->largest ? "largest" : "smallest", c->n, wrong);
}

static void order_run(golden *g, const order_case *c) {
    const size_t n = (size_t)(ORDER_LINES * c->n), k = (size_t)(ORDER_LINES * c->k);
    float *x = calloc(2 * n + k, sizeof *x), *slope = x + n, *y = slope + n;
    int32_t *at = calloc(k, sizeof *at);
    dt_graph *first = g->graph;
    dt_tensor index;
    REQUIRE(x && at && OK(g, dt_graph_create(g->ctx, &g->graph)));
    order_values(x, (int)n);
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(ORDER_LINES, c->n));
    dt_tensor top = dt_topk(in, 1, c->k, c->largest, &index);
    dt_tensor dx = dt_gradient(dt_sum(top, dt_dims(), false), in);
    dt_program *p =
        golden_store(g) ? golden_program(g, (dt_program_desc){.outputs = {top, index, dx}}) : NULL;
    if (p && OK(g, dt_program_write(p, in, x, n * sizeof *x)) &&
        OK(g, dt_program_run(p, NULL, NULL)) && OK(g, dt_program_read(p, top, y, k * sizeof *y)) &&
        OK(g, dt_program_read(p, index, at, k * sizeof *at)) &&
        OK(g, dt_program_read(p, dx, slope, n * sizeof *x)))
        order_check(c, x, y, at, slope);
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    dt_graph_destroy(g->graph);
    g->store = NULL, g->graph = first;
    free(x), free(at);
}

GOLDEN(the_leading_elements_of_rows_of_any_length_are_those_of_a_sort, NULL) {
    static const order_case cases[] = {{9000, 50, true}, {9000, 50, false}, {5000, 900, false},
                                       {1023, 1, true},  {700, 130, true},  {515, 4, false},
                                       {300, 300, true}};
    const bool cpu = strcmp(g->device, "cpu") == 0; /* others have the smaller ones */
    for (size_t i = cpu ? 0 : 3; i < sizeof cases / sizeof *cases; i++)
        order_run(g, &cases[i]);
}
