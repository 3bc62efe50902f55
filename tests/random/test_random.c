/* Random models from seeds: 3 to 40 rows of all kinds with awkward shapes. They run in every way,
 * and are held against the reference, finite differences and each other. A seed that fails prints
 * its model as C. DTRAIN_RANDOM_SEED: the first seed, DTRAIN_RANDOM_COUNT: how many. Included by
 * main.c after test_ops.c, whose bounds it uses. */
#ifdef DTRAIN_TESTS_OPS_BOUNDS_H /* else it is compiled apart */

#include "random/random_graph.h"
#include "random/random_print.h"
#include "random/random_ref.h"
#include "random/random_make.h"
#include "random/random_run.h"
#include "random/random_trainer.h"
#include "random/random_shrink.h"
#include "random/random_dump.h"

/* Under a sanitizer it is the memory that is looked at. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { RND_SEEDS = 60, RND_VULKAN_SEEDS = 2 };
#else
enum { RND_SEEDS = 150, RND_VULKAN_SEEDS = 20 };
#endif
enum { RND_LOOKED_AT = 600 }; /* models that are run if they have what none before had */
enum { RND_DEVICES = 7 };     /* one model in that number also in trainers on a device */

typedef struct rnd_tally {
    int models, ill, kinks, micros, trainers, empty, failed;
    int ops[DTI_OP_COUNT], kinds[RND_KIND_COUNT];
    int unary[DTI_COUNT(rnd_unary)], binary[DTI_COUNT(rnd_binary)];
} rnd_tally;

static long rnd_env(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && text[0] ? strtol(text, NULL, 10) : otherwise;
}

static void rnd_count(rnd_tally *t, const rnd_ref *r) {
    for (int i = 0; i < r->m->count; i++) {
        const rnd_stmt *s = &r->m->stmts[i];
        t->kinds[s->kind]++;
        t->unary[s->function] += s->kind == RND_UNARY;
        t->binary[s->kind == RND_BINARY ? s->function : 0] += s->kind == RND_BINARY;
    }
    for (uint32_t id = 1; id < r->b.graph->count; id++)
        t->ops[r->b.graph->nodes[id].op]++;
}

static void rnd_check_slopes(const rnd_ref *r, const rnd_expected *e, rnd_tally *t,
                             rnd_fault *fault) {
    for (uint64_t i = 1; i <= 2 && !e->ill; i++) {
        const rnd_slopes s = rnd_check_slope(r, e->value, i * 77);
        t->kinks += s.verdict == RND_SLOPE_KINK;
        if (s.verdict == RND_SLOPE_WRONG)
            rnd_wrong(fault,
                      "the reference: the gradient along a direction is %.9g, finite differences "
                      "give %.9g (of parts that add up to %.3g)",
                      s.said, s.found, s.scale);
    }
}

/* As one program over the batch: values and gradients; the same bits again, with threads. */
static void rnd_check_whole(const rnd_ref *r, const rnd_way *way, rnd_tally *t, double *a,
                            double *b, rnd_fault *fault) {
    const rnd_piece whole = {.rows = r->m->batch, .cpu = way->cpu};
    rnd_expected e = rnd_expect(r, &whole, 1);
    rnd_way other = *way;
    t->ill += e.ill;
    if (way->cpu && !r->mixed)
        rnd_check_slopes(r, &e, t, fault);
    other.commits = true;
    rnd_run_program(r, &other, false, a, fault);
    rnd_compare(r, &e, a, RND_ALL, way->name, fault);
    if (r->mixed)
        rnd_dump(r, &e, a);
    other.marks = true;
    other.name = "recompute";
    rnd_run_program(r, &other, false, b, fault);
    rnd_compare_bits(r, a, b, RND_ALL, other.name, fault);
    other.marks = false;
    other.budget = true;
    other.name = "recompute within a budget";
    rnd_run_program(r, &other, false, b, fault);
    rnd_compare_bits(r, a, b, RND_ALL, other.name, fault);
    other.commits = other.budget = false;
    other.name = way->cpu ? "cpu, 3 threads" : "again";
    other.threads = 3;
    rnd_run_program(r, &other, false, b, fault);
    rnd_compare_bits(r, a, b, RND_ALL & ~RND_BUFFERS, other.name, fault);
    if (way->cpu) {
        other = (rnd_way){"cpu, no_fast", "cpu", 1, true, true, true, .ctx = NULL};
        rnd_run_program(r, &other, false, b, fault);
        rnd_compare(r, &e, b, RND_ALL, other.name, fault);
    }
    rnd_expected_free(&e);
}

static void rnd_check_eval(const rnd_ref *r, rnd_way way, double *got, rnd_fault *fault) {
    const rnd_piece whole = {.rows = r->m->batch, .cpu = way.cpu, .eval = true, .forward = true};
    rnd_expected e = rnd_expect(r, &whole, 1);
    way.name = "eval mode";
    rnd_run_program(r, &way, true, got, fault);
    rnd_compare(r, &e, got, RND_TERMS | RND_OUTPUTS, way.name, fault);
    rnd_expected_free(&e);
}

static void rnd_check_micros(const rnd_ref *r, rnd_way way, rnd_tally *t, double *got,
                             rnd_fault *fault) {
    rnd_piece pieces[8];
    bool ran;
    for (int i = 0, row = 0; i < r->m->micro_count; row += r->m->micros[i++])
        pieces[i] = (rnd_piece){.first = row, .rows = r->m->micros[i], .cpu = way.cpu};
    way.name = "micro-batches";
    rnd_run_micros(r, &way, got, &ran, fault);
    if (!ran)
        return;
    t->micros++;
    rnd_expected e = rnd_expect(r, pieces, r->m->micro_count);
    rnd_compare(r, &e, got, RND_TERMS | RND_GRADIENTS, way.name, fault);
    rnd_expected_free(&e);
    double *again = calloc((size_t)r->total + 1, sizeof *again);
    way.marks = true;
    way.name = "recompute in micro-batches";
    rnd_run_micros(r, &way, again, &ran, fault);
    rnd_compare_bits(r, got, again, RND_TERMS | RND_GRADIENTS, way.name, fault);
    free(again);
}

static void rnd_check_ways(const rnd_ref *r, const rnd_way *way, rnd_tally *t, rnd_fault *fault) {
    const size_t n = (size_t)r->total + 1;
    double *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
    rnd_check_whole(r, way, t, a, b, fault);
    if (!fault->text[0])
        rnd_check_eval(r, *way, a, fault);
    if (!fault->text[0])
        rnd_check_micros(r, *way, t, a, fault);
    if (!fault->text[0] && (way->cpu || r->m->seed % RND_DEVICES == 0))
        t->trainers += rnd_run_trainers(r->m, way->cpu ? NULL : way->device, fault);
    free(a);
    free(b);
}

static void rnd_check(const rnd_model *m, const rnd_way *way, rnd_tally *t, rnd_fault *fault) {
    rnd_ref r;
    if (rnd_ref_open(&r, m)) {
        rnd_count(t, &r);
        rnd_check_ways(&r, way, t, fault);
    } else {
        rnd_wrong(fault, "%s", rnd_ref_error(&r));
    }
    rnd_ref_close(&r);
}

/* What seems to fail is looked at again, with more shakes. */
static void rnd_check_closely(const rnd_model *m, const rnd_way *way, rnd_fault *fault) {
    static rnd_tally unread;
    rnd_shakes = RND_SHAKES_MANY;
    rnd_check(m, way, &unread, fault);
    rnd_shakes = RND_SHAKES;
}

static void rnd_seed(uint64_t seed, const rnd_way *way, rnd_tally *t) {
    static rnd_model m;
    rnd_fault fault = {""};
    char error[512];
    t->models++;
    const bool made = rnd_make(&m, seed, !way->cpu, error);
    if (!made)
        rnd_wrong(&fault, "a call was refused: %s", error);
    else if (!m.loss_count)
        t->empty++;
    else
        rnd_check(&m, way, t, &fault);
    if (fault.text[0] && made) {
        fault.text[0] = 0;
        rnd_check_closely(&m, way, &fault);
    }
    if (!fault.text[0])
        return;
    t->failed++;
    test_check(false, __FILE__, __LINE__,
               "seed %llu on %s: %s\n  again: DTRAIN_RANDOM_SEED=%llu DTRAIN_RANDOM_COUNT=1 "
               "build/dtest random_models",
               (unsigned long long)seed, way->device, fault.text, (unsigned long long)seed);
    if (t->failed > 3)
        return;
    rnd_print(&m);
    if (!made)
        return;
    rnd_shrink_model(&m, way, &fault, rnd_check_closely);
    printf("  smaller, and wrong in the same way:\n");
    rnd_print(&m);
}

/* A trainer's, which random nets in test_sync_norm.c and random stacks in test_tensor.c have. */
static bool rnd_is_met(int op) {
    return op == DTI_OP_ALL_STATS || op == DTI_OP_ALL_MEAN ||
           (op >= DTI_OP_TP_SUM && op <= DTI_OP_TP_LABELS);
}

/* A row that no seed makes is a row that is not tested. CROSS_ENTROPY_WEIGHT and
 * WEIGHT_SUM are a program's own. */
static void rnd_check_coverage(const rnd_tally *t) {
    for (int i = 0; i < RND_KIND_COUNT; i++)
        test_check(t->kinds[i] > 0, __FILE__, __LINE__, "no model has %s", rnd_kind_names[i]);
    for (size_t i = 0; i < DTI_COUNT(rnd_unary); i++)
        test_check(t->unary[i] > 0, __FILE__, __LINE__, "no model has dt_%s", rnd_unary_names[i]);
    for (size_t i = 0; i < DTI_COUNT(rnd_binary); i++)
        test_check(t->binary[i] > 0, __FILE__, __LINE__, "no model has dt_%s", rnd_binary_names[i]);
    for (int op = DTI_OP_NIL + 1; op < DTI_OP_COUNT; op++)
        test_check(t->ops[op] > 0 || op == DTI_OP_CROSS_ENTROPY_WEIGHT || op == DTI_OP_WEIGHT_SUM ||
                       rnd_is_met(op) || own_row(op),
                   __FILE__, __LINE__, "no model has the row %s",
                   dti_op_info_of((uint32_t)op)->name);
}

static void rnd_say(const rnd_tally *t) {
    printf(
        "  %d models, %d failed, %d ill-conditioned, %d slopes at a kink, %d without a loss, %d in "
        "micro-batches, %d in trainers, %d pipelines, %d grids; worst error %.3g of what is "
        "allowed\n",
        t->models, t->failed, t->ill, t->kinks, t->empty, t->micros, t->trainers, rnd_pipelines,
        rnd_grids, rnd_worst);
    fflush(stdout);
}

static bool rnd_has_new(const rnd_ref *r, const rnd_tally *t) {
    static rnd_tally own;
    bool new = false;
    own = (rnd_tally){0};
    rnd_count(&own, r);
    for (int i = 0; i < RND_KIND_COUNT; i++)
        new = new || (own.kinds[i] && !t->kinds[i]);
    for (size_t i = 0; i < DTI_COUNT(rnd_unary); i++)
        new = new || (own.unary[i] && !t->unary[i]);
    for (size_t i = 0; i < DTI_COUNT(rnd_binary); i++)
        new = new || (own.binary[i] && !t->binary[i]);
    for (int op = 0; op < DTI_OP_COUNT; op++)
        new = new || (own.ops[op] && !t->ops[op]);
    return new;
}

/* Of RND_LOOKED_AT more seeds. */
static void rnd_rare(const rnd_way *way, rnd_tally *t, uint64_t first) {
    static rnd_model m;
    for (uint64_t seed = first; seed < first + RND_LOOKED_AT; seed++) {
        rnd_ref r;
        char error[512];
        if (!rnd_make(&m, seed, !way->cpu, error) || !m.loss_count)
            continue;
        const bool new = rnd_ref_open(&r, &m) && rnd_has_new(&r, t);
        rnd_ref_close(&r);
        if (new)
            rnd_seed(seed, way, t);
    }
}

/* From DTRAIN_RANDOM_SEED on, DTRAIN_RANDOM_COUNT of them. */
static void rnd_seeds(const rnd_way *way, rnd_tally *t, long few) {
    const long first = rnd_env("DTRAIN_RANDOM_SEED", 1),
               count = rnd_env("DTRAIN_RANDOM_COUNT", test_is_long() ? 10 * few : few);
    for (long i = 0; i < count; i++) {
        rnd_seed((uint64_t)(first + i), way, t);
        if (count > 1000 && (i + 1) % 1000 == 0)
            rnd_say(t);
    }
    test_check(t->ill + t->empty + t->kinks / 2 <= t->models / 15 + 1, __FILE__, __LINE__,
               "%d ill-conditioned, %d without a loss, %d slopes at a kink of %d models: too many "
               "tell nothing",
               t->ill, t->empty, t->kinks, t->models);
    if (getenv("DTRAIN_RANDOM_COUNT"))
        rnd_say(t);
}

TEST(random_models_agree_with_the_reference_on_the_cpu) {
    static rnd_tally t;
    static const rnd_way cpu = {"cpu", "cpu", .threads = 1, .cpu = true};
    rnd_seeds(&cpu, &t, RND_SEEDS);
    if (t.models >= 150) {
        rnd_rare(&cpu, &t, (uint64_t)(rnd_env("DTRAIN_RANDOM_SEED", 1) + t.models));
        rnd_check_coverage(&t);
    }
    if (t.models >= 150)
        test_check(rnd_grids > t.models / 15, __FILE__, __LINE__,
                   "%d grids over ranks of %d models", rnd_grids, t.models);
}

TEST(random_models_in_mixed_precision_are_within_the_bound_of_its_roundings) {
    static rnd_tally t;
    static const rnd_way cpu = {"cpu", "cpu", .threads = 1, .cpu = true};
    rnd_precision = DT_PRECISION_BF16;
    rnd_seeds(&cpu, &t, RND_SEEDS / 3);
    rnd_precision = DT_PRECISION_F32;
}

#ifndef DT_NO_VULKAN

/* Small ones, in one context: compiling kernels is what takes time. */
static void rnd_vulkan(int number) {
    static rnd_tally t;
    char id[32];
    dt_ctx *ctx = NULL;
    dt_graph *graph;
    dt_store *keep = NULL;
    t = (rnd_tally){0};
    if (!ops_vulkan(number, id))
        SKIP("no such device");
    REQUIRE(dt_ctx_create(NULL, &ctx) == DT_OK && dt_graph_create(ctx, &graph) == DT_OK);
    dt_param(graph, "keep", dt_dims(1), (dt_init){0});
    const rnd_way way = {id, id, .ctx = ctx};
    if (!dt_store_create(graph, &(dt_store_desc){.device = id}, &keep))
        rnd_seeds(&way, &t, ops_is_slow(id) ? RND_VULKAN_SEEDS / 3 : RND_VULKAN_SEEDS);
    CHECK(keep != NULL);
    dt_ctx_destroy(ctx);
}

TEST(random_models_agree_with_the_reference_on_vulkan_device_0) {
    rnd_vulkan(0);
}
TEST(random_models_agree_with_the_reference_on_vulkan_device_1) {
    rnd_vulkan(1);
}
TEST(random_models_agree_with_the_reference_on_vulkan_device_2) {
    rnd_vulkan(2);
}

#endif
#endif
