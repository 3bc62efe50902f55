/* The passes that make code of a graph, one by one, and code as a whole. They need neither a device
 * nor a store. Included by main.c; what programs compute is in the tests of programs. */

typedef struct lower_case {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t, hidden, logits, loss;
    dti_layout layout;
    dt_program_desc program;
    dt_optim_desc optim;
    dti_code_desc desc;
    dti_lowering w;
    uint32_t next;
} lower_case;

/* x [6] -> 5, relu -> 3, cross-entropy; beside it a layer that nobody needs. */
static bool lower_open(lower_case *c, uint32_t batch) {
    *c = (lower_case){.optim = {.kind = DT_OPTIM_SGD}};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &c->ctx) ||
        dt_graph_create(c->ctx, &c->graph))
        return false;
    c->x = dt_input(c->graph, "x", DT_F32, dt_dims(6));
    c->t = dt_input(c->graph, "t", DT_I32, (dt_shape){0});
    c->hidden = dt_relu(dt_nn_linear(c->x, "a", 5));
    dt_tanh(c->hidden);
    c->logits = dt_nn_linear(c->hidden, "b", 3);
    c->loss = dt_cross_entropy(c->logits, c->t, NULL);
    c->program = (dt_program_desc){
        .loss = c->loss, .outputs = {c->logits}, .optim = &c->optim, .batch = (int)batch};
    c->desc = (dti_code_desc){.graph = c->graph,
                              .program = &c->program,
                              .layout = &c->layout,
                              .limits = {.storage_range_bytes = UINT32_MAX}};
    return !dti_layout_make(c->graph->base, c->graph, DT_F32, &c->layout);
}

static bool lower_begin(lower_case *c) {
    return !dti_graph_clone(c->graph, c->graph->ctx, &c->desc.work) &&
           !dti_lowering_open(&c->w, c->graph->base, &c->desc);
}

static bool lower_to(lower_case *c, const char *pass) {
    return !dti_lowering_run(&c->w, &c->next, pass);
}

static void lower_close(lower_case *c) {
    if (c->w.problems.base)
        dti_lowering_close(&c->w);
    dti_free(c->graph->base, c->layout.params);
    dt_ctx_destroy(c->ctx);
}

/* ---- gradients of slices */

static dt_tensor lower_sliced(lower_case *c, dt_tensor p, const int *starts) {
    dt_tensor sum = dt_fill(c->graph, (dt_shape){0}, 0.0f);
    for (int i = 0; starts[i] >= 0; i++)
        sum = dt_add(sum, dt_sum(dt_square(dt_slice(p, 0, starts[i], 2)), dt_dims(0), false));
    return dt_gradient(sum, p);
}

TEST(gradients_of_adjacent_slices_are_joined_without_additions) {
    lower_case c;
    REQUIRE(lower_open(&c, 4));
    dt_tensor p = dt_param(c.graph, "p", dt_dims(6, 2), (dt_init){0});
    const dti_node *all = dti_node_of(lower_sliced(&c, p, (const int[]){4, 2, 0, -1}));
    CHECK(!strcmp(dti_op_info_of(all->op)->name, "concat") && all->count == 3);
    const dti_node *two = dti_node_of(lower_sliced(&c, p, (const int[]){2, 4, -1}));
    CHECK(!strcmp(dti_op_info_of(two->op)->name, "pad") && two->attr.i[2] == 2);
    const dti_node *apart = dti_node_of(lower_sliced(&c, p, (const int[]){0, 4, -1}));
    CHECK(!strcmp(dti_op_info_of(apart->op)->name, "add"));
    const dti_node *twice = dti_node_of(lower_sliced(&c, p, (const int[]){0, 0, -1}));
    CHECK(!strcmp(dti_op_info_of(twice->op)->name, "add"));
    lower_close(&c);
}

/* ---- pass by pass */

TEST(describing_and_differentiating_append_only_the_requested_nodes) {
    lower_case c;
    REQUIRE(lower_open(&c, 4) && lower_begin(&c));
    const dti_code *code = c.w.code;
    const uint32_t nodes = c.graph->count;
    CHECK(lower_to(&c, "describe"));
    CHECK(code->loss_count == 1 && code->has_gradients && code->train && code->batch == 4);
    CHECK(code->work->count == nodes && c.graph->count == nodes);
    CHECK(lower_to(&c, "differentiate"));
    CHECK(code->backward_node == nodes && code->work->count > nodes && c.graph->count == nodes);
    for (uint32_t i = 0; i < c.layout.param_count; i++)
        CHECK(code->trained[i] && code->param_dx[i].id >= nodes);
    const uint32_t gradients = code->work->count;
    CHECK(lower_to(&c, "weigh"));
    CHECK(c.w.weight_node[0] == gradients && code->work->count == gradients + 1);
    lower_close(&c);
}

TEST(a_pass_that_fails_reports_it_and_is_the_last) {
    lower_case c;
    REQUIRE(lower_open(&c, 4));
    c.program.loss = c.hidden;
    REQUIRE(lower_begin(&c));
    CHECK(dti_lowering_run(&c.w, &c.next, NULL) == DT_ERROR_INVALID && c.next == 1);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "is not a loss term");
    lower_close(&c);
}

TEST(only_inputs_that_are_read_are_needed) {
    lower_case c;
    REQUIRE(lower_open(&c, 4) && lower_begin(&c) && lower_to(&c, "need"));
    CHECK(c.w.needed[c.x.id] && c.w.needed[c.hidden.id] && c.w.needed[c.loss.id]);
    CHECK(!c.w.needed[c.hidden.id + 1]); /* the tanh */
    CHECK(c.w.needed[c.w.code->param_dx[0].id] && !c.w.needed[c.w.weight_node[0]]);
    lower_close(&c);
}

TEST(a_sum_over_samples_stays_in_one_chunk) {
    static const dti_piece pieces[] = {{2, 0, true, true}, {2, 1, true, true}};
    static const dti_bucket bucket = {0, DTI_BLOCK};
    lower_case c;
    REQUIRE(lower_open(&c, 4));
    dti_batch_slices batch_slices = {
        .pieces = pieces, .piece_count = 2, .leaves = 2, .buckets = &bucket};
    batch_slices.bucket_count = 1;
    c.desc.batch_slices = &batch_slices;
    REQUIRE(lower_begin(&c) && lower_to(&c, "buckets"));
    CHECK(c.w.extent[c.logits.id] == DTI_EXTENT_SAMPLES);
    CHECK(c.w.extent[c.loss.id] == DTI_EXTENT_PIECE);
    CHECK(c.w.extent[c.layout.params[0].node] == DTI_EXTENT_UNIFORM);
    CHECK(c.w.bucket_left[0] == 1 && c.w.bucket_left[1] == c.layout.param_count - 1);
    lower_close(&c);
}

TEST(bindings_do_not_overlap_and_the_table_has_a_row_for_each_block) {
    lower_case c;
    REQUIRE(lower_open(&c, 4) && lower_begin(&c) && lower_to(&c, "ports"));
    const dti_code *code = c.w.code;
    const dti_binding *x = dti_code_binding(code, c.x.id, false, false),
                      *t = dti_code_binding(code, c.t.id, false, false),
                      *y = dti_code_binding(code, c.logits.id, true, false);
    REQUIRE(code->binding_count == 3 && x && t && y);
    CHECK(x->bytes == 4 * 6 * 4 && t->bytes == 4 * 4 && y->bytes == 4 * 3 * 4);
    CHECK(t->offset >= x->offset + x->bytes && t->offset + t->bytes <= code->in_bytes);
    CHECK(y->offset + y->bytes <= code->out_bytes && y->offset % 256 == 0);
    CHECK(code->table_entries == c.layout.param_count); /* each is below 256 elements */
    CHECK(c.w.pin[c.logits.id] && c.w.pin[c.loss.id]);
    lower_close(&c);
}

static uint32_t lower_launches(bool fuse) {
    lower_case c;
    uint32_t launches = 0;
    if (lower_open(&c, 4) && lower_begin(&c) && lower_to(&c, "fuse")) {
        if (!fuse)
            c.w.e.own = NULL;
        launches = lower_to(&c, "emit") ? c.w.code->list.launch_count : 0;
    }
    lower_close(&c);
    return launches;
}

TEST(relu_and_its_gradient_are_merged_into_other_launches) {
    const uint32_t fused = lower_launches(true), apart = lower_launches(false);
    CHECK(fused > 0 && apart == fused + 2);
}

TEST(segments_of_a_program_cover_its_launches_in_order) {
    lower_case c;
    REQUIRE(lower_open(&c, 4));
    c.program.bucket_bytes = 4;
    REQUIRE(lower_begin(&c) && lower_to(&c, "segments"));
    const dti_code *code = c.w.code;
    uint32_t next = c.w.weigh_launches;
    CHECK(code->weighs && next > 0 && code->segments[code->weigh_segment].count == next);
    CHECK(code->weigh_segment == code->segment_count - 1 && code->commit_segment >= 3);
    CHECK(code->forward_segments == 1);
    for (uint32_t i = 0; i < code->weigh_segment; i++) {
        CHECK(code->segments[i].first == next);
        next += code->segments[i].count;
    }
    CHECK(next == code->list.launch_count);
    CHECK(code->segments[0].upload.bytes == code->in_bytes);
    CHECK(code->segments[0].download.bytes == code->out_bytes);
    lower_close(&c);
}

TEST(class_numbers_are_checked_for_the_op_that_reads_them) {
    lower_case c;
    REQUIRE(lower_open(&c, 2) && lower_begin(&c) && lower_to(&c, "labels"));
    const dti_binding *t = dti_code_binding(c.w.code, c.t.id, false, false);
    REQUIRE(t && t->check_count == 1 && t->checks[0].classes == 3);
    CHECK(dti_labels_check(c.w.code, t, (const int32_t[]){0, 2}, NULL) == DT_OK);
    CHECK(dti_labels_check(c.w.code, t, (const int32_t[]){0, 3}, NULL) == DT_ERROR_INVALID);
    lower_close(&c);
}

/* ---- the whole */

/* Two transients that live at once share nothing, but for one that takes another's place. */
static void lower_check_places(const dti_code *code) {
    for (uint32_t a = 0; a < code->list.value_count; a++) {
        for (uint32_t b = 0; b < a; b++) {
            const dti_value *x = &code->list.values[a], *y = &code->list.values[b];
            const dti_place *p = &code->places[a], *q = &code->places[b];
            const bool own = x->same_as == a && y->same_as == b && x->part_of == a &&
                             y->part_of == b && x->first != UINT32_MAX && y->first != UINT32_MAX;
            if (!own || p->memory != DTI_ARENA_TRANSIENT || q->memory != DTI_ARENA_TRANSIENT)
                continue;
            const bool together = x->first <= y->last && y->first <= x->last;
            CHECK(!together || p->offset >= q->offset + q->bytes ||
                  q->offset >= p->offset + p->bytes);
            CHECK(p->offset + p->bytes <= code->transient_bytes);
        }
    }
}

static const dti_code *lower_code(lower_case *c) {
    const dti_code *code = NULL;
    CHECK(!dti_graph_clone(c->graph, c->graph->ctx, &c->desc.work) &&
          dti_code_create(c->graph->base, &c->desc, &code) == DT_OK);
    return code;
}

/* What launches really touch in the arena, from their bindings. */
static uint64_t lower_used(const dti_code *code) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < code->list.launch_count; i++) {
        for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
            const dti_place *place = &code->places[code->list.launches[i].value[b]];
            if (place->memory == DTI_ARENA_TRANSIENT)
                used = DTI_MAX(used, place->offset + place->bytes);
        }
    }
    return dti_aligned(used);
}

TEST(code_is_a_function_of_graph_description_layout_and_limits) {
    lower_case c;
    REQUIRE(lower_open(&c, 4));
    const dti_code *a = lower_code(&c), *b = lower_code(&c);
    REQUIRE(a && b && a->list.launch_count == b->list.launch_count);
    CHECK(memcmp(a->list.launches, b->list.launches,
                 a->list.launch_count * sizeof *a->list.launches) == 0);
    CHECK(memcmp(a->places, b->places, a->list.value_count * sizeof *a->places) == 0);
    CHECK(a->transient_bytes == b->transient_bytes && a->transient_bytes == lower_used(a));
    CHECK(!a->desc.optim && !a->desc.params && !a->desc.label); /* the caller's */
    lower_check_places(a);
    dti_code_free(a);
    dti_code_free(b);
    lower_close(&c);
}

/* What a launch binds, at most; and how many launches there are. */
static uint64_t lower_largest(const dti_code *code) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < code->list.launch_count; i++) {
        for (int b = 0; b < DTI_BINDINGS_MAX; b++)
            bytes = DTI_MAX(bytes, code->places[code->list.launches[i].value[b]].bytes);
    }
    return bytes;
}

TEST(operands_are_cut_to_the_size_that_a_device_can_bind) {
    lower_case c;
    REQUIRE(lower_open(&c, 512));
    c.program.optim = NULL; /* the commit binds arenas, which are not cut */
    c.program.outputs[0] = (dt_tensor){0};
    const dti_code *whole = lower_code(&c);
    c.desc.limits.storage_range_bytes = 4096;
    const dti_code *parts = lower_code(&c);
    REQUIRE(whole && parts);
    CHECK(lower_largest(whole) == 512 * 6 * 4);
    CHECK(lower_largest(parts) <= 4096);
    CHECK(parts->list.launch_count > whole->list.launch_count);
    CHECK(parts->list.flops == whole->list.flops);
    lower_check_places(parts);
    dti_code_free(whole);
    dti_code_free(parts);
    lower_close(&c);
}

/* ---- mixed precision */

static uint32_t lower_count(const dt_graph *g, dti_op op, dt_dtype dtype, uint32_t from) {
    uint32_t count = 0;
    for (uint32_t id = from; id < g->count; id++)
        count += g->nodes[id].op == op && g->nodes[id].dtype == dtype;
    return count;
}

/* The reference's values of a loss by the graph as it is, and by what stands for it. */
static void lower_check_loss(lower_case *c, const dti_code *code) {
    ref_run run;
    const dt_tensor wanted[2] = {{code->work, c->loss.id},
                                 {code->work, dti_code_node(code, c->loss.id)}};
    ref_open(&run, code->work, 4);
    for (uint32_t id = 1; id < code->work->count; id++) {
        const dti_node *n = &code->work->nodes[id];
        ref_tensor *t = ref_tensor_of(&run, (dt_tensor){code->work, id});
        for (int64_t i = 0; !n->count && i < t->elements; i++)
            t->data[i] = n->dtype == DT_I32
                             ? (double)(i % 3)
                             : (double)(float)(2 * dti_uniform01(5, (uint64_t)i, id) - 1);
    }
    CHECK(ref_values(&run, wanted, 2) == DT_OK);
    const double plain = ref_tensor_of(&run, wanted[0])->data[0];
    const double mixed = ref_tensor_of(&run, wanted[1])->data[0];
    CHECK_NEAR(mixed, plain, 0.02 * plain);
    CHECK(mixed != plain);
    ref_close(&run);
}

TEST(mixed_precision_casts_by_the_precision_of_the_ops_and_each_value_once) {
    lower_case c;
    REQUIRE(lower_open(&c, 4));
    c.program.precision = DT_PRECISION_BF16;
    REQUIRE(lower_begin(&c) && lower_to(&c, "cast"));
    const dti_code *code = c.w.code;
    const dt_graph *g = code->work;
    const uint32_t old = c.graph->count, loss = dti_code_node(code, c.loss.id);
    CHECK(loss >= old && g->nodes[loss].term && g->nodes[loss].dtype == DT_F32);
    CHECK(lower_count(g, DTI_OP_LINEAR, DT_BF16, old) == 2); /* LOW */
    CHECK(lower_count(g, DTI_OP_RELU, DT_BF16, old) == 1);   /* WIDEST of the low rows */
    CHECK(lower_count(g, DTI_OP_CROSS_ENTROPY, DT_F32, old) == 1);
    CHECK(lower_count(g, DTI_OP_CAST, DT_BF16, old) == 3); /* x, two weights; biases stay f32 */
    const uint32_t logits = dti_code_node(code, c.logits.id);
    CHECK(g->nodes[logits].op == DTI_OP_CAST && g->nodes[logits].dtype == DT_F32);
    CHECK(dti_input_id(g, &g->nodes[loss], 0) == logits); /* the loss and the output share it */
    for (uint32_t i = 0; i < c.layout.param_count; i++)
        CHECK(dti_code_node(code, c.layout.params[i].node) == c.layout.params[i].node);
    lower_check_loss(&c, code);
    CHECK(lower_to(&c, NULL));
    for (uint32_t i = 0; i < c.layout.param_count; i++)
        CHECK(g->nodes[code->param_dx[i].id].dtype == DT_F32);
    const dti_binding *binding = dti_code_binding(code, c.logits.id, true, false);
    CHECK(binding && binding->bytes == 4 * 3 * sizeof(float));
    lower_close(&c);
}

TEST(launches_that_take_no_16_bits_use_copies_in_f32) {
    lower_case c;
    REQUIRE(lower_open(&c, 4));
    const dt_tensor x = dt_input(c.graph, "rows", DT_BF16, dt_dims(4, 4));
    const dt_tensor y = dti_append(c.graph, DTI_OP_MSE_GRAD, (dt_tensor[]){x, x, x}, 3, NULL);
    c.program = (dt_program_desc){.outputs = {y}, .batch = 4};
    c.desc.limits.workgroups = true;
    REQUIRE(lower_begin(&c) && lower_to(&c, "emit"));
    dti_code *code = c.w.code;
    const uint32_t before = code->list.launch_count;
    dti_types_set(&code->list);
    CHECK(dti_types_misfit(&code->list, &code->limits));
    REQUIRE(lower_to(&c, "widen"));
    dti_types_set(&code->list);
    CHECK(!dti_types_misfit(&code->list, &code->limits));
    CHECK(code->list.launch_count > before);
    uint32_t end = c.w.weigh_launches;
    for (uint32_t s = 0; s < code->segment_count; s++) {
        CHECK(code->segments[s].first == end);
        end += code->segments[s].count;
    }
    CHECK(end == code->list.launch_count && end == code->list.ended);
    CHECK(lower_to(&c, NULL));
    lower_close(&c);
}

/* As on a device whose driver cannot compile them. The result is cast to f32 by a copy. */
TEST(convolutions_use_copies_in_f32_where_a_device_needs_them) {
    for (int wide = 0; wide < 2; wide++) {
        lower_case c;
        REQUIRE(lower_open(&c, 4));
        const float taps[2 * 3 * 9] = {1};
        const dt_tensor x = dt_input(c.graph, "image", DT_BF16, dt_dims(3, 5, 5));
        const dt_tensor w =
            dt_cast(dt_constant(c.graph, DT_F32, dt_dims(2, 3, 3, 3), taps), DT_BF16);
        const dt_tensor y = dt_conv2d(x, w, (dt_tensor){0}, NULL);
        c.program = (dt_program_desc){.outputs = {y}, .batch = 4};
        c.desc.limits.workgroups = true;
        c.desc.limits.no_hard_halves = wide;
        REQUIRE(lower_begin(&c) && lower_to(&c, "types"));
        const dti_listing *list = &c.w.code->list;
        int halves = 0, convs = 0;
        for (uint32_t i = 0; i < list->launch_count; i++) {
            convs += list->launches[i].kernel == DTI_K_CONV;
            if (list->launches[i].kernel == DTI_K_CONV)
                halves += dti_launch_is_half(&list->launches[i]);
        }
        CHECK(convs == 1 && halves == !wide);
        lower_close(&c);
    }
}

/* Of a device that runs workgroups by binding, since C may carry sums. */
TEST(launches_take_16_bits_by_kernel_binding_and_device) {
    const bool cpu = false, gpu = true; /* runs workgroups */
    dti_launch gemm = {.kernel = DTI_K_GEMM}, term = {.kernel = DTI_K_TERM_GRAD};
    const dti_launch sum = {.kernel = DTI_K_PRODUCT_SUM}, copy = {.kernel = DTI_K_COPY};
    CHECK(dti_launch_takes_half(&gemm, 2, cpu) && dti_launch_takes_half(&gemm, 2, gpu));
    gemm.args.gemm.chunk = 512;
    CHECK(dti_launch_takes_half(&gemm, 0, gpu) && !dti_launch_takes_half(&gemm, 2, gpu));
    gemm.spec[0] = DTI_BIAS_BESIDE;
    CHECK(dti_launch_takes_half(&gemm, 3, gpu) && !dti_launch_takes_half(&gemm, 1, gpu));
    CHECK(dti_launch_takes_half(&sum, 2, gpu) && !dti_launch_takes_half(&sum, 0, gpu));
    CHECK(dti_launch_takes_half(&copy, 1, gpu) && !dti_launch_takes_half(&sum, 2, cpu));
    CHECK(!dti_launch_takes_half(&term, 0, gpu) && !dti_launch_takes_half(&term, 0, cpu));
}
