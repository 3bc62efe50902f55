#!/bin/sh
# ./build.sh gpu on every Vulkan device here, in a minute. build.sh calls it; names that contain one
# of the arguments are run, or all. The last line is three numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
work=build/test_gpu
filters=$*

. tests/scripts/wanted.sh

# Each section has begun and ended, and found nothing wrong; the three forms have its heading.
report_is_whole() {
    for name in device peaks latency checks tests kernels steps loss torch; do
        part=$(echo "$1"/parts/*-$name.tsv)
        heading=$(sed -n 's/^section	[^	]*	\([^	]*\)	.*/\1/p' "$part")
        if [ -z "$heading" ] || ! grep -q '^end	' "$part" || grep '^bad	' "$part"; then
            echo "  $1: section $name"
            return 1
        fi
        grep -q 'In short' "$1/report.md" && grep -q 'all right</b> yes' "$1/report.html" || return 1
        for form in md html json; do
            grep -qF "$heading" "$1/report.$form" || return 1
        done
    done
    grep -q '^row	checks	gemm' "$1/parts/4-checks.tsv" &&
        grep -q '^row	gemm	' "$1/parts/6-kernels.tsv" &&
        awk -F '\t' '$1 == "row" && $2 == "steps" && $3 == "mlp" { # what runs, not all that is recorded
            found = $8 > 10 && $8 < 20 } END { exit !found }' "$1/parts/7-steps.tsv" &&
        grep -q '^peak	' "$1/parts/2-peaks.tsv"
}

a_report_of_each_vulkan_device_has_all_sections() {
    rm -rf $work
    ./build.sh gpu --minutes 1 --device all --out $work >build/test_gpu.log 2>&1 || return 1
    for folder in $work/*; do report_is_whole "$folder" || return 1; done
}

# A driver that crashes ends its section; the report says so, and has the others.
a_section_that_is_cut_off_is_named_in_the_report() {
    folder=$(echo $work/* | cut -d ' ' -f 1)
    sed -i '/^end/d' "$folder/parts/3-latency.tsv" && build/dtgpu report "$folder" || return 1
    grep -q 'This section was cut off' "$folder/report.md" &&
        grep -q 'This section was cut off' "$folder/report.html" &&
        grep -q 'What a launch and a copy cost' "$folder/report.md"
}

# An old compiler, a missing header: that is a finding, and the earlier measurements stay.
tests_that_do_not_compile_are_named_in_the_report() {
    (
        say() { printf '%s\n' "$*" >&2; }
        in_lanes() { exit 1; } # as build.sh's die does
        out=build gpu_out=$work/none
        mkdir -p $gpu_out
        . tools/gpu.sh
        gpu_tests 1 && build/dtgpu report $gpu_out
    ) >$work.none 2>&1 || return 1
    grep -qF '**the tests do not compile here**' $work/none/report.md &&
        grep -q 'all right: NO: 1 findings' $work/none/report.md &&
        ! grep -q 'cut off' $work/none/report.md
}

without_a_loader_missing_packages_are_named() {
    ./build.sh gpu --minutes 1 --loader /nowhere/libvulkan.so.1 >$work.out 2>&1 && return 1
    grep -q '/nowhere/libvulkan.so.1 DOES NOT OPEN' $work.out &&
        grep -q '/usr/share/vulkan/icd.d' $work.out
}

for test in a_report_of_each_vulkan_device_has_all_sections \
    a_section_that_is_cut_off_is_named_in_the_report \
    tests_that_do_not_compile_are_named_in_the_report without_a_loader_missing_packages_are_named; do
    wanted "gpu_$test" || continue
    if [ -x build/dtgpu ] && ! build/dtgpu list >/dev/null 2>&1; then
        skipped=$((skipped + 1))
        echo "skipped gpu_$test: no Vulkan driver"
    elif $test; then
        passed=$((passed + 1))
        echo "passed  gpu_$test"
    else
        failed=$((failed + 1))
        echo "FAILED  gpu_$test: $work, build/test_gpu.log"
    fi
done
echo $passed $failed $skipped
