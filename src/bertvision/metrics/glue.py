"""GLUE's metrics: values from scikit-learn and scipy; the weighted forms beside them make the bootstrap fast.

A weighted form takes decisions (N,), targets (N,) and weights (R, N), how often each example was drawn in each of R
resamples, and gives the metric of every resample, (R,). With all weights 1 it equals the plain value (tested).
A constant prediction has no correlation with anything: it scores 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

Array = np.ndarray


@dataclass(frozen=True)
class Metric:
    value: Callable[[Array, Array], float]  # decisions, targets
    weighted: Callable[[Array, Array, Array], Array]


def decide(outputs: Array) -> Array:
    """Predictions (N, C) to decisions (N,): the most probable class, or the score itself."""
    return outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0]


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(below, dtype=float), where=below > 1e-12)


def _accuracy(decisions: Array, targets: Array, weights: Array) -> Array:
    return weights @ (decisions == targets) / weights.sum(1)


def _confusion(decisions: Array, targets: Array, weights: Array) -> Array:
    """(R, classes, classes): weight of each (target, decision) cell."""
    classes = int(max(decisions.max(), targets.max())) + 1
    cells = np.zeros((len(targets), classes * classes), dtype=weights.dtype)
    cells[np.arange(len(targets)), targets * classes + decisions] = 1
    return (weights @ cells).reshape(-1, classes, classes)


def _f1_value(decisions: Array, targets: Array) -> float:
    """F1 of class 1 where there are two classes (GLUE's), the mean over classes otherwise."""
    average = "binary" if max(decisions.max(), targets.max()) < 2 else "macro"
    return float(sklearn_metrics.f1_score(targets, decisions, average=average, zero_division=0))


def _f1(decisions: Array, targets: Array, weights: Array) -> Array:
    cells = _confusion(decisions, targets, weights)
    right = np.diagonal(cells, axis1=1, axis2=2)
    named = cells.sum(1) + cells.sum(2)  # (R, classes): how often as target plus how often as decision
    each = _ratio(2 * right, named)
    if cells.shape[1] == 2:
        return each[:, 1]
    return _ratio(each.sum(1), (named > 0).sum(1).astype(float))


def _matthews(decisions: Array, targets: Array, weights: Array) -> Array:
    cells = _confusion(decisions, targets, weights).astype(float)
    by_target, by_decision, total = cells.sum(2), cells.sum(1), cells.sum((1, 2))
    right = np.trace(cells, axis1=1, axis2=2)
    covariance = right * total - (by_target * by_decision).sum(1)
    spread = (total**2 - (by_target**2).sum(1)) * (total**2 - (by_decision**2).sum(1))
    return _ratio(covariance, np.sqrt(np.clip(spread, 0, None)))


def _pearson(decisions: Array, targets: Array, weights: Array) -> Array:
    return _correlation(decisions[None], targets[None], weights)


def _correlation(x: Array, y: Array, weights: Array) -> Array:
    total = weights.sum(1, keepdims=True)
    x = x - (weights * x).sum(1, keepdims=True) / total
    y = y - (weights * y).sum(1, keepdims=True) / total
    spread = (weights * x**2).sum(1) * (weights * y**2).sum(1)
    return _ratio((weights * x * y).sum(1), np.sqrt(np.clip(spread, 0, None)))


def _spearman(decisions: Array, targets: Array, weights: Array) -> Array:
    return _correlation(_ranks(decisions, weights), _ranks(targets, weights), weights)


def _ranks(values: Array, weights: Array) -> Array:
    """Mid-ranks of each value within each resample, (R, N)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    drawn = np.add.reduceat(weights[:, order], starts, axis=1)  # (R, groups of equal values)
    return (np.cumsum(drawn, 1) - (drawn - 1) / 2)[:, group]


def _or_zero(function: Callable[[Array, Array], float]) -> Callable[[Array, Array], float]:
    def value(decisions: Array, targets: Array) -> float:
        if np.ptp(decisions) < 1e-12 or np.ptp(targets) < 1e-12:
            return 0.0
        return float(function(decisions, targets))

    return value


METRICS = {
    "accuracy": Metric(lambda decisions, targets: float((decisions == targets).mean()), _accuracy),
    "f1": Metric(_f1_value, _f1),
    "matthews": Metric(_or_zero(lambda d, t: sklearn_metrics.matthews_corrcoef(t, d)), _matthews),
    "pearson": Metric(_or_zero(lambda d, t: stats.pearsonr(d, t).statistic), _pearson),
    "spearman": Metric(_or_zero(lambda d, t: stats.spearmanr(d, t).statistic), _spearman),
}
