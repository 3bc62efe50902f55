#!/usr/bin/env python3
"""Records averages of weights by torch.optim.swa_utils.AveragedModel, step by step. They go into
tests/golden/average.safetensors for tests/golden/test_average.c. They are the exponential one, the mean, and
the mean of steps 4, 7, 10 ...

    python3 tools/golden/record_golden_average.py      (PyTorch 2.15)
"""
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from record_golden import save

STEPS, SIZE = 12, 8


def averages(weights, due=lambda step: True, **settings):
    model = torch.nn.Linear(SIZE, 1, bias=False)
    averaged, found = AveragedModel(model, **settings), []
    for step, w in enumerate(weights, 1):
        with torch.no_grad():
            model.weight.copy_(w)
        if due(step):
            averaged.update_parameters(model)
        found.append(averaged.module.weight.detach().clone().flatten())
    return torch.stack(found).numpy()


def main():
    torch.manual_seed(5)
    weights = torch.randn(STEPS, SIZE).cumsum(0)
    save("average", {
        "w": weights.numpy(),
        "ema": averages(weights, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
        "swa": averages(weights),
        "late": averages(weights, due=lambda step: step >= 4 and step % 3 == 1),
    })


if __name__ == "__main__":
    main()
