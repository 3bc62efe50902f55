/* The step block, at the head of IN: the values of dt_step_desc and of the optimizer that launches
 * read. */

static void dti_word_f32(uint32_t *words, uint32_t at, double value) {
    float f = (float)value;
    memcpy(words + at, &f, sizeof f);
}

/* Steps that are under way count as committed. */
static uint64_t dti_step_number(dt_program *p, const dt_step_desc *step) {
    return step->step ? step->step : p->store->steps + 1 + dti_inflight_commits(p);
}

static bool dti_step_averages(const dt_program *p, uint32_t param) {
    return p->code->optim.average.kind != DT_AVERAGE_NONE && p->code->trained[param];
}

/* The number of the step that averages count from: the first that made them. */
static uint64_t dti_step_average_from(dt_program *p) {
    const dti_kept *kept = p->store->kept;
    uint64_t from = 0;
    bool any = false;
    for (uint32_t i = 0; i < p->store->layout.param_count; i++) {
        if (!dti_step_averages(p, i) || !kept[i].averaged)
            continue;
        any = true;
        from = DTI_MAX(from, kept[i].from);
    }
    if (any)
        return from;
    return dti_inflight_count(p) ? dti_step_slot_ahead(p, p->ended)->step : p->now->step;
}

/* Where another program, or the application, made some of the averages, the others begin as the
 * weights. */
static dt_result dti_step_average_begin(dt_program *p) {
    dt_store *s = p->store;
    uint32_t made = 0, count = 0;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        count += dti_step_averages(p, i);
        made += dti_step_averages(p, i) && s->kept[i].averaged;
    }
    if (made == 0 || made == count || dti_inflight_count(p))
        return DT_OK;
    const uint64_t from = dti_step_average_from(p);
    dt_result result = dti_store_average(s);
    for (uint32_t i = 0; i < s->layout.param_count && !result; i++) {
        if (dti_step_averages(p, i))
            dti_store_averaged(s, i, from);
    }
    dti_host_copy_stale(s);
    return result;
}

static void dti_step_averaged(dt_program *p) {
    for (uint32_t i = 0; i < p->store->layout.param_count; i++) {
        if (dti_step_averages(p, i))
            dti_store_averaged(p->store, i, p->now->step);
    }
}

static void dti_step_groups(dt_program *p, const dt_step_desc *step, uint32_t *w) {
    const dti_code *code = p->code;
    dt_optim_desc room;
    const dt_optim_desc *optim = dti_optim_at(&code->optim, p->now->step, &room);
    p->now->lr = dti_optim_lr_at(&code->optim, step->lr, p->now->step);
    p->now->proven = (float)dti_step_proven(p);
    dti_word_f32(w, DTI_STEP_PROVEN, (double)p->now->proven);
    dti_word_f32(w, DTI_STEP_AVERAGE,
                 dti_average_part(&code->optim.average, p->now->step, dti_step_average_from(p)));
    for (uint32_t g = 0; g < DT_MAX_GROUPS; g++) {
        const dti_optim_rates rates = dti_code_rates(code, optim, p->now->lr, g);
        dti_optim_words(&rates, w + DTI_STEP_GROUP(g));
    }
}

/* Whether words of rows are valid for its launches. After a step under way they are, or nothing of
 * that step will count. */
static bool dti_step_knows_rows(const dt_program *p) {
    bool known = p->now->made;
    for (uint32_t i = 0; i < p->store->layout.param_count && !dti_inflight_count(p); i++)
        known = known && (p->store->kept[i].rows || !p->code->sparse[i]);
    return known;
}

/* From the step's beginning until its end they are not valid. Measuring whole parameters overwrites
 * the words. */
static void dti_step_rows(const dt_program *p, bool ended) {
    const dti_code *code = p->code;
    const bool all = code->has_optim && dti_optim_is_whole(dti_optim_row_of(code->optim.kind));
    for (uint32_t i = 0; i < p->store->layout.param_count; i++)
        if (code->trained[i] || all)
            p->store->kept[i].rows = ended && p->now->made && code->sparse[i];
}

static void dti_step_block_fill(dt_program *p, const dt_step_desc *step) {
    uint32_t *w = p->store->device->backend->memory_host(p->now->memories[DTI_ARENA_IN]);
    w[DTI_STEP_SEED_LO] = (uint32_t)step->seed;
    w[DTI_STEP_SEED_HI] = (uint32_t)(step->seed >> 32);
    w[DTI_STEP_NUMBER] = (uint32_t)p->now->step;
    w[DTI_STEP_FIRST_ROW] = step->first_row;
    w[DTI_STEP_FLAGS] = (step->micro_batch == 0 ? DTI_FLAG_FIRST : 0u) |
                        (dti_inflight_count(p) ? DTI_FLAG_BEHIND : 0u) |
                        (dti_step_knows_rows(p) ? 0u : DTI_FLAG_WHOLE);
    dti_word_f32(w, DTI_STEP_CLIP_NORM, p->code->optim.clip_norm);
    dti_word_f32(w, DTI_STEP_CLIP_VALUE, p->code->optim.clip_value);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        bool used = i < p->code->loss_count;
        dti_word_f32(w, DTI_STEP_COEFFICIENT + i, used ? p->now->coefficients[i] : 0.0);
        dti_word_f32(w, DTI_STEP_WEIGHT + i,
                     used && step->loss_weights ? step->loss_weights[i] : 0.0);
    }
    if (p->code->has_optim)
        dti_step_groups(p, step, w);
}

DTI_PUBLIC(dt_optim_lr, (dt_ctx * ctx, const dt_optim_desc *desc, uint64_t step, double *lr), ctx,
           DTI_CTX, (ctx, desc, step, lr)) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, lr);
    *lr = 0.0;
    DTI_NEED(base, desc);
    DTI_TRY(dti_optim_here(base, desc));
    const dt_optim_desc d = dti_optim_resolved(desc);
    dti_text problems = dti_text_open(base);
    dti_optim_check(&d, &problems);
    dti_optim_check_unused(desc, &problems);
    dt_result result = !problems.ok ? DT_ERROR_MEMORY : DT_OK;
    if (problems.size)
        result = dti_fail(base, DT_ERROR_INVALID, "dt_optim_lr:%s", problems.data);
    if (!result)
        *lr = dti_optim_lr_at(&d, 0.0, step);
    dti_text_free(&problems);
    return result;
}
