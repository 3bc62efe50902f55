/* Sharded checkpoints (.checkpoint.sharded): each rank writes a part, and any mesh reads them; what
 * is missing, damaged or of another checkpoint is named; a death leaves the checkpoint before. */
#include "parallel/train_processes.h"

#include "parallel/team_model.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>

typedef struct sharded_job {
    int ranks, stages, tensor_ranks, replicas, level;
    bool background, single;   /* written by a thread; as one file */
    int dies_at;               /* this step's checkpoint: rank 1 is killed in it */
    const char *folder, *path; /* loads path, or resumes from the folder */
    const char *saves;         /* also saves there after each checkpoint */
    dt_result refuses;         /* what that fails with */
    int resumes, steps;        /* `steps` are made, with a checkpoint after each */
    dt_result expects;
    char reason[200];
    bool unseen; /* rank 1 has another folder */
} sharded_job;

static bool sharded_make(rank *r, team_model *m, dt_trainer **t) {
    static const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 0.5};
    const sharded_job *s = r->job->arg;
    if (!EXPECT_TEXT(r, team_make(m, TEAM_BLOCKS, false), "made"))
        return false;
    dt_trainer_desc d = team_desc(m, &adam);
    d.comm = r->comm;
    d.devices = rank_devices(r);
    d.parallel.pipeline = s->stages;
    d.parallel.tensor = s->tensor_ranks;
    d.parallel.replicas = s->stages > 1 || s->tensor_ranks > 1 ? s->replicas : 0;
    d.parallel.batch_slices = 4;
    d.accumulate = 2;
    d.parallel.zero_stage = s->level;
    d.checkpoint.folder = s->unseen && r->index ? "/tmp/dtrain-unseen" : s->folder;
    d.checkpoint.keep = 2;
    d.checkpoint.sharded = !s->single;
    d.checkpoint.background = s->background;
    const dt_result result = dt_trainer_create(m->graph, &d, t);
    return EXPECT_TEXT(r, !result, "created: %s", dt_ctx_error(m->ctx));
}

/* Moments are shards with ZeRO: what they were is seen a step later. */
static step_record sharded_record(dt_trainer *t, const dt_train_report *report) {
    step_record s = record_of(t, report);
    if (dt_store_hash(dt_trainer_store(t), &s.hash))
        s.hash = 0;
    return s;
}

static void sharded_write(rank *r) {
    const sharded_job *s = r->job->arg;
    team_model m;
    dt_trainer *t;
    dt_train_report report = {0};
    bool found = false;
    if (!sharded_make(r, &m, &t))
        return;
    dt_result result = s->path      ? dt_trainer_load(t, s->path)
                       : s->resumes ? dt_trainer_resume(t, &found)
                                    : DT_OK;
    if (s->expects || result) {
        EXPECT_TEXT(r, result == s->expects, "%d: %s", (int)result, dt_ctx_error(m.ctx));
        EXPECT_TEXT(r, !s->reason[0] || strstr(dt_ctx_error(m.ctx), s->reason), "\"%s\" of \"%s\"",
                    s->reason, dt_ctx_error(m.ctx));
        snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
        return;
    }
    EXPECT_TEXT(r, !s->resumes || found, "found");
    snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
    r->records[0] = sharded_record(t, &report);
    for (int i = 1; i <= s->steps && !result; i++) {
        result = dt_trainer_step(t, &report);
        if (!result)
            r->records[i] = sharded_record(t, &report);
        if (!result && s->dies_at == i && r->index == 1)
            raise(SIGKILL);
        if (!result)
            result = dt_trainer_checkpoint(t);
        if (!result && s->saves) {
            const dt_result saved = dt_trainer_save(t, s->saves);
            EXPECT_TEXT(r, saved == s->refuses, "saved: %d, %s", (int)saved, dt_ctx_error(m.ctx));
            snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
        }
        atomic_store(&r->stage, i);
    }
    if (s->dies_at)
        EXPECT_TEXT(r, result != DT_OK, "rank 1 is gone");
    else if (s->unseen)
        EXPECT_TEXT(r,
                    result == DT_ERROR_IO &&
                        strstr(dt_ctx_error(m.ctx), "a folder that all ranks share"),
                    "%s", dt_ctx_error(m.ctx));
    else
        EXPECT_TEXT(r, !result, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

/* Ranks of as many devices as each needs. Its last record, and rank 0's text. */
static step_record sharded_run(const sharded_job *s, char text[1200]) {
    static const char *const devices[] = {"cpu", "cpu:2", "cpu:3", "cpu:4"};
    const int stages = s->stages ? s->stages : 1, tensor = s->tensor_ranks ? s->tensor_ranks : 1;
    const int all = stages * tensor * (s->replicas ? s->replicas : 1);
    job *j = job_new(s->ranks, s);
    step_record last = {0};
    for (int i = 0; i < s->ranks; i++)
        j->devices[i] = devices[all / s->ranks - 1];
    j->at[1].doomed = s->dies_at > 0;
    job_run(j, sharded_write);
    last = j->at[0].records[s->steps];
    for (int i = 1; i < s->ranks && !s->dies_at; i++)
        CHECK(record_equal(&last, &j->at[i].records[s->steps]) || s->expects);
    if (text)
        memcpy(text, j->at[0].text, sizeof j->at[0].text);
    job_free(j);
    return last;
}

/* ---- Folders */

static const char *sharded_folder(void) {
    static char folder[64];
    snprintf(folder, sizeof folder, "/tmp/dtrain-sharded-%ld", (long)getpid());
    return folder;
}

/* Removes what is in it; *entries: of the folder itself. */
static void sharded_clean(const char *folder, int *entries) {
    char path[600];
    DIR *list = opendir(folder);
    for (struct dirent *e; list && (e = readdir(list));) {
        if (e->d_name[0] == '.')
            continue;
        *entries += 1;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        int inner = 0;
        if (remove(path) != 0)
            sharded_clean(path, &inner);
    }
    if (list)
        closedir(list);
    snprintf(path, sizeof path, "%s/.dtrain.lock", folder);
    remove(path);
    rmdir(folder);
}

static int sharded_remove(void) {
    int entries = 0;
    sharded_clean(sharded_folder(), &entries);
    return entries;
}

static void sharded_path(char path[200], int step, const char *name) {
    snprintf(path, 200, "%s/step-%012d%s%s", sharded_folder(), step, *name ? "/" : "", name);
}

/* ---- Tests */

TEST(a_sharded_checkpoint_of_any_mesh_is_read_by_any_other) {
    static const sharded_job writers[] = {{.ranks = 3, .replicas = 3},
                                          {.ranks = 2, .replicas = 2, .level = 1},
                                          {.ranks = 2, .replicas = 4, .level = 3},
                                          {.ranks = 4, .stages = 2, .replicas = 2},
                                          {.ranks = 2, .stages = 2, .tensor_ranks = 2},
                                          {.ranks = 2, .stages = 2, .replicas = 2, .level = 2},
                                          {.ranks = 2, .tensor_ranks = 2, .background = true},
                                          {.ranks = 3, .replicas = 3, .background = true}};
    static const sharded_job readers[] = {{.ranks = 1},
                                          {.ranks = 2, .stages = 2},
                                          {.ranks = 2, .replicas = 2, .level = 3},
                                          {.ranks = 2, .tensor_ranks = 2, .single = true}};
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        sharded_job w = writers[i];
        char path[200];
        w.folder = sharded_folder();
        w.steps = 3;
        const step_record want = sharded_run(&w, NULL);
        for (int rank = 0; rank < w.ranks; rank++) {
            struct stat part = {0};
            char name[40];
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", rank + 1, w.ranks);
            sharded_path(path, 3, name);
            CHECK_TEXT(stat(path, &part) == 0 && part.st_size > 10000, "writer %d, part %d: %d",
                       (int)i, rank, (int)part.st_size);
        }
        sharded_path(path, 3, "");
        for (size_t k = 0; k < sizeof readers / sizeof *readers; k++) {
            sharded_job s = readers[k];
            s.path = path;
            s.folder = sharded_folder();
            const step_record got = sharded_run(&s, NULL);
            CHECK_TEXT(got.hash == want.hash && want.hash, "writer %d, reader %d", (int)i, (int)k);
        }
        CHECK(sharded_remove() == 3); /* two steps, and LATEST */
    }
}

TEST(sharded_checkpoints_resume_with_the_same_bits) {
    static const sharded_job chain[] = {{.ranks = 2, .stages = 2, .steps = 2},
                                        {.ranks = 2, .replicas = 2, .level = 2, .steps = 1},
                                        {.ranks = 3, .replicas = 3, .steps = 1, .background = true},
                                        {.ranks = 2, .replicas = 2, .level = 1, .steps = 1},
                                        {.ranks = 1, .steps = 1, .single = true},
                                        {.ranks = 4, .stages = 2, .replicas = 2, .steps = 1}};
    sharded_job s = {.ranks = 1, .steps = 7, .single = true, .folder = sharded_folder()};
    const step_record want = sharded_run(&s, NULL);
    step_record got = {0};
    sharded_remove();
    for (size_t i = 0; i < sizeof chain / sizeof *chain; i++) { /* kinds are mixed */
        s = chain[i];
        s.folder = sharded_folder();
        s.resumes = i > 0;
        got = sharded_run(&s, NULL);
    }
    CHECK(got.hash == want.hash && got.step == want.step && got.step == 7);
    CHECK(sharded_remove() == 3);
}

static void sharded_flip(const char *path, long at) {
    FILE *file = fopen(path, "r+b");
    CHECK(file && fseek(file, at, at < 0 ? SEEK_END : SEEK_SET) == 0);
    const int c = file ? fgetc(file) : 0;
    CHECK(file && fseek(file, at, at < 0 ? SEEK_END : SEEK_SET) == 0 && fputc(c ^ 1, file) >= 0);
    if (file)
        fclose(file);
}

#define SHARDED_ONE "model-00001-of-00002.safetensors"
#define SHARDED_TWO "model-00002-of-00002.safetensors"
#define SHARDED_INDEX "model.safetensors.index.json"

TEST(a_missing_damaged_or_foreign_checkpoint_part_is_named_and_the_earlier_checkpoint_loads) {
    static const char *const reasons[] = {"\"" SHARDED_TWO "\" is missing",
                                          SHARDED_TWO ": tensor \"",
                                          SHARDED_ONE ": it is intact, but of another checkpoint",
                                          SHARDED_INDEX " is missing", "not an index of"};
    for (int i = 0; i < 5; i++) {
        sharded_job w = {.ranks = 2, .stages = 2, .steps = 2, .folder = sharded_folder()};
        char path[3][200], text[1200];
        sharded_run(&w, NULL);
        sharded_path(path[0], 2, i < 2 ? SHARDED_TWO : i == 2 ? SHARDED_ONE : SHARDED_INDEX);
        sharded_path(path[1], 1, SHARDED_ONE);
        if (i == 0 || i == 3)
            CHECK(remove(path[0]) == 0);
        else if (i == 1)
            sharded_flip(path[0], -2000);
        else if (i == 2)
            CHECK(rename(path[1], path[0]) == 0);
        else
            sharded_flip(path[0], -3);
        sharded_path(path[2], 2, "");
        sharded_job s = {.ranks = 2, .replicas = 2, .path = path[2], .expects = DT_ERROR_FORMAT};
        s.folder = sharded_folder();
        snprintf(s.reason, sizeof s.reason, "%s", reasons[i]);
        sharded_run(&s, NULL);
        if (i != 2) {
            s = (sharded_job){.ranks = 2, .replicas = 2, .resumes = 1, .folder = sharded_folder()};
            const step_record got = sharded_run(&s, text);
            CHECK(got.hash != 0);
            CHECK_CONTAINS(text, reasons[i]);
            CHECK_CONTAINS(
                text, "training continues from the newest good checkpoint before it, of step 1");
        }
        sharded_remove();
    }
}

TEST(a_rank_that_dies_while_a_sharded_checkpoint_is_written_leaves_the_one_before) {
    for (int background = 0; background < 2; background++) {
        sharded_job w = {.ranks = 3, .replicas = 3, .level = 1, .steps = 3, .dies_at = 3};
        w.folder = sharded_folder();
        w.background = background;
        sharded_run(&w, NULL);
        sharded_job s = {.ranks = 2, .stages = 2, .resumes = 1, .steps = 1};
        s.folder = sharded_folder();
        const step_record got = sharded_run(&s, NULL);
        /* threads may still write the one of step 2 when the rank dies */
        CHECK_TEXT(got.step == 3 || (background && got.step == 2), "step %d", (int)got.step);
        CHECK(sharded_remove() == 3);
    }
}

/* Rank 0, which writes the index, or rank 1, at any time of writing. */
TEST(a_rank_that_is_killed_at_any_time_of_a_sharded_checkpoint_leaves_a_whole_newest) {
    for (int i = 0; i < 8 && test_now.failures < 3; i++) {
        sharded_job w = {.ranks = 2, .stages = 2, .steps = 60, .dies_at = 1000};
        w.folder = sharded_folder();
        w.background = i % 4 > 1;
        job *j = job_new(2, &w);
        const int victim = i % 2;
        j->at[victim].doomed = true;
        job_start(j, sharded_write);
        CHECK(job_await(j, victim, 2));
        job_sleep_us(300 + 700 * i);
        job_signal(j, victim, SIGKILL);
        job_end(j);
        job_free(j);
        sharded_job s = {.ranks = 2, .replicas = 2, .resumes = 1, .steps = 1};
        s.folder = sharded_folder();
        const step_record got = sharded_run(&s, NULL);
        CHECK_TEXT(got.step >= 2, "step %d", (int)got.step);
        CHECK(sharded_remove() == 3);
    }
}

TEST(a_sharded_checkpoint_in_a_folder_that_not_all_ranks_see_is_refused_on_all) {
    sharded_job w = {.ranks = 2, .replicas = 2, .steps = 1, .unseen = true};
    w.folder = sharded_folder();
    sharded_run(&w, NULL);
    CHECK(sharded_remove() == 0);
}

/* Two jobs of one process each. */
TEST(a_second_job_in_a_checkpoint_folder_is_refused_with_the_owners_name) {
    const sharded_job s = {.ranks = 1, .single = true, .folder = sharded_folder()};
    job *j = job_new(2, &s);
    rank *first = &j->at[0], *second = &j->at[1];
    team_model m;
    dt_trainer *t;
    char who[64];
    first->job = second->job = j;
    const pid_t pid = fork(); /* the job is in memory that both have */
    if (pid == 0) {
        if (sharded_make(first, &m, &t))
            EXPECT(first, dt_trainer_checkpoint(t) == DT_OK);
        atomic_store(&first->stage, 1);
        for (;;)
            pause();
    }
    first->pid = pid;
    CHECK(pid > 0 && job_await(j, 0, 1));
    if (pid > 0 && sharded_make(second, &m, &t)) {
        CHECK(dt_trainer_checkpoint(t) == DT_ERROR_IO);
        snprintf(who, sizeof who, "process %ld on host ", (long)pid);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), who);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), "another job writes to this .checkpoint.folder");
        const dt_fit_desc fit = {.steps = 9, .no_resume = true};
        CHECK(dt_trainer_fit(t, &fit, NULL) == DT_ERROR_IO); /* before its first step */
        CHECK_CONTAINS(dt_ctx_error(m.ctx), "another job writes to this .checkpoint.folder");
        dt_trainer_info is;
        dt_trainer_get_info(t, &is);
        CHECK(is.step == 0);
        kill(pid, SIGKILL);
        waitpid(pid, &first->status, 0);
        CHECK_TEXT(dt_trainer_checkpoint(t) == DT_OK, "%s", dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
    CHECK_TEXT(!first->failed[0] && !second->failed[0], "%s%s", first->failed, second->failed);
    job_free(j);
    sharded_remove();
}

TEST(a_save_waits_for_a_sharded_checkpoint_that_a_thread_writes) {
    char path[2][200];
    sharded_job w = {.ranks = 2, .replicas = 2, .level = 1, .steps = 3, .background = true};
    w.folder = sharded_folder();
    snprintf(path[0], sizeof path[0], "%s-saved", sharded_folder());
    w.saves = path[0];
    const step_record want = sharded_run(&w, NULL);
    sharded_path(path[1], 3, "");
    for (int i = 0; i < 2; i++) {
        sharded_job s = {.ranks = 1, .path = path[i], .folder = sharded_folder()};
        const step_record got = sharded_run(&s, NULL);
        CHECK_TEXT(got.hash == want.hash && want.hash, "%s", path[i]);
    }
    int entries = 0;
    sharded_clean(path[0], &entries);
    CHECK(entries == 3 && sharded_remove() == 3);
}

static void sharded_put(const char *path) {
    FILE *file = fopen(path, "w");
    CHECK(file && fputs("mine", file) >= 0);
    if (file)
        fclose(file);
}

TEST(a_save_into_a_folder_of_other_files_is_refused) {
    char path[200], mine[300], text[1200];
    sharded_job w = {.ranks = 2, .replicas = 2, .steps = 1, .folder = sharded_folder()};
    snprintf(path, sizeof path, "%s-mine", sharded_folder());
    snprintf(mine, sizeof mine, "%s/model.py", path);
    CHECK(mkdir(path, 0777) == 0);
    sharded_put(mine);
    w.saves = path;
    w.refuses = DT_ERROR_INVALID;
    sharded_run(&w, text);
    CHECK_CONTAINS(text, "model.py");
    CHECK(access(mine, F_OK) == 0);
    CHECK(remove(mine) == 0);
    w.refuses = DT_OK; /* one that is empty is as good as none, and so is a checkpoint */
    w.steps = 2;
    sharded_run(&w, NULL);
    int entries = 0;
    sharded_clean(path, &entries);
    CHECK(entries == 3);
    sharded_remove();
}

#ifdef __linux__
static atomic_bool sharded_saving;
static atomic_int sharded_missed;

static void *sharded_look(void *path) {
    bool there = false;
    while (atomic_load(&sharded_saving)) {
        const bool now = access(path, F_OK) == 0;
        atomic_fetch_add(&sharded_missed, there && !now);
        there = there || now;
    }
    return NULL;
}

TEST(a_save_over_a_file_always_leaves_a_complete_file) {
    char path[200];
    pthread_t looks;
    sharded_job w = {.ranks = 2, .replicas = 2, .steps = 6, .folder = sharded_folder()};
    snprintf(path, sizeof path, "%s-saved", sharded_folder());
    w.saves = path;
    atomic_store(&sharded_saving, true);
    CHECK(pthread_create(&looks, NULL, sharded_look, path) == 0);
    sharded_run(&w, NULL);
    atomic_store(&sharded_saving, false);
    pthread_join(looks, NULL);
    CHECK_TEXT(!atomic_load(&sharded_missed), "missed %d times", atomic_load(&sharded_missed));
    int entries = 0;
    sharded_clean(path, &entries);
    CHECK(entries == 3);
    sharded_remove();
}
#endif
