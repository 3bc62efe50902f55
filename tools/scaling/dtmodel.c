/* How long collectives and training steps take on a network that is not there. It uses a virtual
 * clock, the library's own schedules, and a few numbers as inputs. dtmodel_sim.h is the network and
 * says what it leaves out, dtmodel_step.h the training step, dtmodel_pipe.h pipelines and grids;
 * this is the command line, the fit of two measured times, and the check that simulation and closed
 * formulas agree. It measures nothing. */
#define DT_COMM_ONLY
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtmodel_sim.h"
#include "dtmodel_alike.h"
#include "dtmodel_run.h"
#include "dtmodel_step.h"
#include "dtmodel_pipe.h"

#define LIST_MAX 64

static const char help[] =
    "usage: dtmodel [OPTION VALUE]...             a training step's time, by ranks and algorithm\n"
    "       dtmodel --collective BYTES,... [...]  one all-reduce's time instead\n"
    "       dtmodel --grid DxPxT,... [...]        steps of data x pipeline x tensor grids\n"
    "       dtmodel --fit BYTES:US,BYTES:US [...] alpha and beta from two measured times\n"
    "       dtmodel --check                       compares it with closed formulas\n"
    "  --ranks 2,4,...       default 2,4,8,16,32,64,128,256,512,1024\n"
    "  --algorithm A,...     direct, ring, halving, doubling, one-shot, default; the first three\n"
    "  --model M             cnn, mlp10m, resnet50 (the default), gpt2xl, or a file with lines\n"
    "                        NAME PARAMETERS FORWARD_MS BACKWARD_MS [OUT_BYTES [KEPT_BYTES]],\n"
    "                        and optimizer MS\n"
    "  --bucket-bytes N      26214400; the first bucket 1 MiB\n"
    "  --link NS,BYTES_PER_S,NS  latency, bandwidth, a further message, as dtbench_comm prints\n"
    "                        them: in place of alpha, beta and message-us\n"
    "  --alpha-us T          50: one frame's latency\n"
    "  --beta-gbit R         10: a link, each way; 0 = no limit\n"
    "  --gamma-ns T          0.1: to add a byte\n"
    "  --message-us T        1: the processor, for a frame, at each end\n"
    "  --byte-ns T           0.3: the processor, for a byte sent or received\n"
    "  --chunk-bytes, --window, --buffer-bytes N  65536, 4, 262144 (of a connection)\n"
    "  --schedule S,...      of grids: fill-drain, 1f1b, interleaved, zero-bubble; all four\n"
    "  --micros M            8: micro-batches; --chunks V, 2: of a device, interleaved\n"
    "  --per-host H          1: devices of a host, next to each other: a tensor group, then "
    "replicas\n"
    "  --near-us T, --near-gbit R  2, 1000: alpha and beta in a host\n"
    "  --copy-ns T           0: the taker's time for a byte of another chunk's (one process)\n"
    "  --part-us T           0: what each part costs, whatever it computes\n"
    "  --split S             0.5: what of a backward part zero-bubble does first\n"
    "  --full                simulate every rank even where all do alike\n"
    "  --json                one object a line\n";

typedef struct request {
    network net;
    uint32_t ranks[LIST_MAX], rank_count;
    dt_comm_algorithm algorithms[LIST_MAX];
    uint32_t algorithm_count;
    uint64_t sizes[LIST_MAX];
    uint32_t size_count;
    const char *model, *fit;
    uint64_t bucket_bytes;
    pipe_grid grids[LIST_MAX], every; /* every: what all have in common */
    dt_pipeline_schedule schedules[4];
    uint32_t grid_count, schedule_count;
    bool json, check;
} request;

static const network net_default = {.alpha = 50e-6,
                                    .beta = 8e-9 / 10,
                                    .gamma = 0.1e-9,
                                    .message_cost = 1e-6,
                                    .byte_cost = 0.3e-9,
                                    .chunk_bytes = 65536,
                                    .buffer_bytes = 262144,
                                    .window = 4,
                                    .header_bytes = 64};

/* ---- tables */

static void print_collective(const request *r, uint32_t ranks, uint64_t bytes) {
    if (!r->json)
        printf("| %u | %llu |", ranks, (unsigned long long)bytes);
    for (uint32_t i = 0; i < r->algorithm_count; i++) {
        double us = 1e6 * sum_seconds(&r->net, ranks, r->algorithms[i], bytes / 4);
        if (r->json)
            printf("{\"ranks\": %u, \"bytes\": %llu, \"algorithm\": \"%s\", \"us\": %.3f}\n", ranks,
                   (unsigned long long)bytes, dti_algorithm_name(r->algorithms[i]), us);
        else
            printf(" %.1f |", us);
        fflush(stdout);
    }
    if (!r->json)
        puts("");
}

static void run_collectives(const request *r) {
    if (!r->json) {
        printf("| ranks | bytes |");
        for (uint32_t i = 0; i < r->algorithm_count; i++)
            printf(" %s, us |", dti_algorithm_name(r->algorithms[i]));
        printf("\n|---|---|");
        for (uint32_t i = 0; i < r->algorithm_count; i++)
            printf("---|");
        puts("");
    }
    for (uint32_t i = 0; i < r->rank_count; i++)
        for (uint32_t k = 0; k < r->size_count; k++)
            print_collective(r, r->ranks[i], r->sizes[k]);
}

static void print_step_json(const request *r, uint32_t ranks, dt_comm_algorithm algorithm,
                            const step_times *t) {
    printf("{\"model\": \"%s\", \"ranks\": %u, \"algorithm\": \"%s\", \"alone_ms\": %.4f, "
           "\"step_ms\": %.4f, \"network_ms\": %.4f, \"exposed_ms\": %.4f, \"efficiency\": %.4f, "
           "\"simulated\": %u}\n",
           r->model, ranks, dti_algorithm_name(algorithm), t->alone_s * 1e3, t->step_s * 1e3,
           t->network_s * 1e3, t->exposed_s * 1e3, t->efficiency, t->symmetry ? 1 : ranks);
}

static void print_steps_head(const request *r, const model *m) {
    static bucket buckets[BUCKETS_MAX];
    printf("%s: %.1f million parameters, %u buckets; alone %.1f + %.1f + %.1f ms (forward, "
           "backward, optimizer)\n\n| ranks |",
           m->name, model_parameters(m) * 1e-6, model_buckets(m, r->bucket_bytes, buckets),
           m->forward_s * 1e3, m->backward_s * 1e3, m->optimizer_s * 1e3);
    for (uint32_t i = 0; i < r->algorithm_count; i++)
        printf(" %s: step, ms | exposed | efficiency |", dti_algorithm_name(r->algorithms[i]));
    printf("\n|---|");
    for (uint32_t i = 0; i < r->algorithm_count; i++)
        printf("---|---|---|");
    puts("");
}

static void run_steps(const request *r) {
    static model m;
    model_open(&m, r->model);
    if (!r->json)
        print_steps_head(r, &m);
    for (uint32_t i = 0; i < r->rank_count; i++) {
        if (!r->json)
            printf("| %u |", r->ranks[i]);
        for (uint32_t k = 0; k < r->algorithm_count; k++) {
            step_times t = step_of(&r->net, &m, r->bucket_bytes, r->ranks[i], r->algorithms[k]);
            if (r->json)
                print_step_json(r, r->ranks[i], r->algorithms[k], &t);
            else
                printf(" %.1f | %.1f | %.3f |", t.step_s * 1e3, t.exposed_s * 1e3, t.efficiency);
            fflush(stdout);
        }
        if (!r->json)
            puts("");
    }
}

static const char *const schedule_names[] = {"1f1b", "fill-drain", "interleaved", "zero-bubble"};

static void print_grid(const request *r, const pipe_grid *g, const pipe_times *t) {
    const char *name = schedule_names[g->schedule];
    if (r->json)
        printf("{\"model\": \"%s\", \"data\": %u, \"pipeline\": %u, \"tensor\": %u, \"schedule\": "
               "\"%s\", \"micros\": %u, \"step_ms\": %.4f, \"bubble\": %.4f, \"idle\": %.4f, "
               "\"exposed_ms\": %.4f, \"alive\": %u, \"gib\": %.3f, \"efficiency\": %.4f}\n",
               r->model, g->data, g->pipeline, g->tensor, name, g->micros, t->step_s * 1e3,
               t->bubble, t->idle, t->exposed_s * 1e3, t->alive, t->bytes / (1 << 30),
               t->efficiency);
    else
        printf("| %u x %u x %u | %s | %.1f | %.3f | %.3f | %.1f | %u | %.2f | %.3f |\n", g->data,
               g->pipeline, g->tensor, name, t->step_s * 1e3, t->bubble, t->idle,
               t->exposed_s * 1e3, t->alive, t->bytes / (1 << 30), t->efficiency);
    fflush(stdout);
}

static void run_grids(const request *r) {
    static model m;
    model_open(&m, r->model);
    if (!r->json)
        printf("%s: %.1f million parameters; a replica's batch alone %.1f + %.1f + %.1f ms, in %u "
               "micro-batches\n\n| data x pipeline x tensor | schedule | step, ms | bubble by unit "
               "times | idle | sums exposed, ms | alive | GiB of a device | efficiency "
               "|\n|---|---|---|---|---|---|---|---|---|\n",
               m.name, model_parameters(&m) * 1e-6, m.forward_s * 1e3, m.backward_s * 1e3,
               m.optimizer_s * 1e3, r->every.micros);
    for (uint32_t i = 0; i < r->grid_count; i++)
        for (uint32_t k = 0; k < r->schedule_count; k++) {
            pipe_grid g = r->every;
            g.data = r->grids[i].data;
            g.pipeline = r->grids[i].pipeline;
            g.tensor = r->grids[i].tensor;
            g.schedule = r->schedules[k];
            if (k && g.pipeline == 1) /* which is not a pipeline */
                continue;
            const pipe_times t = pipe_step_of(&r->net, &m, &g, r->algorithms[0]);
            print_grid(r, &g, &t);
        }
}

/* ---- fit: the time of the larger array is mostly beta's, that of the smaller one alpha's */

#define FIT_TURNS 200

static void run_fit(request *r) {
    double bytes[2], us[2], small = 0, large = 0;
    if (sscanf(r->fit, "%lf:%lf,%lf:%lf", &bytes[0], &us[0], &bytes[1], &us[1]) != 4 ||
        !(bytes[0] < bytes[1]) || !(bytes[0] >= 4) || !(us[0] > 0 && us[1] > 0))
        sim_fail(r->fit, "is not BYTES:US,BYTES:US, the smaller one first");
    network *net = &r->net;
    for (int turn = 0; turn < FIT_TURNS; turn++) {
        large = 1e6 * sum_seconds(net, r->ranks[0], r->algorithms[0], (uint64_t)bytes[1] / 4);
        net->beta *= 1 + 0.5 * (us[1] / large - 1);
        small = 1e6 * sum_seconds(net, r->ranks[0], r->algorithms[0], (uint64_t)bytes[0] / 4);
        net->alpha = DTI_MAX(net->alpha + 0.1e-6 * (us[0] - small), 0);
    }
    printf("%u ranks, %s: --alpha-us %.2f --beta-gbit %.5f gives %.1f us at %.0f bytes, %.1f at "
           "%.0f\n",
           r->ranks[0], dti_algorithm_name(r->algorithms[0]), net->alpha * 1e6, 8e-9 / net->beta,
           small, bytes[0], large, bytes[1]);
}

/* ---- check */

static int wrong;

static void expect(double got, double wanted, double tolerance, const char *what, uint32_t ranks) {
    if (fabs(got - wanted) <= tolerance * fabs(wanted))
        return;
    wrong++;
    printf("%s, %u ranks: %.9g s, it should be %.9g\n", what, ranks, got, wanted);
}

/* One chunk a message, everything permitted, nothing but alpha, beta and gamma. */
static network net_ideal(void) {
    return (network){.alpha = 50e-6,
                     .beta = 0.8e-9,
                     .gamma = 0.1e-9,
                     .chunk_bytes = (uint64_t)1 << 30,
                     .buffer_bytes = UINT64_MAX,
                     .window = 1u << 30,
                     .permitted = true};
}

/* Chan, Heimlich, Purkayastha, van de Geijn: Collective communication: theory, practice, and
 * experience, CCPE 19, 2007; direct: the same with all messages of a half at once. */
static void check_formulas(bool full) {
    network net = net_ideal();
    net.full = full;
    for (uint32_t n = 2, levels = 1; n <= 64; n *= 2, levels++) {
        double bytes = 4.0 * 4096 * n, share = (n - 1.0) / n;
        double moved = 2 * share * bytes * net.beta, added = share * bytes * net.gamma;
        uint64_t elements = (uint64_t)bytes / 4;
        expect(sum_seconds(&net, n, DT_COMM_ALGORITHM_DIRECT, elements),
               2 * net.alpha + moved + added, 1e-9, "direct", n);
        expect(sum_seconds(&net, n, DT_COMM_ALGORITHM_RING, elements),
               2 * (n - 1) * net.alpha + moved + added, 1e-9, "ring", n);
        expect(sum_seconds(&net, n, DT_COMM_ALGORITHM_HALVING, elements),
               2 * levels * net.alpha + moved + added, 1e-9, "halving", n);
        expect(sum_seconds(&net, n, DT_COMM_ALGORITHM_DOUBLING, elements),
               levels * (net.alpha + bytes * (net.beta + net.gamma)), 1e-9, "doubling", n);
        expect(barrier_seconds(&net, n), levels * (net.alpha + net.beta), 1e-3, "barrier", n);
    }
}

/* One link out that is busy, one link in; and who may stand for whom. */
static void check_links(void) {
    network net = net_ideal();
    for (uint32_t n = 2; n <= 8; n++) {
        operation deal = {.what.op = {.kind = DT_COMM_BROADCAST,
                                      .count = 4096,
                                      .dtype = DT_F32,
                                      .algorithm = DT_COMM_ALGORITHM_ONE_SHOT}};
        operation collect = deal, ring = operation_of(DT_COMM_ALGORITHM_RING, 4096, 0);
        operation halving = operation_of(DT_COMM_ALGORITHM_HALVING, 4096, 0);
        collect.what.op.kind = DT_COMM_GATHER;
        collect.what.op.algorithm = DT_COMM_ALGORITHM_DIRECT;
        double wanted = net.alpha + (n - 1) * 4.0 * 4096 * net.beta;
        expect(sim_run(&net, n, &deal, 1), SYMMETRY_NONE, 0, "symmetry of broadcast", n);
        expect(sim_run(&net, n, &collect, 1), SYMMETRY_NONE, 0, "symmetry of gather", n);
        expect(sim_run(&net, n, &ring, 1), SYMMETRY_TURN, 0, "symmetry of ring", n);
        if (n == 4 || n == 8)
            expect(sim_run(&net, n, &halving, 1), SYMMETRY_XOR, 0, "symmetry of halving", n);
        expect(deal.done_at, wanted, 1e-9, "broadcast", n);
        expect(collect.done_at, wanted, 1e-9, "gather", n);
    }
}

/* One rank for all gives what all give; and with the real rules the bandwidth bound holds, and is
 * nearly reached by large arrays. */
static void check_rules(void) {
    static const dt_comm_algorithm algorithms[] = {DT_COMM_ALGORITHM_DIRECT, DT_COMM_ALGORITHM_RING,
                                                   DT_COMM_ALGORITHM_HALVING};
    network one = net_default, all = net_default;
    one.byte_cost = all.byte_cost = 0.1e-9;
    all.full = true;
    for (uint32_t n = 2; n <= 16; n *= 2)
        for (int a = 0; a < 3; a++)
            for (uint64_t elements = 256; elements <= 1u << 24; elements *= 16) {
                double got = sum_seconds(&one, n, algorithms[a], elements);
                double bound = 2 * (n - 1.0) / n * 4.0 * (double)elements * one.beta;
                const char *name = dti_algorithm_name(algorithms[a]);
                if (elements <= 1u << 20)
                    expect(got, sum_seconds(&all, n, algorithms[a], elements), 0.01, name, n);
                if (got < bound)
                    expect(got, bound, 0, "faster than the bandwidth bound", n);
                if (elements == 1u << 24 && algorithms[a] != DT_COMM_ALGORITHM_HALVING)
                    expect(got, bound, 0.1, "64 MiB near the bandwidth bound", n);
            }
}

/* A network that costs nothing adds nothing; with a single bucket all of its sum is exposed. */
static void check_steps(void) {
    static model m;
    network net = {.chunk_bytes = 65536, .buffer_bytes = 262144, .window = 4};
    model_open(&m, "resnet50");
    expect(model_parameters(&m), 25557032, 0, "resnet50's parameters", 1);
    step_times t = step_of(&net, &m, 25u << 20, 8, DT_COMM_ALGORITHM_DIRECT);
    expect(t.step_s, t.alone_s, 1e-12, "a step with a free network", 8);
    net = net_default;
    model_open(&m, "cnn");
    m.layers[2].parameters = m.layers[3].parameters = 0; /* so that the first is the last */
    t = step_of(&net, &m, 25u << 20, 8, DT_COMM_ALGORITHM_RING);
    double sum = sum_seconds(&net, 8, DT_COMM_ALGORITHM_RING, (uint64_t)model_parameters(&m));
    expect(t.exposed_s, sum + barrier_seconds(&net, 8), 1e-9, "a single bucket's exposed time", 8);
}

/* Layers alike, one for each chunk, whose times are the schedule's units: 1 forward, 2 backward. */
static void check_pipe_model(model *m, uint32_t layers, uint32_t micros) {
    *m = (model){.name = "units"};
    for (uint32_t i = 0; i < layers; i++) {
        model_add(m, 1000, 0);
        m->layers[i].forward_s = micros;
        m->layers[i].backward_s = 2.0 * micros;
        m->layers[i].out_bytes = 4.0 * micros;
        m->layers[i].kept_bytes = 64.0 * micros;
        m->forward_s += micros;
        m->backward_s += 2.0 * micros;
    }
}

/* By unit times and with nothing on the way a pipeline is idle as its schedule says. The known
 * values are (p - 1) / m, for interleaved / v, for zero bubble / 3, where there are enough
 * micro-batches. */
static void check_bubbles(void) {
    static model m;
    static const double parts[] = {1, 1, 2, 3};
    network net = {.chunk_bytes = 65536, .buffer_bytes = 262144, .window = 4, .permitted = true};
    pipe_grid g = {.data = 1, .tensor = 1, .chunks = 2, .per_host = 1, .split_share = 0.5};
    g.bucket_bytes = 4096;
    for (g.pipeline = 1; g.pipeline <= 12; g.pipeline++)
        for (g.micros = 1; g.micros <= 24; g.micros++)
            for (int k = 0; k < 4; k++) {
                const double p = g.pipeline - 1.0;
                g.schedule = (dt_pipeline_schedule)k;
                check_pipe_model(&m, g.pipeline * (k == DT_PIPELINE_INTERLEAVED ? 2 : 1), g.micros);
                const pipe_times t = pipe_step_of(&net, &m, &g, DT_COMM_ALGORITHM_DIRECT);
                expect(1 + t.idle, 1 + t.bubble, 1e-9, schedule_names[k], g.pipeline);
                if (g.micros % g.pipeline == 0 && g.micros >= 2 * g.pipeline)
                    expect(1 + t.idle, 1 + p / (parts[k] * g.micros), 1e-9, "a known bubble",
                           g.pipeline);
            }
}

/* Devices that are one, memory, links, and sums over replicas: each by its formula. */
static void check_grids(void) {
    static model m;
    network net = net_ideal();
    pipe_grid g = {.data = 1, .pipeline = 4, .tensor = 1, .micros = 8, .per_host = 1, .near = net};
    g.bucket_bytes = 4096; /* all of a chunk */
    check_pipe_model(&m, 4, g.micros);
    g.schedule = DT_PIPELINE_FILL_DRAIN;
    pipe_times t = pipe_step_of(&net, &m, &g, DT_COMM_ALGORITHM_DIRECT);
    /* the first micro-batch goes over three links, the last one's gradients over three back */
    expect(t.pipe_s, 3 * (8 + 3) + 6 * (net.alpha + 4 * net.beta), 1e-12, "a pipeline's links", 4);
    expect(t.bytes, STATE_BYTES * 1000 + 8 * 64, 0, "fill-drain keeps all", 4);
    g.schedule = DT_PIPELINE_1F1B;
    t = pipe_step_of(&net, &m, &g, DT_COMM_ALGORITHM_DIRECT);
    expect(t.bytes, STATE_BYTES * 1000 + 4 * 64, 0, "1F1B keeps p", 4);
    g.data = 16;
    t = pipe_step_of(&net, &m, &g, DT_COMM_ALGORITHM_RING);
    expect(t.exposed_s, sum_seconds(&net, 16, DT_COMM_ALGORITHM_RING, 1000), 1e-6,
           "the last chunk's sum", 16);
    g = (pipe_grid){.data = 32, .pipeline = 1, .tensor = 1, .micros = 1, .per_host = 8};
    g.near = net;
    g.bucket_bytes = 4096;
    check_pipe_model(&m, 1, 1);
    t = pipe_step_of(&net, &m, &g, DT_COMM_ALGORITHM_RING);
    expect(t.exposed_s,
           sum_seconds(&net, 8, DT_COMM_ALGORITHM_DIRECT, 1000) +
               sum_seconds(&net, 4, DT_COMM_ALGORITHM_RING, 1000),
           1e-12, "sums in two levels", 32);
    g.bucket_bytes = 1000; /* a quarter each: of a backward part of 2 s all but one hide */
    const double whole = t.exposed_s;
    t = pipe_step_of(&net, &m, &g, DT_COMM_ALGORITHM_RING);
    expect(t.exposed_s, whole / 4, 1e-9, "four buckets", 32);
}

/* The links that choice is checked on: alpha, Gbit/s, o, G. */
static const struct {
    const char *name;
    double alpha, gbit, message_cost, byte_cost;
} check_networks[] = {{"loopback", 2e-6, 0, 4e-6, 0.15e-9},
                      {"1 Gbit/s", 40e-6, 1, 2e-6, 0.15e-9},
                      {"10 Gbit/s", 20e-6, 10, 2e-6, 0.15e-9},
                      {"100 Gbit/s", 5e-6, 100, 1e-6, 0.02e-9},
                      {"20 ms, 1 Gbit/s", 20e-3, 1, 2e-6, 0.15e-9}};

/* What is chosen takes at most 1.1 of what the fastest candidate takes, chunks, permissions and
 * windows included; 1.3 where the processor is slower than the link (100 Gbit/s). */
static void check_choice_at(const network *net, const char *name, uint32_t n, uint64_t bytes) {
    dti_costs costs = network_costs(net, n);
    dti_collective c = {.size = n, .chunk_bytes = net->chunk_bytes, .costs = &costs};
    c.each = net->beta > 0 ? 0 : n;
    c.op = (dt_comm_op){.kind = DT_COMM_ALL_REDUCE, .count = bytes / 4, .dtype = DT_F32};
    dt_comm_algorithm chosen = dti_algorithm_default(&c), fastest = chosen;
    double taken = sum_seconds(net, n, chosen, bytes / 4), least = taken;
    for (int a = DT_COMM_ALGORITHM_DIRECT; a < DT_COMM_ALGORITHM_HIERARCHICAL; a++) {
        dt_comm_algorithm other = (dt_comm_algorithm)a;
        if (other == chosen || !dti_algorithm_is_candidate(&c, other) ||
            dti_cost_algorithm(&c, other) > 4 * dti_cost_algorithm(&c, chosen))
            continue;
        double seconds = sum_seconds(net, n, other, bytes / 4);
        fastest = seconds < least ? other : fastest;
        least = DTI_MIN(seconds, least);
    }
    if (taken <= (net->beta > 0.1e-9 ? 1.1 : 1.3) * least)
        return;
    wrong++;
    printf("%s, %u ranks, %llu bytes: chosen %s takes %.1f us, %s %.1f\n", name, n,
           (unsigned long long)bytes, dti_algorithm_name(chosen), taken * 1e6,
           dti_algorithm_name(fastest), least * 1e6);
}

/* On one host only what the caches hold: above, memory decides, which is not modelled. */
static void check_choice(void) {
    static const uint32_t ranks[] = {2, 3, 4, 5, 6, 7, 8, 9, 16, 32};
    for (size_t i = 0; i < DTI_COUNT(check_networks); i++) {
        network net = net_default;
        net.alpha = check_networks[i].alpha;
        net.beta = check_networks[i].gbit > 0 ? 8e-9 / check_networks[i].gbit : 0;
        net.message_cost = check_networks[i].message_cost;
        net.byte_cost = check_networks[i].byte_cost;
        for (size_t k = 0; k < DTI_COUNT(ranks); k++)
            for (uint64_t bytes = 1 << 10; bytes <= (net.beta > 0 ? 64u << 20 : 256u << 10);
                 bytes *= 4)
                check_choice_at(&net, check_networks[i].name, ranks[k], bytes);
    }
}

static int run_check(void) {
    check_formulas(false);
    check_formulas(true);
    check_links();
    check_rules();
    check_steps();
    check_bubbles();
    check_grids();
    check_choice();
    puts(wrong ? "dtmodel: the model is wrong" : "dtmodel: agrees with the closed formulas");
    return wrong ? 1 : 0;
}

/* ---- the command line */

static double number_of(const char *option, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0 && value < 1e18))
        sim_fail(option, "takes a number, 0 or more");
    return value;
}

static dt_comm_algorithm algorithm_of(const char *name) {
    for (int i = DT_COMM_ALGORITHM_DEFAULT; i < DT_COMM_ALGORITHM_HIERARCHICAL; i++)
        if (!strcmp(name, dti_algorithm_name((dt_comm_algorithm)i)))
            return (dt_comm_algorithm)i;
    sim_fail(name, "no algorithm; there are direct, ring, halving, doubling, one-shot, default");
}

/* What a list's option takes; its items are separated by commas. */
static void take_list(request *r, const char *option, char *text) {
    uint32_t count = 0;
    for (char *item = strtok(text, ","); item; item = strtok(NULL, ",")) {
        if (count == LIST_MAX)
            sim_fail(option, "has more than 64 items");
        if (!strcmp(option, "--algorithm"))
            r->algorithms[count] = algorithm_of(item);
        else if (!strcmp(option, "--ranks"))
            r->ranks[count] = (uint32_t)number_of(option, item);
        else
            r->sizes[count] = (uint64_t)number_of(option, item);
        if (!strcmp(option, "--ranks") && (r->ranks[count] < 2 || r->ranks[count] > 65535))
            sim_fail(option, "are 2 to 65535");
        if (!strcmp(option, "--collective") && r->sizes[count] < 4)
            sim_fail(option, "takes sizes of 4 bytes and more");
        count++;
    }
    if (!count)
        sim_fail(option, "has no item");
    if (!strcmp(option, "--algorithm"))
        r->algorithm_count = count;
    else
        *(strcmp(option, "--ranks") ? &r->size_count : &r->rank_count) = count;
}

static void take_grids(request *r, const char *text) {
    int used = 0;
    for (r->grid_count = 0; *text; text += used + (text[used] == ',')) {
        pipe_grid *g = &r->grids[r->grid_count++];
        if (r->grid_count > LIST_MAX ||
            sscanf(text, "%ux%ux%u%n", &g->data, &g->pipeline, &g->tensor, &used) != 3 ||
            !g->data || !g->pipeline || !g->tensor || g->data > 65535 || g->pipeline > 1024 ||
            g->tensor > 1024 || (text[used] && text[used] != ','))
            sim_fail(text, "is not DATAxPIPELINExTENSOR, as 8x4x2, up to 65535 x 1024 x 1024");
    }
}

static void take_schedules(request *r, char *text) {
    r->schedule_count = 0;
    for (char *item = strtok(text, ","); item; item = strtok(NULL, ",")) {
        int k = 0;
        while (k < 4 && strcmp(item, schedule_names[k]) != 0)
            k++;
        if (k == 4 || r->schedule_count == 4)
            sim_fail(item, "no schedule; there are 1f1b, fill-drain, interleaved, zero-bubble");
        r->schedules[r->schedule_count++] = (dt_pipeline_schedule)k;
    }
}

/* Counts, of at least 1. */
static bool take_count(request *r, const char *option, const char *text) {
    const struct {
        const char *option;
        uint32_t *value, most;
    } counts[] = {{"--micros", &r->every.micros, DTI_PIPE_MICROS_MAX},
                  {"--chunks", &r->every.chunks, 64},
                  {"--per-host", &r->every.per_host, 1024}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (!strcmp(option, counts[i].option)) {
            const double value = number_of(option, text);
            if (!(value >= 1 && value <= counts[i].most))
                sim_fail(option, "takes a count, from 1 on, and not that many");
            *counts[i].value = (uint32_t)value;
            return true;
        }
    return false;
}

static bool take_number(request *r, const char *option, const char *text) {
    const struct {
        const char *option;
        double *value, scale;
    } numbers[] = {
        {"--near-us", &r->every.near.alpha, 1e-6},    {"--copy-ns", &r->every.copy_s, 1e-9},
        {"--part-us", &r->every.part_s, 1e-6},        {"--split", &r->every.split_share, 1},
        {"--alpha-us", &r->net.alpha, 1e-6},          {"--gamma-ns", &r->net.gamma, 1e-9},
        {"--message-us", &r->net.message_cost, 1e-6}, {"--byte-ns", &r->net.byte_cost, 1e-9}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(option, numbers[i].option)) {
            *numbers[i].value = number_of(option, text) * numbers[i].scale;
            return true;
        }
    if (!strcmp(option, "--beta-gbit"))
        r->net.beta = number_of(option, text) > 0 ? 8e-9 / number_of(option, text) : 0;
    else if (!strcmp(option, "--near-gbit"))
        r->every.near.beta = number_of(option, text) > 0 ? 8e-9 / number_of(option, text) : 0;
    else if (!strcmp(option, "--chunk-bytes"))
        r->net.chunk_bytes = (uint64_t)DTI_MIN(DTI_MAX(number_of(option, text), 4096), 8 << 20);
    else if (!strcmp(option, "--buffer-bytes"))
        r->net.buffer_bytes = (uint64_t)DTI_MAX(number_of(option, text), 1);
    else if (!strcmp(option, "--window"))
        r->net.window = (uint32_t)DTI_MIN(DTI_MAX(number_of(option, text), 1), 64);
    else if (!strcmp(option, "--bucket-bytes"))
        r->every.bucket_bytes = r->bucket_bytes = (uint64_t)DTI_MAX(number_of(option, text), 4);
    else
        return false;
    return true;
}

/* As measured, a message takes both processors too. */
static void take_link(request *r, const char *text) {
    double latency, rate, message;
    if (sscanf(text, "%lf,%lf,%lf", &latency, &rate, &message) != 3 || !(latency > 0) ||
        !(rate > 0) || !(message >= 0))
        sim_fail(text, "is not NS,BYTES_PER_S,NS");
    r->net.message_cost = DTI_MIN(message, latency) * 0.5e-9;
    r->net.alpha = latency * 1e-9 - 2 * r->net.message_cost;
    r->net.beta = 1 / rate;
}

static bool take_option(request *r, const char *option, char *value) {
    if (!strcmp(option, "--ranks") || !strcmp(option, "--algorithm") ||
        !strcmp(option, "--collective"))
        take_list(r, option, value);
    else if (!strcmp(option, "--link"))
        take_link(r, value);
    else if (!strcmp(option, "--grid"))
        take_grids(r, value);
    else if (!strcmp(option, "--schedule"))
        take_schedules(r, value);
    else if (!strcmp(option, "--model"))
        r->model = value;
    else if (!strcmp(option, "--fit"))
        r->fit = value;
    else
        return take_count(r, option, value) || take_number(r, option, value);
    return true;
}

static request request_of(int argc, char **argv) {
    request r = {.net = net_default, .model = "resnet50", .bucket_bytes = 25u << 20};
    r.every = (pipe_grid){.micros = 8, .chunks = 2, .per_host = 1, .split_share = 0.5};
    r.every.bucket_bytes = r.bucket_bytes;
    r.every.near = net_default;
    r.every.near.alpha = 2e-6;
    r.every.near.beta = 8e-12;
    r.every.near.message_cost = 0.2e-6; /* devices move it, and add it, themselves */
    r.every.near.byte_cost = r.every.near.gamma = 0.002e-9;
    r.every.near.chunk_bytes = 1 << 20;
    for (int k = 0; k < 4; k++)
        r.schedules[r.schedule_count++] = (dt_pipeline_schedule)k;
    char ranks[] = "2,4,8,16,32,64,128,256,512,1024", algorithms[] = "direct,ring,halving";
    take_list(&r, "--ranks", ranks);
    take_list(&r, "--algorithm", algorithms);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            r.json = true;
        else if (!strcmp(argv[i], "--full"))
            r.net.full = true;
        else if (!strcmp(argv[i], "--check"))
            r.check = true;
        else if (i + 1 < argc && take_option(&r, argv[i], argv[i + 1]))
            i++;
        else {
            bool asked = !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
            fputs(help, asked ? stdout : stderr);
            exit(asked ? 0 : 2);
        }
    }
    return r;
}

int main(int argc, char **argv) {
    request r = request_of(argc, argv);
    if (r.check)
        return run_check();
    if (r.fit)
        run_fit(&r);
    else if (r.grid_count)
        run_grids(&r);
    else if (r.size_count)
        run_collectives(&r);
    else
        run_steps(&r);
    return 0;
}
