/* ---- Logs of a run: CSV, JSON lines, TensorBoard's event files
 *
 * A dt_run_log is a folder of files:
 *
 *     scalars.csv                     seconds,step,name,value: a line for each number
 *     scalars.jsonl                   the same as JSON, a line for each number or text
 *     events.out.tfevents.TIME.PID    for `tensorboard --logdir`
 *
 * The first write creates a file. A run that is resumed in the same folder appends to it. A line or
 * record that cannot be written completely is removed, and the log is closed.
 *
 * Threads: the context's. Of several ranks only one may write to a folder. */

typedef struct dt_run_log dt_run_log;

typedef struct dt_run_log_desc {
    const char *folder;          /* created if missing, in a folder that exists */
    bool csv, json, tensorboard; /* files to write; none set = all three */
    int every_steps;             /* dt_run_log_fit: steps between training points; 0 = 10 */
} dt_run_log_desc;

/* A setting of a run, for dt_run_log_hparams. */
typedef struct dt_hparam {
    const char *name; /* in TensorBoard's table of runs */
    const char *text; /* value of a text; NULL = the value is .number */
    double number;    /* value, if .text is NULL */
} dt_hparam;

/* Opens a log.
 * Errors: INVALID, IO (the folder cannot be created or written to), UNSUPPORTED (POSIX is hidden,
 * so there are no folders), MEMORY. */
DT_API dt_result dt_run_log_create(dt_ctx *ctx, const dt_run_log_desc *desc, dt_run_log **out);
/* Closes the files, before its context is destroyed. */
DT_API void dt_run_log_destroy(dt_run_log *log);

/* Writes a number. It and the functions below write one point called `name` at `step`.
 * name: viewers group names by the part before a '/'.
 * Errors: INVALID (a name that is empty, not UTF-8 or has control characters), MEMORY, IO (no file
 * has a trace of this call, and later calls return IO). */
DT_API dt_result dt_run_log_scalar(dt_run_log *log, const char *name, uint64_t step, double value);
/* Writes a text to JSON lines and TensorBoard, which shows it as Markdown.
 * text: UTF-8. Errors: as dt_run_log_scalar. */
DT_API dt_result dt_run_log_text(dt_run_log *log, const char *name, uint64_t step,
                                 const char *text);
/* Writes the distribution of `count` values to TensorBoard only, in 64 bins of equal width. NaN and
 * infinities are left out. Errors: as dt_run_log_scalar. */
DT_API dt_result dt_run_log_histogram(dt_run_log *log, const char *name, uint64_t step,
                                      const float *values, size_t count);
/* Writes a picture to TensorBoard only.
 * pixels: bytes, [height, width, channels].
 * width, height: 1 to 16384 pixels.
 * channels: 1 (grey), 3 (RGB) or 4 (RGBA).
 * Errors: as dt_run_log_scalar. */
DT_API dt_result dt_run_log_image(dt_run_log *log, const char *name, uint64_t step,
                                  const uint8_t *pixels, int width, int height, int channels);
/* Writes the settings of the run, once, for TensorBoard's table of runs. In JSON lines they are
 * named "hparams/NAME".
 * metric: name of the scalar to compare runs by. NULL = none.
 * Errors: as dt_run_log_scalar. */
DT_API dt_result dt_run_log_hparams(dt_run_log *log, const dt_hparam *params, int count,
                                    const char *metric);
/* Marks that a run resumes from `step`. TensorBoard drops later points of an earlier run. The other
 * files get a line named "restart".
 * Errors: as dt_run_log_scalar. */
DT_API dt_result dt_run_log_restart(dt_run_log *log, uint64_t step);

/* Logs a dt_trainer_fit. Put {dt_run_log_fit, log} into dt_fit_desc.callbacks.
 *
 *     each .every_steps steps    train/loss, train/METRIC, train/gradient_norm, train/lr,
 *                                train/samples_per_second of the newest step
 *     after a validation         validation/loss, validation/METRIC
 *     after an epoch             epoch/loss, epoch/METRIC over all its steps
 *     if the fit resumed         dt_run_log_restart
 *
 * Workers of a dt_server have no train/lr. Ranks other than 0 write nothing. A log that cannot be
 * written is one error in the context's log; training continues. */
DT_API dt_result dt_run_log_fit(void *run_log, dt_fit_state *state);

/* Writes a picture as an uncompressed PNG file.
 * pixels, width, height, channels: as dt_run_log_image.
 * Errors: INVALID (sizes), IO, MEMORY. */
DT_API dt_result dt_png_save(dt_ctx *ctx, const char *path, const uint8_t *pixels, int width,
                             int height, int channels);
