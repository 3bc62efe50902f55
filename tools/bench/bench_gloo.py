"""Gloo's side of ./build.sh bench comm. It waits for work on its standard input. So PyTorch is loaded once, and
its rounds can be interleaved with the others'.

In: {"ranks": 2, "ms": 200, "sizes": [1024], "timeout": 100, "port": 29500, "address": "127.0.0.1",
     "interface": "lo", "namespaces": null}, the last one the name without its number, a line.
Out: one object with versions at the start; then a result a size, and {} or {"error": ...} last.

Timed as tools/bench/dtbench_comm.c times ours, but in place: torch.distributed knows no other way.
"""

import ctypes
import json
import multiprocessing
import os
import sys
import time

import torch
import torch.distributed as dist

REPEATS_LEAST, REPEATS_MOST, WARM_TRIES, SLOW_SECONDS = 2, 20000, 3, 0.5
CLONE_NEWNET = 0x40000000


def enter(namespace):
    with open(f"/run/netns/{namespace}", "rb") as f:
        if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def seconds_of(data, repeats):
    """For all repeats together, of the slowest rank: the wall's, and all threads' on processors."""
    dist.barrier()
    begin, worked = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        dist.all_reduce(data)
    seconds = torch.tensor([time.perf_counter() - begin, time.process_time() - worked],
                           dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.tolist()


def measure(size, budget):
    data = torch.arange(size // 4, dtype=torch.float32) % 1000
    tries = [seconds_of(data, 1)[0]]
    while len(tries) < WARM_TRIES and tries[-1] < SLOW_SECONDS:
        tries.append(seconds_of(data, 1)[0])
    repeats = max(REPEATS_LEAST, min(REPEATS_MOST, int(budget / max(min(tries), 1e-9))))
    wall, processor = seconds_of(data, repeats)
    return {"bytes": size, "us": wall / repeats * 1e6, "cpu_us": processor / repeats * 1e6,
            "repeats": repeats}


def rank_main(rank, job):
    if job["namespaces"]:
        enter(f"{job['namespaces']}{rank}")
    os.environ.update(MASTER_ADDR=job["address"], MASTER_PORT=str(job["port"]),
                      GLOO_SOCKET_IFNAME=job["interface"])
    dist.init_process_group("gloo", rank=rank, world_size=job["ranks"])
    for size in job["sizes"]:
        result = measure(size, job["ms"] * 1e-3)
        if rank == 0:
            print(json.dumps(result), flush=True)
    dist.barrier()


def run(job):
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_main, args=(r, job)) for r in range(job["ranks"])]
    for process in ranks:
        process.start()
    end = time.monotonic() + job["timeout"]
    for process in ranks:
        process.join(max(0, end - time.monotonic()))
    late = [process for process in ranks if process.is_alive()]
    for process in late:
        process.kill()
        process.join()
    if late:
        return {"error": f"not done after {job['timeout']} s"}
    failed = [r for r, process in enumerate(ranks) if process.exitcode]
    return {"error": f"rank {failed[0]} failed"} if failed else {}


if __name__ == "__main__":
    torch.set_num_threads(1) # before the forks, which take no threads with them
    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
