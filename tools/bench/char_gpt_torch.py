#!/usr/bin/env python3
"""Trains the network of examples/char_gpt.c in PyTorch, on the same text, windows and schedule.

Only the random numbers differ: initial values and the order of windows. Prints each seed's loss on the last
tenth of the text and their mean. Compare with char_gpt's at the same options:

    build/char_gpt --context 64 --layers 2 --width 64 --batch 16 --steps 600 --seed 1
    python3 tools/bench/char_gpt_torch.py --steps 600 --seeds 3

With --load FILE (of char_gpt --steps 1 --lr 1e-30 --save FILE) and --order FILE (32-bit numbers, as
dt_shuffle(order, windows, seed, 0) gives them) there is no difference left but rounding.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h, mask):
        y = self.ln_1(h)
        h = h + self.attn(y, y, y, attn_mask=mask, need_weights=False, is_causal=True)[0]
        return h + self.mlp(self.ln_2(h))


class Gpt(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(256, args.width))
        self.places = nn.Parameter(0.02 * torch.randn(args.context, args.width))
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.mask = nn.Transformer.generate_square_subsequent_mask(args.context)

    def forward(self, x):
        h = F.embedding(x, self.table) + self.places
        for block in self.blocks:
            h = block(h, self.mask)
        return F.linear(self.norm(h), self.table)


def windows(text, context):
    """Inputs and targets, the byte after each: one window less than fit, as char_gpt.c has it."""
    rows = (len(text) - 1) // context - 1
    x, t = (text[i:i + rows * context].reshape(rows, context).long() for i in range(2))
    return x, t


def loss_of(net, x, t):
    return F.cross_entropy(net(x).flatten(0, 1), t.flatten())


def rate(n, steps):
    """Up in a twentieth of the steps, level, and down in the second half: n counts from 0."""
    warmup, decay = steps // 20, steps // 2 + 1
    return min(n / max(warmup, 1), 1, max(steps + 1 - n, 0) / decay)


def load(net, path):
    """A safetensors file of char_gpt's, under its names."""
    with open(path, "rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    names = {"table": "wte.weight", "places": "wpe.weight", "norm.weight": "ln_f.weight",
             "norm.bias": "ln_f.bias"}
    for name, value in net.named_parameters():
        theirs = names.get(name) or name.replace("blocks.", "h.").replace("mlp.0", "mlp.c_fc").replace(
            "mlp.2", "mlp.c_proj")
        begin, end = head[theirs]["data_offsets"]
        with torch.no_grad():
            value.copy_(torch.frombuffer(data[begin:end], dtype=torch.float32).reshape(value.shape))


def train(args, seed, text):
    torch.manual_seed(seed)
    learned = len(text) // 10 * 9
    x, t = windows(text[:learned], args.context)
    if args.steps * args.batch > len(x):
        raise SystemExit(f"--steps {args.steps}: more than an epoch of {len(x)} windows")
    net, order = Gpt(args), torch.randperm(len(x))
    if args.load:
        load(net, args.load)
    if args.order:
        with open(args.order, "rb") as file:
            order = torch.frombuffer(bytearray(file.read()), dtype=torch.int32).long()
    optim = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optim, lambda n: rate(n, args.steps))
    for step in range(args.steps):
        rows = order[step * args.batch:(step + 1) * args.batch]
        optim.zero_grad()
        loss_of(net, x[rows], t[rows]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1)
        optim.step()
        schedule.step()
    x, t = windows(text[learned:], args.context)
    with torch.no_grad():
        parts = [loss_of(net, a, b) * len(a) for a, b in zip(x.split(128), t.split(128))]
    return (sum(parts) / len(x)).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="build/data/jargon.txt")
    for name, value in (("context", 64), ("layers", 2), ("heads", 4), ("width", 64), ("batch", 16),
                        ("steps", 600), ("seeds", 3)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--load")
    parser.add_argument("--order")
    args = parser.parse_args()
    with open(args.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read(1 << 26)), dtype=torch.uint8)
    losses = []
    for seed in range(1, args.seeds + 1):
        begin = time.time()
        losses.append(train(args, seed, text))
        print(f"seed {seed}: validation {losses[-1]:.4f}, {time.time() - begin:.0f} s", flush=True)
    print(f"mean {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
