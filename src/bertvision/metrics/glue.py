"""GLUE's metrics, weighted, so that the bootstrap computes many resamples at once.

A metric takes decisions (N,), targets (N,), weights (R, N) and the number of classes. The weights are how often each
example was drawn in each of R resamples. It returns the value for every resample, (R,). With all weights 1 it equals
scikit-learn's or scipy's (tested). A constant prediction correlates with nothing and scores 0.
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
    """(R, classes) each: how often a class was decided correctly, was decided, was the target."""
    decided, true = np.eye(classes, dtype=weights.dtype)[decisions], np.eye(classes, dtype=weights.dtype)[targets]
    return tuple((weights @ rows).astype(float) for rows in (decided * true, decided, true))


def _f1(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
    """For two classes the F1 of class 1, as GLUE has it; otherwise the mean over classes that occur."""
    right, decided, true = _counts(decisions, targets, weights, classes)
    each = ratio(2 * right, decided + true)
    return each[:, 1] if classes == 2 else ratio(each.sum(1), (decided + true > 0).sum(1))


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


METRICS = {
    "accuracy": Metric(_accuracy),
    "f1": Metric(_f1),
    "matthews": Metric(_matthews),
    "pearson": Metric(_pearson),
    "spearman": Metric(_spearman),
}
