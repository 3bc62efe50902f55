#!/usr/bin/env python3
"""Records torch.einsum for tests/golden/test_einsum.c into tests/golden/einsum.safetensors, values and gradients as
record_op says. The samples' letter, Z, is only in PyTorch's equation; w has none.

    python3 tools/golden/record_golden_einsum.py      (PyTorch 2.15)
"""
import torch

from record_golden import leaf, normal, record_op, save

CASES = {  # equation, shape of x, shape of w (of None: it has no second operand)
    "transposed": ("Zij->Zji", (2, 3, 4), None),
    "trace": ("Zii->Z", (2, 3, 3), None),
    "diagonal": ("Ziji->Zji", (2, 3, 2, 3), None),
    "linear": ("Zte,oe->Zto", (2, 3, 4), (2, 4)),
    "heads": ("Zthd,hde->Zte", (2, 3, 2, 2), (2, 2, 3)),
    "beside": ("Zbi,bj->Zbij", (2, 2, 3), (2, 2)),
    "dots": ("Z...ij,jk->Z...ik", (2, 2, 3, 4), (4, 2)),
    "capitals": ("ZbA,A->ZAb", (2, 2, 3), (3,)),
    "whole": ("Zij,ij->Z", (2, 3, 4), (3, 4)),
}


def main():
    arrays = {}
    for name, (equation, x_shape, w_shape) in CASES.items():
        leaves = {"x": leaf(normal(1, *x_shape))}
        if w_shape:
            leaves["w"] = leaf(normal(2, *w_shape))
        record_op(arrays, name, leaves, torch.einsum(equation, *leaves.values()), 3)
    save("einsum", arrays)


if __name__ == "__main__":
    main()
