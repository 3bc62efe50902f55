/* Addresses of ranks: names to addresses, the address by which this host reaches another, and the
 * bytes that ranks exchange them as. A rank listens on exactly the addresses that it publishes.
 * They are those of the chosen interfaces, else the one from which packets to the rendezvous leave.
 * The system reports that for an unconnected socket; it is not guessed from a host name. */

#if DTI_TCP

#define DTI_ADDRESSES_MAX 8

typedef struct dti_address {
    union {
        struct sockaddr_storage sock;
        struct sockaddr any;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    };
    socklen_t bytes;
} dti_address;

typedef struct dti_addresses {
    dti_address at[DTI_ADDRESSES_MAX];
    int count;
} dti_addresses;

static void dti_address_set_port(dti_address *a, int port) {
    if (a->sock.ss_family == AF_INET6)
        a->in6.sin6_port = htons((uint16_t)port);
    else
        a->in4.sin_port = htons((uint16_t)port);
}

static int dti_address_port(const dti_address *a) {
    return ntohs(a->sock.ss_family == AF_INET6 ? a->in6.sin6_port : a->in4.sin_port);
}

/* Without the port: 4 or 16 bytes. */
static const void *dti_address_host(const dti_address *a, uint32_t *bytes) {
    const bool six = a->sock.ss_family == AF_INET6;
    *bytes = six ? 16 : 4;
    return six ? (const void *)&a->in6.sin6_addr : (const void *)&a->in4.sin_addr;
}

static bool dti_address_is_loopback(const dti_address *a) {
    if (a->sock.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
    return ntohl(a->in4.sin_addr.s_addr) >> 24 == 127;
}

/* "10.0.0.3:4711", "[fe80::1]:4711". */
static void dti_address_text(const dti_address *a, char text[64]) {
    char host[INET6_ADDRSTRLEN] = "?";
    uint32_t bytes;
    inet_ntop(a->sock.ss_family, dti_address_host(a, &bytes), host, sizeof host);
    snprintf(text, 64, bytes == 16 ? "[%s]:%d" : "%s:%d", host, dti_address_port(a));
}

/* "10.0.0.3:4711: connection refused". */
static void dti_address_why(const dti_address *a, int error, char text[160]) {
    char where[64];
    dti_address_text(a, where);
    snprintf(text, 160, "%s: %s", where, dti_socket_text(error));
}

/* A connection to it under way; -1, with errno. congestion: the congestion control that it has from
 * the first packet on; "" = the system's choice. */
static int dti_address_connect(const dti_address *a, const char *congestion) {
    int fd = dti_socket_new(a->sock.ss_family, SOCK_STREAM);
    if (fd < 0)
        return -1;
    if (congestion[0])
        dti_socket_congestion(fd, congestion);
    dti_socket_watch(fd);
    if (dti_socket_connect(fd, &a->sock, a->bytes) || errno == EINPROGRESS)
        return fd;
    dti_socket_close(fd);
    return -1;
}

static bool dti_addresses_add(dti_addresses *list, const struct sockaddr *sock, socklen_t bytes) {
    if (list->count == DTI_ADDRESSES_MAX || (size_t)bytes > sizeof list->at[0].sock)
        return false;
    dti_address a = {.bytes = bytes};
    memcpy(&a.sock, sock, bytes);
    list->at[list->count++] = a;
    return true;
}

/* ---- names */

/* Ports after the last one start there again. */
#define DTI_BINDING_WRAP 61440

typedef struct dti_endpoint {
    char host[256];
    int port, ports; /* ports: how many candidates, from `port` on */
} dti_endpoint;

static int dti_endpoint_port(const dti_endpoint *e, int candidate) {
    int port = e->port + candidate;
    return port > 65535 ? port - 65536 + DTI_BINDING_WRAP : port;
}

/* Reads the text after `scheme`: "host:port", "[::1]:port", "host:port+16": 16 candidates. False =
 * not of that form. */
static bool dti_endpoint_parse(const char *scheme, const char *text, dti_endpoint *e) {
    size_t skip = strlen(scheme);
    if (strncmp(text, scheme, skip) != 0)
        return false;
    const char *at = text + skip, *colon = strrchr(at, ':');
    if (!colon || colon == at || colon - at >= (ptrdiff_t)sizeof e->host)
        return false;
    const char *plus = strchr(colon, '+'), *port = colon + 1;
    size_t size = (size_t)(colon - at);
    uint64_t first, ports = 1;
    if (!dti_digits_of(port, plus ? (size_t)(plus - port) : strlen(port), 5, 65535, &first) ||
        (plus && !dti_digits_of(plus + 1, strlen(plus + 1), 5, 64, &ports)) || !ports)
        return false;
    e->port = (int)first, e->ports = (int)ports;
    bool brackets = at[0] == '[' && at[size - 1] == ']';
    if (brackets)
        at++, size -= 2;
    if (size == 0 || memchr(at, '[', size) || memchr(at, ']', size))
        return false;
    memcpy(e->host, at, size);
    e->host[size] = 0;
    return true;
}

static bool dti_address_is_same_host(const dti_address *a, const dti_address *b) {
    uint32_t bytes, others;
    const void *x = dti_address_host(a, &bytes), *y = dti_address_host(b, &others);
    return bytes == others && !memcmp(x, y, bytes) &&
           (bytes == 4 || a->in6.sin6_scope_id == b->in6.sin6_scope_id);
}

static bool dti_addresses_have(const dti_addresses *list, const dti_address *a) {
    for (int i = 0; i < list->count; i++)
        if (dti_address_is_same_host(&list->at[i], a))
            return true;
    return false;
}

/* All addresses of a name, each once. 0, or getaddrinfo's error. */
static int dti_resolve(const char *host, int port, dti_addresses *out) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    out->count = 0;
    int error = getaddrinfo(host, NULL, &hints, &found);
    if (error)
        return error;
    for (struct addrinfo *a = found; a; a = a->ai_next) {
        dti_address one = {.bytes = a->ai_addrlen};
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        memcpy(&one.sock, a->ai_addr, a->ai_addrlen);
        dti_address_set_port(&one, port);
        if (!dti_addresses_have(out, &one))
            dti_addresses_add(out, &one.any, one.bytes);
    }
    freeaddrinfo(found);
    return out->count ? 0 : EAI_NONAME;
}

/* The address of this host that packets to `to` leave from. */
static bool dti_address_towards(const dti_address *to, dti_address *out) {
    int s = dti_socket_new(to->sock.ss_family, SOCK_DGRAM);
    if (s < 0)
        return false;
    out->bytes = sizeof out->sock;
    bool ok =
        dti_socket_connect(s, &to->sock, to->bytes) && dti_socket_name(s, &out->sock, &out->bytes);
    dti_socket_close(s);
    return ok;
}

/* ---- interfaces: "eth,ib" = names that begin so; "^docker,veth" = all but those */

static bool dti_interface_matches(const char *pattern, const char *name) {
    bool except = pattern[0] == '^';
    const char *at = pattern + except;
    while (*at) {
        size_t size = strcspn(at, ",");
        if (size && strncmp(at, name, size) == 0)
            return !except;
        at += size + (at[size] == ',');
    }
    return except;
}

/* Of the interfaces that are up: those that match `pattern`, or, with "", those that are not
 * loopback. On Windows, where names are long and change, it is the address that is matched. */
#ifdef _WIN32
static void dti_interface_addresses(const char *pattern, dti_addresses *out) {
    INTERFACE_INFO all[32];
    DWORD bytes = 0;
    int s = dti_socket_new(AF_INET, SOCK_DGRAM);
    out->count = 0;
    if (s < 0)
        return;
    if (WSAIoctl((SOCKET)s, SIO_GET_INTERFACE_LIST, NULL, 0, all, sizeof all, &bytes, NULL, NULL))
        bytes = 0;
    dti_socket_close(s);
    for (size_t i = 0; i < bytes / sizeof all[0]; i++) {
        char text[64];
        dti_addresses one = {.count = 0};
        dti_addresses_add(&one, &all[i].iiAddress.Address, sizeof all[i].iiAddress.AddressIn);
        dti_address_text(&one.at[0], text);
        const bool wanted =
            pattern[0] ? dti_interface_matches(pattern, text) : !(all[i].iiFlags & IFF_LOOPBACK);
        if (all[i].iiFlags & IFF_UP && wanted)
            dti_addresses_add(out, &all[i].iiAddress.Address, one.at[0].bytes);
    }
}
#else
static void dti_interface_addresses(const char *pattern, dti_addresses *out) {
    struct ifaddrs *all = NULL;
    out->count = 0;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
            continue;
        bool six = i->ifa_addr->sa_family == AF_INET6;
        if (!six && i->ifa_addr->sa_family != AF_INET)
            continue;
        bool wanted = pattern[0] ? dti_interface_matches(pattern, i->ifa_name)
                                 : !(i->ifa_flags & IFF_LOOPBACK);
        /* A link-local address means nothing without its interface. */
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
        if (wanted && !(six && IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)))
            dti_addresses_add(out, i->ifa_addr,
                              six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
    }
    freeifaddrs(all);
}
#endif

/* The address of the side that dialled a connection, without the port: DTI_SOURCE_BYTES. 0: this
 * host, or not known. */
static void dti_address_source(int fd, uint8_t source[8]) {
    static const uint8_t mapped[12] = {[10] = 0xFF, [11] = 0xFF}; /* IPv4 in IPv6 */
    dti_address from = {.bytes = sizeof from.sock};
    memset(source, 0, 8);
    if (!dti_socket_peer(fd, &from.sock, &from.bytes))
        return;
    if (from.sock.ss_family == AF_INET)
        memcpy(source + 4, &from.in4.sin_addr, 4);
    else if (from.sock.ss_family == AF_INET6) {
        const uint8_t *at = (const uint8_t *)&from.in6.sin6_addr;
        const bool old = memcmp(at, mapped, 12) == 0;
        memcpy(old ? source + 4 : source, old ? at + 12 : at, old ? 4 : 8);
    }
}

/* ---- in a JOIN: one byte 4 or 6, the port in two bytes, then 4 or 16 bytes; one after another.
 * With byte 1 and two zeros: host and name of a local socket (all 0: it has none). */

#define DTI_LOCAL_FAMILY 1
#define DTI_LOCAL_PACKED (3 + DTI_HOST_BYTES + DTI_LOCAL_BYTES)

static uint32_t dti_local_pack(const uint8_t host[DTI_HOST_BYTES],
                               const uint8_t name[DTI_LOCAL_BYTES], uint8_t *out) {
    memset(out, 0, 3);
    out[0] = DTI_LOCAL_FAMILY;
    memcpy(out + 3, host, DTI_HOST_BYTES);
    memcpy(out + 3 + DTI_HOST_BYTES, name, DTI_LOCAL_BYTES);
    return DTI_LOCAL_PACKED;
}

static uint32_t dti_packed_bytes(uint8_t family) {
    return family == 6 ? 19 : family == DTI_LOCAL_FAMILY ? DTI_LOCAL_PACKED : 7;
}

/* Whether they are of a rank of this host; `name` is then that of its socket. */
static bool dti_local_unpack(const uint8_t *in, uint32_t bytes, const uint8_t host[DTI_HOST_BYTES],
                             uint8_t name[DTI_LOCAL_BYTES]) {
    for (uint32_t at = 0; at + 7 <= bytes; at += dti_packed_bytes(in[at])) {
        if (in[at] != DTI_LOCAL_FAMILY || at + DTI_LOCAL_PACKED > bytes)
            continue;
        memcpy(name, in + at + 3 + DTI_HOST_BYTES, DTI_LOCAL_BYTES);
        return memcmp(in + at + 3, host, DTI_HOST_BYTES) == 0;
    }
    return false;
}

static uint32_t dti_addresses_pack(const dti_addresses *list, uint8_t out[DTI_ADDRESS_BYTES]) {
    uint32_t at = 0;
    for (int i = 0; i < list->count; i++) {
        const dti_address *a = &list->at[i];
        uint32_t size;
        const void *host = dti_address_host(a, &size);
        if (at + 3 + size > DTI_ADDRESS_BYTES - DTI_LOCAL_PACKED)
            break;
        out[at] = size == 16 ? 6 : 4;
        dti_put16(out + at + 1, (uint32_t)dti_address_port(a));
        memcpy(out + at + 3, host, size);
        at += 3 + size;
    }
    return at;
}

static void dti_addresses_unpack(const uint8_t *in, uint32_t bytes, dti_addresses *out) {
    out->count = 0;
    for (uint32_t at = 0; at + 7 <= bytes;) {
        bool six = in[at] == 6;
        uint32_t size = six ? 16 : 4;
        if (in[at] == DTI_LOCAL_FAMILY) {
            at += DTI_LOCAL_PACKED;
            continue;
        }
        if ((!six && in[at] != 4) || at + 3 + size > bytes)
            return;
        dti_address a = {.bytes = six ? sizeof a.in6 : sizeof a.in4};
        a.sock.ss_family = six ? AF_INET6 : AF_INET;
        memcpy(six ? (void *)&a.in6.sin6_addr : (void *)&a.in4.sin_addr, in + at + 3, size);
        dti_address_set_port(&a, (int)dti_get16(in + at + 1));
        dti_addresses_add(out, &a.any, a.bytes);
        at += 3 + size;
    }
}

/* ---- listening */

/* A listening socket at `a`, whose port is filled in; -1, with errno. reuse: connections of a job
 * that has just ended may still be at the port. */
static int dti_listen_as(dti_address *a, bool reuse) {
    int s = dti_socket_new(a->sock.ss_family, SOCK_STREAM);
    if (s < 0)
        return -1;
    if (reuse)
        dti_socket_set(s, SOL_SOCKET, DTI_SOCKET_REUSE, 1);
    if (a->sock.ss_family == AF_INET6)
        dti_socket_set(s, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (dti_socket_listen(s, &a->sock, &a->bytes))
        return s;
    dti_socket_close(s);
    return -1;
}

static int dti_listen_at(dti_address *a) {
    return dti_listen_as(a, dti_address_port(a) != 0);
}

/* The same at the first free port of low .. high; 0, 0 = the system's choice. */
static int dti_listen_range(dti_address *a, int low, int high) {
    int s = -1;
    for (int port = low; port <= high && s < 0; port++) {
        dti_address_set_port(a, port);
        s = dti_listen_at(a);
        if (s < 0 && errno != EADDRINUSE && errno != EACCES)
            break;
    }
    return s;
}

#endif
