"""PyTorch's side of ./build.sh bench models: one rank of a job over gloo, started with torchrun's
environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    bench_models_torch.py MODEL STRATEGY STEPS

The models, strategies and the line of JSON are those of dtbench_models.c. Pipelines are by
torch.distributed.pipelining (its zero bubble is interleaved: two stages a rank), tensor by parallelize_module,
data by DistributedDataParallel. zero1 is by ZeroRedundancyOptimizer, zero3 by FSDP2 (fully_shard of each block
and of the whole). zero2 is by FSDP2 without resharding after the forward pass; hsdp by FSDP2's two-dimensional
mesh, and 1f1b_zero2, 1f1b_zero3 by FSDP2 of each stage, as torchtitan composes them. AdamW is the fused one.
One thread; the data are in memory.
"""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

MICROS, CONTEXT, HIDDEN, PIXELS = 8, 64, 3036, 784
LEARNING_RATE = 1e-4
MODELS = {"gpt": (32, 256, 6, 4), "gpt_small": (16, 768, 12, 12), "mlp40m": (256, 0, 0, 0)}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.size = width // heads

    def heads(self, x):
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x):
        y = self.norm1(x)
        a = nn.functional.scaled_dot_product_attention(
            self.heads(self.q(y)), self.heads(self.k(y)), self.heads(self.v(y)), is_causal=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def layers(width, blocks, heads):
    """What a pipeline may cut between."""
    if width:
        return ([nn.Embedding(256, width)] + [Block(width, heads) for _ in range(blocks)]
                + [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))])
    sizes = [PIXELS] + 5 * [HIDDEN]
    hidden = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in zip(sizes, sizes[1:])]
    return hidden + [nn.Linear(HIDDEN, 10)]


def loss_of(y, target):
    return nn.functional.cross_entropy(y.flatten(0, -2), target.flatten())


def adam(parameters):
    """The fused one takes no tensors of both kinds in a group."""
    groups = {}
    for parameter in parameters:
        groups.setdefault(type(parameter.data), []).append(parameter)
    return torch.optim.AdamW([{"params": group} for group in groups.values()], lr=LEARNING_RATE, fused=True)


def stages(parts, rank, world, chunks):
    """The module of each of this rank's stages, with their numbers."""
    count = world * chunks
    inner = parts[1:-1] if len(parts) > 7 else parts # embedding and head belong to the outer blocks
    cut = [inner[len(inner) * i // count:len(inner) * (i + 1) // count] for i in range(count)]
    if inner is not parts:
        cut[0], cut[-1] = [parts[0]] + cut[0], cut[-1] + [parts[-1]]
    return [(i, nn.Sequential(*cut[i])) for i in range(rank, count, world)]


class Pipeline:
    def __init__(self, strategy, parts, rank, world, x, target):
        from torch.distributed import pipelining
        schedule, _, zero = strategy.partition("_zero") if strategy != "zero_bubble" else (strategy, "", "")
        kinds = {"gpipe": (pipelining.ScheduleGPipe, 1), "1f1b": (pipelining.Schedule1F1B, 1),
                 "interleaved": (pipelining.ScheduleInterleaved1F1B, 2),
                 "zero_bubble": (pipelining.ScheduleInterleavedZeroBubble, 2)}
        kind, chunks = kinds[schedule]
        group = None
        if zero: # as torchtitan: each stage's module is sharded over the replicas
            from torch.distributed.fsdp import fully_shard
            mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("stage", "data"))
            replica, replicas = mesh["data"].get_local_rank(), world // 2
            rank, world, group = mesh["stage"].get_local_rank(), 2, mesh["stage"].get_group()
            x, target = x.chunk(replicas)[replica], target.chunk(replicas)[replica]
        mine = stages(parts, rank, world, chunks)
        for _, module in mine if zero else ():
            for part in list(module) + [module]:
                fully_shard(part, mesh=mesh["data"], reshard_after_forward=zero == "3")
        made = [pipelining.PipelineStage(module, i, world * chunks, torch.device("cpu"), group=group)
                for i, module in mine]
        self.schedule = kind(made if chunks > 1 else made[0], MICROS, loss_fn=loss_of)
        self.first, self.last = rank == 0, rank == world - 1
        self.optim = adam([p for _, module in mine for p in module.parameters()])
        self.x, self.target = x, target

    def step(self):
        self.optim.zero_grad(set_to_none=True)
        given = (self.x,) if self.first else ()
        if self.last:
            self.schedule.step(*given, target=self.target, losses=[])
        else:
            self.schedule.step(*given)
        self.optim.step()


def parallel_plan(parts):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    if isinstance(parts[1], Block):
        column, row = ("q", "k", "v", "up"), ("o", "down")
        return {f"{i}.{name}": (ColwiseParallel if name in column else RowwiseParallel)()
                for i in range(1, len(parts) - 1) for name in column + row}
    names = [f"{i}.0" for i in range(5)] + ["5"]
    return {name: (RowwiseParallel if i % 2 else ColwiseParallel)() for i, name in enumerate(names)}


class Whole:
    """All strategies that compute all layers on each rank."""

    def __init__(self, strategy, parts, rank, world, x, target):
        model = nn.Sequential(*parts)
        self.micros = MICROS if strategy == "one" else 1
        if strategy == "tensor":
            from torch.distributed.tensor.parallel import parallelize_module
            model = parallelize_module(model, init_device_mesh("cpu", (world,)), parallel_plan(parts))
        elif strategy in ("zero2", "zero3", "hsdp"):
            from torch.distributed.fsdp import fully_shard
            mesh = init_device_mesh("cpu", (2, world // 2) if strategy == "hsdp" else (world,),
                                    mesh_dim_names=("replica", "shard") if strategy == "hsdp" else None)
            for part in parts:
                fully_shard(part, mesh=mesh, reshard_after_forward=strategy != "zero2")
            fully_shard(model, mesh=mesh, reshard_after_forward=strategy != "zero2")
        elif strategy in ("data", "zero1"):
            model = nn.parallel.DistributedDataParallel(model)
        self.model = model
        if strategy == "zero1":
            from torch.distributed.optim import ZeroRedundancyOptimizer
            self.optim = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW,
                                                 lr=LEARNING_RATE, fused=True)
        else:
            self.optim = adam(model.parameters())
        if strategy not in ("one", "tensor"):
            x, target = x.chunk(world)[rank], target.chunk(world)[rank]
        self.batches = list(zip(x.chunk(self.micros), target.chunk(self.micros)))

    def step(self):
        self.optim.zero_grad(set_to_none=True)
        for x, target in self.batches:
            (loss_of(self.model(x), target) / self.micros).backward()
        self.optim.step()


def main():
    name, strategy, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if world > 1:
        dist.init_process_group("gloo")
    batch, width, blocks, heads = MODELS[name]
    if width:
        x = (torch.arange(batch * CONTEXT) * 7 % 256).view(batch, CONTEXT)
        target = x.clone()
    else:
        x = (torch.arange(batch * PIXELS) % 256 / 256).view(batch, PIXELS)
        target = torch.zeros(batch, dtype=torch.int64)
    kind = Pipeline if strategy.startswith(("gpipe", "1f1b", "interleaved", "zero_bubble")) else Whole
    job = kind(strategy, layers(width, blocks, heads), rank, world, x, target)
    for i in range(-2, steps):
        if i == 0:
            start, cpu = time.perf_counter(), time.process_time()
        job.step()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rank": rank, "step_ms": 1e3 * seconds / steps, "cpu_ms": 1e3 * cpu / steps,
                      "samples_per_s": batch * steps / seconds, "peak_mib": peak}), flush=True)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


main()
