/* The measuring half of ./build.sh bench comm; tools/bench/bench_comm.py calls it and makes the
 * tables.
 *
 *     dtrun -n N dtbench_comm tcp crc|mac|tls|none MS BYTES...   all-reduce, float32 sum, over TCP
 *                                       crc:ring and the like: by this algorithm
 *     dtrun -n N dtbench_comm raw ADDRESS MS BYTES...    the same bytes over plain sockets, no
 *                                       library (dtbench_comm_raw.h); ADDRESS is rank 0's
 *     dtbench_comm threads N MS BYTES...                 all-reduce of threads, and memcpy
 *     dtrun -n N dtbench_comm tail COUNT 0 BYTES   the slowest ones (dtbench_comm_tail.h)
 *     dtrun -n N dtbench_comm tune MS                    the algorithms and settings for a group
 *
 * Each size is warmed up, then repeated for about MS milliseconds. Every result is one JSON object
 * a line, from rank 0; times are in microseconds, the wall's and the processors', of the rank with
 * the most. The sum is checked outside the timed loop, each element on each rank. A wrong one ends
 * the program with status 1. */
#define _GNU_SOURCE
#define DT_COMM_ONLY
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define REPEATS_LEAST 2 /* of 256 MB at 1 Gbit/s one takes seconds */
#define REPEATS_MOST 20000
#define WARM_TRIES 3     /* the least of them says how often to repeat: one may be disturbed */
#define SLOW_SECONDS 0.5 /* what takes longer is tried once */
#define RANKS_MAX 64     /* that are threads, or on plain sockets */
#define SIZES_MAX 64

typedef struct bench { /* one rank's side of a measurement */
    dt_comm *comm;
    const char *what;
    void (*step)(struct bench *bench); /* once over the first `bytes` of in and out */
    char *in, *out;
    size_t bytes;
    dt_comm_algorithm algorithm;
} bench;

typedef struct request { /* what the command line asks for */
    double budget_s;
    size_t sizes[SIZES_MAX], largest;
    int count;
} request;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Of all its threads. What others do meanwhile does not count, so it compares on a busy machine. */
static double processor_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static _Noreturn void fail(const char *what, const char *why) {
    fprintf(stderr, "dtbench_comm: %s: %s\n", what, why);
    exit(1);
}

static void try(const bench *b, dt_result result, const char *what) {
    if (result)
        fail(what, dt_comm_error(b->comm));
}

/* ---- what is measured */

static dt_comm_op sum_of(const bench *b) {
    return (dt_comm_op){.kind = DT_COMM_ALL_REDUCE,
                        .in = b->in,
                        .out = b->out,
                        .count = b->bytes / 4,
                        .dtype = DT_F32,
                        .algorithm = b->algorithm};
}

static void step_all_reduce(bench *b) {
    dt_comm_op op = sum_of(b);
    try(b, dt_comm_run(b->comm, &op), "all-reduce");
}

static void step_memcpy(bench *b) {
    memcpy(b->out, b->in, b->bytes);
    __asm__ volatile("" : : "r"(b->out) : "memory"); /* it is not to be left out */
}

#include "dtbench_comm_raw.h"

/* ---- measuring */

/* The largest of all ranks, on all of them. */
static void agree(const bench *b, double *values, uint64_t count) {
    try(b, dt_comm_all_reduce(b->comm, values, values, count, DT_F64, DT_COMM_MAX), "agree");
}

static double seconds_of(bench *b, int repeats) {
    try(b, dt_comm_barrier(b->comm), "barrier");
    double begin = now_s();
    for (int i = 0; i < repeats; i++)
        b->step(b);
    return now_s() - begin;
}

/* Small integers, so that the sum of any order is exact. */
static void fill(const bench *b) {
    float *in = (float *)(void *)b->in;
    for (size_t i = 0; i < b->bytes / 4; i++)
        in[i] = (float)(i % 1000 + (size_t)dt_comm_rank(b->comm));
    memset(b->out, 0xFF, b->bytes);
}

static bool is_sum(const bench *b) {
    const float *out = (const float *)(const void *)b->out;
    size_t size = (size_t)dt_comm_size(b->comm), ranks = size * (size - 1) / 2;
    for (size_t i = 0; i < b->bytes / 4; i++)
        if (out[i] != (float)(size * (i % 1000) + ranks))
            return false;
    return true;
}

/* While an operation is under way; beside the loop, for asking takes a lock. */
static double scratch_bytes(bench *b) {
    dt_comm_info info;
    dt_comm_work work;
    dt_comm_op op = sum_of(b);
    try(b, dt_comm_begin(b->comm, &op, &work), "begin");
    dt_comm_get_info(b->comm, &info);
    try(b, dt_comm_wait(b->comm, work, -1), "wait");
    return (double)info.scratch_bytes;
}

static int repeats_in(bench *b, double budget_s) {
    double once = 0, least = 1e9;
    for (int i = 0; i < WARM_TRIES && once < SLOW_SECONDS; i++) {
        once = seconds_of(b, 1);
        agree(b, &once, 1);
        least = once < least ? once : least;
    }
    double wanted = budget_s / (least > 0 ? least : 1e-9);
    int repeats = wanted > REPEATS_MOST ? REPEATS_MOST : (int)wanted;
    return repeats < REPEATS_LEAST ? REPEATS_LEAST : repeats;
}

static void measure(bench *b, double budget_s) {
    enum { WALL, PROCESSOR, ALLOCATIONS, HELD, WRONG, SCRATCH, FACTS };
    double facts[FACTS];
    dt_comm_info before, after;
    bool sums = b->step == step_all_reduce;
    fill(b);
    int repeats = repeats_in(b, budget_s);
    fill(b); /* out has none of the sums that the tries have left */
    dt_comm_get_info(b->comm, &before);
    double processor = processor_s();
    facts[WALL] = seconds_of(b, repeats) / repeats * 1e6;
    facts[PROCESSOR] = (processor_s() - processor) / repeats * 1e6;
    dt_comm_get_info(b->comm, &after);
    facts[ALLOCATIONS] = (double)(after.host_alloc_calls - before.host_alloc_calls);
    facts[HELD] = (double)after.host_bytes;
    facts[WRONG] = sums && !is_sum(b);
    facts[SCRATCH] = sums ? scratch_bytes(b) : 0;
    agree(b, facts, FACTS);
    if (facts[WRONG] > 0)
        fail(b->what, "the sum is WRONG");
    if (dt_comm_rank(b->comm) == 0)
        printf(
            "{\"what\": \"%s\", \"bytes\": %zu, \"us\": %.3f, \"cpu_us\": %.3f, \"repeats\": %d, "
            "\"allocations\": %.0f, \"held_bytes\": %.0f, \"scratch_bytes\": %.0f}\n",
            b->what, b->bytes, facts[WALL], facts[PROCESSOR], repeats, facts[ALLOCATIONS],
            facts[HELD], facts[SCRATCH]);
    fflush(stdout);
}

static void measure_sizes(bench *b, const request *r) {
    for (int i = 0; i < r->count; i++) {
        b->bytes = r->sizes[i];
        measure(b, r->budget_s);
    }
}

/* ---- tune: what is fastest here, as values to set; nothing in the library measures by itself */

#define TUNE_ROUNDS 3 /* the least of them counts */
#define TUNE_ALGORITHMS (DT_COMM_ALGORITHM_HIERARCHICAL + 1)
#define TUNE_BYTES ((size_t)4 << 20) /* that settings are compared at */

/* Microseconds of one sum, the same number on all ranks. */
static double tune_us(bench *b, double budget_s) {
    double least = 1e12, wrong = 0;
    int repeats = repeats_in(b, budget_s / TUNE_ROUNDS);
    for (int round = 0; round < TUNE_ROUNDS; round++) {
        fill(b);
        double us = seconds_of(b, repeats) / repeats * 1e6;
        wrong += !is_sum(b);
        least = us < least ? us : least;
    }
    double facts[2] = {least, wrong};
    agree(b, facts, 2);
    if (facts[1] > 0)
        fail("tune", "the sum is WRONG");
    return facts[0];
}

/* What the library would take; default: none, as it does not exist for this group. */
static dt_comm_algorithm tune_chosen(const bench *b, dt_comm_algorithm asked) {
    dti_base silent;
    dti_base_init(&silent, NULL, NULL);
    dti_collective c = {.op = sum_of(b),
                        .rank = b->comm->rank,
                        .size = b->comm->size,
                        .local = b->comm->local,
                        .each = b->comm->each,
                        .costs = b->comm->costs};
    dt_comm_algorithm chosen;
    c.op.algorithm = asked;
    return dti_algorithm_choose(&silent, &c, &chosen) ? chosen : DT_COMM_ALGORITHM_DEFAULT;
}

/* A line of the table: every algorithm at b->bytes. */
static void tune_size(bench *b, double budget_s) {
    bool tells = dt_comm_rank(b->comm) == 0;
    double least = 1e12;
    dt_comm_algorithm fastest = DT_COMM_ALGORITHM_DEFAULT;
    if (tells)
        printf("%10zu", b->bytes);
    for (int i = DT_COMM_ALGORITHM_DIRECT; i < TUNE_ALGORITHMS; i++) {
        b->algorithm = (dt_comm_algorithm)i;
        double us = tune_chosen(b, b->algorithm) ? tune_us(b, budget_s) : 0;
        if (us > 0 && us < least) {
            least = us;
            fastest = b->algorithm;
        }
        if (tells && us > 0)
            printf(" %12.1f", us);
        else if (tells)
            printf(" %12s", "-");
    }
    b->algorithm = DT_COMM_ALGORITHM_DEFAULT;
    if (tells)
        printf("  %-13s %s\n", dti_algorithm_name(fastest),
               dti_algorithm_name(tune_chosen(b, DT_COMM_ALGORITHM_DEFAULT)));
    fflush(stdout);
}

/* Until the program ends. */
static void get_buffers(bench *b, const request *r) {
    b->in = malloc(r->largest);
    b->out = malloc(r->largest);
    if (!b->in || !b->out)
        fail(b->what, "no memory");
}

/* ---- the commands */

static void join(bench *b, dt_comm_integrity integrity) {
    dt_comm_desc desc = dt_comm_desc_from_env();
    desc.integrity = integrity;
    dt_result result = dt_comm_create(&desc, &b->comm);
    if (result)
        fail("dt_comm_create", b->comm ? dt_comm_error(b->comm) : dt_result_text(result));
}

/* By its name; an unknown one ends the program. */
static dt_comm_algorithm algorithm_of(const char *name) {
    for (int i = DT_COMM_ALGORITHM_DIRECT; i < TUNE_ALGORITHMS; i++)
        if (!strcmp(name, dti_algorithm_name((dt_comm_algorithm)i)))
            return (dt_comm_algorithm)i;
    fail(name, "no algorithm");
}

/* The value that was measured at joining, or was given; to stderr, as the results are JSON. */
static void print_link(const bench *b) {
    dt_comm_info info;
    dt_comm_get_info(b->comm, &info);
    const dt_comm_link *links[] = {&info.link, &info.local_link};
    if (!info.link.latency_ns)
        fputs("links: off; constants choose\n", stderr);
    for (int i = 0; i < 2 && info.link.latency_ns; i++)
        fprintf(stderr, "%s, %s: latency %llu ns, %llu bytes/s, further messages %llu ns\n",
                i ? "within a host" : "links", info.link_measured ? "measured" : "given",
                (unsigned long long)links[i]->latency_ns, (unsigned long long)links[i]->bytes_per_s,
                (unsigned long long)links[i]->message_ns);
}

static int run_tcp(const char *integrity, const request *r) {
    static const char *const names[] = {[DT_COMM_CRC] = "crc",
                                        [DT_COMM_MAC] = "mac",
                                        [DT_COMM_TLS] = "tls",
                                        [DT_COMM_UNCHECKED] = "none"};
    bench b = {.step = step_all_reduce};
    int mode = 0;
    size_t length = strcspn(integrity, ":");
    if (integrity[length])
        b.algorithm = algorithm_of(integrity + length + 1);
    while (mode <= DT_COMM_UNCHECKED &&
           (strlen(names[mode]) != length || strncmp(integrity, names[mode], length) != 0))
        mode++;
    if (mode > DT_COMM_UNCHECKED)
        fail(integrity, "none of crc, mac, tls and none");
    b.what = names[mode];
    join(&b, (dt_comm_integrity)mode);
    if (dt_comm_rank(b.comm) == 0)
        print_link(&b);
    get_buffers(&b, r);
    measure_sizes(&b, r);
    dt_comm_destroy(b.comm);
    return 0;
}

static int run_raw(const char *address, const request *r) {
    bench b = {.what = "raw", .step = step_raw};
    join(&b, DT_COMM_CRC);
    raw_rank = dt_comm_rank(b.comm);
    raw_size = dt_comm_size(b.comm);
    if (raw_size > RANKS_MAX)
        fail("raw", "takes 64 ranks at most");
    get_buffers(&b, r);
    connect_raw(&b, address);
    measure_sizes(&b, r);
    dt_comm_destroy(b.comm);
    return 0;
}

#include "dtbench_comm_tail.h"

/* The group again with other settings, at a place of its own; the first one stays. */
static bool tune_join(const bench *first, bench *b, dt_comm_desc desc, int number) {
    char *tail = strrchr(desc.rendezvous, ':');
    int32_t port = 0;
    if (!strncmp(desc.rendezvous, "tcp://", 6) && tail) {
        struct sockaddr_in at = {.sin_family = AF_INET};
        socklen_t length = sizeof at;
        int end = socket(AF_INET, SOCK_STREAM, 0);
        if (end < 0 || bind(end, (struct sockaddr *)&at, length) != 0 ||
            getsockname(end, (struct sockaddr *)&at, &length) != 0)
            fail("tune", strerror(errno));
        close(end);
        port = ntohs(at.sin_port);
        try(first, dt_comm_broadcast(first->comm, &port, 1, DT_I32, 0), "broadcast");
        snprintf(tail, 8, ":%d", (int)port);
    } else if (!strncmp(desc.rendezvous, "file://", 7)) {
        size_t used = strlen(desc.rendezvous);
        snprintf(desc.rendezvous + used, sizeof desc.rendezvous - used, ".%d", number);
    } else
        return false;
    *b = *first;
    if (dt_comm_create(&desc, &b->comm))
        fail("tune", b->comm ? dt_comm_error(b->comm) : "no memory");
    return true;
}

/* Every combination of settings at TUNE_BYTES. */
static void tune_settings(const bench *first, dt_comm_desc desc, double budget_s) {
    static const int sockets[] = {1, 2, 4}, chunks[] = {64 << 10, 256 << 10}, windows[] = {4, 8};
    double least = 1e12;
    dt_comm_desc best = desc;
    bool tells = dt_comm_rank(first->comm) == 0;
    for (int i = 0; i < 12; i++) {
        bench b;
        desc.sockets = sockets[i / 4];
        desc.chunk_bytes = chunks[i / 2 % 2];
        desc.window = windows[i % 2];
        if (!tune_join(first, &b, desc, i)) {
            if (tells)
                puts("settings are compared where DTRAIN_RDZV is tcp:// or file://");
            return;
        }
        b.bytes = TUNE_BYTES;
        double us = tune_us(&b, budget_s);
        if (tells)
            printf("sockets %d, chunk_bytes %6d, window %d: %10.1f us\n", desc.sockets,
                   desc.chunk_bytes, desc.window, us);
        dt_comm_destroy(b.comm);
        best = us < least ? desc : best;
        least = us < least ? us : least;
    }
    if (tells)
        printf("fastest at 4 MiB: desc.sockets = %d; desc.chunk_bytes = %d; desc.window = %d;\n",
               best.sockets, best.chunk_bytes, best.window);
}

static int run_tune(double budget_s) {
    dt_comm_desc desc = dt_comm_desc_from_env();
    request r = {.budget_s = budget_s, .largest = (size_t)16 << 20};
    bench b = {.what = "tune", .step = step_all_reduce};
    if (dt_comm_create(&desc, &b.comm))
        fail("tune", b.comm ? dt_comm_error(b.comm) : "no memory");
    get_buffers(&b, &r);
    if (dt_comm_rank(b.comm) == 0) {
        print_link(&b);
        printf("all-reduce, float32 sum, %d ranks; microseconds\n%10s", dt_comm_size(b.comm),
               "bytes");
        for (int i = DT_COMM_ALGORITHM_DIRECT; i < TUNE_ALGORITHMS; i++)
            printf(" %12s", dti_algorithm_name((dt_comm_algorithm)i));
        puts("  fastest       default");
    }
    for (b.bytes = 1 << 10; b.bytes <= r.largest; b.bytes *= 4)
        tune_size(&b, budget_s);
    tune_settings(&b, desc, budget_s);
    dt_comm_destroy(b.comm);
    return 0;
}

typedef struct seat { /* a thread's */
    bench bench;
    const request *request;
    pthread_t thread;
} seat;

/* memcpy: each rank its own bytes, all at once, which reads and writes what an all-reduce has to
 * at least. */
static void *run_rank(void *user) {
    seat *s = user;
    get_buffers(&s->bench, s->request);
    for (int copy = 0; copy < 2; copy++) {
        s->bench.what = copy ? "memcpy" : "threads";
        s->bench.step = copy ? step_memcpy : step_all_reduce;
        measure_sizes(&s->bench, s->request);
    }
    return NULL;
}

static int run_threads(const char *ranks, const request *r) {
    static seat seats[RANKS_MAX];
    dt_comm *comms[RANKS_MAX];
    int size = atoi(ranks);
    if (size < 1 || size > RANKS_MAX)
        fail(ranks, "takes 1 to 64 ranks");
    if (dt_comm_create_threads(NULL, size, comms))
        fail("dt_comm_create_threads", dt_comm_error(comms[0]));
    for (int i = 0; i < size; i++) {
        seats[i] = (seat){.bench.comm = comms[i], .request = r};
        if (pthread_create(&seats[i].thread, NULL, run_rank, &seats[i]) != 0)
            fail("threads", "a thread cannot be started");
    }
    for (int i = 0; i < size; i++)
        pthread_join(seats[i].thread, NULL);
    for (int i = 0; i < size; i++)
        dt_comm_destroy(comms[i]);
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(const char *argument, const request *r);
    } commands[] = {
        {"tcp", run_tcp}, {"raw", run_raw}, {"threads", run_threads}, {"tail", run_tail}};
    if (argc == 3 && !strcmp(argv[1], "tune"))
        return run_tune(atof(argv[2]) * 1e-3);
    request r = {.budget_s = argc > 3 ? atof(argv[3]) * 1e-3 : 0};
    for (int i = 4; i < argc && r.count < SIZES_MAX; i++) {
        size_t bytes = strtoull(argv[i], NULL, 10) / 4 * 4;
        if (bytes == 0)
            fail(argv[i], "sizes are 4 bytes and more");
        r.largest = bytes > r.largest ? bytes : r.largest;
        r.sizes[r.count++] = bytes;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands && r.count; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argv[2], &r);
    fputs("usage: dtbench_comm tcp crc|mac|tls|none[:ALGORITHM] MS BYTES...\n"
          "       dtbench_comm raw ADDRESS MS BYTES...\n"
          "       dtbench_comm tail COUNT 0 BYTES\n"
          "       dtbench_comm threads RANKS MS BYTES...\n"
          "       dtbench_comm tune MS\n"
          "All but threads are started by dtrun.\n",
          stderr);
    return 2;
}
