"""The runs behind a reproduction, one per seed, and the mean of their scores."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.metrics.intervals import Score, interval, measure, resampled
from bertvision.options import OWN, Request, differences, fraction
from bertvision.progress import Progress
from bertvision.recipe import DECIDED
from bertvision.records import ModelName
from bertvision.runs.directory import Run, partial_of
from bertvision.training.fit import fit

# Standard fine-tuning, as in the paper: through the output layer alone.
PLAIN: dict[str, Any] = {"lead": OWN, "dropout": True, "batch_size": 16}


class Replicates:
    """Runs that differ only in their seed. Scores are means over them, with bootstrap intervals over examples."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs, self.record, results = runs, runs[0].record, runs[0].results
        self.task, self.marks = results.task, [one.mark for one in results.marks]
        self.note = "one seed" if len(runs) == 1 else f"means over {len(runs)} seeds"
        self._at = cache(lambda run, mark: (run.results.at(mark).roles, run.predictions(mark)))
        self._means = cache(self._compute)  # the same scores are in several tables and figures

    def score(self, mark: str, model: str, metric: str, split: str = "dev") -> Score | None:
        """The score of a model, by its role or name. None if a run has no such model or mark."""
        return _score(self._means(mark, model, metric, split))

    def difference(self, mark: str, one: str, other: str, metric: str, split: str = "dev") -> Score | None:
        """How much `other` scores above `one`, paired over examples."""
        first, second = (self._means(mark, model, metric, split) for model in (one, other))
        return None if first is None or second is None else _score(second - first)

    def _compute(self, mark: str, model: str, metric: str, split: str) -> np.ndarray | None:
        """(1 + resamples,): the metric on all examples, then on every resample; means over runs."""
        found = []
        for run in self.runs if mark in self.marks else ():
            roles, predictions = self._at(run, mark)
            outputs, targets = predictions[split].outputs, predictions[split].targets
            # For the name of a head, prefer the polished one: like the paper's, it is trained on a frozen encoder.
            names = [roles[model]] if model in roles else [str(ModelName(model, polished=True)), model]
            values = next((outputs[name] for name in names if name in outputs), None)
            if values is None:
                return None
            value = measure(values, targets, metric, self.record.kind)
            found.append([value, *resampled(values, targets, metric, self.record.kind)])
        return np.mean(found, 0) if found else None


def _score(values: np.ndarray | None) -> Score | None:
    return None if values is None else Score(float(values[0]), *interval(values[1:]))


@dataclass(frozen=True)
class Plan:
    """The scale at which the paper's experiments are repeated."""

    data: str | None
    backbone: str = "minilm-l6"
    limit: int | None = None
    dev_limit: int | None = None
    epochs: str = "1"
    heads: str | None = None  # None: those of the paper's experiment
    seeds: tuple[int, ...] = (0,)
    out: str = "runs/reproduce"

    def runs(self, task: str, marks: Iterable[str], heads: str, progress: Progress) -> Replicates:
        """One run per seed, with those of the paper's marks that `epochs` reaches."""
        last = fraction("--epochs", self.epochs)
        reached = sorted({*(mark for mark in map(Fraction, marks) if mark < last), last})
        request = Request(
            task=task, data=self.data, backbone=self.backbone, limit=self.limit, dev_limit=self.dev_limit,
            heads=self.heads or heads, epochs=self.epochs, marks=",".join(map(str, reached)), **PLAIN,
        )  # fmt: skip
        return Replicates([finished(replace(request, seed=seed, out=self.out), progress) for seed in self.seeds])


def on_states_of(runs: Replicates, mark: str, heads: str, progress: Progress) -> Replicates:
    """Other heads on the frozen encoder that each run had at a mark, with all else unchanged."""
    made = []
    for run in runs.runs:
        backbone, out = run.mark_folder(mark) / "encoder", f"{run.path}-states-of-{mark.replace('/', '-')}"
        request = replace(run.record.request, backbone=str(backbone), heads=heads, epochs="0", marks="0", **PLAIN)
        made.append(finished(replace(request, out=out), progress))
    return Replicates(made)


def finished(request: Request, progress: Progress) -> Run:
    """The run of a request in the folder `request.out`: reused if it is finished, else resumed or started."""
    size = f"-{request.limit}" if request.limit else ""
    name = f"{request.task}-{Path(request.backbone).name}{size}-{request.epochs.replace('/', '-')}-seed-{request.seed}"
    path = Path(str(request.out)) / name
    if (path / "run.json").exists():
        recipe = Run(path).record.recipe
        asked = {field.name: getattr(request, field.name) for field in fields(Request)}
        # An option that the request leaves open may have been decided either way.
        asked = {option: value for option, value in asked.items() if value is not None or option not in DECIDED}
        if changed := differences(recipe, replace(recipe, **asked)):
            raise UserError(f"'{path}' was made with other options ({'; '.join(changed)}). Choose another --out.")
        return Run(path)
    progress.say(f"{request.task}, seed {request.seed}: {path}")
    return fit(replace(request, out=str(path)), resume=partial_of(path).exists(), progress=progress)
