/* From a new connection to a peer that has proved that it has the job's key. Four messages:
 *
 *   dialler   HELLO    what it is and whom it expects, and 32 random bytes
 *   acceptor  HELLO    the same of itself
 *   dialler   PROOF    HMAC(auth key, "dtrain1 client" || T), T = SHA-256 of both hellos as sent
 *   acceptor  PROOF    HMAC(auth key, "dtrain1 server" || T)
 *
 * or a REFUSAL with a text, at any time, from either. HELLO and PROOF have checksums, so a changed
 * one is not mistaken for another key or job. The dialler tries again.
 *
 * auth key = HKDF(key, info "dtrain1 auth"). The keys of the two directions are HKDF(key, salt T,
 * info "dtrain1 to server" and "dtrain1 to client"). With integrity MAC, their GMAC keys have info
 * "dtrain1 mac to server" and so on. With integrity TLS all this goes through TLS. Then T also
 * covers, after the hellos, 32 bytes that TLS exports (label "EXPORTER-dtrain1", no context). An
 * attacker between two TLS connections has two different exports. The acceptor proves nothing to a
 * peer without a proof. Random bytes of both sides are in T, so nothing can be replayed; the two
 * texts differ, so nothing can be reflected. Without a key (insecure) the key is 32 zeros, and
 * proves nothing.
 *
 *   HELLO, 160 bytes                               REFUSAL
 *     0  4  magic 'DTRH'                              0  4  magic 'DTRX'
 *     4  1  lowest version spoken                     4  2  dt_result
 *     5  1  highest                                   6  2  bytes of text, <= 240
 *     6  1  channel: 0 control, 1 data                8     text
 *     7  1  1 = insecure
 *     8  4  rank                                     PROOF, 40 bytes
 *    12  4  rank expected at the other end            0  4  magic 'DTRP'
 *    16  4  world size                                4 32  MAC
 *    20  4  epoch (0 on control)                     36  4  CRC32C of the bytes before
 *    24  8  attempt
 *    32 32  random
 *    64 16  nonce of the run; of a control connection's dialler, its process: 16 random
 *           bytes for all its connections
 *    80  2  socket;
 *    82  2  number of sockets;
 *    84  1  integrity, then 7 zeros;
 *    92  4  CRC32C of the other bytes
 *    96 64  job, zero-padded */

#define DTI_MAGIC_HELLO 0x48525444u
#define DTI_MAGIC_PROOF 0x50525444u
#define DTI_MAGIC_REFUSAL 0x58525444u
#define DTI_HELLO_BYTES 160
#define DTI_HELLO_SUM_AT 92
#define DTI_PROOF_BYTES 40
#define DTI_PROOF_SUM_AT 36
#define DTI_REFUSAL_TEXT 240

/* A core's settings, and the data that handshakes need. */
static void dti_core_with(dti_core *core, const dti_settings *set, const dti_io *io, void *io_user,
                          const dti_core_up *up) {
    uint8_t auth[32];
    core->set = *set;
    core->io = *io;
    core->io_user = io_user;
    core->up = up;
    dti_hkdf(set->key, 32, NULL, 0, "dtrain1 auth", 12, auth, sizeof auth);
    dti_hmac_prepare(&core->auth, auth, sizeof auth);
    dti_wipe(auth, sizeof auth);
}

static uint32_t dti_hello_sum(const uint8_t *h) {
    const uint32_t first = dti_crc32c(0, h, DTI_HELLO_SUM_AT);
    return dti_crc32c(first, h + DTI_HELLO_SUM_AT + 4, DTI_HELLO_BYTES - DTI_HELLO_SUM_AT - 4);
}

static bool dti_hello_write(dti_core *core, dti_link *link, uint32_t expected) {
    uint8_t *h = link->hello_out;
    memset(h, 0, DTI_HELLO_BYTES);
    dti_put32(h, DTI_MAGIC_HELLO);
    h[4] = h[5] = DTI_WIRE_VERSION;
    h[6] = link->channel;
    h[7] = !core->set.keyed;
    dti_put32(h + 8, core->set.rank);
    dti_put32(h + 12, expected);
    dti_put32(h + 16, core->set.size);
    dti_put64(h + 24, core->set.attempt);
    if (!core->io.random(core->io_user, h + 32, 32))
        return false;
    if (link->channel == DTI_CHANNEL_DATA)
        dti_put32(h + 20, core->epoch);
    memcpy(h + 64, link->channel == DTI_CHANNEL_DATA ? core->nonce : core->instance, 16);
    dti_put16(h + 80, link->socket);
    dti_put16(h + 82, core->set.sockets);
    h[84] = core->set.integrity;
    memcpy(h + 96, core->set.job, 64);
    dti_put32(h + DTI_HELLO_SUM_AT, dti_hello_sum(h));
    dti_link_put(link, h, DTI_HELLO_BYTES);
    return true;
}

/* Sends the other end the reason, and closes after that; false, for the caller to return. */
static bool dti_link_refuse(dti_core *core, dti_link *link, const char *text) {
    uint8_t out[8 + DTI_REFUSAL_TEXT];
    size_t bytes = DTI_MIN(strlen(text), (size_t)DTI_REFUSAL_TEXT);
    dti_put32(out, DTI_MAGIC_REFUSAL);
    dti_put16(out + 4, DT_ERROR_REFUSED);
    dti_put16(out + 6, (uint32_t)bytes);
    memcpy(out + 8, text, bytes);
    if (dti_link_room(link) >= 8 + bytes)
        dti_link_put(link, out, 8 + bytes);
    link->state = DTI_LINK_REFUSED;
    core->up->refused(core, link, text);
    return false;
}

/* Refusals by a process of another run: the address is another one's. */
static const char dti_other_version[] =
    "the versions of the protocol differ: use one dtrain on all ranks";
static const char dti_other_job[] = "the ranks are of different jobs";
static const char dti_other_attempt[] = "the ranks are of different attempts of the job";

static bool dti_refusal_is_others(const char *text) {
    return !strcmp(text, dti_other_version) || !strcmp(text, dti_other_job) ||
           !strcmp(text, dti_other_attempt);
}

static const char dti_changed_hello[] = "bytes of a HELLO changed on their way";
static const char dti_changed_proof[] = "bytes of a PROOF changed on their way";

static bool dti_refusal_is_damage(const char *text) {
    return !strcmp(text, dti_changed_hello) || !strcmp(text, dti_changed_proof);
}

/* NULL, or why nothing in the message counts. */
static const char *dti_handshake_damage(bool hello, const uint8_t *at) {
    if (!hello)
        return dti_get32(at + DTI_PROOF_SUM_AT) == dti_crc32c(0, at, DTI_PROOF_SUM_AT)
                   ? NULL
                   : dti_changed_proof;
    const uint32_t sum = dti_get32(at + DTI_HELLO_SUM_AT);
    if (sum == dti_hello_sum(at))
        return NULL;
    return sum ? dti_changed_hello : dti_other_version; /* those before 3 had zeros there */
}

/* Both sides check the other's hello; first whose it is. NULL = right. */
static const char *dti_hello_check(const dti_core *core, const dti_link *link, const uint8_t *h) {
    uint32_t rank = dti_get32(h + 8);
    if (h[4] > DTI_WIRE_VERSION || h[5] < DTI_WIRE_VERSION)
        return dti_other_version;
    if (memcmp(h + 96, core->set.job, 64))
        return dti_other_job;
    if (dti_get64(h + 24) != core->set.attempt)
        return dti_other_attempt;
    if (h[7] != !core->set.keyed)
        return h[7] ? "one side has a key and the other is insecure (the dialler has no key)"
                    : "one side has a key and the other is insecure (the dialler has one)";
    if (dti_get32(h + 16) != core->set.size)
        return "the world sizes differ";
    if (rank >= core->set.size)
        return "the rank is not below the world size";
    if (rank == core->set.rank)
        return "two processes have the same rank";
    if (link->dialled ? rank != link->peer : dti_get32(h + 12) != core->set.rank)
        return "another rank answers at this address";
    if (h[6] > DTI_CHANNEL_DATA || dti_get16(h + 82) != core->set.sockets ||
        h[84] != core->set.integrity || dti_get16(h + 80) >= core->set.sockets)
        return "the settings differ (sockets or integrity)";
    if (link->dialled && (h[6] != link->channel || dti_get16(h + 80) != link->socket))
        return "the other side answers for another connection";
    /* Data connections are only within a run that both have joined. */
    if (h[6] == DTI_CHANNEL_DATA && memcmp(h + 64, core->nonce, 16))
        return "the connection is from another run of the job";
    if (h[6] == DTI_CHANNEL_DATA && dti_get32(h + 20) != core->epoch)
        return "the connection is from an earlier membership";
    return NULL;
}

static void dti_link_transcript(const dti_link *link, uint8_t digest[32]) {
    dti_sha256 hash;
    dti_sha256_init(&hash);
    dti_sha256_add(&hash, link->dialled ? link->hello_out : link->hello_in, DTI_HELLO_BYTES);
    dti_sha256_add(&hash, link->dialled ? link->hello_in : link->hello_out, DTI_HELLO_BYTES);
    if (link->core->set.integrity == DT_COMM_TLS)
        dti_sha256_add(&hash, link->binding, sizeof link->binding);
    dti_sha256_end(&hash, digest);
}

static void dti_link_mac(const dti_core *core, const dti_link *link, bool client, uint8_t mac[32]) {
    uint8_t text[14 + 32];
    memcpy(text, client ? "dtrain1 client" : "dtrain1 server", 14);
    dti_link_transcript(link, text + 14);
    dti_hmac(&core->auth, text, sizeof text, mac);
}

static void dti_link_prove(const dti_core *core, dti_link *link) {
    uint8_t proof[DTI_PROOF_BYTES];
    dti_put32(proof, DTI_MAGIC_PROOF);
    dti_link_mac(core, link, link->dialled, proof + 4);
    dti_put32(proof + DTI_PROOF_SUM_AT, dti_crc32c(0, proof, DTI_PROOF_SUM_AT));
    dti_link_put(link, proof, sizeof proof);
}

/* False: no memory for OpenSSL. */
static bool dti_link_keys(const dti_core *core, dti_link *link) {
    static const char *const names[2] = {"dtrain1 to server", "dtrain1 to client"};
    static const char *const mac_names[2] = {"dtrain1 mac to server", "dtrain1 mac to client"};
    uint8_t digest[32], key[32];
    const bool mac = core->set.integrity == DT_COMM_MAC;
    bool made = true;
    dti_link_transcript(link, digest);
    for (int to_client = 0; to_client < 2; to_client++) {
        dti_seal *seal = (to_client != 0) == link->dialled ? &link->seal_in : &link->seal_out;
        dti_hkdf(core->set.key, 32, digest, 32, names[to_client], 17, key, sizeof key);
        *seal = (dti_seal){.keyed = core->set.keyed && (!link->lasting || mac)};
        dti_hmac_prepare(&seal->key, key, sizeof key);
        if (!mac)
            continue;
        dti_hkdf(core->set.key, 32, digest, 32, mac_names[to_client], 21, key, sizeof key);
        made = dti_gmac_open(seal, key) && made;
    }
    dti_wipe(key, sizeof key);
    return made;
}

/* The other's hello is in hello_in. */
static bool dti_handshake_hello(dti_core *core, dti_link *link) {
    const uint8_t *h = link->hello_in;
    const char *wrong = dti_hello_check(core, link, h);
    if (wrong)
        return dti_link_refuse(core, link, wrong);
    if (link->dialled)
        dti_link_prove(core, link);
    else {
        link->channel = h[6];
        link->socket = (uint16_t)dti_get16(h + 80);
        if (!dti_hello_write(core, link, dti_get32(h + 8)))
            return core->up->dropped(core, link, "the system provides no random bytes");
    }
    link->state = DTI_LINK_PROOF;
    return true;
}

static bool dti_handshake_proof(dti_core *core, dti_link *link, const uint8_t *mac) {
    uint8_t wanted[32];
    uint32_t peer = dti_get32(link->hello_in + 8);
    dti_link_mac(core, link, !link->dialled, wanted);
    const char *wrong = NULL;
    if (!dti_equal_secret(wanted, mac, 32))
        wrong = "the keys differ; give all ranks of a job the same key";
    else
        wrong = core->up->taken(core, link, peer);
    if (!wrong && !link->dialled && core->io.accepts)
        wrong = core->io.accepts(core->io_user, link);
    if (wrong)
        return dti_link_refuse(core, link, wrong);
    if (!link->dialled)
        dti_link_prove(core, link);
    if (!dti_link_keys(core, link))
        return core->up->dropped(core, link, "OpenSSL has no memory");
    link->peer = peer;
    link->state = DTI_LINK_OPEN;
    core->up->open(core, link);
    return link->state == DTI_LINK_OPEN;
}

static bool dti_handshake_refusal(dti_core *core, dti_link *link, const uint8_t *at,
                                  uint32_t have) {
    uint32_t bytes = have >= 8 ? dti_get16(at + 6) : 0;
    bool other = have >= 8 && dti_get16(at + 4) != DT_ERROR_REFUSED; /* or one bit from a HELLO */
    if (other || bytes > DTI_REFUSAL_TEXT)
        return core->up->dropped(core, link, "received bytes that are not dtrain's protocol");
    if (have < 8 || have < 8 + bytes)
        return false;
    char text[DTI_REFUSAL_TEXT + 1];
    for (uint32_t i = 0; i < bytes; i++) /* from a peer without a proof */
        text[i] = at[8 + i] >= 32 && at[8 + i] < 127 ? (char)at[8 + i] : '?';
    text[bytes] = 0;
    link->state = DTI_LINK_REFUSED;
    core->up->refused(core, link, text);
    return false;
}

/* Takes one message of the handshake from rx. False: not whole yet, or the connection is over. */
static bool dti_handshake_input(dti_core *core, dti_link *link) {
    const uint8_t *at = link->rx + link->rx_from;
    uint32_t have = link->rx_to - link->rx_from;
    if (have < 4)
        return false;
    bool hello = link->state == DTI_LINK_HELLO;
    uint32_t magic = dti_get32(at);
    if (magic == DTI_MAGIC_REFUSAL)
        return dti_handshake_refusal(core, link, at, have);
    if (magic != (hello ? DTI_MAGIC_HELLO : DTI_MAGIC_PROOF))
        return core->up->dropped(core, link, "received bytes that are not dtrain's protocol");
    uint32_t whole = hello ? DTI_HELLO_BYTES : DTI_PROOF_BYTES;
    if (have < whole)
        return false;
    const char *damage = dti_handshake_damage(hello, at);
    if (damage)
        return dti_link_refuse(core, link, damage);
    /* A data connection may come before the roster: it waits, within its deadline. */
    if (hello && !link->dialled && at[6] == DTI_CHANNEL_DATA && core->state == DTI_CORE_JOINING)
        return false;
    link->rx_from += whole;
    if (!hello)
        return dti_handshake_proof(core, link, at + 4);
    memcpy(link->hello_in, at, DTI_HELLO_BYTES);
    return dti_handshake_hello(core, link);
}
