/* The time of an algorithm's schedule on links with known costs: the closed formulas of algo_*.c,
 * in nanoseconds. Numbers are integers, so ranks with different processors get the same and make
 * the same choice. It must not know which algorithms may be chosen; choose.c does.
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
 * Where a link is slow the processor makes messages and sums while bytes pass: then the longer of
 * both counts. On one host, and on links that keep a processor busy, it is their sum. Latencies add
 * up in both cases. */

/* To read two operands and write one, out of a cache that they do not fit into. */
#define DTI_ADD_PS 100u
/* A byte of WORK that the caches do not hold. It is written, and read again for the sum, while
 * chunks in slots stay in the caches. On one host the ranks' bytes and these share the memory. Data
 * from a much slower network is written meanwhile. */
#define DTI_WORK_PS 500u
#define DTI_WORK_HIDDEN_PS 2000u
/* Slower links leave the processor time for messages and sums. But if a further message takes at
 * least this share of a first one, ranks share processors. Then that makes the bytes slow. */
#define DTI_SLOW_LINK_PS 50u
#define DTI_SHARED_PART 2u
#define DTI_WORK_CACHED (256u << 10)

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

/* One operation as the formulas see it. */
typedef struct dti_cost {
    const dti_costs *costs;
    const dti_link_cost *far; /* of ranks of different hosts, or all where hosts are not known */
    uint32_t size, each;      /* each: of ranks on a host; 1: not known, or one host */
    uint64_t count;
    uint32_t in_width, sum_width, out_width; /* bytes of an element: given, partial sum, result */
} dti_cost;

/* The time of an operation by an algorithm. */
typedef struct dti_bill {
    uint64_t latency, processor, bytes; /* ns */
} dti_bill;

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

static bool dti_cost_alone(const dti_cost *k) {
    return k->far == &k->costs->local;
}

static bool dti_cost_is_slow(const dti_cost *k) {
    return !dti_cost_alone(k) && k->far->byte_ps > DTI_SLOW_LINK_PS &&
           k->far->message_ns < k->far->latency_ns / DTI_SHARED_PART;
}

static uint64_t dti_bill_total(const dti_cost *k, const dti_bill *bill) {
    uint64_t busy = dti_cost_is_slow(k) ? DTI_MAX(bill->processor, bill->bytes)
                                        : dti_cost_add(bill->processor, bill->bytes);
    return dti_cost_add(bill->latency, busy);
}

/* A round of `messages` to different ranks. All other ranks of this host are among them, if there
 * are that many messages. */
static void dti_bill_round(const dti_cost *k, dti_bill *bill, uint32_t messages) {
    uint32_t near = DTI_MIN(k->each - 1, messages), far = messages - near;
    if (!messages)
        return;
    bill->latency += far ? k->far->latency_ns : k->costs->local.latency_ns;
    bill->processor += (uint64_t)(far ? far - 1 : 0) * k->far->message_ns +
                       (uint64_t)(far ? near : near - 1) * k->costs->local.message_ns;
}

static void dti_bill_bytes(dti_bill *bill, const dti_link_cost *link, uint64_t bytes) {
    bill->bytes = dti_cost_add(bill->bytes, dti_cost_bytes(link, bytes));
}

/* The time of the sums of this number of bytes, and of WORK of this number. */
static void dti_bill_sum(dti_bill *bill, uint64_t bytes) {
    bill->processor = dti_cost_add(bill->processor, dti_cost_times(bytes, DTI_ADD_PS) / 1000);
}

static void dti_bill_work(const dti_cost *k, dti_bill *bill, uint64_t bytes) {
    bool alone = dti_cost_alone(k);
    uint64_t ps = alone ? DTI_MAX(DTI_WORK_PS, k->far->byte_ps) : DTI_WORK_PS;
    if (bytes <= DTI_WORK_CACHED || (dti_cost_is_slow(k) && k->far->byte_ps > DTI_WORK_HIDDEN_PS))
        return;
    uint64_t ns = dti_cost_times(bytes - DTI_WORK_CACHED, ps) / 1000;
    bill->processor = dti_cost_add(bill->processor, ns);
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

static void dti_bill_announce(const dti_cost *k, dti_bill *bill, uint64_t bytes,
                              uint32_t messages) {
    if (bytes > k->costs->early_bytes)
        dti_bill_round(k, bill, messages);
}

/* Where the processor has time, credits are made while announcements still come. */
static void dti_bill_credit(const dti_cost *k, dti_bill *bill, uint64_t bytes, uint32_t messages) {
    uint64_t before = bill->processor;
    dti_bill_announce(k, bill, bytes, messages);
    if (dti_cost_is_slow(k))
        bill->processor = before;
}

static uint32_t dti_cost_levels(uint32_t size) {
    uint32_t levels = 0;
    while (levels < 32 && (size - 1) >> levels)
        levels++;
    return levels;
}

/* ---- sums */

static uint64_t dti_cost_direct(const dti_cost *k, bool to_one) {
    dti_bill bill = {0};
    dti_part part = dti_part_of(k->count, 0, k->size);
    uint64_t in = part.count * k->in_width, out = part.count * k->out_width;
    uint32_t others = k->size - 1;
    dti_bill_announce(k, &bill, in, others);
    dti_bill_credit(k, &bill, in, others);
    dti_bill_round(k, &bill, others);
    dti_bill_round(k, &bill, others);
    dti_bill_sum(&bill, dti_cost_times(part.count * k->sum_width, others));
    bill.bytes = DTI_MAX(dti_cost_exchange(k, in), dti_cost_window(k, in));
    uint64_t back =
        to_one ? dti_cost_bytes(k->far, dti_cost_times(out, others)) : dti_cost_exchange(k, out);
    bill.bytes = dti_cost_add(bill.bytes, back);
    return dti_bill_total(k, &bill);
}

static uint64_t dti_cost_one_shot(const dti_cost *k) {
    dti_bill bill = {0};
    uint64_t bytes = dti_cost_times(k->count, k->in_width);
    uint64_t work = dti_cost_times(bytes, k->size - 1);
    dti_bill_announce(k, &bill, bytes, k->size - 1);
    dti_bill_round(k, &bill, k->size - 1);
    dti_bill_sum(&bill, work);
    dti_bill_work(k, &bill, work);
    bill.bytes = dti_cost_exchange(k, bytes);
    return dti_bill_total(k, &bill);
}

/* The time of the node of the tree over `size` ranks, and of those below. If its right side is
 * smaller, its ranks send to several and receive from one. That is half of a processor's work for
 * bytes both ways. A host's ranks share its link above the host. Bytes and sums of few chunks
 * follow each other. */
static uint64_t dti_cost_doubling_node(const dti_cost *k, uint32_t size) {
    if (size < 2)
        return 0;
    uint32_t left = dti_tree_split(size), right = size - left, fan = (left + right - 1) / right;
    bool near = k->each > 1 && size <= k->each;
    const dti_link_cost *link = near ? &k->costs->local : k->far;
    uint64_t bytes = dti_cost_times(k->count, size == 2 ? k->in_width : k->sum_width);
    uint64_t once = dti_cost_bytes(link, dti_cost_times(bytes, near ? 1 : k->each));
    uint64_t served = dti_cost_add(dti_cost_is_slow(k) ? once : once / 2, link->message_ns / 2);
    uint64_t more = dti_cost_times(served, fan - 1);
    uint64_t below = dti_cost_add(dti_cost_doubling_node(k, right), more);
    if (left != right) /* left is a power of two: of it alike halves are looked at once */
        below = DTI_MAX(below, dti_cost_doubling_node(k, left));
    dti_bill bill = {link->latency_ns, 0, once};
    dti_bill_sum(&bill, bytes);
    return dti_cost_add(dti_cost_add(below, bill.latency), dti_cost_add(bill.processor, once));
}

static uint64_t dti_cost_doubling(const dti_cost *k) {
    dti_bill bill = {0};
    uint32_t levels = dti_cost_levels(k->size);
    uint64_t work = dti_cost_times(dti_cost_times(k->count, k->sum_width), levels);
    dti_bill_announce(k, &bill, dti_cost_times(k->count, k->in_width), levels);
    dti_bill_work(k, &bill, work);
    return dti_cost_add(dti_bill_total(k, &bill), dti_cost_doubling_node(k, k->size));
}

/* Along the same tree, but each rank sends once. */
static uint64_t dti_cost_reduce_doubling(const dti_cost *k) {
    dti_bill once = {0}, level = {0};
    uint64_t bytes = dti_cost_times(k->count, k->sum_width);
    uint32_t levels = dti_cost_levels(k->size);
    dti_bill_announce(k, &once, bytes, levels);
    dti_bill_work(k, &once, dti_cost_times(bytes, levels));
    dti_bill_round(k, &level, 1);
    dti_bill_bytes(&level, k->far, bytes);
    dti_bill_sum(&level, bytes);
    return dti_cost_add(dti_bill_total(k, &once),
                        dti_cost_times(dti_bill_total(k, &level), levels));
}

/* For a power of two of ranks. A level waits for the whole level before, so bytes, messages and
 * sums follow each other. */
static uint64_t dti_cost_halving(const dti_cost *k) {
    dti_bill bill = {0};
    uint32_t levels = dti_cost_levels(k->size);
    uint64_t in = dti_cost_times(k->count, k->in_width);
    uint64_t sum = dti_cost_times(k->count, k->sum_width);
    dti_bill_announce(k, &bill, in / 2, levels);
    dti_bill_work(k, &bill, sum);
    for (uint32_t level = 0; level < levels; level++) {
        bool near = k->each > 1 && 2u << level <= k->each;
        const dti_link_cost *link = near ? &k->costs->local : k->far;
        uint64_t bytes = (level ? sum : in) >> (level + 1);
        uint64_t back = dti_cost_times(k->count, k->out_width) >> (level + 1);
        bill.latency += 2 * link->latency_ns;
        dti_bill_sum(&bill, bytes);
        dti_bill_bytes(&bill, link, dti_cost_times(bytes + back, near ? 1 : k->each));
    }
    return dti_cost_add(bill.latency, dti_cost_add(bill.processor, bill.bytes));
}

/* Two levels, each as direct; a host's sums of each piece go to `hosts` - 1 others. */
static uint64_t dti_cost_hierarchical(const dti_cost *k, uint32_t local) {
    dti_bill bill = {0};
    uint32_t hosts = k->size / local, near = local - 1, far = hosts - 1;
    const dti_link_cost *here = &k->costs->local;
    dti_part part = dti_part_of(k->count, 0, k->size);
    uint64_t in = part.count * k->in_width, sum = part.count * k->sum_width;
    uint64_t out = part.count * k->out_width, shared = DTI_MAX(k->each, local);
    dti_bill_announce(k, &bill, in, near + far);
    dti_bill_credit(k, &bill, in, near + far);
    bill.latency += 2 * here->latency_ns + 2 * k->far->latency_ns;
    bill.processor += 2 * ((uint64_t)near * hosts - 1) * here->message_ns;
    bill.processor += 2 * (uint64_t)(far - 1) * k->far->message_ns;
    dti_bill_sum(&bill, dti_cost_times(sum, (uint64_t)near * hosts + far));
    dti_bill_work(k, &bill, dti_cost_times(2 * sum, hosts));
    dti_bill_bytes(&bill, here, dti_cost_times(in + out, (uint64_t)near * hosts));
    bill.bytes = DTI_MAX(bill.bytes, dti_cost_window(k, in));
    dti_bill_bytes(&bill, k->far, dti_cost_times(sum + out, far * shared));
    return dti_bill_total(k, &bill);
}

/* ---- broadcast: of it hosts are not looked at */

/* The root's link is the busiest. */
static uint64_t dti_cost_broadcast(const dti_cost *k, dt_comm_algorithm algorithm) {
    dti_bill bill = {0};
    uint64_t bytes = dti_cost_times(k->count, k->out_width);
    uint64_t chunk = DTI_MIN(bytes, k->costs->chunk_bytes);
    uint32_t others = k->size - 1, levels = dti_cost_levels(k->size);
    bool direct = algorithm == DT_COMM_ALGORITHM_DIRECT;
    uint64_t part = bytes / others, last = DTI_MIN(part, chunk);
    dti_bill_announce(k, &bill, direct ? part : bytes, direct ? others : 1);
    if (algorithm == DT_COMM_ALGORITHM_ONE_SHOT) {
        dti_bill_round(k, &bill, others);
        bill.processor -= bill.processor / 2; /* it sends, and receives nothing */
        dti_bill_bytes(&bill, k->far, dti_cost_times(bytes, others));
    } else if (algorithm == DT_COMM_ALGORITHM_DOUBLING) {
        bill.latency += levels * k->far->latency_ns;
        dti_bill_bytes(&bill, k->far, dti_cost_times(bytes, levels));
    } else if (algorithm == DT_COMM_ALGORITHM_RING) {
        bill.latency += others * k->far->latency_ns;
        dti_bill_bytes(&bill, k->far, dti_cost_add(bytes, (others - 1) * chunk));
    } else { /* a part's last chunk is passed on when it has come */
        dti_bill_round(k, &bill, others);
        dti_bill_round(k, &bill, others);
        dti_bill_bytes(&bill, k->far, dti_cost_add(bytes, (others - 1) * last));
    }
    return dti_bill_total(k, &bill);
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

/* Costs of a link that is sound. */
static dti_link_cost dti_link_cost_of(const dt_comm_link *link) {
    return (dti_link_cost){link->latency_ns, link->message_ns,
                           DTI_BYTES_PER_S_MOST / link->bytes_per_s};
}
