"""Heads that mix the layers of a view into one state: the last, the mean, or a learned weighted sum."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertvision.heads import register
from bertvision.heads.base import Body, Head, Shape
from bertvision.states.hidden import DERIVED_VIEWS, PAIR_VIEWS, SINGLE_VIEWS


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


def all_views(shape: Shape) -> tuple[str, ...]:
    """Every view that the data can feed: two for single texts, six for pairs."""
    return PAIR_VIEWS + DERIVED_VIEWS if shape.paired else SINGLE_VIEWS


def raw_head(name: str, about: str, body: Callable[[int, int], Body], reads: str = "any") -> None:
    """Register a head of the paper: a body for (layers, features) on raw states, in which a trained pooler's output is
    one more layer, the last one."""

    @register(name, "paper", about, reads=reads)
    def build(shape: Shape) -> Head:
        return Head(shape, body(shape.layers + shape.pooled, shape.features), pooled=shape.pooled)


raw_head("learned-pooling", "learned weighted sum of all layers", LearnedPooling)


@register("last-layer", "ours", "linear layer on the last layer's [CLS] (or tokens): the usual probe, for comparison")
def last_layer(shape: Shape) -> Head:
    return Head(shape, LastLayer(shape.features))


@register("average-pooling", "ours", "plain mean of all layers' [CLS] (or tokens)")
def average_pooling(shape: Shape) -> Head:
    return Head(shape, AveragePooling(shape.features), pooled=shape.pooled)


@register(
    "last-layer-views",
    "ours",
    "linear layer on every view of the last layer, as sentence encoders are used",
    reads="texts",
)
def last_layer_views(shape: Shape) -> Head:
    return Head(shape, LastLayer(shape.features), views=all_views(shape), normalised=True, dropout=0.1)


@register(
    "learned-pooling-views", "ours", "learned weighted sum of all layers, every view, normalised states", reads="texts"
)
def learned_pooling_views(shape: Shape) -> Head:
    body = LearnedPooling(shape.layers, shape.features)
    return Head(shape, body, views=all_views(shape), normalised=True, cosines=shape.paired, dropout=0.1)


@register("learned-pooling-normalised", "ours", "learned weighted sum of all layers, normalised states", reads="tokens")
def learned_pooling_normalised(shape: Shape) -> Head:
    return Head(shape, LearnedPooling(shape.layers, shape.features), normalised=True, dropout=0.1)


@register("cosines", "ours", "linear layer on the two texts' cosine in each layer: L + 1 weights", reads="pairs")
def cosines(shape: Shape) -> Head:
    return Head(shape, None, cosines=True, lr_scale=30)
