/* The watched value of a fit in a checkpoint. It owns a tensor of words: the best value, its step,
 * the values since then, and the epoch's sums so far. With .restore_best each parameter has a
 * tensor of the best weights. Other readers ignore these tensors. An interrupted fit ends at the
 * step of one without a break. */

enum {
    DTI_WATCHED_OF, /* 1 + the value, and 2^32 where larger is better */
    DTI_WATCHED_BEST,
    DTI_WATCHED_STEP,
    DTI_WATCHED_WAITED,
    DTI_WATCHED_SEEN,
    DTI_WATCHED_WEIGHTS, /* whether they are there */
    DTI_WATCHED_EPOCH,   /* of the sums; it may have ended without its report */
    DTI_WATCHED_SAMPLES,
    DTI_WATCHED_STEPS,
    DTI_WATCHED_SUMS,
    DTI_WATCHED_WORDS = DTI_WATCHED_SUMS + 4 * DT_MAX_TERMS
};

static const char dti_watched_name[] = DTI_STATE_OWN "watch";

static uint64_t dti_watched_of(int value, bool larger) {
    return 1 + (uint64_t)value + (larger ? UINT64_C(1) << 32 : 0);
}

/* Whether a checkpoint gets them, and from where. */
static void dti_watched_weights(const dt_trainer *t, dti_state_file *f) {
    const dti_watched *w = &t->watched;
    f->best = w->of && w->weights && w->have;
    if (f->best && !dti_values_are_apart(&t->par))
        f->best_values = w->weights->values;
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

/* ---- reading */

typedef struct dti_watched_walk {
    const dti_checkpoint *c;
    int *index; /* [parameters]: of the best weights' tensors */
} dti_watched_walk;

/* *all: each parameter has one of its size. Free .index, also after an error. */
static dt_result dti_watched_index(const dt_trainer *t, dti_watched_walk *w, bool *all) {
    const dt_store *s = t->par.replicas[0].store;
    const uint32_t n = s->layout.param_count;
    w->index = dti_alloc_array(t->base, n + 1u, sizeof *w->index);
    DTI_HAVE(w->index);
    for (uint32_t i = 0; i < n && *all; i++) {
        dti_text name = dti_text_open(t->base);
        dti_text_add(&name, DTI_STATE_BEST_NAME "%s", dti_store_name(s, i));
        w->index[i] = name.ok ? dti_checkpoint_index(w->c, name.data) : -1;
        const bool room = name.ok;
        dti_text_free(&name);
        DTI_HAVE(room);
        const dt_safetensors_tensor *x = dti_checkpoint_at(w->c, w->index[i]);
        *all = x && !strcmp(x->dtype, dti_dtype_file_name(DT_F32)) &&
               x->bytes == dti_arena_bytes(s->layout.params[i].elements);
    }
    return DT_OK;
}

static dt_result dti_watched_walk_read(void *user, uint32_t param, uint32_t array, uint64_t at,
                                       uint64_t n, float *values) {
    const dti_watched_walk *w = user;
    return dti_checkpoint_read(w->c, w->index[param], dti_arena_bytes(at), dti_arena_bytes(n),
                               values);
}

static dt_result dti_watched_read_best(dt_trainer *t, dti_watched_walk *w) {
    const dti_layout *l = &t->par.replicas[0].store->layout;
    for (uint32_t i = 0; i < l->param_count && w->c; i++)
        DTI_TRY(dti_watched_walk_read(w, i, 0, 0, l->params[i].elements,
                                      t->watched.weights->values + l->params[i].offset));
    return DT_OK;
}

/* To all ranks. Rank 0 has the file; where it is in parts, all have. */
static dt_result dti_watched_spread(dt_trainer *t, dti_watched_walk *w) {
    dti_parallel *par = &t->par;
    const dti_values_snapshot *best = t->watched.weights;
    const dti_values_file f = {.user = w,
                               .move = dti_watched_walk_read,
                               .rank = dti_checkpoint_parts_path(w->c) ? dti_values_rank_all : NULL,
                               .snapshot = best};
    char *piece;
    if (!dti_values_are_apart(par)) {
        w->c = par->mesh.rank ? NULL : w->c;
        DTI_TRY(dti_agree_result(par, dti_watched_read_best(t, w)));
        return dti_ranks_tell(par, best->values, best->elements, DT_F32);
    }
    DTI_TRY(dti_agree_piece(par, &piece));
    const dt_result result = dti_agree_result(par, dti_values_load(par, &f, 1, piece));
    dti_free(t->base, piece);
    return result;
}

/* The words of rank 0's file; all 0 if it has none. */
static dt_result dti_watched_find(const dt_trainer *t, const dti_checkpoint *c,
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

/* To all ranks, after the state, whose programs may have been made again; c: rank 0's, or each
 * rank's. */
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
