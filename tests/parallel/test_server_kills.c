/* Several parameter servers and their workers, each a process, of which any are killed at any time.
 * They are killed singly, together, and while they agree on the step to continue from. What they
 * end with has the bits of a run that nobody disturbed. */
#include "parallel/serve_run.h"

enum { KILLS_SERVERS = 4, KILLS_WORKERS = 2, KILLS_SECONDS = 120 };

typedef struct kills_job {
    const serve_case *c;
    char folder[64];
    int servers, every, keep;
    pid_t server[KILLS_SERVERS], worker[KILLS_WORKERS];
    uint64_t chance;
} kills_job;

static uint32_t kills_random(kills_job *j, uint32_t below) {
    j->chance = j->chance * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(j->chance >> 33) % below;
}

static void kills_address(const kills_job *j, int place, char text[96]) {
    snprintf(text, 96, "file://%s/at%d", j->folder, place);
}

static void kills_addresses(const kills_job *j, char text[128 * KILLS_SERVERS]) {
    text[0] = 0;
    for (int i = 0; i < j->servers; i++) {
        char one[96];
        kills_address(j, i, one);
        strcat(strcat(text, i ? "," : ""), one);
    }
}

/* ---- processes */

/* A server as anybody would write it: it goes on from its newest checkpoint. */
static dt_result kills_serve(const kills_job *j, int place, serve_run *r, int timeout_ms) {
    char at[96], folder[96];
    bool found;
    *r = (serve_run){.c = j->c, .by = serve_key('a', j->c->integrity)};
    kills_address(j, place, at);
    snprintf(folder, sizeof folder, "%s/s%d", j->folder, place);
    if (!serve_model(&r->m, j->c))
        return DT_ERROR_MEMORY;
    dt_server_desc d = {.trainer = serve_trainer(j->c, &r->m),
                        .listen = at,
                        .security = &r->by,
                        .index = place,
                        .servers = j->servers,
                        .staleness = j->c->staleness};
    d.trainer.parallel.batch_slices = j->c->batch_slices;
    d.trainer.checkpoint.folder = folder;
    d.trainer.checkpoint.every_steps = j->every;
    d.trainer.checkpoint.keep = j->keep;
    dt_result result = dt_server_create(r->m.graph, &d, &r->server);
    if (!result)
        result = dt_trainer_resume(dt_server_trainer(r->server), &found);
    if (!result)
        result = dt_server_run(r->server, timeout_ms);
    dt_server_get_info(r->server, &r->info);
    return result;
}

static pid_t kills_fork_server(const kills_job *j, int place) {
    fflush(stdout);
    const pid_t pid = fork();
    if (pid)
        return pid;
    static serve_run r;
    const dt_result result = kills_serve(j, place, &r, -1);
    if (result)
        printf("server %d: %s\n", place, r.m.ctx ? dt_ctx_error(r.m.ctx) : "no model");
    fflush(stdout);
    _exit(result != DT_OK);
}

/* Trains to the end; the weights then, if they were of this epoch's end. */
static dt_result kills_work(const kills_job *j, uint64_t epochs, uint64_t *hash, char *text,
                            size_t size) {
    static char addresses[128 * KILLS_SERVERS];
    const dt_comm_desc by = serve_key('a', j->c->integrity);
    train_model m;
    dt_trainer *t = NULL;
    kills_addresses(j, addresses);
    if (!serve_model(&m, j->c))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = serve_trainer(j->c, &m);
    d.devices = "cpu";
    d.mode = DT_TRAIN_SERVER;
    d.server.addresses = addresses;
    d.server.security = &by;
    d.server.wait_ms = 1000 * KILLS_SECONDS;
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    while (!result && serve_epoch(t) < epochs) {
        serve_sleep_us(j->c->slow_us[0]);
        result = dt_trainer_step(t, NULL);
    }
    if (!result && hash)
        result = dt_store_hash(dt_trainer_store(t), hash);
    snprintf(text, size, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return result;
}

static pid_t kills_fork_worker(const kills_job *j) {
    char text[1024];
    fflush(stdout);
    const pid_t pid = fork();
    if (pid)
        return pid;
    const dt_result result = kills_work(j, (uint64_t)j->c->epochs, NULL, text, sizeof text);
    if (result)
        printf("worker: %s\n", text);
    fflush(stdout);
    _exit(result != DT_OK);
}

/* One that has failed by itself is a finding. */
static void kills_kill(pid_t *pid) {
    int status = 0;
    kill(*pid, SIGKILL);
    waitpid(*pid, &status, 0);
    CHECK_TEXT(WIFSIGNALED(status) || (WIFEXITED(status) && !WEXITSTATUS(status)), "it failed: %d",
               status);
    *pid = 0;
}

/* ---- a try */

/* Some of the servers, or all of them, or a worker; they are back at once, or after a while, and
 * are killed again while they find together. */
static void kills_round(kills_job *j) {
    const uint32_t which = kills_random(j, 4);
    const uint32_t mask = which == 0   ? 1u << kills_random(j, (uint32_t)j->servers)
                          : which == 1 ? 1 + kills_random(j, (1u << j->servers) - 1)
                                       : (1u << j->servers) - 1;
    for (int i = 0; i < j->servers; i++)
        if (mask >> i & 1)
            kills_kill(&j->server[i]);
    if (kills_random(j, 3) == 0) {
        const uint32_t worker = kills_random(j, KILLS_WORKERS);
        kills_kill(&j->worker[worker]);
        j->worker[worker] = kills_fork_worker(j);
    }
    for (int i = 0; i < j->servers; i++) {
        if (mask >> i & 1) {
            serve_sleep_us(1000 * (long)kills_random(j, 30));
            j->server[i] = kills_fork_server(j, i);
        }
    }
}

static void kills_end(kills_job *j) {
    char command[128];
    for (int i = 0; i < KILLS_SERVERS; i++)
        if (j->server[i])
            kills_kill(&j->server[i]);
    for (int i = 0; i < KILLS_WORKERS; i++)
        if (j->worker[i])
            kills_kill(&j->worker[i]);
    snprintf(command, sizeof command, "rm -rf %s", j->folder);
    CHECK(system(command) == 0);
}

static void kills_begin(kills_job *j, int seed) {
    j->chance = (uint64_t)seed * 7919 + 17;
    snprintf(j->folder, sizeof j->folder, "/tmp/dtrain-kills-XXXXXX");
    CHECK(mkdtemp(j->folder) != NULL);
    for (int i = 0; i < j->servers; i++)
        j->server[i] = kills_fork_server(j, i);
}

static void kills_try(const serve_case *c, int seed, int rounds, uint64_t wanted) {
    kills_job j = {.c = c, .servers = 2 + seed % 3, .every = 1 + seed % 2, .keep = 1 + seed % 2};
    char text[1024];
    uint64_t hash = 0;
    kills_begin(&j, seed);
    for (int i = 0; i < KILLS_WORKERS; i++)
        j.worker[i] = kills_fork_worker(&j);
    for (int round = 0; round < rounds; round++) {
        serve_sleep_us(1000 * (long)kills_random(&j, round % 2 ? 40 : 300));
        kills_round(&j);
    }
    const dt_result result = kills_work(&j, (uint64_t)c->epochs, &hash, text, sizeof text);
    CHECK_TEXT(!result && (c->staleness || hash == wanted),
               "try %d, %d servers: %016llx, not %016llx %s", seed, j.servers,
               (unsigned long long)hash, (unsigned long long)wanted, text);
    kills_end(&j);
}

static uint64_t kills_wanted(const serve_case *c) {
    train_model m;
    uint64_t hash = 0;
    dt_trainer *t = serve_alone(c, &m);
    for (int i = 0; i < c->epochs; i++)
        CHECK(!dt_trainer_epoch(t, NULL));
    CHECK(!dt_store_hash(dt_trainer_store(t), &hash));
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(servers_that_are_killed_together_agree_on_a_step_and_give_the_same_bits) {
    static const serve_case cases[] = {
        {.batch_slices = 3, .epochs = 16, .slow_us = {3000}, .optim = {DT_OPTIM_ADAM, .lr = 0.01}},
        {.kind = 1,
         .batch_slices = 2,
         .epochs = 16,
         .slow_us = {3000},
         .optim = {DT_OPTIM_SGD, .lr = 0.1, .clip_norm = 0.3}},
        /* bits are chance's */
        {.batch_slices = 2,
         .epochs = 16,
         .staleness = 3,
         .slow_us = {3000},
         .optim = {DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 0.5}}};
    const bool much = getenv("DTRAIN_TEST_LONG") != NULL;
    for (int i = 0; i < (much ? 40 : 2); i++) {
        const serve_case *c = &cases[i % (much ? 3 : 2)];
        kills_try(c, i, much ? 8 : 4, kills_wanted(c));
    }
}

/* ---- what is lost, and what is not */

static serve_run kills_runs[KILLS_SERVERS];

/* On a thread, in its folder, from its newest checkpoint. */
static void kills_open(kills_job *j, int place) {
    serve_run *r = &kills_runs[place];
    const dt_result result = kills_serve(j, place, r, 0); /* which makes the context again */
    CHECK_TEXT(!result, "%s", dt_ctx_error(r->m.ctx));
    serve_start(r);
}

static void kills_close(int place) {
    serve_stop(&kills_runs[place]);
    serve_close(&kills_runs[place]);
}

static bool kills_has(const kills_job *j, int place, int step) {
    char path[128];
    snprintf(path, sizeof path, "%s/s%d/step-%012d.safetensors", j->folder, place, step);
    return access(path, R_OK) == 0;
}

static void kills_shell(const kills_job *j, const char *words) {
    char command[256];
    snprintf(command, sizeof command, "cd %s && %s", j->folder, words);
    CHECK_TEXT(system(command) == 0, "%s", command);
}

static void kills_open_all(kills_job *j) {
    snprintf(j->folder, sizeof j->folder, "/tmp/dtrain-kills-XXXXXX");
    CHECK(mkdtemp(j->folder) != NULL);
    for (int i = 0; i < j->servers; i++)
        kills_open(j, i);
}

/* Trains up to the end of an epoch, of 5 steps, to the bits of a run without servers. */
static void kills_epochs(const kills_job *j, int epochs) {
    serve_case c = *j->c;
    char text[1024];
    uint64_t hash = 0;
    c.epochs = epochs;
    CHECK_TEXT(!kills_work(j, (uint64_t)epochs, &hash, text, sizeof text), "%s", text);
    CHECK_TEXT(hash == kills_wanted(&c), "other bits after epoch %d", epochs);
}

/* The file of the newest step that all have stays however few are kept, and no older ones do. A
 * server that comes back without its newest file takes the others back with it. */
TEST(servers_go_back_to_the_newest_step_that_all_have_and_report_the_loss) {
    static const serve_case c = {.batch_slices = 2, .optim = {DT_OPTIM_ADAM, .lr = 0.01}};
    kills_job j = {.c = &c, .servers = 3, .every = 1, .keep = 1};
    kills_open_all(&j);
    kills_epochs(&j, 2);
    for (int i = 0; i < 3; i++)
        CHECK_TEXT(kills_has(&j, i, 10) && kills_has(&j, i, 9) && !kills_has(&j, i, 6),
                   "files of server %d", i);
    kills_close(1);
    kills_shell(&j, "rm s1/LATEST s1/step-*10.safetensors");
    kills_open(&j, 1);
    kills_epochs(&j, 3);
    for (int i = 0; i < 3; i++) {
        kills_close(i);
        const dt_server_info *info = &kills_runs[i].info;
        CHECK_TEXT(info->rollbacks == (i != 1) && info->lost_steps == (i != 1) && info->step == 15,
                   "server %d went back %d times, %d steps", i, (int)info->rollbacks,
                   (int)info->lost_steps);
    }
    kills_end(&j);
}

/* Before anything was written all have the beginning. */
TEST(servers_go_back_beyond_an_unreadable_file_and_to_the_beginning) {
    static const serve_case c = {.batch_slices = 2, .optim = {DT_OPTIM_ADAM, .lr = 0.01}};
    kills_job j = {.c = &c, .servers = 2, .every = 1, .keep = 4};
    kills_open_all(&j);
    kills_epochs(&j, 1);
    kills_close(1);
    kills_shell(&j,
                "rm s1/LATEST s1/step-*5.safetensors && echo x >>s0/step-000000000004.safetensors");
    kills_open(&j, 1);
    kills_epochs(&j, 2); /* from 3: the first server cannot read 4 */
    kills_close(0);
    kills_close(1);
    CHECK(kills_runs[0].info.lost_steps == 2 && kills_runs[1].info.lost_steps == 1);
    kills_end(&j);
    j.every = 100;
    kills_open_all(&j);
    kills_epochs(&j, 1);
    kills_close(1);
    kills_open(&j, 1);
    kills_epochs(&j, 2);
    kills_close(0);
    kills_close(1);
    CHECK(kills_runs[0].info.lost_steps == 5);
    kills_end(&j);
}

TEST(servers_name_the_one_that_lost_its_folder_and_end) {
    static const serve_case c = {.batch_slices = 2, .optim = {DT_OPTIM_ADAM, .lr = 0.01}};
    kills_job j = {.c = &c, .servers = 3, .every = 1, .keep = 2};
    char text[1024];
    kills_open_all(&j);
    kills_epochs(&j, 1);
    kills_close(2);
    kills_shell(&j, "rm -r s2");
    kills_open(&j, 2);
    CHECK(kills_work(&j, 2, NULL, text, sizeof text) == DT_ERROR_INVALID);
    CHECK_TEXT(strstr(text, "server 2 at ") && strstr(text, " has 0;") && strstr(text, " has 5, 4"),
               "%s", text);
    for (int i = 0; i < 3; i++) {
        serve_ended(&kills_runs[i], DT_ERROR_INVALID, "no step in common");
        CHECK(kills_has(&j, i, 5) == (i < 2));
        serve_close(&kills_runs[i]);
    }
    kills_end(&j);
}
