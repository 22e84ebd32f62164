"""`fit`: fine-tune up to each mark; there, evaluate encoder, heads and ensembles, and keep a checkpoint."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from bertvision import runs
from bertvision.errors import Interrupted, UserError, disk_errors
from bertvision.heads.base import Head
from bertvision.options import Request, differences
from bertvision.progress import Progress
from bertvision.recipe import Recipe
from bertvision.runs import Run
from bertvision.training import budget, card, lead, marks, provenance
from bertvision.training.checkpoints import load_state, save_mark, save_state
from bertvision.training.heads import build
from bertvision.training.interrupts import Interrupts
from bertvision.training.loop import loop_of
from bertvision.training.setting import Setting, prepare
from bertvision.types import HELD_OUT

SAVE_EVERY = 120.0  # seconds between states: what a crash costs at most


def fit(options: Request, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """One run, from data to run directory. With `resume`, go on with the unfinished one at `options.out`."""
    started = time.perf_counter()
    path = Path(options.out) if options.out else runs.default_name(options.task, options.backbone, resume)
    tuned_by = None
    runs.check(path, resume)
    try:
        setting = prepare(_kept(options, path) if resume else options, progress or Progress())
        accelerator = _accelerator()
        setting.encoder.to(accelerator.device)  # before a budget measures how fast it is
        if options.budget is not None and not resume:
            setting, tuned_by = budget.within(setting, started)
        options = setting.options
        if not resume:  # which has taken its part of the disk already
            provenance.check_disk(path, setting.encoder, len(options.fractions()))
        fitting = Fitting(setting, accelerator, path, started, tuned_by)
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before training; nothing was written.") from None
    go_on = (
        f"then go on: the same command with --out {path} --resume (what is done so far is kept in"
        f" '{runs.partial_of(path)}')."
    )
    with disk_errors(go_on), Interrupts() as interrupts:
        fitting.open(runs.start(path, resume), resume)
        for mark in options.fractions():
            fitting.evaluate(fitting.advance(mark, interrupts), interrupts)
        return fitting.finish()


def _kept(options: Request, path: Path) -> Request:
    """What a budget decided when the run was started stays so."""
    kept = Run(runs.partial_of(path)).info["options"]
    if "dropout" not in kept or "polish_from" in kept:
        raise UserError(f"--resume: '{runs.partial_of(path)}' was begun by an earlier version, which fine-tuned in"
                        " another way. Remove it and start anew.")  # fmt: skip
    if options.budget is None or options.budget != kept.get("budget"):
        return options
    return replace(options, **{name: kept[name] for name in budget.DECIDED})


def _accelerator() -> Accelerator:
    # Without CUDA: the CPU, the only other device whose random state is kept for --resume.
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="no")
    if accelerator.num_processes > 1:
        raise UserError("fit runs as one process so far: start it without accelerate launch or torchrun.")
    return accelerator


class Fitting:
    """A run in the making: the loop, the marks that are done, and the directory they are written to."""

    def __init__(
        self, setting: Setting, accelerator: Accelerator, path: Path, started: float, tuned_by: float | None
    ) -> None:
        self.setting, self.path, self.started = setting, path, started
        self.marks: list[dict[str, Any]] = []
        options = setting.options
        heads = build(setting.names, setting.shape, options.seed, accelerator.device, setting.encoder.top)
        self.loop = loop_of(setting, heads, accelerator)
        self.total = self.loop.step_of(Fraction(options.epochs))
        if self.loop.lead is not None:
            heads[self.loop.lead_name] = self.loop.lead
        self.info = provenance.describe(setting, heads)
        if tuned_by is not None:
            self.info["plan"] = {"epochs": options.epochs, "tuned_by": tuned_by}

    def open(self, run: Run, resume: bool) -> None:
        """Write run.json, or with `resume` check that it is the same run and go back to its last state."""
        self.run = run
        if not resume:
            runs.write_json(run.path / "run.json", self.info)
            return
        kept = run.info
        changed = differences(Recipe(**kept["options"]), self.setting.options)
        if changed:
            raise UserError(f"--resume with other options than the run was started with: {'; '.join(changed)}.")
        for part, name in (("data", "data"), ("weights_sha256", "encoder's weights")):
            if kept[part] != self.info[part]:
                raise UserError(f"--resume: the {name} changed since the run was started.")
        self.info |= {name: kept[name] for name in ("command", "plan") if name in kept}
        elapsed = load_state(run, self.loop)
        if (run.path / "scores.json").exists():
            self.marks = run.scores["marks"]
            elapsed = max(elapsed, self.marks[-1]["seconds"])
        self.started -= elapsed
        self.setting.progress.say(f"Resuming at step {self.loop.step} of {self.total}, {len(self.marks)} marks done.")

    def advance(self, mark: Fraction, interrupts: Interrupts) -> Fraction:
        """Fine-tune up to `mark`; with a budget, to the one that can be reached in time as the first half tells."""
        first, until = self.loop.step, self.loop.step_of(mark)
        if first >= until:
            return mark
        if self.loop.lead is not None and not self.loop.led:
            began = time.perf_counter()
            with self._guarded(interrupts, "before fine-tuning"):
                lead.start(self.loop.lead, self.setting)
            self.loop.led, self.loop.seconds["start"] = True, time.perf_counter() - began
        plan = self.info.get("plan")
        if plan and "changed_at" not in plan and until > first + 1:
            self._train(mark, (first + until) // 2, interrupts)
            mark = self._in_time(mark)
        self._train(mark, self.loop.step_of(mark), interrupts)
        return mark

    def _in_time(self, mark: Fraction) -> Fraction:
        """Another last mark than was planned, if the speed so far asks for it."""
        loop, options, plan = self.loop, self.setting.options, self.info["plan"]
        each, left = loop.seconds["loop"] / loop.step, plan["tuned_by"] - self._elapsed()
        found = budget.epochs_in_time(options, loop.step, loop.steps_per_epoch, each, left)
        marks_now = ",".join(map(str, [*options.fractions()[:-1], found]))
        ends: dict[str, Any] = {"epochs": str(found), "marks": marks_now}
        self.setting = replace(self.setting, options=replace(options, **ends))
        self.total = loop.step_of(found)
        self.info["options"] |= ends  # --resume keeps to them
        self.info["plan"] = plan | {"changed_at": loop.step}
        runs.write_json(self.run.path / "run.json", self.info)
        if found != mark:
            self.setting.progress.say(f"budget: at the speed of the first half, {found} instead of {mark} epochs")
        return found

    def _train(self, mark: Fraction, until: int, interrupts: Interrupts) -> None:
        """On the way to `mark`, saving the state now and then."""
        log: list[dict[str, Any]] = []
        saved, goal = time.perf_counter(), self.loop.step_of(mark)
        with self.setting.progress.bar(f"fine-tune to {mark}", goal, self.loop.step) as bar:

            def after_step(loss: float) -> None:
                nonlocal saved
                if not math.isfinite(loss):
                    raise UserError(f"The loss is not finite at step {self.loop.step}: try a lower --lr, e.g. a third.")
                bar.tick(1)
                log.append({"step": self.loop.step, "loss": loss, "seconds": round(self._elapsed(), 3)})
                if self.loop.step % 10 == 0:
                    bar.note(f"loss {np.mean([entry['loss'] for entry in log[-10:]]):.3f}")
                if interrupts.asked or time.perf_counter() - saved > SAVE_EVERY:
                    self._save(log)
                    saved = time.perf_counter()
                if interrupts.asked:
                    raise Interrupted(f"Interrupted at step {self.loop.step}. {self._resume_hint()}")

            self.loop.advance(until, self.total, after_step)
        self._save(log)

    def evaluate(self, mark: Fraction, interrupts: Interrupts) -> None:
        """Score every model at a mark; keep its checkpoint and its predictions."""
        if any(entry["epoch"] == str(mark) for entry in self.marks):
            return
        with self._guarded(interrupts, f"while evaluating at {mark}"):
            self._evaluate(str(mark))

    @contextmanager
    def _guarded(self, interrupts: Interrupts, when: str) -> Iterator[None]:
        """Inside, Ctrl-C is looked for whenever a progress bar moves."""
        self.setting.progress.guard = interrupts.check
        try:
            interrupts.check()
            yield
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted {when}. {self._resume_hint()}") from None
        finally:
            self.setting.progress.guard = lambda: None

    def _evaluate(self, mark: str) -> None:
        setting = self.setting
        made = marks.report(setting, self.loop.ridden, mark, self.run.path / "states")
        fine_tuning = {f"fine_tune_{part}": seconds for part, seconds in self.loop.seconds.items()}
        entry: dict[str, Any] = {
            "epoch": mark,
            "step": self.loop.step,
            "seconds": 0.0,
            "costs": fine_tuning | made.seconds,
        }
        entry |= marks.entry(setting, made)
        save_mark(self.run, mark, setting.encoder, made.heads, made.pairs, made.ensembles)
        write_predictions(self.run.predictions_file(mark), setting, made)
        entry["seconds"] = self._elapsed()
        self._take_start(made.joint)
        self.marks.append(entry)
        runs.write_json(self.run.path / "scores.json", self._scores())
        encoder, selected = (self._held_out(entry, name) for name in ("encoder", entry["selected"]))
        setting.progress.say(
            f"{mark} epochs: encoder {encoder:.3f}, selected {entry['selected']} {selected:.3f}"
            f" ({setting.metric}, held-out)"
        )

    def _take_start(self, joint: dict[str, Head]) -> None:
        """Where heads were solved at a mark before the first step, the lead's start is among them."""
        loop = self.loop
        if loop.lead is None or loop.led or loop.lead_name not in joint or joint[loop.lead_name].trained:
            return
        loop.lead.load_state_dict(joint[loop.lead_name].state_dict())
        loop.led = True
        self._save([])

    def finish(self) -> Run:
        self.info["costs"] = provenance.costs(self._elapsed(), self.loop.seconds, self.run)
        runs.write_json(self.run.path / "run.json", self.info)
        card.write(self.run, self.path)
        return runs.finish(self.run, self.path)

    def _scores(self) -> dict[str, Any]:
        # max gives the first of equals: less fine-tuning for the same score.
        top = max(self.marks, key=lambda entry: entry.get("goodness", self._held_out(entry, entry["selected"])))
        return {
            "task": self.setting.dataset.task,
            "metric": self.setting.metric,
            "marks": self.marks,
            "selected": {"model": top["selected"], "mark": top["epoch"]},
        }

    def _held_out(self, entry: dict[str, Any], model: str) -> float:
        return float(entry[HELD_OUT][model][self.setting.metric]["value"])

    def _save(self, log: list[dict[str, Any]]) -> None:
        save_state(self.run, self.loop, self._elapsed())
        runs.append_lines(self.run.path / "log.jsonl", log)
        log.clear()

    def _elapsed(self) -> float:
        return time.perf_counter() - self.started

    def _resume_hint(self) -> str:
        return f"All until then is kept in '{self.run.path}': the same command with --out {self.path} --resume goes on."


def write_predictions(path: Path, setting: Setting, made: marks.Report) -> None:
    """Per example: every model's values and, for spans, its answer (empty: none), the next best, how likely none is."""
    columns: dict[str, dict[str, Any]] = {}
    for split, found in made.predictions.items():
        columns[split] = {"target": setting.targets(split)}
        columns[split] |= {name: list(predictions.values) for name, predictions in found.items()}
        for name, predictions in found.items():
            if predictions.texts is not None:
                limit = made.thresholds[name]
                said = predictions.answers(limit), predictions.seconds(limit), predictions.null_probabilities
                columns[split] |= {
                    prefix + name: values for prefix, values in zip(runs.SAID.values(), said, strict=True)
                }
    runs.write_predictions(path, columns)
