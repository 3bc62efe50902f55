/* How files are replaced: everything that may be where a file is to be written. It covers every
 * public function that writes one. A row says what is expected; after a failure the old bytes are
 * there, and after all of them no temporary file is left. Included by main.c, after
 * test_outside.c. */

#define REPL_CHECK(condition, ...) test_check((condition), __FILE__, __LINE__, __VA_ARGS__)

/* ---- The writers */

typedef struct repl_job {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor y;
    dt_trainer *trainer;
    dt_store *store;
    dt_replay *replay;
    dt_profile *profile;
} repl_job;

static dt_result repl_store(repl_job *j, const char *path) {
    return dt_store_save(j->store, path);
}

static dt_result repl_matching(repl_job *j, const char *path) {
    return dt_store_save_matching(j->store, path, &(dt_save_desc){.params = "fc.*"});
}

static dt_result repl_averaged(repl_job *j, const char *path) {
    return dt_store_save_matching(j->store, path, &(dt_save_desc){.averaged = true});
}

static dt_result repl_state(repl_job *j, const char *path) {
    return dt_store_save_state(j->store, path);
}

static dt_result repl_trainer(repl_job *j, const char *path) {
    return dt_trainer_save(j->trainer, path);
}

static dt_result repl_best(repl_job *j, const char *path) {
    dt_trainer_info info;
    dt_trainer_get_info(j->trainer, &info);
    const dt_fit_desc d = {.epochs = info.epoch + 1, .watch = {.save = path}};
    return dt_trainer_fit(j->trainer, &d, NULL);
}

static dt_result repl_onnx(repl_job *j, const char *path) {
    return dt_onnx_save(j->store, path, &(dt_onnx_desc){.outputs = {j->y}});
}

static dt_result repl_c(repl_job *j, const char *path) {
    return dt_c_save(j->store, path, &(dt_c_desc){.outputs = {j->y}});
}

static dt_result repl_png(repl_job *j, const char *path) {
    return dt_png_save(j->ctx, path, (const uint8_t[]){1, 2, 3, 4}, 2, 2, 1);
}

static dt_result repl_replay(repl_job *j, const char *path) {
    return dt_replay_save(j->replay, path);
}

static dt_result repl_profile(repl_job *j, const char *path) {
    return dt_profile_save(j->profile, path);
}

static const struct {
    const char *name;
    dt_result (*save)(repl_job *j, const char *path);
} repl_writers[] = {{"dt_store_save", repl_store},
                    {"dt_store_save_matching", repl_matching},
                    {"dt_save_desc.averaged", repl_averaged},
                    {"dt_store_save_state", repl_state},
                    {"dt_trainer_save", repl_trainer},
                    {"dt_watch.save", repl_best},
                    {"dt_onnx_save", repl_onnx},
                    {"dt_c_save", repl_c},
                    {"dt_png_save", repl_png},
                    {"dt_replay_save", repl_replay},
                    {"dt_profile_save", repl_profile}};

static float repl_rows[16 * 3];

static bool repl_open(repl_job *j) {
    *j = (repl_job){0};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &j->ctx) ||
        dt_graph_create(j->ctx, &j->graph))
        return false;
    dt_tensor x = dt_input(j->graph, "x", DT_F32, dt_dims(2));
    dt_tensor t = dt_input(j->graph, "t", DT_F32, dt_dims(1));
    j->y = dt_nn_linear(x, "fc", 1);
    const dt_optim_desc optim = {.average = {.kind = DT_AVERAGE_EMA}};
    dt_trainer_desc d = {.loss = dt_mse(j->y, t), .batch = 4, .optim = &optim, .devices = "cpu"};
    d.data.rows = 16;
    d.data.columns[0] = (dt_column){.input = x, .data = repl_rows};
    d.data.columns[1] = (dt_column){.input = t, .data = repl_rows + 32};
    const dt_replay_desc replay = {.capacity = 4, .item_bytes = 8};
    if (dt_trainer_create(j->graph, &d, &j->trainer) || dt_trainer_step(j->trainer, NULL) ||
        dt_replay_create(j->ctx, &replay, &j->replay) || dt_replay_add(j->replay, repl_rows) ||
        dt_profile_create(j->ctx, NULL, &j->profile))
        return false;
    j->store = dt_trainer_store(j->trainer);
    return true;
}

static void repl_close(repl_job *j) {
    dt_replay_destroy(j->replay);
    dt_profile_destroy(j->profile);
    dt_ctx_destroy(j->ctx);
}

/* ---- The targets: they are made in an empty folder, which is the working folder then */

enum {
    REPL_GROUP = 1 << 0,  /* the old file is of another owner and group, if the test is root */
    REPL_USER = 1 << 1,   /* the writer is not root */
    REPL_FULL = 1 << 2,   /* files may have 10 bytes */
    REPL_OPEN = 1 << 3,   /* "sub/real" is open as number 77 */
    REPL_GONE = 1 << 4,   /* has no name any more */
    REPL_LOCKED = 1 << 5, /* the folder may not be written */
    REPL_HARD = 1 << 6    /* "sub/other" is another name of "sub/real" */
};
enum { REPL_UMASK = 027, REPL_ID = 12345 };

#define REPL_40(x) x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x
#define REPL_229 "1234567890123456789012345678" REPL_40("abcde") "n"
#define REPL_255 REPL_229 "12345678901234567890123456"

/* Made in order: folders, one file of `mode` where `old` is given, links "from>to". */
typedef struct repl_target {
    const char *path; /* is saved to */
    const char *old;
    unsigned mode;
    const char *links[4];
    const char *text; /* of the error; NULL: it succeeds */
    const char *to;   /* where the new file lies then; NULL: at `path` */
    unsigned becomes; /* its mode; 0: that of the old one */
    unsigned flags;
} repl_target;

static const repl_target repl_targets[] = {
    {"t", .becomes = 0640},
    {"t", "t", 0600, .flags = 0},
    {"t", "t", 0644, .flags = 0},
    {"t", "t", 0666, .flags = 0},
    {"t", "t", 0444, .flags = 0},
    {"t", "t", 0400, .flags = 0},
    {"t", "t", 0, .flags = 0},
    {"t", "t", 0640, .flags = REPL_GROUP},
    {"t", "t", 06755, .becomes = 0755},
    {"sub/real", "sub/real", 0600, .flags = REPL_HARD},
    /* links */
    {"t", "sub/real", 0600, {"t>sub/real"}, .to = "sub/real"},
    {"t", "sub/real", 0640, {"t>sub/real"}, .to = "sub/real", .flags = REPL_GROUP},
    {"t", "sub/real", 0444, {"t>sub/real"}, .to = "sub/real"},
    {"sub/t", "real", 0600, {"sub/t>../real"}, .to = "real"},
    {"t", "sub/real", 0600, {"t>./a", "a>sub/b", "sub/b>real"}, .to = "sub/real"},
    {"sub/deep/../t", "sub/real", 0600, {"sub/t>real"}, .to = "sub/real"},
    {"t", .links = {"t>sub/new"}, .to = "sub/new", .becomes = 0640},
    {"t", .links = {"t>sub/b", "sub/b>../new"}, .to = "new", .becomes = 0640},
    {"t", "sub/real", 0600, {"t>/proc/self/fd/77"}, .to = "sub/real", .flags = REPL_OPEN},
    {"t",
     "sub/real",
     0600,
     {"t>/proc/self/fd/77"},
     "t: cannot be replaced: it is a link to an open file that was deleted",
     .flags = REPL_OPEN | REPL_GONE},
    {"t", .links = {"t>none/new"}, .text = "t -> none/new: cannot be written: No such file"},
    {"t", .links = {"t>t"}, .text = "t: cannot be written: Too many levels of symbolic links"},
    {"t", .links = {"t>a", "a>t"}, .text = "Too many levels of symbolic links"},
    /* a path that is not a regular file, itself and after a link */
    {"sub", .text = "sub: cannot be replaced: it is a folder"},
    {"t", .links = {"t>sub"}, .text = "t: cannot be replaced: it is a folder"},
    {"fifo", .text = "fifo: cannot be replaced: it is a FIFO"},
    {"t", .links = {"t>fifo"}, .text = "it is a FIFO"},
    {"socket", .text = "socket: cannot be replaced: it is a socket"},
    {"t", .links = {"t>socket"}, .text = "it is a socket"},
    {"/dev/null", .text = "/dev/null: cannot be replaced: it is a device"},
    {"t", .links = {"t>/dev/null"}, .text = "t: cannot be replaced: it is a device"},
    {"t", .links = {"t>a", "a>/dev/full"}, .text = "it is a device"},
    {"sub/", .text = "it is a folder"},
    {"t/", "t", 0600, .text = "t/: cannot be written: Not a directory"},
    {"t/x", "t", 0600, .text = "t/x: cannot be written: Not a directory"},
    {"none/x", .text = "none/x: cannot be written: No such file or directory"},
    /* names of 1 to 256 bytes */
    {REPL_229, .becomes = 0640},
    {REPL_229, REPL_229, 0600, .flags = 0},
    {REPL_229 "1", .becomes = 0640},
    {REPL_229 "1234567890123456789012345", .becomes = 0640},
    {REPL_255, .becomes = 0640},
    {REPL_255, REPL_255, 0600, .flags = 0},
    {"t", REPL_255, 0600, {"t>" REPL_255}, .to = REPL_255},
    {REPL_40("\xE2\x82\xAC") REPL_40("\xE2\x82\xAC") "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82"
                                                     "\xAC\xE2\x82\xAC",
     .becomes = 0640},
    {REPL_255 "6", .text = "cannot be written: File name too long"},
    {"t", .links = {"t>" REPL_255 "6"}, .text = "cannot be written: File name too long"},
    /* the writer may not, or cannot */
    {"t", "t", 0666, .text = "t: cannot be written: Permission denied",
     .flags = REPL_USER | REPL_LOCKED},
    {"new", .text = "new: cannot be written: Permission denied", .flags = REPL_USER | REPL_LOCKED},
    {"t",
     "sub/real",
     0666,
     {"t>sub/real"},
     "t -> sub/real: cannot be written: Permission denied",
     .flags = REPL_USER | REPL_LOCKED},
    {"t", "t", 0640, .becomes = 0600, .flags = REPL_USER | REPL_GROUP},
    {"t", "t", 0664, .becomes = 0644, .flags = REPL_USER | REPL_GROUP},
    {"t", "t", 0600, .text = "t: cannot be written: File too large", .flags = REPL_FULL},
    {"new", .text = "new: cannot be written: File too large", .flags = REPL_FULL},
    {"t",
     "sub/real",
     0600,
     {"t>sub/real"},
     "t -> sub/real: cannot be written: File too large",
     .flags = REPL_FULL}};

static const char repl_old[] = "what was there before";

static bool repl_links(const repl_target *t) {
    char from[600];
    for (int i = 0; i < 4 && t->links[i]; i++) {
        const char *to = strchr(t->links[i], '>');
        snprintf(from, sizeof from, "%.*s", (int)(to - t->links[i]), t->links[i]);
        unlink(from);
        if (symlink(to + 1, from) != 0)
            return false;
    }
    return true;
}

static bool repl_lay(const repl_target *t) {
    FILE *file = t->old ? fopen(t->old, "wb") : NULL;
    bool ok = repl_links(t) && !file == !t->old;
    if (file) {
        ok = fwrite(repl_old, 1, sizeof repl_old, file) == sizeof repl_old && ok;
        ok = fclose(file) == 0 && ok;
        if (t->flags & REPL_GROUP && geteuid() == 0)
            ok = chown(t->old, REPL_ID, REPL_ID) == 0 && ok;
        ok = chmod(t->old, t->mode) == 0 && ok;
    }
    if (t->flags & REPL_HARD) {
        unlink("sub/other");
        ok = link(t->old, "sub/other") == 0 && ok;
    }
    if (t->flags & REPL_OPEN)
        ok = dup2(open(t->old, O_WRONLY), 77) == 77 && ok;
    if (t->flags & REPL_GONE)
        ok = unlink(t->old) == 0 && ok;
    return ok;
}

/* How many names are in a folder. */
static int repl_count(const char *folder) {
    DIR *list = opendir(folder);
    int count = 0;
    while (list && readdir(list))
        count++;
    closedir(list);
    return count;
}

static bool repl_is_old(const char *path) {
    char text[sizeof repl_old + 1];
    FILE *file = fopen(path, "rb");
    const size_t bytes = file ? fread(text, 1, sizeof text, file) : 0;
    if (file)
        fclose(file);
    return bytes == sizeof repl_old && !memcmp(text, repl_old, bytes);
}

static void repl_check_links(const repl_target *t, const char *who) {
    char from[600], to[600];
    for (int i = 0; i < 4 && t->links[i]; i++) {
        const char *want = strchr(t->links[i], '>');
        snprintf(from, sizeof from, "%.*s", (int)(want - t->links[i]), t->links[i]);
        const ssize_t size = readlink(from, to, sizeof to);
        REPL_CHECK(size == (ssize_t)strlen(want + 1) && !memcmp(to, want + 1, (size_t)size),
                   "%s: the link %s is gone", who, t->links[i]);
    }
}

static void repl_check_new(const repl_target *t, const char *who) {
    struct stat file;
    const char *to = t->to ? t->to : t->path;
    const unsigned mode = t->becomes ? t->becomes : t->mode;
    if (!REPL_CHECK(lstat(to, &file) == 0 && S_ISREG(file.st_mode), "%s: no file %s", who, to))
        return;
    const uid_t owner = t->flags & REPL_USER ? REPL_ID + 1 : t->flags & REPL_GROUP ? REPL_ID : 0;
    REPL_CHECK((file.st_mode & 07777) == mode, "%s: the mode is %o, not %o", who,
               (unsigned)file.st_mode & 07777, mode);
    REPL_CHECK(geteuid() || (file.st_uid == owner && file.st_gid == owner),
               "%s: the owner is %d, and the group %d", who, (int)file.st_uid, (int)file.st_gid);
    REPL_CHECK(geteuid() || !repl_is_old(to), "%s: %s is as it was", who, to);
    REPL_CHECK(!(t->flags & REPL_HARD) || repl_is_old("sub/other"), "%s: the other name", who);
}

static void repl_once(repl_job *j, const repl_target *t, size_t w) {
    char who[400];
    snprintf(who, sizeof who, "%s to %.40s (%s, %o)", repl_writers[w].name, t->path,
             t->links[0] ? t->links[0] : "", t->mode);
    const bool user = t->flags & REPL_USER;
    if (!REPL_CHECK(repl_lay(t), "%s: not laid out: %s", who, strerror(errno)))
        return;
    const int before[2] = {repl_count("."), repl_count("sub")};
    if (t->flags & REPL_LOCKED)
        chmod(".", 0555), chmod("sub", 0555);
    const rlim_t old = t->flags & REPL_FULL ? outside_limit(10) : 0;
    const uid_t root = geteuid();
    if (user && root == 0)
        CHECK(setegid(REPL_ID + 1) == 0 && seteuid(REPL_ID + 1) == 0);
    const dt_result result = repl_writers[w].save(j, t->path);
    if (user && root == 0)
        CHECK(seteuid(0) == 0 && setegid(0) == 0);
    if (t->flags & REPL_FULL)
        outside_limit(old);
    chmod(".", 0777), chmod("sub", 0777);
    const int added = repl_count(".") + repl_count("sub") - before[0] - before[1];
    REPL_CHECK(!result == !t->text, "%s: %s", who,
               result ? dt_ctx_error(j->ctx) : "write and read it");
    REPL_CHECK(!t->text || strstr(dt_ctx_error(j->ctx), t->text), "%s: %s", who,
               dt_ctx_error(j->ctx));
    REPL_CHECK(added == (!t->text && !t->old), "%s: %d names more", who, added);
    repl_check_links(t, who);
    if (!t->text)
        repl_check_new(t, who);
    else if (t->old && !(t->flags & REPL_GONE))
        REPL_CHECK(repl_is_old(t->old), "%s: the old file has changed", who);
    if (!t->text)
        remove(t->to ? t->to : t->path);
}

/* A folder of its own, and no file that another writer left. */
static void repl_target_all(void *arg) {
    char folder[] = "/tmp/dtrain-replace-XXXXXX", command[80];
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    repl_job j = {0};
    if (!REPL_CHECK(repl_open(&j), "no job: %s", dt_ctx_error(j.ctx)))
        return;
    umask(0);
    CHECK(mkdtemp(folder) && chdir(folder) == 0 && chmod(".", 0777) == 0);
    CHECK(mkdir("sub", 0777) == 0 && mkdir("sub/deep", 0777) == 0 && mkfifo("fifo", 0666) == 0);
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    umask(REPL_UMASK);
    for (size_t w = 0; w < DTI_COUNT(repl_writers); w++)
        repl_once(&j, arg, w);
    repl_close(&j);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(chdir("/") == 0 && system(command) == 0);
}

TEST(every_writer_replaces_only_the_file_of_its_path_and_keeps_its_rights) {
    for (size_t i = 0; i < DTI_COUNT(repl_targets); i++) {
        const repl_target *t = &repl_targets[i];
        if (t->flags & REPL_LOCKED && geteuid() && geteuid() != getuid())
            continue;
        const int failures = outside_child(repl_target_all, (void *)(uintptr_t)t, 20.0);
        REPL_CHECK(failures == 0, "%.40s (%s): %d", t->path, t->links[0] ? t->links[0] : "",
                   failures);
    }
}

/* ---- Files to append to. Links are followed by the system, and a path that is not a file gives a
 * text */

static void repl_grow(void *arg) {
    char folder[] = "/tmp/dtrain-replace-XXXXXX", command[80];
    struct stat file;
    dti_base base;
    dti_growing grow;
    (void)arg;
    dti_base_init(&base, NULL, NULL);
    umask(REPL_UMASK);
    CHECK(mkdtemp(folder) && chdir(folder) == 0 && mkfifo("fifo", 0600) == 0);
    CHECK(symlink("fifo", "t") == 0 && symlink("/dev/full", "u") == 0 && symlink("new", "v") == 0);
    static const char *const wrong[][2] = {{"fifo", "fifo: cannot be appended to: it is a FIFO"},
                                           {"t", "it is a FIFO"},
                                           {"u", "it is a device"},
                                           {".", "it is a folder"},
                                           {REPL_255 "6", "File name too long"}};
    for (size_t i = 0; i < DTI_COUNT(wrong); i++) {
        CHECK(dti_grow_open(&base, wrong[i][0], true, &grow) == DT_ERROR_IO && !grow.open);
        CHECK_CONTAINS(base.error, wrong[i][1]);
    }
    CHECK(dti_grow_open(&base, "v", true, &grow) == DT_OK);
    CHECK(dti_grow_add(&base, "v", &grow, "a\n", 2) == DT_OK);
    dti_grow_close(&grow);
    CHECK(stat("new", &file) == 0 && file.st_size == 2 && (file.st_mode & 0777) == 0640);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(chdir("/") == 0 && system(command) == 0);
}

TEST(a_file_to_append_to_must_be_a_regular_file_after_following_links) {
    CHECK(outside_child(repl_grow, NULL, 5.0) == 0);
}
