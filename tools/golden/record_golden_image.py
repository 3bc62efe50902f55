#!/usr/bin/env python3
"""Records PyTorch's values for tests/golden/test_golden_image.c into tests/golden/*.safetensors.

layers: one layer each, y = layer(x) and loss = mean((y - t)^2). Recorded: x and t of three steps (of one where
nothing is trained), init.NAME. In float64 y and dx (of the sum of the squares) of the first step, and
grad.NAME. After three steps of SGD with momentum final.NAME; of batch norm also what it gives then in eval
mode. batch_micro: batch norm over micro-batches.

padding: as layers, of convolutions whose padding has a name, torch.nn's own modules.

cnn, resnet: small versions of the networks of examples/fashion_mnist_conv.c; networks: the whole
ones. Weights and images come from a formula that the two sides compute (hashed below). So only losses are kept,
in float64. Of the small ones the first gradients and the final values are kept too.

    /usr/bin/python3 tools/golden/record_golden_image.py [NAME...]      (Debian's python3-torch)
"""
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

from record_golden import FOLDER, normal, save

STEPS = 3
MICRO = (4, 5, 3)


def uniform(seed, *shape):
    return np.random.RandomState(seed).uniform(-0.5, 0.5, shape).astype(np.float32)


# ---- Layers: name -> (shape of x, {parameter: initial values}, function of x and parameters)

def conv(seed, w, bias, **settings):
    init = {"weight": uniform(seed, *w)}
    if bias:
        init["bias"] = uniform(seed + 1, bias)
    function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(w)]
    return init, lambda x, p: function(x, p["weight"], p.get("bias"), **settings)


def transposed(seed, w, bias, **settings):
    init = {"weight": uniform(seed, *w), "bias": uniform(seed + 1, bias)}
    function = {3: F.conv_transpose1d, 4: F.conv_transpose2d}[len(w)]
    return init, lambda x, p: function(x, p["weight"], p["bias"], **settings)


def padded(seed, x, channels, kernel, **settings):
    """A layer of torch.nn itself, for x without samples: its padding by name."""
    kind = {2: torch.nn.Conv1d, 3: torch.nn.Conv2d, 4: torch.nn.Conv3d}[len(x)]
    made = kind(x[0], channels, kernel, dtype=torch.float64, **settings)
    init = {"weight": uniform(seed, *made.weight.shape), "bias": uniform(seed + 1, channels)}
    return x, init, lambda x, p: torch.func.functional_call(made, dict(p), (x,))


def affine(seed, *shape):
    return {"weight": uniform(seed, *shape) + np.float32(1), "bias": uniform(seed + 1, *shape)}


def batch_norm(seed, channels, momentum=0.1):
    init = affine(seed, channels)
    init["running_mean"] = uniform(seed + 2, channels)
    init["running_var"] = uniform(seed + 3, channels) + np.float32(1)

    def function(x, p, training=True):
        return F.batch_norm(x, p["running_mean"], p["running_var"], p["weight"], p["bias"],
                            training, momentum)
    return init, function


def rms_norm(seed, *shape):
    def function(x, p):
        dims = tuple(range(-len(shape), 0))
        eps = np.finfo(np.float32).eps
        return x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps) * p["weight"]
    return {"weight": uniform(seed, *shape) + np.float32(1)}, function


def plain(function, **settings):
    return {}, lambda x, p: function(x, **settings)


def rope(x, base=10000.0, interleaved=False):
    t, d = x.shape[-2:]
    turns = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = (torch.arange(t, dtype=torch.float64)[:, None] * turns).to(x.dtype)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    p, q = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return torch.stack([p, q], -1).flatten(-2) if interleaved else torch.cat([p, q], -1)


def gated(seed, width, hidden, gate):
    init = {"gate_proj.weight": uniform(seed, hidden, width),
            "up_proj.weight": uniform(seed + 1, hidden, width),
            "down_proj.weight": uniform(seed + 2, width, hidden)}
    return init, lambda x, p: F.linear(gate(F.linear(x, p["gate_proj.weight"])) *
                                       F.linear(x, p["up_proj.weight"]), p["down_proj.weight"])


def heads(seed, width, count, kv_count=0, causal=False, slopes=False, turned=False):
    """nn.MultiheadAttention, batch first; fewer heads of keys are repeated."""
    kv_count = kv_count or count
    kv = width // count * kv_count
    init = {"in_proj_weight": uniform(seed, width + 2 * kv, width),
            "in_proj_bias": uniform(seed + 1, width + 2 * kv),
            "out_proj.weight": uniform(seed + 2, width, width),
            "out_proj.bias": uniform(seed + 3, width)}

    def function(x, p):
        steps = x.shape[1]
        ahead = torch.arange(steps)[:, None] - torch.arange(steps)[None, :]
        bias = torch.zeros(count, steps, steps, dtype=x.dtype)
        if slopes:
            bias -= torch.tensor([2.0 ** (-8.0 * (h + 1) / count) for h in range(count)],
                                 dtype=x.dtype)[:, None, None] * ahead.abs()
        if causal:
            bias = bias.masked_fill(ahead < 0, float("-inf"))
        if kv_count == count and not turned:
            x = x.transpose(0, 1)
            bias = bias.repeat(x.shape[1], 1, 1)
            y = F.multi_head_attention_forward(
                x, x, x, width, count, p["in_proj_weight"], p["in_proj_bias"], None, None, False,
                0.0, p["out_proj.weight"], p["out_proj.bias"], need_weights=False, attn_mask=bias)
            return y[0].transpose(0, 1)
        q, k, v = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).split([width, kv, kv], -1)
        q, k, v = (part.unflatten(-1, (-1, width // count)).transpose(1, 2) for part in (q, k, v))
        q, k = (rope(q), rope(k)) if turned else (q, k)
        k, v = (part.repeat_interleave(count // kv_count, 1) for part in (k, v))
        scores = q @ k.transpose(-1, -2) / (width // count) ** 0.5 + bias
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return F.linear(y, p["out_proj.weight"], p["out_proj.bias"])
    return init, function


LAYERS = {
    "conv": ((2, 6, 5), *conv(10, (3, 2, 3, 3), 3)),
    "conv_stride": ((2, 7, 6), *conv(12, (4, 2, 3, 2), 4, stride=(2, 3), padding=(1, 1))),
    "conv_dilated": ((2, 7, 8), *conv(14, (2, 2, 2, 3), 0, dilation=(3, 2), padding=(1, 2))),
    "conv_grouped": ((4, 5, 5), *conv(16, (6, 2, 3, 3), 6, groups=2, padding=1)),
    "conv_depthwise": ((3, 5, 6), *conv(18, (6, 1, 3, 3), 6, groups=3, padding=1, stride=2)),
    "conv_point": ((5, 4, 3), *conv(20, (7, 5, 1, 1), 7)),
    "conv_signal": ((3, 11), *conv(22, (4, 3, 5), 4, stride=2, padding=2)),
    "transposed": ((3, 3, 4), *transposed(24, (3, 2, 3, 3), 2, stride=2, padding=1,
                                          output_padding=1)),
    "transposed_dilated": ((2, 3, 4), *transposed(26, (2, 3, 3, 2), 3, dilation=2, padding=1,
                                                  output_padding=1)),
    "transposed_grouped": ((4, 3, 2), *transposed(28, (4, 2, 2, 3), 4, stride=(3, 2), groups=2)),
    "transposed_signal": ((2, 5), *transposed(30, (2, 3, 4), 3, stride=3, output_padding=2)),
    "max_pool": ((2, 6, 6), *plain(F.max_pool2d, kernel_size=2)),
    "max_pool_padded": ((2, 7, 6), *plain(F.max_pool2d, kernel_size=3, stride=2, padding=1)),
    "max_pool_ceil": ((2, 6, 7), *plain(F.max_pool2d, kernel_size=(2, 3), stride=2,
                                        ceil_mode=True)),
    "max_pool_ties": ((2, 6, 5), *plain(F.max_pool2d, kernel_size=3, stride=1, padding=1)),
    "avg_pool": ((2, 7, 6), *plain(F.avg_pool2d, kernel_size=3, stride=2, padding=1)),
    "avg_pool_ceil": ((2, 6, 8), *plain(F.avg_pool2d, kernel_size=3, stride=2, padding=1,
                                        ceil_mode=True)),
    "avg_pool_exclude": ((2, 6, 8), *plain(F.avg_pool2d, kernel_size=3, stride=2, padding=1,
                                           ceil_mode=True, count_include_pad=False)),
    "adaptive": ((2, 7, 5), *plain(F.adaptive_avg_pool2d, output_size=(3, 2))),
    "adaptive_more": ((2, 3, 4), *plain(F.adaptive_avg_pool2d, output_size=(5, 7))),
    "conv_volume": ((2, 3, 5, 4), *conv(70, (3, 2, 2, 3, 3), 3)),
    "conv_volume_stride": ((4, 3, 4, 5), *conv(72, (4, 2, 3, 3, 2), 4, stride=(2, 2, 3),
                                               padding=(1, 1, 0), groups=2)),
    "conv_volume_dilated": ((1, 4, 5, 3), *conv(74, (2, 1, 2, 2, 3), 0, stride=(1, 3, 1),
                                                padding=(0, 2, 1), dilation=(2, 3, 1))),
    "max_pool_volume": ((2, 3, 5, 4), *plain(F.max_pool3d, kernel_size=(2, 3, 2), stride=(1, 2, 2),
                                             padding=(1, 1, 0))),
    "avg_pool_volume": ((1, 4, 4, 5), *plain(F.avg_pool3d, kernel_size=(3, 2, 3), stride=2,
                                             padding=1, ceil_mode=True, count_include_pad=False)),
    "avg_pool_volume_ceil": ((1, 3, 6, 6), *plain(F.avg_pool3d, kernel_size=(2, 3, 3), stride=2,
                                                  padding=1, ceil_mode=True)),
    "adaptive_volume": ((2, 3, 4, 5), *plain(F.adaptive_avg_pool3d, output_size=(2, 3, 2))),
    "max_pool_signal": ((2, 8), *plain(F.max_pool1d, kernel_size=3, stride=2, padding=1)),
    "avg_pool_signal": ((2, 8), *plain(F.avg_pool1d, kernel_size=3, padding=1, ceil_mode=True)),
    "adaptive_signal": ((2, 7), *plain(F.adaptive_avg_pool1d, output_size=4)),
    "nearest_up": ((2, 3, 4), *plain(F.interpolate, size=(7, 8), mode="nearest")),
    "nearest_down": ((2, 7, 8), *plain(F.interpolate, size=(3, 5), mode="nearest")),
    "bilinear_up": ((2, 3, 4), *plain(F.interpolate, size=(7, 8), mode="bilinear")),
    "bilinear_down": ((2, 7, 8), *plain(F.interpolate, size=(3, 5), mode="bilinear")),
    "batch_norm1d": ((5,), *batch_norm(32, 5)),
    "batch_norm2d": ((3, 4, 2), *batch_norm(36, 3, momentum=0.25)),
    "layer_norm": ((3, 7), affine(40, 7), lambda x, p: F.layer_norm(x, (7,), p["weight"],
                                                                    p["bias"])),
    "layer_norm2": ((2, 3, 5), affine(42, 3, 5), lambda x, p: F.layer_norm(
        x, (3, 5), p["weight"], p["bias"])),
    "rms_norm": ((3, 7), *rms_norm(44, 7)),
    "group_norm": ((6, 3, 2), affine(46, 6), lambda x, p: F.group_norm(x, 3, p["weight"],
                                                                       p["bias"])),
    "instance_norm": ((3, 4, 3), {}, lambda x, p: F.instance_norm(x)),
    "heads": ((5, 8), *heads(60, 8, 2)),
    "heads_rope": ((7, 8), *heads(80, 8, 2, causal=True, turned=True)),
    "rope": ((2, 6, 8), {}, lambda x, p: rope(x, 500.0)),
    "rope_pairs": ((5, 6), {}, lambda x, p: rope(x, interleaved=True)),
    "swiglu": ((3, 4), *gated(84, 4, 6, F.silu)),
    "geglu": ((3, 4), *gated(87, 4, 5, F.gelu)),
    "heads_causal": ((6, 6), *heads(64, 6, 3, causal=True)),
    "heads_alibi": ((5, 8), *heads(68, 8, 4, causal=True, slopes=True)),
    "heads_grouped": ((4, 8), *heads(72, 8, 4, 2, causal=True)),
}


PADDED = {
    "reflect": padded(90, (2, 5, 4), 3, 3, padding=(2, 1), padding_mode="reflect"),
    "reflect_most": padded(92, (1, 4, 3), 2, 3, padding=(3, 2), stride=2, padding_mode="reflect"),
    "replicate": padded(94, (2, 4, 3), 3, (3, 2), padding=(1, 5), dilation=(2, 1),
                        padding_mode="replicate"),
    "circular": padded(96, (4, 5, 4), 4, 3, padding=(1, 2), groups=2, padding_mode="circular"),
    "circular_most": padded(98, (2, 3, 4), 2, 2, padding=(3, 4), padding_mode="circular"),
    "same": padded(100, (2, 5, 4), 3, (2, 3), padding="same", dilation=(1, 2)),
    "same_reflect": padded(102, (2, 5, 4), 3, (4, 2), padding="same", padding_mode="reflect"),
    "reflect_signal": padded(104, (3, 7), 2, 5, padding=2, padding_mode="reflect"),
    "replicate_signal": padded(106, (3, 7), 2, 3, padding=4, stride=3, padding_mode="replicate"),
    "circular_signal": padded(108, (3, 7), 2, 4, padding=7, padding_mode="circular"),
    "same_signal": padded(110, (3, 7), 2, 4, padding="same", dilation=3),
    "reflect_volume": padded(112, (2, 3, 4, 4), 2, (2, 3, 3), padding=(1, 2, 3),
                             padding_mode="reflect"),
    "replicate_volume": padded(114, (1, 2, 3, 4), 2, 3, padding=(2, 1, 0),
                               padding_mode="replicate"),
    "circular_volume": padded(116, (2, 2, 3, 4), 2, 2, padding=(2, 1, 1), stride=(1, 2, 1),
                              padding_mode="circular"),
    "same_volume": padded(118, (1, 3, 4, 2), 2, (2, 3, 4), padding="same"),
    "pad_circular": ((2, 3, 5), *plain(F.pad, pad=(5, 2, 0, 0), mode="circular")),
}


def tensors(init, dtype):
    return {k: torch.tensor(v, dtype=dtype, requires_grad=not k.startswith("running_"))
            for k, v in init.items()}


def layer(name, dtype):
    shape, init, function = LAYERS[name] if name in LAYERS else PADDED[name]
    seed, p = sum(map(ord, name)), tensors(init, dtype)
    steps = STEPS if init else 1
    x = normal(seed, steps, 4 if "running_mean" in p else 2, *shape)
    if name.endswith("ties"):
        x = np.round(x)
    xs = torch.tensor(x, dtype=dtype, requires_grad=True)
    with torch.no_grad():
        copies = {k: v.clone() for k, v in p.items()}
        t = normal(seed + 1, steps, *function(xs[0], copies).shape)
    ts = torch.tensor(t, dtype=dtype)
    weights = [v for v in p.values() if v.requires_grad]
    optim = torch.optim.SGD(weights, lr=0.05, momentum=0.9) if weights else None
    out = {"x": x, "t": t}
    for i in range(steps):
        y = function(xs[i], p)
        loss = F.mse_loss(y, ts[i])
        for w in weights:
            w.grad = None
        loss.backward()
        if i == 0:
            out["y"] = y.detach().numpy()
            out["dx"] = xs.grad[0].numpy() * y.numel()
            out.update({"grad." + k: v.grad.numpy().copy() for k, v in p.items()
                        if v.requires_grad})
        if optim:
            optim.step()
    out.update({"final." + k: v.detach().numpy() for k, v in p.items()})
    if "running_mean" in p:
        with torch.no_grad():
            out["eval"] = function(xs[0], p, training=False).numpy()
    return init, out


def key_of(layer_name, key):
    """NAME.x, but init.NAME.weight: as golden.h looks for them."""
    kind, _, rest = key.partition(".")
    return f"{kind}.{layer_name}.{rest}" if rest else f"{layer_name}.{key}"


def layers(file="layers", names=LAYERS):
    arrays, drift = {}, 0
    for name in names:
        init, exact = layer(name, torch.float64)
        single = layer(name, torch.float32)[1]
        arrays.update({f"init.{name}.{k}": v for k, v in init.items()})
        arrays.update({key_of(name, k): v for k, v in exact.items()})
        drift = max(drift, drift_of(single, exact))
    save(file, arrays)
    return drift


def padding():
    return layers("padding", PADDED)


def drift_of(single, exact):
    return max(float(abs(single[k] - exact[k]).max() / (abs(exact[k]).max() + 1e-30))
               for k in exact)


# ---- Batch norm over micro-batches: each normalises by itself, the loss is the whole batch's mean.

def micro_run(dtype):
    init, function = batch_norm(50, 3)
    p = tensors(init, dtype)
    x, t = normal(51, STEPS, sum(MICRO), 3, 2), normal(52, STEPS, sum(MICRO), 3, 2)
    optim = torch.optim.SGD([p["weight"], p["bias"]], lr=0.05, momentum=0.9)
    for i in range(STEPS):
        optim.zero_grad()
        row = 0
        for rows in MICRO:
            part = slice(row, row + rows)
            y = function(torch.tensor(x[i, part], dtype=dtype), p)
            loss = (y - torch.tensor(t[i, part], dtype=dtype)).square().sum() / t[i].size
            loss.backward()
            row += rows
        optim.step()
    out = {"x": x, "t": t}
    out.update({"final.bn." + k: v.detach().numpy() for k, v in p.items()})
    return init, out


def batch_micro():
    init, exact = micro_run(torch.float64)
    arrays = {"init.bn." + k: v for k, v in init.items()}
    save("batch_micro", {**arrays, **exact})
    return drift_of(micro_run(torch.float32)[1], exact)


# ---- The networks. value(stream, i) is a hash of the two, uniform in [-1, 1), exact in float32.

def hashed(stream, count):
    v = np.arange(count, dtype=np.uint32) + np.uint32(stream * 0x9E3779B9 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        v ^= v >> np.uint32(shift)
        v *= np.uint32(factor)
    v ^= v >> np.uint32(16)
    return ((v >> np.uint32(8)).astype(np.float64) / 2 ** 23 - 1).astype(np.float32)


class Made:
    """Parameters made as the network is built: number n of them from stream n, in +-1/sqrt(fan_in);
    norms start at 1 and 0. Gives the same network again from what it holds."""

    def __init__(self, dtype, act=torch.relu, pool=F.max_pool2d):
        self.dtype, self.act, self.pool, self.p = dtype, act, pool, {}

    def get(self, name, shape, constant=None):
        if name not in self.p:
            values = hashed(len(self.p), int(np.prod(shape)))
            fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else self.fan_in
            self.fan_in = fan_in
            values = values.reshape(shape) * np.float32(1 / np.sqrt(fan_in))
            if constant is not None:
                values = np.full(shape, constant, np.float32)
            running = "running_" in name
            self.p[name] = torch.tensor(values, dtype=self.dtype, requires_grad=not running)
        return self.p[name]

    def conv(self, x, name, out, kernel, bias=True, **settings):
        w = self.get(name + ".weight", (out, x.shape[1], kernel, kernel))
        return F.conv2d(x, w, self.get(name + ".bias", (out,)) if bias else None, **settings)

    def linear(self, x, name, out):
        w = self.get(name + ".weight", (out, x.shape[1]))
        return F.linear(x, w, self.get(name + ".bias", (out,)))

    def norm(self, x, name):
        parts = (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1))
        w, b, mean, var = (self.get(f"{name}.{k}", (x.shape[1],), v) for k, v in parts)
        return F.batch_norm(x, mean, var, w, b, True)


def cnn(net, h, width):
    h = net.act(net.conv(h, "conv1", width, 3))
    h = net.act(net.conv(h, "conv2", 2 * width, 3))
    h = net.pool(h, 2).flatten(1)
    h = net.act(net.linear(h, "fc1", 4 * width))
    return net.linear(h, "fc2", 10)


def resnet(net, h, width, blocks):
    def conv_norm(h, conv_name, norm_name, out, stride, kernel):
        h = net.conv(h, conv_name, out, kernel, False, stride=stride, padding=kernel // 2)
        return net.norm(h, norm_name)

    h = net.act(conv_norm(h, "conv1", "bn1", width, 1, 3))
    for stage in range(3):
        for i in range(blocks):
            name, stride = f"layer{stage + 1}.{i}.", 2 if stage and not i else 1
            out = width << stage
            y = net.act(conv_norm(h, name + "conv1", name + "bn1", out, stride, 3))
            y = conv_norm(y, name + "conv2", name + "bn2", out, 1, 3)
            if stride > 1:
                h = conv_norm(h, name + "downsample.0", name + "downsample.1", out, stride, 1)
            h = net.act(y + h)
    return net.linear(F.adaptive_avg_pool2d(h, 1).flatten(1), "fc", 10)


# A rounding that flips what a ReLU reads flips a gradient, of which Adam's first steps make whole
# steps. Among a deep network's activations that happens, in PyTorch's float32 too. So the whole
# resnet has GELU, and every step's loss a bound.
NETWORKS = {  # name: (function, size of the images, batch, activation)
    "cnn": (lambda net, x: cnn(net, x, 4), 12, 8, torch.relu),
    "resnet": (lambda net, x: resnet(net, x, 4, 1), 12, 8, torch.relu),
    "cnn_whole": (lambda net, x: cnn(net, x, 32), 28, 8, torch.relu),
    "resnet_whole": (lambda net, x: resnet(net, x, 16, 3), 28, 8, F.gelu),
}
NETWORK_STEPS = 5


def network_run(name, dtype):
    function, size, batch, act = NETWORKS[name]
    net, out = Made(dtype, act), {"loss": []}
    count = batch * size * size
    for step in range(NETWORK_STEPS):
        x = hashed(1000 + step, count).reshape(batch, 1, size, size)
        t = torch.tensor([(7 * step + 3 * i) % 10 for i in range(batch)])
        if step == 0:
            with torch.no_grad():  # makes the parameters, and then forgets what it moved
                function(net, torch.tensor(x, dtype=dtype))
            for k, v in net.p.items():
                if "running_" in k:
                    v.fill_(float(k.endswith("var")))
            weights = [v for v in net.p.values() if v.requires_grad]
            adam = torch.optim.Adam(weights, lr=1e-3)
        adam.zero_grad()
        loss = F.cross_entropy(function(net, torch.tensor(x, dtype=dtype)), t)
        loss.backward()
        if step == 0:
            out.update({"grad." + k: v.grad.numpy().copy() for k, v in net.p.items()
                        if v.requires_grad})
        adam.step()
        out["loss"].append(loss.item())
    out["loss"] = np.array(out["loss"])
    out.update({"final." + k: v.detach().numpy() for k, v in net.p.items()})
    return out


def network(name):
    exact = network_run(name, torch.float64)
    save(name, exact)
    return drift_of(network_run(name, torch.float32), exact)


def networks():
    """Only the losses: for the gradients see tools/golden/compare_pytorch.py."""
    arrays, drift = {}, 0
    for name in ("cnn", "resnet"):
        exact = {"loss": network_run(name + "_whole", torch.float64)["loss"]}
        arrays[name] = exact["loss"]
        drift = max(drift, drift_of(network_run(name + "_whole", torch.float32), exact))
    save("networks", arrays)
    return drift


def main():
    torch.set_num_threads(1)
    jobs = dict(layers=layers, padding=padding, batch_micro=batch_micro, cnn=lambda: network("cnn"),
                resnet=lambda: network("resnet"), networks=networks)
    for name in sys.argv[1:] or jobs:
        drift = jobs[name]()
        size = os.path.getsize(os.path.join(FOLDER, name + ".safetensors"))
        print(f"{name:14} {size:7} bytes  float32 against float64 {drift:.1e}")


if __name__ == "__main__":
    main()
