"""What is known of each run that a report is about: the analyses it has, and why others are missing."""

import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from bertvision.analysis import Table, analyses
from bertvision.analysis.evidence import Evidence
from bertvision.errors import UserError
from bertvision.metrics.intervals import compare
from bertvision.reports.formats import listed
from bertvision.training.checkpoints import POLISHED, load_ensembles


class Finding:
    """One run at one mark."""

    def __init__(self, reference: str | Path, label: str) -> None:
        self.reference, self.label = str(reference), label
        self.evidence = Evidence(reference)
        self.info, self.scores, self.mark = self.evidence.info, self.evidence.scores, self.evidence.mark
        self.metric, self.split = self.evidence.metric, self.evidence.split
        self.task, self.costs = str(self.scores["task"]), self.info.get("costs", {})
        self.tables: dict[str, list[Table]] = {}
        self.reasons: dict[str, str] = {}  # analysis -> why there is nothing of it
        self.unmade: list[str] = []  # analyses that take minutes, and were not asked for yet
        for name in analyses:
            self._conduct(name)

    def _conduct(self, name: str) -> None:
        analysis = analyses[name]
        if self.evidence.kind not in analysis.kinds:
            return
        if analysis.deep and not self.evidence.has(name):
            self.unmade.append(name)
            return
        try:
            found = [table for table in analysis.find(self.evidence) if table.rows]
        except (UserError, OSError) as error:
            self.reasons[name] = str(error)
        except LookupError as error:  # a run of an earlier version, which lacks what later ones keep
            self.reasons[name] = f"'{self.evidence.run.path}' lacks {error}."
        else:
            if found:
                self.tables[name] = found

    def known(self, name: str) -> bool:
        """Whether there is something to show of an analysis, or a reason why not."""
        return name in self.tables or name in self.reasons or name in self.unmade

    def missing(self, names: Sequence[str]) -> list[str]:
        """A line per reason why some of these analyses are not there."""
        lines = []
        for reason in dict.fromkeys(self.reasons[name] for name in names if name in self.reasons):
            here = [f"`{name}`" for name in names if self.reasons.get(name) == reason]
            lines.append(f"Left out: {listed(here)}. {reason}")
        unmade = [name for name in names if name in self.unmade]
        if unmade:
            command = f"bertvision analyse {shlex.quote(self.reference)} --only {','.join(unmade)}"
            lines.append(f"Not made yet, as it takes some minutes: `{command}`")
        return lines

    @property
    def model(self) -> str:
        return str(self.evidence.entry["selected"])

    @property
    def last(self) -> str:
        """The mark at which the run ended."""
        return str(self.scores["marks"][-1]["epoch"])

    @property
    def score(self) -> dict[str, float]:
        return self.evidence.entry[self.split][self.model][self.metric]

    @property
    def held_out(self) -> float:
        return float(self.evidence.entry["held_out"][self.model][self.metric]["value"])

    @cached_property
    def above(self) -> dict[str, float]:
        """How much the model is above the encoder at the same mark, paired."""
        return self._above(self.evidence.outputs["encoder"])

    @cached_property
    def above_last(self) -> dict[str, float]:
        """How much it is above the encoder at the end of the run."""
        return self._above(self.evidence.run.predictions(self.last)[self.split]["outputs"]["encoder"])

    def _above(self, rival: Any) -> dict[str, float]:
        evidence = self.evidence
        found = compare(rival, evidence.outputs[self.model], evidence.targets, self.metric, evidence.kind)
        return found.as_dict()

    @cached_property
    def heads(self) -> dict[str, int | None]:
        """The heads that answer, alone or in an ensemble, with their parameters."""
        members = [self.model]
        if self.model.startswith("ensemble-"):
            try:
                members = list(load_ensembles(self.evidence.run.mark_folder(self.mark))[self.model].weights)
            except (UserError, LookupError):  # its checkpoint was removed to save room
                members = []
        counts = self.info["parameters"]
        return {name: counts.get(name.removesuffix(POLISHED)) for name in members if name != "encoder"}


def findings(references: Sequence[str | Path]) -> list[Finding]:
    """Runs are called by the names of their folders where these differ."""
    if not references:
        raise UserError("Which runs? Give at least one run directory.")
    names = [_name(str(reference)) for reference in references]
    unique = len(set(names)) == len(names)
    return [Finding(one, name if unique else str(one)) for one, name in zip(references, names, strict=True)]


def _name(reference: str) -> str:
    """`sts-b@1/2` of `runs/sts-b@1/2`."""
    folder, at, mark = ("", "", "") if Path(reference).exists() else reference.rpartition("@")
    return f"{Path(folder or reference).resolve().name}{at}{mark}"
