"""Bootstrap intervals of a model's score, and of the difference between two models on the same examples."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from bertvision.metrics import glue, squad

RESAMPLES, BLOCK = 1000, 100  # drawn in blocks, to bound memory
FEWEST_RESAMPLES = 200
MOST_DRAWS = 50_000_000  # resamples times examples: for more than 50,000 examples there are fewer resamples
LEVEL = 0.95
TABLES = {"class": glue.METRICS, "score": glue.METRICS, "span": squad.METRICS}
# The metrics that a model of each kind can be chosen by.
FITTING = {"class": tuple(glue.CLASS_METRICS), "score": tuple(glue.SCORE_METRICS), "span": tuple(squad.METRICS)}


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
    weighted, classes = TABLES[kind][metric].weighted, outputs.shape[1]
    return np.concatenate([weighted(decisions, targets, weights, classes) for weights in _weights(len(targets))])


def _decide(outputs: np.ndarray, kind: str) -> np.ndarray:
    return outputs if kind == "span" else glue.decide(outputs)


def interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _weights(examples: int) -> Iterator[np.ndarray]:
    """(BLOCK, N) each: how often each example is drawn in the resamples of a block."""
    blocks = max(FEWEST_RESAMPLES, min(RESAMPLES, MOST_DRAWS // examples)) // BLOCK
    kept = blocks * BLOCK * examples <= MOST_DRAWS
    for first in range(0, blocks * BLOCK, BLOCK):
        yield (_kept if kept else _drawn)(examples, first).astype(np.float32)


def _drawn(examples: int, first: int) -> np.ndarray:
    random = np.random.default_rng([examples, first])
    draws = random.integers(0, examples, (BLOCK, examples))
    # One byte each: that an example is drawn 256 times does not happen.
    return np.stack([np.bincount(row, minlength=examples).astype(np.uint8) for row in draws])


_kept = lru_cache(maxsize=2 * RESAMPLES // BLOCK)(_drawn)  # of two splits: at most 2 * MOST_DRAWS bytes
