"""What analyses read: a run at one mark, its models' predictions for the dev examples, and the examples themselves."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.inference.model import encoder_folder
from bertvision.metrics.glue import decide
from bertvision.prepare import parts_of
from bertvision.progress import Progress
from bertvision.records import read_json, write_json
from bertvision.runs.directory import open_run
from bertvision.tasks import load as load_task
from bertvision.types import Examples

NEAR = 0.1  # a score is right within this share of the range of all scores


class Evidence:
    """Predictions of every model at one mark, for the split to report.

    Args:
        reference: a run directory, or RUN@MARK.
        tolerance: points that may be lost, for the analysis `depth`.
        progress: where analyses that compute show how far they are.
    """

    def __init__(self, reference: str | Path, tolerance: float = 0.5, progress: Progress | None = None) -> None:
        self.run, self.mark = open_run(reference)
        self.tolerance, self.progress = tolerance, progress or Progress(quiet=True)
        self.record, self.results = self.run.record, self.run.results
        self.recipe, self.kind, self.labels = self.record.recipe, self.record.kind, self.record.labels
        self.mark_record, self.metric = self.results.at(self.mark), self.results.metric
        self.split = self.mark_record.split
        self.roles = self.mark_record.roles
        self._kept = self.run.predictions(self.mark)[self.split]
        self.targets, self.outputs = self._kept.targets, self._kept.outputs

    @property
    def encoder_folder(self) -> str:
        """The folder of the encoder whose states the run's heads read."""
        return encoder_folder(self.run, self.record, self.mark)

    def kept(self, name: str, compute: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The rows of a deep analysis: from the run directory, or computed now and saved there."""
        file = self._file(name)
        if not file.exists():
            rows = compute()
            try:
                file.parent.mkdir(exist_ok=True)
                write_json(file, rows)
            except OSError as error:  # a read-only run, or a full disk
                self.progress.say(f"'{file}' cannot be written: {error.strerror}. The next analysis computes it again.")
                return rows
        return read_json(file)

    def has(self, name: str) -> bool:
        return self._file(name).exists()

    def _file(self, name: str) -> Path:
        return self.run.path / "analysis" / f"{name}-{self.mark.replace('/', '-')}.json"

    def said(self, what: str, model: str) -> np.ndarray:
        """`answers`, `seconds` or `nulls` of a model, for spans."""
        found: dict[str, np.ndarray] = getattr(self._kept, what)
        if model not in found:
            raise UserError(f"'{self.run.path}' did not save {what}: it was made by an earlier version.")
        return found[model]

    def quality(self, model: str) -> np.ndarray:
        """(N,) from 0 to 1: for classes 0 or 1, for spans F1, for scores whether the prediction is near."""
        values = self.outputs[model]
        if self.kind == "span":
            return values[:, 1]
        if self.kind == "class":
            return (decide(values) == self.targets).astype(float)
        return (np.abs(values[:, 0] - self.targets) <= NEAR * np.ptp(self.targets)).astype(float)

    def right(self, model: str) -> np.ndarray:
        """(N,) bool: exactly right or, for scores, near."""
        return self.outputs[model][:, 0] == 1 if self.kind == "span" else self.quality(model) == 1

    @cached_property
    def parts(self) -> dict[str, Examples]:
        """The run's data by split, read again from its source."""
        if self.record.store is not None:
            raise UserError(f"'{self.run.path}' was trained on a store, which has no texts.")
        if self.recipe.in_memory:
            raise UserError(f"The data of '{self.run.path}' was given in memory: its texts cannot be read again.")
        found = parts_of(load_task(self.recipe), self.recipe)
        for name, part in found.items():
            if name not in self.record.data or part.digest() != self.record.data[name].sha256:
                raise UserError(f"The {name} data of '{self.run.path}' has changed since the run: no texts are shown.")
        return found

    @property
    def examples(self) -> Examples:
        """The examples of the predictions."""
        return self.parts[self.split]

    @cached_property
    def words(self) -> np.ndarray:
        """(N,) words of each input."""
        pairs = self.examples.second_texts or [""] * len(self.examples)
        return np.array([len(f"{a} {b}".split()) for a, b in zip(self.examples.texts, pairs, strict=True)])

    def named(self, target: Any) -> str:
        """A target as users write it."""
        if self.kind == "span":
            return "answerable" if target else "unanswerable"
        if self.kind == "score":
            return f"{float(target):g}"
        return self.labels[int(target)] if target < len(self.labels) else "a class that train lacks"
