"""Bodies that see a token's neighbours: convolutions over tokens that keep the length, with padding held at zero.

Each reads a single layer, the output of a pooling or an adapter: (B, 1, T, D) -> (B, T, width).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads.base import Body


class OverTokens(Body):
    """The frame: moves tokens to the last axis, as convolutions expect them. `mask` is zero in padding."""

    neighbours = True

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        return self.convolve(layers[:, 0].transpose(1, 2), mask[:, None].to(layers.dtype)).transpose(1, 2)

    def convolve(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, D, T), (B, 1, T) -> (B, width, T)"""
        raise NotImplementedError


class Ngrams(OverTokens):
    """The input, and beside it convolutions over `sizes` tokens each."""

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
