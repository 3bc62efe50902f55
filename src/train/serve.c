/* A parameter server: a trainer of one CPU replica whose steps others compute. Its tickets
 * (server/tickets.h) say who computes what; its desk (comm/desk.h) brings their pushes to a
 * place of their own; when a batch is complete it is folded and applied as a step of ranks is, by
 * the trainer's own commit, with its checkpoints. All of it happens in dt_server_run. */

#define DTI_SERVER_SURPLUS 2 /* seats for those who are to hear that there is no place */
#define DTI_SERVER_SURPLUS_NS 1000000000u

typedef struct dti_server_seat { /* a worker's connection */
    bool open, asks;             /* asks: it waits for a ticket, */
    uint64_t epoch, mark;        /* of this epoch, */
    uint64_t since;              /* since then, ns, and wants to hear something */
    uint32_t wait_ms;            /* in this time; */
    bool surplus;                /* or there is no place for it, as it is told */
    uint64_t given;              /* the serial of the ticket that it got last; 0: none, */
    uint32_t given_shard;        /* and its shard */
    uint8_t instance[16];
    char *place;          /* where its push is coming to; NULL: none is, or it does not count */
    bool brings;          /* squares of another server are coming */
    dti_push_answer push; /* to it, when it is there */
    dti_message answer;
    char small[DTI_MESSAGE_SMALL];
} dti_server_seat;

struct dt_server {
    dti_owned owned; /* first */
    dti_base *base;
    dt_graph *graph;
    dt_trainer *trainer;
    const dti_desk_calls *calls;
    dti_desk *desk;
    dti_server_seat *seats;
    uint32_t count, places; /* seats; of them for workers */
    dti_tickets tickets;
    dti_push_shape shape;
    char *pushes; /* [window][shards], of stride bytes */
    uint64_t stride;
    char *kept;         /* the part's values at the end of an epoch, */
    dti_told kept_told; /* and what there is to say of them */
    bool has_kept;
    uint64_t writes; /* to the store, when it was last served; others are the application's */
    dti_text settings;
    dti_welcome welcome;
    bool staleness_lr;
    uint64_t skipped_bits; /* of the newest 64 batches; see dti_resolved */
    float clips[DTI_RESOLVED_MAX];
    /* Clipping by a norm of which others have parts: its limit, 0: none; squares of all blocks, of
     * that batch; whose are there, by bits. */
    float limit;
    float *squares;
    uint64_t measured, brought;
    dt_server_info info;
    dt_result result; /* of what a message made happen */
    _Atomic int stop;
};

/* ---- answers */

static void dti_server_answer(dt_server *s, uint32_t who, dti_message m, const void *body) {
    dti_server_seat *seat = &s->seats[who];
    seat->answer = m;
    if (body)
        memcpy(seat->small, body, (size_t)m.bytes);
    s->calls->send(s->desk, who, &seat->answer);
}

static void dti_server_error(dt_server *s, uint32_t who, dt_result result, const char *format, ...)
    DTI_PRINTF(4, 5);
static void dti_server_error(dt_server *s, uint32_t who, dt_result result, const char *format,
                             ...) {
    char text[DTI_SAY_TEXT + 1];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    dti_server_answer(
        s, who,
        (dti_message){.kind = DTI_SAY_ERROR, .part = (uint32_t)result, .bytes = strlen(text)},
        text);
}

/* Of its own part. */
static float *dti_server_squares(const dt_server *s) {
    return s->squares + s->shape.begin / DTI_BLOCK;
}

static bool dti_server_read(void *user, uint32_t who, const dti_message *m, uint64_t at, void *to,
                            uint32_t bytes) {
    dt_server *s = user;
    const dt_store *store = s->trainer->par.replicas[0].store;
    const bool kept = m->kind == DTI_SAY_VALUES && m->part == DTI_NEWEST_EPOCH;
    if (kept && (!s->has_kept || m->number != s->kept_told.resolved.version))
        return false; /* they are others by now: let it ask again */
    if (m->kind == DTI_SAY_VALUES && !kept)
        return !store->device->backend->memory_read(
            store->memories[DTI_ARENA_PARAM], dti_arena_bytes(s->shape.begin) + at, to, bytes);
    if (m->kind == DTI_SAY_SQUARES && m->number != s->measured)
        return false;
    const char *from = kept                          ? s->kept
                       : m->kind == DTI_SAY_SQUARES  ? (const char *)dti_server_squares(s)
                       : m->kind == DTI_SAY_SETTINGS ? s->settings.data
                                                     : s->seats[who].small;
    memcpy(to, from + at, bytes);
    return true;
}

static dti_resolved dti_server_resolved(const dt_server *s) {
    dti_resolved r = {.version = s->tickets.base - 1, .skipped = s->skipped_bits};
    memcpy(r.clips, s->clips, sizeof r.clips);
    return r;
}

static uint64_t dti_server_steps(const dt_server *s) {
    return s->trainer->par.replicas[0].store->steps;
}

static void dti_server_welcome(dt_server *s, uint32_t who) {
    s->welcome.version = s->tickets.base - 1;
    s->welcome.skipped = s->skipped_bits;
    memcpy(s->welcome.clips, s->clips, sizeof s->welcome.clips);
    s->welcome.epoch = s->trainer->epoch;
    s->welcome.steps = dti_server_steps(s);
    dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_WELCOME, .bytes = sizeof s->welcome},
                      &s->welcome);
}

/* ---- tickets */

/* A worker that hears nothing for long takes the server for dead. */
static void dti_server_wait(dt_server *s, uint32_t who) {
    dti_server_seat *seat = &s->seats[who];
    if (dti_now_ns() - seat->since < 1000000u * (uint64_t)seat->wait_ms)
        return;
    seat->asks = false;
    dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_WAIT}, NULL);
}

/* The batch at the base is complete, and nobody has brought the others' squares yet: whoever asks
 * is to, so it does not matter who dies. */
static bool dti_server_lacks(const dt_server *s) {
    const dti_tickets *t = &s->tickets;
    return s->limit > 0.0f && dti_tickets_complete(t) && !dti_tickets_batch(t, t->base)->faulty &&
           (s->measured != t->base || s->brought != UINT64_MAX >> (64 - s->welcome.servers));
}

/* Gives a worker what it waits for, if there is some. */
static void dti_server_serve(dt_server *s, uint32_t who) {
    dti_server_seat *seat = &s->seats[who];
    dti_tickets *t = &s->tickets;
    dti_message m = {.kind = DTI_SAY_TICKET, .bytes = sizeof(dti_told)};
    dti_told told = {.resolved = dti_server_resolved(s), .steps = dti_server_steps(s)};
    if (dti_server_lacks(s)) {
        seat->asks = false;
        m.kind = DTI_SAY_BRING;
        m.number = t->base;
        dti_server_answer(s, who, m, &told);
        return;
    }
    const dti_ticket_answer answer =
        dti_tickets_take(t, who, seat->epoch, told.steps, dti_now_ns(), &m.number, &m.part);
    if (answer == DTI_TICKET_WAIT) {
        dti_server_wait(s, who);
        return;
    }
    seat->asks = false;
    if (answer == DTI_TICKET_ENDED) {
        m.kind = DTI_SAY_ENDED;
        m.part = s->has_kept ? DTI_NEWEST_EPOCH : DTI_NEWEST_NOW;
        told.epoch = s->trainer->epoch;
        told = s->has_kept ? s->kept_told : told;
    } else {
        seat->given = m.number;
        seat->given_shard = m.part;
        told.epoch = dti_tickets_epoch(t, m.number);
        told.index = (m.number - 1) % t->batches;
        told.step = dti_tickets_batch(t, m.number)->step;
    }
    dti_server_answer(s, who, m, &told);
}

static void dti_server_ask(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    dti_server_seat *seat = &s->seats[who];
    dti_request ask;
    if (m->bytes != sizeof ask || s->welcome.place) {
        dti_server_error(s, who, DT_ERROR_CORRUPT, "a question for a ticket that makes no sense");
        return;
    }
    memcpy(&ask, body, sizeof ask);
    if (ask.mark != dti_worker_mark(s->trainer)) {
        dti_server_error(s, who, DT_ERROR_INVALID,
                         "other coefficients of losses, or other values of shared inputs, than the "
                         "server's trainer has: set and write the same on both");
        return;
    }
    seat->asks = true;
    seat->since = dti_now_ns();
    seat->wait_ms = DTI_MIN(DTI_MAX(m->part, 10u), 1000u);
    seat->epoch = ask.epoch;
    dti_server_serve(s, who);
}

/* ---- batches */

static uint32_t dti_server_rows(const dt_server *s, uint64_t serial) {
    const dti_parallel_desc *d = &s->trainer->par.desc;
    return serial % s->tickets.batches == 0 && d->tail ? d->tail : d->batch;
}

/* The rate of a step whose gradients are old. */
static double dti_server_lr(const dt_server *s, const dt_step_desc *step, uint64_t staleness) {
    const dt_optim_desc optim = dti_optim_resolved(&s->trainer->par.desc.optim);
    if (!s->staleness_lr || !staleness)
        return step->lr;
    const double lr = dti_optim_lr_at(&optim, step->lr, step->step) / (double)(1 + staleness);
    return lr == 0.0 ? (double)DT_ZERO : lr;
}

static char *dti_server_batch(const dt_server *s, uint64_t serial) {
    return s->pushes + serial % s->tickets.window * s->tickets.shards * s->stride;
}

/* Of its own part, in the batch at the base, which is complete. */
static void dti_server_measure(dt_server *s) {
    const uint64_t serial = s->tickets.base;
    if (s->measured == serial)
        return;
    dti_push_measure(&s->trainer->par, &s->shape, dti_server_batch(s, serial), s->stride,
                     dti_server_rows(s, serial), dti_server_squares(s));
    s->measured = serial;
    s->brought = 1;
}

static dt_result dti_server_apply(dt_server *s, uint64_t serial, float clip,
                                  dti_parallel_result *out) {
    dt_trainer *t = s->trainer;
    const dti_batch_open *batch = dti_tickets_batch(&s->tickets, serial);
    const uint64_t staleness = serial - 1 - DTI_MIN(batch->oldest, serial - 1);
    dt_step_desc step = {.seed = t->desc.seed,
                         .step = dti_server_steps(s) + 1,
                         .lr = dti_trainer_lr(t, dti_trainer_number(t)),
                         .coefficients = t->coefficients};
    dt_result result = dti_trainer_look(t);
    if (result)
        return result;
    step.lr = dti_server_lr(s, &step, staleness);
    s->info.stalest = DTI_MAX(s->info.stalest, staleness);
    return dti_push_apply(&t->par, &s->shape, dti_server_batch(s, serial), s->stride,
                          dti_server_rows(s, serial), clip, &step, out);
}

/* What an epoch ends with is kept, for workers that are told so when others are further. */
static dt_result dti_server_keep(dt_server *s) {
    const dt_store *store = s->trainer->par.replicas[0].store;
    const uint64_t bytes = dti_arena_bytes(s->shape.end - s->shape.begin);
    const dt_result result =
        bytes ? store->device->backend->memory_read(store->memories[DTI_ARENA_PARAM],
                                                    dti_arena_bytes(s->shape.begin), s->kept, bytes)
              : DT_OK;
    s->kept_told = (dti_told){.resolved = dti_server_resolved(s),
                              .epoch = s->trainer->epoch,
                              .steps = dti_server_steps(s)};
    s->has_kept = !result;
    return result;
}

/* The batch at the base is complete. What is not finite is skipped, as a step of ranks is. */
static dt_result dti_server_resolve(dt_server *s, float clip) {
    dt_trainer *t = s->trainer;
    const uint64_t serial = s->tickets.base;
    dti_parallel_result out = {0};
    dt_result result = DT_OK;
    bool skipped = dti_tickets_batch(&s->tickets, serial)->faulty;
    if (!skipped) {
        result = dti_server_apply(s, serial, clip, &out);
        skipped = out.skipped;
    }
    if (result && !skipped)
        return result;
    s->info.skipped += skipped;
    s->skipped_bits = s->skipped_bits << 1 | skipped;
    memmove(s->clips + 1, s->clips, sizeof s->clips - sizeof *s->clips);
    s->clips[0] = clip;
    for (uint32_t i = 0; i < s->count && s->limit > 0.0f; i++) { /* those are of this batch */
        if (s->seats[i].brings)
            s->calls->drop(s->desk, i);
        s->seats[i].brings = false;
    }
    dti_trainer_move_on(t, serial % s->tickets.batches == 0);
    dti_tickets_resolve(&s->tickets);
    const dt_result kept = t->index == 0 ? dti_server_keep(s) : DT_OK;
    if (skipped || kept)
        return kept;
    s->info.loss = 0.0;
    for (int i = 0; i < DT_MAX_TERMS; i++)
        s->info.loss += out.loss_weight[i] > 0.0
                            ? t->coefficients[i] * out.loss_sum[i] / out.loss_weight[i]
                            : 0.0;
    t->par.asked = atomic_exchange(&t->wanted, 0) != 0;
    return dti_trainer_checkpoints(t);
}

static void dti_server_leave(dt_server *s, uint32_t who);

/* Who has no place has heard it by now. */
static void dti_server_show_out(dt_server *s, uint32_t who) {
    if (dti_now_ns() - s->seats[who].since < DTI_SERVER_SURPLUS_NS)
        return;
    s->calls->close(s->desk, who, "there is no place");
    dti_server_leave(s, who);
}

/* By what the gradient of the batch at the base is multiplied, when all squares are there. What is
 * not finite in any part is skipped by all. */
static float dti_server_clip(const dt_server *s) {
    dti_batch_open *batch = dti_tickets_batch(&s->tickets, s->tickets.base);
    if (!(s->limit > 0.0f) || batch->faulty)
        return 1.0f;
    const float clip = dti_push_clip(s->squares, dti_push_blocks(0, s->welcome.elements), s->limit);
    batch->faulty = !dti_finite_f32(clip);
    return batch->faulty ? 1.0f : clip;
}

/* All that is complete; then those who wait may have something to do. Servers other than the first
 * are told. */
static void dti_server_go_on(dt_server *s) {
    while (!s->result && !s->welcome.place && dti_tickets_complete(&s->tickets)) {
        const bool clips =
            s->limit > 0.0f && !dti_tickets_batch(&s->tickets, s->tickets.base)->faulty;
        if (clips)
            dti_server_measure(s);
        if (dti_server_lacks(s))
            break;
        s->result = dti_server_resolve(s, dti_server_clip(s));
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->seats[i].open && s->seats[i].asks)
            dti_server_serve(s, i);
        if (s->seats[i].open && s->seats[i].surplus)
            dti_server_show_out(s, i);
    }
}

/* Where the part of a server begins; of the last one and one more: where it ends. */
static uint64_t dti_server_begin(const dt_server *s, uint32_t place) {
    const dti_parallel *par = &s->trainer->par;
    const dt_optim_desc optim = dti_optim_resolved(&par->desc.optim);
    return dti_owners_begin(&par->replicas[0].store->layout, place, s->welcome.servers,
                            dti_optim_is_whole(dti_optim_row_of(optim.kind)));
}

/* ---- pushes */

static char *dti_server_place(const dt_server *s, uint64_t serial, uint32_t shard) {
    return s->pushes + (serial % s->tickets.window * s->tickets.shards + shard) * s->stride;
}

static void dti_server_pushed(dt_server *s, uint32_t who, dti_push_answer answer) {
    s->info.pushes += answer == DTI_PUSH_TAKEN;
    s->info.refused += answer != DTI_PUSH_TAKEN;
    dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_PUSHED, .part = (uint32_t)answer},
                      NULL);
}

/* A push that is still coming there counts no more: its ticket is somebody else's, or its batch has
 * been skipped, or resolved. It comes to its end and changes nothing. */
static void dti_server_clear(dt_server *s, const char *place) {
    for (uint32_t i = 0; i < s->count; i++) {
        dti_server_seat *seat = &s->seats[i];
        if (seat->place != place)
            continue;
        s->calls->drop(s->desk, i);
        seat->place = NULL;
        seat->push = DTI_PUSH_VOID;
    }
}

/* The first server knows who computes what: another's push is none. A worker whose connection broke
 * has its ticket still; one that had it before the server was loaded, or made anew, has not. */
static bool dti_server_gave(const dt_server *s, uint32_t who, const dti_message *m) {
    const dti_server_seat *seat = &s->seats[who];
    return s->welcome.place || (seat->given == m->number && seat->given_shard == m->part);
}

/* Where squares of another server go. NULL: they are there, or are not those that are wanted. */
static void *dti_server_room_of_squares(dt_server *s, dti_server_seat *seat, const dti_message *m) {
    const uint32_t servers = s->welcome.servers;
    if (!(s->limit > 0.0f) || s->welcome.place || seat->surplus || !m->part || m->part >= servers ||
        m->number != s->measured || m->number != s->tickets.base || s->brought >> m->part & 1)
        return NULL;
    const uint64_t begin = dti_server_begin(s, m->part), end = dti_server_begin(s, m->part + 1);
    seat->brings = m->bytes == dti_push_blocks(begin, end) * sizeof(float);
    return seat->brings ? s->squares + begin / DTI_BLOCK : NULL;
}

/* Where a push goes. NULL: it does not count, or is not one. */
static void *dti_server_room(void *user, uint32_t who, const dti_message *m) {
    dt_server *s = user;
    dti_server_seat *seat = &s->seats[who];
    seat->place = NULL;
    seat->brings = false;
    if (m->kind == DTI_SAY_BROUGHT)
        return dti_server_room_of_squares(s, seat, m);
    seat->push = DTI_PUSH_VOID;
    if (m->kind != DTI_SAY_PUSH || m->bytes != s->shape.bytes || seat->surplus ||
        !dti_server_gave(s, who, m))
        return NULL;
    seat->push = dti_tickets_push(&s->tickets, who, m->number, m->part, dti_now_ns());
    if (seat->push != DTI_PUSH_TAKEN)
        return NULL;
    char *place = dti_server_place(s, m->number, m->part);
    dti_server_clear(s, place);
    return seat->place = place;
}

/* It was computed with values that a ticket of this batch comes with. Newer ones than there are
 * were those of a life before a checkpoint: they do not count, and nobody is to blame. */
static bool dti_server_knows(dt_server *s, uint32_t who, const dti_message *m, uint64_t version) {
    const uint64_t oldest = dti_tickets_oldest(&s->tickets, m->number);
    if (version >= oldest && version < s->tickets.base)
        return true;
    dti_tickets_drop(&s->tickets, who, m->number, m->part);
    if (version >= oldest) {
        dti_server_pushed(s, who, DTI_PUSH_VOID);
        return false;
    }
    s->info.refused++;
    dti_server_error(
        s, who, DT_ERROR_INVALID,
        "a push for batch %llu that was computed with the values of version %llu; with "
        "a staleness of %u it is %llu at least: ask for a ticket, and pull, before each",
        (unsigned long long)m->number, (unsigned long long)version, s->tickets.window - 1,
        (unsigned long long)oldest);
    return false;
}

/* A push has come whole. */
static void dti_server_push(dt_server *s, uint32_t who, const dti_message *m) {
    dti_server_seat *seat = &s->seats[who];
    if (m->bytes != s->shape.bytes) {
        dti_server_error(s, who, DT_ERROR_INVALID, "a push of %llu bytes; here it has %llu",
                         (unsigned long long)m->bytes, (unsigned long long)s->shape.bytes);
        return;
    }
    const char *push = seat->place;
    seat->place = NULL;
    if (!push) {
        dti_server_pushed(s, who, seat->push);
        return;
    }
    const uint64_t version = ((const dti_push_head *)(const void *)push)->version;
    if (!dti_server_knows(s, who, m, version)) {
        dti_server_go_on(s);
        return;
    }
    if (!dti_push_is_finite(&s->shape, push)) {
        dti_tickets_fault(&s->tickets, who, m->number, m->part);
        dti_server_error(s, who, DT_ERROR_NUMERIC,
                         "a push that is not finite: its batch is skipped");
        s->info.refused++;
    } else
        dti_server_pushed(s, who,
                          dti_tickets_pushed(&s->tickets, who, m->number, m->part, version)
                              ? DTI_PUSH_TAKEN
                              : DTI_PUSH_VOID);
    dti_server_go_on(s);
}

static void dti_server_fault(dt_server *s, uint32_t who, const dti_message *m, const char *text) {
    const dti_push_answer answer = dti_server_gave(s, who, m)
                                       ? dti_tickets_fault(&s->tickets, who, m->number, m->part)
                                       : DTI_PUSH_VOID;
    char plain[DTI_SAY_TEXT + 1];
    dti_say_text(plain, text, m->bytes);
    if (answer == DTI_PUSH_TAKEN)
        dti_log(s->base, DT_LOG_WARNING, "batch %llu is skipped: a worker says: %s",
                (unsigned long long)m->number, plain);
    dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_PUSHED, .part = (uint32_t)answer},
                      NULL);
    dti_server_go_on(s);
}

/* ---- the desk's calls */

/* The first server decides when a batch is over, and workers tell the others: those have all of its
 * pushes then, which come to the first one last. */
static bool dti_server_follow(dt_server *s, uint32_t who, const dti_resolved *told) {
    while (!s->result && s->tickets.base <= told->version) {
        const uint64_t serial = s->tickets.base, age = told->version - serial;
        dti_batch_open *batch = dti_tickets_batch(&s->tickets, serial);
        const bool skipped = age < 64 && (told->skipped >> age & 1);
        const uint64_t before = s->info.skipped;
        const float clip = age < 64 ? told->clips[age] : DTI_CLIP_UNKNOWN;
        const bool known = clip >= 0.0f && clip <= 1.0f;
        if (!known && clip != DTI_CLIP_UNKNOWN) {
            dti_server_error(s, who, DT_ERROR_CORRUPT, "a clipping that makes no sense");
            return false;
        }
        if (age >= 64 || (!skipped && !(known && dti_tickets_complete(&s->tickets)))) {
            dti_server_error(
                s, who, DT_ERROR_INVALID,
                "it is at batch %llu, and server 0 at %llu: begin all servers again from "
                "checkpoints of one step",
                (unsigned long long)serial, (unsigned long long)told->version + 1);
            return false;
        }
        batch->faulty = skipped;
        s->result = dti_server_resolve(s, skipped ? 1.0f : clip);
        if (!skipped && s->info.skipped != before)
            s->result = dti_fail(s->base, DT_ERROR_INVALID,
                                 "batch %llu: the update is not finite here, and the other servers "
                                 "have made it: begin all again from checkpoints of one step",
                                 (unsigned long long)serial);
    }
    if (s->result)
        dti_server_error(s, who, s->result, "%.400s", s->base->error);
    return !s->result;
}

static void dti_server_pull(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    dti_resolved told;
    if (m->bytes != sizeof told) {
        dti_server_error(s, who, DT_ERROR_CORRUPT, "a question for values that makes no sense");
        return;
    }
    memcpy(&told, body, sizeof told);
    if (s->welcome.place && !dti_server_follow(s, who, &told))
        return;
    const bool kept =
        m->part == DTI_NEWEST_EPOCH && s->has_kept && told.version == s->kept_told.resolved.version;
    dti_server_answer(s, who,
                      (dti_message){.kind = DTI_SAY_VALUES,
                                    .part = kept ? DTI_NEWEST_EPOCH : DTI_NEWEST_NOW,
                                    .number = kept ? told.version : s->tickets.base - 1,
                                    .bytes = dti_arena_bytes(s->shape.end - s->shape.begin)},
                      NULL);
}

/* What the first server lacks. A batch that is over by now needs it no more. */
static void dti_server_squares_for(dt_server *s, uint32_t who, const dti_message *m,
                                   const void *body) {
    dti_resolved told;
    if (m->bytes != sizeof told || !s->welcome.place || !(s->limit > 0.0f)) {
        dti_server_error(s, who, DT_ERROR_CORRUPT, "a question for squares that makes no sense");
        return;
    }
    memcpy(&told, body, sizeof told);
    if (!dti_server_follow(s, who, &told))
        return;
    if (m->number < s->tickets.base) {
        dti_server_answer(
            s, who, (dti_message){.kind = DTI_SAY_PUSHED, .part = (uint32_t)DTI_PUSH_VOID}, NULL);
        return;
    }
    if (m->number > s->tickets.base || !dti_tickets_complete(&s->tickets)) {
        dti_server_error(s, who, DT_ERROR_INVALID,
                         "it lacks pushes of batch %llu, which server 0 has: begin all servers "
                         "again from checkpoints of one step",
                         (unsigned long long)m->number);
        return;
    }
    dti_server_measure(s);
    const uint64_t bytes = dti_push_blocks(s->shape.begin, s->shape.end) * sizeof(float);
    const bool small = bytes <= DTI_MESSAGE_SMALL;
    dti_server_answer(s, who,
                      (dti_message){.kind = DTI_SAY_SQUARES, .number = m->number, .bytes = bytes},
                      small ? dti_server_squares(s) : NULL);
}

static void dti_server_brought(dt_server *s, uint32_t who, const dti_message *m) {
    dti_server_seat *seat = &s->seats[who];
    const bool fresh = seat->brings;
    s->brought |= (uint64_t)fresh << (fresh ? m->part : 0);
    seat->brings = false;
    dti_server_answer(s, who,
                      (dti_message){.kind = DTI_SAY_PUSHED,
                                    .part = (uint32_t)(fresh ? DTI_PUSH_TAKEN : DTI_PUSH_VOID)},
                      NULL);
    dti_server_go_on(s);
}

static void dti_server_came(void *user, uint32_t who, const dti_message *m, const void *body) {
    dt_server *s = user;
    void *room;
    if (s->seats[who].surplus) {
        dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_FULL, .number = s->places}, NULL);
        return;
    }
    switch (m->kind) {
    case DTI_SAY_HELLO: dti_server_welcome(s, who); return;
    case DTI_SAY_SETTINGS:
        dti_server_answer(s, who,
                          (dti_message){.kind = DTI_SAY_SETTINGS, .bytes = s->settings.size}, NULL);
        return;
    case DTI_SAY_ASK: dti_server_ask(s, who, m, body); return;
    case DTI_SAY_PULL: dti_server_pull(s, who, m, body); return;
    case DTI_SAY_PUSH:
        if (body && (room = dti_server_room(s, who, m)) != NULL)
            memcpy(room, body, (size_t)m->bytes); /* of a tiny model: nobody asked where it goes */
        dti_server_push(s, who, m);
        return;
    case DTI_SAY_FAULT: dti_server_fault(s, who, m, body); return;
    case DTI_SAY_MEASURE: dti_server_squares_for(s, who, m, body); return;
    case DTI_SAY_BROUGHT:
        if ((body || !m->bytes) && (room = dti_server_room(s, who, m)) != NULL && m->bytes)
            memcpy(room, body, (size_t)m->bytes);
        dti_server_brought(s, who, m);
        return;
    default: dti_server_error(s, who, DT_ERROR_CORRUPT, "message %u is unknown", m->kind); return;
    }
}

static void dti_server_leave(dt_server *s, uint32_t who) {
    dti_server_seat *seat = &s->seats[who];
    if (!seat->open)
        return;
    dti_tickets_lost(&s->tickets, who);
    seat->open = seat->asks = false;
    seat->place = NULL;
    seat->brings = false;
    s->info.workers -= !seat->surplus;
}

/* A process that is back has no use for its old connection, which may look alive for long. */
static void dti_server_opened(void *user, uint32_t who, const uint8_t instance[16]) {
    dt_server *s = user;
    dti_server_seat fresh = {.open = true, .since = dti_now_ns()};
    memcpy(fresh.instance, instance, sizeof fresh.instance);
    for (uint32_t i = 0; i < s->count; i++) {
        dti_server_seat *seat = &s->seats[i];
        if (memcmp(seat->instance, instance, sizeof seat->instance) != 0)
            continue;
        if (seat->open)
            s->calls->close(s->desk, i, "its worker is back");
        dti_server_leave(s, i);
        fresh.given = seat->given ? seat->given : fresh.given;
        fresh.given_shard = seat->given ? seat->given_shard : fresh.given_shard;
        seat->given = 0;
    }
    fresh.surplus = s->info.workers >= (int)s->places;
    s->seats[who] = fresh;
    s->info.workers += !fresh.surplus;
    s->info.joined += !fresh.surplus;
}

static void dti_server_closed(void *user, uint32_t who, bool was_open, bool refused,
                              const char *why) {
    dt_server *s = user;
    (void)was_open, (void)refused;
    dti_log(s->base, DT_LOG_INFO, "a worker has gone: %s", why);
    dti_server_leave(s, who);
    dti_server_go_on(s);
}

/* ---- its life */

static dt_result dti_server_check(dti_base *base, const dt_server_desc *d) {
    const dt_trainer_desc *t = &d->trainer;
    const bool squad = t->tensor > 1 || t->tensor_slices > 1;
    if (t->comm || t->mode || t->pipeline > 1 || squad || t->balance || t->shard_state)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "a server's trainer goes with no .comm, .mode, .pipeline, .tensor, "
                        ".balance or .shard_state");
    if (t->devices && strcmp(t->devices, "cpu") != 0)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "a server is on \"cpu\"; .trainer.devices is \"%s\"", t->devices);
    if (d->staleness < 0 || d->staleness > 62 || d->workers_max < 0 || d->ticket_ms < -1)
        return dti_fail(base, DT_ERROR_INVALID,
                        "staleness %d, workers_max %d, ticket_ms %d: from 0 to 62, from 0, from -1",
                        d->staleness, d->workers_max, d->ticket_ms);
    if (d->workers_max > 65535)
        return dti_fail(base, DT_ERROR_INVALID, "%d workers; at most 65535", d->workers_max);
    if (d->servers < 0 || d->servers > DTI_SERVERS_MAX || d->place < 0 ||
        d->place >= DTI_MAX(d->servers, 1))
        return dti_fail(base, DT_ERROR_INVALID, "place %d of %d servers: from 0 on; at most %d",
                        d->place, d->servers, DTI_SERVERS_MAX);
    return DT_OK;
}

static dt_result dti_server_trainer_make(dt_server *s, dt_graph *graph, const dt_server_desc *d) {
    dt_trainer_desc desc = d->trainer;
    dt_optim_desc optim = desc.optim ? *desc.optim : (dt_optim_desc){0};
    const bool fits = dti_fits_f32(optim.clip_norm); /* else it is refused as any trainer's */
    const double limit = d->servers > 1 && fits ? optim.clip_norm : 0.0;
    if (limit > 0.0) { /* the norm is of all servers' parts: clips come with what they are told */
        optim.clip_norm = 0.0;
        desc.optim = &optim;
    }
    desc.devices = "cpu";
    desc.shards = desc.shards ? desc.shards : 1;
    dt_result result = dt_trainer_create(graph, &desc, &s->trainer);
    if (result)
        return result;
    s->trainer->serves = true;
    s->limit = limit > 0.0 ? (float)limit : 0.0f;
    result = dti_push_check(&s->trainer->par);
    if (result)
        return result;
    if (desc.shards > DTI_OPERANDS_MAX)
        return dti_fail(s->base, DT_ERROR_INVALID, "a server adds up at most %d shards, not %d",
                        DTI_OPERANDS_MAX, desc.shards);
    s->settings = dti_text_open(s->base);
    dt_optim_desc *told = &s->trainer->par.desc.optim; /* as workers have it */
    told->clip_norm = limit > 0.0 ? limit : told->clip_norm;
    dti_describe_settings(s->trainer, &s->settings);
    told->clip_norm = limit > 0.0 ? 0.0 : told->clip_norm;
    return s->settings.ok ? DT_OK : DT_ERROR_MEMORY;
}

/* Shards that have rows in the last batch of an epoch. */
static uint32_t dti_server_tail_shards(const dti_parallel *par) {
    uint32_t n = par->job.shards;
    while (par->desc.tail && dti_partition_row(&par->job, n - 1, par->desc.tail) == par->desc.tail)
        n--;
    return n;
}

/* What this server answers for. It has memory for all, and updates what is not its part by nothing,
 * which nobody asks for. */
static void dti_server_part(dt_server *s) {
    const dti_parallel *par = &s->trainer->par;
    const uint32_t place = s->welcome.place;
    s->shape = dti_push_shape_of(par, dti_server_begin(s, place), dti_server_begin(s, place + 1));
    memset(par->replicas[0].gradients, 0, (size_t)par->elements * sizeof(float));
}

static dt_result dti_server_memory(dt_server *s, const dt_server_desc *d) {
    const dti_parallel *par = &s->trainer->par;
    dti_tickets *t = &s->tickets;
    t->shards = par->job.shards;
    t->window = (uint32_t)d->staleness + 1;
    t->tail_shards = dti_server_tail_shards(par);
    t->batches = dti_loader_epoch_batches(s->trainer->loader);
    t->limit_ns = d->ticket_ms < 0 ? 0 : 1000000u * (uint64_t)(d->ticket_ms ? d->ticket_ms : 60000);
    s->welcome.servers = (uint32_t)DTI_MAX(d->servers, 1);
    s->welcome.place = (uint32_t)d->place;
    dti_server_part(s);
    s->stride = (s->shape.bytes + 63) / 64 * 64;
    s->places = d->workers_max ? (uint32_t)d->workers_max : 64;
    s->count = s->places + DTI_SERVER_SURPLUS;
    s->kept =
        dti_alloc(s->base, (size_t)DTI_MAX(dti_arena_bytes(s->shape.end - s->shape.begin), 1));
    s->squares =
        dti_alloc_array(s->base, (size_t)dti_push_blocks(0, par->elements) + 1, sizeof *s->squares);
    s->seats = dti_alloc_array(s->base, s->count, sizeof *s->seats);
    t->open = dti_alloc_array(s->base, t->window, sizeof *t->open);
    t->tickets = dti_alloc_array(s->base, (size_t)t->window * t->shards, sizeof *t->tickets);
    s->pushes = dti_alloc_array(s->base, (size_t)t->window * t->shards, (size_t)s->stride);
    s->welcome.shards = t->shards;
    s->welcome.staleness = (uint32_t)d->staleness;
    s->welcome.elements = par->elements;
    s->welcome.begin = s->shape.begin;
    s->welcome.end = s->shape.end;
    s->welcome.push_bytes = s->shape.bytes;
    s->welcome.settings_bytes = s->settings.size;
    return s->squares && s->seats && s->kept && t->open && t->tickets && s->pushes
               ? DT_OK
               : DT_ERROR_MEMORY;
}

static dt_result dti_server_hub(dt_server *s, const dt_server_desc *d) {
    const dti_desk_desc desk = {.by = d->by,
                                .connections = s->count,
                                .place = (uint32_t)d->place,
                                .listen = d->listen ? d->listen : "127.0.0.1:0",
                                .events = {.user = s,
                                           .opened = dti_server_opened,
                                           .room = dti_server_room,
                                           .came = dti_server_came,
                                           .read = dti_server_read,
                                           .closed = dti_server_closed}};
    s->calls = dti_desk_calls_of();
    if (!s->calls)
        return dti_fail(s->base, DT_ERROR_UNSUPPORTED,
                        "a server: this dtrain was compiled without connections");
    return s->calls->create(s->base, &desk, &s->desk);
}

_Static_assert(offsetof(dt_server, owned) == 0, "dti_server_end casts");

static void dti_server_end(dti_owned *self) {
    dt_server_destroy((dt_server *)(void *)self);
}

DT_API dt_result dt_server_create(dt_graph *graph, const dt_server_desc *desc, dt_server **out) {
    if (out)
        *out = NULL;
    DTI_NEED(NULL, graph);
    DTI_NEED(graph->base, desc);
    DTI_NEED(graph->base, out);
    dt_result result = dti_server_check(graph->base, desc);
    dt_server *s = result ? NULL : dti_alloc(graph->base, sizeof *s);
    if (!s)
        return result ? result : DT_ERROR_MEMORY;
    s->base = graph->base;
    s->graph = graph;
    s->staleness_lr = desc->staleness_lr;
    result = dti_server_trainer_make(s, graph, desc);
    if (!result)
        result = dti_server_memory(s, desc);
    if (!result)
        result = dti_server_hub(s, desc);
    if (result) {
        dt_server_destroy(s);
        return result;
    }
    dti_own(&graph->stores, &s->owned, dti_server_end); /* in front of its trainer: it goes first */
    *out = s;
    return DT_OK;
}

DT_API void dt_server_destroy(dt_server *s) {
    if (!s)
        return;
    if (s->calls)
        s->calls->destroy(s->desk);
    dti_disown(&s->graph->stores, &s->owned);
    dt_trainer_destroy(s->trainer);
    dti_text_free(&s->settings);
    void *all[] = {s->squares, s->seats, s->kept, s->tickets.open, s->tickets.tickets, s->pushes};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_free(s->base, all[i]);
    dti_free(s->base, s);
}

DT_API dt_trainer *dt_server_trainer(dt_server *s) {
    return s ? s->trainer : NULL;
}

static uint64_t dti_server_writes(const dt_server *s) {
    return s->trainer->par.replicas[0].store->writes;
}

/* Of batches before a place that it was loaded at it knows nothing. */
static void dti_server_forget(dt_server *s) {
    s->skipped_bits = 0;
    for (uint32_t i = 0; i < DTI_RESOLVED_MAX; i++)
        s->clips[i] = s->limit > 0.0f ? DTI_CLIP_UNKNOWN : 1.0f;
}

/* Where the trainer is. Another place than before, or other values, mean that it was loaded
 * meanwhile: pushes that have come, and those under way, are of values that are no more. Workers
 * find their connections broken, come back, and pull. */
static dt_result dti_server_position(dt_server *s) {
    const dt_trainer *t = s->trainer;
    const uint64_t base = t->epoch * s->tickets.batches + t->index + 1;
    if (base == s->tickets.base && s->writes == dti_server_writes(s))
        return DT_OK;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->seats[i].open)
            s->calls->close(s->desk, i, "other values were loaded");
        dti_server_leave(s, i);
        s->seats[i].given = 0;
    }
    if (base != s->tickets.base)
        dti_server_forget(s);
    dti_tickets_start(&s->tickets, base);
    s->measured = 0;
    s->has_kept = false;
    return t->index == 0 ? dti_server_keep(s) : DT_OK;
}

/* Until the next worker is to hear that there is nothing for it yet, or may be given an old
 * ticket. */
static uint64_t dti_server_pause_ms(const dt_server *s) {
    const uint64_t now = dti_now_ns();
    uint64_t pause = 1000;
    for (uint32_t i = 0; i < s->count; i++) {
        const dti_server_seat *seat = &s->seats[i];
        const uint64_t due = seat->since + 1000000u * (uint64_t)seat->wait_ms;
        if (seat->open && seat->asks)
            pause = DTI_MIN(pause, due > now ? (due - now) / 1000000u + 1 : 0);
    }
    return pause;
}

DT_API dt_result dt_server_run(dt_server *s, int timeout_ms) {
    DTI_NEED(NULL, s);
    dt_result result = dti_check_forked(s->base);
    if (result)
        return result;
    if (timeout_ms < -1)
        return dti_fail(s->base, DT_ERROR_INVALID, "a timeout of %d ms; -1 is none", timeout_ms);
    if (s->trainer->par.lost)
        return dti_trainer_lost(s->trainer);
    const uint64_t end = dti_now_ns() + 1000000u * (uint64_t)DTI_MAX(timeout_ms, 0);
    uint64_t now = 0;
    s->result = dti_server_position(s);
    dti_server_go_on(s);
    while (!s->result) {
        const uint64_t left = timeout_ms < 0 || now == 0 ? UINT64_MAX : (end - now) / 1000000u + 1;
        const uint64_t most = timeout_ms < 0 ? 1000 : (uint64_t)DTI_MIN(timeout_ms, 1000);
        s->calls->step(s->desk, (int)DTI_MIN(DTI_MIN(left, most), dti_server_pause_ms(s)));
        dti_server_go_on(s); /* tickets grow old without a message */
        now = dti_now_ns();
        if (atomic_load(&s->stop) || (timeout_ms >= 0 && now >= end))
            break;
    }
    s->writes = dti_server_writes(s);
    atomic_store(&s->stop, 0);
    return s->result;
}

DT_API void dt_server_stop(dt_server *s) {
    if (!s)
        return;
    atomic_store(&s->stop, 1);
    s->calls->wake(s->desk);
}

DT_API void dt_server_get_info(const dt_server *s, dt_server_info *info) {
    if (!info)
        return;
    *info = (dt_server_info){0};
    if (!s)
        return;
    *info = s->info;
    info->port = s->calls->port(s->desk);
    info->step = dti_server_steps(s);
    info->epoch = s->trainer->epoch;
    info->again = s->tickets.again;
}
