"""What an answer is: each kind's loss and the way from logits to predictions, in one table."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional


@dataclass(frozen=True)
class Kind:
    """How one kind of answer is learned and read."""

    losses: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # logits (B, C), targets (B,) -> (B,)
    outputs: Callable[[torch.Tensor, "Scale"], torch.Tensor]  # logits (B, C) -> predictions (B, C)


@dataclass(frozen=True)
class Scale:
    """Scores are learned with mean 0 and deviation 1, whatever unit the user's are in."""

    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def of(cls, targets: np.ndarray) -> "Scale":
        if targets.dtype.kind != "f":
            return cls()
        return cls(float(targets.mean()), float(targets.std()) or 1.0)

    def shrink(self, targets: np.ndarray) -> torch.Tensor:
        if targets.dtype.kind != "f":
            return torch.from_numpy(targets)
        return torch.from_numpy((targets - self.mean) / self.deviation).float()


def confined(logits: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Logits of spans, (B, T, 2), with no chance outside `places` (B, T); logits of other kinds as they are."""
    return logits if places is None else logits.masked_fill(~places[..., None], -torch.inf)


def _probabilities(logits: torch.Tensor, scale: Scale) -> torch.Tensor:
    return logits.double().softmax(-1)


def _values(logits: torch.Tensor, scale: Scale) -> torch.Tensor:
    return logits.double() * scale.deviation + scale.mean


def _span_probabilities(logits: torch.Tensor, scale: Scale) -> torch.Tensor:
    """(B, T, 2): over the tokens of a window, for start and end by themselves."""
    return logits.float().softmax(1)


def _class_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, targets, reduction="none")


def _score_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (logits.squeeze(-1) - targets) ** 2


def _span_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Logits (B, T, 2), targets (B, 2): the token where the answer starts and the one where it ends."""
    return functional.cross_entropy(logits, targets, reduction="none").mean(1)


KINDS = {
    "class": Kind(_class_losses, _probabilities),
    "score": Kind(_score_losses, _values),
    "span": Kind(_span_losses, _span_probabilities),
}
