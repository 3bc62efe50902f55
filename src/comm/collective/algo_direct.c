/* Direct algorithms that sum or cut. Every rank exchanges with every other. So each array is sent
 * twice for any number of ranks N. Plain direct exchanges are in algo_exchange.c.
 *
 *   all-reduce      each rank sums one segment of all ranks' arrays and sends the sum to all:
 *                   2 messages in a row; 2 (N-1)/N S bytes sent and received per rank
 *   reduce          the same, but sums go to the root only: 2 messages; (N-1)/N S + S/N sent, S/N
 *                   times N-1 more received at the root
 *   reduce-scatter  1 message; (N-1) blocks sent and received per rank
 *   broadcast       the root deals its array out to the others, who pass their parts on: 2
 *                   messages; S sent by the root, (N-2)/(N-1) S by each other, S received
 *
 * Both bounds of an all-reduce, N-1 links at once given, are reached: 2 latencies, and 2 (N-1)/N S
 * bytes. (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in
 * MPICH, IJHPCA 19, 2005, for reduce-scatter + all-gather; the fully connected form is a one-level
 * tree.) Peers are taken in rotated order, rank + 1, rank + 2, ..., so that not all begin with the
 * same one.
 *
 * Memory: slots; reduce also one segment of WORK. The order of summing is fold.h's tree.
 *
 * In place: a rank's sum overwrites its own segment of IN, which it sends to nobody. The sum of
 * another's segment overwrites that segment. Its owner made it, chunk for chunk, from the data that
 * this rank sent. In tree mode this holds for the first buffer, if its type is that of the result
 * (choose.c refuses others). In place reduce-scatter writes to block 0, chunk for chunk after that
 * has gone to rank 0. Rank 0 waits for nobody. Broadcast writes nothing at the root. */

/* The elements that rank `owner` sums. */
static dti_part dti_direct_part(const dti_collective *c, uint32_t owner) {
    if (c->op.kind == DT_COMM_REDUCE_SCATTER)
        return (dti_part){owner * c->op.count, c->op.count};
    return dti_part_of(c->op.count, owner, c->size);
}

/* Sends the others their parts, a stream for each buffer of `in`. Returns how many buffers. */
static uint32_t dti_direct_scatter(dti_builder *b) {
    const dti_collective *c = b->c;
    dt_comm_span spans[DTI_TREE_SPANS];
    uint32_t buffers = dti_collective_spans(c, c->rank, spans);
    for (uint32_t i = 1; i < c->size; i++) {
        uint32_t peer = (c->rank + i) % c->size;
        dti_part part = dti_direct_part(c, peer);
        for (uint32_t k = 0; k < buffers; k++)
            dti_add_send(b, peer, k,
                         dti_stretch_at(DTI_REGION_IN, dti_in_dtype(c),
                                        k * c->op.count + part.first, part.count),
                         true);
    }
    return buffers;
}

/* Receives `part` of the arrays of ranks [first, end) by streams from `stream` on. Sums it with
 * this rank's into `to`; returns the FOLD. */
static uint32_t dti_slots_sum(dti_builder *b, uint32_t first, uint32_t end, dti_part part,
                              uint32_t stream, dti_stretch to, bool finish) {
    const dti_collective *c = b->c;
    uint8_t dtype = dti_in_dtype(c);
    dti_stretch slot = dti_stretch_at(DTI_REGION_SLOT, dtype, 0, part.count);
    dt_comm_span spans[DTI_TREE_SPANS];
    uint32_t recv = (uint32_t)b->s->step_count; /* the RECVs have numbers in a row */
    for (uint32_t peer = first; peer < end; peer++)
        for (uint32_t k = 0, n = peer == c->rank ? 0 : dti_collective_spans(c, peer, spans); k < n;
             k++)
            dti_add_recv(b, peer, stream + k, slot, true);
    uint32_t fold = dti_add_fold(b, to, finish);
    for (uint32_t peer = first; peer < end; peer++) {
        uint32_t n = dti_collective_spans(c, peer, spans);
        for (uint32_t k = 0; k < n; k++) {
            dti_stretch own =
                dti_stretch_at(DTI_REGION_IN, dtype, k * c->op.count + part.first, part.count);
            if (peer == c->rank)
                dti_add_source(b, own, DTI_NO_STEP, spans[k]);
            else
                dti_add_source(b, slot, recv++, spans[k]);
        }
    }
    return fold;
}

/* The same of this rank's part, of all ranks. */
static uint32_t dti_direct_sum(dti_builder *b, dti_stretch to) {
    return dti_slots_sum(b, 0, b->c->size, dti_direct_part(b->c, b->c->rank), 0, to, true);
}

static dti_stretch dti_direct_out(const dti_collective *c, uint32_t owner) {
    dti_part part = dti_part_of(c->op.count, owner, c->size);
    return dti_stretch_of(c, DTI_REGION_OUT, part.first, part.count);
}

/* The stream of a sum comes after those of the sender's buffers. */
static void dti_direct_recv_sum(dti_builder *b, uint32_t owner) {
    dt_comm_span spans[DTI_TREE_SPANS];
    dti_add_recv(b, owner, dti_collective_spans(b->c, owner, spans), dti_direct_out(b->c, owner),
                 false);
}

/* Also all-reduce, where everybody has the root's part in it. */
static void dti_algo_reduce_direct(dti_builder *b, const dti_collective *c) {
    uint32_t root = (uint32_t)c->op.root;
    bool all = c->op.kind == DT_COMM_ALL_REDUCE, takes = all || c->rank == root;
    if (c->op.tree)
        dti_builder_partials(b);
    dti_stretch mine = dti_direct_out(c, c->rank);
    if (!takes)
        mine = dti_add_work(b, mine.dtype, mine.count);
    uint32_t buffers = dti_direct_scatter(b);
    uint32_t fold = dti_direct_sum(b, mine);
    for (uint32_t i = 1; i < c->size; i++) {
        uint32_t peer = (c->rank + i) % c->size;
        if (!all && peer != root)
            continue;
        dti_add_send(b, peer, buffers, mine, false);
        dti_add_after(b, fold);
    }
    for (uint32_t i = 1; takes && i < c->size; i++)
        dti_direct_recv_sum(b, (c->rank + c->size - i) % c->size);
}

static void dti_algo_reduce_scatter_direct(dti_builder *b, const dti_collective *c) {
    dti_direct_scatter(b);
    dti_direct_sum(b, dti_stretch_all(c, DTI_REGION_OUT));
    if (c->rank != 0 && dti_coll_overlap(c) == DTI_SAME)
        dti_add_after(b, c->size - c->rank - 1); /* the number of the send to rank 0 */
}

/* The part of the rank that is `place` places after the root's next. */
static dti_stretch dti_algo_broadcast_part(const dti_collective *c, dti_region at, uint32_t place) {
    dti_part part = dti_part_of(c->op.count, place, c->size - 1);
    return dti_stretch_of(c, at, part.first, part.count);
}

static void dti_algo_broadcast_direct(dti_builder *b, const dti_collective *c) {
    uint32_t root = (uint32_t)c->op.root, others = c->size - 1;
    if (c->rank == root) {
        for (uint32_t i = 0; i < others; i++)
            dti_add_send(b, (root + 1 + i) % c->size, 0,
                         dti_algo_broadcast_part(c, DTI_REGION_IN, i), false);
        return;
    }
    uint32_t me = (c->rank + c->size - root - 1) % c->size;
    dti_stretch mine = dti_algo_broadcast_part(c, DTI_REGION_OUT, me);
    uint32_t recv = dti_add_recv(b, root, 0, mine, false);
    for (uint32_t i = 1; i < others; i++) {
        dti_add_send(b, (root + 1 + (me + i) % others) % c->size, 0, mine, false);
        dti_add_after(b, recv);
    }
    for (uint32_t i = 1; i < others; i++) {
        uint32_t from = (me + others - i) % others;
        dti_add_recv(b, (root + 1 + from) % c->size, 0,
                     dti_algo_broadcast_part(c, DTI_REGION_OUT, from), false);
    }
}
