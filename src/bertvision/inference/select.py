"""Combine models into ensembles, select one on held-out examples, and score them all."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bertvision.inference.answer import Outputs
from bertvision.kinds import Judge, Predictions, goodness
from bertvision.metrics.intervals import score
from bertvision.metrics.squad import defined
from bertvision.records import ENCODER, GREEDY, MATCHED, MAX, MEAN, Ensemble, Scores

MOST_ROUNDS = 20  # of greedy selection
FEWEST = 5  # held-out examples of each of two classes: from fewer no threshold can be tuned


@dataclass(frozen=True)
class Choice:
    """What held-out examples decide: the ensembles, the model that ships, and the best head."""

    ensembles: dict[str, Ensemble]
    predictions: dict[str, Predictions]  # of every model on the held-out examples
    selected: str
    goodness: float  # of the selected model
    best_head: str | None


def choose(outputs: Outputs, judge: Judge, metric: str) -> Choice:
    """Build ensembles from the held-out outputs of encoder and heads, and select the model to ship."""
    predictions = {name: judge.predictions(values) for name, values in outputs.items()}
    rank = {name: goodness(judge, outputs[name], found, metric) for name, found in predictions.items()}
    heads = [name for name in outputs if name != ENCODER]
    best_head = max(heads, key=lambda name: rank[name]) if heads else None
    ensembles = _ensembles(outputs, judge, best_head) if best_head is not None else {}
    for name, ensemble in ensembles.items():
        values = combined(ensemble, outputs, judge.kind)
        predictions[name] = judge.predictions(values)
        rank[name] = goodness(judge, values, predictions[name], metric)
    selected = _preferred(predictions, rank, judge, metric)
    return Choice(ensembles, predictions, selected, rank[selected][0], best_head)


def _ensembles(outputs: Outputs, judge: Judge, best_head: str) -> dict[str, Ensemble]:
    """The best head with the encoder by max and by mean; the greedy one over all; and, of two classes, the greedy one
    that predicts each class as often as it occurs."""
    both = {ENCODER: 1.0, best_head: 1.0}
    # By the loss, which is smooth: on a few hundred examples, greedy steps by accuracy follow noise.
    weights = greedy(outputs, lambda values: -judge.loss(values) if np.isfinite(values).all() else -np.inf)
    found = {MAX: Ensemble("max", both), MEAN: Ensemble("mean", both), GREEDY: Ensemble("mean", weights)}
    values = judge.predictions(combined(found[GREEDY], outputs, judge.kind)).values if judge.kind == "class" else None
    if values is not None and values.shape[1] == 2:
        second = judge.targets == 1
        if FEWEST <= second.sum() <= len(second) - FEWEST:
            found[MATCHED] = Ensemble("mean", weights, matching_shift(values[:, 1], float(second.mean())))
    return found


def _preferred(
    predictions: dict[str, Predictions], rank: dict[str, tuple[float, float]], judge: Judge, metric: str
) -> str:
    """The model to ship: the widest ensemble, unless another's score lies above its interval.

    The best of thirty models on a few hundred examples owes part of its score to luck; an ensemble built by the loss
    owes less. On the other half of the held-out examples it is the better one (docs/lab-notes).
    """
    first = max(rank, key=lambda name: rank[name])
    wide = next((name for name in (MATCHED, GREEDY) if name in rank), first)
    if judge.kind == "span":  # whose threshold is tuned by the metric anyway
        return first
    found = score(predictions[wide].values, judge.targets, metric, judge.kind)
    return first if judge.measure(predictions[first].values, metric) > found.high else wide


def scores(judge: Judge, predictions: dict[str, Predictions], metrics: tuple[str, ...]) -> dict[str, Scores]:
    """Every model's scores on one split, with intervals."""
    known = [metric for metric in metrics if judge.kind != "span" or defined(metric, judge.targets)]
    return {
        name: {metric: score(found.values, judge.targets, metric, judge.kind) for metric in known}
        for name, found in predictions.items()
    }


def combined(ensemble: Ensemble, outputs: Outputs, kind: str) -> np.ndarray:
    """The ensemble's predictions from its members'. `max` is element-wise; classes then sum to one again."""
    members = np.stack([outputs[name] for name in ensemble.weights])
    if ensemble.rule == "max":
        highest = members.max(0)
        return highest / highest.sum(1, keepdims=True) if kind == "class" else highest
    weights = list(ensemble.weights.values())
    return _shifted(np.tensordot(np.array(weights) / sum(weights), members, 1), ensemble.shift)


def _shifted(values: np.ndarray, shift: float) -> np.ndarray:
    """Probabilities of two classes with `shift` added to the log odds of the second."""
    if not shift:
        return values
    weighed = values * [1.0, np.exp(shift)]
    return weighed / weighed.sum(1, keepdims=True)


def matching_shift(probabilities: np.ndarray, share: float) -> float:
    """The shift with which the second class is predicted as often as its share. Where classes are hard to separate,
    calibrated probabilities all lie on the side of the frequent one."""
    middle = float(np.clip(np.quantile(probabilities, 1 - share), 1e-6, 1 - 1e-6))
    return float(np.log1p(-middle) - np.log(middle))


def greedy(outputs: Outputs, goodness: Callable[[np.ndarray], float]) -> dict[str, float]:
    """Forward selection with replacement (Caruana et al. 2004): member -> weight.

    Starting from the best single model, average in whichever model helps most, until none helps.
    """
    best = max(outputs, key=lambda name: goodness(outputs[name]))
    total, chosen, reached = outputs[best], Counter([best]), goodness(outputs[best])
    for size in range(2, MOST_ROUNDS + 1):
        trials = {name: goodness((total + outputs[name]) / size) for name in outputs}
        name = max(trials, key=lambda trial: trials[trial])
        if trials[name] <= reached:
            break
        total, reached = total + outputs[name], trials[name]
        chosen[name] += 1
    members = sum(chosen.values())
    return {name: count / members for name, count in chosen.items()}
