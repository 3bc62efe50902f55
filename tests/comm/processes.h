/* Ranks as processes. Each is forked, has its own dt_comm over TCP on this host, and reports its
 * result through shared memory. A watchdog ends what hangs, and that is a failure. Uses mate and
 * EXPECT of test_comm.c: a rank notes its first failure, and goes on. */
#ifndef DTRAIN_TESTS_PROCESSES_H
#define DTRAIN_TESTS_PROCESSES_H

#include "comm/can.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define FLEET_MAX 132
#define FLEET_KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

typedef struct fleet fleet;

typedef struct proc {
    mate m;
    thread_team thread_team; /* m.all: for functions of test_comm.c that look there */
    fleet *all;
    int index;
    pid_t pid;
    bool ended, dead; /* dead: it is to be killed, so its status does not count */
    int status;
    dt_result result; /* of proc_note */
    char text[512];
    uint64_t at;         /* when proc_note was called, ns */
    uint64_t numbers[8]; /* the test's */
    char log[4096];      /* what the library logged, if the desc has proc_log */
} proc;

struct fleet {
    int count; /* processes */
    int seconds;
    void (*run)(proc *p);
    void (*describe)(proc *p, dt_comm_desc *desc); /* NULL: the fleet's desc, rank = index */
    const void *arg;
    dt_comm_desc desc;
    _Atomic int stage[8];
    _Atomic uint64_t when; /* of what the test did to them, ns */
    _Atomic int port;      /* the test's */
    char folder[64];       /* the test's */
    proc at[FLEET_MAX];
};

static bool fleet_long(void) {
    return getenv("DTRAIN_TEST_LONG") != NULL;
}

/* Below the ports that the system gives to connections, so that none of them takes it. */
static int fleet_free_port(int family) {
    static int next;
    for (int i = 0; i < 1000; i++) {
        next = next ? next + 1 : 20000 + (int)(getpid() % 900) * 13;
        next = next >= 32000 ? 20000 : next;
        dti_address a = {.bytes = sizeof(struct sockaddr_in)};
        a.sock.ss_family = (sa_family_t)family;
        if (family == AF_INET6) {
            ((struct sockaddr_in6 *)(void *)&a.sock)->sin6_addr = in6addr_loopback;
            a.bytes = sizeof(struct sockaddr_in6);
        } else
            ((struct sockaddr_in *)(void *)&a.sock)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        dti_address_set_port(&a, next);
        int s = dti_listen_at(&a);
        if (s >= 0) {
            close(s);
            return next;
        }
    }
    return 0;
}

static fleet *fleet_new(int count) {
    fleet *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f == MAP_FAILED)
        return NULL;
    f->count = count;
    f->seconds = 240; /* a machine may do much else; what hangs does so for good */
    f->desc.world_size = count;
    f->desc.join_timeout_ms = 30000;
    snprintf(f->desc.key, sizeof f->desc.key, "%s", FLEET_KEY);
    snprintf(f->desc.job, sizeof f->desc.job, "test %d", (int)getpid());
    snprintf(f->desc.rendezvous, sizeof f->desc.rendezvous, "tcp://127.0.0.1:%d",
             fleet_free_port(AF_INET));
    return f;
}

static void fleet_free(fleet *f) {
    munmap(f, sizeof *f);
}

/* ---- in a rank */

static void proc_log(void *user, dt_log_level level, const char *message) {
    proc *p = user;
    size_t used = strlen(p->log);
    (void)level;
    snprintf(p->log + used, sizeof p->log - used, "%s\n", message);
}

static void proc_note(proc *p, dt_result result) {
    p->at = dti_now_ns();
    p->result = result;
    snprintf(p->text, sizeof p->text, "%s", dt_comm_error(p->m.comm));
}

static dt_comm_desc proc_desc(proc *p) {
    dt_comm_desc desc = p->all->desc;
    desc.rank = p->index;
    if (p->all->describe)
        p->all->describe(p, &desc);
    return desc;
}

/* Joins; the result is noted. */
static dt_result proc_try_desc(proc *p, const dt_comm_desc *desc) {
    p->m.comm = NULL;
    dt_result result = dt_comm_create(desc, &p->m.comm);
    p->m.rank = desc->rank;
    p->m.size = desc->world_size;
    proc_note(p, result);
    return result;
}

static dt_result proc_try(proc *p) {
    dt_comm_desc desc = proc_desc(p);
    return proc_try_desc(p, &desc);
}

static bool proc_join(proc *p) {
    return EXPECT(&p->m, proc_try(p) == DT_OK);
}

static void proc_leave(proc *p) {
    dt_comm_destroy(p->m.comm);
    p->m.comm = NULL;
}

/* Until `least` have come to a stage. */
static void proc_await(proc *p, int stage, int least) {
    while (atomic_load(&p->all->stage[stage]) < least)
        usleep(500);
}

static void proc_reach(proc *p, int stage) {
    atomic_fetch_add(&p->all->stage[stage], 1);
}

static void proc_main(proc *p) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Whatever the shell does: what the library must not raise ends us. */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    p->m = (mate){.all = &p->thread_team, .rank = p->index, .size = p->all->desc.world_size};
    p->m.random = (uint64_t)(p->index + 1) * 7919;
    p->all->run(p);
    proc_leave(p);
    exit(p->m.failed_line ? 1 : 0); /* not _exit: sanitizers look for leaks and report here */
}

/* ---- in the test */

static void fleet_start(fleet *f, void (*run)(proc *p)) {
    f->run = run;
    fflush(stdout);
    for (int i = 0; i < f->count; i++) {
        proc *p = &f->at[i];
        p->all = f;
        p->index = i;
        p->thread_team.arg = (void *)(uintptr_t)f->arg;
        pid_t pid = fork();
        if (pid == 0)
            proc_main(p);
        p->pid = pid; /* written only by the parent: the memory is shared */
        if (pid < 0) {
            test_check(false, __FILE__, __LINE__, "fork: %s", strerror(errno));
            p->ended = p->dead = true;
        }
    }
}

/* Never to a group of processes, whatever went wrong. */
static void fleet_signal(fleet *f, int index, int signal) {
    if (f->at[index].pid > 0 && !f->at[index].ended)
        kill(f->at[index].pid, signal);
}

static bool fleet_reap(fleet *f) {
    bool all = true;
    for (int i = 0; i < f->count; i++) {
        proc *p = &f->at[i];
        if (!p->ended && waitpid(p->pid, &p->status, WNOHANG) == p->pid)
            p->ended = true;
        all = all && (p->ended || p->dead);
    }
    return all;
}

/* Waits for all, kills late ranks, and reports each rank's first failure. */
static void fleet_end(fleet *f) {
    uint64_t start = dti_now_ns();
    int late = 0;
    while (!fleet_reap(f) && dti_now_ns() - start < (uint64_t)f->seconds * 1000000000u)
        usleep(500);
    for (int i = 0; i < f->count; i++) {
        proc *p = &f->at[i];
        if (p->ended)
            continue;
        late += !p->dead;
        fleet_signal(f, i, SIGKILL);
        waitpid(p->pid, &p->status, 0);
        if (!p->dead)
            test_check(false, __FILE__, __LINE__, "process %d hung for %d s; it noted \"%s\"", i,
                       f->seconds, p->text);
    }
    for (int i = 0; i < f->count && !late; i++) {
        const proc *p = &f->at[i];
        test_check(!p->m.failed_line, __FILE__, p->m.failed_line, "process %d of %d: %s", i,
                   f->count, p->m.failed);
        test_check(p->dead || p->m.failed_line || p->status == 0, __FILE__, __LINE__,
                   "process %d of %d ended with status %x", i, f->count, (unsigned)p->status);
    }
}

/* Until `least` have come to a stage, or the time is over. */
static bool fleet_await(fleet *f, int stage, int least) {
    uint64_t start = dti_now_ns();
    while (atomic_load(&f->stage[stage]) < least) {
        fleet_reap(f);
        for (int i = 0; i < f->count; i++)
            if (f->at[i].ended && !f->at[i].dead && f->at[i].m.failed_line)
                return false;
        if (dti_now_ns() - start > (uint64_t)f->seconds * 1000000000u)
            return test_check(false, __FILE__, __LINE__, "stage %d was not reached", stage);
        usleep(500);
    }
    return true;
}

static void fleet_run(fleet *f, void (*run)(proc *p)) {
    fleet_start(f, run);
    fleet_end(f);
}

#endif
