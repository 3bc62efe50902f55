/* The transport over TCP, apart from moving bytes: opening and closing it, its groups, and its
 * info. tcp.c has the rest. */

#if DTI_TCP

static void dti_tcp_give_up(dt_comm *comm) {
    dti_tcp *t = dti_tcp_enter(comm);
    dti_core_suspect(&t->core, DT_ERROR_CANCELLED, t->core.set.rank, "rank %u cancelled its step",
                     t->core.set.rank);
    dti_tcp_flush(t);
    dti_mutex_unlock(&t->lock);
}

/* "rank 3 has not posted it, rank 5 has posted it". */
static void dti_tcp_waits_for(dt_comm *comm, uint64_t id, char *text, size_t size) {
    dti_tcp *t = dti_tcp_enter(comm);
    const dti_flight *f = dti_tcp_flight(t, id);
    size_t used = 0;
    text[0] = 0;
    for (uint32_t place = 0; f && place < f->group->size && used + 40 < size; place++) {
        if (!dti_flight_needs(&t->core, f, f->group->ranks[place]))
            continue;
        bool posted = f->peer_state[place] & DTI_PEER_POSTED;
        used += (size_t)snprintf(text + used, size - used, "%srank %u %s posted it",
                                 used ? ", " : "", place, posted ? "has" : "has not");
    }
    dti_mutex_unlock(&t->lock);
}

/* The facts for choosing algorithms, for callers that do not post. */
static void dti_tcp_know_hosts(dt_comm *comm, const dti_tcp_group *g) {
    comm->local = g->group->local;
    comm->each = g->group->each;
    comm->costs = g->tcp->core.link.latency_ns ? &g->tcp->core.costs : NULL;
}

static dt_result dti_tcp_make_group(dt_comm *parent, dt_comm *child) {
    dti_tcp *t = ((dti_tcp_group *)parent->state)->tcp;
    dti_tcp_group *g = dti_alloc(t->base, sizeof *g);
    DTI_HAVE(g);
    dti_mutex_lock(&t->lock);
    *g = (dti_tcp_group){t, dti_group_new(&t->core, child->group_id, child->ranks, child->size)};
    dti_mutex_unlock(&t->lock);
    if (!g->group) {
        dti_free(t->base, g);
        return DT_ERROR_MEMORY;
    }
    child->state = g;
    dti_tcp_know_hosts(child, g);
    return DT_OK;
}

static void dti_tcp_info(const dt_comm *comm, dt_comm_info *info) {
    dti_tcp *t = dti_tcp_enter(comm);
    const dti_core *c = &t->core;
    info->bytes_sent = c->bytes_sent;
    info->bytes_received = c->bytes_received;
    info->payload_bytes_sent = c->payload_bytes_sent;
    info->payload_bytes_received = c->payload_bytes_received;
    info->link = c->link;
    info->local_link = c->local_link;
    info->link_measured = c->link.latency_ns && c->set.link_source == DTI_LINK_MEASURED;
    info->window = (int)c->window;
    info->scratch_bytes = c->pool_bytes;
    info->resets = c->resets;
    for (uint32_t i = 0; i < c->flights_made; i++)
        info->scratch_bytes += c->flights[i]->work_room;
    dti_mutex_unlock(&t->lock);
}

/* ---- links */

static bool dti_tcp_measures(dt_comm *comm) {
    dti_tcp *t = dti_tcp_enter(comm);
    const dti_core *c = &t->core;
    t->joined[0] = c->bytes_sent, t->joined[1] = c->bytes_received;
    t->joined[2] = c->payload_bytes_sent, t->joined[3] = c->payload_bytes_received;
    bool measures = c->set.link_source == DTI_LINK_MEASURED;
    dti_mutex_unlock(&t->lock);
    return measures;
}

static void dti_tcp_link(dt_comm *comm, const dt_comm_link *network, const dt_comm_link *local) {
    dti_tcp *t = dti_tcp_enter(comm);
    dti_core *c = &t->core;
    dti_core_link_costs(c, network, local);
    c->bytes_sent = t->joined[0], c->bytes_received = t->joined[1];
    c->payload_bytes_sent = t->joined[2], c->payload_bytes_received = t->joined[3];
    comm->costs = &c->costs;
    dti_mutex_unlock(&t->lock);
}

/* ---- joining and leaving */

static void dti_tcp_free(dti_tcp *t) {
    dti_core_destroy(&t->core);
    dti_tls_free(t->tls);
    dti_key_forget(&t->share);
    dti_rendezvous_close(&t->rendezvous);
    DTI_FREE(t->base, t->polls[0], t->polled[0], t->polls[1], t->polled[1]);
    dti_wake_close(t->wake);
    dti_wake_close(t->nudge);
    dti_descriptor_give_up(&t->reserve);
    dti_descriptor_give_up(&t->local);
    if (t->sockets)
        dti_sockets_end();
    if (t->locked_made)
        dti_mutex_destroy(&t->lock);
    DTI_FREE(t->base, t->conns, t->active, t->local_failed);
    dti_wipe(&t->desc, sizeof t->desc);
    dti_free(t->base, t);
}

static void dti_tcp_close(dt_comm *comm) {
    dti_tcp_group *g = comm->state;
    dti_tcp *t = g->tcp;
    dti_base *base = t->base;
    if (comm->parent) {
        dti_tcp_enter(comm);
        dti_group_free(&t->core, g->group);
        dti_tcp_flush(t);
        dti_mutex_unlock(&t->lock);
        dti_free(base, g);
        return;
    }
    dti_tcp_thread_stop(t);
    dti_tcp_enter(comm);
    /* Reports this rank's finding before its connections end, which would look like a loss. */
    while (t->core.state == DTI_CORE_SUSPECT) {
        dti_tcp_look(t, dti_ms_until(dti_core_deadline(&t->core)));
        dti_core_tick(&t->core, dti_now_ns());
    }
    dti_core_leave(&t->core);
    dti_tcp_flush(t);
    while (!dti_core_is_gone(&t->core))
        dti_tcp_attend(t);
    dti_mutex_unlock(&t->lock);
    dti_tcp_drain_notes(t);
    dti_tcp_free(t);
}

static const dti_transport dti_tcp_transport = {.name = "tcp",
                                                .begin = dti_tcp_begin,
                                                .wait = dti_tcp_wait,
                                                .cancel = dti_tcp_cancel,
                                                .give_up = dti_tcp_give_up,
                                                .waits_for = dti_tcp_waits_for,
                                                .group = dti_tcp_make_group,
                                                .info = dti_tcp_info,
                                                .measures = dti_tcp_measures,
                                                .link = dti_tcp_link,
                                                .close = dti_tcp_close};

static void dti_tcp_settings(const dt_comm_desc *d, dti_settings *set) {
    set->rank = (uint32_t)d->rank;
    set->size = (uint32_t)d->world_size;
    set->local_rank = (uint32_t)d->local_rank;
    set->local_size = (uint32_t)d->local_size;
    set->chunk_bytes = (uint64_t)d->chunk_bytes;
    set->window = (uint32_t)d->window;
    set->sockets = (uint32_t)d->sockets;
    set->attempt = d->attempt;
    set->join_ns = (uint64_t)d->join_timeout_ms * 1000000;
    set->silence_ns = (uint64_t)d->silence_ms * 1000000;
    set->op_ns = (uint64_t)d->op_timeout_ms * 1000000;
    set->integrity = (uint8_t)d->integrity;
    set->link = d->link;
    set->link_source = (uint8_t)(d->no_link           ? DTI_LINK_OFF
                                 : d->link.latency_ns ? DTI_LINK_GIVEN
                                                      : DTI_LINK_MEASURED);
    memcpy(set->job, d->job, sizeof set->job);
}

static bool dti_tcp_memory(dti_tcp *t) {
    uint32_t links = t->core.link_count;
    t->conns = dti_alloc_array(t->base, links, sizeof *t->conns);
    t->active = dti_alloc_array(t->base, links, sizeof *t->active);
    for (int i = 0; i < 2; i++) {
        t->polls[i] = dti_alloc_array(t->base, links + DTI_ADDRESSES_MAX + 2, sizeof **t->polls);
        t->polled[i] = dti_alloc_array(t->base, links, sizeof **t->polled);
        if (!t->polls[i] || !t->polled[i])
            return false;
    }
    for (uint32_t i = 0; t->conns && i < links; i++)
        t->conns[i].fd = t->conns[i].memory = -1;
    t->local_failed = dti_alloc_array(t->base, t->core.set.size, sizeof *t->local_failed);
    return t->conns && t->active && t->local_failed;
}

static dt_result dti_tcp_pipe(dti_tcp *t) {
    t->sockets = dti_sockets_begin();
    if (!t->sockets || !dti_wake_open(t->wake) || !dti_wake_open(t->nudge))
        return dti_fail(t->base, DT_ERROR_IO, "pipe: %s", dti_socket_text(errno));
    t->reserve = dti_descriptor_reserve();
    (void)dti_cpu_set_get(&t->processors); /* where it is not known, there is no shared memory */
    t->host_processors = t->processors;
    dti_mutex_init(&t->lock);
    t->locked_made = true;
    return DT_OK;
}

/* Drives the core on the application's thread until all ranks have joined. */
static dt_result dti_tcp_join(dti_tcp *t) {
    dti_mutex_lock(&t->lock);
    dti_tcp_try_all(t);
    while (t->core.state == DTI_CORE_JOINING) {
        dti_tcp_attend(t);
        dti_mutex_unlock(&t->lock);
        dti_tcp_drain_notes(t);
        dti_mutex_lock(&t->lock);
    }
    bool joined = t->core.state == DTI_CORE_OPEN;
    dt_result result = joined ? DT_OK : dti_core_error(&t->core, t->core.result);
    dti_mutex_unlock(&t->lock);
    return result;
}

static dt_result dti_tcp_start(dti_tcp *t) {
    dti_settings set = {0};
    dt_result result = dti_tcp_pipe(t);
    if (!result)
        result = dti_congestion_try(t->base, t->desc.congestion);
    if (!result)
        result = dti_rendezvous_open(t->base, &t->rendezvous, set.key, &set.keyed, &t->share);
    dti_congestion_listeners(t);
    if (!result && t->desc.integrity == DT_COMM_TLS)
        result = dti_tls_new(t->base, &t->desc, set.key, &t->tls);
    t->wire = &dti_conn_wire;
    if (!result)
        result = dti_tcp_listen_local(t);
    if (result) {
        dti_wipe(&set, sizeof set);
        return result;
    }
    uint8_t address[DTI_ADDRESS_BYTES];
    uint32_t bytes = dti_addresses_pack(&t->rendezvous.own, address);
    if (t->host_known)
        bytes += dti_local_pack(t->host, t->local_name, address + bytes);
    dti_tcp_settings(&t->desc, &set);
    set.guessed = dti_rendezvous_is_guessed(&t->rendezvous);
    set.join_ns = dti_rendezvous_left_ns(&t->rendezvous);
    /* The core asks for a connection at once: its table must be there. */
    t->core.set = set;
    t->core.link_count = dti_core_link_count(&set);
    DTI_HAVE(dti_tcp_memory(t));
    bool made =
        dti_core_create(&t->core, t->base, &set, &dti_tcp_io, t, address, bytes, dti_now_ns());
    dti_wipe(&set, sizeof set);
    if (!made)
        return t->base->result;
    result = dti_tcp_join(t);
    dti_key_forget(&t->share);
    dti_rendezvous_done(&t->rendezvous);
    if (!result && !dti_tcp_thread_start(t))
        result = dti_fail(t->base, DT_ERROR_MEMORY, "the system provides no thread");
    return result;
}

static dt_result dti_comm_open_tcp(dt_comm *comm, const dt_comm_desc *desc) {
    dti_tcp *t = dti_alloc(comm->base, sizeof *t);
    DTI_HAVE(t);
    t->base = comm->base;
    t->root.tcp = t;
    t->wake[0] = t->wake[1] = t->nudge[0] = t->nudge[1] = t->reserve = t->local = -1;
    t->desc = *desc;
    t->rendezvous.desc = &t->desc;
    comm->state = &t->root;
    comm->transport = &dti_tcp_transport;
    dt_result result = dti_tcp_start(t);
    if (!result) {
        t->root.group = t->core.groups;
        dti_tcp_know_hosts(comm, &t->root);
        return DT_OK;
    }
    if (t->core.base)
        dti_tcp_close(comm);
    else
        dti_tcp_free(t);
    comm->state = NULL;
    comm->transport = NULL;
    return result;
}

#else

DTI_ABSENT(dt_result, dti_comm_open_tcp, (dt_comm * comm, const dt_comm_desc *desc),
           dti_fail(comm->base, DT_ERROR_UNSUPPORTED,
                    "several processes require POSIX sockets; compile the implementation with "
                    "-std=gnu11, on a system that has them"));

#endif
