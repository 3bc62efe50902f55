/* ---- Learning-rate schedules: dt_optim_desc.schedule
 *
 * A schedule is one phase or several in a row, as in PyTorch's SequentialLR. Each phase counts its
 * own steps, n = 0, 1, ..., and starts from dt_optim_desc.lr:
 *
 *     .schedule = {{.kind = DT_SCHEDULE_LINEAR, .steps = 500, .start = 0.01},
 *                  {.kind = DT_SCHEDULE_COSINE, .period = 9500}}
 *
 * Lengths are steps of the optimizer; in a trainer also epochs. The rate depends only on the number
 * of the step. Steps that .skip_empty skips do not count. After the last phase the rate is .lr.
 * dt_step_desc.lr and dt_trainer_set_lr override the schedule. */

/* The rate of step n of a phase. lr: dt_optim_desc.lr; T: .period. */
typedef enum dt_schedule_kind {
    DT_SCHEDULE_DEFAULT,     /* with a length: lr; without one: the end of the schedule */
    DT_SCHEDULE_CONSTANT,    /* ConstantLR: lr * start before T, lr from T on; T = 0: no end */
    DT_SCHEDULE_STEP,        /* StepLR: lr * gamma^floor(n / T) */
    DT_SCHEDULE_MULTI_STEP,  /* MultiStepLR: lr * gamma^(number of .milestones that are <= n) */
    DT_SCHEDULE_EXPONENTIAL, /* ExponentialLR: lr * gamma^n */
    DT_SCHEDULE_POLYNOMIAL,  /* PolynomialLR: lr * (1 - n / T)^power, 0 from T on */
    DT_SCHEDULE_LINEAR,      /* LinearLR: lr * start to lr * end at T, constant from T on */
    DT_SCHEDULE_GEOMETRIC,   /* as LINEAR, but by equal factors: exponential warm-up */
    /* CosineAnnealingLR: from lr to lr_min at T. After T it rises again, as PyTorch's does. To keep
     * lr_min, set .steps = T, and add a DT_SCHEDULE_CONSTANT phase. */
    DT_SCHEDULE_COSINE,
    DT_SCHEDULE_COSINE_RESTARTS, /* CosineAnnealingWarmRestarts: periods T, T * t_mult, ... */
    /* OneCycleLR over T steps, by cosines: lr / div_factor, lr, lr / div_factor / final_div_factor,
     * and constant from T on. Momentum, or beta1: max_momentum, base_momentum, max_momentum. */
    DT_SCHEDULE_ONE_CYCLE,
    /* Warm-up, stable, decay: 0 to lr in .warmup steps, then lr. Linear to lr_min in the last
     * .decay steps of T, constant from T on. */
    DT_SCHEDULE_WSD,
    DT_SCHEDULE_INVERSE_SQRT, /* 0 to lr in .warmup steps, then lr * sqrt(warmup / n) */
    /* ReduceLROnPlateau: lr * gamma, each time that more than .patience values of
     * dt_trainer_report_metric in a row were not better. The last phase. Without a trainer a
     * constant. */
    DT_SCHEDULE_PLATEAU,
    DT_SCHEDULE_CALLBACK /* LambdaLR: lr * rate(user, n) */
} dt_schedule_kind;

/* A phase. */
typedef struct dt_schedule {
    dt_schedule_kind kind; /* 0 = DT_SCHEDULE_DEFAULT */
    uint64_t steps;        /* length of the phase; 0 = without end */
    /* Length in epochs, only in a trainer. INFINITY: without end. Rounded to steps, at least one.
     * .period, .warmup, .decay and .milestones are epochs then. */
    double epochs;
    /* T. 0 = the phase's length for LINEAR, GEOMETRIC, POLYNOMIAL, COSINE, ONE_CYCLE and WSD. STEP
     * and COSINE_RESTARTS require it. */
    uint64_t period;
    double gamma;    /* 0 to 10; 0 = 0.1 */
    double start;    /* 0 = 1/3; of GEOMETRIC 0 = 0.01, of CONSTANT 0 = 1 */
    double end;      /* 0 = 1 */
    double power;    /* 0 = 1; at most 1000 */
    double lr_min;   /* lowest rate; groups multiply it by lr_scale, too; 0 = 0 */
    uint32_t t_mult; /* factor between periods of COSINE_RESTARTS; 0 = 1 */
    /* ONE_CYCLE: see there; pct_start is the share of T in which lr rises. 0 = 25, 1e4 and 0.3. */
    double div_factor, final_div_factor, pct_start;
    /* ONE_CYCLE: see there; below 1. 0 = 0.85 and 0.95. Both DT_ZERO: momentum is not changed. */
    double base_momentum, max_momentum;
    uint64_t warmup, decay;                 /* steps, of WSD and INVERSE_SQRT (warmup: 1 or more) */
    uint64_t milestones[DT_MAX_MILESTONES]; /* ascending; 0 = no more */
    int patience; /* PLATEAU: values allowed without a new best; 0 = 10, DT_ZERO = 0 */
    int cooldown; /* PLATEAU: values after a reduction that do not count towards .patience */
    /* PLATEAU: a better value differs from the best by more than threshold * best. 0 = 1e-4. */
    double threshold;
    bool threshold_absolute; /* PLATEAU: by more than threshold itself */
    bool maximize;           /* PLATEAU: a larger metric is better */
    /* CALLBACK: returns the factor of step n. It must depend only on n, and may be called on any
     * thread. */
    double (*rate)(void *user, uint64_t n);
    void *user; /* passed to rate */
} dt_schedule;
