/* What a play (test_play.c) looks at while lists are executed: where each micro-batch lies and what
 * is still needed of it. Also messages and sums by their channels, and operations under way. It
 * knows a schedule only by its list. */
#ifndef DTRAIN_TESTS_PLAY_CHECKS_H
#define DTRAIN_TESTS_PLAY_CHECKS_H

enum { PLAY_PARTS = 48, PLAY_MICROS = 64, PLAY_PROGRAMS = 96, PLAY_CHANNELS = 96, PLAY_SUMS = 128 };

typedef struct play_micro { /* of a part: a chunk of a pipeline, or a replica */
    bool taken, received, made, left, over;
    uint64_t brought; /* gradients of links, by number */
} play_micro;

typedef struct play_program { /* micro-batches alive in it */
    const dt_program *program;
    uint32_t alive, most;
} play_program;

typedef struct play_channel { /* a comm: what this rank has sent, received, and made with all */
    const dt_comm *comm;
    uint64_t sent, received, together;
} play_channel;

typedef struct play_sees { /* of a rank */
    play_micro micro[PLAY_PARTS][PLAY_MICROS];
    play_program programs[PLAY_PROGRAMS + 1];
    play_channel channels[PLAY_CHANNELS + 1];
    uint32_t arrived[PLAY_SUMS], posted, ahead, pending; /* pending: the most */
    bool out[PLAY_SUMS];
    uint32_t alive[PLAY_DEVICES], live[PLAY_DEVICES]; /* now, and the most of full batches */
    uint64_t bytes[PLAY_DEVICES], most_bytes;         /* of replicas: now, and of the first */
} play_sees;

static play_sees play_saw[PLAY_RANKS];

static play_sees *play_of(const play_rank *r) {
    return &play_saw[r->index];
}

/* ---- where a micro-batch lies */

typedef struct play_place {
    const dt_program *program;
    uint32_t slot;
} play_place;

static const dti_pipe_chunk *play_chunk(const play_rank *r, uint32_t part) {
    return &r->trainer->par.pipe->chunks[part];
}

static const dti_runs *play_runs(const play_rank *r, uint32_t part) {
    const dti_parallel *par = &r->trainer->par;
    const bool tail = r->job->short_batch;
    const dti_replica *replica = &par->replicas[part];
    return par->pipe ? &par->pipe->pipelines[play_chunk(r, part)->pipeline].runs[tail]
           : tail    ? &replica->tail
                     : &replica->full;
}

/* Programs of a replica have one room for what is transient. */
static play_place play_place_of(const play_rank *r, uint32_t part, uint32_t micro) {
    if (!r->trainer->par.pipe)
        return (play_place){0};
    const dti_pipe_run *run = &play_chunk(r, part)->runs[r->job->short_batch][micro];
    return (play_place){run->program, run->micro_slot};
}

static const dt_program *play_program_of(const play_rank *r, uint32_t part, uint32_t micro) {
    return r->trainer->par.pipe ? play_place_of(r, part, micro).program
                                : play_runs(r, part)->runs[micro].program;
}

static uint32_t play_part(const play_rank *r, uint32_t pipeline, uint32_t chunk) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    return (uint32_t)(dti_pipe_chunk_of(pipe, pipeline, chunk) - pipe->chunks);
}

/* Whether the program of a micro-batch has a tensor: one that comes in, or goes out. */
static bool play_has(const play_rank *r, uint32_t part, uint32_t micro, uint32_t node, bool out,
                     bool gradient) {
    const dt_program *p = play_program_of(r, part, micro);
    return dti_code_binding(dti_program_code(p), node, out, gradient) != NULL;
}

/* ---- what is still needed of it */

/* Others here read what it gave, or messages of it have not gone. */
static bool play_is_read(const play_rank *r, uint32_t part, uint32_t micro) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    bool read = false;
    for (uint32_t i = 0; pipe && i < pipe->plan->flow_count; i++) {
        const dti_pipe_flow *f = &pipe->plan->flows[i];
        read = read || (f->sends && play_part(r, f->pipeline, f->here) == part &&
                        atomic_load(f->done) <= micro);
    }
    for (uint32_t i = 0; pipe && i < pipe->plan->cut.link_count; i++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[i];
        const dti_pipe_chunk *own = play_chunk(r, part);
        const uint32_t to = play_part(r, own->pipeline, l->to);
        read = read || (l->from == own->index && play_chunk(r, to)->store &&
                        play_has(r, to, micro, l->node, false, false) &&
                        !play_of(r)->micro[to][micro].received);
    }
    return read;
}

static bool play_is_alive(const play_rank *r, uint32_t part, uint32_t micro) {
    const play_micro *m = &play_of(r)->micro[part][micro];
    return m->taken && !m->over;
}

static play_program *play_counts(const play_rank *r, const dt_program *program) {
    play_program *p = play_of(r)->programs;
    while (p->program && p->program != program && p < play_of(r)->programs + PLAY_PROGRAMS - 1)
        p++;
    p->program = program;
    return p;
}

static void play_takes(play_rank *r, int d, uint32_t part, uint32_t micro, bool counts) {
    play_sees *s = play_of(r);
    play_program *p = play_counts(r, play_program_of(r, part, micro));
    const play_place own = play_place_of(r, part, micro);
    if (s->micro[part][micro].taken)
        return;
    for (uint32_t m = 0; m < play_runs(r, part)->count; m++) {
        const play_place at = play_place_of(r, part, m);
        if (m == micro || at.program != own.program || at.slot != own.slot ||
            !s->micro[part][m].taken)
            continue;
        CHECK_TEXT(s->micro[part][m].over && !play_is_read(r, part, m),
                   "rank %d, part %u: slot %u of micro-batch %u is taken by %u", r->index, part,
                   own.slot, m, micro);
    }
    s->micro[part][micro].taken = true;
    p->alive++;
    p->most = DTI_MAX(p->most, p->alive);
    s->bytes[d] += p->program->code->transient_bytes;
    if (d == 0)
        s->most_bytes = DTI_MAX(s->most_bytes, s->bytes[d]);
    s->alive[d] += counts;
    if (!r->job->short_batch)
        s->live[d] = DTI_MAX(s->live[d], s->alive[d]);
}

static void play_ends(play_rank *r, int d, uint32_t part, uint32_t micro, bool counts) {
    play_sees *s = play_of(r);
    play_program *p = play_counts(r, play_program_of(r, part, micro));
    s->micro[part][micro].over = true;
    p->alive--;
    s->bytes[d] -= p->program->code->transient_bytes;
    s->alive[d] -= counts;
}

/* ---- what must be there */

static void play_receives(const play_rank *r, uint32_t part, uint32_t micro) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    const dti_pipe_chunk *own = play_chunk(r, part);
    for (uint32_t i = 0; i < pipe->plan->cut.link_count; i++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[i];
        if (l->to != own->index || !play_has(r, part, micro, l->node, false, false))
            continue;
        const uint32_t from = play_part(r, own->pipeline, l->from);
        const dti_pipe_flow *f = dti_pipe_flow_to(pipe, own->pipeline, l, false);
        if (play_chunk(r, from)->store)
            CHECK(play_is_alive(r, from, micro) && play_of(r)->micro[from][micro].made);
        else
            CHECK(f && atomic_load(f->done) > micro);
    }
    play_of(r)->micro[part][micro].received = true;
}

/* Gradients of what it gave. */
static void play_needs_gradients(const play_rank *r, uint32_t part, uint32_t micro) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    const dti_pipe_chunk *own = play_chunk(r, part);
    for (uint32_t i = 0; i < pipe->plan->cut.link_count; i++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[i];
        if (!l->gradient || l->back != own->index ||
            !play_has(r, part, micro, l->node, false, true))
            continue;
        const dti_pipe_flow *f = dti_pipe_flow_to(pipe, own->pipeline, l, true);
        if (play_chunk(r, play_part(r, own->pipeline, l->to))->store)
            CHECK(play_of(r)->micro[part][micro].brought >> i & 1);
        else
            CHECK(f && atomic_load(f->done) > micro);
    }
}

/* Gradients to chunks that are here, into the micro-batch's slot there. */
static void play_brings(const play_rank *r, uint32_t part, uint32_t micro) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    const dti_pipe_chunk *own = play_chunk(r, part);
    for (uint32_t i = 0; i < pipe->plan->cut.link_count; i++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[i];
        const uint32_t back = play_part(r, own->pipeline, l->back);
        if (l->to != own->index || !l->gradient || !play_chunk(r, back)->store)
            continue;
        CHECK(play_is_alive(r, back, micro) && play_of(r)->micro[back][micro].made);
        play_of(r)->micro[back][micro].brought |= (uint64_t)1 << i;
    }
}

/* Its operands at sync points have been read by all here. */
static void play_has_left(const play_rank *r, int d) {
    for (int k = 0; k < r->devices; k++) {
        if (play_row(r, k) == play_row(r, d))
            CHECK(r->device[k].left >= r->device[d].met);
    }
}

/* ---- channels: the same sequence on all ranks of each */

static play_channel *play_channel_of(const play_rank *r, const dt_comm *comm) {
    play_channel *c = play_of(r)->channels;
    while (c->comm && c->comm != comm && c < play_of(r)->channels + PLAY_CHANNELS - 1)
        c++;
    c->comm = comm;
    return c;
}

static void play_note(uint64_t *to, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    const uint64_t all[] = {a, b, c, d};
    *to = dti_hash64(*to ? *to : DTI_HASH_START, all, sizeof all);
}

/* A micro-batch's message: each tensor of it. */
static void play_posts(const play_rank *r, const dti_pipe_flow *f) {
    const uint32_t part = play_part(r, f->pipeline, f->here), micro = f->posted;
    const dti_pipe *pipe = r->trainer->par.pipe;
    play_channel *c = play_channel_of(r, f->comm);
    const play_micro *m = &play_of(r)->micro[part][micro];
    if (f->sends)
        CHECK(f->gradient ? m->left : m->made); /* the micro-batch that takes the slot looks whether
                                                 * it has gone */
    else if (f->gradient)
        CHECK(play_is_alive(r, part, micro));
    else /* its place is free */
        CHECK(micro < DTI_PIPE_WINDOW || play_of(r)->micro[part][micro - DTI_PIPE_WINDOW].received);
    for (uint32_t k = 0; k < f->link_count; k++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[f->links[k]];
        const dti_binding *binding = dti_code_binding(
            dti_program_code(play_program_of(r, part, micro)), l->node, f->sends, f->gradient);
        if (CHECK_TEXT(binding != NULL, "nothing to send, or no place"))
            play_note(f->sends ? &c->sent : &c->received, l->node, binding->bytes, micro,
                      f->gradient);
    }
}

/* ---- sums */

static uint32_t play_sum_works(const play_rank *r) {
    const dti_parallel *par = &r->trainer->par;
    return par->pipe && dti_pipe_has_units(par)      ? DTI_MIN(par->mesh.world, par->mesh.data)
           : dti_units_are(par) && !par->units.whole ? par->mesh.world
                                                     : 1;
}

/* Each is posted as soon as all of this rank have arrived. Replicas post in their order, pipelines
 * up to the number that may be ahead. They stay under way until the lists have ended. */
static void play_sum(const play_rank *r, uint32_t from, uint32_t to) {
    const dti_parallel *par = &r->trainer->par;
    play_sees *s = play_of(r);
    for (uint32_t i = from; i < to; i++)
        s->arrived[i]++;
    for (uint32_t i = par->pipe ? from : s->posted; i < (par->pipe ? to : par->sums.count); i++) {
        const dti_sum *sum = &par->sums.list[i];
        if (s->arrived[i] != sum->parts)
            return;
        s->posted++;
        if (!sum->comm || (par->pipe && s->ahead++ >= par->sums.window))
            continue;
        s->out[i] = true;
        play_note(&play_channel_of(r, sum->comm)->together, par->pipe ? 0 : i, sum->elements, 0, 1);
    }
}

static void play_sums_at(const play_rank *r, uint32_t part, const dti_action *a) {
    const dti_parallel *par = &r->trainer->par;
    const uint32_t last = play_runs(r, part)->count;
    if (par->pipe) {
        const uint32_t s =
            (uint32_t)(dti_pipe_stage_of(par->pipe, play_chunk(r, part)) - par->pipe->stages);
        if (a->kind == DTI_ACTION_ZEROS || (a->kind == DTI_ACTION_SUM && a->micro + 1 == last))
            play_sum(r, s, s + 1);
    } else if (a->kind == DTI_ACTION_ZEROS ||
               (a->kind == DTI_ACTION_BACKWARD && a->micro + 1 == last)) {
        play_sum(r, r->device[part].buckets, a->buckets);
        play.rank[r->index].device[part].buckets = a->buckets;
    }
}

/* The device that speaks for all of a rank that wait together. */
static void play_meets(const play_rank *r, int d, const dti_action *a) {
    const dti_parallel *par = &r->trainer->par;
    const dti_pipe *pipe = par->pipe;
    const dt_comm *comm = pipe ? pipe->devices[d].tp->comm : par->sync_points.comm;
    const bool speaks =
        pipe ? pipe->pipelines[pipe->devices[d].pipeline].tp_rank == pipe->devices[d].tp->first
             : d == 0;
    if (!comm || !speaks)
        return;
    const uint64_t what = pipe ? pipe->chunks[a->part].index : 0;
    play_note(&play_channel_of(r, comm)->together, a->what, what, a->micro, 2);
}

static uint32_t play_units_pending(const play_rank *r);

/* Operations under way, the most that it can be. */
static void play_counts_pending(const play_rank *r) {
    const dti_parallel *par = &r->trainer->par;
    const dti_pipe *pipe = par->pipe;
    play_sees *s = play_of(r);
    uint32_t pending = 0;
    for (uint32_t i = 0; pipe && i < pipe->plan->flow_count; i++)
        pending += (pipe->plan->flows[i].posted - *pipe->plan->flows[i].done) *
                   pipe->plan->flows[i].link_count;
    for (uint32_t i = 0; i < par->sums.count; i++)
        pending += s->out[i] ? play_sum_works(r) : 0;
    for (int d = 0; d < r->devices; d++)
        pending += r->device[d].arrived;
    pending += play_units_pending(r);
    s->pending = DTI_MAX(s->pending, pending);
    CHECK(pending <= DTI_PENDING_MAX);
}

/* Pairs of ranks: what one has sent the other has received. All: they made the same. */
static void play_channels_agree(void) {
    for (int i = 0; i < play.count; i++) {
        for (const play_channel *c = play_saw[i].channels; c->comm; c++) {
            for (uint32_t k = 0; k < c->comm->size; k++) {
                const uint32_t rank = c->comm->ranks ? c->comm->ranks[k] : k;
                const play_channel *o = play_saw[rank].channels;
                while (o->comm && o->comm->group_id != c->comm->group_id)
                    o++;
                CHECK(o->comm && o->comm->size == c->comm->size && o->together == c->together);
                CHECK(rank == (uint32_t)i || c->comm->size != 2 ||
                      (o->sent == c->received && o->received == c->sent));
            }
        }
    }
}

/* ---- an action, and the whole */

static void play_units_see(const play_rank *r, uint32_t part, const dti_action *a);

static void play_part_sees(play_rank *r, int d, uint32_t part, const dti_action *a, bool counts) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    play_micro *m = &play_of(r)->micro[part][a->micro];
    const dt_program *p = a->kind == DTI_ACTION_ZEROS ? NULL : play_program_of(r, part, a->micro);
    if (a->kind == DTI_ACTION_WRITE || a->kind == DTI_ACTION_OPEN)
        play_takes(r, d, part, a->micro, counts);
    else if (a->kind != DTI_ACTION_ZEROS)
        CHECK(play_is_alive(r, part, a->micro));
    if (pipe && a->kind == DTI_ACTION_RECEIVE)
        play_receives(r, part, a->micro);
    if (pipe && a->kind == DTI_ACTION_BACKWARD && a->from < dti_program_leaving(p))
        play_needs_gradients(r, part, a->micro);
    if (pipe && a->kind == DTI_ACTION_SEND)
        play_brings(r, part, a->micro);
    m->made = m->made || a->ends == DTI_ENDS_FORWARD;
    m->left = m->left || a->kind == DTI_ACTION_CLOSE;
    play_sums_at(r, part, a);
    play_units_see(r, part, a);
    if (a->kind == (pipe ? DTI_ACTION_SUM : DTI_ACTION_CLOSE))
        play_ends(r, d, part, a->micro, counts);
}

/* Of each slice of the device. */
static void play_sees_action(play_rank *r, int d, const dti_action *a) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    if (pipe && pipe->devices[d].tp &&
        (a->kind == DTI_ACTION_WRITE || a->kind == DTI_ACTION_BACKWARD))
        play_has_left(r, d);
    if (a->kind == DTI_ACTION_COLLECTIVE)
        play_meets(r, d, a);
    for (uint32_t k = 0; k < (pipe ? pipe->each : 1); k++) {
        const uint32_t part =
            pipe ? play_part(r, pipe->devices[d].pipeline + k, pipe->chunks[a->part].index)
                 : (uint32_t)d;
        if (pipe || play_runs(r, part)->count || a->kind == DTI_ACTION_ZEROS)
            play_part_sees(r, d, part, a, k == 0);
    }
}

static void play_sees_begin(play_rank *r) {
    play_sees *s = play_of(r);
    memset(s->micro, 0, sizeof s->micro);
    memset(s->channels, 0, sizeof s->channels);
    memset(s->arrived, 0, sizeof s->arrived);
    memset(s->out, 0, sizeof s->out);
    memset(s->alive, 0, sizeof s->alive);
    memset(s->bytes, 0, sizeof s->bytes);
    s->posted = s->ahead = 0;
    for (play_program *p = s->programs; p->program; p++)
        p->alive = 0;
}

#endif
