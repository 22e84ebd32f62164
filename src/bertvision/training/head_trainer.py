"""Train any number of heads on the same batches of hidden states, each exactly as if it were trained alone."""

import torch
from torch import Tensor

from bertvision.heads.base import Head
from bertvision.heads.variants import parse
from bertvision.kinds import kinds
from bertvision.randomness import RandomStream
from bertvision.states.hidden import HiddenStates
from bertvision.training.stacking import stacks

CLIP = 1.0


class HeadTrainer:
    """Heads, their optimiser and their random streams; losses are summed, so every gradient is a head's own."""

    def __init__(self, heads: dict[str, Head], kind: str, *, lr: float, seed: int, weight_decay: float = 0.01) -> None:
        self.heads, self.losses = heads, kinds[kind].losses
        variants = {label: parse(label) for label in heads}
        self.random = {
            label: RandomStream("head-training", variant.name, seed if variant.seed is None else variant.seed)
            for label, variant in variants.items()
        }
        rates = {label: (lr if v.lr is None else v.lr) * heads[label].lr_scale for label, v in variants.items()}
        self.stacks = stacks(heads, rates)
        self.shares = {label: variant.data for label, variant in variants.items()}
        self.peaks = sorted(set(rates.values()))
        groups = [
            {"params": [p for stack in self.stacks for p in stack.leaves.get(peak, {}).values()]} for peak in self.peaks
        ]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True) if groups else None

    def accumulate(
        self,
        states: HiddenStates,
        targets: Tensor,
        share: float = 1.0,
        ranks: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        """Add the gradients of one batch; `share` is its part of the optimiser step. A head on a share of the data
        sees the examples whose rank (between 0 and 1) is below that share. `weights` are 1 on average over all data."""
        if self.optimizer is None:
            return
        waiting: list[Tensor] = []
        for stack in self.stacks:
            streams = [self.random[label] for label in stack.labels]
            losses = stack.losses(streams, self.losses, states, targets)  # (heads, B)
            losses = losses if weights is None else losses * weights
            loss = (losses * self._parts(stack.labels, losses, ranks)).sum() * share
            if states.places is None:
                waiting.append(loss)
            else:
                loss.backward()  # at once: the activations of all heads together would not fit in any cache
        if waiting:
            torch.stack(waiting).sum().backward()

    def _parts(self, labels: list[str], losses: Tensor, ranks: Tensor | None) -> Tensor:
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
