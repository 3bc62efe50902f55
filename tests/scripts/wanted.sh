# Sourced by the scripts that test.

# wanted NAME: whether NAME contains one of $filters, as the test programs' filters do; none = all.
# Words with '-' are not filters.
wanted() {
    count=0
    for part in $filters; do
        case $part in -*) continue ;; esac
        count=$((count + 1))
        case $1 in *"$part"*) return 0 ;; esac
    done
    [ $count -eq 0 ]
}

# What a test ends with. The script's last line is the three sums.
passed=0 failed=0 skipped=0
pass() { passed=$((passed + 1)); }
fail() { # TEST WHY [LOG...]
    failed=$((failed + 1))
    echo "FAILED  $1: $2"
    shift 2
    if [ $# -gt 0 ]; then cat "$@" 2>/dev/null | head -n 12; fi
}
skip() {
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

# The header of src/, which all of them compile. newer PROGRAM SOURCE: than both.
header=build/include/dtrain.h
newer() { [ -e "$1" ] && [ "$1" -nt $header ] && [ "$1" -nt "$2" ]; }

# Clang compiles the implementation in seconds when it does not optimise: for what must link and run.
quickest=${CC:-cc}
if command -v clang >/dev/null 2>&1; then quickest=clang; fi
