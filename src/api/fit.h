/* ---- Fit: epochs, validation, stopping, the best weights
 *
 * dt_trainer_fit is a training loop. It prints nothing.
 *
 * Several ranks: all ranks call dt_trainer_fit with the same settings and stop at the same step.
 * Ranks may have different callbacks: their requests are agreed on after each step.
 *
 * DT_TRAIN_LOCAL: a callback's request and .steps take effect at the end of a round. An error of
 * one rank within a round ends the job. Within a round .last holds what dt_trainer_step reports
 * there.
 *
 * Threads: the context's; callbacks run on the thread that called dt_trainer_fit. */

#define DT_MAX_CALLBACKS 8
#define DT_MAX_REASON_BYTES 256 /* the size of an error text in a struct, with its closing 0 */

typedef enum dt_fit_event {
    DT_FIT_BEGIN,     /* before the first step, after a resume */
    DT_FIT_STEP,      /* after a step: see .last */
    DT_FIT_EPOCH,     /* after the last step of an epoch: .train covers the epoch */
    DT_FIT_VALIDATED, /* after a validation: see .validation, .value, .better */
    DT_FIT_END        /* once, also after an error: .stop is the reason */
} dt_fit_event;

typedef enum dt_fit_stop {
    DT_FIT_STOP_NONE,     /* training continues */
    DT_FIT_STOP_DONE,     /* all epochs or steps are done */
    DT_FIT_STOP_EARLY,    /* no better watched value .watch.patience times in a row */
    DT_FIT_STOP_CALLBACK, /* a callback asked for it */
    DT_FIT_STOP_FAILED    /* an error, which dt_trainer_fit returns */
} dt_fit_stop;

/* The state of training, as a callback sees it. All members but .stop are read only.
 *
 * A callback may call dt_trainer_set_lr (with the same rate on all ranks), dt_trainer_evaluate,
 * _predict, _checkpoint, _save, dt_trainer_store, and functions that do not use the trainer. BUSY:
 * dt_trainer_step, _epoch, _wait, _fit, _load, _resume, dt_lr_find. Destroying the trainer, its
 * graph, context, comm, data or a callback's object does nothing.
 *
 * .in_flight = 2 on a GPU: the next step has already started, and it uses the old learning rate.
 * At an epoch's end and before a checkpoint no step may be in flight. There one call, with .last,
 * covers the two newest steps. */
typedef struct dt_fit_state {
    dt_trainer *trainer;    /* the trainer */
    dt_fit_event event;     /* why it is called */
    dt_fit_stop stop;       /* a callback may set DT_FIT_STOP_CALLBACK: no rank then starts a
                             * step */
    uint64_t epoch, epochs; /* completed since training began; at the end (dt_fit_desc.epochs) */
    uint64_t step, steps;   /* committed since then; at the end, by .epochs and .steps */
    uint64_t epoch_steps;   /* steps of a full epoch */
    dt_train_report last;   /* the newest step; .steps 0: skipped for a NaN, or no step yet */
    dt_train_report train;  /* this epoch so far; its times are of this call only */
    dt_train_report validation; /* the newest; .samples 0: no validation yet */
    uint64_t validations;       /* number of validations in this call */
    bool validation_follows;    /* DT_FIT_EPOCH: a validation follows */
    uint64_t skipped;    /* steps (or local rounds) skipped for a NaN or infinity, this call */
    uint64_t not_finite; /* watched values in this call: NaN, infinite or without targets */
    double value, best;  /* the watched value; the best so far */
    bool better;         /* the newest watched value is the best */
    uint64_t best_step;  /* the step of the best value; 0 = none yet */
    uint64_t validations_since_best; /* watched values since the best */
    uint64_t checkpoints_failed;     /* checkpoints not written in this call; training continues */
    const char *checkpoint_error;    /* why the newest of them failed; "" = none failed */
    double seconds;                  /* since this call began */
    double seconds_left;             /* estimate by the mean time of a step; negative = not known */
} dt_fit_state;

/* Sees the state of a fit, and may stop it. A result other than DT_OK ends the fit on all ranks.
 * dt_trainer_fit returns it on this rank. dt_ctx_error() names the callback and the step, or has
 * the text of the callback's own call that failed so. */
typedef dt_result dt_fit_fn(void *user, dt_fit_state *state);
typedef struct dt_callback {
    dt_fit_fn *call; /* called at each dt_fit_event; NULL ends the list */
    void *user;      /* passed to it */
} dt_callback;

/* The watched value, of each validation, or of each epoch's training without one. A
 * DT_SCHEDULE_PLATEAU phase gets it too. A value that is NaN, infinite or without targets (no step
 * ran, or all are ignored) counts as not better. The log names it. */
typedef struct dt_watch {
    const char *metric; /* name of a metric or loss term (dt_trainer_desc.metrics); NULL = "loss" */
    bool maximize;      /* larger is better; false for a loss */
    double min_delta;   /* an improvement of at most this does not count; not negative */
    int patience; /* stop after this number of watched values without a better one; 0 = never */
    /* Restore the best weights at the end, also after .max_skips, but after no other error. Moments
     * stay. Each process keeps a copy of its parameters. Not with dt_trainer_desc.averaged. */
    bool restore_best;
    /* A safetensors file of the best weights, written by rank 0; NULL = no file. IO if it cannot be
     * written, also before the first step. */
    const char *save;
} dt_watch;

/* What to train, and when to validate, stop and resume.
 *
 * Resuming: needs dt_trainer_desc.checkpoint.folder. If the trainer has made no step, the fit first
 * loads the newest checkpoint of that folder. It writes one at the end of each epoch, where the
 * fit ends without an error, and every .checkpoint.every_steps. A checkpoint holds the state of
 * .watch, and with .restore_best the best weights. So an interrupted fit stops where it would have
 * stopped, with the same bits. The state of .watch starts again if .watch.metric or .maximize
 * changed, and with .no_resume. After dt_trainer_resume or _load by the program it continues, but
 * without the best weights.
 *
 * Ranks: all give the same description, but for .callbacks; else INVALID, with the first
 * difference. Of .watch.save each rank says whether it is set, and rank 0 where it is. */
typedef struct dt_fit_desc {
    uint64_t epochs;              /* since training began; 0 = no limit */
    uint64_t steps;               /* likewise, in steps. At least one limit is required */
    const dt_dataset *validation; /* NULL = none; its columns are checked before the first step */
    int validation_batch;         /* as `batch` of dt_trainer_evaluate */
    /* Validate every this number of steps; 0 = at ends of epochs. Not with DT_TRAIN_LOCAL. */
    uint64_t validation_steps;
    uint64_t validation_epochs; /* every this number of epochs; 0 = 1; not with .validation_steps */
    dt_watch watch;             /* {0}: the loss */
    bool no_resume;             /* see above */
    uint64_t max_skips;         /* NUMERIC after this number of skipped steps in a row; 0 = 8 */
    dt_callback callbacks[DT_MAX_CALLBACKS]; /* called in order, up to the first without .call */
} dt_fit_desc;

/* One row: a validation, or an epoch's end if there is no validation. */
typedef struct dt_history_entry {
    uint64_t epoch, step; /* epochs completed, steps committed */
    double seconds;       /* since the fit began */
    double lr;            /* as dt_train_report.lr */
    /* of training, in the epoch so far */
    double loss, metric[DT_MAX_TERMS];
    double validation_loss, validation_metric[DT_MAX_TERMS]; /* 0 without validation; may be NaN */
    /* the best watched value so far */
    bool better;
} dt_history_entry;

/* The history of a fit. */
typedef struct dt_history {
    dt_ctx *ctx;                       /* has the memory */
    dt_history_entry *entries;         /* [count] */
    size_t count, capacity;            /* entries; room for entries */
    dt_fit_stop stop;                  /* why the fit ended */
    uint64_t best_step, epochs, steps; /* step of the best value, 0 = none; where the fit ended */
    double best;                       /* the best watched value; unset if best_step is 0 */
    uint64_t not_finite;               /* watched values: NaN, infinite or without targets */
    uint64_t skipped;                  /* as dt_fit_state.skipped; also set after an error */
    char names[DT_MAX_TERMS][64];      /* of .metric, cut to 63 bytes */
    uint64_t checkpoints_failed;       /* as dt_fit_state.checkpoints_failed */
    char checkpoint_error[DT_MAX_REASON_BYTES]; /* why the newest of them failed */
} dt_history;

/* Trains a model until an end of desc, a callback or an error stops it.
 *
 * history: may be NULL. It is filled in whatever the result; after every error .stop is
 * DT_FIT_STOP_FAILED. Free it with dt_history_destroy.
 *
 * A NaN or infinity in training skips the step; see .max_skips. If no watched value was finite, the
 * result is DT_OK, with a warning in the log and in dt_ctx_error().
 *
 * A checkpoint that fails after the first step is an error in the log, and training continues. If
 * all steps are done already, the result is DT_OK with an empty history.
 *
 * Errors: INVALID (neither epochs nor steps; a .watch.metric that does not exist; without .epochs,
 * an epoch of which .skip_empty left out every step; of a stream without .rows: .epochs, or a
 * .validation without .validation_steps), NUMERIC (.max_skips), IO (.checkpoint.folder or
 * .watch.save cannot be written and steps remain), and what a callback returned. Also those of
 * dt_trainer_step, dt_trainer_evaluate (except NUMERIC), dt_trainer_resume and dt_store_save. */
DT_API dt_result dt_trainer_fit(dt_trainer *trainer, const dt_fit_desc *desc, dt_history *history);
/* Frees the entries and clears the struct, before its context is destroyed. */
DT_API void dt_history_destroy(dt_history *history);

/* Computes a tensor for all rows of a dataset, as dt_trainer_evaluate does, and writes it to out.
 * All ranks call it; each computes a share, and all get all rows.
 * data: may lack columns of inputs that `output` does not depend on.
 * output: a tensor of the trainer's graph with samples, f32 or i32.
 * batch: samples of a replica at a time; 0 = as in training.
 * out: [data->rows, shape of a sample] in the tensor's type; bytes: its exact size.
 * Errors: INVALID (bytes; a tensor without samples, or of another graph; with several replicas or
 * stages, a tensor made after the trainer; an input without a column), UNSUPPORTED (another type; a
 * tensor that stages or tensor ranks do not have), those of dt_trainer_evaluate. */
DT_API dt_result dt_trainer_predict(dt_trainer *trainer, const dt_dataset *data, dt_tensor output,
                                    int batch, void *out, size_t bytes);

/* ---- Learning-rate range test
 *
 * dt_lr_find makes steps at rates that grow geometrically from .min to .max (Smith 2017).
 * Afterwards weights, moments, counts and the order of samples are as before. */

typedef struct dt_lr_find_desc {
    double min, max;  /* 0 = 1e-7 and 10; 0 < min < max */
    int steps;        /* 5 to 1000000; 0 = 100 */
    double smoothing; /* decay of the losses' exponential mean, in [0, 1); 0 = 0.9, DT_ZERO = 0 */
    /* Holds the state during the test; rank 0 writes and removes it. NULL = "dtrain.lr_find.state"
     * in the working folder. Concurrent jobs in one folder need different files. */
    const char *file;
} dt_lr_find_desc;

typedef struct dt_lr_point {
    double lr, loss, smooth; /* rate and loss of a step; bias-corrected mean of losses so far */
} dt_lr_point;

typedef struct dt_lr_curve {
    dt_ctx *ctx;         /* has the memory */
    dt_lr_point *points; /* [count] */
    size_t count;        /* steps that were made */
    bool diverged;       /* stopped early: a NaN, or .smooth above 4 times its smallest value */
    double suggestion;   /* the rate where .smooth falls fastest; 0 = it falls nowhere */
} dt_lr_curve;

/* Runs a learning-rate range test. All ranks call it with the same settings, and get the same
 * curve. The optimizer's own schedule is not used.
 * curve: free it with dt_lr_curve_destroy.
 *
 * .file stays if the job is lost, or if the state cannot be read back (MEMORY, IO). dt_trainer_load
 * restores the state from it.
 *
 * Errors, with *curve empty and the state as before, except after a lost job: INVALID (a setting
 * out of range; .file exists and is not empty; a server's worker; a stream without .seek),
 * UNSUPPORTED (DT_TRAIN_LOCAL), IO (.file), those of dt_trainer_step except a NaN, which ends the
 * test. */
DT_API dt_result dt_lr_find(dt_trainer *trainer, const dt_lr_find_desc *desc, dt_lr_curve *curve);
/* Frees the points and clears the struct, before its context is destroyed. */
DT_API void dt_lr_curve_destroy(dt_lr_curve *curve);

/* ---- Progress bar
 *
 * A callback for dt_fit_desc.callbacks: {dt_progress_show, &progress}. On a terminal it rewrites
 * one line as steps end. In a file or pipe each epoch has a line. Ranks other than 0 print
 * nothing. */

typedef struct dt_progress {
    void *file;             /* a FILE *; NULL = stdout */
    const char *label;      /* text before the bar; NULL = none */
    int columns;            /* width of the line; 0 = the terminal's; negative: not a terminal */
    double every;           /* seconds between two updates on a terminal; 0 = 0.1 */
    double next;            /* internal; 0 at first */
    uint64_t shown, before; /* internal; 0 at first */
} dt_progress;

/* Shows the progress of a fit. It ignores errors of writing.
 * Errors: INVALID (a state not made by dt_trainer_fit). */
DT_API dt_result dt_progress_show(void *progress, dt_fit_state *state);

/* ---- Model summary */

typedef enum dt_summary_format {
    DT_SUMMARY_TEXT, /* lines with aligned columns */
    DT_SUMMARY_JSON  /* one object */
} dt_summary_format;

/* Writes a table of the ops that `output` is computed from, and totals. A row has layer, op, number
 * of parameters; and for one sample shape, bytes of the result and multiply-adds.
 * out, size: as for snprintf: at most `size` bytes with the closing 0.
 * needed: the length of the text, without the closing 0; may be NULL.
 * Errors: INVALID (a nil tensor; out NULL with a size), MEMORY. */
DT_API dt_result dt_summary(dt_tensor output, dt_summary_format format, char *out, size_t size,
                            size_t *needed);
