"""`fit`: fine-tune up to each mark; there, evaluate encoder, heads and ensembles, and save a checkpoint."""

import math
import shlex
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

from bertvision.errors import Interrupted, UserError, disk_errors
from bertvision.heads.variants import build
from bertvision.inference.select import shipped
from bertvision.interrupts import Interrupts
from bertvision.kinds import Predictions
from bertvision.options import Request, differences
from bertvision.prepare import Prepared, prepare
from bertvision.progress import Progress
from bertvision.recipe import Recipe
from bertvision.records import ENCODER, WORDS, BudgetPlan, MarkRecord, Results, write_lines
from bertvision.runs import card
from bertvision.runs import directory as runs
from bertvision.runs.checkpoints import load_state, save_mark, save_state, save_words
from bertvision.runs.directory import RESULTS, Run
from bertvision.runs.predictions import write_predictions
from bertvision.states.passes import default_device
from bertvision.training import budget, lead, marks, provenance, threads
from bertvision.training.cross_fit import LeftOut, cross_fit
from bertvision.training.deadline import TUNE, Clock, Turn, Watch, piece
from bertvision.training.loop import loop_of
from bertvision.training.reported import narrowed, restated, sampled
from bertvision.training.shared import Shared
from bertvision.types import HELD_OUT, TRAIN, Dataset

SAVE_EVERY = 120.0  # seconds between saved states: what a crash loses at most


@threads.kept()
def fit(
    request: Request,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
    clock: Clock | None = None,
) -> Run:
    """One run, from data to run directory. With `resume`, continue the unfinished one at `request.out`. A --budget is
    counted from the start of the `clock`, which is now if none is given."""
    clock = clock or Clock.start()
    path = Path(request.out) if request.out else runs.default_name(request.task, request.backbone, resume)
    plan = None
    runs.check(path, resume)
    if request.budget is not None and not resume:
        budget.check(request.budget, clock)
    try:
        asked = _begun(request, path) if resume else request
        setting = replace(prepare(asked, progress or Progress(), dataset=dataset), request=request)
        accelerator = _accelerator()
        setting.encoder.to(accelerator.device)  # before a budget measures how fast it is
        if request.budget is not None and not resume:
            before = clock.elapsed()
            setting = setting.with_words()
            setting, plan = budget.within(setting, clock, clock.elapsed() - before)
        if not resume:  # a run that is resumed has taken its part of the disk already
            provenance.check_disk(path, setting.encoder, len(setting.recipe.fractions()))
        fitting = Fitting(setting.with_words(), accelerator, path, clock, plan)
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before training; nothing was written.") from None
    with Interrupts() as interrupts, runs.start(path, resume, not request.out) as run, disk_errors(_advice(run)):
        fitting.open(run, resume)
        fitting.cross_fit(interrupts)
        for mark in setting.recipe.fractions():
            fitting.evaluate(fitting.advance(mark, interrupts), interrupts)
        return fitting.finish()


def _advice(run: Run) -> str:
    path = shlex.quote(str(runs.whole_of(run.path)))
    return f"then rerun the same command with --out {path} --resume. Progress is saved in '{run.path}'."


def _begun(request: Request, path: Path) -> Recipe:
    """The recipe of the run to continue: what was decided when it was started stays so."""
    run = Run(runs.partial_of(path))
    if run.version == 1:
        raise UserError(f"--resume: '{run.path}' was begun by version 0.1. Remove it and start again.")
    record = run.record
    changed = differences(record.request, request)
    if changed:
        raise UserError(f"--resume with other options than the run was started with: {'; '.join(changed)}.")
    return record.recipe


def _accelerator() -> Accelerator:
    accelerator = Accelerator(cpu=default_device().type == "cpu", mixed_precision="no")
    if accelerator.num_processes > 1:
        raise UserError("fit runs as one process so far: start it without accelerate launch or torchrun.")
    return accelerator


class Fitting:
    """A run in progress: the loop, the marks that are done, and the directory they are written to."""

    def __init__(
        self, setting: Prepared, accelerator: Accelerator, path: Path, clock: Clock, plan: BudgetPlan | None
    ) -> None:
        self.setting, self.accelerator, self.path = setting, accelerator, path
        self.marks: list[MarkRecord] = []
        self.left_out: LeftOut | None = None  # with --folds: what models said about rows they were left out of
        self.read: Shared | None = None  # and the states that folds have read, as long as they hold
        heads = build(setting.names, setting.shape, setting.recipe.seed, accelerator.device)
        self.loop = loop_of(setting, heads, accelerator)
        self.total = self.loop.step_of(self._last())
        if self.loop.lead is not None:
            heads[setting.recipe.lead] = self.loop.lead
        self.record = provenance.describe(setting, heads)
        self._plan(plan, clock)

    def _plan(self, plan: BudgetPlan | None, clock: Clock) -> None:
        self.record.plan, self.clock = plan, clock
        self.watch = Watch(clock, self.setting.recipe.budget, plan.work if plan else None, threads.Threads().adapt)

    def _last(self) -> Fraction:
        """Where fine-tuning ends at the latest."""
        recipe = self.setting.recipe
        return Fraction(recipe.epochs) if recipe.budget is None else budget.last_mark(recipe, self.loop.steps_per_epoch)

    def open(self, run: Run, resume: bool) -> None:
        """Write run.json, or with `resume` check that it is the same run and load its last state."""
        self.run, self.path = run, runs.whole_of(run.path)
        if not resume:
            run.write(self.record)
            return
        kept = run.record
        if kept.data != self.record.data:
            raise UserError("--resume: the data changed since the run was started.")
        if kept.weights_sha256 != self.record.weights_sha256:
            raise UserError("--resume: the encoder's weights changed since the run was started.")
        self.record.command, elapsed = kept.command, kept.plan.spent if kept.plan else 0.0
        if state := load_state(run):
            step, tensors, self.loop.seconds, until_then = state
            self.loop.restore(tensors, step)
            elapsed = max(elapsed, until_then)
        if (run.path / RESULTS).exists():
            self.marks = run.results.marks
            elapsed = max(elapsed, self.marks[-1].seconds)
        self._plan(kept.plan, self.clock.resumed(elapsed))
        self.setting.progress.say(f"Resuming at step {self.loop.step} of {self.total}, {len(self.marks)} marks done.")

    def cross_fit(self, interrupts: Interrupts) -> None:
        """With --folds, train on all folds but one, in turn; what was found survives an interruption."""
        if self.setting.recipe.folds == "0":
            return
        self.left_out = LeftOut.load(self.run.path / "folds")
        if self.left_out is None:
            with self._guarded(interrupts, "while cross-fitting"):
                found = cross_fit(self.setting, self.accelerator, self.run.path / "states", self.watch)
            self.left_out, self.setting, self.read = found.left_out, found.setting, found.read
            if self.record.plan:
                self.record.plan = replace(self.record.plan, spent=self.clock.elapsed())
                self._settle()
            self.left_out.save(self.run.path / "folds")
        if self.read is None:
            self.watch.read_again()
        if not self.loop.step:
            torch.manual_seed(self.setting.recipe.seed)  # which folds have used: what follows is as if there were none

    def _settle(self) -> None:
        """Keep in run.json what the clock has decided."""
        self.record.recipe, self.record.data = self.setting.recipe, provenance.data_of(self.setting)
        self.run.write(self.record)

    def advance(self, mark: Fraction, interrupts: Interrupts) -> Fraction:
        """Fine-tune up to `mark`; with a budget, as far as there is time. Returns the mark that was reached."""
        if self.loop.step >= self.loop.step_of(mark):
            return mark
        reach = mark * self.watch.turn(piece(TUNE, mark)).reach()
        if self.marks and not self.loop.step and not budget.worth_tuning(self.setting.recipe, reach):
            return self._reached(mark)
        if self.loop.lead is not None and not self.loop.led:
            began = time.perf_counter()
            with self._guarded(interrupts, "before fine-tuning"):
                lead.start(self.loop.lead, self.setting)
            self.loop.led, self.loop.seconds["start"] = True, time.perf_counter() - began
        self._train(mark, self._turn(mark), interrupts)
        return self._reached(mark)

    def _turn(self, mark: Fraction) -> Turn:
        """Fine-tuning by the clock; a run that is resumed goes on with it."""
        plan = self.record.plan
        if plan and plan.tuned_from is None:
            plan = self.record.plan = replace(plan, tuned_from=self.clock.elapsed())
            self.run.write(self.record)
        return self.watch.turn(piece(TUNE, mark), began=plan.tuned_from if plan else None)

    def _reached(self, mark: Fraction) -> Fraction:
        """The mark at which time was up, instead of the one that was planned; --resume keeps to it."""
        loop, plan = self.loop, self.record.plan
        found = loop.mark_of(loop.step)
        if plan is None or found == mark:
            return mark
        recipe = budget.ending_at(self.setting.recipe, found)
        changed_at = loop.step if loop.step < self.total else None
        self.setting, self.total = replace(self.setting, recipe=recipe), loop.step
        self.record.recipe, self.record.plan = recipe, replace(plan, changed_at=changed_at)
        self.run.write(self.record)
        self.setting.progress.say(f"budget: in the time, {found} instead of {mark} epochs")
        return found

    def _train(self, mark: Fraction, turn: Turn, interrupts: Interrupts) -> None:
        """Fine-tune on the way to `mark`, saving the state regularly."""
        log: list[dict[str, Any]] = []
        saved, goal = time.perf_counter(), self.loop.step_of(mark)
        until = goal if self.record.plan is None else self.total
        with self.setting.progress.bar(f"fine-tune to {mark}", goal, self.loop.step) as bar:

            def after_step(loss: float) -> None:
                nonlocal saved
                if not math.isfinite(loss):
                    raise UserError(f"The loss is not finite at step {self.loop.step}: try a lower --lr, e.g. a third.")
                bar.tick(1)
                turn.done(1 / goal)
                log.append({"step": self.loop.step, "loss": loss, "seconds": round(self.clock.elapsed(), 3)})
                if self.loop.step % 10 == 0:
                    bar.note(f"loss {np.mean([entry['loss'] for entry in log[-10:]]):.3f}")
                if interrupts.asked or time.perf_counter() - saved > SAVE_EVERY:
                    self._save(log)
                    saved = time.perf_counter()
                if interrupts.asked:
                    raise Interrupted(f"Interrupted at step {self.loop.step}. {self._resume_hint()}")

            # At least a step if there is no model yet.
            self.loop.advance(until, self.total, after_step, lambda: turn.over() if self.marks or self.loop.step else 0)
        self._save(log)

    def evaluate(self, mark: Fraction, interrupts: Interrupts) -> None:
        """Score every model at a mark; save its checkpoint and its predictions."""
        if any(done.mark == str(mark) for done in self.marks):
            return
        with self._guarded(interrupts, f"while evaluating at {mark}"):
            self._evaluate(str(mark))

    @contextmanager
    def _guarded(self, interrupts: Interrupts, when: str) -> Iterator[None]:
        """Inside, Ctrl-C is checked whenever a progress bar moves."""
        try:
            with self.setting.progress.guarded(interrupts.check):
                yield
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted {when}. {self._resume_hint()}") from None

    def _evaluate(self, mark: str) -> None:
        setting, ridden = self.setting, self.loop.ridden
        splits = [split for split in setting.evaluated if split != HELD_OUT or self.left_out is None]
        read = {TRAIN: self.read} if self.read is not None and not self.loop.step else {}
        made = marks.answers_at(setting, ridden, mark, self.run.path / "states", splits, self.watch, read)
        self.read = None  # from here on the encoder changes
        if made.dev_limit is not None:
            setting = self._report_on(made, made.dev_limit)
        if self.left_out is not None:
            for way, said in made.said.items():
                said.outputs[HELD_OUT] = self.left_out.marks[len(self.marks)][way]
        verdict = marks.judge(setting, made, mark, ridden)
        found = verdict.record
        save_mark(self.run, mark, setting.encoder, verdict.heads, found.ways, verdict.ensembles)
        if setting.words is not None:
            save_words(self.run, setting.words)
            self.record.parameters[WORDS] = setting.words.parameters
        targets = {split: setting.targets(split) for split in setting.evaluated}
        write_predictions(self.run.predictions_file(mark), targets, verdict.predictions)
        fine_tuning = {f"fine_tune_{part}": seconds for part, seconds in self.loop.seconds.items()}
        found.step, found.seconds, found.costs = self.loop.step, self.clock.elapsed(), fine_tuning | found.costs
        if self.loop.start_from(made.solved):
            self._save([])
        self.marks.append(found)
        Results.of(setting.dataset.task, setting.metric, self.marks, self._shipped()).write(self.run.path / RESULTS)
        encoder, best = (found.score(name, setting.metric, HELD_OUT).value for name in (ENCODER, found.selected))
        setting.progress.say(
            f"mark {mark}: encoder {encoder:.3f}, selected {found.selected} {best:.3f} ({setting.metric}, held-out)"
        )

    def _report_on(self, made: marks.Answers, rows: int) -> Prepared:
        """Time ran out: this mark and earlier ones report on a sample of the dev rows."""
        before, after = self.setting, narrowed(self.setting, rows)
        for said in made.said.values():
            said.outputs |= sampled(before, said.outputs, rows)
        self.setting = after
        self._settle()
        for done in self.marks:
            restated(self.run, done, before, after)
        after.progress.say(f"budget: in the time, scores on {rows} rows of dev, as with --dev-limit {rows}")
        return after

    def _shipped(self) -> MarkRecord:
        """The mark whose model ships, of those that are done."""
        said = [Predictions(self.run.predictions(one.mark)[HELD_OUT].outputs[one.selected]) for one in self.marks]
        return self.marks[shipped(said, self.setting.judges[HELD_OUT], self.setting.metric)]

    def finish(self) -> Run:
        self.record.costs = provenance.costs(self.clock.elapsed(), self.loop.seconds, self.run)
        self.run.write(self.record)
        card.write(self.run, self.path)
        return runs.finish(self.run)

    def _save(self, log: list[dict[str, Any]]) -> None:
        save_state(self.run, self.loop.step, self.loop.tensors(), self.loop.seconds, self.clock.elapsed())
        write_lines(self.run.path / "log.jsonl", log)
        log.clear()

    def _resume_hint(self) -> str:
        return (
            f"Progress is saved in '{self.run.path}'. To continue, rerun the same command with"
            f" --out {shlex.quote(str(self.path))} --resume."
        )
