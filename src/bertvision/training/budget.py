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
from bertvision.training import marks
from bertvision.training.batches import bucketed
from bertvision.training.heads import HeadTrainer, build
from bertvision.training.loop import Loop
from bertvision.training.planner import measure, work_of
from bertvision.training.setting import HELD_OUT, Setting, prepare

RESERVE = 0.06  # of the budget, for scoring, saving, and what was reckoned too low
MOST, LEAST = Fraction(3), Fraction(1, 20)  # epochs: more brings little, less is noise (docs/results.md)
WORTH = 0.5  # epochs for which it pays to read pairs in one way only
FROZEN_SHARE = 0.2  # of the budget that a look at the encoder as it is may take
FEWEST = 0.05  # of the examples: on less, heads learn too little to be worth the wait
DECIDED = ("epochs", "marks", "pairs", "limit")  # what follows from the budget
TRIALS = 8  # steps that are measured, after one that is not


class Mark(NamedTuple):
    """Seconds at a mark for one way to read pairs."""

    train: float  # states of the training examples, and the polish on them
    asked: float  # answers to what is scored

    @classmethod
    def total(cls, marks: Iterable["Mark"]) -> "Mark":
        return cls(*map(sum, zip(*marks, strict=True)))


def within(setting: Setting, started: float) -> Setting:
    """The setting with the epochs, marks, reading of pairs and number of examples that the budget allows."""
    options = setting.options
    assert options.budget is not None
    if (options.epochs, options.marks) != (FitOptions.epochs, None):
        raise UserError("--budget decides about --epochs and --marks: leave these out.")
    preparing = time.perf_counter() - started
    epoch, mark = epoch_seconds(setting), mark_seconds(setting)
    rest = 60 * options.budget * (1 - RESERVE) - (time.perf_counter() - started)
    rows = sum(len(setting.encoded[split]) for split in ("train", HELD_OUT))
    chosen = recipe(options, rest, epoch, mark, rows)
    if chosen.limit != options.limit:  # which is prepared once more
        chosen = recipe(options, rest - preparing, epoch, mark, rows)
    setting.progress.say(
        f"budget {options.budget:g} min: an epoch of fine-tuning takes {epoch:.0f} s, heads at a mark"
        f" {sum(Mark.total(mark.values())):.0f} s; so {chosen.epochs} epochs, marks at {chosen.marks}"
        + (f", pairs read {chosen.pairs}" if chosen.pairs != options.pairs else "")
        + (f", {chosen.limit:,} of {rows:,} examples" if chosen.limit != options.limit else "")
    )
    if chosen.limit != options.limit:
        return prepare(chosen, setting.progress)
    return replace(setting, options=chosen)


def recipe(options: FitOptions, rest: float, epoch: float, mark: dict[str, Mark], rows: int) -> FitOptions:
    """As much fine-tuning as `rest` seconds allow beside one mark, which takes so long per way to read pairs; a look at
    the encoder as it is where that is cheap; pairs read in one way where that leaves enough to fine-tune; fewer of the
    `rows` examples where even the encoder as it is cannot read all of them."""
    budget = options.budget
    assert budget is not None
    tunable = options.freeze != "all"
    ways = Mark.total(mark.values())
    if len(mark) > 1 and tunable and rest - sum(mark["joint"]) >= WORTH * epoch > rest - sum(ways):
        options, ways = replace(options, pairs="joint"), mark["joint"]
    whole = sum(ways)
    if whole > rest:
        part = (rest - ways.asked) / ways.train
        if part < FEWEST:
            needed = 60 * budget + FEWEST * ways.train + ways.asked - rest
            raise UserError(
                f"--budget {budget:g}: even with few examples this takes about {needed / 60:.1f} minutes here."
                " Allow more, or --dev-limit the examples that are scored."
            )
        return replace(options, epochs="0", marks="0", limit=int(part * rows))
    marks_ = ["0"] if whole < FROZEN_SHARE * rest else []
    left = rest - whole * (1 + len(marks_))
    share = min(MOST, Fraction(int(100 * left / epoch), 100)) if tunable else Fraction(0)
    if share < LEAST:
        return replace(options, epochs="0", marks="0")
    return replace(options, epochs=str(share), marks=",".join([*marks_, str(share)]))


def epoch_seconds(setting: Setting) -> float:
    """From a few steps of a copy: so much for each step, and so much for each token in it, padding included."""
    copy, options = replace(setting, encoder=deepcopy(setting.encoder)), setting.options
    heads = build(setting.names, setting.shape, options.seed, copy.encoder.device, copy.encoder.top)
    riding = {name: head for name, head in heads.items() if head.trained}
    riders = HeadTrainer(riding, setting.dataset.kind, lr=options.head_lr, seed=options.seed)
    loop = Loop(copy, riders, Accelerator(cpu=copy.encoder.device.type == "cpu", mixed_precision="no"))
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
        found[way] = Mark(forward + polish, forward * asked / len(setting.encoded["train"].together.tokens))
    return found
