"""Kinds of answers: how each is learned, decoded and scored. A new kind starts with a file here (docs/adding.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bertvision.options import Request
from bertvision.registry import Registry
from bertvision.types import Examples, Windows

RAW_THRESHOLD = 0.5  # no answer if that is likelier than the best answer


@dataclass(frozen=True)
class Scale:
    """Scores are learned with mean 0 and standard deviation 1, in any unit of the user's."""

    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def of(cls, targets: np.ndarray) -> "Scale":
        if targets.dtype.kind != "f":
            return cls()
        return cls(float(targets.mean()), float(targets.std()) or 1.0)

    def shrink(self, targets: np.ndarray) -> Tensor:
        if targets.dtype.kind != "f":
            return torch.from_numpy(targets)
        return torch.from_numpy((targets - self.mean) / self.deviation).float()


@dataclass(frozen=True)
class Predictions:
    """One model's answers on one split: (N, C) numbers to score and, for spans, the texts and probabilities."""

    values: np.ndarray  # probabilities, a score, or for spans the quality of each answer (metrics/squad.py)
    threshold: float | None = None  # an answer is withheld if its null probability is above this
    texts: list[str] | None = None  # the best spans, even if withheld
    null_probabilities: np.ndarray | None = None
    runners_up: list[str] | None = None  # second to the best span: another span, or no answer

    def answers(self) -> list[str]:
        """Texts; empty where the probability of "no answer" is above the threshold."""
        assert self.texts is not None
        assert self.null_probabilities is not None
        limit = RAW_THRESHOLD if self.threshold is None else self.threshold
        return ["" if null > limit else text for text, null in zip(self.texts, self.null_probabilities, strict=True)]

    def seconds(self) -> list[str]:
        """The answer that came second."""
        assert self.texts is not None
        assert self.runners_up is not None
        given = zip(self.answers(), self.texts, self.runners_up, strict=True)
        return [other if answer else text for answer, text, other in given]


class Judge(Protocol):
    """Decodes and scores predictions for one split, whose targets it has."""

    kind: str
    targets: np.ndarray  # (N,)

    def predictions(self, outputs: np.ndarray, threshold: float | None = None) -> Predictions:
        """Decode outputs into one prediction per example. Without a threshold, the best one for this split is used."""

    def measure(self, values: np.ndarray, metric: str) -> float:
        """The metric of predictions' values, weighted for selection."""

    def loss(self, outputs: np.ndarray) -> float:
        """A smooth measure of error: greedy selection minimises it, and it breaks ties."""


@dataclass(frozen=True)
class Kind:
    """How one kind of answer is learned, decoded and scored."""

    losses: Callable[[Tensor, Tensor], Tensor]  # logits (B, C), targets (B,) -> (B,)
    outputs: Callable[[Tensor, Scale], Tensor]  # logits (B, C) -> predictions (B, C)
    judge: Callable[[Examples, Windows, Request], Judge]


kinds: Registry[Kind] = Registry("kind", __name__)


def confined(logits: Tensor, places: Tensor | None) -> Tensor:
    """Logits of spans, (B, T, 2), with -inf outside `places` (B, T); logits of other kinds unchanged."""
    return logits if places is None else logits.masked_fill(~places[..., None], -torch.inf)


def goodness(judge: Judge, outputs: np.ndarray, found: Predictions, metric: str) -> tuple[float, float]:
    """What selection maximises: the metric, with ties, which are common on few examples, broken by the loss."""
    if not np.isfinite(outputs).all():
        return -np.inf, -np.inf
    return round(judge.measure(found.values, metric), 9), -judge.loss(outputs)
