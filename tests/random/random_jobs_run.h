/* Makes a random job (random_jobs.h) on its ranks, which are threads, and records its results. They
 * are hashes of weights, state, files, reports and figures; bytes; and every error's text. The job
 * is made up to four times: straight on; with processes as ranks; from its checkpoint in the middle
 * on; and so on one device, where the bits must not depend on the mesh. */
#ifndef DTRAIN_TESTS_RANDOM_JOBS_RUN_H
#define DTRAIN_TESTS_RANDOM_JOBS_RUN_H

#include "random/random_jobs.h"
#include "parallel/train_processes.h"

#include <pthread.h>
#include <unistd.h>

/* Counts that must not grow. */
#define BYTES(X)                                                                                   \
    X(transient, transient_bytes)                                                                  \
    X(staging, staging_bytes)                                                                      \
    X(partial, partial_sum_bytes)                                                                  \
    X(moments, state_bytes)                                                                        \
    X(params, replica_param_bytes)                                                                 \
    X(gradients, replica_gradient_bytes)                                                           \
    X(live, live_micro_batches)
#define BYTES_ENUM(name, member) B_##name,
enum { BYTES(BYTES_ENUM) B_host, JOB_BYTES };

typedef struct jobs_hash {
    uint64_t of;
} jobs_hash;

static void jobs_add(jobs_hash *h, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        h->of = (h->of ^ ((const unsigned char *)data)[i]) * 1099511628211u;
}

static void jobs_add_u64(jobs_hash *h, uint64_t value) {
    jobs_add(h, &value, sizeof value);
}

/* A NaN's sign does not count as a result. */
static void jobs_add_double(jobs_hash *h, double value) {
    const double nan = 0x1p1023;
    jobs_add(h, isnan(value) ? &nan : &value, sizeof value);
}

static const jobs_hash jobs_start = {14695981039346656037u};

static uint64_t jobs_file_hash(const char *path) {
    jobs_hash h = jobs_start;
    char piece[4096];
    size_t count, all = 0;
    FILE *f = fopen(path, "rb");
    for (; f && (count = fread(piece, 1, sizeof piece, f)) > 0; all += count)
        jobs_add(&h, piece, count);
    if (f)
        fclose(f);
    return all ? h.of : 0;
}

typedef enum jobs_way { WAY_STRAIGHT, WAY_RESUMED, WAY_ALONE, WAY_PROCESSES } jobs_way;

enum { JOB_PREDICTED = 3 };

typedef struct jobs_end {       /* of one rank */
    uint64_t weights, state;    /* 0: it is missing */
    uint64_t saved, last;       /* of the files in the middle and at the end */
    jobs_hash reports, figures; /* of all steps; of the trainer's description of itself */
    jobs_hash evaluated;
    uint64_t predicted[JOB_PREDICTED]; /* of tensors; 0: it cannot be had */
    uint64_t bytes[JOB_BYTES];
    double loss;
    int steps; /* committed */
    dt_result made;
    char texts[2048];
} jobs_end;

typedef struct jobs_rank {
    const jobs_job *job;
    jobs_way way;
    int index;
    dt_comm *comm;
    char devices[16], half[64], full[64];
    jobs_end end;
} jobs_rank;

/* ---- a model with its data */

typedef struct jobs_model {
    train_model train;
    team_model team;
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor shared;
    dt_trainer_desc desc;
    dt_optim_desc optim;
    int lost_row; /* that the data do not have; -1 = none */
} jobs_model;

static void jobs_here(train_model *m, int kind, jobs_model *to, dt_trainer_desc *d) {
    dt_tensor h = m->x;
    const dt_tensor y = dt_input(m->graph, "y", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    d->data.columns[1] = (dt_column){.input = y, .data = m->data.x, .dtype = DT_F32};
    if (kind == HERE_ONE) {
        h = dt_mul(h, dt_param(m->graph, "w", dt_dims(1), (dt_init){DT_INIT_UNIFORM, -1, 1}));
        d->losses[0].term = dt_mse(h, y);
        return;
    }
    if (kind == HERE_WIDE) { /* sums are cut into slices */
        const dt_linear_desc up = {.tensor = DT_TENSOR_COLUMN}, down = {.tensor = DT_TENSOR_ROW};
        h = dt_relu(dt_nn_linear_with(h, "up", 612, &up));
        d->losses[0].term = dt_mse(dt_nn_linear_with(h, "down", 36, &down), y);
        return;
    }
    if (kind == HERE_MARKS) {
        h = dt_tanh(dt_nn_linear(h, "in", 20));
        h = dt_stage(dt_tanh(h), 1);
        h = dt_stage(dt_affine(h, 2, 0.5f), 2);
        h = dt_nn_linear(h, "out", TRAIN_SIDE * TRAIN_SIDE);
        d->losses[0].term = dt_mse(h, y);
        return;
    }
    to->shared = dt_input_shared(m->graph, "scale", DT_F32, dt_dims(20));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    d->data.columns[2] = (dt_column){.input = m->t, .data = m->data.t, .dtype = DT_I32};
    h = dt_relu(dt_mul(dt_nn_linear(h, "in", 20), to->shared));
    dt_tensor logits = dt_nn_linear(h, "classes", TRAIN_CLASSES);
    d->losses[0] = (dt_loss){dt_cross_entropy(logits, m->t, NULL), 0.5f};
    d->losses[1] = (dt_loss){
        dt_mean_loss(dt_huber(dt_nn_linear(h, "back", TRAIN_SIDE * TRAIN_SIDE), y, 0.3f)), 2};
    d->metrics[0] = dt_accuracy(logits, m->t);
    d->metrics[1] = dt_label(dt_mean_loss(dt_square(h)), "hidden");
    d->metrics[2] = dt_label(dt_cross_entropy(logits, m->t, NULL), "again");
}

static bool jobs_here_make(jobs_model *m, const dt_ctx_desc *ctx, int kind) {
    train_model *t = &m->train;
    if (dt_ctx_create(ctx, &t->ctx) || dt_graph_create(t->ctx, &t->graph))
        return false;
    train_data_fill(&t->data);
    t->x = dt_input(t->graph, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m->desc.data.columns[0] = (dt_column){.input = t->x, .data = t->data.x, .dtype = DT_F32};
    jobs_here(t, kind, m, &m->desc);
    return true;
}

static bool jobs_make(jobs_model *m, const jobs_job *j) {
    const struct job_model *row = &job_models[j->model];
    const dt_ctx_desc ctx = {.no_vulkan = true, .threads = 1};
    bool made;
    if (row->of == OF_TEAM) {
        made = team_make(&m->team, row->kind, false);
        m->desc = team_desc(&m->team, NULL);
    } else if (row->of == OF_TRAIN) {
        made = pipe_model(&m->train, &ctx, row->kind);
        m->desc = train_desc(&m->train);
        pipe_losses(&m->train, row->kind, &m->desc);
    } else {
        made = jobs_here_make(m, &ctx, row->kind);
    }
    m->ctx = row->of == OF_TEAM ? m->team.ctx : m->train.ctx;
    m->graph = row->of == OF_TEAM ? m->team.graph : m->train.graph;
    return made && !dt_graph_error(m->graph);
}

/* ---- what is wrong with the data */

static dt_result jobs_sample(void *user, const dt_sample *s, void *const *values) {
    const jobs_model *m = user;
    (void)values;
    if (s->row != (uint64_t)m->lost_row || s->step < 2)
        return DT_OK;
    snprintf(s->error, s->error_bytes, "row %d is away", m->lost_row);
    return DT_ERROR_IO;
}

static void jobs_trouble(jobs_model *m, const jobs_job *j) {
    const bool team = job_models[j->model].of == OF_TEAM;
    const int rows = j->v[F_ROWS], row = rows / 2, kind = j->v[F_TROUBLE];
    int32_t *targets = team ? m->team.targets : m->train.data.t;
    const int each = team ? TEAM_POS : 1;
    m->lost_row = -1;
    if (rows < 1)
        return;
    if ((kind == 1 || kind == 2) && !team)
        m->train.data.x[row * TRAIN_SIDE * TRAIN_SIDE + 5] = kind == 1 ? NAN : INFINITY;
    for (int i = 0; i < row * each && kind == 4; i++)
        targets[i] = -100;
    if (kind == 3)
        targets[row * each] = 99;
    if (kind == 5)
        m->lost_row = row;
    m->desc.data.sample = kind == 5 ? jobs_sample : NULL;
    m->desc.data.user = m;
}

/* ---- the trainer */

static void jobs_parallel(const jobs_job *j, jobs_way way, dt_parallel_desc *p) {
    const int *v = j->v;
    *p = (dt_parallel_desc){.batch_slices = v[F_SLICES],
                            .balance = (dt_balance)v[F_BALANCE],
                            .bucket_bytes = v[F_BUCKET] > 0 ? (size_t)v[F_BUCKET] : 0,
                            .no_overlap = v[F_SERIAL],
                            .sequence_parallel = v[F_SEQUENCE],
                            .tensor_slices = v[F_TENSOR_SLICES]};
    if (way == WAY_ALONE) { /* a device has all slices of the model */
        p->tensor_slices = p->tensor_slices ? p->tensor_slices : v[F_TENSOR];
        return;
    }
    p->replicas = v[F_GIVEN] ? v[F_REPLICAS] : 0;
    p->pipeline = v[F_STAGES];
    p->schedule = (dt_pipeline_schedule)v[F_SCHEDULE];
    p->chunks = v[F_CHUNKS];
    p->tensor = v[F_TENSOR];
    p->zero_stage = v[F_ZERO];
    p->offload = v[F_OFFLOAD];
    p->shard_degree = j->shard_degree;
}

static void jobs_describe(jobs_model *m, const jobs_rank *r) {
    const int *v = r->job->v;
    dt_trainer_desc *d = &m->desc;
    m->optim = job_optims[r->job->optim].desc;
    m->optim.average = (dt_average){.kind = (dt_average_kind)v[F_AVERAGE], .start = 2};
    d->optim = &m->optim;
    d->precision = r->job->precision;
    d->parameter_dtype = r->job->parameters;
    m->optim.state_dtype = r->job->moments;
    d->params = v[F_WEIGHTS_ONLY] ? "*.weight" : NULL;
    d->averaged = v[F_AVERAGED];
    d->data.rows = (uint64_t)v[F_ROWS];
    d->batch = v[F_BATCH];
    d->accumulate = v[F_ACCUMULATE];
    d->tail = (dt_tail)v[F_TAIL];
    d->skip_empty = v[F_EMPTY];
    d->seed = (uint64_t)v[F_SEED];
    d->no_shuffle = v[F_ORDER];
    d->devices = r->devices;
    d->threads = v[F_THREADS];
    d->comm = r->comm;
    d->mode = (dt_train_mode)v[F_MODE];
    d->local = (dt_local_desc){.steps = v[F_ROUND], .gossip = v[F_GOSSIP]};
    if (v[F_OUTER])
        d->local.outer = (dt_outer_desc){1, DT_ZERO, true};
    d->limits.memory_bytes = v[F_MEMORY] > 0 ? (uint64_t)v[F_MEMORY] : 0;
    if (r->way == WAY_ALONE) /* which takes more */
        d->limits.memory_bytes = 0;
    d->limits.in_flight = v[F_IN_FLIGHT];
    jobs_parallel(r->job, r->way, &d->parallel);
    d->parallel.compress = (dt_compress)v[F_COMPRESS];
    d->parallel.compress_ratio = v[F_COMPRESS] == DT_COMPRESS_TOPK ? 0.2 : 0;
}

/* The last rank says something else than the others. */
static void jobs_differ(jobs_model *m, const jobs_rank *r) {
    dt_trainer_desc *d = &m->desc;
    if (r->way == WAY_ALONE || r->job->v[F_RANKS] < 2 || r->index + 1 < r->job->v[F_RANKS])
        return;
    switch (r->job->v[F_DIFFERS]) {
    case 1: d->seed++; break;
    case 2: d->batch++; break;
    case 3: m->optim.lr *= 2; break;
    case 4: d->parallel.zero_stage = !d->parallel.zero_stage; break;
    case 5: d->tail = d->tail == DT_TAIL_DROP ? DT_TAIL_KEEP : DT_TAIL_DROP; break;
    case 6: dt_param(m->graph, "more", dt_dims(3), (dt_init){0}); break;
    case 7: d->accumulate++; break;
    case 8: d->local.gossip = 3 - d->local.gossip; break;
    case 9: d->parallel.pipeline = d->parallel.pipeline == 2 ? 0 : 2; break;
    default: break;
    }
}

/* ---- what is written down */

/* Files' names do not count as results. */
static void jobs_failed(jobs_rank *r, const jobs_model *m, const char *what, dt_result result) {
    char text[1200], *path;
    jobs_end *e = &r->end;
    const size_t used = strlen(e->texts);
    snprintf(text, sizeof text, "%s", dt_ctx_error(m->ctx));
    for (int i = 0; i < 2; i++)
        while ((path = strstr(text, i ? r->full : r->half)))
            memmove(path, path + strlen(i ? r->full : r->half),
                    strlen(path + strlen(i ? r->full : r->half)) + 1);
    for (char *c = text; *c; c++)
        *c = *c == '\n' || *c == '|' ? '/' : *c;
    jobs_add_u64(&e->reports, (uint64_t)result);
    jobs_add(&e->reports, text, strlen(text));
    if (used < sizeof e->texts - 1 && !strstr(e->texts, text))
        snprintf(e->texts + used, sizeof e->texts - used, "%s%s: %d %s", used ? "; " : "", what,
                 (int)result, text);
}

static void jobs_report(jobs_end *e, const dt_train_report *r) {
    const uint64_t counts[] = {
        r->step,  r->epoch,       r->epoch_ended, r->samples, r->steps,
        r->round, r->round_ended, r->skipped,     r->empty,   r->checkpoints_failed};
    const double numbers[] = {r->loss, r->gradient_norm, r->lr};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        jobs_add_u64(&e->reports, counts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        jobs_add_double(&e->reports, numbers[i]);
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        jobs_add_double(&e->reports, r->loss_sum[i]);
        jobs_add_double(&e->reports, r->loss_weight[i]);
        jobs_add_double(&e->reports, r->metric[i]);
        jobs_add_double(&e->reports, r->metric_sum[i]);
        jobs_add_double(&e->reports, r->metric_weight[i]);
    }
}

static void jobs_info(jobs_end *e, const dt_trainer *t, const dt_ctx *ctx) {
    dt_trainer_info i;
    dt_ctx_info memory;
    dt_trainer_get_info(t, &i);
    dt_ctx_get_info(ctx, &memory);
    const uint64_t counts[] = {(uint64_t)i.rank,
                               (uint64_t)i.world_size,
                               (uint64_t)i.local_replicas,
                               (uint64_t)i.replicas,
                               (uint64_t)i.batch_slices,
                               (uint64_t)i.batch,
                               (uint64_t)i.accumulate,
                               (uint64_t)i.replica_batch,
                               (uint64_t)i.micro_batch,
                               (uint64_t)i.micro_batches,
                               i.epoch_steps,
                               i.step,
                               i.epoch,
                               i.round,
                               (uint64_t)i.round_steps,
                               (uint64_t)i.buckets,
                               i.gradient_bytes,
                               (uint64_t)i.stages,
                               (uint64_t)i.tensor_ranks,
                               i.checkpoints_failed};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        jobs_add_u64(&e->figures, counts[k]);
    jobs_add_double(&e->figures, i.bubble);
#define BYTES_TAKE(name, member) e->bytes[B_##name] = (uint64_t)i.member;
    BYTES(BYTES_TAKE)
    e->bytes[B_host] = memory.host_bytes;
}

/* ---- a rank */

static void jobs_save(jobs_rank *r, const jobs_model *m, dt_trainer *t, const char *path,
                      uint64_t *hash) {
    const dt_result result = dt_trainer_save(t, path);
    if (result)
        jobs_failed(r, m, "save", result);
    else if (r->index == 0)
        *hash = jobs_file_hash(path);
}

/* In the middle: what a checkpoint does not have is set again after it was loaded. */
static void jobs_half(jobs_rank *r, const jobs_model *m, dt_trainer *t) {
    dt_result result = DT_OK;
    if (r->way == WAY_STRAIGHT || r->way == WAY_PROCESSES)
        jobs_save(r, m, t, r->half, &r->end.saved);
    else
        result = dt_trainer_load(t, r->half);
    if (!result && r->job->v[F_RATE])
        result = dt_trainer_set_lr(t, 0.003);
    if (result)
        jobs_failed(r, m, "load", result);
}

static void jobs_step(jobs_rank *r, const jobs_model *m, dt_trainer *t, int step) {
    dt_train_report report = {0};
    char what[16];
    const dt_result result = dt_trainer_step(t, &report);
    snprintf(what, sizeof what, "step %d", step + 1);
    if (result)
        jobs_failed(r, m, what, result);
    r->end.steps += !result;
    r->end.loss = result ? r->end.loss : report.loss;
    jobs_report(&r->end, &report);
}

static void jobs_values(jobs_rank *r, const jobs_model *m, dt_trainer *t) {
    dt_store *store = dt_trainer_store(t);
    const int *v = r->job->v;
    dt_result result = store ? dt_store_hash(store, &r->end.weights) : DT_ERROR_INVALID;
    /* sharded over ranks, it is nowhere as a whole but in the file */
    if (!result && !(v[F_ZERO] && v[F_RANKS] > 1))
        result = dt_store_state_hash(store, &r->end.state);
    if (result)
        jobs_failed(r, m, "store", result);
}

static void jobs_evaluate(jobs_rank *r, jobs_model *m, dt_trainer *t) {
    dt_train_report report = {0};
    const dt_result result = dt_trainer_evaluate(t, &m->desc.data, 5, &report);
    if (result)
        jobs_failed(r, m, "evaluate", result);
    jobs_report(&r->end, &report);
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        jobs_add_double(&r->end.evaluated, report.loss_sum[i]);
        jobs_add_double(&r->end.evaluated, report.loss_weight[i]);
        jobs_add_double(&r->end.evaluated, report.metric_sum[i]);
        jobs_add_double(&r->end.evaluated, report.metric_weight[i]);
    }
}

/* Tensors that a loss is made of, or not: those before it that each sample has. */
static void jobs_predict(jobs_rank *r, jobs_model *m, dt_trainer *t) {
    const dt_tensor loss = m->desc.losses[0].term.id ? m->desc.losses[0].term : m->desc.loss;
    uint32_t id = (uint32_t)r->job->number;
    for (int i = 0, tries = 0; i < JOB_PREDICTED && tries < 60; tries++) {
        const dt_tensor y = {m->graph, 1 + (id = id * 1664525u + 1013904223u) / 256 % loss.id};
        size_t bytes = 4 * (size_t)m->desc.data.rows;
        for (int k = 0; k < dt_tensor_shape(y).rank; k++)
            bytes *= (size_t)dt_tensor_shape(y).dim[k];
        float *out = calloc(1, bytes);
        const dt_result result = dt_trainer_predict(t, &m->desc.data, y, 5, out, bytes);
        jobs_hash hash = jobs_start;
        jobs_add(&hash, out, bytes);
        free(out);
        if (result == DT_ERROR_INVALID) /* samples share it */
            continue;
        r->end.predicted[i++] = result ? 0 : hash.of;
        if (result && result != DT_ERROR_UNSUPPORTED)
            jobs_failed(r, m, "predict", result);
    }
}

static void jobs_go(jobs_rank *r, jobs_model *m) {
    dt_trainer *t = NULL;
    float scale[20];
    const int steps = r->job->v[F_STEPS];
    r->end.made = dt_trainer_create(m->graph, &m->desc, &t);
    if (r->end.made) {
        jobs_failed(r, m, "create", r->end.made);
        return;
    }
    for (int i = 0; i < 20; i++)
        scale[i] = 0.5f + 0.125f * (float)i; /* exact: with FMA, too */
    if (m->shared.id && dt_trainer_set_input(t, m->shared, scale, sizeof scale))
        jobs_failed(r, m, "input", DT_ERROR_INVALID);
    for (int i = r->way == WAY_RESUMED || r->way == WAY_ALONE ? steps / 2 : 0; i < steps; i++) {
        if (i == steps / 2)
            jobs_half(r, m, t);
        jobs_step(r, m, t, i);
    }
    const dt_result result = dt_trainer_wait(t, NULL);
    if (result)
        jobs_failed(r, m, "wait", result);
    jobs_info(&r->end, t, m->ctx);
    jobs_values(r, m, t);
    jobs_save(r, m, t, r->full, &r->end.last);
    if (r->job->v[F_EVALUATE])
        jobs_evaluate(r, m, t);
    if (r->job->predicts)
        jobs_predict(r, m, t);
}

static void *jobs_rank_run(void *arg) {
    jobs_rank *r = arg;
    jobs_model *m = calloc(1, sizeof *m);
    r->end.reports = r->end.figures = r->end.evaluated = jobs_start;
    if (m && test_check(jobs_make(m, r->job), __FILE__, __LINE__, "job %d: no model: %s",
                        r->job->number, m->graph ? dt_graph_error(m->graph) : "")) {
        jobs_trouble(m, r->job);
        jobs_describe(m, r);
        jobs_differ(m, r);
        jobs_go(r, m);
    }
    if (m)
        dt_ctx_destroy(m->ctx);
    free(m);
    return NULL;
}

/* ---- all ranks */

static int jobs_devices(const jobs_job *j) {
    int count = jobs_clamp(j->v[F_REPLICAS], 1, 7) * jobs_clamp(j->v[F_STAGES], 1, 4) *
                jobs_clamp(j->v[F_TENSOR], 1, 4);
    return jobs_clamp(count, j->v[F_RANKS], JOB_DEVICES);
}

/* Devices are split unevenly: three of two ranks are one and two. */
static void jobs_rank_set(jobs_rank *r, const jobs_job *j, jobs_way way, int index, dt_comm *comm) {
    static long id; /* the same in processes that are forked */
    const int ranks = way == WAY_ALONE ? 1 : j->v[F_RANKS],
              devices = way == WAY_ALONE ? 1 : jobs_devices(j);
    id = id && way == WAY_PROCESSES ? id : (long)getpid();
    *r = (jobs_rank){.job = j, .way = way, .index = index, .comm = comm};
    snprintf(r->devices, sizeof r->devices, "cpu:%d",
             devices * (index + 1) / ranks - devices * index / ranks);
    snprintf(r->half, sizeof r->half, "build/random_jobs_%ld.half", id);
    snprintf(r->full, sizeof r->full, "build/random_jobs_%ld.full", id);
}

static void jobs_run(const jobs_job *j, jobs_way way, jobs_rank *all) {
    const int ranks = way == WAY_ALONE ? 1 : j->v[F_RANKS];
    pthread_t threads[JOB_RANKS];
    dt_comm *comms[JOB_RANKS] = {NULL};
    if (ranks > 1 && dt_comm_create_threads(NULL, ranks, comms))
        exit(1);
    for (int i = 0; i < ranks; i++) {
        jobs_rank_set(&all[i], j, way, i, comms[i]);
        if (pthread_create(&threads[i], NULL, jobs_rank_run, &all[i]))
            exit(1); /* others would wait for it */
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < ranks; i++)
        dt_comm_destroy(comms[i]);
}

/* ---- ranks that are processes, over TCP */

_Static_assert(sizeof(jobs_end) <= sizeof(((rank *)0)->values), "what a process leaves");

static void jobs_process(rank *r) {
    jobs_rank own;
    jobs_rank_set(&own, r->job->arg, WAY_PROCESSES, r->index, r->comm);
    jobs_rank_run(&own);
    memcpy(r->values, &own.end, sizeof own.end);
}

__attribute__((__unused__)) static void jobs_run_processes(const jobs_job *j, jobs_rank *all) {
    job *processes = job_new(j->v[F_RANKS], j);
    if (!processes)
        return;
    processes->tcp = true;
    job_run(processes, jobs_process);
    for (int i = 0; i < j->v[F_RANKS]; i++)
        memcpy(&all[i].end, processes->at[i].values, sizeof all[i].end);
    job_free(processes);
}

/* Of all ranks, in their order. */
static void jobs_sum(const jobs_rank *all, int ranks, jobs_end *to) {
    *to = all[0].end;
    to->reports = to->figures = jobs_start;
    for (int i = 0; i < ranks; i++) {
        jobs_add_u64(&to->reports, all[i].end.reports.of);
        jobs_add_u64(&to->reports, all[i].end.weights);
        jobs_add_u64(&to->reports, all[i].end.state);
        jobs_add_u64(&to->figures, all[i].end.figures.of);
        for (int k = 0; k < JOB_BYTES && i > 0; k++)
            to->bytes[k] += all[i].end.bytes[k];
    }
}

/* The texts of a rank that no rank before it has. */
__attribute__((__unused__)) static void jobs_texts(const jobs_rank *all, int ranks, char *to,
                                                   size_t room) {
    size_t used = 0;
    *to = 0;
    for (int i = 0; i < ranks && used < room; i++) {
        bool new = all[i].end.texts[0];
        for (int k = 0; k < i; k++)
            new = new &&strcmp(all[i].end.texts, all[k].end.texts);
        if (new)
            used += (size_t)snprintf(to + used, room - used, "%srank %d: %s", used ? "; " : "", i,
                                     all[i].end.texts);
    }
}

#endif
