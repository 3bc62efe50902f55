/* Folders of checkpoints that cannot be written. If that is so from the start, it is refused when
 * the trainer is created or the fit begins. If it comes later, it is counted in report, history and
 * bar. Rows of folders, on one rank and on two; a user who may write everywhere becomes another
 * user. */
#include "parallel/train_processes.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/mount.h>
#endif

enum { FOLD_USER = 12345, FOLD_EPOCHS = 4, FOLD_BREAKS = 2 };

typedef enum fold_break {
    FOLD_STAYS,
    FOLD_GOES,   /* is made again */
    FOLD_PARENT, /* goes too */
    FOLD_FILE,   /* comes in its place */
    FOLD_LOCKED, /* nothing can be made in it */
    FOLD_SMALL,  /* files may have 4096 bytes */
    FOLD_FULL    /* a disk of 64 KiB, which something else fills */
} fold_break;

typedef struct fold_row {
    const char *folder; /* in the job's folder, which has "file", "locked/" and "in/" */
    const char *reason; /* of the refusal; or after the fold_break of failures; NULL: none */
    fold_break then;    /* at the end of epoch 2, before its checkpoint */
    bool late;          /* it is not refused */
    int failed;         /* checkpoints */
} fold_row;

static const fold_row fold_rows[] = {
    {"file", "Not a directory", .late = false},
    {"file/in", "Not a directory", .late = false},
    {"none/in", "No such file or directory", .late = false},
    {"locked", "Permission denied", .late = false},
    {"locked/in", "Permission denied", .late = false},
    {"link", "No such file or directory", .late = false}, /* to nothing */
    {"new", NULL, FOLD_STAYS, true, 0},
    {"in", NULL, FOLD_STAYS, true, 0},
    {"in/new", NULL, FOLD_GOES, true, 0},
    {"in/new", "No such file or directory", FOLD_PARENT, true, 3},
    {"new", "Not a directory", FOLD_FILE, true, 3},
    {"new", "Permission denied", FOLD_LOCKED, true, 3},
    {"new", "File too large", FOLD_SMALL, true, 3},
    {"full", "No space left on device", FOLD_FULL, true, 3}};

typedef struct fold_case {
    const fold_row *row;
    bool steps; /* .checkpoint.every_steps: the trainer is refused, not the fit */
    bool background;
    bool sharded;
    int ranks;
    char folder[300], root[100];
} fold_case;

typedef struct fold_watch {
    const fold_case *c;
    int rank;
    uint64_t seen; /* by callbacks */
    char why[256];
} fold_watch;

static bool fold_shell(const fold_case *c, const char *format) {
    char command[700];
    snprintf(command, sizeof command, format, c->folder, c->folder);
    return system(command) == 0;
}

/* A thread may still be at the files of the epoch before. */
static void fold_await(const fold_case *c) {
    char latest[320];
    snprintf(latest, sizeof latest, "%s/LATEST", c->folder);
    for (int i = 0; i < 5000 && c->background && access(latest, F_OK); i++)
        usleep(1000);
}

static bool fold_breaks(const fold_case *c) {
    fold_await(c);
    switch (c->row->then) {
    case FOLD_GOES: return fold_shell(c, "rm -r '%s'");
    case FOLD_PARENT: return fold_shell(c, "rm -r \"$(dirname '%s')\"");
    case FOLD_FILE: return fold_shell(c, "rm -r '%s' && echo 1 >'%s'");
    case FOLD_LOCKED: return chmod(c->folder, 0555) == 0;
    case FOLD_SMALL:
        signal(SIGXFSZ, SIG_IGN);
        return setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, RLIM_INFINITY}) == 0;
    case FOLD_FULL: return fold_shell(c, "head -c 60000 /dev/zero >'%s/other' 2>/dev/null; true");
    default: return true;
    }
}

static dt_result fold_call(void *user, dt_fit_state *s) {
    fold_watch *w = user;
    if (s->event == DT_FIT_EPOCH && s->epoch == FOLD_BREAKS && w->rank == 0 && !fold_breaks(w->c))
        return DT_ERROR_UNSUPPORTED;
    w->seen = s->checkpoints_failed;
    snprintf(w->why, sizeof w->why, "%s", s->checkpoint_error);
    return DT_OK;
}

/* The error that each rank gets: the same on all. */
static void fold_check_late(rank *r, const fold_case *c, dt_trainer *t, const fold_watch *w,
                            const dt_history *h) {
    const uint64_t want = (uint64_t)c->row->failed;
    const char *reason = c->row->reason ? c->row->reason : "";
    dt_trainer_info info;
    dt_trainer_get_info(t, &info);
    EXPECT(r, h->epochs == FOLD_EPOCHS && h->stop == DT_FIT_STOP_DONE);
    EXPECT_TEXT(r, w->seen == want && h->checkpoints_failed == want, "%d and %d failed, not %d",
                (int)w->seen, (int)h->checkpoints_failed, (int)want);
    EXPECT_TEXT(r, info.checkpoints_failed == want, "%d", (int)info.checkpoints_failed);
    EXPECT_TEXT(r, strstr(h->checkpoint_error, reason) && (want || !h->checkpoint_error[0]), "%s",
                h->checkpoint_error);
    EXPECT_TEXT(r, !strcmp(w->why, h->checkpoint_error) || strlen(w->why) > 250, "%s", w->why);
    EXPECT_TEXT(r, strstr(info.checkpoint_error, reason) != NULL, "%s", info.checkpoint_error);
}

static void fold_check_bar(rank *r, const fold_case *c, FILE *bar) {
    char text[8192] = "";
    rewind(bar);
    EXPECT(r, fread(text, 1, sizeof text - 1, bar) > 0);
    EXPECT_TEXT(r, !strstr(text, "checkpoint") == !c->row->failed, "%s", text);
    EXPECT_TEXT(r, !c->row->failed || strstr(text, "1 checkpoint failed  loss"), "%s", text);
    EXPECT_TEXT(r, !c->row->failed || strstr(text, "3 checkpoints failed, the newest: "), "%s",
                text);
    EXPECT_TEXT(r, !c->row->failed || strstr(text, c->row->reason), "%s", text);
}

static void fold_check_refused(rank *r, const fold_case *c, dt_result result, const char *text) {
    EXPECT_TEXT(r, result == DT_ERROR_IO, "%d: %s", (int)result, text);
    EXPECT_TEXT(r, strstr(text, c->folder) && strstr(text, c->row->reason), "%s", text);
    EXPECT_TEXT(r, strstr(text, "set .checkpoint.folder to a writable folder"), "%s", text);
}

static void fold_rank(rank *r) {
    const fold_case *c = r->job->arg;
    fold_watch w = {.c = c, .rank = r->index};
    train_model m;
    dt_trainer *t = NULL;
    dt_history h = {0};
    FILE *bar = tmpfile();
    dt_progress p = {.file = bar};
    if (geteuid() == 0)
        EXPECT(r, !setgid(FOLD_USER) && !setuid(FOLD_USER));
    if (!EXPECT(r, bar && train_model_make(&m, &one_thread, 0)))
        return;
    dt_trainer_desc d = train_desc(&m);
    d.comm = r->comm;
    d.devices = "cpu";
    d.parallel.batch_slices = 2;
    d.checkpoint.folder = c->folder;
    d.checkpoint.sharded = c->sharded;
    d.checkpoint.every_steps = c->steps ? 1000 : 0;
    d.checkpoint.background = c->background;
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    EXPECT_TEXT(r, !result == !(c->steps && !c->row->late), "created: %s", dt_ctx_error(m.ctx));
    if (!result) {
        const dt_fit_desc f = {.epochs = FOLD_EPOCHS,
                               .callbacks = {{fold_call, &w}, {dt_progress_show, &p}}};
        result = dt_trainer_fit(t, &f, &h);
        EXPECT_TEXT(r, !result == c->row->late, "fit: %s", dt_ctx_error(m.ctx));
        EXPECT(r, c->row->late || h.stop == DT_FIT_STOP_FAILED);
    }
    if (!c->row->late)
        fold_check_refused(r, c, result, dt_ctx_error(m.ctx));
    else if (!result)
        fold_check_late(r, c, t, &w, &h);
    if (!result && r->index == 0)
        fold_check_bar(r, c, bar);
    fclose(bar);
    dt_history_destroy(&h);
    dt_ctx_destroy(m.ctx);
}

static void fold_finished(rank *r) {
    const char *folder = r->job->arg;
    if (geteuid() == 0)
        EXPECT(r, !setgid(FOLD_USER) && !setuid(FOLD_USER));
    for (int again = 0; again < 3; again++) {
        train_model m;
        dt_trainer *t = NULL;
        if (!EXPECT(r, train_model_make(&m, &one_thread, 0)))
            return;
        dt_trainer_desc d = train_desc(&m);
        d.comm = r->comm;
        d.devices = "cpu";
        d.checkpoint.folder = folder;
        const dt_fit_desc f = {.epochs = again == 2 ? 3 : 2};
        dt_result result = dt_trainer_create(m.graph, &d, &t);
        if (!result)
            result = dt_trainer_fit(t, &f, NULL);
        EXPECT_TEXT(r, !result == (again < 2), "%d: %s", again, dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
        chmod(folder, 0555);
    }
}

/* All of it belongs to the ranks' user. */
static bool fold_lay(const fold_case *c, bool full) {
    char command[900];
    const char *root = c->root;
    snprintf(command, sizeof command,
             "cd '%s' && echo 1 >file && mkdir locked in full && ln -s nothing/at/all link && "
             "chmod 777 . in full && chmod 555 locked",
             root);
    if (system(command) != 0)
        return false;
#ifdef __linux__
    snprintf(command, sizeof command, "%s/full", root);
    if (full)
        return mount("dtrain", command, "tmpfs", 0, "size=64k,mode=777") == 0;
#endif
    return !full;
}

static void fold_one(const fold_row *row, bool steps, bool background, bool sharded, int ranks) {
    fold_case c = {
        .row = row, .steps = steps, .background = background, .sharded = sharded, .ranks = ranks};
    char command[200];
    const bool full = row->then == FOLD_FULL;
    snprintf(c.root, sizeof c.root, "/tmp/dtrain-folds-XXXXXX");
    if (!CHECK_TEXT(mkdtemp(c.root) != NULL, "%s", strerror(errno)))
        return;
    snprintf(c.folder, sizeof c.folder, "%s/%s", c.root, row->folder);
    if (fold_lay(&c, full)) { /* else mounts are not allowed here */
        job *j = job_new(ranks, &c);
        chmod(j->folder, 0777);
        const bool fine = job_run(j, fold_rank);
        CHECK_TEXT(fine, "%s, then %d, of %d ranks%s%s", row->folder, (int)row->then, ranks,
                   sharded ? ", in parts" : "",
                   steps        ? ", by steps"
                   : background ? ", by a thread"
                                : "");
        job_free(j);
    } else {
        CHECK_TEXT(full, "%s is not laid out", c.root);
    }
#ifdef __linux__
    snprintf(command, sizeof command, "%s/full", c.root);
    if (full)
        umount(command);
#endif
    snprintf(command, sizeof command, "chmod -R u+w %s && rm -rf %s", c.root, c.root);
    CHECK(system(command) == 0);
}

/* A finished run may lie where nothing can be written. */
TEST(a_fit_that_has_nothing_to_do_needs_no_folder_that_can_be_written) {
    char folder[] = "/tmp/dtrain-folds-XXXXXX", command[80];
    job *j;
    if (!CHECK_TEXT(mkdtemp(folder) && (geteuid() || !chown(folder, FOLD_USER, FOLD_USER)),
                    ".checkpoint.folder is not set") ||
        !CHECK_TEXT((j = job_new(1, folder)) != NULL, "no job"))
        return;
    chmod(j->folder, 0777);
    job_run(j, fold_finished);
    job_free(j);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
}

TEST(checkpoints_that_cannot_be_written_are_refused_at_the_start_or_counted_in_the_report) {
    for (size_t i = 0; i < sizeof fold_rows / sizeof *fold_rows; i++) {
        const fold_row *row = &fold_rows[i];
        for (int way = 0; way < 8; way++) {
            const bool odd = way & 1, sharded = way & 4;
            fold_one(row, !row->late && odd, row->late && odd, sharded, 1 + way / 2 % 2);
        }
    }
}
