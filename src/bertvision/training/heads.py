"""Train any number of heads on the same batches of hidden states, each exactly as if it were alone.

Where a batch comes from (the forward pass of fine-tuning, or states collected before) is the caller's affair.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from bertvision.heads.base import Head, Shape
from bertvision.heads.variants import Donor, make, parse
from bertvision.kinds import KINDS
from bertvision.randomness import RandomStream
from bertvision.states.hidden import HiddenStates
from bertvision.training.stacking import stacks

CLIP = 1.0


def build(
    labels: Iterable[str], shape: Shape, seed: int, device: torch.device | str = "cpu", donor: Donor | None = None
) -> dict[str, Head]:
    """Heads by label, each initialised from a stream of its own: its start does not depend on its neighbours."""
    built = {}
    for label in labels:
        variant = parse(label)
        with RandomStream("head", variant.name, seed if variant.seed is None else variant.seed).active():
            built[label] = make(label, shape, donor).to(device)
    return built


def sequences_of(heads: dict[str, Head]) -> tuple[int, ...]:
    """The layers of which some head needs every token."""
    return tuple(sorted({layer for head in heads.values() for layer in head.sequences}))


class HeadTrainer:
    """Heads, their optimiser and their random streams; losses are summed, so every gradient is a head's own."""

    def __init__(self, heads: dict[str, Head], kind: str, *, lr: float, seed: int, weight_decay: float = 0.01) -> None:
        self.heads, self.losses = heads, KINDS[kind].losses
        variants = {label: parse(label) for label in heads}
        self.random = {
            label: RandomStream("head-training", variant.name, seed if variant.seed is None else variant.seed)
            for label, variant in variants.items()
        }
        rates = {label: (lr if v.lr is None else v.lr) * heads[label].lr_scale for label, v in variants.items()}
        self.stacks = stacks(heads, rates)
        self.shares = {label: variant.data for label, variant in variants.items()}
        self.sequences = sequences_of(heads)
        self.peaks = sorted(set(rates.values()))
        groups = [
            {"params": [p for stack in self.stacks for p in stack.leaves.get(peak, {}).values()]} for peak in self.peaks
        ]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True) if groups else None

    def accumulate(
        self, states: HiddenStates, targets: Tensor, share: float = 1.0, ranks: Tensor | None = None
    ) -> None:
        """Add the gradients of one batch; `share` is its part of the optimiser step. `ranks` (between 0 and 1) say
        which examples a head is shown that may see only so much of the data."""
        if self.optimizer is None:
            return
        waiting: list[Tensor] = []
        for stack in self.stacks:
            streams = [self.random[label] for label in stack.labels]
            losses = stack.losses(streams, self.losses, states, targets)  # (heads, B)
            loss = (losses * self._weights(stack.labels, losses, ranks)).sum() * share
            if states.places is None:
                waiting.append(loss)
            else:
                loss.backward()  # at once: what heads keep of every token would not fit in any cache together
        if waiting:
            torch.stack(waiting).sum().backward()

    def _weights(self, labels: list[str], losses: Tensor, ranks: Tensor | None) -> Tensor:
        shares = losses.new_tensor([self.shares[label] for label in labels])[:, None]
        if ranks is None or bool((shares == 1).all()):
            return torch.full_like(losses, 1 / losses.shape[1])
        return (ranks[None].to(losses) < shares) / (losses.shape[1] * shares.clamp(min=1e-9))

    def step(self, factor: float) -> None:
        """One optimiser step with the learning rate at `factor` of its peak."""
        if self.optimizer is None:
            return
        for stack in self.stacks:
            stack.clip(CLIP)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@torch.inference_mode()
def predict(heads: dict[str, Head], states: HiddenStates, batch_size: int = 512) -> dict[str, Tensor]:
    """Logits (N, C) of every head on collected states."""
    parts: dict[str, list[Tensor]] = {name: [] for name in heads}
    if not heads:
        return {}
    device = next(iter(heads.values())).output.weight.device
    for head in heads.values():
        head.eval()
    for rows in torch.arange(len(states)).split(batch_size):
        batch = states.take(rows).to(device)
        for name, head in heads.items():
            parts[name].append(head(batch).cpu())
    return {name: torch.cat(logits) for name, logits in parts.items()}
