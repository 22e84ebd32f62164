"""Run analyses on a finished run."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertvision.analysis import Table, analyses
from bertvision.analysis.evidence import Evidence
from bertvision.errors import UserError
from bertvision.progress import Progress


def analyse(
    reference: str | Path,
    only: Sequence[str] = (),
    *,
    deep: bool = False,
    tolerance: float = 0.5,
    progress: Progress | None = None,
) -> dict[str, list[Table]]:
    """name -> tables, of all analyses that suit the run, or of those in `only`.

    Those that need the encoder are left out, unless they are asked for (`deep` asks for all) or were made before: then
    the run directory has them.
    """
    if tolerance < 0:
        raise UserError(f"--tolerance {tolerance} must not be negative.")
    evidence = Evidence(reference, tolerance, progress)
    found = {}
    for name in only or analyses:
        analysis = analyses[name]
        if evidence.kind not in analysis.kinds:
            if only:
                raise UserError(f"'{name}' is for {' and '.join(analysis.kinds)}; this run is of kind {evidence.kind}.")
            continue
        if analysis.deep and not (only or deep or evidence.has(name)):
            continue
        try:
            tables = [table for table in analysis.find(evidence) if table.rows]
        except UserError as error:
            if only:
                raise
            evidence.progress.say(f"{name} left out: {error}")
            continue
        if tables:
            found[name] = tables
    return found


def plain(found: dict[str, list[Table]]) -> dict[str, Any]:
    return {name: [asdict(table) for table in tables] for name, tables in found.items()}
