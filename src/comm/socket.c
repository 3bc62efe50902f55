/* Code that sockets of POSIX and of Windows share. */

#if DTI_TCP

#if defined _WIN32 || !defined TCP_CONGESTION
DTI_ABSENT(bool, dti_socket_congestion, (int s, const char *name), (errno = ENOSYS, false));
#endif

#ifndef __linux__
static void dti_congestion_allowed(char *text, size_t room) {
    if (room)
        *text = 0;
}

static bool dti_socket_flow_of(int s, dti_socket_flow *out) {
    memset(out, 0, sizeof *out);
    return false;
}
#endif

static int dti_socket_new(int family, int type) {
    return dti_socket_made(socket(family, type, 0), type == SOCK_STREAM);
}

static void dti_socket_close(int s) {
    int error = errno;
    DTI_SOCKET_CLOSE((dti_socket)s);
    errno = error;
}

static bool dti_socket_name(int s, void *address, socklen_t *bytes) {
    return dti_socket_result(getsockname((dti_socket)s, (struct sockaddr *)address, bytes)) == 0;
}

static bool dti_socket_peer(int s, void *address, socklen_t *bytes) {
    return dti_socket_result(getpeername((dti_socket)s, (struct sockaddr *)address, bytes)) == 0;
}

static bool dti_socket_listen(int s, void *address, socklen_t *bytes) {
    const struct sockaddr *at = (const struct sockaddr *)address;
    return dti_socket_result(bind((dti_socket)s, at, *bytes)) == 0 &&
           dti_socket_result(listen((dti_socket)s, 1024)) == 0 &&
           dti_socket_name(s, address, bytes);
}

static int dti_socket_accept(int s) {
    return dti_socket_made(accept((dti_socket)s, NULL, NULL), true);
}

static void dti_socket_shut(int s) {
    shutdown((dti_socket)s, DTI_SOCKET_SHUT);
}

/* Waits for `events`, until `until` of dti_now_ns(). 0: they are there; DTI_SOCKET_LATE: too late;
 * else an errno. */
static int dti_socket_await(int s, short events, uint64_t until) {
    for (;;) {
        const uint64_t now = dti_now_ns();
        struct pollfd poller = {.fd = s, .events = events};
        if (now >= until)
            return DTI_SOCKET_LATE;
        const uint64_t ms = DTI_MIN((until - now) / 1000000 + 1, 60000u);
        const int ready = dti_socket_poll(&poller, 1, (int)ms);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return errno;
    }
}

/* Sends all of it; as above. */
static int dti_socket_send_all(int s, const void *data, size_t bytes, uint64_t until) {
    dti_socket_part part = {(void *)(uintptr_t)data, bytes};
    while (part.bytes) {
        const int error = dti_socket_await(s, POLLOUT, until);
        const int64_t sent = error ? 0 : dti_socket_send(s, &part, 1, false);
        if (error || (sent < 0 && !dti_socket_would_block(errno)))
            return error ? error : errno;
        part.data = (char *)part.data + DTI_MAX(sent, 0);
        part.bytes -= (size_t)DTI_MAX(sent, 0);
    }
    return 0;
}

#endif
