/* ---- Metrics on the host
 *
 * A dt_metric accumulates outputs of an evaluation program (dt_program_read), batch after batch of
 * any size, on the host, in double. Definitions are scikit-learn's.
 *
 * A mean over samples, such as a loss or dt_accuracy, needs no dt_metric: see
 * dt_program_desc.metrics.
 *
 * Several ranks: each rank adds its own samples, and dt_metric_reduce sums over ranks. */

typedef struct dt_metric dt_metric;

/* What a row is. */
typedef enum dt_metric_kind {
    DT_METRIC_DEFAULT,   /* DT_METRIC_CLASSES */
    DT_METRIC_CLASSES,   /* logits or scores of .classes classes, and the target class */
    DT_METRIC_BINARY,    /* one score, and a target of 0 or 1 */
    DT_METRIC_REGRESSION /* a value, and its target */
} dt_metric_kind;

typedef struct dt_metric_desc {
    dt_metric_kind kind;  /* 0 = CLASSES */
    int classes;          /* CLASSES: the number of classes, at least 2 */
    int top_k;            /* CLASSES: 1 to .classes; 0 = 5, or .classes if that is smaller */
    int32_t ignore_index; /* CLASSES: rows with this target do not count; 0 = -100, DT_ZERO = 0 */
    /* CLASSES: no confusion matrix: only accuracy, top-k and perplexity. Required above 4096
     * classes. */
    bool no_confusion;
    /* BINARY: number of equal bins of [0, 1], up to 2^24; scores in one bin count as equal.
     * 0 = exact scores, 16 bytes a sample, without dt_metric_reduce. */
    int bins;
    double peak; /* REGRESSION: the largest possible value, for PSNR; positive; 0 = 1 */
} dt_metric_desc;

/* The value that dt_metric_get returns.
 *
 * Precision TP / (TP + FP), recall TP / (TP + FN), F1 2 TP / (2 TP + FP + FN) and IoU TP / (TP + FP
 * + FN) regard one class against the rest. 0 / 0 is 0 (zero_division=0).
 *
 * Without _MICRO they are means over classes ('macro'). A class counts if it is the target or the
 * prediction of at least one row, whatever the row's weight. With _MICRO they are computed from the
 * counts of all classes together. */
typedef enum dt_measure {
    DT_MEASURE_WEIGHT,     /* of all kinds: number of rows added, or the sum of their weights */
    DT_MEASURE_ACCURACY,   /* CLASSES, as the others down to IOU_MICRO */
    DT_MEASURE_TOP_K,      /* fraction of rows whose target is among the .top_k largest scores */
    DT_MEASURE_PERPLEXITY, /* e^(mean of -log softmax of the target) */
    /* Means over classes; of one class by dt_metric_get_class. */
    DT_MEASURE_PRECISION,
    DT_MEASURE_RECALL,
    DT_MEASURE_F1,
    DT_MEASURE_IOU,
    /* Of all classes together. */
    DT_MEASURE_PRECISION_MICRO,
    DT_MEASURE_RECALL_MICRO,
    DT_MEASURE_F1_MICRO,
    DT_MEASURE_IOU_MICRO,
    DT_MEASURE_AUROC,             /* BINARY */
    DT_MEASURE_AVERAGE_PRECISION, /* BINARY */
    DT_MEASURE_MAE,         /* REGRESSION, as all below: NaN if any row, of any weight, has a NaN */
    DT_MEASURE_MEAN_SQUARE, /* mean of (y - t)^2 */
    DT_MEASURE_RMSE,        /* the square root of that */
    /* All values count as one output. NaN for one value. If all targets are equal: 1 if all
     * predictions are right, else 0. */
    DT_MEASURE_R2,
    DT_MEASURE_PSNR /* 10 log10(peak^2 / mean square), in dB */
} dt_measure;

/* Creates an empty metric. Errors: INVALID (desc), MEMORY. */
DT_API dt_result dt_metric_create(dt_ctx *ctx, const dt_metric_desc *desc, dt_metric **out);
/* Destroys a metric, before its context is destroyed. */
DT_API void dt_metric_destroy(dt_metric *metric);
/* Removes all samples. */
DT_API void dt_metric_reset(dt_metric *metric);

/* Adds samples.
 * y: f32; CLASSES: [rows, classes]; BINARY and REGRESSION: [rows].
 * t: CLASSES: i32 [rows]; BINARY and REGRESSION: f32 [rows].
 * weights: f32 [rows], finite and not negative; NULL = 1.
 * rows: number of samples; REGRESSION: each value is a row.
 * Errors, with nothing added: INVALID (a class out of range; a score that is NaN in a row that is
 * not ignored; with .bins a score outside of [0, 1]; a binary target that is not 0 or 1; a weight
 * that is negative or not finite), MEMORY. The text names the row, and the column of a NaN. */
DT_API dt_result dt_metric_add(dt_metric *metric, const float *y, const void *t,
                               const float *weights, size_t rows);
/* Returns all sums, `count` doubles that may be written. Sums of ranks can be added.
 * Order: first the weight. CLASSES: then hits, hits among the top k and the sum of -log softmax;
 * the confusion matrix [target, prediction]; and for each class its number of rows. BINARY: then
 * the weight of each bin for target 1, and for target 0. NULL for exact scores (.bins 0). */
DT_API double *dt_metric_sums(dt_metric *metric, size_t *count);
/* Sums over all ranks, so that each has the total. All ranks call it once. Errors: INVALID (BINARY
 * with exact scores), those of dt_comm. */
DT_API dt_result dt_metric_reduce(dt_metric *metric, dt_comm *comm);
/* Computes a value. It is 0 if nothing was added or all weights are 0, where scikit-learn raises an
 * error.
 * Errors, with *value 0: INVALID (not a measure of this kind; AUROC without a positive weight for
 * both targets 0 and 1). */
DT_API dt_result dt_metric_get(const dt_metric *metric, dt_measure measure, double *value);
/* Computes precision, recall, F1 or IoU of one class.
 * Errors, with *value 0: INVALID (another measure; no such class; .no_confusion). */
DT_API dt_result dt_metric_get_class(const dt_metric *metric, dt_measure measure, int class_index,
                                     double *value);
