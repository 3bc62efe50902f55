#!/usr/bin/env python3
"""What ./build.sh bench runs: dtrain beside OpenBLAS, PyTorch and JAX, in one run, at equal threads.

    ./build.sh bench [gemm] [steps] [create] [frame] [vulkan] [--json FILE] [--rounds N] [--threads LIST]

gemm     SGEMM through build/dtbench, which times ours and OpenBLAS's in turn in one process; one
         thread by its own processor time, several by the wall's clock
steps    whole training steps, build/dtbench, and PyTorch and JAX that wait, in turn, each at its best;
         the smallest also through a trainer; and what they add to a process at most
create   what a graph, its store and a program cost to make, by number of nodes; and a store's values
frame    training steps by 2 ms of budget a frame: median and 99 % of 1,000 frames
vulkan   products, convolutions and steps on every Vulkan device found, software ones too

With none of these words all are run. Ratios above 1 mean that dtrain is faster.
"""

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.chdir(ROOT)
DTBENCH = "build/dtbench"
PARTS = ("gemm", "steps", "create", "frame", "vulkan")
STEPS = {"xor": 2000, "mlp_tiny": 1000, "mlp": 300, "mlp_wide": 20, "cnn": 16, "gpt_small": 20,
         "gpt_medium": 4, "attention": 8, "lstm": 20,
         "mlp_wide:bf16": 20, "cnn:bf16": 16, "gpt_small:bf16": 20, "gpt_medium:bf16": 4,
         "attention:bf16": 8, "lstm:bf16": 20}
TRAINED = ("xor", "mlp") # also through a trainer: so small that its own work shows
# The aims: the least ratio to PyTorch, and to JAX.
AIMS = {"xor": (50.0, 30.0), "mlp_tiny": (12.0, 5.0), "mlp": (2.5, 2.0), "mlp_wide": (1.35, 1.5),
        "cnn": (1.5, None), "gpt_small": (2.2, None), "gpt_medium": (2.2, None),
        "attention": (2.5, None), "lstm": (3.0, None), "mlp_wide:bf16": (1.3, None),
        "cnn:bf16": (1.8, None), "gpt_small:bf16": (1.6, None), "gpt_medium:bf16": (1.2, None),
        "attention:bf16": (1.4, None), "lstm:bf16": (1.3, None)}
MEMORY = ("cnn", 20) # workload, steps
MEMORY_AIM = 0.5 # of PyTorch's, at most
# To OpenBLAS, least time against least time: the mean of all cells, and each.
GEMM_AIM, GEMM_CELL_AIM = 0.95, 0.85
# The most that a cell counts for: OpenBLAS's threads stall on a busy machine, which is not dtrain's
# merit.
RATIO_MOST = 2.0
# Of software drivers, which most machines have.
VULKAN_STEPS = {"mlp": 20, "cnn": 3}
# A chain, the same with gradients, one tensor that all read, a parameter a node, a transformer's layers;
# and the aim in ms of making the program.
CREATE = (("maps", 64000, 300), ("trained", 64000, 300), ("fan", 32000, 300), ("params", 32000, 300),
          ("layers", 128, 100))
FILL = (32, 400) # millions of normal values, ms at most
VULKAN_AIMS = {"product": 6.0, "conv2d": 4.0}
SWIFTSHADER = "/usr/lib/chromium/vk_swiftshader_icd.json"
HOW_TO_GET = {"torch": "In Debian: apt install python3-torch libopenblas0-openmp; the newest by pip in "
              "build/venv", "jax": "By pip in build/venv"}
TIMEOUT_SECONDS = 600


class Failure(Exception):
    pass


def dtbench(*arguments, environment=None):
    """The results of one call; a failed one gives its last line of complaint instead."""
    done = subprocess.run([DTBENCH, *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS,
                          env={**os.environ, **(environment or {})})
    if done.returncode:
        raise Failure(f"dtbench {' '.join(map(str, arguments))}: {done.stderr.strip()[-300:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Peer:
    """A framework in a Python that waits for work."""

    def __init__(self, python, *script):
        self.python, self.script = python, script
        self.process = subprocess.Popen([python, *script], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        if not first:
            raise Failure(f"{python} {' '.join(script)} ended at once")
        self.info = json.loads(first)

    @staticmethod
    def python_with(module):
        """The first Python that has it: Debian's is not always the first in the path."""
        for python in dict.fromkeys(["build/venv/bin/python3", sys.executable, "/usr/bin/python3"]):
            if shutil.which(python) and not subprocess.run(
                    [python, "-c", f"import {module}"], stderr=subprocess.DEVNULL).returncode:
                return python
        print(f"{module} is not there: its columns stay empty. {HOW_TO_GET[module]}", flush=True)
        return None

    def train(self, name, threads, steps):
        """One result of each of its variants."""
        results = []
        for variant in self.info["variants"]:
            self.process.stdin.write(f"{name} {threads} {steps} {variant}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            if not line:
                raise Failure(f"{' '.join(self.script)} ended in {name}, {threads} threads, {variant}")
            results.append(json.loads(line))
        return results

    def memory(self, name, threads, steps):
        """In a process of its own."""
        arguments = [self.python, *self.script, "memory", name, threads, steps]
        done = subprocess.run(list(map(str, arguments)), stdout=subprocess.PIPE, text=True,
                              timeout=TIMEOUT_SECONDS, check=True)
        return json.loads(done.stdout)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def find_torch():
    python = Peer.python_with("torch")
    return Peer(python, "tools/bench/bench_torch.py") if python else None


def find_jax(threads_list):
    """One for each number of threads, which is decided when it starts."""
    python = Peer.python_with("jax")
    return {n: Peer(python, "tools/bench/bench_jax.py", str(n)) for n in threads_list} if python else {}


def row(*cells, widths):
    print("  ".join(str(c).rjust(w) if i else str(c).ljust(w)
                    for i, (c, w) in enumerate(zip(cells, widths))), flush=True)


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(v) for v in values))


# ---- environment


def cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def environment(torch, jax):
    found = dtbench("devices")
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    env = {"cpu": cpu_name(), "processors": processors,
           "system": f"{platform.system()} {platform.release()}",
           "compiler": next(r["text"] for r in found if r["kind"] == "compiler"),
           "flags": os.environ.get("CFLAGS", "-O2"), "python": platform.python_version(),
           "torch": torch.info["version"] if torch else None,
           "jax": next(iter(jax.values())).info["version"] if jax else None,
           "load": round(os.getloadavg()[0], 2)}
    print(f"{env['cpu']}, {processors} processors, {env['system']}; {env['compiler']} "
          f"{env['flags']}; PyTorch {env['torch'] or '-'}; JAX {env['jax'] or '-'}; load {env['load']}")
    if env["load"] > 0.5 * processors:
        print("The machine is busy with something else: trust the ratios and the best, not medians.")
    return env


# ---- gemm


def bench_gemm(threads_list, rounds):
    cells, setups = [], []
    for threads in threads_list:
        results = dtbench("gemm", threads, rounds)
        setups += [r for r in results if r["kind"] == "gemm_setup"]
        cells += [r for r in results if r["kind"] == "gemm"]
    for s in setups:
        print(f"\nSGEMM, {s['threads']} thread(s): kernels {s['kernels']}, FMA peak (one core's, measured, "
              f"times threads) {s['peak_gflops']:.0f} GFLOP/s; OpenBLAS: {s['openblas_config']}")
        widths = (14, 5, 9, 9, 9, 9, 6, 6, 5)
        row("m x n x k", "trans", "GFLOP/s", "best", "OpenBLAS", "best", "ratio", "best", "peak",
            widths=widths)
        for c in (c for c in cells if c["threads"] == s["threads"]):
            row(f"{c['m']}x{c['n']}x{c['k']}", c["trans"], f"{c['gflops']:.1f}",
                f"{c['gflops_best']:.1f}", f"{c.get('openblas_gflops', 0):.1f}",
                f"{c.get('openblas_gflops_best', 0):.1f}", f"{c.get('ratio', 0):.2f}",
                f"{c.get('ratio_best', 0):.2f}",
                f"{100 * c['gflops_best'] / max(c['peak_gflops'], 1e-9):.0f}%", widths=widths)
    return {"setups": setups, "cells": cells, "summary": gemm_summary(cells)}


def cell_name(c):
    return f"{c['m']}x{c['n']}x{c['k']} {c['trans']}"


def gemm_summary(cells):
    summary = {}
    for threads in sorted({c["threads"] for c in cells}):
        mine = [c for c in cells if c["threads"] == threads and "ratio" in c]
        if not mine:
            print("OpenBLAS was not found: apt install libopenblas0-openmp")
            continue
        worst = min(mine, key=lambda c: c["ratio_best"])
        below = [c for c in mine if c["ratio_best"] < GEMM_CELL_AIM]
        s = {"geometric_mean": round(geometric_mean(
            [min(c["ratio_best"], RATIO_MOST) for c in mine]), 4),
             "geometric_mean_of_medians": round(geometric_mean([c["ratio"] for c in mine]), 4),
             "worst": worst["ratio_best"], "worst_cell": cell_name(worst),
             "cells": len(mine), "below": [cell_name(c) for c in below],
             "aim": GEMM_AIM, "cell_aim": GEMM_CELL_AIM}
        summary[str(threads)] = s
        print(f"SGEMM to OpenBLAS, {threads} thread(s), best against best: geometric mean "
              f"{s['geometric_mean']:.3f} of {len(mine)} cells (aim {GEMM_AIM}; of medians "
              f"{s['geometric_mean_of_medians']:.3f}); worst {s['worst']:.3f} ({s['worst_cell']}); "
              f"{len(below)} below {GEMM_CELL_AIM}")
    return summary


# ---- training steps


def merge(results):
    """One result of several rounds: the median of medians, the least of minima."""
    merged = dict(results[0])
    merged["ms_median"] = statistics.median(r["ms_median"] for r in results)
    merged["ms_min"] = min(r["ms_min"] for r in results)
    merged["rounds"] = len(results)
    return merged


def best_variant(rounds):
    """Of a peer's rounds, each with a result of every variant: the merged one with the least time."""
    return min((merge(list(results)) for results in zip(*rounds)), key=lambda r: r["ms_min"])


def step_line(name, threads, ours, peers):
    line = {"workload": name, "threads": threads, "aims": AIMS[name], "dtrain": merge(ours)}
    peak = max(r["peak_gflops"] for r in ours)
    line["peak_share"] = max(r["gflops_best"] for r in ours) / peak if peak else 0
    for peer, results in peers.items():
        if results:
            line[peer] = best_variant(results)
            line[f"ratio_{peer}"] = round(line[peer]["ms_min"] / line["dtrain"]["ms_min"], 3)
    return line


def bench_steps(threads_list, rounds, torch, jax):
    print("\nTraining steps, ms, least of all rounds (dtrain: write the batch and run; PyTorch: the "
          "faster of its variants)")
    widths = (15, 5, 7, 9, 9, 9, 8, 6, 5, 9, 6, 5, 5)
    row("workload", "batch", "threads", "dtrain", "median", "PyTorch", "variant", "ratio", "aim",
        "JAX", "ratio", "aim", "peak", widths=widths)
    table = []
    for name, steps in STEPS.items():
        for threads in threads_list:
            ours, peers = [], {"pytorch": [], "jax": []}
            for _ in range(rounds):
                ours += dtbench("steps", name, threads, "cpu", steps)
                for peer, process in (("pytorch", torch), ("jax", jax.get(threads))):
                    if process and (peer == "pytorch" or ":" not in name):
                        peers[peer].append(process.train(name, threads, max(steps // 2, 3)))
            line = step_line(name, threads, ours, peers)
            table.append(line)
            cells = []
            for peer, aim in zip(peers, AIMS[name]):
                cells.append(f"{line[peer]['ms_min']:.4f}" if peer in line else "-")
                if peer == "pytorch":
                    cells.append(line[peer]["variant"] if peer in line else "-")
                cells += [f"{line[f'ratio_{peer}']:.2f}" if peer in line else "-", aim or "-"]
            row(name, line["dtrain"]["batch"], threads, f"{line['dtrain']['ms_min']:.4f}",
                f"{line['dtrain']['ms_median']:.4f}", *cells, f"{100 * line['peak_share']:.0f}%",
                widths=widths)
    return table


def bench_trainer(threads_list, rounds):
    print("\nThe same through a trainer on one CPU, ms, least of all rounds, beside a program's; added: what "
          "data, protocol and report take of a step, us")
    widths = (10, 5, 7, 9, 9, 9, 8)
    row("workload", "batch", "threads", "trainer", "median", "program", "added", widths=widths)
    table = []
    for name in TRAINED:
        for threads in threads_list:
            ours, programs = [], []
            for _ in range(rounds):
                ours += dtbench("trainer", name, threads, STEPS[name])
                programs += dtbench("steps", name, threads, "cpu", STEPS[name])
            line = {"workload": name, "threads": threads, "trainer": merge(ours),
                    "program": merge(programs)}
            least, program = line["trainer"]["ms_min"], line["program"]["ms_min"]
            line["added_us"] = round(1e3 * (least - program), 3)
            table.append(line)
            row(name, line["trainer"]["batch"], threads, f"{least:.4f}",
                f"{line['trainer']['ms_median']:.4f}", f"{program:.4f}", f"{line['added_us']:.2f}",
                widths=widths)
    return table


def bench_memory(threads_list, rounds, torch):
    name, steps = MEMORY
    print(f"\nMemory of {steps} steps of {name}: peak less what the process held before the model, MiB")
    widths = (10, 7, 9, 9, 6, 5)
    row("workload", "threads", "dtrain", "PyTorch", "share", "aim", widths=widths)
    table = []
    for threads in threads_list:
        ours = [dtbench("memory", name, threads, steps)[0] for _ in range(rounds)]
        theirs = [torch.memory(name, threads, steps) for _ in range(rounds)] if torch else []
        line = {"workload": name, "threads": threads, "steps": steps, "aim": MEMORY_AIM}
        for peer, results in (("dtrain", ours), ("pytorch", theirs)):
            # Ours at its largest, the peer's at its least.
            most = max if peer == "dtrain" else min
            taken = [r["peak_mib"] - r["before_mib"] for r in results if r["before_mib"]]
            line[peer] = round(most(taken), 2) if taken else None
        if line["dtrain"] and line["pytorch"]:
            line["share"] = round(line["dtrain"] / line["pytorch"], 3)
        table.append(line)
        row(name, threads, line["dtrain"] or "-", line["pytorch"] or "-", line.get("share", "-"),
            MEMORY_AIM, widths=widths)
    return table


def bench_create(threads_list, rounds):
    print("\nMaking graph, store and program on the CPU: ms of one thread, best; and a store's values")
    widths = (10, 8, 9, 9, 9, 10, 6)
    row("name", "count", "graph", "store", "program", "launches", "aim", widths=widths)
    table = []
    for name, count, aim in CREATE:
        runs = [dtbench("create", name, count)[0] for _ in range(rounds)]
        best = min(runs, key=lambda run: run["graph_ms"] + run["program_ms"])
        table.append({**best, "aim_ms": aim})
        row(name, count, *(f"{best[part]:.1f}" for part in ("graph_ms", "store_ms", "program_ms")),
            best["launches"], aim, widths=widths)
    for threads in threads_list:
        best = min((dtbench("fill", threads, FILL[0])[0] for _ in range(rounds)), key=lambda r: r["ms"])
        table.append({**best, "aim_ms": FILL[1]})
        row(f"fill x{threads}", f"{FILL[0]}M", "", f"{best['ms']:.1f}", "", "", FILL[1], widths=widths)
    return table


# ---- Vulkan


def driver_sets():
    """Environments to look for devices in: as it is, and with SwiftShader where Chromium has it."""
    sets = [{}]
    if os.path.exists(SWIFTSHADER) and "VK_ICD_FILENAMES" not in os.environ:
        sets.append({"VK_ICD_FILENAMES": SWIFTSHADER, "VK_DRIVER_FILES": SWIFTSHADER})
    return sets


def measure_vulkan(device, drivers):
    found = {"device": device}
    for kind in VULKAN_AIMS:
        command = "conv" if kind == "conv2d" else kind
        found[kind] = dtbench(command, device["id"], environment=drivers)[0]
    for name, count in VULKAN_STEPS.items():
        found[name] = dtbench("steps", name, 1, device["id"], count, environment=drivers)[0]
    return found


def bench_vulkan():
    print("\nVulkan devices: GFLOP/s of products (512) and convolutions (64 to 64 channels, 3 x 3), "
          "median and best; steps in ms, best")
    widths = (40, 8, 6, 4, 8, 6, 4, 10, 10)
    row("device", "product", "best", "aim", "conv2d", "best", "aim", "mlp step", "cnn step",
        widths=widths)
    table = []
    for drivers in driver_sets():
        for device in dtbench("devices", environment=drivers):
            if device["kind"] != "device" or not device["id"].startswith("vulkan"):
                continue
            if not device["usable"]:
                print(f"{device['name']}: not usable: {device['driver']}")
                continue
            try:
                found = measure_vulkan(device, drivers)
            except Failure as failure:
                print(failure)
                table.append({"device": device, "error": str(failure)})
                continue
            table.append(found)
            cells = [device["name"][:40]]
            for kind, aim in VULKAN_AIMS.items():
                cells += [f"{found[kind]['gflops']:.2f}", f"{found[kind]['gflops_best']:.2f}", aim]
            row(*cells, *(f"{found[name]['ms_min']:.2f}" for name in VULKAN_STEPS), widths=widths)
    if not table:
        print("none: ./build.sh devices says why")
    return table


def bench_frame(threads_list):
    print("\nframes of 2 ms, 1,000 of each: what they take; the aim of 99 % is 4 ms")
    widths = (14, 10, 9, 9, 9, 9, 10, 10)
    row("network", "device", "threads", "50 %", "99 %", "most", "a step", "whole", widths=widths)
    table = []
    for device in ("cpu", "vulkan:0"):
        for name in ("mlp", "cnn", "gpt4"):
            for threads in threads_list if device == "cpu" else threads_list[-1:]:
                try:
                    found = dtbench("frame", name, threads, device, 2, 1000)[0]
                except Failure as failure:
                    print(failure)
                    continue
                table.append(found)
                row(name, device, threads, *(f"{found[k]:.2f}" for k in
                                             ("p50", "p99", "most", "step_ms", "whole_ms")),
                    widths=widths)
    return table


def main():
    options = argparse.ArgumentParser(prog="./build.sh bench", description=__doc__.split("\n")[0])
    options.add_argument("what", nargs="*", metavar="what", help=", ".join(PARTS))
    options.add_argument("--json", metavar="FILE", help="also write everything there")
    options.add_argument("--rounds", type=int, default=0, help="of each comparison")
    options.add_argument("--threads", default="1,2", help="default 1,2")
    options = options.parse_args()
    unknown = [w for w in options.what if w not in PARTS]
    if unknown:
        raise Failure(f"unknown '{unknown[0]}'; there are {', '.join(PARTS)}")
    what = options.what or PARTS
    threads_list = [int(t) for t in options.threads.split(",")]
    torch = find_torch() if "steps" in what else None
    jax = find_jax(threads_list) if "steps" in what else {}
    env = environment(torch, jax)
    report = {"environment": env}
    if "gemm" in what:
        report["gemm"] = bench_gemm(threads_list, options.rounds or 12)
    if "steps" in what:
        report["steps"] = bench_steps(threads_list, options.rounds or 3, torch, jax)
        report["trainer"] = bench_trainer(threads_list, options.rounds or 3)
        report["memory"] = bench_memory(threads_list, options.rounds or 3, torch)
    if "create" in what:
        report["create"] = bench_create(threads_list, options.rounds or 3)
    if "frame" in what:
        report["frame"] = bench_frame(threads_list)
    if "vulkan" in what:
        report["vulkan"] = bench_vulkan()
    for peer in [*([torch] if torch else []), *jax.values()]:
        peer.close()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"bench: {failure}")
