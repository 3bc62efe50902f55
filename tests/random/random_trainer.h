/* A random model in trainers. 1 to 4 replicas with the same batch slices give the same bits. So
 * they do with ZeRO, and after a checkpoint in the middle; and the first step's gradient is the
 * reference's of the same pieces. A pipeline of 2 to 4 stages, where the model can be cut, has the
 * bits of one device. So has a grid of pipelines over ranks. Part of random_run.h's job, in a file
 * of its
 * own. */
#ifndef DTRAIN_TESTS_RANDOM_TRAINER_H
#define DTRAIN_TESTS_RANDOM_TRAINER_H

static int rnd_pipelines, rnd_grids; /* how many were compared */

typedef struct rnd_files { /* of this process */
    char values[64], checkpoint[64];
} rnd_files;

static rnd_files rnd_files_of(void) {
    rnd_files f;
    snprintf(f.values, sizeof f.values, "build/random_%ld.safetensors", (long)getpid());
    snprintf(f.checkpoint, sizeof f.checkpoint, "build/random_%ld.checkpoint", (long)getpid());
    return f;
}

/* What a trainer takes: what decides a loss's weight is not computed. False: not this model. */
static bool rnd_trainable(const rnd_model *m, rnd_model *out) {
    *out = *m;
    out->output_count = 0;
    rnd_prune(out);
    for (int i = 0; i < out->count; i++) {
        const rnd_stmt *s = &out->stmts[i];
        for (int k = 1; k < 3 && (s->kind == RND_CROSS_ENTROPY || s->kind == RND_NLL); k++)
            if (s->in[k] >= 0 && !rnd_is_leaf(out->stmts[s->in[k]].kind))
                return false;
    }
    return true;
}

static bool rnd_is_column(int kind) {
    return kind == RND_INPUT || kind == RND_INDEX;
}

/* Inputs that losses, metrics and gradients are really computed from: a gradient need not be.
 * False: none with samples, or too many. */
static bool rnd_columns(const rnd_ref *r, bool *columns) {
    ref_run run;
    dt_tensor wanted[RND_RESULTS];
    int count = 0;
    for (int i = 0; i < r->count; i++)
        wanted[i] = r->results[i].tensor;
    ref_open(&run, r->b.graph, 1);
    ref_mark(&run, wanted, (uint32_t)r->count);
    for (int i = 0; i < r->m->count; i++) {
        const int kind = r->m->stmts[i].kind;
        columns[i] = rnd_is_input(kind) && run.needed[r->b.at[i].id];
        count += columns[i] && rnd_is_column(kind);
    }
    ref_close(&run);
    return count > 0 && count <= DT_MAX_COLUMNS;
}

typedef struct rnd_job { /* one trainer */
    const rnd_model *m;
    const rnd_ref *r;
    const rnd_files *files;
    const bool *columns;
    char devices[64], way[160];
    bool vulkan;           /* they are */
    bool offload;          /* the host makes their updates */
    const char *load;      /* a checkpoint to go on from */
    int steps, save_after; /* 0 = never */
    bool marks;            /* half of the tensors are not kept */
    int stages;            /* of a pipeline, or 1: one device as a pipeline has it; 0: neither */
    dt_comm *comm;         /* a rank of a grid: of the model's batch slices */
    dt_optim_desc optim;
    bool refused;         /* the model cannot be cut so */
    bool local;           /* each step is a round of local steps */
    int shares;           /* dt_zero_stage: what replicas shard */
    uint64_t hash, empty; /* the state; steps of which no target counts */
    dt_result result;
    double *first; /* results of its first step, in the reference's order; NULL = not wanted */
} rnd_job;

static bool rnd_leaves_out(const rnd_model *m) {
    return m->seed % 3 == 0;
}

static dt_trainer_desc rnd_trainer_desc(rnd_job *j, const rnd_device *d, void **data) {
    const rnd_model *m = j->m;
    j->optim = (dt_optim_desc){.kind = m->optim, .lr = 1e-3};
    dt_trainer_desc desc = {.optim = &j->optim,
                            .precision = rnd_precision,
                            .comm = j->comm,
                            .data = {.rows = (uint64_t)m->rows},
                            .seed = m->seed,
                            .load = j->files->values,
                            .no_shuffle = true,
                            .batch = m->batch,
                            .accumulate = m->accumulate,
                            .parallel.batch_slices = m->batch_slices,
                            .skip_empty = rnd_leaves_out(m),
                            .parallel.zero_stage = j->shares,
                            .parallel.offload = j->offload,
                            .parallel.bucket_bytes = j->shares >= DT_SHARD_GRADIENTS ? 1024 : 0,
                            .devices = j->devices};
    if (j->stages) {
        desc.parallel.batch_slices = j->comm ? m->batch_slices : 1;
        desc.parallel.pipeline = j->stages;
        desc.parallel.schedule =
            j->stages > 1 ? (dt_pipeline_schedule)(m->seed / 7 % 4) : DT_PIPELINE_1F1B;
    }
    if (j->local) {
        desc.parallel.batch_slices = 0;
        desc.mode = DT_TRAIN_LOCAL;
        desc.local.steps = 1;
        desc.local.outer = (dt_outer_desc){.lr = 0.5, .momentum = 0.5};
    }
    for (int i = 0; i < m->loss_count; i++)
        desc.losses[i] = (dt_loss){d->b.at[m->losses[i]], m->coefficients[i]};
    for (int i = 0; i < m->metric_count; i++)
        desc.metrics[i] = d->b.at[m->metrics[i]];
    for (int i = 0, columns = 0; i < m->count; i++) {
        size_t bytes;
        const int kind = m->stmts[i].kind;
        if (!j->columns[i] || !rnd_is_column(kind))
            continue;
        data[i] = rnd_words(m, i, 0, m->rows, &bytes);
        desc.data.columns[columns++] = (dt_column){
            .input = d->b.at[i], .data = data[i], .dtype = kind == RND_INDEX ? DT_I32 : DT_F32};
    }
    return desc;
}

static void rnd_take_train_report(const rnd_ref *r, const dt_train_report *report, double *got) {
    dt_report one = {0};
    memcpy(one.loss_sum, report->loss_sum, sizeof one.loss_sum);
    memcpy(one.loss_weight, report->loss_weight, sizeof one.loss_weight);
    memcpy(one.metric_sum, report->metric_sum, sizeof one.metric_sum);
    memcpy(one.metric_weight, report->metric_weight, sizeof one.metric_weight);
    rnd_take_terms(r, &one, got);
}

static void rnd_job_steps(rnd_job *j, rnd_device *d, dt_trainer *trainer) {
    for (int i = 0; i < j->steps && !j->result; i++) {
        dt_train_report report;
        j->result = dt_trainer_step(trainer, &report);
        j->empty += report.empty;
        if (!j->result && i == 0 && j->first) {
            rnd_take_train_report(j->r, &report, j->first);
            rnd_take_gradients(d, j->r, dt_trainer_store(trainer), j->first);
        }
        if (!j->result && i + 1 == j->save_after)
            j->result = dt_trainer_save(trainer, j->files->checkpoint);
    }
}

/* A model that resumes from its own checkpoint is the same model: nothing is warned of. */
static void rnd_job_log(void *user, dt_log_level level, const char *message) {
    if (level == DT_LOG_WARNING && strncmp(message, "pipeline: ", 10))
        rnd_wrong(user, "a warning: %s", message);
}

/* Inputs that all samples share. */
static void rnd_job_write(rnd_job *j, rnd_device *d, dt_trainer *trainer) {
    for (int i = 0; i < j->m->count && !j->result; i++) {
        size_t bytes;
        if (!j->columns[i] || rnd_is_column(j->m->stmts[i].kind))
            continue;
        void *words = rnd_words(j->m, i, 0, 1, &bytes);
        j->result = dt_trainer_set_input(trainer, d->b.at[i], words, bytes);
        free(words);
    }
}

static void rnd_job_run(rnd_job *j, rnd_fault *fault) {
    const dt_ctx_desc ctx = {.no_vulkan = !j->vulkan, .logger = {rnd_job_log, fault}};
    rnd_device d = {.m = j->m, .way = j->way, .fault = fault};
    void *data[RND_STMTS] = {NULL};
    dt_trainer *trainer = NULL;
    if (rnd_build(j->m, &ctx, NULL, &d.b)) {
        const dt_trainer_desc desc = rnd_trainer_desc(j, &d, data);
        if (j->marks)
            rnd_forget(j->m, d.b.graph);
        j->result = dt_trainer_create(d.b.graph, &desc, &trainer);
        j->refused = j->result && j->stages > 1 && strstr(dt_ctx_error(d.b.ctx), "pipeline");
        if (!j->result)
            rnd_job_write(j, &d, trainer);
        if (!j->result && j->load)
            j->result = dt_trainer_load(trainer, j->load);
        if (!j->result)
            rnd_job_steps(j, &d, trainer);
        if (!j->result)
            j->result = dt_store_state_hash(dt_trainer_store(trainer), &j->hash);
        if (j->result && !j->refused)
            rnd_device_wrong(&d, "a trainer");
    }
    rnd_unbuild(&d.b);
    for (int i = 0; i < RND_STMTS; i++)
        free(data[i]);
}

/* The model's values as a file that all replicas start from. */
static bool rnd_save_values(const rnd_model *m, const rnd_files *files, rnd_fault *fault) {
    static const rnd_way way = {"values", "cpu", .cpu = true};
    rnd_device d;
    if (rnd_device_open(&d, m, &way, fault) && dt_store_save(d.store, files->values))
        rnd_device_wrong(&d, "dt_store_save");
    rnd_device_close(&d);
    return !fault->text[0];
}

/* The parts of the batch slices of a full batch. */
static int rnd_pieces(const rnd_model *m, rnd_piece *pieces) {
    int count = 0;
    for (int batch_slice = 0; batch_slice < m->batch_slices; batch_slice++) {
        const int low = batch_slice * m->batch / m->batch_slices,
                  size = (batch_slice + 1) * m->batch / m->batch_slices - low;
        for (int part = 0; part < m->accumulate; part++) {
            const int from = low + part * size / m->accumulate,
                      to = low + (part + 1) * size / m->accumulate;
            pieces[count++] = (rnd_piece){.first = from, .rows = to - from, .cpu = true};
        }
    }
    return count;
}

/* Whether a job that made all steps has another's bits and its number of steps without a target. */
static void rnd_same(const rnd_job *j, const rnd_job *as, const char *what, rnd_fault *fault) {
    if (fault->text[0])
        return;
    if (j->hash != as->hash)
        rnd_wrong(fault, "%s: the state is %016llx, on one %s %016llx: not the same bits", j->way,
                  (unsigned long long)j->hash, what, (unsigned long long)as->hash);
    else if (!j->load && j->empty != as->empty)
        rnd_wrong(fault, "%s: %d steps are without a target, on one %s %d", j->way, (int)j->empty,
                  what, (int)as->empty);
}

static void rnd_job_again(const rnd_job *first, int replicas, const char *load, int save_after,
                          rnd_fault *fault) {
    const rnd_model *m = first->m;
    rnd_job j = *first;
    j.load = load;
    j.empty = 0;
    j.save_after = save_after;
    j.marks = replicas % 2 == 0;
    j.shares = (int)(((uint64_t)replicas + m->seed + (load != NULL)) % 4);
    j.first = NULL;
    j.steps = load ? first->steps - m->steps / 2 : save_after ? save_after : first->steps;
    snprintf(j.devices, sizeof j.devices, "cpu:%d", replicas);
    snprintf(j.way, sizeof j.way, "a trainer, cpu:%d%s%s", replicas,
             (const char *const[]){"", ", sharing its state", ", sharing gradients",
                                   ", sharing parameters"}[j.shares],
             load ? ", resumed" : "");
    rnd_job_run(&j, fault);
    if (!save_after)
        rnd_same(&j, first, "replica", fault);
}

/* One device with one batch slice, and stages. */
static void rnd_pipelines_agree(const rnd_job *first, rnd_fault *fault) {
    rnd_job one = *first;
    one.first = NULL;
    one.empty = 0;
    one.stages = 1;
    snprintf(one.way, sizeof one.way, "one device of one batch slice");
    rnd_job_run(&one, fault);
    for (int stages = 2; stages <= 4 && !fault->text[0]; stages++) {
        rnd_job j = one;
        j.empty = 0;
        j.stages = stages;
        snprintf(j.devices, sizeof j.devices, "cpu:%d", stages);
        snprintf(j.way, sizeof j.way, "a pipeline of %d stages", stages);
        rnd_job_run(&j, fault);
        rnd_pipelines += !j.refused;
        if (!j.refused)
            rnd_same(&j, &one, "device", fault);
    }
}

typedef struct rnd_rank { /* of a grid; a thread */
    rnd_job job;
    rnd_fault fault;
    pthread_t thread;
} rnd_rank;

enum { RND_RANKS = 3 };

static void *rnd_rank_run(void *arg) {
    rnd_rank *r = arg;
    rnd_job_run(&r->job, &r->fault);
    return NULL;
}

/* 1 or 2 pipelines of 2 or 3 stages on 2 or 3 ranks. */
static void rnd_grids_agree(const rnd_job *first, rnd_fault *fault) {
    const rnd_model *m = first->m;
    const int replicas = 1 + (int)(m->seed / 3 % (uint64_t)DTI_MIN(m->batch_slices, 2)),
              stages = 2 + (m->seed / 5 % 4 == 0), ranks = 2 + (int)(m->seed / 11 % 2),
              devices = replicas * stages;
    static rnd_rank all[RND_RANKS];
    dt_comm *comms[RND_RANKS] = {NULL};
    if (ranks > devices || dt_comm_create_threads(NULL, ranks, comms))
        return;
    for (int i = 0; i < ranks; i++) {
        rnd_job *j = &all[i].job;
        memset(&all[i].fault, 0, sizeof all[i].fault);
        *j = *first;
        j->first = NULL;
        j->empty = 0;
        j->stages = stages;
        j->comm = comms[i];
        snprintf(j->devices, sizeof j->devices, "cpu:%d",
                 devices * (i + 1) / ranks - devices * i / ranks);
        snprintf(j->way, sizeof j->way, "rank %d of %d of %d x %d stages", i, ranks, replicas,
                 stages);
        if (pthread_create(&all[i].thread, NULL, rnd_rank_run, &all[i]))
            exit(1);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(all[i].thread, NULL);
    rnd_grids += !all[0].job.refused;
    for (int i = 0; i < ranks; i++) {
        const rnd_job *j = &all[i].job;
        if (all[i].fault.text[0] && !fault->text[0])
            rnd_wrong(fault, "%s", all[i].fault.text);
        if (!j->refused)
            rnd_same(j, first, "device", fault);
    }
    for (int i = 0; i < ranks; i++)
        dt_comm_destroy(comms[i]);
}

/* Two replicas with local steps: a job that goes on from a checkpoint ends as one that never
 * stopped. */
static void rnd_job_local(const rnd_job *first, rnd_fault *fault) {
    uint64_t hash[2] = {0, 0};
    for (int i = 0; i < 3 && !fault->text[0]; i++) { /* the whole, its first half, its second */
        rnd_job j = *first;
        j.local = true;
        j.empty = 0;
        j.first = NULL;
        j.load = i == 2 ? first->files->checkpoint : NULL;
        j.save_after = i == 1 ? first->m->steps / 2 : 0;
        j.steps = i == 1 ? j.save_after : first->steps - (i == 2 ? first->m->steps / 2 : 0);
        snprintf(j.devices, sizeof j.devices, "cpu:2");
        snprintf(j.way, sizeof j.way, "local steps, cpu:2%s", i == 2 ? ", resumed" : "");
        rnd_job_run(&j, fault);
        hash[i == 2] = i == 1 ? hash[0] : j.hash;
    }
    if (!fault->text[0] && hash[0] != hash[1])
        rnd_wrong(fault, "local steps: resumed, the state is %016llx, and else %016llx",
                  (unsigned long long)hash[1], (unsigned long long)hash[0]);
}

/* With .skip_empty a step of which no target counts is not computed: its metrics count nothing. */
static void rnd_expect_left_out(const rnd_ref *r, rnd_expected *e) {
    double weights = 0;
    for (int i = 0; i < r->m->loss_count; i++)
        weights += e->value[2 * i + 1];
    for (int i = 2 * r->m->loss_count; i < r->results[r->m->loss_count + r->m->metric_count].at;
         i++)
        e->value[i] = weights == 0 && rnd_leaves_out(r->m) ? 0 : e->value[i];
}

static void rnd_trainers_agree(const rnd_ref *r, const rnd_files *files, const bool *columns,
                               rnd_fault *fault) {
    const rnd_model *m = r->m;
    rnd_piece pieces[64];
    double *got = calloc((size_t)r->total + 1, sizeof *got);
    rnd_job j = {m, r, files, columns, "cpu", "a trainer, cpu", .steps = m->steps, .first = got};
    rnd_job_run(&j, fault);
    rnd_expected e = rnd_expect(r, pieces, rnd_pieces(m, pieces));
    rnd_expect_left_out(r, &e);
    rnd_compare(r, &e, got, RND_TERMS | RND_GRADIENTS, j.way, fault);
    const int most = DTI_MIN(m->batch_slices, 4), few = 1 + (int)(m->seed % (uint64_t)most);
    for (int replicas = 2; replicas <= most && !fault->text[0]; replicas++)
        rnd_job_again(&j, replicas, NULL, 0, fault);
    if (!fault->text[0])
        rnd_job_again(&j, few, NULL, m->steps / 2, fault);
    if (!fault->text[0])
        rnd_job_again(&j, most + 1 - few, files->checkpoint, 0, fault);
    if (!fault->text[0])
        rnd_pipelines_agree(&j, fault);
    if (!fault->text[0])
        rnd_grids_agree(&j, fault);
    if (!fault->text[0] && m->batch_slices > 1 && m->steps / 2 > 0)
        rnd_job_local(&j, fault);
    rnd_expected_free(&e);
    free(got);
}

/* Devices with ZeRO against one; or those whose updates are the host's. */
static void rnd_devices_agree(const rnd_ref *r, const rnd_files *files, const bool *columns,
                              const char *device, rnd_fault *fault) {
    const rnd_model *m = r->m;
    const bool offload = m->seed / 2 % 2 == 0;
    rnd_job one = {m, r, files, columns, .vulkan = true, .offload = offload, .steps = m->steps};
    const char *comma = m->batch_slices > 1 ? "," : "";
    one.shares = offload ? DT_SHARD_GRADIENTS : DT_SHARD_NONE;
    snprintf(one.devices, sizeof one.devices, "%s", device);
    snprintf(one.way, sizeof one.way, "a trainer, %s", device);
    rnd_job_run(&one, fault);
    rnd_job j = one;
    j.empty = 0;
    j.shares = DT_SHARD_GRADIENTS + (int)(m->seed / 4 % 2);
    j.marks = m->seed / 8 % 2;
    snprintf(j.devices, sizeof j.devices, "%s%s%s", device, comma,
             m->batch_slices > 1 ? device : "");
    snprintf(j.way, sizeof j.way, "%s, parallel.zero_stage %d%s", j.devices, j.shares,
             offload ? ", updates on the host" : "");
    if (!fault->text[0])
        rnd_job_run(&j, fault);
    rnd_same(&j, &one, "replica", fault);
}

/* False: a trainer does not take such a model. device: a Vulkan device's, or NULL. */
static bool rnd_run_trainers(const rnd_model *m, const char *device, rnd_fault *fault) {
    static rnd_model own;
    const rnd_files files = rnd_files_of();
    bool columns[RND_STMTS], takes = false;
    rnd_ref r;
    if (!rnd_trainable(m, &own))
        return false;
    if (!rnd_ref_open(&r, &own))
        rnd_wrong(fault, "as a trainer takes it: %s", rnd_ref_error(&r));
    else
        takes = rnd_columns(&r, columns);
    takes = takes && rnd_save_values(&own, &files, fault);
    if (takes && device)
        rnd_devices_agree(&r, &files, columns, device, fault);
    else if (takes)
        rnd_trainers_agree(&r, &files, columns, fault);
    rnd_ref_close(&r);
    remove(files.values);
    remove(files.checkpoint);
    return takes;
}

#endif
