/* Servers and workers of one job on this host, for their tests. A server runs on a thread, workers
 * on threads or in processes. */
#ifndef DTRAIN_TESTS_SERVE_RUN_H
#define DTRAIN_TESTS_SERVE_RUN_H

#include "train/train_model.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 6 };

static const dt_ctx_desc one_thread = {.no_vulkan = true, .threads = 1};
static const float infinity = (float)INFINITY;

typedef struct serve_case {
    int kind, batch_slices, workers, staleness, epochs, batch, accumulate;
    dt_tail tail;
    dt_optim_desc optim; /* .lr 0: the model's Adam with clipping */
    dt_comm_integrity integrity;
    int slow_us[WORKERS_MAX]; /* a worker waits so long before each step */
    bool staleness_lr;
    bool shared; /* logits are scaled by an input that all samples share */
    bool rare;   /* few targets are not ignored; steps without any are left out */
    int workers_max, ticket_ms;
    bool vulkan; /* workers have a Vulkan device */
} serve_case;

typedef struct serve_run serve_run;

typedef struct serve_worker {
    serve_run *run;
    int index;
    pthread_t thread;
    uint64_t steps, samples, skipped;
    double loss;
    uint64_t epoch; /* that it is in */
    dt_result result;
    char text[1200];
} serve_worker;

struct serve_run {
    const serve_case *c;
    train_model m;
    dt_server *server;
    dt_comm_desc by;
    char address[128];
    bool nan;    /* in a sample of the workers' */
    int wait_ms; /* of workers for a server; 0: 2000 */
    pthread_t thread;
    bool thread_made;
    _Atomic int ended; /* dt_server_run has */
    dt_result result;
    serve_worker workers[WORKERS_MAX];
    uint64_t hash;
    dt_server_info info;
};

static dt_comm_desc serve_key(char digit, dt_comm_integrity integrity) {
    dt_comm_desc by = {.integrity = integrity, .job = "a test"};
    memset(by.key, digit, 64);
    return by;
}

static bool serve_model_on(train_model *m, const serve_case *c, bool vulkan) {
    const dt_ctx_desc ctx = {.no_vulkan = !vulkan, .threads = 1};
    if (!train_model_make(m, &ctx, c->kind))
        return false;
    for (int i = 0; i < TRAIN_ROWS && c->rare; i++)
        m->data.t[i] = i % 8 ? -100 : m->data.t[i];
    if (!c->shared)
        return true;
    dt_tensor scale = dt_input_shared(m->graph, "scale", DT_F32, dt_dims(TRAIN_CLASSES));
    m->loss = dt_cross_entropy(dt_mul(m->logits, scale), m->t, NULL);
    return dt_graph_error(m->graph) == NULL;
}

static bool serve_model(train_model *m, const serve_case *c) {
    return serve_model_on(m, c, false);
}

static dt_result serve_write(dt_trainer *t, const train_model *m, const serve_case *c) {
    const float values[TRAIN_CLASSES] = {1.0f, 0.5f, 2.0f, 1.5f, 0.25f};
    return c->shared ? dt_trainer_set_input(t, (dt_tensor){m->graph, m->loss.id - 2}, values,
                                            sizeof values)
                     : DT_OK;
}

static dt_trainer_desc serve_trainer(const serve_case *c, train_model *m) {
    dt_trainer_desc d = train_desc(m);
    if (c->optim.lr != 0.0)
        d.optim = &c->optim;
    d.batch = c->batch ? c->batch : 37;
    d.accumulate = c->accumulate;
    d.skip_empty = c->rare;
    d.tail = c->tail;
    return d;
}

/* A trainer of the same job without servers, or NULL; *m is open whatever comes. */
__attribute__((__unused__)) static dt_trainer *serve_alone(const serve_case *c, train_model *m) {
    dt_trainer *t = NULL;
    *m = (train_model){.ctx = NULL};
    if (!CHECK_TEXT(serve_model(m, c), "the model"))
        return NULL;
    dt_trainer_desc d = serve_trainer(c, m);
    d.parallel.batch_slices = c->batch_slices;
    d.devices = "cpu";
    CHECK_TEXT(!dt_trainer_create(m->graph, &d, &t), "%s", dt_ctx_error(m->ctx));
    return t;
}

/* What ranks make of it. */
__attribute__((__unused__)) static uint64_t serve_wanted(const serve_case *c) {
    train_model m;
    uint64_t hash = 0;
    dt_trainer *t = serve_alone(c, &m);
    dt_result result = t ? serve_write(t, &m, c) : DT_ERROR_INVALID;
    for (int i = 0; i < c->epochs && !result; i++)
        result = dt_trainer_epoch(t, NULL);
    CHECK_TEXT(!result && !dt_store_state_hash(dt_trainer_store(t), &hash), "%s",
               dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return hash;
}

/* ---- a server, on a thread */

static bool serve_open_one(serve_run *r, const serve_case *c, int place, int servers) {
    *r = (serve_run){.c = c, .by = serve_key('a', c->integrity)};
    if (!CHECK_TEXT(serve_model(&r->m, c), "the model"))
        return false;
    dt_server_desc d = {.trainer = serve_trainer(c, &r->m),
                        .security = &r->by,
                        .staleness = c->staleness,
                        .staleness_lr = c->staleness_lr,
                        .max_workers = c->workers_max,
                        .reassign_ms = c->ticket_ms,
                        .index = place,
                        .servers = servers};
    d.trainer.parallel.batch_slices = c->batch_slices;
    dt_result result = dt_server_create(r->m.graph, &d, &r->server);
    if (!result)
        result = serve_write(dt_server_trainer(r->server), &r->m, c);
    dt_server_get_info(r->server, &r->info);
    snprintf(r->address, sizeof r->address, "127.0.0.1:%d", r->info.port);
    return CHECK_TEXT(!result && r->info.port > 0, "%s", dt_ctx_error(r->m.ctx));
}

static bool serve_open(serve_run *r, const serve_case *c) {
    return serve_open_one(r, c, 0, 1);
}

static void *serve_thread(void *arg) {
    serve_run *r = arg;
    r->result = dt_server_run(r->server, -1);
    r->ended = 1;
    return NULL;
}

static void serve_start(serve_run *r) {
    r->ended = 0;
    r->thread_made = CHECK_TEXT(!pthread_create(&r->thread, NULL, serve_thread, r), "a thread");
}

/* Several servers of one job, on threads; workers find all of them by runs[0]. */
__attribute__((__unused__)) static void serve_start_several(serve_run *runs, const serve_case *c,
                                                            int servers) {
    char addresses[sizeof runs->address] = "";
    for (int i = 0; i < servers && serve_open_one(&runs[i], c, i, servers); i++) {
        const size_t used = strlen(addresses);
        snprintf(addresses + used, sizeof addresses - used, "%s%s", i ? "," : "", runs[i].address);
        serve_start(&runs[i]);
    }
    snprintf(runs->address, sizeof runs->address, "%s", addresses);
}

static void serve_stop(serve_run *r) {
    if (!r->thread_made)
        return;
    dt_server_stop(r->server);
    pthread_join(r->thread, NULL);
    r->thread_made = false;
    CHECK_TEXT(!r->result, "%s", dt_ctx_error(r->m.ctx));
    dt_server_get_info(r->server, &r->info);
    CHECK(!dt_store_state_hash(dt_trainer_store(dt_server_trainer(r->server)), &r->hash));
}

/* One whose dt_server_run ends by itself, with an error that says `words`. One that does not is
 * stopped after 60 s. */
__attribute__((__unused__)) static void serve_ended(serve_run *r, dt_result result,
                                                    const char *words) {
    if (!r->thread_made)
        return;
    for (int i = 0; i < 6000 && !r->ended; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    if (!r->ended)
        dt_server_stop(r->server);
    pthread_join(r->thread, NULL);
    r->thread_made = false;
    CHECK_TEXT(r->result == result && strstr(dt_ctx_error(r->m.ctx), words), "%d: %s",
               (int)r->result, dt_ctx_error(r->m.ctx));
}

static void serve_close(serve_run *r) {
    dt_server_destroy(r->server);
    dt_ctx_destroy(r->m.ctx);
}

/* ---- workers, each on a thread */

static void serve_sleep_us(long us) {
    const struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static dt_result serve_join(serve_run *r, train_model *m, dt_trainer **t) {
    *t = NULL;
    if (!serve_model_on(m, r->c, r->c->vulkan))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = serve_trainer(r->c, m);
    if (r->nan)
        m->data.x[40 * TRAIN_SIDE * TRAIN_SIDE + 3] = infinity;
    d.devices = r->c->vulkan ? "vulkan:0" : "cpu";
    d.mode = DT_TRAIN_SERVER;
    d.server.addresses = r->address;
    d.server.security = &r->by;
    d.server.wait_ms = r->wait_ms ? r->wait_ms : 2000;
    dt_result result = dt_trainer_create(m->graph, &d, t);
    return result ? result : serve_write(*t, m, r->c);
}

static uint64_t serve_epoch(const dt_trainer *t) {
    dt_trainer_info info;
    dt_trainer_get_info(t, &info);
    return info.epoch;
}

static void *serve_work(void *arg) {
    serve_worker *w = arg;
    train_model *m = malloc(sizeof *m);
    dt_trainer *t;
    dt_train_report report;
    w->result = m ? serve_join(w->run, m, &t) : DT_ERROR_MEMORY;
    w->epoch = w->result ? 0 : serve_epoch(t); /* others may have been faster */
    while (!w->result && w->epoch < (uint64_t)w->run->c->epochs) {
        if (w->run->c->slow_us[w->index])
            serve_sleep_us(w->run->c->slow_us[w->index]);
        w->result = dt_trainer_step(t, &report);
        w->steps += report.steps;
        w->samples += report.samples;
        w->skipped += report.skipped;
        w->loss = report.steps ? report.loss : w->loss;
        w->epoch = serve_epoch(t);
    }
    if (m)
        snprintf(w->text, sizeof w->text, "%s", dt_ctx_error(m->ctx));
    if (m)
        dt_ctx_destroy(m->ctx);
    free(m);
    return NULL;
}

static void serve_workers(serve_run *r) {
    for (int i = 0; i < r->c->workers; i++) {
        serve_worker *w = &r->workers[i];
        w->run = r;
        w->index = i;
        CHECK(!pthread_create(&w->thread, NULL, serve_work, w));
    }
    for (int i = 0; i < r->c->workers; i++) {
        pthread_join(r->workers[i].thread, NULL);
        CHECK_TEXT(!r->workers[i].result, "worker %d: %s", i, r->workers[i].text);
    }
}

/* A whole job; its server's state, as a hash. */
__attribute__((__unused__)) static uint64_t serve_bits(const serve_case *c, serve_run *r) {
    if (!serve_open(r, c))
        return 0;
    serve_start(r);
    serve_workers(r);
    serve_stop(r);
    serve_close(r);
    return r->hash;
}

/* ---- processes */

/* Not exit: it would remove the parent's files. */
__attribute__((__unused__)) static pid_t serve_fork(serve_run *r, int index) {
    serve_worker *w = &r->workers[index];
    w->run = r;
    w->index = index;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid)
        return pid;
    serve_work(w);
    if (w->result)
        printf("worker %d: %s\n", index, w->text);
    fflush(stdout);
    _exit(w->result != DT_OK);
}

__attribute__((__unused__)) static void serve_reap(pid_t pid, bool killed) {
    int status = 1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && (killed || !status));
}

/* Of a process that could not be started the id is -1, which is every process of the user. */
__attribute__((__unused__)) static void serve_signal(pid_t pid, int signal) {
    CHECK(pid > 0 && kill(pid, signal) == 0);
}

#endif
