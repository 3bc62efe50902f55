/* What a fit watches, as a checkpoint has it: the best value and when it came, how long was waited
 * since, the epoch's sums so far, and the best weights where they are put back. Two tensors beside
 * the state, which readers that do not know them pass over: so a fit that was interrupted ends
 * where it would have. */

enum {
    DTI_WATCHED_OF, /* 1 + the value, and 2^32 where larger is better */
    DTI_WATCHED_BEST,
    DTI_WATCHED_STEP,
    DTI_WATCHED_WAITED,
    DTI_WATCHED_SEEN,
    DTI_WATCHED_MODEL, /* hash of names and shapes in the weights' order; 0: they are not there */
    DTI_WATCHED_EPOCH, /* of the sums; one that has ended where that was not told yet */
    DTI_WATCHED_SAMPLES,
    DTI_WATCHED_STEPS,
    DTI_WATCHED_SUMS,
    DTI_WATCHED_WORDS = DTI_WATCHED_SUMS + 4 * DT_MAX_TERMS
};

static const char dti_watched_name[] = DTI_STATE_OWN "watch";
static const char dti_watched_weights[] = DTI_STATE_OWN "watch.best";

static uint64_t dti_watched_of(int value, bool larger) {
    return 1 + (uint64_t)value + (larger ? UINT64_C(1) << 32 : 0);
}

/* Weights lie in the order of creation, so that is a part of what they mean. */
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

/* With steps that have ended and that no report has told of yet. */
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
    words[DTI_WATCHED_MODEL] = w->weights && w->have ? dti_watched_model(t) : 0;
    words[DTI_WATCHED_EPOCH] = w->train.epoch;
    words[DTI_WATCHED_SAMPLES] = w->train.samples + (same ? t->pending.samples : 0);
    words[DTI_WATCHED_STEPS] = w->train.steps + (same ? t->pending.steps : 0);
    memcpy(&words[DTI_WATCHED_SUMS], own, sizeof own);
}

/* The tensors, of which there are 0 to 2. */
static uint32_t dti_watched_put(const dt_trainer *t, uint64_t words[DTI_WATCHED_WORDS],
                                dti_state_extra x[2]) {
    const dti_watched *w = &t->watched;
    if (!w->of)
        return 0;
    dti_watched_words(t, words);
    x[0] = (dti_state_extra){.dtype = "U64",
                             .size = DTI_WATCHED_WORDS,
                             .data = words,
                             .bytes = DTI_WATCHED_WORDS * sizeof *words};
    x[1] = (dti_state_extra){.dtype = dti_dtype_file_name(DT_F32),
                             .size = (int64_t)(w->bytes / dti_arena_bytes(1)),
                             .data = w->weights,
                             .bytes = w->bytes};
    memcpy(x[0].name, dti_watched_name, sizeof dti_watched_name);
    memcpy(x[1].name, dti_watched_weights, sizeof dti_watched_weights);
    return words[DTI_WATCHED_MODEL] ? 2 : 1;
}

/* From rank 0's file: words, all 0 where they are none, and weights where they fit. */
static dt_result dti_watched_find(dt_trainer *t, const dti_checkpoint *c,
                                  uint64_t words[DTI_WATCHED_WORDS]) {
    const dt_safetensors_tensor *own = dti_checkpoint_find(c, dti_watched_name);
    const dt_safetensors_tensor *best = dti_checkpoint_find(c, dti_watched_weights);
    double value;
    if (!own || own->bytes != DTI_WATCHED_WORDS * sizeof *words)
        return DT_OK;
    DTI_TRY(
        dti_checkpoint_read(c, dti_checkpoint_index(c, dti_watched_name), 0, own->bytes, words));
    memcpy(&value, &words[DTI_WATCHED_BEST], sizeof value);
    if (!dti_finite_f64(value) || words[DTI_WATCHED_STEP] > t->saved)
        words[DTI_WATCHED_OF] = 0; /* nothing that a fit wrote */
    if (t->watched.weights && best && best->bytes == t->watched.bytes &&
        words[DTI_WATCHED_MODEL] == dti_watched_model(t))
        return dti_checkpoint_read(c, dti_checkpoint_index(c, dti_watched_weights), 0, best->bytes,
                                   t->watched.weights);
    words[DTI_WATCHED_MODEL] = 0;
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
    w->have = words[DTI_WATCHED_MODEL] != 0;
    *r = (dt_train_report){.epoch = words[DTI_WATCHED_EPOCH],
                           .samples = words[DTI_WATCHED_SAMPLES],
                           .steps = words[DTI_WATCHED_STEPS]};
    memcpy(sums, &words[DTI_WATCHED_SUMS], sizeof sums);
    dti_report_add_terms(r, sums);
}

/* To all ranks, behind the state; c: rank 0's. */
static dt_result dti_watched_load(dt_trainer *t, const dti_checkpoint *c) {
    uint64_t words[DTI_WATCHED_WORDS] = {0};
    DTI_TRY(
        dti_agree_result(&t->par, t->par.mesh.rank == 0 ? dti_watched_find(t, c, words) : DT_OK));
    DTI_TRY(dti_ranks_tell(&t->par, words, DTI_WATCHED_WORDS, DT_I64));
    if (words[DTI_WATCHED_MODEL])
        DTI_TRY(dti_ranks_tell(&t->par, t->watched.weights, t->watched.bytes / dti_arena_bytes(1),
                               DT_F32));
    dti_watched_take(t, words);
    return DT_OK;
}
