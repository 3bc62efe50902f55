/* Chooses the algorithm of an operation. It is a pure function of kind, number of ranks, hosts,
 * bytes, and the links' costs. All ranks know the same costs, so they choose the same without
 * communication. It takes the cheapest candidate by cost.c. Candidates give the same bits. Measured
 * costs differ from run to run, so they never decide between orders of summing; only kind, ranks
 * and bytes may. If costs are not known, the thresholds below decide. It refuses a requested
 * algorithm that does not exist or does not fit the hosts. It refuses tree mode if an algorithm's
 * order of summing is not the tree's. */

/* Up to here latency is all: doubling handles log2 N messages, the mesh 2 (N-1). (dtbench_comm tune
 * finds it for other places.) */
#define DTI_SMALL_BYTES (64u << 10)
/* More connections than this busy at once cost more than the mesh's two latencies save. */
#define DTI_MESH_RANKS 32u
/* Above, the ring's 2 (N-1) latencies are small beside its bytes, which come as an even stream. */
#define DTI_HALVING_BYTES (1u << 20)
#define DTI_PAIR_HALVES_BYTES (256u << 10)
/* Up to here a broadcast is sent whole: by the root itself, or, to more than DTI_STAR_RANKS, along
 * a tree; dealing out needs a second message. */
#define DTI_BROADCAST_BYTES (64u << 10)
#define DTI_STAR_RANKS 8u
/* WORK that an algorithm may take of its own accord, by the sums of whole arrays that it keeps. */
#define DTI_WORK_MOST (4u << 20)

#define DTI_KINDS (DT_COMM_BARRIER + 1)
#define DTI_ALGORITHMS (DT_COMM_ALGORITHM_HIERARCHICAL + 1)

static const union {
    struct { /* in the order of dt_comm_algorithm */
        dti_algorithm_fn *none, *direct, *one_shot, *doubling, *halving, *ring, *hierarchical;
    };
    dti_algorithm_fn *by[DTI_ALGORITHMS];
} dti_algorithm_table[DTI_KINDS] = {
    [DT_COMM_SEND] = {.direct = dti_algo_send_direct},
    [DT_COMM_RECV] = {.direct = dti_algo_recv_direct},
    [DT_COMM_BROADCAST] = {.direct = dti_algo_broadcast_direct,
                           .one_shot = dti_algo_broadcast_one_shot,
                           .doubling = dti_algo_broadcast_doubling,
                           .ring = dti_algo_broadcast_ring},
    [DT_COMM_REDUCE] = {.direct = dti_algo_reduce_direct, .doubling = dti_algo_reduce_doubling},
    [DT_COMM_ALL_REDUCE] = {.direct = dti_algo_reduce_direct,
                            .one_shot = dti_algo_all_reduce_one_shot,
                            .doubling = dti_algo_all_reduce_doubling,
                            .halving = dti_algo_all_reduce_halving,
                            .ring = dti_algo_all_reduce_ring,
                            .hierarchical = dti_algo_all_reduce_hierarchical},
    [DT_COMM_GATHER] = {.direct = dti_algo_gather_direct},
    [DT_COMM_ALL_GATHER] = {.direct = dti_algo_gather_direct, .ring = dti_algo_all_gather_ring},
    [DT_COMM_SCATTER] = {.direct = dti_algo_scatter_direct},
    [DT_COMM_REDUCE_SCATTER] = {.direct = dti_algo_reduce_scatter_direct,
                                .ring = dti_algo_reduce_scatter_ring},
    [DT_COMM_ALL_TO_ALL] = {.direct = dti_algo_all_to_all_direct},
    [DT_COMM_BARRIER] = {.doubling = dti_algo_barrier_doubling},
};

/* NULL where it does not exist. */
static dti_algorithm_fn *dti_algorithm_of(dt_comm_kind kind, dt_comm_algorithm algorithm) {
    return (unsigned)algorithm < DTI_ALGORITHMS ? dti_algorithm_table[kind].by[algorithm] : NULL;
}

/* Whether each rank has one subtree of the leaves, all alike: then subtrees of ranks are subtrees
 * of leaves. */
static bool dti_leaves_alike(const dti_collective *c) {
    uint32_t each = c->leaf_total / c->size;
    if ((each & (each - 1)) != 0 || each == 0)
        return false;
    for (uint32_t rank = 0; rank < c->size; rank++)
        if (c->leaves[rank].first != rank * each || c->leaves[rank].count != each)
            return false;
    return true;
}

/* Whether the ranks are on hosts as hierarchical needs it. */
static bool dti_hosts_fit(const dti_collective *c) {
    return c->local > 1 && (c->local & (c->local - 1)) == 0 && c->size % c->local == 0 &&
           c->size > c->local;
}

/* Whether the operation has enough bytes for it, and no level has more peers than a mesh may have.
 * Then fewer bytes leave a host than by direct, with fewer messages than by halving or the ring. */
static bool dti_hosts_pay(const dti_collective *c) {
    uint64_t bytes = c->op.count * dti_dtype_bytes(c->op.dtype);
    return dti_hosts_fit(c) && bytes > DTI_SMALL_BYTES && c->local <= DTI_MESH_RANKS &&
           c->size / c->local <= DTI_MESH_RANKS;
}

static dti_algorithm_fn *dti_algorithm_refuse(dti_base *base, const dti_collective *c,
                                              const char *what) {
    dti_fail(base, DT_ERROR_INVALID, "%s%s: %s", dti_kind_name(c->op.kind),
             c->op.tree ? " in tree mode" : "", what);
    return NULL;
}

/* "": the algorithm has the tree's order in tree mode; else why not. */
static const char *dti_algorithm_tree_lacks(const dti_collective *c, dt_comm_algorithm algorithm) {
    if (algorithm == DT_COMM_ALGORITHM_DIRECT)
        return "";
    bool halving = algorithm == DT_COMM_ALGORITHM_HALVING;
    if (c->op.kind != DT_COMM_ALL_REDUCE ||
        (!halving && algorithm != DT_COMM_ALGORITHM_HIERARCHICAL))
        return ".algorithm must be DIRECT or, for all-reduce, HALVING or HIERARCHICAL";
    if (halving && ((c->size & (c->size - 1)) != 0 || !dti_leaves_alike(c)))
        return "HALVING requires that the numbers of ranks and of leaves per rank are powers of "
               "two; use DIRECT";
    return dti_leaves_alike(c) ? ""
                               : "HIERARCHICAL requires the same number of leaves on each rank, a "
                                 "power of two; use DIRECT";
}

/* ---- the default */

/* Where the costs of the links are not known, and where only ranks and bytes may decide. */
static dt_comm_algorithm dti_algorithm_by_bytes(const dti_collective *c) {
    uint64_t size = dti_dtype_bytes(c->op.dtype), bytes = c->op.count * size;
    bool mesh = c->size <= DTI_MESH_RANKS;
    switch (c->op.kind) {
    case DT_COMM_BARRIER: return DT_COMM_ALGORITHM_DOUBLING;
    case DT_COMM_BROADCAST:
        if (bytes > DTI_BROADCAST_BYTES)
            return mesh ? DT_COMM_ALGORITHM_DIRECT : DT_COMM_ALGORITHM_RING;
        return c->size <= DTI_STAR_RANKS ? DT_COMM_ALGORITHM_ONE_SHOT : DT_COMM_ALGORITHM_DOUBLING;
    case DT_COMM_REDUCE:
        return bytes <= DTI_SMALL_BYTES ? DT_COMM_ALGORITHM_DOUBLING : DT_COMM_ALGORITHM_DIRECT;
    case DT_COMM_ALL_REDUCE:
        if (bytes <= DTI_SMALL_BYTES)
            return DT_COMM_ALGORITHM_DOUBLING;
        if (dti_hosts_pay(c))
            return DT_COMM_ALGORITHM_HIERARCHICAL;
        /* others send 16-bit floats' partial sums as f32, and in an order of their own */
        if (mesh || dti_is_half(c->op.dtype))
            return DT_COMM_ALGORITHM_DIRECT;
        return bytes < DTI_HALVING_BYTES ? DT_COMM_ALGORITHM_HALVING : DT_COMM_ALGORITHM_RING;
    case DT_COMM_ALL_GATHER:
    case DT_COMM_REDUCE_SCATTER: /* bytes: of one block */
        return mesh || bytes * c->size < DTI_HALVING_BYTES ? DT_COMM_ALGORITHM_DIRECT
                                                           : DT_COMM_ALGORITHM_RING;
    default: return DT_COMM_ALGORITHM_DIRECT;
    }
}

/* Whether the links' costs may decide: all candidates of the operation add in the tree's order, or
 * nothing is added. */
static bool dti_algorithm_is_free(const dti_collective *c) {
    uint64_t bytes = c->op.count * dti_dtype_bytes(c->op.dtype);
    if (!c->costs || !c->op.count)
        return false;
    if (c->op.kind == DT_COMM_ALL_REDUCE)
        return c->size <= DTI_MESH_RANKS || bytes <= DTI_SMALL_BYTES || dti_hosts_pay(c);
    return c->op.kind == DT_COMM_REDUCE || c->op.kind == DT_COMM_BROADCAST;
}

/* Whether WORK of `arrays` whole arrays is little enough. */
static bool dti_work_is_small(const dti_collective *c, uint64_t arrays) {
    uint64_t width = dti_dtype_bytes((dt_dtype)dti_fold_dtype(c->op.dtype, c->op.reduction));
    return dti_cost_times(dti_cost_times(c->op.count, width), arrays) <= DTI_WORK_MOST;
}

/* Whether an algorithm of an all-reduce or reduce is a candidate. It exists, adds in the tree's
 * order, and needs not too much memory or too many connections. */
static bool dti_algorithm_sums_alike(const dti_collective *c, dt_comm_algorithm algorithm) {
    bool two = (c->size & (c->size - 1)) == 0, mesh = c->size <= DTI_MESH_RANKS;
    switch (algorithm) {
    case DT_COMM_ALGORITHM_DIRECT: return mesh || c->op.kind == DT_COMM_REDUCE;
    case DT_COMM_ALGORITHM_ONE_SHOT: /* with two ranks it is doubling */
        return mesh && c->size > 2 && dti_work_is_small(c, c->size - 1);
    case DT_COMM_ALGORITHM_DOUBLING: return dti_work_is_small(c, dti_cost_levels(c->size));
    case DT_COMM_ALGORITHM_HALVING: return two;
    case DT_COMM_ALGORITHM_HIERARCHICAL:
        return dti_hosts_fit(c) && c->local <= DTI_MESH_RANKS &&
               c->size / c->local <= DTI_MESH_RANKS;
    default: return false;
    }
}

static bool dti_algorithm_is_candidate(const dti_collective *c, dt_comm_algorithm algorithm) {
    bool mesh = c->size <= DTI_MESH_RANKS;
    if (!dti_algorithm_of(c->op.kind, algorithm))
        return false;
    if (c->op.kind == DT_COMM_BROADCAST)
        return mesh || algorithm == DT_COMM_ALGORITHM_DOUBLING ||
               algorithm == DT_COMM_ALGORITHM_RING;
    if (c->op.tree && algorithm == DT_COMM_ALGORITHM_DIRECT)
        return true;
    return dti_algorithm_sums_alike(c, algorithm) &&
           (!c->op.tree || !*dti_algorithm_tree_lacks(c, algorithm));
}

/* The cheapest candidate; of equal ones that with the fewest messages. */
static dt_comm_algorithm dti_algorithm_by_cost(const dti_collective *c,
                                               dt_comm_algorithm otherwise) {
    static const dt_comm_algorithm order[] = {
        DT_COMM_ALGORITHM_DOUBLING, DT_COMM_ALGORITHM_DIRECT, DT_COMM_ALGORITHM_ONE_SHOT,
        DT_COMM_ALGORITHM_HALVING,  DT_COMM_ALGORITHM_RING,   DT_COMM_ALGORITHM_HIERARCHICAL};
    uint64_t least = UINT64_MAX;
    dt_comm_algorithm best = otherwise;
    for (size_t i = 0; i < DTI_COUNT(order); i++) {
        uint64_t cost =
            dti_algorithm_is_candidate(c, order[i]) ? dti_cost_algorithm(c, order[i]) : UINT64_MAX;
        if (cost < least) {
            least = cost;
            best = order[i];
        }
    }
    return best;
}

/* Between two hosts, halving and direct exchange the same bytes in the same order of sums. Halving
 * needs no slots, so no messages about them. For larger arrays, direct's window keeps few bytes in
 * flight, which suits bbr and the caches. */
static bool dti_pair_halves(const dti_collective *c) {
    return c->op.kind == DT_COMM_ALL_REDUCE && c->size == 2 && c->local <= 1 &&
           c->op.count * dti_dtype_bytes(c->op.dtype) <= DTI_PAIR_HALVES_BYTES;
}

static dt_comm_algorithm dti_algorithm_default(const dti_collective *c) {
    dt_comm_algorithm chosen = dti_algorithm_by_bytes(c);
    if (dti_algorithm_is_free(c))
        chosen = dti_algorithm_by_cost(c, chosen);
    return chosen == DT_COMM_ALGORITHM_DIRECT && dti_pair_halves(c) ? DT_COMM_ALGORITHM_HALVING
                                                                    : chosen;
}

/* ---- tree mode */

/* In tree mode all-reduce and reduce have direct; they have others if their order of sums is the
 * tree's. */
static bool dti_algorithm_choose_tree(dti_base *base, const dti_collective *c,
                                      dt_comm_algorithm *chosen) {
    const dt_comm_op *op = &c->op;
    const char *wrong = "";
    *chosen = op->algorithm;
    if (op->kind != DT_COMM_ALL_REDUCE && op->kind != DT_COMM_REDUCE)
        wrong = "only all-reduce and reduce support it";
    else if (!c->leaves)
        wrong = "call dt_comm_set_leaves first";
    else if (dti_coll_overlap(c) == DTI_SAME && dti_in_dtype(c) != op->dtype)
        wrong = ".in and .out must be different buffers, as partial sums have another type than "
                "the result";
    else if (op->algorithm)
        wrong = dti_algorithm_tree_lacks(c, op->algorithm);
    else if (op->kind == DT_COMM_ALL_REDUCE && c->costs && op->count)
        *chosen = dti_algorithm_by_cost(c, DT_COMM_ALGORITHM_DIRECT);
    else if (op->kind == DT_COMM_ALL_REDUCE && dti_hosts_pay(c) && dti_leaves_alike(c))
        *chosen = DT_COMM_ALGORITHM_HIERARCHICAL;
    else
        *chosen = DT_COMM_ALGORITHM_DIRECT;
    if (*wrong)
        dti_algorithm_refuse(base, c, wrong);
    return !*wrong;
}

/* "all-gather has no algorithm halving; it has direct, ring" */
static void dti_algorithm_unknown(dti_base *base, const dti_collective *c) {
    char has[96] = "";
    const char *name = dti_algorithm_name(c->op.algorithm);
    for (int i = DT_COMM_ALGORITHM_DIRECT; i < DTI_ALGORITHMS; i++) {
        if (!dti_algorithm_of(c->op.kind, (dt_comm_algorithm)i))
            continue;
        size_t used = strlen(has);
        snprintf(has + used, sizeof has - used, "%s%s", used ? ", " : "",
                 dti_algorithm_name((dt_comm_algorithm)i));
    }
    dti_fail(base, DT_ERROR_INVALID, "%s: .algorithm is %s; it must be %s",
             dti_kind_name(c->op.kind), name ? name : "?", has);
}

static dti_algorithm_fn *dti_algorithm_choose(dti_base *base, const dti_collective *c,
                                              dt_comm_algorithm *chosen) {
    if ((unsigned)c->op.kind >= DTI_KINDS)
        return dti_algorithm_refuse(base, c, "unknown operation");
    *chosen = c->op.algorithm;
    if (c->op.tree) {
        if (!dti_algorithm_choose_tree(base, c, chosen))
            return NULL;
    } else if (!c->op.algorithm)
        *chosen = dti_algorithm_default(c);
    dti_algorithm_fn *fn = dti_algorithm_of(c->op.kind, *chosen);
    if (!fn)
        dti_algorithm_unknown(base, c);
    else if (*chosen == DT_COMM_ALGORITHM_HIERARCHICAL && !dti_hosts_fit(c))
        return dti_algorithm_refuse(
            base, c,
            ".algorithm HIERARCHICAL requires several hosts, each with the same even number of "
            "consecutive ranks; .local_rank and .local_size say otherwise");
    return fn;
}
