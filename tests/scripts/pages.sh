#!/bin/sh
# The commands of README.md and docs/, as they stand on the pages (tests/scripts/pages.py). build.sh calls it. The
# last line is three numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
filters=$*

. tests/scripts/wanted.sh

log=build/pages.test.log test=commands_of_pages_run_as_they_stand
if wanted $test; then
    if python3 tests/scripts/pages.py >$log 2>&1; then pass; else fail $test "see $log" $log; fi
fi
echo "$passed $failed $skipped"
