/* ---- Learning rates by schedule: dt_optim_desc.schedule -----------------------------------------
 *
 * A schedule is data: the rate of a step follows from its number alone, so it is the same on all
 * ranks and after a resume. It is one phase, or several in a row; each counts its own steps, n = 0,
 * 1, ..., and starts from dt_optim_desc.lr, as PyTorch's SequentialLR has it:
 *
 *     .schedule = {{.kind = DT_SCHEDULE_LINEAR, .steps = 500, .start = 0.01},
 *                  {.kind = DT_SCHEDULE_COSINE, .period = 9500}}
 *
 * Lengths are steps of the optimizer. Of a trainer a phase can be told in epochs, each as many
 * steps as its data has batches (dt_trainer_info.epoch_steps):
 *
 *     .schedule = {{.kind = DT_SCHEDULE_LINEAR, .epochs = 0.5, .start = 0.01},
 *                  {.kind = DT_SCHEDULE_COSINE, .epochs = 29.5}}
 *
 * Steps that .skip_empty leaves out do not count. After the last phase the rate is .lr. What
 * dt_step_desc.lr and dt_trainer_set_lr say goes before it. Parameter groups multiply it by their
 * lr_scale. */

/* PyTorch's names stand beside them. lr: dt_optim_desc.lr; T: .period. */
typedef enum dt_schedule_kind {
    DT_SCHEDULE_DEFAULT,     /* constant; without a length: the end of the schedule */
    DT_SCHEDULE_CONSTANT,    /* ConstantLR: lr * start before T, lr behind; T = 0: for ever */
    DT_SCHEDULE_STEP,        /* StepLR: lr * gamma^floor(n / T) */
    DT_SCHEDULE_MULTI_STEP,  /* MultiStepLR: lr * gamma^(how many of .milestones are <= n) */
    DT_SCHEDULE_EXPONENTIAL, /* ExponentialLR: lr * gamma^n */
    DT_SCHEDULE_POLYNOMIAL,  /* PolynomialLR: lr * (1 - n / T)^power, 0 from T on */
    DT_SCHEDULE_LINEAR,      /* LinearLR: from lr * start to lr * end at T, and on */
    DT_SCHEDULE_GEOMETRIC,   /* the same by equal factors: exponential warm-up */
    /* CosineAnnealingLR: from lr to lr_min at T. Behind T it rises again, as PyTorch's does: end
     * the phase there (.steps = T) with a constant behind it to stay. */
    DT_SCHEDULE_COSINE,
    DT_SCHEDULE_COSINE_RESTARTS, /* CosineAnnealingWarmRestarts: periods of T, T * multiply, ... */
    /* OneCycleLR over T steps, by cosines: lr / div_factor up to lr, then down to lr / div_factor /
     * final_div_factor, where it stays. Momentum, or beta1, goes down from max_momentum to base_momentum
     * and back. */
    DT_SCHEDULE_ONE_CYCLE,
    /* Warm-up, stable, decay: 0 to lr in .warmup steps, lr, in the last .decay steps of T linear to
     * lr_min, where it stays. */
    DT_SCHEDULE_WSD,
    DT_SCHEDULE_INVERSE_SQRT, /* 0 to lr in .warmup steps, then lr * sqrt(warmup / n) */
    /* ReduceLROnPlateau: lr * gamma each time that the metric, which dt_trainer_report_metric tells, was
     * no better than its best for more than .patience times. The last phase; in a program without
     * a trainer it is a constant. */
    DT_SCHEDULE_PLATEAU,
    DT_SCHEDULE_CALLBACK /* LambdaLR: lr * rate(user, n) */
} dt_schedule_kind;

/* A field that is 0 means its default, and DT_ZERO means 0. */
typedef struct dt_schedule {
    dt_schedule_kind kind;
    uint64_t steps; /* the phase's; 0 = for ever: the last phase */
    /* In place of .steps, only in a trainer: above 0, as 0.5; INFINITY = for ever. A phase ends at
     * the nearest step and has at least one. Its .period, .warmup, .decay and .milestones are whole
     * epochs. */
    double epochs;
    /* T; 0 = the whole phase, of LINEAR, GEOMETRIC, POLYNOMIAL, COSINE, ONE_CYCLE and WSD; the
     * others that say T need it. */
    uint64_t period;
    double gamma;    /* 0 = 0.1 */
    double start;    /* 0 = 1/3, for GEOMETRIC 0.01, for CONSTANT 1 */
    double end;      /* 0 = 1 */
    double power;    /* 0 = 1 */
    double lr_min;   /* as lr is: groups multiply it too */
    uint32_t t_mult; /* 0 = 1 */
    double div_factor, final_div_factor,
        pct_start;                          /* 0 = 25, 1e4, 0.3: the part of T that goes up */
    double base_momentum, max_momentum;     /* 0 = 0.85, 0.95; both DT_ZERO: momentum stays */
    uint64_t warmup, decay;                 /* steps */
    uint64_t milestones[DT_MAX_MILESTONES]; /* rising; 0 = no more */
    uint32_t patience, cooldown;            /* 0 = 10, UINT32_MAX = 0; 0 = 0 */
    double threshold;                       /* 0 = 1e-4: better is less by so much of the best */
    bool threshold_absolute;                /* by so much in itself */
    bool maximize;                          /* the metric is better when it is larger */
    /* The factor of a step. Called on any thread; it depends on n alone. */
    double (*rate)(void *user, uint64_t n);
    void *user;
} dt_schedule;
