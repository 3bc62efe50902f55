/* Leaves: rows without inputs. Inputs and parameters have a place before any launch, so they emit
 * nothing; fill and iota write constants. A seed is where a loss's gradient starts. */

static bool dti_leaf_shape(dti_build *b) {
    return dti_build_fail(b, "is made by its own constructor");
}

static void dti_leaf_emit(dti_emit *e) {
}

static dt_tensor dti_leaf_push(dt_graph *g, dti_node *n, const char *name) {
    if (!g || g->error[0])
        return dti_nil(g);
    const char *op = dti_op_info_of(n->op)->name;
    if (!name || !name[0])
        return dti_graph_fail(g, "%s: a name is needed", op);
    if (!dti_shape_valid(n->shape)) {
        return dti_graph_fail(
            g,
            "%s '%s': shape %s is not valid: at most %d dimensions, none negative, "
            "below 2^31 elements",
            op, name, dti_shape_print(n->shape, n->samples).text, DT_MAX_DIMS);
    }
    n->label = dti_graph_string(g, name);
    return n->label ? dti_graph_push_named(g, n) : dti_nil(g);
}

/* Messages and columns of data identify an input by its name, so names must differ. */
static dt_tensor dti_input_push(dt_graph *g, dti_node *n, const char *name, dt_dtype dtype) {
    if (g && !dti_dtype_of_tensors((int)dtype))
        return dti_graph_fail(g, "input '%s': dtype is %d; it must be " DTI_TENSOR_DTYPES,
                              name ? name : "", (int)dtype);
    n->dtype = (uint8_t)dtype;
    const uint32_t taken = g && name ? dti_graph_find(g, DTI_OP_INPUT, name) : 0;
    if (taken) {
        const dti_node *other = &g->nodes[taken];
        return dti_graph_fail(
            g, "input '%s': an input %s has this name; use its tensor again, or another name", name,
            dti_shape_print(other->shape, other->samples).text);
    }
    return dti_leaf_push(g, n, name);
}

DTI_PUBLIC_GET(dt_tensor, dt_input,
               (dt_graph * g, const char *name, dt_dtype dtype, dt_shape shape), g,
               DTI_OF(dt_graph), (g, name, dtype, shape)) {
    dti_node n = {.op = DTI_OP_INPUT, .samples = true, .shape = shape};
    return dti_input_push(g, &n, name, dtype);
}

DTI_PUBLIC_GET(dt_tensor, dt_input_shared,
               (dt_graph * g, const char *name, dt_dtype dtype, dt_shape shape), g,
               DTI_OF(dt_graph), (g, name, dtype, shape)) {
    dti_node n = {.op = DTI_OP_INPUT, .shape = shape};
    return dti_input_push(g, &n, name, dtype);
}

/* An input that is written when a program is made. attr.i[0..1] = a hash of its values, to
 * compare models. It has a label for messages, which other nodes may have too. */
DTI_PUBLIC_GET(dt_tensor, dt_constant,
               (dt_graph * g, dt_dtype dtype, dt_shape shape, const void *data), g,
               DTI_OF(dt_graph), (g, dtype, shape, data)) {
    if (!g || g->error[0])
        return dti_nil(g);
    if (!dti_dtype_of_tensors((int)dtype))
        return dti_graph_fail(g, "dt_constant: dtype is %d; it must be " DTI_TENSOR_DTYPES,
                              (int)dtype);
    if (!dti_shape_valid(shape))
        return dti_graph_fail(g,
                              "dt_constant: shape %s is not valid: at most %d dimensions, none "
                              "negative, below 2^31 elements",
                              dti_shape_print(shape, false).text, DT_MAX_DIMS);
    if (!data)
        return dti_graph_fail(g, "dt_constant: data is NULL");
    dti_node n = {.op = DTI_OP_INPUT, .dtype = (uint8_t)dtype, .shape = shape, .label = "constant"};
    const size_t bytes = (size_t)dti_bytes(dtype, (uint64_t)dti_shape_elements(shape));
    const uint64_t hash = dti_hash64(dtype, data, bytes);
    n.values = dti_graph_keep(g, data, bytes);
    n.attr.i[0] = (int32_t)(uint32_t)hash;
    n.attr.i[1] = (int32_t)(uint32_t)(hash >> 32);
    return n.values ? dti_graph_push(g, &n, NULL, 0) : dti_nil(g);
}

/* Files keep a parameter under its name. A name that cannot be read back is an error here, not when
 * a trained model is loaded. */
static bool dti_param_name_fits(dt_graph *g, const char *name) {
    if (dti_utf8_valid(name, strlen(name)) && strcmp(name, "__metadata__") != 0 &&
        strncmp(name, DTI_STATE_OWN, sizeof DTI_STATE_OWN - 1) != 0)
        return true;
    return dti_graph_refuse(g,
                            "param '%s': files have it under its name, which must be UTF-8, not "
                            "\"__metadata__\", and not begin with \"" DTI_STATE_OWN "\"",
                            name);
}

/* Kinds that are of matrices. */
static bool dti_init_fits(dt_graph *g, const char *name, dt_shape s, const dt_init *init) {
    const bool sparse = init->kind == DT_INIT_SPARSE;
    if (init->kind < DT_INIT_ORTHOGONAL || s.rank > DT_MAX_DIMS)
        return true;
    if (s.rank < 2 || (sparse && (s.rank > 2 || !(init->a >= 0.0f && init->a <= 1.0f))))
        dti_graph_fail(g,
                       "param '%s' %s: dt_init {kind %d, a %g}: orthogonal and identity need 2 "
                       "dimensions or more, sparse needs 2 and an a in [0, 1]",
                       name ? name : "", dti_shape_print(s, false).text, (int)init->kind,
                       (double)init->a);
    return g->error[0] == 0;
}

/* attr.i[0] = index among the parameters, i[1] = dt_init_kind, i[2] = node of a buffer's new value.
 * attr.f[0..1] = a and b of dt_init. attr.dim[0] = 1 + a row that is 0 at first, 0 = none; the
 * others: a tensor rank's part of it (parted.c). */
static dt_tensor dti_param_push(dt_graph *g, const char *name, dt_shape shape, dt_init init,
                                bool buffer) {
    if (!g || g->error[0])
        return dti_nil(g);
    if (name && name[0] && g->scope[0] && !(name = dti_graph_join(g, g->scope, name)))
        return dti_nil(g);
    if (name && !dti_param_name_fits(g, name))
        return dti_nil(g);
    if (g->stores) {
        return dti_graph_fail(g,
                              "param '%s': the graph is sealed; add parameters before "
                              "dt_store_create",
                              name ? name : "");
    }
    if (name && dti_graph_find(g, DTI_OP_PARAM, name)) {
        return dti_graph_fail(
            g, "param '%s': another parameter has this name; to share it, use its tensor again",
            name);
    }
    if ((unsigned)init.kind > DT_INIT_IDENTITY || !dti_fits_f32((double)init.a) ||
        !dti_fits_f32((double)init.b)) {
        return dti_graph_fail(g,
                              "param '%s': dt_init {kind %d, a %g, b %g}; kind must be a "
                              "dt_init_kind, a and b finite",
                              name ? name : "", (int)init.kind, (double)init.a, (double)init.b);
    }
    if (!dti_init_fits(g, name, shape, &init))
        return dti_nil(g);
    if (!dti_array_reserve(g->base, (void **)&g->params, &g->param_capacity,
                           (size_t)g->param_count + 1, sizeof *g->params)) {
        return dti_graph_no_memory(g, "out of host memory for parameter '%s'", name ? name : "");
    }
    dti_node n = {.op = DTI_OP_PARAM, .shape = shape, .frozen = buffer, .buffer = buffer};
    n.attr.i[0] = (int32_t)g->param_count;
    n.attr.i[1] = (int32_t)init.kind;
    n.attr.f[0] = init.a;
    n.attr.f[1] = init.b;
    dt_tensor x = dti_leaf_push(g, &n, name);
    if (!dti_is_nil(x))
        g->params[g->param_count++] = x.id;
    return x;
}

DTI_PUBLIC_GET(dt_tensor, dt_param, (dt_graph * g, const char *name, dt_shape shape, dt_init init),
               g, DTI_OF(dt_graph), (g, name, shape, init)) {
    return dti_param_push(g, name, shape, init, false);
}

DTI_PUBLIC_GET(dt_tensor, dt_buffer, (dt_graph * g, const char *name, dt_shape shape, dt_init init),
               g, DTI_OF(dt_graph), (g, name, shape, init)) {
    return dti_param_push(g, name, shape, init, true);
}

DTI_PUBLIC_GET(dt_tensor, dt_freeze, (dt_tensor x), x.graph, DTI_OF(dt_graph), (x)) {
    DTI_NEED_TENSOR(x, "dt_freeze");
    dti_node *n = dti_node_of(x);
    if (n->op != DTI_OP_PARAM) {
        return dti_graph_fail(x.graph, "dt_freeze: %s is not a parameter; use dt_detach",
                              dti_tensor_name(x).text);
    }
    n->frozen = true;
    x.graph->changes++;
    return x;
}

/* ---- fill, iota, train_mode: attr.dim and i[0] = shape and rank, i[1] = sample axis, f[0] = the
 * value. */
enum { DTI_FILL_VALUE, DTI_FILL_IOTA, DTI_FILL_TRAIN };

static bool dti_fill_shape(dti_build *b) {
    b->out.shape = dti_attr_shape(&b->out.attr);
    b->out.samples = b->out.attr.i[1] != 0;
    return true;
}

static void dti_fill_emit(dti_emit *e) {
    uint32_t which = dti_op_info_of(e->node->op)->selector;
    float value = which == DTI_FILL_TRAIN ? (float)e->train : e->node->attr.f[0];
    dti_emit_fill(e, &e->out, which == DTI_FILL_IOTA ? DTI_COPY_IOTA_F32 : DTI_COPY_FILL_F32,
                  value);
}

static dt_tensor dti_constant(dt_graph *g, dti_op op, dt_shape shape, float value) {
    dti_attr attr = {.f = {value}, .i = {shape.rank}};
    if (shape.rank > DT_MAX_DIMS || shape.rank < 0)
        attr.i[0] = DT_MAX_DIMS + 1;
    dti_shape_store(attr.dim, shape);
    return dti_append(g, op, NULL, 0, &attr);
}

DT_API dt_tensor dt_fill(dt_graph *g, dt_shape shape, float value) {
    return dti_constant(g, DTI_OP_FILL, shape, value);
}

DT_API dt_tensor dt_iota(dt_graph *g, dt_shape shape) {
    return dti_constant(g, DTI_OP_IOTA, shape, 0.0f);
}

/* ---- seed: attr.i[0] = index of the loss in its program. */
static bool dti_seed_shape(dti_build *b) {
    if (!b->in[0]->term)
        return dti_build_fail(b, "is not a loss term");
    b->out.samples = false;
    return true;
}

static dt_tensor dti_seed(dt_tensor term, uint32_t index) {
    return dti_append1(DTI_OP_SEED, term, &(dti_attr){.i = {(int32_t)index}});
}

static void dti_seed_emit(dti_emit *e) {
    dti_view term = dti_emit_in(e, 0);
    const dti_args_seed a = {.index = (uint32_t)e->node->attr.i[0],
                             .term_offset = (uint32_t)term.offset};
    DTI_EMIT(e, DTI_K_SEED, 1, a, term.value, e->out.value);
}

/* ---- Rows of the tables */

DTI_FAMILY(leaf, .shape = dti_leaf_shape);

DTI_FAMILY(fill, .shape = dti_fill_shape);

DTI_FAMILY(seed, .shape = dti_seed_shape, .takes_terms = true, .uniform = true);
