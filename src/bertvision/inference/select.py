"""Combine models into ensembles, select one on held-out examples, and score them all."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bertvision.inference.answer import Outputs
from bertvision.kinds import Judge, Predictions, goodness
from bertvision.metrics.intervals import resampled, score
from bertvision.metrics.squad import defined
from bertvision.records import ENCODER, GREEDY, MAJORITY, MATCHED, MAX, MEAN, WORDS, Ensemble, Scores

MOST_ROUNDS = 20  # of greedy selection
FEWEST = 5  # held-out examples of each of two classes: from fewer no threshold can be tuned
# Shares of resamples in which a model must score above the safer one to replace it: judgement, no trial chose them.
LIKELY, SURELY = 0.9, 0.975


@dataclass(frozen=True)
class Choice:
    """What held-out examples decide: the ensembles, the model that ships, and the best head."""

    ensembles: dict[str, Ensemble]
    predictions: dict[str, Predictions]  # of every model on the held-out examples
    selected: str
    goodness: float  # of the selected model
    best_head: str | None


def choose(outputs: Outputs, judge: Judge, metric: str) -> Choice:
    """Build ensembles from the held-out outputs of encoder, heads and words, and select the model to ship."""
    singles = [name for name in outputs if name != MAJORITY]
    predictions = {name: judge.predictions(values) for name, values in outputs.items()}
    rank = {name: goodness(judge, outputs[name], found, metric) for name, found in predictions.items()}
    heads = [name for name in singles if name not in (ENCODER, WORDS)]
    best_head = max(heads, key=lambda name: rank[name]) if heads else None
    ensembles = _ensembles(outputs, judge, best_head) if len(singles) > 1 else {}
    for name, ensemble in ensembles.items():
        values = combined(ensemble, outputs, judge.kind)
        predictions[name] = judge.predictions(values)
        rank[name] = goodness(judge, values, predictions[name], metric)
    selected = _preferred(predictions, rank, judge, metric)
    return Choice(ensembles, predictions, selected, rank[selected][0], best_head)


def majority(judge: Judge, outputs: int) -> Ensemble:
    """The model that knows no text: the frequencies of the classes, or the mean score."""
    if judge.kind != "class":
        return Ensemble("constant", {}, constant=(float(judge.targets.mean()),))
    counts = np.bincount(judge.targets, minlength=outputs)[:outputs] + 1 / outputs  # a class that is not here has some
    return Ensemble("constant", {}, constant=tuple(map(float, counts / counts.sum())))


def constant(ensemble: Ensemble, rows: int) -> np.ndarray:
    """The constant model's answer to every row."""
    return np.tile(np.array(ensemble.constant), (rows, 1))


def _ensembles(outputs: Outputs, judge: Judge, best_head: str | None) -> dict[str, Ensemble]:
    """The best head with the encoder by max and by mean; the greedy one over all; and, of two classes, the greedy one
    that predicts each class as often as it occurs."""
    found = {}
    if best_head is not None and ENCODER in outputs:
        both = {ENCODER: 1.0, best_head: 1.0}
        found = {MAX: Ensemble("max", both), MEAN: Ensemble("mean", both)}
    # By the loss, which is smooth: on a few hundred examples, greedy steps by accuracy follow noise.
    weights = greedy(outputs, lambda values: -judge.loss(values) if np.isfinite(values).all() else -np.inf)
    found[GREEDY] = Ensemble("mean", weights)
    values = judge.predictions(combined(found[GREEDY], outputs, judge.kind)).values if judge.kind == "class" else None
    if values is not None and values.shape[1] == 2:
        second = judge.targets == 1
        if FEWEST <= second.sum() <= len(second) - FEWEST:
            found[MATCHED] = Ensemble("mean", weights, matching_shift(values[:, 1], float(second.mean())))
    return found


def _preferred(
    predictions: dict[str, Predictions], rank: dict[str, tuple[float, float]], judge: Judge, metric: str
) -> str:
    """The model to ship: the greedy ensemble, unless another scores above it in nearly all resamples.

    The best of thirty models on a few hundred examples owes part of its score to luck; an ensemble built by the loss
    owes less. All are compared on the same resamples, so that what two models have in common cancels out.
    """
    names = [name for name in rank if np.isfinite(rank[name][0])] or list(rank)
    first = max((name for name in names if name != MAJORITY), key=lambda name: rank[name], default=MAJORITY)
    if judge.kind == "span":  # whose threshold is tuned by the metric anyway
        return first
    found = GREEDY if GREEDY in names else first
    for name, share in ((MATCHED, LIKELY), (first, SURELY), (MAJORITY, LIKELY)):
        if name in names and above(predictions[name], predictions[found], judge, metric) >= share:
            found = name
    return found


def above(one: Predictions, other: Predictions, judge: Judge, metric: str) -> float:
    """The share of resamples of the held-out examples in which `one` scores above `other`; of ties, half."""
    a, b = (resampled(found.values, judge.targets, metric, judge.kind) for found in (one, other))
    return float(np.mean(a > b) + np.mean(a == b) / 2)


def shipped(selected: list[Predictions], judge: Judge, metric: str) -> int:
    """Which of the models selected at each mark ships: the last one, unless an earlier one is likely to score higher,
    or is at least as good by the metric and better by the loss, which is less noisy.

    Spans go by the best score alone.
    """
    values = [judge.measure(found.values, metric) for found in selected]
    if judge.kind == "span":
        return int(np.argmax(values))
    losses, last = [judge.loss(found.values) for found in selected], len(selected) - 1
    for earlier in reversed(range(last)):
        better = values[earlier] >= values[last] and losses[earlier] < losses[last]
        if better or above(selected[earlier], selected[last], judge, metric) >= LIKELY:
            last = earlier
    return last


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
