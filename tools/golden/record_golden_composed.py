#!/usr/bin/env python3
"""Records PyTorch's values and gradients of functions that are made of ops, for
tests/golden/test_golden_composed.c. tests/golden/composed.safetensors has ops.NAME.x, .y, and the gradient of
sum(y * ops.NAME.dy) as .dx (.w, .dw), float64's at float32 points. The first axis is the samples'.

    python3 tools/golden/record_golden_composed.py      (PyTorch)
"""
import numpy as np
import torch
import torch.nn.functional as F

from record_golden import classes, leaf, normal, record_op, save

ROW, IMAGE = (2, 3, 5), (2, 4, 4, 6)


def points(shape, ties=False):
    x = normal(1, *shape)
    return np.round(x) if ties else x


X = {  # name: (function, shape of x with samples, ties)
    "tril": (lambda x: torch.tril(x, 1), ROW, False),
    "triu": (lambda x: torch.triu(x, -1), ROW, False),
    "roll": (lambda x: torch.roll(x, -2, 2), ROW, False),
    "flip": (lambda x: torch.flip(x, (2,)), ROW, False),
    "flip_front": (lambda x: torch.flip(x, (1,)), ROW, False),
    "pad_reflect": (lambda x: F.pad(x, (2, 4), mode="reflect"), ROW, False),
    "pad_replicate": (lambda x: F.pad(x, (2, 3), mode="replicate"), ROW, False),
    "var": (lambda x: torch.var(x, dim=(1, 2)), ROW, False),
    "var_biased": (lambda x: torch.var(x, dim=2, unbiased=False, keepdim=True), ROW, False),
    "std": (lambda x: torch.std(x, dim=2), ROW, False),
    "logsumexp": (lambda x: torch.logsumexp(50 * x, dim=1), ROW, False),
    "norm1": (lambda x: torch.linalg.vector_norm(x, 1, dim=2), ROW, True),
    "norm2": (lambda x: torch.linalg.vector_norm(x, 2, dim=(1, 2)), ROW, False),
    "norm_inf": (lambda x: torch.linalg.vector_norm(x, np.inf, dim=2), ROW, True),
    "prod": (lambda x: torch.prod(x, 2), ROW, True),
    "cumsum": (lambda x: torch.cumsum(x, 2), ROW, False),
    "cumsum_front": (lambda x: torch.cumsum(x, 1), ROW, False),
    "topk": (lambda x: torch.topk(x, 3, 2).values, ROW, False),
    "sort": (lambda x: torch.sort(x, dim=1, stable=True).values, ROW, False),
    "sort_ties": (lambda x: torch.sort(x, dim=2, descending=True, stable=True).values, ROW, True),
    "glu": (lambda x: F.glu(x, 1), IMAGE, False),
    "celu": (lambda x: F.celu(x, 0.5), ROW, False),
    "asin": (lambda x: torch.asin(torch.tanh(x)), ROW, False),
    "acos": (lambda x: torch.acos(torch.tanh(x)), ROW, False),
    "instance_norm": (lambda x: F.instance_norm(x), IMAGE, False),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), IMAGE, False),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), IMAGE, False),
    "unfold": (lambda x: F.unfold(x, (2, 3), dilation=1, padding=(1, 2), stride=(2, 1)), IMAGE, False),
    "fold": (lambda x: F.fold(x, (7, 6), (2, 3), dilation=1, padding=1, stride=2), (2, 12, 12), False),
    "masked_fill": (lambda x: x.masked_fill(x > 0.25, -3), ROW, False),
    "where": (lambda x: torch.where(x > 0.25, x * x, -x), ROW, False),
    "topk_smallest": (lambda x: torch.topk(x, 2, 1, largest=False).values, ROW, False),
    "std_all": (lambda x: torch.std(x, dim=(1, 2), unbiased=False), ROW, False),
    "hardtanh": (lambda x: F.hardtanh(3 * x, -1, 2), ROW, False),
    "relu6": (lambda x: F.relu6(5 * x), ROW, False),
    "squared_relu": (lambda x: F.relu(x) ** 2, ROW, False),
    "swish_beta": (lambda x: x * torch.sigmoid(1.5 * x), ROW, False),
    "index_select": (lambda x: torch.index_select(x, 2, torch.tensor([4, 0, 4, 2])), ROW, False),
    "index_select_front": (lambda x: torch.index_select(x, 1, torch.tensor([2, 2, 1, 0])), ROW, False),
}
INDICES = {"index_select": [4, 0, 4, 2], "index_select_front": [2, 2, 1, 0]}


def heads(arrays):
    """Attention of 4 heads: q, k, v are x, a, b. It has a mask that is added, w, one that hides, of one head of
    keys. A case without a mask has a scale of its own. A mask has no samples."""
    for name, kv, mask, more in (("attention_mask", 4, "added", {}),
                                 ("attention_keep", 4, "keep", {}),
                                 ("attention_causal", 4, None, dict(is_causal=True)),
                                 ("attention_multi_query", 1, None, dict(scale=0.7)),
                                 ("attention_grouped", 2, "window", {})):
        q, k, v = leaf(normal(11, 2, 4, 5, 3)), leaf(normal(12, 2, kv, 6, 3)), leaf(normal(13, 2, kv, 6, 2))
        leaves = {"x": q, "a": k, "b": v}
        if mask == "added":
            w = leaf(normal(14, 4, 5, 6))
            leaves["w"] = more["attn_mask"] = w
        if mask == "keep":
            arrays[f"ops.{name}.index"] = keep = (normal(15, 5, 6) < 0.4).astype(np.float32)
            more["attn_mask"] = torch.tensor(keep > 0)
        if mask == "window":  # query i sees key j where |i - j| < 2
            more["attn_mask"] = abs(torch.arange(5)[:, None] - torch.arange(6)) < 2
        k, v = (x.repeat_interleave(4 // kv, 1) for x in (k, v))
        record_op(arrays, name, leaves, F.scaled_dot_product_attention(q, k, v, **more), 16)


def main():
    arrays = {}
    for name, (function, shape, ties) in X.items():
        x = leaf(points(shape, ties))
        record_op(arrays, name, {"x": x}, function(x), 2)
    x, w = leaf(points(ROW, True)), leaf(np.array([0.25, -0.5, 2], np.float32))
    record_op(arrays, "prelu", {"x": x, "w": w}, F.prelu(x, w), 3)
    x, w = leaf(normal(4, 4, 3)), leaf(normal(5, 4, 3))
    record_op(arrays, "cross", {"x": x, "w": w}, torch.linalg.cross(x, w), 6)
    y, x = leaf(normal(4, 2, 3, 5)), leaf(normal(5, 2, 3, 5))
    record_op(arrays, "atan2", {"x": y, "w": x}, torch.atan2(y, x), 2)
    for name, function in (("fmod", torch.fmod), ("remainder", torch.remainder)):
        a, b = leaf(7 * normal(4, 2, 3, 5)), leaf(normal(5, 2, 3, 5))
        record_op(arrays, name, {"x": a, "w": b}, function(a, b), 2)
    x, w = leaf(normal(4, 3, 2, 2)), leaf(normal(5, 3))
    record_op(arrays, "weight_norm", {"x": x, "w": w}, torch._weight_norm(x, w.view(3, 1, 1), 0), 6)
    x, w = leaf(normal(4, 3, 4)), leaf(normal(5, 3, 3))
    record_op(arrays, "outer", {"x": x, "w": w}, x[:, :, None] * w[:, None, :], 2)
    for name, rows in INDICES.items():
        arrays[f"ops.{name}.index"] = np.array(rows, np.int32)
    heads(arrays)
    table, index = leaf(normal(17, 6, 3)), classes(18, 6, 2, 2, 4)
    bags = torch.tensor(index.reshape(4, 4), dtype=torch.int64)
    for name, mode in (("bag_sum", "sum"), ("bag_mean", "mean")):
        table = leaf(normal(17, 6, 3))
        record_op(arrays, name, {"table": table}, F.embedding_bag(bags, table, mode=mode), 19)
        arrays[f"ops.{name}.index"] = index
    index = classes(7, 5, 2, 3, 4)
    places = torch.tensor(index, dtype=torch.int64)
    x = leaf(points(ROW))
    record_op(arrays, "gather", {"x": x}, torch.gather(x, 2, places), 8)
    x = leaf(points((2, 3, 4)))
    y = torch.zeros(2, 3, 5, dtype=torch.float64).scatter_add(2, places, x)
    record_op(arrays, "scatter_add", {"x": x}, y, 9)
    for name in ("gather", "scatter_add"):
        arrays[f"ops.{name}.index"] = index
    save("composed", arrays)


if __name__ == "__main__":
    main()
