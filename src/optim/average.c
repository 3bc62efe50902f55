/* The average of weights: how far a step moves it. The state has it behind the moments, so that
 * whatever keeps, moves and sends those has it too. */

static dt_average dti_average_resolved(const dt_average *desc) {
    dt_average a = *desc;
    a.decay = dti_or(a.decay, 0.999);
    a.start = a.start ? a.start : 1;
    a.every = a.every ? a.every : 1;
    return a;
}

static void dti_average_check(const dt_average *a, dti_text *problems) {
    if ((unsigned)a->kind > DT_AVERAGE_SWA)
        dti_text_add(problems, "\n- optimizer: average.kind is %d, not a dt_average_kind",
                     (int)a->kind);
    if (!(a->decay >= 0.0 && a->decay < 1.0)) {
        dti_text_add(problems, "\n- optimizer: average.decay is ");
        dti_text_add_number(problems, a->decay);
        dti_text_add(problems, "; it must be in [0, 1)");
    }
}

static double dti_average_part(const dt_average *a, uint64_t step, uint64_t from) {
    const uint64_t start = DTI_MAX(a->start, from);
    if (a->kind == DT_AVERAGE_NONE)
        return 0.0;
    if (step <= start)
        return 1.0;
    if ((step - start) % a->every)
        return 0.0;
    const double n = (double)((step - start) / a->every);
    if (a->kind == DT_AVERAGE_SWA)
        return 1.0 / (n + 1.0);
    return 1.0 - (a->warmup ? DTI_MIN(a->decay, (1.0 + n) / (10.0 + n)) : a->decay);
}
