"""Choose among encoder, heads and ensembles, on held-out examples only."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.ensembling import Outputs, combine, greedy
from bertvision.training.judging import Judge, goodness


@dataclass(frozen=True)
class Ensemble:
    """A rule (`max` or `mean`) over weighted members; a single model is a mean of one."""

    rule: str
    weights: dict[str, float]

    def of(self, outputs: Outputs, kind: str) -> np.ndarray:
        return combine(outputs, self.weights, self.rule, kind)

    def as_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "weights": self.weights}


def best(outputs: Outputs, judge: Judge, metric: str) -> str:
    return max(outputs, key=lambda name: goodness(judge, outputs[name], metric))


def ensembles(outputs: Outputs, judge: Judge, metric: str) -> dict[str, Ensemble]:
    """The ensembles that held-out predictions of encoder and heads call for: the best head with the encoder by max
    and by mean, and the greedy one over all."""
    heads = {name: values for name, values in outputs.items() if name != "encoder"}
    if not heads:
        return {}
    both = {"encoder": 1.0, best(heads, judge, metric): 1.0}
    # By the loss, which is smooth: on a few hundred examples, greedy steps by accuracy are steps after noise.
    weights = greedy(outputs, lambda values: -judge.loss(values) if np.isfinite(values).all() else -np.inf)
    return {
        "ensemble-max": Ensemble("max", both),
        "ensemble-mean": Ensemble("mean", both),
        "ensemble-greedy": Ensemble("mean", weights),
    }
