"""Judges: from what models say about windows or tokens to predictions per example, and how good these are."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bertvision.metrics.intervals import measure, score
from bertvision.metrics.squad import METRICS, Gold, defined, qualities, tune
from bertvision.options import Request
from bertvision.spans import Spans, argmax_spans, best_spans
from bertvision.types import Examples, Windows

RAW_THRESHOLD = 0.5  # no answer where it is likelier than the best answer


@dataclass(frozen=True)
class Predictions:
    """One model's answers on one split: (N, C) numbers to score and, for spans, the texts and what decided them."""

    values: np.ndarray  # probabilities, a score, or for spans the quality of each answer (metrics/squad.py)
    texts: list[str] | None = None  # of the best spans, whether or not "no answer" was preferred
    null_probabilities: np.ndarray | None = None
    runners_up: list[str] | None = None  # what comes second where the best span is given: another span, or no answer

    def answers(self, threshold: float | None) -> list[str]:
        """Texts, empty where "no answer" is likelier than the threshold allows."""
        assert self.texts is not None
        assert self.null_probabilities is not None
        limit = RAW_THRESHOLD if threshold is None else threshold
        return ["" if null > limit else text for text, null in zip(self.texts, self.null_probabilities, strict=True)]

    def seconds(self, threshold: float | None) -> list[str]:
        """What each answer was preferred to."""
        assert self.texts is not None
        assert self.runners_up is not None
        given = zip(self.answers(threshold), self.texts, self.runners_up, strict=True)
        return [other if answer else text for answer, text, other in given]


class Judge(Protocol):
    """Knows one split's truth."""

    kind: str
    targets: np.ndarray  # (N,)

    def measure(self, values: np.ndarray, metric: str) -> float:
        """The metric of predictions' values as choices see it."""

    def loss(self, outputs: np.ndarray) -> float:
        """Smooth and lower for better: what greedy selection goes by, and what decides between equals."""

    def threshold(self, outputs: np.ndarray) -> float | None:
        """The null threshold that is best for these outputs, where the kind has one."""

    def predictions(self, outputs: np.ndarray, threshold: float | None) -> Predictions: ...


def judge_of(kind: str, examples: Examples, windows: Windows, options: Request) -> Judge:
    if kind == "span":
        return SpanJudge(examples, windows, options)
    return LabelJudge(kind, examples, windows)


def goodness(judge: Judge, outputs: np.ndarray, metric: str) -> tuple[float, float]:
    """What choices go by: the metric and, between equals, the loss (accuracy on a few hundred examples ties often)."""
    if not np.isfinite(outputs).all():
        return -np.inf, -np.inf
    values = judge.predictions(outputs, judge.threshold(outputs)).values
    return round(judge.measure(values, metric), 9), -judge.loss(outputs)


def scores(judge: Judge, found: Predictions, metrics: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """One model's scores with intervals, as scores.json has them."""
    return {
        metric: score(found.values, judge.targets, metric, judge.kind).as_dict()
        for metric in metrics
        if judge.kind != "span" or defined(metric, judge.targets)
    }


def per_example(outputs: np.ndarray, windows: Windows) -> np.ndarray:
    """Predictions of windows as predictions of examples: an example's window that is surest of the last class speaks
    for it, so a question is answerable if any window says so."""
    if len(windows) == windows.examples[-1] + 1:
        return outputs
    order = np.lexsort((outputs[:, -1], windows.examples))
    last = np.flatnonzero(np.diff(windows.examples, append=windows.examples[-1] + 1))
    return outputs[order[last]]


class LabelJudge:
    """Classes and scores."""

    def __init__(self, kind: str, examples: Examples, windows: Windows) -> None:
        assert examples.targets is not None
        self.kind, self.windows, self.targets = kind, windows, examples.targets

    def measure(self, values: np.ndarray, metric: str) -> float:
        return measure(values, self.targets, metric, self.kind)

    def loss(self, outputs: np.ndarray) -> float:
        values = per_example(outputs, self.windows)
        if self.kind == "class":
            return -float(np.log(np.clip(values[np.arange(len(values)), self.targets], 1e-9, None)).mean())
        return float(((values[:, 0] - self.targets) ** 2).mean())

    def threshold(self, outputs: np.ndarray) -> float | None:
        return None

    def predictions(self, outputs: np.ndarray, threshold: float | None) -> Predictions:
        return Predictions(per_example(outputs, self.windows))


class SpanJudge:
    """Answers in contexts, by the official SQuAD 2.0 metric."""

    def __init__(self, examples: Examples, windows: Windows, options: Request) -> None:
        assert examples.questions is not None
        assert examples.targets is not None
        self.kind, self.examples, self.windows, self.options = "span", examples, windows, options
        self.targets = examples.targets
        self.golds = [Gold.of([answer.text for answer in found]) for found in examples.questions.answers]
        self.unanswered = qualities(self.golds, [""] * len(examples))
        self.weights = _weights(self.targets, options.null_share)

    def measure(self, values: np.ndarray, metric: str) -> float:
        """Weighted, so that data with few unanswerable questions does not choose models that always answer."""
        return float(METRICS[metric].weighted(values, self.targets, self.weights[None], values.shape[1])[0])

    def loss(self, outputs: np.ndarray) -> float:
        assert self.windows.answers is not None
        places = self.windows.offsets[:-1, None] + self.windows.answers  # (W, 2)
        totals = np.add.reduceat(outputs, self.windows.offsets[:-1])  # above one where an ensemble took maxima
        return -float(np.log(np.maximum(outputs[places, [0, 1]] / totals, 1e-9)).mean())

    def threshold(self, outputs: np.ndarray) -> float | None:
        if self.options.null_threshold is not None:
            return self.options.null_threshold
        if self.options.decoding == "argmax":
            return RAW_THRESHOLD
        found = self.spans(outputs)
        answered = qualities(self.golds, found.texts(self.examples))
        return tune(found.null_probabilities, answered[:, 1], self.unanswered[:, 1], self.weights)

    def predictions(self, outputs: np.ndarray, threshold: float | None) -> Predictions:
        # Windows overlap: each of an example's may have the best span once more, before the second best comes.
        found = self.spans(outputs, top=1 + int(np.bincount(self.windows.examples).max()))
        texts, nulls = found.texts(self.examples), found.null_probabilities
        answered = qualities(self.golds, texts)
        limits = (RAW_THRESHOLD if threshold is None else threshold, RAW_THRESHOLD)
        columns = [np.where((nulls > limit)[:, None], self.unanswered, answered) for limit in limits]
        return Predictions(np.hstack([*columns, answered[:, 1:]]), texts, nulls, found.runners_up(self.examples))

    def spans(self, outputs: np.ndarray, top: int = 1) -> Spans:
        if self.options.decoding == "argmax":
            return argmax_spans(outputs, self.windows)
        return best_spans(outputs, self.windows, self.options.answer_length, top)


def _weights(targets: np.ndarray, null_share: float) -> np.ndarray:
    """Weights of questions with which `null_share` of them have no answer."""
    answerable = targets.mean()
    if answerable in (0, 1):
        return np.ones(len(targets))
    return np.where(targets == 1, (1 - null_share) / answerable, null_share / (1 - answerable))
