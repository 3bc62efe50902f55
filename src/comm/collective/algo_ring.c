/* Ring algorithms: rank r sends to r + 1 and receives from r - 1 only. They are for many ranks and
 * large arrays, or if only neighbours are well connected.
 *
 *   reduce-scatter  N-1 messages in a row; (N-1) segments sent and received per rank. Segment s
 *                   begins at rank s + 1 and collects a summand at each rank until it is at rank s
 *   all-gather      N-1 messages in a row; (N-1) segments, each passed on
 *   all-reduce      the one, then the other: 2 (N-1) messages, 2 (N-1)/N S bytes
 *   broadcast       a chain from the root on: N-1 messages, S bytes sent and received
 *
 * (Patarasuk, Yuan: Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, JPDC 69,
 * 2009; Thakur, Rabenseifner, Gropp 2005.) A chunk is passed on while the next one comes in. So a
 * message costs a hop's latency and a chunk, not a segment.
 *
 * Memory: WORK of three segments in the type of partial sums: one coming in, one going out, one
 * between. A segment may come into one of them when the SEND before has left it. So RECVs wait for
 * SENDs, and SENDs for RECVs of earlier segments at the next rank. Round the ring the segment only
 * gets earlier, so no rank waits for itself.
 *
 * The order of summing is the ring's: s + 1, s + 2, ..., s. Fixed, but another for each segment.
 *
 * In place: the finished segment s can only come when this rank has added its own summand and sent
 * it. A reduce-scatter with in = out writes to block 0, and waits for the step that reads that of
 * IN. */

#define DTI_RING_BUFFERS 3u

typedef struct dti_ring {
    uint32_t next, before;
    dti_stretch room[DTI_RING_BUFFERS],
        leaf_room;                     /* leaf_room: room for the first received segment, if not
                                          partial */
    uint32_t reader[DTI_RING_BUFFERS]; /* the SEND that reads room[i] */
    uint32_t first_block_reader;       /* of reduce-scatter's block 0 of IN */
} dti_ring;

/* Segment or, of reduce-scatter and all-gather, block s. */
static dti_part dti_ring_part(const dti_collective *c, uint32_t s) {
    if (c->op.kind == DT_COMM_ALL_REDUCE)
        return dti_part_of(c->op.count, s, c->size);
    return (dti_part){s * c->op.count, c->op.count};
}

static dti_stretch dti_ring_range(const dti_collective *c, dti_region place, uint32_t s) {
    dti_part part = dti_ring_part(c, s);
    return dti_stretch_of(c, place, part.first, part.count);
}

static dti_ring dti_ring_begin(const dti_collective *c) {
    dti_ring ring = {.next = (c->rank + 1) % c->size, .before = (c->rank + c->size - 1) % c->size};
    ring.first_block_reader = DTI_NO_STEP;
    return ring;
}

static void dti_ring_rooms(dti_builder *b, dti_ring *ring) {
    uint8_t dtype = (uint8_t)b->c->op.dtype;
    uint64_t most = dti_ring_part(b->c, 0).count; /* the first segment is the longest */
    for (uint32_t i = 0; i < DTI_RING_BUFFERS; i++) {
        ring->reader[i] = DTI_NO_STEP;
        if (i + 1 < b->c->size) /* the number of segments that come by */
            ring->room[i] = dti_add_work(b, b->s->sum_dtype, most);
    }
    ring->leaf_room = ring->room[0];
    if (dtype != b->s->sum_dtype)
        ring->leaf_room = dti_add_work(b, dtype, most);
}

/* Step t of the reduce-scatter: passes on *at, made by *step, and adds to the received segment; at
 * last to OUT. */
static void dti_ring_add(dti_builder *b, dti_ring *ring, uint32_t t, dti_stretch *at,
                         uint32_t *step) {
    const dti_collective *c = b->c;
    uint32_t n = c->size, segment = (c->rank + 2 * n - 2 - t) % n, i = t % DTI_RING_BUFFERS;
    bool last = t == n - 2, waits = t >= DTI_RING_BUFFERS;
    dti_stretch in = dti_ring_range(c, DTI_REGION_IN, segment);
    dti_stretch theirs = dti_stretch_part(t == 0 ? ring->leaf_room : ring->room[i], 0, in.count);
    dti_stretch to = dti_stretch_part(ring->room[i], 0, in.count);
    if (last)
        to = c->op.kind == DT_COMM_ALL_REDUCE ? dti_ring_range(c, DTI_REGION_OUT, segment)
                                              : dti_stretch_all(c, DTI_REGION_OUT);
    uint32_t send = dti_add_send(b, ring->next, t, *at, waits);
    dti_add_after(b, *step);
    if (t > 0 && send != DTI_NO_STEP)
        ring->reader[(t - 1) % DTI_RING_BUFFERS] = send;
    if (t == 0 && ring->before == 0)
        ring->first_block_reader = send;
    uint32_t recv = dti_add_recv(b, ring->before, t, theirs, waits);
    if (waits)
        dti_add_after_whole(b, ring->reader[i]);
    *step = dti_add_fold(b, to, last);
    dti_add_source(b, theirs, recv, (dt_comm_span){0, 1});
    dti_add_source(b, in, DTI_NO_STEP, (dt_comm_span){1, 1});
    if (last && c->op.kind == DT_COMM_REDUCE_SCATTER && dti_coll_overlap(c) == DTI_SAME)
        dti_add_after(b, ring->first_block_reader);
    if (segment == 0)
        ring->first_block_reader = *step;
    *at = to;
}

/* The reduce-scatter; returns its last FOLD. */
static uint32_t dti_ring_sum(dti_builder *b, dti_ring *ring) {
    const dti_collective *c = b->c;
    dti_stretch at = dti_ring_range(c, DTI_REGION_IN, ring->before);
    uint32_t step = DTI_NO_STEP;
    dti_ring_rooms(b, ring);
    for (uint32_t t = 0; t + 1 < c->size; t++)
        dti_ring_add(b, ring, t, &at, &step);
    return step;
}

static void dti_algo_all_reduce_ring(dti_builder *b, const dti_collective *c) {
    dti_builder_partials(b);
    dti_ring ring = dti_ring_begin(c);
    uint32_t n = c->size, step = dti_ring_sum(b, &ring);
    for (uint32_t t = 0; t + 1 < n; t++) {
        uint32_t segment = (c->rank + n - t) % n, coming = (c->rank + n - t - 1) % n;
        dti_add_send(b, ring.next, n - 1 + t, dti_ring_range(c, DTI_REGION_OUT, segment), false);
        dti_add_after(b, step);
        step = dti_add_recv(b, ring.before, n - 1 + t, dti_ring_range(c, DTI_REGION_OUT, coming),
                            false);
    }
}

static void dti_algo_reduce_scatter_ring(dti_builder *b, const dti_collective *c) {
    dti_builder_partials(b);
    dti_ring ring = dti_ring_begin(c);
    dti_ring_sum(b, &ring);
}

static void dti_algo_all_gather_ring(dti_builder *b, const dti_collective *c) {
    dti_ring ring = dti_ring_begin(c);
    uint32_t n = c->size;
    dti_block own = dti_collective_block(b);
    dti_stretch at = own.at;
    uint32_t step = own.copy;
    for (uint32_t t = 0; t + 1 < n; t++) {
        uint32_t coming = (c->rank + n - t - 1) % n;
        dti_add_send(b, ring.next, t, at, false);
        dti_add_after(b, step);
        step = dti_recv_block(b, ring.before, t, coming, own);
        at = dti_ring_range(c, DTI_REGION_OUT, coming);
    }
}

static void dti_algo_broadcast_ring(dti_builder *b, const dti_collective *c) {
    dti_ring ring = dti_ring_begin(c);
    bool first = c->rank == (uint32_t)c->op.root, last = ring.next == (uint32_t)c->op.root;
    dti_stretch at = dti_stretch_all(c, first ? DTI_REGION_IN : DTI_REGION_OUT);
    uint32_t recv = DTI_NO_STEP;
    if (!first)
        recv = dti_add_recv(b, ring.before, 0, at, false);
    if (!last) {
        dti_add_send(b, ring.next, 0, at, false);
        dti_add_after(b, recv);
    }
}
