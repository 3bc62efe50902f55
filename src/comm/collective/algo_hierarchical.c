/* All-reduce if several ranks share each host. Sums within a host do not cross the network. Ranks
 * are in blocks, `local` consecutive ones on each of H hosts. The array is cut into a piece for
 * each place on a host. Each piece is cut into a part for each host.
 *
 *   1. on the host, every rank sums its piece of all its neighbours' arrays
 *   2. between the ranks of one place on all hosts: each sums its host's part of that piece
 *   3. back: the parts' sums go to the other hosts, and there, and here, to all neighbours
 *
 * 4 messages in a row, of which 2 cross the network. 2 (N-1)/N S bytes are sent and received per
 * rank. 2 (H-1)/H S of them leave a host, all its ranks together; with direct the host sends
 * `local` times the bytes. Sums of 16-bit floats are float32 on the way there, so 3 (H-1)/H S
 * leave. Memory: slots, fewer than direct's; WORK of (2 - 1/H) S / local in the type of partial
 * sums. (Cho, Finkler, Kung, Hunter: BlueConnect, MLSys 2019; with direct's exchanges at both
 * levels.)
 *
 * All steps of a part have its range. So it goes through all levels chunk by chunk, before or after
 * other parts. A level goes through hosts and neighbours in rotated order, its own host last, as
 * data for others travels further.
 *
 * The order of summing is fold.h's tree. `local` is a power of two, so a host is a subtree. Its sum
 * is one operand of the whole. So choose.c refuses ranks that are not in such blocks. In tree mode
 * it also refuses ranks without the same number of leaves, a power of two.
 *
 * Sums that need only slots and IN empty the slots, so slots become free whatever other hosts do.
 * Data from other hosts goes to WORK.
 *
 * In place: a rank's own piece goes to nobody. A sum that overwrites another part of OUT was made,
 * chunk for chunk, from this rank's data of it. */

/* Where a rank is. */
typedef struct dti_hosts {
    uint32_t local, count; /* ranks on each host; hosts */
    uint32_t host, place;  /* this rank's, and its place there */
} dti_hosts;

static uint32_t dti_each_of(uint32_t each, const uint32_t *ranks, uint32_t size) {
    uint32_t run = 0;
    if (each < 2)
        return 1;
    while (run < size && (ranks ? ranks[run] : run) / each == (ranks ? ranks[0] : 0) / each)
        run++;
    if (size % run != 0)
        return 1; /* a different number on each */
    for (uint32_t i = run; i < size; i++) {
        bool same = (ranks ? ranks[i] : i) / each == (ranks ? ranks[i - 1] : i - 1) / each;
        if (same != (i % run != 0))
            return 1;
    }
    return run;
}

static uint32_t dti_local_of(uint32_t each, const uint32_t *ranks, uint32_t size) {
    uint32_t run = dti_each_of(each, ranks, size);
    return run == size ? 1 : run & (~run + 1); /* of an even number blocks that are subtrees */
}

/* Part `host` of piece `place`. */
static dti_part dti_hosts_part(const dti_collective *c, const dti_hosts *h, uint32_t place,
                               uint32_t host) {
    dti_part piece = dti_part_of(c->op.count, place, h->local);
    dti_part part = dti_part_of(piece.count, host, h->count);
    return (dti_part){piece.first + part.first, part.count};
}

static dti_stretch dti_hosts_range(const dti_collective *c, const dti_hosts *h, dti_region place,
                                   uint32_t piece, uint32_t host) {
    dti_part part = dti_hosts_part(c, h, piece, host);
    uint8_t dtype = place == DTI_REGION_OUT ? (uint8_t)c->op.dtype : dti_in_dtype(c);
    return dti_stretch_at(place, dtype, part.first, part.count);
}

/* The i-th neighbour after this rank, on its host; the same place on the i-th host after. */
static uint32_t dti_hosts_neighbour(const dti_hosts *h, uint32_t i) {
    return h->host * h->local + (h->place + i) % h->local;
}

static uint32_t dti_hosts_twin(const dti_hosts *h, uint32_t i) {
    return (h->host + i) % h->count * h->local + h->place;
}

/* Streams between neighbours have the part's host as their number, sums h->count more. */
static void dti_hosts_scatter(dti_builder *b, const dti_hosts *h) {
    for (uint32_t i = 1; i <= h->count; i++)
        for (uint32_t k = 1; k < h->local; k++) {
            uint32_t peer = dti_hosts_neighbour(h, k), part = (h->host + i) % h->count;
            dti_add_send(b, peer, part,
                         dti_hosts_range(b->c, h, DTI_REGION_IN, peer % h->local, part), true);
        }
}

/* Sums part `part` of this rank's piece over its host; returns the FOLD. A rank's operand is one
 * subtree. */
static uint32_t dti_hosts_sum_here(dti_builder *b, const dti_hosts *h, uint32_t part,
                                   dti_stretch to) {
    uint32_t first = h->host * h->local;
    return dti_slots_sum(b, first, first + h->local, dti_hosts_part(b->c, h, h->place, part), part,
                         to, false);
}

/* Sums this rank's part over all hosts into OUT; returns the FOLD. */
static uint32_t dti_hosts_sum_all(dti_builder *b, const dti_hosts *h, dti_stretch to) {
    const dti_collective *c = b->c;
    dti_stretch work = dti_add_work(b, b->s->sum_dtype, to.count * h->count);
    uint32_t here =
        dti_hosts_sum_here(b, h, h->host, dti_stretch_part(work, h->host * to.count, to.count));
    uint32_t recv = (uint32_t)b->s->step_count;
    for (uint32_t host = 0; host < h->count; host++)
        if (host != h->host)
            dti_add_recv(b, host * h->local + h->place, 0,
                         dti_stretch_part(work, host * to.count, to.count), false);
    uint32_t fold = dti_add_fold(b, to, true);
    for (uint32_t host = 0; host < h->count; host++) {
        dt_comm_span leaves[DTI_TREE_SPANS];
        dti_collective_spans(c, host * h->local, leaves);
        leaves->count *= h->local; /* the host's other ranks have the same number */
        dti_add_source(b, dti_stretch_part(work, host * to.count, to.count),
                       host == h->host ? DTI_NO_STEP : recv++, *leaves);
    }
    dti_add_after(b, here);
    return fold;
}

/* A sum that is complete, to all neighbours. */
static void dti_hosts_spread(dti_builder *b, const dti_hosts *h, uint32_t part, uint32_t step) {
    for (uint32_t k = 1; k < h->local; k++) {
        dti_add_send(b, dti_hosts_neighbour(h, k), h->count + part,
                     dti_hosts_range(b->c, h, DTI_REGION_OUT, h->place, part), false);
        dti_add_after(b, step);
    }
}

/* Sends the sum of this rank's part to its twins on other hosts, and receives theirs. Sends all of
 * them to the neighbours, and receives the neighbours' from these. */
static void dti_hosts_gather(dti_builder *b, const dti_hosts *h, uint32_t fold) {
    const dti_collective *c = b->c;
    for (uint32_t i = 1; i < h->count; i++) {
        dti_add_send(b, dti_hosts_twin(h, i), 1,
                     dti_hosts_range(c, h, DTI_REGION_OUT, h->place, h->host), false);
        dti_add_after(b, fold);
    }
    dti_hosts_spread(b, h, h->host, fold);
    for (uint32_t i = 1; i < h->count; i++) {
        uint32_t twin = dti_hosts_twin(h, h->count - i), part = twin / h->local;
        uint32_t recv =
            dti_add_recv(b, twin, 1, dti_hosts_range(c, h, DTI_REGION_OUT, h->place, part), false);
        dti_hosts_spread(b, h, part, recv);
    }
    for (uint32_t i = 0; i < h->count; i++)
        for (uint32_t k = 1; k < h->local; k++) {
            uint32_t peer = dti_hosts_neighbour(h, h->local - k);
            uint32_t part = (h->host + h->count - i) % h->count;
            dti_add_recv(b, peer, h->count + part,
                         dti_hosts_range(c, h, DTI_REGION_OUT, peer % h->local, part), false);
        }
}

static void dti_algo_all_reduce_hierarchical(dti_builder *b, const dti_collective *c) {
    dti_builder_partials(b);
    const uint32_t local = c->local;
    const dti_hosts h = {local, c->size / local, c->rank / local, c->rank % local};
    dti_hosts_scatter(b, &h);
    for (uint32_t i = 1; i < h.count; i++) {
        uint32_t twin = dti_hosts_twin(&h, i), part = twin / h.local;
        dti_stretch sum =
            dti_add_work(b, b->s->sum_dtype, dti_hosts_part(c, &h, h.place, part).count);
        uint32_t fold = dti_hosts_sum_here(b, &h, part, sum);
        dti_add_send(b, twin, 0, sum, false);
        dti_add_after(b, fold);
    }
    dti_stretch mine = dti_hosts_range(c, &h, DTI_REGION_OUT, h.place, h.host);
    dti_hosts_gather(b, &h, dti_hosts_sum_all(b, &h, mine));
}
