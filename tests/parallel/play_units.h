/* Parameters of a grid's stages with ZeRO-2 and 3 while lists are played (test_play.c). Addresses
 * follow what each chunk has of them, so that a need that is one too small is seen. */
#ifndef DTRAIN_TESTS_PLAY_UNITS_H
#define DTRAIN_TESTS_PLAY_UNITS_H

typedef struct play_unit_part { /* of a chunk: units that are there, and where; that it took */
    uint64_t resident, at[DTI_UNITS_MAX];
    uint32_t taken;
} play_unit_part;

static play_unit_part play_unit_parts[PLAY_RANKS][PLAY_PARTS];

static bool play_overlap(uint64_t a, uint64_t n, uint64_t b, uint64_t m) {
    return a < b + m && b < a + n;
}

static dti_units *play_units(const play_rank *r, uint32_t s) {
    dti_pipe *pipe = r->trainer->par.pipe;
    return pipe && s < pipe->stage_count && pipe->stages[s].units.parts ? &pipe->stages[s].units
                                                                        : NULL;
}

static uint32_t play_units_arrived(const play_rank *r, const dti_units *u) {
    return r->trainer->par.counters[u->counters + DTI_UNITS_ARRIVED];
}

static play_unit_part *play_unit_part_of(const play_rank *r, uint32_t s, uint32_t i) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    return &play_unit_parts[r->index][dti_pipe_alike_chunk(pipe, s, i) - pipe->chunks];
}

static void play_units_begin(const play_rank *r) {
    memset(play_unit_parts[r->index], 0, sizeof play_unit_parts[r->index]);
    if (r->trainer->par.pipe)
        dti_pipe_units_begin(&r->trainer->par);
}

/* A unit comes, and takes the place of others. */
static void play_unit_comes(const play_rank *r, const dti_units *u, play_unit_part *own,
                            const dti_code *code, const dti_action *a) {
    for (uint32_t k = 0; k < code->slices.bucket_count; k++) {
        if (play_overlap(own->at[k], dti_bucket_elements(code->slices.buckets[k]),
                         code->unit_param[a->what],
                         dti_bucket_elements(code->slices.buckets[a->what])))
            own->resident &= ~dti_unit_bit(k);
    }
    own->resident |= dti_unit_bit(a->what);
    own->at[a->what] = code->unit_param[a->what];
    CHECK(own->taken == a->met && (!u->comm || play_units_arrived(r, u) > own->taken));
    own->taken++;
}

/* What segments read is there. */
static void play_units_see(const play_rank *r, uint32_t part, const dti_action *a) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    const bool runs = a->kind == DTI_ACTION_FORWARD || a->kind == DTI_ACTION_BACKWARD;
    const dti_pipe_stage *stage = pipe ? dti_pipe_stage_of(pipe, &pipe->chunks[part]) : NULL;
    play_unit_part *own = &play_unit_parts[r->index][part];
    if (!stage || !stage->buckets || (!runs && a->kind != DTI_ACTION_GATHER))
        return;
    const dti_code *code = dti_program_code(
        dti_pipe_units_program(pipe, &pipe->chunks[part], r->job->short_batch, a->micro));
    if (!runs)
        play_unit_comes(r, &stage->units, own, code, a);
    for (uint32_t i = a->from; i <= a->what && runs; i++) {
        for (uint32_t k = 0; k < code->slices.bucket_count; k++)
            CHECK_TEXT(!(code->unit_reads[i] & dti_unit_bit(k)) ||
                           (own->resident & dti_unit_bit(k) && own->at[k] == code->unit_param[k]),
                       "rank %d, part %u, segment %u: unit %u is not there", r->index, part, i, k);
    }
}

/* Units that all ranks of a stage have posted. */
static uint32_t play_units_posted(uint32_t s) {
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < play.count; i++) {
        const dti_units *u = play_units(&play.rank[i], s);
        least = u ? DTI_MIN(least, u->posted) : least;
    }
    return least;
}

/* A unit is posted, or arrives. Whether anything moved. */
static bool play_units_move(const play_rank *r, uint32_t s) {
    dti_units *u = play_units(r, s);
    if (r->failed || !u || !u->comm)
        return false;
    const dti_action *a = dti_units_next(&r->trainer->par, u);
    if (a) {
        for (uint32_t i = 0; i < u->part_count; i++) /* the place that it takes is free */
            CHECK(play_unit_part_of(r, s, i)->taken + DTI_UNITS_STAGED > u->posted);
        CHECK(u->posted - play_units_arrived(r, u) < DTI_UNITS_STAGED);
        play_note(&play_channel_of(r, u->comm)->together, a->what, s, 0, 3);
        u->posted++;
        u->at++;
        return true;
    }
    if (play_units_arrived(r, u) >= play_units_posted(s))
        return false;
    r->trainer->par.counters[u->counters + DTI_UNITS_ARRIVED]++;
    return true;
}

static bool play_units_drawn(const play_rank *r, uint32_t *state) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    return pipe && play_units_move(r, train_random(state) % pipe->stage_count);
}

static bool play_units_ended(const play_rank *r) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    bool all = true;
    for (uint32_t s = 0; pipe && s < pipe->stage_count; s++) {
        const dti_units *u = play_units(r, s);
        for (uint32_t i = 0; u && u->comm && i < u->part_count; i++)
            all = all && u->posted == play_units_arrived(r, u) &&
                  u->posted == play_unit_part_of(r, s, i)->taken;
    }
    return all;
}

/* Operations of a unit, the largest number that it can be. */
static uint32_t play_units_pending(const play_rank *r) {
    const dti_parallel *par = &r->trainer->par;
    uint32_t pending = 0;
    for (uint32_t s = 0; par->pipe && s < par->pipe->stage_count; s++) {
        const dti_units *u = play_units(r, s);
        for (uint32_t b = 0, most = 0; u && u->comm && b < u->bucket_count; b++) {
            dti_values_owner own = {.root = -1};
            uint32_t pieces = 0;
            while (dti_values_next_owner(&par->mesh, &u->shared, u->buckets[b], &own))
                pieces++;
            most = DTI_MAX(most, pieces);
            if (b + 1 == u->bucket_count)
                pending += most * (u->posted - play_units_arrived(r, u));
        }
    }
    return pending;
}

/* Replicas with fewer micro-batches have the list of the one with most. */
static bool play_has_own_lists(const play_rank *r) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    bool own = true;
    for (uint32_t k = 0; pipe && k < pipe->pipeline_count; k++)
        own = own && pipe->pipelines[k].runs[0].count == pipe->pipelines[k].schedules[0].micros &&
              pipe->pipelines[k].runs[1].count == pipe->pipelines[k].schedules[1].micros;
    return own;
}

#endif
