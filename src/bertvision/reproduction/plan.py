"""The runs behind a reproduction: made, resumed or found finished."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.analysis.evidence import roles_of
from bertvision.errors import UserError
from bertvision.metrics.intervals import Score, interval, measure, resampled
from bertvision.options import Request, differences, fraction
from bertvision.progress import Progress
from bertvision.runs import Run, partial_of
from bertvision.training.checkpoints import POLISHED
from bertvision.training.fit import fit

# Fine-tuning as everybody does it, the paper too: through the output layer alone.
USUAL: dict[str, Any] = {"lead": "own", "dropout": True, "batch_size": 16}


@dataclass(frozen=True)
class Plan:
    """At what scale the paper's experiments are done."""

    data: str | None
    backbone: str = "minilm-l6"
    limit: int | None = None
    dev_limit: int | None = None
    epochs: str = "1"
    heads: str | None = None  # None: those of the paper's experiment
    seeds: tuple[int, ...] = (0,)
    out: str = "runs/reproduce"

    def on_states_of(self, run: Run, mark: str, heads: str, progress: Progress) -> Run:
        """Heads on the encoder of a run as it was at a mark, at rest; all else as in that run."""
        aside = replace(
            self, backbone=str(run.mark_folder(mark) / "encoder"), heads=heads, epochs="0",
            seeds=(run.info["options"]["seed"],), out=f"{run.path}-states-of-{mark.replace('/', '-')}",
        )  # fmt: skip
        return aside.runs(run.scores["task"], (), heads, progress)[0]

    def runs(self, task: str, marks: Iterable[str], heads: str, progress: Progress) -> list[Run]:
        """One per seed, with the marks that `epochs` reaches."""
        last = fraction("--epochs", self.epochs)
        reached = sorted({*(mark for mark in map(Fraction, marks) if mark < last), last})
        made = []
        for seed in self.seeds:
            size = f"-{self.limit}" if self.limit else ""
            path = (
                Path(self.out) / f"{task}-{Path(self.backbone).name}{size}-{self.epochs.replace('/', '-')}-seed-{seed}"
            )
            options = Request(
                task=task, data=self.data, backbone=self.backbone, limit=self.limit, dev_limit=self.dev_limit,
                heads=self.heads or heads, epochs=self.epochs, marks=",".join(map(str, reached)), seed=seed,
                out=str(path), **USUAL,
            )  # fmt: skip
            if (path / "run.json").exists():
                _check_same(Run(path), options)
            else:
                progress.say(f"{task}, seed {seed}: {path}")
                fit(options, resume=partial_of(path).exists(), progress=progress)
            made.append(Run(path))
        return made


def _check_same(run: Run, options: Request) -> None:
    """A finished run of the same name may be one of other options."""
    changed = differences(run.record.request, options)
    if changed:
        raise UserError(f"'{run.path}' was made with other options ({'; '.join(changed)}). Choose another --out.")


def mean_score(runs: list[Run], mark: str, model: str, metric: str, split: str = "dev") -> Score | None:
    """The score of a model (by its role or name) at a mark: mean over runs, with a bootstrap over examples."""
    found = [_values(run, mark, model, split) for run in runs]
    if any(values is None for values in found):
        return None
    kept = [values for values in found if values is not None]
    kind = runs[0].info["kind"]
    draws = np.mean([resampled(*values, metric, kind) for values in kept], 0)
    return Score(float(np.mean([measure(*values, metric, kind) for values in kept])), *interval(draws))


def mean_difference(runs: list[Run], mark: str, one: str, other: str, metric: str, split: str = "dev") -> Score | None:
    """How much `other` scores above `one`: paired over examples within each run, mean over runs."""
    kind, values, draws = runs[0].info["kind"], [], []
    for run in runs:
        a, b = (_values(run, mark, name, split) for name in (one, other))
        if a is None or b is None:
            return None
        values.append(measure(*b, metric, kind) - measure(*a, metric, kind))
        draws.append(resampled(*b, metric, kind) - resampled(*a, metric, kind))
    return Score(float(np.mean(values)), *interval(np.mean(draws, 0)))


def _values(run: Run, mark: str, model: str, split: str) -> tuple[np.ndarray, np.ndarray] | None:
    roles, kept = roles_of(run.mark(mark)), run.predictions(mark)[split]
    # Of a head by its name, the polished one: on states at rest, as the paper trains it.
    for name in [roles[model]] if model in roles else [f"{model}{POLISHED}", model]:
        if name in kept["outputs"]:
            return kept["outputs"][name], kept["targets"]
    return None
