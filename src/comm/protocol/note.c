/* Log messages: a ring of notes, which the application's next call passes to its logger. Warnings
 * that an unauthenticated peer can cause are logged once, then counted. */

#define DTI_REFUSALS_NS 10000000000u

DTI_PRINTF(3, 4)
static void dti_core_note(dti_core *core, dt_log_level level, const char *format, ...) {
    uint32_t at = (core->note_first + core->note_count) % DTI_NOTES;
    if (core->note_count == DTI_NOTES)
        return; /* the oldest are the nearest to the cause */
    DTI_FORMAT(core->notes[at], format);
    core->note_levels[at] = (uint8_t)level;
    core->note_count++;
}

static bool dti_refusal_is_said(dti_refusals *r, const char *text) {
    const uint64_t hash = dti_hash64(0, text, strlen(text));
    for (uint32_t i = 0; i < r->said_count; i++)
        if (r->said[i] == hash)
            return true;
    if (r->said_count == DTI_REFUSALS_SAID)
        return true;
    r->said[r->said_count++] = hash;
    return false;
}

/* Counts where it came from. When all places are taken, each of those there loses one. */
static void dti_refusals_count(dti_refusals *r, const uint8_t *source) {
    int at = -1;
    for (int i = DTI_REFUSALS_FROM; i-- > 0;)
        if (!r->from[i].count)
            at = i;
    for (int i = 0; i < DTI_REFUSALS_FROM; i++)
        if (r->from[i].count && !memcmp(r->from[i].source, source, DTI_SOURCE_BYTES))
            at = i;
    for (int i = 0; at < 0 && i < DTI_REFUSALS_FROM; i++)
        r->from[i].count--;
    if (at < 0)
        return;
    memcpy(r->from[at].source, source, DTI_SOURCE_BYTES);
    r->from[at].count++;
}

/* A warning that an unauthenticated peer can cause. source: its address; NULL: not known. */
DTI_PRINTF(3, 4)
static void dti_core_note_refusal(dti_core *core, const uint8_t *source, const char *format, ...) {
    dti_refusals *r = &core->refusals;
    char text[sizeof core->notes[0]];
    DTI_FORMAT(text, format);
    if (!r->said_count)
        r->since = core->now;
    if (!dti_refusal_is_said(r, text)) {
        dti_core_note(core, DT_LOG_WARNING, "%s", text);
        return;
    }
    r->held++;
    snprintf(r->last, sizeof r->last, "%.119s", text);
    if (source)
        dti_refusals_count(r, source);
}

/* A listener's error; why: the system's text. */
static void dti_core_note_no_descriptor(dti_core *core, const char *why) {
    dti_core_note_refusal(
        core, NULL, "no descriptor is left for a new connection (%s): raise the limit (ulimit -n)",
        why);
}

static void dti_source_text(const uint8_t *s, char text[32]) {
    if (dti_get32(s) == 0 && dti_get32(s + 4) == 0)
        snprintf(text, 32, "this host");
    else if (dti_get32(s) == 0)
        snprintf(text, 32, "%u.%u.%u.%u", s[4], s[5], s[6], s[7]);
    else
        snprintf(text, 32, "%x:%x:%x:%x::/64", (unsigned)(s[0] << 8 | s[1]),
                 (unsigned)(s[2] << 8 | s[3]), (unsigned)(s[4] << 8 | s[5]),
                 (unsigned)(s[6] << 8 | s[7]));
}

/* The three that tried most: " (1200 from 10.0.0.7, ...)". */
static void dti_refusals_most(dti_refusals *r, char text[160]) {
    size_t used = 0;
    text[0] = 0;
    for (int shown = 0; shown < 3; shown++) {
        int most = 0;
        char where[32];
        for (int i = 1; i < DTI_REFUSALS_FROM; i++)
            most = r->from[i].count > r->from[most].count ? i : most;
        if (!r->from[most].count)
            break;
        dti_source_text(r->from[most].source, where);
        used += (size_t)snprintf(text + used, 160 - used, "%s%u from %s", shown ? ", " : " (",
                                 r->from[most].count, where);
        r->from[most].count = 0;
    }
    if (used)
        snprintf(text + used, 160 - used, ")");
}

/* Logs how many were held back. After a while without any, the next is logged again. */
static void dti_refusals_sum_up(dti_core *core) {
    dti_refusals *r = &core->refusals;
    char from[160];
    if (r->held && core->note_count == DTI_NOTES)
        return;
    dti_refusals_most(r, from);
    if (r->held)
        dti_core_note(core, DT_LOG_WARNING, "%u more connections were refused within %llu s%s: %s",
                      r->held, (unsigned long long)((core->now - r->since) / 1000000000u + 1), from,
                      r->last);
    else
        r->said_count = 0;
    r->held = 0;
    r->since = core->now;
    memset(r->from, 0, sizeof r->from);
}

static void dti_tick_refusals(dti_core *core) {
    if (core->refusals.said_count && core->now - core->refusals.since >= DTI_REFUSALS_NS)
        dti_refusals_sum_up(core);
}

/* Takes out the oldest note. False: empty. */
static bool dti_core_next_note(dti_core *core, dt_log_level *level, char text[DTI_NOTE_BYTES]) {
    if (!core->note_count)
        return false;
    *level = (dt_log_level)core->note_levels[core->note_first];
    memcpy(text, core->notes[core->note_first], DTI_NOTE_BYTES);
    core->note_first = (core->note_first + 1) % DTI_NOTES;
    core->note_count--;
    return true;
}
