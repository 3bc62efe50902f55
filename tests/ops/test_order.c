/* The leading elements of rows of any length against sorting in C: values, places and gradients.
 * With equal elements, infinities and NaN, and at the limit of an axis. */
#include "golden/golden.h"

#include <math.h>

enum { ORDER_MOST = 100000, ORDER_LIMIT = 1 << 24 };

typedef struct order_case {
    int lines, n, k;
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
    for (int l = 0; l < c->lines; l++) {
        for (int i = 0; i < c->n; i++)
            order[i] = x + l * c->n + i;
        order_descending = c->largest;
        qsort(order, (size_t)c->n, sizeof *order, order_compare);
        memset(chosen, 0, (size_t)c->n);
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
    const size_t n = (size_t)(c->lines * c->n), k = (size_t)(c->lines * c->k);
    float *x = calloc(2 * n + k, sizeof *x), *slope = x + n, *y = slope + n;
    int32_t *at = calloc(k, sizeof *at);
    dt_graph *first = g->graph;
    dt_tensor index;
    REQUIRE(x && at && OK(g, dt_graph_create(g->ctx, &g->graph)));
    order_values(x, (int)n);
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(c->lines, c->n));
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
    static const order_case cases[] = {
        {3, 9000, 50, true},   {3, 9000, 50, false},     {3, 5000, 900, false},
        {3, 1023, 1, true},    {3, 700, 130, true},      {3, 515, 4, false},
        {3, 300, 300, true},   {1, ORDER_MOST, 9, true}, /* and from here on by a network */
        {2, 70000, 9, false},  {3, 60000, 1, true},      {1, 9000, 2000, false},
        {1, 5000, 5000, true}, {1, 4200, 4200, false},   {30000, 24, 3, true}};
    const bool cpu = strcmp(g->device, "cpu") == 0; /* others have the smaller ones */
    const size_t last = sizeof cases / sizeof *cases;
    for (size_t i = cpu ? 0 : 3; i < last; i++)
        if (cpu || i < 7 || i == last - 2)
            order_run(g, &cases[i]);
}

GOLDEN(topk_of_more_than_an_axis_has_names_k_and_the_axis, NULL) {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(2, 3));
    CHECK(dt_topk(x, 1, 4, true, NULL).id == 0);
    CHECK_CONTAINS(dt_graph_error(g->graph), "topk: k is 4, but axis 1 of 'x' ");
    CHECK_CONTAINS(dt_graph_error(g->graph), " has 3 elements");
    dt_graph_clear_error(g->graph);
    CHECK(dt_topk(dt_cast(x, DT_I32), 1, 4, true, NULL).id == 0);
    CHECK_CONTAINS(dt_graph_error(g->graph), "it takes f32");
    dt_graph_clear_error(g->graph);
}

/* Values that are there once, but for the largest, which stands at both ends. */
static float order_value(int i) {
    return i == 0 || i == ORDER_LIMIT - 1 ? (float)ORDER_LIMIT
                                          : (float)((uint32_t)i * 2654435761u % ORDER_LIMIT);
}

GOLDEN(the_longest_axis_gives_its_largest_and_one_element_more_is_refused, NULL) {
    float *x = malloc(ORDER_LIMIT * sizeof *x), y[2] = {0};
    int32_t at[2] = {-1, -1};
    dt_tensor index;
    dt_tensor longer = dt_input(g->graph, "longer", DT_F32, dt_dims(ORDER_LIMIT + 1));
    CHECK(dt_topk(longer, 0, 1, true, NULL).id == 0);
    CHECK_CONTAINS(dt_graph_error(g->graph), "2^24");
    dt_graph_clear_error(g->graph);
    CHECK(dt_sort(longer, 0, true, NULL).id == 0);
    CHECK_CONTAINS(dt_graph_error(g->graph), "2^24");
    dt_graph_clear_error(g->graph);
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(ORDER_LIMIT));
    dt_tensor top = dt_topk(in, 0, 2, true, &index);
    for (int i = 0; x && i < ORDER_LIMIT; i++)
        x[i] = order_value(i);
    dt_program *p =
        x && golden_store(g) ? golden_program(g, (dt_program_desc){.outputs = {top, index}}) : NULL;
    if (p && OK(g, dt_program_write(p, in, x, ORDER_LIMIT * sizeof *x)) &&
        OK(g, dt_program_run(p, NULL, NULL)) && OK(g, dt_program_read(p, top, y, sizeof y)) &&
        OK(g, dt_program_read(p, index, at, sizeof at)))
        CHECK(y[0] == (float)ORDER_LIMIT && y[1] == y[0] && at[0] == 0 && at[1] == ORDER_LIMIT - 1);
    free(x);
}

/* A sort of the longest axis too; its gradient is not asked for. */
TEST(a_sort_of_the_longest_axis_can_be_planned) {
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    dt_store *store = NULL;
    dt_program *p = NULL;
    dt_program_info info = {0};
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor y = dt_sort(dt_input(g, "x", DT_F32, dt_dims(ORDER_LIMIT)), 0, false, NULL);
    REQUIRE(dt_store_create(g, NULL, &store) == DT_OK);
    CHECK(dt_program_create(store, &(dt_program_desc){.outputs = {y}}, &p) == DT_OK);
    dt_program_get_info(p, &info);
    CHECK(info.transient_bytes > 0 && info.transient_bytes < 512u << 20);
    dt_ctx_destroy(ctx);
}
