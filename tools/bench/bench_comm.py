#!/usr/bin/env python3
"""What ./build.sh bench comm runs: all-reduce over TCP beside gloo, Open MPI and plain sockets.

    ./build.sh bench comm [--ranks 2,4,8] [--sizes 4,1k,4M] [--rounds 7] [--ms 200] [--quick]
                          [--netns] [--only-netns] [--only-shared] [--congestion reno,bbr] [--gbps 0,1]
                          [--hosts 2x2] [--json FILE]

Float32 sums over loopback TCP. With --netns (as root) also between network namespaces, as between hosts. They
are joined by veth and a bridge, then shaped to 1 Gbit/s by tbf. They run by reno, and by bbr, which is many
hosts' default and paces connections that are idle between operations. In each round the peers take turns:
dtrain with CRC, gloo, Open MPI over TCP, dtrain without CRC. Then come the same bytes over plain sockets
(tools/bench/dtbench_comm_raw.h), and for the first number of ranks iperf3. Then processes over shared memory
beside Open MPI over its own, and threads of one process beside memcpy. Peers that are not there are left out.
Tables have the medians of the rounds' times, and of the rounds' ratios, with their least and largest; ratios
above 1 mean that dtrain is faster. --hosts 2x2 measures two hosts of two ranks each alone (as root): what
hierarchical and shared memory save beside direct. The time on processors is that of the rank that works most;
Open MPI's has its waiting in it, for it spins.
"""

import argparse
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import bench # it has gone to the root of the repository
from bench_comm_aims import print_aims, size_text
from bench_net import TIMEOUT_SECONDS, Hosts, Loopback, Namespaces, congestion_controls, run

SIZES = [4, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20, 256 << 20]
QUICK_SIZES = [1 << 10, 64 << 10, 4 << 20]
THREAD_SIZES = [1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
IPERF_SECONDS = 2
PEERS = ("crc", "gloo", "openmpi", "none", "raw") # a round's order
HOW_TO_GET = {"gloo": "PyTorch with gloo (Debian: apt install python3-torch)",
              "openmpi": "Open MPI (Debian: apt install openmpi-bin libopenmpi-dev)",
              "iperf3": "iperf3 (Debian: apt install iperf3)"}


def results(text):
    """The JSON lines; dtrun puts the rank before them."""
    return [json.loads(line[line.index("{"):]) for line in text.splitlines() if "{" in line]


# ---- peers


class Gloo:
    """A PyTorch that waits for work."""

    def __init__(self, python):
        self.process = subprocess.Popen([python, "tools/bench/bench_gloo.py"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, start_new_session=True)
        self.version = self.read(60)["version"]

    def read(self, timeout):
        with selectors.DefaultSelector() as wait:
            wait.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if wait.select(timeout) else b""
        if not line:
            raise bench.Failure("gloo: no answer")
        return json.loads(line)

    def measure(self, net, ranks, ms, sizes):
        job = {"ranks": ranks, "ms": ms, "sizes": sizes, "timeout": TIMEOUT_SECONDS,
               "port": free_port(), "address": net.address, "interface": net.interface,
               "namespaces": net.namespaces}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        found = []
        while "bytes" in (answer := self.read(TIMEOUT_SECONDS + 20)):
            found.append(answer)
        if "error" in answer:
            raise bench.Failure(f"gloo, {ranks} ranks: {answer['error']}")
        return found

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def find_gloo():
    """With the first Python that has it: Debian's is not always the first in the path."""
    for python in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        test = "import torch.distributed as d; assert d.is_gloo_available()"
        if shutil.which(python) and not subprocess.run([python, "-c", test],
                                                       stderr=subprocess.DEVNULL).returncode:
            return Gloo(python)
    return None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_openmpi(net, ranks, ms, sizes, btl="tcp"):
    # It spins while it waits. With one processor for each rank it yields to no one, unless it is
    # asked to. Then a machine that does anything else makes it up to a hundred times slower.
    return results(run([*net.mpirun(ranks), "--mca", "btl", f"{btl},self", "--mca", "pml", "ob1", "--mca",
                        "mpi_yield_when_idle", 1, "build/mpi_allreduce", ms, *sizes]))


def iperf(net, both_ways):
    """What one stream of TCP carries, in GB/s and in one direction; the sum when two directions are busy."""
    port = free_port()
    server = subprocess.Popen(net.inside(0, ["iperf3", "-s", "-1", "-p", str(port)]),
                              stdout=subprocess.DEVNULL)
    client = net.inside(1, ["iperf3", "-J", "-c", net.address, "-p", port, "-t", IPERF_SECONDS,
                            *(["--bidir"] if both_ways else [])])
    try:
        for attempt in range(20): # until the server listens
            time.sleep(0.1)
            with contextlib.suppress(bench.Failure):
                end = json.loads(run(client, 30))["end"]
                sums = [v for k, v in end.items() if k.startswith("sum_received")]
                return statistics.fmean(s["bits_per_second"] for s in sums) / 8e9
        raise bench.Failure("iperf3: no connection")
    finally:
        server.kill()
        server.wait()


class Peers:
    def __init__(self):
        self.gloo = find_gloo()
        self.missing = set()
        if not self.gloo:
            self.missing.add("gloo")
        if not shutil.which("mpirun") or not os.path.exists("build/mpi_allreduce"):
            self.missing.add("openmpi")
        if not shutil.which("iperf3"):
            self.missing.add("iperf3")
        os.environ["DTRAIN_SHARED_MEMORY"] = "off" # what is compared is TCP; bench_shared asks for it
        for name in sorted(self.missing):
            print(f"left out, for it is not there: {HOW_TO_GET[name]}")
        if os.geteuid() == 0: # mpirun refuses root without two permissions
            os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def measure(self, peer, net, ranks, ms, sizes):
        """{bytes: result}; empty when the peer is not there or fails, which ours must not."""
        if peer in self.missing:
            return {}
        try:
            if peer == "gloo":
                found = self.gloo.measure(net, ranks, ms, sizes)
            elif peer == "openmpi":
                found = run_openmpi(net, ranks, ms, sizes)
            else:
                arguments = ["raw", net.address] if peer == "raw" else ["tcp", peer]
                found = results(run(net.ours(ranks, [*arguments, ms, *sizes])))
        except bench.Failure as failure:
            if peer in ("crc", "none"):
                raise
            print(failure)
            return {}
        return {f["bytes"]: f for f in found}


# ---- tables


def line_of(size, ranks, rounds):
    """One size's medians, and its ratios: a round's peer time / our time."""
    line = {"bytes": size, "ranks": ranks, "us": {}, "cpu_us": {}, "ratio": {}}
    for peer in PEERS:
        pairs = [(r["crc"][size]["us"], r[peer][size]["us"]) for r in rounds if size in r[peer]]
        if pairs:
            ratios = [theirs / ours for ours, theirs in pairs]
            line["us"][peer] = statistics.median(theirs for _, theirs in pairs)
            line["cpu_us"][peer] = statistics.median(r[peer][size]["cpu_us"] for r in rounds
                                                     if size in r[peer])
            line["ratio"][peer] = [statistics.median(ratios), min(ratios), max(ratios)]
    ours = line["us"]["crc"]
    line["algbw"] = size / ours * 1e-3 # GB/s
    line["busbw"] = line["algbw"] * 2 * (ranks - 1) / ranks
    return line


def ratio_text(line, peer):
    if peer not in line["ratio"]:
        return "-"
    median, least, most = line["ratio"][peer]
    return f"{median:.2f} ({least:.2f}-{most:.2f})"


def bench_ranks(peers, net, ranks, options):
    print(f"\nAll-reduce, {net.title}, {ranks} ranks: microseconds, GB/s; dtrain's speed to the others'",
          flush=True)
    widths = (7, 10, 7, 7, 10, 10, 10, 18, 18, 18, 18, 25)
    bench.row("size", "dtrain", "algbw", "busbw", "gloo", "Open MPI", "sockets", "to gloo",
              "to Open MPI", "to no CRC", "to sockets", "cpu us: ours/gloo/MPI", widths=widths)
    rounds, streams = [], {"one": [], "both": []}
    for _ in range(options.rounds):
        rounds.append({p: peers.measure(p, net, ranks, options.ms, options.sizes) for p in PEERS})
        if ranks == options.ranks[0] and "iperf3" not in peers.missing:
            streams["one"].append(iperf(net, False))
            streams["both"].append(iperf(net, True))
    lines = [line_of(size, ranks, rounds) for size in options.sizes]
    for line in lines:
        us = [f"{line['us'][p]:.1f}" if p in line["us"] else "-" for p in ("gloo", "openmpi", "raw")]
        bench.row(size_text(line["bytes"]), f"{line['us']['crc']:.1f}", f"{line['algbw']:.3f}",
                  f"{line['busbw']:.3f}", *us,
                  *(ratio_text(line, p) for p in ("gloo", "openmpi", "none", "raw")),
                  "/".join(f"{line['cpu_us'][p]:.0f}" if p in line["cpu_us"] else "-"
                           for p in ("crc", "gloo", "openmpi")), widths=widths)
    ours = [f for r in rounds for p in ("crc", "none") for f in r[p].values()]
    report = {"net": net.title, "gbps": net.gbps, "ranks": ranks, "lines": lines, "rounds": rounds,
              **{k: max(f[k] for f in ours) for k in ("allocations", "scratch_bytes", "held_bytes")}}
    print(f"dtrain: {report['allocations']} allocations in the timed loops; scratch at most "
          f"{report['scratch_bytes'] / 1024:.0f} KiB, all that it holds {report['held_bytes'] / 1024:.0f} "
          "KiB a rank; sums right")
    if streams["one"]:
        report["iperf3"] = {k: statistics.median(v) for k, v in streams.items()}
        print(f"iperf3: {report['iperf3']['one']:.3f} GB/s one way, {report['iperf3']['both']:.3f} each "
              "way when both are busy")
    return report


SHARED_PEERS = {"shared": "dtrain", "none": "no CRC", "tcp": "its TCP", "vader": "Open MPI",
                "openmpi": "its TCP"}


def measure_shared(peers, peer, ranks, ms, sizes):
    if peer in ("vader", "openmpi"):
        btl = "vader" if peer == "vader" else "tcp"
        found = [] if "openmpi" in peers.missing else run_openmpi(Loopback(), ranks, ms, sizes, btl)
    else:
        setting = "off" if peer == "tcp" else "required"
        found = results(run(["env", f"DTRAIN_SHARED_MEMORY={setting}", *Loopback().ours(ranks, [
            "tcp", "none" if peer == "none" else "crc", ms, *sizes])]))
    return {f["bytes"]: f for f in found}


def bench_shared(peers, options):
    """Ranks of one host, by memory that they share."""
    print("\nAll-reduce of processes over shared memory: microseconds; dtrain's speed to Open MPI's over "
          "its own (vader) and over TCP", flush=True)
    widths = (7, 5, 10, 10, 10, 10, 10, 18, 18)
    bench.row("size", "ranks", *SHARED_PEERS.values(), "to Open MPI", "to its TCP", widths=widths)
    lines = []
    for ranks in options.ranks:
        rounds = [{p: measure_shared(peers, p, ranks, options.ms, options.sizes) for p in SHARED_PEERS}
                  for _ in range(options.rounds)]
        for size in options.sizes:
            us = {p: statistics.median(r[p][size]["us"] for r in rounds)
                  for p in SHARED_PEERS if size in rounds[0][p]}
            ratios = {}
            for peer in ("vader", "openmpi"):
                if peer in us:
                    each = [r[peer][size]["us"] / r["shared"][size]["us"] for r in rounds]
                    ratios[peer] = [statistics.median(each), min(each), max(each)]
            line = {"bytes": size, "ranks": ranks, "us": us, "ratio": ratios}
            lines.append(line)
            bench.row(size_text(size), ranks, *(f"{us[p]:.1f}" if p in us else "-" for p in SHARED_PEERS),
                      *(ratio_text(line, p) for p in ("vader", "openmpi")), widths=widths)
    return lines


# What a host's ranks go through, and the algorithm.
HOSTS_PEERS = {"direct, TCP": ("off", "crc:direct"), "direct": ("default", "crc:direct"),
               "hierarchical": ("default", "crc:hierarchical"), "by default": ("default", "crc"),
               "Open MPI": None}


def measure_hosts(peers, peer, net, ranks, ms, sizes):
    if not HOSTS_PEERS[peer]:
        found = []
        try:
            if "openmpi" not in peers.missing:
                found = run_openmpi(net, ranks, ms, sizes, "vader,tcp")
        except bench.Failure as failure: # the round is without it
            print(failure)
    else:
        memory, how = HOSTS_PEERS[peer]
        found = results(run(["env", f"DTRAIN_SHARED_MEMORY={memory}",
                             *net.ours(ranks, ["tcp", how, ms, *sizes])]))
    return {f["bytes"]: f["us"] for f in found}


def bench_hosts(peers, net, options):
    """Some ranks on each of some hosts."""
    ranks = net.count * net.places
    print(f"\nAll-reduce, {net.title}: microseconds; hierarchical's speed to the others'", flush=True)
    widths = (7, *[13] * len(HOSTS_PEERS), 18, 18, 18)
    bench.row("size", *HOSTS_PEERS, "to direct, TCP", "to direct", "to Open MPI", widths=widths)
    lines = []
    rounds = [{p: measure_hosts(peers, p, net, ranks, options.ms, options.sizes) for p in HOSTS_PEERS}
              for _ in range(options.rounds)]
    for size in options.sizes:
        line = {"bytes": size, "ranks": ranks, "us": {}, "ratio": {}}
        for peer in HOSTS_PEERS:
            each = [r[peer][size] for r in rounds if size in r[peer]]
            ratios = [r[peer][size] / r["hierarchical"][size] for r in rounds if size in r[peer]]
            if each:
                line["us"][peer] = statistics.median(each)
                line["ratio"][peer] = [statistics.median(ratios), min(ratios), max(ratios)]
        lines.append(line)
        bench.row(size_text(size), *(f"{line['us'][p]:.1f}" if p in line["us"] else "-" for p in HOSTS_PEERS),
                  *(ratio_text(line, p) for p in ("direct, TCP", "direct", "Open MPI")), widths=widths)
    return {"net": net.title, "lines": lines}


def bench_threads(options):
    print("\nAll-reduce of threads of one process: microseconds, GB/s (bytes of a rank / time); memcpy: "
          "each thread copies the same number of bytes", flush=True)
    widths = (7, 5, 10, 7, 10, 7, 18)
    bench.row("size", "ranks", "dtrain", "GB/s", "memcpy", "GB/s", "share of memcpy", widths=widths)
    lines = []
    for ranks in options.ranks:
        rounds = [results(run(["build/dtbench_comm", "threads", ranks, options.ms, *THREAD_SIZES]))
                  for _ in range(options.rounds)]
        for size in THREAD_SIZES:
            us = {what: [f["us"] for r in rounds for f in r if (f["what"], f["bytes"]) == (what, size)]
                  for what in ("threads", "memcpy")}
            shares = [copy / ours for ours, copy in zip(us["threads"], us["memcpy"])]
            medians = [statistics.median(us[what]) for what in ("threads", "memcpy")]
            line = {"bytes": size, "ranks": ranks, "us": dict(zip(us, medians)),
                    "share": [statistics.median(shares), min(shares), max(shares)]}
            lines.append(line)
            bench.row(size_text(size), ranks, f"{medians[0]:.2f}", f"{size / medians[0] * 1e-3:.2f}",
                      f"{medians[1]:.3f}", f"{size / medians[1] * 1e-3:.2f}",
                      "{:.2f} ({:.2f}-{:.2f})".format(*line["share"]), widths=widths)
        allocations = max(f["allocations"] for r in rounds for f in r)
        print(f"{allocations} allocations in the timed loops of {ranks} threads; sums right")
    return lines


# ---- all of it


def namespaces(options):
    """One network for each limit and congestion control that is there."""
    there, nets = congestion_controls(), []
    for name in options.congestion.split(","):
        if name in there:
            nets += [Namespaces(max(options.ranks), gbps or None, name) for gbps in options.gbps]
        else:
            print(f"left out: this kernel has no congestion control {name}, only {', '.join(there)}")
    return nets


def bench_all_hosts(peers, options):
    found = []
    for gbps in options.gbps:
        with Hosts(*options.hosts, gbps or None, options.congestion.split(",")[0]) as net:
            found.append(bench_hosts(peers, net, options))
    return found


def parse_size(text):
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    unit = units.get(text[-1:].lower(), 1)
    size = int(text[:-1] if unit > 1 else text) * unit
    if size < 4 or size % 4 or size > 1 << 30:
        raise bench.Failure(f"a size is 4 bytes to 1 GB in steps of 4, not '{text}'")
    return size


def parse():
    parser = argparse.ArgumentParser(prog="./build.sh bench comm", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default=None, help="2,4,8")
    parser.add_argument("--sizes", default=None, help="bytes, with k and M: 4,1k,64k,4M")
    parser.add_argument("--rounds", type=int, default=None, help="7")
    parser.add_argument("--ms", type=int, default=None, help="of one size in one round: 200")
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks, 3 sizes, 3 short rounds")
    parser.add_argument("--netns", action="store_true", help="also between network namespaces (root)")
    parser.add_argument("--only-netns", action="store_true", help="between network namespaces alone")
    parser.add_argument("--congestion", default="reno,bbr", help="TCP's in the namespaces: reno,bbr")
    parser.add_argument("--gbps", default="0,1", help="what a namespace may send; 0 = no limit: 0,1")
    parser.add_argument("--hosts", metavar="HxR", help="only H hosts of R ranks: 2x2 (root)")
    parser.add_argument("--only-shared", action="store_true", help="over shared memory alone")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    options = parser.parse_args()
    quick = options.quick
    options.sizes = ([parse_size(t) for t in options.sizes.split(",")] if options.sizes
                     else QUICK_SIZES if quick else SIZES)
    options.ranks = [int(t) for t in (options.ranks or ("2,4" if quick else "2,4,8")).split(",")]
    options.rounds = options.rounds or (3 if quick else 7)
    options.ms = options.ms or (50 if quick else 200)
    options.gbps = [float(t) for t in options.gbps.split(",")]
    if min(options.ranks) < 2 or max(options.ranks) > 64:
        raise bench.Failure("ranks are 2 to 64")
    if (options.netns or options.only_netns or options.hosts) and os.geteuid() != 0:
        raise bench.Failure("--netns and --hosts make network namespaces, which takes root")
    if options.hosts:
        try:
            options.hosts = tuple(map(int, options.hosts.split("x")))
            in_range = 2 <= options.hosts[0] <= 8 and 1 <= options.hosts[1] <= 8
        except (ValueError, IndexError):
            in_range = False
        if not in_range or len(options.hosts) != 2:
            raise bench.Failure("--hosts is 2 to 8 hosts by 1 to 8 ranks: 2x2")
    return options


def main():
    options = parse()
    processors = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"{bench.cpu_name()}, {processors} processors; {options.rounds} rounds; load {load:.2f}")
    if load > 0.5 * processors:
        print("The machine is busy with something else: trust the ratios, not the times.")
    peers = Peers()
    report = {"cpu": bench.cpu_name(), "processors": processors, "load": load, "all_reduce": [],
              "gloo": peers.gloo.version if peers.gloo else None}
    nets = [] if options.only_netns or options.only_shared else [contextlib.nullcontext(Loopback())]
    if options.netns or options.only_netns:
        nets += namespaces(options)
    try:
        if options.hosts:
            report["hosts"] = bench_all_hosts(peers, options)
            return
        for net in nets:
            with net as entered:
                report["all_reduce"] += [bench_ranks(peers, entered, r, options) for r in options.ranks]
        if not options.only_netns:
            report["shared"] = bench_shared(peers, options)
        if not options.only_netns and not options.only_shared:
            report["threads"] = bench_threads(options)
    finally:
        if peers.gloo:
            peers.gloo.close()
        if options.json:
            with open(options.json, "w", encoding="utf-8") as f:
                json.dump(report, f, indent=1)
                f.write("\n")
    print_aims(report["all_reduce"])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)) # so that started processes end, too
    try:
        main()
    except bench.Failure as failure:
        sys.exit(f"bench comm: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
