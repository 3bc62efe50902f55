/* Gossip averaging. Within a round of local steps a rank averages its weights with one other rank.
 * It waits for no other. The number of the exchange decides the pairs. With a power of two of
 * ranks, a pair differs in one bit of its numbers, bit by bit. So log2 N exchanges make the mean of
 * all. Other numbers of ranks follow a tournament, in which all pairs meet once. It has N - 1
 * exchanges (N odd: N, and one rank rests). Before an exchange a process's replicas become their
 * mean, and a rank's weight is its number of replicas. So the mean over all replicas does not
 * change, and their distance shrinks. A round ends as without gossip (round.c), with differences to
 * its common beginning; an error restores that beginning. Sources: Boyd et al., Randomized Gossip
 * Algorithms, 2006; Assran et al., Stochastic Gradient Push, 2019; Chen et al., Accelerating Gossip
 * SGD with Periodic Global Averaging, 2021. */

static bool dti_gossip_is_due(const dti_parallel *par) {
    const uint32_t every = par->desc.round.gossip_steps;
    return every && par->round.done % every == 0;
}

/* The rank that this one meets; its own number: none. */
static uint32_t dti_gossip_partner(uint32_t rank, uint32_t world, uint64_t sync_point) {
    if ((world & (world - 1)) == 0) {
        uint32_t bits = 0;
        while (world >> (bits + 1))
            bits++;
        return bits ? rank ^ (1u << sync_point % bits) : rank;
    }
    const uint32_t around = world - (world % 2 ? 0u : 1u); /* an even one's last is in the middle */
    const uint32_t turn = (uint32_t)(sync_point % around);
    if (rank == around)
        return (uint32_t)((uint64_t)turn * ((around + 1) / 2) % around); /* twice that is `turn` */
    const uint32_t other = (turn + around - rank) % around;
    return other != rank ? other : world % 2 ? rank : around;
}

/* Over all rounds, so that short ones do not begin with the same pairs. */
static uint64_t dti_gossip_number(const dti_parallel *par) {
    const dti_round_desc *d = &par->desc.round;
    return par->round.count * (d->steps / d->gossip_steps - 1) + par->round.done / d->gossip_steps -
           1;
}

/* ---- a process's replicas */

static dt_result dti_gossip_write(dti_parallel *par, uint32_t index) {
    return dti_round_write(par, index, dti_round_array(par, 0));
}

static void dti_gossip_mean_here(dti_parallel *par, uint64_t from, uint64_t end) {
    float *to = dti_round_array(par, 0);
    for (uint64_t k = from; k < end; k++) {
        double sum = 0.0;
        for (uint32_t r = 0; r < par->job.local; r++)
            sum += (double)dti_round_array(par, r)[k];
        to[k] = (float)(sum / (double)par->job.local);
    }
}

/* A count times an f32 is exact in double. A sum of two is the same in either order, so both ranks
 * have the same bits. */
static void dti_gossip_mean_of_two(dti_parallel *par, uint64_t from, uint64_t end) {
    const uint32_t other = par->round.partner;
    const double here = (double)par->job.local,
                 there = (double)dti_mesh_own(&par->mesh, other).count;
    float *to = dti_round_array(par, 0);
    const float *heard = par->round.heard;
    for (uint64_t k = from; k < end; k++)
        to[k] = (float)((here * (double)to[k] + there * (double)heard[k]) / (here + there));
}

static dt_result dti_gossip_here(dti_parallel *par, uint32_t index) {
    dti_round_each(par, index, true, dti_gossip_mean_here);
    return DT_OK;
}

static dt_result dti_gossip_two(dti_parallel *par, uint32_t index) {
    dti_round_each(par, index, true, dti_gossip_mean_of_two);
    return DT_OK;
}

/* ---- the other rank */

static dt_result dti_gossip_swap(dti_parallel *par) {
    dti_round *round = &par->round;
    dt_comm *comm = par->desc.comm;
    const dt_comm_op receive = {.kind = DT_COMM_RECV,
                                .out = round->heard,
                                .count = par->elements,
                                .dtype = DT_F32,
                                .root = (int)round->partner},
                     send = {.kind = DT_COMM_SEND,
                             .in = dti_round_array(par, 0),
                             .count = par->elements,
                             .dtype = DT_F32,
                             .root = (int)round->partner};
    dt_comm_work coming, going;
    DTI_TRY(dti_parallel_comm_failed(par, dt_comm_begin(comm, &receive, &coming)));
    dt_result result = dti_parallel_comm_failed(par, dt_comm_begin(comm, &send, &going));
    if (result) {
        dt_comm_cancel(comm, coming);
        return result;
    }
    const dt_result here = dti_parallel_comm_failed(par, dt_comm_wait(comm, coming, -1));
    const dt_result gone = dt_comm_wait(comm, going, -1);
    return here ? here : dti_parallel_comm_failed(par, gone);
}

/* ---- the plan */

static dt_result dti_gossip_run(dti_parallel *par) {
    dti_round *round = &par->round;
    DTI_TRY(dti_round_began(par, dti_protocol_phase(par, dti_round_read)));
    par->strategy->team(par, dti_gossip_here);
    round->partner = dti_gossip_partner(par->mesh.rank, par->mesh.world, dti_gossip_number(par));
    if (round->partner != par->mesh.rank) {
        DTI_TRY(dti_gossip_swap(par));
        par->strategy->team(par, dti_gossip_two);
    }
    dti_round_steps(par, par->now->desc.step);
    return dti_round_began(par, dti_protocol_phase(par, dti_gossip_write));
}

static const dti_strategy dti_gossip_strategy = {
    DTI_ROUND_PLAN, .scope = DTI_STEP_OF_REPLICA, .prepare = dti_round_prepare,
    .run = dti_gossip_run, .waited = dti_replicas_waited};
