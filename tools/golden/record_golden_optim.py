#!/usr/bin/env python3
"""Records 100 steps of each optimizer of torch.optim, for tests/golden/test_golden_optim.c, in float64. Those
that torch has not are written out here as their papers have them: Lion (Chen et al. 2023, algorithm
2), LAMB (You et al. 2020, algorithm 2), LARS (You et al. 2017, the ratio before the momentum, as SGD
has that). Muon is torch's, but for its iteration, which is in float64 too instead of bf16.

Needs PyTorch 2. The settings stand in test_golden_optim.c too.
"""

import numpy as np
import torch
from torch.nn import functional as F

from record_golden import Net, classes, linears, normal, save, STEPS

ROUNDS = 5 # over the same batches
EPS = torch.finfo(torch.float32).eps # Adafactor's first, which is the type's own


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(first * m + (1 - first) * p.grad))
                state["m"] = second * m + (1 - second) * p.grad


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, plain=0):
        super().__init__(list(params), dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self.plain = plain

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, (first, second) = self.state[p], group["betas"]
                t = state["t"] = state.get("t", 0) + 1
                m = state.setdefault("m", torch.zeros_like(p))
                v = state.setdefault("v", torch.zeros_like(p))
                m.mul_(first).add_((1 - first) * p.grad)
                v.mul_(second).add_((1 - second) * p.grad**2)
                u = m / (1 - first**t) / ((v / (1 - second**t)).sqrt() + group["eps"])
                u = u + group["weight_decay"] * p
                a, b = p.norm(), u.norm()
                whole = a > 0 and b > 0 and not (self.plain and p.dim() == self.plain)
                p.sub_(group["lr"] * (a / b if whole else 1) * u)


class Lars(torch.optim.SGD):
    def __init__(self, params, trust=1e-3, eps=1e-8, weight_decay=0.0, lr=1.0, plain=0, **more):
        super().__init__(list(params), lr=lr, **more)
        self.own = (trust, eps, weight_decay, plain)

    @torch.no_grad()
    def step(self):
        trust, eps, decay, plain = self.own
        for group in self.param_groups:
            for p in group["params"]:
                a, b = p.norm(), p.grad.norm()
                ratio = trust * a / (b + decay * a + eps) if a > 0 and b > 0 else 1
                ratio = 1 if plain and p.dim() == plain else ratio
                p.grad = ratio * (p.grad + decay * p)
        super().step()


def iterated(grad, ns_coefficients, ns_steps, eps):
    """torch.optim._muon's _zeropower_via_newtonschulz without its conversion to bf16."""
    a, b, c = ns_coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


class Muon:
    def __init__(self, params, lr=1e-3, weight_decay=0.1, plain=None, **more):
        torch.optim._muon._zeropower_via_newtonschulz = iterated
        params = list(params)
        matrices = [p for p in params if p.dim() == 2 and p is not (plain and params[plain])]
        rest = [p for p in params if not any(p is m for m in matrices)]
        self.both = (torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, **more),
                     torch.optim.AdamW(rest, lr=lr, weight_decay=weight_decay))

    def zero_grad(self):
        for o in self.both:
            o.zero_grad()

    def step(self):
        for o in self.both:
            o.step()


O = torch.optim
OPTIMIZERS = {
    "sgd": (O.SGD, dict(lr=0.1)),
    "sgd_nesterov": (O.SGD, dict(lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adam": (O.Adam, dict(lr=0.01)),
    "adam_more": (O.Adam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.05)),
    "adamw": (O.AdamW, dict(lr=0.01, weight_decay=0.1)),
    "sgd_maximize": (O.SGD, dict(lr=0.01, momentum=0.5, weight_decay=0.05, maximize=True)),
    "amsgrad": (O.Adam, dict(lr=0.01, amsgrad=True)),
    "amsgradw": (O.AdamW, dict(lr=0.01, weight_decay=0.1, amsgrad=True)),
    "rmsprop": (O.RMSprop, dict()),
    "rmsprop_momentum": (O.RMSprop, dict(lr=0.003, alpha=0.9, momentum=0.8, weight_decay=0.01)),
    "rmsprop_centered": (O.RMSprop, dict(lr=0.002, centered=True, eps=1e-3)),
    "rmsprop_both": (O.RMSprop, dict(lr=0.002, centered=True, momentum=0.5, eps=1e-2)),
    "adagrad": (O.Adagrad, dict(lr=0.05)),
    "adagrad_more": (O.Adagrad, dict(lr=0.1, lr_decay=0.02, initial_accumulator_value=0.3,
                                     weight_decay=0.01)),
    "adadelta": (O.Adadelta, dict()),
    "adadelta_more": (O.Adadelta, dict(lr=2.0, rho=0.8, eps=1e-4, weight_decay=0.01)),
    "adamax": (O.Adamax, dict(lr=0.01)),
    "adamax_more": (O.Adamax, dict(betas=(0.8, 0.95), weight_decay=0.02)),
    "nadam": (O.NAdam, dict(lr=0.01)),
    "nadam_more": (O.NAdam, dict(betas=(0.7, 0.98), eps=1e-4, weight_decay=0.02)),
    "radam": (O.RAdam, dict(lr=0.01)),
    "radam_more": (O.RAdam, dict(lr=0.01, betas=(0.8, 0.9), weight_decay=0.02)),
    "rprop": (O.Rprop, dict(lr=0.001)),
    "lion": (Lion, dict(lr=0.002)),
    "lion_more": (Lion, dict(lr=0.001, betas=(0.8, 0.95), weight_decay=0.1)),
    "lamb": (Lamb, dict(lr=0.01)),
    "lamb_more": (Lamb, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, plain=1)),
    "lars": (Lars, dict()),
    "lars_more": (Lars, dict(lr=0.5, trust=0.02, eps=1e-3, weight_decay=0.05, momentum=0.9,
                             nesterov=True, plain=1)),
    "muon": (Muon, dict()),
    "muon_more": (Muon, dict(lr=0.01, weight_decay=0.02, momentum=0.8, plain=2)),
    "adafactor": (O.Adafactor, dict(eps=(EPS, 1e-3))),
    "adafactor_more": (O.Adafactor, dict(lr=0.2, beta2_decay=-0.6, eps=(EPS, 0.3),
                                         weight_decay=0.02)),
}


def run(name):
    net = Net(linears(91, fc1=(6, 8), fc2=(8, 4)), torch.float64)
    data = {"x": normal(92, STEPS, 10, 6), "t": classes(93, 4, STEPS, 10)}
    x, t = map(net.tensor, data.values())
    kind, settings = OPTIMIZERS[name]
    optim = kind(net.p.values(), **settings)
    for i in range(ROUNDS * STEPS):
        optim.zero_grad()
        y = net.linear("fc2", torch.tanh(net.linear("fc1", x[i % STEPS])))
        loss = F.cross_entropy(y, t[i % STEPS])
        loss.backward()
        optim.step()
        net.note("loss", loss)
    return net, data


def lazy():
    """A table of which a step names few rows: SparseAdam."""
    init = {"e.weight": normal(94, 9, 4)}
    data = {"index": classes(95, 9, STEPS, 4), "t": normal(96, STEPS, 4, 4)}
    weight = torch.tensor(init["e.weight"], dtype=torch.float64, requires_grad=True)
    optim, losses = O.SparseAdam([weight], lr=0.02, betas=(0.8, 0.99)), []
    for i in range(ROUNDS * STEPS):
        rows = torch.tensor(data["index"][i % STEPS], dtype=torch.int64)
        loss = F.mse_loss(F.embedding(rows, weight, sparse=True), torch.tensor(data["t"][i % STEPS]))
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    save("lazy", {"init.e.weight": init["e.weight"], "lazy.loss": np.array(losses), **data,
                  "lazy.final.e.weight": weight.detach().numpy()})


def main():
    torch.set_num_threads(1)
    arrays = {}
    for name in OPTIMIZERS:
        net, data = run(name)
        arrays.update({"init." + k: v for k, v in net.init.items()}, **data)
        arrays.update({f"{name}.{k}": v for k, v in net.results().items()})
    save("optim100", arrays)
    lazy()


if __name__ == "__main__":
    main()
