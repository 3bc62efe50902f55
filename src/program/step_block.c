/* The step block, at the head of IN: what launches read of dt_step_desc and of the optimizer. */

static void dti_word_f32(uint32_t *words, uint32_t at, double value) {
    float f = (float)value;
    memcpy(words + at, &f, sizeof f);
}

static void dti_step_groups(dt_program *p, const dt_step_desc *step, uint32_t *w) {
    const dti_code *code = p->code;
    p->now->lr = dti_or(step->lr, code->optim.lr);
    p->now->proven = (float)dti_step_proven(p);
    dti_word_f32(w, DTI_STEP_PROVEN, (double)p->now->proven);
    for (uint32_t g = 0; g < DT_MAX_GROUPS; g++) {
        const dti_optim_rates rates = {&code->optim, p->now->lr * code->groups[g].lr,
                                       code->groups[g].decay};
        dti_optim_words(&rates, w + DTI_STEP_GROUP(g));
    }
}

static void dti_step_block_fill(dt_program *p, const dt_step_desc *step) {
    uint32_t *w = p->store->device->backend->memory_host(p->now->memories[DTI_ARENA_IN]);
    w[DTI_STEP_SEED_LO] = (uint32_t)step->seed;
    w[DTI_STEP_SEED_HI] = (uint32_t)(step->seed >> 32);
    w[DTI_STEP_NUMBER] = (uint32_t)p->now->step;
    w[DTI_STEP_FIRST_ROW] = step->first_row;
    w[DTI_STEP_FLAGS] =
        (step->micro == 0 ? DTI_FLAG_FIRST : 0u) | (dti_ahead_count(p) ? DTI_FLAG_BEHIND : 0u);
    dti_word_f32(w, DTI_STEP_CLIP_NORM, p->code->optim.clip_norm);
    dti_word_f32(w, DTI_STEP_CLIP_VALUE, p->code->optim.clip_value);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        bool used = i < p->code->loss_count;
        dti_word_f32(w, DTI_STEP_COEFFICIENT + i, used ? p->now->coefficients[i] : 0.0);
        dti_word_f32(w, DTI_STEP_WEIGHT + i, used && step->weights ? step->weights[i] : 0.0);
    }
    if (p->code->has_optim)
        dti_step_groups(p, step, w);
}
