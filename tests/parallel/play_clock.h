/* Lists that are played (test_play.c) by a clock. In unit times they wait as long as docs and
 * dt_trainer_get_info say, and then come drawn times. Then the live bytes are compared with what
 * they say of memory. */
#ifndef DTRAIN_TESTS_PLAY_CLOCK_H
#define DTRAIN_TESTS_PLAY_CLOCK_H

/* ---- by the clock */

/* Of unit times: a forward part 1, a backward part 2 (or 1 for gradients of inputs and 1 for those
 * of parameters; messages and the rest 0), or drawn. */
static uint32_t play_cost(const play_rank *r, const dti_action *a, uint32_t *state) {
    const bool split = r->job->schedule == DT_PIPELINE_ZERO_BUBBLE;
    if (state)
        return train_random(state) % (train_random(state) % 8 ? 4 : 40);
    return a->kind == DTI_ACTION_OPEN    ? 1
           : a->kind == DTI_ACTION_CLOSE ? (split ? 1 : 2)
           : a->kind == DTI_ACTION_SUM   ? split
                                         : 0;
}

/* An action that is there begins at `now`, and ends later. Whether anything moved. */
static bool play_device_moves(play_rank *r, int d, uint64_t now, uint32_t *state) {
    play_device *own = &r->device[d];
    if (!own->busy && !play_may(r, d))
        return false;
    const bool begins = !own->busy;
    if (begins) {
        const dti_action *a = &play_list(r, d)->actions[own->at];
        own->busy = true;
        own->until = now + (a->kind == DTI_ACTION_COLLECTIVE ? 0 : play_cost(r, a, state));
    }
    const bool acts = own->until <= now && play_act(r, d);
    own->busy = !acts;
    return acts || (begins && own->until > now);
}

static bool play_all_move(uint64_t now, uint32_t *state) {
    bool moved = false;
    for (int i = 0; i < play.count; i++) {
        play_rank *r = &play.rank[i];
        const dti_pipe *pipe = r->trainer->par.pipe;
        for (uint32_t k = 0; pipe && k < pipe->plan->flow_count; k++)
            moved =
                (!state || train_random(state) % 3 == 0) && play_message(r, &pipe->plan->flows[k])
                    ? true
                    : moved;
        for (uint32_t s = 0; pipe && s < pipe->stage_count; s++)
            moved = play_units_move(r, s) || moved;
        play_counts_pending(r);
        for (int d = 0; d < r->devices; d++)
            moved = play_device_moves(r, d, now, state) || moved;
    }
    return moved;
}

/* state: times are drawn; NULL: they are units. When all has ended; 0: it never does. */
static uint64_t play_clock(uint32_t *state) {
    uint64_t now = 0;
    play_begin();
    for (int idle = 0; idle < (state ? 200 : 2); now++) {
        idle++;
        while (play_all_move(now, state))
            idle = 0;
        for (int i = 0; i < play.count; i++)
            for (int d = 0; d < play.rank[i].devices; d++)
                idle = play.rank[i].device[d].until > now ? 0 : idle;
    }
    return play_ended() ? now : 0;
}

/* ---- what a job says of itself */

/* When the last device of a pipeline of the job had ended. */
static uint64_t play_pipeline_end(const dti_pipe *of, const dti_pipeline *pipeline) {
    const uint32_t number = dti_pipeline_number(of, pipeline);
    uint64_t end = 0;
    for (int i = 0; i < play.count; i++) {
        const play_rank *r = &play.rank[i];
        const dti_pipe *pipe = r->trainer->par.pipe;
        for (int d = 0; d < r->devices; d++) {
            const dti_pipeline *own = &pipe->pipelines[pipe->devices[d].pipeline];
            if (number - dti_pipeline_number(pipe, own) < pipe->each)
                end = DTI_MAX(end, r->device[d].until);
        }
    }
    return end;
}

/* docs/distributed/large-models.md, of p stages, m micro-batches and v chunks: *least to what it
 * returns. sums:
 * of several batch slices, which zero bubble ends one by one. */
static double play_bubble(const play_job *j, uint32_t m, bool sums, double *least) {
    const uint32_t p = (uint32_t)j->stages;
    const double v = j->chunks > 1 ? j->chunks : 1, zero = (p - 1.0) / (3.0 * m);
    const double plain = (p - 1) / (v * m);
    const bool is_zero = j->schedule == DT_PIPELINE_ZERO_BUBBLE;
    *least = is_zero ? zero : plain;
    return is_zero && m >= p && !sums ? zero : v > 1 && m % p ? (p - 1.0) / m : plain;
}

/* After a play in unit times. */
static void play_idles(const play_job *j) {
    for (int i = 0; i < play.count; i++) {
        const dti_pipe *pipe = play.rank[i].trainer->par.pipe;
        dt_trainer_info info;
        dt_trainer_get_info(play.rank[i].trainer, &info);
        for (uint32_t k = 0; pipe && k < pipe->pipeline_count; k++) {
            const dti_runs *runs = &pipe->pipelines[k].runs[j->short_batch];
            const uint32_t work = 3 * runs->count * pipe->chunk_count / (uint32_t)j->stages;
            const bool sums = runs->count && runs->runs[0].pieces[0].leaf !=
                                                 runs->runs[runs->count - 1].pieces[0].leaf;
            double least;
            if (!runs->count || !play_has_own_lists(&play.rank[i]))
                continue;
            const double idle =
                (double)(play_pipeline_end(pipe, &pipe->pipelines[k]) - work) / work;
            const double most = play_bubble(j, runs->count, sums, &least);
            CHECK_TEXT(idle <= most + 1e-12 && idle >= least - 1e-12,
                       "%d stages, %d chunks, schedule %d, %u micro-batches: idle %g, not %g to %g",
                       j->stages, j->chunks, (int)j->schedule, runs->count, idle, least, most);
            CHECK_NEAR(pipe->pipelines[k].schedules[j->short_batch].bubble, idle, 1e-12);
            if (!k && !j->short_batch)
                CHECK_NEAR(info.bubble, idle, 1e-12);
        }
    }
}

/* After plays of both shapes of batches: no slot too few, and none too many. */
static uint64_t play_slots(const play_rank *r, int d) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    const dti_pipe_device *own = &pipe->devices[d];
    uint64_t bytes = 0;
    for (uint32_t c = own->place; c < pipe->chunk_count; c += pipe->mesh->stages) {
        for (uint32_t k = 0; k < pipe->each; k++) {
            const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, own->pipeline + k, c);
            for (const dt_program *p = chunk->store->programs; p; p = p->next) {
                const uint32_t most = play_counts(r, p)->most;
                CHECK_TEXT(most == p->step_slot_count,
                           "chunk %u of %u, %u rows: %u slots, %u alive", c, pipe->chunk_count,
                           (unsigned)p->code->batch, p->step_slot_count, most);
                bytes += most * p->code->transient_bytes;
            }
        }
    }
    return bytes;
}

/* The most of any device of a pipeline. */
static uint32_t play_live(const dti_pipe *of) {
    const uint32_t number = dti_pipeline_number(of, &of->pipelines[0]);
    uint32_t most = 0;
    for (int i = 0; i < play.count; i++) {
        const dti_pipe *pipe = play.rank[i].trainer->par.pipe;
        for (int d = 0; d < play.rank[i].devices; d++) {
            if (dti_pipeline_number(pipe, &pipe->pipelines[pipe->devices[d].pipeline]) == number)
                most = DTI_MAX(most, play_saw[i].live[d]);
        }
    }
    return most;
}

/* Of the same table: micro-batches that a device keeps at most. */
static uint32_t play_kept(const play_job *j, uint32_t m) {
    const uint32_t p = (uint32_t)j->stages, v = j->chunks > 1 ? (uint32_t)j->chunks : 1;
    return j->schedule == DT_PIPELINE_FILL_DRAIN ? m : v > 1 ? p * (v + 1) - 1 : p;
}

static void play_memory(const play_rank *r) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    dt_trainer_info info;
    uint64_t bytes = 0;
    dt_trainer_get_info(r->trainer, &info);
    for (int d = 0; pipe && d < r->devices; d++)
        bytes = DTI_MAX(bytes, play_slots(r, d));
    bytes = pipe ? bytes : play_saw[r->index].most_bytes;
    CHECK_TEXT(bytes == info.transient_bytes, "%llu bytes alive, %llu are told",
               (unsigned long long)bytes, (unsigned long long)info.transient_bytes);
    if (!pipe || r->job->stages == 1 || !play_has_own_lists(r))
        return;
    const uint32_t live = play_live(pipe);
    CHECK_TEXT(live == (uint32_t)info.live_micro_batches, "%u micro-batches alive, %d are told",
               live, info.live_micro_batches);
    CHECK_TEXT(live <= play_kept(r->job, pipe->pipelines[0].runs[0].count),
               "%u micro-batches alive, %d stages", live, r->job->stages);
}

#endif
