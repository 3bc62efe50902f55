#!/bin/sh
# Tests of examples/allreduce.c under the launchers that are installed, by hand, and over two
# network namespaces. Another rank is written in Python from docs/protocol.md (peer.py). build.sh
# calls it; names that contain one of the arguments are run, or all. The last line is three numbers:
# passed, failed, skipped. Nothing here takes longer than its timeout, all of it well below a
# minute.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=${LAUNCH_WORK:-build/launch}
rm -rf $work
mkdir -p $work
example=${ALLREDUCE:-$PWD/build/allreduce}
dtrun=${DTRUN:-$PWD/build/dtrun}
filters=$*
# What a launcher around this script said is not for the ranks started here.
for name in $(env | sed -n 's/^\(DTRAIN_[A-Z_]*\|OMPI_[A-Z_]*\|PMIX*_[A-Z_0-9]*\|SLURM_[A-Z_]*\|RANK\|WORLD_SIZE\|MASTER_[A-Z]*\)=.*/\1/p'); do
    case $name in DTRAIN_TEST_*) ;; *) unset "$name" ;; esac
done

. tests/scripts/wanted.sh

# has TEST COMMAND: whether it is installed; else the test skips.
has() {
    command -v "$2" >/dev/null 2>&1 && return 0
    skip "$1" "there is no $2"
    return 1
}

# free_port: one that nobody listens on, another each time.
last_port=$((20000 + $$ % 8000))
free_port() {
    last_port=$((last_port + 1))
    while grep -qi ":$(printf %04X $last_port) 00000000:0000 0A" /proc/net/tcp; do
        last_port=$((last_port + 1))
    done
}

# all_right FILE SIZE LAUNCHER: each rank has said once that its sum is right.
all_right() {
    rank=0
    while [ $rank -lt "$2" ]; do
        line="rank $rank of $2 (launcher: $3): the sum of 100000 floats is right"
        [ "$(grep -c "$line" "$1")" = 1 ] || return 1
        rank=$((rank + 1))
    done
    [ "$(grep -c 'floats is right' "$1")" = "$2" ]
}

# launched TEST LAUNCHER COMMAND...: four ranks, in 20 s.
launched() {
    test=$1 launcher=$2
    shift 2
    timeout -k 1 20 "$@" >"$work/$test.out" 2>"$work/$test.err"
    status=$?
    if [ $status = 0 ] && all_right "$work/$test.out" 4 "$launcher"; then
        pass
    else
        fail "$test" "exit status $status" "$work/$test.out" "$work/$test.err"
    fi
}

make_key() { # FILE
    (umask 077 && od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' >"$1")
}

# ---- launchers

dtrun_test() {
    wanted "$1" || return 0
    launched "$1" dtrain "$dtrun" -n 4 "$example"
}

mpirun_test() {
    wanted "$1" && has "$1" mpirun || return 0
    if ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
        skip "$1" "mpirun is not Open MPI's"
        return 0
    fi
    set -- "$1" --oversubscribe
    if [ "$(id -u)" = 0 ]; then set -- "$@" --allow-run-as-root; fi
    test=$1
    shift
    launched "$test" ompi mpirun "$@" -n 4 "$example"
}

hydra_test() {
    wanted "$1" && has "$1" mpiexec.hydra || return 0
    launched "$1" pmi mpiexec.hydra -n 4 "$example"
}

# One Slurm for all of its tests: NAME and how srun is called.
slurm_tests() {
    some=no
    for test in $slurm_names; do if wanted "$test"; then some=yes; fi; done
    if [ $some = no ]; then return 0; fi
    cat >$work/steps.sh <<'STEPS'
step() {
    timeout -k 1 20 srun -n 4 --overcommit --mpi="$2" "$3" >"$1.out" 2>"$1.err"
    echo $? >"$1.status"
}
step "$1/launch_srun_starts_four_ranks" none "$2"
step "$1/launch_srun_with_pmi2_starts_four_ranks" pmi2 "$2"
step "$1/launch_srun_with_pmix_starts_four_ranks" pmix "$2"
STEPS
    timeout -k 5 100 sh tests/scripts/slurm.sh sh $work/steps.sh $work "$example" 2>$work/slurm.err
    status=$?
    for test in $slurm_names; do
        wanted "$test" || continue
        if [ $status = 77 ]; then
            skip "$test" "$(head -n 1 $work/slurm.err)"
            continue
        fi
        code=$(cat "$work/$test.status" 2>/dev/null)
        case $test in
        launch_srun_with_pmi2*) launcher=pmi ;;
        launch_srun_with_pmix*) launcher=pmix ;;
        *) launcher=slurm ;;
        esac
        if [ "$code" = 0 ] && all_right "$work/$test.out" 4 $launcher; then
            pass
        elif grep -q 'can not load PMIx library' "$work/$test.err"; then
            skip "$test" "Slurm's plugin finds no libpmix.so (in Debian: libpmix-dev)"
        elif grep -q "\"$(uname -n)\": Name or service not known" "$work/$test.err"; then
            skip "$test" "this host's name $(uname -n) is neither in /etc/hosts nor in the DNS"
        else
            fail "$test" "exit status ${code:-none}" "$work/$test.out" "$work/$test.err" \
                $work/slurm.err
        fi
    done
}
slurm_names='launch_srun_starts_four_ranks launch_srun_with_pmi2_starts_four_ranks
    launch_srun_with_pmix_starts_four_ranks'

# Debian 12's torchrun needs -r and -t, or dies under its Python before it starts anything.
torchrun_command='--no_python --nproc_per_node 4 -r 1 -t 1'
torchrun_status=
torchrun_works() { # TEST
    has "$1" torchrun || return 1
    if [ -z "$torchrun_status" ]; then
        # shellcheck disable=SC2086 # words are meant
        timeout -k 1 30 torchrun $torchrun_command true >$work/torchrun.out 2>&1
        torchrun_status=$?
    fi
    [ $torchrun_status = 0 ] && return 0
    skip "$1" "torchrun cannot start anything: $(tail -n 1 $work/torchrun.out)"
    return 1
}

torchrun_test() { # TEST VARIABLE...
    name=$1
    wanted "$name" && torchrun_works "$name" || return 0
    shift
    # shellcheck disable=SC2086
    launched "$name" torch env "$@" torchrun $torchrun_command "$example"
}

# ---- by hand

plain_test() {
    wanted "$1" || return 0
    free_port
    for rank in 0 1 2 3; do
        RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$last_port timeout -k 1 20 \
            "$example" >>"$work/$1.out" 2>>"$work/$1.err" &
    done
    wait
    if all_right "$work/$1.out" 4 torch; then pass; else
        fail "$1" "not all ranks are right" "$work/$1.out" "$work/$1.err"
    fi
}

# incomplete WHAT VARIABLES...: must fail at once and name WHAT.
incomplete() {
    what=$1
    shift
    env "$@" timeout -k 1 5 "$example" >"$work/incomplete.out" 2>&1
    status=$?
    [ $status = 1 ] && grep -q "$what" "$work/incomplete.out"
}

incomplete_test() {
    wanted "$1" || return 0
    if incomplete '; set MASTER_PORT, or' RANK=0 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 &&
        incomplete '; set RANK, MASTER_ADDR, MASTER_PORT, or' WORLD_SIZE=4 &&
        incomplete 'WORLD_SIZE' RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 &&
        incomplete '; set OMPI_COMM_WORLD_RANK, or' OMPI_COMM_WORLD_SIZE=4 &&
        incomplete 'variables disagree' RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 PMI_RANK=1 \
            PMI_SIZE=2; then
        pass
    else
        fail "$1" "exit status $status, wanted: $what" "$work/incomplete.out"
    fi
}

# What each batch script of Slurm has, without srun.
batch_test() {
    wanted "$1" || return 0
    SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0 timeout -k 1 5 "$example" >"$work/$1.out" \
        2>"$work/$1.err"
    status=$?
    if [ $status = 0 ] && all_right "$work/$1.out" 1 none &&
        grep -q 'start the program with srun' "$work/$1.err"; then
        pass
    else
        fail "$1" "exit status $status" "$work/$1.out" "$work/$1.err"
    fi
}

missing_test() {
    wanted "$1" || return 0
    free_port
    make_key $work/key
    begun=$(date +%s)
    DTRAIN_RANK=0 DTRAIN_WORLD_SIZE=3 DTRAIN_RDZV=tcp://127.0.0.1:$last_port DTRAIN_TIMEOUT=1 \
        DTRAIN_SECRET_FILE=$work/key timeout -k 1 10 "$example" >"$work/$1.out" 2>&1
    status=$?
    if [ $status = 1 ] && grep -q 'these ranks are missing: 1, 2' "$work/$1.out" &&
        [ $(($(date +%s) - begun)) -le 3 ]; then
        pass
    else
        fail "$1" "exit status $status" "$work/$1.out"
    fi
}

file_test() {
    wanted "$1" || return 0
    make_key $work/key
    for rank in 3 2 1 0; do
        DTRAIN_RANK=$rank DTRAIN_WORLD_SIZE=4 DTRAIN_RDZV=file://$PWD/$work/meet \
            DTRAIN_SECRET_FILE=$work/key timeout -k 1 20 "$example" >>"$work/$1.out" \
            2>>"$work/$1.err" &
    done
    wait
    if all_right "$work/$1.out" 4 dtrain; then pass; else
        fail "$1" "not all ranks are right" "$work/$1.out" "$work/$1.err"
    fi
}

# Two network namespaces are two hosts: other addresses, and no loopback between them.
two_hosts_test() {
    wanted "$1" && has "$1" ip || return 0
    one=dtlaunch$$a two=dtlaunch$$b
    for try in "netns add $one" "netns add $two" "netns exec $one true" "netns exec $two true" \
        "link add dtv$$ netns $one type veth peer name dtv$$ netns $two" \
        "-n $one addr add 10.231.7.1/24 dev dtv$$" "-n $two addr add 10.231.7.2/24 dev dtv$$" \
        "-n $one link set dtv$$ up" "-n $two link set dtv$$ up"; do
        # shellcheck disable=SC2086 # words are meant
        ip $try 2>"$work/$1.err" && continue
        ip netns del $one 2>/dev/null
        ip netns del $two 2>/dev/null
        skip "$1" "\"ip $try\" failed: $(head -n 1 "$work/$1.err")"
        return 0
    done
    make_key $work/key
    for rank in 0 1; do
        host=$one
        if [ $rank = 1 ]; then host=$two; fi
        DTRAIN_RANK=$rank DTRAIN_WORLD_SIZE=2 DTRAIN_RDZV=tcp://10.231.7.1:29400 \
            DTRAIN_SECRET_FILE=$work/key timeout -k 1 20 ip netns exec $host "$example" \
            >>"$work/$1.out" 2>>"$work/$1.err" &
    done
    wait
    # Without a key: both say how to make one, and nobody waits.
    DTRAIN_RANK=1 DTRAIN_WORLD_SIZE=2 DTRAIN_RDZV=tcp://10.231.7.1:29400 timeout -k 1 5 \
        ip netns exec $two "$example" >>"$work/$1.nokey" 2>&1
    status=$?
    ip netns del $one
    ip netns del $two
    if all_right "$work/$1.out" 2 dtrain && [ $status = 1 ] &&
        grep -q 'openssl rand -hex 32' "$work/$1.nokey"; then
        pass
    else
        fail "$1" "not both ranks are right" "$work/$1.out" "$work/$1.err" "$work/$1.nokey"
    fi
}

# An ip that makes namespaces and cannot enter them, as in many containers. The test above skips,
# and names its attempts.
no_entry_test() {
    wanted "$1" || return 0
    mkdir -p $work/bin
    cat >$work/bin/ip <<'IP'
#!/bin/sh
[ "$1 $2" != "netns exec" ] || { echo "mount of /sys failed: Operation not permitted" >&2; exit 1; }
IP
    chmod 755 $work/bin/ip
    PATH=$PWD/$work/bin:$PATH LAUNCH_WORK=$work/inner sh tests/scripts/launch.sh launch_two_hosts \
        >"$work/$1.out" 2>&1
    if grep -q 'skipped launch_two_hosts.* "ip netns exec dtlaunch.* true" failed: mount of /sys' \
        "$work/$1.out" && [ "$(tail -n 1 "$work/$1.out")" = "0 0 1" ]; then pass; else
        fail "$1" "it did not skip with the reason" "$work/$1.out"
    fi
}

# Root without rights gets no advice to be root.
no_rights_test() {
    wanted "$1" && has "$1" setpriv && has "$1" ip || return 0
    [ -x build/dtest_comm ] || { skip "$1" "there is no build/dtest_comm"; return 0; }
    why=$(setpriv --bounding-set -all --inh-caps -all true 2>&1) ||
        { skip "$1" "rights cannot be given up: $why"; return 0; }
    setpriv --bounding-set -all --inh-caps -all build/dtest_comm dead_link names_of_all_kinds \
        of_one_user_and_others >"$work/$1.out" 2>&1
    if [ "$(grep -c '^skipped .* [Oo]peration not permitted' "$work/$1.out")" = 3 ] &&
        grep -q '0 passed, 0 failed, 3 skipped' "$work/$1.out"; then pass; else
        fail "$1" "not all three skip with their reason" "$work/$1.out"
    fi
}

# ---- against another implementation

# peer TEST COUNT STATUS-OF-C KEY WORDS...: rank 0 in C with COUNT floats, rank 1 in Python.
peer() {
    test=$1 count=$2 wanted_status=$3 key=$4
    shift 4
    free_port
    make_key $work/key
    make_key $work/other_key
    DTRAIN_RANK=0 DTRAIN_WORLD_SIZE=2 DTRAIN_RDZV=tcp://127.0.0.1:$last_port DTRAIN_TIMEOUT=3 \
        DTRAIN_LINK=off DTRAIN_SECRET_FILE=$work/key timeout -k 1 20 "$example" "$count" >"$work/$test.out" 2>&1 &
    process=$!
    timeout -k 1 20 python3 tests/comm/peer.py 127.0.0.1 $last_port "$work/$key" "$@" \
        >"$work/$test.peer" 2>&1
    python_status=$?
    wait $process
    status=$?
    [ $python_status = 0 ] && [ $status = "$wanted_status" ]
}

peer_test() { # TEST TEXT-OF-C PEER-WORDS...
    wanted "$1" && has "$1" python3 || return 0
    name=$1 text=$2
    shift 2
    if peer "$name" "$@" && grep -q "$text" "$work/$name.out"; then
        pass
    else
        fail "$name" "C ended with $status, Python with $python_status" "$work/$name.out" \
            "$work/$name.peer"
    fi
}

[ -x "$example" ] || { echo "FAILED  launch: there is no $example"; echo "0 1 0"; exit 1; }
dtrun_test launch_dtrun_starts_four_ranks
mpirun_test launch_mpirun_starts_four_ranks
hydra_test launch_mpiexec_of_mpich_starts_four_ranks
slurm_tests
torchrun_test launch_torchrun_starts_four_ranks # its agent's store is where they meet
free_port
torchrun_test launch_torchrun_with_a_port_starts_four_ranks DTRAIN_PORT=$last_port
plain_test launch_plain_processes_join
incomplete_test launch_an_incomplete_set_is_named
batch_test launch_a_batch_script_is_a_single_process
missing_test launch_missing_ranks_are_named
file_test launch_a_shared_folder_is_enough
two_hosts_test launch_two_hosts_join_with_a_key_file
no_entry_test launch_namespaces_that_cannot_be_entered_skip_with_the_reason
no_rights_test launch_tests_without_rights_name_their_attempts
peer_test launch_a_rank_in_python_joins_and_sums 'right' 5 0 key 5
peer_test launch_a_rank_in_python_sums_more_than_goes_early 'right' 16384 0 key 16384
peer_test launch_a_rank_in_python_posts_late 'right' 1024 0 key 1024 --late
peer_test launch_a_wrong_key_is_refused 'the keys differ' 5 1 other_key --refused 'the keys differ'
peer_test launch_changed_data_ends_the_group 'changed in transit' 5 1 key --corrupt
echo "$passed $failed $skipped"
