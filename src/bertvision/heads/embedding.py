"""The embedding head: logistic or ridge regression on sentence embeddings, as sentence encoders are mostly used.

The embedding is the mean over the tokens of the last layer, of length 1. Cross-validation on the rows it is solved on
chooses the strength of a logistic regression.
"""

import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.base import UNSEEN, Batches, Body, Head, Shape
from bertvision.heads.ridge import Ridge, joined

MOST = 10_000  # rows to learn from; more add little to a few hundred features
CHOOSING, FOLDS = 1000, 5  # rows to choose the strength on
STRENGTHS = np.logspace(-1, 3.5, 10)  # scikit-learn's C, times the number of features
FEW = 100.0  # the strength where no row can be left out


class UnitLength(Body):
    """(B, L, V, D) -> (B, V, D): views of the last layer, of length 1.

    If these are the two texts of a pair: (B, 2, 2 * D), with their difference and product beside them.
    """

    def __init__(self, features: int, paired: bool) -> None:
        super().__init__()
        self.paired = paired
        self.width = 2 * features if paired else features

    def forward(self, layers: Tensor) -> Tensor:
        views = functional.normalize(layers[:, -1], dim=-1)
        if not self.paired:
            return views
        first, second = views.unbind(1)
        return torch.cat([views, torch.stack([(first - second).abs(), first * second], 1)], 2)


class Embedding(Head):
    """One linear layer on sentence embeddings, solved."""

    solved, trained = True, False

    def __init__(self, shape: Shape) -> None:
        paired = shape.paired and shape.views is None
        body = UnitLength(shape.features, paired)
        super().__init__(shape, body, views=("first", "second") if paired else ("mean",))

    @torch.no_grad()
    def solve(self, batches: Batches, kind: str) -> None:
        found = self._gathered(batches)
        if not found:
            return  # without examples it keeps its initial weights
        inputs, targets, weights = found
        mean, scale = inputs.mean(0), inputs.std(0, correction=0)
        scale[scale <= 1e-6 * scale.max()] = torch.inf  # a constant feature says nothing
        solve = _classes if kind == "class" else _scores
        weight, bias = solve((inputs - mean) / scale, targets, weights / weights.mean(), self.output.out_features)
        self.output.weight.copy_(weight / scale)
        self.output.bias.copy_(bias - weight @ (mean / scale))

    def solve_like(self, other: Head) -> None:
        self.load_state_dict(other.state_dict())

    def _gathered(self, batches: Batches) -> tuple[Tensor, ...]:
        """Inputs, targets and weights of at most MOST rows, evenly spaced; nothing if there are none."""
        kept: list[tuple[Tensor, ...]] = []
        step = 1
        for states, targets, weights in batches():
            states = states if self.layers is None else states.only(self.layers)
            assert self.body is not None
            inputs = self.body(states.read(self.views, self.normalised)).flatten(1)
            weights = torch.ones(len(targets)) if weights is None else weights
            kept.append(tuple(part[::step].cpu() for part in (inputs, targets, weights)))
            while sum(len(part) for part, _, _ in kept) > MOST:
                kept, step = [tuple(part[::2] for part in joined(kept))], 2 * step
        if not kept:
            return ()
        inputs, targets, weights = joined(kept)
        return inputs.double(), targets, weights.double()


def _scores(inputs: Tensor, targets: Tensor, weights: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    ridge = Ridge(inputs.shape[1])
    ridge.add(inputs, targets[:, None], weights)
    ridge.solve()
    return ridge.weights.T, ridge.offset


def _classes(inputs: Tensor, targets: Tensor, weights: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    seen = targets.unique()  # with few examples, classes may be missing
    weight, bias = inputs.new_zeros(outputs, inputs.shape[1]), inputs.new_full((outputs,), UNSEEN)
    bias[seen] = 0
    if len(seen) > 1:
        rows = inputs.numpy(), targets.numpy(), weights.numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # nearly solved is good enough
            fitted = LogisticRegression(C=_strength(*rows), max_iter=300).fit(*rows)
        known = seen[1:] if len(seen) == 2 else seen  # of two classes, only the second has coefficients
        weight[known], bias[known] = torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
    return weight, bias


def _strength(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
    """The weakest regularisation up to which the loss on rows left out falls."""
    order = np.random.default_rng(0).permutation(len(targets))
    order = order[np.argsort(targets[order], kind="stable")]  # so that every class is in as many folds as can be
    order = order[:: -(-len(order) // CHOOSING)]
    inputs, targets, weights = inputs[order], targets[order], weights[order]
    folds, models = np.arange(len(order)) % FOLDS, {}
    for fold in range(FOLDS):
        rest = folds != fold
        known = ~rest & np.isin(targets, targets[rest])  # a class that the others lack cannot be predicted
        if known.any() and len(np.unique(targets[rest])) > 1:
            models[fold] = LogisticRegression(max_iter=300, tol=1e-3, warm_start=True), rest, known
    best, least = FEW, np.inf
    for strength in STRENGTHS if models else ():
        loss = 0.0
        for model, rest, known in models.values():
            model.set_params(C=strength / inputs.shape[1]).fit(inputs[rest], targets[rest], weights[rest])
            said = model.predict_log_proba(inputs[known])
            right = said[np.arange(len(said)), np.searchsorted(model.classes_, targets[known])]
            loss -= float(weights[known] @ right)
        if loss >= least:
            break
        best, least = float(strength), loss
    return best / inputs.shape[1]


register(
    "embedding",
    "ours",
    "logistic or ridge regression on the mean of the last layer, as with sentence embeddings",
    reads="texts",
    solved=True,
)(Embedding)
