/* A model as one C file: a function that computes outputs of one sample, weights as constants, all
 * values between in one static array, where lifetimes decide who lies where. It needs a C99
 * compiler and its math.h, and allocates nothing. The sums and functions are those of the CPU's
 * portable class (c_text.h). Refuses rows that it has no function for, by name. */

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

static bool dti_c_same(dti_c_file *f, const dti_node *n) {
    (void)f, (void)n; /* in its input's place */
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
    dti_c_call(f, n, "dt_gather", 2);
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
    [DTI_OP_GATHER] = dti_c_gather,
};

/* ---- what is needed, by whom, and where it lies */

static void dti_c_reads(dti_c_file *f, uint32_t reader, uint32_t id) {
    f->needed[id] = 1;
    f->values[id].last = DTI_MAX(f->values[id].last, reader);
}

static void dti_c_need(dti_c_file *f) {
    for (int i = 0; i < f->outputs; i++)
        dti_c_reads(f, f->g->count, f->desc->outputs[i].id);
    for (uint32_t id = f->g->count - 1; id > 0; id--) {
        const dti_node *n = &f->g->nodes[id];
        const dti_node *running = n->op == DTI_OP_NORM ? dti_c_running(f, n) : NULL;
        const bool view = dti_c_rows[n->op] == dti_c_same;
        for (uint32_t k = 0; k < n->count && f->needed[id]; k++) {
            if (running && k == 1) {
                dti_c_reads(f, id, dti_input_id(f->g, running, 1));
                dti_c_reads(f, id, dti_input_id(f->g, running, 2));
            } else {
                dti_c_reads(f, view ? f->values[id].last : id, dti_input_id(f->g, n, k));
            }
        }
    }
}

/* The first gap among values that are alive. */
static int64_t dti_c_gap(const dti_c_file *f, uint32_t id, int64_t size) {
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t k = 1; k < id; k++) {
            const dti_c_value *v = &f->values[k];
            if (v->kind != DTI_C_PLACE || v->of != k || v->last < id || v->at >= at + size ||
                at >= v->at + v->size)
                continue;
            at = v->at + v->size;
            moved = true;
        }
    }
    return at;
}

static void dti_c_place(dti_c_file *f, uint32_t id) {
    const dti_node *n = &f->g->nodes[id];
    dti_c_value *v = &f->values[id];
    v->of = id;
    v->size = dti_shape_elements(n->shape);
    if (n->op == DTI_OP_INPUT && !n->values) {
        v->kind = DTI_C_INPUT;
    } else if (n->op == DTI_OP_INPUT || n->op == DTI_OP_PARAM) {
        v->kind = DTI_C_CONSTANT;
    } else if (dti_c_rows[n->op] == dti_c_same) {
        v->of = f->values[dti_input_id(f->g, n, 0)].of;
    } else {
        v->kind = DTI_C_PLACE;
        v->at = dti_c_gap(f, id, v->size);
        f->floats = DTI_MAX(f->floats, v->at + v->size);
    }
}

/* ---- constants */

static bool dti_c_constant_data(dti_c_file *f, uint32_t id, const float *data, int64_t count) {
    const dti_node *n = &f->g->nodes[id];
    dti_text *to = &f->constants;
    dti_text_add(to, "/* %s */\nstatic const float constant%u[%lld] = {", n->label, (unsigned)id,
                 (long long)count);
    for (int64_t i = 0; i < count; i++) {
        if (!dti_fits_f32((double)data[i]))
            return dti_c_refuse(f, n, "a value that is not finite");
        dti_text_add(to, i % 8 ? ", " : i ? ",\n    " : "\n    ");
        dti_c_float(to, data[i]);
    }
    dti_text_add(to, "};\n");
    return true;
}

static bool dti_c_constant(dti_c_file *f, uint32_t id) {
    const dti_node *n = &f->g->nodes[id];
    const int64_t count = dti_shape_elements(n->shape);
    const dt_value_kind kind = f->desc->averaged ? DT_VALUE_AVERAGE : DT_VALUE_PARAM;
    if (strstr(n->label, "*/"))
        return dti_c_refuse(f, n, "a name that would end a comment");
    if (n->values && n->dtype != DT_F32)
        return dti_c_refuse(f, n, "a constant of whole numbers");
    if (n->values)
        return dti_c_constant_data(f, id, n->values, count);
    float *data = dti_alloc_array(f->base, (size_t)count, sizeof *data);
    if (!data) {
        f->result = DT_ERROR_MEMORY;
        return false;
    }
    f->result = dt_store_read(f->store, n->attr.i[0], kind, data, (size_t)count * sizeof *data);
    const bool good = !f->result && dti_c_constant_data(f, id, data, count);
    dti_free(f->base, data);
    return good;
}

/* ---- the nodes */

static bool dti_c_node(dti_c_file *f, uint32_t id) {
    const dti_node *n = &f->g->nodes[id];
    const bool index = n->op == DTI_OP_INPUT && n->dtype == DT_I32;
    if (dti_shape_elements(n->shape) == 0)
        return dti_c_refuse(f, n, "it has no elements");
    if (n->dtype != DT_F32 && !index)
        return dti_c_refuse(f, n, "f32 is written, and indices that are inputs");
    for (uint32_t k = 0; k < n->count; k++) {
        if (dti_c_in(f, n, k)->dtype != DT_F32 && n->op != DTI_OP_GATHER)
            return dti_c_refuse(f, n, "whole numbers are indices of dt_gather alone");
    }
    dti_c_place(f, id);
    if (f->values[id].kind == DTI_C_CONSTANT)
        return dti_c_constant(f, id);
    if (n->op == DTI_OP_INPUT)
        return true;
    if (!dti_c_rows[n->op])
        return dti_c_refuse(f, n, "there is no function in C for it");
    return dti_c_rows[n->op](f, n);
}

static void dti_c_nodes(dti_c_file *f) {
    for (uint32_t id = 1; id < f->g->count && !f->result; id++) {
        if (f->needed[id])
            dti_c_node(f, id);
    }
    for (int i = 0; i < f->outputs && !f->result; i++) {
        const uint32_t id = f->desc->outputs[i].id;
        const int64_t s[3 * DT_MAX_DIMS] = {1, 1, 1, 1, f->values[id].size, 0, 0, 0, 0, 1, 0,
                                            0, 0, 0, 1};
        dti_text_add(&f->body, "    dt_copy(out%d, ", i + 1);
        dti_c_value_word(f, &f->body, id);
        dti_c_sizes(f, s, 3 * DT_MAX_DIMS);
        f->helpers |= DTI_C_ON(COPY);
    }
}

/* ---- the file */

static void dti_c_helpers(dti_c_file *f, dti_text *to) {
    static const struct {
        uint32_t needs;
        const char *text;
    } all[] = {
#define DTI_X(id, needs, text) {needs, text},
        DTI_C_LIST(DTI_X)
#undef DTI_X
    };
#define DTI_X(id, needs, text) f->helpers |= f->maps[DTI_OP_##id] ? (needs) : 0;
    DTI_C_UNARY(DTI_X)
#undef DTI_X
    for (int i = DTI_C_COUNT - 1; i >= 0; i--)
        f->helpers |= f->helpers >> i & 1 ? all[i].needs : 0;
    for (int i = 0; i < DTI_C_COUNT; i++) {
        if (f->helpers >> i & 1)
            dti_text_add(to, "%s\n", all[i].text);
    }
}

static void dti_c_maps(const dti_c_file *f, dti_text *to) {
#define DTI_X(id, needs, expression)                                                               \
    if (f->maps[DTI_OP_##id])                                                                      \
        dti_text_add(to,                                                                           \
                     "static float map_%s(float x, float p, float q) {\n    (void)p, (void)q;\n"   \
                     "    return %s;\n}\n\n",                                                      \
                     dti_op_info_of(DTI_OP_##id)->name, expression);
    DTI_C_UNARY(DTI_X)
#undef DTI_X
#define DTI_X(id, expression)                                                                      \
    if (f->maps[DTI_OP_##id])                                                                      \
        dti_text_add(to, "static float map_%s(float a, float b) {\n    return %s;\n}\n\n",         \
                     dti_op_info_of(DTI_OP_##id)->name, expression);
    DTI_C_BINARY(DTI_X)
#undef DTI_X
}

/* "void model(const float *in1, float *out1)", with what is what above. */
static void dti_c_signature(const dti_c_file *f, dti_text *to) {
    const char *comma = "";
    dti_text_add(to, "/* One sample:\n");
    for (uint32_t id = 1; id < f->g->count; id++) {
        const dti_node *n = &f->g->nodes[id];
        if (!f->needed[id] || n->op != DTI_OP_INPUT || n->values)
            continue;
        dti_text_add(to, " * in%u: ", (unsigned)id);
        dti_c_word(to, n->label);
        dti_text_add(to, ", %s\n", dti_shape_print(n->shape, false).text);
    }
    for (int i = 0; i < f->outputs; i++)
        dti_text_add(to, " * out%d: %s\n", i + 1,
                     dti_shape_print(f->g->nodes[f->desc->outputs[i].id].shape, false).text);
    dti_text_add(to, " */\nvoid %s(", f->name);
    for (uint32_t id = 1; id < f->g->count; id++) {
        const dti_node *n = &f->g->nodes[id];
        if (!f->needed[id] || n->op != DTI_OP_INPUT || n->values)
            continue;
        dti_text_add(to, "%sconst %s *in%u", comma, n->dtype == DT_I32 ? "int32_t" : "float",
                     (unsigned)id);
        comma = ", ";
    }
    for (int i = 0; i < f->outputs; i++, comma = ", ")
        dti_text_add(to, "%sfloat *out%d", comma, i + 1);
    dti_text_add(to, ")");
}

static dt_result dti_c_write(dti_c_file *f, const char *path) {
    dti_text text = dti_text_open(f->base);
    dti_text_add(&text,
                 "/* Made by dtrain %s. Compile it as C99 (-std=c99, or -ffp-contract=off): a "
                 "product and a sum that a\n * compiler makes one of have other bits. */\n"
                 "#include <math.h>\n#include <stdint.h>\n\n",
                 DT_VERSION);
    dti_c_helpers(f, &text);
    dti_c_maps(f, &text);
    if (f->constants.size)
        dti_text_add_bytes(&text, f->constants.data, f->constants.size);
    if (f->floats)
        dti_text_add(&text, "\nstatic float memory[%lld];\n\n", (long long)f->floats);
    dti_c_signature(f, &text);
    dti_text_add(&text, ";\n");
    dti_c_signature(f, &text);
    dti_text_add(&text, " {\n");
    dti_text_add_bytes(&text, f->body.data, f->body.size);
    dti_text_add(&text, "}\n");
    dt_result result = text.ok && f->body.ok && f->constants.ok ? DT_OK : DT_ERROR_MEMORY;
    if (!result)
        result = dti_file_write(f->base, path, text.data, text.size);
    dti_text_free(&text);
    return result;
}

/* What C or the file itself means something else by. */
static bool dti_c_name_taken(const char *name) {
    static const char words[] =
        " auto break case char const continue default do double else enum extern float for goto if "
        "inline int long register restrict return short signed sizeof static struct switch typedef "
        "union unsigned void volatile while memory ";
    static const char *const own[] = {"dt_", "map_", "constant"};
    const size_t size = strlen(name);
    bool taken = false;
    for (size_t i = 0; i < DTI_COUNT(own); i++)
        taken = taken || !strncmp(name, own[i], strlen(own[i]));
    for (const char *at = words; !taken && (at = strstr(at, name)); at++)
        taken = at[-1] == ' ' && at[size] == ' ';
    return taken;
}

static bool dti_c_name_fits(const char *name) {
    bool fits = name[0] && !(name[0] >= '0' && name[0] <= '9');
    const char *all = name;
    for (; *name && fits; name++)
        fits = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
               (*name >= '0' && *name <= '9') || *name == '_';
    return fits && !dti_c_name_taken(all);
}

static dt_result dti_c_check(dti_c_file *f) {
    const dt_tensor *y = f->desc->outputs;
    if (!dti_c_name_fits(f->name))
        return dti_fail(
            f->base, DT_ERROR_INVALID,
            "dt_c_save: '%s' is no name of a function in C: letters, digits and '_', no "
            "word of C, and none that the file has ('dt_', 'map_', 'constant', memory)",
            f->name);
    for (; f->outputs < DT_MAX_OUTPUTS && dti_is_set(y[f->outputs]); f->outputs++) {
        if (y[f->outputs].graph != f->store->graph || dti_is_nil(y[f->outputs]))
            return dti_fail(
                f->base, DT_ERROR_INVALID,
                "dt_c_save: output %d is nil, or a tensor of another graph than the store's",
                f->outputs + 1);
        if (dt_tensor_dtype(y[f->outputs]) != DT_F32)
            return dti_fail(f->base, DT_ERROR_UNSUPPORTED,
                            "dt_c_save: output %d is %s; f32 is written", f->outputs + 1,
                            dti_dtype_name(dt_tensor_dtype(y[f->outputs])));
        if (dti_node_of(y[f->outputs])->term)
            return dti_fail(f->base, DT_ERROR_UNSUPPORTED,
                            "dt_c_save: output %d is a loss or a metric; give what it is made of",
                            f->outputs + 1);
    }
    return f->outputs
               ? DT_OK
               : dti_fail(f->base, DT_ERROR_INVALID, "dt_c_save: no outputs: dt_c_desc.outputs");
}

static dt_result dti_c_make(dti_c_file *f, const char *path) {
    const dt_program_desc program = {.label = "dt_c_save"};
    f->result = dti_graph_replay(f->store->graph, &program, &f->g);
    if (f->result)
        return f->result;
    f->needed = dti_alloc_array(f->base, f->g->count, sizeof *f->needed);
    f->values = dti_alloc_array(f->base, f->g->count, sizeof *f->values);
    if (!f->needed || !f->values)
        return DT_ERROR_MEMORY;
    dti_c_need(f);
    dti_c_nodes(f);
    return f->result ? f->result : dti_c_write(f, path);
}

DT_API dt_result dt_c_save(dt_store *store, const dt_c_desc *desc, const char *path) {
    DTI_NEED(NULL, store);
    dti_base *base = dti_store_base(store);
    DTI_NEED(base, desc);
    DTI_NEED(base, path);
    dti_c_file f = {.base = base, .store = store, .desc = desc};
    f.name = desc->name ? desc->name : "model";
    f.body = f.constants = dti_text_open(base);
    dt_result result = store->graph->error[0]
                           ? dti_fail(base, DT_ERROR_INVALID, DTI_GRAPH_ERROR, store->graph->error)
                           : dti_c_check(&f);
    if (!result)
        result = dti_c_make(&f, path);
    dti_text_free(&f.body);
    dti_text_free(&f.constants);
    dti_free(base, f.needed);
    dti_free(base, f.values);
    if (f.g)
        dt_graph_destroy(f.g);
    return result;
}
