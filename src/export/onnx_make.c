/* Operators, attributes and constants of an ONNX file, as fields of a GraphProto (onnx.proto). */

enum { DTI_ONNX_NODE = 1, DTI_ONNX_TENSOR = 5 }; /* of GraphProto */
enum { DTI_ONNX_INPUT = 1, DTI_ONNX_OUTPUT, DTI_ONNX_KIND = 4, DTI_ONNX_ATTRIBUTE }; /* NodeProto */
enum { /* of AttributeProto: fields, and types of them */
       DTI_ONNX_A_NAME = 1,
       DTI_ONNX_A_FLOAT,
       DTI_ONNX_A_INT,
       DTI_ONNX_A_TEXT,
       DTI_ONNX_A_INTS = 8,
       DTI_ONNX_A_TEXTS,
       DTI_ONNX_A_TYPE = 20
};
enum { DTI_ONNX_T_DIM = 1, DTI_ONNX_T_TYPE, DTI_ONNX_T_NAME = 8, DTI_ONNX_T_DATA };

/* ---- names */

static void dti_onnx_name(dti_text *to, uint32_t field, const dti_onnx *o, uint32_t value) {
    const dti_node *n = value < o->g->count ? &o->g->nodes[value] : NULL;
    char own[24] = ""; /* 0: none */
    if (n && (n->op == DTI_OP_PARAM || (n->op == DTI_OP_INPUT && !n->values))) {
        dti_proto_text(to, field, n->label);
        return;
    }
    if (value)
        snprintf(own, sizeof own, "dt:%u", (unsigned)value);
    dti_proto_text(to, field, own);
}

static uint32_t dti_onnx_refuse(dti_onnx *o, const dti_node *n, const char *format, ...) {
    char why[160];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (!o->result)
        o->result = dti_fail(
            o->base, DT_ERROR_UNSUPPORTED, "dt_onnx_save: %s, %s: %s", dti_op_info_of(n->op)->name,
            dti_tensor_print((dt_tensor){o->g, (uint32_t)(n - o->g->nodes)}).text, why);
    return 0;
}

/* ---- operators */

static void dti_onnx_close(dti_onnx *o) {
    if (o->is_open)
        dti_proto_close(&o->nodes, o->open);
    o->is_open = false;
}

static uint32_t dti_onnx_more(dti_onnx *o) {
    dti_onnx_name(&o->nodes, DTI_ONNX_OUTPUT, o, o->next);
    return o->next++;
}

static uint32_t dti_onnx_op(dti_onnx *o, const char *type, uint32_t count, ...) {
    va_list args;
    dti_onnx_close(o);
    o->open = dti_proto_open(&o->nodes, DTI_ONNX_NODE);
    o->is_open = true;
    va_start(args, count);
    for (uint32_t i = 0; i < count; i++)
        dti_onnx_name(&o->nodes, DTI_ONNX_INPUT, o, va_arg(args, uint32_t));
    va_end(args);
    dti_proto_text(&o->nodes, DTI_ONNX_KIND, type);
    return dti_onnx_more(o);
}

static size_t dti_onnx_attribute(dti_onnx *o, const char *name, uint32_t type) {
    const size_t at = dti_proto_open(&o->nodes, DTI_ONNX_ATTRIBUTE);
    dti_proto_text(&o->nodes, DTI_ONNX_A_NAME, name);
    dti_proto_whole(&o->nodes, DTI_ONNX_A_TYPE, type);
    return at;
}

static void dti_onnx_int(dti_onnx *o, const char *name, int64_t value) {
    const size_t at = dti_onnx_attribute(o, name, 2);
    dti_proto_whole(&o->nodes, DTI_ONNX_A_INT, (uint64_t)value);
    dti_proto_close(&o->nodes, at);
}

static void dti_onnx_ints(dti_onnx *o, const char *name, const int64_t *values, int count) {
    const size_t at = dti_onnx_attribute(o, name, 7);
    for (int i = 0; i < count; i++)
        dti_proto_whole(&o->nodes, DTI_ONNX_A_INTS, (uint64_t)values[i]);
    dti_proto_close(&o->nodes, at);
}

static void dti_onnx_float(dti_onnx *o, const char *name, float value) {
    const size_t at = dti_onnx_attribute(o, name, 1);
    dti_proto_f32(&o->nodes, DTI_ONNX_A_FLOAT, value);
    dti_proto_close(&o->nodes, at);
}

static void dti_onnx_word(dti_onnx *o, const char *name, const char *text, bool list) {
    const size_t at = dti_onnx_attribute(o, name, list ? 8 : 3);
    dti_proto_text(&o->nodes, list ? DTI_ONNX_A_TEXTS : DTI_ONNX_A_TEXT, text);
    dti_proto_close(&o->nodes, at);
}

/* ---- constants */

static uint32_t dti_onnx_tensor(dti_onnx *o, dti_onnx_type type, int rank, const int64_t *dim,
                                const void *data, uint64_t bytes) {
    dti_text *to = &o->tensors;
    const uint32_t value = o->next++;
    const size_t at = dti_proto_open(to, DTI_ONNX_TENSOR);
    for (int i = 0; i < rank; i++)
        dti_proto_whole(to, DTI_ONNX_T_DIM, (uint64_t)dim[i]);
    dti_proto_whole(to, DTI_ONNX_T_TYPE, type);
    dti_onnx_name(to, DTI_ONNX_T_NAME, o, value);
    dti_proto_bytes(to, DTI_ONNX_T_DATA, data, (size_t)bytes);
    dti_proto_close(to, at);
    return value;
}

static uint32_t dti_onnx_list(dti_onnx *o, const int64_t *values, int count) {
    const int64_t size = count;
    return dti_onnx_tensor(o, DTI_ONNX_I64, 1, &size, values, (uint64_t)count * sizeof *values);
}

static uint32_t dti_onnx_one(dti_onnx *o, int64_t value) {
    return dti_onnx_list(o, &value, 1);
}

static uint32_t dti_onnx_scalar(dti_onnx *o, float value) {
    return dti_onnx_tensor(o, DTI_ONNX_F32, 0, NULL, &value, sizeof value);
}

static uint32_t dti_onnx_filled(dti_onnx *o, int64_t elements, float value) {
    return dti_onnx_op(o, "Expand", 2, dti_onnx_scalar(o, value), dti_onnx_one(o, elements));
}

/* ---- shapes */

/* 0: the number of samples. */
static uint32_t dti_onnx_reshape(dti_onnx *o, uint32_t x, bool samples, dt_shape s) {
    int64_t dim[DT_MAX_DIMS + 1] = {0};
    for (int i = 0; i < s.rank; i++)
        dim[samples + i] = s.dim[i];
    return dti_onnx_op(o, "Reshape", 2, x, dti_onnx_list(o, dim, samples + s.rank));
}

static uint32_t dti_onnx_part(dti_onnx *o, uint32_t x, int64_t start, int64_t end, int64_t axis) {
    return dti_onnx_op(o, "Slice", 4, x, dti_onnx_one(o, start), dti_onnx_one(o, end),
                       dti_onnx_one(o, axis));
}

static uint32_t dti_onnx_permute(dti_onnx *o, uint32_t x, bool samples, int rank,
                                 const int64_t *axes) {
    int64_t all[DT_MAX_DIMS + 1] = {0};
    for (int i = 0; i < rank; i++)
        all[samples + i] = axes[i] + samples;
    x = dti_onnx_op(o, "Transpose", 1, x);
    dti_onnx_ints(o, "perm", all, rank + samples);
    return x;
}

static uint32_t dti_onnx_turned(dti_onnx *o, uint32_t x, bool samples, int rank) {
    int64_t axes[DT_MAX_DIMS];
    for (int i = 0; i < rank; i++)
        axes[i] = i;
    axes[rank - 2] = rank - 1;
    axes[rank - 1] = rank - 2;
    return dti_onnx_permute(o, x, samples, rank, axes);
}

static uint32_t dti_onnx_in(const dti_onnx *o, const dti_node *n, uint32_t k) {
    return o->value[dti_input_id(o->g, n, k)];
}

static const dti_node *dti_onnx_node(const dti_onnx *o, const dti_node *n, uint32_t k) {
    return &o->g->nodes[dti_input_id(o->g, n, k)];
}

static uint32_t dti_onnx_lifted(dti_onnx *o, const dti_node *n, uint32_t k, int rank) {
    const dti_node *in = dti_onnx_node(o, n, k);
    const uint32_t x = dti_onnx_in(o, n, k);
    dt_shape s = {.rank = rank};
    if (!in->samples || in->shape.rank >= rank)
        return x;
    const int more = rank - in->shape.rank;
    for (int i = 0; i < rank; i++)
        s.dim[i] = i < more ? 1 : in->shape.dim[i - more];
    return dti_onnx_reshape(o, x, true, s);
}

static uint32_t dti_onnx_batch(dti_onnx *o, const dti_node *n) {
    if (!o->sampled)
        return dti_onnx_refuse(o, n, "no input has the sample axis");
    if (!o->batch) {
        o->batch = dti_onnx_op(o, "Shape", 1, o->sampled);
        dti_onnx_int(o, "start", 0);
        dti_onnx_int(o, "end", 1);
    }
    return o->batch;
}

static uint32_t dti_onnx_spread(dti_onnx *o, const dti_node *n, uint32_t k) {
    const int64_t ones[DT_MAX_DIMS] = {1, 1, 1, 1, 1};
    const dti_node *in = dti_onnx_node(o, n, k);
    if (in->samples)
        return dti_onnx_in(o, n, k);
    uint32_t shape = dti_onnx_batch(o, n);
    if (in->shape.rank) {
        shape = dti_onnx_op(o, "Concat", 2, shape, dti_onnx_list(o, ones, in->shape.rank));
        dti_onnx_int(o, "axis", 0);
    }
    return dti_onnx_op(o, "Expand", 2, dti_onnx_in(o, n, k), shape);
}
