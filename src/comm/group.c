/* Agreements of all ranks of a comm: groups, and the leaves of tree sums. Every rank learns all
 * ranks' three numbers by an all-gather, and reaches the same result. A rank with a wrong argument
 * takes part too, or the others would wait for it. It never makes half a group: if one rank has no
 * memory for it, no rank makes it.
 *
 * Cost: an all-gather of 24 bytes a rank for leaves, two for a group.
 *
 * Ids of groups: each rank keeps a lower bound of the next id in its root comm. A new group gets
 * the largest bound among the parent's ranks. So two groups that share a rank have different ids,
 * although ranks outside the parent do not know them. */

#define DTI_VOTE 3

static dt_result dti_comm_vote(dt_comm *comm, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t *mine = comm->votes + DTI_VOTE * comm->rank;
    mine[0] = a, mine[1] = b, mine[2] = c;
    return dt_comm_all_gather(comm, mine, comm->votes, DTI_VOTE, DT_I64);
}

/* Ascending ranks of the parent. */
static dt_result dti_group_check_list(dt_comm *parent, const int *ranks, int count) {
    if (count < 1 || count > (int)parent->size || !ranks)
        return dti_fail(parent->base, DT_ERROR_INVALID,
                        "dt_comm_group_create: count is %d%s; it must be from 1 to %d", count,
                        ranks ? "" : " and ranks is NULL", (int)parent->size);
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= (int)parent->size)
            return dti_fail(parent->base, DT_ERROR_INVALID,
                            "dt_comm_group_create: ranks[%d] is %d; it must be from 0 to %d", i,
                            ranks[i], (int)parent->size - 1);
        if (i && ranks[i] <= ranks[i - 1])
            return dti_fail(
                parent->base, DT_ERROR_INVALID,
                "dt_comm_group_create: ranks[%d] is %d after %d; sort them in ascending order", i,
                ranks[i], ranks[i - 1]);
    }
    return DT_OK;
}

/* Reports a failure that ranks have voted third. */
static dt_result dti_group_failed(dt_comm *parent) {
    for (uint32_t r = 0; r < parent->size; r++) {
        dt_result failure = (dt_result)parent->votes[DTI_VOTE * r + 2];
        if (failure)
            return dti_fail(parent->base, DT_ERROR_MEMORY,
                            "dt_comm_group_create: rank %d failed: %s", (int)r,
                            dt_result_text(failure));
    }
    return DT_OK;
}

/* All ranks must have given the same list. hash 0: this one's is wrong. Always moves the id on.
 * `failed`: this rank cannot make it. */
static dt_result dti_group_agree(dt_comm *parent, dt_comm *root, uint64_t hash, dt_result failed,
                                 uint32_t *id) {
    DTI_TRY(dti_comm_vote(parent, hash, root->next_group, (uint64_t)failed));
    const uint64_t *votes = parent->votes;
    uint32_t other = parent->size;
    for (uint32_t r = parent->size; r-- > 0;) {
        root->next_group = DTI_MAX(root->next_group, (uint32_t)votes[DTI_VOTE * r + 1]);
        if (hash && votes[DTI_VOTE * r] != hash)
            other = r;
    }
    *id = root->next_group++;
    if (other == parent->size)
        return dti_group_failed(parent);
    return dti_fail(parent->base, DT_ERROR_MISMATCH,
                    "dt_comm_group_create: the list of ranks given by rank %d %s rank %d",
                    (int)other,
                    votes[DTI_VOTE * other] ? "differs from that of" : "is not valid; this is",
                    (int)parent->rank);
}

/* Without a transport. NULL: not in the list, or *result is the error. */
static dt_comm *dti_group_make(dt_comm *parent, const int *ranks, int count, dt_result *result) {
    int at = 0;
    while (at < count && ranks[at] != (int)parent->rank)
        at++;
    if (at == count)
        return NULL;
    dt_comm *child = dti_comm_new(parent->base, parent, (uint32_t)at, (uint32_t)count);
    if (!child) {
        *result = DT_ERROR_MEMORY;
        return NULL;
    }
    for (int i = 0; i < count; i++)
        child->ranks[i] = parent->ranks ? parent->ranks[ranks[i]] : (uint32_t)ranks[i];
    return child;
}

static void dti_group_undo(dt_comm *child) {
    if (!child)
        return;
    dti_comm_end(child);
    dti_comm_free(child);
}

DTI_PUBLIC_OUT(dt_comm_group_create, (dt_comm * parent, const int *ranks, int count, dt_comm **out),
               parent, DTI_OF(dt_comm), (parent, ranks, count, out)) {
    DTI_TRY(dti_comm_enter(parent));
    dt_comm *root = dti_comm_root(parent);
    /* A rank with a wrong list takes part, or the others would wait for it. */
    dt_result mine = dti_group_check_list(parent, ranks, count);
    uint64_t hash = 0;
    dt_comm *child = NULL;
    if (!mine)
        hash = 1 | dti_hash64(14695981039346656037u, ranks, sizeof *ranks * (size_t)count);
    dt_result failed = DT_OK;
    if (!mine)
        child = dti_group_make(parent, ranks, count, &failed);
    uint32_t id = 0;
    dt_result result = dti_group_agree(parent, root, hash, failed, &id);
    if (!result && !mine) {
        /* A group is not made if one of its ranks has no memory for it. */
        if (child) {
            child->group_id = id;
            mine = parent->transport->group(parent, child);
            child->transport = mine ? NULL : parent->transport;
        }
        result = dti_comm_vote(parent, 0, 0, (uint64_t)mine);
        if (!result && !mine)
            result = dti_group_failed(parent);
    }
    if (result || mine) {
        dti_group_undo(child);
        return mine ? mine : result;
    }
    *out = child;
    return DT_OK;
}

/* ---- leaves */

/* Checks the spans of all ranks, from the votes. All ranks find the same error. */
static dt_result dti_leaves_check(dt_comm *comm) {
    const uint64_t *votes = comm->votes;
    uint64_t total = votes[1], next = 0;
    for (uint32_t r = 0; r < comm->size; r++) {
        const uint64_t *vote = votes + DTI_VOTE * r;
        uint64_t first = vote[0] >> 32, count = vote[0] & UINT32_MAX;
        if (vote[2])
            return dti_fail(
                comm->base, DT_ERROR_INVALID,
                "dt_comm_set_leaves: rank %d has operations in progress; wait for them first",
                (int)r);
        if (vote[1] != total)
            return dti_fail(
                comm->base, DT_ERROR_MISMATCH,
                "dt_comm_set_leaves: total is %u on rank %d and %u on rank 0; give the same on all",
                (unsigned)vote[1], (int)r, (unsigned)total);
        if (first != next)
            return dti_fail(comm->base, DT_ERROR_INVALID,
                            "dt_comm_set_leaves: rank %d has first = %u, but the leaves of the "
                            "ranks before it end at %llu",
                            (int)r, (unsigned)first, (unsigned long long)next);
        next += count;
    }
    if (!total || next != total)
        return dti_fail(
            comm->base, DT_ERROR_INVALID,
            "dt_comm_set_leaves: the leaves of rank %d end at %llu, but total is %llu%s",
            (int)comm->size - 1, (unsigned long long)next, (unsigned long long)total,
            total ? "" : "; it must be at least 1");
    return DT_OK;
}

DTI_PUBLIC(dt_comm_set_leaves,
           (dt_comm * comm, uint32_t first, uint32_t count, uint32_t total, int *buffers,
            dt_comm_span spans[64]),
           comm, DTI_OF(dt_comm) | DTI_LACKING, (comm, first, count, total, buffers, spans)) {
    if (buffers)
        *buffers = 0;
    DTI_TRY(dti_comm_enter(comm));
    bool busy = comm->pending > 0;
    DTI_TRY(dti_comm_vote(comm, (uint64_t)first << 32 | count, total, busy));
    DTI_TRY(dti_leaves_check(comm));
    comm->leaves = (dt_comm_span *)(void *)(comm->votes + DTI_VOTE * comm->size);
    for (uint32_t r = 0; r < comm->size; r++) {
        uint64_t vote = comm->votes[DTI_VOTE * r];
        comm->leaves[r] = (dt_comm_span){(uint32_t)(vote >> 32), (uint32_t)vote};
    }
    comm->leaf_total = total;
    comm->leaf_changes++;
    dt_comm_span unused[64];
    int made = (int)dti_tree_spans(first, count, total, spans ? spans : unused);
    if (buffers)
        *buffers = made;
    return DT_OK;
}
