/* Rows of wrong_args.h: contexts, stores, programs, data and files. */
#include "wrong/wrong_args.h"

/* ---- Results and contexts */

ROW(STORE, dt_result_text, ) {
    return GIVES(strcmp(dt_result_text(ENUM(DT_ERROR_INVALID, DT_ERROR_BUSY + 1)),
                        dt_result_text((dt_result)-1)) != 0);
}

ROW(STORE, dt_ctx_create, ) {
    static const dt_job_system jobs = {NULL, NULL, 0};
    dt_ctx *ctx = NULL;
    dt_ctx_desc desc = {.threads = INT(0, -2, 1025, INT_MAX), .no_vulkan = true, .jobs = jobs};
    desc.logger = wrong_logger(&here);
    desc.jobs.threads = COUNT_OR_0(0);
    desc.pipeline_cache_bytes = wrong_turn("a cache's bytes without it", 1) ? 8 : 0;
    static const dt_vulkan_desc no_device;
    desc.vulkan = wrong_turn("a Vulkan device without handles", 1) ? &no_device : NULL;
    desc.kernel_check = (dt_kernel_check)(wrong_turn("no such check of kernels", 1) ? 3 : 0);
    desc.allocator = wrong_allocator(&here);
    if (wrong_turn("alloc without free", 1))
        desc.allocator.free = NULL;
    if (wrong_turn("free without alloc", 1))
        desc.allocator.alloc = NULL;
    dt_result result = dt_ctx_create(&desc, POINTER(&ctx));
    dt_ctx_destroy(ctx);
    return RESULT(result);
}

ROW(STORE, dt_ctx_destroy, ) {
    dt_ctx *ctx = NULL, *given;
    dt_ctx_create(NULL, &ctx);
    dt_ctx_destroy(given = OBJECT(ctx));
    if (!given)
        dt_ctx_destroy(ctx);
    return NOTHING;
}

ROW(STORE, dt_ctx_error, ) {
    return GIVES(dt_ctx_error(OBJECT(here.ctx))[0] == 0);
}

ROW(STORE, dt_ctx_device_count, ) {
    return GIVES(dt_ctx_device_count(OBJECT(here.ctx)) == 1);
}

ROW(STORE, dt_ctx_device, ) {
    return GIVES(dt_ctx_device(OBJECT(here.ctx), INDEX(0, 1)) != NULL);
}

ROW(STORE, dt_ctx_get_info, ) {
    dt_ctx_info info = {.host_bytes = 1}, *given;
    dt_ctx_get_info(OBJECT(here.ctx), given = POINTER(&info));
    return GIVES(given && info.host_bytes != 0); /* all 0 for NULL */
}

ROW(STORE, dt_ctx_pipeline_cache, ) {
    size_t bytes = 0;
    return RESULT(dt_ctx_pipeline_cache(OBJECT(here.ctx), NULL, POINTER(&bytes)));
}

/* ---- Stores */

ROW(STORE, dt_store_create, ) {
    dt_store *store = NULL;
    dt_store_desc desc = {.device = TEXT("cpu", "none such", "vulkan", "vulkan:7", "cpu:2", "\xff"),
                          .batch_hint = INT(0, -1),
                          .host_checkpoint_steps = INT(0, -1)};
    return RESULT(dt_store_create(OBJECT(here.graph), &desc, POINTER(&store)));
}

ROW(STORE, dt_store_destroy, ) {
    return DOES(dt_store_destroy(wrong_turn("NULL", 1) ? NULL
                                 : wrong.slot < 0      ? here.store
                                                       : NULL));
}

ROW(STORE, dt_store_device, ) {
    return GIVES(dt_store_device(OBJECT(here.store)) != NULL);
}

ROW(STORE, dt_store_param_count, ) {
    return GIVES(dt_store_param_count(OBJECT(here.store)) > 0);
}

ROW(STORE, dt_store_get_param, ) {
    dt_param_info info;
    int count = dt_store_param_count(here.store);
    return RESULT(dt_store_get_param(OBJECT(here.store), INDEX(0, count), POINTER(&info)));
}

ROW(STORE, dt_store_find, ) {
    return GIVES(dt_store_find(OBJECT(here.store), TEXT("w", NULL, "", "none")) == 0);
}

ROW(STORE, dt_store_read, ) {
    float read[12];
    int count = dt_store_param_count(here.store);
    return RESULT(dt_store_read(OBJECT(here.store), INDEX(0, count),
                                ENUM(DT_VALUE_MOMENT1, DT_VALUE_MOMENT2), POINTER(read),
                                BYTES(48)));
}

ROW(STORE, dt_store_write, ) {
    int count = dt_store_param_count(here.store);
    return RESULT(dt_store_write(OBJECT(here.store), INDEX(0, count),
                                 ENUM(DT_VALUE_PARAM, DT_VALUE_MOMENT2), POINTER(wrong_x),
                                 BYTES(48)));
}

ROW(STORE, dt_store_copy, ) {
    dt_store *other = NULL, *foreign = NULL, *to = here.store;
    SURE(!dt_store_create(here.graph, &(dt_store_desc){.device = "cpu", .seed = 2}, &other));
    const bool open = wrong_turn("a step under way", 1) && !dt_program_begin(here.train, NULL);
    if (wrong_turn("two graphs", 1) && !dt_store_create(there.graph, NULL, &foreign))
        to = foreign;
    if (wrong_turn("the same store", 1))
        to = other;
    dt_result result = dt_store_copy(OBJECT(other), POINTER(to));
    if (open)
        dt_program_cancel(here.train, NULL);
    dt_store_destroy(other);
    dt_store_destroy(foreign);
    return RESULT(result);
}

ROW(TRAINER, dt_store_copy, trainer) {
    dt_store *from = dt_trainer_store(here.trainer), *to = NULL;
    SURE(!dt_store_create(here.graph, &(dt_store_desc){.device = "cpu", .seed = 2}, &to));
    const bool into = wrong_turn("into a trainer's", 1);
    dt_result result = into ? dt_store_copy(to, from) : dt_store_copy(from, to);
    dt_store_destroy(to);
    return RESULT(result);
}

ROW(STORE, dt_store_vulkan_buffer, ) {
    dt_vulkan_buffer where; /* of a store on the CPU: there is no right call */
    dt_store_vulkan_buffer(OBJECT(here.store), INDEX(0, 2), DT_VALUE_PARAM, POINTER(&where));
    return NOTHING;
}

ROW(STORE, dt_store_restore, ) {
    const char *device = TEXT("cpu", "none such", "vulkan:7", "\xff");
    return RESULT(dt_store_restore(OBJECT(here.store), device, NULL));
}

ROW(STORE, dt_store_reset, ) {
    return RESULT(dt_store_reset(OBJECT(here.store), ENUM(DT_RESET_OPTIM, DT_RESET_ALL + 1)));
}

ROW(STORE, dt_store_reset, all) {
    return RESULT(dt_store_reset(here.store, DT_RESET_ALL));
}

ROW(STORE, dt_store_hash, ) {
    uint64_t hash;
    return RESULT(dt_store_hash(OBJECT(here.store), POINTER(&hash)));
}

ROW(STORE, dt_store_state_hash, ) {
    uint64_t hash;
    return RESULT(dt_store_state_hash(OBJECT(here.store), POINTER(&hash)));
}

/* ---- Programs */

ROW(STORE, dt_program_create, ) {
    dt_program *program = NULL;
    dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .momentum = 0.9};
    dt_program_desc desc = {.losses = {{.term = TENSOR(here.loss)}},
                            .metrics = {MAYBE(here.term, WRONG_F32)},
                            .outputs = {MAYBE(here.logits, WRONG_TERM)},
                            .batch = COUNT_OR_0(4),
                            .mode = ENUM(DT_MODE_TRAIN, DT_MODE_EVAL + 1),
                            .params = TEXT("w,b", "", "none", "table"),
                            .optim = &optim};
    desc.losses[0].coefficient = (float)FINITE(1);
    return RESULT(dt_program_create(OBJECT(here.store), POINTER(&desc), POINTER(&program)));
}

ROW(STORE, dt_program_create, host) {
    dt_program *program = NULL;
    dt_program_desc desc = {.host_gradients = {TENSOR(here.logits)},
                            .gradients = !wrong_turn("accumulate without gradients", 1),
                            .outputs = {here.logits},
                            .params = "w,b"};
    if (!desc.gradients) {
        desc.host_gradients[0] = (dt_tensor){0};
        desc.accumulate = true;
    }
    return RESULT(dt_program_create(here.store, &desc, &program));
}

#define SGD(field, ...)                                                                            \
    ROW(STORE, dt_program_create, field) {                                                         \
        dt_program *program = NULL;                                                                \
        dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .field = NUMBER(0.5, __VA_ARGS__)};           \
        dt_program_desc desc = {.loss = here.loss, .params = "w,b", .optim = &optim};              \
        return RESULT(dt_program_create(here.store, &desc, &program));                             \
    }
/* The store's parameters have SGD's state, so no program of Adam can be made. */
#define ADAM(field, ...)                                                                           \
    ROW(STORE, dt_optim_lr, field) {                                                               \
        double lr;                                                                                 \
        dt_optim_desc optim = {.kind = DT_OPTIM_ADAM, .field = NUMBER(0.5, __VA_ARGS__)};          \
        return RESULT(dt_optim_lr(here.ctx, &optim, 1, &lr));                                      \
    }
#define INFINITE (double)INFINITY, -(double)INFINITY
SGD(lr, -1, INFINITE)
SGD(weight_decay, -1, INFINITE)
SGD(momentum, -1, INFINITE)
SGD(dampening, INFINITE)
ADAM(beta1, -1, 1, 2, INFINITE)
ADAM(beta2, -1, 1, 2, INFINITE)
ADAM(eps, -1, INFINITE)
SGD(clip_norm, -1, INFINITE)
SGD(clip_value, -1, INFINITE)

ROW(STORE, dt_program_create, groups) {
    dt_program *program = NULL;
    dt_optim_desc optim = {.kind = ENUM(DT_OPTIM_SGD, DT_OPTIM_ADAMW + 1)};
    optim.groups[0].params = TEXT("b", NULL, "", "none");
    optim.groups[0].lr_scale = AT_LEAST_0(1);
    optim.groups[0].weight_decay = AT_LEAST_0(1);
    optim.momentum = 0.9;
    dt_program_desc desc = {.loss = here.loss, .params = "w,b", .optim = &optim};
    return RESULT(dt_program_create(here.store, &desc, &program));
}

/* ---- Metrics */

/* NULL where there is no memory for one. */
static dt_metric *some_metric(dt_metric_kind kind) {
    const dt_metric_desc desc = {.kind = kind, .classes = 2};
    dt_metric *m = NULL;
    dt_metric_create(here.ctx, &desc, &m);
    return m;
}

ROW(GRAPH, dt_metric_create, ) {
    dt_metric *m = NULL;
    dt_metric_desc desc = {.kind = ENUM(DT_METRIC_CLASSES, DT_METRIC_REGRESSION + 1),
                           .classes = INT(2, -1, 0, 1, 4097, INT_MAX),
                           .top_k = INT(1, -1, 3),
                           .bins = INT(4, -1, INT_MAX),
                           .peak = NUMBER(1, -1, (double)INFINITY)};
    dt_result result = dt_metric_create(OBJECT(here.ctx), POINTER(&desc), POINTER(&m));
    dt_metric_destroy(m);
    return RESULT(result);
}

ROW(GRAPH, dt_metric_destroy, ) {
    return DOES(dt_metric_destroy(wrong_turn("NULL", 1) ? NULL : some_metric(DT_METRIC_CLASSES)));
}

ROW(GRAPH, dt_metric_reset, ) {
    dt_metric *m = some_metric(DT_METRIC_CLASSES);
    dt_metric_reset(OBJECT(m));
    dt_metric_destroy(m);
    return NOTHING;
}

ROW(GRAPH, dt_metric_add, ) {
    dt_metric *m = some_metric(DT_METRIC_CLASSES);
    const float y[4] = {0, 1, 1, 0}, w[2] = {1, (float)AT_LEAST_0(1)};
    const int32_t t[2] = {0, INT(1, -1, 2, INT_MAX)};
    dt_result result = dt_metric_add(OBJECT(m), POINTER(y), POINTER(t), w, 2);
    dt_metric_destroy(m);
    return RESULT(result);
}

ROW(GRAPH, dt_metric_add, score) {
    dt_metric *m = some_metric(DT_METRIC_BINARY);
    const float y[2] = {0, (float)NUMBER(1, (double)NAN)}, t[2] = {0, (float)NUMBER(1, 0.5, 2)};
    dt_result result = dt_metric_add(OBJECT(m), y, t, NULL, 2);
    dt_metric_destroy(m);
    return RESULT(result);
}

ROW(GRAPH, dt_metric_sums, ) {
    dt_metric *m = some_metric(DT_METRIC_CLASSES);
    const bool there = dt_metric_sums(OBJECT(m), NULL) != NULL;
    dt_metric_destroy(m);
    return GIVES(there);
}

ROW(GRAPH, dt_metric_get, ) {
    dt_metric *m = some_metric(DT_METRIC_CLASSES);
    double value;
    dt_result result = dt_metric_get(OBJECT(m), (dt_measure)ENUM(DT_MEASURE_F1, DT_MEASURE_AUROC),
                                     POINTER(&value));
    dt_metric_destroy(m);
    return RESULT(result);
}

ROW(GRAPH, dt_metric_get_class, ) {
    dt_metric *m = some_metric(DT_METRIC_CLASSES);
    double value;
    dt_result result = dt_metric_get_class(OBJECT(m),
                                           (dt_measure)INT(DT_MEASURE_F1, -1, DT_MEASURE_WEIGHT,
                                                           DT_MEASURE_F1_MICRO, DT_MEASURE_AUROC),
                                           INDEX(1, 2), POINTER(&value));
    dt_metric_destroy(m);
    return RESULT(result);
}

ROW(COMM, dt_metric_reduce, ) {
    dt_metric *m = some_metric(wrong_turn("exact", 1) ? DT_METRIC_BINARY : DT_METRIC_CLASSES);
    dt_result result = dt_metric_reduce(OBJECT(m), OBJECT(here.comm));
    dt_metric_destroy(m);
    return RESULT(result);
}

ROW(GRAPH, dt_optim_lr, ) {
    double lr;
    dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .lr = AT_LEAST_0(0.1)};
    optim.schedule[0] = (dt_schedule){.kind = ENUM(DT_SCHEDULE_COSINE, DT_SCHEDULE_CALLBACK + 1),
                                      .steps = (uint64_t)INTEGER(4, 0),
                                      .epochs = NUMBER(0, -1, 2),
                                      .period = (uint64_t)INTEGER(4, -1),
                                      .lr_min = AT_LEAST_0(0.01)};
    optim.schedule[1] = (dt_schedule){.kind = DT_SCHEDULE_ONE_CYCLE,
                                      .period = (uint64_t)INTEGER(9, 0, 1, -1),
                                      .div_factor = AT_LEAST_0(2),
                                      .final_div_factor = AT_LEAST_0(2),
                                      .pct_start = NUMBER(0.5, -0.1, 1.1),
                                      .base_momentum = NUMBER(0.5, -0.1, 1),
                                      .max_momentum = NUMBER(0.5, -0.1, 1)};
    return RESULT(dt_optim_lr(OBJECT(here.ctx), POINTER(&optim), 3, POINTER(&lr)));
}

ROW(STORE, dt_program_destroy, ) {
    return DOES(dt_program_destroy(wrong_turn("NULL", 1) ? NULL
                                   : wrong.slot < 0      ? here.train
                                                         : NULL));
}

ROW(STORE, dt_program_get_info, ) {
    dt_program_info info = {.batch = 1}, *given;
    dt_program_get_info(OBJECT(here.train), given = POINTER(&info));
    return GIVES(given && info.batch != 0); /* all 0 for NULL */
}

ROW(STORE, dt_program_write, ) {
    return RESULT(
        dt_program_write(OBJECT(here.train), TENSOR(here.x), POINTER(wrong_x), BYTES(64)));
}

ROW(STORE, dt_program_write, labels) {
    static int32_t labels[4];
    labels[1] = INT(1, -1, 3, INT_MAX);
    return RESULT(dt_program_write(here.train, here.label, labels, sizeof labels));
}

ROW(STORE, dt_program_write_gradient, ) {
    dt_program *program = NULL;
    dt_program_desc desc = {
        .outputs = {here.logits}, .host_gradients = {here.logits}, .params = "w,b", .batch = 4};
    dt_program_create(here.store, &desc, &program);
    dt_result result = dt_program_write_gradient(OBJECT(program), TENSOR(here.logits),
                                                 POINTER(wrong_x), BYTES(48));
    dt_program_destroy(program);
    return RESULT(result);
}

ROW(STORE, dt_program_read, ) {
    float y[12];
    dt_program_write(here.predict, here.x, wrong_x, 64);
    dt_program_run(here.predict, NULL, NULL);
    return RESULT(
        dt_program_read(OBJECT(here.predict), TENSOR(here.logits), POINTER(y), BYTES(sizeof y)));
}

ROW(STORE, dt_program_run, ) {
    double weight = NUMBER(4, 0, -1, (double)INFINITY), coefficient = FINITE(1);
    dt_step_desc step = {.lr = (float)AT_LEAST_0(0.1),
                         .micro_batch = (uint32_t)INTEGER(0, 1, UINT32_MAX),
                         .micro_batches = (uint32_t)INTEGER(1, 2, UINT32_MAX),
                         .loss_weights = &weight,
                         .coefficients = &coefficient,
                         .wait = {(uint64_t)INTEGER(0, 1), 1},
                         .signal = {(uint64_t)INTEGER(0, 1), 1}};
    return RESULT(dt_program_run(OBJECT(here.train), &step, NULL));
}

/* Values at the end of what their types hold, all of them right. */
ROW(STORE, dt_program_run, far) {
    dt_program *program = NULL;
    dt_tensor loss = dt_mean_loss(dt_dropout(here.logits, 0.5f));
    dt_program_desc desc = {.loss = loss, .batch = 4, .params = "w,b"};
    desc.bucket_bytes = wrong.slot < 0 ? SIZE_MAX : 1;
    desc.gradients = true;
    SURE(dt_program_create(here.store, &desc, &program) == DT_OK);
    dt_step_desc step = {.seed = UINT64_MAX, .step = UINT64_MAX, .first_row = UINT32_MAX};
    SURE(dt_program_write(program, here.x, wrong_x, 64) == DT_OK);
    dt_result result = dt_program_run(program, &step, NULL);
    dt_program_destroy(program);
    return RESULT(result);
}

ROW(STORE, dt_program_run, unwritten) {
    dt_program *program = NULL;
    dt_program_create(here.store, &(dt_program_desc){.outputs = {here.logits}}, &program);
    if (!wrong_turn("an input", 1))
        dt_program_write(program, here.x, wrong_x, 16);
    dt_result result = dt_program_run(program, NULL, NULL);
    dt_program_destroy(program);
    return RESULT(result);
}

ROW(STORE, dt_program_add_loss_weights, ) {
    double weights[DT_MAX_TERMS] = {0};
    return RESULT(dt_program_add_loss_weights(OBJECT(here.train), POINTER(weights)));
}

ROW(STORE, dt_program_begin, ) {
    double weight = NUMBER(4, 0, -1, (double)INFINITY), coefficient = FINITE(1);
    dt_step_desc step = {.lr = (float)AT_LEAST_0(0.1),
                         .micro_batch = (uint32_t)INTEGER(0, 1, UINT32_MAX),
                         .micro_batches = (uint32_t)INTEGER(1, 2, UINT32_MAX),
                         .loss_weights = &weight,
                         .coefficients = &coefficient,
                         .wait = {(uint64_t)INTEGER(0, 1), 1},
                         .signal = {(uint64_t)INTEGER(0, 1), 1}};
    return RESULT(dt_program_begin(OBJECT(here.train), &step));
}

ROW(STORE, dt_program_advance, ) {
    dt_step_state state;
    if (!wrong_turn("no step", 1))
        dt_program_begin(here.train, NULL);
    dt_result result = dt_program_advance(OBJECT(here.train), POINTER(&state));
    dt_program_cancel(here.train, NULL);
    return RESULT(result);
}

ROW(STORE, dt_program_advance_for, ) {
    dt_step_state state;
    if (!wrong_turn("no step", 1))
        dt_program_begin(here.train, NULL);
    dt_result result =
        dt_program_advance_for(OBJECT(here.train), NUMBER(4, 0, -1), POINTER(&state));
    dt_program_cancel(here.train, NULL);
    return RESULT(result);
}

ROW(STORE, dt_program_start, ) {
    double weight = NUMBER(4, 0, -1, (double)INFINITY);
    dt_step_desc step = {.lr = (float)AT_LEAST_0(0.1), .loss_weights = &weight};
    dt_result result = dt_program_start(OBJECT(here.train), &step);
    if (!result)
        dt_program_wait(here.train, NULL);
    return RESULT(result);
}

ROW(STORE, dt_program_wait, ) {
    dt_program *program = NULL;
    SURE(!dt_program_create(here.store, &(dt_program_desc){.outputs = {here.logits}}, &program));
    SURE(dt_program_write(program, here.x, wrong_x, 16) == DT_OK);
    if (!wrong_turn("no step", 1))
        dt_program_start(program, NULL);
    dt_result result = dt_program_wait(OBJECT(program), NULL);
    dt_program_destroy(program);
    return RESULT(result);
}

ROW(STORE, dt_program_end, ) {
    dt_step_state state = DT_STEP_READY;
    dt_program *program = OBJECT(here.train);
    int early = wrong_turn("a step before its end", 1), none = wrong_turn("no step", 1);
    if (!none)
        dt_program_begin(here.train, NULL);
    for (bool all = wrong.slot < 0; all && state != DT_STEP_DONE;)
        all = !dt_program_advance(here.train, &state);
    dt_result result = dt_program_end(program, NULL);
    CHECK(early + none == 0 || result == DT_ERROR_INVALID);
    dt_program_cancel(here.train, NULL);
    return RESULT(result);
}

ROW(STORE, dt_program_cancel, ) {
    if (!wrong_turn("no step", 1))
        dt_program_begin(here.train, NULL);
    dt_result result = dt_program_cancel(OBJECT(here.train), NULL);
    dt_program_cancel(here.train, NULL);
    return RESULT(result);
}

/* ---- Data */

ROW(STORE, dt_idx_load, ) {
    static const unsigned char idx[] = {0, 0, 8, 1, 0, 0, 0, 2, 5, 6};
    const char *path = wrong_path("wrong-args.idx");
    FILE *file = fopen(path, "wb");
    fwrite(idx, 1, sizeof idx, file);
    fclose(file);
    dt_array array = {0};
    dt_result result = dt_idx_load(OBJECT(here.ctx), PATH(path), POINTER(&array));
    dt_array_destroy(&array);
    return RESULT(result);
}

ROW(STORE, dt_array_destroy, ) {
    dt_array array = {0};
    return DOES(dt_array_destroy(POINTER(&array)));
}

ROW(STORE, dt_shuffle, ) {
    uint32_t order[8];
    return DOES(dt_shuffle(POINTER(order), 8, 1, 2));
}

ROW(STORE, dt_gather_rows_u8_to_f32, ) {
    static const uint8_t bytes[8];
    float rows[8];
    return DOES(dt_gather_rows_u8_to_f32(POINTER(rows), POINTER(bytes), NULL, 2, 4, 1, 0));
}

ROW(STORE, dt_gather_rows_u8_to_i32, ) {
    static const uint8_t bytes[8];
    int32_t rows[8];
    return DOES(dt_gather_rows_u8_to_i32(POINTER(rows), POINTER(bytes), NULL, 2, 4));
}

/* ---- Files */

/* What a graph takes as a parameter's name a file gives back. */
ROW(GRAPH, dt_store_save, names) {
    dt_store *store = NULL;
    dt_graph *graph = NULL;
    const char *path = wrong_path("wrong-args-names.safetensors");
    const char *name = wrong_turn("a name that files cannot have", 5)
                           ? (const char *const[]){"\xff", "__metadata__", "dtrain.t",
                                                   "\xed\xa0\x80", "\xc0\x80"}[wrong.variant]
                           : "\xc3\xbc \"\\\n%s../";
    SURE(dt_graph_create(here.ctx, &graph) == DT_OK);
    dt_param(graph, name, dt_dims(2), (dt_init){0});
    dt_result result = dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store);
    if (!result)
        result = dt_store_save(store, path);
    if (!result)
        SURE(dt_store_load(store, path) == DT_OK);
    dt_graph_destroy(graph);
    return RESULT(result);
}

ROW(STORE, dt_store_save, ) {
    return RESULT(
        dt_store_save(OBJECT(here.store), PATH(wrong_path("wrong-args-saved.safetensors"))));
}

ROW(STORE, dt_store_save_matching, ) {
    const dt_save_desc desc = {.params = TEXT("w*", "", "none", "*\xff"),
                               .dtype = (dt_dtype)INT(DT_BF16, DT_I32, DT_F64, DT_U8, -1, INT_MAX)};
    return RESULT(dt_store_save_matching(OBJECT(here.store),
                                         PATH(wrong_path("wrong-args-saved.safetensors")), &desc));
}

ROW(GRAPH, dt_store_save_matching, averaged) {
    const dt_optim_desc ema = {.average = {.kind = DT_AVERAGE_EMA}};
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    dt_program *program = NULL;
    SURE(dt_graph_create(here.ctx, &graph) == DT_OK);
    if (!graph)
        return RESULT(DT_ERROR_MEMORY);
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(2));
    const dt_program_desc desc = {.loss = dt_mean_loss(dt_nn_linear(x, "fc", 2)), .optim = &ema};
    SURE(dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    if (store)
        SURE(dt_program_create(store, &desc, &program) == DT_OK);
    dt_result result =
        dt_store_save_matching(OBJECT(store), PATH(wrong_path("wrong-args-averaged.safetensors")),
                               &(dt_save_desc){.averaged = true});
    dt_graph_destroy(graph);
    return RESULT(result);
}

ROW(STORE, dt_store_load, ) {
    return RESULT(dt_store_load(OBJECT(here.store), PATH(wrong_saved())));
}

ROW(STORE, dt_store_load_matching, ) {
    int loaded = 0;
    const dt_load_desc desc = {.params = TEXT("w*", "", "none", "*\xff"),
                               .prefix = TEXT("w", "x", "w."),
                               .file_prefix = "w"};
    return RESULT(dt_store_load_matching(OBJECT(here.store), PATH(wrong_saved()), &desc, &loaded));
}

ROW(STORE, dt_store_save_state, ) {
    return RESULT(
        dt_store_save_state(OBJECT(here.store), PATH(wrong_path("wrong-args-saved.safetensors"))));
}

ROW(STORE, dt_store_load_state, ) {
    return RESULT(dt_store_load_state(OBJECT(here.store), PATH(wrong_saved())));
}

ROW(STORE, dt_safetensors_open, ) {
    dt_safetensors *weights = NULL;
    dt_result result =
        dt_safetensors_open(OBJECT(here.ctx), PATH(wrong_saved()), POINTER(&weights));
    dt_safetensors_close(weights);
    return RESULT(result);
}

ROW(STORE, dt_safetensors_close, ) {
    dt_safetensors *weights = NULL, *given;
    dt_safetensors_open(here.ctx, wrong_saved(), &weights);
    dt_safetensors_close(given = OBJECT(weights));
    if (!given)
        dt_safetensors_close(weights);
    return NOTHING;
}

ROW(STORE, dt_safetensors_count, ) {
    dt_safetensors *weights = NULL;
    dt_safetensors_open(here.ctx, wrong_saved(), &weights);
    int count = dt_safetensors_count(OBJECT(weights));
    dt_safetensors_close(weights);
    return GIVES(count > 0);
}

ROW(STORE, dt_safetensors_get_tensor, ) {
    dt_safetensors *weights = NULL;
    dt_safetensors_tensor info;
    dt_safetensors_open(here.ctx, wrong_saved(), &weights);
    int count = dt_safetensors_count(weights);
    dt_result result = dt_safetensors_get_tensor(OBJECT(weights), INDEX(0, count), POINTER(&info));
    dt_safetensors_close(weights);
    return RESULT(result);
}

ROW(STORE, dt_safetensors_find, ) {
    dt_safetensors *weights = NULL;
    dt_safetensors_open(here.ctx, wrong_saved(), &weights);
    int at = dt_safetensors_find(OBJECT(weights), TEXT("w", NULL, "", "none"));
    dt_safetensors_close(weights);
    return GIVES(at >= 0);
}
