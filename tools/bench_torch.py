"""PyTorch's side of ./build.sh bench: whole training steps on the CPU, as tools/dtbench_train.h's.

Reads lines "WORKLOAD THREADS STEPS" from standard input and answers each with one line of JSON, so
that importing torch is paid for once and runs can take turns with dtrain's. A first line tells the
version. With the arguments "memory WORKLOAD THREADS STEPS" it tells what these steps take of memory
at most, and ends.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WARM_STEPS = 3
MSE, CROSS_ENTROPY = functional.mse_loss, functional.cross_entropy


def mlp(*widths):
    layers = []
    for i, (fan_in, fan_out) in enumerate(zip(widths, widths[1:])):
        if i:
            layers.append(nn.ReLU())
        layers.append(nn.Linear(fan_in, fan_out))
    return nn.Sequential(*layers)


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128),
                         nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))


# name: model, shape of a sample, outputs, batch, optimizer, loss
WORKLOADS = {
    "xor": (lambda: mlp(2, 16, 1), (2,), 1, 4, torch.optim.AdamW, MSE),
    "mlp_tiny": (lambda: mlp(32, 64, 64, 10), (32,), 10, 32, torch.optim.AdamW, CROSS_ENTROPY),
    "mlp": (lambda: mlp(784, 128, 10), (784,), 10, 64, torch.optim.Adam, CROSS_ENTROPY),
    "mlp_wide": (lambda: mlp(784, 1024, 1024, 10), (784,), 10, 128, torch.optim.Adam,
                 CROSS_ENTROPY),
    "cnn": (cnn, (1, 28, 28), 10, 64, torch.optim.Adam, CROSS_ENTROPY),
}


class Training:
    """A workload with one batch to train on again and again. Made in two halves, so that what is
    fed is not counted as what training takes."""

    def __init__(self, name, threads):
        self.make, shape, outputs, self.batch, self.optimizer, self.loss = WORKLOADS[name]
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.x = torch.randn(self.batch, *shape)
        self.target = (torch.randn(self.batch, outputs) if self.loss is MSE
                       else torch.randint(0, outputs, (self.batch,)))

    def make_model(self):
        self.model = self.make()
        self.optim = self.optimizer(self.model.parameters(), lr=1e-3)

    def step(self):
        self.optim.zero_grad(set_to_none=True)
        loss = self.loss(self.model(self.x), self.target)
        loss.backward()
        self.optim.step()
        return loss


def train(name, threads, steps):
    training = Training(name, threads)
    training.make_model()
    times = []
    for _ in range(WARM_STEPS + steps):
        start = time.perf_counter()
        loss = training.step()
        times.append(1e3 * (time.perf_counter() - start))
    times = sorted(times[WARM_STEPS:])
    typical = times[len(times) // 2]
    return {"kind": "steps", "peer": "pytorch", "workload": name, "batch": training.batch,
            "threads": threads, "device": "cpu", "steps": steps, "ms_median": round(typical, 5),
            "ms_min": round(times[0], 5),
            "samples_per_s": round(training.batch / typical * 1e3, 1),
            "loss": round(loss.item(), 4)}


def status_mib(field):
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field)) / 1024


def memory(name, threads, steps):
    training = Training(name, threads)
    before = status_mib("VmRSS:")
    training.make_model()
    for _ in range(steps):
        training.step()
    return {"kind": "memory", "peer": "pytorch", "workload": name, "threads": threads,
            "steps": steps, "before_mib": round(before, 2),
            "peak_mib": round(status_mib("VmHWM:"), 2)}


def main():
    if sys.argv[1:2] == ["memory"]:
        name, threads, steps = sys.argv[2:]
        print(json.dumps(memory(name, int(threads), int(steps))))
        return
    blas = next((line.strip() for line in torch.__config__.show().split("\n") if "BLAS" in line), "")
    print(json.dumps({"kind": "torch", "version": torch.__version__, "build": blas}), flush=True)
    for line in sys.stdin:
        name, threads, steps = line.split()
        print(json.dumps(train(name, int(threads), int(steps))), flush=True)


if __name__ == "__main__":
    main()
