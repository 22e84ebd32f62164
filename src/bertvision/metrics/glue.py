"""GLUE's metrics: values from scikit-learn and scipy; the weighted forms beside them make the bootstrap fast.

A weighted form takes decisions (N,), targets (N,), weights (R, N), how often each example was drawn in each of R
resamples, and the number of classes, and gives the metric of every resample, (R,). With all weights 1 it equals the
plain value (tested). A constant prediction has no correlation with anything: it scores 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

Array = np.ndarray


@dataclass(frozen=True)
class Metric:
    value: Callable[[Array, Array, int], float]  # decisions, targets, classes
    weighted: Callable[[Array, Array, Array, int], Array]  # decisions, targets, weights, classes


def decide(outputs: Array) -> Array:
    """Predictions (N, C) to decisions (N,): the most probable class, or the score itself."""
    return outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0]


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(below, dtype=float), where=below > 1e-12)


def _accuracy(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    return weights @ (decisions == targets) / weights.sum(1)


def _counts(decisions: Array, targets: Array, weights: Array, classes: int) -> tuple[Array, Array, Array]:
    """(R, classes) each: how often a class was decided rightly, was decided, was the target."""
    decided, true = np.eye(classes, dtype=weights.dtype)[decisions], np.eye(classes, dtype=weights.dtype)[targets]
    return tuple((weights @ rows).astype(float) for rows in (decided * true, decided, true))


def _f1_value(decisions: Array, targets: Array, classes: int) -> float:
    """F1 of class 1 where there are two classes (GLUE's), the mean over classes that occur otherwise."""
    average = "binary" if classes == 2 else "macro"
    return float(sklearn_metrics.f1_score(targets, decisions, average=average, zero_division=0))


def _f1(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    right, decided, true = _counts(decisions, targets, weights, classes)
    each = _ratio(2 * right, decided + true)
    if classes == 2:
        return each[:, 1]
    return _ratio(each.sum(1), (decided + true > 0).sum(1).astype(float))


def _matthews(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    right, decided, true = _counts(decisions, targets, weights, classes)
    total = true.sum(1)
    covariance = right.sum(1) * total - (decided * true).sum(1)
    spread = (total**2 - (true**2).sum(1)) * (total**2 - (decided**2).sum(1))
    return _ratio(covariance, np.sqrt(np.clip(spread, 0, None)))


def _pearson(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    return _correlation(decisions[None], targets[None], weights)


def _correlation(x: Array, y: Array, weights: Array) -> Array:
    total = weights.sum(1, keepdims=True)
    x = x - (weights * x).sum(1, keepdims=True) / total
    y = y - (weights * y).sum(1, keepdims=True) / total
    spread = (weights * x**2).sum(1) * (weights * y**2).sum(1)
    return _ratio((weights * x * y).sum(1), np.sqrt(np.clip(spread, 0, None)))


def _spearman(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    return _correlation(_ranks(decisions, weights), _ranks(targets, weights), weights)


def _ranks(values: Array, weights: Array) -> Array:
    """Mid-ranks of each value within each resample, (R, N)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    drawn = np.add.reduceat(weights[:, order], starts, axis=1)  # (R, groups of equal values)
    return (np.cumsum(drawn, 1) - (drawn - 1) / 2)[:, group]


def _or_zero(function: Callable[[Array, Array], float]) -> Callable[[Array, Array, int], float]:
    def value(decisions: Array, targets: Array, classes: int) -> float:
        if np.ptp(decisions) < 1e-12 or np.ptp(targets) < 1e-12:
            return 0.0
        return float(function(decisions, targets))

    return value


METRICS = {
    "accuracy": Metric(lambda decisions, targets, classes: float((decisions == targets).mean()), _accuracy),
    "f1": Metric(_f1_value, _f1),
    "matthews": Metric(_or_zero(lambda d, t: sklearn_metrics.matthews_corrcoef(t, d)), _matthews),
    "pearson": Metric(_or_zero(lambda d, t: stats.pearsonr(d, t).statistic), _pearson),
    "spearman": Metric(_or_zero(lambda d, t: stats.spearmanr(d, t).statistic), _spearman),
}
