/* ---- Logs of a run: CSV, JSON lines, TensorBoard's event files ----------------------------------
 *
 * A dt_run_log is a folder of files that other programs draw curves from:
 *
 *     scalars.csv                     seconds,step,name,value: a line for each number
 *     scalars.jsonl                   the same as JSON, a line for each number or text
 *     events.out.tfevents.TIME.PID    for `tensorboard --logdir`
 *
 * dt_run_log_fit is a callback of dt_trainer_fit that writes what a report says; the other
 * functions write whatever the program likes to see. Files are made by the first thing that is
 * written, and appended to when a run goes on in the same folder. A line or record that cannot be
 * written whole (a full disk) is taken back, and the log is closed: viewers can open what is there.
 *
 * Threads: the context's; of several ranks one writes to a folder. */

typedef struct dt_run_log dt_run_log;

typedef struct dt_run_log_desc {
    const char *folder;          /* made where it is not there, in a folder that is */
    bool csv, json, tensorboard; /* which files; none of them set = all three */
    int every_steps;             /* dt_run_log_fit: steps between two points of training; 0 = 10 */
} dt_run_log_desc;

/* A setting of a run, for dt_run_log_hparams. */
typedef struct dt_hparam {
    const char *name;
    const char *text; /* its value; NULL: it is `number` */
    double number;
} dt_hparam;

/* Opens a log; makes the folder and looks whether files can be made in it. desc is not kept.
 * Ownership: *out is yours; destroy it before the context. Errors, with *out NULL: INVALID (NULL,
 * no folder, negative steps), IO (the folder cannot be made or written to), UNSUPPORTED (no
 * folders: POSIX is hidden), MEMORY. */
DT_API dt_result dt_run_log_create(dt_ctx *ctx, const dt_run_log_desc *desc, dt_run_log **out);
/* Closes the files. NULL is allowed. */
DT_API void dt_run_log_destroy(dt_run_log *log);

/* Each writes one point of `name` at `step`; names with '/' are grouped by what stands before it.
 * Errors: INVALID (NULL; a name that is empty, not UTF-8, or has control characters), MEMORY, IO:
 * nothing of this call is in a file, and from then on each call returns it without trying. */
DT_API dt_result dt_run_log_scalar(dt_run_log *log, const char *name, uint64_t step, double value);
/* UTF-8; JSON lines and TensorBoard, which shows Markdown. */
DT_API dt_result dt_run_log_text(dt_run_log *log, const char *name, uint64_t step,
                                 const char *text);
/* How `count` values are distributed, in 64 intervals of equal width; TensorBoard alone. NaN and
 * infinities are left out. */
DT_API dt_result dt_run_log_histogram(dt_run_log *log, const char *name, uint64_t step,
                                      const float *values, size_t count);
/* pixels: [height, width, channels] of bytes, channels 1 (grey), 3 (RGB) or 4 (RGBA); to 16384
 * pixels a side; TensorBoard alone. */
DT_API dt_result dt_run_log_image(dt_run_log *log, const char *name, uint64_t step,
                                  const uint8_t *pixels, int width, int height, int channels);
/* The run's settings, once, for TensorBoard's table of runs; in JSON lines "hparams/NAME".
 * metric: the name of the scalar that runs are compared by; NULL = none. */
DT_API dt_result dt_run_log_hparams(dt_run_log *log, const dt_hparam *params, int count,
                                    const char *metric);
/* What was logged behind `step` by an earlier run in this folder is not to be drawn: a run goes on
 * from there. TensorBoard forgets it; in the other files it is a line named "restart". */
DT_API dt_result dt_run_log_restart(dt_run_log *log, uint64_t step);

/* For dt_fit_desc.callbacks, {dt_run_log_fit, log}: train/loss, train/gradient_norm,
 * train/lr, train/samples_per_second and train/METRIC of the newest step each .every_steps steps,
 * validation/loss and validation/METRIC behind validations, epoch/loss and epoch/METRIC of all
 * steps of an epoch, and a restart where the fit resumed. Ranks other than 0 write nothing. A log
 * that cannot be written ends no training: it is an error in the context's log, once. Errors:
 * INVALID (NULL; a state that is of no dt_trainer_fit). */
DT_API dt_result dt_run_log_fit(void *run_log, dt_fit_state *state);

/* Writes a picture as a PNG file, not compressed; it appears complete or not at all. pixels: as
 * dt_run_log_image takes them. Errors: INVALID (NULL, sizes), IO, MEMORY. */
DT_API dt_result dt_png_save(dt_ctx *ctx, const char *path, const uint8_t *pixels, int width,
                             int height, int channels);
