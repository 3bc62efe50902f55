#!/usr/bin/env python3
"""Records scikit-learn's metrics into tests/golden/metrics.safetensors for tests/golden/test_golden_metrics.c.

    /usr/bin/python3 tools/golden/record_golden_metrics.py      (Debian's python3-torch and python3-sklearn)
"""
import warnings

import numpy as np
import sklearn.metrics as M

from record_golden import save

ROWS, CLASSES = 64, 6


def class_metrics(arrays):
    random = np.random.RandomState(1)
    logits = random.randn(ROWS, CLASSES).astype(np.float32)
    target = random.randint(0, CLASSES - 1, ROWS)  # the last class is never a target
    logits[np.arange(ROWS), target] += 1
    logits[:, 4] -= 3  # and this one hardly a prediction
    weight = random.uniform(0, 2, ROWS).astype(np.float32)
    guess, shifted = logits.argmax(1), logits.astype(np.float64)
    shifted -= np.log(np.exp(shifted).sum(1, keepdims=True))
    arrays.update({"y": logits, "t": target.astype(np.int32), "w": weight})
    for key, w in (("", None), ("weighted_", weight)):
        one = dict(sample_weight=w, zero_division=0)
        loss = np.average(-shifted[np.arange(ROWS), target], weights=w)
        found = [M.accuracy_score(target, guess, sample_weight=w),
                 M.top_k_accuracy_score(target, logits, k=2, labels=range(CLASSES), sample_weight=w),
                 np.exp(loss)]
        for average in ("macro", "micro"):
            found += [f(target, guess, average=average, **one) for f in (
                M.precision_score, M.recall_score, M.f1_score, M.jaccard_score)]
        each = [f(target, guess, average=None, labels=range(CLASSES), **one) for f in (
            M.precision_score, M.recall_score, M.f1_score, M.jaccard_score)]
        arrays[key + "classes"] = np.array(found)
        arrays[key + "each"] = np.array(each)
        arrays[key + "confusion"] = M.confusion_matrix(target, guess, labels=range(CLASSES),
                                                       sample_weight=w).astype(np.float64)


def scores(arrays):
    random = np.random.RandomState(2)
    target = (random.uniform(size=ROWS) < 0.4).astype(np.float32)
    score = np.clip(random.randn(ROWS) * 0.2 + 0.4 + 0.2 * target, 0, 1).astype(np.float32)
    coarse = (np.floor(np.minimum(score * 16, 15)) / 16).astype(np.float32)  # what 16 bins see
    weight = random.uniform(0, 2, ROWS).astype(np.float32)
    arrays.update({"score": score, "is": target, "score_w": weight})
    for key, s, w in (("exact", score, None), ("exact_weighted", score, weight),
                      ("binned", coarse, None), ("binned_weighted", coarse, weight)):
        arrays[key] = np.array([M.roc_auc_score(target, s, sample_weight=w),
                                M.average_precision_score(target, s, sample_weight=w)])


def regression(arrays):
    random = np.random.RandomState(3)
    t = random.uniform(0, 1, ROWS).astype(np.float32)
    y = (t + 0.1 * random.randn(ROWS)).astype(np.float32)
    arrays.update({"value": y, "truth": t})
    a, b = t.astype(np.float64), y.astype(np.float64)
    for key, w in (("regression", None), ("regression_weighted", arrays["w"])):
        mse = M.mean_squared_error(a, b, sample_weight=w)
        arrays[key] = np.array([M.mean_absolute_error(a, b, sample_weight=w), mse, np.sqrt(mse),
                                M.r2_score(a, b, sample_weight=w), 10 * np.log10(4 / mse)])


def edge_cases(arrays, key, cases, measure):
    """Cases (y, t, w) one after the other; at: where each begins; key: what it measures."""
    at, found = [0], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for y, t, w in cases:
            at.append(at[-1] + len(t))
            found += measure(np.array(y, np.float32), np.array(t), np.array(w, np.float32))
    for k, (name, dtype) in enumerate((("y", np.float32), ("t", None), ("w", np.float32))):
        dtype = dtype or (np.int32 if key == "edge_classes" else np.float32)
        arrays[f"{key}_{name}"] = np.concatenate([np.array(c[k], dtype) for c in cases])
    arrays[key + "_at"] = np.array(at, np.float32)
    arrays[key] = np.nan_to_num(np.array(found), nan=-2)  # -2: a NaN


def edges(arrays):
    """One row, targets that are all alike, classes that are absent or weigh nothing."""
    def classes(y, t, w):
        p, one = y.argmax(1), dict(sample_weight=w, zero_division=0)
        return [M.accuracy_score(t, p, sample_weight=w)] + [
            f(t, p, average=average, **one) for average in ("macro", "micro")
            for f in (M.precision_score, M.recall_score, M.f1_score, M.jaccard_score)]

    def of(p):
        return np.eye(4, dtype=np.float32)[p]
    edge_cases(arrays, "edge_classes", [
        (of([1]), [1], [1]), (of([1]), [2], [1]), (of([0, 0, 0]), [0, 0, 0], [1, 2, 3]),
        (of([0, 1, 1, 2]), [0, 1, 2, 2], [1, 1, 0, 0]),  # class 2 weighs nothing
        (of([0, 3, 1, 2]), [0, 1, 2, 2], [1, 0, 1, 1]),  # class 3 is predicted only at weight 0
        (of([1, 0]), [0, 1], [1, 1]), (of([3, 3, 3]), [0, 1, 2], [0.5, 1, 0])], classes)
    edge_cases(arrays, "edge_scores", [
        ([.25, .5], [1, 1], [1, 1]), ([.25, .5], [0, 0], [1, 1]), ([.5, .5], [0, 1], [1, 1]),
        ([.25, .5], [0, 1], [1, 0]), ([.25, .5], [0, 1], [0, 1]), ([.5], [1], [1]),
        ([.25, .5, .75], [1, 0, 1], [1, 0, 2]), ([0, 1], [1, 0], [1, 1])],
        lambda y, t, w: [M.roc_auc_score(t, y, sample_weight=w),
                         M.average_precision_score(t, y, sample_weight=w)])
    edge_cases(arrays, "edge_values", [
        ([1], [1], [1]), ([2], [1], [1]), ([1, 1], [1, 1], [1, 1]), ([1, 2], [1, 1], [1, 1]),
        ([1, 3], [1, 2], [1, 0]), ([1.5, 3], [1, 2], [1, 0]), ([2, 1], [1, 2], [1, 1])],
        lambda y, t, w: [M.r2_score(t, y, sample_weight=w)])


def main():
    arrays = {}
    edges(arrays)
    class_metrics(arrays)
    scores(arrays)
    regression(arrays)
    save("metrics", arrays)


if __name__ == "__main__":
    main()
