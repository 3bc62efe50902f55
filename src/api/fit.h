/* ---- Fit: epochs, validation, stopping, the best weights ----------------------------------------
 *
 * dt_trainer_fit is the loop that programs write around dt_trainer_step: epochs, validation, early
 * stopping, the best weights, checkpoints and going on from them. It prints nothing: callbacks see
 * every step, epoch and validation, and dt_progress is one that shows a bar.
 *
 * All ranks call it with the same settings, and stop at the same step: what decides comes from
 * reports, which are the same on all, and what callbacks ask for is agreed on. Ranks may have
 * different callbacks. With DT_TRAIN_LOCAL they agree at rounds' ends, so what a callback asks for
 * and .steps hold from there on, an error of one rank in a round ends the job, and .last is in the
 * middle of a round what dt_trainer_step reports there.
 *
 * Threads: the context's, callbacks too. */

#define DT_MAX_CALLBACKS 8
#define DT_MAX_REASON_BYTES 256 /* bytes of a text that a struct keeps, with its closing 0 */

typedef enum dt_fit_event {
    DT_FIT_BEGIN,     /* before the first step, behind a resume */
    DT_FIT_STEP,      /* behind a step: .last */
    DT_FIT_EPOCH,     /* behind the last step of an epoch: .train is of all of it */
    DT_FIT_VALIDATED, /* behind a validation: .validation, .value, .better */
    DT_FIT_END        /* once, whatever ended it: .stop says what */
} dt_fit_event;

typedef enum dt_fit_stop {
    DT_FIT_RUNNING,
    DT_FIT_DONE,       /* all epochs or steps are made */
    DT_FIT_EARLY_STOP, /* nothing got better for .patience validations */
    DT_FIT_STOPPED,    /* by a callback */
    DT_FIT_FAILED,     /* by an error, which dt_trainer_fit returns */
    DT_FIT_LAST = DT_FIT_FAILED
} dt_fit_stop;

/* What a callback sees. It may call dt_trainer_set_lr (the same on all ranks), _evaluate, _predict,
 * _checkpoint, _save, dt_trainer_store, and what is not the trainer's. _step, _epoch, _wait, _fit,
 * _load, _resume and dt_lr_find of this trainer return BUSY. Destroying the trainer, its graph,
 * context, comm, data or a callback's object does nothing. A callback may set .stop to
 * DT_FIT_STOPPED: no further step is made, on any rank. All else is read only.
 *
 * With .in_flight = 2 on a GPU the next step has begun already: it is made, at the rate of before.
 * Where none may be under way (at an epoch's end, before a checkpoint) one call, and .last, are for
 * the two newest steps. */
typedef struct dt_fit_state {
    dt_trainer *trainer;
    dt_fit_event event;
    dt_fit_stop stop;
    uint64_t epoch, epochs; /* epochs ended, counted from the beginning of training; to be made */
    uint64_t step, steps;   /* steps committed; to be made, by whichever of both ends first */
    uint64_t epoch_steps;   /* of a whole epoch */
    dt_train_report last;  /* of the newest step; .steps 0: it was skipped for a NaN, or none yet */
    dt_train_report train; /* of this epoch so far; its times are of this call */
    dt_train_report validation; /* the newest; .samples 0: none yet */
    uint64_t validations;       /* so many */
    bool validation_follows;    /* DT_FIT_EPOCH: a validation follows */
    uint64_t skipped;           /* steps, or local rounds, for a NaN or infinity; in this call */
    uint64_t not_finite;        /* watched values: NaN, infinite or of no target; in this call */
    double value, best;         /* what is watched: now, and at its best */
    bool better;                /* the newest value is the best */
    uint64_t best_step;         /* the step of the best; 0: none yet */
    uint64_t validations_since_best; /* validations since then */
    /* Checkpoints that could not be written, in this call, and why the newest was not; "": none.
     * Training goes on. */
    uint64_t checkpoints_failed;
    const char *checkpoint_error;
    double seconds;      /* in this call */
    double seconds_left; /* by the steps' mean so far; below 0: not known */
} dt_fit_state;

/* A result other than DT_OK ends the fit on all ranks, and dt_trainer_fit returns it on this one.
 * dt_ctx_error() says which callback returned what, and at which step. A call on this context that
 * failed with that result in this callback keeps its own text. */
typedef dt_result dt_fit_fn(void *user, dt_fit_state *state);
typedef struct dt_callback {
    dt_fit_fn *call;
    void *user;
} dt_callback;

/* The value that is watched: of each validation, or without validation of each epoch's training. A
 * plateau of the optimizer's schedule (DT_SCHEDULE_PLATEAU) gets it too. A NaN, an infinity, or a
 * value without targets (no step ran, or all targets are ignored) counts as not better, also for
 * .patience. The log names the value, its epoch and the op, or says that no target counts;
 * training goes on. */
typedef struct dt_watch {
    /* The name of a metric, or of a term of the loss (dt_trainer_desc.metrics); NULL = "loss" */
    const char *metric;
    bool maximize;    /* is better; a loss's is not */
    double min_delta; /* better by less is no better; Keras' min_delta */
    int patience;     /* stops behind so many without a better one; 0 = never */
    /* At the end all replicas get the weights of the best value; the moments of that time are not
     * kept. Takes the memory of the parameters once, on the host. Happens also when .max_skips ends the
     * fit, and after no other error. */
    bool restore_best;
    /* A safetensors file of the best weights, which rank 0 writes; NULL = none. One that cannot be
     * written is refused before the first step; later it ends the fit with IO. */
    const char *save;
} dt_watch;

typedef struct dt_fit_desc {
    uint64_t epochs; /* counted from the beginning of training, so a resumed fit makes the rest */
    uint64_t steps;  /* the same in steps; 0 = no limit. One of both is needed */
    const dt_dataset *validation; /* NULL = none; wrong columns are refused before the first step */
    int validation_batch;         /* as in dt_trainer_evaluate */
    uint64_t validation_steps;    /* validates every so many steps; 0 = at the end of epochs */
    uint64_t validation_epochs;   /* of every so many epochs; 0 = 1 */
    dt_watch watch;
    /* Where the trainer has a folder .checkpoint.folder, fit goes on from the newest checkpoint there, and
     * writes one at the end of each epoch and where a callback stops it, besides what
     * .checkpoint.every_steps says. They have what
     * .watch has seen (the best value, its step, how long was waited since, with .restore_best its
     * weights), so a fit that was interrupted stops where it would have, with the same bits; one
     * that watches something else begins anew, and so does .no_resume, whatever was loaded. */
    bool no_resume;
    uint64_t max_skips; /* ends with NUMERIC after this number of skipped steps in a row; 0 = 8 */
    dt_callback callbacks[DT_MAX_CALLBACKS]; /* up to the first without .call, in order */
} dt_fit_desc;

/* A validation, or an epoch's end where there is none. */
typedef struct dt_history_entry {
    uint64_t epoch, step;                                    /* epochs ended, steps committed */
    double seconds;                                          /* since the fit began */
    double lr;                                               /* as dt_train_report.lr */
    double loss, metric[DT_MAX_TERMS];                       /* of the epoch so far, in training */
    double validation_loss, validation_metric[DT_MAX_TERMS]; /* 0 without validation; may be NaN */
    bool better;
} dt_history_entry;

typedef struct dt_history {
    dt_ctx *ctx;
    dt_history_entry *entries; /* count of them */
    size_t count, capacity;
    dt_fit_stop stop;
    uint64_t best_step, epochs, steps; /* .epochs, .steps: where it ended */
    double best;                       /* the best watched value; none if .best_step is 0 */
    uint64_t not_finite;               /* watched values: NaN, infinite or of no target */
    uint64_t skipped; /* steps for a NaN or infinity, as in dt_fit_state; also after an error */
    char names[DT_MAX_TERMS][64]; /* of .metric, cut to 63 bytes */
    uint64_t checkpoints_failed;  /* and why the newest was not written, as there */
    char checkpoint_error[DT_MAX_REASON_BYTES];
} dt_history;

/* Trains. history may be NULL; else it is filled in whatever the result, is yours, and is freed
 * with dt_history_destroy; after every error its .stop is DT_FIT_FAILED. What is allocated while it
 * runs are entries of the history and what each validation needs. Errors: INVALID (neither epochs
 * nor steps; .watch of what is not there; a folder without checkpoints is none), what a callback
 * returned, and those of dt_trainer_step but for a NaN, which skips a step (.max_skips), of
 * dt_trainer_evaluate (but for NUMERIC: see dt_watch), dt_trainer_resume and dt_store_save. If no
 * watched value was finite, the result is DT_OK, with a warning in the log and in dt_ctx_error().
 * With .steps and no .epochs: INVALID after an epoch of which .skip_empty left out every step. IO
 * also where .checkpoint.folder cannot be written and steps are to be made. A checkpoint that fails later
 * is an error in the log, is counted in the history and in callbacks, and training goes on. If all
 * steps are made already, the result is DT_OK with an empty history, and the log says so. */
DT_API dt_result dt_trainer_fit(dt_trainer *trainer, const dt_fit_desc *desc, dt_history *history);
/* Frees the entries and clears the struct. NULL is allowed. */
DT_API void dt_history_destroy(dt_history *history);

/* Computes `output` (a tensor of the trainer's graph, f32 or i32, with samples) for all rows of a
 * set, as dt_trainer_evaluate does, and writes it to out: [data->rows, shape of a sample] in the
 * tensor's type. Columns that it does not read may be left out of the set. With several ranks all
 * call it, each computes a share, and all get everything. batch: samples of a replica at a time; 0
 * = as in training. Its programs and buffers are made for the call. Errors: INVALID (bytes that are
 * not those of out; a tensor without samples or of another graph; an input without a column),
 * those of dt_trainer_evaluate. */
DT_API dt_result dt_trainer_predict(dt_trainer *trainer, const dt_dataset *data, dt_tensor output,
                                    int batch, void *out, size_t bytes);

/* ---- A range test of learning rates: steps at rates that grow geometrically from .min to .max, to
 * see where the loss falls fastest, and where it blows up (Smith 2017). It changes nothing: behind
 * it weights, moments, counts and the order of samples are those of before. */

typedef struct dt_lr_find_desc {
    double min, max;  /* 0 = 1e-7 and 10 */
    int steps;        /* from 5 on; 0 = 100 */
    double smoothing; /* of losses, an exponential mean's share of what was; 0 = 0.9, DT_ZERO = 0 */
    const char *file; /* has the state meanwhile; rank 0 writes and removes it, but for a lost job,
                       * or where it cannot be read back; NULL = "dtrain.lr_find.state" in the
                       * working folder: jobs in one folder at once need files of their own. One
                       * that is there and not empty is refused */
} dt_lr_find_desc;

typedef struct dt_lr_point {
    double lr, loss, smooth; /* of a step at that rate; the mean so far, without its bias to 0 */
} dt_lr_point;

typedef struct dt_lr_curve {
    dt_ctx *ctx;
    dt_lr_point *points; /* count of them */
    size_t count;
    bool diverged;     /* it ended early: a NaN, or a mean above 4 times its smallest */
    double suggestion; /* the rate of the steepest descent of .smooth; 0: it falls nowhere */
} dt_lr_curve;

/* All ranks call it with the same settings, and get the same curve and suggestion. desc may be
 * NULL. *curve is yours: dt_lr_curve_destroy. The optimizer's own schedule is not used meanwhile.
 * Errors, with *curve empty and the state as before, but for a lost job: INVALID (NULL, settings, a
 * .file that is there), UNSUPPORTED (DT_TRAIN_LOCAL), IO (the file), those of dt_trainer_step but
 * for a NaN, which ends the test. Where the state cannot be read back (MEMORY, IO), the error says
 * so, and the file stays: dt_trainer_load brings it back. */
DT_API dt_result dt_lr_find(dt_trainer *trainer, const dt_lr_find_desc *desc, dt_lr_curve *curve);
/* Frees the points and clears the struct. NULL is allowed. */
DT_API void dt_lr_curve_destroy(dt_lr_curve *curve);

/* ---- A bar of one line: a callback for dt_fit_desc.callbacks, {dt_progress_show, &progress}. It
 * has the rate, "  lr 0.001", the steps that were skipped for a NaN, and the checkpoints that
 * failed, if any: "  2 skipped  1 checkpoint failed", and at the end why the newest of them did. On
 * a terminal the line is written again as steps end; else, in a file or a pipe, there is one line
 * an epoch, and one where training ends within an epoch, without escape codes. Ranks other than 0
 * are quiet. */

typedef struct dt_progress {
    void *file;        /* a FILE *; NULL = stdout */
    const char *label; /* before the bar; NULL = none */
    int columns;       /* of the line; 0 = the terminal's; < 0: as if there were none */
    double every;      /* seconds between two lines of a terminal; 0 = 0.1 */
    double next;       /* the function's own, as what follows; 0 at first */
    uint64_t shown, before;
} dt_progress;

/* Errors: INVALID (NULL, also .user of the callback; a state that is of no dt_trainer_fit). A
 * stream that cannot be written is none. */
DT_API dt_result dt_progress_show(void *progress, dt_fit_state *state);

/* ---- What a model is made of: a table of its ops with parameters, or all of them */

typedef enum dt_summary_format { DT_SUMMARY_TEXT, DT_SUMMARY_JSON } dt_summary_format;

/* Writes a table of what `output` is computed from, in order: layer, op, shape of a sample, number
 * of parameters, bytes of the result of a sample, multiply-adds of a sample; and totals, with
 * parameters that are trained and those that are not. As snprintf: at most size bytes with the
 * closing 0, and *needed (may be NULL) is what the whole takes, without it. Errors: INVALID (a nil
 * tensor; out NULL with a size), MEMORY. */
DT_API dt_result dt_summary(dt_tensor output, dt_summary_format format, char *out, size_t size,
                            size_t *needed);
