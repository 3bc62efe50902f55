/* A worker's connections to its servers. It connects, repeats a question after a broken connection,
 * and fails when a server is silent for too long. See client.h. */

#define DTI_CLIENT_WAIT_MS 30000
#define DTI_CLIENT_DIAL_NS 50000000u     /* before the next try; doubled, */
#define DTI_CLIENT_DIAL_MOST 1000000000u /* up to this */
#define DTI_CLIENT_FULL_MS 200           /* before a server that is full is asked again */
/* A step that took longer than it may: this process was stopped, and silence is its own. */
#define DTI_CLIENT_STEP_MOST 1500000000u

/* ---- the message server's calls */

static void dti_client_opened(void *user, uint32_t who, const uint8_t instance[16]) {
    dti_client *c = user;
    c->servers[who].open = c->servers[who].told = true;
}

static void dti_client_closed(void *user, uint32_t who, bool was_open, bool refused,
                              const char *why) {
    dti_client_server *s = &((dti_client *)user)->servers[who];
    s->open = s->greeted = false;
    s->told = true;
    s->refused = refused && !was_open;
    snprintf(s->why, sizeof s->why, "%s", why);
}

/* A question has one answer. Data after it finds no room, which may be gone by then. */
static void *dti_client_room(void *user, uint32_t who, const dti_message *m) {
    dti_client *c = user;
    return who == c->to && !c->answered && m->bytes <= c->room_bytes ? c->room : NULL;
}

static void dti_client_came(void *user, uint32_t who, const dti_message *m, const void *body) {
    dti_client *c = user;
    if (who != c->to || c->answered)
        return;
    if (m->kind != DTI_SAY_FULL)
        c->servers[who].broken = 0;
    c->answered = true;
    c->answer = *m;
    if (body)
        memcpy(c->small, body, (size_t)m->bytes);
    if (body && c->room && m->bytes <= c->room_bytes)
        memcpy(c->room, body, (size_t)m->bytes);
}

static bool dti_client_read(void *user, uint32_t who, const dti_message *m, uint64_t at, void *to,
                            uint32_t bytes) {
    const dti_client *c = user;
    memcpy(to, c->body + at, bytes);
    return true;
}

/* ---- addresses */

static dt_result dti_client_addresses(dti_client *c, const char *servers) {
    const char *at = servers;
    for (const char *p = servers; *p; p++)
        c->count += *p == ',';
    c->count++;
    if (c->count > DTI_SERVERS_MAX)
        return dti_fail(c->base, DT_ERROR_INVALID,
                        ".server.addresses names %u servers; it must name at most %d", c->count,
                        DTI_SERVERS_MAX);
    c->servers = dti_alloc_array(c->base, c->count, sizeof *c->servers);
    DTI_HAVE(c->servers);
    for (uint32_t i = 0; i < c->count; i++) {
        const size_t size = strcspn(at, ",");
        if (!size || size >= sizeof c->servers[i].address)
            return dti_fail(c->base, DT_ERROR_INVALID,
                            ".server.addresses is '%s'; it must be \"host:port,host:port\", no "
                            "address empty or too long",
                            servers);
        memcpy(c->servers[i].address, at, size);
        at += size + (at[size] == ',');
    }
    return DT_OK;
}

static dt_result dti_client_open(dti_base *base, const char *servers, const dt_comm_desc *by,
                                 int wait_ms, dti_client *c) {
    *c = (dti_client){.base = base, .calls = dti_message_server_calls_of()};
    if (!c->calls)
        return dti_fail(
            base, DT_ERROR_UNSUPPORTED,
            ".mode is DT_TRAIN_SERVER, but this dtrain was compiled without connections");
    c->wait_ns = 1000000u * (uint64_t)(wait_ms ? wait_ms : DTI_CLIENT_WAIT_MS);
    DTI_TRY(dti_client_addresses(c, servers));
    const dti_message_server_desc d = {.by = by,
                                       .connections = c->count,
                                       .events = {.user = c,
                                                  .opened = dti_client_opened,
                                                  .room = dti_client_room,
                                                  .came = dti_client_came,
                                                  .read = dti_client_read,
                                                  .closed = dti_client_closed}};
    return c->calls->create(base, &d, &c->message_server);
}

static void dti_client_close(dti_client *c) {
    if (c->calls)
        c->calls->destroy(c->message_server);
    dti_free(c->base, c->servers);
    *c = (dti_client){0};
}

/* ---- asking */

static dt_result dti_client_gone(dti_client *c, uint32_t to) {
    const dti_client_server *s = &c->servers[to];
    if (s->silent)
        return dti_fail(
            c->base, DT_ERROR_PEER_LOST,
            "server %u at %s is connected, but has not answered for %llu ms: it is stopped, or "
            "outside dt_server_run; raise .server.wait_ms if that is intended",
            to, s->address, (unsigned long long)(c->wait_ns / 1000000u));
    if (s->full)
        return dti_fail(c->base, DT_ERROR_REFUSED,
                        "server %u at %s has had all of its %llu workers for %llu ms; raise its "
                        ".max_workers, or end a worker",
                        to, s->address, (unsigned long long)s->full,
                        (unsigned long long)(c->wait_ns / 1000000u));
    return dti_fail(c->base, DT_ERROR_PEER_LOST,
                    "server %u at %s has not been reachable for %llu ms: %s; restart it from a "
                    "checkpoint, and the workers too",
                    to, s->address, (unsigned long long)(c->wait_ns / 1000000u), s->why);
}

static void dti_client_hang_up(dti_client *c, uint32_t to) {
    c->calls->close(c->message_server, to, "it does not answer, or has all of its workers");
    c->servers[to].open = c->servers[to].greeted = false;
}

/* Silence on a connection that lasts for a step; of more this process was stopped itself. */
static uint64_t dti_client_step(dti_client *c) {
    const int most = (int)DTI_MIN(c->wait_ns / 4000000u + 1, (uint64_t)1000);
    const uint64_t start = dti_now_ns();
    c->calls->step(c->message_server, most);
    return DTI_MIN(dti_now_ns() - start, (uint64_t)DTI_CLIENT_STEP_MOST);
}

/* Until connecting has succeeded or failed. The system accepts connections for a stopped server,
 * but no answer follows. The wait is as long as for a server that is away. */
static void dti_client_shake_hands(dti_client *c, uint32_t to) {
    dti_client_server *s = &c->servers[to];
    const uint64_t most = DTI_MAX(c->wait_ns, (uint64_t)DTI_CLIENT_DIAL_MOST);
    for (uint64_t quiet = 0; !s->told && quiet < most;)
        quiet += dti_client_step(c);
    s->silent = !s->told;
    if (s->silent)
        dti_client_hang_up(c, to);
}

/* A try, and the time until the next one. */
static dt_result dti_client_dial(dti_client *c, uint32_t to, uint64_t wait) {
    dti_client_server *s = &c->servers[to];
    const uint64_t until = dti_now_ns() + wait;
    s->why[0] = 0;
    s->refused = s->told = s->silent = false;
    if (!c->calls->dial(c->message_server, to, s->address, to))
        return DT_ERROR_INVALID;
    dti_client_shake_hands(c, to);
    if (s->refused)
        return dti_fail(c->base, DT_ERROR_REFUSED, "server %u at %s: %s", to, s->address, s->why);
    for (uint64_t now = dti_now_ns(); !s->open && now < until; now = dti_now_ns())
        c->calls->step(c->message_server, (int)((until - now) / 1000000u) + 1);
    s->full = s->open ? s->full : 0;
    return DT_OK;
}

/* Until connected. It counts as broken until an answer has arrived. */
static dt_result dti_client_connect(dti_client *c, uint32_t to) {
    dti_client_server *s = &c->servers[to];
    uint64_t wait = DTI_CLIENT_DIAL_NS;
    s->broken = s->broken ? s->broken : dti_now_ns();
    while (!s->open) {
        DTI_TRY(dti_client_dial(c, to, wait));
        if (!s->open && dti_now_ns() - s->broken >= c->wait_ns)
            return dti_client_gone(c, to);
        wait = DTI_MIN(2 * wait, (uint64_t)DTI_CLIENT_DIAL_MOST);
    }
    return DT_OK;
}

/* False: the connection broke before the answer, or nothing was received for so long that the
 * server counts as lost. */
static bool dti_client_try(dti_client *c, uint32_t to, const dti_message *m, const void *body) {
    dti_client_server *s = &c->servers[to];
    uint64_t quiet = 0, moved = c->calls->moved(c->message_server, to);
    c->to = to;
    c->body = body;
    c->answered = false;
    c->calls->send(c->message_server, to, m);
    while (s->open && !c->answered) {
        quiet += dti_client_step(c);
        if (c->calls->moved(c->message_server, to) != moved)
            quiet = 0;
        moved = c->calls->moved(c->message_server, to);
        s->silent = quiet >= c->wait_ns && s->open && !c->answered;
        if (s->silent)
            dti_client_hang_up(c, to);
    }
    return c->answered;
}

/* The other side's text, as far as it fits, with characters that a terminal would obey replaced. */
static void dti_say_text(char text[DTI_SAY_TEXT + 1], const char *said, uint64_t bytes) {
    const size_t size = said ? (size_t)DTI_MIN(bytes, (uint64_t)DTI_SAY_TEXT) : 0;
    for (size_t i = 0; i < size; i++)
        text[i] = (unsigned char)said[i] >= 32 && said[i] != 127 ? said[i] : ' ';
    text[size] = 0;
}

static dt_result dti_client_error(dti_client *c, uint32_t to) {
    char text[DTI_SAY_TEXT + 1];
    const dti_message *m = &c->answer;
    dti_say_text(text, m->bytes <= DTI_MESSAGE_SMALL ? c->small : NULL, m->bytes);
    const bool known = m->part > DT_OK && m->part <= DT_ERROR_LATE;
    return dti_fail(c->base, known ? (dt_result)m->part : DT_ERROR_CORRUPT, "server %u at %s: %s",
                    to, c->servers[to].address, text);
}

static dt_result dti_client_malformed(const dti_client *c, uint32_t to, const char *what) {
    return dti_fail(c->base, DT_ERROR_CORRUPT, "server %u at %s: %s malformed", to,
                    c->servers[to].address, what);
}

static bool dti_welcome_is_right(const dti_client *c, uint32_t to) {
    const dti_message *m = &c->answer;
    dti_welcome w;
    if (m->kind != DTI_SAY_WELCOME || m->bytes != sizeof w)
        return false;
    memcpy(&w, c->small, sizeof w);
    return w.place == to && w.servers && w.batch_slices && w.begin <= w.end && w.end <= w.elements;
}

/* A place may become free soon: a worker that left or reconnected leaves one. */
static dt_result dti_client_full(dti_client *c, uint32_t to) {
    dti_client_server *s = &c->servers[to];
    s->full = c->answer.number ? c->answer.number : 1;
    dti_client_hang_up(c, to);
    if (dti_now_ns() - s->broken >= c->wait_ns)
        return dti_client_gone(c, to);
    c->calls->step(c->message_server, DTI_CLIENT_FULL_MS);
    return DT_OK;
}

static dt_result dti_client_welcome(dti_client *c, uint32_t to) {
    dti_client_server *s = &c->servers[to];
    dti_welcome w;
    if (c->answer.kind == DTI_SAY_ERROR)
        return dti_client_error(c, to);
    if (c->answer.kind == DTI_SAY_FULL)
        return dti_client_full(c, to);
    if (!dti_welcome_is_right(c, to))
        return dti_client_malformed(c, to, "its greeting is");
    memcpy(&w, c->small, sizeof w);
    if (w.servers != c->count)
        return dti_fail(c->base, DT_ERROR_INVALID,
                        "server %u at %s is one of %u servers, but .server.addresses names %u", to,
                        s->address, w.servers, c->count);
    if (s->welcome.batch_slices &&
        (s->welcome.elements != w.elements || s->welcome.begin != w.begin ||
         s->welcome.end != w.end || s->welcome.batch_slices != w.batch_slices ||
         s->welcome.push_bytes != w.push_bytes))
        return dti_fail(c->base, DT_ERROR_INVALID,
                        "server %u at %s was restarted with another model or other settings", to,
                        s->address);
    s->welcome = w;
    s->greeted = s->open; /* its end may have come with the answer */
    s->back = true;
    s->full = 0;
    return DT_OK;
}

static dt_result dti_client_greet(dti_client *c, uint32_t to) {
    const dti_message hello = {.kind = DTI_SAY_HELLO};
    while (!c->servers[to].greeted) {
        DTI_TRY(dti_client_connect(c, to));
        const uint64_t broken = c->servers[to].broken;
        if (dti_client_try(c, to, &hello, NULL))
            DTI_TRY(dti_client_welcome(c, to));
        else if (c->servers[to].silent || dti_now_ns() - broken >= c->wait_ns)
            return dti_client_gone(c, to);
    }
    return DT_OK;
}

/* A question that was under way from `start` on when the connection broke. One that breaks it each
 * time, although the server greets, is not asked for ever. */
static dt_result dti_client_broke(dti_client *c, uint32_t to, uint64_t start, uint64_t *first) {
    const uint64_t now = dti_now_ns();
    if (c->servers[to].silent)
        return dti_client_gone(c, to);
    if (!*first || now - start >= c->wait_ns)
        *first = now;
    return now - *first >= c->wait_ns ? dti_client_gone(c, to) : DT_OK;
}

static void dti_client_look_again(dti_client *c, int pause_ms) {
    const uint64_t until = dti_now_ns() + 1000000u * (uint64_t)pause_ms;
    for (uint64_t now = dti_now_ns(); now < until; now = dti_now_ns())
        c->calls->step(c->message_server, (int)((until - now) / 1000000u) + 1);
    for (uint32_t i = 0; i < c->count; i++)
        c->servers[i].greeted = false;
}

/* A result computed with the values of one generation has no meaning in another. */
static dt_result dti_client_same_generation(dti_client *c, uint32_t to, uint32_t kind) {
    if (!c->generation || kind == DTI_SAY_AGREE || kind == DTI_SAY_APART ||
        c->servers[to].welcome.generation == c->generation)
        return DT_OK;
    c->apart = true;
    return dti_fail(c->base, DT_ERROR_PEER_LOST,
                    "server %u at %s must first agree on a step with the others", to,
                    c->servers[to].address);
}

static dt_result dti_client_ask(dti_client *c, uint32_t to, const dti_message *m, const void *body,
                                void *room, uint64_t room_bytes) {
    uint64_t first = 0;
    bool answered = false;
    while (!answered) {
        DTI_TRY(dti_client_greet(c, to));
        DTI_TRY(dti_client_same_generation(c, to, m->kind));
        const uint64_t start = dti_now_ns();
        c->room = room;
        c->room_bytes = room_bytes;
        answered = dti_client_try(c, to, m, body);
        c->room = NULL;
        c->room_bytes = 0;
        if (!answered)
            DTI_TRY(dti_client_broke(c, to, start, &first));
    }
    if (c->answer.kind != DTI_SAY_ERROR)
        return DT_OK;
    c->servers[to].greeted = false; /* it may have left its generation */
    return dti_client_error(c, to);
}
