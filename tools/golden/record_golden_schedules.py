#!/usr/bin/env python3
"""Records learning rates (and momentum) of torch.optim.lr_scheduler, step by step, into
tests/golden/schedules.safetensors for tests/golden/test_golden_schedules.c. What PyTorch has no scheduler for is
written out here: transformers' get_wsd_schedule (linear) and get_inverse_sqrt_schedule, and a
geometric warm-up.

    /usr/bin/python3 tools/golden/record_golden_schedules.py      (Debian's python3-torch)
"""
import numpy as np
import torch
from torch.optim import lr_scheduler as S

from record_golden import save

STEPS, LR = 60, 0.5


def sgd(**settings):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR, **settings)


def rates(make, optimizer=None, momentum=False, steps=STEPS):
    optimizer = optimizer or sgd()
    schedule, found, momenta = make(optimizer), [], []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        found.append(group["lr"])
        momenta.append(group["momentum"] if "momentum" in group else group["betas"][0])
        optimizer.step()
        schedule.step()
    return np.array(momenta if momentum else found)


def wsd(n, warmup=6, period=40, decay=10, least=0.1):
    if n < warmup:
        return n / warmup
    return 1 if n < period - decay else max(least, 1 + (least - 1) * (n - (period - decay)) / decay)


def inverse_sqrt(n, warmup=10):
    return n / warmup if n < warmup else 1 / np.sqrt(n / warmup)


PLATEAU = np.concatenate([1 / (1 + np.arange(12)), np.full(20, 0.09), [0.05], np.full(27, 0.2)])


def plateau(**settings):
    optimizer = sgd()
    schedule, found = S.ReduceLROnPlateau(optimizer, **settings), []
    sign = -1 if settings.get("mode") == "max" else 1
    for value in PLATEAU:
        found.append(optimizer.param_groups[0]["lr"])
        schedule.step(sign * value)
    return np.array(found)


def main():
    one = dict(max_lr=LR, total_steps=50)
    adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    arrays = {
        "constant": rates(lambda o: S.ConstantLR(o, factor=0.25, total_iters=7)),
        "step": rates(lambda o: S.StepLR(o, 9)),
        "multi_step": rates(lambda o: S.MultiStepLR(o, [5, 20, 21], gamma=0.5)),
        "exponential": rates(lambda o: S.ExponentialLR(o, 0.9)),
        "polynomial": rates(lambda o: S.PolynomialLR(o, total_iters=40, power=1.5)),
        "linear": rates(lambda o: S.LinearLR(o, total_iters=12)),
        "linear_down": rates(lambda o: S.LinearLR(o, 1, 0.1, total_iters=30)),
        "geometric": rates(lambda o: S.LambdaLR(o, lambda n: 0.01 ** (1 - min(n, 20) / 20))),
        "cosine": rates(lambda o: S.CosineAnnealingLR(o, 25, eta_min=0.01)),
        "cosine_restarts": rates(lambda o: S.CosineAnnealingWarmRestarts(o, 7, 2, eta_min=0.01)),
        "cosine_restarts_even": rates(lambda o: S.CosineAnnealingWarmRestarts(o, 11)),
        "one_cycle": rates(lambda o: S.OneCycleLR(o, **one), sgd(momentum=0.9), steps=50),
        "one_cycle_momentum": rates(lambda o: S.OneCycleLR(o, **one), sgd(momentum=0.9), True, 50),
        "one_cycle_beta": rates(lambda o: S.OneCycleLR(o, pct_start=0.5, div_factor=10, **one), adam,
                                True, 50),
        "wsd": rates(lambda o: S.LambdaLR(o, wsd)),
        "inverse_sqrt": rates(lambda o: S.LambdaLR(o, inverse_sqrt)),
        "callback": rates(lambda o: S.LambdaLR(o, lambda n: 1 / (1 + n))),
        "chained": rates(lambda o: S.SequentialLR(
            o, [S.LinearLR(o, 0.1, total_iters=10), S.CosineAnnealingLR(o, 30), S.ConstantLR(o, 0.125, 99)],
            [10, 40])),
        "plateau.metric": PLATEAU,
        "plateau": plateau(patience=3, threshold=1e-2),
        "plateau_cooldown": plateau(patience=2, cooldown=3, factor=0.5, min_lr=0.02),
        "plateau_largest": plateau(patience=4, mode="max", threshold=0.02, threshold_mode="abs"),
    }
    save("schedules", {k: np.asarray(v, np.float64) for k, v in arrays.items()})


if __name__ == "__main__":
    main()
