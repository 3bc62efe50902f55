/* ZeRO: the same bits of weights, moments, averages and files as without, on threads and processes,
 * for checkpoints of any stage; how much memory it takes; and what is refused. */
#include "parallel/train_processes.h"

#include <pthread.h>

enum { BATCH_SLICE_STEPS = 6, BATCH_SLICE_SAVED = 3 };

/* ---- what is trained, and how */

typedef struct shard_case {
    int kind; /* train_model_make's */
    dt_optim_desc optim;
    const char *params;
    int accumulate;
    size_t bucket_bytes;
} shard_case;

#define BATCH_SLICE_ADAM .kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 0.5
static const shard_case shard_cases[] = {
    {.kind = 1, .optim = {BATCH_SLICE_ADAM}, .bucket_bytes = 1024},
    {.kind = TRAIN_SUMS,
     .optim = {BATCH_SLICE_ADAM, .average = {.kind = DT_AVERAGE_EMA, .decay = 0.9}},
     .accumulate = 2,
     .bucket_bytes = 2048},
    {.kind = TRAIN_SPECTRAL,
     .optim = {.kind = DT_OPTIM_SGD, .lr = 0.05, .momentum = 0.9},
     .bucket_bytes = 1024},
    {.optim = {.kind = DT_OPTIM_SGD, .lr = 0.05}}, /* no moments at all */
    {.optim = {.kind = DT_OPTIM_RMSPROP, .lr = 0.003, .centered = true, .momentum = 0.5},
     .params = "fc?.weight"},
    {.optim = {.kind = DT_OPTIM_ADAMW,
               .lr = 0.01,
               .groups = {{.params = "fc0.weight", .sparse = true},
                          {.params = "fc2.*", .lr_scale = 3}}},
     .bucket_bytes = 1024},
    {.kind = 1, .optim = {.kind = DT_OPTIM_LAMB, .lr = 0.01}, .bucket_bytes = 1024},
    {.optim = {.kind = DT_OPTIM_LARS, .lr = 0.1, .momentum = 0.9}, .bucket_bytes = 4096},
    {.kind = 1,
     .optim = {.kind = DT_OPTIM_MUON,
               .lr = 0.02,
               .groups = {{.params = "fc2.*", .elementwise = true}}},
     .bucket_bytes = 1024},
    {.kind = 1, .optim = {.kind = DT_OPTIM_ADAFACTOR, .lr = 0.01}},
};
enum { BATCH_SLICE_CASES = sizeof shard_cases / sizeof *shard_cases };

/* What a run has done: the values of its store, and its files byte by byte. */
typedef struct shard_run {
    uint64_t weights;     /* at the end */
    uint64_t state;       /* at the end; 0: where it is sharded between ranks */
    uint64_t saved, last; /* of the files after BATCH_SLICE_SAVED steps, and at the end */
    double loss;          /* of an evaluation, with averages where there are some */
} shard_run;

static uint64_t shard_file_hash(const char *path) {
    FILE *f = fopen(path, "rb");
    uint64_t hash = 14695981039346656037ull;
    int c, count = 0;
    for (; f && (c = fgetc(f)) != EOF; count++)
        hash = (hash ^ (uint64_t)c) * 1099511628211u;
    if (f)
        fclose(f);
    return count ? hash : 0;
}

typedef struct shard_job {
    const shard_case *what;
    const char *devices;
    int zero_stage, shard_degree;
    bool offload;
    dt_comm *comm;
    const char *path; /* of files of rank 0 */
    const char *from; /* another run's saved file to go on from, or NULL */
    char *text;       /* [1200] what failed */
    const dt_dataset *data;
} shard_job;

static dt_result shard_steps(dt_trainer *trainer, const shard_job *j, shard_run *out) {
    const bool writes = dt_comm_rank(j->comm) == 0;
    dt_result result = DT_OK;
    if (j->from)
        result = dt_trainer_load(trainer, j->from);
    for (int i = j->from ? BATCH_SLICE_SAVED : 0; i < BATCH_SLICE_STEPS && !result; i++) {
        result = dt_trainer_step(trainer, NULL);
        if (result || i + 1 != BATCH_SLICE_SAVED)
            continue;
        result = dt_trainer_save(trainer, j->path);
        out->saved = writes ? shard_file_hash(j->path) : 0;
    }
    if (!result)
        result = dt_store_hash(dt_trainer_store(trainer), &out->weights);
    dt_train_report report = {0};
    if (!result)
        result = dt_trainer_evaluate(trainer, j->data, 0, &report);
    out->loss = report.loss;
    char last[128];
    snprintf(last, sizeof last, "%s.last", j->path);
    if (!result)
        result = dt_trainer_save(trainer, last);
    out->last = writes ? shard_file_hash(last) : 0;
    if (writes)
        remove(last);
    if (result || dt_store_state_hash(dt_trainer_store(trainer), &out->state))
        out->state = 0;
    return result;
}

static bool shard_train(const shard_job *j, shard_run *out) {
    train_model m;
    dt_trainer *trainer = NULL;
    *out = (shard_run){0};
    if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = !strstr(j->devices, "vulkan")},
                          j->what->kind))
        return false;
    m.adam = j->what->optim;
    dt_trainer_desc d = train_desc(&m);
    d.comm = j->comm;
    d.devices = j->devices;
    d.parallel.batch_slices = 4;
    d.parallel.zero_stage = j->zero_stage;
    d.parallel.shard_degree = j->shard_degree;
    d.parallel.offload = j->offload;
    d.params = j->what->params;
    d.accumulate = j->what->accumulate;
    d.parallel.bucket_bytes = j->what->bucket_bytes;
    d.averaged = m.adam.average.kind != DT_AVERAGE_NONE;
    shard_job own = *j;
    own.data = &d.data;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    if (!result)
        result = shard_steps(trainer, &own, out);
    snprintf(j->text, 1200, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return !result;
}

/* One replica with all of the state, and a file that others go on from. */
static shard_run shard_oracle[BATCH_SLICE_CASES];

static const char *shard_path(int i) {
    static char path[64];
    snprintf(path, sizeof path, "build/shard_%ld_%d.safetensors", (long)getpid(), i);
    return path;
}

static bool shard_oracle_make(int i) {
    char path[64], text[1200];
    snprintf(path, sizeof path, "%s", shard_path(i));
    const shard_job j = {.what = &shard_cases[i], .devices = "cpu", .path = path, .text = text};
    return CHECK_TEXT(shard_train(&j, &shard_oracle[i]), "the oracle of case %d: %s", i, text);
}

static void shard_oracle_remove(void) {
    for (int i = 0; i < BATCH_SLICE_CASES; i++)
        remove(shard_path(i));
}

/* ---- threads */

static void shard_try_degree(int i, const char *devices, int zero_stage, int degree, bool resumes) {
    char oracle[64], path[80], text[1200];
    snprintf(oracle, sizeof oracle, "%s", shard_path(i));
    snprintf(path, sizeof path, "%s.own", oracle);
    const shard_job j = {.what = &shard_cases[i],
                         .devices = devices,
                         .zero_stage = zero_stage,
                         .shard_degree = degree,
                         .path = path,
                         .from = resumes ? oracle : NULL,
                         .text = text};
    shard_run got;
    const shard_run *want = &shard_oracle[i];
    const bool ran = shard_train(&j, &got);
    CHECK_TEXT(ran && got.weights == want->weights && got.state == want->state &&
                   (resumes || got.saved == want->saved) && got.last == want->last && got.state &&
                   fabs(got.loss - want->loss) < 1e-6 * want->loss,
               "case %d, %s, parallel.zero_stage %d, shard_degree %d%s: weights %016llx %016llx, "
               "state %016llx %016llx, "
               "files %d %d: %s",
               i, devices, zero_stage, degree, resumes ? ", resumed" : "",
               (unsigned long long)got.weights, (unsigned long long)want->weights,
               (unsigned long long)got.state, (unsigned long long)want->state,
               got.saved == want->saved, got.last == want->last, text);
    remove(path);
}

static void shard_try(int i, const char *devices, int zero_stage, bool resumes) {
    shard_try_degree(i, devices, zero_stage, 0, resumes);
}

TEST(zero_1_has_the_bits_of_replicas_that_each_have_the_state) {
    for (int i = 0; i < BATCH_SLICE_CASES; i++) {
        if (!shard_oracle_make(i))
            continue;
        shard_try(i, "cpu", 1, false);
        shard_try(i, "cpu:2", 1, false);
        shard_try(i, "cpu:3", 1, i % 2 == 0);
        shard_try(i, "cpu:4", 0, false);
        shard_try(i, "cpu:4", 1, false);
        shard_try(i, "cpu:4", 1, true);
    }
    shard_oracle_remove();
}

/* Gradients that go to their owners while others are computed; parameters that come from them. */
TEST(zero_2_and_3_have_the_bits_of_a_replica_that_has_all) {
    for (int i = 0; i < BATCH_SLICE_CASES; i++) {
        if (!shard_oracle_make(i))
            continue;
        for (int level = DT_SHARD_GRADIENTS; level <= DT_SHARD_PARAMETERS; level++) {
            shard_try(i, "cpu", level, false);
            shard_try(i, "cpu:2", level, i % 2 == 0);
            shard_try(i, "cpu:3", level, false);
            shard_try(i, "cpu:4", level, i % 2);
        }
    }
    shard_oracle_remove();
}

/* HSDP: each group of replicas has the state once. */
TEST(shard_groups_of_replicas_have_the_bits_of_one_replica) {
    for (int i = 0; i < BATCH_SLICE_CASES; i++) {
        if (!shard_oracle_make(i))
            continue;
        for (int level = DT_SHARD_OPTIMIZER; level <= DT_SHARD_PARAMETERS; level++) {
            shard_try_degree(i, "cpu:4", level, 2, i % 2);
            shard_try_degree(i, "cpu:3", level, 1, i % 2 == 0);
        }
    }
    shard_oracle_remove();
}

/* A file of sharing replicas, in all that may go on from it. */
TEST(a_checkpoint_of_4_zero_replicas_resumes_on_2_or_1_or_without_zero) {
    char path[64], text[1200];
    snprintf(path, sizeof path, "%s", shard_path(0));
    for (int i = 0; i < 2; i++) {
        shard_run first, next;
        shard_job j = {.what = &shard_cases[i], .devices = "cpu:4", .zero_stage = 1};
        j.path = path;
        j.text = text;
        CHECK_TEXT(shard_train(&j, &first), "%s", text);
        static const struct {
            const char *devices;
            int zero_stage;
        } others[] = {{"cpu:2", 1}, {"cpu", 1}, {"cpu:2", 0}, {"cpu", 0}};
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            char own[80];
            snprintf(own, sizeof own, "%s.own", path);
            shard_job again = j;
            again.devices = others[k].devices;
            again.zero_stage = others[k].zero_stage;
            again.path = own;
            again.from = path;
            CHECK_TEXT(shard_train(&again, &next), "%s", text);
            CHECK(next.state == first.state && next.last == first.last && next.state);
        }
    }
    remove(path);
}

/* ---- devices */

/* The first Vulkan device, up to 3 times; false: there is no such one. */
static bool shard_vulkan(int n, char devices[200]) {
    dt_ctx *ctx;
    if (dt_ctx_create(NULL, &ctx))
        return false;
    const dt_device_info *info = dt_ctx_device(ctx, 1);
    const bool there = info && info->usable;
    const char *id = there ? info->id : "";
    snprintf(devices, 200, "%s%s%s%s%s", id, n > 1 ? "," : "", n > 1 ? id : "", n > 2 ? "," : "",
             n > 2 ? id : "");
    dt_ctx_destroy(ctx);
    return there;
}

/* Kernels find a part of the moments as they find all of them; units come to the device between
 * segments, and leave by way of the host. */
TEST(replicas_on_vulkan_share_the_state_with_the_bits_of_one) {
    static const int cases[] = {1, 4, 5, 6, 9};
    const bool all = getenv("DTRAIN_TEST_LONG") != NULL;
    char one[200], three[200], text[1200];
    if (!shard_vulkan(1, one) || !shard_vulkan(all ? 3 : 2, three))
        SKIP("no Vulkan device");
    for (size_t k = 0; k < (all ? sizeof cases / sizeof *cases : 2); k++) {
        shard_run want, got;
        shard_job j = {.what = &shard_cases[cases[k]], .devices = one, .text = text};
        j.path = shard_path(cases[k]);
        CHECK_TEXT(shard_train(&j, &want), "case %d: %s", cases[k], text);
        j.devices = three;
        for (j.zero_stage = all || !k ? 1 : 3; j.zero_stage <= 3; j.zero_stage++) {
            CHECK_TEXT(shard_train(&j, &got), "case %d: %s", cases[k], text);
            CHECK_TEXT(got.state == want.state && got.last == want.last && got.state &&
                           fabs(got.loss - want.loss) < 1e-6 * want.loss,
                       "case %d, parallel.zero_stage %d: state %016llx %016llx", cases[k],
                       j.zero_stage, (unsigned long long)got.state, (unsigned long long)want.state);
        }
        remove(j.path);
    }
}

/* Each has what the owner rounded. */
TEST(the_cpu_and_vulkan_share_the_state_of_a_job) {
    char one[200], devices[220], text[1200];
    if (!shard_vulkan(1, one))
        SKIP("no Vulkan device");
    shard_run cpu, both;
    shard_job j = {.what = &shard_cases[1], .devices = "cpu", .text = text, .path = shard_path(1)};
    CHECK_TEXT(shard_train(&j, &cpu), "%s", text);
    j.devices = devices;
    for (j.zero_stage = 1; j.zero_stage <= DT_SHARD_PARAMETERS; j.zero_stage++) {
        for (int first = j.zero_stage % 2; first < 2; first++) {
            snprintf(devices, sizeof devices, first ? "%s,cpu" : "cpu,%s", one);
            CHECK_TEXT(shard_train(&j, &both), "%s, parallel.zero_stage %d: %s", devices,
                       j.zero_stage, text);
            CHECK_NEAR(cpu.loss, both.loss, 2e-3 * cpu.loss);
        }
    }
    remove(j.path);
}

/* ---- updates on the host */

/* By the processor's kernels, for any owners. 1, 2 and 3 replicas, with 2 and with 3, and one that
 * resumes from a file. All have the same bits of everything; and the CPU's within rounding. */
TEST(updates_on_the_host_have_the_same_bits_for_any_number_of_devices) {
    static const int cases[] = {1, 2, 8, 5, 4, 6, 9, 0, 3, 7};
    const bool all = getenv("DTRAIN_TEST_LONG") != NULL;
    char devices[3][200], text[1200], from[80];
    if (!shard_vulkan(1, devices[0]) || !shard_vulkan(2, devices[1]) ||
        !shard_vulkan(3, devices[2]))
        SKIP("no Vulkan device");
    for (size_t k = 0; k < (all ? sizeof cases / sizeof *cases : 3); k++) {
        shard_run cpu, want, got;
        shard_job j = {.what = &shard_cases[cases[k]], .devices = "cpu", .text = text};
        j.path = shard_path(cases[k]);
        CHECK_TEXT(shard_train(&j, &cpu), "case %d: %s", cases[k], text);
        j.zero_stage = DT_SHARD_GRADIENTS;
        j.offload = true;
        j.devices = devices[0];
        CHECK_TEXT(shard_train(&j, &want), "case %d: %s", cases[k], text);
        CHECK_NEAR(cpu.loss, want.loss, 2e-3 * cpu.loss);
        snprintf(from, sizeof from, "%s.from", j.path);
        rename(j.path, from);
        for (int i = 0; i < (all ? 5 : 2); i++) {
            j.devices = devices[all ? i % 3 : 1];
            j.zero_stage = all ? 2 + (i + 1) % 2 : 3 - i;
            j.from = (all ? i > 2 : i) ? from : NULL;
            CHECK_TEXT(shard_train(&j, &got), "case %d: %s", cases[k], text);
            CHECK_TEXT(got.state == want.state && got.last == want.last && got.state &&
                           got.weights == want.weights && (j.from || got.saved == want.saved),
                       "case %d, %s, parallel.zero_stage %d: state %016llx %016llx", cases[k],
                       j.devices, j.zero_stage, (unsigned long long)got.state,
                       (unsigned long long)want.state);
        }
        remove(j.path);
        remove(from);
    }
}

/* Ranks that are threads: a driver need not work after a fork. */
typedef struct shard_rank_of {
    shard_job job;
    shard_run got;
    char path[80], text[1200];
    bool ran;
    pthread_t thread;
} shard_rank_of;

static void *shard_rank_run(void *arg) {
    shard_rank_of *r = arg;
    r->ran = shard_train(&r->job, &r->got);
    return NULL;
}

static void shard_threads(int what, const char *const devices[2], int level, bool offload,
                          shard_rank_of at[2]) {
    dt_comm *comms[2];
    REQUIRE(!dt_comm_create_threads(NULL, 2, comms));
    for (int i = 0; i < 2; i++) {
        at[i] = (shard_rank_of){.ran = false};
        snprintf(at[i].path, sizeof at[i].path, "%s.%d", shard_path(what), i);
        at[i].job = (shard_job){.what = &shard_cases[what],
                                .devices = devices[i],
                                .zero_stage = level,
                                .offload = offload,
                                .comm = comms[i],
                                .path = at[i].path,
                                .text = at[i].text};
        if (pthread_create(&at[i].thread, NULL, shard_rank_run, &at[i]))
            exit(1); /* the other would wait for it */
    }
    for (int i = 0; i < 2; i++)
        pthread_join(at[i].thread, NULL);
    for (int i = 0; i < 2; i++) {
        dt_comm_destroy(comms[i]);
        remove(at[i].path);
    }
}

TEST(ranks_on_vulkan_share_gradients_and_parameters_with_the_bits_of_one_replica) {
    char one[200], two[200], text[1200];
    shard_rank_of at[2];
    shard_run want;
    if (!shard_vulkan(1, one) || !shard_vulkan(2, two))
        SKIP("no Vulkan device");
    for (int what = 0; what < 2; what++) {
        const shard_job alone = {
            .what = &shard_cases[what], .devices = one, .text = text, .path = shard_path(what)};
        CHECK_TEXT(shard_train(&alone, &want), "%s", text);
        shard_threads(what, (const char *[]){one, what ? two : one}, DT_SHARD_GRADIENTS + what,
                      false, at);
        for (int i = 0; i < 2; i++)
            CHECK_TEXT(at[i].ran && at[i].got.weights == want.weights, "case %d, rank %d: %s", what,
                       i, at[i].text);
        CHECK(at[0].got.last == want.last && at[0].got.saved == want.saved);
        remove(alone.path);
    }
}

/* On both ranks what the owners rounded; and what one device computes is near. */
TEST(a_rank_on_the_cpu_and_one_on_vulkan_share_gradients_and_parameters) {
    char one[200], text[1200];
    shard_rank_of at[2];
    shard_run want;
    const shard_job alone = {
        .what = &shard_cases[1], .devices = "cpu", .text = text, .path = shard_path(1)};
    if (!shard_vulkan(1, one))
        SKIP("no Vulkan device");
    CHECK_TEXT(shard_train(&alone, &want), "%s", text);
    for (int level = DT_SHARD_GRADIENTS; level <= DT_SHARD_PARAMETERS; level++) {
        shard_threads(1, (const char *[]){level == 2 ? one : "cpu", level == 2 ? "cpu" : one},
                      level, false, at);
        for (int i = 0; i < 2; i++)
            CHECK_TEXT(at[i].ran && at[i].got.weights == at[0].got.weights &&
                           fabs(at[i].got.loss - want.loss) < 2e-3 * want.loss,
                       "level %d, rank %d: %s", level, i, at[i].text);
    }
    remove(alone.path);
}

/* ---- processes */

static int shard_level = 1, shard_degree; /* of the ranks' jobs */
static bool shard_whole;                  /* each rank has all of the state */

/* Under a sanitizer each level has other cases. */
static bool shard_takes(int i) {
    return test_takes(i + shard_level, 1, 3);
}

static void shard_rank(rank *r) {
    const char *prefix = r->job->arg;
    for (int i = 0; i < BATCH_SLICE_CASES; i++) {
        if (!shard_takes(i))
            continue;
        char path[128], oracle[128];
        snprintf(path, sizeof path, "%s_%d.own", prefix, i);
        snprintf(oracle, sizeof oracle, "%s_%d.safetensors", prefix, i);
        shard_run got;
        const shard_run *want = &shard_oracle[i];
        for (int resumes = 0; resumes < 2; resumes++) {
            const shard_job j = {.what = &shard_cases[i],
                                 .devices = rank_devices(r),
                                 .zero_stage = shard_level,
                                 .shard_degree = shard_degree,
                                 .comm = r->comm,
                                 .path = path,
                                 .from = resumes ? oracle : NULL,
                                 .text = r->text};
            const bool ran = shard_train(&j, &got);
            EXPECT_TEXT(r, ran, "case %d: %s", i, r->text);
            if (!ran)
                return;
            EXPECT_TEXT(r, got.weights == want->weights, "case %d: weights", i);
            EXPECT_TEXT(r, fabs(got.loss - want->loss) < 1e-6 * want->loss, "case %d: loss %g, %g",
                        i, got.loss, want->loss);
            EXPECT_TEXT(r, r->index || got.last == want->last, "case %d: file", i);
            EXPECT_TEXT(r, r->index || resumes || got.saved == want->saved, "case %d: saved", i);
            /* a hash of a state that is elsewhere; of one without moments there is one */
            EXPECT_TEXT(r, shard_whole || i == 3 ? got.state == want->state : !got.state,
                        "case %d: state", i);
        }
        if (r->index == 0)
            remove(path);
    }
}

typedef struct shard_mesh {
    int ranks, degree;
    const char *devices[4];
} shard_mesh;

static void shard_ranks(int level, const shard_mesh *meshes, int count) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "build/shard_%ld", (long)getpid());
    shard_level = level;
    for (int i = 0; i < BATCH_SLICE_CASES; i++)
        REQUIRE(!shard_takes(i) || shard_oracle_make(i));
    for (int k = 0; k < count; k++) {
        job *j = job_new(meshes[k].ranks, prefix);
        REQUIRE(j);
        shard_degree = meshes[k].degree;
        shard_whole = shard_degree && meshes[k].ranks * shard_degree <= 4;
        for (int i = 0; i < meshes[k].ranks; i++)
            j->devices[i] = meshes[k].devices[i];
        job_run(j, shard_rank);
        job_free(j);
    }
    shard_oracle_remove();
}

static const shard_mesh shard_meshes[] = {{2, 0, {"cpu", "cpu"}},
                                          {2, 0, {"cpu:2", "cpu:2"}},
                                          {3, 0, {"cpu", "cpu:2", "cpu"}},
                                          {4, 0, {"cpu", "cpu", "cpu", "cpu"}}};

TEST(ranks_that_share_the_state_have_the_bits_and_the_files_of_one_replica) {
    shard_ranks(DT_SHARD_OPTIMIZER, shard_meshes, sizeof shard_meshes / sizeof *shard_meshes);
}

TEST(ranks_that_share_gradients_have_the_bits_and_the_files_of_one_replica) {
    shard_ranks(DT_SHARD_GRADIENTS, shard_meshes, sizeof shard_meshes / sizeof *shard_meshes);
}

TEST(ranks_that_share_parameters_have_the_bits_and_the_files_of_one_replica) {
    shard_ranks(DT_SHARD_PARAMETERS, shard_meshes, sizeof shard_meshes / sizeof *shard_meshes);
}

/* A group on each rank, one of two ranks, and ranks of unequal size. */
TEST(shard_groups_of_ranks_have_the_bits_and_the_files_of_one_replica) {
    static const shard_mesh meshes[] = {
        {2, 2, {"cpu:2", "cpu:2"}}, {4, 2, {"cpu", "cpu", "cpu", "cpu"}}, {2, 1, {"cpu", "cpu:3"}}};
    for (int level = DT_SHARD_OPTIMIZER; level <= DT_SHARD_PARAMETERS; level++)
        shard_ranks(level, meshes, sizeof meshes / sizeof *meshes);
}

/* ---- the best weights of a fit, which are averages that ranks share */

enum { SHARD_PIPELINE = 4 }; /* and a stage of ZeRO: in each of two stages */

/* back: weights go back to their best, far from where they end; else their averages are saved. */
static dt_result shard_fit(dt_comm *comm, int level, bool back, const char *path, char text[1200]) {
    train_model m;
    dt_trainer *trainer = NULL;
    if (!train_model_make(&m, &one_thread, 0))
        return DT_ERROR_MEMORY;
    if (back)
        m.adam.lr = 0.2;
    else
        m.adam.average = (dt_average){.kind = DT_AVERAGE_EMA, .decay = 0.9};
    dt_trainer_desc d = train_desc(&m);
    d.comm = comm;
    d.devices = level > SHARD_PIPELINE ? "cpu:2" : "cpu";
    d.parallel.batch_slices = 2;
    d.averaged = !back;
    d.parallel.pipeline = level >= SHARD_PIPELINE ? 2 : 0;
    d.parallel.zero_stage = level % SHARD_PIPELINE;
    dt_fit_desc fit = {.epochs = 1, .validation = &d.data, .watch = {.save = path}};
    if (back) {
        fit.validation_steps = 2;
        fit.watch = (dt_watch){.restore_best = true};
    }
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    if (!result)
        result = dt_trainer_fit(trainer, &fit, NULL);
    dt_store *store = result ? NULL : dt_trainer_store(trainer);
    if (!result && back && dt_comm_rank(comm) == 0)
        result = dt_store_save(store, path);
    snprintf(text, 1200, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return result;
}

static bool shard_back;

static void shard_fit_rank(rank *r) {
    r->result = shard_fit(r->comm, shard_level, shard_back, r->job->arg, r->text);
    EXPECT_TEXT(r, !r->result, "%s", r->text);
}

static void shard_fits(bool back) {
    char one[64], two[64], text[1200];
    snprintf(one, sizeof one, "%s", shard_path(0));
    snprintf(two, sizeof two, "%s", shard_path(1));
    shard_back = back;
    CHECK_TEXT(!shard_fit(NULL, 0, back, one, text), "%s", text);
    for (shard_level = DT_SHARD_OPTIMIZER; shard_level <= SHARD_PIPELINE + DT_SHARD_PARAMETERS;
         shard_level++) {
        job *j = job_new(2, two);
        REQUIRE(j);
        job_run(j, shard_fit_rank);
        job_free(j);
        CHECK_TEXT(shard_file_hash(one) && shard_file_hash(one) == shard_file_hash(two), "%d",
                   shard_level);
        remove(two);
    }
    remove(one);
}

TEST(the_best_averages_of_ranks_that_share_them_are_saved) {
    shard_fits(false);
}

TEST(the_best_weights_of_zero_ranks_are_restored) {
    shard_fits(true);
}

/* ---- memory */

static uint64_t shard_blocks(uint64_t n) {
    return (n + 255) / 256;
}

/* The formula of dt_trainer_desc.parallel.zero_stage. */
TEST(the_state_of_each_replica_takes_the_bytes_of_the_formula) {
    uint64_t allocated[2] = {0};
    for (int zero_stage = 0; zero_stage < 2; zero_stage++) {
        for (int replicas = 1; replicas <= 4; replicas += 3) {
            train_model m;
            dt_trainer *trainer;
            dt_trainer_info info;
            dt_ctx_info memory;
            char devices[16];
            uint64_t blocks = 0;
            snprintf(devices, sizeof devices, "cpu:%d", replicas);
            REQUIRE(train_model_make(&m, &one_thread, 0));
            dt_trainer_desc d = train_desc(&m);
            d.devices = devices;
            d.parallel.zero_stage = zero_stage;
            d.parallel.batch_slices = 4;
            REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
            dt_trainer_get_info(trainer, &info);
            dt_ctx_get_info(m.ctx, &memory);
            const int params = dt_store_param_count(dt_trainer_store(trainer));
            for (int i = 0; i < params; i++) {
                dt_param_info p;
                CHECK(!dt_store_get_param(dt_trainer_store(trainer), i, &p));
                blocks += shard_blocks(p.elements);
            }
            const uint64_t own = zero_stage ? blocks / (uint64_t)replicas : blocks;
            CHECK(info.state_bytes == 1024 * (1 + 2 * shard_blocks((uint64_t)params) +
                                              shard_blocks(2 * blocks) + 2 * own));
            if (replicas == 4) /* of this context: the first replica's */
                allocated[zero_stage] = memory.host_bytes - info.state_bytes;
            dt_ctx_destroy(m.ctx);
        }
    }
    /* all except the state is the same, up to tables of a few words */
    CHECK(allocated[1] <= allocated[0] + 4096 && allocated[0] <= allocated[1] + 4096);
}

TEST(a_step_with_zero_allocates_nothing) {
    for (int level = DT_SHARD_OPTIMIZER; level <= DT_SHARD_PARAMETERS; level++) {
        train_model m;
        dt_trainer *trainer;
        dt_ctx_info before, after;
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 1));
        dt_trainer_desc d = train_desc(&m);
        d.devices = "cpu:3";
        d.parallel.zero_stage = level;
        d.parallel.bucket_bytes = 1024;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        dt_ctx_get_info(m.ctx, &before);
        for (int i = 0; i < 6; i++)
            CHECK(dt_trainer_step(trainer, NULL) == DT_OK);
        dt_ctx_get_info(m.ctx, &after);
        CHECK(before.host_alloc_calls == after.host_alloc_calls);
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- many layers of one size, of which each is a unit */

enum { DEEP_LAYERS = 40, DEEP_SIZE = 32 };

typedef struct deep {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, loss;
    dt_optim_desc optim;
    float rows[64 * DEEP_SIZE];
} deep;

static bool deep_make_on(deep *m, const dt_ctx_desc *desc) {
    if (dt_ctx_create(desc, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(DEEP_SIZE));
    dt_tensor h = m->x;
    for (int i = 0; i < DEEP_LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", i);
        h = dt_tanh(dt_nn_linear(h, name, DEEP_SIZE));
    }
    m->loss = dt_mse(h, m->x);
    m->optim = (dt_optim_desc){.kind = DT_OPTIM_ADAM, .lr = 1e-3};
    for (int i = 0; i < 64 * DEEP_SIZE; i++)
        m->rows[i] = (float)((i * 37) % 101) / 101.0f - 0.5f;
    return true;
}

static bool deep_make(deep *m) {
    return deep_make_on(m, &one_thread);
}

static dt_trainer_desc deep_desc(const deep *m, const char *devices, int level) {
    return (dt_trainer_desc){.loss = m->loss,
                             .optim = &m->optim,
                             .data = {.rows = 64, .columns = {{.input = m->x, .data = m->rows}}},
                             .batch = 16,
                             .parallel.batch_slices = 4,
                             .devices = devices,
                             .parallel.zero_stage = level,
                             .parallel.bucket_bytes = 4 * (DEEP_SIZE * DEEP_SIZE + 256)};
}

/* Parameters, gradients and moments of this process's first replica; 0: something failed. */
static uint64_t deep_bytes(dt_comm *comm, const char *devices, int level, uint64_t *hash,
                           char text[1200]) {
    deep m;
    dt_trainer *trainer;
    dt_trainer_info info = {0};
    if (!deep_make(&m))
        return 0;
    dt_trainer_desc d = deep_desc(&m, devices, level);
    d.comm = comm;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < 5 && !result; i++)
        result = dt_trainer_step(trainer, NULL);
    dt_trainer_get_info(result ? NULL : trainer, &info);
    if (!result)
        result = dt_store_hash(dt_trainer_store(trainer), hash);
    snprintf(text, 1200, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return result ? 0 : info.replica_param_bytes + info.replica_gradient_bytes + info.state_bytes;
}

/* A layer is 4 blocks of weights and one of biases. A bucket is two layers, since there are at most
 * 28 to 56 of them; the formula is dt_trainer_desc.parallel.zero_stage's. */
TEST(zero_memory_of_replicas_equals_the_formula) {
    const uint64_t unit = 10 * 1024, all = DEEP_LAYERS / 2 * unit;
    for (int level = DT_SHARD_NONE; level <= DT_SHARD_PARAMETERS; level++) {
        deep m;
        dt_trainer *trainer;
        dt_trainer_info info;
        dt_ctx_info at_first, then;
        REQUIRE(deep_make(&m));
        dt_trainer_desc d = deep_desc(&m, "cpu:4", level);
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        dt_ctx_get_info(m.ctx, &at_first);
        CHECK(!dt_trainer_step(trainer, NULL));
        dt_ctx_get_info(m.ctx, &then);
        dt_trainer_get_info(trainer, &info);
        const bool gradients = level >= DT_SHARD_GRADIENTS, params = level == DT_SHARD_PARAMETERS;
        CHECK(info.buckets == DEEP_LAYERS / 2);
        CHECK_TEXT(info.replica_param_bytes == (params      ? all / 4 + unit
                                                : gradients ? all / 4 + all
                                                            : all),
                   "level %d: %llu bytes of parameters", level,
                   (unsigned long long)info.replica_param_bytes);
        CHECK_TEXT(info.replica_gradient_bytes == (gradients ? all / 4 + 2 * unit : all),
                   "level %d: %llu bytes of gradients", level,
                   (unsigned long long)info.replica_gradient_bytes);
        /* parameters are never whole */
        CHECK_TEXT(at_first.host_bytes == then.host_bytes, "level %d: %lld bytes less", level,
                   (long long)(at_first.host_bytes - then.host_bytes));
        CHECK(dt_trainer_store(trainer) != NULL);
        dt_ctx_get_info(m.ctx, &at_first);
        const uint64_t more = at_first.host_bytes - then.host_bytes;
        CHECK_TEXT(gradients ? more >= all && more < all + 64 : !more, "level %d: %lld bytes more",
                   level, (long long)more);
        dt_ctx_destroy(m.ctx);
    }
}

static dt_trainer_info deep_stages(dt_comm *comm, const char *devices, int level, char text[1200]) {
    deep m;
    dt_trainer *trainer = NULL;
    dt_trainer_info info = {0};
    dt_ctx_info before, after;
    if (!deep_make(&m))
        return info;
    dt_trainer_desc d = deep_desc(&m, devices, level);
    d.comm = comm;
    d.accumulate = 2;
    d.parallel.pipeline = 2;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < 3 && !result; i++) {
        dt_ctx_get_info(m.ctx, i < 2 ? &before : &after);
        result = dt_trainer_step(trainer, NULL);
    }
    dt_trainer_get_info(result ? NULL : trainer, &info);
    snprintf(text, 1200, "%s%s", result ? dt_ctx_error(m.ctx) : "",
             !result && before.host_alloc_calls != after.host_alloc_calls ? "steps allocate" : "");
    dt_ctx_destroy(m.ctx);
    return info;
}

enum { DEEP_UNIT = 5 * 1024, DEEP_STAGE = DEEP_LAYERS / 2 * DEEP_UNIT };

static void deep_stages_rank(rank *r) {
    const int level = *(const int *)r->job->arg;
    const dt_trainer_info info = deep_stages(r->comm, "cpu:2", level, r->text);
    EXPECT_TEXT(r,
                !r->text[0] && info.staging_bytes == (level < DT_SHARD_GRADIENTS
                                                          ? 2 * 2 * (uint64_t)DEEP_STAGE
                                                          : 2 * 2 * (uint64_t)DEEP_UNIT),
                "level %d: %llu bytes of staging; %s", level,
                (unsigned long long)info.staging_bytes, r->text);
}

/* Two stages of 20 layers, each of them a unit, and two replicas with two batch slices each. */
TEST(zero_memory_of_stages_equals_the_formula) {
    for (int level = DT_SHARD_OPTIMIZER; level <= DT_SHARD_PARAMETERS; level++) {
        char text[1200] = "";
        const uint64_t all = DEEP_STAGE, own = all / 2;
        const dt_trainer_info info = deep_stages(NULL, "cpu:4", level, text);
        CHECK_TEXT(!text[0], "%s", text);
        CHECK_TEXT(level < DT_SHARD_GRADIENTS ||
                       (info.replica_param_bytes ==
                            own + (level < DT_SHARD_PARAMETERS ? all : DEEP_UNIT) &&
                        info.replica_gradient_bytes == own + all),
                   "level %d: %llu bytes of parameters, %llu of gradients", level,
                   (unsigned long long)info.replica_param_bytes,
                   (unsigned long long)info.replica_gradient_bytes);
        CHECK(info.partial_sum_bytes == 4 * 2 * all);
        CHECK(info.staging_bytes == (level < DT_SHARD_GRADIENTS ? 2 * all : 0));
        job *j = job_new(2, &level);
        job_run(j, deep_stages_rank);
        job_free(j);
    }
}

/* Owners give averages in their weights' place. Programs stay, and their room. */
TEST(a_second_evaluation_with_averages_allocates_nothing_with_zero_2_and_3) {
    for (int level = DT_SHARD_GRADIENTS; level <= DT_SHARD_PARAMETERS; level++) {
        deep m;
        dt_trainer *trainer;
        dt_ctx_info before, after;
        REQUIRE(deep_make(&m));
        m.optim.average.kind = DT_AVERAGE_EMA;
        dt_trainer_desc d = deep_desc(&m, "cpu:4", level);
        d.averaged = true;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        CHECK(!dt_trainer_step(trainer, NULL));
        CHECK(!dt_trainer_evaluate(trainer, &d.data, 0, NULL));
        dt_ctx_get_info(m.ctx, &before);
        CHECK(!dt_trainer_step(trainer, NULL));
        CHECK(!dt_trainer_evaluate(trainer, &d.data, 0, NULL));
        dt_ctx_get_info(m.ctx, &after);
        CHECK_TEXT(after.host_bytes == before.host_bytes, "level %d: %lld bytes more", level,
                   (long long)(after.host_bytes - before.host_bytes));
        dt_ctx_destroy(m.ctx);
    }
}

/* The memory of the first replica's device, and the formula's, with 2 replicas. Both are bytes less
 * than without sharding. */
static void deep_device(const char *devices, int level, bool offload, uint64_t out[2]) {
    deep m;
    dt_trainer *trainer;
    dt_trainer_info info;
    dt_ctx_info memory;
    REQUIRE(deep_make_on(&m, &(dt_ctx_desc){.threads = 1}));
    dt_trainer_desc d = deep_desc(&m, devices, level);
    d.parallel.offload = offload;
    CHECK_TEXT(!dt_trainer_create(m.graph, &d, &trainer), "%s", dt_ctx_error(m.ctx));
    CHECK_TEXT(!dt_trainer_step(trainer, NULL), "%s", dt_ctx_error(m.ctx));
    dt_ctx_get_info(m.ctx, &memory);
    dt_trainer_get_info(trainer, &info);
    out[0] = memory.device_bytes;
    out[1] =
        info.replica_param_bytes + info.replica_gradient_bytes + (offload ? 0 : info.state_bytes);
    dt_ctx_destroy(m.ctx);
}

TEST(zero_2_and_3_device_memory_equals_the_formula) {
    const uint64_t unit = 10 * 1024, all = DEEP_LAYERS / 2 * unit;
    char two[200];
    uint64_t none[2], got[2];
    if (!shard_vulkan(2, two))
        SKIP("no Vulkan device");
    deep_device(two, DT_SHARD_NONE, false, none);
    for (int level = DT_SHARD_GRADIENTS; level <= DT_SHARD_PARAMETERS; level++) {
        deep_device(two, level, false, got);
        const uint64_t less = level == DT_SHARD_PARAMETERS ? 4 * all - 4 * all / 2 - 3 * unit
                                                           : 4 * all - 4 * all / 2 - all - 2 * unit;
        const int64_t off = (int64_t)(none[0] - got[0]) - (int64_t)less;
        CHECK_TEXT(none[1] - got[1] == less, "level %d: %llu bytes less, not %llu", level,
                   (unsigned long long)(none[1] - got[1]), (unsigned long long)less);
        /* for pairs of blocks, in and out, and for pages */
        CHECK_TEXT(off <= 0 && off > -16384, "level %d: the device gives %lld bytes more", level,
                   (long long)-off);
    }
}

/* One device, which has only units: all parameters and two buckets of gradients, or three. */
TEST(a_device_with_updates_on_the_host_has_the_memory_of_the_formula) {
    const uint64_t unit = 10 * 1024, all = DEEP_LAYERS / 2 * unit;
    char one[200];
    uint64_t none[2], got[2];
    if (!shard_vulkan(1, one))
        SKIP("no Vulkan device");
    deep_device(one, DT_SHARD_NONE, false, none);
    for (int level = DT_SHARD_GRADIENTS; level <= DT_SHARD_PARAMETERS; level++) {
        deep_device(one, level, true, got);
        const uint64_t has = (level == DT_SHARD_PARAMETERS ? unit : all) + 2 * unit;
        CHECK_TEXT(got[1] == has, "level %d: %llu bytes, not %llu", level,
                   (unsigned long long)got[1], (unsigned long long)has);
        const int64_t off = (int64_t)(none[0] - got[0]) - (int64_t)(none[1] - has);
        CHECK_TEXT(off > -16384 && off < 16384, "level %d: the device gives %lld bytes more", level,
                   (long long)-off);
    }
}

/* With two kinds of devices, and on ranks: each has what its owner made. */
TEST(updates_on_the_host_can_be_combined_with_processors_and_ranks) {
    char one[200], both[220], text[1200];
    shard_rank_of at[2];
    shard_run want, got;
    if (!shard_vulkan(1, one))
        SKIP("no Vulkan device");
    shard_job j = {.what = &shard_cases[1], .devices = "cpu", .text = text, .path = shard_path(1)};
    CHECK_TEXT(shard_train(&j, &want), "%s", text);
    j.offload = true; /* nothing moves */
    for (j.zero_stage = DT_SHARD_GRADIENTS; j.zero_stage <= DT_SHARD_PARAMETERS; j.zero_stage++) {
        CHECK_TEXT(shard_train(&j, &got), "%s", text);
        CHECK(got.weights == want.weights && got.state == want.state && got.last == want.last);
    }
    snprintf(both, sizeof both, "cpu,%s", one);
    j.devices = both;
    j.zero_stage = DT_SHARD_PARAMETERS;
    CHECK_TEXT(shard_train(&j, &got), "%s", text);
    CHECK_NEAR(want.loss, got.loss, 2e-3 * want.loss);
    j.devices = one;
    CHECK_TEXT(shard_train(&j, &want), "%s", text);
    shard_threads(1, (const char *[]){one, one}, DT_SHARD_GRADIENTS, true, at);
    for (int i = 0; i < 2; i++)
        CHECK_TEXT(at[i].ran && at[i].got.weights == want.weights, "rank %d: %s", i, at[i].text);
    CHECK(at[0].got.last == want.last && at[0].got.saved == want.saved);
    remove(j.path);
}

static uint64_t deep_one, deep_hash;

static void deep_rank(rank *r) {
    uint64_t hash = 0;
    const uint64_t bytes = deep_bytes(r->comm, "cpu", DT_SHARD_PARAMETERS, &hash, r->text);
    EXPECT_TEXT(r, bytes && hash == deep_hash, "%s: other bits", r->text);
    EXPECT_TEXT(r, bytes <= deep_one * 55 / 100, "%llu bytes, and of one %llu",
                (unsigned long long)bytes, (unsigned long long)deep_one);
}

TEST(two_zero_3_ranks_use_little_more_than_half_of_the_memory_of_one) {
    char text[1200];
    deep_one = deep_bytes(NULL, "cpu", DT_SHARD_NONE, &deep_hash, text);
    if (!CHECK_TEXT(deep_one > 0, "%s", text))
        return;
    job *j = job_new(2, NULL);
    REQUIRE(j);
    job_run(j, deep_rank);
    job_free(j);
}

/* A batch of which some replicas have one micro-batch and others two: no one waits for another. */
static dt_result uneven_run(dt_comm *comm, const char *devices, int level, uint64_t *hash,
                            char text[1200]) {
    deep m;
    dt_trainer *trainer;
    if (!deep_make(&m))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = deep_desc(&m, devices, level);
    d.comm = comm;
    d.data.rows = 17; /* one batch of 11, and 6 */
    d.batch = 11;
    d.parallel.batch_slices = 6;
    d.accumulate = 2;
    d.tail = DT_TAIL_KEEP;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < 4 && !result; i++)
        result = dt_trainer_step(trainer, NULL);
    if (!result)
        result = dt_store_hash(dt_trainer_store(trainer), hash);
    snprintf(text, 1200, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return result;
}

/* A rank without rows, which meets the others of a .sync norm at once: they still need its part. */
static dt_result empty_run(dt_comm *comm, int level, uint64_t *hash, char text[1200]) {
    deep m;
    dt_trainer *trainer;
    if (!deep_make(&m))
        return DT_ERROR_MEMORY;
    const dt_batch_norm_desc sync = {.sync = true};
    dt_trainer_desc d = deep_desc(&m, comm ? "cpu:2" : "cpu", level);
    dt_graph *g; /* another: owners have equal runs of all that is in it */
    dt_graph_create(m.ctx, &g);
    const dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(DEEP_SIZE));
    dt_tensor h = x;
    for (int i = 0; i < 6; i++)
        h = dt_nn_linear(h, (const char *[]){"up0", "up1", "up2", "up3", "up4", "up5"}[i], 16);
    h = dt_nn_batch_norm(h, "norm", &sync);
    d.loss = dt_mse(dt_nn_linear(h, "down", DEEP_SIZE), x);
    d.data.columns[0].input = x;
    d.comm = comm;
    d.data.rows = 18; /* 16, and 2 */
    d.parallel.batch_slices = 6;
    d.parallel.bucket_bytes = 1024;
    d.tail = DT_TAIL_KEEP;
    dt_result result = dt_trainer_create(g, &d, &trainer);
    for (int i = 0; i < 4 && !result; i++)
        result = dt_trainer_step(trainer, NULL);
    if (!result)
        result = dt_store_hash(dt_trainer_store(trainer), hash);
    snprintf(text, 1200, "%s", result ? dt_ctx_error(m.ctx) : "");
    dt_ctx_destroy(m.ctx);
    return result;
}

static int uneven_level;

static void empty_rank(rank *r) {
    r->result = empty_run(r->comm, uneven_level, &r->numbers[0], r->text);
    EXPECT_TEXT(r, !r->result, "%s", r->text);
}

TEST(a_rank_without_rows_gives_others_its_parameters_while_a_synchronous_norm_waits) {
    char text[1200];
    uint64_t want;
    if (!CHECK_TEXT(!empty_run(NULL, DT_SHARD_NONE, &want, text), "%s", text))
        return;
    for (uneven_level = DT_SHARD_GRADIENTS; uneven_level <= DT_SHARD_PARAMETERS; uneven_level++) {
        job *j = job_new(3, NULL);
        REQUIRE(j);
        j->seconds = 20;
        if (job_run(j, empty_rank))
            CHECK(j->at[0].numbers[0] == want && j->at[2].numbers[0] == want);
        job_free(j);
    }
}

static void uneven_rank(rank *r) {
    const char *devices = r->index ? "cpu:2" : "cpu:3";
    r->result = uneven_run(r->comm, devices, uneven_level, &r->numbers[0], r->text);
    EXPECT_TEXT(r, !r->result, "%s", r->text);
}

TEST(zero_2_and_3_take_replicas_with_one_and_two_micro_batches) {
    char text[1200];
    uint64_t want;
    if (!CHECK_TEXT(!uneven_run(NULL, "cpu", DT_SHARD_NONE, &want, text), "%s", text))
        return;
    for (uneven_level = DT_SHARD_GRADIENTS; uneven_level <= DT_SHARD_PARAMETERS; uneven_level++) {
        job *j = job_new(2, NULL);
        REQUIRE(j);
        j->seconds = 20;
        if (job_run(j, uneven_rank))
            CHECK(j->at[0].numbers[0] == want && j->at[1].numbers[0] == want);
        job_free(j);
    }
}

/* ---- a file of other batch slices: programs are made again, while parameters are with their
 * owners */

/* batch slices 0: the number of replicas, until the file sets it. */
static uint64_t deep_goes_on(int level, int batch_slices, const char *from, const char *to) {
    deep m;
    dt_trainer *trainer;
    uint64_t hash = 0;
    if (!deep_make(&m))
        return 0;
    dt_trainer_desc d = deep_desc(&m, "cpu:2", level);
    d.parallel.batch_slices = batch_slices;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < 3 && !result; i++)
        result = dt_trainer_step(trainer, NULL);
    if (!result)
        result = to ? dt_trainer_save(trainer, to) : dt_trainer_load(trainer, from);
    for (int i = 0; i < 2 && !result; i++)
        result = dt_trainer_step(trainer, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(trainer), &hash);
    CHECK_TEXT(!result, "level %d: %s", level, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(a_checkpoint_of_other_batch_slices_loads_at_every_zero_stage) {
    const char *path = shard_path(0);
    const uint64_t want = deep_goes_on(DT_SHARD_PARAMETERS, 4, NULL, path);
    CHECK(want);
    for (int level = DT_SHARD_NONE; level <= DT_SHARD_PARAMETERS; level++)
        CHECK(deep_goes_on(level, 0, path, NULL) == want);
    remove(path);
}

/* ---- what is not finite */

/* Of a batch of NaNs, between two that are fine: the step is left out, and nothing has changed. */
static uint64_t deep_skips(const char *devices, int level, char text[1200]) {
    deep m;
    dt_trainer *trainer;
    dt_train_report report;
    uint64_t hash = 0;
    if (!deep_make(&m))
        return 0;
    for (int i = 16 * DEEP_SIZE; i < 32 * DEEP_SIZE; i++)
        m.rows[i] = (float)NAN;
    dt_trainer_desc d = deep_desc(&m, devices, level);
    d.no_shuffle = true;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < 4 && !result; i++) {
        result = dt_trainer_step(trainer, &report);
        if (i == 1 && result == DT_ERROR_NUMERIC) {
            snprintf(text, 1200, "%s", dt_ctx_error(m.ctx));
            result = DT_OK;
        } else if (i == 1) {
            result = DT_ERROR_INVALID;
        }
    }
    if (!result)
        result = dt_store_hash(dt_trainer_store(trainer), &hash);
    if (result)
        snprintf(text, 1200, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return result ? 0 : hash;
}

TEST(zero_2_and_3_skip_a_step_that_is_not_finite) {
    char text[1200];
    const uint64_t want = deep_skips("cpu", DT_SHARD_NONE, text);
    CHECK_TEXT(want, "%s", text);
    for (int level = DT_SHARD_GRADIENTS; level <= DT_SHARD_PARAMETERS; level++) {
        const uint64_t got = deep_skips("cpu:2", level, text);
        CHECK_TEXT(got == want, "level %d: %s", level, text);
        CHECK_CONTAINS(text, "step 2: input 'x' holds a NaN");
    }
}

/* ---- the rank that reads parameters between steps */

TEST(zero_3_parameters_are_gathered_on_demand) {
    deep m;
    dt_trainer *trainer;
    float before[DEEP_SIZE * DEEP_SIZE], after[DEEP_SIZE * DEEP_SIZE], *out;
    float zeros[DEEP_SIZE * DEEP_SIZE] = {0};
    dt_program *own;
    dt_report report;
    uint64_t hash;
    REQUIRE(deep_make(&m));
    dt_trainer_desc d = deep_desc(&m, "cpu:3", DT_SHARD_PARAMETERS);
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    dt_store *s = dt_trainer_store(trainer);
    const int w = dt_store_find(s, "layer7.weight");
    CHECK(!dt_store_read(s, w, DT_VALUE_PARAM, before, sizeof before));
    CHECK(!dt_trainer_step(trainer, NULL));
    /* nobody has them now */
    CHECK(dt_store_read(s, w, DT_VALUE_PARAM, after, sizeof after) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "dt_trainer_store gathers them");
    CHECK(dt_store_write(s, w, DT_VALUE_PARAM, after, sizeof after) == DT_ERROR_INVALID);
    CHECK(dt_store_hash(s, &hash) == DT_ERROR_INVALID);
    CHECK(dt_store_save(s, "build/shard_none") == DT_ERROR_INVALID);
    CHECK(dt_store_save_state(s, "build/shard_none") == DT_ERROR_INVALID);
    const dt_program_desc look = {.losses = {{m.loss}}, .batch = 2};
    CHECK(dt_program_create(s, &look, &own) == DT_ERROR_INVALID);
    REQUIRE(dt_trainer_store(trainer) == s);
    CHECK(!dt_store_read(s, w, DT_VALUE_PARAM, after, sizeof after));
    CHECK(memcmp(before, after, sizeof after) != 0);
    /* what is written goes to all owners */
    CHECK(!dt_store_write(s, w, DT_VALUE_PARAM, zeros, sizeof zeros));
    REQUIRE(!dt_program_create(s, &look, &own));
    CHECK(!dt_program_write(own, m.x, m.rows, 2 * DEEP_SIZE * sizeof(float)));
    CHECK(!dt_program_run(own, NULL, &report));
    dt_trainer_set_lr(trainer, DT_ZERO);
    CHECK(!dt_trainer_step(trainer, NULL));
    CHECK(dt_program_run(own, NULL, &report) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "dt_trainer_store gathers them");
    CHECK(dt_trainer_store(trainer) && !dt_program_run(own, NULL, &report));
    CHECK(!dt_store_read(s, w, DT_VALUE_PARAM, after, sizeof after));
    CHECK(!memcmp(zeros, after, sizeof after));
    out = malloc(sizeof m.rows);
    CHECK(!dt_trainer_predict(trainer, &d.data, m.x, 0, out, sizeof m.rows));
    CHECK(!memcmp(out, m.rows, sizeof m.rows));
    free(out);
    dt_ctx_destroy(m.ctx);
}

/* A sample that one rank cannot read, once: the loader may read it again before the step ends.
 * Nobody has stepped, and all bring parameters once more. */
static dt_result deep_sample(void *user, const dt_sample *sample, void *const *values) {
    (void)sample, (void)values;
    return atomic_exchange((atomic_bool *)user, false) ? DT_ERROR_IO : DT_OK;
}

static void deep_fails(rank *r) {
    deep m;
    dt_trainer *trainer = NULL;
    const bool fails = r->index == 1;
    atomic_bool left = fails;
    REQUIRE(deep_make(&m));
    dt_trainer_desc d = deep_desc(&m, "cpu", DT_SHARD_PARAMETERS);
    d.comm = r->comm;
    d.data.sample = deep_sample;
    d.data.user = &left;
    EXPECT_TEXT(r, !dt_trainer_create(m.graph, &d, &trainer), "%s", dt_ctx_error(m.ctx));
    const dt_result result = dt_trainer_step(trainer, NULL);
    EXPECT_TEXT(r, result == (fails ? DT_ERROR_IO : DT_ERROR_CANCELLED), "%d", (int)result);
    dt_store *s = dt_trainer_store(trainer);
    EXPECT_TEXT(r, s && !dt_store_hash(s, &r->numbers[0]), "%s", dt_ctx_error(m.ctx));
    EXPECT_TEXT(r, !dt_trainer_step(trainer, NULL), "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(a_rank_that_cannot_read_a_sample_frees_the_same_parameters_as_others) {
    job *j = job_new(2, NULL);
    REQUIRE(j);
    if (job_run(j, deep_fails))
        CHECK(j->at[0].numbers[0] == j->at[1].numbers[0]);
    job_free(j);
}

/* ---- the store, and what is refused */

TEST(moments_sharded_by_zero_are_read_and_written_at_their_owners) {
    train_model m;
    dt_trainer *trainer;
    float values[24 * 36], back[24 * 36];
    REQUIRE(train_model_make(&m, &one_thread, 0));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu:4";
    d.parallel.zero_stage = 1;
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    CHECK(!dt_trainer_step(trainer, NULL));
    dt_store *s = dt_trainer_store(trainer);
    const int w = dt_store_find(s, "fc0.weight");
    CHECK(!dt_store_read(s, w, DT_VALUE_MOMENT2, values, sizeof values));
    for (int i = 0; i < 24 * 36; i++) {
        CHECK(values[i] >= 0.0f);
        values[i] = (float)(i + 1);
    }
    CHECK(!dt_store_write(s, w, DT_VALUE_MOMENT2, values, sizeof values));
    CHECK(!dt_store_read(s, w, DT_VALUE_MOMENT2, back, sizeof back));
    CHECK(!memcmp(values, back, sizeof back));
    CHECK(dt_store_read(s, w, DT_VALUE_GRADIENT, back, sizeof back) == DT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "parallel.zero_stage");
    dt_ctx_destroy(m.ctx);
}

TEST(shard_degrees_that_form_no_groups_are_refused) {
    static const struct {
        int zero_stage, degree, pipeline;
        dt_result result;
        const char *text;
    } wrong[] = {
        {1, -1, 0, DT_ERROR_INVALID, "parallel.shard_degree is -1"},
        {0, 2, 0, DT_ERROR_INVALID, ".parallel.shard_degree = 2 needs .parallel.zero_stage"},
        {1, 2, 2, DT_ERROR_UNSUPPORTED, ".parallel.shard_degree = 2 cannot be combined with"},
        {2, 3, 0, DT_ERROR_INVALID,
         ".parallel.shard_degree is 3 for 4 replicas; it must divide the number"},
        {3, 8, 0, DT_ERROR_INVALID, ".parallel.shard_degree is 8 for 4 replicas"},
    };
    train_model m;
    dt_trainer *trainer;
    REQUIRE(train_model_make(&m, &one_thread, 0));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu:4";
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        d.parallel.zero_stage = wrong[i].zero_stage;
        d.parallel.shard_degree = wrong[i].degree;
        d.parallel.pipeline = wrong[i].pipeline;
        CHECK(dt_trainer_create(m.graph, &d, &trainer) == wrong[i].result && !trainer);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), wrong[i].text);
    }
    dt_ctx_destroy(m.ctx);
}

static void shard_apart(rank *r) {
    train_model m;
    dt_trainer *trainer = NULL;
    REQUIRE(train_model_make(&m, &one_thread, 0));
    dt_trainer_desc d = train_desc(&m);
    d.comm = r->comm;
    d.devices = rank_devices(r);
    d.parallel.zero_stage = DT_SHARD_PARAMETERS;
    d.parallel.shard_degree = 2;
    EXPECT(r, dt_trainer_create(m.graph, &d, &trainer) == DT_ERROR_INVALID);
    EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), ".parallel.shard_degree is 2, but rank 1 has 3"),
                "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(a_rank_with_replicas_of_two_shard_groups_is_refused_on_all) {
    job *j = job_new(2, NULL);
    REQUIRE(j);
    j->devices[0] = "cpu";
    j->devices[1] = "cpu:3";
    job_run(j, shard_apart);
    job_free(j);
}

TEST(unknown_zero_stages_and_combinations_are_refused) {
    static const struct {
        int zero_stage;
        dt_result result;
        const char *text;
        bool offload;
    } wrong[] = {{0, DT_ERROR_UNSUPPORTED,
                  ".parallel.offload needs .parallel.zero_stage: give 2 or 3", true},
                 {1, DT_ERROR_UNSUPPORTED,
                  ".parallel.offload needs .parallel.zero_stage: give 2 or 3", true},
                 {-1, DT_ERROR_INVALID, "parallel.zero_stage is -1", false},
                 {4, DT_ERROR_INVALID, "parallel.zero_stage is 4", false},
                 {1, DT_ERROR_UNSUPPORTED, "DT_TRAIN_LOCAL", false},
                 {2, DT_ERROR_UNSUPPORTED, "balance", false},
                 {3, DT_ERROR_UNSUPPORTED, "balance", false}};
    train_model m;
    dt_trainer *trainer;
    REQUIRE(train_model_make(&m, &one_thread, 0));
    dt_trainer_desc d = train_desc(&m);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        d.parallel.zero_stage = wrong[i].zero_stage;
        d.parallel.offload = wrong[i].offload;
        d.mode =
            (dt_train_mode)(wrong[i].zero_stage == 1 && !d.parallel.offload ? DT_TRAIN_LOCAL : 0);
        d.parallel.balance = wrong[i].zero_stage > 1 ? DT_BALANCE_MEASURED : DT_BALANCE_EQUAL;
        CHECK(dt_trainer_create(m.graph, &d, &trainer) == wrong[i].result && !trainer);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), wrong[i].text);
    }
    dt_ctx_destroy(m.ctx);
}
