/* Parameter servers and workers in trouble: stopped processes, too many workers, checkpoints that
 * are loaded under way. Also epochs that end while others continue. */
#include "parallel/serve_run.h"
#include "temp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* ---- stopped processes */

static void serve_text(serve_run *r, int port) {
    snprintf(r->address, sizeof r->address, "127.0.0.1:%d", port);
}

/* A server in a process of its own, at a port that it reports. */
static pid_t serve_fork_server(serve_run *r, const serve_case *c) {
    int ends[2], port = 0;
    if (!CHECK_TEXT(pipe(ends) == 0, "a pipe"))
        return -1;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        if (serve_open(r, c) && write(ends[1], &r->info.port, sizeof port) == (ssize_t)sizeof port)
            dt_server_run(r->server, -1);
        _exit(0);
    }
    close(ends[1]);
    CHECK(read(ends[0], &port, sizeof port) == (ssize_t)sizeof port);
    close(ends[0]);
    *r = (serve_run){.c = c, .by = serve_key('a', c->integrity)};
    serve_text(r, port);
    return pid;
}

static double serve_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

TEST(server_that_is_stopped_is_lost_after_the_time_that_workers_wait) {
    const serve_case c = {.batch_slices = 2, .epochs = 1, .workers = 1};
    serve_run r;
    train_model m;
    dt_trainer *t;
    const pid_t pid = serve_fork_server(&r, &c);
    r.wait_ms = 1000;
    const dt_result joined = serve_join(&r, &m, &t);
    CHECK_TEXT(!joined && !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx));
    serve_signal(pid, SIGSTOP);
    const double start = serve_seconds();
    CHECK(!joined && dt_trainer_step(t, NULL) == DT_ERROR_PEER_LOST);
    CHECK_TEXT(serve_seconds() - start > 0.5, "after %g s", serve_seconds() - start);
    CHECK_TEXT(strstr(dt_ctx_error(m.ctx), "stopped") && strstr(dt_ctx_error(m.ctx), r.address),
               "%s", dt_ctx_error(m.ctx));
    serve_signal(pid, SIGCONT); /* and there it is again */
    CHECK_TEXT(!joined && !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    serve_signal(pid, SIGKILL);
    serve_reap(pid, true);
}

/* Its system takes the connection, and nobody answers: a handshake may last longer than that. */
TEST(server_that_is_stopped_before_a_worker_joins_is_lost_after_the_same_time) {
    const serve_case c = {.batch_slices = 2, .epochs = 1, .workers = 1};
    serve_run r;
    train_model m;
    dt_trainer *t;
    const pid_t pid = serve_fork_server(&r, &c);
    r.wait_ms = 1200;
    serve_signal(pid, SIGSTOP);
    const double start = serve_seconds();
    CHECK(serve_join(&r, &m, &t) == DT_ERROR_PEER_LOST);
    const double took = serve_seconds() - start;
    CHECK_TEXT(took > 0.6 && took < 4.0, "after %g s", took);
    CHECK_TEXT(strstr(dt_ctx_error(m.ctx), "stopped") && strstr(dt_ctx_error(m.ctx), r.address),
               "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    serve_signal(pid, SIGKILL);
    serve_reap(pid, true);
}

/* Until that number of pushes have come, and no longer. */
static void serve_await(serve_run *r, uint64_t pushes) {
    dt_server_info info = {0};
    for (int i = 0; i < 50000 && info.pushes < pushes; i++) {
        CHECK_TEXT(!dt_server_run(r->server, 0), "%s", dt_ctx_error(r->m.ctx));
        dt_server_get_info(r->server, &info);
        serve_sleep_us(200);
    }
    serve_sleep_us(50000); /* it asks for the next one, and hears nothing yet */
    CHECK(info.pushes >= pushes);
}

/* Its tickets go to others when they are old; those wait longer than for a server that says
 * nothing, as it says that it is there. When it goes on, what it computed counts no more. */
TEST(server_gives_the_work_of_a_stopped_worker_to_others) {
    const serve_case c = {.batch_slices = 1, .epochs = 6, .workers = 1, .ticket_ms = 3000};
    const uint64_t wanted = serve_wanted(&c);
    serve_run r;
    if (!serve_open(&r, &c))
        return;
    const pid_t pid = serve_fork(&r, 1);
    serve_await(&r, 4); /* the next ticket is its */
    serve_signal(pid, SIGSTOP);
    r.wait_ms = 1000;
    serve_start(&r);
    serve_workers(&r);
    serve_signal(pid, SIGCONT);
    serve_reap(pid, false);
    serve_stop(&r);
    CHECK_TEXT(r.hash == wanted, "%016llx, not %016llx", (unsigned long long)r.hash,
               (unsigned long long)wanted);
    CHECK(r.info.step == 30 && r.info.pushes == 30 && r.info.reassigned > 0);
    serve_close(&r);
}

/* ---- more workers than there are places */

typedef struct serve_guest {
    train_model m;
    dt_trainer *t;
} serve_guest;

static void *serve_leave_soon(void *arg) {
    serve_sleep_us(300000);
    dt_ctx_destroy(((serve_guest *)arg)->m.ctx);
    return NULL;
}

TEST(server_refuses_a_worker_too_many_with_the_limit) {
    const serve_case c = {.batch_slices = 1, .epochs = 1, .workers = 1, .workers_max = 2};
    static serve_guest first, second;
    serve_run r;
    train_model m;
    dt_trainer *t;
    pthread_t thread;
    if (!serve_open(&r, &c))
        return;
    serve_start(&r);
    r.wait_ms = 1000;
    CHECK(!serve_join(&r, &first.m, &first.t) && !serve_join(&r, &second.m, &second.t));
    CHECK(serve_join(&r, &m, &t) == DT_ERROR_REFUSED);
    CHECK_TEXT(strstr(dt_ctx_error(m.ctx), "has had all of its 2 workers") &&
                   strstr(dt_ctx_error(m.ctx), "max_workers"),
               "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    CHECK_TEXT(!dt_trainer_step(first.t, NULL), "%s", dt_ctx_error(first.m.ctx));
    r.wait_ms = 5000; /* a worker that waits gets the place of one that leaves */
    CHECK(!pthread_create(&thread, NULL, serve_leave_soon, &second));
    const dt_result result = serve_join(&r, &m, &t);
    CHECK_TEXT(!result && !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx));
    pthread_join(thread, NULL);
    dt_ctx_destroy(m.ctx);
    dt_ctx_destroy(first.m.ctx);
    serve_stop(&r);
    CHECK(r.info.connections == 3);
    serve_close(&r);
}

/* ---- other values between two runs */

/* As a trainer's that began with the file. */
static uint64_t serve_wanted_from(const serve_case *c, const char *path) {
    train_model m;
    uint64_t hash = 0;
    dt_trainer *t = serve_alone(c, &m);
    CHECK_TEXT(!dt_trainer_load(t, path) && !dt_trainer_epoch(t, NULL) &&
                   !dt_store_state_hash(dt_trainer_store(t), &hash),
               "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return hash;
}

/* A file of the first step, with other weights than it begins with. */
static void serve_other_file(const serve_case *c, const char *path) {
    const float bias[TRAIN_CLASSES] = {0.5f, -0.5f, 0.25f, 0.0f, 1.0f};
    train_model m;
    dt_trainer *t;
    if (!CHECK_TEXT(serve_model(&m, c), "the model"))
        return;
    dt_trainer_desc d = serve_trainer(c, &m);
    d.parallel.batch_slices = c->batch_slices;
    d.devices = "cpu";
    CHECK_TEXT(!dt_trainer_create(m.graph, &d, &t) &&
                   !dt_store_write(dt_trainer_store(t),
                                   dt_store_param_count(dt_trainer_store(t)) - 1, DT_VALUE_PARAM,
                                   bias, sizeof bias) && /* of the last layer */
                   !dt_trainer_save(t, path),
               "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(server_drops_pushes_computed_from_replaced_values) {
    const serve_case c = {.batch_slices = 3, .epochs = 1, .workers = 1};
    const char *path = "build/test_server_over.safetensors";
    serve_run r;
    train_model m;
    dt_trainer *t;
    dt_train_report report;
    if (!serve_open(&r, &c))
        return;
    serve_other_file(&c, path);
    const uint64_t wanted = serve_wanted_from(&c, path);
    serve_start(&r);
    const dt_result joined = serve_join(&r, &m, &t);
    for (int i = 0; i < 2; i++) /* two batch slices of the first batch */
        CHECK_TEXT(!joined && !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx));
    serve_stop(&r);
    CHECK(r.info.pushes == 2 && r.info.step == 0);
    CHECK_TEXT(!dt_trainer_load(dt_server_trainer(r.server), path), "%s", dt_ctx_error(r.m.ctx));
    serve_start(&r);
    while (!joined && serve_epoch(t) == 0)
        if (!CHECK_TEXT(!dt_trainer_step(t, &report), "%s", dt_ctx_error(m.ctx)))
            break;
    serve_stop(&r);
    CHECK_TEXT(r.hash == wanted && r.info.pushes == 15, "%016llx, not %016llx; %d pushes",
               (unsigned long long)r.hash, (unsigned long long)wanted, (int)r.info.pushes);
    dt_ctx_destroy(m.ctx);
    serve_close(&r);
    remove(path);
}

/* ---- epochs that end while others go on */

enum { ENDS_SERVERS = 3, ENDS_WORKERS = 4, ENDS_EPOCHS = 12 };

static struct {
    pthread_mutex_t lock;
    atomic_int joined; /* workers begin together, so that no worker makes all steps */
    uint64_t hash[ENDS_EPOCHS + 1];
    int seen[ENDS_EPOCHS + 1];
} ends = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* All workers that find an epoch ended have the same weights then. */
static void ends_compare(serve_worker *w, uint64_t epoch, uint64_t hash) {
    pthread_mutex_lock(&ends.lock);
    if (epoch <= ENDS_EPOCHS) {
        CHECK_TEXT(!ends.seen[epoch] || ends.hash[epoch] == hash,
                   "worker %d, epoch %d: %016llx, others have %016llx", w->index, (int)epoch,
                   (unsigned long long)hash, (unsigned long long)ends.hash[epoch]);
        ends.hash[epoch] = hash;
        ends.seen[epoch]++;
    }
    pthread_mutex_unlock(&ends.lock);
}

static void *ends_work(void *arg) {
    serve_worker *w = arg;
    train_model *m = malloc(sizeof *m);
    dt_train_report report;
    dt_trainer *t;
    uint64_t hash = 0;
    w->result = m ? serve_join(w->run, m, &t) : DT_ERROR_MEMORY;
    atomic_fetch_add(&ends.joined, 1);
    while (atomic_load(&ends.joined) < ENDS_WORKERS)
        serve_sleep_us(200);
    while (!w->result && serve_epoch(t) < ENDS_EPOCHS) {
        serve_sleep_us(w->run->c->slow_us[w->index]);
        w->result = dt_trainer_step(t, &report);
        if (!w->result && report.epoch_ended && !report.steps)
            w->result = dt_store_hash(dt_trainer_store(t), &hash);
        if (!w->result && report.epoch_ended && !report.steps)
            ends_compare(w, serve_epoch(t), hash);
    }
    if (m)
        snprintf(w->text, sizeof w->text, "%s", dt_ctx_error(m->ctx));
    if (m)
        dt_ctx_destroy(m->ctx);
    free(m);
    return NULL;
}

TEST(servers_give_workers_one_version_at_the_end_of_an_epoch) {
    const serve_case c = {.batch_slices = 2,
                          .staleness = 3,
                          .slow_us = {0, 0, 1500, 4000},
                          .optim = {DT_OPTIM_SGD, .lr = 0.1}};
    static serve_run runs[ENDS_SERVERS];
    int several = 0;
    serve_start_several(runs, &c, ENDS_SERVERS);
    runs[0].wait_ms = 20000;
    for (int i = 0; i < ENDS_WORKERS; i++) {
        serve_worker *w = &runs[0].workers[i];
        *w = (serve_worker){.run = &runs[0], .index = i};
        CHECK(!pthread_create(&w->thread, NULL, ends_work, w));
    }
    for (int i = 0; i < ENDS_WORKERS; i++) {
        pthread_join(runs[0].workers[i].thread, NULL);
        CHECK_TEXT(!runs[0].workers[i].result, "worker %d: %s", i, runs[0].workers[i].text);
    }
    for (int i = 0; i < ENDS_SERVERS; i++) {
        serve_stop(&runs[i]);
        serve_close(&runs[i]);
    }
    for (int i = 1; i <= ENDS_EPOCHS; i++)
        several += ends.seen[i] > 1;
    CHECK_TEXT(several > ENDS_EPOCHS / 2, "%d epochs that several saw end", several);
}

/* ---- strangers */

enum { STRANGERS_REFUSED = 400, STRANGERS_IDLE = 40 };

typedef struct serve_log {
    pthread_mutex_t lock;
    int lines;
    char text[8192];
} serve_log;

static void serve_log_line(void *user, dt_log_level level, const char *text) {
    serve_log *l = user;
    pthread_mutex_lock(&l->lock);
    const size_t used = strlen(l->text);
    if (level == DT_LOG_WARNING)
        snprintf(l->text + used, sizeof l->text - used, "%s\n", text);
    l->lines += level == DT_LOG_WARNING;
    pthread_mutex_unlock(&l->lock);
}

/* From another address than the workers'. */
static int stranger_dial(int port) {
    struct sockaddr_in own = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    own.sin_addr.s_addr = htonl(0x7f000002);
    to.sin_addr.s_addr = htonl(0x7f000001);
    to.sin_port = htons((uint16_t)port);
    CHECK(s >= 0 && !bind(s, (struct sockaddr *)&own, sizeof own) &&
          !connect(s, (struct sockaddr *)&to, sizeof to));
    return s;
}

/* A greeting of no version that there is, and the end that it comes to. */
static void stranger_is_refused(int port) {
    char hello[160] = "DTRH", answer[256];
    const int s = stranger_dial(port);
    CHECK(send(s, hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello);
    while (recv(s, answer, sizeof answer, 0) > 0)
        ;
    close(s);
}

/* A server that runs is in use: it is stopped to be asked. */
static uint64_t serve_strangers(serve_run *r, uint64_t wanted) {
    for (int i = 0; i < 2000; i++) {
        serve_stop(r);
        if (r->info.unauthenticated >= wanted)
            break;
        serve_start(r);
        serve_sleep_us(10000);
    }
    return r->info.unauthenticated;
}

/* One that fills all connections, and one that is refused again and again. They cost a worker
 * nothing, and the log a few lines. */
TEST(server_counts_refused_connections_and_names_the_most_frequent_address) {
    const serve_case c = {.batch_slices = 1, .epochs = 1, .workers = 1, .workers_max = 2};
    serve_log log = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const dt_ctx_desc ctx = {
        .no_vulkan = true, .threads = 1, .logger = {.log = serve_log_line, .user = &log}};
    int idle[STRANGERS_IDLE];
    serve_run r = {.c = &c, .by = serve_key('a', c.integrity)};
    REQUIRE(train_model_make(&r.m, &ctx, 0));
    dt_server_desc d = {.trainer = serve_trainer(&c, &r.m), .security = &r.by, .max_workers = 2};
    d.trainer.parallel.batch_slices = c.batch_slices;
    REQUIRE(!dt_server_create(r.m.graph, &d, &r.server));
    dt_server_get_info(r.server, &r.info);
    snprintf(r.address, sizeof r.address, "127.0.0.1:%d", r.info.port);
    serve_start(&r);
    for (int i = 0; i < STRANGERS_REFUSED; i++)
        stranger_is_refused(r.info.port);
    for (int i = 0; i < STRANGERS_IDLE; i++)
        idle[i] = stranger_dial(r.info.port);
    r.wait_ms = 20000;
    serve_workers(&r);
    for (int i = 0; i < STRANGERS_IDLE; i++)
        close(idle[i]);
    const uint64_t all = STRANGERS_REFUSED + STRANGERS_IDLE, seen = serve_strangers(&r, all);
    /* on a busy machine a worker's own first try may come to nothing */
    CHECK_TEXT(seen >= all && seen < all + 5, "%d strangers, not %d", (int)seen, (int)all);
    serve_stop(&r);
    CHECK(r.info.step == 5 && r.info.connections == 1);
    serve_close(&r);
    CHECK_TEXT(log.lines < 12, "%d lines", log.lines);
    CHECK_TEXT(strstr(log.text, " from 127.0.0.2)") && strstr(log.text, "more connections"), "%s",
               log.text);
}

/* ---- an update that only one server cannot make */

enum { HUGE_SIZE = 8192, HUGE_ROWS = 8 };

/* x is of the second server's part: each batch slice's gradient is finite, and their sum is not. */
static float huge_x[HUGE_ROWS][HUGE_SIZE], huge_z[HUGE_ROWS][HUGE_SIZE];

static dt_trainer_desc huge_trainer(train_model *m) {
    const dt_ctx_desc ctx = {.no_vulkan = true, .threads = 1};
    CHECK(!dt_ctx_create(&ctx, &m->ctx) && !dt_graph_create(m->ctx, &m->graph));
    dt_tensor x = dt_input(m->graph, "x", DT_F32, dt_dims(HUGE_SIZE));
    dt_tensor z = dt_input(m->graph, "z", DT_F32, dt_dims(HUGE_SIZE));
    dt_tensor a = dt_param(m->graph, "a", dt_dims(1, HUGE_SIZE), (dt_init){0});
    dt_tensor b = dt_param(m->graph, "b", dt_dims(1, HUGE_SIZE), (dt_init){0});
    const dt_tensor none = {0};
    m->loss = dt_mean_loss(dt_add(dt_linear(x, a, none), dt_linear(z, b, none)));
    m->adam = (dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.001};
    dt_trainer_desc d = {.losses = {{m->loss, 2.0f}},
                         .batch = 2,
                         .optim = &m->adam,
                         .devices = "cpu",
                         .data.rows = HUGE_ROWS};
    d.data.columns[0] = (dt_column){.input = x, .data = huge_x};
    d.data.columns[1] = (dt_column){.input = z, .data = huge_z};
    return d;
}

static void huge_data(float value) {
    for (int i = 0; i < HUGE_ROWS; i++)
        huge_x[i][0] = value;
}

static bool huge_serve(serve_run *r, int place) {
    *r = (serve_run){.by = serve_key('a', DT_COMM_CRC)};
    dt_server_desc d = {
        .trainer = huge_trainer(&r->m), .security = &r->by, .index = place, .servers = 2};
    d.trainer.parallel.batch_slices = 2;
    d.trainer.checkpoint.folder = temp_path(place ? "huge.1" : "huge.0");
    d.trainer.checkpoint.every_steps = 1;
    if (!CHECK_TEXT(!dt_server_create(r->m.graph, &d, &r->server), "%s", dt_ctx_error(r->m.ctx)))
        return false;
    dt_server_get_info(r->server, &r->info);
    snprintf(r->address, sizeof r->address, "127.0.0.1:%d", r->info.port);
    serve_start(r);
    return true;
}

/* The worker hears it once. When that server runs again, all go back and on. */
TEST(servers_undo_an_update_that_is_not_finite_on_one_and_workers_continue) {
    static serve_run runs[2];
    char both[sizeof runs->address * 2];
    train_model m;
    dt_trainer *t;
    dt_result result = DT_OK;
    huge_data(2e38f);
    REQUIRE(huge_serve(&runs[0], 0) && huge_serve(&runs[1], 1));
    snprintf(both, sizeof both, "%s,%s", runs[0].address, runs[1].address);
    dt_trainer_desc d = huge_trainer(&m);
    d.mode = DT_TRAIN_SERVER;
    d.server.addresses = both;
    d.server.security = &runs[0].by;
    d.server.wait_ms = 20000;
    REQUIRE(!dt_trainer_create(m.graph, &d, &t));
    for (int i = 0; i < 8 && !result; i++)
        result = dt_trainer_step(t, NULL);
    CHECK(result == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "the update is not finite on this server");
    serve_ended(&runs[1], DT_ERROR_INVALID, "not finite on this server");
    huge_data(0.01f);
    serve_start(&runs[1]);
    result = DT_OK;
    for (int i = 0; i < 8 && !result; i++)
        result = dt_trainer_step(t, NULL);
    CHECK_TEXT(!result, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    serve_stop(&runs[0]);
    serve_stop(&runs[1]);
    CHECK(runs[0].info.rollbacks == 1 && runs[0].info.lost_steps == 1 && !runs[1].info.rollbacks);
    CHECK(runs[0].info.step >= 3 && runs[1].info.step >= 3);
    serve_close(&runs[0]);
    serve_close(&runs[1]);
}
