/* Graph storage. Nodes and inputs lie in two growing arrays; ids are creation order, which is a
 * topological order. Running out of memory while building is recorded like any other op's error,
 * with a result of its own. */

static dt_tensor dti_graph_fail_as(dt_graph *g, dt_result result, const char *text) {
    dti_visit visit;
    if (dti_enter(g, &visit, DTI_OF(dt_graph), "an op") && !g->error[0]) {
        g->result = result;
        snprintf(g->error, sizeof g->error, "%s", text);
    }
    dti_leave(&visit, DT_OK);
    return dti_nil(g);
}

static dt_tensor dti_graph_fail(dt_graph *g, const char *format, ...) {
    char text[sizeof g->error];
    DTI_FORMAT(text, format);
    return dti_graph_fail_as(g, DT_ERROR_INVALID, text);
}

static dt_tensor dti_graph_off(dt_graph *g, const char *op, const char *why) {
    return g ? dti_graph_fail(g, "%s: %s", op, why) : dti_nil(NULL);
}

static bool dti_graph_refuse(dt_graph *g, const char *format, ...) {
    char text[sizeof g->error];
    DTI_FORMAT(text, format);
    return dti_graph_fail_as(g, DT_ERROR_INVALID, text), false;
}

static dt_tensor dti_graph_no_memory(dt_graph *g, const char *format, ...) {
    char text[sizeof g->error];
    DTI_FORMAT(text, format);
    return dti_graph_fail_as(g, DT_ERROR_MEMORY, text);
}

static char *dti_graph_room(dt_graph *g, const char *what, size_t size) {
    dti_string *s = dti_alloc(g->base, sizeof *s + size);
    if (!s) {
        dti_graph_no_memory(g, "out of host memory for %s of %zu bytes", what, size);
        return NULL;
    }
    s->next = g->strings;
    g->strings = s;
    return s->text;
}

static const char *dti_graph_join(dt_graph *g, const char *text, const char *more) {
    const size_t begin = strlen(text), size = strlen(more) + 1;
    char *to = dti_graph_room(g, "a name", begin + size);
    if (!to)
        return NULL;
    memcpy(to, text, begin);
    memcpy(to + begin, more, size);
    return to;
}

static const void *dti_graph_keep(dt_graph *g, const void *data, size_t bytes) {
    char *to = dti_graph_room(g, "a constant", bytes);
    return to && bytes ? memcpy(to, data, bytes) : to;
}

static dt_tensor dti_graph_push(dt_graph *g, const dti_node *node, const dt_tensor *in,
                                uint32_t count) {
    if (!DTI_RESERVE(g->base, g->nodes, g->capacity, (size_t)g->count + 1) ||
        !DTI_RESERVE(g->base, g->inputs, g->input_capacity, (size_t)g->input_count + count))
        return dti_graph_no_memory(g, "out of host memory for node %u", g->count);
    dti_node *n = &g->nodes[g->count];
    *n = *node;
    dti_shape_store(n->shape.dim, node->shape);
    n->first = g->input_count;
    n->count = count;
    for (uint32_t i = 0; i < count; i++)
        g->inputs[g->input_count++] = in[i].id;
    return (dt_tensor){g, g->count++};
}

/* ---- names: open addressing, at most half full. An entry that was undone may stay: the node that
 * has its number now has another op or label. */

static bool dti_is_named(const dti_node *n) {
    return n->count == 0 && n->label && !n->values;
}

static size_t dti_name_hash(uint32_t op, const char *name) {
    return (size_t)dti_hash64(op, name, strlen(name));
}

static bool dti_name_is(const dt_graph *g, uint32_t id, uint32_t op, const char *name) {
    const dti_node *n = &g->nodes[id];
    return id < g->count && n->op == op && dti_is_named(n) && !strcmp(n->label, name);
}

static uint32_t dti_graph_find(const dt_graph *g, uint32_t op, const char *name) {
    const size_t mask = g->name_capacity - 1;
    size_t at = dti_name_hash(op, name);
    for (; g->names && g->names[at & mask]; at++) {
        if (dti_name_is(g, g->names[at & mask], op, name))
            return g->names[at & mask];
    }
    for (uint32_t id = 1; !g->names && id < g->count; id++) {
        if (dti_name_is(g, id, op, name))
            return id;
    }
    return 0;
}

static void dti_graph_enter(dt_graph *g, uint32_t id) {
    const size_t mask = g->name_capacity - 1;
    size_t at = dti_name_hash(g->nodes[id].op, g->nodes[id].label);
    while (g->names[at & mask])
        at++;
    g->names[at & mask] = id;
    g->name_count++;
}

static bool dti_graph_names_grow(dt_graph *g) {
    size_t count = 0, capacity = 64;
    for (uint32_t id = 1; id < g->count; id++)
        count += dti_is_named(&g->nodes[id]);
    while (capacity < 4 * count)
        capacity *= 2;
    uint32_t *names = dti_alloc_array(g->base, capacity, sizeof *names);
    if (!names)
        return false;
    dti_free(g->base, g->names);
    g->names = names;
    g->name_capacity = capacity;
    g->name_count = 0;
    for (uint32_t id = 1; id < g->count; id++) {
        if (dti_is_named(&g->nodes[id]))
            dti_graph_enter(g, id);
    }
    return true;
}

static dt_tensor dti_graph_push_named(dt_graph *g, const dti_node *node) {
    if (2 * ((size_t)g->name_count + 1) > g->name_capacity && !dti_graph_names_grow(g))
        return dti_graph_no_memory(g, "out of host memory for node %u", g->count);
    dt_tensor x = dti_graph_push(g, node, NULL, 0);
    if (!dti_is_nil(x))
        dti_graph_enter(g, x.id);
    return x;
}

static dt_result dti_graph_new(dt_ctx *ctx, dt_graph **out) {
    dti_base *base = dti_ctx_base(ctx);
    *out = NULL;
    dt_graph *g = dti_alloc(base, sizeof *g);
    DTI_HAVE(g);
    g->ctx = ctx;
    g->base = base;
    dti_node nil = {.shape = {.rank = -1}};
    dti_graph_push(g, &nil, NULL, 0);
    if (g->error[0]) {
        dt_graph_destroy(g);
        return DT_ERROR_MEMORY;
    }
    *out = g;
    return DT_OK;
}

static void dti_graph_end(dti_owned *self) {
    dt_graph_destroy((dt_graph *)(void *)self);
}

DTI_PUBLIC_OUT(dt_graph_create, (dt_ctx * ctx, dt_graph **out), ctx, DTI_CTX, (ctx, out)) {
    DTI_TRY(dti_graph_new(ctx, out));
    dti_own(&dti_ctx_base(ctx)->owned, &(*out)->owned, dti_graph_end);
    return DT_OK;
}

DTI_PUBLIC_VOID(dt_graph_destroy, (dt_graph * g), g, DTI_OF(dt_graph) | DTI_UNUSED, (g)) {
    dti_destroy_owned(&g->stores);
    dti_disown(&g->base->owned, &g->owned);
    while (g->strings) {
        dti_string *next = g->strings->next;
        dti_free(g->base, g->strings);
        g->strings = next;
    }
    DTI_FREE(g->base, g->nodes, g->inputs, g->params, g->names, g->calls, g);
}

static dt_result dti_graph_clone(const dt_graph *g, dt_ctx *ctx, dt_graph **out) {
    DTI_TRY(dti_graph_new(ctx, out));
    dt_graph *c = *out;
    if (!DTI_RESERVE(c->base, c->nodes, c->capacity, g->count) ||
        !DTI_RESERVE(c->base, c->inputs, c->input_capacity, (size_t)g->input_count + 1) ||
        !DTI_RESERVE(c->base, c->params, c->param_capacity, (size_t)g->param_count + 1) ||
        !DTI_RESERVE(c->base, c->calls, c->call_capacity, g->call_count)) {
        dt_graph_destroy(c);
        *out = NULL;
        return DT_ERROR_MEMORY;
    }
    memcpy(c->nodes, g->nodes, g->count * sizeof *c->nodes);
    if (g->input_count)
        memcpy(c->inputs, g->inputs, g->input_count * sizeof *c->inputs);
    if (g->param_count)
        memcpy(c->params, g->params, g->param_count * sizeof *c->params);
    if (g->call_count)
        memcpy(c->calls, g->calls, g->call_count * sizeof *c->calls);
    c->call_count = g->call_count;
    c->count = g->count;
    c->input_count = g->input_count;
    c->param_count = g->param_count;
    c->streams = g->streams;
    c->cache_elements = g->cache_elements;
    return DT_OK;
}

static dt_result dti_graph_copy(const dt_graph *g, dt_ctx *ctx, dt_graph **out) {
    DTI_TRY(dti_graph_clone(g, ctx, out));
    dti_own(&dti_ctx_base(ctx)->owned, &(*out)->owned, dti_graph_end);
    return DT_OK;
}

static dt_tensor dti_graph_called(dt_graph *g, uint32_t first, const dti_call *call, dt_tensor y) {
    if (dti_is_nil(y) || g->count == first)
        return y;
    if (!DTI_RESERVE(g->base, g->calls, g->call_capacity, (size_t)g->call_count + 1))
        return dti_graph_no_memory(g, "out of host memory for node %u", g->count);
    dti_call *c = &g->calls[g->call_count++];
    *c = *call;
    c->first = first;
    c->end = g->count;
    return y;
}

static void dti_graph_update(dt_tensor buffer, dt_tensor value) {
    if (dti_is_nil(value))
        return;
    dti_node_of(buffer)->attr.i[2] = (int32_t)value.id;
    buffer.graph->changes++;
}

DTI_PUBLIC_GET(const char *, dt_graph_error, (const dt_graph *g), g, DTI_OF(dt_graph), (g)) {
    if (!g)
        return dti_no_object;
    return g->error[0] ? g->error : NULL;
}

DTI_PUBLIC_VOID(dt_graph_clear_error, (dt_graph * g), g, DTI_OF(dt_graph), (g)) {
    g->error[0] = 0;
    g->result = DT_OK;
}

/* ---- scopes */

DTI_PUBLIC_VOID(dt_scope_push, (dt_graph * g, const char *name), g, DTI_OF(dt_graph), (g, name)) {
    const size_t size = strlen(g->scope);
    const bool fits =
        g->scopes < DTI_SCOPES_MAX && name && name[0] && size + strlen(name) + 1 < DTI_SCOPE_SIZE;
    if (g->scopes < DTI_SCOPES_MAX)
        g->scope_sizes[g->scopes] = (uint16_t)size;
    g->scopes++;
    if (fits)
        snprintf(g->scope + size, DTI_SCOPE_SIZE - size, "%s.", name);
    else
        dti_graph_fail(g,
                       "dt_scope_push: '%.40s' in scope '%s'; a name must not be empty; at most %d "
                       "scopes nest, and their names have at most %d characters in total",
                       name ? name : "", g->scope, DTI_SCOPES_MAX, DTI_SCOPE_SIZE - 1);
}

DTI_PUBLIC_VOID(dt_scope_pop, (dt_graph * g), g, DTI_OF(dt_graph), (g)) {
    if (!g->scopes) {
        dti_graph_fail(g, "dt_scope_pop: no scope is open; pop once for each dt_scope_push");
        return;
    }
    if (--g->scopes < DTI_SCOPES_MAX)
        g->scope[g->scope_sizes[g->scopes]] = 0;
}

static void dti_graph_undo(dt_graph *g, dti_graph_mark mark) {
    while (g->call_count && g->calls[g->call_count - 1].end > mark.nodes)
        g->call_count--;
    g->count = mark.nodes;
    g->input_count = mark.inputs;
    g->param_count = mark.params;
}

#define DTI_TENSOR_GET(type, what)                                                                 \
    DTI_PUBLIC_GET(type, dt_tensor_##what, (dt_tensor x), x.graph, DTI_OF(dt_graph), (x)) {        \
        return dti_tensor_##what(x);                                                               \
    }
DTI_TENSOR_GET(dt_shape, shape)
DTI_TENSOR_GET(dt_dtype, dtype)
DTI_TENSOR_GET(bool, has_samples)

DTI_PUBLIC_GET(dt_tensor, dt_label, (dt_tensor x, const char *label), x.graph, DTI_OF(dt_graph),
               (x, label)) {
    DTI_NEED_TENSOR(x, "dt_label");
    const dti_node *n = dti_node_of(x);
    if (!label || !dti_name_fits(label))
        return dti_graph_fail(
            x.graph, "dt_label: a label must be UTF-8, not empty, without control characters");
    if (dti_is_named(n))
        return dti_graph_fail(x.graph, "dt_label: '%s' already has a name", n->label);
    const char *copy = dti_graph_string(x.graph, label);
    if (copy)
        dti_node_of(x)->label = copy;
    x.graph->changes++;
    return x;
}

DTI_PUBLIC_GET(dt_tensor, dt_recompute, (dt_tensor x), x.graph, DTI_OF(dt_graph), (x)) {
    DTI_NEED_TENSOR(x, "dt_recompute");
    dti_node_of(x)->recompute = true;
    x.graph->changes++;
    return x;
}

DTI_PUBLIC_GET(dt_tensor, dt_stage, (dt_tensor x, int stage), x.graph, DTI_OF(dt_graph),
               (x, stage)) {
    DTI_NEED_TENSOR(x, "dt_stage");
    if (stage < 1 || stage > 1024)
        return dti_graph_fail(
            x.graph,
            "dt_stage: stage is %d; it must be from 1 to 1024 (the graph begins with stage 0)",
            stage);
    dti_node_of(x)->stage = (uint16_t)stage;
    x.graph->changes++;
    return x;
}

_Static_assert(offsetof(dt_graph, owned) == 0, "dti_graph_end casts");
