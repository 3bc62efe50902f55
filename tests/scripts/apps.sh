#!/bin/sh
# Tests of dtrain.h in an application. It is in an empty folder, included by two files, in other
# languages, or without parts of it. build.sh calls it; names that contain one of the arguments are
# run, or all. The last line is three numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
work=build/apps
mkdir -p $work
filters=$*

. tests/scripts/wanted.sh

# ---- the application in an empty folder

write_app() {
    awk '/^```c$/ { inside = 1; next } inside && /^```$/ { exit } inside' README.md # the first one
}

# app_test TEST COMPILER FLAGS...: compiles app.c beside dtrain.h, nothing else, and runs it. What
# optimising says is ./build.sh check's.
app_test() {
    test=$1
    shift
    wanted "$test" || return 0
    folder=$work/$test
    if ! newer "$folder/a.out" README.md; then
        rm -rf "$folder"
        mkdir -p "$folder"
        cp $header "$folder"
        write_app >"$folder/app.c"
        if ! (cd "$folder" && "$@") >"$folder.log" 2>&1; then
            fail "$test" "does not build" "$folder.log"
            return 0
        fi
        if [ -s "$folder.log" ]; then fail "$test" "compiler messages" "$folder.log"; return 0; fi
    fi
    if "$folder/a.out" >"$folder.log" 2>&1; then pass; else fail "$test" "fails" "$folder.log"; fi
}

# Two C files, both with the declarations twice; the second has the implementation.
link_test() {
    test=header_included_twice_and_from_two_files_links
    wanted $test || return 0
    cat >$work/one.c <<'C'
#include "dtrain.h"
#include "dtrain.h"
int devices(void);
int devices(void) {
    dt_ctx *ctx;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx)) return -1;
    int count = dt_ctx_device_count(ctx);
    dt_ctx_destroy(ctx);
    return count;
}
C
    cat >$work/two.c <<'C'
#include "dtrain.h"
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include "dtrain.h"
int devices(void);
int main(void) { return devices() != 1; }
C
    if ! newer $work/two tests/scripts/apps.sh; then
        "$quickest" -O0 -DDT_NO_VULKAN -DDT_NO_COMM -Ibuild/include -I. $work/one.c $work/two.c \
            -o $work/two -lm -lpthread >$work/two.log 2>&1 ||
            { fail $test "does not build" $work/two.log; return 0; }
    fi
    if $work/two; then pass; else fail $test "fails"; fi
}

# language_test TEST COMPILER SUFFIX STANDARD: only the declarations, without a warning.
language_test() {
    wanted "$1" || return 0
    command -v "$2" >/dev/null 2>&1 || { skip "$1" "there is no $2"; return 0; }
    printf '#include "dtrain.h"\n#include "dtrain.h"\nint main(void) { return DT_OK; }\n' \
        >"$work/declare.$3"
    if "$2" "-std=$4" -Wall -Wextra -pedantic -Werror -fsyntax-only -Ibuild/include -I. "$work/declare.$3" \
        >"$work/$1.log" 2>&1; then pass; else fail "$1" "does not compile" "$work/$1.log"; fi
}

# Without dt_comm's connections: what is left of it, and replicas of one process.
no_comm_test() {
    test=one_process_without_dt_comm_trains_and_refuses_others
    wanted "$test" || return 0
    if ! newer $work/no_comm tests/scripts/no_comm.c; then
        rm -f $work/no_comm
        "$quickest" -O0 -Ibuild/include -I. tests/scripts/no_comm.c -o $work/no_comm -lm -lpthread >$work/no_comm.log 2>&1
    fi
    [ -x $work/no_comm ] || { fail $test "does not build" $work/no_comm.log; return 0; }
    for devices in cpu cpu:2; do
        $work/no_comm $devices >$work/no_comm.out 2>$work/no_comm.log ||
            { fail $test "$devices: exit status $?" $work/no_comm.log; return 0; }
        tail -n 1 $work/no_comm.out >$work/no_comm.$devices
    done
    if cmp -s $work/no_comm.cpu $work/no_comm.cpu:2; then pass; else
        fail $test "two replicas learn something else" $work/no_comm.cpu:2
    fi
}

# Without features (base/optional.h): all of them, or a set of the day, which a failure names.
# DTRAIN_DRAW=N: that of day N.
day=${DTRAIN_DRAW:-$(($(date +%s) / 86400))}
features_of_the_day() {
    sed -n 's/^#ifdef \(DT_NO_.*\)/-D\1/p' src/base/features.h |
        awk -v seed="$day" 'BEGIN { srand(seed) } rand() < 0.5'
}

# The parts that light.c does not compile when it is one of seven: left in light_parts.
light_in_parts() {
    wanted "$1" || return 0
    for part in BACKEND DATA TRAIN KERNELS SIMD COMM; do
        "$quickest" -O0 -w -DDT_LIGHT "-DDT_IMPLEMENTATION_$part" -x c -c $header \
            -o "$work/light_$part.o" 2>/dev/null
        light_parts="$light_parts $work/light_$part.o"
    done
    light_test "$1" -DDT_LIGHT -DLIGHT_PARTS
    light_parts=
}

# light_test NAME FLAGS...: what remains trains, to the weights of the test before it.
light_test() {
    test=$1
    shift
    wanted "$test" || return 0
    # shellcheck disable=SC2086 # words are meant
    "$quickest" -O0 -Ibuild/include -I. "$@" tests/scripts/light.c $light_parts -o $work/light \
        -lm -ldl -lpthread >$work/light.log 2>&1 ||
        { fail "$test" "does not build: $*" $work/light.log; return 0; }
    $work/light $work/light.safetensors >$work/light.out 2>$work/light.log ||
        { fail "$test" "exit status $?: DTRAIN_DRAW=$day, $*" $work/light.log; return 0; }
    [ -e $work/light.first ] || cp $work/light.safetensors $work/light.first
    if cmp -s $work/light.safetensors $work/light.first; then pass; else
        fail "$test" "learns something else: $*" $work/light.out
    fi
}

no_comm_test
light_parts=
rm -f $work/light.first
light_test with_all_features_dtrain_trains
light_test without_its_features_dtrain_trains_and_refuses_them -DDT_LIGHT
light_in_parts without_its_features_in_seven_files_dtrain_trains
# shellcheck disable=SC2046 # words are meant
light_test without_some_features_dtrain_trains_and_refuses_them $(features_of_the_day)
app_test app_in_an_empty_folder_builds_and_learns "${CC:-cc}" app.c -lm -ldl -lpthread
app_test app_without_vulkan_builds_and_learns "$quickest" -DDT_NO_VULKAN app.c -lm -lpthread
link_test
language_test declarations_are_c99 gcc c c99
language_test declarations_are_c11 gcc c c11
language_test declarations_are_cpp11 g++ cpp c++11
language_test declarations_are_cpp20 g++ cpp c++20
language_test declarations_are_c99_in_clang clang c c99
language_test declarations_are_cpp20_in_clang clang++ cpp c++20
echo "$passed $failed $skipped"
