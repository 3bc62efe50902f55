/* Bytes that were sent and are not acknowledged, on the simulated network. What a copy of them is
 * made of, and when an operation may end. Bytes that are sent again are the first ones, although
 * the application has used its memory again. */

static dti_flight *backlog_post(sim_net *n, int rank, dt_comm_op op, void *in, void *out) {
    dti_core *core = &n->ranks[rank].core;
    op.in = in;
    op.out = out;
    op.dtype = DT_U8;
    return dti_core_post(core, core->groups, &op, NULL, 0);
}

/* Its handle ends, and the application uses its memory for something else. */
static void backlog_end(sim_net *n, int rank, dti_flight *f, uint8_t *memory, size_t bytes) {
    CHECK(f->finished && f->result == DT_OK);
    dti_flight_release(&n->ranks[rank].core, f);
    memset(memory, 0x77, bytes);
}

static bool backlog_is(const uint8_t *data, size_t bytes, int value) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != value)
            return false;
    return true;
}

/* All connections between two ranks break, and the bytes on their way are lost. */
static void backlog_reset(sim_net *n, int a, int b) {
    for (int i = 0; i < n->conn_top; i++) {
        sim_conn *c = &n->conns[i];
        if (c->used && DTI_MIN(c->rank[0], c->rank[1]) == a && DTI_MAX(c->rank[0], c->rank[1]) == b)
            c->reset = true;
    }
}

/* The number of BYE has no frame: where one would lie there is an old one. So a rank's last frame
 * to one that has left does not belong to the operation that continues with others. */
TEST(backlog_number_of_a_bye_keeps_no_old_frame) {
    enum { CHUNK = 4096, MANY = 300 * CHUNK, FEW = 3 * CHUNK };
    static uint8_t from[MANY], to[2][MANY];
    const dt_comm_op give = {
        .kind = DT_COMM_BROADCAST, .algorithm = DT_COMM_ALGORITHM_ONE_SHOT, .count = FEW};
    sim_net *n = sim_joined(3);
    /* Its first chunks are acknowledged before it ends: those were never copied. */
    memset(from, 1, sizeof from);
    dti_flight *sent = backlog_post(
        n, 0, (dt_comm_op){.kind = DT_COMM_SEND, .root = 1, .count = MANY}, from, NULL);
    dti_flight *got = backlog_post(
        n, 1, (dt_comm_op){.kind = DT_COMM_RECV, .root = 0, .count = MANY}, NULL, to[0]);
    sim_pass(n, 100000000);
    CHECK(got->finished && backlog_is(to[0], MANY, 1));
    backlog_end(n, 0, sent, from, sizeof from);
    dti_flight_release(&n->ranks[1].core, got);
    /* Rank 1 has what it needs and leaves; then rank 2, which acknowledges nothing, is sent it. */
    memset(from, 2, sizeof from);
    dti_flight *f = backlog_post(n, 0, give, from, from);
    CHECK(f == sent);
    got = backlog_post(n, 1, give, to[0], to[0]);
    sim_pass(n, 20000000);
    CHECK(got->finished && !f->finished);
    sim_leave(n, 1);
    sim_pass(n, 20000000);
    const dti_backlog *b = &n->ranks[0].core.peers[1].backs[0];
    const dti_sent_frame *old = dti_backlog_at(b, b->bye_at);
    CHECK(b->bye_sent && b->acknowledged == b->bye_at && b->bye_at >= DTI_BACKLOG_FRAMES);
    CHECK(old->flight == f && !old->own); /* else this test tests nothing */
    got = backlog_post(n, 2, give, to[1], to[1]);
    sim_pass(n, 5000000);
    n->faults.cut[0][2] = n->faults.cut[2][0] = true;
    sim_pass(n, 20000000);
    backlog_end(n, 0, f, from, sizeof from);
    n->faults.cut[0][2] = n->faults.cut[2][0] = false;
    backlog_reset(n, 0, 2);
    sim_pass(n, 100000000);
    CHECK(got->finished && backlog_is(to[1], FEW, 2));
    sim_end(n);
}

/* A step that may write where it has sent from waits for a copy, not for the other side. That
 * includes the first frame of a connection, whose number is 0. */
TEST(backlog_first_frame_of_a_connection_does_not_delay_a_step) {
    enum { BYTES = 8192 };
    static uint8_t x[2][BYTES];
    const dt_comm_op sum = {
        .kind = DT_COMM_ALL_REDUCE, .algorithm = DT_COMM_ALGORITHM_DOUBLING, .count = BYTES};
    sim_net *n = sim_joined_by(2, 16384);
    memset(x[0], 3, BYTES);
    memset(x[1], 4, BYTES);
    const dti_flight *other = backlog_post(n, 1, sum, x[1], x[1]);
    sim_pass(n, 20000000);
    n->faults.cut[0][1] = true;
    dti_flight *f = backlog_post(n, 0, sum, x[0], x[0]);
    sim_pass(n, 20000000);
    const dti_backlog *b = &n->ranks[0].core.peers[1].backs[0];
    CHECK(b->sent == 1 && b->acknowledged == 0 && dti_backlog_at(b, 0)->own);
    CHECK(backlog_is(x[0], BYTES, 7) && !other->finished);
    backlog_end(n, 0, f, x[0], BYTES);
    backlog_reset(n, 0, 1);
    n->faults.cut[0][1] = false;
    sim_pass(n, 100000000);
    CHECK(other->finished && backlog_is(x[1], BYTES, 7));
    sim_end(n);
}

static uint32_t backlog_parts_used(const dti_core *core) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < core->set.size; r++)
        for (uint64_t parts = core->peers[r].backs[0].chunk_used; parts; parts &= parts - 1)
            count++;
    return count;
}

/* It lies in the memory of the connection to one of them, and stays until the last one has it. That
 * holds also when that one has it, and is sent other bytes. */
TEST(backlog_of_equal_bytes_to_several_ranks_is_copied_once) {
    enum { CHUNK = 4096, BYTES = 3 * CHUNK, PARTS = 3 * 16 };
    static uint8_t from[BYTES], other[BYTES], to[4][BYTES];
    const dt_comm_op give = {
        .kind = DT_COMM_BROADCAST, .algorithm = DT_COMM_ALGORITHM_ONE_SHOT, .count = BYTES};
    dti_flight *got[4];
    sim_net *n = sim_joined(4);
    const dti_core *core = &n->ranks[0].core;
    for (int r = 1; r < 4; r++)
        got[r] = backlog_post(n, r, give, to[r], to[r]);
    sim_pass(n, 20000000);
    for (int r = 1; r < 4; r++)
        n->faults.cut[0][r] = true;
    memset(from, 5, sizeof from);
    dti_flight *f = backlog_post(n, 0, give, from, from);
    sim_pass(n, 20000000);
    backlog_end(n, 0, f, from, sizeof from);
    test_check(backlog_parts_used(core) == PARTS, __FILE__, __LINE__,
               "%u parts have copies, not %d", backlog_parts_used(core), PARTS);
    n->faults.cut[0][1] = false;
    sim_pass(n, 20000000);
    CHECK(core->peers[1].backs[0].chunk_used && got[1]->finished && backlog_is(to[1], BYTES, 5));
    dti_flight_release(&n->ranks[1].core, got[1]);
    /* The copies leave no room for another operation's until all have them. */
    memset(other, 6, sizeof other);
    f = backlog_post(n, 0, (dt_comm_op){.kind = DT_COMM_SEND, .root = 1, .count = BYTES}, other,
                     NULL);
    got[1] = backlog_post(n, 1, (dt_comm_op){.kind = DT_COMM_RECV, .root = 0, .count = BYTES}, NULL,
                          to[1]);
    for (int i = 0; i < 20 && !core->peers[1].post_count && f->tracks[0].granted == 0; i++)
        sim_pass(n, 1000000);
    n->faults.cut[1][0] = true;
    sim_pass(n, 10000000);
    CHECK(!f->finished && f->parting);
    n->faults.cut[1][0] = n->faults.cut[0][2] = n->faults.cut[0][3] = false;
    backlog_reset(n, 0, 2);
    backlog_reset(n, 0, 3);
    sim_pass(n, 100000000);
    backlog_end(n, 0, f, other, sizeof other);
    for (int r = 2; r < 4; r++)
        CHECK(got[r]->finished && backlog_is(to[r], BYTES, 5));
    CHECK(got[1]->finished && backlog_is(to[1], BYTES, 6));
    sim_pass(n, 100000000);
    CHECK(backlog_parts_used(core) == 0);
    sim_end(n);
}

/* ---- the window, by what links cost */

static uint32_t window_of(dti_link_source source, uint32_t size, uint64_t chunk_bytes,
                          dt_comm_link link) {
    const dti_core core = {
        .set = {.size = size, .chunk_bytes = chunk_bytes, .link_source = (uint8_t)source}};
    return dti_core_window(&core, &link);
}

TEST(window_fills_a_link_within_its_memory_limit) {
    const uint64_t chunk = 256 << 10, ms = 1000000, gbit = 125000000;
    static const dt_comm_link lan = {20000, 1000, 1200000000}, slow = {60000, 1000, 117000000};
    CHECK(window_of(DTI_LINK_MEASURED, 2, chunk, lan) == 4);
    CHECK(window_of(DTI_LINK_MEASURED, 3, chunk, slow) == 4);
    CHECK(window_of(DTI_LINK_MEASURED, 4, chunk, slow) == 2);
    CHECK(window_of(DTI_LINK_MEASURED, 8, chunk, lan) == 2);
    /* 10 Gbit/s, 20 ms: 25 MB there and back, of which 64 chunks are 16. The bandwidth measured
     * there is less than the link has; the given one is believed. */
    const dt_comm_link far = {10 * ms, 0, 8000000}, fast = {10 * ms, 0, 10 * gbit};
    CHECK(window_of(DTI_LINK_MEASURED, 2, chunk, far) == 64);
    CHECK(window_of(DTI_LINK_GIVEN, 2, chunk, far) == 4);
    CHECK(window_of(DTI_LINK_GIVEN, 2, chunk, fast) == 64);
    CHECK(window_of(DTI_LINK_GIVEN, 2, chunk, (dt_comm_link){10 * ms, 0, gbit}) == 10);
    CHECK(window_of(DTI_LINK_GIVEN, 2, 4 << 10, (dt_comm_link){ms, 0, gbit}) == 62);
    /* 64 MiB in all */
    CHECK(window_of(DTI_LINK_MEASURED, 9, chunk, far) == 32);
    CHECK(window_of(DTI_LINK_MEASURED, 64, chunk, far) == 4);
    CHECK(window_of(DTI_LINK_MEASURED, 2, 8 << 20, far) == 4);
    /* many ranks on few processors: each message waits for the others */
    CHECK(window_of(DTI_LINK_MEASURED, 3, chunk, (dt_comm_link){5 * ms, 4 * ms, 8000000}) == 4);
    const dt_comm_link most = {UINT64_MAX, 0, UINT64_MAX};
    CHECK(window_of(DTI_LINK_GIVEN, 2, chunk, most) == 64);
}

/* It is that of all ranks, and the memory that depends on it follows. */
TEST(window_grows_on_all_ranks_and_sums_stay_right) {
    enum { CHUNK = 4096, COUNT = 60 * CHUNK };
    static uint8_t x[3][COUNT];
    const dt_comm_op sum = {
        .kind = DT_COMM_ALL_REDUCE, .algorithm = DT_COMM_ALGORITHM_DIRECT, .count = COUNT};
    const dt_comm_link network = {1000000, 0, 40000000};
    dti_flight *f[3];
    sim_net *n = sim_joined(3);
    for (int round = 0; round < 2; round++) {
        for (int r = 0; r < 3; r++) {
            memset(x[r], 1 + r, COUNT);
            f[r] = backlog_post(n, r, sum, x[r], x[r]);
        }
        sim_pass(n, 200000000);
        for (int r = 0; r < 3; r++) {
            dti_core *core = &n->ranks[r].core;
            CHECK(f[r]->finished && backlog_is(x[r], COUNT, 6));
            CHECK(core->pool_bytes == 2u * core->window * CHUNK);
            CHECK(core->peers[(r + 1) % 3].backs[0].part_bytes * 64 == core->window * CHUNK);
            CHECK(core->window == (round ? 20 : 4));
            dti_flight_release(core, f[r]);
            core->set.window = 0; /* as if nobody had said anything */
            dti_core_link_costs(core, &network, &network);
        }
    }
    sim_end(n);
}
