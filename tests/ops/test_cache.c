/* Generation from a cache of keys and values, position by position and in prompts of several. It
 * gives the results of one pass over all of it. */
#include "golden/golden.h"

enum { TEXT = 12, WORDS = 11, BROAD = 16, SAMPLES = 3, ROOM = 16 };

typedef struct writer {
    golden g;
    dt_tensor x, at, logits;
    float whole[SAMPLES][TEXT][WORDS];
} writer;

typedef struct writer_kind {
    const char *name;
    dt_attention_layer_desc layer;
    int samples;
    bool places, shared;
} writer_kind;

static float writer_weight(uint32_t i) {
    return 0.5f * ((float)(i * 2654435761u >> 8 & 0xffff) / 32768.0f - 1.0f);
}

/* Two layers, so that the second one's keys depend on the first one's cache. */
static dt_tensor writer_net(writer *w, const writer_kind *kind) {
    dt_graph *g = w->g.graph;
    dt_attention_layer_desc layer = kind->layer;
    w->x = dt_input(g, "x", DT_I32, dt_dims(TEXT));
    w->at = kind->shared ? dt_input_shared(g, "at", DT_I32, dt_dims())
                         : dt_input(g, "at", DT_I32, dt_dims());
    layer.attention.causal = true;
    layer.cache = (dt_cache_desc){.positions = ROOM, .samples = kind->samples, .position = w->at};
    dt_tensor h = dt_nn_embedding(w->x, "words", WORDS, BROAD);
    if (kind->places) {
        dt_tensor table = dt_param(g, "places", dt_dims(ROOM, BROAD), (dt_init){0});
        h = dt_add(h, dt_embedding(table, dt_cache_positions(w->x, w->at)));
    }
    for (int i = 0; i < 2; i++) {
        char name[8];
        snprintf(name, sizeof name, "h%d", i);
        h = dt_add(h, dt_nn_multi_head_attention(h, h, name, 4, &layer));
    }
    return dt_nn_linear(dt_nn_layer_norm(h, "norm", 1), "head", WORDS);
}

static bool writer_open(writer *w, const writer_kind *kind) {
    if (w->g.program_count)
        dt_program_destroy(w->g.programs[--w->g.program_count]);
    dt_store_destroy(w->g.store), w->g.store = NULL;
    dt_graph_destroy(w->g.graph), w->g.graph = NULL;
    if (!OK(&w->g, dt_graph_create(w->g.ctx, &w->g.graph)))
        return false;
    w->logits = writer_net(w, kind);
    if (!test_check(!dt_graph_error(w->g.graph), __FILE__, __LINE__, "%s: %s", kind->name,
                    dt_graph_error(w->g.graph)) ||
        !OK(&w->g,
            dt_store_create(w->g.graph, &(dt_store_desc){.device = w->g.device}, &w->g.store)))
        return false;
    for (int i = 0; i < dt_store_param_count(w->g.store); i++) {
        dt_param_info info = {0};
        float values[1024];
        OK(&w->g, dt_store_get_param(w->g.store, i, &info));
        for (uint32_t k = 0; k < info.elements && k < 1024; k++)
            values[k] = writer_weight((uint32_t)i * 1000 + k);
        OK(&w->g, dt_store_write(w->g.store, i, DT_VALUE_PARAM, values, info.elements * 4));
    }
    return true;
}

static int writer_word(int sample, int place) {
    return (sample * 5 + place * 7 + place * place) % WORDS;
}

static void writer_write(writer *w, dt_program *p, int samples, int from, int count) {
    int32_t words[SAMPLES * TEXT];
    for (int s = 0; s < samples; s++)
        for (int i = 0; i < count; i++)
            words[s * count + i] = writer_word(s, from + i);
    OK(&w->g, dt_program_write(p, w->x, words, (size_t)(samples * count) * 4));
}

/* One at a time: what is kept is the store's. */
static dt_program *writer_program(writer *w, dt_program_desc desc) {
    if (w->g.program_count)
        dt_program_destroy(w->g.programs[--w->g.program_count]);
    return golden_program(&w->g, desc);
}

/* One pass, without caches: what is held against. */
static void writer_whole(writer *w) {
    dt_program *p = writer_program(w, (dt_program_desc){.outputs = {w->logits}, .batch = SAMPLES});
    if (!p)
        return;
    writer_write(w, p, SAMPLES, 0, TEXT);
    OK(&w->g, dt_program_run(p, NULL, NULL));
    OK(&w->g, dt_program_read(p, w->logits, w->whole, sizeof w->whole));
}

/* The next `count` positions. */
static void writer_chunk(writer *w, const writer_kind *kind, int from, int count) {
    float got[SAMPLES * TEXT * WORDS];
    const int samples = kind->samples ? kind->samples : 1;
    const int32_t at[SAMPLES] = {from, from, from};
    dt_program_desc desc = {.outputs = {w->logits}, .batch = samples, .cached = true};
    desc.shapes[0] = (dt_input_shape){w->x, dt_dims(count)};
    dt_program *p = writer_program(w, desc);
    if (!p)
        return;
    writer_write(w, p, samples, from, count);
    OK(&w->g, dt_program_write(p, w->at, at, kind->shared ? 4 : (size_t)samples * 4));
    OK(&w->g, dt_program_run(p, NULL, NULL));
    OK(&w->g, dt_program_read(p, w->logits, got, (size_t)(samples * count * WORDS) * 4));
    for (int s = 0; s < samples; s++)
        for (int i = 0; i < count * WORDS; i++)
            CHECK_NEAR(got[s * count * WORDS + i], (&w->whole[s][from][0])[i], 2e-5);
}

static const writer_kind writer_kinds[] = {
    {.name = "plain"},
    {.name = "places", .places = true, .samples = SAMPLES},
    {.name = "shared", .places = true, .samples = 2, .shared = true},
    {.name = "rope", .layer = {.use_rope = true}, .samples = 2},
    {.name = "grouped", .layer = {.kv_heads = 2, .use_rope = true}},
    {.name = "window", .layer = {.attention = {.window = 3}}, .samples = 2},
};

GOLDEN(a_text_written_on_from_a_cache_has_the_logits_of_one_pass, NULL) {
    static const int chunks[][TEXT] = {{5, 1, 1, 1, 3, 1}, {1, 1, 1, 1}, {TEXT}};
    static writer w;
    memset(&w, 0, sizeof w);
    w.g = *g;
    for (size_t k = 0; k < sizeof writer_kinds / sizeof writer_kinds[0]; k++) {
        if (!writer_open(&w, &writer_kinds[k]))
            break;
        writer_whole(&w);
        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++)
            for (int i = 0, from = 0; i < TEXT && chunks[c][i]; from += chunks[c][i++])
                writer_chunk(&w, &writer_kinds[k], from, chunks[c][i]);
    }
    *g = w.g;
}

/* What a program cannot be, and a place that is beyond the cache. */
GOLDEN(programs_with_a_cache_refuse_what_it_cannot_do, NULL) {
    static writer w;
    memset(&w, 0, sizeof w);
    w.g = *g;
    dt_program *p = NULL;
    if (!writer_open(&w, &(writer_kind){.name = "small", .samples = 2}))
        return;
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD};
    dt_tensor loss = dt_mse(w.logits, dt_detach(w.logits));
    const struct {
        dt_program_desc desc;
        const char *text;
    } wrong[] = {
        {{.outputs = {w.logits}, .batch = 3, .cached = true}, "room for 2 samples"},
        {{.loss = loss, .optim = &sgd, .cached = true},
         ".cached cannot be combined with gradients"},
        {{.outputs = {w.logits}, .mode = DT_MODE_TRAIN, .cached = true},
         ".cached cannot be combined with gradients"},
        {{.outputs = {w.logits}, .cached = true, .shapes = {{w.x, dt_dims(ROOM + 1)}}},
         "17 positions, but the cache has 16"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK(dt_program_create(w.g.store, &wrong[i].desc, &p) == DT_ERROR_INVALID && !p);
        CHECK_CONTAINS(dt_ctx_error(w.g.ctx), wrong[i].text);
    }
    dt_program_desc desc = {.outputs = {w.logits}, .batch = 2, .cached = true};
    dt_program_info info = {0};
    if ((p = writer_program(&w, desc))) {
        dt_program_get_info(p, &info);
        CHECK(info.cache_bytes == 2 * 2 * ROOM * 2 * BROAD * 4);
        CHECK(dt_program_write(p, w.at, (const int32_t[2]){0, ROOM - TEXT}, 8) == DT_OK);
        CHECK(dt_program_write(p, w.at, (const int32_t[2]){0, ROOM - TEXT + 1}, 8) ==
              DT_ERROR_INVALID);
        CHECK(dt_program_write(p, w.at, (const int32_t[2]){-1, 0}, 8) == DT_ERROR_INVALID);
    }
    *g = w.g;
}

/* Two texts at places of their own in one batch, and a cache that grew since. */
GOLDEN(samples_of_a_batch_go_on_from_places_of_their_own, NULL) {
    static writer w;
    memset(&w, 0, sizeof w);
    w.g = *g;
    const writer_kind kind = {.name = "apart", .layer = {.use_rope = true}, .samples = SAMPLES};
    if (!writer_open(&w, &kind))
        return;
    writer_whole(&w);
    writer_chunk(&w, &kind, 0, 8);
    const int32_t at[SAMPLES] = {8, 3, 6};
    int32_t words[SAMPLES * 2];
    float got[SAMPLES][2][WORDS];
    dt_program_desc desc = {.outputs = {w.logits}, .batch = SAMPLES, .cached = true};
    desc.shapes[0] = (dt_input_shape){w.x, dt_dims(2)};
    dt_program *p = writer_program(&w, desc);
    for (int s = 0; s < SAMPLES; s++)
        for (int i = 0; i < 2; i++)
            words[2 * s + i] = writer_word(s, at[s] + i);
    if (p && OK(&w.g, dt_program_write(p, w.x, words, sizeof words)) &&
        OK(&w.g, dt_program_write(p, w.at, at, sizeof at)) &&
        OK(&w.g, dt_program_run(p, NULL, NULL)) &&
        OK(&w.g, dt_program_read(p, w.logits, got, sizeof got)))
        for (int s = 0; s < SAMPLES; s++)
            for (int i = 0; i < 2 * WORDS; i++)
                CHECK_NEAR((&got[s][0][0])[i], (&w.whole[s][at[s]][0])[i], 2e-5);
    *g = w.g;
}
