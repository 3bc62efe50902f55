#!/usr/bin/env python3
"""Records scikit-learn's metrics into tests/golden/metrics.safetensors for tests/test_golden_metrics.c.

    /usr/bin/python3 tools/record_golden_metrics.py      (Debian's python3-torch and python3-sklearn)
"""
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


def main():
    arrays = {}
    class_metrics(arrays)
    scores(arrays)
    regression(arrays)
    save("metrics", arrays)


if __name__ == "__main__":
    main()
