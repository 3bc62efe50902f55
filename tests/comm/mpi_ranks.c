/* One rank of the tests of the MPI transport; tests/scripts/mpi.sh runs it under mpirun, one
 * scenario a run. What test_comm.c asks of ranks that are threads is asked of ranks of MPI too.
 * Prints what fails; the exit status is 1 then. */
#define _GNU_SOURCE
#include "harness.h"

#define DT_COMM_ONLY
#define DT_WITH_MPI
#define DT_IMPLEMENTATION
#include "dtrain.h"

/* The harness without its main: test_comm.c's own tests are not run here. */
test_state test_now;
int harness_threads_left = -1;

void test_register(test *t) {
    (void)t;
}

bool test_check(bool ok, const char *file, int line, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (!ok && test_now.failures++ < 10) {
        printf("  %s:%d: ", file, line);
        vprintf(format, list);
        printf("\n");
    }
    va_end(list);
    return ok;
}

#include "ops/half.h"
#include "comm/test_comm.c"

/* ---- helpers */

static bool join_with(mate *m, dt_comm_desc desc) {
    desc.transport = DT_COMM_MPI;
    if (!desc.silence_ms)
        desc.silence_ms = 300;
    dt_result result = dt_comm_create(&desc, &m->comm);
    m->rank = dt_comm_rank(m->comm), m->size = dt_comm_size(m->comm);
    m->random = (uint64_t)(m->rank + 1) * 7919;
    return EXPECT(m, !result && !strcmp(m->comm->transport->name, "mpi"));
}

static bool join(mate *m) {
    return join_with(m, (dt_comm_desc){0});
}

static void leave(mate *m) {
    dt_comm_destroy(m->comm);
    m->comm = NULL;
}

/* MPI ends the remaining ranks when one goes without MPI_Finalize. That cannot be called with
 * operations that were given up, so all wait for all. */
static bool join_to_end(mate *m, dt_comm_desc desc) {
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* MPICH asks it of requests too */
    return join_with(m, desc);
}

static void leave_ended(mate *m) {
    uint64_t start = dti_now_ns();
    leave(m);
    EXPECT(m, dti_now_ns() - start < 3000000000u);
    if (!m->failed_line) {
        printf("rank %d ended\n", m->rank);
        fflush(stdout);
        MPI_Barrier(MPI_COMM_WORLD);
        _exit(0);
    }
}

/* ---- what works */

/* Several windows of chunks, of every kind, in each place. */
static void large(mate *m) {
    static const dt_dtype dtypes[] = {DT_F32, DT_BF16, DT_I64};
    size_t count = 1400001;
    char *memory = malloc(count * 8 * (size_t)m->size * 2 + 4096);
    for (int kind = DT_COMM_BROADCAST; kind < DT_COMM_BARRIER; kind++)
        for (size_t d = 0; d < DTI_COUNT(dtypes) && !m->failed_line; d++) {
            bool places = kind >= DT_COMM_GATHER && kind != DT_COMM_ALL_TO_ALL;
            kind_case c = {.op = {.kind = (dt_comm_kind)kind, .count = count, .dtype = dtypes[d]}};
            c.op.root = m->size - 1;
            c.op.reduction = d == 2 ? DT_COMM_MEAN : d == 1 ? DT_COMM_MIN : DT_COMM_SUM;
            if (!dti_kind_reduces(c.op.kind))
                c.op.reduction = DT_COMM_SUM;
            for (c.place = 0; c.place < 2 + places; c.place++)
                kind_run(m, &c, memory);
        }
    free(memory);
}

/* Long and short ones of a pair, all pending: the order is kept, and nobody waits for a window. */
static void large_pairs(mate *m) {
    enum { N = 1500000, K = 4 };
    static const uint64_t counts[K] = {N, 3, N / 2, 1};
    int to = (m->rank + 1) % m->size, from = (m->rank + m->size - 1) % m->size;
    int32_t *out = malloc(4 * (size_t)N), *in = malloc(4 * (size_t)N * K);
    dt_comm_work sends[K], recvs[K];
    for (int i = 0; i < N; i++)
        out[i] = m->rank + i;
    for (int k = 0; k < K; k++) {
        dt_comm_op send = {.kind = DT_COMM_SEND, .in = out + k, .root = to, .dtype = DT_I32};
        dt_comm_op recv = {.kind = DT_COMM_RECV, .out = in + N * k, .root = from, .dtype = DT_I32};
        send.count = recv.count = counts[k] - (k == 0) * K;
        EXPECT(m, !dt_comm_begin(m->comm, &recv, &recvs[k]));
        EXPECT(m, !dt_comm_begin(m->comm, &send, &sends[k]));
    }
    float one = 1;
    EXPECT(m, !dt_comm_all_reduce(m->comm, &one, &one, 1, DT_F32, DT_COMM_SUM));
    for (int k = K; k-- > 0;) {
        EXPECT(m, !dt_comm_wait(m->comm, recvs[k], -1) && !dt_comm_wait(m->comm, sends[k], -1));
        for (uint64_t i = 0; i < counts[k] - (k == 0) * K; i++)
            EXPECT(m, in[(uint64_t)(N * k) + i] == from + (int32_t)i + k);
    }
    EXPECT(m, one == (float)m->size);
    free(in);
    free(out);
}

/* Sums that depend on their order: whatever MPI's is, all ranks have the same bits. */
static void same_bits(mate *m) {
    enum { N = 70000 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (int reduction = DT_COMM_SUM; reduction <= DT_COMM_PRODUCT; reduction++) {
        for (size_t i = 0; i < N; i++)
            x[i] = sensitive_at(m->rank, i);
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, x, N, DT_F32, (dt_comm_reduction)reduction));
        memcpy(y, x, N * sizeof *x);
        EXPECT(m, !dt_comm_broadcast(m->comm, y, N, DT_F32, m->size - 1));
        EXPECT(m, !memcmp(x, y, N * sizeof *x));
        uint32_t nan = 0;
        memcpy(&nan, &x[49], sizeof nan);
        EXPECT(m, m->size == 1 || nan == 0x7FC00000);
    }
    for (int most = 0; most < 2; most++) { /* of zeros the one further left */
        float zero = m->rank ? 0.0f : -0.0f, got = 1;
        dt_comm_reduction reduction = most ? DT_COMM_MAX : DT_COMM_MIN;
        EXPECT(m, !dt_comm_all_reduce(m->comm, &zero, &got, 1, DT_F32, reduction));
        EXPECT(m, got == 0 && signbit(got));
    }
    free(y);
    free(x);
}

static void waits(mate *m) {
    float x = (float)m->rank, y = 0;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = &x, .out = &y, .count = 1};
    dt_comm_work work = {0};
    bool finished = true;
    uint64_t start = dti_now_ns();
    if (m->rank == 0) {
        usleep(100000);
        EXPECT(m, !dt_comm_run(m->comm, &op));
    } else {
        EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
        EXPECT(m, dt_comm_wait(m->comm, work, 20) == DT_ERROR_TIMEOUT);
        EXPECT(m, dti_now_ns() - start >= 20000000);
        EXPECT_TEXT(m, "all-reduce of 1 f32 (sum): 0 of 1 parts are done");
        EXPECT(m, !dt_comm_test(m->comm, work, &finished) && !finished && y == 0);
        EXPECT(m, !dt_comm_wait(m->comm, work, -1));
        EXPECT(m, dt_comm_wait(m->comm, work, 0) == DT_ERROR_INVALID);
    }
    EXPECT(m, y == (float)(m->size * (m->size - 1) / 2));
    op.algorithm = DT_COMM_ALGORITHM_RING;
    EXPECT(m, dt_comm_begin(m->comm, &op, &work) == DT_ERROR_UNSUPPORTED && !work.id);
    EXPECT_TEXT(m, "MPI chooses its own");
    int buffers;
    uint32_t total = (uint32_t)m->size;
    EXPECT(m, !dt_comm_set_leaves(m->comm, (uint32_t)m->rank, 1, total, &buffers, NULL));
    op.algorithm = DT_COMM_ALGORITHM_DEFAULT, op.tree = true;
    EXPECT(m, dt_comm_begin(m->comm, &op, &work) == DT_ERROR_UNSUPPORTED);
    EXPECT_TEXT(m, "MPI sums in its own order");
    EXPECT(m, !dt_comm_barrier(m->comm));
}

/* No allocation after the first of a kind. */
static void no_allocations(mate *m) {
    enum { N = 600000 };
    float *x = calloc(N, sizeof *x);
    dt_comm_info before, after;
    for (int i = 0; i < 20; i++) {
        uint64_t count = i % 2 ? 10 : N;
        EXPECT(m, !dt_comm_all_reduce(m->comm, x, x, count, DT_F32, DT_COMM_SUM));
        EXPECT(m, !dt_comm_broadcast(m->comm, x, count, DT_F32, 0));
        if (i == 1)
            dt_comm_get_info(m->comm, &before);
    }
    dt_comm_get_info(m->comm, &after);
    EXPECT(m, before.host_alloc_calls == after.host_alloc_calls);
    EXPECT(m, after.operations > before.operations &&
                  after.payload_bytes_sent > before.payload_bytes_sent);
    free(x);
}

static void works(mate *m) {
    if (!join(m))
        return;
    kind_table(m);
    wrappers(m);
    for (int i = 0; i < 5 && m->size > 1; i++)
        pairs(m);
    if (m->size > 1)
        groups(m);
    opposite(m);
    many_pending(m);
    same_bits(m);
    waits(m);
    no_allocations(m);
    if (m->size > 1)
        large_pairs(m);
    large(m);
    leave(m);
}

/* ---- what ends */

/* Rank 0 gives up, while rank 1 has not posted; all get the cause, and their buffers. */
static void cancels(mate *m) {
    enum { N = 3000000 };
    float *x = calloc(N, sizeof *x), *y = calloc(N, sizeof *y);
    int list[] = {0, 1, 2, 3, 4, 5, 6, 7};
    dt_comm *group;
    dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE, .in = x, .out = y, .count = N};
    dt_comm_work work = {0}, done;
    dt_comm_op barrier = {.kind = DT_COMM_BARRIER};
    if (!join_to_end(m, (dt_comm_desc){0}) ||
        !EXPECT(m, !dt_comm_group_create(m->comm, list, m->size, &group)))
        return;
    EXPECT(m, !dt_comm_begin(group, &barrier, &done));
    EXPECT(m, !dt_comm_wait(group, done, -1));
    if (m->rank != 1)
        EXPECT(m, !dt_comm_begin(group, &op, &work));
    EXPECT(m, !dt_comm_barrier(m->comm));
    if (m->rank == 0)
        usleep(100000);
    if (m->rank == 0)
        EXPECT(m, dt_comm_cancel(group, work) == DT_ERROR_CANCELLED);
    else if (m->rank != 1)
        EXPECT(m, dt_comm_wait(group, work, -1) == DT_ERROR_CANCELLED);
    free(x); /* MPI still has the operation, but not these */
    free(y);
    float one = 1; /* which nobody sends */
    dt_result result = dt_comm_recv(m->comm, &one, 1, DT_F32, (m->rank + 1) % m->size);
    EXPECT(m, ended_by(m, result, DT_ERROR_CANCELLED));
    EXPECT_TEXT(m, "rank 0 cancelled all-reduce of 3000000 f32 (sum)");
    EXPECT(m, dt_comm_barrier(group) == DT_ERROR_REVOKED);
    EXPECT_TEXT(m, "the group has ended: rank 0 cancelled");
    dt_comm_destroy(group);
    leave_ended(m);
}

static void op_times_out(mate *m) {
    float x = 1;
    if (!join_to_end(m, (dt_comm_desc){.op_timeout_ms = 200}))
        return;
    EXPECT(m, !dt_comm_barrier(m->comm));
    uint64_t start = dti_now_ns();
    dt_result result = m->rank == 0 ? dt_comm_recv(m->comm, &x, 1, DT_F32, 1)
                                    : dt_comm_recv(m->comm, &x, 1, DT_F32, 0);
    EXPECT(m, ended_by(m, result, DT_ERROR_LATE));
    EXPECT(m, dti_now_ns() - start >= 190000000 && m->comm->pending == 0);
    EXPECT_TEXT(m, "recv of 1 f32 from rank");
    EXPECT_TEXT(m, "did not progress for 200 ms");
    EXPECT(m, dt_comm_barrier(m->comm) == DT_ERROR_REVOKED);
    leave_ended(m);
}

/* The last rank leaves at once, and leaves others waiting; the first, which has what it needs, may
 * go on with whom is left. */
static void leaves_early(mate *m) {
    int32_t x = m->rank;
    if (!join_to_end(m, (dt_comm_desc){0}))
        return;
    EXPECT(m, !dt_comm_barrier(m->comm));
    if (m->rank == m->size - 1) {
        leave_ended(m);
        return;
    }
    if (m->size == 3)
        for (int i = 0; i < 30; i++) {
            usleep(100000); /* past the moment when the others hear of it */
            EXPECT(m, m->rank ? !dt_comm_recv(m->comm, &x, 1, DT_I32, 0)
                              : !dt_comm_send(m->comm, &x, 1, DT_I32, 1));
        }
    dt_result result = dt_comm_all_reduce(m->comm, &x, &x, 1, DT_I32, DT_COMM_SUM);
    EXPECT(m, ended_by(m, result, DT_ERROR_PEER_LOST));
    EXPECT_TEXT(m, "has left the group; all-reduce of 1 i32 (sum) needs it");
    leave_ended(m);
}

static void leaves_pending(mate *m) {
    float x = 1;
    dt_comm_work work;
    dt_comm_op op = {.kind = DT_COMM_RECV, .out = &x, .count = 1};
    if (!join_to_end(m, (dt_comm_desc){0}))
        return;
    op.root = m->rank ? 0 : 1;
    EXPECT(m, !dt_comm_begin(m->comm, &op, &work));
    EXPECT(m, !dt_comm_barrier(m->comm));
    if (m->rank == 0) {
        leave_ended(m);
        return;
    }
    EXPECT(m, dt_comm_wait(m->comm, work, -1) == DT_ERROR_PEER_LOST);
    EXPECT_TEXT(m, "rank 0 left the group in recv of 1 f32 from rank 1");
    leave_ended(m);
}

/* Rank 0 sends more than rank 1 takes: MPI reports it. */
static void truncates(mate *m) {
    float x[4] = {0};
    if (!join_to_end(m, (dt_comm_desc){0}))
        return;
    if (m->rank == 1) {
        EXPECT(m, dt_comm_recv(m->comm, x, 3, DT_F32, 0) == DT_ERROR_MISMATCH);
        EXPECT_TEXT(m, "rank 1: ");
    } else if (m->rank == 0) {
        dt_result result = dt_comm_send(m->comm, x, 4, DT_F32, 1);
        EXPECT(m, !result || ended_by(m, result, DT_ERROR_MISMATCH));
    }
    leave_ended(m);
}

/* ---- whose MPI it is */

/* The application's: it outlives comms, of which there may be several. */
static void given(mate *m) {
    int level, over = 1;
    float x = 1;
    dt_comm *second;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    for (int i = 0; i < 3; i++) {
        if (!join(m))
            return;
        dt_comm_desc desc = {.transport = DT_COMM_MPI, .rank = m->rank, .world_size = m->size};
        EXPECT(m, !dt_comm_create(&desc, &second));
        EXPECT(m, !dt_comm_all_reduce(second, &x, &x, 1, DT_F32, DT_COMM_MAX));
        leave(m);
        EXPECT(m, !dt_comm_all_reduce(second, &x, &x, 1, DT_F32, DT_COMM_MAX) && x == 1);
        dt_comm_destroy(second);
        MPI_Finalized(&over);
        EXPECT(m, !over);
    }
    MPI_Finalize();
}

static void owned(mate *m) {
    if (!join(m))
        return;
    dt_comm *comm, *other;
    dt_comm_desc desc = {.transport = DT_COMM_MPI, .rank = 0, .world_size = 9};
    EXPECT(m, dt_comm_create(&desc, &other) == DT_ERROR_INVALID);
    EXPECT(m, strstr(dt_comm_error(other), ".rank is 0 of .world_size 9, but MPI reports rank ") !=
                  NULL);
    dt_comm_destroy(other);
    leave(m);
    int over = 0;
    MPI_Finalized(&over);
    EXPECT(m, over);
    desc.world_size = 0;
    EXPECT(m, dt_comm_create(&desc, &comm) == DT_ERROR_UNSUPPORTED);
    EXPECT(m, strstr(dt_comm_error(comm), "cannot be initialised again") != NULL);
    dt_comm_destroy(comm);
}

/* ---- how fast: KiB and microseconds of an all-reduce */

static void speed(mate *m) {
    if (!join(m))
        return;
    float *x = calloc(16 << 20, sizeof *x);
    for (uint64_t bytes = 4; bytes <= 64 << 20; bytes *= 16) {
        int again = bytes < 65536 ? 2000 : bytes < 4 << 20 ? 100 : 5;
        dt_comm_barrier(m->comm);
        uint64_t start = dti_now_ns();
        for (int i = 0; i < again; i++)
            EXPECT(m, !dt_comm_all_reduce(m->comm, x, x, bytes / 4, DT_F32, DT_COMM_SUM));
        double ours = (double)(dti_now_ns() - start) / again / 1000;
        MPI_Barrier(MPI_COMM_WORLD);
        start = dti_now_ns();
        for (int i = 0; i < again; i++)
            MPI_Allreduce(MPI_IN_PLACE, x, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double plain = (double)(dti_now_ns() - start) / again / 1000;
        if (m->rank == 0)
            printf("%10.1f KiB: %10.1f us, MPI_Allreduce %10.1f us\n", (double)bytes / 1024, ours,
                   plain);
    }
    free(x);
    leave(m);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(mate *m);
    } scenarios[] = {
        {"works", works},
        {"cancels", cancels},
        {"op_times_out", op_times_out},
        {"leaves_early", leaves_early},
        {"leaves_pending", leaves_pending},
        {"truncates", truncates},
        {"given", given},
        {"owned", owned},
        {"speed", speed},
    };
    thread_team all = {0};
    mate m = {.all = &all};
    bool found = false;
    for (size_t i = 0; argc > 1 && i < DTI_COUNT(scenarios); i++)
        if (!strcmp(argv[1], scenarios[i].name)) {
            scenarios[i].run(&m);
            found = true;
        }
    if (m.failed_line)
        printf("  tests/comm: line %d, rank %d of %d: %s\n", m.failed_line, m.rank, m.size,
               m.failed);
    bool failed = m.failed_line || test_now.failures || !found;
    fflush(stdout);
    if (failed)
        _exit(1); /* at once: the others may wait for this rank, and mpirun ends them */
    return 0;
}
