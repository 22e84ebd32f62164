"""The paper's convolutional bodies: along the features of one token, and over the tokens of a window."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads.base import Body
from bertvision.heads.dropout import Dropout
from bertvision.heads.tokens import OverTokens


class FeatureConvolution(Body):
    """(B, L, V, D) -> (B, V, filters * length): convolutions along the features of one token, with layers as channels.

    `kernels` are (size, stride, dilation). Where features run out (small encoders) a kernel shrinks to what is left.
    """

    def __init__(
        self,
        layers: int,
        features: int,
        kernels: tuple[tuple[int, int, int], ...],
        *,
        filters: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.convolutions, channels, length = nn.ModuleList(), layers, features
        for size, stride, dilation in kernels:
            if (size - 1) * dilation + 1 > length:
                dilation = 1
                size = min(size, length)
            self.convolutions.append(nn.Conv1d(channels, filters, size, stride, dilation=dilation))
            channels, length = filters, (length - (size - 1) * dilation - 1) // stride + 1
        self.dropout = Dropout(dropout)
        self.width = filters * length

    def forward(self, layers: Tensor) -> Tensor:
        batch, _, views, _ = layers.shape
        found = layers.transpose(1, 2).flatten(0, 1)  # (B * V, L, D)
        for convolution in self.convolutions:
            found = self.dropout(functional.relu(convolution(found)))
        return found.reshape(batch, views, self.width)


class InceptionBlock(nn.Module):
    """Four branches: 1; 1 then 3; 1 then 5; average over 3 then 1. Each gives `width` channels."""

    def __init__(self, channels: int, width: int, reduced: int) -> None:
        super().__init__()
        self.one = nn.Conv1d(channels, width, 1)
        self.reduce_three, self.three = nn.Conv1d(channels, reduced, 1), nn.Conv1d(reduced, width, 3, padding="same")
        self.reduce_five, self.five = nn.Conv1d(channels, reduced, 1), nn.Conv1d(reduced, width, 5, padding="same")
        self.pooled = nn.Conv1d(channels, width, 1)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        branches = [
            self.one(tokens),
            self.three(functional.relu(self.reduce_three(tokens)) * mask),
            self.five(functional.relu(self.reduce_five(tokens)) * mask),
            self.pooled(functional.avg_pool1d(tokens, 3, 1, padding=1)),
        ]
        return functional.relu(torch.cat(branches, 1)) * mask


class Inception(OverTokens):
    def __init__(self, features: int, *, blocks: int = 3, width: int = 464, reduced: int = 128) -> None:
        super().__init__()
        self.width = 4 * width
        inputs = [features, *[self.width] * (blocks - 1)]
        self.blocks = nn.ModuleList(InceptionBlock(channels, width, reduced) for channels in inputs)

    def convolve(self, tokens: Tensor, mask: Tensor) -> Tensor:
        tokens = tokens * mask
        for block in self.blocks:
            tokens = block(tokens, mask)
        return tokens


class Separable(nn.Module):
    """ReLU, a convolution over `size` tokens of each channel by itself, one over channels, LayerNorm."""

    def __init__(self, channels: int, width: int, size: int) -> None:
        super().__init__()
        self.depth = nn.Conv1d(channels, channels, size, padding="same", groups=channels, bias=False)
        self.point = nn.Conv1d(channels, width, 1)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        mixed = self.point(self.depth(functional.relu(tokens) * mask))
        return self.norm(mixed.transpose(1, 2)).transpose(1, 2)


class ResidualBlock(nn.Module):
    """Two separable convolutions and a way around them; where the width changes there is none."""

    def __init__(self, channels: int, width: int, size: int) -> None:
        super().__init__()
        self.first, self.second = Separable(channels, width, size), Separable(width, width, size)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        changed: Tensor = self.second(self.first(tokens, mask), mask)
        return changed + tokens if changed.shape == tokens.shape else changed


class Xception(OverTokens):
    def __init__(self, features: int, *, blocks: int = 7, width: int = 672, size: int = 5) -> None:
        super().__init__()
        self.width = width
        inputs = [features, *[width] * (blocks - 1)]
        self.blocks = nn.ModuleList(ResidualBlock(channels, width, size) for channels in inputs)

    def convolve(self, tokens: Tensor, mask: Tensor) -> Tensor:
        for block in self.blocks:
            tokens = block(tokens, mask)
        return tokens * mask
