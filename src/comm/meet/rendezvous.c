/* How the ranks of a job find rank 0. It gives at least one listening socket of this rank, and for
 * other ranks the addresses of rank 0. They are looked up again at each try. A name may be
 * registered late; a file or a store may be of an earlier run. It does not decide about joining:
 * whatever answers at an address has to prove the key. Only desc.attempt distinguishes groups made
 * one after another at one place.
 *
 *   tcp://host:port       rank 0 listens at each address of the name that is this host's (without
 *                         one, as for a service's name, at the chosen interfaces)
 *   tcp://host:port+16    the same at the first of 16 ports that is free; the others try them all
 *   file:///path          rank 0 writes its addresses there, by a new file that it renames.
 *                         It removes the file when all have joined, or it gives up. Another
 *                         program's file stays, and is an error
 *   tcpstore://host:port  rank 0 leaves them in PyTorch's store, as torchrun has one
 *   pmix:  pmi:N          rank 0 gives them, and the key, to the launcher for all ranks */

#if DTI_TCP

#define DTI_RENDEZVOUS_TEXT 900
/* The launcher's channel: PMI's is the narrowest. */
#define DTI_RENDEZVOUS_LAUNCHER DTI_PMI_TEXT_MAX
#define DTI_RENDEZVOUS_CANDIDATES 4 /* ports in one look */
#define DTI_KV_LOOK_NS 2000000000u

typedef enum dti_rendezvous_where {
    DTI_MEET_TCP,
    DTI_MEET_FILE,
    DTI_MEET_STORE,
    DTI_MEET_LAUNCHER
} dti_rendezvous_where;

typedef struct dti_rendezvous {
    const dt_comm_desc *desc;
    dti_rendezvous_where place;
    dti_endpoint at;   /* tcp: rank 0; tcpstore: the store */
    uint64_t deadline; /* of the join, ns */
    dti_addresses own; /* published; each has a listening socket */
    int listeners[DTI_ADDRESSES_MAX];
    int error;           /* why the newest socket could not listen; 0 = it was not tried */
    bool in_use;         /* one of them because its port is taken */
    dti_addresses rank0; /* of the newest look */
    char told[DTI_RENDEZVOUS_TEXT]; /* by launcher or store: endpoints, space-separated */
    char why[192];                  /* the newest look found nothing */
    int looks;
    /* Several ports: the port of rank0.at[i], the last connected one (index + 1), and the ports at
     * which something else answers. */
    uint8_t candidate[DTI_ADDRESSES_MAX];
    int connected, turn;
    uint64_t others;
    bool wrote; /* the file */
} dti_rendezvous;

static bool dti_one_host(const dt_comm_desc *desc) {
    return desc->local_size > 0 && desc->local_size == desc->world_size;
}

static const char *dti_rendezvous_path(const dt_comm_desc *desc) {
    return desc->rendezvous + strlen("file://");
}

static void dti_rendezvous_deafen(dti_rendezvous *r) {
    for (int i = 0; i < r->own.count; i++)
        dti_socket_close(r->listeners[i]);
    r->own.count = 0;
}

/* ---- listening */

static void dti_rendezvous_listen(dti_rendezvous *r, dti_address a, int low, int high) {
    if (r->own.count == DTI_ADDRESSES_MAX || dti_addresses_have(&r->own, &a))
        return;
    int s = dti_listen_range(&a, low, high);
    if (s < 0) {
        r->error = errno;
        r->in_use |= errno == EADDRINUSE;
        return;
    }
    r->listeners[r->own.count] = s;
    r->own.at[r->own.count++] = a;
}

static void dti_loopback(dti_address *a) {
    *a = (dti_address){.bytes = sizeof a->in4};
    a->in4.sin_family = AF_INET;
    a->in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

/* By rule: the chosen interfaces, and no others; one host: loopback; else all that are not
 * loopback. */
static void dti_rendezvous_listen_rule(dti_rendezvous *r, int low, int high) {
    bool chosen = r->desc->interfaces[0] != 0;
    dti_addresses list = {.count = 0};
    if (chosen || !dti_one_host(r->desc))
        dti_interface_addresses(r->desc->interfaces, &list);
    for (int i = 0; i < list.count; i++)
        dti_rendezvous_listen(r, list.at[i], low, high);
    dti_address loopback;
    dti_loopback(&loopback);
    if (!r->own.count && !chosen)
        dti_rendezvous_listen(r, loopback, low, high);
}

/* The others listen where their packets to rank 0 leave; to each of its addresses, for one of them
 * may be dead. */
static void dti_rendezvous_listen_towards(dti_rendezvous *r) {
    int low = r->desc->port_low, high = r->desc->port_high;
    for (int i = 0; i < r->rank0.count && !r->desc->interfaces[0]; i++) {
        dti_address from;
        if (dti_address_towards(&r->rank0.at[i], &from))
            dti_rendezvous_listen(r, from, low, high);
    }
    if (!r->own.count)
        dti_rendezvous_listen_rule(r, low, high);
}

static dt_result dti_rendezvous_listened(dti_base *base, const dti_rendezvous *r) {
    const dt_comm_desc *d = r->desc;
    if (r->own.count)
        return DT_OK;
    if (!r->error)
        return dti_fail(base, DT_ERROR_IO,
                        "rank %d cannot listen: .interfaces is \"%s\", which matches no interface "
                        "that is up and has an address",
                        d->rank, d->interfaces);
    return dti_fail(base, DT_ERROR_IO,
                    "rank %d cannot listen (rendezvous \"%s\", interfaces \"%s\", ports %d to %d): "
                    "%s%s",
                    d->rank, d->rendezvous, d->interfaces, d->port_low, d->port_high,
                    dti_socket_text(r->error),
                    d->port_low ? "; .port_low to .port_high (DTRAIN_PORT_RANGE) need a free port "
                                  "for each rank of a host"
                                : "");
}

/* "localhost" and addresses are taken literally. A host's own name may be a loopback address to
 * itself (Debian's 127.0.1.1) and another one to the rest. */
static bool dti_rendezvous_is_literal(const char *host) {
    return strchr(host, ':') || host[strspn(host, "0123456789.")] == 0 ||
           !strncmp(host, "localhost", 9);
}

/* Rank 0 listens at one port on all addresses. If something else has the port on any of them, it
 * listens on none, because other ranks would find that. */
static void dti_rendezvous_listen_named(dti_rendezvous *r, const dti_addresses *found, int port) {
    bool outside = false;
    r->in_use = false;
    for (int i = 0; i < found->count && !r->in_use; i++) {
        dti_rendezvous_listen(r, found->at[i], port, port);
        outside = outside || !dti_address_is_loopback(&found->at[i]);
    }
    bool more = !outside && !dti_one_host(r->desc) && !dti_rendezvous_is_literal(r->at.host);
    if (!r->in_use && (!r->own.count || more))
        dti_rendezvous_listen_rule(r, port, port);
    if (r->in_use)
        dti_rendezvous_deafen(r);
}

/* Rank 0 of tcp://: at the name's addresses, the port it says or the first free one. */
static dt_result dti_rendezvous_host(dti_base *base, dti_rendezvous *r) {
    const char *url = r->desc->rendezvous;
    dti_addresses found;
    if (!r->at.port)
        return dti_fail(base, DT_ERROR_INVALID,
                        ".rendezvous is \"%s\"; other ranks need a port above 0", url);
    int error = dti_resolve(r->at.host, r->at.port, &found), tried = 0;
    if (error) /* a service's name comes when its pod is ready */
        dti_log(base, DT_LOG_WARNING,
                "rendezvous \"%s\": rank 0 cannot resolve the name (%s) and listens on all chosen "
                "interfaces",
                url, gai_strerror(error));
    do
        dti_rendezvous_listen_named(r, &found, dti_endpoint_port(&r->at, tried));
    while (!r->own.count && r->in_use && ++tried < r->at.ports);
    if (r->own.count && tried)
        dti_log(base, DT_LOG_INFO,
                "rendezvous \"%s\": %d ports are in use, so rank 0 listens on %d", url, tried,
                dti_endpoint_port(&r->at, tried));
    if (!r->own.count && r->in_use && r->at.ports > 1)
        return dti_fail(base, DT_ERROR_IO, "all %d ports of \"%s\" are in use; set DTRAIN_PORT",
                        r->at.ports, url);
    if (!r->own.count && r->in_use)
        return dti_fail(base, DT_ERROR_IO,
                        "port %d of \"%s\" is in use by another job, an earlier run or the "
                        "launcher's own server; choose another",
                        r->at.port, r->at.host);
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
    char *rest = NULL;
    for (char *word = dti_strtok(text, " \n", &rest); word; word = dti_strtok(NULL, " \n", &rest)) {
        dti_endpoint e;
        dti_addresses found;
        if (!dti_endpoint_parse("tcp://", word, &e) || dti_resolve(e.host, e.port, &found))
            continue;
        for (int i = 0; i < found.count; i++)
            dti_addresses_add(&r->rank0, &found.at[i].any, found.at[i].bytes);
    }
    if (!r->rank0.count)
        snprintf(r->why, sizeof r->why, "\"%.120s\" has no address of rank 0", r->desc->rendezvous);
}

/* ---- file:// */

/* The first line. It distinguishes files of other jobs and attempts. */
static size_t dti_rendezvous_line(const dt_comm_desc *d, char line[128]) {
    return (size_t)snprintf(line, 128, "dtrain %llu %s\n", (unsigned long long)d->attempt, d->job);
}

#if DTI_POSIX_2008
/* Rank 0's text; without a zero at its end. */
static size_t dti_rendezvous_mine_text(const dti_rendezvous *r, char text[DTI_RENDEZVOUS_TEXT]) {
    const size_t bytes = dti_rendezvous_line(r->desc, text);
    dti_rendezvous_text(r, text + bytes, DTI_RENDEZVOUS_TEXT - bytes - 1);
    const size_t size = strlen(text);
    text[size] = '\n';
    return size + 1;
}

/* The file's first bytes, up to one more than rank 0 writes. -1: see *why; errno ENOENT: no
 * file. */
static ssize_t dti_rendezvous_content(const char *path, char text[DTI_RENDEZVOUS_TEXT + 1],
                                      const char **why) {
    uint64_t size;
    int stream;
    errno = 0;
    if ((*why = dti_stream_open(path, &stream, &size)))
        return -1;
    const ssize_t bytes = dti_key_read_all(stream, text, DTI_RENDEZVOUS_TEXT + 1);
    if (bytes < 0)
        *why = strerror(errno);
    dti_stream_close(stream);
    return bytes;
}

/* An empty file, or one of any job and attempt. It may be replaced, and removed in the end. */
static bool dti_rendezvous_is_own(const char *text, ssize_t bytes) {
    static const char begin[] = "dtrain ";
    const size_t skip = sizeof begin - 1;
    if (bytes <= 0 || bytes > DTI_RENDEZVOUS_TEXT)
        return bytes == 0;
    return (size_t)bytes > skip && !memcmp(text, begin, skip) && text[bytes - 1] == '\n' &&
           text[skip] >= '0' && text[skip] <= '9';
}

static dt_result dti_rendezvous_publish(dti_base *base, dti_rendezvous *r) {
    char text[DTI_RENDEZVOUS_TEXT + 1];
    const char *path = dti_rendezvous_path(r->desc), *why;
    const ssize_t old = dti_rendezvous_content(path, text, &why);
    if (old < 0 && errno != ENOENT)
        return dti_fail(base, DT_ERROR_IO, "rendezvous file \"%s\": %s", path, why);
    if (old >= 0 && !dti_rendezvous_is_own(text, old))
        return dti_fail(base, DT_ERROR_IO,
                        "rendezvous file \"%s\": it exists and was not written by dtrain, which "
                        "would replace and then remove it; name a new file",
                        path);
    const size_t bytes = dti_rendezvous_mine_text(r, text);
    const dt_result result = dti_file_write_as(base, path, 0600, text, bytes);
    r->wrote = !result;
    return result ? dti_fail(base, result, "rendezvous file %s", base->error) : DT_OK;
}

/* All ranks have joined, or rank 0 gave up: removes the file, if it still is ours. */
static void dti_rendezvous_done(dti_rendezvous *r) {
    char text[DTI_RENDEZVOUS_TEXT + 1], mine[DTI_RENDEZVOUS_TEXT];
    const char *path = dti_rendezvous_path(r->desc), *why;
    if (r->wrote) {
        const size_t bytes = dti_rendezvous_mine_text(r, mine);
        if (dti_rendezvous_content(path, text, &why) == (ssize_t)bytes &&
            !memcmp(text, mine, bytes))
            dti_file_remove(path);
    }
    r->wrote = false;
}

static void dti_rendezvous_read(dti_rendezvous *r) {
    char text[DTI_RENDEZVOUS_TEXT + 1], line[128];
    const char *path = dti_rendezvous_path(r->desc), *why;
    const ssize_t bytes = dti_rendezvous_content(path, text, &why);
    if (bytes < 0)
        snprintf(r->why, sizeof r->why, "%s\"%.120s\": %s",
                 errno == ENOENT ? "rank 0 has not written " : "", path, why);
    size_t skip = dti_rendezvous_line(r->desc, line), size = (size_t)DTI_MAX(bytes, 0);
    if (bytes < 0)
        return;
    if (size <= skip || size == sizeof text || memcmp(text, line, skip) || text[size - 1] != '\n') {
        snprintf(r->why, sizeof r->why, "\"%.120s\" was written by another %s", path,
                 dti_rendezvous_is_own(text, bytes) ? "job or attempt" : "program");
        return;
    }
    text[size - 1] = 0;
    dti_rendezvous_parse(r, text + skip);
}
#else
static void dti_rendezvous_done(dti_rendezvous *r) {
    r->wrote = false;
}

static dt_result dti_rendezvous_publish(dti_base *base, dti_rendezvous *r) {
    return dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "rendezvous \"%s\": file:// needs POSIX; use tcp://", r->desc->rendezvous);
}

static void dti_rendezvous_read(dti_rendezvous *r) {
    snprintf(r->why, sizeof r->why, "file:// needs POSIX; use tcp://");
}
#endif

static void dti_rendezvous_close(dti_rendezvous *r) {
    dti_rendezvous_done(r);
    dti_rendezvous_deafen(r);
}

/* ---- tcpstore:// */

static void dti_rendezvous_key(const dt_comm_desc *d, char key[128]) {
    snprintf(key, 128, "/dtrain/%s/%llu", d->job, (unsigned long long)d->attempt);
}

static dt_result dti_rendezvous_store_set(dti_base *base, const dti_rendezvous *r) {
    char key[128], text[DTI_RENDEZVOUS_TEXT];
    dti_kv s;
    dti_rendezvous_key(r->desc, key);
    dti_rendezvous_text(r, text, sizeof text);
    dt_result result = dti_kv_open(&s, r->at.host, r->at.port, r->deadline);
    if (!result)
        result = dti_kv_set(&s, key, text);
    dti_kv_close(&s);
    if (!result)
        return DT_OK;
    return dti_fail(base, result,
                    "rendezvous \"%s\": rank 0 could not write its address to PyTorch's store: %s",
                    r->desc->rendezvous, s.why);
}

static dt_result dti_rendezvous_store_get(dti_rendezvous *r, uint64_t deadline) {
    char key[128], text[DTI_RENDEZVOUS_TEXT];
    dti_kv s;
    dti_rendezvous_key(r->desc, key);
    dt_result result = dti_kv_open(&s, r->at.host, r->at.port, deadline);
    bool there = !result;
    if (there)
        result = dti_kv_get(&s, key, text, sizeof text);
    dti_kv_close(&s);
    if (!result)
        memcpy(r->told, text, strlen(text) + 1);
    else if (there && result == DT_ERROR_TIMEOUT)
        snprintf(r->why, sizeof r->why, "rank 0 has not written its address to PyTorch's store");
    else
        snprintf(r->why, sizeof r->why, "PyTorch's store: %.150s", s.why);
    return result;
}

/* The first time there is the whole join's time. */
static dt_result dti_rendezvous_store_await(dti_base *base, dti_rendezvous *r) {
    dt_result result = dti_rendezvous_store_get(r, r->deadline);
    if (!result)
        return DT_OK;
    return dti_fail(base, result, "rendezvous \"%s\", rank %d, attempt %llu, %d ms: %s",
                    r->desc->rendezvous, r->desc->rank, (unsigned long long)r->desc->attempt,
                    r->desc->join_timeout_ms, r->why);
}

/* ---- both sides */

/* Several ports. First comes the most likely port of rank 0: the first one at which nothing else
 * answered. A few others follow in turn. So all are tried within some tries, and vanished packets
 * delay only these. */
static void dti_rendezvous_candidates(dti_rendezvous *r, const dti_addresses *found) {
    int addresses = DTI_MIN(found->count, DTI_ADDRESSES_MAX / DTI_RENDEZVOUS_CANDIDATES);
    int ports = r->at.ports, first = 0;
    if (r->connected)
        r->others |= (uint64_t)1 << r->candidate[r->connected - 1];
    r->connected = 0;
    while (first < ports && r->others >> first & 1)
        first++;
    if (first == ports)
        first = 0, r->others = 0;
    for (int n = 0, c; n < DTI_MIN(ports, DTI_RENDEZVOUS_CANDIDATES); n++) {
        do
            c = n ? r->turn = (r->turn + 1) % ports : first;
        while (n && c == first);
        for (int i = 0; i < addresses; i++) {
            dti_address a = found->at[i];
            dti_address_set_port(&a, dti_endpoint_port(&r->at, c));
            r->candidate[r->rank0.count] = (uint8_t)c;
            dti_addresses_add(&r->rank0, &a.any, a.bytes);
        }
    }
}

/* Whether another job may answer at rank 0's address without a mistake. Then the port is one of
 * several, or the address is from a file or store of an earlier run. */
static bool dti_rendezvous_is_guessed(const dti_rendezvous *r) {
    return r->at.ports > 1 || r->place == DTI_MEET_FILE || r->place == DTI_MEET_STORE;
}

/* The rest of the join's time, at least 1. */
static uint64_t dti_rendezvous_left_ns(const dti_rendezvous *r) {
    uint64_t now = dti_now_ns();
    return r->deadline > now ? r->deadline - now : 1;
}

/* rank0.at[index] took our connection. If it is not rank 0 there will be another look. */
static void dti_rendezvous_connected(dti_rendezvous *r, int index) {
    r->connected = index + 1;
}

static void dti_rendezvous_look_name(dti_rendezvous *r) {
    dti_addresses found;
    int error = dti_resolve(r->at.host, r->at.port, &found);
    if (error)
        snprintf(r->why, sizeof r->why, "\"%.100s\": %s", r->at.host, gai_strerror(error));
    else if (r->at.ports == 1)
        r->rank0 = found;
    else
        dti_rendezvous_candidates(r, &found);
}

/* Where rank 0 is; rank0.count 0: not known yet, r->why says why. */
static void dti_rendezvous_look(dti_rendezvous *r) {
    char text[DTI_RENDEZVOUS_TEXT];
    r->rank0.count = 0;
    r->why[0] = 0;
    if (r->place == DTI_MEET_TCP)
        dti_rendezvous_look_name(r);
    else if (r->place == DTI_MEET_FILE)
        dti_rendezvous_read(r);
    else {
        /* The text may be of an earlier group of this job, so a second look asks for it again. The
         * launcher can be asked only once. */
        if (DTI_HAS_LAUNCHERS && r->place == DTI_MEET_STORE && r->looks > 0)
            dti_rendezvous_store_get(r, DTI_MIN(dti_now_ns() + DTI_KV_LOOK_NS, r->deadline));
        memcpy(text, r->told, sizeof text);
        dti_rendezvous_parse(r, text);
    }
    r->looks++;
}

/* Rank 0's text for the launcher: the key in hex if it makes one, ";", its addresses. */
static dt_result dti_rendezvous_mine(dti_base *base, const dti_rendezvous *r, uint8_t key[32],
                                     bool *have_key, char mine[DTI_RENDEZVOUS_TEXT]) {
    size_t used = 0;
    if (!*have_key && !r->desc->insecure) {
        DTI_TRY(dti_key_make(base, key));
        *have_key = true;
        dti_hex_write(key, DTI_KEY_BYTES, mine);
        used = 2 * DTI_KEY_BYTES;
    }
    mine[used++] = ';';
    dti_rendezvous_text(r, mine + used, DTI_RENDEZVOUS_LAUNCHER + 1 - used);
    return DT_OK;
}

/* Rank 0's value. Each rank has a key of its own, uses rank 0's, or is insecure. */
static dt_result dti_rendezvous_given(dti_base *base, dti_rendezvous *r, const char *text,
                                      uint8_t key[32], bool *have_key) {
    const char *split = strchr(text, ';');
    bool wanted = !*have_key && !r->desc->insecure;
    if (!split)
        return dti_fail(
            base, DT_ERROR_FORMAT,
            "the launcher's value for rank 0's address is not valid: it must contain ';'");
    if (wanted && split == text)
        return dti_fail(base, DT_ERROR_REFUSED,
                        "rank 0 has its own key or is insecure, and rank %d is neither; give all "
                        "ranks the same key, or no rank a key",
                        r->desc->rank);
    if (wanted && !dti_key_parse(text, (size_t)(split - text), key))
        return dti_fail(base, DT_ERROR_FORMAT,
                        "the launcher's key for rank 0 is not valid: it must be 64 hex digits");
    snprintf(r->told, sizeof r->told, "%s", split + 1);
    return wanted ? dti_key_check(base, key, have_key) : DT_OK;
}

/* Rank 0's addresses and key travel through the launcher. */
static dt_result dti_rendezvous_exchange(dti_base *base, dti_rendezvous *r, uint8_t key[32],
                                         bool *have_key) {
    const dt_comm_desc *d = r->desc;
    char mine[DTI_RENDEZVOUS_TEXT] = "-", of0[DTI_RENDEZVOUS_TEXT] = "";
    dt_result result = d->rank ? DT_OK : dti_rendezvous_mine(base, r, key, have_key, mine);
    if (!result && d->rendezvous[3] == 'x')
        result =
            dti_pmix_exchange(base, (uint32_t)d->rank, d->join_timeout_ms, mine, of0, sizeof of0);
    else if (!result)
        result = dti_pmi_exchange(base, atoi(d->rendezvous + 4), (uint32_t)d->rank,
                                  d->join_timeout_ms, mine, of0, sizeof of0);
    if (!result && d->rank)
        result = dti_rendezvous_given(base, r, of0, key, have_key);
    dti_wipe(mine, sizeof mine);
    dti_wipe(of0, sizeof of0);
    return result;
}

/* ---- opening */

static dt_result dti_rendezvous_place(dti_base *base, dti_rendezvous *r) {
    const char *url = r->desc->rendezvous;
    if (!strcmp(url, "pmix:") || !strncmp(url, "pmi:", 4))
        r->place = DTI_MEET_LAUNCHER;
    else if (!strncmp(url, "file:///", 8))
        r->place = DTI_MEET_FILE;
    else if (dti_endpoint_parse("tcpstore://", url, &r->at) && r->at.ports == 1 && r->at.port)
        r->place = DTI_MEET_STORE;
    else if (dti_endpoint_parse("tcp://", url, &r->at))
        r->place = DTI_MEET_TCP;
    else
        return dti_fail(base, DT_ERROR_INVALID,
                        ".rendezvous is \"%s\"; it must be tcp://host:port, tcp://host:port+16 (16 "
                        "ports), file:///path, tcpstore://host:port, pmix: or pmi:N",
                        url);
    if (!DTI_HAS_LAUNCHERS && (r->place == DTI_MEET_LAUNCHER || r->place == DTI_MEET_STORE))
        return dti_fail(base, DT_ERROR_UNSUPPORTED, ".rendezvous is \"%s\": %s", url,
                        DTI_OFF(LAUNCHERS));
    return DT_OK;
}

static dt_result dti_rendezvous_listen_first(dti_base *base, dti_rendezvous *r) {
    if (r->place == DTI_MEET_TCP)
        return dti_rendezvous_host(base, r);
    dti_rendezvous_listen_rule(r, r->desc->port_low, r->desc->port_high);
    return dti_rendezvous_listened(base, r);
}

/* Gets the key, through the launcher or another way. In the latter case any process may read rank
 * 0's publication. Then rank 0 publishes its address, and the others ask for it. */
static dt_result dti_rendezvous_meet(dti_base *base, dti_rendezvous *r, uint8_t key[32],
                                     bool *have_key, dti_key_share *share) {
    const dt_comm_desc *d = r->desc;
    const char *host = r->at.host[0] ? r->at.host : NULL;
    if (DTI_HAS_LAUNCHERS && r->place == DTI_MEET_LAUNCHER) {
        DTI_TRY(dti_key_given(base, d, key, have_key));
        return dti_rendezvous_exchange(base, r, key, have_key);
    }
    DTI_TRY(dti_key_load(base, d, host, key, have_key, share));
    if (DTI_HAS_LAUNCHERS && r->place == DTI_MEET_STORE)
        return d->rank ? dti_rendezvous_store_await(base, r) : dti_rendezvous_store_set(base, r);
    return r->place == DTI_MEET_FILE && !d->rank ? dti_rendezvous_publish(base, r) : DT_OK;
}

/* Opens this rank's listening sockets, and gets the key. */
static dt_result dti_rendezvous_open(dti_base *base, dti_rendezvous *r, uint8_t key[32],
                                     bool *have_key, dti_key_share *share) {
    const dt_comm_desc *d = r->desc;
    r->deadline = dti_now_ns() + (uint64_t)d->join_timeout_ms * 1000000;
    dti_log(base, DT_LOG_INFO, "launcher=%s rank %d/%d local %d/%d rdzv=%s",
            d->launcher[0] ? d->launcher : "none", d->rank, d->world_size, d->local_rank,
            d->local_size, d->rendezvous);
    DTI_TRY(dti_rendezvous_place(base, r));
    if (!d->rank)
        DTI_TRY(dti_rendezvous_listen_first(base, r));
    DTI_TRY(dti_rendezvous_meet(base, r, key, have_key, share));
    if (!d->rank)
        return DT_OK;
    dti_rendezvous_look(r);
    dti_rendezvous_listen_towards(r);
    return dti_rendezvous_listened(base, r);
}

#endif
