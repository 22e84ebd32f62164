"""Combine predictions of models that are there anyway: element-wise max (the paper's), mean, greedy selection."""

from collections import Counter
from collections.abc import Callable

import numpy as np

MOST_ROUNDS = 20

Outputs = dict[str, np.ndarray]  # model -> predictions (W, C), or for spans (all tokens, 2)


def combine(outputs: Outputs, weights: dict[str, float], rule: str, kind: str) -> np.ndarray:
    """Members' predictions as one. `max` is element-wise, then classes are made to sum to one again."""
    members = np.stack([outputs[name] for name in weights])
    if rule == "max":
        highest = members.max(0)
        return highest / highest.sum(1, keepdims=True) if kind == "class" else highest
    shares = np.array(list(weights.values())) / sum(weights.values())
    return np.tensordot(shares, members, 1)


def shifted(values: np.ndarray, shift: float) -> np.ndarray:
    """Probabilities of two classes with `shift` added to the log odds of the second."""
    if not shift:
        return values
    weighed = values * [1.0, np.exp(shift)]
    return weighed / weighed.sum(1, keepdims=True)


def matching(probabilities: np.ndarray, share: float) -> float:
    """The shift with which the second class is said as often as its share: where classes are hard to tell apart,
    probabilities that are right on average all lie on the side of the frequent one."""
    middle = float(np.clip(np.quantile(probabilities, 1 - share), 1e-6, 1 - 1e-6))
    return float(np.log1p(-middle) - np.log(middle))


def greedy(outputs: Outputs, goodness: Callable[[np.ndarray], float]) -> dict[str, float]:
    """Forward selection with replacement (Caruana et al. 2004): member -> weight.

    From the best single model on, whichever addition helps most is averaged in, until none helps.
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
