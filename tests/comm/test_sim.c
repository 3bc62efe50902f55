/* The protocol on the simulated network. Each seed gives a world, a list of operations that its
 * ranks post in different orders, and a fault. Every operation that a rank says is finished must
 * have the oracle's bytes; without a fault all must finish; with one every rank must end in
 * time. */
#include "comm/sim.h"

#define SIM_OPS_MAX 12
#define SIM_QUEUES 3 /* the world's collectives, a sub-group's, sends and receives */
#define SIM_SILENCE_NS 300000000u
/* Joining takes up to 8 s, and a rank waits 10 s for a connection when the coordinator has left. */
#define SIM_LIMIT_NS 25000000000u

typedef enum sim_fault {
    SIM_FAULT_NONE,
    SIM_FAULT_KILL,
    SIM_FAULT_RESET,      /* connections break all the time, which does not count as a fault */
    SIM_FAULT_RESET_KILL, /* the same, and a rank dies */
    SIM_FAULT_CUT,
    SIM_FAULT_PAUSE,
    SIM_FAULT_FLIP,
    SIM_FAULT_MEMORY,
    SIM_FAULT_MISMATCH,
    SIM_FAULT_CANCEL,
    SIM_FAULT_LEAVE, /* before its operations are done */
    SIM_FAULT_COUNT
} sim_fault;

typedef struct sim_op {
    dt_comm_op op;
    int queue, to; /* of a send: root is the other one's; from: op.root */
    int from;
    bool in_place; /* of an all-reduce */
} sim_op;

typedef struct sim_posted {
    dti_flight *flight;
    uint8_t *in, *out;
    bool finished;
} sim_posted;

typedef struct sim_app_state {
    sim_posted posted[SIM_OPS_MAX];
    int next[SIM_QUEUES]; /* index into the script */
    int waiting[SIM_QUEUES], finished;
    bool early; /* posts operations before their turn, in a strict run */
    dti_rank_group *sub;
    dt_result result;
    char text[512];
} sim_app_state;

/* The script of the run that is going on. */
static struct {
    sim_op ops[SIM_OPS_MAX];
    int count, depth, faulty; /* depth: how many a rank has under way of a queue at most */
    sim_fault fault;
    bool tiny;
    bool strict; /* ranks wait for each operation in turn, and post some earlier */
    uint32_t sub[SIM_RANKS_MAX];
    uint32_t sub_size;
    uint32_t local; /* ranks on each host, as all ranks must come to know */
    sim_app_state apps[SIM_RANKS_MAX];
    int wrong; /* results */
} sim_script;

/* ---- the oracle: small whole numbers, so that any order of summing is exact */

static int sim_value(int op, uint32_t rank, uint64_t i) {
    return (int)((i * 7 + rank * 13u + (uint64_t)op * 5) % 11);
}

static void sim_store(void *at, dt_dtype dtype, uint64_t i, int value) {
    if (dtype == DT_F32)
        ((float *)at)[i] = (float)value;
    else if (dtype == DT_BF16)
        ((uint16_t *)at)[i] = dti_bf16_from_f32((float)value);
    else if (dtype == DT_I32)
        ((int32_t *)at)[i] = value;
    else
        ((uint8_t *)at)[i] = (uint8_t)value;
}

static int sim_reduced(const sim_op *o, int op, uint32_t size, uint64_t i) {
    int sum = 0, most = 0;
    for (uint32_t r = 0; r < size; r++) {
        int v = sim_value(op, r, i);
        sum += v;
        most = DTI_MAX(most, v);
    }
    return o->op.reduction == DT_COMM_MAX ? most : sum;
}

/* What element i of `out` must be at `rank` of `size`. */
static int sim_expected(const sim_op *o, int op, uint32_t rank, uint32_t size, uint64_t i) {
    uint64_t n = o->op.count;
    switch (o->op.kind) {
    case DT_COMM_RECV: return sim_value(op, (uint32_t)o->from, i);
    case DT_COMM_BROADCAST: return sim_value(op, (uint32_t)o->op.root, i);
    case DT_COMM_REDUCE:
    case DT_COMM_ALL_REDUCE: return sim_reduced(o, op, size, i);
    case DT_COMM_GATHER:
    case DT_COMM_ALL_GATHER: return sim_value(op, (uint32_t)(i / n), i % n);
    case DT_COMM_SCATTER: return sim_value(op, (uint32_t)o->op.root, rank * n + i);
    case DT_COMM_REDUCE_SCATTER: return sim_reduced(o, op, size, rank * n + i);
    case DT_COMM_ALL_TO_ALL: return sim_value(op, (uint32_t)(i / n), rank * n + i % n);
    default: return 0;
    }
}

static void sim_check(const sim_op *o, int op, const dti_flight *f, const uint8_t *out) {
    uint64_t bytes = dti_coll_out_bytes(&f->op, f->group->rank, f->group->size);
    uint64_t size = dti_dtype_bytes(f->op.dtype);
    uint8_t wanted[8];
    for (uint64_t i = 0; i < bytes / size; i++) {
        sim_op mine = *o;
        mine.op.kind = f->op.kind;
        sim_store(wanted, f->op.dtype, 0,
                  sim_expected(&mine, op, f->group->rank, f->group->size, i));
        if (memcmp(wanted, out + i * size, size)) {
            sim_script.wrong++;
            return;
        }
    }
}

/* ---- the script */

/* Whether ranks of a group share hosts as it needs. */
static bool sim_can_do(const dt_comm_op *op, const uint32_t *ranks, uint32_t size) {
    return dti_algorithm_of(op->kind, op->algorithm) &&
           (op->algorithm != DT_COMM_ALGORITHM_HIERARCHICAL ||
            dti_local_of(sim_script.local, ranks, size) > 1);
}

static void sim_make_op(sim_net *n, sim_op *o) {
    static const dt_dtype dtypes[] = {DT_F32, DT_BF16, DT_I32, DT_U8};
    static const uint64_t counts[] = {0, 1, 3, 100, 1023, 1024, 1025, 5000, 20011};
    sim_rng *r = &n->rng;
    *o = (sim_op){.queue = (int)sim_random(r, SIM_QUEUES)};
    o->op.dtype = dtypes[sim_random(r, 4)];
    o->op.count = counts[sim_random(r, sim_script.tiny ? 4 : DTI_COUNT(counts))];
    o->op.reduction = sim_random(r, 2) ? DT_COMM_SUM : DT_COMM_MAX;
    if (o->queue == 2) {
        o->op.kind = DT_COMM_SEND;
        o->from = (int)sim_random(r, (uint32_t)n->size);
        o->to = (o->from + 1 + (int)sim_random(r, (uint32_t)n->size - 1)) % n->size;
        return;
    }
    uint32_t size = o->queue ? sim_script.sub_size : (uint32_t)n->size;
    o->op.kind = (dt_comm_kind)(DT_COMM_BROADCAST + sim_random(r, 9));
    if (size < 2)
        o->queue = 0, size = (uint32_t)n->size;
    o->op.root = (int)sim_random(r, size);
    o->in_place = o->op.kind == DT_COMM_ALL_REDUCE && sim_random(r, 2);
    o->op.algorithm = (dt_comm_algorithm)sim_random(r, DTI_ALGORITHMS);
    if (o->op.kind == DT_COMM_ALL_REDUCE && sim_random(r, 2))
        o->op.algorithm = DT_COMM_ALGORITHM_HIERARCHICAL;
    if (!sim_can_do(&o->op, o->queue ? sim_script.sub : NULL, size))
        o->op.algorithm = DT_COMM_ALGORITHM_DEFAULT;
    if (o->op.kind == DT_COMM_BARRIER)
        o->op.count = 0;
}

static void sim_make_script(sim_net *n) {
    sim_script.sub_size = 0;
    for (int r = 0; r < n->size; r++)
        if (sim_random(&n->rng, 3))
            sim_script.sub[sim_script.sub_size++] = (uint32_t)r;
    sim_script.count = 2 + (int)sim_random(&n->rng, SIM_OPS_MAX - 1);
    sim_script.depth = 1 + (int)sim_random(&n->rng, 5);
    sim_script.strict = sim_random(&n->rng, 2);
    sim_script.wrong = 0;
    for (int i = 0; i < sim_script.count; i++)
        sim_make_op(n, &sim_script.ops[i]);
    memset(sim_script.apps, 0, sizeof sim_script.apps);
    for (int r = 0; r < n->size; r++)
        sim_script.apps[r].early = sim_random(&n->rng, 2);
}

static bool sim_takes_part(const sim_op *o, const sim_app_state *a, int rank) {
    if (o->queue == 2)
        return rank == o->from || rank == o->to;
    return o->queue == 0 || a->sub;
}

/* ---- the application of one rank */

static void sim_fill(sim_posted *p, const dt_comm_op *op, int index, const dti_rank_group *g,
                     bool in_place) {
    uint64_t in = dti_coll_in_bytes(op, g->rank, g->size);
    uint64_t out = dti_coll_out_bytes(op, g->rank, g->size);
    p->out = malloc(out + 8);
    p->in = in_place ? p->out : malloc(in + 8);
    memset(p->out, 0xEE, out + 8);
    uint32_t who = g->rank;
    for (uint64_t i = 0; i < in / dti_dtype_bytes(op->dtype); i++)
        sim_store(p->in, op->dtype, i, sim_value(index, who, i));
}

/* The application's next use of its memory: what is sent again must not come from there. */
static void sim_reuse(const sim_posted *p, const dt_comm_op *op, const dti_rank_group *g) {
    memset(p->in, 0x77, dti_coll_in_bytes(op, g->rank, g->size));
    memset(p->out, 0x77, dti_coll_out_bytes(op, g->rank, g->size));
}

static bool sim_post(sim_net *n, int rank, int index) {
    sim_rank *r = &n->ranks[rank];
    sim_app_state *a = &sim_script.apps[rank];
    const sim_op *o = &sim_script.ops[index];
    sim_posted *p = &a->posted[index];
    dti_rank_group *g = o->queue == 1 ? a->sub : r->core.groups;
    while (o->queue != 1 && g->id)
        g = g->following;
    dt_comm_op op = o->op;
    if (o->queue == 2) {
        op.kind = rank == o->from ? DT_COMM_SEND : DT_COMM_RECV;
        op.root = rank == o->from ? o->to : o->from;
    }
    if (sim_script.fault == SIM_FAULT_MISMATCH && rank == sim_script.faulty && index == 1)
        op.count += 1;
    sim_fill(p, &op, index, g, o->in_place);
    op.in = dti_coll_in_bytes(&op, g->rank, g->size) ? p->in : NULL;
    op.out = dti_coll_out_bytes(&op, g->rank, g->size) ? p->out : NULL;
    p->flight = dti_core_post(&r->core, g, &op, NULL, 0);
    return p->flight != NULL;
}

static void sim_leave(sim_net *n, int rank) {
    dti_core_leave(&n->ranks[rank].core);
    n->ranks[rank].leaving = true;
}

static void sim_collect(sim_net *n, int rank) {
    sim_app_state *a = &sim_script.apps[rank];
    for (int i = 0; i < sim_script.count; i++) {
        sim_posted *p = &a->posted[i];
        if (!p->flight || !p->flight->finished)
            continue;
        bool odd =
            p->flight->op.count != sim_script.ops[i].op.count; /* a mismatch, but not for it */
        if (p->flight->result == DT_OK) {
            if (!odd)
                sim_check(&sim_script.ops[i], i, p->flight, p->out);
            a->finished++;
        }
        sim_reuse(p, &p->flight->op, p->flight->group);
        dti_flight_release(&n->ranks[rank].core, p->flight);
        p->flight = NULL;
        p->finished = true;
        a->waiting[sim_script.ops[i].queue]--;
    }
    if (n->ranks[rank].core.state == DTI_CORE_ENDED && !a->result) {
        a->result = n->ranks[rank].core.result;
        snprintf(a->text, sizeof a->text, "%s", n->ranks[rank].core.text);
    }
}

/* The next operation of the queue that this rank takes part in; -1 = none. */
static int sim_next(int rank, int queue) {
    sim_app_state *a = &sim_script.apps[rank];
    for (int *i = &a->next[queue]; *i < sim_script.count; ++*i)
        if (sim_script.ops[*i].queue == queue && sim_takes_part(&sim_script.ops[*i], a, rank))
            return *i;
    return -1;
}

/* The next operation to post. In a strict run it is the first one that is not finished. Now and
 * then it is a later one of any queue; else the next one of a queue that has not too many under
 * way. -1 = nothing. */
static int sim_choose(sim_net *n, int rank) {
    sim_app_state *a = &sim_script.apps[rank];
    int queue = (int)sim_random(&n->rng, SIM_QUEUES);
    if (sim_script.strict) {
        for (int i = 0; i < sim_script.count; i++) {
            const sim_op *o = &sim_script.ops[i];
            if (a->posted[i].finished || !sim_takes_part(o, a, rank))
                continue;
            if (!a->posted[i].flight)
                return i;
            return a->early && sim_random(&n->rng, 3) == 0 ? sim_next(rank, queue) : -1;
        }
        return -1;
    }
    for (int k = 0; k < SIM_QUEUES; k++, queue = (queue + 1) % SIM_QUEUES) {
        int index = a->waiting[queue] < sim_script.depth ? sim_next(rank, queue) : -1;
        if (index >= 0)
            return index;
    }
    return -1;
}

static void sim_post_some(sim_net *n, int rank) {
    sim_app_state *a = &sim_script.apps[rank];
    int index = sim_choose(n, rank);
    if (index < 0)
        return;
    int queue = sim_script.ops[index].queue;
    a->next[queue] = index + 1;
    if (sim_post(n, rank, index)) {
        a->waiting[queue]++;
        return;
    }
    a->result = n->ranks[rank].base.result;
    sim_leave(n, rank);
}

static bool sim_all_posted(int rank) {
    return sim_next(rank, 0) < 0 && sim_next(rank, 1) < 0 && sim_next(rank, 2) < 0;
}

static void sim_cancel_one(sim_net *n, int rank) {
    sim_app_state *a = &sim_script.apps[rank];
    for (int i = 0; i < sim_script.count; i++) {
        sim_posted *p = &a->posted[i];
        if (!p->flight || p->flight->finished)
            continue;
        a->result = dti_core_cancel(&n->ranks[rank].core, p->flight);
        memset(p->out, 0x55, 1); /* it is ours again */
        p->flight = NULL;
        a->waiting[sim_script.ops[i].queue]--;
        return;
    }
}

static void sim_app(sim_net *n, int rank) {
    sim_rank *r = &n->ranks[rank];
    sim_app_state *a = &sim_script.apps[rank];
    sim_collect(n, rank);
    if (r->core.state == DTI_CORE_ENDED) {
        sim_leave(n, rank);
        return;
    }
    if (r->core.state != DTI_CORE_OPEN || n->now < r->app_at)
        return;
    sim_script.wrong += r->core.local != sim_script.local;
    if (!a->sub && sim_script.sub_size > 1)
        for (uint32_t i = 0; i < sim_script.sub_size; i++)
            if (sim_script.sub[i] == (uint32_t)rank)
                a->sub = dti_group_new(&r->core, 1, sim_script.sub, sim_script.sub_size);
    r->app_at = n->now + sim_random(&n->rng, 3000000);
    if (sim_script.fault == SIM_FAULT_CANCEL && rank == sim_script.faulty && a->finished >= 1)
        sim_cancel_one(n, rank);
    if (r->core.state != DTI_CORE_OPEN)
        return;
    bool deserter = sim_script.fault == SIM_FAULT_LEAVE && rank == sim_script.faulty;
    if (deserter && a->finished >= 2 && !a->waiting[0] && !a->waiting[1] && !a->waiting[2])
        sim_leave(n, rank);
    else if (!sim_all_posted(rank))
        sim_post_some(n, rank);
    else if (!a->waiting[0] && !a->waiting[1] && !a->waiting[2])
        sim_leave(n, rank);
}

/* ---- one run */

/* The number of ranks on each host, and what a rank reports of it. Now and then a rank does not
 * know, or reports an impossible number. Then no rank knows. */
static void sim_hosts(const sim_net *n, uint64_t seed, dti_settings *set) {
    static const uint32_t wrong[] = {0, 0, 0, 1, 5, 65535};
    uint64_t how = seed / SIM_FAULT_COUNT;
    static const uint32_t right[] = {2, 4, 2, 3, 1};
    uint32_t size = (uint32_t)n->size, local = right[how % DTI_COUNT(right)];
    uint32_t odd_one = how / 5 % 3 ? UINT32_MAX : (uint32_t)(how / 15 % size);
    set->local_size = local;
    set->local_rank = set->rank % local;
    if (set->rank == odd_one && how % 7)
        set->local_size = wrong[how % DTI_COUNT(wrong)];
    else if (set->rank == odd_one) /* another place */
        set->local_rank = (set->local_rank + 1) % local;
    bool known = size % local == 0 && (odd_one == UINT32_MAX || local == 1);
    sim_script.local = known ? local : 1;
}

static void sim_world(sim_net *n, uint64_t seed) {
    memset(n, 0, sizeof *n);
    n->rng.key = seed;
    n->size = 2 + (int)sim_random(&n->rng, SIM_RANKS_MAX - 1);
    sim_script.tiny = sim_random(&n->rng, 4) == 0; /* a few bytes at a time, and then little data */
    n->faults.piece_max = sim_script.tiny ? 1 + sim_random(&n->rng, 300) : 20000;
    n->faults.delay_max = 1 + sim_random(&n->rng, sim_script.tiny ? 100000 : 2000000);
    n->now = 1000;
    sim_hosts(n, seed, &(dti_settings){0});
    sim_make_script(n);
    sim_script.fault = (sim_fault)(seed % SIM_FAULT_COUNT);
    sim_script.faulty = (int)sim_random(&n->rng, (uint32_t)n->size);
    dti_settings set = {.size = (uint32_t)n->size,
                        .chunk_bytes = sim_random(&n->rng, 4) ? 4096 : 16384,
                        .window = 1 + sim_random(&n->rng, 4),
                        .sockets = 1 + (sim_random(&n->rng, 3) == 0) * sim_random(&n->rng, 3),
                        .join_ns = 8000000000u,
                        .silence_ns = SIM_SILENCE_NS,
                        .keyed = sim_random(&n->rng, 4) != 0};
#ifdef DT_WITH_OPENSSL
    if (set.keyed && seed % 3 == 1)
        set.integrity = DT_COMM_MAC;
#endif
    if (sim_script.fault == SIM_FAULT_RESET)
        set.silence_ns = 1000000000;
    for (int r = 0; r < n->size; r++) {
        set.rank = (uint32_t)r;
        sim_hosts(n, seed, &set);
        CHECK(sim_start(n, r, &set));
    }
    if (sim_script.fault == SIM_FAULT_NONE)
        n->faults.refuse = 0.2;
    if (sim_script.fault == SIM_FAULT_RESET || sim_script.fault == SIM_FAULT_RESET_KILL)
        n->faults.broken = 0.0001 * n->size * (1 + sim_random(&n->rng, sim_script.tiny ? 5 : 20));
}

/* A fault now; true when it has been made. */
static bool sim_inject(sim_net *n) {
    sim_rank *r = &n->ranks[sim_script.faulty];
    int other = (sim_script.faulty + 1) % n->size;
    switch (sim_script.fault) {
    case SIM_FAULT_KILL: sim_kill(n, sim_script.faulty); break;
    case SIM_FAULT_RESET_KILL: sim_kill(n, sim_script.faulty); break;
    case SIM_FAULT_CUT: n->faults.cut[sim_script.faulty][other] = true; break;
    case SIM_FAULT_PAUSE:
        r->paused = true;
        r->paused_until = n->now + 50000000 + sim_random(&n->rng, 1000000000);
        break;
    case SIM_FAULT_FLIP: n->faults.flip = 0.02; break;
    case SIM_FAULT_MEMORY:
        r->allocs = 0;
        r->fail_at = (int)sim_random(&n->rng, 20);
        break;
    default: break;
    }
    return true;
}

static bool sim_is_over(const sim_net *n) {
    for (int r = 0; r < n->size; r++)
        if (!n->ranks[r].gone && !n->ranks[r].dead)
            return false;
    return true;
}

static void sim_clean(sim_net *n) {
    sim_end(n);
    for (int r = 0; r < n->size; r++)
        for (int i = 0; i < SIM_OPS_MAX; i++) {
            sim_posted *p = &sim_script.apps[r].posted[i];
            if (p->in != p->out)
                free(p->in);
            free(p->out);
        }
}

/* What an operation lacks. */
static void sim_show_flight(const dti_flight *f) {
    printf("      %s %llu of group %u, algorithm %d, count %llu, root %d\n",
           dti_kind_name(f->op.kind), (unsigned long long)f->post.sequence, f->group->id,
           f->op.algorithm, (unsigned long long)f->op.count, f->op.root);
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        const dti_schedule_step *s = &f->schedule.steps[i];
        const dti_track *t = &f->tracks[i];
        static const char *const kinds[] = {"send", "recv", "fold", "copy"};
        if (t->done < t->total)
            printf(
                "        %s rank %u stream %u%s: %u of %u, granted %u told %u ready %u begun %u, "
                "peer %x\n",
                kinds[s->kind], s->peer, s->stream, s->credited ? " credited" : "", t->done,
                t->total, t->granted, t->told, t->ready, t->begun, f->peer_state[s->peer]);
    }
}

static bool sim_failed(const sim_net *n, uint64_t seed, const char *why) {
    printf("  seed %llu (%d ranks, fault %d): %s\n", (unsigned long long)seed, n->size,
           sim_script.fault, why);
    for (int r = 0; r < n->size; r++) {
        const sim_app_state *a = &sim_script.apps[r];
        printf("    rank %d: state %d%s%s, %d of %d done, %d waiting, %s: %s\n", r,
               n->ranks[r].core.state, n->ranks[r].dead ? " dead" : "",
               n->ranks[r].gone ? " gone" : "", a->finished, sim_script.count,
               a->waiting[0] + a->waiting[1] + a->waiting[2], dt_result_text(a->result), a->text);
        for (int i = 0; i < sim_script.count && !n->ranks[r].gone; i++)
            if (a->posted[i].flight)
                sim_show_flight(a->posted[i].flight);
    }
    return false;
}

static bool sim_any_error(const sim_net *n) {
    for (int r = 0; r < n->size; r++)
        if (sim_script.apps[r].result)
            return true;
    return false;
}

static bool sim_seed(uint64_t seed) {
    static sim_net net;
    sim_net *n = &net;
    sim_world(n, seed);
    uint64_t inject_at = sim_random(&n->rng, 200000000), injected = 0;
    bool ok = true;
    const char *why = NULL;
    while (!sim_is_over(n) && !why) {
        sim_step(n, 50000 + sim_random(&n->rng, 400000));
        if (!injected && n->now >= inject_at && sim_script.fault != SIM_FAULT_NONE) {
            sim_inject(n);
            injected = n->now;
        }
        uint64_t limit = sim_script.fault == SIM_FAULT_NONE ? 30000000000u : SIM_LIMIT_NS;
        if (n->now > limit)
            why = "not over in time";
    }
    if (sim_script.wrong)
        why = "a result is wrong";
    if (n->flips_read && !sim_any_error(n))
        why = "a flipped bit was not noticed";
    for (int r = 0; r < n->size && !why; r++) {
        const sim_app_state *a = &sim_script.apps[r];
        bool fault = sim_script.fault != SIM_FAULT_NONE && sim_script.fault != SIM_FAULT_RESET;
        if (!fault && a->result != DT_OK)
            why = "an error without a fault";
        if (n->ranks[r].gone && n->ranks[r].held)
            why = "memory leaked";
    }
    if (why)
        ok = sim_failed(n, seed, why);
    sim_clean(n);
    return ok;
}

static int sim_seeds(int otherwise) {
    const char *text = getenv("DTRAIN_SIM_SEEDS");
    return text ? atoi(text) : otherwise;
}

TEST(simulated_ranks_get_the_references_bits_or_an_error_on_any_network) {
    int bad = 0, seeds = sim_seeds(1000);
    const char *one = getenv("DTRAIN_SIM_SEED");
    for (int i = 0; i < seeds && bad < 5; i++)
        bad += !sim_seed(one ? (uint64_t)atoll(one) : (uint64_t)i);
    CHECK(bad == 0);
}

/* ---- rank 0 goes last */

/* Ranks that are about to join. */
static sim_net *sim_begun(int size, uint64_t chunk_bytes) {
    static sim_net net;
    sim_net *n = &net;
    memset(n, 0, sizeof *n);
    n->size = size;
    n->faults.piece_max = 20000;
    n->faults.delay_max = 100000;
    n->now = 1000;
    memset(&sim_script, 0, sizeof sim_script);
    for (int r = 0; r < size; r++) {
        dti_settings set = {.rank = (uint32_t)r,
                            .size = (uint32_t)size,
                            .chunk_bytes = chunk_bytes,
                            .window = 4,
                            .sockets = 1,
                            .join_ns = 8000000000u,
                            .silence_ns = SIM_SILENCE_NS,
                            .keyed = true};
        CHECK(sim_start(n, r, &set));
        n->ranks[r].app_at = UINT64_MAX;
    }
    return n;
}

/* Ranks that have joined; what their applications do is the test's. */
static sim_net *sim_joined_by(int size, uint64_t chunk_bytes) {
    sim_net *n = sim_begun(size, chunk_bytes);
    for (int open = 0; open < size && n->now < 2000000000u;) {
        sim_step(n, 100000);
        for (int r = open = 0; r < size; r++)
            open += n->ranks[r].core.state == DTI_CORE_OPEN;
    }
    return n;
}

static sim_net *sim_joined(int size) {
    return sim_joined_by(size, 4096);
}

static void sim_pass(sim_net *n, uint64_t ns) {
    for (uint64_t until = n->now + ns; n->now < until;)
        sim_step(n, 100000);
}

static dti_flight *sim_post_one(sim_net *n, int rank, dt_comm_kind kind, int other, int32_t *x) {
    dti_core *core = &n->ranks[rank].core;
    return dti_core_post(
        core, core->groups,
        &(dt_comm_op){.kind = kind, .in = x, .out = x, .count = 1, .dtype = DT_I32, .root = other},
        NULL, 0);
}

TEST(simulated_rank_0_leaves_last) {
    sim_net *n = sim_joined(3);
    sim_leave(n, 0);
    sim_pass(n, SIM_SILENCE_NS / 2);
    CHECK(!n->ranks[0].gone);
    sim_leave(n, 1);
    sim_pass(n, 10000000);
    CHECK(n->ranks[1].gone && !n->ranks[0].gone);
    sim_leave(n, 2);
    sim_pass(n, 10000000);
    CHECK(n->ranks[2].gone && n->ranks[0].gone);
    sim_end(n);
}

/* Of rank 2, which has no connection to rank 1, only rank 0 can report. */
TEST(simulated_rank_0_that_leaves_still_names_the_rank_that_died) {
    int32_t x = 1;
    sim_net *n = sim_joined(3);
    sim_leave(n, 0);
    const dti_flight *f = sim_post_one(n, 1, DT_COMM_RECV, 2, &x);
    sim_pass(n, 50000000);
    CHECK(f && !f->finished && !n->ranks[0].gone);
    sim_kill(n, 2);
    sim_pass(n, 50000000);
    CHECK(sim_script.apps[1].result == DT_ERROR_PEER_LOST); /* f is gone with its rank's core */
    CHECK_CONTAINS(sim_script.apps[1].text, "rank 2 (sim:2) is lost");
    sim_leave(n, 1);
    sim_pass(n, 50000000);
    CHECK(n->ranks[1].gone && n->ranks[0].gone);
    sim_end(n);
}

/* Its connections break meanwhile, and are joined again. Then it has stayed long enough: the others
 * go on without it; a rank that needs it gets the error that it has left. */
TEST(simulated_ranks_continue_when_rank_0_has_left) {
    int32_t x = 1, y = 2, z = 3;
    sim_net *n = sim_joined(3);
    sim_leave(n, 0);
    for (int i = 0; i < n->conn_top; i++)
        n->conns[i].reset = true;
    sim_pass(n, 50000000);
    CHECK(n->ranks[1].core.resets == 1 && n->ranks[2].core.resets == 1 && !n->ranks[0].gone);
    sim_pass(n, SIM_SILENCE_NS + 50000000);
    CHECK(n->ranks[0].gone);
    const dti_flight *to = sim_post_one(n, 2, DT_COMM_SEND, 1, &x);
    const dti_flight *from = sim_post_one(n, 1, DT_COMM_RECV, 2, &y);
    sim_pass(n, 50000000);
    CHECK(to && to->finished && from && from->finished && x == y);
    CHECK(sim_post_one(n, 1, DT_COMM_RECV, 0, &z));
    sim_pass(n, 100000000);
    CHECK(sim_script.apps[1].result == DT_ERROR_PEER_LOST);
    CHECK_CONTAINS(sim_script.apps[1].text, "rank 0 (sim:0) is lost: it has left the group");
    sim_end(n);
}

/* A rank that needs rank 0 while it stays gets the error at once, and so do all. */
TEST(simulated_ranks_do_not_wait_for_rank_0_when_it_stays) {
    int32_t x = 1;
    sim_net *n = sim_joined(3);
    sim_leave(n, 0);
    CHECK(sim_post_one(n, 1, DT_COMM_RECV, 0, &x));
    sim_pass(n, 60000000);
    CHECK(sim_script.apps[1].result == DT_ERROR_PEER_LOST);
    for (int r = 1; r < 3; r++)
        CHECK_CONTAINS(sim_script.apps[r].text, "rank 0 (sim:0) is lost: it has left the group");
    sim_end(n);
}

/* ---- silence */

/* A pause shorter than the silence that means death costs only its time; a longer pause is a death,
 * which all learn of, and which nothing takes back. */
TEST(simulated_network_that_is_down_for_a_moment_is_not_a_death) {
    int32_t x = 1, y = 2;
    sim_net *n = sim_joined(3);
    const dti_flight *to = sim_post_one(n, 2, DT_COMM_SEND, 0, &x);
    n->faults.cut[0][2] = n->faults.cut[2][0] = true;
    sim_pass(n, SIM_SILENCE_NS * 8 / 10);
    n->faults.cut[0][2] = n->faults.cut[2][0] = false;
    const dti_flight *from = sim_post_one(n, 0, DT_COMM_RECV, 2, &y);
    sim_pass(n, SIM_SILENCE_NS);
    CHECK(to->finished && from->finished && x == y && n->ranks[0].core.resets == 0);
    n->faults.cut[0][2] = n->faults.cut[2][0] = true;
    sim_pass(n, SIM_SILENCE_NS + 50000000);
    n->faults.cut[0][2] = n->faults.cut[2][0] = false;
    sim_pass(n, SIM_SILENCE_NS);
    for (int r = 0; r < 3; r++)
        CHECK(sim_script.apps[r].result == DT_ERROR_PEER_LOST);
    CHECK_CONTAINS(sim_script.apps[1].text, "rank 2 (sim:2) is lost: nothing was received from it");
    sim_end(n);
}

/* ---- a bit that is turned while ranks join */

/* Ranks that do not belong together would get that error; NULL: nobody is. */
static const char *sim_speaks_of_others(const sim_net *n) {
    static const char *const others[] = {"differ", "different", "insecure", "same rank", "another"};
    for (int r = 0; r < n->size; r++)
        for (size_t k = 0; k < DTI_COUNT(others); k++) {
            const dti_core *core = &n->ranks[r].core;
            if (strstr(sim_script.apps[r].text, others[k]))
                return sim_script.apps[r].text;
            for (uint32_t i = 0; i < core->note_count; i++)
                if (strstr(core->notes[i], others[k]))
                    return core->notes[i];
        }
    return NULL;
}

/* Ranks that are about to join, with one bit that rank `from` says to rank `to`. */
static sim_net *sim_turned(int from, int to, int at, int bit, bool each) {
    sim_net *n = sim_begun(3, 4096);
    n->faults.turn_from = from, n->faults.turn_to = to;
    n->faults.turn_at = (uint64_t)at, n->faults.turn_mask = (uint8_t)(1 << bit);
    n->faults.turn_each = each;
    return n;
}

/* Until all have joined, or all have an error: all the same one. A handshake is made again. */
static bool sim_turn(int from, int to, int at, int bit) {
    sim_net *n = sim_turned(from, to, at, bit, false);
    const sim_app_state *apps = sim_script.apps;
    int open = 0, corrupt = 0;
    const bool handshake = at < DTI_HELLO_BYTES + DTI_PROOF_BYTES;
    while (corrupt < 3 && (open < 3 || (n->turned && !handshake)) && n->now < 9000000000u) {
        sim_step(n, 100000);
        for (int r = open = corrupt = 0; r < 3; r++) {
            open += n->ranks[r].core.state == DTI_CORE_OPEN;
            corrupt += apps[r].result == DT_ERROR_CORRUPT;
        }
    }
    const char *others = sim_speaks_of_others(n);
    const bool right = !others && n->now < 2 * SIM_SILENCE_NS + 100000000 &&
                       open == (handshake || !n->turned ? 3 : 0);
    for (int r = 0; r < 3 && !right; r++)
        printf("  rank %d to %d, byte %d, bit %d, after %d ms: rank %d: %s, %s%s\n", from, to, at,
               bit, (int)(n->now / 1000000), r, dt_result_text(apps[r].result), apps[r].text,
               others ? others : "");
    sim_end(n);
    return right;
}

/* All that ranks 1 and 0 say to each other until they have joined. */
TEST(simulated_bits_flipped_while_joining_are_reported_and_no_rank_waits) {
    int bad = 0, bits = getenv("DTRAIN_TEST_LONG") ? 8 : 1;
    for (int from = 0; from < 2; from++)
        for (int at = 0; at < 420 && bad < 5; at++)
            for (int bit = 0; bit < bits; bit++)
                bad += !sim_turn(from, !from, at, (at + bit) % 8);
    CHECK(bad == 0);
}

/* The same bit of each connection: no rank can prove anything, and rank 1 says why. */
TEST(simulated_handshakes_that_are_always_damaged_end_with_that_error) {
    for (int i = 0; i < 3; i++) {
        sim_net *n = sim_turned(i == 0, i != 0, i == 2 ? 180 : 40 + i, i, true);
        sim_pass(n, 6000000000u);
        CHECK(sim_script.apps[1].result == DT_ERROR_CORRUPT && !sim_speaks_of_others(n));
        CHECK_CONTAINS(sim_script.apps[1].text,
                       "the handshake with rank 0 failed 8 times: bytes of "
                       "a ");
        sim_end(n);
    }
}

/* Rank 0, whose join has failed, is there for those that come a moment later. */
TEST(simulated_ranks_that_come_late_get_the_reason_of_the_failed_join) {
    sim_net *n =
        sim_turned(1, 0, DTI_HELLO_BYTES + DTI_PROOF_BYTES + DTI_HEADER_BYTES + 50, 3, false);
    n->ranks[2].paused = true;
    n->ranks[2].paused_until = n->now + 800000000;
    sim_pass(n, 600000000);
    CHECK(sim_script.apps[0].result == DT_ERROR_CORRUPT && !n->ranks[0].gone);
    sim_pass(n, 600000000);
    CHECK(sim_script.apps[2].result == DT_ERROR_CORRUPT);
    CHECK_CONTAINS(sim_script.apps[2].text, "from rank 1");
    sim_pass(n, 3000000000u);
    CHECK(n->ranks[0].gone);
    sim_end(n);
}
