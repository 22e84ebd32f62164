"""Choose among encoder, heads and ensembles, on held-out examples only."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertvision.ensembling import Outputs, combine, greedy, matching, shifted
from bertvision.metrics.intervals import score
from bertvision.training.judging import Judge, goodness


@dataclass(frozen=True)
class Ensemble:
    """A rule (`max` or `mean`) over weighted members; a single model is a mean of one. `shift` is added to the log odds
    of the second of two classes."""

    rule: str
    weights: dict[str, float]
    shift: float = 0.0

    def of(self, outputs: Outputs, kind: str) -> np.ndarray:
        return shifted(combine(outputs, self.weights, self.rule, kind), self.shift)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


GREEDY, MATCHED = "ensemble-greedy", "ensemble-matched"
FEWEST = 5  # held-out examples of each of two classes: from fewer no threshold can be told


def best(outputs: Outputs, judge: Judge, metric: str) -> str:
    return max(outputs, key=lambda name: goodness(judge, outputs[name], metric))


def preferred(outputs: Outputs, judge: Judge, metric: str) -> str:
    """The model to ship: the widest ensemble, unless another's score lies above its interval.

    The best of thirty models on a few hundred examples owes part of its score to luck; an ensemble made by the loss
    owes less. On the other half of held-out examples it is the better one (docs/results.md, "Defaults").
    """
    first = best(outputs, judge, metric)
    wide = next((name for name in (MATCHED, GREEDY) if name in outputs), first)
    if judge.kind == "span":  # whose threshold is tuned by the metric anyway
        return first
    values = [judge.predictions(outputs[name], None).values for name in (first, wide)]
    above = judge.measure(values[0], metric) > score(values[1], judge.targets, metric, judge.kind).high
    return first if above else wide


def ensembles(outputs: Outputs, judge: Judge, metric: str) -> dict[str, Ensemble]:
    """The ensembles that held-out predictions of encoder and heads call for: the best head with the encoder by max
    and by mean, the greedy one over all and, of two classes, that one saying each as often as it comes."""
    heads = {name: values for name, values in outputs.items() if name != "encoder"}
    if not heads:
        return {}
    both = {"encoder": 1.0, best(heads, judge, metric): 1.0}
    # By the loss, which is smooth: on a few hundred examples, greedy steps by accuracy are steps after noise.
    weights = greedy(outputs, lambda values: -judge.loss(values) if np.isfinite(values).all() else -np.inf)
    found = {
        "ensemble-max": Ensemble("max", both),
        "ensemble-mean": Ensemble("mean", both),
        GREEDY: Ensemble("mean", weights),
    }
    values = judge.predictions(found[GREEDY].of(outputs, judge.kind), None).values
    if judge.kind == "class" and values.shape[1] == 2:
        second = judge.targets == 1
        if FEWEST <= second.sum() <= len(second) - FEWEST:
            found[MATCHED] = Ensemble("mean", weights, matching(values[:, 1], float(second.mean())))
    return found
