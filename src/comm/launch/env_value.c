/* Variables of the environment, one at a time: numbers, texts, and dtrain's own variables. It
 * refuses numbers with anything after them, values that would be cut, and two secrets at once. An
 * error's text quotes a value short and printable, and never a secret. The first error stays. */

/* ---- values */

/* The first error stays. false, for the caller to return. */
DTI_PRINTF(2, 3)
static bool dti_env_fail(dti_env_reader *r, const char *format, ...) {
    if (r->failed)
        return false;
    DTI_FORMAT(r->desc.error, format);
    r->failed = true;
    return false;
}

/* An empty variable counts as not set: some manifests and scripts set empty ones. */
static const char *dti_env_get(const dti_env_reader *r, const char *name) {
    const char *value = *name ? r->env->get(r->env->user, name) : NULL;
    return value && *value ? value : NULL;
}

typedef struct dti_quoted {
    char text[44];
} dti_quoted;

/* For an error's text: short, and nothing in it that a terminal would obey. */
static dti_quoted dti_env_quote(const char *value) {
    dti_quoted q;
    size_t i = 0, most = sizeof q.text - 4;
    for (; value[i] && i < most; i++)
        q.text[i] = value[i] >= 0x20 && value[i] < 0x7F ? value[i] : '?';
    memcpy(q.text + i, value[i] ? "..." : "", value[i] ? 4 : 1);
    return q;
}

/* Only digits, all of them; no sign, no space. */
static bool dti_env_parse(const char *text, uint64_t most, uint64_t *value) {
    return dti_digits(&text, most, value) && !*text;
}

/* *value stays as it is when the variable is not set. */
static bool dti_env_u64(dti_env_reader *r, const char *name, uint64_t least, uint64_t most,
                        uint64_t *value) {
    const char *text = dti_env_get(r, name);
    uint64_t v;
    if (!text)
        return true;
    if (!dti_env_parse(text, most, &v) || v < least)
        return dti_env_fail(r, "%s is \"%s\"; it must be a whole number from %llu to %llu", name,
                            dti_env_quote(text).text, (unsigned long long)least,
                            (unsigned long long)most);
    *value = v;
    return true;
}

static bool dti_env_int(dti_env_reader *r, const char *name, int least, int most, int *value) {
    uint64_t v = 0;
    if (!dti_env_get(r, name))
        return true;
    if (!dti_env_u64(r, name, (uint64_t)least, (uint64_t)most, &v))
        return false;
    *value = (int)v;
    return true;
}

/* A rank or a number of ranks; -1 when not set. */
static bool dti_env_count(dti_env_reader *r, const char *name, int least, int64_t *value) {
    int v = -1;
    bool ok = dti_env_int(r, name, least, DTI_WORLD_MAX, &v);
    *value = v;
    return ok;
}

/* Copies a text; one that would be cut is an error. `hint`: what to do instead. */
static bool dti_env_text(dti_env_reader *r, const char *name, char *to, size_t room,
                         const char *hint) {
    const char *text = dti_env_get(r, name);
    if (!text)
        return true;
    size_t size = strlen(text);
    if (size >= room)
        return dti_env_fail(r, "%s has %llu characters; it must have at most %llu%s", name,
                            (unsigned long long)size, (unsigned long long)room - 1, hint);
    memcpy(to, text, size + 1);
    return true;
}

/* ---- dtrain's own variables */

static bool dti_env_seconds(dti_env_reader *r, const char *name, int *ms) {
    int seconds = 0;
    bool ok = dti_env_int(r, name, 1, INT_MAX / 1000, &seconds);
    if (seconds)
        *ms = seconds * 1000;
    return ok;
}

static bool dti_env_port_range(dti_env_reader *r) {
    const char *text = dti_env_get(r, "DTRAIN_PORT_RANGE"), *at = text;
    uint64_t from = 0, to = 0;
    if (!text)
        return true;
    if (!dti_digits(&at, 65535, &from) || at - text > 5 || *at++ != '-' ||
        !dti_env_parse(at, 65535, &to) || from == 0 || from > to)
        return dti_env_fail(
            r, "DTRAIN_PORT_RANGE is \"%s\"; it must be LOW-HIGH, two ports from 1 to 65535",
            dti_env_quote(text).text);
    r->desc.port_low = (int)from;
    r->desc.port_high = (int)to;
    return true;
}

static bool dti_env_rendezvous(dti_env_reader *r) {
    char *url = r->desc.rendezvous;
    if (!dti_env_text(r, "DTRAIN_RDZV", url, sizeof r->desc.rendezvous, ""))
        return false;
    if (!strcmp(url, "env:"))
        *url = 0;
    return !*url || dti_rendezvous_is_known(url) ||
           dti_env_fail(r,
                        "DTRAIN_RDZV is \"%s\"; it must be tcp://host:port, file:///path, "
                        "tcpstore://host:port, pmix:, pmi: or env:",
                        dti_env_quote(url).text);
}

/* The descriptor's content stays secret: no text shows it. */
static bool dti_env_secret_descriptor(dti_env_reader *r) {
    int descriptor = 0;
    char text[sizeof r->desc.key] = "";
    if (!dti_env_int(r, "DTRAIN_SECRET_FD", 0, INT_MAX, &descriptor))
        return false;
    int got = r->env->descriptor_read
                  ? r->env->descriptor_read(r->env->user, descriptor, text, sizeof text)
                  : -1;
    if (got == 65 && text[64] == '\n')
        text[got = 64] = 0;
    if (got < 0)
        dti_env_fail(r,
                     "DTRAIN_SECRET_FD is %d, which is not an open file or pipe of this process; "
                     "did a program between dtrun and this one close it?",
                     descriptor);
    else if (got == 0)
        dti_env_fail(r, "DTRAIN_SECRET_FD is %d, which is empty; a pipe can be read only once",
                     descriptor);
    else if (got != 64)
        dti_env_fail(r, "DTRAIN_SECRET_FD is %d, which must hold 64 hex digits", descriptor);
    else
        memcpy(r->desc.key, text, 65);
    dti_wipe(text, sizeof text);
    return !r->failed;
}

static bool dti_env_secret(dti_env_reader *r) {
    static const char *const names[] = {"DTRAIN_SECRET", "DTRAIN_SECRET_FILE", "DTRAIN_SECRET_FD"};
    const char *set = NULL;
    int insecure = 0;
    if (!dti_env_int(r, "DTRAIN_INSECURE", 0, 1, &insecure))
        return false;
    r->desc.insecure = insecure == 1;
    if (insecure)
        set = "DTRAIN_INSECURE";
    for (size_t i = 0; i < DTI_COUNT(names); i++) {
        if (!dti_env_get(r, names[i]))
            continue;
        if (set)
            return dti_env_fail(r, "%s and %s are both set; unset one of them", set, names[i]);
        set = names[i];
    }
    if (!dti_env_text(r, names[0], r->desc.key, sizeof r->desc.key,
                      "; a key is 64 hex digits (openssl rand -hex 32)") ||
        !dti_env_text(r, names[1], r->desc.key_file, sizeof r->desc.key_file, ""))
        return false;
    return !dti_env_get(r, names[2]) || dti_env_secret_descriptor(r);
}

/* One of some names, which `how` lists. */
static bool dti_env_name(dti_env_reader *r, const char *name, const char *const *names, int count,
                         const char *how, int *value) {
    const char *text = dti_env_get(r, name);
    for (int i = 0; text && i < count; i++)
        if (!strcmp(text, names[i])) {
            *value = i;
            return true;
        }
    return !text ||
           dti_env_fail(r, "%s is \"%s\"; it must be %s", name, dti_env_quote(text).text, how);
}

static bool dti_env_protection(dti_env_reader *r) {
    static const char *const integrity[] = {[DT_COMM_CRC] = "crc",
                                            [DT_COMM_MAC] = "mac",
                                            [DT_COMM_TLS] = "tls",
                                            [DT_COMM_UNCHECKED] = "none"};
    static const char *const shared[] = {[DT_COMM_SHARED_DEFAULT] = "default",
                                         [DT_COMM_SHARED_OFF] = "off",
                                         [DT_COMM_SHARED_REQUIRED] = "required"};
    dt_comm_desc *d = &r->desc;
    return dti_env_name(r, "DTRAIN_INTEGRITY", integrity, DTI_COUNT(integrity),
                        "crc, mac, tls or none", (int *)&d->integrity) &&
           dti_env_text(r, "DTRAIN_TLS_CA", d->tls_ca, sizeof d->tls_ca, "") &&
           dti_env_text(r, "DTRAIN_TLS_CERT", d->tls_certificate, sizeof d->tls_certificate, "") &&
           dti_env_text(r, "DTRAIN_TLS_KEY", d->tls_private_key, sizeof d->tls_private_key, "") &&
           dti_env_text(r, "DTRAIN_TLS_NAME", d->tls_name, sizeof d->tls_name, "") &&
           dti_env_name(r, "DTRAIN_SHARED_MEMORY", shared, DTI_COUNT(shared),
                        "default, off or required", (int *)&d->shared_memory);
}

/* "off", or LATENCY_NS,BYTES_PER_S and perhaps ,MESSAGE_NS. */
static bool dti_env_link(dti_env_reader *r) {
    const char *text = dti_env_get(r, "DTRAIN_LINK"), *at = text;
    uint64_t values[3] = {0};
    bool more = true;
    if (!text)
        return true;
    r->desc.no_link = !strcmp(text, "off");
    for (int i = 0; more && i < 3 && dti_digits(&at, UINT64_MAX, &values[i]); i++) {
        more = *at == ',';
        at += more;
    }
    r->desc.link = (dt_comm_link){values[0], values[2], values[1]};
    return r->desc.no_link || (!more && !*at && values[0] && values[1]) ||
           dti_env_fail(r,
                        "DTRAIN_LINK is \"%s\"; it must be off or "
                        "LATENCY_NS,BYTES_PER_S[,MESSAGE_NS], whole numbers above 0",
                        dti_env_quote(text).text);
}

static bool dti_env_own(dti_env_reader *r) {
    dt_comm_desc *desc = &r->desc;
    return dti_env_rendezvous(r) && dti_env_port_range(r) &&
           dti_env_text(r, "DTRAIN_JOB", desc->job, sizeof desc->job, "") &&
           dti_env_u64(r, "DTRAIN_ATTEMPT", 0, UINT64_MAX, &desc->attempt) &&
           dti_env_text(r, "DTRAIN_CONGESTION", desc->congestion, sizeof desc->congestion, "") &&
           dti_env_int(r, "DTRAIN_WINDOW", 1, 64, &desc->window) &&
           dti_env_text(r, "DTRAIN_IFNAME", desc->interfaces, sizeof desc->interfaces, "") &&
           dti_env_seconds(r, "DTRAIN_TIMEOUT", &desc->join_timeout_ms) &&
           dti_env_seconds(r, "DTRAIN_SILENCE", &desc->silence_ms) && dti_env_link(r) &&
           dti_env_secret(r) && dti_env_protection(r);
}
