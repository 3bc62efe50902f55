#!/usr/bin/env python3
"""Compares the two networks of examples/fashion_mnist_conv.c, whole and without dropout, with PyTorch. Initial
weights and batches of Fashion-MNIST are the same, with Adam 1e-3. Each step's loss and every parameter's
gradient of the first step (norm of the difference / norm) are compared with PyTorch's in float64; PyTorch's own
float32 is shown beside.

Chance decides a ReLU or a maximum of two numbers that differ only by their rounding in float32. Adam's first
steps make a whole step of it. So the limit of 1e-5 is for the smooth versions (GELU, mean pooling; the same
convolutions and norms). It is twice PyTorch's float32 error, if that is more. Versions with kinks may have five
times PyTorch's float32 error.

The test suite has smaller versions of the two, and the losses of the whole ones at batch 8
(tests/golden/test_golden_image.c); this is the whole comparison, which takes a minute and no fixture.

    cc -O2 -Ibuild/include -I. tools/golden/dtcompare.c -o build/dtcompare -lm -ldl -lpthread
    /usr/bin/python3 tools/golden/compare_pytorch.py [--device cpu] [--batch 64] [--steps 5] [MODEL]...
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

sys.dont_write_bytecode = True
from record_golden_image import Made, cnn, resnet  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODELS = {"cnn": lambda net, x: cnn(net, x, 32), "resnet": lambda net, x: resnet(net, x, 16, 3)}
MODELS.update({name + "_smooth": function for name, function in list(MODELS.items())})
LIMIT = 1e-5


def read_idx(path, skip):
    return np.fromfile(path, np.uint8)[skip:]


def read_safetensors(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    header.pop("__metadata__", None)
    return {k: np.frombuffer(data[v["data_offsets"][0]:v["data_offsets"][1]],
                             np.float32).reshape(v["shape"]) for k, v in header.items()}


def reference(model, init, images, labels, args, dtype):
    net = Made(dtype, F.gelu, F.avg_pool2d) if "smooth" in model else Made(dtype)
    net.p = {k: torch.tensor(v, dtype=dtype, requires_grad="running_" not in k)
             for k, v in init.items()}
    adam = torch.optim.Adam([v for v in net.p.values() if v.requires_grad], lr=1e-3)
    losses, gradients = [], {}
    for step in range(args.steps):
        rows = slice(step * args.batch, (step + 1) * args.batch)
        x = torch.tensor(images[rows].astype(np.float32) * np.float32(1 / 255), dtype=dtype)
        adam.zero_grad()
        loss = F.cross_entropy(MODELS[model](net, x.reshape(-1, 1, 28, 28)),
                               torch.tensor(labels[rows].astype(np.int64)))
        loss.backward()
        if step == 0:
            gradients = {k: v.grad.double().numpy().copy() for k, v in net.p.items()
                         if v.requires_grad}
        adam.step()
        losses.append(loss.item())
    return np.array(losses), gradients


def distance(a, b):
    return float(np.linalg.norm(a.ravel() - b.ravel()) / (np.linalg.norm(b) + 1e-300))


def compare(model, args, images, labels):
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(ROOT, "build", "dtcompare")
        lines = subprocess.run([program, model, args.device, str(args.batch), str(args.steps),
                                args.data, folder], check=True, capture_output=True, text=True)
        losses = np.array([float(x) for x in lines.stdout.split()])
        init = read_safetensors(os.path.join(folder, "init.safetensors"))
        flat = np.fromfile(os.path.join(folder, "gradients.f32"), np.float32).astype(np.float64)
    exact, gradients = reference(model, init, images, labels, args, torch.float64)
    single, single_gradients = reference(model, init, images, labels, args, torch.float32)
    worst, at, parameters = (0.0, ""), 0, 0
    for name, g in gradients.items():
        ours = flat[at:at + g.size].reshape(g.shape)
        at, parameters = at + g.size, parameters + g.size
        worst = max(worst, (distance(ours, g), name))
        if args.verbose:
            print(f"  {name:30} {distance(ours, g):.1e}   PyTorch float32 "
                  f"{distance(single_gradients[name], g):.1e}")
    off = abs(losses / exact - 1)
    theirs = max(distance(single_gradients[k], g) for k, g in gradients.items())
    print(f"{model}: {parameters} parameters, {args.device}, batch {args.batch}")
    print("  losses off by", " ".join(f"{x:.1e}" for x in off), "  PyTorch float32",
          " ".join(f"{x:.1e}" for x in abs(single / exact - 1)))
    print(f"  first gradients off by at most {worst[0]:.1e} ({worst[1]})   PyTorch float32 "
          f"{theirs:.1e}")
    times = 2 if "smooth" in model else 5
    loss_limit = max(LIMIT, times * abs(single / exact - 1).max())
    return (off.max() <= loss_limit and worst[0] <= max(LIMIT, times * theirs) and
            at == flat.size)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*",
                        help="cnn, resnet, cnn_smooth, resnet_smooth; default all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--data", default=os.path.join(ROOT, "build", "data"))
    parser.add_argument("-v", "--verbose", action="store_true", help="each parameter's gradient")
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = read_idx(os.path.join(args.data, "train-images-idx3-ubyte"), 16).reshape(-1, 784)
    labels = read_idx(os.path.join(args.data, "train-labels-idx1-ubyte"), 8)
    good = [compare(model, args, images, labels) for model in args.models or MODELS]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
