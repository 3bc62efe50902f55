#!/usr/bin/env python3
"""./build.sh bench models runs this. Models are split across two ranks, over loopback and two cores, ours and
PyTorch's in turn.

    ./build.sh bench models [--models gpt_small,mlp40m] [--strategies one,1f1b,...] [--rounds 3] [--steps 3]
                            [--torch PYTHON]

gpt_small has 12 blocks of width 768 and contexts of 64 bytes (85 million parameters), mlp40m
784-3036-3036-3036-3036-3036-10 (40 million). One thread a rank, AdamW, steps of 16 and 256 samples; one,
pipelines: 8 micro-batches; `one` is a process with a core of its own while another does the same on the
other core. hsdp (two groups of two ranks, ZeRO-3 in each) and products of two stages and two replicas have
four ranks, two on each core. bench_models_torch.py explains PyTorch's strategies. It reports medians of rounds:
samples a second of the job, and the most memory of a process (MiB, with code and libraries).
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

OURS, PEER = "build/dtbench_models", "tools/bench/bench_models_torch.py"
STRATEGIES = "one,gpipe,1f1b,interleaved,zero_bubble,tensor,data,zero1,zero2,zero3,hsdp,1f1b_zero2,1f1b_zero3"
RANKS = {"one": 1, "hsdp": 4, "1f1b_zero2": 4, "1f1b_zero3": 4}  # of others 2
TIMEOUT_SECONDS = 600


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ranks(command, cores, world, first_answers=False):
    """Lines of JSON of the processes, or a text of what went wrong. world 1: a job for each core.
    first_answers: the others are silent."""
    port, started = free_port(), []
    for rank in range(max(world, len(cores))):
        job = {} if world == 1 else {"RANK": str(rank), "WORLD_SIZE": str(world),
                                     "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
                                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        where = ["taskset", "-c", str(cores[rank % len(cores)])]
        started.append(subprocess.Popen(where + command, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env={**os.environ, **job}))
    found = []
    try:
        for one in started:
            out, errors = one.communicate(timeout=TIMEOUT_SECONDS)
            said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            if one.returncode or not (said or first_answers and found):
                return errors.strip().splitlines()[-1:] or ["no answer"]
            found += said
    except subprocess.TimeoutExpired:
        return [f"no end after {TIMEOUT_SECONDS} s"]
    finally:  # a process that waits for an ended one would slow the next measurement
        for one in started:
            if one.poll() is None:
                one.kill()
                one.communicate()
    return found


def measured(command, cores, world):
    """(samples a second, MiB), or what went wrong."""
    found = ranks(command, cores, world)
    if isinstance(found[0], str):
        return found[0][-200:]
    rates = [one["samples_per_s"] for one in found]
    return statistics.mean(rates) if world == 1 else min(rates), max(one["peak_mib"] for one in found)


def shown(results):
    good = [one for one in results if isinstance(one, tuple)]
    if not good:
        return None
    return tuple(statistics.median(column) for column in zip(*good))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="gpt_small,mlp40m")
    parser.add_argument("--strategies", default=STRATEGIES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--torch", default=sys.executable, help="a Python that has PyTorch")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("two processors are needed, and there is one")
    sides = {"ours": [OURS], "PyTorch": [given.torch, PEER]}
    print(f"{'model':10} {'strategy':12} {'ours/s':>8} {'PyTorch/s':>9} {'ratio':>6} {'ours MiB':>9} "
          f"{'PyTorch MiB':>11}", flush=True)
    for model in given.models.split(","):
        for strategy in given.strategies.split(","):
            found = {side: [] for side in sides}
            for _ in range(given.rounds):
                for side, program in sides.items():
                    command = program + [model, strategy, str(given.steps)]
                    found[side].append(measured(command, cores, RANKS.get(strategy, 2)))
            ours, peer = shown(found["ours"]), shown(found["PyTorch"])
            row = f"{model:10} {strategy:12} "
            row += f"{ours[0]:8.1f} " if ours else f"{'-':>8} "
            row += f"{peer[0]:9.1f} " if peer else f"{'-':>9} "
            row += f"{ours[0] / peer[0]:6.2f} " if ours and peer else f"{'-':>6} "
            row += f"{ours[1]:9.0f} " if ours else f"{'-':>9} "
            print(row + (f"{peer[1]:11.0f}" if peer else f"{'-':>11}"), flush=True)
            for side in sides:
                for trouble in {one for one in found[side] if isinstance(one, str)}:
                    print(f"  {side}: {trouble}", flush=True)


if __name__ == "__main__":
    main()
