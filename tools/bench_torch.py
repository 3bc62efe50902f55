"""PyTorch's side of ./build.sh bench: whole training steps on the CPU, as tools/dtbench.c does them.

Reads lines "WORKLOAD THREADS STEPS" from standard input and answers each with one line of JSON, so
that importing torch is paid for once and runs can take turns with dtrain's. A first line tells the
version.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WARM_STEPS = 3
# name: widths, batch, optimizer; the loss is mean squared error for "xor", else cross-entropy.
WORKLOADS = {
    "xor": ((2, 16, 1), 4, torch.optim.AdamW),
    "mlp_tiny": ((32, 64, 64, 10), 32, torch.optim.AdamW),
    "mlp": ((784, 128, 10), 64, torch.optim.Adam),
    "mlp_wide": ((784, 1024, 1024, 10), 128, torch.optim.Adam),
}


def make_model(widths):
    layers = []
    for i, (fan_in, fan_out) in enumerate(zip(widths, widths[1:])):
        if i:
            layers.append(nn.ReLU())
        layers.append(nn.Linear(fan_in, fan_out))
    return nn.Sequential(*layers)


def train(name, threads, steps):
    widths, batch, optimizer = WORKLOADS[name]
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = make_model(widths)
    optim = optimizer(model.parameters(), lr=1e-3)
    x = torch.randn(batch, widths[0])
    if name == "xor":
        target, loss_of = torch.randn(batch, widths[-1]), functional.mse_loss
    else:
        target, loss_of = torch.randint(0, widths[-1], (batch,)), functional.cross_entropy
    times = []
    for _ in range(WARM_STEPS + steps):
        start = time.perf_counter()
        optim.zero_grad(set_to_none=True)
        loss = loss_of(model(x), target)
        loss.backward()
        optim.step()
        times.append(1e3 * (time.perf_counter() - start))
    times = sorted(times[WARM_STEPS:])
    typical = times[len(times) // 2]
    return {"kind": "steps", "peer": "pytorch", "workload": name, "batch": batch,
            "threads": threads, "device": "cpu", "steps": steps, "ms_median": round(typical, 5),
            "ms_min": round(times[0], 5), "samples_per_s": round(batch / typical * 1e3, 1),
            "loss": round(loss.item(), 4)}


def main():
    blas = next((line.strip() for line in torch.__config__.show().split("\n") if "BLAS" in line), "")
    print(json.dumps({"kind": "torch", "version": torch.__version__, "build": blas}), flush=True)
    for line in sys.stdin:
        name, threads, steps = line.split()
        print(json.dumps(train(name, int(threads), int(steps))), flush=True)


if __name__ == "__main__":
    main()
