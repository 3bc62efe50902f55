/* Connections between ranks of one host. A rank also listens at a name of the system outside of the
 * network (socket_local.c). A rank of the same host tries that first. The handshake is the same.
 * With its PROOF the dialler passes memory, which the acceptor maps if the PROOF is right. From
 * then on all bytes of the link go through that memory (shm.c). The socket stays: its end is the
 * end of the other process, and a byte through it wakes a sleeper.
 *
 * If that is not available the ranks use TCP, and log it, unless shared memory is required. With
 * integrity TLS it is not used: TLS hides data from this host's processes too. */

#if DTI_TCP

/* ---- whether there is any */

static bool dti_tcp_wants_shared(const dti_tcp *t) {
    return t->desc.shared_memory != DT_COMM_SHARED_OFF && t->desc.integrity != DT_COMM_TLS;
}

/* Memory of the size that a connection takes can be had; else why not. */
static bool dti_tcp_try_memory(int *error) {
    dti_shm trial;
    int memory = dti_memfd_new(DTI_SHM_BYTES);
    bool ok = memory >= 0 && dti_shm_open(&trial, memory, 0);
    *error = errno;
    if (ok)
        dti_shm_close(&trial);
    if (memory >= 0)
        dti_socket_close(memory);
    return ok;
}

/* Listens for ranks of this host. */
static dt_result dti_tcp_listen_local(dti_tcp *t) {
    int error = 0;
    t->host_known = dti_boot_id(t->host);
    if (!dti_tcp_wants_shared(t))
        return DT_OK;
    if (!t->host_known)
        error = ENOSYS;
    else if (dti_tcp_try_memory(&error)) {
        error = dti_random_bytes(t->local_name, sizeof t->local_name) ? 0 : EIO;
        t->local = error ? -1 : dti_local_open(t->local_name, true);
        error = t->local < 0 && !error ? errno : error;
    }
    if (t->local >= 0)
        return DT_OK;
    memset(t->local_name, 0, sizeof t->local_name);
    if (t->desc.shared_memory == DT_COMM_SHARED_REQUIRED)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".shared_memory is DT_COMM_SHARED_REQUIRED (DTRAIN_SHARED_MEMORY), but "
                        "shared memory is not available: %s",
                        dti_socket_text(error));
#if DTI_SHARED
    dti_log(t->base, DT_LOG_WARNING,
            "no shared memory for the ranks of this host (%s); they use TCP",
            dti_socket_text(error));
#endif
    return DT_OK;
}

/* ---- making a connection */

/* Whether the link's peer is of this host, and its socket's name. */
static bool dti_conn_is_local(const dti_tcp *t, const dti_link *link, uint32_t peer,
                              uint8_t name[DTI_LOCAL_BYTES]) {
    const dti_peer *p = &t->core.peers[peer];
    return t->local >= 0 && link->channel == DTI_CHANNEL_DATA &&
           dti_local_unpack(p->address, p->address_bytes, t->host, name);
}

/* Publishes whether this process may read the other's memory, before the memory is the other's too.
 * Only with checksums: a rank that cancels gets its buffer back at once, and checksums find changed
 * data. */
static void dti_conn_borrows(const dti_tcp *t, dti_tcp_conn *c) {
    c->borrows = t->core.set.integrity == DT_COMM_CRC && dti_local_may_read(c->process);
    atomic_store(&c->shm.head->side[c->shm.side].reads, (uint32_t)c->borrows);
    dti_shm_tell_processors(&c->shm, &t->processors);
    c->noted = c->read = 0;
}

/* The other side's findings. */
static void dti_conn_heard(dti_tcp *t, dti_tcp_conn *c) {
    c->lends = atomic_load(&c->shm.head->side[1 - c->shm.side].reads) != 0;
    dti_shm_add_processors(&c->shm, &t->host_processors);
}

/* A connected socket, and memory to pass; -1: `why` says why, or is as it was when TCP is right. */
static int dti_conn_dial_local(dti_tcp *t, dti_tcp_conn *c, char why[160]) {
    static const uint8_t none[DTI_LOCAL_BYTES];
    uint8_t name[DTI_LOCAL_BYTES];
    const uint32_t peer = c->link->peer;
    const bool required = t->desc.shared_memory == DT_COMM_SHARED_REQUIRED;
    c->try_local = false;
    if (!dti_conn_is_local(t, c->link, peer, name) || (t->local_failed[peer] && !required))
        return -1;
    int fd = -1, memory = -1;
    if (memcmp(name, none, sizeof name) == 0)
        errno = 0;
    else if ((memory = dti_memfd_new(DTI_SHM_BYTES)) >= 0 && dti_shm_open(&c->shm, memory, 0))
        fd = dti_local_open(name, false);
    if (fd >= 0 && (c->process = dti_local_process(fd)) < 0) {
        dti_socket_close(fd);
        fd = -1;
        errno = EPERM;
    }
    if (fd >= 0) {
        c->memory = memory;
        dti_conn_borrows(t, c);
        return fd;
    }
    snprintf(why, 160, "no shared memory with rank %u: %s", peer,
             errno ? dti_socket_text(errno) : "it has none");
    dti_shm_close(&c->shm);
    if (memory >= 0)
        dti_socket_close(memory);
    if (!required && errno) /* it may be of another network namespace */
        dti_core_note(&t->core, DT_LOG_INFO, "%s; it uses TCP", why);
    t->local_failed[peer] = true;
    return -1;
}

/* True: data with this rank requires shared memory, which is missing; that ends the group. */
static bool dti_tcp_needs_shared(dti_tcp *t, const dti_link *link, uint32_t peer, const char *why) {
    uint8_t name[DTI_LOCAL_BYTES];
    if (t->desc.shared_memory != DT_COMM_SHARED_REQUIRED || link->probe ||
        !dti_conn_is_local(t, link, peer, name))
        return false;
    dti_core_suspect(&t->core, DT_ERROR_REFUSED, peer,
                     "rank %u requires shared memory with rank %u of its host, which failed (%s)",
                     t->core.set.rank, peer, why);
    return true;
}

static bool dti_conn_needs_shared(dti_tcp *t, dti_link *link, const char *why) {
    if (!dti_tcp_needs_shared(t, link, link->peer, why))
        return false;
    dti_core_closed(&t->core, link, why);
    return true;
}

/* The dialler has proved the key: its memory is mapped. */
static const char *dti_conn_accepts(void *user, dti_link *link) {
    dti_tcp_conn *c = link->conn;
    if (!c->local) /* its hello has its rank, which the proof covers */
        return dti_tcp_needs_shared(user, link, dti_get32(link->hello_in + 8),
                                    "it connected by TCP")
                   ? "this rank requires shared memory with ranks of its host"
                   : NULL;
    if (link->channel != DTI_CHANNEL_DATA)
        return "control connections must use TCP";
    if (!dti_shm_open(&c->shm, c->memory, 1))
        return "the memory that was passed cannot be mapped";
    dti_socket_close(c->memory);
    c->memory = -1;
    c->process = dti_local_process(c->fd);
    dti_conn_borrows(user, c);
    dti_conn_heard(user, c);
    return NULL;
}

/* It is over. One that never carried anything is not tried again. */
static void dti_conn_close_local(dti_tcp *t, dti_tcp_conn *c) {
    if (c->memory >= 0)
        dti_socket_close(c->memory);
    c->memory = -1;
    if (c->local && !c->shared && c->link->dialled && t->core.state <= DTI_CORE_OPEN &&
        !t->local_failed[c->link->peer]) {
        t->local_failed[c->link->peer] = true;
        dti_core_note(&t->core, DT_LOG_WARNING,
                      "no shared memory with rank %u, which refused the connection", c->link->peer);
    }
    t->shared_count -= c->shared;
    dti_shm_close(&c->shm);
    c->local = c->shared = c->gone = false;
}

/* ---- bytes */

/* Whether its bytes go through memory: when the link is open and the handshake is out. */
static bool dti_conn_is_shared(dti_tcp *t, dti_tcp_conn *c) {
    const dti_link *link = c->link;
    if (!c->shared && c->shm.head && link->state == DTI_LINK_OPEN && link->tx_from == link->tx_to &&
        !link->data_left) {
        c->shared = true;
        if (link->dialled) /* the other side has said so before its PROOF */
            dti_conn_heard(t, c);
        t->shared_count++;
        t->crowded = (int)(t->shared_count / t->core.set.sockets) + 1 >
                     dti_cpu_set_count(&t->host_processors);
    }
    return c->shared;
}

static void dti_conn_ring(const dti_tcp_conn *c, uint32_t what) {
    uint8_t byte = 0;
    if (dti_shm_must_ring(&c->shm, what)) /* the other side may have gone: its end is seen
                                             elsewhere */
        dti_socket_send(c->fd, &(dti_socket_part){&byte, 1}, 1, false);
}

static void dti_conn_shared_wrong(dti_tcp *t, dti_tcp_conn *c) {
    dti_core_link_failed(&t->core, c->link, DT_ERROR_CORRUPT,
                         "received an invalid position in the shared memory");
}

/* ---- payloads that the other side reads directly: the ring has their address. They are copied
 * before they are checked, like all data. If ranks share processors it does not pay. Then
 * an operation waits until the reader of its last payload gets a turn. */

/* A long payload begins: its note goes first. */
static bool dti_conn_note_is_due(const dti_tcp_conn *c) {
    return c->lends && c->link->data_left >= DTI_SHM_LEND && c->noted != c->link->tx_number + 1;
}

/* Whether the next bytes can be sent; also if a position there is wrong. */
static bool dti_conn_may_write(dti_tcp_conn *c) {
    const dti_link *link = c->link;
    const int64_t room = dti_shm_room(&c->shm), head = link->tx_to - link->tx_from;
    const int64_t least = dti_conn_note_is_due(c) ? head + (int64_t)DTI_SHM_NOTE : 1;
    return room < 0 || (room >= least && dti_link_may_lend(link));
}

/* It cannot, and no thread of this process looks without a notification. */
static bool dti_conn_shared_full(const dti_tcp *t, dti_tcp_conn *c) {
    if (t->thread_reads)
        dti_shm_sleep_also(&c->shm, DTI_SHM_FOR_ROOM);
    return !dti_conn_may_write(c);
}

/* The frames before the payload, and its note: all of them or nothing, as -1 and 0 say. */
static int64_t dti_conn_write_note(dti_tcp *t, dti_tcp_conn *c) {
    dti_link *link = c->link;
    const size_t head = link->tx_to - link->tx_from;
    if (!dti_conn_may_write(c))
        return 0;
    if (dti_shm_room(&c->shm) < 0)
        return -1;
    const bool loan = !t->crowded && dti_local_is_plain(link->data, link->data_left);
    uint64_t note = loan ? (uint64_t)(uintptr_t)link->data : 0;
    const dti_socket_part parts[2] = {{link->tx + link->tx_from, head}, {&note, sizeof note}};
    if (t->thread_reads) /* before it can be taken: no thread of this process looks */
        dti_shm_sleep_also(&c->shm, DTI_SHM_FOR_ROOM);
    dti_shm_write(&c->shm, parts, 2);
    c->noted = link->tx_number + 1;
    if (head)
        dti_link_sent(&t->core, link, head);
    if (loan)
        dti_link_lend(link, c->shm.written);
    return (int64_t)(head + sizeof note);
}

/* Ends loans that were taken. */
static void dti_conn_take_back(dti_tcp *t, dti_tcp_conn *c) {
    const dti_link_loan *loan;
    while (c->fd >= 0 && (loan = dti_link_loan_oldest(c->link)) != NULL &&
           dti_shm_has_taken(&c->shm, loan->mark)) {
        dti_link_returned(&t->core, c->link);
        c->blocked = false;
    }
}

static bool dti_conn_is_borrowed(const dti_tcp_conn *c) {
    return c->borrows && c->link->in_body && c->link->frame.length >= DTI_SHM_LEND;
}

/* Reads the note of the body that comes in. False: it has not come yet, or is wrong. */
static bool dti_conn_read_note(dti_tcp *t, dti_tcp_conn *c) {
    const uint64_t number = c->link->back->received + 1;
    if (c->read == number)
        return true;
    uint8_t note[DTI_SHM_NOTE];
    const int got = dti_shm_peek(&c->shm, note, sizeof note);
    if (got < 0)
        dti_conn_shared_wrong(t, c);
    if (got <= 0)
        return false;
    memcpy(&c->lender, note, sizeof note);
    c->read = number;
    if (!c->lender)
        dti_shm_pass(&c->shm, sizeof note);
    return true;
}

/* Some of the body from the other process; how many bytes, 0 after an error. */
static size_t dti_conn_borrow(dti_tcp *t, dti_tcp_conn *c) {
    dti_link *link = c->link;
    const size_t take = DTI_MIN((size_t)link->body_left, DTI_SHM_BORROW);
    const uint64_t from = c->lender + (link->frame.length - link->body_left);
    const bool whole = dti_local_read(c->process, link->body, from, take);
    if ((!whole && errno == ESRCH) || dti_local_has_ended(c->fd)) {
        dti_core_closed(&t->core, link, NULL);
        return 0;
    }
    if (!whole) {
        dti_core_link_failed(&t->core, link, DT_ERROR_CORRUPT,
                             "received an address in the other process that cannot be read (%s)",
                             dti_socket_text(errno));
        return 0;
    }
    if (take == link->body_left)
        dti_shm_pass(&c->shm, DTI_SHM_NOTE);
    dti_link_received(&t->core, link, take);
    return take;
}

/* ---- sending and receiving */

/* True when something went. */
static bool dti_conn_write_shared(dti_tcp *t, dti_tcp_conn *c) {
    dti_socket_part out[2];
    bool some = false;
    c->blocked = false;
    for (int count; c->fd >= 0 && (count = dti_link_output(&t->core, c->link, out)) > 0;) {
        const bool notes = dti_conn_note_is_due(c);
        int64_t sent = 0;
        if (notes)
            sent = dti_conn_write_note(t, c);
        else if (dti_link_may_lend(c->link)) /* its place after the loans */
            sent = dti_shm_write(&c->shm, out, count);
        if (sent < 0) {
            dti_conn_shared_wrong(t, c);
            return some;
        }
        if (sent == 0 && dti_conn_shared_full(t, c)) {
            c->blocked = true;
            break;
        }
        some = some || sent > 0;
        if (sent > 0 && !notes)
            dti_link_sent(&t->core, c->link, (size_t)sent);
    }
    if (some && c->fd >= 0)
        dti_conn_ring(c, DTI_SHM_FOR_BYTES);
    return some;
}

static void dti_conn_read_shared(dti_tcp *t, dti_tcp_conn *c) {
    dti_socket_part in[2];
    size_t total = 0;
    while (c->fd >= 0 && total < DTI_READ_BYTES_MAX && dti_link_input(&t->core, c->link, in) > 0) {
        if (dti_conn_is_borrowed(c)) {
            if (!dti_conn_read_note(t, c))
                break;
            if (c->lender) {
                const size_t took = dti_conn_borrow(t, c);
                if (!took)
                    return;
                total += took;
                if (c->fd >= 0 && !c->link->in_body)
                    break; /* data that it makes possible goes first: the other side may wait for
                              it */
                continue;
            }
        }
        /* A body goes where it belongs, so not more than a header to where headers go. */
        const size_t has = c->link->rx_to - c->link->rx_from;
        const size_t header = DTI_HEADER_BYTES - (has < DTI_HEADER_BYTES ? has : 0);
        const size_t most = c->link->in_body ? DTI_SHM_PIECE : header;
        dti_socket_part part = {in[0].data, DTI_MIN(in[0].bytes, most)};
        const int64_t got = dti_shm_read(&c->shm, &part, 1);
        if (got < 0)
            dti_conn_shared_wrong(t, c);
        if (got <= 0)
            break;
        dti_link_received(&t->core, c->link, (size_t)got);
        total += (size_t)got;
    }
    if (total && c->fd >= 0) {
        dti_shm_tell(&c->shm);
        dti_conn_ring(c, DTI_SHM_FOR_ROOM);
    }
}

/* The bytes that woke somebody; the end of the socket is that of the other process. */
static void dti_conn_drain_bell(dti_tcp_conn *c) {
    uint8_t drop[64];
    int64_t got;
    do
        got = dti_socket_receive(c->fd, &(dti_socket_part){drop, sizeof drop}, 1);
    while (got == (int64_t)sizeof drop);
    c->gone = c->gone || got == 0 || (got < 0 && !dti_socket_would_block(errno));
}

/* Everything that can be done on it; events: of its socket, if it was asked. */
static void dti_conn_ready_shared(dti_tcp *t, dti_tcp_conn *c, int events) {
    if (events & (POLLIN | POLLERR | POLLHUP))
        dti_conn_drain_bell(c);
    const bool over = c->gone || dti_shm_is_ended(&c->shm); /* before the last look */
    dti_conn_take_back(t, c);
    if (c->fd >= 0)
        dti_conn_read_shared(t, c);
    if (c->fd >= 0 && (c->blocked || over)) /* the other side may wait for our BYE */
        dti_conn_write_shared(t, c);
    if (c->fd >= 0 && over && dti_shm_filled(&c->shm) == 0)
        dti_core_closed(&t->core, c->link, NULL);
}

static void dti_conn_shut_shared(const dti_tcp_conn *c) {
    dti_shm_end(&c->shm);
    dti_conn_ring(c, DTI_SHM_FOR_BYTES);
}

/* ---- sleeping */

static bool dti_conn_has_work(dti_tcp_conn *c) {
    const dti_link_loan *loan = dti_link_loan_oldest(c->link);
    return (loan && dti_shm_has_taken(&c->shm, loan->mark)) ||
           (dti_shm_filled(&c->shm) != 0 && dti_link_has_room(c->link)) ||
           (c->blocked && dti_conn_may_write(c)) ||
           (dti_shm_is_ended(&c->shm) && dti_shm_filled(&c->shm) == 0);
}

/* Asks to be woken through the sockets. False: there is something to do already. */
static bool dti_tcp_shared_sleep(dti_tcp *t) {
    bool idle = true;
    for (uint32_t i = 0; i < t->active_count && t->shared_count; i++) {
        dti_tcp_conn *c = t->active[i];
        if (!c->shared || dti_core_data_frozen(&t->core, c->link))
            continue;
        const bool lends = dti_link_loan_oldest(c->link) != NULL;
        dti_shm_sleep(&c->shm, DTI_SHM_FOR_BYTES | (c->blocked || lends ? DTI_SHM_FOR_ROOM : 0));
        idle = idle && !dti_conn_has_work(c);
    }
    return idle;
}

static void dti_tcp_shared_awake(const dti_tcp *t) {
    for (uint32_t i = 0; i < t->active_count && t->shared_count; i++)
        if (t->active[i]->shared)
            dti_shm_sleep(&t->active[i]->shm, 0);
}

#endif
