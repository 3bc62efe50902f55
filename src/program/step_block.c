/* The step block, at the head of IN: what launches read of dt_step_desc and of the optimizer. */

static void dti_word_f32(uint32_t *words, uint32_t at, double value) {
    float f = (float)value;
    memcpy(words + at, &f, sizeof f);
}

/* Of 0 what is as good as minus infinity: 1 - e^x is 1, also for many steps' x. */
static double dti_ln_beta(double beta) {
    return beta > 0.0 ? dti_ln(beta) : -1000.0;
}

static void dti_step_groups(dt_program *p, const dt_step_desc *step, uint32_t *w) {
    const dt_optim_desc *d = &p->code->optim;
    bool sgd = d->kind == DT_SGD;
    double lr = p->lr = dti_or(step->lr, d->lr);
    p->proven = (float)dti_step_proven(p);
    dti_word_f32(w, DTI_STEP_PROVEN, (double)p->proven);
    for (uint32_t g = 0; g < DT_MAX_GROUPS; g++) {
        uint32_t *group = w + DTI_STEP_GROUP(g);
        dti_word_f32(group, DTI_GROUP_LR, lr * p->code->groups[g].lr);
        dti_word_f32(group, DTI_GROUP_DECAY, p->code->groups[g].decay);
        dti_word_f32(group, DTI_GROUP_BETA1, sgd ? d->momentum : d->beta1);
        dti_word_f32(group, DTI_GROUP_BETA2, sgd ? d->dampening : d->beta2);
        dti_word_f32(group, DTI_GROUP_EPS, d->eps);
        dti_word_f32(group, DTI_GROUP_LN_BETA1, dti_ln_beta(d->beta1));
        dti_word_f32(group, DTI_GROUP_LN_BETA2, dti_ln_beta(d->beta2));
        dti_word_f32(group, DTI_GROUP_NESTEROV, d->nesterov ? 1.0 : 0.0);
    }
}

static void dti_step_block_fill(dt_program *p, const dt_step_desc *step) {
    uint32_t *w = p->store->device->backend->memory_host(p->memories[DTI_ARENA_IN]);
    w[DTI_STEP_SEED_LO] = (uint32_t)step->seed;
    w[DTI_STEP_SEED_HI] = (uint32_t)(step->seed >> 32);
    w[DTI_STEP_NUMBER] = (uint32_t)p->step;
    w[DTI_STEP_FIRST_ROW] = step->first_row;
    w[DTI_STEP_FLAGS] = step->micro == 0 ? 1u : 0u;
    dti_word_f32(w, DTI_STEP_CLIP_NORM, p->code->optim.clip_norm);
    dti_word_f32(w, DTI_STEP_CLIP_VALUE, p->code->optim.clip_value);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        bool used = i < p->code->loss_count;
        dti_word_f32(w, DTI_STEP_COEFFICIENT + i, used ? p->coefficients[i] : 0.0);
        dti_word_f32(w, DTI_STEP_WEIGHT + i, used && step->weights ? step->weights[i] : 0.0);
    }
    if (p->code->has_optim)
        dti_step_groups(p, step, w);
}
