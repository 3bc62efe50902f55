/* Collectives between real processes of this host, over shared memory and over TCP: every kind, the
 * same bits, leaving, pauses, deaths, mismatches, waiting, memory. Attacks on them are in
 * test_hostile.c, and tests of shared memory only in test_shared.c. */

#include "comm/processes.h"

#include <sched.h>

/* ---- every kind */

static bool algorithm_exists(mate *m, const dt_comm_op *op) {
    dti_collective c = {.op = *op, .rank = (uint32_t)m->rank, .size = (uint32_t)m->size};
    dt_comm_algorithm chosen = DT_COMM_ALGORITHM_DEFAULT;
    c.chunk_bytes = 4096;
    return dti_algorithm_choose(m->comm->base, &c, &chosen) != NULL;
}

/* Chunks have 4096 bytes, so 5000 elements are several of them; how many were run. */
static int every_algorithm(mate *m, char *memory, kind_case *c) {
    int ran = 0;
    bool places = c->op.kind >= DT_COMM_GATHER && c->op.kind != DT_COMM_ALL_TO_ALL;
    for (int a = 0; a <= DT_COMM_ALGORITHM_RING && !m->failed_line; a++) {
        c->op.algorithm = (dt_comm_algorithm)a;
        if (!algorithm_exists(m, &c->op))
            continue;
        for (c->place = 0; c->place < 2 + places; c->place++, ran++)
            kind_run(m, c, memory);
    }
    return ran;
}

static int every_kind(mate *m, uint64_t largest) {
    static const uint64_t counts[] = {0, 1, 37, 5000};
    char *memory = malloc((size_t)largest * 8 * 8 * 2 + 4096);
    int ran = 0;
    for (int kind = DT_COMM_BROADCAST; kind < DT_COMM_BARRIER; kind++)
        for (int dtype = DT_F32; dtype <= DT_U8; dtype++)
            for (int reduction = DT_COMM_SUM; reduction <= DT_COMM_PRODUCT; reduction++)
                for (size_t n = 0; n < DTI_COUNT(counts) && counts[n] <= largest; n++) {
                    bool reduces = dti_kind_reduces((dt_comm_kind)kind);
                    if (reduction && (!reduces || counts[n] != 37))
                        continue;
                    kind_case c = {.op = {.kind = (dt_comm_kind)kind,
                                          .count = counts[n],
                                          .dtype = (dt_dtype)dtype,
                                          .reduction = (dt_comm_reduction)reduction,
                                          .root = (int)n % m->size}};
                    ran += every_algorithm(m, memory, &c);
                }
    free(memory);
    return ran;
}

static void everything(proc *p) {
    mate *m = &p->m;
    leaf_case leaf = {.total = 13}, alone = leaf;
    if (!proc_join(p))
        return;
    int ran = every_kind(m, 5000), most = 0;
    EXPECT(m, ran > 1000);
    EXPECT(m, !dt_comm_all_reduce(m->comm, &ran, &most, 1, DT_I32, DT_COMM_MAX) && ran == most);
    if (m->size > 1 && !m->failed_line) {
        wrappers(m);
        groups(m);
        pairs(m);
        many_pending(m);
        m->all->arg = &leaf;
        leaves(m);
    }
    /* Only rank 0 keeps the result of the leaves: the same tree in one process. */
    thread_team one = {.arg = &alone};
    mate single = {.all = &one, .size = 1};
    EXPECT(m, !dt_comm_create(NULL, &single.comm));
    leaves(&single);
    dt_comm_destroy(single.comm);
    EXPECT(m, m->rank || !memcmp(leaf.result, alone.result, sizeof leaf.result));
}

TEST(processes_run_every_kind_type_size_and_algorithm) {
    /* by shared memory, and by sockets; only those of the long form, and under a sanitizer, last */
    static const struct {
        int size, sockets;
    } all[] = {{3, 0}, {4, 1}, {2, 0}, {8, 0}, {3, 1}, {4, 0}, {7, 0}, {2, 1}, {7, 1}, {8, 1}};
    const size_t count = test_is_long() ? DTI_COUNT(all) : test_takes(1, 1, 2) ? 4 : 2;
    for (size_t i = 0; i < count; i++) {
        fleet *f = fleet_new(all[i].size);
        f->desc.chunk_bytes = 4096;
        f->desc.shared_memory = all[i].sockets ? DT_COMM_SHARED_OFF : DT_COMM_SHARED_REQUIRED;
        fleet_run(f, everything);
        fleet_free(f);
    }
}

TEST(processes_run_every_kind_over_several_sockets) {
    for (int sockets = 2; sockets <= 4; sockets += 2) {
        fleet *f = fleet_new(3);
        f->desc.chunk_bytes = 4096;
        f->desc.sockets = sockets;
        f->desc.window = sockets == 4 ? 3 : 0;
        f->desc.shared_memory = sockets == 4 ? DT_COMM_SHARED_OFF : DT_COMM_SHARED_DEFAULT;
        fleet_run(f, everything);
        fleet_free(f);
    }
}

TEST(processes_without_a_key_or_checksums_run_every_kind) {
    fleet *f = fleet_new(2);
    f->desc.chunk_bytes = 4096;
    f->desc.key[0] = 0;
    f->desc.insecure = true;
    f->desc.integrity = DT_COMM_UNCHECKED;
    fleet_run(f, everything);
    fleet_free(f);
}

/* ---- the same bits */

/* 1e8, 1, -1e8 and the like, in any order, and NaN: it matters who is summed with whom first. */
static float ordered_at(int rank, size_t i) {
    uint32_t hash = (uint32_t)((size_t)rank * 977 + i * 31) * 2654435761u;
    return i % 50 == 49 && rank == 1 ? NAN : sensitive[(hash >> 16) % DTI_COUNT(sensitive)];
}

static void same_bits(proc *p) {
    enum { N = 3000 };
    mate *m = &p->m;
    float x[N];
    uint32_t first[N], y[N];
    int differ = 0;
    if (!proc_join(p))
        return;
    order(m);
    for (int again = 0; again < 40; again++) {
        for (size_t i = 0; i < N; i++)
            x[i] = ordered_at(m->rank, i);
        if (mate_random(m) % 2)
            usleep(mate_random(m) % 3000);
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, y, N, DT_F32, DT_COMM_SUM));
        if (again == 0)
            memcpy(first, y, sizeof first);
        EXPECT(m, !memcmp(first, y, sizeof first)); /* from run to run */
    }
    EXPECT(m, !dt_comm_broadcast(m->comm, y, N, DT_I32, m->size - 1));
    EXPECT(m, !memcmp(first, y, sizeof first)); /* at all ranks */
    /* These values are ones with which it matters who comes first. */
    for (size_t i = 0; i < N; i++) {
        float sum = 0;
        for (int r = m->size; r-- > 0;)
            sum += ordered_at(r, i);
        differ += !isnan(sum) && memcmp(&sum, &first[i], sizeof sum) != 0;
    }
    EXPECT(m, m->size < 3 || differ > N / 100);
}

TEST(processes_sum_in_one_order_for_any_order_of_arrival) {
    for (int size = 2; size <= 8; size *= 2) {
        fleet *f = fleet_new(size);
        f->desc.chunk_bytes = 4096;
        f->desc.shared_memory = size == 4 ? DT_COMM_SHARED_OFF : DT_COMM_SHARED_DEFAULT;
        fleet_run(f, same_bits);
        fleet_free(f);
    }
}

/* ---- legal programs do not deadlock */

static void send_past_collective(proc *p) {
    mate *m = &p->m;
    enum { N = 16 << 20 };
    int32_t *big = malloc(N * sizeof *big), small[5000] = {0};
    dt_comm_work work = {0};
    for (int i = 0; i < N; i++)
        big[i] = m->rank ? 0 : i * 7;
    dt_comm_op send = {.kind = DT_COMM_SEND, .in = big, .count = N, .dtype = DT_I32, .root = 1};
    if (proc_join(p)) {
        if (m->rank == 0)
            EXPECT(m, !dt_comm_begin(m->comm, &send, &work));
        small[0] = 1;
        EXPECT(m, !dt_comm_all_reduce(m->comm, small, small, 5000, DT_I32, DT_COMM_SUM));
        EXPECT(m, small[0] == 2);
        if (m->rank == 0)
            EXPECT(m, !dt_comm_wait(m->comm, work, -1));
        else
            EXPECT(m, !dt_comm_recv(m->comm, big, N, DT_I32, 0));
        for (int i = 0; i < N; i += 1001)
            EXPECT(m, big[i] == i * 7);
    }
    free(big);
}

static void opposite_groups(proc *p) {
    if (proc_join(p))
        opposite(&p->m);
}

TEST(processes_with_a_window_of_one_chunk_do_not_block_each_other) {
    fleet *f = fleet_new(2);
    f->desc.window = 1;
    fleet_run(f, send_past_collective);
    fleet_free(f);
    for (int size = 2; size <= 4; size += 2) {
        f = fleet_new(size);
        f->desc.window = 1;
        f->desc.chunk_bytes = 4096;
        fleet_run(f, opposite_groups);
        fleet_free(f);
    }
}

/* ---- leaving */

static void folder_make(char *path) {
    strcpy(path, "/tmp/dtrain-test-XXXXXX");
    CHECK(mkdtemp(path) != NULL);
}

static void folder_remove(const char *path) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    CHECK(system(command) == 0);
}

/* Attempt after attempt: joins, sums, leaves at once. */
static void leave_after_last(proc *p) {
    mate *m = &p->m;
    int times = *(const int *)p->all->arg;
    dt_comm_desc desc = proc_desc(p);
    int32_t *x = malloc(40000 * sizeof *x);
    for (int i = 0; i < times && !m->failed_line; i++) {
        int count = i % 3 == 0 ? 1 : i % 3 == 1 ? 1500 : 40000;
        for (int k = 0; k < count; k++)
            x[k] = m->rank + k;
        /* Elsewhere each time: rank 0 of the last one may still be there. */
        snprintf(desc.rendezvous, sizeof desc.rendezvous, "file://%s/%d", p->all->folder, i % 64);
        desc.attempt = (uint64_t)i;
        desc.no_link = i % 4 != 0; /* measuring takes longer than all the rest */
        if (!EXPECT(m, proc_try_desc(p, &desc) == DT_OK))
            break;
        if (mate_random(m) % 3 == 0)
            usleep(mate_random(m) % 2000);
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, x, (uint64_t)count, DT_I32, DT_COMM_SUM));
        if (mate_random(m) % 3 == 0)
            usleep(mate_random(m) % 2000);
        uint64_t start = dti_now_ns();
        proc_leave(p);
        p->numbers[0] = DTI_MAX(p->numbers[0], dti_now_ns() - start);
        for (int k = 0; k < count; k++)
            EXPECT(m, x[k] == m->size * (m->size - 1) / 2 + m->size * k);
        p->numbers[1]++;
    }
    free(x);
}

/* Leaving gives up after 2 s; the rest is for a machine that is busy. */
#define LEAVE_MOST_NS 10000000000u

static void leave_many_times(int size, int times) {
    fleet *f = fleet_new(size);
    f->arg = &times;
    f->seconds = 60 + times / 2;
    folder_make(f->folder);
    fleet_run(f, leave_after_last);
    folder_remove(f->folder);
    for (int r = 0; r < size; r++)
        CHECK(f->at[r].numbers[1] == (uint64_t)times && f->at[r].numbers[0] < LEAVE_MOST_NS);
    fleet_free(f);
}

TEST(processes_that_leave_after_the_last_result_disturb_no_rank) {
    int times = fleet_long() ? 10000 : 80;
    leave_many_times(4, times);
    leave_many_times(8, times);
}

/* Rank 0 leaves at once. Rank 1 waits for rank 2, to which it has no connection. */
static void outliving_rank_0(proc *p) {
    mate *m = &p->m;
    int32_t x = 7;
    if (!proc_join(p))
        return;
    proc_reach(p, 0);
    proc_await(p, 0, 3);
    const uint64_t start = dti_now_ns();
    if (m->rank == 1)
        proc_note(p, dt_comm_recv(m->comm, &x, 1, DT_I32, 2));
    if (m->rank == 2) {
        usleep(300000);
        if (p->dead)
            raise(SIGKILL);
        EXPECT(m, !dt_comm_send(m->comm, &x, 1, DT_I32, 1));
    }
    proc_leave(p);
    p->numbers[0] = (dti_now_ns() - start) / 1000000;
}

TEST(processes_that_outlive_rank_0_learn_of_a_death_from_it) {
    for (int dies = 0; dies < 2; dies++) {
        fleet *f = fleet_new(3);
        f->desc.no_link = true; /* measuring connects all */
        f->at[2].dead = dies;
        fleet_run(f, outliving_rank_0);
        CHECK(f->at[1].result == (dies ? DT_ERROR_PEER_LOST : DT_OK));
        if (dies)
            CHECK_CONTAINS(f->at[1].text, "rank 2");
        for (int r = 0; r < 2; r++)
            test_check(f->at[r].numbers[0] >= 290 && f->at[r].numbers[0] < 2000, __FILE__, __LINE__,
                       "rank %d left after %d ms", r, (int)f->at[r].numbers[0]);
        fleet_free(f);
    }
}

/* ---- small sends without room */

enum { CROWD = 20, CROWD_COUNT = 1000 };

/* Nothing goes the other way, so their arrival is not known. */
static void crowding(proc *p) {
    mate *m = &p->m;
    int32_t x[CROWD_COUNT] = {0};
    if (!proc_join(p))
        return;
    EXPECT(m, !dt_comm_barrier(m->comm));
    const uint64_t start = dti_now_ns();
    for (int i = 0; i < CROWD && !m->rank; i++) {
        x[0] = i;
        EXPECT(m, !dt_comm_send(m->comm, x, CROWD_COUNT, DT_I32, 1));
    }
    for (int i = 0; i < CROWD && m->rank; i++) {
        EXPECT(m, !dt_comm_recv(m->comm, x, CROWD_COUNT, DT_I32, 0));
        EXPECT(m, x[0] == i);
    }
    p->numbers[0] = (dti_now_ns() - start) / 1000000;
    proc_leave(p);
}

/* A send that finds no room at its peer asks for it at once, not when `silence` / 10 has passed. */
TEST(processes_send_beyond_the_peers_buffers_without_a_request) {
    fleet *f = fleet_new(2);
    f->desc.silence_ms = 120000;
    f->desc.shared_memory = DT_COMM_SHARED_OFF;
    fleet_run(f, crowding);
    for (int r = 0; r < 2; r++)
        test_check(f->at[r].numbers[0] < 3000, __FILE__, __LINE__, "rank %d: %d ms", r,
                   (int)f->at[r].numbers[0]);
    fleet_free(f);
}

/* ---- pauses */

static void pausing(proc *p) {
    mate *m = &p->m;
    int32_t x = 1;
    if (!proc_join(p))
        return;
    EXPECT(m, !dt_comm_all_reduce(m->comm, &x, &x, 1, DT_I32, DT_COMM_SUM));
    if (m->rank == 0)
        usleep((useconds_t)p->all->at[0].numbers[7] * 1000);
    EXPECT(m, !dt_comm_all_reduce(m->comm, &x, &x, 1, DT_I32, DT_COMM_SUM));
    proc_reach(p, 0);
    uint64_t until = dti_now_ns() + p->all->at[0].numbers[6] * 1000000;
    for (bool more = true; more;) { /* rank 0 says when it is over */
        int32_t go = dti_now_ns() < until;
        EXPECT(m, !dt_comm_broadcast(m->comm, &go, 1, DT_I32, 0));
        more = go && !m->failed_line;
        usleep(1000);
    }
}

TEST(processes_may_pause_longer_than_the_silence_that_means_death) {
    fleet *f = fleet_new(3);
    uint64_t pause = fleet_long() ? 300000 : 3000, stop = fleet_long() ? 20000 : 3000;
    f->desc.silence_ms = fleet_long() ? 0 : 1000;
    f->seconds = 400;
    f->at[0].numbers[7] = pause;
    f->at[0].numbers[6] = stop + 1500;
    fleet_start(f, pausing);
    if (fleet_await(f, 0, 3)) {
        usleep(100000);
        for (int r = 0; r < 3; r++)
            fleet_signal(f, r, SIGSTOP);
        usleep((useconds_t)stop * 1000);
        for (int r = 0; r < 3; r++)
            fleet_signal(f, r, SIGCONT);
    }
    fleet_end(f);
    fleet_free(f);
}

/* ---- deaths */

/* Sums until that fails; the failure is noted. */
static void stream_until_error(proc *p, uint64_t count) {
    mate *m = &p->m;
    float *x = malloc(count * sizeof *x);
    for (uint64_t i = 0; i < count; i++)
        x[i] = 0;
    dt_result result = DT_OK;
    for (int round = 0; !result; round++) {
        for (uint64_t i = 0; i < count; i += 97)
            x[i] = (float)(m->rank + round % 5);
        result = dt_comm_all_reduce(m->comm, x, x, count, DT_F32, DT_COMM_SUM);
        float right = (float)(m->size * (m->size - 1) / 2 + m->size * (round % 5));
        for (uint64_t i = 0; i < count && !result; i += 97)
            EXPECT(m, x[i] == right);
        if (round == 3)
            proc_reach(p, 0);
    }
    proc_note(p, result);
    free(x);
}

/* The survivors make a group without the dead one, in the same process. */
static void go_on_without(proc *p, int dead) {
    mate *m = &p->m;
    dt_comm_desc desc = proc_desc(p);
    int32_t one = 1;
    proc_leave(p);
    desc.world_size--;
    desc.rank -= desc.rank > dead;
    desc.attempt++;
    snprintf(desc.rendezvous, sizeof desc.rendezvous, "tcp://127.0.0.1:%d",
             atomic_load(&p->all->port));
    dt_result result = p->result; /* the first error stays noted */
    uint64_t at = p->at;
    char text[sizeof p->text];
    memcpy(text, p->text, sizeof text);
    if (EXPECT(m, proc_try_desc(p, &desc) == DT_OK)) {
        EXPECT(m, !dt_comm_all_reduce(m->comm, &one, &one, 1, DT_I32, DT_COMM_SUM));
        EXPECT(m, one == desc.world_size);
    }
    p->result = result;
    p->at = at;
    memcpy(p->text, text, sizeof text);
}

static void sum_once(proc *p, uint64_t count) {
    float *x = calloc(count, sizeof *x);
    EXPECT(&p->m, !dt_comm_all_reduce(p->m.comm, x, x, count, DT_F32, DT_COMM_SUM));
    free(x);
}

typedef struct death {
    int victim, signal;
    bool child; /* a child of fork holds its descriptors */
    uint64_t count;
    dt_comm_shared_memory shared; /* DEFAULT: once with it, once without */
} death;

static void dying(proc *p) {
    const death *d = p->all->arg;
    if (!proc_join(p))
        return;
    if (d->child) /* data connections are made by the first operation */
        sum_once(p, d->count);
    pid_t child = d->child && p->index == d->victim ? fork() : 1;
    if (child == 0) {
        usleep(4000000);
        _exit(0);
    }
    stream_until_error(p, d->count);
    if (p->index != d->victim)
        go_on_without(p, d->victim);
}

static uint64_t death_once(const death *d, int size) {
    char who[32];
    uint64_t worst = 0;
    fleet *f = fleet_new(size);
    f->desc.silence_ms = 1000;
    f->desc.shared_memory = d->shared;
    f->arg = d;
    f->seconds = 20;
    atomic_store(&f->port, fleet_free_port(AF_INET));
    fleet_start(f, dying);
    if (fleet_await(f, 0, size)) {
        usleep(20000);
        f->at[d->victim].dead = true;
        atomic_store(&f->when, dti_now_ns());
        fleet_signal(f, d->victim, d->signal);
    }
    fleet_end(f);
    snprintf(who, sizeof who, "rank %d", d->victim);
    for (int r = 0; r < size; r++) {
        const proc *p = &f->at[r];
        if (r == d->victim)
            continue;
        /* REVOKED: it came between two operations. */
        CHECK(p->result == DT_ERROR_PEER_LOST || p->result == DT_ERROR_REVOKED);
        CHECK_CONTAINS(p->text, who);
        CHECK_CONTAINS(p->text, "is lost");
        worst = DTI_MAX(worst, p->at - f->when);
    }
    fleet_free(f);
    return worst;
}

static void death_of(const char *what, const death *once, int size, double limit) {
    for (int tcp = 0; tcp < 2; tcp++) {
        death d = *once;
        d.shared = tcp ? DT_COMM_SHARED_OFF : DT_COMM_SHARED_REQUIRED;
        if (once->shared && d.shared != once->shared)
            continue;
        double seconds = (double)death_once(&d, size) * 1e-9;
        test_check(seconds < limit, __FILE__, __LINE__, "%s (tcp %d) was noticed after %.3f s",
                   what, tcp, seconds);
        if (getenv("DTRAIN_TEST_TIMES"))
            printf("  %s (tcp %d): noticed by all after %.3f s\n", what, tcp, seconds);
    }
}

TEST(processes_detect_the_death_of_a_rank_and_continue_without_it) {
    death_of("SIGKILL of rank 2", &(death){2, SIGKILL, false, 200000, 0}, 4, 1);
    death_of("SIGKILL of rank 0", &(death){0, SIGKILL, false, 200000, 0}, 4, 1);
    death_of("SIGKILL of rank 1, short sums", &(death){1, SIGKILL, false, 10, 0}, 4, 1);
    death_of("SIGKILL of rank 1 of 2", &(death){1, SIGKILL, false, 5000, 0}, 2, 1);
}

TEST(processes_detect_a_rank_that_hangs) {
    death_of("SIGSTOP of rank 3", &(death){3, SIGSTOP, false, 200000, DT_COMM_SHARED_REQUIRED}, 4,
             3);
    death_of("SIGSTOP of rank 0", &(death){0, SIGSTOP, false, 200000, DT_COMM_SHARED_OFF}, 4, 3);
    death_of("SIGSTOP of rank 1, short sums",
             &(death){1, SIGSTOP, false, 10, DT_COMM_SHARED_REQUIRED}, 3, 3);
}

TEST(processes_detect_a_death_while_a_child_holds_the_descriptors) {
    death_of("SIGKILL of rank 2 with a child",
             &(death){2, SIGKILL, true, 200000, DT_COMM_SHARED_REQUIRED}, 4, 3);
    death_of("SIGKILL of rank 0 with a child",
             &(death){0, SIGKILL, true, 200000, DT_COMM_SHARED_OFF}, 4, 3);
}

/* ---- a dead link, between network namespaces */

static void dead_link(proc *p) {
    char path[128];
    snprintf(path, sizeof path, "/var/run/netns/%s%c", p->all->folder, p->index == 2 ? 'b' : 'a');
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (!EXPECT(&p->m, file >= 0 && setns(file, CLONE_NEWNET) == 0))
        return;
    close(file);
    if (proc_join(p))
        stream_until_error(p, 200000);
}

static int enter_namespace(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    return file >= 0 && setns(file, CLONE_NEWNET) == 0 ? 0 : errno;
}

TEST(processes_detect_a_dead_link) {
    char path[128];
    fleet *f = fleet_new(3);
    snprintf(f->folder, sizeof f->folder, "dt%d", (int)getpid());
    const char *name = f->folder;
    snprintf(path, sizeof path, "/var/run/netns/%sa", name);
    bool made =
        can_run("ip netns add %sa && ip netns add %sb", name, name) &&
        can_call("setns", enter_namespace, path) &&
        can_run("ip link add dta netns %sa type veth peer name dtb netns %sb", name, name) &&
        can_run("ip -n %sa addr add 10.99.0.1/24 dev dta && ip -n %sa link set dta up && "
                "ip -n %sa link set lo up",
                name, name, name) &&
        can_run("ip -n %sb addr add 10.99.0.2/24 dev dtb && ip -n %sb link set dtb up", name, name);
    if (made) {
        f->desc.silence_ms = 1000;
        f->seconds = 30;
        snprintf(f->desc.rendezvous, sizeof f->desc.rendezvous, "tcp://10.99.0.1:4711");
        fleet_start(f, dead_link);
        if (fleet_await(f, 0, 3)) {
            atomic_store(&f->when, dti_now_ns());
            CHECK(can_run("ip -n %sa link set dta down", name));
        }
        fleet_end(f);
        for (int r = 0; r < 3; r++) {
            double seconds = (double)(f->at[r].at - f->when) * 1e-9;
            CHECK(f->at[r].result == DT_ERROR_PEER_LOST);
            CHECK_CONTAINS(f->at[r].text, r == 2 ? "rank " : "rank 2");
            test_check(seconds < 3, __FILE__, __LINE__, "rank %d noticed after %.3f s", r, seconds);
            if (getenv("DTRAIN_TEST_TIMES"))
                printf("  dead link: rank %d noticed after %.3f s\n", r, seconds);
        }
    }
    CHECK(can_run("ip netns del %sa 2>/dev/null; ip netns del %sb 2>/dev/null; true", name, name));
    fleet_free(f);
    if (!made)
        SKIP(lacks);
}

/* ---- mismatches */

typedef struct mismatch {
    dt_comm_op one, other; /* the other is the last rank's */
} mismatch;

static void mismatching(proc *p) {
    const mismatch *w = p->all->arg;
    mate *m = &p->m;
    double *in = calloc(90000, sizeof *in), *out = calloc(90000, sizeof *out);
    if (proc_try(p) == DT_OK) { /* or the others were so fast that it ended before we were in */
        dt_comm_op op = m->rank == m->size - 1 ? w->other : w->one;
        op.in = in, op.out = out;
        if (m->rank == (int)p->all->at[0].numbers[7])
            usleep(30000);
        dt_result result = dt_comm_run(m->comm, &op);
        /* A root that only sends may be done before it hears of others: then the next operation
         * reports it. */
        proc_note(p, result ? result : dt_comm_barrier(m->comm));
    }
    free(in), free(out);
}

#define A DT_COMM_ALL_REDUCE
#define B DT_COMM_BROADCAST
TEST(processes_that_post_different_operations_get_an_error) {
    static const mismatch wrong[] = {
        {{.kind = A, .count = 3}, {.kind = DT_COMM_ALL_GATHER, .count = 3}},
        {{.kind = A, .count = 3}, {.kind = A, .count = 4}},
        {{.kind = A, .count = 20000}, {.kind = A, .count = 20001}},
        {{.kind = A, .count = 0}, {.kind = A, .count = 5}},
        {{.kind = A, .count = 20000}, {.kind = A, .count = 0}},
        {{.kind = DT_COMM_SEND, .count = 0, .root = 1}, {.kind = DT_COMM_RECV, .count = 9}},
        {{.kind = A, .count = 3}, {.kind = A, .count = 20000}},
        {{.kind = A, .count = 3}, {.kind = A, .count = 3, .dtype = DT_I32}},
        {{.kind = A, .count = 20000}, {.kind = A, .count = 10000, .dtype = DT_F64}},
        {{.kind = A, .count = 3}, {.kind = A, .count = 3, .reduction = DT_COMM_MAX}},
        {{.kind = DT_COMM_ALL_TO_ALL, .count = 3}, {.kind = A, .count = 3}},
        {{.kind = B, .count = 3}, {.kind = B, .count = 3, .root = 1}},
        {{.kind = DT_COMM_REDUCE, .count = 20000},
         {.kind = DT_COMM_REDUCE, .count = 20000, .root = 1}},
    };
    for (size_t i = 0; i < 2 * DTI_COUNT(wrong); i++)
        for (int late = 0; late < 3; late++) { /* 2: nobody, in a world of two */
            const mismatch *w = &wrong[i / 2];
            int size = i % 2 ? 4 : 2;
            if (!test_takes((long)i * 3 + late, 1, 5))
                continue;
            fleet *f = fleet_new(size);
            f->arg = w;
            f->at[0].numbers[7] = (uint64_t)late;
            f->seconds = 10;
            if (size == 2 || w->one.kind != DT_COMM_SEND) /* rank 3 would only be waited for */
                fleet_run(f, mismatching);
            for (int r = 0; r < size && f->at[0].text[0]; r++) {
                dt_result result = f->at[r].result;
                bool next = w->one.kind == B || w->one.kind == DT_COMM_SEND || size > 2;
                test_check(result == DT_ERROR_MISMATCH || (next && result == DT_ERROR_REVOKED),
                           __FILE__, __LINE__, "row %d, late %d, rank %d of %d: %d \"%s\"",
                           (int)i / 2, late, r, size, (int)f->at[r].result, f->at[r].text);
                CHECK_CONTAINS(f->at[r].text, size == 2 ? "rank 1" : "rank 3");
                CHECK_CONTAINS(f->at[r].text, size == 2 ? "rank 0" : "posted");
            }
            fleet_free(f);
        }
}
#undef A
#undef B

/* ---- waiting */

static bool is_finished(dt_comm *comm, dt_comm_work work) {
    dti_tcp *t = ((dti_tcp_group *)comm->state)->tcp;
    pthread_mutex_lock(&t->lock);
    const dti_flight *f = dti_tcp_flight(t, work.id);
    bool finished = f && f->finished;
    pthread_mutex_unlock(&t->lock);
    return finished;
}

/* The main thread computes, and asks the library nothing. */
static void progressing(proc *p) {
    enum { K = 5, N = 300000 };
    mate *m = &p->m;
    dt_comm_work work[K];
    float *x = malloc(K * N * sizeof *x);
    bool all = false;
    if (!proc_join(p))
        return;
    for (int i = 0; i < K * N; i++)
        x[i] = (float)(m->rank + i % 100);
    for (int k = 0; k < K; k++) {
        dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x + k * N, .out = x + k * N, .count = N};
        EXPECT(m, !dt_comm_begin(m->comm, &op, &work[k]));
        if (m->rank == k % m->size)
            usleep(5000);
    }
    for (uint64_t start = dti_now_ns(); !all && dti_now_ns() - start < 10000000000u;) {
        volatile double sum = 0;
        for (int i = 0; i < 100000; i++)
            sum = sum + i;
        all = true;
        for (int k = 0; k < K; k++)
            all = all && is_finished(m->comm, work[k]);
    }
    EXPECT(m, all);
    for (int k = K; k-- > 0;)
        EXPECT(m, !dt_comm_wait(m->comm, work[k], 0));
    for (int i = 0; i < K * N; i += 37)
        EXPECT(m, x[i] == (float)(m->size * (m->size - 1) / 2 + m->size * (i % 100)));
    free(x);
}

TEST(processes_progress_while_no_caller_waits) {
    fleet *f = fleet_new(3);
    fleet_run(f, progressing);
    fleet_free(f);
}

/* Rank 1 does not come; a call that waits for it gets that error, and its handle ends. */
static void coming_late(proc *p) {
    mate *m = &p->m;
    float x = 1;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = &x, .out = &x, .count = 1};
    dt_comm_work work = {0};
    bool finished = false;
    dt_result result = DT_OK;
    if (!proc_join(p))
        return;
    EXPECT(m, !dt_comm_barrier(m->comm));
    if (m->rank == 1) {
        proc_await(p, 0, 2);
        EXPECT(m, dt_comm_begin(m->comm, &op, &work) == DT_ERROR_REVOKED);
    } else {
        EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
        EXPECT(m, dt_comm_wait(m->comm, work, 20) == DT_ERROR_TIMEOUT && m->comm->pending == 1);
        while (m->rank == 2 && !finished && !result) {
            result = dt_comm_test(m->comm, work, &finished);
            usleep(1000);
        }
        if (m->rank == 0)
            result = dt_comm_wait(m->comm, work, -1);
        EXPECT(m, result == DT_ERROR_LATE && (finished || m->rank == 0));
        EXPECT(m, m->comm->pending == 0);
        EXPECT(m, dt_comm_wait(m->comm, work, 0) == DT_ERROR_INVALID);
        EXPECT(m, dt_comm_barrier(m->comm) == DT_ERROR_REVOKED);
        proc_reach(p, 0);
    }
    EXPECT_TEXT(m, "has not posted all-reduce number 1 of group 0 for");
    EXPECT_TEXT(m, "rank 1");
}

TEST(processes_that_are_late_end_the_group_where_a_limit_is_set) {
    fleet *f = fleet_new(3);
    f->desc.op_timeout_ms = 300;
    fleet_run(f, coming_late);
    fleet_free(f);
}

static void waiting(proc *p) {
    mate *m = &p->m;
    enum { N = 50000 };
    float *x = calloc(N, sizeof *x);
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = x, .count = N};
    dt_comm_work work = {0};
    bool finished = true;
    if (!proc_join(p))
        return;
    x[7] = 1;
    if (m->rank == 2)
        proc_await(p, 0, 2);
    EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
    if (m->rank != 2) {
        uint64_t start = dti_now_ns();
        EXPECT(m, dt_comm_wait(m->comm, work, 50) == DT_ERROR_TIMEOUT);
        EXPECT(m, dti_now_ns() - start >= 50000000 && dti_now_ns() - start < 1000000000);
        EXPECT_TEXT(m, "rank 2 has not posted it");
        EXPECT(m, dt_comm_wait(m->comm, work, 0) == DT_ERROR_TIMEOUT);
        EXPECT(m, !dt_comm_test(m->comm, work, &finished) && !finished);
        proc_reach(p, 0);
    }
    pid_t child = fork();
    if (child == 0) {
        bool right = dt_comm_wait(m->comm, work, -1) == DT_ERROR_FORKED &&
                     dt_comm_barrier(m->comm) == DT_ERROR_FORKED;
        dt_comm_destroy(m->comm);
        _exit(right ? 0 : 1);
    }
    int status = 1;
    EXPECT(m, waitpid(child, &status, 0) == child && status == 0);
    EXPECT(m, !dt_comm_wait(m->comm, work, -1) && x[7] == (float)m->size);
    EXPECT(m, dt_comm_wait(m->comm, work, -1) == DT_ERROR_INVALID);
    EXPECT(m, dt_comm_wait(m->comm, (dt_comm_work){0}, -1) == DT_ERROR_INVALID);
    EXPECT(m, dt_comm_cancel(m->comm, (dt_comm_work){0}) == DT_ERROR_INVALID);
    EXPECT(m, !dt_comm_barrier(m->comm));
    free(x);
}

TEST(processes_wait_for_the_documented_time) {
    fleet *f = fleet_new(3);
    fleet_run(f, waiting);
    fleet_free(f);
}

/* Nobody else has posted it, so it cannot have finished. All have posted theirs by then: an
 * operation that comes later gets the error that the group has ended. */
static void cancelling(proc *p) {
    mate *m = &p->m;
    float x[3000] = {0};
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = x, .count = 3000};
    dt_comm_work work;
    if (!proc_join(p))
        return;
    const bool cancels = m->rank == (int)p->all->at[0].numbers[7];
    if (!cancels) {
        op.kind = DT_COMM_RECV; /* of a rank that sends nothing */
        op.root = m->rank == 2 ? 1 : 2;
    }
    EXPECT(m, !dt_comm_barrier(m->comm));
    EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
    proc_reach(p, 0);
    proc_await(p, 0, 3);
    proc_note(p, cancels ? dt_comm_cancel(m->comm, work) : dt_comm_wait(m->comm, work, -1));
}

TEST(processes_cancel_for_all_ranks) {
    for (int who = 0; who < 3; who++) {
        fleet *f = fleet_new(3);
        char text[64];
        f->at[0].numbers[7] = (uint64_t)who;
        snprintf(text, sizeof text, "rank %d cancelled all-reduce", who);
        fleet_run(f, cancelling);
        for (int r = 0; r < 3; r++) {
            CHECK(f->at[r].result == DT_ERROR_CANCELLED);
            CHECK_CONTAINS(f->at[r].text, text);
        }
        fleet_free(f);
    }
}

/* ---- memory */

static void allocating(proc *p) {
    mate *m = &p->m;
    dt_comm_info before, after;
    float *x = calloc(100000, sizeof *x);
    if (!proc_join(p))
        return;
    for (int round = 0; round < 30; round++) {
        if (round == 3)
            dt_comm_get_info(m->comm, &before);
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, x, 100000, DT_F32, DT_COMM_SUM));
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, x, 10, DT_F32, DT_COMM_SUM));
        EXPECT(m, !dt_comm_broadcast(m->comm, x, 100000, DT_F32, 1));
        EXPECT(m, !dt_comm_barrier(m->comm));
    }
    dt_comm_get_info(m->comm, &after);
    EXPECT(m, after.host_alloc_calls == before.host_alloc_calls);
    EXPECT(m, after.host_bytes == before.host_bytes && after.operations == 120);
    free(x);
}

static void scratching(proc *p) {
    mate *m = &p->m;
    dt_comm_info info;
    float *x = calloc(1 << 20, sizeof *x);
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = x, .count = 1 << 20};
    op.algorithm = DT_COMM_ALGORITHM_DIRECT;
    dt_comm_info before;
    if (!proc_join(p))
        return;
    dt_comm_get_info(m->comm, &before);
    EXPECT(m, !dt_comm_run(m->comm, &op));
    dt_comm_get_info(m->comm, &info);
    /* Slots, and of each peer what may have to be sent again; the operation itself is small. */
    EXPECT(m, info.host_bytes - before.host_bytes <=
                  (uint64_t)(m->size - 1) * (2 * 4 * (256 << 10) + (40 << 10)) + (32 << 10));
    EXPECT(m, info.scratch_bytes > 0 &&
                  info.scratch_bytes <= (uint64_t)(m->size - 1) * 4 * (256 << 10));
    free(x);
}

TEST(processes_allocate_nothing_after_the_first_operations) {
    fleet *f = fleet_new(4);
    fleet_run(f, allocating);
    fleet_free(f);
    f = fleet_new(4);
    f->desc.no_link = true; /* direct's slots are what is looked at */
    fleet_run(f, scratching);
    fleet_free(f);
}

typedef struct meagre {
    _Atomic int left; /* allocations that succeed; below 0: all */
    _Atomic long live;
} meagre;

static void *meagre_alloc(void *user, size_t bytes, size_t align) {
    meagre *a = user;
    if (atomic_load(&a->left) == 0)
        return NULL;
    if (atomic_load(&a->left) > 0)
        atomic_fetch_sub(&a->left, 1);
    atomic_fetch_add(&a->live, 1);
    return dti_malloc_aligned(NULL, bytes, align);
}

static void meagre_free(void *user, void *memory, size_t bytes) {
    meagre *a = user;
    if (memory)
        atomic_fetch_sub(&a->live, 1);
    dti_malloc_free(NULL, memory, bytes);
}

/* Rank 1 fails at its first allocation, its second, and so on, to create and in each operation,
 * and tries again; for rank 0 it is only slow. */
static void starving(proc *p) {
    mate *m = &p->m;
    meagre memory = {.left = -1};
    dt_comm_desc desc = proc_desc(p);
    float *x = calloc(100000, sizeof *x);
    desc.no_link = true; /* a rank that fails while links are measured ends the join for all */
    if (m->rank)
        desc.allocator = (dt_allocator){meagre_alloc, meagre_free, &memory};
    dt_result result = DT_ERROR_MEMORY;
    for (int k = 0; result == DT_ERROR_MEMORY && k < 1000; k++) {
        atomic_store(&memory.left, m->rank ? k : -1);
        result = proc_try_desc(p, &desc);
        if (result == DT_ERROR_MEMORY) {
            proc_leave(p);
            EXPECT(m, atomic_load(&memory.live) == 0);
            p->numbers[0]++;
        }
    }
    EXPECT(m, result == DT_OK);
    for (int kind = DT_COMM_BROADCAST; kind <= DT_COMM_BARRIER && !m->failed_line; kind++) {
        dt_comm_op op = {.kind = (dt_comm_kind)kind, .in = x, .out = x + 50000, .count = 20000};
        result = DT_ERROR_MEMORY;
        for (int k = 0; result == DT_ERROR_MEMORY && k < 1000; k++) {
            atomic_store(&memory.left, m->rank ? k : -1);
            result = dt_comm_run(m->comm, &op);
            if (result)
                EXPECT_TEXT(m, "memory");
            p->numbers[1] += result != DT_OK;
        }
        EXPECT(m, result == DT_OK);
    }
    proc_leave(p);
    EXPECT(m, atomic_load(&memory.live) == 0);
    EXPECT(m, !m->rank || (p->numbers[0] > 10 && p->numbers[1] > 5));
    free(x);
}

TEST(processes_survive_failing_allocations) {
    fleet *f = fleet_new(2);
    fleet_run(f, starving);
    fleet_free(f);
}

/* Rank 1 gives up where memory fails in an operation: rank 0 gets the error in time. */
static void starved_to_death(proc *p) {
    mate *m = &p->m;
    meagre memory = {.left = -1};
    dt_comm_desc desc = proc_desc(p);
    float *x = calloc(100000, sizeof *x);
    if (m->rank)
        desc.allocator = (dt_allocator){meagre_alloc, meagre_free, &memory};
    if (EXPECT(m, proc_try_desc(p, &desc) == DT_OK)) {
        atomic_store(&memory.left, m->rank ? 1 : -1);
        proc_note(p, dt_comm_all_reduce(m->comm, x, x, 100000, DT_F32, DT_COMM_SUM));
        EXPECT(m, p->result == (m->rank ? DT_ERROR_MEMORY : DT_ERROR_PEER_LOST));
        EXPECT(m, m->rank || strstr(p->text, "rank 1"));
    }
    proc_leave(p);
    free(x);
}

TEST(processes_name_the_rank_that_left_without_memory) {
    fleet *f = fleet_new(2);
    f->seconds = 10;
    fleet_run(f, starved_to_death);
    fleet_free(f);
}

/* ---- few descriptors */

static void few_files(proc *p) {
    mate *m = &p->m;
    int32_t one = 1;
    rlim_t top = 0; /* the limit is on numbers, and those in use may have holes between them */
    for (int left = (int)p->all->at[0].numbers[7]; left > 0 || fcntl((int)top, F_GETFD) >= 0; top++)
        left -= fcntl((int)top, F_GETFD) < 0;
    struct rlimit before, few;
    EXPECT(m, getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = (struct rlimit){top, before.rlim_max};
    if (p->index == (int)p->all->at[0].numbers[6])
        setrlimit(RLIMIT_NOFILE, &few);
    dt_result result = proc_try(p);
    if (!result)
        result = dt_comm_all_reduce(m->comm, &one, &one, 1, DT_I32, DT_COMM_SUM);
    if (!result)
        EXPECT(m, one == m->size);
    proc_note(p, result);
    EXPECT(m, result == DT_OK || p->text[0]);
    setrlimit(RLIMIT_NOFILE, &before); /* a leak checker opens files at the end */
}

/* One of three can open `more` descriptors beyond those that it needs before joining. Counts how
 * often all worked, and how often none did. */
static void few_files_try(int who, int more, int join_ms, int *worked, int *failed) {
    fleet *f = fleet_new(3);
    f->at[0].numbers[7] = (uint64_t)more;
    f->at[0].numbers[6] = (uint64_t)who;
    f->desc.join_timeout_ms = join_ms;
    fleet_run(f, few_files);
    bool all = true, any = false;
    for (int r = 0; r < 3; r++) {
        all = all && f->at[r].result == DT_OK;
        any = any || f->at[r].result == DT_OK;
    }
    *worked += all;
    *failed += !any;
    if (getenv("DTRAIN_TEST_TIMES"))
        printf("  rank %d, %d descriptors: %d \"%s\" / \"%s\"\n", who, more, (int)f->at[who].result,
               f->at[who].text, f->at[2].text);
    fleet_free(f);
}

/* On a machine that does much else a join may take longer than it is to be waited for here. */
TEST(processes_with_few_descriptors_work_or_report_the_reason) {
    int worked = 0, failed = 0;
    for (int ms = 400; ms <= 6400 && (worked < 2 || failed < 2); ms *= 4) {
        worked = failed = 0;
        for (int who = 0; who < 2; who++)
            for (int more = 0; more <= 12; more += 4)
                few_files_try(who, more, ms, &worked, &failed);
    }
    CHECK(worked >= 2 && failed >= 2);
}

/* ---- many, and other places to meet */

static void rendezvous(proc *p) {
    mate *m = &p->m;
    int32_t one = 1;
    uint64_t start = dti_now_ns();
    if (!proc_join(p))
        return;
    p->numbers[0] = dti_now_ns() - start;
    EXPECT(m, !dt_comm_all_reduce(m->comm, &one, &one, 1, DT_I32, DT_COMM_SUM) && one == m->size);
}

TEST(processes_join_by_the_hundred_in_10_s) {
    int size = fleet_long() ? 128 : 64;
    double limit = fleet_long() ? 10 : 8, worst = 0;
    fleet *f = fleet_new(size);
    fleet_run(f, rendezvous);
    for (int r = 0; r < size; r++)
        worst = fmax(worst, (double)f->at[r].numbers[0] * 1e-9);
    test_check(worst < limit, __FILE__, __LINE__, "%d ranks joined in %.2f s", size, worst);
    if (getenv("DTRAIN_TEST_TIMES"))
        printf("  %d ranks joined in %.2f s\n", size, worst);
    fleet_free(f);
}

TEST(processes_join_over_ipv6) {
    fleet *f = fleet_new(3);
    int port = fleet_free_port(AF_INET6);
    if (port) {
        snprintf(f->desc.rendezvous, sizeof f->desc.rendezvous, "tcp://[::1]:%d", port);
        fleet_run(f, rendezvous);
    }
    fleet_free(f);
    if (!port)
        SKIP("no socket can listen at [::1]");
}

static void in_port_range(proc *p) {
    mate *m = &p->m;
    rendezvous(p);
    if (m->failed_line)
        return;
    dti_tcp *t = ((dti_tcp_group *)m->comm->state)->tcp;
    for (int i = 0; i < t->rendezvous.own.count; i++) {
        int port = dti_address_port(&t->rendezvous.own.at[i]);
        EXPECT(m, port >= p->all->desc.port_low && port <= p->all->desc.port_high);
    }
}

/* A file of an earlier run lies there. No rank answers at its addresses, and it is written
 * again. */
TEST(processes_join_by_a_file_in_a_range_of_ports) {
    char path[128];
    fleet *f = fleet_new(4);
    folder_make(f->folder);
    snprintf(path, sizeof path, "%s/meet", f->folder);
    FILE *old = fopen(path, "w");
    REQUIRE(old);
    fprintf(old, "dtrain 0 %s\ntcp://127.0.0.1:%d\n", f->desc.job, fleet_free_port(AF_INET));
    fclose(old);
    snprintf(f->desc.rendezvous, sizeof f->desc.rendezvous, "file://%s", path);
    f->desc.port_low = fleet_free_port(AF_INET);
    f->desc.port_high = f->desc.port_low + 20;
    fleet_run(f, in_port_range);
    folder_remove(f->folder);
    fleet_free(f);
}
