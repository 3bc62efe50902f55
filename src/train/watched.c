/* What a checkpoint keeps of a fit: the best value and its step, and the epoch's sums so far. It
 * also keeps how long the fit has waited since, and with restore_best the best weights. They are
 * two tensors beside the state, which older readers ignore. So an interrupted fit ends where it
 * would have ended. */

enum {
    DTI_WATCHED_OF, /* 1 + the value, and 2^32 where larger is better */
    DTI_WATCHED_BEST,
    DTI_WATCHED_STEP,
    DTI_WATCHED_WAITED,
    DTI_WATCHED_SEEN,
    DTI_WATCHED_MODEL, /* hash of names and shapes in the weights' order; 0: they are not there */
    DTI_WATCHED_EPOCH, /* of the sums; of an epoch that has ended, until it is reported */
    DTI_WATCHED_SAMPLES,
    DTI_WATCHED_STEPS,
    DTI_WATCHED_SUMS,
    DTI_WATCHED_WORDS = DTI_WATCHED_SUMS + 4 * DT_MAX_TERMS
};

static const char dti_watched_name[] = DTI_STATE_OWN "watch";

static uint64_t dti_watched_of(int value, bool larger) {
    return 1 + (uint64_t)value + (larger ? UINT64_C(1) << 32 : 0);
}

/* Weights lie in the order of creation, so the order must match too. */
static uint64_t dti_watched_model(const dt_trainer *t) {
    const dt_graph *g = t->graph;
    uint64_t hash = 1;
    for (uint32_t i = 0; i < g->param_count; i++) {
        const dti_node *n = &g->nodes[g->params[i]];
        hash = dti_hash64(hash, n->label, strlen(n->label));
        hash = dti_hash64(hash, n->shape.dim, (size_t)n->shape.rank * sizeof n->shape.dim[0]);
    }
    return hash | 1;
}

/* Includes steps that have ended and that no report contains yet. */
static void dti_watched_words(const dt_trainer *t, uint64_t words[DTI_WATCHED_WORDS]) {
    const dti_watched *w = &t->watched;
    double own[4 * DT_MAX_TERMS], pending[4 * DT_MAX_TERMS];
    const bool same = t->pending.epoch == w->train.epoch;
    dti_report_terms(&w->train, own);
    dti_report_terms(&t->pending, pending);
    for (int i = 0; i < 4 * DT_MAX_TERMS && same; i++)
        own[i] += pending[i];
    words[DTI_WATCHED_OF] = w->of;
    memcpy(&words[DTI_WATCHED_BEST], &w->best, sizeof w->best);
    words[DTI_WATCHED_STEP] = w->best_step;
    words[DTI_WATCHED_WAITED] = w->waited;
    words[DTI_WATCHED_SEEN] = w->seen_step;
    words[DTI_WATCHED_WEIGHTS] = w->weights && w->have;
    words[DTI_WATCHED_EPOCH] = w->train.epoch;
    words[DTI_WATCHED_SAMPLES] = w->train.samples + (same ? t->pending.samples : 0);
    words[DTI_WATCHED_STEPS] = w->train.steps + (same ? t->pending.steps : 0);
    memcpy(&words[DTI_WATCHED_SUMS], own, sizeof own);
}

/* The words' tensor, if a fit watches something. */
static uint32_t dti_watched_put(const dt_trainer *t, uint64_t words[DTI_WATCHED_WORDS],
                                dti_state_extra *x) {
    if (!t->watched.of)
        return 0;
    dti_watched_words(t, words);
    *x = (dti_state_extra){.dtype = "U64",
                           .size = DTI_WATCHED_WORDS,
                           .data = words,
                           .bytes = DTI_WATCHED_WORDS * sizeof *words};
    memcpy(x->name, dti_watched_name, sizeof dti_watched_name);
    return 1;
}

/* From rank 0's file: words, all 0 if the file has none, and weights if they fit. */
static dt_result dti_watched_find(dt_trainer *t, const dti_checkpoint *c,
                                  uint64_t words[DTI_WATCHED_WORDS]) {
    const dt_safetensors_tensor *own = dti_checkpoint_find(c, dti_watched_name);
    double value;
    if (!own || own->bytes != DTI_WATCHED_WORDS * sizeof *words)
        return DT_OK;
    DTI_TRY(
        dti_checkpoint_read(c, dti_checkpoint_index(c, dti_watched_name), 0, own->bytes, words));
    memcpy(&value, &words[DTI_WATCHED_BEST], sizeof value);
    if (!dti_finite_f64(value) || words[DTI_WATCHED_STEP] > t->saved)
        words[DTI_WATCHED_OF] = 0; /* no fit wrote it */
    return DT_OK;
}

static void dti_watched_take(dt_trainer *t, const uint64_t words[DTI_WATCHED_WORDS]) {
    dti_watched *w = &t->watched;
    dt_train_report *r = &w->train;
    double sums[4 * DT_MAX_TERMS];
    w->of = words[DTI_WATCHED_OF];
    w->loaded = w->of != 0;
    memcpy(&w->best, &words[DTI_WATCHED_BEST], sizeof w->best);
    w->best_step = words[DTI_WATCHED_STEP];
    w->waited = words[DTI_WATCHED_WAITED];
    w->seen_step = words[DTI_WATCHED_SEEN];
    w->have = words[DTI_WATCHED_WEIGHTS] != 0;
    *r = (dt_train_report){.epoch = words[DTI_WATCHED_EPOCH],
                           .samples = words[DTI_WATCHED_SAMPLES],
                           .steps = words[DTI_WATCHED_STEPS]};
    memcpy(sums, &words[DTI_WATCHED_SUMS], sizeof sums);
    dti_report_add_terms(r, sums);
}

/* To all ranks, after the state; c: rank 0's. */
static dt_result dti_watched_load(dt_trainer *t, const dti_checkpoint *c) {
    dti_values_snapshot *best = t->watched.weights;
    dti_watched_walk w = {.c = c};
    uint64_t words[DTI_WATCHED_WORDS] = {0};
    bool all = best != NULL;
    dt_result result = best ? dti_values_snapshot_make(&t->par, best) : DT_OK;
    if (!result && c && all)
        result = dti_watched_index(t, &w, &all);
    if (!result && t->par.mesh.rank == 0)
        result = dti_watched_find(t, c, words);
    words[DTI_WATCHED_WEIGHTS] = words[DTI_WATCHED_WEIGHTS] && all;
    result = dti_agree_result(&t->par, result);
    if (!result)
        result = dti_ranks_tell(&t->par, words, DTI_WATCHED_WORDS, DT_I64);
    if (!result && words[DTI_WATCHED_WEIGHTS])
        result = dti_watched_spread(t, &w);
    dti_free(t->base, w.index);
    if (!result)
        dti_watched_take(t, words);
    return result;
}
