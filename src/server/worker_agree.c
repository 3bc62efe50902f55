/* Several servers agree on the step that they go on from. Servers are not connected to each other,
 * so a worker carries their answers. Each agreement begins a generation, whose servers have the
 * same history. No request passes from one generation to the next. A worker's attempt has a random
 * number, which becomes the number of the generation, and three rounds:
 *
 *   HOLD  Each server leaves its generation, so its files stay as they are, and lists its steps.
 *         The newest step that all have is chosen.
 *   BACK  Each server loads that step, and files still stay. When all have answered, this attempt
 *         held all of them at one moment: no server has made a newer step, or needs one.
 *   GO    Each server removes newer files, which others lack, and enters the new generation. The
 *         first server is the last, so no work is handed out before all have entered.
 *
 * If somebody dies meanwhile, servers are left in several generations; the next worker sees that
 * and begins again. A server that another worker holds answers WAIT. serve_agree.c has the
 * server's side. */

#define DTI_AGREE_PAUSE_MS 40 /* and up to twice that more, so that two workers part */

/* ---- questions */

/* WAIT, unless the answer is of this kind; then it is taken. */
static dt_result dti_agree_ask(dti_served *w, uint32_t to, dti_agree_part part, uint64_t attempt,
                               uint64_t value, bool *wait) {
    dti_client *c = &w->client;
    const dti_message m = {
        .kind = DTI_SAY_AGREE, .part = (uint32_t)part, .number = attempt, .bytes = sizeof value};
    const dt_result result = dti_client_ask(c, to, &m, &value, NULL, 0);
    const dti_message *a = &c->answer;
    *wait = !result && a->kind == DTI_SAY_WAIT;
    if (result || *wait)
        return result;
    const uint64_t count = a->bytes / sizeof value;
    const bool steps = part == DTI_AGREE_HOLD;
    if (steps ? a->kind != DTI_SAY_STEPS || a->bytes % sizeof value || count > DTI_AGREE_STEPS
              : !dti_welcome_is_right(c, to))
        return dti_client_malformed(c, to, "its list of steps is");
    if (steps) {
        w->servers[to].step_count = (uint32_t)count;
        memcpy(w->servers[to].steps, c->small, (size_t)a->bytes);
    } else
        memcpy(&c->servers[to].welcome, c->small, sizeof(dti_welcome));
    return DT_OK;
}

static bool dti_agree_has(const dti_served_server *server, uint64_t step) {
    for (uint32_t i = 0; i < server->step_count; i++)
        if (server->steps[i] == step)
            return true;
    return false;
}

/* The newest step that all have. False: no common step. */
static bool dti_agree_common(const dti_served *w, uint64_t *step) {
    for (uint32_t i = 0; i < w->servers[0].step_count; i++) {
        uint32_t have = 1;
        *step = w->servers[0].steps[i];
        while (have < w->client.count && dti_agree_has(&w->servers[have], *step))
            have++;
        if (have == w->client.count)
            return true;
    }
    return false;
}

/* ---- no step in common */

static void dti_agree_say_steps(const dti_served *w, uint32_t server, char text[DTI_SAY_TEXT + 1]) {
    const uint32_t count = w->servers[server].step_count;
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, DTI_SAY_TEXT + 1 - used, "; server %u at %.60s has",
                             server, w->client.servers[server].address);
    for (uint32_t i = 0; i < DTI_MIN(count, 3u) && used < DTI_SAY_TEXT; i++)
        used += (size_t)snprintf(text + used, DTI_SAY_TEXT + 1 - used, "%s %llu", i ? "," : "",
                                 (unsigned long long)w->servers[server].steps[i]);
    if (used < DTI_SAY_TEXT)
        snprintf(text + used, DTI_SAY_TEXT + 1 - used, "%s",
                 count > 3 ? " and older ones"
                 : count   ? ""
                           : " none");
}

/* The server that lacks most comes first; all servers receive it. */
static dt_result dti_agree_apart(dti_served *w, uint64_t attempt) {
    dti_client *c = &w->client;
    char text[DTI_SAY_TEXT + 1] =
        "the servers have no step in common; restart all of them from checkpoints of one step";
    uint32_t least = 0;
    for (uint32_t i = 1; i < c->count; i++) {
        const dti_served_server *s = &w->servers[i], *first = &w->servers[least];
        const uint64_t newest = s->step_count ? s->steps[0] : 0;
        if (first->step_count && newest < first->steps[0])
            least = i;
    }
    dti_agree_say_steps(w, least, text);
    for (uint32_t i = 0; i < c->count; i++)
        if (i != least)
            dti_agree_say_steps(w, i, text);
    const dti_message m = {
        .kind = DTI_SAY_APART, .number = attempt, .bytes = DTI_MIN(strlen(text), DTI_SAY_TEXT)};
    for (uint32_t i = 0; i < c->count; i++)
        DTI_TRY(dti_client_ask(c, i, &m, text, NULL, 0));
    return dti_fail(c->base, DT_ERROR_INVALID, "%s", text);
}

/* ---- an attempt */

static uint64_t dti_agree_number(void) {
    uint64_t number = 0;
    if (!dti_random_bytes(&number, sizeof number))
        number = dti_hash64(dti_now_ns(), &number, sizeof number);
    return number | 1; /* 0 = not an attempt */
}

static dt_result dti_agree_hold(dti_served *w, uint64_t attempt, bool *wait) {
    for (uint32_t i = 0; i < w->client.count && !*wait; i++)
        DTI_TRY(dti_agree_ask(w, i, DTI_AGREE_HOLD, attempt,
                              w->client.servers[i].welcome.generation, wait));
    return DT_OK;
}

/* *version: the largest version of any server at that step. Batches without an update raise it. */
static dt_result dti_agree_back(dti_served *w, uint64_t attempt, uint64_t step, uint64_t *version,
                                bool *wait) {
    *version = 0;
    for (uint32_t i = 0; i < w->client.count && !*wait; i++) {
        DTI_TRY(dti_agree_ask(w, i, DTI_AGREE_BACK, attempt, step, wait));
        *version = DTI_MAX(*version, w->client.servers[i].welcome.version);
    }
    return DT_OK;
}

static dt_result dti_agree_try(dti_served *w) {
    const uint64_t attempt = dti_agree_number();
    uint64_t step = 0, version = 0;
    bool wait = false;
    DTI_TRY(dti_agree_hold(w, attempt, &wait));
    if (!wait && !dti_agree_common(w, &step))
        return dti_agree_apart(w, attempt);
    if (!wait)
        DTI_TRY(dti_agree_back(w, attempt, step, &version, &wait));
    for (uint32_t i = w->client.count; i-- > 0 && !wait;)
        DTI_TRY(dti_agree_ask(w, i, DTI_AGREE_GO, attempt, version, &wait));
    if (wait)
        dti_client_look_again(&w->client, DTI_AGREE_PAUSE_MS + (int)(attempt % 80));
    return DT_OK;
}

/* ---- until all are of one generation */

static bool dti_agree_is_done(const dti_client *c) {
    const uint64_t generation = c->servers[0].welcome.generation;
    for (uint32_t i = 1; i < c->count; i++) {
        if (c->servers[i].welcome.generation != generation)
            return false;
    }
    return generation || c->count < 2;
}

static dt_result dti_agree_look(dti_served *w, bool *done) {
    dti_client *c = &w->client;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < c->count && !result; i++)
        result = dti_client_greet(c, i);
    *done = !result && dti_agree_is_done(c);
    const uint64_t now = dti_now_ns();
    w->apart = *done ? 0 : w->apart ? w->apart : now;
    if (!result && !*done && now - w->apart >= c->wait_ns)
        result = dti_fail(c->base, DT_ERROR_PEER_LOST,
                          "the servers have not agreed on a step for %llu ms: they end repeatedly, "
                          "or another worker is slow; raise .server.wait_ms",
                          (unsigned long long)(c->wait_ns / 1000000u));
    return result;
}

/* Answers may be old by now. So an attempt begins only if a second look, from the first server on,
 * finds the same. */
static dt_result dti_worker_agree(dt_trainer *t, bool *fresh) {
    dti_served *w = t->worker;
    dti_client *c = &w->client;
    bool done = c->generation && !c->apart;
    dt_result result = DT_OK;
    *fresh = false;
    c->apart = false;
    for (bool again = false; !result && !done; again = !again) {
        result = dti_agree_look(w, &done);
        if (!result && !done && again)
            result = dti_agree_try(w);
        else if (!result && !done)
            dti_client_look_again(c, 0);
    }
    *fresh = !result && c->generation != c->servers[0].welcome.generation;
    c->generation = result ? 0 : c->servers[0].welcome.generation;
    return result;
}
