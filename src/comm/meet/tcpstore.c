/* A client of PyTorch's TCPStore, by which torchrun's agent lets its processes exchange texts. It
 * has just enough for rank 0 to leave a text and for the others to wait for it. Any process that
 * reaches the store can read and change all of it, so no secret goes there.
 *
 * A message is a command of one byte and its arguments; a text is its size in 8 bytes and the text;
 * numbers are little-endian as on all hosts that PyTorch supports. Commands, up to PyTorch 2.0:
 *
 *   SET 0         key, value: no answer
 *   GET 2         key: its value; an absent key ends the connection
 *   WAIT 5        number of keys, keys: one byte 0, when all are there
 *   GETNUMKEYS 6  8 bytes
 *
 * Newer ones have the numbers shifted by one, and expect first 0, VALIDATE, with a magic number of
 * 4 bytes. They do not answer anything else, or close. No message asks for the version. But a
 * VALIDATE with four GETNUMKEYS after it shows it: newer stores answer the four. To older ones it
 * is a SET whose key has 5e17 bytes; they lack memory for it, and close the connection. As PyTorch
 * 1.13 and 2.9 answer, the latter with and without libuv. */

#if DTI_TCP

#define DTI_KV_MAGIC 0x3C85F7CEu
#define DTI_KV_MESSAGE 1280 /* the longest that is sent */
#define DTI_KV_ANSWER_NS 5000000000u
#define DTI_KV_CONNECT_NS 2000000000u
#define DTI_KV_KEYS_MAX ((uint64_t)1 << 40) /* a store has fewer keys than this */

/* As the older ones are numbered. */
typedef enum dti_kv_command {
    DTI_KV_SET = 0,
    DTI_KV_GET = 2,
    DTI_KV_WAIT = 5,
    DTI_KV_COUNT = 6
} dti_kv_command;

typedef struct dti_kv {
    int fd; /* -1 = none */
    bool newer;
    uint64_t deadline; /* of everything, ns */
    char why[192];     /* the error */
} dti_kv;

DTI_PRINTF(3, 4)
static dt_result dti_kv_fail(dti_kv *s, dt_result result, const char *format, ...) {
    DTI_FORMAT(s->why, format);
    return result;
}

static void dti_kv_close(dti_kv *s) {
    if (s->fd >= 0)
        dti_socket_close(s->fd);
    s->fd = -1;
}

/* ---- bytes */

/* The result of the socket's calls. */
static dt_result dti_kv_moved(dti_kv *s, int error) {
    if (error == DTI_SOCKET_LATE)
        return dti_kv_fail(s, DT_ERROR_TIMEOUT, "no answer");
    return error ? dti_kv_fail(s, DT_ERROR_IO, "%s", dti_socket_text(error)) : DT_OK;
}

/* So long from now, at most until the deadline. */
static uint64_t dti_kv_limit(const dti_kv *s, uint64_t ns) {
    return DTI_MIN(dti_now_ns() + ns, s->deadline);
}

static dt_result dti_kv_send(dti_kv *s, const uint8_t *data, size_t bytes) {
    return dti_kv_moved(s,
                        dti_socket_send_all(s->fd, data, bytes, dti_kv_limit(s, DTI_KV_ANSWER_NS)));
}

/* All of `bytes`; `limit` for the first byte. The rest must follow at once. */
static dt_result dti_kv_receive(dti_kv *s, void *to, size_t bytes, uint64_t limit) {
    uint8_t *at = to;
    while (bytes) {
        DTI_TRY(dti_kv_moved(s, dti_socket_await(s->fd, POLLIN, limit)));
        const dti_socket_part part = {at, bytes};
        const int64_t got = dti_socket_receive(s->fd, &part, 1);
        if (got == 0)
            return dti_kv_fail(s, DT_ERROR_IO, "it closed the connection");
        if (got < 0 && !dti_socket_would_block(errno))
            return dti_kv_fail(s, DT_ERROR_IO, "%s", dti_socket_text(errno));
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
            limit = dti_kv_limit(s, DTI_KV_ANSWER_NS);
        }
    }
    return DT_OK;
}

/* ---- connecting */

static dt_result dti_kv_connect_to(dti_kv *s, const dti_address *a) {
    char text[160];
    s->fd = dti_address_connect(a, "");
    int error = s->fd < 0 ? errno : 0;
    if (!error && dti_socket_await(s->fd, POLLOUT, dti_kv_limit(s, DTI_KV_CONNECT_NS)))
        error = ETIMEDOUT;
    if (!error)
        error = dti_socket_failed(s->fd);
    if (!error)
        return DT_OK;
    dti_kv_close(s);
    dti_address_why(a, error, text);
    return dti_kv_fail(s, DT_ERROR_IO, "%s", text);
}

static dt_result dti_kv_connect(dti_kv *s, const char *host, int port) {
    dti_addresses found;
    int error = dti_resolve(host, port, &found);
    dt_result result = DT_ERROR_IO;
    if (error)
        return dti_kv_fail(s, DT_ERROR_IO, "%s", gai_strerror(error));
    for (int i = 0; i < found.count && result; i++)
        result = dti_kv_connect_to(s, &found.at[i]);
    return result;
}

/* Numbers of keys. Another server at the port, such as HTTP, does not answer so. */
static dt_result dti_kv_counts(dti_kv *s, int count) {
    uint8_t answer[32];
    dt_result result =
        dti_kv_receive(s, answer, 8u * (size_t)count, dti_kv_limit(s, DTI_KV_ANSWER_NS));
    for (int i = 0; i < count && !result; i++)
        if (dti_get64(answer + 8 * i) > DTI_KV_KEYS_MAX)
            result =
                dti_kv_fail(s, DT_ERROR_FORMAT, "the server that answers is not PyTorch's store");
    return result;
}

/* Which of the two protocols; the connection stays open. */
static dt_result dti_kv_greet(dti_kv *s, const char *host, int port) {
    uint8_t newer[9], older = DTI_KV_COUNT;
    newer[0] = 0;
    dti_put32(newer + 1, DTI_KV_MAGIC);
    memset(newer + 5, DTI_KV_COUNT + 1, 4);
    s->newer = true;
    dt_result result = dti_kv_send(s, newer, sizeof newer);
    if (!result)
        result = dti_kv_counts(s, 4);
    if (result != DT_ERROR_IO)
        return result;
    dti_kv_close(s);
    s->newer = false;
    DTI_TRY(dti_kv_connect(s, host, port));
    DTI_TRY(dti_kv_send(s, &older, 1));
    return dti_kv_counts(s, 1);
}

/* Tries until a store answers, or the time is up. An agent may start after its ranks, and names may
 * be registered late. Another server that answers is an error at once. */
static dt_result dti_kv_open(dti_kv *s, const char *host, int port, uint64_t deadline) {
    uint64_t pause = 50000000;
    *s = (dti_kv){.fd = -1, .deadline = deadline};
    for (;;) {
        dt_result result = dti_kv_connect(s, host, port);
        if (!result)
            result = dti_kv_greet(s, host, port);
        if (!result)
            return DT_OK;
        dti_kv_close(s);
        uint64_t now = dti_now_ns();
        if (result == DT_ERROR_FORMAT)
            return result;
        if (now + pause >= deadline)
            return DT_ERROR_TIMEOUT;
        dti_thread_sleep(pause);
        pause = DTI_MIN(pause * 2, 999999999u);
    }
}

/* ---- texts */

typedef struct dti_kv_message {
    size_t bytes;
    uint8_t data[DTI_KV_MESSAGE];
} dti_kv_message;

static void dti_kv_begin(const dti_kv *s, dti_kv_message *m, dti_kv_command command) {
    m->data[0] = (uint8_t)(command + s->newer);
    m->bytes = 1;
}

/* Keys and values are short: see rendezvous.c. */
static void dti_kv_add(dti_kv_message *m, const char *text) {
    size_t bytes = DTI_MIN(strlen(text), sizeof m->data - m->bytes - 8);
    dti_put64(m->data + m->bytes, bytes);
    memcpy(m->data + m->bytes + 8, text, bytes);
    m->bytes += 8 + bytes;
}

/* The value of a key that exists. */
static dt_result dti_kv_take(dti_kv *s, const char *key, char *value, size_t room) {
    dti_kv_message m;
    uint8_t size[8];
    dti_kv_begin(s, &m, DTI_KV_GET);
    dti_kv_add(&m, key);
    DTI_TRY(dti_kv_send(s, m.data, m.bytes));
    DTI_TRY(dti_kv_receive(s, size, 8, dti_kv_limit(s, DTI_KV_ANSWER_NS)));
    uint64_t bytes = dti_get64(size);
    if (bytes >= room)
        return dti_kv_fail(s, DT_ERROR_FORMAT, "the value of \"%.80s\" is too long: %llu bytes",
                           key, (unsigned long long)bytes);
    value[bytes] = 0;
    return dti_kv_receive(s, value, (size_t)bytes, dti_kv_limit(s, DTI_KV_ANSWER_NS));
}

/* Waits for the key, then its value. */
static dt_result dti_kv_get(dti_kv *s, const char *key, char *value, size_t room) {
    dti_kv_message m;
    uint8_t answer = 1;
    dti_kv_begin(s, &m, DTI_KV_WAIT);
    dti_put64(m.data + 1, 1);
    m.bytes += 8;
    dti_kv_add(&m, key);
    DTI_TRY(dti_kv_send(s, m.data, m.bytes));
    DTI_TRY(dti_kv_receive(s, &answer, 1, s->deadline));
    if (answer)
        return dti_kv_fail(s, DT_ERROR_FORMAT, "it refused to wait for \"%.80s\"", key);
    return dti_kv_take(s, key, value, room);
}

/* A SET has no answer. Reading the value confirms it. */
static dt_result dti_kv_set(dti_kv *s, const char *key, const char *value) {
    dti_kv_message m;
    char there[DTI_KV_MESSAGE];
    dti_kv_begin(s, &m, DTI_KV_SET);
    if (strlen(key) + strlen(value) + 17 > sizeof m.data)
        return dti_kv_fail(s, DT_ERROR_INVALID, "the text is too long");
    dti_kv_add(&m, key);
    dti_kv_add(&m, value);
    DTI_TRY(dti_kv_send(s, m.data, m.bytes));
    DTI_TRY(dti_kv_take(s, key, there, sizeof there));
    if (strcmp(there, value) != 0)
        return dti_kv_fail(s, DT_ERROR_IO,
                           "another process has set \"%.80s\": are there two ranks 0?", key);
    return DT_OK;
}

#endif
