#!/usr/bin/env python3
"""What ./build.sh bench pair runs: the same benchmarks of two builds in turn, and the ratio of their speeds.

    ./build.sh bench pair OLD [NEW] [--rows PATTERN,...] [--rounds 21] [--seconds 1] [--steps 3] [--json FILE]
    tools/bench/bench_pair.py --list

OLD and NEW are folders with dtbench, dtbench_parallel and dtbench_models, each built from its own
sources; NEW is build/, which the command brings up to date. A row's name begins with its benchmark:

steps     xor and mlp through a trainer on the CPU, by threads; the least time of a step
parallel  rows of bench parallel: one replica, two threads, two processes; samples a second
models    rows of bench models: a model over two ranks, by strategy; samples a second of the slower one

In each round both builds measure a row once, and who begins alternates. A ratio is of one round: the
new build's speed over the old one's, so above 1 it is faster. It reports the median of all rounds and its 95 %
interval, from order statistics. So the distribution of times does not matter. A row holds when its interval
contains 1 or lies above 0.98; the exit status is 1 when one does not.
"""

import argparse
import fnmatch
import json
import math
import os
import statistics
import sys

sys.dont_write_bytecode = True
import bench # it has gone to the root of the repository
from bench_models import ranks

CORES = sorted(os.sched_getaffinity(0))[:2]
REPLICAS = {"one": ("cpu", 1), "threads": ("cpu:2", 1), "processes": ("cpu", 2)}
STRATEGIES = ("one", "gpipe", "1f1b", "interleaved", "zero_bubble", "tensor", "tensor4", "data", "zero1",
              "zero2", "zero3")
DEFAULT = "steps *,parallel *,models * tensor*"
LEVEL, LEAST = 0.95, 0.98


def rows(options):
    """{name: (words of the command, the cores of each process, processes of a job)}"""
    found = {}
    both = ",".join(map(str, CORES))
    for name in bench.TRAINED:
        for threads in (1, 2):
            words = ["dtbench", "trainer", name, threads, bench.STEPS[name]]
            found[f"steps {name} {threads}"] = (words, [both if threads > 1 else CORES[0]], 1)
    for model in ("mlp", "cnn", "mlp10m"):
        for row, (devices, world) in REPLICAS.items():
            words = ["dtbench_parallel", model, devices, 64, f"seconds={options.seconds:g}"]
            cores = CORES if world > 1 else [both if row == "threads" else CORES[0]]
            found[f"parallel {model} {row}"] = (words + ["pin"] * (row == "threads"), cores, world)
    for model in ("mlp40m", "gpt_small"):
        for strategy in STRATEGIES:
            cores = CORES[:1] if strategy == "one" else CORES
            words = ["dtbench_models", model, strategy, options.steps]
            found[f"models {model} {strategy}"] = (words, cores, len(cores))
    return found


def interval(values, level=LEVEL):
    """The median, and the values between which the true one lies with that probability or more.

    >>> interval(range(1, 22))
    (11, 6, 16)
    """
    ordered, count = sorted(values), len(values)
    outside = 0  # at most how many values lie below
    while 2 * sum(math.comb(count, i) for i in range(outside + 1)) / 2 ** count <= 1 - level:
        outside += 1
    if not outside:
        raise bench.Failure(f"{count} rounds are too few for an interval: at least 6")
    return statistics.median(ordered), ordered[outside - 1], ordered[count - outside]


def speed(folder, row):
    words, cores, world = row
    found = ranks([os.path.join(folder, words[0]), *map(str, words[1:])], cores, world,
                  first_answers=words[0] == "dtbench_parallel")
    if isinstance(found[0], str):
        raise bench.Failure(f"{folder}/{' '.join(map(str, words))}: {found[0]}")
    if words[0] == "dtbench":
        return 1e3 / found[0]["ms_min"]
    return min(one["samples_per_s"] for one in found if "samples_per_s" in one)


def measure(row, old, new, rounds):
    """(speeds of the old build, of the new one) of each round; the first one is not counted."""
    pairs = []
    for number in range(-1, rounds):
        first = speed(new if number % 2 else old, row)
        second = speed(old if number % 2 else new, row)
        pairs.append((second, first) if number % 2 else (first, second))
    return pairs[1:]


def print_row(name, old, new, ratio, low, high, holds):
    print(f"{name:28} {old:>11} {new:>11} {ratio:>7} {low:>7} {high:>7}  {holds}", flush=True)


def compare(name, row, options):
    pairs = measure(row, options.old, options.new, options.rounds)
    ratio, low, high = interval([new / old for old, new in pairs])
    holds = low <= 1 <= high or low > LEAST
    sides = [f"{statistics.median(side):.5g}" for side in zip(*pairs)]
    print_row(name, *sides, *(f"{value:.3f}" for value in (ratio, low, high)), "yes" if holds else "NO")
    return {"row": name, "ratio": ratio, "interval": [low, high], "holds": holds, "pairs": pairs}


def parse():
    parser = argparse.ArgumentParser(prog="./build.sh bench pair", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", help="a folder with programs")
    parser.add_argument("new", nargs="?", default="build", help="default build")
    parser.add_argument("--rows", default=DEFAULT, help=f"patterns of names, default {DEFAULT}")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=1, help="of a measurement of parallel's rows")
    parser.add_argument("--steps", type=int, default=3, help="of a measurement of models' rows")
    parser.add_argument("--list", action="store_true", help="names of all rows, and no more")
    parser.add_argument("--json", metavar="FILE", help="also write every round there")
    options = parser.parse_args()
    if len(CORES) < 2:
        raise bench.Failure("two processors are needed, and there is one")
    if options.list:
        print("\n".join(rows(options)))
        sys.exit()
    if not options.old:
        raise bench.Failure("OLD is missing: a folder with dtbench, dtbench_parallel and dtbench_models")
    for folder in (options.old, options.new):
        if not os.path.isdir(folder):
            raise bench.Failure(f"'{folder}' is no folder")
    interval(range(options.rounds))
    return options


def main():
    options = parse()
    patterns = options.rows.split(",")
    chosen = {name: row for name, row in rows(options).items()
              if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}
    if not chosen:
        raise bench.Failure(f"no row is called '{options.rows}': --list has their names")
    print(f"{bench.cpu_name()}; {options.rounds} rounds; load {os.getloadavg()[0]:.2f}")
    print_row("", "old /s", "new /s", "ratio", "low", "high", "holds")
    report = [compare(name, row, options) for name, row in chosen.items()]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
            f.write("\n")
    sys.exit(not all(line["holds"] for line in report))


if __name__ == "__main__":
    try:
        main()
    except bench.Failure as failure:
        sys.exit(f"bench pair: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
