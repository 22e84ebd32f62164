"""Building blocks of bodies: one after the other, side by side, and convolutions over tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads.base import Body, run


class Then(Body):
    """`second` reads the output of `first` as if it were the only layer."""

    def __init__(self, first: Body, second: Body) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.width = second.width
        self.neighbours = first.neighbours or second.neighbours

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        return run(self.second, run(self.first, layers, mask)[:, None], mask)


class Beside(Body):
    """All bodies read the same layers; their outputs are concatenated."""

    def __init__(self, *bodies: Body) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)
        self.width = sum(body.width for body in bodies)
        self.neighbours = any(body.neighbours for body in bodies)

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.cat([run(body, layers, mask) for body in self.bodies], 2)  # type: ignore[arg-type]


class OverTokens(Body):
    """The frame of a body that sees neighbouring tokens in a single layer: (B, 1, T, D) -> (B, T, width).

    Tokens move to the last axis, as convolutions expect them. Padding must stay at zero.
    """

    neighbours = True

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        return self.convolve(layers[:, 0].transpose(1, 2), mask[:, None].to(layers.dtype)).transpose(1, 2)

    def convolve(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, D, T), (B, 1, T) -> (B, width, T)"""
        raise NotImplementedError


class Ngrams(OverTokens):
    """The input, and beside it convolutions over `sizes` tokens, which keep the length."""

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
