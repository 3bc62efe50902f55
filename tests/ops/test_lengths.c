/* Sums over lengths that data decide, from 1 to 2^26. Each row of the table makes a graph for a
 * length n, and its results in double; the error may grow with log n at most. Values are equal,
 * ones, random, or of both signs with a small rest. In mixed precision the inputs are bf16, and the
 * same bound holds, but for roundings of operands and results. Included by main.c. */

enum { LENGTH_OUTS = 8, LENGTH_INPUTS = 3 };

typedef enum length_values {
    LENGTH_EQUAL,
    LENGTH_ONES,
    LENGTH_RANDOM,
    LENGTH_SIGNS,
    LENGTH_VALUES
} length_values;

static const char *const length_values_names[] = {"equal", "ones", "random", "signs"};

typedef struct length_case {
    int64_t n;
    int batch; /* 0 = 1 */
    dt_graph *graph;
    dt_tensor input[LENGTH_INPUTS];
    dt_tensor in[LENGTH_INPUTS], y, term; /* in: as rows take it; y: what is read; or a term: its
                                             value */
    dt_tensor param;                      /* its gradient's norm is looked at */
    float *x[LENGTH_INPUTS];              /* the inputs' values */
    int64_t size[LENGTH_INPUTS];
    int outs;
    double want[LENGTH_OUTS], room[LENGTH_OUTS]; /* room: the sizes of the addends */
} length_case;

typedef struct length_row {
    const char *name;
    void (*build)(length_case *c);
    void (*expect)(length_case *c);
    int most;     /* the longest: 2 to the power of it */
    double bound; /* the error is at most (bound + log2 n) 2^-24 of the room */
    int least;    /* the shortest, where it is not 1 */
    double low;   /* more in mixed precision, in roundings to bf16 of an addend or result */
} length_row;

#define LENGTH_CHAIN 0x1p-6 /* of a rounding to bf16: more than 512 additions in f32 */
static bool length_mixed;   /* in mixed precision, of bf16 inputs */

static float length_value(length_values values, int64_t i) {
    uint32_t h = (uint32_t)i * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    switch (values) {
    case LENGTH_EQUAL: return 0.1f;
    case LENGTH_ONES: return 1.0f;
    case LENGTH_RANDOM: return (float)(int32_t)(h ^ h >> 16) * 0x1p-31f;
    default: return (i % 2 ? -1.1f : 1.1f) + 0.0001f;
    }
}

/* A value that bf16 has. */
static float length_low(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- what rows are made of. Input k: of `size` elements in all, all samples together. */

static void length_in(length_case *c, int k, int64_t size, dt_shape shape, bool samples) {
    const char name[] = {'x', (char)('0' + k), 0};
    c->input[k] = samples ? dt_input(c->graph, name, DT_F32, shape)
                          : dt_input_shared(c->graph, name, DT_F32, shape);
    c->in[k] = length_mixed ? dt_cast(dt_cast(c->input[k], DT_BF16), DT_F32) : c->input[k];
    c->size[k] = size;
}

/* The first LENGTH_OUTS elements of a tensor without samples. */
static void length_out(length_case *c, dt_tensor y, int outs) {
    const dt_shape s = dt_tensor_shape(y);
    int64_t all = 1;
    for (int i = 0; i < s.rank; i++)
        all *= s.dim[i];
    c->outs = outs;
    c->y = dt_reshape(y, dt_dims(all));
    if (all > outs)
        c->y = dt_slice(c->y, 0, 0, outs);
}

/* Column j of x[n][cols]: the sum of f(x), and its size, into result `to`. */
static void length_add(length_case *c, int to, double x) {
    c->want[to] += x;
    c->room[to] += fabs(x);
}

static void length_sum_columns(length_case *c, double scale) {
    const int64_t cols = c->outs;
    for (int64_t i = 0; i < c->size[0]; i++)
        length_add(c, (int)(i % cols), scale * (double)c->x[0][i]);
}

/* ---- sums over axes */

static void length_sum_inner(length_case *c) {
    length_in(c, 0, 2 * c->n, dt_dims(2, c->n), false);
    length_out(c, dt_sum(c->in[0], dt_dims(1), false), 2);
}

static void length_sum_rows(length_case *c) {
    for (int64_t i = 0; i < c->size[0]; i++)
        length_add(c, (int)(i / c->n), (double)c->x[0][i]);
}

static void length_sum_one(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_out(c, dt_sum(c->in[0], dt_dims(), false), 1);
}

static void length_columns(length_case *c) {
    length_sum_columns(c, 1);
}

static void length_sum_outer(length_case *c) {
    length_in(c, 0, 6 * c->n, dt_dims(c->n, 6), false);
    length_out(c, dt_sum(c->in[0], dt_dims(0), false), 6);
}

static void length_sum_strided(length_case *c) {
    length_in(c, 0, 3 * c->n, dt_dims(c->n, 3), false);
    length_out(c, dt_sum(c->in[0], dt_dims(0), false), 3);
}

static void length_sum_ends(length_case *c) {
    length_in(c, 0, 4 * c->n, dt_dims(c->n, 2, 2), false);
    length_out(c, dt_sum(c->in[0], dt_dims(0, 2), false), 2);
}

static void length_sum_ends_want(length_case *c) {
    for (int64_t i = 0; i < c->size[0]; i++)
        length_add(c, (int)(i / 2 % 2), (double)c->x[0][i]);
}

static void length_sum_ends_long(length_case *c) {
    length_in(c, 0, 6 * c->n, dt_dims(2, 3, c->n), false);
    length_out(c, dt_sum(c->in[0], dt_dims(0, 2), false), 3);
}

static void length_sum_ends_long_want(length_case *c) {
    for (int64_t i = 0; i < c->size[0]; i++)
        length_add(c, (int)(i / c->n % 3), (double)c->x[0][i]);
}

static void length_mean(length_case *c) {
    length_in(c, 0, 5 * c->n, dt_dims(c->n, 5), false);
    length_out(c, dt_mean(c->in[0], dt_dims(0), false), 5);
}

static void length_mean_want(length_case *c) {
    length_sum_columns(c, 1.0 / (double)c->n);
}

static void length_var(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_out(c, dt_var(c->in[0], dt_dims(), false, false), 1);
}

static void length_var_outer(length_case *c) {
    length_in(c, 0, 4 * c->n, dt_dims(c->n, 4), false);
    length_out(c, dt_var(c->in[0], dt_dims(0), false, false), 4);
}

static void length_moments(const float *x, int64_t n, int64_t step, double *mean, double *var) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i * step];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)x[i * step] - *mean) * ((double)x[i * step] - *mean);
    *var = squares / (double)n;
}

static void length_var_want(length_case *c) {
    for (int j = 0; j < c->outs; j++) {
        double mean;
        length_moments(c->x[0] + j, c->n, c->outs, &mean, &c->want[j]);
        c->room[j] = c->want[j] + 1e-6 * mean * mean;
    }
}

static void length_cumsum(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_out(c, dt_slice(dt_cumsum(c->in[0], 0), 0, c->n - 1, 1), 1);
}

static void length_samples(length_case *c) {
    c->batch = (int)c->n;
    length_in(c, 0, 5 * c->n, dt_dims(5), true);
    length_out(c, dt_sum_samples(c->in[0]), 5);
}

static void length_samples_of_one(length_case *c) {
    c->batch = (int)c->n;
    length_in(c, 0, c->n, dt_dims(), true);
    length_out(c, dt_sum_samples(c->in[0]), 1);
}

/* ---- gradients. x is weighted by c, so that each has products to add. */

static dt_tensor length_param(length_case *c, const char *name, dt_shape shape, float value) {
    return dt_param(c->graph, name, shape, (dt_init){DT_INIT_CONSTANT, value, 0});
}

/* The gradient of sum(y * in[1]) in p. */
static void length_grad(length_case *c, dt_tensor y, dt_tensor p, int outs) {
    length_out(c, dt_gradient(dt_mul(y, c->in[1]), p), outs);
}

/* Nothing that is computed reads input 0: a bias's gradient does not. */
static void length_no_x(length_case *c) {
    c->size[0] = 0;
}

static void length_linear(length_case *c, bool bias) {
    c->batch = (int)c->n;
    length_in(c, 0, 2 * c->n, dt_dims(2), true);
    length_in(c, 1, 4 * c->n, dt_dims(4), true);
    const dt_tensor w = length_param(c, "w", dt_dims(4, 2), 0.5f);
    const dt_tensor b = length_param(c, "b", dt_dims(4), 0.5f);
    length_grad(c, dt_linear(c->in[0], w, b), bias ? b : w, bias ? 4 : 8);
}

static void length_linear_b(length_case *c) {
    length_linear(c, true);
    length_no_x(c);
}

static void length_linear_b_want(length_case *c) {
    for (int64_t i = 0; i < c->size[1]; i++)
        length_add(c, (int)(i % c->outs), (double)c->x[1][i]);
}

static void length_linear_w(length_case *c) {
    length_linear(c, false);
}

static void length_linear_w_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++)
        for (int j = 0; j < 8; j++)
            length_add(c, j, (double)c->x[0][2 * i + j % 2] * (double)c->x[1][4 * i + j / 2]);
}

static void length_broadcast(length_case *c) {
    c->batch = (int)c->n;
    length_in(c, 0, 4 * c->n, dt_dims(2, 2), true);
    length_in(c, 1, 4 * c->n, dt_dims(2, 2), true);
    const dt_tensor p = length_param(c, "p", dt_dims(1, 2), 0.5f);
    length_grad(c, dt_mul(c->in[0], p), p, 2);
}

static void length_broadcast_want(length_case *c) {
    for (int64_t i = 0; i < c->size[0]; i++)
        length_add(c, (int)(i % 2), (double)(c->x[0][i] * c->x[1][i]));
}

static void length_matmul(length_case *c) {
    length_in(c, 0, 2 * c->n, dt_dims(2, c->n), false);
    length_in(c, 1, 4 * c->n, dt_dims(c->n, 4), false);
    length_out(c, dt_matmul(c->in[0], c->in[1]), 8);
}

static void length_matmul_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++)
        for (int j = 0; j < 8; j++)
            length_add(c, j, (double)c->x[0][j / 4 * c->n + i] * (double)c->x[1][4 * i + j % 4]);
}

/* Images of n pixels, of rows of up to 1024. */
static dt_shape length_image(const length_case *c, int64_t channels) {
    const int64_t width = c->n % 1024 ? c->n : 1024;
    return dt_dims(channels, c->n / width, width);
}

static void length_conv(length_case *c, int channels, bool bias) {
    length_in(c, 0, 2 * c->n, length_image(c, 2), true);
    length_in(c, 1, channels * c->n, length_image(c, channels), true);
    const dt_tensor w = length_param(c, "w", dt_dims(channels, 2, 1, 1), 0.5f);
    const dt_tensor b = length_param(c, "b", dt_dims(channels), 0.5f);
    length_grad(c, dt_conv2d(c->in[0], w, b, NULL), bias ? b : w, bias ? channels : 2 * channels);
}

static void length_conv_b(length_case *c) {
    length_conv(c, 2, true);
    length_no_x(c);
}

static void length_conv_b_want(length_case *c) {
    for (int64_t i = 0; i < c->size[1]; i++)
        length_add(c, (int)(i / c->n), (double)c->x[1][i]);
}

static void length_conv_w_few(length_case *c) {
    length_conv(c, 2, false);
}

static void length_conv_w(length_case *c) {
    length_conv(c, 4, false);
}

static void length_conv_w_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++)
        for (int j = 0; j < c->outs; j++)
            length_add(c, j, (double)c->x[0][j % 2 * c->n + i] * (double)c->x[1][j / 2 * c->n + i]);
}

/* The same number of images of 1 pixel. */
static void length_conv_samples(length_case *c) {
    c->batch = (int)c->n;
    length_in(c, 0, 2 * c->n, dt_dims(2, 1, 1), true);
    length_in(c, 1, 4 * c->n, dt_dims(4, 1, 1), true);
    const dt_tensor w = length_param(c, "w", dt_dims(4, 2, 1, 1), 0.5f);
    length_grad(c, dt_conv2d(c->in[0], w, (dt_tensor){0}, NULL), w, 8);
}

static void length_gather(length_case *c) {
    c->batch = (int)c->n;
    length_in(c, 0, c->n, dt_dims(), true); /* not used: all look at row 1 */
    length_in(c, 1, 4 * c->n, dt_dims(4), true);
    const dt_tensor table = length_param(c, "t", dt_dims(3, 4), 0.5f);
    const dt_tensor row = dt_cast(dt_affine(c->in[0], 0.0f, 1.0f), DT_I32);
    const dt_tensor y = dt_mul(dt_embedding(table, row), c->in[1]);
    length_out(c, dt_slice(dt_gradient(y, table), 0, 1, 1), 4);
}

/* ---- norms */

static void length_layer_norm(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_out(c, dt_layer_norm(c->in[0], 1, (dt_tensor){0}, (dt_tensor){0}, 0.01f),
               (int)(c->n < LENGTH_OUTS ? c->n : LENGTH_OUTS));
}

static void length_group_norm(length_case *c) {
    length_in(c, 0, 2 * c->n, dt_dims(2, c->n), true);
    const dt_tensor y = dt_group_norm(c->in[0], 2, (dt_tensor){0}, (dt_tensor){0}, 0.01f);
    length_out(c, dt_sum_samples(y), (int)(c->n < LENGTH_OUTS ? c->n : LENGTH_OUTS));
}

static void length_norm_want(length_case *c) {
    double mean, var;
    length_moments(c->x[0], c->n, 1, &mean, &var);
    for (int i = 0; i < c->outs; i++) {
        const double factor = 1 / sqrt(var + (double)0.01f);
        c->want[i] = ((double)c->x[0][i] - mean) * factor;
        c->room[i] = 1 + (fabs((double)c->x[0][i]) + fabs(mean)) * factor;
    }
}

static void length_rms_norm(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_out(c, dt_rms_norm(c->in[0], 1, (dt_tensor){0}, 0.01f),
               (int)(c->n < LENGTH_OUTS ? c->n : LENGTH_OUTS));
}

static void length_rms_norm_want(length_case *c) {
    double mean, var;
    length_moments(c->x[0], c->n, 1, &mean, &var);
    for (int i = 0; i < c->outs; i++) {
        c->want[i] = (double)c->x[0][i] / sqrt(var + mean * mean + (double)0.01f);
        c->room[i] = fabs(c->want[i]);
    }
}

/* Gradients of w (x - mean) / deviation + b: w's, then b's. */
static void length_norm_grads(length_case *c, dt_tensor y, dt_tensor w, dt_tensor b) {
    const dt_tensor of = dt_mul(y, c->in[1]);
    const dt_tensor both[2] = {dt_gradient(of, w), dt_gradient(of, b)};
    length_out(c, dt_concat(both, 2, 0), 8);
}

static void length_layer_norm_dw(length_case *c) {
    c->batch = (int)c->n;
    length_in(c, 0, 4 * c->n, dt_dims(4), true);
    length_in(c, 1, 4 * c->n, dt_dims(4), true);
    const dt_tensor w = length_param(c, "w", dt_dims(4), 0.5f);
    const dt_tensor b = length_param(c, "b", dt_dims(4), 0.5f);
    length_norm_grads(c, dt_layer_norm(c->in[0], 1, w, b, 0.01f), w, b);
}

static void length_layer_norm_dw_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++) {
        double mean, var;
        length_moments(c->x[0] + 4 * i, 4, 1, &mean, &var);
        for (int j = 0; j < 4; j++) {
            const double g = (double)c->x[1][4 * i + j], factor = 1 / sqrt(var + (double)0.01f);
            const double x = (double)c->x[0][4 * i + j];
            c->want[j] += g * (x - mean) * factor;
            c->room[j] += fabs(g) * (fabs(x) + fabs(mean)) * factor;
            length_add(c, 4 + j, g);
        }
    }
}

static void length_group_norm_dw(length_case *c) {
    length_in(c, 0, 4 * c->n, dt_dims(4, c->n), true);
    length_in(c, 1, 4 * c->n, dt_dims(4, c->n), true);
    const dt_tensor w = length_param(c, "w", dt_dims(4), 0.5f);
    const dt_tensor b = length_param(c, "b", dt_dims(4), 0.5f);
    length_norm_grads(c, dt_group_norm(c->in[0], 4, w, b, 0.01f), w, b);
}

/* Channel j of x: from `begin`, `step` apart. */
static void length_norm_dw_of(length_case *c, int j, int64_t begin, int64_t step) {
    const float *x = c->x[0] + begin, *g = c->x[1] + begin;
    double mean, var;
    length_moments(x, c->n, step, &mean, &var);
    const double factor = 1 / sqrt(var + (double)0.01f);
    for (int64_t i = 0; i < c->n; i++) {
        const double each = (double)g[i * step], at = (double)x[i * step];
        c->want[j] += each * (at - mean) * factor;
        c->room[j] += fabs(each) * (fabs(at) + fabs(mean)) * factor;
        length_add(c, 4 + j, each);
    }
}

static void length_group_norm_dw_want(length_case *c) {
    for (int j = 0; j < 4; j++)
        length_norm_dw_of(c, j, j * c->n, 1);
}

static void length_batch_norm_dw_of(length_case *c, dt_shape shape) {
    length_in(c, 0, 4 * c->n, shape, true);
    length_in(c, 1, 4 * c->n, shape, true);
    const dt_tensor w = length_param(c, "w", dt_dims(4), 0.5f);
    const dt_tensor b = length_param(c, "b", dt_dims(4), 0.5f);
    const dt_tensor mean = dt_buffer(c->graph, "m", dt_dims(4), (dt_init){0});
    const dt_tensor var = dt_buffer(c->graph, "v", dt_dims(4), (dt_init){0});
    const dt_batch_norm_desc desc = {.eps = 0.01f, .frozen = true};
    length_norm_grads(c, dt_batch_norm(c->in[0], w, b, mean, var, &desc), w, b);
}

static void length_batch_norm_dw(length_case *c) {
    c->batch = (int)c->n;
    length_batch_norm_dw_of(c, dt_dims(4));
}

static void length_batch_norm_dw_want(length_case *c) {
    for (int j = 0; j < 4; j++)
        length_norm_dw_of(c, j, j, 4);
}

static void length_batch_norm_pixels_dw(length_case *c) {
    length_batch_norm_dw_of(c, dt_dims(4, c->n));
}

/* ---- long rows */

static void length_row_of(length_case *c, dt_tensor y) {
    length_out(c, y, (int)(c->n < LENGTH_OUTS ? c->n : LENGTH_OUTS));
}

/* log sum e^x */
static double length_log_sum(const length_case *c) {
    double sum = 0;
    for (int64_t i = 0; i < c->n; i++)
        sum += exp((double)c->x[0][i]);
    return log(sum);
}

static void length_softmax(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_row_of(c, dt_softmax(c->in[0], 0));
}

static void length_softmax_want(length_case *c) {
    const double all = length_log_sum(c);
    for (int i = 0; i < c->outs; i++)
        c->room[i] = c->want[i] = exp((double)c->x[0][i] - all);
}

static void length_log_softmax(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_row_of(c, dt_log_softmax(c->in[0], 0));
}

static void length_log_softmax_want(length_case *c) {
    const double all = length_log_sum(c);
    for (int i = 0; i < c->outs; i++) {
        c->want[i] = (double)c->x[0][i] - all;
        c->room[i] = 1 + fabs(c->want[i]);
    }
}

/* Gradients of x: from sum(y * in[1]). */
static void length_softmax_dx(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_in(c, 1, c->n, dt_dims(c->n), false);
    length_row_of(c, dt_gradient(dt_mul(dt_softmax(c->in[0], 0), c->in[1]), c->in[0]));
}

static void length_softmax_dx_want(length_case *c) {
    const double all = length_log_sum(c);
    double sum = 0, size = 0;
    for (int64_t i = 0; i < c->n; i++) {
        const double each = exp((double)c->x[0][i] - all) * (double)c->x[1][i];
        sum += each;
        size += fabs(each);
    }
    for (int i = 0; i < c->outs; i++) {
        const double y = exp((double)c->x[0][i] - all);
        c->want[i] = y * ((double)c->x[1][i] - sum);
        c->room[i] = y * (fabs((double)c->x[1][i]) + size);
    }
}

static void length_log_softmax_dx(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_in(c, 1, c->n, dt_dims(c->n), false);
    length_row_of(c, dt_gradient(dt_mul(dt_log_softmax(c->in[0], 0), c->in[1]), c->in[0]));
}

static void length_log_softmax_dx_want(length_case *c) {
    const double all = length_log_sum(c);
    double sum = 0, size = 0;
    for (int64_t i = 0; i < c->n; i++) {
        sum += (double)c->x[1][i];
        size += fabs((double)c->x[1][i]);
    }
    for (int i = 0; i < c->outs; i++) {
        const double y = exp((double)c->x[0][i] - all);
        c->want[i] = (double)c->x[1][i] - y * sum;
        c->room[i] = fabs((double)c->x[1][i]) + y * size;
    }
}

static void length_logsumexp(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_out(c, dt_logsumexp(c->in[0], dt_dims(), false), 1);
}

static void length_logsumexp_want(length_case *c) {
    c->want[0] = length_log_sum(c);
    c->room[0] = 1 + fabs(c->want[0]);
}

/* One row of n classes, of class 0. */
static void length_cross_entropy(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    c->term = dt_cross_entropy(c->in[0], dt_cast(dt_fill(c->graph, dt_dims(), 0), DT_I32), NULL);
}

static void length_cross_entropy_want(length_case *c) {
    c->want[0] = length_log_sum(c) - (double)c->x[0][0];
    c->room[0] = 1 + fabs(c->want[0]);
}

static void length_cross_entropy_smooth(length_case *c) {
    const dt_cross_entropy_desc desc = {.label_smoothing = 0.5f};
    length_in(c, 0, c->n, dt_dims(c->n), false);
    c->term = dt_cross_entropy(c->in[0], dt_cast(dt_fill(c->graph, dt_dims(), 0), DT_I32), &desc);
}

static void length_cross_entropy_smooth_want(length_case *c) {
    double sum = 0, size = 0;
    for (int64_t i = 0; i < c->n; i++) {
        sum += (double)c->x[0][i] / (double)c->n;
        size += fabs((double)c->x[0][i]) / (double)c->n;
    }
    c->want[0] = length_log_sum(c) - 0.5 * (double)c->x[0][0] - 0.5 * sum;
    c->room[0] = 1 + size + length_log_sum(c);
}

/* The same number of rows of 3 classes. */
static void length_cross_entropy_rows(length_case *c) {
    length_in(c, 0, 3 * c->n, dt_dims(c->n, 3), false);
    c->term =
        dt_cross_entropy(c->in[0], dt_cast(dt_fill(c->graph, dt_dims(c->n), 1), DT_I32), NULL);
}

static void length_cross_entropy_rows_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++) {
        const float *x = c->x[0] + 3 * i;
        const double sum = exp((double)x[0]) + exp((double)x[1]) + exp((double)x[2]);
        c->want[0] += (log(sum) - (double)x[1]) / (double)c->n;
        c->room[0] += (log(sum) + fabs((double)x[1])) / (double)c->n;
    }
}

/* One query over n keys of size 2. */
static void length_attention_of(length_case *c, bool gradient) {
    const dt_tensor q = length_param(c, "q", dt_dims(1, 1, 2), 0.25f);
    length_in(c, 0, 2 * c->n, dt_dims(1, c->n, 2), false);
    length_in(c, 1, 2 * c->n, dt_dims(1, c->n, 2), false);
    const dt_tensor y = dt_attention(q, c->in[0], c->in[1], NULL);
    length_out(c, gradient ? dt_gradient(y, q) : y, 2);
}

static void length_attention(length_case *c) {
    length_attention_of(c, false);
}

static void length_attention_dq(length_case *c) {
    length_attention_of(c, true);
}

static double length_score(const length_case *c, int64_t i) {
    return 0.25 / sqrt(2) * ((double)c->x[0][2 * i] + (double)c->x[0][2 * i + 1]);
}

static void length_attention_want(length_case *c) {
    double all = 0;
    for (int64_t i = 0; i < c->n; i++)
        all += exp(length_score(c, i));
    for (int64_t i = 0; i < c->n; i++)
        for (int j = 0; j < 2; j++)
            length_add(c, j, exp(length_score(c, i)) / all * (double)c->x[1][2 * i + j]);
}

static void length_attention_dq_want(length_case *c) {
    double all = 0, mean = 0, size = 0;
    for (int64_t i = 0; i < c->n; i++)
        all += exp(length_score(c, i));
    for (int64_t i = 0; i < c->n; i++) {
        const double v = (double)c->x[1][2 * i] + (double)c->x[1][2 * i + 1];
        const double both = fabs((double)c->x[1][2 * i]) + fabs((double)c->x[1][2 * i + 1]);
        mean += exp(length_score(c, i)) / all * v;
        size += exp(length_score(c, i)) / all * both;
    }
    for (int64_t i = 0; i < c->n; i++)
        for (int j = 0; j < 2; j++) {
            const double v = (double)c->x[1][2 * i] + (double)c->x[1][2 * i + 1];
            const double p = exp(length_score(c, i)) / all, k = (double)c->x[0][2 * i + j];
            c->want[j] += p * (v - mean) * k / sqrt(2);
            const double both = fabs((double)c->x[1][2 * i]) + fabs((double)c->x[1][2 * i + 1]);
            c->room[j] += p * (both + size) * fabs(k) / sqrt(2);
        }
}

/* n queries over 2 keys. */
static void length_attention_dv(length_case *c) {
    length_in(c, 0, 2 * c->n, dt_dims(1, c->n, 2), false);
    length_in(c, 1, 2 * c->n, dt_dims(1, c->n, 2), false);
    const dt_tensor k = length_param(c, "k", dt_dims(1, 2, 2), 0);
    const dt_tensor v = length_param(c, "v", dt_dims(1, 2, 2), 0.5f);
    length_grad(c, dt_attention(c->in[0], k, v, NULL), v, 4);
}

static void length_attention_dv_want(length_case *c) {
    for (int64_t i = 0; i < c->size[1]; i++)
        for (int key = 0; key < 2; key++)
            length_add(c, 2 * key + (int)(i % 2), 0.5 * (double)c->x[1][i]);
}

/* ---- planes */

static void length_pool(length_case *c) {
    length_in(c, 0, 2 * c->n, length_image(c, 2), false);
    const dt_shape s = length_image(c, 2);
    const dt_pool_desc desc = {.kernel = {(int32_t)s.dim[1], (int32_t)s.dim[2]}};
    length_out(c, dt_avg_pool2d(c->in[0], &desc), 2);
}

static void length_pool_whole(length_case *c) {
    length_in(c, 0, 2 * c->n, length_image(c, 2), false);
    length_out(c, dt_adaptive_avg_pool2d(c->in[0], 1, 1), 2);
}

static void length_pool_want(length_case *c) {
    for (int64_t i = 0; i < c->size[0]; i++)
        length_add(c, (int)(i / c->n), (double)c->x[0][i] / (double)c->n);
}

/* ---- losses, norms of gradients */

static void length_pair(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    length_in(c, 1, c->n, dt_dims(c->n), false);
}

static void length_mse(length_case *c) {
    length_pair(c);
    c->term = dt_mse(c->in[0], dt_affine(c->in[1], 2.0f, 1.0f));
}

static double length_off(const length_case *c, int64_t i) {
    return (double)(c->x[0][i] - (c->x[1][i] * 2.0f + 1.0f));
}

static void length_mse_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++)
        length_add(c, 0, length_off(c, i) * length_off(c, i) / (double)c->n);
}

static void length_l1(length_case *c) {
    length_pair(c);
    c->term = dt_mean_loss(dt_l1(c->in[0], dt_affine(c->in[1], 2.0f, 1.0f)));
}

static void length_l1_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++)
        length_add(c, 0, fabs(length_off(c, i)) / (double)c->n);
}

static void length_huber(length_case *c) {
    length_pair(c);
    c->term = dt_mean_loss(dt_huber(c->in[0], dt_affine(c->in[1], 2.0f, 1.0f), 1));
}

static void length_huber_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++) {
        const double d = fabs(length_off(c, i));
        length_add(c, 0, (d < 1 ? d * d / 2 : d - 0.5) / (double)c->n);
    }
}

static void length_bce(length_case *c) {
    length_pair(c);
    c->term = dt_mean_loss(dt_bce_with_logits(c->in[0], c->in[1], (dt_tensor){0}));
}

static void length_bce_want(length_case *c) {
    for (int64_t i = 0; i < c->n; i++) {
        const double x = (double)c->x[0][i], t = (double)c->x[1][i];
        c->want[0] += (log1p(exp(x)) - t * x) / (double)c->n;
        c->room[0] += (log1p(exp(x)) + fabs(t * x)) / (double)c->n;
    }
}

/* Weights are even numbers' squares and a half, so that none is negative. */
static void length_weighted(length_case *c) {
    length_pair(c);
    c->term = dt_weighted_loss(c->in[0], dt_affine(dt_square(c->in[1]), 1.0f, 0.5f));
}

static void length_weighted_want(length_case *c) {
    double all = 0;
    for (int64_t i = 0; i < c->n; i++)
        all += (double)c->x[1][i] * (double)c->x[1][i] + 0.5;
    for (int64_t i = 0; i < c->n; i++)
        length_add(c, 0,
                   (double)c->x[0][i] * ((double)c->x[1][i] * (double)c->x[1][i] + 0.5) / all);
}

/* Of 3 samples. So the gradient in p is a sum of 3, and its norm one of n squares. */
static void length_norm_of_gradient(length_case *c) {
    length_in(c, 0, c->n, dt_dims(c->n), false);
    c->param = length_param(c, "p", dt_dims(c->n), 0.5f);
    c->term = dt_mean_loss(dt_sum(dt_mul(c->in[0], c->param), dt_dims(), false));
}

static void length_norm_of_gradient_want(length_case *c) {
    double sum = 0;
    for (int64_t i = 0; i < c->n; i++)
        sum += (double)c->x[0][i] * (double)c->x[0][i];
    c->want[0] = c->room[0] = sqrt(sum);
}

static const length_row length_rows[] = {
    {"sum of a row", length_sum_inner, length_sum_rows, 25, 12, 1, 0},
    {"sum of all", length_sum_one, length_columns, 26, 12, 1, 0},
    {"sum of columns", length_sum_outer, length_columns, 24, 12, 1, 0},
    {"sum of three columns", length_sum_strided, length_columns, 24, 12, 1, 0},
    {"sum over both ends", length_sum_ends, length_sum_ends_want, 24, 12, 1, 0},
    {"sum over samples and pixels", length_sum_ends_long, length_sum_ends_long_want, 23, 12, 1, 0},
    {"mean", length_mean, length_mean_want, 24, 12, 1, 0},
    {"var", length_var, length_var_want, 24, 16, 1, 0},
    {"var of columns", length_var_outer, length_var_want, 24, 16, 1, 0},
    {"cumsum", length_cumsum, length_columns, 16, 12, 1, 0},
    {"sum over samples", length_samples, length_columns, 24, 12, 1, 0},
    {"sum over samples of one value", length_samples_of_one, length_columns, 26, 12, 1, 0},
    {"linear, bias", length_linear_b, length_linear_b_want, 23, 12, 1, 0},
    {"linear, weights", length_linear_w, length_linear_w_want, 23, 56, 1, LENGTH_CHAIN},
    {"broadcast parameter", length_broadcast, length_broadcast_want, 23, 12, 1, 0},
    {"matmul", length_matmul, length_matmul_want, 23, 56, 1, 2},
    {"conv, bias", length_conv_b, length_conv_b_want, 23, 12, 1, 0},
    {"conv, weights of few channels", length_conv_w_few, length_conv_w_want, 23, 16, 1,
     LENGTH_CHAIN},
    {"conv, weights", length_conv_w, length_conv_w_want, 22, 56, 1, LENGTH_CHAIN},
    {"conv, weights over samples", length_conv_samples, length_linear_w_want, 20, 56, 1,
     LENGTH_CHAIN},
    {"gather, table", length_gather, length_linear_b_want, 23, 12, 1, 0},
    {"layer norm", length_layer_norm, length_norm_want, 25, 16, 1, 0},
    {"group norm", length_group_norm, length_norm_want, 24, 16, 1, 0},
    {"rms norm", length_rms_norm, length_rms_norm_want, 25, 16, 1, 0},
    {"layer norm, w and b", length_layer_norm_dw, length_layer_norm_dw_want, 22, 16, 1, 0},
    {"group norm, w and b", length_group_norm_dw, length_group_norm_dw_want, 22, 16, 1, 0},
    {"batch norm of samples, w and b", length_batch_norm_dw, length_batch_norm_dw_want, 22, 16, 2,
     0},
    {"batch norm of pixels, w and b", length_batch_norm_pixels_dw, length_group_norm_dw_want, 22,
     16, 2, 0},
    {"softmax", length_softmax, length_softmax_want, 24, 16, 1, 0},
    {"log softmax", length_log_softmax, length_log_softmax_want, 24, 16, 1, 0},
    {"softmax, gradient", length_softmax_dx, length_softmax_dx_want, 24, 16, 1, 0},
    {"log softmax, gradient", length_log_softmax_dx, length_log_softmax_dx_want, 24, 16, 1, 0},
    {"logsumexp", length_logsumexp, length_logsumexp_want, 24, 16, 1, 0},
    {"cross-entropy of a row", length_cross_entropy, length_cross_entropy_want, 24, 16, 1, 0},
    {"cross-entropy, smoothed", length_cross_entropy_smooth, length_cross_entropy_smooth_want, 24,
     16, 1, 0},
    {"cross-entropy of rows", length_cross_entropy_rows, length_cross_entropy_rows_want, 23, 16, 1,
     0},
    {"attention", length_attention, length_attention_want, 22, 56, 1, 1},
    {"attention, queries", length_attention_dq, length_attention_dq_want, 22, 56, 1, 1},
    {"attention, values", length_attention_dv, length_attention_dv_want, 20, 56, 1, 2},
    {"average pool", length_pool, length_pool_want, 24, 12, 1, 0},
    {"average pool of a plane", length_pool_whole, length_pool_want, 24, 12, 1, 0},
    {"mse", length_mse, length_mse_want, 24, 12, 1, 0},
    {"l1", length_l1, length_l1_want, 24, 12, 1, 0},
    {"huber", length_huber, length_huber_want, 24, 12, 1, 0},
    {"bce with logits", length_bce, length_bce_want, 24, 16, 1, 0},
    {"weighted loss", length_weighted, length_weighted_want, 24, 12, 1, 0},
    {"norm of a gradient", length_norm_of_gradient, length_norm_of_gradient_want, 24, 12, 1, 0},
};

/* ---- the machine */

/* Runs the case with values of one kind. Returns the largest error as a share of the room; -1 = it
 * could not run. */
static double length_run(length_case *c, const length_row *row, dt_program *program,
                         length_values values) {
    float got[LENGTH_OUTS] = {0};
    double worst = 0;
    dt_report report;
    memset(c->want, 0, sizeof c->want);
    memset(c->room, 0, sizeof c->room);
    for (int k = 0; k < LENGTH_INPUTS; k++) {
        for (int64_t i = 0; i < c->size[k]; i++)
            c->x[k][i] = length_mixed ? length_low(length_value(values, i + 7 * k))
                                      : length_value(values, i + 7 * k);
        if (c->size[k] &&
            dt_program_write(program, c->input[k], c->x[k], (size_t)c->size[k] * sizeof(float)))
            return -1;
    }
    if (dt_program_run(program, NULL, &report))
        return -1;
    if (!c->term.graph && dt_program_read(program, c->y, got, (size_t)c->outs * sizeof *got))
        return -1;
    row->expect(c);
    for (int j = 0; j < (c->term.graph ? 1 : c->outs); j++) {
        const double y = c->param.graph  ? report.gradient_norm
                         : c->term.graph ? report.metric[0]
                                         : (double)got[j];
        const double off = y == c->want[j] ? 0 : fabs(y - c->want[j]) / c->room[j];
        worst = off <= worst ? worst : off; /* a NaN stays */
    }
    return worst;
}

static dt_result length_compile(length_case *c, const char *device, dt_program **program) {
    dt_store *store;
    dt_optim_desc optim = {.lr = DT_ZERO};
    dt_program_desc desc = {.batch = c->batch,
                            .mode = DT_MODE_TRAIN,
                            .precision = length_mixed ? DT_PRECISION_BF16 : DT_PRECISION_F32};
    dt_result result = dt_store_create(c->graph, &(dt_store_desc){.device = device}, &store);
    if (c->param.graph)
        desc.loss = c->term, desc.optim = &optim;
    else if (c->term.graph)
        desc.metrics[0] = c->term;
    else
        desc.outputs[0] = c->y;
    return result ? result : dt_program_create(store, &desc, program);
}

/* A driver that ends long loops has no such program; of lengths that its loops reach it has. */
static bool length_is_refused(const char *error, int64_t n) {
    return n > 65535 && (strstr(error, "ends them after") || strstr(error, "can bind at most"));
}

/* Returns the largest error as a share of the room. */
static double length_try(dt_ctx *ctx, const char *device, const length_row *row, int64_t n,
                         unsigned kinds, bool print) {
    length_case c = {.n = n};
    dt_program *program = NULL;
    const double low = length_mixed ? row->low * 0x1p-9 : 0;
    const double bound = (row->bound + log2((double)n)) * 0x1p-24 + low;
    double worst = 0;
    if (dt_graph_create(ctx, &c.graph))
        return -1;
    row->build(&c);
    const bool made = !length_compile(&c, device, &program);
    const bool refused = !made && length_is_refused(dt_ctx_error(ctx), n);
    for (int k = 0; k < LENGTH_INPUTS; k++)
        c.x[k] = malloc((size_t)(c.size[k] + 1) * sizeof(float));
    test_check(made || refused, __FILE__, __LINE__, "%s, %lld: %s", row->name, (long long)n,
               dt_ctx_error(ctx));
    for (int values = 0; made && values < LENGTH_VALUES; values++) {
        if (!(kinds >> values & 1))
            continue;
        const double off = length_run(&c, row, program, (length_values)values);
        test_check(off >= 0 && off <= bound, __FILE__, __LINE__,
                   "%s of %lld, %s: off by %.3g of the addends' size; %.3g is allowed%s%s",
                   row->name, (long long)n, length_values_names[values], off, bound,
                   off < 0 ? ": " : "", off < 0 ? dt_ctx_error(ctx) : "");
        worst = off <= worst ? worst : off;
        if (print)
            printf("  %-32s %9lld %-7s %9.2e of %.2e%s\n", row->name, (long long)n,
                   length_values_names[values], off, bound, off <= bound ? "" : "  <--");
    }
    for (int k = 0; k < LENGTH_INPUTS; k++)
        free(c.x[k]);
    dt_graph_destroy(c.graph);
    return worst;
}

static const int64_t length_list[] = {1,   2,    3,    16,   17,    64,    100,    255,
                                      257, 1000, 2049, 4097, 10000, 65537, 100000, 1 << 20};

/* Of long ones only what shows a chain of additions most. */
static unsigned length_kinds(int64_t n) {
    if (n <= 10000 || test_is_long())
        return ~0u;
    return n <= 100000 ? 1u << LENGTH_EQUAL | 1u << LENGTH_SIGNS : 1u << LENGTH_EQUAL;
}

/* All rows on a device, of lengths up to 2^most; the long form goes on to each row's own end. */
static void length_rows_on(const char *device, int most) {
    dt_ctx *ctx;
    const bool all = test_is_long(), print = getenv("DTRAIN_TEST_PRINT") != NULL;
    const char *only = getenv("DTRAIN_TEST_ROW");
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &ctx));
    for (size_t r = 0; r < sizeof length_rows / sizeof *length_rows; r++) {
        const length_row *row = &length_rows[r];
        const int end = row->most < most ? row->most : most;
        if (only && !strstr(row->name, only))
            continue;
        for (size_t i = 0; i < sizeof length_list / sizeof *length_list; i++)
            if (length_list[i] >= row->least && length_list[i] <= (int64_t)1 << end &&
                (!length_mixed || all || (i + r) % 3 == 0))
                length_try(ctx, device, row, length_list[i], length_kinds(length_list[i]), print);
        for (int power = 21; all && power <= row->most; power++)
            length_try(ctx, device, row, (int64_t)1 << power, ~0u, print);
    }
    dt_ctx_destroy(ctx);
}

TEST(sums_of_every_length_are_right_within_log_n) {
    length_rows_on("cpu", 20);
}

/* A chain of bf16 additions would stay at 2^8 addends. */
TEST(sums_of_every_length_are_right_within_log_n_in_mixed_precision) {
    length_mixed = true;
    length_rows_on("cpu", 20);
    length_mixed = false;
}

/* A few lengths for which a chain of float additions would stay at 2^24. */
TEST(sums_of_ones_beyond_2_to_the_24_are_exact) {
    static const char *const rows[] = {"sum of all", "sum over samples of one value"};
    dt_ctx *ctx;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &ctx));
    for (size_t r = 0; r < sizeof length_rows / sizeof *length_rows; r++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            if (!strcmp(length_rows[r].name, rows[k]))
                CHECK(length_try(ctx, "cpu", &length_rows[r], ((int64_t)1 << 24) + 4096,
                                 1u << LENGTH_ONES, false) == 0);
    dt_ctx_destroy(ctx);
}

/* R2 where the targets' mean is a million of their deviations; also of two halves that ranks add
 * up. */
static double length_r2(dt_ctx *ctx, const float *y, const float *t, size_t n, size_t cut) {
    const dt_metric_desc desc = {.kind = DT_METRIC_REGRESSION};
    dt_metric *m[2] = {NULL, NULL};
    double value = NAN, *sums[2];
    size_t count = 0;
    for (int k = 0; k < 2; k++) {
        CHECK(!dt_metric_create(ctx, &desc, &m[k]));
        sums[k] = dt_metric_sums(m[k], &count);
    }
    for (size_t i = 0, some; i < n; i += some) {
        some = i < cut ? (cut < 1000 ? cut : 1000) : n - i;
        if (i < cut && some > cut - i)
            some = cut - i;
        CHECK(!dt_metric_add(m[i >= cut], y + i, t + i, NULL, some));
    }
    for (size_t i = 0; i < count; i++)
        sums[0][i] += sums[1][i];
    CHECK(!dt_metric_get(m[0], DT_MEASURE_R2, &value));
    dt_metric_destroy(m[0]);
    dt_metric_destroy(m[1]);
    return value;
}

TEST(r2_is_right_where_the_mean_is_a_million_deviations) {
    enum { N = 100000 };
    dt_ctx *ctx;
    float *y = malloc(2 * N * sizeof *y), *t = y + N;
    double mean = 0, spread = 0, square = 0;
    REQUIRE(y && !dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    for (int64_t i = 0; i < N; i++) {
        t[i] = 1e6f + 2 * length_value(LENGTH_RANDOM, i);
        y[i] = t[i] + 0.5f * length_value(LENGTH_RANDOM, i + N);
        mean += (double)t[i] - 1e6;
    }
    mean = 1e6 + mean / N;
    for (int64_t i = 0; i < N; i++) {
        spread += ((double)t[i] - mean) * ((double)t[i] - mean);
        square += ((double)y[i] - (double)t[i]) * ((double)y[i] - (double)t[i]);
    }
    CHECK_NEAR(length_r2(ctx, y, t, N, N), 1 - square / spread, 1e-9);
    CHECK_NEAR(length_r2(ctx, y, t, N, 40000), 1 - square / spread, 1e-9);
    for (int64_t i = 0; i < N; i++)
        t[i] = 1234567.1f;
    CHECK(length_r2(ctx, y, t, N, N) == 0);
    CHECK(length_r2(ctx, t, t, N, 7) == 1);
    dt_ctx_destroy(ctx);
    free(y);
}
