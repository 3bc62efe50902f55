/* Sockets of POSIX. */

#if DTI_POSIX_2008

/* macOS has SO_NOSIGPIPE instead. */
#ifdef MSG_NOSIGNAL
#define DTI_SOCKET_SEND (MSG_NOSIGNAL | MSG_DONTWAIT)
#else
#define DTI_SOCKET_SEND MSG_DONTWAIT
#endif

DTI_ABSENT(bool, dti_sockets_begin, (void), true);
DTI_ABSENT(void, dti_sockets_end, (void), );

static const char *dti_socket_text(int error) {
    return strerror(error);
}

static int dti_socket_result(int result) {
    return result;
}

static int dti_socket_made(int s, bool stream) {
    if (s < 0)
        return -1;
    fcntl(s, F_SETFD, FD_CLOEXEC);
    if (stream)
        fcntl(s, F_SETFL, O_NONBLOCK);
#ifdef SO_NOSIGPIPE
    dti_socket_set(s, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
    return s;
}

static void dti_socket_watch(int s) {
    dti_socket_set(s, IPPROTO_TCP, TCP_NODELAY, 1);
    dti_socket_set(s, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef __linux__
    dti_socket_set(s, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    dti_socket_set(s, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    dti_socket_set(s, IPPROTO_TCP, TCP_KEEPCNT, 3);
    dti_socket_set(s, IPPROTO_TCP, 18 /* TCP_USER_TIMEOUT */, 60000);
#endif
}

static bool dti_socket_connect(int s, const void *address, socklen_t bytes) {
    return connect(s, (const struct sockaddr *)address, bytes) == 0;
}

static int dti_socket_failed(int s) {
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

static struct msghdr dti_socket_message(const dti_socket_part *parts, int count,
                                        struct iovec vectors[DTI_SOCKET_PARTS]) {
    for (int i = 0; i < count; i++)
        vectors[i] = (struct iovec){parts[i].data, parts[i].bytes};
    struct msghdr message = {.msg_iov = vectors};
    message.msg_iovlen = (unsigned)count; /* int on some systems, size_t on others */
    return message;
}

#ifdef MSG_MORE
#define DTI_SOCKET_MORE MSG_MORE
#else
#define DTI_SOCKET_MORE 0
#endif

static int64_t dti_socket_send(int s, const dti_socket_part *parts, int count, bool more) {
    struct iovec vectors[DTI_SOCKET_PARTS];
    const struct msghdr message = dti_socket_message(parts, count, vectors);
    ssize_t sent;
    do
        sent = sendmsg(s, &message, DTI_SOCKET_SEND | (more ? DTI_SOCKET_MORE : 0));
    while (sent < 0 && errno == EINTR);
    return sent;
}

static int64_t dti_socket_receive(int s, const dti_socket_part *parts, int count) {
    struct iovec vectors[DTI_SOCKET_PARTS];
    struct msghdr message = dti_socket_message(parts, count, vectors);
    ssize_t got;
    do
        got = recvmsg(s, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got;
}

static bool dti_socket_would_block(int error) {
    return error == EAGAIN || error == EWOULDBLOCK;
}

static bool dti_socket_is_refused(int error) {
    return error == ECONNREFUSED;
}

static int dti_socket_poll(struct pollfd *polls, size_t count, int timeout_ms) {
    return poll(polls, (nfds_t)count, timeout_ms);
}

static int dti_descriptor_reserve(void) {
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void dti_descriptor_give_up(int *reserve) {
    if (*reserve >= 0)
        close(*reserve);
    *reserve = -1;
}

/* ---- congestion control */

#ifdef TCP_CONGESTION
static bool dti_socket_congestion(int s, const char *name) {
    return setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}
#endif

#ifdef __linux__
/* Root may also set those that are loaded but not allowed. */
static void dti_congestion_allowed(char *text, size_t room) {
    static const char *const paths[] = {"/proc/sys/net/ipv4/tcp_allowed_congestion_control",
                                        "/proc/sys/net/ipv4/tcp_available_congestion_control"};
    int file = open(paths[geteuid() == 0], O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? 0 : read(file, text, room - 1);
    if (file >= 0)
        close(file);
    text[got > 0 ? got : 0] = 0;
    text[strcspn(text, "\n")] = 0;
}

/* linux/tcp.h's struct tcp_info, of which the C libraries' headers have the first part only. */
static bool dti_socket_flow_of(int s, dti_socket_flow *out) {
    enum { ACKED = 120, DELIVERY_RATE = 160, BUSY = 168, END = 176 };
    uint8_t info[END];
    socklen_t bytes = sizeof info, name = sizeof out->congestion;
    memset(out, 0, sizeof *out);
    if (getsockopt(s, IPPROTO_TCP, TCP_INFO, info, &bytes) != 0 || bytes < END ||
        getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, out->congestion, &name) != 0)
        return false;
    out->congestion[sizeof out->congestion - 1] = 0;
    memcpy(&out->acked, info + ACKED, sizeof out->acked);
    memcpy(&out->delivery_rate, info + DELIVERY_RATE, sizeof out->delivery_rate);
    memcpy(&out->busy_us, info + BUSY, sizeof out->busy_us);
    return true;
}
#endif

/* ---- a pipe */

static bool dti_wake_open(int ends[2]) {
    if (pipe(ends) != 0) {
        ends[0] = ends[1] = -1;
        return false;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(ends[i], F_SETFD, FD_CLOEXEC);
        fcntl(ends[i], F_SETFL, O_NONBLOCK);
    }
    return true;
}

static void dti_wake_close(const int ends[2]) {
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
}

static void dti_wake_write(const int ends[2]) {
    ssize_t ignored = write(ends[1], "", 1); /* full: it is awake already */
    (void)ignored;
}

static void dti_wake_drain(const int ends[2]) {
    char drop[64];
    while (read(ends[0], drop, sizeof drop) == (ssize_t)sizeof drop) {
    }
}

#endif
