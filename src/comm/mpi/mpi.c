/* The transport over an MPI library, for sites whose fabric only MPI can use; compiled under
 * DT_WITH_MPI, with mpicc. It owns the handles of operations, the groups, and the start and the end
 * of MPI. mpi_op.c maps an operation to MPI's; the library moves the bytes. It refuses tree mode
 * and algorithms by name, as the library chooses its own.
 *
 * MPI does not report that a rank has ended the group or left, so ranks inform each other. A rank
 * has left if the others did not follow within 2 s. MPI does not report which rank has not posted
 * an operation, so this transport cannot either. It finds different operations only if MPI finds a
 * message too long. mpirun notices a rank that dies, and ends all. */

#ifndef DT_WITH_MPI

DTI_ABSENT(dt_result, dti_mpi_enter, (dti_base * base, dt_comm_desc *d, bool ask, bool *owns),
           dti_fail(base, DT_ERROR_UNSUPPORTED,
                    ".transport is DT_COMM_MPI; compile dtrain with mpicc and DT_WITH_MPI, or use "
                    "DT_COMM_TCP, which works under mpirun too"));

DTI_ABSENT(void, dti_mpi_leave, (bool owns), );
DTI_ABSENT(dt_result, dti_comm_open_mpi, (dt_comm * comm, const dt_comm_desc *desc, bool owns),
           dti_fail(comm->base, DT_ERROR_UNSUPPORTED, "this build has no MPI transport"));

#else

#define DTI_MPI_LEAVE_NS 2000000000u /* the most time of dt_comm_destroy */

/* A free record with enough scratch, or the last free one, or a new one. */
static dti_mpi_op *dti_mpi_find_free(dti_mpi *m, size_t need, size_t *index) {
    dti_mpi_op *best = NULL;
    for (size_t i = 0; i < m->op_count; i++) {
        dti_mpi_op *o = m->ops[i];
        bool better = !best || (best->room < need ? o->room > best->room
                                                  : o->room >= need && o->room < best->room);
        if (o->state == DTI_MPI_FREE && better)
            best = o, *index = i;
    }
    if (best)
        return best;
    if (m->op_count >> 24 || !DTI_RESERVE(m->base, m->ops, m->op_room, m->op_count + 1))
        return NULL;
    best = dti_alloc(m->base, sizeof *best);
    if (best)
        *index = m->op_count, m->ops[m->op_count++] = best;
    return best;
}

/* Cuts `plan`, which has the operation, into chunks. */
static void dti_mpi_plan(dti_mpi_op *plan) {
    const dt_comm_op *op = &plan->op;
    dti_mpi_choose_types(plan);
    uint64_t blocks = dti_kind_has_blocks(op->kind) ? plan->group->comm->size : 1;
    uint64_t most = DTI_MAX(DTI_MPI_CHUNK / (blocks * plan->width), 1);
    plan->chunk_elements = DTI_MAX(DTI_MIN(most, op->count), 1);
    plan->chunks = op->count / plan->chunk_elements + (op->count % plan->chunk_elements != 0);
    plan->slot_bytes =
        (size_t)(dti_mpi_scratch_blocks(plan) * plan->chunk_elements * plan->width + 63) / 64 * 64;
    if (op->kind == DT_COMM_BARRIER)
        plan->chunks = 1;
}

static dti_mpi_op *dti_mpi_take(dti_mpi *m, dti_mpi_op *plan, uint64_t *id) {
    size_t index = 0, need = (size_t)DTI_MIN(plan->chunks, DTI_MPI_WINDOW) * plan->slot_bytes;
    dti_mpi_op *o = dti_mpi_find_free(m, need, &index);
    if (o && o->room < need) {
        dti_free(m->base, o->scratch);
        o->scratch = dti_alloc(m->base, need);
        o->room = o->scratch ? need : 0;
    }
    if (!o || o->room < need)
        return NULL;
    plan->scratch = o->scratch, plan->room = o->room, plan->use = o->use + 1;
    *o = *plan;
    *id = o->use << 24 | index;
    return o;
}

static dt_result dti_mpi_begin(dt_comm *comm, const dt_comm_op *op, uint64_t *id) {
    dti_mpi_group *g = comm->state;
    dti_mpi *m = g->all;
    char text[DTI_COLL_TEXT];
    if (m->result)
        return dti_comm_revoked(comm, m->result, m->error);
    if (op->tree || op->algorithm)
        return dti_fail(comm->base, DT_ERROR_UNSUPPORTED, "%s: %s; leave it 0, or use DT_COMM_TCP",
                        dti_coll_text(op, text),
                        op->tree ? ".tree is set, but MPI sums in its own order"
                                 : ".algorithm is set, but MPI chooses its own");
    dti_mpi_op plan = {.group = g, .op = *op, .state = DTI_MPI_ACTIVE, .moved_at = dti_now_ns()};
    for (int k = 0; k < DTI_MPI_WINDOW; k++)
        plan.requests[k] = MPI_REQUEST_NULL;
    dti_mpi_plan(&plan);
    dti_mpi_op *o = dti_mpi_take(m, &plan, id), **end = &m->active;
    DTI_HAVE(o);
    while (*end)
        end = &(*end)->next;
    *end = o;
    dti_mpi_push(m, o, o->moved_at);
    if (!m->result && o->state == DTI_MPI_OVER)
        *end = NULL; /* count 0 */
    return DT_OK;
}

static dti_mpi_op *dti_mpi_find(dt_comm *comm, uint64_t id) {
    dti_mpi_group *g = comm->state;
    size_t index = (size_t)(id & 0xFFFFFF);
    dti_mpi_op *o = index < g->all->op_count ? g->all->ops[index] : NULL;
    bool open = o && (o->state == DTI_MPI_ACTIVE || o->state == DTI_MPI_OVER);
    if (open && o->group == g && o->use == id >> 24)
        return o;
    dti_comm_no_handle(comm, id);
    return NULL;
}

/* Whether MPI has let go of it. A receive is all that it can give up. */
static bool dti_mpi_is_quiet(dti_mpi_op *o) {
    bool quiet = true;
    for (int k = 0; k < DTI_MPI_WINDOW; k++) {
        int finished = 1;
        if (o->requests[k] != MPI_REQUEST_NULL && o->op.kind == DT_COMM_RECV)
            MPI_Cancel(&o->requests[k]);
        if (o->requests[k] != MPI_REQUEST_NULL)
            MPI_Test(&o->requests[k], &finished, MPI_STATUS_IGNORE);
        quiet = quiet && finished;
    }
    return quiet;
}

/* Ends the handle of an operation that is over. */
static dt_result dti_mpi_finish(dt_comm *comm, dti_mpi_op *o) {
    dt_result result = o->result;
    o->state = !result || dti_mpi_is_quiet(o) ? DTI_MPI_FREE : DTI_MPI_LOST;
    return result ? dti_fail(comm->base, result, "%s", o->group->all->error) : DT_OK;
}

static dt_result dti_mpi_wait(dt_comm *comm, uint64_t id, uint64_t timeout_ns) {
    dti_mpi_op *o = dti_mpi_find(comm, id);
    if (!o)
        return DT_ERROR_INVALID;
    uint64_t start = timeout_ns == UINT64_MAX ? 0 : dti_now_ns();
    for (int looks = 0;; looks += looks < INT_MAX) {
        if (o->state == DTI_MPI_ACTIVE)
            dti_mpi_pump(o->group->all);
        if (o->state == DTI_MPI_OVER)
            return dti_mpi_finish(comm, o);
        if (timeout_ns != UINT64_MAX && dti_now_ns() - start >= timeout_ns)
            return DT_ERROR_TIMEOUT;
        dti_mpi_pause(looks);
    }
}

static dt_result dti_mpi_cancel(dt_comm *comm, uint64_t id) {
    dti_mpi_op *o = dti_mpi_find(comm, id);
    char text[DTI_COLL_TEXT];
    if (!o)
        return DT_ERROR_INVALID;
    if (o->state == DTI_MPI_ACTIVE)
        dti_mpi_pump(o->group->all);
    if (o->state == DTI_MPI_ACTIVE)
        dti_mpi_end(o->group->all, DT_ERROR_CANCELLED, true, "rank %u cancelled %s",
                    (unsigned)comm->rank, dti_coll_text(&o->op, text));
    return dti_mpi_finish(comm, o);
}

static void dti_mpi_give_up(dt_comm *comm) {
    dti_mpi *m = ((dti_mpi_group *)comm->state)->all;
    dti_mpi_end(m, DT_ERROR_CANCELLED, true, "rank %u cancelled its step", (unsigned)m->rank);
}

static void dti_mpi_waits_for(dt_comm *comm, uint64_t id, char *text, size_t size) {
    dti_mpi_op *o = dti_mpi_find(comm, id);
    char what[DTI_COLL_TEXT];
    if (o)
        snprintf(text, size,
                 "%s: %llu of %llu parts are done; MPI does not report for which rank it waits",
                 dti_coll_text(&o->op, what), (unsigned long long)o->done,
                 (unsigned long long)o->chunks);
}

static void dti_mpi_info(const dt_comm *comm, dt_comm_info *info) {
    const dti_mpi *m = ((const dti_mpi_group *)comm->state)->all;
    info->bytes_sent = info->payload_bytes_sent = m->sent; /* without MPI's own bytes, which it does
                                                              not report */
    info->bytes_received = info->payload_bytes_received = m->received;
    for (size_t i = 0; i < m->op_count; i++)
        info->scratch_bytes += m->ops[i]->state == DTI_MPI_ACTIVE ? m->ops[i]->room : 0;
}

/* ---- coming and going */

/* Blocks until all of the group are here; they are, for they have just agreed to make it. */
static dt_result dti_mpi_group_open(dt_comm *parent, dt_comm *child) {
    dti_mpi *m = ((dti_mpi_group *)parent->state)->all;
    dti_mpi_group made = {.all = m, .comm = child};
    const int *ranks = (const int *)(const void *)child->ranks;
    MPI_Group world, members;
    MPI_Comm_group(m->world.mpi, &world);
    MPI_Group_incl(world, (int)child->size, ranks, &members);
    int tag = (int)(child->group_id & 0x7FFF);
    bool ok = dti_mpi_ok(m, MPI_Comm_create_group(m->world.mpi, members, tag, &made.mpi),
                         "MPI_Comm_create_group");
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    if (!ok)
        return dti_fail(parent->base, m->result, "%s", m->error);
    dti_mpi_group *g = child->state = dti_alloc(child->base, sizeof *g);
    if (!g) {
        MPI_Comm_free(&made.mpi);
        return DT_ERROR_MEMORY;
    }
    *g = made;
    return DT_OK;
}

/* Operations of this rank in the group that are not finished end all. */
static void dti_mpi_abandon(dt_comm *comm) {
    dti_mpi_group *g = comm->state;
    dti_mpi *m = g->all;
    char text[DTI_COLL_TEXT];
    dti_mpi_pump(m);
    for (const dti_mpi_op *o = m->active; o; o = o->next)
        if (o->group == g) {
            dti_mpi_end(m, DT_ERROR_PEER_LOST, true, "rank %u left the group in %s",
                        (unsigned)comm->rank, dti_coll_text(&o->op, text));
            break;
        }
    for (size_t i = 0; i < m->op_count; i++)
        if (m->ops[i]->state == DTI_MPI_OVER && m->ops[i]->group == g)
            m->ops[i]->state = dti_mpi_is_quiet(m->ops[i]) ? DTI_MPI_FREE : DTI_MPI_LOST;
}

/* Whether MPI holds no memory of ours except the receive buffer; of `g` only, or NULL: of all. */
static bool dti_mpi_all_quiet(dti_mpi *m, const dti_mpi_group *g) {
    bool quiet = true;
    for (size_t i = 0; i < m->op_count; i++) {
        dti_mpi_op *o = m->ops[i];
        if (o->state == DTI_MPI_LOST && (!g || o->group == g) && dti_mpi_is_quiet(o))
            o->state = DTI_MPI_FREE;
        quiet = quiet && (o->state != DTI_MPI_LOST || (g && o->group != g));
    }
    for (uint32_t i = 0; !g && i < 2 * m->size; i++) {
        int finished = 1;
        if (m->telling[i] != MPI_REQUEST_NULL)
            MPI_Test(&m->telling[i], &finished, MPI_STATUS_IGNORE);
        quiet = quiet && finished;
    }
    return quiet;
}

/* All ranks leave together, or those that stay are informed. The rank that must finalise MPI stays
 * with them, unless the group has ended. True when MPI holds no memory any more. */
static bool dti_mpi_part_ways(dti_mpi *m) {
    MPI_Request request = MPI_REQUEST_NULL;
    uint64_t start = dti_now_ns();
    int together = 0;
    bool told = false;
    if (MPI_Ibarrier(m->control, &request) != MPI_SUCCESS)
        return false;
    for (int looks = 0;; looks += looks < INT_MAX) {
        if (!together)
            MPI_Test(&request, &together, MPI_STATUS_IGNORE);
        if (dti_mpi_all_quiet(m, NULL) && together)
            return true;
        bool over = dti_now_ns() - start >= DTI_MPI_LEAVE_NS;
        if (over && (m->result || !m->owns) && (told || m->result))
            return false;
        if (over && !told && !m->result)
            dti_mpi_tell(m, 1, DT_OK, "");
        told = told || over;
        if (!m->result)
            dti_mpi_hear(m, dti_now_ns());
        dti_mpi_pause(looks);
    }
}

static void dti_mpi_free_state(dti_mpi *m) {
    dti_base *base = m->base;
    for (size_t i = 0; i < m->op_count; i++) {
        DTI_FREE(base, m->ops[i]->scratch, m->ops[i]);
    }
    DTI_FREE(base, m->ops, m->left_at, m->telling, m);
}

static void dti_mpi_close(dt_comm *comm) {
    dti_mpi_group *g = comm->state;
    dti_mpi *m = g->all;
    dti_mpi_abandon(comm);
    comm->state = NULL;
    if (g != &m->world) {
        if (dti_mpi_all_quiet(m, g) && !m->result)
            MPI_Comm_free(&g->mpi);
        dti_free(m->base, g);
        return;
    }
    bool clean = dti_mpi_part_ways(m);
    if (m->hearing != MPI_REQUEST_NULL) {
        MPI_Cancel(&m->hearing);
        MPI_Wait(&m->hearing, MPI_STATUS_IGNORE);
    }
    if (!clean) {
        dti_log(m->base, DT_LOG_WARNING,
                "MPI still has operations that other ranks did not join, so their memory is not "
                "freed%s",
                m->owns ? ", and it is not finalised" : "");
        return;
    }
    MPI_Comm_free(&m->world.mpi);
    MPI_Comm_free(&m->control);
    MPI_Op_free(&m->least);
    MPI_Op_free(&m->most);
    bool owns = m->owns;
    dti_mpi_free_state(m);
    dti_mpi_leave(owns);
}

static const dti_transport dti_mpi_transport = {
    .name = "mpi",
    .begin = dti_mpi_begin,
    .wait = dti_mpi_wait,
    .cancel = dti_mpi_cancel,
    .give_up = dti_mpi_give_up,
    .waits_for = dti_mpi_waits_for,
    .group = dti_mpi_group_open,
    .info = dti_mpi_info,
    .close = dti_mpi_close,
};

static dt_result dti_mpi_enter(dti_base *base, dt_comm_desc *d, bool ask, bool *owns) {
    int there = 0, over = 0, level = 0, rank = 0, size = 1, main_thread = 1;
    MPI_Finalized(&over);
    if (over)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "MPI has been finalised and cannot be initialised again in this process "
                        "(if dtrain initialised it, by dt_comm_destroy); call MPI_Init_thread "
                        "before the first dt_comm_create, and MPI_Finalize after the last");
    MPI_Initialized(&there);
    if (!there && MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return dti_fail(base, DT_ERROR_IO, "MPI_Init_thread failed");
    *owns = !there;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&main_thread);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (level < MPI_THREAD_SERIALIZED && !main_thread)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "MPI was initialised for its main thread only, and this is another thread; "
                        "use MPI_Init_thread with MPI_THREAD_SERIALIZED or MULTIPLE");
    if (!ask && (d->rank != rank || d->world_size != size))
        return dti_fail(base, DT_ERROR_INVALID,
                        ".rank is %d of .world_size %d, but MPI reports rank %d of %d; start with "
                        "the mpirun of this MPI library",
                        d->rank, d->world_size, rank, size);
    d->rank = rank, d->world_size = size;
    return DT_OK;
}

static void dti_mpi_leave(bool owns) {
    if (owns)
        MPI_Finalize();
}

/* NULL: no memory. */
static dti_mpi *dti_mpi_new(dt_comm *comm, const dt_comm_desc *d) {
    dti_base *base = comm->base;
    dti_mpi *m = dti_alloc(base, sizeof *m);
    if (!m)
        return NULL;
    m->base = base, m->rank = comm->rank, m->size = comm->size;
    m->op_ns = (uint64_t)d->op_timeout_ms * 1000000u;
    m->silence_ns = (uint64_t)d->silence_ms * 1000000u;
    m->world = (dti_mpi_group){.all = m, .comm = comm};
    m->hearing = MPI_REQUEST_NULL;
    m->telling = dti_alloc_array(base, m->size, 2 * sizeof *m->telling);
    m->left_at = dti_alloc_array(base, m->size, sizeof *m->left_at);
    if (!m->telling || !m->left_at) {
        dti_mpi_free_state(m);
        return NULL;
    }
    for (uint32_t i = 0; i < 2 * m->size; i++)
        m->telling[i] = MPI_REQUEST_NULL;
    return m;
}

static dt_result dti_comm_open_mpi(dt_comm *comm, const dt_comm_desc *desc, bool owns) {
    MPI_Comm made[2];
    dti_mpi *m = dti_mpi_new(comm, desc);
    int mine = m != NULL, all = 0;
    for (int i = 0; i < 2; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &made[i]);
        MPI_Comm_set_errhandler(made[i], MPI_ERRORS_RETURN);
    }
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, made[0]); /* if one cannot, none does */
    if (!all) {
        for (int i = 0; i < 2; i++)
            MPI_Comm_free(&made[i]);
        if (m)
            dti_mpi_free_state(m);
        return dti_fail(comm->base, DT_ERROR_MEMORY, "out of host memory on %s rank",
                        mine ? "another" : "this");
    }
    m->owns = owns;
    m->world.mpi = made[0], m->control = made[1];
    MPI_Op_create(dti_mpi_least, 0, &m->least);
    MPI_Op_create(dti_mpi_most, 0, &m->most);
    MPI_Irecv(&m->heard, (int)sizeof m->heard, MPI_BYTE, MPI_ANY_SOURCE, 0, m->control,
              &m->hearing);
    comm->state = &m->world;
    comm->transport = &dti_mpi_transport;
    return DT_OK;
}

#endif
