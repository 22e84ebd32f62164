"""Heads found without a learning rate: ridge regressions on each layer, in closed form, and a mix of them.

Two passes over the states. The first sums up what ridge regression needs (means, second moments: their size does not
depend on the number of examples); an eigendecomposition then solves every strength at once, and generalised
cross-validation, which the same sums give, chooses one. The second pass makes leave-one-out predictions, which are
exact and cheap for ridge regression: they say how good each layer is by itself (`profile`) and teach a small stack how
to weigh the layers. All of it together is one linear layer over every view of every layer.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import nnls
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.adapter import Adapter
from bertvision.heads.base import Batches, Body, Head, Shape
from bertvision.heads.blocks import Beside

STRENGTHS = torch.logspace(-4, 3, 15, dtype=torch.float64)  # as shares of a layer's mean eigenvalue
GATHERED = 512  # examples that are added up at once
UNSEEN = -20.0  # the logit of a class without an example


class AllLayers(Body):
    """(B, L, V, D) -> (B, V, L * D): every layer's state as it is."""

    def __init__(self, layers: int, features: int) -> None:
        super().__init__()
        self.width = layers * features

    def forward(self, layers: Tensor) -> Tensor:
        return layers.transpose(1, 2).flatten(2)


class ClosedForm(Head):
    """One linear layer, solved. The features of the body `beside` it join in from zero, for gradients to go on with."""

    solved = True
    profile: Tensor  # (L,) how good each layer is alone

    def __init__(
        self, shape: Shape, beside: Body | None = None, *, dropout: float = 0.0, lr_scale: float = 1.0
    ) -> None:
        linear = AllLayers(shape.layers, shape.features)
        views = ("cls", "mean", "difference", "product") if shape.paired else ("cls", "mean")
        body = linear if beside is None else Beside(linear, beside)
        super().__init__(shape, body, views=views, normalised=True, dropout=dropout, lr_scale=lr_scale)
        self.trained = beside is not None
        self.width, self.count = linear.width, shape.layers
        self.register_buffer("profile", torch.zeros(shape.layers))

    @torch.no_grad()
    def solve(self, batches: Batches, kind: str) -> None:
        outputs = self.output.out_features

        def pairs() -> Iterator[tuple[Tensor, Tensor]]:
            return _gathered(read())

        def read() -> Iterator[tuple[Tensor, Tensor]]:
            """(B, L, V * D) states and (B, C) targets: classes as zeros and ones."""
            for states, targets in batches():
                states = states if self.layers is None else states.only(self.layers)
                wanted = functional.one_hot(targets, outputs) if kind == "class" else targets[:, None]
                yield states.read(self.views, self.normalised).flatten(2).cpu(), wanted.double().cpu()

        ridges = [_Ridge(len(self.views) * self.width // self.count, outputs) for _ in range(self.count)]
        for states, wanted in pairs():
            for layer, ridge in enumerate(ridges):
                ridge.add(states[:, layer], wanted)
        if not ridges[0].count:
            return  # no example at all: it stays as it was born
        for ridge in ridges:
            ridge.decompose()
        left_out, targets = _left_out(pairs(), ridges)  # (N, L, C), (N, C)
        self.profile.copy_(_profile(left_out, targets))
        mix, bias = _stack_classes(left_out, targets) if kind == "class" else _stack_scores(left_out, targets)
        self._write(ridges, mix, bias)

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

    def _write(self, ridges: list["_Ridge"], mix: Tensor, bias: Tensor) -> None:
        """The stack (outputs, L, C) of ridge regressions as one linear layer over (V, width); the rest starts at 0."""
        weights = torch.stack([ridge.weights for ridge in ridges])  # (L, V * D, C)
        offsets = torch.stack([ridge.target - ridge.mean @ ridge.weights for ridge in ridges])  # (L, C)
        joined = torch.einsum("olc,lfc->olf", mix, weights).unflatten(2, (len(self.views), -1))  # (outputs, L, V, D)
        self.output.weight.zero_()
        self._by_view[..., : self.width] = joined.transpose(1, 2).flatten(2).to(self._by_view)
        self.output.bias.copy_(torch.einsum("olc,lc->o", mix, offsets) + bias)


class _Ridge:
    """Ridge regression on one layer at every strength, from sums over the examples."""

    def __init__(self, features: int, outputs: int) -> None:
        self.count = 0
        self.inputs, self.targets = torch.zeros(features).double(), torch.zeros(outputs).double()
        self.squares = torch.zeros(outputs).double()
        self.moments = torch.zeros(features, features).double()
        self.products = torch.zeros(features, outputs).double()

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        self.count += len(inputs)
        self.inputs += inputs.double().sum(0)
        self.targets += targets.sum(0)
        self.squares += (targets**2).sum(0)
        # Products of a few hundred normalised states are exact enough in float32; their sums are not.
        self.moments += inputs.T @ inputs
        self.products += inputs.double().T @ targets

    def decompose(self) -> None:
        """All strengths at once; the one with the least error by generalised cross-validation is taken."""
        count = self.count
        self.mean, self.target = self.inputs / count, self.targets / count
        values, self.axes = torch.linalg.eigh(self.moments - count * torch.outer(self.mean, self.mean))
        values = values.clamp(min=0)[:, None]
        aims = self.axes.T @ (self.products - count * torch.outer(self.mean, self.target))  # (F, C)
        inverse = 1 / (values + STRENGTHS * values.mean().clamp(min=1e-9))  # (F, S)
        explained = (2 * inverse - values * inverse**2).T @ aims**2  # (S, C)
        errors = (self.squares - count * self.target**2 - explained).sum(1) / count
        freedom = 1 + (values * inverse).sum(0)
        self.strength = int((errors / (1 - freedom / count).clamp(min=1e-3) ** 2).argmin())
        self.inverse = inverse[:, self.strength]  # (F,)
        self.weights = self.axes @ (self.inverse[:, None] * aims)  # (F, C)

    def left_out(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """What each example would be told if it had been left out, (B, C)."""
        centred = inputs.double() - self.mean
        leverage = (centred @ self.axes) ** 2 @ self.inverse + 1 / self.count  # (B,)
        error = (targets - self.target - centred @ self.weights) / (1 - leverage).clamp(min=1e-6)[:, None]
        return targets - error


def _gathered(batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same in batches of some hundred examples: adding up moments takes as long for few of them as for many."""
    waiting: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(targets) for _, targets in waiting) >= GATHERED:
            yield tuple(map(torch.cat, zip(*waiting, strict=True)))  # type: ignore[misc]
            waiting = []
    if waiting:
        yield tuple(map(torch.cat, zip(*waiting, strict=True)))  # type: ignore[misc]


def _left_out(pairs: Iterator[tuple[Tensor, Tensor]], ridges: list[_Ridge]) -> tuple[Tensor, Tensor]:
    found, targets = [], []
    for states, wanted in pairs:
        layers = [ridge.left_out(states[:, layer], wanted) for layer, ridge in enumerate(ridges)]
        found.append(torch.stack(layers, 1))
        targets.append(wanted)
    return torch.cat(found), torch.cat(targets)


def _profile(left_out: Tensor, targets: Tensor) -> Tensor:
    """How good each layer is alone: the share of right classes, or the correlation with the scores."""
    if targets.shape[1] > 1:
        return (left_out.argmax(2) == targets.argmax(1)[:, None]).double().mean(0)
    both = torch.cat([targets, left_out[..., 0]], 1)
    return torch.corrcoef(both.T)[0, 1:].nan_to_num()


def _stack_scores(left_out: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of layers that are not negative, so that two that say the same do not cancel each other out."""
    values, wanted = left_out[..., 0].numpy(), targets[:, 0].numpy()
    weights, _ = nnls(values - values.mean(0), wanted - wanted.mean())
    bias = wanted.mean() - values.mean(0) @ weights
    return torch.from_numpy(weights)[None, :, None], torch.tensor([bias])


def _stack_classes(left_out: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """A logistic regression on what the layers say: it weighs them, and makes probabilities of least squares."""
    count, layers, classes = left_out.shape
    inputs, wanted = left_out[..., 1:].reshape(count, -1).numpy(), targets.argmax(1).numpy()
    seen = np.unique(wanted)  # of few examples a class may be missing, and all may be of one
    mix, bias = torch.zeros(classes, layers, classes, dtype=torch.float64), torch.full((classes,), UNSEEN).double()
    bias[seen] = 0
    if len(seen) > 1:
        fitted = LogisticRegression(max_iter=1000).fit(inputs, wanted)
        rows = seen[1:] if len(seen) == 2 else seen  # of two classes the second is weighed against the first
        mix[rows, :, 1:] = torch.from_numpy(fitted.coef_.reshape(len(rows), layers, classes - 1))
        bias[rows] = torch.from_numpy(fitted.intercept_)
    return mix, bias


@register(
    "closed-form",
    "ours",
    "ridge regression on every layer, exact, no learning rate; layers stacked",
    reads="texts",
    solved=True,
)
def closed_form(shape: Shape) -> Head:
    return ClosedForm(shape)


@register(
    "closed-form-adapter",
    "ours",
    "starts from closed-form, with an adapter of 64 that learns the rest",
    reads="texts",
    solved=True,
)
def closed_form_adapter(shape: Shape) -> Head:
    adapter = Adapter(shape.layers, shape.features, 64, small=False)
    return ClosedForm(shape, adapter, dropout=0.2, lr_scale=0.3)
