"""Rank the models of some runs, and find those that no smaller model beats."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.runs.directory import Run, open_run
from bertvision.types import HELD_OUT


def league(references: Sequence[str | Path]) -> tuple[str, list[dict[str, Any]]]:
    """Return (metric, rows), best held-out score first.

    `front` is the Pareto front of held-out score against parameters, `seconds` the time of the run up to the mark.
    Ensembles have no parameters of their own and are not listed.
    """
    rows: list[dict[str, Any]] = []
    metrics: dict[str, str] = {}  # task -> metric
    for reference in _runs(references):
        run, mark = open_run(reference)
        record, results = run.record, run.results
        found, metric = results.at(mark), results.metric
        metrics[results.task] = metric
        for model in found.models:
            if (parameters := record.size(model)) is None:
                continue
            held_out, dev = (found.score(model, metric, split).as_dict() for split in (HELD_OUT, found.split))
            row: dict[str, Any] = {
                "model": model,
                "run": str(run.path),
                "epoch": mark,
                "held_out": held_out,
                "dev": dev,
            }
            rows.append(row | {"parameters": parameters, "seconds": found.seconds})
    if len(metrics) > 1:
        raise UserError(f"The runs are of different tasks: {', '.join(sorted(metrics))}.")
    rows.sort(key=lambda row: (-row["held_out"]["value"], row["parameters"]))
    smallest = float("inf")
    for row in rows:
        row["front"] = row["parameters"] < smallest
        smallest = min(smallest, row["parameters"])
    return next(iter(metrics.values())), rows


def _runs(references: Sequence[str | Path]) -> Iterator[str | Path]:
    """The runs; for a store, all runs in runs/ that were trained on it."""
    for reference in references:
        if not (Path(reference) / "manifest.json").exists():
            yield reference
            continue
        stores = {file.parent: Run(file.parent).record.store for file in sorted(Path("runs").glob("*/run.json"))}
        place = Path(reference).resolve()
        trained = [path for path, store in stores.items() if store and Path(store.place).resolve() == place]
        if not trained:
            raise UserError(f"No run in runs/ was trained on the store '{reference}': bertvision train {reference}")
        yield from trained
