"""Prototypes: how close a row is to the mean of each class. One or two rows of a class are enough for that, where a
regression has too little to learn from."""

import torch
from torch import Tensor
from torch.nn import functional


class Prototypes:
    """Inputs (N, F) -> closeness to each class (N, C), linear in the inputs. `add` all rows, then `solve`.

    It is the inner product of an input, less the mean of all, with the direction from that mean to the mean of a class.
    """

    weights: Tensor  # (F, C)
    offset: Tensor  # (C,)

    def __init__(self, features: int, classes: int) -> None:
        self._sums = torch.zeros(classes, features, dtype=torch.float64)
        self._total = torch.zeros(classes, dtype=torch.float64)  # of the rows' weights

    def add(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> None:
        weighted = weights[:, None] * targets
        self._sums += weighted.T @ inputs.double()
        self._total += weighted.sum(0)

    def solve(self) -> None:
        self._mean = self._sums.sum(0) / self._total.sum()
        self._sums -= self._total[:, None] * self._mean
        self._scale = self._sums.shape[1] ** -0.5  # closeness is then about as large as the targets of a regression
        self.weights = self._scale * functional.normalize(self._sums, dim=1).T
        self.offset = -self._mean @ self.weights

    def left_out(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """For rows that were added: how close each would be, if it had no part in any mean."""
        centred = inputs.double() - self._mean
        squares, products = (centred**2).sum(1, keepdim=True), centred @ self._sums.T  # (B, 1), (B, C)
        # Without a row x the mean of all moves by -part * x, and the sum of a class, less that mean, by change * x.
        own = weights[:, None] * targets
        part = (weights / (self._total.sum() - weights).clamp(min=1e-9))[:, None]
        change = part * (self._total - own) - own
        lengths = ((self._sums**2).sum(1) + change * (2 * products + change * squares)).clamp(min=0).sqrt()
        empty = lengths <= 1e-9 * (squares.sqrt() + 1e-9)  # the row was the only one of its class
        found = self._scale * (1 + part) * (products + change * squares) / lengths.masked_fill(empty, 1.0)
        return found.masked_fill(empty, 0.0)
