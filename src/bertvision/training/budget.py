"""`fit --budget`: how much fine-tuning a time allows. A few batches are measured, the rest is reckoned from them; and
half-way through, once more from what is done, since the first batches are often faster than those that follow."""

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

from bertvision.errors import UserError
from bertvision.heads.closed_form import ClosedForm
from bertvision.options import ALL_MARKS, OWN
from bertvision.recipe import Recipe
from bertvision.states.hidden import views_of
from bertvision.training import lead, marks
from bertvision.training.batches import bucketed
from bertvision.training.heads import build
from bertvision.training.loop import loop_of
from bertvision.training.planner import measure, work_of
from bertvision.training.setting import Setting, prepare
from bertvision.types import HELD_OUT

RESERVE, OVERHEAD = 0.04, 5.0  # of the budget, for what was reckoned too low; seconds, for scoring and saving
MOST, LEAST = Fraction(3), Fraction(1, 20)  # epochs: more brings little, less is noise (docs/results.md)
HUNDREDTH = Fraction(1, 100)
WORTH = Fraction(1, 2)  # epochs through a lead: fewer leave it below its start
BACKWARD = 2.0  # times as long as reading is what fine-tuning takes at least: where not even that fits, no trial of it
LOOK = 0.55  # of the rest that heads on the encoder as it is may take before fine-tuning
AGAIN = 0.5  # of the first preparation is what a second one takes
FEW = 500  # examples that tell which way to read pairs is the better one
FEWEST = 0.05  # of the examples: on less, heads learn too little to be worth the wait
DECIDED = ("epochs", "marks", "pairs", "limit", "batch_size")  # what follows from the budget, or did before it
TRIALS, TRIAL_SHARE = 8, 0.02  # steps that are measured at least, and for how much of the budget if that is more


class Mark(NamedTuple):
    """Seconds at a mark for one way to read pairs."""

    states: float  # a pass over the training examples
    heads: float  # solved and polished on these
    held_out: float  # answers to the rows that choose
    dev: float  # answers to the rows that report: as many however few are trained on

    @property
    def asked(self) -> float:
        return self.held_out + self.dev

    @classmethod
    def total(cls, marks: Iterable["Mark"]) -> "Mark":
        return cls(*map(sum, zip(*marks, strict=True)))


class Solving(NamedTuple):
    """Seconds of a solution in closed form: for every layer, and for every example."""

    base: float
    each: float

    def of(self, examples: int) -> float:
        return self.base + self.each * examples


def within(setting: Setting, started: float) -> tuple[Setting, float]:
    """The setting with the epochs, marks, reading of pairs and number of examples that the budget allows, and how many
    seconds after the start fine-tuning has to be over."""
    options, budget = setting.options, setting.options.budget
    assert budget is not None
    allowed, preparing = 60 * budget * (1 - RESERVE) - OVERHEAD, time.perf_counter() - started
    rows = sum(len(setting.parts[split]) for split in ("train", HELD_OUT))
    solving = Solving(0.0, 0.0) if setting.shape.span else solve_seconds(setting)
    mark = mark_seconds(setting, solving)
    # The lead needs the joint states of some examples, and is solved on them.
    joint, some = mark.get("joint", Mark.total(mark.values())), min(rows, lead.MOST)
    start = 0.0 if options.lead == OWN else joint.states * some / rows + solving.of(some)
    rest = allowed - (time.perf_counter() - started)
    least = start + joint.asked + float(_worth(options)) * BACKWARD * joint.states
    epoch = epoch_seconds(setting) if least <= rest and options.freeze != "all" else math.inf
    rest = allowed - (time.perf_counter() - started)
    chosen = recipe(options, rest, epoch, mark, rows, start)
    if chosen.limit != options.limit and len(mark) > 1:  # not enough for both ways to read all pairs
        way = better_way(setting, list(mark))
        options, mark = replace(options, pairs=way), {way: mark[way]}
        rest = allowed - (time.perf_counter() - started)
        chosen = recipe(options, rest, epoch, mark, rows, start)
    if chosen.limit != options.limit:  # which is prepared once more, with libraries and weights loaded already
        chosen = recipe(options, rest - AGAIN * preparing, epoch, mark, rows, start)
        if chosen.limit is not None and chosen.limit < FEWEST * rows:
            raise _too_short(budget, rest - AGAIN * preparing, Mark.total(mark.values()))
    tuning = f"an epoch of fine-tuning takes {epoch:.0f} s, " if epoch < math.inf else ""
    setting.progress.say(
        f"budget {budget:g} min: {tuning}heads at a mark"
        f" {sum(Mark.total(mark.values())):.0f} s; so {chosen.epochs} epochs, marks at {chosen.marks}"
        + (f", pairs read {chosen.pairs}" if chosen.pairs != setting.options.pairs else "")
        + (f", {chosen.limit:,} of {rows:,} examples" if chosen.limit != options.limit else "")
    )
    tuned_by = allowed - _closing(options, Fraction(chosen.epochs), mark)
    if chosen.limit != options.limit:
        return prepare(chosen, setting.progress, setting.encoder), tuned_by
    return replace(setting, options=chosen), tuned_by


def epochs_in_time(options: Recipe, step: int, steps_per_epoch: int, each: float, left: float) -> Fraction:
    """Instead of those that were planned, what can be reached if steps go on to take `each` seconds."""
    reached = step + max(0.0, left) / each
    found = min(MOST, max(HUNDREDTH * int(100 * reached / steps_per_epoch), Fraction(step, steps_per_epoch)))
    if options.polish_until == ALL_MARKS:
        return found
    # A mark stays on its side of this: heads are polished there or not, and so much time was set aside.
    until = Fraction(options.polish_until)
    return max(found, until + HUNDREDTH) if Fraction(options.epochs) > until else min(found, until)


def recipe(options: Recipe, rest: float, epoch: float, mark: dict[str, Mark], rows: int, start: float = 0.0) -> Recipe:
    """A look at the encoder as it is and then as much fine-tuning as fits; only the latter, where a look takes too much
    of the `rest` seconds; only the former, where less than half an epoch fits: so little does more harm than good.
    Fewer of the `rows` examples, held-out ones among them, where not even all can be read. `mark`: seconds by the way
    to read pairs; `start`: those of the lead's start, which a look gives along."""
    led, ways = options.lead != OWN, Mark.total(mark.values())
    whole = _whole(options, ways)

    def epochs(left: float) -> Fraction:
        found = _epochs(left - mark.get("joint", ways).asked, epoch)
        return _epochs(left - _closing(options, found, mark), epoch)

    for look in (True, False) if led and whole <= LOOK * rest else (False,):
        share = epochs(rest - (whole if look else start))
        if options.freeze != "all" and share >= _worth(options):
            return replace(options, epochs=str(share), marks=f"0,{share}" if look else str(share))
    if whole <= rest:
        return replace(options, epochs="0", marks="0")
    part = (rest - ways.dev) / (whole - ways.dev)
    return replace(options, epochs="0", marks="0", limit=max(1, int(part * rows)))


def _whole(options: Recipe, ways: Mark) -> float:
    return sum(ways) if options.polish != 0 else ways.asked


def _closing(options: Recipe, epochs: Fraction, mark: dict[str, Mark]) -> float:
    """Seconds at a mark after so much fine-tuning: heads are polished there, or only ride along."""
    ways = Mark.total(mark.values())
    return _whole(options, ways) if options.polishes(epochs) or not options.polish else mark.get("joint", ways).asked


def _worth(options: Recipe) -> Fraction:
    return LEAST if options.lead == OWN else WORTH


def _too_short(budget: float, rest: float, ways: Mark) -> UserError:
    needed = 60 * budget - rest + FEWEST * (sum(ways) - ways.dev) + ways.dev
    return UserError(
        f"--budget {budget:g}: even with few examples this takes about {needed / 60:.1f} minutes here."
        " Allow more, or --dev-limit the examples that are scored."
    )


def _epochs(seconds: float, epoch: float) -> Fraction:
    return min(MOST, max(Fraction(0), HUNDREDTH * int(100 * seconds / epoch)))


def better_way(setting: Setting, ways: list[str]) -> str:
    """The way to read pairs in which the states of a few examples say more about their answers, left out one by one."""
    found = {}
    for way in ways:
        head = build(["closed-form"], setting.shape, 0, setting.encoder.device)["closed-form"]
        assert isinstance(head, ClosedForm)
        lead.solve(head, setting, way, FEW, f"pairs read {way}")
        found[way] = float(head.profile.max())
    return max(found, key=lambda way: found[way])


def epoch_seconds(setting: Setting) -> float:
    """From a few steps of a copy: so much for each step, and so much for each token in it, padding included."""
    copy, options = replace(setting, encoder=deepcopy(setting.encoder)), setting.options
    heads = build(setting.names, setting.shape, options.seed, copy.encoder.device, copy.encoder.top)
    loop = loop_of(copy, heads, Accelerator(cpu=copy.encoder.device.type == "cpu", mixed_precision="no"))
    lengths, size = loop.windows.lengths, options.accumulate
    batches = bucketed(lengths, loop.batch_size, options.seed, 0)
    sizes = np.array([len(rows) * int(lengths[rows].max()) for rows in batches])
    steps = np.array([sizes[i : i + size].sum() for i in range(0, len(sizes), size)])
    assert options.budget is not None
    spent: list[float] = []
    before = time.perf_counter()

    def after_step(loss: float) -> None:
        nonlocal before
        spent.append(time.perf_counter() - before)
        before = time.perf_counter()

    while loop.step < len(steps) and (loop.step <= TRIALS or sum(spent) < TRIAL_SHARE * 60 * options.budget):
        loop.advance(min(max(1, loop.step) + TRIALS, len(steps)), len(steps), after_step)
    first = min(1, loop.step - 1)  # the first step also warms up
    took, done = np.array(spent[first:]), steps[first : loop.step]
    if len(set(done.tolist())) > 2:
        each, base = np.polyfit(done, took, 1)
        if each > 0 and base > 0:
            return float(base * len(steps) + each * steps.sum())
    return float(took.sum() * steps.sum() / done.sum())


def solve_seconds(setting: Setting) -> Solving:
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


def mark_seconds(setting: Setting, solving: Solving) -> dict[str, Mark]:
    """For each way to read pairs."""
    found = {}
    for way in marks.ways_of(setting) or ["joint"]:
        heads = build(setting.names, setting.shape, setting.options.seed, setting.encoder.device, setting.encoder.top)
        if way == "separate":
            heads = {name: head for name, head in heads.items() if not head.sequences}
        with tempfile.TemporaryDirectory() as folder:
            rates = measure(setting, heads, way, Path(folder))
        work = work_of(setting, heads, way)
        tokens = {split: len(part.together.tokens) for split, part in setting.encoded.items()}
        forward = work.flops() / rates.flops
        polish = work.epochs * work.windows / rates.heads if heads else 0.0
        polish += solving.of(work.windows) if work.solving else 0.0
        each = forward / tokens["train"]
        dev = sum(tokens[split] for split in setting.evaluated if split != HELD_OUT)
        found[way] = Mark(forward, polish, each * tokens[HELD_OUT], each * dev)
    return found
