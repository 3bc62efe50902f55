/* Gossip within rounds of local steps: who meets whom and what comes of it, bit for bit; how far
 * ranks are apart shrinks as theory says; a round's end, checkpoints, and a rank that dies. */
#include "parallel/train_processes.h"

enum { SHOTS = 6, VALUES = 600 };

typedef struct gossip_case {
    const char *devices;
    int steps, gossip, batch;
    double lr;
    dt_optim_kind optim;
    dt_outer_desc outer;
    dt_compress compress;
    dt_comm *comm;
    bool synchronous, vulkan, valid; /* valid: every target counts */
    int kind;
} gossip_case;

static const dt_outer_desc averaging = {.lr = 1.0, .momentum = DT_ZERO};

typedef struct gossip_run {
    train_model m;
    dt_trainer *t;
    dt_optim_desc optim;
    dt_train_report report;
    dt_result result;
} gossip_run;

static bool gossip_open(gossip_run *g, const gossip_case *c) {
    *g = (gossip_run){.optim = {.kind = c->optim, .lr = c->lr}};
    if (!train_model_make(&g->m, c->vulkan ? NULL : &one_thread, c->kind))
        return false;
    for (int k = 0; k < TRAIN_ROWS && c->valid; k++)
        g->m.data.t[k] = k % TRAIN_CLASSES;
    dt_trainer_desc d = train_desc(&g->m);
    d.optim = &g->optim;
    d.devices = c->devices;
    d.batch = c->batch;
    d.comm = c->comm;
    if (!c->synchronous) {
        d.mode = DT_TRAIN_LOCAL;
        d.local.steps = c->steps;
        d.local.gossip = c->gossip;
        d.local.outer = c->outer;
        d.parallel.compress = c->compress;
    }
    g->result = dt_trainer_create(g->m.graph, &d, &g->t);
    return !g->result;
}

static void gossip_steps(gossip_run *g, int steps) {
    for (int i = 0; i < steps && !g->result; i++)
        g->result = dt_trainer_step(g->t, &g->report);
}

/* The first of those that this rank has now. */
static void gossip_values(const gossip_run *g, float to[VALUES]) {
    static float all[8192];
    train_values(g->t, all, 8192);
    memcpy(to, all, VALUES * sizeof *to);
}

static uint64_t gossip_hash(const gossip_run *g) {
    return g->result ? 0 : train_values_hash(g->t);
}

/* ---- exchanges: a step apart, then steps at a rate of 0, so that nothing but exchanges moves */

static void met_rank(rank *r) {
    gossip_run g;
    const gossip_case c = {.devices = rank_devices(r),
                           .steps = 2,
                           .gossip = 6,
                           .batch = 10,
                           .lr = 0.1,
                           .optim = DT_OPTIM_SGD,
                           .outer = averaging,
                           .comm = r->comm};
    gossip_open(&g, &c);
    gossip_steps(&g, 1);
    dt_trainer_set_lr(g.t, DT_ZERO);
    for (int i = 0; i < SHOTS && !g.result; i++) {
        gossip_steps(&g, i ? 2 - (i == 1) : 0); /* an exchange follows every second step */
        gossip_values(&g, r->values + i * VALUES);
        EXPECT(r, !g.report.round_ended);
    }
    dt_trainer_info info;
    dt_trainer_get_info(g.t, &info);
    EXPECT(r, info.round_steps == 10 && info.round == 0);
    gossip_steps(&g, 2);
    EXPECT_TEXT(r, !g.result && g.report.round_ended, "%s", dt_ctx_error(g.m.ctx));
    r->numbers[0] = gossip_hash(&g);
    dt_ctx_destroy(g.m.ctx);
}

/* By hand: for each exchange and rank its partner. */
static const int partners[3][SHOTS - 1][4] = {
    {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}},
    {{0, 2, 1}, {1, 0, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}},
    {{1, 0, 3, 2}, {2, 3, 0, 1}, {1, 0, 3, 2}, {2, 3, 0, 1}, {1, 0, 3, 2}},
};

/* The squares of distances from the mean of all ranks. */
static double spread(const job *j, int shot) {
    double squares = 0.0;
    for (int k = 0; k < VALUES; k++) {
        double mean = 0.0;
        for (int r = 0; r < j->count; r++)
            mean += (double)j->at[r].values[shot * VALUES + k] / j->count;
        for (int r = 0; r < j->count; r++)
            squares += pow((double)j->at[r].values[shot * VALUES + k] - mean, 2);
    }
    return squares;
}

static void met_check(const job *j, const int (*pairs)[4]) {
    for (int i = 0; i + 1 < SHOTS; i++) {
        for (int r = 0; r < j->count; r++) {
            const float *a = j->at[r].values + i * VALUES, *got = a + VALUES;
            const float *b = j->at[pairs[i][r]].values + i * VALUES;
            int wrong = 0;
            for (int k = 0; k < VALUES; k++)
                wrong += got[k] != (float)(((double)a[k] + (double)b[k]) / 2.0);
            CHECK_TEXT(!wrong, "%d ranks, exchange %d, rank %d: %d values are wrong", j->count, i,
                       r, wrong);
        }
    }
    for (int r = 1; r < j->count; r++)
        CHECK(j->at[r].numbers[0] == j->at[0].numbers[0] && j->at[0].numbers[0]);
}

/* With 2 ranks no distance is left after an exchange, with 4 after the second. Each exchange of 3
 * projects the distances on a line at 60 degrees to the last one. A quarter of the squares
 * stays. */
TEST(gossip_pairs_alternate_and_distances_shrink_at_the_predicted_rate) {
    for (int ranks = 2; ranks < 5; ranks++) {
        job *j = job_new(ranks, NULL);
        if (!j || !job_run(j, met_rank)) {
            job_free(j);
            return;
        }
        met_check(j, partners[ranks - 2]);
        const double first = spread(j, 0);
        CHECK_TEXT(first > 1e-5, "%d ranks: only %g apart", ranks, first);
        for (int i = 1; i < SHOTS; i++) {
            const double before = spread(j, i - 1), now = spread(j, i);
            if (ranks == 3 && i > 1)
                CHECK_TEXT(fabs(now / before - 0.25) < 1e-4, "%d: %g of %g", i, now, before);
            else if (ranks == 3 || (ranks == 4 && i == 1))
                CHECK_TEXT(now > 0.0 && now < before, "%d: %g of %g", i, now, before);
            else
                CHECK_TEXT(now < 1e-12 * first, "%d: %g of %g", i, now, first);
        }
        job_free(j);
    }
}

/* A rank counts as many times as it has replicas, which are their mean from then on. The same four
 * as ranks of their own show what each had before. */
TEST(gossip_weighs_a_rank_by_its_replicas) {
    job *four = job_new(4, NULL), *two = job_new(2, NULL);
    if (!four || !two)
        return;
    two->devices[1] = "cpu:3";
    if (job_run(four, met_rank) && job_run(two, met_rank)) {
        int wrong = 0;
        for (int k = 0; k < VALUES; k++) {
            double x[4];
            for (int r = 0; r < 4; r++)
                x[r] = (double)four->at[r].values[k];
            const float rest = (float)((x[1] + x[2] + x[3]) / 3.0);
            const float want = (float)((x[0] + 3.0 * (double)rest) / 4.0);
            for (int i = VALUES + k; i < SHOTS * VALUES; i += VALUES)
                wrong += two->at[0].values[i] != want || two->at[1].values[i] != want;
        }
        CHECK_TEXT(!wrong, "%d values are wrong", wrong);
        CHECK(two->at[0].numbers[0] == two->at[1].numbers[0] && two->at[0].numbers[0]);
    }
    job_free(four);
    job_free(two);
}

/* ---- training */

static void learning_rank(rank *r) {
    for (int way = 0; way < 3;
         way++) { /* gossip, synchronous, gossip with compressed differences */
        gossip_run g;
        const gossip_case c = {.devices = rank_devices(r),
                               .kind = way == 2, /* with buffers */
                               .steps = 1,
                               .gossip = 8,
                               .batch = 24,
                               .lr = 0.1,
                               .optim = DT_OPTIM_SGD,
                               .outer = averaging,
                               .comm = r->comm,
                               .synchronous = way == 1,
                               .compress = way == 2 ? DT_COMPRESS_INT8 : DT_COMPRESS_NONE};
        gossip_open(&g, &c);
        for (int i = 0; i < 12 && !g.result; i++)
            g.result = dt_trainer_epoch(g.t, &g.report);
        const dt_dataset data = train_desc(&g.m).data;
        if (!g.result)
            g.result = dt_trainer_evaluate(g.t, &data, 0, &g.report);
        EXPECT_TEXT(r, !g.result, "%s", dt_ctx_error(g.m.ctx));
        r->records[way].loss = g.report.loss;
        r->numbers[way] = gossip_hash(&g);
        dt_ctx_destroy(g.m.ctx);
    }
}

TEST(gossip_learns_as_synchronous_steps_do) {
    for (int ranks = 3; ranks < 5; ranks++) {
        job *j = job_new(ranks, NULL);
        if (!j)
            return;
        if (job_run(j, learning_rank)) {
            const step_record *all = j->at[0].records;
            CHECK_TEXT(all[1].loss < 0.5 && fabs(all[0].loss / all[1].loss - 1.0) < 0.2,
                       "%d ranks: %g by gossip, %g by synchronous steps", ranks, all[0].loss,
                       all[1].loss);
            for (int r = 0; r < ranks * 3; r++) /* an epoch's end is a round's */
                CHECK(j->at[r / 3].numbers[r % 3] == j->at[0].numbers[r % 3] &&
                      j->at[0].numbers[r % 3]);
        }
        job_free(j);
    }
}

/* ---- checkpoints */

static uint64_t saved_hash(rank *r, const char *load, const char *save, bool checks_memory) {
    gossip_run g;
    dt_ctx_info before = {0}, after = {0};
    const gossip_case c = {.devices = rank_devices(r),
                           .kind = 1,
                           .steps = 1,
                           .gossip = 2,
                           .batch = 18, /* 9 steps an epoch */
                           .lr = 0.01,
                           .optim = DT_OPTIM_ADAM,
                           .comm = r->comm};
    gossip_open(&g, &c);
    if (load && !g.result)
        g.result = dt_trainer_load(g.t, load);
    if (!load)
        gossip_steps(&g, 4);
    if (save && !g.result)
        g.result = dt_trainer_save(g.t, save);
    dt_ctx_get_info(g.m.ctx, &before);
    gossip_steps(&g, 4);
    dt_ctx_get_info(g.m.ctx, &after);
    EXPECT(r, !checks_memory || before.host_alloc_calls == after.host_alloc_calls);
    const uint64_t hash = gossip_hash(&g);
    EXPECT_TEXT(r, !g.result && g.report.round == 4, "round %d: %s", (int)g.report.round,
                dt_ctx_error(g.m.ctx));
    dt_ctx_destroy(g.m.ctx);
    return hash;
}

/* Which pair is next follows from the rounds that the file has. */
static void saved_rank(rank *r) {
    char path[64];
    snprintf(path, sizeof path, "%s/saved", r->job->folder);
    r->numbers[0] = saved_hash(r, NULL, NULL, true);
    r->numbers[1] = saved_hash(r, NULL, path, false);
    r->numbers[2] = saved_hash(r, path, NULL, false);
    if (r->index == 0)
        remove(path);
}

TEST(gossip_resumes_from_a_checkpoint_with_the_same_bits_and_allocates_nothing) {
    job *j = job_new(3, NULL);
    if (!j)
        return;
    j->devices[2] = "cpu:2";
    if (job_run(j, saved_rank)) {
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < 3; i++)
                CHECK_TEXT(j->at[r].numbers[i] == j->at[0].numbers[0] && j->at[0].numbers[0],
                           "rank %d, run %d", r, i);
    }
    job_free(j);
}

/* ---- pairs */

enum { PAIR_ROUNDS = 6 };

/* One exchange a round, of three ranks: after it two are alike, and after the round all. Half way a
 * new trainer resumes from a file. */
static void pairs_rank(rank *r) {
    gossip_run g;
    char path[64];
    const gossip_case c = {.devices = "cpu",
                           .steps = 1,
                           .gossip = 2,
                           .batch = 12,
                           .lr = 0.1,
                           .optim = DT_OPTIM_SGD,
                           .outer = averaging,
                           .comm = r->comm};
    snprintf(path, sizeof path, "%s/pairs", r->job->folder);
    gossip_open(&g, &c);
    for (int round = 0; round < PAIR_ROUNDS && !g.result; round++) {
        if (round == PAIR_ROUNDS / 2 && !dt_trainer_save(g.t, path)) {
            dt_ctx_destroy(g.m.ctx);
            gossip_open(&g, &c);
            g.result = g.result ? g.result : dt_trainer_load(g.t, path);
        }
        gossip_steps(&g, 1);
        EXPECT(r, !g.report.round_ended);
        r->numbers[round] = gossip_hash(&g);
        gossip_steps(&g, 1);
        EXPECT(r, g.report.round_ended && g.report.round == (uint64_t)round + 1);
    }
    EXPECT_TEXT(r, !g.result, "%s", dt_ctx_error(g.m.ctx));
    dt_ctx_destroy(g.m.ctx);
    if (r->index == 0)
        remove(path);
}

TEST(gossip_pairs_alternate_over_all_rounds_and_after_a_resume) {
    job *j = job_new(3, NULL);
    if (!j)
        return;
    if (job_run(j, pairs_rank)) {
        for (int round = 0; round < PAIR_ROUNDS; round++) {
            const int *meets = partners[1][round % 3];
            for (int r = 0; r < 3; r++)
                for (int other = 0; other < 3; other++) {
                    const uint64_t a = j->at[r].numbers[round], b = j->at[other].numbers[round];
                    CHECK_TEXT(a && (a == b) == (r == other || meets[r] == other),
                               "round %d, ranks %d and %d: %016llx, %016llx", round, r, other,
                               (unsigned long long)a, (unsigned long long)b);
                }
        }
    }
    job_free(j);
}

/* ---- a rank that dies */

/* In exchanges 0, 1 of the second round rank 0 rests, then averages with rank 1. */
static void dying_rank(rank *r) {
    gossip_run g;
    const gossip_case c = {.devices = "cpu",
                           .steps = 1,
                           .gossip = 4,
                           .batch = 12,
                           .lr = 0.01,
                           .optim = DT_OPTIM_ADAM,
                           .comm = r->comm};
    gossip_open(&g, &c);
    gossip_steps(&g, 4);
    EXPECT_TEXT(r, !g.result && g.report.round_ended, "%s", dt_ctx_error(g.m.ctx));
    const uint64_t hash = gossip_hash(&g);
    atomic_store(&r->stage, 1);
    if (r->index == 1) { /* when the others need nothing more of the first round */
        job_await(r->job, 0, 1);
        job_await(r->job, 2, 1);
        _exit(0);
    }
    gossip_steps(&g, 4);
    EXPECT_TEXT(r, g.result == DT_ERROR_PEER_LOST, "%d: %s", (int)g.result, dt_ctx_error(g.m.ctx));
    EXPECT_TEXT(r,
                strstr(dt_ctx_error(g.m.ctx), "rank 1") && strstr(dt_ctx_error(g.m.ctx), "step 4"),
                "%s", dt_ctx_error(g.m.ctx));
    EXPECT(r, dt_trainer_step(g.t, NULL) == DT_ERROR_REVOKED);
    g.result = DT_OK;
    EXPECT(r, gossip_hash(&g) == hash); /* the weights that the round began with */
    dt_ctx_destroy(g.m.ctx);
}

TEST(a_rank_that_dies_between_gossip_exchanges_is_named_and_the_round_is_undone) {
    job *j = job_new(3, NULL);
    if (!j)
        return;
    j->at[1].doomed = true;
    job_run(j, dying_rank);
    job_free(j);
}

/* ---- one process */

TEST(gossip_within_a_process_makes_its_replicas_one) {
    gossip_run g;
    static float values[2][VALUES];
    const gossip_case c = {.devices = "cpu:2",
                           .valid = true,
                           .steps = 1,
                           .gossip = 3,
                           .batch = 24,
                           .lr = 0.1,
                           .optim = DT_OPTIM_SGD,
                           .outer = averaging};
    for (int i = 0; i < 2; i++) { /* a synchronous step of plain SGD, where every target counts */
        gossip_case now = c;
        now.synchronous = i;
        const bool opened = gossip_open(&g, &now); /* it makes what the text is of */
        if (!CHECK_TEXT(opened, "%s", dt_ctx_error(g.m.ctx)))
            return;
        gossip_steps(&g, 2); /* the second exchange is not a round's end */
        CHECK_TEXT(!g.result && (i || !g.report.round_ended), "%s", dt_ctx_error(g.m.ctx));
        gossip_values(&g, values[i]);
        dt_ctx_destroy(g.m.ctx);
    }
    for (int k = 0; k < VALUES; k++)
        CHECK_NEAR(values[0][k], values[1][k], 1e-6);
}

TEST(gossip_of_a_replica_on_vulkan_and_one_on_the_cpu_makes_their_weights_equal) {
    gossip_run g;
    static float values[3][VALUES];
    static const char *const devices[] = {"cpu:2", "vulkan:0,cpu", "cpu,vulkan:0"};
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    for (int i = 0; i < 3; i++) {
        const gossip_case c = {.devices = devices[i],
                               .vulkan = true,
                               .kind = 1,
                               .steps = 2,
                               .gossip = 3,
                               .batch = 24,
                               .lr = 0.1,
                               .optim = DT_OPTIM_SGD};
        gossip_open(&g, &c);
        gossip_steps(&g, 4); /* two exchanges */
        CHECK_TEXT(!g.result && !g.report.round_ended, "%s", dt_ctx_error(g.m.ctx));
        gossip_values(&g, values[i]); /* of the first replica */
        dt_ctx_destroy(g.m.ctx);
    }
    for (int k = 0; k < VALUES; k++) {
        CHECK_NEAR(values[1][k], values[0][k], 1e-3);
        CHECK_NEAR(values[2][k], values[0][k], 1e-3);
    }
}
