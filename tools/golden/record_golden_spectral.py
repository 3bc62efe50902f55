#!/usr/bin/env python3
"""Records five steps of SGD with torch.nn.utils.parametrizations.spectral_norm on a convolution and a linear
layer (of two iterations). They go into tests/golden/spectral.safetensors for tests/golden/test_spectral.c. It
has the data x and t, all values before (init.NAME) and after each step (step.NAME, first axis: the step). It
also has the losses, and the trained model's outputs in evaluation (y). In float64 from float32 values.

    python3 tools/golden/record_golden_spectral.py      (PyTorch 2.15)
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm

from record_golden import normal, save

STEPS, BATCH = 5, 4


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = spectral_norm(torch.nn.Conv2d(2, 3, 3, padding=1))
        self.fc = spectral_norm(torch.nn.Linear(75, 4), n_power_iterations=2)

    def forward(self, x):
        return self.fc(torch.tanh(self.conv(x)).flatten(1))


def values(net):
    return {name: value.detach().numpy().astype(np.float32) for name, value in net.state_dict().items()}


def main():
    torch.manual_seed(3)
    net = Net().double()
    arrays = {"x": normal(1, BATCH, 2, 5, 5), "t": normal(2, BATCH, 4)}
    start = values(net)  # rounded: both begin with the same
    net.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in start.items()})
    arrays.update({"init." + name: value for name, value in start.items()})
    x, t = (torch.tensor(arrays[key], dtype=torch.float64) for key in "xt")
    optim = torch.optim.SGD(net.parameters(), lr=0.25)
    losses, steps = [], []
    for _ in range(STEPS):
        optim.zero_grad()
        loss = F.mse_loss(net(x), t)
        loss.backward()
        optim.step()
        losses.append(loss.item())
        steps.append(values(net))
    arrays["loss"] = np.array(losses)
    arrays.update({"step." + name: np.stack([s[name] for s in steps]) for name in start})
    arrays["y"] = net.eval()(x).detach().numpy().astype(np.float32)
    save("spectral", arrays)


if __name__ == "__main__":
    main()
