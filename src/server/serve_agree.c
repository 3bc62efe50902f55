/* The server's side of the agreement on a step; worker_agree.c has the protocol. A server can go on
 * from its current step, or from a checkpoint of an earlier one. It keeps the newest checkpoint
 * that all servers are known to have, and all later ones. .checkpoint.keep does not limit that. So
 * all servers have one in common unless somebody deletes files. */

static bool dti_server_is_alone(const dt_server *s) {
    return s->welcome.servers < 2;
}

static bool dti_server_has_agreed(const dt_server *s) {
    return dti_server_is_alone(s) || s->generation;
}

static bool dti_server_has_file(const dt_server *s, uint64_t step) {
    const char *folder = s->trainer->desc.checkpoint.folder;
    uint64_t found;
    return folder && dti_checkpoint_folder_steps(folder, step, &found, 1) && found == step;
}

/* Workers ask the others about the first server's newest checkpoint. */
static void dti_server_look_saved(dt_server *s) {
    const uint64_t saved = s->trainer->saved;
    if (!dti_server_is_alone(s) && saved != s->saved && dti_server_has_file(s, saved))
        s->saved = saved;
}

/* Closes all connections except `but`: their workers belong to the old generation. */
static void dti_server_leave_generation(dt_server *s, uint32_t but) {
    for (uint32_t i = 0; i < s->count; i++) {
        if (i == but)
            continue;
        if (s->seats[i].open)
            s->calls->close(s->message_server, i, "the servers agree on a step");
        dti_server_leave(s, i);
        s->seats[i].given = 0;
    }
    s->generation = s->held = 0;
}

/* After a load it does not know which earlier batches were skipped, or how they were clipped. */
static void dti_server_forget(dt_server *s) {
    s->skipped_bits = 0;
    for (uint32_t i = 0; i < DTI_RESOLVED_MAX; i++)
        s->clips[i] = s->limit > 0.0f ? DTI_CLIP_UNKNOWN : 1.0f;
}

/* Goes on from the trainer's position. Pushes for the old values are dropped. */
static dt_result dti_server_begin_at(dt_server *s) {
    const dt_trainer *t = s->trainer;
    dti_server_forget(s);
    dti_tickets_start(&s->tickets, t->epoch * s->tickets.batches + t->index + 1);
    s->measured = 0;
    s->has_kept = false;
    return t->index == 0 ? dti_server_keep(s) : DT_OK;
}

/* ---- HOLD */

/* The steps of its checkpoints, and its current step, which may have no file. Only steps up to the
 * newest that it has reached count. The newest comes first. */
static uint32_t dti_server_steps_to_offer(const dt_server *s, uint64_t steps[DTI_AGREE_STEPS]) {
    const char *folder = s->trainer->desc.checkpoint.folder;
    const uint64_t now = dti_server_steps(s), most = DTI_MIN(s->top, s->unread - 1);
    uint32_t count = 0, at = 0;
    if (folder && s->unread)
        count = (uint32_t)dti_checkpoint_folder_steps(folder, most, steps, DTI_AGREE_STEPS - 1);
    while (at < count && steps[at] > now)
        at++;
    if (at < count && steps[at] == now)
        return count;
    memmove(steps + at + 1, steps + at, (count - at) * sizeof *steps);
    steps[at] = now;
    return count + 1;
}

/* Whether another worker's attempt holds this server, and is not older than .reassign_ms. */
static bool dti_server_is_held(const dt_server *s, uint32_t who) {
    const uint64_t limit = s->tickets.limit_ns;
    return s->held && s->holder != who && !(limit && dti_now_ns() - s->held_since > limit);
}

static void dti_server_hold(dt_server *s, uint32_t who, const dti_message *m, uint64_t seen) {
    uint64_t steps[DTI_AGREE_STEPS];
    dti_message out = {.kind = DTI_SAY_WAIT};
    if (seen == s->generation && m->number && !dti_server_is_held(s, who)) {
        dti_server_leave_generation(s, who);
        s->held = m->number;
        s->holder = who;
        s->held_since = dti_now_ns();
        out.kind = DTI_SAY_STEPS;
        out.bytes = dti_server_steps_to_offer(s, steps) * sizeof *steps;
    }
    dti_server_answer(s, who, out, out.bytes ? steps : NULL);
}

/* ---- BACK */

/* False: the file cannot be read. That step is not offered again. */
static bool dti_server_go_back(dt_server *s, uint64_t step) {
    char path[DTI_CHECKPOINT_PATH] = "";
    dt_trainer *t = s->trainer;
    if (step == dti_server_steps(s))
        return true;
    dt_result result =
        t->desc.checkpoint.folder
            ? dti_checkpoint_folder_file(s->base, t->desc.checkpoint.folder, step, path)
            : DT_ERROR_INVALID;
    if (!result)
        result = dti_state_load(t, path);
    if (result) {
        s->unread = step;
        dti_log(s->base, DT_LOG_WARNING,
                "the checkpoint of step %llu, which all servers have, cannot be read: %s",
                (unsigned long long)step, s->base->error);
    }
    return !result;
}

static void dti_server_back(dt_server *s, uint32_t who, uint64_t step) {
    s->held_since = dti_now_ns();
    if (dti_server_go_back(s, step)) {
        s->result = dti_server_begin_at(s);
        dti_server_welcome(s, who);
    } else
        dti_server_say(s, who, DTI_SAY_WAIT, 0);
}

/* ---- GO */

static void dti_server_tell_lost(dt_server *s, uint64_t step) {
    const uint64_t lost = s->top - step;
    if (!lost)
        return;
    s->info.rollbacks++;
    s->info.lost_steps += lost;
    dti_log(s->base, DT_LOG_WARNING,
            "went back from step %llu to step %llu, the newest that all %u servers have: %llu "
            "steps are repeated",
            (unsigned long long)s->top, (unsigned long long)step, s->welcome.servers,
            (unsigned long long)lost);
}

/* Removes checkpoints of later steps, which other servers lack. Writes one of this step if none
 * exists. */
static dt_result dti_server_fit_files(dt_server *s, uint64_t step) {
    const char *folder = s->trainer->desc.checkpoint.folder;
    if (!folder)
        return DT_OK;
    dt_result result = dti_checkpoint_folder_cut(s->base, folder, step);
    if (!result && !dti_server_has_file(s, step))
        result = dt_trainer_checkpoint(s->trainer);
    s->saved = 0;
    dti_server_look_saved(s);
    return result;
}

static void dti_server_go(dt_server *s, uint32_t who, uint64_t attempt, uint64_t version) {
    dt_trainer *t = s->trainer;
    const uint64_t step = dti_server_steps(s);
    t->epoch = version / s->tickets.batches;
    t->index = version % s->tickets.batches;
    s->result = dti_trainer_seek(t);
    if (!s->result)
        s->result = dti_server_fit_files(s, step);
    if (!s->result)
        s->result = dti_server_begin_at(s);
    dti_server_tell_lost(s, step);
    s->top = step;
    s->safe = DTI_MIN(s->safe, step);
    s->unread = s->unread > step ? UINT64_MAX : s->unread;
    s->seats[who].given = 0;
    s->held = 0;
    s->generation = s->result ? 0 : attempt;
    dti_server_welcome(s, who);
}

/* ---- messages of workers */

static void dti_server_agree(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    uint64_t value = 0;
    memcpy(&value, body, sizeof value);
    const bool held = m->number && s->held == m->number;
    const uint64_t most = UINT64_MAX / 2;
    if (m->part == DTI_AGREE_HOLD)
        dti_server_hold(s, who, m, value);
    else if (m->part == DTI_AGREE_GO && m->number && s->generation == m->number)
        dti_server_welcome(s, who); /* it asks again */
    else if (held && m->part == DTI_AGREE_BACK)
        dti_server_back(s, who, value);
    else if (held && value + 1 >= s->tickets.base && value < most)
        dti_server_go(s, who, m->number, value);
    else
        dti_server_say(s, who, DTI_SAY_WAIT, 0);
}

/* Ends dt_server_run: only the user can give back the checkpoints that are missing. */
static void dti_server_apart(dt_server *s, uint32_t who, const dti_message *m, const void *body) {
    char text[DTI_SAY_TEXT + 1];
    if (m->number && s->held == m->number) {
        dti_say_text(text, body, m->bytes);
        s->held = 0;
        s->result = dti_fail(s->base, DT_ERROR_INVALID, "%s", text);
    }
    dti_server_say(s, who, DTI_SAY_WAIT, 0);
}

/* A worker that greets again, or leaves, gives up its attempt. */
static void dti_server_let_go(dt_server *s, uint32_t who) {
    if (s->holder == who)
        s->held = 0;
}

static void dti_server_is_safe(dt_server *s, uint64_t step) {
    s->safe = step > s->safe && step <= s->top ? step : s->safe;
}
