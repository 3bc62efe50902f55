"""PyTorch's side of ./build.sh bench: whole training steps on the CPU, as tools/bench/dtbench_train.h's.

Reads lines "WORKLOAD THREADS STEPS VARIANT" from standard input and answers each with one line of JSON. So
importing torch is paid for once, and runs can take turns with dtrain's. A first line has the version and its
variants:"plain", or, in newer ones, "fused" (the optimizer in one pass) and "compiled" (that, and torch.compile
of model and loss). WORKLOAD:bf16 is under autocast. With the arguments "memory WORKLOAD THREADS STEPS" it
prints what these steps take of memory at most, and ends.
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


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def attend(self, x):
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if hasattr(functional, "scaled_dot_product_attention"):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            hidden = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
            scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
            y = functional.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


CHARACTERS = 65


class Gpt(nn.Module):
    def __init__(self, context, width, layers, heads):
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CHARACTERS)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.characters(x) + self.places))).flatten(0, 1)


class Attention(nn.Module):
    """One layer of it between an embedding and the classes."""

    def __init__(self):
        super().__init__()
        self.characters, self.head = nn.Embedding(CHARACTERS, 384), nn.Linear(384, CHARACTERS)
        self.block = Block(384, 6)
        del self.block.norm1, self.block.norm2, self.block.up, self.block.down

    def forward(self, x):
        return self.head(self.block.attend(self.characters(x))).flatten(0, 1)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters, self.head = nn.Embedding(CHARACTERS, 128), nn.Linear(128, CHARACTERS)
        self.lstm = nn.LSTM(128, 128, batch_first=True)

    def forward(self, x):
        return self.head(self.lstm(self.characters(x))[0]).flatten(0, 1)


# name: model, shape of a sample, outputs, batch, optimizer, loss
WORKLOADS = {
    "xor": (lambda: mlp(2, 16, 1), (2,), 1, 4, torch.optim.AdamW, MSE),
    "mlp_tiny": (lambda: mlp(32, 64, 64, 10), (32,), 10, 32, torch.optim.AdamW, CROSS_ENTROPY),
    "mlp": (lambda: mlp(784, 128, 10), (784,), 10, 64, torch.optim.Adam, CROSS_ENTROPY),
    "mlp_wide": (lambda: mlp(784, 1024, 1024, 10), (784,), 10, 128, torch.optim.Adam,
                 CROSS_ENTROPY),
    "cnn": (cnn, (1, 28, 28), 10, 64, torch.optim.Adam, CROSS_ENTROPY),
    "gpt_small": (lambda: Gpt(64, 128, 4, 4), (64,), CHARACTERS, 12, torch.optim.AdamW,
                  CROSS_ENTROPY),
    "gpt_medium": (lambda: Gpt(256, 384, 6, 6), (256,), CHARACTERS, 8, torch.optim.AdamW,
                   CROSS_ENTROPY),
    "attention": (Attention, (1024,), CHARACTERS, 4, torch.optim.AdamW, CROSS_ENTROPY),
    "lstm": (Lstm, (64,), CHARACTERS, 32, torch.optim.AdamW, CROSS_ENTROPY),
}
NEW = int(torch.__version__.split(".")[0]) >= 2
VARIANTS = ["fused", "compiled"] if NEW else ["plain"]


class Training:
    """A workload with one batch to train on again and again. Made in two halves, so that what is
    fed is not counted as what training takes."""

    def __init__(self, name, threads, variant):
        name, _, self.precision = name.partition(":")
        self.make, shape, outputs, self.batch, self.optimizer, self.loss = WORKLOADS[name]
        self.variant = variant
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        tokens = outputs == CHARACTERS
        self.x = (torch.randint(0, CHARACTERS, (self.batch, *shape)) if tokens
                  else torch.randn(self.batch, *shape))
        targets = self.batch * (shape[0] if tokens else 1)
        self.target = (torch.randn(self.batch, outputs) if self.loss is MSE
                       else torch.randint(0, outputs, (targets,)))

    def make_model(self):
        self.model = self.make()
        options = {} if self.variant == "plain" else {"fused": True}
        self.optim = self.optimizer(self.model.parameters(), lr=1e-3, **options)
        self.forward = lambda x, target: self.loss(self.model(x), target)
        if self.variant == "compiled":
            self.forward = torch.compile(self.forward)

    def step(self):
        self.optim.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            loss = self.forward(self.x, self.target)
        loss.backward()
        self.optim.step()
        return loss


made = {}  # compiling takes a minute, and each round asks again


def train(name, threads, steps, variant):
    key = name, threads, variant
    if key not in made:
        made[key] = Training(*key)
        made[key].make_model()
    training, times = made[key], []
    torch.set_num_threads(threads)
    for _ in range(WARM_STEPS + steps):
        start = time.perf_counter()
        loss = training.step()
        times.append(1e3 * (time.perf_counter() - start))
    times = sorted(times[WARM_STEPS:])
    typical = times[len(times) // 2]
    return {"kind": "steps", "peer": "pytorch", "variant": variant, "workload": name,
            "batch": training.batch, "threads": threads, "device": "cpu", "steps": steps,
            "ms_median": round(typical, 5), "ms_min": round(times[0], 5),
            "samples_per_s": round(training.batch / typical * 1e3, 1),
            "loss": round(loss.item(), 4)}


def status_mib(field):
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field)) / 1024


def memory(name, threads, steps):
    training = Training(name, threads, VARIANTS[0])
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
    print(json.dumps({"kind": "torch", "version": torch.__version__, "build": blas,
                      "variants": VARIANTS}), flush=True)
    for line in sys.stdin:
        name, threads, steps, variant = line.split()
        print(json.dumps(train(name, int(threads), int(steps), variant)), flush=True)


if __name__ == "__main__":
    main()
