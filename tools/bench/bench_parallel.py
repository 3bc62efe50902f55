#!/usr/bin/env python3
"""What ./build.sh bench parallel runs: data-parallel training on two cores beside PyTorch DDP.

    ./build.sh bench parallel [--models mlp,cnn,mlp10m] [--rows idle,busy,threads,processes,torch,ddp]
                              [--rounds 13] [--seconds 1] [--quick] [--net] [--only-net] [--json FILE]

Whole steps with Adam, 64 samples a replica, one thread and one core each, data in memory. mlp is
784-128-10, cnn PyTorch's MNIST example, mlp10m 784-2048-2048-2048-10, ten million parameters.

idle       one replica; the other core has nothing to do (in turn on either core)
busy       two jobs of one replica at once, one on each core: the mean of the two
threads    one process with two replicas
processes  two processes with one replica each, over loopback TCP
torch      PyTorch, one process; the other core has nothing to do
ddp        PyTorch's DistributedDataParallel with gloo, two processes, its own bucket settings

In each round every row is measured once, in an order that rotates. A rate is the samples of the whole
job over the wall's time. Ratios are of one round: reported are their median, least and largest. The
speed-up of two replicas is over twice the rate of a busy core.

With --net (as root) also overlap. Two processes are in network namespaces, joined by a link that tbf holds to 1
Gbit/s or 100 Mbit/s. Four modes take turns, step by step. serial exchanges gradients after the backward pass,
train while it runs. comm is only the exchange of the same buckets, fwd+bwd only a forward and backward pass (on
both ranks at once); tail is what of it follows the first bucket's gradients. The overlap is (serial - train) /
min(comm, tail), of the medians of a round.
"""

import argparse
import contextlib
import json
import os
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import bench # it has gone to the root of the repository
from bench_comm import free_port
from bench_net import Namespaces

OURS, DDP = "build/dtbench_parallel", "tools/bench/bench_ddp.py"
ROWS = {"idle": "1 replica, other core idle", "busy": "1 replica, other core busy",
        "threads": "2 replicas, threads", "processes": "2 replicas, processes",
        "torch": "PyTorch, 1 process", "ddp": "PyTorch DDP, 2 processes"}
PEERS = ("torch", "ddp")
MODELS = ("mlp", "cnn", "mlp10m")
BATCH = 64 # of a replica
# model, batch of a replica, Gbit/s: the exchange and the backward pass are of one order in each.
NET_CASES = (("cnn", 64, 1.0), ("mlp10m", 1024, 1.0), ("cnn", 512, 0.1))
NET_PARTS = ("serial_ms", "train_ms", "comm_ms", "backward_ms", "tail_ms")
SPEEDUP_AIM, OVERLAP_AIM = {"cnn": 0.92}, 0.7
TIMEOUT_SECONDS = 60 # of one answer, beyond the requested time
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Job:
    """Processes that wait for work. All get the commands; the first one answers."""

    def __init__(self, *commands, environment=None):
        self.processes, self.errors = [], tempfile.TemporaryFile()
        for command in commands:
            self.processes.append(subprocess.Popen(
                list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self.errors, start_new_session=True,
                env={**os.environ, **(environment or {})}))
        try:
            self.ready = self.answer(0)
        except BaseException:
            self.close()
            raise

    def ask(self, what, seconds):
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError): # the answer says why
                process.stdin.write(f"{what} {seconds}\n".encode())
                process.stdin.flush()

    def answer(self, seconds):
        stdout = self.processes[0].stdout
        with selectors.DefaultSelector() as wait:
            wait.register(stdout, selectors.EVENT_READ)
            line = stdout.readline() if wait.select(TIMEOUT_SECONDS + 20 * seconds) else b""
        if b"{" not in line:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip()
            raise bench.Failure(f"{' '.join(self.processes[0].args[:8])}: no answer. {said[-500:]}")
        return json.loads(line[line.index(b"{"):]) # dtrun puts the rank before it

    def measure(self, what, seconds):
        self.ask(what, seconds)
        return self.answer(seconds)

    def close(self):
        """At the end of its input a process ends by itself; what does not is ended."""
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            for number in (None, signal.SIGTERM, signal.SIGKILL): # dtrun ends its ranks on the second
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    if number:
                        os.killpg(process.pid, number)
                    process.wait(10)
                    break
        self.errors.close()


def find_torch():
    """The first Python that has it with gloo: Debian's is not always the first in the path."""
    test = "import torch.distributed as d; assert d.is_gloo_available()"
    for python in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        if shutil.which(python) and not subprocess.run([python, "-c", test],
                                                       stderr=subprocess.DEVNULL).returncode:
            return python
    print(bench.HOW_TO_GET_TORCH)
    return None


class Machine:
    """How jobs are started on its first two cores."""

    def __init__(self, torch):
        self.torch = torch
        self.cores = sorted(os.sched_getaffinity(0))[:2]
        if len(self.cores) < 2:
            raise bench.Failure("two processors are needed, and there is one")
        if not shutil.which("taskset"):
            raise bench.Failure("taskset is missing (Debian: util-linux)")

    def pinned(self, command, *which):
        return ["taskset", "-c", ",".join(str(self.cores[w]) for w in which), *command]

    def alone(self, model, which):
        return Job(self.pinned([OURS, model, "cpu", BATCH], which))

    def threads(self, model):
        return Job(self.pinned([OURS, model, "cpu:2", BATCH, "pin"], 0, 1))

    def ranks(self, model, batch=BATCH, net=None):
        """net: Namespaces, a rank in each; None = loopback."""
        enter = f"ip netns exec {net.namespaces}$DTRAIN_RANK" if net else ""
        host = "export DTRAIN_LOCAL_RANK=0 DTRAIN_LOCAL_SIZE=1 DTRAIN_IFNAME=eth0; " if net else ""
        script = (f"core=$((DTRAIN_RANK ? {self.cores[1]} : {self.cores[0]})); {host}"
                  f"exec {enter} taskset -c $core \"$@\"")
        return Job(["build/dtrun", "-n", 2, "sh", "-c", script, "sh", OURS, model, "cpu", batch])

    def pytorch(self, model, world_size):
        port = free_port()
        return Job(*(self.pinned([self.torch, "-B", DDP, model, BATCH, rank, world_size, port], rank)
                     for rank in range(world_size)), environment=ONE_THREAD)


def open_rows(machine, model, rows, stack):
    """{row: its jobs}"""
    make = {"idle": lambda: alone, "busy": lambda: alone,
            "threads": lambda: [machine.threads(model)],
            "processes": lambda: [machine.ranks(model)],
            "torch": lambda: [machine.pytorch(model, 1)],
            "ddp": lambda: [machine.pytorch(model, 2)]}
    alone = []
    if "idle" in rows or "busy" in rows:
        for which in range(2):
            alone.append(machine.alone(model, which))
            stack.callback(alone[-1].close)
    jobs = {}
    for row in rows:
        jobs[row] = make[row]()
        if jobs[row] is not alone:
            stack.callback(jobs[row][0].close)
    return jobs


def measure_row(row, jobs, number, seconds):
    if row == "idle":
        return jobs[number % 2].measure("train", seconds)
    for job in jobs:
        job.ask("train", seconds)
    answers = [job.answer(seconds) for job in jobs]
    if row == "busy":
        fields = ("samples_per_s", "ms", "wait_ms", "data_ms")
        return {**answers[0], **{f: statistics.fmean(a[f] for a in answers) for f in fields}}
    return answers[0]


# ---- tables: what they print is Markdown, too


def print_row(cells, widths):
    print("| " + " | ".join(str(c).rjust(w) if i else str(c).ljust(w)
                            for i, (c, w) in enumerate(zip(cells, widths))) + " |", flush=True)


def print_head(cells, widths):
    print_row(cells, widths)
    print("|" + "|".join("-" * (w + 2) for w in widths) + "|", flush=True)


def spread(values):
    return [statistics.median(values), min(values), max(values)] if values else None


def spread_text(found):
    return "{:.3f} ({:.2f}-{:.2f})".format(*found) if found else "-"


def ratios(rounds, over, under, times=1):
    """Of each round that has both."""
    return spread([r[over]["samples_per_s"] / (times * r[under]["samples_per_s"])
                   for r in rounds if over in r and under in r])


# row: what its rate is compared with, how often that counts, and what the column says
SPEEDUPS = {"busy": ("idle", 1, "of idle"), "threads": ("busy", 2, "of 2 x busy"),
            "processes": ("busy", 2, "of 2 x busy"), "ddp": ("torch", 2, "of 2 x 1 process")}
TO_PEER = {"idle": "torch", "threads": "ddp", "processes": "ddp"}


def bench_model(machine, model, options):
    rounds = []
    with contextlib.ExitStack() as stack:
        jobs = open_rows(machine, model, options.rows, stack)
        ready = {row: jobs[row][0].ready for row in options.rows}
        for number in range(options.rounds):
            turn = number % len(options.rows)
            order = options.rows[turn:] + options.rows[:turn]
            rounds.append({row: measure_row(row, jobs[row], number, options.seconds)
                           for row in order})
    lines = {}
    for row in options.rows:
        line = lines[row] = {f: statistics.median(r[row][f] for r in rounds)
                             for f in ("samples_per_s", "ms", "wait_ms", "data_ms")
                             if f in rounds[0][row]}
        if row in SPEEDUPS:
            under, times, _ = SPEEDUPS[row]
            line["speedup"] = ratios(rounds, row, under, times)
        if row in TO_PEER:
            line["to_peer"] = ratios(rounds, row, TO_PEER[row])
    print_model(model, lines, options)
    return {"model": model, "ready": ready, "lines": lines, "rounds": rounds}


def print_model(model, lines, options):
    print(f"\n{model}, {BATCH} samples a replica, Adam; medians of {options.rounds} rounds (ratios: median, "
          "least and largest); wait: for gradients, after the backward pass\n")
    widths = (27, 9, 8, 8, 8, 18, 17, 18)
    print_head(("", "samples/s", "ms", "wait ms", "data ms", "speed-up", "", "to PyTorch / DDP"), widths)
    for row, line in lines.items():
        print_row((ROWS[row], f"{line['samples_per_s']:.0f}", f"{line['ms']:.3f}",
                   *(f"{line[f]:.3f}" if f in line else "-" for f in ("wait_ms", "data_ms")),
                   spread_text(line.get("speedup")),
                   SPEEDUPS[row][2] if line.get("speedup") else "",
                   spread_text(line.get("to_peer"))), widths)


# ---- overlap


def overlap_of(found):
    return (found["serial_ms"] - found["train_ms"]) / min(found["comm_ms"], found["tail_ms"])


def bench_net_case(machine, model, batch, gbps, options):
    with Namespaces(2, gbps) as net, contextlib.closing(machine.ranks(model, batch, net)) as job:
        rounds = [job.measure("overlap", options.net_seconds) for _ in range(options.net_rounds)]
        ready = job.ready
    return {"model": model, "batch": batch, "gbps": gbps, "ready": ready, "rounds": rounds,
            **{part: statistics.median(r[part] for r in rounds) for part in NET_PARTS},
            "overlap": spread([overlap_of(r) for r in rounds])}


def bench_net(machine, options):
    print("\nOverlap, 2 processes in network namespaces: milliseconds, medians of "
          f"{options.net_rounds} rounds; overlap = (serial - train) / min(comm, tail)\n", flush=True)
    widths = (8, 5, 8, 5, 7, 7, 7, 7, 8, 7, 18)
    print_head(("model", "batch", "link", "MB", "buckets", "serial", "train", "comm", "fwd+bwd", "tail",
                "overlap"), widths)
    cases = []
    for model, batch, gbps in NET_CASES:
        if model not in options.models:
            continue
        case = bench_net_case(machine, model, batch, gbps, options)
        cases.append(case)
        ready = case["ready"]
        print_row((model, batch, f"{gbps:g} Gb/s", f"{ready['gradient_bytes'] * 1e-6:.1f}",
                   ready["buckets"], *(f"{case[part]:.1f}" for part in NET_PARTS),
                   spread_text(case["overlap"])), widths)
    return cases


# ---- all of it


def print_aim(met, text):
    print(f"  {'met ' if met else 'MISSED'}  {text}")


def print_aims(report):
    print("\nAims, of the medians:")
    for found in report["models"]:
        for row in ("threads", "processes"):
            line = found["lines"].get(row, {})
            aim = SPEEDUP_AIM.get(found["model"])
            if line.get("speedup") and aim:
                print_aim(line["speedup"][0] >= aim, f"{found['model']}, {ROWS[row]}: "
                          f"{line['speedup'][0]:.3f} of twice a busy core's rate, aim {aim}")
            if line.get("to_peer"):
                print_aim(line["to_peer"][0] > 1, f"{found['model']}, {ROWS[row]}: "
                          f"{line['to_peer'][0]:.2f} of DDP's samples/s, aim above 1")
    for case in report.get("net", []):
        print_aim(case["overlap"][0] >= OVERLAP_AIM, f"{case['model']}, batch {case['batch']}, "
                  f"{case['gbps']:g} Gbit/s: overlap {case['overlap'][0]:.2f}, aim {OVERLAP_AIM}")


def chosen(text, names, what):
    words = text.split(",") if text else list(names)
    for word in words:
        if word not in names:
            raise bench.Failure(f"unknown {what} '{word}'; there are {', '.join(names)}")
    return words


def parse():
    parser = argparse.ArgumentParser(prog="./build.sh bench parallel", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="mlp,cnn,mlp10m")
    parser.add_argument("--rows", help=",".join(ROWS))
    parser.add_argument("--rounds", type=int, help="13, of the overlap 5")
    parser.add_argument("--seconds", type=float, help="of one row in one round: 1, of the overlap 5")
    parser.add_argument("--quick", action="store_true", help="2 rounds of half a second")
    parser.add_argument("--net", action="store_true", help="also overlap, over limited links (root)")
    parser.add_argument("--only-net", action="store_true", help="overlap alone (root)")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    options = parser.parse_args()
    options.models = chosen(options.models, MODELS, "model")
    options.rows = chosen(options.rows, ROWS, "row")
    options.net_rounds = options.rounds or (2 if options.quick else 5)
    options.rounds = options.rounds or (2 if options.quick else 13)
    options.net_seconds = options.seconds or (1.0 if options.quick else 5.0)
    options.seconds = options.seconds or (0.5 if options.quick else 1.0)
    if (options.net or options.only_net) and os.geteuid() != 0:
        raise bench.Failure("--net makes network namespaces, which takes root")
    return options


def main():
    options = parse()
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"{bench.cpu_name()}, {processors} processors; {options.seconds:g} s a measurement; "
          f"load {load:.2f}")
    if load > 0.25 * processors:
        print("The machine is busy with something else: two replicas need both cores to themselves.")
    wants_torch = not options.only_net and any(row in PEERS for row in options.rows)
    torch = find_torch() if wants_torch else None
    if not torch:
        options.rows = [row for row in options.rows if row not in PEERS]
    machine = Machine(torch)
    report = {"cpu": bench.cpu_name(), "processors": processors, "load": load,
              "seconds": options.seconds, "models": []}
    try:
        for model in [] if options.only_net else options.models:
            report["models"].append(bench_model(machine, model, options))
        if options.net or options.only_net:
            report["net"] = bench_net(machine, options)
    finally:
        if options.json:
            with open(options.json, "w", encoding="utf-8") as f:
                json.dump(report, f, indent=1)
                f.write("\n")
    print_aims(report)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)) # so that started processes end, too
    try:
        main()
    except bench.Failure as failure:
        sys.exit(f"bench parallel: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
