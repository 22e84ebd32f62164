"""`fit --budget`: how much fine-tuning a time allows. A few batches are measured, the rest is reckoned from them."""

import tempfile
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
from accelerate import Accelerator

from bertvision.errors import UserError
from bertvision.options import FitOptions
from bertvision.training import lead, marks
from bertvision.training.batches import bucketed
from bertvision.training.heads import build
from bertvision.training.loop import loop_of
from bertvision.training.planner import measure, work_of
from bertvision.training.setting import HELD_OUT, OWN, Setting, prepare

RESERVE = 0.06  # of the budget, for scoring, saving, and what was reckoned too low
MOST, LEAST = Fraction(3), Fraction(1, 20)  # epochs: more brings little, less is noise (docs/results.md)
WORTH = Fraction(1, 2)  # epochs for which heads on the encoder as it is are given up
LOOK = 0.55  # of the rest that heads on the encoder as it is may take before fine-tuning
FEWEST = 0.05  # of the examples: on less, heads learn too little to be worth the wait
DECIDED = ("epochs", "marks", "limit")  # what follows from the budget
TRIALS = 8  # steps that are measured, after one that is not


class Mark(NamedTuple):
    """Seconds at a mark for one way to read pairs."""

    train: float  # states of the training examples, and the polish on them
    asked: float  # answers to what is scored

    @classmethod
    def total(cls, marks: Iterable["Mark"]) -> "Mark":
        return cls(*map(sum, zip(*marks, strict=True)))


def within(setting: Setting, started: float) -> Setting:
    """The setting with the epochs, marks and number of examples that the budget allows."""
    options = setting.options
    assert options.budget is not None
    if (options.epochs, options.marks) != (FitOptions.epochs, None):
        raise UserError("--budget decides about --epochs and --marks: leave these out.")
    preparing = time.perf_counter() - started
    epoch, mark = epoch_seconds(setting), mark_seconds(setting)
    rest = 60 * options.budget * (1 - RESERVE) - (time.perf_counter() - started)
    rows = sum(len(setting.encoded[split]) for split in ("train", HELD_OUT))
    # The lead needs the joint states of some examples, no more than those that heads are polished on.
    joint = mark.get("joint", Mark.total(mark.values()))
    start = 0.0 if options.lead == OWN else joint.train * min(1, lead.MOST / rows)
    chosen = recipe(options, rest, epoch, mark, rows, start)
    if chosen.limit != options.limit:  # which is prepared once more
        chosen = recipe(options, rest - preparing, epoch, mark, rows, start)
    setting.progress.say(
        f"budget {options.budget:g} min: an epoch of fine-tuning takes {epoch:.0f} s, heads at a mark"
        f" {sum(Mark.total(mark.values())):.0f} s; so {chosen.epochs} epochs, marks at {chosen.marks}"
        + (f", {chosen.limit:,} of {rows:,} examples" if chosen.limit != options.limit else "")
    )
    if chosen.limit != options.limit:
        return prepare(chosen, setting.progress)
    return replace(setting, options=chosen)


def recipe(
    options: FitOptions, rest: float, epoch: float, mark: dict[str, Mark], rows: int, start: float = 0.0
) -> FitOptions:
    """A look at the encoder as it is, if it leaves about half of the `rest` seconds to fine-tune; else as much
    fine-tuning as fits without it, if that is worth it; else heads on the encoder as it is, on fewer of the `rows`
    examples where not all can be read. `mark`: seconds of a mark, by the way to read pairs; `start`: of the lead's
    start, which a look gives along."""
    budget, until = options.budget, options.polish_until
    assert budget is not None
    ways = Mark.total(mark.values())
    whole = sum(ways)
    look = until is not None and whole <= LOOK * rest
    last = whole if until is None else mark.get("joint", ways).asked  # with a lead, nothing is polished at the end
    left = rest - last - (whole if look else start)
    share = min(MOST, Fraction(int(100 * left / epoch), 100))
    least = LEAST if until is None else Fraction(until) if look else WORTH
    if options.freeze != "all" and share > least:
        return replace(options, epochs=str(share), marks=f"0,{share}" if look else str(share))
    if whole <= rest:
        return replace(options, epochs="0", marks="0")
    part = (rest - ways.asked) / ways.train
    if part < FEWEST:
        needed = 60 * budget + FEWEST * ways.train + ways.asked - rest
        raise UserError(
            f"--budget {budget:g}: even with few examples this takes about {needed / 60:.1f} minutes here."
            " Allow more, or --dev-limit the examples that are scored."
        )
    return replace(options, epochs="0", marks="0", limit=int(part * rows))


def epoch_seconds(setting: Setting) -> float:
    """From a few steps of a copy: so much for each step, and so much for each token in it, padding included."""
    copy, options = replace(setting, encoder=deepcopy(setting.encoder)), setting.options
    heads = build(setting.names, setting.shape, options.seed, copy.encoder.device, copy.encoder.top)
    loop = loop_of(copy, heads, Accelerator(cpu=copy.encoder.device.type == "cpu", mixed_precision="no"))
    lengths, size = loop.windows.lengths, options.accumulate
    batches = bucketed(lengths, options.batch_size, options.seed, 0)
    sizes = np.array([len(rows) * int(lengths[rows].max()) for rows in batches])
    steps = np.array([sizes[i : i + size].sum() for i in range(0, len(sizes), size)])
    ends = [time.perf_counter()]
    count = min(1 + TRIALS, len(steps))
    loop.advance(count, count, lambda loss: ends.append(time.perf_counter()))
    first = min(1, count - 1)  # the first step also warms up
    spent, done = np.diff(ends)[first:], steps[first:count]
    if len(set(done.tolist())) > 2:
        each, base = np.polyfit(done, spent, 1)
        if each > 0 and base > 0:
            return float(base * len(steps) + each * steps.sum())
    return float(spent.sum() * steps.sum() / done.sum())


def mark_seconds(setting: Setting) -> dict[str, Mark]:
    """For each way to read pairs: states of train, polish, and answers to what is scored."""
    found = {}
    for way in marks.ways_of(setting) or ["joint"]:
        heads = build(setting.names, setting.shape, setting.options.seed, setting.encoder.device, setting.encoder.top)
        if way == "separate":
            heads = {name: head for name, head in heads.items() if not head.sequences}
        with tempfile.TemporaryDirectory() as folder:
            rates = measure(setting, heads, way, Path(folder))
        work = work_of(setting, heads, way)
        asked = sum(len(setting.encoded[split].together.tokens) for split in setting.evaluated)
        forward = work.flops() / rates.flops
        polish = work.epochs * work.windows / rates.heads if heads else 0.0
        polish += rates.solve + work.solve_flops() / rates.flops
        found[way] = Mark(forward + polish, forward * asked / len(setting.encoded["train"].together.tokens))
    return found
