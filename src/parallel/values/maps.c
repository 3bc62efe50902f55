/* Which rank has which values when a model is split over devices: the maps that values.c uses. */

/* ---- pipelines */

static bool dti_pipe_find(const dti_parallel *par, uint32_t replica, uint32_t tensor,
                          uint32_t param, dti_values_place *p) {
    const dti_pipe *pipe = dti_pipe_of(par);
    const uint32_t node = dti_pipe_node(pipe, par->replicas[0].graph->params[param]),
                   c = pipe->plans[DTI_PIPE_TRAIN].cut.home[node],
                   pipeline = replica * pipe->mesh->tensor + tensor,
                   here = dti_pipeline_of(pipe, pipeline);
    if (c == DTI_PIPE_NOWHERE)
        return false;
    *p = (dti_values_place){
        .rank = dti_pipe_rank(par, pipeline, c),
        .kind = dti_pipe_word(pipe),
        .number = pipe->chunk_count > 1 ? c : dti_pipe_position(pipe->mesh, pipeline, 0)};
    if (pipe->bounds) {
        p->offset = pipe->offsets[param];
        p->moments =
            (dti_bucket){*dti_pipe_bound(pipe, c, replica), *dti_pipe_bound(pipe, c, replica + 1)};
    }
    const dti_pipe_chunk *chunk =
        here < pipe->pipeline_count ? dti_pipe_chunk_of(pipe, here, c) : NULL;
    if (!chunk || !chunk->store)
        return true;
    p->store = chunk->store;
    while (dti_pipe_stage_of(pipe, chunk)->params[p->param] != param)
        p->param++;
    p->offset = p->store->layout.params[p->param].offset;
    return true;
}

/* ---- replicas that share the moments */

static bool dti_owners_find(const dti_parallel *par, uint32_t replica, uint32_t tensor,
                            uint32_t param, dti_values_place *p) {
    const uint32_t here = replica - par->job.first;
    const dti_param *params = par->replicas[0].store->layout.params;
    *p = (dti_values_place){.param = param,
                            .offset = params[param].offset,
                            .moments = par->owners ? dti_owners_range(par, replica)
                                                   : (dti_bucket){0, UINT64_MAX},
                            .rank = dti_mesh_rank(&par->mesh, replica),
                            .kind = "replica",
                            .number = here};
    if (here < par->job.local)
        p->store = par->replicas[here].store;
    return true;
}

/* ---- all of them */

static dti_values_map dti_values_map_of(const dti_parallel *par) {
    const dti_pipe *pipe = dti_pipe_of(par);
    if (pipe)
        return (dti_values_map){.find = dti_pipe_find,
                                .tp = pipe->shared,
                                .alike = pipe->chunk_count == 1 && !pipe->bounds,
                                .shards = pipe->bounds ? pipe->mesh->data : 0,
                                .units = dti_pipe_has_units(par),
                                .room = (float *)(void *)pipe->piece,
                                .lost = pipe->bounds
                                            ? "ranks' shards are lost (.parallel.zero_stage)"
                                        : pipe->chunk_count > 1 ? "ranks' stages are lost"
                                                                : "tensor ranks' parts are lost"};
    return (dti_values_map){
        .find = dti_owners_find,
        .shards = dti_shards(par),
        .units = dti_units_are(par),
        .lost = dti_units_are(par)
                    ? "ranks' shards of the parameters are lost (.parallel.zero_stage)"
                    : "ranks' shards of the optimizer's state are lost (.parallel.zero_stage), "
                      "but dt_store_save saves the weights"};
}

static bool dti_values_are_apart(const dti_parallel *par) {
    return dti_grid_is(par) || dti_owners_are(par);
}

static bool dti_values_are_made(const dti_parallel *par) {
    const bool units = dti_units_are(par);
    return par->given && (!units || par->units.part_count == par->job.local);
}

/* ---- after values were written */

static dt_result dti_pipe_given(dti_parallel *par) {
    dti_pipe *pipe = dti_pipe_of(par);
    for (dti_pipe_chunk *chunk = NULL; (chunk = dti_pipe_next(pipe, chunk)) != NULL;) {
        dt_store *s = chunk->store;
        s->steps = par->replicas[0].store->steps;
        dti_store_unbound(s);
        DTI_TRY(dti_pipe_said(par, chunk,
                              dti_statistics_load(&dti_pipe_stage_of(pipe, chunk)->statistics, s)));
        DTI_TRY(dti_pipe_said(par, chunk, dti_pipe_units_written(par, chunk)));
    }
    return DT_OK;
}

static dt_result dti_values_given(dti_parallel *par) {
    par->given = true;
    if (dti_pipe_of(par))
        return dti_pipe_given(par);
    for (uint32_t i = 0; i < par->job.local; i++) {
        dt_store *s = par->replicas[i].store;
        s->steps = par->replicas[0].store->steps;
        dti_store_unbound(s);
        if (s->apart)
            DTI_TRY(dti_replica_failed(par, i, dti_unit_mirror(&par->units.parts[i], false)));
    }
    return dti_statistics_load(&par->statistics, par->replicas[0].store);
}
