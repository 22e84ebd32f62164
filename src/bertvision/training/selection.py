"""Choose among encoder, heads and ensembles, on held-out examples only."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.ensembling import Outputs, combine, greedy
from bertvision.metrics.glue import measure
from bertvision.metrics.intervals import score


@dataclass(frozen=True)
class Ensemble:
    """A rule (`max` or `mean`) over weighted members; a single model is a mean of one."""

    rule: str
    weights: dict[str, float]

    def of(self, outputs: Outputs) -> np.ndarray:
        return combine(outputs, self.weights, self.rule)

    def as_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "weights": self.weights}


def goodness(outputs: np.ndarray, targets: np.ndarray, metric: str) -> tuple[float, float]:
    """What choices go by: the metric and, between equals, the loss (accuracy on a few hundred examples ties often)."""
    if not np.isfinite(outputs).all():
        return -np.inf, -np.inf
    value = measure(outputs, targets, metric)
    if outputs.shape[1] > 1:
        picked = outputs[np.arange(len(targets)), targets]
        return round(value, 9), float(np.log(np.clip(picked, 1e-9, None)).mean())
    return round(value, 9), -float(((outputs[:, 0] - targets) ** 2).mean())


def best(outputs: Outputs, targets: np.ndarray, metric: str) -> str:
    return max(outputs, key=lambda name: goodness(outputs[name], targets, metric))


def ensembles(outputs: Outputs, targets: np.ndarray, metric: str) -> dict[str, Ensemble]:
    """The ensembles that held-out predictions of encoder and heads call for: the best head with the encoder by max
    and by mean, and the greedy one over all."""
    heads = {name: values for name, values in outputs.items() if name != "encoder"}
    if not heads:
        return {}
    both = {"encoder": 1.0, best(heads, targets, metric): 1.0}
    # By the loss, which is smooth: on a few hundred examples, greedy steps by accuracy are steps after noise.
    weights = greedy(outputs, lambda values: goodness(values, targets, metric)[1:])
    return {
        "ensemble-max": Ensemble("max", both),
        "ensemble-mean": Ensemble("mean", both),
        "ensemble-greedy": Ensemble("mean", weights),
    }


def score_all(outputs: Outputs, targets: np.ndarray, metrics: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Every model's scores with intervals, as scores.json has them."""
    return {
        model: {metric: score(values, targets, metric).as_dict() for metric in metrics}
        for model, values in outputs.items()
    }
