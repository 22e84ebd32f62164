"""Polish heads: several cheap epochs on the hidden states of an encoder that stays as it is."""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bertvision.heads.base import Batches, Head
from bertvision.heads.variants import parse
from bertvision.states.hidden import HiddenStates
from bertvision.training.heads import HeadTrainer
from bertvision.training.sources import Source


def polish(
    heads: dict[str, Head],
    source: Source,
    targets: Tensor,
    kind: str,
    *,
    epochs: int,
    lr: float,
    seed: int,
    ranks: Tensor | None = None,
    tick: Callable[[int], object] = lambda steps: None,
) -> dict[str, float]:
    """Train `heads` in place; the learning rate falls linearly to zero. All heads see the same batches, of which those
    that may see only a share of the data use the examples with a low rank. Returns the seconds of training, and of
    waiting for states."""
    seconds = {"solve": 0.0, "train": 0.0, "wait": 0.0}
    before = time.perf_counter()
    waiting = {label: head for label, head in heads.items() if head.solved}
    _solve(waiting, source, targets, ranks, kind)
    seconds["solve"] = time.perf_counter() - before
    trainer = HeadTrainer({label: head for label, head in heads.items() if head.trained}, kind, lr=lr, seed=seed)
    if not trainer.heads:
        return seconds
    steps, done, device = source.steps(epochs), 0, next(iter(heads.values())).output.weight.device
    for number in range(epochs):
        before = time.perf_counter()
        for states, rows in source.epoch(number):
            seconds["wait"] += time.perf_counter() - before
            before = time.perf_counter()
            shown = ranks[rows].to(device) if ranks is not None else None
            trainer.accumulate(states.to(device), targets[rows].to(device), ranks=shown)
            trainer.step(1 - done / steps)
            done += 1
            tick(1)
            seconds["train"] += time.perf_counter() - before
            before = time.perf_counter()
    return seconds


def _solve(heads: dict[str, Head], source: Source, targets: Tensor, ranks: Tensor | None, kind: str) -> None:
    """Let heads find their weights in closed form, each from the share of the examples that it may see; those that
    look for the same find it once."""
    found: dict[tuple[object, ...], Head] = {}
    for label, head in heads.items():
        share = parse(label).data
        same = (share, head.layers, head.views, head.normalised)
        if same in found:
            head.solve_like(found[same])
        elif share > 0:
            head.solve(_shown(source, targets, ranks, share), kind)
            found[same] = head


def _shown(source: Source, targets: Tensor, ranks: Tensor | None, share: float) -> Batches:
    def batches() -> Iterator[tuple[HiddenStates, Tensor]]:
        for states, rows in source.plain():
            if ranks is None or share == 1:
                yield states, targets[rows]
            elif len(few := torch.nonzero(ranks[rows] < share).flatten()):
                yield states.take(few), targets[rows[few]]

    return batches
