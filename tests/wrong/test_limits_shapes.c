/* Axes, sizes and ranks that ops accept, against PyTorch's rules. Random arguments for each row of
 * a table, on both sides of its limits. Tensors have no samples, so a shape is PyTorch's. Where
 * dtrain takes less or more, a comment above the row says what PyTorch does. */
#include "golden/golden.h"

static uint32_t rules_state;

static int rules_draw(int from, int to) {
    rules_state = rules_state * 1664525u + 1013904223u;
    return from + (int)((rules_state >> 8) % (uint32_t)(to - from + 1));
}

/* What a row's call and rule read: x: of `r` dimensions, y: another, i: i32; a, b, c: numbers. */
typedef struct rules_case {
    dt_graph *g;
    dt_tensor x, y, i;
    dt_shape s, t, u; /* x's, y's, i's */
    int r, a, b, c;
} rules_case;

static bool rules_axis(const rules_case *k, int axis) {
    return axis >= -k->r && axis < k->r;
}

static int rules_size(const rules_case *k, int axis) {
    return rules_axis(k, axis) ? (int)k->s.dim[axis < 0 ? axis + k->r : axis] : 0;
}

static int rules_elements(dt_shape s) {
    int n = 1;
    for (int i = 0; i < s.rank; i++)
        n *= (int)s.dim[i];
    return n;
}

static bool rules_axes(const rules_case *k) { /* a and b, another axis each */
    return rules_axis(k, k->a) && rules_axis(k, k->b) && (k->a - k->b) % k->r != 0;
}

static bool rules_broadcast(dt_shape s, dt_shape t) {
    bool fits = true;
    for (int i = 1; i <= s.rank && i <= t.rank; i++) {
        const int64_t p = s.dim[s.rank - i], q = t.dim[t.rank - i];
        fits = fits && (p == q || p == 1 || q == 1);
    }
    return fits;
}

/* s may become t by repeating. */
static bool rules_expands(dt_shape s, dt_shape t) {
    bool fits = s.rank <= t.rank;
    for (int i = 1; i <= s.rank && fits; i++) {
        const int64_t p = s.dim[s.rank - i];
        fits = p == t.dim[t.rank - i] || p == 1;
    }
    return fits;
}

static bool rules_reshapes(const rules_case *k) {
    const int all = rules_elements(k->s), given[] = {k->a, k->b, k->c};
    int known = 1, inferred = 0;
    for (int i = 0; i < 3; i++) {
        if (given[i] < -1)
            return false;
        inferred += given[i] == -1;
        known *= given[i] == -1 ? 1 : given[i];
    }
    return inferred > 1 ? false : inferred ? known > 0 && all % known == 0 : known == all;
}

static bool rules_permutes(const rules_case *k) {
    const int given[] = {k->a, k->b, k->c};
    int seen = 0;
    for (int i = 0; i < 3 && k->r == 3; i++)
        seen |= given[i] >= 0 && given[i] < 3 ? 1 << given[i] : 0;
    return seen == 7;
}

/* x and y are equal except for an axis. */
static bool rules_equal_but(const rules_case *k, dt_shape t, int axis) {
    bool fits = t.rank == k->r && rules_axis(k, axis);
    for (int i = 0; i < k->r && fits; i++)
        fits = k->s.dim[i] == t.dim[i] || i == (axis < 0 ? axis + k->r : axis);
    return fits;
}

static bool rules_multiplies(const rules_case *k) {
    dt_shape s = k->s, t = k->t;
    if (s.rank < 2 || t.rank < 2 || s.dim[s.rank - 1] != t.dim[t.rank - 2])
        return false;
    s.rank -= 2, t.rank -= 2;
    return rules_broadcast(s, t);
}

static dt_tensor rules_concat(const rules_case *k) {
    const dt_tensor parts[2] = {k->x, k->y};
    return dt_concat(parts, 2, k->a);
}

#define NONE                                                                                       \
    (dt_tensor) {                                                                                  \
        0                                                                                          \
    }
#define RULES(X)                                                                                   \
    X(sum, dt_sum(k->x, dt_dims(k->a), false), rules_axis(k, k->a))                                \
    X(sum, dt_sum(k->x, dt_dims(k->a, k->b), true), rules_axes(k))                                 \
    X(mean, dt_mean(k->x, dt_dims(k->a, k->b), false), rules_axes(k))                              \
    X(max, dt_max(k->x, dt_dims(k->a, k->b), false), rules_axes(k))                                \
    X(softmax, dt_softmax(k->x, k->a), rules_axis(k, k->a))                                        \
    X(log_softmax, dt_log_softmax(k->x, k->a), rules_axis(k, k->a))                                \
    X(logsumexp, dt_logsumexp(k->x, dt_dims(k->a, k->b), true), rules_axes(k))                     \
    X(var, dt_var(k->x, dt_dims(k->a), false, true), rules_axis(k, k->a))                          \
    /* PyTorch gives NaN, with a warning, where one element has no spread */                       \
    X(var, dt_var(k->x, dt_dims(k->a), true, true), rules_size(k, k->a) > 1)                       \
    X(argmax, dt_argmax(k->x, k->a), rules_axis(k, k->a))                                          \
    X(cumsum, dt_cumsum(k->x, k->a), rules_axis(k, k->a))                                          \
    X(prod, dt_prod(k->x, k->a, false), rules_axis(k, k->a))                                       \
    X(flip, dt_flip(k->x, k->a), rules_axis(k, k->a))                                              \
    X(roll, dt_roll(k->x, k->a, k->b), rules_axis(k, k->a))                                        \
    X(glu, dt_glu(k->x, k->a), rules_axis(k, k->a) && rules_size(k, k->a) % 2 == 0)                \
    X(tril, dt_tril(k->x, k->a), k->r >= 2)                                                        \
    X(topk, dt_topk(k->x, k->a, k->b, true, NULL),                                                 \
      rules_axis(k, k->a) && k->b >= 0 && k->b <= rules_size(k, k->a))                             \
    X(sort, dt_sort(k->x, k->a, true, NULL), rules_axis(k, k->a))                                  \
    /* torch.narrow counts a start below 0 from the end */                                         \
    X(slice, dt_slice(k->x, k->a, k->b, k->c),                                                     \
      rules_axis(k, k->a) && k->b >= 0 && k->c >= 0 && k->b + k->c <= rules_size(k, k->a))         \
    /* F.pad crops by numbers below 0, and mirrors and repeats only the last three axes */         \
    X(pad, dt_pad(k->x, k->a, k->b, k->c), rules_axis(k, k->a) && k->b >= 0 && k->c >= 0)          \
    X(pad_reflect, dt_pad_reflect(k->x, k->a, k->b, k->c),                                         \
      k->b >= 0 && k->c >= 0 && k->b < rules_size(k, k->a) && k->c < rules_size(k, k->a))          \
    X(pad_replicate, dt_pad_replicate(k->x, k->a, k->b, k->c),                                     \
      rules_axis(k, k->a) && k->b >= 0 && k->c >= 0)                                               \
    X(pad_circular, dt_pad_circular(k->x, k->a, k->b, k->c),                                       \
      rules_axis(k, k->a) && k->b >= 0 && k->c >= 0 && k->b <= rules_size(k, k->a) &&              \
          k->c <= rules_size(k, k->a))                                                             \
    X(reshape, dt_reshape(k->x, dt_dims(k->a, k->b, k->c)), rules_reshapes(k))                     \
    X(permute, dt_permute(k->x, dt_dims(k->a, k->b, k->c)), rules_permutes(k))                     \
    X(expand, dt_expand(k->x, k->t), rules_expands(k->s, k->t))                                    \
    X(concat, rules_concat(k), rules_equal_but(k, k->t, k->a))                                     \
    X(add, dt_add(k->x, k->y), rules_broadcast(k->s, k->t))                                        \
    X(maximum, dt_maximum(k->x, k->y), rules_broadcast(k->s, k->t))                                \
    /* torch.matmul takes vectors too */                                                           \
    X(matmul, dt_matmul(k->x, k->y), rules_multiplies(k))                                          \
    X(linear, dt_linear(k->x, k->y, NONE),                                                         \
      k->r >= 1 && k->t.rank == 2 && k->s.dim[k->r - 1] == k->t.dim[1])                            \
    X(outer, dt_outer(k->x, k->y), k->r == 1 && k->t.rank == 1)                                    \
    X(gather, dt_gather(k->x, k->a, k->i), rules_equal_but(k, k->u, k->a))                         \
    X(index_select, dt_index_select(k->x, k->a, k->i), rules_axis(k, k->a) && k->u.rank == 1)      \
    X(scatter_add, dt_scatter_add(k->x, k->a, k->i, k->b),                                         \
      rules_equal_but(k, k->u, k->a) && rules_size(k, k->a) == k->u.dim[(k->a + k->r) % k->r] &&   \
          k->b >= 0)                                                                               \
    /* F.embedding takes only tables of rows of one dimension */                                   \
    X(embedding, dt_embedding(k->x, k->i), k->r >= 1 && k->r - 1 + k->u.rank <= DT_MAX_DIMS)       \
    /* F.embedding_bag takes bags in one or two dimensions */                                      \
    X(embedding_bag, dt_embedding_bag(k->x, k->i, true), k->r == 2 && k->u.rank >= 1)              \
    X(embedding_bag, dt_embedding_bag_padded(k->x, k->i, true, k->a),                              \
      k->r == 2 && k->u.rank >= 1 && k->a >= -k->s.dim[0] && k->a < k->s.dim[0])                   \
    X(one_hot, dt_one_hot(k->i, k->b), k->b >= 1 && k->u.rank < DT_MAX_DIMS)                       \
    X(layer_norm, dt_layer_norm(k->x, k->a, NONE, NONE, 0), k->a >= 1 && k->a <= k->r)             \
    X(group_norm, dt_group_norm(k->x, k->a, NONE, NONE, 0),                                        \
      k->r >= 1 && k->a >= 1 && k->s.dim[0] % k->a == 0)                                           \
    X(pixel_shuffle, dt_pixel_shuffle(k->x, k->a),                                                 \
      k->r == 3 && k->a >= 1 && k->s.dim[0] % (k->a * k->a) == 0)                                  \
    X(pixel_unshuffle, dt_pixel_unshuffle(k->x, k->a),                                             \
      k->r == 3 && k->a >= 1 && k->s.dim[1] % k->a == 0 && k->s.dim[2] % k->a == 0)                \
    /* PyTorch takes sizes of 0 as well, and gives no elements */                                  \
    X(avg_pool2d, dt_adaptive_avg_pool2d(k->x, k->b, k->c), k->r == 3 && k->b >= 1 && k->c >= 1)   \
    X(pool3d, dt_adaptive_avg_pool3d(k->x, k->b, k->c, 2), k->r == 4 && k->b >= 1 && k->c >= 1)    \
    X(resize, dt_resize(k->x, k->b, k->c, DT_RESIZE_BILINEAR), k->r == 3 && k->b >= 1 && k->c >= 1)

static dt_shape rules_shape(int rank) {
    dt_shape s = {.rank = rank};
    for (int i = 0; i < rank; i++)
        s.dim[i] = rules_draw(1, 4);
    return s;
}

/* Often like x, with another size in one place. */
static dt_shape rules_shape_like(dt_shape s) {
    if (rules_draw(0, 2) == 0)
        return rules_shape(rules_draw(0, 5));
    if (s.rank > 0 && rules_draw(0, 1))
        s.dim[rules_draw(0, s.rank - 1)] = rules_draw(1, 4);
    return s;
}

static rules_case rules_case_draw(dt_graph *g, int number) {
    rules_case k = {.g = g, .r = rules_draw(1, 5)};
    char name[3][24];
    static const char letters[] = "xyi";
    for (int i = 0; i < 3; i++)
        snprintf(name[i], sizeof name[i], "%c%d", letters[i], number);
    k.s = rules_shape(k.r), k.t = rules_shape_like(k.s), k.u = rules_shape_like(k.s);
    k.a = rules_draw(0, 9) ? rules_draw(-k.r - 1, k.r) : rules_draw(-7, 7);
    k.b = rules_draw(-1, 5), k.c = rules_draw(-1, 5);
    k.x = dt_input_shared(g, name[0], DT_F32, k.s);
    k.y = dt_input_shared(g, name[1], DT_F32, k.t);
    k.i = dt_input_shared(g, name[2], DT_I32, k.u);
    return k;
}

static void rules_check(const rules_case *k, const char *name, const char *call, dt_tensor out,
                        bool takes) {
    const char *error = dt_graph_error(k->g);
    const bool took = !error && out.id;
    test_check(took == takes, __FILE__, __LINE__,
               "%s of x [%d %d %d %d %d] of %d, y of %d, a %d, b %d, c %d: %s", call,
               (int)k->s.dim[0], (int)k->s.dim[1], (int)k->s.dim[2], (int)k->s.dim[3],
               (int)k->s.dim[4], k->r, k->t.rank, k->a, k->b, k->c, took ? "taken" : error);
    test_check(took || (error && strstr(error, name)), __FILE__, __LINE__,
               "%s: a refusal that does not name %s: %s", call, name, error ? error : "none");
    dt_graph_clear_error(k->g);
}

TEST(ops_accept_the_axes_sizes_and_ranks_that_pytorch_accepts) {
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    rules_state = 17;
    for (int n = 0; n < 2000; n++) {
        if (n % 50 == 0) {
            dt_graph_destroy(g);
            g = NULL;
            REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
        }
        const rules_case drawn = rules_case_draw(g, n), *k = &drawn;
#define TRY(name, call, takes)                                                                     \
    {                                                                                              \
        const dt_tensor out = call;                                                                \
        rules_check(k, #name, #call, out, takes);                                                  \
    }
        RULES(TRY)
#undef TRY
    }
    dt_ctx_destroy(ctx);
}
