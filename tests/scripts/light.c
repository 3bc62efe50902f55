/* dtrain without some of its features (base/optional.h). Each function of a feature that was left
 * out is UNSUPPORTED and names itself and the macro, each setting too; what remains trains and
 * writes the same weights. apps.sh builds it with DT_LIGHT and with a random set of DT_NO_ macros;
 * without any it passes too. Prints the loss and a prediction. */
#ifdef LIGHT_PARTS /* the others are linked */
#define DT_IMPLEMENTATION_GRAPH
#else
#define DT_IMPLEMENTATION
#endif
#include "dtrain.h"

#include <stdlib.h>

static int failed;
static dt_ctx *ctx;

static void check(bool right, const char *what, const char *text) {
    if (!right)
        fprintf(stderr, "wrong: %s: %s\n", what, text ? text : "no text");
    failed += !right;
}

/* macro: NULL = the feature is here. */
static void is_off(const char *macro, const char *name, const char *text) {
    char head[96], with[64];
    snprintf(head, sizeof head, "%s: dtrain was compiled with ", name);
    snprintf(with, sizeof with, "%s", macro ? macro : "compiled with DT_");
    const bool told = text && strstr(text, head) && strstr(text, with);
    check(macro ? told : !text || !strstr(text, with), name, text);
}

static void call(const char *macro, const char *name, dt_result result) {
    const bool off = result == DT_ERROR_UNSUPPORTED;
    check(macro ? off : !off, name, dt_ctx_error(ctx));
    if (macro)
        is_off(macro, name, dt_ctx_error(ctx));
}

/* Of an object that cannot exist without the feature: no text. */
static void no_object(const char *macro, const char *name, dt_result result) {
    check(result == (macro ? DT_ERROR_UNSUPPORTED : DT_ERROR_INVALID), name,
          dt_result_text(result));
}

#define OFF(feature) (DTI_HAS_##feature ? NULL : "DT_NO_" #feature)
#define CALL(feature, name, ...) call(OFF(feature), #name, name(__VA_ARGS__))
#define NO_OBJECT(feature, name, ...) no_object(OFF(feature), #name, name(__VA_ARGS__))

static void readers(void) {
    dt_array array;
    dt_csv *csv;
    dt_folder *folder;
    dt_tokens *tokens;
    dt_dataset data;
    dt_replay *replay;
    dt_csv_info info;
    dt_folder_info folder_info;
    const dt_replay_desc ring = {.capacity = 4, .item_bytes = 4};
    CALL(READERS, dt_idx_load, ctx, "none", &array);
    CALL(READERS, dt_npy_load, ctx, "none", &array);
    CALL(READERS, dt_npz_load, ctx, "none", NULL, &array);
    CALL(READERS, dt_wav_load, ctx, "none", &array, NULL);
    CALL(READERS, dt_image_load, ctx, "none", NULL, &array);
    CALL(READERS, dt_csv_open, ctx, "none", NULL, &csv);
    CALL(READERS, dt_folder_open, ctx, "none", NULL, &folder);
    CALL(READERS, dt_tokens_open, ctx, "none", NULL, &tokens);
    check(!csv && !folder && !tokens && !array.data, "what was not opened is NULL", NULL);
    NO_OBJECT(READERS, dt_csv_get_column, NULL, 0, NULL);
    NO_OBJECT(READERS, dt_csv_read, NULL, NULL, 0, 0, 0, DT_F32, NULL);
    NO_OBJECT(READERS, dt_folder_dataset, NULL, (dt_tensor){0}, (dt_tensor){0}, &data);
    NO_OBJECT(READERS, dt_tokens_dataset, NULL, (dt_tensor){0}, (dt_tensor){0}, &data);
    check(dt_csv_find(NULL, "a") == -1 && !dt_tokens_rows(NULL) && !dt_folder_labels(NULL),
          "without an object", NULL);
    dt_csv_get_info(NULL, &info);
    dt_folder_get_info(NULL, &folder_info);
    check(!info.rows && !folder_info.rows && !dt_folder_class_name(NULL, 0), "infos", NULL);
    dt_csv_close(csv);
    dt_folder_close(folder);
    dt_tokens_close(tokens);
    check(!dt_replay_create(ctx, &ring, &replay), "a replay buffer", dt_ctx_error(ctx));
    CALL(READERS, dt_replay_load, replay, "none");
    dt_replay_destroy(replay);
}

static void logs(dt_program *program) {
    const uint8_t pixels[3] = {0};
    dt_run_log *log;
    dt_profile *profile;
    const dt_result logged = dt_run_log_create(ctx, &(dt_run_log_desc){0}, &log);
    call(OFF(LOG), "dt_run_log_create", logged);
    NO_OBJECT(LOG, dt_run_log_scalar, NULL, "a", 0, 0);
    NO_OBJECT(LOG, dt_run_log_text, NULL, "a", 0, "b");
    NO_OBJECT(LOG, dt_run_log_histogram, NULL, "a", 0, NULL, 0);
    NO_OBJECT(LOG, dt_run_log_image, NULL, "a", 0, pixels, 1, 1, 3);
    NO_OBJECT(LOG, dt_run_log_hparams, NULL, NULL, 0, NULL);
    NO_OBJECT(LOG, dt_run_log_restart, NULL, 0);
    NO_OBJECT(LOG, dt_run_log_fit, NULL, NULL);
    CALL(LOG, dt_png_save, ctx, "/nowhere/none.png", pixels, 1, 1, 3);
    CALL(LOG, dt_profile_create, ctx, NULL, &profile);
    NO_OBJECT(LOG, dt_profile_run, NULL, program, NULL, NULL);
    NO_OBJECT(LOG, dt_profile_fit, NULL, NULL);
    NO_OBJECT(LOG, dt_profile_save, NULL, "none");
    dt_run_log_destroy(log);
    dt_profile_destroy(profile);
}

static void reports(dt_trainer *trainer, dt_tensor output) {
    dt_metric *metric;
    dt_lr_curve curve = {0};
    double value = 0;
    char text[8];
    const dt_metric_desc desc = {.kind = DT_METRIC_REGRESSION};
    CALL(REPORTS, dt_metric_create, ctx, &desc, &metric);
    NO_OBJECT(REPORTS, dt_metric_add, NULL, NULL, NULL, NULL, 0);
    NO_OBJECT(REPORTS, dt_metric_reduce, NULL, NULL);
    NO_OBJECT(REPORTS, dt_metric_get, NULL, DT_MEASURE_WEIGHT, &value);
    NO_OBJECT(REPORTS, dt_metric_get_class, NULL, DT_MEASURE_F1, 0, &value);
    check(!dt_metric_sums(NULL, NULL), "sums of nothing", NULL);
    dt_metric_reset(NULL);
    dt_metric_destroy(metric);
    CALL(REPORTS, dt_lr_find, trainer, NULL, &curve);
    dt_lr_curve_destroy(&curve);
    CALL(REPORTS, dt_summary, output, DT_SUMMARY_TEXT, text, sizeof text, NULL);
    CALL(REPORTS, dt_progress_show, NULL,
         &(dt_fit_state){.trainer = trainer, .event = DT_FIT_BEGIN});
}

static void exports(dt_store *store, dt_tensor x, dt_tensor y) {
    CALL(EXPORT, dt_onnx_save, store, "/nowhere/none.onnx", &(dt_onnx_desc){.outputs = {y}});
    CALL(EXPORT, dt_c_save, store, "/nowhere/none.c", &(dt_c_desc){.outputs = {y}});
    (void)x;
}

/* A setting that is refused: by its name. */
static void setting(const char *macro, const char *name, dt_graph *graph, dt_trainer_desc desc) {
    dt_trainer *trainer;
    dt_result result = dt_trainer_create(graph, &desc, &trainer);
    check(macro ? result == DT_ERROR_UNSUPPORTED && !trainer : true, name, dt_ctx_error(ctx));
    is_off(macro, name, result ? dt_ctx_error(ctx) : "");
    dt_trainer_destroy(trainer);
}

static void settings(dt_graph *graph, dt_trainer_desc desc) {
    dt_trainer_desc d = desc;
    d.parallel.pipeline = 2;
    setting(OFF(MODEL_PARALLEL), ".parallel.pipeline = 2", graph, d);
    d = desc;
    d.parallel.tensor = 2;
    setting(OFF(MODEL_PARALLEL), ".parallel.tensor = 2", graph, d);
    d = desc;
    d.parallel.tensor_slices = 2;
    setting(OFF(MODEL_PARALLEL), ".parallel.tensor_slices = 2", graph, d);
    d = desc;
    d.parallel.zero_stage = DT_SHARD_PARAMETERS;
    setting(OFF(ZERO), ".parallel.zero_stage = 3", graph, d);
    d = desc;
    d.mode = DT_TRAIN_LOCAL;
    setting(OFF(LOCAL), ".mode = DT_TRAIN_LOCAL", graph, d);
    d = desc;
    d.mode = DT_TRAIN_SERVER;
    d.server.addresses = "127.0.0.1:1";
    d.server.wait_ms = 1;
    setting(OFF(SERVER), ".mode = DT_TRAIN_SERVER", graph, d);
    d = desc;
    d.data.augment = &(dt_augment_desc){.noise = 0.1};
    setting(OFF(AUGMENT), "dt_dataset.augment", graph, d);
    d = desc;
    d.optim = &(dt_optim_desc){.kind = DT_OPTIM_MUON};
    setting(OFF(OPTIMIZERS), "dt_optim_desc.kind is 16; it must be SGD, Adam or AdamW", graph, d);
}

static void optimizers(void) {
    double lr;
    const dt_optim_desc lamb = {.kind = DT_OPTIM_LAMB};
    const dt_result result = dt_optim_lr(ctx, &lamb, 1, &lr);
    check(DTI_HAS_OPTIMIZERS ? !result : result == DT_ERROR_UNSUPPORTED, "LAMB", dt_ctx_error(ctx));
    is_off(OFF(OPTIMIZERS), "dt_optim_desc.kind is 14; it must be SGD, Adam or AdamW",
           result ? dt_ctx_error(ctx) : "");
}

static void servers(dt_graph *graph) {
    dt_server *server;
    dt_server_info info;
    CALL(SERVER, dt_server_create, graph, NULL, &server);
    check(!server && !dt_server_trainer(server), "no server", NULL);
    NO_OBJECT(SERVER, dt_server_run, server, 0);
    dt_server_stop(server);
    dt_server_get_info(server, &info);
    dt_server_destroy(server);
}

static void layers(void) {
    dt_graph *g;
    dt_graph_create(ctx, &g);
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(3, 4));
    dt_nn_lstm(x, "lstm", 4, NULL);
    is_off(OFF(RECURRENT), "dt_nn_lstm", dt_graph_error(g));
    dt_graph_clear_error(g);
    dt_nn_gru(x, "gru", 4, NULL);
    is_off(OFF(RECURRENT), "dt_nn_gru", dt_graph_error(g));
    dt_graph_clear_error(g);
    dt_nn_rnn(x, "rnn", 4, NULL);
    is_off(OFF(RECURRENT), "dt_nn_rnn", dt_graph_error(g));
    dt_graph_clear_error(g);
    dt_ctc_loss(dt_log_softmax(x, 1), dt_input(g, "t", DT_I32, dt_dims(2)), NULL);
    is_off(OFF(CTC), "dt_ctc_loss", dt_graph_error(g));
    dt_graph_clear_error(g);
    dt_tensor index = x;
    dt_huber(x, x, 1);
    is_off(OFF(COMPOSED), "dt_huber", dt_graph_error(g));
    dt_graph_clear_error(g);
    dt_where(x, x, x);
    is_off(OFF(COMPOSED), "dt_where", dt_graph_error(g));
    dt_graph_clear_error(g);
    dt_topk(x, 1, 2, true, &index);
    is_off(OFF(COMPOSED), "dt_topk", dt_graph_error(g));
    check(DTI_HAS_COMPOSED == (index.id > 0), "its index", NULL);
    dt_graph_clear_error(g);
    dt_einsum("ij,ij->i", (dt_tensor[]){x, x}, 2);
    is_off(OFF(COMPOSED), "dt_einsum", dt_graph_error(g));
    dt_graph_destroy(g);
}

#ifndef DT_NO_COMM
/* Variables that name several processes are an error for all launchers, since each process would
 * train by itself. */
static void env_is_refused(const char *const set[][2], const char *want) {
    for (int i = 0; set[i][0]; i++)
        setenv(set[i][0], set[i][1], 1);
    const dt_comm_desc desc = dt_comm_desc_from_env();
    check(strstr(desc.error, want) != NULL, want, desc.error);
    for (int i = 0; set[i][0]; i++)
        unsetenv(set[i][0]);
}

#endif

static void env(void) {
#ifndef DT_NO_COMM
    env_is_refused((const char *const[][2]){{"DTRAIN_LAUNCHER", "dtrain"}, {0}}, "DTRAIN_RANK");
    env_is_refused((const char *const[][2]){{"DTRAIN_RANK", "0"},
                                            {"DTRAIN_WORLD_SIZE", "1"},
                                            {"RANK", "1"},
                                            {"WORLD_SIZE", "2"},
                                            {0}},
                   "disagree");
    env_is_refused((const char *const[][2]){{"PMI_FD", "5"}, {0}}, "PMI");
#endif
}

static void launchers(void) {
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "4711", 1);
    dt_comm_desc desc = dt_comm_desc_from_env();
#ifndef DT_NO_COMM
    is_off(OFF(LAUNCHERS), "launched by torch (RANK)", desc.error);
    dt_comm *comm;
    desc = (dt_comm_desc){.world_size = 2, .rendezvous = "tcpstore://127.0.0.1:1"};
    desc.join_timeout_ms = 1;
    dt_comm_create(&desc, &comm);
    is_off(OFF(LAUNCHERS), ".rendezvous is \"tcpstore://127.0.0.1:1\"", dt_comm_error(comm));
    dt_comm_destroy(comm);
#else
    check(strstr(desc.error, "DT_NO_COMM"), "torch's variables", desc.error);
#endif
}

/* Two replicas, a fit, weights to a file and back. */
static void trains(const char *file) {
    float a[64][2], b[64];
    for (int i = 0; i < 64; i++) {
        a[i][0] = (float)(i % 8) / 8, a[i][1] = (float)(i / 8) / 8;
        b[i] = a[i][0] - 2 * a[i][1];
    }
    dt_graph *g;
    dt_trainer *trainer;
    dt_program *program;
    dt_history history;
    check(!dt_graph_create(ctx, &g), "a graph", dt_ctx_error(ctx));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(2)), t = dt_input(g, "t", DT_F32, dt_dims(1));
    dt_tensor y = dt_nn_linear(dt_tanh(dt_nn_linear(x, "fc1", 16)), "fc2", 1);
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01};
    const dt_trainer_desc desc = {
        .loss = dt_mse(y, t),
        .optim = &adam,
        .data = {.rows = 64, .columns = {{.input = x, .data = a}, {.input = t, .data = b}}},
        .batch = 16,
        .seed = 1,
        .devices = "cpu:2"};
    settings(g, desc);
    servers(g);
    check(!dt_trainer_create(g, &desc, &trainer), "a trainer", dt_ctx_error(ctx));
    check(!dt_trainer_fit(trainer, &(dt_fit_desc){.epochs = 50}, &history), "fit",
          dt_ctx_error(ctx));
    const double loss = history.count ? history.entries[history.count - 1].loss : 1;
    check(loss < 0.01, "the loss", "it does not fall");
    dt_store *store = dt_trainer_store(trainer);
    check(!dt_program_create(store, &(dt_program_desc){.outputs = {y}}, &program), "a program",
          dt_ctx_error(ctx));
    logs(program);
    reports(trainer, y);
    exports(store, x, y);
    check(!dt_store_save(store, file) && !dt_store_load(store, file), "a file", dt_ctx_error(ctx));
    float out = 0;
    dt_program_write(program, x, a[9], sizeof a[9]);
    check(!dt_program_run(program, NULL, NULL) && !dt_program_read(program, y, &out, sizeof out),
          "a prediction", dt_ctx_error(ctx));
    printf("%a %a\n", loss, (double)out);
    dt_history_destroy(&history);
}

/* The kernels that a program needs on the first Vulkan device come from `cache`, and go to it. */
static void vulkan_kernels(void *cache, size_t *bytes) {
    dt_ctx *own;
    dt_graph *g;
    dt_store *store;
    dt_program *program;
    check(!dt_ctx_create(&(dt_ctx_desc){.pipeline_cache = cache, .pipeline_cache_bytes = *bytes},
                         &own),
          "a context", "");
    if (dt_ctx_device_count(own) > 1 && dt_ctx_device(own, 1)->usable) {
        check(!dt_graph_create(own, &g), "a graph", dt_ctx_error(own));
        dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(2)), y = dt_nn_linear(x, "fc", 1);
        check(!dt_store_create(g, &(dt_store_desc){.device = "vulkan:0"}, &store) &&
                  !dt_program_create(store, &(dt_program_desc){.outputs = {y}}, &program) &&
                  !dt_program_write(program, x, (float[2]){1, 2}, 2 * sizeof(float)) &&
                  !dt_program_run(program, NULL, NULL),
              "a program on Vulkan", dt_ctx_error(own));
        check(!dt_ctx_pipeline_cache(own, NULL, bytes), "a cache's size", dt_ctx_error(own));
        void *now = malloc(*bytes);
        check(now && !dt_ctx_pipeline_cache(own, now, bytes), "a cache", dt_ctx_error(own));
        if (!cache && now)
            vulkan_kernels(now, bytes);
        free(now);
    }
    dt_ctx_destroy(own);
}

int main(int argc, char **argv) {
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx))
        return 2;
    readers();
    layers();
    optimizers();
    env();
    launchers();
    size_t bytes = 0;
    vulkan_kernels(NULL, &bytes);
    trains(argc > 1 ? argv[1] : "light.safetensors");
    dt_ctx_destroy(ctx);
    return failed ? 1 : 0;
}
