/* A step's lists: what they hold, and that no rank waits in them for ever. Also what is left where
 * any action of any device fails. Included by main.c, after train_model.h. */

/* ---- lists of random shapes */

enum { PLAN_SEGMENTS = 12, PLAN_DEVICES = 4, PLAN_MICROS = 3 };

typedef struct plan_shape {
    uint32_t buckets[PLAN_SEGMENTS];
    dti_sync_point sync_points[PLAN_SEGMENTS];
    dti_list_micro of;
} plan_shape;

static void plan_draw(uint32_t *state, plan_shape *s) {
    *s = (plan_shape){.of = {.segments = 2 + train_random(state) % (PLAN_SEGMENTS - 2)}};
    s->of.forward = 1 + train_random(state) % (s->of.segments - 1);
    s->of.written = train_random(state) % 2;
    for (uint32_t i = 0, given = 0; i < s->of.segments; i++) {
        given += i >= s->of.forward && train_random(state) % 2;
        s->buckets[i] = given;
        if (train_random(state) % 3 == 0)
            s->sync_points[s->of.sync_point_count++].segment = i;
    }
    s->of.sync_points = s->sync_points;
}

static void plan_make(const plan_shape *s, uint32_t micros, dti_list *list) {
    for (int write = 0; write < 2; write++) {
        list->count = 0;
        for (uint32_t m = 0; m < micros; m++) {
            dti_list_micro of = s->of;
            of.buckets = m + 1 == micros ? s->buckets : NULL;
            dti_list_add_micro(list, m, &of);
        }
        if (!write)
            list->actions = calloc(list->count, sizeof *list->actions);
    }
}

/* Of a device without rows. */
static void plan_make_none(const plan_shape *s, dti_list *list) {
    dti_list_micro of = s->of;
    of.idle = true;
    of.buckets = NULL;
    dti_list_add_none(list, 0, &of, 1);
}

TEST(a_list_has_each_segment_once_and_collectives_after_their_operands) {
    uint32_t state = 3;
    for (int round = 0; round < 300; round++) {
        plan_shape s;
        dti_list list = {0};
        const uint32_t micros = 1 + train_random(&state) % PLAN_MICROS;
        plan_draw(&state, &s);
        plan_make(&s, micros, &list);
        uint32_t next = 0, met = 0, buckets = 0, closed = 0, weights = 0;
        for (uint32_t i = 0; i < list.count; i++) {
            const dti_action *a = &list.actions[i];
            const bool computes = a->kind == DTI_ACTION_FORWARD || a->kind == DTI_ACTION_BACKWARD;
            if (computes) {
                CHECK(a->what == next && (a->kind == DTI_ACTION_FORWARD) == (next < s.of.forward));
                CHECK(a->buckets >= buckets && !a->after);
                buckets = a->buckets;
                next++;
            }
            if (a->kind == DTI_ACTION_COLLECTIVE)
                CHECK(a->after == i && a->what == met && s.sync_points[met++].segment + 1 == next);
            if (a->kind == DTI_ACTION_WEIGHTS)
                CHECK(next == s.of.forward && weights++ == closed);
            if (a->kind == DTI_ACTION_CLOSE) {
                CHECK(next == s.of.segments && met == s.of.sync_point_count && a->micro == closed);
                next = met = 0;
                closed++;
            }
        }
        CHECK(closed == micros && buckets == s.buckets[s.of.segments - 1]);
        const uint32_t ahead = dti_list_ahead(&list);
        for (uint32_t i = 0; i < ahead; i++)
            CHECK(!list.actions[i].after && list.actions[i].kind != DTI_ACTION_WEIGHTS);
        CHECK(ahead && list.actions[ahead - 1].kind == DTI_ACTION_FORWARD);
        free(list.actions);
    }
}

/* ---- played without a device: each takes an action at a moment that is drawn */

typedef struct plan_device {
    dti_list list;
    uint32_t at;
    bool gave_up;
} plan_device;

/* Whether a device can do its next action now: all have come to a collective, or have gone by. */
static bool plan_can(const plan_device *d, uint32_t devices, uint32_t who) {
    const dti_action *a = &d[who].list.actions[d[who].at];
    bool can = true;
    for (uint32_t k = 0; k < devices && a->kind == DTI_ACTION_COLLECTIVE; k++) {
        const dti_list *other = &d[k].list;
        uint32_t met = 0;
        for (uint32_t i = 0; i <= d[k].at && i < other->count; i++)
            met =
                other->actions[i].kind == DTI_ACTION_COLLECTIVE ? other->actions[i].what + 1u : met;
        can = can && met > a->what;
    }
    return can;
}

/* fault: which of all actions that are done fails. Whether all devices came to an end. */
static bool plan_play(plan_device *d, uint32_t devices, int fault, uint32_t *state) {
    int done = 0;
    bool failed = false;
    for (uint32_t idle = 0; idle < 1000; idle++) {
        const uint32_t who = train_random(state) % devices;
        if (d[who].gave_up || d[who].at == d[who].list.count)
            continue;
        if (plan_can(d, devices, who)) {
            idle = 0;
            failed = failed || done++ == fault;
            d[who].gave_up = failed && done - 1 == fault;
            d[who].at++;
        } else if (failed) {
            d[who].gave_up = true;
        }
    }
    bool ended = true;
    for (uint32_t k = 0; k < devices; k++)
        ended = ended && (d[k].gave_up || d[k].at == d[k].list.count);
    return ended && (failed || fault < 0);
}

TEST(lists_of_random_shapes_end_on_all_devices_if_any_action_fails) {
    uint32_t state = 5;
    for (int round = 0; round < 40; round++) {
        plan_shape s;
        plan_device d[PLAN_DEVICES];
        const uint32_t devices = 1 + train_random(&state) % PLAN_DEVICES;
        int all = 0;
        plan_draw(&state, &s);
        memset(d, 0, sizeof d);
        for (uint32_t k = 0; k < devices; k++) { /* the last may have no rows */
            if (k && k + 1 == devices && round % 3 == 0) {
                d[k].list.actions = calloc(PLAN_SEGMENTS + 1, sizeof(dti_action));
                plan_make_none(&s, &d[k].list);
            } else {
                plan_make(&s, 1, &d[k].list);
            }
            all += (int)d[k].list.count;
        }
        for (int fault = -1; fault < all; fault++) {
            for (uint32_t k = 0; k < devices; k++)
                d[k].at = 0, d[k].gave_up = false;
            CHECK_TEXT(plan_play(d, devices, fault, &state), "round %d: fault %d of %d on %u",
                       round, fault, all, devices);
        }
        for (uint32_t k = 0; k < devices; k++)
            free(d[k].list.actions);
    }
}

/* ---- a fault at any action, where devices are real */

typedef struct plan_job {
    const char *devices;
    int kind, batch_slices, accumulate, zero_stage, ranks;
    bool tcp; /* between ranks; else they are of dt_comm_create_threads */
    int stages, tensor, slices;
    dt_pipeline_schedule schedule;
} plan_job;

typedef struct plan_rank {
    const plan_job *job;
    dt_comm *comm;
    int rank, fault; /* the action of its second step that fails; -1: none */
    dt_result result, after;
    uint64_t before, now, steps;
    uint32_t actions[4], ahead; /* of its devices' lists; of the first */
    char error[1024];
} plan_rank;

static const dti_list *plan_list(const dti_parallel *par, int device) {
    return par->pipe ? &par->pipe->devices[device].lists[0] : &par->replicas[device].full.list;
}

static int plan_devices(const plan_job *job) {
    return job->devices[3] ? job->devices[4] - '0' : 1;
}

/* A file: no port that another test may take. */
static char plan_meet[64];

static bool plan_join(plan_rank *r) {
    dt_comm_desc d = {.rank = r->rank,
                      .world_size = 2,
                      .join_timeout_ms = 30000,
                      .no_link = true,
                      .shared_memory = DT_COMM_SHARED_OFF,
                      .job = "a test"};
    memset(d.key, 'a', 64);
    snprintf(d.rendezvous, sizeof d.rendezvous, "file://%s", plan_meet);
    return CHECK_TEXT(!dt_comm_create(&d, &r->comm), "%s", dt_comm_error(r->comm));
}

static void *plan_rank_run(void *arg) {
    plan_rank *r = arg;
    const plan_job *job = r->job;
    if (job->tcp && !plan_join(r))
        return NULL;
    train_model *m = malloc(sizeof *m);
    dt_trainer *t = NULL;
    if (!CHECK_TEXT(train_model_make(m, &(dt_ctx_desc){.no_vulkan = true}, job->kind), "made"))
        return NULL;
    dt_trainer_desc d = train_desc(m);
    d.comm = r->comm;
    d.devices = job->devices;
    d.batch = 24;
    d.accumulate = job->accumulate;
    d.parallel.pipeline = job->stages;
    d.parallel.tensor = job->tensor;
    d.parallel.tensor_slices = job->slices;
    d.parallel.schedule = job->schedule;
    d.parallel.batch_slices = job->batch_slices;
    d.parallel.zero_stage = job->zero_stage;
    d.parallel.bucket_bytes = 2048;
    if (!CHECK_TEXT(!dt_trainer_create(m->graph, &d, &t), "%s", dt_ctx_error(m->ctx)))
        return NULL;
    CHECK(!dt_trainer_step(t, NULL));
    r->before = protocol_hash(&t->par, &r->steps);
    for (int i = 0; i < plan_devices(job); i++)
        r->actions[i] = plan_list(&t->par, i)->count;
    r->ahead = dti_list_ahead(plan_list(&t->par, 0));
    if (r->fault >= 0)
        harness_fault.action = r->fault;
    r->result = dt_trainer_step(t, NULL);
    snprintf(r->error, sizeof r->error, "%s", dt_ctx_error(m->ctx));
    if (r->fault >= 0)
        harness_fault.action = -1;
    r->now = protocol_hash(&t->par, &r->steps);
    r->after = r->result ? dt_trainer_step(t, NULL) : DT_OK;
    dt_ctx_destroy(m->ctx);
    dt_comm_destroy(r->comm); /* both at the same time: each waits until the other has gone */
    free(m);
    return NULL;
}

/* fault: of device harness_fault.device of rank harness_fault.rank. */
static void plan_run(const plan_job *job, int fault, plan_rank *ranks) {
    dt_comm *comms[2] = {NULL};
    pthread_t thread;
    memset(ranks, 0, 2 * sizeof *ranks);
    harness_fault.action = -1;
    harness_fault.hits = 0;
    snprintf(plan_meet, sizeof plan_meet, "/tmp/dtrain_plan_%ld", (long)getpid());
    remove(plan_meet);
    if (job->ranks > 1 && !job->tcp &&
        !CHECK_TEXT(!dt_comm_create_threads(NULL, 2, comms), "comms"))
        return;
    for (int i = 0; i < 2; i++)
        ranks[i] = (plan_rank){
            .job = job, .comm = comms[i], .rank = i, .fault = i == harness_fault.rank ? fault : -1};
    if (job->ranks > 1)
        REQUIRE(!pthread_create(&thread, NULL, plan_rank_run, &ranks[1]));
    plan_rank_run(&ranks[0]);
    if (job->ranks > 1)
        pthread_join(thread, NULL);
}

/* `told`: the ranks learn of it with the weights, before any of them waits; they go on. */
static void plan_check(const plan_job *job, const plan_rank *ranks, int action, bool told) {
    for (int i = 0; i < job->ranks; i++) {
        const plan_rank *r = &ranks[i];
        const bool own = i == harness_fault.rank;
        CHECK_TEXT(own ? r->result == DT_ERROR_DEVICE && strstr(r->error, "failed")
                       : r->result == DT_ERROR_CANCELLED || r->result == DT_ERROR_PEER_LOST ||
                             r->result == DT_ERROR_REVOKED,
                   "%s x %d, zero %d, action %d of device %d of rank %d; rank %d: %s: %s",
                   job->devices, job->ranks, job->zero_stage, action, harness_fault.device,
                   harness_fault.rank, i, dt_result_text(r->result), r->error);
        CHECK(r->before == r->now && r->steps == 1);
        CHECK_TEXT((r->after == DT_OK) == told, "rank %d, behind: %s", i, dt_result_text(r->after));
    }
}

TEST(a_fault_at_any_action_is_an_error_on_all_ranks_and_changes_nothing) {
    static const plan_job jobs[] = {
        {"cpu", 0, 1, 1, 0, 1, false, .stages = 0},
        {"cpu:2", 0, 4, 1, 0, 1, false, .stages = 0},
        {"cpu:3", 4, 3, 1, 0, 1, false, .stages = 0},
        {"cpu:2", 0, 2, 3, 0, 1, false, .stages = 0},
        {"cpu:2", 1, 4, 1, 1, 2, false, .stages = 0},
        {"cpu:2", 4, 4, 1, 0, 2, false, .stages = 0},
        {"cpu:2", 0, 2, 1, 2, 1, false, .stages = 0},
        {"cpu:2", 0, 4, 2, 3, 2, false, .stages = 0},
        {"cpu", 0, 2, 1, 3, 2, false, .stages = 0},
        {"cpu:2", 0, 4, 1, 0, 2, true, .stages = 0},
        {"cpu", 0, 2, 1, 2, 2, true, .stages = 0},
        {"cpu:2", TRAIN_PARTS, 1, 1, 0, 1, false, .tensor = 2},
        {"cpu:2", TRAIN_PARTS, 1, 2, 0, 1, false, .tensor = 2, .slices = 4},
        {"cpu:2", TRAIN_PARTS, 2, 1, 0, 2, false, .tensor = 2},
        {"cpu", TRAIN_PARTS, 1, 1, 0, 2, true, .tensor = 2},
        {"cpu:2", 0, 1, 4, 0, 1, false, .stages = 2},
        {"cpu:2", 0, 1, 4, 0, 1, false, .stages = 2, .schedule = DT_PIPELINE_ZERO_BUBBLE},
        {"cpu:2", TRAIN_PARTS, 2, 2, 0, 2, false, .stages = 2},
        {"cpu", 0, 1, 3, 0, 2, false, .stages = 2},
        {"cpu", 0, 1, 3, 0, 2, true, .stages = 2},
        {"cpu:2", TRAIN_PARTS, 1, 2, 0, 2, false, .stages = 2, .tensor = 2},
        {"cpu:2", TRAIN_PARTS, 2, 1, 1, 2, false, .tensor = 2},
        {"cpu:4", 0, 3, 2, 3, 1, false, .stages = 2},
        {"cpu:2", TRAIN_PARTS, 2, 2, 3, 2, false, .stages = 2},
        {"cpu:2", TRAIN_PARTS, 3, 2, 2, 2, true, .stages = 2, .schedule = DT_PIPELINE_ZERO_BUBBLE},
        {"cpu:2", TRAIN_PARTS, 2, 1, 3, 2, false, .tensor = 2},
    };
    for (size_t k = 0; k < DTI_COUNT(jobs); k++) {
        plan_rank ranks[2];
        const plan_job *job = &jobs[k];
        const int devices = plan_devices(job);
        plan_run(job, -1, ranks);
        const bool waits = job->zero_stage > 1 || job->ranks > 1 || job->stages || job->tensor;
        const int ahead = waits ? 0 : (int)ranks[0].ahead;
        const int actions = (int)ranks[0].actions[0], step = test_takes(1, 2, 5) ? 1 : 3;
        CHECK(!ranks[0].result && !ranks[1].result && actions > 4);
        for (int i = 0; i < actions; i += test_is_long() ? 1 : job->tcp ? 7 : step) {
            harness_fault.rank = i % job->ranks;
            harness_fault.device = i / 2 % devices;
            if (i >= (int)ranks[harness_fault.rank].actions[harness_fault.device])
                continue; /* its list is shorter */
            plan_run(job, i, ranks);
            if (CHECK_TEXT(harness_fault.hits == 1, "%d hits", harness_fault.hits))
                plan_check(job, ranks, i, i < ahead);
        }
        harness_fault.action = -1;
    }
    remove(plan_meet);
}

/* ---- more sums, or units of ZeRO, than a comm has operations */

enum { PLAN_CHUNKS = DTI_PENDING_MAX / 2 + 2 }; /* of a device, of two in each rank */

static void plan_chunks_model(train_model *m) {
    char name[16];
    dt_tensor h = dt_nn_linear(m->x, "in", 4);
    for (int i = 1; i < 2 * PLAN_CHUNKS; i++) {
        snprintf(name, sizeof name, "l%d", i);
        h = dt_tanh(dt_nn_linear(dt_stage(h, i), name, 4));
    }
    m->logits = dt_nn_linear(h, "out", TRAIN_CLASSES);
    m->loss = dt_cross_entropy(m->logits, m->t, NULL);
    m->accuracy = dt_accuracy(m->logits, m->t);
}

static int plan_chunks_zero; /* dt_zero_stage */

static void *plan_chunks_run(void *arg) {
    plan_rank *r = arg;
    train_model *m = calloc(1, sizeof *m);
    dt_trainer *t = NULL;
    if (!plan_join(r) ||
        !CHECK_TEXT(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 1}, &m->ctx) &&
                        !dt_graph_create(m->ctx, &m->graph),
                    "a context"))
        return NULL;
    m->adam = (dt_optim_desc){.kind = DT_OPTIM_ADAM, .lr = 0.01};
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    train_data_fill(&m->data);
    plan_chunks_model(m);
    dt_trainer_desc d = train_desc(m);
    d.comm = r->comm;
    d.devices = "cpu:2";
    d.batch = 8;
    d.accumulate = 2;
    d.parallel.replicas = d.parallel.pipeline = 2;
    d.parallel.schedule = DT_PIPELINE_INTERLEAVED;
    d.parallel.chunks = PLAN_CHUNKS;
    d.parallel.zero_stage = plan_chunks_zero;
    if (CHECK_TEXT(!dt_trainer_create(m->graph, &d, &t), "%s", dt_ctx_error(m->ctx))) {
        CHECK(dti_pipe_units_pending(&t->par) < DTI_PENDING_MAX);
        CHECK_TEXT(!dt_trainer_step(t, NULL) && !dt_trainer_step(t, NULL), "rank %d: %s", r->rank,
                   dt_ctx_error(m->ctx));
    }
    dt_ctx_destroy(m->ctx);
    dt_comm_destroy(r->comm);
    free(m);
    return NULL;
}

TEST(sums_and_units_of_more_chunks_than_a_comm_has_operations_are_sent_in_groups) {
    for (plan_chunks_zero = 0; plan_chunks_zero <= DT_SHARD_PARAMETERS; plan_chunks_zero++) {
        plan_rank ranks[2] = {{.rank = 0}, {.rank = 1}};
        pthread_t thread;
        snprintf(plan_meet, sizeof plan_meet, "/tmp/dtrain_plan_%ld", (long)getpid());
        remove(plan_meet);
        REQUIRE(!pthread_create(&thread, NULL, plan_chunks_run, &ranks[1]));
        plan_chunks_run(&ranks[0]);
        pthread_join(thread, NULL);
        remove(plan_meet);
    }
}
