/* MPI's side of ./build.sh bench comm: MPI_Allreduce, float sum, timed as in
 * tools/bench/dtbench_comm.c. It is warmed up, then repeated for about MS milliseconds, from one
 * buffer into another.
 *
 *     mpicc -O2 tools/bench/mpi_allreduce.c -o build/mpi_allreduce
 *     mpirun --mca btl tcp,self -n 2 build/mpi_allreduce MS BYTES...
 *
 * Every result is one JSON object a line, from rank 0: microseconds of the slowest rank, the
 * wall's and processors'. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define REPEATS_LEAST 2
#define REPEATS_MOST 20000
#define WARM_TRIES 3
#define SLOW_SECONDS 0.5

static double processor_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* For all `repeats` together, of the slowest rank; *processor: the most that a rank works. */
static double seconds_of(const float *in, float *out, int count, int repeats, double *processor) {
    MPI_Barrier(MPI_COMM_WORLD);
    *processor = processor_s();
    double begin = MPI_Wtime();
    for (int i = 0; i < repeats; i++)
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - begin;
    *processor = processor_s() - *processor;
    MPI_Allreduce(MPI_IN_PLACE, processor, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

static void measure(long bytes, double budget_s) {
    int rank, count = (int)(bytes / 4);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *in = malloc((size_t)bytes), *out = malloc((size_t)bytes);
    if (!in || !out)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < count; i++)
        in[i] = (float)(i % 1000 + rank);
    double once = 0, least = 1e9, processor;
    for (int i = 0; i < WARM_TRIES && once < SLOW_SECONDS; i++) {
        once = seconds_of(in, out, count, 1, &processor);
        least = once < least ? once : least;
    }
    double wanted = budget_s / (least > 0 ? least : 1e-9);
    int repeats = wanted > REPEATS_MOST ? REPEATS_MOST : (int)wanted;
    repeats = repeats < REPEATS_LEAST ? REPEATS_LEAST : repeats;
    double seconds = seconds_of(in, out, count, repeats, &processor);
    if (rank == 0)
        printf("{\"bytes\": %ld, \"us\": %.3f, \"cpu_us\": %.3f, \"repeats\": %d}\n", bytes,
               seconds / repeats * 1e6, processor / repeats * 1e6, repeats);
    free(in);
    free(out);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    for (int i = 2; i < argc; i++)
        measure(atol(argv[i]), atof(argv[1]) * 1e-3);
    MPI_Finalize();
    return 0;
}
