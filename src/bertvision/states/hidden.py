"""Hidden states of every layer: what a backbone gives and a head reads.

A class or score head reads pooled *views* of a layer, which stand where tokens would: [CLS], the mean over tokens and,
for pairs, the mean over each text. Views that follow from these without parameters (difference, product, cosine) are
computed on demand, once per batch for all heads. A span head reads every token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

SINGLE_VIEWS = ("cls", "mean")
PAIR_VIEWS = ("cls", "mean", "first", "second")
DERIVED_VIEWS = ("difference", "product")
TOKENS = ("tokens",)


def views_of(pairs: bool) -> tuple[str, ...]:
    return PAIR_VIEWS if pairs else SINGLE_VIEWS


@dataclass
class HiddenStates:
    """Layers (B, L, T, D), the pooler's output (B, D) where the backbone has one, and what stands along T: views or,
    for spans, the tokens themselves, zero in padding, with the places (B, T) where an answer may start or end."""

    layers: Tensor
    views: tuple[str, ...]
    pooled: Tensor | None = None
    mask: Tensor | None = None  # (B, T) which tokens are not padding
    places: Tensor | None = None
    _ready: dict[object, Tensor] = field(default_factory=dict, repr=False)
    _subsets: dict[tuple[int, ...], "HiddenStates"] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.layers.shape[0]

    def take(self, rows: Tensor) -> "HiddenStates":
        pooled, mask, places = (v[rows] if v is not None else None for v in (self.pooled, self.mask, self.places))
        return HiddenStates(self.layers[rows], self.views, pooled, mask, places)

    def only(self, layers: tuple[int, ...]) -> "HiddenStates":
        """The same with these layers alone; the work on them is shared by all heads that choose them."""
        if layers not in self._subsets:
            chosen = self.layers[:, list(layers)]
            self._subsets[layers] = HiddenStates(chosen, self.views, self.pooled, self.mask, self.places)
        return self._subsets[layers]

    def to(self, device: torch.device) -> "HiddenStates":
        pooled = self.pooled.to(device) if self.pooled is not None else None
        mask, places = (value.to(device) if value is not None else None for value in (self.mask, self.places))
        return HiddenStates(self.layers.to(device), self.views, pooled, mask, places)

    def tokens(self, normalised: bool) -> Tensor:
        """Every token of every layer, (B, L, T, D), optionally each with mean 0 and deviation 1 over features."""
        if not normalised:
            return self.layers
        if "tokens" not in self._ready:
            self._ready["tokens"] = functional.layer_norm(self.layers, self.layers.shape[-1:])
        return self._ready["tokens"]

    def read(self, views: Sequence[str], normalised: bool) -> Tensor:
        """The named views of every layer, (B, L, V, D), optionally each with mean 0 and deviation 1 over features."""
        key = (tuple(views), normalised)
        if key not in self._ready:
            self._ready[key] = torch.stack([self._view(name, normalised) for name in views], 2)
        return self._ready[key]

    def cosines(self) -> Tensor:
        """The cosine between the two texts' means in each layer, (B, L)."""
        if "cosines" not in self._ready:
            first, second = self._view("first", False), self._view("second", False)
            self._ready["cosines"] = functional.cosine_similarity(first, second, dim=-1)
        return self._ready["cosines"]

    def _view(self, name: str, normalised: bool) -> Tensor:
        key = (name, normalised)
        if key not in self._ready:
            self._ready[key] = self._make(name, normalised)
        return self._ready[key]

    def _make(self, name: str, normalised: bool) -> Tensor:
        if name == "difference":
            return (self._view("first", normalised) - self._view("second", normalised)).abs()
        if name == "product":
            return self._view("first", normalised) * self._view("second", normalised)
        view = self.layers[:, :, self.views.index(name)]  # (B, L, D)
        return functional.layer_norm(view, view.shape[-1:]) if normalised else view


def pooling_weights(mask: Tensor, segments: Tensor, pairs: bool) -> Tensor:
    """(B, V, T): each row averages the tokens of one view, so that pooling is one matrix product per layer.

    `segments` is 1 in the first text, 2 in the second and 0 in special tokens and padding.
    """
    cls = torch.zeros_like(mask)
    cls[:, 0] = 1
    chosen = [cls, mask] + ([segments == 1, segments == 2] if pairs else [])
    weights = torch.stack([rows.float() for rows in chosen], 1)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


def places_of(segments: Tensor) -> Tensor:
    """Where an answer may start or end, (B, T): in the second text or, for no answer, at the first token."""
    places = segments == 2
    places[:, 0] = True
    return places


def pool(layers: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Token states of each layer, L x (B, T, D), to views, (B, L, V, D)."""
    return torch.stack([torch.bmm(weights, layer) for layer in layers], 1)


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Views of two texts that were encoded alone, (B, L, 2, D) each, as the four views of a pair."""
    cls, mean = (first + second).div(2).unbind(2)
    return torch.stack([cls, mean, first[:, :, 1], second[:, :, 1]], 2)
