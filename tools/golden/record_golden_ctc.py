#!/usr/bin/env python3
"""Records PyTorch's CTC loss of logits, with its gradient through log_softmax, into
tests/golden/ctc.safetensors for tests/golden/test_ctc.c. Values are float64's at float32 points, in the form of
ops.safetensors. ops.NAME.y is the loss, .da the gradient of sum(y * ops.NAME.dy), .a the logits, .t the
targets. .n is the number of steps, .m of labels.

    python3 tools/golden/record_golden_ctc.py
"""
import numpy as np
import torch
import torch.nn.functional as F

from record_golden import leaf, normal, record_op, save

STEPS, CLASSES, LABELS = 9, 6, 4


def record(arrays, name, targets, steps, counts, blank, zero, by_length=False):
    t, n, m = (np.array(v, np.int32) for v in (targets, steps, counts))
    a = leaf(normal(11 + len(arrays), len(t), STEPS, CLASSES) * np.float32(2))
    kept = torch.tensor(np.maximum(t, 0), dtype=torch.long)  # -1 fills up, which PyTorch does not know
    lengths = torch.tensor(n, dtype=torch.long), torch.tensor(m, dtype=torch.long)
    log_p = F.log_softmax(a, -1).transpose(0, 1)
    y = F.ctc_loss(log_p, kept, *lengths, blank=blank, reduction="none", zero_infinity=zero)
    if by_length:
        mean = F.ctc_loss(log_p, kept, *lengths, blank=blank, zero_infinity=zero)
        y = y / lengths[1].clamp_min(1)
        assert abs(y.mean() - mean) < 1e-12
    record_op(arrays, name, {"a": a}, y, 5)
    key = "ops." + name
    arrays[key + ".t"], arrays[key + ".n"], arrays[key + ".m"] = t, n, m


def main():
    arrays = {}
    # Labels that repeat, one after the other too; a target as long as its steps allow; of one label; none.
    targets = [[1, 2, 3, 4], [3, 3, 5, -1], [2, 2, 2, 1], [5, -1, -1, -1], [-1, -1, -1, -1]]
    record(arrays, "ctc", targets, [9, 7, 6, 1, 4], [4, 3, 4, 1, 0], 0, False)
    record(arrays, "ctc_mean", targets, [9, 9, 8, 2, 9], [4, 3, 4, 1, 0], 0, False, True)
    # Impossible: too many labels, equal ones with no step for the blank, no steps; and no steps, no labels.
    targets = [[0, 1, 4, 5], [1, 1, 4, 4], [0, 4, -1, -1], [-1, -1, -1, -1], [4, 0, 4, 0]]
    record(arrays, "ctc_zero", targets, [3, 5, 0, 0, 9], [4, 4, 2, 0, 4], 2, True)
    save("ctc", arrays)


if __name__ == "__main__":
    main()
