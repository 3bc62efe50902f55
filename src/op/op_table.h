/* Every op, once. The list expands into the enum, the info table, the per-op tests and docs/ops.md.
 *
 * X(ID, name, inputs, samples, precision, family, selector, formula)
 *   inputs     how many: "2", or "1+" for one and more
 *   samples    what it does along the sample axis: ROWWISE (each sample by itself), REDUCES (sums
 *              over samples), COUPLES (samples see each other), NONE (no sample axis of its own)
 *   precision  under mixed precision: LOW (may run in 16 bits), F32 (needs f32), WIDEST (of inputs)
 *   family     dti_family_<family> in src/op/: shape, gradient, launches, CPU kernel
 *   selector   which op of the family it is
 *   formula    for the reference page
 * The order is the order of docs/ops.md; ids are not stored anywhere. */
#ifndef DTI_OP_LIST_TESTS /* rows of a test program, whose families come after this library */
#define DTI_OP_LIST_TESTS(X)
#endif
#define DTI_OP_LIST(X)                                                                             \
    X(NIL, nil, "0", NONE, WIDEST, leaf, 0, "no tensor")                                           \
    X(INPUT, input, "0", ROWWISE, WIDEST, leaf, 0, "written by the host before a step")            \
    X(PARAM, param, "0", NONE, F32, leaf, 0, "a trained value of the store")                       \
    X(FILL, fill, "0", NONE, WIDEST, fill, 0, "every element is the constant")                     \
    X(IOTA, iota, "0", NONE, WIDEST, fill, 1, "0, 1, 2, ... in order")                             \
    X(SEED, seed, "1", NONE, F32, seed, 0, "coefficient of the loss / its global weight")          \
    X(NEG, neg, "1", ROWWISE, WIDEST, unary, DTI_U_NEG, "-x")                                      \
    X(ABS, abs, "1", ROWWISE, WIDEST, unary, DTI_U_ABS, "|x|; gradient 0 at 0")                    \
    X(SIGN, sign, "1", ROWWISE, WIDEST, unary, DTI_U_SIGN, "-1, 0 or 1; no gradient")              \
    X(EXP, exp, "1", ROWWISE, F32, unary, DTI_U_EXP, "e^x")                                        \
    X(LOG, log, "1", ROWWISE, F32, unary, DTI_U_LOG, "natural logarithm")                          \
    X(LOG1P, log1p, "1", ROWWISE, F32, unary, DTI_U_LOG1P, "log(1 + x)")                           \
    X(EXPM1, expm1, "1", ROWWISE, F32, unary, DTI_U_EXPM1, "e^x - 1")                              \
    X(SQRT, sqrt, "1", ROWWISE, WIDEST, unary, DTI_U_SQRT, "square root")                          \
    X(RSQRT, rsqrt, "1", ROWWISE, F32, unary, DTI_U_RSQRT, "1 / sqrt(x)")                          \
    X(RECIPROCAL, reciprocal, "1", ROWWISE, F32, unary, DTI_U_RECIPROCAL, "1 / x")                 \
    X(SQUARE, square, "1", ROWWISE, F32, unary, DTI_U_SQUARE, "x * x")                             \
    X(SIN, sin, "1", ROWWISE, WIDEST, unary, DTI_U_SIN, "sine")                                    \
    X(COS, cos, "1", ROWWISE, WIDEST, unary, DTI_U_COS, "cosine")                                  \
    X(TANH, tanh, "1", ROWWISE, WIDEST, unary, DTI_U_TANH, "hyperbolic tangent")                   \
    X(SIGMOID, sigmoid, "1", ROWWISE, WIDEST, unary, DTI_U_SIGMOID, "1 / (1 + e^-x)")              \
    X(RELU, relu, "1", ROWWISE, WIDEST, unary, DTI_U_RELU, "max(x, 0); gradient 0 at 0")           \
    X(LEAKY_RELU, leaky_relu, "1", ROWWISE, WIDEST, unary, DTI_U_LEAKY_RELU,                       \
      "x > 0 ? x : slope * x")                                                                     \
    X(GELU, gelu, "1", ROWWISE, WIDEST, unary, DTI_U_GELU, "x * (1 + erf(x / sqrt 2)) / 2")        \
    X(GELU_TANH, gelu_tanh, "1", ROWWISE, WIDEST, unary, DTI_U_GELU_TANH,                          \
      "x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2")                                       \
    X(SILU, silu, "1", ROWWISE, WIDEST, unary, DTI_U_SILU, "x * sigmoid(x)")                       \
    X(SOFTPLUS, softplus, "1", ROWWISE, F32, unary, DTI_U_SOFTPLUS,                                \
      "log(1 + e^x), which is x above 20")                                                         \
    X(LOG_SIGMOID, log_sigmoid, "1", ROWWISE, F32, unary, DTI_U_LOG_SIGMOID,                       \
      "log(1 / (1 + e^-x))")                                                                       \
    X(LOG_FLOOR, log_floor, "1", ROWWISE, F32, unary, DTI_U_LOG_FLOOR,                             \
      "max(log x, low); gradient 1 / max(x, 1e-12)")                                               \
    X(ELU, elu, "1", ROWWISE, WIDEST, unary, DTI_U_ELU, "x > 0 ? x : alpha * (e^x - 1)")           \
    X(SELU, selu, "1", ROWWISE, WIDEST, unary, DTI_U_SELU,                                         \
      "1.0507 (x > 0 ? x : 1.67326 (e^x - 1))")                                                    \
    X(MISH, mish, "1", ROWWISE, WIDEST, unary, DTI_U_MISH, "x * tanh(softplus(x))")                \
    X(SOFTSIGN, softsign, "1", ROWWISE, WIDEST, unary, DTI_U_SOFTSIGN, "x / (1 + |x|)")            \
    X(HARDSIGMOID, hardsigmoid, "1", ROWWISE, WIDEST, unary, DTI_U_HARDSIGMOID,                    \
      "min(max(x + 3, 0), 6) / 6; gradient 0 at the ends")                                         \
    X(HARDSWISH, hardswish, "1", ROWWISE, WIDEST, unary, DTI_U_HARDSWISH,                          \
      "x * hardsigmoid(x); gradient 0 at -3, 1 at 3")                                              \
    X(CLAMP, clamp, "1", ROWWISE, WIDEST, unary, DTI_U_CLAMP,                                      \
      "min(max(x, low), high); gradient 0 at both")                                                \
    X(ERF, erf, "1", ROWWISE, WIDEST, unary, DTI_U_ERF, "error function")                          \
    X(ATAN, atan, "1", ROWWISE, WIDEST, unary, DTI_U_ATAN, "arc tangent")                          \
    X(ERFINV, erfinv, "1", ROWWISE, F32, unary, DTI_U_ERFINV, "inverse of erf; NaN outside -1, 1") \
    X(FLOOR, floor, "1", ROWWISE, WIDEST, unary, DTI_U_FLOOR, "largest integer <= x; no gradient") \
    X(CEIL, ceil, "1", ROWWISE, WIDEST, unary, DTI_U_CEIL, "smallest integer >= x; no gradient")   \
    X(ROUND, round, "1", ROWWISE, WIDEST, unary, DTI_U_ROUND,                                      \
      "nearest integer, halves to even; no gradient")                                              \
    X(HEAVISIDE, heaviside, "1", ROWWISE, WIDEST, unary, DTI_U_HEAVISIDE,                          \
      "x > 0 ? 1 : 0; no gradient")                                                                \
    X(AFFINE, affine, "1", ROWWISE, WIDEST, unary, DTI_U_AFFINE, "scale * x + offset")             \
    X(UNARY_GRAD, unary_grad, "2", ROWWISE, WIDEST, unary_grad, 0, "(x, dy) -> dy * f'(x)")        \
    X(ADD, add, "2", ROWWISE, WIDEST, binary, DTI_B_ADD, "a + b")                                  \
    X(SUB, sub, "2", ROWWISE, WIDEST, binary, DTI_B_SUB, "a - b")                                  \
    X(MUL, mul, "2", ROWWISE, WIDEST, binary, DTI_B_MUL, "a * b")                                  \
    X(DIV, div, "2", ROWWISE, WIDEST, binary, DTI_B_DIV, "a / b")                                  \
    X(MAXIMUM, maximum, "2", ROWWISE, WIDEST, binary, DTI_B_MAXIMUM,                               \
      "larger; gradient halved at ties")                                                           \
    X(MINIMUM, minimum, "2", ROWWISE, WIDEST, binary, DTI_B_MINIMUM,                               \
      "smaller; gradient halved at ties")                                                          \
    X(POW, pow, "2", ROWWISE, F32, binary, DTI_B_POW, "a^b")                                       \
    X(EQ, eq, "2", ROWWISE, WIDEST, binary, DTI_B_EQ, "a == b; no gradient")                       \
    X(LT, lt, "2", ROWWISE, WIDEST, binary, DTI_B_LT, "a < b; no gradient")                        \
    X(LE, le, "2", ROWWISE, WIDEST, binary, DTI_B_LE, "a <= b; no gradient")                       \
    X(GT, gt, "2", ROWWISE, WIDEST, binary, DTI_B_GT, "a > b; no gradient")                        \
    X(GE, ge, "2", ROWWISE, WIDEST, binary, DTI_B_GE, "a >= b; no gradient")                       \
    X(MASK, mask, "2", ROWWISE, WIDEST, binary, DTI_B_MASK, "b == 0 ? 0 : a; gradient only in a")  \
    X(MASK_INV, mask_inv, "2", ROWWISE, WIDEST, binary, DTI_B_MASK_INV,                            \
      "b == 0 ? a : 0; gradient only in a")                                                        \
    X(RESHAPE, reshape, "1", ROWWISE, WIDEST, view, DTI_VIEW_RESHAPE,                              \
      "the same elements in order")                                                                \
    X(PERMUTE, permute, "1", ROWWISE, WIDEST, view, DTI_VIEW_PERMUTE,                              \
      "dimensions in another order")                                                               \
    X(SLICE, slice, "1", ROWWISE, WIDEST, view, DTI_VIEW_SLICE, "x[start : start + length]")       \
    X(EXPAND, expand, "1", ROWWISE, WIDEST, view, DTI_VIEW_EXPAND,                                 \
      "dimensions of size 1 repeated")                                                             \
    X(DETACH, detach, "1", ROWWISE, WIDEST, view, DTI_VIEW_DETACH, "x; no gradient")               \
    X(COPY, copy, "1", ROWWISE, WIDEST, copy, 0, "x in memory of its own")                         \
    X(CAST, cast, "1", ROWWISE, WIDEST, cast, 0, "x as another type")                              \
    X(OUTPUT_OF, output_of, "1", ROWWISE, WIDEST, output_of, 0,                                    \
      "one of the outputs of a row that has several")                                              \
    X(CONCAT, concat, "1+", ROWWISE, WIDEST, concat, 0, "one after the other along an axis")       \
    X(PAD, pad, "1", ROWWISE, WIDEST, pad, 0, "zeros with x at start: the gradient of slice")      \
    X(SUM, sum, "1", REDUCES, F32, reduce, DTI_R_SUM, "sum over axes")                             \
    X(MAX, max, "1", ROWWISE, WIDEST, reduce, DTI_R_MAX, "maximum over axes")                      \
    X(MIN, min, "1", ROWWISE, WIDEST, reduce, DTI_R_MIN, "minimum over axes")                      \
    X(MATMUL, matmul, "2", ROWWISE, LOW, matmul, 0, "[..., M, K] [..., K, N]")                     \
    X(LINEAR, linear, "2+", ROWWISE, LOW, linear, 0, "x W^T + b")                                  \
    X(LINEAR_DX, linear_dx, "2", ROWWISE, LOW, linear_dx, 0, "dy W")                               \
    X(LINEAR_DW, linear_dw, "2", REDUCES, LOW, linear_dw, 0, "dy^T x over all rows")               \
    X(SOFTMAX, softmax, "1", ROWWISE, F32, softmax, 0, "e^(x - max) / sum, along the axis")        \
    X(LOG_SOFTMAX, log_softmax, "1", ROWWISE, F32, softmax, 1, "x - max - log sum e^(x - max)")    \
    X(SOFTMAX_GRAD, softmax_grad, "2", ROWWISE, F32, softmax_grad, 0,                              \
      "(y, dy) -> y (dy - sum y dy)")                                                              \
    X(LOG_SOFTMAX_GRAD, log_softmax_grad, "2", ROWWISE, F32, softmax_grad, 1,                      \
      "(y, dy) -> dy - e^y sum dy")                                                                \
    X(ATTENTION, attention, "3+", ROWWISE, LOW, attention, 0,                                      \
      "(q, k, v, mask) -> rows (softmax(scale q k^T) v, largest score m, log sum e^(score - m))")  \
    X(ATTENTION_GRAD, attention_grad, "5+", ROWWISE, LOW, attention_grad, 0,                       \
      "(q, k, v, dy, rows (m, log sum e^(score - m), sum y dy), mask) -> (dq, dk, dv)")            \
    X(RECURRENCE, recurrence, "3+", ROWWISE, LOW, recurrence, 0,                                   \
      "(gates' sums of inputs, W_hh, state, b_hn or W_hr) -> (h, last h, last c, what is kept)")   \
    X(RECURRENCE_GRAD, recurrence_grad, "3+", ROWWISE, LOW, recurrence_grad, 0,                    \
      "(recurrence, W_hh, dy with state, b_hn or W_hr) -> (d of the sums, d of the state)")        \
    X(CTC, ctc, "2+", ROWWISE, F32, ctc, 0,                                                        \
      "(log-probabilities, labels, lengths) -> (loss, labels used, what is kept)")                 \
    X(CTC_GRAD, ctc_grad, "3", ROWWISE, F32, ctc_grad, 0,                                          \
      "(ctc, log-probabilities, dy) -> -dy * the share of paths through each class")               \
    X(CACHE, cache, "1+", ROWWISE, F32, cache, 0,                                                  \
      "x; with .cached (x, at) -> all rows that were kept, x's from `at` on")                      \
    X(EMBEDDING, embedding, "2", ROWWISE, WIDEST, gather, 0, "(table, index) -> table[index]")     \
    X(SCATTER_ADD, scatter_add, "2", REDUCES, F32, scatter_add, 0,                                 \
      "(dy, index) -> sum of rows of dy by index")                                                 \
    X(DROPOUT, dropout, "1", ROWWISE, WIDEST, dropout, 0, "x * mask / (1 - p)")                    \
    X(RANDOM, random, "1", ROWWISE, F32, random, 0, "as many random numbers as x has elements")    \
    X(CROSS_ENTROPY, cross_entropy, "2+", REDUCES, F32, cross_entropy, DTI_XENT_LOSS,              \
      "term: sum over rows of -sum_c q_c log softmax(x)_c; weight: the targets' class weights")    \
    X(NLL, nll, "2+", REDUCES, F32, nll, DTI_XENT_NLL,                                             \
      "term: sum over rows of -w x[target], of log-probabilities; weight: as cross_entropy")       \
    X(CROSS_ENTROPY_WEIGHT, cross_entropy_weight, "1+", REDUCES, F32, cross_entropy_weight,        \
      DTI_XENT_WEIGHT, "term (0, weight), only from targets")                                      \
    X(CROSS_ENTROPY_GRAD, cross_entropy_grad, "3", ROWWISE, F32, cross_entropy_grad, 0,            \
      "(logits, target, seed * class weights) -> softmax * sum q - q")                             \
    X(ACCURACY, accuracy, "2", REDUCES, F32, accuracy, DTI_XENT_ACCURACY,                          \
      "term: rows whose argmax is the target; weight: rows")                                       \
    X(MSE, mse, "2", REDUCES, F32, mse, DTI_TERM_SQUARE, "term: sum (y - t)^2; weight: elements")  \
    X(MSE_GRAD, mse_grad, "3", ROWWISE, F32, mse_grad, 0, "(y, t, seed) -> 2 seed (y - t)")        \
    X(MEAN_LOSS, mean_loss, "1", REDUCES, F32, mean_loss, DTI_TERM_SUM,                            \
      "term: sum x; weight: elements")                                                             \
    X(WEIGHTED_LOSS, weighted_loss, "2", REDUCES, F32, weighted_loss, DTI_TERM_WEIGHTED,           \
      "(x, w) -> term: sum w x; weight: sum w")                                                    \
    X(WEIGHT_SUM, weight_sum, "1", REDUCES, F32, weight_sum, DTI_TERM_WEIGHT,                      \
      "w -> term (0, sum w)")                                                                      \
    X(CONV2D, conv2d, "2+", ROWWISE, LOW, conv2d, 0, "(x, w, b) cross-correlation + b")            \
    X(CONV2D_DX, conv2d_dx, "2+", ROWWISE, LOW, conv2d_dx, 0,                                      \
      "(dy, w, b) -> the adjoint of conv2d in x, + b: also the transposed convolution")            \
    X(CONV2D_DW, conv2d_dw, "2", REDUCES, LOW, conv2d_dw, 0,                                       \
      "(dy, x) -> the adjoint of conv2d in w")                                                     \
    X(MAX_POOL2D, max_pool2d, "1", ROWWISE, WIDEST, max_pool2d, DTI_K_MAX_POOL,                    \
      "largest of each window")                                                                    \
    X(MAX_POOL2D_AT, max_pool2d_at, "2", ROWWISE, WIDEST, max_pool2d_at, DTI_K_MAX_POOL,           \
      "(x, g) -> g where x is largest in the window, the first of equals")                         \
    X(MAX_POOL2D_GRAD, max_pool2d_grad, "2", ROWWISE, WIDEST, max_pool2d_grad,                     \
      DTI_K_MAX_POOL_GRAD, "(x, dy) -> the adjoint of max_pool2d_at in g")                         \
    X(AVG_POOL2D, avg_pool2d, "1", ROWWISE, WIDEST, avg_pool2d, DTI_K_AVG_POOL,                    \
      "mean of each window")                                                                       \
    X(AVG_POOL2D_GRAD, avg_pool2d_grad, "1", ROWWISE, WIDEST, avg_pool2d_grad,                     \
      DTI_K_AVG_POOL_GRAD, "dy -> the adjoint of avg_pool2d")                                      \
    X(RESIZE, resize, "1", ROWWISE, WIDEST, resize, 0, "nearest or bilinear resampling")           \
    X(RESIZE_GRAD, resize_grad, "1", ROWWISE, WIDEST, resize_grad, 0, "dy -> its adjoint")         \
    X(TRAIN_MODE, train_mode, "0", NONE, WIDEST, fill, 2, "1 in a training program, else 0")       \
    X(NORM_STATS, norm_stats, "1", ROWWISE, F32, norm_stats, 0,                                    \
      "(mean, variance) of each group of a sample; of RMS norm (0, mean of squares)")              \
    X(BATCH_STATS, batch_stats, "3", COUPLES, F32, batch_stats, 0,                                 \
      "(x, running mean, variance) -> (mean, variance) of channels: the batch's in training")      \
    X(ALL_STATS, all_stats, "1", COUPLES, F32, meet, DTI_MEET_STATS,                               \
      "(mean, variance) of each batch slice -> of the whole batch")                                \
    X(ALL_MEAN, all_mean, "1", COUPLES, F32, meet, DTI_MEET_MEAN,                                  \
      "sums over each batch slice -> their sum / values of a channel")                             \
    X(TP_SUM, tp_sum, "1", ROWWISE, F32, parted_sum, DTI_MEET_SUM,                                 \
      "all-reduce (sum) over tensor ranks; gradient dy")                                           \
    X(TP_COPY, tp_copy, "1", ROWWISE, WIDEST, parted_copy, 0,                                      \
      "x, replicated on all tensor ranks; gradient all-reduce (sum) of dy")                        \
    X(TP_MOST, tp_most, "1", ROWWISE, F32, parted_most, DTI_MEET_MOST,                             \
      "all-reduce (maximum) over tensor ranks; no gradient")                                       \
    X(TP_SPREAD, tp_spread, "1", ROWWISE, F32, parted_whole, DTI_MEET_ROWS,                        \
      "all-gather over tensor ranks, whose uses differ; gradient tp_share")                        \
    X(TP_SHARE, tp_share, "1", ROWWISE, F32, parted_own, DTI_MEET_SHARE,                           \
      "reduce-scatter over tensor ranks; gradient tp_spread")                                      \
    X(TP_GATHER, tp_gather, "1", ROWWISE, F32, parted_whole, DTI_MEET_ROWS,                        \
      "all-gather over tensor ranks, whose uses are the same; gradient tp_own")                    \
    X(TP_OWN, tp_own, "1", ROWWISE, F32, parted_cut, DTI_MEET_SHARE,                               \
      "this tensor rank's part of a replicated x; gradient tp_gather")                             \
    X(TP_LOSS, tp_loss, "3+", REDUCES, F32, parted_loss, DTI_TERM_WEIGHTED,                        \
      "(x, w, targets, class weights) -> term: sum w x; weight: as cross_entropy of the targets")  \
    X(TP_LABELS, tp_labels, "1", ROWWISE, WIDEST, parted_labels, 0,                                \
      "class numbers or indices, relative to this tensor rank's part")                             \
    X(NORM, norm, "2+", ROWWISE, WIDEST, norm, 0,                                                  \
      "(x, stats, w, b) -> (x - mean) / sqrt(variance + eps) * w + b")                             \
    X(NORM_DX, norm_dx, "2+", ROWWISE, WIDEST, norm_dx, 0,                                         \
      "(x, dy, w) -> gradient of norm in x, through its statistics")                               \
    X(NORM_DW, norm_dw, "3", REDUCES, F32, norm_dw, 0,                                             \
      "(x, stats, dy) -> for each channel sum dy (x - mean) / sqrt(variance + eps), and sum dy")   \
    X(BATCH_DX, batch_dx, "5", COUPLES, WIDEST, batch_dx, 0,                                       \
      "(x, dy, w, stats, norm_dw) -> gradient of batch norm in x")                                 \
    X(RUNNING, running, "2", NONE, F32, running, 0,                                                \
      "(running, stats) -> (1 - momentum) running + momentum * mean, or unbiased variance")        \
    DTI_OP_LIST_TESTS(X)

typedef enum dti_op {
#define DTI_X(id, name, inputs, samples, precision, family, selector, formula) DTI_OP_##id,
    DTI_OP_LIST(DTI_X)
#undef DTI_X
        DTI_OP_COUNT
} dti_op;
