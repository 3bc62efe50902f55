/* A parameter server: a trainer of one CPU replica whose steps others compute. Its tickets
 * (server/tickets.h) assign the work. Its message server (comm/message_server.h) receives pushes,
 * each to its own memory. The trainer's own commit applies the sum of a complete batch, as for a
 * step of ranks, and writes checkpoints. All of it happens in dt_server_run. This file owns
 * answers, tickets and the life of a batch. */

#define DTI_SERVER_SURPLUS 2 /* seats for workers that are only informed that there is no place */
#define DTI_SERVER_SURPLUS_NS 1000000000u

typedef struct dti_server_seat { /* a worker's connection */
    bool open, asks;             /* asks: it waits for a ticket */
    uint64_t epoch;              /* the epoch that it asks for a ticket of */
    uint64_t since;              /* when it asked, ns */
    uint32_t wait_ms;            /* it wants an answer within this time */
    bool surplus;                /* the server has all of its workers, and answers so */
    uint64_t given;              /* the serial of its newest ticket; 0 = no ticket yet */
    uint32_t given_batch_slice;  /* the batch slice of its newest ticket */
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
    const dti_message_server_calls *calls;
    dti_message_server *message_server;
    dti_server_seat *seats;
    uint32_t count, places; /* seats; of them for workers */
    dti_tickets tickets;
    dti_push_shape shape;
    char *pushes; /* [window][batch slices], of stride bytes */
    uint64_t stride;
    char *kept;         /* the part's values at the end of an epoch */
    dti_told kept_told; /* the answer for `kept` */
    bool has_kept;
    uint64_t writes; /* to the store, when it was last served; others are the application's */
    dti_text settings;
    dti_welcome welcome;
    bool staleness_lr;
    uint64_t skipped_bits; /* of the newest 64 batches; see dti_resolved */
    float clips[DTI_RESOLVED_MAX];
    /* Clipping by a norm over all servers. limit: 0 = no clipping. squares: of all blocks, of that
     * batch. brought: a bit for each server whose squares have arrived. */
    float limit;
    float *squares;
    uint64_t measured, brought;
    /* For several servers (serve_agree.c): */
    uint64_t generation;       /* that they agreed on; 0: they have to */
    uint64_t held, held_since; /* the attempt that holds it (0 = not held), and since when, ns */
    uint32_t holder;           /* the seat of that attempt */
    uint64_t top;              /* the newest step that it was at */
    uint64_t unread;           /* the oldest one whose checkpoint cannot be read */
    uint64_t saved, safe;      /* of its newest checkpoint; of the newest that all have */
    dt_server_info info;
    dt_result result; /* of what a message made happen */
    _Atomic int stop;
};

static void dti_server_leave(dt_server *s, uint32_t who);
static bool dti_server_has_agreed(const dt_server *s); /* serve_agree.c */
static void dti_server_look_saved(dt_server *s);
static void dti_server_is_safe(dt_server *s, uint64_t step);

/* ---- answers */

static void dti_server_answer(dt_server *s, uint32_t who, dti_message m, const void *body) {
    dti_server_seat *seat = &s->seats[who];
    seat->answer = m;
    if (body)
        memcpy(seat->small, body, (size_t)m.bytes);
    s->calls->send(s->message_server, who, &seat->answer);
}

/* An answer without a body. */
static void dti_server_say(dt_server *s, uint32_t who, uint16_t kind, uint16_t part) {
    dti_server_answer(s, who, (dti_message){.kind = kind, .part = part}, NULL);
}

DTI_PRINTF(4, 5)
static void dti_server_error(dt_server *s, uint32_t who, dt_result result, const char *format,
                             ...) {
    char text[DTI_SAY_TEXT + 1];
    DTI_FORMAT(text, format);
    dti_server_answer(
        s, who,
        (dti_message){.kind = DTI_SAY_ERROR, .part = (uint32_t)result, .bytes = strlen(text)},
        text);
}

/* The gradient of its own part. */
static float *dti_server_squares(const dt_server *s) {
    return s->squares + s->shape.begin / DTI_BLOCK;
}

static bool dti_server_read(void *user, uint32_t who, const dti_message *m, uint64_t at, void *to,
                            uint32_t bytes) {
    dt_server *s = user;
    const dt_store *store = s->trainer->par.replicas[0].store;
    const bool kept = m->kind == DTI_SAY_VALUES && m->part & DTI_NEWEST_EPOCH;
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
    dti_resolved r = {.version = s->tickets.base - 1,
                      .skipped = s->skipped_bits,
                      .saved = s->saved,
                      .safe = s->safe};
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
    s->welcome.generation = s->generation;
    dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_WELCOME, .bytes = sizeof s->welcome},
                      &s->welcome);
}

/* ---- tickets */

/* A worker without an answer for long regards the server as lost. */
static void dti_server_wait(dt_server *s, uint32_t who) {
    dti_server_seat *seat = &s->seats[who];
    if (dti_now_ns() - seat->since < 1000000u * (uint64_t)seat->wait_ms)
        return;
    seat->asks = false;
    dti_server_say(s, who, DTI_SAY_WAIT, 0);
}

/* The batch at the base is complete, and nobody has brought the other servers' sums of squares yet.
 * Each worker that asks is to bring them, so the death of a worker does no harm. */
static bool dti_server_lacks(const dt_server *s) {
    const dti_tickets *t = &s->tickets;
    return s->limit > 0.0f && dti_tickets_complete(t) && !dti_tickets_batch(t, t->base)->faulty &&
           (s->measured != t->base || s->brought != UINT64_MAX >> (64 - s->welcome.servers));
}

/* Gives a worker the ticket or answer that it waits for, if there is one. */
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
        seat->given_batch_slice = m.part;
        told.epoch = dti_tickets_epoch(t, m.number);
        told.index = (m.number - 1) % t->batches;
        told.step = dti_tickets_batch(t, m.number)->step;
    }
    dti_server_answer(s, who, m, &told);
}

static void dti_server_ask(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    dti_server_seat *seat = &s->seats[who];
    dti_request ask;
    memcpy(&ask, body, sizeof ask);
    if (ask.mark != dti_worker_mark(s->trainer)) {
        dti_server_error(s, who, DT_ERROR_INVALID,
                         "coefficients of losses or values of shared inputs differ from those of "
                         "the server's trainer; set the same on both");
        return;
    }
    if (ask.safe <= s->saved)
        dti_server_is_safe(s, ask.safe);
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
    const dt_optim_desc *optim = &s->trainer->optim;
    if (!s->staleness_lr || !staleness)
        return step->lr;
    const double lr = dti_optim_lr_at(optim, step->lr, step->step) / (double)(1 + staleness);
    return lr == 0.0 ? (double)DT_ZERO : lr;
}

static char *dti_server_batch(const dt_server *s, uint64_t serial) {
    return s->pushes + serial % s->tickets.window * s->tickets.batch_slices * s->stride;
}

/* The squares of its own part, in the complete batch at the base. */
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
    DTI_TRY(dti_trainer_look(t));
    step.lr = dti_server_lr(s, &step, staleness);
    s->info.max_staleness = DTI_MAX(s->info.max_staleness, staleness);
    return dti_push_apply(&t->par, &s->shape, dti_server_batch(s, serial), s->stride,
                          dti_server_rows(s, serial), clip, &step, out);
}

/* Keeps the end of an epoch, for workers that ask for it when others are further. */
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

/* The batch at the base is complete. A NaN or infinity skips it, as in a step of ranks. */
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
            s->calls->drop(s->message_server, i);
        s->seats[i].brings = false;
    }
    dti_trainer_move_on(t, serial % s->tickets.batches == 0);
    dti_tickets_resolve(&s->tickets);
    s->top = DTI_MAX(s->top, dti_server_steps(s));
    const dt_result kept = t->index == 0 ? dti_server_keep(s) : DT_OK;
    if (skipped || kept)
        return kept;
    s->info.loss = 0.0;
    for (int i = 0; i < DT_MAX_TERMS; i++)
        s->info.loss += out.terms[DT_MAX_TERMS + i] > 0.0
                            ? t->coefficients[i] * out.terms[i] / out.terms[DT_MAX_TERMS + i]
                            : 0.0;
    t->par.asked = atomic_exchange(&t->wanted, 0) != 0;
    const dt_result written = dti_trainer_checkpoints(t);
    dti_server_look_saved(s);
    return written;
}

/* A worker without a place has been informed by now. */
static void dti_server_show_out(dt_server *s, uint32_t who) {
    if (dti_now_ns() - s->seats[who].since < DTI_SERVER_SURPLUS_NS)
        return;
    s->calls->close(s->message_server, who, "the server has all of its workers (.max_workers)");
    dti_server_leave(s, who);
}

/* The factor of the gradient of the batch at the base, when all squares have arrived. A NaN or
 * infinity in any part skips the batch on all servers. */
static float dti_server_clip(const dt_server *s) {
    dti_batch_open *batch = dti_tickets_batch(&s->tickets, s->tickets.base);
    if (!(s->limit > 0.0f) || batch->faulty)
        return 1.0f;
    const float clip = dti_push_clip(s->squares, dti_push_blocks(0, s->welcome.elements), s->limit);
    batch->faulty = !dti_finite_f32(clip);
    return batch->faulty ? 1.0f : clip;
}

/* Resolves all complete batches; then waiting workers may get work. Servers other than the first
 * learn of resolved batches from workers. */
static void dti_server_go_on(dt_server *s) {
    while (!s->result && !s->welcome.place && dti_server_has_agreed(s) &&
           dti_tickets_complete(&s->tickets)) {
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
