/* The commit protocol, walked with a fault in each state, for each strategy: what protocol.h says
 * that it leaves. Two ranks are threads of this process, and one of them has the fault. */

typedef struct protocol_case {
    const char *name, *devices; /* of each rank */
    dt_parallel_desc parallel;
    bool back; /* a rank between two steps brings the other one back to the step before */
    bool publishes;
} protocol_case;

static const protocol_case protocol_cases[] = {
    {.name = "replicas", .devices = "cpu"},
    {.name = "several replicas a rank", .devices = "cpu:2"},
    {.name = "ZeRO-1",
     .devices = "cpu",
     .parallel = {.zero_stage = DT_SHARD_OPTIMIZER},
     .back = true,
     .publishes = true},
    {.name = "ZeRO-2", .devices = "cpu", .parallel = {.zero_stage = DT_SHARD_GRADIENTS}},
    {.name = "ZeRO-3", .devices = "cpu:2", .parallel = {.zero_stage = DT_SHARD_PARAMETERS}},
    {.name = "a tensor group", .devices = "cpu", .parallel = {.tensor = 2}},
    {.name = "tensor groups",
     .devices = "cpu:2",
     .parallel = {.tensor = 2, .replicas = 2, .batch_slices = 2}},
    {.name = "a pipeline", .devices = "cpu", .parallel = {.pipeline = 2}},
    {.name = "pipelines with ZeRO-1",
     .devices = "cpu:2",
     .parallel =
         {.pipeline = 2, .replicas = 2, .batch_slices = 2, .zero_stage = DT_SHARD_OPTIMIZER},
     .publishes = true},
};

typedef enum protocol_fault {
    PROTOCOL_NONE, /* slow to judge */
    PROTOCOL_AGREE,
    PROTOCOL_RUN,
    PROTOCOL_SUMMED, /* behind RUN */
    PROTOCOL_NORM,
    PROTOCOL_VALIDATE,
    PROTOCOL_BARRIER, /* what is not finite */
    PROTOCOL_WRITE,
    PROTOCOL_PUBLISH,
    PROTOCOL_FAULTS
} protocol_fault;

static const char *const protocol_states[PROTOCOL_FAULTS] = {
    "none", "AGREE", "RUN", "RUN's end", "NORM", "VALIDATE", "BARRIER", "WRITE", "PUBLISH"};

typedef struct protocol_rank {
    const protocol_case *c;
    dt_comm *comm;
    protocol_fault fault; /* of this step, on this rank */
    dt_result made, result, next;
    uint64_t before, after, end;
    uint64_t steps; /* that its stores have made behind the fault */
    double commit_seconds;
    char text[1024];
} protocol_rank;

/* The rank with the fault: one at a time. */
static const dti_strategy *protocol_real;
static dti_strategy protocol_spoilt;
static protocol_fault protocol_now;
static dti_device_team_fn *protocol_last;

static dt_result protocol_lost(dti_parallel *par) {
    return dti_fail(par->base, DT_ERROR_DEVICE_LOST, "the device was lost in %s",
                    protocol_states[protocol_now]);
}

static void protocol_team(dti_parallel *par, dti_device_team_fn *fn) {
    const bool judges = fn == protocol_real->norm || fn == protocol_real->validate;
    protocol_last = fn;
    if (judges && protocol_now == PROTOCOL_NONE)
        dti_thread_sleep(15000000);
    protocol_real->team(par, fn);
    if (protocol_now == PROTOCOL_BARRIER && fn == protocol_real->validate)
        atomic_store(&par->faulty, true);
}

static dt_result protocol_result(dti_parallel *par) {
    dti_device_team_fn *const at[PROTOCOL_FAULTS] = {
        [PROTOCOL_AGREE] = protocol_real->others_wait || par->desc.comm
                               ? protocol_real->weigh
                               : protocol_real->weigh_forward,
        [PROTOCOL_NORM] = protocol_real->norm,
        [PROTOCOL_VALIDATE] = protocol_real->validate,
        [PROTOCOL_WRITE] = protocol_real->write};
    return at[protocol_now] && protocol_last == at[protocol_now] ? protocol_lost(par)
                                                                 : protocol_real->result(par);
}

static dt_result protocol_summed(dti_parallel *par) {
    const dt_result result = protocol_real->run(par);
    return result ? result : protocol_lost(par);
}

static dt_result protocol_publish(dti_parallel *par) {
    return dti_protocol_partial_commit(par, protocol_lost(par));
}

static void protocol_spoil(dti_parallel *par, protocol_fault fault) {
    protocol_real = par->strategy;
    protocol_spoilt = *par->strategy;
    protocol_now = fault;
    protocol_last = NULL;
    protocol_spoilt.team = protocol_team;
    protocol_spoilt.result = protocol_result;
    if (fault == PROTOCOL_RUN)
        protocol_spoilt.run = protocol_lost;
    if (fault == PROTOCOL_SUMMED)
        protocol_spoilt.run = protocol_summed;
    if (fault == PROTOCOL_PUBLISH)
        protocol_spoilt.publish = protocol_publish;
    par->strategy = &protocol_spoilt;
}

/* Weights of a store here, whatever other ranks have. */
static uint64_t protocol_store_hash(const dt_store *s, uint64_t hash, uint64_t *steps) {
    const float *host = s->device->backend->memory_host(s->memories[DTI_ARENA_PARAM]);
    *steps = s->steps;
    return dti_hash64(hash, host, (size_t)dti_arena_bytes(s->layout.elements));
}

static uint64_t protocol_hash(const dti_parallel *par, uint64_t *steps) {
    uint64_t hash = DTI_HASH_START;
    for (uint32_t i = 0; par->pipe && i < par->pipe->pipeline_count * par->pipe->chunk_count; i++) {
        if (par->pipe->chunks[i].store)
            hash = protocol_store_hash(par->pipe->chunks[i].store, hash, steps);
    }
    for (uint32_t i = 0; !par->pipe && i < par->job.local; i++) {
        const dti_replica *r = &par->replicas[i];
        *steps = r->store->steps;
        if (!dti_units_are(par))
            hash = protocol_store_hash(r->store, hash, steps);
        else
            hash = dti_hash64(hash, dti_units_params(r),
                              (size_t)dti_arena_bytes(
                                  dti_bucket_elements(dti_owners_range(par, par->job.first + i))));
    }
    return hash;
}

/* Two steps, then the one with the fault, then one without. */
static void *protocol_main(void *arg) {
    protocol_rank *r = arg;
    train_model m;
    dt_trainer *t = NULL;
    dt_train_report report = {0};
    uint64_t steps;
    r->made = train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, TRAIN_PARTS)
                  ? DT_OK
                  : DT_ERROR_MEMORY;
    dt_trainer_desc d = train_desc(&m);
    d.comm = r->comm;
    d.devices = r->c->devices;
    d.parallel = r->c->parallel;
    d.accumulate = 2;
    if (!r->made)
        r->made = dt_trainer_create(m.graph, &d, &t);
    for (int i = 0; i < 2 && !r->made; i++)
        r->made = dt_trainer_step(t, NULL);
    if (!r->made) {
        const dti_strategy *real = t->par.strategy;
        r->before = protocol_hash(&t->par, &steps);
        if (r->fault != PROTOCOL_FAULTS)
            protocol_spoil(&t->par, r->fault);
        r->result = dt_trainer_step(t, &report);
        snprintf(r->text, sizeof r->text, "%s", r->result ? dt_ctx_error(m.ctx) : "");
        r->after = protocol_hash(&t->par, &r->steps);
        r->commit_seconds = report.commit_seconds;
        t->par.strategy = real;
        r->next = dt_trainer_step(t, NULL);
        r->end = protocol_hash(&t->par, &steps);
    }
    if (r->made)
        snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return NULL;
}

static bool protocol_run(const protocol_case *c, protocol_fault fault, protocol_rank ranks[2]) {
    dt_comm *comms[2];
    pthread_t thread;
    if (dt_comm_create_threads(NULL, 2, comms))
        return false;
    for (int i = 0; i < 2; i++)
        ranks[i] = (protocol_rank){.c = c, .comm = comms[i], .fault = PROTOCOL_FAULTS};
    ranks[1].fault = fault;
    bool fine = !pthread_create(&thread, NULL, protocol_main, &ranks[1]);
    if (fine) {
        protocol_main(&ranks[0]);
        pthread_join(thread, NULL);
    }
    for (int i = 0; i < 2; i++) {
        dt_comm_destroy(comms[i]);
        fine = fine && !ranks[i].made;
        CHECK_TEXT(!ranks[i].made, "%s, rank %d: %s", c->name, i, ranks[i].text);
    }
    return fine;
}

typedef struct protocol_want {
    dt_result result[2]; /* of each rank */
    const char *text[2];
    uint64_t steps[2];
    bool lives; /* the job goes on */
} protocol_want;

static protocol_want protocol_wants(const protocol_case *c, protocol_fault fault) {
    const bool units = c->parallel.zero_stage >= DT_SHARD_GRADIENTS,
               split = c->parallel.tensor || c->parallel.pipeline;
    protocol_want w = {{DT_ERROR_CANCELLED, DT_ERROR_DEVICE_LOST}, {"", "lost in"}, {2, 2}, false};
    switch (fault) {
    case PROTOCOL_NONE: return (protocol_want){{DT_OK, DT_OK}, {"", ""}, {3, 3}, true};
    case PROTOCOL_AGREE:
        w.text[0] = "step 3 was given up: rank 1 failed and reports why; nothing has changed";
        w.lives = true;
        break;
    case PROTOCOL_NORM:
    case PROTOCOL_VALIDATE:
        w.text[0] = "step 3 was given up, and nothing has changed: rank 1: ";
        w.lives = true;
        break;
    case PROTOCOL_BARRIER:
        w.result[0] = w.result[1] = DT_ERROR_NUMERIC;
        w.text[0] = w.text[1] = "step 3: the gradient of the whole batch is not finite";
        w.lives = true;
        break;
    case PROTOCOL_WRITE:
    case PROTOCOL_PUBLISH:
        w.text[1] = split                   ? "may be a step apart"
                    : units || c->publishes ? "may be of two steps"
                                            : "are those of step";
        w.steps[0] = w.steps[1] = 3;
        if (!c->publishes)
            w.result[0] = DT_OK;
        else if (c->back)
            w.steps[0] = 2;
        break;
    default:
        w.text[0] =
            units ? "other ranks' shards of the parameters are lost" : "are those of step 2";
        break;
    }
    return w;
}

static void protocol_check(const protocol_case *c, protocol_fault fault,
                           const protocol_rank ranks[2], const uint64_t fine[2]) {
    const protocol_want w = protocol_wants(c, fault);
    for (int i = 0; i < 2; i++) {
        const protocol_rank *r = &ranks[i];
        CHECK_TEXT((r->result == w.result[i] ||
                    (w.result[i] == DT_ERROR_CANCELLED && r->result == DT_ERROR_MISMATCH)) &&
                       strstr(r->text, w.text[i]) && r->steps == w.steps[i],
                   "%s, a fault in %s: rank %d: %s, step %d: %s", c->name, protocol_states[fault],
                   i, dt_result_text(r->result), (int)r->steps, r->text);
        CHECK_TEXT((r->before == r->after) == (w.steps[i] == 2), "%s, a fault in %s: rank %d %s",
                   c->name, protocol_states[fault], i,
                   r->before == r->after ? "is the same" : "has changed");
        CHECK_TEXT(w.lives == !r->next, "%s, a fault in %s: rank %d then: %s", c->name,
                   protocol_states[fault], i, dt_result_text(r->next));
        if (w.lives && fault != PROTOCOL_NONE && fault != PROTOCOL_BARRIER)
            CHECK_TEXT(r->end == fine[i], "%s, a fault in %s: rank %d: other weights behind it",
                       c->name, protocol_states[fault], i);
    }
}

/* As a state of its own. */
static bool protocol_has_norm(const protocol_case *c) {
    return c->parallel.zero_stage >= DT_SHARD_GRADIENTS || c->parallel.tensor ||
           c->parallel.pipeline;
}

TEST(a_fault_in_each_state_of_the_protocol_leaves_what_its_table_says) {
    for (size_t k = 0; k < sizeof protocol_cases / sizeof *protocol_cases; k++) {
        const protocol_case *c = &protocol_cases[k];
        uint64_t fine[2] = {0, 0};
        for (int fault = 0; fault < PROTOCOL_FAULTS && test_now.failures < 8; fault++) {
            protocol_rank ranks[2];
            if ((fault == PROTOCOL_PUBLISH && !c->publishes) ||
                (fault == PROTOCOL_NORM && !protocol_has_norm(c)))
                continue;
            if (!protocol_run(c, fault, ranks))
                break;
            protocol_check(c, fault, ranks, fine);
            if (fault == PROTOCOL_NONE)
                fine[0] = ranks[0].after, fine[1] = ranks[1].after;
        }
    }
}

TEST(commit_seconds_have_the_judging_of_an_update_in_every_strategy) {
    for (size_t k = 0; k < sizeof protocol_cases / sizeof *protocol_cases; k++) {
        protocol_rank ranks[2];
        if (!protocol_run(&protocol_cases[k], PROTOCOL_NONE, ranks))
            break;
        CHECK_TEXT(ranks[1].commit_seconds >= 0.014, "%s: %g s", protocol_cases[k].name,
                   ranks[1].commit_seconds);
    }
}
