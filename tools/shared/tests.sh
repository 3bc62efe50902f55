# Part of build.sh: the test programs, and all programs (tools/build.sh, tools/test.sh, tools/gpu.sh).

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
    # The rows of wrong_args.h are in several files, and belong to any of them.
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
    tests/main.c | tests/fuzz/test_fuzz.c) sources="$sources $dtrain_h tests tools/check/launches.h tools/view" ;;
    tests/golden/test_golden_gpt2.c) sources="$sources examples/gpt2.c" ;;
    esac
    # shellcheck disable=SC2086
    if newer "$object" $sources; then return 0; fi
    say "$CC $1"
    # shellcheck disable=SC2086
    "$CC" -g $CFLAGS $(test_level "$1") $readers $warnings $here -Itests -c "$1" -o "$object"
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

# The collectives' tests are a program of their own, which compiles nothing else: in seconds.
build_comm_tests() {
    if newer $out/dtest_comm tests/comm tests/fuzz tests/harness.c tests/harness.h $dtrain_h \
        $out/flags; then
        return 0
    fi
    say "$CC tests/comm/main.c"
    # shellcheck disable=SC2086 # words are meant
    "$CC" -g $CFLAGS $secure $warnings $here -Itests tests/comm/main.c tests/harness.c \
        -o $out/dtest_comm $LIBS $secure_libs
}

# build [few]: all programs, or those that ./build.sh test runs.
build() {
    header
    fresh_flags
    with_public='examples/xor.c examples/hello.c examples/data_parallel.c examples/fashion_mnist.c
        examples/fashion_mnist_conv.c examples/lstm_series.c examples/char_gpt.c
        examples/gpt2.c examples/pipeline_gpt.c examples/parameter_server.c examples/tabular.c examples/pictures.c
        examples/autoencoder.c examples/cartpole.c examples/finetune.c examples/fit_image.c'
    if includes vulkan/vulkan.h; then with_public="$with_public examples/neural_texture.c"; fi
    by_itself='examples/allreduce.c tools/view/dtinfo.c tools/dtrun.c'
    if [ $# = 0 ]; then by_itself="$by_itself tools/gpu/dtgpu.c tools/scaling/dtmodel.c"; fi
    # shellcheck disable=SC2046,SC2086 # words are meant
    in_lanes tests/main.c $implementation $by_itself build_comm_tests $(test_sources)
    link_tests
    for source in $with_public; do linked "$source"; done
}
