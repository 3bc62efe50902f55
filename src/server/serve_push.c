/* Pushes and requests of workers: the callbacks of a server's message server. */

/* ---- pushes */

static char *dti_server_place(const dt_server *s, uint64_t serial, uint32_t batch_slice) {
    return dti_server_batch(s, serial) + batch_slice * s->stride;
}

static void dti_server_pushed(dt_server *s, uint32_t who, dti_push_answer answer) {
    s->info.pushes += answer == DTI_PUSH_TAKEN;
    s->info.rejected += answer != DTI_PUSH_TAKEN;
    dti_server_say(s, who, DTI_SAY_PUSHED, (uint16_t)answer);
}

/* A push that is still arriving there does not count. Another worker has its ticket, or its batch
 * has been skipped or resolved. It is received to its end and changes nothing. */
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

/* The first server knows which worker has which ticket, and ignores a push of another one. A worker
 * whose connection broke keeps its ticket. After a load or a restart of the server, no worker has
 * one. */
static bool dti_server_gave(const dt_server *s, uint32_t who, const dti_message *m) {
    const dti_server_seat *seat = &s->seats[who];
    return s->welcome.place || (seat->given == m->number && seat->given_batch_slice == m->part);
}

/* The place for the squares of another server. NULL: they have arrived, or are not the wanted
 * ones. */
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

/* Whether the push was computed with values that a ticket of this batch may use. A version newer
 * than the server's is from before it loaded a checkpoint. Such a push does not count, and is not
 * an error. */
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
                     "it must be at least %llu; ask for a work item and pull before each push",
                     (unsigned long long)m->number, (unsigned long long)version,
                     s->tickets.window - 1, (unsigned long long)oldest);
    return false;
}

/* The data that came with the message itself, of a tiny model: no room was asked for. */
static void dti_server_put(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    void *room = body || !m->bytes ? dti_server_room(s, who, m) : NULL;
    if (room && m->bytes)
        memcpy(room, body, (size_t)m->bytes);
}

/* A push has come whole. */
static void dti_server_push(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    dti_server_seat *seat = &s->seats[who];
    if (body)
        dti_server_put(s, who, m, body);
    if (m->bytes != s->shape.bytes) {
        dti_server_error(s, who, DT_ERROR_INVALID, "a push has %llu bytes; it must have %llu",
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

static void dti_server_fault(dt_server *s, uint32_t who, const dti_message *m, const void *text) {
    const dti_push_answer answer =
        dti_server_gave(s, who, m)
            ? dti_tickets_fault(&s->tickets, who, m->number, m->part, dti_now_ns())
            : DTI_PUSH_VOID;
    char plain[DTI_SAY_TEXT + 1];
    dti_say_text(plain, text, m->bytes);
    if (answer == DTI_PUSH_TAKEN)
        dti_log(s->base, DT_LOG_WARNING, "batch %llu is skipped; its worker reports: %s",
                (unsigned long long)m->number, plain);
    dti_server_say(s, who, DTI_SAY_PUSHED, (uint16_t)answer);
    dti_server_go_on(s);
}

/* ---- the message server's calls */

/* The first server decides when a batch is over, and workers inform the others. Those have all of
 * its pushes by then, because workers push to the first server last. */
static bool dti_server_follow(dt_server *s, uint32_t who, const dti_resolved *news) {
    while (!s->result && s->tickets.base <= news->version) {
        const uint64_t serial = s->tickets.base, age = news->version - serial;
        dti_batch_open *batch = dti_tickets_batch(&s->tickets, serial);
        const bool skipped = age < 64 && (news->skipped >> age & 1);
        const uint64_t before = s->info.skipped;
        const float clip = age < 64 ? news->clips[age] : DTI_CLIP_UNKNOWN;
        const bool known = clip >= 0.0f && clip <= 1.0f;
        if (!known && clip != DTI_CLIP_UNKNOWN) {
            dti_server_error(s, who, DT_ERROR_CORRUPT,
                             "received a malformed message about clipping");
            return false;
        }
        if (age >= 64 || (!skipped && !(known && dti_tickets_complete(&s->tickets)))) {
            dti_server_error(s, who, DT_ERROR_INVALID,
                             "this server is at batch %llu, but server 0 at %llu; restart all "
                             "servers from checkpoints of one step",
                             (unsigned long long)serial, (unsigned long long)news->version + 1);
            return false;
        }
        batch->faulty = skipped;
        s->result = dti_server_resolve(s, skipped ? 1.0f : clip);
        if (!skipped && s->info.skipped != before) {
            dti_server_leave_generation(s, who); /* whose worker gets the error */
            s->result =
                dti_fail(s->base, DT_ERROR_INVALID,
                         "batch %llu: the update is not finite on this server, but the other "
                         "servers have made it; all servers go back to an earlier step",
                         (unsigned long long)serial);
        }
    }
    if (s->result)
        dti_server_error(s, who, s->result, "%.400s", s->base->error);
    return !s->result;
}

static void dti_server_pull(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    dti_resolved told;
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

/* Pushes that the first server lacks. A batch that is over by now needs none. */
static void dti_server_squares_for(dt_server *s, uint32_t who, const dti_message *m,
                                   const void *body) {
    dti_resolved told;
    memcpy(&told, body, sizeof told);
    if (!dti_server_follow(s, who, &told))
        return;
    if (m->number < s->tickets.base) {
        dti_server_say(s, who, DTI_SAY_PUSHED, DTI_PUSH_VOID);
        return;
    }
    if (m->number > s->tickets.base || !dti_tickets_complete(&s->tickets)) {
        dti_server_error(s, who, DT_ERROR_INVALID,
                         "this server lacks pushes of batch %llu that server 0 has; restart all "
                         "servers from checkpoints of one step",
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

static void dti_server_brought(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    dti_server_seat *seat = &s->seats[who];
    dti_server_put(s, who, m, body);
    const bool fresh = seat->brings;
    s->brought |= (uint64_t)fresh << (fresh ? m->part : 0);
    seat->brings = false;
    dti_server_say(s, who, DTI_SAY_PUSHED, fresh ? DTI_PUSH_TAKEN : DTI_PUSH_VOID);
    dti_server_go_on(s);
}

static void dti_server_hello(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    dti_server_let_go(s, who);
    dti_server_welcome(s, who);
}

static void dti_server_tell_settings(dt_server *s, uint32_t who, const dti_message *m,
                                     const void *body) {
    dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_SETTINGS, .bytes = s->settings.size},
                      NULL);
}

/* Messages of workers: their length (0: any), and their name in the error if the length is
 * wrong. */
static const struct dti_server_word {
    void (*came)(dt_server *s, uint32_t who, const dti_message *m, const void *body);
    uint32_t bytes;
    const char *malformed;
} dti_server_words[] = {
    [DTI_SAY_HELLO] = {dti_server_hello, 0, NULL},
    [DTI_SAY_SETTINGS] = {dti_server_tell_settings, 0, NULL},
    [DTI_SAY_ASK] = {dti_server_ask, sizeof(dti_request), "request for a work item"},
    [DTI_SAY_PULL] = {dti_server_pull, sizeof(dti_resolved), "request for values"},
    [DTI_SAY_PUSH] = {dti_server_push, 0, NULL},
    [DTI_SAY_FAULT] = {dti_server_fault, 0, NULL},
    [DTI_SAY_MEASURE] = {dti_server_squares_for, sizeof(dti_resolved),
                         "request for sums of squares"},
    [DTI_SAY_BROUGHT] = {dti_server_brought, 0, NULL},
    [DTI_SAY_AGREE] = {dti_server_agree, sizeof(uint64_t), "agreement"},
    [DTI_SAY_APART] = {dti_server_apart, 0, NULL},
};

/* Whether this server is one that is asked for this. */
static bool dti_server_is_for(const dt_server *s, const dti_message *m) {
    return m->kind == DTI_SAY_ASK       ? !s->welcome.place
           : m->kind == DTI_SAY_MEASURE ? s->welcome.place && s->limit > 0.0f
           : m->kind == DTI_SAY_AGREE   ? m->part <= DTI_AGREE_GO && !dti_server_is_alone(s)
                                        : true;
}

static void dti_server_came(void *user, uint32_t who, const dti_message *m, const void *body) {
    dt_server *s = user;
    static const struct dti_server_word none;
    const struct dti_server_word *word =
        m->kind < DTI_COUNT(dti_server_words) ? &dti_server_words[m->kind] : &none;
    if (s->seats[who].surplus)
        dti_server_answer(s, who, (dti_message){.kind = DTI_SAY_FULL, .number = s->places}, NULL);
    else if (!dti_server_has_agreed(s) && m->kind >= DTI_SAY_ASK && m->kind < DTI_SAY_AGREE)
        dti_server_error(s, who, DT_ERROR_INVALID, "the servers have not agreed on a step");
    else if (!word->came)
        dti_server_error(s, who, DT_ERROR_CORRUPT, "message %u is unknown", m->kind);
    else if ((word->bytes && m->bytes != word->bytes) || !dti_server_is_for(s, m))
        dti_server_error(s, who, DT_ERROR_CORRUPT, "a malformed %s", word->malformed);
    else
        word->came(s, who, m, body);
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
            s->calls->close(s->message_server, i, "its worker has connected again");
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
    dti_log(s->base, DT_LOG_INFO, "a worker has left: %s", why);
    dti_server_leave(s, who);
    dti_server_go_on(s);
}
