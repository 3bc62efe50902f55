/* TCP's congestion control: sets the requested one on all sockets, and warns about bbr, the default
 * of many hosts. bbr paces a connection by its measured rate. Between operations connections are
 * idle, and an operation often waits for a rank. So the measured rate can be far below the
 * network's. */

#if DTI_TCP

#define DTI_FLOW_SLOW_NS 5000000u /* operations that take less are not looked at */
#define DTI_FLOW_BYTES (1u << 20) /* nor are smaller ones: their time in flight is not a rate */
#define DTI_FLOW_LOOKS 8u         /* of which three in four have to find it slow */
#define DTI_FLOW_FACTOR 3u        /* slow: TCP's rate within bursts, relative to the reached one */
#define DTI_FLOW_BUSY_US 20000u   /* of a look, at least: the system counts in ticks */

/* Sets it on a socket, before we connect it. dti_congestion_try has reported a name that cannot be
 * set. */
static void dti_congestion_set(const dti_tcp *t, int fd) {
    if (t->desc.congestion[0])
        dti_socket_congestion(fd, t->desc.congestion);
}

/* Whether the system lets this process have it. */
static dt_result dti_congestion_try(dti_base *base, const char *name) {
    if (!name[0])
        return DT_OK;
    int fd = dti_socket_new(AF_INET, SOCK_STREAM);
    if (fd < 0)
        fd = dti_socket_new(AF_INET6, SOCK_STREAM);
    if (fd < 0)
        return dti_fail(base, DT_ERROR_IO, "socket: %s", dti_socket_text(errno));
    bool set = dti_socket_congestion(fd, name);
    const int error = errno;
    dti_socket_close(fd);
    if (set)
        return DT_OK;
    if (error == ENOSYS)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        ".congestion is \"%s\"; leave it empty, as this system does not let a "
                        "program choose TCP's congestion control",
                        name);
    char allowed[200];
    dti_congestion_allowed(allowed, sizeof allowed);
    return dti_fail(base, DT_ERROR_INVALID, ".congestion is \"%s\": %s; this process may use: %s",
                    name,
                    error == EPERM ? "the system does not allow it for this process"
                                   : "the system has no congestion control of that name",
                    allowed[0] ? allowed : "(the system does not list them)");
}

/* Accepted sockets have it from the first packet on. */
static void dti_congestion_listeners(const dti_tcp *t) {
    for (int i = 0; i < t->rendezvous.own.count; i++)
        dti_congestion_set(t, t->rendezvous.listeners[i]);
}

/* bbr's pauses come between packets, so it does worse with few and full ones (docs/speed.md). */
static bool dti_congestion_is_bbr(int fd) {
    dti_socket_flow flow;
    return dti_socket_flow_of(fd, &flow) && !strncmp(flow.congestion, "bbr", 3);
}

/* The sums of all data connections since they were made; false: none of them has bbr. */
static bool dti_flow_sum(const dti_tcp *t, dti_socket_flow *sum) {
    uint32_t count = 0;
    memset(sum, 0, sizeof *sum);
    for (uint32_t i = 0; i < t->active_count; i++) {
        dti_socket_flow flow;
        const dti_link *link = t->active[i]->link;
        if (link->channel != DTI_CHANNEL_DATA || link->state != DTI_LINK_OPEN ||
            !t->active[i]->paced || !dti_socket_flow_of(t->active[i]->fd, &flow))
            continue;
        sum->acked += flow.acked;
        sum->busy_us += flow.busy_us;
        sum->delivery_rate += flow.delivery_rate;
        memcpy(sum->congestion, flow.congestion, sizeof sum->congestion);
        count++;
    }
    if (count)
        sum->delivery_rate /= count;
    return count > 0;
}

static void dti_flow_say(dti_tcp *t, const char *name, uint64_t reached, uint64_t carried) {
    char allowed[120];
    dti_congestion_allowed(allowed, sizeof allowed);
    dti_core_note(&t->core, DT_LOG_WARNING,
                  "operations send %llu MB/s, but TCP can deliver %llu: its congestion control %s "
                  "paces connections that were idle in between; set DTRAIN_CONGESTION (%s)",
                  (unsigned long long)(reached / 1000000), (unsigned long long)(carried / 1000000),
                  name, allowed);
}

/* One look; true when it is time to say so. Time in which nothing is to be sent, as when another
 * rank is late, does not count. */
static bool dti_flow_is_slow(dti_tcp_flow *flow, const dti_socket_flow *sum) {
    uint64_t acked = sum->acked - flow->acked, busy = sum->busy_us - flow->busy_us;
    if (busy < DTI_FLOW_BUSY_US)
        return false;
    flow->acked = sum->acked;
    flow->busy_us = sum->busy_us;
    flow->reached = acked * 1000000 / busy;
    flow->slow += sum->delivery_rate > flow->reached * DTI_FLOW_FACTOR;
    if (++flow->looks < DTI_FLOW_LOOKS)
        return false;
    flow->settled = flow->slow * 4 >= flow->looks * 3;
    flow->looks = flow->slow = 0;
    return flow->settled;
}

/* After an operation: a comparison of two numbers, unless it was a slow and large one. */
static void dti_flow_look(dti_tcp *t, const dti_flight *f) {
    dti_socket_flow sum;
    if (t->flow.settled || t->core.now - f->posted_at < DTI_FLOW_SLOW_NS ||
        f->op.count * dti_dtype_bytes(f->op.dtype) < DTI_FLOW_BYTES)
        return;
    if (!dti_flow_sum(t, &sum))
        t->flow.settled = true;
    else if (dti_flow_is_slow(&t->flow, &sum))
        dti_flow_say(t, sum.congestion, t->flow.reached, sum.delivery_rate);
}

#endif
