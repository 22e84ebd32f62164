"""Ridge regression from batches of rows: solved for every strength at once, and the best on rows left out is taken.

Few rows are kept, so that nothing is rounded away and, with fewer rows than features, the work depends on the rows. Of
many rows only sums are kept, whose size does not depend on their number.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

STRENGTHS = torch.logspace(-4, 4, 25, dtype=torch.float64)  # as shares of the mean eigenvalue
KEPT = 2048  # rows. With more, generalised cross-validation chooses as leaving out each row does.
ROUNDING = 1e-12  # an eigenvalue that is a smaller share of their sum is 0

Error = Callable[[Tensor], Tensor]  # from the inverse eigenvalues (R,) at one strength


class Ridge:
    """Inputs (N, F) -> targets (N, C), with an intercept. `add` all rows, then `solve`.

    Weights of rows are relative: if all are multiplied by the same number, nothing changes.
    """

    weights: Tensor  # (F, C)
    mean: Tensor  # of the inputs, (F,)
    target: Tensor  # the mean target, (C,)
    strength: int  # the place of the chosen one in STRENGTHS

    def __init__(self, features: int) -> None:
        self.features, self.count, self.total = features, 0, 0.0  # the last is the sum of the rows' weights
        self._rows: list[tuple[Tensor, ...]] = []  # inputs and targets side by side, and weights
        self._shift: Tensor | None = None  # where there are only sums, it was subtracted from every row

    def add(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> None:
        self.count += len(inputs)
        self.total += float(weights.sum())
        self._rows.append((torch.cat([inputs, targets.to(inputs)], 1), weights.double()))
        if self.count > KEPT:
            self._sum(*self._taken())

    def solve(self) -> None:
        values, aims, error = self._from_rows(*self._taken()) if self._shift is None else self._from_sums(self._shift)
        # With fewer rows than features most eigenvalues are 0. The mean is that of the others.
        mean = values.sum() / max(1, int((values > ROUNDING * values.sum()).sum()))
        inverses = 1 / (values + STRENGTHS[:, None] * mean.clamp(min=1e-9))  # (S, R)
        self.strength = int(torch.stack([error(inverse) for inverse in inverses]).argmin())
        self._inverse = inverses[self.strength]
        self.weights = self._axes @ (self._inverse[:, None] * aims)

    @property
    def offset(self) -> Tensor:
        """The intercept, (C,)."""
        return self.target - self.mean @ self.weights

    def left_out(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """For rows that were added: what each would be predicted if it had not been, (B, C)."""
        centred = inputs.double() - self.mean
        turned = weights.sqrt()[:, None] * (centred @ self._axes)
        errors = targets - self.target - centred @ self.weights
        return targets - errors / self._freedom(turned, weights, self._inverse)[:, None]

    def _freedom(self, turned: Tensor, weights: Tensor, inverse: Tensor) -> Tensor:
        """One minus the leverage of each row, (B,). The intercept has its part in it."""
        return (1 - turned**2 @ inverse - weights / self.total).clamp(min=1e-9)

    def _taken(self) -> tuple[Tensor, Tensor]:
        both, weights = joined(self._rows)
        self._rows = []
        return both.double(), weights

    def _sum(self, both: Tensor, weights: Tensor) -> None:
        if self._shift is None:  # near the mean, so that little cancels when the mean is subtracted from the sums
            self._shift = both.mean(0)
            self._sums, self._moments = torch.zeros_like(self._shift), both.new_zeros(both.shape[1], both.shape[1])
        both = both - self._shift
        weighted = weights[:, None] * both
        self._sums += weighted.sum(0)
        self._moments += weighted.T @ both

    def _from_rows(self, both: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Error]:
        """Eigenvalues (R,), the targets along their axes (R, C), and the squared error of leaving out each row."""
        mean = weights @ both / self.total
        self.mean, self.target = mean[: self.features], mean[self.features :]
        both = weights.sqrt()[:, None] * (both - mean)
        inputs, targets = both[:, : self.features], both[:, self.features :]
        if len(inputs) <= self.features:
            values, sides = torch.linalg.eigh(inputs @ inputs.T)
            some = values > ROUNDING * values.sum()
            values, sides = values[some], sides[:, some]
            turned = sides * values.sqrt()
            self._axes = inputs.T @ (sides / values.sqrt())
        else:
            values, self._axes = torch.linalg.eigh(inputs.T @ inputs)
            turned = inputs @ self._axes
        aims = turned.T @ targets

        def error(inverse: Tensor) -> Tensor:
            left = targets - turned @ (inverse[:, None] * aims)
            return ((left / self._freedom(turned, weights, inverse)[:, None]) ** 2).sum()

        return values.clamp(min=0), aims, error

    def _from_sums(self, shift: Tensor) -> tuple[Tensor, Tensor, Error]:
        """The same with generalised cross-validation: every row is given the mean leverage."""
        mean = self._sums / self.total
        moments = self._moments - self.total * torch.outer(mean, mean)
        self.mean, self.target = (mean + shift)[: self.features], (mean + shift)[self.features :]
        values, self._axes = torch.linalg.eigh(moments[: self.features, : self.features])
        values, aims = values.clamp(min=0), self._axes.T @ moments[: self.features, self.features :]
        squares = moments.diagonal()[self.features :].sum()

        def error(inverse: Tensor) -> Tensor:
            left = squares - ((2 * inverse - values * inverse**2) @ aims**2).sum()
            return left / (1 - (1 + values @ inverse) / self.count) ** 2

        return values, aims, error


def joined(parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Batches of several tensors as one."""
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
