/* Metrics against scikit-learn's, recorded by tools/golden/record_golden_metrics.py; and the same
 * values however the samples are cut into batches and ranks. */
#include "golden/golden.h"

#include <pthread.h>

#define METRIC_ROWS 64
#define METRIC_CLASSES 6

static golden metric_golden(void) {
    golden g = {.device = "cpu"};
    if (OK(&g, dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &g.ctx)))
        OK(&g, dt_safetensors_open(g.ctx, "tests/golden/metrics.safetensors", &g.file));
    return g;
}

static void metric_same(golden *g, const char *key, size_t i, double got) {
    const golden_array *a = golden_get(g, key);
    const double wanted = a ? golden_value(a, i) : NAN;
    golden_near(got, wanted, 1e-9 * fabs(wanted) + 1e-12, key, (int)i);
}

static const dt_measure class_measures[] = {
    DT_MEASURE_ACCURACY,     DT_MEASURE_TOP_K,    DT_MEASURE_PERPLEXITY, DT_MEASURE_PRECISION,
    DT_MEASURE_RECALL,       DT_MEASURE_F1,       DT_MEASURE_IOU,        DT_MEASURE_PRECISION_MICRO,
    DT_MEASURE_RECALL_MICRO, DT_MEASURE_F1_MICRO, DT_MEASURE_IOU_MICRO};
static const dt_measure score_measures[] = {DT_MEASURE_AUROC, DT_MEASURE_AVERAGE_PRECISION};
static const dt_measure value_measures[] = {DT_MEASURE_MAE, DT_MEASURE_MEAN_SQUARE, DT_MEASURE_RMSE,
                                            DT_MEASURE_R2, DT_MEASURE_PSNR};

static void metric_compare(golden *g, const dt_metric *m, const char *key,
                           const dt_measure *measures, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double value = NAN;
        if (OK(g, dt_metric_get(m, measures[i], &value)))
            metric_same(g, key, i, value);
    }
}

/* Samples [from, to), in batches of three sizes. */
static void metric_add(golden *g, dt_metric *m, const char *y, const char *t, const char *w,
                       size_t from, size_t to, size_t each) {
    const golden_array *ay = golden_get(g, y), *at = golden_get(g, t),
                       *aw = w ? golden_get(g, w) : NULL;
    for (size_t i = from, rows; ay && at && i < to; i += rows) {
        rows = 1 + i % 7 < to - i ? 1 + i % 7 : to - i;
        OK(g, dt_metric_add(m, ay->f + i * each, (const char *)at->data + 4 * i,
                            aw ? aw->f + i : NULL, rows));
    }
}

static dt_metric *metric_make(golden *g, dt_metric_desc desc) {
    dt_metric *m = NULL;
    OK(g, dt_metric_create(g->ctx, &desc, &m));
    return m;
}

static const dt_metric_desc metric_classes = {.classes = METRIC_CLASSES, .top_k = 2};

TEST(metrics_of_classes_equal_scikit_learns) {
    golden g = metric_golden();
    for (int weighted = 0; weighted < 2; weighted++) {
        dt_metric *m = metric_make(&g, metric_classes);
        metric_add(&g, m, "y", "t", weighted ? "w" : NULL, 0, METRIC_ROWS, METRIC_CLASSES);
        metric_compare(&g, m, weighted ? "weighted_classes" : "classes", class_measures,
                       sizeof class_measures / sizeof *class_measures);
        for (int c = 0; c < METRIC_CLASSES; c++) {
            for (int k = 0; k < 4; k++) {
                double value = NAN;
                if (OK(&g, dt_metric_get_class(m, DT_MEASURE_PRECISION + k, c, &value)))
                    metric_same(&g, weighted ? "weighted_each" : "each",
                                (size_t)(k * METRIC_CLASSES + c), value);
            }
        }
        size_t count;
        const double *sums = dt_metric_sums(m, &count);
        CHECK(count == 4 + METRIC_CLASSES * METRIC_CLASSES + METRIC_CLASSES);
        for (size_t i = 0; i < METRIC_CLASSES * METRIC_CLASSES; i++)
            metric_same(&g, weighted ? "weighted_confusion" : "confusion", i, sums[4 + i]);
        dt_metric_destroy(m);
    }
    golden_close(&g);
}

TEST(areas_under_curves_equal_scikit_learns_exactly_and_in_bins) {
    golden g = metric_golden();
    static const char *const keys[] = {"exact", "exact_weighted", "binned", "binned_weighted"};
    for (int i = 0; i < 4; i++) {
        dt_metric *m =
            metric_make(&g, (dt_metric_desc){.kind = DT_METRIC_BINARY, .bins = i < 2 ? 0 : 16});
        metric_add(&g, m, "score", "is", i % 2 ? "score_w" : NULL, 0, METRIC_ROWS, 1);
        metric_compare(&g, m, keys[i], score_measures, 2);
        metric_compare(&g, m, keys[i], score_measures, 2); /* asking changes nothing */
        dt_metric_destroy(m);
    }
    golden_close(&g);
}

TEST(metrics_of_values_equal_scikit_learns) {
    golden g = metric_golden();
    for (int weighted = 0; weighted < 2; weighted++) {
        dt_metric *m = metric_make(&g, (dt_metric_desc){.kind = DT_METRIC_REGRESSION, .peak = 2});
        metric_add(&g, m, "value", "truth", weighted ? "w" : NULL, 0, METRIC_ROWS, 1);
        metric_compare(&g, m, weighted ? "regression_weighted" : "regression", value_measures,
                       sizeof value_measures / sizeof *value_measures);
        dt_metric_destroy(m);
    }
    golden_close(&g);
}

/* ---- little, or nothing, of what a measure is made of */

/* Case i of the golden: rows [at[i], at[i + 1]): few of them, of weight 0, or all alike. */
static void metric_edge(golden *g, dt_metric_desc desc, const char *key, const char *each,
                        const dt_measure *measures, size_t count) {
    char y[32], t[32], w[32], at[32], scores[32];
    snprintf(y, sizeof y, "%s_y", key);
    snprintf(t, sizeof t, "%s_t", key);
    snprintf(w, sizeof w, "%s_w", key);
    snprintf(at, sizeof at, "%s_at", key);
    snprintf(scores, sizeof scores, "%s", key);
    const golden_array *edges = golden_get(g, at), *found = golden_get(g, scores);
    for (size_t i = 0; edges && found && i + 1 < edges->count; i++) {
        dt_metric *m = metric_make(g, desc);
        metric_add(g, m, y, t, w, (size_t)edges->f[i], (size_t)edges->f[i + 1],
                   desc.classes ? (size_t)desc.classes : 1);
        for (size_t k = 0; k < count; k++) {
            double value = 0;
            const double given = golden_value(found, i * count + k);
            const double want = given == -2.0 ? (double)NAN : given;
            const bool area = measures[k] == DT_MEASURE_AUROC && isnan(want);
            const dt_result result = dt_metric_get(m, measures[k], &value);
            test_check(result == (area ? DT_ERROR_INVALID : DT_OK), __FILE__, __LINE__, "%s %zu",
                       each, i);
            test_check(area || (isnan(want) ? isnan(value) : fabs(value - want) < 1e-12), __FILE__,
                       __LINE__, "%s, case %zu, measure %d: %g, not %g", each, i, (int)measures[k],
                       value, want);
        }
        dt_metric_destroy(m);
    }
}

TEST(metrics_of_one_row_of_absent_classes_and_of_weights_of_0_equal_scikit_learns) {
    static const dt_measure r2[] = {DT_MEASURE_R2};
    static const dt_measure classes[] = {
        DT_MEASURE_ACCURACY,     DT_MEASURE_PRECISION, DT_MEASURE_RECALL,
        DT_MEASURE_F1,           DT_MEASURE_IOU,       DT_MEASURE_PRECISION_MICRO,
        DT_MEASURE_RECALL_MICRO, DT_MEASURE_F1_MICRO,  DT_MEASURE_IOU_MICRO};
    golden g = metric_golden();
    metric_edge(&g, (dt_metric_desc){.kind = DT_METRIC_REGRESSION}, "edge_values", "values", r2, 1);
    metric_edge(&g, (dt_metric_desc){.classes = 4}, "edge_classes", "classes", classes, 9);
    metric_edge(&g, (dt_metric_desc){.kind = DT_METRIC_BINARY}, "edge_scores", "scores",
                score_measures, 2);
    metric_edge(&g, (dt_metric_desc){.kind = DT_METRIC_BINARY, .bins = 8}, "edge_scores", "bins",
                score_measures, 2);
    golden_close(&g);
}

/* ---- over ranks: unequal shares, and one without a sample */

#define METRIC_RANKS 3

typedef struct metric_rank {
    dt_comm *comm;
    int rank;
} metric_rank;

static void *metric_share(void *arg) {
    static const size_t from[METRIC_RANKS + 1] = {0, 17, 17, METRIC_ROWS};
    const metric_rank *r = arg;
    golden g = metric_golden();
    dt_metric *m = metric_make(&g, metric_classes);
    dt_metric *s = metric_make(&g, (dt_metric_desc){.kind = DT_METRIC_BINARY, .bins = 16});
    metric_add(&g, m, "y", "t", "w", from[r->rank], from[r->rank + 1], METRIC_CLASSES);
    metric_add(&g, s, "score", "is", NULL, from[r->rank], from[r->rank + 1], 1);
    if (OK(&g, dt_metric_reduce(m, r->comm)) && OK(&g, dt_metric_reduce(s, r->comm))) {
        metric_compare(&g, m, "weighted_classes", class_measures,
                       sizeof class_measures / sizeof *class_measures);
        metric_compare(&g, s, "binned", score_measures, 2);
    }
    dt_metric_destroy(m);
    dt_metric_destroy(s);
    golden_close(&g);
    return NULL;
}

TEST(ranks_with_unequal_shares_all_have_the_measures_of_the_whole_set) {
    dt_comm *comms[METRIC_RANKS];
    metric_rank ranks[METRIC_RANKS];
    pthread_t threads[METRIC_RANKS];
    REQUIRE(dt_comm_create_threads(NULL, METRIC_RANKS, comms) == DT_OK);
    for (int i = 0; i < METRIC_RANKS; i++) {
        ranks[i] = (metric_rank){comms[i], i};
        pthread_create(&threads[i], NULL, metric_share, &ranks[i]);
    }
    for (int i = 0; i < METRIC_RANKS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < METRIC_RANKS; i++)
        dt_comm_destroy(comms[i]);
}

/* ---- what is not there, and what is wrong */

TEST(a_metric_without_samples_is_zero_and_ignored_rows_do_not_count) {
    golden g = metric_golden();
    dt_metric *m = metric_make(&g, (dt_metric_desc){.classes = 3, .ignore_index = 2});
    const float y[6] = {0, 1, 0, 3, 2, 1};
    const int32_t t[2] = {2, 0};
    double value = 1;
    CHECK(dt_metric_get(m, DT_MEASURE_F1, &value) == DT_OK && value == 0);
    CHECK(dt_metric_add(m, y, t, NULL, 2) == DT_OK);
    CHECK(dt_metric_get(m, DT_MEASURE_WEIGHT, &value) == DT_OK && value == 1);
    CHECK(dt_metric_get(m, DT_MEASURE_ACCURACY, &value) == DT_OK && value == 1);
    dt_metric_reset(m);
    CHECK(dt_metric_get(m, DT_MEASURE_ACCURACY, &value) == DT_OK && value == 0);
    dt_metric_destroy(m);
    golden_close(&g);
}

TEST(a_metric_refuses_wrong_samples_with_their_row_and_adds_none_of_them) {
    golden g = metric_golden();
    dt_metric *m = metric_make(&g, (dt_metric_desc){.classes = 2});
    dt_metric *s = metric_make(&g, (dt_metric_desc){.kind = DT_METRIC_BINARY, .bins = 4});
    const float y[4] = {0, 1, 2, 3}, score[2] = {0.5f, 1.5f}, is[2] = {1, 0}, w[2] = {1, -1};
    const int32_t t[2] = {0, 2}, fine[2] = {0, 1};
    double value = 1;
    CHECK(dt_metric_add(m, y, t, NULL, 2) == DT_ERROR_INVALID);
    CHECK(strstr(dt_ctx_error(g.ctx), "row 1: there is no class 2"));
    CHECK(dt_metric_add(m, y, fine, w, 2) == DT_ERROR_INVALID);
    CHECK(strstr(dt_ctx_error(g.ctx), "row 1: the weight is -1"));
    CHECK(dt_metric_get(m, DT_MEASURE_WEIGHT, &value) == DT_OK && value == 0);
    CHECK(dt_metric_add(s, score, is, NULL, 2) == DT_ERROR_INVALID);
    CHECK(strstr(dt_ctx_error(g.ctx), "row 1: the score must be from 0 to 1, not 1.5"));
    CHECK(dt_metric_add(s, score, is, NULL, 1) == DT_OK);
    CHECK(dt_metric_get(s, DT_MEASURE_AUROC, &value) == DT_ERROR_INVALID && value == 0);
    CHECK(dt_metric_get(s, DT_MEASURE_MAE, &value) == DT_ERROR_INVALID);
    dt_metric_destroy(m);
    dt_metric_destroy(s);
    golden_close(&g);
}

/* In a value or a target, whatever the row weighs, with targets that are equal or not. */
TEST(a_nan_makes_every_metric_of_values_nan) {
    golden g = metric_golden();
    for (int way = 0; way < 2 * 2 * 3 * 3; way++) {
        const int row = way / 2 % 3, weights = way / 6 % 3;
        float y[3] = {1, 2, 3}, t[3] = {2, way / 18 ? 5.0f : 2.0f, 2}, w[3] = {1, 1, 1};
        (way % 2 ? y : t)[row] = NAN;
        for (int i = 0; i < 3; i++)
            w[i] = weights == 2 || (weights && i == row) ? 0.0f : 1.0f;
        dt_metric *m = metric_make(&g, (dt_metric_desc){.kind = DT_METRIC_REGRESSION});
        OK(&g, dt_metric_add(m, y, t, w, 3));
        for (int k = DT_MEASURE_MAE; k <= DT_MEASURE_PSNR; k++) {
            double value = 0;
            OK(&g, dt_metric_get(m, (dt_measure)k, &value));
            test_check(isnan(value), __FILE__, __LINE__, "way %d, measure %d: %g", way, k, value);
        }
        dt_metric_destroy(m);
    }
    golden_close(&g);
}

/* At every place, of each kind and sign; the rows before it are not added either. */
TEST(a_score_that_is_nan_is_refused_with_its_row_and_column) {
    static const dt_metric_desc kinds[] = {{.classes = 3},
                                           {.classes = 3, .no_confusion = true},
                                           {.kind = DT_METRIC_BINARY},
                                           {.kind = DT_METRIC_BINARY, .bins = 4}};
    golden g = metric_golden();
    for (int way = 0; way < 4 * 9 * 2; way++) {
        const dt_metric_desc *d = &kinds[way / 18];
        const int columns = d->classes ? 3 : 1, at = way / 2 % 9;
        float y[9] = {0}, is[9] = {0};
        const int32_t t[3] = {0, 1, 2};
        double weight = 1;
        char want[64];
        dt_metric *m = metric_make(&g, *d);
        y[at] = way % 2 ? NAN : -(float)NAN;
        snprintf(want, sizeof want, "row %d, column %d: the score is NaN", at / columns,
                 at % columns);
        const void *targets = d->classes ? (const void *)t : is;
        const dt_result result = dt_metric_add(m, y, targets, NULL, 9 / (size_t)columns);
        test_check(result == DT_ERROR_INVALID && strstr(dt_ctx_error(g.ctx), want), __FILE__,
                   __LINE__, "way %d: %d: %s", way, (int)result, dt_ctx_error(g.ctx));
        CHECK(dt_metric_get(m, DT_MEASURE_WEIGHT, &weight) == DT_OK && weight == 0);
        dt_metric_destroy(m);
    }
    const float y[6] = {NAN, 0, 0, 1, 0, 0};
    const int32_t t[2] = {-100, 0};
    dt_metric *m = metric_make(&g, kinds[0]);
    OK(&g, dt_metric_add(m, y, t, NULL, 2)); /* an ignored row does not count */
    dt_metric_destroy(m);
    golden_close(&g);
}
