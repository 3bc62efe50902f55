/* Learning rates by schedule. Phases are data, and a step's number decides its rate. Ranks compare
 * rates bit for bit. So functions other than IEEE 754's basic operations are computed here, not by
 * the machine's libm. Reference: torch.optim.lr_scheduler; transformers' for warm-up, stable, decay
 * and the inverse square root. */

/* ---- functions with the same bits on every machine */

static double dti_rate_power(double base, uint64_t n) {
    double y = 1.0;
    for (; n; n >>= 1, base *= base)
        y *= n & 1 ? base : 1.0;
    return y;
}

/* base^p; base >= 0. */
static double dti_rate_pow(double base, double p) {
    if (p >= 0.0 && p <= 64.0 && p == floor(p))
        return dti_rate_power(base, (uint64_t)p);
    return base < 1e-300 ? 0.0 : dti_exp(p * dti_ln(base));
}

/* (1 + cos(pi x)) / 2 for x in [0, 1], = 1 - sin^2(pi x / 2), by Taylor's series. */
static double dti_rate_cosine(double x) {
    const double a = 1.57079632679489661923 * (x <= 0.5 ? x : 1.0 - x), aa = a * a;
    double sum = 1.0;
    for (int k = 12; k > 0; k--)
        sum = fma(sum, -aa / (2.0 * k * (2.0 * k + 1.0)), 1.0);
    const double square = a * sum * (a * sum);
    return x <= 0.5 ? 1.0 - square : square;
}

/* ---- a phase */

/* Kinds that go to an end, for which the phase's is as good as any. */
static bool dti_rate_ends(dt_schedule_kind kind) {
    return (kind >= DT_SCHEDULE_POLYNOMIAL && kind <= DT_SCHEDULE_COSINE) ||
           kind == DT_SCHEDULE_ONE_CYCLE || kind == DT_SCHEDULE_WSD;
}

static void dti_rate_resolve(dt_schedule *s) {
    if (!s->period && dti_rate_ends(s->kind))
        s->period = s->steps;
    s->start = dti_or(s->start, s->kind == DT_SCHEDULE_LINEAR      ? 1.0 / 3.0
                                : s->kind == DT_SCHEDULE_GEOMETRIC ? 0.01
                                                                   : 1.0);
    dti_fields_resolve(&dti_schedule_fields, s);
}

/* n / of, at most 1. */
static double dti_rate_part(uint64_t n, double of) {
    return (double)n < of ? (double)n / of : 1.0;
}

static double dti_rate_between(double from, double to, double part) {
    return from + (to - from) * part;
}

/* The place in a period that repeats, from 0 to 1; PyTorch's cosine goes down and up. */
static double dti_rate_turn(const dt_schedule *s, uint64_t n) {
    uint64_t period = s->period;
    if (s->kind == DT_SCHEDULE_COSINE) {
        const uint64_t at = n % (2 * period);
        return (double)(at <= period ? at : 2 * period - at) / (double)period;
    }
    while (n >= period && s->t_mult > 1) {
        n -= period;
        period = period > UINT64_MAX / s->t_mult ? UINT64_MAX : period * s->t_mult;
    }
    return (double)(n % period) / (double)period;
}

/* Where one cycle is: 0 at its ends, 1 at its height. */
static double dti_rate_height(const dt_schedule *s, uint64_t n, bool *down) {
    const double top = s->pct_start * (double)s->period - 1.0, end = (double)s->period - 1.0;
    *down = (double)n > top;
    if (!*down)
        return 1.0 - dti_rate_cosine(top > 0.0 ? (double)n / top : 1.0);
    const double part = (double)n < end ? ((double)n - top) / (end - top) : 1.0;
    return dti_rate_cosine(part);
}

static double dti_rate_one_cycle(const dt_schedule *s, double lr, uint64_t n) {
    bool down;
    const double height = dti_rate_height(s, n, &down), low = lr / s->div_factor;
    return dti_rate_between(down ? low / s->final_div_factor : low, lr, height);
}

static double dti_rate_wsd(const dt_schedule *s, double lr, uint64_t n) {
    const uint64_t falls = s->period - s->decay;
    if (n < s->warmup)
        return lr * dti_rate_part(n, (double)s->warmup);
    return n < falls ? lr
                     : dti_rate_between(lr, s->lr_min, dti_rate_part(n - falls, (double)s->decay));
}

static double dti_rate_milestones(const dt_schedule *s, uint64_t n) {
    uint64_t passed = 0;
    while (passed < DT_MAX_MILESTONES && s->milestones[passed] && s->milestones[passed] <= n)
        passed++;
    return dti_rate_power(s->gamma, passed);
}

static double dti_rate_asked(const dt_schedule *s, uint64_t n) {
    dti_visit visit;
    dti_visit_host(&visit, NULL, DTI_IN_VALUES);
    const double rate = s->rate(s->user, n);
    dti_visit_returned(&visit);
    return rate;
}

/* The rate of step n of a resolved phase. */
static double dti_rate_rate(const dt_schedule *s, double lr, uint64_t n) {
    const double part = s->period ? dti_rate_part(n, (double)s->period) : 0.0;
    switch (s->kind) {
    case DT_SCHEDULE_CONSTANT: return s->period && n >= s->period ? lr : lr * s->start;
    case DT_SCHEDULE_STEP: return lr * dti_rate_power(s->gamma, n / s->period);
    case DT_SCHEDULE_MULTI_STEP: return lr * dti_rate_milestones(s, n);
    case DT_SCHEDULE_EXPONENTIAL: return lr * dti_rate_power(s->gamma, n);
    case DT_SCHEDULE_POLYNOMIAL: return lr * dti_rate_pow(1.0 - part, s->power);
    case DT_SCHEDULE_LINEAR: return lr * dti_rate_between(s->start, s->end, part);
    case DT_SCHEDULE_GEOMETRIC: return lr * s->start * dti_exp(part * dti_ln(s->end / s->start));
    case DT_SCHEDULE_COSINE:
    case DT_SCHEDULE_COSINE_RESTARTS:
        return dti_rate_between(s->lr_min, lr, dti_rate_cosine(dti_rate_turn(s, n)));
    case DT_SCHEDULE_ONE_CYCLE: return dti_rate_one_cycle(s, lr, n);
    case DT_SCHEDULE_WSD: return dti_rate_wsd(s, lr, n);
    case DT_SCHEDULE_INVERSE_SQRT:
        return n < s->warmup ? lr * dti_rate_part(n, (double)s->warmup)
                             : lr * sqrt((double)s->warmup / (double)n);
    case DT_SCHEDULE_CALLBACK: return lr * dti_rate_asked(s, n);
    default: return lr;
    }
}

/* ---- the schedule */

static bool dti_rate_empty(const dt_schedule *s) {
    return s->kind == DT_SCHEDULE_DEFAULT && !s->steps && s->epochs == 0.0;
}

static uint64_t dti_rate_steps(uint64_t epochs, uint64_t each) {
    return epochs > UINT64_MAX / each ? UINT64_MAX : epochs * each;
}

static void dti_rate_phase_in_steps(dt_schedule *s, uint64_t each) {
    s->period = dti_rate_steps(s->period, each);
    s->warmup = dti_rate_steps(s->warmup, each);
    s->decay = dti_rate_steps(s->decay, each);
    for (int i = 0; i < DT_MAX_MILESTONES; i++)
        s->milestones[i] = dti_rate_steps(s->milestones[i], each);
    s->epochs = 0.0;
}

/* Ends are rounded, not lengths, so that phases add up. Errors are left to dti_rate_check. */
static void dti_rate_in_steps(dt_optim_desc *d, uint64_t each) {
    double at = 0.0;
    for (int k = 0; k < DT_MAX_PHASES; k++) {
        dt_schedule *s = &d->schedule[k];
        const double begin = floor(at + 0.5);
        at += (double)s->steps;
        if (s->steps || !(s->epochs > 0.0))
            continue;
        at += s->epochs * (double)each;
        if (at < 0x1p53)
            s->steps = (uint64_t)DTI_MAX(floor(at + 0.5) - begin, 1.0);
        dti_rate_phase_in_steps(s, each);
    }
}

static const dt_schedule *dti_rate_phase(const dt_optim_desc *d, uint64_t step, uint64_t *n) {
    uint32_t k = 0;
    *n = step ? step - 1 : 0;
    while (k + 1 < DT_MAX_PHASES && d->schedule[k].steps && *n >= d->schedule[k].steps)
        *n -= d->schedule[k++].steps;
    return dti_rate_empty(&d->schedule[0]) ? NULL : &d->schedule[k];
}

static double dti_optim_lr_at(const dt_optim_desc *resolved, double given, uint64_t step) {
    uint64_t n;
    const dt_schedule *phase = dti_rate_phase(resolved, step, &n);
    return given != 0.0 || !phase ? dti_or(given, resolved->lr)
                                  : dti_rate_rate(phase, resolved->lr, n);
}

static const dt_optim_desc *dti_optim_at(const dt_optim_desc *resolved, uint64_t step,
                                         dt_optim_desc *room) {
    uint64_t n;
    bool down;
    const dt_schedule *s = dti_rate_phase(resolved, step, &n);
    if (!s || s->kind != DT_SCHEDULE_ONE_CYCLE || s->max_momentum == 0.0 ||
        (resolved->kind == DT_OPTIM_SGD && resolved->momentum == 0.0))
        return resolved;
    *room = *resolved;
    const double height = dti_rate_height(s, n, &down);
    double *momentum = resolved->kind == DT_OPTIM_SGD ? &room->momentum : &room->beta1;
    *momentum = dti_rate_between(s->max_momentum, s->base_momentum, height);
    return room;
}

/* ---- its errors */

static bool dti_rate_has(dti_text *problems, int phase, const char *what, double value,
                         double least, double most) {
    if (value >= least && value <= most)
        return true;
    dti_text_add(problems, "\n- optimizer: .schedule[%d].%s is ", phase, what);
    dti_text_add_number(problems, value);
    dti_text_add(problems, "; it must be from ");
    dti_text_add_number(problems, least);
    dti_text_add(problems, " to ");
    dti_text_add_number(problems, most);
    return false;
}

static void dti_rate_check_period(const dt_schedule *s, int phase, dti_text *problems) {
    const bool free = s->kind == DT_SCHEDULE_DEFAULT || s->kind == DT_SCHEDULE_CONSTANT ||
                      s->kind == DT_SCHEDULE_MULTI_STEP || s->kind == DT_SCHEDULE_EXPONENTIAL ||
                      s->kind == DT_SCHEDULE_INVERSE_SQRT || s->kind >= DT_SCHEDULE_PLATEAU;
    const double most = 0x1p53;
    if (!free && !s->period) {
        dti_text_add(problems, "\n- optimizer: .schedule[%d] has no %s", phase,
                     dti_rate_ends(s->kind) ? "length: give .steps, .epochs or .period"
                                            : ".period");
        return;
    }
    dti_rate_has(problems, phase, "period", (double)s->period,
                 s->kind == DT_SCHEDULE_ONE_CYCLE ? 2.0 : 0.0, most);
    dti_rate_has(problems, phase, "warmup", (double)s->warmup, s->kind == DT_SCHEDULE_INVERSE_SQRT,
                 most);
    if (s->kind == DT_SCHEDULE_WSD && (s->warmup > s->period || s->decay > s->period - s->warmup))
        dti_text_add(problems, "\n- optimizer: .schedule[%d]: .warmup and .decay exceed .period",
                     phase);
    for (int i = 0; i + 1 < DT_MAX_MILESTONES && s->milestones[i + 1]; i++) {
        if (s->milestones[i] >= s->milestones[i + 1])
            dti_text_add(problems,
                         "\n- optimizer: .schedule[%d].milestones[%d] is not below the next one",
                         phase, i);
    }
}

static void dti_rate_check_epochs(const dt_schedule *s, int phase, dti_text *problems) {
    if (s->epochs == 0.0 ||
        !dti_rate_has(problems, phase, "epochs", s->epochs, 0.0, (double)INFINITY))
        return;
    dti_text_add(problems, "\n- optimizer: .schedule[%d] has .epochs%s", phase,
                 s->steps ? " and .steps; give one"
                          : ", which only a trainer can convert; give .steps here "
                            "(dt_trainer_info.epoch_steps; a stream needs .data.rows)");
}

/* goes_on: another phase follows. */
static void dti_rate_check_phase(const dt_schedule *s, int phase, bool goes_on,
                                 dti_text *problems) {
    dti_rate_check_epochs(s, phase, problems);
    dti_optim_problems(problems, ".schedule", phase, &dti_schedule_fields, s);
    const bool geometric = s->kind == DT_SCHEDULE_GEOMETRIC;
    if (geometric && s->start >= 0.0)
        dti_rate_has(problems, phase, "start", s->start, 1e-30, (double)INFINITY);
    if (geometric && s->end >= 0.0)
        dti_rate_has(problems, phase, "end", s->end, 1e-30, (double)INFINITY);
    if (s->kind == DT_SCHEDULE_CALLBACK && !s->rate)
        dti_text_add(problems, "\n- optimizer: .schedule[%d] has no .rate", phase);
    const bool length = s->steps || s->period || !goes_on; /* else dti_rate_check says it */
    if (s->epochs == 0.0 && length)
        dti_rate_check_period(s, phase, problems);
}

static void dti_rate_check(const dt_optim_desc *d, dti_text *problems) {
    bool ended = false;
    for (int k = 0; k < DT_MAX_PHASES; k++) {
        const dt_schedule *s = &d->schedule[k];
        if (ended && !dti_rate_empty(s))
            dti_text_add(problems,
                         "\n- optimizer: .schedule[%d] is never reached: the phase before it has "
                         "no end; give that .steps or .epochs",
                         k);
        if (!ended && !(k && dti_rate_empty(s)))
            dti_rate_check_phase(s, k, k + 1 < DT_MAX_PHASES && !dti_rate_empty(s + 1), problems);
        ended = ended || (!s->steps && s->epochs == 0.0);
    }
}
