#!/usr/bin/env python3
"""Records steps of SGD of a convolution and a linear layer. Each has batch norm over the whole batch of two
ranks. They go into tests/golden/sync.safetensors for tests/golden/test_golden_sync.c. It has the data x and t,
all values before (init.NAME) and after each step (step.NAME, first axis: the step). It also has the losses, and
the trained model's outputs in evaluation (y). In float64 from float32 values.

torch.nn.SyncBatchNorm refuses processors, so what is recorded is batch norm of the batch in one process;
beside it two ranks (gloo, DistributedDataParallel) have half of the batch each. They add up sums and sums of
squares by differentiable all-reduces, and must have the same values.

    python3 tools/golden/record_golden_sync.py      (PyTorch 2.15)
"""
import os
import socket

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as reduced
import torch.multiprocessing
import torch.nn.functional as F

from record_golden import classes, normal, save

STEPS, BATCH, RANKS = 6, 12, 2


class Sync(torch.nn.modules.batchnorm._BatchNorm):
    """Batch norm of all ranks' rows."""

    def _check_input_dim(self, x):
        pass

    def forward(self, x):
        if not self.training or not dist.is_initialized():
            return super().forward(x)
        axes, shape = [a for a in range(x.dim()) if a != 1], [1, -1] + [1] * (x.dim() - 2)
        count = x.numel() // x.shape[1] * dist.get_world_size()
        sums = reduced.all_reduce(torch.stack([x.sum(axes), (x * x).sum(axes)])) / count
        mean, var = sums[0], sums[1] - sums[0] ** 2
        with torch.no_grad():
            self.running_mean += self.momentum * (mean - self.running_mean)
            self.running_var += self.momentum * (var * count / (count - 1) - self.running_var)
            self.num_batches_tracked += 1
        x = (x - mean.view(shape)) / torch.sqrt(var.view(shape) + self.eps)
        return x * self.weight.view(shape) + self.bias.view(shape)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.bn1 = Sync(4)
        self.fc = torch.nn.Linear(100, 6)
        self.bn2 = Sync(6)
        self.out = torch.nn.Linear(6, 5)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv(x))).flatten(1)
        return self.out(torch.tanh(self.bn2(self.fc(h))))


def values(net):
    return {name: value.detach().numpy().copy() for name, value in net.state_dict().items()
            if not name.endswith("tracked")}


def data():
    x, t = normal(1, STEPS * BATCH, 2, 5, 5), classes(2, 5, STEPS * BATCH)
    return x, t


def start():
    torch.manual_seed(5)
    net = Net().double()
    first = {name: value.astype(np.float32) for name, value in values(net).items()}
    state = {name: torch.tensor(value, dtype=torch.float64) for name, value in first.items()}
    net.load_state_dict(state, strict=False)
    return net, first


def train(net, model, rank, ranks):
    """Values after each step, and the losses of these rows."""
    x, t = (torch.tensor(a) for a in data())
    optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses, steps, each = [], [], BATCH // ranks
    for i in range(STEPS):
        rows = slice(i * BATCH + rank * each, i * BATCH + (rank + 1) * each)
        optim.zero_grad()
        loss = F.cross_entropy(model(x[rows].double()), t[rows].long())
        loss.backward()
        optim.step()
        losses.append(loss.item())
        steps.append(values(net))
    return losses, steps


def run_rank(rank, port, found):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo")
    net, _ = start()
    losses, steps = train(net, torch.nn.parallel.DistributedDataParallel(net), rank, RANKS)
    found.put((rank, losses, steps))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    found = context.Queue()
    started = [context.Process(target=run_rank, args=(r, port, found)) for r in range(RANKS)]
    for process in started:
        process.start()
    all_of = sorted((found.get() for _ in started), key=lambda one: one[0])
    for process in started:
        process.join()
    return all_of


def main():
    net, first = start()
    losses, steps = train(net, net, 0, 1)
    for rank, _, got in on_ranks():
        for i, step in enumerate(steps):
            for name, value in step.items():
                np.testing.assert_allclose(got[i][name], value, rtol=1e-9, atol=1e-11,
                                           err_msg=f"rank {rank}, step {i}: {name}")
    x, t = data()
    arrays = {"x": x, "t": t, "loss": np.array(losses)}
    arrays.update({"init." + name: value for name, value in first.items()})
    arrays.update({"step." + name: np.stack([s[name] for s in steps]).astype(np.float32)
                   for name in first})
    with torch.no_grad():
        y = net.eval()(torch.tensor(x[:BATCH], dtype=torch.float64))
    arrays["y"] = y.numpy().astype(np.float32)
    save("sync", arrays)


if __name__ == "__main__":
    main()
