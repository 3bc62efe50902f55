/* A process between ranks, which do not know of it. connect() below is the test program's. It sends
 * connections to ranks of this host to the proxy. The proxy finds the true target by the port that
 * the connection comes from. The proxy knows the protocol's lengths, so a test can change any part
 * of any connection. It does so by a function that sees each message, or by a place in the
 * stream. */
#ifndef DTRAIN_TESTS_PROXY_H
#define DTRAIN_TESTS_PROXY_H

#include <sys/syscall.h>

#define PROXY_PAIRS 256

typedef struct proxy_flow { /* one direction of a connection */
    int from, to;
    bool answers, control, broken; /* answers: from the acceptor; broken: the parsing is over */
    uint32_t dialler, acceptor;
    uint64_t passed; /* bytes, of the whole stream */
    uint32_t messages, body_left, have;
    int pair; /* which connection, in the order of coming */
    uint64_t cut;
    uint8_t head[160];
    uint8_t *record; /* of TLS, `have` bytes of it */
} proxy_flow;

typedef enum proxy_deed {
    PROXY_PASS,
    PROXY_FLIP,
    PROXY_RESET,
    PROXY_RESETS, /* each connection after some bytes, until there were `resets` */
    PROXY_STALL,
    PROXY_DRIBBLE,
    /* of a record of TLS, the `at`th of its direction: */
    PROXY_RECORD_FLIP,
    PROXY_RECORD_SHORT,
    PROXY_RECORD_TWICE
} proxy_deed;

typedef struct proxy {
    int port, listener;
    pid_t pid;
    _Atomic int target_of[65536]; /* by the source port */
    /* What is done to the flow between these ranks from `at` on (of the stream's bytes). */
    proxy_deed deed;
    bool control, answers;
    uint32_t dialler, acceptor;
    uint64_t at;
    int resets;
    uint8_t mask;
    bool sealed; /* TLS: nothing is understood, and the deed is done to connection `dialler` */
    uint32_t mac_bytes; /* between a payload's header and its body */
    /* Or: each message's first bytes, hello, proof or header; may change them. */
    void (*edit)(const proxy_flow *f, uint8_t *head);
    void (*edit_body)(const proxy_flow *f, uint8_t *data, size_t bytes); /* a part of one */
    _Atomic int done; /* the deed has been done */
} proxy;

static proxy *proxy_now; /* through which this process's connections go */

/* Takes the place of the C library's in this program. */
int connect(int fd, const struct sockaddr *to, socklen_t bytes) {
    struct sockaddr_in here = {.sin_family = AF_INET}, there;
    socklen_t size = sizeof here;
    int type = 0;
    socklen_t type_size = sizeof type;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size);
    if (proxy_now && to->sa_family == AF_INET && type == SOCK_STREAM) {
        memcpy(&there, to, sizeof there);
        here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (bind(fd, (struct sockaddr *)&here, sizeof here) == 0 &&
            getsockname(fd, (struct sockaddr *)&here, &size) == 0) {
            atomic_store(&proxy_now->target_of[ntohs(here.sin_port)], ntohs(there.sin_port));
            there.sin_port = htons((uint16_t)proxy_now->port);
            return (int)syscall(SYS_connect, fd, &there, sizeof there);
        }
    }
    return (int)syscall(SYS_connect, fd, to, bytes);
}

/* ---- in the proxy */

static bool proxy_is_meant(const proxy *x, const proxy_flow *f) {
    if (x->sealed)
        return f->pair == (int)x->dialler && f->answers == x->answers;
    return f->messages && f->control == x->control && f->dialler == x->dialler &&
           f->acceptor == x->acceptor && f->answers == x->answers;
}

static void proxy_head(proxy *x, proxy_flow *f) {
    if (f->messages == 0 && dti_get32(f->head) == DTI_MAGIC_HELLO && !f->answers) {
        f->control = f->head[6] == 0;
        f->dialler = dti_get32(f->head + 8);
        f->acceptor = dti_get32(f->head + 12);
    }
    f->broken = f->messages < 2 && dti_get32(f->head) == DTI_MAGIC_REFUSAL;
    f->body_left = f->messages >= 2 ? dti_get32(f->head + 40) : 0;
    if (f->body_left && dti_frame_is_payload(f->head[5]))
        f->body_left += x->mac_bytes;
    f->messages++;
    if (x->edit)
        x->edit(f, f->head);
}

static void proxy_send(int fd, const uint8_t *data, size_t bytes) {
    while (bytes) {
        ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        data += sent;
        bytes -= (size_t)sent;
    }
}

static void proxy_reset(proxy_flow *f) {
    struct linger now = {1, 0};
    setsockopt(f->from, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    setsockopt(f->to, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

/* Where each direction of a connection ends: in its handshake, soon, or later. */
static uint64_t proxy_cut(void) {
    static uint64_t random = 12345;
    static const uint32_t below[] = {400, 3000, 60000, 600000};
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 40) % below[random >> 33 & 3];
}

/* Hands bytes on, with the deed done to them. False: the connection is to be cut. */
static bool proxy_pass(proxy *x, proxy_flow *f, uint8_t *data, size_t bytes) {
    if (x->deed == PROXY_RESETS && f->passed + bytes > f->cut &&
        atomic_load(&x->done) < x->resets) {
        proxy_send(f->to, data, (size_t)(f->cut - DTI_MIN(f->cut, f->passed)));
        atomic_fetch_add(&x->done, 1);
        if (f->cut % 3) /* else both read an end */
            proxy_reset(f);
        return false;
    }
    bool meant = x->deed != PROXY_PASS && proxy_is_meant(x, f);
    bool here = meant && x->at >= f->passed && x->at < f->passed + bytes;
    bool past = meant && f->passed + bytes > x->at;
    size_t before = here ? (size_t)(x->at - f->passed) : 0;
    f->passed += bytes;
    if (here)
        atomic_store(&x->done, 1);
    if (here && x->deed == PROXY_FLIP)
        data[before] ^= x->mask;
    if (past && x->deed == PROXY_STALL)
        return true; /* it goes nowhere */
    if (here && x->deed == PROXY_RESET) {
        proxy_send(f->to, data, before);
        proxy_reset(f);
        return false;
    }
    for (size_t i = 0; past && x->deed == PROXY_DRIBBLE && i < bytes && i < 3000; i++) {
        proxy_send(f->to, data, 1);
        data++, bytes--;
    }
    proxy_send(f->to, data, bytes);
    return true;
}

static size_t proxy_record_bytes(const proxy_flow *f) {
    return f->have < 5 ? 5 : 5 + (size_t)f->record[3] * 256 + f->record[4];
}

/* Hands records on, with the deed done to one. */
static void proxy_records(proxy *x, proxy_flow *f, const uint8_t *data, size_t bytes) {
    f->record = f->record ? f->record : malloc(5 + 65535);
    while (bytes) {
        size_t take = DTI_MIN(bytes, proxy_record_bytes(f) - f->have);
        memcpy(f->record + f->have, data, take);
        f->have += (uint32_t)take;
        data += take, bytes -= take;
        size_t size = proxy_record_bytes(f);
        if (f->have < size)
            continue;
        bool here = proxy_is_meant(x, f) && f->messages == x->at;
        f->messages++;
        f->have = 0;
        if (here)
            atomic_store(&x->done, 1);
        if (here && x->deed == PROXY_RECORD_FLIP)
            f->record[size / 2 + 3] ^= x->mask;
        if (here && x->deed == PROXY_RECORD_TWICE)
            proxy_send(f->to, f->record, size);
        proxy_send(f->to, f->record, size - (here && x->deed == PROXY_RECORD_SHORT));
    }
}

static bool proxy_bytes(proxy *x, proxy_flow *f, uint8_t *data, size_t bytes) {
    if (x->deed >= PROXY_RECORD_FLIP) {
        proxy_records(x, f, data, bytes);
        return true;
    }
    while (bytes) {
        if (f->broken || x->sealed)
            return proxy_pass(x, f, data, bytes);
        if (f->body_left) {
            size_t take = DTI_MIN(bytes, (size_t)f->body_left);
            f->body_left -= (uint32_t)take;
            if (x->edit_body)
                x->edit_body(f, data, take);
            if (!proxy_pass(x, f, data, take))
                return false;
            data += take, bytes -= take;
            continue;
        }
        uint32_t whole = f->messages == 0   ? DTI_HELLO_BYTES
                         : f->messages == 1 ? DTI_PROOF_BYTES
                                            : 64;
        size_t take = DTI_MIN(bytes, (size_t)(whole - f->have));
        memcpy(f->head + f->have, data, take);
        f->have += (uint32_t)take;
        data += take, bytes -= take;
        bool refusal = f->messages < 2 && f->have >= 4 && dti_get32(f->head) == DTI_MAGIC_REFUSAL;
        if (f->have < whole && !refusal)
            continue;
        whole = f->have;
        f->have = 0;
        proxy_head(x, f);
        if (!proxy_pass(x, f, f->head, whole))
            return false;
    }
    return true;
}

static int proxy_dial(proxy *x, int client) {
    struct sockaddr_in peer = {0};
    socklen_t size = sizeof peer;
    if (getpeername(client, (struct sockaddr *)&peer, &size) != 0)
        return -1;
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atomic_load(&x->target_of[ntohs(peer.sin_port)]));
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (syscall(SYS_connect, s, &to, sizeof to) == 0)
        return s;
    close(s);
    return -1;
}

static void proxy_main(proxy *x) {
    static proxy_flow flows[2 * PROXY_PAIRS];
    static struct pollfd polls[2 * PROXY_PAIRS + 1];
    static uint8_t bytes[1 << 16];
    int count = 0, pairs = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        polls[0] = (struct pollfd){.fd = x->listener, .events = POLLIN};
        for (int i = 0; i < count; i++)
            polls[1 + i] = (struct pollfd){.fd = flows[i].from, .events = POLLIN};
        poll(polls, (nfds_t)count + 1, -1);
        int known = count;
        int at = 0;
        while (at < count && (flows[at].from >= 0 || flows[at + 1].from >= 0))
            at += 2;
        if (polls[0].revents && at < 2 * PROXY_PAIRS) {
            int client = accept(x->listener, NULL, NULL), server = proxy_dial(x, client), one = 1;
            setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            if (server < 0)
                close(client);
            else {
                int pair = pairs++;
                flows[at] =
                    (proxy_flow){.from = client, .to = server, .pair = pair, .cut = proxy_cut()};
                flows[at + 1] = (proxy_flow){.from = server,
                                             .to = client,
                                             .answers = true,
                                             .pair = pair,
                                             .cut = proxy_cut()};
                known = at < known ? at : known; /* the entries that were polled there belong to
                                                  * another */
                count = DTI_MAX(count, at + 2);
            }
        }
        for (int i = 0; i < known; i++) {
            proxy_flow *f = &flows[i], *other = &flows[i ^ 1];
            if (!polls[1 + i].revents || f->from < 0)
                continue;
            ssize_t got = recv(f->from, bytes, sizeof bytes, 0);
            if (got > 0 && other->messages && f->answers)
                f->control = other->control, f->dialler = other->dialler,
                f->acceptor = other->acceptor;
            if (got > 0 && proxy_bytes(x, f, bytes, (size_t)got))
                continue;
            if (got == 0) { /* half is over, the other half may go on */
                shutdown(f->to, SHUT_WR);
                f->from = -1;
                if (other->from >= 0)
                    continue;
                close(f->to), close(other->to);
                continue;
            }
            if (got < 0)
                proxy_reset(f);
            close(f->to), close(other->to);
            f->from = other->from = -1;
        }
    }
}

static proxy *proxy_new(void) {
    proxy *x = mmap(NULL, sizeof *x, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    dti_address a = {.bytes = sizeof(struct sockaddr_in)};
    dti_loopback(&a);
    x->port = fleet_free_port(AF_INET);
    dti_address_set_port(&a, x->port);
    x->listener = dti_listen_at(&a);
    return x;
}

/* From here on ranks that are forked go through it. */
static void proxy_start(proxy *x) {
    fflush(stdout);
    proxy_now = x;
    pid_t pid = fork();
    if (pid == 0)
        proxy_main(x);
    x->pid = pid;
}

static void proxy_end(proxy *x) {
    int status;
    proxy_now = NULL;
    if (x->pid > 0) {
        kill(x->pid, SIGKILL);
        waitpid(x->pid, &status, 0);
    }
    close(x->listener);
    munmap(x, sizeof *x);
}

#endif
