#!/usr/bin/env python3
"""Records PyTorch's losses of each element, and their gradients, into tests/golden/losses.safetensors
for tests/golden/test_golden_losses.c. Values are float64's at float32 points, as ops.safetensors has them. They
are ops.NAME.y and the gradients of sum(y * ops.NAME.dy) as .dx (or .da, .db, .dw). The rest are inputs.

    /usr/bin/python3 tools/golden/record_golden_losses.py      (Debian's python3-torch)
"""
import numpy as np
import torch
import torch.nn.functional as F

from record_golden import classes, leaf, normal, record_op, save

ROWS, WIDTH = 6, 5


def fixed(array):
    return torch.tensor(array, dtype=torch.float64)


def signs(seed, *shape):
    return np.where(np.random.RandomState(seed).uniform(size=shape) < 0.5, 1, -1).astype(np.float32)


def chances(seed, *shape):
    """Probabilities; every row begins with 0 and ends with 1."""
    p = np.random.RandomState(seed).uniform(0.02, 0.98, shape).astype(np.float32)
    p[..., 0], p[..., -1] = 0, 1
    return p


def inside(seed, *shape):
    return np.random.RandomState(seed).uniform(0.02, 0.98, shape).astype(np.float32)


def distances(arrays):
    y, t = normal(1, ROWS, WIDTH) * np.float32(2), normal(2, ROWS, WIDTH)
    y[:, 0] = t[:, 0]  # no distance
    for name, function in (("l1", F.l1_loss), ("smooth_l1", F.smooth_l1_loss),
                           ("huber", F.huber_loss)):
        a, b = leaf(y), leaf(t)
        record_op(arrays, name, {"a": a, "b": b}, function(a, b, reduction="none"), 3)
    a, b = leaf(y), leaf(t)
    record_op(arrays, "smooth_l1_half", {"a": a, "b": b},
              F.smooth_l1_loss(a, b, reduction="none", beta=0.5), 3)
    a, b = leaf(y), leaf(t)
    record_op(arrays, "huber_two", {"a": a, "b": b}, F.huber_loss(a, b, reduction="none", delta=2), 3)


def focal(x, t, alpha, gamma):  # torchvision.ops.sigmoid_focal_loss
    p = torch.sigmoid(x)
    ce = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    p_t = p * t + (1 - p) * (1 - t)
    loss = ce * ((1 - p_t) ** gamma)
    return (alpha * t + (1 - alpha) * (1 - t)) * loss if alpha >= 0 else loss


def two_classes(arrays):
    p, t = inside(4, ROWS, WIDTH), chances(5, ROWS, WIDTH)
    x = normal(6, ROWS, WIDTH) * np.float32(3)
    x[0] = [0, 30, -30, 90, -90]
    weight = np.array([0.5, 1, 2, 3, 1.5], np.float32)
    a = leaf(p)
    record_op(arrays, "bce", {"a": a}, F.binary_cross_entropy(a, fixed(t), reduction="none"), 7)
    arrays["ops.bce.t"] = t
    # At the ends: the logarithm's floor, and PyTorch's gradient where the target is at the other end.
    ends, far = np.array([0, 1], np.float32), np.array([1, 0], np.float32)
    a = leaf(ends)
    record_op(arrays, "bce_ends", {"a": a}, F.binary_cross_entropy(a, fixed(far), reduction="none"))
    arrays["ops.bce_ends.t"] = far
    for name, settings in (("bce_logits", {}), ("bce_logits_weighted",
                                                 {"pos_weight": fixed(weight)})):
        a = leaf(x)
        y = F.binary_cross_entropy_with_logits(a, fixed(t), reduction="none", **settings)
        record_op(arrays, name, {"a": a}, y, 8)
        arrays[f"ops.{name}.t"], arrays[f"ops.{name}.w"] = t, weight
    hard = np.round(t)
    for name, alpha, gamma in (("focal", 0.25, 2), ("focal_other", -1, 1.5)):
        a = leaf(np.clip(x, -8, 8))
        record_op(arrays, name, {"a": a}, focal(a, fixed(hard), alpha, gamma), 9)
        arrays[f"ops.{name}.t"] = hard
    a, sign = leaf(x), signs(10, ROWS, WIDTH)
    record_op(arrays, "soft_margin", {"a": a}, F.soft_margin_loss(a, fixed(sign), reduction="none"),
              11)
    arrays["ops.soft_margin.t"] = sign
    a = leaf(x)
    y = F.multilabel_soft_margin_loss(a, fixed(hard), reduction="none")
    record_op(arrays, "multilabel_soft_margin", {"a": a}, y, 12)
    arrays["ops.multilabel_soft_margin.t"] = hard


def distributions(arrays):
    x = normal(13, ROWS, WIDTH)
    q = torch.softmax(fixed(normal(14, ROWS, WIDTH)), 1).numpy().astype(np.float32)
    q[:, 1] = 0
    a = leaf(x)
    record_op(arrays, "kl_div", {"a": a}, F.kl_div(a, fixed(q), reduction="none"), 15)
    arrays["ops.kl_div.t"] = q
    a, b = leaf(x), leaf(normal(16, ROWS, WIDTH))
    record_op(arrays, "kl_div_log", {"a": a, "b": b},
              F.kl_div(a, b, reduction="none", log_target=True), 17)
    a = leaf(x)
    record_op(arrays, "soft_cross_entropy", {"a": a}, F.cross_entropy(a, fixed(q), reduction="none"),
              18)
    arrays["ops.soft_cross_entropy.t"] = q
    weight = np.array([0.5, 1, 2, 0.25, 1.5], np.float32)
    for name, settings in (("each", {}), ("each_more", dict(ignore_index=2, label_smoothing=0.2,
                                                            weight=fixed(weight)))):
        t = classes(56, WIDTH, ROWS, ignored=0 if settings else 0.3)
        a = leaf(normal(57, ROWS, WIDTH))
        y = F.cross_entropy(a, torch.tensor(t, dtype=torch.int64), reduction="none", **settings)
        record_op(arrays, name, {"a": a}, y, 58)
        arrays[f"ops.{name}.t"], arrays[f"ops.{name}.w"] = t, weight
    a, teacher = leaf(x), normal(19, ROWS, WIDTH)
    y = 9 * F.kl_div(torch.log_softmax(a / 3, 1), torch.log_softmax(fixed(teacher) / 3, 1),
                     reduction="none", log_target=True).sum(1)
    record_op(arrays, "distillation", {"a": a}, y, 20)
    arrays["ops.distillation.t"] = teacher
    a, b = leaf(normal(21, 2, 4, WIDTH)), leaf(normal(22, 2, 4, WIDTH))
    logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).transpose(1, 2) / 0.25
    own = torch.arange(4).repeat(2)
    y = F.cross_entropy(logits.reshape(8, 4), own, reduction="none").reshape(2, 4)
    record_op(arrays, "info_nce", {"a": a, "b": b}, y, 23)
    for name, full in (("gaussian_nll", False), ("gaussian_nll_full", True)):
        a, b, w = leaf(x), leaf(normal(24, ROWS, WIDTH)), leaf(inside(25, ROWS, WIDTH))
        y = F.gaussian_nll_loss(a, b, w, full=full, eps=0.25, reduction="none")
        record_op(arrays, name, {"a": a, "b": b, "w": w}, y, 26)
    counts = np.random.RandomState(27).randint(0, 6, (ROWS, WIDTH)).astype(np.float32)
    for name, log_input, full in (("poisson_nll", True, False), ("poisson_nll_full", True, True),
                                  ("poisson_nll_rate", False, False)):
        a = leaf(x if log_input else abs(x) + np.float32(0.1))
        y = F.poisson_nll_loss(a, fixed(counts), log_input=log_input, full=full, reduction="none")
        record_op(arrays, name, {"a": a}, y, 28)
        arrays[f"ops.{name}.t"] = counts


def margins(arrays):
    t = signs(29, ROWS)
    a, b = leaf(normal(30, ROWS, WIDTH)), leaf(normal(31, ROWS, WIDTH))
    y = F.cosine_embedding_loss(a, b, fixed(t), margin=0.1, reduction="none")
    record_op(arrays, "cosine_embedding", {"a": a, "b": b}, y, 32)
    arrays["ops.cosine_embedding.t"] = t
    t = signs(33, ROWS, WIDTH)
    a, b = leaf(normal(34, ROWS, WIDTH)), leaf(normal(35, ROWS, WIDTH))
    record_op(arrays, "margin_ranking", {"a": a, "b": b},
              F.margin_ranking_loss(a, b, fixed(t), margin=0.5, reduction="none"), 36)
    arrays["ops.margin_ranking.t"] = t
    a = leaf(normal(37, ROWS, WIDTH))
    record_op(arrays, "hinge_embedding", {"a": a},
              F.hinge_embedding_loss(a, fixed(t), margin=0.75, reduction="none"), 38)
    arrays["ops.hinge_embedding.t"] = t
    for name, settings in (("triplet", {}), ("triplet_one", dict(p=1, margin=0.5)),
                           ("triplet_three_swapped", dict(p=3, swap=True))):
        a, b, w = (leaf(normal(k, ROWS, WIDTH)) for k in (39, 40, 41))
        y = F.triplet_margin_loss(a, b, w, reduction="none", **settings)
        record_op(arrays, name, {"a": a, "b": b, "w": w}, y, 42)


def margins_of_classes(arrays):
    t, weight = classes(43, WIDTH, ROWS), np.array([0.5, 1, 2, 0.25, 1.5], np.float32)
    for name, settings in (("multi_margin", {}),
                           ("multi_margin_two", dict(p=2, margin=0.5, weight=fixed(weight)))):
        a = leaf(normal(44, ROWS, WIDTH))
        y = F.multi_margin_loss(a, torch.tensor(t, dtype=torch.int64), reduction="none", **settings)
        record_op(arrays, name, {"a": a}, y, 45)
        arrays[f"ops.{name}.t"], arrays[f"ops.{name}.w"] = t, weight
    there = (np.random.RandomState(46).uniform(size=(ROWS, WIDTH)) < 0.4).astype(np.float32)
    there[0] = 0  # no label at all
    listed = np.full((ROWS, WIDTH), -1)
    for row in range(ROWS):
        labels = np.flatnonzero(there[row])
        listed[row, :len(labels)] = labels
    a = leaf(normal(47, ROWS, WIDTH))
    y = F.multilabel_margin_loss(a, torch.tensor(listed), reduction="none")
    record_op(arrays, "multilabel_margin", {"a": a}, y, 48)
    arrays["ops.multilabel_margin.t"] = there


def overlaps(arrays):  # no functions of PyTorch's: the formulas, summed over a sample
    p, t = inside(49, ROWS, 3, WIDTH), np.round(inside(50, ROWS, 3, WIDTH))
    for name, dice in (("dice", True), ("jaccard", False)):
        a = leaf(p)
        both, of = (a * fixed(t)).sum((1, 2)), (a + fixed(t)).sum((1, 2))
        y = 1 - (2 * both + 1) / (of + 1) if dice else 1 - (both + 1) / (of - both + 1)
        record_op(arrays, name, {"a": a}, y, 51)
        arrays[f"ops.{name}.t"] = t


def terms(arrays):
    """Means, and gradients of sums, as dt_gradient gives them. NLL; a weighted mean."""
    weight = np.array([0.5, 1, 2, 0.25, 1.5], np.float32)
    for name, ignore, weighted in (("nll", -100, False), ("nll_weighted", -100, True),
                                   ("nll_ignored", 2, True)):
        t = classes(52, WIDTH, ROWS + 4, ignored=0.3 if ignore < 0 else 0)
        a, t64 = leaf(normal(53, ROWS + 4, WIDTH)), torch.tensor(t, dtype=torch.int64)
        settings = dict(ignore_index=ignore, weight=fixed(weight) if weighted else None)
        F.nll_loss(a, t64, reduction="sum", **settings).backward()
        key = "ops." + name
        arrays.update({key + ".x": a.detach().numpy().astype(np.float32), key + ".t": t,
                       key + ".w": weight, key + ".dx": a.grad.numpy(),
                       key + ".y": F.nll_loss(a, t64, **settings).detach().numpy()})
    a, w = leaf(normal(54, ROWS, WIDTH)), inside(55, ROWS)
    w[2] = 0
    (a * fixed(w)[:, None]).sum().backward()
    y = (a.mean(1) * fixed(w)).sum() / fixed(w).sum()
    arrays.update({"ops.weighted.x": a.detach().numpy().astype(np.float32), "ops.weighted.w": w,
                   "ops.weighted.dx": a.grad.numpy(), "ops.weighted.y": y.detach().numpy()})


def main():
    arrays = {}
    for record in (distances, two_classes, distributions, margins, margins_of_classes, overlaps,
                   terms):
        record(arrays)
    save("losses", arrays)


if __name__ == "__main__":
    main()
