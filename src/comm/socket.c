/* What sockets of POSIX and of Windows have in common. */

#if DTI_TCP

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

#endif
