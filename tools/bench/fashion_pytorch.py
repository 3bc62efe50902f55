#!/usr/bin/env python3
"""Trains the network of examples/fashion_mnist.c in PyTorch, on the same IDX files.

Flatten, Linear 784-128, ReLU, Linear 128-10, softmax cross-entropy, Adam 1e-3, batches of 64 with
the 32-sample tail of each epoch, shuffled. It prints the test accuracy of each seed and their mean. dtrain's
own mean must lie within 0.005 of it.

    python3 tools/bench/fashion_pytorch.py [--data build/data] [--epochs 5] [--seeds 5] [--threads 1]
"""
import argparse
import struct
import time

import numpy as np
import torch
import torch.nn.functional as F


def read_idx(path):
    with open(path, "rb") as file:
        data = file.read()
    zero, kind, rank = struct.unpack(">HBB", data[:4])
    if zero != 0 or kind != 8:
        raise SystemExit(f"{path}: not an IDX file of bytes")
    dims = struct.unpack(f">{rank}I", data[4:4 + 4 * rank])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(dims)


def read_set(folder, name):
    images = read_idx(f"{folder}/{name}-images-idx3-ubyte")
    labels = read_idx(f"{folder}/{name}-labels-idx1-ubyte")
    x = torch.from_numpy(images.reshape(len(images), -1).astype(np.float32) / np.float32(255))
    return x, torch.from_numpy(labels.astype(np.int64))


def evaluate(net, x, t):
    with torch.no_grad():
        y = net(x)
        return (y.argmax(1) == t).float().mean().item(), F.cross_entropy(y, t).item()


def train(seed, epochs, x, t):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            adam.zero_grad()
            F.cross_entropy(net(x[rows]), t[rows]).backward()
            adam.step()
    return net


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="build/data")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    x, t = read_set(args.data, "train")
    x_test, t_test = read_set(args.data, "t10k")
    accuracies = []
    for seed in range(args.seeds):
        start = time.perf_counter()
        net = train(seed, args.epochs, x, t)
        seconds = time.perf_counter() - start
        accuracy, loss = evaluate(net, x_test, t_test)
        accuracies.append(accuracy)
        print(f"seed {seed}  test accuracy {accuracy:.4f}  loss {loss:.4f}  seconds {seconds:.1f}",
              flush=True)
    print(f"mean test accuracy {np.mean(accuracies):.4f}")


main()
