#!/bin/sh
# The one entry point: each command does all that it needs. `./build.sh help` lists them.
# Everything made lies in build/, except dtrain.h and the shader table, which are committed.
set -eu
cd "$(dirname "$0")"

commands='train text test fuzz platforms setup header shaders build bench gpu devices plan check install clean help'
CC=${CC:-cc}
CFLAGS=${CFLAGS:--O2}
LIBS='-lm -ldl -lpthread'
sanitize=
out=build # where objects and programs go

say() { printf '%s\n' "$*" >&2; }
die() { say "build.sh: $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

. tools/setup.sh

help() {
    cat <<'END'
./build.sh train [args]    build, get Fashion-MNIST and train on it; args go to the program;
                           --model cnn or --model resnet: a convolutional network;
                           --devices cpu:2, --devices vulkan:0,vulkan:1,cpu: several devices, with
                           --batch-slices 8 the same bits from any number of them; as processes:
                           build/dtrun -n 4 build/fashion_mnist, or mpirun, srun, torchrun
./build.sh text [args]     the same for a text: build/char_gpt learns the Jargon File (from Debian's package
                           jargon-text) or --data FILE, and continues it
./build.sh test [filter]   build, run all tests, or those whose names contain the filter; a test
                           that needs a missing package skips, and names it;
                           test long: all tests, in their long form where they have one (some hours);
                           test random N: N random models on the CPU and N / 50 on each Vulkan device
                           (100000: some hours); DTRAIN_RANDOM_SEED=n: the first one's seed;
                           test random jobs: random jobs of training against their recorded results;
                           DTRAIN_RECORD=1: record them
./build.sh fuzz [seconds]  fuzz the readers of files, 60 s each; needs Clang's libFuzzer
./build.sh platforms       compile and run for other platforms: Windows under wine, the web, WASI,
                           other CPUs under QEMU, musl; all: also those that take minutes to
                           compile; or names; docs/platforms.md
./build.sh setup           install the packages of all commands; optional, as each command names
                           missing ones and asks; setup platforms: those of platforms;
                           setup vendors: compilers of other vendors' GPUs, for tools/check/vendors
./build.sh header          write dtrain.h and api.json from src/
./build.sh shaders         compile shaders/ into src/backend/vulkan/shader_table.h
./build.sh build           the header, the examples, the tests and the tools
./build.sh bench [what]    GEMM against OpenBLAS, training steps against PyTorch, Vulkan devices;
                           what: gemm, steps, create, frame, vulkan; --json FILE writes the results too; --help
./build.sh bench lossy     all-reduce over a long line that loses packets (root, Linux); --help
./build.sh bench comm      all-reduce beside gloo, Open MPI, plain sockets; --quick, --netns, --help
./build.sh bench local     loss by wall time over a slow link: synchronous, and rounds of local steps (root, Linux)
./build.sh bench served    the same with one slow rank, and parameter servers beside both (root, Linux); --svg FILE
./build.sh bench parallel  two replicas beside PyTorch DDP; overlap with --net; --quick, --help
./build.sh bench data [N]  a network on one core: arrays, a folder of PNG files, augmentation; N rounds
./build.sh bench pipeline  a model in two stages on two ranks beside one process; --help
./build.sh bench models    models split across two ranks, in all ways, beside PyTorch's; --help
./build.sh bench pair OLD  two builds in turn: the ratio of their speeds with its interval; --help
./build.sh gpu [options]   test and measure dtrain on a Vulkan device: writes report.md, .html and
                           .json; --help
./build.sh devices         list the devices that dtrain finds
./build.sh plan [options]  what each device does in a training step, --svg FILE: drawn; --help
./build.sh check [name...]  format, layers, generated files, symbols, warnings, sizes; or those named
./build.sh install [--prefix DIR]
                           dtrain.h, dtrain.pc for pkg-config, and dtrun (/usr/local; DESTDIR too)
./build.sh clean           remove build/
./build.sh help            this text

--yes                      install the command's packages without asking (apt, as root or by sudo),
                           as in CI (CI=true); --no-install: neither install nor ask
--sanitize address|thread  test: the test program under ASan and UBSan, or under TSan (by Clang if CC is unset)
CC=clang CFLAGS=-O3        before ./build.sh: another compiler, other flags
END
}

# ---- files that are made only when older than what they are made of

# newer TARGET SOURCE...: whether TARGET is there and no SOURCE (a file or a folder) is newer.
newer() {
    target=$1
    shift
    [ -e "$target" ] && [ -z "$(find "$@" -newer "$target" -type f 2>/dev/null | head -n 1)" ]
}

# Objects made with another compiler, other flags or other libraries are of no use.
fresh_flags() {
    with_readers
    with_openssl
    flags="$CC $CFLAGS$readers $secure"
    if [ "$(cat $out/flags 2>/dev/null || true)" != "$flags" ]; then
        rm -f $out/*.o $out/dtest $out/dtest_comm $out/dtbench $out/dtgpu $out/dtinfo $out/fashion_mnist*
        printf '%s\n' "$flags" >$out/flags
    fi
}

# Without Python the committed header is taken as it is: `train` needs a C compiler only.
header() {
    if newer build/header.stamp src shaders/lib tools/generate/amalgamate tools/generate/api && [ -e dtrain.h ] &&
        [ -e api.json ]; then return 0; fi
    if ! have python3; then
        [ -e dtrain.h ] || die "dtrain.h is missing and python3 is needed to write it"
        return 0
    fi
    touch build/header.begun
    python3 tools/generate/amalgamate
    python3 tools/generate/api
    mv build/header.begun build/header.stamp
}

# What a file that only declares sees of dtrain.h. It is compiled again when that changes, not with
# every line of the implementation.
public_part() {
    if newer build/public_part.stamp dtrain.h; then return 0; fi
    part=build/public_part.$$ # others may do the same, as .ci/run's two
    sed '/^#if (defined DT_IMPLEMENTATION/q' dtrain.h >$part
    if cmp -s $part build/public_part.h; then rm $part; else mv $part build/public_part.h; fi
    touch build/public_part.stamp
}

shaders() {
    [ -e tools/generate/shaders ] || die "there is no tools/generate/shaders"
    python3 tools/generate/shaders
    header
}

# compile OUTPUT SOURCE FLAGS...: one program from one file and those that it includes, which have
# its name with something behind.
compile() {
    output=$1 source=$2
    shift 2
    if newer "$output" "${source%.c}"* dtrain.h build/flags; then return 0; fi
    say "$CC $source"
    case $source in tools/view/dtinfo.c) set -- "$@" -O0 ;; esac # it computes nothing
    # shellcheck disable=SC2086 # words are meant
    "$CC" $CFLAGS "$@" -I. "$source" -o "$output" $LIBS
}

# What files are read by, where it is: without it deflated arrays, or pictures, are refused.
with_readers() {
    readers= reader_libs=
    for reader in 'ZLIB zlib.h -lz' 'PNG png.h -lpng' 'JPEG jpeglib.h -ljpeg'; do
        # shellcheck disable=SC2086 # words are meant
        set -- $reader
        if includes "$2"; then
            readers="$readers -DDT_WITH_$1" reader_libs="$reader_libs $3"
        fi
    done
}

# Of the tests. GCC takes 11 s more of the implementation for the one that is left out.
warnings='-Wall -Wextra -Wno-misleading-indentation'

# main.c includes the tests of internals; every other test file is an object of its own. Where
# $alone names some tests, a file that has none of them is left out.
alone=
test_sources() {
    for source in tests/main.c tests/harness.c tests/*/test_*.c; do
        if grep -q "#include \"${source#tests/}\"" tests/main.c tests/comm/main.c; then continue; fi
        if has_wanted "$source"; then echo "$source"; fi
    done
}

has_wanted() {
    case $alone,$1 in
    ,* | *,tests/main.c | *,tests/harness.c) return 0 ;;
    esac
    # The rows of wrong_args.h are in several files, and go with any of them.
    # shellcheck disable=SC2046 # words are meant
    set -- "$1" $(if grep -q '"wrong/wrong_args.h"' "$1"; then grep -l '"wrong/wrong_args.h"' tests/wrong/test_*.c; fi)
    grep -qE "^(TEST|GOLDEN)[A-Z_]*\(.*($alone)" "$@"
}

# test_level SOURCE: what only declares takes a third as long without optimising.
test_level() {
    case $1 in tests/*/test_*) echo -O0 ;; esac
}

build_test() {
    object=$out/$(basename "$1" .c).o
    sources="$1 $(echo tests/*.h tests/*/*.h) build/public_part.h $out/flags"
    case $1 in
    tests/main.c | tests/fuzz/test_fuzz.c) sources="$sources dtrain.h tests tools/check/launches.h tools/view" ;;
    tests/golden/test_golden_gpt2.c) sources="$sources examples/gpt2.c" ;;
    esac
    # shellcheck disable=SC2086
    if newer "$object" $sources; then return 0; fi
    say "$CC $1"
    # shellcheck disable=SC2086
    "$CC" $CFLAGS $(test_level "$1") $readers -g $warnings -I. -Itests -c "$1" -o "$object"
}

link_tests() {
    objects=$(test_sources | sed "s|^.*/\(.*\)c\$|$out/\1o|")
    # shellcheck disable=SC2086
    if [ "$(cat $out/dtest.objects 2>/dev/null)" = "$objects" ] && newer $out/dtest $objects; then return 0; fi
    # shellcheck disable=SC2086
    "$CC" $CFLAGS -g $objects -o $out/dtest $LIBS $reader_libs
    printf '%s\n' "$objects" >$out/dtest.objects
}

build_tests() {
    # shellcheck disable=SC2046 # words are meant
    in_lanes $(test_sources) build_comm_tests
    link_tests
}

# OpenSSL, where it is: without it the collectives have neither MAC nor TLS, and so no tests of them.
with_openssl() {
    secure= secure_libs=
    if ! includes openssl/ssl.h; then return 0; fi
    secure=-DDT_WITH_OPENSSL secure_libs='-lssl -lcrypto'
}

# The collectives' tests are a program of their own, which compiles nothing else: in seconds.
build_comm_tests() {
    if newer $out/dtest_comm tests/comm tests/fuzz tests/harness.c tests/harness.h dtrain.h \
        $out/flags; then
        return 0
    fi
    say "$CC tests/comm/main.c"
    # shellcheck disable=SC2086 # words are meant
    "$CC" $CFLAGS $secure -g $warnings -I. -Itests tests/comm/main.c tests/harness.c \
        -o $out/dtest_comm $LIBS $secure_libs
}

# The implementation, once for all programs that need nothing but the public header: each of them
# compiled by itself, as its first lines say, takes a minute. Its parts compile beside each other.
library='build/dtrain_CORE.o build/dtrain_KERNELS.o build/dtrain_COMM.o'

build_part() {
    if newer "build/dtrain_$1.o" dtrain.h build/flags; then return 0; fi
    say "$CC dtrain.h: $1"
    # shellcheck disable=SC2086 # words are meant
    "$CC" $CFLAGS $readers "-DDT_IMPLEMENTATION_$1" -x c -c dtrain.h -o "build/dtrain_$1.o"
}

build_library() { in_lanes CORE KERNELS COMM; }

# linked SOURCE: declarations alone, with the library.
linked() {
    output=build/$(basename "$1" .c)
    if newer "$output" "$1" examples/*.h $library build/flags; then return 0; fi
    say "$CC $1"
    # shellcheck disable=SC2086
    "$CC" $CFLAGS -DDTI_IMPLEMENTED -I. "$1" $library -o "$output" $LIBS $reader_libs
}

build() {
    header
    fresh_flags
    with_public='examples/xor.c examples/hello.c examples/data_parallel.c examples/fashion_mnist.c
        examples/fashion_mnist_conv.c examples/lstm_series.c examples/char_gpt.c
        examples/gpt2.c examples/pipeline_gpt.c examples/parameter_server.c examples/tabular.c examples/pictures.c
        examples/autoencoder.c examples/cartpole.c examples/finetune.c examples/fit_image.c'
    if includes vulkan/vulkan.h; then with_public="$with_public examples/neural_texture.c"; fi
    by_itself='examples/allreduce.c tools/gpu/dtgpu.c tools/view/dtinfo.c tools/scaling/dtmodel.c tools/dtrun.c'
    # shellcheck disable=SC2046,SC2086 # words are meant
    in_lanes tests/main.c CORE KERNELS $by_itself COMM build_comm_tests $(test_sources)
    link_tests
    for source in $with_public; do linked "$source"; done
}

# in_lanes WORK...: a lane for each processor.
in_lanes() {
    rm -rf $out/taken
    mkdir $out/taken
    fresh_flags
    public_part
    lanes=$(processors) pids= failed=no
    while [ "$lanes" -gt 0 ]; do
        build_lane "$@" &
        pids="$pids $!"
        lanes=$((lanes - 1))
    done
    for pid in $pids; do wait "$pid" || failed=yes; done
    if [ $failed = yes ]; then die "what is above does not compile"; fi
}

# build_lane WORK...: what no other lane has taken, one after the other.
build_lane() {
    for made in "$@"; do
        mkdir "$out/taken/$(basename "$made")" 2>/dev/null || continue
        case $made in
        build_*) ($made) & ;;
        tests/*) (build_test "$made") & ;;
        *.c) (compile "build/$(basename "$made" .c)" "$made") & ;;
        *) (build_part "$made") & ;;
        esac
        wait $! || exit 1 # not with || behind the work itself, which would go on after errors
    done
}

processors() { nproc 2>/dev/null || echo 1; }

# ---- Fashion-MNIST: Debian's package, else the original files. Both hold the same IDX files, in
# differently packed gzip files, so the unpacked ones are what is checked.

data_sums='c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888  train-images-idx3-ubyte
bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9  train-labels-idx1-ubyte
5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b  t10k-images-idx3-ubyte
0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34  t10k-labels-idx1-ubyte'
data_package=/usr/share/datasets/fashion-mnist data_note=
data_url=http://fashion-mnist.s3-website.eu-central-1.amazonaws.com

sha256() {
    if have sha256sum; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

has_data() {
    for name in $(printf '%s\n' "$data_sums" | sed 's/.* //'); do
        [ -e "build/data/$name" ] || packaged dataset-fashion-mnist $data_package || return 1
    done
}

# fetch NAME: leaves build/data/NAME.tmp, unpacked.
fetch() {
    if [ -e "$data_package/$1.gz" ]; then
        gzip -dc "$data_package/$1.gz" >"build/data/$1.tmp"
        return
    fi
    have curl || die 'curl is missing: install it, or put the four IDX files into build/data'
    say "downloading $1.gz"
    curl -fsSL --retry 3 "$data_url/$1.gz" -o "build/data/$1.gz" ||
        die "$data_url/$1.gz cannot be fetched: install Debian's package dataset-fashion-mnist" \
            '(--yes does so), or put the unpacked IDX files into build/data'
    gzip -dc "build/data/$1.gz" >"build/data/$1.tmp"
    rm -f "build/data/$1.gz"
}

data() {
    mkdir -p build/data
    printf '%s\n' "$data_sums" | while read -r sum name; do
        if [ -e "build/data/$name" ]; then continue; fi
        have gzip || die "gzip is missing: install it"
        fetch "$name" </dev/null
        [ "$(sha256 "build/data/$name.tmp")" = "$sum" ] ||
            die "build/data/$name.tmp is not the file it should be (SHA-256 $sum)"
        mv "build/data/$name.tmp" "build/data/$name"
    done
}

# needs_data THING...: those and the data: Debian's package, or by curl where that is.
needs_data() {
    if have curl; then
        data_note=', which is downloaded otherwise'
        needs "$@" - data
    else
        data_note=' (or curl, which downloads it)'
        needs "$@" data
    fi
    data
}

# A text of 1.7 MB, from Debian's package, which need not be installed.
text_sum=40dfb4b98191a670a09a183d5798d50f243d23fdbd1495dcc0aca2ce5895ba97

download_text() {
    (cd build/data/jargon && apt-get -q download jargon-text >&2 && dpkg-deb -x jargon-text_*.deb .)
}

text_data() {
    if [ -e build/data/jargon.txt ]; then return 0; fi
    if ! have apt-get || ! have dpkg-deb; then
        die "the text is in Debian's package jargon-text; any other will do: --data FILE"
    fi
    rm -rf build/data/jargon
    mkdir -p build/data/jargon
    download_text || {
        [ $may_install = yes ] && by_whom && update_lists && download_text
    } || die "jargon-text cannot be downloaded (after apt-get update, or with --yes?);" \
        "any other text will do: --data FILE"
    gzip -dc build/data/jargon/usr/share/doc/jargon-text/jargon.txt.gz >build/data/jargon.txt.tmp
    rm -rf build/data/jargon
    [ "$(sha256 build/data/jargon.txt.tmp)" = "$text_sum" ] ||
        die "build/data/jargon.txt.tmp is not the text it should be (SHA-256 $text_sum)"
    mv build/data/jargon.txt.tmp build/data/jargon.txt
}

# ---- the commands

text() {
    needs compiler
    case " $* " in *" --data "*) ;; *) text_data ;; esac
    header
    build_library
    linked examples/char_gpt.c
    exec build/char_gpt "$@"
}

# --model mlp is the first example's network, the others are the second's.
train() {
    example=fashion_mnist folder='--data build/data' left=$#
    while [ "$left" -gt 0 ]; do
        word=$1
        shift
        left=$((left - 1))
        case "$word ${1-}" in
        '--model mlp')
            shift
            left=$((left - 1))
            continue
            ;;
        '--model '*) example=fashion_mnist_conv ;;
        '--data '*) folder= ;;
        esac
        set -- "$@" "$word"
    done
    if [ -z "$folder" ]; then needs compiler; else needs_data compiler; fi
    header
    build_library
    compile build/dtrun tools/dtrun.c # which the help names
    linked examples/$example.c
    # shellcheck disable=SC2086 # words are meant
    exec build/$example $folder "$@"
}

# The test program with the compiler's checks in it, in a folder of its own. GCC takes minutes for -O1,
# and all tests run in as many. Clang has -O0 in half a minute, where kernels are three times slower: so
# it is for TSan, which runs few of them; it does not say that it checks. Vulkan is left out: its drivers
# are not clean under either tool.
sanitized_tests() {
    case $sanitize in
    address) checks='-fsanitize=address,undefined -fno-sanitize-recover=undefined' ;;
    thread) checks='-fsanitize=thread -DDT_NO_AVX512' ;; # threads split work alike in all classes
    *) die "--sanitize takes address or thread, not '$sanitize'" ;;
    esac
    header
    out=build/$sanitize level=-O1
    case $CC in *clang*) level="-O0 -D__SANITIZE_$(echo "$sanitize" | tr a-z A-Z)__" ;; esac
    CFLAGS="$level -fno-omit-frame-pointer -DDT_NO_VULKAN $checks"
    mkdir -p $out
    alone=$(echo "$*" | sed 's/ /|/g')
    build_tests
    # A quarter of the simulated runs: instrumented, each takes ten times as long.
    export DTRAIN_SIM_SEEDS="${DTRAIN_SIM_SEEDS:-250}"
    comm_tests "$@" &
    main_tests "$@"
    wait
    sed '$d' $out/comm.log
    exec $out/dtest --also $out/dtest.counts --also $out/comm.counts
}

# A process for each processor; whoever is free takes the tests of the next file.
main_tests() {
    rm -rf $out/shared $out/dtest.*counts
    mkdir $out/shared
    part=0 pids= counted=
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

# The tests in their long form, where they have one; those of Vulkan on SwiftShader too.
long_tests() {
    export DTRAIN_TEST_LONG=1 DTRAIN_SIM_SEEDS=100000
    build
    (setup_vendors) || say 'without vendors'"'"' drivers the record of their compilers is all that is checked'
    python3 tools/check/vendors
    with_swiftshader
    main_tests
    comm_tests
    script_tests machines
    sed '$d' $out/comm.log build/machines.log
    set -- --also $out/dtest.counts --also $out/comm.counts --also build/machines.counts
    if [ "${VK_ADD_DRIVER_FILES-}" = $swiftshader ]; then
        VK_DRIVER_FILES=$swiftshader $out/dtest --counts $out/swiftshader.counts vulkan || true
        set -- "$@" --also $out/swiftshader.counts
    fi
    exec $out/dtest "$@"
}

# The system's Vulkan drivers, and SwiftShader, which is none: the loader is told of it, beside those
# that it finds, unless whoever calls has chosen. It takes ten times as long, most of it to compile:
# tests that take one device have the first, which is not it unless the loader sorts.
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
    for device in 0 1 2; do
        random_part vulkan$device "$first" "$few" on_vulkan_device_$device &
        set -- "$@" --also build/random.vulkan$device.counts
    done
    wait
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

run_tests() {
    if [ "$sanitize" = thread ] && [ "$CC" = cc ] && can_fuzz; then CC=clang; fi
    test_needs
    case "$sanitize $*" in
    ' long') long_tests ;;
    ?*' long' | ?*' random '*) die "test $* runs without --sanitize" ;;
    esac
    if [ $# = 2 ] && [ "$1" = random ]; then random_tests "$2"; fi
    if [ -n "$sanitize" ]; then sanitized_tests "$@"; fi
    setup_interop
    # A test that needs the real files finds them in build/data, or skips.
    if [ -e "$data_package" ]; then (data) || say "tests without data"; fi
    build
    with_swiftshader
    rm -rf build/scripts
    mkdir build/scripts
    script_lane "$@" &
    comm_tests "$@" &
    main_tests "$@"
    script_lane "$@" # what is left, while the other lane has a long one
    wait
    set -- --also build/dtest.counts
    for name in $scripts comm; do
        sed '$d' "build/$name.log"
        set -- "$@" --also "build/$name.counts"
    done
    exec build/dtest "$@"
}

# What needs whole applications or launchers; the longest first.
scripts='machines mpi setup gpu apps train guide embed launch bindings dtrun'

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

# ---- Fuzzing: each tests/fuzz/fuzz_*.c is a target and starts from its folder of tests/fuzz/corpus.

fuzz_checks='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined'

can_fuzz() {
    mkdir -p build/fuzz
    have clang && echo 'int LLVMFuzzerTestOneInput(void *data, long size) { return !data && size; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o build/fuzz/probe.$$ 2>/dev/null &&
        rm -f build/fuzz/probe.$$
}

# fuzz_object NAME: one target's object. The server's has the whole implementation, for those too that
# do not compile it themselves. It has the kernels: -O0, or Clang takes minutes.
fuzz_object() {
    flags="-g -fno-omit-frame-pointer -DDT_NO_VULKAN $fuzz_checks"
    case $1 in
    server) level="-O0 $readers" ;;
    manifest) level=-O0 ;;
    *) level=-O1 ;;
    esac
    # shellcheck disable=SC2086 # words are meant
    set -- "$1" $level "tests/fuzz/fuzz_$1.c"
    name=$1
    shift
    say "clang $name, to fuzz it"
    # shellcheck disable=SC2086 # words are meant
    clang $flags -I. -Itests -c "$@" -o "build/fuzz/$name.o"
}

# fuzz_link NAME: with the server's object, unless it has an implementation of its own.
fuzz_link() {
    whole=build/fuzz/server.o
    if grep -qE '^#define DT_STATIC|"fuzz/fuzz_core.h"' "tests/fuzz/fuzz_$1.c" || [ "$1" = server ]; then whole=; fi
    # shellcheck disable=SC2086 # words are meant
    clang -fsanitize=fuzzer,address,undefined "build/fuzz/$1.o" $whole -o "build/fuzz/$1" \
        -lm -ldl -lpthread $reader_libs
}

# side_by_side COMMAND NAME...: a lane for each processor; false if one was.
side_by_side() {
    rm -rf build/fuzz/taken build/fuzz/*.failed
    mkdir build/fuzz/taken
    lanes=$(processors) pids=
    while [ "$lanes" -gt 0 ]; do
        fuzz_lane "$@" &
        pids="$pids $!"
        lanes=$((lanes - 1))
    done
    # shellcheck disable=SC2086 # words are meant
    wait $pids
    for name in build/fuzz/*.failed; do
        if [ -e "$name" ]; then return 1; fi
    done
}

# fuzz_lane COMMAND NAME...: what no other lane has taken, one after the other.
fuzz_lane() {
    command=$1
    shift
    for name in "$@"; do
        mkdir "build/fuzz/taken/$name" 2>/dev/null || continue
        ("$command" "$name") & # not in a condition, where it would go on after errors
        wait $! || : >"build/fuzz/$name.failed"
    done
}

# run_fuzz NAME: for $seconds; what it finds goes to build/fuzz, an input that crashes it too.
run_fuzz() {
    found=build/fuzz/$1.found log=build/fuzz/$1.log
    words=
    if [ -e "tests/fuzz/fuzz_$1.dict" ]; then words=-dict=tests/fuzz/fuzz_$1.dict; fi
    mkdir -p "$found"
    status=0
    # shellcheck disable=SC2086 # one word or none
    "build/fuzz/$1" "-max_total_time=$seconds" -max_len=2048 -timeout=10 -print_final_stats=1 \
        "-artifact_prefix=build/fuzz/$1-" $words "$found" "tests/fuzz/corpus/$1" \
        >"$log" 2>&1 || status=$?
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    if [ $status = 0 ]; then
        say "passed  fuzz $1: ${inputs:-0} inputs in $seconds s, ${edges:-0} edges"
        return 0
    fi
    say "FAILED  fuzz $1: $log says why, and which file (build/fuzz/$1-...) does it:"
    grep -n -m 12 -e ERROR -e SUMMARY -e '^tests/fuzz' -e '^ *#[0-9]* .*\(fuzz_\|dti\?_\)' "$log" || true
    for input in "build/fuzz/$1-"*; do
        if [ -s "$input" ]; then say "$input in base64: $(base64 -w 0 "$input")"; fi
    done
    return 1
}

fuzz() {
    seconds=${1:-60}
    case $seconds in *[!0-9]* | 0) die "fuzz takes seconds, not '$seconds'" ;; esac
    needs compiler clang_runtime
    header
    with_readers
    names='server frames hello' # which take long to compile
    for target in tests/fuzz/fuzz_*.c; do
        name=$(basename "$target" .c)
        case $name in fuzz_server | fuzz_frames | fuzz_hello) ;; *) names="$names ${name#fuzz_}" ;; esac
    done
    # shellcheck disable=SC2086 # words are meant
    side_by_side fuzz_object $names || die 'what is above does not compile'
    # shellcheck disable=SC2086 # words are meant
    side_by_side fuzz_link $names || die 'what is above does not link'
    # shellcheck disable=SC2086
    side_by_side run_fuzz $names
}

bench() {
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

# Files of the test set: as many as an epoch of a few seconds has.
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

platforms() {
    needs python
    header
    # Without it the training on Fashion-MNIST skips.
    if [ -e "$data_package" ]; then (data); fi
    exec sh tests/scripts/platforms.sh "$@"
}

# information [plan] WORD...: of devices, or of a training step.
information() {
    needs compiler
    header
    fresh_flags
    compile build/dtinfo tools/view/dtinfo.c
    exec build/dtinfo "$@"
}

# check [NAME...]: what all checks need is asked for when all run.
check() {
    # shellcheck disable=SC2086 # words are meant
    if [ $# = 0 ]; then needs $checks - spirv_cross lavapipe vulkan_header; fi
    exec python3 tools/check "$@"
}

# install_to PREFIX: DESTDIR stands before it, as packagers have it.
install_to() {
    root=${DESTDIR-}$1
    header
    compile build/dtrun tools/dtrun.c
    mkdir -p "$root/include" "$root/lib/pkgconfig" "$root/bin"
    cp dtrain.h "$root/include/dtrain.h"
    cp build/dtrun "$root/bin/dtrun"
    version=$(sed -n 's/^#define DT_VERSION "\(.*\)"$/\1/p' src/api/config.h)
    cat >"$root/lib/pkgconfig/dtrain.pc" <<END
prefix=$1
Name: dtrain
Description: Neural networks that train anywhere, in one C header
Version: $version
Cflags: -I\${prefix}/include
Libs: $LIBS
END
    say "installed dtrain.h, dtrain.pc and dtrun below $root"
}

install_here() {
    prefix=/usr/local
    case ${1:-} in
    --prefix) prefix=${2:-} ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    '') ;;
    *) die "install takes --prefix DIR, not '$1'" ;;
    esac
    case $prefix in /*) ;; *) die "--prefix takes an absolute folder, not '$prefix'" ;; esac
    needs compiler
    fresh_flags
    install_to "${prefix%/}"
}

# --yes and --sanitize may stand anywhere; the other words keep their order.
count=$#
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    case $word in
    --yes | --install) may_install=yes ;;
    --no-install) may_install=no ;;
    --sanitize)
        [ "$count" -gt 0 ] || die '--sanitize takes address or thread'
        sanitize=$1
        shift
        count=$((count - 1))
        ;;
    *) set -- "$@" "$word" ;;
    esac
done

command=${1:-help}
if [ $# -gt 0 ]; then shift; fi
mkdir -p build
case $command in
train) train "$@" ;;
text) text "$@" ;;
test) run_tests "$@" ;;
fuzz) fuzz "$@" ;;
platforms) platforms "$@" ;;
setup) setup "$@" ;;
header) needs python; header ;;
shaders) needs python glslang spirv; shaders ;;
build)
    needs compiler - vulkan_header openssl zlib png jpeg
    build
    compile build/dtbench tools/bench/dtbench.c # tests run without it
    ;;
bench) bench "$@" ;;
gpu)
    . tools/gpu.sh
    gpu "$@"
    ;;
devices) information "$@" ;;
plan) information plan "$@" ;;
check) check "$@" ;;
install) install_here "$@" ;;
clean) rm -rf build ;;
help | -h | --help) help ;;
*) die "unknown command '$command'; the commands are: $commands" ;;
esac
