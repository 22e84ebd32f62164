"""What a report needs to know about each run: its scores, its analyses, and why some analyses are missing."""

import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from bertvision.analysis.conduct import conduct
from bertvision.analysis.evidence import Evidence
from bertvision.errors import UserError
from bertvision.formats import listed
from bertvision.metrics.intervals import Score, compare
from bertvision.records import ENCODER, MAJORITY, WORDS, ModelName
from bertvision.runs.checkpoints import load_ensembles
from bertvision.types import HELD_OUT


class Finding:
    """One run at one mark."""

    def __init__(self, reference: str | Path, label: str) -> None:
        self.reference, self.label = str(reference), label
        self.evidence = Evidence(reference)
        self.record, self.results, self.mark = self.evidence.record, self.evidence.results, self.evidence.mark
        self.metric, self.split, self.task = self.evidence.metric, self.evidence.split, self.results.task
        self.outcome = conduct(self.evidence)
        self.tables = self.outcome.tables

    def known(self, name: str) -> bool:
        """Whether an analysis has something to show, or a reason why not."""
        return name in self.tables or name in self.outcome.skipped or name in self.outcome.pending

    def missing(self, names: Sequence[str]) -> list[str]:
        """A line per reason why some of these analyses are missing."""
        lines, skipped = [], {name: self.outcome.skipped[name] for name in names if name in self.outcome.skipped}
        for reason in dict.fromkeys(skipped.values()):
            here = [f"`{name}`" for name in skipped if skipped[name] == reason]
            lines.append(f"Skipped: {listed(here)}. {reason}")
        pending = [name for name in names if name in self.outcome.pending]
        if pending:
            command = f"bertvision analyse {shlex.quote(self.reference)} --only {','.join(pending)}"
            lines.append(f"To add {listed(pending)} (some minutes), run `{command}` and make the report again.")
        return lines

    @property
    def model(self) -> str:
        return self.evidence.mark_record.selected

    @property
    def last(self) -> str:
        """The mark at which the run ends."""
        return self.results.last.mark

    @property
    def score(self) -> Score:
        return self.evidence.mark_record.score(self.model, self.metric)

    @property
    def held_out(self) -> float:
        return self.evidence.mark_record.score(self.model, self.metric, HELD_OUT).value

    @cached_property
    def above(self) -> Score:
        """How much the model scores above the encoder at the same mark, paired."""
        return self._above(self.evidence.outputs[ENCODER])

    @cached_property
    def above_last(self) -> Score:
        """How much the model scores above the encoder at the end of the run."""
        return self._above(self.evidence.run.predictions(self.last)[self.split].outputs[ENCODER])

    def _above(self, baseline: np.ndarray) -> Score:
        evidence = self.evidence
        return compare(baseline, evidence.outputs[self.model], evidence.targets, self.metric, evidence.kind)

    @cached_property
    def head_sizes(self) -> list[int]:
        """Parameters of each head that answers, alone or in an ensemble; empty if they are not known."""
        members = [self.model]
        if ModelName.parse(self.model).ensemble:
            try:
                members = list(load_ensembles(self.evidence.run.mark_folder(self.mark))[self.model].weights)
            except (UserError, LookupError):  # the checkpoint was removed to save space
                return []
        sizes = [self.record.size(name) for name in members if name not in (ENCODER, WORDS, MAJORITY)]
        known = [count for count in sizes if count is not None]
        return known if len(known) == len(sizes) else []


def findings(references: Sequence[str | Path]) -> list[Finding]:
    """Runs are labelled by the names of their folders if these differ."""
    if not references:
        raise UserError("Give at least one run directory.")
    names = [_name(str(reference)) for reference in references]
    unique = len(set(names)) == len(names)
    return [Finding(one, name if unique else str(one)) for one, name in zip(references, names, strict=True)]


def _name(reference: str) -> str:
    """`sts-b@1/2` for `runs/sts-b@1/2`."""
    folder, at, mark = ("", "", "") if Path(reference).exists() else reference.rpartition("@")
    return f"{Path(folder or reference).resolve().name}{at}{mark}"
