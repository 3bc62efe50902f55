/* Ranks of one host over shared memory: the rings by themselves, and that they are used. What
 * happens where they cannot be had, and where a peer writes into them what it must not. That
 * operations, deaths and pauses go as over TCP is in test_processes.c, which does them over
 * both. */

#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/un.h>

/* ---- the rings */

typedef struct ring_pair {
    dti_shm a, b;
    uint64_t random;
} ring_pair;

static uint32_t ring_random(ring_pair *p, uint32_t below) {
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->random >> 33) % below;
}

static bool ring_pair_open(ring_pair *p, uint64_t seed) {
    int memory = dti_memfd_new(DTI_SHM_BYTES);
    *p = (ring_pair){.random = seed};
    bool ok = memory >= 0 && dti_shm_open(&p->a, memory, 0) && dti_shm_open(&p->b, memory, 1);
    CHECK(ok);
    close(memory);
    return ok;
}

static void ring_pair_close(ring_pair *p) {
    dti_shm_close(&p->a);
    dti_shm_close(&p->b);
}

/* As if that number of bytes had gone already. */
static void ring_pair_advance(ring_pair *p, uint32_t at) {
    atomic_store(&p->a.head->way[0].written, at);
    atomic_store(&p->a.head->way[0].taken, at);
    p->a.written = p->a.freed = p->b.taken = p->b.told = at;
}

TEST(shared_rings_carry_every_byte_once_and_in_order) {
    enum { MOST = DTI_SHM_RING + 4096 };
    static uint8_t out[MOST], in[MOST];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        ring_pair p;
        uint32_t sent = 0, got = 0;
        if (!ring_pair_open(&p, seed))
            return;
        ring_pair_advance(&p, seed % 2 ? UINT32_MAX - 100000 : 0); /* positions begin again */
        for (int step = 0; step < 400; step++) {
            uint32_t sizes[2] = {ring_random(&p, 200),
                                 ring_random(&p, seed % 3 ? 70000 : MOST - 200)};
            for (uint32_t i = 0; i < sizes[0] + sizes[1]; i++)
                out[i] = (uint8_t)((sent + i) * 2654435761u >> 24);
            dti_socket_part parts[2] = {{out, sizes[0]}, {out + sizes[0], sizes[1]}};
            int64_t room = dti_shm_room(&p.a), went = dti_shm_write(&p.a, parts, 2);
            CHECK(went == DTI_MIN(room, (int64_t)sizes[0] + sizes[1]));
            sent += (uint32_t)went;
            parts[0] = (dti_socket_part){in, ring_random(&p, 90000)};
            int64_t there = dti_shm_filled(&p.b), came = dti_shm_read(&p.b, parts, 1);
            CHECK(there == sent - got && came == DTI_MIN(there, (int64_t)parts[0].bytes));
            bool right = true;
            for (uint32_t i = 0; i < came; i++)
                right = right && in[i] == (uint8_t)((got + i) * 2654435761u >> 24);
            CHECK(right);
            got += (uint32_t)came;
        }
        ring_pair_close(&p);
    }
}

/* Of short messages that are taken at once, however many. */
TEST(shared_rings_restart_at_the_beginning_when_empty) {
    enum { BYTES = 1000 };
    uint8_t out[BYTES], in[BYTES] = {0};
    ring_pair p;
    if (!ring_pair_open(&p, 1))
        return;
    for (int round = 0; round < 1000; round++) {
        memset(out, round, sizeof out);
        CHECK(dti_shm_write(&p.a, &(dti_socket_part){out, BYTES}, 1) == BYTES);
        CHECK(dti_shm_read(&p.b, &(dti_socket_part){in, BYTES}, 1) == BYTES);
        dti_shm_tell(&p.b);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    const uint8_t *ring = dti_shm_ring(&p.a, 0);
    size_t touched = 0;
    for (size_t i = 0; i < DTI_SHM_RING; i++)
        touched = ring[i] ? i : touched;
    CHECK(touched >= DTI_SHM_REWIND && touched < DTI_SHM_REWIND + 2 * BYTES);
    ring_pair_close(&p);
}

TEST(shared_positions_that_are_impossible_are_detected) {
    ring_pair p;
    static uint8_t bytes[DTI_SHM_RING + 1]; /* more than it believes that there is room for */
    const dti_socket_part part = {bytes, sizeof bytes};
    static const uint32_t wild[] = {DTI_SHM_RING + 1, DTI_SHM_RING * 2, 0x80000000u, 0xFFF00000u};
    for (size_t i = 0; i < DTI_COUNT(wild) && ring_pair_open(&p, 1); i++) {
        atomic_store(&p.a.head->way[0].written, wild[i]);
        CHECK(dti_shm_read(&p.b, &part, 1) == -1 && dti_shm_filled(&p.b) == -1);
        atomic_store(&p.a.head->way[1].taken, wild[i]);
        CHECK(dti_shm_write(&p.b, &part, 1) == -1 && dti_shm_room(&p.b) == -1);
        ring_pair_close(&p);
    }
}

/* What a peer passes may be anything: a file that it cuts while it is read, a pipe. */
TEST(shared_memory_is_mapped_only_if_its_size_is_sealed) {
    char path[] = "/tmp/dtrain-test-XXXXXX";
    int file = mkstemp(path), pipes[2], loose = (int)syscall(SYS_memfd_create, "test", 3u);
    CHECK(file >= 0 && pipe(pipes) == 0 && loose >= 0);
    CHECK(ftruncate(file, (off_t)DTI_SHM_BYTES) == 0 &&
          ftruncate(loose, (off_t)DTI_SHM_BYTES) == 0);
    int small = dti_memfd_new(4096), good = dti_memfd_new(DTI_SHM_BYTES);
    CHECK(!dti_memfd_map(file, DTI_SHM_BYTES) && !dti_memfd_map(pipes[0], DTI_SHM_BYTES));
    CHECK(!dti_memfd_map(loose, DTI_SHM_BYTES) && !dti_memfd_map(small, DTI_SHM_BYTES));
    CHECK(!dti_memfd_map(-1, DTI_SHM_BYTES));
    CHECK(ftruncate(good, 0) != 0 && ftruncate(good, (off_t)DTI_SHM_BYTES * 2) != 0);
    unlink(path);
    const int all[] = {file, pipes[0], pipes[1], loose, small, good};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        close(all[i]);
}

/* ---- processes: whether it is used */

static dti_tcp *shared_tcp(const proc *p) {
    return ((dti_tcp_group *)p->m.comm->state)->tcp;
}

static uint32_t shared_count(proc *p) {
    dti_tcp *t = shared_tcp(p);
    dti_mutex_lock(&t->lock);
    uint32_t count = t->shared_count;
    dti_mutex_unlock(&t->lock);
    return count;
}

/* Of so much that every rank talks to every other. */
static void shared_sum(proc *p) {
    float x[20000];
    for (int i = 0; i < 20000; i++)
        x[i] = (float)(i % 100 + p->m.rank);
    EXPECT(&p->m, !dt_comm_all_reduce(p->m.comm, x, x, 20000, DT_F32, DT_COMM_SUM));
    for (int i = 0; i < 20000; i++)
        EXPECT(&p->m, x[i] == (float)(p->m.size * (i % 100) + p->m.size * (p->m.size - 1) / 2));
}

/* arg: of each rank, how many of its connections are to go through memory. */
static void counting(proc *p) {
    const uint32_t *wanted = p->all->arg;
    if (p->all->folder[0] == (char)('0' + p->index)) { /* no file may be so large */
        struct rlimit limit = {DTI_SHM_BYTES / 2, DTI_SHM_BYTES / 2};
        EXPECT(&p->m, setrlimit(RLIMIT_FSIZE, &limit) == 0);
    }
    if (!proc_join(p))
        return;
    shared_sum(p);
    shared_sum(p);
    EXPECT(&p->m, shared_count(p) == wanted[p->index]);
    EXPECT(&p->m, !dt_comm_barrier(p->m.comm));
}

static void count_them(dt_comm_shared_memory asked, int sockets, const char *limited,
                       const uint32_t wanted[3]) {
    fleet *f = fleet_new(3);
    f->desc.shared_memory = asked;
    f->desc.sockets = sockets;
    f->desc.chunk_bytes = 4096;
    f->desc.logger = (dt_logger){.log = NULL};
    f->arg = wanted;
    snprintf(f->folder, sizeof f->folder, "%s", limited);
    fleet_run(f, counting);
    fleet_free(f);
}

TEST(shared_memory_carries_all_data_of_a_host_unless_forbidden) {
    count_them(DT_COMM_SHARED_DEFAULT, 1, "-", (uint32_t[3]){2, 2, 2});
    count_them(DT_COMM_SHARED_REQUIRED, 2, "-", (uint32_t[3]){4, 4, 4});
    count_them(DT_COMM_SHARED_OFF, 1, "-", (uint32_t[3]){0, 0, 0});
}

TEST(shared_memory_that_one_rank_cannot_have_falls_back_to_tcp_for_it) {
    count_them(DT_COMM_SHARED_DEFAULT, 1, "0", (uint32_t[3]){0, 1, 1});
    count_them(DT_COMM_SHARED_DEFAULT, 1, "1", (uint32_t[3]){1, 0, 1});
    count_them(DT_COMM_SHARED_DEFAULT, 1, "2", (uint32_t[3]){1, 1, 0});
}

/* ---- payloads that are read where they lie */

static void forbid_reading_others(mate *m) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {DTI_COUNT(code), code};
    EXPECT(m, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    EXPECT(m, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* To each other rank, as a bit: payloads were loaned. */
static unsigned loans_to(proc *p) {
    dti_tcp *t = shared_tcp(p);
    unsigned ranks = 0;
    dti_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->active_count; i++)
        if (t->active[i]->link->loans_to)
            ranks |= 1u << t->active[i]->link->peer;
    dti_mutex_unlock(&t->lock);
    return ranks;
}

/* Payloads of all lengths around the least that is loaned, in place and not, awaited and not. */
static void lending_sums(proc *p, float *x, float *y) {
    mate *m = &p->m;
    for (int round = 0; round < 24; round++) {
        const uint64_t n =
            round < 12 ? 3 * DTI_SHM_LEND / 4 + mate_random(m) % 8 : 1000 + mate_random(m) % 300000;
        uint64_t count = n;
        EXPECT(m, !dt_comm_broadcast(m->comm, &count, 1, DT_I64, round % 3));
        for (uint64_t i = 0; i < count; i++)
            x[i] = (float)(i % 100 + (uint64_t)m->rank + (uint64_t)round);
        dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                         .in = x,
                         .out = round % 2 ? y : x,
                         .count = count,
                         .algorithm =
                             round % 4 == 3 ? DT_COMM_ALGORITHM_RING : DT_COMM_ALGORITHM_DEFAULT};
        dt_comm_work work;
        EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
        if (round % 5 == 0)
            usleep(2000);
        EXPECT(m, !dt_comm_wait(m->comm, work, -1));
        const float *sum = op.out;
        bool right = true;
        for (uint64_t i = 0; i < count; i++)
            right = right && sum[i] == (float)(3 * (i % 100 + (uint64_t)round) + 3);
        EXPECT(m, right);
    }
}

static void lending(proc *p) {
    mate *m = &p->m;
    const int *forbidden = p->all->arg;
    float *x = malloc(2 * 400000 * sizeof *x);
    if (p->index == *forbidden)
        forbid_reading_others(m);
    if (!proc_join(p))
        return;
    dti_tcp *t = shared_tcp(p);
    dti_mutex_lock(&t->lock);
    memset(&t->host_processors, 0xFF, 64 / 8); /* with fewer than ranks nothing is loaned */
    t->crowded = false;
    dti_mutex_unlock(&t->lock);
    lending_sums(p, x, x + 400000);
    unsigned others = 7u & ~(1u << p->index);
    if (*forbidden >= 0)
        others = p->index == *forbidden ? 0 : others & ~(1u << *forbidden);
    EXPECT(m, loans_to(p) == others);
    EXPECT(m, !dt_comm_barrier(m->comm));
    free(x);
}

TEST(shared_payloads_are_read_in_place_where_the_system_permits) {
    if (!dti_local_may_read((long)getpid()))
        return;
    for (int forbidden = -1; forbidden < 3; forbidden++) {
        fleet *f = fleet_new(3);
        f->arg = &forbidden;
        f->desc.shared_memory = DT_COMM_SHARED_REQUIRED;
        fleet_run(f, lending);
        fleet_free(f);
    }
}

/* ---- the rank that has a processor */

typedef struct pins {
    uint64_t of[2]; /* a rank's mask of the first two processors */
    bool crowded;
} pins;

static void pinned(proc *p) {
    const pins *at = p->all->arg;
    const dti_cpu_set set = {{at->of[p->index]}};
    float x = 1;
    dti_cpu_set_put(0, &set);
    if (!proc_join(p))
        return;
    EXPECT(&p->m, !dt_comm_all_reduce(p->m.comm, &x, &x, 1, DT_F32, DT_COMM_SUM));
    dti_tcp *t = shared_tcp(p);
    dti_mutex_lock(&t->lock);
    EXPECT(&p->m, t->shared_count == 1 && t->crowded == at->crowded);
    dti_mutex_unlock(&t->lock);
    EXPECT(&p->m, !dt_comm_barrier(p->m.comm));
}

/* However each of them is bound, as launchers do. */
TEST(shared_memory_counts_the_processors_of_all_ranks) {
    dti_cpu_set all;
    if (!dti_cpu_set_get(&all) || (all.bits[0] & 3) != 3)
        return;
    for (int i = 0; i < 3; i++) {
        pins at = {.of = {1, i ? 1u + (unsigned)i : 1}, .crowded = i == 0};
        fleet *f = fleet_new(2);
        f->arg = &at;
        f->desc.shared_memory = DT_COMM_SHARED_REQUIRED;
        fleet_run(f, pinned);
        fleet_free(f);
    }
}

/* A device's memory has no pages that another process could be given. */
TEST(shared_payloads_in_device_memory_are_copied) {
    char line[256];
    unsigned long from = 0, to = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !to && fgets(line, sizeof line, maps))
        if (strstr(line, "[vvar]") && sscanf(line, "%lx-%lx", &from, &to) != 2)
            to = 0;
    if (maps)
        fclose(maps);
    if (!dti_local_may_read((long)getpid()))
        return;
    CHECK(dti_local_is_plain(line, sizeof line));
    CHECK(!to || !dti_local_is_plain((const void *)(uintptr_t)from, 4096));
}

/* ---- where it was asked for and is not to be had */

static void demanding(proc *p) {
    mate *m = &p->m;
    dt_comm_desc desc = proc_desc(p);
    struct rlimit limit = {DTI_SHM_BYTES / 2, DTI_SHM_BYTES / 2};
    EXPECT(m, setrlimit(RLIMIT_FSIZE, &limit) == 0);
    desc.shared_memory = DT_COMM_SHARED_REQUIRED;
    EXPECT(m, proc_try_desc(p, &desc) == DT_ERROR_UNSUPPORTED);
    EXPECT_TEXT(m, ".shared_memory is DT_COMM_SHARED_REQUIRED");
    EXPECT_TEXT(m, "is not available: File too large");
    proc_leave(p);
    desc.shared_memory = DT_COMM_SHARED_DEFAULT;
    desc.join_timeout_ms = 50;
    desc.logger = (dt_logger){.log = proc_log, .user = p};
    EXPECT(m, proc_try_desc(p, &desc) == DT_ERROR_TIMEOUT);
    EXPECT(m, strstr(p->log, "no shared memory for the ranks of this host (File too large)"));
}

static void alone_with_it(proc *p) {
    mate *m = &p->m;
    dt_comm_desc desc = proc_desc(p);
    int32_t x = 1;
    const int *who = p->all->arg;
    char text[80];
    desc.shared_memory = p->index == *who ? DT_COMM_SHARED_REQUIRED : DT_COMM_SHARED_OFF;
    desc.no_link = true; /* or the join would report it already */
    if (!EXPECT(m, proc_try_desc(p, &desc) == DT_OK))
        return;
    dt_result result = dt_comm_all_reduce(m->comm, &x, &x, 1, DT_I32, DT_COMM_SUM);
    EXPECT(m, result == DT_ERROR_REFUSED || result == DT_ERROR_REVOKED); /* posted after the end */
    snprintf(text, sizeof text, "rank %d requires shared memory with rank %d of its host", *who,
             1 - *who);
    EXPECT_TEXT(m, text);
}

TEST(shared_memory_that_is_required_and_unavailable_is_an_error) {
    fleet *f = fleet_new(1);
    f->desc.world_size = 2;
    fleet_run(f, demanding);
    fleet_free(f);
    for (int who = 0; who < 2; who++) { /* rank 1 dials */
        f = fleet_new(2);
        f->arg = &who;
        fleet_run(f, alone_with_it);
        fleet_free(f);
    }
}

/* ---- names: one that nobody has any more, and one that somebody else has */

static void listen_as_another(const uint8_t *name) {
    int listener = dti_local_open(name, true);
    for (struct pollfd q = {.fd = listener, .events = POLLIN}; poll(&q, 1, 5000) > 0;) {
        int s = dti_socket_accept(listener);
        uint8_t text[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
        dti_socket_send(s, &(dti_socket_part){text, sizeof text}, 1, false);
        usleep(20000);
        close(s);
    }
    _exit(0);
}

/* Rank 1 believes that rank 0 has another name. */
static void mistaken(proc *p) {
    mate *m = &p->m;
    const bool *somebody = p->all->arg;
    pid_t child = -1;
    if (!proc_join(p))
        return;
    if (p->index == 1) {
        dti_tcp *t = shared_tcp(p);
        dti_mutex_lock(&t->lock);
        dti_peer *peer = &t->core.peers[0];
        uint8_t *name = peer->address + peer->address_bytes - DTI_LOCAL_BYTES;
        memset(name, 0xA5, 4);
        child = *somebody ? fork() : -1;
        if (child == 0)
            listen_as_another(name);
        dti_mutex_unlock(&t->lock);
        usleep(20000);
    }
    shared_sum(p);
    EXPECT(m, shared_count(p) == 0);
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

TEST(shared_names_that_are_stale_or_of_another_user_fall_back_to_tcp) {
    for (int somebody = 0; somebody < 2; somebody++) {
        bool arg = somebody;
        fleet *f = fleet_new(2);
        f->arg = &arg;
        f->desc.no_link = true; /* connections come after the join */
        fleet_run(f, mistaken);
        fleet_free(f);
    }
}

static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Some descriptors of `file` at once. */
static void pass_some(int s, int file, int count, uint8_t *bytes, size_t size) {
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } extra = {.room = {0}};
    struct iovec part = {bytes, size};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &extra,
                             .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN((size_t)count * sizeof(int)),
                             .cmsg_level = SOL_SOCKET,
                             .cmsg_type = SCM_RIGHTS};
    for (int i = 0; i < count; i++)
        memcpy(CMSG_DATA(head) + (size_t)i * sizeof(int), &file, sizeof file);
    sendmsg(s, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A process that finds the name out gets no further than at a port, and what it passes is
 * closed. */
static void strangers_call(const dti_tcp *t) {
    uint8_t junk[200], hello[4] = "DTRH";
    for (int i = 0; i < 200; i++)
        junk[i] = (uint8_t)(i * 37);
    for (int i = 0; i < 30; i++) {
        int s = dti_local_open(t->local_name, false),
            file = open("/dev/null", O_RDONLY | O_CLOEXEC);
        memcpy(junk, hello, i % 2 ? 4 : 0);
        for (int k = 0; k < 3; k++)
            pass_some(s, file, 1 + (i + k) % 5, junk, (size_t)(1 + i * 5));
        usleep(1000);
        close(s);
        close(file);
    }
}

static void visited(proc *p) {
    mate *m = &p->m;
    if (!proc_join(p))
        return;
    shared_sum(p);
    if (p->index == 0) {
        int before = open_descriptors();
        strangers_call(shared_tcp(p));
        usleep(20000);
        EXPECT(m, open_descriptors() == before);
    }
    shared_sum(p);
}

/* A process that has the memory may write anything there. It is meant for processes that could do
 * so in any case. */
static void of_another_user(proc *p) {
    mate *m = &p->m;
    if (p->index == 1 && !EXPECT(m, seteuid(65534) == 0))
        return;
    if (!proc_join(p))
        return;
    shared_sum(p);
    EXPECT(m, shared_count(p) == 0);
    EXPECT(m, !dt_comm_barrier(m->comm));
    EXPECT(m, seteuid(0) == 0); /* for who looks at the process at its end */
}

static int become_another(const char *ignored) {
    (void)ignored;
    return seteuid(65534) == 0 && seteuid(0) == 0 ? 0 : errno;
}

TEST(shared_memory_is_for_ranks_of_one_user_and_others_use_tcp) {
    if (!can_call("seteuid", become_another, NULL))
        SKIP(lacks);
    fleet *f = fleet_new(2);
    f->desc.logger = (dt_logger){.log = NULL};
    fleet_run(f, of_another_user);
    fleet_free(f);
}

TEST(shared_names_admit_no_process_without_the_key) {
    fleet *f = fleet_new(2);
    fleet_run(f, visited);
    fleet_free(f);
}

/* ---- the library's thread and the application's */

/* Operations continue while the application computes, and it then waits for them. Neither thread
 * takes the signal that was to wake the other. */
static void computing_meanwhile(proc *p) {
    mate *m = &p->m;
    enum { OPS = 3, N = 1 << 20 };
    float *x = calloc((size_t)OPS * N, sizeof *x);
    uint64_t longest = 0;
    if (!proc_join(p))
        return;
    for (int round = 0; round < 30; round++) {
        dt_comm_work works[OPS];
        for (int i = 0; i < OPS; i++) {
            dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x + i * N, .out = x + i * N};
            op.count = N;
            EXPECT(m, !dt_comm_begin(m->comm, &op, &works[i]));
            for (uint64_t until = dti_now_ns() + 1000000 + mate_random(m) % 3000000;
                 dti_now_ns() < until;)
                ;
        }
        for (int i = 0; i < OPS; i++) {
            uint64_t start = dti_now_ns();
            EXPECT(m, !dt_comm_wait(m->comm, works[i], -1));
            longest = DTI_MAX(longest, dti_now_ns() - start);
        }
    }
    p->numbers[0] = longest;
    EXPECT(m, !dt_comm_barrier(m->comm));
    free(x);
}

TEST(shared_memory_wakes_any_waiting_thread) {
    for (int tcp = 0; tcp < 2; tcp++) {
        fleet *f = fleet_new(2);
        f->desc.shared_memory = tcp ? DT_COMM_SHARED_OFF : DT_COMM_SHARED_REQUIRED;
        fleet_run(f, computing_meanwhile);
        for (int r = 0; r < 2; r++) /* a thread that is not woken sleeps for a second */
            test_check(f->at[r].numbers[0] < 900000000u, __FILE__, __LINE__,
                       "tcp %d: rank %d waited %.0f ms", tcp, r,
                       (double)f->at[r].numbers[0] * 1e-6);
        fleet_free(f);
    }
}

/* ---- what stays */

/* Of the processes that may be looked at: how many times a memory with this inode is mapped. */
static int mappings_of(uint64_t inode) {
    char path[64], line[512];
    int count = 0;
    DIR *all = opendir("/proc");
    for (const struct dirent *e; all && (e = readdir(all)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%.20s/maps", e->d_name);
        FILE *maps = e->d_name[0] >= '1' && e->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        unsigned long long found;
        while (maps && fgets(line, sizeof line, maps))
            count += strstr(line, "/memfd:dtrain") &&
                     sscanf(line, "%*s %*s %*s %*s %llu", &found) == 1 && found == inode;
        if (maps)
            fclose(maps);
    }
    if (all)
        closedir(all);
    return count;
}

static bool file_has(const char *path, const char *text) {
    char line[512];
    bool has = false;
    FILE *f = fopen(path, "r");
    while (f && !has && fgets(line, sizeof line, f))
        has = strstr(line, text) != NULL;
    if (f)
        fclose(f);
    return has;
}

/* Sums until it is killed; it has said what it holds. */
static void held(proc *p) {
    char line[512];
    float x[20000] = {0};
    if (!proc_join(p))
        return;
    shared_sum(p);
    size_t used = (size_t)snprintf(p->log, sizeof p->log, "@dtrain-");
    for (int i = 0; i < DTI_LOCAL_BYTES; i++)
        used += (size_t)snprintf(p->log + used, 3, "%02x", shared_tcp(p)->local_name[i]);
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long long inode = 0;
    while (maps && !inode && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:dtrain"))
            sscanf(line, "%*s %*s %*s %*s %llu", &inode);
    p->numbers[0] = inode;
    proc_reach(p, 0);
    while (!dt_comm_all_reduce(p->m.comm, x, x, 20000, DT_F32, DT_COMM_SUM))
        ;
    usleep(5000000);
}

TEST(shared_names_and_memory_are_removed_when_the_ranks_are_killed) {
    fleet *f = fleet_new(3);
    fleet_start(f, held);
    bool there = fleet_await(f, 0, 3);
    CHECK(there);
    for (int r = 0; r < 3 && there; r++)
        CHECK(file_has("/proc/net/unix", f->at[r].log) && mappings_of(f->at[r].numbers[0]) > 0);
    for (int r = 0; r < 3; r++) {
        f->at[r].dead = true;
        fleet_signal(f, r, SIGKILL);
    }
    fleet_end(f);
    for (int r = 0; r < 3 && there; r++)
        CHECK(!file_has("/proc/net/unix", f->at[r].log) && !mappings_of(f->at[r].numbers[0]));
    fleet_free(f);
}

/* ---- a rank that writes into the memory what it should not */

typedef struct scribble {
    uint64_t seed; /* 0: a position; else anything anywhere, at any time */
    bool taken;
} scribble;

static void scribble_memory(proc *p, const scribble *s) {
    dti_tcp *t = shared_tcp(p);
    dti_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->active_count; i++) {
        dti_shm *m = &t->active[i]->shm;
        if (!t->active[i]->shared)
            continue;
        if (s->seed == 0) { /* and so in all that is reported later */
            m->taken += s->taken ? 0x40000000u : 0;
            m->written += s->taken ? 0 : 0x40000000u;
            atomic_store(&dti_shm_in(m)->taken, m->taken);
            dti_shm_publish(m);
            dti_conn_ring(t->active[i], ~0u);
        }
        uint8_t *bytes = (uint8_t *)m->head;
        for (int n = 0; s->seed && n < 400; n++) {
            uint32_t at = mate_random(&p->m) % 3 ? mate_random(&p->m) % 640
                                                 : mate_random(&p->m) % (uint32_t)DTI_SHM_BYTES;
            bytes[at] = (uint8_t)mate_random(&p->m);
        }
    }
    dti_mutex_unlock(&t->lock);
}

/* Rank 1 writes wild values; rank 0 gets an error, in time, and until then right sums. */
static void scribbling(proc *p) {
    mate *m = &p->m;
    const scribble *s = p->all->arg;
    enum { N = 40000 };
    float *x = malloc(N * sizeof *x);
    dt_result result = DT_OK;
    if (!proc_join(p))
        return;
    m->random += s->seed * 977;
    for (int round = 0; round < 300 && !result; round++) {
        for (int i = 0; i < N; i++)
            x[i] = (float)(i % 50 + round % 7);
        if (p->index == 1 && round > 1)
            scribble_memory(p, s);
        result = dt_comm_all_reduce(m->comm, x, x, N, DT_F32, DT_COMM_SUM);
        for (int i = 0; i < N && !result; i++)
            EXPECT(m, x[i] == (float)(2 * (i % 50 + round % 7)));
    }
    proc_note(p, result);
    EXPECT(m, s->seed || result == DT_ERROR_CORRUPT || result == DT_ERROR_REVOKED);
    free(x);
}

static void scribble_once(const scribble *s, const char *text) {
    fleet *f = fleet_new(2);
    f->desc.silence_ms = 600;
    f->desc.op_timeout_ms = 2000;
    f->arg = s;
    f->seconds = 20;
    fleet_run(f, scribbling);
    if (text)
        CHECK_CONTAINS(f->at[0].text, text);
    fleet_free(f);
}

TEST(shared_memory_with_wild_positions_ends_the_group) {
    for (int taken = 0; taken < 2; taken++)
        scribble_once(&(scribble){.taken = taken}, "an invalid position in the shared memory");
}

TEST(shared_memory_with_any_content_gives_no_wrong_sum) {
    for (uint64_t seed = 1; seed <= (fleet_long() ? 200 : 6); seed++)
        scribble_once(&(scribble){.seed = seed}, NULL);
}
