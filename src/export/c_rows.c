/* What a model's C file holds while it is written (c_save.c), and the calls of its rows. */

enum {
#define DTI_X(id, needs, text) DTI_C_##id,
    DTI_C_LIST(DTI_X)
#undef DTI_X
        DTI_C_COUNT
};
#define DTI_C_ON(id) (1u << DTI_C_##id)

/* Where a value is: a word of the function, a constant, or a place of the array. */
typedef enum dti_c_kind { DTI_C_NONE, DTI_C_INPUT, DTI_C_CONSTANT, DTI_C_PLACE } dti_c_kind;
typedef struct dti_c_value {
    dti_c_kind kind;
    uint32_t of;      /* the node that it is the value of: a view has another's */
    uint32_t last;    /* the node that reads it last */
    int64_t at, size; /* of a place, in floats */
} dti_c_value;

typedef struct dti_c_file {
    dti_base *base;
    dt_store *store;
    const dt_c_desc *desc;
    dt_graph *g;
    const char *name;
    int outputs;
    uint8_t *needed;
    dti_c_value *values; /* by node */
    uint32_t helpers;    /* of DTI_C_LIST */
    uint8_t maps[DTI_OP_COUNT];
    int64_t floats; /* of the array */
    dti_text body, constants;
    dt_result result;
} dti_c_file;

typedef bool dti_c_fn(dti_c_file *f, const dti_node *n);

static bool dti_c_refuse(dti_c_file *f, const dti_node *n, const char *why) {
    if (!f->result)
        f->result = dti_fail(
            f->base, DT_ERROR_UNSUPPORTED, "dt_c_save: %s, %s: %s", dti_op_info_of(n->op)->name,
            dti_tensor_print((dt_tensor){f->g, (uint32_t)(n - f->g->nodes)}).text, why);
    return false;
}

static const dti_node *dti_c_in(const dti_c_file *f, const dti_node *n, uint32_t k) {
    return &f->g->nodes[dti_input_id(f->g, n, k)];
}

/* ---- words */

/* Letters, digits and '_' of a name; others are '_'. */
static void dti_c_word(dti_text *to, const char *name) {
    for (; *name; name++) {
        const char c = *name;
        const bool fits =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        dti_text_add(to, "%c", fits ? c : '_');
    }
}

static void dti_c_float(dti_text *to, float value) {
    const size_t at = to->size;
    dti_text_add_number(to, (double)value);
    if (to->ok && !memchr(to->data + at, '.', to->size - at) &&
        !memchr(to->data + at, 'e', to->size - at))
        dti_text_add(to, ".0");
    dti_text_add(to, "f");
}

static void dti_c_value_word(dti_c_file *f, dti_text *to, uint32_t id) {
    const dti_c_value *v = &f->values[f->values[id].of];
    if (v->kind == DTI_C_PLACE)
        dti_text_add(to, "memory + %lld", (long long)v->at);
    else
        dti_text_add(to, "%s%u", v->kind == DTI_C_INPUT ? "in" : "constant", (unsigned)v->of);
}

/* The body's next call: "    dt_linear(memory + 16, in1". */
static void dti_c_call(dti_c_file *f, const dti_node *n, const char *name, uint32_t inputs) {
    dti_text_add(&f->body, "    %s(", name);
    dti_c_value_word(f, &f->body, (uint32_t)(n - f->g->nodes));
    for (uint32_t k = 0; k < inputs; k++) {
        dti_text_add(&f->body, ", ");
        dti_c_value_word(f, &f->body, dti_input_id(f->g, n, k));
    }
}

static void dti_c_numbers(dti_c_file *f, const int64_t *s, int count) {
    for (int i = 0; i < count; i++)
        dti_text_add(&f->body, "%s%lld", i ? ", " : "", (long long)s[i]);
}

/* ", (const int[]){...});" */
static void dti_c_sizes(dti_c_file *f, const int64_t *s, int count) {
    dti_text_add(&f->body, ", (const int[]){");
    dti_c_numbers(f, s, count);
    dti_text_add(&f->body, "});\n");
}

/* ---- rows */

/* In its input's place. */
static bool dti_c_same(dti_c_file *f, const dti_node *n) {
    return true;
}

static bool dti_c_linear(dti_c_file *f, const dti_node *n) {
    const dt_shape x = dti_c_in(f, n, 0)->shape, w = dti_c_in(f, n, 1)->shape;
    const int64_t s[3] = {dti_shape_elements(x) / w.dim[1], w.dim[1], w.dim[0]};
    dti_c_call(f, n, "dt_linear", n->count);
    dti_text_add(&f->body, n->count > 2 ? ", " : ", 0, ");
    dti_c_numbers(f, s, 3);
    dti_text_add(&f->body, ");\n");
    f->helpers |= DTI_C_ON(LINEAR);
    return true;
}

static bool dti_c_conv(dti_c_file *f, const dti_node *n) {
    const dt_shape x = dti_c_in(f, n, 0)->shape, w = dti_c_in(f, n, 1)->shape;
    const int32_t *i = n->attr.i;
    const int64_t s[15] = {w.dim[1],
                           x.dim[1],
                           x.dim[2],
                           n->shape.dim[0],
                           n->shape.dim[1],
                           n->shape.dim[2],
                           w.dim[2],
                           w.dim[3],
                           i[0],
                           i[1],
                           i[2],
                           i[3],
                           i[4],
                           i[5],
                           i[DTI_CONV_GROUPS]};
    dti_c_call(f, n, "dt_conv", n->count);
    if (n->count < 3)
        dti_text_add(&f->body, ", 0");
    dti_c_sizes(f, s, 15);
    f->helpers |= DTI_C_ON(CONV);
    return true;
}

static bool dti_c_pool(dti_c_file *f, const dti_node *n) {
    const dt_shape x = dti_c_in(f, n, 0)->shape;
    const int32_t *i = n->attr.i;
    const bool mean = n->op == DTI_OP_AVG_POOL2D;
    const bool adaptive = mean && i[DTI_POOL_MODE] == DTI_POOL_ADAPTIVE;
    const bool all = mean && !adaptive && i[DTI_POOL_MODE] != DTI_POOL_EXCLUDE_PAD;
    int64_t s[12] = {
        x.dim[0], x.dim[1], x.dim[2], n->shape.dim[1], n->shape.dim[2], i[0], i[1], i[2],
        i[3],     i[4],     i[5],     mean + all};
    for (int axis = 0; axis < 2 && adaptive; axis++) {
        if (x.dim[1 + axis] % n->shape.dim[1 + axis])
            return dti_c_refuse(f, n, "an adaptive mean of windows that differ in size");
        s[5 + axis] = s[7 + axis] = x.dim[1 + axis] / n->shape.dim[1 + axis];
    }
    if (all && (dti_onnx_pool_end(n, x, 0) > i[4] || dti_onnx_pool_end(n, x, 1) > i[5]))
        return dti_c_refuse(f, n, "ceil_mode of a mean that counts the padding");
    dti_c_call(f, n, "dt_pool", 1);
    dti_c_sizes(f, s, 12);
    f->helpers |= DTI_C_ON(POOL);
    return true;
}

/* The node of batch norm's running statistics; NULL: they are others. */
static const dti_node *dti_c_running(const dti_c_file *f, const dti_node *n) {
    const dti_node *stats = dti_c_in(f, n, 1);
    if (stats->op == DTI_OP_ALL_STATS)
        stats = dti_c_in(f, stats, 0);
    return stats->op == DTI_OP_BATCH_STATS ? stats : NULL;
}

static bool dti_c_norm(dti_c_file *f, const dti_node *n) {
    const dti_node *stats = dti_c_running(f, n);
    const int64_t channels = n->attr.i[DTI_NORM_CHANNELS], spatial = n->attr.i[DTI_NORM_SPATIAL];
    if (!stats)
        return dti_c_refuse(f, n, "batch norm is written, and no other");
    dti_c_call(f, n, "dt_norm", 1);
    for (uint32_t k = 0; k < 4; k++) {
        const dti_node *of = k < 2 ? stats : n;
        const uint32_t input = k < 2 ? 1 + k : k;
        dti_text_add(&f->body, input < of->count ? ", " : ", 0");
        if (input < of->count)
            dti_c_value_word(f, &f->body, dti_input_id(f->g, of, input));
    }
    dti_text_add(&f->body, ", ");
    dti_c_numbers(
        f, (const int64_t[]){dti_shape_elements(n->shape) / channels / spatial, channels, spatial},
        3);
    dti_text_add(&f->body, ", ");
    dti_c_float(&f->body, n->attr.f[0]);
    dti_text_add(&f->body, ");\n");
    f->helpers |= DTI_C_ON(NORM);
    return true;
}

static bool dti_c_softmax(dti_c_file *f, const dti_node *n) {
    const int64_t cols = n->shape.dim[n->shape.rank - 1];
    dti_c_call(f, n, "dt_softmax", 1);
    dti_text_add(&f->body, ", ");
    dti_c_numbers(f, (const int64_t[]){dti_shape_elements(n->shape) / cols, cols}, 2);
    dti_text_add(&f->body, ");\n");
    f->helpers |= DTI_C_ON(SOFTMAX);
    return true;
}

static bool dti_c_gather(dti_c_file *f, const dti_node *n) {
    const dt_shape table = dti_c_in(f, n, 0)->shape;
    const int64_t index = dti_shape_elements(dti_c_in(f, n, 1)->shape), rows = table.dim[0];
    dti_c_call(f, n, "dt_embedding", 2);
    dti_text_add(&f->body, ", ");
    dti_c_numbers(f, (const int64_t[]){index, rows, dti_shape_elements(table) / rows}, 3);
    dti_text_add(&f->body, ");\n");
    f->helpers |= DTI_C_ON(GATHER);
    return true;
}

static bool dti_c_unary(dti_c_file *f, const dti_node *n) {
    if (!dti_fits_f32((double)n->attr.f[0]) || !dti_fits_f32((double)n->attr.f[1]))
        return dti_c_refuse(f, n, "a number that is not finite");
    f->maps[n->op] = 1;
    f->helpers |= DTI_C_ON(MAP);
    dti_c_call(f, n, "dt_map", 1);
    dti_text_add(&f->body, ", %lld, ", (long long)dti_shape_elements(n->shape));
    dti_c_float(&f->body, n->attr.f[0]);
    dti_text_add(&f->body, ", ");
    dti_c_float(&f->body, n->attr.f[1]);
    dti_text_add(&f->body, ", map_%s);\n", dti_op_info_of(n->op)->name);
    return true;
}

/* Steps of a dense tensor along the axes of `to`, right-aligned in five; 0 where it has size 1. */
static void dti_c_steps(dt_shape x, dt_shape to, int64_t steps[DT_MAX_DIMS]) {
    int64_t all = 1;
    memset(steps, 0, DT_MAX_DIMS * sizeof *steps);
    for (int i = 1; i <= x.rank; i++) {
        steps[DT_MAX_DIMS - i] = x.dim[x.rank - i] == 1 && i <= to.rank ? 0 : all;
        all *= x.dim[x.rank - i];
    }
}

static void dti_c_dims(dt_shape x, int64_t dim[DT_MAX_DIMS]) {
    for (int i = 0; i < DT_MAX_DIMS; i++)
        dim[DT_MAX_DIMS - 1 - i] = i < x.rank ? x.dim[x.rank - 1 - i] : 1;
}

static bool dti_c_binary(dti_c_file *f, const dti_node *n) {
    int64_t s[3 * DT_MAX_DIMS];
    dti_c_dims(n->shape, s);
    dti_c_steps(dti_c_in(f, n, 0)->shape, n->shape, s + DT_MAX_DIMS);
    dti_c_steps(dti_c_in(f, n, 1)->shape, n->shape, s + 2 * DT_MAX_DIMS);
    f->maps[n->op] = 1;
    f->helpers |= DTI_C_ON(PAIR);
    dti_c_call(f, n, "dt_pair", 2);
    dti_text_add(&f->body, ", (const int[]){");
    dti_c_numbers(f, s, 3 * DT_MAX_DIMS);
    dti_text_add(&f->body, "}, map_%s);\n", dti_op_info_of(n->op)->name);
    return true;
}

/* Input k, element by element, to y from element `to` on, by steps; from its element `from` on. */
static void dti_c_copy(dti_c_file *f, const dti_node *n, uint32_t k, int64_t to, int64_t from,
                       const int64_t s[3 * DT_MAX_DIMS]) {
    dti_text_add(&f->body, "    dt_copy(");
    dti_c_value_word(f, &f->body, (uint32_t)(n - f->g->nodes));
    dti_text_add(&f->body, " + %lld, ", (long long)to);
    dti_c_value_word(f, &f->body, dti_input_id(f->g, n, k));
    dti_text_add(&f->body, " + %lld", (long long)from);
    dti_c_sizes(f, s, 3 * DT_MAX_DIMS);
    f->helpers |= DTI_C_ON(COPY);
}

/* A view of the input: permuted, a part of it, or repeated. */
static bool dti_c_view(dti_c_file *f, const dti_node *n) {
    const dt_shape x = dti_c_in(f, n, 0)->shape, none = {0};
    int64_t s[3 * DT_MAX_DIMS], plain[DT_MAX_DIMS], from = 0;
    const int first = DT_MAX_DIMS - n->shape.rank;
    dti_c_dims(n->shape, s);
    dti_c_steps(n->shape, none, s + DT_MAX_DIMS);
    dti_c_steps(x, n->op == DTI_OP_EXPAND ? n->shape : none, plain);
    memcpy(s + 2 * DT_MAX_DIMS, plain, sizeof plain);
    if (n->op == DTI_OP_SLICE)
        from = n->attr.dim[0] * plain[first + n->attr.i[0]];
    for (int i = 0; i < n->shape.rank && n->op == DTI_OP_PERMUTE; i++)
        s[2 * DT_MAX_DIMS + first + i] = plain[first + n->attr.dim[i]];
    dti_c_copy(f, n, 0, 0, from, s);
    return true;
}

static bool dti_c_place_in(dti_c_file *f, const dti_node *n, uint32_t k, int axis, int64_t at) {
    const dt_shape x = dti_c_in(f, n, k)->shape, none = {0};
    int64_t s[3 * DT_MAX_DIMS];
    dti_c_dims(x, s);
    dti_c_steps(n->shape, none, s + DT_MAX_DIMS);
    dti_c_steps(x, none, s + 2 * DT_MAX_DIMS);
    dti_c_copy(f, n, k, at * s[2 * DT_MAX_DIMS - n->shape.rank + axis], 0, s);
    return true;
}

static bool dti_c_concat(dti_c_file *f, const dti_node *n) {
    int64_t at = 0;
    for (uint32_t k = 0; k < n->count; k++) {
        dti_c_place_in(f, n, k, n->attr.i[0], at);
        at += dti_c_in(f, n, k)->shape.dim[n->attr.i[0]];
    }
    return true;
}

static bool dti_c_fill(dti_c_file *f, const dti_node *n) {
    if (n->op == DTI_OP_FILL && !dti_fits_f32((double)n->attr.f[0]))
        return dti_c_refuse(f, n, "a number that is not finite");
    dti_c_call(f, n, "dt_fill", 0);
    dti_text_add(&f->body, ", %lld, ", (long long)dti_shape_elements(n->shape));
    dti_c_float(&f->body, n->op == DTI_OP_FILL ? n->attr.f[0] : 0.0f);
    dti_text_add(&f->body, ");\n");
    f->helpers |= DTI_C_ON(FILL);
    return true;
}

static bool dti_c_pad(dti_c_file *f, const dti_node *n) {
    return dti_c_fill(f, n) && dti_c_place_in(f, n, 0, n->attr.i[1], n->attr.i[2]);
}

static dti_c_fn *const dti_c_rows[DTI_OP_COUNT] = {
#define DTI_X(id, needs, text) [DTI_OP_##id] = dti_c_unary,
    DTI_C_UNARY(DTI_X)
#undef DTI_X
#define DTI_X(id, text) [DTI_OP_##id] = dti_c_binary,
        DTI_C_BINARY(DTI_X)
#undef DTI_X
            [DTI_OP_RESHAPE] = dti_c_same,
    [DTI_OP_DETACH] = dti_c_same,
    [DTI_OP_COPY] = dti_c_same,
    [DTI_OP_DROPOUT] = dti_c_same,
    [DTI_OP_PERMUTE] = dti_c_view,
    [DTI_OP_SLICE] = dti_c_view,
    [DTI_OP_EXPAND] = dti_c_view,
    [DTI_OP_CONCAT] = dti_c_concat,
    [DTI_OP_PAD] = dti_c_pad,
    [DTI_OP_FILL] = dti_c_fill,
    [DTI_OP_TRAIN_MODE] = dti_c_fill,
    [DTI_OP_LINEAR] = dti_c_linear,
    [DTI_OP_CONV2D] = dti_c_conv,
    [DTI_OP_MAX_POOL2D] = dti_c_pool,
    [DTI_OP_AVG_POOL2D] = dti_c_pool,
    [DTI_OP_NORM] = dti_c_norm,
    [DTI_OP_SOFTMAX] = dti_c_softmax,
    [DTI_OP_EMBEDDING] = dti_c_gather,
};
