#!/usr/bin/env python3
"""Records tables with a row for padding for tests/golden/test_table.c into tests/golden/table.safetensors: bags
(values and gradients, as record_op says), and an embedding after steps of AdamW.

    python3 tools/golden/record_golden_table.py      (PyTorch 2.15)
"""
import numpy as np
import torch
import torch.nn.functional as F

from record_golden import classes, leaf, normal, record_op, save

ROWS, WIDTH, BATCH, BAG, STEPS, PAD = 5, 3, 3, 4, 4, 1


def main():
    arrays = {}
    index = classes(3, ROWS, BATCH, BAG)
    index[1] = PAD  # a bag of nothing
    places = torch.tensor(index, dtype=torch.int64)
    for mode in ("sum", "mean"):
        table = leaf(normal(4, ROWS, WIDTH))
        y = F.embedding_bag(places, table, mode=mode, padding_idx=PAD)
        record_op(arrays, "bag_" + mode, {"table": table}, y, 5)
        arrays[f"ops.bag_{mode}.index"] = index
    layer = torch.nn.Embedding(ROWS, WIDTH, padding_idx=PAD)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(normal(6, ROWS, WIDTH)))  # the row is not 0: a file may say so
    dy = normal(7, BATCH, BAG, WIDTH)
    arrays.update({"init.e.weight": layer.weight.detach().numpy().copy(), "index": index, "dy": dy})
    optim = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.5)
    found = []
    for _ in range(STEPS):
        optim.zero_grad()
        y = layer(places)
        (y * y * torch.tensor(dy)).mean().backward()
        optim.step()
        found.append(y.detach().numpy().copy())
    arrays.update({"y": np.stack(found), "final.e.weight": layer.weight.detach().numpy()})
    save("table", arrays)


if __name__ == "__main__":
    main()
