#!/bin/sh
# The commands of README.md and docs/, as they stand on the pages (tests/scripts/pages.py). Also the test programs'
# error for a filter, which docs/testing.md describes. build.sh calls it. The last line is three numbers: passed,
# failed, skipped.
set -u
cd "$(dirname "$0")/../.."
filters=$*

. tests/scripts/wanted.sh

log=build/pages.test.log test=commands_of_pages_run_as_they_stand
if wanted $test; then
    if python3 tests/scripts/pages.py >$log 2>&1; then pass; else fail $test "see $log" $log; fi
fi

# A program of one test, hello: a filter that it has, one that it lacks, and counts of other programs.
test=a_filter_that_no_test_name_contains_is_an_error
if wanted $test; then
    work=build/filters
    rm -rf $work
    mkdir -p $work
    printf '#include "harness.h"\nTEST(hello) { CHECK(1); }\n' >$work/hello.c
    echo 0 0 0 >$work/none.counts
    echo 1 0 0 >$work/one.counts
    if ${CC:-cc} -Itests $work/hello.c tests/harness.c -o $work/hello >$log 2>&1 && cd $work &&
        ./hello hell >log 2>&1 && ./hello nope --also one.counts >>log 2>&1 &&
        ! ./hello nope >>log 2>&1 && ! ./hello nope also --also none.counts >>log 2>&1 &&
        grep -q "^no test's name contains 'nope'$" log && grep -q "'nope' or 'also'$" log; then pass; else
        fail $test "see $work/log" log
    fi
fi
echo "$passed $failed $skipped"
