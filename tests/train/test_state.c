/* The state that outlives a process: of a trainer or of a store, in a file. Which of them may
 * resume from it, and what may be written in between. */
#include "train/train_model.h"

#define STATE_FIRST "tests/golden/checkpoint_1.safetensors" /* of the format's first version */

typedef struct state_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t, loss, accuracy;
    train_data data;
} state_model;

/* What differs from the model of the golden file. */
typedef enum state_other {
    STATE_SAME,
    STATE_MORE_OPS, /* another graph with the same parameters */
    STATE_ORDER,    /* which are created in another order */
    STATE_NO_BATCH_NORM,
    STATE_WIDE,
    STATE_RENAMED,
    STATE_MORE_PARAMS
} state_other;

static const dt_ctx_desc state_alone = {.no_vulkan = true, .threads = 1};

static bool state_model_make(state_model *m, const dt_ctx_desc *ctx, state_other other) {
    *m = (state_model){0};
    if (dt_ctx_create(ctx, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    const dt_init zero = {.kind = DT_INIT_CONSTANT};
    dt_tensor w = {0}, b = {0};
    if (other == STATE_ORDER) {
        w = dt_param(m->graph, "fc.weight", dt_dims(TRAIN_CLASSES, 18), zero);
        b = dt_param(m->graph, "fc.bias", dt_dims(TRAIN_CLASSES), zero);
    }
    dt_tensor h = dt_reshape(m->x, dt_dims(1, TRAIN_SIDE, TRAIN_SIDE));
    if (other == STATE_MORE_OPS)
        h = dt_neg(dt_neg(h));
    h = dt_nn_conv2d(h, "conv", other == STATE_WIDE ? 3 : 2, 3,
                     &(dt_conv_layer_desc){.conv = {.padding = {1, 1}}});
    if (other != STATE_NO_BATCH_NORM)
        h = dt_nn_batch_norm(h, "bn", NULL);
    h = dt_flatten(dt_max_pool2d(dt_relu(h), &(dt_pool_desc){.kernel = {2, 2}}));
    h = dt_dropout(h, 0.2f);
    h = other == STATE_ORDER
            ? dt_linear(h, w, b)
            : dt_nn_linear(h, other == STATE_RENAMED ? "head" : "fc", TRAIN_CLASSES);
    if (other == STATE_MORE_PARAMS)
        h = dt_nn_linear(h, "more", TRAIN_CLASSES);
    m->loss = dt_cross_entropy(h, m->t, NULL);
    m->accuracy = dt_accuracy(h, m->t);
    train_data_fill(&m->data);
    return dt_graph_error(m->graph) == NULL;
}

static const dt_optim_desc state_adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 1.0};

static dt_trainer_desc state_desc(state_model *m) {
    return (dt_trainer_desc){
        .loss = m->loss,
        .metrics = {m->accuracy},
        .optim = &state_adam,
        .seed = 3,
        .batch = 37,
        .devices = "cpu",
        .data = {.rows = TRAIN_ROWS,
                 .columns = {{.input = m->x, .data = m->data.x, .dtype = DT_F32},
                             {.input = m->t, .data = m->data.t, .dtype = DT_I32}}}};
}

/* Only of values, so that their places do not count. */
static uint64_t state_digest(dt_store *s, int kinds) {
    static float values[1024];
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < dt_store_param_count(s); i++) {
        dt_param_info p;
        dt_store_get_param(s, i, &p);
        for (int kind = 0; kind < (p.buffer ? 1 : kinds); kind++) {
            const dt_value_kind what = kind ? (dt_value_kind)(DT_VALUE_GRADIENT + kind) : 0;
            if (p.elements > 1024 || dt_store_read(s, i, what, values, 4 * p.elements))
                return 0;
            for (size_t k = 0; k < 4 * p.elements; k++)
                hash = (hash ^ ((const unsigned char *)values)[k]) * 1099511628211u;
        }
    }
    return hash;
}

/* What the library says, level by level. */
typedef struct state_log {
    int warnings;
    char warning[1200];
} state_log;

static void state_log_add(void *user, dt_log_level level, const char *text) {
    state_log *log = user;
    if (level != DT_LOG_WARNING)
        return;
    log->warnings++;
    snprintf(log->warning, sizeof log->warning, "%s", text);
}

/* A trainer of a model, which has taken `load`; NULL and a failed check: it would not. */
static dt_trainer *state_open(state_model *m, state_other other, state_log *log, const char *load) {
    dt_ctx_desc ctx = state_alone;
    dt_trainer *trainer = NULL;
    *log = (state_log){0};
    ctx.logger = (dt_logger){state_log_add, log};
    if (!CHECK_TEXT(state_model_make(m, &ctx, other), "the model"))
        return NULL;
    dt_trainer_desc d = state_desc(m);
    dt_result result = dt_trainer_create(m->graph, &d, &trainer);
    if (!result && load)
        result = dt_trainer_load(trainer, load);
    return CHECK_TEXT(!result, "%s", dt_ctx_error(m->ctx)) ? trainer : NULL;
}

static double state_steps(dt_trainer *trainer, int steps) {
    dt_train_report r = {.loss = -1};
    for (int i = 0; i < steps; i++)
        CHECK(dt_trainer_step(trainer, &r) == DT_OK);
    return r.loss;
}

/* ---- a checkpoint's contract */

/* Made by the code before the second version: 6 steps on two replicas of 4 batch slices. */
TEST(a_checkpoint_of_the_first_version_still_loads) {
    state_model m;
    state_log log;
    dt_trainer_info info;
    dt_trainer *trainer = state_open(&m, STATE_SAME, &log, STATE_FIRST);
    REQUIRE(trainer);
    dt_trainer_get_info(trainer, &info);
    CHECK(info.step == 6 && info.epoch == 1 && info.batch_slices == 4 && log.warnings == 0);
    CHECK_TEXT(state_digest(dt_trainer_store(trainer), 3) == 0xfb89067b40c41804u, "%016llx",
               (unsigned long long)state_digest(dt_trainer_store(trainer), 3));
    CHECK_NEAR(state_steps(trainer, 5), 1.38284841, 1e-4);
    dt_ctx_destroy(m.ctx);
}

TEST(a_checkpoint_resumes_in_another_graph_of_the_same_parameters_with_a_warning) {
    const char *path = "build/test_state_graph.safetensors";
    for (int round = 0; round < 2; round++) {
        state_model m;
        state_log log;
        dt_trainer *trainer = state_open(&m, STATE_MORE_OPS, &log, round ? path : STATE_FIRST);
        REQUIRE(trainer);
        CHECK(log.warnings == 1);
        CHECK_CONTAINS(log.warning,
                       "another graph with the same parameters: the graph also has \"neg [");
        CHECK_NEAR(state_steps(trainer, 5), 1.38284841, 1e-4); /* -(-x) is x */
        dt_ctx_destroy(m.ctx);
        trainer = state_open(&m, STATE_SAME, &log, STATE_FIRST);
        REQUIRE(trainer && log.warnings == 0);
        CHECK(dt_trainer_save(trainer, path) == DT_OK);
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
}

TEST(a_checkpoint_resumes_where_parameters_are_created_in_another_order) {
    state_model m;
    state_log log;
    dt_trainer *trainer = state_open(&m, STATE_ORDER, &log, STATE_FIRST);
    REQUIRE(trainer);
    CHECK(log.warnings == 1);
    CHECK_CONTAINS(log.warning, "the file has \"parameter 'conv.weight' [2, 1, 3, 3]\", the graph "
                                "\"parameter 'fc.weight' [5, 18]\"");
    CHECK_NEAR(state_steps(trainer, 5), 1.38284841, 1e-4); /* so counts went where they belong */
    dt_ctx_destroy(m.ctx);
}

TEST(a_checkpoint_recognises_its_graph_after_ops_are_appended) {
    const char *path = "build/test_state_later.safetensors";
    state_model m;
    state_log log;
    dt_trainer *trainer = state_open(&m, STATE_SAME, &log, NULL);
    REQUIRE(trainer);
    CHECK(dt_neg(m.x).id != 0);
    CHECK(dt_trainer_save(trainer, path) == DT_OK);
    dt_ctx_destroy(m.ctx);
    CHECK(state_open(&m, STATE_SAME, &log, path) && log.warnings == 0);
    dt_ctx_destroy(m.ctx);
    remove(path);
}

TEST(a_checkpoint_of_other_parameters_or_another_optimizer_is_refused_by_name) {
    static const struct {
        state_other other;
        dt_optim_kind kind;
        const char *text;
    } cases[] = {
        {STATE_NO_BATCH_NORM, DT_OPTIM_ADAM, "the file also has \"parameter 'bn.weight' [2]\""},
        {STATE_MORE_PARAMS, DT_OPTIM_ADAM, "the graph also has \"parameter 'more.weight' [5, 5]\""},
        {STATE_WIDE, DT_OPTIM_ADAM,
         "\"parameter 'conv.weight' [2, 1, 3, 3]\", the graph "
         "\"parameter 'conv.weight' [3, 1, 3, 3]\""},
        {STATE_RENAMED, DT_OPTIM_ADAM,
         "\"parameter 'fc.weight' [5, 18]\", the graph "
         "\"parameter 'head.weight' [5, 18]\""},
        {STATE_SAME, DT_OPTIM_ADAMW, "optimizer is Adam in the checkpoint, but AdamW"},
        {STATE_SAME, DT_OPTIM_DEFAULT, "optimizer is Adam in the checkpoint, but AdamW"},
        {STATE_SAME, DT_OPTIM_SGD, "but SGD here; use the checkpoint's .optim.kind"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        state_model m;
        dt_trainer *trainer;
        uint64_t before, after;
        REQUIRE(state_model_make(&m, &state_alone, cases[i].other));
        dt_optim_desc optim = {.kind = cases[i].kind};
        dt_trainer_desc d = state_desc(&m);
        d.optim = &optim;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        CHECK(dt_store_state_hash(dt_trainer_store(trainer), &before) == DT_OK);
        CHECK(dt_trainer_load(trainer, STATE_FIRST) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), cases[i].text);
        CHECK(dt_store_state_hash(dt_trainer_store(trainer), &after) == DT_OK && before == after);
        dt_ctx_destroy(m.ctx);
    }
}

TEST(a_checkpoint_of_the_default_optimizer_is_one_of_adamw) {
    const char *path = "build/test_state_default.safetensors";
    for (int round = 0; round < 2; round++) {
        state_model m;
        dt_trainer *trainer;
        REQUIRE(state_model_make(&m, &state_alone, STATE_SAME));
        dt_trainer_desc d = state_desc(&m);
        d.optim = round ? &(dt_optim_desc){.kind = DT_OPTIM_ADAMW} : NULL;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        CHECK((round ? dt_trainer_load(trainer, path) : dt_trainer_save(trainer, path)) == DT_OK);
        CHECK_STR(dt_ctx_error(m.ctx), "");
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
}

/* ---- what a file may claim */

static uint32_t state_crc32c(const unsigned char *data, size_t size) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

/* Puts bytes into a tensor of a checkpoint, and the right checksum. */
static bool state_craft_bytes(const char *from, const char *to, const char *name, size_t at_byte,
                              const void *bytes, size_t count) {
    static unsigned char file[65536];
    dt_ctx *ctx;
    dt_safetensors *w;
    dt_safetensors_tensor x, sums;
    FILE *in = fopen(from, "rb");
    const size_t size = in ? fread(file, 1, sizeof file, in) : 0;
    if (!in || fclose(in) || dt_ctx_create(&state_alone, &ctx) ||
        dt_safetensors_open(ctx, from, &w))
        return false;
    const int index = dt_safetensors_find(w, name), last = dt_safetensors_count(w) - 1;
    if (index < 0 || dt_safetensors_get_tensor(w, index, &x) ||
        dt_safetensors_get_tensor(w, last, &sums))
        return false;
    const char *end = (const char *)sums.data + sums.bytes;
    unsigned char *at = file + size - (end - (const char *)x.data);
    memcpy(at + at_byte, bytes, count);
    const uint32_t crc = state_crc32c(at, (size_t)x.bytes);
    memcpy(file + size - sums.bytes + 4 * (index + 1), &crc, sizeof crc);
    dt_safetensors_close(w);
    dt_ctx_destroy(ctx);
    FILE *out = fopen(to, "wb");
    return out && fwrite(file, 1, size, out) == size && fclose(out) == 0;
}

static bool state_craft(const char *from, const char *to, const char *name, int word,
                        uint64_t value) {
    return state_craft_bytes(from, to, name, 8 * (size_t)word, &value, sizeof value);
}

enum { STATE_WORD_VERSION = 0, STATE_WORD_BATCH_SLICES = 8 };

TEST(more_batch_slices_than_a_batch_has_samples_are_refused_with_the_limit) {
    const char *path = "build/test_state_batch_slices.safetensors";
    static const int batch_slices[] = {38, 1000000, INT32_MAX};
    for (size_t i = 0; i < sizeof batch_slices / sizeof *batch_slices; i++) {
        state_model m;
        state_log log;
        char text[80];
        dt_trainer *trainer;
        snprintf(text, sizeof text,
                 ".parallel.batch_slices is %d and .batch is 37; it must be at most 37",
                 batch_slices[i]);
        REQUIRE(state_model_make(&m, &state_alone, STATE_SAME));
        dt_trainer_desc d = state_desc(&m);
        d.parallel.batch_slices = batch_slices[i];
        CHECK(dt_trainer_create(m.graph, &d, &trainer) == DT_ERROR_INVALID && !trainer);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), text);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), "at most 37");
        dt_ctx_destroy(m.ctx);
        REQUIRE(state_craft(STATE_FIRST, path, "dtrain.state", STATE_WORD_BATCH_SLICES,
                            (uint64_t)batch_slices[i]));
        trainer = state_open(&m, STATE_SAME, &log, NULL);
        REQUIRE(trainer);
        CHECK(dt_trainer_load(trainer, path) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), text);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), "at most 37");
        state_steps(trainer, 1); /* it goes on */
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
}

TEST(a_checkpoint_of_a_later_version_is_refused_for_its_version) {
    const char *path = "build/test_state_version.safetensors";
    state_model m;
    state_log log;
    dt_trainer *trainer = state_open(&m, STATE_SAME, &log, NULL);
    REQUIRE(trainer && state_craft(STATE_FIRST, path, "dtrain.state", STATE_WORD_VERSION, 5));
    CHECK(dt_trainer_load(trainer, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "version is 5; this dtrain reads versions 1 to 4");
    dt_ctx_destroy(m.ctx);
    remove(path);
}

/* The checksums are right, and the content that they cover is nonsense. A text of any bytes is read
 * within its bounds, and shown without control bytes of a terminal. */
TEST(a_checkpoint_with_any_bytes_is_loaded_or_refused_cleanly) {
    const char *path = "build/test_state_any.safetensors",
               *now = "build/test_state_now.safetensors";
    uint32_t state = 11;
    int results[3] = {0};
    state_model m;
    state_log log;
    dt_trainer *trainer = state_open(&m, STATE_SAME, &log, STATE_FIRST);
    REQUIRE(trainer && dt_trainer_save(trainer, now) == DT_OK);
    for (int i = 0; i < 300; i++) {
        const bool words = i % 3 == 2;
        uint64_t value = words ? train_random(&state) % 9 : 0;
        for (int k = 0; k < 8 && !words; k++)
            value = value << 8 | "\n' ,:(x\33"[train_random(&state) % 8];
        const uint32_t word = train_random(&state) % (words ? 13 : 100);
        REQUIRE(state_craft(i & 1 ? STATE_FIRST : now, path,
                            words ? "dtrain.state" : "dtrain.model", (int)word, value));
        const dt_result result = dt_trainer_load(trainer, path);
        results[result == DT_OK ? 0 : result == DT_ERROR_INVALID ? 1 : 2]++;
        for (const char *c = result ? dt_ctx_error(m.ctx) : log.warning; *c; c++) {
            if (!CHECK_TEXT((unsigned char)*c >= ' ' && *c != 127, "case %d: a byte %d in a text",
                            i, *c))
                break;
        }
    }
    CHECK_TEXT(results[0] > 20 && results[1] > 20 && results[2] == 0, "%d, %d, %d", results[0],
               results[1], results[2]);
    state_steps(trainer, 1);
    dt_ctx_destroy(m.ctx);
    remove(path);
    remove(now);
}

/* ---- the store of a trainer */

static void state_set(dt_store *s, const char *name, dt_value_kind kind, float value) {
    float values[256];
    dt_param_info p = {0};
    CHECK(dt_store_get_param(s, dt_store_find(s, name), &p) == DT_OK && p.elements <= 256);
    for (uint64_t i = 0; i < p.elements; i++)
        values[i] = value;
    CHECK(dt_store_write(s, dt_store_find(s, name), kind, values, 4 * p.elements) == DT_OK);
}

typedef enum state_write { WRITE_VALUES, WRITE_FILE, WRITES } state_write;

static void state_write_now(dt_store *s, state_write what) {
    const char *path = "build/test_state_weights.safetensors";
    if (what == WRITE_FILE)
        CHECK(dt_store_save(s, path) == DT_OK);
    state_set(s, "fc.bias", DT_VALUE_PARAM, 0.25f);
    state_set(s, "bn.running_mean", DT_VALUE_PARAM, 100.0f);
    state_set(s, "fc.bias", DT_VALUE_MOMENT1, 0.01f);
    if (what == WRITE_FILE)
        CHECK(dt_store_load(s, path) == DT_OK && remove(path) == 0);
}

TEST(values_written_to_a_trainers_store_reach_all_replicas) {
    static const char *const devices[] = {"cpu", "cpu:2", "cpu:4"};
    for (int what = 0; what < WRITES; what++) {
        uint64_t hash[3] = {0};
        double loss[3] = {0};
        for (int i = 0; i < 3; i++) {
            state_model m;
            dt_trainer *trainer;
            dt_train_report r = {0};
            float mean[2] = {0};
            REQUIRE(state_model_make(&m, &state_alone, STATE_SAME));
            dt_trainer_desc d = state_desc(&m);
            d.devices = devices[i];
            d.parallel.batch_slices = 4;
            REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
            dt_store *s = dt_trainer_store(trainer);
            state_steps(trainer, 2);
            state_write_now(s, (state_write)what);
            CHECK(dt_trainer_evaluate(trainer, &d.data, 10, &r) == DT_OK);
            loss[i] = r.loss;
            state_steps(trainer, 1);
            const int index = dt_store_find(s, "bn.running_mean");
            CHECK(dt_store_read(s, index, DT_VALUE_PARAM, mean, sizeof mean) == DT_OK);
            CHECK_TEXT(what == WRITE_FILE ? mean[0] < 5 : mean[0] > 80 && mean[0] < 95,
                       "the running mean is %g", (double)mean[0]); /* a tenth of the way back */
            state_steps(trainer, 3);
            CHECK(dt_store_state_hash(s, &hash[i]) == DT_OK);
            dt_ctx_destroy(m.ctx);
        }
        CHECK(hash[0] && hash[0] == hash[1] && hash[0] == hash[2]);
        CHECK_NEAR(loss[0], loss[1], 1e-6 * loss[0]);
        CHECK_NEAR(loss[0], loss[2], 1e-6 * loss[0]);
    }
}

TEST(a_trainers_store_cannot_be_destroyed_or_trained_by_others) {
    state_model m;
    state_log log;
    dt_program *program;
    dt_trainer *trainer = state_open(&m, STATE_SAME, &log, NULL);
    REQUIRE(trainer);
    dt_store *s = dt_trainer_store(trainer);
    dt_store_destroy(s);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "belongs to a trainer: dt_trainer_destroy destroys it");
    state_steps(trainer, 1);
    dt_program_desc d = {.loss = m.loss, .optim = &state_adam, .batch = 4};
    CHECK(dt_program_create(s, &d, &program) == DT_ERROR_INVALID && !program);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "only the trainer trains it");
    d.optim = NULL;
    CHECK(dt_program_create(s, &d, &program) == DT_OK);
    state_steps(trainer, 1);
    dt_trainer_destroy(trainer);
    dt_ctx_destroy(m.ctx);
}

/* ---- a damaged newest checkpoint */

static void state_damage(const char *folder, int step) {
    char path[128];
    snprintf(path, sizeof path, "%s/step-%012d.safetensors", folder, step);
    FILE *file = fopen(path, "r+b");
    if (!CHECK_TEXT(file != NULL, "%s", path))
        return;
    fseek(file, -40, SEEK_END);
    const int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 4, file);
    fclose(file);
}

/* Training that went wrong wrote it: all its checksums are right. */
static void state_poison(const char *folder, int step) {
    const uint32_t nan = 0x7FC00000;
    char path[128];
    snprintf(path, sizeof path, "%s/step-%012d.safetensors", folder, step);
    CHECK(state_craft_bytes(path, path, "fc.bias", 4, &nan, sizeof nan));
}

/* damaged: these of the steps 2, 4, 6 and 8. The newest is 8 or, of a run that was taken back, 4;
 * step: where it goes on, 0 = nowhere. */
TEST(a_damaged_newest_checkpoint_is_passed_over_for_the_one_before_it) {
    static const struct {
        bool strict, back;
        int damaged[4], step;
        const char *text;
    } cases[] = {
        {false, false, {0}, 8, ""},
        {false, false, {8}, 6, "of step 6"},
        {false, false, {4, 6, 8}, 2, "of step 2"},
        {false, false, {2, 4, 6, 8}, 0, "the folder has no good checkpoint"},
        {false, true, {4}, 2, "of step 2"},
        {false, true, {2, 4}, 0, "step-000000000008.safetensors; call dt_trainer_load"},
        {true, false, {8}, 0, "step-000000000006.safetensors; call dt_trainer_load"},
    };
    const char *folder = "build/test_state_folder";
    for (size_t n = 0; n < 2 * (sizeof cases / sizeof *cases); n++) {
        const size_t i = n / 2;
        state_model m;
        state_log log;
        dt_trainer_info info;
        dt_trainer *trainer = state_open(&m, STATE_SAME, &log, NULL);
        REQUIRE(trainer && system("rm -rf build/test_state_folder") == 0);
        dt_trainer_destroy(trainer);
        dt_trainer_desc d = state_desc(&m);
        d.checkpoint.folder = folder;
        d.checkpoint.every_steps = 2;
        d.checkpoint.keep = 9;
        d.checkpoint.strict = cases[i].strict;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        state_steps(trainer, 8);
        FILE *latest = cases[i].back ? fopen("build/test_state_folder/LATEST", "w") : NULL;
        if (latest)
            CHECK(fputs("step-000000000004.safetensors\n", latest) >= 0 && !fclose(latest));
        for (int k = 0; k < 4 && cases[i].damaged[k]; k++)
            (n % 2 ? state_poison : state_damage)(folder, cases[i].damaged[k]);
        bool found = false;
        CHECK(dt_trainer_resume(trainer, &found) == (cases[i].step ? DT_OK : DT_ERROR_FORMAT));
        CHECK_CONTAINS(dt_ctx_error(m.ctx), cases[i].text);
        CHECK(found && log.warnings == (cases[i].step && cases[i].text[0] ? 1 : 0));
        if (log.warnings)
            CHECK_STR(log.warning, dt_ctx_error(m.ctx));
        dt_trainer_get_info(trainer, &info);
        CHECK_TEXT(info.step == (cases[i].step ? (uint64_t)cases[i].step : 8), "case %d: step %d",
                   (int)i, (int)info.step);
        state_steps(trainer, 1);
        dt_ctx_destroy(m.ctx);
    }
    CHECK(system("rm -rf build/test_state_folder") == 0);
}

/* ---- values that are not allowed */

/* Ways of training whose files have tensors that others have not. They are averages, the best
 * weights of a fit, the momentum of rounds, and moments of each replica; or whose state is in
 * several places. */
enum { STATE_FIT = 5, STATE_WAYS };

static dt_trainer_desc state_way(state_model *m, int way, dt_optim_desc *optim) {
    dt_trainer_desc d = state_desc(m);
    *optim = state_adam;
    d.optim = optim;
    if (way == 1)
        optim->average = (dt_average){.kind = DT_AVERAGE_EMA, .decay = 0.9};
    if (way == 2)
        d.mode = DT_TRAIN_LOCAL, d.local.steps = 2;
    if (way > 1)
        d.devices = "cpu,cpu", d.batch = 38;
    if (way == 3)
        d.parallel.zero_stage = DT_SHARD_OPTIMIZER;
    if (way == 4)
        d.parallel.pipeline = 2, d.accumulate = 2;
    if (way == STATE_FIT)
        d.checkpoint.folder = "build/test_state_folder", d.devices = "cpu", d.batch = 50;
    return d;
}

/* Four steps or an epoch of a fit, and where the state is then. */
static const char *state_way_save(dt_trainer *trainer, int way, bool *saved) {
    const dt_fit_desc fit = {.epochs = 1, .watch = {.restore_best = true}};
    const char *path = "build/test_state_whole.safetensors";
    *saved = way == STATE_FIT && dt_trainer_fit(trainer, &fit, NULL) == DT_OK;
    if (way == STATE_FIT)
        return "build/test_state_folder/step-000000000003.safetensors";
    state_steps(trainer, 4);
    *saved = dt_trainer_save(trainer, path) == DT_OK;
    return path;
}

/* A value of one tensor of the file `from`, number `k`: it is reported, and nothing changes. */
static void state_poisoned(state_model *m, dt_trainer *trainer, const char *from,
                           const dt_safetensors_tensor *x, uint64_t k) {
    static const uint32_t none[] = {0x7FC00000, 0x7F800000, 0xFF800000, 0x7F800001};
    const char *path = "build/test_state_poisoned.safetensors";
    char text[120];
    dt_trainer_info before, after;
    const uint64_t digest = state_digest(dt_trainer_store(trainer), 1);
    if (!CHECK_TEXT(
            state_craft_bytes(from, path, x->name, (size_t)(4 * k), &none[k % 4], sizeof *none),
            "%s", x->name))
        return;
    dt_trainer_get_info(trainer, &before);
    CHECK_TEXT(dt_trainer_load(trainer, path) == DT_ERROR_FORMAT, "%s: %s", x->name,
               dt_ctx_error(m->ctx));
    snprintf(text, sizeof text, "value %d of \"%s\" is NaN or infinite", (int)k, x->name);
    CHECK_CONTAINS(dt_ctx_error(m->ctx), text);
    CHECK_CONTAINS(dt_ctx_error(m->ctx), "set .allow_nonfinite of dt_trainer_desc");
    dt_trainer_get_info(trainer, &after);
    CHECK(before.step == after.step && state_digest(dt_trainer_store(trainer), 1) == digest);
    remove(path);
}

/* Every tensor of floats of every kind of file; those with bytes are moments of other replicas. */
TEST(a_checkpoint_with_a_nan_in_any_tensor_is_refused_by_its_name) {
    int tried = 0, packed = 0, best = 0;
    REQUIRE(system("rm -rf build/test_state_folder") == 0);
    for (int way = 0; way < STATE_WAYS; way++) {
        state_model m;
        dt_optim_desc optim;
        dt_trainer *trainer;
        dt_safetensors *w;
        dt_safetensors_tensor x;
        const uint32_t nan = 0x7FC00000;
        REQUIRE(state_model_make(&m, &state_alone, STATE_SAME));
        dt_trainer_desc d = state_way(&m, way, &optim);
        if (!CHECK_TEXT(dt_trainer_create(m.graph, &d, &trainer) == DT_OK, "%d: %s", way,
                        dt_ctx_error(m.ctx)))
            return;
        bool saved;
        const char *path = state_way_save(trainer, way, &saved);
        REQUIRE(saved && dt_safetensors_open(m.ctx, path, &w) == DT_OK);
        state_steps(trainer, 2);
        for (int i = 0; i < dt_safetensors_count(w); i++) {
            REQUIRE(dt_safetensors_get_tensor(w, i, &x) == DT_OK);
            const bool bytes = !strncmp(x.name, "dtrain.replica", 14);
            if (strcmp(x.dtype, "F32") && !bytes)
                continue;
            state_poisoned(&m, trainer, path, &x, (uint64_t)(7 * i) % (x.bytes / 8 + 1) % 100);
            tried++;
            packed += bytes;
            best += !strncmp(x.name, "dtrain.watch.best.", 18);
        }
        CHECK(dt_trainer_load(trainer, path) == DT_OK);
        dt_safetensors_close(w);
        dt_trainer_destroy(trainer);
        d.checkpoint.allow_nonfinite = true;
        REQUIRE(state_craft_bytes(path, path, "bn.running_mean", 4, &nan, sizeof nan));
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        CHECK_TEXT(dt_trainer_load(trainer, path) == DT_OK, "%s", dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
    CHECK_TEXT(tried > 60 && packed == 1 && best > 1, "%d, %d, %d", tried, packed, best);
    remove("build/test_state_whole.safetensors");
    CHECK(system("rm -rf build/test_state_folder") == 0);
}

TEST(a_resume_accepts_nan_only_on_request) {
    for (int allow = 0; allow < 2; allow++) {
        state_model m;
        dt_trainer *trainer;
        dt_trainer_info info;
        bool found;
        float b[TRAIN_CLASSES] = {0};
        REQUIRE(system("rm -rf build/test_state_folder") == 0);
        REQUIRE(state_model_make(&m, &state_alone, STATE_SAME));
        dt_trainer_desc d = state_desc(&m);
        d.checkpoint.folder = "build/test_state_folder";
        d.checkpoint.every_steps = 2;
        d.checkpoint.allow_nonfinite = allow;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        state_steps(trainer, 4);
        state_poison(d.checkpoint.folder, 4);
        CHECK(dt_trainer_resume(trainer, &found) == DT_OK && found);
        dt_trainer_get_info(trainer, &info);
        CHECK_TEXT(info.step == (allow ? 4 : 2), "%d: step %d", allow, (int)info.step);
        dt_store *s = dt_trainer_store(trainer);
        CHECK(dt_store_read(s, dt_store_find(s, "fc.bias"), DT_VALUE_PARAM, b, sizeof b) == DT_OK);
        CHECK((b[1] != b[1]) == allow);
        dt_trainer_destroy(trainer);
        d.load = "build/test_state_folder/step-000000000004.safetensors";
        CHECK(dt_trainer_create(m.graph, &d, &trainer) == (allow ? DT_OK : DT_ERROR_INVALID));
        CHECK_CONTAINS(dt_ctx_error(m.ctx), allow ? "" : "value 1 of \"fc.bias\"");
        dt_ctx_destroy(m.ctx);
    }
    CHECK(system("rm -rf build/test_state_folder") == 0);
}

/* ---- inputs that all samples share */

typedef struct shared_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t, mask, weights, which, loss;
    train_data data;
} shared_model;

enum { SHARED_X = TRAIN_SIDE * TRAIN_SIDE };

static dt_tensor shared_param(shared_model *m, const char *name, int rows, int columns) {
    return dt_param(m->graph, name, dt_dims(rows, columns),
                    (dt_init){.kind = DT_INIT_NORMAL, .b = 0.3f});
}

/* A mask on an input, a row of a table and the weights of classes. They are inputs or, to compare
 * with, parameters that are not trained and row 2. */
static bool shared_model_make(shared_model *m, bool inputs) {
    const dt_init zero = {.kind = DT_INIT_CONSTANT};
    const dt_shape mask = dt_dims(SHARED_X), weights = dt_dims(TRAIN_CLASSES);
    *m = (shared_model){0};
    if (dt_ctx_create(&state_alone, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    dt_tensor w = shared_param(m, "w", 8, SHARED_X), table = shared_param(m, "table", 4, 8),
              v = shared_param(m, "v", TRAIN_CLASSES, 8);
    m->x = dt_input(m->graph, "x", DT_F32, mask);
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    m->mask = inputs ? dt_input_shared(m->graph, "mask", DT_F32, mask)
                     : dt_freeze(dt_param(m->graph, "mask", mask, zero));
    m->weights = inputs ? dt_input_shared(m->graph, "weights", DT_F32, weights)
                        : dt_freeze(dt_param(m->graph, "weights", weights, zero));
    m->which = inputs ? dt_input_shared(m->graph, "which", DT_I32, dt_dims(1)) : (dt_tensor){0};
    dt_tensor row = inputs ? dt_embedding(table, m->which) : dt_slice(table, 0, 2, 1);
    dt_tensor h = dt_linear(dt_mul(m->x, m->mask), w, (dt_tensor){0});
    h = dt_tanh(dt_add(h, dt_reshape(row, dt_dims(8))));
    m->loss = dt_cross_entropy(dt_linear(h, v, (dt_tensor){0}), m->t,
                               &(dt_cross_entropy_desc){.class_weights = m->weights});
    train_data_fill(&m->data);
    return dt_graph_error(m->graph) == NULL;
}

static dt_trainer_desc shared_desc(shared_model *m, const char *devices, int batch_slices) {
    return (dt_trainer_desc){
        .loss = m->loss,
        .optim = &state_adam,
        .seed = 3,
        .batch = 37,
        .devices = devices,
        .parallel.batch_slices = batch_slices,
        .data = {.rows = TRAIN_ROWS,
                 .columns = {{.input = m->x, .data = m->data.x, .dtype = DT_F32},
                             {.input = m->t, .data = m->data.t, .dtype = DT_I32}}}};
}

/* The n-th values; every third feature is masked out, another third each time. */
static dt_result shared_write(shared_model *m, dt_trainer *trainer, int n, bool inputs) {
    float mask[SHARED_X], weights[TRAIN_CLASSES];
    const int32_t which = 2;
    dt_store *s = dt_trainer_store(trainer);
    for (int i = 0; i < SHARED_X; i++)
        mask[i] = i % 3 == n % 3 ? 0.0f : 1.0f + 0.1f * (float)n;
    for (int i = 0; i < TRAIN_CLASSES; i++)
        weights[i] = 0.5f + 0.25f * (float)((i + n) % 4);
    dt_result result =
        inputs ? dt_trainer_set_input(trainer, m->mask, mask, sizeof mask)
               : dt_store_write(s, dt_store_find(s, "mask"), DT_VALUE_PARAM, mask, sizeof mask);
    if (!result)
        result = inputs ? dt_trainer_set_input(trainer, m->weights, weights, sizeof weights)
                        : dt_store_write(s, dt_store_find(s, "weights"), DT_VALUE_PARAM, weights,
                                         sizeof weights);
    return !result && inputs ? dt_trainer_set_input(trainer, m->which, &which, sizeof which)
                             : result;
}

typedef struct shared_result {
    double loss, evaluated;
    uint64_t digest;
} shared_result;

/* Three times other values, five steps, of which the last is of a short batch, an evaluation. */
static shared_result shared_train(bool inputs, const char *devices) {
    shared_model m;
    shared_result out = {0};
    dt_trainer *trainer = NULL;
    dt_train_report r = {0};
    if (!CHECK_TEXT(shared_model_make(&m, inputs), "the model"))
        return out;
    dt_trainer_desc d = shared_desc(&m, devices, 8);
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int n = 0; n < 3 && !result; n++) {
        result = shared_write(&m, trainer, n, inputs);
        for (int i = 0; i < 5 && !result; i++)
            result = dt_trainer_step(trainer, &r);
        out.loss += r.loss;
        if (!result)
            result = dt_trainer_evaluate(trainer, &d.data, 7, &r);
        out.evaluated += r.loss;
    }
    CHECK_TEXT(!result, "%s: %s", devices, dt_ctx_error(m.ctx));
    out.digest = result ? 0 : state_digest(dt_trainer_store(trainer), 3);
    dt_ctx_destroy(m.ctx);
    return out;
}

TEST(inputs_that_all_samples_share_equal_frozen_parameters) {
    static const char *const devices[] = {"cpu", "cpu:2", "cpu:3"};
    const shared_result want = shared_train(false, "cpu"), first = shared_train(true, "cpu");
    CHECK_NEAR(first.loss, want.loss, 1e-6 * want.loss);
    CHECK_NEAR(first.evaluated, want.evaluated, 1e-6 * want.evaluated);
    for (int i = 1; i < 3; i++) {
        const shared_result got = shared_train(true, devices[i]);
        CHECK_TEXT(got.digest == first.digest && got.digest && got.loss == first.loss, "%s",
                   devices[i]);
        CHECK_NEAR(got.evaluated, first.evaluated, 1e-6 * first.evaluated);
    }
}

TEST(shared_inputs_stay_after_a_resume_that_rebuilds_programs) {
    const char *path = "build/test_state_shared.safetensors";
    uint64_t digest[2] = {0};
    for (int round = 0; round < 2; round++) {
        shared_model m;
        dt_trainer *trainer;
        REQUIRE(shared_model_make(&m, true));
        dt_trainer_desc d = shared_desc(&m, round ? "cpu:2" : "cpu", round ? 0 : 8);
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        CHECK(shared_write(&m, trainer, 1, true) == DT_OK);
        state_steps(trainer, 2);
        CHECK(dt_trainer_evaluate(trainer, &d.data, 7, NULL) == DT_OK);
        CHECK((round ? dt_trainer_load(trainer, path) : dt_trainer_save(trainer, path)) == DT_OK);
        state_steps(trainer, 5);
        CHECK(dt_trainer_evaluate(trainer, &d.data, 7, NULL) == DT_OK);
        digest[round] = state_digest(dt_trainer_store(trainer), 3);
        CHECK_STR(dt_ctx_error(m.ctx), "");
        dt_ctx_destroy(m.ctx);
    }
    CHECK(digest[0] && digest[0] == digest[1]);
    remove(path);
}

static void shared_wrong(shared_model *m, dt_trainer *t, dt_tensor x, const void *data,
                         size_t bytes, const char *text) {
    CHECK(dt_trainer_set_input(t, x, data, bytes) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m->ctx), text);
}

TEST(a_shared_input_that_is_missing_or_wrong_is_named) {
    shared_model m;
    dt_trainer *trainer;
    float values[TRAIN_CLASSES] = {1, 1, 1, 1, 1};
    const int32_t which = 4;
    REQUIRE(shared_model_make(&m, true));
    dt_trainer_desc d = shared_desc(&m, "cpu:2", 4);
    d.data.columns[2].input = m.mask;
    d.data.columns[2].data = &m.data;
    CHECK(dt_trainer_create(m.graph, &d, &trainer) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "'mask' is shared by all samples");
    d = shared_desc(&m, "cpu:2", 4);
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    CHECK(dt_trainer_step(trainer, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "' is shared by all samples and was never written");
    CHECK(shared_write(&m, trainer, 0, true) == DT_OK);
    state_steps(trainer, 1);
    dt_trainer_destroy(trainer);
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    CHECK(dt_trainer_set_input(trainer, m.weights, values, sizeof values) == DT_OK);
    CHECK(dt_trainer_evaluate(trainer, &d.data, 0, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "input 'mask'");
    shared_wrong(&m, trainer, m.weights, values, 4, "'weights' [5] needs 20 bytes, not 4");
    shared_wrong(&m, trainer, m.weights, NULL, 20, "NULL");
    shared_wrong(&m, trainer, m.t, values, 4, "'t' is an input of each sample");
    shared_wrong(&m, trainer, m.loss, values, 4, "is not an input");
    shared_wrong(&m, trainer, (dt_tensor){0}, values, 4, "the input is nil");
    shared_wrong(&m, trainer, m.which, &which, 4, "4 is not in [0, 4)");
    CHECK(dt_trainer_set_input(NULL, m.which, &which, 4) == DT_ERROR_INVALID);
    CHECK(shared_write(&m, trainer, 0, true) == DT_OK);
    state_steps(trainer, 1);
    dt_ctx_destroy(m.ctx);
}

/* ---- the state of a store, without a trainer */

typedef struct store_run {
    state_model m;
    dt_store *store;
    dt_program *program;
} store_run;

static const dt_optim_desc store_optims[] = {{.kind = DT_OPTIM_ADAM, .lr = 0.01},
                                             {.kind = DT_OPTIM_ADAMW, .lr = 0.01},
                                             {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9},
                                             {.kind = DT_OPTIM_SGD, .lr = 0.1},
                                             {.kind = DT_OPTIM_AMSGRAD, .lr = 0.01},
                                             {.kind = DT_OPTIM_LARS, .lr = 0.1, .momentum = 0.9},
                                             {.kind = DT_OPTIM_MUON, .lr = 0.01},
                                             {.kind = DT_OPTIM_ADAFACTOR, .lr = 0.05}};
enum { STORE_OPTIMS = sizeof store_optims / sizeof *store_optims, STORE_BATCH = 32 };

static bool store_program(store_run *r, const dt_optim_desc *optim) {
    const dt_program_desc d = {.loss = r->m.loss, .optim = optim, .batch = STORE_BATCH};
    return CHECK_TEXT(dt_program_create(r->store, &d, &r->program) == DT_OK, "%s",
                      dt_ctx_error(r->m.ctx));
}

static bool store_open(store_run *r, state_other other, const dt_optim_desc *optim, int seed) {
    return state_model_make(&r->m, &state_alone, other) &&
           dt_store_create(r->m.graph, &(dt_store_desc){.device = "cpu", .seed = (uint64_t)seed},
                           &r->store) == DT_OK &&
           (!optim || store_program(r, optim));
}

/* Steps [from, to) of a run, each of other rows; the sum of their losses. */
static double store_steps(store_run *r, int from, int to) {
    double loss = 0;
    for (int i = from; i < to; i++) {
        dt_report report = {.loss = NAN};
        const int row = i * 29 % (TRAIN_ROWS - STORE_BATCH);
        CHECK(dt_program_write(r->program, r->m.x, r->m.data.x + row * SHARED_X,
                               STORE_BATCH * SHARED_X * sizeof(float)) == DT_OK);
        CHECK(dt_program_write(r->program, r->m.t, r->m.data.t + row,
                               STORE_BATCH * sizeof(int32_t)) == DT_OK);
        CHECK(dt_program_run(r->program, &(dt_step_desc){.seed = 5}, &report) == DT_OK);
        loss += report.loss;
    }
    return loss;
}

static uint64_t store_hash(store_run *r) {
    uint64_t hash = 0;
    CHECK(dt_store_state_hash(r->store, &hash) == DT_OK);
    return hash;
}

TEST(a_stores_state_resumes_from_a_file_with_the_same_bits) {
    const char *path = "build/test_state_store.safetensors";
    for (int i = 0; i < STORE_OPTIMS; i++) {
        store_run r;
        REQUIRE(store_open(&r, STATE_SAME, &store_optims[i], 1));
        store_steps(&r, 0, 5);
        CHECK(dt_store_save_state(r.store, path) == DT_OK);
        const double want = store_steps(&r, 5, 9);
        const uint64_t hash = store_hash(&r);
        dt_ctx_destroy(r.m.ctx);
        for (int before = 0; before < 2; before++) { /* the program's creation */
            REQUIRE(store_open(&r, STATE_SAME, before ? NULL : &store_optims[i], 2));
            if (!before)
                store_steps(&r, 0, 3);
            CHECK_TEXT(dt_store_load_state(r.store, path) == DT_OK, "%s", dt_ctx_error(r.m.ctx));
            if (before && !store_program(&r, &store_optims[i]))
                return;
            const double loss = store_steps(&r, 5, 9);
            CHECK_TEXT(loss == want && store_hash(&r) == hash, "optimizer %d, %s: %.17g, not %.17g",
                       i, before ? "before" : "after", loss, want);
            dt_ctx_destroy(r.m.ctx);
        }
    }
    remove(path);
}

/* The losses of a run on a device; NAN: there is no such device. */
static double store_losses(const char *device, const dt_optim_desc *optim) {
    const dt_ctx_desc ctx = {.no_vulkan = strcmp(device, "cpu") == 0, .threads = 1};
    store_run r;
    double losses = NAN;
    if (state_model_make(&r.m, &ctx, STATE_SAME) &&
        dt_store_create(r.m.graph, &(dt_store_desc){.device = device, .seed = 1}, &r.store) ==
            DT_OK &&
        store_program(&r, optim))
        losses = store_steps(&r, 0, 8);
    dt_ctx_destroy(r.m.ctx);
    return losses;
}

TEST(amsgrad_with_its_three_moments_trains_alike_on_cpu_and_vulkan) {
    const dt_optim_desc optim = {.kind = DT_OPTIM_AMSGRAD, .lr = 0.01, .weight_decay = 0.1};
    const double cpu = store_losses("cpu", &optim), vulkan = store_losses("vulkan", &optim);
    if (isnan(vulkan))
        SKIP("no Vulkan device");
    CHECK_NEAR(vulkan, cpu, 1e-4);
}

TEST(a_stores_state_resumes_where_parameters_are_created_in_another_order) {
    const char *path = "build/test_state_order.safetensors";
    store_run r;
    REQUIRE(store_open(&r, STATE_SAME, &store_optims[0], 1));
    store_steps(&r, 0, 5);
    CHECK(dt_store_save_state(r.store, path) == DT_OK);
    const double want = store_steps(&r, 5, 9);
    dt_ctx_destroy(r.m.ctx);
    REQUIRE(store_open(&r, STATE_ORDER, &store_optims[0], 2));
    CHECK(dt_store_load_state(r.store, path) == DT_OK);
    CHECK_NEAR(store_steps(&r, 5, 9), want, 1e-5 * want);
    dt_ctx_destroy(r.m.ctx);
    remove(path);
}

TEST(a_damaged_state_of_a_store_is_refused_and_changes_nothing) {
    const char *path = "build/test_state_damaged.safetensors";
    static unsigned char file[16384];
    store_run r;
    REQUIRE(store_open(&r, STATE_SAME, &store_optims[0], 1));
    store_steps(&r, 0, 2);
    CHECK(dt_store_save_state(r.store, path) == DT_OK);
    FILE *in = fopen(path, "rb");
    const size_t size = in ? fread(file, 1, sizeof file, in) : 0;
    REQUIRE(in && size > 3000 && size < sizeof file && fclose(in) == 0);
    const uint64_t before = store_hash(&r);
    for (size_t at = 0; at < size; at += 23) {
        for (int cut = 0; cut < 2; cut++) {
            FILE *out = fopen(path, "wb");
            file[at] ^= 0x20;
            const size_t end = cut ? at : size;
            CHECK(out && fwrite(file, 1, end, out) == end && fclose(out) == 0);
            file[at] ^= 0x20;
            CHECK_TEXT(dt_store_load_state(r.store, path) == DT_ERROR_FORMAT, "byte %d: %s",
                       (int)at, dt_ctx_error(r.m.ctx));
        }
    }
    CHECK(store_hash(&r) == before);
    dt_ctx_destroy(r.m.ctx);
    remove(path);
}

TEST(a_state_with_a_nan_goes_into_a_store_only_where_it_is_asked_for) {
    const char *path = "build/test_state_nan.safetensors";
    static const char *const names[] = {"conv.weight", "bn.running_var", "dtrain.moment1.fc.bias",
                                        "dtrain.moment2.conv.bias"};
    const uint32_t infinity = 0xFF800000;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        store_run r;
        dt_store *any;
        REQUIRE(store_open(&r, STATE_SAME, &state_adam, 1));
        store_steps(&r, 0, 2);
        CHECK(dt_store_save_state(r.store, path) == DT_OK);
        REQUIRE(state_craft_bytes(path, path, names[i], 4, &infinity, sizeof infinity));
        const uint64_t before = store_hash(&r);
        CHECK(dt_store_load_state(r.store, path) == DT_ERROR_FORMAT && store_hash(&r) == before);
        CHECK_CONTAINS(dt_ctx_error(r.m.ctx), names[i]);
        CHECK_CONTAINS(dt_ctx_error(r.m.ctx), "value 1 of");
        CHECK_CONTAINS(dt_ctx_error(r.m.ctx), "set .allow_nonfinite of dt_store_desc");
        dt_store_destroy(r.store);
        const dt_store_desc d = {.device = "cpu", .allow_nonfinite = true};
        REQUIRE(dt_store_create(r.m.graph, &d, &any) == DT_OK);
        CHECK_TEXT(dt_store_load_state(any, path) == DT_OK, "%s", dt_ctx_error(r.m.ctx));
        CHECK_TEXT(dt_store_load(any, path) == DT_OK, "%s", dt_ctx_error(r.m.ctx));
        dt_ctx_destroy(r.m.ctx);
    }
    remove(path);
}

enum { STORE_WORD_VERSION, STORE_WORD_STEP, STORE_WORD_MOMENTS, STORE_WORD_KIND };

TEST(a_state_of_another_store_is_refused_with_the_reason) {
    const char *path = "build/test_state_kind.safetensors",
               *own = "build/test_state_own.safetensors";
    static const struct {
        state_other other;
        int optim, word;
        uint64_t value;
        dt_result result;
        const char *text;
    } cases[] = {
        {STATE_WIDE, 0, -1, 0, DT_ERROR_INVALID, "'conv.weight' [3, 1, 3, 3]"},
        {STATE_MORE_PARAMS, 0, -1, 0, DT_ERROR_INVALID,
         "the graph also has \"parameter 'more.weight'"},
        {STATE_NO_BATCH_NORM, 0, -1, 0, DT_ERROR_INVALID,
         "the file also has \"parameter 'bn.weight'"},
        {STATE_SAME, 1, -1, 0, DT_ERROR_INVALID, "the state of optimizer 2, but a program here"},
        {STATE_SAME, 2, -1, 0, DT_ERROR_INVALID, "trains it with 1 (dt_optim_kind)"},
        {STATE_SAME, 0, STORE_WORD_VERSION, 2, DT_ERROR_INVALID, "version is 2"},
        {STATE_SAME, 0, STORE_WORD_MOMENTS, 99, DT_ERROR_FORMAT, "99 moments"},
        {STATE_SAME, 0, STORE_WORD_MOMENTS, UINT64_MAX, DT_ERROR_FORMAT, "moments"},
        {STATE_SAME, 0, STORE_WORD_KIND + 1, 99, DT_ERROR_FORMAT,
         "'conv.bias' has an unknown optimizer, 99"},
        {STATE_SAME, 0, STORE_WORD_MOMENTS, 1, DT_OK, ""},
    };
    store_run r;
    REQUIRE(store_open(&r, STATE_SAME, &store_optims[0], 1));
    store_steps(&r, 0, 2);
    CHECK(dt_store_save_state(r.store, path) == DT_OK);
    dt_ctx_destroy(r.m.ctx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        REQUIRE(store_open(&r, cases[i].other, &store_optims[cases[i].optim], 2));
        store_steps(&r, 0, 1);
        const uint64_t before = store_hash(&r);
        const char *from = cases[i].word < 0 ? path : own;
        if (cases[i].word >= 0)
            CHECK(state_craft(path, own, "dtrain.store", cases[i].word, cases[i].value));
        CHECK(dt_store_load_state(r.store, from) == cases[i].result);
        CHECK_CONTAINS(dt_ctx_error(r.m.ctx), cases[i].text);
        CHECK((store_hash(&r) == before) == (cases[i].result != DT_OK));
        store_steps(&r, 1, 2);
        dt_ctx_destroy(r.m.ctx);
    }
    remove(path);
    remove(own);
}

TEST(a_store_after_a_reset_accepts_another_optimizer) {
    const char *path = "build/test_state_reset.safetensors";
    store_run r;
    dt_program *other = NULL;
    uint64_t hash[2] = {0};
    REQUIRE(store_open(&r, STATE_SAME, &store_optims[0], 1));
    store_steps(&r, 0, 4);
    const dt_program_desc sgd = {.loss = r.m.loss, .optim = &store_optims[2], .batch = STORE_BATCH};
    CHECK(dt_store_reset(r.store, DT_RESET_OPTIM) == DT_OK); /* Adam's program is still there */
    CHECK(dt_program_create(r.store, &sgd, &other) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(r.m.ctx), "destroy that program, and dt_store_reset");
    dt_program_destroy(r.program);
    CHECK(dt_store_reset(r.store, DT_RESET_OPTIM) == DT_OK && store_program(&r, &store_optims[2]));
    CHECK(dt_store_save(r.store, path) == DT_OK);
    store_steps(&r, 0, 4);
    CHECK(dt_store_hash(r.store, &hash[0]) == DT_OK);
    dt_ctx_destroy(r.m.ctx);
    REQUIRE(store_open(&r, STATE_SAME, &store_optims[2], 2));
    CHECK(dt_store_load(r.store, path) == DT_OK);
    dt_report report;
    for (int i = 0; i < 4; i++) { /* dropout goes by the number of the step, which went on */
        const int row = i * 29 % (TRAIN_ROWS - STORE_BATCH);
        dt_program_write(r.program, r.m.x, r.m.data.x + row * SHARED_X,
                         STORE_BATCH * SHARED_X * sizeof(float));
        dt_program_write(r.program, r.m.t, r.m.data.t + row, STORE_BATCH * sizeof(int32_t));
        const dt_step_desc step = {.seed = 5, .step = (uint64_t)(5 + i)};
        CHECK(dt_program_run(r.program, &step, &report) == DT_OK);
    }
    CHECK(dt_store_hash(r.store, &hash[1]) == DT_OK && hash[0] == hash[1]);
    dt_ctx_destroy(r.m.ctx);
    remove(path);
}

TEST(a_store_that_is_reset_equals_a_new_one) {
    for (int i = 0; i < STORE_OPTIMS; i++) {
        store_run r;
        REQUIRE(store_open(&r, STATE_SAME, &store_optims[i], 7));
        const uint64_t begin = store_hash(&r);
        const double want = store_steps(&r, 0, 4);
        const uint64_t end = store_hash(&r);
        CHECK(dt_store_reset(r.store, DT_RESET_ALL) == DT_OK && store_hash(&r) == begin);
        CHECK(store_steps(&r, 0, 4) == want && store_hash(&r) == end && begin != end);
        CHECK(dt_store_reset(r.store, (dt_reset_kind)2) == DT_ERROR_INVALID);
        CHECK(dt_program_begin(r.program, NULL) == DT_OK);
        CHECK(dt_store_reset(r.store, DT_RESET_OPTIM) == DT_ERROR_INVALID);
        CHECK(dt_store_save_state(r.store, "build/never") == DT_ERROR_INVALID);
        CHECK(dt_store_load_state(r.store, "build/never") == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(r.m.ctx), "dt_program_begin");
        CHECK(dt_program_cancel(r.program, NULL) == DT_OK && store_hash(&r) == end);
        dt_ctx_destroy(r.m.ctx);
    }
}

TEST(a_trainers_store_saves_its_state_and_refuses_to_load_one) {
    const char *path = "build/test_state_trainers.safetensors";
    state_model m;
    state_log log;
    dt_store *alone;
    dt_trainer *trainer = state_open(&m, STATE_SAME, &log, NULL);
    REQUIRE(trainer);
    state_steps(trainer, 3);
    dt_store *s = dt_trainer_store(trainer);
    const uint64_t digest = state_digest(s, 3);
    CHECK(dt_store_save_state(s, path) == DT_OK);
    CHECK(dt_store_load_state(s, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "dt_trainer_load");
    CHECK(dt_store_reset(s, DT_RESET_ALL) == DT_ERROR_INVALID && state_digest(s, 3) == digest);
    CHECK(dt_trainer_load(trainer, path) == DT_ERROR_FORMAT);
    state_steps(trainer, 1);
    CHECK(dt_store_create(m.graph, &(dt_store_desc){.device = "cpu"}, &alone) == DT_OK);
    CHECK(dt_store_load_state(alone, path) == DT_OK && state_digest(alone, 3) == digest);
    CHECK(dt_store_load_state(alone, STATE_FIRST) == DT_ERROR_FORMAT);
    dt_ctx_destroy(m.ctx);
    remove(path);
}
