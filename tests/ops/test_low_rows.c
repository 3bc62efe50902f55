/* Mixed precision of rows that round inside: attention, recurrent layers and convolutions with
 * their gradients. Values are bf16's of the same model in f32 within a bound; bits are the same for
 * every set of instructions that has FMA, and for any number of threads. */
#include "harness.h"

enum { LOW_BATCH = 3, LOW_STEPS = 70, LOW_WIDTH = 120 };

typedef dt_tensor low_model_fn(dt_tensor x);

/* x: [steps, width]. 4 heads of q and 2 of k and v, of 15: no power of two scales their scores. */
static dt_tensor low_attention_of(dt_tensor x, dt_attention_desc desc) {
    dt_tensor part[3];
    for (int i = 0, at = 0; i < 3; i++) {
        const int heads = i ? 2 : 4;
        part[i] = dt_reshape(dt_slice(x, 1, at * 15, heads * 15), dt_dims(LOW_STEPS, heads, 15));
        part[i] = dt_permute(part[i], dt_dims(1, 0, 2));
        at += heads;
    }
    return dt_attention(part[0], part[1], part[2], &desc);
}

static dt_tensor low_attention(dt_tensor x) {
    return low_attention_of(x, (dt_attention_desc){.causal = true});
}

static dt_tensor low_attention_masked(dt_tensor x) {
    const dt_tensor mask = dt_slice(x, 1, 0, LOW_STEPS);
    return low_attention_of(x, (dt_attention_desc){.window = 20, .alibi = true, .mask = mask});
}

static dt_tensor low_lstm(dt_tensor x) {
    return dt_nn_lstm(x, "lstm", 33, &(dt_recurrent_desc){.projection = 20, .bidirectional = true})
        .y;
}

static dt_tensor low_gru(dt_tensor x) {
    return dt_nn_gru(x, "gru", 40, NULL).y;
}

static dt_tensor low_rnn(dt_tensor x) {
    return dt_nn_rnn(x, "rnn", 40, NULL).y;
}

static dt_tensor low_weight(dt_tensor x, const char *name, dt_shape shape) {
    return dt_param(x.graph, name, shape, (dt_init){DT_INIT_NORMAL, 0.0f, 0.1f});
}

static dt_tensor low_conv(dt_tensor x) {
    dt_tensor h = dt_reshape(x, dt_dims(6, 35, 40));
    dt_conv_desc d = {.stride = {2, 1}, .padding = {1, 2}};
    h = dt_relu(dt_conv2d(h, low_weight(x, "w1", dt_dims(40, 6, 3, 3)),
                          low_weight(x, "b1", dt_dims(40)), &d));
    d = (dt_conv_desc){.groups = 4, .dilation = {1, 2}};
    h = dt_conv2d(h, low_weight(x, "w2", dt_dims(20, 10, 2, 3)), (dt_tensor){0}, &d);
    d = (dt_conv_desc){.stride = {2, 3}, .padding = {1, 0}};
    return dt_conv_transpose2d(h, low_weight(x, "w3", dt_dims(20, 3, 3, 3)),
                               low_weight(x, "b3", dt_dims(3)), &d);
}

typedef struct low_case {
    const char *name;
    low_model_fn *make;
    int64_t rows, cols;
    double bound; /* of the errors' norm, in units of the values' */
} low_case;

/* bf16 rounds to 2^-9; in the adjoint of relu elements change sides. */
static const low_case low_cases[] = {
    {"attention", low_attention, LOW_STEPS, LOW_WIDTH, 0x1p-8},
    {"attention, masked", low_attention_masked, LOW_STEPS, LOW_WIDTH, 0x1p-8},
    {"lstm", low_lstm, 20, 24, 0x1p-7},
    {"gru", low_gru, 20, 24, 0x1p-7},
    {"rnn", low_rnn, 20, 24, 0x1p-7},
    {"conv", low_conv, 6 * 35, 40, 0x1p-5},
};

enum { LOW_PARAMS = 3, LOW_OUTPUTS = 2 + LOW_PARAMS };

typedef struct low_results {
    int64_t n[LOW_OUTPUTS];
    float *value[LOW_OUTPUTS]; /* y, dx, gradients of the first parameters */
} low_results;

static void low_free(low_results *r) {
    for (int i = 0; i < LOW_OUTPUTS; i++)
        free(r->value[i]);
}

/* Of the samples together. */
static int64_t low_elements(dt_tensor x, bool samples) {
    const dt_shape s = dt_tensor_shape(x);
    int64_t n = samples ? LOW_BATCH : 1;
    for (int i = 0; i < s.rank; i++)
        n *= s.dim[i];
    return n;
}

static bool low_run(dt_graph *g, const low_case *c, dt_precision precision, int isa,
                    low_results *r) {
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(c->rows, c->cols)), y = c->make(x);
    dt_tensor loss = dt_mean_loss(dt_square(y));
    dt_program_desc desc = {.batch = LOW_BATCH, .precision = precision};
    int count = 0;
    desc.outputs[count++] = y;
    desc.outputs[count++] = dt_gradient(loss, x);
    for (uint32_t id = 1; id < y.id && count < LOW_OUTPUTS; id++)
        if (g->nodes[id].op == DTI_OP_PARAM)
            desc.outputs[count++] = dt_gradient(loss, (dt_tensor){g, id});
    dt_store *store;
    dt_program *program;
    if (dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &store))
        return false;
    ((dti_cpu_device *)(void *)store->device)->kernels = dti_isa_kernels_select(isa);
    if (dt_program_create(store, &desc, &program))
        return false;
    const int64_t n = low_elements(x, true);
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)(2 * dti_uniform01(7, (uint64_t)i, 0) - 1);
    bool good = !dt_program_write(program, x, values, (size_t)n * sizeof *values) &&
                !dt_program_run(program, NULL, NULL);
    free(values);
    for (int i = 0; i < count && good; i++) {
        r->n[i] = low_elements(desc.outputs[i], i < 2);
        r->value[i] = malloc((size_t)r->n[i] * sizeof(float));
        good = !dt_program_read(program, desc.outputs[i], r->value[i],
                                (size_t)r->n[i] * sizeof(float));
    }
    return good;
}

static low_results low_of(const low_case *c, dt_precision precision, int threads, int isa) {
    low_results r = {0};
    dt_ctx *ctx;
    dt_graph *g;
    if (dt_ctx_create(&(dt_ctx_desc){.threads = threads, .no_vulkan = true}, &ctx))
        return r;
    const bool good = !dt_graph_create(ctx, &g) && low_run(g, c, precision, isa, &r);
    test_check(good, __FILE__, __LINE__, "%s: %s", c->name, dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
    return r;
}

TEST(rows_in_bf16_give_values_and_gradients_of_f32_within_their_bound) {
    for (size_t i = 0; i < DTI_COUNT(low_cases); i++) {
        const low_case *c = &low_cases[i];
        low_results low = low_of(c, DT_PRECISION_BF16, 2, DTI_ISA_AVX512);
        low_results full = low_of(c, DT_PRECISION_F32, 2, DTI_ISA_AVX512);
        for (int k = 0; k < LOW_OUTPUTS && low.value[k] && full.value[k]; k++) {
            double off = 0, all = 0;
            for (int64_t e = 0; e < low.n[k]; e++) {
                const double y = (double)full.value[k][e], d = (double)low.value[k][e] - y;
                off += d * d;
                all += y * y;
            }
            off = sqrt(off / all);
            test_check(off > 0 && off <= c->bound, __FILE__, __LINE__,
                       "%s, output %d: off by %.3g of its norm", c->name, k, off);
        }
        low_free(&low);
        low_free(&full);
    }
}

TEST(rows_in_bf16_have_the_same_bits_on_every_set_and_for_any_number_of_threads) {
    static const struct {
        int threads, isa;
    } ways[] = {{1, INT_MAX}, {3, DTI_ISA_AVX512}, {2, DTI_ISA_AVX2}};
    if (dti_isa_select(DTI_ISA_AVX2) != DTI_ISA_AVX2)
        SKIP("one class of instruction sets only");
    for (size_t i = 0; i < DTI_COUNT(low_cases); i++) {
        low_results first = low_of(&low_cases[i], DT_PRECISION_BF16, 1, DTI_ISA_AVX2);
        for (size_t way = 0; way < DTI_COUNT(ways); way++) {
            low_results other =
                low_of(&low_cases[i], DT_PRECISION_BF16, ways[way].threads, ways[way].isa);
            for (int k = 0; k < LOW_OUTPUTS && first.value[k] && other.value[k]; k++)
                test_check(
                    !memcmp(first.value[k], other.value[k], (size_t)first.n[k] * sizeof(float)),
                    __FILE__, __LINE__, "%s, output %d: %d threads, set %d", low_cases[i].name, k,
                    ways[way].threads, ways[way].isa);
            low_free(&other);
        }
        low_free(&first);
    }
}
