/* Results, the newest error's text, and the log. Nothing here prints: without a logger dtrain is
 * silent. A text is cut at the size of dti_base.error, never refused. */

const char *dt_result_text(dt_result result) {
    static const char *const texts[] = {
#define DTI_X(id, text) [DT_##id] = text,
        DT_RESULT_LIST(DTI_X)
#undef DTI_X
    };
    if ((unsigned)result >= DTI_COUNT(texts))
        return "an unknown result";
    return texts[result];
}

static dt_result dti_fail(dti_base *base, dt_result result, const char *format, ...) {
    /* Apart from base->error, because an argument may be the old text, which is being extended. */
    char text[sizeof base->error];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    memcpy(base->error, text, strlen(text) + 1);
    base->result = result;
    if (base->logger.log)
        base->logger.log(base->logger.user, DT_LOG_ERROR, base->error);
    return result;
}

static dt_result dti_fail_null(dti_base *base, const char *call, const char *what) {
    return base ? dti_fail(base, DT_ERROR_INVALID, "%s: %s is NULL", call, what) : DT_ERROR_INVALID;
}

static void dti_log(dti_base *base, dt_log_level level, const char *format, ...) {
    if (!base->logger.log)
        return;
    char text[sizeof base->error];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    base->logger.log(base->logger.user, level, text);
}
