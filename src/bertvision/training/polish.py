"""Polish heads: several cheap epochs on the hidden states of an encoder that stays as it is, from any source."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertvision.heads.base import Batches, Head, Rows
from bertvision.heads.variants import parse
from bertvision.inference.extract import Origin, StoreOptions, write_store
from bertvision.prepare import Prepared
from bertvision.recipe import Recipe
from bertvision.states.batches import by_length, padded
from bertvision.states.passes import Tick, collect, nothing
from bertvision.states.sources import Memory, Recompute, Source, Stored, collect_tokens, token_budget
from bertvision.stores.reader import open_store
from bertvision.tasks.sampling import ranks
from bertvision.training.deadline import Turn
from bertvision.training.head_trainer import HeadTrainer
from bertvision.training.planner import choose, depth_of, estimates, measure, work_of
from bertvision.types import TRAIN

PORTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # shares of the training examples at which a portion ends, with a budget


@dataclass(frozen=True)
class Lesson:
    """What heads learn from: states, what they should answer, and which examples a share of the data has."""

    source: Source
    targets: Tensor  # by window
    kind: str
    ranks: Tensor | None = None  # by window; None: every head sees all examples
    weights: Tensor | None = None  # by window, 1 on average; None: all count the same


def polish(
    heads: dict[str, Head], lesson: Lesson, recipe: Recipe, tick: Tick = nothing, turn: Turn | None = None
) -> dict[str, float]:
    """Train `heads` in place; the learning rate falls linearly to zero, with the steps or with the time of this
    `turn`, whichever is further. All heads see the same batches. Returns the seconds of solving, of training, and of
    waiting for states."""
    source = lesson.source
    before = time.perf_counter()
    _solve({label: head for label, head in heads.items() if head.solved}, lesson)
    seconds = {"solve": time.perf_counter() - before, "train": 0.0, "wait": 0.0}
    trained = {label: head for label, head in heads.items() if head.trained}
    trainer = HeadTrainer(trained, lesson.kind, lr=recipe.head_lr, seed=recipe.seed)
    if not trained:
        return seconds
    steps, done, device = source.steps(recipe.polish), 0, next(iter(heads.values())).output.weight.device
    if turn is not None:
        turn.restart()
    for number in range(recipe.polish):
        before = time.perf_counter()
        for step in source.epoch(number):
            seconds["wait"] += time.perf_counter() - before
            before = time.perf_counter()
            ranks, weights = (
                None if values is None else values[step.rows].to(device) for values in (lesson.ranks, lesson.weights)
            )
            targets = lesson.targets[step.rows].to(device)
            trainer.accumulate(step.states.to(device), targets, ranks=ranks, weights=weights)
            passed = 0.0 if turn is None else min(turn.over(), 1.0)
            trainer.step(1 - max(done / steps, passed))
            done += 1
            tick(1)
            seconds["train"] += time.perf_counter() - before
            before = time.perf_counter()
            if passed == 1:
                return seconds
    return seconds


def _solve(heads: dict[str, Head], lesson: Lesson) -> None:
    """Closed-form heads find their weights, each from the share of the examples that it may see; heads that look for
    the same solution find it once."""
    found: dict[tuple[object, ...], Head] = {}
    for label, head in heads.items():
        share = parse(label).data
        same = (type(head), share, head.layers, head.views, head.normalised)
        if same in found:
            head.solve_like(found[same])
        elif share > 0:
            head.solve(_shown(lesson, share), lesson.kind)
            found[same] = head


def _shown(lesson: Lesson, share: float) -> Batches:
    """The rows of a share of the examples, less those of weight 0."""
    seen = torch.ones(len(lesson.targets), dtype=torch.bool)
    if lesson.ranks is not None and share < 1:
        seen &= lesson.ranks < share
    if lesson.weights is not None:
        seen &= lesson.weights > 0

    def batches() -> Iterator[Rows]:
        for step in lesson.source.plain():
            here, states, rows = seen[step.rows], step.states, step.rows
            if not here.all():
                rows, states = rows[here.numpy()], states.take(here.nonzero()[:, 0])
            if len(rows):
                yield Rows(states, lesson.targets[rows], None if lesson.weights is None else lesson.weights[rows])

    return batches


@dataclass(frozen=True)
class Supply:
    mode: str
    source: Source
    rows: np.ndarray | None = None  # the training windows, if not all of them fit in memory or in the time


@contextmanager
def supplied(
    setting: Prepared, way: str, heads: dict[str, Head], mark: str, folder: Path, turn: Turn
) -> Iterator[Supply]:
    """States of the training examples while heads are polished on them; of fewer, if time runs out in this `turn`. A
    temporary store is in `folder`."""
    label = f"{mark.replace('/', '-')}-{way}-"
    mode, seed = _mode(setting, way, heads, mark, folder, label), setting.recipe.seed
    if mode == "recompute":
        depth, encoded = depth_of(setting.shape, heads), setting.encoded[TRAIN]
        yield Supply(mode, Recompute(setting.encoder, encoded, setting.reads, seed, way=way, depth=depth))
    elif mode == "memory":
        yield _in_memory(setting, way, mark, folder, turn)
    else:
        options = StoreOptions(str(folder / (label + mode)), dtype=mode)
        there = replace(setting, recipe=replace(setting.recipe, pairs=way))
        write_store(there, options, [TRAIN], Origin("", mark), {"encoder": ""}, "bertvision fit ... --resume")
        yield Supply(mode, Stored(open_store(options.out), TRAIN, seed))
        shutil.rmtree(folder)


def _mode(setting: Prepared, way: str, heads: dict[str, Head], mark: str, folder: Path, label: str) -> str:
    """memory, fp16, int8 or recompute."""
    recipe = setting.recipe
    if recipe.mode in ("memory", "recompute"):
        return recipe.mode
    begun = [mode for mode in ("fp16", "int8") if (folder / (label + mode)).exists()]
    if begun:
        return begun[0]  # before the run was interrupted
    frozen = recipe.freeze == "all" or recipe.fractions()[-1] == 0
    # Nothing to measure: states are read once, and the next mark has other states; or time is limited, and only this
    # way of reading them can stop at any time.
    if recipe.mode == "auto" and (not frozen or recipe.budget is not None) and _fits(setting):
        return "memory"
    folder.mkdir(parents=True, exist_ok=True)
    found = estimates(work_of(setting, heads, way), measure(setting, heads, way, folder))
    chosen = choose(found, recipe.mode)
    listed = ", ".join(f"{e.mode} {e.seconds:,.0f} s{f' ({e.obstacle})' if e.obstacle else ''}" for e in found)
    setting.progress.say(f"mark {mark} ({way}): states from {chosen.mode}; estimates: {listed}")
    return chosen.mode


def _fits(setting: Prepared) -> bool:
    return not setting.shape.span or len(setting.windows[TRAIN].tokens) <= token_budget(setting.encoder)


def _in_memory(setting: Prepared, way: str, mark: str, folder: Path, turn: Turn) -> Supply:
    encoded, encoder, seed = setting.encoded[TRAIN], setting.encoder, setting.recipe.seed
    with setting.progress.bar(f"mark {mark}: states ({way})", len(encoded)) as bar:
        if not setting.shape.span:
            batches = _Batches(setting, way, turn)
            states = collect(encoder, encoded, setting.reads, way, bar.tick, batches=batches, folder=folder)
            if len(rows := batches.rows) == len(encoded):
                return Supply("memory", Memory(states, seed))
            setting.progress.say(f"budget: in the time, states of {len(rows)} of {len(encoded)} training windows")
            return Supply("memory", Memory(states.take(torch.from_numpy(rows)), seed), rows)
        tokens = collect_tokens(encoder, encoded, seed, bar.tick)
    if len(tokens) < len(encoded):
        setting.progress.say(f"polish: token states of {len(tokens)} of {len(encoded)} windows fit in memory")
    return Supply("memory", Memory(tokens, seed), tokens.rows)


class _Batches:
    """Batches of the training windows, while there is time; `rows` are the windows of those that were read.

    With a budget they come in stratified portions, so that heads can learn from any beginning of them. Each is as large
    as all before it: small portions would have more padding.
    """

    def __init__(self, setting: Prepared, way: str, turn: Turn) -> None:
        self.lengths, self.turn = setting.encoded[TRAIN].lengths(way), turn
        self.portions = np.zeros(len(self.lengths), dtype=np.int64)
        if turn.watch.limited:
            rank = ranks(setting.parts[TRAIN])[setting.windows[TRAIN].examples]
            self.portions = np.searchsorted(PORTIONS, rank, side="right")
        self.read: list[np.ndarray] = []

    @property
    def rows(self) -> np.ndarray:
        return np.sort(np.concatenate(self.read))

    def __iter__(self) -> Iterator[np.ndarray]:
        portions = [np.flatnonzero(self.portions == portion) for portion in np.unique(self.portions)]
        batches = [here[order] for here in portions for order in by_length(self.lengths[here])]
        total = padded(self.lengths, batches)
        for batch in batches:
            if self.read and self.turn.over() >= 1:
                return
            self.read.append(batch)
            yield batch
            self.turn.done(padded(self.lengths, [batch]) / total)
