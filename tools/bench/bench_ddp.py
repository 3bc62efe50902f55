"""PyTorch's side of ./build.sh bench parallel: one rank of DistributedDataParallel with gloo, or,
of a world of 1, PyTorch without it.

    bench_ddp.py MODEL BATCH RANK WORLD_SIZE PORT

Reads lines "train SECONDS" from standard input, on every rank the same, and trains for about so long;
rank 0 answers each with one line of JSON, and says at the start what there is. Measured as in
tools/bench/dtbench_parallel.c. A job of one process runs until the time is over. Ranks run a number of steps,
by the time that a step took before. One thread; DDP's own bucket settings. The data are in memory, and batches
are slices of it: nothing is copied or shuffled, which ours does.
"""

import json
import os
import sys
import time

import bench_torch
import torch
import torch.distributed as dist

WARM_SECONDS = 0.2
DATA_ROWS, DATA_BATCHES_LEAST = 4096, 8
LEARNING_RATE = 1e-6 # as ours: random labels are not to be learnt by heart

# model, shape of a sample; as in dtbench_parallel.c
MODELS = {
    "mlp": (lambda: bench_torch.mlp(784, 128, 10), (784,)),
    "cnn": (bench_torch.cnn, (1, 28, 28)),
    "mlp10m": (lambda: bench_torch.mlp(784, 2048, 2048, 2048, 10), (784,)),
}


class Job:
    def __init__(self, name, batch, world_size):
        make, shape = MODELS[name]
        torch.manual_seed(0)
        self.batch, self.world_size, self.model = batch, world_size, make()
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if world_size > 1:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optim = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        batches = max(DATA_ROWS // (batch * world_size), DATA_BATCHES_LEAST)
        x = torch.randn(batches * batch, *shape)
        target = torch.randint(0, 10, (batches * batch,))
        self.batches = list(zip(x.split(batch), target.split(batch)))
        self.steps, self.step_seconds = 0, None

    def step(self):
        x, target = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        self.optim.zero_grad(set_to_none=True)
        loss = bench_torch.CROSS_ENTROPY(self.model(x), target)
        loss.backward()
        self.optim.step()

    def agree_most(self, value):
        if self.world_size == 1:
            return value
        agreed = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        return agreed.item()

    def run(self, seconds):
        """Steps, and the wall's seconds from when all ranks are here to when all are through."""
        count, first = 2, self.steps
        if self.step_seconds and self.world_size > 1:
            count = max(2, int(seconds / self.step_seconds))
        self.agree_most(0.0)
        start = time.perf_counter()
        while self.steps - first < count or (self.world_size == 1 and
                                             time.perf_counter() - start < seconds):
            self.step()
        took = self.agree_most(time.perf_counter() - start)
        self.step_seconds = took / (self.steps - first)
        return self.steps - first, took

    def measure(self, seconds):
        if self.step_seconds is None:
            self.run(0)
        self.run(WARM_SECONDS)
        steps, took = self.run(seconds)
        return {"what": "train", "steps": steps, "seconds": took, "ms": 1e3 * took / steps,
                "samples_per_s": steps * self.batch * self.world_size / took}


def main():
    name, batch, rank, world_size, port = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    if world_size > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    job = Job(name, batch, world_size)
    if rank == 0:
        print(json.dumps({"what": "ready", "model": name, "parameters": job.parameters,
                          "batch": batch * world_size, "version": torch.__version__}), flush=True)
    for line in sys.stdin:
        result = job.measure(float(line.split()[1]))
        if rank == 0:
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
