/* The loop over epochs (src/api/fit.h). It decides when to validate, which weights are the best,
 * and when training ends. It computes nothing itself: steps, evaluation and checkpoints are the
 * trainer's. All decisions are the same on all ranks. Requests of callbacks differ, so ranks agree
 * on them after each step.
 *
 * The files of this folder in the order in which to read them:
 *
 *   fit_desc.c                 what a fit may be asked for
 *   fit_watch.c                validation, and the best weights
 *   fit.c                      steps, callbacks, beginning and end
 *   lr_find.c                  the range test of learning rates
 *   metric.c                   metrics on the host
 *   summary.c                  a model as a table
 *   progress.c                 a bar of one line
 *   log_fit.c, profile_fit.c   a fit's entries of a log and a trace */

typedef struct dti_fit {
    dt_trainer *t;
    const dt_fit_desc *d;
    dt_history *history;
    dt_fit_state s;
    uint64_t began;     /* nanoseconds */
    uint64_t first;     /* steps committed before this call */
    uint64_t failed;    /* checkpoints, before this call */
    uint64_t in_a_row;  /* skipped steps */
    uint64_t empty;     /* steps in a row without a target */
    uint64_t valueless; /* of .not_finite: nothing counted */
    uint64_t seen_step; /* the newest validation's or watched epoch's */
    int watches;        /* number of the value */
    bool asked;         /* to stop, in the middle of a round of local steps */
    dt_result held;     /* a callback's error in the middle of a round */
    bool have_best;
    bool resumed; /* an interrupted fit's values were read */
    /* The best weights; .values is NULL: not wanted. */
    dti_values_snapshot best;
} dti_fit;

/* ---- fit_desc.c: checks a fit's description, on all ranks together. INVALID */
static dt_result dti_fit_check(dt_trainer *t, const dt_fit_desc *d);

/* ---- fit_watch.c */
/* The part of a fit in a checkpoint, wherever one is written. */
static void dti_fit_watched(dti_fit *f);
/* This fit goes on with the watched values of an interrupted one. */
static void dti_fit_take_watched(dti_fit *f);
/* Whether .watch.save can be written, before the steps whose best weights it is for. */
static dt_result dti_fit_probe(const dti_fit *f);
/* The newest value of the watched metric has come. why: why it is not finite, or "". */
static dt_result dti_fit_look(dti_fit *f, const dt_train_report *r, const char *why);
/* A loss that is not finite ends no fit: it is a value that is not better. */
static dt_result dti_fit_validate(dti_fit *f);
/* Restores the best weights, also after too many skipped steps in a row, which all ranks know. The
 * text of `result`, which is returned if it is an error, stays. */
static dt_result dti_fit_put_back(dti_fit *f, dt_result result);
/* Every value of the watched metric was a NaN or infinity: success, and the text reports it. */
static void dti_fit_best_none(const dti_fit *f);

/* ---- fit.c */
/* The callbacks see an event. Their first error. */
static dt_result dti_fit_tell(dti_fit *f, dt_fit_event event);
/* The request or failure of one rank's callbacks holds for all: the largest of the numbers. */
static dt_result dti_fit_agree(dti_fit *f, dt_result own);
static void dti_fit_times(dti_fit *f);
