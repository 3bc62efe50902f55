/* A sample by itself has the same bits in every batch, and at every place of it. It has them also
 * where the batch is computed in parts; what is summed over samples has the same bits wherever in a
 * larger array the samples lie. This is what makes any number of replicas train the same weights.
 * Every row of the op table and the usual layers are run over a batch. Then they are run over
 * pieces of it as batches of their own. Included by main.c after test_ops.c, whose cases it
 * uses. */
#ifdef DTRAIN_TESTS_OPS_CASES_H /* else it is compiled apart */

enum { ROWS_BATCH = 64, ROWS_BATCH_VULKAN = 7, ROWS_FIRST = 7 };

/* A way to compute. Those of one class give the same bits. */
typedef struct rows_way {
    const char *device;
    bool no_fast;
    int threads, isa; /* isa: of the CPU, at most */
    bool shared;      /* Vulkan: as if the device had fast shared memory */
    bool brief;       /* fewer pieces: the whole batch is compared with another way's */
} rows_way;

typedef struct rows_rig {
    rows_way way;
    dt_ctx *ctx;
    dt_graph *graph; /* keeps the device open */
    dt_store *keep;
    int batch;
    uint64_t hash; /* of all that was computed over the whole batch */
    int compared;
} rows_rig;

static bool rows_is_cpu(const rows_rig *r) {
    return !strcmp(r->way.device, "cpu");
}

static void rows_fail(rows_rig *r, const char *name, const char *what) {
    test_check(false, __FILE__, __LINE__, "%s %s: %s: %s", r->way.device, name, what,
               dt_ctx_error(r->ctx));
}

static dt_store *rows_store(rows_rig *r, dt_graph *graph) {
    dt_store *store = NULL;
    if (dt_store_create(graph, &(dt_store_desc){.device = r->way.device, .seed = 5}, &store))
        rows_fail(r, "store", "create");
    else if (rows_is_cpu(r) && !r->way.no_fast)
        ((dti_cpu_device *)(void *)store->device)->kernels = dti_isa_kernels_select(r->way.isa);
#ifndef DT_NO_VULKAN
    else if (r->way.shared)
        store->device->info.kind = DT_DEVICE_DISCRETE;
#endif
    return store;
}

static bool rows_open(rows_rig *r, rows_way way) {
    dt_ctx_desc desc = {.threads = way.threads, .no_fast = way.no_fast};
    *r = (rows_rig){.way = way, .hash = 0xcbf29ce484222325ull};
    r->batch = rows_is_cpu(r) ? ROWS_BATCH : ROWS_BATCH_VULKAN;
    if (dt_ctx_create(&desc, &r->ctx) || dt_graph_create(r->ctx, &r->graph))
        return false;
    dt_param(r->graph, "keep", dt_dims(1), (dt_init){0});
    r->keep = rows_store(r, r->graph);
    return r->keep != NULL;
}

static void rows_close(rows_rig *r) {
    dt_ctx_destroy(r->ctx);
}

/* ---- a model's values */

static uint32_t *rows_words[OPS_LEAVES]; /* of each leaf, for the whole batch */

static size_t rows_elements(dt_tensor x) {
    dt_shape s = dt_tensor_shape(x);
    size_t n = 1;
    for (int i = 0; i < s.rank; i++)
        n *= (size_t)s.dim[i];
    return n;
}

/* test_ops.c's values, of which a prime number is enough: making them takes longest of all. */
static uint32_t *rows_values(const ops_leaf *leaf, size_t n) {
    enum { MANY = 4099 };
    static uint32_t table[OPS_CLASSES][MANY];
    size_t bytes;
    if (leaf->range == OPS_CLASSES)
        return ops_words(leaf, (int64_t)n, &bytes);
    uint32_t *words = malloc(4 * n + 4), *from = table[leaf->range];
    if (!from[1]) {
        uint32_t *made = ops_words(leaf, MANY, &bytes);
        memcpy(from, made, bytes);
        free(made);
    }
    for (size_t i = 0; i < n; i++)
        words[i] = from[(i + 89u * leaf->x.id) % MANY];
    return words;
}

static void rows_fill(const rows_rig *r, ops_model *m, dt_store *store) {
    for (int i = 0; i < m->leaf_count; i++) {
        dt_tensor x = m->leaves[i].x;
        size_t n = rows_elements(x) * (dt_tensor_has_samples(x) ? (size_t)r->batch : 1);
        rows_words[i] = rows_values(&m->leaves[i], n);
        if (ops_node(x)->op == DTI_OP_PARAM)
            CHECK(!dt_store_write(store, ops_node(x)->attr.i[0], DT_VALUE_PARAM, rows_words[i],
                                  4 * n));
    }
}

static void rows_drop(const ops_model *m) {
    for (int i = 0; i < m->leaf_count; i++)
        free(rows_words[i]);
}

/* Samples [first, first + count). */
static void rows_write(const ops_model *m, dt_program *program, int first, int count) {
    for (int i = 0; i < m->leaf_count; i++) {
        dt_tensor x = m->leaves[i].x;
        size_t each = rows_elements(x);
        bool samples = dt_tensor_has_samples(x);
        for (uint32_t k = 0; k < program->code->binding_count; k++)
            if (program->code->bindings[k].node == x.id && !program->code->bindings[k].output)
                CHECK(!dt_program_write(program, x,
                                        rows_words[i] + (samples ? (size_t)first * each : 0),
                                        4 * each * (samples ? (size_t)count : 1)));
    }
}

/* ---- outputs that one program gives */

static const char *rows_case, *rows_what; /* is compared: for messages */

typedef struct rows_set {
    dt_tensor wanted[DT_MAX_OUTPUTS];
    int count;
    uint32_t *whole[DT_MAX_OUTPUTS]; /* of the whole batch */
} rows_set;

static dt_program *rows_program(rows_rig *r, ops_model *m, dt_store *store, const rows_set *set,
                                int count) {
    dt_program_desc desc = {.batch = count, .mode = m->eval ? DT_MODE_EVAL : DT_MODE_TRAIN};
    dt_program *program = NULL;
    memcpy(desc.outputs, set->wanted, sizeof desc.outputs);
    if (dt_program_create(store, &desc, &program))
        rows_fail(r, rows_case, "program_create");
    return program;
}

static bool rows_run(rows_rig *r, ops_model *m, dt_program *program, int first, int count) {
    dt_step_desc step = {
        .seed = 0x123456789abcdefull, .step = 5, .first_row = (uint32_t)(ROWS_FIRST + first)};
    rows_write(m, program, first, count);
    bool ok = dt_program_run(program, &step, NULL) == DT_OK;
    if (!ok)
        rows_fail(r, rows_case, "program_run");
    return ok;
}

/* The outputs of samples [first, first + count) against the whole batch's. */
static void rows_compare(rows_rig *r, dt_program *program, const rows_set *set, int first,
                         int count) {
    for (int i = 0; i < set->count; i++) {
        const dti_node *n = ops_node(set->wanted[i]);
        size_t each = rows_elements(set->wanted[i]), size = each * (size_t)count;
        const uint32_t *whole = set->whole[i] + (size_t)first * each;
        uint32_t *words = malloc(4 * size + 4);
        CHECK(!dt_program_read(program, set->wanted[i], words, 4 * size));
        size_t wrong = 0, at = 0;
        for (size_t k = size; k-- > 0;)
            if (words[k] != whole[k])
                wrong++, at = k;
        float a = 0, b = 0;
        if (wrong) {
            memcpy(&a, words + at, 4);
            memcpy(&b, whole + at, 4);
        }
        test_check(!wrong, __FILE__, __LINE__,
                   "%s%s threads %d isa %d, %s of case %s node %u %s (%s), samples %d to %d of %d: "
                   "%d of %d differ, first [%d]: %.9g, in the batch %.9g",
                   r->way.device, r->way.no_fast ? " no_fast" : "", r->way.threads, r->way.isa,
                   dti_op_info_of(n->op)->name, rows_case, set->wanted[i].id,
                   dti_shape_print(n->shape, n->samples).text, rows_what, first, first + count,
                   r->batch, (int)wrong, (int)size, (int)at, (double)a, (double)b);
        r->compared++;
        free(words);
    }
}

static bool rows_whole(rows_rig *r, ops_model *m, dt_store *store, rows_set *set) {
    dt_program *program = rows_program(r, m, store, set, r->batch);
    bool ok = program && rows_run(r, m, program, 0, r->batch);
    for (int i = 0; i < set->count; i++) {
        size_t size = rows_elements(set->wanted[i]) * (size_t)r->batch;
        set->whole[i] = calloc(size + 1, 4);
        if (ok && dt_program_read(program, set->wanted[i], set->whole[i], 4 * size))
            rows_fail(r, rows_case, "program_read");
        for (size_t k = 0; k < size; k++)
            r->hash = (r->hash ^ set->whole[i][k]) * 0x100000001b3ull;
    }
    dt_program_destroy(program);
    return ok;
}

static void rows_pieces(rows_rig *r, ops_model *m, dt_store *store, const rows_set *set) {
    static const int all[] = {1, 2, 3, 5, 7, 8, 16, 37, 0}, few[] = {1, 4, 0}, one[] = {1, 0};
    const bool brief = r->way.brief || !rows_is_cpu(r);
    rows_what = "a piece";
    for (const int *size = !rows_is_cpu(r) ? one : brief ? few : all; *size; size++) {
        const int last = r->batch - *size, firsts[] = {1, last, 0, last / 2};
        dt_program *program = rows_program(r, m, store, set, *size);
        for (size_t i = 0; program && i < (brief ? 2 : DTI_COUNT(firsts)); i++)
            if (rows_run(r, m, program, firsts[i], *size))
                rows_compare(r, program, set, firsts[i], *size);
        dt_program_destroy(program);
    }
}

/* The whole batch in parts, as where tensors are too large to bind. A device that really binds may
 * refuse what has no samples. */
static void rows_cut(rows_rig *r, ops_model *m, dt_store *store, const rows_set *set) {
    static const uint64_t ranges[] = {2000, 8000};
    uint64_t *range = &store->device->info.storage_range_bytes, own = *range;
    rows_what = "in parts";
    for (size_t i = 0; rows_is_cpu(r) && i < (r->way.brief ? 1 : DTI_COUNT(ranges)); i++) {
        *range = ranges[i];
        dt_program *program = rows_program(r, m, store, set, r->batch);
        if (program && rows_run(r, m, program, 0, r->batch))
            rows_compare(r, program, set, 0, r->batch);
        dt_program_destroy(program);
    }
    *range = own;
}

static void rows_check_set(rows_rig *r, ops_model *m, dt_store *store, rows_set *set) {
    if (rows_whole(r, m, store, set)) {
        rows_pieces(r, m, store, set);
        rows_cut(r, m, store, set);
    }
}

static void rows_set_free(rows_set *set) {
    for (int i = 0; i < set->count; i++)
        free(set->whole[i]);
    *set = (rows_set){0};
}

/* ---- every row of the op table */

/* docs/ops.md has it from the formula, derivatives have it from the family. */
TEST(an_op_row_says_no_gradient_where_its_family_has_none) {
    static const char *const formulas[] = {
#define DTI_X(ID, op, inputs, sample, prec, fam, select, text) text,
        DTI_OP_LIST(DTI_X)
#undef DTI_X
    };
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
        const dti_op_info *info = dti_op_info_of((uint32_t)op);
        const dti_node n = {.op = (uint16_t)op, .dtype = DT_F32};
        const bool flat = info->family->flat && info->family->flat(&n);
        CHECK(flat == (strstr(formulas[op], "no gradient") != NULL));
    }
}

/* Nodes whose value depends on which samples there are: sums over them, and what these make. */
static void rows_taint(const ops_model *m, bool *tainted) {
    for (uint32_t id = 1; id < m->graph->count; id++) {
        const dti_node *n = &m->graph->nodes[id];
        bool couples = dti_op_info_of(n->op)->samples == DTI_SAMPLES_COUPLES && !m->eval;
        tainted[id] = couples || n->term || n->op == DTI_OP_SEED || n->op == DTI_OP_RUNNING;
        for (uint32_t k = 0; k < n->count; k++) {
            dt_tensor in = dti_input_of(m->graph, n, k);
            tainted[id] = tainted[id] || tainted[in.id] || (ops_node(in)->samples && !n->samples);
        }
    }
}

/* All nodes, so that nothing is fused. */
static void rows_check_nodes(rows_rig *r, ops_model *m, dt_store *store) {
    static bool tainted[1 << 16];
    rows_set set = {0};
    CHECK(m->graph->count < DTI_COUNT(tainted));
    rows_taint(m, tainted);
    for (uint32_t id = 1; id < m->graph->count; id++) {
        const dti_node *n = &m->graph->nodes[id];
        if (tainted[id] || !n->samples || n->op == DTI_OP_INPUT || ops_is_plain(n, m->op))
            continue;
        set.wanted[set.count++] = (dt_tensor){m->graph, id};
        if (set.count == DT_MAX_OUTPUTS) {
            rows_check_set(r, m, store, &set);
            rows_set_free(&set);
        }
    }
    if (set.count)
        rows_check_set(r, m, store, &set);
    rows_set_free(&set);
}

static void rows_check_op(rows_rig *r, dti_op op, bool eval) {
    static dt_tensor dx[OPS_LEAVES];
    ops_model *m = &ops_model_now;
    if (!ops_open(m, r->ctx, op, false))
        return;
    m->eval = eval;
    rows_case = dti_op_info_of(op)->name;
    int leaves = m->leaf_count;
    for (int i = 0; i < m->result_count && !ops_is_flat(op); i++)
        ops_differentiate(m, m->results[i], ops_weights(m, m->results[i]), leaves, dx);
    dt_store *store = rows_store(r, m->graph);
    if (store) {
        rows_fill(r, m, store);
        rows_check_nodes(r, m, store);
        rows_drop(m);
    }
    dt_graph_destroy(m->graph);
}

static uint64_t rows_check_table(rows_way way) {
    rows_rig r;
    const int plain =
        strcmp(way.device, "cpu") ? 3 : 1; /* of Vulkan every third op: each compiles */
    if (rows_open(&r, way))
        for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
            if (!test_takes(op + test_draw(), plain, 9) ||
                ops_is_left_out(rows_is_cpu(&r), (dti_op)op))
                continue;
            for (int eval = 0; eval <= ops_has_modes((dti_op)op); eval++)
                rows_check_op(&r, (dti_op)op, eval);
        }
    CHECK(r.compared > (test_takes(1, plain, 9) ? 1000 : 100));
    rows_close(&r);
    return r.hash;
}

/* ---- layers, as they are used: with epilogues, and gradients by their inputs */

typedef struct rows_conv {
    int ci, height, width, co, kernel;
    dt_conv_desc desc;
    bool transposed;
} rows_conv;

static const rows_conv rows_convs[] = {
    {1, 28, 28, 8, 3, {.padding = {1, 1}}, false},
    {8, 14, 14, 16, 3, {.padding = {1, 1}}, false},
    {16, 9, 9, 24, 3, {.stride = {2, 2}, .padding = {1, 1}}, false},
    {16, 8, 8, 32, 1, {.padding = {0}}, false},
    {24, 7, 7, 40, 1, {.padding = {0}}, false},
    {16, 8, 8, 24, 1, {.stride = {2, 2}}, false},
    {12, 8, 8, 18, 3, {.padding = {1, 1}, .groups = 3}, false},
    {16, 8, 8, 16, 3, {.padding = {1, 1}, .groups = 16}, false},
    {8, 9, 9, 16, 3, {.stride = {2, 2}, .padding = {1, 1}, .groups = 8}, false},
    {3, 18, 17, 2, 5, {.padding = {2, 2}}, false},
    {3, 23, 23, 10, 7, {.stride = {2, 2}, .padding = {3, 3}}, false},
    {40, 4, 4, 33, 3, {.padding = {1, 1}}, false},
    {4, 9, 11, 6, 3, {.padding = {2, 2}, .dilation = {2, 2}}, false},
    {8, 5, 5, 6, 3, {.stride = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}}, true},
    {6, 7, 7, 9, 4, {.padding = {1, 1}, .groups = 3}, true},
};

static void rows_layer_conv(ops_model *m, size_t i) {
    const rows_conv *c = &rows_convs[i];
    dt_tensor x = ops_rows(m, dt_dims(c->ci, c->height, c->width), OPS_ANY);
    dt_conv_layer_desc desc = {.conv = c->desc};
    ops_result(m, dt_relu(c->transposed ? dt_nn_conv_transpose2d(x, "a", c->co, c->kernel, &desc)
                                        : dt_nn_conv2d(x, "a", c->co, c->kernel, &desc)));
}

static void rows_layer_mlp(ops_model *m, size_t i) {
    static const int64_t sizes[][3] = {{784, 128, 10}, {20, 33, 5}, {1, 40, 1}, {300, 7, 64}};
    dt_tensor h =
        dt_relu(dt_nn_linear(ops_rows(m, dt_dims(sizes[i][0]), OPS_ANY), "a", sizes[i][1]));
    ops_result(m, h);
    ops_result(m, dt_nn_linear(dt_dropout(h, 0.25f), "b", sizes[i][2]));
}

/* Rows inside of a sample, and a loss: its gradient by the logits. */
static void rows_layer_loss(ops_model *m, size_t i) {
    dt_tensor h = dt_gelu(dt_nn_linear(ops_rows(m, dt_dims(4, 24), OPS_ANY), "a", 36));
    dt_tensor y = dt_nn_linear(h, "b", 11), t = ops_whole(m, true, dt_dims(4), 11);
    m->leaves[m->leaf_count - 1].ignores = true;
    ops_result(m, dt_log_softmax(y, -1));
    ops_result(m, dt_gradient(i ? dt_mse(y, ops_rows(m, dt_dims(4, 11), OPS_ANY))
                                : dt_cross_entropy(y, t, NULL),
                              m->leaves[0].x));
}

/* Heads of attention, and a block around it. */
static void rows_layer_attention(ops_model *m, size_t i) {
    const int64_t rows = i ? 5 : 33, width = i ? 12 : 32, heads = 4;
    dt_tensor x = dt_nn_layer_norm(ops_rows(m, dt_dims(rows, width), OPS_ANY), "ln", 1), qkv[3];
    static const char *const names[] = {"q", "k", "v"};
    for (int k = 0; k < 3; k++) {
        dt_tensor y = dt_nn_linear(x, names[k], width);
        y = dt_reshape(y, dt_dims(rows, heads, width / heads));
        qkv[k] = dt_permute(y, dt_dims(1, 0, 2));
    }
    dt_tensor score = dt_affine(dt_matmul_transposed(qkv[0], qkv[1], false, true), 0.3f, 0);
    dt_tensor y = dt_matmul(dt_softmax(score, -1), qkv[2]);
    y = dt_reshape(dt_permute(y, dt_dims(1, 0, 2)), dt_dims(rows, width));
    ops_result(m, dt_add(x, dt_nn_linear(y, "o", width)));
}

/* Views whose samples lie at odd distances: what can be loaded by fours differs for one sample. */
static void rows_layer_views(ops_model *m, size_t i) {
    dt_tensor x = ops_rows(m, dt_dims(1, 9), OPS_ANY), w = ops_param(m, dt_dims(8, 40), OPS_ANY);
    if (i == 0)
        ops_result(m, dt_matmul(dt_slice(x, 1, 0, 8), w));
    else if (i == 1)
        ops_result(m, dt_linear(dt_slice(x, 1, 1, 8), ops_param(m, dt_dims(36, 8), OPS_ANY),
                                (dt_tensor){0}));
    else
        ops_result(m, dt_sum(dt_expand(ops_rows(m, dt_dims(i == 2 ? 1 : 2), OPS_ANY),
                                       dt_dims(70, i == 2 ? 1 : 2)),
                             dt_dims(0), false));
}

static void rows_layer_pool(ops_model *m, size_t i) {
    dt_tensor x = ops_rows(m, dt_dims(5, 12, 10), OPS_ANY);
    dt_pool_desc two = {.kernel = {2, 2}}, three = {{3, 3}, {2, 2}, {1, 1}, false, i == 3};
    dt_tensor y = i < 4 ? dt_relu(dt_nn_conv2d(x, "a", 6, 3, NULL)) : x;
    y = i == 0   ? dt_max_pool2d(y, &two)
        : i == 1 ? dt_max_pool2d(y, &three)
        : i < 4  ? dt_avg_pool2d(y, i == 2 ? &two : &three)
        : i == 4 ? dt_adaptive_avg_pool2d(y, 3, 4)
                 : dt_resize(y, 17, 13, i == 5 ? DT_RESIZE_BILINEAR : DT_RESIZE_NEAREST);
    ops_result(m, y);
}

static void rows_layer_norm(ops_model *m, size_t i) {
    dt_tensor x = ops_rows(m, i < 3 ? dt_dims(6, 5, 7) : dt_dims(3, 70), OPS_ANY);
    x = dt_mul(x, x);
    ops_result(m, dt_relu(i % 3 == 0   ? dt_nn_layer_norm(x, "n", 1)
                          : i % 3 == 1 ? dt_nn_group_norm(x, "n", 3)
                                       : dt_nn_rms_norm(x, "n", 2)));
}

static void rows_layer_gather(ops_model *m, size_t i) {
    dt_tensor y = dt_nn_embedding(ops_whole(m, true, dt_dims(6), 50), "e", 50, i ? 3 : 32);
    ops_result(m, dt_mean(dt_dropout(dt_mul(y, ops_rows(m, dt_dims(6, 1), OPS_ANY)), 0.5f),
                          dt_dims(0), false));
}

static const struct {
    const char *name;
    void (*make)(ops_model *m, size_t i);
    size_t count;
    bool products;
} rows_layers[] = {
    {"mlp", rows_layer_mlp, 4, true},
    {"loss", rows_layer_loss, 2, true},
    {"views", rows_layer_views, 4, true},
    {"attention", rows_layer_attention, 2, true},
    {"pool", rows_layer_pool, 7, false},
    {"norm", rows_layer_norm, 6, false},
    {"embedding", rows_layer_gather, 2, false},
    {"conv", rows_layer_conv, DTI_COUNT(rows_convs), false},
};

static bool rows_layer_open(rows_rig *r, ops_model *m, size_t layer, size_t i) {
    static dt_tensor dx[OPS_LEAVES];
    m->leaf_count = m->result_count = 0;
    m->op = DTI_OP_NIL;
    m->eval = m->small = false;
    rows_case = rows_layers[layer].name;
    if (dt_graph_create(r->ctx, &m->graph))
        return false;
    rows_layers[layer].make(m, i);
    for (int k = m->result_count - 1, leaves = m->leaf_count; k >= 0; k--) {
        dt_tensor y = m->results[k];
        if (dti_is_nil(y) || ops_node(y)->op == DTI_OP_LINEAR_DX)
            continue; /* a gradient already */
        ops_differentiate(m, y, ops_weights(m, y), leaves, dx);
        for (int j = 0; j < leaves; j++)
            if (!dti_is_nil(dx[j]) && ops_node(dx[j])->samples)
                ops_result(m, dx[j]);
    }
    const char *error = dt_graph_error(m->graph);
    test_check(!error, __FILE__, __LINE__, "%s %d: %s", rows_case, (int)i, error ? error : "");
    CHECK(m->result_count <= DT_MAX_OUTPUTS);
    return !error && m->result_count <= DT_MAX_OUTPUTS;
}

/* Without others, where epilogues take the place of launches, and then with other outputs beside
 * them. */
static void rows_check_layer(rows_rig *r, ops_model *m, dt_store *store) {
    static bool tainted[1 << 12];
    rows_set set = {.count = m->result_count};
    memcpy(set.wanted, m->results, (size_t)m->result_count * sizeof *set.wanted);
    rows_check_set(r, m, store, &set);
    rows_taint(m, tainted);
    rows_what = "with others";
    for (uint32_t id = 1; id < m->graph->count && set.count < DT_MAX_OUTPUTS; id++) {
        rows_set both = set;
        const dti_node *n = &m->graph->nodes[id];
        if (tainted[id] || !n->samples || n->op == DTI_OP_INPUT || ops_is_plain(n, m->op))
            continue;
        for (; id < m->graph->count && both.count < DT_MAX_OUTPUTS; id++)
            if (!tainted[id] && m->graph->nodes[id].samples &&
                m->graph->nodes[id].op != DTI_OP_INPUT)
                both.wanted[both.count++] = (dt_tensor){m->graph, id};
        dt_program *program = rows_program(r, m, store, &both, r->batch);
        if (program && rows_run(r, m, program, 0, r->batch))
            rows_compare(r, program, &set, 0, r->batch);
        dt_program_destroy(program);
    }
    rows_set_free(&set);
}

static uint64_t rows_check_layers(rows_way way) {
    rows_rig r;
    ops_model *m = &ops_model_now;
    bool open = rows_open(&r, way);
    for (size_t layer = 0; open && layer < DTI_COUNT(rows_layers); layer++)
        for (size_t i = 0; i < rows_layers[layer].count; i++) {
            if (way.shared && !rows_layers[layer].products)
                continue; /* the same kernels in every way */
            if (!rows_layer_open(&r, m, layer, i))
                continue;
            dt_store *store = rows_store(&r, m->graph);
            if (store) {
                rows_fill(&r, m, store);
                rows_check_layer(&r, m, store);
                rows_drop(m);
            }
            dt_graph_destroy(m->graph);
        }
    CHECK(r.compared > 50);
    rows_close(&r);
    return r.hash;
}

/* ---- sums over samples, of rows in the middle of a larger array. The parts of lower/cut.c are
 * added in order */

enum { ROWS_PART = 11 }; /* samples of a part, at places of no alignment */

static dt_tensor rows_sum_linear(ops_model *m, int64_t rows, int64_t out, int64_t in) {
    dt_tensor dy = ops_rows(m, dt_dims(rows, out), OPS_ANY);
    return dti_append2(DTI_OP_LINEAR_DW, dy, ops_rows(m, dt_dims(rows, in), OPS_ANY), NULL);
}

static dt_tensor rows_sum_conv(ops_model *m, size_t i) {
    const rows_conv *c = &rows_convs[i];
    dt_tensor x = ops_rows(m, dt_dims(c->ci, c->height, c->width), OPS_ANY), dx[2];
    int64_t groups = c->desc.groups ? c->desc.groups : 1;
    dt_tensor w = c->transposed
                      ? ops_param(m, dt_dims(c->ci, c->co / groups, c->kernel, c->kernel), OPS_ANY)
                      : ops_param(m, dt_dims(c->co, c->ci / groups, c->kernel, c->kernel), OPS_ANY);
    dt_tensor none = {0}, wrt[2] = {none, w};
    dt_tensor y =
        c->transposed ? dt_conv_transpose2d(x, w, none, &c->desc) : dt_conv2d(x, w, none, &c->desc);
    dti_differentiate(m->graph, y, ops_like(m, y, OPS_ANY), wrt, 2, dx);
    return dx[1];
}

static dt_tensor rows_sum_norm(ops_model *m, bool layer) {
    dt_tensor x = ops_rows(m, dt_dims(6, 5, 7), OPS_ANY), wrt[1], dx[1];
    dt_tensor y = layer ? dt_nn_layer_norm(x, "n", 1) : dt_nn_group_norm(x, "n", 3);
    for (uint32_t id = 1; id < m->graph->count; id++)
        if (m->graph->nodes[id].op == DTI_OP_PARAM && m->graph->nodes[id].attr.i[0] == 0)
            wrt[0] = (dt_tensor){m->graph, id};
    dti_differentiate(m->graph, y, ops_like(m, y, OPS_ANY), wrt, 1, dx);
    return dx[0];
}

static dt_tensor rows_sum_scatter(ops_model *m) {
    dti_attr attr = dti_shape_attr(dt_dims(9, 3));
    return dti_append2(DTI_OP_SCATTER_ADD, ops_rows(m, dt_dims(40, 3), OPS_ANY),
                       ops_whole(m, true, dt_dims(40), 9), &attr);
}

/* Of logits whose targets are classes; a term. */
static dt_tensor rows_sum_loss(ops_model *m, int kind) {
    dt_tensor x = ops_rows(m, dt_dims(30, 7), OPS_ANY), t = ops_whole(m, true, dt_dims(30), 7);
    m->leaves[m->leaf_count - 1].ignores = kind == 0;
    return kind == 0   ? dt_cross_entropy(x, t, NULL)
           : kind == 1 ? dt_accuracy(x, t)
           : kind == 2 ? dt_mean_loss(x)
                       : dt_mse(x, ops_rows(m, dt_dims(30, 7), OPS_ANY));
}

enum { ROWS_SUMS = 9 }; /* and a convolution each */

static dt_tensor rows_sum_of(ops_model *m, size_t i) {
    switch (i) {
    case 0: return rows_sum_linear(m, 61, 13, 20);
    case 1: return rows_sum_linear(m, 1, 3, 785);
    case 2: return rows_sum_scatter(m);
    case 3: return rows_sum_norm(m, true);
    case 4: return rows_sum_norm(m, false);
    case 5: return dt_sum_samples(ops_rows(m, dt_dims(67), OPS_ANY));
    case 6:
        return dti_sum_to(ops_rows(m, dt_dims(61, 5), OPS_ANY), ops_shared(m, dt_dims(5), OPS_ANY));
    case 7:
        return dti_sum_to(ops_rows(m, dt_dims(4, 70), OPS_ANY),
                          ops_shared(m, dt_dims(4, 1), OPS_ANY));
    case 8: return dt_sum_samples(ops_rows(m, dt_dims(3, 170), OPS_ANY));
    default:
        return i < ROWS_SUMS + DTI_COUNT(rows_convs)
                   ? rows_sum_conv(m, i - ROWS_SUMS)
                   : rows_sum_loss(m, (int)(i - ROWS_SUMS - DTI_COUNT(rows_convs)));
    }
}

/* The sum over samples [first, first + count); a term is (sum, weight). */
static bool rows_sum_run(rows_rig *r, ops_model *m, dt_store *store, dt_tensor y, int first,
                         int count, float *sums) {
    dt_program_desc desc = {.batch = count, .mode = DT_MODE_TRAIN};
    dt_program *program = NULL;
    dt_report report;
    bool term = ops_node(y)->term;
    (term ? desc.metrics : desc.outputs)[0] = y;
    bool ok = !dt_program_create(store, &desc, &program);
    if (ok)
        rows_write(m, program, first, count);
    dt_step_desc step = {.step = 5, .first_row = (uint32_t)first};
    ok = ok && !dt_program_run(program, &step, &report);
    if (ok && term) {
        sums[0] = (float)report.metric_sum[0];
        sums[1] = (float)report.metric_weight[0];
    } else if (ok) {
        ok = !dt_program_read(program, y, sums, 4 * rows_elements(y));
    }
    if (!ok)
        rows_fail(r, rows_case, "a sum");
    dt_program_destroy(program);
    return ok;
}

/* The bytes of ROWS_PART samples of the largest input are what can be bound. */
static uint64_t rows_sum_range(const ops_model *m) {
    size_t most = 0;
    for (int i = 0; i < m->leaf_count; i++)
        if (dt_tensor_has_samples(m->leaves[i].x))
            most = DTI_MAX(most, rows_elements(m->leaves[i].x));
    return 4 * ((int)DTI_PLACE_ALIGN / 4 + ROWS_PART * most + most / 2);
}

/* False: the device could not bind the sums themselves, or their parts: convolutions' weights have
 * one for DTI_CONV_PART positions or more. */
static bool rows_sum_fits(const rows_rig *r, const ops_model *m, dt_tensor y) {
    const dti_node *node = ops_node(y);
    uint64_t parts = ROWS_PART;
    if (node->op == DTI_OP_CONV2D_DW) {
        const dt_shape dy = m->graph->nodes[m->graph->inputs[node->first]].shape;
        const uint64_t positions = (uint64_t)(ROWS_PART * dy.dim[1] * dy.dim[2]);
        parts = DTI_MAX(parts, positions / DTI_CONV_PART);
    }
    return rows_is_cpu(r) || 4 * parts * rows_elements(y) <= rows_sum_range(m);
}

static void rows_check_sum(rows_rig *r, ops_model *m, dt_store *store, dt_tensor y) {
    size_t n = ops_node(y)->term ? 2 : rows_elements(y), wrong = 0, at = 0;
    float *all = calloc(3 * n, 4), *expected = all + n, *part = expected + n;
    uint64_t *range = &store->device->info.storage_range_bytes, own = *range;
    bool ok = true;
    for (int first = 0; first < r->batch && ok; first += ROWS_PART) {
        int count = DTI_MIN(ROWS_PART, r->batch - first);
        ok = rows_sum_run(r, m, store, y, first, count, first ? part : expected);
        for (size_t k = 0; k < n && first; k++)
            expected[k] += part[k];
    }
    *range = rows_sum_range(m);
    ok = ok && rows_sum_run(r, m, store, y, 0, r->batch, all);
    *range = own;
    for (size_t k = n; k-- > 0;)
        if (memcmp(&all[k], &expected[k], 4))
            wrong++, at = k;
    test_check(!wrong, __FILE__, __LINE__,
               "%s%s isa %d, %s (%s): %d of %d differ, [%d] %.9g, its "
               "parts' %.9g",
               r->way.device, r->way.no_fast ? " no_fast" : "", r->way.isa, rows_case,
               ops_node(y)->term ? "term" : dti_shape_print(ops_node(y)->shape, false).text,
               (int)wrong, (int)n, (int)at, (double)all[at], (double)expected[at]);
    r->compared += ok;
    free(all);
}

static void rows_check_sums(rows_way way) {
    const size_t count = ROWS_SUMS + DTI_COUNT(rows_convs) + 4;
    rows_rig r;
    ops_model *m = &ops_model_now;
    bool open = rows_open(&r, way);
    r.batch = 3 * ROWS_PART + 2;
    for (size_t i = 0; open && i < count; i++) {
        m->leaf_count = m->result_count = 0;
        m->op = DTI_OP_NIL;
        if (dt_graph_create(r.ctx, &m->graph))
            break;
        dt_tensor y = rows_sum_of(m, i);
        rows_case = dti_is_nil(y) ? "nil" : dti_op_info_of(ops_node(y)->op)->name;
        dt_store *store = rows_store(&r, m->graph);
        if (store && rows_sum_fits(&r, m, y)) {
            rows_fill(&r, m, store);
            rows_check_sum(&r, m, store, y);
            rows_drop(m);
        }
        dt_graph_destroy(m->graph);
    }
    CHECK(r.compared >= (int)count - (rows_is_cpu(&r) ? 0 : 6));
    rows_close(&r);
}

/* ---- ways */

static const rows_way rows_cpu = {"cpu", .threads = 1, .isa = DTI_ISA_BEST};
static const rows_way rows_cpu2 = {"cpu", .threads = 2, .isa = DTI_ISA_BEST, .brief = true};
static const rows_way rows_avx2 = {"cpu", .threads = 3, .isa = DTI_ISA_AVX2, .brief = true};
static const rows_way rows_plain = {"cpu", .no_fast = true, .threads = 1, .brief = true};
static const rows_way rows_plain2 = {"cpu", .no_fast = true, .threads = 2, .brief = true};

/* The whole op table in every way takes a minute: in the long tests. */
static bool rows_long(void) {
    return getenv("DTRAIN_TEST_LONG") != NULL;
}

/* Under a sanitizer it is the memory that is looked at, not the bits: one way is enough. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { ROWS_WAYS = 1 };
#else
enum { ROWS_WAYS = 3 };
#endif

TEST(a_sample_has_the_same_bits_in_every_batch_on_the_cpu) {
    uint64_t one = rows_check_table(rows_long() ? rows_cpu : rows_cpu2);
    if (rows_long())
        CHECK(one == rows_check_table(rows_cpu2));
    if (ROWS_WAYS > 1 && dti_isa_select(DTI_ISA_AVX2) == DTI_ISA_AVX2)
        CHECK(one == rows_check_table(rows_avx2));
}

TEST(a_sample_has_the_same_bits_in_every_batch_on_the_portable_cpu) {
    uint64_t one = ROWS_WAYS > 1 ? rows_check_table(rows_plain) : 1;
    CHECK(one != 0);
    if (rows_long())
        CHECK(one == rows_check_table(rows_plain2));
}

TEST(layers_give_a_sample_the_same_bits_in_every_batch_on_the_cpu) {
    uint64_t one = rows_check_layers(rows_cpu2);
    CHECK(one != 0);
    if (ROWS_WAYS == 1 && !rows_long())
        return;
    CHECK(one == rows_check_layers(rows_cpu));
    if (dti_isa_select(DTI_ISA_AVX2) == DTI_ISA_AVX2)
        CHECK(one == rows_check_layers(rows_avx2));
    one = rows_check_layers(rows_plain);
    CHECK(one == rows_check_layers(rows_plain2));
}

TEST(sums_over_samples_have_the_same_bits_wherever_their_rows_lie_on_the_cpu) {
    rows_check_sums(rows_cpu);
    rows_check_sums(rows_cpu2);
    if (dti_isa_select(DTI_ISA_AVX2) == DTI_ISA_AVX2)
        rows_check_sums(rows_avx2);
    rows_check_sums(rows_plain);
}

#ifndef DT_NO_VULKAN

static bool rows_is_software(const char *id) {
    dt_ctx *ctx = ops_ctx();
    bool software = false;
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        software = software || (!strcmp(info->id, id) && info->kind == DT_DEVICE_SOFTWARE);
    }
    dt_ctx_destroy(ctx);
    return software;
}

/* A software driver is not given the variants that are fast on others. There is then no slower way
 * but a faster one, which is tried as well. */
static void rows_check_vulkan(const char *id) {
    bool software = rows_is_software(id);
    rows_check_layers((rows_way){id, .threads = 1});
    rows_check_layers((rows_way){id, .threads = 1, .no_fast = !software, .shared = software});
}

#define ROWS_VULKAN_TEST(number)                                                                   \
    TEST(vulkan_device_##number##_gives_a_sample_the_same_bits_in_every_batch) {                   \
        char id[32];                                                                               \
        if (!ops_vulkan(number, id))                                                               \
            SKIP("no such device");                                                                \
        if (!ops_is_slow(id))                                                                      \
            rows_check_table((rows_way){id, .threads = 1});                                        \
    }                                                                                              \
    TEST(vulkan_device_##number##_gives_the_same_bits_of_layers_in_every_batch) {                  \
        char id[32];                                                                               \
        if (!ops_vulkan(number, id))                                                               \
            SKIP("no such device");                                                                \
        if (!ops_is_slow(id))                                                                      \
            rows_check_vulkan(id);                                                                 \
    }                                                                                              \
    TEST(vulkan_device_##number##_sums_samples_with_the_same_bits_wherever_they_lie) {             \
        char id[32];                                                                               \
        if (!ops_vulkan(number, id))                                                               \
            SKIP("no such device");                                                                \
        rows_check_sums((rows_way){id, .threads = 1});                                             \
    }
ROWS_VULKAN_TEST(0)
ROWS_VULKAN_TEST(1)

#endif
#endif
