/* Teaches a collective: an array is summed over all processes of a job, which join a group, do one
 * all-reduce and leave. Nothing here knows hosts, ports or keys, for the launcher sets them:
 *
 *     build/dtrun -n 4 build/allreduce        mpirun -n 4 build/allreduce
 *     srun -n 4 build/allreduce               torchrun --no-python ... build/allreduce
 *
 * docs/distributed/jobs.md has more of them, and what to do on several hosts. */
#define DT_COMM_ONLY
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <stdio.h>
#include <stdlib.h>

static void say(void *user, dt_log_level level, const char *message) {
    (void)user;
    if (level != DT_LOG_ERROR) /* that is dt_comm_error() too, which main prints */
        fprintf(stderr, "dtrain: %s\n", message);
}

/* Small integers: the sum is exact, whatever the number of ranks. */
static int check(const float *sum, long count, int size) {
    for (long i = 0; i < count; i++)
        if (sum[i] != (float)(size * (i % 1000) + size * (size - 1) / 2))
            return 0;
    return 1;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 100000;
    float *x = calloc(count > 0 ? (size_t)count : 1, sizeof *x);
    if (!x || count < 1) {
        fprintf(stderr, "usage: allreduce [COUNT]\n");
        return 2;
    }
    dt_comm *comm;
    dt_comm_desc desc = dt_comm_desc_from_env();
    desc.logger.log = say;
    dt_result result = dt_comm_create(&desc, &comm);
    for (long i = 0; i < count; i++)
        x[i] = (float)(i % 1000 + dt_comm_rank(comm));
    if (!result) /* in place: out may be in */
        result = dt_comm_all_reduce(comm, x, x, (uint64_t)count, DT_F32, DT_COMM_SUM);
    if (result) {
        fprintf(stderr, "%s: %s\n", dt_result_text(result), dt_comm_error(comm));
    } else {
        int right = check(x, count, dt_comm_size(comm));
        printf("rank %d of %d (launcher: %s): the sum of %ld floats is %s\n", dt_comm_rank(comm),
               dt_comm_size(comm), desc.launcher[0] ? desc.launcher : "none", count,
               right ? "right" : "WRONG");
        result = right ? DT_OK : DT_ERROR_NUMERIC;
    }
    dt_comm_destroy(comm);
    free(x);
    return result ? 1 : 0;
}
