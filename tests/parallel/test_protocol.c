/* The commit protocol, walked with a fault in each state, for each strategy: what protocol.h says
 * that it leaves. Two ranks are threads of this process, and one of them has the fault; local steps
 * also with only that rank. */

/* The third step is in the middle of a round, has gossip after it, or ends the round. */
typedef enum protocol_local {
    PROTOCOL_SYNCHRONOUS,
    PROTOCOL_INNER,
    PROTOCOL_GOSSIP,
    PROTOCOL_ROUND
} protocol_local;

typedef struct protocol_case {
    const char *name, *devices; /* of each rank */
    dt_parallel_desc parallel;
    bool back; /* a rank between two steps brings the other one back to the step before */
    bool publishes;
    protocol_local local; /* the plan with the fault */
    dt_local_desc rounds;
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
    {.name = "pipelines with ZeRO-2",
     .devices = "cpu:2",
     .parallel =
         {.pipeline = 2, .replicas = 2, .batch_slices = 2, .zero_stage = DT_SHARD_GRADIENTS}},
    {.name = "tensor groups with ZeRO-3",
     .devices = "cpu:2",
     .parallel =
         {.tensor = 2, .replicas = 2, .batch_slices = 3, .zero_stage = DT_SHARD_PARAMETERS}},
    {.name = "a local step",
     .devices = "cpu:2",
     .local = PROTOCOL_INNER,
     .rounds = {.steps = 4, .outer = {.lr = 0.7, .momentum = 0.9}}},
    {.name = "gossip",
     .devices = "cpu:2",
     .local = PROTOCOL_GOSSIP,
     .rounds = {.steps = 3, .gossip = 2, .outer = {.lr = 0.7, .momentum = 0.9}}},
    {.name = "a round's end",
     .devices = "cpu:2",
     .publishes = true,
     .local = PROTOCOL_ROUND,
     .rounds = {.steps = 3, .outer = {.lr = 0.7, .momentum = 0.9}}},
};

typedef enum protocol_fault {
    PROTOCOL_NONE, /* slow to decide */
    PROTOCOL_AGREE,
    PROTOCOL_RUN,
    PROTOCOL_SUMMED, /* after RUN */
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
    uint64_t start, before, after, end;
    uint64_t steps; /* that its stores have made after the fault */
    double commit_seconds;
    char text[1024];
} protocol_rank;

/* The rank with the fault: one at a time. */
static const dti_strategy *protocol_real;
static dti_strategy protocol_spoilt;
static protocol_fault protocol_now;
static dti_phase_fn *protocol_last;

static dt_result protocol_lost(dti_parallel *par) {
    return dti_fail(par->base, DT_ERROR_DEVICE_LOST, "the device was lost in %s",
                    protocol_states[protocol_now]);
}

static void protocol_team(dti_parallel *par, dti_phase_fn *fn) {
    const bool judges = fn == protocol_real->norm || fn == protocol_real->validate;
    protocol_last = fn;
    if (judges && protocol_now == PROTOCOL_NONE)
        dti_thread_sleep(15000000);
    protocol_real->team(par, fn);
    if (protocol_now == PROTOCOL_BARRIER && fn == protocol_real->validate && !protocol_real->check)
        atomic_store(&par->now->faulty, true);
}

static dt_result protocol_result(dti_parallel *par) {
    dti_phase_fn *const at[PROTOCOL_FAULTS] = {[PROTOCOL_AGREE] =
                                                   protocol_real->others_wait || par->desc.comm
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

/* A replica whose weights are not finite: all ranks find it in the sums. */
static dt_result protocol_not_finite(dti_parallel *par) {
    const dt_store *s = par->replicas[0].store;
    *(float *)s->device->backend->memory_host(s->memories[DTI_ARENA_PARAM]) = INFINITY;
    return protocol_real->run(par);
}

/* The plan that comes after a local step has the fault. */
static const dti_strategy *protocol_inner;
static dti_strategy protocol_chained;

static const dti_strategy *protocol_next(const dti_parallel *par);

static void protocol_spoil(dti_parallel *par, const protocol_case *c, protocol_fault fault) {
    const bool chained = c->local > PROTOCOL_INNER;
    protocol_now = fault;
    protocol_last = NULL;
    protocol_inner = par->strategy;
    protocol_chained = *par->strategy;
    protocol_chained.next = protocol_next;
    protocol_real = c->local == PROTOCOL_GOSSIP  ? &dti_gossip_strategy
                    : c->local == PROTOCOL_ROUND ? &dti_round_strategy
                                                 : par->strategy;
    protocol_spoilt = *protocol_real;
    protocol_spoilt.team = protocol_team;
    protocol_spoilt.result = protocol_result;
    if (fault == PROTOCOL_RUN)
        protocol_spoilt.run = protocol_lost;
    if (fault == PROTOCOL_SUMMED)
        protocol_spoilt.run = protocol_summed;
    if (fault == PROTOCOL_PUBLISH)
        protocol_spoilt.publish = protocol_publish;
    if (fault == PROTOCOL_BARRIER && chained)
        protocol_spoilt.run = protocol_not_finite;
    par->strategy = chained ? &protocol_chained : &protocol_spoilt;
}

static const dti_strategy *protocol_next(const dti_parallel *par) {
    CHECK(protocol_inner->next(par) == protocol_real);
    return &protocol_spoilt;
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
        dt_store *s = par->pipe->chunks[i].store;
        if (s && s->apart) { /* it has only its own part */
            *steps = s->steps;
            hash = dti_hash64(hash, s->device->backend->memory_host(s->units[0]),
                              (size_t)dti_arena_bytes(s->layout.own_end - s->layout.own_begin));
        } else if (s) {
            hash = protocol_store_hash(s, hash, steps);
        }
    }
    for (uint32_t i = 0; !par->pipe && i < par->job.local; i++) {
        const dti_replica *r = &par->replicas[i];
        *steps = r->store->steps;
        if (!dti_units_are(par))
            hash = protocol_store_hash(r->store, hash, steps);
        else
            hash = dti_hash64(hash, par->units.parts[i].params,
                              (size_t)dti_arena_bytes(
                                  dti_bucket_elements(dti_owners_range(par, par->job.first + i))));
    }
    return hash;
}

/* Steps to the end of a round; without rounds one. */
static dt_result protocol_steps(dt_trainer *t) {
    dt_result result;
    do
        result = dt_trainer_step(t, NULL);
    while (!result && t->par.round.done);
    return result;
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
    d.mode = r->c->local ? DT_TRAIN_LOCAL : d.mode;
    d.local = r->c->rounds;
    d.batch = r->c->local ? 20 : d.batch;
    d.accumulate = 2;
    if (!r->made)
        r->made = dt_trainer_create(m.graph, &d, &t);
    r->start = r->made ? 0 : protocol_hash(&t->par, &steps);
    for (int i = 0; i < 2 && !r->made; i++)
        r->made = dt_trainer_step(t, NULL);
    if (!r->made) {
        const dti_strategy *real = t->par.strategy;
        r->before = protocol_hash(&t->par, &steps);
        if (r->fault != PROTOCOL_FAULTS)
            protocol_spoil(&t->par, r->c, r->fault);
        r->result = dt_trainer_step(t, &report);
        snprintf(r->text, sizeof r->text, "%s", r->result ? dt_ctx_error(m.ctx) : "");
        r->after = protocol_hash(&t->par, &r->steps);
        r->commit_seconds = report.commit_seconds;
        t->par.strategy = real;
        r->next = protocol_steps(t);
        r->end = protocol_hash(&t->par, &steps);
    }
    if (r->made)
        snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return NULL;
}

/* `alone`: only the rank with the fault */
static bool protocol_run(const protocol_case *c, protocol_fault fault, protocol_rank ranks[2],
                         bool alone) {
    dt_comm *comms[2] = {NULL, NULL};
    pthread_t thread;
    if (!alone && dt_comm_create_threads(NULL, 2, comms))
        return false;
    for (int i = 0; i < 2; i++)
        ranks[i] = (protocol_rank){.c = c, .comm = comms[i], .fault = PROTOCOL_FAULTS};
    ranks[1].fault = fault;
    bool fine = !pthread_create(&thread, NULL, protocol_main, &ranks[1]);
    if (fine && !alone)
        protocol_main(&ranks[0]);
    if (fine)
        pthread_join(thread, NULL);
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
    bool start; /* from the weights that the round began with */
} protocol_want;

/* Of local steps: rank 0 makes them without rank 1, until it waits for that. */
static protocol_want protocol_wants_local(const protocol_case *c, protocol_fault fault) {
    const bool waits =
        c->local == PROTOCOL_ROUND || (c->local == PROTOCOL_GOSSIP && fault != PROTOCOL_SUMMED);
    protocol_want w = {{DT_OK, DT_ERROR_DEVICE_LOST}, {"", "lost in"}, {3, 0}, false, false};
    switch (fault) {
    case PROTOCOL_NONE: return (protocol_want){{DT_OK, DT_OK}, {"", ""}, {3, 3}, true, false};
    case PROTOCOL_AGREE:
        w.steps[1] = 2;
        w.lives = true;
        return w;
    case PROTOCOL_BARRIER: /* steps are made, and the weights are those before them */
        w = (protocol_want){{DT_ERROR_NUMERIC, DT_ERROR_NUMERIC}, {"", ""}, {3, 3}, true, true};
        w.text[0] = w.text[1] = "from step 0 on: its outer step would write a NaN";
        return w;
    case PROTOCOL_WRITE:
    case PROTOCOL_PUBLISH:
        w.steps[1] = 3;
        w.text[1] = "the weights of the first replica are those of step 3";
        return w;
    default:
        if (waits)
            w = (protocol_want){{DT_ERROR_CANCELLED, DT_ERROR_DEVICE_LOST},
                                {"the weights are those of step 0", "lost in"},
                                {0, 0},
                                false,
                                false};
        return w;
    }
}

static protocol_want protocol_wants(const protocol_case *c, protocol_fault fault) {
    const bool units = c->parallel.zero_stage >= DT_SHARD_GRADIENTS,
               split = c->parallel.tensor || c->parallel.pipeline;
    protocol_want w = {
        {DT_ERROR_CANCELLED, DT_ERROR_DEVICE_LOST}, {"", "lost in"}, {2, 2}, false, false};
    if (c->local)
        return protocol_wants_local(c, fault);
    switch (fault) {
    case PROTOCOL_NONE: return (protocol_want){{DT_OK, DT_OK}, {"", ""}, {3, 3}, true, false};
    case PROTOCOL_AGREE:
        w.text[0] = "step 3 was cancelled: rank 1 failed and reports why; nothing has changed";
        w.lives = true;
        break;
    case PROTOCOL_NORM:
    case PROTOCOL_VALIDATE:
        w.text[0] = "step 3 was cancelled, and nothing has changed: rank 1: ";
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
                    : units || c->publishes ? "may be of two different steps"
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
                           const protocol_rank ranks[2], const uint64_t fine[2], bool alone) {
    const protocol_want w = protocol_wants(c, fault);
    for (int i = alone; i < 2; i++) {
        const protocol_rank *r = &ranks[i];
        CHECK_TEXT((r->result == w.result[i] ||
                    (w.result[i] == DT_ERROR_CANCELLED && r->result == DT_ERROR_MISMATCH)) &&
                       strstr(r->text, w.text[i]) && r->steps == w.steps[i],
                   "%s, a fault in %s: rank %d: %s, step %d: %s", c->name, protocol_states[fault],
                   i, dt_result_text(r->result), (int)r->steps, r->text);
        CHECK_TEXT((r->before == r->after) == (w.steps[i] == 2), "%s, a fault in %s: rank %d %s",
                   c->name, protocol_states[fault], i,
                   r->before == r->after ? "is the same" : "has changed");
        CHECK_TEXT((r->start == r->after) == (w.start || w.steps[i] == 0),
                   "%s, a fault in %s: rank %d %s its beginning", c->name, protocol_states[fault],
                   i, r->start == r->after ? "is at" : "is not at");
        CHECK_TEXT(w.lives == !r->next, "%s, a fault in %s: rank %d then: %s", c->name,
                   protocol_states[fault], i, dt_result_text(r->next));
        if (w.lives && fault != PROTOCOL_NONE && fault != PROTOCOL_BARRIER)
            CHECK_TEXT(r->end == fine[i], "%s, a fault in %s: rank %d: other weights behind it",
                       c->name, protocol_states[fault], i);
    }
}

/* As a state of its own, in which something can fail. */
static bool protocol_has(const protocol_case *c, protocol_fault fault) {
    switch (fault) {
    case PROTOCOL_AGREE: return c->local <= PROTOCOL_INNER;
    case PROTOCOL_NORM:
        return c->parallel.zero_stage >= DT_SHARD_GRADIENTS || c->parallel.tensor ||
               c->parallel.pipeline;
    case PROTOCOL_VALIDATE: return !c->local;
    case PROTOCOL_BARRIER:
    case PROTOCOL_WRITE: return !c->local || c->local == PROTOCOL_ROUND;
    case PROTOCOL_PUBLISH: return c->publishes;
    default: return true;
    }
}

static void protocol_walk(const protocol_case *c, bool alone) {
    uint64_t fine[2] = {0, 0};
    for (int fault = 0; fault < PROTOCOL_FAULTS && test_now.failures < 8; fault++) {
        protocol_rank ranks[2];
        if (!protocol_has(c, fault))
            continue;
        if (!protocol_run(c, fault, ranks, alone))
            break;
        protocol_check(c, fault, ranks, fine, alone);
        for (int i = 0; i < 2 && fault == PROTOCOL_NONE; i++)
            fine[i] = c->local ? ranks[i].end : ranks[i].after;
    }
}

TEST(a_fault_in_each_state_of_the_protocol_has_the_result_of_its_table) {
    for (size_t k = 0; k < sizeof protocol_cases / sizeof *protocol_cases; k++) {
        protocol_walk(&protocol_cases[k], false);
        if (protocol_cases[k].local)
            protocol_walk(&protocol_cases[k], true);
    }
}

TEST(commit_seconds_include_the_check_of_an_update_in_every_strategy) {
    for (size_t k = 0; k < sizeof protocol_cases / sizeof *protocol_cases; k++) {
        protocol_rank ranks[2];
        if (protocol_cases[k].local) /* such steps do not say it */
            continue;
        if (!protocol_run(&protocol_cases[k], PROTOCOL_NONE, ranks, false))
            break;
        CHECK_TEXT(ranks[1].commit_seconds >= 0.014, "%s: %g s", protocol_cases[k].name,
                   ranks[1].commit_seconds);
    }
}
