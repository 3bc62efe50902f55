/* ---- Metrics on the host ------------------------------------------------------------------------
 *
 * A metric adds up what an evaluation program gives (dt_program_read), batch after batch of any
 * size, on the host, in double. Loss, accuracy and what else is a mean of terms needs none: see
 * dt_program_desc.metrics and dt_trainer_evaluate. With several ranks each adds its own samples,
 * and dt_metric_reduce adds the sums, so that all have the values of the whole set, however it is
 * cut. Definitions are scikit-learn's.
 *
 * Threads: the context's. */

typedef struct dt_metric dt_metric;

typedef enum dt_metric_kind {
    DT_METRIC_DEFAULT,   /* classes */
    DT_METRIC_CLASSES,   /* logits or scores of .classes classes, and the class */
    DT_METRIC_BINARY,    /* one score, and 0 or 1 */
    DT_METRIC_REGRESSION /* values, and their targets */
} dt_metric_kind;

typedef struct dt_metric_desc {
    dt_metric_kind kind;
    int classes;          /* at least 2 */
    int top_k;            /* 0 = 5, or classes where there are fewer */
    int32_t ignore_index; /* rows with this target do not count; 0 = -100, DT_ZERO = 0 */
    /* Keep no counts of (target, prediction), classes^2 of them: only accuracy, top-k and
     * perplexity are left. Needed above 4096 classes. */
    bool no_confusion;
    /* BINARY: so many equal parts of [0, 1] that scores are counted in; those of a part are equal.
     * 0: exact; each sample takes 16 bytes, and there is no dt_metric_reduce. */
    int bins;
    double peak; /* REGRESSION: the largest value that there can be, for PSNR; 0 = 1 */
} dt_metric_desc;

/* Of classes, each as one against the rest: precision TP / (TP + FP), recall TP / (TP + FN), F1
 * 2 TP / (2 TP + FP + FN), IoU TP / (TP + FP + FN); 0 / 0 is 0 (zero_division=0). Without _MICRO
 * they are means over classes ('macro'): those that are the target or the prediction of at least
 * one row, whatever its weight. With _MICRO they are of all counts together. */
typedef enum dt_measure {
    DT_MEASURE_WEIGHT, /* how much was added: samples, or their weights; of regression values */
    DT_MEASURE_ACCURACY,
    DT_MEASURE_TOP_K,
    DT_MEASURE_PERPLEXITY, /* e^(mean of -log softmax of the target) */
    DT_MEASURE_PRECISION,
    DT_MEASURE_RECALL,
    DT_MEASURE_F1,
    DT_MEASURE_IOU,
    DT_MEASURE_PRECISION_MICRO,
    DT_MEASURE_RECALL_MICRO,
    DT_MEASURE_F1_MICRO,
    DT_MEASURE_IOU_MICRO,
    DT_MEASURE_AUROC,
    DT_MEASURE_AVERAGE_PRECISION,
    DT_MEASURE_MAE, /* a NaN in any row, of any weight, makes this and those below NaN */
    DT_MEASURE_MEAN_SQUARE,
    DT_MEASURE_RMSE,
    /* Of all values as one output. NaN for one value. If all targets are equal: 1 if all
     * predictions are right, else 0. */
    DT_MEASURE_R2,
    DT_MEASURE_PSNR /* 10 log10(peak^2 / mean square), in dB */
} dt_measure;

/* Creates a metric, with nothing in it. Errors, with *out NULL: INVALID (what is wrong with desc),
 * MEMORY. It is destroyed before its context. */
DT_API dt_result dt_metric_create(dt_ctx *ctx, const dt_metric_desc *desc, dt_metric **out);
/* NULL is allowed. */
DT_API void dt_metric_destroy(dt_metric *metric);
/* Forgets all that was added. */
DT_API void dt_metric_reset(dt_metric *metric);

/* Adds `rows` samples. y: f32, [rows, classes] or [rows]; of regression each value is a row. t: i32
 * [rows] of classes, else f32 like y; weights: one a row, or NULL = 1. Errors, with nothing added:
 * INVALID (a class out of range, a score or logit of a row that counts that is NaN, with its
 * column, or outside of the bins, a target that is not 0 or 1, a weight that is negative or not
 * finite: with its row), MEMORY. */
DT_API dt_result dt_metric_add(dt_metric *metric, const float *y, const void *t,
                               const float *weights, size_t rows);
/* All sums, `count` doubles, which add up over ranks: first the weight. Of classes then the hits,
 * the hits among the top k, the sum of -log softmax, the confusion matrix [target, prediction], and
 * for each class the number of rows that have it as target or prediction; of bins the weight in
 * each of targets 1, then of targets 0. They may be written. NULL for an exact binary metric. */
DT_API double *dt_metric_sums(dt_metric *metric, size_t *count);
/* Adds up all ranks' sums; each then has all of them. All ranks call it once, before the values are
 * asked for. Errors: INVALID (an exact binary metric), and those of dt_comm. */
DT_API dt_result dt_metric_reduce(dt_metric *metric, dt_comm *comm);
/* Computes a value; 0 if nothing was added or all weights are 0 (scikit-learn raises an error).
 * Errors, with *value 0: INVALID (not a measure of this kind; AUROC whose targets with a weight
 * above 0 are not both 0 and 1, where scikit-learn gives a NaN). */
DT_API dt_result dt_metric_get(const dt_metric *metric, dt_measure measure, double *value);
/* Precision, recall, F1 or IoU of one class. Errors as above, and: no such class. */
DT_API dt_result dt_metric_get_class(const dt_metric *metric, dt_measure measure, int class_index,
                                     double *value);
