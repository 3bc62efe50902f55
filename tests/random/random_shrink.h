/* Makes a model that fails smaller, as long as it fails in the same way. Losses and outputs are
 * left out, results become leaves or are passed by, and the job gets simpler. */
#ifndef DTRAIN_TESTS_RANDOM_SHRINK_H
#define DTRAIN_TESTS_RANDOM_SHRINK_H

/* This number of characters of the text identifies the way in which it fails. */
enum { RND_SAME_WAY = 14 };

typedef struct rnd_shrink {
    rnd_model best, next;
    char fault[RND_SAME_WAY + 1];
    void (*check)(const rnd_model *m, const rnd_way *way, rnd_fault *fault);
    const rnd_way *way;
} rnd_shrink;

/* Takes s->next in the place of the best if it still is a model, and fails so. */
static bool rnd_shrink_try(rnd_shrink *s) {
    rnd_fault fault = {""};
    rnd_built b;
    rnd_prune(&s->next);
    const bool valid = rnd_build(&s->next, &(dt_ctx_desc){.no_vulkan = true}, NULL, &b);
    rnd_unbuild(&b);
    if (!valid || !rnd_freeze_unreached(&s->next))
        return false;
    s->check(&s->next, s->way, &fault);
    if (strncmp(fault.text, s->fault, RND_SAME_WAY) != 0)
        return false;
    s->best = s->next;
    return true;
}

static void rnd_drop(int *list, int *count, int i) {
    memmove(list + i, list + i + 1, (size_t)(--*count - i) * sizeof *list);
}

static bool rnd_shrink_ends(rnd_shrink *s) {
    bool better = false;
    for (int i = s->best.loss_count - 1; i >= 0 && s->best.loss_count > 1; i--) {
        s->next = s->best;
        memmove(s->next.coefficients + i, s->next.coefficients + i + 1,
                (size_t)(s->next.loss_count - 1 - i) * sizeof *s->next.coefficients);
        rnd_drop(s->next.losses, &s->next.loss_count, i);
        better = rnd_shrink_try(s) || better;
    }
    for (int i = s->best.metric_count - 1; i >= 0; i--) {
        s->next = s->best;
        rnd_drop(s->next.metrics, &s->next.metric_count, i);
        better = rnd_shrink_try(s) || better;
    }
    for (int i = s->best.output_count - 1; i >= 0; i--) {
        s->next = s->best;
        rnd_drop(s->next.outputs, &s->next.output_count, i);
        better = rnd_shrink_try(s) || better;
    }
    return better;
}

/* Statement v becomes a leaf of its shape. */
static bool rnd_shrink_to_leaf(rnd_shrink *s, int v) {
    rnd_built b;
    s->next = s->best;
    rnd_build(&s->best, &(dt_ctx_desc){.no_vulkan = true}, NULL, &b);
    const bool samples = dt_tensor_has_samples(b.at[v]);
    const bool fits = dti_node_of(b.at[v])->dtype == DT_F32 && !dti_node_of(b.at[v])->term;
    rnd_stmt leaf = {.kind = samples ? RND_INPUT : RND_PARAM, .in = {-1, -1, -1, -1, -1}};
    leaf.shape = dt_tensor_shape(b.at[v]);
    rnd_unbuild(&b);
    s->next.stmts[v] = leaf;
    return fits && rnd_shrink_try(s);
}

/* Ops of v become ops of its input. */
static bool rnd_shrink_around(rnd_shrink *s, int v) {
    s->next = s->best;
    const int16_t from = s->best.stmts[v].in[0];
    for (int i = v + 1; i < s->best.count; i++)
        for (int k = 0; k < RND_INPUTS; k++)
            if (s->next.stmts[i].in[k] == v)
                s->next.stmts[i].in[k] = from;
    for (int i = 0; i < s->best.output_count; i++)
        if (s->next.outputs[i] == v)
            return false;
    return from >= 0 && s->best.stmts[v].kind < RND_CROSS_ENTROPY && rnd_shrink_try(s);
}

static bool rnd_shrink_job(rnd_shrink *s) {
    bool better = false;
    for (int i = 0; i < 4; i++) {
        rnd_model *m = &s->next;
        *m = s->best;
        if (i == 0)
            m->accumulate = 1;
        else if (i == 1)
            m->batch_slices = DTI_MAX(m->batch_slices - 1, 1);
        else if (i == 2)
            m->rows = m->batch;
        else
            m->optim = DT_OPTIM_SGD;
        if (m->accumulate != s->best.accumulate || m->batch_slices != s->best.batch_slices ||
            m->rows != s->best.rows || m->optim != s->best.optim)
            better = rnd_shrink_try(s) || better;
    }
    return better;
}

/* m is replaced by the smallest that was found. */
static void rnd_shrink_model(rnd_model *m, const rnd_way *way, const rnd_fault *fault,
                             void (*check)(const rnd_model *m, const rnd_way *way,
                                           rnd_fault *fault)) {
    static rnd_shrink s;
    s = (rnd_shrink){.best = *m, .check = check, .way = way};
    memcpy(s.fault, fault->text, RND_SAME_WAY);
    for (bool better = true; better;) {
        better = rnd_shrink_ends(&s);
        for (int v = s.best.count - 1; v >= 0; v--)
            if (v < s.best.count && !rnd_is_leaf(s.best.stmts[v].kind))
                better = rnd_shrink_to_leaf(&s, v) || rnd_shrink_around(&s, v) || better;
        better = rnd_shrink_job(&s) || better;
    }
    *m = s.best;
}

#endif
