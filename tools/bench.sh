# ./build.sh bench [what]     GEMM against OpenBLAS, training steps against PyTorch, Vulkan devices;
#                             what: gemm, steps, create, frame, vulkan; --json FILE writes the results too
# ./build.sh bench lossy      all-reduce over a long line that loses packets (root, Linux)
# ./build.sh bench comm       all-reduce beside gloo, Open MPI, plain sockets; --quick, --netns
# ./build.sh bench local      loss by wall time over a slow link: synchronous, and rounds of local steps (root, Linux)
# ./build.sh bench served     the same with one slow rank, and parameter servers beside both (root, Linux); --svg FILE
# ./build.sh bench parallel   two replicas beside PyTorch DDP; overlap with --net; --quick
# ./build.sh bench data [N]   a network on one core: arrays, a folder of PNG files, augmentation; N rounds
# ./build.sh bench pipeline   a model in two stages on two ranks beside one process
# ./build.sh bench models     models split across two ranks, in all ways, beside PyTorch's
# ./build.sh bench pair OLD   two builds in turn: the ratio of their speeds with its interval
#
# ./build.sh bench WHAT --help has the options of one.

main() {
    if [ "${1:-}" = data ]; then needs_data compiler python; else needs compiler python; fi
    header
    fresh_flags
    case ${1:-} in
    comm | lossy | local | served | parallel | pipeline | data | models | pair)
        what=bench_$1
        shift
        $what "$@" # which ends in an exec
        ;;
    esac
    compile build/dtbench tools/bench/dtbench.c
    exec python3 tools/bench/bench.py "$@"
}

more_help() { python3 tools/bench/bench.py --help; }

# The peers are whatever is there: without Open MPI's compiler its columns stay empty.
bench_comm() {
    compile build/dtrun tools/dtrun.c
    LIBS="$LIBS $secure_libs"
    # shellcheck disable=SC2086 # nothing, or one word
    compile build/dtbench_comm tools/bench/dtbench_comm.c $secure
    if have mpicc && ! newer build/mpi_allreduce tools/bench/mpi_allreduce.c; then
        mpicc -O2 tools/bench/mpi_allreduce.c -o build/mpi_allreduce || say 'mpicc failed: no Open MPI'
    fi
    exec python3 tools/bench/bench_comm.py "$@"
}

bench_lossy() {
    compile build/dtrun tools/dtrun.c
    compile build/dtbench_comm tools/bench/dtbench_comm.c
    compile build/dtlossy tools/bench/dtlossy.c
    exec python3 tools/bench/bench_lossy.py "$@"
}

bench_local() {
    compile build/dtrun tools/dtrun.c
    compile build/dtlocal tools/bench/dtlocal.c
    exec python3 tools/bench/bench_local.py "$@"
}

bench_pipeline() {
    compile build/dtrun tools/dtrun.c
    compile build/dtbench_models tools/bench/dtbench_models.c
    exec python3 tools/bench/bench_pipeline.py "$@"
}

bench_models() {
    compile build/dtbench_models tools/bench/dtbench_models.c
    exec python3 tools/bench/bench_models.py "$@"
}

bench_pair() {
    compile build/dtbench tools/bench/dtbench.c
    compile build/dtbench_parallel tools/bench/dtbench_parallel.c
    compile build/dtbench_models tools/bench/dtbench_models.c
    exec python3 tools/bench/bench_pair.py "$@"
}

# Files of the test set: the number that an epoch of a few seconds has.
bench_data() {
    LIBS="$LIBS $reader_libs"
    # shellcheck disable=SC2086 # words are meant
    compile build/dtbench_data tools/bench/dtbench_data.c $readers
    images=build/data/t10k-images-idx3-ubyte labels=build/data/t10k-labels-idx1-ubyte
    if [ ! -e build/data/pictures/ready ]; then
        rm -rf build/data/pictures
        python3 tools/bench/pictures_from_idx $images $labels build/data/pictures
        touch build/data/pictures/ready
    fi
    exec build/dtbench_data $images $labels build/data/pictures "$@"
}

bench_served() {
    compile build/dtrun tools/dtrun.c
    compile build/dtlocal tools/bench/dtlocal.c
    exec python3 tools/bench/bench_served.py "$@"
}

bench_parallel() {
    compile build/dtrun tools/dtrun.c
    compile build/dtbench_parallel tools/bench/dtbench_parallel.c
    exec python3 tools/bench/bench_parallel.py "$@"
}
