/* A long line that loses packets, between two network namespaces: what ./build.sh bench lossy runs
 * ranks over. Linux, as root.
 *
 *     dtlossy NAMESPACE_A NAMESPACE_B MS PERCENT
 *
 * makes a TUN device wan0 in each, 10.216.0.1 and 10.216.0.2. It passes each IP packet from one to
 * the other MS milliseconds later, but PERCENT of them not at all; always the same ones by number.
 * Says "ready" when packets pass, and ends with its standard input. What does not fit into its
 * queue (as of a router: 2048 packets a direction) is lost too. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define PACKETS 2048
#define PACKET_BYTES 1600

typedef struct packet {
    double due;
    ssize_t bytes;
    char data[PACKET_BYTES];
} packet;

typedef struct direction {
    int from, to;
    uint32_t first, count;
    uint64_t random, lost, passed;
    packet packets[PACKETS];
} direction;

static direction ways[2];

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "dtlossy: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The device belongs to the namespace in which it is made; its descriptor works anywhere. */
static int open_tun(const char *name, int host) {
    char text[256];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(text, sizeof text, "/run/netns/%s", name);
    int space = open(text, O_RDONLY | O_CLOEXEC), tun = -1;
    strcpy(request.ifr_name, "wan0");
    if (space < 0 || setns(space, CLONE_NEWNET) ||
        (tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK)) < 0 || ioctl(tun, TUNSETIFF, &request))
        fail(name);
    close(space);
    snprintf(text, sizeof text,
             "ip addr add 10.216.0.%d/24 dev wan0 && ip link set wan0 txqueuelen 2000 up && "
             "ip link set lo up",
             host);
    if (system(text) != 0)
        fail(text);
    return tun;
}

static bool is_lost(direction *w, double percent) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (double)(w->random >> 11) * 0x1p-53 * 100 < percent;
}

static void take(direction *w, double delay_s, double percent) {
    static char drop[PACKET_BYTES];
    for (;;) {
        bool full = w->count == PACKETS;
        packet *p = &w->packets[(w->first + w->count) % PACKETS];
        ssize_t got = read(w->from, full ? drop : p->data, PACKET_BYTES);
        if (got <= 0)
            return;
        if (full || is_lost(w, percent)) {
            w->lost++;
            continue;
        }
        p->bytes = got;
        p->due = now_s() + delay_s;
        w->count++;
    }
}

/* Seconds until the next one. */
static double give(direction *w) {
    for (; w->count; w->first = (w->first + 1) % PACKETS, w->count--) {
        packet *p = &w->packets[w->first];
        double left = p->due - now_s();
        if (left > 0)
            return left;
        w->passed += write(w->to, p->data, (size_t)p->bytes) == p->bytes;
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fputs("usage: dtlossy NAMESPACE_A NAMESPACE_B MS PERCENT\n", stderr);
        return 2;
    }
    double delay_s = atof(argv[3]) * 1e-3, percent = atof(argv[4]);
    int a = open_tun(argv[1], 1), b = open_tun(argv[2], 2);
    ways[0].from = ways[1].to = a;
    ways[0].to = ways[1].from = b;
    ways[0].random = 88172645463325252u;
    ways[1].random = 1181783497276652981u;
    puts("ready");
    fflush(stdout);
    for (double wait = 1;;) {
        struct pollfd polls[3] = {{a, POLLIN, 0}, {b, POLLIN, 0}, {0, POLLIN, 0}};
        struct timespec limit = {.tv_sec = (time_t)wait,
                                 .tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9)};
        ppoll(polls, 3, &limit, NULL);
        if (polls[2].revents)
            break;
        take(&ways[0], delay_s, percent);
        take(&ways[1], delay_s, percent);
        double one = give(&ways[0]), other = give(&ways[1]);
        wait = one < other ? one : other;
    }
    fprintf(stderr, "passed %llu and %llu packets, lost %llu and %llu\n",
            (unsigned long long)ways[0].passed, (unsigned long long)ways[1].passed,
            (unsigned long long)ways[0].lost, (unsigned long long)ways[1].lost);
    return 0;
}
