/* Two ranks of threads on one thread. It posts, tests, gives up and leaves in any order of a seed.
 * Handles belong to the other rank or have ended, and operations do not match. Nothing may crash,
 * hang, leak or write after a buffer; what fails says so with a text. */
#include "wrong/wrong_args.h"

#define SEEDS 2000
#define CALLS 60

enum { WORKS = 8, COUNT_MAX = 3 };

typedef struct club_work {
    dt_comm_work work;
    int rank;
    float *in, *out; /* of their exact size, in use until it has ended */
} club_work;

typedef struct club {
    uint64_t random;
    dt_comm *comm[2];
    club_work works[WORKS];
    int posted[2];
    unsigned long seed;
} club;

static int club_pick(club *c, int count) {
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((c->random >> 33) % (uint64_t)count);
}

static dt_result club_said(const club *c, int rank, dt_result result, const char *call) {
    if (result && c->comm[rank])
        test_check(dt_comm_error(c->comm[rank])[0] != 0, __FILE__, __LINE__,
                   "seed %lu: %s failed without a text", c->seed, call);
    return result;
}

static void club_ended(club_work *w) {
    free(w->in);
    free(w->out);
    *w = (club_work){0};
}

/* The same for both ranks' operation number `at`, but now and then. */
static dt_comm_op club_op(club *c, int rank, int at) {
    club same = {.random = (c->seed << 8) + (uint64_t)at};
    club *of = club_pick(c, 40) ? &same : c;
    dt_comm_op op = {.kind = (dt_comm_kind)club_pick(of, DT_COMM_BARRIER + 1)};
    op.count = (uint64_t)club_pick(of, COUNT_MAX + 1);
    op.root = club_pick(of, 2);
    if (op.kind == DT_COMM_SEND || op.kind == DT_COMM_RECV) {
        op.kind = rank == op.root ? DT_COMM_SEND : DT_COMM_RECV;
        op.root = 1 - rank;
    }
    return op;
}

static void club_begin(club *c) {
    club_work *w = &c->works[club_pick(c, WORKS)];
    if (w->in)
        return;
    w->rank = club_pick(c, 2);
    dt_comm_op op = club_op(c, w->rank, c->posted[w->rank]);
    op.in = w->in = calloc(op.count * 2 + 1, sizeof(float));
    op.out = w->out = calloc(op.count * 2 + 1, sizeof(float));
    if (club_said(c, w->rank, dt_comm_begin(c->comm[w->rank], &op, &w->work), "begin"))
        club_ended(w);
    else
        c->posted[w->rank]++;
}

static void club_test(club *c) {
    club_work *w = &c->works[club_pick(c, WORKS)];
    bool finished = false;
    club_said(c, w->rank, dt_comm_test(c->comm[w->rank], w->work, &finished), "test");
    if (finished && w->in)
        club_ended(w);
}

static void club_cancel(club *c) {
    club_work *w = &c->works[club_pick(c, WORKS)];
    if (club_pick(c, 20))
        return;
    dt_result result = dt_comm_cancel(c->comm[w->rank], w->work);
    club_said(c, w->rank, result, "cancel");
    if (w->in)
        club_ended(w);
}

static void club_forged(club *c) {
    dt_comm_work work = {(uint64_t)club_pick(c, 100) << club_pick(c, 60)};
    for (int i = 0; i < WORKS; i++)
        if (c->works[i].in && c->works[i].work.id == work.id)
            return;
    bool finished = false;
    int rank = club_pick(c, 2);
    CHECK(dt_comm_test(c->comm[rank], work, &finished) != DT_OK && !finished);
    CHECK(dt_comm_wait(c->comm[rank], work, 0) != DT_OK);
    CHECK(dt_comm_cancel(c->comm[rank], work) != DT_OK);
}

static void club_leave(club *c) {
    int rank = club_pick(c, 2);
    if (club_pick(c, 60))
        return;
    dt_comm_destroy(c->comm[rank]);
    c->comm[rank] = NULL;
    for (int i = 0; i < WORKS; i++)
        if (c->works[i].in && c->works[i].rank == rank)
            club_ended(&c->works[i]);
}

static void club_run(unsigned long seed) {
    static void (*const calls[])(club *) = {club_begin, club_begin,  club_begin,  club_test,
                                            club_test,  club_cancel, club_forged, club_leave};
    club c = {.random = seed * 0x9E3779B97F4A7C15u, .seed = seed};
    dt_comm_desc desc = {.allocator = wrong_allocator(&here), .logger = wrong_logger(&here)};
    here = (world){.until = -1}; /* memory is never short, whatever ran before */
    CHECK(dt_comm_create_threads(&desc, 2, c.comm) == DT_OK);
    for (int i = 0; i < CALLS; i++)
        calls[club_pick(&c, (int)(sizeof calls / sizeof *calls))](&c);
    dt_comm_destroy(c.comm[0]);
    dt_comm_destroy(c.comm[1]);
    for (int i = 0; i < WORKS; i++)
        club_ended(&c.works[i]);
    test_check(here.held == 0, __FILE__, __LINE__, "seed %lu: %d blocks are left", seed, here.held);
}

TEST(collectives_in_any_order_fail_with_a_text_and_never_hang) {
    for (unsigned long seed = 1; seed <= SEEDS; seed++)
        club_run(seed);
}
