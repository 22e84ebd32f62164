"""Bootstrap intervals of a model's score, and of the difference between two models on the same examples."""

from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from bertvision.metrics import glue, squad

RESAMPLES = 1000
LEVEL = 0.95
TABLES = {"class": glue.METRICS, "score": glue.METRICS, "span": squad.METRICS}


@dataclass(frozen=True)
class Score:
    """A metric's value and its 95% bootstrap interval over examples."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def measure(outputs: np.ndarray, targets: np.ndarray, metric: str, kind: str = "class") -> float:
    """The metric's value for predictions (N, C); for spans these are qualities (metrics/squad.py)."""
    return TABLES[kind][metric].value(_decide(outputs, kind), targets, outputs.shape[1])


def score(outputs: np.ndarray, targets: np.ndarray, metric: str, kind: str = "class") -> Score:
    """Predictions (N, C) against targets (N,)."""
    values = resampled(outputs, targets, metric, kind)
    return Score(measure(outputs, targets, metric, kind), *interval(values))


def compare(one: np.ndarray, other: np.ndarray, targets: np.ndarray, metric: str, kind: str = "class") -> Score:
    """How much `other` scores above `one`: a paired bootstrap, both on the same resamples."""
    difference = measure(other, targets, metric, kind) - measure(one, targets, metric, kind)
    values = resampled(other, targets, metric, kind) - resampled(one, targets, metric, kind)
    return Score(difference, *interval(values))


def resampled(outputs: np.ndarray, targets: np.ndarray, metric: str, kind: str = "class") -> np.ndarray:
    """The metric in each of the resamples, (R,); resample r is the same for every model."""
    decisions = _decide(outputs, kind)
    blocks = (_weights(len(targets), first) for first in range(0, RESAMPLES, 100))
    weighted, classes = TABLES[kind][metric].weighted, outputs.shape[1]
    return np.concatenate([weighted(decisions, targets, weights, classes) for weights in blocks])


def _decide(outputs: np.ndarray, kind: str) -> np.ndarray:
    return outputs if kind == "span" else glue.decide(outputs)


def interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@lru_cache(maxsize=20)
def _weights(examples: int, first: int) -> np.ndarray:
    """(100, N): how often each example is drawn in resamples `first` to `first + 99`. Blocks of 100 bound memory."""
    random = np.random.default_rng([examples, first])
    draws = random.integers(0, examples, (100, examples))
    return np.stack([np.bincount(row, minlength=examples) for row in draws]).astype(np.float32)
