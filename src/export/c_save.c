/* A model as one C file: a function that computes the outputs of one sample. Weights are constants,
 * and all values between lie in one static array, placed by their lifetimes. It needs a C99
 * compiler and its math.h, and allocates nothing. The sums and functions are those of the CPU's
 * portable class (c_text.h). A row without a function in C is an error that names it. */

/* ---- needed values, their readers, and their places */

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
        return dti_c_refuse(f, n, "an integer constant");
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

/* Of the function: declared "const float *in" or "float *out", followed by its number. */
static void dti_c_parameter(dti_c_file *f, uint32_t id, const char *declared, uint32_t number) {
    const dti_node *n = &f->g->nodes[id];
    const bool input = n->op == DTI_OP_INPUT;
    dti_text_add(&f->about, " * %s%u: ", strchr(declared, '*') + 1, (unsigned)number);
    dti_c_word(&f->about, input ? n->label : "");
    dti_text_add(&f->about, "%s%s\n", input ? ", " : "", dti_shape_print(n->shape, false).text);
    dti_text_add(&f->parameters, "%s%s%u", f->parameters.size ? ", " : "", declared,
                 (unsigned)number);
}

static bool dti_c_node(dti_c_file *f, uint32_t id) {
    const dti_node *n = &f->g->nodes[id];
    const bool index = n->op == DTI_OP_INPUT && n->dtype == DT_I32;
    if (dti_shape_elements(n->shape) == 0)
        return dti_c_refuse(f, n, "it has no elements");
    if (n->dtype != DT_F32 && !index)
        return dti_c_refuse(f, n, "only f32 is supported, and i32 inputs as indices");
    for (uint32_t k = 0; k < n->count; k++) {
        if (dti_c_in(f, n, k)->dtype != DT_F32 && n->op != DTI_OP_EMBEDDING)
            return dti_c_refuse(f, n, "i32 is only supported for indices of dt_embedding");
    }
    dti_c_place(f, id);
    if (f->values[id].kind == DTI_C_CONSTANT)
        return dti_c_constant(f, id);
    if (n->op == DTI_OP_INPUT) {
        dti_c_parameter(f, id, index ? "const int32_t *in" : "const float *in", id);
        return true;
    }
    if (!dti_c_rows[n->op])
        return dti_c_refuse(f, n, "this op is not supported");
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
        dti_c_parameter(f, id, "float *out", (uint32_t)i + 1);
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
    for (int i = DTI_C_COUNT - 1; i >= 0; i--)
        f->helpers |= f->helpers >> i & 1 ? all[i].needs : 0;
    for (int i = 0; i < DTI_C_COUNT; i++) {
        if (f->helpers >> i & 1)
            dti_text_add(to, "%s\n", all[i].text);
    }
}

static dt_result dti_c_write(dti_c_file *f, const char *path) {
    DTI_HAVE(f->about.ok && f->parameters.ok && f->maps.ok && f->body.ok && f->constants.ok);
    dti_text text = dti_text_open(f->base);
    dti_text_add(&text,
                 "/* Made by dtrain %s. Compile it as C99 (-std=c99, or -ffp-contract=off):\n * "
                 "a multiplication that is fused with an addition has other bits. */\n"
                 "#include <math.h>\n#include <stdint.h>\n\n",
                 DT_VERSION);
    dti_c_helpers(f, &text);
    dti_text_add_bytes(&text, f->maps.data, f->maps.size);
    dti_text_add_bytes(&text, f->constants.data, f->constants.size);
    if (f->floats)
        dti_text_add(&text, "\nstatic float memory[%lld];\n\n", (long long)f->floats);
    dti_text_add(&text, "/* One sample:\n%s */\nvoid %s(%s);\n", f->about.data, f->name,
                 f->parameters.data);
    dti_text_add(&text, "void %s(%s) {\n%s}\n", f->name, f->parameters.data, f->body.data);
    return dti_text_write(&text, path);
}

/* Names that C or the file itself uses. */
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
    for (const char *at = name; *at && fits; at++)
        fits = dti_c_letter(*at);
    return fits && !dti_c_name_taken(name);
}

static dt_result dti_c_check(dti_c_file *f) {
    const dt_tensor *y = f->desc->outputs;
    if (!dti_c_name_fits(f->name))
        return dti_fail(
            f->base, DT_ERROR_INVALID,
            "dt_c_save: '%s' is not a name for a function in C; use letters, digits and '_', no "
            "keyword, and no name of the file's ('dt_', 'map_', 'constant', memory)",
            f->name);
    DTI_TRY(dti_export_outputs(f->store, "dt_c_save", y, &f->outputs));
    for (int i = 0; i < f->outputs; i++)
        if (dti_tensor_dtype(y[i]) != DT_F32)
            return dti_fail(f->base, DT_ERROR_UNSUPPORTED,
                            "dt_c_save: .outputs[%d] is %s; it must be f32", i,
                            dti_dtype_name(dti_tensor_dtype(y[i])));
    return DT_OK;
}

static dt_result dti_c_make(dti_c_file *f, const char *path) {
    const dt_program_desc program = {.label = "dt_c_save"};
    f->result = dti_graph_replay(f->store->graph, &program, &f->g);
    if (f->result)
        return f->result;
    f->needed = dti_alloc_array(f->base, f->g->count, sizeof *f->needed);
    f->values = dti_alloc_array(f->base, f->g->count, sizeof *f->values);
    DTI_HAVE(f->needed && f->values);
    dti_c_need(f);
    dti_c_nodes(f);
    return f->result ? f->result : dti_c_write(f, path);
}

DTI_PUBLIC(dt_c_save, (dt_store * store, const char *path, const dt_c_desc *desc), store,
           DTI_OF(dt_store), (store, path, desc)) {
    dti_base *base = dti_store_base(store);
    DTI_NEED(base, desc);
    DTI_NEED(base, path);
    dti_c_file f = {.base = base, .store = store, .desc = desc};
    f.name = desc->name ? desc->name : "model";
    f.about = f.parameters = f.maps = f.body = f.constants = dti_text_open(base);
    dt_result result = dti_c_check(&f);
    if (!result)
        result = dti_c_make(&f, path);
    DTI_FREE(base, f.about.data, f.parameters.data, f.maps.data, f.body.data, f.constants.data,
             f.needed, f.values);
    if (f.g)
        dt_graph_destroy(f.g);
    return result;
}
