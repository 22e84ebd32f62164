"""Metrics of classes and scores, weighted, so that the bootstrap computes many resamples at once.

A metric takes decisions (N,), targets (N,), weights (R, N) and the number of classes. The weights are how often each
example was drawn in each of R resamples. It returns the value for every resample, (R,). With all weights 1 it equals
scikit-learn's or scipy's (tested). A constant prediction correlates with nothing and scores 0. Targets of a class that
train lacks have the index after the last class: no decision equals it, and it counts as one more class.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Metric:
    weighted: Callable[[Array, Array, Array, int], Array]  # decisions, targets, weights, classes

    def value(self, decisions: Array, targets: Array, classes: int) -> float:
        return float(self.weighted(decisions, targets, np.ones((1, len(targets))), classes)[0])


def decide(outputs: Array) -> Array:
    """Predictions (N, C) to decisions (N,): the most probable class, or the score itself."""
    return outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0]


def ratio(above: Array, below: Array) -> Array:
    """The quotient; 0 where the divisor is 0."""
    return np.divide(above, below, out=np.zeros_like(below, dtype=float), where=below > 1e-12)


def _accuracy(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    return weights @ (decisions == targets) / weights.sum(1)


def _counts(decisions: Array, targets: Array, weights: Array, classes: int) -> tuple[Array, Array, Array]:
    """(R, classes + 1) each: how often a class was decided correctly, was decided, was the target."""
    right = np.where(decisions == targets, targets, -1)
    first, second, third = (_totals(of, weights, classes + 1) for of in (right, decisions, targets))
    return first, second, third


def _totals(of: Array, weights: Array, classes: int) -> Array:
    """(R, classes): the weight of each class's rows; those of class -1 are left out."""
    order = np.argsort(of, kind="stable")
    order = order[of[order] >= 0]
    found, (present, starts) = np.zeros((len(weights), classes)), np.unique(of[order], return_index=True)
    if len(order):
        found[:, present] = np.add.reduceat(weights[:, order], starts, axis=1)
    return found


def _f1(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    """For two classes the F1 of class 1, as GLUE has it; otherwise the mean over classes that occur."""
    if classes != 2:
        return _macro_f1(decisions, targets, weights, classes)
    right, decided, true = _counts(decisions, targets, weights, classes)
    return ratio(2 * right[:, 1], decided[:, 1] + true[:, 1])


def _macro_f1(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    right, decided, true = _counts(decisions, targets, weights, classes)
    return ratio(ratio(2 * right, decided + true).sum(1), (decided + true > 0).sum(1))


def _balanced_accuracy(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    """The mean over classes that occur of the share of a class that is decided correctly."""
    right, _, true = _counts(decisions, targets, weights, classes)
    return ratio(ratio(right, true).sum(1), (true > 0).sum(1))


def _matthews(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    right, decided, true = _counts(decisions, targets, weights, classes)
    total = true.sum(1)
    covariance = right.sum(1) * total - (decided * true).sum(1)
    spread = (total**2 - (true**2).sum(1)) * (total**2 - (decided**2).sum(1))
    return ratio(covariance, np.sqrt(np.clip(spread, 0, None)))


def _pearson(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    """Of values (N,), or of values per resample (R, N)."""
    total = weights.sum(1, keepdims=True)
    x, y = (values - (weights * values).sum(1, keepdims=True) / total for values in (decisions, targets))
    spread = (weights * x**2).sum(1) * (weights * y**2).sum(1)
    return ratio((weights * x * y).sum(1), np.sqrt(np.clip(spread, 0, None)))


def _spearman(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    return _pearson(_ranks(decisions, weights), _ranks(targets, weights), weights, classes)


def _ranks(values: Array, weights: Array) -> Array:
    """Mid-ranks of each value within each resample, (R, N)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    drawn = np.add.reduceat(weights[:, order], starts, axis=1)  # (R, groups of equal values)
    return (np.cumsum(drawn, 1) - (drawn - 1) / 2)[:, group]


def _r2(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    """1 for a perfect prediction, 0 for the targets' mean, below 0 for worse."""
    mean = weights @ targets / weights.sum(1)
    spread = (weights * (targets - mean[:, None]) ** 2).sum(1)
    error = weights @ (decisions - targets) ** 2
    return np.where(spread > 1e-12, 1 - ratio(error, spread), error <= 1e-12)


CLASS_METRICS = {
    "accuracy": Metric(_accuracy),
    "f1": Metric(_f1),
    "macro-f1": Metric(_macro_f1),
    "balanced-accuracy": Metric(_balanced_accuracy),
    "matthews": Metric(_matthews),
}
SCORE_METRICS = {"pearson": Metric(_pearson), "spearman": Metric(_spearman), "r2": Metric(_r2)}
METRICS = CLASS_METRICS | SCORE_METRICS
