/* Makes the mistakes of docs/guide/troubles.md, one after the other, and prints what the library
 * says. guide.sh compares the page with it. It needs a folder to write to. */
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 64 };
static float xs[ROWS][4], ts[ROWS];
static int32_t labels[ROWS];
static dt_ctx *ctx;
static dt_graph *graph;
static dt_store *store;
static dt_trainer *trainer;
static dt_tensor x, y;
static dt_optim_desc optim;

static void say(void *user, dt_log_level level, const char *text) {
    (void)user, (void)level;
    puts(text);
}

static void fresh(void) {
    dt_ctx_destroy(ctx);
    dt_ctx_create(&(dt_ctx_desc){.logger = {say, NULL}}, &ctx);
    dt_graph_create(ctx, &graph);
    optim = (dt_optim_desc){0};
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < 4; k++)
            xs[i][k] = (float)((i * 7 + k * 13) % 19) / 9 - 1;
        ts[i] = xs[i][0];
        labels[i] = i % 3;
    }
    x = dt_input(graph, "x", DT_F32, dt_dims(4));
}

/* A job of two layers: a number, or a class. */
static dt_trainer_desc job(bool classes) {
    fresh();
    dt_tensor t = classes ? dt_input(graph, "label", DT_I32, dt_dims())
                          : dt_input(graph, "t", DT_F32, dt_dims(1));
    y = dt_nn_linear(dt_relu(dt_nn_linear(x, "fc1", 8)), "fc2", classes ? 3 : 1);
    dt_trainer_desc d = {.loss = classes ? dt_cross_entropy(y, t, NULL) : dt_mse(y, t),
                         .optim = &optim};
    d.batch = 16;
    d.devices = "cpu";
    d.no_shuffle = true;
    d.data.rows = ROWS;
    d.data.columns[0] = (dt_column){.input = x, .data = xs};
    d.data.columns[1] = (dt_column){.input = t, .data = ts};
    if (classes)
        d.data.columns[1] = (dt_column){.input = t, .data = labels, .dtype = DT_I32};
    return d;
}

static void step_of(const dt_trainer_desc *d, int steps) {
    dt_trainer_create(graph, d, &trainer);
    for (int i = 0; i < steps; i++)
        dt_trainer_step(trainer, NULL);
}

static void not_finite(void) {
    dt_trainer_desc d = job(false);
    xs[5][2] = NAN;
    step_of(&d, 1);
    d = job(false);
    ts[5] = INFINITY;
    step_of(&d, 1);
    d.data.columns[1] = (dt_column){0};
    fresh();
    d.loss = dt_mean_loss(dt_log(dt_nn_linear(x, "fc1", 4)));
    d.data.columns[0].input = x;
    step_of(&d, 1);
    dt_trainer_fit(trainer, &(dt_fit_desc){.epochs = 5}, NULL);
    d = job(false);
    optim = (dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 1e6};
    step_of(&d, 3);
}

static void wrong_descriptions(void) {
    dt_trainer_desc d = job(false);
    d.params = "fc3.*";
    dt_trainer_create(graph, &d, &trainer);
    d = job(false);
    dt_tensor frozen = dt_detach(y);
    d.loss = dt_mean_loss(dt_square(dt_nn_linear(frozen, "head", 1)));
    d.data.columns[1] = (dt_column){0};
    dt_trainer_create(graph, &d, &trainer);
    d = job(true);
    labels[5] = 3;
    step_of(&d, 1);
    d = job(true);
    d.data.columns[1].dtype = DT_F32;
    dt_trainer_create(graph, &d, &trainer);
    d = job(false);
    d.devices = NULL;
    dt_trainer_create(graph, &d, &trainer);
    d = job(false);
    d.checkpoint.folder = "missing/run";
    dt_trainer_create(graph, &d, &trainer);
    dt_trainer_fit(trainer, &(dt_fit_desc){.epochs = 1}, NULL);
    fresh();
    dt_linear(x, dt_param(graph, "w", dt_dims(3, 5), (dt_init){0}), (dt_tensor){0});
    dt_store_create(graph, NULL, &store);
}

static void programs(void) {
    dt_program *program;
    float in[8] = {0};
    fresh();
    y = dt_nn_linear(x, "fc1", 2);
    dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store);
    dt_program_create(store, &(dt_program_desc){.outputs = {y}, .batch = 2}, &program);
    dt_program_run(program, NULL, NULL);
    dt_program_write(program, x, in, 4);
    dt_program_write(program, x, in, sizeof in);
    dt_program_begin(program, NULL);
    dt_program_run(program, NULL, NULL);
    dt_program_destroy(program);
    dt_tensor loss = dt_mean_loss(dt_square(y));
    dt_program_create(
        store, &(dt_program_desc){.loss = loss, .batch = 512, .optim = &optim, .memory_bytes = 8},
        &program);
}

static void store_of(int width, bool two) {
    fresh();
    y = dt_nn_linear(x, "fc1", width);
    if (two)
        y = dt_nn_linear(y, "fc2", 2);
    dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store);
}

static void files(void) {
    char bytes[4096];
    float nan[32];
    store_of(8, false);
    remove("w.safetensors");
    dt_store_load(store, "w.safetensors");
    dt_store_save(store, "w.safetensors");
    FILE *f = fopen("w.safetensors", "rb");
    const size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f && !fclose(f) && (f = fopen("short.safetensors", "wb")))
        fwrite(bytes, 1, n - 10, f), fclose(f);
    dt_store_load(store, "short.safetensors");
    if ((f = fopen("text.safetensors", "wb")))
        fputs("hello, this is a text\n", f), fclose(f);
    dt_store_load(store, "text.safetensors");
    for (int i = 0; i < 32; i++)
        nan[i] = NAN;
    dt_store_write(store, dt_store_find(store, "fc1.weight"), DT_VALUE_PARAM, nan, sizeof nan);
    dt_store_save(store, "nan.safetensors");
    dt_store_load(store, "nan.safetensors");
    dt_store_load_state(store, "w.safetensors");
    store_of(6, false);
    dt_store_load(store, "w.safetensors");
    store_of(8, true);
    dt_store_load(store, "w.safetensors");
    dt_store_load_matching(store, "w.safetensors",
                           &(dt_load_desc){.prefix = "fc2.", .file_prefix = "head."}, NULL);
}

static void checkpoints(void) {
    dt_trainer_desc d = job(false);
    optim.kind = DT_OPTIM_SGD;
    step_of(&d, 1);
    dt_trainer_save(trainer, "job.safetensors");
    d = job(false);
    step_of(&d, 0);
    dt_trainer_load(trainer, "job.safetensors");
    d = job(false);
    optim.kind = DT_OPTIM_SGD;
    d.batch = 32;
    step_of(&d, 0);
    dt_trainer_load(trainer, "job.safetensors");
}

/* A second trainer of a folder resumes and has nothing to do. More epochs need the lock. */
static void second_starts(void) {
    dt_trainer *second;
    dt_trainer_desc d = job(false);
    d.checkpoint.folder = "twice";
    dt_trainer_create(graph, &d, &trainer);
    dt_trainer_fit(trainer, &(dt_fit_desc){.epochs = 1}, NULL);
    dt_trainer_create(graph, &d, &second);
    dt_trainer_fit(second, &(dt_fit_desc){.epochs = 1}, NULL);
    dt_trainer_fit(second, &(dt_fit_desc){.epochs = 2}, NULL);
}

static dt_csv *table(const char *path, const char *text, const dt_csv_desc *desc) {
    dt_csv *csv = NULL;
    FILE *f = fopen(path, "wb");
    if (f)
        fputs(text, f), fclose(f);
    dt_csv_open(ctx, path, desc, &csv);
    return csv;
}

static void tables(void) {
    fresh();
    dt_csv_close(table("some.csv", "a,b\n1,2\n1,\n", NULL));
    dt_csv_close(table("some.csv", "a;b\n1,5;2\n", NULL));
    dt_csv *train = table("some.csv", "town,price\nx,1\ny,2\n", NULL);
    dt_csv_close(table("new.csv", "town\nx\n", &(dt_csv_desc){.like = train}));
    dt_csv_close(table("new.csv", "town,price\nz,1\n", &(dt_csv_desc){.like = train}));
    dt_csv_close(train);
}

int main(void) {
    not_finite(), wrong_descriptions(), programs(), files(), checkpoints();
    second_starts(), tables();
    dt_ctx_destroy(ctx);
    return 0;
}
