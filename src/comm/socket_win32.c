/* Sockets of Windows. A SOCKET is a handle, and handles fit into an int. */

#ifdef _WIN32

static const struct dti_socket_error {
    int winsock, number;
    const char *text;
} dti_socket_errors[] = {{WSAEWOULDBLOCK, EAGAIN, "it would block"},
                         {WSAEINPROGRESS, EINPROGRESS, "it is in progress"},
                         {WSAEADDRINUSE, EADDRINUSE, "the address is in use"},
                         {WSAEADDRNOTAVAIL, EADDRNOTAVAIL, "the address is not this host's"},
                         {WSAEACCES, EACCES, "permission denied"},
                         {WSAECONNREFUSED, ECONNREFUSED, "the connection was refused"},
                         {WSAECONNRESET, ECONNRESET, "the connection was reset"},
                         {WSAECONNABORTED, ECONNABORTED, "the connection was ended"},
                         {WSAENOTCONN, ENOTCONN, "it is not connected"},
                         {WSAETIMEDOUT, ETIMEDOUT, "no answer in time"},
                         {WSAENETUNREACH, ENETUNREACH, "the network cannot be reached"},
                         {WSAEHOSTUNREACH, EHOSTUNREACH, "the host cannot be reached"},
                         {WSAEMFILE, EMFILE, "too many sockets"},
                         {WSAENOBUFS, ENOBUFS, "no memory for buffers"},
                         {WSAEAFNOSUPPORT, EAFNOSUPPORT, "this kind of address is not supported"}};

static int dti_socket_number(int winsock) {
    for (size_t i = 0; i < DTI_COUNT(dti_socket_errors); i++)
        if (dti_socket_errors[i].winsock == winsock)
            return dti_socket_errors[i].number;
    return winsock ? EIO : 0;
}

static const char *dti_socket_text(int error) {
    for (size_t i = 0; i < DTI_COUNT(dti_socket_errors); i++)
        if (dti_socket_errors[i].number == error)
            return dti_socket_errors[i].text;
    return strerror(error);
}

static int dti_socket_result(int result) {
    if (result == SOCKET_ERROR)
        errno = dti_socket_number(WSAGetLastError());
    return result;
}

static bool dti_sockets_begin(void) {
    WSADATA data;
    const int error = WSAStartup(MAKEWORD(2, 2), &data);
    errno = dti_socket_number(error);
    return error == 0;
}

static void dti_sockets_end(void) {
    WSACleanup();
}

static int dti_socket_made(SOCKET made, bool stream) {
    u_long one = 1;
    if (made == INVALID_SOCKET)
        return dti_socket_result(SOCKET_ERROR);
    SetHandleInformation((HANDLE)made, HANDLE_FLAG_INHERIT, 0);
    if (stream)
        ioctlsocket(made, (long)FIONBIO, &one);
    return (int)made;
}

static void dti_socket_watch(int s) {
    dti_socket_set(s, IPPROTO_TCP, TCP_NODELAY, 1);
    dti_socket_set(s, SOL_SOCKET, SO_KEEPALIVE, 1);
}

static bool dti_socket_connect(int s, const void *address, socklen_t bytes) {
    if (dti_socket_result(connect((SOCKET)s, (const struct sockaddr *)address, bytes)) == 0)
        return true;
    if (errno == EAGAIN)
        errno = EINPROGRESS;
    return false;
}

static int dti_socket_failed(int s) {
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt((SOCKET)s, SOL_SOCKET, SO_ERROR, (char *)&error, &bytes) != 0)
        error = WSAGetLastError();
    return dti_socket_number(error);
}

static void dti_socket_buffers(const dti_socket_part *parts, int count,
                               WSABUF buffers[DTI_SOCKET_PARTS]) {
    for (int i = 0; i < count; i++) {
        buffers[i].buf = parts[i].data;
        buffers[i].len = (ULONG)DTI_MIN(parts[i].bytes, (size_t)1 << 30);
    }
}

/* It sends pending data by itself. */
static int64_t dti_socket_send(int s, const dti_socket_part *parts, int count, bool more) {
    WSABUF buffers[DTI_SOCKET_PARTS];
    DWORD sent = 0;
    dti_socket_buffers(parts, count, buffers);
    const int result = WSASend((SOCKET)s, buffers, (DWORD)count, &sent, 0, NULL, NULL);
    return dti_socket_result(result) == 0 ? (int64_t)sent : -1;
}

static int64_t dti_socket_receive(int s, const dti_socket_part *parts, int count) {
    WSABUF buffers[DTI_SOCKET_PARTS];
    DWORD got = 0, flags = 0;
    dti_socket_buffers(parts, count, buffers);
    const int result = WSARecv((SOCKET)s, buffers, (DWORD)count, &got, &flags, NULL, NULL);
    return dti_socket_result(result) == 0 ? (int64_t)got : -1;
}

static bool dti_socket_would_block(int error) {
    return error == EAGAIN;
}

static bool dti_socket_is_refused(int error) {
    return error == ECONNREFUSED;
}

/* It takes no empty list. */
static int dti_socket_poll(struct pollfd *polls, size_t count, int timeout_ms) {
    if (count)
        return dti_socket_result(WSAPoll(polls, (ULONG)count, timeout_ms));
    Sleep((DWORD)timeout_ms);
    return 0;
}

DTI_ABSENT(int, dti_descriptor_reserve, (void), -1);
DTI_ABSENT(void, dti_descriptor_give_up, (int *reserve), );

/* ---- a datagram socket that is connected to itself, so it receives from nobody else */

static bool dti_wake_open(int ends[2]) {
    struct sockaddr_in self = {.sin_family = AF_INET};
    socklen_t bytes = sizeof self;
    u_long one = 1;
    const int s = dti_socket_made(socket(AF_INET, SOCK_DGRAM, 0), false);
    ends[0] = ends[1] = s;
    if (s < 0)
        return false;
    self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return dti_socket_result(bind((SOCKET)s, (struct sockaddr *)&self, bytes)) == 0 &&
           dti_socket_result(getsockname((SOCKET)s, (struct sockaddr *)&self, &bytes)) == 0 &&
           dti_socket_result(connect((SOCKET)s, (struct sockaddr *)&self, bytes)) == 0 &&
           dti_socket_result(ioctlsocket((SOCKET)s, (long)FIONBIO, &one)) == 0;
}

static void dti_wake_close(const int ends[2]) {
    if (ends[0] >= 0)
        closesocket((SOCKET)ends[0]);
}

static void dti_wake_write(const int ends[2]) {
    send((SOCKET)ends[1], "", 1, 0);
}

static void dti_wake_drain(const int ends[2]) {
    char drop[64];
    while (recv((SOCKET)ends[0], drop, sizeof drop, 0) > 0) {
    }
}

#endif
