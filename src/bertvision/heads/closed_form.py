"""Heads solved in closed form, without a learning rate: a ridge regression on each layer, of classes also how close a
text is to the mean of each class, and a mix of them.

Solving takes two passes over the states. After the first, each layer's regression is solved. The second computes exact
leave-one-out predictions, which are cheap for both. They show how good each layer is alone (`profile`), and a small
stacking model learns from them how to weight the layers. The result is one linear layer over every view of every layer.
"""

from collections.abc import Iterator

import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.adapter import adapter_64
from bertvision.heads.base import UNSEEN, Batches, Body, Head, Shape
from bertvision.heads.blocks import Beside
from bertvision.heads.prototypes import Prototypes
from bertvision.heads.ridge import Ridge, joined
from bertvision.states.hidden import DERIVED_VIEWS, SINGLE_VIEWS, HiddenStates

GATHERED = 512  # least number of examples to sum at a time: a few take as long as many
# Penalties of the stack of classes: on weights of a class, and on model weights that all classes share. Chosen on ten
# data sets with 100 to 4,000 rows (docs/lab-notes).
OWN, SHARED = 2.0, 0.1
# If fewer of the rows have another one of their class, there is nothing to learn weights from: no model knows a class
# whose only row is left out. All models together then weigh this.
KNOWN, UNTAUGHT = 1 / 3, 10.0


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
        width, classes = len(self.views) * self.width // self.count, self.output.out_features
        ridges = [Ridge(width) for _ in range(self.count)]
        prototypes = [Prototypes(width, classes) for _ in range(self.count)] if kind == "class" else []
        models: list[tuple[int, Ridge | Prototypes]] = [*enumerate(ridges), *enumerate(prototypes)]
        for states, wanted, weights in self._rows(batches, kind):
            for layer, model in models:
                model.add(states[:, layer], wanted, weights)
        if not ridges[0].count:
            return  # without examples it keeps its initial weights
        for _, model in models:
            model.solve()
        found = []
        for states, wanted, weights in self._rows(batches, kind):
            said = [model.left_out(states[:, layer], wanted, weights) for layer, model in models]
            found.append((torch.stack(said, 1), wanted, weights))
        left_out, targets, weights = joined(found)  # (N, M, C), (N, C), (N,)
        self.profile.copy_(_profile(left_out[:, : self.count], targets))
        stack = stack_classes if kind == "class" else stack_scores
        self._write([model for _, model in models], *stack(left_out, targets, weights / weights.mean()))

    def _rows(self, batches: Batches, kind: str) -> Iterator[tuple[Tensor, ...]]:
        """States (N, L, V * D), targets (N, C), with classes as zeros and ones, and weights (N,)."""
        waiting: list[tuple[Tensor, ...]] = []
        for states, targets, weights in batches():
            wanted = functional.one_hot(targets, self.output.out_features) if kind == "class" else targets[:, None]
            weights = torch.ones(len(targets)) if weights is None else weights
            waiting.append((self._read(states).flatten(2).cpu(), wanted.double().cpu(), weights.double().cpu()))
            if sum(len(wanted) for _, wanted, _ in waiting) >= GATHERED:
                yield joined(waiting)
                waiting = []
        if waiting:
            yield joined(waiting)

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

    def _write(self, models: list[Ridge | Prototypes], mix: Tensor, bias: Tensor) -> None:
        """Write the stack (outputs, M, C) of one or two models of each layer as one linear layer over (V, width); the
        rest is 0."""
        weights = torch.stack([model.weights for model in models])  # (M, V * D, C)
        offsets = torch.stack([model.offset for model in models])  # (M, C)
        by_model = torch.einsum("omc,mfc->omf", mix, weights).unflatten(1, (-1, self.count))
        by_layer = by_model.sum(1).unflatten(2, (len(self.views), -1))  # (outputs, L, V, D)
        self.output.weight.zero_()
        self._by_view[..., : self.width] = by_layer.transpose(1, 2).flatten(2).to(self._by_view)
        self.output.bias.copy_(torch.einsum("omc,mc->o", mix, offsets) + bias)


def _profile(left_out: Tensor, targets: Tensor) -> Tensor:
    """How good each layer is alone: the accuracy, or the correlation with the scores."""
    if targets.shape[1] > 1:
        return (left_out.argmax(2) == targets.argmax(1)[:, None]).double().mean(0)
    both = torch.cat([targets, left_out[..., 0]], 1)
    return torch.corrcoef(both.T)[0, 1:].nan_to_num()


def stack_scores(left_out: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Non-negative weights of the models, so that two that agree do not cancel out."""
    total, root = weights.sum(), weights.sqrt()
    mean, target = weights @ left_out[..., 0] / total, weights @ targets[:, 0] / total
    values, wanted = root[:, None] * (left_out[..., 0] - mean), root * (targets[:, 0] - target)
    found = torch.from_numpy(nnls(values.numpy(), wanted.numpy())[0])
    return found[None, :, None], (target - mean @ found)[None]


def stack_classes(left_out: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """A logistic regression on the models' predictions (N, M, C): it weights the models and gives probabilities.

    Few rows teach it model weights that all classes share, many rows also weights of each class.
    """
    models, classes = left_out.shape[1:]
    mix, bias = left_out.new_zeros(classes, models, classes), left_out.new_full((classes,), UNSEEN)
    seen = targets.sum(0).nonzero()[:, 0]  # with few examples, classes may be missing
    eye = torch.eye(len(seen)).double()
    if (targets @ targets.sum(0) > 1).double().mean() < KNOWN:
        mix[seen[:, None], :, seen], bias[seen] = (UNTAUGHT / models * eye)[..., None].expand(-1, -1, models), 0.0
        return mix, bias
    inputs, wanted = left_out[..., seen].flatten(1), targets[:, seen].argmax(1)
    shared, own, offset = (
        torch.zeros(size, dtype=torch.float64, requires_grad=True)
        for size in ((models,), (len(seen), models, len(seen)), (len(seen),))
    )
    near = 1e-5 * float(weights.sum())
    solver = torch.optim.LBFGS([shared, own, offset], max_iter=300, tolerance_grad=near, line_search_fn="strong_wolfe")

    def whole() -> Tensor:
        return own + shared[:, None] * eye[:, None]

    def loss() -> Tensor:
        solver.zero_grad()
        found = functional.cross_entropy(inputs @ whole().flatten(1).T + offset, wanted, reduction="none") @ weights
        found = found + (OWN * (own**2).sum() + SHARED * ((shared**2).sum() + (offset**2).sum())) / 2
        found.backward()
        return found

    with torch.enable_grad():
        solver.step(loss)
    mix[seen[:, None], :, seen], bias[seen] = whole().detach().transpose(1, 2), offset.detach()
    return mix, bias


register(
    "closed-form", "ours", "ridge regressions on all layers, stacked; no learning rate", reads="texts", solved=True
)(ClosedForm)


@register("closed-form-adapter", "ours", "closed-form, and an adapter of 64 beside it", reads="texts", solved=True)
def closed_form_adapter(shape: Shape) -> Head:
    return ClosedForm(shape, adapter_64(shape.layers, shape.features), dropout=0.2, lr_scale=0.3)
