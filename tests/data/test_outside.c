/* Effects of the world outside the process: paths that name no file, and files that change while
 * they are read. Files that differ from their header. Links where a file is to be written, limits,
 * and fork. Included by main.c. */
#include "temp.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

/* ---- Children: what may hang or die does so in one */

#define OUTSIDE_HANGS (-1)
#define OUTSIDE_DIES (-2)

/* Runs `body` in a child: how many checks failed there, or one of the above. */
static int outside_child(void (*body)(void *arg), void *arg, double seconds) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        test_now.failures = 0;
        body(arg);
        fflush(stdout);
        _exit(DTI_MIN(test_now.failures, 98));
    }
    const uint64_t start = dti_now_ns();
    int status;
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
        if ((double)(dti_now_ns() - start) > 1e9 * seconds) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return OUTSIDE_HANGS;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : OUTSIDE_DIES;
}

/* ---- Everything that reads a file */

/* Each refuses a file with a text in *error, and takes nothing of it. */
static dt_result outside_weights(file_fixture *f, const char *path) {
    dt_safetensors *w;
    dt_result result = dt_safetensors_open(f->ctx, path, &w);
    CHECK(!result == (w != NULL));
    dt_safetensors_close(w);
    return result;
}

static dt_result outside_store(file_fixture *f, const char *path) {
    return dt_store_load(f->store, path);
}

static dt_result outside_idx(file_fixture *f, const char *path) {
    dt_array array;
    dt_result result = dt_idx_load(f->ctx, path, &array);
    CHECK(!result == (array.data != NULL));
    dt_array_destroy(&array);
    return result;
}

static dt_result outside_checkpoint(file_fixture *f, const char *path) {
    dti_checkpoint *c;
    dt_result result = dti_checkpoint_open(dti_ctx_base(f->ctx), path, &c);
    CHECK(!result == (c != NULL));
    dt_safetensors_close(c);
    return result;
}

static dt_result (*const outside_readers[])(file_fixture *f, const char *path) = {
    outside_weights, outside_store, outside_idx, outside_checkpoint};

typedef struct outside_path {
    const char *path, *kind;
} outside_path;

static void outside_read_path(void *arg) {
    const outside_path *p = arg;
    file_fixture f = file_open(2, 2);
    for (size_t i = 0; i < DTI_COUNT(outside_readers); i++) {
        CHECK(outside_readers[i](&f, p->path) == DT_ERROR_IO);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), p->path);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), p->kind);
    }
    file_close(&f);
}

TEST(a_path_that_is_not_a_regular_file_is_refused_by_name_by_every_reader) {
    const char *fifo = temp_path("fifo"), *place = temp_path("socket"), *folder = temp_path("f");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", place);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(mkfifo(fifo, 0600) == 0 && mkdir(folder, 0700) == 0 && listener >= 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    outside_path paths[] = {{fifo, "a FIFO"},
                            {folder, "a folder"},
                            {place, "a socket"},
                            {"/dev/zero", "a device"},
                            {"/dev/full", "a device"}};
    for (size_t i = 0; i < DTI_COUNT(paths); i++) {
        int failures = outside_child(outside_read_path, &paths[i], 5.0);
        test_check(failures == 0, __FILE__, __LINE__, "%s: %d", paths[i].path, failures);
    }
    close(listener);
}

/* LATEST only says where to look first. */
static void outside_look_for_newest(void *arg) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    CHECK(ck_newest(&base, arg) == 2);
}

TEST(a_checkpoint_folder_whose_latest_is_a_fifo_gives_the_highest_step) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    char latest[600];
    const char *folder = ck_folder();
    CHECK(ck_write_step(&base, folder, 1, 9) == DT_OK &&
          ck_write_step(&base, folder, 2, 9) == DT_OK);
    snprintf(latest, sizeof latest, "%s/LATEST", folder);
    CHECK(remove(latest) == 0 && mkfifo(latest, 0600) == 0);
    CHECK(outside_child(outside_look_for_newest, (void *)(uintptr_t)folder, 5.0) == 0);
    ck_remove(folder);
}

/* ---- Large files that are not what they say */

static const unsigned char outside_idx_header[] = {0, 0, 8, 1, 0, 0, 0, 9};

/* A file that begins with these bytes and has `size` of them, nearly all of them holes. */
static bool outside_sparse(const char *path, const void *data, size_t bytes, off_t size) {
    FILE *file = fopen(path, "wb");
    bool ok = file && fwrite(data, 1, bytes, file) == bytes;
    if (file)
        ok = fclose(file) == 0 && ok;
    return ok && truncate(path, size) == 0;
}

TEST(a_huge_file_of_a_wrong_length_is_refused_by_its_header) {
    static const char *const headers[] = {
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", "{}",
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[6442450945],\"data_offsets\":[0,6442450945]}}"};
    const char *path = temp_path("huge.safetensors");
    unsigned char bytes[256];
    file_fixture f = file_open(2, 2);
    for (size_t i = 0; i <= DTI_COUNT(headers) + 1; i++) {
        size_t size = i < DTI_COUNT(headers) ? weights_compose(bytes, headers[i], 0, 0) : 8;
        if (i == DTI_COUNT(headers)) /* the longest header that may be, of zeros */
            memcpy(bytes, "\x00\xE1\xF5\x05\x00\x00\x00\x00", 8);
        if (i > DTI_COUNT(headers))
            memcpy(bytes, outside_idx_header, sizeof outside_idx_header);
        if (!outside_sparse(path, bytes, size, (off_t)6 << 30))
            SKIP("a file of 6 GiB, nearly all of it holes, cannot be made here");
        dt_ctx_info before, after;
        dt_ctx_get_info(f.ctx, &before);
        uint64_t start = dti_now_ns();
        for (size_t k = 0; k < DTI_COUNT(outside_readers); k++) {
            CHECK(outside_readers[k](&f, path) == DT_ERROR_FORMAT);
            CHECK_CONTAINS(dt_ctx_error(f.ctx), path);
        }
        dt_ctx_get_info(f.ctx, &after);
        CHECK(dti_now_ns() - start < 500000000u);
        CHECK(after.host_bytes == before.host_bytes && after.host_peak_bytes < 4u << 20);
    }
    remove(path);
    file_close(&f);
}

/* ---- A file that is cut while it is read: when memory for its data is taken */

typedef struct outside_cutter {
    const char *path;
    size_t at_least;
    off_t to;
    int64_t bytes;
} outside_cutter;

static void *outside_cut_alloc(void *user, size_t bytes, size_t align) {
    outside_cutter *c = user;
    if (c->path && bytes >= c->at_least)
        CHECK(truncate(c->path, c->to) == 0);
    c->bytes += (int64_t)bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void outside_cut_free(void *user, void *memory, size_t bytes) {
    ((outside_cutter *)user)->bytes -= (int64_t)bytes;
    free(memory);
}

TEST(a_file_cut_while_it_is_read_is_an_io_error) {
    static unsigned char bytes[200000];
    static const char header[] =
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[150000],\"data_offsets\":[0,150000]}}";
    outside_cutter c = {.at_least = 150000, .to = 70000};
    dt_ctx_desc desc = {.no_vulkan = true, .allocator = {outside_cut_alloc, outside_cut_free, &c}};
    file_fixture f = {0};
    REQUIRE(dt_ctx_create(&desc, &f.ctx) == DT_OK);
    int64_t before = c.bytes;
    size_t size = weights_compose(bytes, header, 0, 150000);
    c.path = temp_write("cut_under.safetensors", bytes, size);
    CHECK(outside_weights(&f, c.path) == DT_ERROR_IO);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "cut_under.safetensors: it ends after 70000 of 150");
    CHECK(c.bytes == before);
    memcpy(bytes, "\0\0\10\1\0\2\111\360", 8); /* 150000 */
    c.path = temp_write("cut_under.idx", bytes, 150008);
    CHECK(outside_idx(&f, c.path) == DT_ERROR_IO);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "cut_under.idx: it ends after 70000 of 150008");
    CHECK(c.bytes == before);
    c.path = NULL;
    dt_ctx_destroy(f.ctx);
    CHECK(c.bytes == 0);
}

/* ---- Writing */

TEST(a_writer_does_not_follow_a_link_at_its_temporary_name) {
    file_fixture f = file_open(2, 2);
    char link[600], text[8] = {0};
    const char *victim = temp_write("victim", "victim", 6), *path = temp_path("linked");
    snprintf(link, sizeof link, "%s.tmp.%ld", path, (long)getpid());
    REQUIRE(symlink(victim, link) == 0);
    CHECK(dt_store_save(f.store, path) == DT_OK);
    FILE *file = fopen(victim, "rb");
    CHECK(file && fread(text, 1, 7, file) == 6 && !strcmp(text, "victim"));
    if (file)
        fclose(file);
    struct stat saved;
    CHECK(lstat(path, &saved) == 0 && S_ISREG(saved.st_mode));
    CHECK(dt_store_load(f.store, path) == DT_OK);
    remove(link);
    file_close(&f);
}

TEST(a_writer_without_memory_for_a_stream_leaves_no_file) {
    file_fixture f = file_open(2, 2);
    const char *path = temp_path("streamless");
    harness_no_streams = true;
    CHECK(dt_store_save(f.store, path) == DT_ERROR_IO);
    harness_no_streams = false;
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "streamless: cannot be written: Cannot allocate memory");
    CHECK(temp_unfinished(path) == 0 && access(path, F_OK) != 0);
    file_close(&f);
}

TEST(two_writers_of_one_path_do_not_write_into_each_other) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_writer *w[2];
    base_file file;
    const char *path = temp_path("two");
    for (int i = 0; i < 2; i++)
        REQUIRE(dti_writer_open(&base, path, 0, &w[i]) == DT_OK);
    CHECK(dti_writer_add(w[0], "one", 3) == DT_OK && dti_writer_add(w[1], "two", 3) == DT_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(dti_writer_close(w[i], true) == DT_OK);
        REQUIRE(base_read_file(&base, path, &file) == DT_OK);
        CHECK(file.size == 3 && !memcmp(file.data, i ? "two" : "one", 3));
        dti_free(&base, file.data);
    }
    CHECK(temp_unfinished(path) == 0 && base.bytes_now == 0);
}

/* ---- A file that may not grow: SIGXFSZ ends a process that does nothing about it */

static bool outside_is_pending(void) {
    sigset_t set;
    return sigpending(&set) == 0 && sigismember(&set, SIGXFSZ) == 1;
}

static bool outside_is_blocked(void) {
    sigset_t set;
    return pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && sigismember(&set, SIGXFSZ) == 1;
}

static int outside_signals;

static void outside_on_signal(int number) {
    (void)number;
    outside_signals++;
}

/* Limits what this child writes, and gives what the limit was. A check that fails writes too, so it
 * comes when that is back. */
static rlim_t outside_limit(rlim_t bytes) {
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, old.rlim_max});
    return old.rlim_cur;
}

static dt_result outside_save(const file_fixture *f, const char *path) {
    rlim_t old = outside_limit(10);
    dt_result result = dt_store_save(f->store, path);
    outside_limit(old);
    return result;
}

static void outside_save_limited(void *arg) {
    file_fixture f = file_open(2, 2);
    const char *path = arg;
    CHECK(outside_save(&f, path) == DT_ERROR_IO);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "cannot be written: File too large");
    CHECK(!outside_is_pending() && !outside_is_blocked() && temp_unfinished(path) == 0);
    signal(SIGXFSZ, outside_on_signal); /* the application's handler is for its own writes */
    CHECK(outside_save(&f, path) == DT_ERROR_IO && outside_signals == 0);
    sigset_t only, old;
    sigemptyset(&only);
    sigaddset(&only, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &only, &old);
    CHECK(outside_save(&f, path) == DT_ERROR_IO && !outside_is_pending());
    raise(SIGXFSZ); /* one of the application's own waits */
    CHECK(outside_save(&f, path) == DT_ERROR_IO);
    CHECK(outside_is_pending() && outside_is_blocked());
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    CHECK(outside_signals == 1);
    file_close(&f);
}

TEST(a_file_at_the_size_limit_does_not_end_the_process) {
    const char *path = temp_path("limited.safetensors");
    CHECK(outside_child(outside_save_limited, (void *)(uintptr_t)path, 5.0) == 0);
}

/* Rank 0 writes where it is, and without .insecure a key. */
static void outside_meet_limited(void *arg) {
    dt_comm_desc desc = {.world_size = 2, .local_size = 2, .join_timeout_ms = 100};
    dt_comm *comm;
    snprintf(desc.rendezvous, sizeof desc.rendezvous, "file://%s", (const char *)arg);
    for (int i = 0; i < 4; i++) { /* nothing fits, or a part */
        desc.insecure = i % 2 == 0;
        rlim_t old = outside_limit(i < 2 ? 0 : 20);
        dt_result result = dt_comm_create(&desc, &comm);
        outside_limit(old);
        CHECK(result == DT_ERROR_IO);
        CHECK_CONTAINS(dt_comm_error(comm), "File too large");
        dt_comm_destroy(comm);
    }
}

TEST(a_rendezvous_file_that_may_not_grow_does_not_end_the_process) {
    const char *path = temp_path("rendezvous");
    CHECK(outside_child(outside_meet_limited, (void *)(uintptr_t)path, 5.0) == 0);
}
