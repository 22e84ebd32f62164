"""SQuAD 2.0's metric as its official evaluation computes it, written by hand because no library has it.

The quality of a prediction is (exact, f1), between 0 and 1; scores of a set are means of these. Details that the
official script does not document: punctuation is removed before articles, and only ASCII punctuation; right answers
that normalise to nothing do not count; an answer is withheld only if its null probability is *above* the threshold.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertvision.metrics.glue import Array, Metric, ratio

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Qualities per question, (N, 5): with the tuned threshold, with one half, and of the best span even if withheld.
COLUMNS = ("exact", "f1", "raw_exact", "raw_f1", "found_f1")


def normalise(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


@dataclass(frozen=True)
class Gold:
    """The right answers to one question, normalised; one empty text if it has no answer."""

    answerable: bool
    texts: tuple[str, ...]

    @classmethod
    def of(cls, answers: Sequence[str]) -> "Gold":
        kept = tuple(dict.fromkeys(text for text in map(normalise, answers) if text))
        return cls(bool(answers), kept or ("",))

    def quality(self, prediction: str) -> tuple[float, float]:
        """(exact, f1) against the right answer that fits best."""
        normal = normalise(prediction)
        exact = float(normal in self.texts)
        return exact, 1.0 if exact else max(_f1(text.split(), normal.split()) for text in self.texts)


def _f1(gold: list[str], predicted: list[str]) -> float:
    if not gold or not predicted:
        return float(gold == predicted)
    same = sum((Counter(gold) & Counter(predicted)).values())
    if not same:
        return 0.0
    precision, recall = 1.0 * same / len(predicted), 1.0 * same / len(gold)
    return (2 * precision * recall) / (precision + recall)


def qualities(golds: Sequence[Gold], predictions: Sequence[str]) -> Array:
    """(N, 2) exact and f1 of each prediction."""
    return np.array([gold.quality(text) for gold, text in zip(golds, predictions, strict=True)]).reshape(-1, 2)


def tune(null_probabilities: Array, answered: Array, unanswered: Array, weights: Array) -> float:
    """The threshold that maximises the weighted mean of one quality: above it a question counts as unanswerable.

    `answered` and `unanswered` (N,) are the qualities with the span and with no answer. The threshold is half-way
    between two questions, so that rounding decides neither. It is 0 or less only if answering nothing is strictly best.
    """
    order = np.argsort(null_probabilities, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum((weights * (answered - unanswered))[order])])
    ordered = null_probabilities[order]
    # Questions of equal probability get the same decision: no cut between them.
    possible = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])
    masked = np.where(possible, gains, -np.inf)
    cut = len(gains) - 1 - int(np.argmax(masked[::-1]))  # of equal cuts, the one that answers most
    if cut == 0:
        return 0.0 if ordered[0] > 0 else -1.0
    return 1.0 if cut == len(ordered) else float((ordered[cut - 1] + ordered[cut]) / 2)


def report(
    golds: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_probabilities: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """The official evaluation's output, with its keys: percentages, summed in the data's order."""
    nulls = null_probabilities or dict.fromkeys(predictions, 0.0)
    known = {name: Gold.of(answers) for name, answers in golds.items()}
    raw = {name: gold.quality(predictions[name]) for name, gold in known.items()}
    kept = {
        name: (float(not known[name].answerable),) * 2 if nulls[name] > threshold else quality
        for name, quality in raw.items()
    }
    result: dict[str, float] = {}
    for prefix, groups in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        if chosen := [kept[name] for name, gold in known.items() if gold.answerable in groups]:
            exact, f1 = (100.0 * sum(column) / len(chosen) for column in zip(*chosen, strict=True))
            result |= {f"{prefix}exact": exact, f"{prefix}f1": f1, f"{prefix}total": len(chosen)}
    if null_probabilities is not None:
        for column, key in enumerate(("exact", "f1")):
            best, at = _best_threshold(known, predictions, nulls, {name: q[column] for name, q in raw.items()})
            result |= {f"best_{key}": best, f"best_{key}_thresh": at}
    return result


def _best_threshold(
    golds: Mapping[str, Gold], predictions: Mapping[str, str], nulls: Mapping[str, float], scores: Mapping[str, float]
) -> tuple[float, float]:
    """Start with no question answered and answer one more at a time, by increasing null probability."""
    current: float = sum(not gold.answerable for gold in golds.values())
    best, at = current, 0.0
    for name in sorted((name for name in nulls if name in scores), key=lambda name: nulls[name]):
        current += scores[name] if golds[name].answerable else -1 if predictions[name] else 0
        if current > best:
            best, at = current, nulls[name]
    return 100.0 * best / len(scores), at


def _mean_of(column: str, answerable: int | None = None) -> Metric:
    """The mean of one column over all questions, or over those with or without an answer."""
    index = COLUMNS.index(column)

    def weighted(decisions: Array, targets: Array, weights: Array, classes: int) -> Array:
        used = weights if answerable is None else weights * (targets == answerable)
        return ratio(used @ decisions[:, index], used.sum(1))

    return Metric(weighted)


def defined(metric: str, targets: Array) -> bool:
    """Whether there are questions for the metric: some with, or some without an answer."""
    if metric.startswith("NoAns"):
        return not targets.all()
    return bool(targets.any()) or not metric.startswith(("HasAns", "found"))


METRICS = {
    "exact": _mean_of("exact"),
    "f1": _mean_of("f1"),
    "HasAns_exact": _mean_of("exact", 1),
    "HasAns_f1": _mean_of("f1", 1),
    "NoAns_exact": _mean_of("exact", 0),
    "raw_exact": _mean_of("raw_exact"),
    "raw_f1": _mean_of("raw_f1"),
    "found_f1": _mean_of("found_f1", 1),
}
