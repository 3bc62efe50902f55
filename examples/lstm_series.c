/* Forecasts a series by an LSTM that is trained by truncated backpropagation through time. The
 * series is cut into streams, which continue chunk by chunk. Each chunk begins with the state in
 * which the one before ended. Takes the last column of a CSV file and draws the forecast. An
 * example is the yearly sunspots of Debian's python3-statsmodels, 1700 to 2008:
 *     cc -O2 lstm_series.c -lm -ldl -lpthread
 *     ./lstm_series /usr/lib/python3/dist-packages/statsmodels/datasets/sunspots/sunspots.csv */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HIDDEN = 32, STEPS = 20, STREAMS = 4, MOST = 20000, STATE = LAYERS * HIDDEN };

static dt_ctx *ctx;
static dt_tensor x, target, h, c, forecast, loss;
static dt_recurrent lstm;
static float series[MOST], said[MOST]; /* said: the forecast of a place */

static void check(dt_result result) {
    if (result == DT_OK)
        return;
    fprintf(stderr, "lstm_series: %s\n", ctx ? dt_ctx_error(ctx) : dt_result_text(result));
    exit(1);
}

/* The last number of each line that ends with one. */
static int read_series(const char *path) {
    char line[512];
    int n = 0;
    FILE *file = fopen(path, "r");
    while (file && n < MOST && fgets(line, sizeof line, file)) {
        const char *last = strrchr(line, ',') ? strrchr(line, ',') + 1 : line;
        char *end;
        series[n] = strtof(last, &end);
        n += end != last;
    }
    return file ? (fclose(file), n) : 0;
}

static void build(dt_graph *g) {
    const dt_shape state = dt_dims(LAYERS, HIDDEN);
    x = dt_input(g, "x", DT_F32, dt_dims(STEPS, 1));
    h = dt_input(g, "h", DT_F32, state);
    c = dt_input(g, "c", DT_F32, state);
    lstm = dt_nn_lstm(x, "lstm", HIDDEN, &(dt_recurrent_desc){.layers = LAYERS, .h = h, .c = c});
    forecast = dt_add(x, dt_nn_linear(lstm.y, "out", 1)); /* what changes until the next step */
    target = dt_input(g, "target", DT_F32, dt_dims(STEPS, 1));
    loss = dt_mse(forecast, target);
}

/* A step of all streams: a batch goes in, the state goes round. Returns the loss. */
static double run(dt_program *p, const float *in, const float *out, size_t values, size_t batch,
                  float states[2][STREAMS * STATE]) {
    const size_t state = sizeof(float) * STATE * batch;
    dt_report report;
    check(dt_program_write(p, x, in, sizeof(float) * values));
    if (out)
        check(dt_program_write(p, target, out, sizeof(float) * values));
    check(dt_program_write(p, h, states[0], state));
    check(dt_program_write(p, c, states[1], state));
    check(dt_program_run(p, NULL, &report));
    check(dt_program_read(p, lstm.h, states[0], state));
    check(dt_program_read(p, lstm.c, states[1], state));
    return report.loss;
}

/* Once over the first `n` values; another place to begin in each epoch. */
static double train(dt_program *p, int n, int epoch) {
    float states[2][STREAMS * STATE] = {{0}};
    float in[STREAMS * STEPS], out[STREAMS * STEPS];
    const int first = epoch % STEPS, each = (n - 1 - first) / STREAMS, chunks = each / STEPS;
    double sum = 0;
    for (int k = 0; k < chunks; k++) {
        for (int i = 0; i < STREAMS * STEPS; i++) {
            const int at = first + i / STEPS * each + k * STEPS + i % STEPS;
            in[i] = series[at];
            out[i] = series[at + 1];
        }
        sum += run(p, in, out, STREAMS * STEPS, STREAMS, states);
    }
    return chunks ? sum / chunks : 0;
}

/* Value by value: each is forecast from those before; after `known`, from the forecasts so far. */
static void tell(dt_program *p, int known, int n) {
    float states[2][STREAMS * STATE] = {{0}};
    for (int i = 0; i + 1 < n; i++) {
        run(p, i < known ? &series[i] : &said[i], NULL, 1, 1, states);
        check(dt_program_read(p, forecast, &said[i + 1], sizeof(float)));
    }
}

/* The whole series in grey, and in red the forecast from `known` on. */
static void draw(const char *path, int known, int n) {
    FILE *file = fopen(path, "w");
    check(file ? DT_OK : DT_ERROR_IO);
    fprintf(file, "<svg xmlns='http://www.w3.org/2000/svg' width='1000' height='300'>\n");
    for (int line = 0; line < 2; line++) {
        fprintf(file, "<polyline fill='none' stroke='%s' points='", line ? "crimson" : "gray");
        for (int i = line ? known : 0; i < n; i++)
            fprintf(file, "%.1f,%.1f ", 960.0 * i / n + 20,
                    150 - 40 * (double)(line ? said[i] : series[i]));
        fprintf(file, "'/>\n");
    }
    fprintf(file, "</svg>\n");
    fclose(file);
}

int main(int argc, char **argv) {
    const int n = argc > 1 ? read_series(argv[1]) : 0, epochs = argc > 2 ? atoi(argv[2]) : 150;
    const int known = n * 4 / 5, ahead = n / 10;
    double mean = 0, square = 0, wrong = 0, still = 0;
    if (known < STREAMS * STEPS * 2 || n + ahead > MOST)
        return fprintf(stderr, "lstm_series FILE.csv [EPOCHS [OUT.svg]]: 200 to 18,000 values\n");
    for (int i = 0; i < known; i++)
        mean += (double)series[i] / known, square += pow((double)series[i], 2) / known;
    const double deviation = sqrt(square - mean * mean);
    for (int i = 0; i < n; i++)
        series[i] = (float)(((double)series[i] - mean) / deviation);

    dt_graph *graph;
    dt_store *store;
    dt_program *learner, *teller;
    check(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx)); /* too small for a GPU */
    check(dt_graph_create(ctx, &graph));
    build(graph);
    check(dt_store_create(graph, &(dt_store_desc){.seed = 1}, &store));
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 2e-3, .weight_decay = 1e-4};
    dt_program_desc learns = {
        .loss = loss, .outputs = {lstm.h, lstm.c}, .batch = STREAMS, .optim = &adam};
    dt_program_desc tells = {.outputs = {forecast, lstm.h, lstm.c}, .batch = 1};
    tells.shapes[0] = (dt_input_shape){x, dt_dims(1, 1)}; /* the same graph, a step at a time */
    check(dt_program_create(store, &learns, &learner));
    check(dt_program_create(store, &tells, &teller));
    for (int epoch = 1; epoch <= epochs; epoch++)
        printf("epoch %d: loss %.4f\n", epoch, train(learner, known, epoch));
    tell(teller, n, n + ahead);
    for (int i = known; i < n; i++) {
        wrong += pow((double)(said[i] - series[i]), 2);
        still += pow((double)(series[i - 1] - series[i]), 2);
    }
    printf("one step ahead, the last %d values: off by %.4g, the value before by %.4g\n", n - known,
           deviation * sqrt(wrong / (n - known)), deviation * sqrt(still / (n - known)));
    memcpy(series + n, said + n, sizeof(float) * (size_t)ahead);
    draw(argc > 3 ? argv[3] : "lstm_series.svg", known, n + ahead);
    dt_ctx_destroy(ctx);
}
