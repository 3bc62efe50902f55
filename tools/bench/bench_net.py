"""Where ./build.sh bench comm runs ranks: on loopback, or in network namespaces as if on hosts. The congestion
control is named, as machines' defaults differ, and so do the figures.

Both say how a command is run beside a rank (`inside`), and what starts ranks of ours and of Open MPI
(`ours`, `mpirun`). Namespaces take root, and are removed at the end.
"""

import contextlib
import os
import signal
import subprocess

import bench

TIMEOUT_SECONDS = 300 # of one peer's run over all sizes


def run(command, timeout=TIMEOUT_SECONDS):
    """Its standard output. What it has started ends with it."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException as stop: # ^C does not reach it, in a session of its own
        for number in (signal.SIGTERM, signal.SIGKILL): # launchers end their ranks on the first
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(6)
        if isinstance(stop, subprocess.TimeoutExpired):
            raise bench.Failure(f"{command[0]}: not done after {timeout} s") from None
        raise
    if process.returncode:
        raise bench.Failure(f"{' '.join(map(str, command[:6]))}: {err.strip()[-300:]}")
    return out


def congestion_controls():
    """Those that any process may use here."""
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control", encoding="ascii") as f:
        return f.read().split()


class Loopback:
    title, namespaces, address, interface, gbps = "loopback", None, "127.0.0.1", "lo", None

    def inside(self, rank, command):
        return command

    def ours(self, ranks, arguments):
        return ["build/dtrun", "-n", ranks, "build/dtbench_comm", *arguments]

    def mpirun(self, ranks):
        return ["mpirun", "--oversubscribe", "--mca", "btl_tcp_if_include", "lo", "-n", ranks]


class Namespaces:
    """As many hosts as ranks: each has a network of its own with eth0; a bridge joins them. gbps:
    what each may send, or None; congestion: TCP's default there."""
    namespaces, interface, switch = "dtbench", "eth0", "dtbenchsw"

    def __init__(self, count, gbps, congestion):
        self.count, self.gbps, self.congestion, self.address = count, gbps, congestion, self.at(0)
        self.title = f"namespaces, {congestion}" + (f", {gbps:g} Gbit/s" if gbps else "")

    @staticmethod
    def at(rank):
        return f"10.213.77.{rank + 1}"

    def __enter__(self):
        self.__exit__() # what a killed run has left
        run(["ip", "netns", "add", self.switch])
        run(["ip", "-n", self.switch, "link", "add", "br0", "up", "type", "bridge"])
        for rank in range(self.count):
            name = f"{self.namespaces}{rank}"
            ip = ["ip", "-n", name]
            run(["ip", "netns", "add", name])
            run([*ip, "link", "set", "lo", "up"])
            run([*ip, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{rank}", "netns",
                 self.switch])
            run(["ip", "-n", self.switch, "link", "set", f"p{rank}", "master", "br0", "up"])
            run([*ip, "addr", "add", f"{self.at(rank)}/24", "dev", "eth0"])
            run([*ip, "link", "set", "eth0", "up"])
            run(self.inside(rank, ["sysctl", "-q", "-w",
                                   f"net.ipv4.tcp_congestion_control={self.congestion}"]))
            if self.gbps: # the burst holds what TCP hands over at once, 64 KiB
                run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                     f"{self.gbps}gbit", "burst", "256kb", "latency", "20ms"])
        return self

    def __exit__(self, *_):
        for name in [self.switch, *(f"{self.namespaces}{r}" for r in range(64))]:
            if os.path.exists(f"/run/netns/{name}"):
                run(["ip", "netns", "del", name])

    def inside(self, rank, command):
        return ["ip", "netns", "exec", f"{self.namespaces}{rank}", *command]

    def ours(self, ranks, arguments):
        script = ("export DTRAIN_LOCAL_RANK=0 DTRAIN_LOCAL_SIZE=1 DTRAIN_IFNAME=eth0; "
                  f"exec ip netns exec {self.namespaces}$DTRAIN_RANK build/dtbench_comm \"$@\"")
        return ["build/dtrun", "-n", ranks, "sh", "-c", script, "sh", *arguments]

    def mpirun(self, ranks):
        # Its daemons go to the "hosts" by an agent in place of ssh. Each takes the machine for its
        # own and would bind its rank to the first processor.
        agent = os.path.abspath("build/netns_agent")
        with open(agent, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\nhost=$1\nshift\n"
                    f"exec ip netns exec {self.namespaces}$((${{host##*.}} - 1)) "
                    "unshare --uts sh -c \"hostname dtbench-$host; $*\"\n")
        os.chmod(agent, 0o755)
        hosts = ",".join(self.at(r) for r in range(ranks))
        return self.inside(0, ["mpirun", "--host", hosts, "--bind-to", "none", "--mca",
                               "plm_rsh_agent", agent, "--mca", "btl_tcp_if_include", "eth0", "--mca",
                               "oob_tcp_if_include", "eth0", "-n", ranks])


class Hosts(Namespaces):
    """Several ranks in each network, as on a host with several devices."""

    def __init__(self, hosts, places, gbps, congestion):
        super().__init__(hosts, gbps, congestion)
        self.places = places
        self.title = f"{hosts} hosts of {places} ranks, {self.title}"

    def ours(self, ranks, arguments):
        script = (f"export DTRAIN_LOCAL_RANK=$((DTRAIN_RANK % {self.places})) "
                  f"DTRAIN_LOCAL_SIZE={self.places} DTRAIN_IFNAME=eth0; exec ip netns exec "
                  f"{self.namespaces}$((DTRAIN_RANK / {self.places})) build/dtbench_comm \"$@\"")
        return ["build/dtrun", "-n", ranks, "sh", "-c", script, "sh", *arguments]

    def mpirun(self, ranks):
        command = super().mpirun(self.count)
        hosts = ",".join(f"{self.at(h)}:{self.places}" for h in range(self.count))
        return [*command[:command.index("--host") + 1], hosts, *command[command.index("--host") + 2:-1],
                ranks]
