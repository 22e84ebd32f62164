"""`fit`: fine-tune up to each mark; there, evaluate encoder, heads and ensembles, and keep a checkpoint."""

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from safetensors import SafetensorError

from bertvision import heads as head_family
from bertvision import runs
from bertvision.backbones import encoder as backbone_family
from bertvision.ensembling import Outputs
from bertvision.errors import Interrupted, UserError
from bertvision.heads.base import Head, Shape
from bertvision.kinds import KINDS, Scale
from bertvision.options import FitOptions, differences
from bertvision.progress import Progress
from bertvision.runs import Run
from bertvision.states import HiddenStates
from bertvision.tasks import tasks
from bertvision.tasks.sampling import hold_out, sample
from bertvision.training import provenance
from bertvision.training.checkpoints import POLISHED, load_state, save_mark, save_state
from bertvision.training.collect import collect, collect_separate, encode
from bertvision.training.heads import HeadTrainer, build, predict
from bertvision.training.interrupts import Interrupts
from bertvision.training.loop import Loop
from bertvision.training.polish import polish
from bertvision.training.selection import best, ensembles, goodness, score_all
from bertvision.types import Dataset, Examples

SAVE_EVERY = 120.0  # seconds between states: what a crash costs at most
HELD_OUT = "held_out"


def fit(options: FitOptions, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """One run, from data to run directory. With `resume`, go on with the unfinished one at `options.out`."""
    path = Path(options.out) if options.out else runs.default_name(options.task, options.backbone)
    runs.check(path, resume)
    try:
        fitting = Fitting(options, path, progress or Progress())
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before training; nothing was written.") from None
    run = runs.start(path, resume)
    with _disk_errors(path):
        fitting.open(run, resume)
        for mark in options.fractions():
            fitting.advance(mark)
            fitting.evaluate(mark)
        return fitting.finish()


@dataclass
class Report:
    """What one mark brings together: predictions of every model on every split, and the heads behind them."""

    outputs: dict[str, Outputs]  # split -> model -> (N, C)
    heads: dict[str, Head] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)


class Fitting:
    """A run in the making. Everything that can be wrong with the input shows in the constructor."""

    def __init__(self, options: FitOptions, path: Path, progress: Progress) -> None:
        self.options, self.path, self.progress = options, path, progress
        self.started = time.perf_counter()
        self.accelerator = Accelerator()
        if self.accelerator.num_processes > 1:
            raise UserError("fit runs as one process so far: start it without accelerate launch or torchrun.")
        dataset = tasks[options.task].load(options)
        self.parts = parts_of(dataset, options)
        self.dataset = dataset
        pairs = dataset.train.pairs is not None
        self.names = head_family.expand(options.heads, pairs)
        self.encoder = backbone_family.load(options.backbone, dataset.outputs, options.seed)
        self.encoder.freeze(options.freeze)
        self.encoder.to(self.accelerator.device)
        self.shape = Shape(self.encoder.layers, self.encoder.features, dataset.outputs, pairs, self.encoder.pooled)
        self.scale = Scale.of(self._targets("train"))
        self.kind = KINDS[dataset.kind]
        self._tell()
        self.encoded = {name: encode(self.encoder, part, options.max_length) for name, part in self.parts.items()}
        self._tell_truncated()
        riders = HeadTrainer(
            build(self.names, self.shape, options.seed), dataset.kind, lr=options.head_lr, seed=options.seed
        )
        self.targets = self.scale.shrink(self._targets("train"))
        self.loop = Loop(
            self.encoder,
            riders,
            self.encoded["train"].together,
            self.targets,
            pairs,
            dataset.kind,
            options,
            self.accelerator,
        )
        self.total = self.loop.step_of(Fraction(options.epochs))
        provenance.check_disk(path, self.encoder, len(options.fractions()))

    def open(self, run: Run, resume: bool) -> None:
        """Write run.json, or with `resume` check that it is the same run and go back to its last state."""
        self.run = run
        info = provenance.describe(
            self.options, self.dataset, self.parts, self.encoder, self.shape, self.scale, self.loop.riders.heads
        )
        self.marks: list[dict[str, Any]] = []
        if resume:
            kept = run.info
            changed = differences(kept["options"], {**self.options.as_dict(), "out": kept["options"]["out"]})
            if changed:
                raise UserError(f"--resume with other options than the run was started with: {'; '.join(changed)}.")
            if kept["data"] != info["data"]:
                raise UserError("--resume: the data has changed since the run was started.")
            self.started -= load_state(run, self.loop)
            if (run.path / "scores.json").exists():
                self.marks = run.scores["marks"]
            self.progress.say(f"Resuming at step {self.loop.step} of {self.total}, {len(self.marks)} marks done.")
        else:
            runs.write_json(run.path / "run.json", info)
        self.info = info

    def advance(self, mark: Fraction) -> None:
        """Fine-tune up to `mark`, saving the state now and then."""
        until, log, saved = self.loop.step_of(mark), [], time.perf_counter()
        if self.loop.step >= until:
            return
        with self.progress.bar(f"fine-tune to {mark}", until, self.loop.step) as bar, Interrupts() as interrupts:

            def after_step(loss: float) -> None:
                nonlocal saved
                bar.tick(1)
                log.append({"step": self.loop.step, "loss": loss, "seconds": round(self._elapsed(), 3)})
                if self.loop.step % 10 == 0:
                    bar.note(f"loss {np.mean([entry['loss'] for entry in log[-10:]]):.3f}")
                if interrupts.asked or time.perf_counter() - saved > SAVE_EVERY:
                    self._save(log)
                    saved = time.perf_counter()
                if interrupts.asked:
                    raise Interrupted(f"Interrupted at step {self.loop.step}. {self.resume_hint()}")

            self.loop.advance(until, self.total, after_step)
        self._save(log)

    def resume_hint(self) -> str:
        return f"All until then is kept in '{self.run.path}': the same command with --out {self.path} --resume goes on."

    def _save(self, log: list[dict[str, Any]]) -> None:
        save_state(self.run, self.loop, self._elapsed())
        runs.append_lines(self.run.path / "log.jsonl", log)
        log.clear()

    def evaluate(self, mark: Fraction) -> None:
        """Scores of every model at a mark, its checkpoint and its predictions."""
        name = str(mark)
        if any(entry["epoch"] == name for entry in self.marks):
            return
        try:
            self._evaluate(name)
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted while evaluating at {name}. {self.resume_hint()}") from None

    def _evaluate(self, name: str) -> None:
        report = self._answers(name)
        metric, truth = self.dataset.metrics[0], self._targets(HELD_OUT)
        combined = ensembles(report.outputs[HELD_OUT], truth, metric)
        for outputs in report.outputs.values():
            outputs |= {label: ensemble.of(outputs) for label, ensemble in combined.items()}
        heads = {label: values for label, values in report.outputs[HELD_OUT].items() if label in report.heads}
        entry: dict[str, Any] = {
            "epoch": name,
            "step": self.loop.step,
            "seconds": 0.0,  # filled in last
            "costs": {f"fine_tune_{key}": value for key, value in self.loop.seconds.items()} | report.costs,
            "best_head": best(heads, truth, metric) if heads else None,
            "selected": best(report.outputs[HELD_OUT], truth, metric),
            "pairs": report.pairs,
        }
        for split, outputs in report.outputs.items():
            entry[split] = score_all(outputs, self._targets(split), self.dataset.metrics)
        save_mark(self.run, name, self.encoder, report.heads, report.pairs, combined)
        targets = {split: self._targets(split) for split in report.outputs}
        runs.write_predictions(self.run.predictions_file(name), report.outputs, targets)
        entry["seconds"] = self._elapsed()
        self.marks.append(entry)
        runs.write_json(self.run.path / "scores.json", self._scores())
        picked = entry["selected"]
        self.progress.say(
            f"{name} epochs: encoder {entry[HELD_OUT]['encoder'][metric]['value']:.3f}, best {picked}"
            f" {entry[HELD_OUT][picked][metric]['value']:.3f} ({metric}, held-out)"
        )

    def _answers(self, mark: str) -> Report:
        splits = [split for split in self.parts if split != "train"]
        report = Report({split: {} for split in splits})
        polished = self.names if self.options.polish else []
        ways = ["joint"]
        if polished and self.shape.pairs and self.options.pairs != "joint":
            ways = ["separate"] if self.options.pairs == "separate" else ["joint", "separate"]
        for way in dict.fromkeys(["joint", *ways]):
            wanted = [*splits, "train"] if polished and way in ways else splits
            states = self._collect(way, wanted, mark, report)
            if way == "joint" and self.loop.step:
                self._add(report, states, self.loop.riders.heads, "joint")
            if polished and way in ways:
                self._add(report, states, self._polish(states.pop("train"), way, mark, report), way)
        return report

    def _collect(self, way: str, splits: list[str], mark: str, report: Report) -> dict[str, HiddenStates]:
        started = time.perf_counter()
        passes = sum(len(self.encoded[split]) for split in splits) * (2 if way == "separate" else 1)
        found = {}
        with self.progress.bar(f"mark {mark}: states ({way})", passes) as bar:
            for split in splits:
                if way == "separate":
                    found[split] = collect_separate(self.encoder, self.encoded[split], bar.tick)
                    continue
                began = time.perf_counter()
                logits, found[split] = collect(self.encoder, self.encoded[split], bar.tick)
                if split != "train":
                    report.outputs[split]["encoder"] = self.kind.outputs(logits, self.scale)
                    report.costs["evaluate"] = report.costs.get("evaluate", 0.0) + time.perf_counter() - began
        spent = time.perf_counter() - started - (report.costs["evaluate"] if way == "joint" else 0.0)
        report.costs[f"collect_{way}"] = spent
        return found

    def _polish(self, states: HiddenStates, way: str, mark: str, report: Report) -> dict[str, Head]:
        started = time.perf_counter()
        options, heads = self.options, build(self.names, self.shape, self.options.seed)
        steps = options.polish * -(-len(states) // 32)
        with self.progress.bar(f"mark {mark}: polish ({way})", steps) as bar:
            polish(
                heads,
                states,
                self.targets,
                self.dataset.kind,
                epochs=options.polish,
                lr=options.head_lr,
                seed=options.seed,
                tick=bar.tick,
            )
        report.costs[f"polish_{way}"] = time.perf_counter() - started
        return {name + POLISHED: head for name, head in heads.items()}

    def _add(self, report: Report, states: dict[str, HiddenStates], heads: dict[str, Head], way: str) -> None:
        """Heads' predictions into the report; of two heads with one name the better on held-out data stays."""
        metric, truth = self.dataset.metrics[0], self._targets(HELD_OUT)
        answers = {
            split: {
                name: self.kind.outputs(logits, self.scale) for name, logits in predict(heads, states[split]).items()
            }
            for split in report.outputs
        }
        for name, head in heads.items():
            rival = report.outputs[HELD_OUT].get(name)
            mine = goodness(answers[HELD_OUT][name], truth, metric)
            if rival is not None and mine <= goodness(rival, truth, metric):
                continue
            report.heads[name], report.pairs[name] = head, way
            for split in report.outputs:
                report.outputs[split][name] = answers[split][name]

    def finish(self) -> Run:
        self.info["costs"] = provenance.costs(self._elapsed(), self.loop, self.run)
        runs.write_json(self.run.path / "run.json", self.info)
        return runs.finish(self.run, self.path)

    def _scores(self) -> dict[str, Any]:
        metric = self.dataset.metrics[0]
        # The first of equals: less fine-tuning for the same score.
        top = max(self.marks, key=lambda entry: entry[HELD_OUT][entry["selected"]][metric]["value"])
        return {
            "task": self.dataset.task,
            "metric": metric,
            "marks": self.marks,
            "selected": {"model": top["selected"], "mark": top["epoch"]},
        }

    def _targets(self, split: str) -> np.ndarray:
        targets = self.parts[split].targets
        assert targets is not None
        return targets

    def _elapsed(self) -> float:
        return time.perf_counter() - self.started

    def _tell(self) -> None:
        sizes = ", ".join(f"{len(part)} {name.replace('_', '-')}" for name, part in self.parts.items())
        for note in (*self.dataset.notes, f"{self.dataset.task}: {sizes}; {len(self.names)} heads"):
            self.progress.say(note)

    def _tell_truncated(self) -> None:
        for name, encoded in self.encoded.items():
            if encoded.together.truncated:
                limit = min(self.options.max_length, self.encoder.longest)
                self.progress.say(
                    f"{encoded.together.truncated} of {len(encoded)} {name} examples cut to {limit} tokens"
                )


def parts_of(dataset: Dataset, options: FitOptions) -> dict[str, Examples]:
    """train, held_out and the dev splits, after --limit and --dev-limit. The seed plays no part."""
    train = dataset.train
    if options.limit is not None:
        train = train.take(sample(train, options.limit, "limit"))
    rest, held = hold_out(train)
    parts = {"train": train.take(rest), HELD_OUT: train.take(held)}
    for name, dev in dataset.dev.items():
        limit = options.dev_limit
        parts[name] = dev if limit is None else dev.take(sample(dev, limit, "dev-limit"))
    return parts


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """A full disk is the user's to mend; what was written whole stays, so that --resume can go on."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        text = str(error)
        if getattr(error, "errno", None) in full or any(f"os error {code})" in text for code in full):
            partial = runs.partial_of(path)
            raise UserError(
                f"The disk is full ({text}). Make room, then go on: the same command with --out {path} --resume"
                f" (what is done so far is kept in '{partial}')."
            ) from None
        raise
