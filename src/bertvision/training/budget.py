"""`fit --budget`: how much work fits into a time. A few batches are measured and the rest is estimated from them. The
plan is a list of pieces of work; `deadline` watches that they end in time."""

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
from bertvision.errors import UserError
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.variants import build
from bertvision.options import ALL_MARKS, OWN, folds_of
from bertvision.prepare import Prepared, prepare
from bertvision.recipe import Recipe
from bertvision.records import BudgetPlan
from bertvision.states.batches import bucketed, padded
from bertvision.states.hidden import views_of
from bertvision.tasks.sampling import HELD_OUT_SHARE
from bertvision.training import deadline, lead, marks, threads
from bertvision.training.deadline import LATEST, RESERVE, Clock, piece
from bertvision.training.loop import loop_of, steps_in_epoch
from bertvision.training.planner import measure, solving_rate, work_of
from bertvision.training.reported import least_share
from bertvision.types import HELD_OUT, TRAIN

JUDGING, EXIT, SAVED = 0.3, 0.3, 2e9  # seconds to score a mark and to end the process; bytes saved in a second
MOST_STRETCHED = 4.0  # times as long as on an idle machine: what takes longer waits for a disk, or is a wrong measure
MOST, LEAST = Fraction(3), Fraction(1, 20)  # epochs: more brings little, less is noise (docs/lab-notes)
ENOUGH = Fraction(2)  # epochs: folds that leave fewer are given up for more of them
STEPS, HIGHEST = 300, Fraction(10)  # few examples get so many steps, but at most so many epochs
HUNDREDTH = Fraction(1, 100)
WORTH = Fraction(1, 2)  # epochs with a lead: fewer leave it below its start
BACKWARD = 2.0  # fine-tuning takes at least this many times as long as reading; if not even that fits, skip the trial
LOOK = 0.55  # largest share of the time that heads at mark 0 may take
AGAIN = 0.15  # a second preparation takes this share of the first, in which libraries and weights are loaded
FEW = 500  # examples that decide which way to read pairs is better
FEWEST_SHARE, FEWEST = 0.05, 50  # of the examples, whichever is less: on fewer, heads learn too little
DEV = 1 / 3  # share of the time for dev answers where there is too little for all of them
TRIALS, TRIAL_SHARE = 8, 0.02  # least steps to measure, and the share of the budget if that is more
FEWEST_TRIALS, LONGEST_TRIAL = 3, 0.04  # on a slow machine, fewer steps in this share of the budget


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

    @property
    def ways(self) -> MarkSeconds:
        return MarkSeconds.total(self.mark.values())

    def times(self, trained: float = 1.0, held_out: float = 1.0, dev: float = 1.0) -> "Measured":
        mark = {way: one.times(trained, held_out, dev) for way, one in self.mark.items()}
        return replace(self, mark=mark, epoch=trained * self.epoch, start=trained * self.start)

    def without_folds(self) -> "Measured":
        """With a tenth of the examples held out instead."""
        tenth = HELD_OUT_SHARE / (1 - HELD_OUT_SHARE)
        mark = {way: one._replace(held_out=tenth * one.states) for way, one in self.mark.items()}
        return replace(self, mark=mark)

    def dev_seconds(self, rest: float) -> float:
        """For dev answers, where not everything fits."""
        dev = self.ways.dev
        return max(self.dev_share * dev, min(dev, DEV * rest))


def check(budget: float, clock: Clock) -> None:
    """Refuse at once what would be over before anything is trained."""
    needed = clock.elapsed() + _stretch(clock.elapsed(), time.process_time()) * (JUDGING + EXIT)
    if (1 + LATEST) * 60 * budget < needed:
        raise UserError(
            f"--budget {budget:g}: starting and saving alone take about {needed:.0f} s. Allow more minutes."
        )


def most_epochs(steps_per_epoch: int) -> Fraction:
    """The most that a budget trains. Of few examples an epoch has few steps: they are seen more often."""
    return max(MOST, min(HIGHEST, Fraction(math.ceil(STEPS / steps_per_epoch))))


def within(setting: Prepared, clock: Clock, also: float = 0.0) -> tuple[Prepared, BudgetPlan]:
    """The setting with the epochs, marks, folds, reading of pairs and number of examples that the budget allows, and
    the plan of the work. `also`: seconds of further work after fine-tuning that takes as long in any case."""
    recipe, budget, preparing = setting.recipe, setting.recipe.budget, clock.elapsed()
    assert budget is not None
    threads.settle()
    before = time.thread_time()
    measured = _measured(setting, 60 * budget * (1 - RESERVE), clock)
    size = sum(p.numel() * p.element_size() for p in setting.encoder.parameters())
    ending = JUDGING + EXIT + 4 * size / SAVED  # a checkpoint, and a state with weights and two moments
    closing = _stretch(clock.elapsed() - preparing, time.thread_time() - before) * ending + also

    def rest() -> float:
        return 60 * budget * (1 - RESERVE) - closing - clock.elapsed()

    chosen = within_time(recipe, rest(), measured)
    if recipe.folds != "0" and setting.request.folds is None:
        once, single = replace(recipe, folds="0"), measured.without_folds()
        other = within_time(once, rest() - AGAIN * preparing, single)
        if chosen.limit != recipe.limit or Fraction(chosen.epochs) < min(ENOUGH, Fraction(other.epochs)):
            recipe, measured, chosen = once, single, other
    if chosen.limit != recipe.limit and len(measured.mark) > 1:  # not enough for both ways to read all pairs
        way = better_way(setting, list(measured.mark))
        recipe, measured = replace(recipe, pairs=way), replace(measured, mark={way: measured.mark[way]})
        chosen = within_time(recipe, rest(), measured)
    if chosen.limit != recipe.limit:  # which are prepared once more
        left = rest() - AGAIN * preparing
        chosen = within_time(recipe, left, measured)
        if _fewer(chosen) < (fewest := math.ceil(min(FEWEST_SHARE * measured.rows, FEWEST))):
            if _fewer(within_time(recipe, left + (RESERVE + LATEST) * 60 * budget, measured)) < fewest:
                raise _too_short(budget, left, measured)
            chosen = replace(chosen, limit=fewest)
        share = _fewer(chosen) / measured.rows
        dev = measured.dev_seconds(left) / measured.ways.dev if measured.ways.dev else 1.0
        measured = replace(measured.times(share, share, dev), dev_share=min(1.0, measured.dev_share / dev))
    setting.progress.say(_summary(setting, chosen, measured))
    tuned_by = rest() + clock.elapsed() - _closing(chosen, Fraction(chosen.epochs), measured)
    plan = BudgetPlan(chosen.epochs, tuned_by, work=pieces(chosen, measured, closing))
    if (chosen.limit, chosen.folds) != (setting.recipe.limit, setting.recipe.folds):
        again = prepare(chosen, setting.progress, encoder=setting.encoder, dataset=setting.dataset)
        return replace(again, request=setting.request), plan
    return replace(setting, recipe=chosen), plan


def _fewer(chosen: Recipe) -> int:
    assert chosen.limit is not None
    return chosen.limit


def _stretch(wall: float, processor: float) -> float:
    """Seconds that pass in one of our own on a processor, which others use too."""
    return min(max(1.0, wall / max(processor, 1e-9)), MOST_STRETCHED)


def _measured(setting: Prepared, allowed: float, clock: Clock) -> Measured:
    recipe, rows = setting.recipe, len(setting.parts[TRAIN])
    rows += len(setting.parts[HELD_OUT]) if recipe.folds == "0" else 0  # with folds, they are trained on too
    solved = Solving(0.0, 0.0) if setting.shape.span else solve_seconds(setting)
    mark = mark_seconds(setting, solved)
    # The lead needs the joint states of some examples, and is solved on them.
    joint, some = mark.get(JOINT, MarkSeconds.total(mark.values())), min(rows, lead.MOST)
    start = 0.0 if recipe.lead == OWN else joint.states * some / rows + solved.of(some)
    least = start + joint.asked + float(_worth(recipe)) * BACKWARD * joint.states
    tuned = recipe.freeze != "all" and least <= allowed - clock.elapsed()
    epoch = epoch_seconds(setting) if tuned else math.inf
    return Measured(
        epoch, mark, rows, start, most_epochs(steps_in_epoch(len(setting.windows[TRAIN]), recipe)), least_share(setting)
    )


def _summary(setting: Prepared, chosen: Recipe, measured: Measured) -> str:
    asked = setting.recipe
    tuning = f"an epoch of fine-tuning takes {measured.epoch:.0f} s, " if measured.epoch < math.inf else ""
    return (
        f"budget {chosen.budget:g} min: {tuning}heads at a mark {sum(measured.ways):.0f} s;"
        f" so {chosen.epochs} epochs, marks at {chosen.marks}"
        + (f", pairs read {chosen.pairs}" if chosen.pairs != asked.pairs else "")
        + (", no folds" if chosen.folds != asked.folds else "")
        + (f", {chosen.limit:,} examples" if chosen.limit != asked.limit else "")
    )


def within_time(recipe: Recipe, rest: float, measured: Measured) -> Recipe:
    """The recipe that fits into the `rest` seconds.

    If possible: heads at mark 0, then as much fine-tuning as fits. Without mark 0 if that takes too much of the time.
    Only mark 0 if less than half an epoch fits, which does more harm than good. Fewer examples if not even all of them
    can be read.
    """
    used, count = folds_of(recipe.folds)
    every = measured.times(1 + (used - used / count if count else 0))  # a fold is trained on all the others
    led, ways = recipe.lead != OWN, every.ways
    whole = _whole(recipe, ways)

    def epochs(left: float) -> Fraction:
        found = _epochs(left - every.mark.get(JOINT, ways).asked, every)
        return _epochs(left - _closing(recipe, found, every), every)

    for look in (True, False) if led and whole <= LOOK * rest else (False,):
        share = epochs(rest - (whole if look else every.start))
        if recipe.freeze != "all" and share >= _worth(recipe):
            return replace(recipe, epochs=str(share), marks=f"0,{share}" if look else str(share))
    if whole <= rest:
        return replace(recipe, epochs="0", marks="0")
    part = (rest - every.dev_seconds(rest)) / (whole - ways.dev)
    return replace(recipe, epochs="0", marks="0", limit=max(1, int(part * measured.rows)))


def pieces(recipe: Recipe, measured: Measured, closing: float) -> dict[str, float]:
    """The seconds of every piece of work of a run, in order."""
    used, count = folds_of(recipe.folds)
    work: dict[str, float] = {}
    for number in range(used):
        part = measured.times(1 - 1 / count, 1 / used, 0.0)
        work |= {deadline.fold(number) + name: seconds for name, seconds in _pieces(recipe, part).items()}
    final = _pieces(recipe, measured.times(held_out=0.0 if used else 1.0))
    del final[piece(deadline.RECORD, recipe.fractions()[-1])]  # which is a part of closing
    return work | final | {deadline.CLOSING: closing}


def _pieces(recipe: Recipe, measured: Measured) -> dict[str, float]:
    work: dict[str, float] = {}
    for mark in recipe.fractions():
        if mark:
            work |= {piece(deadline.LEAD, mark): measured.start} if not work and recipe.lead != OWN else {}
            work[piece(deadline.TUNE, mark)] = float(mark) * measured.epoch
        polished = [*measured.mark] if recipe.polishes(mark) else []
        for way in dict.fromkeys([JOINT, *polished]):
            seconds = measured.mark.get(way, measured.ways)
            if way in polished:
                work |= {
                    piece(deadline.STATES, mark, way): seconds.states,
                    piece(deadline.HEADS, mark, way): seconds.heads,
                }
            work[piece(deadline.ANSWERS, mark, way)] = seconds.held_out + measured.dev_share * seconds.dev
            work[piece(deadline.DEV, mark, way)] = (1 - measured.dev_share) * seconds.dev
        work[piece(deadline.RECORD, mark)] = JUDGING
    return work


def _whole(recipe: Recipe, ways: MarkSeconds) -> float:
    return sum(ways) if recipe.polish != 0 else ways.asked


def _closing(recipe: Recipe, epochs: Fraction, measured: Measured) -> float:
    """Seconds at a mark after so much fine-tuning: heads are polished there, or only ride along."""
    polished = recipe.polishes(epochs) or not recipe.polish
    return _whole(recipe, measured.ways) if polished else measured.mark.get(JOINT, measured.ways).asked


def _worth(recipe: Recipe) -> Fraction:
    return LEAST if recipe.lead == OWN else WORTH


def worth_tuning(recipe: Recipe, epochs: float) -> bool:
    """Is it worth to begin, at a mark where time has become short? The held-out rows decide later what ships."""
    return epochs >= _worth(recipe) / 2


def ending_at(recipe: Recipe, mark: Fraction) -> Recipe:
    """The recipe of a run that has been fine-tuned up to this mark, where the clock stopped it."""
    polished, planned = recipe.polishes(mark), recipe.polishes(Fraction(recipe.epochs))
    marks = ",".join(map(str, sorted({*recipe.fractions()[:-1], mark})))
    # Only if it was planned is there time to polish.
    return replace(
        recipe, epochs=str(mark), marks=marks, polish_until="0" if polished > planned else recipe.polish_until
    )


def last_mark(recipe: Recipe, steps_per_epoch: int) -> Fraction:
    """How far fine-tuning may go if there is time. It must not cross the limit of polishing, for which time is set
    aside; and with folds all fits go equally far."""
    planned = Fraction(recipe.epochs)
    if recipe.folds != "0" or not planned:
        return planned
    most = max(planned, most_epochs(steps_per_epoch))
    polished = recipe.polish_until != ALL_MARKS and recipe.polishes(planned)
    return min(most, Fraction(recipe.polish_until)) if polished else most


def _too_short(budget: float, rest: float, measured: Measured) -> UserError:
    ways = measured.ways
    few = min(FEWEST_SHARE, FEWEST / measured.rows) * (sum(ways) - ways.dev)
    needed = 60 * budget - rest + few + measured.dev_seconds(2 * few)
    return UserError(
        f"--budget {budget:g}: even with few examples this takes about {needed / 60:.1f} minutes here."
        " Allow more minutes, or set a smaller --dev-limit."
    )


def _epochs(seconds: float, measured: Measured) -> Fraction:
    return min(measured.most, max(Fraction(0), HUNDREDTH * int(100 * seconds / measured.epoch)))


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
    states = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    times = [time.perf_counter()]
    moments = (states.T @ states).double()
    times.append(time.perf_counter())
    axes = torch.linalg.eigh(moments).eigenvectors
    times.append(time.perf_counter())
    states.double() @ axes
    times.append(time.perf_counter())
    first, base, second = np.diff(times)
    return Solving(setting.shape.layers * base, setting.shape.layers * (first + second) / rows + solving_rate(setting))


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
        found[way] = MarkSeconds(forward, polish, each * tokens[HELD_OUT], each * dev)
    return found
