#!/bin/sh
# Tests of training by whole programs: the examples with several devices and under launchers, against
# one process. build.sh calls it; names that contain one of the arguments are run, or all. The last
# line is three numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/.."
work=build/test_train
mkdir -p $work
passed=0 failed=0 skipped=0
filters=$*

. tests/wanted.sh

# state NAME WORDS...: runs a program; the hash that it prints last is left in $work/NAME.
state() {
    name=$1
    shift
    timeout 120 "$@" >$work/$name.out 2>$work/$name.err
    sed -n 's/^.*state //p' $work/$name.out >$work/$name
    [ -s $work/$name ]
}

one_and_eight_replicas_print_one_hash() {
    state one build/data_parallel cpu || return 1
    state threads build/data_parallel cpu:3 && cmp -s $work/one $work/threads || return 1
    state processes build/dtrun -n 4 build/data_parallel cpu &&
        cmp -s $work/one $work/processes || return 1
    state both build/dtrun -n 4 build/data_parallel cpu:2 && cmp -s $work/one $work/both
}

mpirun_trains_the_same_job() {
    state one build/data_parallel cpu || return 1
    state mpirun mpirun --allow-run-as-root --oversubscribe -n 4 build/data_parallel cpu &&
        cmp -s $work/one $work/mpirun
}

# curve NAME WORDS...: trains on Fashion-MNIST; what does not depend on the clock is left in NAME.
curve() {
    name=$1
    shift
    timeout 200 "$@" --data build/data --shards 4 --threads 1 --epochs 2 --limit 12010 \
        --json $work/$name.json --save $work/$name.safetensors >$work/$name.out \
        2>$work/$name.err || return 1
    sed 's/"samples_per_second.*//' $work/$name.json >$work/$name.curve
}

the_loss_curve_of_4_ranks_is_that_of_one_on_fashion_mnist() {
    curve alone build/fashion_mnist --devices cpu || return 1
    curve ranks build/dtrun -n 4 build/fashion_mnist --devices cpu || return 1
    curve mixed build/dtrun -n 2 build/fashion_mnist --devices cpu:2 || return 1
    cmp -s $work/alone.safetensors $work/ranks.safetensors &&
        cmp -s $work/alone.safetensors $work/mixed.safetensors &&
        cmp -s $work/alone.curve $work/ranks.curve
}

for test in one_and_eight_replicas_print_one_hash mpirun_trains_the_same_job \
    the_loss_curve_of_4_ranks_is_that_of_one_on_fashion_mnist; do
    wanted "train_$test" || continue
    if [ $test = mpirun_trains_the_same_job ] && ! command -v mpirun >/dev/null 2>&1; then
        skipped=$((skipped + 1))
        echo "skipped train_$test: there is no mpirun"
    elif [ "${test#*fashion}" != "$test" ] && [ ! -e build/data/train-images-idx3-ubyte ]; then
        skipped=$((skipped + 1))
        echo "skipped train_$test: no build/data; ./build.sh train gets it"
    elif $test; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  train_$test"
        for file in $work/*.err; do tail -n 3 "$file"; done
    fi
done
echo "$passed $failed $skipped"
