/* ONNX files: networks of the layers that there are, and random graphs of all rows that can be
 * written. onnxruntime computes them on the same inputs. Included by main.c after test_random.c. */
#include "temp.h"

/* ---- cases: one file with all models, inputs and results, one that says what is where */

typedef struct onnx_job {
    FILE *data, *list;
    int cases;
    const char *data_path, *list_path, *model_path;
} onnx_job;

static bool onnx_begin(onnx_job *j) {
    *j = (onnx_job){.data_path = temp_path("onnx.bin"),
                    .list_path = temp_path("onnx.json"),
                    .model_path = temp_path("onnx.onnx")};
    j->data = fopen(j->data_path, "wb");
    j->list = fopen(j->list_path, "wb");
    return j->data && j->list && fprintf(j->list, "[") > 0;
}

static void onnx_bytes(onnx_job *j, const void *data, size_t bytes) {
    fprintf(j->list, "[%ld, %zu]", ftell(j->data), bytes);
    fwrite(data, 1, bytes, j->data);
}

static void onnx_file(onnx_job *j) {
    FILE *file = fopen(j->model_path, "rb");
    static char buffer[1 << 22];
    const size_t size = file ? fread(buffer, 1, sizeof buffer, file) : 0;
    CHECK(size > 0 && size < sizeof buffer);
    if (file)
        fclose(file);
    onnx_bytes(j, buffer, size);
}

/* A tensor of `batch` samples by its name. */
static void onnx_tensor(onnx_job *j, const char *name, dt_tensor x, int batch, const void *data) {
    const dti_node *n = dti_node_of(x);
    const int64_t count = dti_shape_elements(n->shape) * (n->samples ? batch : 1);
    fprintf(j->list, "[\"%s\", \"%s\", [", name, n->dtype == DT_I32 ? "int32" : "float32");
    if (n->samples)
        fprintf(j->list, "%d%s", batch, n->shape.rank ? ", " : "");
    for (int i = 0; i < n->shape.rank; i++)
        fprintf(j->list, "%s%lld", i ? ", " : "", (long long)n->shape.dim[i]);
    fprintf(j->list, "], ");
    onnx_bytes(j, data, (size_t)count * 4);
    fprintf(j->list, "]");
}

static const char onnx_program[] =
    "import json, sys\n"
    "import numpy as np, onnx, onnxruntime as rt\n"
    "rt.set_default_logger_severity(3)\n"
    "data = open('%s', 'rb').read()\n"
    "opt = rt.SessionOptions()\n"
    "opt.intra_op_num_threads = opt.inter_op_num_threads = 1\n"
    "bad = 0\n"
    "worst = 0\n"
    "def array(t):\n"
    "    at, size = t[3]\n"
    "    return np.frombuffer(data[at:at + size], t[1]).reshape(t[2])\n"
    "for case in json.load(open('%s')):\n"
    "    try:\n"
    "        at, size = case['model']\n"
    "        model = data[at:at + size]\n"
    "        onnx.checker.check_model(model, full_check=True)\n"
    "        m = onnx.load_from_string(model)\n"
    "        assert [o.version for o in m.opset_import] == [17]\n"
    "        s = rt.InferenceSession(model, opt, providers=['CPUExecutionProvider'])\n"
    "        have = {i.name for i in s.get_inputs()}\n"
    "        feed = {t[0]: array(t) for t in case['inputs'] if t[0] in have}\n"
    "        got = s.run([t[0] for t in case['outputs']], feed)\n"
    "        for t, y in zip(case['outputs'], got):\n"
    "            want = array(t)\n"
    "            assert list(y.shape) == t[2] and y.dtype == want.dtype, (y.shape, t)\n"
    "            scale = max(1, float(np.max(np.abs(want), initial=0)))\n"
    "            off = float(np.max(np.abs(want - y), initial=0)) / scale\n"
    "            worst = max(worst, off)\n"
    "            assert off <= 1e-5, (t[0], off, scale)\n"
    "    except Exception as e:\n"
    "        bad += 1\n"
    "        print(case['name'], type(e).__name__, str(e)[:600])\n"
    "if %d: print('worst', worst)\n"
    "sys.exit(bad != 0)\n";

/* Has Python look at all that was added. */
static void onnx_end(onnx_job *j) {
    static char program[4096];
    fprintf(j->list, "]\n");
    fclose(j->data);
    fclose(j->list);
    snprintf(program, sizeof program, onnx_program, j->data_path, j->list_path,
             getenv("DTRAIN_ONNX_SAY") != NULL);
    CHECK(temp_python(program, false));
}

static bool onnx_python(void) {
    return temp_python("import onnx, onnxruntime, numpy", true);
}

#define ONNX_SKIP                                                                                  \
    "the Python packages onnx and onnxruntime are missing; ./build.sh test --yes installs them"

/* ---- networks */

enum { ONNX_BATCH = 3, ONNX_SEEDS_MAX = 3000 }; /* of models that are there at once */

static uint32_t onnx_random(uint64_t *state) {
    return dti_philox(91, (*state)++, 0).v[0];
}

/* Weights near 0, and running variances and the like above it. */
static void onnx_init(void *user, const char *name, dt_shape shape, float *values) {
    uint64_t *state = user;
    const bool above = strstr(name, "var") || strstr(name, "weight_norm");
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++)
        count *= shape.dim[i];
    for (int64_t i = 0; i < count; i++) {
        const float u = (float)onnx_random(state) / 4294967296.0f;
        values[i] = above ? 0.5f + u : 0.8f * u - 0.4f;
    }
}

typedef struct onnx_net {
    dt_ctx *ctx;
    dt_graph *g;
    dt_tensor x[4]; /* inputs; whole numbers are below 7 */
    dt_onnx_desc desc;
    dt_program_desc program;
} onnx_net;

static void onnx_fill(dt_tensor x, int batch, uint64_t *state, uint32_t *words) {
    const dti_node *n = dti_node_of(x);
    const int64_t count = dti_shape_elements(n->shape) * (n->samples ? batch : 1);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t u = onnx_random(state);
        const float f = (float)u / 2147483648.0f - 1.0f;
        if (n->dtype == DT_I32)
            words[i] = 1 + u % 6;
        else
            memcpy(&words[i], &f, 4);
    }
}

static void onnx_add(onnx_job *j, const char *name, onnx_net *net) {
    static uint32_t words[1 << 16];
    uint64_t state = 1;
    dt_store *store = NULL;
    dt_program *p = NULL;
    const dt_store_desc desc = {.device = "cpu", .init = onnx_init, .init_user = &state};
    dt_program_desc program = {.batch = ONNX_BATCH};
    memcpy(program.outputs, net->desc.outputs, sizeof program.outputs);
    if (!test_check(dt_store_create(net->g, &desc, &store) == DT_OK &&
                        dt_program_create(store, &program, &p) == DT_OK &&
                        dt_onnx_save(store, j->model_path, &net->desc) == DT_OK,
                    __FILE__, __LINE__, "%s: %s", name, dt_ctx_error(net->ctx)))
        return;
    fprintf(j->list, "%s{\"name\": \"%s\", \"model\": ", j->cases++ ? ",\n" : "", name);
    onnx_file(j);
    fprintf(j->list, ", \"inputs\": [");
    for (int i = 0; i < 4 && net->x[i].graph; i++) {
        const dti_node *n = dti_node_of(net->x[i]);
        onnx_fill(net->x[i], ONNX_BATCH, &state, words);
        CHECK(dt_program_write(p, net->x[i], words,
                               (size_t)dti_shape_elements(n->shape) * 4 *
                                   (n->samples ? ONNX_BATCH : 1)) == DT_OK);
        fprintf(j->list, "%s", i ? ", " : "");
        onnx_tensor(j, n->label, net->x[i], ONNX_BATCH, words);
    }
    fprintf(j->list, "], \"outputs\": [");
    CHECK(dt_program_run(p, NULL, NULL) == DT_OK);
    for (int i = 0; net->desc.outputs[i].graph; i++) {
        const dt_tensor y = net->desc.outputs[i];
        const dti_node *n = dti_node_of(y);
        CHECK(dt_program_read(p, y, words,
                              (size_t)dti_shape_elements(n->shape) * 4 *
                                  (n->samples ? ONNX_BATCH : 1)) == DT_OK);
        fprintf(j->list, "%s", i ? ", " : "");
        onnx_tensor(j, net->desc.names[i], y, ONNX_BATCH, words);
    }
    fprintf(j->list, "]}");
}

static void onnx_open(onnx_net *net) {
    *net = (onnx_net){0};
    CHECK(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &net->ctx) == DT_OK);
    CHECK(dt_graph_create(net->ctx, &net->g) == DT_OK);
}

static void onnx_out(onnx_net *net, dt_tensor y, const char *name) {
    int i = 0;
    while (net->desc.outputs[i].graph)
        i++;
    net->desc.outputs[i] = y;
    net->desc.names[i] = name;
}

static dt_tensor onnx_conv(dt_tensor x, const char *name, int64_t channels, int32_t stride) {
    const dt_conv_layer_desc desc = {.conv = {.stride = {stride, stride}, .padding = {1, 1}}};
    return dt_nn_conv2d(x, name, channels, 3, &desc);
}

static void onnx_add_mlp(onnx_job *j) {
    onnx_net net;
    onnx_open(&net);
    dt_tensor x = net.x[0] = dt_input(net.g, "x", DT_F32, dt_dims(4, 5));
    dt_tensor h = dt_gelu(dt_nn_linear(dt_flatten(x), "fc1", 16));
    h = dt_dropout(dt_silu(dt_nn_linear(h, "fc2", 8)), 0.5f);
    onnx_out(&net, dt_softmax(dt_nn_linear(h, "fc3", 3), 0), "y");
    onnx_out(&net, dt_nn_linear(x, "rows", 2), "rows");
    onnx_add(j, "mlp", &net);
    dt_ctx_destroy(net.ctx);
}

static void onnx_add_resnet(onnx_job *j) {
    onnx_net net;
    onnx_open(&net);
    dt_tensor x = net.x[0] = dt_input(net.g, "image", DT_F32, dt_dims(3, 12, 12));
    x = dt_relu(dt_nn_batch_norm(onnx_conv(x, "stem", 8, 1), "bn", NULL));
    x = dt_max_pool2d(x, &(dt_pool_desc){.kernel = {2, 2}});
    dt_tensor way = dt_relu(dt_nn_batch_norm(onnx_conv(x, "a", 16, 2), "bn_a", NULL));
    way = dt_nn_batch_norm(onnx_conv(way, "b", 16, 1), "bn_b", NULL);
    dt_tensor around =
        dt_nn_conv2d(x, "short", 16, 1, &(dt_conv_layer_desc){.conv = {.stride = {2, 2}}});
    x = dt_relu(dt_add(way, around));
    onnx_out(&net, dt_resize(x, 7, 7, DT_RESIZE_BILINEAR), "wide");
    x = dt_nn_group_norm(x, "gn", 4);
    onnx_out(&net, dt_nn_linear(dt_flatten(dt_adaptive_avg_pool2d(x, 1, 1)), "head", 5), "y");
    onnx_add(j, "resnet", &net);
    dt_ctx_destroy(net.ctx);
}

static void onnx_add_gpt(onnx_job *j) {
    onnx_net net;
    onnx_open(&net);
    net.x[0] = dt_input(net.g, "tokens", DT_I32, dt_dims(9));
    dt_tensor x = dt_nn_embedding(net.x[0], "wte", 11, 16);
    const dt_attention_layer_desc layer = {
        .attention = {.causal = true, .window = 5, .alibi = true}, .kv_heads = 2, .use_rope = true};
    dt_tensor h = dt_nn_layer_norm(x, "ln", 1);
    x = dt_add(x, dt_nn_multi_head_attention(h, (dt_tensor){0}, "attention", 4, &layer));
    h = dt_nn_rms_norm(x, "rms", 1);
    x = dt_add(x, dt_nn_linear(dt_gelu_tanh(dt_nn_linear(h, "up", 32)), "down", 16));
    onnx_out(&net, dt_nn_linear(x, "head", 11), "logits");
    onnx_add(j, "gpt", &net);
    dt_ctx_destroy(net.ctx);
}

static void onnx_add_recurrent(onnx_job *j, int kind) {
    static const char *const names[] = {"lstm", "gru", "rnn"};
    onnx_net net;
    onnx_open(&net);
    net.x[0] = dt_input(net.g, "x", DT_F32, dt_dims(6, 4));
    net.x[1] = dt_input(net.g, "lengths", DT_I32, dt_dims());
    const dt_recurrent_desc desc = {
        .layers = 2, .bidirectional = true, .lengths = net.x[1], .relu = kind == 2};
    dt_recurrent r = kind == 0   ? dt_nn_lstm(net.x[0], "r", 5, &desc)
                     : kind == 1 ? dt_nn_gru(net.x[0], "r", 5, &desc)
                                 : dt_nn_rnn(net.x[0], "r", 5, &desc);
    onnx_out(&net, r.y, "y");
    onnx_out(&net, r.h, "h");
    if (kind == 0)
        onnx_out(&net, r.c, "c");
    onnx_add(j, names[kind], &net);
    dt_ctx_destroy(net.ctx);
}

TEST(onnx_of_networks_computes_the_same_outputs) {
    onnx_job j;
    if (!onnx_python())
        SKIP(ONNX_SKIP);
    REQUIRE(onnx_begin(&j));
    onnx_add_mlp(&j);
    onnx_add_resnet(&j);
    onnx_add_gpt(&j);
    for (int kind = 0; kind < 3; kind++)
        onnx_add_recurrent(&j, kind);
    CHECK(j.cases == 6);
    onnx_end(&j);
}

/* ---- random graphs */

/* The last tensor of the model that can be written; 0 after none. Its number of rows by op. */
static int onnx_written(const rnd_device *d, const char *path, int *rows) {
    for (int i = d->m->count - 1; i >= 0; i--) {
        const dt_tensor y = d->b.at[i];
        const dti_node *n = dti_node_of(y);
        if (n->term || n->dtype != DT_F32 || rnd_is_leaf(d->m->stmts[i].kind))
            continue;
        const dt_result result =
            dt_onnx_save(d->store, path, &(dt_onnx_desc){.outputs = {y}, .names = {"y"}});
        if (result == DT_OK)
            return i;
        CHECK(result == DT_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(dt_ctx_error(d->b.ctx), "dt_onnx_save: ");
    }
    (void)rows;
    return -1;
}

static void onnx_random_inputs(onnx_job *j, rnd_device *d, dt_program *p) {
    bool first = true;
    rnd_write_inputs(d, p, 0, d->m->batch);
    for (int i = 0; i < d->m->count; i++) {
        size_t bytes;
        char name[16];
        if (!rnd_is_input(d->m->stmts[i].kind))
            continue;
        void *words = rnd_words(d->m, i, 0, d->m->batch, &bytes);
        snprintf(name, sizeof name, "x%d", i);
        fprintf(j->list, "%s", first ? "" : ", ");
        onnx_tensor(j, name, d->b.at[i], d->m->batch, words);
        first = false;
        free(words);
    }
}

static bool onnx_random_case(onnx_job *j, rnd_device *d, uint64_t seed) {
    const int i = onnx_written(d, j->model_path, NULL);
    const dt_program_desc desc = {.batch = d->m->batch, .outputs = {d->b.at[i < 0 ? 0 : i]}};
    dt_program *p = NULL;
    if (i < 0 || dt_program_create(d->store, &desc, &p))
        return false;
    const dti_node *n = dti_node_of(d->b.at[i]);
    const size_t bytes =
        (size_t)(dti_shape_elements(n->shape) * (n->samples ? d->m->batch : 1)) * 4;
    float *y = malloc(bytes + 4);
    fprintf(j->list, "%s{\"name\": \"%llu\", \"model\": ", j->cases++ ? ",\n" : "",
            (unsigned long long)seed);
    onnx_file(j);
    fprintf(j->list, ", \"inputs\": [");
    onnx_random_inputs(j, d, p);
    CHECK(dt_program_run(p, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(p, d->b.at[i], y, bytes) == DT_OK);
    fprintf(j->list, "], \"outputs\": [");
    onnx_tensor(j, "y", d->b.at[i], d->m->batch, y);
    fprintf(j->list, "]}");
    free(y);
    return true;
}

TEST(onnx_of_random_graphs_computes_the_same_outputs) {
    static const rnd_way cpu = {"cpu", "cpu", .threads = 1, .cpu = true};
    static rnd_model m;
    onnx_job j;
    const long first = rnd_env("DTRAIN_RANDOM_SEED", 1);
    const long asked = rnd_env("DTRAIN_RANDOM_COUNT", RND_SEEDS);
    const long count = asked < ONNX_SEEDS_MAX ? asked : ONNX_SEEDS_MAX;
    if (!onnx_python())
        SKIP(ONNX_SKIP);
    REQUIRE(onnx_begin(&j));
    for (long i = 0; i < count; i++) {
        rnd_fault fault = {{0}};
        rnd_device d;
        char error[512];
        if (!rnd_make(&m, (uint64_t)(first + i), true, error))
            continue;
        if (rnd_device_open(&d, &m, &cpu, &fault))
            onnx_random_case(&j, &d, (uint64_t)(first + i));
        rnd_device_close(&d);
    }
    test_check(j.cases * 2 > count, __FILE__, __LINE__, "%d of %ld models are written", j.cases,
               count);
    onnx_end(&j);
}

/* ---- what is refused */

static void onnx_refuses(onnx_net *net, dt_tensor y, const char *text) {
    const dt_onnx_desc desc = {.outputs = {y}, .names = {"y"}};
    const char *path = temp_path("refused.onnx");
    dt_store *store = NULL;
    REQUIRE(dt_store_create(net->g, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    CHECK(dt_onnx_save(store, path, &desc) == DT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dt_ctx_error(net->ctx), text);
    CHECK(access(path, F_OK) != 0);
    dt_store_destroy(store);
}

TEST(onnx_refuses_ops_without_an_equivalent_by_name) {
    onnx_net net;
    onnx_open(&net);
    dt_tensor x = dt_input(net.g, "x", DT_F32, dt_dims(3, 5, 5));
    dt_tensor t = dt_input(net.g, "t", DT_F32, dt_dims(3, 5, 5));
    dt_tensor noise = dt_label(dt_random_normal(x), "noise");
    onnx_refuses(&net, dt_label(dt_erfinv(x), "odd"), "erfinv, 'odd' [B, 3, 5, 5]");
    onnx_refuses(&net, dt_add(x, noise), "random");
    onnx_refuses(&net, dt_adaptive_avg_pool2d(x, 2, 2), "avg_pool2d");
    onnx_refuses(&net, dt_mse(x, t), "loss");
    onnx_refuses(&net, dt_cast(dt_add(dt_cast(x, DT_BF16), dt_cast(x, DT_BF16)), DT_F32), "bf16");
    dt_ctx_destroy(net.ctx);
}

TEST(onnx_names_are_unique_for_each_tensor) {
    onnx_net net;
    dt_store *store;
    onnx_open(&net);
    dt_tensor x = dt_input(net.g, "w", DT_F32, dt_dims(2));
    dt_tensor w = dt_param(net.g, "w", dt_dims(2), (dt_init){0});
    dt_tensor y = dt_input(net.g, "dt:1", DT_F32, dt_dims(2));
    const char *path = temp_path("names.onnx");
    REQUIRE(dt_store_create(net.g, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    const dt_onnx_desc wrong[] = {{.outputs = {dt_add(x, w)}},
                                  {.outputs = {dt_neg(x)}, .names = {"w"}},
                                  {.outputs = {dt_neg(x), dt_abs(x)}, .names = {"a", "a"}},
                                  {.outputs = {dt_neg(y)}},
                                  {.outputs = {dt_neg(x)}, .names = {""}},
                                  {.outputs = {dt_neg(x)}, .names = {"a", "b"}},
                                  {.outputs = {{0}}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(dt_onnx_save(store, path, &wrong[i]) == DT_ERROR_INVALID);
    CHECK(dt_onnx_save(store, path, &(dt_onnx_desc){.outputs = {dt_neg(x)}}) == DT_OK);
    CHECK(dt_onnx_save(store, "/nowhere/x.onnx", &(dt_onnx_desc){.outputs = {dt_neg(w)}}) ==
          DT_ERROR_IO);
    dt_ctx_destroy(net.ctx);
}
