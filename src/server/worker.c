/* A trainer whose steps are tickets. It asks the first server for one, pulls parameters that have
 * changed, and computes the ticket's gradient. It pushes that to the first server last. So the
 * other servers have every push that the first one counts. It never updates parameters itself. A
 * gradient that it computed while a server was away counts if the ticket is still open
 * afterwards. */

#define DTI_WORKER_PULLS 16 /* times that values of several versions are taken for those of one */

/* A worker's data of a server, beside its client's. */
typedef struct dti_served_server {
    dti_push_shape shape;
    uint64_t have; /* version of its values here, plus 1; 0: none */
    /* For several servers (worker_agree.c): */
    uint64_t kept;                   /* the step of the checkpoint that it reported */
    uint64_t steps[DTI_AGREE_STEPS]; /* that it can go on from */
    uint32_t step_count;
} dti_served_server;

typedef struct dti_served {
    dti_client client;
    dti_shares shares;
    dti_served_server *servers; /* as client.servers */
    char *wire;                 /* a push, or values, on its way */
    uint64_t wire_bytes;
    dti_told told;
    uint32_t batch_slice;
    uint64_t serial;
    uint64_t apart; /* since when several servers have not agreed, ns */
} dti_served;

static dti_served *dti_served_of(const dt_trainer *t) {
    return t->worker;
}

/* worker_agree.c: returns when all servers are of one generation. *fresh: it is a new one. */
static dt_result dti_worker_agree(dt_trainer *t, bool *fresh);

/* ---- before programs */

static dt_result dti_worker_differs(dt_trainer *t, uint32_t to, const char *mine, size_t mine_size,
                                    const char *theirs, size_t theirs_size) {
    size_t line;
    if (!dti_model_texts_differ(mine, mine_size, theirs, theirs_size, &line))
        return DT_OK;
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "server %u at %s has other settings: here '%s', there '%s'", to,
                    dti_served_of(t)->client.servers[to].address,
                    dti_show_line(dti_model_line(mine + line, mine_size - line)).text,
                    dti_show_line(dti_model_line(theirs + line, theirs_size - line)).text);
}

#define DTI_SETTINGS_MAX (1u << 26)

static dt_result dti_worker_compare(dt_trainer *t, uint32_t to) {
    dti_client *c = &dti_served_of(t)->client;
    const uint64_t bytes = c->servers[to].welcome.settings_bytes;
    const dti_message m = {.kind = DTI_SAY_SETTINGS};
    if (bytes > DTI_SETTINGS_MAX)
        return dti_fail(t->base, DT_ERROR_CORRUPT,
                        "server %u sent settings of %llu bytes, which is too long", to,
                        (unsigned long long)bytes);
    dti_text mine = dti_text_open(t->base);
    char *theirs = dti_alloc(t->base, (size_t)bytes + 1);
    dti_describe_settings(t, &mine);
    dt_result result = mine.ok && theirs ? DT_OK : DT_ERROR_MEMORY;
    if (!result)
        result = dti_client_ask(c, to, &m, NULL, theirs, bytes);
    if (!result && (c->answer.kind != DTI_SAY_SETTINGS || c->answer.bytes != bytes))
        result = dti_client_malformed(c, to, "its settings are");
    if (!result)
        result = dti_worker_differs(t, to, mine.data, mine.size, theirs, (size_t)bytes);
    dti_free(t->base, theirs);
    dti_text_free(&mine);
    return result;
}

/* From here on par is a replica of one batch slice; the optimizer is the servers', and any will
 * do. */
static void dti_worker_partition(dt_trainer *t, uint32_t batch_slices) {
    dti_served *w = t->worker;
    dti_parallel_desc *d = &t->par.desc;
    w->shares.job = (dti_partition){.replicas = batch_slices,
                                    .local = 1,
                                    .batch_slices = batch_slices,
                                    .parts = d->parts,
                                    .batch = (uint32_t)t->desc.batch};
    w->shares.tail = d->tail;
    d->batch = dti_shares_most(&w->shares.job);
    d->tail = 0;
    d->optim = (dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 1.0};
}

static dt_result dti_worker_batch_slices(dt_trainer *t) {
    const dti_client *c = &dti_served_of(t)->client;
    const uint32_t batch_slices = c->servers[0].welcome.batch_slices;
    if (batch_slices > (uint32_t)t->desc.batch ||
        (t->desc.parallel.batch_slices && t->desc.parallel.batch_slices != (int)batch_slices))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "the servers have %u batch slices, but here .batch is %d and "
                        ".parallel.batch_slices is %d; leave .parallel.batch_slices 0",
                        batch_slices, t->desc.batch, t->desc.parallel.batch_slices);
    t->desc.parallel.batch_slices = (int)batch_slices;
    return DT_OK;
}

static dt_result dti_worker_open(dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    dti_served *w = t->worker = dti_alloc(t->base, sizeof *w);
    DTI_HAVE(w);
    dti_client *c = &w->client;
    DTI_TRY(
        dti_client_open(t->base, d->server.addresses, d->server.security, d->server.wait_ms, c));
    for (uint32_t i = 0; i < c->count; i++) {
        DTI_TRY(dti_client_greet(c, i));
        if (i == 0)
            DTI_TRY(dti_worker_batch_slices(t));
        DTI_TRY(dti_worker_compare(t, i));
    }
    dti_worker_partition(t, c->servers[0].welcome.batch_slices);
    return DT_OK;
}

static void dti_worker_close(dt_trainer *t) {
    dti_served *w = t->worker;
    if (!w)
        return;
    dti_client_close(&w->client);
    dti_shares_free(&t->par, &w->shares);
    DTI_FREE(t->base, w->servers, w->wire, w);
    t->worker = NULL;
}

/* ---- programs, memory */

static dt_result dti_worker_build(dt_trainer *t) {
    dti_served *w = t->worker;
    const dti_client *c = &w->client;
    DTI_TRY(dti_shares_make(&t->par, &w->shares));
    w->servers = dti_alloc_array(t->base, c->count, sizeof *w->servers);
    DTI_HAVE(w->servers);
    for (uint32_t i = 0; i < c->count; i++) {
        const dti_welcome *said = &c->servers[i].welcome;
        const dti_push_shape shape = dti_push_shape_of(&t->par, said->begin, said->end);
        const uint64_t values = dti_arena_bytes(said->end - said->begin);
        w->servers[i].shape = shape;
        w->wire_bytes = DTI_MAX(w->wire_bytes, DTI_MAX(shape.bytes, values));
        if (said->elements != t->par.elements || said->push_bytes != shape.bytes)
            return dti_fail(t->base, DT_ERROR_INVALID,
                            "server %u at %s has another model: %llu elements and %llu bytes a "
                            "push, but here %llu and %llu",
                            i, c->servers[i].address, (unsigned long long)said->elements,
                            (unsigned long long)said->push_bytes,
                            (unsigned long long)t->par.elements, (unsigned long long)shape.bytes);
    }
    w->wire = dti_alloc(t->base, (size_t)w->wire_bytes);
    DTI_HAVE(w->wire);
    return DT_OK;
}

static void dti_worker_rows(const dt_trainer *t, uint32_t rows, uint32_t *first, uint32_t *count) {
    dti_shares_rows(&dti_served_of(t)->shares, dti_served_of(t)->batch_slice, rows, first, count);
}

static uint32_t dti_worker_rows_max(const dt_trainer *t) {
    const dti_shares *s = &dti_served_of(t)->shares;
    return s->weighs ? s->job.batch : dti_shares_most(&s->job);
}

static dt_program *dti_worker_program(const dt_trainer *t, uint32_t i) {
    const dti_shares *s = &dti_served_of(t)->shares;
    for (uint32_t k = 0; k < s->count; i -= s->at[k++].own.count) {
        if (i < s->at[k].own.count)
            return s->at[k].own.runs[i].program;
    }
    return NULL;
}

/* ---- values */

static dt_result dti_worker_take(dt_trainer *t, uint32_t from) {
    dti_served *w = t->worker;
    dti_client *c = &w->client;
    dt_store *s = t->par.replicas[0].store;
    const dti_welcome *said = &c->servers[from].welcome;
    const uint64_t bytes = dti_arena_bytes(said->end - said->begin);
    if (c->answer.kind != DTI_SAY_VALUES || c->answer.bytes != bytes)
        return dti_client_malformed(c, from, "its values are");
    w->servers[from].have = c->answer.number + 1;
    if (c->answer.part & DTI_VALUES_KEPT)
        w->servers[from].kept = w->told.resolved.saved;
    c->servers[from].back = false;
    dti_store_unbound(s);
    return bytes ? s->device->backend->memory_write(s->memories[DTI_ARENA_PARAM],
                                                    dti_arena_bytes(said->begin), w->wire, bytes)
                 : DT_OK;
}

/* From each server whose values have moved since. */
static dt_result dti_worker_pull(dt_trainer *t, dti_newest newest) {
    dti_served *w = t->worker;
    const dti_resolved *known = &w->told.resolved;
    const dti_message m = {
        .kind = DTI_SAY_PULL, .part = newest, .number = known->version, .bytes = sizeof *known};
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < w->client.count && !result; i++) {
        if (w->servers[i].have == known->version + 1 && !w->client.servers[i].back)
            continue;
        result = dti_client_ask(&w->client, i, &m, known, w->wire, w->wire_bytes);
        if (!result)
            result = dti_worker_take(t, i);
    }
    t->par.replicas[0].store->steps = w->told.steps;
    return result;
}

/* Takes over the first server's position. */
static void dti_worker_begin(dt_trainer *t) {
    dti_served *w = t->worker;
    const dti_welcome *said = &w->client.servers[0].welcome;
    w->told = (dti_told){.resolved = {.version = said->version, .skipped = said->skipped},
                         .steps = said->steps};
    memcpy(w->told.resolved.clips, said->clips, sizeof said->clips);
    for (uint32_t i = 0; i < w->client.count; i++)
        w->servers[i].have = w->servers[i].kept = 0;
}

static dt_result dti_worker_join(dt_trainer *t) {
    dt_result result = DT_OK;
    bool fresh;
    do {
        result = dti_worker_agree(t, &fresh);
        if (!result) {
            dti_worker_begin(t);
            t->epoch = dti_served_of(t)->client.servers[0].welcome.epoch;
            result = dti_worker_pull(t, DTI_NEWEST_NOW);
        }
    } while (result && dti_served_of(t)->client.apart);
    return result;
}

/* ---- tickets */

/* A hash of the values that the application sets by itself at each worker and at the servers. */
static uint64_t dti_worker_mark(const dt_trainer *t) {
    uint64_t hash = DTI_HASH_START;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        const double value = t->coefficients[i] + 0.0; /* no -0 */
        hash = dti_hash64(hash, &value, sizeof value);
    }
    for (uint32_t i = 0; i < t->shared_count; i++)
        hash = dti_hash64(hash, t->shared[i].values, t->shared[i].bytes);
    return hash;
}

/* The step of the first server's newest checkpoint, if all others have it, too. */
static uint64_t dti_worker_safe(const dt_trainer *t) {
    const dti_served *w = t->worker;
    for (uint32_t i = 1; i < w->client.count; i++) {
        if (w->servers[i].kept != w->told.resolved.saved)
            return 0;
    }
    return w->told.resolved.saved;
}

/* The squares that a server's part of a batch adds up to, to the first server. Not *goes_on: the
 * batch is over. */
static dt_result dti_worker_bring_one(dt_trainer *t, const dti_told *news, uint64_t serial,
                                      uint32_t from, bool *goes_on) {
    dti_served *w = t->worker;
    dti_client *c = &w->client;
    const dti_welcome *said = &c->servers[from].welcome;
    const uint64_t bytes = dti_push_blocks(said->begin, said->end) * sizeof(float);
    const dti_message measure = {
        .kind = DTI_SAY_MEASURE, .number = serial, .bytes = sizeof news->resolved};
    const dti_message brought = {
        .kind = DTI_SAY_BROUGHT, .part = from, .number = serial, .bytes = bytes};
    dt_result result = dti_client_ask(c, from, &measure, &news->resolved, w->wire, w->wire_bytes);
    *goes_on = !result && c->answer.kind == DTI_SAY_SQUARES;
    if (result || (c->answer.kind == DTI_SAY_PUSHED && c->answer.part == DTI_PUSH_VOID))
        return result;
    if (!*goes_on || c->answer.bytes != bytes)
        return dti_client_malformed(c, from, "its sums of squares are");
    result = dti_client_ask(c, 0, &brought, w->wire, NULL, 0);
    *goes_on = !result && c->answer.kind == DTI_SAY_PUSHED;
    return result;
}

/* The first server has a batch whole, and needs the norm of all servers' parts. */
static dt_result dti_worker_bring(dt_trainer *t) {
    dti_client *c = &dti_served_of(t)->client;
    const uint64_t serial = c->answer.number;
    dti_told told;
    bool goes_on = c->answer.bytes == sizeof told;
    if (!goes_on)
        return dti_client_malformed(c, 0, "its list of missing pushes is");
    memcpy(&told, c->small, sizeof told);
    for (uint32_t i = 1; i < c->count && goes_on; i++)
        DTI_TRY(dti_worker_bring_one(t, &told, serial, i, &goes_on));
    return DT_OK;
}

/* A server that has no ticket yet answers so several times within the time that silence may
 * take. */
static dt_result dti_worker_question(dt_trainer *t) {
    dti_client *c = &dti_served_of(t)->client;
    const dti_request ask = {
        .epoch = t->epoch, .mark = dti_worker_mark(t), .safe = dti_worker_safe(t)};
    const dti_message m = {.kind = DTI_SAY_ASK,
                           .part = (uint32_t)DTI_MIN(c->wait_ns / 4000000u, (uint64_t)1000),
                           .bytes = sizeof ask};
    for (;;) {
        DTI_TRY(dti_client_ask(c, 0, &m, &ask, NULL, 0));
        if (c->answer.kind == DTI_SAY_BRING)
            DTI_TRY(dti_worker_bring(t));
        else if (c->answer.kind != DTI_SAY_WAIT)
            return DT_OK;
    }
}

static bool dti_worker_told_is_right(const dt_trainer *t, bool ended) {
    const dti_served *w = t->worker;
    const dti_message *m = &w->client.answer;
    const uint64_t batches = dti_loader_epoch_batches(t->loader);
    dti_told told;
    if (m->bytes != sizeof told)
        return false;
    memcpy(&told, w->client.small, sizeof told);
    if (ended)
        return m->part <= DTI_NEWEST_EPOCH && told.epoch < UINT64_MAX / 2 / batches;
    return m->kind == DTI_SAY_TICKET && m->part < w->shares.job.batch_slices && m->number &&
           told.epoch == (m->number - 1) / batches && told.index == (m->number - 1) % batches &&
           m->number > told.resolved.version;
}

/* A ticket, or the epoch's end, and the values for it. */
static dt_result dti_worker_ask_once(dt_trainer *t, bool *ended) {
    dti_served *w = t->worker;
    dti_client *c = &w->client;
    DTI_TRY(dti_worker_question(t));
    *ended = c->answer.kind == DTI_SAY_ENDED;
    if (!dti_worker_told_is_right(t, *ended))
        return dti_client_malformed(c, 0, "its work item is");
    memcpy(&w->told, c->small, sizeof w->told);
    w->batch_slice = c->answer.part;
    w->serial = c->answer.number;
    return dti_worker_pull(t, *ended ? (dti_newest)w->batch_slice : DTI_NEWEST_NOW);
}

static bool dti_worker_has_one_version(const dt_trainer *t) {
    const dti_served *w = t->worker;
    for (uint32_t i = 0; i < w->client.count; i++) {
        if (w->servers[i].have != w->told.resolved.version + 1)
            return false;
    }
    return true;
}

/* At an epoch's end all servers' values are of one version, which they keep. If a later epoch has
 * ended before all were pulled, it is that one's. A first server that was started within an epoch
 * has no such version; then values may be of several. */
static dt_result dti_worker_ask(dt_trainer *t, bool *ended) {
    dt_result result = dti_worker_ask_once(t, ended);
    for (int i = 0; i < DTI_WORKER_PULLS && !result && *ended && !dti_worker_has_one_version(t);
         i++)
        result = dti_worker_ask_once(t, ended);
    return result;
}

/* The samples of the ticket. */
static dt_result dti_worker_load(dt_trainer *t, const dti_batch **batch) {
    const dti_told *told = &dti_served_of(t)->told;
    DTI_TRY(dti_loader_seek(t->loader, told->epoch, told->index, dti_served_of(t)->serial));
    return dti_loader_next(t->loader, batch);
}

static void dti_worker_report(dt_trainer *t, dti_parallel_result *step, dt_train_report *r,
                              uint32_t rows) {
    memcpy(step->terms, t->par.terms.leaves, sizeof step->terms);
    dti_report_add(r, step);
    r->steps++;
    r->samples += rows;
}

/* Pushes to the first server last, so all others have what it counts. Another server may refuse the
 * push, because it still receives one of the same ticket. Then the first server gets none. */
static dt_result dti_worker_push(dt_trainer *t, bool *counts) {
    dti_served *w = t->worker;
    const dti_message *answer = &w->client.answer;
    dt_result result = DT_OK;
    *counts = true;
    for (uint32_t i = w->client.count; i-- > 0 && *counts;) {
        const dti_push_shape *shape = &w->servers[i].shape;
        const dti_message m = {.kind = DTI_SAY_PUSH,
                               .part = w->batch_slice,
                               .number = w->serial,
                               .bytes = shape->bytes};
        dti_push_write(&t->par, shape, w->told.resolved.version, w->wire);
        result = dti_client_ask(&w->client, i, &m, w->wire, NULL, 0);
        if (!result && (answer->kind != DTI_SAY_PUSHED || answer->part > DTI_PUSH_VOID))
            result = dti_client_malformed(&w->client, i, "its answer to a push is");
        *counts = !result && answer->part != DTI_PUSH_VOID;
    }
    return result;
}

/* Its batch is skipped by all. */
static dt_result dti_worker_skip(dt_trainer *t, const char *why) {
    dti_served *w = t->worker;
    char text[DTI_SAY_TEXT + 1];
    snprintf(text, sizeof text, "%.*s", DTI_SAY_TEXT, why);
    const dti_message m = {
        .kind = DTI_SAY_FAULT, .part = w->batch_slice, .number = w->serial, .bytes = strlen(text)};
    return dti_client_ask(&w->client, 0, &m, text, NULL, 0);
}

static dt_result dti_worker_fault(dt_trainer *t) {
    const dti_error_text error = dti_error_of(&t->par);
    DTI_TRY(dti_worker_skip(t, error.text));
    return dti_fail(t->base, DT_ERROR_NUMERIC, "%s", error.text);
}

/* Nothing was computed: no target counts, and such steps are left out. */
static dt_result dti_worker_leave_out(dt_trainer *t, dt_train_report *r, bool *used) {
    const dt_result result =
        dti_worker_skip(t, "all targets of the batch are ignored (.skip_empty)");
    *used = !result;
    r->steps += !result;
    r->empty += !result;
    return result;
}

static dt_result dti_worker_compute(dt_trainer *t, dt_train_report *r, bool *used) {
    dti_served *w = t->worker;
    const uint64_t start = dti_now_ns();
    const dti_batch *batch = NULL;
    bool counts = false;
    const dt_step_desc step = {
        .seed = t->desc.seed, .step = w->told.step, .coefficients = t->coefficients};
    dt_result result = dti_worker_load(t, &batch);
    if (!result)
        result = dti_shared_written(t);
    r->data_seconds += 1e-9 * (double)(dti_now_ns() - start);
    dti_parallel_result out = {0};
    if (!result)
        result = dti_shares_compute(&t->par, &w->shares, batch, w->batch_slice, &step, &out);
    r->epoch = w->told.epoch;
    *used = !result || result == DT_ERROR_NUMERIC;
    if (result == DT_ERROR_NUMERIC) {
        result = dti_worker_fault(t);
        r->skipped++;
    } else if (!result && out.empty && t->par.desc.skip_empty) {
        result = dti_worker_leave_out(t, r, used);
    } else if (!result) {
        const uint64_t computed = dti_now_ns();
        result = dti_worker_push(t, &counts);
        r->wait_seconds += 1e-9 * (double)(dti_now_ns() - computed);
        if (counts)
            dti_worker_report(t, &out, r,
                              dti_shares_size(&w->shares.job, w->batch_slice, batch->real));
        *used = !result;
    }
    return result;
}

static dt_result dti_worker_try(dt_trainer *t, dt_train_report *r, bool *used) {
    const uint64_t start = dti_now_ns();
    bool ended = false, fresh = false;
    dt_result result = dti_worker_agree(t, &fresh);
    if (!result && fresh) {
        dti_worker_begin(t);
        t->epoch = DTI_MIN(t->epoch, dti_served_of(t)->client.servers[0].welcome.epoch);
    }
    if (!result)
        result = dti_worker_ask(t, &ended);
    r->wait_seconds += 1e-9 * (double)(dti_now_ns() - start);
    if (!result && ended) {
        r->epoch = t->epoch;
        r->epoch_ended = *used = true;
        t->epoch = dti_served_of(t)->told.epoch;
    } else if (!result) {
        t->epoch = dti_served_of(t)->told.epoch;
        result = dti_worker_compute(t, r, used);
    }
    t->index = 0;
    return result;
}

/* Work in flight while servers agree again is not lost: it is handed out again. */
static dt_result dti_worker_step(dt_trainer *t, dt_train_report *r, bool *used) {
    const uint64_t start = dti_now_ns();
    dt_result result;
    do
        result = dti_worker_try(t, r, used);
    while (result && dti_served_of(t)->client.apart);
    r->seconds += 1e-9 * (double)(dti_now_ns() - start);
    return result;
}

static const dti_worker_calls dti_server_worker = {.open = dti_worker_open,
                                                   .build = dti_worker_build,
                                                   .join = dti_worker_join,
                                                   .close = dti_worker_close,
                                                   .rows = dti_worker_rows,
                                                   .rows_max = dti_worker_rows_max,
                                                   .program = dti_worker_program,
                                                   .step = dti_worker_step};
