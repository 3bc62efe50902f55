#!/bin/sh
# Tests that bindings can be made from api.json: tests/scripts/bindings.py makes some for Python, at run time,
# and trains with them. build.sh calls it; names that contain one of the arguments are run, or all. The
# last line is three numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
work=build/bindings
mkdir -p $work
filters=$*

. tests/scripts/wanted.sh

shared_library() {
    if [ $work/libdtrain.so -nt $header ]; then return 0; fi
    "$quickest" -O0 -w -shared -fPIC -DDT_NO_VULKAN -DDT_IMPLEMENTATION -x c $header \
        -o $work/libdtrain.so -lm -ldl -lpthread >$work/build.log 2>&1
}

for test in bindings_have_the_layout_of_the_compiler bindings_learn_xor \
    bindings_train_epochs_by_a_description bindings_get_the_text_of_an_error; do
    wanted $test || continue
    if ! command -v python3 >/dev/null 2>&1; then
        skipped=$((skipped + 1))
        echo "skipped $test: there is no python3"
    elif shared_library && python3 tests/scripts/bindings.py $test $work "$quickest" >$work/$test.log 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $test"
        tail -n 8 $work/build.log $work/$test.log 2>/dev/null
    fi
done
echo "$passed $failed $skipped"
