/* See tickets.h. */

/* ---- places */

static dti_batch_open *dti_tickets_batch(const dti_tickets *t, uint64_t serial) {
    return &t->open[serial % t->window];
}

static dti_ticket *dti_tickets_at(const dti_tickets *t, uint64_t serial, uint32_t batch_slice) {
    return &t->tickets[serial % t->window * t->batch_slices + batch_slice];
}

static uint64_t dti_tickets_epoch(const dti_tickets *t, uint64_t serial) {
    return (serial - 1) / t->batches;
}

/* The last batch of an epoch may be short. Its last batch slices have no rows, and no worker
 * computes them. */
static uint32_t dti_tickets_filled(const dti_tickets *t, uint64_t serial) {
    return serial % t->batches ? t->batch_slices : t->tail_batch_slices;
}

static void dti_tickets_clear(dti_tickets *t, uint64_t serial) {
    const uint32_t filled = dti_tickets_filled(t, serial);
    *dti_tickets_batch(t, serial) =
        (dti_batch_open){.oldest = UINT64_MAX, .done = t->batch_slices - filled};
    for (uint32_t i = 0; i < t->batch_slices; i++)
        *dti_tickets_at(t, serial, i) =
            (dti_ticket){.state = i < filled ? DTI_TICKET_FREE : DTI_TICKET_DONE};
}

static void dti_tickets_start(dti_tickets *t, uint64_t base) {
    t->base = base;
    for (uint32_t i = 0; i < t->window; i++)
        dti_tickets_clear(t, base + i);
}

static bool dti_tickets_has(const dti_tickets *t, uint64_t serial, uint32_t batch_slice) {
    return serial >= t->base && serial - t->base < t->window && batch_slice < t->batch_slices;
}

/* ---- handing out */

static bool dti_ticket_is_old(const dti_tickets *t, const dti_ticket *ticket, uint64_t now) {
    return (ticket->state == DTI_TICKET_OUT || ticket->state == DTI_TICKET_COMING) && t->limit_ns &&
           now - ticket->since > t->limit_ns;
}

/* The first batch slice of a batch that is free, or old. A batch that is skipped is computed no
 * more. */
static bool dti_tickets_find(const dti_tickets *t, uint64_t serial, uint32_t who, uint64_t now,
                             uint32_t *batch_slice) {
    if (dti_tickets_batch(t, serial)->faulty)
        return false;
    for (uint32_t i = 0; i < t->batch_slices; i++) {
        const dti_ticket *ticket = dti_tickets_at(t, serial, i);
        *batch_slice = i;
        if (ticket->state == DTI_TICKET_FREE ||
            (ticket->who != who && dti_ticket_is_old(t, ticket, now)))
            return true;
    }
    return false;
}

/* Takes back a worker's tickets; `coming`: also its pushes in transit. Returns their number. */
static uint32_t dti_tickets_return(dti_tickets *t, uint32_t who, bool coming) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->window * t->batch_slices; i++) {
        dti_ticket *ticket = &t->tickets[i];
        if (ticket->who == who &&
            (ticket->state == DTI_TICKET_OUT || (coming && ticket->state == DTI_TICKET_COMING))) {
            *ticket = (dti_ticket){0};
            count++;
        }
    }
    return count;
}

static dti_ticket_answer dti_tickets_take(dti_tickets *t, uint32_t who, uint64_t epoch,
                                          uint64_t steps, uint64_t now, uint64_t *serial,
                                          uint32_t *batch_slice) {
    const uint64_t current = dti_tickets_epoch(t, t->base);
    dti_tickets_return(t, who, false); /* the worker that asks has none in flight */
    if (epoch < current)
        return DTI_TICKET_ENDED;
    for (uint64_t q = t->base; q - t->base < t->window; q++) {
        dti_batch_open *batch = dti_tickets_batch(t, q);
        if (dti_tickets_epoch(t, q) != current)
            break;
        if (!dti_tickets_find(t, q, who, now, batch_slice))
            continue;
        dti_ticket *ticket = dti_tickets_at(t, q, *batch_slice);
        t->again += ticket->state != DTI_TICKET_FREE;
        batch->step = batch->step ? batch->step : steps + 1 + (q - t->base);
        *ticket = (dti_ticket){DTI_TICKET_OUT, who, now};
        *serial = q;
        return DTI_TICKET_TAKEN;
    }
    return DTI_TICKET_WAIT;
}

static void dti_tickets_lost(dti_tickets *t, uint32_t who) {
    t->again += dti_tickets_return(t, who, true);
}

/* ---- pushes */

static dti_push_answer dti_tickets_push(dti_tickets *t, uint32_t who, uint64_t serial,
                                        uint32_t batch_slice, uint64_t now) {
    if (!dti_tickets_has(t, serial, batch_slice)) {
        t->late++;
        return DTI_PUSH_VOID;
    }
    dti_ticket *ticket = dti_tickets_at(t, serial, batch_slice);
    if (ticket->state == DTI_TICKET_DONE || dti_tickets_batch(t, serial)->faulty) {
        t->twice++;
        return DTI_PUSH_TWICE;
    }
    if (ticket->state == DTI_TICKET_COMING && ticket->who != who &&
        !dti_ticket_is_old(t, ticket, now)) {
        t->late++;
        return DTI_PUSH_VOID;
    }
    *ticket = (dti_ticket){DTI_TICKET_COMING, who, now};
    return DTI_PUSH_TAKEN;
}

static bool dti_tickets_pushed(dti_tickets *t, uint32_t who, uint64_t serial, uint32_t batch_slice,
                               uint64_t version) {
    if (!dti_tickets_has(t, serial, batch_slice))
        return false;
    dti_ticket *ticket = dti_tickets_at(t, serial, batch_slice);
    dti_batch_open *batch = dti_tickets_batch(t, serial);
    if (ticket->state != DTI_TICKET_COMING || ticket->who != who)
        return false;
    ticket->state = DTI_TICKET_DONE;
    batch->done++;
    batch->oldest = DTI_MIN(batch->oldest, version);
    return true;
}

static void dti_tickets_drop(dti_tickets *t, uint32_t who, uint64_t serial, uint32_t batch_slice) {
    dti_ticket *ticket =
        dti_tickets_has(t, serial, batch_slice) ? dti_tickets_at(t, serial, batch_slice) : NULL;
    if (!ticket || ticket->state != DTI_TICKET_COMING || ticket->who != who)
        return;
    *ticket = (dti_ticket){0};
    t->late++;
}

static uint64_t dti_tickets_oldest(const dti_tickets *t, uint64_t serial) {
    return serial > t->window ? serial - t->window : 0;
}

static dti_push_answer dti_tickets_fault(dti_tickets *t, uint32_t who, uint64_t serial,
                                         uint32_t batch_slice, uint64_t now) {
    const dti_push_answer answer = dti_tickets_push(t, who, serial, batch_slice, now);
    if (answer == DTI_PUSH_TAKEN) {
        *dti_tickets_at(t, serial, batch_slice) = (dti_ticket){0};
        dti_tickets_batch(t, serial)->faulty = true;
    }
    return answer;
}

/* ---- resolving */

static bool dti_tickets_complete(const dti_tickets *t) {
    const dti_batch_open *batch = dti_tickets_batch(t, t->base);
    return batch->faulty || batch->done == t->batch_slices;
}

static void dti_tickets_resolve(dti_tickets *t) {
    dti_tickets_clear(t, t->base + t->window);
    t->base++;
}
