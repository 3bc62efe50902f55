/* dtrain without dt_comm's connections (DT_NO_COMM). A comm of one rank does its operations, and
 * each way to others is refused with its reason. examples/data_parallel.c trains. apps.sh builds it
 * and compares what one and two replicas learn. */
#define DT_NO_COMM
#define DT_NO_VULKAN
#define main data_parallel
#include "examples/data_parallel.c"
#undef main

#include <stdlib.h>
#include <string.h>

static int failed;

static void check(bool right, const char *what) {
    if (!right)
        fprintf(stderr, "wrong: %s\n", what);
    failed += !right;
}

static void refused(dt_result result, dt_comm *comm, const char *what) {
    check(result == DT_ERROR_UNSUPPORTED && strstr(dt_comm_error(comm), "DT_NO_COMM"), what);
    check(comm && dt_comm_barrier(comm) == DT_ERROR_INVALID, what);
    dt_comm_destroy(comm);
}

static void one_rank(void) {
    dt_comm *comm;
    float x[3] = {1, 2, 3}, y[3] = {0};
    check(dt_comm_create(NULL, &comm) == DT_OK, "a comm of one rank");
    check(dt_comm_size(comm) == 1, "its size");
    check(dt_comm_all_reduce(comm, x, y, 3, DT_F32, DT_COMM_SUM) == DT_OK && y[2] == 3, "a sum");
    check(dt_comm_barrier(comm) == DT_OK, "a barrier");
    check(dt_comm_set_leaves(comm, 0, 4, 4, NULL, NULL) == DT_OK, "leaves");
    dt_comm_destroy(comm);
}

static void many_ranks(void) {
    dt_comm *comm, *comms[2];
    dt_comm_desc desc = {.world_size = 2, .rendezvous = "tcp://127.0.0.1:4711"};
    dt_result result = dt_comm_create(&desc, &comm);
    refused(result, comm, "two processes");
    result = dt_comm_create(&(dt_comm_desc){.transport = DT_COMM_MPI}, &comm);
    refused(result, comm, "MPI");
    result = dt_comm_create_threads(NULL, 2, comms);
    check(!comms[1], "the second of two threads");
    refused(result, comms[0], "two threads");
    comms[1] = comms[0];
    result = dt_comm_create_threads(NULL, 4711, comms);
    check(comms[1], "a wrong size says nothing of the room behind the first");
    refused(result, comms[0], "4711 threads");
}

static void launched(const char *name) {
    dt_comm *comm;
    setenv(name, "4", 1);
    dt_comm_desc desc = dt_comm_desc_from_env();
    check(strstr(desc.error, name) && strstr(desc.error, " is 4"), name);
    check(dt_comm_create(&desc, &comm) == DT_ERROR_INVALID, name);
    dt_comm_destroy(comm);
    unsetenv(name);
}

int main(int argc, char **argv) {
    one_rank();
    many_ranks();
    launched("WORLD_SIZE");
    launched("PET_NNODES");
    return failed ? 1 : data_parallel(argc, argv);
}
