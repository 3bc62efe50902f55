/* Learns a column of a CSV file from its other columns: a category by cross-entropy, a number by
 * squared error. Numbers are standardised within the network, by means and deviations that --save
 * writes beside the weights; categories get vectors of one table. A missing number is the mean, a
 * missing category one of its own. Rows are read from the file when they are needed. A
 * fifth, chosen by chance, validates; training stops where that gets no better, and keeps the best.
 *
 *     build/tabular FILE.csv --target COLUMN [--skip PATTERNS] [--log FOLDER] [--devices LIST]
 *                            [--epochs N] [--save FILE.safetensors] */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TARGET, SKIP, LOG, DEVICES, EPOCHS, SAVE, OPTIONS };
static const char *const names[] = {"--target",  "--skip",   "--log",
                                    "--devices", "--epochs", "--save"};
static const char *text[OPTIONS] = {[SKIP] = "", [DEVICES] = "cpu", [EPOCHS] = "100"};
enum { WIDTH = 64, VECTOR = 4, BATCH = 32, COLUMNS = 256 };
static dt_ctx *ctx;

typedef struct part {
    dt_csv *csv; /* each has the file for itself: they are read by two threads */
    uint64_t from, count;
} part;

static int numbers[COLUMNS], kinds[COLUMNS], first[COLUMNS];   /* columns; a kind's first vector */
static int number_count, kind_count, vectors, target, classes; /* classes 0: a number */
static uint32_t *order;                                        /* of rows, by chance */

static void check(int ok, const char *what, const char *why) {
    if (!ok && fprintf(stderr, "tabular: %s%s\n", what, why))
        exit(1);
}
#define TRY(call) check((call) == DT_OK, "", ctx ? dt_ctx_error(ctx) : "out of memory")

static void find_columns(const dt_csv *csv, int count) {
    dt_csv_column c;
    target = dt_csv_find(csv, text[TARGET]);
    check(target >= 0 && count <= COLUMNS, text[TARGET], ": no column has this name");
    for (int i = 0; i < count; i++) {
        TRY(dt_csv_get_column(csv, i, &c));
        if (i == target)
            classes = c.categories;
        else if (c.kind == DT_CSV_NUMBER)
            numbers[number_count++] = i;
        else if (c.kind == DT_CSV_CATEGORY) {
            first[kind_count] = vectors;
            kinds[kind_count++] = i;
            vectors += c.categories;
        }
    }
    check(number_count + kind_count > 0, text[TARGET], " is the only column that is left");
}

static dt_result sample(void *user, const dt_sample *s, void *const *values) {
    const part *p = user;
    const uint64_t row = order[p->from + s->row];
    dt_result result = DT_OK;
    int n = 0;
    if (number_count)
        result = dt_csv_read(p->csv, numbers, number_count, row, 1, DT_F32, values[n++]);
    if (kind_count && !result) {
        int32_t *code = values[n++];
        result = dt_csv_read(p->csv, kinds, kind_count, row, 1, DT_I32, code);
        for (int i = 0; i < kind_count; i++)
            code[i] += first[i];
    }
    return result ? result
                  : dt_csv_read(p->csv, &target, 1, row, 1, classes ? DT_I32 : DT_F32, values[n]);
}

static dt_dataset rows_of(part *p, const dt_tensor in[3]) {
    dt_dataset d = {.rows = p->count, .sample = sample, .user = p};
    int n = 0;
    if (number_count)
        d.columns[n++] = (dt_column){.input = in[0]};
    if (kind_count)
        d.columns[n++] = (dt_column){.input = in[1], .dtype = DT_I32};
    d.columns[n] = (dt_column){.input = in[2], .dtype = classes ? DT_I32 : DT_F32};
    return d;
}

/* By buffers: files hold them as they hold weights. */
static dt_tensor standardised(dt_tensor x) {
    const dt_shape shape = dt_tensor_shape(x);
    x = dt_sub(x, dt_buffer(x.graph, "numbers.mean", shape, (dt_init){0}));
    return dt_div(x, dt_buffer(x.graph, "numbers.deviation", shape, (dt_init){0}));
}

static void write_statistics(const dt_csv *csv, dt_store *store) {
    float mean[COLUMNS], deviation[COLUMNS];
    const size_t bytes = (size_t)number_count * sizeof(float);
    dt_csv_column c;
    for (int i = 0; i < number_count; i++) {
        TRY(dt_csv_get_column(csv, numbers[i], &c));
        mean[i] = (float)c.mean;
        deviation[i] = c.std > 0 ? (float)c.std : 1;
    }
    const int at = dt_store_find(store, "numbers.mean");
    TRY(dt_store_write(store, at, DT_VALUE_PARAM, mean, bytes));
    TRY(dt_store_write(store, at + 1, DT_VALUE_PARAM, deviation, bytes));
}

static dt_tensor network(dt_graph *g, dt_tensor in[3]) {
    dt_tensor parts[2], h;
    int n = 0;
    if (number_count)
        parts[n++] = standardised(in[0] = dt_input(g, "numbers", DT_F32, dt_dims(number_count)));
    if (kind_count) {
        in[1] = dt_input(g, "categories", DT_I32, dt_dims(kind_count));
        parts[n++] = dt_flatten(dt_nn_embedding(in[1], "vectors", vectors, VECTOR));
    }
    in[2] = dt_input(g, "target", classes ? DT_I32 : DT_F32, classes ? dt_dims() : dt_dims(1));
    h = dt_relu(dt_nn_linear(dt_concat(parts, n, 0), "fc1", WIDTH));
    h = dt_relu(dt_nn_linear(h, "fc2", WIDTH));
    return dt_nn_linear(h, "fc3", classes ? classes : 1);
}

int main(int argc, char **argv) {
    for (int i = 2; i < argc; i += 2) {
        int o = 0;
        while (o < OPTIONS && strcmp(names[o], argv[i]))
            o++;
        check(o < OPTIONS && i + 1 < argc, argv[i], ": an unknown option, or without a value");
        text[o] = argv[i + 1];
    }
    check(argc > 1 && text[TARGET], "usage: tabular FILE.csv --target COLUMN", "");
    part train = {0}, valid = {0};
    dt_csv_info info;
    dt_csv_desc desc = {.rules = {{text[TARGET], .missing = DT_CSV_MISSING_DROP},
                                  {"*", .missing = DT_CSV_MISSING_MEAN}}};
    if (*text[SKIP]) { /* before the others: a rule that matches no column is an error */
        memmove(desc.rules + 1, desc.rules, 2 * sizeof *desc.rules);
        desc.rules[0] = (dt_csv_rule){text[SKIP], DT_CSV_SKIP};
    }
    TRY(dt_ctx_create(&(dt_ctx_desc){.threads = DT_THREADS_ALL}, &ctx));
    TRY(dt_csv_open(ctx, argv[1], &desc, &train.csv));
    TRY(dt_csv_open(ctx, argv[1], &(dt_csv_desc){.like = train.csv}, &valid.csv));
    dt_csv_get_info(train.csv, &info);
    find_columns(train.csv, info.columns);
    check((order = malloc(info.rows * sizeof *order)) != NULL, "out of memory", "");
    dt_shuffle(order, (uint32_t)info.rows, 1, 0);
    valid.count = info.rows / 5;
    valid.from = train.count = info.rows - valid.count;

    dt_graph *g;
    dt_trainer *trainer;
    dt_run_log *log = NULL;
    dt_tensor in[3];
    TRY(dt_graph_create(ctx, &g));
    dt_tensor out = network(g, in);
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAMW, .lr = 1e-3};
    dt_trainer_desc job = {.optim = &adam, .batch = BATCH, .devices = text[DEVICES]};
    job.loss = classes ? dt_cross_entropy(out, in[2], NULL) : dt_mse(out, in[2]);
    job.metrics[0] = classes ? dt_accuracy(out, in[2]) : (dt_tensor){0};
    job.data = rows_of(&train, in);
    TRY(dt_trainer_create(g, &job, &trainer));
    if (number_count)
        write_statistics(train.csv, dt_trainer_store(trainer));
    const dt_dataset checked = rows_of(&valid, in);
    dt_progress bar = {0};
    dt_run_log_desc logs = {.folder = text[LOG]};
    if (text[LOG])
        TRY(dt_run_log_create(ctx, &logs, &log));
    dt_fit_desc fit = {.epochs = strtoull(text[EPOCHS], NULL, 10), .validation = &checked};
    fit.watch = (dt_watch){.patience = 10, .restore_best = true, .save = text[SAVE]};
    fit.callbacks[0] = (dt_callback){dt_progress_show, &bar};
    fit.callbacks[1] = (dt_callback){log ? dt_run_log_fit : NULL, log};
    TRY(dt_trainer_fit(trainer, &fit, NULL));
    dt_run_log_destroy(log);
    dt_csv_close(valid.csv);
    dt_csv_close(train.csv);
    dt_ctx_destroy(ctx);
    free(order);
    return 0;
}
