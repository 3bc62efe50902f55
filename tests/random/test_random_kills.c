/* Random jobs of training (random_jobs.h) on ranks that are processes over TCP, of which one is
 * killed. It dies at an action of a step, or at any time in it. The others get an error that names
 * it, at once, and keep nothing; and a new job on another mesh resumes from the newest checkpoint.
 * It has the bits of a job without a fault.
 *
 *     DTRAIN_TEST_LONG=1 build/dtest random_kills     200 of them
 *     DTRAIN_KILL=17 build/dtest random_kills         only this one, and says what happens */
#include "random/random_jobs_run.h"
#include "temp.h"

#include <dirent.h>

enum {
    KILLS = 200,
    KILLS_FEW = 12,
    KILL_STEPS = 8,
    KILL_LATE = 2,
    KILL_SECONDS = 5,
    KILL_TOLD = 1000 /* a stage: the error is there */
};

typedef struct kill_case {
    jobs_job job, then; /* then: what goes on */
    jobs_way way;
    int number, victim, step; /* it dies in this one, from 1 */
    uint32_t at;              /* of the actions of a step, a share of 1000 */
    bool timed;               /* at a time instead */
    bool goes_on;             /* the new job */
    char folder[64];
} kill_case;

enum { KILL_WEIGHTS, KILL_STATE, KILL_WHEN_NS, KILL_AT, KILL_STEP_NS }; /* of rank.numbers */

/* ---- what is drawn */

/* Steps of a round, at whose ends there are checkpoints; 0: there are no such ones. */
static int kills_round(const jobs_job *j) {
    return j->kind == JOB_LOCAL ? j->v[F_ROUND] * jobs_clamp(j->v[F_GOSSIP], 1, 3) : 0;
}

/* All but what ends a job by itself, or what a checkpoint does not have. */
static void kills_draw_job(jobs_job *j, uint64_t *state) {
    do
        *j = jobs_draw((int)jobs_random(state, 1000000));
    while (j->kind == JOB_ONE || j->kind == JOB_ODD ||
           jobs_clamp(j->v[F_REPLICAS], 1, 7) * j->v[F_STAGES] * j->v[F_TENSOR] < 2);
    int *v = j->v;
    if (j->kind >= JOB_STAGES && j->kind <= JOB_GRID) {
        v[F_REPLICAS] = 2 * v[F_STAGES] * v[F_TENSOR] <= JOB_DEVICES ? 2 : v[F_REPLICAS];
        v[F_BATCH] = jobs_clamp(v[F_BATCH], v[F_REPLICAS], v[F_ROWS]);
        v[F_SLICES] = v[F_SLICES] ? jobs_clamp(v[F_SLICES], v[F_REPLICAS], v[F_BATCH]) : 0;
        v[F_ZERO] = v[F_TENSOR_SLICES] > v[F_TENSOR] ? 0 : (int)jobs_random(state, 4);
    }
    v[F_RANKS] = jobs_clamp(v[F_RANKS], 2, v[F_REPLICAS] * v[F_STAGES] * v[F_TENSOR]);
    v[F_STEPS] = KILL_STEPS + 3 * kills_round(j);
    v[F_TROUBLE] = v[F_RATE] = v[F_EVALUATE] = v[F_EMPTY] = 0;
}

/* Another mesh, that has the same bits: docs/distributed/settings.md#combinations. A round's
 * replicas have
 * values of their own, and ranks that encode, or meet each other, are of its bits. */
static void kills_draw_then(kill_case *c, uint64_t *state) {
    c->then = c->job;
    c->way = WAY_STRAIGHT;
    int *v = c->then.v;
    const int slices = v[F_SLICES] ? v[F_SLICES] : v[F_REPLICAS];
    const struct job_model *m = &job_models[c->job.model];
    if (c->job.kind == JOB_LOCAL) {
        v[F_RANKS] = v[F_GOSSIP] || v[F_COMPRESS] ? v[F_RANKS] : v[F_RANKS] - 1;
        return;
    }
    if (jobs_random(state, 3) == 0) {
        c->way = WAY_ALONE;
        return;
    }
    v[F_GIVEN] = 1;
    v[F_MEMORY] = 0; /* another mesh may take more */
    v[F_SLICES] = slices;
    v[F_REPLICAS] = 1 + (int)jobs_random(state, (uint32_t)jobs_clamp(slices, 1, 3));
    if (v[F_TENSOR] == 1 && v[F_TENSOR_SLICES] <= 1) {
        const bool cuts = m->kinds & BIT(STAGES) && m->kind != HERE_MARKS;
        v[F_STAGES] = cuts                     ? 1 + (int)jobs_random(state, 2)
                      : m->kinds & BIT(STAGES) ? v[F_STAGES]
                                               : 1;
        v[F_SCHEDULE] = v[F_STAGES] > 1 ? (int)jobs_random(state, 2) : 0;
        v[F_CHUNKS] = 0;
        v[F_OFFLOAD] = 0;
    }
    if (v[F_TENSOR_SLICES] <= v[F_TENSOR])
        v[F_ZERO] = (int)jobs_random(state, 4);
    while (v[F_REPLICAS] * v[F_STAGES] * v[F_TENSOR] > JOB_DEVICES)
        v[F_REPLICAS]--;
    v[F_ZERO] = v[F_REPLICAS] > 1 ? v[F_ZERO] : 0;
    const int devices = v[F_REPLICAS] * v[F_STAGES] * v[F_TENSOR];
    v[F_RANKS] = 1 + (int)jobs_random(state, (uint32_t)jobs_clamp(devices, 1, 3));
}

/* Whether a thread writes the checkpoints. */
static bool kills_by_thread(const kill_case *c) {
    return c->at % 2;
}

static void kills_draw(int number, kill_case *c) {
    uint64_t state = (uint64_t)number * 7919 + 3;
    *c = (kill_case){.number = number};
    kills_draw_job(&c->job, &state);
    kills_draw_then(c, &state);
    c->victim = (int)jobs_random(&state, (uint32_t)c->job.v[F_RANKS]);
    c->step = 3 + kills_round(&c->job) + (int)jobs_random(&state, KILL_STEPS - KILL_LATE - 3);
    c->timed = jobs_random(&state, 4) == 0;
    c->at = jobs_random(&state, 1000);
    /* The next checkpoint waits for the first one: then that is on the disk. */
    const int least = kills_by_thread(c) ? 5 + kills_round(&c->job) : 0;
    c->step = c->step > least ? c->step : least;
}

static void kills_words(const kill_case *c, char *to, size_t room) {
    const size_t used =
        (size_t)snprintf(to, room, "kill %d: rank %d, step %d, %u of 1000 of its %s; ", c->number,
                         c->victim, c->step, c->at, c->timed ? "time" : "actions");
    jobs_words(&c->job, to + used, room - used);
    strcat(to, "\n    then ");
    if (c->way == WAY_ALONE)
        strcat(to, "one device");
    else
        jobs_words(&c->then, to + strlen(to), room - strlen(to));
}

/* ---- a rank */

static int kills_entries(const char *folder) {
    int count = 0;
    DIR *all = opendir(folder);
    while (all && readdir(all))
        count++;
    if (all)
        closedir(all);
    return count;
}

/* In its step it is killed at an action, among the number of actions that the step before had.
 * Where there are fewer, or it is killed from outside, it ends between two steps. */
static void kills_arm(rank *r, const kill_case *c, int step, long before) {
    atomic_store(&r->stage, step);
    if (c->goes_on || r->index != c->victim || step < c->step)
        return;
    if (!c->timed && step == c->step) {
        r->numbers[KILL_WHEN_NS] = job_now_ns();
        harness_killer = harness_actions + before * (long)c->at / 1000;
    }
    while (step > c->step + KILL_LATE && c->timed)
        pause();
    if (step > c->step + KILL_LATE)
        raise(SIGKILL);
}

/* Until all steps are made, or one is not. */
static dt_result kills_steps(rank *r, const kill_case *c, dt_trainer *t) {
    dt_train_report report = {0};
    dt_trainer_info info;
    dt_result result = DT_OK;
    dt_trainer_get_info(t, &info);
    long before = 0;
    for (int i = (int)info.step + 1; i <= c->job.v[F_STEPS] && !result; i++) {
        const long from = harness_actions;
        const uint64_t start = job_now_ns();
        kills_arm(r, c, i, before);
        result = dt_trainer_step(t, &report);
        before = harness_actions - from;
        r->numbers[KILL_STEP_NS] = job_now_ns() - start;
    }
    return result;
}

static void kills_values(rank *r, const kill_case *c, dt_trainer *t) {
    dt_store *store = dt_trainer_store(t);
    const int *v = c->then.v;
    EXPECT(r, store && !dt_store_hash(store, &r->numbers[KILL_WEIGHTS]));
    if (store && !(c->way != WAY_ALONE && v[F_ZERO] && v[F_RANKS] > 1))
        EXPECT(r, !dt_store_state_hash(store, &r->numbers[KILL_STATE]));
}

/* No rank leaves before all have their error. A slow one would detect that connection's end first,
 * and name the rank that left. */
static void kills_stay(rank *r, const kill_case *c) {
    const uint64_t start = job_now_ns();
    atomic_store(&r->stage, KILL_TOLD);
    for (int i = 0; i < r->job->count; i++) {
        const rank *other = &r->job->at[i];
        while (i != c->victim && atomic_load(&other->stage) < KILL_TOLD &&
               job_now_ns() - start < KILL_SECONDS * UINT64_C(1000000000))
            job_sleep_us(200);
    }
}

/* The error names who died; and is reported again. */
static void kills_survive(rank *r, const kill_case *c, jobs_model *m, dt_trainer *t,
                          dt_result result) {
    char name[24];
    r->numbers[KILL_AT] = job_now_ns();
    snprintf(name, sizeof name, "rank %d ", c->victim);
    snprintf(r->text, sizeof r->text, "%d: %s", (int)result, dt_ctx_error(m->ctx));
    EXPECT_TEXT(r, result == DT_ERROR_PEER_LOST && strstr(r->text, name), "%s", r->text);
    EXPECT_TEXT(r, dt_trainer_step(t, NULL) == DT_ERROR_REVOKED, "then: %s", dt_ctx_error(m->ctx));
    kills_stay(r, c);
}

static void kills_train(rank *r, const kill_case *c, jobs_model *m) {
    dt_trainer *t = NULL;
    float scale[20];
    for (int i = 0; i < 20; i++)
        scale[i] = 0.5f + 0.125f * (float)i;
    dt_result result = dt_trainer_create(m->graph, &m->desc, &t);
    if (!result && m->shared.id)
        result = dt_trainer_set_input(t, m->shared, scale, sizeof scale);
    bool found = !c->goes_on;
    if (!result && c->goes_on)
        result = dt_trainer_resume(t, &found);
    if (!EXPECT_TEXT(r, !result && found, "%d, found %d: %s", (int)result, found,
                     dt_ctx_error(m->ctx)))
        return;
    result = kills_steps(r, c, t);
    if (!c->goes_on)
        kills_survive(r, c, m, t, result);
    else if (EXPECT_TEXT(r, !result, "%s", dt_ctx_error(m->ctx)))
        kills_values(r, c, t);
}

/* Nothing of it stays: no thread, no file. */
static void kills_rank(rank *r) {
    const kill_case *c = r->job->arg;
    jobs_rank own;
    jobs_model *m = calloc(1, sizeof *m);
    jobs_rank_set(&own, c->goes_on ? &c->then : &c->job, c->goes_on ? c->way : WAY_STRAIGHT,
                  r->index, r->comm);
    if (EXPECT(r, m && jobs_make(m, own.job))) {
        jobs_trouble(m, own.job);
        jobs_describe(m, &own);
        m->desc.checkpoint = (dt_checkpoint_desc){
            .folder = c->folder, .every_steps = 2, .background = kills_by_thread(c)};
        kills_train(r, c, m);
    }
    if (m)
        dt_ctx_destroy(m->ctx);
    free(m);
    dt_comm_destroy(r->comm);
    r->comm = NULL;
#ifdef __linux__
#ifdef __SANITIZE_THREAD__
    const int threads = 4; /* ".", "..", this thread and the sanitizer's */
#else
    const int threads = 3;
#endif
    EXPECT_TEXT(r, kills_entries("/proc/self/task") == threads, "%d threads are left",
                kills_entries("/proc/self/task") - threads);
    EXPECT_TEXT(r, kills_entries("/proc/self/fd") <= (int)r->values[0], "files are left open: %d",
                kills_entries("/proc/self/fd"));
#endif
}

/* ---- a case */

static job *kills_job(const kill_case *c, int ranks) {
    job *j = job_new(ranks, c);
    for (int i = 0; j && i < ranks; i++) /* those that are open now, whatever the shell left */
        j->at[i].values[0] = (float)kills_entries("/proc/self/fd");
    if (j)
        j->tcp = true;
    return j;
}

/* Of time, the share of a step as long as its last. */
static void kills_at_a_time(job *j, const kill_case *c) {
    rank *r = &j->at[c->victim];
    while (atomic_load(&r->stage) < c->step && !job_reap(j))
        job_sleep_us(200);
    job_sleep_us((long)(r->numbers[KILL_STEP_NS] / 1000 * c->at / 1000));
    r->numbers[KILL_WHEN_NS] = job_now_ns();
    job_signal(j, c->victim, SIGKILL);
}

static bool kills_die(const kill_case *c, double *slowest) {
    job *j = kills_job(c, c->job.v[F_RANKS]);
    if (!CHECK_TEXT(j != NULL, "no memory that processes share"))
        return false;
    j->at[c->victim].doomed = true;
    job_start(j, kills_rank);
    if (c->timed)
        kills_at_a_time(j, c);
    bool fine = job_end(j);
    fine &= CHECK_TEXT(WIFSIGNALED(j->at[c->victim].status), "it did not die");
    for (int i = 0; i < j->count && fine; i++) {
        const double seconds = 1e-9 * ((double)j->at[i].numbers[KILL_AT] -
                                       (double)j->at[c->victim].numbers[KILL_WHEN_NS]);
        if (i == c->victim)
            continue;
        *slowest = fmax(*slowest, seconds);
        fine &= CHECK_TEXT(seconds < KILL_SECONDS, "rank %d was told after %.1f s", i, seconds);
    }
    job_free(j);
    return fine;
}

static bool kills_go_on(kill_case *c, const jobs_end *want) {
    job *j = kills_job(c, c->way == WAY_ALONE ? 1 : c->then.v[F_RANKS]);
    if (!CHECK_TEXT(j != NULL, "no memory that processes share"))
        return false;
    const bool fine = job_run(j, kills_rank);
    const uint64_t weights = j->at[0].numbers[KILL_WEIGHTS], state = j->at[0].numbers[KILL_STATE];
    job_free(j);
    /* what an encoding has lost is in no checkpoint */
    return fine &&
           (c->job.v[F_COMPRESS] ||
            CHECK_TEXT(weights == want->weights && (!state || !want->state || state == want->state),
                       "another end: weights %016llx, not %016llx; state %016llx, %016llx",
                       (unsigned long long)weights, (unsigned long long)want->weights,
                       (unsigned long long)state, (unsigned long long)want->state));
}

/* Whether there was such a job: some are refused, whatever happens then. */
static bool kills_case(int number, int kinds[JOB_KINDS], double *slowest) {
    static jobs_rank all[JOB_RANKS];
    static char words[6000];
    jobs_end want;
    kill_case c;
    const int failures = test_now.failures;
    kills_draw(number, &c);
    kills_words(&c, words, sizeof words);
    if (getenv("DTRAIN_KILL"))
        printf("  %s\n", words);
    jobs_run(&c.job, WAY_STRAIGHT, all);
    jobs_sum(all, c.job.v[F_RANKS], &want);
    remove(all[0].half);
    remove(all[0].full);
    if (want.made || want.steps < c.job.v[F_STEPS])
        return false;
    kinds[c.job.kind]++;
    snprintf(c.folder, sizeof c.folder, "/tmp/dtrain-kill-XXXXXX");
    if (!CHECK_TEXT(mkdtemp(c.folder) != NULL, "no folder"))
        return true;
    if (kills_die(&c, slowest)) {
        c.goes_on = true;
        kills_go_on(&c, &want);
    }
    temp_remove_folder(c.folder);
    if (test_now.failures > failures)
        printf("  in %s\n", words);
    return true;
}

TEST(random_kills_of_random_jobs_are_reported_at_once_and_the_job_resumes_on_another_mesh) {
    int kinds[JOB_KINDS] = {0}, cases = test_is_long()        ? KILLS
                                        : test_takes(1, 2, 3) ? 4
                                                              : KILLS_FEW;
    double slowest = 0;
    const char *one = getenv("DTRAIN_KILL");
    int number = one ? atoi(one) : 0;
    for (int made = 0; made < (one ? 1 : cases) && test_now.failures < 8; number++)
        made += kills_case(number, kinds, &slowest) || one;
    printf("  %d jobs drawn:", number);
    for (int k = 0; k < JOB_KINDS; k++)
        if (kinds[k])
            printf(" %s %d,", job_kinds[k], kinds[k]);
    printf(" the slowest error after %.3f s\n", slowest);
}
