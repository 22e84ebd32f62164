"""What an answer is: each kind's loss and the way from logits to predictions, in one table."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional


@dataclass(frozen=True)
class Kind:
    """How one kind of answer is learned and read."""

    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # logits (B, C), targets (B,) -> mean loss
    outputs: Callable[[torch.Tensor, "Scale"], np.ndarray]  # logits (N, C) -> predictions (N, C)


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


def _probabilities(logits: torch.Tensor, scale: Scale) -> np.ndarray:
    return logits.double().softmax(-1).numpy()


def _values(logits: torch.Tensor, scale: Scale) -> np.ndarray:
    return logits.double().numpy() * scale.deviation + scale.mean


KINDS = {
    "class": Kind(functional.cross_entropy, _probabilities),
    "score": Kind(lambda logits, targets: functional.mse_loss(logits.squeeze(-1), targets), _values),
}
