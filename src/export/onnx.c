/* A model as an ONNX file (ModelProto of onnx.proto). It has the ops of a program that does not
 * train, weights as initializers, and the dimension "batch" for samples. The graph is put together
 * in memory. Weights follow one after the other, so the file is never in memory as a whole. An op
 * without an ONNX operator is an error that names it; nothing is written then. */

enum { DTI_ONNX_M_IR = 1, DTI_ONNX_M_PRODUCER, DTI_ONNX_M_VERSION, DTI_ONNX_M_GRAPH = 7 };
enum { DTI_ONNX_G_NAME = 2, DTI_ONNX_G_INPUT = 11, DTI_ONNX_G_OUTPUT };
enum { DTI_ONNX_M_OPSETS = 8, DTI_ONNX_IR = 8, DTI_ONNX_OPSET_VERSION = 2 };
#define DTI_ONNX_BYTES_MAX INT32_MAX /* of a file in protocol buffers */

/* The parts of the file, in its order. */
typedef struct dti_onnx_file {
    dti_onnx o;
    dt_store *store;
    const dt_onnx_desc *desc;
    dt_value_kind kind;
    int outputs;
    const char *names[DT_MAX_OUTPUTS];
    char own[DT_MAX_OUTPUTS][16];
    dti_text head, values; /* the bytes before a weight's values; inputs and outputs */
    uint64_t weights;      /* bytes of all initializers that are parameters */
} dti_onnx_file;

/* ---- the requested outputs */

static dt_result dti_export_output(const dt_store *store, const char *file, dt_tensor x, int i) {
    dti_base *base = dti_store_base(store);
    if (x.graph != store->graph || dti_is_nil(x))
        return dti_fail(base, DT_ERROR_INVALID,
                        "%s: .outputs[%d] is nil, or a tensor of another graph than the store's",
                        file, i);
    if (dti_node_of(x)->term)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "%s: .outputs[%d], %s, is a loss or a metric; give its input", file, i,
                        dti_tensor_name(x).text);
    return DT_OK;
}

/* How many outputs a file has, whatever its kind. */
static dt_result dti_export_outputs(const dt_store *store, const char *file, const dt_tensor *y,
                                    int *count) {
    if (store->graph->error[0])
        return dti_fail(dti_store_base(store), DT_ERROR_INVALID, DTI_GRAPH_ERROR,
                        store->graph->error);
    for (*count = 0; *count < DT_MAX_OUTPUTS && dti_is_set(y[*count]); ++*count)
        DTI_TRY(dti_export_output(store, file, y[*count], *count));
    for (int i = *count; i < DT_MAX_OUTPUTS; i++)
        if (dti_is_set(y[i]))
            return dti_fail(dti_store_base(store), DT_ERROR_INVALID,
                            "%s: .outputs[%d] comes after a nil one", file, i);
    return *count ? DT_OK
                  : dti_fail(dti_store_base(store), DT_ERROR_INVALID,
                             "%s: .outputs is empty; give at least one tensor", file);
}

static dt_result dti_onnx_check(dti_onnx_file *f) {
    DTI_TRY(dti_export_outputs(f->store, "dt_onnx_save", f->desc->outputs, &f->outputs));
    for (int i = f->outputs; i < DT_MAX_OUTPUTS; i++)
        if (f->desc->names[i])
            return dti_fail(
                f->o.base, DT_ERROR_INVALID,
                "dt_onnx_save: .names[%d] is set, but there is no .outputs of this index", i);
    return DT_OK;
}

/* ---- names: those of inputs, parameters and outputs are the application's */

static void dti_onnx_name_outputs(dti_onnx_file *f) {
    for (int i = 0; i < f->outputs; i++) {
        const dti_node *n = dti_node_of(f->desc->outputs[i]);
        const bool leaf = n->op == DTI_OP_INPUT || n->op == DTI_OP_PARAM;
        snprintf(f->own[i], sizeof f->own[i], i ? "output%d" : "output", i + 1);
        f->names[i] = f->desc->names[i]   ? f->desc->names[i]
                      : n->label && !leaf ? n->label
                                          : f->own[i];
    }
}

static bool dti_onnx_name_taken(const dti_onnx_file *f, int i) {
    const dt_graph *g = f->store->graph;
    bool taken = dti_graph_find(g, DTI_OP_INPUT, f->names[i]) ||
                 dti_graph_find(g, DTI_OP_PARAM, f->names[i]);
    for (int k = 0; k < i; k++)
        taken = taken || !strcmp(f->names[k], f->names[i]);
    return taken;
}

static dt_result dti_onnx_name_fits(const dti_onnx_file *f, const char *name) {
    if (name[0] && strncmp(name, "dt:", 3) != 0 && dti_utf8_valid(name, strlen(name)))
        return DT_OK;
    return dti_fail(f->o.base, DT_ERROR_INVALID,
                    "dt_onnx_save: the name '%s' is not valid; it must be UTF-8, not empty, and "
                    "not begin with 'dt:'",
                    name);
}

static dt_result dti_onnx_check_names(dti_onnx_file *f) {
    const dt_graph *g = f->o.g;
    dti_onnx_name_outputs(f);
    for (int i = 0; i < f->outputs; i++) {
        DTI_TRY(dti_onnx_name_fits(f, f->names[i]));
        if (dti_onnx_name_taken(f, i))
            return dti_fail(f->o.base, DT_ERROR_INVALID,
                            "dt_onnx_save: .outputs[%d] would have the name '%s' of another "
                            "tensor; give it another in .names",
                            i, f->names[i]);
    }
    for (uint32_t id = 1; id < g->count; id++) {
        const dti_node *n = &g->nodes[id];
        if (!f->o.needed[id] || n->values || (n->op != DTI_OP_INPUT && n->op != DTI_OP_PARAM))
            continue;
        DTI_TRY(dti_onnx_name_fits(f, n->label));
        const uint32_t other =
            n->op == DTI_OP_INPUT ? dti_graph_find(f->store->graph, DTI_OP_PARAM, n->label) : 0;
        if (f->o.needed[other])
            return dti_fail(f->o.base, DT_ERROR_INVALID,
                            "dt_onnx_save: an input and a parameter have the name '%s'; names in "
                            "the file must differ: rename one",
                            n->label);
    }
    return DT_OK;
}

/* ---- needed nodes */

static void dti_onnx_need_inputs(dti_onnx *o, const dti_node *n) {
    for (uint32_t k = 0; k < n->count; k++) {
        const uint32_t id = dti_input_id(o->g, n, k);
        const dti_node *in = &o->g->nodes[id];
        if (!dti_onnx_folds(o, n, k)) {
            o->needed[id] = 1;
            continue;
        }
        if (n->op == DTI_OP_NORM)
            in = &o->g->nodes[dti_export_stats(o->g, n)];
        for (uint32_t i = 0; i < in->count; i++) {
            if (dti_onnx_folded_reads(in, i))
                o->needed[dti_input_id(o->g, in, i)] = 1;
        }
    }
}

static void dti_onnx_need(dti_onnx_file *f) {
    dti_onnx *o = &f->o;
    for (int i = 0; i < f->outputs; i++)
        o->needed[f->desc->outputs[i].id] = 1;
    for (uint32_t id = o->g->count - 1; id > 0; id--) {
        const dti_node *n = &o->g->nodes[id];
        if (!o->needed[id])
            continue;
        if (n->op == DTI_OP_INPUT && n->samples)
            o->sampled = id;
        dti_onnx_need_inputs(o, n);
    }
}

/* ---- operators */

/* Some tensors have another form in ONNX: attention's results without logarithms. */
static bool dti_onnx_reads_all(const dti_onnx *o, const dti_node *n) {
    for (uint32_t k = 0; k < n->count; k++) {
        if (dti_onnx_node(o, n, k)->op == DTI_OP_ATTENTION && n->op != DTI_OP_SLICE)
            return true;
    }
    return false;
}

static uint32_t dti_onnx_constant(dti_onnx *o, const dti_node *n) {
    const uint64_t bytes = dti_bytes((dt_dtype)n->dtype, (uint64_t)dti_shape_elements(n->shape));
    return dti_onnx_tensor(o, n->dtype == DT_I32 ? DTI_ONNX_I32 : DTI_ONNX_F32, n->shape.rank,
                           n->shape.dim, n->values, bytes);
}

static uint32_t dti_onnx_make_node(dti_onnx *o, uint32_t id) {
    const dti_node *n = &o->g->nodes[id];
    const dti_onnx_row *row = &dti_onnx_rows[n->op];
    if (n->dtype != DT_F32 && n->dtype != DT_I32)
        return dti_onnx_refuse(o, n, "its type is %s; it must be f32 or i32",
                               dti_dtype_name((dt_dtype)n->dtype));
    if (dti_shape_elements(n->shape) == 0)
        return dti_onnx_refuse(o, n, "it has no elements");
    if (n->op == DTI_OP_INPUT && n->values)
        return dti_onnx_constant(o, n);
    if (n->op == DTI_OP_INPUT || n->op == DTI_OP_PARAM)
        return id;
    if (!row->make)
        return dti_onnx_refuse(o, n, "this op is not supported");
    if (dti_onnx_reads_all(o, n))
        return dti_onnx_refuse(o, n, "it reads the log-sum-exp of attention");
    return row->make(o, n, row);
}

static dt_result dti_onnx_make(dti_onnx_file *f) {
    dti_onnx *o = &f->o;
    for (uint32_t id = 1; id < o->g->count && !o->result; id++) {
        if (o->needed[id])
            o->value[id] = dti_onnx_make_node(o, id);
    }
    for (int i = 0; i < f->outputs && !o->result; i++) {
        const dti_node *n = &o->g->nodes[f->desc->outputs[i].id];
        if (n->op == DTI_OP_ATTENTION || dti_op_info_of(n->op)->family->outputs)
            dti_onnx_refuse(o, n, "it packs several results; give one of them");
    }
    dti_onnx_close(o);
    if (!o->result && (!o->nodes.ok || !o->tensors.ok))
        o->result = DT_ERROR_MEMORY;
    return o->result;
}

/* ---- inputs and outputs */

static void dti_onnx_value_info(dti_text *to, uint32_t field, const char *name, const dti_node *n) {
    const size_t info = dti_proto_open(to, field);
    dti_proto_text(to, 1, name);
    const size_t type = dti_proto_open(to, 2),
                 tensor = dti_proto_open(to, 1); /* TypeProto.Tensor */
    dti_proto_whole(to, 1, n->dtype == DT_I32 ? DTI_ONNX_I32 : DTI_ONNX_F32);
    const size_t shape = dti_proto_open(to, 2);
    for (int i = n->samples ? -1 : 0; i < n->shape.rank; i++) {
        const size_t dim = dti_proto_open(to, 1);
        if (i < 0)
            dti_proto_text(to, 2, "batch");
        else
            dti_proto_whole(to, 1, (uint64_t)n->shape.dim[i]);
        dti_proto_close(to, dim);
    }
    dti_proto_close(to, shape);
    dti_proto_close(to, tensor);
    dti_proto_close(to, type);
    dti_proto_close(to, info);
}

/* An output has its name by an operator that does nothing. */
static void dti_onnx_inputs_outputs(dti_onnx_file *f) {
    const dti_onnx *o = &f->o;
    for (uint32_t id = 1; id < o->g->count; id++) {
        const dti_node *n = &o->g->nodes[id];
        if (o->needed[id] && n->op == DTI_OP_INPUT && !n->values)
            dti_onnx_value_info(&f->values, DTI_ONNX_G_INPUT, n->label, n);
    }
    for (int i = 0; i < f->outputs; i++) {
        const uint32_t id = f->desc->outputs[i].id;
        const size_t node = dti_proto_open(&f->values, DTI_ONNX_NODE);
        dti_onnx_name(&f->values, DTI_ONNX_INPUT, o, o->value[id]);
        dti_proto_text(&f->values, DTI_ONNX_OUTPUT, f->names[i]);
        dti_proto_text(&f->values, DTI_ONNX_KIND, "Identity");
        dti_proto_close(&f->values, node);
        dti_onnx_value_info(&f->values, DTI_ONNX_G_OUTPUT, f->names[i], &o->g->nodes[id]);
    }
}

/* ---- the file */

static void dti_onnx_bytes_key(dti_text *to, uint32_t field, uint64_t bytes) {
    dti_proto_key(to, field, DTI_PROTO_BYTES);
    dti_proto_varint(to, bytes);
}

/* The bytes before a parameter's values, to f->head. */
static void dti_onnx_weight_head(dti_onnx_file *f, uint32_t id) {
    const dti_node *n = &f->o.g->nodes[id];
    const uint64_t bytes = dti_bytes(DT_F32, (uint64_t)dti_shape_elements(n->shape));
    dti_text own = dti_text_open(f->o.base);
    for (int i = 0; i < n->shape.rank; i++)
        dti_proto_whole(&own, DTI_ONNX_T_DIM, (uint64_t)n->shape.dim[i]);
    dti_proto_whole(&own, DTI_ONNX_T_TYPE, DTI_ONNX_F32);
    dti_proto_text(&own, DTI_ONNX_T_NAME, n->label);
    dti_onnx_bytes_key(&own, DTI_ONNX_T_DATA, bytes);
    f->head.size = 0;
    dti_onnx_bytes_key(&f->head, DTI_ONNX_TENSOR, own.size + bytes);
    if (own.ok)
        dti_text_add_bytes(&f->head, own.data, own.size);
    f->head.ok = f->head.ok && own.ok;
    dti_text_free(&own);
}

/* All parameters that are needed: counted, or written to w. */
static dt_result dti_onnx_weights_to(dti_onnx_file *f, dti_writer *w) {
    const dt_graph *g = f->o.g;
    dt_result result = DT_OK;
    for (uint32_t id = 1; id < g->count && !result; id++) {
        const dti_node *n = &g->nodes[id];
        const uint64_t bytes = dti_bytes(DT_F32, (uint64_t)dti_shape_elements(n->shape));
        if (!f->o.needed[id] || n->op != DTI_OP_PARAM)
            continue;
        dti_onnx_weight_head(f, id);
        DTI_HAVE(f->head.ok);
        f->weights += w ? 0 : f->head.size + bytes;
        void *data = w ? dti_alloc(f->o.base, (size_t)bytes) : NULL;
        if (w && !data)
            return DT_ERROR_MEMORY;
        if (w)
            result = dt_store_read(f->store, n->attr.i[0], f->kind, data, (size_t)bytes);
        if (w && !result && !(result = dti_writer_add(w, f->head.data, f->head.size)))
            result = dti_writer_add(w, data, (size_t)bytes);
        dti_free(f->o.base, data);
    }
    return result;
}

static void dti_onnx_model_head(dti_onnx_file *f, dti_text *head) {
    const uint64_t graph = f->o.nodes.size + f->o.tensors.size + f->values.size + f->weights;
    const char name[] = "dtrain";
    dti_proto_whole(head, DTI_ONNX_M_IR, DTI_ONNX_IR);
    dti_proto_text(head, DTI_ONNX_M_PRODUCER, name);
    dti_proto_text(head, DTI_ONNX_M_VERSION, DT_VERSION);
    const size_t opset = dti_proto_open(head, DTI_ONNX_M_OPSETS);
    dti_proto_whole(head, DTI_ONNX_OPSET_VERSION, DTI_ONNX_OPSET);
    dti_proto_close(head, opset);
    dti_onnx_bytes_key(head, DTI_ONNX_M_GRAPH, graph + 2 + strlen(name));
    dti_proto_text(head, DTI_ONNX_G_NAME, name);
}

static dt_result dti_onnx_write(dti_onnx_file *f, const char *path, const dti_text *head) {
    const dti_text *parts[] = {head, &f->o.nodes, &f->values, &f->o.tensors};
    uint64_t bytes = f->weights;
    dti_writer *w;
    for (size_t i = 0; i < DTI_COUNT(parts); i++)
        bytes += parts[i]->size;
    if (bytes > DTI_ONNX_BYTES_MAX)
        return dti_fail(
            f->o.base, DT_ERROR_UNSUPPORTED,
            "dt_onnx_save: %s would have %llu bytes; protocol buffers allow less than 2^31", path,
            (unsigned long long)bytes);
    DTI_TRY(dti_writer_open(f->o.base, path, bytes, &w));
    for (size_t i = 0; i < DTI_COUNT(parts); i++) {
        if (parts[i]->size)
            dti_writer_add(w, parts[i]->data, parts[i]->size);
    }
    const dt_result result = dti_onnx_weights_to(f, w);
    const dt_result closed = dti_writer_close(w, result == DT_OK);
    return result ? result : closed;
}

static dt_result dti_onnx_save(dti_onnx_file *f, const char *path) {
    dti_onnx *o = &f->o;
    o->next = o->g->count;
    o->needed = dti_alloc_array(o->base, o->g->count, sizeof *o->needed);
    o->value = dti_alloc_array(o->base, o->g->count, sizeof *o->value);
    DTI_HAVE(o->needed && o->value);
    dti_onnx_need(f);
    DTI_TRY(dti_onnx_check_names(f));
    DTI_TRY(dti_onnx_make(f));
    DTI_TRY(dti_onnx_weights_to(f, NULL));
    dti_onnx_inputs_outputs(f);
    dti_text head = dti_text_open(o->base);
    dti_onnx_model_head(f, &head);
    dt_result result = f->values.ok && head.ok ? dti_onnx_write(f, path, &head) : DT_ERROR_MEMORY;
    dti_text_free(&head);
    return result;
}

DTI_PUBLIC(dt_onnx_save, (dt_store * store, const char *path, const dt_onnx_desc *desc), store,
           DTI_OF(dt_store), (store, path, desc)) {
    dti_base *base = dti_store_base(store);
    DTI_NEED(base, desc);
    DTI_NEED(base, path);
    dti_onnx_file f = {.o = {.base = base}, .store = store, .desc = desc};
    f.kind = desc->averaged ? DT_VALUE_AVERAGE : DT_VALUE_PARAM;
    f.o.nodes = f.o.tensors = f.head = f.values = dti_text_open(base);
    dt_program_desc program = {.label = "onnx"};
    memcpy(program.outputs, desc->outputs, sizeof program.outputs);
    memcpy(program.shapes, desc->shapes, sizeof program.shapes);
    dt_result result = dti_onnx_check(&f);
    if (!result)
        result = dti_graph_replay(store->graph, &program, &f.o.g);
    if (!result)
        result = dti_onnx_save(&f, path);
    DTI_FREE(base, f.o.nodes.data, f.o.tensors.data, f.head.data, f.values.data, f.o.needed,
             f.o.value);
    if (f.o.g)
        dt_graph_destroy(f.o.g);
    return result;
}
