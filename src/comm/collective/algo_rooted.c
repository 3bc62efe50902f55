/* Operations with a root, without arithmetic or along trees. algo_direct.c has broadcast and reduce
 * that distribute an array over all ranks, algo_ring.c the chain, algo_exchange.c gather's steps.
 *
 *   gather, scatter      1 message; the root receives, or sends, N-1 blocks: the least there can be
 *   broadcast, one-shot  the root sends everything to each: 1 message; (N-1) S sent by the root
 *   broadcast, doubling  a binomial tree: ceil(log2 N) messages in a row; up to ceil(log2 N) S
 *                        sent by a rank
 *   reduce, doubling     fold.h's tree: ceil(log2 N) messages in a row; each rank sends S once.
 *                        A node's sum is at the root if the root is in it, else at its first rank
 *
 * Memory: none, but reduce: WORK of S for each level that a rank sums at. (Thakur, Rabenseifner,
 * Gropp 2005.)
 *
 * In place: gather and its RECVs as dti_collective_block says. Scatter's root with in = out copies
 * its own block to block 0 when that has gone, chunk for chunk. A broadcast's root writes nothing.
 * A reduce writes OUT at the root only, which sends nothing. */

static void dti_algo_scatter_direct(dti_builder *b, const dti_collective *c) {
    uint32_t root = (uint32_t)c->op.root, to_first = DTI_NO_STEP;
    dti_stretch out = dti_stretch_all(c, DTI_REGION_OUT);
    if (c->rank != root) {
        dti_add_recv(b, root, 0, out, false);
        return;
    }
    for (uint32_t i = 1; i < c->size; i++) {
        uint32_t peer = (root + i) % c->size;
        uint32_t send = dti_add_send(
            b, peer, 0, dti_stretch_of(c, DTI_REGION_IN, peer * c->op.count, c->op.count), false);
        to_first = peer == 0 ? send : to_first;
    }
    dti_overlap overlap = dti_coll_overlap(c);
    if (overlap == DTI_OWN || (overlap == DTI_SAME && root == 0))
        return;
    dti_add_copy(b, out, dti_stretch_of(c, DTI_REGION_IN, root * c->op.count, c->op.count));
    if (overlap == DTI_SAME)
        dti_add_after(b, to_first);
}

static void dti_algo_broadcast_one_shot(dti_builder *b, const dti_collective *c) {
    uint32_t root = (uint32_t)c->op.root;
    bool first = c->rank == root;
    dti_stretch at = dti_stretch_all(c, first ? DTI_REGION_IN : DTI_REGION_OUT);
    if (!first) {
        dti_add_recv(b, root, 0, at, false);
        return;
    }
    for (uint32_t i = 1; i < c->size; i++)
        dti_add_send(b, (root + i) % c->size, 0, at, false);
}

/* Counted from the root, place v receives from v without its lowest bit. It serves v plus each
 * smaller bit, the largest first, as most ranks depend on it. */
static void dti_algo_broadcast_doubling(dti_builder *b, const dti_collective *c) {
    uint32_t root = (uint32_t)c->op.root, place = (c->rank + c->size - root) % c->size;
    dti_stretch at = dti_stretch_all(c, place == 0 ? DTI_REGION_IN : DTI_REGION_OUT);
    uint32_t bit = place & (~place + 1), recv = DTI_NO_STEP;
    if (place == 0)
        bit = dti_tree_split(c->size) * 2;
    else
        recv = dti_add_recv(b, (root + place - bit) % c->size, 0, at, false);
    for (bit /= 2; bit > 0; bit /= 2) {
        if (bit >= c->size - place)
            continue;
        dti_add_send(b, (root + place + bit) % c->size, 0, at, false);
        dti_add_after(b, recv);
    }
}

/* The rank that has the sum of the span's leaves. */
static uint32_t dti_algo_reduce_holder(dt_comm_span span, uint32_t root) {
    return root >= span.first && root - span.first < span.count ? root : span.first;
}

static void dti_algo_reduce_doubling(dti_builder *b, const dti_collective *c) {
    dti_builder_partials(b);
    uint32_t root = (uint32_t)c->op.root;
    dt_comm_span path[DTI_DOUBLING_LEVELS];
    uint32_t levels = dti_doubling_path(c->size, c->rank, path);
    dti_partial mine = dti_doubling_leaf(c);
    for (uint32_t level = levels; level-- > 0;) {
        dt_comm_span node = path[level];
        uint32_t half = dti_tree_split(node.count);
        bool right = c->rank >= node.first + half;
        dt_comm_span other = right ? (dt_comm_span){node.first, half}
                                   : (dt_comm_span){node.first + half, node.count - half};
        uint32_t holder = dti_algo_reduce_holder(node, root);
        if (holder != c->rank) {
            dti_doubling_send(b, holder, &mine);
            break;
        }
        dti_doubling_merge(b, other.first, other, &mine); /* the root is not in it */
    }
}
