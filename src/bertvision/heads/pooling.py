"""Heads that reduce the layers of a view to one state: the last, the mean, or a learned weighted sum."""

import torch
from torch import Tensor, nn

from bertvision.heads import normalised_head, raw_head, register
from bertvision.heads.base import Body, Head, Shape


class LastLayer(Body):
    """The top layer's state alone, as a linear probe reads it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.width = features

    def forward(self, layers: Tensor) -> Tensor:
        return layers[:, -1]


class AveragePooling(LastLayer):
    """The plain mean over layers."""

    def forward(self, layers: Tensor) -> Tensor:
        return layers.mean(1)


class LearnedPooling(Body):
    """scale * sum_l softmax(w)_l h_l, with L + 1 parameters. The softmax is over the weights, never over states."""

    def __init__(self, layers: int, features: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))
        self.width = features

    def forward(self, layers: Tensor) -> Tensor:
        return self.scale * torch.einsum("l,blvd->bvd", self.weights.softmax(0), layers)


_SUM = "learned weighted sum of all layers"
raw_head("learned-pooling", _SUM, LearnedPooling)
normalised_head(
    "learned-pooling-views", f"{_SUM}, every view, normalised states", LearnedPooling, reads="texts", cosines=True
)
normalised_head("learned-pooling-normalised", f"{_SUM}, normalised states", LearnedPooling, reads="tokens")
raw_head("average-pooling", "plain mean of all layers", lambda _, features: AveragePooling(features), source="ours")
normalised_head(
    "last-layer-views", "every view of the last layer", lambda _, features: LastLayer(features), reads="texts"
)


@register("last-layer", "ours", "the last layer alone: the usual linear probe, for comparison")
def last_layer(shape: Shape) -> Head:
    return Head(shape, LastLayer(shape.features))


@register("cosines", "ours", "linear layer on the two texts' cosine in each layer: L + 1 weights", reads="pairs")
def cosines(shape: Shape) -> Head:
    return Head(shape, None, cosines=True, lr_scale=30)
