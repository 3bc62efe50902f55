/* The commit segment: check and norm of the gradient, the optimizer over blocks, the step counts.
 * Everything that a step changes in the store is written here and nowhere else, and only when the
 * abort word is clear. The device owns t. */

/* ---- the optimizer of a program */

/* A group that takes no parameter is a pattern with a mistake: its numbers would count for nothing.
 * Parameters that this program does not train count, since two programs may share a description. */
static void dti_optim_groups_check(const dt_program *p, dti_text *problems) {
    const dt_store *s = p->store;
    uint32_t matched[DT_MAX_GROUPS] = {0}, taken[DT_MAX_GROUPS] = {0};
    for (uint32_t i = 0; i < s->param_count; i++) {
        const dti_node *n = &s->graph->nodes[s->params[i].node];
        for (uint32_t g = 1; g < DT_MAX_GROUPS && !n->buffer; g++)
            matched[g] +=
                p->optim.groups[g - 1].match && dti_glob(p->optim.groups[g - 1].match, n->label);
        taken[dti_optim_group_of(&p->optim, n->label)] += !n->buffer;
    }
    for (uint32_t g = 1; g < DT_MAX_GROUPS; g++) {
        const dt_optim_group *given = &p->desc.optim->groups[g - 1];
        if (!given->match && (given->lr_scale != 0.0 || given->weight_decay != 0.0))
            dti_text_add(problems, "\n- optimizer: group %u has numbers, and no .match", g);
        if (p->optim.groups[g - 1].match && !taken[g])
            dti_text_add(problems, "\n- optimizer: group %u, \"%s\", %s", g,
                         p->optim.groups[g - 1].match,
                         matched[g] ? "gets no parameter: groups before it match all of its own; "
                                      "put it first"
                                    : "matches the name of no parameter");
    }
}

static void dti_optim_resolve(dt_program *p, dti_text *problems) {
    p->optim = dti_optim_resolved(p->desc.optim);
    dti_optim_check(&p->optim, problems);
    p->groups[0] = (dti_param_group){1.0, p->optim.weight_decay};
    for (int g = 1; g < DT_MAX_GROUPS; g++) {
        const dt_optim_group *in = &p->optim.groups[g - 1];
        p->groups[g] = (dti_param_group){in->lr_scale, in->weight_decay};
    }
    dti_optim_groups_check(p, problems);
}

/* ---- the block table */

static dt_result dti_commit_table(dt_program *p) {
    const dt_store *s = p->store;
    p->table_entries = 0;
    for (uint32_t i = 0; i < s->param_count; i++) {
        if (p->trained[i] || p->update[i])
            p->table_entries += (uint32_t)((s->params[i].elements + DTI_BLOCK - 1) / DTI_BLOCK);
    }
    p->table_bytes = (uint64_t)DTI_WORD_BYTES * DTI_TABLE_WORDS * DTI_MAX(p->table_entries, 1u);
    p->table = dti_alloc(p->base, (size_t)p->table_bytes);
    if (!p->table)
        return DT_ERROR_MEMORY;
    uint32_t *entry = p->table;
    for (uint32_t i = s->param_count; i-- > 0;) { /* in the arena's order */
        const dti_param *param = &s->params[i];
        if (!p->trained[i] && !p->update[i])
            continue;
        uint32_t kind = p->update[i] ? DTI_TABLE_BUFFER : 0;
        uint32_t group = dti_optim_group_of(&p->optim, s->graph->nodes[param->node].label);
        for (uint64_t at = 0; at < param->elements; at += DTI_BLOCK, entry += DTI_TABLE_WORDS) {
            entry[DTI_TABLE_BLOCK] = (uint32_t)((param->offset + at) / DTI_BLOCK);
            entry[DTI_TABLE_GROUP] = group;
            entry[DTI_TABLE_PARAM] = i | kind | (at == 0 ? DTI_TABLE_FIRST : 0u);
            entry[DTI_TABLE_USED] = (uint32_t)DTI_MIN(param->elements - at, (uint64_t)DTI_BLOCK);
        }
    }
    return DT_OK;
}

/* ---- launches */

static void dti_commit_norm(dt_program *p, dti_emit *e, uint32_t grads, uint32_t table,
                            uint32_t status, uint32_t state) {
    bool norm = !p->desc.no_check || p->optim.clip_norm > 0.0;
    uint32_t pairs = status;
    if (norm) {
        pairs = dti_emit_scratch(e, DT_F32, 2ull * p->table_entries);
        dti_launch *l =
            dti_emit_launch(e, DTI_K_GRAD_NORM, p->table_entries, sizeof l->args.commit);
        l->args.commit = (dti_args_commit){.blocks = p->table_entries};
        dti_bind(l, grads, table, pairs, DTI_UNBOUND);
    }
    dti_launch *l = dti_emit_launch(e, DTI_K_CLIP_FINISH, 1, sizeof l->args.commit);
    l->args.commit =
        (dti_args_commit){.blocks = norm ? p->table_entries : 0, .terms = p->loss_count};
    /* a replica's own losses do not decide: the whole job's are looked at before the commit */
    l->args.commit.flags = p->desc.no_check || p->piece_count ? 0u : DTI_COMMIT_LOSSES;
    dti_bind(l, pairs, status, state, DTI_UNBOUND);
}

static uint32_t dti_commit_state(dt_program *p) {
    const uint64_t words = dti_state_moment_offset(p->store, dti_optim_moments(&p->optim));
    return dti_listing_value(&p->list, DTI_VALUE_STATE, DT_F32, words, 0);
}

static void dti_commit_optim(dt_program *p, dti_emit *e, uint32_t table, uint32_t flags) {
    const dt_store *s = p->store;
    uint32_t moments = dti_optim_moments(&p->optim);
    dti_args_commit a = {.blocks = p->table_entries,
                         .m_offset = UINT32_MAX,
                         .v_offset = UINT32_MAX,
                         .t_offset = (uint32_t)dti_state_t_offset(),
                         .flags = flags};
    if (moments > 0)
        a.m_offset = (uint32_t)dti_state_moment_offset(s, 0);
    if (moments > 1)
        a.v_offset = (uint32_t)dti_state_moment_offset(s, 1);
    dti_launch *l = dti_emit_launch(e, DTI_K_OPTIM, p->table_entries, sizeof a);
    l->args.commit = a;
    l->spec[0] = p->optim.kind == DT_SGD    ? DTI_OPTIM_SGD
                 : p->optim.kind == DT_ADAM ? DTI_OPTIM_ADAM
                                            : DTI_OPTIM_ADAMW;
    dti_bind(l, dti_listing_value(&p->list, DTI_VALUE_PARAM, DT_F32, s->elements, 0),
             dti_listing_value(&p->list, DTI_VALUE_GRADIENT, DT_F32, s->elements, 0),
             dti_commit_state(p), table);
}

static void dti_commit_tick(dt_program *p, dti_emit *e, uint32_t table, uint32_t status,
                            uint32_t flags) {
    const uint32_t items = flags & DTI_COMMIT_TELL ? 1 : p->table_entries;
    dti_launch *l = dti_emit_launch(e, DTI_K_OPTIM_TICK, items, sizeof l->args.commit);
    l->args.commit = (dti_args_commit){
        .blocks = p->table_entries, .t_offset = (uint32_t)dti_state_t_offset(), .flags = flags};
    dti_bind(l, dti_commit_state(p), table, status, DTI_UNBOUND);
}

static void dti_commit_judge(dt_program *p, dti_emit *e, uint32_t table, uint32_t status) {
    uint32_t grads = dti_listing_value(&p->list, DTI_VALUE_GRADIENT, DT_F32, p->store->elements, 0);
    dti_commit_norm(p, e, grads, table, status, dti_commit_state(p));
    if (!p->desc.no_check)
        dti_commit_optim(p, e, table, DTI_COMMIT_DRY);
    if (p->piece_count)
        dti_commit_tick(p, e, table, status, DTI_COMMIT_TELL);
}

static void dti_commit_update(dt_program *p, dti_emit *e, uint32_t table, uint32_t status) {
    dti_commit_optim(p, e, table, 0);
    dti_commit_tick(p, e, table, status, 0);
}

/* ---- the step block */

static void dti_word_f32(uint32_t *words, uint32_t at, double value) {
    float f = (float)value;
    memcpy(words + at, &f, sizeof f);
}

/* Of 0 what is as good as minus infinity: 1 - e^x is 1, also for many steps' x. */
static double dti_ln_beta(double beta) {
    return beta > 0.0 ? dti_ln(beta) : -1000.0;
}

static void dti_step_groups(dt_program *p, const dt_step_desc *step, uint32_t *w) {
    const dt_optim_desc *d = &p->optim;
    bool sgd = d->kind == DT_SGD;
    double lr = p->lr = dti_or(step->lr, d->lr);
    p->proven = (float)dti_step_proven(p);
    dti_word_f32(w, DTI_STEP_PROVEN, (double)p->proven);
    for (uint32_t g = 0; g < DT_MAX_GROUPS; g++) {
        uint32_t *group = w + DTI_STEP_GROUP(g);
        dti_word_f32(group, DTI_GROUP_LR, lr * p->groups[g].lr);
        dti_word_f32(group, DTI_GROUP_DECAY, p->groups[g].decay);
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
    dti_word_f32(w, DTI_STEP_CLIP_NORM, p->optim.clip_norm);
    dti_word_f32(w, DTI_STEP_CLIP_VALUE, p->optim.clip_value);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        bool used = i < p->loss_count;
        dti_word_f32(w, DTI_STEP_COEFFICIENT + i, used ? p->coefficients[i] : 0.0);
        dti_word_f32(w, DTI_STEP_WEIGHT + i, used && step->weights ? step->weights[i] : 0.0);
    }
    if (p->has_optim)
        dti_step_groups(p, step, w);
}
