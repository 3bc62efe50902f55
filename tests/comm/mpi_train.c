/* A rank of a training job whose comm is MPI's: a stage on each. tests/scripts/mpi.sh runs it under
 * mpirun. In the third step rank 1 fails at an action, or is killed. Prints what fails. */
#include "harness.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int mpi_step, mpi_kills, mpi_works;
#define DTI_ACTION_FAULT(par, index, at)                                                           \
    (mpi_step == 3 && !mpi_works && (par)->mesh.rank == 1 && (index) == 0 && (at) == 2             \
         ? mpi_kills ? (dt_result)raise(SIGKILL)                                                   \
                     : dti_fail(dti_ctx_base((par)->pipe->devices[0].ctx), DT_ERROR_DEVICE,        \
                                "an action failed")                                                \
         : DT_OK)

#define DT_WITH_MPI
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include "train/train_model.h"

test_state test_now;
int harness_threads_left = -1;

void test_register(test *t) {
    (void)t;
}

bool test_check(bool ok, const char *file, int line, const char *format, ...) {
    (void)format;
    if (!ok)
        printf("  %s:%d\n", file, line);
    return ok;
}

static int mpi_failed;

static void mpi_expect(bool ok, int rank, const char *what, const char *text) {
    if (ok)
        return;
    mpi_failed = 1;
    printf("  rank %d: %s: %s\n", rank, what, text);
}

/* All get the error, and stay: mpirun ends the other ranks when one goes without MPI_Finalize. */
static void mpi_told(dt_comm *comm, const train_model *m, dt_trainer *t, dt_result result) {
    const int rank = dt_comm_rank(comm);
    const char *text = dt_ctx_error(m->ctx);
    mpi_expect(result == (rank == 1 ? DT_ERROR_DEVICE : DT_ERROR_CANCELLED), rank, "step 3", text);
    mpi_expect(strstr(text, rank == 1 ? "an action failed" : "rank 1 cancelled its step") != NULL,
               rank, "the text", text);
    mpi_expect(rank == 1 || strstr(text, "step 2"), rank, "which weights", text);
    mpi_expect(dt_trainer_step(t, NULL) == DT_ERROR_REVOKED, rank, "behind", text);
}

static dt_result mpi_train(dt_comm *comm, train_model *m, bool replicas, dt_trainer **t) {
    dt_trainer_desc d = train_desc(m);
    d.comm = comm;
    d.devices = "cpu";
    d.accumulate = 2;
    d.parallel.pipeline = replicas ? 0 : dt_comm_size(comm);
    dt_result result = dt_trainer_create(m->graph, &d, t);
    for (mpi_step = 1; mpi_step <= 6 && !result; mpi_step++)
        result = dt_trainer_step(*t, NULL);
    return result;
}

static void mpi_expects(dt_comm *comm, const train_model *m, dt_trainer *t, const char *what,
                        dt_result result) {
    const char *text = dt_ctx_error(m->ctx);
    if (!strcmp(what, "trains"))
        mpi_expect(!result, dt_comm_rank(comm), "training", text);
    else if (!strcmp(what, "replicas")) /* whose sums need an order */
        mpi_expect(result == DT_ERROR_UNSUPPORTED && strstr(text, "use DT_COMM_TCP"),
                   dt_comm_rank(comm), "replicas", text);
    else
        mpi_told(comm, m, t, result);
}

/* trains, replicas, gives_up or killed */
int main(int count, char **args) {
    static train_model m;
    dt_comm *comm;
    dt_trainer *t = NULL;
    int level;
    const char *what = count > 1 ? args[1] : "";
    mpi_works = !strcmp(what, "trains");
    mpi_kills = !strcmp(what, "killed");
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (dt_comm_create(&(dt_comm_desc){.transport = DT_COMM_MPI}, &comm))
        return 1;
    const int rank = dt_comm_rank(comm);
    dt_result result = DT_ERROR_MEMORY;
    if (train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, 0))
        result = mpi_train(comm, &m, !strcmp(what, "replicas"), &t);
    mpi_expects(comm, &m, t, what, result);
    dt_ctx_destroy(m.ctx);
    dt_comm_destroy(comm);
    if (!mpi_failed)
        printf("rank %d ended\n", rank);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    _exit(mpi_failed);
}
