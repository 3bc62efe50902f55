/* Any bytes at a rank before their sender has proved anything. They come at accepted connections,
 * and at those that it made itself. The input is a list of events; hellos, proofs and refusals are
 * right except where the input changes them, or are any bytes. They come in pieces. The proof can
 * be right too: then the sender has the key, and what follows is fuzz_frames.c's. A peer that has
 * not proved the key changes only its own connection, and takes no memory. */
#include "fuzz/fuzz_core.h"

typedef struct fuzz_hello_world {
    fuzz_world w;
    size_t piece;
    uint64_t bytes; /* that the core held at the start */
} fuzz_hello_world;

/* What nobody may change who has proved nothing. */
typedef struct fuzz_public {
    dti_core_state state;
    uint32_t epoch, joined, left_count, flight_count, post_count, early_bytes, open;
    uint8_t nonce[16];
} fuzz_public;

static fuzz_public fuzz_public_of(const dti_core *core) {
    fuzz_public p;
    memset(&p, 0, sizeof p); /* it is compared as bytes */
    p.state = core->state;
    p.epoch = core->epoch;
    p.joined = core->joined;
    p.left_count = core->left_count;
    p.flight_count = core->flight_count;
    memcpy(p.nonce, core->nonce, sizeof p.nonce);
    for (uint32_t r = 0; r < core->set.size; r++) {
        p.post_count += core->peers[r].post_count;
        p.early_bytes += core->peers[r].early_bytes + core->peers[r].early_taken;
        p.open += core->peers[r].left;
    }
    for (uint32_t i = 0; i < core->link_count; i++)
        p.open += core->links[i].state == DTI_LINK_OPEN ? 16 : 0;
    return p;
}

static fuzz_conn *fuzz_pick_live(fuzz_world *w, uint32_t which) {
    uint32_t live = 0;
    for (int i = 0; i < FUZZ_LINKS; i++)
        live += w->conns[i].link != NULL;
    which = live ? which % live : 0;
    for (int i = 0; i < FUZZ_LINKS; i++)
        if (w->conns[i].link && which-- == 0)
            return &w->conns[i];
    return NULL;
}

/* ---- messages */

/* The hello that this connection waits for, with up to three fields that are not. */
static void fuzz_send_hello(fuzz_hello_world *hw, fuzz_input *in, fuzz_conn *c) {
    const dti_core *core = &hw->w.core;
    const dti_link *link = c->link;
    uint8_t h[DTI_HELLO_BYTES] = {0};
    uint32_t how = fuzz_u8(in);
    uint32_t channel = link->dialled ? link->channel : how & 1;
    uint32_t rank = link->dialled ? link->peer : (core->set.rank + 1 + (how >> 1 & 1)) % 3;
    dti_put32(h, DTI_MAGIC_HELLO);
    h[4] = h[5] = DTI_WIRE_VERSION;
    h[6] = (uint8_t)channel;
    h[7] = !core->set.keyed;
    dti_put32(h + 8, rank);
    dti_put32(h + 12, core->set.rank);
    dti_put32(h + 16, core->set.size);
    dti_put64(h + 24, core->set.attempt);
    memset(h + 32, (int)how, 32);
    if (channel == DTI_CHANNEL_DATA) {
        dti_put32(h + 20, core->epoch);
        memcpy(h + 64, core->nonce, 16);
    }
    dti_put16(h + 80, link->dialled ? link->socket : how >> 2 & 1);
    dti_put16(h + 82, core->set.sockets);
    h[84] = core->set.integrity;
    memcpy(h + 96, core->set.job, 64);
    dti_put32(h + DTI_HELLO_SUM_AT, dti_hello_sum(h));
    for (uint32_t k = how >> 6; k; k--) {
        uint32_t at = fuzz_below(in, DTI_HELLO_BYTES);
        h[at] = (uint8_t)fuzz_u8(in);
    }
    if ((how & 0x38) != 0x38) /* else it has changed on its way */
        dti_put32(h + DTI_HELLO_SUM_AT, dti_hello_sum(h));
    fuzz_queue(c, h, sizeof h);
}

/* Right where that is asked for, if the connection has both hellos. */
static void fuzz_send_proof(fuzz_hello_world *hw, fuzz_conn *c, bool right) {
    uint8_t proof[DTI_PROOF_BYTES];
    dti_put32(proof, DTI_MAGIC_PROOF);
    dti_link_mac(&hw->w.core, c->link, !c->link->dialled, proof + 4);
    proof[4] ^= !right;
    dti_put32(proof + DTI_PROOF_SUM_AT, dti_crc32c(0, proof, DTI_PROOF_SUM_AT));
    c->proved = c->proved || right;
    fuzz_queue(c, proof, sizeof proof);
}

static void fuzz_send_refusal(fuzz_input *in, fuzz_conn *c) {
    uint8_t refusal[8 + 255];
    uint32_t bytes = fuzz_u8(in), how = fuzz_u8(in);
    dti_put32(refusal, DTI_MAGIC_REFUSAL);
    dti_put16(refusal + 4, how % 8 == 7 ? how : DT_ERROR_REFUSED);
    dti_put16(refusal + 6, bytes + (how >= 250 ? 256 * how : 0));
    for (uint32_t i = 0; i < bytes; i++)
        refusal[8 + i] = (uint8_t)(how * i);
    fuzz_queue(c, refusal, 8 + bytes);
}

static void fuzz_send_any(fuzz_input *in, fuzz_conn *c) {
    static const uint32_t magics[] = {DTI_MAGIC_HELLO, DTI_MAGIC_PROOF, DTI_MAGIC_REFUSAL,
                                      DTI_MAGIC};
    uint8_t bytes[256];
    uint32_t how = fuzz_u8(in), count = 4 + fuzz_below(in, sizeof bytes - 4);
    dti_put32(bytes, magics[how % DTI_COUNT(magics)]);
    for (uint32_t i = how & 4 ? 4 : 0; i < count; i++)
        bytes[i] = (uint8_t)fuzz_u8(in);
    fuzz_queue(c, bytes, count);
}

/* ---- events */

/* Messages of a peer without the key: afterwards all is as it was. A connection that the core made
 * itself is the exception. Where no peer with the key answers there is no run. So it may end, with
 * the fault that it suspected. */
static void fuzz_event_stranger(fuzz_hello_world *hw, fuzz_input *in, uint32_t event,
                                fuzz_conn *c) {
    dti_core *core = &hw->w.core;
    bool open = c->link->state == DTI_LINK_OPEN;
    fuzz_public before = fuzz_public_of(core);
    const dt_result suspected = core->state == DTI_CORE_SUSPECT ? core->result : DT_OK;
    bool dialled = c->link->dialled;
    uint32_t some = fuzz_u8(in);
    if (open)
        return; /* its bytes are fuzz_frames.c's */
    if (event == 0)
        fuzz_send_hello(hw, in, c);
    else if (event == 1)
        fuzz_send_proof(hw, c, some & 1);
    else if (event == 2)
        fuzz_send_refusal(in, c);
    else
        fuzz_send_any(in, c);
    bool whole = some < 192;
    fuzz_deliver(&hw->w, c, whole ? SIZE_MAX : some - 191, hw->piece);
    if (c->link && c->link->state == DTI_LINK_OPEN) { /* right proofs may come byte by byte */
        FUZZ_CHECK(!core->set.keyed || c->proved);
        return;
    }
    fuzz_public after = fuzz_public_of(core);
    before.open = after.open; /* others may have waited for the roster */
    FUZZ_CHECK(!memcmp(&before, &after, sizeof before) ||
               (dialled && after.state >= DTI_CORE_SUSPECT &&
                (core->result == DT_ERROR_REFUSED || core->result == DT_ERROR_CORRUPT ||
                 core->result == DT_ERROR_PEER_LOST || (suspected && core->result == suspected))));
}

static void fuzz_event(fuzz_hello_world *hw, fuzz_input *in, uint32_t event) {
    dti_core *core = &hw->w.core;
    fuzz_conn *c = event < 8 ? fuzz_pick_live(&hw->w, fuzz_u8(in)) : NULL;
    if (c && event < 4 && c->link->state != DTI_LINK_DIALING)
        fuzz_event_stranger(hw, in, event, c);
    else if (c && c->link->state == DTI_LINK_DIALING)
        dti_core_connected(core, c->link);
    else if (c && event == 4)
        fuzz_drain(&hw->w, c, SIZE_MAX);
    else if (c && event == 5)
        fuzz_drain(&hw->w, c, fuzz_u8(in));
    else if (c && event == 6)
        dti_core_closed(core, c->link, NULL);
    else if (c && event == 7)
        fuzz_deliver(&hw->w, c, fuzz_u8(in), hw->piece);
    else if (event == 8)
        dti_core_tick(core, core->now + (uint64_t)fuzz_u8(in) * 20000000);
    else if (event == 9 && fuzz_u8(in) >= 192)
        dti_core_leave(core);
    else if (event > 9) {
        dti_link *link = dti_core_accepted(core, (const uint8_t[DTI_SOURCE_BYTES]){0});
        if (link)
            fuzz_conn_start(&hw->w, link);
    }
}

/* ---- one input */

/* As if all had joined: rank 1 and 2 have data connections to make, so has each to rank 0. */
static void fuzz_open(fuzz_hello_world *hw) {
    dti_core *core = &hw->w.core;
    core->state = DTI_CORE_OPEN;
    for (uint32_t r = 0; r < core->set.size; r++) {
        core->peers[r].joined = true;
        if (r < core->set.rank)
            dti_member_want(core, r);
    }
    core->joined = core->set.rank ? core->set.size : core->set.size - 1;
}

static dt_result fuzz_hello(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size, 0};
    fuzz_hello_world *hw = calloc(1, sizeof *hw);
    uint32_t how = fuzz_u8(&in);
    dti_settings set = {.rank = how % 3,
                        .size = 3,
                        .chunk_bytes = 4096,
                        .attempt = 7,
                        .window = 4,
                        .sockets = 1 + (how >> 2 & 1),
                        .join_ns = 8000000000u,
                        .silence_ns = 300000000u,
                        .keyed = !(how & 8),
                        .job = "fuzz"};
    if (!hw)
        return DT_ERROR_MEMORY;
    memset(set.key, 0x5A, sizeof set.key);
    hw->piece = how & 16 ? 1 + (how >> 5) * 9 : SIZE_MAX;
    FUZZ_CHECK(fuzz_world_open(&hw->w, &set));
    hw->bytes = hw->w.base.bytes_now;
    if (how & 128)
        fuzz_open(hw);
    for (int i = 0; i < 300 && fuzz_more(&in); i++) {
        fuzz_event(hw, &in, fuzz_below(&in, 12));
        fuzz_check_core(&hw->w.core);
        FUZZ_CHECK(hw->w.base.bytes_now == hw->bytes);
    }
    dt_result result = hw->w.core.state == DTI_CORE_ENDED ? hw->w.core.result : DT_OK;
    fuzz_world_close(&hw->w);
    free(hw);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_hello(data, size);
    return 0;
}
#endif
