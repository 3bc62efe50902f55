/* Logits in parts that are not finite. As for the whole op, rows that do not count may be anything,
 * and others are errors. */
#include "train/train_model.h"

enum { CLASSES_ROWS = 12, CLASSES_ALL = 8, CLASSES_IN = 5, CLASSES_STEPS = 4 };

typedef struct classes_run {
    dt_result result;
    double loss[CLASSES_STEPS], norm[CLASSES_STEPS];
    double right;
} classes_run;

typedef struct classes_case {
    float odd;       /* what is added to the logits of some rows */
    bool counts;     /* so do those rows */
    bool weighted;   /* classes are */
    float smoothing; /* not with weights */
} classes_case;

/* tensor_ranks 0: one device. */
static classes_run classes_train(const classes_case *c, int tensor_ranks) {
    static const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.2};
    float x[CLASSES_ROWS][CLASSES_IN], more[CLASSES_ROWS];
    int32_t targets[CLASSES_ROWS];
    classes_run r = {0};
    uint32_t state = 3;
    dt_ctx *ctx;
    dt_graph *g;
    dt_trainer *t;
    for (int i = 0; i < CLASSES_ROWS; i++) {
        for (int k = 0; k < CLASSES_IN; k++)
            x[i][k] = (float)(train_random(&state) % 200) / 100.0f - 1.0f;
        more[i] = i % 3 == 1 ? c->odd : 0.25f;
        targets[i] = i % 3 == 1 && !c->counts ? -100 : i % CLASSES_ALL;
    }
    r.result = DT_ERROR_MEMORY;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) || dt_graph_create(ctx, &g))
        return r;
    dt_tensor in = dt_input(g, "x", DT_F32, dt_dims(CLASSES_IN)),
              add = dt_input(g, "add", DT_F32, dt_dims(1)),
              target = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor y =
        dt_nn_linear_with(in, "out", CLASSES_ALL, &(dt_linear_desc){.tensor = DT_TENSOR_COLUMN});
    dt_cross_entropy_desc d = {.label_smoothing = c->smoothing};
    if (c->weighted)
        d.class_weights = dt_freeze(
            dt_param(g, "weights", dt_dims(CLASSES_ALL), (dt_init){DT_INIT_UNIFORM, 0.5f, 2.0f}));
    y = dt_add(y, add);
    const dt_trainer_desc job = {
        .loss = dt_cross_entropy(y, target, &d),
        .metrics = {dt_accuracy(y, target)},
        .optim = &sgd,
        .batch = CLASSES_ROWS,
        .devices = tensor_ranks == 4   ? "cpu:4"
                   : tensor_ranks == 2 ? "cpu:2"
                                       : "cpu",
        .parallel.tensor = tensor_ranks,
        .data = {.rows = CLASSES_ROWS,
                 .columns = {{.input = in, .data = x, .dtype = DT_F32},
                             {.input = add, .data = more, .dtype = DT_F32},
                             {.input = target, .data = targets, .dtype = DT_I32}}}};
    r.result = dt_trainer_create(g, &job, &t);
    for (int i = 0; i < CLASSES_STEPS && !r.result; i++) {
        dt_train_report report;
        r.result = dt_trainer_step(t, &report);
        r.loss[i] = report.loss;
        r.norm[i] = report.gradient_norm;
        r.right = report.metric_sum[0];
    }
    CHECK_TEXT(!r.result || r.result == DT_ERROR_NUMERIC, "%s", dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
    return r;
}

static void classes_compare(const classes_case *c) {
    const classes_run one = classes_train(c, 0);
    const bool fine = !c->counts || c->odd == 0.0f;
    CHECK_TEXT(one.result == (fine ? DT_OK : DT_ERROR_NUMERIC), "%g: %d", (double)c->odd,
               (int)one.result);
    for (int tensor_ranks = 2; tensor_ranks <= 4; tensor_ranks += 2) {
        const classes_run some = classes_train(c, tensor_ranks);
        CHECK_TEXT(some.result == one.result, "%g, counts %d, %d tensor ranks: %d, not %d",
                   (double)c->odd, c->counts, tensor_ranks, (int)some.result, (int)one.result);
        for (int i = 0; i < CLASSES_STEPS && fine; i++)
            CHECK_TEXT(fabs(some.loss[i] - one.loss[i]) < 1e-5 &&
                           fabs(some.norm[i] - one.norm[i]) < 1e-5,
                       "%g, %d tensor ranks, step %d: loss %.9g, not %.9g; norm %.9g, not %.9g",
                       (double)c->odd, tensor_ranks, i, some.loss[i], one.loss[i], some.norm[i],
                       one.norm[i]);
        CHECK(!fine || some.right == one.right);
    }
}

TEST(ignored_rows_may_have_any_logits_even_in_parts) {
    static const float odd[] = {0.0f, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < 4; i++) {
        for (int k = 0; k < 6; k++)
            classes_compare(&(classes_case){.odd = odd[i],
                                            .counts = k % 2,
                                            .weighted = k / 2 == 1,
                                            .smoothing = k / 2 == 2 ? 0.1f : 0.0f});
    }
}
