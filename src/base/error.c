/* Results, the newest error's text, and the log. Nothing here prints: without a logger dtrain is
 * silent. A text is cut at the size of dti_base.error, never refused. */

#ifdef DTI_COMPILES_GRAPH
const char *dt_result_text(dt_result result) {
    static const char *const texts[] = {
        [DT_OK] = "no error",
        [DT_ERROR_INVALID] = "a wrong argument or a call in a wrong state",
        [DT_ERROR_MEMORY] = "out of host memory",
        [DT_ERROR_DEVICE_MEMORY] = "out of device memory",
        [DT_ERROR_DEVICE] = "no such device, or its driver failed",
        [DT_ERROR_DEVICE_LOST] = "the device was lost; its store must be created again",
        [DT_ERROR_UNSUPPORTED] = "not supported by this device, type or build",
        [DT_ERROR_IO] = "a file could not be opened, read or written",
        [DT_ERROR_FORMAT] = "a file has a wrong format",
        [DT_ERROR_NUMERIC] = "a NaN or an infinity; the store is unchanged",
        [DT_ERROR_TIMEOUT] = "not finished within the timeout",
        [DT_ERROR_REFUSED] = "ranks refuse each other: their key, job, version or settings differ",
        [DT_ERROR_PEER_LOST] = "a rank, or the connection to it, is lost",
        [DT_ERROR_MISMATCH] = "ranks posted different operations",
        [DT_ERROR_CORRUPT] = "bytes changed in transit",
        [DT_ERROR_CANCELLED] = "a rank cancelled an operation",
        [DT_ERROR_REVOKED] = "the group has ended",
        [DT_ERROR_FORKED] = "called with the parent's objects in a child process of fork",
        [DT_ERROR_LATE] = "a rank has not posted an operation in time",
        [DT_ERROR_BUSY] = ("the object is in use, by another thread or by the call that this "
                           "callback belongs to; call again when that has returned"),
    };
    _Static_assert(DTI_COUNT(texts) == DT_ERROR_BUSY + 1, "a text of each result");
    if ((unsigned)result >= DTI_COUNT(texts))
        return "an unknown result";
    return texts[result];
}
#endif

static void dti_host_log(dti_base *base, dt_log_level level, const char *text) {
    if (!base->logger.log)
        return;
    dti_visit visit;
    dti_visit_host(&visit, base, DTI_IN_CALLBACK);
    base->logger.log(base->logger.user, level, text);
    dti_visit_returned(&visit);
}

static dt_result dti_fail(dti_base *base, dt_result result, const char *format, ...) {
    /* Apart from base->error, because an argument may be the old text, which is being extended. */
    char text[sizeof base->error];
    DTI_FORMAT(text, format);
    const size_t size = strlen(text);
    if (result == DT_ERROR_IO && base->io_how && !strstr(text, base->io_how))
        snprintf(text + size, sizeof text - size, "; %s", base->io_how);
    memcpy(base->error, text, strlen(text) + 1);
    base->result = result;
    dti_host_log(base, DT_LOG_ERROR, base->error);
    return result;
}

static dt_result dti_fail_null(dti_base *base, const char *what) {
    return base ? dti_fail(base, DT_ERROR_INVALID, "%s: %s is NULL", dti_function(), what)
                : DT_ERROR_INVALID;
}

static dt_result dti_fail_off(dti_base *base, const char *function, const char *why) {
    return base ? dti_fail(base, DT_ERROR_UNSUPPORTED, "%s: %s", function, why)
                : DT_ERROR_UNSUPPORTED;
}

static void dti_log(dti_base *base, dt_log_level level, const char *format, ...) {
    if (!base->logger.log)
        return;
    char text[sizeof base->error];
    DTI_FORMAT(text, format);
    dti_host_log(base, level, text);
}
