"""The paper's convolutional bodies: along the features of one token, and over the tokens of a window."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads.base import Body
from bertvision.heads.blocks import OverTokens
from bertvision.heads.dropout import Dropout


class AlongFeatures(Body):
    """The frame: each view on its own, with layers as channels and features as the length."""

    def forward(self, layers: Tensor) -> Tensor:
        found = self.convolve(layers.transpose(1, 2).flatten(0, 1))
        return found.reshape(len(layers), -1, self.width)

    def convolve(self, found: Tensor) -> Tensor:
        """(B * V, L, D) -> (B * V, ...), `width` values in all"""
        raise NotImplementedError


class FeatureConvolution(AlongFeatures):
    """(B, L, V, D) -> (B, V, 128 * length): convolutions of 128 filters along features.

    `kernels` are (size, stride, dilation). In small encoders, a kernel shrinks to the features that are left.
    """

    def __init__(
        self, layers: int, features: int, kernels: tuple[tuple[int, int, int], ...], dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.convolutions, channels, length = nn.ModuleList(), layers, features
        for size, stride, dilation in kernels:
            if (size - 1) * dilation + 1 > length:
                size, dilation = min(size, length), 1
            self.convolutions.append(nn.Conv1d(channels, 128, size, stride, dilation=dilation))
            channels, length = 128, (length - (size - 1) * dilation - 1) // stride + 1
        self.dropout = Dropout(dropout)
        self.width = 128 * length

    def convolve(self, found: Tensor) -> Tensor:
        for convolution in self.convolutions:
            found = self.dropout(functional.relu(convolution(found)))
        return found


class TokenBlocks(OverTokens):
    """Blocks over tokens, one after the other. Each takes and returns (B, channels, T), and takes the mask."""

    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.blocks, self.width = nn.ModuleList(blocks), width

    def convolve(self, tokens: Tensor, mask: Tensor) -> Tensor:
        tokens = tokens * mask
        for block in self.blocks:
            tokens = block(tokens, mask)
        return tokens * mask


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


class Inception(TokenBlocks):
    def __init__(self, features: int) -> None:
        super().__init__([InceptionBlock(channels, 464, 128) for channels in (features, 4 * 464, 4 * 464)], 4 * 464)


class Separable(nn.Module):
    """ReLU, a convolution over five tokens of each channel alone, one over channels, LayerNorm."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv1d(channels, channels, 5, padding="same", groups=channels, bias=False)
        self.point = nn.Conv1d(channels, width, 1)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        mixed = self.point(self.depth(functional.relu(tokens) * mask))
        return self.norm(mixed.transpose(1, 2)).transpose(1, 2)


class ResidualBlock(nn.Module):
    """Two separable convolutions with a residual connection, unless the width changes."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first, self.second = Separable(channels, width), Separable(width, width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        changed: Tensor = self.second(self.first(tokens, mask), mask)
        return changed + tokens if changed.shape == tokens.shape else changed


class Xception(TokenBlocks):
    def __init__(self, features: int) -> None:
        super().__init__([ResidualBlock(channels, 672) for channels in (features, *[672] * 6)], 672)
