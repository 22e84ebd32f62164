"""Heads solved in closed form, without a learning rate: a ridge regression on each layer, and a mix of them.

Solving takes two passes over the states. The first sums means and second moments, whose size does not depend on the
number of examples. An eigendecomposition then solves all regularisation strengths at once, and generalised
cross-validation chooses one. The second pass computes exact leave-one-out predictions, which are cheap for ridge
regression. They show how good each layer is alone (`profile`), and a small stacking model learns from them how to
weight the layers. The result is one linear layer over every view of every layer.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import nnls
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.adapter import adapter_64
from bertvision.heads.base import Batches, Body, Head, Shape
from bertvision.heads.blocks import Beside
from bertvision.heads.ridge import Ridge
from bertvision.states.hidden import DERIVED_VIEWS, SINGLE_VIEWS, HiddenStates

GATHERED = 512  # least number of examples to sum at a time: a few take as long as many
UNSEEN = -20.0  # the logit of a class without examples


class AllLayers(Body):
    """(B, L, V, D) -> (B, V, L * D): every layer's state, unchanged."""

    def __init__(self, layers: int, features: int) -> None:
        super().__init__()
        self.width = layers * features

    def forward(self, layers: Tensor) -> Tensor:
        return layers.transpose(1, 2).flatten(2)


class ClosedForm(Head):
    """One linear layer, solved. The body `beside` it starts with zero output weights and is trained by gradients."""

    solved = True
    profile: Tensor  # (L,) how good each layer is alone

    def __init__(
        self, shape: Shape, beside: Body | None = None, *, dropout: float = 0.0, lr_scale: float = 1.0
    ) -> None:
        linear = AllLayers(shape.layers, shape.features)
        views = SINGLE_VIEWS + (DERIVED_VIEWS if shape.paired else ())
        body = linear if beside is None else Beside(linear, beside)
        super().__init__(shape, body, views=views, normalised=True, dropout=dropout, lr_scale=lr_scale)
        self.trained = beside is not None
        self.width, self.count = linear.width, shape.layers
        self.register_buffer("profile", torch.zeros(shape.layers))

    @torch.no_grad()
    def solve(self, batches: Batches, kind: str) -> None:
        ridges = [Ridge(len(self.views) * self.width // self.count) for _ in range(self.count)]
        for states, wanted, weights in self._rows(batches, kind):
            for layer, ridge in enumerate(ridges):
                ridge.add(states[:, layer], wanted, weights)
        if not ridges[0].count:
            return  # without examples it keeps its initial weights
        for ridge in ridges:
            ridge.solve()
        found = []
        for states, wanted, weights in self._rows(batches, kind):
            layers = [ridge.left_out(states[:, layer], wanted, weights) for layer, ridge in enumerate(ridges)]
            found.append((torch.stack(layers, 1), wanted, weights))
        left_out, targets, weights = _joined(found)  # (N, L, C), (N, C), (N,)
        self.profile.copy_(_profile(left_out, targets))
        stack = _stack_classes if kind == "class" else _stack_scores
        self._write(ridges, *stack(left_out, targets, weights / weights.mean()))

    def _rows(self, batches: Batches, kind: str) -> Iterator[tuple[Tensor, ...]]:
        """States (N, L, V * D), targets (N, C), with classes as zeros and ones, and weights (N,)."""
        waiting: list[tuple[Tensor, ...]] = []
        for states, targets, weights in batches():
            wanted = functional.one_hot(targets, self.output.out_features) if kind == "class" else targets[:, None]
            weights = torch.ones(len(targets)) if weights is None else weights
            waiting.append((self._read(states).flatten(2).cpu(), wanted.double().cpu(), weights.double().cpu()))
            if sum(len(wanted) for _, wanted, _ in waiting) >= GATHERED:
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)

    def _read(self, states: HiddenStates) -> Tensor:
        return (states if self.layers is None else states.only(self.layers)).read(self.views, self.normalised)

    @torch.no_grad()
    def solve_like(self, other: Head) -> None:
        assert isinstance(other, ClosedForm)
        self.profile.copy_(other.profile)
        self.output.weight.zero_()
        self._by_view[..., : self.width] = other._by_view[..., : self.width]
        self.output.bias.copy_(other.output.bias)

    @property
    def _by_view(self) -> Tensor:
        return self.output.weight.view(self.output.out_features, len(self.views), -1)

    def _write(self, ridges: list[Ridge], mix: Tensor, bias: Tensor) -> None:
        """Write the stack (outputs, L, C) of ridge regressions as one linear layer over (V, width); the rest is 0."""
        weights = torch.stack([ridge.weights for ridge in ridges])  # (L, V * D, C)
        offsets = torch.stack([ridge.offset for ridge in ridges])  # (L, C)
        joined = torch.einsum("olc,lfc->olf", mix, weights).unflatten(2, (len(self.views), -1))  # (outputs, L, V, D)
        self.output.weight.zero_()
        self._by_view[..., : self.width] = joined.transpose(1, 2).flatten(2).to(self._by_view)
        self.output.bias.copy_(torch.einsum("olc,lc->o", mix, offsets) + bias)


def _joined(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _profile(left_out: Tensor, targets: Tensor) -> Tensor:
    """How good each layer is alone: the accuracy, or the correlation with the scores."""
    if targets.shape[1] > 1:
        return (left_out.argmax(2) == targets.argmax(1)[:, None]).double().mean(0)
    both = torch.cat([targets, left_out[..., 0]], 1)
    return torch.corrcoef(both.T)[0, 1:].nan_to_num()


def _stack_scores(left_out: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Non-negative layer weights, so that two layers that agree do not cancel out."""
    values, wanted = left_out[..., 0].numpy(), targets[:, 0].numpy()
    weights, _ = nnls(values - values.mean(0), wanted - wanted.mean())
    bias = wanted.mean() - values.mean(0) @ weights
    return torch.from_numpy(weights)[None, :, None], torch.tensor([bias])


def _stack_classes(left_out: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """A logistic regression on the layers' predictions: it weights the layers and gives probabilities."""
    count, layers, classes = left_out.shape
    inputs, wanted = left_out[..., 1:].reshape(count, -1).numpy(), targets.argmax(1).numpy()
    seen = np.unique(wanted)  # with few examples, classes may be missing
    mix, bias = torch.zeros(classes, layers, classes, dtype=torch.float64), torch.full((classes,), UNSEEN).double()
    bias[seen] = 0
    if len(seen) > 1:
        fitted = LogisticRegression(max_iter=1000).fit(inputs, wanted, weights.numpy())
        rows = seen[1:] if len(seen) == 2 else seen  # of two classes, only the second has coefficients
        mix[rows, :, 1:] = torch.from_numpy(fitted.coef_.reshape(len(rows), layers, classes - 1))
        bias[rows] = torch.from_numpy(fitted.intercept_)
    return mix, bias


register(
    "closed-form", "ours", "ridge regressions on all layers, stacked; no learning rate", reads="texts", solved=True
)(ClosedForm)


@register("closed-form-adapter", "ours", "closed-form, and an adapter of 64 beside it", reads="texts", solved=True)
def closed_form_adapter(shape: Shape) -> Head:
    return ClosedForm(shape, adapter_64(shape.layers, shape.features), dropout=0.2, lr_scale=0.3)
