"""Heads that compress every layer with a small adapter, Linear(D -> A) + GELU, and read all of them out."""

from functools import partial
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads import normalised_head, raw_head
from bertvision.heads.base import Body
from bertvision.heads.blocks import Ngrams, Then


class Adapter(Body):
    """(B, L, V, D) -> (B, V, L * size [+ D]): one adapter for all layers, or one per layer; `skip` adds the last state.

    Weights start small (truncated normal, standard deviation 1e-3), as in the paper, unless `small` is off.
    """

    def __init__(
        self, layers: int, features: int, size: int, *, shared: bool = True, skip: bool = False, small: bool = True
    ) -> None:
        super().__init__()
        sets = 1 if shared else layers
        self.weight = nn.Parameter(torch.empty(sets, features, size))
        self.bias = nn.Parameter(torch.zeros(sets, size))
        deviation = 1e-3 if small else features**-0.5
        nn.init.trunc_normal_(self.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        self.shared, self.skip = shared, skip
        self.width = layers * size + (features if skip else 0)

    def forward(self, layers: Tensor) -> Tensor:
        if self.shared:
            small = functional.linear(layers, self.weight[0].T, self.bias[0])  # (B, L, V, A)
        else:
            small = torch.einsum("blvd,lda->blva", layers, self.weight) + self.bias[:, None]
        flat = functional.gelu(small).transpose(1, 2).flatten(2)  # (B, V, L * A)
        return torch.cat([flat, layers[:, -1]], 2) if self.skip else flat


for _size, _shared, _skip in product((64, 386), (True, False), (False, True)):
    raw_head(
        f"adapter-{_size}{'' if _shared else '-per-layer'}{'-skip' * _skip}",
        f"{_size} features of each layer (Linear + GELU)",
        partial(Adapter, size=_size, shared=_shared, skip=_skip),
    )


def adapter_64(layers: int, features: int) -> Adapter:
    """The shared adapter that our heads have on normalised states."""
    return Adapter(layers, features, 64, small=False)


def _with_ngrams(layers: int, features: int) -> Body:
    adapter = adapter_64(layers, features)
    return Then(adapter, Ngrams(adapter.width, sizes=(5,), filters=64))


normalised_head(
    "adapter-64-views",
    "adapter of 64, every view, normalised states",
    adapter_64,
    reads="texts",
    cosines=True,
    dropout=0.2,
)
normalised_head("adapter-64-normalised", "adapter of 64 on every token, normalised states", adapter_64, reads="tokens")
normalised_head("adapter-64-ngram", "the same, with a convolution over five tokens", _with_ngrams, reads="tokens")
