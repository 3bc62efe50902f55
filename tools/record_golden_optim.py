#!/usr/bin/env python3
"""Records 100 steps of each optimizer of torch.optim, for tests/test_golden_optim.c, in float64; Lion,
which torch has not, is written out here as its paper has it (Chen et al. 2023, algorithm 2).

Needs PyTorch 2. The settings stand in test_golden_optim.c too.
"""

import torch
from torch.nn import functional as F

from record_golden import Net, classes, linears, normal, save, STEPS

ROUNDS = 5 # over the same batches


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


O = torch.optim
OPTIMIZERS = {
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


def main():
    torch.set_num_threads(1)
    arrays = {}
    for name in OPTIMIZERS:
        net, data = run(name)
        arrays.update({"init." + k: v for k, v in net.init.items()}, **data)
        arrays.update({f"{name}.{k}": v for k, v in net.results().items()})
    save("optim100", arrays)


if __name__ == "__main__":
    main()
