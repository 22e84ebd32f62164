"""Train any number of heads on the same batches of hidden states, each exactly as if it were alone.

Where a batch comes from (the forward pass of fine-tuning, or states collected before) is the caller's affair.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from bertvision.heads import heads as recipes
from bertvision.heads.base import Head, Shape
from bertvision.kinds import KINDS
from bertvision.randomness import RandomStream
from bertvision.states import HiddenStates

CLIP = 1.0


def build(names: Iterable[str], shape: Shape, seed: int, device: torch.device | str = "cpu") -> dict[str, Head]:
    """Heads by name, each initialised from a stream of its own: its start does not depend on its neighbours."""
    built = {}
    for name in names:
        with RandomStream("head", name, seed).active():
            built[name] = recipes[name].build(shape).to(device)
    return built


class HeadTrainer:
    """Heads, their optimiser and their random streams; losses are summed, so every gradient is a head's own."""

    def __init__(self, heads: dict[str, Head], kind: str, *, lr: float, seed: int, weight_decay: float = 0.01) -> None:
        self.heads = heads
        self.loss = KINDS[kind].loss
        self.random = {name: RandomStream("head-training", name, seed) for name in heads}
        self.peaks = [lr * head.lr_scale for head in heads.values()]
        groups = [{"params": list(head.parameters()), "lr": lr} for head in heads.values()]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True) if groups else None

    def accumulate(self, states: HiddenStates, targets: Tensor, share: float = 1.0) -> None:
        """Add the gradients of one batch; `share` is its part of the optimiser step."""
        if self.optimizer is None:
            return
        losses = []
        for name, head in self.heads.items():
            head.train()
            with self.random[name].active():
                losses.append(self.loss(head(states), targets))
        (torch.stack(losses).sum() * share).backward()

    def step(self, factor: float) -> None:
        """One optimiser step with the learning rate at `factor` of its peak."""
        if self.optimizer is None:
            return
        for head, group, peak in zip(self.heads.values(), self.optimizer.param_groups, self.peaks, strict=True):
            clip_grad_norm_(head.parameters(), CLIP)
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
