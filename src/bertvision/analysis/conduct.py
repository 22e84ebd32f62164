"""Run the analyses that apply to a finished run."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertvision.analysis import Table, analyses
from bertvision.analysis.evidence import Evidence
from bertvision.errors import Interrupted, UserError
from bertvision.progress import Progress


@dataclass
class Outcome:
    """The results of a run's analyses. Analyses with nothing to show are not listed."""

    tables: dict[str, list[Table]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # analysis -> the reason
    pending: list[str] = field(default_factory=list)  # deep analyses that have not been computed yet


def analyse(
    reference: str | Path,
    only: Sequence[str] = (),
    *,
    deep: bool = False,
    tolerance: float = 0.5,
    progress: Progress | None = None,
) -> dict[str, list[Table]]:
    """Return name -> tables of all analyses that apply to the run, or of those in `only`.

    Deep analyses, which need the encoder, are included if they are in `only`, if `deep` is set, or if the run
    directory has their result already.
    """
    if tolerance < 0:
        raise UserError(f"--tolerance must not be negative; got {tolerance}.")
    evidence = Evidence(reference, tolerance, progress)
    for name in only:
        if evidence.kind not in analyses[name].kinds:
            kinds = " and ".join(analyses[name].kinds)
            raise UserError(f"'{name}' is for {kinds}; this run is of kind {evidence.kind}.")
    outcome = conduct(evidence, only or analyses, deep=deep or bool(only), strict=bool(only))
    for name, reason in outcome.skipped.items():
        evidence.progress.say(f"skipped {name}: {reason}")
    return outcome.tables


def conduct(
    evidence: Evidence, names: Iterable[str] = analyses, *, deep: bool = False, strict: bool = False
) -> Outcome:
    """Run the analyses that suit the run's kind. An analysis that fails is skipped or, if `strict`, raises."""
    outcome = Outcome()
    for name in names:
        analysis = analyses[name]
        if evidence.kind not in analysis.kinds:
            continue
        if analysis.deep and not (deep or evidence.has(name)):
            outcome.pending.append(name)
            continue
        try:
            tables = [table for table in analysis.find(evidence) if table.rows]
        except (UserError, OSError) as error:
            if strict or isinstance(error, Interrupted):
                raise
            outcome.skipped[name] = str(error)
        else:
            if tables:
                outcome.tables[name] = tables
    return outcome


def plain(found: dict[str, list[Table]]) -> dict[str, Any]:
    return {name: [asdict(table) for table in tables] for name, tables in found.items()}
