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
