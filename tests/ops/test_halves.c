/* Operands in 16 bits that a kernel reads or writes itself: every row whose family says .halves.
 * Each such operand by itself, and all together, against the same row in f32 between casts of their
 * own. Included by main.c after test_ops.c, whose models it takes. */

#define HALVES_MASKS (DTI_INPUTS_MAX + 2)

/* One row between casts; the casts are folded into its launches where nothing else reads them. */
typedef struct halves_row {
    dt_tensor wide[DTI_INPUTS_MAX]; /* f32, of 16 bits */
    uint32_t count;
    dt_tensor y, result; /* the row's; what is read: y, or a copy of y in 16 bits */
} halves_row;

/* x in 16 bits as f32. strided: it lies in rows of twice the length. */
static dt_tensor halves_operand(dt_tensor x, bool strided) {
    const int64_t rank = ops_node(x)->shape.rank;
    dt_tensor low = dt_cast(x, DT_BF16);
    if (strided && rank > 0) {
        const int64_t n = ops_node(x)->shape.dim[rank - 1];
        low = dt_slice(dt_concat((dt_tensor[]){low, low}, 2, -1), -1, n, n);
    }
    return dt_cast(low, DT_F32);
}

/* Node id again, of operands `mask` in 16 bits. */
static bool halves_make(halves_row *r, dt_graph *g, uint32_t id, uint32_t mask, bool strided) {
    const dti_node n = g->nodes[id];
    dt_tensor in[DTI_INPUTS_MAX];
    *r = (halves_row){.count = 0};
    for (uint32_t i = 0; i < n.count; i++) {
        in[i] = dti_input_of(g, &n, i);
        if ((mask >> i & 1) && ops_is_float(in[i]))
            in[i] = r->wide[r->count++] = halves_operand(in[i], strided);
    }
    r->y = r->result = dti_append(g, (dti_op)n.op, in, n.count, &n.attr);
    if (mask & DTI_HALF_OUT)
        r->result = dt_copy(dt_cast(r->y, DT_BF16));
    return !dt_graph_error(g) && (r->count || (mask & DTI_HALF_OUT));
}

typedef struct halves_run {
    ops_device *d;
    ops_model *m;
    dt_store *store;
    ref_run *run;
    int launches; /* of the newest program */
    float *value; /* its first output, as f32, or a term */
    int64_t elements;
} halves_run;

static void halves_read(halves_run *h, dt_program *program, dt_tensor x) {
    const bool half = ops_node(x)->dtype == DT_BF16;
    uint16_t *bits = malloc((size_t)(h->elements + 1) * 4);
    CHECK(dt_program_read(program, x, bits, (size_t)h->elements * (half ? 2 : 4)) == DT_OK);
    memcpy(h->value, bits, (size_t)h->elements * (half ? 0 : 4));
    for (int64_t i = 0; i < h->elements && half; i++)
        h->value[i] = dti_f32_from_bf16(bits[i]);
    free(bits);
}

/* x by a program that has to give `others` too. */
static void halves_compute(halves_run *h, dt_tensor x, const dt_tensor *others, uint32_t count) {
    dt_program_desc desc = {.batch = (int)h->run->batch, .mode = DT_MODE_TRAIN};
    dt_program *program;
    dt_report report;
    dt_program_info info = {0};
    const bool term = ops_node(x)->term;
    uint32_t outputs = 0;
    if (term)
        desc.metrics[0] = x;
    else
        desc.outputs[outputs++] = x;
    for (uint32_t i = 0; i < count; i++)
        desc.outputs[outputs++] = others[i];
    ref_mark(h->run, &x, 1);
    h->elements = term ? 2 : ref_tensor_of(h->run, x)->elements;
    h->value = calloc((size_t)h->elements + 1, sizeof *h->value);
    if (dt_program_create(h->store, &desc, &program)) {
        ops_fail(h->d, "program_create", h->m);
        return;
    }
    ops_write_inputs(h->d, h->m, h->run, program);
    const dt_step_desc step = {.seed = h->run->step.seed, .step = h->run->step.step};
    CHECK(dt_program_run(program, &step, &report) == DT_OK);
    dt_program_get_info(program, &info);
    h->launches = info.launches;
    if (term)
        h->value[0] = (float)report.metric_sum[0], h->value[1] = (float)report.metric_weight[0];
    else
        halves_read(h, program, x);
    dt_program_destroy(program);
}

static void halves_compare(halves_run *h, const halves_row *r, uint32_t mask, bool strided) {
    dt_tensor others[DTI_INPUTS_MAX];
    memcpy(others, r->wide, sizeof others);
    halves_compute(h, r->result, NULL, 0);
    float *folded = h->value;
    const int launches = h->launches, casts = (int)r->count + (mask & DTI_HALF_OUT ? 1 : 0);
    halves_compute(h, r->y, others, r->count);
    int wrong = 0;
    for (int64_t i = 0; i < h->elements; i++) {
        float f = h->value[i];
        if (mask & DTI_HALF_OUT)
            f = dti_f32_from_bf16(dti_bf16_from_f32(f));
        wrong +=
            dti_bits_from_f32(f) != dti_bits_from_f32(folded[i]) && !(isnan(f) && isnan(folded[i]));
    }
    /* casts of their own in the second: those of operands; in the first the copy of the result */
    const int least = h->launches - (int)r->count + (mask & DTI_HALF_OUT ? 1 : 0);
    test_check(!wrong, __FILE__, __LINE__, "%s node %u, operands %x%s: %d of %d elements differ",
               dti_op_info_of(ops_node(r->y)->op)->name, r->y.id, mask, strided ? ", strided" : "",
               wrong, (int)h->elements);
    /* what lies apart may be packed, and of nothing there is nothing to fold */
    test_check(launches <= least || strided || !h->elements, __FILE__, __LINE__,
               "%s node %u, operands %x%s: %d launches, %d with %d casts of their own",
               dti_op_info_of(ops_node(r->y)->op)->name, r->y.id, mask, strided ? ", strided" : "",
               launches, h->launches, casts);
    free(folded);
    free(h->value);
}

/* Each operand in 16 bits that a family takes, one by one, then all. */
static uint32_t halves_mask(uint32_t halves, uint32_t inputs, uint32_t number) {
    if (number < inputs)
        return halves & 1u << number;
    return number == inputs ? halves & DTI_HALF_OUT : halves;
}

/* Rows that only show their operands otherwise, or are a cast themselves, have no kernel. */
static bool halves_is_checked(uint32_t op) {
    const dti_op_family *family = dti_op_info_of(op)->family;
    return family->halves && family->shape && family != &dti_family_cast &&
           family != &dti_family_parted_copy;
}

/* The rows of the model's op; of NIL all that take 16 bits. */
static void halves_check_model(ops_device *d, ops_model *m, bool strided) {
    static halves_row rows[OPS_RESULTS * HALVES_MASKS];
    static uint32_t masks[OPS_RESULTS * HALVES_MASKS];
    dt_graph *g = m->graph;
    const uint32_t nodes = g->count;
    uint32_t count = 0;
    ref_run run;
    halves_run h = {.d = d, .m = m, .run = &run};
    for (uint32_t id = 1; id < nodes; id++) {
        const uint32_t inputs = g->nodes[id].count, op = g->nodes[id].op;
        const uint32_t halves = dti_op_info_of(op)->family->halves;
        const bool wanted = m->op == DTI_OP_NIL ? halves_is_checked(op) : op == (uint32_t)m->op;
        for (uint32_t k = 0; k <= inputs + 1 && wanted && inputs; k++) {
            masks[count] = halves_mask(halves, DTI_MIN(inputs, DTI_INPUTS_MAX), k);
            if (g->nodes[id].term || dti_is_whole(g->nodes[id].dtype))
                masks[count] &= ~DTI_HALF_OUT;
            if (count < DTI_COUNT(rows) && inputs <= DTI_INPUTS_MAX && masks[count])
                count += halves_make(&rows[count], g, id, masks[count], strided);
        }
    }
    CHECK(!dt_graph_error(g));
    ops_run_open(m, &run);
    if (dt_store_create(g, &(dt_store_desc){.device = d->id}, &h.store)) {
        ops_fail(d, "store_create", m);
    } else {
        ops_write_params(d, m, &run, h.store);
        for (uint32_t i = 0; i < count; i++)
            halves_compare(&h, &rows[i], masks[i], strided);
        dt_store_destroy(h.store);
    }
    ref_close(&run);
}

static void halves_check_rows(bool strided) {
    ops_device d;
    if (ops_device_open(&d, "cpu", false)) {
        for (int op = 0; op < DTI_OP_COUNT; op++) {
            if (!halves_is_checked((uint32_t)op))
                continue;
            if (!ops_open(&ops_model_now, d.ctx, (dti_op)op, d.small))
                continue;
            halves_check_model(&d, &ops_model_now, strided);
            dt_graph_destroy(ops_model_now.graph);
        }
    }
    ops_device_close(&d);
}

TEST(every_op_that_takes_16_bits_has_the_bits_of_f32_rounded_once) {
    halves_check_rows(false);
}

TEST(every_op_that_takes_16_bits_takes_them_with_strides) {
    halves_check_rows(true);
}

/* ---- sizes that kernels cut into blocks */

static dt_tensor halves_softmax(dt_tensor x) {
    return dt_softmax(x, -1);
}
static dt_tensor halves_gelu(dt_tensor x) {
    return dt_gelu(x);
}
static dt_tensor halves_row_add(dt_tensor x) {
    return dt_add(x, dt_slice(x, 0, 0, 1));
}
static dt_tensor halves_turned(dt_tensor x) {
    return dt_copy(dt_permute(x, dt_dims(1, 0)));
}
/* Of sizes that are so far apart that a sum depends on its order. */
static dt_tensor halves_apart(dt_tensor x) {
    return dt_mul(x, dt_exp(dt_affine(x, 6.0f, 0.0f)));
}
static dt_tensor halves_sum_rows(dt_tensor x) {
    return dt_sum(halves_apart(x), dt_dims(1), false);
}
static dt_tensor halves_sum_columns(dt_tensor x) {
    return dt_sum(halves_apart(x), dt_dims(0), false);
}
static dt_tensor halves_max_rows(dt_tensor x) {
    return dt_max(x, dt_dims(1), false);
}
static dt_tensor halves_sum_apart(dt_tensor x) {
    return dt_sum_samples(halves_apart(x));
}
static dt_tensor halves_dropout(dt_tensor x) {
    return dt_dropout(x, 0.25f);
}
static dt_tensor halves_pool(dt_tensor x) {
    const dt_shape s = dt_tensor_shape(x);
    return dt_max_pool2d(dt_reshape(x, dt_dims(1, s.dim[0], s.dim[1])),
                         &(dt_pool_desc){.kernel = {3, 2}});
}
static dt_tensor halves_layer_norm(dt_tensor x) {
    return dt_nn_layer_norm(x, "norm", 1);
}
static dt_tensor halves_group_norm(dt_tensor x) {
    const dt_shape s = dt_tensor_shape(x);
    return dt_nn_group_norm(dt_reshape(x, dt_dims(s.dim[0], s.dim[1], 1)), "norm", 1);
}
static dt_tensor halves_batch_norm(dt_tensor x) {
    const dt_shape s = dt_tensor_shape(x);
    return dt_nn_batch_norm(dt_reshape(x, dt_dims(s.dim[0], s.dim[1], 1)), "norm", NULL);
}
static dt_tensor halves_row_norm(dt_tensor x) {
    const dt_shape s = dt_tensor_shape(x);
    return dt_nn_batch_norm(dt_reshape(x, dt_dims(s.dim[0] * s.dim[1])), "norm", NULL);
}

typedef struct halves_size {
    dt_tensor (*make)(dt_tensor x);
    int64_t rows, cols;
    bool slope; /* its gradient */
} halves_size;

static const halves_size halves_sizes[] = {
    {halves_softmax, 7, 1031, true},      {halves_softmax, 2, 5003, true},
    {halves_gelu, 3, 4099, true},         {halves_row_add, 5, 1500, false},
    {halves_turned, 130, 37, false},      {halves_sum_rows, 3, 4999, false},
    {halves_sum_columns, 70, 133, false}, {halves_max_rows, 9, 2100, false},
    {halves_sum_apart, 3, 1031, false},   {halves_dropout, 3, 5003, true},
    {halves_pool, 71, 90, true},          {halves_layer_norm, 37, 391, true},
    {halves_layer_norm, 2, 4500, true},   {halves_group_norm, 11, 433, true},
    {halves_batch_norm, 5, 2311, true},   {halves_row_norm, 1, 391, true}};

static void halves_check_size(const halves_size *s, int threads) {
    static dt_tensor dx[OPS_LEAVES];
    ops_model *m = &ops_model_now;
    ops_device d = {.cpu = true, .id = "cpu"};
    *m = (ops_model){.op = DTI_OP_NIL};
    if (dt_ctx_create(&(dt_ctx_desc){.threads = threads}, &d.ctx) ||
        dt_graph_create(d.ctx, &m->graph))
        return;
    const dt_tensor x = dt_input(m->graph, "x", DT_F32, dt_dims(s->rows, s->cols));
    ops_leaf_add(m, x, OPS_ANY);
    dt_tensor y = s->make(x);
    for (uint32_t id = 1; id < y.id; id++) {
        if (m->graph->nodes[id].op == DTI_OP_PARAM)
            ops_leaf_add(m, (dt_tensor){m->graph, id}, OPS_ANY);
    }
    dt_param(m->graph, "keep", dt_dims(1), (dt_init){0});
    if (s->slope)
        ops_differentiate(m, y, ops_weights(m, y), 1, dx);
    halves_check_model(&d, m, threads > 1);
    dt_graph_destroy(m->graph);
    dt_ctx_destroy(d.ctx);
}

TEST(blocks_of_16_bits_have_the_bits_of_f32_rounded_once) {
    for (size_t i = 0; i < DTI_COUNT(halves_sizes); i++) {
        halves_check_size(&halves_sizes[i], 1);
        halves_check_size(&halves_sizes[i], 3);
    }
}
