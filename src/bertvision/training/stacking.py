"""Heads of equal structure (other seeds, learning rates, shares of data) computed as one stack.

Their parameters are slices of common tensors, which the optimiser updates; each head's own parameters are views of
these. So checkpoints and predictions know nothing of stacks.
"""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bertvision.heads.base import Head
from bertvision.heads.dropout import drawing_from
from bertvision.heads.variants import parse
from bertvision.randomness import RandomStream
from bertvision.states.hidden import HiddenStates

Losses = Callable[[Tensor, Tensor], Tensor]
TOKEN_CHUNK = 4  # heads on tokens at a time: more do not fit in the processor's cache


class Stack:
    """Some heads of equal structure, with a learning rate for each."""

    def __init__(self, heads: dict[str, Head], rates: dict[str, float]) -> None:
        order = sorted(heads, key=lambda label: rates[label])  # those with one rate are one tensor
        self.labels, self.heads = order, [heads[label] for label in order]
        self.leaves: dict[float, dict[str, nn.Parameter]] = {}  # learning rate -> name -> (heads with it, ...)
        for rate in dict.fromkeys(rates[label] for label in order):
            own = [dict(heads[label].named_parameters()) for label in order if rates[label] == rate]
            if len(order) == 1:
                self.leaves[rate] = own[0]
                continue
            common = {name: nn.Parameter(torch.stack([part[name].data for part in own])) for name in own[0]}
            for i, part in enumerate(own):
                for name, value in part.items():
                    value.data = common[name].data[i]
            self.leaves[rate] = common

    def losses(self, streams: Sequence[RandomStream], losses: Losses, states: HiddenStates, targets: Tensor) -> Tensor:
        """(heads, B)"""
        for head in self.heads:
            head.train()
        if len(self.heads) == 1:
            with streams[0].active():
                return losses(self.heads[0](states), targets)[None]
        groups = list(self.leaves.values())
        together = {name: torch.cat([group[name] for group in groups]) for name in groups[0]}

        def one(parameters: dict[str, Tensor], number: Tensor) -> Tensor:
            with drawing_from(streams, number):
                return losses(functional_call(self.heads[0], parameters, (states,)), targets)

        numbers = torch.arange(len(self.heads), device=targets.device)
        chunk = TOKEN_CHUNK if states.places is not None else None
        found: Tensor = vmap(one, chunk_size=chunk)(together, numbers)
        return found

    def clip(self, limit: float) -> None:
        """Hold every head's gradient norm at `limit`, all heads at once: torch's own clips one model at a time."""
        for group in self.leaves.values():
            gradients = [value.grad for value in group.values() if value.grad is not None]
            single = len(self.heads) == 1
            rows = [gradient[None] if single else gradient for gradient in gradients]
            squares = torch.stack([row.reshape(len(row), -1).square().sum(1) for row in rows]).sum(0)
            factors = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
            for row in rows:
                row *= factors.view(-1, *[1] * (row.ndim - 1))


def stacks(heads: dict[str, Head], rates: dict[str, float]) -> list[Stack]:
    """All heads, those that can be computed together in one stack."""
    groups: dict[Hashable, dict[str, Head]] = {}
    for label, head in heads.items():
        # Batch statistics belong to one head alone.
        alone = any(isinstance(module, nn.BatchNorm1d) for module in head.modules())
        groups.setdefault(label if alone else parse(label).structure, {})[label] = head
    return [Stack(group, rates) for group in groups.values()]
