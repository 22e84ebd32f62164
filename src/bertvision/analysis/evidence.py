"""What analyses go by: a run at one mark, what its models said of the dev examples, and the examples themselves."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.metrics.glue import decide
from bertvision.progress import Progress
from bertvision.runs import open_run, read_json, write_json
from bertvision.tasks import load as load_task
from bertvision.training.setting import parts_of
from bertvision.types import HELD_OUT, Examples

NEAR = 0.1  # a score counts as right within this share of the range of all scores


class Evidence:
    """Dev predictions of every model at one mark; `tolerance` and `progress` are for analyses that compute."""

    def __init__(self, reference: str | Path, tolerance: float = 0.5, progress: Progress | None = None) -> None:
        self.run, self.mark = open_run(reference)
        self.tolerance, self.progress = tolerance, progress or Progress(quiet=True)
        self.info, self.scores = self.run.info, self.run.scores
        self.entry = self.run.mark(self.mark)
        self.kind, self.labels = str(self.info["kind"]), tuple(self.info["labels"])
        self.metric = str(self.scores["metric"])
        self.options = self.run.record.recipe
        kept = self.run.predictions(self.mark)
        self.split = next((name for name in kept if name.startswith("dev")), HELD_OUT)
        self._kept = kept[self.split]
        self.targets: np.ndarray = self._kept["targets"]
        self.outputs: dict[str, np.ndarray] = self._kept["outputs"]

    @cached_property
    def roles(self) -> dict[str, str]:
        return roles_of(self.entry)

    @property
    def encoder_folder(self) -> str:
        """Where the encoder lies whose states the run's heads read."""
        store = self.info.get("store")
        where = str(self.run.mark_folder(self.mark) / "encoder") if store is None else store["encoder"]
        if where is None:
            raise UserError(f"'{self.run.path}' was trained on imported states, whose encoder is not known.")
        return where

    def kept(self, name: str, compute: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Rows that took long to find: from the run directory, or found now and kept there."""
        file = self._file(name)
        if not file.exists():
            rows = compute()
            file.parent.mkdir(exist_ok=True)
            write_json(file, rows)
        return read_json(file)

    def has(self, name: str) -> bool:
        return self._file(name).exists()

    def _file(self, name: str) -> Path:
        return self.run.path / "analysis" / f"{name}-{self.mark.replace('/', '-')}.json"

    def said(self, what: str, model: str) -> np.ndarray:
        """`answers`, `seconds` or `nulls` of a model, for spans."""
        if model not in self._kept[what]:
            raise UserError(f"'{self.run.path}' did not keep {what}: it was made by an earlier version.")
        return self._kept[what][model]

    def quality(self, model: str) -> np.ndarray:
        """(N,) between 0 and 1: how right each answer is. Of classes 0 or 1, of spans F1, of scores whether near."""
        values = self.outputs[model]
        if self.kind == "span":
            return values[:, 1]
        if self.kind == "class":
            return (decide(values) == self.targets).astype(float)
        return (np.abs(values[:, 0] - self.targets) <= NEAR * np.ptp(self.targets)).astype(float)

    def right(self, model: str) -> np.ndarray:
        """(N,) bool: answered exactly (of scores: nearly) right."""
        return self.outputs[model][:, 0] == 1 if self.kind == "span" else self.quality(model) == 1

    @cached_property
    def parts(self) -> dict[str, Examples]:
        """The run's data, read again from where it was."""
        if "store" in self.info:
            raise UserError(f"'{self.run.path}' was trained on a store, which keeps no texts.")
        found = parts_of(load_task(self.options), self.options)
        for name, part in found.items():
            if part.digest() != self.info["data"].get(name, {}).get("sha256"):
                raise UserError(f"The {name} data of '{self.run.path}' has changed since: its texts cannot be shown.")
        return found

    @property
    def examples(self) -> Examples:
        """The examples that the predictions are of."""
        return self.parts[self.split]

    @cached_property
    def words(self) -> np.ndarray:
        """(N,) words of each input."""
        pairs = self.examples.second_texts or [""] * len(self.examples)
        return np.array([len(f"{a} {b}".split()) for a, b in zip(self.examples.texts, pairs, strict=True)])

    def named(self, target: Any) -> str:
        """A target as people write it."""
        if self.kind == "span":
            return "answerable" if target else "unanswerable"
        return self.labels[int(target)] if self.kind == "class" else f"{float(target):g}"


def roles_of(entry: dict[str, Any]) -> dict[str, str]:
    """The models that most tables are about: role -> name, at a mark. The selected one is often one of the others."""
    found = {
        "encoder": "encoder",
        "best head": entry["best_head"],
        "ensemble (max)": "ensemble-max",
        "ensemble (greedy)": "ensemble-greedy",
        "selected": entry["selected"],
    }
    return {role: name for role, name in found.items() if name in entry[HELD_OUT]}
