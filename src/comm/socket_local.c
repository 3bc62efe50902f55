/* Sockets and memory of one host, on Linux: names in its abstract space, memfd. Some constants are
 * written out, as the C library shows them only under _GNU_SOURCE. */

#if DTI_TCP && DTI_SHARED

#define DTI_F_ADD_SEALS 1033
#define DTI_F_GET_SEALS 1034
#define DTI_SEALS 7     /* its size and its seals stay */
#define DTI_MFD_FLAGS 3 /* close on exec, may be sealed */

/* The boot's id: two machines may have one name, or one machine id. */
static bool dti_boot_id(uint8_t id[DTI_HOST_BYTES]) {
    char text[36];
    uint8_t digest[32];
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, sizeof text);
    if (file >= 0)
        dti_socket_close(file);
    if (got != (ssize_t)sizeof text)
        return false;
    dti_sha256 hash;
    dti_sha256_init(&hash);
    dti_sha256_add(&hash, text, sizeof text);
    dti_sha256_end(&hash, digest);
    memcpy(id, digest, DTI_HOST_BYTES);
    return true;
}

static socklen_t dti_local_address(const uint8_t name[DTI_LOCAL_BYTES], struct sockaddr_un *to) {
    char text[32] = "dtrain-";
    dti_hex_write(name, DTI_LOCAL_BYTES, text + strlen(text));
    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(to->sun_path + 1, text, strlen(text));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(text));
}

static int dti_local_open(const uint8_t name[DTI_LOCAL_BYTES], bool listens) {
    struct sockaddr_un at;
    socklen_t bytes = dti_local_address(name, &at);
    int s = dti_socket_new(AF_UNIX, SOCK_STREAM);
    if (s < 0 || (listens ? dti_socket_listen(s, &at, &bytes) : dti_socket_connect(s, &at, bytes)))
        return s;
    dti_socket_close(s);
    return -1;
}

/* The other side's process; 0: not visible from here; -1: another user's. A process of the same
 * user could write into this one's memory without it too. */
static long dti_local_process(int s) {
    struct {
        pid_t process;
        uid_t user;
        gid_t group;
    } other;
    socklen_t bytes = sizeof other;
    if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &other, &bytes) != 0 || bytes != sizeof other ||
        other.user != geteuid())
        return -1;
    return other.process;
}

/* The other side's end has closed. A process closes its sockets before its number is another's. */
static bool dti_local_has_ended(int s) {
    char byte;
    ssize_t got = recv(s, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && !dti_socket_would_block(errno) && errno != EINTR);
}

/* ---- memory of another process of this user */

static bool dti_local_read(long process, void *to, uint64_t from, size_t bytes) {
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
    return syscall(SYS_process_vm_readv, process, &here, 1ul, &there, 1ul, 0ul) == (long)bytes;
}

/* Whether the system lets us: then it is the address, in the first page, that it does not like. */
static bool dti_local_may_read(long process) {
    char byte;
    return process > 0 && !dti_local_read(process, &byte, 1, 1) && errno == EFAULT;
}

/* Whether others can read it so: a device's memory they cannot. */
static bool dti_local_is_plain(const void *data, size_t bytes) {
    char ends[2];
    struct iovec here = {ends, 2};
    struct iovec there[2] = {{(void *)(uintptr_t)data, 1},
                             {(char *)(uintptr_t)data + bytes - 1, 1}};
    return syscall(SYS_process_vm_readv, (long)getpid(), &here, 1ul, there, 2ul, 0ul) == 2;
}

typedef union dti_passed { /* one descriptor */
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(int))];
} dti_passed;

static int64_t dti_local_send(int s, const dti_socket_part *parts, int count, int passed) {
    struct iovec vectors[DTI_SOCKET_PARTS];
    struct msghdr message = dti_socket_message(parts, count, vectors);
    dti_passed extra = {.room = {0}};
    if (passed >= 0) {
        message.msg_control = &extra;
        message.msg_controllen = sizeof extra;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(head), &passed, sizeof passed);
    }
    ssize_t sent;
    do
        sent = sendmsg(s, &message, DTI_SOCKET_SEND);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* The last of those that came; the others are closed. */
static void dti_local_take(const void *passed, size_t count, int *taken) {
    for (size_t i = 0; i < count; i++) {
        if (*taken >= 0)
            dti_socket_close(*taken);
        memcpy(taken, (const char *)passed + i * sizeof *taken, sizeof *taken);
    }
}

static int64_t dti_local_receive(int s, const dti_socket_part *parts, int count, int *taken) {
    struct iovec vectors[DTI_SOCKET_PARTS];
    struct msghdr message = dti_socket_message(parts, count, vectors);
    dti_passed extra = {.room = {0}}; /* two may fit, for alignment; the system keeps no more */
    message.msg_control = &extra;
    message.msg_controllen = sizeof extra;
    ssize_t got;
    do
        got = recvmsg(s, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    const struct cmsghdr *head = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
        dti_local_take(CMSG_DATA(head), (head->cmsg_len - CMSG_LEN(0)) / sizeof(int), taken);
    return got;
}

/* Memory above a limit of the size of files raises a signal, so the limit is checked before. */
static int dti_memfd_new(size_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        errno = EFBIG;
        return -1;
    }
    int descriptor = (int)syscall(SYS_memfd_create, "dtrain", DTI_MFD_FLAGS);
    if (descriptor >= 0 && (ftruncate(descriptor, (off_t)bytes) != 0 ||
                            fcntl(descriptor, DTI_F_ADD_SEALS, DTI_SEALS) != 0)) {
        dti_socket_close(descriptor);
        return -1;
    }
    return descriptor;
}

static void *dti_memfd_map(int descriptor, size_t bytes) {
    struct stat file;
    const int seals = fcntl(descriptor, DTI_F_GET_SEALS);
    if (seals < 0 || (seals & DTI_SEALS) != DTI_SEALS || fstat(descriptor, &file) != 0 ||
        file.st_size != (off_t)bytes) {
        errno = EINVAL;
        return NULL;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_DONTFORK);
    return memory;
}

static void dti_memfd_unmap(void *memory, size_t bytes) {
    munmap(memory, bytes);
}

#elif DTI_TCP

DTI_ABSENT(bool, dti_boot_id, (uint8_t id[DTI_HOST_BYTES]), false);
DTI_ABSENT(int, dti_local_open, (const uint8_t name[DTI_LOCAL_BYTES], bool listens),
           (errno = ENOSYS, -1));
DTI_ABSENT(long, dti_local_process, (int s), -1);
DTI_ABSENT(bool, dti_local_has_ended, (int s), true);
DTI_ABSENT(bool, dti_local_read, (long process, void *to, uint64_t from, size_t bytes), false);
DTI_ABSENT(bool, dti_local_may_read, (long process), false);
DTI_ABSENT(bool, dti_local_is_plain, (const void *data, size_t bytes), false);
DTI_ABSENT(int64_t, dti_local_send, (int s, const dti_socket_part *parts, int count, int passed),
           (errno = ENOSYS, -1));
DTI_ABSENT(int64_t, dti_local_receive, (int s, const dti_socket_part *parts, int count, int *taken),
           (errno = ENOSYS, -1));
DTI_ABSENT(int, dti_memfd_new, (size_t bytes), (errno = ENOSYS, -1));

DTI_ABSENT(void *, dti_memfd_map, (int descriptor, size_t bytes), (errno = ENOSYS, NULL));
DTI_ABSENT(void, dti_memfd_unmap, (void *memory, size_t bytes), );

#endif
