/* Inputs that all samples share: masks, class weights, temperatures. The application writes them,
 * not a data set; they are kept here, because programs are compiled again, and lie in every program
 * of every replica. All ranks have the same: a hash is compared before anything changes. */

static dt_result dti_shared_make(dt_trainer *t) {
    const dti_code *code = dti_parallel_code(&t->par);
    if (t->shared)
        return DT_OK;
    t->shared = dti_alloc_array(t->base, code->binding_count + 1u, sizeof *t->shared);
    DTI_HAVE(t->shared);
    for (uint32_t k = 0; k < code->binding_count; k++) {
        const dti_binding *binding = &code->bindings[k];
        const dti_node *n = &code->work->nodes[binding->node];
        if (binding->output || n->samples || n->values)
            continue;
        dti_shared *x = &t->shared[t->shared_count++];
        *x = (dti_shared){.node = binding->node, .bytes = (size_t)binding->bytes};
        x->values = dti_alloc(t->base, x->bytes);
        DTI_HAVE(x->values);
    }
    return DT_OK;
}

static void dti_shared_free(dt_trainer *t) {
    for (uint32_t i = 0; i < t->shared_count; i++)
        dti_free(t->base, t->shared[i].values);
    dti_free(t->base, t->shared);
}

static dt_result dti_shared_write(dt_trainer *t, uint32_t replica, dt_program *p,
                                  const dti_shared *x) {
    const dt_tensor input = {t->par.replicas[replica].graph, x->node};
    if (!p || !dti_code_binding(dti_program_code(p), x->node, false, false))
        return DT_OK;
    return dti_replica_failed(&t->par, replica, dt_program_write(p, input, x->values, x->bytes));
}

/* To all programs of a replica: of full and short batches, of a worker's batch slices, of
 * evaluation. */
static dt_result dti_shared_write_all(dt_trainer *t, uint32_t replica, const dti_shared *x) {
    const dti_replica *r = &t->par.replicas[replica];
    const dti_evaluation *v = &t->evaluation;
    dt_result result =
        dti_pipe_of(&t->par) ? dti_pipe_share(&t->par, x->node, x->values, x->bytes) : DT_OK;
    for (uint32_t i = 0; i < r->full.count && !result; i++)
        result = dti_shared_write(t, replica, r->full.runs[i].program, x);
    for (uint32_t i = 0; i < r->tail.count && !result; i++)
        result = dti_shared_write(t, replica, r->tail.runs[i].program, x);
    dt_program *p;
    for (uint32_t i = 0;
         dti_worker_of(t) && !result && (p = dti_server_worker.program(t, i)) != NULL; i++)
        result = dti_shared_write(t, replica, p, x);
    if (!result && v->full)
        result = dti_shared_write(t, replica, v->full[replica], x);
    if (!result && v->tail)
        result = dti_shared_write(t, replica, v->tail[replica], x);
    return result;
}

/* Puts the inputs' values into programs that were compiled again. */
static dt_result dti_shared_put(dt_trainer *t) {
    for (uint32_t i = 0; i < t->shared_count; i++) {
        for (uint32_t k = 0; k < t->par.job.local && t->shared[i].written; k++)
            DTI_TRY(dti_shared_write_all(t, k, &t->shared[i]));
    }
    return DT_OK;
}

static dt_result dti_shared_written(const dt_trainer *t) {
    for (uint32_t i = 0; i < t->shared_count; i++) {
        if (!t->shared[i].written)
            return dti_fail(t->base, DT_ERROR_INVALID,
                            "input '%s' is shared by all samples and was never written; call "
                            "dt_trainer_set_input",
                            t->graph->nodes[t->shared[i].node].label);
    }
    return DT_OK;
}

/* ---- writing */

static dt_result dti_shared_find(const dt_trainer *t, dt_tensor input, dti_shared **out) {
    *out = NULL;
    if (dti_is_nil(input))
        return dti_fail(t->base, DT_ERROR_INVALID, "dt_trainer_set_input: the input is nil");
    if (input.graph != t->graph)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "dt_trainer_set_input: the input belongs to another graph: %s",
                        dti_tensor_elsewhere(t->graph, input).text);
    for (uint32_t i = 0; i < t->shared_count; i++) {
        if (t->shared[i].node == input.id)
            *out = &t->shared[i];
    }
    if (*out)
        return DT_OK;
    return dti_fail(
        t->base, DT_ERROR_INVALID, "dt_trainer_set_input: %s is %s", dti_tensor_name(input).text,
        dti_node_of(input)->samples ? "an input of each sample; give it a column in .data"
                                    : "not an input that a loss or metric reads");
}

static dt_result dti_shared_check(const dt_trainer *t, dt_tensor input, const void *data,
                                  size_t bytes, dti_shared **out) {
    const dti_code *code = dti_parallel_code(&t->par);
    DTI_TRY(dti_shared_find(t, input, out));
    if (!data || bytes != (*out)->bytes)
        return dti_fail(
            t->base, DT_ERROR_INVALID, "dt_trainer_set_input: '%s' %s needs %zu bytes, not %zu%s",
            dti_node_of(input)->label, dti_shape_print(dti_node_of(input)->shape, false).text,
            (*out)->bytes, bytes, data ? "" : " (data is NULL)");
    return dti_labels_check(code, dti_code_binding(code, input.id, false, false), data, NULL);
}

/* Checks that rank 0 has the same input and values, and that no rank failed. */
static dt_result dti_shared_agree(dt_trainer *t, dt_result own, dt_tensor input, const void *data,
                                  size_t bytes) {
    uint64_t hash[2] = {0, 0};
    if (!t->par.desc.comm)
        return own;
    if (!own)
        hash[0] = dti_hash64(dti_hash64(DTI_HASH_START, &input.id, sizeof input.id), data, bytes);
    hash[1] = hash[0];
    DTI_TRY(dti_ranks_tell(&t->par, &hash[1], 1, DT_I64));
    if (!own && hash[0] != hash[1])
        own = dti_fail(t->base, DT_ERROR_INVALID,
                       "dt_trainer_set_input: rank %u writes '%s' (hash %016llx), but rank 0 other "
                       "values or another input (%016llx); write the same on all",
                       t->par.mesh.rank, dti_node_of(input)->label, (unsigned long long)hash[0],
                       (unsigned long long)hash[1]);
    return dti_agree_result(&t->par, own);
}

DTI_PUBLIC(dt_trainer_set_input, (dt_trainer * t, dt_tensor input, const void *data, size_t bytes),
           t, DTI_OF(dt_trainer) | DTI_WITH, (t, input, data, bytes)) {
    dti_shared *x;
    DTI_TRY(dti_trainer_goes_on(t));
    dt_result result = dti_shared_check(t, input, data, bytes, &x);
    result = dti_shared_agree(t, result, input, data, bytes);
    if (result)
        return result;
    memcpy(x->values, data, bytes);
    x->written = true;
    for (uint32_t i = 0; i < t->par.job.local && !result; i++)
        result = dti_shared_write_all(t, i, x);
    return result;
}
