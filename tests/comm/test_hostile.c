/* Strangers, bytes that are not the protocol, and bytes that change on their way. */

#include "comm/processes.h"
#include "comm/proxy.h"

/* ---- others try to join */

typedef struct intruder {
    const char *what;
    void (*change)(dt_comm_desc *desc);
    dt_result result;
    const char *part, *log; /* of its error; of rank 0's log, or NULL */
} intruder;

static void other_key(dt_comm_desc *d) {
    d->key[5] = 'e';
}
static void no_key(dt_comm_desc *d) {
    d->key[0] = 0;
    d->join_timeout_ms = 300;
}
static void insecure(dt_comm_desc *d) {
    d->key[0] = 0;
    d->insecure = true;
}
static void passphrase(dt_comm_desc *d) {
    strcpy(d->key, "hunter2");
}
static void other_job(dt_comm_desc *d) {
    strcpy(d->job, "another");
}
static void other_attempt(dt_comm_desc *d) {
    d->attempt = 7;
}
static void other_world(dt_comm_desc *d) {
    d->world_size = 4;
}
static void taken_rank(dt_comm_desc *d) {
    d->rank = 1;
}
static void rank_too_high(dt_comm_desc *d) {
    d->rank = 3;
}
static void second_rank_0(dt_comm_desc *d) {
    d->rank = 0;
}
static void other_sockets(dt_comm_desc *d) {
    d->sockets = 2;
}

static const intruder intruders[] = {
    {"another key", other_key, DT_ERROR_REFUSED, "keys differ", "keys differ"},
    {"no key", no_key, DT_ERROR_TIMEOUT, "no key from rank 0", NULL},
    {"insecure", insecure, DT_ERROR_REFUSED, "insecure", "insecure"},
    {"a passphrase", passphrase, DT_ERROR_INVALID, "64 hex digits", NULL},
    {"another job", other_job, DT_ERROR_REFUSED, "different jobs", "different jobs"},
    {"attempt 7", other_attempt, DT_ERROR_REFUSED, "different attempts", "different attempts"},
    {"4 ranks", other_world, DT_ERROR_REFUSED, "world sizes differ", "world sizes differ"},
    {"rank 1 again", taken_rank, DT_ERROR_REFUSED, "has already joined", "has already joined"},
    {"rank 3 of 3", rank_too_high, DT_ERROR_INVALID, "rank is 3", NULL},
    {"rank 0 again", second_rank_0, DT_ERROR_IO, "in use", NULL},
    {"2 sockets", other_sockets, DT_ERROR_REFUSED, "settings differ", "settings differ"},
};

/* Ranks 0 and 1 wait for 2, which waits until all intruders (process 3) have had their turn. */
static void intruding(proc *p) {
    mate *m = &p->m;
    dt_comm_desc desc = proc_desc(p);
    if (p->index == 3) {
        usleep(100000); /* rank 1 has joined by then */
        for (size_t i = 0; i < DTI_COUNT(intruders); i++) {
            const intruder *w = &intruders[i];
            dt_comm_desc wrong = p->all->desc;
            wrong.rank = 2;
            w->change(&wrong);
            dt_result result = proc_try_desc(p, &wrong);
            bool right = result == w->result && strstr(p->text, w->part);
            EXPECT(m, right);
            if (!right && m->failed_line)
                snprintf(m->failed, sizeof m->failed, "%s: %d \"%.120s\"", w->what, (int)result,
                         p->text);
            EXPECT(m, !strstr(p->text, "hunter2"));
            proc_leave(p);
        }
        proc_reach(p, 0);
        return;
    }
    if (p->index == 2)
        proc_await(p, 0, 1);
    desc.logger = (dt_logger){.log = proc_log, .user = p};
    if (!EXPECT(m, proc_try_desc(p, &desc) == DT_OK))
        return;
    int32_t one = 1;
    for (int i = 0; i < 20; i++, one = 1)
        EXPECT(m, !dt_comm_all_reduce(m->comm, &one, &one, 1, DT_I32, DT_COMM_SUM) && one == 3);
}

TEST(hostile_processes_cannot_join_or_disturb) {
    fleet *f = fleet_new(4);
    f->desc.world_size = 3;
    fleet_run(f, intruding);
    for (size_t i = 0; i < DTI_COUNT(intruders); i++)
        if (intruders[i].log)
            CHECK_CONTAINS(f->at[0].log, intruders[i].log);
    fleet_free(f);
}

static void describe_chunks(proc *p, dt_comm_desc *desc) {
    desc->chunk_bytes = p->index == 1 ? 8192 : 4096;
}

/* The wrong rank comes last: one that came later would find no peer, and wait. */
static void joining_fails(proc *p) {
    if (p->index == 1 && p->all->describe)
        usleep(300000);
    if (p->index < p->all->desc.world_size)
        EXPECT(&p->m, proc_try(p) != DT_OK);
}

TEST(hostile_settings_and_missing_ranks_are_named) {
    fleet *f = fleet_new(3);
    f->describe = describe_chunks;
    f->seconds = 10;
    fleet_run(f, joining_fails);
    for (int r = 0; r < 3; r++) {
        CHECK(f->at[r].result == DT_ERROR_REFUSED);
        CHECK_CONTAINS(f->at[r].text, "8192");
        CHECK_CONTAINS(f->at[r].text, "rank 1");
    }
    fleet_free(f);
    f = fleet_new(2); /* of three */
    f->desc.world_size = 3;
    f->desc.join_timeout_ms = 1000;
    fleet_run(f, joining_fails);
    for (int r = 0; r < 2; r++)
        CHECK(f->at[r].result == DT_ERROR_TIMEOUT);
    CHECK_CONTAINS(f->at[0].text, "missing: 2");
    fleet_free(f);
}

/* ---- what one stranger can do to the log, and a process without descriptors */

static int raw_dial(int port);
static void raw_send(int port, const void *data, size_t bytes);
enum { STRANGERS = 300 };

static int lines_of(const char *log) {
    int lines = 0;
    for (; *log; log++)
        lines += *log == '\n';
    return lines;
}

static void hello_sum(uint8_t hello[DTI_HELLO_BYTES]) {
    dti_put32(hello + DTI_HELLO_SUM_AT, dti_hello_sum(hello));
}

/* Rank 0 waits for a rank 1 that never comes; process 1 is refused again and again. */
static void pestered(proc *p) {
    int port = (int)p->all->at[0].numbers[7];
    if (p->index == 0) {
        dt_comm_desc desc = proc_desc(p);
        desc.logger = (dt_logger){.log = proc_log, .user = p};
        EXPECT(&p->m, proc_try_desc(p, &desc) == DT_ERROR_TIMEOUT);
        return;
    }
    uint8_t hello[DTI_HELLO_BYTES] = {0}, answer[64];
    dti_put32(hello, DTI_MAGIC_HELLO);
    hello[4] = hello[5] = DTI_WIRE_VERSION;
    usleep(100000);
    for (int i = 0; i < STRANGERS; i++) {
        dti_put32(hello + 8, (uint32_t)i); /* each time another rank, most of which there are not */
        hello_sum(hello);
        int s = raw_dial(port);
        send(s, hello, sizeof hello, MSG_NOSIGNAL);
        recv(s, answer, sizeof answer, 0); /* the refusal */
        close(s);
    }
}

TEST(hostile_strangers_are_counted_not_listed) {
    fleet *f = fleet_new(2);
    f->desc.join_timeout_ms = 800;
    f->at[0].numbers[7] = (uint64_t)atoi(strrchr(f->desc.rendezvous, ':') + 1);
    fleet_run(f, pestered);
    CHECK_CONTAINS(f->at[0].log, "was refused: ");
    CHECK_CONTAINS(f->at[0].log, "more connections were refused within ");
    test_check(lines_of(f->at[0].log) < 20, __FILE__, __LINE__, "%d lines:\n%s",
               lines_of(f->at[0].log), f->at[0].log);
    fleet_free(f);
}

static void with_two_keys(proc *p) {
    dt_comm_desc desc = proc_desc(p);
    if (p->index == 1) {
        usleep(100000);
        other_key(&desc);
    }
    EXPECT(&p->m, proc_try_desc(p, &desc) != DT_OK);
}

TEST(hostile_refusals_are_in_the_error_of_the_rank_that_waits) {
    fleet *f = fleet_new(2);
    f->desc.join_timeout_ms = 990; /* a second, rounded */
    fleet_run(f, with_two_keys);
    CHECK(f->at[0].result == DT_ERROR_TIMEOUT && f->at[1].result == DT_ERROR_REFUSED);
    CHECK_CONTAINS(f->at[0].text,
                   "rank 0 waited 1 s: these ranks are missing: 1; a connection that "
                   "claims to be rank 1");
    CHECK_CONTAINS(f->at[0].text, "was refused: the keys differ");
    fleet_free(f);
}

/* Rank 0 waits, and can open nothing any more; then rank 1 comes. */
static void limit_descriptors(rlim_t most) {
    struct rlimit all;
    getrlimit(RLIMIT_NOFILE, &all);
    setrlimit(RLIMIT_NOFILE,
              &(struct rlimit){most < all.rlim_max ? most : all.rlim_max, all.rlim_max});
}

static void *take_descriptors(void *arg) {
    usleep(150000);
    limit_descriptors(3);
    return arg;
}

static void without_descriptors(proc *p) {
    dt_comm_desc desc = proc_desc(p);
    desc.logger = (dt_logger){.log = proc_log, .user = p};
    pthread_t thread;
    if (p->index == 0)
        EXPECT(&p->m, pthread_create(&thread, NULL, take_descriptors, NULL) == 0);
    else
        usleep(300000);
    EXPECT(&p->m, proc_try_desc(p, &desc) == DT_ERROR_TIMEOUT);
    if (p->index == 0) {
        pthread_join(thread, NULL);
        limit_descriptors(RLIM_INFINITY); /* a leak checker opens files at the end */
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    p->numbers[0] = (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
                    (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

TEST(hostile_limits_on_descriptors_are_named_in_the_error) {
    fleet *f = fleet_new(2);
    f->desc.join_timeout_ms = 800;
    fleet_run(f, without_descriptors);
    CHECK_CONTAINS(f->at[0].text, "missing: 1; this process has no descriptor left");
    CHECK_CONTAINS(f->at[0].log, "no descriptor is left for a new connection (Too many open");
    CHECK(lines_of(f->at[0].log) < 8 && f->at[0].numbers[0] < 500);
    fleet_free(f);
}

/* The same for a while, in which rank 1 of 3 is refused; then it comes in, and rank 2 is late. */
static void *take_descriptors_for_a_while(void *arg) {
    struct rlimit all;
    getrlimit(RLIMIT_NOFILE, &all);
    usleep(150000);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, all.rlim_max});
    usleep(350000);
    setrlimit(RLIMIT_NOFILE, &all);
    return arg;
}

static void without_descriptors_for_a_while(proc *p) {
    dt_comm_desc desc = proc_desc(p);
    desc.logger = (dt_logger){.log = proc_log, .user = p};
    pthread_t thread;
    if (p->index == 0)
        EXPECT(&p->m, pthread_create(&thread, NULL, take_descriptors_for_a_while, NULL) == 0);
    else
        usleep(300000);
    EXPECT(&p->m, proc_try_desc(p, &desc) == DT_ERROR_TIMEOUT);
    if (p->index == 0)
        pthread_join(thread, NULL);
}

TEST(hostile_limits_on_descriptors_that_ended_are_not_named) {
    fleet *f = fleet_new(2);
    f->desc.world_size = 3;
    f->desc.join_timeout_ms = 1600;
    fleet_run(f, without_descriptors_for_a_while);
    CHECK_CONTAINS(f->at[0].log, "no descriptor is left for a new connection");
    CHECK_CONTAINS(f->at[0].text, "missing: 2");
    CHECK(!strstr(f->at[0].text, "descriptor"));
    fleet_free(f);
}

TEST(hostile_limits_on_descriptors_are_named_after_many_missing_ranks) {
    const char *why = "; this process has no descriptor left for connections: raise the limit "
                      "(ulimit -n)";
    dti_peer *peers = calloc(1200, sizeof *peers);
    dti_core *core = calloc(1, sizeof *core);
    core->peers = peers;
    for (uint32_t size = 2; size <= 1200; size++) {
        char list[320], last[16];
        core->set.size = size;
        core->starved = true;
        dti_missing_list(core, list, sizeof list);
        size_t ranks = strlen(list) - strlen(why);
        CHECK(strlen(list) < sizeof list && strcmp(list + ranks, why) == 0);
        list[ranks] = 0;
        bool cut = ranks > 5 && strcmp(list + ranks - 5, ", ...") == 0;
        snprintf(last, sizeof last, "%u", size - 1);
        CHECK(cut || strcmp(list + ranks - strlen(last), last) == 0);
        CHECK(cut == (size > 59)); /* most of them get the reason */
    }
    core->starved = false;
    char list[320];
    dti_missing_list(core, list, sizeof list);
    CHECK(strcmp(list + strlen(list) - 5, ", ...") == 0 && strstr(list, ", 70, "));
    free(core);
    free(peers);
}

/* ---- what is not the protocol, at the listening ports */

static int raw_dial(int port) {
    dti_address a;
    dti_loopback(&a);
    dti_address_set_port(&a, port);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_usec = 300000};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (syscall(SYS_connect, s, &a.sock, a.bytes) == 0)
        return s;
    close(s);
    return -1;
}

static void raw_send(int port, const void *data, size_t bytes) {
    uint8_t answer[512];
    int s = raw_dial(port);
    if (s < 0)
        return;
    send(s, data, bytes, MSG_NOSIGNAL);
    recv(s, answer, sizeof answer, MSG_DONTWAIT);
    close(s);
}

static void garbage(int port, uint64_t *random) {
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const uint8_t tls[] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0x20, 0x20, 0x20};
    uint8_t noise[2000];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)((*random = *random * 6364136223846793005u + 1) >> 40);
    raw_send(port, noise, sizeof noise);
    raw_send(port, http, sizeof http);
    raw_send(port, tls, sizeof tls);
    raw_send(port, "", 0); /* a port scan */
    uint8_t hello[DTI_HELLO_BYTES] = {0};
    dti_put32(hello, DTI_MAGIC_HELLO);
    hello[4] = hello[5] = DTI_WIRE_VERSION;
    hello_sum(hello);
    raw_send(port, hello, sizeof hello);
    memcpy(noise, hello, 6);
    noise[6] = DTI_CHANNEL_DATA;
    hello_sum(noise); /* waits for the roster, and more than there is room for follows */
    raw_send(port, noise, sizeof noise);
}

/* A hello byte by byte, and idle connections that are opened again when they are closed. */
static void attack(proc *p, int idle) {
    uint64_t random = 5;
    int *held = calloc((size_t)idle, sizeof *held), at = 0, slow = -1, sent = 0;
    uint8_t hello[DTI_HELLO_BYTES] = {0};
    dti_put32(hello, DTI_MAGIC_HELLO);
    hello[4] = hello[5] = DTI_WIRE_VERSION;
    hello_sum(hello);
    while (atomic_load(&p->all->stage[1]) < 3) {
        int ports[2] = {(int)p->all->at[0].numbers[7], atomic_load(&p->all->port)};
        for (int k = 0; k < 2; k++) {
            if (!ports[k])
                continue;
            garbage(ports[k], &random);
            for (int i = 0; i < 8 && idle; i++, at = (at + 1) % idle) {
                if (held[at] > 0)
                    close(held[at]);
                held[at] = raw_dial(ports[k]);
            }
        }
        if (slow < 0 || send(slow, hello + sent, 1, MSG_NOSIGNAL) != 1 ||
            ++sent == DTI_HELLO_BYTES) {
            if (slow >= 0)
                close(slow);
            slow = raw_dial(ports[0]);
            sent = 0;
        }
        p->numbers[0]++;
        usleep(1000);
    }
    free(held);
}

/* From another address of this host. */
static int crowd_dial(int port) {
    dti_address from, to;
    dti_loopback(&from);
    ((struct sockaddr_in *)(void *)&from.sock)->sin_addr.s_addr = htonl(0x7F000002);
    dti_loopback(&to);
    dti_address_set_port(&from, 0);
    dti_address_set_port(&to, port);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(s, (struct sockaddr *)&from.sock, from.bytes) == 0 &&
        syscall(SYS_connect, s, &to.sock, to.bytes) == 0)
        return s;
    close(s);
    return -1;
}

static bool is_closed(int s) {
    char byte;
    return recv(s, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

/* Rank 0 waits. A slow one comes from its address, then a crowd from another one, then rank 1. */
static void crowded(proc *p) {
    enum { CROWD = 300 };
    mate *m = &p->m;
    int port = (int)p->all->at[0].numbers[7], patient = -1, crowd[CROWD], closed = 0;
    int32_t x = 1;
    for (int i = 0; p->index == 1 && patient < 0 && i < 100; i++, usleep(20000))
        patient = raw_dial(port);
    for (int i = 0; p->index == 1 && i < CROWD; i++)
        crowd[i] = crowd_dial(port);
    if (p->index == 1)
        usleep(300000);
    for (int i = 0; p->index == 1 && i < CROWD; i++)
        closed += crowd[i] < 0 || is_closed(crowd[i]);
    if (p->index == 1)
        EXPECT(m, patient >= 0 && !is_closed(patient) && closed >= CROWD - 64);
    if (proc_join(p))
        EXPECT(m, !dt_comm_all_reduce(m->comm, &x, &x, 1, DT_I32, DT_COMM_SUM) && x == 2);
    for (int i = 0; p->index == 1 && i < CROWD; i++)
        close(crowd[i]);
    proc_leave(p);
}

TEST(hostile_connections_from_one_address_keep_out_no_other_address) {
    fleet *f = fleet_new(2);
    f->at[0].numbers[7] = (uint64_t)atoi(strrchr(f->desc.rendezvous, ':') + 1);
    fleet_run(f, crowded);
    fleet_free(f);
}

static int open_files(void) {
    int count = 0;
    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static long resident_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * 4;
}

static void attacked(proc *p) {
    mate *m = &p->m;
    struct rlimit most = {8192, 8192};
    setrlimit(RLIMIT_NOFILE, &most);
    if (p->index == 3) {
        attack(p, 1000);
        return;
    }
    if (p->index == 2)
        usleep(500000); /* they attack while the others wait for it */
    int before = 0;
    long memory = 0;
    float *x = malloc(50000 * sizeof *x);
    if (!proc_join(p))
        return;
    dti_tcp *t = ((dti_tcp_group *)m->comm->state)->tcp;
    if (p->index == 1)
        atomic_store(&p->all->port, dti_address_port(&t->rendezvous.own.at[0]));
    uint64_t until = dti_now_ns() + (fleet_long() ? 60000000000u : 4000000000u);
    for (int32_t go = 1, round = 0; go && !m->failed_line; round++) {
        for (int i = 0; i < 50000; i++)
            x[i] = (float)(m->rank + i % 50 + round % 3);
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, x, 50000, DT_F32, DT_COMM_SUM));
        for (int i = 0; i < 50000; i += 7)
            EXPECT(m, x[i] == (float)(3 + 3 * (i % 50) + 3 * (round % 3)));
        if (round == 50)
            before = open_files(), memory = resident_kib();
        go = dti_now_ns() < until || round < 60;
        EXPECT(m, !dt_comm_broadcast(m->comm, &go, 1, DT_I32, 0));
        p->numbers[1]++;
    }
    p->numbers[2] = (uint64_t)open_files();
    p->numbers[3] = (uint64_t)resident_kib();
    /* Of those that have proved nothing there are 64 at most. */
    EXPECT(m, open_files() <= before + 70 && p->numbers[3] < (uint64_t)memory + 4096);
    proc_reach(p, 1);
    proc_await(p, 1, 3);
    for (int i = 0; i < 100 && open_files() > 30; i++) /* they go when their time is over */
        usleep(100000);
    EXPECT(m, open_files() <= 30);
    free(x);
}

TEST(hostile_bytes_at_the_ports_change_nothing) {
    fleet *f = fleet_new(4);
    f->desc.world_size = 3;
    f->seconds = 120;
    const char *port = strrchr(f->desc.rendezvous, ':') + 1;
    f->at[0].numbers[7] = (uint64_t)atoi(port);
    fleet_run(f, attacked);
    if (getenv("DTRAIN_TEST_TIMES"))
        printf("  %d attacks during %d sums\n", (int)f->at[3].numbers[0], (int)f->at[0].numbers[1]);
    CHECK(f->at[3].numbers[0] > 50 && f->at[0].numbers[1] > 60);
    fleet_free(f);
}

/* ---- what changes on its way */

static void streaming(proc *p) {
    if (proc_try(p) == DT_OK)
        stream_until_error(p, 3000);
}

/* One byte of one flow; every rank must end with an error, and none with a wrong result. */
static void hit(proxy_deed deed, bool control, bool answers, uint64_t at, bool keyed,
                void (*edit)(const proxy_flow *f, uint8_t *head)) {
    fleet *f = fleet_new(3);
    proxy *x = proxy_new();
    f->desc.shared_memory = DT_COMM_SHARED_OFF; /* the proxy is of TCP */
    f->desc.no_link = true;                     /* data connections come after the join */
    x->deed = deed;
    x->control = control;
    x->answers = answers;
    x->dialler = 2;
    x->acceptor = control ? 0 : 1;
    x->at = at;
    x->mask = (uint8_t)(1u << at % 8);
    x->edit = edit;
    f->desc.chunk_bytes = 4096;
    f->desc.silence_ms = 1000;
    f->desc.join_timeout_ms = 3000;
    f->seconds = 20;
    if (!keyed) {
        f->desc.key[0] = 0;
        f->desc.insecure = true;
    }
    proxy_start(x);
    fleet_run(f, streaming);
    for (int r = 0; r < 3; r++) {
        const proc *p = &f->at[r];
        bool right = p->result == DT_ERROR_CORRUPT || p->result == DT_ERROR_PEER_LOST ||
                     p->result == DT_ERROR_REFUSED || p->result == DT_ERROR_REVOKED;
        test_check((edit || atomic_load(&x->done)) && right && strstr(p->text, "rank "), __FILE__,
                   __LINE__,
                   "deed %d, control %d, answers %d, byte %d, keyed %d: rank %d got %d \"%s\"",
                   (int)deed, control, answers, (int)at, keyed, r, (int)p->result, p->text);
    }
    proxy_end(x);
    fleet_free(f);
}

#define AFTER_PROOF (DTI_HELLO_BYTES + DTI_PROOF_BYTES)

/* After hello and proof; a data connection has frames of up to 64 + 4096 bytes. */
TEST(hostile_bits_flipped_in_the_stream_are_always_detected) {
    int more = fleet_long() ? 1000 : 12;
    uint64_t random = 99;
    for (int i = 0; i < more; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t at = AFTER_PROOF + (random >> 33) % (i % 2 ? 64 * 4 : 30000);
        hit(PROXY_FLIP, false, i % 4 / 2, at, i % 3 != 0, NULL);
    }
    for (uint64_t at = AFTER_PROOF; at < AFTER_PROOF + 64;
         at += fleet_long() ? 1 : 13) { /* of a JOIN, a ROSTER */
        hit(PROXY_FLIP, false, false, at, true, NULL);
        hit(PROXY_FLIP, false, true, at, false, NULL);
    }
}

static void edit_once(const proxy_flow *f, uint8_t *head) {
    proxy *x = proxy_now;
    int at = (int)x->at - (f->messages == 2 ? DTI_HELLO_BYTES : 0);
    bool here = f->messages == 2 ? at >= 0 : f->messages == 1 && at < DTI_HELLO_BYTES;
    if (here && !f->control && f->answers == x->answers && !atomic_exchange(&x->done, 1))
        head[at] ^= x->mask;
}

static void summing_a_little(proc *p) {
    mate *m = &p->m;
    static int32_t x[9000];
    if (!proc_join(p))
        return;
    for (int i = 0; i < 3; i++) {
        x[0] = x[8999] = m->rank;
        proc_note(p, dt_comm_all_reduce(m->comm, x, x, 9000, DT_I32, DT_COMM_SUM));
        EXPECT(m, p->result == DT_OK && x[0] == 3 && x[8999] == 3);
    }
}

/* Hello and proof of a connection for data, of the two sides. Every field is in the transcript, so
 * the connection is refused; another one is tried. The acceptor's proof is the exception: with it
 * the connection has begun, and its end is an end. */
TEST(hostile_bits_flipped_in_the_handshake_of_data_cost_one_connection) {
    hit(PROXY_FLIP, false, true, 170, true, NULL);
    for (int at = 0; at < AFTER_PROOF; at += fleet_long() ? 1 : 17)
        for (int answers = 0; answers < (at < DTI_HELLO_BYTES ? 2 : 1); answers++) {
            fleet *f = fleet_new(3);
            proxy *x = proxy_new();
            f->desc.shared_memory = DT_COMM_SHARED_OFF; /* the proxy is of TCP */
            x->answers = answers;
            x->at = (uint64_t)at;
            x->mask = (uint8_t)(1u << at % 8);
            x->edit = edit_once;
            f->seconds = 20;
            proxy_start(x);
            fleet_run(f, summing_a_little);
            test_check(atomic_load(&x->done), __FILE__, __LINE__, "byte %d", at);
            proxy_end(x);
            fleet_free(f);
        }
}

/* Connections, of data and of control, are reset at random bytes all the time. */
static void sum_while_reset(proc *p) {
    enum { N = 120000 };
    mate *m = &p->m;
    dt_comm_info info;
    int32_t *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), go = 1;
    if (!proc_join(p))
        return;
    for (int round = 0; go && !m->failed_line; round++) {
        static const int counts[] = {1, 300, 1500, 20000, N};
        int count = counts[round % 5], sum = m->size * (m->size - 1) / 2;
        bool in_place = round % 2;
        for (int i = 0; i < count; i++)
            x[i] = m->rank + i * 7 + round;
        dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                         .in = x,
                         .out = in_place ? x : y,
                         .count = (uint64_t)count,
                         .dtype = DT_I32,
                         .algorithm = (dt_comm_algorithm)(round % 6)};
        EXPECT(m, !dt_comm_run(m->comm, &op));
        memset(in_place ? y : x, 0x55, (size_t)count * sizeof *x); /* they are ours again at once */
        const int32_t *got = in_place ? x : y;
        for (int i = 0; i < count; i++)
            EXPECT(m, got[i] == sum + m->size * (i * 7 + round));
        memset(x, 0x55, (size_t)count * sizeof *x);
        EXPECT(m, !dt_comm_broadcast(m->comm, y, (uint64_t)count, DT_I32, round % m->size));
        go = atomic_load(&proxy_now->done) < proxy_now->resets;
        EXPECT(m, !dt_comm_broadcast(m->comm, &go, 1, DT_I32, 0));
        p->numbers[1]++;
    }
    dt_comm_get_info(m->comm, &info);
    p->numbers[0] = info.resets;
    free(x), free(y);
}

TEST(hostile_resets_cost_nothing_but_time) {
    for (int how = 0; how < 4; how++) {
        static const dt_comm_integrity modes[] = {DT_COMM_CRC, DT_COMM_CRC, DT_COMM_MAC,
                                                  DT_COMM_TLS};
        fleet *f = fleet_new(how % 2 ? 2 : 4);
        proxy *x = proxy_new();
        uint64_t seen = 0;
#ifndef DT_WITH_OPENSSL
        if (how > 1)
            break;
#endif
        x->deed = PROXY_RESETS;
        x->resets = fleet_long() ? 1000 : 25;
        x->sealed = true;
        f->desc.integrity = modes[how];
        f->desc.sockets = how == 1 ? 3 : 1;
        f->desc.shared_memory = DT_COMM_SHARED_OFF;
        f->desc.window = 1 + how;
        f->desc.chunk_bytes = 16 << 10; /* a connection lives long enough for a whole frame */
        f->seconds = 500;
        proxy_start(x);
        fleet_run(f, sum_while_reset);
        for (int r = 0; r < f->count; r++)
            seen += f->at[r].numbers[0];
        CHECK(atomic_load(&x->done) >= x->resets && seen > (uint64_t)x->resets / 4);
        if (getenv("DTRAIN_TEST_TIMES"))
            printf("  %d resets, %d seen by ranks, in %d rounds\n", atomic_load(&x->done),
                   (int)seen, (int)f->at[0].numbers[1]);
        proxy_end(x);
        fleet_free(f);
    }
}

TEST(hostile_silence_is_detected_by_all) {
    hit(PROXY_STALL, false, false, 5000, true, NULL); /* one direction of a pair of three */
    hit(PROXY_STALL, false, true, 5000, true, NULL);
}

static void dribbled(proc *p) {
    if (!proc_join(p))
        return;
    groups(&p->m);
    pairs(&p->m);
}

TEST(hostile_networks_that_pass_byte_by_byte_change_nothing) {
    fleet *f = fleet_new(3);
    proxy *x = proxy_new();
    f->desc.shared_memory = DT_COMM_SHARED_OFF; /* the proxy is of TCP */
    x->deed = PROXY_DRIBBLE;
    x->dialler = 2;
    x->acceptor = 1;
    f->desc.chunk_bytes = 4096;
    proxy_start(x);
    fleet_run(f, dribbled);
    CHECK(atomic_load(&x->done));
    proxy_end(x);
    fleet_free(f);
}

static bool is_late_heartbeat(const proxy_flow *f, const uint8_t *head) {
    return f->control && f->dialler == 2 && f->messages > 8 && head[5] == DTI_FRAME_HEARTBEAT;
}

static void edit_heartbeat_length(const proxy_flow *f, uint8_t *head) {
    if (is_late_heartbeat(f, head))
        head[41] ^= 8;
}

static void edit_heartbeat_magic(const proxy_flow *f, uint8_t *head) {
    if (is_late_heartbeat(f, head))
        head[0] ^= 8;
}

static uint64_t hit_heartbeats(void (*edit)(const proxy_flow *f, uint8_t *head)) {
    const uint64_t start = dti_now_ns();
    hit(PROXY_PASS, true, false, 0, true, edit);
    hit(PROXY_PASS, true, true, 0, false, edit);
    return dti_now_ns() - start;
}

/* Of a heartbeat: nothing else comes that would fill the length that it then has. The first limit
 * is the time that this machine needs to see damage that shows at once. The second is the silence
 * of 1 s, which it must not need. */
TEST(hostile_lengths_of_heartbeats_do_not_make_a_rank_wait) {
    bool quick = false; /* a machine that is busy may be slow in one of both */
    for (int i = 0; i < 4 && !quick; i++) {
        const uint64_t at_once = hit_heartbeats(edit_heartbeat_magic);
        quick = hit_heartbeats(edit_heartbeat_length) < at_once + 1000000000u;
    }
    CHECK(quick);
}

/* Headers that are changed and given the checksum that fits. Without a key the receiver has no
 * other check. The frame's content must be impossible for it, or it is believed, which is the
 * meaning of insecure. With a key the tag shows it. */
static void edit_epoch(const proxy_flow *f, uint8_t *head) {
    if (f->control || f->dialler != 2 || f->answers || f->messages != 8)
        return;
    head[8] ^= 4;
    memset(head + DTI_TAG_AT, 0, DTI_TAG_BYTES);
    dti_put32(head + DTI_TAG_AT, dti_crc32c(0, head, DTI_TAG_AT));
}

static void edit_group(const proxy_flow *f, uint8_t *head) {
    if (f->control || f->dialler != 2 || f->answers || f->messages != 8)
        return;
    head[12] ^= 8;
    memset(head + DTI_TAG_AT, 0, DTI_TAG_BYTES);
    dti_put32(head + DTI_TAG_AT, dti_crc32c(0, head, DTI_TAG_AT));
}

static void edit_stream(const proxy_flow *f, uint8_t *head) {
    if (f->control || f->dialler != 2 || f->answers || f->messages < 8 || head[5] != DTI_FRAME_DATA)
        return;
    head[25] ^= 8;
    memset(head + DTI_TAG_AT, 0, DTI_TAG_BYTES);
    dti_put32(head + DTI_TAG_AT, dti_crc32c(0, head, DTI_TAG_AT));
}

TEST(hostile_headers_with_the_right_checksum_are_detected) {
    hit(PROXY_PASS, false, false, 0, true, edit_epoch);
    hit(PROXY_PASS, false, false, 0, true, edit_group);
    hit(PROXY_PASS, false, false, 0, true, edit_stream);
    hit(PROXY_PASS, false, false, 0, false, edit_stream);
}

/* ---- handshakes by who has the key, who has not, and who has listened */

typedef struct shake {
    uint8_t hello[DTI_HELLO_BYTES], answer[DTI_HELLO_BYTES], proof[DTI_PROOF_BYTES];
} shake;

static bool receive_all(int s, void *to, size_t bytes) {
    return recv(s, to, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* What a dialler with the key answers to `answer`. */
static void shake_prove(shake *k) {
    uint8_t key[32], auth[32], text[14 + 32];
    dti_hmac_key prepared;
    dti_sha256 hash;
    dti_key_from_hex(FLEET_KEY, 64, key);
    dti_hkdf(key, 32, NULL, 0, "dtrain1 auth", 12, auth, sizeof auth);
    dti_hmac_prepare(&prepared, auth, sizeof auth);
    memcpy(text, "dtrain1 client", 14);
    dti_sha256_init(&hash);
    dti_sha256_add(&hash, k->hello, DTI_HELLO_BYTES);
    dti_sha256_add(&hash, k->answer, DTI_HELLO_BYTES);
    dti_sha256_end(&hash, text + 14);
    dti_put32(k->proof, DTI_MAGIC_PROOF);
    dti_hmac(&prepared, text, sizeof text, k->proof + 4);
    dti_put32(k->proof + DTI_PROOF_SUM_AT, dti_crc32c(0, k->proof, DTI_PROOF_SUM_AT));
}

static void shake_hello(const proc *p, uint8_t *h) {
    memset(h, 0, DTI_HELLO_BYTES);
    dti_put32(h, DTI_MAGIC_HELLO);
    h[4] = h[5] = DTI_WIRE_VERSION;
    dti_put32(h + 8, 2);
    dti_put32(h + 16, 3);
    dti_put16(h + 82, 1);
    dti_random_bytes(h + 32, 32);
    memcpy(h + 96, p->all->desc.job, 64);
    hello_sum(h);
}

/* Sends `sent` as hello; the transcript has k->hello. Whether rank 0 proves that it took it. */
static bool shake_hands(int port, shake *k, const uint8_t *sent, const uint8_t *proof) {
    uint8_t last[DTI_PROOF_BYTES] = {0};
    int s = raw_dial(port);
    send(s, sent, DTI_HELLO_BYTES, MSG_NOSIGNAL);
    bool taken =
        receive_all(s, k->answer, DTI_HELLO_BYTES) && dti_get32(k->answer) == DTI_MAGIC_HELLO;
    if (taken) {
        shake_prove(k);
        send(s, proof ? proof : k->proof, DTI_PROOF_BYTES, MSG_NOSIGNAL);
        taken = receive_all(s, last, sizeof last) && dti_get32(last) == DTI_MAGIC_PROOF;
    }
    close(s);
    return taken;
}

/* Rank 0 and 1 wait for rank 2, as which process 3 comes. */
static void shaking(proc *p) {
    mate *m = &p->m;
    int port = (int)p->all->at[0].numbers[7];
    shake k, other;
    if (p->index == 2)
        proc_await(p, 0, 1);
    if (p->index < 3) {
        int32_t one = 1;
        if (proc_join(p))
            EXPECT(m, !dt_comm_all_reduce(m->comm, &one, &one, 1, DT_I32, DT_COMM_SUM));
        return;
    }
    usleep(100000);
    for (int i = 0; i < DTI_HELLO_BYTES; i++) /* changed on its way: the proof is of another one */
        for (int bit = 0; bit < 8 && i != 6; bit += fleet_long() ? 1 : 3) {
            uint8_t sent[DTI_HELLO_BYTES];
            shake_hello(p, k.hello);
            memcpy(sent, k.hello, sizeof sent);
            sent[i] ^= (uint8_t)(1u << bit);
            if (i / 4 != DTI_HELLO_SUM_AT / 4 && bit) /* by who knows the checksum */
                hello_sum(sent);
            bool taken = shake_hands(port, &k, sent, NULL);
            if (!EXPECT(m, !taken))
                snprintf(m->failed, sizeof m->failed, "byte %d of the hello was changed", i);
            p->numbers[0]++;
        }
    static const uint8_t fields[] = {0,  4,  7,  10, 12, 16,
                                     24, 80, 82, 84, 96}; /* of a peer with the key */
    for (size_t i = 0; i < DTI_COUNT(fields); i++) {
        shake_hello(p, k.hello);
        k.hello[fields[i]] ^= 0x40;
        k.hello[5] = k.hello[4];
        hello_sum(k.hello);
        EXPECT(m, !shake_hands(port, &k, k.hello, NULL));
    }
    uint8_t zeros[DTI_PROOF_BYTES] = {0};
    dti_put32(zeros, DTI_MAGIC_PROOF);
    dti_put32(zeros + DTI_PROOF_SUM_AT, dti_crc32c(0, zeros, DTI_PROOF_SUM_AT));
    shake_hello(p, k.hello);
    EXPECT(m, !shake_hands(port, &k, k.hello, zeros));
    /* Spliced, or replayed: a proof that was right, of another connection with the same hello. */
    other = k;
    EXPECT(m, !shake_hands(port, &k, k.hello, other.proof));
    /* Reflected: rank 0's own hello comes back to it, then what it sent. */
    EXPECT(m, !shake_hands(port, &k, other.answer, NULL));
    memcpy(other.hello, k.answer, sizeof other.hello);
    dti_put32(other.hello + 8, 2);
    dti_put32(other.hello + 12, 0);
    hello_sum(other.hello);
    EXPECT(m, !shake_hands(port, &other, other.hello, zeros));
    proc_reach(p, 0);
}

/* That the same hands are taken when nothing is wrong, or the test above could not fail. */
static void shaking_rightly(proc *p) {
    mate *m = &p->m;
    shake k;
    if (p->index == 0)
        EXPECT(m, proc_try(p) != DT_OK); /* a rank that goes again before all are there */
    else if (p->index == 3) {
        usleep(100000);
        shake_hello(p, k.hello);
        EXPECT(m, shake_hands((int)p->all->at[0].numbers[7], &k, k.hello, NULL));
    }
}

TEST(hostile_handshakes_are_refused) {
    for (int right = 0; right < 2; right++) {
        fleet *f = fleet_new(4);
        f->desc.world_size = 3;
        f->desc.join_timeout_ms = right ? 1500 : 30000;
        f->at[0].numbers[7] = (uint64_t)atoi(strrchr(f->desc.rendezvous, ':') + 1);
        fleet_run(f, right ? shaking_rightly : shaking);
        CHECK(right || f->at[3].numbers[0] > 400);
        fleet_free(f);
    }
}
