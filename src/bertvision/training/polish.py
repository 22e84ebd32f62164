"""Polish heads: several cheap epochs on the hidden states of an encoder that stays as it is."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bertvision.heads.base import Batches, Head
from bertvision.heads.variants import parse
from bertvision.recipe import Recipe
from bertvision.states.hidden import HiddenStates
from bertvision.states.memory import Tick, nothing
from bertvision.states.sources import Source
from bertvision.training.head_trainer import HeadTrainer


@dataclass(frozen=True)
class Lesson:
    """What heads learn from: states, what they should answer, and which examples a share of the data has."""

    source: Source
    targets: Tensor  # by window
    kind: str
    ranks: Tensor | None = None  # by window; None: every head sees all examples


def polish(heads: dict[str, Head], lesson: Lesson, recipe: Recipe, tick: Tick = nothing) -> dict[str, float]:
    """Train `heads` in place; the learning rate falls linearly to zero. All heads see the same batches. Returns the
    seconds of solving, of training, and of waiting for states."""
    source, ranks = lesson.source, lesson.ranks
    before = time.perf_counter()
    _solve({label: head for label, head in heads.items() if head.solved}, lesson)
    seconds = {"solve": time.perf_counter() - before, "train": 0.0, "wait": 0.0}
    trained = {label: head for label, head in heads.items() if head.trained}
    trainer = HeadTrainer(trained, lesson.kind, lr=recipe.head_lr, seed=recipe.seed)
    if not trained:
        return seconds
    steps, done, device = source.steps(recipe.polish), 0, next(iter(heads.values())).output.weight.device
    for number in range(recipe.polish):
        before = time.perf_counter()
        for step in source.epoch(number):
            seconds["wait"] += time.perf_counter() - before
            before = time.perf_counter()
            shown = ranks[step.rows].to(device) if ranks is not None else None
            trainer.accumulate(step.states.to(device), lesson.targets[step.rows].to(device), ranks=shown)
            trainer.step(1 - done / steps)
            done += 1
            tick(1)
            seconds["train"] += time.perf_counter() - before
            before = time.perf_counter()
    return seconds


def _solve(heads: dict[str, Head], lesson: Lesson) -> None:
    """Closed-form heads find their weights, each from the share of the examples that it may see; heads that look for
    the same solution find it once."""
    found: dict[tuple[object, ...], Head] = {}
    for label, head in heads.items():
        share = parse(label).data
        same = (share, head.layers, head.views, head.normalised)
        if same in found:
            head.solve_like(found[same])
        elif share > 0:
            head.solve(_shown(lesson, share), lesson.kind)
            found[same] = head


def _shown(lesson: Lesson, share: float) -> Batches:
    def batches() -> Iterator[tuple[HiddenStates, Tensor]]:
        for step in lesson.source.plain():
            if lesson.ranks is None or share == 1:
                yield step.states, lesson.targets[step.rows]
            elif len(few := torch.nonzero(lesson.ranks[step.rows] < share).flatten()):
                yield step.states.take(few), lesson.targets[step.rows[few.numpy()]]

    return batches
