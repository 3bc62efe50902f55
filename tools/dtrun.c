/* dtrun: starts the ranks of a program on this host.
 *
 *     dtrun -n 4 [--insecure] ./app arguments
 *
 * Each rank gets DTRAIN_RANK and its like, a key that only this job has, and a place to meet. Its
 * lines of output come out with "[rank] " before them. Signals that dtrun gets go on to the ranks;
 * the first rank that fails ends the others, and its status is dtrun's. It knows one host, and it
 * restarts nothing: for more there are torchrun, mpirun, srun and Kubernetes.
 *
 * The ranks meet by a file in a folder of dtrun's own, in which rank 0 writes where it listens. A
 * port that is chosen here and opened there could be taken in between. The key is in a nameless
 * file that the ranks inherit. Unlike a pipe it can be read again: for a second group in one
 * process, and by a script's program. Unlike a variable or a path it can be read by no one else.
 * The folder is locked for as long as dtrun lives. The next dtrun removes this user's folders that
 * are not locked: their dtrun was killed. */
#define _GNU_SOURCE /* memfd_create */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/mman.h>
#include <sys/prctl.h>
#endif

#define RANKS_MAX 512
#define LINE_MAX_BYTES 4096 /* what is longer comes out in pieces */
#define KILL_AFTER_MS 5000

typedef struct stream { /* stdout or stderr of a rank */
    int from, to;       /* from: -1 = ended */
    size_t size;
    char line[LINE_MAX_BYTES];
} stream;

typedef struct job_rank {
    pid_t process; /* 0 = ended */
    stream streams[2];
} job_rank;

static struct job {
    int size, key, wake[2]; /* wake: a signal handler writes a signal's number */
    int locked;             /* the folder; -1 = there is no such one */
    bool insecure;
    char folder[PATH_MAX], rendezvous[PATH_MAX];
    job_rank ranks[RANKS_MAX];
    int status; /* of the first that failed */
    bool failed, killed;
    long long kill_at_ms; /* 0 = nobody is being ended */
} job;

static void complain(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("dtrun: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- arguments */

static const char usage[] =
    "usage: dtrun -n RANKS [--insecure] PROGRAM [ARGUMENTS]\n"
    "Starts RANKS processes of PROGRAM on this host, which find each other by\n"
    "dt_comm_desc_from_env(). Their output gets \"[rank] \" before each line.\n"
    "  -n RANKS     how many, 1 to 512\n"
    "  --insecure   without a key: every user of this host could join\n"
    "Signals go on to all ranks. When a rank fails the others are ended (SIGTERM, after 5 s\n"
    "SIGKILL), and dtrun exits with that rank's status, or with 128 + its signal.\n"
    "A convenience, not a scheduler: one host, no restarts, no binding to cores or devices.\n";

/* The index of the program's name; 0 = wrong arguments, -1 = help was asked for. */
static int read_arguments(int argc, char **argv) {
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        char *end = "x";
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return -1;
        if (!strcmp(argv[i], "--")) {
            i++;
            break;
        }
        if (!strcmp(argv[i], "--insecure")) {
            job.insecure = true;
            continue;
        }
        long size = !strcmp(argv[i], "-n") && i + 1 < argc ? strtol(argv[++i], &end, 10) : 0;
        if (*end || size < 1 || size > RANKS_MAX) {
            complain("%s: not understood; -n takes 1 to %d", argv[i], RANKS_MAX);
            return 0;
        }
        job.size = (int)size;
    }
    if (job.size && i < argc)
        return i;
    complain("%s", job.size ? "which program?" : "how many ranks? (-n 4)");
    return 0;
}

/* ---- what the ranks share */

/* A file without a name; -1 = none can be had. */
static int nameless_file(void) {
#ifdef __linux__
    int memory = memfd_create("dtrain-key", MFD_CLOEXEC);
    if (memory >= 0)
        return memory;
#endif
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/key", job.folder);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0)
        unlink(path);
    return file;
}

static bool make_key(void) {
    unsigned char bytes[32];
    char hex[65];
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    bool ok = random >= 0 && read(random, bytes, sizeof bytes) == (ssize_t)sizeof bytes;
    if (random >= 0)
        close(random);
    for (int i = 0; i < 32 && ok; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    job.key = ok ? nameless_file() : -1;
    ok = job.key >= 0 && write(job.key, hex, 64) == 64;
    memset(bytes, 0, sizeof bytes);
    memset(hex, 0, sizeof hex);
    return ok;
}

#define FOLDER "dtrun." /* and six letters */

/* Of a folder: what ranks and dtrun make in it, and nothing else. */
static void empty_folder(int folder) {
    DIR *list = fdopendir(dup(folder));
    for (const struct dirent *e; list && (e = readdir(list)) != NULL;)
        if (!strcmp(e->d_name, "meet") || !strncmp(e->d_name, "meet.", 5) ||
            !strcmp(e->d_name, "key"))
            unlinkat(folder, e->d_name, 0);
    if (list)
        closedir(list);
}

/* This user's own folder; -1: it is not, or not to be had. */
static int open_folder(int parent, const char *name) {
    struct stat is;
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder >= 0 && fstat(folder, &is) == 0 && is.st_uid == geteuid() && !(is.st_mode & 077))
        return folder;
    if (folder >= 0)
        close(folder);
    return -1;
}

/* Locks end with their process, whatever process has its number later. */
static void remove_left_behind(const char *parent) {
    DIR *list = opendir(parent);
    for (const struct dirent *e; list && (e = readdir(list)) != NULL;) {
        bool named = !strncmp(e->d_name, FOLDER, strlen(FOLDER)) &&
                     strlen(e->d_name) == strlen(FOLDER "XXXXXX");
        int folder = named ? open_folder(dirfd(list), e->d_name) : -1;
        if (folder >= 0 && flock(folder, LOCK_EX | LOCK_NB) == 0) {
            empty_folder(folder);
            unlinkat(dirfd(list), e->d_name, AT_REMOVEDIR);
        }
        if (folder >= 0)
            close(folder);
    }
    if (list)
        closedir(list);
}

/* Another dtrun may regard it as one that was left behind until it is locked. */
static bool lock_folder(void) {
    struct stat is;
    job.locked = open_folder(AT_FDCWD, job.folder);
    if (job.locked >= 0 && (flock(job.locked, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
        fstat(job.locked, &is) == 0 && is.st_nlink)
        return true;
    if (job.locked >= 0)
        close(job.locked);
    job.locked = -1;
    return false;
}

static bool make_folder(void) {
    const char *parent = getenv("TMPDIR");
    parent = parent && *parent == '/' ? parent : "/tmp";
    remove_left_behind(parent);
    for (int tries = 0; tries < 100; tries++) {
        snprintf(job.folder, sizeof job.folder - 16, "%s", parent);
        strcat(job.folder, "/" FOLDER "XXXXXX");
        if (!mkdtemp(job.folder)) {
            job.folder[0] = 0;
            return false;
        }
        if (lock_folder())
            break;
    }
    snprintf(job.rendezvous, sizeof job.rendezvous - 8, "%.*s", (int)sizeof job.rendezvous - 16,
             job.folder);
    strcat(job.rendezvous, "/meet");
    return job.locked >= 0;
}

static void remove_folder(void) {
    if (job.locked >= 0)
        empty_folder(job.locked); /* rank 0 has done so unless it was killed */
    if (job.folder[0] && rmdir(job.folder) != 0 && errno != ENOENT)
        complain("%s: %s", job.folder, strerror(errno));
}

/* ---- ranks */

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* What dtrun was given by a launcher above it would be read as well. */
static void set_environment(int rank) {
    char rendezvous[PATH_MAX + 8];
    snprintf(rendezvous, sizeof rendezvous, "file://%s", job.rendezvous);
    set_number("DTRAIN_RANK", rank);
    set_number("DTRAIN_WORLD_SIZE", job.size);
    set_number("DTRAIN_LOCAL_RANK", rank);
    set_number("DTRAIN_LOCAL_SIZE", job.size);
    setenv("DTRAIN_RDZV", rendezvous, 1);
    setenv("DTRAIN_LAUNCHER", "dtrain", 1);
    unsetenv("DTRAIN_SECRET");
    unsetenv("DTRAIN_SECRET_FILE");
    unsetenv("DTRAIN_SECRET_FD");
    unsetenv("DTRAIN_INSECURE");
    if (job.insecure)
        setenv("DTRAIN_INSECURE", "1", 1);
    else
        set_number("DTRAIN_SECRET_FD", job.key);
}

static void become_rank(int rank, char **command, const int outputs[2], pid_t parent) {
    static const int reset[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE};
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when dtrun itself is killed */
    if (getppid() != parent)
        _exit(1);
#endif
    (void)parent;
    for (size_t i = 0; i < sizeof reset / sizeof *reset; i++)
        signal(reset[i], SIG_DFL);
    setpgid(0, 0); /* a terminal's ^C comes through dtrun, once; what a rank starts ends with it */
    if (rank > 0 || isatty(0)) { /* one reader, and none of a terminal: these are not its group */
        int null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
    }
    dup2(outputs[0], 1);
    dup2(outputs[1], 2);
    if (!job.insecure)
        fcntl(job.key, F_SETFD, 0);
    set_environment(rank);
    execvp(command[0], command);
    int error = errno;
    complain("%s: %s", command[0], strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}

static bool make_pipe(int ends[2]) {
    if (pipe(ends) != 0)
        return false;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    return true;
}

static bool start_rank(int rank, char **command) {
    job_rank *r = &job.ranks[rank];
    int outputs[2], dtrun = getpid();
    for (int i = 0; i < 2; i++) {
        int ends[2];
        if (!make_pipe(ends))
            return false;
        r->streams[i].from = ends[0];
        r->streams[i].to = i + 1;
        outputs[i] = ends[1];
    }
    r->process = fork();
    if (r->process == 0)
        become_rank(rank, command, outputs, dtrun);
    if (r->process > 0)
        setpgid(r->process, r->process); /* the first of the two */
    close(outputs[0]);
    close(outputs[1]);
    return r->process > 0;
}

static void signal_ranks(int number) {
    for (int i = 0; i < job.size; i++)
        if (job.ranks[i].process > 0)
            kill(-job.ranks[i].process, number);
}

static void end_ranks(int status) {
    if (!job.failed)
        job.status = status;
    job.failed = true;
    if (job.kill_at_ms)
        return;
    job.kill_at_ms = now_ms() + KILL_AFTER_MS;
    signal_ranks(SIGTERM);
}

static void reap_ranks(void) {
    for (int i = 0; i < job.size; i++) {
        int status;
        pid_t process = job.ranks[i].process;
        siginfo_t info = {0};
        if (process <= 0 || waitid(P_PID, (id_t)process, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            !info.si_pid)
            continue;
        kill(-process, SIGKILL); /* what it has left behind; until the wait the group is its */
        if (waitpid(process, &status, 0) != process)
            continue;
        job.ranks[i].process = 0;
        if (WIFSIGNALED(status)) {
            if (!job.failed)
                complain("rank %d was ended by signal %d (%s)", i, WTERMSIG(status),
                         strsignal(WTERMSIG(status)));
            end_ranks(128 + WTERMSIG(status));
        } else if (WEXITSTATUS(status) != 0) {
            if (!job.failed)
                complain("rank %d exited with status %d", i, WEXITSTATUS(status));
            end_ranks(WEXITSTATUS(status));
        }
    }
}

static bool ranks_live(void) {
    for (int i = 0; i < job.size; i++)
        if (job.ranks[i].process > 0)
            return true;
    return false;
}

/* ---- output */

/* A reader that is gone ends the ranks' output, not the ranks. */
static void write_all(int to, const char *data, size_t size) {
    while (size > 0) {
        ssize_t written = write(to, data, size);
        if (written < 0 && errno != EINTR)
            return;
        if (written > 0) {
            data += written;
            size -= (size_t)written;
        }
    }
}

/* One write a line, so that lines of different ranks do not mix. */
static void write_line(int rank, stream *s, size_t size) {
    char text[LINE_MAX_BYTES + 32];
    int head = snprintf(text, sizeof text, "[%d] ", rank);
    memcpy(text + head, s->line, size);
    size_t all = (size_t)head + size;
    if (size == 0 || s->line[size - 1] != '\n')
        text[all++] = '\n';
    write_all(s->to, text, all);
    memmove(s->line, s->line + size, s->size - size);
    s->size -= size;
}

static void read_stream(int rank, stream *s) {
    ssize_t got = read(s->from, s->line + s->size, sizeof s->line - s->size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (got > 0)
        s->size += (size_t)got;
    for (char *end; (end = memchr(s->line, '\n', s->size)) != NULL;)
        write_line(rank, s, (size_t)(end - s->line) + 1);
    if (s->size == sizeof s->line || (got <= 0 && s->size > 0))
        write_line(rank, s, s->size);
    if (got <= 0) {
        close(s->from);
        s->from = -1;
    }
}

/* Reads what there is, or waits up to timeout_ms for it. Whether any stream is still open. */
static bool read_streams(int timeout_ms) {
    static struct pollfd polls[2 * RANKS_MAX + 1];
    int open_streams = 0;
    polls[0] = (struct pollfd){.fd = job.wake[0], .events = POLLIN};
    for (int i = 0; i < 2 * job.size; i++) {
        int from = job.ranks[i / 2].streams[i % 2].from;
        polls[i + 1] = (struct pollfd){.fd = from, .events = POLLIN}; /* -1 is passed over */
        open_streams += from >= 0;
    }
    if (poll(polls, (nfds_t)(2 * job.size + 1), timeout_ms) <= 0)
        return false;
    for (int i = 0; i < 2 * job.size; i++)
        if (polls[i + 1].revents)
            read_stream(i / 2, &job.ranks[i / 2].streams[i % 2]);
    return open_streams > 0;
}

/* ---- signals */

static void on_signal(int number) {
    int error = errno;
    unsigned char byte = (unsigned char)number;
    if (write(job.wake[1], &byte, 1) < 0) {
        /* full: dtrun is awake anyway */
    }
    errno = error;
}

static void pass_signals(void) {
    unsigned char number;
    while (read(job.wake[0], &number, 1) == 1) {
        if (number == SIGCHLD)
            continue;
        signal_ranks(number);
        bool ends = number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
        if (ends && !job.kill_at_ms) /* a rank that does not mind it goes in 5 s */
            job.kill_at_ms = now_ms() + KILL_AFTER_MS;
    }
}

static bool catch_signals(void) {
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (!make_pipe(job.wake))
        return false;
    fcntl(job.wake[0], F_SETFL, O_NONBLOCK);
    fcntl(job.wake[1], F_SETFL, O_NONBLOCK);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        sigaction(caught[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    return true;
}

/* ---- all of it */

static void run(void) {
    while (ranks_live()) {
        long long left = job.kill_at_ms ? job.kill_at_ms - now_ms() : 1000;
        if (job.kill_at_ms && left <= 0 && !job.killed) {
            signal_ranks(SIGKILL);
            job.killed = true;
        }
        read_streams(left < 1 || job.killed ? 100 : (int)left);
        pass_signals();
        reap_ranks();
    }
    long long end = now_ms() + 1000;            /* a process with a stream may write for ever */
    while (read_streams(0) && now_ms() < end) { /* what the ranks wrote last */
    }
}

int main(int argc, char **argv) {
    int program = read_arguments(argc, argv);
    if (program <= 0) {
        fputs(usage, program < 0 ? stdout : stderr);
        return program < 0 ? 0 : 2;
    }
    job.locked = -1;
    for (int i = 0; i < RANKS_MAX; i++)
        job.ranks[i].streams[0].from = job.ranks[i].streams[1].from = -1;
    if (!make_folder() || !catch_signals() || (!job.insecure && !make_key())) {
        complain("cannot begin: %s", strerror(errno));
        remove_folder();
        return 1;
    }
    for (int i = 0; i < job.size && !job.failed; i++)
        if (!start_rank(i, argv + program)) {
            complain("rank %d cannot be started: %s", i, strerror(errno));
            end_ranks(1);
        }
    run();
    remove_folder();
    return job.status;
}
