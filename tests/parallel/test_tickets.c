/* Tickets by any schedule of workers that ask, push, push again, die and fall asleep: against a
 * model that knows what has counted. It is compiled with the implementation. */

enum { TICKET_WORKERS = 5, TICKET_BATCH_SLICES = 6, TICKET_WINDOW = 5, TICKET_SERIALS = 400 };

typedef struct ticket_worker {
    uint64_t serial, version; /* of what it has; 0: nothing */
    uint32_t batch_slice;
    bool pushing;
    uint64_t epoch;
} ticket_worker;

typedef struct ticket_world {
    dti_tickets t;
    dti_batch_open open[TICKET_WINDOW];
    dti_ticket tickets[TICKET_WINDOW * TICKET_BATCH_SLICES];
    ticket_worker workers[TICKET_WORKERS];
    uint8_t counted[TICKET_SERIALS][TICKET_BATCH_SLICES];
    bool skipped[TICKET_SERIALS];
    uint64_t now, random, steps;
    uint32_t staleness;
} ticket_world;

static uint32_t ticket_draw(ticket_world *w, uint32_t below) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % below;
}

static uint32_t ticket_rows(const ticket_world *w, uint64_t serial) {
    return serial % w->t.batches ? w->t.batch_slices : w->t.tail_batch_slices;
}

static void ticket_take(ticket_world *w, uint32_t who) {
    ticket_worker *worker = &w->workers[who];
    uint64_t serial = 0;
    uint32_t batch_slice = 0;
    if (worker->pushing)
        return;
    const dti_ticket_answer answer =
        dti_tickets_take(&w->t, who, worker->epoch, w->steps, w->now, &serial, &batch_slice);
    worker->serial = 0;
    if (answer == DTI_TICKET_ENDED) {
        CHECK(worker->epoch < (w->t.base - 1) / w->t.batches);
        worker->epoch++;
    }
    if (answer != DTI_TICKET_TAKEN)
        return;
    /* the bound, the epoch, and that it is to be done */
    CHECK(serial >= w->t.base && serial - w->t.base <= w->staleness &&
          batch_slice < ticket_rows(w, serial));
    CHECK((serial - 1) / w->t.batches == (w->t.base - 1) / w->t.batches);
    CHECK(!w->counted[serial][batch_slice] && !w->skipped[serial]);
    *worker = (ticket_worker){serial, w->t.base - 1, batch_slice, false, worker->epoch};
}

static void ticket_push(ticket_world *w, uint32_t who) {
    ticket_worker *worker = &w->workers[who];
    if (!worker->serial || worker->serial >= TICKET_SERIALS)
        return;
    if (!worker->pushing) {
        const dti_push_answer answer =
            dti_tickets_push(&w->t, who, worker->serial, worker->batch_slice, w->now);
        worker->pushing = answer == DTI_PUSH_TAKEN;
        CHECK(answer != DTI_PUSH_TAKEN || !w->counted[worker->serial][worker->batch_slice]);
        CHECK(answer != DTI_PUSH_TWICE || w->counted[worker->serial][worker->batch_slice] ||
              w->skipped[worker->serial]);
        worker->serial = worker->pushing ? worker->serial : 0;
        return;
    }
    if (dti_tickets_pushed(&w->t, who, worker->serial, worker->batch_slice, worker->version)) {
        CHECK(!w->counted[worker->serial][worker->batch_slice]++);
        CHECK(worker->serial - 1 - worker->version <= w->staleness);
    }
    if (ticket_draw(w, 4)) /* or once more: a retry */
        worker->serial = 0;
    worker->pushing = false;
}

static void ticket_fault(ticket_world *w, uint32_t who) {
    const ticket_worker *worker = &w->workers[who];
    if (worker->serial && !worker->pushing &&
        dti_tickets_fault(&w->t, who, worker->serial, worker->batch_slice, w->now) ==
            DTI_PUSH_TAKEN)
        w->skipped[worker->serial] = true;
}

/* What is resolved has all of its pushes, each once, or is skipped. */
static void ticket_resolve(ticket_world *w) {
    while (w->t.base < TICKET_SERIALS && dti_tickets_complete(&w->t)) {
        const uint64_t serial = w->t.base;
        for (uint32_t i = 0; i < w->t.batch_slices; i++)
            CHECK(w->skipped[serial] || w->counted[serial][i] == (i < ticket_rows(w, serial)));
        w->steps += !w->skipped[serial];
        dti_tickets_resolve(&w->t);
    }
}

static void ticket_event(ticket_world *w) {
    const uint32_t who = ticket_draw(w, TICKET_WORKERS), what = ticket_draw(w, 64);
    if (what < 24)
        ticket_take(w, who);
    else if (what < 58)
        ticket_push(w, who);
    else if (what == 58)
        ticket_fault(w, who);
    else if (what == 59) { /* it dies, and another comes to its place */
        dti_tickets_lost(&w->t, who);
        w->workers[who] = (ticket_worker){.epoch = (w->t.base - 1) / w->t.batches};
    } else
        w->now += (uint64_t)ticket_draw(w, 5);
    ticket_resolve(w);
}

static void ticket_run(uint64_t seed) {
    static ticket_world w;
    memset(&w, 0, sizeof w);
    w.random = seed;
    w.staleness = ticket_draw(&w, TICKET_WINDOW);
    w.t = (dti_tickets){.batch_slices = 1 + ticket_draw(&w, TICKET_BATCH_SLICES),
                        .window = w.staleness + 1,
                        .batches = 1 + ticket_draw(&w, 9),
                        .limit_ns = ticket_draw(&w, 3) ? 40 : 0,
                        .open = w.open,
                        .tickets = w.tickets};
    w.t.tail_batch_slices = 1 + ticket_draw(&w, w.t.batch_slices);
    dti_tickets_start(&w.t, 1);
    int events = 0;
    while (w.t.base < TICKET_SERIALS - TICKET_WINDOW && events++ < 200000)
        ticket_event(&w);
    /* nobody waits for ever */
    test_check(w.t.base >= TICKET_SERIALS - TICKET_WINDOW, __FILE__, __LINE__,
               "seed %llu stands still at batch %llu", (unsigned long long)seed,
               (unsigned long long)w.t.base);
}

TEST(tickets_count_each_batch_slice_once_for_any_schedule) {
    for (uint64_t seed = 1; seed <= 300 && !test_now.failures; seed++)
        ticket_run(seed);
}

/* A batch of one batch slice at a time, whose ticket is another's after 40 ns. */
static void ticket_one(ticket_world *w) {
    memset(w, 0, sizeof *w);
    w->t = (dti_tickets){.batch_slices = 1,
                         .window = 1,
                         .batches = 9,
                         .tail_batch_slices = 1,
                         .limit_ns = 40,
                         .open = w->open,
                         .tickets = w->tickets};
    dti_tickets_start(&w->t, 1);
}

/* A server that hands out no tickets learns by a push alone that another worker has one now. */
TEST(tickets_accept_another_push_when_an_arriving_one_is_outdated) {
    static ticket_world w;
    ticket_one(&w);
    CHECK(dti_tickets_push(&w.t, 0, 1, 0, 100) == DTI_PUSH_TAKEN);
    CHECK(dti_tickets_push(&w.t, 1, 1, 0, 140) == DTI_PUSH_VOID);
    CHECK(dti_tickets_push(&w.t, 1, 1, 0, 141) == DTI_PUSH_TAKEN);
    CHECK(!dti_tickets_pushed(&w.t, 0, 1, 0, 0) && dti_tickets_pushed(&w.t, 1, 1, 0, 0));
    CHECK(dti_tickets_push(&w.t, 0, 1, 0, 999) == DTI_PUSH_TWICE);
}

/* A fault that a worker found in its own batch slice does not undo the push of the ticket's
 * owner. */
TEST(tickets_ignore_the_fault_of_a_worker_that_lost_its_ticket) {
    static ticket_world w;
    ticket_one(&w);
    CHECK(dti_tickets_push(&w.t, 1, 1, 0, 100) == DTI_PUSH_TAKEN);
    CHECK(dti_tickets_fault(&w.t, 0, 1, 0, 110) == DTI_PUSH_VOID && !dti_tickets_complete(&w.t));
    CHECK(dti_tickets_pushed(&w.t, 1, 1, 0, 0) && dti_tickets_complete(&w.t));
}
