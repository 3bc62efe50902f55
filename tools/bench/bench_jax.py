"""JAX's side of ./build.sh bench: whole jitted training steps on the CPU, one call a step (forward,
loss, backward and optimizer together), as tools/bench/dtbench_train.h's.

usage: bench_jax.py THREADS, which are its processors: JAX takes as many threads as it may use. Reads
lines "WORKLOAD THREADS STEPS VARIANT" as tools/bench/bench_torch.py does, only of variant "jit".
"""

import functools
import json
import os
import sys
import time

if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

WARM_STEPS = 5
CHARACTERS = 65
rng = np.random.default_rng(0)


def dense(widths):
    return [(rng.uniform(-1, 1, (a, b)).astype(np.float32) / np.float32(np.sqrt(a)),
             np.zeros(b, np.float32)) for a, b in zip(widths, widths[1:])]


def linear(p, x):
    return x @ p[0] + p[1]


def mlp(params, x):
    for i, p in enumerate(params):
        x = linear(p, jax.nn.relu(x) if i else x)
    return x


def conv(p, x):
    y = lax.conv_general_dilated(x, p[0], (1, 1), "VALID",
                                 dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y + p[1])


def dropout(key, x, p):
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0)


def cnn(params, x, key):
    first, second = jax.random.split(key)
    y = conv(params[1], conv(params[0], x))
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    y = dropout(first, y.reshape(y.shape[0], -1), 0.25)
    return linear(params[3], dropout(second, jax.nn.relu(linear(params[2], y)), 0.5))


def norm(p, x):
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[0] + p[1]


def attend(p, x, heads):
    b, t, width = x.shape
    q, k, v = jnp.split(linear(p["qkv"], x).reshape(b, t, 3 * heads, -1), 3, 2)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return linear(p["proj"], y.reshape(b, t, width))


def gpt(params, x, heads):
    x = params["characters"][x] + params["places"]
    for p in params["blocks"]:
        x = x + attend(p, norm(p["norm1"], x), heads)
        y = jax.nn.gelu(linear(p["up"], norm(p["norm2"], x)), approximate=False)
        x = x + linear(p["down"], y)
    return linear(params["head"], norm(params["norm"], x))


def ones(width):
    return np.ones(width, np.float32), np.zeros(width, np.float32)


def heads_of(width):
    return {"qkv": dense((width, 3 * width))[0], "proj": dense((width, width))[0]}


def table(rows, width, scale=1):
    return (scale * rng.normal(size=(rows, width))).astype(np.float32)


def gpt_params(context, width, layers):
    block = lambda: {"norm1": ones(width), "norm2": ones(width), **heads_of(width),
                     "up": dense((width, 4 * width))[0], "down": dense((4 * width, width))[0]}
    return {"characters": table(CHARACTERS, width), "places": table(context, width, 0.02),
            "blocks": [block() for _ in range(layers)], "norm": ones(width),
            "head": dense((width, CHARACTERS))[0]}


def attention(params, x):
    return linear(params["head"], attend(params, params["characters"][x], 6))


def lstm(params, x):
    x = linear(params["in"], params["characters"][x]).swapaxes(0, 1)  # all steps at once

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x + linear(params["again"], h), 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    none = jnp.zeros((x.shape[1], x.shape[2] // 4))
    return linear(params["head"], lax.scan(step, (none, none), x)[1].swapaxes(0, 1))


def cross_entropy(y, target):
    return -jnp.take_along_axis(jax.nn.log_softmax(y, -1), target[..., None], -1).mean()


def mse(y, target):
    return ((y - target) ** 2).mean()


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def classes(end, *shape):
    return rng.integers(0, end, shape).astype(np.int32)


# name: (parameters, forward, x, target, loss, decay)
def workload(name):
    plain = lambda f: lambda params, x, key: f(params, x)
    if name == "xor":
        return dense((2, 16, 1)), plain(mlp), floats(4, 2), floats(4, 1), mse, 0.01
    if name.startswith("mlp"):
        widths, batch, decay = {"mlp_tiny": ((32, 64, 64, 10), 32, 0.01),
                                "mlp": ((784, 128, 10), 64, 0),
                                "mlp_wide": ((784, 1024, 1024, 10), 128, 0)}[name]
        return (dense(widths), plain(mlp), floats(batch, widths[0]), classes(10, batch),
                cross_entropy, decay)
    if name == "cnn":
        kernel = lambda *s: (0.1 * floats(*s), np.zeros(s[-1], np.float32))
        params = [kernel(3, 3, 1, 32), kernel(3, 3, 32, 64), *dense((9216, 128, 10))]
        return params, cnn, floats(64, 28, 28, 1), classes(10, 64), cross_entropy, 0
    if name == "attention":
        params = {"characters": table(CHARACTERS, 384), **heads_of(384),
                  "head": dense((384, CHARACTERS))[0]}
        forward, batch, context = attention, 4, 1024
    elif name == "lstm":
        params = {"characters": table(CHARACTERS, 128), "in": dense((128, 512))[0],
                  "again": dense((128, 512))[0], "head": dense((128, CHARACTERS))[0]}
        forward, batch, context = lstm, 32, 64
    else:
        batch, context, width, layers, heads = {"gpt_small": (12, 64, 128, 4, 4),
                                                "gpt_medium": (8, 256, 384, 6, 6)}[name]
        params, forward = gpt_params(context, width, layers), functools.partial(gpt, heads=heads)
    return (params, plain(forward), classes(CHARACTERS, batch, context),
            classes(CHARACTERS, batch, context), cross_entropy, 0.01)


def adam(params, grads, state, decay):
    m, v, t = state
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    first, second = 1 - 0.9 ** t, 1 - 0.999 ** t
    step = lambda p, m, v: (p * (1 - 1e-3 * decay) -
                            1e-3 * (m / first) / (jnp.sqrt(v / second) + 1e-8))
    return jax.tree.map(step, params, m, v), (m, v, t)


class Training:
    def __init__(self, name):
        params, forward, self.x, self.target, loss, decay = workload(name)
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        self.params = jax.tree.map(jnp.asarray, params)
        self.state = zeros(), zeros(), jnp.float32(0)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(params, state, x, target):
            key = jax.random.fold_in(jax.random.PRNGKey(0), state[2].astype(jnp.int32))
            value, grads = jax.value_and_grad(lambda p: loss(forward(p, x, key), target))(params)
            params, state = adam(params, grads, state, decay)
            return params, state, value

        self.run = step

    def step(self):
        self.params, self.state, value = self.run(self.params, self.state, self.x, self.target)
        return value.block_until_ready()


made = {}


def train(name, threads, steps):
    if name not in made:
        made[name] = Training(name)
    times = []
    for _ in range(WARM_STEPS + steps):
        start = time.perf_counter()
        loss = made[name].step()
        times.append(1e3 * (time.perf_counter() - start))
    times = sorted(times[WARM_STEPS:])
    batch, typical = len(made[name].x), times[len(times) // 2]
    return {"kind": "steps", "peer": "jax", "variant": "jit", "workload": name, "batch": batch,
            "threads": threads, "device": "cpu", "steps": steps, "ms_median": round(typical, 5),
            "ms_min": round(times[0], 5), "samples_per_s": round(batch / typical * 1e3, 1),
            "loss": round(float(loss), 4)}


def main():
    print(json.dumps({"kind": "jax", "version": jax.__version__, "variants": ["jit"]}), flush=True)
    for line in sys.stdin:
        name, threads, steps, _ = line.split()
        print(json.dumps(train(name, int(threads), int(steps))), flush=True)


if __name__ == "__main__":
    main()
