/* Values of random meshes: what ranks gather is what their devices have, bit by bit, whichever
 * device has it. A device that fails in the middle is an error on all ranks, which can try again.
 * Included by main.c, after train_model.h. */

enum { VALUES_RANKS = 3 };

typedef struct values_case {
    dt_parallel_desc parallel;
    dt_optim_desc optim;
    int kind, ranks, devices[VALUES_RANKS];
    int failing, after; /* the rank whose device fails, and after how many reads */
} values_case;

typedef struct values_rank {
    const values_case *c;
    dt_comm *comm;
    int index;
    dt_result failed, again;
    bool made;
    uint64_t hash;
    char text[512];
} values_rank;

static uint32_t values_draw(uint32_t *state, uint32_t below) {
    return train_random(state) % below;
}

static void values_random(uint32_t *state, values_case *c) {
    static const dt_optim_kind kinds[] = {DT_OPTIM_ADAM, DT_OPTIM_SGD, DT_OPTIM_RMSPROP};
    const bool grid = values_draw(state, 4) != 0;
    const int stages = grid ? 1 + (int)values_draw(state, 3) : 1,
              tensor = grid ? 1 + (int)values_draw(state, 2) : 1,
              data = 1 + (int)values_draw(state, 3) + !grid;
    *c = (values_case){.kind = TRAIN_PARTS};
    c->parallel.pipeline = stages > 1 ? stages : 0;
    c->parallel.tensor = tensor > 1 || (stages == 1 && grid) ? 2 : 0;
    c->parallel.replicas = c->parallel.pipeline || c->parallel.tensor ? data : 0;
    c->parallel.zero_stage =
        grid ? (dt_zero_stage)values_draw(state, 2) : (dt_zero_stage)(1 + values_draw(state, 3));
    c->parallel.batch_slices = 4;
    c->optim = (dt_optim_desc){
        .kind = kinds[values_draw(state, 3)], .lr = 0.01, .average = {.kind = DT_AVERAGE_EMA}};
    int positions = data * stages * (c->parallel.tensor ? 2 : 1);
    c->ranks = 1 + (int)values_draw(state, (uint32_t)(positions < VALUES_RANKS ? positions : 3));
    for (int i = 0; i < c->ranks; i++) {
        const int left = positions - (c->ranks - 1 - i);
        c->devices[i] = i + 1 == c->ranks ? left : 1 + (int)values_draw(state, (uint32_t)left);
        positions -= c->devices[i];
    }
    c->failing = (int)values_draw(state, (uint32_t)c->ranks);
    c->after = (int)values_draw(state, 8);
}

/* ---- a device that fails once, on one rank at a time */

static struct {
    const dti_backend *own;
    dti_backend broken;
    dti_base *base;
    _Atomic int left;
    _Atomic bool fired;
} values_fault;

static dt_result values_no_read(dti_memory *memory, uint64_t at, void *to, uint64_t bytes) {
    if (values_fault.left-- != 0)
        return values_fault.own->memory_read(memory, at, to, bytes);
    values_fault.fired = true;
    return dti_fail(values_fault.base, DT_ERROR_DEVICE, "cannot read %llu bytes",
                    (unsigned long long)bytes);
}

static void values_break(dt_store *s, int after) {
    values_fault.own = s->device->backend;
    values_fault.broken = *values_fault.own;
    values_fault.broken.memory_read = values_no_read;
    values_fault.base = s->base;
    values_fault.left = after;
    s->device->backend = &values_fault.broken;
}

/* ---- what devices have */

/* Whether a tensor rank has element e of a parameter that is split; its own are in e's order. */
static bool values_has(const dti_tp_part *p, uint32_t size, uint32_t rank, uint64_t e) {
    int64_t all = 0;
    for (int i = 0; i < DTI_PARTED_GROUPS; i++)
        all += p->of.group[i];
    int64_t at = (int64_t)e / p->inner % all;
    for (int i = 0; i < DTI_PARTED_GROUPS; at -= p->of.group[i++]) {
        if (at < p->of.group[i])
            return at / (p->of.group[i] / size) == rank;
    }
    return false;
}

static const float *values_at(const dt_store *s, uint32_t array, uint64_t at) {
    const dti_arena arena = array ? DTI_ARENA_STATE : DTI_ARENA_PARAM;
    const float *host = s->device->backend->memory_host(s->memories[arena]);
    return host + (array ? dti_state_moment_offset(&s->layout, array - 1) + at : at);
}

/* Of one array what a chunk's store has, beside the host's. */
static int values_differ(const dti_pipe *pipe, const dti_pipe_chunk *chunk, uint32_t own,
                         const dt_store *all, uint32_t param, uint32_t array) {
    const dti_layout *l = &chunk->store->layout;
    const dti_param *whole = &all->layout.params[param];
    uint64_t at = l->params[own].offset;
    int wrong = 0;
    for (uint64_t e = 0; e < whole->elements; e++) {
        if (dti_pipe_is_part(pipe, param) &&
            !values_has(&pipe->shared->parts[param], pipe->mesh->tensor,
                        pipe->pipelines[chunk->pipeline].tp_rank, e))
            continue;
        if (!array || (at >= l->own_begin && at < l->own_end))
            wrong += memcmp(values_at(chunk->store, array, at),
                            values_at(all, array, whole->offset + e), sizeof(float)) != 0;
        at++;
    }
    return wrong + (at != l->params[own].offset + l->params[own].elements);
}

static void values_chunk_equal(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dt_store *all = par->replicas[0].store, *s = chunk->store;
    for (uint32_t own = 0; own < s->layout.param_count; own++) {
        const uint32_t param = dti_pipe_stage_of(par->pipe, chunk)->params[own];
        const dti_kept *a = &s->kept[own], *b = &all->kept[param];
        const char *name = all->graph->nodes[all->layout.params[param].node].label;
        uint32_t counts[2] = {0, 1};
        for (uint32_t array = 0; array <= s->moments; array++) {
            const int wrong = values_differ(par->pipe, chunk, own, all, param, array);
            CHECK_TEXT(!wrong, "stage %u, '%s', array %u: %d values differ", chunk->index, name,
                       array, wrong);
        }
        CHECK(!dti_store_counts(s, own, 1, &counts[0], false) &&
              !dti_store_counts(all, param, 1, &counts[1], false));
        CHECK_TEXT(counts[0] == counts[1] && a->averaged == b->averaged && a->from == b->from,
                   "stage %u, '%s': %u and %u steps", chunk->index, name, counts[0], counts[1]);
    }
}

/* Replicas that share the state: averages stand in the weights' place, on each. */
static void values_averages_equal(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        const dt_store *s = par->replicas[i].store;
        const dti_layout *l = &s->layout;
        int wrong = 0;
        for (uint32_t k = 0; k < l->param_count; k++) {
            const dti_param *p = &l->params[k];
            for (uint64_t at = p->offset; p->average && at < p->offset + p->elements; at++) {
                if (at >= l->own_begin && at < l->own_end)
                    wrong += memcmp(values_at(s, 0, at), values_at(s, p->average, at), 4) != 0;
            }
        }
        CHECK_TEXT(!wrong, "replica %u: %d averages differ", i, wrong);
    }
}

static void values_check(values_rank *r, dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const dt_store *all = par->replicas[0].store;
    r->hash = DTI_HASH_START;
    for (uint32_t array = 0; array <= (pipe ? all->moments : 0); array++)
        r->hash = dti_hash64(r->hash, values_at(all, array, 0),
                             (size_t)dti_arena_bytes(all->layout.elements));
    for (uint32_t i = 0; pipe && i < pipe->pipeline_count * pipe->chunk_count; i++) {
        if (pipe->chunks[i].store)
            values_chunk_equal(par, &pipe->chunks[i]);
    }
    if (!pipe)
        values_averages_equal(par);
}

/* ---- a rank */

static dt_result values_gather(dti_parallel *par) {
    if (par->pipe)
        return dti_full_gather(par);
    const dt_result result = dti_owners_show(par);
    if (result)
        dti_owners_hide(par);
    return result;
}

/* Not the host's store, if there is another. */
static dt_store *values_victim(const dti_parallel *par) {
    uint32_t i = 0;
    while (par->pipe && !par->pipe->chunks[i].store)
        i++;
    return par->pipe ? par->pipe->chunks[i].store : par->replicas[par->job.local - 1].store;
}

static void *values_main(void *arg) {
    values_rank *r = arg;
    const values_case *c = r->c;
    train_model m;
    dt_trainer *t = NULL;
    char devices[16];
    snprintf(devices, sizeof devices, "cpu:%d", c->devices[r->index]);
    if (train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, c->kind)) {
        dt_trainer_desc d = train_desc(&m);
        d.optim = &c->optim;
        d.comm = r->comm;
        d.devices = devices;
        d.parallel = c->parallel;
        r->made = !dt_trainer_create(m.graph, &d, &t) && !dt_trainer_step(t, NULL) &&
                  !dt_trainer_step(t, NULL);
    }
    if (r->made) {
        dt_store *victim = values_victim(&t->par);
        const dti_backend *own = victim->device->backend;
        if (r->index == c->failing)
            values_break(victim, c->after);
        r->failed = values_gather(&t->par);
        snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
        victim->device->backend = own;
        if (!r->failed && !t->par.pipe)
            dti_owners_hide(&t->par);
        r->again = values_gather(&t->par);
        values_check(r, &t->par);
        if (!t->par.pipe)
            dti_owners_hide(&t->par);
    } else {
        snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m.ctx));
    }
    dt_ctx_destroy(m.ctx);
    return NULL;
}

static bool values_run(const values_case *c, values_rank ranks[VALUES_RANKS]) {
    dt_comm *comms[VALUES_RANKS] = {NULL};
    pthread_t threads[VALUES_RANKS];
    bool fine = c->ranks == 1 || !dt_comm_create_threads(NULL, c->ranks, comms);
    values_fault.fired = false;
    for (int i = 0; i < c->ranks && fine; i++) {
        ranks[i] = (values_rank){.c = c, .comm = comms[i], .index = i};
        fine = !pthread_create(&threads[i], NULL, values_main, &ranks[i]);
    }
    for (int i = 0; i < c->ranks && fine; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < c->ranks; i++)
        dt_comm_destroy(comms[i]);
    return CHECK_TEXT(fine, "ranks");
}

TEST(random_meshes_gather_their_devices_values_even_after_one_failed) {
    uint32_t state = 11;
    int fired = 0;
    const int count = getenv("DTRAIN_TEST_LONG") ? 200 : 40;
    for (int n = 0; n < count && test_now.failures < 5; n++) {
        values_case c;
        values_rank ranks[VALUES_RANKS];
        values_random(&state, &c);
        if (!values_run(&c, ranks))
            break;
        fired += values_fault.fired;
        for (int i = 0; i < c.ranks; i++) {
            const values_rank *r = &ranks[i];
            char want[64] = "cannot read ";
            if (i != c.failing)
                snprintf(want, sizeof want, "rank %d: ", c.failing);
            CHECK_TEXT(
                r->made && (r->failed != DT_OK) == values_fault.fired && !r->again &&
                    (!r->failed || (strstr(r->text, want) && strstr(r->text, "cannot read "))) &&
                    r->hash == ranks[0].hash,
                "case %d: %d stages, %d tensor ranks, %d replicas, ZeRO %d, rank %d of %d: "
                "a device of rank %d failed: %d; %s, then %s: %s",
                n, c.parallel.pipeline, c.parallel.tensor, c.parallel.replicas,
                (int)c.parallel.zero_stage, i, c.ranks, c.failing, values_fault.fired,
                dt_result_text(r->failed), dt_result_text(r->again), r->text);
        }
    }
    CHECK_TEXT(fired > count / 3, "only %d devices failed", fired);
}

/* ---- an evaluation */

static struct { _Atomic int64_t bytes; } values_memory;

static void *values_alloc(void *user, size_t bytes, size_t align) {
    size_t *at = NULL;
    (void)user;
    (void)align;
    if (posix_memalign((void **)&at, 64, bytes + 64))
        return NULL;
    *at = bytes;
    atomic_fetch_add(&values_memory.bytes, (int64_t)bytes);
    return (char *)at + 64;
}

static void values_free(void *user, void *at, size_t bytes) {
    (void)user;
    (void)bytes;
    size_t *from = at ? (size_t *)(void *)((char *)at - 64) : NULL;
    atomic_fetch_sub(&values_memory.bytes, from ? (int64_t)*from : 0);
    free(from);
}

TEST(evaluations_of_a_grid_keep_host_values_and_one_set_of_programs) {
    const dt_ctx_desc ctx = {
        .no_vulkan = true, .threads = 1, .allocator = {values_alloc, values_free, NULL}};
    static float out[TRAIN_ROWS * TRAIN_CLASSES];
    train_model m = {0};
    dt_trainer *t = NULL;
    int64_t bytes[4];
    if (!CHECK_TEXT(train_model_make(&m, &ctx, TRAIN_PARTS), "made"))
        return;
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu:4";
    d.parallel.pipeline = 2;
    d.parallel.replicas = 2;
    CHECK(!dt_trainer_create(m.graph, &d, &t) && !dt_trainer_step(t, NULL));
    const dti_pipe *pipe = t->par.pipe;
    for (int i = 0; i < 3; i++) {
        CHECK(!dt_trainer_evaluate(t, &d.data, 9, NULL));
        bytes[i] = atomic_load(&values_memory.bytes);
    }
    CHECK(!dt_trainer_predict(t, &d.data, m.logits, 9, out, sizeof out));
    bytes[3] = atomic_load(&values_memory.bytes);
    CHECK_TEXT(bytes[0] == bytes[1] && bytes[1] == bytes[2] && bytes[2] == bytes[3],
               "%lld, %lld, %lld bytes, %lld after a prediction", (long long)bytes[0],
               (long long)bytes[1], (long long)bytes[2], (long long)bytes[3]);
    CHECK(!t->par.replicas[0].store->memories[DTI_ARENA_PARAM] && !t->par.kept);
    CHECK(!pipe->plans[DTI_PIPE_PREDICT].forward && pipe->plan == &pipe->plans[DTI_PIPE_TRAIN]);
    for (const dti_pipe_chunk *c = NULL; (c = dti_pipe_next(pipe, c)) != NULL;)
        CHECK(dti_micro_slot_transients(c->runs[2 * DTI_PIPE_EVALUATE][0].program) == 0);
    dt_ctx_destroy(m.ctx);
    CHECK_TEXT(!values_memory.bytes, "%lld bytes are left", (long long)values_memory.bytes);
}

/* In one process nobody else waits: the job goes on. */
TEST(an_evaluation_of_a_grid_can_be_repeated_after_any_action_fails) {
    train_model m = {0};
    dt_trainer *t = NULL;
    dt_train_report want = {0}, got = {0};
    if (!CHECK_TEXT(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, TRAIN_PARTS), "made"))
        return;
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu:4";
    d.parallel.pipeline = 2;
    d.parallel.replicas = 2;
    d.parallel.zero_stage = DT_SHARD_PARAMETERS;
    CHECK(!dt_trainer_create(m.graph, &d, &t) && !dt_trainer_step(t, NULL) &&
          !dt_trainer_evaluate(t, &d.data, 40, &want));
    int failed = 0;
    for (int i = 0; i < 400 && test_now.failures < 3; i++) {
        harness_fault.hits = 0;
        harness_fault.rank = 0;
        harness_fault.device = i % 4;
        harness_fault.action = i / 4;
        const dt_result result = dt_trainer_evaluate(t, &d.data, 40, &got);
        harness_fault.action = -1;
        failed += result != 0;
        CHECK_TEXT(harness_fault.hits ? result == DT_ERROR_DEVICE : !result,
                   "device %d, action %d: %d: %s", i % 4, i / 4, (int)result, dt_ctx_error(m.ctx));
        if (result)
            CHECK_TEXT(!dt_trainer_evaluate(t, &d.data, 40, &got) && got.loss == want.loss,
                       "device %d, action %d: %g, not %g: %s", i % 4, i / 4, got.loss, want.loss,
                       dt_ctx_error(m.ctx));
        if (!result && i % 4 == 3)
            break;
    }
    CHECK_TEXT(failed > 20 && !dt_trainer_step(t, NULL), "%d failed: %s", failed,
               dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}
