#!/usr/bin/env python3
"""Errors of random models in mixed precision beside those of PyTorch's autocast.

    DTRAIN_RANDOM_DUMP=build/models.json DTRAIN_RANDOM_COUNT=1000 build/dtest mixed_precision_err
    python3 tools/golden/compare_autocast.py build/models.json [--record]

Each line is a model (tests/random/random_dump.h) with its values and gradients in float64 and in
ours. Here it is made in PyTorch in float64, which must agree, and under torch.autocast("cpu",
torch.bfloat16). An error is the norm of the difference from float64. Ours may be at most 1.5 times PyTorch's.
The floor is two units in the last place of bf16 of the result's norm. If the two errors have one distribution,
some models are beyond by chance, equally on the two sides. The row table is printed last. `--record` writes it
to tests/golden/autocast_rows.txt, of which tools/generate/ops_doc makes a table of docs/ops.md. A value is of
the row that makes it, a gradient of the rows that read its parameter. A row also has the errors of the rows
before it and after it. Exits with 1 if more than 1 % of ours are beyond, and 1.5 times PyTorch's number.
"""
import collections
import json
import math
import sys
import warnings

import torch
import torch.nn.functional as F

FACTOR, FLOOR = 1.5, 2.0 ** -7
ROWS = "tests/golden/autocast_rows.txt"
# Functions that are not called as their kind of tests/random/random_graph.h.
CALLS = {"matmul_t": "matmul_transposed", "gather": "embedding", "take": "gather",
         "scatter": "scatter_add", "select": "index_select", "each": "cross_entropy_each",
         "convt2d": "conv_transpose2d", "convt1d": "conv_transpose1d", "max_pool": "max_pool2d",
         "avg_pool": "avg_pool2d", "adaptive": "adaptive_avg_pool2d", "weighted": "weighted_loss",
         "concat3": "concat", "to_f32": "cast", "reflect": "pad_reflect", "replicate": "pad_replicate",
         "circular": "pad_circular"}


def call(stmt):
    kind = stmt["kind"].lower()
    return stmt["function"] if kind in ("unary", "binary") else CALLS.get(kind, kind)


class Skip(Exception):
    pass


UNARY = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "log": torch.log,
    "log1p": torch.log1p, "expm1": torch.expm1, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "square": torch.square, "sin": torch.sin, "cos": torch.cos,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": F.relu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "softplus": F.softplus,
    "log_sigmoid": F.logsigmoid, "selu": F.selu, "mish": F.mish, "softsign": F.softsign,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "erf": torch.erf, "atan": torch.atan,
    "erfinv": torch.erfinv, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
    "heaviside": lambda x: (x > 0).to(x.dtype)}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow,
    "eq": lambda a, b: (a == b).to(wide(a, b)), "lt": lambda a, b: (a < b).to(wide(a, b)),
    "le": lambda a, b: (a <= b).to(wide(a, b)), "gt": lambda a, b: (a > b).to(wide(a, b)),
    "ge": lambda a, b: (a >= b).to(wide(a, b)),
    "mask": lambda a, b: torch.where(b == 0, torch.zeros((), dtype=a.dtype), a),
    "mask_inv": lambda a, b: torch.where(b == 0, a, torch.zeros((), dtype=a.dtype))}


def wide(a, b):
    return torch.promote_types(a.dtype, b.dtype)


class Value:
    """A tensor, whose first dimension is the samples' where there are some."""

    def __init__(self, t, samples):
        self.t, self.samples = t, samples

    @property
    def rank(self):
        return self.t.ndim - self.samples

    def axis(self, axis):
        return self.samples + (axis + self.rank if axis < 0 else axis)

    def at_rank(self, rank):
        """With leading ones, so that PyTorch broadcasts it as the library does."""
        if not self.samples or self.rank >= rank:
            return self.t
        return self.t.reshape(self.t.shape[:1] + (1,) * (rank - self.rank) + self.t.shape[1:])


class Model:
    def __init__(self, model, dtype):
        self.m, self.dtype, self.batch = model, dtype, model["batch"]
        self.at, self.params = [], {}
        for i, s in enumerate(model["stmts"]):
            self.at.append(self.stmt(i, s))

    def leaf(self, i, s):
        kind = s["kind"]
        samples = kind in ("INPUT", "INDEX")
        index = kind.startswith("INDEX")
        t = torch.tensor(s["values"], dtype=torch.float64).reshape(
            ([self.batch] if samples else []) + s["shape"])
        t = t.to(torch.int64) if index else t.to(self.dtype)
        if not index and kind != "BUFFER":
            t.requires_grad_(True)  # gradients may be asked of any
        self.params[i] = t
        return Value(t, samples)

    def stmt(self, i, s):
        kind = s["kind"]
        if "values" in s:
            return self.leaf(i, s)
        ins = [self.at[k] if k >= 0 else None for k in s["in"]]
        function = getattr(self, kind.lower(), None)
        if function is None or kind in ("STMT", "LEAF"):
            raise Skip(kind)
        return function(s, *[x for x in ins])

    # ---- elementwise

    def fill(self, s, *_):
        return Value(torch.full(s["shape"], s["real"][0], dtype=self.dtype), False)

    def unary(self, s, x, *_):
        return Value(UNARY[s["function"]](x.t), x.samples)

    def leaky_relu(self, s, x, *_):
        return Value(F.leaky_relu(x.t, s["real"][0]), x.samples)

    def elu(self, s, x, *_):
        return Value(F.elu(x.t, s["real"][0]), x.samples)

    def clamp(self, s, x, *_):
        return Value(torch.clamp(x.t, s["real"][0], s["real"][1]), x.samples)

    def affine(self, s, x, *_):
        return Value(x.t * s["real"][0] + s["real"][1], x.samples)

    def together(self, *xs):
        rank = max(x.rank for x in xs)
        return [x.at_rank(rank) for x in xs], any(x.samples for x in xs)

    def binary(self, s, a, b, *_):
        (x, y), samples = self.together(a, b)
        return Value(BINARY[s["function"]](x, y), samples)

    def where(self, s, c, a, b, *_):
        (c, a, b), samples = self.together(c, a, b)
        return Value(torch.where(c != 0, a, b), samples)

    def copy(self, s, x, *_):
        return Value(x.t.clone(), x.samples)

    def detach(self, s, x, *_):
        return Value(x.t.detach(), x.samples)

    def to_f32(self, s, x, *_):
        return Value(x.t if x.t.is_floating_point() else x.t.to(self.dtype), x.samples)

    def to_i32(self, s, x, *_):
        return Value(x.t.to(torch.int64), x.samples)

    # ---- shapes

    def shaped(self, x, shape):
        return Value(x.t.reshape(list(x.t.shape[:x.samples]) + list(shape)), x.samples)

    def reshape(self, s, x, *_):
        return self.shaped(x, s["shape"])

    def flatten(self, s, x, *_):
        return self.shaped(x, [math.prod(x.t.shape[x.samples:])])

    def permute(self, s, x, *_):
        return Value(x.t.permute([0] * x.samples + [x.axis(a) for a in s["shape"]]), x.samples)

    def slice(self, s, x, *_):
        axis, start, length = s["number"][:3]
        return Value(x.t.narrow(x.axis(axis), start, length), x.samples)

    def concat(self, s, *xs):
        xs = [x for x in xs if x]
        samples = any(x.samples for x in xs)
        axis = s["number"][0]
        axis = axis + xs[0].rank if axis < 0 else axis
        parts = [x.t if x.samples == samples else x.t.expand([self.batch] + list(x.t.shape))
                 for x in xs]
        return Value(torch.cat(parts, samples + axis), samples)

    concat3 = concat

    def expand(self, s, x, *_):
        t = x.at_rank(len(s["shape"]))
        return Value(t.expand(list(t.shape[:x.samples]) + s["shape"]), x.samples)

    def padded(self, x, axis, before, after, mode):
        a = x.axis(axis)
        t = x.t.movedim(a, -1)
        if mode == "constant":
            t = F.pad(t, (before, after))
        else:
            flat = F.pad(t.reshape(1, -1, t.shape[-1]), (before, after), mode=mode)
            t = flat.reshape(list(t.shape[:-1]) + [flat.shape[-1]])
        return Value(t.movedim(-1, a), x.samples)

    def pad(self, s, x, *_):
        return self.padded(x, *s["number"][:3], "constant")

    def reflect(self, s, x, *_):
        return self.padded(x, *s["number"][:3], "reflect")

    def replicate(self, s, x, *_):
        return self.padded(x, *s["number"][:3], "replicate")

    def circular(self, s, x, *_):
        return self.padded(x, *s["number"][:3], "circular")

    def flip(self, s, x, *_):
        return Value(x.t.flip(x.axis(s["number"][0])), x.samples)

    def roll(self, s, x, *_):
        return Value(x.t.roll(s["number"][1], x.axis(s["number"][0])), x.samples)

    def tril(self, s, x, *_):
        return Value(x.t.tril(s["number"][0]), x.samples)

    def triu(self, s, x, *_):
        return Value(x.t.triu(s["number"][0]), x.samples)

    # ---- reductions

    def axes(self, s, x):
        return [x.axis(a) for a in s["shape"]] or list(range(x.samples, x.t.ndim))

    def reduced(self, s, x, function):
        axes, keep = self.axes(s, x), bool(s["number"][0])
        if not axes:
            return x
        return Value(function(x.t, axes, keep), x.samples)

    def sum(self, s, x, *_):
        return self.reduced(s, x, lambda t, a, k: t.sum(a, keepdim=k))

    def mean(self, s, x, *_):
        return self.reduced(s, x, lambda t, a, k: t.mean(a, keepdim=k))

    def max(self, s, x, *_):
        return self.reduced(s, x, lambda t, a, k: t.amax(a, keepdim=k))

    def min(self, s, x, *_):
        return self.reduced(s, x, lambda t, a, k: t.amin(a, keepdim=k))

    def var(self, s, x, *_):
        return self.reduced(s, x, lambda t, a, k: t.var(a, unbiased=False, keepdim=k))

    def sum_samples(self, s, x, *_):
        return Value(x.t.sum(0), False) if x.samples else x

    def softmax(self, s, x, *_):
        return Value(F.softmax(x.t, x.axis(s["number"][0])), x.samples)

    def log_softmax(self, s, x, *_):
        return Value(F.log_softmax(x.t, x.axis(s["number"][0])), x.samples)

    def cumsum(self, s, x, *_):
        return Value(x.t.cumsum(x.axis(s["number"][0])), x.samples)

    # ---- products

    def matmul(self, s, a, b, *_):
        (x, y), samples = self.together(a, b)
        return Value(torch.matmul(x, y), samples)

    def matmul_t(self, s, a, b, *_):
        (x, y), samples = self.together(a, b)
        x = x.mT if s["number"][0] else x
        return Value(torch.matmul(x, y.mT if s["number"][1] else y), samples)

    def linear(self, s, x, w, b, *_):
        return Value(F.linear(x.t, w.t, b.t if b else None), x.samples)

    def attention(self, s, q, k, v, mask, *_):
        causal, window, alibi = s["number"][:3]
        if s["real"][1] or window or alibi or mask:
            raise Skip("ATTENTION")
        samples = any(x.samples for x in (q, k, v))
        heads = q.t.shape[q.samples]
        q, k, v = [x.t if x.samples or not samples else x.t[None] for x in (q, k, v)]
        k, v = [x.repeat_interleave(heads // x.shape[-3], -3) for x in (k, v)]
        rows, columns = q.shape[-2], k.shape[-2]
        keep = torch.ones(rows, columns, dtype=torch.bool)
        keep = keep.tril(columns - rows) if causal else keep
        scores = torch.matmul(q, k.mT) * s["real"][0]
        p = F.softmax(scores.masked_fill(~keep, -math.inf), -1)
        return Value(torch.matmul(p, v), samples)

    def places(self, index, samples):
        return index.t if index.samples or not samples else \
            index.t.expand([self.batch] + list(index.t.shape))

    def gather(self, s, table, index, *_):
        rows = F.embedding(index.t, table.t) if table.t.ndim == 2 else table.t[index.t]
        return Value(rows, index.samples)

    def take(self, s, x, index, *_):
        return Value(x.t.gather(x.axis(s["number"][0]), self.places(index, x.samples)), x.samples)

    def scatter(self, s, x, index, *_):
        axis = x.axis(s["number"][0])
        shape = list(x.t.shape)
        shape[axis] = s["number"][1]
        zeros = torch.zeros(shape, dtype=x.t.dtype)
        return Value(zeros.scatter_add(axis, self.places(index, x.samples), x.t), x.samples)

    def select(self, s, x, index, *_):
        axis = x.axis(s["number"][0])
        if index.samples:
            raise Skip("SELECT")
        return Value(x.t.index_select(axis, index.t), x.samples)

    def one_hot(self, s, index, *_):
        return Value(F.one_hot(index.t, s["number"][0]).to(self.dtype), index.samples)

    # ---- images

    def imaged(self, x, function):
        y = function(x.t if x.samples else x.t[None])
        return Value(y if x.samples else y[0], x.samples)

    def conv2d(self, s, x, w, b, *_):
        n = s["number"]
        return self.imaged(x, lambda t: F.conv2d(
            t, w.t, b.t if b else None, [n[0] or 1, n[1] or 1], n[2:4], [n[4] or 1, n[5] or 1], n[6] or 1))

    def conv1d(self, s, x, w, b, *_):
        n = s["number"]
        return self.imaged(x, lambda t: F.conv1d(
            t, w.t, b.t if b else None, n[0] or 1, n[2], n[4] or 1, n[6] or 1))

    def convt2d(self, s, x, w, b, *_):
        n = s["number"]
        return self.imaged(x, lambda t: F.conv_transpose2d(
            t, w.t, b.t if b else None, [n[0] or 1, n[1] or 1], n[2:4], n[7:9], n[6] or 1,
            [n[4] or 1, n[5] or 1]))

    def convt1d(self, s, x, w, b, *_):
        n = s["number"]
        return self.imaged(x, lambda t: F.conv_transpose1d(
            t, w.t, b.t if b else None, n[0] or 1, n[2], n[7], n[6] or 1, n[4] or 1))

    def max_pool(self, s, x, *_):
        n = s["number"]
        return self.imaged(x, lambda t: F.max_pool2d(t, n[:2], n[2:4], n[4:6],
                                                     ceil_mode=bool(n[6])))

    def avg_pool(self, s, x, *_):
        n = s["number"]
        return self.imaged(x, lambda t: F.avg_pool2d(t, n[:2], n[2:4], n[4:6], bool(n[6]),
                                                     not n[7]))

    def adaptive(self, s, x, *_):
        return self.imaged(x, lambda t: F.adaptive_avg_pool2d(t, s["number"][:2]))

    def resize(self, s, x, *_):
        n = s["number"]
        more = {"mode": "bilinear", "align_corners": False} if n[2] else {"mode": "nearest"}
        return self.imaged(x, lambda t: F.interpolate(t, size=n[:2], **more))

    # ---- norms

    def layer_norm(self, s, x, w, b, *_):
        shape = x.t.shape[x.t.ndim - s["number"][0]:]
        return Value(F.layer_norm(x.t, shape, w.t if w else None, b.t if b else None,
                                  s["real"][0] or 1e-5), x.samples)

    def rms_norm(self, s, x, w, *_):
        shape = x.t.shape[x.t.ndim - s["number"][0]:]
        return Value(F.rms_norm(x.t, shape, w.t if w else None, s["real"][0] or 1e-5), x.samples)

    def group_norm(self, s, x, w, b, *_):
        return self.imaged(x, lambda t: F.group_norm(
            t, s["number"][0], w.t if w else None, b.t if b else None, s["real"][0] or 1e-5))

    def batch_norm(self, s, x, w, b, mean, variance):
        return Value(F.batch_norm(
            x.t, mean.t.clone() if mean else None, variance.t.clone() if variance else None,
            w.t if w else None, b.t if b else None, not s["number"][0], s["real"][0] or 0.1),
            x.samples)

    # ---- losses: (sum, weight)

    def classes(self, x, t):
        """Rows of logits and their targets."""
        if x.samples and not t.samples:
            t = Value(self.places(t, True), True)
        if t.samples and not x.samples:
            x = Value(x.t.expand([self.batch] + list(x.t.shape)), True)
        return x.t.reshape(-1, x.t.shape[-1]), t.t.reshape(-1)

    def ignored(self, s):
        return s["number"][0] if s["number"][0] else -100

    def cross_entropy(self, s, x, t, w, *_):
        rows, targets = self.classes(x, t)
        if targets.is_floating_point():
            raise Skip("CROSS_ENTROPY of shares")
        more = dict(weight=w.t.detach() if w else None, ignore_index=self.ignored(s), reduction="sum")
        ones = torch.zeros(rows.shape, dtype=self.dtype)
        weight = F.nll_loss(-ones - 1 + 2, targets, **more) * -1
        return F.cross_entropy(rows, targets, label_smoothing=s["real"][0], **more), weight

    def nll(self, s, x, t, w, *_):
        rows, targets = self.classes(x, t)
        if targets.is_floating_point():
            raise Skip("NLL of shares")
        more = dict(weight=w.t.detach() if w else None, ignore_index=self.ignored(s), reduction="sum")
        ones = torch.ones(rows.shape, dtype=self.dtype)
        return F.nll_loss(rows, targets, **more), -F.nll_loss(ones, targets, **more)

    def each(self, s, x, t, *_):
        rows, targets = self.classes(x, t)
        y = F.cross_entropy(rows, targets, ignore_index=self.ignored(s),
                            label_smoothing=s["real"][0], reduction="none")
        samples = x.samples or t.samples
        return Value(y.reshape(([self.batch] if samples else []) +
                               list(x.t.shape[x.samples:-1])), samples)

    def weighted(self, s, x, w, *_):
        (a, b), samples = self.together(x, w)
        a, b = torch.broadcast_tensors(a, b)
        return (a * b).sum(), b.sum()

    def mse(self, s, x, t, *_):
        (a, b), _ = self.together(x, t)
        a, b = torch.broadcast_tensors(a, b)
        return F.mse_loss(a, b, reduction="sum"), torch.tensor(float(a.numel()))

    def mean_loss(self, s, x, *_):
        return x.t.sum(), torch.tensor(float(x.t.numel()))

    def accuracy(self, s, x, t, *_):
        rows, targets = self.classes(x, t)
        hits = rows.detach().argmax(-1) == targets if not targets.is_floating_point() else None
        if hits is None:
            raise Skip("ACCURACY of shares")
        counted = targets != -100
        return (hits & counted).sum().to(self.dtype), counted.sum().to(self.dtype)

    def bce(self, s, p, t, *_):
        (p, t), samples = self.together(p, t)
        log = lambda v: torch.clamp(torch.log(v), min=-100.0)
        return Value(-(t * log(p) + (1 - t) * log(1 - p)), samples)

    def gradient(self, s, y, x, *_):
        total = y[0] if isinstance(y, tuple) else y.t.sum()
        dx, = torch.autograd.grad(total, x.t, create_graph=True, allow_unused=True)
        if dx is None:
            raise Skip("GRADIENT")
        return Value(dx, x.samples)

    # ---- results

    def total(self):
        loss = 0
        for i, coefficient in zip(self.m["losses"], self.m["coefficients"]):
            sums, weight = self.at[i]
            if float(weight) > 0:
                loss = loss + coefficient * (sums / weight.detach())
        return loss

    def results(self):
        total = self.total()
        names = [r["stmt"] for r in self.m["results"] if r["what"] == "gradient of"]
        dx = torch.autograd.grad(total, [self.params[i] for i in names], allow_unused=True) \
            if names and torch.is_tensor(total) and total.requires_grad else [None] * len(names)
        gradients = dict(zip(names, dx))
        out = []
        for r in self.m["results"]:
            x = self.at[r["stmt"]]
            if r["what"] == "gradient of":
                g = gradients[r["stmt"]]
                out.append(g.reshape(-1).tolist() if g is not None else [0.0] * len(r["exact"]))
            elif isinstance(x, tuple):
                out.append([float(x[0]), float(x[1])])
            else:
                out.append(x.t.to(torch.float64).reshape(-1).tolist())
        return out


def norm(a, b=None):
    return math.sqrt(sum((x - (b[i] if b else 0)) ** 2 for i, x in enumerate(a)))


def make(model, autocast):
    if not autocast:
        return Model(model, torch.float64).results()
    with torch.autocast("cpu", torch.bfloat16):
        m = Model(model, torch.float32)
        m.total()
    return m.results()


def agrees(model, values):
    for r, got in zip(model["results"], values):
        size = max(norm(r["exact"]), 1e-3)
        if len(got) != len(r["exact"]) or not norm(got, r["exact"]) <= 1e-5 * size:
            return f'{model["stmts"][r["stmt"]]["kind"]} ({r["what"]})'
    return None


class Tally:
    def __init__(self):
        self.skipped, self.differ = collections.Counter(), collections.Counter()
        self.models = self.results = 0
        self.beyond = [0, 0]  # of ours by PyTorch's bound, of PyTorch's by ours
        self.logs, self.worst = [], []
        self.rows = collections.defaultdict(list)

    def row(self, model, result, log):
        """Of the row that makes a value, or of those that read a parameter."""
        stmts = model["stmts"]
        users = [stmts[result["stmt"]]]
        if result["what"] == "gradient of":
            users = [s for s in stmts if "values" not in s and result["stmt"] in s["in"]]
        for name in {call(s) for s in users if "values" not in s}:
            self.rows[name].append(log)

    def table(self):
        """Lines: row, geometric mean and largest of our error / PyTorch's, how many."""
        return [f"{name} {math.exp(sum(logs) / len(logs)):.2f} {math.exp(max(logs)):.2f} {len(logs)}"
                for name, logs in sorted(self.rows.items()) if len(logs) >= 10]

    def compare(self, model, theirs):
        self.models += 1
        for r, got in zip(model["results"], theirs):
            size = norm(r["exact"])
            ours, other = norm(r["ours"], r["exact"]), norm(got, r["exact"])
            if not math.isfinite(ours + other):
                continue
            self.results += 1
            floor = FLOOR * size + 1e-6
            self.beyond[0] += ours > FACTOR * other + floor
            self.beyond[1] += other > FACTOR * ours + floor
            if min(ours, other) > 2.0 ** -10 * size + 1e-6:
                self.logs.append(math.log(ours / other))
                self.row(model, r, self.logs[-1])
            self.worst.append((ours / (FACTOR * other + floor), model["seed"], r["what"], r["stmt"],
                               model["stmts"][r["stmt"]]["kind"], ours / (size or 1),
                               other / (size or 1)))

    def report(self):
        print(f"{self.models} models, {self.results} values and gradients; not made in PyTorch: "
              f"{sum(self.skipped.values())} {dict(self.skipped.most_common(8))}; float64 differs: "
              f"{sum(self.differ.values())} {dict(self.differ.most_common(12))}")
        print(f"beyond {FACTOR} times the other's error and the floor: {self.beyond[0]} of ours, "
              f"{self.beyond[1]} of PyTorch's")
        if self.logs:
            print(f"geometric mean of our error / PyTorch's, over {len(self.logs)} above the "
                  f"floor: {math.exp(sum(self.logs) / len(self.logs)):.3f}")
        for w in sorted(self.worst, reverse=True)[:12]:
            print("  %.2f of what is allowed: seed %d, %s t%d (%s): ours %.3g, PyTorch %.3g" % w)
        print("row, mean, worst, count\n  " + "\n  ".join(self.table()))
        few = self.beyond[0] <= 0.01 * self.results
        return few or self.beyond[0] <= 1.5 * self.beyond[1]


def main(path):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    tally = Tally()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            model = json.loads(line)
            try:
                wrong = agrees(model, make(model, False))
                if wrong:
                    tally.differ[wrong] += 1
                    if "-v" in sys.argv:
                        print("float64 differs:", model["seed"], wrong)
                    continue
                tally.compare(model, make(model, True))
            except Skip as e:
                tally.skipped[str(e)] += 1
            except (RuntimeError, ValueError, IndexError, TypeError) as e:
                tally.skipped[str(e).splitlines()[0][:60]] += 1
    good = tally.report()
    if "--record" in sys.argv:
        with open(ROWS, "w", encoding="utf-8") as file:
            file.write(f"{tally.models} {tally.results}\n" + "\n".join(tally.table()) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
