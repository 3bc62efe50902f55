/* Models as C files, compiled as C99 with all warnings as errors. They run beside dtrain's portable
 * class, with the same bits. Random graphs of whatever can be written, a small network, and what is
 * refused. Included by main.c after test_onnx.c, some of whose pieces it uses. */
#include "temp.h"

enum { C_CASES = 12, C_NAME = 24 };

typedef struct c_job {
    FILE *main;
    char objects[C_CASES * 64];
    int cases;
} c_job;

#ifdef __FMA__
#define C_FLAGS "-DDT_FMA"
#elif defined __aarch64__ || defined __riscv_f || defined __powerpc64__
#define C_FLAGS "-DDT_FMA"
#else
#define C_FLAGS ""
#endif

static const char *c_path(const char *name) {
    return temp_path(name);
}

static bool c_begin(c_job *j) {
    *j = (c_job){.main = fopen(c_path("c_main.c"), "wb")};
    return j->main && fprintf(j->main, "#include <stdint.h>\n#include <stdio.h>\n"
                                       "#include <string.h>\nstatic int bad;\n") > 0;
}

static bool c_compile(const char *source, const char *object) {
    char command[700];
    snprintf(command, sizeof command,
             "cc -std=c99 -O1 -Wall -Wextra -Werror " C_FLAGS " -c '%s' -o '%s'", source, object);
    return system(command) == 0;
}

static void c_words(c_job *j, const char *name, const uint32_t *words, size_t count) {
    fprintf(j->main, "static const uint32_t %s[] = {", name);
    for (size_t i = 0; i < count; i++)
        fprintf(j->main, "%s0x%xu", i ? "," : "", (unsigned)words[i]);
    fprintf(j->main, "};\n");
}

typedef struct c_input {
    uint32_t id;
    bool whole;
    size_t each, count; /* of a sample, 0 where all have the same; of all */
    uint32_t *words;
} c_input;

/* Whether the function in c_model.c takes it. */
static bool c_takes(uint32_t id) {
    static char text[1 << 21];
    char have[32];
    FILE *file = fopen(c_path("c_model.c"), "rb");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = 0;
    if (file)
        fclose(file);
    snprintf(have, sizeof have, "*in%u", (unsigned)id);
    const char *at = strstr(text, have);
    return at && (at[strlen(have)] == ',' || at[strlen(have)] == ')');
}

static const char c_compares[] =
    "static void case%d(void) {\n    static float got[%zu];\n"
    "    for (int s = 0; s < %d; s++) {\n        model%d(%s%sgot);\n"
    "        for (int k = 0; k < %zu; k++)\n"
    "            if (memcmp(got + k, y%d + s * %zu + k, 4) != 0) {\n"
    "                float want;\n                memcpy(&want, y%d + s * %zu + k, 4);\n"
    "                printf(\"%s, sample %%d: %%d: %%.9g, not %%.9g\\n\", s, k, got[k], want);\n"
    "                bad++;\n                return;\n            }\n    }\n}\n";

/* The model in c_model.c becomes a case: inputs, `rows` results of `each`, and what compares. */
static void c_case(c_job *j, const char *label, const c_input *in, int inputs, const void *y,
                   size_t each, int rows) {
    char name[64], call[600] = "", declare[600] = "";
    const char *comma = "";
    const int number = j->cases++;
    snprintf(name, sizeof name, "c_%d.o", number);
    CHECK(c_compile(c_path("c_model.c"), c_path(name)));
    snprintf(name, sizeof name, "y%d", number);
    c_words(j, name, y, each * (size_t)rows);
    for (int i = 0; i < inputs; i++) {
        if (!c_takes(in[i].id))
            continue;
        snprintf(name, sizeof name, "x%d_%d", number, i);
        c_words(j, name, in[i].words, in[i].count);
        snprintf(declare + strlen(declare), sizeof declare - strlen(declare), "%sconst %s *", comma,
                 in[i].whole ? "int32_t" : "float");
        snprintf(call + strlen(call), sizeof call - strlen(call), "%s(const void *)(%s + s * %zu)",
                 comma, name, in[i].each);
        comma = ", ";
    }
    fprintf(j->main, "void model%d(%s%sfloat *);\n", number, declare, comma);
    fprintf(j->main, c_compares, number, each, rows, number, call, comma, each, number, each,
            number, each, label);
    snprintf(j->objects + strlen(j->objects), sizeof j->objects - strlen(j->objects), " c_%d.o",
             number);
}

static void c_end(c_job *j) {
    char command[2000], folder[512];
    fprintf(j->main, "int main(void) {\n");
    for (int i = 0; i < j->cases; i++)
        fprintf(j->main, "    case%d();\n", i);
    fprintf(j->main, "    return bad != 0;\n}\n");
    fclose(j->main);
    snprintf(folder, sizeof folder, "%s", c_path("c_run"));
    *strrchr(folder, '/') = 0;
    snprintf(command, sizeof command, "cd '%s' && cc -std=c99 c_main.c %s -o c_run -lm && ./c_run",
             folder, j->objects);
    CHECK(system(command) == 0);
}

/* The last tensor of the model that can be written, as function model<case>. */
static int c_written(c_job *j, const rnd_device *d) {
    char name[C_NAME];
    snprintf(name, sizeof name, "model%d", j->cases);
    for (int i = d->m->count - 1; i >= 0; i--) {
        const dt_tensor y = d->b.at[i];
        const dti_node *n = dti_node_of(y);
        if (n->term || n->dtype != DT_F32 || rnd_is_leaf(d->m->stmts[i].kind))
            continue;
        const dt_result result =
            dt_c_save(d->store, c_path("c_model.c"), &(dt_c_desc){.outputs = {y}, .name = name});
        if (result == DT_OK)
            return i;
        CHECK(result == DT_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(dt_ctx_error(d->b.ctx), "dt_c_save: ");
    }
    return -1;
}

static bool c_random_case(c_job *j, rnd_device *d) {
    const int i = c_written(j, d), batch = d->m->batch;
    const dt_program_desc desc = {.batch = batch, .outputs = {d->b.at[i < 0 ? 0 : i]}};
    dt_program *p = NULL;
    c_input in[RND_STMTS];
    char label[32];
    int inputs = 0;
    if (i < 0 || dt_program_create(d->store, &desc, &p))
        return false;
    const dti_node *n = dti_node_of(d->b.at[i]);
    const size_t each = (size_t)dti_shape_elements(n->shape);
    const int rows = n->samples ? batch : 1;
    float *y = malloc(each * (size_t)rows * 4 + 4);
    rnd_write_inputs(d, p, 0, batch);
    CHECK(dt_program_run(p, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(p, d->b.at[i], y, each * (size_t)rows * 4) == DT_OK);
    for (int k = 0; k < d->m->count; k++) {
        size_t bytes;
        if (!rnd_is_input(d->m->stmts[k].kind))
            continue;
        const dti_node *x = dti_node_of(d->b.at[k]);
        in[inputs] = (c_input){.id = d->b.at[k].id,
                               .whole = x->dtype == DT_I32,
                               .each = x->samples ? (size_t)dti_shape_elements(x->shape) : 0,
                               .words = rnd_words(d->m, k, 0, batch, &bytes)};
        in[inputs++].count = bytes / 4;
    }
    snprintf(label, sizeof label, "model %llu", (unsigned long long)d->m->seed);
    c_case(j, label, in, inputs, y, each, rows);
    for (int k = 0; k < inputs; k++)
        free(in[k].words);
    free(y);
    return true;
}

TEST(c_files_of_random_graphs_have_the_bits_of_the_portable_class) {
    static const rnd_way cpu = {"cpu", "cpu", .threads = 1, .cpu = true, .no_fast = true};
    static rnd_model m;
    const long first = rnd_env("DTRAIN_RANDOM_SEED", 1);
    c_job j;
    if (system("cc --version >/dev/null 2>&1") != 0)
        SKIP("there is no cc");
    REQUIRE(c_begin(&j));
    for (long i = 0; i < 10 * C_CASES && j.cases < C_CASES; i++) {
        rnd_fault fault = {{0}};
        rnd_device d;
        char error[512];
        if (!rnd_make(&m, (uint64_t)(first + i), true, error))
            continue;
        if (rnd_device_open(&d, &m, &cpu, &fault))
            c_random_case(&j, &d);
        rnd_device_close(&d);
    }
    CHECK(j.cases == C_CASES);
    c_end(&j);
}

/* More than one run of 256 products, images that windows do not fill, and all layers at once. */
static dt_tensor c_layers(dt_tensor x) {
    dt_tensor h = dt_gelu(dt_nn_batch_norm(onnx_conv(x, "c1", 40, 2), "bn1", NULL));
    h = dt_silu(onnx_conv(dt_max_pool2d(h, &(dt_pool_desc){.kernel = {3, 3}, .stride = {2, 2}}),
                          "c2", 12, 1));
    h = dt_add(h, dt_tanh(onnx_conv(h, "c3", 12, 1)));
    h = dt_avg_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}});
    h = dt_relu(dt_nn_linear(dt_flatten(h), "fc1", 300));
    h = dt_nn_linear(dt_nn_batch_norm(h, "bn2", NULL), "fc2", 7);
    return dt_softmax(dt_mul(h, dt_sigmoid(h)), 0);
}

/* Sums so long that double takes over. */
static dt_tensor c_long_sums(dt_tensor x) {
    dt_tensor y[3];
    y[0] = dt_flatten(
        dt_avg_pool2d(x, &(dt_pool_desc){.kernel = {40, 33}, .stride = {3, 5}, .padding = {1, 0}}));
    y[1] = dt_flatten(dt_adaptive_avg_pool2d(x, 1, 1));
    y[1] = dt_softmax(dt_nn_linear(y[1], "fc1", 600), 0);
    y[2] = dt_nn_linear(dt_flatten(x), "fc2", 1);
    return dt_concat(y, 3, 0);
}

static void c_network(dt_tensor (*make)(dt_tensor x), int64_t height, int64_t width, int outs) {
    enum { WORDS = 2 * 3 * 50 * 60, OUTS = 2 * 691 };
    static uint32_t words[WORDS];
    static float y[OUTS];
    uint64_t state = 1;
    dt_store *store = NULL;
    dt_program *p = NULL;
    onnx_net net = {0};
    c_job j;
    const int image = (int)(3 * height * width);
    if (system("cc --version >/dev/null 2>&1") != 0)
        SKIP("there is no cc");
    REQUIRE(2 * image <= WORDS && 2 * outs <= OUTS);
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .no_fast = true}, &net.ctx) == DT_OK);
    REQUIRE(dt_graph_create(net.ctx, &net.g) == DT_OK && c_begin(&j));
    const dt_tensor x = dt_input(net.g, "image", DT_F32, dt_dims(3, height, width)), h = make(x);
    const dt_store_desc desc = {.device = "cpu", .init = onnx_init, .init_user = &state};
    const size_t in_bytes = 2 * (size_t)image * sizeof *words;
    const size_t bytes = 2 * (size_t)outs * sizeof *y;
    REQUIRE(dt_store_create(net.g, &desc, &store) == DT_OK);
    REQUIRE(dt_program_create(store, &(dt_program_desc){.outputs = {h}, .batch = 2}, &p) == DT_OK);
    onnx_fill(x, 2, &state, words);
    CHECK(dt_program_write(p, x, words, in_bytes) == DT_OK);
    CHECK(dt_program_run(p, NULL, NULL) == DT_OK && dt_program_read(p, h, y, bytes) == DT_OK);
    CHECK(dt_c_save(store, c_path("c_model.c"), &(dt_c_desc){.outputs = {h}, .name = "model0"}) ==
          DT_OK);
    const c_input in = {x.id, false, image, 2 * image, words};
    c_case(&j, "network", &in, 1, y, outs, 2);
    c_end(&j);
    dt_ctx_destroy(net.ctx);
}

TEST(c_files_of_networks_have_the_bits_of_the_portable_class) {
    c_network(c_layers, 15, 15, 7);
}

TEST(c_files_of_long_sums_have_the_bits_of_the_portable_class) {
    c_network(c_long_sums, 50, 60, 691);
}

TEST(c_files_refuse_ops_without_a_function_by_name) {
    dt_store *store;
    onnx_net net;
    onnx_open(&net);
    dt_tensor x = dt_input(net.g, "x", DT_F32, dt_dims(4, 6));
    dt_tensor t = dt_input(net.g, "t", DT_F32, dt_dims(4, 6));
    const dt_tensor wrong[] = {dt_label(dt_sin(x), "wave"),
                               dt_layer_norm(x, 1, (dt_tensor){0}, (dt_tensor){0}, 0.0f),
                               dt_mse(x, t), dt_random_normal(x)};
    static const char *const why[] = {"sin, 'wave'", "norm", "loss", "random"};
    REQUIRE(dt_store_create(net.g, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    for (int i = 0; i < 4; i++) {
        CHECK(dt_c_save(store, c_path("c_model.c"), &(dt_c_desc){.outputs = {wrong[i]}}) ==
              DT_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(dt_ctx_error(net.ctx), why[i]);
    }
    const dt_tensor whole = dt_input(net.g, "i", DT_I32, dt_dims(3));
    CHECK(dt_c_save(store, c_path("c_model.c"), &(dt_c_desc){.outputs = {whole}}) ==
          DT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dt_ctx_error(net.ctx), ".outputs[0] is i32");
    const dt_c_desc gap = {.outputs = {[0] = dt_relu(x), [2] = dt_relu(x)}};
    CHECK(dt_c_save(store, c_path("c_model.c"), &gap) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(net.ctx), "dt_c_save: .outputs[2] comes after a nil one");
    static const char *const names[] = {"int",       "auto", "memory", "dt_linear",
                                        "constant3", "3d",   ""};
    for (int i = 0; i < 7; i++) {
        const dt_c_desc desc = {.outputs = {dt_relu(x)}, .name = names[i]};
        CHECK(dt_c_save(store, c_path("c_model.c"), &desc) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(net.ctx), "is not a name for a function in C");
    }
    const dt_c_desc short_desc = {.outputs = {dt_relu(x)}, .name = "in"}; /* a part of "int" */
    CHECK(dt_c_save(store, c_path("c_model.c"), &short_desc) == DT_OK);
    dt_ctx_destroy(net.ctx);
}
