"""Heads of equal structure (other seeds, learning rates, shares of data) computed as one, not one after another."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bertvision.heads.base import Head
from bertvision.heads.dropout import drawing_from
from bertvision.heads.variants import parse
from bertvision.randomness import RandomStream
from bertvision.states import HiddenStates

Losses = Callable[[Tensor, Tensor], Tensor]


def stacks(heads: dict[str, Head]) -> list[list[str]]:
    """Labels of heads that can be computed together."""
    groups: dict[Hashable, list[str]] = {}
    for label, head in heads.items():
        # Statistics of batches, and layers with dropout of their own, belong to one head alone.
        alone = head.borrows or any(isinstance(module, nn.BatchNorm1d) for module in head.modules())
        groups.setdefault(label if alone else parse(label).structure, []).append(label)
    return list(groups.values())


def losses_of(
    heads: Sequence[Head], streams: Sequence[RandomStream], losses: Losses, states: HiddenStates, targets: Tensor
) -> Tensor:
    """(heads, B). The parameters stay each head's own: they are stacked here, and gradients flow back to each."""
    for head in heads:
        head.train()
    if len(heads) == 1:
        with streams[0].active():
            return losses(heads[0](states), targets)[None]
    own = [dict(head.named_parameters()) for head in heads]
    together = {key: torch.stack([parameters[key] for parameters in own]) for key in own[0]}

    def one(parameters: dict[str, Tensor], number: Tensor) -> Tensor:
        with drawing_from(streams, number):
            return losses(functional_call(heads[0], parameters, (states,)), targets)

    found: Tensor = vmap(one)(together, torch.arange(len(heads), device=targets.device))
    return found
