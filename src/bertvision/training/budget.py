"""`fit --budget`: how much fine-tuning fits into a time. A few batches are measured and the rest is estimated from
them; half-way through training the estimate is corrected, since the first batches are often faster."""

import math
import tempfile
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator

from bertvision.backbones.tokenise import JOINT
from bertvision.errors import UserError
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.variants import build
from bertvision.options import ALL_MARKS, OWN
from bertvision.prepare import Prepared, prepare
from bertvision.recipe import Recipe
from bertvision.states.batches import bucketed
from bertvision.states.hidden import views_of
from bertvision.training import lead, marks
from bertvision.training.loop import loop_of
from bertvision.training.planner import measure, work_of
from bertvision.types import HELD_OUT, TRAIN

RESERVE, OVERHEAD = 0.04, 5.0  # share of the budget kept back, and seconds for scoring and saving
MOST, LEAST = Fraction(3), Fraction(1, 20)  # epochs: more brings little, less is noise (docs/lab-notes)
HUNDREDTH = Fraction(1, 100)
WORTH = Fraction(1, 2)  # epochs with a lead: fewer leave it below its start
BACKWARD = 2.0  # fine-tuning takes at least this many times as long as reading; if not even that fits, skip the trial
LOOK = 0.55  # largest share of the time that heads at mark 0 may take
AGAIN = 0.5  # a second preparation takes this share of the first
FEW = 500  # examples that decide which way to read pairs is better
FEWEST = 0.05  # share of the examples: on fewer, heads learn too little
TRIALS, TRIAL_SHARE = 8, 0.02  # least steps to measure, and the share of the budget if that is more


class MarkSeconds(NamedTuple):
    """Seconds at a mark for one way to read pairs."""

    states: float  # a pass over the training examples
    heads: float  # solved and polished on these
    held_out: float  # answers to the rows that choose
    dev: float  # answers to the rows that report; independent of --limit

    @property
    def asked(self) -> float:
        return self.held_out + self.dev

    @classmethod
    def total(cls, marks: Iterable["MarkSeconds"]) -> "MarkSeconds":
        return cls(*map(sum, zip(*marks, strict=True)))


class Solving(NamedTuple):
    """Seconds of a solution in closed form: for every layer, and for every example."""

    base: float
    each: float

    def of(self, examples: int) -> float:
        return self.base + self.each * examples


def within(setting: Prepared, started: float) -> tuple[Prepared, float]:
    """The setting with the epochs, marks, reading of pairs and number of examples that the budget allows, and how many
    seconds after the start fine-tuning has to be over."""
    recipe, budget = setting.recipe, setting.recipe.budget
    assert budget is not None
    allowed, preparing = 60 * budget * (1 - RESERVE) - OVERHEAD, time.perf_counter() - started
    rows = sum(len(setting.parts[split]) for split in (TRAIN, HELD_OUT))
    solving = Solving(0.0, 0.0) if setting.shape.span else solve_seconds(setting)
    mark = mark_seconds(setting, solving)
    # The lead needs the joint states of some examples, and is solved on them.
    joint, some = mark.get(JOINT, MarkSeconds.total(mark.values())), min(rows, lead.MOST)
    start = 0.0 if recipe.lead == OWN else joint.states * some / rows + solving.of(some)
    rest = allowed - (time.perf_counter() - started)
    least = start + joint.asked + float(_worth(recipe)) * BACKWARD * joint.states
    epoch = epoch_seconds(setting) if least <= rest and recipe.freeze != "all" else math.inf
    rest = allowed - (time.perf_counter() - started)
    chosen = within_time(recipe, rest, epoch, mark, rows, start)
    if chosen.limit != recipe.limit and len(mark) > 1:  # not enough for both ways to read all pairs
        way = better_way(setting, list(mark))
        recipe, mark = replace(recipe, pairs=way), {way: mark[way]}
        rest = allowed - (time.perf_counter() - started)
        chosen = within_time(recipe, rest, epoch, mark, rows, start)
    if chosen.limit != recipe.limit:  # which is prepared once more, with libraries and weights loaded already
        chosen = within_time(recipe, rest - AGAIN * preparing, epoch, mark, rows, start)
        if chosen.limit is not None and chosen.limit < FEWEST * rows:
            raise _too_short(budget, rest - AGAIN * preparing, MarkSeconds.total(mark.values()))
    tuning = f"an epoch of fine-tuning takes {epoch:.0f} s, " if epoch < math.inf else ""
    setting.progress.say(
        f"budget {budget:g} min: {tuning}heads at a mark"
        f" {sum(MarkSeconds.total(mark.values())):.0f} s; so {chosen.epochs} epochs, marks at {chosen.marks}"
        + (f", pairs read {chosen.pairs}" if chosen.pairs != setting.recipe.pairs else "")
        + (f", {chosen.limit:,} of {rows:,} examples" if chosen.limit != recipe.limit else "")
    )
    tuned_by = allowed - _closing(recipe, Fraction(chosen.epochs), mark)
    if chosen.limit != recipe.limit:
        again = prepare(chosen, setting.progress, encoder=setting.encoder, dataset=setting.dataset)
        return replace(again, request=setting.request), tuned_by
    return replace(setting, recipe=chosen), tuned_by


def epochs_in_time(recipe: Recipe, step: int, steps_per_epoch: int, each: float, left: float) -> Fraction:
    """The epochs that can be reached if the remaining steps take `each` seconds."""
    reached = step + max(0.0, left) / each
    found = min(MOST, max(HUNDREDTH * int(100 * reached / steps_per_epoch), Fraction(step, steps_per_epoch)))
    if recipe.polish_until == ALL_MARKS:
        return found
    # The mark must not cross this limit: time was set aside for polishing there, or not.
    until = Fraction(recipe.polish_until)
    return max(found, until + HUNDREDTH) if Fraction(recipe.epochs) > until else min(found, until)


def within_time(
    recipe: Recipe, rest: float, epoch: float, mark: dict[str, MarkSeconds], rows: int, start: float = 0.0
) -> Recipe:
    """The recipe that fits into the `rest` seconds.

    If possible: heads at mark 0, then as much fine-tuning as fits. Without mark 0 if that takes too much of the time.
    Only mark 0 if less than half an epoch fits, which does more harm than good. Fewer of the `rows` examples, held-out
    ones included, if not even all of them can be read. `mark`: seconds by the way to read pairs; `start`: seconds to
    initialise the lead, which mark 0 includes.
    """
    led, ways = recipe.lead != OWN, MarkSeconds.total(mark.values())
    whole = _whole(recipe, ways)

    def epochs(left: float) -> Fraction:
        found = _epochs(left - mark.get(JOINT, ways).asked, epoch)
        return _epochs(left - _closing(recipe, found, mark), epoch)

    for look in (True, False) if led and whole <= LOOK * rest else (False,):
        share = epochs(rest - (whole if look else start))
        if recipe.freeze != "all" and share >= _worth(recipe):
            return replace(recipe, epochs=str(share), marks=f"0,{share}" if look else str(share))
    if whole <= rest:
        return replace(recipe, epochs="0", marks="0")
    part = (rest - ways.dev) / (whole - ways.dev)
    return replace(recipe, epochs="0", marks="0", limit=max(1, int(part * rows)))


def _whole(recipe: Recipe, ways: MarkSeconds) -> float:
    return sum(ways) if recipe.polish != 0 else ways.asked


def _closing(recipe: Recipe, epochs: Fraction, mark: dict[str, MarkSeconds]) -> float:
    """Seconds at a mark after so much fine-tuning: heads are polished there, or only ride along."""
    ways = MarkSeconds.total(mark.values())
    return _whole(recipe, ways) if recipe.polishes(epochs) or not recipe.polish else mark.get(JOINT, ways).asked


def _worth(recipe: Recipe) -> Fraction:
    return LEAST if recipe.lead == OWN else WORTH


def _too_short(budget: float, rest: float, ways: MarkSeconds) -> UserError:
    needed = 60 * budget - rest + FEWEST * (sum(ways) - ways.dev) + ways.dev
    return UserError(
        f"--budget {budget:g}: even with few examples this takes about {needed / 60:.1f} minutes here."
        " Allow more minutes, or set a smaller --dev-limit."
    )


def _epochs(seconds: float, epoch: float) -> Fraction:
    return min(MOST, max(Fraction(0), HUNDREDTH * int(100 * seconds / epoch)))


def better_way(setting: Prepared, ways: list[str]) -> str:
    """The way to read pairs in which the states of a few examples say more about their answers, left out one by one."""
    found = {}
    for way in ways:
        head = build(["closed-form"], setting.shape, 0, setting.encoder.device)["closed-form"]
        assert isinstance(head, ClosedForm)
        lead.solve(head, setting, way, FEW, f"pairs read {way}")
        found[way] = float(head.profile.max())
    return max(found, key=lambda way: found[way])


def epoch_seconds(setting: Prepared) -> float:
    """Fit the cost per step and per token (padding included) on a few steps of a copy."""
    copy, recipe = replace(setting, encoder=deepcopy(setting.encoder)), setting.recipe
    heads = build(setting.names, setting.shape, recipe.seed, copy.encoder.device)
    loop = loop_of(copy, heads, Accelerator(cpu=copy.encoder.device.type == "cpu", mixed_precision="no"))
    lengths, size = loop.windows.lengths, recipe.accumulate
    batches = bucketed(lengths, loop.batch_size, recipe.seed, 0)
    sizes = np.array([len(rows) * int(lengths[rows].max()) for rows in batches])
    steps = np.array([sizes[i : i + size].sum() for i in range(0, len(sizes), size)])
    assert recipe.budget is not None
    spent: list[float] = []
    before = time.perf_counter()

    def after_step(loss: float) -> None:
        nonlocal before
        spent.append(time.perf_counter() - before)
        before = time.perf_counter()

    while loop.step < len(steps) and (loop.step <= TRIALS or sum(spent) < TRIAL_SHARE * 60 * recipe.budget):
        loop.advance(min(max(1, loop.step) + TRIALS, len(steps)), len(steps), after_step)
    first = min(1, loop.step - 1)  # the first step also warms up
    took, done = np.array(spent[first:]), steps[first : loop.step]
    if len(set(done.tolist())) > 2:
        each, base = np.polyfit(done, took, 1)
        if each > 0 and base > 0:
            return float(base * len(steps) + each * steps.sum())
    return float(took.sum() * steps.sum() / done.sum())


def solve_seconds(setting: Prepared) -> Solving:
    """Of a head in closed form, from one eigendecomposition and some products of the sizes it works with."""
    width, rows = len(views_of(setting.shape.paired)) * setting.shape.features, 512
    states = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    times = [time.perf_counter()]
    moments = (states.T @ states).double()
    times.append(time.perf_counter())
    axes = torch.linalg.eigh(moments).eigenvectors
    times.append(time.perf_counter())
    states.double() @ axes
    times.append(time.perf_counter())
    first, base, second = np.diff(times)
    return Solving(setting.shape.layers * base, setting.shape.layers * (first + second) / rows)


def mark_seconds(setting: Prepared, solving: Solving) -> dict[str, MarkSeconds]:
    """For each way to read pairs."""
    found = {}
    for way in marks.ways_of(setting) or [JOINT]:
        heads = build(setting.names, setting.shape, setting.recipe.seed, setting.encoder.device)
        with tempfile.TemporaryDirectory() as folder:
            rates = measure(setting, heads, way, Path(folder))
        work = work_of(setting, heads, way)
        tokens = {split: len(part.together.tokens) for split, part in setting.encoded.items()}
        forward = work.flops() / rates.flops
        polish = work.epochs * work.windows / rates.heads if heads else 0.0
        polish += solving.of(work.windows) if work.solving else 0.0
        each = forward / tokens[TRAIN]
        dev = sum(tokens[split] for split in setting.evaluated if split != HELD_OUT)
        found[way] = MarkSeconds(forward, polish, each * tokens[HELD_OUT], each * dev)
    return found
