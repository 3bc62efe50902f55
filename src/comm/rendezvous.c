/* How the ranks of a job find rank 0. What it gives is at least one listening socket of this rank's
 * own and, at the others, addresses of rank 0, looked up anew at each try: a name may come into
 * being late, a file may be of an earlier run.
 *
 *   tcp://host:port   rank 0 listens at each address of the name that is this host's (if there is
 *                     none, as behind a service's name, at the interfaces that were chosen)
 *   file:///path      rank 0 writes its addresses there, under a new name that is then renamed
 *   pmix:  pmi:N      rank 0 gives them, and the key, to the launcher, and that to the others */

#if DTI_TCP

#define DTI_MEETING_TEXT 900

typedef struct dti_rendezvous {
    const dt_comm_desc *desc;
    dti_addresses own; /* published; each has a listening socket */
    int listeners[DTI_ADDRESSES_MAX];
    dti_addresses rank0;         /* of the newest look */
    char told[DTI_MEETING_TEXT]; /* by the launcher: endpoints, in spaces */
    char why[192];               /* the newest look found nothing */
} dti_rendezvous;

static bool dti_one_host(const dt_comm_desc *desc) {
    return desc->local_size > 0 && desc->local_size == desc->world_size;
}

static void dti_rendezvous_close(dti_rendezvous *r) {
    for (int i = 0; i < r->own.count; i++)
        if (r->listeners[i] >= 0)
            close(r->listeners[i]);
    r->own.count = 0;
}

/* ---- listening */

static bool dti_rendezvous_listen(dti_rendezvous *r, dti_address a, int low, int high) {
    if (r->own.count == DTI_ADDRESSES_MAX)
        return false;
    int s = dti_listen_range(&a, low, high);
    if (s < 0)
        return false;
    r->listeners[r->own.count] = s;
    r->own.at[r->own.count++] = a;
    return true;
}

static void dti_loopback(dti_address *a) {
    struct sockaddr_in in = {.sin_family = AF_INET};
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *a = (dti_address){.bytes = sizeof in};
    memcpy(&a->sock, &in, sizeof in);
}

/* By rule: the chosen interfaces; one host: loopback; else all that are not loopback. */
static void dti_rendezvous_listen_rule(dti_rendezvous *r, int low, int high) {
    dti_addresses list = {.count = 0};
    if (r->desc->interfaces[0] || !dti_one_host(r->desc))
        dti_interface_addresses(r->desc->interfaces, &list);
    for (int i = 0; i < list.count; i++)
        dti_rendezvous_listen(r, list.at[i], low, high);
    dti_address loopback;
    dti_loopback(&loopback);
    if (!r->own.count)
        dti_rendezvous_listen(r, loopback, low, high);
}

/* The others listen where their packets to rank 0 leave. */
static void dti_rendezvous_listen_towards(dti_rendezvous *r) {
    int low = r->desc->port_low, high = r->desc->port_high;
    for (int i = 0; i < r->rank0.count && !r->own.count && !r->desc->interfaces[0]; i++) {
        dti_address from;
        if (dti_address_towards(&r->rank0.at[i], &from)) {
            dti_address_set_port(&from, 0);
            dti_rendezvous_listen(r, from, low, high);
        }
    }
    if (!r->own.count)
        dti_rendezvous_listen_rule(r, low, high);
}

static dt_result dti_rendezvous_listened(dti_base *base, const dti_rendezvous *r) {
    if (r->own.count)
        return DT_OK;
    const dt_comm_desc *d = r->desc;
    return dti_fail(base, DT_ERROR_IO,
                    "rank %d cannot listen (rendezvous \"%s\", interfaces \"%s\", ports %d to %d): "
                    "%s",
                    d->rank, d->rendezvous, d->interfaces, d->port_low, d->port_high,
                    strerror(errno));
}

/* Rank 0 of tcp://: at the name's addresses, the port it says. */
static dt_result dti_rendezvous_host(dti_base *base, dti_rendezvous *r) {
    char host[256], port[8];
    dti_addresses found;
    if (!dti_endpoint_split(r->desc->rendezvous, host, port))
        return dti_fail(base, DT_ERROR_INVALID, "rendezvous \"%s\" is not tcp://host:port",
                        r->desc->rendezvous);
    int number = atoi(port), error = dti_resolve(host, port, &found), last = 0;
    if (error)
        return dti_fail(base, DT_ERROR_IO, "rendezvous \"%s\": %s", r->desc->rendezvous,
                        gai_strerror(error));
    for (int i = 0; i < found.count; i++) {
        errno = 0;
        if (!dti_rendezvous_listen(r, found.at[i], number, number))
            last = errno == EADDRINUSE ? EADDRINUSE : last;
    }
    if (!r->own.count && last == EADDRINUSE)
        return dti_fail(base, DT_ERROR_IO,
                        "port %s of \"%s\" is in use: by another job, an earlier run that has not "
                        "ended, or the launcher's own server; choose another",
                        port, host);
    if (!r->own.count)
        dti_rendezvous_listen_rule(r, number, number);
    return dti_rendezvous_listened(base, r);
}

/* ---- rank 0's addresses as text: "tcp://a:1 tcp://b:2" */

static void dti_rendezvous_text(const dti_rendezvous *r, char *text, size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < r->own.count && used + 80 < room; i++) {
        char one[64];
        dti_address_text(&r->own.at[i], one);
        used += (size_t)snprintf(text + used, room - used, "%stcp://%s", i ? " " : "", one);
    }
}

static void dti_rendezvous_parse(dti_rendezvous *r, char *text) {
    r->rank0.count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        char host[256], port[8];
        dti_addresses found;
        if (!dti_endpoint_split(word, host, port) || dti_resolve(host, port, &found))
            continue;
        for (int i = 0; i < found.count; i++)
            dti_addresses_add(&r->rank0, (const struct sockaddr *)&found.at[i].sock,
                              found.at[i].bytes);
    }
}

/* ---- file:// */

static const char *dti_rendezvous_path(const dt_comm_desc *desc) {
    return desc->rendezvous + strlen("file://");
}

static dt_result dti_rendezvous_publish(dti_base *base, const dti_rendezvous *r) {
    char text[DTI_MEETING_TEXT], fresh[300];
    const char *path = dti_rendezvous_path(r->desc);
    dti_rendezvous_text(r, text, sizeof text - 1);
    size_t bytes = strlen(text);
    text[bytes++] = '\n';
    snprintf(fresh, sizeof fresh, "%s.%ld.tmp", path, (long)getpid());
    int file = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = file >= 0 && write(file, text, bytes) == (ssize_t)bytes && fsync(file) == 0;
    int error = errno;
    if (file >= 0)
        close(file);
    if (ok && rename(fresh, path) == 0)
        return DT_OK;
    error = ok ? errno : error;
    if (file >= 0)
        unlink(fresh);
    return dti_fail(base, DT_ERROR_IO, "rendezvous file \"%s\": %s", path, strerror(error));
}

static void dti_rendezvous_read(dti_rendezvous *r) {
    char text[DTI_MEETING_TEXT];
    const char *path = dti_rendezvous_path(r->desc);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    if (bytes < 0)
        snprintf(r->why, sizeof r->why, "rank 0 has not written %.120s yet: %s", path,
                 strerror(errno));
    if (file >= 0)
        close(file);
    text[DTI_MAX(bytes, 0)] = 0;
    dti_rendezvous_parse(r, text);
}

/* ---- both sides */

/* Where rank 0 is; rank0.count 0: not known yet, r->why says why. */
static void dti_rendezvous_look(dti_rendezvous *r) {
    char host[256], port[8], text[DTI_MEETING_TEXT];
    r->rank0.count = 0;
    r->why[0] = 0;
    if (r->told[0]) {
        memcpy(text, r->told, sizeof text);
        dti_rendezvous_parse(r, text);
    } else if (!strncmp(r->desc->rendezvous, "file://", 7))
        dti_rendezvous_read(r);
    else if (dti_endpoint_split(r->desc->rendezvous, host, port)) {
        int error = dti_resolve(host, port, &r->rank0);
        if (error)
            snprintf(r->why, sizeof r->why, "\"%.100s\": %s", host, gai_strerror(error));
    }
}

static bool dti_rendezvous_is_launchers(const dt_comm_desc *desc) {
    return !strncmp(desc->rendezvous, "pmi", 3);
}

/* Rank 0's addresses and key travel through the launcher. */
static dt_result dti_rendezvous_exchange(dti_base *base, dti_rendezvous *r, uint8_t key[32],
                                         bool *have_key) {
    const dt_comm_desc *d = r->desc;
    char mine[DTI_MEETING_TEXT] = "-", of0[DTI_MEETING_TEXT + 1];
    if (!d->rank) {
        char hex[2 * DTI_KEY_BYTES + 1] = "";
        if (!*have_key && !d->insecure) {
            dt_result result = dti_key_make(base, key);
            if (result)
                return result;
            *have_key = true;
            dti_key_to_hex(key, DTI_KEY_BYTES, hex);
        }
        size_t used = (size_t)snprintf(mine, sizeof mine, "%s;", hex);
        dti_rendezvous_text(r, mine + used, sizeof mine - used);
    }
    dt_result result =
        d->rendezvous[3] == 'x'
            ? dti_pmix_exchange(base, (uint32_t)d->rank, d->join_timeout_ms, mine, of0, sizeof of0)
            : dti_pmi_exchange(base, atoi(d->rendezvous + 4), (uint32_t)d->rank, d->join_timeout_ms,
                               mine, of0, sizeof of0);
    char *split = result ? NULL : strchr(of0, ';');
    if (result)
        return result;
    if (!split || (split != of0 && !dti_key_parse(of0, (size_t)(split - of0), key)))
        return dti_fail(base, DT_ERROR_FORMAT, "the launcher gave \"%.40s\" for rank 0's address",
                        of0);
    *have_key = *have_key || split != of0;
    if (!d->rank)
        return DT_OK;
    snprintf(r->told, sizeof r->told, "%s", split + 1);
    return DT_OK;
}

/* Opens this rank's listening sockets, and gets the key. */
static dt_result dti_rendezvous_open(dti_base *base, dti_rendezvous *r, uint8_t key[32],
                                     bool *have_key, dti_key_share *share) {
    const dt_comm_desc *d = r->desc;
    char host[256] = "", port[8];
    bool tcp = dti_endpoint_split(d->rendezvous, host, port),
         launchers = dti_rendezvous_is_launchers(d);
    dt_result result = DT_OK;
    if (!tcp && !launchers && strncmp(d->rendezvous, "file:///", 8))
        return dti_fail(
            base, DT_ERROR_UNSUPPORTED,
            "rendezvous \"%s\": use tcp://host:port or file:///path (under torchrun set "
            "DTRAIN_PORT to a free port of rank 0's host)",
            d->rendezvous);
    if (!d->rank && tcp)
        result = dti_rendezvous_host(base, r);
    else if (!d->rank)
        dti_rendezvous_listen_rule(r, d->port_low, d->port_high);
    if (!result && !d->rank)
        result = dti_rendezvous_listened(base, r);
    if (!result && launchers)
        result = dti_key_given(base, d, key, have_key);
    else if (!result)
        result = dti_key_load(base, d, tcp ? host : NULL, key, have_key, share);
    if (!result && launchers)
        result = dti_rendezvous_exchange(base, r, key, have_key);
    if (!result && !d->rank && !strncmp(d->rendezvous, "file://", 7))
        result = dti_rendezvous_publish(base, r);
    if (result || !d->rank)
        return result;
    dti_rendezvous_look(r);
    dti_rendezvous_listen_towards(r);
    return dti_rendezvous_listened(base, r);
}

#endif
