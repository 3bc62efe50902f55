/* The parts that all transports share: the check of arguments and comms of one rank. And two
 * transports, such as ranks that are threads. Expected values are computed here, from a formula for
 * each rank's input. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- ranks as threads: CHECK is for one thread, so a rank notes its first failure here */

typedef struct thread_team thread_team;
typedef struct mate {
    thread_team *all;
    dt_comm *comm;
    int rank, size;
    int failed_line;
    char failed[200];
    uint64_t random;
} mate;

struct thread_team {
    void (*run)(mate *m);
    void *arg;
    mate mates[8];
};

#define EXPECT(m, condition) mate_expect((m), (condition), __LINE__, #condition)
#define EXPECT_TEXT(m, part)                                                                       \
    mate_expect((m), strstr(dt_comm_error((m)->comm), (part)) != NULL, __LINE__,                   \
                dt_comm_error((m)->comm))

static bool mate_expect(mate *m, bool ok, int line, const char *text) {
    if (!ok && !m->failed_line) {
        m->failed_line = line;
        snprintf(m->failed, sizeof m->failed, "%s (error \"%s\")", text, dt_comm_error(m->comm));
    }
    return ok;
}

static uint32_t mate_random(mate *m) {
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->random >> 33);
}

/* Mostly nothing, at times a yield, at times up to 100 us. */
static void mate_delay(mate *m) {
    uint32_t r = mate_random(m);
    if (r % 4 == 0)
        sched_yield();
    else if (r % 16 == 1)
        usleep(r / 16 % 100);
}

static void *mate_main(void *arg) {
    mate *m = arg;
    m->all->run(m);
    if (m->failed_line) { /* or the others would wait for it */
        dt_comm_destroy(m->comm);
        m->comm = NULL;
    }
    return NULL;
}

/* Runs `run` on `size` threads, each with its comm, which it may destroy and set to NULL. */
static void thread_team_run_with(const dt_comm_desc *desc, int size, void (*run)(mate *m),
                                 void *arg) {
    thread_team all = {.run = run, .arg = arg};
    dt_comm *comms[8];
    pthread_t threads[8];
    dt_result made = dt_comm_create_threads(desc, size, comms);
    if (!test_check(!made, __FILE__, __LINE__, "%s", dt_comm_error(comms[0])))
        return;
    for (int r = 0; r < size; r++) {
        all.mates[r] = (mate){.all = &all, .comm = comms[r], .rank = r, .size = size};
        all.mates[r].random = (uint64_t)(r + 1) * 7919;
        pthread_create(&threads[r], NULL, mate_main, &all.mates[r]);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < size; r++) {
        test_check(!all.mates[r].failed_line, __FILE__, all.mates[r].failed_line,
                   "rank %d of %d: %s", r, size, all.mates[r].failed);
        dt_comm_destroy(all.mates[r].comm);
    }
}

static void thread_team_run(int size, void (*run)(mate *m), void *arg) {
    thread_team_run_with(NULL, size, run, arg);
}

static const int thread_team_sizes[] = {1, 2, 3, 4, 7, 8};

/* ---- values of all types */

static double value_get(const void *data, dt_dtype dtype, size_t i) {
    switch (dtype) {
    case DT_F32: return (double)((const float *)data)[i];
    case DT_F64: return ((const double *)data)[i];
    case DT_BF16: return (double)dti_f32_from_bf16(((const uint16_t *)data)[i]);
    case DT_F16: return (double)dti_f32_from_f16(((const uint16_t *)data)[i]);
    case DT_I32: return ((const int32_t *)data)[i];
    case DT_I64: return (double)((const int64_t *)data)[i];
    case DT_U8: return ((const uint8_t *)data)[i];
    }
    return 0;
}

static void value_put(void *data, dt_dtype dtype, size_t i, double value) {
    switch (dtype) {
    case DT_F32: ((float *)data)[i] = (float)value; break;
    case DT_F64: ((double *)data)[i] = value; break;
    case DT_BF16: ((uint16_t *)data)[i] = dti_bf16_from_f32((float)value); break;
    case DT_F16: ((uint16_t *)data)[i] = f16_from_f32((float)value); break;
    case DT_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case DT_I64: ((int64_t *)data)[i] = (int64_t)value; break;
    case DT_U8: ((uint8_t *)data)[i] = (uint8_t)(int64_t)value; break;
    }
}

static bool value_is_integer(dt_dtype dtype) {
    return dtype == DT_I32 || dtype == DT_I64 || dtype == DT_U8;
}

/* Element i of rank r's input: small, so that sums and products of 8 are exact in every type. */
static double value_in(dt_dtype dtype, int r, size_t i) {
    size_t h = (size_t)r * 31 + i * 7 + i / 1000;
    return dtype == DT_U8 ? (double)(h % 4) : (double)(h % 5) - 2;
}

/* The reduction of element i of the input of ranks 0 .. size - 1. */
static double value_reduced(dt_dtype dtype, dt_comm_reduction reduction, int size, size_t i) {
    double v = value_in(dtype, 0, i);
    for (int r = 1; r < size; r++) {
        double w = value_in(dtype, r, i);
        v = reduction == DT_COMM_PRODUCT ? v * w
            : reduction == DT_COMM_MIN   ? fmin(v, w)
            : reduction == DT_COMM_MAX   ? fmax(v, w)
                                         : v + w;
    }
    if (reduction != DT_COMM_MEAN)
        return v;
    if (value_is_integer(dtype))
        return trunc(v / size);
    return dtype == DT_F64 ? v / size : (double)((float)v / (float)size);
}

/* ---- every kind against that formula */

typedef struct kind_case {
    dt_comm_op op;
    int place; /* 0: out apart; 1: in = out; 2: at the rank's own place */
} kind_case;

static size_t kind_in_blocks(dt_comm_kind kind, int size) {
    bool many = kind == DT_COMM_SCATTER || kind == DT_COMM_REDUCE_SCATTER;
    return many || kind == DT_COMM_ALL_TO_ALL ? (size_t)size : 1;
}

static size_t kind_out_blocks(dt_comm_kind kind, int size) {
    bool many = kind == DT_COMM_GATHER || kind == DT_COMM_ALL_GATHER;
    return many || kind == DT_COMM_ALL_TO_ALL ? (size_t)size : 1;
}

/* What `out` has at element i of block b. */
static double kind_expected(const kind_case *c, const mate *m, size_t b, size_t i) {
    dt_dtype t = c->op.dtype;
    size_t count = c->op.count;
    switch (c->op.kind) {
    case DT_COMM_BROADCAST: return value_in(t, c->op.root, i);
    case DT_COMM_REDUCE:
    case DT_COMM_ALL_REDUCE: return value_reduced(t, c->op.reduction, m->size, i);
    case DT_COMM_GATHER:
    case DT_COMM_ALL_GATHER: return value_in(t, (int)b, i);
    case DT_COMM_SCATTER: return value_in(t, c->op.root, (size_t)m->rank * count + i);
    case DT_COMM_REDUCE_SCATTER:
        return value_reduced(t, c->op.reduction, m->size, (size_t)m->rank * count + i);
    case DT_COMM_ALL_TO_ALL: return value_in(t, (int)b, (size_t)m->rank * count + i);
    default: return 0;
    }
}

static bool kind_has_out(const kind_case *c, const mate *m) {
    if (c->op.kind == DT_COMM_REDUCE || c->op.kind == DT_COMM_GATHER)
        return c->op.root == m->rank;
    return c->op.kind != DT_COMM_BROADCAST || c->op.root != m->rank;
}

/* memory: room for twice the largest case. */
static void kind_run(mate *m, const kind_case *c, char *memory) {
    dt_comm_op op = c->op;
    size_t bytes = op.count * dti_dtype_bytes(op.dtype);
    size_t in_blocks = kind_in_blocks(op.kind, m->size);
    size_t out_blocks = kind_out_blocks(op.kind, m->size);
    char *in = memory, *out = memory + in_blocks * bytes + 64;
    if (c->place)
        out = in;
    if (c->place == 2 && in_blocks > out_blocks)
        out = in + (size_t)m->rank * bytes;
    else if (c->place == 2)
        in = out + (size_t)m->rank * bytes;
    if (!c->place)
        memset(out, 0x55, out_blocks * bytes + 1);
    for (size_t i = 0; i < in_blocks * op.count; i++)
        value_put(in, op.dtype, i, value_in(op.dtype, m->rank, i));
    op.in = in, op.out = out;
    if (!EXPECT(m, dt_comm_run(m->comm, &op) == DT_OK) || !kind_has_out(c, m))
        return;
    for (size_t b = 0; b < out_blocks; b++)
        for (size_t i = 0; i < op.count; i++) {
            double got = value_get(out, op.dtype, b * op.count + i), same;
            value_put(&same, op.dtype, 0, kind_expected(c, m, b, i));
            if (!EXPECT(m, got == value_get(&same, op.dtype, 0))) {
                snprintf(m->failed, sizeof m->failed,
                         "%s of %d %s, reduction %d, place %d: element %d of block %d is %g",
                         dti_kind_name(op.kind), (int)op.count, dti_dtype_name(op.dtype),
                         (int)op.reduction, c->place, (int)i, (int)b, got);
                return;
            }
        }
    if (!c->place)
        EXPECT(m, out[out_blocks * bytes] == 0x55);
}

static void kind_table(mate *m) {
    static const uint64_t counts[] = {0, 1, 37, 1000, 70001};
    char *memory = malloc((size_t)70001 * 8 * 8 * 2 + 4096);
    for (int kind = DT_COMM_BROADCAST; kind < DT_COMM_BARRIER; kind++)
        for (int dtype = DT_F32; dtype <= DT_U8; dtype++)
            for (int reduction = DT_COMM_SUM; reduction <= DT_COMM_PRODUCT; reduction++)
                for (size_t n = 0; n < DTI_COUNT(counts) && !m->failed_line; n++) {
                    bool reduces = dti_kind_reduces((dt_comm_kind)kind);
                    bool long_one = counts[n] > 1000;
                    if ((reduction && !reduces) || (long_one && dtype && dtype != DT_BF16))
                        continue;
                    if (long_one && (reduction || m->size == 3 || m->size > 7))
                        continue;
                    kind_case c = {.op = {.kind = (dt_comm_kind)kind,
                                          .count = counts[n],
                                          .dtype = (dt_dtype)dtype,
                                          .reduction = (dt_comm_reduction)reduction,
                                          .root = (int)n % m->size}};
                    for (c.place = 0; c.place < 3; c.place++)
                        if (c.place != 2 || (kind >= DT_COMM_GATHER && kind != DT_COMM_ALL_TO_ALL))
                            kind_run(m, &c, memory);
                }
    free(memory);
}

TEST(comm_threads_run_every_kind_type_reduction_and_size) {
    for (size_t i = 0; i < DTI_COUNT(thread_team_sizes); i++)
        thread_team_run(thread_team_sizes[i], kind_table, NULL);
}

TEST(comm_of_one_rank_runs_every_kind_of_operation) {
    thread_team all = {0};
    mate m = {.all = &all, .size = 1};
    REQUIRE(dt_comm_create(NULL, &m.comm) == DT_OK);
    CHECK(dt_comm_size(m.comm) == 1 && dt_comm_rank(m.comm) == 0);
    CHECK(!strcmp(m.comm->transport->name, "single"));
    kind_table(&m);
    test_check(!m.failed_line, __FILE__, m.failed_line, "%s", m.failed);
    CHECK(dt_comm_barrier(m.comm) == DT_OK);
    float nan_in = -NAN, nan_out = 0;
    CHECK(dt_comm_all_reduce(m.comm, &nan_in, &nan_out, 1, DT_F32, DT_COMM_SUM) == DT_OK);
    CHECK(isnan(nan_out));
    dt_comm_destroy(m.comm);
}

static void wrappers(mate *m) {
    float x[8 * 3], y[8 * 3];
    for (int i = 0; i < 24; i++)
        x[i] = (float)(m->rank * 100 + i), y[i] = -1;
    int n = m->size, last = n - 1;
    EXPECT(m, !dt_comm_all_gather(m->comm, x, y, 3, DT_F32) && y[3 * last] == (float)(last * 100));
    EXPECT(m, !dt_comm_all_to_all(m->comm, x, y, 3, DT_F32) &&
                  y[3 * last + 1] == (float)(last * 100 + 3 * m->rank + 1));
    EXPECT(m, !dt_comm_reduce_scatter(m->comm, x, y, 3, DT_F32, DT_COMM_MAX) &&
                  y[2] == (float)(last * 100 + 3 * m->rank + 2));
    EXPECT(m, !dt_comm_scatter(m->comm, x, y, 3, DT_F32, last) &&
                  y[1] == (float)(last * 100 + 3 * m->rank + 1));
    y[0] = -1;
    EXPECT(m, !dt_comm_gather(m->comm, x, y, 3, DT_F32, last));
    EXPECT(m, m->rank != last || (y[0] == 0 && y[3 * last + 2] == (float)(last * 100 + 2)));
    y[0] = -1;
    EXPECT(m, !dt_comm_reduce(m->comm, x, y, 3, DT_F32, DT_COMM_MIN, last));
    EXPECT(m, y[0] == (m->rank == last ? 0.0f : -1.0f));
    EXPECT(m, !dt_comm_all_reduce(m->comm, x, x, 3, DT_F32, DT_COMM_MEAN) &&
                  x[1] == (float)(last * 50 + 1));
    x[0] = (float)m->rank;
    EXPECT(m, !dt_comm_broadcast(m->comm, x, 1, DT_F32, last) && x[0] == (float)last);
    EXPECT(m, !dt_comm_barrier(m->comm));
}

TEST(comm_typed_wrappers_pass_their_arguments_on) {
    for (size_t i = 1; i < DTI_COUNT(thread_team_sizes); i++)
        thread_team_run(thread_team_sizes[i], wrappers, NULL);
}

/* A barrier lets nobody through before the last one has come. */
static void barrier_late(mate *m) {
    _Atomic int *come = m->all->arg;
    for (int i = 1; i <= 200; i++) {
        mate_delay(m);
        atomic_fetch_add(come, 1);
        EXPECT(m, !dt_comm_barrier(m->comm));
        EXPECT(m, atomic_load(come) >= i * m->size);
    }
}

TEST(comm_barrier_waits_for_the_last_rank) {
    _Atomic int come = 0;
    thread_team_run(4, barrier_late, &come);
}

/* ---- send and recv */

static void pairs(mate *m) {
    enum { N = 6 };
    static const uint64_t counts[N] = {1, 0, 50000, 3, 7, 40000};
    int to = (m->rank + 1) % m->size, from = (m->rank + m->size - 1) % m->size;
    uint32_t random = mate_random(m);
    int32_t *out[N], *in[N];
    dt_comm_work sends[N], recvs[N];
    for (int i = 0; i < N; i++) {
        out[i] = malloc(4 * counts[i] + 4), in[i] = malloc(4 * counts[i] + 4);
        for (uint64_t k = 0; k < counts[i]; k++)
            out[i][k] = m->rank * 1000 + i * 100 + (int)(k % 97);
    }
    for (int i = 0; i < N; i++) { /* receives before or after the sends */
        dt_comm_op send = {.kind = DT_COMM_SEND, .in = out[i], .count = counts[i], .root = to};
        dt_comm_op recv = {.kind = DT_COMM_RECV, .out = in[i], .count = counts[i], .root = from};
        send.dtype = recv.dtype = DT_I32;
        EXPECT(m, !dt_comm_begin(m->comm, random % 2 ? &send : &recv,
                                 random % 2 ? &sends[i] : &recvs[i]));
        EXPECT(m, !dt_comm_begin(m->comm, random % 2 ? &recv : &send,
                                 random % 2 ? &recvs[i] : &sends[i]));
        mate_delay(m);
    }
    EXPECT(m, !dt_comm_barrier(m->comm));
    for (int i = N; i-- > 0;) {
        EXPECT(m, !dt_comm_wait(m->comm, recvs[i], -1));
        for (uint64_t k = 0; k < counts[i]; k++)
            EXPECT(m, in[i][k] == from * 1000 + i * 100 + (int)(k % 97));
    }
    for (int i = 0; i < N; i++) {
        EXPECT(m, !dt_comm_wait(m->comm, sends[i], -1));
        free(out[i]), free(in[i]);
    }
}

TEST(comm_sends_and_receives_match_in_order_beside_collectives) {
    for (size_t i = 1; i < DTI_COUNT(thread_team_sizes); i++)
        for (int again = 0; again < 5; again++)
            thread_team_run(thread_team_sizes[i], pairs, NULL);
}

/* ---- the same bits for all, always */

static float tree_sum(const float *leaves, uint32_t n) {
    uint32_t half = 1;
    if (n == 1)
        return leaves[0];
    while (half * 2 < n)
        half *= 2;
    return tree_sum(leaves, half) + tree_sum(leaves + half, n - half);
}

static const float sensitive[] = {1e8f, 1, -1e8f, 3e-5f, 1e8f, -1, 0.1f, -1e8f, 1e-3f, 7, 0.3f};

static float sensitive_at(int rank, size_t i) {
    if (i % 50 == 49 && rank == 1)
        return NAN;
    return sensitive[((size_t)rank * 5 + i * 3) % DTI_COUNT(sensitive)];
}

static void order(mate *m) {
    enum { N = 300 };
    float x[N], y[N];
    for (int again = 0; again < 50; again++) {
        for (size_t i = 0; i < N; i++)
            x[i] = sensitive_at(m->rank, i);
        mate_delay(m);
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, y, N, DT_F32, DT_COMM_SUM));
        for (size_t i = 0; i < N; i++) {
            float leaves[8], right;
            for (int r = 0; r < m->size; r++)
                leaves[r] = sensitive_at(r, i);
            right = tree_sum(leaves, (uint32_t)m->size);
            EXPECT(m, isnan(right) ? isnan(y[i]) : memcmp(&right, &y[i], sizeof right) == 0);
        }
        EXPECT(m, m->size == 1 || !memcmp(&y[49], &y[99], sizeof y[0])); /* one NaN */
    }
}

TEST(comm_sums_in_tree_order_in_any_order_of_arrival) {
    for (size_t i = 0; i < DTI_COUNT(thread_team_sizes); i++)
        thread_team_run(thread_team_sizes[i], order, NULL);
}

/* ---- the tree over leaves */

typedef struct leaf_case {
    uint32_t total;
    dt_dtype dtype;
    dt_comm_reduction reduction;
    uint64_t result[64]; /* rank 0's bytes */
} leaf_case;

static float leaf_value(uint32_t leaf, size_t i) {
    return sensitive_at((int)leaf, i * 2); /* no NaN */
}

/* The tree over some leaves' element i, each sum rounded to the type of partial sums. */
static double leaf_sum(dt_dtype dtype, uint32_t first, uint32_t n, size_t i) {
    uint32_t half = 1;
    if (n == 1)
        return (double)leaf_value(first, i);
    while (half * 2 < n)
        half *= 2;
    double left = leaf_sum(dtype, first, half, i);
    double right = leaf_sum(dtype, first + half, n - half, i);
    return dtype == DT_F64 ? left + right : (double)((float)left + (float)right);
}

static void leaves(mate *m) {
    enum { N = 17 };
    leaf_case *c = m->all->arg;
    uint32_t r = (uint32_t)m->rank, n = (uint32_t)m->size;
    uint32_t first = c->total * r / n, end = c->total * (r + 1) / n;
    dt_comm_span spans[64];
    int buffers = -1;
    if (!EXPECT(m, !dt_comm_set_leaves(m->comm, first, end - first, c->total, &buffers, spans)))
        return;
    dt_dtype in_type = c->dtype == DT_F64 ? DT_F64 : DT_F32; /* 16-bit sums are f32 */
    double *in = malloc((size_t)(buffers * N + 1) * sizeof *in);
    for (int b = 0; b < buffers; b++)
        for (size_t i = 0; i < N; i++)
            value_put(in, in_type, (size_t)b * N + i,
                      leaf_sum(in_type, spans[b].first, spans[b].count, i));
    uint64_t out[64] = {0};
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = in, .out = out, .count = N, .tree = true};
    op.dtype = c->dtype, op.reduction = c->reduction;
    EXPECT(m, !dt_comm_run(m->comm, &op));
    if (m->rank == 0)
        memcpy(c->result, out, sizeof out);
    free(in);
}

TEST(comm_tree_over_leaves_has_the_same_bits_at_any_number_of_ranks) {
    static const uint32_t totals[] = {1, 2, 5, 8, 16, 23};
    static const dt_dtype dtypes[] = {DT_F32, DT_BF16, DT_F64};
    for (size_t t = 0; t < DTI_COUNT(totals); t++)
        for (size_t d = 0; d < DTI_COUNT(dtypes); d++)
            for (int mean = 0; mean < 2; mean++) {
                leaf_case first = {.total = totals[t], .dtype = dtypes[d]};
                first.reduction = mean ? DT_COMM_MEAN : DT_COMM_SUM;
                for (size_t i = 0; i < DTI_COUNT(thread_team_sizes); i++) {
                    leaf_case c = first;
                    thread_team_run(thread_team_sizes[i], leaves, &c);
                    if (i == 0)
                        first = c;
                    CHECK(!memcmp(first.result, c.result, sizeof c.result));
                }
                float sum = (float)leaf_sum(DT_F32, 0, totals[t], 3);
                sum /= mean ? (float)totals[t] : 1;
                if (dtypes[d] == DT_F32)
                    CHECK(!memcmp((float *)(void *)first.result + 3, &sum, sizeof sum));
            }
}

TEST(comm_of_one_rank_sums_its_leaves) {
    thread_team all = {0};
    leaf_case one = {.total = 5}, two = {.total = 5};
    mate m = {.all = &all, .size = 1};
    all.arg = &one;
    REQUIRE(dt_comm_create(NULL, &m.comm) == DT_OK);
    leaves(&m);
    test_check(!m.failed_line, __FILE__, m.failed_line, "%s", m.failed);
    dt_comm_destroy(m.comm);
    thread_team_run(2, leaves, &two);
    CHECK(!memcmp(one.result, two.result, sizeof one.result));
}

/* {first, count, total} of each of three ranks, and what the error says. */
typedef struct wrong_leaves {
    uint32_t given[3][3];
    int busy; /* a rank with an operation under way, or -1 */
    dt_result result;
    const char *part;
} wrong_leaves;

static void set_wrong_leaves(mate *m) {
    const wrong_leaves *w = m->all->arg;
    const uint32_t *g = w->given[m->rank];
    dt_comm_work work = {0};
    float x = 1;
    dt_comm_op send = {.kind = DT_COMM_SEND, .in = &x, .count = 1, .root = 0};
    if (m->rank == w->busy)
        EXPECT(m, !dt_comm_begin(m->comm, &send, &work));
    int buffers;
    EXPECT(m, dt_comm_set_leaves(m->comm, g[0], g[1], g[2], &buffers, NULL) == w->result);
    EXPECT_TEXT(m, w->part);
    if (m->rank == 0 && w->busy > 0)
        EXPECT(m, !dt_comm_recv(m->comm, &x, 1, DT_F32, w->busy));
    if (m->rank == w->busy)
        EXPECT(m, !dt_comm_wait(m->comm, work, -1));
    EXPECT(m, !dt_comm_barrier(m->comm)); /* the group lives on */
}

TEST(comm_wrong_leaves_are_refused_by_all_ranks) {
    static wrong_leaves wrong[] = {
        {{{0, 2, 6}, {2, 2, 7}, {4, 2, 6}}, -1, DT_ERROR_MISMATCH, "total is 7 on rank 1 and 6 on"},
        {{{0, 2, 6}, {3, 2, 6}, {5, 1, 6}}, -1, DT_ERROR_INVALID, "rank 1 has first = 3"},
        {{{0, 2, 6}, {2, 2, 6}, {4, 1, 6}}, -1, DT_ERROR_INVALID, "end at 5, but total is 6"},
        {{{0, 2, 6}, {2, 2, 6}, {4, 3, 6}}, -1, DT_ERROR_INVALID, "end at 7, but total is 6"},
        {{{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}, -1, DT_ERROR_INVALID, "total is 0; it must be"},
        {{{0, 2, 6}, {2, 2, 6}, {4, 2, 6}},
         2,
         DT_ERROR_INVALID,
         "rank 2 has operations in progress"},
    };
    for (size_t i = 0; i < DTI_COUNT(wrong); i++)
        thread_team_run(3, set_wrong_leaves, &wrong[i]);
}

/* ---- groups */

static void groups(mate *m) {
    int odd[] = {1, 3, 5, 7}, even[] = {0, 2, 4, 6}, inner[] = {0, 2};
    int n = m->size, evens = (n + 1) / 2, odds = n / 2;
    dt_comm *of_odd, *of_even, *nested = NULL, *all = NULL;
    EXPECT(m, !dt_comm_group_create(m->comm, even, evens, &of_even));
    EXPECT(m, !dt_comm_group_create(m->comm, odd, odds, &of_odd));
    EXPECT(m, (of_even != NULL) == (m->rank % 2 == 0) && (of_odd != NULL) == (m->rank % 2 == 1));
    dt_comm *mine = m->rank % 2 ? of_odd : of_even;
    int size = m->rank % 2 ? odds : evens;
    EXPECT(m, dt_comm_size(mine) == size && dt_comm_rank(mine) == m->rank / 2);
    if (of_even && evens >= 3) /* ids of disjoint parents may move apart */
        EXPECT(m, !dt_comm_group_create(of_even, inner, 2, &nested));
    int list[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    EXPECT(m, !dt_comm_group_create(m->comm, list, n, &all));
    int32_t sum = m->rank + 1, product = 2, got[8];
    EXPECT(m, !dt_comm_all_reduce(mine, &sum, &sum, 1, DT_I32, DT_COMM_SUM));
    EXPECT(m, sum == (m->rank % 2 ? odds * (odds + 1) : evens * evens));
    if (nested) {
        EXPECT(m, dt_comm_rank(nested) == m->rank / 4);
        EXPECT(m, !dt_comm_all_reduce(nested, &product, &product, 1, DT_I32, DT_COMM_PRODUCT));
        EXPECT(m, product == 4);
    }
    EXPECT(m, !dt_comm_all_gather(all, &m->rank, got, 1, DT_I32) && got[n - 1] == n - 1);
    dt_comm_destroy(nested);
    dt_comm_destroy(of_odd);
    dt_comm_destroy(of_even);
    dt_comm_destroy(all);
    EXPECT(m, !dt_comm_barrier(m->comm));
}

TEST(comm_groups_have_their_own_ranks_and_order) {
    for (size_t i = 1; i < DTI_COUNT(thread_team_sizes); i++)
        thread_team_run(thread_team_sizes[i], groups, NULL);
}

/* Rank by rank another order of three groups' operations, all pending at once. */
static void opposite(mate *m) {
    enum { N = 40000 };
    int list[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    dt_comm *comms[3] = {m->comm};
    dt_comm_work work[3];
    for (int g = 1; g < 3; g++)
        EXPECT(m, !dt_comm_group_create(m->comm, list, m->size, &comms[g]));
    int32_t *x = malloc(3 * N * sizeof *x);
    for (int again = 0; again < 20; again++) {
        for (int i = 0; i < 3 * N; i++)
            x[i] = m->rank + i;
        int shift = (m->rank + again) % 3, back = m->rank % 2;
        for (int k = 0; k < 3; k++) {
            int g = (back ? 2 - k + shift : k + shift) % 3;
            dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .count = N, .dtype = DT_I32};
            op.in = op.out = x + g * N;
            EXPECT(m, !dt_comm_begin(comms[g], &op, &work[g]));
            mate_delay(m);
        }
        for (int k = 0; k < 3; k++) /* and waited for in another order again */
            EXPECT(m, !dt_comm_wait(comms[(k + m->rank) % 3], work[(k + m->rank) % 3], -1));
        for (int i = 0; i < 3 * N; i++)
            EXPECT(m, x[i] == m->size * (m->size - 1) / 2 + m->size * i);
    }
    free(x);
    dt_comm_destroy(comms[1]);
    dt_comm_destroy(comms[2]);
}

TEST(comm_groups_posted_in_opposite_orders_complete) {
    thread_team_run(2, opposite, NULL);
    thread_team_run(4, opposite, NULL);
}

/* Several all-reduces of one group at once, waited for backwards or tested. */
static void many_pending(mate *m) {
    enum { K = 20, N = 100 };
    float x[K][N];
    dt_comm_work work[K];
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < N; i++)
            x[k][i] = (float)(k + i);
        dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x[k], .out = x[k], .count = N};
        EXPECT(m, !dt_comm_begin(m->comm, &op, &work[k]));
    }
    for (int k = K; k-- > 0;) {
        bool finished = m->rank == 0;
        if (finished)
            EXPECT(m, !dt_comm_wait(m->comm, work[k], -1));
        while (!finished && !m->failed_line)
            EXPECT(m, !dt_comm_test(m->comm, work[k], &finished));
        EXPECT(m, dt_comm_test(m->comm, work[k], &finished) == DT_ERROR_INVALID && !finished);
        EXPECT(m, x[k][7] == (float)(m->size * (k + 7)));
    }
}

TEST(comm_many_operations_are_pending_at_once) {
    thread_team_run(4, many_pending, NULL);
}

typedef struct wrong_group {
    int list[3][3], count[3];
    dt_result result[3];
    const char *part[3];
} wrong_group;

static void make_wrong_group(mate *m) {
    const wrong_group *w = m->all->arg;
    dt_comm *group = m->comm;
    EXPECT(m, dt_comm_group_create(m->comm, w->list[m->rank], w->count[m->rank], &group) ==
                  w->result[m->rank]);
    EXPECT(m, !group);
    EXPECT_TEXT(m, w->part[m->rank]);
    EXPECT(m, !dt_comm_barrier(m->comm));
}

#define BAD DT_ERROR_INVALID
#define OTHER DT_ERROR_MISMATCH
TEST(comm_wrong_groups_are_refused_and_the_parent_stays_usable) {
    static wrong_group wrong[] = {
        {{{0, 1}, {0, 1}, {0, 2}},
         {2, 2, 2},
         {OTHER, OTHER, OTHER},
         {"rank 2", "rank 2", "rank 0"}},
        {{{0, 1}, {0, 1}, {0, 1, 2}}, {2, 2, 3}, {OTHER, OTHER, OTHER}, {"rank 2", "", "rank 0"}},
        {{{0, 1}, {1, 0}, {0, 1}},
         {2, 2, 2},
         {OTHER, BAD, OTHER},
         {"rank 1 is not valid", "ranks[1] is 0 after 1", "rank 1"}},
        {{{0, 3}, {0, 3}, {0, 3}},
         {2, 2, 2},
         {BAD, BAD, BAD},
         {"ranks[1] is 3", "from 0 to 2", ""}},
        {{{0}, {0}, {0}}, {0, 0, 4}, {BAD, BAD, BAD}, {"count is 0", "1 to 3", "count is 4"}},
        {{{1, 1}, {1, 1}, {1, 1}},
         {2, 2, 2},
         {BAD, BAD, BAD},
         {"ascending", "ascending", "ascending"}},
    };
    for (size_t i = 0; i < DTI_COUNT(wrong); i++)
        thread_team_run(3, make_wrong_group, &wrong[i]);
}
#undef BAD
#undef OTHER

/* ---- mismatches */

/* The end of a group is the result of the operations posted before; operations that are posted
 * after get the same error. */
static bool ended_by(const mate *m, dt_result result, dt_result cause) {
    bool revoked = strstr(dt_comm_error(m->comm), "the group has ended: ") != NULL;
    return result == (revoked ? DT_ERROR_REVOKED : cause);
}

typedef struct wrong_op {
    dt_comm_op one, other; /* the other is rank 2's */
    const char *part, *other_part;
} wrong_op;

static void post_wrong(mate *m) {
    const wrong_op *w = m->all->arg;
    double in[16] = {0}, out[16];
    dt_comm_op op = m->rank == 2 ? w->other : w->one;
    op.in = in, op.out = out;
    mate_delay(m);
    EXPECT(m, ended_by(m, dt_comm_run(m->comm, &op), DT_ERROR_MISMATCH));
    EXPECT_TEXT(m, "rank 2 posted");
    EXPECT_TEXT(m, w->part);
    EXPECT_TEXT(m, w->other_part);
    EXPECT_TEXT(m, "operation 0");
    EXPECT(m, dt_comm_barrier(m->comm) == DT_ERROR_REVOKED);
    EXPECT_TEXT(m, "the group has ended: rank ");
    EXPECT_TEXT(m, w->part);
}

#define A DT_COMM_ALL_REDUCE
#define B DT_COMM_BROADCAST
TEST(comm_mismatch_ends_the_group_and_names_both) {
    static wrong_op wrong[] = {
        {{.kind = A, .count = 3}, {.kind = B, .count = 3}, "all-reduce of 3", "broadcast of 3"},
        {{.kind = A, .count = 3}, {.kind = A, .count = 4}, "of 3 f32", "of 4 f32"},
        {{.kind = A, .count = 3}, {.kind = A, .count = 3, .dtype = DT_I32}, "3 f32", "3 i32"},
        {{.kind = A, .count = 3},
         {.kind = A, .count = 3, .reduction = DT_COMM_MAX},
         "(sum)",
         "(max)"},
        {{.kind = B, .count = 3}, {.kind = B, .count = 3, .root = 1}, "root 0", "root 1"},
        {{.kind = A, .count = 3},
         {.kind = A, .count = 3, .algorithm = DT_COMM_ALGORITHM_RING},
         "(sum)",
         "(sum), ring"},
        {{.kind = A, .count = 3}, {.kind = DT_COMM_BARRIER}, "all-reduce of 3", "barrier"},
    };
    for (size_t i = 0; i < DTI_COUNT(wrong); i++)
        for (int again = 0; again < 10; again++)
            thread_team_run(4, post_wrong, &wrong[i]);
}
#undef A
#undef B

static void send_too_much(mate *m) {
    float x[4] = {0};
    dt_result result =
        m->rank ? dt_comm_recv(m->comm, x, 3, DT_F32, 0) : dt_comm_send(m->comm, x, 4, DT_F32, 1);
    EXPECT(m, ended_by(m, result, DT_ERROR_MISMATCH));
    EXPECT_TEXT(m, "send of 4 f32 to rank 1");
    EXPECT_TEXT(m, "recv of 3 f32 from rank 0");
}

TEST(comm_send_and_recv_of_different_counts_mismatch) {
    for (int again = 0; again < 20; again++)
        thread_team_run(2, send_too_much, NULL);
}

/* ---- timeouts, cancelling, leaving */

static void timeouts(mate *m) {
    float x = (float)m->rank;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = &x, .out = &x, .count = 1};
    dt_comm_work work;
    _Atomic int *tried = m->all->arg;
    bool finished = true;
    while (m->rank == 2 && atomic_load(tried) < 2)
        usleep(100);
    EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
    if (m->rank != 2) {
        uint64_t start = dti_now_ns();
        EXPECT(m, dt_comm_wait(m->comm, work, 20) == DT_ERROR_TIMEOUT);
        EXPECT(m, dti_now_ns() - start >= 20000000);
        EXPECT_TEXT(m, "after 20 ms");
        for (int i = 0; i < 500 && !strstr(dt_comm_error(m->comm), "by rank 2"); i++)
            EXPECT(m, dt_comm_wait(m->comm, work, 20) == DT_ERROR_TIMEOUT); /* it is late */
        EXPECT_TEXT(m, "all-reduce of 1 f32 (sum) (operation 0) has not been posted by rank 2");
        EXPECT(m, dt_comm_wait(m->comm, work, 0) == DT_ERROR_TIMEOUT);
        EXPECT(m, !dt_comm_test(m->comm, work, &finished) && !finished);
        atomic_fetch_add(tried, 1);
    }
    EXPECT(m, dt_comm_wait(m->comm, work, -2) == DT_ERROR_INVALID);
    EXPECT(m, !dt_comm_wait(m->comm, work, 60000));
    EXPECT(m, dt_comm_wait(m->comm, work, 0) == DT_ERROR_INVALID && x == 3);
}

TEST(comm_wait_times_out_and_stays_pending) {
    _Atomic int tried = 0;
    thread_team_run(3, timeouts, &tried);
}

/* Rank 1 of 4 does not post; the others wait, test, cancel or look at it late. */
static void op_timeout(mate *m) {
    float x = 1;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = &x, .out = &x, .count = 1};
    dt_comm_work work;
    _Atomic int *over = m->all->arg;
    bool finished = false;
    dt_result result;
    EXPECT(m, !dt_comm_barrier(m->comm));
    while (m->rank == 1 && atomic_load(over) < 3)
        usleep(1000);
    if (m->rank == 1) {
        EXPECT(m, dt_comm_begin(m->comm, &op, &work) == DT_ERROR_REVOKED);
        EXPECT_TEXT(m, "the group has ended: all-reduce of 1 f32 (sum) (operation 1) has not been "
                       "posted by rank 1 for 60 ms");
        return;
    }
    uint64_t start = dti_now_ns();
    EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
    EXPECT(m, dt_comm_wait(m->comm, work, 5) == DT_ERROR_TIMEOUT);
    EXPECT_TEXT(m, "not finished after 5 ms");
    if (m->rank == 0) {
        result = dt_comm_wait(m->comm, work, -1);
        EXPECT(m, dti_now_ns() - start >= 50000000);
    } else if (m->rank == 2) {
        do
            result = dt_comm_test(m->comm, work, &finished);
        while (!finished && !result);
        EXPECT(m, finished);
    } else {
        while (atomic_load(over) < 2)
            usleep(1000);
        result = dt_comm_cancel(m->comm, work);
    }
    atomic_fetch_add(over, 1);
    EXPECT(m, result == DT_ERROR_LATE);
    EXPECT_TEXT(m, "(operation 1) has not been posted by rank 1 for 60 ms");
    EXPECT(m, m->comm->pending == 0 && dt_comm_wait(m->comm, work, 0) == DT_ERROR_INVALID);
    EXPECT(m, dt_comm_barrier(m->comm) == DT_ERROR_REVOKED);
}

TEST(comm_op_timeout_names_ranks_that_did_not_post_and_ends_the_group) {
    dt_comm_desc desc = {.op_timeout_ms = 60};
    _Atomic int over = 0;
    thread_team_run_with(&desc, 4, op_timeout, &over);
}

/* A recv that nobody sends to, and pauses longer than the limit between operations. */
static void op_timeout_pair(mate *m) {
    float x = 1;
    for (int i = 0; i < 3; i++) {
        usleep(60000);
        EXPECT(m, !dt_comm_barrier(m->comm));
    }
    if (m->rank == 2) {
        EXPECT(m, dt_comm_recv(m->comm, &x, 1, DT_F32, 0) == DT_ERROR_LATE);
        EXPECT_TEXT(m, "recv of 1 f32 from rank 0 (operation 0) has not been posted by rank 0 for");
        atomic_store((_Atomic int *)m->all->arg, 1);
    }
    while (!atomic_load((_Atomic int *)m->all->arg) && !m->failed_line)
        usleep(1000);
    EXPECT(m, dt_comm_barrier(m->comm) == DT_ERROR_REVOKED);
}

TEST(comm_op_timeout_counts_only_from_the_post) {
    dt_comm_desc desc = {.op_timeout_ms = 40};
    _Atomic int over = 0;
    thread_team_run_with(&desc, 3, op_timeout_pair, &over);
}

/* After an operation failed its buffers belong to this rank again. It writes them at once, so a
 * thread sanitizer sees any thread that still uses them. */
static void cancelled(mate *m) {
    enum { N = 1 << 18 };
    int *culprit = m->all->arg;
    float *x = calloc(N, sizeof *x);
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = x, .count = N};
    dt_comm_work work;
    dt_result result = dt_comm_begin(m->comm, &op, &work);
    if (!result) {
        mate_delay(m);
        bool gives_up = m->rank == *culprit;
        result = gives_up ? dt_comm_cancel(m->comm, work) : dt_comm_wait(m->comm, work, -1);
        EXPECT(m, dt_comm_wait(m->comm, work, 0) == DT_ERROR_INVALID);
    }
    memset(x, 0x11, N * sizeof *x);
    EXPECT(m, !result || ended_by(m, result, DT_ERROR_CANCELLED));
    if (result)
        EXPECT(m, dt_comm_barrier(m->comm) == DT_ERROR_REVOKED);
    free(x);
}

TEST(comm_cancel_ends_the_group_and_returns_the_buffers) {
    for (int i = 0; i < 60; i++) {
        int culprit = i % 3;
        thread_team_run(3, cancelled, &culprit);
    }
}

static void cancelled_early(mate *m) {
    float x = 1;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = &x, .out = &x, .count = 1};
    dt_comm_work work = {0}, done = {0};
    dt_comm_op barrier = {.kind = DT_COMM_BARRIER};
    bool finished = false;
    EXPECT(m, !dt_comm_begin(m->comm, &barrier, &done));
    while (!finished && !m->failed_line) {
        dt_comm_work late = done; /* cancelling what has finished is a wait */
        if (m->rank != 1)
            EXPECT(m, !dt_comm_test(m->comm, late, &finished));
        else
            finished = !dt_comm_wait(m->comm, late, -1);
    }
    if (m->rank == 0)
        return; /* never posts */
    dt_result result = dt_comm_begin(m->comm, &op, &work);
    if (!result)
        result = m->rank == 1 ? dt_comm_cancel(m->comm, work) : dt_comm_wait(m->comm, work, -1);
    EXPECT(m, ended_by(m, result, DT_ERROR_CANCELLED));
    EXPECT_TEXT(m, "rank 1 cancelled all-reduce of 1 f32 (sum) (operation 1)");
    EXPECT(m, dt_comm_cancel(m->comm, work) == DT_ERROR_INVALID);
}

TEST(comm_cancel_is_reported_to_all_with_rank_and_operation) {
    for (int i = 0; i < 20; i++)
        thread_team_run(3, cancelled_early, NULL);
}

static void cancel_finished(mate *m) {
    dt_comm_op op = {.kind = DT_COMM_BARRIER};
    dt_comm_work work, second;
    EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
    EXPECT(m, !dt_comm_begin(m->comm, &op, &second));
    EXPECT(m, !dt_comm_wait(m->comm, second, -1));
    EXPECT(m, !dt_comm_cancel(m->comm, work)); /* posted before the second, so finished */
    EXPECT(m, !dt_comm_barrier(m->comm));
}

/* A group that ends takes its parent and sisters along; the operations pending there have the
 * cause. */
static void cancelled_in_a_group(mate *m) {
    enum { N = 1000 };
    int *kind = m->all->arg, first[] = {0, 1}, second[] = {2, 3};
    dt_comm *group, *other, *nested = NULL;
    float x[N] = {0}, y[N] = {0};
    dt_comm_work work, pending;
    dt_comm_op op = {.kind = DT_COMM_RECV, .out = x, .count = N};
    dt_comm_op never = {.kind = DT_COMM_RECV, .out = y, .count = N};
    EXPECT(m, !dt_comm_group_create(m->comm, first, 2, &group));
    EXPECT(m, !dt_comm_group_create(m->comm, second, 2, &other));
    EXPECT(m, group || !dt_comm_group_create(other, first, 2, &nested));
    op.root = never.root = m->rank % 2 ? 0 : 1;
    dt_comm *mine = group ? group : nested;
    EXPECT(m, !dt_comm_begin(mine, &op, &work));
    never.root = (m->rank + 1) % 4;
    EXPECT(m, !dt_comm_begin(m->comm, &never, &pending));
    EXPECT(m, !dt_comm_barrier(m->comm));
    if (m->rank == 0 && *kind == 0)
        EXPECT(m, dt_comm_cancel(mine, work) == DT_ERROR_CANCELLED);
    else if (m->rank == 0)
        dt_comm_destroy(mine), mine = NULL;
    dt_result cause = *kind ? DT_ERROR_PEER_LOST : DT_ERROR_CANCELLED;
    const char *text = *kind ? "rank 0 left the group in" : "rank 0 cancelled recv of 1000 f32";
    if (m->rank)
        EXPECT(m, dt_comm_wait(mine, work, -1) == cause);
    EXPECT(m, dt_comm_wait(m->comm, pending, -1) == cause);
    EXPECT_TEXT(m, text);
    memset(x, 1, sizeof x), memset(y, 1, sizeof y);
    EXPECT(m, dt_comm_barrier(m->comm) == DT_ERROR_REVOKED);
    EXPECT_TEXT(m, "the group has ended: ");
    EXPECT_TEXT(m, text);
    EXPECT(m, !mine || dt_comm_barrier(mine) == DT_ERROR_REVOKED);
    EXPECT(m, !other || dt_comm_barrier(other) == DT_ERROR_REVOKED);
    EXPECT(m, dt_comm_group_create(m->comm, first, 2, &group) == DT_ERROR_REVOKED);
    dt_comm_destroy(nested);
    dt_comm_destroy(other);
    if (mine && mine != nested)
        dt_comm_destroy(mine);
}

TEST(comm_the_end_of_a_group_ends_all_groups_of_its_root) {
    for (int i = 0; i < 40; i++) {
        int kind = i % 2;
        thread_team_run(4, cancelled_in_a_group, &kind);
    }
}

TEST(comm_cancel_of_a_finished_operation_succeeds) {
    thread_team_run(3, cancel_finished, NULL);
}

static void leave_pending(mate *m) {
    float x = 1;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = &x, .out = &x, .count = 1};
    dt_comm_work work;
    if (m->rank == 0) /* never posts, so the operation cannot finish */
        return;
    dt_result result = dt_comm_begin(m->comm, &op, &work);
    if (m->rank == 1) {
        dt_comm_destroy(m->comm);
        m->comm = NULL;
        return;
    }
    if (!result)
        result = dt_comm_wait(m->comm, work, -1);
    EXPECT(m, ended_by(m, result, DT_ERROR_PEER_LOST));
    EXPECT_TEXT(m, "rank 1 left the group in all-reduce of 1 f32 (sum) (operation 0)");
}

TEST(comm_destroy_with_a_pending_operation_is_a_lost_peer) {
    for (int i = 0; i < 20; i++)
        thread_team_run(4, leave_pending, NULL);
}

static void leave_clean(mate *m) {
    int32_t x = 5;
    EXPECT(m, !dt_comm_barrier(m->comm));
    if (m->rank == 2) {
        dt_comm_destroy(m->comm);
        m->comm = NULL;
        return;
    }
    usleep(2000);
    for (int i = 0; i < 10; i++) /* needs nobody else */
        EXPECT(m, m->rank ? !dt_comm_recv(m->comm, &x, 1, DT_I32, 0)
                          : !dt_comm_send(m->comm, &x, 1, DT_I32, 1));
    dt_result result = m->rank == 0 ? dt_comm_send(m->comm, &x, 1, DT_I32, 2)
                                    : dt_comm_all_reduce(m->comm, &x, &x, 1, DT_I32, DT_COMM_SUM);
    EXPECT(m, ended_by(m, result, DT_ERROR_PEER_LOST));
    EXPECT_TEXT(m, "rank 2 has left the group");
}

TEST(comm_a_rank_that_left_is_an_error_only_where_it_is_needed) {
    for (int i = 0; i < 20; i++)
        thread_team_run(3, leave_clean, NULL);
}

/* The last result is never lost to a rank that is slower to look at it. */
static void leave_at_once(mate *m) {
    int *round = m->all->arg;
    m->random += (uint64_t)*round * 977;
    int32_t x[300];
    for (int i = 0; i < 300; i++)
        x[i] = m->rank + i;
    mate_delay(m);
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = x, .count = 300, .dtype = DT_I32};
    dt_comm_work work;
    EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
    mate_delay(m);
    EXPECT(m, !dt_comm_wait(m->comm, work, -1));
    for (int i = 0; i < 300; i++)
        EXPECT(m, x[i] == m->size * (m->size - 1) / 2 + m->size * i);
    if (!m->failed_line)
        dt_comm_destroy(m->comm), m->comm = NULL;
}

TEST(comm_destroy_right_after_the_last_result_loses_nothing) {
    for (int i = 0; i < 2000; i++)
        thread_team_run(i % 2 ? 4 : 8, leave_at_once, &i);
}

static void parent_first(mate *m) {
    int list[3] = {0, 1, 2}, two[2] = {0, 1};
    dt_comm *group, *nested = NULL;
    EXPECT(m, !dt_comm_group_create(m->comm, list, 3, &group));
    EXPECT(m, !dt_comm_group_create(group, two, 2, &nested));
    EXPECT(m, !dt_comm_barrier(group));
    dt_comm_destroy(m->comm);
    m->comm = group;
    EXPECT(m, dt_comm_barrier(group) == DT_ERROR_REVOKED);
    EXPECT_TEXT(m, "has been destroyed");
    EXPECT(m, !nested || dt_comm_barrier(nested) == DT_ERROR_REVOKED);
    dt_comm_destroy(group);
    m->comm = NULL;
    EXPECT(m, !nested || dt_comm_size(nested) == 2);
    dt_comm_destroy(nested);
}

TEST(comm_groups_can_be_destroyed_after_their_parent) {
    for (int i = 0; i < 20; i++)
        thread_team_run(3, parent_first, NULL);
}

/* ---- what is refused */

typedef struct wrong_desc {
    dt_comm_desc desc;
    dt_result result;
    const char *part;
} wrong_desc;

#define TWO .world_size = 2, .rendezvous = "tcp://localhost:1"

TEST(comm_create_refuses_wrong_descs_with_the_reason) {
    static const wrong_desc wrong[] = {
        {{.error = "WORLD_SIZE is set, RANK is not"}, DT_ERROR_INVALID, "RANK is not"},
        {{.world_size = -1}, DT_ERROR_INVALID, ".world_size is -1; it must be from 1 to 65535"},
        {{.world_size = 70000}, DT_ERROR_INVALID, "world_size is 70000"},
        {{.rank = 1}, DT_ERROR_INVALID, ".rank is 1; it must be from 0 to 0"},
        {{TWO, .rank = 2}, DT_ERROR_INVALID, ".rank is 2; it must be from 0 to 1"},
        {{TWO, .rank = -1}, DT_ERROR_INVALID, "rank is -1"},
        {{.local_size = 2}, DT_ERROR_INVALID, "local_size is 2"},
        {{TWO, .local_size = 1, .local_rank = 1}, DT_ERROR_INVALID, "local_rank is 1"},
        {{.port_low = 65536}, DT_ERROR_INVALID, "port_low is 65536"},
        {{.port_low = 5000, .port_high = 4000},
         DT_ERROR_INVALID,
         ".port_low (5000) exceeds .port_high (4000)"},
        {{.port_low = 5000}, DT_ERROR_INVALID, "exceeds .port_high (0)"},
        {{.sockets = 17}, DT_ERROR_INVALID, ".sockets is 17; it must be from 1 to 16"},
        {{.sockets = -1}, DT_ERROR_INVALID, "sockets is -1"},
        {{.chunk_bytes = 4095},
         DT_ERROR_INVALID,
         ".chunk_bytes is 4095; it must be from 4096 to 8388608"},
        {{.chunk_bytes = 8388609}, DT_ERROR_INVALID, "chunk_bytes is 8388609"},
        {{.window = 65}, DT_ERROR_INVALID, ".window is 65; it must be from 0 to 64"},
        {{.join_timeout_ms = -1}, DT_ERROR_INVALID, "join_timeout_ms is -1"},
        {{.silence_ms = -1}, DT_ERROR_INVALID, "silence_ms is -1"},
        {{.link = {1, 0, 999}}, DT_ERROR_INVALID, ".link.bytes_per_s is 999; it must be from 1000"},
        {{.link = {0, 1, 1000}}, DT_ERROR_INVALID, ".link.latency_ns is 0; it must be from 1"},
        {{.link = {1, 10000000001, 1000}}, DT_ERROR_INVALID, "link.message_ns is 10000000001"},
        {{.link = {1, 1, 1000}, .no_link = true},
         DT_ERROR_INVALID,
         ".link and .no_link are both set"},
        {{.op_timeout_ms = -1}, DT_ERROR_INVALID, "op_timeout_ms is -1"},
        {{.transport = (dt_comm_transport)2}, DT_ERROR_INVALID, "transport is 2"},
        {{.integrity = (dt_comm_integrity)4}, DT_ERROR_INVALID, "integrity is 4"},
        {{.shared_memory = (dt_comm_shared_memory)3}, DT_ERROR_INVALID, "shared_memory is 3"},
        {{.integrity = DT_COMM_TLS, .shared_memory = DT_COMM_SHARED_REQUIRED},
         DT_ERROR_INVALID,
         "DT_COMM_SHARED_REQUIRED cannot be combined with DT_COMM_TLS"},
        {{.world_size = 2}, DT_ERROR_INVALID, "rendezvous is empty"},
        {{.world_size = 2, .rendezvous = "host:1"}, DT_ERROR_INVALID, ".rendezvous is \"host:1\""},
#ifdef DT_WITH_OPENSSL
        {{TWO, .insecure = true, .integrity = DT_COMM_MAC},
         DT_ERROR_INVALID,
         ".insecure cannot be"},
#else
        {{.integrity = DT_COMM_TLS},
         DT_ERROR_UNSUPPORTED,
         "DT_COMM_TLS, which requires dtrain compiled"},
#endif
#ifndef DT_WITH_MPI
        {{.transport = DT_COMM_MPI},
         DT_ERROR_UNSUPPORTED,
         "compile dtrain with mpicc and DT_WITH_MPI"},
#endif
        {{.allocator = {.free = dti_malloc_free}}, DT_ERROR_INVALID, "only one of alloc and free"},
    };
    for (size_t i = 0; i < DTI_COUNT(wrong); i++) {
        dt_comm *comm;
        dt_result result = dt_comm_create(&wrong[i].desc, &comm);
        test_check(result == wrong[i].result, __FILE__, __LINE__, "row %d: %s", (int)i,
                   dt_result_text(result));
        CHECK_CONTAINS(dt_comm_error(comm), wrong[i].part);
        dt_comm_destroy(comm);
    }
}

TEST(comm_create_refuses_texts_without_an_end) {
    dt_comm_desc desc = {0};
    dt_comm *comm;
    memset(desc.job, 'x', sizeof desc.job);
    CHECK(dt_comm_create(&desc, &comm) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_comm_error(comm), ".job is not zero-terminated within its 64");
    dt_comm_destroy(comm);
}

TEST(comm_defaults_are_filled_in) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dt_comm_desc d = {0};
    REQUIRE(dti_comm_check_desc(&base, &d) == DT_OK);
    CHECK(d.world_size == 1 && d.sockets == 1 && d.chunk_bytes == 262144 && d.window == 0);
    CHECK(d.join_timeout_ms == 300000 && d.silence_ms == 5000 && d.op_timeout_ms == 0);
}

TEST(comm_threads_refuse_a_wrong_number) {
    dt_comm *comms[2];
    CHECK(dt_comm_create_threads(NULL, 0, comms) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_comm_error(comms[0]), "size is 0; it must be from 1 to 1024");
    dt_comm_destroy(comms[0]);
    dt_comm_desc half = {.allocator = {.free = dti_malloc_free}};
    CHECK(dt_comm_create_threads(&half, 2, comms) == DT_ERROR_INVALID && !comms[1]);
    dt_comm_destroy(comms[0]);
    dt_comm_desc backwards = {.op_timeout_ms = -1};
    CHECK(dt_comm_create_threads(&backwards, 2, comms) == DT_ERROR_INVALID && !comms[1]);
    CHECK_CONTAINS(dt_comm_error(comms[0]), "op_timeout_ms is -1");
    dt_comm_destroy(comms[0]);
    CHECK(dt_comm_create_threads(NULL, 2, NULL) == DT_ERROR_INVALID);
}

TEST(comm_calls_on_nothing_or_a_failed_comm_do_nothing) {
    dt_comm *failed;
    dt_comm_work work = {7};
    bool finished = true;
    dt_comm_info info = {.operations = 5};
    CHECK(dt_comm_create(&(dt_comm_desc){.rank = 3}, &failed) == DT_ERROR_INVALID);
    dt_comm *comms[] = {NULL, failed};
    for (int i = 0; i < 2; i++) {
        dt_comm *c = comms[i], *group = c;
        CHECK(dt_comm_begin(c, &(dt_comm_op){0}, &work) == DT_ERROR_INVALID && !work.id);
        CHECK(dt_comm_test(c, work, &finished) == DT_ERROR_INVALID && !finished);
        CHECK(dt_comm_wait(c, work, -1) == DT_ERROR_INVALID);
        CHECK(dt_comm_cancel(c, work) == DT_ERROR_INVALID);
        CHECK(dt_comm_run(c, NULL) == DT_ERROR_INVALID);
        CHECK(dt_comm_barrier(c) == DT_ERROR_INVALID);
        CHECK(dt_comm_group_create(c, (int[]){0}, 1, &group) == DT_ERROR_INVALID && !group);
        CHECK(dt_comm_set_leaves(c, 0, 1, 1, NULL, NULL) == DT_ERROR_INVALID);
        dt_comm_get_info(c, &info);
        CHECK(info.operations == 0);
    }
    CHECK_CONTAINS(dt_comm_error(failed), "rank is 3"); /* still */
    CHECK_CONTAINS(dt_comm_error(NULL), "is NULL");
    CHECK(dt_comm_rank(NULL) == 0 && dt_comm_size(NULL) == 0);
    CHECK(dt_comm_create(NULL, NULL) == DT_ERROR_INVALID);
    dt_comm_get_info(failed, NULL);
    dt_comm_destroy(failed);
    dt_comm_destroy(NULL);
}

static float wrong_memory[4096];

typedef struct wrong_args {
    dt_comm_op op;
    int in_at, out_at; /* floats into wrong_memory; -1 = NULL */
    const char *part;
} wrong_args;

#define RS DT_COMM_REDUCE_SCATTER
#define A2A DT_COMM_ALL_TO_ALL
#define BC DT_COMM_BROADCAST
#define AR DT_COMM_ALL_REDUCE
#define AG DT_COMM_ALL_GATHER
#define GA DT_COMM_GATHER
#define RE DT_COMM_REDUCE
#define SC DT_COMM_SCATTER
TEST(comm_begin_refuses_wrong_arguments_with_the_reason) {
    static const wrong_args wrong[] = {
        /* ranges */
        {{.kind = (dt_comm_kind)11, .count = 1}, 0, 9, ".kind is 11; it must be"},
        {{.kind = (dt_comm_kind)-1, .count = 1}, 0, 9, ".kind is -1"},
        {{.kind = AR, .count = 1, .dtype = (dt_dtype)7}, 0, 9, "all-reduce: .dtype is 7"},
        {{.kind = AR, .count = 1, .reduction = (dt_comm_reduction)5}, 0, 9, ".reduction is 5"},
        {{.kind = AR, .count = 1, .algorithm = (dt_comm_algorithm)7}, 0, 9, ".algorithm is 7"},
        {{.kind = BC, .count = 1, .root = 4}, 0, 9, "broadcast: root is 4; it must be from"},
        {{.kind = RE, .count = 1, .root = -1}, 0, 9, "reduce: root is -1"},
        {{.kind = DT_COMM_SEND, .count = 1, .root = 4}, 0, 9, "send: rank is 4; it must be from 0"},
        {{.kind = DT_COMM_SEND, .count = 1, .root = 1}, 0, 9, "send: rank is 1, this rank itself"},
        {{.kind = DT_COMM_RECV, .count = 1, .root = 1}, 0, 9, "recv: rank is 1, this rank itself"},
        /* sizes */
        {{.kind = AR, .count = UINT64_MAX}, 0, 9, ".count is 18446744073709551615 of f32"},
        {{.kind = AG, .count = (uint64_t)1 << 60}, 0, 9, "at most 576460752303423487"},
        /* buffers */
        {{.kind = AR, .count = 5},
         -1,
         9,
         "all-reduce of 5 f32 (sum): .in is NULL; rank 1 needs 20"},
        {{.kind = AR, .count = 5}, 0, -1, "out is NULL"},
        {{.kind = AG, .count = 5}, 0, -1, "out is NULL; rank 1 needs 80"},
        {{.kind = A2A, .count = 5}, -1, 0, "in is NULL; rank 1 needs 80"},
        {{.kind = BC, .count = 5}, 0, -1, "broadcast of 5 f32, root 0: .out is NULL"},
        {{.kind = BC, .count = 5, .root = 1}, -1, 0, "in is NULL"},
        {{.kind = SC, .count = 5, .root = 1}, -1, 0, "in is NULL; rank 1 needs 80"},
        {{.kind = GA, .count = 5, .root = 1}, 0, -1, "out is NULL; rank 1 needs 80"},
        {{.kind = RE, .count = 5, .root = 1}, 0, -1, "out is NULL; rank 1 needs 20"},
        {{.kind = DT_COMM_SEND, .count = 5}, -1, 0, "send of 5 f32 to rank 0: .in is NULL"},
        {{.kind = DT_COMM_RECV, .count = 5}, 0, -1, "recv of 5 f32 from rank 0: .out is NULL"},
        /* overlaps */
        {{.kind = AR, .count = 5}, 0, 4, "overlap, as .out is .in + 16 bytes"},
        {{.kind = AR, .count = 5}, 4, 0, "overlap, as .out is .in + -16 bytes"},
        {{.kind = AG, .count = 5}, 10, 0, "or this rank's own block"},
        {{.kind = AG, .count = 5}, 6, 0, "overlap"},
        {{.kind = GA, .count = 5, .root = 1}, 15, 0, "overlap"},
        {{.kind = RS, .count = 5}, 0, 10, "overlap"},
        {{.kind = SC, .count = 5, .root = 1}, 0, 4, "overlap"},
        {{.kind = A2A, .count = 5}, 0, 5, "overlap"},
        {{.kind = RE, .count = 5, .root = 1}, 0, 1, "overlap"},
        /* tree mode */
        {{.kind = RS, .count = 5, .tree = true}, 0, 50, "only reduce and all-reduce"},
        {{.kind = AR, .count = 5, .dtype = DT_I32, .tree = true},
         0,
         50,
         "integer sums need no order"},
        {{.kind = AR, .count = 5, .tree = true}, 0, 50, "call dt_comm_set_leaves first"},
        /* algorithms */
        {{.kind = AG, .count = 5, .algorithm = DT_COMM_ALGORITHM_HALVING},
         0,
         50,
         "all-gather: .algorithm is halving; it must be direct, ring"},
        {{.kind = DT_COMM_BARRIER, .algorithm = DT_COMM_ALGORITHM_RING},
         0,
         50,
         "barrier: .algorithm is ring; it must be doubling"},
        {{.kind = DT_COMM_SEND, .count = 5, .algorithm = DT_COMM_ALGORITHM_DOUBLING},
         0,
         50,
         "send: .algorithm is doubling"},
    };
    dt_comm *comms[4];
    REQUIRE(dt_comm_create_threads(NULL, 4, comms) == DT_OK);
    for (size_t i = 0; i < DTI_COUNT(wrong); i++) {
        dt_comm_op op = wrong[i].op;
        dt_comm_work work = {1};
        op.in = wrong[i].in_at < 0 ? NULL : wrong_memory + wrong[i].in_at;
        op.out = wrong[i].out_at < 0 ? NULL : wrong_memory + wrong[i].out_at;
        dt_result result = dt_comm_begin(comms[1], &op, &work);
        test_check(result == DT_ERROR_INVALID && !work.id, __FILE__, __LINE__,
                   "row %d is not refused (%s)", (int)i, wrong[i].part);
        CHECK_CONTAINS(dt_comm_error(comms[1]), wrong[i].part);
    }
    dt_comm_work work;
    float *top = (float *)(UINTPTR_MAX - 15);
    CHECK(dt_comm_all_reduce(comms[1], top, wrong_memory, 5, DT_F32, DT_COMM_SUM) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_comm_error(comms[1]), "past the end of the address space");
    CHECK(dt_comm_begin(comms[1], NULL, &work) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_comm_error(comms[1]), "op is NULL");
    CHECK(dt_comm_begin(comms[1], &(dt_comm_op){.kind = DT_COMM_BARRIER}, NULL) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_comm_error(comms[1]), "out is NULL");
    for (int r = 0; r < 4; r++)
        dt_comm_destroy(comms[r]);
}
#undef RS
#undef A2A
#undef BC
#undef AR
#undef AG
#undef GA
#undef RE
#undef SC

/* In tree mode a 16-bit sum's input is wider than its result, so in place would tread on itself. */
static void tree_in_place(mate *m) {
    double x[8] = {0};
    int buffers;
    EXPECT(m,
           !dt_comm_set_leaves(m->comm, (uint32_t)m->rank, 1, 2, &buffers, NULL) && buffers == 1);
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = x, .count = 8, .tree = true};
    EXPECT(m, !dt_comm_run(m->comm, &op));
    op.dtype = DT_BF16;
    EXPECT(m, dt_comm_run(m->comm, &op) == DT_ERROR_INVALID);
    EXPECT_TEXT(m, "overlap");
    op.out = x + 4;
    EXPECT(m, !dt_comm_run(m->comm, &op));
}

TEST(comm_tree_mode_in_place_is_for_equal_widths) {
    thread_team_run(2, tree_in_place, NULL);
}

TEST(comm_handles_end_once) {
    dt_comm *comm;
    REQUIRE(dt_comm_create(NULL, &comm) == DT_OK);
    float x[3] = {1, 2, 3}, y[3] = {0};
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = y, .count = 3};
    dt_comm_work one, two, three;
    CHECK(!dt_comm_begin(comm, &op, &one) && !dt_comm_begin(comm, &op, &two));
    CHECK(!dt_comm_begin(comm, &op, &three) && one.id && two.id && one.id != two.id);
    bool finished = false;
    CHECK(!dt_comm_test(comm, one, &finished) && finished && y[2] == 3);
    CHECK(dt_comm_test(comm, one, &finished) == DT_ERROR_INVALID && !finished);
    CHECK_CONTAINS(dt_comm_error(comm), "a handle can be waited for once");
    CHECK(dt_comm_wait(comm, one, -1) == DT_ERROR_INVALID);
    CHECK(!dt_comm_wait(comm, three, 0) && !dt_comm_cancel(comm, two));
    CHECK(dt_comm_cancel(comm, two) == DT_ERROR_INVALID);
    CHECK(dt_comm_wait(comm, (dt_comm_work){0}, -1) == DT_ERROR_INVALID);
    CHECK(dt_comm_wait(comm, (dt_comm_work){UINT64_MAX}, -1) == DT_ERROR_INVALID);
    dt_comm *group;
    CHECK(!dt_comm_group_create(comm, (int[]){0}, 1, &group) && dt_comm_size(group) == 1);
    CHECK(!dt_comm_barrier(group));
    dt_comm_info info;
    dt_comm_get_info(group, &info);
    CHECK(info.operations == 1);
    dt_comm_destroy(comm);
    CHECK(dt_comm_barrier(group) == DT_ERROR_REVOKED);
    dt_comm_destroy(group);
}

TEST(comm_old_handles_do_not_reach_newer_operations) {
    dt_comm *comms[2];
    dt_comm_op op = {.kind = DT_COMM_BARRIER};
    dt_comm_work old[2], new[2];
    REQUIRE(dt_comm_create_threads(NULL, 2, comms) == DT_OK);
    for (int r = 0; r < 2; r++)
        CHECK(!dt_comm_begin(comms[r], &op, &old[r]));
    for (int r = 0; r < 2; r++)
        CHECK(!dt_comm_wait(comms[r], old[r], -1));
    for (int r = 0; r < 2; r++)
        CHECK(!dt_comm_begin(comms[r], &op, &new[r]));
    CHECK(dt_comm_wait(comms[0], old[0], 0) == DT_ERROR_INVALID);
    CHECK(dt_comm_cancel(comms[1], old[1]) == DT_ERROR_INVALID);
    for (int r = 0; r < 2; r++)
        CHECK(!dt_comm_wait(comms[r], new[r], 0));
    for (int r = 0; r < 2; r++)
        dt_comm_destroy(comms[r]);
}

TEST(comm_calls_in_a_child_of_fork_are_refused) {
    dt_comm *comms[2], *single;
    REQUIRE(!dt_comm_create_threads(NULL, 2, comms) && !dt_comm_create(NULL, &single));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dt_comm_info info;
        dt_comm *group;
        int wrong = dt_comm_barrier(comms[0]) != DT_ERROR_FORKED;
        wrong += dt_comm_barrier(single) != DT_ERROR_FORKED;
        wrong += dt_comm_wait(single, (dt_comm_work){1}, 0) != DT_ERROR_FORKED;
        wrong += dt_comm_cancel(single, (dt_comm_work){1}) != DT_ERROR_FORKED;
        wrong += dt_comm_group_create(single, (int[]){0}, 1, &group) != DT_ERROR_FORKED;
        wrong += !strstr(dt_comm_error(single), "a child of fork");
        dt_comm_get_info(comms[0], &info);
        dt_comm_destroy(comms[0]);
        _exit(wrong);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int r = 0; r < 2; r++)
        dt_comm_destroy(comms[r]);
    dt_comm_destroy(single);
}

/* ---- memory and the log */

static void warm(mate *m) {
    char *memory = calloc(1, 70001 * 8);
    dt_comm_info before = {0}, after;
    for (int again = 0; again < 4; again++) {
        for (int kind = DT_COMM_BROADCAST; kind <= DT_COMM_BARRIER; kind++) {
            kind_case c = {.op = {.kind = (dt_comm_kind)kind, .count = 700}};
            dt_comm_work work[3];
            c.op.in = memory, c.op.out = memory;
            for (int k = 0; k < 3; k++)
                EXPECT(m, !dt_comm_begin(m->comm, &c.op, &work[k]));
            for (int k = 0; k < 3; k++)
                EXPECT(m, !dt_comm_wait(m->comm, work[k], -1));
        }
        EXPECT(m, !dt_comm_barrier(m->comm) && !dt_comm_barrier(m->comm));
        dt_comm_get_info(m->comm, &after);
        if (again == 1)
            before = after;
    }
    EXPECT(m, before.host_alloc_calls == after.host_alloc_calls && before.host_bytes);
    EXPECT(m, after.operations == 4 * (3 * 9 + 2));
    free(memory);
}

TEST(comm_operations_allocate_nothing_after_the_first) {
    thread_team_run(1, warm, NULL);
    thread_team_run(3, warm, NULL);
}

/* Counts what is out, and fails the k-th request (0 = none). */
typedef struct failing {
    _Atomic int64_t out, calls;
    int64_t fail_at;
} failing;

static void *failing_alloc(void *user, size_t bytes, size_t align) {
    failing *f = user;
    if (atomic_fetch_add(&f->calls, 1) + 1 == f->fail_at)
        return NULL;
    atomic_fetch_add(&f->out, (int64_t)bytes);
    return dti_malloc_aligned(NULL, bytes, align);
}

static void failing_free(void *user, void *memory, size_t bytes) {
    failing *f = user;
    atomic_fetch_sub(&f->out, (int64_t)bytes);
    dti_malloc_free(NULL, memory, bytes);
}

/* Any result but a success must be a clear one. A rank that has no memory leaves. */
static void starved(mate *m) {
    float x[4] = {0}, in[16] = {0};
    int list[2] = {0, 1}, buffers;
    dt_comm *group = NULL;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = in, .out = x, .count = 4, .tree = true};
    dt_result result = dt_comm_group_create(m->comm, list, 2, &group);
    if (!result && group)
        result = dt_comm_all_reduce(group, x, x, 4, DT_F32, DT_COMM_SUM);
    if (!result)
        result = dt_comm_set_leaves(m->comm, (uint32_t)m->rank * 3, 3, 9, &buffers, NULL);
    if (!result)
        result = dt_comm_run(m->comm, &op);
    EXPECT(m, !result || result == DT_ERROR_MEMORY || ended_by(m, result, DT_ERROR_PEER_LOST));
    EXPECT(m, !result || dt_comm_error(m->comm)[0]);
    EXPECT(m, result != DT_ERROR_MEMORY || strstr(dt_comm_error(m->comm), "memory"));
    dt_comm_destroy(group);
    dt_comm_destroy(m->comm);
    m->comm = NULL;
}

/* First through the creation, of which each request fails once, then through what ranks do. */
TEST(comm_failing_allocations_are_errors_and_leak_nothing) {
    int64_t creation = 0, all = 0;
    for (int64_t k = 1; !creation; k++) {
        failing f = {.fail_at = k};
        dt_comm_desc desc = {.allocator = {failing_alloc, failing_free, &f}};
        dt_comm *comms[3];
        dt_result result = dt_comm_create_threads(&desc, 3, comms);
        if (!result)
            creation = atomic_load(&f.calls);
        else
            CHECK(result == DT_ERROR_MEMORY && !comms[1] && !comms[2]);
        CHECK(!result || !comms[0] || strstr(dt_comm_error(comms[0]), "memory"));
        for (int r = 0; r < 3; r++)
            dt_comm_destroy(comms[r]);
        CHECK(atomic_load(&f.out) == 0);
    }
    CHECK(creation > 10);
    for (int64_t k = 0; creation + k <= all || k == 0; k++) {
        failing f = {.fail_at = k ? creation + k : 0};
        dt_comm_desc desc = {.allocator = {failing_alloc, failing_free, &f}};
        thread_team_run_with(&desc, 3, starved, NULL);
        CHECK(atomic_load(&f.out) == 0);
        all = DTI_MAX(all, atomic_load(&f.calls));
    }
    CHECK(all > creation + 10);
}

TEST(comm_of_one_rank_survives_failing_allocations) {
    bool whole = false;
    for (int64_t k = 1; !whole; k++) {
        failing f = {.fail_at = k};
        dt_comm_desc desc = {.allocator = {failing_alloc, failing_free, &f}};
        dt_comm *comm, *group = NULL;
        dt_result result = dt_comm_create(&desc, &comm);
        CHECK(!result || result == DT_ERROR_MEMORY);
        if (!result) {
            result = dt_comm_group_create(comm, (int[]){0}, 1, &group);
            whole = !result && !dt_comm_barrier(group);
            CHECK(whole || dt_comm_barrier(comm) == DT_OK || k < 12);
        }
        dt_comm_destroy(group);
        dt_comm_destroy(comm);
        CHECK(atomic_load(&f.out) == 0);
    }
}

typedef struct comm_log {
    int errors;
    char last[512];
} comm_log;

static void comm_log_add(void *user, dt_log_level level, const char *message) {
    comm_log *log = user;
    log->errors += level == DT_LOG_ERROR;
    snprintf(log->last, sizeof log->last, "%s", message);
}

TEST(comm_errors_are_logged_and_tests_of_pending_work_are_not) {
    comm_log log = {0};
    dt_comm_desc desc = {.logger = {comm_log_add, &log}};
    dt_comm *comms[2];
    dt_comm_work work;
    bool finished = true;
    REQUIRE(dt_comm_create_threads(&desc, 2, comms) == DT_OK);
    CHECK(dt_comm_begin(comms[0], &(dt_comm_op){.kind = DT_COMM_BARRIER}, &work) == DT_OK);
    CHECK(dt_comm_test(comms[0], work, &finished) == DT_OK && !finished && log.errors == 0);
    CHECK(dt_comm_wait(comms[0], work, 0) == DT_ERROR_TIMEOUT && log.errors == 1);
    CHECK_STR(log.last, dt_comm_error(comms[0]));
    CHECK_CONTAINS(log.last, "barrier (operation 0) has not been posted by rank 1");
    CHECK_STR(dt_comm_error(comms[1]), "");
    dt_comm_destroy(comms[0]);
    CHECK(dt_comm_barrier(comms[1]) == DT_ERROR_REVOKED && log.errors == 2);
    CHECK_STR(log.last, "the group has ended: rank 0 left the group in barrier (operation 0)");
    dt_comm_destroy(comms[1]);
    CHECK(dt_comm_create(&(dt_comm_desc){.rank = 1, .logger = desc.logger}, &comms[0]) ==
          DT_ERROR_INVALID);
    CHECK(log.errors == 3);
    dt_comm_destroy(comms[0]);
    CHECK(
        !dt_comm_create(&(dt_comm_desc){.warning = "two launchers", .logger = desc.logger}, comms));
    CHECK_STR(log.last, "two launchers");
    CHECK(log.errors == 3); /* a warning */
    dt_comm_destroy(comms[0]);
}
