/* Ranks that die: at every frame of a step and while a trainer is made, and by a kill at any time.
 * The others end with an error, at a whole step that the oracle, one process, knows; and the job
 * goes on from its checkpoint. */
#include "temp.h"
#include "parallel/train_processes.h"

#include <sys/socket.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

/* ---- deaths */

/* Calls of the library's one function that sends frames are counted while this is armed; the
 * die_at-th kills the process, before anything is sent or after half of it. */
static struct {
    _Atomic bool armed;
    _Atomic long calls;
    long die_at; /* from 0; -1 = never */
    bool half;
    uint64_t *when; /* it was, ns */
} frames = {.die_at = -1};

#ifdef __linux__
static void frames_die(int socket, const struct msghdr *message, int flags) {
    struct iovec some[64];
    struct msghdr half = *message;
    size_t bytes = 0, count = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        bytes += message->msg_iov[i].iov_len;
    bytes /= 2;
    for (; bytes && count < 64; count++) {
        some[count] = message->msg_iov[count];
        if (some[count].iov_len > bytes)
            some[count].iov_len = bytes;
        bytes -= some[count].iov_len;
    }
    half.msg_iov = some;
    half.msg_iovlen = count;
    if (frames.half && count)
        syscall(SYS_sendmsg, socket, &half, flags);
    *frames.when = job_now_ns();
    for (;;)
        kill(getpid(), SIGKILL);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    if (atomic_load(&frames.armed) && atomic_fetch_add(&frames.calls, 1) == frames.die_at)
        frames_die(socket, message, flags);
    return (ssize_t)syscall(SYS_sendmsg, socket, message, flags);
}
#endif

/* A rank's numbers; WHEN the error came, or its own death. */
enum { DEATH_IN_STEP, DEATH_CALLS, DEATH_CREATE_CALLS, DEATH_US, DEATH_WHEN_NS };
enum { DEATH_RANKS = 3, DEATH_STEP = 3, DEATH_STEPS = 6 }; /* it dies in its DEATH_STEP-th step */

/* The rank that dies, and the place. */
typedef struct death {
    int conv;       /* train_model_make's kind */
    int shares;     /* dt_zero_stage: what is sharded */
    bool group;     /* each rank has a shard group of its own */
    bool evaluates; /* before that step, where it dies as well */
    bool grid;      /* two pipelines: rank 0 has one, 1 and 2 a stage each of the other */
    int victim;
    long call;           /* that it dies at; -1: the parent kills it, after `delay` */
    bool half, creating; /* creating: at a frame of dt_trainer_create */
    long delay_us;
    const char *folder; /* of checkpoints; NULL = none */
} death;

static dt_trainer_desc death_desc(train_model *m, dt_comm *comm) {
    dt_trainer_desc d = train_desc(m);
    d.comm = comm;
    d.devices = "cpu";
    d.parallel.batch_slices = 8;
    d.parallel.bucket_bytes = 1024; /* 3 buckets */
    return d;
}

static dt_result death_open(train_model *m, dt_comm *comm, const death *of, dt_trainer **trainer) {
    if (!train_model_make(m, &one_thread, of->conv))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = death_desc(m, comm);
    d.parallel.zero_stage = of->shares;
    d.parallel.shard_degree = of->group ? 2 : 0;
    d.devices = of->group || (of->grid && dt_comm_rank(comm) == 0) ? "cpu:2" : d.devices;
    d.parallel.pipeline = of->grid ? 2 : 0;
    d.checkpoint.folder = of->folder;
    d.checkpoint.every_steps = of->folder ? 2 : 0;
    return dt_trainer_create(m->graph, &d, trainer);
}

static void death_arm(rank *r, const death *d) {
    if (r->index != d->victim || d->call < 0)
        return;
    frames.die_at = d->call;
    frames.half = d->half;
    frames.when = &r->numbers[DEATH_WHEN_NS];
    atomic_store(&frames.armed, true);
}

/* Nobody else has some of the state that a rank has. */
static bool death_has_all(const death *d) {
    return !d->shares || d->group;
}

/* With ZeRO the weights: no rank has all of the rest. */
static step_record death_record(const death *d, dt_trainer *trainer,
                                const dt_train_report *report) {
    step_record s = record_of(trainer, report);
    if (!death_has_all(d) && dt_store_hash(dt_trainer_store(trainer), &s.hash))
        s.hash = 0;
    return s;
}

/* With the parts of others a state is gone; weights are there. */
static void death_save(rank *r, train_model *m, dt_trainer *trainer) {
    char path[64];
    snprintf(path, sizeof path, "build/death_%ld", (long)getpid());
    EXPECT(r, dt_trainer_save(trainer, path) == DT_ERROR_REVOKED);
    EXPECT(r, strstr(dt_ctx_error(m->ctx), "dt_store_save saves the weights") != NULL);
    EXPECT(r, !dt_store_save(dt_trainer_store(trainer), path));
    remove(path);
}

/* With the parts of others weights are gone too. */
static void death_parts(rank *r, train_model *m, dt_trainer *trainer) {
    char path[64];
    snprintf(path, sizeof path, "build/death_%ld", (long)getpid());
    EXPECT(r, !dt_trainer_store(trainer));
    EXPECT(r, strstr(dt_ctx_error(m->ctx), "continue from a checkpoint") != NULL);
    EXPECT(r, dt_trainer_save(trainer, path) == DT_ERROR_REVOKED);
    EXPECT(r, strstr(dt_ctx_error(m->ctx), "continue from a checkpoint") != NULL);
    EXPECT(r, strstr(dt_ctx_error(m->ctx), "shards of the parameters") != NULL);
    EXPECT(r, strstr(dt_ctx_error(m->ctx), "parallel.zero_stage") != NULL);
}

/* Its own group has all. */
static void death_save_all(rank *r, train_model *m, dt_trainer *trainer) {
    char path[64];
    snprintf(path, sizeof path, "build/death_%ld", (long)getpid());
    EXPECT_TEXT(r, !dt_trainer_save(trainer, path), "%s", dt_ctx_error(m->ctx));
    remove(path);
}

/* The state, and the text about it, after a step that failed. */
static void death_survive(rank *r, train_model *m, dt_trainer *trainer, dt_result result,
                          const dt_train_report *report) {
    const death *d = r->job->arg;
    char step[32];
    r->result = result;
    snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m->ctx));
    r->records[0] = death_record(d, trainer, report);
    snprintf(step, sizeof step, "step %llu", (unsigned long long)report->step);
    EXPECT_TEXT(r, result == DT_ERROR_PEER_LOST, "result %d: %s", result, r->text);
    EXPECT_TEXT(r, strstr(r->text, step) != NULL, "no \"%s\" in \"%s\"", step, r->text);
    EXPECT_TEXT(r, strstr(dt_comm_error(r->comm), "lost") != NULL, "the comm's error is \"%s\"",
                dt_comm_error(r->comm));
    /* that is all: it is reported again, and the state stays */
    result = dt_trainer_step(trainer, NULL);
    EXPECT_TEXT(r, result == DT_ERROR_REVOKED && strstr(dt_ctx_error(m->ctx), step), "then %d: %s",
                result, dt_ctx_error(m->ctx));
    dt_train_report again = *report;
    const step_record now = death_record(d, trainer, &again);
    EXPECT(r, now.hash == r->records[0].hash);
    if (d->group)
        death_save_all(r, m, trainer);
    else if (d->shares == DT_SHARD_OPTIMIZER)
        death_save(r, m, trainer);
    else if (d->shares > DT_SHARD_OPTIMIZER)
        death_parts(r, m, trainer);
}

static void death_rank(rank *r) {
    const death *d = r->job->arg;
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report report = {0};
    if (d->creating)
        death_arm(r, d);
    dt_result result = death_open(&m, r->comm, d, &trainer);
    atomic_store(&frames.armed, false);
    r->numbers[DEATH_CREATE_CALLS] = (uint64_t)atomic_exchange(&frames.calls, 0);
    if (result) { /* before the last rank was through */
        EXPECT_TEXT(r, d->creating && !trainer && result == DT_ERROR_PEER_LOST, "%d: %s", result,
                    dt_ctx_error(m.ctx));
        r->result = result;
    }
    for (int i = 1; i <= DEATH_STEPS && !result; i++) {
        r->numbers[DEATH_IN_STEP] = (uint64_t)i;
        if (i == DEATH_STEP && !d->creating)
            death_arm(r, d);
        const uint64_t start = job_now_ns();
        atomic_store(&r->stage, i);
        const dt_trainer_desc desc = death_desc(&m, NULL);
        if (d->evaluates && i == DEATH_STEP)
            result = dt_trainer_evaluate(trainer, &desc.data, 30, NULL);
        if (!result)
            result = dt_trainer_step(trainer, &report);
        if (i == DEATH_STEP) {
            r->numbers[DEATH_CALLS] = (uint64_t)atomic_load(&frames.calls);
            r->numbers[DEATH_US] = (job_now_ns() - start) / 1000;
        }
    }
    if (!result)
        r->records[0] = death_record(d, trainer, &report); /* the death came too late for it */
    if (result && trainer) {
        r->numbers[DEATH_WHEN_NS] = job_now_ns();
        death_survive(r, &m, trainer, result, &report);
    }
    dt_ctx_destroy(m.ctx);
}

/* Hashes by model and step, of all and only of weights; [0]: not used. */
static uint64_t death_oracle[5][DEATH_STEPS + 1], death_weights[5][DEATH_STEPS + 1];

static bool death_oracle_make(void) {
    dt_result result = DT_OK;
    for (int conv = 0; conv < 5 && !death_oracle[conv][DEATH_STEPS] && !result; conv++) {
        train_model m;
        dt_trainer *trainer = NULL;
        result = death_open(&m, NULL, &(death){.conv = conv}, &trainer);
        for (int i = 1; i <= DEATH_STEPS && !result; i++) {
            result = dt_trainer_step(trainer, NULL);
            if (!result)
                result = dt_store_state_hash(dt_trainer_store(trainer), &death_oracle[conv][i]);
            if (!result)
                result = dt_store_hash(dt_trainer_store(trainer), &death_weights[conv][i]);
        }
        dt_ctx_destroy(m.ctx);
    }
    return CHECK_TEXT(!result && death_oracle[1][DEATH_STEPS], "the oracle");
}

/* Two ranks differ by one step at most, the dead one included; and a step is whole. */
static bool death_compare(const job *j, const death *d) {
    const uint64_t last = j->at[d->victim].numbers[DEATH_IN_STEP];
    const uint64_t *want = death_has_all(d) ? death_oracle[d->conv] : death_weights[d->conv];
    uint64_t least = last - 1, most = last - 1;
    bool fine = true;
    for (int i = 0; i < DEATH_RANKS; i++) {
        const rank *r = &j->at[i];
        const uint64_t step = r->records[0].step;
        if (i == d->victim)
            continue;
        least = step < least ? step : least;
        most = step > most ? step : most;
        fine &= CHECK_TEXT(
            step && step <= DEATH_STEPS &&
                r->records[0].hash ==
                    (r->result && ((d->grid && i > 0) || (d->shares > 1 && !d->group))
                         ? 0
                         : want[step]),
            "rank %d died in step %d (call %ld): rank %d has hash %016llx in step %d: "
            "not the oracle's",
            d->victim, (int)last, d->call, i, (unsigned long long)r->records[0].hash, (int)step);
    }
    return fine & CHECK_TEXT(most <= last && most - least <= 1,
                             "rank %d died in step %d (call %ld): the others are at steps %d to %d",
                             d->victim, (int)last, d->call, (int)least, (int)most);
}

typedef struct death_counts {
    int deaths, apart; /* apart: the survivors are not at one step */
    int ahead[3];      /* survivors by their step: the one before the dead one's, its, and more */
    int results[DT_ERROR_LATE + 1];
    double slowest; /* seconds from the death to an error */
} death_counts;

/* After death_compare has passed. */
static void death_count(const job *j, const death *d, death_counts *n) {
    const uint64_t died = j->at[d->victim].numbers[DEATH_WHEN_NS];
    uint64_t steps[DEATH_RANKS], count = 0;
    n->deaths++;
    for (int i = 0; i < DEATH_RANKS; i++) {
        const rank *r = &j->at[i];
        if (i == d->victim)
            continue;
        steps[count++] = r->records[0].step;
        n->ahead[r->records[0].step + 2 - j->at[d->victim].numbers[DEATH_IN_STEP]]++;
        n->results[r->result]++;
        if (r->numbers[DEATH_WHEN_NS] > died)
            n->slowest = fmax(n->slowest, 1e-9 * (double)(r->numbers[DEATH_WHEN_NS] - died));
    }
    n->apart += steps[0] != steps[1];
}

/* One job with one death. False: the victim lived to the end. */
static bool death_run(const death *d, death_counts *n) {
    job *j = job_new(DEATH_RANKS, d);
    if (!j)
        return false;
    j->seconds = 20;
    j->tcp = d->call >= 0;
    j->at[d->victim].doomed = true;
    j->devices[1] = d->conv ? "cpu:2" : "cpu";
    job_start(j, death_rank);
    if (d->call < 0 && CHECK_TEXT(job_await(j, d->victim, DEATH_STEP), "no step %d", DEATH_STEP)) {
        const uint64_t start = job_now_ns();
        while (job_now_ns() - start < (uint64_t)d->delay_us * 1000)
            ;
        job_signal(j, d->victim, SIGKILL);
        j->at[d->victim].numbers[DEATH_WHEN_NS] = job_now_ns();
    }
    bool fine = job_end(j), dead = WIFSIGNALED(j->at[d->victim].status);
    if (fine && dead && d->creating)
        n->deaths++;
    else if (fine && dead && death_compare(j, d))
        death_count(j, d, n);
    job_free(j);
    return dead;
}

static void death_tell(const char *what, const death_counts *n) {
    printf("  %d deaths %s; survivors a step behind the dead rank %d, at its step %d, ahead %d; "
           "not at one step %d times; peer lost %d, cancelled %d, revoked %d; the slowest error "
           "after %.3f s\n",
           n->deaths, what, n->ahead[0], n->ahead[1], n->ahead[2], n->apart,
           n->results[DT_ERROR_PEER_LOST], n->results[DT_ERROR_CANCELLED],
           n->results[DT_ERROR_REVOKED], n->slowest);
}

/* Without a death: the frames of a step, and how long it takes. */
static void death_none_of(const death *of, long *calls, long *us) {
    death never = *of;
    never.call = 1000000;
    job *j = job_new(DEATH_RANKS, &never);
    *calls = *us = 0;
    if (j)
        j->tcp = true;
    if (j && job_run(j, death_rank)) {
        *calls = (long)j->at[0].numbers[DEATH_CALLS];
        *us = (long)j->at[0].numbers[DEATH_US];
    }
    job_free(j);
}

/* A quick run takes some of all frames, ranks and halves that a death may meet. It takes one in 13,
 * or in 35 where a sanitizer makes a process slow to start. So no rank and no half is left out
 * (both numbers are next to a multiple of 6), and each sweep takes others. */
enum { DEATH_ONE_IN = 13, DEATH_ONE_IN_SANITIZED = 35, DEATH_KILLS = 60 };

static bool death_takes(long i) {
    return test_takes(i, DEATH_ONE_IN, DEATH_ONE_IN_SANITIZED);
}

#ifdef __linux__

/* Before each frame, and in the middle of it; and of some frames more: into the next step. A rank
 * of a grid may have fewer frames than these, and live. */
static void death_sweep(const death *of, death_counts *n) {
    static long sweep;
    long calls, us, some = 0;
    death_none_of(of, &calls, &us);
    CHECK_TEXT(calls > 5, "%ld frames in a step", calls);
    sweep++;
    for (long i = 0; i < DEATH_RANKS * 2 * (calls + 5) && test_now.failures < 5; i++) {
        death d = *of;
        d.victim = (int)(i % DEATH_RANKS);
        d.call = i / DEATH_RANKS / 2;
        d.half = i / DEATH_RANKS % 2;
        if (!death_takes(i + sweep))
            continue;
        some++;
        CHECK_TEXT(death_run(&d, n) || of->grid, "rank %d did not die at call %ld", d.victim,
                   d.call);
    }
    CHECK_TEXT(some > 0, "none of %ld frames", calls);
}

TEST(a_rank_that_dies_while_a_trainer_is_made_is_an_error_on_all_others) {
    death_counts n = {0};
    const death never = {.call = 1000000, .creating = true};
    job *j = job_new(DEATH_RANKS, &never);
    if (j)
        j->tcp = true;
    const long calls = j && job_run(j, death_rank) ? (long)j->at[0].numbers[DEATH_CREATE_CALLS] : 0;
    job_free(j);
    CHECK_TEXT(calls > 20, "%ld frames", calls);
    long some = 0;
    for (long i = 0; i < DEATH_RANKS * calls && test_now.failures < 5; i++) {
        if (!death_takes(i))
            continue;
        some++;
        death_run(&(death){.creating = true,
                           .victim = (int)(i % DEATH_RANKS),
                           .call = i / DEATH_RANKS,
                           .half = i % 2},
                  &n);
    }
    CHECK_TEXT(n.deaths > some / 2, "%d deaths, %ld frames", n.deaths, calls);
    printf("  %d deaths while a trainer was made, of %ld frames\n", n.deaths, calls);
}

TEST(a_rank_that_dies_at_any_frame_of_a_step_leaves_whole_steps) {
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    death_sweep(&(death){.conv = 0}, &n);
    death_sweep(&(death){.conv = 1}, &n);
    death_tell("at a frame", &n);
}

/* In the middle of the forward part, and of the backward one. */
TEST(a_rank_that_dies_at_any_frame_of_a_step_with_sync_points_leaves_whole_steps) {
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    death_sweep(&(death){.conv = TRAIN_SYNC}, &n);
    death_tell("at a frame, with sync points", &n);
}

/* A rank that has all stages of a replica has whole weights; a rank that has one stage has no
 * weights to show. */
TEST(a_rank_of_pipelines_that_dies_at_any_frame_of_a_step_leaves_whole_steps) {
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    death_sweep(&(death){.conv = 0, .grid = true}, &n);
    death_sweep(&(death){.conv = 1, .grid = true}, &n);
    death_tell("at a frame, of pipelines", &n);
    CHECK_TEXT(n.deaths > 1, "%d deaths", n.deaths);
}

/* Also while new parameters come from their owners. */
TEST(a_rank_that_dies_at_any_frame_of_a_zero_1_step_leaves_whole_weights) {
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    death_sweep(&(death){.conv = 1, .shares = DT_SHARD_OPTIMIZER}, &n);
    death_tell("at a frame, with ZeRO-1", &n);
}

/* Then nobody has all of a step; others learn it, and say what to do. */
TEST(a_rank_that_dies_at_any_frame_of_a_zero_2_or_3_step_ends_the_job) {
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    death_sweep(&(death){.conv = 1, .shares = DT_SHARD_GRADIENTS}, &n);
    death_sweep(&(death){.conv = 1, .shares = DT_SHARD_PARAMETERS}, &n);
    death_tell("at a frame, with ZeRO-2 or 3", &n);
}

/* Or of an evaluation, whose ranks gather parameters of each other. */
TEST(a_rank_that_dies_at_any_frame_of_an_evaluation_with_zero_3_ends_the_job) {
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    death_sweep(&(death){.conv = 1, .shares = DT_SHARD_PARAMETERS, .evaluates = true}, &n);
    death_tell("at a frame of an evaluation and a step, with ZeRO-3", &n);
}

/* Where each rank has a shard group nothing is lost with another. */
TEST(a_rank_that_dies_at_any_frame_loses_no_state_of_other_shard_groups) {
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    death_sweep(&(death){.conv = 1, .shares = DT_SHARD_OPTIMIZER, .group = true}, &n);
    death_sweep(&(death){.conv = 1, .shares = DT_SHARD_PARAMETERS, .group = true}, &n);
    death_tell("at a frame, with shard groups", &n);
}
#endif

TEST(a_rank_that_is_killed_at_any_time_leaves_whole_steps) {
    death_counts n = {0};
    long calls, us;
    REQUIRE(death_oracle_make());
    death_none_of(&(death){.conv = 1}, &calls, &us);
    int some = 0;
    for (int i = 0; i < DEATH_KILLS && test_now.failures < 5; i++) {
        if (!test_takes(i, 4, 8))
            continue;
        death_run(&(death){.conv = true,
                           .victim = some++ % DEATH_RANKS,
                           .call = -1,
                           .delay_us = us * i * 6 / 5 / DEATH_KILLS},
                  &n);
    }
    CHECK_TEXT(n.deaths > some * 2 / 3, "%d deaths of %d", n.deaths, some);
    death_tell("by kill", &n);
}

/* ---- and then */

static void death_go_on(rank *r) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report report = {0};
    bool found = false;
    dt_result result = death_open(&m, r->comm, r->job->arg, &trainer);
    if (!result)
        result = dt_trainer_resume(trainer, &found);
    EXPECT_TEXT(r, !result && found, "%d: %s", result, dt_ctx_error(m.ctx));
    while (!result && found && report.step < DEATH_STEPS)
        result = dt_trainer_step(trainer, &report);
    EXPECT_TEXT(r, !result, "%s", dt_ctx_error(m.ctx));
    if (!result)
        r->records[0] = death_record(r->job->arg, trainer, &report);
    dt_ctx_destroy(m.ctx);
}

TEST(after_a_death_fewer_or_more_ranks_resume_from_the_checkpoint) {
    const char *parent = getenv("TMPDIR");
    death_counts n = {0};
    REQUIRE(death_oracle_make());
    for (int count = 1; count <= 5; count += 2) {
        char folder[300];
        snprintf(folder, sizeof folder, "%.200s/dtrain-ranks-XXXXXX", parent ? parent : "/tmp");
        REQUIRE(mkdtemp(folder));
        const death d = {.conv = true,
                         .shares = count == 3   ? DT_SHARD_OPTIMIZER
                                   : count == 5 ? DT_SHARD_PARAMETERS
                                                : DT_SHARD_NONE,
                         .victim = count / 2 % DEATH_RANKS,
                         .call = 7,
                         .folder = folder};
        CHECK(death_run(&d, &n));
        job *j = job_new(count, &d);
        bool fine = job_run(j, death_go_on);
        for (int i = 0; i < count && fine; i++)
            CHECK_TEXT(j->at[i].records[0].hash ==
                           (d.shares ? death_weights : death_oracle)[1][DEATH_STEPS],
                       "%d ranks, rank %d: another state", count, i);
        job_free(j);
        temp_remove_folder(folder);
    }
}
