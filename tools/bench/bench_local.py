#!/usr/bin/env python3
"""What ./build.sh bench local runs: training over a slow link, synchronously and by rounds of local steps.

    ./build.sh bench local [--mbit 10] [--seconds 30] [--steps 20] [--ranks 2] [--data build/data]

Ranks are in network namespaces of their own, whose links pass --mbit (tbf; root, Linux). They train
Fashion-MNIST's MLP (101,770 parameters, a batch of 64) for a number of seconds in each way, on one processor a
rank. Says the loss by wall time, and the test set's accuracy at the end.
"""

import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
import bench # it has gone to the root of the repository
from bench_net import Namespaces, run

WAYS = [("synchronous", ["sync"]), ("rounds", ["local", "STEPS", "none"]),
        ("rounds, BF16", ["local", "STEPS", "bf16"]), ("rounds, INT8", ["local", "STEPS", "int8"]),
        ("rounds, TOPK 1 %", ["local", "STEPS", "topk"])]
MARKS = (1, 3, 10, 30, 100, 300) # seconds at which a loss is printed


class Net(Namespaces):
    namespaces, switch = "dtlocal", "dtlocalsw"

    def train(self, ranks, arguments, seconds):
        script = ("export DTRAIN_LOCAL_RANK=0 DTRAIN_LOCAL_SIZE=1 DTRAIN_IFNAME=eth0 "
                  f"DTRAIN_RDZV=tcp://{self.address}:29400; "
                  f"exec ip netns exec {self.namespaces}$DTRAIN_RANK build/dtlocal \"$@\"")
        out = run(["build/dtrun", "-n", ranks, "sh", "-c", script, "sh", *arguments], 120 + 2 * seconds)
        return [json.loads(line[line.index("{"):]) for line in out.split("\n") if "{" in line]


def loss_at(lines, seconds):
    """The mean over the samples of the last tenth of the time before."""
    near = [l for l in lines if 0.9 * seconds <= l["seconds"] <= seconds] or \
           [l for l in lines if l["seconds"] <= seconds][-1:]
    samples = sum(l["samples"] for l in near)
    return sum(l["loss"] * l["samples"] for l in near) / samples if samples else None


def tell(way, lines, seconds):
    steps, end = lines[:-1], lines[-1]
    marks = [m for m in MARKS if m < seconds] + [seconds]
    losses = [loss_at(steps, m) for m in marks]
    print(f"{way:18} {steps[-1]['step']:6} steps  " +
          "  ".join(f"{m:g} s: {'-' if l is None else format(l, '.3f')}" for m, l in zip(marks, losses)) +
          f"  test accuracy {end['test_accuracy']:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./build.sh bench local", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--data", default="build/data")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise bench.Failure("it makes network namespaces, which takes root")
    with Net(options.ranks, options.mbit / 1000, "reno") as net:
        print(f"{options.ranks} ranks, {options.mbit:g} Mbit/s each, rounds of {options.steps} steps")
        for way, arguments in WAYS:
            arguments = [str(options.steps) if a == "STEPS" else a for a in arguments]
            lines = net.train(options.ranks, [options.data, options.seconds, *arguments], options.seconds)
            tell(way, lines, options.seconds)


if __name__ == "__main__":
    try:
        main()
    except bench.Failure as failure:
        sys.exit(f"bench local: {failure}")
