/* Plain exchanges: they move bytes and add nothing.
 *
 *   send, recv   1 message
 *   all-gather   1 message; (N-1) blocks sent and received per rank, the least there can be
 *   all-to-all   1 message; (N-1) blocks sent and received per rank, likewise
 *   barrier      ceil(log2 N) messages in a row, of a byte each. In round k a rank reports to
 *                the one 2^k after it that the 2^k before it have arrived (Hensgen, Finkel, Manber:
 *                Two Algorithms for Barrier Synchronization, 1988: dissemination)
 *
 * Peers are taken in rotated order, rank + 1, rank + 2, ..., so that not all begin with the same
 * one.
 *
 * Memory: none, except N-1 blocks of WORK for an all-to-all in place. There a pair exchanges
 * blocks. If each waited until its own room is free, both would wait for ever. So received data
 * goes to WORK, and then to OUT, chunk for chunk after the block there has gone. An all-gather in
 * place is as dti_collective_block says; if in = out at another's block, one block of WORK. */

static void dti_algo_send_direct(dti_builder *b, const dti_collective *c) {
    dti_add_send(b, (uint32_t)c->op.root, 0, dti_stretch_all(c, DTI_REGION_IN), false);
}

static void dti_algo_recv_direct(dti_builder *b, const dti_collective *c) {
    dti_add_recv(b, (uint32_t)c->op.root, 0, dti_stretch_all(c, DTI_REGION_OUT), false);
}

/* Also gather, where only the root receives. */
static void dti_algo_gather_direct(dti_builder *b, const dti_collective *c) {
    uint32_t root = (uint32_t)c->op.root;
    bool all = c->op.kind == DT_COMM_ALL_GATHER;
    if (!all && c->rank != root) {
        dti_add_send(b, root, 0, dti_stretch_all(c, DTI_REGION_IN), false);
        return;
    }
    dti_block own = dti_collective_block(b);
    for (uint32_t i = 1; all && i < c->size; i++) {
        dti_add_send(b, (c->rank + i) % c->size, 0, own.at, false);
        dti_add_after(b, own.copy);
    }
    for (uint32_t i = 1; i < c->size; i++) {
        uint32_t peer = (c->rank + c->size - i) % c->size;
        dti_recv_block(b, peer, 0, peer, own);
    }
}

static void dti_algo_all_to_all_direct(dti_builder *b, const dti_collective *c) {
    uint8_t dtype = (uint8_t)c->op.dtype;
    uint64_t n = c->op.count;
    bool apart = dti_coll_overlap(c) == DTI_APART;
    for (uint32_t i = 1; i < c->size; i++) {
        uint32_t peer = (c->rank + i) % c->size;
        dti_add_send(b, peer, 0, dti_stretch_of(c, DTI_REGION_IN, peer * n, n), false);
    }
    for (uint32_t i = 1; i < c->size; i++) {
        uint32_t peer = (c->rank + c->size - i) % c->size;
        dti_stretch out = dti_stretch_of(c, DTI_REGION_OUT, peer * n, n);
        dti_stretch work = apart ? out : dti_add_work(b, dtype, n);
        uint32_t recv = dti_add_recv(b, peer, 0, work, false);
        if (apart)
            continue;
        dti_add_copy(b, out, work);
        dti_add_after(b, recv);
        if (n > 0)
            dti_add_after(b, c->size - i - 1); /* the number of the send to it */
    }
    if (apart)
        dti_add_copy(b, dti_stretch_of(c, DTI_REGION_OUT, c->rank * n, n),
                     dti_stretch_of(c, DTI_REGION_IN, c->rank * n, n));
}

static void dti_algo_barrier_doubling(dti_builder *b, const dti_collective *c) {
    dti_stretch token = dti_add_work(b, DT_U8, 1); /* whatever it is */
    uint32_t heard[32], rounds = 0;
    for (uint32_t distance = 1; distance < c->size && rounds < 32; distance *= 2) {
        dti_add_send(b, (c->rank + distance) % c->size, 0, token, false);
        for (uint32_t i = 0; i < rounds; i++) /* a message of a later round may arrive first */
            dti_add_after(b, heard[i]);
        dti_stretch room = dti_add_work(b, DT_U8, 1);
        heard[rounds++] = dti_add_recv(b, (c->rank + c->size - distance) % c->size, 0, room, false);
    }
}

/* A count of 0 is a message too, for each kind. So a rank with another count is noticed, and does
 * not wait for bytes that nobody sends. */
static void dti_algo_nothing(dti_builder *b, const dti_collective *c) {
    if (!dti_kind_is_p2p(c->op.kind)) {
        dti_algo_barrier_doubling(b, c);
        return;
    }
    dti_stretch token = dti_add_work(b, DT_U8, 1);
    if (c->op.kind == DT_COMM_SEND)
        dti_add_send(b, (uint32_t)c->op.root, 0, token, false);
    else
        dti_add_recv(b, (uint32_t)c->op.root, 0, token, false);
}
