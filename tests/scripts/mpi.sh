#!/bin/sh
# The MPI transport under mpirun: tests/comm/mpi_ranks.c on 1 to 4 ranks, one scenario a run, and
# training jobs (mpi_train.c). Names that contain one of the arguments are run, or all. The last line
# is three numbers: passed, failed, skipped. MPICC and MPIRUN choose another MPI library.
set -u
cd "$(dirname "$0")/../.."
work=build/mpi
mkdir -p $work
filters=$*
mpicc=${MPICC:-mpicc} mpirun=${MPIRUN:-mpirun}

. tests/scripts/wanted.sh

# Open MPI refuses root, and more ranks than cores, unless it is asked; MPICH knows neither word.
flags=
if "$mpirun" --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE'; then
    flags='--allow-run-as-root --oversubscribe'
fi

build() {
    for tool in "$mpicc" "$mpirun"; do
        lacks="there is no $tool"
        command -v "$tool" >/dev/null 2>&1 || return 1
    done
    lacks="$mpicc finds no mpi.h"
    echo '#include <mpi.h>' | "$mpicc" -x c -E - >/dev/null 2>&1 || return 1
    # shellcheck disable=SC2086 # words are meant
    "$mpicc" ${CFLAGS:--O1} -g -Wall -Wextra -Ibuild/include -I. -Itests tests/comm/mpi_ranks.c \
        -o $work/ranks -lm -ldl -lpthread >$work/build.log 2>&1
    built=$?
    # Clang, where it is, compiles the whole library in seconds when it does not optimise.
    if command -v clang >/dev/null 2>&1; then export OMPI_CC=clang MPICH_CC=clang; fi
    "$mpicc" -O0 -g -w -Ibuild/include -I. -Itests tests/comm/mpi_train.c -o $work/train -lm -ldl -lpthread \
        >>$work/build.log 2>&1 || built=1
}

# run NAME RANKS [PROGRAM]: RANKS ranks run the scenario; in those that end the group, each has to
# report that it came to its end. mpirun's own status is then that of a job without MPI_Finalize.
run() {
    test=mpi_$1_$2
    wanted "$test" || return 0
    if [ $mpi = ask ]; then
        mpi=yes
        build || mpi=no
    fi
    if [ $mpi = no ]; then
        skipped=$((skipped + 1))
        echo "skipped $test: $lacks"
        return 0
    fi
    log=$work/$test.log status=0
    if [ $built -ne 0 ]; then
        cp $work/build.log "$log"
        status=1
    else
        # shellcheck disable=SC2086
        timeout -k 5 180 "$mpirun" $flags -n "$2" "$work/${3:-ranks}" "$1" >"$log" 2>&1 || status=$?
        case $1 in
        works | given | owned) ;;
        killed) # MPI ends all others itself, and says for what
            if [ $status -ne 124 ] && grep -qi 'signal:* 9' "$log"; then status=0; else status=1; fi
            ;;
        *)
            status=1
            if [ "$(grep -c '^rank [0-9]* ended$' "$log")" -eq "$2" ]; then status=0; fi
            ;;
        esac
    fi
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $test: exit status $status ($log)"
        head -n 4 "$log"
    fi
}

mpi=ask built=1
for ranks in 1 2 3 4; do run works $ranks; done
for scenario in cancels op_times_out leaves_early leaves_pending truncates given owned; do
    run $scenario 3
done
run cancels 2
run truncates 2
for ranks in 2 3; do
    for scenario in trains replicas gives_up killed; do run $scenario $ranks train; done
done
echo "$passed $failed $skipped"
