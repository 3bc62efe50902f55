/* Ranks as processes, for tests that use only the public API. Each is forked, and joins the others
 * over TCP on this host. It reports its results through memory that all share, so that nothing is
 * lost when it is killed. A rank notes its first failure; the parent ends ranks that hang, and
 * reports it. */
#ifndef DTRAIN_TESTS_TRAIN_PROCESSES_H
#define DTRAIN_TESTS_TRAIN_PROCESSES_H

#include "train/train_model.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

enum { RANKS_MAX = 8, RANK_RECORDS = 256 };

/* What a step left; the same on all ranks, bit for bit. */
typedef struct step_record {
    uint64_t hash;
    uint64_t step, epoch, samples;
    double loss, norm, right;
    bool epoch_ended;
} step_record;

typedef struct job job;

typedef struct rank {
    job *job;
    int index;
    pid_t pid;
    bool ended, doomed; /* doomed: it is killed, and its status does not count */
    int status;
    dt_comm *comm;
    char failed[1024]; /* the first thing that was not as expected */
    dt_result result;  /* the test's */
    char text[1200];
    _Atomic int stage; /* how far it is */
    uint64_t numbers[8];
    step_record records[RANK_RECORDS];
    float values[4096];
} rank;

struct job {
    int count;   /* of ranks */
    int seconds; /* after that number it hangs */
    void (*run)(rank *r);
    const void *arg;
    const char *devices[RANKS_MAX]; /* NULL: "cpu" */
    char folder[32], rendezvous[64];
    bool tcp; /* no shared memory: every frame is a sendmsg */
    rank at[RANKS_MAX];
};

static uint64_t job_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void job_sleep_us(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static job *job_new(int count, const void *arg) {
    job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j == MAP_FAILED)
        return NULL;
    j->count = count;
    j->seconds = 60;
    j->arg = arg;
    /* a file: no port that another test program may take */
    snprintf(j->folder, sizeof j->folder, "/tmp/dtrain-job-XXXXXX");
    if (!mkdtemp(j->folder)) {
        munmap(j, sizeof *j);
        return NULL;
    }
    snprintf(j->rendezvous, sizeof j->rendezvous, "file://%s/meet", j->folder);
    return j;
}

static void job_free(job *j) {
    if (!j)
        return;
    remove(j->rendezvous + strlen("file://"));
    rmdir(j->folder);
    munmap(j, sizeof *j);
}

/* ---- in a rank */

__attribute__((__format__(__printf__, 4, 5))) static bool rank_expect(rank *r, bool ok, int line,
                                                                      const char *format, ...) {
    if (ok || r->failed[0])
        return ok;
    va_list list;
    int used = snprintf(r->failed, sizeof r->failed, "line %d: ", line);
    va_start(list, format);
    vsnprintf(r->failed + used, sizeof r->failed - (size_t)used, format, list);
    va_end(list);
    return false;
}

#define EXPECT_TEXT(r, condition, ...) rank_expect(r, (condition), __LINE__, __VA_ARGS__)
#define EXPECT(r, condition) rank_expect(r, (condition), __LINE__, "%s", #condition)

__attribute__((__unused__)) static const char *rank_devices(const rank *r) {
    const char *devices = r->job->devices[r->index];
    return devices ? devices : "cpu";
}

static bool rank_join(rank *r) {
    /* silence: sanitizers and full machines make long pauses; a death is seen at once anyway */
    dt_comm_desc d = {.rank = r->index,
                      .world_size = r->job->count,
                      .join_timeout_ms = 30000,
                      .silence_ms = 15000};
    d.shared_memory = r->job->tcp ? DT_COMM_SHARED_OFF : DT_COMM_SHARED_DEFAULT;
    d.no_link = r->job->tcp; /* a rank that has measured may die while others still join */
    memset(d.key, 'a', 64);
    snprintf(d.job, sizeof d.job, "ranks of a test");
    snprintf(d.rendezvous, sizeof d.rendezvous, "%s", r->job->rendezvous);
    dt_result result = dt_comm_create(&d, &r->comm);
    return EXPECT_TEXT(r, !result, "join: %s", dt_comm_error(r->comm));
}

/* Not exit: it would remove the parent's files. */
static void rank_main(rank *r) {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    signal(SIGPIPE, SIG_DFL);
    if (rank_join(r))
        r->job->run(r);
    dt_comm_destroy(r->comm);
#ifdef __SANITIZE_ADDRESS__
    EXPECT(r, !__lsan_do_recoverable_leak_check());
#endif
    _exit(r->failed[0] ? 1 : 0);
}

/* ---- in the test */

static void job_start(job *j, void (*run)(rank *r)) {
    j->run = run;
    fflush(stdout);
    for (int i = 0; i < j->count; i++) {
        rank *r = &j->at[i];
        r->job = j;
        r->index = i;
        pid_t pid = fork();
        if (pid == 0)
            rank_main(r);
        r->pid = pid;
        r->ended = pid < 0;
        test_check(pid > 0, __FILE__, __LINE__, "no process for rank %d", i);
    }
}

/* Never to a group of processes, whatever went wrong. */
static void job_signal(job *j, int index, int signal) {
    if (j->at[index].pid > 0 && !j->at[index].ended)
        kill(j->at[index].pid, signal);
}

static bool job_reap(job *j) {
    bool all = true;
    for (int i = 0; i < j->count; i++) {
        rank *r = &j->at[i];
        if (!r->ended && waitpid(r->pid, &r->status, WNOHANG) == r->pid)
            r->ended = true;
        all = all && r->ended;
    }
    return all;
}

/* Waits for all, kills late ranks, and reports each rank's first failure. */
static bool job_end(job *j) {
    const uint64_t start = job_now_ns();
    bool fine = true;
    while (!job_reap(j) && job_now_ns() - start < (uint64_t)j->seconds * 1000000000u)
        job_sleep_us(300);
    for (int i = 0; i < j->count; i++) {
        rank *r = &j->at[i];
        const bool hung = !r->ended;
        if (hung) {
            job_signal(j, i, SIGKILL);
            waitpid(r->pid, &r->status, 0);
            r->ended = true;
        }
        fine = test_check(!hung, __FILE__, __LINE__, "rank %d of %d hung for %d s; \"%s\"", i,
                          j->count, j->seconds, r->text) &&
               test_check(!r->failed[0], __FILE__, __LINE__, "rank %d of %d: %s", i, j->count,
                          r->failed) &&
               test_check(r->doomed || hung || r->failed[0] || r->status == 0, __FILE__, __LINE__,
                          "rank %d of %d ended with status %x", i, j->count, (unsigned)r->status) &&
               fine;
    }
    return fine;
}

/* Until a rank has come to a stage, or can no more. */
__attribute__((__unused__)) static bool job_await(job *j, int index, int stage) {
    const uint64_t start = job_now_ns();
    while (atomic_load(&j->at[index].stage) < stage) {
        job_reap(j);
        if (j->at[index].ended || job_now_ns() - start > (uint64_t)j->seconds * 1000000000u)
            break;
    }
    return atomic_load(&j->at[index].stage) >= stage;
}

static bool job_run(job *j, void (*run)(rank *r)) {
    job_start(j, run);
    return job_end(j);
}

/* ---- what is compared */

static const dt_ctx_desc one_thread = {.no_vulkan = true, .threads = 1};

__attribute__((__unused__)) static step_record record_of(dt_trainer *trainer,
                                                         const dt_train_report *r) {
    step_record s = {.step = r->step,
                     .epoch = r->epoch,
                     .samples = r->samples,
                     .loss = r->loss,
                     .norm = r->gradient_norm,
                     .right = r->metric_sum[0],
                     .epoch_ended = r->epoch_ended};
    if (dt_store_state_hash(dt_trainer_store(trainer), &s.hash))
        s.hash = 0;
    return s;
}

/* By value, except for the bits of NaN. */
__attribute__((__unused__)) static bool record_equal(const step_record *a, const step_record *b) {
    return a->hash == b->hash && a->hash && a->step == b->step && a->epoch == b->epoch &&
           a->samples == b->samples && !memcmp(&a->loss, &b->loss, sizeof a->loss) &&
           !memcmp(&a->norm, &b->norm, sizeof a->norm) && a->right == b->right &&
           a->epoch_ended == b->epoch_ended;
}

#endif
