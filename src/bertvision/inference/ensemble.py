"""Combine models' predictions: element-wise maximum (the paper's), mean, greedy selection, matched class shares."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from bertvision.records import Ensemble

MOST_ROUNDS = 20

Outputs = dict[str, np.ndarray]  # model -> predictions (W, C), or for spans (all tokens, 2)


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
