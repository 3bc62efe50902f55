# ./build.sh fuzz [seconds]  fuzz the readers of files, 60 s each; needs Clang's libFuzzer
#
# Each tests/fuzz/fuzz_*.c is a target and starts from its folder of tests/fuzz/corpus. What a target finds
# goes to build/fuzz, an input that crashes it too.

main() {
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

fuzz_checks='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined'

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
    clang $flags $here -Itests -c "$@" -o "build/fuzz/$name.o"
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
    lanes=$(processors) pids=''
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
