/* Lists of whole jobs, played without their devices. All ranks' lists are executed in an order that
 * is drawn, with the messages between them. A fault is tried at each action; then by a clock. The
 * predicates are the library's. Included by main.c, after test_plan.c. */
#include "parallel/pipe_model.h"

enum { PLAY_RANKS = 4, PLAY_DEVICES = 16 };

typedef struct play_job {
    int stages, tensor, slices, data, ranks, batch_slices, accumulate, kind, chunks, zero;
    dt_pipeline_schedule schedule;
    bool short_batch, uneven; /* uneven: the first rank has one device */
    int rows, bucket_bytes;   /* of the data, and of a bucket; 0: the usual ones */
    int evaluates;            /* a replica's batch of an evaluation before the play; 0: none */
} play_job;

typedef struct play_device {
    uint32_t at, met, left; /* sync points that it has come to, and left */
    uint32_t buckets;       /* of a replica: that it has given */
    bool arrived, gave_up, busy;
    uint64_t until; /* busy: with its next action */
} play_device;

typedef struct play_rank {
    const play_job *job;
    dt_comm *comm;
    int index, devices;
    dt_trainer *trainer;
    play_device device[PLAY_DEVICES];
    bool failed;
} play_rank;

static struct {
    play_rank rank[PLAY_RANKS];
    int count;
    _Atomic int ready, over;
} play;

/* The tensor group's stage of a device, counted over the job. */
static uint32_t play_row(const play_rank *r, int d) {
    const dti_parallel *par = &r->trainer->par;
    const uint32_t first = dti_mesh_own(&par->mesh, par->mesh.rank).first;
    return (first + (uint32_t)d * par->pipe->each) / par->mesh.tensor;
}

#include "parallel/play_checks.h"
#include "parallel/play_units.h"

/* ---- the job's trainers, each on a thread until the play is over */

static void *play_rank_run(void *arg) {
    play_rank *r = arg;
    const play_job *j = r->job;
    train_model *m = malloc(sizeof *m);
    char devices[16];
    snprintf(devices, sizeof devices, "cpu:%d", r->devices);
    if (CHECK_TEXT(pipe_model(m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, j->kind),
                   "a model")) {
        dt_trainer_desc d = train_desc(m);
        d.comm = r->comm;
        d.devices = devices;
        d.batch = 22;
        d.tail = DT_TAIL_KEEP;
        d.accumulate = j->accumulate;
        d.parallel.batch_slices = j->batch_slices;
        d.parallel.replicas = j->stages > 1 || j->tensor > 1 ? j->data : 0;
        d.parallel.pipeline = j->stages > 1 ? j->stages : 0;
        d.parallel.schedule = j->schedule;
        d.parallel.chunks = j->chunks > 1 ? j->chunks : 0;
        d.parallel.zero_stage = j->zero;
        d.parallel.bucket_bytes = (size_t)j->bucket_bytes;
        d.data.rows = j->rows ? (uint64_t)j->rows : d.data.rows;
        d.parallel.tensor = j->tensor > 1 ? j->tensor : 0;
        d.parallel.tensor_slices = j->slices > 1 ? j->tensor * j->slices : 0;
        if (dt_trainer_create(m->graph, &d, &r->trainer))
            CHECK_TEXT(false, "%s", dt_ctx_error(m->ctx));
        else if (j->evaluates && dt_trainer_evaluate(r->trainer, &d.data, j->evaluates, NULL))
            CHECK_TEXT(false, "%s", dt_ctx_error(m->ctx));
    }
    play.ready++;
    while (!play.over)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    dt_ctx_destroy(m->ctx);
    free(m);
    return NULL;
}

static const dti_list *play_list(const play_rank *r, int d) {
    const dti_parallel *par = &r->trainer->par;
    const bool tail = r->job->short_batch;
    return par->pipe ? &par->pipe->devices[d].lists[tail]
           : tail    ? &par->replicas[d].tail.list
                     : &par->replicas[d].full.list;
}

/* ---- what may happen next */

/* Whether all that meet have come: tensor ranks of the stage, or all replicas of the job. */
static bool play_all_met(const play_rank *own, int d) {
    bool all = true;
    for (int i = 0; i < play.count; i++) {
        const play_rank *r = &play.rank[i];
        for (int k = 0; k < r->devices; k++) {
            const bool meets = !own->trainer->par.pipe || play_row(r, k) == play_row(own, d);
            all = all && (!meets || r->device[k].met >= own->device[d].met);
        }
    }
    return all;
}

static _Atomic uint32_t *play_counter(const play_rank *r, int d, int which) {
    const dti_parallel *par = &r->trainer->par;
    return &par->counters[par->pipe->devices[d].tp->counters + (uint32_t)which];
}

static bool play_may(const play_rank *r, int d) {
    const dti_list *list = play_list(r, d);
    const play_device *own = &r->device[d];
    const dti_action *a = &list->actions[own->at];
    return own->at < list->count && !own->gave_up &&
           (!a->need_count || dti_list_may(&r->trainer->par, list, a));
}

/* Whether it did its next action. */
static bool play_act(play_rank *r, int d) {
    const dti_parallel *par = &r->trainer->par;
    play_device *own = &r->device[d];
    const dti_action *a = &play_list(r, d)->actions[own->at];
    if (!play_may(r, d))
        return false;
    if (a->kind == DTI_ACTION_COLLECTIVE && !own->arrived) {
        own->arrived = true;
        own->met++;
        if (par->pipe)
            CHECK(own->met == a->met + 1);
        if (par->pipe)
            *play_counter(r, d, DTI_TP_ARRIVED) += par->pipe->each;
    }
    if (a->kind == DTI_ACTION_COLLECTIVE && !play_all_met(r, d))
        return false;
    if (a->kind == DTI_ACTION_COLLECTIVE && par->pipe)
        *play_counter(r, d, DTI_TP_LEFT) += par->pipe->each;
    own->left += a->kind == DTI_ACTION_COLLECTIVE;
    if (a->kind == DTI_ACTION_GATHER)
        play_units_see(r, a->part, a);
    else
        play_sees_action(r, d, a);
    if (a->raises)
        par->counters[a->raises - 1]++;
    own->arrived = false;
    own->at++;
    return true;
}

static dti_pipe_flow *play_peer(const play_rank *own, const dti_pipe_flow *f) {
    const dti_pipe *pipe = own->trainer->par.pipe;
    const uint32_t number = dti_pipeline_number(pipe, &pipe->pipelines[f->pipeline]);
    for (int i = 0; i < play.count; i++) {
        const dti_pipe *other = play.rank[i].trainer->par.pipe;
        for (uint32_t k = 0; k < other->plan->flow_count; k++) {
            dti_pipe_flow *g = &other->plan->flows[k];
            if (g->sends != f->sends && g->gradient == f->gradient && g->here == f->there &&
                g->there == f->here &&
                dti_pipeline_number(other, &other->pipelines[g->pipeline]) == number)
                return g;
        }
    }
    return NULL;
}

/* A message is posted, or arrives. Whether anything moved. */
static bool play_message(play_rank *r, dti_pipe_flow *f) {
    const dti_parallel *par = &r->trainer->par;
    dti_pipe_flow *peer = play_peer(r, f);
    if (r->failed || !CHECK_TEXT(peer != NULL, "nobody has the other end"))
        return false;
    if (dti_pipe_flow_may(par, f)) {
        play_posts(r, f);
        f->posted++;
        return true;
    }
    if (f->posted <= *f->done || peer->posted <= *peer->done)
        return false;
    ++*f->done;
    ++*peer->done;
    return true;
}

static bool play_message_drawn(play_rank *r, uint32_t *state) {
    const dti_pipe *pipe = r->trainer->par.pipe;
    const bool moved = play_units_drawn(r, state);
    return (pipe && pipe->plan->flow_count &&
            play_message(r, &pipe->plan->flows[train_random(state) % pipe->plan->flow_count])) ||
           moved;
}

/* ---- a play */

static void play_begin(void) {
    for (int i = 0; i < play.count; i++) {
        play_rank *r = &play.rank[i];
        dti_pipe *pipe = r->trainer->par.pipe;
        memset(r->device, 0, sizeof r->device);
        r->failed = false;
        play_sees_begin(r);
        for (uint32_t k = 0; pipe && k < pipe->plan->counter_count; k++)
            r->trainer->par.counters[k] = 0;
        for (uint32_t k = 0; pipe && k < pipe->plan->flow_count; k++)
            pipe->plan->flows[k].posted = 0;
        if (pipe)
            pipe->shape = r->job->short_batch;
        play_units_begin(r);
    }
}

static bool play_ended(void) {
    bool all = true;
    for (int i = 0; i < play.count; i++) {
        const play_rank *r = &play.rank[i];
        const dti_pipe *pipe = r->trainer->par.pipe;
        all = all && play_units_ended(r);
        for (int d = 0; d < r->devices; d++)
            all = all && r->device[d].at == play_list(r, d)->count;
        for (uint32_t k = 0; pipe && k < pipe->plan->flow_count; k++)
            all = all && *pipe->plan->flows[k].done ==
                             dti_pipe_flow_micros(&r->trainer->par, &pipe->plan->flows[k]);
    }
    return all;
}

/* A rank that cannot continue, while another has failed, gets that error from the network or from
 * the other device. */
static bool play_give_up(void) {
    bool all = true;
    for (int i = 0; i < play.count; i++) {
        play_rank *r = &play.rank[i];
        for (int d = 0; d < r->devices; d++) {
            const bool moved = play_act(r, d);
            r->device[d].gave_up = !moved;
            all = all && (!moved || r->device[d].at == play_list(r, d)->count);
        }
    }
    return all;
}

/* fault: number of the action that fails, of all that are done; -1: none. Whether it ended, and how
 * many actions there were. */
static bool play_run(int fault, uint32_t *state, int *actions) {
    bool failed = false;
    play_begin();
    *actions = 0;
    for (uint32_t idle = 0; idle < 4000; idle++) {
        play_rank *r = &play.rank[train_random(state) % (uint32_t)play.count];
        const int d = (int)(train_random(state) % (uint32_t)r->devices);
        if (play_message_drawn(r, state))
            idle = 0;
        play_counts_pending(r);
        if (r->failed || !play_act(r, d))
            continue;
        idle = 0;
        if ((*actions)++ == fault)
            failed = r->failed = r->device[d].gave_up = true;
    }
    for (int tries = 0; failed && !play_give_up(); tries++)
        if (!CHECK_TEXT(tries < 100000, "somebody never ends"))
            return false;
    return failed || play_ended();
}

#include "parallel/play_clock.h"

/* ---- jobs */

static void play_job_open(const play_job *j, pthread_t *threads, dt_comm **comms) {
    const int all = j->stages * j->tensor * j->data, alone = j->uneven && j->ranks > 1,
              devices = all - alone, ranks = j->ranks - alone;
    memset(&play, 0, sizeof play);
    memset(play_saw, 0, sizeof play_saw);
    play.count = j->ranks;
    if (j->ranks > 1)
        CHECK(!dt_comm_create_threads(NULL, j->ranks, comms));
    for (int i = 0, k = -alone; i < j->ranks; i++, k++) {
        play.rank[i] =
            (play_rank){.job = j,
                        .comm = comms[i],
                        .index = i,
                        .devices = k < 0 ? 1 : devices * (k + 1) / ranks - devices * k / ranks};
        CHECK(!pthread_create(&threads[i], NULL, play_rank_run, &play.rank[i]));
    }
    while (play.ready < j->ranks)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void play_draw(uint32_t *state, play_job *j) {
    static const dt_pipeline_schedule schedules[] = {DT_PIPELINE_1F1B, DT_PIPELINE_FILL_DRAIN,
                                                     DT_PIPELINE_ZERO_BUBBLE};
    *j = (play_job){.stages = 1 + (int)(train_random(state) % 3),
                    .tensor = 1 + (int)(train_random(state) % 2),
                    .slices = 1,
                    .data = 1 + (int)(train_random(state) % 2),
                    .accumulate = 1 + (int)(train_random(state) % 5),
                    .schedule = schedules[train_random(state) % 3],
                    .short_batch = train_random(state) % 3 == 0};
    const int deep = train_random(state) % 2 ? PIPE_SKIP : PIPE_TIED,
              plain = train_random(state) % 2 ? TRAIN_SYNC : 1;
    j->kind = j->tensor > 1 ? TRAIN_PARTS : j->stages > 1 ? deep : plain;
    if (j->tensor > 1 && j->stages == 1)
        j->slices = 1 + (int)(train_random(state) % 2);
    if (j->stages == 1)
        j->schedule = DT_PIPELINE_1F1B;
    if (j->stages == 2 && j->tensor == 1 && train_random(state) % 2) {
        j->schedule = DT_PIPELINE_INTERLEAVED;
        j->chunks = 2;
    }
    j->zero = j->data > 1 && j->slices == 1 && j->stages * j->tensor > 1
                  ? (int)(train_random(state) % 4)
                  : 0;
    j->bucket_bytes = j->zero > 1 ? 512 << train_random(state) % 3 : 0;
    j->batch_slices = j->data * (1 + (int)(train_random(state) % 2)) +
                      (j->zero > 1 ? (int)(train_random(state) % 2) : 0);
    if (j->kind == TRAIN_SYNC)
        j->accumulate = 1; /* it needs the whole batch at once */
    const int devices = j->stages * j->tensor * j->data;
    j->ranks = 1 + (int)(train_random(state) % (uint32_t)DTI_MIN(devices, PLAY_RANKS));
    j->uneven = train_random(state) % 2;
}

static void play_job_close(const play_job *j, pthread_t *threads, dt_comm **comms) {
    play.over = 1;
    for (int i = 0; i < j->ranks; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < j->ranks; i++)
        dt_comm_destroy(comms[i]);
}

static bool play_is_made(void) {
    bool made = true;
    for (int i = 0; i < play.count; i++)
        made = made && play.rank[i].trainer;
    return made;
}

/* With all that can be seen where nothing fails. */
static void play_whole(play_job *j, int round, uint32_t *state) {
    for (int again = 0; again < 6; again++) {
        int actions;
        j->short_batch = again % 2;
        const bool ended = again < 2   ? play_clock(NULL) > 0
                           : again < 4 ? play_clock(state) > 0
                                       : play_run(-1, state, &actions);
        CHECK_TEXT(ended,
                   "round %d: %d stages x %d tensor ranks x %d, %d slices, %d ranks, %d "
                   "micro-batches, schedule %d, ZeRO-%d: nobody moves",
                   round, j->stages, j->tensor, j->data, j->slices, j->ranks, j->accumulate,
                   (int)j->schedule, j->zero);
        play_channels_agree();
        if (again < 2)
            play_idles(j);
    }
    for (int i = 0; i < play.count; i++)
        play_memory(&play.rank[i]);
}

typedef void play_fn(play_job *j, int round, uint32_t *state);

/* How many jobs there were without stages and tensor groups, with either, and with both. */
static void play_jobs(uint32_t seed, play_fn *fn) {
    int kinds[4] = {0};
    for (int round = 0; round < (test_is_long() ? 400 : test_takes(1, 2, 3) ? 12 : 40); round++) {
        play_job j;
        pthread_t threads[PLAY_RANKS];
        dt_comm *comms[PLAY_RANKS] = {NULL};
        play_draw(&seed, &j);
        play_job_open(&j, threads, comms);
        kinds[(j.stages > 1) + 2 * (j.tensor > 1)]++;
        if (play_is_made())
            fn(&j, round, &seed);
        play_job_close(&j, threads, comms);
    }
    CHECK(kinds[0] && kinds[1] && kinds[2] && kinds[3]);
}

static void play_faults(play_job *j, int round, uint32_t *state) {
    int actions, ignored;
    CHECK(play_run(-1, state, &actions));
    for (int fault = 0; fault < actions; fault += 1 + actions / 40)
        CHECK_TEXT(play_run(fault, state, &ignored), "round %d: fault %d of %d, %d stages", round,
                   fault, actions, j->stages);
}

TEST(lists_of_random_jobs_end_on_all_ranks_if_any_action_fails) {
    play_jobs(11, play_faults);
}

/* And they wait as long as the schedule's formula says. */
TEST(lists_of_random_jobs_keep_only_needed_values_within_the_reported_memory) {
    play_jobs(12, play_whole);
}
