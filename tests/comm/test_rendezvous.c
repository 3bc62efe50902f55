/* How ranks find rank 0: addresses, ports, files, PyTorch's store. Ranks are forked processes with
 * real sockets on loopback; where it is allowed also in namespaces of their own, with interfaces
 * and names as the tests want them. The store is a small server here, which speaks as PyTorch up to
 * 2.0 and as newer ones; and the real one where python3-torch is installed. */
#include <dirent.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "comm/can.h"
#include "temp.h"

#define MEET_MAX 8
#define MEET_KEY "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"

/* ---- processes that report their results by shared memory */

typedef struct meet_rank {
    dt_result result;
    float sum;
    uint64_t took; /* ns */
    char text[512], log[2048];
} meet_rank;

typedef struct meet {
    int count;
    dt_comm_desc desc[MEET_MAX];
    int rounds; /* groups made one after another, each another attempt */
    meet_rank at[MEET_MAX];
} meet;

static meet *meet_new(int count, const char *rendezvous) {
    meet *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    m->count = count;
    m->rounds = 1;
    for (int i = 0; i < count; i++) {
        dt_comm_desc *d = &m->desc[i];
        d->rank = i;
        d->world_size = d->local_size = count;
        d->local_rank = i;
        d->join_timeout_ms = 20000;
        snprintf(d->key, sizeof d->key, "%s", MEET_KEY);
        snprintf(d->job, sizeof d->job, "meet %d", (int)getpid());
        snprintf(d->rendezvous, sizeof d->rendezvous, "%s", rendezvous);
    }
    return m;
}

static void meet_log(void *user, dt_log_level level, const char *message) {
    meet_rank *r = user;
    size_t used = strlen(r->log);
    (void)level;
    snprintf(r->log + used, sizeof r->log - used, "%s\n", message);
}

static void meet_one(meet *m, int index) {
    meet_rank *r = &m->at[index];
    for (int round = 0; round < m->rounds && !r->result; round++) {
        dt_comm *comm = NULL;
        uint64_t start = dti_now_ns();
        float x = 1;
        m->desc[index].logger = (dt_logger){meet_log, r};
        m->desc[index].attempt += round > 0;
        r->result = dt_comm_create(&m->desc[index], &comm);
        r->took = dti_now_ns() - start;
        if (!r->result)
            r->result = dt_comm_all_reduce(comm, &x, &x, 1, DT_F32, DT_COMM_SUM);
        if (r->result)
            snprintf(r->text, sizeof r->text, "%s", dt_comm_error(comm));
        r->sum = x;
        dt_comm_destroy(comm);
    }
}

/* The files of the test are its own: the child leaves them. */
static pid_t meet_fork(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < TEMP_FILES_MAX; i++) {
            free(temp_files[i]);
            temp_files[i] = NULL;
        }
        *temp_folder = 0;
    }
    return pid;
}

static pid_t meet_start(meet *m, int index) {
    pid_t pid = meet_fork();
    if (pid == 0) {
        alarm(60);
        meet_one(m, index);
        exit(0);
    }
    return pid;
}

static void meet_await(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    test_check(status == 0, __FILE__, __LINE__, "a rank ended with status %x", (unsigned)status);
}

static void meet_run(meet *m) {
    pid_t pids[MEET_MAX];
    for (int i = 0; i < m->count; i++)
        pids[i] = meet_start(m, i);
    for (int i = 0; i < m->count; i++)
        meet_await(pids[i]);
}

#define MEET_CHECK_ALL(m)                                                                          \
    for (int in_i = 0; in_i < (m)->count; in_i++)                                                  \
    test_check((m)->at[in_i].result == DT_OK && (m)->at[in_i].sum == (float)(m)->count, __FILE__,  \
               __LINE__, "rank %d: %d %s", in_i, (int)(m)->at[in_i].result, (m)->at[in_i].text)

static void meet_free(meet *m) {
    munmap(m, sizeof *m);
}

static int meet_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* ---- sockets */

static dti_address meet_loopback(int port) {
    dti_address a;
    dti_loopback(&a);
    dti_address_set_port(&a, port);
    return a;
}

/* A listener at `host`, port or (0) one that is free; -1. */
static int meet_listen(const char *host, int *port) {
    dti_addresses found;
    if (dti_resolve(host, *port, &found))
        return -1;
    int s = dti_listen_at(&found.at[0]);
    *port = dti_address_port(&found.at[0]);
    return s;
}

/* A port that nothing has right now, below those that connections get. */
static int meet_free_port(int many) {
    static int next;
    for (next = next ? next : 21000 + (int)(getpid() % 500) * 16; next < 32000; next += many) {
        int free = 0;
        for (int port = next; port < next + many; port++) {
            int s = meet_listen("127.0.0.1", &port);
            free += s >= 0;
            if (s >= 0)
                close(s);
        }
        if (free == many)
            return (next += many) - many;
    }
    return 0;
}

/* ---- a store */

typedef struct fake_client {
    int fd;
    bool valid, waits;
    size_t bytes;
    uint8_t data[4096];
    char key[256];
} fake_client;

typedef struct fake_store {
    bool newer;
    int entries;
    char keys[16][256], values[16][1024];
    fake_client clients[64];
} fake_store;

static const char *fake_find(const fake_store *s, const char *key) {
    for (int i = 0; i < s->entries; i++)
        if (!strcmp(s->keys[i], key))
            return s->values[i];
    return NULL;
}

/* A byte at a time: the client has to put them together. */
static void fake_send(const fake_client *c, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (send(c->fd, (const uint8_t *)data + i, 1, MSG_NOSIGNAL) != 1)
            return;
}

/* A text at *at; false = not all of it is there. Too long a one ends the connection, as it throws
 * there. */
static bool fake_text(fake_client *c, size_t *at, char *text, size_t room) {
    if (c->bytes < *at + 8)
        return false;
    uint64_t size = dti_get64(c->data + *at);
    if (size >= room) {
        close(c->fd);
        c->fd = -1;
        return false;
    }
    if (c->bytes < *at + 8 + size)
        return false;
    memcpy(text, c->data + *at + 8, (size_t)size);
    text[size] = 0;
    *at += 8 + (size_t)size;
    return true;
}

static void fake_wake(fake_store *s) {
    for (int i = 0; i < 64; i++) {
        fake_client *c = &s->clients[i];
        if (c->fd < 0 || !c->waits || !fake_find(s, c->key))
            continue;
        c->waits = false;
        fake_send(c, "", 1);
    }
}

/* One message; false = not whole. */
static bool fake_message(fake_store *s, fake_client *c) {
    char key[256], value[1024];
    uint8_t number[8];
    size_t at = 1;
    int command = c->bytes ? c->data[0] - s->newer : 99;
    if (s->newer && !c->valid) {
        if (c->bytes < 5 || c->data[0] != 0 || dti_get32(c->data + 1) != 0x3C85F7CE)
            return false;
        c->valid = true;
        at = 5;
    } else if (command == 0) {
        if (!fake_text(c, &at, key, sizeof key) || !fake_text(c, &at, value, sizeof value))
            return false;
        int i = 0;
        while (i < s->entries && strcmp(s->keys[i], key))
            i++;
        s->entries += i == s->entries;
        snprintf(s->keys[i], 256, "%s", key);
        snprintf(s->values[i], 1024, "%s", value);
        fake_wake(s);
    } else if (command == 2) {
        if (!fake_text(c, &at, key, sizeof key))
            return false;
        const char *found = fake_find(s, key);
        dti_put64(number, found ? strlen(found) : 0);
        fake_send(c, number, 8);
        fake_send(c, found ? found : "", found ? strlen(found) : 0);
    } else if (command == 5) {
        at = 9;
        if (c->bytes < 9 || !fake_text(c, &at, c->key, sizeof c->key))
            return false;
        c->waits = true;
        fake_wake(s);
    } else if (command == 6) {
        dti_put64(number, (uint64_t)s->entries);
        fake_send(c, number, 8);
    } else
        return false;
    c->bytes -= at;
    memmove(c->data, c->data + at, c->bytes);
    return true;
}

static void fake_client_read(fake_store *s, fake_client *c) {
    ssize_t got = recv(c->fd, c->data + c->bytes, sizeof c->data - c->bytes, MSG_DONTWAIT);
    if (got == 0) {
        close(c->fd);
        c->fd = -1;
    }
    c->bytes += got > 0 ? (size_t)got : 0;
    while (c->fd >= 0 && fake_message(s, c)) {
    }
}

static void fake_serve(int listener, bool newer) {
    static fake_store s;
    s.newer = newer;
    for (int i = 0; i < 64; i++)
        s.clients[i].fd = -1;
    for (;;) {
        struct pollfd polls[65] = {{.fd = listener, .events = POLLIN}};
        for (int i = 0; i < 64; i++)
            polls[i + 1] = (struct pollfd){.fd = s.clients[i].fd, .events = POLLIN};
        poll(polls, 65, -1);
        for (int i = 0; i < 64; i++)
            if (polls[i + 1].revents && s.clients[i].fd >= 0)
                fake_client_read(&s, &s.clients[i]);
        int free = 0;
        while (free < 63 && s.clients[free].fd >= 0)
            free++;
        s.clients[free] = (fake_client){.fd = polls[0].revents ? accept(listener, NULL, NULL) : -1};
    }
}

static pid_t fake_start(bool newer, int *port) {
    *port = meet_free_port(1);
    int s = meet_listen("127.0.0.1", port);
    pid_t pid = meet_fork();
    if (pid == 0)
        fake_serve(s, newer);
    close(s);
    return pid;
}

static void fake_stop(pid_t pid) {
    if (pid <= 0) /* kill(-1) is every process of the user */
        return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Something that says `text` to each who connects, once it has heard a byte; NULL: says nothing,
 * "": closes. */
static pid_t meet_babbler(const char *text, int *port) {
    *port = meet_free_port(1);
    int s = meet_listen("127.0.0.1", port);
    pid_t pid = meet_fork();
    if (pid == 0)
        for (fcntl(s, F_SETFL, 0);;) {
            char byte;
            int c = accept(s, NULL, NULL);
            if (!text || recv(c, &byte, 1, 0) != 1)
                continue;
            if (send(c, text, strlen(text), MSG_NOSIGNAL) >= 0)
                close(c);
        }
    close(s);
    return pid;
}

/* ---- addresses */

TEST(endpoint_has_a_host_and_a_port_and_perhaps_more_ports) {
    dti_endpoint e;
    CHECK(dti_endpoint_parse("tcp://", "tcp://a.b:80", &e) && !strcmp(e.host, "a.b"));
    CHECK(e.port == 80 && e.ports == 1);
    CHECK(dti_endpoint_parse("tcp://", "tcp://[fe80::1%lo]:65535", &e));
    CHECK(!strcmp(e.host, "fe80::1%lo") && e.port == 65535);
    CHECK(dti_endpoint_parse("tcpstore://", "tcpstore://n1:65530+16", &e));
    CHECK(e.port == 65530 && e.ports == 16);
    CHECK(dti_endpoint_port(&e, 5) == 65535 && dti_endpoint_port(&e, 6) == 61440);
    const char *wrong[] = {
        "a:80",           "tcp://",      "tcp://a",     "tcp://a:",     "tcp://:80",
        "tcp://a:65536",  "tcp://a:-1",  "tcp://a:8x",  "tcp://[]:80",  "tcp://[::1]",
        "tcp://[::1:80",  "tcp://a]:80", "tcp://a:80+", "tcp://a:80+0", "tcp://a:80+65",
        "tcp://a:80+1+1", "tcp://a:+16", "tcp://a: 80", "TCP://a:80",   "tcp://a:000080"};
    for (size_t i = 0; i < DTI_COUNT(wrong); i++)
        test_check(!dti_endpoint_parse("tcp://", wrong[i], &e), __FILE__, __LINE__, "%s", wrong[i]);
    char longest[300];
    snprintf(longest, sizeof longest, "tcp://%0255d:1", 0);
    CHECK(dti_endpoint_parse("tcp://", longest, &e) && strlen(e.host) == 255);
    snprintf(longest, sizeof longest, "tcp://%0256d:1", 0);
    CHECK(!dti_endpoint_parse("tcp://", longest, &e));
}

TEST(interfaces_are_chosen_by_prefix_or_left_out) {
    CHECK(dti_interface_matches("eth,ib", "ib0") && dti_interface_matches("eth,ib", "eth1"));
    CHECK(!dti_interface_matches("eth,ib", "docker0") && !dti_interface_matches("eth0", "eth"));
    CHECK(!dti_interface_matches("^docker,veth", "veth12"));
    CHECK(dti_interface_matches("^docker,veth", "eth0") && dti_interface_matches("^", "lo"));
    CHECK(dti_interface_matches(",,eth", "eth0") && !dti_interface_matches(",", "eth0"));
    dti_addresses list;
    dti_interface_addresses("lo", &list);
    CHECK(list.count >= 1 && dti_address_is_loopback(&list.at[0]));
    dti_interface_addresses("no-such", &list);
    CHECK(list.count == 0);
}

TEST(address_of_a_rank_survives_the_wire_and_text) {
    dti_addresses list = {.count = 0}, back;
    dti_address a = meet_loopback(1234);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    dti_addresses_add(&list, (struct sockaddr *)&a.sock, a.bytes);
    six.sin6_port = htons(65535);
    dti_addresses_add(&list, (struct sockaddr *)&six, sizeof six);
    uint8_t bytes[DTI_ADDRESS_BYTES];
    uint32_t size = dti_addresses_pack(&list, bytes);
    char text[2][64];
    CHECK(size == 7 + 19);
    dti_addresses_unpack(bytes, size, &back);
    REQUIRE(back.count == 2);
    for (int i = 0; i < 2; i++)
        dti_address_text(&back.at[i], text[i]);
    CHECK_STR(text[0], "127.0.0.1:1234");
    CHECK_STR(text[1], "[::1]:65535");
    CHECK(dti_addresses_have(&list, &back.at[0]) && dti_addresses_have(&list, &back.at[1]));
    for (uint32_t cut = 0; cut < size; cut++) { /* never more than is there */
        dti_addresses_unpack(bytes, cut, &back);
        CHECK(back.count == (cut >= 7));
    }
}

TEST(listening_takes_the_first_free_port_of_a_range) {
    int low = meet_free_port(3), first = low;
    int taken = meet_listen("127.0.0.1", &first);
    dti_address a = meet_loopback(0);
    int s = dti_listen_range(&a, low, low + 1);
    CHECK(s >= 0 && dti_address_port(&a) == low + 1);
    dti_address b = meet_loopback(0);
    errno = 0;
    CHECK(dti_listen_range(&b, low, low + 1) == -1 && errno == EADDRINUSE);
    close(s);
    close(taken);
    s = dti_listen_range(&b, 0, 0);
    CHECK(s >= 0 && dti_address_port(&b) > 0);
    close(s);
}

/* ---- rank 0 listens */

typedef struct host_case {
    dti_base base;
    dt_comm_desc desc;
    dti_rendezvous r;
    dt_result result;
} host_case;

/* As rank 0 of `url`. */
static void host_open(host_case *c, const char *url, int local_size) {
    *c = (host_case){.desc = {.world_size = 2, .local_size = local_size, .join_timeout_ms = 1000}};
    snprintf(c->desc.rendezvous, sizeof c->desc.rendezvous, "%s", url);
    snprintf(c->desc.job, sizeof c->desc.job, "job");
    dti_base_init(&c->base, NULL, NULL);
    c->r.desc = &c->desc;
    c->result = dti_rendezvous_place(&c->base, &c->r);
    if (!c->result)
        c->result = dti_rendezvous_listen_first(&c->base, &c->r);
}

static const char *url_of(const char *format, int port) {
    static char url[200];
    snprintf(url, sizeof url, format, port);
    return url;
}

TEST(rank_0_listens_at_the_name_it_was_given) {
    host_case c;
    int port = meet_free_port(1), before = meet_descriptors();
    host_open(&c, url_of("tcp://127.0.0.1:%d", port), 0);
    REQUIRE(c.result == DT_OK && c.r.own.count == 1);
    CHECK(dti_address_is_loopback(&c.r.own.at[0]) && dti_address_port(&c.r.own.at[0]) == port);
    dti_rendezvous_close(&c.r);
    host_open(&c, url_of("tcp://[::1]:%d", port), 0);
    if (c.result == DT_OK) /* no IPv6 in some containers */
        CHECK(c.r.own.count == 1 && c.r.own.at[0].sock.ss_family == AF_INET6);
    dti_rendezvous_close(&c.r);
    CHECK(meet_descriptors() == before);
}

TEST(rank_0_with_a_services_name_listens_at_its_interfaces) {
    host_case c;
    int port = meet_free_port(1);
    host_open(&c, url_of("tcp://192.0.2.1:%d", port), 0); /* nobody's address */
    REQUIRE(c.result == DT_OK && c.r.own.count >= 1);
    for (int i = 0; i < c.r.own.count; i++)
        CHECK(dti_address_port(&c.r.own.at[i]) == port);
    dti_rendezvous_close(&c.r);
    host_open(&c, url_of("tcp://192.0.2.1:%d", port), 2); /* all are here */
    CHECK(c.result == DT_OK && c.r.own.count == 1 && dti_address_is_loopback(&c.r.own.at[0]));
    dti_rendezvous_close(&c.r);
    host_open(&c, url_of("tcp://no-such-name.invalid:%d", port), 2); /* it may come later */
    CHECK(c.result == DT_OK && c.r.own.count == 1);
    dti_rendezvous_close(&c.r);
}

TEST(rank_0_reports_that_its_port_is_in_use) {
    host_case c;
    int port = meet_free_port(1), before = meet_descriptors();
    int taken = meet_listen("127.0.0.1", &port);
    host_open(&c, url_of("tcp://127.0.0.1:%d", port), 0);
    CHECK(c.result == DT_ERROR_IO && c.r.own.count == 0);
    CHECK_CONTAINS(c.base.error, "in use");
    CHECK_CONTAINS(c.base.error, url_of("%d", port));
    dti_rendezvous_close(&c.r);
    host_open(&c, "tcp://127.0.0.1:0", 0);
    CHECK(c.result == DT_ERROR_INVALID);
    close(taken);
    CHECK(meet_descriptors() == before);
}

TEST(rank_0_takes_the_first_free_of_several_ports) {
    host_case c;
    int low = meet_free_port(4), taken[3];
    for (int i = 0, port = low; i < 3; i++, port = low + i)
        taken[i] = meet_listen("127.0.0.1", &port);
    host_open(&c, url_of("tcp://127.0.0.1:%d+4", low), 0);
    REQUIRE(c.result == DT_OK && c.r.own.count == 1);
    CHECK(dti_address_port(&c.r.own.at[0]) == low + 3);
    dti_rendezvous_close(&c.r);
    host_open(&c, url_of("tcp://127.0.0.1:%d+3", low), 0);
    CHECK(c.result == DT_ERROR_IO);
    CHECK_CONTAINS(c.base.error, "all 3 ports");
    dti_rendezvous_close(&c.r);
    for (int i = 0; i < 3; i++)
        close(taken[i]);
}

TEST(rank_without_a_free_port_says_how_many_it_needs) {
    host_case c = {.r.error = EADDRINUSE};
    dt_comm_desc desc = {.rank = 2, .port_low = 29500, .port_high = 29501};
    c.r.desc = &desc;
    CHECK(dti_rendezvous_listened(&c.base, &c.r) == DT_ERROR_IO);
    CHECK_CONTAINS(c.base.error, "rank 2 cannot listen");
    CHECK_CONTAINS(c.base.error, "need a free port for each rank of a host");
    desc.port_low = desc.port_high = 0;
    CHECK(dti_rendezvous_listened(&c.base, &c.r) == DT_ERROR_IO);
    CHECK(!strstr(c.base.error, "DTRAIN_PORT_RANGE"));
}

TEST(rendezvous_of_unknown_form_is_refused) {
    host_case c;
    const char *wrong[] = {"tcp://a",        "tcp://a:b", "file://x",  "tcpstore://a:1+2",
                           "tcpstore://a:0", "pmix:x",    "udp://a:1", "tcpstore://a"};
    for (size_t i = 0; i < DTI_COUNT(wrong); i++) {
        host_open(&c, wrong[i], 0);
        test_check(c.result == DT_ERROR_INVALID, __FILE__, __LINE__, "%s", wrong[i]);
        CHECK_CONTAINS(c.base.error, wrong[i]);
        dti_rendezvous_close(&c.r);
    }
}

TEST(interface_that_matches_nothing_is_an_error) {
    meet *m = meet_new(2, "");
    snprintf(m->desc[0].rendezvous, 256, "file://%s", temp_path("none"));
    snprintf(m->desc[0].interfaces, 128, "no-such");
    meet_one(m, 0);
    CHECK(m->at[0].result == DT_ERROR_IO);
    CHECK_CONTAINS(m->at[0].text, "no-such");
    meet_free(m);
}

/* ---- the others look at several ports */

TEST(several_ports_are_all_tried_and_the_likely_one_in_each_round) {
    host_case c = {.desc = {.rank = 1, .world_size = 2}};
    unsigned seen = 0;
    snprintf(c.desc.rendezvous, sizeof c.desc.rendezvous, "tcp://127.0.0.1:65530+16");
    c.r.desc = &c.desc;
    REQUIRE(dti_rendezvous_place(&c.base, &c.r) == DT_OK);
    for (int i = 0; i < 6; i++) {
        dti_rendezvous_look(&c.r);
        CHECK(c.r.rank0.count == DTI_RENDEZVOUS_CANDIDATES &&
              dti_address_port(&c.r.rank0.at[0]) == 65530);
        for (int k = 0; k < c.r.rank0.count; k++)
            seen |= 1u << c.r.candidate[k];
    }
    CHECK(seen == 0xFFFF);
    dti_rendezvous_connected(&c.r, 0); /* and it was another job */
    dti_rendezvous_look(&c.r);
    CHECK(c.r.candidate[0] == 1 && dti_address_port(&c.r.rank0.at[0]) == 65531);
    dti_rendezvous_look(&c.r);
    CHECK(c.r.candidate[0] == 1);
    for (int i = 0; i < 15; i++) { /* all were others: begins again */
        dti_rendezvous_connected(&c.r, 0);
        dti_rendezvous_look(&c.r);
    }
    CHECK(c.r.candidate[0] == 0);
}

/* ---- file:// */

/* Rank 1 of the same job looks. */
static int file_look(const host_case *zero, uint64_t attempt, const char *job, char why[192]) {
    host_case c = {.desc = zero->desc};
    c.desc.rank = 1;
    c.desc.attempt = attempt;
    snprintf(c.desc.job, sizeof c.desc.job, "%s", job);
    c.r.desc = &c.desc;
    dti_rendezvous_place(&c.base, &c.r);
    dti_rendezvous_look(&c.r);
    memcpy(why, c.r.why, 192);
    return c.r.rank0.count;
}

TEST(rendezvous_file_serves_one_job_and_attempt) {
    host_case c, next;
    char why[192], url[300];
    int before = meet_descriptors();
    snprintf(url, sizeof url, "file://%s", temp_path("rendezvous"));
    host_open(&c, url, 2);
    REQUIRE(c.result == DT_OK);
    CHECK(file_look(&c, 0, "job", why) == 0);
    CHECK_CONTAINS(why, "has not written");
    REQUIRE(dti_rendezvous_publish(&c.base, &c.r) == DT_OK);
    CHECK(file_look(&c, 0, "job", why) == 1);
    CHECK(file_look(&c, 1, "job", why) == 0);
    CHECK_CONTAINS(why, "another job or attempt");
    CHECK(file_look(&c, 0, "jo", why) == 0);
    struct stat file;
    CHECK(stat(dti_rendezvous_path(&c.desc), &file) == 0 && (file.st_mode & 0777) == 0600);
    /* the next run's rank 0 writes over it, and that file stays when the first one closes */
    host_open(&next, url, 2);
    REQUIRE(dti_rendezvous_publish(&next.base, &next.r) == DT_OK);
    dti_rendezvous_close(&c.r);
    CHECK(file_look(&next, 0, "job", why) == 1);
    dti_rendezvous_close(&next.r);
    CHECK(stat(dti_rendezvous_path(&c.desc), &file) != 0 && errno == ENOENT);
    CHECK(meet_descriptors() == before);
}

/* What stands in the file, as rank 1 sees it. */
static int file_with(const char *text, size_t bytes, char why[192]) {
    host_case c = {.desc = {.world_size = 2}};
    snprintf(c.desc.rendezvous, sizeof c.desc.rendezvous, "file://%s",
             temp_write("rendezvous", text, bytes));
    return file_look(&c, 0, "job", why);
}

TEST(file_that_is_not_a_rendezvous_file_is_refused) {
    char why[192], big[2000];
    int before = meet_descriptors();
    CHECK(file_with("dtrain 0 job\ntcp://127.0.0.1:5 tcp://[::1]:6\n", 45, why) == 2);
    CHECK(file_with("dtrain 0 job\ntcp://127.0.0.1:5", 30, why) == 0); /* not whole */
    CHECK(file_with("dtrain 0 job\n\n", 14, why) == 0);
    CHECK(file_with("dtrain 0 job\nx y z tcp:// tcp://a\n", 34, why) == 0);
    CHECK_CONTAINS(why, "no address");
    CHECK(file_with("", 0, why) == 0);
    memset(big, ' ', sizeof big);
    memcpy(big, "dtrain 0 job\ntcp://127.0.0.1:5", 30);
    big[sizeof big - 1] = '\n';
    CHECK(file_with(big, sizeof big, why) == 0);
    for (size_t i = 13; i + 18 < sizeof big; i += 18)
        memcpy(big + i, "tcp://127.0.0.1:5 ", 18);
    big[800] = '\n'; /* more addresses than anyone needs */
    CHECK(file_with(big, 801, why) == DTI_ADDRESSES_MAX);
    CHECK(meet_descriptors() == before);
}

TEST(rendezvous_file_that_cannot_exist_is_an_error_with_the_reason) {
    host_case c;
    char why[192], url[300];
    host_open(&c, "file:///no-such-folder/x", 2);
    CHECK(dti_rendezvous_publish(&c.base, &c.r) == DT_ERROR_IO);
    CHECK_CONTAINS(c.base.error, "No such file or directory");
    dti_rendezvous_close(&c.r);
    host_open(&c, "file:///tmp", 2); /* a folder */
    CHECK(dti_rendezvous_publish(&c.base, &c.r) == DT_ERROR_IO);
    CHECK_CONTAINS(c.base.error, "/tmp");
    CHECK(file_look(&c, 0, "job", why) == 0);
    CHECK_CONTAINS(why, "not a regular file");
    dti_rendezvous_close(&c.r);
    const char *fifo = temp_path("fifo");
    REQUIRE(mkfifo(fifo, 0600) == 0);
    snprintf(url, sizeof url, "file://%s", fifo);
    host_open(&c, url, 2);
    CHECK(file_look(&c, 0, "job", why) == 0); /* does not wait for a writer */
    CHECK_CONTAINS(why, "not a regular file");
    CHECK(dti_rendezvous_publish(&c.base, &c.r) == DT_ERROR_IO); /* nor take its place */
    CHECK_CONTAINS(c.base.error, "it is a FIFO");
    dti_rendezvous_close(&c.r);
}

/* What may be there before: rank 0 replaces and removes only what is empty or of a rank 0. */
TEST(rendezvous_file_that_dtrain_did_not_write_is_neither_replaced_nor_removed) {
    char long_line[2000];
    memset(long_line, 'x', sizeof long_line);
    memcpy(long_line, "dtrain 0 job\n", 13);
    long_line[sizeof long_line - 2] = '\n';
    long_line[sizeof long_line - 1] = 0;
    const struct {
        const char *text;
        bool own;
    } rows[] = {{"", true},
                {"dtrain 0 job\ntcp://127.0.0.1:5\n", true},
                {"dtrain 17 another job\ntcp://[::1]:6 tcp://127.0.0.1:5\n", true},
                {"dtrain 3 \n\n", true},
                {"a thesis\n", false},
                {"\n", false},
                {"dtrain", false},
                {"dtrain is a library\n", false},
                {"dtrain 0 job\ntcp://127.0.0.1:5", false},
                {long_line, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int linked = 0; linked < 2; linked++) {
            host_case c;
            struct stat file;
            char url[300], now[2000], why[192];
            const char *real = temp_write("place", rows[i].text, strlen(rows[i].text));
            const char *path = linked ? temp_path("link_to_place") : real;
            CHECK(chmod(real, 0640) == 0 && (!linked || symlink("place", path) == 0));
            snprintf(url, sizeof url, "file://%s", path);
            host_open(&c, url, 2);
            REQUIRE(c.result == DT_OK);
            const dt_result result = dti_rendezvous_publish(&c.base, &c.r);
            test_check(!result == rows[i].own, __FILE__, __LINE__, "row %d: %s", (int)i,
                       c.base.error);
            if (rows[i].own)
                CHECK(file_look(&c, 0, "job", why) == 1 && stat(real, &file) == 0 &&
                      (file.st_mode & 0777) == 0640);
            else
                CHECK_CONTAINS(c.base.error, path);
            dti_rendezvous_close(&c.r);
            FILE *there = fopen(real, "rb");
            const size_t size = there ? fread(now, 1, sizeof now, there) : 0;
            test_check(!there == rows[i].own, __FILE__, __LINE__, "row %d: the file %s", (int)i,
                       there ? "stays" : "is gone");
            if (there) {
                CHECK(fclose(there) == 0 && size == strlen(rows[i].text) &&
                      !memcmp(now, rows[i].text, size));
            }
            CHECK(!linked || (lstat(path, &file) == 0 && S_ISLNK(file.st_mode)));
            remove(path), remove(real);
        }
}

/* Somebody wrote in it meanwhile, without another name. */
TEST(rendezvous_file_that_has_changed_is_not_removed) {
    host_case c;
    char url[300];
    const char *path = temp_path("changed");
    snprintf(url, sizeof url, "file://%s", path);
    host_open(&c, url, 2);
    REQUIRE(c.result == DT_OK && dti_rendezvous_publish(&c.base, &c.r) == DT_OK);
    FILE *file = fopen(path, "r+b");
    REQUIRE(file && fputs("a thesis", file) >= 0 && fclose(file) == 0);
    dti_rendezvous_close(&c.r);
    CHECK(access(path, F_OK) == 0);
    remove(path);
}

TEST(ranks_join_by_a_file_three_times_and_remove_it) {
    meet *m = meet_new(3, url_of("file:///tmp/dtrain-meet-%d", (int)getpid()));
    const char *path = m->desc[0].rendezvous + 7;
    m->rounds = 3;
    FILE *stale = fopen(path, "w");
    REQUIRE(stale != NULL);
    fprintf(stale, "dtrain 0 meet %d\ntcp://127.0.0.1:%d\n", (int)getpid(), meet_free_port(1));
    fclose(stale);
    meet_run(m);
    MEET_CHECK_ALL(m);
    CHECK(access(path, F_OK) != 0);
    CHECK_CONTAINS(m->at[1].log, "launcher=none rank 1/3 local 1/3 rdzv=file:///tmp/");
    meet_free(m);
}

TEST(address_that_does_not_answer_does_not_delay_the_next) {
    int dead_port = 0, port = meet_free_port(1);
    dti_address a = meet_loopback(0);
    int dead = socket(AF_INET, SOCK_STREAM, 0), fill[4];
    bind(dead, (struct sockaddr *)&a.sock, a.bytes);
    listen(dead, 0); /* with its queue full nothing answers */
    getsockname(dead, (struct sockaddr *)&a.sock, &a.bytes);
    dead_port = dti_address_port(&a);
    for (int i = 0; i < 4; i++) {
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fill[i], (struct sockaddr *)&a.sock, a.bytes);
    }
    meet *m = meet_new(2, url_of("tcp://127.0.0.1:%d", port));
    char text[200];
    int bytes = snprintf(text, sizeof text, "dtrain 0 %s\ntcp://127.0.0.1:%d tcp://127.0.0.1:%d\n",
                         m->desc[0].job, dead_port, port);
    snprintf(m->desc[1].rendezvous, 256, "file://%s", temp_write("two", text, (size_t)bytes));
    meet_run(m);
    MEET_CHECK_ALL(m);
    test_check(m->at[1].took > 1500000000u && m->at[1].took < 5000000000u, __FILE__, __LINE__,
               "joined after %.1f s", (double)m->at[1].took * 1e-9);
    for (int i = 0; i < 4; i++)
        close(fill[i]);
    close(dead);
    meet_free(m);
}

TEST(jobs_that_share_ports_each_find_their_own_rank_0) {
    meet *m = meet_new(6, url_of("tcp://127.0.0.1:%d+16", meet_free_port(16)));
    pid_t pids[6];
    for (int i = 0; i < 6; i++) { /* three jobs of two; no key is needed to distinguish them */
        m->desc[i].rank = m->desc[i].local_rank = i & 1;
        m->desc[i].world_size = m->desc[i].local_size = 2;
        snprintf(m->desc[i].job, sizeof m->desc[i].job, "slurm-%d.%d", i / 4, i / 2);
        m->desc[i].attempt = (uint64_t)(i / 2 == 1);
    }
    for (int i = 5; i >= 0; i--) { /* in the middle job rank 1 waits for rank 0 */
        pids[i] = i == 2 ? 0 : meet_start(m, i);
        usleep(100000);
    }
    usleep(500000);
    pids[2] = meet_start(m, 2);
    for (int i = 0; i < 6; i++)
        meet_await(pids[i]);
    for (int i = 0; i < 6; i++)
        test_check(m->at[i].result == DT_OK && m->at[i].sum == 2 && m->at[i].took < 10000000000u,
                   __FILE__, __LINE__, "%d: after %.1f s %s", i, (double)m->at[i].took * 1e-9,
                   m->at[i].text);
    meet_free(m);
}

TEST(jobs_that_share_ports_still_refuse_a_wrong_key_at_once) {
    meet *m = meet_new(2, url_of("tcp://127.0.0.1:%d+16", meet_free_port(16)));
    m->desc[1].key[0] = '0';
    m->desc[0].join_timeout_ms = 3000;
    meet_run(m);
    CHECK(m->at[1].result == DT_ERROR_REFUSED && m->at[1].took < 2000000000u);
    CHECK_CONTAINS(m->at[1].text, "keys differ");
    meet_free(m);
}

TEST(rendezvous_file_that_leads_to_another_job_is_read_again) {
    meet *m = meet_new(4, url_of("tcp://127.0.0.1:%d", meet_free_port(1)));
    char text[200], path[200];
    pid_t pids[4];
    const char *address = strrchr(m->desc[0].rendezvous, '/') + 1;
    int bytes = snprintf(text, sizeof text, "dtrain 0 mine\ntcp://%s\n", address);
    snprintf(path, sizeof path, "%s", temp_write("reused", text, (size_t)bytes));
    for (int i = 0; i < 4; i++) {
        m->desc[i].rank = m->desc[i].local_rank = i & 1;
        m->desc[i].world_size = m->desc[i].local_size = 2;
        if (i >= 2) {
            snprintf(m->desc[i].job, sizeof m->desc[i].job, "mine");
            snprintf(m->desc[i].rendezvous, 256, "file://%s", path);
        }
    }
    pids[0] = meet_start(m, 0); /* of another job, at the address that the file names */
    usleep(100000);
    pids[3] = meet_start(m, 3);
    usleep(300000);
    pids[2] = meet_start(m, 2);
    pids[1] = meet_start(m, 1);
    for (int i = 0; i < 4; i++)
        meet_await(pids[i]);
    for (int i = 0; i < 4; i++)
        test_check(m->at[i].result == DT_OK && m->at[i].sum == 2, __FILE__, __LINE__, "%d: %s", i,
                   m->at[i].text);
    meet_free(m);
}

/* ---- the launcher's channel */

TEST(launchers_key_is_used_by_ranks_without_a_key_that_want_one) {
    host_case c = {.desc = {.rank = 1, .world_size = 2}};
    char text[200];
    uint8_t key[32] = {0};
    bool have = false;
    c.r.desc = &c.desc;
    snprintf(text, sizeof text, MEET_KEY ";tcp://127.0.0.1:5");
    CHECK(dti_rendezvous_given(&c.base, &c.r, text, key, &have) == DT_OK && have);
    CHECK(key[0] == 0xff && !strcmp(c.r.told, "tcp://127.0.0.1:5"));
    key[0] = 1; /* one of its own stays */
    CHECK(dti_rendezvous_given(&c.base, &c.r, text, key, &have) == DT_OK && key[0] == 1);
    have = false;
    CHECK(dti_rendezvous_given(&c.base, &c.r, ";tcp://127.0.0.1:5", key, &have) ==
          DT_ERROR_REFUSED);
    CHECK(!have);
    CHECK(dti_rendezvous_given(&c.base, &c.r, "abc;tcp://127.0.0.1:5", key, &have) ==
          DT_ERROR_FORMAT);
    CHECK(dti_rendezvous_given(&c.base, &c.r, "-", key, &have) == DT_ERROR_FORMAT && !have);
    memset(text, '0', 64);
    CHECK(dti_rendezvous_given(&c.base, &c.r, text, key, &have) == DT_ERROR_INVALID && !have);
    CHECK_CONTAINS(c.base.error, "all zeros");
    c.desc.insecure = true;
    CHECK(dti_rendezvous_given(&c.base, &c.r, text, key, &have) == DT_OK && !have);
}

TEST(launchers_text_of_many_addresses_fits) {
    host_case c = {.desc = {.world_size = 2}};
    char mine[DTI_RENDEZVOUS_TEXT];
    uint8_t key[32];
    bool have = false;
    c.r.desc = &c.desc;
    for (c.r.own.count = 0; c.r.own.count < DTI_ADDRESSES_MAX; c.r.own.count++) {
        struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(65535)};
        memset(&six.sin6_addr, 0xfd, sizeof six.sin6_addr);
        memcpy(&c.r.own.at[c.r.own.count].sock, &six, sizeof six);
    }
    REQUIRE(dti_rendezvous_mine(&c.base, &c.r, key, &have, mine) == DT_OK && have);
    CHECK(strlen(mine) <= DTI_PMI_TEXT_MAX && strlen(mine) > 64 + 4 * 50);
    CHECK(mine[64] == ';' && mine[strlen(mine) - 1] == '5'); /* the last one is whole */
}

/* ---- tcpstore:// */

static dt_result store_get(int port, int ms, const char *key, char *value, size_t room,
                           char why[192]) {
    dti_kv s;
    dt_result result = dti_kv_open(&s, "127.0.0.1", port, dti_now_ns() + (uint64_t)ms * 1000000);
    if (!result)
        result = dti_kv_get(&s, key, value, room);
    dti_kv_close(&s);
    memcpy(why, s.why, 192);
    return result;
}

static void store_speaks(int port, bool newer) {
    dti_kv s;
    char value[64], why[192];
    uint64_t deadline = dti_now_ns() + 30000000000u;
    int before = meet_descriptors();
    REQUIRE(dti_kv_open(&s, "127.0.0.1", port, deadline) == DT_OK);
    CHECK(s.newer == newer);
    CHECK(dti_kv_set(&s, "/dtrain/job/0", "tcp://1.2.3.4:5") == DT_OK);
    CHECK(dti_kv_set(&s, "/dtrain/job/1", "") == DT_OK);
    CHECK(dti_kv_set(&s, "/dtrain/job/0", "tcp://1.2.3.4:6") == DT_OK); /* again */
    dti_kv_close(&s);
    CHECK(store_get(port, 30000, "/dtrain/job/0", value, sizeof value, why) == DT_OK);
    CHECK_STR(value, "tcp://1.2.3.4:6");
    CHECK(store_get(port, 30000, "/dtrain/job/1", value, sizeof value, why) == DT_OK);
    CHECK_STR(value, "");
    CHECK(store_get(port, 30000, "/dtrain/job/0", value, 15, why) == DT_ERROR_FORMAT);
    CHECK(store_get(port, 300, "/dtrain/job/2", value, sizeof value, why) == DT_ERROR_TIMEOUT);
    CHECK(meet_descriptors() == before);
}

TEST(store_of_both_protocols_takes_and_gives_texts) {
    for (int newer = 0; newer < 2; newer++) {
        int port;
        pid_t pid = fake_start(newer, &port);
        store_speaks(port, newer);
        fake_stop(pid);
    }
}

TEST(a_wrong_rendezvous_store_is_reported_at_once_or_at_the_timeout) {
    char value[64], why[192];
    int port;
    uint64_t start = dti_now_ns();
    pid_t pid = meet_babbler("HTTP/1.1 400 Bad Request\r\nServer: none", &port);
    CHECK(store_get(port, 20000, "/x", value, sizeof value, why) == DT_ERROR_FORMAT);
    CHECK_CONTAINS(why, "not PyTorch's store");
    CHECK(dti_now_ns() - start < 3000000000u);
    fake_stop(pid);
    pid = meet_babbler("", &port);
    CHECK(store_get(port, 500, "/x", value, sizeof value, why) == DT_ERROR_TIMEOUT);
    fake_stop(pid);
    pid = meet_babbler(NULL, &port);
    start = dti_now_ns();
    CHECK(store_get(port, 500, "/x", value, sizeof value, why) == DT_ERROR_TIMEOUT);
    CHECK_CONTAINS(why, "no answer");
    CHECK(dti_now_ns() - start < 1500000000u);
    fake_stop(pid);
    CHECK(store_get(port, 1000, "/x", value, sizeof value, why) == DT_ERROR_TIMEOUT);
    CHECK_CONTAINS(why, "refused");
}

TEST(ranks_join_by_a_store_three_times) {
    for (int newer = 0; newer < 2; newer++) {
        int port;
        pid_t pid = fake_start(newer, &port);
        meet *m = meet_new(4, url_of("tcpstore://127.0.0.1:%d", port));
        m->rounds = 3;
        for (int i = 0; i < 4 && newer; i++) /* by the key file of this host */
            m->desc[i].key[0] = 0;
        meet_run(m);
        MEET_CHECK_ALL(m);
        fake_stop(pid);
        meet_free(m);
    }
}

TEST(ranks_of_another_attempt_wait_for_their_own_rank_0) {
    int port;
    pid_t pid = fake_start(true, &port);
    meet *m = meet_new(2, url_of("tcpstore://127.0.0.1:%d", port));
    meet_run(m);
    MEET_CHECK_ALL(m);
    m->desc[1].attempt = 1;
    m->desc[1].join_timeout_ms = 400;
    meet_one(m, 1);
    CHECK(m->at[1].result == DT_ERROR_TIMEOUT);
    CHECK_CONTAINS(m->at[1].text, "attempt 1");
    CHECK_CONTAINS(m->at[1].text, "has not written its address");
    fake_stop(pid);
    meet_free(m);
}

TEST(store_never_sees_a_key) {
    int port = meet_free_port(1);
    meet *m = meet_new(2, url_of("tcpstore://127.0.0.1:%d", port));
    m->desc[0].key[0] = 0;
    m->desc[0].local_size = 1; /* on several hosts */
    meet_one(m, 0);
    CHECK(m->at[0].result == DT_ERROR_INVALID);
    CHECK_CONTAINS(m->at[0].text, "DTRAIN_SECRET_FILE");
    meet_free(m);
}

TEST(store_of_installed_pytorch_takes_and_gives_texts) {
    if (system("/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null") != 0)
        SKIP("/usr/bin/python3 cannot import torch.distributed");
    char program[400];
    int port = meet_free_port(1);
    snprintf(program, sizeof program,
             "exec /usr/bin/python3 -c 'import torch, time, torch.distributed as d\n"
             "s = d.TCPStore(\"127.0.0.1\", %d, 1, True, wait_for_workers=False)\n"
             "time.sleep(60 * (torch.__version__[:2] != \"1.\") + 60)'",
             port);
    pid_t pid = meet_fork();
    if (pid == 0)
        _exit(execl("/bin/sh", "sh", "-c", program, (char *)NULL));
    dti_kv s;
    bool there = dti_kv_open(&s, "127.0.0.1", port, dti_now_ns() + 30000000000u) == DT_OK;
    CHECK(there);
    dti_kv_close(&s);
    if (there) {
        store_speaks(port, s.newer);
        meet *m = meet_new(4, url_of("tcpstore://127.0.0.1:%d", port));
        m->rounds = 2;
        meet_run(m);
        MEET_CHECK_ALL(m);
        meet_free(m);
    }
    fake_stop(pid);
}

/* ---- in namespaces */

static bool world_run(const char *command) {
    return system(command) == 0;
}

/* Interfaces and names of its own for this process; errno, or 0. */
static int world_enter(const char *hosts) {
    return unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
                   mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mount(hosts, "/etc/hosts", NULL, MS_BIND, NULL) == 0
               ? 0
               : errno;
}

#define WORLD_LINKS                                                                                \
    "ip link set lo up && ip link add d0 type veth peer name d1 && "                               \
    "ip link add e0 type veth peer name e1 && ip addr add 10.9.1.1/24 dev d0 && "                  \
    "ip addr add 10.9.2.1/24 dev e0 && ip addr add fd09::1/64 dev d0 nodad && "                    \
    "ip link set d0 arp off up && ip link set e0 up && ip link set d1 up && ip link set e1 up"

/* Its status reports what it checks. */
static void world_test(void) {
    host_case c;
    dti_addresses list;
    int port = 29500;
    dti_interface_addresses("", &list); /* no loopback, no link-local ones */
    CHECK(list.count == 3);
    dti_interface_addresses("e", &list);
    CHECK(list.count == 1);
    dti_interface_addresses("^e,lo", &list);
    CHECK(list.count == 2);
    dti_address to = {.bytes = sizeof(struct sockaddr_in)}, from;
    to.sock.ss_family = AF_INET;
    ((struct sockaddr_in *)(void *)&to.sock)->sin_addr.s_addr = inet_addr("10.9.2.7");
    dti_address_set_port(&to, 1);
    CHECK(dti_address_towards(&to, &from));
    dti_interface_addresses("e0", &list);
    CHECK(dti_addresses_have(&list, &from));
    host_open(&c, "tcp://here:29500", 0); /* 127.0.1.1 to itself, as Debian has it */
    CHECK(c.result == DT_OK && c.r.own.count == 4);
    dti_rendezvous_close(&c.r);
    host_open(&c, "tcp://127.0.1.1:29500", 0); /* said so */
    CHECK(c.result == DT_OK && c.r.own.count == 1);
    dti_rendezvous_close(&c.r);
    int taken = meet_listen("10.9.1.1", &port); /* on one of the name's addresses */
    host_open(&c, "tcp://both:29500", 0);
    CHECK(c.result == DT_ERROR_IO && c.r.own.count == 0);
    host_open(&c, "tcp://both:29500+2", 0);
    CHECK(c.result == DT_OK && c.r.own.count == 2 && dti_address_port(&c.r.own.at[0]) == 29501);
    dti_rendezvous_close(&c.r);
    close(taken);
    /* IPv6 first, and it is dead: packets vanish */
    meet *m = meet_new(2, "tcp://[::]:1");
    snprintf(m->desc[0].rendezvous, 256, "tcp://10.9.1.1:29500");
    snprintf(m->desc[1].rendezvous, 256, "tcp://dead:29500");
    for (int i = 0; i < 2; i++)
        m->desc[i].local_size = 0;
    meet_run(m);
    MEET_CHECK_ALL(m);
    CHECK(m->at[1].took > 1500000000u && m->at[1].took < 6000000000u);
    /* a name that comes late */
    snprintf(m->desc[1].rendezvous, 256, "tcp://late:29500");
    pid_t zero = meet_start(m, 0), one = meet_start(m, 1);
    usleep(700000);
    world_run("echo '10.9.1.1 late' >> /etc/hosts");
    meet_await(zero);
    meet_await(one);
    MEET_CHECK_ALL(m);
    _exit(test_now.failures ? 1 : 0);
}

TEST(rank_0_is_found_by_interfaces_and_names_of_all_kinds) {
    static const char hosts[] = "127.0.0.1 localhost\n127.0.1.1 here\nfd09::2 dead\n"
                                "10.9.1.1 dead\n10.9.1.1 both\n10.9.2.1 both\n";
    char file[512];
    snprintf(file, sizeof file, "%s", temp_write("hosts", hosts, sizeof hosts - 1));
    pid_t pid = meet_fork();
    if (pid == 0) {
        if (world_enter(file) || !can_run(WORLD_LINKS))
            _exit(2);
        world_test();
    }
    int status = -1;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        SKIP(can_call("unshare or mount", world_enter, file) ? "ip makes no links in a namespace"
                                                             : lacks);
    CHECK(status == 0);
}
