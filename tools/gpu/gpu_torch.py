"""PyTorch's part of ./build.sh gpu, for a machine that has it with CUDA. It times steps of the networks of
tools/check/launches.h, eager, compiled and as a CUDA graph. They are in fp32 without TF32; some products come
too.
usage: gpu_torch.py FILE SECONDS      appends lines to the section's file, see tools/gpu/dtgpu_log.h
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional


def mlp(*widths):
    layers = []
    for fan_in, fan_out in zip(widths, widths[1:]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn():
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 32, 3), nn.ReLU(),
                         nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
                         nn.Linear(128, 10))


class Block(nn.Module):
    def __init__(self, fan_in, channels, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(fan_in, channels, 3, stride, 1, bias=False),
                                  nn.BatchNorm2d(channels), nn.ReLU(),
                                  nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
                                  nn.BatchNorm2d(channels))
        self.down = nn.Sequential(nn.Conv2d(fan_in, channels, 1, stride, bias=False),
                                  nn.BatchNorm2d(channels)) if stride > 1 else nn.Identity()

    def forward(self, x):
        return functional.relu(self.body(x) + self.down(x))


def resnet():
    blocks, fan_in = [], 16
    for i in range(9):
        blocks.append(Block(fan_in, 16 << i // 3, 2 if i in (3, 6) else 1))
        fan_in = 16 << i // 3
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                         *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                  nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, width))
        return x + self.body(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, time=128, width=384, heads=6, characters=65):
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Parameter(torch.zeros(time, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(6)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.characters(x) + self.places))).flatten(0, 1)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTM(16, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.cell(x)[0][:, -1])


# name: model, batch, shape of a sample, its values' end (None: floats), targets of a sample
NETS = {
    "mlp": (lambda: mlp(784, 128, 10), 64, (784,), None, 1),
    "mlp_wide": (lambda: mlp(784, 1024, 1024, 10), 64, (784,), None, 1),
    "cnn": (cnn, 64, (784,), None, 1),
    "resnet": (resnet, 64, (3, 32, 32), None, 1),
    "gpt": (Gpt, 16, (128,), 65, 128),
    "lstm": (Lstm, 64, (8, 16), None, 1),
}


class Training:
    def __init__(self, name, device):
        make, batch, shape, end, targets = NETS[name]
        torch.manual_seed(0)
        self.model = make().to(device)
        self.x = (torch.randn(batch, *shape) if end is None
                  else torch.randint(0, end, (batch, *shape))).to(device)
        self.t = torch.randint(0, 10, (batch * targets,)).to(device)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-3,
                                       capturable=device == "cuda")

    def step(self, model=None):
        self.optim.zero_grad(set_to_none=True)
        loss = functional.cross_entropy((self.model if model is None else model)(self.x), self.t)
        loss.backward()
        self.optim.step()
        return loss


def milliseconds(step, until):
    """The typical time of a step whose loss is waited for, as dtrain's is."""
    times = []
    for i in range(60):
        begin = time.perf_counter()
        step().item()
        if i >= 3:
            times.append(1e3 * (time.perf_counter() - begin))
        if len(times) > 2 and time.time() > until:
            break
    return sorted(times)[len(times) // 2]


def graph_of(training):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    training.optim.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = training.step()

    def replay():
        graph.replay()
        return loss
    return replay


def steps_of(name, device, until):
    """Cells: eager, compiled, as a graph; a word where one does not work here."""
    cells = [f"{milliseconds(Training(name, device).step, until):.3f}"]
    for way in ("compiled", "graph"):
        try:
            training = Training(name, device)
            if way == "compiled":
                model = torch.compile(training.model)
                step = lambda: training.step(model)
            else:
                step = graph_of(training)
            cells.append(f"{milliseconds(step, until):.3f}")
        except Exception as error:  # a missing compiler does not fail the measured model
            print(f"{name}: {error}", file=sys.stderr)
            cells.append(type(error).__name__)
    return cells


def ours(folder):
    """dtrain's steps, where that section has been run."""
    try:
        with open(f"{folder}/7-steps.tsv", encoding="utf-8") as f:
            rows = [line.rstrip("\n").split("\t") for line in f]
    except OSError:
        return {}
    return {r[2]: r[4] for r in rows if r[:2] == ["row", "steps"]}


def products(say, device):
    say("table", "torch-gemm", "Products in PyTorch (cuBLAS), fp32 without TF32", "m x n x k", "ms",
        "GFLOP/s ~")
    for m, n, k in ((64, 128, 784), (512, 512, 512), (384, 384, 2048), (1024, 1024, 1024),
                    (4096, 4096, 4096)):
        a, b, best = torch.randn(m, k, device=device), torch.randn(k, n, device=device), 1e30
        for _ in range(20):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            a @ b
            end.record()
            torch.cuda.synchronize()
            best = min(best, begin.elapsed_time(end))
        say("row", "torch-gemm", f"{m} x {n} x {k}", f"{best:.4f}", f"{2 * m * n * k / best / 1e6:.1f}")


def main():
    path, seconds = sys.argv[1], float(sys.argv[2])
    device = "cuda" if torch.cuda.is_available() else sys.argv[3]  # a test names another
    begin = time.time()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with open(path, "a", encoding="utf-8") as file:
        def say(*fields):
            print(*fields)
            file.write("\t".join(fields) + "\n")
            file.flush()
        name = torch.cuda.get_device_name() if device == "cuda" else device
        say("fact", "PyTorch", f"{torch.__version__} on {name}")
        if device == "cuda":
            products(say, device)
        say("table", "torch", "Steps, ms: the loss is waited for in each", "network", "dtrain",
            "eager", "compiled", "CUDA graph")
        known = ours(path.rsplit("/", 1)[0])
        for at, net in enumerate(NETS):
            until = begin + seconds * (at + 1) / len(NETS)
            say("row", "torch", net, known.get(net, "?"), *steps_of(net, device, until))


if __name__ == "__main__":
    main()
