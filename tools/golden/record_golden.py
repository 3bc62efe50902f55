#!/usr/bin/env python3
"""Records PyTorch's values for tests/golden/test_golden.c into tests/golden/*.safetensors.

Each program below is trained for 20 steps in float32. A file holds the initial weights (init.NAME), the inputs
of each step (first axis: the step) and its loss (F64). It also holds the final weights (final.NAME), under
dtrain's parameter names. Every program is also run in float64 with the same inputs, and the largest relative
difference is printed. It must stay well below the 1e-5 that the tests allow. Otherwise a program is too
sensitive to be a fixture.

    /usr/bin/python3 tools/golden/record_golden.py [NAME...]      (Debian's python3-torch)
"""
import json
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden")
STEPS = 20
DTYPES = {"float32": "F32", "float64": "F64", "int32": "I32"}


def save(name, arrays):
    """Writes a safetensors file: header length, JSON header, data."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for key, value in arrays.items():
        value = np.ascontiguousarray(value).reshape(np.shape(value))
        blob = value.tobytes()
        header[key] = {"dtype": DTYPES[str(value.dtype)], "shape": list(value.shape),
                       "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, name + ".safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def linears(seed, **layers):
    """Initial weights name.weight [out, in] and name.bias of name=(in, out[, bias])."""
    random, init = np.random.RandomState(seed), {}
    for name, (n_in, n_out, *bias) in layers.items():
        bound = 1 / np.sqrt(n_in)
        name = name.replace("__", ".")
        init[name + ".weight"] = random.uniform(-bound, bound, (n_out, n_in)).astype(np.float32)
        if bias != [False]:
            init[name + ".bias"] = random.uniform(-bound, bound, n_out).astype(np.float32)
    return init


def normal(seed, *shape):
    return np.asarray(np.random.RandomState(seed).randn(*shape), np.float32)


def classes(seed, count, *shape, ignored=0.0):
    random = np.random.RandomState(seed)
    t = random.randint(0, count, shape).astype(np.int32)
    t[random.uniform(size=shape) < ignored] = -100
    return t


class Net:
    """Weights in one precision, and what is recorded of a run with them."""

    def __init__(self, init, dtype):
        self.dtype, self.init, self.out = dtype, init, {}
        self.p = {k: torch.tensor(v, dtype=dtype, requires_grad=True) for k, v in init.items()}

    def linear(self, name, x):
        return F.linear(x, self.p[name + ".weight"], self.p.get(name + ".bias"))

    def tensor(self, array):
        integer = array.dtype == np.int32
        return torch.tensor(array, dtype=torch.int64 if integer else self.dtype)

    def some(self, pattern):
        return [v for k, v in self.p.items() if pattern(k)]

    def note(self, key, value):
        value = value.detach().numpy() if torch.is_tensor(value) else value
        self.out.setdefault(key, []).append(value)

    def results(self):
        kept = {k: np.stack(v) for k, v in self.out.items()}
        kept.update({"final." + k: v.detach().numpy() for k, v in self.p.items()})
        return kept


def train(net, optim, loss_of, clip=None):
    """STEPS steps of loss_of(step), which may note more."""
    for i in range(STEPS):
        optim.zero_grad()
        loss = loss_of(i)
        loss.backward()
        if clip:
            clip(net)
        optim.step()
        net.note("loss", np.float64(loss.item()))


# ---- The programs: each takes the precision and gives (net, inputs).


def tied(dtype):
    net = Net(linears(1, block=(8, 8), head=(8, 5)), dtype)
    data = {"x": normal(2, STEPS, 6, 8), "t": classes(3, 5, STEPS, 6)}
    x, t = map(net.tensor, data.values())

    def loss_of(i):
        h = net.linear("block", torch.relu(net.linear("block", x[i])))
        return F.cross_entropy(net.linear("head", x[i] + torch.relu(h)), t[i])

    train(net, torch.optim.Adam(net.p.values(), lr=1e-2), loss_of)
    return net, data


def frozen(dtype):
    net = Net(linears(11, fc1=(12, 9), fc2=(9, 7), fc3=(7, 5)), dtype)
    data = {"x": normal(12, STEPS, 8, 12), "t": normal(13, STEPS, 8, 5)}
    x, t = map(net.tensor, data.values())
    for name in ("fc1.weight", "fc1.bias"):
        net.p[name].requires_grad_(False)
    groups = [{"params": net.some(lambda k: k.endswith("bias")), "weight_decay": 0.0},
              {"params": net.some(lambda k: k.endswith("weight")), "weight_decay": 0.1}]

    def loss_of(i):
        h = torch.tanh(net.linear("fc2", torch.tanh(net.linear("fc1", x[i]))))
        return F.mse_loss(net.linear("fc3", h), t[i])

    train(net, torch.optim.AdamW(groups, lr=1e-2), loss_of)
    return net, data


def two_losses(dtype):
    net = Net(linears(21, trunk=(11, 9), head_a=(9, 4), head_b=(9, 3)), dtype)
    data = {"xa": normal(22, STEPS, 8, 6), "xb": normal(23, STEPS, 8, 5),
            "ta": classes(24, 4, STEPS, 8, ignored=0.3), "tb": normal(25, STEPS, 8, 3),
            "class_weights": np.array([0.5, 1, 2, 1.5], np.float32)}
    xa, xb, ta, tb, weights = map(net.tensor, data.values())

    def loss_of(i):
        h = torch.relu(net.linear("trunk", torch.cat([xa[i], xb[i]], 1)))
        a = F.cross_entropy(net.linear("head_a", h), ta[i], weight=weights, label_smoothing=0.1)
        b = F.mse_loss(net.linear("head_b", h), tb[i])
        net.note("loss_a", np.float64(a.item()))
        net.note("loss_b", np.float64(b.item()))
        return a + 0.5 * b

    train(net, torch.optim.SGD(net.p.values(), lr=0.05, momentum=0.9, nesterov=True,
                               weight_decay=1e-3), loss_of)
    return net, data


def gan(dtype):
    """Least squares (Mao et al., 2017): only listed ops."""
    net = Net(linears(31, gen__fc1=(4, 8), gen__fc2=(8, 6), disc__fc1=(6, 8), disc__fc2=(8, 1)),
              dtype)
    data = {"real": normal(32, STEPS, 7, 6), "zd": normal(33, STEPS, 7, 4),
            "zg": normal(34, STEPS, 7, 4)}
    real, zd, zg = map(net.tensor, data.values())
    adam = {k: torch.optim.Adam(net.some(lambda n, k=k: n.startswith(k)), lr=2e-3,
                                betas=(0.5, 0.999)) for k in ("disc", "gen")}

    def generate(z):
        return torch.tanh(net.linear("gen.fc2", torch.relu(net.linear("gen.fc1", z))))

    def judge(x):
        return net.linear("disc.fc2", F.leaky_relu(net.linear("disc.fc1", x), 0.2))

    for i in range(STEPS):
        loss_d = (judge(real[i]) - 1).square().mean() + judge(generate(zd[i])).square().mean()
        adam["disc"].zero_grad()
        loss_d.backward()
        adam["disc"].step()
        loss_g = (judge(generate(zg[i])) - 1).square().mean()
        adam["gen"].zero_grad()
        loss_g.backward()
        adam["gen"].step()
        net.note("loss_d", np.float64(loss_d.item()))
        net.note("loss_g", np.float64(loss_g.item()))
    return net, data


def penalty(dtype):
    """mean((|dD/dx|_2 - 1)^2), Gulrajani et al., 2017; the last layer has no bias, which would
    reach no loss."""
    net = Net(linears(41, fc1=(6, 9), fc2=(9, 7), fc3=(7, 1, False)), dtype)
    data = {"x": normal(42, STEPS, 5, 6)}
    x = net.tensor(data["x"])

    def loss_of(i):
        xi = x[i].clone().requires_grad_(True)
        y = net.linear("fc3", F.gelu(net.linear("fc2", torch.tanh(net.linear("fc1", xi)))))
        grad, = torch.autograd.grad(y.sum(), xi, create_graph=True)
        return (grad.square().sum(1).sqrt() - 1).square().mean()

    train(net, torch.optim.Adam(net.p.values(), lr=5e-3), loss_of)
    return net, data


def penalty_loss(dtype):
    """Cross-entropy plus 0.1 of the mean square of the gradient of its sum with respect to x."""
    net = Net(linears(51, fc1=(6, 9), fc2=(9, 7), fc3=(7, 4)), dtype)
    data = {"x": normal(52, STEPS, 6, 6), "t": classes(53, 4, STEPS, 6, ignored=0.15)}
    x, t = map(net.tensor, data.values())

    def loss_of(i):
        xi = x[i].clone().requires_grad_(True)
        h = torch.sigmoid(net.linear("fc2", F.silu(net.linear("fc1", xi))))
        y = net.linear("fc3", h)
        total = F.cross_entropy(y, t[i], reduction="sum")
        grad, = torch.autograd.grad(total, xi, create_graph=True)
        return F.cross_entropy(y, t[i]) + 0.1 * grad.square().mean()

    train(net, torch.optim.Adam(net.p.values(), lr=1e-2), loss_of)
    return net, data


def micro(dtype):
    """A batch of 12, which the test cuts into 2, 7 and 3. At some steps the 2 have no target."""
    net = Net(linears(61, fc1=(7, 10), fc2=(10, 5)), dtype)
    data = {"x": normal(62, STEPS, 12, 7), "t": classes(63, 5, STEPS, 12, ignored=0.3)}
    data["t"][3::5, :2] = -100
    x, t = map(net.tensor, data.values())

    def clip(net):
        norm = torch.nn.utils.clip_grad_norm_(net.p.values(), 0.5)
        net.note("norm", np.float64(norm.item()))

    train(net, torch.optim.AdamW(net.p.values(), lr=1e-2),
          lambda i: F.cross_entropy(net.linear("fc2", torch.relu(net.linear("fc1", x[i]))), t[i]),
          clip)
    return net, data


def host_gradient(dtype):
    """The host's loss is sum((y - t)^4) / 40, which no program knows of."""
    net = Net(linears(71, fc1=(5, 8), fc2=(8, 6)), dtype)
    data = {"x": normal(72, STEPS, 4, 5), "t": normal(73, STEPS, 4, 6)}
    x, t = map(net.tensor, data.values())
    optim = torch.optim.SGD(net.p.values(), lr=0.05, momentum=0.9, dampening=0.1)
    for i in range(STEPS):
        y = net.linear("fc2", torch.tanh(net.linear("fc1", x[i])))
        dy = ((y - t[i]) ** 3 / 10).detach()
        optim.zero_grad()
        y.backward(dy)
        optim.step()
        net.note("y", y)
        net.note("dy", dy)
    return net, data


def predict(dtype):
    """After each step the outputs for one probe."""
    net = Net(linears(81, fc1=(6, 10), fc2=(10, 4)), dtype)
    data = {"x": normal(82, STEPS, 9, 6), "t": classes(83, 4, STEPS, 9),
            "probe": normal(84, STEPS, 6)}
    x, t, probe = map(net.tensor, data.values())
    optim = torch.optim.Adam(net.p.values(), lr=1e-2)

    def outputs(x):
        return net.linear("fc2", F.silu(net.linear("fc1", x)))

    for i in range(STEPS):
        optim.zero_grad()
        loss = F.cross_entropy(outputs(x[i]), t[i])
        loss.backward()
        optim.step()
        net.note("loss", np.float64(loss.item()))
        net.note("prediction", outputs(probe[i]))
    return net, data


# ---- The optimizers: one small net, one file. The names and figures stand in test_golden.c too.

def clip_norm(net):
    torch.nn.utils.clip_grad_norm_(net.p.values(), 0.25)


def clip_value(net):
    torch.nn.utils.clip_grad_value_(net.p.values(), 0.02)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1), None),
    "momentum": (torch.optim.SGD, dict(lr=0.05, momentum=0.9), None),
    "nesterov": (torch.optim.SGD, dict(lr=0.05, momentum=0.9, nesterov=True), None),
    "dampening": (torch.optim.SGD, dict(lr=0.05, momentum=0.9, dampening=0.5), None),
    "decay": (torch.optim.SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.01), None),
    "adam": (torch.optim.Adam, dict(lr=0.01), None),
    "adam_decay": (torch.optim.Adam, dict(lr=0.01, weight_decay=0.1), None),
    "adamw": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), None),
    "adam_betas": (torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-3), None),
    "clip_norm": (torch.optim.SGD, dict(lr=0.2), clip_norm),
    "clip_value": (torch.optim.Adam, dict(lr=0.01), clip_value),
}


def optim_variant(name, dtype):
    net = Net(linears(91, fc1=(6, 8), fc2=(8, 4)), dtype)
    data = {"x": normal(92, STEPS, 10, 6), "t": classes(93, 4, STEPS, 10)}
    x, t = map(net.tensor, data.values())
    kind, settings, clip = OPTIMIZERS[name]
    train(net, kind(net.p.values(), **settings),
          lambda i: F.cross_entropy(net.linear("fc2", torch.tanh(net.linear("fc1", x[i]))), t[i]),
          clip)
    return net, data


def optim():
    arrays, drift = {}, 0
    for name in OPTIMIZERS:
        net, data = optim_variant(name, torch.float32)
        drift = max(drift, drift_of(net, optim_variant(name, torch.float64)[0]))
        arrays.update({"init." + k: v for k, v in net.init.items()}, **data)
        arrays.update({f"{name}.{k}": v for k, v in net.results().items()})
    save("optim", arrays)
    return drift


# ---- Single ops, evaluated in float64 at float32 points: the values that f32 kernels must near.

POINTS = np.array([0, -0.0, 1e-30, -1e-30, 1e-6, -1e-6, 1e-3, -1e-3, 0.1, -0.1, 0.25, -0.25, 0.5,
                   -0.5, 0.75, -0.75, 1, -1, 1.5, -1.5, 2, -2, 2.5, -2.5, 3, -3, 4, -4, 5, -5, 7,
                   -7, 10, -10, 19.9, 20, 20.1, -20, 50, -50, 80, -80, 100, -100], np.float32)
POSITIVE = np.array([1e-30, 1e-10, 1e-3, 0.1, 0.5, 0.99, 1, 1.01, 2, 3, 10, 100, 1e6, 1e30],
                    np.float32)
UNARY = {  # name: (function, its points, whether it has a gradient)
    "neg": (torch.neg, POINTS, True), "abs": (torch.abs, POINTS, True),
    "sign": (torch.sign, POINTS, False), "exp": (torch.exp, POINTS[abs(POINTS) <= 80], True),
    "log": (torch.log, POSITIVE, True),
    "log1p": (torch.log1p, POINTS[POINTS > -1], True),
    "expm1": (torch.expm1, POINTS[abs(POINTS) <= 80], True),
    "sqrt": (torch.sqrt, POSITIVE, True),
    "rsqrt": (torch.rsqrt, POSITIVE[POSITIVE > 1e-20], True),
    "reciprocal": (torch.reciprocal, POINTS[abs(POINTS) > 1e-10], True),
    "square": (torch.square, POINTS, True), "sin": (torch.sin, POINTS, True),
    "cos": (torch.cos, POINTS, True), "tanh": (torch.tanh, POINTS, True),
    "sigmoid": (torch.sigmoid, POINTS, True), "relu": (torch.relu, POINTS, True),
    "gelu": (F.gelu, POINTS, True),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), POINTS, True),
    "silu": (F.silu, POINTS, True), "softplus": (F.softplus, POINTS, True),
    "log_sigmoid": (F.logsigmoid, POINTS, True),
    "erf": (torch.erf, POINTS, True), "floor": (torch.floor, POINTS, False),
    "atan": (torch.atan, POINTS, True),
    "erfinv": (torch.erfinv, POINTS[abs(POINTS) < 1], True),
    "heaviside": (lambda x: (x > 0).double(), POINTS, False),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.01), POINTS, True),
    "elu": (F.elu, POINTS, True), "elu_half": (lambda x: F.elu(x, 0.5), POINTS, True),
    "affine": (lambda x: 3 * x - 0.5, POINTS, True),
    "ceil": (torch.ceil, POINTS, False), "round": (torch.round, POINTS, False),
    "selu": (F.selu, POINTS, True), "mish": (F.mish, POINTS, True),
    "softsign": (F.softsign, POINTS, True), "hardsigmoid": (F.hardsigmoid, POINTS, True),
    "hardswish": (F.hardswish, POINTS, True),
    "clamp": (lambda x: torch.clamp(x, -1, 3), POINTS, True),
}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
          "maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow}
ENTROPY = {"plain": {}, "ignored": {}, "smoothed": dict(label_smoothing=0.1),
           "weighted": dict(weight=True), "all": dict(label_smoothing=0.2, weight=True)}


def leaf(array):
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)


def record_op(arrays, name, leaves, y, seed=None):
    """Values and gradients of sum(y * dy), where dy is recorded, or 1."""
    dy = np.ones(y.shape, np.float32) if seed is None else normal(seed, *y.shape)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    key = "ops." + name
    if seed is not None:
        arrays[key + ".dy"] = dy
    arrays[key + ".y"] = y.detach().numpy()
    for k, v in leaves.items():
        arrays[f"{key}.{k}"] = v.detach().numpy().astype(np.float32)
        arrays[f"{key}.d{k}"] = v.grad.numpy()


def ops_elementwise(arrays):
    for name, (function, points, has_gradient) in UNARY.items():
        x = leaf(points)
        if has_gradient:
            record_op(arrays, name, {"x": x}, function(x))
        else:
            arrays.update({f"ops.{name}.x": points, f"ops.{name}.y": function(x).detach().numpy()})
    for name, function in BINARY.items():
        a = leaf(abs(normal(101, 2, 4, 1)) + np.float32(0.1))
        b = leaf(normal(102, 4, 3))
        if name in ("maximum", "minimum"):  # ties
            a = leaf(np.round(normal(101, 2, 4, 1)))
            b = leaf(np.round(normal(102, 4, 3)))
        record_op(arrays, name, {"a": a, "b": b}, function(a, b), 103)


def ops_reductions(arrays):
    x = np.round(normal(104, 3, 4, 5))  # many ties
    for name, function in (("max", torch.amax), ("min", torch.amin), ("sum", torch.sum),
                           ("mean", torch.mean)):
        for axes in ((2,), (0, 1), (0, 1, 2)):
            v = leaf(x)
            record_op(arrays, name + "".join(map(str, axes)), {"x": v}, function(v, dim=axes), 105)
    for name, function in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        for axis in (1, 0):
            v = leaf(normal(106, 5, 7) * np.float32(3) + np.float32(50))
            record_op(arrays, f"{name}{axis}", {"x": v}, function(v, axis), 107)


def ops_products(arrays):
    x, w, b = leaf(normal(108, 3, 4, 5)), leaf(normal(109, 6, 5)), leaf(normal(110, 6))
    record_op(arrays, "linear", {"x": x, "w": w, "b": b}, F.linear(x, w, b), 111)
    for name, ta, tb in (("nn", 0, 0), ("nt", 0, 1), ("tn", 1, 0), ("tt", 1, 1)):
        a = leaf(normal(112, 2, 5, 3) if ta else normal(112, 2, 3, 5))
        b = leaf(normal(113, 4, 5) if tb else normal(113, 5, 4))
        y = (a.transpose(1, 2) if ta else a) @ (b.t() if tb else b)
        record_op(arrays, "matmul_" + name, {"a": a, "b": b}, y, 114)
    table, index = leaf(normal(115, 7, 3)), classes(116, 7, 3, 5)
    record_op(arrays, "embedding", {"table": table}, table[torch.tensor(index, dtype=torch.int64)],
              117)
    arrays["ops.gather.index"] = index


def ops_losses(arrays):
    weight = np.array([0.5, 1, 2, 0.25, 1.5], np.float32)
    arrays["ops.cross_entropy.class_weights"] = weight
    for name, settings in ENTROPY.items():
        settings = dict(settings)
        if settings.pop("weight", False):
            settings["weight"] = torch.tensor(weight, dtype=torch.float64)
        x = leaf(normal(118, 8, 5) * np.float32(2))
        t = classes(119, 5, 8, ignored=0 if name == "plain" else 0.4)
        t64 = torch.tensor(t, dtype=torch.int64)
        # y is the mean, dx the gradient of the sum, as dt_gradient's.
        F.cross_entropy(x, t64, reduction="sum", **settings).backward()
        key = "ops.cross_entropy." + name
        arrays.update({key + ".x": normal(118, 8, 5) * np.float32(2), key + ".t": t,
                       key + ".dx": x.grad.numpy(),
                       key + ".y": F.cross_entropy(x, t64, **settings).detach().numpy()})


def ops():
    arrays = {}
    ops_elementwise(arrays)
    ops_reductions(arrays)
    ops_products(arrays)
    ops_losses(arrays)
    save("ops", arrays)
    return 0


# ---- The main job's first 100 steps. Weights by a formula that both sides compute. s = 1, then for
# each weight of fc1.weight, fc1.bias, fc2.weight, fc2.bias in turn
#     s = (s * 1664525 + 1013904223) mod 2^32,  w = ((s >> 8) / 2^23 - 1) / sqrt(in)
# in double, rounded to float. Step i trains on the
# rows 64 i to 64 i + 63 of the training set.

def fashion_init():
    state, init = 1, {}
    for name, n_in, n_out in (("fc1", 784, 128), ("fc2", 128, 10)):
        for key, shape in ((".weight", (n_out, n_in)), (".bias", (n_out,))):
            values = np.empty(int(np.prod(shape)))
            for i in range(values.size):
                state = (state * 1664525 + 1013904223) % 2 ** 32
                values[i] = (state >> 8) / 2 ** 23 - 1
            init[name + key] = (values / np.sqrt(n_in)).reshape(shape).astype(np.float32)
    return init


def fashion(init, images, labels, dtype):
    net = Net(init, dtype)
    adam = torch.optim.Adam(net.p.values(), lr=1e-3)
    for i in range(100):
        x = images[64 * i:64 * i + 64].astype(np.float32) / np.float32(255)
        t = torch.tensor(labels[64 * i:64 * i + 64].astype(np.int64))
        adam.zero_grad()
        h = torch.relu(net.linear("fc1", net.tensor(x)))
        loss = F.cross_entropy(net.linear("fc2", h), t)
        loss.backward()
        adam.step()
        net.note("loss", np.float64(loss.item()))
    return net


def fashion100():
    folder = os.path.join(FOLDER, "..", "..", "build", "data")
    images = np.fromfile(os.path.join(folder, "train-images-idx3-ubyte"), np.uint8)[16:]
    labels = np.fromfile(os.path.join(folder, "train-labels-idx1-ubyte"), np.uint8)[8:]
    images, init = images.reshape(-1, 784), fashion_init()
    net = fashion(init, images, labels, torch.float32)
    exact = fashion(init, images, labels, torch.float64)
    del net.p["fc1.weight"], exact.p["fc1.weight"]  # too large for a fixture
    save("fashion100", net.results())
    return drift_of(net, exact)


def drift_of(net, exact):
    """The largest difference of a recorded array, relative to its largest element."""
    a, b = net.results(), exact.results()
    return max(float(abs(a[k] - b[k]).max() / (abs(b[k]).max() + 1e-30)) for k in b)


def program(function):
    net, data = function(torch.float32)
    arrays = {"init." + k: v for k, v in net.init.items()}
    arrays.update(data)
    arrays.update(net.results())
    save(function.__name__, arrays)
    return drift_of(net, function(torch.float64)[0])


PROGRAMS = [tied, frozen, two_losses, gan, penalty, penalty_loss, micro, host_gradient, predict]


def main():
    torch.set_num_threads(1)
    jobs = {f.__name__: lambda f=f: program(f) for f in PROGRAMS}
    jobs.update(optim=optim, ops=ops, fashion100=fashion100)
    for name in sys.argv[1:] or jobs:
        drift = jobs[name]()
        size = os.path.getsize(os.path.join(FOLDER, name + ".safetensors"))
        print(f"{name:14} {size:7} bytes  float32 against float64 {drift:.1e}")


if __name__ == "__main__":
    main()
