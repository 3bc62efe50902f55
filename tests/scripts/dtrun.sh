#!/bin/sh
# Tests of tools/dtrun.c with shell scripts for ranks: what they get, what comes out, and that nobody
# is left. build.sh calls it; names that contain one of the arguments are run, or all. The last line
# is three numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
work=build/test_dtrun
mkdir -p $work/tmp
dtrun=${DTRUN:-$PWD/build/dtrun}
filters=$*
TMPDIR=$PWD/$work/tmp # dtrun's folders are made here, so that those left behind are seen
export TMPDIR

if [ ! -x "$dtrun" ] || [ tools/dtrun.c -nt "$dtrun" ]; then
    ${CC:-cc} -O1 tools/dtrun.c -o "$dtrun" || exit 1
fi

. tests/scripts/wanted.sh

# check CONDITION-WORDS...: of the test that runs now.
check() {
    if ! "$@"; then
        problem="$*"
        return 1
    fi
}

# run WORDS...: dtrun's output in $out and $err, its status in $status.
run() {
    timeout -k 1 20 "$dtrun" "$@" >$work/out 2>$work/err
    status=$?
    out=$(cat $work/out) err=$(cat $work/err)
}

now_ms() { date +%s%3N; }

# awaits FILE LINES: until that many lines are in it, or 10 s.
awaits() {
    tries=0
    while [ "$(wc -l <"$1" 2>/dev/null || echo 0)" -lt "$2" ] && [ $tries -lt 200 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
}

# gone FILE: none of the processes named in it lives after 2 s.
gone() {
    tries=0
    while [ $tries -lt 40 ]; do
        living=0
        while read -r process; do
            [ -e "/proc/$process" ] && ! grep -q '^State:.Z' "/proc/$process/status" 2>/dev/null &&
                living=1
        done <"$1"
        [ $living = 0 ] && return 0
        sleep 0.05
        tries=$((tries + 1))
    done
    return 1
}

ranks_get_their_numbers_and_a_place_to_meet() {
    run -n 3 sh -c 'echo $DTRAIN_RANK/$DTRAIN_WORLD_SIZE $DTRAIN_LOCAL_RANK/$DTRAIN_LOCAL_SIZE \
        $DTRAIN_LAUNCHER ${DTRAIN_RDZV%/*/meet}'
    check [ $status = 0 ] &&
        check [ "$(sort $work/out)" = "[0] 0/3 0/3 dtrain file://$TMPDIR
[1] 1/3 1/3 dtrain file://$TMPDIR
[2] 2/3 2/3 dtrain file://$TMPDIR" ]
}

ranks_share_one_key_that_no_variable_holds() {
    read='dd if=/proc/self/fd/$DTRAIN_SECRET_FD bs=64 count=1 2>/dev/null | tr -d "\n"; echo'
    run -n 2 sh -c "$read"
    first=$(sed -n 's/^\[0\] //p' $work/out)
    check [ ${#first} = 64 ] && check [ "$(sed -n 's/^\[1\] //p' $work/out)" = "$first" ] &&
        check [ -z "$(echo "$first" | tr -d 0-9a-f)" ] || return 1
    run -n 1 sh -c "$read"
    check [ "$out" != "[0] $first" ] || return 1 # another job, another key
    DTRAIN_SECRET=aaaa DTRAIN_SECRET_FILE=/x DTRAIN_INSECURE=1 run -n 1 sh -c \
        'env | grep -c "DTRAIN_SECRET=\|DTRAIN_SECRET_FILE\|DTRAIN_INSECURE"'
    check [ "$out" = "[0] 0" ]
}

insecure_ranks_get_no_key() {
    run -n 2 --insecure sh -c 'echo $DTRAIN_INSECURE ${DTRAIN_SECRET_FD-none}'
    check [ "$(sort $work/out)" = "[0] 1 none
[1] 1 none" ]
}

lines_come_out_whole_with_their_rank() {
    run -n 4 sh -c 'i=0; while [ $i -lt 500 ]; do echo "line $i of rank $DTRAIN_RANK"; i=$((i+1)); done
        printf "no end"'
    check [ $status = 0 ] && check [ "$(wc -l <$work/out)" = 2004 ] || return 1
    for rank in 0 1 2 3; do
        check [ "$(grep -c "^\[$rank\] line [0-9]* of rank $rank\$" $work/out)" = 500 ] || return 1
    done
    check [ "$(grep -c '^\[[0-3]\] no end$' $work/out)" = 4 ] || return 1
    run -n 1 sh -c 'head -c 10000 /dev/zero | tr "\0" x; echo; echo after'
    check [ "$(grep -o x $work/out | wc -l)" = 10000 ] && check [ "$(tail -n 1 $work/out)" = "[0] after" ]
}

errors_and_output_stay_separate() {
    run -n 1 sh -c 'echo one; echo two >&2'
    check [ "$out" = "[0] one" ] && check [ "$err" = "[0] two" ]
}

the_first_rank_that_fails_ends_all() {
    start=$(now_ms)
    run -n 3 sh -c 'echo $$; [ $DTRAIN_RANK = 1 ] && { sleep 0.5; exit 7; }; sleep 20 & wait'
    check [ $status = 7 ] && check [ $(($(now_ms) - start)) -lt 4000 ] || return 1
    sed 's/^.* //' $work/out >$work/processes
    check grep -q 'rank 1 exited with status 7' $work/err && check gone $work/processes
}

a_rank_that_a_signal_ends_has_a_status_above_128() {
    run -n 2 sh -c '[ $DTRAIN_RANK = 0 ] && kill -SEGV $$; sleep 20'
    check [ $status = 139 ] && check grep -q 'rank 0 was ended by signal 11' $work/err
}

ranks_that_ignore_a_signal_are_killed_after_5_seconds() {
    start=$(now_ms)
    run -n 2 sh -c 'trap "" TERM; [ $DTRAIN_RANK = 1 ] && { sleep 0.5; exit 3; }; while :; do sleep 0.2; done'
    took=$(($(now_ms) - start))
    check [ $status = 3 ] && check [ $took -ge 4900 ] && check [ $took -lt 8000 ]
}

signals_are_passed_to_all_ranks() {
    : >$work/ready
    "$dtrun" -n 2 sh -c 'trap "echo got USR1; exit 0" USR1; echo x >>'$work'/ready
        for i in $(seq 200); do sleep 0.05; done; exit 1' >$work/out 2>$work/err &
    process=$!
    awaits $work/ready 2
    kill -USR1 $process
    wait $process
    status=$?
    check [ $status = 0 ] && check [ "$(grep -c 'got USR1' $work/out)" = 2 ]
}

ending_dtrun_ends_the_ranks() {
    for number in INT TERM HUP; do
        : >$work/ready
        # dash starts background jobs with SIGINT ignored; dtrun catches it all the same
        "$dtrun" -n 2 sh -c 'echo $$ >>'$work'/ready; sleep 20' >$work/out 2>$work/err &
        process=$!
        awaits $work/ready 2
        kill -$number $process
        wait $process
        status=$?
        check [ $status -gt 128 ] && check gone $work/ready || return 1
    done
}

no_rank_outlives_a_dtrun_that_is_killed() {
    : >$work/ready
    "$dtrun" -n 2 sh -c 'echo $$ >>'$work'/ready; for i in $(seq 200); do sleep 0.1; done' \
        >$work/out 2>$work/err &
    process=$!
    awaits $work/ready 2
    kill -KILL $process
    wait $process 2>/dev/null
    check gone $work/ready
}

# left: how many folders of dtrun there are.
left() { find "$TMPDIR" -maxdepth 1 -name 'dtrun*' | wc -l; }

the_folder_of_a_dtrun_that_was_killed_is_removed_by_the_next_one() {
    rm -rf "$TMPDIR"/*
    : >$work/ready
    for i in 1 2; do
        "$dtrun" -n 1 sh -c 'touch ${DTRAIN_RDZV#file://} ${DTRAIN_RDZV#file://}.00.tmp
            echo $$ >>'$work'/ready; sleep 20' >$work/out 2>$work/err &
        eval process$i=$!
    done
    awaits $work/ready 2
    kill -KILL $process1
    wait $process1 2>/dev/null
    mkdir -m 700 "$TMPDIR/dtrun.mine" "$TMPDIR/dtrun.aaaaaa" "$TMPDIR/dtrun.bbbbbb"
    echo kept >"$TMPDIR/dtrun.aaaaaa/notes" # a user's own, of such a name
    chmod 755 "$TMPDIR/dtrun.bbbbbb"        # no dtrun has made this one
    ln -s "$TMPDIR/dtrun.mine" "$TMPDIR/dtrun.cccccc"
    before=$(left)
    run -n 1 true
    after=$(left)
    kill -TERM $process2 # it lives, and has its folder until it ends
    wait $process2 2>/dev/null
    check [ $before = 6 ] && check [ $after = 5 ] && check [ "$(left)" = 4 ] &&
        check [ -e "$TMPDIR/dtrun.aaaaaa/notes" ] && check [ -d "$TMPDIR/dtrun.cccccc" ]
    result=$?
    rm -rf "$TMPDIR"/*
    return $result
}

dtruns_that_begin_together_do_not_remove_each_others_folders() {
    : >$work/ready
    for i in 1 2 3 4 5 6 7 8; do
        (for k in 1 2 3 4 5; do
            "$dtrun" -n 1 sh -c 'touch "${DTRAIN_RDZV#file://}"' &&
                echo x >>$work/ready
        done) 2>>$work/err &
    done
    wait
    check [ "$(wc -l <$work/ready)" = 40 ] && check [ "$(left)" = 0 ]
}

processes_that_a_rank_leaves_are_ended() {
    : >$work/ready
    run -n 2 sh -c 'sleep 20 & echo $! >>'$work'/ready'
    check [ $status = 0 ] && check gone $work/ready
}

a_closed_output_ends_no_rank() {
    : >$work/ready
    timeout -k 1 20 "$dtrun" -n 2 sh -c 'i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done
        echo x >>'$work'/ready' 2>$work/err | head -n 1 >/dev/null
    check [ "$(wc -l <$work/ready)" = 2 ]
}

wrong_arguments_are_reported() {
    for words in "" "-n 2" "-n 0 true" "-n x true" "-n 2x true" "-n 513 true" "--what true" "true" \
        "-n"; do
        run $words
        check [ $status = 2 ] && check grep -q '^usage:' $work/err || return 1
    done
    run --help
    check [ $status = 0 ] && check grep -q 'not a scheduler' $work/out
}

a_missing_program_is_reported() {
    run -n 2 ./no-such-program
    check [ $status = 127 ] && check grep -q 'no-such-program: No such file' $work/err || return 1
    run -n 1 /etc/passwd
    check [ $status = 126 ]
}

standard_input_belongs_to_rank_0() {
    echo "hello" | timeout -k 1 20 "$dtrun" -n 2 sh -c '[ $DTRAIN_RANK = 1 ] || sleep 0.3; cat' >$work/out 2>$work/err
    check [ "$(cat $work/out)" = "[0] hello" ]
}

nothing_is_left_in_the_temporary_folder() {
    run -n 2 sh -c 'exit 1'
    check [ -z "$(ls "$TMPDIR")" ]
}

for test in ranks_get_their_numbers_and_a_place_to_meet ranks_share_one_key_that_no_variable_holds \
    insecure_ranks_get_no_key lines_come_out_whole_with_their_rank errors_and_output_stay_separate \
    the_first_rank_that_fails_ends_all a_rank_that_a_signal_ends_has_a_status_above_128 \
    ranks_that_ignore_a_signal_are_killed_after_5_seconds signals_are_passed_to_all_ranks \
    ending_dtrun_ends_the_ranks no_rank_outlives_a_dtrun_that_is_killed \
    the_folder_of_a_dtrun_that_was_killed_is_removed_by_the_next_one \
    dtruns_that_begin_together_do_not_remove_each_others_folders \
    processes_that_a_rank_leaves_are_ended a_closed_output_ends_no_rank \
    wrong_arguments_are_reported a_missing_program_is_reported \
    standard_input_belongs_to_rank_0 nothing_is_left_in_the_temporary_folder; do
    wanted "dtrun_$test" || continue
    problem=
    if $test; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  dtrun_$test: $problem"
        head -n 8 $work/err
    fi
done
echo "$passed $failed $skipped"
