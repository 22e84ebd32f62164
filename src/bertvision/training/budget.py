"""`fit --budget`: how much fine-tuning a time allows. A few batches are measured, the rest is reckoned from them."""

import tempfile
import time
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from accelerate import Accelerator

from bertvision.errors import UserError
from bertvision.options import FitOptions
from bertvision.training import marks
from bertvision.training.batches import bucketed
from bertvision.training.heads import HeadTrainer, build
from bertvision.training.loop import Loop
from bertvision.training.planner import measure, work_of
from bertvision.training.setting import Setting

RESERVE = 0.06  # of the budget, for scoring, saving, and what was reckoned too low
MOST, LEAST = Fraction(3), Fraction(1, 20)  # epochs: more brings little, less is noise (docs/results.md)
FROZEN_SHARE = 0.2  # of the budget that a look at the encoder as it is may take
DECIDED = ("epochs", "marks", "pairs")  # what follows from the budget
TRIALS = 5  # steps that are measured, after one that is not


def within(setting: Setting, started: float) -> Setting:
    """The setting with the epochs, marks and reading of pairs that the budget allows."""
    options = setting.options
    assert options.budget is not None
    if (options.epochs, options.marks) != (FitOptions.epochs, None):
        raise UserError("--budget decides about --epochs and --marks: leave these out.")
    epoch, mark = epoch_seconds(setting), mark_seconds(setting)
    rest = 60 * options.budget * (1 - RESERVE) - (time.perf_counter() - started)
    chosen = recipe(options, rest, epoch, mark)
    setting.progress.say(
        f"budget {options.budget:g} min: an epoch of fine-tuning takes {epoch:.0f} s, heads at a mark"
        f" {sum(mark.values()):.0f} s; so {chosen.epochs} epochs, marks at {chosen.marks}"
        + (f", pairs read {chosen.pairs}" if chosen.pairs != options.pairs else "")
    )
    return replace(setting, options=chosen)


def recipe(options: FitOptions, rest: float, epoch: float, mark: dict[str, float]) -> FitOptions:
    """As much fine-tuning as `rest` seconds allow beside one mark, which takes `mark` seconds per way to read pairs;
    a look at the encoder as it is where that is cheap; pairs read in one way where both would take too much."""
    assert options.budget is not None
    pairs, whole = options.pairs, sum(mark.values())
    if len(mark) > 1 and whole > rest / 2:
        pairs, whole = "joint", mark["joint"]
    if whole > rest:
        needed = 60 * options.budget + whole - rest
        raise UserError(
            f"--budget {options.budget:g}: to read the texts once and train heads takes about {needed / 60:.1f} minutes"
            " here. Allow more, or --limit the examples."
        )
    marks_ = ["0"] if whole < FROZEN_SHARE * rest else []
    left = rest - whole * (1 + len(marks_))
    share = Fraction(0) if options.freeze == "all" else min(MOST, Fraction(int(100 * left / epoch), 100))
    if share < LEAST:
        return replace(options, epochs="0", marks="0", pairs=pairs)
    return replace(options, epochs=str(share), marks=",".join([*marks_, str(share)]), pairs=pairs)


def epoch_seconds(setting: Setting) -> float:
    """From a few steps of a copy, by the tokens that are in them, padding included."""
    copy, options = replace(setting, encoder=deepcopy(setting.encoder)), setting.options
    heads = build(setting.names, setting.shape, options.seed, copy.encoder.device, copy.encoder.top)
    riding = {name: head for name, head in heads.items() if head.trained}
    riders = HeadTrainer(riding, setting.dataset.kind, lr=options.head_lr, seed=options.seed)
    loop = Loop(copy, riders, Accelerator(cpu=copy.encoder.device.type == "cpu", mixed_precision="no"))
    lengths, steps = loop.windows.lengths, min(1 + TRIALS, loop.steps_per_epoch)
    sizes = [len(rows) * int(lengths[rows].max()) for rows in bucketed(lengths, options.batch_size, options.seed, 0)]
    loop.advance(min(1, steps - 1), steps, lambda loss: None)  # the first step also warms up
    before, first = time.perf_counter(), loop.step
    loop.advance(steps, steps, lambda loss: None)
    done = sum(sizes[first * options.accumulate : steps * options.accumulate])
    return (time.perf_counter() - before) * sum(sizes) / done


def mark_seconds(setting: Setting) -> dict[str, float]:
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
        forward = work.flops() / rates.flops * (1 + asked / len(setting.encoded["train"].together.tokens))
        found[way] = forward + (work.epochs * work.windows / rates.heads if heads else 0.0)
    return found
