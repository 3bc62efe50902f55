#!/usr/bin/env python3
"""Records PyTorch's values and gradients in float32 at the edges of float32's range. They go into
tests/golden/edges.safetensors for tests/golden/test_edges.c. The edges are signed zeros, infinities, NaN, the
largest and the smallest finite numbers, subnormals. Of two inputs all pairs are taken. A set of inputs is
edges.SET.a (and .b); a case is NAME.y, and the gradients of its sum as NAME.da and NAME.db; of rows, of the sum
of y * (1, 2, -1).

    /usr/bin/python3 tools/golden/record_golden_edges.py      (Debian's python3-torch)
"""
import numpy as np
import torch
import torch.nn.functional as F

from record_golden import save

MOST, LEAST, TINY = 3.4028234663852886e38, 1.1754943508222875e-38, 1e-40
INF, NAN = float("inf"), float("nan")
EDGES = [0, -0.0, 1, -1, INF, -INF, NAN, MOST, -MOST, LEAST, -LEAST, TINY, -TINY]
POINTS = EDGES + [1.4e-45, -1.4e-45, 0.5, 2.5, -2.5, 3, -3, 6, 30, -30, 100, -100, 1e20, -1e20]
PAIRED = EDGES + [0.5, 2, -2, 3]
IN_ROWS = [0, 1, -1, INF, -INF, NAN, MOST, -MOST, LEAST, TINY, 1e20, -1e19]
CHANCES = [0, 1, 0.5, LEAST, TINY, 1e-13, 1e-11, 2.0 ** -24, 1 - 2.0 ** -24]
TARGETS = [0, 1, 0.5]


def pairs(first, second):
    grid = np.array([(a, b) for a in first for b in second], np.float32)
    return grid[:, 0].copy(), grid[:, 1].copy()


def focal(x, t):  # torchvision.ops.sigmoid_focal_loss
    p, ce = torch.sigmoid(x), F.binary_cross_entropy_with_logits(x, t, reduction="none")
    p_t = p * t + (1 - p) * (1 - t)
    return (0.25 * t + 0.75 * (1 - t)) * ce * (1 - p_t) ** 2


def fixed(x, *values):
    return torch.tensor(values, dtype=x.dtype).expand(x.shape)


def first(x):
    return torch.zeros(len(x), dtype=torch.long)


def rows():
    a, b = pairs(IN_ROWS, IN_ROWS)
    return np.stack([a, b, np.full_like(a, 0.5)], 1), None


SETS = {"points": (np.array(POINTS, np.float32), None), "pairs": pairs(PAIRED, PAIRED),
        "chances": pairs(CHANCES, TARGETS), "logits": pairs(POINTS, TARGETS),
        "signs": pairs(POINTS, [1, -1]), "rows": rows(),
        "spreads": pairs(POINTS, [0, 1, 0.5, LEAST, TINY, MOST, INF])}


UNARY = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "log": torch.log,
    "log1p": torch.log1p, "expm1": torch.expm1, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "square": torch.square, "sin": torch.sin, "cos": torch.cos,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "softplus": F.softplus,
    "erf": torch.erf, "floor": torch.floor, "heaviside": lambda x: (x > 0).float(),
    "log_sigmoid": F.logsigmoid, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "mish": F.mish, "selu": F.selu, "softsign": F.softsign, "round": torch.round,
    "ceil": torch.ceil, "erfinv": torch.erfinv, "atan": torch.atan,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.01), "elu": F.elu,
    "affine": lambda x: x * 3 - 0.5, "clamp": lambda x: torch.clamp(x, -1, 3),
    "celu": lambda x: F.celu(x, 0.5), "asin": torch.asin, "acos": torch.acos,
    "pow_0": lambda x: x ** 0.0, "pow_2": lambda x: x ** 2.0, "pow_half": lambda x: x ** 0.5,
    "pow_minus_1": lambda x: x ** -1.0,
    "masked_fill": lambda x: x.masked_fill(x > 0, 7.0),
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow,
    "eq": lambda a, b: (a == b).float(), "lt": lambda a, b: (a < b).float(),
    "le": lambda a, b: (a <= b).float(), "gt": lambda a, b: (a > b).float(),
    "ge": lambda a, b: (a >= b).float(), "mask": lambda a, b: torch.where(b.detach() == 0, 0.0, a),
    "mask_inv": lambda a, b: torch.where(b.detach() == 0, a, 0.0),
    "where": lambda a, b: torch.where(a.detach() != 0, a, b),
    "atan2": torch.atan2, "fmod": torch.fmod, "remainder": torch.remainder,
    "mse": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "l1": lambda a, b: F.l1_loss(a, b, reduction="none"),
    "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none", delta=2),
    "margin_ranking": lambda a, b: F.margin_ranking_loss(a, b, torch.ones_like(a), margin=0.5,
                                                         reduction="none"),
}
SPREADS = {"gaussian_nll": lambda a, b: F.gaussian_nll_loss(a, torch.zeros_like(a), b,
                                                            reduction="none")}
LOSSES = {  # of a only: b is a target
    "bce": ("chances", lambda a, b: F.binary_cross_entropy(a, b, reduction="none")),
    "bce_logits": ("logits", lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction="none")),
    "kl_div": ("chances", lambda a, b: F.kl_div(a, b, reduction="none")),
    "kl_div_log": ("pairs", lambda a, b: F.kl_div(a, b, reduction="none", log_target=True)),
    "poisson_nll": ("logits", lambda a, b: F.poisson_nll_loss(a, b, reduction="none")),
    "soft_margin": ("signs", lambda a, b: F.soft_margin_loss(a, b, reduction="none")),
    "hinge_embedding": ("signs", lambda a, b: F.hinge_embedding_loss(a, b, reduction="none")),
    "poisson_nll_rate": ("logits", lambda a, b: F.poisson_nll_loss(a, b, log_input=False,
                                                                  reduction="none")),
    "focal": ("logits", lambda a, b: focal(a, b)),
    "prelu": ("signs", lambda a, b: torch.where(a > 0, a, b * a)),
}
ROWS = {
    "sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1), "max": lambda x: x.amax(1),
    "min": lambda x: x.amin(1), "prod": lambda x: x.prod(1), "var": lambda x: x.var(1),
    "std": lambda x: x.std(1), "logsumexp": lambda x: torch.logsumexp(x, 1),
    "norm1": lambda x: torch.linalg.vector_norm(x, 1, 1),
    "norm2": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, INF, 1),
    "cumsum": lambda x: x.cumsum(1), "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "group_norm": lambda x: F.group_norm(x[:, None], 1)[:, 0],
    "instance_norm": lambda x: F.instance_norm(x[:, None])[:, 0],
    "max_pool": lambda x: F.max_pool1d(x[:, None], 2, 1)[:, 0],
    "avg_pool": lambda x: F.avg_pool1d(x[:, None], 2, 1)[:, 0],
    "argmax": lambda x: x.argmax(1).float(), "argmin": lambda x: x.argmin(1).float(),
    "sort": lambda x: torch.sort(x, dim=1, stable=True)[0],
    "dot": lambda x: x @ torch.tensor([0.0, 1.0, 2.0], dtype=x.dtype),
    "cross_entropy": lambda x: F.cross_entropy(x, first(x), reduction="none"),
    "soft_cross_entropy": lambda x: F.cross_entropy(x, torch.full_like(x, 1 / 4), reduction="none"),
    "cosine_embedding": lambda x: F.cosine_embedding_loss(x, torch.ones_like(x),
                                                          torch.ones(len(x), dtype=x.dtype), reduction="none"),
    "triplet": lambda x: F.triplet_margin_loss(x, torch.ones_like(x), torch.zeros_like(x),
                                               reduction="none"),
    "multi_margin": lambda x: F.multi_margin_loss(x, first(x), reduction="none"),
    "multilabel_margin": lambda x: F.multilabel_margin_loss(
        x, torch.tensor([0, -1, -1]).expand(x.shape), reduction="none"),
    "multilabel_soft_margin": lambda x: F.multilabel_soft_margin_loss(x, fixed(x, 1, 0, 1),
                                                                     reduction="none"),
    "distillation": lambda x: 9 * F.kl_div(torch.log_softmax(x / 3, 1),
                                           torch.log_softmax(fixed(x, 0, 1, 2) / 3, 1),
                                           reduction="none", log_target=True).sum(1),
    "weight_norm": lambda x: torch._weight_norm(x, torch.ones(len(x), 1, dtype=x.dtype), 0),
    "topk": lambda x: x.topk(2, 1)[0],
    "conv1d": lambda x: F.conv1d(x[:, None], torch.tensor([[[0.0, 1.0]]], dtype=x.dtype))[:, 0],
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool1d(x[:, None], 2)[:, 0],
    "tril": lambda x: torch.tril(x[:, None])[:, 0],
    "cross": lambda x: torch.linalg.cross(x, fixed(x, 1, 2, 3)),
    "pad_reflect": lambda x: F.pad(x[:, None], (0, 1), mode="reflect")[:, 0, 1:],
}


def outputs(function, sources, leaves):
    """y, and the slope of its sum by each leaf; of rows, of the sum of y * (1, 2, -1)."""
    y = function(*sources)
    found = {"y": y.detach()}
    if y.requires_grad:
        # not y * weights: of an infinite y that sum is NaN, and no slope is of the sum's value
        weights = torch.tensor([1.0, 2.0, -1.0])[: y.shape[-1]] if y.dim() > 1 else torch.tensor(1.0)
        y.backward(weights.to(y.dtype).expand(y.shape).contiguous())
        found.update({"d" + key: leaf.grad for key, leaf in leaves.items() if leaf.grad is not None})
    return {key: value.numpy().astype(np.float32) for key, value in found.items()}


def alike(x, y):
    with np.errstate(all="ignore"):
        return bool(np.all((x == y) | (np.isnan(x) & np.isnan(y)) | (abs(x - y) <= 1e-5 * abs(y))))


def record(arrays, name, of, function, only_a):
    """In float32; and in float64, rounded, as NAME.y.exact, where that is something else."""
    found = []
    for dtype in (torch.float32, torch.float64):
        sources = [torch.tensor(x, dtype=dtype) for x in SETS[of] if x is not None]
        leaves = {k: x.requires_grad_(not only_a or k == "a") for k, x in zip("ab", sources)}
        found.append(outputs(function, sources, leaves))
    for key, value in found[0].items():
        arrays[f"{name}.{key}"] = value
        if not alike(value, found[1][key]):
            arrays[f"{name}.{key}.exact"] = found[1][key]


def main():
    torch.set_num_threads(1)
    arrays = {}
    for name, (a, b) in SETS.items():
        arrays[f"edges.{name}.a"] = a
        if b is not None:
            arrays[f"edges.{name}.b"] = b
    for of, functions in (("points", UNARY), ("rows", ROWS), ("pairs", BINARY), ("spreads", SPREADS)):
        for name, function in functions.items():
            record(arrays, name, of, function, False)
    for name, (of, function) in LOSSES.items():
        record(arrays, name, of, function, True)
    save("edges", arrays)


if __name__ == "__main__":
    main()
