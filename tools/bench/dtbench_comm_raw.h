/* Plain sockets for tools/bench/dtbench_comm.c: the bytes of an all-reduce of any number of ranks.
 * They take the number of exchanges that dtrain's default takes, one after another. There are no
 * frames, no sums and no checks. Up to 64 KiB recursive doubling: in each round all bytes both ways
 * with one other rank (the ranks above the largest power of two give theirs first and are given the
 * result). Above, two Nths to and from each other rank, all at once. That is what reduce-scatter
 * and all-gather move together, without waits between them. So no library can be faster by the same
 * bytes. */

#define RAW_DOUBLING_MOST (64u << 10)
#define RAW_SPIN_SECONDS 200e-6

typedef struct raw_exchange { /* with one rank */
    int socket;
    size_t to_send, to_get; /* bytes that are left */
} raw_exchange;

static raw_exchange raw_peers[RANKS_MAX]; /* by rank */
static int raw_rank, raw_size;

/* Whether a call on the non-blocking socket moved nothing; what else goes wrong ends the
 * program. */
static bool moved_nothing(ssize_t moved) {
    if (moved > 0)
        return false;
    if (moved == 0 || (errno != EAGAIN && errno != EINTR))
        fail("raw", moved == 0 ? "the other rank has gone" : strerror(errno));
    return true;
}

/* Once over all; true when something moved. */
static bool raw_move(bench *b, int *left) {
    bool some = false;
    *left = 0;
    for (int i = 0; i < raw_size; i++) {
        raw_exchange *x = &raw_peers[i];
        ssize_t moved;
        if (x->to_send && !moved_nothing(moved = send(x->socket, b->in + b->bytes - x->to_send,
                                                      x->to_send, MSG_DONTWAIT | MSG_NOSIGNAL))) {
            x->to_send -= (size_t)moved;
            some = true;
        }
        if (x->to_get && !moved_nothing(moved = recv(x->socket, b->out + b->bytes - x->to_get,
                                                     x->to_get, MSG_DONTWAIT))) {
            x->to_get -= (size_t)moved;
            some = true;
        }
        *left += x->to_send || x->to_get;
    }
    return some;
}

static void raw_sleep(void) {
    struct pollfd polls[RANKS_MAX];
    nfds_t count = 0;
    for (int i = 0; i < raw_size; i++)
        if (raw_peers[i].to_send || raw_peers[i].to_get)
            polls[count++] =
                (struct pollfd){.fd = raw_peers[i].socket,
                                .events = (short)((raw_peers[i].to_get ? POLLIN : 0) |
                                                  (raw_peers[i].to_send ? POLLOUT : 0))};
    poll(polls, count, 1000);
}

/* Until everything asked for has moved. It spins before it sleeps: a wake-up costs more than a
 * short message. */
static void raw_run(bench *b) {
    double idle_since = 0;
    int left = 1;
    while (left) {
        if (raw_move(b, &left))
            idle_since = 0;
        else if (!left)
            return;
        else if (idle_since == 0)
            idle_since = now_s();
        else if (now_s() - idle_since < RAW_SPIN_SECONDS)
            sched_yield();
        else
            raw_sleep();
    }
}

static void raw_with(bench *b, int peer, size_t to_send, size_t to_get) {
    raw_peers[peer].to_send = to_send;
    raw_peers[peer].to_get = to_get;
    raw_run(b);
}

static void raw_doubling(bench *b) {
    int power = 1;
    while (power * 2 <= raw_size)
        power *= 2;
    if (raw_rank >= power) {
        raw_with(b, raw_rank - power, b->bytes, 0);
        raw_with(b, raw_rank - power, 0, b->bytes);
        return;
    }
    bool helps = raw_rank + power < raw_size;
    if (helps)
        raw_with(b, raw_rank + power, 0, b->bytes);
    for (int distance = 1; distance < power; distance *= 2)
        raw_with(b, raw_rank ^ distance, b->bytes, b->bytes);
    if (helps)
        raw_with(b, raw_rank + power, b->bytes, 0);
}

static void step_raw(bench *b) {
    if (b->bytes <= RAW_DOUBLING_MOST) {
        raw_doubling(b);
        return;
    }
    for (int i = 0; i < raw_size; i++)
        if (i != raw_rank)
            raw_peers[i].to_send = raw_peers[i].to_get = b->bytes * 2 / (size_t)raw_size;
    raw_run(b);
}

/* ---- connecting */

/* The address that packets to `address` leave from. */
static struct in_addr raw_own(const char *address) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(9)};
    socklen_t length = sizeof at;
    int end = socket(AF_INET, SOCK_DGRAM, 0);
    if (end < 0 || inet_pton(AF_INET, address, &at.sin_addr) != 1 ||
        connect(end, (struct sockaddr *)&at, length) != 0 ||
        getsockname(end, (struct sockaddr *)&at, &length) != 0)
        fail("raw", "ADDRESS is none of IPv4 that can be reached");
    close(end);
    return at.sin_addr;
}

/* A rank listens at a port of the system's choice that it sends to all; of each pair the higher
 * rank connects, and says who it is. */
static void connect_raw(const bench *b, const char *address) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = raw_own(address)};
    socklen_t length = sizeof at;
    int32_t all[RANKS_MAX][2];
    int one = 1, end = socket(AF_INET, SOCK_STREAM, 0);
    if (end < 0 || bind(end, (struct sockaddr *)&at, length) || listen(end, RANKS_MAX) ||
        getsockname(end, (struct sockaddr *)&at, &length))
        fail("raw: listen", strerror(errno));
    int32_t own[2] = {(int32_t)at.sin_addr.s_addr, at.sin_port};
    try(b, dt_comm_all_gather(b->comm, own, all, 2, DT_I32), "all-gather");
    for (int i = 0; i < raw_rank; i++) {
        int peer = socket(AF_INET, SOCK_STREAM, 0);
        at.sin_addr.s_addr = (in_addr_t)all[i][0];
        at.sin_port = (in_port_t)all[i][1];
        if (peer < 0 || connect(peer, (struct sockaddr *)&at, sizeof at) ||
            write(peer, &raw_rank, sizeof raw_rank) != sizeof raw_rank)
            fail("raw: connect", strerror(errno));
        raw_peers[i].socket = peer;
    }
    for (int i = raw_rank + 1; i < raw_size; i++) {
        int who = -1, peer = accept(end, NULL, NULL);
        if (peer < 0 || recv(peer, &who, sizeof who, MSG_WAITALL) != sizeof who ||
            who <= raw_rank || who >= raw_size)
            fail("raw: accept", strerror(errno));
        raw_peers[who].socket = peer;
    }
    for (int i = 0; i < raw_size; i++)
        if (i != raw_rank)
            setsockopt(raw_peers[i].socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(end);
}
