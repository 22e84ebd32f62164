"""The embedding head: a linear model on sentence embeddings, as sentence encoders are mostly used.

The embedding is the mean over the tokens of the last layer, of length 1. Scores are predicted by ridge regression,
classes also by how close a text is to the mean of each class. Of pairs, the cosine of the two texts is read as well. A
logistic regression whose strength cross-validation chooses takes up to a minute with 77 classes.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.base import Batches, Body, Head, Shape
from bertvision.heads.closed_form import stack_classes, stack_scores
from bertvision.heads.prototypes import Prototypes
from bertvision.heads.ridge import Ridge, joined

MOST = 10_000  # rows to learn from; more add little to a few hundred features


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
    """One linear layer on sentence embeddings and, of pairs, on the cosine of the two texts in each layer, solved."""

    solved, trained = True, False

    def __init__(self, shape: Shape) -> None:
        paired = shape.paired and shape.views is None
        body = UnitLength(shape.features, paired)
        super().__init__(shape, body, views=("first", "second") if paired else ("mean",), cosines=paired)
        self.parts = [body.width * len(self.views), *([shape.layers] if paired else [])]  # columns of the inputs

    @torch.no_grad()
    def solve(self, batches: Batches, kind: str) -> None:
        found = self._gathered(batches)
        if not found:
            return  # without examples it keeps its initial weights
        inputs, targets, weights = found
        mean, scale = inputs.mean(0), inputs.std(0, correction=0)
        scale[scale <= 1e-6 * scale.max()] = torch.inf  # a constant feature says nothing
        wanted = functional.one_hot(targets, self.output.out_features) if kind == "class" else targets[:, None]
        inputs, wanted, weights = (inputs - mean) / scale, wanted.double(), weights / weights.mean()
        weight, bias = _solved(list(inputs.split(self.parts, 1)), wanted, weights, kind)
        self.output.weight.copy_(weight / scale)
        self.output.bias.copy_(bias - weight @ (mean / scale))

    def solve_like(self, other: Head) -> None:
        self.load_state_dict(other.state_dict())

    def _gathered(self, batches: Batches) -> tuple[Tensor, ...]:
        """Inputs, targets and weights of at most MOST rows, evenly spaced; nothing if there are none."""
        kept: list[tuple[Tensor, ...]] = []
        step = 1
        for states, targets, weights in batches():
            inputs = self.inputs(states if self.layers is None else states.only(self.layers))
            weights = torch.ones(len(targets)) if weights is None else weights
            kept.append(tuple(part[::step].cpu() for part in (inputs, targets, weights)))
            while sum(len(part) for part, _, _ in kept) > MOST:
                kept, step = [tuple(part[::2] for part in joined(kept))], 2 * step
        if not kept:
            return ()
        inputs, targets, weights = joined(kept)
        return inputs.double(), targets, weights.double()


def _solved(parts: list[Tensor], wanted: Tensor, weights: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Weights (C, F) and bias (C,) of a stack of models: a ridge regression on each part of the inputs, so that few
    cosines do not drown in many features, and of classes the closeness to their means."""
    models: list[tuple[int, Ridge | Prototypes]] = [(at, Ridge(part.shape[1])) for at, part in enumerate(parts)]
    if kind == "class":
        models.append((0, Prototypes(parts[0].shape[1], wanted.shape[1])))
    for at, model in models:
        model.add(parts[at], wanted, weights)
        model.solve()
    if len(models) == 1:
        return models[0][1].weights.T, models[0][1].offset
    left_out = torch.stack([model.left_out(parts[at], wanted, weights) for at, model in models], 1)
    mix, bias = (stack_classes if kind == "class" else stack_scores)(left_out, wanted, weights)
    weight = [wanted.new_zeros(wanted.shape[1], part.shape[1]) for part in parts]
    for number, (at, model) in enumerate(models):
        weight[at] += mix[:, number] @ model.weights.T
        bias = bias + mix[:, number] @ model.offset
    return torch.cat(weight, 1), bias


register(
    "embedding",
    "ours",
    "a linear model on the mean of the last layer, as with sentence embeddings; no learning rate",
    reads="texts",
    solved=True,
)(Embedding)
