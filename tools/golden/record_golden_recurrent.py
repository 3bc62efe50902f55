#!/usr/bin/env python3
"""Records PyTorch's values for tests/golden/test_golden_recurrent.c into tests/golden/recurrent.safetensors.

One nn.LSTM, nn.GRU or nn.RNN each, batch first, in float64. Recorded: CASE.x, .lengths, .h0 and .c0 where there
are any, and init.CASE.NAME. S is the sum of y, h and c times CASE.wy, .wh and .wc. Of it are recorded CASE.y,
.h and .c, CASE.dx, .dh0 and .dc0, and grad.CASE.NAME of S / B.

    python3 tools/golden/record_golden_recurrent.py
"""
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from record_golden import save

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 3, 4
LENGTHS = (3, 5, 1)
# name -> (class, settings, whether there are lengths and states)
CASES = {
    "lstm": (nn.LSTM, {}, False),
    "lstm_deep": (nn.LSTM, dict(num_layers=2, bidirectional=True), True),
    "lstm_projected": (nn.LSTM, dict(num_layers=2, bidirectional=True, proj_size=2), True),
    "lstm_bare": (nn.LSTM, dict(num_layers=2, bias=False, proj_size=3), False),
    "gru": (nn.GRU, {}, False),
    "gru_deep": (nn.GRU, dict(num_layers=2, bidirectional=True), True),
    "gru_bare": (nn.GRU, dict(num_layers=2, bias=False), False),
    "rnn": (nn.RNN, dict(num_layers=2, bidirectional=True), True),
    "rnn_relu": (nn.RNN, dict(num_layers=2, nonlinearity="relu"), False),
}


def normal(random, *shape):
    return random.normal(size=shape).astype(np.float32)


def leaf(array):
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)


def record(arrays, name, seed, kind, settings, more):
    """States are [rows, B, size] in PyTorch and [B, rows, size] in the file."""
    random = np.random.RandomState(seed)
    net = kind(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64, **settings)
    rows = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
    size = settings.get("proj_size", 0) or HIDDEN
    for key, p in net.named_parameters():
        value = random.uniform(-0.7, 0.7, p.shape).astype(np.float32)
        arrays[f"init.{name}.{key}"] = value
        p.data = torch.tensor(value, dtype=torch.float64)
    x = leaf(normal(random, BATCH, STEPS, INPUTS))
    leaves, state = {"x": x}, None
    if more:
        leaves["h0"] = leaf(normal(random, BATCH, rows, size))
        state = leaves["h0"].transpose(0, 1).contiguous()
        if kind is nn.LSTM:
            leaves["c0"] = leaf(normal(random, BATCH, rows, HIDDEN))
            state = (state, leaves["c0"].transpose(0, 1).contiguous())
        arrays[name + ".lengths"] = np.array(LENGTHS, np.int32)
        packed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True,
                                      enforce_sorted=False)
        y, last = net(packed, state)
        y, _ = pad_packed_sequence(y, batch_first=True, total_length=STEPS)
    else:
        y, last = net(x, state)
    results = {"y": y}
    results["h"], *cell = last if kind is nn.LSTM else (last,)
    if cell:
        results["c"] = cell[0]
    total = 0
    for key, value in results.items():
        value = value if key == "y" else value.transpose(0, 1)
        w = normal(random, *value.shape)
        total = total + (value * torch.tensor(w, dtype=torch.float64)).sum()
        arrays[f"{name}.w{key}"] = w
        arrays[f"{name}.{key}"] = value.detach().numpy().astype(np.float32)
    total.backward()
    for key, value in leaves.items():
        arrays[f"{name}.{key}"] = value.detach().numpy().astype(np.float32)
        arrays[f"{name}.d{key}"] = value.grad.numpy().astype(np.float32)
    for key, p in net.named_parameters():
        arrays[f"grad.{name}.{key}"] = (p.grad / BATCH).numpy().astype(np.float32)


def main():
    arrays = {}
    for seed, (name, (kind, settings, more)) in enumerate(CASES.items()):
        record(arrays, name, seed + 70, kind, settings, more)
    save("recurrent", arrays)


if __name__ == "__main__":
    main()
