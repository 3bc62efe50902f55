#!/usr/bin/env python3
"""Records PyTorch's values and gradients of functions that are made of ops, for
tests/test_golden_composed.c, into tests/golden/composed.safetensors: ops.NAME.x, .y, and the gradient of
sum(y * ops.NAME.dy) as .dx (.w, .dw), float64's at float32 points. The first axis is the samples'.

    python3 tools/record_golden_composed.py      (PyTorch)
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
}


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
    index = classes(7, 5, 2, 3, 4)
    places = torch.tensor(index, dtype=torch.int64)
    x = leaf(points(ROW))
    record_op(arrays, "take_along", {"x": x}, torch.gather(x, 2, places), 8)
    x = leaf(points((2, 3, 4)))
    y = torch.zeros(2, 3, 5, dtype=torch.float64).scatter_add(2, places, x)
    record_op(arrays, "scatter_along", {"x": x}, y, 9)
    for name in ("take_along", "scatter_along"):
        arrays[f"ops.{name}.index"] = index
    save("composed", arrays)


if __name__ == "__main__":
    main()
