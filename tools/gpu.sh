# ./build.sh gpu [options]   test and measure dtrain on a Vulkan device: writes report.md, .html and
#                            .json
#
#     --minutes N     about how long it takes at most, besides compiling; 9
#     --out DIR       where report.md, report.html and report.json go; build/gpu
#     --device ID     vulkan:N of ./build.sh devices; all: each, into DIR/vulkan-N; the best one
#     --only SECTION  device, peaks, latency, checks, kernels, steps, loss, torch or tests; what other
#                     sections have left in DIR stays in the report
#     --loader FILE   the Vulkan loader (libvulkan.so.1), where the system has none
# Needs a C compiler, Vulkan's loader and a driver. The report is written again after each section, so
# what has been measured stays when a run is cut off. docs/devices says what its columns mean.

# A section is a process: a driver that crashes ends only one.

# Each with its share of the time, in percent; tests last, because they have to be compiled.
gpu_sections='device:1 peaks:4 latency:4 checks:8 kernels:25 steps:27 loss:9 torch:9 tests:13'

# gpu_section NAME SECONDS: what dtgpu does not measure itself.
gpu_section() {
    case $1 in
    torch) gpu_torch "$2" ;;
    tests) gpu_tests "$2" ;;
    *)
        status=0
        # shellcheck disable=SC2086 # no word, or two
        build/dtgpu $gpu_loader "$1" "$gpu_device" "$gpu_out" "$2" || status=$?
        if [ $status != 0 ]; then say "section $1 ended with status $status"; fi
        ;;
    esac
}

# limited SECONDS COMMAND...: where there is a timeout.
limited() {
    if have timeout; then timeout "$@"; else shift && "$@"; fi
}

gpu_torch() {
    part=$gpu_out/parts/9-torch.tsv
    build/dtgpu begin torch "$gpu_out"
    if ! have python3 || ! python3 -c 'import torch' 2>/dev/null; then
        printf 'note\tPyTorch is not here (python3 cannot import torch): nothing to compare with\n'
    elif ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        printf 'note\tPyTorch is here, without a CUDA device: nothing to compare with\n'
    elif ! limited $(($1 * 3 + 60)) python3 tools/gpu/gpu_torch.py "$part" "$1" >&2; then
        printf 'bad\ttools/gpu/gpu_torch.py failed or took too long\n'
    fi | tee -a "$part"
    printf 'end\t0\n' >>"$part"
}

# With little time the tests that are quick: they lie in one file, and the others are not compiled.
gpu_build_tests() {
    if [ "$filters" = vulkan ]; then
        build_tests
        return
    fi
    in_lanes tests/main.c tests/harness.c
    # shellcheck disable=SC2086 # words are meant
    "$CC" $CFLAGS -g $out/main.o $out/harness.o -o $tests $LIBS $reader_libs
}

# The tests of the backend, on every device there is.
gpu_tests() {
    part=$gpu_out/parts/5-tests.tsv log=$gpu_out/tests.log
    filters=vulkan tests=$out/dtest
    if [ "$1" -lt 60 ]; then
        filters='vulkan_memory vulkan_grids vulkan_barrier vulkan_cache vulkan_without'
        tests=$out/dtest_gpu
    fi
    build/dtgpu begin tests "$gpu_out"
    say 'gpu: the tests are compiled, which takes some minutes'
    if ! (gpu_build_tests); then # which ends its shell where something does not compile
        printf 'bad\tthe tests do not compile here\n' | tee -a "$part"
        printf 'end\t0\n' >>"$part"
        return 0
    fi
    # shellcheck disable=SC2086 # words are meant
    limited $(($1 * 4 + 60)) $tests $filters \
        >"$log" 2>&1 || true
    # Not every sed knows \t.
    sed -n 's/^FAILED */bad|FAILED /p; s/^skipped \([^:]*\): \(.*\)/note|skipped \1: \2/p
        s/^\([0-9]* passed, .*\)/fact|tests whose names contain '"$(echo $filters | sed 's/ /, /g')"'|\1/p' \
        "$log" | tr '|' '\t' | tee -a "$part"
    if grep -q '^[0-9]* passed, ' "$log"; then printf 'end\t0\n' >>"$part"; fi
}

gpu_one() {
    mkdir -p "$gpu_out/parts"
    for entry in $gpu_sections; do
        name=${entry%:*} seconds=$((gpu_seconds * ${entry#*:} / 100))
        case " $gpu_only " in
        '  ' | *" $name "*) ;;
        *) continue ;;
        esac
        gpu_section "$name" $((seconds > 0 ? seconds : 1))
        build/dtgpu report "$gpu_out"
    done
    say "gpu: done. Look at $gpu_out/report.html; to share it: report.md into an issue, or a pull request"
    say 'that adds it to docs/devices (its README says how); report.json has the same numbers'
}

main() {
    gpu_minutes=9 gpu_out=build/gpu gpu_device='' gpu_only='' gpu_loader=''
    while [ $# -gt 0 ]; do
        case $1 in
        --minutes) gpu_minutes=${2:-} ;;
        --out) gpu_out=${2:-} ;;
        --device) gpu_device=${2:-} ;;
        --only) gpu_only="$gpu_only ${2:-}" ;;
        --loader) gpu_loader="--loader ${2:-}" ;;
        help) help_of gpu && return 0 ;;
        *) die "gpu knows no '$1'; ./build.sh gpu --help" ;;
        esac
        [ $# -gt 1 ] || die "$1 takes a value; ./build.sh gpu --help"
        shift 2
    done
    case $gpu_minutes in '' | *[!0-9]* | 0*) die "--minutes takes a number, not '$gpu_minutes'" ;; esac
    gpu_seconds=$((gpu_minutes * 60))
    if [ -z "$gpu_loader" ]; then needs compiler loader driver; else needs compiler; fi
    header
    fresh_flags
    say 'gpu: first a program is compiled, which takes one to three minutes'
    compile build/dtgpu tools/gpu/dtgpu.c
    # shellcheck disable=SC2086 # no word, or two
    found=$(build/dtgpu $gpu_loader list) || die 'without a Vulkan device there is nothing to report on'
    say "$found"
    case $gpu_device in
    '' | all) ;;
    *) echo "$found" | grep -q "^$gpu_device " || die "--device takes vulkan:N of those above, not '$gpu_device'" ;;
    esac
    if [ "$gpu_device" != all ]; then
        gpu_device=${gpu_device:-${found%% *}}
        gpu_one
        return 0
    fi
    folder=$gpu_out
    gpu_seconds=$((gpu_seconds / $(echo "$found" | wc -l)))
    for gpu_device in $(echo "$found" | cut -d ' ' -f 1); do
        gpu_out=$folder/$(echo "$gpu_device" | tr : -)
        gpu_one
    done
}
