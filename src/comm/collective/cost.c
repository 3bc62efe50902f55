/* What an algorithm's schedule takes on links whose costs are known: the closed formulas of
 * algo_*.c, in nanoseconds. Numbers are whole, so that ranks with different processors get the same
 * ones and choose alike. Refuses to know which algorithms may be chosen: that is choose.c's.
 *
 * LogGP's terms (Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995), as a rank sees them while all
 * the others send too:
 *
 *   a round             every rank sends k messages and receives k: latency + (k - 1) message
 *   bytes               what passes the busiest link one way, of a rank or of its host's ranks
 *   an announcement     a round before streams that are too long to go without permission; credited
 *                       ones take another
 *   a window            what a credited stream may have under way: no more in a round trip
 *   a sum               DTI_ADD_PS for a byte added, and more for WORK that is large
 *
 * Bytes and rounds follow each other here; where chunks overlap them, by less than a round. */

/* To read two operands and write one, out of a cache that they do not fit into. */
#define DTI_ADD_PS 100u
/* A byte of WORK that the caches do not hold: written, and read again for the sum, while chunks in
 * slots stay there. On one host the ranks' bytes and these share the memory; what comes from a
 * network that is much slower is written meanwhile. */
#define DTI_WORK_PS 500u
#define DTI_WORK_HIDDEN_PS 2000u
#define DTI_WORK_CACHED (256u << 10)
/* Streams up to here go without an announcement: DTI_EARLY_BYTES, which core.c compares. */
#define DTI_COST_EARLY_BYTES 4096u

static uint64_t dti_cost_add(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t dti_cost_times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t dti_cost_bytes(const dti_link_cost *link, uint64_t bytes) {
    return dti_cost_times(bytes, link->byte_ps) / 1000;
}

static uint64_t dti_cost_sum(uint64_t bytes) {
    return dti_cost_times(bytes, DTI_ADD_PS) / 1000;
}

/* One operation as the formulas see it. */
typedef struct dti_cost {
    const dti_costs *costs;
    const dti_link_cost *far; /* of ranks of different hosts, or all where hosts are not known */
    uint32_t size, each;      /* each: of ranks on a host; 1: not known, or one host */
    uint64_t count;
    uint32_t in_width, sum_width, out_width; /* bytes of an element: given, partial sum, result */
} dti_cost;

static dti_cost dti_cost_of(const dti_collective *c) {
    bool alone = c->each >= c->size; /* on one host */
    uint32_t width = (uint32_t)dti_dtype_bytes(c->op.dtype);
    uint8_t sum = dti_fold_dtype(c->op.dtype, c->op.reduction);
    return (dti_cost){.costs = c->costs,
                      .far = alone ? &c->costs->local : &c->costs->network,
                      .size = c->size,
                      .each = alone || !c->each ? 1 : c->each,
                      .count = c->op.count,
                      .in_width = (uint32_t)dti_dtype_bytes((dt_dtype)dti_in_dtype(c)),
                      .sum_width = (uint32_t)dti_dtype_bytes((dt_dtype)sum),
                      .out_width = width};
}

/* Of `messages` to different ranks, as many of them on this host as there are others. */
static uint64_t dti_cost_round(const dti_cost *k, uint32_t messages) {
    uint32_t near = DTI_MIN(k->each - 1, messages), far = messages - near;
    const dti_link_cost *slowest = far ? k->far : &k->costs->local;
    uint64_t extra = (uint64_t)(far ? far - 1 : 0) * k->far->message_ns +
                     (uint64_t)(far ? near : near - 1) * k->costs->local.message_ns;
    return messages ? slowest->latency_ns + extra : 0;
}

static uint64_t dti_cost_work(const dti_cost *k, uint64_t bytes) {
    bool alone = k->far == &k->costs->local;
    uint64_t ps = alone ? DTI_MAX(DTI_WORK_PS, k->far->byte_ps) : DTI_WORK_PS;
    if (bytes <= DTI_WORK_CACHED || (!alone && k->far->byte_ps > DTI_WORK_HIDDEN_PS))
        return 0;
    return dti_cost_times(bytes - DTI_WORK_CACHED, ps) / 1000;
}

/* Each rank exchanges `bytes` with each other one. A host's ranks share its link to the others. */
static uint64_t dti_cost_exchange(const dti_cost *k, uint64_t bytes) {
    uint64_t near = dti_cost_times(bytes, k->each - 1);
    uint64_t far = dti_cost_times(bytes, (uint64_t)k->each * (k->size - k->each));
    return DTI_MAX(dti_cost_bytes(&k->costs->local, near), dti_cost_bytes(k->far, far));
}

/* A credited stream of `bytes` to each of many takes this at least. */
static uint64_t dti_cost_window(const dti_cost *k, uint64_t bytes) {
    uint64_t window = k->costs->window * k->costs->chunk_bytes;
    uint64_t trips = window && bytes > window ? bytes / window - 1 : 0;
    return dti_cost_times(trips, 2 * k->far->latency_ns);
}

static uint64_t dti_cost_announce(const dti_cost *k, uint64_t bytes, uint32_t messages) {
    return bytes > DTI_COST_EARLY_BYTES ? dti_cost_round(k, messages) : 0;
}

static uint32_t dti_cost_levels(uint32_t size) {
    uint32_t levels = 0;
    while (levels < 32 && (size - 1) >> levels)
        levels++;
    return levels;
}

/* ---- sums */

static uint64_t dti_cost_direct(const dti_cost *k, bool to_one) {
    dti_part part = dti_part_of(k->count, 0, k->size);
    uint64_t in = part.count * k->in_width, out = part.count * k->out_width;
    uint32_t others = k->size - 1;
    uint64_t back =
        to_one ? dti_cost_bytes(k->far, dti_cost_times(out, others)) : dti_cost_exchange(k, out);
    uint64_t cost = 2 * dti_cost_announce(k, in, others); /* and a credit */
    cost += dti_cost_round(k, others);
    cost = dti_cost_add(cost, DTI_MAX(dti_cost_exchange(k, in), dti_cost_window(k, in)));
    cost = dti_cost_add(cost, dti_cost_sum(dti_cost_times(part.count * k->sum_width, others)));
    return dti_cost_add(dti_cost_add(cost, dti_cost_round(k, others)), back);
}

static uint64_t dti_cost_one_shot(const dti_cost *k) {
    uint64_t bytes = dti_cost_times(k->count, k->in_width);
    uint64_t work = dti_cost_times(bytes, k->size - 1);
    uint64_t sum = dti_cost_add(dti_cost_sum(work), dti_cost_work(k, work));
    uint64_t cost = dti_cost_announce(k, bytes, k->size - 1) + dti_cost_round(k, k->size - 1);
    return dti_cost_add(dti_cost_add(cost, dti_cost_exchange(k, bytes)), sum);
}

/* The node of the tree over `size` ranks, and those below: where its right side is smaller, its
 * ranks serve several. A host's ranks share its link above the host. */
static uint64_t dti_cost_doubling_node(const dti_cost *k, uint32_t size) {
    if (size < 2)
        return 0;
    uint32_t left = dti_tree_split(size), right = size - left, fan = (left + right - 1) / right;
    bool near = k->each > 1 && size <= k->each;
    const dti_link_cost *link = near ? &k->costs->local : k->far;
    uint64_t bytes = dti_cost_times(k->count, size == 2 ? k->in_width : k->sum_width);
    uint64_t below = dti_cost_doubling_node(k, right);
    if (left != right) /* left is a power of two: of it alike halves are looked at once */
        below = DTI_MAX(below, dti_cost_doubling_node(k, left));
    uint64_t cost = link->latency_ns + (uint64_t)(fan - 1) * link->message_ns;
    uint64_t sent = dti_cost_times(bytes, (uint64_t)fan * (near ? 1 : k->each));
    cost = dti_cost_add(cost, dti_cost_bytes(link, sent));
    return dti_cost_add(below, dti_cost_add(cost, dti_cost_sum(bytes)));
}

static uint64_t dti_cost_doubling(const dti_cost *k) {
    uint64_t bytes = dti_cost_times(k->count, k->in_width);
    uint32_t levels = dti_cost_levels(k->size);
    uint64_t work = dti_cost_times(dti_cost_times(k->count, k->sum_width), levels);
    uint64_t cost = dti_cost_add(dti_cost_announce(k, bytes, levels), dti_cost_work(k, work));
    return dti_cost_add(cost, dti_cost_doubling_node(k, k->size));
}

/* Along the same tree, but each rank sends once. */
static uint64_t dti_cost_reduce_doubling(const dti_cost *k) {
    uint64_t bytes = dti_cost_times(k->count, k->sum_width);
    uint32_t levels = dti_cost_levels(k->size);
    uint64_t level = dti_cost_add(dti_cost_round(k, 1), dti_cost_bytes(k->far, bytes));
    level = dti_cost_add(level, dti_cost_sum(bytes));
    uint64_t work = dti_cost_work(k, dti_cost_times(bytes, levels));
    return dti_cost_add(dti_cost_add(dti_cost_announce(k, bytes, levels), work),
                        dti_cost_times(level, levels));
}

/* Of a power of two of ranks. */
static uint64_t dti_cost_halving(const dti_cost *k) {
    uint32_t levels = dti_cost_levels(k->size);
    uint64_t in = dti_cost_times(k->count, k->in_width),
             sum = dti_cost_times(k->count, k->sum_width);
    uint64_t cost = dti_cost_add(dti_cost_announce(k, in / 2, levels), dti_cost_work(k, sum));
    for (uint32_t level = 0; level < levels; level++) {
        bool near = k->each > 1 && 2u << level <= k->each;
        const dti_link_cost *link = near ? &k->costs->local : k->far;
        uint64_t bytes = (level ? sum : in) >> (level + 1);
        uint64_t back = dti_cost_times(k->count, k->out_width) >> (level + 1);
        uint64_t passes = dti_cost_times(bytes + back, near ? 1 : k->each);
        cost = dti_cost_add(cost, 2 * link->latency_ns + dti_cost_sum(bytes));
        cost = dti_cost_add(cost, dti_cost_bytes(link, passes));
    }
    return cost;
}

/* Two levels, each as direct; a host's sums of each piece go to `hosts` - 1 others. */
static uint64_t dti_cost_hierarchical(const dti_cost *k, uint32_t local) {
    uint32_t hosts = k->size / local, near = local - 1, far = hosts - 1;
    const dti_link_cost *here = &k->costs->local;
    dti_part part = dti_part_of(k->count, 0, k->size);
    uint64_t in = part.count * k->in_width, sum = part.count * k->sum_width;
    uint64_t out = part.count * k->out_width, shared = DTI_MAX(k->each, local);
    uint64_t cost = 2 * dti_cost_announce(k, in, near + far);
    cost += 2 * here->latency_ns + 2 * k->far->latency_ns;
    cost += 2 * ((uint64_t)near * hosts - 1) * here->message_ns;
    cost += 2 * (uint64_t)(far - 1) * k->far->message_ns;
    uint64_t inside = dti_cost_times(in + out, (uint64_t)near * hosts);
    uint64_t across = dti_cost_times(sum + out, far * shared);
    uint64_t added = dti_cost_times(sum, (uint64_t)near * hosts + far);
    cost = dti_cost_add(cost, dti_cost_work(k, dti_cost_times(2 * sum, hosts)));
    cost = dti_cost_add(cost, DTI_MAX(dti_cost_bytes(here, inside), dti_cost_window(k, in)));
    cost = dti_cost_add(cost, dti_cost_bytes(k->far, across));
    return dti_cost_add(cost, dti_cost_sum(added));
}

/* ---- broadcast: of it hosts are not looked at */

/* The root's link is the busiest: `times` arrays leave it, after `rounds`. */
static uint64_t dti_cost_broadcast(const dti_cost *k, dt_comm_algorithm algorithm) {
    uint64_t bytes = dti_cost_times(k->count, k->out_width);
    uint64_t whole = dti_cost_bytes(k->far, bytes), latency = k->far->latency_ns;
    uint32_t others = k->size - 1, levels = dti_cost_levels(k->size);
    uint64_t chunk = DTI_MIN(bytes, k->costs->chunk_bytes), part = bytes / others;
    switch (algorithm) {
    case DT_COMM_ALGORITHM_ONE_SHOT:
        return dti_cost_add(dti_cost_announce(k, bytes, 1) + dti_cost_round(k, others),
                            dti_cost_times(whole, others));
    case DT_COMM_ALGORITHM_DOUBLING:
        return dti_cost_add(dti_cost_announce(k, bytes, 1),
                            dti_cost_times(dti_cost_add(whole, latency), levels));
    case DT_COMM_ALGORITHM_RING:
        return dti_cost_add(dti_cost_announce(k, bytes, 1) + others * latency,
                            dti_cost_add(whole, (others - 1) * dti_cost_bytes(k->far, chunk)));
    default: /* direct: a part's last chunk is passed on when it has come */
        return dti_cost_add(
            dti_cost_announce(k, part, others) + 2 * dti_cost_round(k, others),
            dti_cost_add(whole, (others - 1) * dti_cost_bytes(k->far, DTI_MIN(part, chunk))));
    }
}

/* Nanoseconds of c by this algorithm. */
static uint64_t dti_cost_algorithm(const dti_collective *c, dt_comm_algorithm algorithm) {
    dti_cost k = dti_cost_of(c);
    if (c->op.kind == DT_COMM_BROADCAST)
        return dti_cost_broadcast(&k, algorithm);
    if (c->op.kind == DT_COMM_REDUCE)
        return algorithm == DT_COMM_ALGORITHM_DOUBLING ? dti_cost_reduce_doubling(&k)
                                                       : dti_cost_direct(&k, true);
    switch (algorithm) {
    case DT_COMM_ALGORITHM_ONE_SHOT: return dti_cost_one_shot(&k);
    case DT_COMM_ALGORITHM_DOUBLING: return dti_cost_doubling(&k);
    case DT_COMM_ALGORITHM_HALVING: return dti_cost_halving(&k);
    case DT_COMM_ALGORITHM_HIERARCHICAL: return dti_cost_hierarchical(&k, c->local);
    default: return dti_cost_direct(&k, false);
    }
}

static bool dti_link_is_sound(const dt_comm_link *link) {
    return link->latency_ns >= 1 && link->latency_ns <= DTI_LATENCY_MOST_NS &&
           link->message_ns <= DTI_LATENCY_MOST_NS && link->bytes_per_s >= DTI_BYTES_PER_S_LEAST &&
           link->bytes_per_s <= DTI_BYTES_PER_S_MOST;
}

/* Of a sound one. */
static dti_link_cost dti_link_cost_of(const dt_comm_link *link) {
    return (dti_link_cost){link->latency_ns, link->message_ns,
                           DTI_BYTES_PER_S_MOST / link->bytes_per_s};
}
