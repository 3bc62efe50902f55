#!/bin/sh
# Runs a command inside a real Slurm of one host that lives while the command does:
#     tests/scripts/slurm.sh srun -n 4 --overcommit --mpi=pmi2 ./app
# munged, slurmctld and slurmd run as root from a temporary folder, on ports of their own. They are
# ended and removed afterwards. Exit status: the command's; 77 when Slurm cannot run here (with a
# line that says why). SLURM_SH_CPUS: how many CPUs the node claims to have (default: nproc).
set -u
say() { echo "slurm.sh: $*" >&2; }
PATH=$PATH:/usr/sbin:/sbin
[ $# -gt 0 ] || { say "which command?"; exit 2; }
for tool in munged munge slurmctld slurmd srun scontrol; do
    command -v $tool >/dev/null 2>&1 || { say "there is no $tool"; exit 77; }
done
id munge >/dev/null 2>&1 || { say "there is no user munge"; exit 77; }
why=$(setpriv --reuid=munge --regid=munge --clear-groups true 2>&1) ||
    { say "munged cannot be started as user munge: $why"; exit 77; }

folder=$(mktemp -d /tmp/dtrain-slurm.XXXXXX) || exit 77
host=$(hostname -s)
munged_pid='' controller_pid='' daemon_pid=''

# stop PID: politely, then not; returns when it is gone.
stop() {
    [ -n "$1" ] || return 0
    kill "$1" 2>/dev/null
    tries=0
    while kill -0 "$1" 2>/dev/null && [ $tries -lt 50 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -9 "$1" 2>/dev/null
    wait "$1" 2>/dev/null
}

tear_down() {
    stop "$daemon_pid"
    stop "$controller_pid"
    stop "$munged_pid"
    rm -rf "$folder"
}
trap tear_down EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

give_up() {
    say "$1"
    tail -n 5 "$folder"/*.log >&2 2>/dev/null
    exit 77
}

# ---- munged: wants its folders owned by the user it runs as, and not open to others
chmod 755 "$folder"
mkdir "$folder/munge" "$folder/state" "$folder/spool"
dd if=/dev/urandom of="$folder/munge/key" bs=128 count=1 2>/dev/null
chown -R munge: "$folder/munge"
chmod 755 "$folder/munge"
chmod 400 "$folder/munge/key"
setpriv --reuid=munge --regid=munge --clear-groups munged --foreground \
    --socket="$folder/munge/socket" --key-file="$folder/munge/key" \
    --log-file="$folder/munge/log" --pid-file="$folder/munge/pid" \
    --seed-file="$folder/munge/seed" >"$folder/munged.log" 2>&1 &
munged_pid=$!

# free_port FROM: the first port that nobody listens on; Slurm has no way to be given a socket.
free_port() {
    port=$1
    while grep -qi ":$(printf %04X "$port") 00000000:0000 0A" /proc/net/tcp; do
        port=$((port + 1))
    done
    echo "$port"
}
controller_port=$(free_port $((20000 + $$ % 5000 * 2)))
daemon_port=$(free_port $((controller_port + 1)))
cpus=${SLURM_SH_CPUS:-$(nproc)}

cat >"$folder/slurm.conf" <<CONF
ClusterName=dtrain
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$daemon_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmctldTimeout=300
SlurmdTimeout=300
ReturnToService=2
KillWait=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus
PartitionName=debug Nodes=$host Default=YES OverSubscribe=FORCE:8 MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$folder/slurm.conf"

tries=0
until munge -n --socket="$folder/munge/socket" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || give_up "munged does not answer"
    sleep 0.1
done
slurmctld -D -c -f "$SLURM_CONF" >"$folder/slurmctld.log" 2>&1 &
controller_pid=$!
slurmd -D -c -f "$SLURM_CONF" >"$folder/slurmd.log" 2>&1 &
daemon_pid=$!

tries=0
until sinfo -h -o %T 2>/dev/null | grep -q idle; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || give_up "the node does not become idle in 30 s"
    kill -0 $controller_pid 2>/dev/null || give_up "slurmctld ended"
    kill -0 $daemon_pid 2>/dev/null || give_up "slurmd ended"
    sleep 0.1
done
"$@"
