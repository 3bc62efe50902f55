/* What must be the same on all ranks, as text: a line a fact, so that the first difference can be
 * shown. Nothing here depends on devices. */

/* Ranks must have the same nodes under the same numbers. */
static void dti_describe_node(const dt_graph *g, uint32_t id, dti_text *text) {
    const dti_node *n = &g->nodes[id];
    dti_text_add(text, "node %u: %s %s%s%s %s", id, dti_op_info_of(n->op)->name,
                 n->label ? "'" : "", n->label ? n->label : "", n->label ? "'" : "",
                 dti_shape_print(n->shape, n->samples).text);
    for (uint32_t k = 0; k < n->count; k++)
        dti_text_add(text, "%s%u", k ? ", " : " of ", dti_input_id(g, n, k));
    dti_model_text_attr(&n->attr, text);
    dti_text_add(text, "\n");
}

static void dti_describe_model(const dt_trainer *t, dti_text *text) {
    const dt_graph *g = t->graph;
    dti_model_text_params(g, text);
    for (uint32_t id = 1; id < g->count; id++) { /* parameters begin as rank 0's do */
        if (g->nodes[id].op != DTI_OP_PARAM)
            dti_describe_node(g, id, text);
    }
}

static void dti_describe_number(dti_text *text, const char *name, double value) {
    dti_text_add(text, "%s ", name);
    dti_text_add_number(text, value);
    dti_text_add(text, "\n");
}

/* A function is each rank's own. */
static void dti_describe_phase(const dt_schedule *s, dti_text *text) {
    const double all[] = {s->gamma,
                          s->start,
                          s->end,
                          s->power,
                          s->lr_min,
                          s->div_factor,
                          s->final_div_factor,
                          s->pct_start,
                          s->base_momentum,
                          s->max_momentum,
                          s->threshold};
    const uint64_t counts[] = {s->steps,
                               s->period,
                               s->warmup,
                               s->decay,
                               s->t_mult,
                               (uint64_t)s->patience,
                               (uint64_t)s->cooldown,
                               s->threshold_absolute,
                               s->maximize};
    if (!s->kind && !s->steps)
        return;
    dti_text_add(text, "schedule %d:", (int)s->kind);
    for (size_t i = 0; i < DTI_COUNT(counts); i++)
        dti_text_add(text, " %llu", (unsigned long long)counts[i]);
    for (int i = 0; i < DT_MAX_MILESTONES; i++)
        dti_text_add(text, " %llu", (unsigned long long)s->milestones[i]);
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_describe_number(text, "", all[i]);
}

static void dti_describe_optim(const dt_optim_desc *d, dti_text *text) {
    const struct {
        const char *name;
        double value;
    } all[] = {{"lr", d->lr},
               {"weight decay", d->weight_decay},
               {"momentum", d->momentum},
               {"dampening", d->dampening},
               {"beta1", d->beta1},
               {"beta2", d->beta2},
               {"eps", d->eps},
               {"alpha", d->alpha},
               {"rho", d->rho},
               {"trust_coefficient", d->trust_coefficient},
               {"lr decay", d->lr_decay},
               {"initial_accumulator", d->initial_accumulator},
               {"clip norm", d->clip_norm},
               {"clip value", d->clip_value}};
    const dt_average *a = &d->average;
    dti_text_add(text, "average %d from step %llu on, each %llu%s\n", (int)a->kind,
                 (unsigned long long)a->start, (unsigned long long)a->every,
                 a->warmup ? ", warming up" : "");
    dti_describe_number(text, "its decay", a->decay);
    dti_text_add(text, "optimizer %d%s%s%s\n", (int)d->kind, d->nesterov ? ", nesterov" : "",
                 d->centered ? ", centered" : "", d->maximize ? ", maximize" : "");
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_describe_number(text, all[i].name, all[i].value);
    for (int i = 0; i < DT_MAX_PHASES; i++)
        dti_describe_phase(&d->schedule[i], text);
    for (int i = 0; i < DT_MAX_GROUPS - 1 && d->groups[i].params; i++) {
        dti_text_add(text, "group '%s'\n", d->groups[i].params);
        dti_describe_number(text, "its lr scale", d->groups[i].lr_scale);
        dti_describe_number(text, "its weight decay", d->groups[i].weight_decay);
        dti_text_add(text, "%s", d->groups[i].sparse ? "sparse\n" : "");
        dti_text_add(text, "%s", d->groups[i].elementwise ? "elementwise\n" : "");
    }
}

static void dti_describe_augment(const dt_augment_desc *d, dti_text *text) {
    const double all[] = {d->column,     d->crop_padding, d->shift,         d->fill,
                          d->flip,       d->rotate,       d->flip_vertical, d->contrast,
                          d->brightness, d->noise,        d->saturation,    d->cutout,
                          d->mixup,      d->cutmix,       d->mix_chance,    d->target};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_describe_number(text, "augmented by", all[i]);
    for (int i = 0; i < DT_AUGMENT_CHANNELS; i++) {
        dti_describe_number(text, "mean", (double)d->mean[i]);
        dti_describe_number(text, "std", (double)d->std[i]);
    }
}

/* Which samples an epoch has, and what is made of them; values may differ, as they always could. */
static void dti_describe_samples(const dt_dataset *d, dti_text *text) {
    const size_t bytes = (size_t)d->rows * 4;
    const struct {
        const char *name;
        const void *values;
    } all[] = {{"picked", d->indices}, {"weighted", d->weights}, {"by lengths", d->lengths}};
    for (size_t i = 0; i < DTI_COUNT(all); i++) {
        if (all[i].values)
            dti_text_add(text, "samples %s: %016llx\n", all[i].name,
                         (unsigned long long)dti_hash64(DTI_HASH_START, all[i].values, bytes));
    }
    if (d->augment)
        dti_describe_augment(d->augment, text);
}

static void dti_describe_settings(const dt_trainer *t, dti_text *text) {
    const dt_trainer_desc *d = &t->desc;
    dti_text_add(text, "dtrain " DT_VERSION "\n");
    dti_text_add(text, "batch %d, accumulate %d, %d batch slices (0: one a replica)\n", d->batch,
                 d->accumulate, d->parallel.batch_slices);
    dti_text_add(text, "seed %llu, %llu samples, %s order, tail %d, balance %d\n",
                 (unsigned long long)d->seed, (unsigned long long)d->data.rows,
                 d->no_shuffle ? "their own" : "shuffled", (int)d->tail, (int)d->parallel.balance);
    dti_describe_samples(&d->data, text);
    dti_text_add(text, "%s", d->skip_empty ? "leaves out steps without targets\n" : "");
    dti_text_add(text, "trained: '%s'\n", d->params ? d->params : "*");
    for (int i = 0; i < DT_MAX_TERMS && dti_is_set(d->losses[i].term); i++) {
        dti_text_add(text, "loss of node %u\n", d->losses[i].term.id);
        dti_describe_number(text, "coefficient", t->coefficients[i]);
    }
    for (int i = 0; i < DT_MAX_TERMS && dti_is_set(d->metrics[i]); i++)
        dti_text_add(text, "metric of node %u\n", d->metrics[i].id);
    for (int i = 0; i < DT_MAX_COLUMNS && dti_is_set(d->data.columns[i].input); i++)
        dti_text_add(text, "column for node %u\n", d->data.columns[i].input.id);
    dti_text_add(
        text, "a grid of %d replicas (0: what is left) x %d stages, schedule %d, chunks %d\n",
        d->parallel.replicas, d->parallel.pipeline, (int)d->parallel.schedule, d->parallel.chunks);
    dti_text_add(text, "buckets of %llu bytes, overlap %d\n",
                 (unsigned long long)d->parallel.bucket_bytes, !d->parallel.no_overlap);
    dti_text_add(text, "zero stage %d, offload %d\n", d->parallel.zero_stage, d->parallel.offload);
    dti_text_add(text, "%s", d->averaged ? "evaluates averages\n" : "");
    const dti_round_desc *round = &t->par.desc.round;
    dti_text_add(text, "local steps %u (0: synchronous)%s\n", round->steps,
                 round->steps && round->nesterov ? ", outer nesterov" : "");
    dti_text_add(text, "gossip every %u\n", round->gossip_steps);
    dti_describe_number(text, "outer lr", (double)round->lr);
    dti_describe_number(text, "outer momentum", (double)round->momentum);
    dti_text_add(text, "compress %u\n", (unsigned)round->compress);
    dti_describe_number(text, "compress ratio", round->keep);
    if (!t->worker && !t->serves) /* servers write them */
        dti_text_add(text, "checkpoints %s, every %d steps, strict resume %d\n",
                     d->checkpoint.folder ? "yes" : "no", d->checkpoint.every_steps,
                     d->checkpoint.strict);
    dti_text_add(text, "tensor %d, in %d slices, sequence parallel %d\n", d->parallel.tensor,
                 d->parallel.tensor_slices, d->parallel.sequence_parallel);
    for (uint32_t i = 0; i < t->graph->param_count; i++) {
        const dti_node *n = &t->graph->nodes[t->graph->params[i]];
        int64_t unit;
        const dti_parted part = dti_param_parted(n, &unit);
        if (t->par.desc.tensor && part.axis >= 0)
            dti_text_add(text, "'%s' in parts along axis %d, in units of %lld\n", n->label,
                         (int)part.axis, (long long)unit);
        if (n->frozen && !n->buffer)
            dti_text_add(text, "frozen '%s'\n", n->label);
    }
    dti_describe_optim(&t->optim, text);
    dti_describe_model(t, text);
}
