/* examples/gpt2.c: the logits of a GPT-2 that transformers made and saved
 * (tools/golden/record_golden_gpt2.py), of one pass and from the cache; and LoRA beside it. */
#define main gpt2_main
#include "examples/gpt2.c"
#undef main

#include "golden/golden.h"

#define GPT2_FILE "tests/golden/gpt2.safetensors"
enum { G_TEXTS = 2, G_TOKENS = 12, G_WORDS = 48, G_RANK = 4, G_VALUES = 16 * 64 };

typedef struct net {
    dt_tensor x, at, t, logits, loss;
    gpt2_sizes sizes;
} net;

/* A graph and a store of their own, with the file's weights. */
static bool net_open(golden *g, net *n, int64_t rank) {
    const char *prefix;
    ctx = g->ctx;
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store), g->store = NULL;
    dt_graph_destroy(g->graph), g->graph = NULL;
    if (!OK(g, dt_graph_create(g->ctx, &g->graph)))
        return false;
    number[HEADS] = 2, number[RANK] = (double)rank;
    n->sizes = sizes_of(GPT2_FILE, &prefix);
    CHECK(!strcmp(prefix, "transformer.") && n->sizes.layers == 2 && n->sizes.width == 16);
    n->x = dt_input(g->graph, "x", DT_I32, dt_dims(G_TOKENS));
    n->t = dt_input(g->graph, "t", DT_I32, dt_dims(G_TOKENS));
    n->at = dt_input(g->graph, "at", DT_I32, dt_dims());
    n->logits = gpt2(n->x, n->at, &n->sizes);
    n->loss = dt_cross_entropy(n->logits, n->t, NULL);
    CHECK(!dt_graph_error(g->graph));
    const dt_load_desc all = {"wte.*,wpe.*,h.*,ln_f.*", "", prefix, .strict = true};
    int loaded = 0;
    return OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)) &&
           OK(g, dt_store_load_matching(g->store, GPT2_FILE, &all, &loaded)) &&
           test_check(loaded == 28, __FILE__, __LINE__, "%d of 28 were loaded", loaded);
}

static void net_logits(golden *g, net *n, float *got) {
    dt_program *p = golden_program(g, (dt_program_desc){.outputs = {n->logits}, .batch = G_TEXTS});
    const golden_array *x = golden_get(g, "x");
    if (p && x && OK(g, dt_program_write(p, n->x, x->i, x->count * 4)) &&
        OK(g, dt_program_run(p, NULL, NULL)))
        OK(g, dt_program_read(p, n->logits, got, G_TEXTS * G_TOKENS * G_WORDS * 4));
}

static void logits_near(const float *got, const float *wanted, int count) {
    for (int i = 0; i < count; i++)
        CHECK_NEAR(got[i], wanted[i], 1e-4);
}

GOLDEN(gpt2_of_transformers_gives_its_logits, "gpt2") {
    float got[G_TEXTS * G_TOKENS * G_WORDS];
    const golden_array *wanted = golden_get(g, "logits"), *x = golden_get(g, "x");
    net n;
    if (!wanted || !x || !net_open(g, &n, 0))
        return;
    net_logits(g, &n, got);
    logits_near(got, wanted->f, G_TEXTS * G_TOKENS * G_WORDS);
    static const int32_t chunks[] = {7, 1, 1, 3}; /* of the first text, from the cache */
    int32_t from = 0;
    for (int i = 0; i < 4; from += chunks[i++]) {
        dt_program_desc desc = {.outputs = {n.logits}, .cached = true};
        desc.shapes[0] = (dt_input_shape){n.x, dt_dims(chunks[i])};
        dt_program *p = golden_program(g, desc);
        const size_t bytes = (size_t)chunks[i] * 4;
        if (p && OK(g, dt_program_write(p, n.x, x->i + from, bytes)) &&
            OK(g, dt_program_write(p, n.at, &from, 4)) && OK(g, dt_program_run(p, NULL, NULL)) &&
            OK(g, dt_program_read(p, n.logits, got, bytes * G_WORDS)))
            logits_near(got, wanted->f + from * G_WORDS, chunks[i] * G_WORDS);
    }
}

static int net_param(golden *g, const char *name, float *values) {
    const int i = dt_store_find(g->store, name);
    dt_param_info info = {0};
    CHECK(i >= 0);
    OK(g, dt_store_get_param(g->store, i, &info));
    CHECK(info.elements <= G_VALUES);
    OK(g, dt_store_read(g->store, i, DT_VALUE_PARAM, values, info.elements * 4));
    return i;
}

#define G_ADAPTER "base_model.model.transformer."

/* W + alpha / rank (B A)^T in the place of W, in a store of the same graph's weights. */
static void net_merge(golden *g, const char *name, const float *a, const float *b, int in,
                      int out) {
    char text[64];
    float w[G_VALUES];
    snprintf(text, sizeof text, "%s.weight", name);
    const int at = net_param(g, text, w);
    for (int i = 0; i < in; i++)
        for (int o = 0; o < out; o++)
            for (int r = 0; r < G_RANK; r++)
                w[i * out + o] += 2.0f * a[r * in + i] * b[o * G_RANK + r];
    OK(g, dt_store_write(g->store, at, DT_VALUE_PARAM, w, (size_t)(in * out) * 4));
}

/* A few steps; returns how far the loss fell. */
static double net_train(golden *g, net *n) {
    const dt_optim_desc adamw = {.kind = DT_OPTIM_ADAMW, .lr = 0.02};
    const golden_array *x = golden_get(g, "x");
    dt_report first = {0}, last = {0};
    dt_program *p = golden_program(
        g, (dt_program_desc){
               .loss = n->loss, .batch = G_TEXTS, .optim = &adamw, .params = "*.lora_?.weight"});
    if (p && OK(g, dt_program_write(p, n->x, x->i, x->count * 4)))
        OK(g, dt_program_write(p, n->t, x->i, x->count * 4));
    for (int i = 0; p && i < 10; i++)
        OK(g, dt_program_run(p, NULL, i ? &last : &first));
    return first.loss - last.loss;
}

/* A begins as nn.Linear's weight does, uniform in +-1/sqrt(16). */
static void net_begins(golden *g, const char *adapter) {
    float a[G_VALUES], top = 0.0f;
    char text[96];
    snprintf(text, sizeof text, G_ADAPTER "%s.lora_A.weight", adapter);
    net_param(g, text, a);
    for (int i = 0; i < G_RANK * 16; i++)
        top = fmaxf(top, fabsf(a[i]));
    CHECK(top > 0.2f && top <= 0.25f);
}

static void file_has(golden *g, const char *path, int tensors) {
    dt_safetensors *w = NULL;
    if (OK(g, dt_safetensors_open(g->ctx, path, &w)))
        CHECK(dt_safetensors_count(w) == tensors);
    dt_safetensors_close(w);
}

GOLDEN(lora_learns_beside_weights_that_stay_and_is_saved_alone, "gpt2") {
    static const char *const names[] = {"h.0.attn.c_attn", "h.0.attn.c_proj", "h.1.attn.c_attn",
                                        "h.1.attn.c_proj"};
    static float before[G_VALUES], after[G_VALUES], a[4][G_VALUES], b[4][G_VALUES];
    static float got[G_TEXTS * G_TOKENS * G_WORDS], merged[G_TEXTS * G_TOKENS * G_WORDS];
    const golden_array *wanted = golden_get(g, "logits");
    const char *path = "build/lora.safetensors";
    net n;
    int loaded = 0;
    char text[96];
    if (!wanted || !net_open(g, &n, G_RANK))
        return;
    net_logits(g, &n, got); /* B is 0 */
    logits_near(got, wanted->f, G_TEXTS * G_TOKENS * G_WORDS);
    for (int k = 0; k < 4; k++)
        net_begins(g, names[k]);
    net_param(g, "h.1.attn.c_attn.weight", before);
    CHECK(net_train(g, &n) > 0.2);
    net_param(g, "h.1.attn.c_attn.weight", after);
    CHECK(!memcmp(before, after, 16 * 48 * 4));
    net_logits(g, &n, got);
    for (int k = 0; k < 4; k++) {
        snprintf(text, sizeof text, G_ADAPTER "%s.lora_A.weight", names[k]);
        net_param(g, text, a[k]);
        snprintf(text, sizeof text, G_ADAPTER "%s.lora_B.weight", names[k]);
        net_param(g, text, b[k]);
    }
    OK(g, dt_store_save_matching(g->store, path, &(dt_save_desc){"*.lora_?.weight"}));
    file_has(g, path, 8);
    CHECK(dt_store_save_matching(g->store, path, &(dt_save_desc){"no.such.*"}) == DT_ERROR_INVALID);
    if (!net_open(g, &n, G_RANK))
        return;
    OK(g, dt_store_load_matching(g->store, path, &(dt_load_desc){"*.lora_?.weight", .strict = true},
                                 &loaded));
    CHECK(loaded == 8);
    net_logits(g, &n, merged);
    CHECK(!memcmp(got, merged, sizeof got));
    if (!net_open(g, &n, 0))
        return;
    for (int k = 0; k < 4; k++)
        net_merge(g, names[k], a[k], b[k], 16, k % 2 ? 16 : 48);
    net_logits(g, &n, merged);
    logits_near(got, merged, G_TEXTS * G_TOKENS * G_WORDS);
    remove(path);
}
