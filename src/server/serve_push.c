/* What workers push and ask: the callbacks of a server's message server. */

/* ---- pushes */

static char *dti_server_place(const dt_server *s, uint64_t serial, uint32_t batch_slice) {
    return s->pushes +
           (serial % s->tickets.window * s->tickets.batch_slices + batch_slice) * s->stride;
}

static void dti_server_pushed(dt_server *s, uint32_t who, dti_push_answer answer) {
    s->info.pushes += answer == DTI_PUSH_TAKEN;
    s->info.rejected += answer != DTI_PUSH_TAKEN;
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
        s->calls->drop(s->message_server, i);
        seat->place = NULL;
        seat->push = DTI_PUSH_VOID;
    }
}

/* The first server knows who computes what: another's push is none. A worker whose connection broke
 * has its ticket still; one that had it before the server was loaded, or made anew, has not. */
static bool dti_server_gave(const dt_server *s, uint32_t who, const dti_message *m) {
    const dti_server_seat *seat = &s->seats[who];
    return s->welcome.place || (seat->given == m->number && seat->given_batch_slice == m->part);
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
    seat->push = DTI_PUSH_VOID;
    if (!dti_server_has_agreed(s))
        return NULL;
    if (m->kind == DTI_SAY_BROUGHT)
        return dti_server_room_of_squares(s, seat, m);
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
    s->info.rejected++;
    dti_server_error(s, who, DT_ERROR_INVALID,
                     "a push for batch %llu was computed with version %llu; with .staleness = %u "
                     "at least %llu: ask for a work item, and pull, before each",
                     (unsigned long long)m->number, (unsigned long long)version,
                     s->tickets.window - 1, (unsigned long long)oldest);
    return false;
}

/* A push has come whole. */
static void dti_server_push(dt_server *s, uint32_t who, const dti_message *m) {
    dti_server_seat *seat = &s->seats[who];
    if (m->bytes != s->shape.bytes) {
        dti_server_error(s, who, DT_ERROR_INVALID, "a push has %llu bytes; here %llu",
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
        dti_tickets_fault(&s->tickets, who, m->number, m->part, dti_now_ns());
        dti_server_error(s, who, DT_ERROR_NUMERIC, "a push is not finite: its batch is skipped");
        s->info.rejected++;
    } else
        dti_server_pushed(s, who,
                          dti_tickets_pushed(&s->tickets, who, m->number, m->part, version)
                              ? DTI_PUSH_TAKEN
                              : DTI_PUSH_VOID);
    dti_server_go_on(s);
}

static void dti_server_fault(dt_server *s, uint32_t who, const dti_message *m, const char *text) {
    const dti_push_answer answer =
        dti_server_gave(s, who, m)
            ? dti_tickets_fault(&s->tickets, who, m->number, m->part, dti_now_ns())
            : DTI_PUSH_VOID;
    char plain[DTI_SAY_TEXT + 1];
    dti_say_text(plain, text, m->bytes);
    if (answer == DTI_PUSH_TAKEN)
        dti_log(s->base, DT_LOG_WARNING, "batch %llu is skipped; its worker reports: %s",
                (unsigned long long)m->number, plain);
    dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_PUSHED, .part = (uint32_t)answer},
                      NULL);
    dti_server_go_on(s);
}

/* ---- the message server's calls */

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
            dti_server_error(s, who, DT_ERROR_CORRUPT, "a malformed message about clipping");
            return false;
        }
        if (age >= 64 || (!skipped && !(known && dti_tickets_complete(&s->tickets)))) {
            dti_server_error(s, who, DT_ERROR_INVALID,
                             "it is at batch %llu, and server 0 at %llu: restart all servers from "
                             "checkpoints of one step",
                             (unsigned long long)serial, (unsigned long long)told->version + 1);
            return false;
        }
        batch->faulty = skipped;
        s->result = dti_server_resolve(s, skipped ? 1.0f : clip);
        if (!skipped && s->info.skipped != before) {
            dti_server_leave_generation(s, who); /* whose worker hears the error */
            s->result = dti_fail(s->base, DT_ERROR_INVALID,
                                 "batch %llu: the update is not finite here, and the other servers "
                                 "have made it: all go back to a step before it",
                                 (unsigned long long)serial);
        }
    }
    if (s->result)
        dti_server_error(s, who, s->result, "%.400s", s->base->error);
    return !s->result;
}

static void dti_server_pull(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    dti_resolved told;
    if (m->bytes != sizeof told) {
        dti_server_error(s, who, DT_ERROR_CORRUPT, "a malformed request for values");
        return;
    }
    memcpy(&told, body, sizeof told);
    if (s->welcome.place && !dti_server_follow(s, who, &told))
        return;
    const bool kept =
        m->part == DTI_NEWEST_EPOCH && s->has_kept && told.version == s->kept_told.resolved.version;
    const bool saved = told.saved && (told.saved == s->safe || dti_server_has_file(s, told.saved));
    dti_server_is_safe(s, told.safe);
    dti_server_answer(s, who,
                      (dti_message){.kind = DTI_SAY_VALUES,
                                    .part = (uint32_t)(kept ? DTI_NEWEST_EPOCH : DTI_NEWEST_NOW) |
                                            (saved ? DTI_VALUES_KEPT : 0),
                                    .number = kept ? told.version : s->tickets.base - 1,
                                    .bytes = dti_arena_bytes(s->shape.end - s->shape.begin)},
                      NULL);
}

/* What the first server lacks. A batch that is over by now needs it no more. */
static void dti_server_squares_for(dt_server *s, uint32_t who, const dti_message *m,
                                   const void *body) {
    dti_resolved told;
    if (m->bytes != sizeof told || !s->welcome.place || !(s->limit > 0.0f)) {
        dti_server_error(s, who, DT_ERROR_CORRUPT, "a malformed request for sums of squares");
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
                         "it lacks pushes of batch %llu, which server 0 has: restart all servers "
                         "from checkpoints of one step",
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
    if (!dti_server_has_agreed(s) && m->kind >= DTI_SAY_ASK && m->kind < DTI_SAY_AGREE) {
        dti_server_error(s, who, DT_ERROR_INVALID, "the servers have not agreed on a step");
        return;
    }
    switch (m->kind) {
    case DTI_SAY_HELLO:
        dti_server_let_go(s, who);
        dti_server_welcome(s, who);
        return;
    case DTI_SAY_AGREE: dti_server_agree(s, who, m, body); return;
    case DTI_SAY_APART: dti_server_apart(s, who, m, body); return;
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
    dti_server_let_go(s, who);
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
            s->calls->close(s->message_server, i, "its worker is back");
        dti_server_leave(s, i);
        fresh.given = seat->given ? seat->given : fresh.given;
        fresh.given_batch_slice = seat->given ? seat->given_batch_slice : fresh.given_batch_slice;
        seat->given = 0;
    }
    fresh.surplus = s->info.workers >= (int)s->places;
    s->seats[who] = fresh;
    s->info.workers += !fresh.surplus;
    s->info.connections += !fresh.surplus;
}

static void dti_server_closed(void *user, uint32_t who, bool was_open, bool refused,
                              const char *why) {
    dt_server *s = user;
    dti_log(s->base, DT_LOG_INFO, "a worker has gone: %s", why);
    dti_server_leave(s, who);
    dti_server_go_on(s);
}
