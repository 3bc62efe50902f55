/* TLS 1.3 by OpenSSL, in memory. It moves the bytes between TLS, a socket and a link, which is a
 * rank's (tcp_tls.c) or a message server's. It is configured, never negotiated: one version, one
 * cipher suite, no tickets, no resumption, no early data, no compression. The job's key
 * authenticates the other end, as an external PSK, always with an ephemeral exchange. Or
 * certificates do: both sides present one of the given authority, with the given name. In both
 * cases dtrain's own handshake follows inside, bound to this channel. OpenSSL allocates by malloc,
 * for each connection. */

/* Whose plaintext it is. */
typedef struct dti_tls_calls {
    int (*output)(dti_core *core, dti_link *link, dti_socket_part out[2]);
    void (*sent)(dti_core *core, dti_link *link, size_t bytes);
    int (*input)(dti_core *core, dti_link *link, dti_socket_part in[2]);
    void (*received)(dti_core *core, dti_link *link, size_t bytes);
    void (*secured)(dti_link *link); /* the TLS handshake is done: the link's own may begin */
    void (*failed)(dti_link *link, const char *why);
    void (*ended)(dti_link *link, int64_t got); /* by the socket, as it returned; see errno */
    bool (*greeted)(dti_link *link, const uint8_t *data,
                    size_t bytes); /* first bytes; may be NULL */
} dti_tls_calls;

#ifdef DT_WITH_OPENSSL
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#define DTI_TLS_BUFFER 65536 /* ciphertext on its way, each direction */
#define DTI_TLS_RECORD 16384
#define DTI_TLS_RECORD_ROOM (DTI_TLS_RECORD + 512)
#define DTI_TLS_RECORDS_MAX (1u << 22) /* under one key: RFC 8446 5.5 allows 2^24.5 */
#define DTI_TLS_PSK_NAME "dtrain1"
#define DTI_TLS_TEXT 160
#define DTI_TLS_READ_MAX (1u << 20) /* from one connection before the others have a turn */

/* The shared part of all connections of a comm. */
typedef struct dti_tls {
    dti_base *base;
    SSL_CTX *context;
    SSL_SESSION *psk; /* NULL = certificates */
    char name[128];   /* that a certificate must have */
} dti_tls;

typedef struct dti_tls_conn {
    SSL *ssl;
    BIO *net; /* our end of the pair of buffers; the other is the SSL's */
    uint32_t records;
    bool final;  /* a certificate is wrong: another try cannot succeed */
    bool secure; /* the handshake is done */
    bool heard;  /* something has come */
    int fd;
    bool *blocked; /* the system took no more */
    dti_link *link;
    const dti_tls_calls *wire;
} dti_tls_conn;

/* OpenSSL's newest complaint. */
static void dti_tls_text(char *text, size_t size) {
    unsigned long code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    snprintf(text, size, "%s", reason ? reason : "no reason given");
    ERR_clear_error();
}

static dt_result dti_tls_fail(dti_base *base, const char *what, const char *file) {
    char why[160];
    dti_tls_text(why, sizeof why);
    return dti_fail(base, DT_ERROR_INVALID, ".%s is \"%s\": %s", what, file, why);
}

/* ---- the key as an external PSK */

/* hash: SHA-256, the only suite's. */
static int dti_tls_use_psk(SSL *ssl, const EVP_MD *hash, const unsigned char **name, size_t *bytes,
                           SSL_SESSION **session) {
    dti_tls *tls = SSL_get_app_data(ssl);
    *name = (const unsigned char *)DTI_TLS_PSK_NAME;
    *bytes = strlen(DTI_TLS_PSK_NAME);
    *session = tls->psk;
    return SSL_SESSION_up_ref(tls->psk);
}

static int dti_tls_find_psk(SSL *ssl, const unsigned char *name, size_t bytes,
                            SSL_SESSION **session) {
    dti_tls *tls = SSL_get_app_data(ssl);
    *session = NULL;
    if (bytes != strlen(DTI_TLS_PSK_NAME) || memcmp(name, DTI_TLS_PSK_NAME, bytes) != 0)
        return 1; /* not ours: the handshake fails for want of any other secret */
    *session = tls->psk;
    return SSL_SESSION_up_ref(tls->psk);
}

static bool dti_tls_make_psk(dti_tls *tls, const uint8_t key[32]) {
    static const unsigned char suite[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
    uint8_t secret[32];
    SSL *any = SSL_new(tls->context);
    tls->psk = SSL_SESSION_new();
    dti_hkdf(key, 32, NULL, 0, "dtrain1 tls", 11, secret, sizeof secret);
    bool made = any && tls->psk &&
                SSL_SESSION_set1_master_key(tls->psk, secret, sizeof secret) == 1 &&
                SSL_SESSION_set_cipher(tls->psk, SSL_CIPHER_find(any, suite)) == 1 &&
                SSL_SESSION_set_protocol_version(tls->psk, TLS1_3_VERSION) == 1;
    dti_wipe(secret, sizeof secret);
    SSL_free(any);
    SSL_CTX_set_psk_use_session_callback(tls->context, dti_tls_use_psk);
    SSL_CTX_set_psk_find_session_callback(tls->context, dti_tls_find_psk);
    return made;
}

/* ---- certificates */

/* For an encrypted private key: OpenSSL would ask at the terminal. */
static int dti_tls_no_password(char *text, int size, int writing, void *user) {
    return -1;
}

/* OpenSSL would wait for ever for a FIFO's writer. */
static dt_result dti_tls_check_file(dti_base *base, const char *what, const char *path) {
    int stream;
    uint64_t size;
    const char *why = dti_stream_open(path, &stream, &size);
    if (why)
        return dti_fail(base, DT_ERROR_INVALID, ".%s is \"%s\": %s", what, path, why);
    dti_stream_close(stream);
    return DT_OK;
}

static dt_result dti_tls_certificates(dti_tls *tls, const dt_comm_desc *d) {
    SSL_CTX *c = tls->context;
    DTI_TRY(dti_tls_check_file(tls->base, "tls_ca", d->tls_ca));
    DTI_TRY(dti_tls_check_file(tls->base, "tls_certificate", d->tls_certificate));
    DTI_TRY(dti_tls_check_file(tls->base, "tls_private_key", d->tls_private_key));
    SSL_CTX_set_default_passwd_cb(c, dti_tls_no_password);
    if (SSL_CTX_load_verify_locations(c, d->tls_ca, NULL) != 1)
        return dti_tls_fail(tls->base, "tls_ca", d->tls_ca);
    if (SSL_CTX_use_certificate_chain_file(c, d->tls_certificate) != 1)
        return dti_tls_fail(tls->base, "tls_certificate", d->tls_certificate);
    if (SSL_CTX_use_PrivateKey_file(c, d->tls_private_key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(c) != 1)
        return dti_tls_fail(tls->base, "tls_private_key", d->tls_private_key);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    snprintf(tls->name, sizeof tls->name, "%s", d->tls_name);
    return DT_OK;
}

/* ---- of a comm */

static void dti_tls_free(dti_tls *tls) {
    if (!tls)
        return;
    SSL_SESSION_free(tls->psk);
    SSL_CTX_free(tls->context);
    dti_free(tls->base, tls);
}

static bool dti_tls_configure(SSL_CTX *c) {
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_quiet_shutdown(c, 1);
    return SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") == 1 &&
           SSL_CTX_set_num_tickets(c, 0) == 1;
}

/* With certificates where desc names them, otherwise with the key. */
static dt_result dti_tls_new(dti_base *base, const dt_comm_desc *desc, const uint8_t key[32],
                             dti_tls **out) {
    dti_tls *tls = dti_alloc(base, sizeof *tls);
    DTI_HAVE(tls);
    tls->base = base;
    tls->context = SSL_CTX_new(TLS_method());
    dt_result result = DT_OK;
    if (!tls->context || !dti_tls_configure(tls->context))
        result = dti_fail(base, DT_ERROR_MEMORY, "OpenSSL created no TLS 1.3 context");
    else if (desc->tls_certificate[0])
        result = dti_tls_certificates(tls, desc);
    else if (!dti_tls_make_psk(tls, key))
        result = dti_fail(base, DT_ERROR_MEMORY, "OpenSSL accepts no key for TLS 1.3");
    ERR_clear_error();
    if (result)
        dti_tls_free(tls);
    else
        *out = tls;
    return result;
}

/* ---- of a connection */

static void dti_tls_close(dti_tls_conn *c) {
    SSL_free(c->ssl);
    BIO_free(c->net);
    *c = (dti_tls_conn){0};
}

/* Opens TLS on socket `fd`. False: OpenSSL has no memory. */
static bool dti_tls_open(dti_tls *tls, dti_tls_conn *c, dti_link *link, const dti_tls_calls *wire,
                         int fd, bool *blocked) {
    BIO *inner = NULL;
    *c = (dti_tls_conn){.ssl = SSL_new(tls->context)};
    c->fd = fd, c->blocked = blocked, c->link = link, c->wire = wire;
    if (!c->ssl || BIO_new_bio_pair(&inner, DTI_TLS_BUFFER, &c->net, DTI_TLS_BUFFER) != 1) {
        dti_tls_close(c);
        return false;
    }
    SSL_set_bio(c->ssl, inner, inner);
    SSL_set_app_data(c->ssl, tls);
    if (link->dialled)
        SSL_set_connect_state(c->ssl);
    else
        SSL_set_accept_state(c->ssl);
    SSL_set_hostflags(c->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (!tls->name[0] || SSL_set1_host(c->ssl, tls->name) == 1)
        return true;
    dti_tls_close(c);
    return false;
}

/* The meaning of a failure, if OpenSSL's reason does not give it; else NULL. The result of
 * verifying counts only if verification failed: without certificates it is an error too. */
static const char *dti_tls_meaning(const dti_tls_conn *c, int reason) {
    static const char changed[] = "bytes changed in transit";
    const dti_tls *tls = SSL_get_app_data(c->ssl);
    switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        return X509_verify_cert_error_string(SSL_get_verify_result(c->ssl));
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
        return "record authentication failed: bytes changed in transit";
    case SSL_AD_REASON_OFFSET + SSL_AD_BAD_RECORD_MAC:
        return "record authentication failed at the other side: bytes changed in transit";
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_AD_REASON_OFFSET + SSL_AD_ILLEGAL_PARAMETER:
    case SSL_AD_REASON_OFFSET + SSL_AD_DECRYPT_ERROR:
        return tls->psk ? "the keys differ, or bytes changed in transit" : changed;
    case SSL_R_BAD_SIGNATURE:
    case SSL_R_DIGEST_CHECK_FAILED: return changed;
    }
    /* After the handshake only changed bytes cause other errors. */
    return reason && reason < SSL_AD_REASON_OFFSET && SSL_is_init_finished(c->ssl) ? changed : NULL;
}

static bool dti_tls_is_final(int reason) {
    const int alert = reason - SSL_AD_REASON_OFFSET;
    return reason == SSL_R_CERTIFICATE_VERIFY_FAILED ||
           (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_UNKNOWN_CA &&
            alert != SSL_AD_ILLEGAL_PARAMETER);
}

/* OpenSSL's result of a call that returned `returned`: 0 = it needs more bytes, -1 = it failed. */
static int dti_tls_verdict(dti_tls_conn *c, int returned, char *why, size_t size) {
    int error = SSL_get_error(c->ssl, returned);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return 0;
    char text[80];
    const int reason = ERR_GET_REASON(ERR_peek_last_error());
    const char *meaning = dti_tls_meaning(c, reason);
    c->final = dti_tls_is_final(reason);
    dti_tls_text(text, sizeof text);
    if (meaning)
        snprintf(why, size, "%s (%s)", meaning, text);
    else
        snprintf(why, size, "%s", text);
    return -1;
}

/* 1 = done, with the channel's binding in `binding`; 0 = more bytes are needed; -1 = failed, with
 * `why`. */
static int dti_tls_handshake(dti_tls_conn *c, uint8_t binding[32], char *why, size_t size) {
    static const char label[] = "EXPORTER-dtrain1";
    ERR_clear_error();
    int done = SSL_do_handshake(c->ssl);
    if (done != 1)
        return dti_tls_verdict(c, done, why, size);
    const dti_tls *tls = SSL_get_app_data(c->ssl);
    if (tls->psk && !SSL_session_reused(c->ssl)) { /* it came with a certificate instead */
        snprintf(why, size, "the other side does not use the key");
        return -1;
    }
    if (SSL_export_keying_material(c->ssl, binding, 32, label, sizeof label - 1, NULL, 0, 0) == 1)
        return 1;
    dti_tls_text(why, size);
    return -1;
}

/* Ciphertext that is to go out. */
static size_t dti_tls_output(dti_tls_conn *c, const uint8_t **data) {
    char *at = NULL;
    int bytes = BIO_nread0(c->net, &at);
    *data = (const uint8_t *)at;
    return bytes > 0 ? (size_t)bytes : 0;
}

/* Returns the number of bytes taken: 0 = the buffer must drain first; -1 = the connection
 * failed. */
static long dti_tls_encrypt(dti_tls_conn *c, const uint8_t *data, size_t bytes) {
    size_t taken = 0;
    if (BIO_ctrl_get_write_guarantee(SSL_get_wbio(c->ssl)) < DTI_TLS_RECORD_ROOM)
        return 0;
    ERR_clear_error();
    if (++c->records == DTI_TLS_RECORDS_MAX) {
        c->records = 0;
        SSL_key_update(c->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
    }
    return SSL_write_ex(c->ssl, data, DTI_MIN(bytes, (size_t)DTI_TLS_RECORD), &taken) == 1
               ? (long)taken
               : -1;
}

/* ---- the bytes of a connection; a callback of the wire may close it: then there is no ssl */

/* The link's outgoing data, as far as the buffer takes it. */
static bool dti_tls_encrypt_all(dti_tls_conn *c) {
    dti_link *link = c->link;
    dti_socket_part out[2];
    bool some = false;
    while (c->ssl && c->wire->output(link->core, link, out) > 0) {
        const long taken = dti_tls_encrypt(c, out[0].data, out[0].bytes);
        if (taken < 0)
            c->wire->failed(link, "OpenSSL failed to encrypt");
        if (taken <= 0)
            break;
        some = true;
        c->wire->sent(link->core, link, (size_t)taken);
    }
    return some && c->ssl;
}

/* As long as there is something and the system takes it. True when something went. */
static bool dti_tls_write(dti_tls_conn *c) {
    const uint8_t *data;
    char *gone;
    bool some = false;
    if (c->ssl)
        *c->blocked = false;
    while (c->ssl) {
        const size_t bytes = dti_tls_output(c, &data);
        if (!bytes && c->secure && dti_tls_encrypt_all(c))
            continue;
        if (!bytes)
            return some;
        const dti_socket_part part = {(void *)(uintptr_t)data, bytes};
        const int64_t sent = dti_socket_send(c->fd, &part, 1, false);
        if (sent < 0) {
            *c->blocked = dti_socket_would_block(errno);
            if (!*c->blocked)
                c->wire->ended(c->link, sent);
            return some;
        }
        some = true;
        BIO_nread(c->net, &gone, (int)sent);
    }
    return some;
}

/* The handshake's next step, with the received data. */
static void dti_tls_greet(dti_tls_conn *c) {
    char why[DTI_TLS_TEXT];
    const int done = dti_tls_handshake(c, c->link->binding, why, sizeof why);
    c->secure = done == 1;
    if (done < 0)
        c->wire->failed(c->link, why);
    else if (c->secure)
        c->wire->secured(c->link);
    dti_tls_write(c);
}

/* Plaintext to the link, until it takes no more or more ciphertext is needed. False: enough. */
static bool dti_tls_decrypt_all(dti_tls_conn *c) {
    dti_link *link = c->link;
    dti_socket_part in[2];
    char why[DTI_TLS_TEXT];
    while (c->ssl && c->wire->input(link->core, link, in) > 0) {
        size_t got = 0;
        ERR_clear_error();
        const int read = SSL_read_ex(c->ssl, in[0].data, in[0].bytes, &got);
        const int verdict = read == 1 ? 1 : dti_tls_verdict(c, read, why, sizeof why);
        if (verdict < 0)
            c->wire->failed(link, why);
        if (verdict <= 0)
            return verdict == 0;
        c->wire->received(link->core, link, got);
    }
    return false;
}

/* Bytes from the socket. 0: none now, or the connection is gone. */
static size_t dti_tls_fetch(dti_tls_conn *c) {
    char *to = NULL;
    const int room = c->ssl ? BIO_nwrite0(c->net, &to) : 0;
    if (room <= 0)
        return 0;
    const int64_t got = dti_socket_receive(c->fd, &(dti_socket_part){to, (size_t)room}, 1);
    if (got <= 0) {
        if (got == 0 || !dti_socket_would_block(errno))
            c->wire->ended(c->link, got);
        return 0;
    }
    const bool first = !c->heard;
    c->heard = true;
    if (first && c->wire->greeted && !c->wire->greeted(c->link, (uint8_t *)to, (size_t)got))
        return 0;
    BIO_nwrite(c->net, &to, (int)got);
    return (size_t)got;
}

/* Decrypted data always goes to the link at once, as no event of the socket would report it
 * again. */
static void dti_tls_read(dti_tls_conn *c) {
    for (size_t total = 0, got; total < DTI_TLS_READ_MAX && (got = dti_tls_fetch(c)) > 0;) {
        total += got;
        if (!c->secure)
            dti_tls_greet(c);
        if (!c->ssl || (c->secure && !dti_tls_decrypt_all(c)))
            return;
    }
}

#else

typedef struct dti_tls dti_tls; /* not compiled in: comm.c refuses the mode */

typedef struct dti_tls_conn {
    void *ssl;
    bool secure;
} dti_tls_conn;

DTI_ABSENT(void, dti_tls_free, (dti_tls * tls), );
DTI_ABSENT(void, dti_tls_close, (dti_tls_conn * c), );
DTI_ABSENT(bool, dti_tls_open,
           (dti_tls * tls, dti_tls_conn *c, dti_link *link, const dti_tls_calls *wire, int fd,
            bool *blocked),
           false);
DTI_ABSENT(void, dti_tls_greet, (dti_tls_conn * c), );
DTI_ABSENT(bool, dti_tls_write, (dti_tls_conn * c), false);
DTI_ABSENT(void, dti_tls_read, (dti_tls_conn * c), );
DTI_ABSENT(dt_result, dti_tls_new,
           (dti_base * base, const dt_comm_desc *desc, const uint8_t key[32], dti_tls **out),
           dti_fail(base, DT_ERROR_UNSUPPORTED,
                    "TLS requires dtrain compiled with DT_WITH_OPENSSL"));

#endif
