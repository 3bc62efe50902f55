/* What is to be said: a ring of notes, which the application's next call hands to its logger.
 * Warnings that anybody can cause are each said once, then counted. */

#define DTI_REFUSALS_NS 10000000000u

static void dti_core_note(dti_core *core, dt_log_level level, const char *format, ...) {
    uint32_t at = (core->note_first + core->note_count) % DTI_NOTES;
    if (core->note_count == DTI_NOTES)
        return; /* the oldest are the nearest to the cause */
    va_list list;
    va_start(list, format);
    vsnprintf(core->notes[at], sizeof core->notes[at], format, list);
    va_end(list);
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

static void dti_core_note_refusal(dti_core *core, const char *format, ...) {
    dti_refusals *r = &core->refusals;
    char text[sizeof core->notes[0]];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (!r->said_count)
        r->since = core->now;
    if (!dti_refusal_is_said(r, text)) {
        dti_core_note(core, DT_LOG_WARNING, "%s", text);
        return;
    }
    r->held++;
    snprintf(r->last, sizeof r->last, "%.159s", text);
}

/* How many were held back. When there were none for a while, the next is said again. */
static void dti_refusals_sum_up(dti_core *core) {
    dti_refusals *r = &core->refusals;
    if (!r->held)
        r->said_count = 0;
    else if (core->note_count < DTI_NOTES)
        dti_core_note(core, DT_LOG_WARNING, "%u more connections were refused within %llu s: %s",
                      r->held, (unsigned long long)((core->now - r->since) / 1000000000u + 1),
                      r->last);
    else
        return;
    r->held = 0;
    r->since = core->now;
}

static void dti_tick_refusals(dti_core *core) {
    if (core->refusals.said_count && core->now - core->refusals.since >= DTI_REFUSALS_NS)
        dti_refusals_sum_up(core);
}
