"""Bodies that look at a token's neighbours: convolutions over tokens, the length kept, padding held at zero.

Each reads one layer, (B, 1, T, D) -> (B, T, width): what a pooling and an adapter have made of all layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads.base import Body


class OverTokens(Body):
    """The frame: tokens come last, as convolutions want them, and are zero wherever there is padding."""

    neighbours = True

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        return self.convolve(layers[:, 0].transpose(1, 2), mask[:, None].to(layers.dtype)).transpose(1, 2)

    def convolve(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, D, T), (B, 1, T) -> (B, width, T)"""
        raise NotImplementedError


class Ngrams(OverTokens):
    """What comes in, and beside it convolutions over so many tokens each."""

    def __init__(self, features: int, sizes: Sequence[int] = range(1, 8), filters: int = 66) -> None:
        super().__init__()
        self.sizes = sizes
        self.convolutions = nn.ModuleList(nn.Conv1d(features, filters, size) for size in sizes)
        self.width = features + len(sizes) * filters

    def convolve(self, tokens: Tensor, mask: Tensor) -> Tensor:
        tokens = tokens * mask
        found = [tokens]
        for size, layer in zip(self.sizes, self.convolutions, strict=True):
            found.append(functional.gelu(layer(functional.pad(tokens, ((size - 1) // 2, size // 2)))))
        return torch.cat(found, 1)


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
