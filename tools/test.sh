# ./build.sh test            build, run the tests: of all that the library does, and of its examples
#                            and pages; a test that needs a missing package skips, and names it;
#                            test all: as the CI, also other compilers, CPUs and drivers, MPI, and
#                            the scripts of this repository;
#                            test FILTER: of all tests those whose names contain the filter; none is an error;
#                            test long: all tests, in their long form where they have one (some hours);
#                            test random N: N random models on the CPU, N / 5 in mixed precision, and
#                            N / 50 on each Vulkan device (100000: some hours); DTRAIN_RANDOM_SEED=n: the first one's seed;
#                            test random jobs: random jobs of training against their recorded results;
#                            DTRAIN_RECORD=1: record them
#
# --sanitize address|thread: the test program under ASan and UBSan, or under TSan. Several filters run the
# tests of each. docs/testing.md says how a test is written and found.

main() {
    if [ "$sanitize" = thread ] && [ "$CC" = cc ] && can_fuzz; then CC=clang; fi
    test_needs
    case "$sanitize $*" in
    ' long') long_tests ;;
    ?*' all' | ?*' long' | ?*' random '*) die "test $* runs without --sanitize" ;;
    esac
    if [ $# = 2 ] && [ "$1" = random ]; then random_tests "$2"; fi
    if [ -n "$sanitize" ]; then sanitized_tests "$@"; fi
    few=
    case $*-$# in -0) few=few scripts=$scripts_few ;; all-1) shift ;; esac
    setup_interop
    # A test that needs the real files finds them in build/data, or skips.
    if [ -e "$data_package" ]; then (data) || say "tests without data"; fi
    # shellcheck disable=SC2086 # nothing, or one word
    build $few
    with_swiftshader
    rm -rf build/scripts
    mkdir build/scripts
    script_lane "$@" &
    comm_tests "$@" &
    main_tests "$@"
    script_lane "$@" # what is left, while the other lane has a long one
    wait
    set -- "$@" --also build/dtest.counts # fails if no name has a filter
    for name in $scripts comm; do
        sed '$d' "build/$name.log"
        set -- "$@" --also "build/$name.counts"
    done
    exec build/dtest "$@"
}

# shellcheck disable=SC2086 # words are meant
test_needs() {
    case $sanitize,$CC in
    ,*) needs compiler python - $tests_optional ;;
    *,*clang*) needs compiler python clang_runtime - openssl zlib png jpeg ;;
    *) needs compiler python - openssl zlib png jpeg ;;
    esac
}

# The test program with the compiler's checks in it, in a folder of its own. GCC takes minutes for
# -O1, and all tests run in the same time. Clang has -O0 in half a minute, where kernels are three
# times slower. So it is for TSan, which runs few of them; it does not say that it checks. Vulkan is
# left out: its drivers are not clean under either tool.
sanitized_tests() {
    case $sanitize in
    address) checks='-fsanitize=address,undefined -fno-sanitize-recover=undefined' ;;
    thread) checks='-fsanitize=thread -DDT_NO_AVX512' ;; # threads split work alike in all classes
    *) die "--sanitize takes address or thread, not '$sanitize'" ;;
    esac
    header
    out=build/$sanitize level=-O1
    case $CC in *clang*) level="-O0 -D__SANITIZE_$(echo "$sanitize" | tr a-z A-Z)__" ;; esac
    # -g1 names functions and lines; to follow variables takes GCC a sixth of the compilation.
    CFLAGS="$level -g1 -fno-omit-frame-pointer -DDT_NO_VULKAN $checks"
    mkdir -p $out
    alone=$(echo "$*" | sed 's/ /|/g')
    build_tests
    # A quarter of the simulated runs: instrumented, each takes ten times as long.
    export DTRAIN_SIM_SEEDS="${DTRAIN_SIM_SEEDS:-250}"
    comm_tests "$@" &
    main_tests "$@"
    wait
    sed '$d' $out/comm.log
    exec $out/dtest "$@" --also $out/dtest.counts --also $out/comm.counts
}

# A process for each processor; a process that is free takes the tests of the next file.
main_tests() {
    rm -rf $out/shared $out/dtest.*counts
    mkdir $out/shared
    part=0 pids='' counted=''
    while [ $part -lt "$(processors)" ]; do
        $out/dtest --shared $out/shared --counts $out/dtest.$part.counts "$@" &
        pids="$pids $!" counted="$counted --also $out/dtest.$part.counts"
        part=$((part + 1))
    done
    for pid in $pids; do wait "$pid" || true; done
    # shellcheck disable=SC2086 # words are meant
    $out/dtest $counted --counts $out/dtest.counts || true
}

# The collectives' program mostly waits for its processes: it runs beside others.
comm_tests() {
    rm -f $out/comm.counts
    $out/dtest_comm --counts $out/comm.counts "$@" >$out/comm.log 2>&1 || true
}

# script_tests NAME FILTER...: tests/scripts/NAME.sh; its counts go to build/NAME.counts.
script_tests() {
    script=$1
    shift
    sh "tests/scripts/$script.sh" "$@" >"build/$script.log" || true
    tail -n 1 "build/$script.log" >"build/$script.counts"
}

# The test program with DT_LIGHT, in a folder of its own: tests of removed features skip.
light_tests() {
    out=build/light CFLAGS='-O1 -DDT_LIGHT'
    with_readers() { readers= reader_libs=; }
    mkdir -p $out
    # shellcheck disable=SC2046 # words are meant
    in_lanes $(test_sources)
    link_tests
    main_tests
}

# The tests in their long form, where they have one; those of Vulkan on SwiftShader too.
long_tests() {
    export DTRAIN_TEST_LONG=1 DTRAIN_SIM_SEEDS=100000
    build
    (setup_vendors) || say 'without vendors'"'"' drivers the record of their compilers is all that is checked'
    python3 tools/check/vendors
    with_swiftshader
    (light_tests)
    main_tests
    comm_tests
    script_tests machines
    script_tests apps
    sed '$d' $out/comm.log build/machines.log build/apps.log
    set -- --also $out/dtest.counts --also $out/comm.counts --also build/machines.counts \
        --also build/apps.counts --also build/light/dtest.counts --also build/options.counts --also build/docs.counts
    if [ "${VK_ADD_DRIVER_FILES-}" = $swiftshader ]; then
        VK_DRIVER_FILES=$swiftshader $out/dtest --counts $out/swiftshader.counts vulkan || true
        set -- "$@" --also $out/swiftshader.counts
    fi
    if python3 tools/check/options --check >&2; then echo 1 0 0; else echo 0 1 0; fi >build/options.counts
    if ./build.sh docs; then echo 1 0 0; else echo 0 1 0; fi >build/docs.counts
    exec $out/dtest "$@"
}

# The system's Vulkan drivers, and SwiftShader, which is not one of them. The loader gets it beside
# those that it finds, unless the caller has chosen. It takes ten times as long, most of it to
# compile. Tests that take one device have the first, which is another one unless the loader sorts.
with_swiftshader() {
    chosen=${VK_ADD_DRIVER_FILES-}${VK_ICD_FILENAMES-}${VK_DRIVER_FILES-}
    if [ -z "$chosen" ] && [ -e $swiftshader ]; then
        export VK_ADD_DRIVER_FILES=$swiftshader VK_LOADER_DISABLE_SELECT=1
    fi
}

# random_part NAME SEED COUNT TEST: its counts go to build/random.NAME.counts.
random_part() {
    rm -f "build/random.$1.counts"
    DTRAIN_RANDOM_SEED=$2 DTRAIN_RANDOM_COUNT=$3 \
        build/dtest --counts "build/random.$1.counts" "$4" || true
}

# All random jobs of training, a share for each processor.
random_jobs() {
    header
    build_tests
    if [ -n "${DTRAIN_RECORD-}" ]; then exec build/dtest random_jobs; fi
    parts=$(processors) part=0
    set --
    while [ $part -lt "$parts" ]; do
        rm -f build/random.$part.counts
        DTRAIN_TEST_LONG=1 DTRAIN_PART=$part DTRAIN_PARTS=$parts \
            build/dtest --counts build/random.$part.counts random_jobs || true &
        set -- "$@" --also build/random.$part.counts
        part=$((part + 1))
    done
    wait
    exec build/dtest "$@"
}

# Many random models: a share of the seeds for each processor, then the Vulkan devices.
random_tests() {
    case $1 in
    jobs) random_jobs ;;
    *[!0-9]* | 0*) die "test random takes how many models, or jobs; not '$1'" ;;
    esac
    header
    build_tests
    with_swiftshader
    at_once=$(processors) first=${DTRAIN_RANDOM_SEED:-1}
    share=$((($1 + at_once - 1) / at_once)) part=0
    set -- $(($1 / 50 + 1))
    while [ $part -lt "$at_once" ]; do
        random_part $part $((first + part * share)) $share reference_on_the_cpu &
        set -- "$@" --also build/random.$part.counts
        part=$((part + 1))
    done
    wait
    few=$1
    shift
    random_part mixed "$first" $((few * 10)) in_mixed_precision_err &
    set -- "$@" --also build/random.mixed.counts
    for device in 0 1 2; do
        random_part vulkan$device "$first" "$few" on_vulkan_device_$device &
        set -- "$@" --also build/random.vulkan$device.counts
    done
    wait
    exec build/dtest "$@"
}

# What needs whole applications or launchers; the longest first. The first four are left to `test all`.
scripts_few='apps train guide pages embed launch bindings dtrun'
scripts="machines mpi setup gpu $scripts_few"

# script_lane FILTER...: the scripts that no other lane has taken, one after the other.
script_lane() {
    export reader_libs
    for name in $scripts; do
        mkdir "build/scripts/$name" 2>/dev/null || continue
        begun=$(date +%s)
        script_tests "$name" "$@"
        echo "took $(($(date +%s) - begun)) s: tests/scripts/$name.sh"
    done
}
