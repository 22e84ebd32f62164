"""How long the work of a budget takes: a few batches are measured and the rest is estimated from them."""

import math
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator

from bertvision.backbones.tokenise import JOINT
from bertvision.heads.variants import build
from bertvision.options import OWN, folds_of
from bertvision.prepare import Prepared
from bertvision.recipe import Recipe
from bertvision.states.batches import bucketed, padded
from bertvision.states.hidden import views_of
from bertvision.tasks.sampling import HELD_OUT_SHARE
from bertvision.training import lead, marks, shared
from bertvision.training.deadline import Clock
from bertvision.training.loop import loop_of, steps_in_epoch
from bertvision.training.planner import measure, solving_rate, work_of
from bertvision.training.reported import least_share
from bertvision.types import HELD_OUT, TRAIN

MOST, LEAST = Fraction(3), Fraction(1, 20)  # epochs: more brings little, less is noise (docs/lab-notes)
STEPS, HIGHEST = 300, Fraction(10)  # few examples get so many steps, but at most so many epochs
BACKWARD = 2.0  # fine-tuning takes at least this many times as long as reading; if not even that fits, skip the trial
DEV = 1 / 3  # share of the time for dev answers where there is too little for all of them
TRIALS, TRIAL_SHARE = 8, 0.02  # least steps to measure, and the share of the budget if that is more
FEWEST_TRIALS, LONGEST_TRIAL = 3, 0.04  # on a slow machine, fewer steps in this share of the budget
WORTH = Fraction(1, 2)  # epochs with a lead: fewer leave it below its start


class MarkSeconds(NamedTuple):
    """Seconds at a mark for one way to read pairs."""

    states: float  # a pass over the training examples
    heads: float  # solved and polished on these
    held_out: float  # answers to the rows that choose
    dev: float  # answers to the rows that report; independent of --limit

    @property
    def asked(self) -> float:
        return self.held_out + self.dev

    def times(self, trained: float, held_out: float, dev: float) -> "MarkSeconds":
        return MarkSeconds(trained * self.states, trained * self.heads, held_out * self.held_out, dev * self.dev)

    @classmethod
    def total(cls, marks: Iterable["MarkSeconds"]) -> "MarkSeconds":
        return cls(*map(sum, zip(*marks, strict=True)))


class Solving(NamedTuple):
    """Seconds of a solution in closed form: for every layer, and for every example."""

    base: float
    each: float

    def of(self, examples: int) -> float:
        return self.base + self.each * examples


@dataclass(frozen=True)
class Measured:
    """How long everything takes that a plan is made of, in seconds."""

    epoch: float
    mark: dict[str, MarkSeconds]  # by the way to read pairs
    rows: int  # held-out ones included
    start: float = 0.0  # to initialise the lead, which mark 0 includes
    most: Fraction = MOST  # epochs
    dev_share: float = 1.0  # the least of the dev rows that a run may report on
    shared: bool = True  # do all folds read the same states at mark 0?
    words: float = 0.0  # of each fold
    led: bool = True  # is the lead initialised from the heads of mark 0?

    @property
    def ways(self) -> MarkSeconds:
        return MarkSeconds.total(self.mark.values())

    def times(self, trained: float = 1.0, held_out: float = 1.0, dev: float = 1.0) -> "Measured":
        mark = {way: one.times(trained, held_out, dev) for way, one in self.mark.items()}
        return replace(self, mark=mark, epoch=trained * self.epoch, start=trained * self.start)

    def of_all(self, folds: str) -> "Measured":
        """All fits at a mark: with folds, each is trained on all the others and answers the rows left out."""
        used, count = folds_of(folds)
        return self.times(1 + used - used / count, used / count) if count else self

    def at_first(self, reading: float, trained: float, held_out: float, dev: float = 1.0) -> "Measured":
        """Fits at mark 0 with folds: if they share states, these are read once, held-out rows among them."""
        if not self.shared:
            return self.times(trained, held_out, dev)
        mark = {
            way: MarkSeconds(reading * one.states, trained * one.heads, 0.0, dev * one.dev)
            for way, one in self.mark.items()
        }
        return replace(self, mark=mark)

    def without_folds(self) -> "Measured":
        """With a tenth of the examples held out instead."""
        tenth = HELD_OUT_SHARE / (1 - HELD_OUT_SHARE)
        mark = {way: one._replace(held_out=tenth * one.states) for way, one in self.mark.items()}
        return replace(self, mark=mark)

    def dev_seconds(self, rest: float) -> float:
        """For dev answers, where not everything fits."""
        dev = self.ways.dev
        return max(self.dev_share * dev, min(dev, DEV * rest))


def most_epochs(steps_per_epoch: int) -> Fraction:
    """The most that a budget trains. Of few examples an epoch has few steps: they are seen more often."""
    return max(MOST, min(HIGHEST, Fraction(math.ceil(STEPS / steps_per_epoch))))


def worth(recipe: Recipe) -> Fraction:
    return LEAST if recipe.lead == OWN else WORTH


def measured(setting: Prepared, allowed: float, clock: Clock) -> Measured:
    """Of this setting, if all must be done before the clock shows `allowed` seconds."""
    recipe, rows = setting.recipe, len(setting.parts[TRAIN])
    rows += len(setting.parts[HELD_OUT]) if recipe.folds == "0" else 0  # with folds, they are trained on too
    solved = Solving(0.0, 0.0) if setting.shape.span else solve_seconds(setting)
    mark = mark_seconds(setting, solved)
    # The lead needs the joint states of some examples, and is solved on them.
    joint, some = mark.get(JOINT, MarkSeconds.total(mark.values())), min(rows, lead.MOST)
    start = 0.0 if recipe.lead == OWN else joint.states * some / rows + solved.of(some)
    least = start + joint.asked + float(worth(recipe)) * BACKWARD * joint.states
    tuned = recipe.freeze != "all" and least <= allowed - clock.elapsed()
    epoch = epoch_seconds(setting) if tuned else math.inf
    return Measured(
        epoch,
        mark,
        rows,
        start,
        most=most_epochs(steps_in_epoch(len(setting.windows[TRAIN]), recipe)),
        dev_share=least_share(setting),
        shared=shared.fits(setting),
        led=_led(setting),
    )


def _led(setting: Prepared) -> bool:
    """Is the lead among the heads that are solved at mark 0?"""
    name = setting.recipe.lead
    if name not in setting.names or JOINT not in marks.ways_of(setting):
        return False
    return not build([name], setting.shape, 0)[name].trained


def epoch_seconds(setting: Prepared) -> float:
    """Fit the cost per step and per token (padding included) on a few steps of a copy."""
    copy, recipe = replace(setting, encoder=deepcopy(setting.encoder)), setting.recipe
    heads = build(setting.names, setting.shape, recipe.seed, copy.encoder.device)
    loop = loop_of(copy, heads, Accelerator(cpu=copy.encoder.device.type == "cpu", mixed_precision="no"))
    lengths, size = loop.windows.lengths, recipe.accumulate
    batches = bucketed(lengths, loop.batch_size, recipe.seed, 0)
    steps = np.array([padded(lengths, batches[i : i + size]) for i in range(0, len(batches), size)])
    assert recipe.budget is not None
    spent, seconds, before = list[float](), 60 * recipe.budget, time.perf_counter()

    def after_step(loss: float) -> None:
        nonlocal before
        spent.append(time.perf_counter() - before)
        before = time.perf_counter()

    def enough() -> bool:
        fewest, share = (TRIALS, TRIAL_SHARE) if sum(spent) < LONGEST_TRIAL * seconds else (FEWEST_TRIALS, 0.0)
        return loop.step > fewest and sum(spent) >= share * seconds

    loop.advance(len(steps), len(steps), after_step, enough)
    first = min(1, loop.step - 1)  # the first step also warms up
    took, done = np.array(spent[first:]), steps[first : loop.step]
    if len(set(done.tolist())) > 2:
        each, base = np.polyfit(done, took, 1)
        if each > 0 and base > 0:
            return float(base * len(steps) + each * steps.sum())
    return float(took.sum() * steps.sum() / done.sum())


def solve_seconds(setting: Prepared) -> Solving:
    """Of heads without gradients, from an eigendecomposition and products of these sizes, and from a few rows."""
    width, rows = len(views_of(setting.shape.paired)) * setting.shape.features, 512
    size = min(width, len(setting.windows[TRAIN]))  # of fewer rows than features, their products are decomposed
    states = torch.randn(rows, size, generator=torch.Generator().manual_seed(0))
    times = [time.perf_counter()]
    moments = (states.T @ states).double()
    times.append(time.perf_counter())
    axes = torch.linalg.eigh(moments).eigenvectors
    times.append(time.perf_counter())
    states.double() @ axes
    times.append(time.perf_counter())
    first, base, second = np.diff(times)
    each = (first + second) * (width / size) / rows
    return Solving(setting.shape.layers * base, setting.shape.layers * each + solving_rate(setting))


def mark_seconds(setting: Prepared, solved: Solving) -> dict[str, MarkSeconds]:
    """For each way to read pairs."""
    found = {}
    for way in marks.ways_of(setting) or [JOINT]:
        heads = build(setting.names, setting.shape, setting.recipe.seed, setting.encoder.device)
        # No file is written: that can take minutes on a busy disk.
        rates = measure(setting, heads, way, None, LONGEST_TRIAL * 60 * (setting.recipe.budget or 1))
        work = work_of(setting, heads, way)
        tokens = {split: len(part.together.tokens) for split, part in setting.encoded.items()}
        forward = work.flops() / rates.flops
        polish = work.epochs * work.windows / rates.heads if heads else 0.0
        polish += solved.of(work.windows) if work.solving else 0.0
        each = forward / tokens[TRAIN]
        dev = sum(tokens[split] for split in setting.evaluated if split != HELD_OUT)
        held_out = tokens[HELD_OUT if setting.recipe.folds == "0" else TRAIN]  # with folds: of all of them
        found[way] = MarkSeconds(forward, polish, each * held_out, each * dev)
    return found
