/* A descriptor that a launcher hands down, with a key in it. Files and pipes stay open, so the
 * number never becomes another file's while the environment names it. They close at exec. A file is
 * read from its start, any number of times, by all ranks; a pipe once. */

/* A pipe is filled before this process starts. */
#define DTI_DESCRIPTOR_MS 5000

/* The number of bytes; -1 = cannot be read. */
#if DTI_POSIX_2008
static int dti_descriptor_read(void *user, int descriptor, char *to, size_t room) {
    struct stat file;
    size_t size = 0;
    uint64_t deadline = dti_now_ns() + (uint64_t)DTI_DESCRIPTOR_MS * 1000000;
    if (fstat(descriptor, &file) != 0 || (!S_ISREG(file.st_mode) && !S_ISFIFO(file.st_mode)))
        return -1;
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    if (S_ISREG(file.st_mode)) {
        ssize_t got;
        while ((got = pread(descriptor, to, room, 0)) < 0 && errno == EINTR) {
        }
        return (int)got;
    }
    while (size < room && dti_now_ns() < deadline) {
        struct pollfd poller = {.fd = descriptor, .events = POLLIN};
        int ready = poll(&poller, 1, 100);
        if (ready == 0 || (ready < 0 && errno == EINTR))
            continue;
        ssize_t got = ready < 0 ? -1 : read(descriptor, to + size, room - size);
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return -1;
        if (got == 0)
            break;
        size += got > 0 ? (size_t)got : 0;
    }
    return (int)size;
}

#else

DTI_ABSENT(int, dti_descriptor_read, (void *user, int descriptor, char *to, size_t room), -1);

#endif
