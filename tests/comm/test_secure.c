/* Integrity MAC and TLS. Ends of the chain: published values, ranks as processes, and who is in
 * between. Uses the ranks of processes.h and the proxy; without OpenSSL the modes are refused,
 * which test_comm.c sees. */

/* ---- what the default does not see */

/* The generator of CRC32C, its bits in the order of the wire. Added to any message, it changes the
 * message but not the checksum. */
static const uint8_t crc_blind_spot[5] = {0xF1, 0x76, 0xEC, 0x05, 0x01};

static void add_blind_spot(const proxy_flow *f, uint8_t *data, size_t bytes) {
    if (f->head[5] != DTI_FRAME_DATA || bytes < 4000)
        return;
    for (int i = 0; i < 5; i++)
        data[1000 + i] ^= crc_blind_spot[i];
}

static void summing_floats(proc *p) {
    enum { N = 20000 };
    static float x[N];
    for (int i = 0; i < N; i++)
        x[i] = 1;
    if (!proc_join(p))
        return;
    proc_note(p, dt_comm_all_reduce(p->m.comm, x, x, N, DT_F32, DT_COMM_SUM));
    p->numbers[0] = 0;
    for (int i = 0; i < N; i++)
        p->numbers[0] += x[i] != (float)p->m.size;
}

/* How many values are wrong at the ranks that say all is well, with who changes all payloads. */
static uint64_t wrong_values(dt_comm_integrity integrity, int *noticed) {
    fleet *f = fleet_new(2);
    proxy *x = proxy_new();
    f->desc.shared_memory = DT_COMM_SHARED_OFF; /* the proxy is of TCP */
    uint64_t wrong = 0;
    x->edit_body = add_blind_spot;
    x->mac_bytes = integrity == DT_COMM_MAC ? DTI_MAC_BYTES : 0;
    f->desc.integrity = integrity;
    f->desc.no_link = true; /* what it changes comes after the join */
    f->seconds = 20;
    proxy_start(x);
    fleet_run(f, summing_floats);
    *noticed = 0;
    for (int r = 0; r < 2; r++) {
        *noticed += f->at[r].result == DT_ERROR_CORRUPT;
        wrong += f->at[r].result == DT_OK ? f->at[r].numbers[0] : 0;
    }
    proxy_end(x);
    fleet_free(f);
    return wrong;
}

TEST(secure_a_crc_does_not_detect_changes_by_an_attacker) {
    uint8_t data[64] = {1, 2, 3}, changed[64];
    memcpy(changed, data, sizeof data);
    for (int i = 0; i < 5; i++)
        changed[20 + i] ^= crc_blind_spot[i];
    CHECK(dti_crc32c(0, data, sizeof data) == dti_crc32c(0, changed, sizeof data));
    int noticed;
    CHECK(wrong_values(DT_COMM_CRC, &noticed) > 0); /* as docs/distributed/security.md says */
    CHECK(noticed == 0);
}

#ifdef DT_WITH_OPENSSL
#include <openssl/pem.h>
#include <openssl/x509v3.h>

/* ---- MAC */

/* Test case 13 of the GCM specification (McGrew, Viega): zeros, and no text. */
TEST(secure_gmac_has_the_published_value) {
    static const uint8_t wanted[16] = {0x53, 0x0f, 0x8a, 0xfb, 0xc7, 0x45, 0x36, 0xb9,
                                       0xa9, 0x63, 0xb4, 0xf1, 0xc4, 0xcb, 0x73, 0x8b};
    uint8_t key[32] = {0}, mac[16], again[16], other[16];
    dti_seal seal = {0};
    CHECK(dti_gmac_open(&seal, key));
    CHECK(dti_gmac_begin(&seal, 0) && dti_gmac_end(&seal, mac) && !memcmp(mac, wanted, 16));
    CHECK(dti_gmac_begin(&seal, 7) && dti_gmac_add(&seal, "abc", 3) && dti_gmac_end(&seal, mac));
    CHECK(dti_gmac_begin(&seal, 7) && dti_gmac_add(&seal, "a", 1) && dti_gmac_add(&seal, "bc", 2) &&
          dti_gmac_end(&seal, again) && !memcmp(mac, again, 16));
    CHECK(dti_gmac_begin(&seal, 8) && dti_gmac_add(&seal, "abc", 3) && dti_gmac_end(&seal, other) &&
          memcmp(mac, other, 16) != 0);
    dti_gmac_close(&seal);
}

TEST(secure_mac_detects_changes_that_a_crc_does_not) {
    int noticed;
    CHECK(wrong_values(DT_COMM_MAC, &noticed) == 0);
    CHECK(noticed > 0);
}

/* ---- sums in every mode */

/* A folder with an authority, certificates of it, and one of another authority. */
typedef struct papers {
    char folder[64];
} papers;

static X509 *certificate(const char *name, EVP_PKEY *key, X509 *issuer, EVP_PKEY *issuer_key) {
    X509 *c = X509_new();
    char alternative[128];
    static long serial = 1;
    X509_set_version(c, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(c), serial++);
    X509_gmtime_adj(X509_getm_notBefore(c), -60);
    X509_gmtime_adj(X509_getm_notAfter(c), 3600);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(c), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(c, X509_get_subject_name(issuer ? issuer : c));
    X509_set_pubkey(c, key);
    snprintf(alternative, sizeof alternative, "DNS:%s", name);
    X509_EXTENSION *e =
        X509V3_EXT_conf_nid(NULL, NULL, issuer ? NID_subject_alt_name : NID_basic_constraints,
                            issuer ? alternative : "critical,CA:TRUE");
    X509_add_ext(c, e, -1);
    X509_EXTENSION_free(e);
    X509_sign(c, issuer_key, EVP_sha256());
    return c;
}

static void papers_write(const papers *p, const char *name, X509 *c, EVP_PKEY *key,
                         const char *password) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s.pem", p->folder, name);
    FILE *file = fopen(path, "w");
    PEM_write_X509(file, c);
    fclose(file);
    snprintf(path, sizeof path, "%s/%s.key", p->folder, name);
    file = fopen(path, "w");
    PEM_write_PrivateKey(file, key, password ? EVP_aes_128_cbc() : NULL,
                         (const unsigned char *)password, password ? (int)strlen(password) : 0,
                         NULL, NULL);
    fclose(file);
}

/* Files a.pem and a.key of job.example and so on; ca.pem signed all but those of "stranger". */
static void papers_new(papers *p) {
    static const char *const names[][3] = {{"a", "job.example", "ca"},
                                           {"b", "job.example", "ca"},
                                           {"other", "other.example", "ca"},
                                           {"stranger", "job.example", "ca2"},
                                           {"locked", "job.example", "ca"}};
    snprintf(p->folder, sizeof p->folder, "/tmp/dtrain-papers-XXXXXX");
    CHECK(mkdtemp(p->folder) != NULL);
    EVP_PKEY *ca_key[2];
    X509 *ca[2];
    for (int i = 0; i < 2; i++) {
        ca_key[i] = EVP_EC_gen("P-256");
        ca[i] = certificate(i ? "authority 2" : "authority", ca_key[i], NULL, ca_key[i]);
        papers_write(p, i ? "ca2" : "ca", ca[i], ca_key[i], NULL);
    }
    for (size_t i = 0; i < DTI_COUNT(names); i++) {
        int by = !strcmp(names[i][2], "ca2");
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *c = certificate(names[i][1], key, ca[by], ca_key[by]);
        papers_write(p, names[i][0], c, key, strcmp(names[i][0], "locked") ? NULL : "secret");
        X509_free(c);
        EVP_PKEY_free(key);
    }
    for (int i = 0; i < 2; i++) {
        X509_free(ca[i]);
        EVP_PKEY_free(ca_key[i]);
    }
}

static void papers_free(papers *p) {
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", p->folder);
    CHECK(system(command) == 0);
}

static void papers_give(const char *folder, const char *name, dt_comm_desc *d) {
    d->integrity = DT_COMM_TLS;
    snprintf(d->tls_ca, sizeof d->tls_ca, "%s/ca.pem", folder);
    snprintf(d->tls_certificate, sizeof d->tls_certificate, "%s/%s.pem", folder, name);
    snprintf(d->tls_private_key, sizeof d->tls_private_key, "%s/%s.key", folder, name);
    snprintf(d->tls_name, sizeof d->tls_name, "job.example");
}

static void describe_papers(proc *p, dt_comm_desc *d) {
    papers_give(p->all->folder, p->index % 2 ? "a" : "b", d);
}

static void summing_sizes(proc *p) {
    mate *m = &p->m;
    static const int counts[] = {0, 1, 100, 5000, 60000, 300001, 7};
    enum { N = 300001 };
    static int32_t x[N], y[N];
    if (!proc_join(p))
        return;
    for (size_t c = 0; c < DTI_COUNT(counts); c++) {
        for (int i = 0; i < counts[c]; i++)
            x[i] = i * (m->rank + 1);
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, y, (uint64_t)counts[c], DT_I32, DT_COMM_SUM));
        bool right = true;
        for (int i = 0; i < counts[c]; i++)
            right = right && y[i] == i * (m->size * (m->size + 1) / 2);
        EXPECT(m, right);
    }
    dt_comm_work work; /* by the library's thread, while nobody waits */
    bool finished = false;
    EXPECT(m, !dt_comm_begin(
                  m->comm,
                  &(dt_comm_op){
                      .kind = DT_COMM_ALL_REDUCE, .in = x, .out = y, .count = N, .dtype = DT_I32},
                  &work));
    for (int i = 0; i < 5000 && !finished; i++) {
        usleep(1000);
        EXPECT(m, !dt_comm_test(m->comm, work, &finished));
    }
    EXPECT(m, finished);
}

TEST(secure_processes_sum_with_every_integrity) {
    papers p;
    papers_new(&p);
    for (int mode = 0; mode < 3; mode++)
        for (int sockets = 1; sockets <= 3; sockets += 2)
            for (int size = 2; size <= 4; size++) {
                fleet *f = fleet_new(size);
                f->desc.integrity = mode ? DT_COMM_TLS : DT_COMM_MAC;
                f->desc.sockets = sockets;
                f->describe = mode == 2 ? describe_papers : NULL;
                snprintf(f->folder, sizeof f->folder, "%s", p.folder);
                fleet_run(f, summing_sizes);
                fleet_free(f);
            }
    papers_free(&p);
}

/* ---- a stranger */

typedef struct odd_one {
    const char *what;
    dt_comm_integrity others; /* ranks 0 and 1; this one is rank 2 */
    dt_comm_integrity own;
    const char *certificate; /* of papers; the others then have "a" */
    bool other_key;
    dt_result result;
    const char *part, *log; /* of its error; of rank 0's log */
} odd_one;

static const odd_one odd_ones[] = {
    {"CRC at MAC", DT_COMM_MAC, DT_COMM_CRC, NULL, false, DT_ERROR_REFUSED, "settings differ",
     "settings differ"},
    {"CRC at TLS", DT_COMM_TLS, DT_COMM_CRC, NULL, false, DT_ERROR_REFUSED, "settings differ",
     "settings differ"},
    {"TLS at CRC", DT_COMM_CRC, DT_COMM_TLS, NULL, false, DT_ERROR_TIMEOUT, "is its .integrity",
     NULL},
    {"another key", DT_COMM_TLS, DT_COMM_TLS, NULL, true, DT_ERROR_REFUSED, "TLS handshake failed",
     "TLS handshake failed"},
    {"its own authority", DT_COMM_TLS, DT_COMM_TLS, "stranger", false, DT_ERROR_REFUSED, "TLS",
     "unable to get local issuer certificate"},
    {"another name", DT_COMM_TLS, DT_COMM_TLS, "other", false, DT_ERROR_REFUSED, "TLS",
     "hostname mismatch"},
    {"certificate, another key", DT_COMM_TLS, DT_COMM_TLS, "b", true, DT_ERROR_REFUSED,
     "keys differ", "keys differ"},
    {"a key at certificates", DT_COMM_TLS, DT_COMM_TLS, "", false, DT_ERROR_REFUSED,
     "TLS handshake failed", "TLS handshake failed"},
};

static void joining_oddly(proc *p) {
    mate *m = &p->m;
    const odd_one *o = p->all->arg;
    dt_comm_desc d = proc_desc(p);
    d.integrity = p->index == 2 ? o->own : o->others;
    if (o->certificate && (p->index < 2 || o->certificate[0]))
        papers_give(p->all->folder, p->index == 2 ? o->certificate : "a", &d);
    if (p->index == 2) {
        usleep(100000);
        if (o->other_key)
            d.key[5] = 'e';
        d.join_timeout_ms = 700;
    }
    d.logger = (dt_logger){.log = proc_log, .user = p};
    dt_result result = proc_try_desc(p, &d);
    EXPECT(m, p->index == 2 ? result == o->result && strstr(p->text, o->part)
                            : result == DT_ERROR_TIMEOUT);
}

TEST(secure_ranks_with_other_settings_are_refused_with_a_reason) {
    papers p;
    papers_new(&p);
    for (size_t i = 0; i < DTI_COUNT(odd_ones); i++) {
        const odd_one *o = &odd_ones[i];
        fleet *f = fleet_new(3);
        f->arg = o;
        f->desc.join_timeout_ms = 1200;
        f->seconds = 20;
        snprintf(f->folder, sizeof f->folder, "%s", p.folder);
        fleet_run(f, joining_oddly);
        test_check(f->at[2].result == o->result && strstr(f->at[2].text, o->part) &&
                       (!o->log || strstr(f->at[0].log, o->log)),
                   __FILE__, __LINE__, "%s: %d \"%s\"; rank 0 logged \"%s\"", o->what,
                   (int)f->at[2].result, f->at[2].text, f->at[0].log);
        fleet_free(f);
    }
    papers_free(&p);
}

TEST(secure_bad_certificates_are_named) {
    papers p;
    char fifo[300];
    papers_new(&p);
    snprintf(fifo, sizeof fifo, "%s/fifo.pem", p.folder);
    CHECK(mkfifo(fifo, 0600) == 0);
    static const struct {
        const char *what, *name, *part;
    } cases[] = {{"no file", "nobody", "tls_certificate"},
                 {"a file that nobody writes to", "fifo", "a FIFO"},
                 {"a key that needs a password", "locked", "tls_private_key"}};
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        dt_comm *comm;
        dt_comm_desc d = {.world_size = 2, .key = FLEET_KEY, .join_timeout_ms = 200};
        snprintf(d.rendezvous, sizeof d.rendezvous, "tcp://127.0.0.1:%d", fleet_free_port(AF_INET));
        papers_give(p.folder, cases[i].name, &d);
        CHECK(dt_comm_create(&d, &comm) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_comm_error(comm), cases[i].part);
        dt_comm_destroy(comm);
        d.tls_name[0] = 0;
        CHECK(dt_comm_create(&d, &comm) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_comm_error(comm), "all of .tls_ca");
        dt_comm_destroy(comm);
    }
    papers_free(&p);
}

/* ---- what changes on its way */

static void streaming_sealed(proc *p) {
    if (proc_try(p) == DT_OK)
        stream_until_error(p, 3000);
}

static void joining_briefly(proc *p) {
    int32_t one = 1;
    dt_comm_desc d = proc_desc(p);
    d.logger = (dt_logger){.log = proc_log, .user = p};
    if (proc_try_desc(p, &d) == DT_OK)
        proc_note(p, dt_comm_all_reduce(p->m.comm, &one, &one, 1, DT_I32, DT_COMM_SUM));
}

/* Any byte of a connection after TLS: both ends notice, as with the tags of headers. While they
 * join they try again, and say so. */
TEST(secure_bits_flipped_in_tls_are_always_detected) {
    for (int i = 0; i < 12; i++) {
        fleet *f = fleet_new(2);
        proxy *x = proxy_new();
        f->desc.shared_memory = DT_COMM_SHARED_OFF; /* the proxy is of TCP */
        x->sealed = true;
        x->deed = PROXY_FLIP;
        x->dialler = (uint32_t)i % 2; /* the control connection, the data connection */
        x->answers = i % 4 / 2;
        x->at = i % 2 ? 700 + 997 * (uint64_t)i : 40 * (uint64_t)i;
        x->mask = (uint8_t)(1u << i % 8);
        f->desc.integrity = DT_COMM_TLS;
        f->desc.silence_ms = 1000;
        f->seconds = 20;
        proxy_start(x);
        fleet_run(f, i % 2 ? streaming_sealed : joining_briefly);
        bool again = strstr(f->at[0].log, " was refused") || strstr(f->at[1].log, "tries again") ||
                     strstr(f->at[0].log, "was restored") || strstr(f->at[1].log, "was restored");
        for (int r = 0; r < 2; r++) {
            const proc *p = &f->at[r];
            bool right = p->result == DT_ERROR_CORRUPT || p->result == DT_ERROR_PEER_LOST ||
                         p->result == DT_ERROR_REVOKED ||
                         (i % 2 == 0 && again && p->result == DT_OK);
            test_check(atomic_load(&x->done) && right, __FILE__, __LINE__,
                       "connection %d, answers %d, byte %d: rank %d got %d \"%s\", and logged "
                       "\"%s\"",
                       i % 2, x->answers, (int)x->at, r, (int)p->result, p->text, p->log);
        }
        proxy_end(x);
        fleet_free(f);
    }
}

/* ---- its text */

static fleet *sealed_fleet(int ranks, proxy *x, proxy_deed deed, uint32_t connection, bool answers,
                           uint64_t at) {
    fleet *f = fleet_new(ranks);
    f->desc.shared_memory = DT_COMM_SHARED_OFF; /* the proxy is of TCP */
    f->desc.integrity = DT_COMM_TLS;
    f->desc.silence_ms = 2000;
    f->seconds = 25;
    x->sealed = true;
    x->deed = deed;
    x->dialler = connection;
    x->answers = answers;
    x->at = at;
    x->mask = (uint8_t)(1u << at % 8);
    return f;
}

/* Nobody speaks of certificates, and of keys only where bytes are the other possibility. */
static bool sealed_text_is_right(const char *text) {
    const char *keys = strstr(text, "keys differ");
    return !strstr(text, "certificate") && !strstr(text, "no reason given") &&
           (!keys || strstr(keys, "or bytes changed in transit"));
}

/* A record of data or of control that is changed, cut or sent again. */
TEST(secure_damaged_records_are_reported_as_damaged) {
    for (int i = 0; i < 6; i++) {
        static const proxy_deed deeds[] = {PROXY_RECORD_FLIP, PROXY_RECORD_SHORT,
                                           PROXY_RECORD_TWICE};
        proxy *x = proxy_new();
        fleet *f = sealed_fleet(2, x, deeds[i % 3], i >= 3, i % 2, i >= 3 ? 40 : 9);
        f->desc.no_link = true; /* data connections come after the join */
        proxy_start(x);
        fleet_run(f, streaming_sealed);
        int said = 0;
        for (int r = 0; r < 2; r++) {
            const proc *p = &f->at[r];
            said += strstr(p->text, "record authentication failed") &&
                    strstr(p->text, "bytes changed in transit") && strstr(p->text, "from rank ");
            bool right = p->result == DT_ERROR_CORRUPT || p->result == DT_ERROR_REVOKED;
            test_check(right && sealed_text_is_right(p->text), __FILE__, __LINE__,
                       "case %d: rank %d got %d \"%s\"", i, r, (int)p->result, p->text);
        }
        test_check(atomic_load(&x->done) && said == 2, __FILE__, __LINE__, "case %d: %d say it", i,
                   said);
        proxy_end(x);
        fleet_free(f);
    }
}

/* Any byte of a control connection while three ranks join: they do, or all hear of it at once. */
TEST(secure_bits_flipped_while_joining_change_nothing_or_are_reported_to_all) {
    const int step = fleet_long() ? 3 : 61;
    for (int at = 0; at < 750; at += step) /* after it ranks may have left */
        for (int answers = 0; answers < 2; answers++) {
            proxy *x = proxy_new();
            fleet *f = sealed_fleet(3, x, PROXY_FLIP, 0, answers, (uint64_t)at);
            uint64_t start = dti_now_ns();
            proxy_start(x);
            fleet_run(f, joining_briefly);
            for (int r = 0; r < 3; r++) {
                const proc *p = &f->at[r];
                /* PEER_LOST: what dt_comm_create makes of a group that ends while it measures */
                bool ok = p->result == DT_ERROR_CORRUPT || p->result == DT_ERROR_REVOKED ||
                          p->result == DT_ERROR_PEER_LOST || p->result == DT_OK;
                bool right = ok && !p->result == !f->at[0].result && p->at - start < 6000000000u &&
                             sealed_text_is_right(p->text) && sealed_text_is_right(p->log);
                test_check(right, __FILE__, __LINE__,
                           "byte %d, answers %d: rank %d got %d \"%s\" after %.1f s; it logged "
                           "\"%s\"",
                           at, answers, r, (int)p->result, p->text, (double)(p->at - start) * 1e-9,
                           p->log);
            }
            proxy_end(x);
            fleet_free(f);
        }
}

#endif
