/* Teaches language: a GPT over bytes (learned positions, norms before each layer, GELU, tied
 * embeddings, as nanoGPT has it) learns a text and writes on. ./build.sh text brings a text;
 * any file will do. An epoch ends with the loss on the last tenth of the text, which is not trained
 * on. Then comes a sample. Numbers: --epochs --steps (at most) --batch --context --layers --heads
 * --width --lr --dropout --seed --batch-slices --length (of its text, in bytes). Words: --data FILE
 * --devices LIST --save FILE --load FILE --prompt TEXT */
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { EPOCHS, STEPS, BATCH, CONTEXT, LAYERS, HEADS, WIDTH, LR, DROPOUT, SEED, SLICES, LENGTH };
enum { DATA = LENGTH + 1, DEVICES, SAVE, LOAD, PROMPT, OPTIONS, BYTES = 256 };
static const char *const options[OPTIONS] = {
    "--epochs", "--steps",   "--batch",   "--context", "--layers",       "--heads",
    "--width",  "--lr",      "--dropout", "--seed",    "--batch-slices", "--length",
    "--data",   "--devices", "--save",    "--load",    "--prompt"};
static double number[OPTIONS] = {3, 0, 32, 128, 4, 4, 128, 1e-3, 0, 1, 0, 300};
static const char *words[OPTIONS] = {[DATA] = "build/data/jargon.txt", [PROMPT] = "The "};
static dt_ctx *ctx;
static unsigned char text[1 << 26]; /* of a longer one the beginning */
static int64_t context;             /* bytes that are seen at once */
static void check(int ok, const char *what, const char *why) {
    if (!ok)
        fprintf(stderr, "char_gpt: %s%s\n", what, why), exit(1);
}
#define TRY(call) check((call) == DT_OK, "", ctx ? dt_ctx_error(ctx) : "out of memory")
static void option(const char *name, const char *value) {
    int o = 0;
    while (o < OPTIONS && strcmp(options[o], name))
        o++;
    check(o < OPTIONS && value && (number[o] = atof(words[o] = value)) >= 0, name,
          ": an unknown option, or not a value for it");
}

static dt_tensor gpt(dt_graph *g, dt_tensor x) {
    const int64_t width = (int64_t)number[WIDTH];
    const float drop = (float)number[DROPOUT];
    const dt_init normal = {DT_INIT_NORMAL, 0, 0.02f};
    const dt_attention_layer_desc causal = {.attention = {.causal = true, .dropout = drop}};
    dt_tensor table = dt_param(g, "wte.weight", dt_dims(BYTES, width), normal);
    dt_tensor places = dt_param(g, "wpe.weight", dt_dims(context, width), normal);
    dt_tensor h = dt_dropout(dt_add(dt_embedding(table, x), places), drop), y;
    for (int i = 0; i < (int)number[LAYERS]; i++) {
        char name[32];
        snprintf(name, sizeof name, "h.%d", i);
        dt_scope_push(g, name);
        y = dt_nn_layer_norm(h, "ln_1", 1);
        y = dt_nn_multi_head_attention(y, y, "attn", (int64_t)number[HEADS], &causal);
        h = dt_add(h, dt_dropout(y, drop));
        y = dt_gelu(dt_nn_linear(dt_nn_layer_norm(h, "ln_2", 1), "mlp.c_fc", 4 * width));
        h = dt_add(h, dt_dropout(dt_nn_linear(y, "mlp.c_proj", width), drop));
        dt_scope_pop(g);
    }
    return dt_linear(dt_nn_layer_norm(h, "ln_f", 1), table, (dt_tensor){0});
}

/* Window `row` of a text, which begins elsewhere in each epoch; each byte's target is the next. */
static dt_result window(void *from, const dt_sample *s, void *const *values) {
    const unsigned char *at = (unsigned char *)from + s->row * (uint64_t)context;
    at += s->epoch * 7919 % (uint64_t)context;
    for (int64_t i = 0; i < 2 * context; i++)
        ((int32_t *)values[i % 2])[i / 2] = at[i / 2 + i % 2];
    return DT_OK;
}
static dt_dataset windows(size_t from, size_t to, dt_tensor x, dt_tensor t) {
    check(context > 0 && to - from > 2 * (size_t)context, words[DATA], ": too short");
    const size_t rows = (to - from - 1) / (size_t)context - 1; /* one for other beginnings */
    return (dt_dataset){rows, {{.input = x}, {.input = t}}, window, text + from};
}

/* A byte by the softmax of its logits, at temperature 0.8. */
static int choose(const float *logits) {
    double p[BYTES], sum = 0, at;
    int i = -1;
    for (int k = 0; k < BYTES; k++)
        sum += p[k] = exp((double)logits[k] / 0.8);
    for (at = sum * rand() / RAND_MAX; at >= 0 && i < BYTES - 1;)
        at -= p[++i];
    return i;
}
static void write_on(dt_store *store, dt_tensor x, dt_tensor logits) {
    const size_t bytes = (size_t)context * 4, given = strlen(words[PROMPT]);
    int32_t *seen = calloc(1, bytes);
    float *out = calloc(BYTES, bytes);
    dt_program *program;
    size_t n = 0;
    check(seen && out && given, "--prompt", ": it is empty, or there is no memory");
    TRY(dt_program_create(store, &(dt_program_desc){.outputs = {logits}, .batch = 1}, &program));
    for (size_t i = 0; i < given + (size_t)number[LENGTH]; i++) {
        TRY(dt_program_write(program, x, seen, bytes));
        TRY(i < given ? DT_OK : dt_program_run(program, NULL, NULL));
        TRY(i < given ? DT_OK : dt_program_read(program, logits, out, bytes * BYTES));
        int next = i < given ? (unsigned char)words[PROMPT][i] : choose(out + (n - 1) * BYTES);
        if (n == (size_t)context)
            memmove(seen, seen + 1, --n * 4);
        seen[n++] = putchar(next);
    }
    dt_program_destroy(program), free(seen), free(out), puts("\n----"), fflush(stdout);
}

typedef struct writer {
    const dt_dataset *rest;
    dt_tensor x, logits;
} writer;

/* After an epoch, and where training ends within one. */
static dt_result tell(void *user, dt_fit_state *s) {
    const writer *w = user;
    dt_train_report r;
    if (s->event != DT_FIT_EPOCH && !(s->event == DT_FIT_END && s->train.steps))
        return DT_OK;
    TRY(dt_trainer_evaluate(s->trainer, w->rest, 0, &r));
    printf("step %llu: validation %.4f\n", (unsigned long long)s->step, r.loss);
    write_on(dt_trainer_store(s->trainer), w->x, w->logits);
    return DT_OK;
}

int main(int argc, char **argv) {
    dt_graph *graph;
    dt_trainer *trainer;
    for (int i = 1; i < argc; i += 2)
        option(argv[i], argv[i + 1]);
    context = (int64_t)number[CONTEXT], srand((unsigned)number[SEED]);
    FILE *f = fopen(words[DATA], "rb");
    const size_t bytes = f ? fread(text, 1, sizeof text, f) : 0, learned = bytes / 10 * 9;
    check(bytes > 0, words[DATA], ": cannot be read; ./build.sh text brings one");
    TRY(dt_ctx_create(&(dt_ctx_desc){.threads = DT_THREADS_ALL}, &ctx));
    TRY(dt_graph_create(ctx, &graph));
    dt_tensor x = dt_input(graph, "x", DT_I32, dt_dims(context));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims(context)), logits = gpt(graph, x);
    const dt_dataset rest = windows(learned, bytes, x, t);
    dt_trainer_desc desc = {.loss = dt_cross_entropy(logits, t, NULL)};
    desc.data = windows(0, learned, x, t), desc.seed = (uint64_t)number[SEED];
    desc.batch = (int)fmax(number[BATCH], 1), desc.parallel.batch_slices = (int)number[SLICES];
    desc.devices = words[DEVICES], desc.load = words[LOAD];
    const uint64_t each = (desc.data.rows + (uint64_t)desc.batch - 1) / (uint64_t)desc.batch;
    uint64_t end = each * (uint64_t)number[EPOCHS];
    end = number[STEPS] > 0 && number[STEPS] < (double)end ? (uint64_t)number[STEPS] : end;
    dt_optim_desc adamw = {DT_OPTIM_ADAMW, number[LR], .weight_decay = 0.1, .clip_norm = 1};
    adamw.schedule[0] = (dt_schedule){DT_SCHEDULE_WSD, .period = end + 1, .decay = end / 2 + 1};
    adamw.schedule[0].warmup = end / 20, desc.optim = &adamw;
    TRY(dt_trainer_create(graph, &desc, &trainer));
    dt_progress bar = {0};
    writer w = {&rest, x, logits};
    const dt_fit_desc fit = {.steps = end, .callbacks = {{dt_progress_show, &bar}, {tell, &w}}};
    TRY(end ? dt_trainer_fit(trainer, &fit, NULL)
            : tell(&w, &(dt_fit_state){.trainer = trainer, .event = DT_FIT_EPOCH}));
    TRY(words[SAVE] ? dt_store_save(dt_trainer_store(trainer), words[SAVE]) : DT_OK);
    return dt_ctx_destroy(ctx), fclose(f);
}
