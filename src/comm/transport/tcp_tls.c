/* A connection's bytes through TLS (tls.c): what tcp_conn.c does in the clear, with the same rules.
 * A link hears of a connection it dialled, and reads its first byte, when the TLS handshake is
 * done; until then its deadline is that of dtrain's. */

#if DTI_TCP && defined DT_WITH_OPENSSL

#define DTI_TLS_TEXT 160
#define DTI_TLS_TRIES 3u /* a key that differs does so each time, a bit that changed does not */

/* Over for the link; what OpenSSL wrote last, an alert, still goes out. */
static void dti_conn_tls_failed(dti_tcp *t, dti_tcp_conn *c, const char *why) {
    dti_link *link = c->link;
    char text[DTI_TLS_TEXT + 64];
    const uint8_t *alert;
    size_t bytes = dti_tls_output(&c->tls, &alert);
    if (bytes)
        dti_socket_send(c->fd, &(dti_socket_part){(void *)(uintptr_t)alert, bytes}, 1, false);
    const bool open = link->state == DTI_LINK_OPEN;
    snprintf(text, sizeof text, "%s: %s", open ? "TLS" : "the TLS handshake failed", why);
    if (open && t->core.state == DTI_CORE_JOINING) { /* it is joined again, like one that broke */
        dti_core_closed(&t->core, link, text);
        return;
    }
    if (open) {
        dti_core_link_failed(&t->core, link, DT_ERROR_CORRUPT, "%s", text);
        return;
    }
    const bool joining = link->dialled && link->channel == DTI_CHANNEL_CONTROL &&
                         !t->core.set.guessed && t->core.state == DTI_CORE_JOINING;
    const bool again = joining && !c->tls.final && ++t->tls_failed < DTI_TLS_TRIES;
    if (again)
        dti_core_note_refusal(&t->core, NULL, "%s; it is tried again", text);
    if (!link->dialled || (joining && !again)) {
        link->state = DTI_LINK_REFUSED;
        dti_core_link_refused(&t->core, link, text);
    }
    dti_core_closed(&t->core, link, text);
}

static void dti_conn_tls_ended(dti_tcp *t, dti_tcp_conn *c, int error) {
    if (c->secure || error)
        dti_conn_failed(t, c, error);
    else
        dti_core_closed(&t->core, c->link,
                        "it ended the connection in the TLS handshake: is its integrity TLS too?");
}

/* What the core has to send, as far as the buffer takes it. False: nothing, or failed. */
static bool dti_conn_encrypt(dti_tcp *t, dti_tcp_conn *c) {
    dti_link_span_out out[2];
    bool some = false;
    while (c->fd >= 0 && dti_link_output(&t->core, c->link, out) > 0) {
        long taken = dti_tls_encrypt(&c->tls, out[0].data, out[0].bytes);
        if (taken < 0) {
            dti_conn_tls_failed(t, c, "OpenSSL does not encrypt any more");
            return false;
        }
        if (!taken)
            break;
        some = true;
        dti_link_sent(&t->core, c->link, (size_t)taken);
    }
    return some && c->fd >= 0;
}

/* True when something went. */
static bool dti_conn_write_tls(dti_tcp *t, dti_tcp_conn *c) {
    bool some = false;
    c->blocked = false;
    while (c->fd >= 0 && c->tls.ssl) {
        const uint8_t *data;
        size_t bytes = dti_tls_output(&c->tls, &data);
        if (!bytes) {
            if (c->secure && dti_conn_encrypt(t, c))
                continue;
            if (c->fd >= 0 && c->shut_due)
                dti_socket_shut(c->fd);
            return some;
        }
        const dti_socket_part part = {(void *)(uintptr_t)data, bytes};
        const int64_t sent = dti_socket_send(c->fd, &part, 1, false);
        if (sent < 0) {
            c->blocked = dti_socket_would_block(errno);
            if (!c->blocked)
                dti_conn_tls_ended(t, c, errno);
            return some;
        }
        some = true;
        dti_tls_sent(&c->tls, (size_t)sent);
    }
    return some;
}

/* The handshake's next step, with what has come. False: the connection is gone. */
static bool dti_conn_secure(dti_tcp *t, dti_tcp_conn *c) {
    char why[DTI_TLS_TEXT];
    int done = dti_tls_handshake(&c->tls, c->link->binding, why, sizeof why);
    if (done < 0) {
        dti_conn_tls_failed(t, c, why);
        return false;
    }
    c->secure = done == 1;
    if (c->secure && c->link->dialled)
        dti_core_connected(&t->core, c->link);
    dti_conn_write_tls(t, c);
    return c->fd >= 0;
}

static bool dti_conn_start_tls(dti_tcp *t, dti_tcp_conn *c) {
    if (dti_tls_open(t->tls, &c->tls, c->link->dialled))
        return dti_conn_secure(t, c);
    dti_core_closed(&t->core, c->link, "OpenSSL has no memory");
    return false;
}

/* Who dials in the clear is told why not, in the clear. */
static void dti_conn_refuse_clear(dti_tcp *t, dti_tcp_conn *c) {
    dti_tls_close(&c->tls);
    c->clear = true;
    dti_link_refuse(&t->core, c->link,
                    "the settings differ: this rank's integrity is TLS, the dialler's is not");
    dti_conn_write(t, c);
}

/* Bytes from the socket. False: none now, or the connection is gone. */
static bool dti_conn_fetch(dti_tcp *t, dti_tcp_conn *c, size_t *total) {
    uint8_t *to;
    size_t room = dti_tls_input(&c->tls, &to);
    if (!room)
        return false;
    const int64_t got = dti_socket_receive(c->fd, &(dti_socket_part){to, room}, 1);
    if (got <= 0) {
        if (got == 0 || !dti_socket_would_block(errno))
            dti_conn_tls_ended(t, c, got ? errno : 0);
        return false;
    }
    bool first = !c->heard;
    c->heard = true;
    if (first && !c->link->dialled && got >= 4 && dti_get32(to) == DTI_MAGIC_HELLO) {
        dti_conn_refuse_clear(t, c);
        return false;
    }
    dti_tls_received(&c->tls, (size_t)got);
    *total += (size_t)got;
    return true;
}

/* Plaintext to the link, until it takes no more or more ciphertext is needed. False: enough. */
static bool dti_conn_decrypt(dti_tcp *t, dti_tcp_conn *c) {
    dti_link_span_in in[2];
    char why[DTI_TLS_TEXT];
    while (c->fd >= 0 && dti_link_input(&t->core, c->link, in) > 0) {
        long got = dti_tls_decrypt(&c->tls, in[0].data, in[0].bytes, why, sizeof why);
        if (got < 0)
            dti_conn_tls_failed(t, c, why);
        if (got <= 0)
            return got == 0;
        dti_link_received(&t->core, c->link, (size_t)got);
    }
    return false;
}

/* What is decrypted is always given to the link: no event of the socket would tell of it again. */
static void dti_conn_read_tls(dti_tcp *t, dti_tcp_conn *c) {
    size_t total = 0;
    if (!c->tls.ssl && !dti_conn_start_tls(t, c))
        return;
    while (total < DTI_READ_BYTES_MAX && dti_conn_fetch(t, c, &total))
        if ((!c->secure && !dti_conn_secure(t, c)) || (c->secure && !dti_conn_decrypt(t, c)))
            return;
}

static const dti_conn_by_tls dti_tls_calls = {dti_conn_start_tls, dti_conn_write_tls,
                                              dti_conn_read_tls};

#elif DTI_TCP

static const dti_conn_by_tls dti_tls_calls = {0}; /* there is no dti_tls to use it with */

#endif
