"""Convolutions along the *layer* axis: what changes from one layer to the next, wherever in the depth it happens.

After hierarchical convolution over the layers of speech encoders (Interspeech 2024).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.base import Body, Head, Shape
from bertvision.heads.pooling import all_views


class LayerConvolution(Body):
    """(B, L, V, D) -> (B, V, 2 * size): two convolutions over layers, then their mean and maximum."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.compress = nn.Linear(features, size)
        self.first, self.second = (nn.Conv1d(size, size, 3, padding=1) for _ in range(2))
        self.width = 2 * size

    def forward(self, layers: Tensor) -> Tensor:
        batch, _, views, _ = layers.shape
        small = functional.gelu(self.compress(layers)).permute(0, 2, 3, 1).flatten(0, 1)  # (B * V, size, L)
        small = small + functional.gelu(self.first(small))
        small = small + functional.gelu(self.second(small))
        return torch.cat([small.mean(2), small.amax(2)], 1).reshape(batch, views, self.width)


@register("layer-convolution", "ours", "convolutions over the layer axis, every view, normalised states")
def layer_convolution(shape: Shape) -> Head:
    views = ("tokens",) if shape.span else all_views(shape)
    return Head(shape, LayerConvolution(shape.features, 64), views=views, normalised=True, dropout=0.1)
