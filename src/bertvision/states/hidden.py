"""Hidden states of every layer: what a backbone gives and a head reads.

A class or score head reads pooled *views* of a layer instead of tokens: [CLS], the mean over tokens and, for pairs, the
mean over each text. Derived views (difference, product, cosine) are computed on demand, once per batch for all heads. A
span head reads every token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SINGLE_VIEWS = ("cls", "mean")
PAIR_VIEWS = ("cls", "mean", "first", "second")
DERIVED_VIEWS = ("difference", "product")
TOKENS = ("tokens",)


def views_of(pairs: bool) -> tuple[str, ...]:
    """The views that a backbone gives."""
    return PAIR_VIEWS if pairs else SINGLE_VIEWS


def all_views(pairs: bool) -> tuple[str, ...]:
    """The views that a head can read: two for single texts, six for pairs."""
    return PAIR_VIEWS + DERIVED_VIEWS if pairs else SINGLE_VIEWS


@dataclass
class HiddenStates:
    """Layers (B, L, T, D) and, if the backbone has a pooler, its output (B, D).

    Axis T holds the views or, for spans, the tokens, which are zero in padding. `mask` (B, T) marks tokens that are not
    padding, `places` (B, T) those where an answer may start or end.
    """

    layers: Tensor
    views: tuple[str, ...]
    pooled: Tensor | None = None
    mask: Tensor | None = None
    places: Tensor | None = None
    _ready: dict[object, Any] = field(default_factory=dict, init=False, repr=False)  # what heads have in common

    def __len__(self) -> int:
        return self.layers.shape[0]

    def take(self, rows: Tensor) -> "HiddenStates":
        return self._each(lambda values: values[rows])

    def to(self, device: torch.device) -> "HiddenStates":
        return self._each(lambda values: values.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "HiddenStates":
        rest = (None if values is None else change(values) for values in (self.pooled, self.mask, self.places))
        return HiddenStates(change(self.layers), self.views, *rest)

    def only(self, layers: tuple[int, ...]) -> "HiddenStates":
        """The same with these layers only."""
        return self._once(("only", layers), lambda: replace(self, layers=self.layers[:, list(layers)]))

    def tokens(self, normalised: bool) -> Tensor:
        """Every token of every layer, (B, L, T, D), optionally each with mean 0 and deviation 1 over features."""
        return self._once("tokens", lambda: _normalised(self.layers)) if normalised else self.layers

    def read(self, views: Sequence[str], normalised: bool) -> Tensor:
        """The named views of every layer, (B, L, V, D), optionally each with mean 0 and deviation 1 over features."""
        key = (tuple(views), normalised)
        return self._once(key, lambda: torch.stack([self._view(name, normalised) for name in views], 2))

    def cosines(self) -> Tensor:
        """The cosine between the two texts' means in each layer, (B, L)."""
        first, second = self._view("first", False), self._view("second", False)
        return self._once("cosines", lambda: functional.cosine_similarity(first, second, dim=-1))

    def _view(self, name: str, normalised: bool) -> Tensor:
        """(B, L, D)"""
        return self._once((name, normalised), lambda: self._make(name, normalised))

    def _make(self, name: str, normalised: bool) -> Tensor:
        if name in DERIVED_VIEWS:
            first, second = self._view("first", normalised), self._view("second", normalised)
            return (first - second).abs() if name == "difference" else first * second
        view = self.layers[:, :, self.views.index(name)]
        return _normalised(view) if normalised else view

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        """Compute a value the first time that a head asks for it."""
        if key not in self._ready:
            self._ready[key] = make()
        return self._ready[key]


def _normalised(values: Tensor) -> Tensor:
    return functional.layer_norm(values, values.shape[-1:])


def pooling_weights(mask: Tensor, segments: Tensor, pairs: bool) -> Tensor:
    """(B, V, T): each row averages the tokens of one view. Pooling is then one matrix product per layer.

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
    """The four views of a pair from the views of two separate texts, (B, L, 2, D) each."""
    cls, mean = (first + second).div(2).unbind(2)
    return torch.stack([cls, mean, first[:, :, 1], second[:, :, 1]], 2)
