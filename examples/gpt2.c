/* GPT-2 as it is published (its tensors' names and shapes, as transformers writes them). It reads
 * the weights, and learns a text by LoRA (Hu et al., 2021: the weights stay, narrow products beside
 * each projection learn). Then it writes on, position by position from a cache. The trained part is
 * a file of its own, a few MB, under the names of Hugging Face's peft. Words: --model FILE
 * (model.safetensors) --vocab FILE (vocab.json; without it a token is a byte) --data FILE (a text
 * to learn) --load FILE --save FILE (adapters) --prompt TEXT. Numbers: --steps --batch --context
 * --rank --lr --length --heads (0: width / 64) --seed */
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum {
    STEPS,
    BATCH,
    CONTEXT,
    RANK,
    LR,
    LENGTH,
    HEADS,
    SEED,
    MODEL,
    VOCAB,
    DATA,
    LOAD,
    SAVE,
    PROMPT,
    OPTIONS
};
static const char *const options[OPTIONS] = {
    "--steps", "--batch", "--context", "--rank", "--lr",   "--length", "--heads",
    "--seed",  "--model", "--vocab",   "--data", "--load", "--save",   "--prompt"};
static double number[OPTIONS] = {100, 4, 128, 8, 1e-3, 100, 0, 1};
static const char *words[OPTIONS] = {[MODEL] = "model.safetensors", [PROMPT] = "The "};
static dt_ctx *ctx;
typedef struct gpt2_sizes {
    int64_t tokens, places, width, heads, layers, rank;
} gpt2_sizes;
static void check(int ok, const char *what, const char *why) {
    if (!ok)
        fprintf(stderr, "gpt2: %s%s\n", what, why), exit(1);
}
#define TRY(call) check((call) == DT_OK, "", ctx ? dt_ctx_error(ctx) : "out of memory")

/* x W + b, W: [in, out], and beside it what is learned. */
static dt_tensor projection(dt_tensor x, const char *name, int64_t out, int64_t rank) {
    const int64_t in = dt_tensor_shape(x).dim[1];
    char text[96];
    snprintf(text, sizeof text, "%s.weight", name);
    dt_tensor w = dt_param(x.graph, text, dt_dims(in, out), (dt_init){DT_INIT_NORMAL, 0, 0.02f});
    snprintf(text, sizeof text, "%s.bias", name);
    dt_tensor y = dt_matmul(x, w);
    y = dt_add(y, dt_param(x.graph, text, dt_dims(out), (dt_init){0}));
    snprintf(text, sizeof text, "base_model.model.transformer.%s", name);
    return rank ? dt_nn_lora(y, x, text, rank, 2.0f * (float)rank) : y;
}
static dt_tensor heads_of(dt_tensor qkv, int64_t part, int64_t width, int64_t heads) {
    dt_tensor x = dt_slice(qkv, 1, part * width, width);
    return dt_permute(dt_reshape(x, dt_dims(-1, heads, width / heads)), dt_dims(1, 0, 2));
}
/* x: tokens, i32 [T]; at: how many of the text came before. */
static dt_tensor gpt2(dt_tensor x, dt_tensor at, const gpt2_sizes *s) {
    dt_graph *g = x.graph;
    const dt_cache_desc cache = {.positions = s->places, .position = at};
    const dt_attention_desc causal = {.causal = true};
    const dt_init normal = {DT_INIT_NORMAL, 0, 0.02f};
    dt_tensor table = dt_param(g, "wte.weight", dt_dims(s->tokens, s->width), normal);
    dt_tensor places = dt_param(g, "wpe.weight", dt_dims(s->places, s->width), normal);
    dt_tensor h = dt_embedding(table, x), y;
    h = dt_add(h, dt_embedding(places, dt_cache_positions(x, at)));
    for (int i = 0; i < s->layers; i++) {
        static const char *const parts[] = {"ln_1", "attn.c_attn", "attn.c_proj",
                                            "ln_2", "mlp.c_fc",    "mlp.c_proj"};
        char name[6][32];
        for (int k = 0; k < 6; k++)
            snprintf(name[k], sizeof name[k], "h.%d.%s", i, parts[k]);
        y = projection(dt_nn_layer_norm(h, name[0], 1), name[1], 3 * s->width, s->rank);
        dt_tensor q = heads_of(y, 0, s->width, s->heads), k = heads_of(y, 1, s->width, s->heads);
        y = dt_attention_cached(q, k, heads_of(y, 2, s->width, s->heads), &cache, &causal);
        y = dt_reshape(dt_permute(y, dt_dims(1, 0, 2)), dt_dims(-1, s->width));
        h = dt_add(h, projection(y, name[2], s->width, s->rank));
        y = projection(dt_nn_layer_norm(h, name[3], 1), name[4], 4 * s->width, 0);
        h = dt_add(h, projection(dt_gelu_tanh(y), name[5], s->width, 0));
    }
    return dt_linear(dt_nn_layer_norm(h, "ln_f", 1), table, (dt_tensor){0});
}
/* What the file says of itself; *prefix: "transformer.", as newer files have it, or "". */
static gpt2_sizes sizes_of(const char *path, const char **prefix) {
    gpt2_sizes s = {0};
    dt_safetensors *w;
    dt_safetensors_tensor table = {0}, places = {0};
    char name[64] = "transformer.wte.weight";
    TRY(dt_safetensors_open(ctx, path, &w));
    *prefix = dt_safetensors_find(w, name) < 0 ? "" : "transformer.";
    snprintf(name, sizeof name, "%swte.weight", *prefix);
    check(dt_safetensors_find(w, name) >= 0, path, ": no GPT-2, it has no wte.weight");
    TRY(dt_safetensors_get_tensor(w, dt_safetensors_find(w, name), &table));
    snprintf(name, sizeof name, "%swpe.weight", *prefix);
    check(dt_safetensors_find(w, name) >= 0, path, ": no GPT-2, it has no wpe.weight");
    TRY(dt_safetensors_get_tensor(w, dt_safetensors_find(w, name), &places));
    check(table.rank == 2 && places.rank == 2, path, ": its tables are not matrices");
    do
        snprintf(name, sizeof name, "%sh.%d.ln_1.weight", *prefix, (int)s.layers);
    while (dt_safetensors_find(w, name) >= 0 && ++s.layers);
    check(s.layers > 0, path, ": no GPT-2, it has no h.0.ln_1.weight");
    s.tokens = table.dim[0], s.places = places.dim[0], s.width = table.dim[1];
    s.heads = number[HEADS] > 0 ? (int64_t)number[HEADS] : (s.width + 63) / 64;
    s.rank = (int64_t)number[RANK];
    return dt_safetensors_close(w), s;
}
/* A file of more layers or parts would be another model. Its tensors under `prefix` belong to the
 * store. Exceptions are masks, which older files have, and a head that is the table again. */
static void no_more_than(dt_store *store, const char *path, const char *prefix) {
    const size_t skip = strlen(prefix);
    dt_safetensors *w;
    dt_safetensors_tensor t = {0}, table = {0};
    char text[300];
    TRY(dt_safetensors_open(ctx, path, &w));
    snprintf(text, sizeof text, "%swte.weight", prefix);
    if (dt_safetensors_find(w, text) >= 0)
        TRY(dt_safetensors_get_tensor(w, dt_safetensors_find(w, text), &table));
    for (int i = 0; i < dt_safetensors_count(w); i++) {
        TRY(dt_safetensors_get_tensor(w, i, &t));
        const char *mask = strstr(t.name, ".attn.");
        if (!strcmp(t.name, "lm_head.weight"))
            check(t.bytes == table.bytes && !memcmp(t.data, table.data, (size_t)t.bytes), path,
                  ": lm_head.weight is not wte.weight; the example has one table for both");
        else if (strncmp(t.name, prefix, skip) == 0 &&
                 !(mask && (!strcmp(mask, ".attn.bias") || !strcmp(mask, ".attn.masked_bias")))) {
            snprintf(text, sizeof text, ": the model has no %.200s; is a layer incomplete?",
                     t.name);
            check(dt_store_find(store, t.name + skip) >= 0, path, text);
        }
    }
    dt_safetensors_close(w);
}

/* ---- tokens: vocab.json's; of a text the longest that fits, which is near to what merges give */
typedef struct piece {
    int id, size;
    char *text;
} piece;
static piece pieces[1 << 17], by_id[1 << 17];
static int piece_count;
static int piece_order(const void *a, const void *b) {
    const piece *x = a, *y = b;
    return x->size != y->size ? x->size - y->size : memcmp(x->text, y->text, (size_t)x->size);
}
static char *read_file(const char *path, size_t *size) {
    char *text = calloc(1 << 26, 1);
    FILE *f = fopen(path, "rb");
    check(f && text && (*size = fread(text, 1, (1 << 26) - 1, f)) > 0, path, ": cannot be read");
    return fclose(f), text;
}
/* GPT-2 shows bytes without a visible character as others, from 256 on. */
static char byte_of(int c) {
    int b = 0, other = 255;
    for (; b < 256; b++) {
        const int seen = (b > 32 && b < 127) || (b > 160 && b != 173);
        if ((seen ? b : ++other) == c)
            break;
    }
    return (char)b;
}
static void read_vocab(const char *path) {
    static char all[256];
    size_t size;
    char *at = path ? read_file(path, &size) : NULL, *out;
    for (int b = 0; !path && b < 256; b++)
        all[b] = (char)b, pieces[piece_count++] = (piece){b, 1, all + b};
    for (; at && (at = strchr(at, '"')) && piece_count < 1 << 17; piece_count++) {
        piece *p = &pieces[piece_count];
        for (p->text = out = ++at; *at && *at != '"'; *out++ = byte_of((int)size)) {
            size = (unsigned char)*at++;
            if (size == '\\' && *at == 'u')
                size = strtoul((char[5]){at[1], at[2], at[3], at[4]}, NULL, 16), at += 5;
            else if (size == '\\')
                size = (unsigned char)*at++;
            else if (size >= 0xc0)
                size = (size & 31) << 6 | (*at++ & 63u);
        }
        p->size = (int)(out - p->text), p->id = *at ? atoi(strchr(at, ':') + 1) : -1,
        at += *at != 0;
    }
    for (int i = 0; i < piece_count; i++)
        if (pieces[i].id >= 0 && pieces[i].id < 1 << 17)
            by_id[pieces[i].id] = pieces[i];
    qsort(pieces, (size_t)piece_count, sizeof *pieces, piece_order);
}
static size_t encode(char *text, size_t size, int32_t *out) {
    size_t count = 0;
    for (size_t at = 0; at < size; count++) {
        piece key = {.size = size - at < 40 ? (int)(size - at) : 40, .text = text + at}, *p = NULL;
        for (; key.size && !p; key.size--)
            p = bsearch(&key, pieces, (size_t)piece_count, sizeof key, piece_order);
        check(p != NULL, "--vocab", ": it has no token for a byte of the text");
        out[count] = p->id, at += (size_t)p->size;
    }
    return count;
}

/* Windows of the text at random places; each token's target is the next. */
static void learn(dt_store *store, dt_tensor x, dt_tensor t, dt_tensor loss) {
    size_t size, context = (size_t)number[CONTEXT], batch = (size_t)number[BATCH];
    char *text = read_file(words[DATA], &size);
    int32_t *token = calloc(size, 4), *rows = calloc(2 * batch * context, 4);
    const dt_optim_desc adamw = {DT_OPTIM_ADAMW, number[LR], .clip_norm = 1};
    dt_program_desc desc = {.loss = loss, .batch = (int)batch, .optim = &adamw};
    dt_program *program;
    dt_report report = {0};
    desc.params = "base_model.*";
    const size_t count = encode(text, size, token), bytes = batch * context * 4;
    check(count > context + 1, words[DATA], ": too short");
    TRY(dt_program_create(store, &desc, &program));
    for (int step = 1; step <= (int)number[STEPS]; step++) {
        for (size_t b = 0; b < batch; b++) {
            const int32_t *from = token + (size_t)rand() % (count - context);
            memcpy(rows + b * context, from, context * 4);
            memcpy(rows + (batch + b) * context, from + 1, context * 4);
        }
        TRY(dt_program_write(program, x, rows, bytes));
        TRY(dt_program_write(program, t, rows + batch * context, bytes));
        TRY(dt_program_run(program, NULL, &report));
        if (step == 1 || step % 10 == 0 || step == (int)number[STEPS])
            printf("step %d: loss %.4f\n", step, report.loss), fflush(stdout);
    }
    dt_program_destroy(program), free(text), free(token), free(rows);
}
/* By the softmax of the logits, at temperature 0.8. */
static int32_t choose(const float *logits, int64_t count) {
    double sum = 0, top = -INFINITY, at;
    int64_t i = 0;
    for (int64_t k = 0; k < count; k++)
        top = fmax(top, (double)logits[k]);
    for (int64_t k = 0; k < count; k++)
        sum += exp(((double)logits[k] - top) / 0.8);
    for (at = sum * rand() / RAND_MAX; i < count - 1; i++)
        if ((at -= exp(((double)logits[i] - top) / 0.8)) < 0)
            break;
    return (int32_t)i;
}
/* The prompt in one run; then each token in one of its own. */
static void write_on(dt_store *store, dt_tensor x, dt_tensor at, dt_tensor logits,
                     const gpt2_sizes *s) {
    char *text = strdup(words[PROMPT]);
    int32_t *token = calloc(strlen(text) + 1, 4), from = 0;
    int64_t count = (int64_t)encode(text, strlen(text), token);
    float *out = calloc((size_t)(s->tokens * (count + 1)), 4);
    dt_program *program = NULL;
    check(count > 0 && count < s->places, "--prompt", ": it is empty, or too long");
    for (int64_t left = (int64_t)number[LENGTH]; from + count <= s->places && left >= 0; left--) {
        dt_program_desc desc = {.outputs = {logits}, .shapes = {{x, dt_dims(count)}}};
        desc.cached = true;
        for (int64_t i = 0; i < count; i++)
            fwrite(by_id[token[i]].text, 1, (size_t)by_id[token[i]].size, stdout);
        if (!from || count > 1 || !program)
            TRY(dt_program_create(store, &desc, &program));
        TRY(dt_program_write(program, x, token, (size_t)count * 4));
        TRY(dt_program_write(program, at, &from, 4));
        TRY(dt_program_run(program, NULL, NULL));
        TRY(dt_program_read(program, logits, out, (size_t)(s->tokens * count) * 4));
        token[0] = choose(out + (count - 1) * s->tokens, s->tokens);
        from += (int32_t)count;
        if (count > 1)
            dt_program_destroy(program), program = NULL;
        count = 1;
    }
    puts(""), free(text), free(token), free(out);
}
int main(int argc, char **argv) {
    dt_graph *graph;
    dt_store *store;
    const char *prefix;
    for (int i = 1; i < argc; i += 2) {
        int o = 0;
        while (o < OPTIONS && strcmp(options[o], argv[i]))
            o++;
        check(o < OPTIONS && argv[i + 1] && (number[o] = atof(words[o] = argv[i + 1])) >= 0,
              argv[i], ": an unknown option, or not a value for it");
    }
    srand((unsigned)number[SEED]);
    TRY(dt_ctx_create(&(dt_ctx_desc){.threads = DT_THREADS_ALL}, &ctx));
    TRY(dt_graph_create(ctx, &graph));
    const gpt2_sizes s = sizes_of(words[MODEL], &prefix);
    number[CONTEXT] = fmin(number[CONTEXT], (double)s.places);
    dt_tensor x = dt_input(graph, "x", DT_I32, dt_dims((int64_t)number[CONTEXT]));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims((int64_t)number[CONTEXT]));
    dt_tensor at = dt_input(graph, "at", DT_I32, dt_dims()), logits = gpt2(x, at, &s);
    dt_tensor loss = dt_cross_entropy(logits, t, NULL);
    TRY(dt_store_create(graph, NULL, &store));
    dt_load_desc given = {"wte.*,wpe.*,h.*,ln_f.*", "", prefix, .strict = true};
    dt_load_desc learned = {"base_model.*", .strict = true};
    TRY(dt_store_load_matching(store, words[MODEL], &given, NULL));
    no_more_than(store, words[MODEL], prefix);
    TRY(words[LOAD] ? dt_store_load_matching(store, words[LOAD], &learned, NULL) : DT_OK);
    if (words[LOAD])
        no_more_than(store, words[LOAD], "");
    read_vocab(words[VOCAB]);
    if (words[DATA] && s.rank)
        learn(store, x, t, loss);
    const dt_save_desc adapters = {.params = "base_model.*"};
    TRY(words[SAVE] ? dt_store_save_matching(store, words[SAVE], &adapters) : DT_OK);
    write_on(store, x, at, logits, &s);
    return dt_ctx_destroy(ctx), 0;
}
