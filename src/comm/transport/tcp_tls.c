/* The callbacks from TLS (tls.c) to a connection, and failed ones. A link learns of its dialled
 * connection, and reads its first byte, after the TLS handshake. Until then its deadline is that of
 * dtrain's handshake. */

#if DTI_TCP && defined DT_WITH_OPENSSL

#define DTI_TLS_TRIES 3u /* a key that differs does so each time, a bit that changed does not */

/* The link has ended; OpenSSL's last bytes, an alert, are still sent. */
static void dti_conn_tls_failed(dti_link *link, const char *why) {
    dti_tcp_conn *c = link->conn;
    dti_core *core = link->core;
    dti_tcp *t = core->io_user;
    char text[DTI_TLS_TEXT + 64];
    const uint8_t *alert;
    size_t bytes = dti_tls_output(&c->tls, &alert);
    if (bytes)
        dti_socket_send(c->fd, &(dti_socket_part){(void *)(uintptr_t)alert, bytes}, 1, false);
    const bool open = link->state == DTI_LINK_OPEN;
    snprintf(text, sizeof text, "%s: %s", open ? "TLS" : "the TLS handshake failed", why);
    if (open && core->state == DTI_CORE_JOINING) { /* it is joined again, like one that broke */
        dti_core_closed(core, link, text);
        return;
    }
    if (open) {
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT, "%s", text);
        return;
    }
    const bool joining = link->dialled && link->channel == DTI_CHANNEL_CONTROL &&
                         !core->set.guessed && core->state == DTI_CORE_JOINING;
    const bool again = joining && !c->tls.final && ++t->tls_failed < DTI_TLS_TRIES;
    if (again)
        dti_core_note_refusal(core, NULL, "%s; dtrain tries again", text);
    if (!link->dialled || (joining && !again)) {
        link->state = DTI_LINK_REFUSED;
        dti_core_link_refused(core, link, text);
    }
    dti_core_closed(core, link, text);
}

static void dti_conn_tls_ended(dti_link *link, int64_t got) {
    dti_tcp_conn *c = link->conn;
    if (c->tls.secure || got)
        dti_conn_failed(link->core->io_user, c, got ? errno : 0);
    else
        dti_core_closed(
            link->core, link,
            "it ended the connection during the TLS handshake: is its .integrity DT_COMM_TLS too?");
}

static void dti_conn_tls_secured(dti_link *link) {
    if (link->dialled)
        dti_core_connected(link->core, link);
}

/* A peer that dials without TLS gets the reason without TLS. */
static bool dti_conn_tls_greeted(dti_link *link, const uint8_t *data, size_t bytes) {
    dti_tcp_conn *c = link->conn;
    if (link->dialled || bytes < 4 || dti_get32(data) != DTI_MAGIC_HELLO)
        return true;
    dti_tls_close(&c->tls);
    c->clear = true;
    dti_link_refuse(link->core, link,
                    "the settings differ: .integrity is DT_COMM_TLS on this rank, but not on the "
                    "rank that connects");
    dti_conn_write(link->core->io_user, c);
    return false;
}

static const dti_tls_calls dti_conn_wire = {
    dti_link_output,      dti_link_sent,       dti_link_input,     dti_link_received,
    dti_conn_tls_secured, dti_conn_tls_failed, dti_conn_tls_ended, dti_conn_tls_greeted};

#elif DTI_TCP

static const dti_tls_calls dti_conn_wire = {0}; /* there is no dti_tls to use it with */

#endif
