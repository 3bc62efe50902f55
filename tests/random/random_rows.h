/* Each kind of row with operands that it takes. Part of random_make.h. */
#ifndef DTRAIN_TESTS_RANDOM_ROWS_H
#define DTRAIN_TESTS_RANDOM_ROWS_H

/* ---- elementwise */

static int rnd_row_unary(rnd_maker *k) {
    static const char *const positive[] = {"log", "sqrt", "rsqrt", "reciprocal", "log1p"};
    static const char *const bounded[] = {"exp", "expm1"};
    const char *name = rnd_unary_names[rnd_below(k, (int)DTI_COUNT(rnd_unary_names))];
    int x = rnd_pick(k);
    for (size_t i = 0; i < DTI_COUNT(positive); i++)
        if (!strcmp(name, positive[i]))
            x = rnd_positive(k, x);
    for (size_t i = 0; i < DTI_COUNT(bounded); i++)
        if (!strcmp(name, bounded[i]))
            x = rnd_squashed(k, x);
    if (!strcmp(name, "square") || !strcmp(name, "sin") || !strcmp(name, "cos"))
        x = rnd_bounded(k, x);
    if (!strcmp(name, "erfinv"))
        x = rnd_affine(k, rnd_squashed(k, x), 0.75f, 0);
    return rnd_apply(k, name, x);
}

static int rnd_row_scaled(rnd_maker *k) {
    static const int kinds[] = {RND_LEAKY_RELU, RND_ELU, RND_AFFINE, RND_CLAMP};
    rnd_stmt s = rnd_new(kinds[rnd_below(k, 4)], rnd_pick(k), -1, -1);
    s.real[0] = rnd_chance(k, 20) ? (s.kind == RND_AFFINE ? -1.0f : 1.0f) : rnd_real(k, 0.05, 1.5);
    s.real[1] = rnd_chance(k, 40) ? 0 : rnd_real(k, -1, 1);
    if (s.kind == RND_CLAMP)
        s.real[1] = s.real[0] + 1, s.real[0] = -s.real[0];
    return s.in[0] < 0 ? -1 : rnd_put(k, s);
}

/* A shape that broadcasts with x: of its shape, or with ones and without leading dimensions. */
static int rnd_partner(rnd_maker *k, int x) {
    dt_shape s = rnd_shape(k, x);
    if (rnd_chance(k, 10))
        return x;
    if (rnd_chance(k, 40))
        for (int tries = 0; tries < 20; tries++) {
            const int v = rnd_below(k, k->m->count);
            if (rnd_is_float(k, v) && dti_shape_equal(rnd_shape(k, v), s))
                return v;
        }
    if (rnd_chance(k, 50)) {
        const int drop = rnd_below(k, s.rank + 1);
        dt_shape less = {s.rank - drop, {0}};
        for (int i = 0; i < less.rank; i++)
            less.dim[i] = rnd_chance(k, 30) ? 1 : s.dim[drop + i];
        s = less;
    }
    return rnd_chance(k, 25) ? rnd_leaf(k, RND_INPUT, RND_ANY, s) : rnd_weights(k, s);
}

static int rnd_row_binary(rnd_maker *k) {
    const int function = rnd_below(k, (int)DTI_COUNT(rnd_binary_names));
    const char *name = rnd_binary_names[function];
    int a = rnd_pick(k), b = a < 0 ? -1 : rnd_partner(k, a);
    if (!strcmp(name, "div"))
        b = rnd_positive(k, b);
    if (!strcmp(name, "mask") || !strcmp(name, "mask_inv"))
        b = rnd_apply(k, "heaviside", b);
    if (!strcmp(name, "pow")) {
        a = rnd_positive(k, rnd_bounded(k, a));
        b = rnd_squashed(k, b);
    }
    if (!strcmp(name, "mul")) {
        a = rnd_bounded(k, a);
        b = rnd_bounded(k, b);
    }
    if (!strcmp(name, "eq") && rnd_chance(k, 70)) {
        a = rnd_apply(k, "floor", a);
        b = rnd_apply(k, "floor", b);
    }
    if (a >= 0 && b >= 0 && rnd_chance(k, 30)) {
        const int swap = a;
        const bool ordered = strstr("div pow keep drop", name) != NULL;
        a = ordered ? a : b;
        b = ordered ? b : swap;
    }
    return rnd_apply2(k, name, a, b);
}

/* ---- shapes */

static int rnd_row_reshape(rnd_maker *k) {
    int x = rnd_pick(k);
    if (x < 0 || rnd_chance(k, 20))
        return rnd_put1(k, RND_FLATTEN, x);
    const int64_t n = rnd_elements(rnd_shape(k, x));
    const int rank = rnd_between(k, n == 1 ? 0 : 1, DT_MAX_DIMS);
    if (rank != rnd_shape(k, x).rank)
        return rnd_with_rank(k, x, rank);
    rnd_stmt s = rnd_new(RND_RESHAPE, x, -1, -1);
    s.shape = rnd_shape(k, x); /* its dimensions turned round */
    for (int i = 0; i < rank; i++)
        s.shape.dim[i] = rnd_shape(k, x).dim[rank - 1 - i];
    return rnd_put(k, s);
}

static int rnd_row_permute(rnd_maker *k) {
    int x = rnd_pick_rank(k, 2, 5);
    rnd_stmt s = rnd_new(RND_PERMUTE, x, -1, -1);
    if (x < 0)
        return -1;
    s.shape.rank = rnd_shape(k, x).rank;
    for (int i = 0; i < s.shape.rank; i++)
        s.shape.dim[i] = i;
    for (int i = s.shape.rank - 1; i > 0; i--) {
        const int j = rnd_below(k, i + 1);
        const int64_t axis = s.shape.dim[i];
        s.shape.dim[i] = s.shape.dim[j];
        s.shape.dim[j] = axis;
    }
    return rnd_put(k, s);
}

static int rnd_axis(rnd_maker *k, int x) { /* sometimes from the end */
    const int rank = rnd_shape(k, x).rank, axis = rnd_below(k, rank);
    return rnd_chance(k, 30) ? axis - rank : axis;
}
static int64_t rnd_along(const rnd_maker *k, int x, int axis) {
    dt_shape s = rnd_shape(k, x);
    return s.dim[axis < 0 ? axis + s.rank : axis];
}

static int rnd_slice_of(rnd_maker *k, int x) {
    if (x < 0 || rnd_shape(k, x).rank < 1)
        return -1;
    rnd_stmt s = rnd_new(RND_SLICE, x, -1, -1);
    s.number[0] = rnd_axis(k, x);
    const int size = (int)rnd_along(k, x, s.number[0]);
    s.number[2] = rnd_between(k, size > 0 && !rnd_chance(k, 3), size);
    s.number[1] = rnd_below(k, size - s.number[2] + 1);
    return rnd_put(k, s);
}

static int rnd_row_slice(rnd_maker *k) {
    return rnd_slice_of(k, rnd_pick_rank(k, 1, 4));
}

static int rnd_row_pad(rnd_maker *k) {
    int x = rnd_pick_rank(k, 1, 4);
    rnd_stmt s = rnd_new(RND_PAD, x, -1, -1);
    if (x < 0)
        return -1;
    s.number[0] = rnd_axis(k, x);
    s.number[1] = rnd_below(k, 3);
    s.number[2] = rnd_below(k, 3);
    return rnd_put(k, s);
}

static int rnd_row_expand(rnd_maker *k) {
    int x = rnd_pick(k);
    if (x < 0)
        return -1;
    dt_shape from = rnd_shape(k, x);
    if (rnd_chance(k, 50) && from.rank && from.rank < DT_MAX_DIMS) { /* a place to repeat */
        rnd_stmt s = rnd_new(RND_RESHAPE, x, -1, -1);
        const int at = rnd_below(k, from.rank + 1);
        s.shape.rank = from.rank + 1;
        for (int i = 0; i < s.shape.rank; i++)
            s.shape.dim[i] = i < at ? from.dim[i] : i == at ? 1 : from.dim[i - 1];
        x = rnd_put(k, s);
        from = s.shape;
    }
    const int more = rnd_below(k, DTI_MIN(DT_MAX_DIMS - from.rank, 2) + 1);
    rnd_stmt s = rnd_new(RND_EXPAND, x, -1, -1);
    s.shape.rank = from.rank + more;
    for (int i = 0; i < s.shape.rank; i++) {
        const int64_t own = i < more ? 1 : from.dim[i - more];
        s.shape.dim[i] = own == 1 ? rnd_between(k, 1, 4) : own;
    }
    return x < 0 ? -1 : rnd_put(k, s);
}

static int rnd_row_concat(rnd_maker *k) {
    int x = rnd_pick_rank(k, 1, 4), in[3] = {x, -1, -1};
    if (x < 0)
        return -1;
    const int axis = rnd_axis(k, x), count = rnd_chance(k, 60) ? 2 : 3;
    for (int i = 1; i < count; i++) {
        dt_shape s = rnd_shape(k, x);
        in[i] = -1;
        for (int tries = 0; tries < 10 && in[i] < 0 && rnd_chance(k, 90); tries++) {
            const int v = rnd_below(k, k->m->count);
            if (rnd_is_float(k, v) && dti_shape_equal(rnd_shape(k, v), s) &&
                rnd_samples(k, v) == rnd_samples(k, x))
                in[i] = v;
        }
        s.dim[axis < 0 ? axis + s.rank : axis] = rnd_between(k, 1, 3);
        if (in[i] < 0 && rnd_samples(k, x))
            in[i] = rnd_leaf(k, RND_INPUT, RND_ANY, s);
        else if (in[i] < 0)
            in[i] = rnd_weights(k, s);
        if (in[i] < 0)
            return -1;
    }
    rnd_stmt s = rnd_new(count == 2 ? RND_CONCAT : RND_CONCAT3, in[0], in[1], in[2]);
    s.number[0] = axis;
    return rnd_put(k, s);
}

static int rnd_row_copy(rnd_maker *k) {
    return rnd_put1(k, rnd_chance(k, 60) ? RND_COPY : RND_DETACH, rnd_pick(k));
}

/* ---- whole numbers */

static int rnd_index(rnd_maker *k, dt_shape shape, bool samples, int classes, bool ignores) {
    rnd_stmt s = rnd_new(samples ? RND_INDEX : RND_INDEX_SHARED, -1, -1, -1);
    s.range = RND_CLASSES;
    s.classes = classes;
    s.ignores = ignores;
    s.shape = shape;
    return rnd_put(k, s);
}

/* Whole numbers below `classes`, of the host or computed. */
static int rnd_any_index(rnd_maker *k, int classes) {
    if (rnd_chance(k, 60)) {
        int i =
            rnd_index(k, rnd_any_shape(k, rnd_between(k, 0, 2)), rnd_chance(k, 70), classes, false);
        return i >= 0 && rnd_chance(k, 25) && rnd_shape(k, i).rank ? rnd_slice_of(k, i) : i;
    }
    int x = rnd_pick(k);
    if (x < 0 || rnd_shape(k, x).rank > 3 || rnd_elements(rnd_shape(k, x)) > 40)
        return -1;
    x = rnd_affine(k, rnd_apply(k, "sigmoid", x), (float)classes * 0.98f, 0.01f);
    return rnd_put1(k, RND_TO_I32, x);
}

static int rnd_row_cast(rnd_maker *k) {
    int x = rnd_any_index(k, rnd_between(k, 2, 9));
    return rnd_put1(k, RND_TO_F32, x);
}

static int rnd_row_gather(rnd_maker *k) {
    dt_shape s = rnd_any_shape(k, rnd_between(k, 1, 3));
    int table = rnd_weights(k, s);
    if (table < 0)
        return -1;
    int index = rnd_any_index(k, (int)rnd_shape(k, table).dim[0]);
    if (index < 0 || rnd_shape(k, index).rank + s.rank - 1 > DT_MAX_DIMS)
        return -1;
    return rnd_put(k, rnd_new(RND_GATHER, table, index, -1));
}

/* ---- reductions */

static int rnd_row_reduce(rnd_maker *k) {
    static const int kinds[] = {RND_SUM, RND_MEAN, RND_MAX, RND_MIN};
    int x = rnd_pick(k);
    const int kind = kinds[rnd_below(k, 4)];
    rnd_stmt s = rnd_new(kind, x, -1, -1);
    if (x < 0)
        return -1;
    if ((kind == RND_MAX || kind == RND_MIN) && !rnd_elements(rnd_shape(k, x)))
        return -1; /* of none there is no largest */
    const int rank = rnd_shape(k, x).rank;
    for (int i = 0; i < rank && !rnd_chance(k, 10); i++)
        if (rnd_chance(k, 45))
            s.shape.dim[s.shape.rank++] = rnd_chance(k, 20) ? i - rank : i;
    s.number[0] = rnd_chance(k, 40);
    return rnd_put(k, s);
}

static int rnd_row_sum_samples(rnd_maker *k) {
    int x = rnd_pick(k);
    return x >= 0 && rnd_samples(k, x) ? rnd_put1(k, RND_SUM_SAMPLES, x) : -1;
}

static int rnd_row_softmax(rnd_maker *k) {
    int x = rnd_bounded(k, rnd_pick_rank(k, 1, 4));
    rnd_stmt s = rnd_new(rnd_chance(k, 50) ? RND_SOFTMAX : RND_LOG_SOFTMAX, x, -1, -1);
    if (x < 0)
        return -1;
    s.number[0] = rnd_axis(k, x);
    return rnd_put(k, s);
}

static int rnd_row_dropout(rnd_maker *k) {
    rnd_stmt s = rnd_new(RND_DROPOUT, rnd_pick(k), -1, -1);
    s.real[0] = rnd_chance(k, 20) ? 0 : rnd_real(k, 0.1, 0.6);
    if (s.in[0] >= 0 && rnd_chance(k, 20))
        return rnd_put1(k, RND_RANDOM, s.in[0]);
    s.kind = rnd_chance(k, 20) ? RND_ALPHA_DROPOUT : RND_DROPOUT;
    return s.in[0] < 0 ? -1 : rnd_put(k, s);
}

/* ---- products */

static int rnd_row_matmul(rnd_maker *k) {
    int a = rnd_bounded(k, rnd_pick_rank(k, 2, 4));
    rnd_stmt s = rnd_new(rnd_chance(k, 50) ? RND_MATMUL : RND_MATMUL_T, a, -1, -1);
    if (a < 0)
        return -1;
    if (s.kind == RND_MATMUL_T)
        for (int i = 0; i < 2; i++)
            s.number[i] = rnd_chance(k, 50);
    const dt_shape x = rnd_shape(k, a);
    const int64_t depth = x.dim[x.rank - (s.number[0] ? 2 : 1)], cols = rnd_size(k);
    dt_shape y = {2, {s.number[1] ? cols : depth, s.number[1] ? depth : cols}};
    if (rnd_chance(k, 30) && x.rank > 2) { /* the leading dimensions as well, or ones */
        y.rank = x.rank;
        for (int i = 0; i < x.rank; i++)
            y.dim[i] = i < x.rank - 2 ? (rnd_chance(k, 60) ? x.dim[i] : 1)
                       : (i == x.rank - 1) == (s.number[1] != 0) ? depth
                                                                 : cols;
    }
    int b = rnd_chance(k, 30) ? rnd_leaf(k, RND_INPUT, RND_ANY, y) : rnd_weights(k, y);
    if (rnd_chance(k, 15) && x.dim[x.rank - 1] == x.dim[x.rank - 2])
        b = a;
    s.in[1] = (int16_t)b;
    return b < 0 ? -1 : rnd_put(k, s);
}

/* Every query sees a key: there are no gradients elsewhere. */
static int rnd_row_attention(rnd_maker *k) {
    int q = rnd_bounded(k, rnd_pick_rank(k, 3, 3));
    if (q < 0)
        return -1;
    const dt_shape s = rnd_shape(k, q);
    const int64_t tk = rnd_chance(k, 50) ? s.dim[1] : s.dim[1] + rnd_size(k);
    const int64_t kv_heads = rnd_chance(k, 50) ? s.dim[0] : 1, size = rnd_size(k);
    const dt_shape key = {3, {kv_heads, tk, s.dim[2]}}, value = {3, {kv_heads, tk, size}};
    int of_k = rnd_chance(k, 30) ? rnd_weights(k, key) : rnd_leaf(k, RND_INPUT, RND_ANY, key);
    int of_v = rnd_chance(k, 30) ? rnd_weights(k, value) : rnd_leaf(k, RND_INPUT, RND_ANY, value);
    if (rnd_chance(k, 30) && tk == s.dim[1] && kv_heads == s.dim[0])
        of_k = of_v = q;
    rnd_stmt r = rnd_new(RND_ATTENTION, q, of_k, of_v);
    if (of_k < 0 || of_v < 0 || s.dim[1] < 1 || s.dim[0] < 1 || s.dim[2] < 1)
        return -1;
    const dt_shape mask = {
        3, {rnd_chance(k, 50) ? s.dim[0] : 1, rnd_chance(k, 50) ? s.dim[1] : 1, tk}};
    if (rnd_chance(k, 25))
        r.in[3] = (int16_t)(rnd_chance(k, 50) ? rnd_weights(k, mask)
                                              : rnd_leaf(k, RND_INPUT, RND_ANY, mask));
    r.real[0] = rnd_real(k, 0.1, 0.5);
    r.real[1] = rnd_chance(k, 75) ? 0 : rnd_real(k, 0.1, 0.5);
    r.number[0] = rnd_chance(k, 40);
    r.number[1] = rnd_chance(k, 70) ? 0 : rnd_between(k, 1, 4);
    r.number[2] = rnd_chance(k, 20);
    if (!r.number[2] && r.in[3] < 0 && tk == s.dim[1] && rnd_chance(k, 50))
        r.kind = RND_ATTENTION_CACHED, r.number[0] = 1;
    return rnd_put(k, r);
}

/* Of few units, so that no state grows. */
static int rnd_row_recurrence(rnd_maker *k) {
    static const int gates[] = {4, 3, 1, 1};
    const int kind = rnd_below(k, 4),
              hidden = rnd_between(k, 1, kind == DTI_RECURRENCE_RELU ? 1 : 3);
    const int64_t all = gates[kind] * hidden, cell = kind == DTI_RECURRENCE_LSTM ? hidden : 0;
    int x = rnd_bounded(k, rnd_pick_rank(k, 2, 2));
    if (x < 0 || rnd_shape(k, x).dim[1] != all || rnd_shape(k, x).dim[0] < 1)
        x = rnd_leaf(k, RND_INPUT, RND_ANY, (dt_shape){2, {rnd_between(k, 1, 4), all}});
    const dt_shape state = {1, {hidden + cell}}, w = {2, {all, hidden}}, bias = {1, {hidden}};
    rnd_stmt r = rnd_new(RND_RECURRENCE, x, rnd_weights(k, w), -1);
    r.in[2] = (int16_t)(rnd_chance(k, 50) ? rnd_leaf(k, RND_INPUT, RND_ANY, state)
                                          : rnd_weights(k, state));
    if (kind == DTI_RECURRENCE_GRU)
        r.in[3] = (int16_t)rnd_weights(k, bias);
    r.number[0] = kind;
    r.number[1] = rnd_chance(k, 40) ? (int32_t)DTI_RECURRENCE_REVERSE : 0;
    return x < 0 || r.in[1] < 0 || r.in[2] < 0 || (kind == DTI_RECURRENCE_GRU && r.in[3] < 0)
               ? -1
               : rnd_put(k, r);
}

/* The blank is the class after those that targets have. */
static int rnd_row_ctc(rnd_maker *k) {
    const dt_shape one = {0}, labels = {1, {rnd_between(k, 0, 3)}};
    int x = rnd_bounded(k, rnd_pick_rank(k, 2, 2));
    if (x < 0 || rnd_shape(k, x).dim[1] < 2 || rnd_shape(k, x).dim[0] < 1)
        x = rnd_weights(k, (dt_shape){2, {rnd_between(k, 1, 6), rnd_between(k, 2, 5)}});
    if (x < 0)
        return -1;
    const dt_shape shape = rnd_shape(k, x);
    const int blank = (int)shape.dim[1] - 1;
    rnd_stmt r = rnd_new(RND_CTC, x, rnd_index(k, labels, rnd_chance(k, 80), blank, false), -1);
    if (rnd_chance(k, 40))
        r.in[2] = (int16_t)rnd_index(k, one, true, (int)shape.dim[0] + 1, false);
    if (rnd_chance(k, 40))
        r.in[3] = (int16_t)rnd_index(k, one, true, (int)labels.dim[0] + 1, false);
    r.number[0] = blank;
    r.number[1] = rnd_chance(k, 40);
    return r.in[1] < 0 ? -1 : rnd_put(k, r);
}

static int rnd_row_linear(rnd_maker *k) {
    int x = rnd_bounded(k, rnd_pick_rank(k, 1, 4));
    if (x < 0)
        return -1;
    const dt_shape s = rnd_shape(k, x);
    const int64_t in = s.dim[s.rank - 1];
    const int64_t out = k->narrow && rnd_chance(k, 50) ? 1 : rnd_size(k);
    int w = rnd_weights(k, (dt_shape){2, {out, in}});
    int b = rnd_chance(k, 80) ? rnd_weights(k, (dt_shape){1, {out}}) : -1;
    return w < 0 ? -1 : rnd_put(k, rnd_new(RND_LINEAR, x, w, b));
}

/* ---- images */

/* [channels, height, width], or [channels, length]: small. */
static int rnd_image(rnd_maker *k, int rank, int channels_of) {
    int x = rnd_bounded(k, rnd_pick_rank(k, rank, rank));
    if (x >= 0 && rnd_shape(k, x).dim[0] % channels_of == 0 && rnd_elements(rnd_shape(k, x)) &&
        rnd_chance(k, 80))
        return x;
    dt_shape s = rnd_any_shape(k, rank);
    s.dim[0] = channels_of * rnd_between(k, 1, 3);
    while (rnd_elements(s) > RND_ELEMENTS_MAX / 2)
        for (int i = 1; i < rank; i++)
            s.dim[i] = (s.dim[i] + 1) / 2;
    return rnd_leaf(k, RND_INPUT, RND_ANY, s);
}

/* Kernel, stride, padding, dilation along one axis of `size`; false: none fits. */
static bool rnd_window(rnd_maker *k, rnd_stmt *s, int axis, int64_t size, int64_t *kernel) {
    s->number[axis] = rnd_chance(k, 60) ? 1 : rnd_between(k, 1, 3);
    s->number[2 + axis] = rnd_chance(k, 50) ? 0 : rnd_between(k, 1, 2);
    s->number[4 + axis] = rnd_chance(k, 75) ? 1 : 2;
    *kernel = rnd_between(k, 1, 3);
    while (*kernel > 1 && s->number[4 + axis] * (*kernel - 1) + 1 > size + 2 * s->number[2 + axis])
        --*kernel;
    return size + 2 * s->number[2 + axis] >= 1;
}

static int rnd_row_conv(rnd_maker *k) {
    const int axes = rnd_chance(k, 65) ? 2 : 1,
              groups = rnd_chance(k, 70) ? 1 : rnd_between(k, 2, 3);
    const bool transposed = rnd_chance(k, 40);
    int x = rnd_image(k, axes + 1, groups);
    if (x < 0 || rnd_shape(k, x).dim[0] % groups)
        return -1;
    const dt_shape from = rnd_shape(k, x);
    rnd_stmt s = rnd_new(transposed ? (axes == 2 ? RND_CONVT2D : RND_CONVT1D)
                                    : (axes == 2 ? RND_CONV2D : RND_CONV1D),
                         x, -1, -1);
    dt_shape w = {axes + 2, {0}};
    const int out = groups * rnd_between(k, 1, 3);
    w.dim[0] = transposed ? from.dim[0] : out;
    w.dim[1] = transposed ? out / groups : from.dim[0] / groups;
    for (int i = 0; i < axes; i++) {
        if (!rnd_window(k, &s, i, transposed ? 9 : from.dim[1 + i], &w.dim[2 + i]))
            return -1;
        const int64_t reach = s.number[4 + i] * (w.dim[2 + i] - 1) + 1;
        if (transposed && s.number[i] > 1 && rnd_chance(k, 40))
            s.number[7 + i] = s.number[i] - 1;
        if (transposed && (from.dim[1 + i] - 1) * s.number[i] + reach - 2 * s.number[2 + i] < 1)
            s.number[2 + i] = 0;
    }
    s.number[6] = groups;
    s.in[1] = (int16_t)rnd_weights(k, w);
    s.in[2] = (int16_t)(rnd_chance(k, 80) ? rnd_weights(k, (dt_shape){1, {out}}) : -1);
    return s.in[1] < 0 ? -1 : rnd_put(k, s);
}

static int rnd_row_pool(rnd_maker *k) {
    int x = rnd_image(k, 3, 1);
    rnd_stmt s = rnd_new(rnd_chance(k, 50) ? RND_MAX_POOL : RND_AVG_POOL, x, -1, -1);
    if (x < 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        const int size = (int)rnd_shape(k, x).dim[1 + i];
        s.number[i] = rnd_between(k, 1, DTI_MIN(3, size));
        s.number[2 + i] = rnd_between(k, 1, 3);
        s.number[4 + i] = rnd_between(k, 0, s.number[i] / 2);
    }
    s.number[6] = rnd_chance(k, 40);
    s.number[7] = s.kind == RND_AVG_POOL && rnd_chance(k, 40);
    return rnd_put(k, s);
}

static int rnd_row_resize(rnd_maker *k) {
    int x = rnd_image(k, 3, 1);
    rnd_stmt s = rnd_new(rnd_chance(k, 40) ? RND_ADAPTIVE : RND_RESIZE, x, -1, -1);
    if (x < 0)
        return -1;
    for (int i = 0; i < 2; i++)
        s.number[i] =
            rnd_between(k, 1, s.kind == RND_ADAPTIVE ? (int)rnd_shape(k, x).dim[1 + i] : 9);
    s.number[2] = s.kind == RND_RESIZE && rnd_chance(k, 50);
    return rnd_put(k, s);
}

/* ---- functions made of ops */

/* Elements of an axis in another order, or sums of them. */
static int rnd_row_moved(rnd_maker *k) {
    static const int kinds[] = {RND_FLIP,    RND_ROLL,      RND_TRIL,   RND_TRIU,
                                RND_REFLECT, RND_REPLICATE, RND_CUMSUM, RND_CIRCULAR};
    int x = rnd_bounded(k, rnd_pick_rank(k, 2, 3));
    rnd_stmt s = rnd_new(kinds[rnd_below(k, (int)DTI_COUNT(kinds))], x, -1, -1);
    if (x < 0 || !rnd_elements(rnd_shape(k, x)))
        return -1;
    const int axis = rnd_axis(k, x), size = (int)rnd_along(k, x, axis);
    s.number[0] = axis;
    if (s.kind == RND_TRIL || s.kind == RND_TRIU)
        s.number[0] = rnd_between(k, -3, 3);
    if (s.kind == RND_ROLL)
        s.number[1] = rnd_between(k, -20, 20);
    const bool pads = s.kind == RND_REFLECT || s.kind == RND_REPLICATE || s.kind == RND_CIRCULAR;
    for (int i = 1; i < 3 && pads; i++)
        s.number[i] = rnd_below(k, s.kind == RND_REFLECT    ? size
                                   : s.kind == RND_CIRCULAR ? size + 1
                                                            : 4);
    return rnd_put(k, s);
}

static int rnd_row_var(rnd_maker *k) {
    int x = rnd_bounded(k, rnd_pick_rank(k, 1, 3));
    rnd_stmt s = rnd_new(RND_VAR, x, -1, -1);
    if (x < 0 || !rnd_elements(rnd_shape(k, x)))
        return -1;
    s.shape.rank = rnd_chance(k, 20) ? 0 : 1;
    s.shape.dim[0] = rnd_axis(k, x);
    s.number[0] = rnd_chance(k, 40);
    return rnd_put(k, s);
}

static int rnd_row_where(rnd_maker *k) {
    int a = rnd_pick(k), b = a < 0 ? -1 : rnd_partner(k, a);
    int c = a < 0 ? -1 : rnd_apply(k, "heaviside", rnd_partner(k, a));
    return b < 0 || c < 0 ? -1 : rnd_put(k, rnd_new(RND_WHERE, c, a, b));
}

/* Places along an axis: for each element, or the same for all. */
static int rnd_row_along(rnd_maker *k) {
    static const int kinds[] = {RND_TAKE, RND_SCATTER, RND_SELECT, RND_ONE_HOT};
    int x = rnd_pick_rank(k, 1, 3);
    rnd_stmt s = rnd_new(kinds[rnd_below(k, 4)], x, -1, -1);
    if (x < 0 || !rnd_elements(rnd_shape(k, x)))
        return -1;
    const int axis = rnd_axis(k, x), at = axis < 0 ? axis + rnd_shape(k, x).rank : axis;
    int size = (int)rnd_along(k, x, axis);
    dt_shape shape = rnd_shape(k, x);
    s.number[0] = axis;
    if (s.kind == RND_TAKE)
        shape.dim[at] = rnd_between(k, 1, 5);
    if (s.kind == RND_SCATTER)
        s.number[1] = size = rnd_between(k, 1, 5);
    if (s.kind == RND_SELECT)
        shape = (dt_shape){1, {rnd_between(k, 1, 5)}};
    if (s.kind == RND_ONE_HOT)
        s.number[0] = size = rnd_between(k, 1, 5);
    s.in[1] = (int16_t)rnd_index(k, shape, rnd_samples(k, x) && rnd_chance(k, 80), size, false);
    if (s.kind == RND_ONE_HOT)
        s.in[0] = s.in[1], s.in[1] = -1;
    return s.in[0] < 0 || (s.in[1] < 0 && s.kind != RND_ONE_HOT) ? -1 : rnd_put(k, s);
}

/* Losses of rows, and masks of whole channels or samples. */
static int rnd_row_each(rnd_maker *k) {
    int x = rnd_bounded(k, rnd_pick_rank(k, 1, 3));
    if (x < 0 || !rnd_elements(rnd_shape(k, x)))
        return -1;
    rnd_stmt s = rnd_new(rnd_chance(k, 50) ? RND_EACH : RND_CHANNELS, x, -1, -1);
    s.real[0] = rnd_chance(k, 30) ? 0 : rnd_real(k, 0.1, 0.6);
    if (s.kind == RND_CHANNELS) {
        s.kind = rnd_chance(k, 50) ? RND_CHANNELS : RND_DROP_PATH;
        return rnd_put(k, s);
    }
    dt_shape rows = rnd_shape(k, x);
    const int classes = (int)rows.dim[--rows.rank];
    rows.dim[rows.rank] = 0;
    s.number[0] = classes > 2 && rnd_chance(k, 30);
    s.in[1] = (int16_t)rnd_index(k, rows, rnd_samples(k, x), classes, rnd_chance(k, 30));
    return s.in[1] < 0 ? -1 : rnd_put(k, s);
}

/* ---- normalisation */

static int rnd_row_norm(rnd_maker *k) {
    static const int kinds[] = {RND_LAYER_NORM, RND_RMS_NORM, RND_GROUP_NORM};
    int x = rnd_pick_rank(k, 1, 4);
    rnd_stmt s = rnd_new(kinds[rnd_below(k, 3)], x, -1, -1);
    if (x < 0 || !rnd_elements(rnd_shape(k, x)))
        return -1;
    dt_shape from = rnd_shape(k, x), w = {1, {from.dim[0]}};
    s.number[0] = rnd_between(k, 1, from.rank);
    if (s.kind == RND_GROUP_NORM) {
        s.number[0] = rnd_between(k, 1, (int)from.dim[0]);
        while (from.dim[0] % s.number[0])
            s.number[0]--;
    } else {
        w.rank = s.number[0];
        for (int i = 0; i < w.rank; i++)
            w.dim[i] = from.dim[from.rank - w.rank + i];
    }
    s.real[0] = rnd_chance(k, 40) ? 0 : rnd_real(k, 0.01, 0.1);
    s.in[1] = (int16_t)(rnd_chance(k, 75) ? rnd_weights(k, w) : -1);
    if (s.in[1] >= 0 && s.kind != RND_RMS_NORM && rnd_chance(k, 75))
        s.in[2] = (int16_t)rnd_weights(k, w);
    return rnd_put(k, s);
}

static int rnd_row_batch_norm(rnd_maker *k) {
    int x = rnd_pick_rank(k, 1, 3);
    if (x < 0 || !rnd_samples(k, x) || k->m->batch < 4 || !rnd_elements(rnd_shape(k, x)))
        return -1;
    const dt_shape c = {1, {rnd_shape(k, x).dim[0]}};
    rnd_stmt s = rnd_new(RND_BATCH_NORM, x, -1, -1);
    if (rnd_chance(k, 75)) {
        s.in[1] = (int16_t)rnd_weights(k, c);
        s.in[2] = (int16_t)(s.in[1] >= 0 && rnd_chance(k, 75) ? rnd_weights(k, c) : -1);
    }
    s.in[3] = (int16_t)rnd_leaf(k, RND_BUFFER, RND_ANY, c);
    s.in[4] = (int16_t)rnd_leaf(k, RND_BUFFER, RND_POSITIVE, c);
    s.real[0] = rnd_chance(k, 50) ? 0 : rnd_real(k, 0.05, 1);
    s.number[0] = rnd_chance(k, 20);
    return s.in[3] < 0 || s.in[4] < 0 ? -1 : rnd_put(k, s);
}

/* ---- terms */

static int rnd_cross_entropy_of(rnd_maker *k, int x) {
    x = rnd_bounded(k, x);
    if (x < 0 || rnd_shape(k, x).rank < 1 || !rnd_elements(rnd_shape(k, x)))
        return -1;
    dt_shape rows = rnd_shape(k, x);
    const int classes = (int)rows.dim[--rows.rank];
    rows.dim[rows.rank] = 0;
    rnd_stmt s = rnd_new(RND_CROSS_ENTROPY, x, -1, -1);
    s.in[1] = (int16_t)rnd_index(k, rows, rnd_samples(k, x), classes, rnd_chance(k, 40));
    s.real[0] = rnd_chance(k, 50) ? 0 : rnd_real(k, 0, 1);
    s.number[0] = s.in[1] >= 0 && !k->m->stmts[s.in[1]].ignores && classes > 2 && rnd_chance(k, 30);
    if (rnd_chance(k, 30))
        s.kind = RND_NLL, s.real[0] = 0;
    if (rnd_chance(k, 35)) {
        const dt_shape c = {1, {classes}};
        int w = rnd_leaf(k, rnd_chance(k, 50) ? RND_FROZEN : RND_SHARED, RND_POSITIVE, c);
        if (w >= 0)
            k->apart[w] = true;
        if (w >= 0 && rnd_chance(k, 30))
            w = rnd_put1(k, RND_DETACH, w);
        if (w >= 0)
            k->apart[w] = true;
        s.in[2] = (int16_t)w;
    }
    return s.in[1] < 0 ? -1 : rnd_put(k, s);
}

static int rnd_mse_of(rnd_maker *k, int x) {
    x = rnd_bounded(k, x);
    if (x < 0)
        return -1;
    int t = -1;
    const int which = rnd_below(k, 5);
    if (which == 0)
        t = rnd_apply(k, "tanh", x); /* a target that depends on x */
    else if (which == 1)
        t = rnd_put1(k, RND_DETACH, rnd_apply(k, "sin", x));
    else
        t = rnd_samples(k, x) ? rnd_leaf(k, RND_INPUT, RND_ANY, rnd_shape(k, x))
                              : rnd_weights(k, rnd_shape(k, x));
    if (t < 0 || rnd_samples(k, t) != rnd_samples(k, x))
        return -1;
    return rnd_put(k, rnd_chance(k, 50) ? rnd_new(RND_MSE, x, t, -1) : rnd_new(RND_MSE, t, x, -1));
}

/* One weight for each element; also views of some. */
static int rnd_weighted_of(rnd_maker *k, int x) {
    if (x < 0)
        return -1;
    const dt_shape shape = rnd_chance(k, 50) ? rnd_shape(k, x) : (dt_shape){0};
    int w = rnd_leaf(k, rnd_samples(k, x) ? RND_INPUT : RND_SHARED, RND_POSITIVE, shape);
    if (w >= 0)
        k->apart[w] = true;
    return w < 0 ? -1 : rnd_put(k, rnd_new(RND_WEIGHTED, x, w, -1));
}

/* Of probabilities, which are their own targets. */
static int rnd_bce_of(rnd_maker *k, int x) {
    int p = rnd_affine(k, rnd_apply(k, "sigmoid", x), 0.9f, 0.05f);
    return p < 0 ? -1 : rnd_put(k, rnd_new(RND_BCE, p, p, -1));
}

static int rnd_term_of(rnd_maker *k, int x) {
    switch (rnd_below(k, 8)) {
    case 0:
    case 1: return rnd_cross_entropy_of(k, x);
    case 2: return rnd_mse_of(k, x);
    case 4: return rnd_weighted_of(k, x);
    case 5: return rnd_put1(k, RND_MEAN_LOSS, rnd_bce_of(k, x));
    case 3: return rnd_put1(k, RND_MEAN_LOSS, rnd_apply(k, rnd_chance(k, 50) ? "sin" : "tanh", x));
    default: return rnd_put1(k, RND_MEAN_LOSS, x);
    }
}

static int rnd_metric_of(rnd_maker *k, int x) {
    if (x < 0 || rnd_shape(k, x).rank < 1 || !rnd_elements(rnd_shape(k, x)) || rnd_chance(k, 40))
        return rnd_term_of(k, x);
    dt_shape rows = rnd_shape(k, x);
    const int classes = (int)rows.dim[--rows.rank];
    rows.dim[rows.rank] = 0;
    int t = rnd_index(k, rows, rnd_samples(k, x), classes, rnd_chance(k, 30));
    return t < 0 ? -1 : rnd_put(k, rnd_new(RND_ACCURACY, x, t, -1));
}

/* d(sum of y)/dx of something that is there; then a bounded function of it, as penalties are. */
/* Losses would take a second derivative of it, which is an error. */
static bool rnd_has_recurrence(const rnd_maker *k) {
    bool has = false;
    for (int i = 0; i < k->m->count; i++)
        has = has || k->m->stmts[i].kind == RND_RECURRENCE || k->m->stmts[i].kind == RND_CTC;
    return has;
}

static int rnd_row_gradient(rnd_maker *k) {
    if (rnd_has_recurrence(k))
        return -1;
    if (k->gradients >= 3 || k->b.graph->count > RND_NODES_MAX / 3)
        return -1;
    int y = rnd_pick(k);
    if (y >= 0 && rnd_chance(k, 25))
        y = rnd_term_of(k, y);
    for (int tries = 0; tries < 12 && y >= 0; tries++) {
        const int x = rnd_below(k, k->m->count);
        if (x == y || !rnd_is_float(k, x) || rnd_is_leaf(k->m->stmts[y].kind))
            continue;
        if (!rnd_reaches(k, y, x))
            continue;
        int g = rnd_put(k, rnd_new(RND_GRADIENT, y, x, -1));
        k->gradients += g >= 0;
        return g >= 0 && rnd_chance(k, 60)
                   ? rnd_apply(k, rnd_chance(k, 50) ? "square" : "sin", rnd_bounded(k, g))
                   : g;
    }
    return -1;
}

static int rnd_row_leaf(rnd_maker *k) {
    const int which = rnd_below(k, 10);
    const dt_shape s = rnd_any_shape(k, rnd_any_rank(k));
    if (which < 2) {
        rnd_stmt fill = rnd_new(RND_FILL, -1, -1, -1);
        fill.shape = s;
        fill.real[0] = rnd_real(k, -1, 1);
        return rnd_put(k, fill);
    }
    return which < 6 ? rnd_leaf(k, RND_INPUT, rnd_chance(k, 80) ? RND_ANY : RND_POSITIVE, s)
                     : rnd_weights(k, s);
}

static void rnd_any_row(rnd_maker *k, int focus);

/* ---- what models often are */

/* A product with a bias, perhaps a view, and a loss of it. */
static void rnd_short(rnd_maker *k) {
    static int (*const products[])(rnd_maker * k) = {rnd_row_linear, rnd_row_linear, rnd_row_conv,
                                                     rnd_row_matmul, rnd_row_gather};
    static int (*const behind[])(rnd_maker * k) = {
        rnd_row_pad,   rnd_row_slice,   rnd_row_permute, rnd_row_reshape, rnd_row_expand,
        rnd_row_unary, rnd_row_softmax, rnd_row_norm,    rnd_row_concat,  rnd_row_reduce};
    k->small = false; /* sums of many */
    k->narrow = true;
    rnd_leaf(k, RND_INPUT, RND_ANY, rnd_any_shape(k, rnd_between(k, 2, 4)));
    products[rnd_below(k, (int)DTI_COUNT(products))](k);
    for (int i = rnd_chance(k, 50) ? 0 : rnd_between(k, 1, 2); i > 0; i--)
        behind[rnd_below(k, (int)DTI_COUNT(behind))](k);
    if (rnd_chance(k, 65) && rnd_sink(k) >= 0)
        rnd_loss(k, rnd_put1(k, RND_MEAN_LOSS, rnd_sink(k)));
}

/* A penalty on a gradient through a row with a gradient of its own. */
static void rnd_penalty(rnd_maker *k) {
    static int (*const rows[])(rnd_maker * k) = {
        rnd_row_softmax,    rnd_row_softmax, rnd_row_norm, rnd_row_norm,  rnd_row_unary,
        rnd_row_batch_norm, rnd_row_pool,    rnd_row_conv, rnd_row_matmul};
    if (rnd_chance(k, 60))
        rnd_row_linear(k);
    else
        rnd_weights(k, rnd_any_shape(k, rnd_between(k, 1, 3)));
    rows[rnd_below(k, (int)DTI_COUNT(rows))](k);
    if (rnd_chance(k, 70))
        rnd_row_unary(k);
    rnd_row_gradient(k);
    if (rnd_chance(k, 30))
        rnd_any_row(k, -1);
}

/* ---- one of them */

static const struct {
    int (*make)(rnd_maker *k);
    int weight;
} rnd_rows[] = {{rnd_row_unary, 14},      {rnd_row_scaled, 5},     {rnd_row_binary, 12},
                {rnd_row_reshape, 5},     {rnd_row_permute, 5},    {rnd_row_slice, 5},
                {rnd_row_pad, 4},         {rnd_row_expand, 4},     {rnd_row_concat, 4},
                {rnd_row_copy, 2},        {rnd_row_cast, 1},       {rnd_row_gather, 4},
                {rnd_row_reduce, 6},      {rnd_row_softmax, 5},    {rnd_row_dropout, 3},
                {rnd_row_matmul, 7},      {rnd_row_linear, 9},     {rnd_row_conv, 8},
                {rnd_row_pool, 4},        {rnd_row_resize, 4},     {rnd_row_norm, 6},
                {rnd_row_leaf, 4},        {rnd_row_batch_norm, 4}, {rnd_row_gradient, 14},
                {rnd_row_sum_samples, 1}, {rnd_row_attention, 2},  {rnd_row_recurrence, 1},
                {rnd_row_ctc, 2},         {rnd_row_moved, 2},      {rnd_row_var, 1},
                {rnd_row_where, 1},       {rnd_row_along, 2},      {rnd_row_each, 1}};

static int rnd_row_count(void) {
    return (int)DTI_COUNT(rnd_rows);
}

static void rnd_any_row(rnd_maker *k, int focus) {
    int total = 0, at = 0;
    for (int i = 0; i < rnd_row_count(); i++)
        total += rnd_rows[i].weight;
    for (int left = rnd_below(k, total); left >= rnd_rows[at].weight; at++)
        left -= rnd_rows[at].weight;
    rnd_rows[focus >= 0 ? focus : at].make(k);
}

#endif
