/* A model's C file while it is written (c_save.c), and the calls of its rows. */

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
    dti_c_value *values;        /* by node */
    uint32_t helpers;           /* of DTI_C_LIST */
    int64_t floats;             /* of the array */
    dti_text about, parameters; /* the comment about the parameters; the function's parameters */
    dti_text maps, body, constants;
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

static bool dti_c_letter(char c) { /* or a digit */
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Letters, digits and '_' of a name; others are '_'. */
static void dti_c_word(dti_text *to, const char *name) {
    for (; *name; name++)
        dti_text_add(to, "%c", dti_c_letter(*name) ? *name : '_');
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

/* ", in1", or ", 0" for a missing input. */
static void dti_c_input(dti_c_file *f, const dti_node *n, uint32_t k) {
    dti_text_add(&f->body, k < n->count ? ", " : ", 0");
    if (k < n->count)
        dti_c_value_word(f, &f->body, dti_input_id(f->g, n, k));
}

/* The body's next call, of a function of DTI_C_LIST: "    dt_linear(memory + 16, in1". */
static void dti_c_call(dti_c_file *f, const dti_node *n, uint32_t helper, const char *name,
                       uint32_t inputs) {
    f->helpers |= helper;
    dti_text_add(&f->body, "    %s(", name);
    dti_c_value_word(f, &f->body, (uint32_t)(n - f->g->nodes));
    for (uint32_t k = 0; k < inputs; k++)
        dti_c_input(f, n, k);
}

static void dti_c_numbers(dti_c_file *f, const char *before, const int64_t *s, int count,
                          const char *after) {
    for (int i = 0; i < count; i++)
        dti_text_add(&f->body, "%s%lld", i ? ", " : before, (long long)s[i]);
    dti_text_add(&f->body, "%s", after);
}

/* ", (const int[]){...});" */
static void dti_c_sizes(dti_c_file *f, const int64_t *s, int count) {
    dti_c_numbers(f, ", (const int[]){", s, count, "});\n");
}

/* ---- rows */

/* In its input's place. */
static bool dti_c_same(dti_c_file *f, const dti_node *n) {
    return true;
}

static bool dti_c_linear(dti_c_file *f, const dti_node *n) {
    const dt_shape x = dti_c_in(f, n, 0)->shape, w = dti_c_in(f, n, 1)->shape;
    const int64_t s[3] = {dti_shape_elements(x) / w.dim[1], w.dim[1], w.dim[0]};
    dti_c_call(f, n, DTI_C_ON(LINEAR), "dt_linear", 3);
    dti_c_numbers(f, ", ", s, 3, ");\n");
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
    dti_c_call(f, n, DTI_C_ON(CONV), "dt_conv", 3);
    dti_c_sizes(f, s, 15);
    return true;
}

static bool dti_c_pool(dti_c_file *f, const dti_node *n) {
    const dt_shape x = dti_c_in(f, n, 0)->shape;
    dti_pool_window w;
    const char *why = dti_export_pool(n, x, &w);
    if (why)
        return dti_c_refuse(f, n, why);
    const int64_t s[5] = {x.dim[0], x.dim[1], x.dim[2], n->shape.dim[1], n->shape.dim[2]};
    dti_c_call(f, n, DTI_C_ON(POOL), "dt_pool", 1);
    dti_c_numbers(f, ", (const int[]){", s, 5, ", ");
    dti_c_numbers(f, "", w.kernel, 2, ", ");
    dti_c_numbers(f, "", w.stride, 2, ", ");
    dti_c_numbers(f, "", w.padding, 2, "");
    dti_text_add(&f->body, ", %d});\n", w.mean + w.counts);
    return true;
}

/* The node of batch norm's running statistics; NULL: they are others. */
static const dti_node *dti_c_running(const dti_c_file *f, const dti_node *n) {
    const dti_node *stats = &f->g->nodes[dti_export_stats(f->g, n)];
    return stats->op == DTI_OP_BATCH_STATS ? stats : NULL;
}

static bool dti_c_norm(dti_c_file *f, const dti_node *n) {
    const dti_node *stats = dti_c_running(f, n);
    const int64_t channels = n->attr.i[DTI_NORM_CHANNELS], spatial = n->attr.i[DTI_NORM_SPATIAL];
    if (!stats)
        return dti_c_refuse(f, n, "only batch norm is supported");
    const int64_t s[3] = {dti_shape_elements(n->shape) / channels / spatial, channels, spatial};
    dti_c_call(f, n, DTI_C_ON(NORM), "dt_norm", 1);
    for (uint32_t k = 0; k < 4; k++)
        dti_c_input(f, k < 2 ? stats : n, k < 2 ? 1 + k : k);
    dti_c_numbers(f, ", ", s, 3, ", ");
    dti_c_float(&f->body, n->attr.f[0]);
    dti_text_add(&f->body, ");\n");
    return true;
}

static bool dti_c_softmax(dti_c_file *f, const dti_node *n) {
    const int64_t cols = n->shape.dim[n->shape.rank - 1];
    const int64_t s[2] = {dti_shape_elements(n->shape) / cols, cols};
    dti_c_call(f, n, DTI_C_ON(SOFTMAX), "dt_softmax", 1);
    dti_c_numbers(f, ", ", s, 2, ");\n");
    return true;
}

static bool dti_c_gather(dti_c_file *f, const dti_node *n) {
    const dt_shape table = dti_c_in(f, n, 0)->shape;
    const int64_t index = dti_shape_elements(dti_c_in(f, n, 1)->shape), rows = table.dim[0];
    const int64_t s[3] = {index, rows, dti_shape_elements(table) / rows};
    dti_c_call(f, n, DTI_C_ON(GATHER), "dt_embedding", 2);
    dti_c_numbers(f, ", ", s, 3, ");\n");
    return true;
}

static bool dti_c_unary(dti_c_file *f, const dti_node *n) {
    if (!dti_fits_f32((double)n->attr.f[0]) || !dti_fits_f32((double)n->attr.f[1]))
        return dti_c_refuse(f, n, "a number that is not finite");
    dti_c_call(f, n, DTI_C_ON(MAP), "dt_map", 1);
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
    dti_c_call(f, n, DTI_C_ON(PAIR), "dt_pair", 2);
    dti_c_numbers(f, ", (const int[]){", s, 3 * DT_MAX_DIMS, "}");
    dti_text_add(&f->body, ", map_%s);\n", dti_op_info_of(n->op)->name);
    return true;
}

/* One value of another, or of two; the first node of an op writes its function. */
static bool dti_c_map(dti_c_file *f, const dti_node *n) {
    static const struct {
        uint32_t op, needs;
        const char *expression;
    } maps[] = {
#define DTI_X(id, needs, expression) {DTI_OP_##id, needs, expression},
        DTI_C_MAPS(DTI_X)
#undef DTI_X
    };
    const dti_node *before = n - 1;
    size_t i = 0;
    while (before > f->g->nodes && !(before->op == n->op && f->needed[before - f->g->nodes]))
        before--;
    while (maps[i].op != n->op)
        i++;
    if (before == f->g->nodes) {
        f->helpers |= maps[i].needs;
        dti_text_add(&f->maps,
                     "static float map_%s(float x, float p, float q) {\n    (void)p, (void)q;\n"
                     "    return %s;\n}\n\n",
                     dti_op_info_of(n->op)->name, maps[i].expression);
    }
    return n->count > 1 ? dti_c_binary(f, n) : dti_c_unary(f, n);
}

/* Input k, element by element, to y from element `to` on, by steps; from its element `from` on. */
static void dti_c_copy(dti_c_file *f, const dti_node *n, uint32_t k, int64_t to, int64_t from,
                       const int64_t s[3 * DT_MAX_DIMS]) {
    dti_c_call(f, n, DTI_C_ON(COPY), "dt_copy", 0);
    dti_text_add(&f->body, " + %lld", (long long)to);
    dti_c_input(f, n, k);
    dti_text_add(&f->body, " + %lld", (long long)from);
    dti_c_sizes(f, s, 3 * DT_MAX_DIMS);
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
    dti_c_call(f, n, DTI_C_ON(FILL), "dt_fill", 0);
    dti_text_add(&f->body, ", %lld, ", (long long)dti_shape_elements(n->shape));
    dti_c_float(&f->body, n->op == DTI_OP_FILL ? n->attr.f[0] : 0.0f);
    dti_text_add(&f->body, ");\n");
    return true;
}

static bool dti_c_pad(dti_c_file *f, const dti_node *n) {
    return dti_c_fill(f, n) && dti_c_place_in(f, n, 0, n->attr.i[1], n->attr.i[2]);
}

static dti_c_fn *const dti_c_rows[DTI_OP_COUNT] = {
#define DTI_X(id, needs, text) [DTI_OP_##id] = dti_c_map,
    DTI_C_MAPS(DTI_X)
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
