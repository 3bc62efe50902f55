/* Measures the links of a new group by its own operations. So the numbers include all of the path,
 * and a rank that dies is noticed as in any operation. All ranks send at once, each to the next one
 * round the ring, as collectives do. So the numbers also include shared processors and links. A
 * separate group keeps these operations out of the numbering of later ones.
 *
 *   latency     a round in which each rank sends one short message to the next
 *   message     what a round takes longer in which each sends one to both its neighbours
 *   bytes       a burst to the next, four times as long until its time is clearly above
 *               the latency; then once more, as a shaper's bucket is empty by then.
 *               It is made of arrays that stay in the caches, as chunks of collectives do
 *
 * Rounds are timed in batches. If ranks share processors, some rounds take no time and one takes a
 * time slice. The median of batches counts, and of all ranks the slowest, as all wait for it.
 * All-reduces agree on each number before the next step depends on it, so all ranks do the same. It
 * is bounded: at most DTI_BATCHES batches of each kind, and 4 bursts of 64 KiB to 1 MiB. A batch of
 * long rounds has one round. Cost: a connection to each neighbour and to those of a doubling
 * all-reduce. */

#define DTI_MEASURE_GROUP UINT32_MAX
#define DTI_BATCHES 5
#define DTI_BATCHES_SLOW 3
#define DTI_BATCH_ROUNDS 8
#define DTI_ROUND_SLOW_NS 1000000u /* a round that takes longer is not repeated often */
#define DTI_BURST_BYTES (64u << 10)
#define DTI_BURST_MOST 16u    /* of them at once */
#define DTI_BURST_NS 2000000u /* and three latencies: a burst that is long enough */

typedef struct dti_measure {
    dt_comm *comm; /* the group that measures */
    uint64_t deadline;
    uint8_t *in, *out; /* [DTI_BURST_BYTES] */
    uint32_t next, before;
    bool local;        /* the incoming data that rounds wait for comes from this host */
    uint64_t found[2]; /* the newest agreed number: of the network's links, of those of hosts */
} dti_measure;

static dt_result dti_measure_wait(dti_measure *m, uint64_t id) {
    uint64_t now = dti_now_ns();
    uint64_t left = m->deadline > now ? m->deadline - now : 0;
    dt_result result = m->comm->transport->wait(m->comm, id, left);
    char whom[256] = "";
    if (result != DT_ERROR_TIMEOUT)
        return result;
    m->comm->transport->waits_for(m->comm, id, whom, sizeof whom);
    dti_fail(m->comm->base, result, ".join_timeout_ms is over: %s", whom);
    return result;
}

/* Posts them all, `times` times, then waits for each. */
static dt_result dti_measure_do(dti_measure *m, const dt_comm_op *ops, uint32_t count,
                                uint32_t times) {
    uint64_t ids[2 * DTI_BURST_MOST];
    for (uint32_t i = 0; i < count * times; i++)
        DTI_TRY(m->comm->transport->begin(m->comm, &ops[i % count], &ids[i]));
    for (uint32_t i = 0; i < count * times; i++)
        DTI_TRY(dti_measure_wait(m, ids[i]));
    return DT_OK;
}

/* Round the ring: messages of this number of bytes, `times` at once; `both`: one in each
 * direction. */
static dt_result dti_measure_shift(dti_measure *m, uint64_t bytes, uint32_t times, bool both) {
    dt_comm_op recv = {.kind = DT_COMM_RECV, .out = m->out, .count = bytes, .dtype = DT_U8};
    dt_comm_op send = {.kind = DT_COMM_SEND, .in = m->in, .count = bytes, .dtype = DT_U8};
    dt_comm_op ops[4] = {recv, send, recv, send};
    ops[0].root = ops[3].root = (int)m->before;
    ops[1].root = ops[2].root = (int)m->next;
    return dti_measure_do(m, ops, both ? 4 : 2, times);
}

/* The largest of all ranks' numbers, of each kind of link. */
static dt_result dti_measure_agree(dti_measure *m, uint64_t mine) {
    uint64_t numbers[2] = {0};
    numbers[m->local] = mine;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                     .in = numbers,
                     .out = m->found,
                     .count = 2,
                     .dtype = DT_I64,
                     .reduction = DT_COMM_MAX};
    return dti_measure_do(m, &op, 1, 1);
}

static uint64_t dti_measure_median(uint64_t *times, uint32_t count) {
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && times[k] < times[k - 1]; k--) {
            uint64_t less = times[k];
            times[k] = times[k - 1];
            times[k - 1] = less;
        }
    return times[count / 2];
}

/* Agrees on the time of a round of short messages, from `batches` of `rounds`. */
static dt_result dti_measure_rounds(dti_measure *m, uint32_t batches, uint32_t rounds, bool both) {
    uint64_t times[DTI_BATCHES];
    for (uint32_t i = 0; i < batches; i++) {
        uint64_t start = dti_now_ns();
        for (uint32_t k = 0; k < rounds; k++) {
            DTI_TRY(dti_measure_shift(m, 8, 1, both));
        }
        times[i] = (dti_now_ns() - start) / rounds;
    }
    return dti_measure_agree(m, DTI_MAX(dti_measure_median(times, batches), 1));
}

/* Latencies, and the time of further messages; of the network and of hosts. The first rounds make
 * the connections. */
static dt_result dti_measure_messages(dti_measure *m, dt_comm_link links[2]) {
    DTI_TRY(dti_measure_rounds(m, DTI_BATCHES_SLOW, 1, true));
    DTI_TRY(dti_measure_rounds(m, DTI_BATCHES_SLOW, 1, false));
    bool slow = DTI_MAX(m->found[0], m->found[1]) > DTI_ROUND_SLOW_NS;
    uint32_t batches = slow ? DTI_BATCHES_SLOW : DTI_BATCHES;
    uint32_t rounds = slow ? 1 : DTI_BATCH_ROUNDS;
    if (!slow)
        DTI_TRY(dti_measure_rounds(m, batches, rounds, false));
    for (int i = 0; i < 2; i++)
        links[i].latency_ns = m->found[i];
    if (m->comm->size > 2)
        DTI_TRY(dti_measure_rounds(m, batches, rounds, true));
    for (int i = 0; i < 2; i++) {
        uint64_t more = m->found[i] - DTI_MIN(m->found[i], links[i].latency_ns);
        links[i].message_ns = DTI_MIN(more, links[i].latency_ns);
    }
    return DT_OK;
}

/* A stream that is announced takes two latencies beside its bytes. */
static uint64_t dti_measure_rate(uint64_t bytes, uint64_t ns, uint64_t latency_ns) {
    uint64_t busy = ns - DTI_MIN(2 * latency_ns, ns / 2);
    uint64_t rate = bytes * 1000000000u / DTI_MAX(busy, 1);
    return DTI_MIN(DTI_MAX(rate, DTI_BYTES_PER_S_LEAST), DTI_BYTES_PER_S_MOST);
}

static dt_result dti_measure_bytes(dti_measure *m, dt_comm_link links[2]) {
    uint64_t latency = DTI_MAX(links[0].latency_ns, links[1].latency_ns);
    uint32_t times = 1;
    for (bool last = false;;) {
        uint64_t start = dti_now_ns();
        DTI_TRY(dti_measure_shift(m, DTI_BURST_BYTES, times, false));
        DTI_TRY(dti_measure_agree(m, dti_now_ns() - start));
        if (last)
            break;
        last = times == DTI_BURST_MOST ||
               DTI_MAX(m->found[0], m->found[1]) >= DTI_BURST_NS + 3 * latency;
        times *= last ? 1 : 4;
    }
    for (int i = 0; i < 2; i++)
        if (links[i].latency_ns)
            links[i].bytes_per_s =
                dti_measure_rate(times * DTI_BURST_BYTES, m->found[i], links[i].latency_ns);
    return DT_OK;
}

static dt_result dti_measure_links(dti_measure *m, dt_comm_link links[2]) {
    DTI_TRY(dti_measure_messages(m, links));
    DTI_TRY(dti_measure_bytes(m, links));
    for (int i = 0; i < 2; i++) {
        links[i].latency_ns = DTI_MIN(links[i].latency_ns, DTI_LATENCY_MOST_NS);
        links[i].message_ns = DTI_MIN(links[i].message_ns, DTI_LATENCY_MOST_NS);
    }
    for (int i = 0; i < 2; i++) /* all on one host, or none with another */
        if (!links[i].latency_ns)
            links[i] = links[!i];
    return DT_OK;
}

/* The group that measures, of all ranks; they agree on its number without asking. */
static dt_comm *dti_measure_group(dt_comm *comm) {
    dt_comm *child = dti_comm_new(comm->base, comm, comm->rank, comm->size);
    if (!child)
        return NULL;
    child->group_id = DTI_MEASURE_GROUP;
    child->will_wait = true;
    for (uint32_t r = 0; r < comm->size; r++)
        child->ranks[r] = r;
    if (comm->transport->group(comm, child)) {
        dti_comm_free(child);
        return NULL;
    }
    child->transport = comm->transport;
    return child;
}

/* If the group ends here, some rank has not joined. */
static dt_result dti_measure_failed(dt_comm *comm, dt_result result) {
    if (result == DT_ERROR_REVOKED || result == DT_ERROR_CANCELLED)
        result = DT_ERROR_PEER_LOST;
    return dti_fail(comm->base, result, "while links were measured: %.400s", comm->base->error);
}

static dt_result dti_comm_measure(dt_comm *comm, const dt_comm_desc *desc) {
    dt_comm_link links[2] = {{0}, {0}};
    if (!comm->transport->measures || !comm->transport->measures(comm))
        return DT_OK;
    dti_measure m = {.comm = dti_measure_group(comm)};
    m.next = (comm->rank + 1) % comm->size;
    m.before = (comm->rank + comm->size - 1) % comm->size;
    m.local = comm->each > 1 && comm->rank / comm->each == m.before / comm->each;
    m.deadline = dti_now_ns() + (uint64_t)desc->join_timeout_ms * 1000000u;
    m.in = m.comm ? dti_alloc(comm->base, DTI_BURST_BYTES) : NULL;
    m.out = m.in ? dti_alloc(comm->base, DTI_BURST_BYTES) : NULL;
    dt_result result = m.out ? dti_measure_links(&m, links) : DT_ERROR_MEMORY;
    if (result)
        result = dti_measure_failed(comm, result);
    if (m.comm) {
        m.comm->transport->close(m.comm);
        dti_comm_free(m.comm);
    }
    DTI_FREE(comm->base, m.out, m.in);
    if (!result)
        comm->transport->link(comm, &links[0], &links[1]);
    return result;
}
