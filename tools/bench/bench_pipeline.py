#!/usr/bin/env python3
"""./build.sh bench pipeline runs this: a model in two stages, on two ranks over loopback, beside one process.

    ./build.sh bench pipeline [--models gpt,mlp40m] [--schedules 0,1,3] [--rounds 5] [--steps 3]

Whole steps with AdamW, 8 micro-batches, one thread and one core each, data in memory.
gpt has 6 blocks of width 256 and contexts of 64 bytes, mlp40m 784-3036-3036-3036-3036-3036-10. In each round
the one process runs twice at once, on either core. So both are busy as they are in stages; a speed-up is over
the mean of the two. The bound is the schedule's for two equal stages, whose backward part takes two forward
parts: 2 / (1 + idle). Reported are medians of rounds, least and largest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

OURS, DTRUN = "build/dtbench_models", "build/dtrun"
SCHEDULES = {0: "1F1B", 1: "fill-drain", 2: "interleaved", 3: "zero bubble"}
NAMES = {0: "1f1b", 1: "gpipe", 2: "interleaved", 3: "zero_bubble"}
IDLE = {0: 1 / 8, 1: 1 / 8, 2: 1 / 16, 3: 1 / 24}
TIMEOUT_SECONDS = 300


def lines(process):
    out, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    found = [json.loads(line[line.index("{"):]) for line in out.splitlines() if "{" in line]
    if process.returncode or not found:
        sys.exit(f"{' '.join(process.args)}: {errors.strip()[-500:]}")
    return sorted(found, key=lambda one: one["rank"])


def start(*command):
    return subprocess.Popen(list(map(str, command)), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def alone(cores, model, steps):
    """The mean rate of two at once."""
    both = [start("taskset", "-c", core, OURS, model, "one", steps) for core in cores]
    return statistics.mean(lines(one)[0]["samples_per_s"] for one in both)


def stages(cores, model, schedule, steps):
    where = ",".join(map(str, cores))
    return lines(start("taskset", "-c", where, DTRUN, "-n", 2, OURS, model, NAMES[schedule], steps))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="gpt,mlp40m")
    parser.add_argument("--schedules", default="0,3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("two processors are needed, and there is one")
    print(f"{'model':8} {'schedule':12} {'samples/s':>10} {'speed-up':>9} {'least':>6} {'most':>6} "
          f"{'bound':>6}  waiting for stages, ms")
    for model in given.models.split(","):
        kinds = [int(one) for one in given.schedules.split(",")]
        found = {kind: [] for kind in kinds}
        for _ in range(given.rounds):
            one = alone(cores, model, given.steps)
            for kind in kinds:
                ranks = stages(cores, model, kind, given.steps)
                rate = min(r["samples_per_s"] for r in ranks)
                found[kind].append((rate / one, rate, [r["wait_ms"] for r in ranks]))
        for kind in kinds:
            ups = sorted(up for up, _, _ in found[kind])
            rate = statistics.median(rate for _, rate, _ in found[kind])
            waits = [statistics.median(column) for column in zip(*(w for _, _, w in found[kind]))]
            print(f"{model:8} {SCHEDULES[kind]:12} {rate:10.1f} {statistics.median(ups):9.3f} "
                  f"{ups[0]:6.3f} {ups[-1]:6.3f} {2 / (1 + IDLE[kind]):6.3f}  "
                  + ", ".join(f"{wait:.1f}" for wait in waits))


if __name__ == "__main__":
    main()
