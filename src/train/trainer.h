/* The trainer: its description, its replicas, and its position in the data.
 *
 * The files of this folder in the order in which to read them:
 *
 *   trainer_fields.c         members of its description
 *   compat.h, compat.c       what can be combined
 *   settings.c               defaults and checks
 *   contract.c               what must be the same on all ranks
 *   trainer.c                its life
 *   feed.c                   samples and the loader
 *   shared.c                 inputs that all samples share
 *   make_step.c              a step, from batch to report
 *   steps.c                  steps and epochs
 *   rounds.c                 local steps
 *   balance.c                shares that follow speed
 *   sharing.c                trainers of the same replicas
 *   evaluate.c               losses and metrics over a set, and predictions
 *   plateau.c                a schedule's plateau
 *   names.c                  what a report's numbers are called
 *   watched.c                what a fit watches, in checkpoints
 *   state.c, state_load.c    all state in a file
 *   round_state.c            that of local steps
 *   sharded.c                state in files of all ranks
 *   checkpoints.c            checkpoints of a folder
 *   weights.c                weights in a file, where no rank has all */

typedef struct dti_evaluation { /* programs of the newest dt_trainer_evaluate */
    uint64_t rows;
    uint32_t batch, each; /* of the whole job, and of a replica */
    dt_program **full;    /* by replica */
    dt_program **tail;    /* NULL if a replica has no rows */
    dti_unit_pass pass;   /* with ZeRO-2 and 3 */
    /* In a pipeline, or on tensor ranks: */
    dti_grid_evaluation grid;
    dti_exact *terms;     /* by replica: sums and weights, see micro_step.c */
    const dti_batch *now; /* the current batch */
    dt_step_desc step;    /* of it */
    char said[1024];      /* why the first batch that is not finite is so; "": none is */
    /* dt_trainer_predict's, in place of losses: */
    dt_tensor output; /* nil: none */
    char *out;        /* [rows of the set] */
    size_t out_bytes; /* of a row */
} dti_evaluation;

typedef struct dti_shared { /* an input that all samples share */
    uint32_t node;
    size_t bytes;
    char *values;
    bool written;
} dti_shared;

typedef struct dti_step_batch { /* a step that has begun */
    uint64_t epoch, index;      /* of its batch */
    uint32_t samples;
    bool last;
    double lr;
} dti_step_batch;

typedef struct dti_plateau { /* of a schedule: see plateau.c */
    double best, scale;      /* of the metric; of the rate */
    uint64_t bad, cooldown;
} dti_plateau;

typedef struct dti_watched { /* of the newest fit: see watched.c */
    uint64_t of;             /* the watched value; 0: nothing */
    double best;
    uint64_t best_step, waited, seen_step;
    dt_train_report train; /* of the epoch so far */
    /* The best weights of a fit under way that restores them; else NULL. */
    dti_values_snapshot *weights;
    bool have;   /* the best weights were kept */
    bool loaded; /* from a file, and no fit has gone on from it yet */
} dti_watched;

struct dt_trainer {
    dti_owned owned;            /* first */
    dti_base *base, *comm_base; /* comm_base: .comm's, and NULL without; it follows (DTI_WITH) */
    dt_trainer *first;          /* whose replicas it trains (.replicas_of); NULL: its own */
    dti_owned *others;          /* that train its replicas, newest first */
    bool shares;                /* its replicas are, or were, another one's too */
    const dt_trainer *stepped;  /* of all of these the one that has the newest running statistics */
    dt_graph *graph;
    uint32_t nodes; /* of the graph when its replicas were made: later nodes are not trained */
    dt_trainer_desc desc; /* with its defaults */
    uint64_t asked;       /* bits of compat.h */
    dti_parallel par;
    dti_loader *loader;
    uint64_t epoch, index;      /* of the next batch */
    dti_step_batch round_begun; /* the first step of a round of local steps */
    dti_parallel_result part;   /* the newest local step, within a round */
    dt_optim_desc optim;        /* resolved; of a worker the servers' */
    double lr;                  /* 0 = the optimizer's, DT_ZERO = 0 */
    dti_plateau plateau;
    dti_watched watched;
    double coefficients[DT_MAX_TERMS];
    _Atomic int wanted;          /* checkpoints asked for */
    uint64_t saved, tried;       /* steps of the newest checkpoint, and of the newest attempt */
    uint64_t checkpoints_failed; /* checkpoint_error: why the newest of them failed */
    char checkpoint_error[DT_MAX_REASON_BYTES];
    dti_checkpoint_copy *copy;                /* of .background, for the thread that writes files */
    bool locked;                              /* the folder is locked, on all ranks */
    int lock;                                 /* rank 0's lock file; -1 = not open */
    dti_checkpoint_parts *parts;              /* of .sharded: the newest; NULL: no checkpoint yet */
    bool writing;                             /* the newest checkpoint, on all ranks */
    dti_step_batch begun[DTI_STEP_SLOTS_MAX]; /* as par.steps */
    bool again;                               /* a batch was to be started and is to be again */
    dt_train_report pending; /* of steps that ended between two calls, for the next report */
    dt_result pending_result;
    char said[1024]; /* with it */
    dti_evaluation evaluation;
    dti_shared *shared;
    uint32_t shared_count;
    /* For DT_BALANCE_MEASURED: nanoseconds a sample of each replica of the job; the batch slices'
     * rows, and twice the room for trying others. */
    double *speeds;
    uint32_t *bounds;
    char *words;               /* copies of the description's texts, which are read later */
    bool bounded;              /* bounds hold */
    uint32_t timed;            /* steps that were measured */
    void *worker;              /* of DT_TRAIN_SERVER: the state of server/worker.c; else NULL */
    bool serves;               /* a server's: others compute its steps */
    const uint64_t *keep_from; /* of several servers: checkpoints of this step and later stay */
};

/* Whether it would use the object at that address: itself, its graph, a set. */
static bool dti_trainer_uses(const dt_trainer *t, const void *object);

/* contract.c: the settings and the model as lines of text. */
static void dti_describe_settings(const dt_trainer *t, dti_text *text);

/* trainer.c: programs and the loader for a number of batch slices. */
static dt_result dti_trainer_build(dt_trainer *t, uint32_t batch_slices);
/* Whether a column is for an input with samples of the trainer's graph. */
static dt_result dti_trainer_column(const dt_trainer *t, dt_tensor x, uint32_t c);
/* INVALID: an input of samples has no column among these; set: the set's name, ".data". */
static dt_result dti_trainer_inputs(const dt_trainer *t, const dt_dataset *data, const char *set);
/* The next batch is t->index of t->epoch. */
static dt_result dti_trainer_seek(dt_trainer *t);

static dt_result dti_trainer_lost(dt_trainer *t);
/* OK: it is this process's, and not lost. */
static dt_result dti_trainer_goes_on(dt_trainer *t);
static void dti_report_add(dt_train_report *r, const dti_parallel_result *step);
/* After a batch was started, or its step has ended. */
static void dti_trainer_move_on(dt_trainer *t, bool last);

/* rounds.c */
/* After a local step: a round that ends is added to *r. */
static void dti_trainer_round_step(dt_trainer *t, const dti_parallel_result *step,
                                   dt_train_report *r);
/* What dt_trainer_step reports of a step within a round. */
static void dti_report_part(const dt_trainer *t, dt_train_report *r);
/* INVALID: a round is in progress, and `what` ("be saved") needs weights that are the same on
 * all. */
static dt_result dti_trainer_whole(const dt_trainer *t, const char *what);

/* make_step.c */
/* Ends steps in flight: of all trainers that share replicas; and of it only. */
static void dti_trainer_drain(dt_trainer *t);
static void dti_trainer_drain_own(dt_trainer *t);

/* state.c: as dt_trainer_load, and as dt_trainer_save or _checkpoint */
static dt_result dti_state_load(dt_trainer *t, const char *path);
static dt_result dti_trainer_file(dt_trainer *t, const char *path, bool folder);

/* plateau.c */
static bool dti_trainer_has_plateau(const dt_trainer *t);
static void dti_plateau_reset(dt_trainer *t);
static uint64_t dti_trainer_number(const dt_trainer *t); /* make_step.c */
static double dti_trainer_lr(const dt_trainer *t, uint64_t step);
static double dti_trainer_rate(const dt_trainer *t, const dt_step_desc *step); /* that it uses */

/* names.c: the numbers of a report */
enum { DTI_VALUE_TERM = 1 + DT_MAX_TERMS, DTI_VALUES = DTI_VALUE_TERM + DT_MAX_TERMS };
typedef struct dti_value_room {
    char text[64];
} dti_value_room;
/* NULL: it has none, or is not there. */
static const char *dti_value_name(const dt_trainer *t, int value, dti_value_room *room);
static double dti_value_of(const dt_train_report *r, int value);
static int dti_value_find(const dt_trainer *t, const char *name); /* -1: none */
static dt_result dti_values_check(const dt_trainer *t);

/* shared.c */
static dt_result dti_shared_make(dt_trainer *t); /* once, from the first programs */
static void dti_shared_free(dt_trainer *t);
static dt_result dti_shared_put(dt_trainer *t);           /* their values, into new programs */
static dt_result dti_shared_written(const dt_trainer *t); /* INVALID: one was not, by name */

/* checkpoints.c: checks before the first step that checkpoints can be written; the same on all
 * ranks. Whether a failed checkpoint is the only failure. */
static dt_result dti_trainer_folder(dt_trainer *t);
static dt_result dti_trainer_lock(dt_trainer *t); /* of its folder; to be called again freely */
static bool dti_checkpoint_is_due(const dt_trainer *t, uint64_t step); /* by .every_steps */
static bool dti_checkpoint_is_lost(const dt_trainer *t, dt_result result);
/* Until the newest checkpoint is written, on all ranks, and counts its result. And likewise in a
 * job that lost a rank. */
static dt_result dti_checkpoint_wait(dt_trainer *t);
/* Until the thread here has ended. It waits at most this long for other ranks' parts. */
#define DTI_CHECKPOINT_GRACE_NS UINT64_C(3000000000)
static dt_result dti_checkpoint_join(dt_trainer *t, uint64_t wait_ns);
static void dti_trainer_unlock(dt_trainer *t); /* of its folder */
static dt_result dti_checkpoint_settle(dt_trainer *t);

/* sharing.c: trainers that share replicas */
static inline dt_trainer *dti_trainer_first(dt_trainer *t) {
    return t->first ? t->first : t;
}
/* From the first one on; NULL: there are no more. */
static inline dt_trainer *dti_trainer_next(const dt_trainer *t) {
    return (dt_trainer *)(void *)(t->first ? t->owned.next : t->others);
}
/* Takes the members that are the first trainer's. *desc stays. INVALID, UNSUPPORTED: settings that
 * it cannot have. */
static dt_result dti_sharing_resolve(dt_trainer *t, const dt_trainer_desc *desc);
static dt_result dti_sharing_open(dt_trainer *t); /* after its settings were agreed on */
static void dti_sharing_bind(dt_trainer *t);      /* after its programs were made */
/* No other trainer has a step in flight, and all know of a job that has ended. */
static void dti_sharing_settle(dt_trainer *t);
/* INVALID: `what` ("saved") is the first trainer's. */
static dt_result dti_sharing_is_first(const dt_trainer *t, const char *what);
/* Of a checkpoint: the state of the other trainers in it; on rank 0 INVALID if it has another
 * number of them; and reading it on all ranks, after the first one's state. */
static dt_result dti_sharing_put(const dt_trainer *t, dti_state_extra *x, uint64_t **words);
static dt_result dti_sharing_match(dt_trainer *t, const char *path, const dti_checkpoint *c);
static dt_result dti_sharing_load(dt_trainer *t, const dti_checkpoint *c);
/* The same number of batch slices as the first one. INVALID: it does not fit */
static dt_result dti_sharing_fits(dt_trainer *t, uint32_t batch_slices);
static dt_result dti_sharing_build(dt_trainer *t, uint32_t batch_slices);

/* balance.c */
static dt_result dti_balance_make(dt_trainer *t);
static void dti_balance_add(dt_trainer *t);
static dt_result dti_balance_look(dt_trainer *t, bool epoch_ended);

/* evaluate.c */
static void dti_evaluation_free(dt_trainer *t);
/* Checks a set before any of it is read; this rank's result. */
static dt_result dti_evaluation_check(dt_trainer *t, const dt_dataset *data, int batch);
/* ---- weights.c */
/* Weights, or averages, to a file, on all ranks together: rank 0 writes. No rank needs room for all
 * of them. */
static dt_result dti_weights_save(dt_trainer *t, const char *path, bool averaged);

/* A trainer whose steps are tickets of servers: its calls to server/worker.c, above. */
typedef struct dti_worker_calls {
    dt_result (*open)(dt_trainer *t);  /* connects, and compares settings */
    dt_result (*build)(dt_trainer *t); /* after the first programs */
    dt_result (*join)(dt_trainer *t);  /* the first values */
    void (*close)(dt_trainer *t);
    void (*rows)(const dt_trainer *t, uint32_t rows, uint32_t *first, uint32_t *count);
    uint32_t (*rows_max)(const dt_trainer *t);
    /* Those for batch slices, number 0, 1, ...; NULL: there are no more. */
    dt_program *(*program)(const dt_trainer *t, uint32_t i);
    dt_result (*step)(dt_trainer *t, dt_train_report *r, bool *used);
} dti_worker_calls;
static const dti_worker_calls dti_server_worker;
static inline void *dti_worker_of(const dt_trainer *t) {
    return DTI_HAS_SERVER ? t->worker : NULL;
}
static inline bool dti_serves(const dt_trainer *t) {
    return DTI_HAS_SERVER && t->serves;
}
/* INVALID: `what` is the servers' trainers'. */
static dt_result dti_worker_has_no(const dt_trainer *t, const char *what);
