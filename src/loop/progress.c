/* A progress bar of one line for dt_trainer_fit. The library prints only this, and only if the
 * program passes it as a callback. On a terminal each line overwrites the one before, padded with
 * blanks, without escape codes. Elsewhere each epoch is a line. A failed write is not an error:
 * training goes on. */

#define DTI_PROGRESS_BAR 24

typedef struct dti_progress_line {
    char text[512];
    size_t size;
} dti_progress_line;

static void dti_progress_add(dti_progress_line *line, const char *format, ...) DTI_PRINTF(2, 3);

/* A line that does not fit is cut off. */
static void dti_progress_add(dti_progress_line *line, const char *format, ...) {
    const size_t room = sizeof line->text - line->size;
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(line->text + line->size, room, format, list);
    va_end(list);
    line->size += n < 0 ? 0 : DTI_MIN((size_t)n, room - 1);
}

static void dti_progress_time(dti_progress_line *line, double seconds, const char *what) {
    if (!(seconds >= 0.0 && seconds <= 1e9))
        return;
    const uint64_t s = (uint64_t)(seconds + 0.5);
    if (s >= 3600)
        dti_progress_add(line, "  %llu:%02llu:%02llu%s", (unsigned long long)(s / 3600),
                         (unsigned long long)(s / 60 % 60), (unsigned long long)(s % 60), what);
    else
        dti_progress_add(line, "  %llu:%02llu%s", (unsigned long long)(s / 60),
                         (unsigned long long)(s % 60), what);
}

static void dti_progress_values(dti_progress_line *line, const dt_train_report *r,
                                const dt_trainer *t, const char *of) {
    for (int i = 0; i < DTI_VALUES; i++) {
        dti_value_room room;
        const char *name = dti_value_name(t, i, &room);
        if (name)
            dti_progress_add(line, "  %s%s %.4g", of, name, dti_value_of(r, i));
    }
}

static void dti_progress_failed(dti_progress_line *line, const dt_fit_state *s) {
    if (s->checkpoints_failed)
        dti_progress_add(line, "  %llu checkpoint%s failed",
                         (unsigned long long)s->checkpoints_failed,
                         s->checkpoints_failed == 1 ? "" : "s");
}

/* For a NaN, so far; and checkpoints. */
static void dti_progress_skipped(dti_progress_line *line, const dt_fit_state *s) {
    if (s->skipped)
        dti_progress_add(line, "  %llu skipped", (unsigned long long)s->skipped);
    dti_progress_failed(line, s);
}

static void dti_progress_head(dti_progress_line *line, const dt_progress *p,
                              const dt_fit_state *s) {
    const unsigned long long epoch = s->epoch + (s->last.epoch_ended ? 0 : 1); /* of the step */
    if (p->label)
        dti_progress_add(line, "%s  ", p->label);
    if (s->epochs)
        dti_progress_add(line, "epoch %llu/%llu", epoch, (unsigned long long)s->epochs);
    else
        dti_progress_add(line, "epoch %llu", epoch);
    dti_progress_add(line, "  step %llu", (unsigned long long)s->step);
    dti_progress_skipped(line, s);
}

static void dti_progress_bar(dti_progress_line *line, const dt_fit_state *s) {
    char bar[DTI_PROGRESS_BAR + 1];
    const double part = s->steps ? (double)s->step / (double)s->steps : 0.0;
    const int full = (int)(DTI_PROGRESS_BAR * DTI_MIN(part, 1.0));
    for (int i = 0; i < DTI_PROGRESS_BAR; i++)
        bar[i] = i < full ? '#' : '.';
    bar[DTI_PROGRESS_BAR] = 0;
    dti_progress_add(line, "[%s] ", bar);
}

/* Overwrites the line before; blanks erase the rest of a longer one. */
static void dti_progress_over(FILE *file, const dti_progress_line *line, int columns) {
    const int room = DTI_MAX(columns - 1, 1);
    fprintf(file, "\r%-*.*s\r", room, room, line->text);
    fflush(file);
}

static void dti_progress_keep(FILE *file, const dti_progress_line *line, int columns) {
    fprintf(file, "%s%-*s\n", columns ? "\r" : "", DTI_MAX(columns - 1, 0), line->text);
    fflush(file);
}

/* Samples of an interrupted run are in the report, and its seconds are not. */
static void dti_progress_rate(dti_progress_line *line, const dt_progress *p,
                              const dt_fit_state *s) {
    const dt_train_report *r = &s->train;
    if (r->steps && !dti_worker_of(s->trainer))
        dti_progress_add(line, "  lr %.4g", r->lr);
    if (r->seconds > 0.0)
        dti_progress_add(line, "  %.0f samples/s", (double)(r->samples - p->before) / r->seconds);
}

/* After an epoch or a validation: a line that stays. */
static void dti_progress_stay(dti_progress_line *line, const dt_progress *p,
                              const dt_fit_state *s) {
    dti_progress_head(line, p, s);
    if (s->train.steps)
        dti_progress_values(line, &s->train, s->trainer, "");
    if (s->event == DT_FIT_VALIDATED)
        dti_progress_values(line, &s->validation, s->trainer, "val ");
    dti_progress_rate(line, p, s);
    dti_progress_time(line, s->seconds, "");
    if (s->better && s->event == DT_FIT_VALIDATED)
        dti_progress_add(line, "  best");
}

static const char *dti_progress_why(const dt_fit_state *s) {
    static const char *const why[] = {"", "", "no improvement", "asked to stop", "failed"};
    return (size_t)s->stop < DTI_COUNT(why) ? why[s->stop] : "";
}

/* An epoch without a validation prints its line at once. A validated epoch prints it after the
 * validation; an interrupted one at the end. */
static bool dti_progress_stays(const dt_progress *p, const dt_fit_state *s) {
    if (s->event == DT_FIT_END)
        return dti_progress_why(s)[0] || (s->train.steps && p->shown != s->step);
    return s->event == DT_FIT_VALIDATED || (s->event == DT_FIT_EPOCH && !s->validation_follows);
}

/* Lines that stay. */
static void dti_progress_lasting(dt_progress *p, const dt_fit_state *s, FILE *file, int columns) {
    dti_progress_line line = {.size = 0};
    p->shown = s->step;
    if (s->event == DT_FIT_END && dti_progress_why(s)[0]) {
        dti_progress_add(&line, "step %llu: %s", (unsigned long long)s->step, dti_progress_why(s));
        dti_progress_skipped(&line, s);
    } else {
        dti_progress_stay(&line, p, s);
    }
    dti_progress_keep(file, &line, columns);
}

static void dti_progress_no_checkpoint(const dt_fit_state *s, FILE *file, int columns) {
    dti_progress_line line = {.size = 0};
    dti_progress_failed(&line, s);
    dti_progress_add(&line, ", the newest: %s", s->checkpoint_error);
    dti_progress_keep(file, &line, columns);
}

static void dti_progress_write(dt_progress *p, const dt_fit_state *s) {
    FILE *file = p->file ? p->file : stdout;
    const int columns = p->columns ? DTI_MAX(p->columns, 0) : dti_terminal_columns(file);
    dti_progress_line line = {.size = 0};
    if (dti_progress_stays(p, s))
        dti_progress_lasting(p, s, file, columns);
    if (s->event == DT_FIT_END && s->checkpoints_failed)
        dti_progress_no_checkpoint(s, file, columns);
    if (!columns || s->event != DT_FIT_STEP || s->seconds < p->next)
        return;
    p->next = s->seconds + (p->every > 0.0 ? p->every : 0.1);
    dti_progress_bar(&line, s);
    dti_progress_head(&line, p, s);
    dti_progress_values(&line, &s->train, s->trainer, "");
    dti_progress_rate(&line, p, s);
    dti_progress_time(&line, s->seconds_left, " left");
    dti_progress_over(file, &line, columns);
}

static dt_result dti_progress_see(dt_progress *progress, const dt_fit_state *state) {
    dt_progress *p = progress;
    DTI_NEED(state->trainer->base, progress);
    if (state->event == DT_FIT_BEGIN) {
        p->next = 0.0;
        p->shown = state->step;
        p->before = state->train.samples;
    }
    if (state->event == DT_FIT_STEP && state->train.samples <= p->before)
        p->before = 0; /* of the next epoch */
    if (state->trainer->par.mesh.rank == 0)
        dti_progress_write(p, state);
    return DT_OK;
}

DT_API dt_result dt_progress_show(void *progress, dt_fit_state *state) {
    dti_visit visit;
    const bool taken =
        dti_enter(state ? state->trainer : NULL, &visit, DTI_OF(dt_trainer) | DTI_TELLS, __func__);
    return dti_leave(&visit, !DTI_HERE
                                 ? dti_fail_off(taken ? visit.base : NULL, __func__, DTI_HERE_OFF)
                             : taken ? dti_progress_see(progress, state)
                                     : DT_ERROR_INVALID);
}
