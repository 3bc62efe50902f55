#!/bin/sh
# Tests of the same bits by any compiler and flags, in hostile applications (hostile_host.c), on ARM
# and without SIMD. Also of drivers for other GPUs. `./build.sh test all` calls it; names that
# contain one of the arguments are run, or all. The last line is three numbers: passed, failed,
# skipped.
set -u
cd "$(dirname "$0")/../.."
work=build/machines
mkdir -p $work
filters=$*
golden=tests/golden/hostile_host.hash

. tests/scripts/wanted.sh

newer_tests() { newer "$1" $header && [ -z "$(find tests -name '*.[ch]' -newer "$1")" ]; }

# ---- the hostile host: the same hash whatever the compiler, the flags and the surroundings

# All of the implementation is in it, and these warnings are ./build.sh check's. Warnings of a level
# of optimisation are seen here, where it is compiled in any case. GCC takes 11 s for the one left
# out, which Clang has.
warnings='-Wall -Wextra -pedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
    -Werror -Wno-misleading-indentation'

# host_build COMPILER NAME FLAGS...: leaves its output in NAME.log
host_build() {
    compiler=$1 name=$2
    shift 2
    newer "$work/$name" tests/scripts/hostile_host.c && return 0
    rm -f "$work/$name"
    # shellcheck disable=SC2086 # words are meant
    "$compiler" "$@" $warnings -Ibuild/include -I. tests/scripts/hostile_host.c -o "$work/$name" -lm -ldl -lpthread \
        >"$work/$name.log" 2>&1
}

# host_run TEST PROGRAM WORDS...: compares the last word of the output with the golden hash.
host_run() {
    test=$1 program=$2
    shift 2
    wanted "$test" || return 0
    compiler=${program%%_*}
    command -v "$compiler" >/dev/null 2>&1 || { skip "$test" "there is no $compiler"; return 0; }
    [ -x "$work/$program" ] || { fail "$test" "does not build" "$work/$program.log"; return 0; }
    "$work/$program" "$@" >"$work/$test.out" 2>"$work/$test.log"
    code=$?
    hash=$(sed 's/.* //' "$work/$test.out")
    if [ $code -eq 2 ]; then
        skip "$test" "there is no locale de_DE.UTF-8"
    elif [ $code -ne 0 ]; then
        fail "$test" "exit status $code" "$work/$test.log"
    elif grep -q 'portable' "$work/$test.out"; then
        skip "$test" "the recorded hash is of CPUs with FMA"
    elif [ "$hash" != "$(cat $golden)" ]; then
        fail "$test" "hash $hash, recorded is $(cat $golden)"
    else
        pass
    fi
}

# What is fast takes longest to compile: of one compiler, which dtrain.h's checksum draws. A caller
# that names tests has both. The long form has -O2 too, as build.sh compiles the seven files below.
builds='gcc_O0 clang_O0 gcc_fast clang_fast'
if [ -n "${DTRAIN_TEST_LONG-}" ]; then
    builds="$builds gcc_O2 clang_O2"
elif [ -z "$filters" ]; then
    case $(cksum <$header) in
    *[02468]' '*) builds='gcc_O0 clang_O0 gcc_fast' ;;
    *) builds='gcc_O0 clang_O0 clang_fast' ;;
    esac
fi

# host_run_all NAME PROGRAM: in all surroundings.
host_run_all() {
    host_run "$1_the_recorded_bits" "$2"
    host_run "$1_them_with_flush_to_zero" "$2" ftz
    host_run "$1_them_with_a_decimal_comma" "$2" comma
    host_run "$1_them_on_a_stack_of_64_KiB" "$2" stack
    host_run "$1_them_with_2_threads" "$2" threads 2
    host_run "$1_them_with_all_of_it" "$2" ftz stack threads 2
}

host_tests() {
    for build in $builds; do host_run_all "${build}_gives" "$build"; done
}

# A comma locale where the system can make one: it stays in build/.
make_locale() {
    if locale -a 2>/dev/null | grep -qi '^de_DE.utf-\{0,1\}8$'; then return 0; fi
    command -v localedef >/dev/null 2>&1 || return 0
    mkdir -p $work/locale
    [ -e $work/locale/de_DE.UTF-8/LC_NUMERIC ] ||
        localedef -i de_DE -f UTF-8 $work/locale/de_DE.UTF-8 >/dev/null 2>&1 || true
    if [ -e $work/locale/de_DE.UTF-8/LC_NUMERIC ]; then
        LOCPATH=$PWD/$work/locale
        export LOCPATH
    fi
}

host_builds() { # COMPILER
    command -v "$1" >/dev/null 2>&1 || { rm -f $work/"$1"_*; return 0; }
    for build in $builds; do
        wants_host "${build}_gives" || continue
        case $build in
        "$1_fast") host_build "$1" "$build" -O3 -ffast-math -march=native ;;
        "$1"_*) host_build "$1" "$build" "-${build#*_}" ;;
        esac
    done
}

# The model of collectives against closed formulas and against itself.
model_test() {
    test=model_of_collectives_agrees_with_closed_formulas
    wanted $test || return 0
    if build/dtmodel --check >$work/$test.log 2>&1; then
        pass
    else
        fail $test "its exit status says a figure is off" $work/$test.log
    fi
}

# ---- the implementation as build.sh compiles it for the examples: in seven files

# parts_link PROGRAM PART...: the hostile host, which then has only declarations, with these parts.
parts_link() {
    program=$work/$1 objects=
    shift
    for part in "$@"; do objects="$objects build/dtrain_$part.o"; done
    # shellcheck disable=SC2086 # words are meant
    ${CC:-cc} ${CFLAGS:--O2} -DDTI_IMPLEMENTED -Ibuild/include -I. tests/scripts/hostile_host.c $objects -o "$program" \
        -lm -ldl -lpthread ${reader_libs-} >"$program.log" 2>&1
}

# parts_miss TEST SYMBOL PART...: these do not link, and the linker names the symbol.
parts_miss() {
    symbol=$2 name=$1
    shift 2
    if parts_link cc_less "$@"; then
        fail "$name" "it links, and $symbol is missing"
    elif ! grep -q "$symbol" $work/cc_less.log; then
        fail "$name" "the linker does not name $symbol" $work/cc_less.log
    else
        return 0
    fi
    return 1
}

# without_parts TEST: each part left out in turn.
without_parts() {
    for left_out in $parts; do
        # shellcheck disable=SC2046 # words are meant
        parts_miss "$1" "dti_missing_DT_IMPLEMENTATION_$left_out" \
            $(echo "$parts" | sed "s/$left_out//") || return 0
    done
    pass
}

# other_options TEST: one part that is compiled with another option; GRAPH defines what others need.
other_options() {
    option=DT_NO_AVX512 name=$1
    for part in DATA GRAPH; do
        "$quickest" -O0 -w "-D$option" "-DDT_IMPLEMENTATION_$part" -x c -c $header \
            -o "build/dtrain_other_$part.o" >$work/cc_other.log 2>&1 ||
            { fail "$name" "does not compile" $work/cc_other.log; return 0; }
    done
    # shellcheck disable=SC2046 # words are meant
    parts_miss "$name" dti_parts_differ_in_${option}_on other_DATA $(echo "$parts" | sed s/DATA//) &&
        parts_miss "$name" dti_parts_differ_in_${option}_off other_GRAPH \
            $(echo "$parts" | sed s/GRAPH//) && pass
}

parts='GRAPH BACKEND DATA TRAIN KERNELS SIMD COMM'

parts_tests() {
    if wants_host seven_files_give; then
        rm -f $work/cc_parts
        # shellcheck disable=SC2086 # words are meant
        parts_link cc_parts $parts
        make_locale
        host_run_all seven_files_give cc_parts
    fi
    test=without_one_of_the_seven_files_the_linker_names_it
    if wanted $test; then without_parts $test; fi
    test=parts_with_different_options_do_not_link
    if wanted $test; then other_options $test; fi
}

# amd_test TEST FAMILY: Mesa's AMD driver compiles every kernel, for hardware that is not there.
amd_test() {
    wanted "$1" || return 0
    icd=/usr/share/vulkan/icd.d/radeon_icd.x86_64.json
    [ -e $icd ] || { skip "$1" "there is no RADV driver ($icd)"; return 0; }
    [ -x build/dtest ] || { skip "$1" "there is no build/dtest"; return 0; }
    if VK_ICD_FILENAMES=$icd RADV_FORCE_FAMILY=$2 build/dtest every_kernel_compiles \
        >"$work/$1.log" 2>&1 && grep -q '^1 passed' "$work/$1.log"; then
        pass
    else
        fail "$1" "a kernel does not compile" "$work/$1.log"
    fi
}

# ---- AArch64: cross-compiled, under an emulator. The recorded bits are those of x86.

arm_gcc=aarch64-linux-gnu-gcc
arm_root=/usr/aarch64-linux-gnu

# The implementation is compiled once, with the tests; the host, which then has only declarations,
# is linked with it. So is a harness that is not the program's main.
arm_build() {
    newer_tests "$work/arm_host" && return 0
    rm -f "$work/arm_host" "$work/arm_dtest"
    set -- $arm_gcc -Wall -Wextra -Wno-misleading-indentation -Ibuild/include -I. -Itests -DDT_NO_VULKAN
    "$@" -Werror -O1 -c tests/main.c -o $work/arm_main.o >$work/arm_dtest.log 2>&1 || return 0
    "$@" -O1 tests/harness.c $work/arm_main.o -o $work/arm_dtest -lm -lpthread >$work/arm_dtest.log 2>&1
    "$@" -O1 -Dmain=harness_main -c tests/harness.c -o $work/arm_harness.o >$work/arm_host.log 2>&1
    "$@" -O2 -DDTI_IMPLEMENTED tests/scripts/hostile_host.c $work/arm_main.o $work/arm_harness.o \
        -o $work/arm_host -lm -lpthread >$work/arm_host.log 2>&1
}

# arm_test TEST PROGRAM ARGUMENTS...: what it prints stays in TEST.out; says whether it ran well.
arm_test() {
    test=$1 program=$2
    shift 2
    [ -x "$work/$program" ] || { fail "$test" "does not build" "$work/$program.log"; return 1; }
    qemu-aarch64 -L $arm_root "$work/$program" "$@" >"$work/$test.out" 2>&1 && return 0
    fail "$test" "exit status $?" "$work/$test.out"
    return 1
}

arm_hash_test() { # TEST WORDS...
    wanted "$1" || return 0
    test=$1
    shift
    arm_test "$test" arm_host "$@" || return 0
    hash=$(sed 's/.* //' "$work/$test.out")
    if [ "$hash" = "$(cat $golden)" ]; then pass; else
        fail "$test" "hash $hash, recorded is $(cat $golden)"
    fi
}

arm_kernel_test() {
    wanted arm_kernels_pass_their_tests || return 0
    arm_test arm_kernels_pass_their_tests arm_dtest gemm vector_functions adamw softmax dropout \
        every_case_uses && pass
}

arm_tests() {
    for test in arm_gives_the_recorded_bits arm_gives_them_with_2_threads \
        arm_kernels_pass_their_tests; do
        wanted $test || continue
        lacks=
        for tool in $arm_gcc qemu-aarch64; do
            command -v $tool >/dev/null 2>&1 || lacks=$tool
        done
        if [ -n "$lacks" ]; then
            skip $test "there is no $lacks"
            continue
        fi
        arm=wanted
    done
    [ "${arm-}" = wanted ] || return 0
    arm_build
    arm_hash_test arm_gives_the_recorded_bits
    arm_hash_test arm_gives_them_with_2_threads threads 2
    arm_kernel_test
}

# ---- The code of a CPU without SIMD or FMA: only the portable class, whose FMA is two roundings.

no_simd_test() {
    wanted a_build_without_simd_computes_every_op_within_its_bound || return 0
    test=a_build_without_simd_computes_every_op_within_its_bound
    if ! newer_tests "$work/no_simd"; then
        rm -f "$work/no_simd"
        "$quickest" -O0 -DDTI_NO_SIMD -DDT_NO_VULKAN -Ibuild/include -I. -Itests tests/main.c \
            tests/harness.c -o "$work/no_simd" -lm -ldl -lpthread >"$work/no_simd.log" 2>&1
    fi
    [ -x "$work/no_simd" ] || { fail $test "does not build" "$work/no_simd.log"; return 0; }
    if "$work/no_simd" the_cpu_computes functions_are vector_functions gemm_is \
        >"$work/no_simd.out" 2>&1; then pass; else
        fail $test "exit status $?" "$work/no_simd.out"
    fi
}

# wants_host NAME: whether host_run_all has something to do.
wants_host() {
    for ending in the_recorded_bits them_with_flush_to_zero them_with_a_decimal_comma \
        them_on_a_stack_of_64_KiB them_with_2_threads them_with_all_of_it; do
        if wanted "$1_$ending"; then return 0; fi
    done
    return 1
}

wants_hosts=no
for build in $builds; do
    if wants_host "${build}_gives"; then wants_hosts=yes; fi
done
if [ $wants_hosts = yes ]; then
    host_builds gcc &
    host_builds clang &
    wait
    make_locale
    host_tests
fi
arm_tests
no_simd_test
parts_tests
model_test
amd_test kernels_compile_for_amd_rdna2 NAVI21
amd_test kernels_compile_for_amd_rdna3 GFX1100
echo "$passed $failed $skipped"
