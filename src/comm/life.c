/* The memory of a dt_comm: a root's, or a group's. comm.c and the transport own its contents. */

static dt_comm *dti_comm_new(dti_base *base, dt_comm *parent, uint32_t rank, uint32_t size) {
    dt_comm *comm = dti_alloc(base, sizeof *comm);
    /* votes, and after them the room that `leaves` will point to: an agreement must not fail on one
     * rank only */
    uint64_t *votes = comm ? dti_alloc_array(base, size, 4 * sizeof *votes) : NULL;
    uint32_t *ranks = votes && parent ? dti_alloc_array(base, size, sizeof *ranks) : NULL;
    if (!votes || (parent && !ranks)) {
        DTI_FREE(base, votes, comm);
        return NULL;
    }
    comm->rank = rank, comm->size = size;
    comm->votes = votes, comm->ranks = ranks;
    comm->next_group = 1;
    comm->parent = parent;
    comm->base = base;
    if (parent) {
        comm->sibling = parent->children;
        parent->children = comm;
    } else {
        comm->own_base = *base;
        comm->own_base.at_home = dti_at_home_open();
        comm->base = &comm->own_base;
    }
    return comm;
}

static dt_comm *dti_comm_root(dt_comm *comm) {
    while (comm->parent)
        comm = comm->parent;
    return comm;
}

static dt_result dti_comm_revoked(dt_comm *comm, dt_result cause, const char *text) {
    dti_comm_root(comm)->cause = cause;
    return dti_fail(comm->base, DT_ERROR_REVOKED, "the group has ended: %s", text);
}

#ifndef DT_COMM_ONLY
static dt_result dti_comm_cause(dt_comm *comm, dt_result result, bool same) {
    dt_comm *root = comm ? dti_comm_root(comm) : NULL;
    if (root && result == DT_ERROR_REVOKED && root->cause && (same || !root->reported))
        result = root->cause;
    if (root)
        root->reported = true;
    return result;
}
#endif

static void dti_comm_free(dt_comm *comm) {
    dti_base *base = comm->base;
    for (dt_comm **at = comm->parent ? &comm->parent->children : NULL; at && *at;
         at = &(*at)->sibling)
        if (*at == comm) {
            *at = comm->sibling;
            break;
        }
    DTI_FREE(base, comm->ranks, comm->votes);
    if (!comm->parent)
        dti_base_end(base);
    dti_base last = *base; /* a root's own memory holds its base */
    if (!comm->parent)
        dti_at_home_close(last.at_home);
    dti_free(comm->parent ? base : &last, comm);
}

static dt_result dti_comm_no_handle(dt_comm *comm, uint64_t id) {
    return dti_fail(
        comm->base, DT_ERROR_INVALID,
        "handle %llu is not that of a pending operation; a handle can be waited for once",
        (unsigned long long)id);
}
